//! Elementwise operations: scalar instructions, and fused maps.

use super::products::DeferredProduct;
use super::{Instr, Lower, LoweredValue, Users};
use crate::cpu::compile::{Base, MemoryLayout, Out, ScalarOp, SourceOp, TensorOperand, View, reg_view};
use crate::cpu::kernels::Kernel;
use crate::cpu::kernels::elementwise::{Arg, MAX_OPERANDS, MAX_OPS, Map, MapFn, MapOp};
use crate::cpu::kernels::functions::{ElementFunction, ScalarFn, function};
use crate::cpu::kernels::map_reduce::{MapReduce, ReducedLayout};
use crate::cpu::kernels::random::RandomKernel;
use crate::cpu::kernels::reduce::Reduction;
use anabranch_dsl::ir::{Attrs, Graph, Node, NodeData, Op, Value};
use anabranch_dsl::ops::{Prim, attributes, prim};
use anabranch_dsl::{DType, Loc, Result};

/// An elementwise expression over views of one shape.
///
/// The last operation yields its result. Without operations, it is a deferred product.
#[derive(Clone, Debug)]
pub(super) struct DeferredExpr {
    /// The deferred product whose result is the first operand.
    pub(super) product: Option<Box<DeferredProduct>>,
    pub(super) shape: Vec<usize>,
    pub(super) operands: Vec<View>,
    pub(super) ops: Vec<MapOp>,
    /// The last operation, for error messages.
    pub(super) def: Prim,
    pub(super) attrs: Attrs,
    pub(super) loc: Loc,
}

impl DeferredExpr {
    fn dtype(&self) -> DType {
        self.ops[self.ops.len() - 1].dtype
    }

    /// Returns whether the expression draws random numbers, which are indexed in row-major order.
    pub(super) fn draws(&self) -> bool {
        self.ops.iter().any(|op| matches!(op.work, MapFn::Random(_)))
    }

    fn add_operand(&mut self, view: View) -> Arg {
        let i = self.operands.iter().position(|v| *v == view).unwrap_or_else(|| {
            self.operands.push(view);
            self.operands.len() - 1
        });
        Arg::Operand(i as u8)
    }

    /// Moves an operand to the front.
    pub(super) fn put_first(&mut self, view: &View) {
        let at = self.operands.iter().position(|v| v == view).expect("the view is an operand");
        let view = self.operands.remove(at);
        self.operands.insert(0, view);
        for arg in self.ops.iter_mut().flat_map(|op| &mut op.args) {
            if let Arg::Operand(i) = arg {
                *i = match *i as usize {
                    j if j == at => 0,
                    j if j < at => *i + 1,
                    _ => *i,
                };
            }
        }
    }

    /// Appends another expression. Returns the argument that is its result.
    fn add_expr(&mut self, other: DeferredExpr) -> Arg {
        let operands: Vec<Arg> = other.operands.into_iter().map(|v| self.add_operand(v)).collect();
        self.product = self.product.take().or(other.product);
        if other.ops.is_empty() {
            return operands[0];
        }
        let first = self.ops.len();
        for mut op in other.ops {
            op.args = op.args.map(|a| match a {
                Arg::Operand(i) => operands[i as usize],
                Arg::Result(i) => Arg::Result(first as u8 + i),
            });
            self.ops.push(op);
        }
        Arg::Result(self.ops.len() as u8 - 1)
    }

    /// Returns whether another expression fits, plus `operands` operands and one operation.
    fn has_room(&self, other: &DeferredExpr, operands: usize) -> bool {
        self.operands.len() + other.operands.len() + operands <= MAX_OPERANDS
            && self.ops.len() + other.ops.len() < MAX_OPS
    }
}

/// Returns the elementwise function of a node, or `None` for any other node.
pub(super) fn function_of(graph: &Graph, node: &NodeData) -> Option<ElementFunction> {
    let Op::Prim(def, _) = &node.op else {
        return None;
    };
    let dtype = graph.ty(*node.operands.first()?).element().dtype;
    // `select` chooses from its second and third operand.
    let dtype = if def == prim::SELECT { graph.ty(node.operands[1]).element().dtype } else { dtype };
    function(*def, dtype, graph.ty(node.results[0]).element().dtype)
}

