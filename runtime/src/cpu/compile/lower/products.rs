//! Matmuls and convolutions with their epilogues.
//!
//! The elementwise stages of a kernel after its product become the *epilogue* of the product, which
//! overwrites each part of the result while it is in cache. Transposed and sliced operands are read
//! in place, and convolutions gather their windows while packing.
//!
//! A loop-invariant matrix is packed before the outermost loop in which it is invariant.

use super::elementwise::ElementExpr;
use super::{Instr, Item, Kernel, Lower, LoweredValue};
use crate::cpu::compile::TensorOpId;
use crate::cpu::kernels::SourceOp;
use crate::cpu::kernels::conv::{ChannelsLast, Geometry, ImplicitGemm};
use crate::cpu::kernels::epilogue::Epilogue;
use crate::cpu::kernels::matmul::{Matmul, Pack};
use crate::cpu::memory::{Base, MemoryLayout, Out, TensorOperand, View};
use anabranch_dsl::fusion::{FusedKernel, KernelStage};
use anabranch_dsl::ir::Attrs;
use anabranch_dsl::ops::{Prim, prim};
use anabranch_dsl::{Loc, Result};

/// The kernel of a product: a matmul or a convolution.
#[derive(Clone, Debug)]
enum ProductKernel {
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

/// A matmul or convolution of operands that its kernel accepts.
#[derive(Clone, Debug)]
struct Product<'g> {
    kind: ProductKernel,
    operands: [View; 2],
    out: View,
    def: Prim,
    attrs: &'g Attrs,
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

impl<'g> Lower<'g> {
    /// Lowers a product and the elementwise stages after it.
    pub(super) fn product(&mut self, kernel: &FusedKernel, stage: &KernelStage) -> Result<View> {
        let product = self.product_of(stage)?;
        let out = product.out.clone();
        if kernel.stages.len() == 1 {
            self.emit_product(product, None);
            return Ok(out);
        }
        let expr = self.expression(kernel, Some(&out))?;
        // Random numbers are indexed in row-major order.
        if kernel.draws() && product.kind.order() != MemoryLayout::RowMajor {
            self.emit_product(product, None);
            return Ok(self.map(expr, &kernel.stages[kernel.stages.len() - 1]));
        }
        self.emit_product(product, Some(expr));
        Ok(out)
    }

    /// Returns the kernel of a product, with its operands in the layout that the kernel reads.
    fn product_of(&mut self, stage: &KernelStage) -> Result<Product<'g>> {
        let (data, def, attrs) = self.stage_op(stage);
        self.begin_contraction(stage.node);
        let mut operands = [self.known_view(data.operands[0])?, self.known_view(data.operands[1])?];
        let ty = self.graph.ty(data.results[0]).element();
        let shape = ty.shape.known().expect("the shapes are known");
        let kind = match def {
            prim::MATMUL => {
                for view in &mut operands {
                    if !Matmul::takes(view) {
                        *view = self.copied(view, def.name, data.loc);
                    }
                }
                ProductKernel::Matmul
            }
            prim::CONV => {
                let geometry = Geometry::new(&operands[0].shape, &operands[1].shape, &shape, attrs);
                operands[1] = self.contiguous(operands[1].clone(), def.name, data.loc);
                let last = ChannelsLast::conv(&geometry, operands[0].order());
                self.convolution(last, || ImplicitGemm::conv(&geometry), &mut operands, def.name, data.loc)
            }
            _ => {
                let geometry = Geometry::new(&shape, &operands[1].shape, &operands[0].shape, attrs);
                operands[1] = self.channels_first(&operands[1], &geometry, def.name, data.loc);
                let last = ChannelsLast::transpose(&geometry, operands[0].order());
                self.convolution(last, || ImplicitGemm::transpose(&geometry), &mut operands, def.name, data.loc)
            }
        };
        let out = self.new_buffer_in(kind.order(), ty.dtype, &shape);
        Ok(Product { kind, operands, out, def, attrs, loc: data.loc })
    }

