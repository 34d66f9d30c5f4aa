//! Execution of list operations.
//!
//! If shapes are known, elements are copied between the list and the memory of the plan, and only
//! growing lists allocate.

use super::{Base, Out, Plan, StackId, TensorOp, TensorOperand, View};
use crate::cpu::compile::exec::Context;
use crate::cpu::element::{bytes_of, to_buffer};
use crate::cpu::kernels::Kernel;
use crate::cpu::memory::list::ListStorage;
use crate::cpu::memory::{ExternalTensors, Sources};
use anabranch_dsl::interp::list as meaning;
use anabranch_dsl::ir::{ListForm, ListOp};
use anabranch_dsl::{Buffer, DType, HostTensor, Result, TensorType};

/// Temporary memory for operands.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    indices: Vec<i32>,
    words: Vec<u64>,
}

/// Returns the index of the operand with indices or flags, and of the operand with elements.
fn roles(op: &ListOp) -> (Option<usize>, Option<usize>) {
    match op {
        ListOp::New(_) | ListOp::Read | ListOp::Gather => (Some(0), None),
        ListOp::Push | ListOp::Unstack => (None, Some(0)),
        ListOp::Write | ListOp::Scatter | ListOp::Accumulate => (Some(0), Some(1)),
        ListOp::Split(_) | ListOp::Restore => (Some(1), Some(0)),
        _ => (None, None),
    }
}

impl Plan {
    /// Runs an operation on a list. `other` is the second list of a binary operation.
    pub(super) fn list_op(
        &self,
        cx: &mut Context,
        list: StackId,
        other: Option<StackId>,
        tensor_op: &TensorOp,
        foreign: ExternalTensors<'_>,
    ) -> Result<()> {
        let Kernel::List(op) = &tensor_op.kernel else { panic!("`{}` is not an operation on lists", tensor_op.name) };
        let mut target = cx.lists[list.index()].take().unwrap_or_else(|| panic!("{list:?} is not a list"));
        let outcome = match other {
            Some(other) => {
                let other = cx.lists[other.index()].as_ref().expect("the lists are different");
                target.with_other(op, other, tensor_op.loc)
            }
            None if target.is_dynamic() => {
                let found = self.operands(cx, tensor_op, foreign);
                let found = found.and_then(|operands| target.on_host(op, &operands, tensor_op.loc));
                found.and_then(|found| match found {
                    Some(tensor) => self.store(cx, tensor_op, tensor),
                    None => Ok(()),
                })
            }
            None => {
                let mut scratch = std::mem::take(&mut cx.scratch);
                let outcome = self.on_bytes(cx, &mut target, &mut scratch, op, tensor_op, foreign);
                cx.scratch = scratch;
                outcome
            }
        };
        cx.lists[list.index()] = Some(target);
        outcome
    }

    /// Runs an operation on a list whose elements have a known shape.
    fn on_bytes(
        &self,
        cx: &mut Context,
        list: &mut ListStorage,
        scratch: &mut Scratch,
        op: &ListOp,
        tensor_op: &TensorOp,
        foreign: ExternalTensors<'_>,
    ) -> Result<()> {
        let (indices, data) = roles(op);
        let Scratch { indices: numbers, words } = scratch;
        numbers.clear();
        match indices.map(|i| &tensor_op.operands[i]) {
            Some(TensorOperand::View(v)) if v.dtype == DType::Bool => {
                let from = cx.sources(self, foreign).elements::<bool>(v.base);
                numbers.extend(v.offsets().map(|at| i32::from(from[at])));
            }
            Some(TensorOperand::View(v)) => {
                let from = cx.sources(self, foreign).elements::<i32>(v.base);
                numbers.extend(v.offsets().map(|at| from[at]));
            }
            Some(TensorOperand::Slot(s)) => match super::exec::slot(cx, *s).buffer() {
                Buffer::Bool(marks) => numbers.extend(marks.iter().map(|&mark| i32::from(mark))),
                _ => numbers.extend(super::exec::slot(cx, *s).data::<i32>()),
            },
            None => {}
        }
        if op.form() == ListForm::Query {
            return self.found(cx, list, op, numbers, tensor_op);
        }
        if *op == ListOp::Pop {
            return match &tensor_op.out {
                Out::View(View { base: Base::Buffer(b), .. }) => {
                    let to = self.buffer_mut(cx, *b);
                    list.pop(op, tensor_op.loc, |from| to.copy_from_slice(from))
                }
                Out::Reg(r, _) => list.pop(op, tensor_op.loc, |from| cx.regs[r.index()] = to_word(from)),
                Out::Nothing => list.pop(op, tensor_op.loc, |_| {}),
                out => panic!("an element of known shape goes to {out:?}"),
            };
        }
        let Some(data) = data.map(|i| &tensor_op.operands[i]) else {
            return list.update(op, numbers, &[], tensor_op.loc);
        };
        if let ListOp::Unstack = op {
            numbers.push(match data {
                TensorOperand::View(v) => v.shape[0],
                TensorOperand::Slot(s) => super::exec::slot(cx, *s).shape()[0],
            } as i32);
        }
        match data {
            TensorOperand::View(v) => {
                let sources = cx.sources(self, foreign);
                self.check_rows(list, op, numbers, tensor_op, &v.shape)?;
                list.update(op, numbers, contiguous(v, &sources, words), tensor_op.loc)
            }
            TensorOperand::Slot(s) => {
                let tensor = super::exec::slot(cx, *s);
                self.check_rows(list, op, numbers, tensor_op, tensor.shape())?;
                list.update(op, numbers, bytes_of(tensor.buffer()), tensor_op.loc)
            }
        }
    }

