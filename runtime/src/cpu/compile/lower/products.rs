//! Matmuls and convolutions with their epilogues.
//!
//! A matmul whose only user is elementwise is deferred: it becomes an expression without operations
//! whose first operand is the result buffer. Elementwise operations join it as they join any other
//! expression. When its value is needed, the matmul is computed with these operations as its
//! *epilogue*. If an epilogue does not fit, because a reduction absorbs the operations or the
//! result has another type, the matmul runs before them. Matmuls that contribute to the new value
//! of a variable are not deferred, because that value is computed in place.
//!
//! Operands are never computed inside a matmul. A separate pass over an operand is cheap relative
//! to the `2 n` operations per element of the matmul, which reads each element once per panel, and
//! gradients usually read the operand again. Transposed and sliced operands are read in place, and
//! convolutions gather their windows while packing.
//!
//! A loop-invariant matrix is packed before the outermost loop in which it is invariant.

use super::elementwise::{DeferredExpr, function_of};
use super::{Instr, Item, Kernel, Lower, LoweredValue, Users};
use crate::cpu::compile::{Base, MemoryLayout, Out, SourceOp, TensorOpId, TensorOperand, View};
use crate::cpu::kernels::conv::{ChannelsLast, ImplicitGemm};
use crate::cpu::kernels::epilogue::Epilogue;
use crate::cpu::kernels::matmul::{Matmul, Pack};
use anabranch_dsl::ir::{Attrs, Graph, NodeData, Op};
use anabranch_dsl::ops::{Prim, prim};
use anabranch_dsl::{DType, Loc, Result};

/// Maximum size in bytes of a result that stays in the L1 cache.
const SMALL: usize = 1 << 15;

/// The kernel of a product: a matmul or a convolution.
#[derive(Clone, Debug)]
pub(super) enum ProductKernel {
    Matmul,
    Conv(Box<ImplicitGemm>),
    /// A convolution to a channels-last result. The second operand must be packed.
    ChannelsLast(Box<ChannelsLast>, Pack),
}

impl ProductKernel {
    fn order(&self) -> MemoryLayout {
        if let ProductKernel::ChannelsLast(..) = self { MemoryLayout::ChannelsLast } else { MemoryLayout::RowMajor }
    }
}

/// A deferred matmul or convolution.
#[derive(Clone, Debug)]
pub(super) struct DeferredProduct {
    kind: ProductKernel,
    operands: [View; 2],
    out: View,
    def: Prim,
    attrs: Attrs,
    loc: Loc,
}

/// A matrix packed before a loop.
#[derive(Debug)]
pub(super) struct Packed {
    view: View,
    /// The packing format: one view may be packed both as a matrix and as filters of a convolution.
    pack: Pack,
    to: View,
}

/// Returns for each value whether a variable is assigned it, or the result of elementwise
/// operations on it.
pub(super) fn assigned_later(graph: &Graph) -> Vec<bool> {
    let mut assigned = vec![false; graph.n_values()];
    for &node in graph.region(graph.root()).nodes.iter().rev() {
        let data = graph.node(node);
        let is_part = function_of(graph, data).is_some() && assigned[data.results[0].index()];
        if is_part || matches!(data.op, Op::Assign(_)) {
            data.operands.iter().for_each(|v| assigned[v.index()] = true);
        }
    }
    assigned
}

impl DeferredProduct {
    /// Returns whether the operations of an expression can and should be the epilogue.
    ///
    /// In a loop, a small result stays in the L1 cache anyway, and a separate operation can update
    /// a loop variable in place.
    pub(super) fn ends_in(&self, expr: &DeferredExpr, in_loop: bool) -> bool {
        let is_sum = matches!(&expr.ops[..], [op] if op.op == prim::ADD);
        // Random numbers are indexed in row-major order.
        if expr.draws() && self.kind.order() != MemoryLayout::RowMajor {
            return false;
        }
        let pays = !in_loop || is_sum || self.out.n_bytes() > SMALL;
        pays && expr.ops.last().is_some_and(|op| op.dtype == self.out.dtype)
    }
}

