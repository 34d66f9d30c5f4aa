//! The execution of the operations of a block.

use super::block::{Declined, LaneBlock};
use super::code_input::{CodeBlock, CodeSource};
use super::program::{ElementIndex, ElementSource, LaneOp, OwnTensor, RowId, StackPart, StackPlace, UpdateValue};
use super::rows::{blend, bounds, by_size, bytes, divide_by_power, fill, register};
use crate::cpu::kernels::index::index_of;
use crate::cpu::memory::StackId;
use crate::cpu::memory::list::{ListStorage, is_run};
use crate::cpu::memory::segments::LaneStack;
use crate::cpu::multiversion::wide;
use anabranch_dsl::DType;
use std::sync::atomic::Ordering;

/// The largest number of bytes of a stack that belongs to the iterations of a block.
const MAX_OWN_STACK: usize = 1 << 26;

/// The indices of elements, one for each lane.
#[derive(Clone, Copy)]
enum LaneIndices<'a> {
    None,
    I32(&'a [i32]),
    I64(&'a [i64]),
    Other(&'a [u8], DType),
}

/// The element of a tensor that each lane uses.
#[derive(Clone, Copy)]
struct ElementPlaces<'a> {
    offset: usize,
    stride: isize,
    indices: LaneIndices<'a>,
}

impl ElementPlaces<'_> {
    #[inline(always)]
    fn index(&self, i: usize) -> u64 {
        match self.indices {
            LaneIndices::None => 0,
            LaneIndices::I32(indices) => i64::from(indices[i]).cast_unsigned(),
            LaneIndices::I64(indices) => indices[i].cast_unsigned(),
            LaneIndices::Other(row, dtype) => index_of(register(row, dtype.size(), i), dtype),
        }
    }

    /// Returns the element of the lane at a place. Of a lane that is not active it may be any.
    #[inline(always)]
    fn at(&self, i: usize) -> usize {
        self.offset.wrapping_add_signed(self.stride.wrapping_mul(self.index(i) as isize))
    }
}

impl<'a> LaneBlock<'a> {
    pub(super) fn ops(&mut self, ops: &[LaneOp]) -> Result<(), Declined> {
        ops.iter().try_for_each(|op| self.op(op))
    }

    /// Runs each of two lists of operations in the lanes to which it belongs.
    fn branches(&mut self, cond: RowId, arms: &[Box<[LaneOp]>; 2]) -> Result<(), Declined> {
        let (n_true, n_active, bound) = (self.count(cond), self.n_active, self.bound);
        if n_true == 0 || n_true == n_active {
            return self.ops(&arms[usize::from(n_true == 0)]);
        }
        let mut others = self.masks.pop().unwrap_or_else(|| vec![0; self.active.len()]);
        let cond = &bytes(&self.rows[usize::from(cond)])[..bound];
        others[bound..].fill(0);
        for ((other, active), &cond) in others.iter_mut().zip(&mut self.active[..bound]).zip(cond) {
            *other = *active & (cond ^ 1);
            *active &= cond;
        }
        self.n_active = n_true;
        let mut outcome = self.ops(&arms[0]);
        std::mem::swap(&mut self.active, &mut others);
        self.n_active = n_active - n_true;
        outcome = outcome.and_then(|()| self.ops(&arms[1]));
        self.active[..bound].iter_mut().zip(&others).for_each(|(active, &other)| *active |= other);
        self.n_active = n_active;
        self.masks.push(others);
        outcome
    }