/// Returns the reduction of a node and the axes that it reduces, if its operand has a known shape.
pub(super) fn reduced(graph: &Graph, node: &NodeData) -> Option<(Reduction, Vec<usize>)> {
    let Op::Prim(def, attrs) = &node.op else { return None };
    let reduction = Reduction::of(*def)?;
    if def != prim::SUM_LIKE {
        return Some((reduction, attributes::Reduced::of(attrs).axes));
    }
    let shape = |v| graph.ty(v).element().shape.known();
    let (from, to) = (shape(node.operands[0])?, shape(node.results[0])?);
    let missing = from.len() - to.len();
    Some((reduction, (0..from.len()).filter(|&a| a < missing || to[a - missing] != from[a]).collect()))
}

/// Returns whether a node can compute an elementwise operand of a shape while reading it.
fn takes_expression(graph: &Graph, node: &NodeData, value: Value, shape: &[usize]) -> bool {
    let known = |v: &Value| graph.ty(*v).element().shape.known();
    if function_of(graph, node).is_some() {
        let all = node.operands.iter().chain(&node.results);
        return all.map(known).all(|s| s.is_some()) && known(&node.results[0]).as_deref() == Some(shape);
    }
    node.operands[0] == value
        && reduced(graph, node).is_some_and(|(_, axes)| ReducedLayout::of(shape, &axes).is_some())
        && known(&node.results[0]).is_some()
}

/// Returns for each value whether it has several users, all of which are in its region and can
/// compute it while reading it.
pub(super) fn repeatable(graph: &Graph, users: &[Users]) -> Vec<bool> {
    let mut repeatable: Vec<bool> = users.iter().map(|u| *u == Users::Several).collect();
    graph.visit_nodes(graph.root(), &mut |node| {
        let data = graph.node(node);
        for &v in &data.operands {
            if repeatable[v.index()] {
                let beside = graph.producer(v).is_some_and(|p| {
                    let producer = graph.node(p);
                    producer.region == data.region && function_of(graph, producer).is_some()
                });
                let shape = if beside { graph.ty(v).element().shape.known() } else { None };
                repeatable[v.index()] = shape.is_some_and(|shape| takes_expression(graph, data, v, &shape));
            }
        }
        for &region in &data.regions {
            graph.region(region).yields.iter().for_each(|v| repeatable[v.index()] = false);
        }
    });
    graph.region(graph.root()).yields.iter().for_each(|v| repeatable[v.index()] = false);
    repeatable
}

/// The traversal of a reduction.
struct Reading {
    order: MemoryLayout,
    layout: ReducedLayout,
    /// The axes of the result in memory order.
    kept: Vec<usize>,
}