    /// Checks the shape of elements passed to a list, in the same order as the interpreter.
    fn check_rows(
        &self,
        list: &ListStorage,
        op: &ListOp,
        indices: &[i32],
        tensor_op: &TensorOp,
        shape: &[usize],
    ) -> Result<()> {
        let element = list.element();
        let expected = list.shape();
        let given = match op {
            ListOp::Push | ListOp::Write => shape,
            ListOp::Scatter | ListOp::Accumulate if shape.len() > expected.len() => {
                if shape[0] != indices.len() {
                    return Err(meaning::wrong_count(op, indices.len(), shape[0], tensor_op.loc));
                }
                &shape[1..]
            }
            ListOp::Accumulate => shape,
            ListOp::Unstack | ListOp::Restore => &shape[1..],
            ListOp::Split(_) => {
                meaning::check_parts(op, indices, shape[0], &expected[0].into(), tensor_op.loc)?;
                return self.check_rest(list, tensor_op, shape);
            }
            _ => return Ok(()),
        };
        if given == expected || (indices.is_empty() && *op != ListOp::Push) {
            return Ok(());
        }
        let at = match op {
            ListOp::Push => list.len(),
            ListOp::Unstack | ListOp::Restore => 0,
            _ => meaning::check_index(op, indices[0], list.len(), tensor_op.loc)?,
        };
        let given = TensorType::new(element.dtype, given);
        Err(meaning::wrong_shape(op, &given, element, at, tensor_op.loc))
    }

    /// Checks the other extents of a tensor that is split along its first axis.
    fn check_rest(&self, list: &ListStorage, tensor_op: &TensorOp, shape: &[usize]) -> Result<()> {
        let expected = list.shape();
        if shape[1..] == expected[1..] {
            return Ok(());
        }
        let given = TensorType::new(list.element().dtype, [&expected[..1], &shape[1..]].concat());
        Err(meaning::wrong_shape(&ListOp::Split(expected[0].into()), &given, list.element(), 0, tensor_op.loc))
    }

    fn found(
        &self,
        cx: &mut Context,
        list: &ListStorage,
        op: &ListOp,
        indices: &[i32],
        tensor_op: &TensorOp,
    ) -> Result<()> {
        match &tensor_op.out {
            Out::View(View { base: Base::Buffer(b), .. }) => {
                list.query(op, indices, tensor_op.loc, self.buffer_mut(cx, *b))
            }
            Out::Reg(r, dtype) => {
                let mut element = [0u64];
                list.query(op, indices, tensor_op.loc, &mut bytemuck::cast_slice_mut(&mut element)[..dtype.size()])?;
                cx.regs[r.index()] = element[0];
                Ok(())
            }
            Out::Slot(s) => {
                let (shape, dtype) = (list.query_shape(op, indices, tensor_op.loc)?, list.query_dtype(op));
                meaning::check_memory(op, &TensorType::new(dtype, shape.clone()), tensor_op.loc)?;
                let n: usize = shape.iter().product();
                let mut words = vec![0u64; (n * dtype.size()).div_ceil(8)];
                let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..n * dtype.size()];
                list.query(op, indices, tensor_op.loc, bytes)?;
                cx.slots[s.index()] = Some(HostTensor::from_buffer(shape, to_buffer(dtype, bytes)));
                Ok(())
            }
            out => panic!("`{}` writes {out:?}", tensor_op.name),
        }
    }
}

/// Returns an element of at most 8 bytes as a register value.
fn to_word(from: &[u8]) -> u64 {
    let mut word = [0u64];
    bytemuck::cast_slice_mut(&mut word)[..from.len()].copy_from_slice(from);
    word[0]
}

/// Returns the bytes of a view in row-major order, copied if it is not contiguous.
fn contiguous<'a>(view: &View, sources: &Sources<'a>, words: &'a mut Vec<u64>) -> &'a [u8] {
    let size = view.dtype.size();
    let bytes = sources.bytes(view.base);
    if view.is_contiguous() {
        return &bytes[view.offset * size..][..view.n_bytes()];
    }
    let n = view.n_bytes();
    if words.len() < n.div_ceil(8) {
        words.resize(n.div_ceil(8), 0);
    }
    let to: &mut [u8] = &mut bytemuck::cast_slice_mut(words)[..n];
    for (to, at) in to.chunks_exact_mut(size).zip(view.offsets()) {
        to.copy_from_slice(&bytes[at * size..][..size]);
    }
    to
}