    fn op(&mut self, op: &LaneOp) -> Result<(), Declined> {
        let size = |row: RowId| self.program.rows[usize::from(row)].size;
        match *op {
            LaneOp::Function { f, checked, dst, args, .. } => self.write(dst, args.contains(&dst), |out, block| {
                let args = [block.row(args[0]), block.row(args[1]), block.row(args[2])];
                match checked {
                    Some(checked) if !(checked.check.block)(args[1]) => {
                        let size = args[1].len() / block.width();
                        for i in block.places() {
                            let [a, b] = [0, 1].map(|arg| register(args[arg], size, i));
                            let bits = (checked.scalar)(a, b).to_ne_bytes();
                            out[i * size..][..size].copy_from_slice(&bits[..size]);
                        }
                    }
                    _ => f(out, args),
                }
                Ok(())
            }),
            LaneOp::DividePower { dst, a, dtype, shift, wants_remainder } => self.write(dst, a == dst, |out, block| {
                divide_by_power(out, block.row(a), dtype, shift, wants_remainder);
                Ok(())
            }),
            LaneOp::Move { dst, src } => self.write(dst, dst == src, |out, block| {
                out.copy_from_slice(block.row(src));
                Ok(())
            }),
            LaneOp::Require { valid, a } => {
                let (size, row) = (size(a), self.row(a));
                self.check(|i| valid(register(row, size, i)))
            }
            LaneOp::RequireIndex { a, dtype: DType::I32, n } => {
                let n = usize::try_from(n).unwrap_or(usize::MAX);
                if self.are_below(bytemuck::cast_slice(self.row(a)), n) { Ok(()) } else { Err(Declined::Loop) }
            }
            LaneOp::RequireIndex { a, dtype, n } => {
                let (size, row) = (size(a), self.row(a));
                self.check(|i| index_of(register(row, size, i), dtype) < n)
            }
            LaneOp::Assert { cond } => {
                let row = self.row(cond);
                self.check(|i| row[i] != 0)
            }
            LaneOp::ReadElement { from: ElementSource::Outside(base), offset, index, dst } => {
                let from = self.inputs.sources.bytes(base);
                let reads_itself = index.is_some_and(|index| index.row == dst);
                self.write(dst, reads_itself, |out, block| block.read_elements(out, from, offset, index))
            }
            LaneOp::ReadElement { from: ElementSource::OfList { list, index: of, n }, offset, index, dst } => {
                let from = self.list(list).all();
                self.write(dst, false, |out, block| {
                    let of = bytemuck::cast_slice::<u8, i32>(block.row(of));
                    block.read_own(out, from, |i, at| of[i] as usize * n + at, (offset, index))
                })
            }
            LaneOp::ReadElement { from: ElementSource::Own(tensor), offset, index, dst } => {
                let own = std::mem::take(&mut self.tensors[usize::from(tensor)]);
                let outcome = self.write(dst, false, |out, block| {
                    let lanes = block.inputs.shape.lanes;
                    let place = |i: usize, at: usize| at * lanes + usize::from(block.lane_of[i]);
                    block.read_own(out, bytemuck::cast_slice(&own), place, (offset, index))
                });
                self.tensors[usize::from(tensor)] = own;
                outcome
            }
            LaneOp::WriteElement { to, offset, index, value, adds } => {
                let mut own = std::mem::take(&mut self.tensors[usize::from(to)]);
                let outcome = self.write_own(&mut own, usize::from(to), (offset, index), value, adds);
                self.tensors[usize::from(to)] = own;
                outcome
            }
            LaneOp::PushPlace { stack, at, offset, index } => self.with_stack(stack, |block, own| {
                let elements = block.elements_at(offset, index)?;
                let places: Vec<u32> = (0..block.bound).map(|i| elements.at(i) as u32).collect();
                block.push(own, (stack, at), bytemuck::cast_slice(&places))
            }),
            LaneOp::Fill { to, value } => {
                let mut own = std::mem::take(&mut self.tensors[usize::from(to)]);
                let OwnTensor { n, size, .. } = self.program.tensors[usize::from(to)];
                let lanes = self.inputs.shape.lanes;
                by_size!(size, T => {
                    let (own, value): (&mut [T], &[T]) =
                        (bytemuck::cast_slice_mut(&mut own), bytemuck::cast_slice(self.row(value)));
                    for at in 0..n {
                        self.places().for_each(|i| own[at * lanes + usize::from(self.lane_of[i])] = value[i]);
                    }
                });
                self.tensors[usize::from(to)] = own;
                Ok(())
            }
            LaneOp::CopyIn { to, base, ref places } => {
                let from = self.inputs.sources.bytes(base);
                let mut own = std::mem::take(&mut self.tensors[usize::from(to)]);
                let size = self.program.tensors[usize::from(to)].size;
                let lanes = self.inputs.shape.lanes;
                by_size!(size, T => {
                    let (own, from): (&mut [T], &[T]) =
                        (bytemuck::cast_slice_mut(&mut own), bytemuck::cast_slice(from));
                    for (at, &place) in places.iter().enumerate() {
                        let x = from[place as usize];
                        self.places().for_each(|i| own[at * lanes + usize::from(self.lane_of[i])] = x);
                    }
                });
                self.tensors[usize::from(to)] = own;
                Ok(())
            }
            LaneOp::CheckList { list, index } => {
                let is_inside = self.are_below(bytemuck::cast_slice(self.row(index)), self.list(list).len());
                if is_inside { Ok(()) } else { Err(Declined::Loop) }
            }
            LaneOp::ReadList { list, index, dst } => {
                let from = self.list(list);
                self.write(dst, index == dst, |out, block| {
                    let index = Some(ElementIndex { row: index, dtype: DType::I32, n: from.len(), stride: 1 });
                    block.read_elements(out, from.all(), 0, index)
                })
            }
            LaneOp::UpdateList { update, index, value } => self.update_list(usize::from(update), index, value),
            LaneOp::Branches { cond, ref arms } => self.branches(cond, arms),
            LaneOp::Code { function } => {
                let (_, code) = self.program.code.as_ref().expect("there is native code");
                let inputs = self.inputs;
                let (stacks, segments, index) = (&mut self.stacks, &inputs.segments, self.block_index);
                let block = CodeBlock {
                    rows: &mut self.rows,
                    active: &self.active,
                    n: self.bound,
                    lane_of: &self.lane_of,
                    has_moved: self.has_moved,
                    // Code only reads the elements of an earlier loop.
                    stack: &mut |stack| match segments[usize::from(stack)] {
                        Some(popped) => {
                            let from = &popped.blocks[index];
                            (from.bytes().as_ptr().cast_mut(), from.room(), from.tile())
                        }
                        None => {
                            let own = &mut stacks[usize::from(stack)];
                            (own.bytes_mut().as_mut_ptr(), own.room(), own.tile())
                        }
                    },
                    elements: &|source| match source {
                        CodeSource::Tensor(base) => inputs.sources.bytes(base),
                        CodeSource::List(list) => inputs.lists[list.index()].as_ref().expect("it is a list").all(),
                    },
                    stop: inputs.stop,
                    has_declined: &inputs.has_declined,
                };
                code.run(function, block, &mut self.code_memory)
            }
            LaneOp::Push { stack, at, src } => {
                self.with_stack(stack, |block, own| block.push(own, (stack, at), block.row(src)))
            }
            LaneOp::Pop { stack, at, dst } => {
                self.write(dst, false, |out, block| block.pop(usize::from(stack), at, out))
            }
            LaneOp::Clear { .. } => panic!("rows with numbers of elements are set to zero instead"),
        }
    }

