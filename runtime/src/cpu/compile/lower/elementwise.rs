//! Elementwise operations and reductions: scalar instructions, and fused kernels.

use super::{Instr, Lower, LoweredValue};
use crate::cpu::compile::fuse::function_of;
use crate::cpu::compile::reg_view;
use crate::cpu::kernels::Kernel;
use crate::cpu::kernels::elementwise::{Arg, Map, MapFn, MapOp};
use crate::cpu::kernels::functions::{ElementFunction, ScalarFn};
use crate::cpu::kernels::map_reduce::{MapReduce, ReducedLayout};
use crate::cpu::kernels::random::RandomKernel;
use crate::cpu::kernels::reduce::Reduction;
use crate::cpu::kernels::{ScalarOp, SourceOp};
use crate::cpu::memory::{Base, MemoryLayout, Out, TensorOperand, View};
use anabranch_dsl::fusion::{
    FusedKernel, KernelId, KernelInput, KernelStage, RowPart, StageSource, StageWork, reduced_axes,
};
use anabranch_dsl::ir::{Attrs, NodeData, Op, Value};
use anabranch_dsl::ops::{Prim, attributes, function_dtype, prim};
use anabranch_dsl::{DType, Result};

/// An elementwise expression over views of one shape. The last operation yields its result.
#[derive(Clone, Debug)]
pub(super) struct ElementExpr {
    pub(super) shape: Vec<usize>,
    pub(super) operands: Vec<View>,
    pub(super) ops: Vec<MapOp>,
}

impl ElementExpr {
    fn add_operand(&mut self, view: View) -> Arg {
        let i = self.operands.iter().position(|v| *v == view).unwrap_or_else(|| {
            self.operands.push(view);
            self.operands.len() - 1
        });
        Arg::Operand(i as u8)
    }
}

/// The traversal of a reduction.
struct ReductionOrder {
    order: MemoryLayout,
    layout: ReducedLayout,
    /// The axes of the result in memory order.
    kept: Vec<usize>,
}

impl<'g> Lower<'g> {
    /// Lowers a fused kernel: one of rows as an operation for each of its parts, which become one
    /// if memory has its rows (`compile::rows`).
    pub(super) fn fused(&mut self, id: KernelId) -> Result<()> {
        let fusion = self.fusion;
        let Some(parts) = fusion.parts(id) else { return self.fused_kernel(fusion.kernel(id)) };
        let first = self.draft.items.len();
        for part in parts {
            match part {
                RowPart::Kernel(kernel) => self.fused_kernel(kernel)?,
                RowPart::Node(node) => self.node(*node)?,
            }
        }
        self.draft.row_kernels.push(first..self.draft.items.len());
        Ok(())
    }

    fn fused_kernel(&mut self, kernel: &FusedKernel) -> Result<()> {
        let last = &kernel.stages[kernel.stages.len() - 1];
        let place = match (kernel.product(), last.work) {
            (Some(product), StageWork::Reduce { .. }) => self.sum_of_products(kernel, product, last)?,
            (Some(product), _) => LoweredValue::View(self.product(kernel, product)?),
            (None, StageWork::Reduce { .. }) => self.reduction(kernel, last)?,
            (None, _) => {
                let expr = self.expression(kernel, None)?;
                LoweredValue::View(self.map(expr, last))
            }
        };
        self.places[self.graph.node(last.node).results[0].index()] = Some(place);
        Ok(())
    }

    /// Returns the operation of a stage.
    pub(super) fn stage_op(&self, stage: &KernelStage) -> (&'g NodeData, Prim, &'g Attrs) {
        let data = self.graph.node(stage.node);
        let Op::Prim(def, attrs) = &data.op else { panic!("a stage is a primitive operation") };
        (data, *def, attrs)
    }

