//! Lowering of primitive operations to views, kernels or the reference implementation.

use super::elementwise::ElementExpr;
use super::{Copy, Kernel, Lower, LoweredValue, Move};
use crate::cpu::compile::fuse::function_of;
use crate::cpu::compile::{Instr, reg_view};
use crate::cpu::kernels::SourceOp;
use crate::cpu::kernels::attention::Attention;
use crate::cpu::kernels::axis::{AxisKernel, AxisOp};
use crate::cpu::kernels::conv::{ChannelsLastWeightGrad, Geometry, LANES, WeightGrad};
use crate::cpu::kernels::index::{DynamicSliceCopy, IndexPattern};
use crate::cpu::kernels::pool::{Pool, Pooling};
use crate::cpu::kernels::random::RandomKernel;
use crate::cpu::kernels::reduce::{Reduce, Reduction};
use crate::cpu::kernels::softmax::{Softmax, SoftmaxKind};
use crate::cpu::memory::{Base, MemoryLayout, Out, TensorOperand, View};
use anabranch_dsl::fusion::{reduced_axes, view_map};
use anabranch_dsl::ir::{Attrs, Node, NodeData, Value};
use anabranch_dsl::ops::{Aliasing, EvalCx, OpClass, Prim, attributes, prim};
use anabranch_dsl::{HostTensor, Result, Type};

