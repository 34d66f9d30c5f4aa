//! The buffers that a loop body writes: numbers and tensors of an iteration, elements of lists, and
//! tensors to which iterations add.

use super::program::{AddedTensor, AdditionStacks, LoopStack, OwnTensor, RowId, RowInfo, RowStart, StackPart};
use super::translate::Translator;
use crate::cpu::compile::Instr;
use crate::cpu::kernels::Kernel;
use crate::cpu::kernels::TensorOp;
use crate::cpu::kernels::functions::{ScalarFn, function};
use crate::cpu::memory::{Base, BufferId, Out, Reg, StackId, Storage, TensorOperand, View};
use crate::cpu::native::{ElementAccess, ElementUse, access};
use anabranch_dsl::DType;
use anabranch_dsl::ir::dependence::LoopVarRole;
use anabranch_dsl::ops::prim;
use rustc_hash::FxHashMap;

#[derive(Clone, Copy, Debug)]
pub(super) enum LocalBuffer {
    /// One number, in a row.
    Number(RowId),
    /// An element of a list, whose index is in a row.
    OfList { list: StackId, index: RowId, n: usize },
    /// A tensor of each iteration, by its index in the program.
    Own(u16),
}
/// The largest number of elements of a tensor that each lane has for itself.
const MAX_OWN: usize = 1 << 10;

/// Returns the addition of two numbers of a type as registers.
pub(super) fn addition_of(dtype: DType) -> Option<fn(u64, u64) -> u64> {
    match function(prim::ADD, dtype, dtype)?.scalar {
        ScalarFn::Binary(add) => Some(add),
        _ => None,
    }
}

/// Returns whether an access adds to an element of a tensor in a buffer.
fn adds_to(access: &ElementAccess<'_>, buffer: BufferId) -> bool {
    matches!(access.kind, ElementUse::Add(_)) && access.tensor.base == Base::Buffer(buffer)
}