    /// Returns the elementwise stages of a kernel. `product` is the result of its product, which is
    /// the first operand.
    pub(super) fn expression(&mut self, kernel: &FusedKernel, product: Option<&View>) -> Result<ElementExpr> {
        let mut expr = ElementExpr { shape: kernel.axes.clone(), operands: Vec::new(), ops: Vec::new() };
        let mut stages: Vec<Option<Arg>> = Vec::with_capacity(kernel.stages.len());
        let mut inputs: Vec<Option<Arg>> = Vec::with_capacity(kernel.inputs.len());
        let result = product.map(|view| expr.add_operand(view.clone()));
        for (i, input) in kernel.inputs.iter().enumerate() {
            let draws =
                |stage: &KernelStage| stage.work == StageWork::Draw && stage.sources.contains(&StageSource::Input(i));
            inputs.push(match &input.map {
                Some(_) => Some(expr.add_operand(self.input(kernel, input)?)),
                None if kernel.stages.iter().any(draws) => Some(expr.add_operand(self.key(input.value, &expr.shape)?)),
                // An operand of the product.
                None => None,
            });
        }
        for stage in &kernel.stages {
            let (data, def, attrs) = self.stage_op(stage);
            let work = match stage.work {
                StageWork::Product => {
                    stages.push(result);
                    continue;
                }
                StageWork::Reduce { .. } | StageWork::Rowwise { .. } => break,
                StageWork::Map => MapFn::Function(function_of(self.graph, data).expect("the CPU has a function")),
                StageWork::Draw if def == prim::RANDOM_BITS => MapFn::Random(RandomKernel::Bits),
                StageWork::Draw => MapFn::Random(RandomKernel::Uniform(attributes::Typed::of(attrs).dtype)),
            };
            let dtype = self.graph.ty(data.results[0]).element().dtype;
            let arg = |source: &StageSource| match *source {
                StageSource::Input(i) => inputs[i],
                StageSource::Stage(i) => stages[i],
            };
            let args: Vec<Arg> =
                stage.sources.iter().map(|source| arg(source).expect("the source is an operand")).collect();
            let args = std::array::from_fn(|i| args.get(i).copied().unwrap_or(args[0]));
            stages.push(Some(Arg::Result(expr.ops.len() as u8)));
            expr.ops.push(MapOp { work, args, dtype, op: def });
        }
        Ok(expr)
    }

    /// Returns the view of all elements that a kernel reads of an input.
    fn input(&mut self, kernel: &FusedKernel, input: &KernelInput) -> Result<View> {
        let view = self.known_view(input.value)?;
        let map = input.map.as_ref().expect("the input is read element by element");
        Ok(view.through(map, &kernel.axes))
    }

    /// Returns the key of random numbers. Its two words are one broadcast element.
    fn key(&mut self, key: Value, shape: &[usize]) -> Result<View> {
        let view = self.known_view(key)?;
        let (name, loc) = ("copy", self.graph.loc(key));
        let key = match view.is_contiguous() && view.offset.is_multiple_of(2) {
            true => view,
            false => self.copied(&view, name, loc),
        };
        let (strides, shape) = (vec![0; shape.len()], shape.to_vec());
        Ok(View { dtype: DType::I64, offset: key.offset / 2, strides, shape, ..key })
    }

    /// Lowers a reduction over leading or trailing axes, fused with the elementwise operations that
    /// compute its operand.
    fn reduction(&mut self, kernel: &FusedKernel, stage: &KernelStage) -> Result<LoweredValue> {
        let expr = self.expression(kernel, None)?;
        let (data, def, attrs) = self.stage_op(stage);
        let place = self.reduction_of(expr, data, def, attrs)?;
        Ok(place.expect("a stage reduces leading or trailing axes"))
    }