impl Lower<'_> {
    /// Lowers a primitive operation.
    pub(super) fn prim(&mut self, node: Node, def: Prim, attrs: &Attrs) -> Result<LoweredValue> {
        let graph = self.graph;
        let data = graph.node(node);
        let is_known = |ty: &Type| ty.element().dtype.is_plain() && ty.element().shape.known().is_some();
        let mut known = data.operands.iter().chain(&data.results).all(|&v| is_known(graph.ty(v)));
        // A value of known shape may be stored in a slot.
        for &v in &data.operands {
            known &= !matches!(self.places[v.index()], Some(LoweredValue::Slot(_)));
        }
        if !known {
            return self.reference(data, def, attrs);
        }
        if data.operands.is_empty() {
            return self.constant_op(data, def, attrs);
        }
        if def == prim::CHECK_INDEX
            && let Some(place) = self.check_index(data, def, attrs)?
        {
            return Ok(place);
        }
        if let Some(place) = self.structural(data, def, attrs)? {
            return Ok(place);
        }
        let is_scalar = |v: Value| graph.ty(v).element().rank() == 0;
        let is_half = |&v: &Value| self.graph.ty(v).element().dtype.is_half();
        if def.widens() && data.operands.iter().chain(&data.results).any(is_half) {
            return self.reference(data, def, attrs);
        }
        if let Some(function) = function_of(graph, data).filter(|_| is_scalar(data.results[0])) {
            return self.scalar(data, function, def, attrs);
        }
        if self.options.fuse && Reduction::of(def).is_some() {
            let expr = ElementExpr {
                shape: self.shape_of(data.operands[0]),
                operands: vec![self.view_of(data, 0)?],
                ops: Vec::new(),
            };
            if let Some(place) = self.reduction_of(expr, data, def, attrs)? {
                return Ok(place);
            }
        }
        if let Some(place) = self.kernel(data, def, attrs)? {
            return Ok(place);
        }
        self.reference(data, def, attrs)
    }

    /// Evaluates an operation without operands, whose result is constant. If results take too much
    /// memory, each run evaluates it.
    fn constant_op(&mut self, data: &NodeData, def: Prim, attrs: &Attrs) -> Result<LoweredValue> {
        let ty = self.graph.ty(data.results[0]).element();
        let sum = self.evaluated.saturating_add(ty.n_bytes().expect("the shape is known"));
        if sum > self.options.max_evaluated {
            return self.reference(data, def, attrs);
        }
        self.evaluated = sum;
        let tensor = def.evaluate(&EvalCx { operands: &[], attrs, ty }).map_err(|e| e.at(def.name, data.loc))?;
        Ok(self.constant(&tensor))
    }

    /// Returns the known extents of an operand or result.
    fn shape_of(&self, v: Value) -> Vec<usize> {
        self.graph.ty(v).element().shape.known().expect("the shape is known")
    }

    /// Lowers operations that only rearrange elements, as views or copies.
    fn structural(&mut self, data: &NodeData, def: Prim, attrs: &Attrs) -> Result<Option<LoweredValue>> {
        let shape = self.shape_of(data.results[0]);
        let view = match def {
            prim::EXTENTS => {
                let extents: Vec<i64> = self.shape_of(data.operands[0]).iter().map(|&n| n as i64).collect();
                return Ok(Some(self.constant(&HostTensor::new([extents.len()], extents))));
            }
            _ if matches!(def.class, OpClass::View(_)) => match view_map(self.graph, data) {
                Some(map) => self.view_of(data, 0)?.through(&map, &shape),
                None => {
                    let view = self.view_of(data, 0)?;
                    match view.reshape(&shape) {
                        Some(view) => view,
                        None => {
                            let copy = self.copied(&view, def.name, data.loc);
                            copy.reshape(&shape).expect("a contiguous tensor can have any shape of its size")
                        }
                    }
                }
            },
            prim::CONCAT => {
                let axis = attributes::Along::of(attrs).axis;
                let out = self.new_buffer(self.graph.ty(data.results[0]).element().dtype, shape);
                let mut start = 0;
                for i in 0..data.operands.len() {
                    let part = self.view_of(data, i)?;
                    let n = part.shape[axis];
                    self.copy_to(&part, out.slice(axis, start, n, 1), def.name, data.loc);
                    start += n;
                }
                out
            }
            prim::UPDATE_SLICE => {
                let attributes::SliceTarget { axis, start, step } = attributes::SliceTarget::of(attrs);
                let part = self.view_of(data, 1)?;
                let out = self.changeable(data, def)?;
                self.copy_to(&part, out.slice(axis, start, part.shape[axis], step as isize), def.name, data.loc);
                out
            }
            _ => return Ok(None),
        };
        Ok(Some(self.tensor_place(view, def.name, data.loc)))
    }

    /// Lowers a check of indices. The result is the operand. Returns `None` for several starts of
    /// slices of more than one index, which no operation has.
    fn check_index(&mut self, data: &NodeData, def: Prim, attrs: &Attrs) -> Result<Option<LoweredValue>> {
        let attributes::IndexRange { extent, size, .. } = attributes::IndexRange::of(attrs);
        let place = self.place(data.operands[0])?;
        let meaning = SourceOp { def, attrs: attrs.clone(), name: data.name_in_errors() };
        let ids = self.view_of(data, 0)?;
        match ids.base {
            Base::Reg(a) if ids.size() == 1 => {
                let dtype = ids.dtype;
                // The others are for errors.
                let operands = data.operands.iter().map(|&v| self.operand(v)).collect::<Result<Vec<_>>>()?;
                let op = self.add_op(Kernel::Data, operands, Out::Nothing, Some(meaning), def.name, data.loc);
                // No index is valid if the slice is longer than the axis.
                let n = (extent + 1).saturating_sub(size) as u64;
                self.emit(Instr::RequireIndex { a, dtype, n, op });
                Ok(Some(place))
            }
            _ if size == 1 => {
                let ids = self.contiguous(ids, def.name, data.loc);
                let operands = vec![TensorOperand::View(ids.clone())];
                let kernel = Kernel::CheckIndices { extent };
                let op = self.add_op(kernel, operands, Out::Nothing, Some(meaning), def.name, data.loc);
                self.emit(Instr::Run(op));
                Ok(Some(LoweredValue::View(ids)))
            }
            _ => Ok(None),
        }
    }

    /// Returns a mutable buffer with the first operand: at its last use, the operand itself.
    fn changeable(&mut self, data: &NodeData, def: Prim) -> Result<View> {
        debug_assert_eq!(def.aliasing(), Aliasing::Update, "{} does not change its first operand", def.name);
        let src = self.view_of(data, 0)?;
        let dst = self.new_buffer(src.dtype, src.shape.clone());
        self.emit_moves(vec![Move::Tensor { dst: dst.clone(), src }]);
        Ok(dst)
    }

    /// Lowers operations that have a kernel.
    fn kernel(&mut self, data: &NodeData, def: Prim, attrs: &Attrs) -> Result<Option<LoweredValue>> {
        let mut operands = (0..data.operands.len()).map(|i| self.view_of(data, i)).collect::<Result<Vec<_>>>()?;
        let shape = self.shape_of(data.results[0]);
        let kernel = match def {
            prim::SUM | prim::PROD | prim::MAX | prim::MIN | prim::ALL | prim::ANY | prim::SUM_LIKE => {
                let reduction = Reduction::of(def).expect("the operation is a reduction");
                let axes = reduced_axes(self.graph, data).expect("the reduction has known shapes");
                Kernel::Reduce(Reduce::new(reduction, &operands[0], &axes))
            }
            prim::SOFTMAX | prim::LOG_SOFTMAX | prim::LOGSUMEXP => {
                let normal = match def {
                    prim::SOFTMAX => SoftmaxKind::Softmax,
                    prim::LOG_SOFTMAX => SoftmaxKind::LogSoftmax,
                    _ => SoftmaxKind::LogSumExp,
                };
                operands[0] = self.contiguous(operands[0].clone(), def.name, data.loc);
                Kernel::Softmax(Softmax::new(normal, &operands[0].shape, attributes::Along::of(attrs).axis))
            }
            prim::CUMSUM | prim::ARGMAX | prim::ARGMIN | prim::ARGSORT => {
                let along = match def {
                    prim::CUMSUM => AxisOp::CumSum { reverse: attributes::RunningSum::of(attrs).reverse },
                    prim::ARGSORT => AxisOp::ArgSort { descending: attributes::Order::of(attrs).descending },
                    prim::ARGMAX => AxisOp::ArgMax,
                    _ => AxisOp::ArgMin,
                };
                operands[0] = self.contiguous(operands[0].clone(), def.name, data.loc);
                Kernel::Axis(AxisKernel::new(along, &operands[0].shape, attributes::Along::of(attrs).axis))
            }
            prim::FIRST_OCCURRENCES => {
                operands[0] = self.contiguous(operands[0].clone(), def.name, data.loc);
                Kernel::FirstOccurrences
            }
            prim::CONV_WEIGHT_GRAD => return self.conv_weights(operands, shape, data, def, attrs).map(Some),
            prim::MAX_POOL | prim::MAX_POOL_PICK | prim::MAX_POOL_GRAD | prim::AVG_POOL | prim::AVG_POOL_GRAD => {
                let (pooling, x, y) = match def {
                    prim::MAX_POOL => (Pooling::Max, &operands[0].shape, &shape),
                    prim::MAX_POOL_PICK => (Pooling::Pick, &operands[0].shape, &shape),
                    prim::MAX_POOL_GRAD => (Pooling::MaxGrad, &operands[0].shape, &operands[1].shape),
                    prim::AVG_POOL => (Pooling::Mean, &operands[0].shape, &shape),
                    _ => (Pooling::MeanGrad, &shape, &operands[0].shape),
                };
                if !Pool::takes(x) {
                    return Ok(None);
                }
                let has_channels = x.len() == attributes::Pool::of(attrs).window.len() + 2;
                // If the result is larger than the operand, convert to channels last before it
                // grows, as most convolutions use that layout.
                let grows = pooling == Pooling::MeanGrad && x.get(1).is_some_and(|&channels| channels >= LANES);
                let order = match has_channels && self.options.fuse {
                    true if grows => MemoryLayout::ChannelsLast,
                    true => operands[0].order(),
                    false => MemoryLayout::RowMajor,
                };
                let kernel = Kernel::Pool(Pool::new(pooling, x, y, order, attrs));
                for view in &mut operands {
                    *view = self.arranged(view, order, def.name, data.loc);
                }
                let dtype = operands[0].dtype;
                let out = self.new_buffer_in(order, dtype, &shape);
                let operands = operands.into_iter().map(TensorOperand::View).collect();
                self.run_kernel_to(kernel, operands, Out::View(out.arranged(order)), data, def, attrs);
                return Ok(Some(LoweredValue::View(out)));
            }
            prim::ATTENTION | prim::ATTENTION_GRAD => {
                for view in &mut operands {
                    if !Attention::takes(view) {
                        *view = self.copied(view, def.name, data.loc);
                    }
                }
                Kernel::Attention(Attention::new(&operands, attributes::Attention::of(attrs).causal))
            }
            prim::TAKE | prim::TAKE_ALONG_AXIS => {
                for view in &mut operands {
                    *view = self.contiguous(view.clone(), def.name, data.loc);
                }
                Kernel::Take(places(def, &operands[0], &operands[1], attrs))
            }
            prim::SCATTER_ADD | prim::SCATTER_ADD_ALONG_AXIS if !self.options.check_finite => {
                for view in &mut operands[1..] {
                    *view = self.contiguous(view.clone(), def.name, data.loc);
                }
                operands[0] = self.changeable(data, def)?;
                let kernel = match def {
                    prim::SCATTER_ADD if operands[1..].iter().all(is_in_register) => {
                        Kernel::AddElement { axis: attributes::Along::of(attrs).axis }
                    }
                    _ => Kernel::ScatterAdd(places(def, &operands[0], &operands[1], attrs)),
                };
                return Ok(Some(self.change(kernel, operands, data, def, attrs)));
            }
            prim::DYNAMIC_SLICE => {
                let attributes::DynamicSlice { axis, size } = attributes::DynamicSlice::of(attrs);
                if shape.iter().all(|&n| n == 1) {
                    let (dst, dtype) = (self.new_reg(), operands[0].dtype);
                    let operands = operands.into_iter().map(TensorOperand::View).collect();
                    let kernel = Kernel::ReadElement { axis };
                    self.run_kernel_to(kernel, operands, Out::Reg(dst, dtype), data, def, attrs);
                    return Ok(Some(LoweredValue::View(reg_view(dst, dtype).broadcast_to(&shape))));
                }
                let out = View::whole(operands[0].base, operands[0].dtype, shape);
                let copy = Copy::new(&operands[0].slice(axis, 0, size, 1), &out);
                Kernel::ReadWindow(DynamicSliceCopy::new(copy, &operands[0], axis, size))
            }
            prim::DYNAMIC_UPDATE_SLICE => {
                let axis = attributes::Along::of(attrs).axis;
                let size = operands[1].shape[axis];
                operands[0] = self.changeable(data, def)?;
                // Native loops write elements from registers.
                if operands[1].size() == 1 && operands[1].dtype.is_plain() {
                    let element = View { shape: vec![], strides: vec![], ..operands[1].clone() };
                    if let LoweredValue::Reg(r) = self.tensor_place(element, def.name, data.loc) {
                        operands[1] = reg_view(r, operands[1].dtype).broadcast_to(&operands[1].shape);
                    }
                }
                let kernel = if is_in_register(&operands[1]) {
                    Kernel::WriteElement { axis }
                } else {
                    let copy = Copy::new(&operands[1], &operands[0].slice(axis, 0, size, 1));
                    Kernel::WriteWindow(DynamicSliceCopy::new(copy, &operands[0], axis, size))
                };
                return Ok(Some(self.change(kernel, operands, data, def, attrs)));
            }
            prim::RANDOM_BITS | prim::RANDOM_UNIFORM | prim::RANDOM_FOLD_IN => {
                operands[0] = self.contiguous(operands[0].clone(), def.name, data.loc);
                match def {
                    prim::RANDOM_BITS => Kernel::Random(RandomKernel::Bits),
                    prim::RANDOM_UNIFORM => Kernel::Random(RandomKernel::Uniform(attributes::Typed::of(attrs).dtype)),
                    _ => Kernel::FoldIn,
                }
            }
            _ => return Ok(None),
        };
        let operands = operands.into_iter().map(TensorOperand::View).collect();
        self.run_kernel_on(kernel, operands, data, def, attrs).map(Some)
    }

    /// Lowers the filter gradient of a convolution: partial sums over parts of the batch, then
    /// their sum.
    fn conv_weights(
        &mut self,
        mut operands: Vec<View>,
        shape: Vec<usize>,
        data: &NodeData,
        def: Prim,
        attrs: &Attrs,
    ) -> Result<LoweredValue> {
        let geometry = Geometry::new(&operands[0].shape, &shape, &operands[1].shape, attrs);
        let orders = [operands[0].order(), operands[1].order()];
        if self.options.fuse
            && orders.contains(&MemoryLayout::ChannelsLast)
            && let Some(kernel) = ChannelsLastWeightGrad::new(&geometry, orders[0])
        {
            return Ok(self.conv_weights_of_last(kernel, [&operands[0], &operands[1]], &shape, data, def));
        }
        let kernel = WeightGrad::new(&geometry);
        operands[0] = self.contiguous(operands[0].clone(), def.name, data.loc);
        if kernel.filters_first() {
            let order: Vec<usize> = [1, 0].into_iter().chain(2..shape.len()).collect();
            operands[1] = operands[1].permute(&order);
        }
        operands[1] = self.contiguous(operands[1].clone(), def.name, data.loc);
        let operands = operands.into_iter().map(TensorOperand::View).collect();
        if kernel.splits() == 1 {
            return self.run_kernel_on(Kernel::ConvWeights(kernel), operands, data, def, attrs);
        }
        let dtype = self.graph.ty(data.results[0]).element().dtype;
        let parts = self.new_buffer(dtype, [vec![kernel.splits()], shape].concat());
        let op = self.add_op(Kernel::ConvWeights(kernel), operands, Out::View(parts.clone()), None, def.name, data.loc);
        self.emit(Instr::Run(op));
        if self.options.check_finite {
            self.emit(Instr::CheckFinite(op));
        }
        let sum = Kernel::Reduce(Reduce::new(Reduction::Sum, &parts, &[0]));
        self.run_kernel_on(sum, vec![TensorOperand::View(parts)], data, def, attrs)
    }

    /// Lowers the filter gradient for channels-last operands.
    fn conv_weights_of_last(
        &mut self,
        kernel: ChannelsLastWeightGrad,
        [x, dy]: [&View; 2],
        shape: &[usize],
        data: &NodeData,
        def: Prim,
    ) -> LoweredValue {
        let x = self.arranged(x, x.order(), def.name, data.loc);
        let dy = self.arranged(dy, MemoryLayout::ChannelsLast, def.name, data.loc);
        let dtype = x.dtype;
        let size: usize = shape[1..].iter().product();
        // Filters are its last axis, as in the tiles.
        let out = self.new_buffer(dtype, vec![size, shape[0]]);
        let splits = kernel.splits();
        let parts = if splits == 1 { out.clone() } else { self.new_buffer(dtype, vec![splits, size, shape[0]]) };
        let operands = vec![TensorOperand::View(x), TensorOperand::View(dy)];
        let kernel = Kernel::ChannelsLastWeights(kernel);
        let mut ops = vec![self.add_op(kernel, operands, Out::View(parts.clone()), None, def.name, data.loc)];
        if splits > 1 {
            let sum = Kernel::Reduce(Reduce::new(Reduction::Sum, &parts, &[0]));
            ops.push(self.add_op(
                sum,
                vec![TensorOperand::View(parts)],
                Out::View(out.clone()),
                None,
                def.name,
                data.loc,
            ));
        }
        for op in ops {
            self.emit(Instr::Run(op));
            if self.options.check_finite {
                self.emit(Instr::CheckFinite(op));
            }
        }
        let rows = self.contiguous(out.permute(&[1, 0]), def.name, data.loc);
        LoweredValue::View(rows.reshape(shape).expect("a contiguous tensor can have any shape of its size"))
    }

    /// Runs a kernel that modifies its first operand in place.
    fn change(
        &mut self,
        kernel: Kernel,
        operands: Vec<View>,
        data: &NodeData,
        def: Prim,
        attrs: &Attrs,
    ) -> LoweredValue {
        let out = operands[0].clone();
        let operands = operands.into_iter().map(TensorOperand::View).collect();
        let meaning = SourceOp { def, attrs: attrs.clone(), name: data.name_in_errors() };
        let op = self.add_op(kernel, operands, Out::View(out.clone()), Some(meaning), def.name, data.loc);
        self.emit(Instr::Run(op));
        LoweredValue::View(out)
    }

    fn view_of(&mut self, data: &NodeData, i: usize) -> Result<View> {
        match self.operand(data.operands[i])? {
            TensorOperand::View(v) => Ok(v),
            TensorOperand::Slot(s) => panic!("{s:?} where shapes are known"),
        }
    }

    /// Runs an operation by its reference implementation.
    fn reference(&mut self, data: &NodeData, def: Prim, attrs: &Attrs) -> Result<LoweredValue> {
        let operands = data.operands.iter().map(|&v| self.operand(v)).collect::<Result<Vec<_>>>()?;
        self.run_kernel_on(Kernel::Reference, operands, data, def, attrs)
    }

    /// Runs a kernel and writes its result to `out`.
    pub(super) fn run_kernel_to(
        &mut self,
        kernel: Kernel,
        operands: Vec<TensorOperand>,
        out: Out,
        data: &NodeData,
        def: Prim,
        attrs: &Attrs,
    ) {
        let meaning = SourceOp { def, attrs: attrs.clone(), name: data.name_in_errors() };
        let op = self.add_op(kernel, operands, out, Some(meaning), def.name, data.loc);
        self.emit(Instr::Run(op));
        if self.options.check_finite {
            self.emit(Instr::CheckFinite(op));
        }
    }

    /// Runs a kernel and writes its result to new storage.
    pub(super) fn run_kernel_on(
        &mut self,
        kernel: Kernel,
        operands: Vec<TensorOperand>,
        data: &NodeData,
        def: Prim,
        attrs: &Attrs,
    ) -> Result<LoweredValue> {
        let ty = self.graph.ty(data.results[0]);
        let place = self.new_place(ty);
        let out = match &place {
            LoweredValue::Reg(r) => Out::Reg(*r, ty.element().dtype),
            LoweredValue::View(v) => Out::View(v.clone()),
            LoweredValue::Slot(s) => Out::Slot(*s),
            LoweredValue::Stack(_) => panic!("the result of {} is a tensor", def.name),
        };
        self.run_kernel_to(kernel, operands, out, data, def, attrs);
        Ok(place)
    }
}

/// Returns whether a view is one element in a register.
fn is_in_register(view: &View) -> bool {
    matches!(view.base, Base::Reg(_)) && view.size() == 1
}

/// Returns the pattern of elements that indices select in a tensor.
fn places(def: Prim, x: &View, ids: &View, attrs: &Attrs) -> IndexPattern {
    let axis = attributes::Along::of(attrs).axis;
    match def {
        prim::TAKE | prim::SCATTER_ADD => IndexPattern::slices(&x.shape, axis),
        _ => IndexPattern::elements(&x.shape, &ids.shape, axis),
    }
}