impl Lower<'_> {
    /// Lowers a matmul or convolution of two operands that its kernel accepts.
    pub(super) fn product(
        &mut self,
        kind: ProductKernel,
        operands: Vec<View>,
        data: &NodeData,
        def: Prim,
        attrs: &Attrs,
    ) -> LoweredValue {
        let [a, b] = <[View; 2]>::try_from(operands).expect("a product has two operands");
        let value = data.results[0];
        let ty = self.graph.ty(value).element();
        let shape = ty.shape.known().expect("the shapes are known");
        let out = self.new_buffer_in(kind.order(), ty.dtype, &shape);
        let product =
            DeferredProduct { kind, operands: [a, b], out: out.clone(), def, attrs: attrs.clone(), loc: data.loc };
        let joins = match self.only_user[value.index()] {
            Users::Only(user) => {
                let user = self.graph.node(user);
                let result = user.results.first().map(|&r| self.graph.ty(r).element().shape.known());
                let is_elementwise =
                    function_of(self.graph, user).is_some() && result.flatten().as_ref() == Some(&shape);
                let is_sum = matches!(&user.op, Op::Prim(def, _) if matches!(*def, prim::SUM | prim::SUM_LIKE));
                is_elementwise || is_sum && shape.len() > 2
            }
            _ => false,
        };
        let is_float = matches!(ty.dtype, DType::F32 | DType::F64);
        let may_wait = self.options.fuse && !self.options.check_finite && !self.assigned_later[value.index()];
        if joins && is_float && may_wait && out.size() > 0 {
            let product = Some(Box::new(product));
            let (attrs, loc) = (attrs.clone(), data.loc);
            let expr = DeferredExpr { product, shape, operands: vec![out], ops: Vec::new(), def, attrs, loc };
            return LoweredValue::Expr(Box::new(expr));
        }
        self.emit_product(product, None);
        LoweredValue::View(out)
    }

    /// Computes the deferred product of an expression.
    pub(super) fn compute_product(&mut self, expr: &mut DeferredExpr) {
        if let Some(product) = expr.product.take() {
            self.emit_product(*product, None);
        }
    }

    /// Computes a product with an expression as its epilogue.
    pub(super) fn product_and(&mut self, product: DeferredProduct, expr: DeferredExpr) -> View {
        let out = product.out.clone();
        self.emit_product(product, Some(expr));
        out
    }

    /// Emits a product. Packs operands before it or before loops.
    pub(super) fn emit_product(&mut self, product: DeferredProduct, epilogue: Option<DeferredExpr>) {
        let DeferredProduct { kind, mut operands, out, def, attrs, loc } = product;
        let mut others = Vec::new();
        let order = kind.order();
        let epilogue = epilogue.map(|mut expr| {
            expr.put_first(&out);
            let all: Vec<TensorOperand> =
                expr.operands.iter().map(|v| TensorOperand::View(v.arranged(order))).collect();
            others.extend_from_slice(&all[1..]);
            Epilogue::new(expr.ops, &all, &out.arranged(order))
        });
        let out = out.arranged(order);
        let kernel = match kind {
            ProductKernel::Matmul => {
                let kept = [0, 1].map(|i| self.kept_in(&operands[i]).is_some());
                let [mut a, mut b] = operands;
                let matmul = Matmul::merged(&mut a, &mut b, &out, kept);
                let packed = matmul.packed([&a, &b]);
                operands = [a, b];
                if let Some((index, pack)) = packed {
                    operands[index] = self.pack(&operands[index], pack, def.name, loc);
                }
                Kernel::Matmul(match epilogue {
                    Some(epilogue) => matmul.with_epilogue(epilogue),
                    None => matmul,
                })
            }
            ProductKernel::Conv(conv) => Kernel::Conv(match epilogue {
                Some(epilogue) => conv.with_epilogue(epilogue),
                None => *conv,
            }),
            ProductKernel::ChannelsLast(conv, pack) => {
                operands[1] = self.pack(&operands[1], pack, def.name, loc);
                Kernel::ChannelsLast(match epilogue {
                    Some(epilogue) => conv.with_epilogue(epilogue),
                    None => *conv,
                })
            }
        };
        let operands = operands.into_iter().map(TensorOperand::View).chain(others).collect();
        let meaning = SourceOp { def, attrs, name: def.name };
        let op = self.add_op(kernel, operands, Out::View(out), Some(meaning), def.name, loc);
        self.emit(Instr::Run(op));
        if self.options.check_finite {
            self.emit(Instr::CheckFinite(op));
        }
    }

    /// Returns the outermost enclosing loop in which a view is loop-invariant.
    fn kept_in(&self, view: &View) -> Option<u32> {
        let mut kept = None;
        let mut at = self.current_loop.filter(|_| self.options.fuse);
        while let Some(l) = at {
            let around = self.draft.loops[l as usize];
            if matches!(view.base, Base::Buffer(b) if b.0 >= around.n_buffers) {
                break;
            }
            (kept, at) = (Some(l), around.parent);
        }
        kept
    }

    /// Returns a packed matrix, packed here or before the outermost loop in which it is invariant.
    fn pack(&mut self, view: &View, pack: Pack, name: &'static str, loc: Loc) -> View {
        let l = self.kept_in(view);
        let found = self.packed.iter().find(|(at, p)| Some(*at) == l && p.pack == pack && p.view == *view);
        if let Some((_, packed)) = found {
            return packed.to.clone();
        }
        let to = self.new_buffer(view.dtype, vec![pack.len()]);
        let operands = vec![TensorOperand::View(view.clone())];
        let kernel = Kernel::Pack(pack.clone());
        let op: TensorOpId = self.add_op(kernel, operands, Out::View(to.clone()), None, name, loc);
        match l {
            Some(l) => {
                let before = self.draft.loops[l as usize].before as usize;
                let Item::Ops(ops) = &mut self.draft.items[before] else { panic!("no place before a loop") };
                ops.push(op);
                self.packed.push((l, Packed { view: view.clone(), pack, to: to.clone() }));
            }
            None => self.emit(Instr::Run(op)),
        }
        to
    }

    /// Lowers the sum of a batched matmul over its batch to one matmul with a longer inner extent.
    pub(super) fn sum_of_products(
        &mut self,
        expr: &mut DeferredExpr,
        axes: &[usize],
        data: &NodeData,
        def: Prim,
    ) -> Result<Option<LoweredValue>> {
        let batch = expr.shape.len() - 2;
        let Some(product) = expr.product.take_if(|p| {
            let is_sum = matches!(p.kind, ProductKernel::Matmul) && matches!(def, prim::SUM | prim::SUM_LIKE);
            is_sum && axes.iter().copied().eq(0..batch)
        }) else {
            return Ok(None);
        };
        let [a, b] = &product.operands;
        let extents = &a.shape[..batch];
        let (m, k, n) = (a.shape[batch], a.shape[batch + 1], b.shape[batch + 1]);
        let k = extents.iter().product::<usize>() * k;
        let order: Vec<usize> = [batch].into_iter().chain(0..batch).chain([batch + 1]).collect();
        let joined = a.permute(&order).reshape(&[m, k]).zip(b.reshape(&[k, n]));
        let Some((a, b)) = joined.filter(|(a, b)| Matmul::takes(a) && Matmul::takes(b)) else {
            expr.product = Some(product);
            return Ok(None);
        };
        let ty = self.graph.ty(data.results[0]).element();
        let shape = ty.shape.known().expect("the shapes are known");
        let out = self.new_buffer(ty.dtype, vec![m, n]);
        let result = out.reshape(&shape).expect("a contiguous tensor can have any shape of its size");
        self.emit_product(DeferredProduct { operands: [a, b], out, ..*product }, None);
        Ok(Some(LoweredValue::View(result)))
    }
}