    /// Lowers a reduction of an expression, if it reduces leading or trailing axes in memory order
    /// or in row-major order. Without operations, the first operand is reduced.
    pub(super) fn reduction_of(
        &mut self,
        expr: ElementExpr,
        data: &NodeData,
        def: Prim,
        attrs: &Attrs,
    ) -> Result<Option<LoweredValue>> {
        let ElementExpr { shape, mut operands, ops } = expr;
        let axes = reduced_axes(self.graph, data).expect("the reduction has known shapes");
        let keeps_rank = self.graph.ty(data.results[0]).element().rank() == shape.len();
        let order = if ops.is_empty() { self.order_of(&operands[0]) } else { self.order(&operands, &ops) };
        let Some(ReductionOrder { order, layout, kept }) = reading(order, &shape, &axes, keeps_rank) else {
            return Ok(None);
        };
        let dtype = self.graph.ty(data.operands[0]).element().dtype;
        let n = shape.iter().product();
        if ops.is_empty() {
            // The other operands are only for error messages.
            for &v in &data.operands[1..] {
                operands.push(self.known_view(v)?);
            }
        }
        // Operands that are only for error messages may have any rank.
        let arranged = |v: &View| if v.shape.len() == shape.len() { v.arranged(order) } else { v.clone() };
        let operands: Vec<TensorOperand> = operands.iter().map(|v| TensorOperand::View(arranged(v))).collect();
        let read = if ops.is_empty() { &operands[..1] } else { &operands[..] };
        let map = Map::without_result(ops, read, n);
        let reduction = Reduction::of(def).expect("the stage is a reduction");
        let kernel = Kernel::MapReduce(MapReduce::new(reduction, map, dtype, layout));
        if kept.is_sorted() {
            return self.run_kernel_on(kernel, operands, data, def, attrs).map(Some);
        }
        let dtype = self.graph.ty(data.results[0]).element().dtype;
        let out = self.new_buffer(dtype, kept.iter().map(|&a| shape[a]).collect());
        self.run_kernel_to(kernel, operands, Out::View(out.clone()), data, def, attrs);
        let mut axes: Vec<usize> = (0..kept.len()).collect();
        axes.sort_unstable_by_key(|&i| kept[i]);
        Ok(Some(LoweredValue::View(out.permute(&axes))))
    }

    /// Returns the layout that the plan chose for a view. Permutations of the graph count as
    /// row-major.
    fn order_of(&self, view: &View) -> MemoryLayout {
        match view.base {
            Base::Buffer(b) if self.channels_last.contains(&b) => view.order(),
            _ => MemoryLayout::RowMajor,
        }
    }

    /// Returns the traversal order of an expression, which is the layout of its operands.
    fn order(&self, operands: &[View], ops: &[MapOp]) -> MemoryLayout {
        let draws = ops.iter().any(|op| matches!(op.work, MapFn::Random(_)));
        let is_last = |v: &View| self.order_of(v) == MemoryLayout::ChannelsLast;
        if !draws && operands.iter().any(is_last) { MemoryLayout::ChannelsLast } else { MemoryLayout::RowMajor }
    }

    /// Computes an expression into a new buffer. `last` is its last stage.
    pub(super) fn map(&mut self, expr: ElementExpr, last: &KernelStage) -> View {
        let (data, def, attrs) = self.stage_op(last);
        // Elements are traversed in memory order.
        let order = self.order(&expr.operands, &expr.ops);
        let result = self.new_buffer_in(order, expr.ops[expr.ops.len() - 1].dtype, &expr.shape);
        let out = result.arranged(order);
        let operands: Vec<TensorOperand> =
            expr.operands.iter().map(|v| TensorOperand::View(v.arranged(order))).collect();
        let kernel = Kernel::Map(Map::new(expr.ops, &operands, &out));
        let meaning = SourceOp { def, attrs: attrs.clone(), name: def.name };
        let op = self.add_op(kernel, operands, Out::View(out), Some(meaning), def.name, data.loc);
        self.emit(Instr::Run(op));
        if self.options.check_finite {
            self.emit(Instr::CheckFinite(op));
        }
        result
    }

