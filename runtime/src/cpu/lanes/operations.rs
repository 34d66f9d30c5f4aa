//! The execution of the operations of a block.

use super::additions::AdditionLog;
use super::block::{Declined, LaneBlock};
use super::code_input::{CodeBlock, CodeSource};
use super::program::{ElementIndex, ElementSource, LaneOp, OwnTensor, RowId, StackPart, UpdateValue};
use super::rows::{blend, bounds, by_size, bytes, divide_by_power, fill, register};
use crate::cpu::compile::StackId;
use crate::cpu::kernels::index::index_of;
use crate::cpu::memory::list::{ListStorage, is_run};
use crate::cpu::memory::segments::LaneStack;
use crate::cpu::multiversion::wide;
use anabranch_dsl::{DType, memory};
use std::sync::atomic::Ordering;

/// The largest number of bytes of a stack that belongs to the iterations of a block.
const MAX_OWN_STACK: usize = 1 << 26;

/// Stacks may reserve so many bytes for each that is pushed, and any number up to a limit.
const MAX_WASTE: usize = 8;
const MIN_LIMIT: usize = 1 << 26;

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
                if self.are_below(bytemuck::cast_slice(self.row(a)), n) { Ok(()) } else { Err(Declined) }
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
            LaneOp::AddLater { to, offset, index, value } => {
                let mut log = std::mem::take(&mut self.additions[usize::from(to)]);
                let outcome = self.add_later(&mut log, (offset, index), value);
                self.additions[usize::from(to)] = log;
                outcome
            }
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
                if is_inside { Ok(()) } else { Err(Declined) }
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
                let code = self.program.code.as_ref().expect("there is native code");
                let inputs = self.inputs;
                let block = CodeBlock {
                    rows: &mut self.rows,
                    active: &self.active,
                    n: self.bound,
                    elements: &|source| match source {
                        CodeSource::Tensor(base) => inputs.sources.bytes(base),
                        CodeSource::List(list) => inputs.lists[list.index()].as_ref().expect("it is a list").all(),
                    },
                    stop: inputs.stop,
                    has_declined: &inputs.has_declined,
                };
                if code.run(function, block, &mut self.code_memory) { Ok(()) } else { Err(Declined) }
            }
            LaneOp::Push { stack, src } => self.push(usize::from(stack), src),
            LaneOp::Pop { stack, dst } => {
                let mut own = std::mem::take(&mut self.stacks[usize::from(stack)]);
                let outcome = self.write(dst, false, |out, block| block.pop(usize::from(stack), &mut own, out));
                self.stacks[usize::from(stack)] = own;
                outcome
            }
            LaneOp::Clear { stack } => {
                let mut own = std::mem::take(&mut self.stacks[usize::from(stack)]);
                let depths = own.depths_mut();
                self.places().for_each(|i| depths[usize::from(self.lane_of[i])] = 0);
                self.stacks[usize::from(stack)] = own;
                Ok(())
            }
        }
    }

    /// Checks each active lane, by its place.
    fn check(&self, is_valid: impl Fn(usize) -> bool) -> Result<(), Declined> {
        if self.places().all(is_valid) { Ok(()) } else { Err(Declined) }
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
        if is_inside { Ok(places) } else { Err(Declined) }
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
    fn add_later(
        &self,
        log: &mut AdditionLog,
        (offset, index): (usize, Option<ElementIndex>),
        value: RowId,
    ) -> Result<(), Declined> {
        let elements = self.elements_at(offset, index)?;
        let size = self.program.rows[usize::from(value)].size;
        let places = (0..self.bound).map(|i| elements.at(i) as u32);
        let lanes = self.has_moved.then(|| &self.lane_of[..self.bound]);
        let n = log.record(places, &self.row(value)[..self.bound * size], &self.active[..self.bound], lanes);
        // With the copy in the order of the iterations.
        let n_all = n + self.n_active * (size_of::<u32>() + size);
        if let (Some(recorded), Some(more)) = (&self.inputs.recorded, memory::try_hold(n_all).map_err(|_| Declined)?) {
            recorded.join(more);
        }
        self.may_reserve(n, self.n_active * size)
    }

    /// Counts bytes that were reserved to keep elements of active lanes. Declines if too many more
    /// are reserved than needed.
    fn may_reserve(&self, n_reserved: usize, n_needed: usize) -> Result<(), Declined> {
        let reserved = self.inputs.reserved.fetch_add(n_reserved, Ordering::Relaxed) + n_reserved;
        let needed = self.inputs.pushed.fetch_add(n_needed, Ordering::Relaxed);
        if reserved > MIN_LIMIT.max(MAX_WASTE.saturating_mul(needed)) { Err(Declined) } else { Ok(()) }
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
        if is_free { Ok(()) } else { Err(Declined) }
    }

    fn push(&mut self, stack: usize, src: RowId) -> Result<(), Declined> {
        let mut own = std::mem::take(&mut self.stacks[stack]);
        let size = self.program.rows[usize::from(src)].size;
        let n = self.inputs.shape.lanes;
        let (row, active) = (self.row(src), &self.active[..self.bound]);
        // The depths of the lanes are those of the places, unless lanes have moved.
        let depths = &own.depths()[..self.bound];
        let (least, most) = bounds(depths, active);
        let inputs = self.inputs;
        let is_own = self.program.stacks[stack].part == StackPart::Own;
        let limit = if is_own { MAX_OWN_STACK } else { usize::MAX };
        let reserved = &inputs.reserved;
        let to = own.reserve_one(&inputs.depths[stack], limit, reserved).map_err(|_| Declined)?;
        // Stacks of lanes are as deep as the deepest.
        self.may_reserve(0, self.n_active * size)?;
        if !self.has_moved && least == most {
            blend(&mut to.bytes[most as usize * n * size..][..self.bound * size], row, active, size);
            to.depths.iter_mut().zip(active).for_each(|(depth, &active)| *depth += u32::from(active));
        } else {
            by_size!(size, T => {
                let (to_all, row): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(to.bytes), bytemuck::cast_slice(row));
                for ((&x, &active), &lane) in row.iter().zip(active).zip(&self.lane_of) {
                    if active != 0 {
                        let depth = &mut to.depths[usize::from(lane)];
                        to_all[*depth as usize * n + usize::from(lane)] = x;
                        *depth += 1;
                    }
                }
            });
        }
        self.stacks[stack] = own;
        Ok(())
    }

    fn pop(&self, stack: usize, own: &mut LaneStack, out: &mut [u8]) -> Result<(), Declined> {
        let size = out.len() / self.width();
        let n = self.inputs.shape.lanes;
        // Elements of an earlier loop stay where they are.
        let block = self.inputs.segments[stack].map(|segments| &segments.blocks[self.block_index]);
        let (own_bytes, depths) = own.parts_mut();
        let from = block.map_or(own_bytes, LaneStack::bytes);
        let active = &self.active[..self.bound];
        if !self.has_moved {
            let (least, most) = bounds(&depths[..self.bound], active);
            if least == most && most > 0 {
                let row = (most as usize - 1) * n * size;
                let len = self.bound * size;
                out[..len].copy_from_slice(&from[row..][..len]);
                depths.iter_mut().zip(active).for_each(|(depth, &active)| *depth -= u32::from(active));
                return Ok(());
            }
        }
        let mut is_empty = false;
        by_size!(size, T => {
            let (out, from): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(out), bytemuck::cast_slice(from));
            for ((out, &active), &lane) in out.iter_mut().zip(&self.active[..self.bound]).zip(&self.lane_of) {
                if active != 0 {
                    let depth = &mut depths[usize::from(lane)];
                    is_empty |= *depth == 0;
                    *depth = depth.saturating_sub(1);
                    *out = from.get(*depth as usize * n + usize::from(lane)).copied().unwrap_or_default();
                }
            }
        });
        if is_empty { Err(Declined) } else { Ok(()) }
    }
}