    /// Selects the kernel of a convolution, and converts its source to the layout that it reads.
    fn convolution(
        &mut self,
        last: Option<ChannelsLast>,
        other: impl FnOnce() -> ImplicitGemm,
        operands: &mut [View; 2],
        name: &'static str,
        loc: Loc,
    ) -> ProductKernel {
        let order = if last.is_some() && self.options.fuse { operands[0].order() } else { MemoryLayout::RowMajor };
        operands[0] = self.arranged(&operands[0], order, name, loc);
        match last.filter(|_| self.options.fuse) {
            Some(conv) => {
                let pack = conv.pack(operands[1].dtype);
                ProductKernel::ChannelsLast(Box::new(conv), pack)
            }
            None => ProductKernel::Conv(Box::new(other())),
        }
    }

    /// Permutes filters `[groups * filters, channels, ..]` to
    /// `[groups, channels, filters, window]`.
    fn channels_first(&mut self, w: &View, g: &Geometry, name: &'static str, loc: Loc) -> View {
        let w = self.contiguous(w.clone(), name, loc);
        let parts = w
            .reshape(&[g.groups, g.filters, g.channels, g.window()])
            .expect("a contiguous tensor can have any shape of its size");
        self.contiguous(parts.permute(&[0, 2, 1, 3]), name, loc)
    }

    /// Emits a product. Packs operands before it or before loops.
    fn emit_product(&mut self, product: Product<'g>, epilogue: Option<ElementExpr>) {
        let Product { kind, mut operands, out, def, attrs, loc } = product;
        let mut others = Vec::new();
        let order = kind.order();
        let epilogue = epilogue.map(|expr| {
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
                let matmul = Matmul::merged(&mut a, &mut b, &out, kept, self.options.tiles);
                let packed = matmul.packed([&a, &b]);
                operands = [a, b];
                for (index, pack) in packed {
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
        let meaning = SourceOp { def, attrs: attrs.clone(), name: def.name };
        let op = self.add_op(kernel, operands, Out::View(out), Some(meaning), def.name, loc);
        self.emit(Instr::Run(op));
        if self.options.check_finite {
            self.emit(Instr::CheckFinite(op));
        }
    }

    /// Returns the outermost enclosing loop in which a view is loop-invariant. Any loop may change
    /// a register.
    fn kept_in(&self, view: &View) -> Option<u32> {
        if matches!(view.base, Base::Reg(_)) {
            return None;
        }
        let mut kept = None;
        let mut at = self.current_loop.filter(|_| self.options.fuse);
        while let Some(l) = at {
            let around = &self.draft.loops[l as usize];
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
        let to = self.new_buffer(pack.dtype(), vec![pack.len()]);
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

    /// Lowers the sum of a batched matmul over its batch to one matmul with a longer inner extent,
    /// if the operands can be read as such.
    pub(super) fn sum_of_products(
        &mut self,
        kernel: &FusedKernel,
        stage: &KernelStage,
        sum: &KernelStage,
    ) -> Result<LoweredValue> {
        let product = self.product_of(stage)?;
        let batch = kernel.axes.len() - 2;
        let [a, b] = &product.operands;
        let extents = &a.shape[..batch];
        let (m, k, n) = (a.shape[batch], a.shape[batch + 1], b.shape[batch + 1]);
        let k = extents.iter().product::<usize>() * k;
        let order: Vec<usize> = [batch].into_iter().chain(0..batch).chain([batch + 1]).collect();
        let joined = a.permute(&order).reshape(&[m, k]).zip(b.reshape(&[k, n]));
        let Some((a, b)) = joined.filter(|(a, b)| Matmul::takes(a) && Matmul::takes(b)) else {
            let operands = vec![product.out.clone()];
            self.emit_product(product, None);
            let expr = ElementExpr { shape: kernel.axes.clone(), operands, ops: Vec::new() };
            let (data, def, attrs) = self.stage_op(sum);
            return Ok(self.reduction_of(expr, data, def, attrs)?.expect("the leading axes are reduced"));
        };
        let ty = self.graph.ty(self.graph.node(sum.node).results[0]).element();
        let shape = ty.shape.known().expect("the shapes are known");
        let out = self.new_buffer(ty.dtype, vec![m, n]);
        let result = out.reshape(&shape).expect("a contiguous tensor can have any shape of its size");
        self.emit_product(Product { operands: [a, b], out, ..product }, None);
        Ok(LoweredValue::View(result))
    }
}