    /// Lowers an elementwise operation on registers.
    pub(super) fn scalar(
        &mut self,
        data: &NodeData,
        function: ElementFunction,
        def: Prim,
        attrs: &Attrs,
    ) -> Result<LoweredValue> {
        let regs = data.operands.iter().map(|&v| self.reg(v)).collect::<Result<Vec<_>>>()?;
        let reg = |i: usize| regs.get(i).copied().unwrap_or(regs[0]);
        let (dst, a, b, c) = (self.new_reg(), reg(0), reg(1), reg(2));
        let needs_op = function.check.is_some() || self.options.check_finite;
        let op = needs_op.then(|| {
            let operand = |(&r, &v)| TensorOperand::View(reg_view(r, self.graph.ty(v).element().dtype));
            let operands = regs.iter().zip(&data.operands).map(operand).collect();
            let meaning = SourceOp { def, attrs: attrs.clone(), name: data.name_in_errors() };
            let out = Out::Reg(dst, self.graph.ty(data.results[0]).element().dtype);
            self.add_op(Kernel::Data, operands, out, Some(meaning), def.name, data.loc)
        });
        if let (Some(check), Some(op)) = (function.check, op) {
            self.emit(Instr::Require { valid: check.scalar, a: b, op });
        }
        let instr = match function.scalar {
            ScalarFn::Unary(f) => Instr::Unary { f, dst, a },
            ScalarFn::Binary(f) => Instr::Binary { f, dst, a, b },
            ScalarFn::Select => Instr::Select { dst, a, b, c },
        };
        let operand = function_dtype(self.graph, data);
        let result = self.graph.ty(data.results[0]).element().dtype;
        self.emit_scalar_op(instr, ScalarOp { op: def, operand, result });
        if let (true, Some(op)) = (self.options.check_finite, op) {
            self.emit(Instr::CheckFinite(op));
        }
        Ok(LoweredValue::Reg(dst))
    }
}

/// Returns the traversal of a reduction over leading or trailing axes: in memory order if that is
/// possible, else in row-major order.
fn reading(order: MemoryLayout, shape: &[usize], axes: &[usize], keeps_rank: bool) -> Option<ReductionOrder> {
    let in_order = |order: MemoryLayout| {
        let of_memory = order.axes(shape.len());
        let shape: Vec<usize> = of_memory.iter().map(|&a| shape[a]).collect();
        let reduced: Vec<usize> = (0..shape.len()).filter(|&i| axes.contains(&of_memory[i])).collect();
        let kept: Vec<usize> = of_memory.into_iter().filter(|a| !axes.contains(a)).collect();
        let layout = ReducedLayout::of(&shape, &reduced).filter(|_| kept.is_sorted() || !keeps_rank)?;
        Some(ReductionOrder { order, layout, kept })
    };
    in_order(order).or_else(|| in_order(MemoryLayout::RowMajor))
}

#[cfg(test)]
mod tests {
    use crate::cpu::compile::{LowerOptions, Plan, lower};
    use crate::cpu::kernels::Kernel;
    use crate::cpu::kernels::map_reduce::ReducedLayout;
    use anabranch_dsl::Graph;

    fn plan(text: &str) -> Plan {
        let graph = Graph::parse(text, "f.ir").unwrap();
        lower(&graph, LowerOptions::default()).unwrap()
    }

    #[test]
    fn sums_over_all_but_the_channels_follow_channels_last() {
        let plan = plan(
            "graph @f(%x: f32[8, 64, 14, 14], %w: f32[64, 64, 3, 3]) -> f32[64] {
                %y = conv %x, %w {strides=[1, 1], padding=[1, 1, 1, 1], dilation=[1, 1], groups=1}
                %s = sum %y {axes=[0, 2, 3], keepdim=false}
                return %s
            }",
        );
        let layouts: Vec<ReducedLayout> = plan
            .tensor_ops
            .iter()
            .filter_map(|op| if let Kernel::MapReduce(reduce) = &op.kernel { Some(reduce.layout()) } else { None })
            .collect();
        assert_eq!(layouts, [ReducedLayout::Leading { n: 8 * 14 * 14, row: 64 }], "{plan}");
    }

    #[test]
    fn a_key_at_an_odd_offset_is_copied_once() {
        let plan = plan(
            "graph @f(%words: u32[3]) -> f32[4] {
                %key = slice %words {axis=0, start=1, end=3, step=1}
                %u = random_uniform %key {shape=[4], dtype=f32}
                %b = random_bits %key {shape=[4]}
                %x = cast %b {dtype=f32}
                %y = add %u, %x
                return %y
            }",
        );
        let is_copy = |kernel: &&Kernel| matches!(kernel, Kernel::Copy(_));
        assert_eq!(plan.tensor_ops.iter().map(|op| &op.kernel).filter(is_copy).count(), 1, "{plan}");
    }
}