impl Lower<'_> {
    /// Returns the expression of a value for one of its users.
    fn take_expression(&mut self, v: Value) -> Option<DeferredExpr> {
        let place = &mut self.places[v.index()];
        match place {
            Some(LoweredValue::Expr(e)) if self.only_user[v.index()] == Users::Several => Some((**e).clone()),
            Some(LoweredValue::Expr(_)) => match place.take() {
                Some(LoweredValue::Expr(e)) => Some(*e),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns whether recomputing an expression costs no more than reading its result.
    ///
    /// Such an expression has a few cheap operations on one tensor of its size and on small
    /// tensors.
    fn is_cheap(&self, expr: &DeferredExpr) -> bool {
        let size: usize = expr.shape.iter().product();
        let is_large = |v: &&View| {
            let distinct = v.shape.iter().zip(&v.strides).filter(|&(_, &s)| s != 0).map(|(&n, _)| n).product::<usize>();
            distinct > size / 8
        };
        expr.ops.len() <= 2
            && expr.ops.iter().all(|op| op.op.is_simple())
            && expr.operands.iter().filter(is_large).count() <= 1
    }

    /// Lowers a reduction over leading or trailing axes, fused with the elementwise operations that
    /// compute its operand.
    pub(super) fn reduction(&mut self, data: &NodeData, def: Prim, attrs: &Attrs) -> Result<Option<LoweredValue>> {
        let Some((reduction, axes)) = reduced(self.graph, data).filter(|_| self.options.fuse) else {
            return Ok(None);
        };
        let shape = self.graph.ty(data.operands[0]).element().shape.known().expect("the shapes are known");
        let keeps_rank = self.graph.ty(data.results[0]).element().rank() == shape.len();
        let Some(Reading { order, layout, kept }) = self.reading(data.operands[0], &shape, &axes, keeps_rank)? else {
            return Ok(None);
        };
        let dtype = self.graph.ty(data.operands[0]).element().dtype;
        let n = shape.iter().product();
        let (ops, operands) = match self.take_expression(data.operands[0]) {
            Some(mut expr) => {
                if expr.ops.is_empty()
                    && let Some(place) = self.sum_of_products(&mut expr, &axes, data, def)?
                {
                    return Ok(Some(place));
                }
                self.compute_product(&mut expr);
                (expr.ops, expr.operands)
            }
            // The other operands are only for error messages.
            None => (Vec::new(), (0..data.operands.len()).map(|i| self.view_of(data, i)).collect::<Result<Vec<_>>>()?),
        };
        // Operands that are only for error messages may have any rank.
        let arranged = |v: &View| if v.shape.len() == shape.len() { v.arranged(order) } else { v.clone() };
        let operands: Vec<TensorOperand> = operands.iter().map(|v| TensorOperand::View(arranged(v))).collect();
        let read = if ops.is_empty() { &operands[..1] } else { &operands[..] };
        let map = Map::without_result(ops, read, n);
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
    fn order(&self, expr: &DeferredExpr) -> MemoryLayout {
        let is_last = |v: &View| self.order_of(v) == MemoryLayout::ChannelsLast;
        if !expr.draws() && expr.operands.iter().any(is_last) {
            MemoryLayout::ChannelsLast
        } else {
            MemoryLayout::RowMajor
        }
    }

    /// Returns the traversal of a reduction: in memory order if that is possible, else in row-major
    /// order.
    fn reading(&mut self, value: Value, shape: &[usize], axes: &[usize], keeps_rank: bool) -> Result<Option<Reading>> {
        let order = match &self.places[value.index()] {
            Some(LoweredValue::Expr(expr)) => self.order(expr),
            _ => match self.operand(value)? {
                TensorOperand::View(view) => self.order_of(&view),
                TensorOperand::Slot(_) => MemoryLayout::RowMajor,
            },
        };
        let in_order = |order: MemoryLayout| {
            let of_memory = order.axes(shape.len());
            let shape: Vec<usize> = of_memory.iter().map(|&a| shape[a]).collect();
            let reduced: Vec<usize> = (0..shape.len()).filter(|&i| axes.contains(&of_memory[i])).collect();
            let kept: Vec<usize> = of_memory.into_iter().filter(|a| !axes.contains(a)).collect();
            let layout = ReducedLayout::of(&shape, &reduced).filter(|_| kept.is_sorted() || !keeps_rank)?;
            Some(Reading { order, layout, kept })
        };
        Ok(in_order(order).or_else(|| in_order(MemoryLayout::RowMajor)))
    }

    /// Lowers a node if it is elementwise.
    pub(super) fn elementwise(&mut self, node: Node, def: Prim, attrs: &Attrs) -> Result<Option<LoweredValue>> {
        let graph = self.graph;
        let data = graph.node(node);
        let Some(function) = function_of(graph, data) else {
            return Ok(None);
        };
        let ty = graph.ty(data.results[0]).element();
        let shape = ty.shape.known().expect("the shapes are known");
        if shape.is_empty() {
            return self.scalar(data, function, def, attrs).map(Some);
        }

        let mut expr = DeferredExpr {
            product: None,
            shape,
            operands: vec![],
            ops: vec![],
            def,
            attrs: attrs.clone(),
            loc: data.loc,
        };
        let mut args = Vec::new();
        for (i, &v) in data.operands.iter().enumerate() {
            if let Some(j) = data.operands[..i].iter().position(|&w| w == v) {
                args.push(args[j]);
                continue;
            }
            let left = data.operands.len() - i - 1;
            let fuses = matches!(&self.places[v.index()], Some(LoweredValue::Expr(e))
                if expr.has_room(e, left) && function.check.is_none());
            let operand = if fuses { self.take_expression(v) } else { None };
            args.push(match operand {
                Some(e) => {
                    // Only one product can be deferred, so compute the first product now.
                    if e.product.is_some() {
                        self.compute_product(&mut expr);
                    }
                    expr.add_expr(e)
                }
                None => match self.operand(v)? {
                    TensorOperand::View(view) => expr.add_operand(view),
                    TensorOperand::Slot(_) => panic!("{}: an operand of unknown shape", def.name),
                },
            });
        }
        let args: [Arg; 3] = std::array::from_fn(|i| args.get(i).copied().unwrap_or(args[0]));
        expr.ops.push(MapOp { work: MapFn::Function(function), args, dtype: ty.dtype, op: def });

        // A second user recomputes the expression if that costs no more than reading it. A failure
        // must name this node.
        let value = data.results[0];
        let waits = match self.only_user[value.index()] {
            Users::Only(user) => takes_expression(graph, graph.node(user), value, &expr.shape),
            Users::Several => self.repeatable[value.index()] && expr.product.is_none() && self.is_cheap(&expr),
            Users::None => false,
        };
        if waits && function.check.is_none() && self.options.fuse && !self.options.check_finite {
            return Ok(Some(LoweredValue::Expr(Box::new(expr))));
        }
        Ok(Some(LoweredValue::View(self.materialize(expr))))
    }

    /// Fuses random numbers with the elementwise operation or reduction that is their only user,
    /// which draws them block by block.
    pub(super) fn drawn(&mut self, data: &NodeData, def: Prim, attrs: &Attrs) -> Result<Option<LoweredValue>> {
        let random = match def {
            prim::RANDOM_BITS => RandomKernel::Bits,
            prim::RANDOM_UNIFORM => RandomKernel::Uniform(attributes::Typed::of(attrs).dtype),
            _ => return Ok(None),
        };
        let (graph, value) = (self.graph, data.results[0]);
        let ty = graph.ty(value).element();
        let shape = ty.shape.known().expect("the shapes are known");
        let Users::Only(user) = self.only_user[value.index()] else { return Ok(None) };
        let fuses = self.options.fuse && !self.options.check_finite && !shape.is_empty();
        if !fuses || !takes_expression(graph, graph.node(user), value, &shape) {
            return Ok(None);
        }
        let key = self.view_of(data, 0)?;
        let key = self.contiguous(key, def.name, data.loc);
        if !key.offset.is_multiple_of(2) {
            return Ok(None);
        }
        // The two words of the key are one broadcast element.
        let key = View {
            dtype: DType::I64,
            offset: key.offset / 2,
            strides: vec![0; shape.len()],
            shape: shape.clone(),
            ..key
        };
        let op = MapOp { work: MapFn::Random(random), args: [Arg::Operand(0); 3], dtype: ty.dtype, op: def };
        let (operands, ops, attrs, loc) = (vec![key], vec![op], attrs.clone(), data.loc);
        Ok(Some(LoweredValue::Expr(Box::new(DeferredExpr { product: None, shape, operands, ops, def, attrs, loc }))))
    }

    /// Computes an expression into a new buffer.
    pub(super) fn materialize(&mut self, mut expr: DeferredExpr) -> View {
        if let Some(product) = expr.product.take() {
            if product.ends_in(&expr, self.current_loop.is_some()) {
                return self.product_and(*product, expr);
            }
            let out = expr.operands[0].clone();
            self.emit_product(*product, None);
            if expr.ops.is_empty() {
                return out;
            }
        }
        // Elements are traversed in memory order.
        let order = self.order(&expr);
        let result = self.new_buffer_in(order, expr.dtype(), &expr.shape);
        let out = result.arranged(order);
        let operands: Vec<TensorOperand> =
            expr.operands.iter().map(|v| TensorOperand::View(v.arranged(order))).collect();
        let kernel = Kernel::Map(Map::new(expr.ops, &operands, &out));
        let meaning = SourceOp { def: expr.def, attrs: expr.attrs, name: expr.def.name };
        let name = expr.def.name;
        let op = self.add_op(kernel, operands, Out::View(out), Some(meaning), name, expr.loc);
        self.emit(Instr::Run(op));
        if self.options.check_finite {
            self.emit(Instr::CheckFinite(op));
        }
        result
    }

    fn scalar(&mut self, data: &NodeData, function: ElementFunction, def: Prim, attrs: &Attrs) -> Result<LoweredValue> {
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
        let operand = data.operands[usize::from(def == prim::SELECT)];
        let [operand, result] = [operand, data.results[0]].map(|v| self.graph.ty(v).element().dtype);
        self.emit_scalar_op(instr, ScalarOp { op: def, operand, result });
        if let (true, Some(op)) = (self.options.check_finite, op) {
            self.emit(Instr::CheckFinite(op));
        }
        Ok(LoweredValue::Reg(dst))
    }
}