impl Translator<'_> {
    /// Returns the element type of a stack or list of numbers.
    pub(super) fn element(&self, stack: StackId) -> Option<DType> {
        self.elements(stack).filter(|&(_, n)| n == 1).map(|(dtype, _)| dtype)
    }

    /// Returns the type and the number of numbers of an element of a stack or list.
    pub(super) fn elements(&self, stack: StackId) -> Option<(DType, usize)> {
        let element = self.plan.stacks[stack.index()].element();
        let shape = element.shape.known().filter(|_| element.dtype.is_plain())?;
        Some((element.dtype, shape.iter().product()))
    }

    /// Returns the local buffer that a view covers.
    pub(super) fn local(&self, view: &View) -> Option<LocalBuffer> {
        let Base::Buffer(b) = view.base else { return None };
        let local = self.locals.get(&b).copied()?;
        let n = match local {
            LocalBuffer::Number(_) => 1,
            LocalBuffer::OfList { n, .. } => n,
            LocalBuffer::Own(i) => self.program.tensors[usize::from(i)].n,
        };
        (view.offset == 0 && view.is_contiguous() && view.size() == n).then_some(local)
    }

    /// Returns the local buffer of which a view covers one or more elements.
    pub(super) fn local_around(&self, view: &View) -> Option<LocalBuffer> {
        if let Some(local) = self.local(view) {
            return Some(local);
        }
        let Base::Buffer(b) = view.base else { return None };
        let local = self.locals.get(&b).copied()?;
        let (n, size) = match local {
            LocalBuffer::Number(_) => return None,
            LocalBuffer::OfList { list, n, .. } => (n, self.elements(list)?.0.size()),
            LocalBuffer::Own(i) => {
                let OwnTensor { n, size, .. } = self.program.tensors[usize::from(i)];
                (n, size)
            }
        };
        (view.dtype.size() == size && view.offsets().all(|place| place < n)).then_some(local)
    }

    /// Returns the register or the row that holds the only number of an operand.
    pub(super) fn number(&self, operand: &TensorOperand) -> Option<Result<(Reg, usize), RowId>> {
        let TensorOperand::View(view) = operand else { return None };
        match (view.base, self.local(view)) {
            (Base::Reg(r), _) => Some(Ok((r, view.dtype.size()))),
            (_, Some(LocalBuffer::Number(row))) => Some(Err(row)),
            _ => None,
        }
    }

    /// Finds the tensors to which iterations add.
    pub(super) fn added(&mut self) {
        let plan = self.plan;
        for &(role, storage) in &self.parallel.vars {
            let (LoopVarRole::AddedTo, Storage::Buffer(buffer)) = (role, storage) else { continue };
            let addition = self.body.clone().find_map(|i| match plan.code[i as usize] {
                Instr::Run(op) => access(&plan.tensor_ops[op.index()]).filter(|access| adds_to(access, buffer)),
                _ => None,
            });
            // Without an addition nothing needs the tensor.
            let Some(ElementAccess { tensor, .. }) = addition else { continue };
            let Some(add) = addition_of(tensor.dtype) else { continue };
            // Places are recorded in 32 bits.
            if tensor.size() > u32::MAX as usize {
                continue;
            }
            let places = self.program.stacks.len() as u16;
            let record = AdditionStacks { places, numbers: places + 1 };
            for size in [size_of::<u32>(), tensor.dtype.size()] {
                self.program.stacks.push(LoopStack {
                    stack: None,
                    size,
                    part: StackPart::Recorded,
                    depth: 0,
                    is_in_code: false,
                });
            }
            self.added.insert(buffer, record);
            let dtype = tensor.dtype;
            self.program.additions.push(AddedTensor { buffer, dtype, add, record, numbers_per_place: 1 });
        }
    }

    /// Returns whether an operation uses a tensor to which iterations add otherwise than to add to
    /// it.
    pub(super) fn misuses_added(&self, op: &TensorOp) -> bool {
        let is_added = |view: &View| matches!(view.base, Base::Buffer(b) if self.added.contains_key(&b));
        let reads = op.operands.iter().any(|operand| match operand {
            TensorOperand::View(view) => is_added(view),
            TensorOperand::Slot(_) => false,
        });
        let is_used = reads || matches!(&op.out, Out::View(view) if is_added(view));
        is_used && !access(op).is_some_and(|access| self.added.keys().any(|&b| adds_to(&access, b)))
    }

    /// Finds the buffers that the body writes. Instructions that use them in other ways than those
    /// of their kind are refused later.
    pub(super) fn buffers(&mut self) {
        let plan = self.plan;
        // The lists whose elements buffers hold, or `None` for buffers that are written otherwise.
        let mut written: Vec<(BufferId, Option<StackId>, &View)> = Vec::new();
        for i in self.body.clone() {
            let (from, op) = match plan.code[i as usize] {
                Instr::Run(op) | Instr::StackPop { op, .. } => (None, op),
                Instr::List { list, op, .. } => (Some(list), op),
                _ => continue,
            };
            if let Out::View(view) = &plan.tensor_ops[op.index()].out
                && let Base::Buffer(b) = view.base
                && !self.added.contains_key(&b)
            {
                written.push((b, from, view));
            }
        }
        // The number of writes, and of elements up to the last one that is written.
        let mut extents: FxHashMap<BufferId, (usize, usize)> = FxHashMap::default();
        for &(b, _, view) in &written {
            let (n_writes, n) = extents.entry(b).or_default();
            *n_writes += 1;
            *n = view.offsets().map(|place| place + 1).max().unwrap_or(0).max(*n);
        }
        for &(b, from, view) in &written {
            if self.locals.contains_key(&b) {
                continue;
            }
            let (n_writes, n) = extents[&b];
            let local = match from {
                Some(list) if n_writes == 1 => LocalBuffer::OfList { list, index: self.kept_row(4), n },
                _ if n == 1 => LocalBuffer::Number(self.kept_row(view.dtype.size())),
                _ => {
                    let Some(add) = addition_of(view.dtype) else { continue };
                    if n > MAX_OWN {
                        continue;
                    }
                    self.program.tensors.push(OwnTensor { n, size: view.dtype.size(), add });
                    LocalBuffer::Own(self.program.tensors.len() as u16 - 1)
                }
            };
            self.locals.insert(b, local);
        }
    }

    /// Adds a row that basic blocks pass on to each other.
    fn kept_row(&mut self, size: usize) -> RowId {
        self.program.rows.push(RowInfo { size, start: RowStart::Nothing, is_kept: true });
        self.program.rows.len() as RowId - 1
    }

    /// Returns the source and the destination of an operation that copies a tensor from outside of
    /// the body, fills one with a number or sets one element.
    pub(super) fn copied<'a>(&self, op: &'a TensorOp) -> Option<[&'a View; 2]> {
        let (Kernel::Copy(_), Out::View(out), [TensorOperand::View(from)]) = (&op.kernel, &op.out, &op.operands[..])
        else {
            return None;
        };
        let is_inside = matches!(from.base, Base::Buffer(b) if self.locals.contains_key(&b));
        let is_element = matches!(from.base, Base::Reg(_)) && out.size() == 1 && self.local_around(out).is_some();
        (!is_inside && (is_element || self.local(out).is_some())).then_some([from, out])
    }
}