    /// Checks each active lane, by its place.
    fn check(&self, is_valid: impl Fn(usize) -> bool) -> Result<(), Declined> {
        if self.places().all(is_valid) { Ok(()) } else { Err(Declined::Loop) }
    }

    /// Returns whether the indices of active lanes are below `n`.
    fn are_below(&self, indices: &[i32], n: usize) -> bool {
        let n = n.min(i32::MAX as usize) as u32;
        wide(
            #[inline(always)]
            || {
                let outside = |(&i, &active): (&i32, &u8)| (i.cast_unsigned() >= n) & (active != 0);
                !indices.iter().zip(&self.active[..self.bound]).map(outside).fold(false, |any, outside| any | outside)
            },
        )
    }

    fn list(&self, list: StackId) -> &'a ListStorage {
        self.inputs.lists[list.index()].as_ref().expect("it is a list")
    }

    fn read_elements(
        &self,
        out: &mut [u8],
        from: &[u8],
        offset: usize,
        index: Option<ElementIndex>,
    ) -> Result<(), Declined> {
        let size = out.len() / self.width();
        let Some(ElementIndex { row, dtype, n, stride }) = index else {
            fill(out, size, register(from, size, offset));
            return Ok(());
        };
        if dtype == DType::I32 {
            let indices = &bytemuck::cast_slice::<u8, i32>(self.row(row))[..self.bound];
            if stride == 1
                && self.n_active == self.bound
                && is_run(indices)
                && let Ok(first) = usize::try_from(indices[0])
                && first + self.bound <= n
            {
                let from = &from[(offset + first) * size..][..self.bound * size];
                out[..from.len()].copy_from_slice(from);
                return Ok(());
            }
        }
        self.read_own(out, from, |_, at| at, (offset, index))
    }

    /// Reads elements of tensors of which each lane has another one. `place` returns the place in
    /// `from` of an element of the tensor of an active lane.
    fn read_own(
        &self,
        out: &mut [u8],
        from: &[u8],
        place: impl Fn(usize, usize) -> usize,
        (offset, index): (usize, Option<ElementIndex>),
    ) -> Result<(), Declined> {
        let size = out.len() / self.width();
        let elements = self.elements_at(offset, index)?;
        by_size!(size, T => {
            let (out, from): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(out), bytemuck::cast_slice(from));
            for (i, (out, &active)) in out.iter_mut().zip(&self.active[..self.bound]).enumerate() {
                if active != 0 {
                    *out = from[place(i, elements.at(i))];
                }
            }
        });
        Ok(())
    }

    /// Returns the elements of a tensor that the active lanes use, whose indices it checks.
    fn elements_at(&self, offset: usize, index: Option<ElementIndex>) -> Result<ElementPlaces<'_>, Declined> {
        let Some(ElementIndex { row, dtype, n, stride }) = index else {
            return Ok(ElementPlaces { offset, stride: 0, indices: LaneIndices::None });
        };
        let indices = match dtype {
            DType::I32 => LaneIndices::I32(bytemuck::cast_slice(self.row(row))),
            DType::I64 => LaneIndices::I64(bytemuck::cast_slice(self.row(row))),
            _ => LaneIndices::Other(self.row(row), dtype),
        };
        let places = ElementPlaces { offset, stride, indices };
        let is_inside = match indices {
            LaneIndices::I32(indices) => self.are_below(indices, n),
            LaneIndices::I64(indices) => {
                let outside = |(&i, &active): (&i64, &u8)| (i.cast_unsigned() >= n as u64) & (active != 0);
                let pairs = indices.iter().zip(&self.active[..self.bound]);
                wide(
                    #[inline(always)]
                    || !pairs.map(outside).fold(false, |any, outside| any | outside),
                )
            }
            _ => self.places().all(|i| places.index(i) < n as u64),
        };
        if is_inside { Ok(places) } else { Err(Declined::Loop) }
    }

    fn write_own(
        &self,
        own: &mut [u64],
        tensor: usize,
        (offset, index): (usize, Option<ElementIndex>),
        value: RowId,
        adds: bool,
    ) -> Result<(), Declined> {
        let OwnTensor { size, add, .. } = self.program.tensors[tensor];
        let (lanes, values) = (self.inputs.shape.lanes, self.row(value));
        let own: &mut [u8] = bytemuck::cast_slice_mut(own);
        let elements = self.elements_at(offset, index)?;
        for i in self.places() {
            let at = elements.at(i) * lanes + usize::from(self.lane_of[i]);
            let element = &mut own[at * size..][..size];
            let mut bits = register(values, size, i);
            if adds {
                bits = add(register(element, size, 0), bits);
            }
            element.copy_from_slice(&bits.to_ne_bytes()[..size]);
        }
        Ok(())
    }

    /// Records what the active lanes add to elements of a tensor.
    /// Runs a function with a stack of the program, which is not in the block meanwhile.
    fn with_stack(
        &mut self,
        stack: u16,
        f: impl FnOnce(&Self, &mut LaneStack) -> Result<(), Declined>,
    ) -> Result<(), Declined> {
        let mut own = std::mem::take(&mut self.stacks[usize::from(stack)]);
        let outcome = f(self, &mut own);
        self.stacks[usize::from(stack)] = own;
        outcome
    }

    fn update_list(&mut self, update: usize, index: RowId, value: UpdateValue) -> Result<(), Declined> {
        let info = &self.program.updates[update];
        let list = self.list(info.list);
        let mut updates = std::mem::take(&mut self.updates[update]);
        let indices = &bytemuck::cast_slice::<u8, i32>(self.row(index))[..self.bound];
        let is_whole = self.n_active == self.n && !self.has_moved;
        let mut is_free = true;
        if is_whole && is_run(indices) {
            is_free = list.is_free_from(&info.op, indices[0], indices.len());
            updates.indices.copy_from_slice(indices);
        } else {
            for i in self.places() {
                is_free &= list.is_free(&info.op, indices[i]);
                updates.indices[usize::from(self.lane_of[i])] = indices[i];
            }
        }
        let (values, size, n): (&[u8], _, _) = match value {
            UpdateValue::Row(row) => (self.row(row), info.bytes, 1),
            UpdateValue::Own(i) => {
                let OwnTensor { n, size, .. } = self.program.tensors[usize::from(i)];
                (bytemuck::cast_slice(&self.tensors[usize::from(i)]), size, n)
            }
        };
        let is_row = matches!(value, UpdateValue::Row(_));
        by_size!(size, T => {
            let (to, values): (&mut [T], &[T]) =
                (bytemuck::cast_slice_mut(&mut updates.elements), bytemuck::cast_slice(values));
            if is_row && is_whole {
                to[..self.n].copy_from_slice(&values[..self.n]);
            }
            for i in self.places().filter(|_| !is_row || !is_whole) {
                let lane = usize::from(self.lane_of[i]);
                if is_row {
                    to[lane] = values[i];
                } else {
                    (0..n).for_each(|at| to[lane * n + at] = values[at * self.inputs.shape.lanes + lane]);
                }
            }
        });
        self.updates[update] = updates;
        if is_free { Ok(()) } else { Err(Declined::Loop) }
    }

    /// Makes room for the elements that lanes push to a stack. Declines if stacks would reserve far
    /// more than lanes have pushed: each has memory for as many elements as the lane with the most.
    fn make_room(&self, own: &mut LaneStack, (stack, at): (u16, StackPlace), needed: usize) -> Result<(), Declined> {
        let inputs = self.inputs;
        let is_own = self.program.stacks[usize::from(stack)].part == StackPart::Own;
        let limit = if is_own { MAX_OWN_STACK } else { usize::MAX };
        let deepest = self.depths(at.depth)[..self.n].iter().copied().max().unwrap_or(0) as usize;
        let used = deepest + at.n as usize;
        let before = &inputs.depths[usize::from(stack)];
        let new = own.make_room(needed, used, before, limit).map_err(|_| Declined::Loop)?;
        inputs.reserved.fetch_add(new, Ordering::Relaxed);
        if self.is_waste(0, self.pushed()) { Err(Declined::Loop) } else { Ok(()) }
    }

    /// Writes an element of each active lane to a stack.
    fn push(&self, own: &mut LaneStack, (stack, at): (u16, StackPlace), row: &[u8]) -> Result<(), Declined> {
        let (size, bound, above) = (own.size(), self.bound, at.above as usize);
        let (depths, active) = (&self.depths(at.depth)[..bound], &self.active[..bound]);
        let (least, most) = bounds(depths, active);
        let needed = most as usize + above + 1;
        if needed > own.room() {
            self.make_room(own, (stack, at), needed)?;
        }
        if !self.has_moved && least == most {
            let is_full = self.n_active == bound;
            for first in (0..bound).step_by(own.tile()) {
                let n = own.tile().min(bound - first);
                let to = own.place(first, most as usize + above) * size;
                let (to, from) = (&mut own.bytes_mut()[to..][..n * size], &row[first * size..][..n * size]);
                if is_full {
                    to.copy_from_slice(from);
                } else {
                    blend(to, from, &active[first..][..n], size);
                }
            }
            return Ok(());
        }
        by_size!(size, T => {
            let row: &[T] = bytemuck::cast_slice(row);
            for ((i, &depth), &active) in depths.iter().enumerate().zip(active) {
                if active != 0 {
                    let to = own.place(usize::from(self.lane_of[i]), depth as usize + above);
                    bytemuck::cast_slice_mut::<u8, T>(own.bytes_mut())[to] = row[i];
                }
            }
        });
        Ok(())
    }

    /// Reads an element of each active lane from a stack.
    fn pop(&self, stack: usize, at: StackPlace, out: &mut [u8]) -> Result<(), Declined> {
        let (size, bound, above) = (out.len() / self.width(), self.bound, at.above as usize);
        // Elements of an earlier loop stay where they are.
        let from = match self.inputs.segments[stack] {
            Some(segments) => &segments.blocks[self.block_index],
            None => &self.stacks[stack],
        };
        let (depths, active) = (&self.depths(at.depth)[..bound], &self.active[..bound]);
        let (least, most) = bounds(depths, active);
        // Below no elements, the number is less than zero.
        if most as usize + above >= from.room() {
            return Err(Declined::Loop);
        }
        if !self.has_moved && least == most {
            for first in (0..bound).step_by(from.tile()) {
                let n = from.tile().min(bound - first) * size;
                let at = from.place(first, most as usize + above) * size;
                out[first * size..][..n].copy_from_slice(&from.bytes()[at..][..n]);
            }
            return Ok(());
        }
        by_size!(size, T => {
            let (out, bytes): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(out), bytemuck::cast_slice(from.bytes()));
            for ((i, &depth), &active) in depths.iter().enumerate().zip(active) {
                if active != 0 {
                    out[i] = bytes[from.place(usize::from(self.lane_of[i]), depth as usize + above)];
                }
            }
        });
        Ok(())
    }
}
