//! Elementwise operations on tensors, fused, in blocks.
//!
//! A [`Map`] is an index space, operands with their strides, and a list of operations. It goes through the space in blocks that
//! stay in the first-level cache: operands that do not lie one element behind the other, or that lie where a
//! result goes, are copied to scratch memory first, so that every inner loop runs over plain slices. Results of operations share
//! scratch memory where one is used for the last time before the other is computed.
//!
//! A map may have several results, each an operation's; a reduction takes one result block by block and keeps none.

use super::functions::Function;
use super::walk::{Axis, merged};
use crate::cpu::kernels::Failed;
use crate::cpu::memory::Sources;
use crate::plan::{Operand, View};
use anabranch_dsl::DType;
use std::cell::RefCell;

/// Elements of one block.
pub(super) const BLOCK: usize = 512;
/// Elements from which on the work is split over threads, and elements of one part: a multiple of [`BLOCK`].
const PARALLEL: usize = 1 << 17;
const PART: usize = 1 << 15;

/// The largest numbers of operands, operations and results of one map.
pub(crate) const MAX_OPERANDS: usize = 16;
pub(crate) const MAX_OPS: usize = 24;
pub(crate) const MAX_RESULTS: usize = 4;

/// Bytes of the scratch memory of one thread: a block for each operand and operation, and one for what a reduction reads.
const SCRATCH: usize = (MAX_OPERANDS + MAX_OPS + 1) * BLOCK * 8;

/// An argument of an operation inside a [`Map`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arg {
    /// An operand of the map.
    Operand(u8),
    /// The result of an earlier operation.
    Result(u8),
}

/// One operation inside a [`Map`].
#[derive(Clone, Debug)]
pub(crate) struct MapOp {
    pub(crate) function: Function,
    pub(crate) args: [Arg; 3],
    pub(crate) dtype: DType,
    pub(crate) name: &'static str,
}

/// How the elements of an operand reach a block.
#[derive(Clone, Debug)]
enum Access {
    /// They lie one behind the other.
    Contiguous { offset: usize },
    /// There is only one.
    Splat { offset: usize },
    /// They lie apart.
    Strided { offset: usize, axes: Vec<Axis<1>> },
    /// They lie where a result goes.
    InPlace { result: usize },
}

/// An operand of a map.
#[derive(Clone, Debug)]
struct Reach {
    access: Access,
    /// Bytes of an element.
    size: usize,
    /// Only the elements of the rows that are computed are there: see [`Walk::base`].
    local: bool,
}

/// A walk through some elements of a map: the bytes of its operands.
pub(super) struct Walk<'a> {
    bytes: [&'a [u8]; MAX_OPERANDS],
    /// The element at which local operands begin.
    base: usize,
}

/// Where an operation of a map writes.
#[derive(Clone, Copy, Debug)]
enum To {
    /// A block of scratch memory.
    Scratch(u8),
    /// Where the result goes, which no operation reads.
    Result(u8),
}

/// Fused elementwise operations; the results are those of some of them. Without operations it is its only operand.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    ops: Vec<MapOp>,
    /// Number of elements.
    n: usize,
    /// Of each operand how it is reached. Its block of scratch memory has the same number.
    access: Vec<Reach>,
    to: Vec<To>,
    /// Operations whose values are copied to a result, since other operations read them as well.
    copied: Vec<(u8, u8)>,
    /// The operations that give results, in their order; no two are one.
    results: Vec<u8>,
    /// Bytes of a block of scratch memory.
    slot: usize,
}

/// Where the results of a map go: the bytes of some elements of each, in order.
pub(super) type Outs<'a> = [&'a mut [u8]; MAX_RESULTS];

impl Map {
    /// A map over operands that all have the shape of the result, which is all of a buffer and the value of the last operation.
    pub(crate) fn new(ops: Vec<MapOp>, operands: &[Operand], out: &View) -> Map {
        let last = ops.len() - 1;
        Map::with_results(ops, operands, &[(last, out)])
    }

    /// A map with the values of several operations as results.
    pub(crate) fn with_results(ops: Vec<MapOp>, operands: &[Operand], results: &[(usize, &View)]) -> Map {
        let n = results[0].1.size();
        let in_place = |view: &View| results.iter().position(|(_, out)| out.same_places(view));
        let indices = results.iter().map(|&(op, _)| op as u8).collect();
        Map::prepare(ops, operands, n, in_place, |_| false, indices)
    }

    /// A map whose values are read block by block and go nowhere.
    pub(crate) fn without_result(ops: Vec<MapOp>, operands: &[Operand], n: usize) -> Map {
        Map::prepare(ops, operands, n, |_| None, |_| false, Vec::new())
    }

    /// A map over rows: of the operands that are local only those rows are there that are computed. The result is that of the last
    /// operation, if there is one; then it says of each operand whether it lies where the result goes.
    pub(super) fn over_rows(
        ops: Vec<MapOp>,
        operands: &[Operand],
        n: usize,
        local: &[bool],
        in_place: Option<&[bool]>,
    ) -> Map {
        let results = if in_place.is_some() { vec![ops.len() as u8 - 1] } else { Vec::new() };
        let mut map = Map::prepare(ops, operands, n, |_| None, |i| local[i], results);
        for (reach, _) in map.access.iter_mut().zip(in_place.unwrap_or(&[])).filter(|(_, in_place)| **in_place) {
            reach.access = Access::InPlace { result: 0 };
        }
        map
    }

    fn prepare(
        ops: Vec<MapOp>,
        operands: &[Operand],
        n: usize,
        in_place: impl Fn(&View) -> Option<usize>,
        local: impl Fn(usize) -> bool,
        results: Vec<u8>,
    ) -> Map {
        assert!(operands.len() <= MAX_OPERANDS && ops.len() <= MAX_OPS && results.len() <= MAX_RESULTS);
        let access = operands.iter().enumerate().map(|(i, operand)| {
            let view = operand.view();
            let axes = merged(&view.shape, [&view.strides]);
            let access = match (in_place(view), &axes[..]) {
                (Some(result), _) => Access::InPlace { result },
                (None, [] | [Axis { strides: [0], .. }]) => Access::Splat { offset: view.offset },
                (None, [Axis { strides: [1], .. }]) => Access::Contiguous { offset: view.offset },
                (None, _) => Access::Strided { offset: view.offset, axes },
            };
            Reach { access, size: view.dtype.size(), local: local(i) }
        });
        let access: Vec<_> = access.collect();
        let sizes = access.iter().map(|a| a.size).chain(ops.iter().map(|op| op.dtype.size()));
        let slot = BLOCK * sizes.max().unwrap_or(8);
        let (to, copied) = places(&ops, access.len(), &results);
        Map { ops, n, access, to, copied, results, slot }
    }

    /// Names of the operations in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.ops.iter().map(|op| op.name)
    }

    /// The operations.
    pub(crate) fn ops(&self) -> &[MapOp] {
        &self.ops
    }

    /// Number of operands.
    pub(super) fn n_operands(&self) -> usize {
        self.access.len()
    }

    /// Number of elements.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// Whether it never fails.
    pub(crate) fn is_total(&self) -> bool {
        self.ops.iter().all(|op| op.function.check.is_none())
    }

    /// The same map after its operands or its result were put elsewhere.
    pub(crate) fn placed(&self, operands: &[Operand], out: &View) -> Map {
        Map::new(self.ops.clone(), operands, out)
    }

    /// Computes the results into `outs`, the bytes of all elements of each.
    pub(crate) fn run<'a>(
        &self,
        operands: &[Operand],
        outs: impl IntoIterator<Item = &'a mut [u8]>,
        sources: &Sources<'_>,
    ) -> Result<(), Failed> {
        let mut given = outs.into_iter();
        let outs: Outs<'a> = std::array::from_fn(|_| given.next().unwrap_or_default());
        if self.n == 0 {
            return Ok(());
        }
        let part = if self.n < PARALLEL { self.n } else { PART };
        self.run_parts(operands, 0, self.n, part, outs, sources)
    }

    /// Computes `n` elements of the only result from `first` on into `out`, on this thread.
    pub(super) fn run_range(
        &self,
        operands: &[Operand],
        first: usize,
        n: usize,
        out: &mut [u8],
        sources: &Sources<'_>,
    ) -> Result<(), Failed> {
        let mut outs: Outs<'_> = Default::default();
        outs[0] = out;
        with_scratch(|scratch| self.run_blocks(operands, first, n, &mut outs, sources, scratch))
    }

    /// Computes `n` elements from `first` on, in parts of so many, side by side.
    fn run_parts(
        &self,
        operands: &[Operand],
        first: usize,
        n: usize,
        part: usize,
        mut outs: Outs<'_>,
        sources: &Sources<'_>,
    ) -> Result<(), Failed> {
        if n <= part {
            return with_scratch(|scratch| self.run_blocks(operands, first, n, &mut outs, sources, scratch));
        }
        let cut = n.div_ceil(part) / 2 * part;
        let mut right: Outs<'_> = Default::default();
        for (k, out) in outs.iter_mut().enumerate().take(self.results.len()) {
            let size = self.ops[self.results[k] as usize].dtype.size();
            let (left, rest) = std::mem::take(out).split_at_mut(cut * size);
            (*out, right[k]) = (left, rest);
        }
        let (left, right) = rayon::join(
            || self.run_parts(operands, first, cut, part, outs, sources),
            || self.run_parts(operands, first + cut, n - cut, part, right, sources),
        );
        left.and(right)
    }

    fn run_blocks(
        &self,
        operands: &[Operand],
        first: usize,
        n: usize,
        outs: &mut Outs<'_>,
        sources: &Sources<'_>,
        scratch: &mut [u8],
    ) -> Result<(), Failed> {
        let walk = self.begin(n, 0, |i| sources.bytes(operands[i].view().base), scratch);
        self.walk_blocks(&walk, first, n, outs, scratch)
    }

    /// Computes `n` elements from `first` on.
    pub(super) fn walk_blocks(
        &self,
        walk: &Walk<'_>,
        first: usize,
        n: usize,
        outs: &mut Outs<'_>,
        scratch: &mut [u8],
    ) -> Result<(), Failed> {
        let mut start = 0;
        while start < n {
            let len = BLOCK.min(n - start);
            self.block(walk, first + start, len, Some((&mut *outs, start)), scratch)?;
            start += len;
        }
        Ok(())
    }

    /// Prepares walking over at most `n` elements: the bytes of the operands, and blocks of those that have one element. Local
    /// operands begin at element `base`.
    pub(super) fn begin<'a>(
        &self,
        n: usize,
        base: usize,
        bytes_of: impl Fn(usize) -> &'a [u8],
        scratch: &mut [u8],
    ) -> Walk<'a> {
        let mut bytes: [&[u8]; MAX_OPERANDS] = [&[]; MAX_OPERANDS];
        for (i, Reach { access, size, .. }) in self.access.iter().enumerate() {
            match access {
                Access::Contiguous { offset } => bytes[i] = &bytes_of(i)[offset * size..],
                Access::Splat { offset } => {
                    let element = &bytes_of(i)[offset * size..][..*size];
                    fill(&mut scratch[i * self.slot..][..n.min(BLOCK) * size], element);
                }
                Access::Strided { .. } => bytes[i] = bytes_of(i),
                Access::InPlace { .. } => {}
            }
        }
        Walk { bytes, base }
    }

    /// Computes at most [`BLOCK`] elements from `first` on; results go to elements from the given one on.
    fn block(
        &self,
        walk: &Walk<'_>,
        first: usize,
        len: usize,
        mut outs: Option<(&mut Outs<'_>, usize)>,
        scratch: &mut [u8],
    ) -> Result<(), Failed> {
        // Operands that lie as they are needed in this block.
        let mut direct: [&[u8]; MAX_OPERANDS] = [&[]; MAX_OPERANDS];
        for (i, Reach { access, size, local }) in self.access.iter().enumerate() {
            let block = &mut scratch[i * self.slot..][..len * size];
            let (bytes, first) = (walk.bytes[i], if *local { first - walk.base } else { first });
            match access {
                Access::Contiguous { .. } => direct[i] = &bytes[first * size..][..len * size],
                Access::Strided { offset, axes } => match one_run(*offset, axes, first, len) {
                    Some(at) => direct[i] = &bytes[at * size..][..len * size],
                    None => gather(block, bytes, *size, *offset, axes, first),
                },
                Access::InPlace { result } => {
                    let (outs, start) = outs.as_ref().expect("a map in place has results");
                    block.copy_from_slice(&outs[*result][start * size..][..len * size]);
                }
                Access::Splat { .. } => {}
            }
        }
        for (op, to) in self.ops.iter().zip(&self.to) {
            // Results that go to scratch memory need the rest of it.
            let to_slot = if let To::Scratch(slot) = to { *slot as usize } else { scratch.len() / self.slot };
            let (before, rest) = scratch.split_at_mut(to_slot * self.slot);
            let (block, after) = rest.split_at_mut(self.slot.min(rest.len()));
            let slot = |i: usize, size: usize| {
                let bytes =
                    if i < to_slot { &before[i * self.slot..] } else { &after[(i - to_slot - 1) * self.slot..] };
                &bytes[..len * size]
            };
            let args = op.args.map(|arg| match arg {
                Arg::Operand(i) => match direct[i as usize] {
                    [] => slot(i as usize, self.access[i as usize].size),
                    bytes => bytes,
                },
                Arg::Result(i) => match self.to[i as usize] {
                    To::Scratch(place) => slot(place as usize, self.ops[i as usize].dtype.size()),
                    To::Result(_) => panic!("a result is read"),
                },
            });
            if op.function.check.is_some_and(|check| !(check.block)(args[1])) {
                return Err(Failed);
            }
            let size = op.dtype.size();
            match (to, &mut outs) {
                (To::Result(k), Some((outs, start))) => {
                    (op.function.block)(&mut outs[*k as usize][*start * size..][..len * size], args);
                }
                _ => (op.function.block)(&mut block[..len * size], args),
            }
        }
        for &(op, k) in &self.copied {
            if let (To::Scratch(place), Some((outs, start))) = (self.to[op as usize], &mut outs) {
                let size = self.ops[op as usize].dtype.size();
                let from = &scratch[place as usize * self.slot..][..len * size];
                outs[k as usize][*start * size..][..len * size].copy_from_slice(from);
            }
        }
        Ok(())
    }

    /// The values of any number of elements from `first` on, if there is no operation and they lie one behind the other.
    pub(super) fn all_values<'a>(&self, walk: &Walk<'a>, first: usize, n: usize) -> Option<&'a [u8]> {
        match self.access[..] {
            [Reach { access: Access::Contiguous { .. }, size, local }] if self.ops.is_empty() => {
                let first = if local { first - walk.base } else { first };
                Some(&walk.bytes[0][first * size..][..n * size])
            }
            _ => None,
        }
    }

    /// The values of at most [`BLOCK`] elements from `first` on, for a map without results.
    pub(super) fn values<'a>(
        &self,
        walk: &Walk<'a>,
        first: usize,
        len: usize,
        scratch: &'a mut [u8],
    ) -> Result<&'a [u8], Failed> {
        self.block(walk, first, len, None, scratch)?;
        if let Some(To::Scratch(place)) = self.to.last() {
            let size = self.ops[self.ops.len() - 1].dtype.size();
            return Ok(&scratch[*place as usize * self.slot..][..len * size]);
        }
        let Reach { access, size, local } = &self.access[0];
        let first = if *local { first - walk.base } else { first };
        let direct = match access {
            Access::Contiguous { .. } => Some(first),
            Access::Strided { offset, axes } => one_run(*offset, axes, first, len),
            Access::Splat { .. } | Access::InPlace { .. } => None,
        };
        Ok(match direct {
            Some(at) => &walk.bytes[0][at * size..][..len * size],
            None => &scratch[..len * size],
        })
    }
}

/// Runs code with the scratch memory of this thread.
pub(super) fn with_scratch<R>(f: impl FnOnce(&mut [u8]) -> R) -> R {
    thread_local! {
        static MEMORY: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }
    MEMORY.with_borrow_mut(|memory| {
        if memory.is_empty() {
            memory.resize(SCRATCH / 8, 0);
        }
        f(bytemuck::cast_slice_mut(memory))
    })
}

/// Where each operation writes, and which values are copied to results.
fn places(ops: &[MapOp], n_operands: usize, results: &[u8]) -> (Vec<To>, Vec<(u8, u8)>) {
    let mut last_use = vec![None; ops.len()];
    for (k, op) in ops.iter().enumerate() {
        for arg in op.args {
            if let Arg::Result(i) = arg {
                last_use[i as usize] = Some(k);
            }
        }
    }
    let mut copied = Vec::new();
    for (k, &op) in results.iter().enumerate() {
        if last_use[op as usize].is_some() {
            // It stays until it is copied.
            last_use[op as usize] = Some(ops.len());
            copied.push((op, k as u8));
        }
    }
    let mut free: Vec<u8> = Vec::new();
    let mut next = n_operands as u8;
    let mut to: Vec<To> = Vec::with_capacity(ops.len());
    for k in 0..ops.len() {
        let result = results.iter().position(|&op| op as usize == k);
        to.push(match (result, last_use[k]) {
            (Some(result), None) => To::Result(result as u8),
            _ => To::Scratch(free.pop().unwrap_or_else(|| {
                next += 1;
                next - 1
            })),
        });
        // What was read here for the last time makes room for what comes behind.
        for (i, last) in last_use.iter().enumerate().take(k) {
            if let (To::Scratch(place), true) = (to[i], *last == Some(k)) {
                free.push(place);
            }
        }
    }
    (to, copied)
}

/// Repeats one element.
fn fill(to: &mut [u8], element: &[u8]) {
    match element.len() {
        8 => bytemuck::cast_slice_mut::<u8, u64>(to).fill(bytemuck::pod_read_unaligned(element)),
        4 => bytemuck::cast_slice_mut::<u8, u32>(to).fill(bytemuck::pod_read_unaligned(element)),
        2 => bytemuck::cast_slice_mut::<u8, u16>(to).fill(bytemuck::pod_read_unaligned(element)),
        _ => to.fill(element[0]),
    }
}

/// Where elements `first`, `first + 1`, .. of a strided space begin, if they lie one behind the other.
fn one_run(offset: usize, axes: &[Axis<1>], first: usize, len: usize) -> Option<usize> {
    let (inner, outer) = axes.split_last()?;
    if inner.strides[0] != 1 || first % inner.n + len > inner.n {
        return None;
    }
    Some((offset as isize + start_of(first / inner.n, outer) + (first % inner.n) as isize) as usize)
}

/// How far behind the first one the `i`-th index of some axes is.
fn start_of(mut i: usize, axes: &[Axis<1>]) -> isize {
    let mut start = 0;
    for axis in axes.iter().rev() {
        start += (i % axis.n) as isize * axis.strides[0];
        i /= axis.n;
    }
    start
}

/// Copies elements `first`, `first + 1`, .. of a strided space.
fn gather(to: &mut [u8], from: &[u8], size: usize, offset: usize, axes: &[Axis<1>], first: usize) {
    match size {
        8 => gather_as::<u64>(bytemuck::cast_slice_mut(to), bytemuck::cast_slice(from), offset, axes, first),
        4 => gather_as::<u32>(bytemuck::cast_slice_mut(to), bytemuck::cast_slice(from), offset, axes, first),
        2 => gather_as::<u16>(bytemuck::cast_slice_mut(to), bytemuck::cast_slice(from), offset, axes, first),
        _ => gather_as::<u8>(to, from, offset, axes, first),
    }
}

fn gather_as<M: Copy>(to: &mut [M], from: &[M], offset: usize, axes: &[Axis<1>], first: usize) {
    let (inner, outer) = axes.split_last().expect("a strided space has axes");
    let mut filled = 0;
    while filled < to.len() {
        // One run along the innermost axis.
        let at = first + filled;
        let (row, column) = (at / inner.n, at % inner.n);
        let start = offset as isize + column as isize * inner.strides[0] + start_of(row, outer);
        let len = (inner.n - column).min(to.len() - filled);
        let run = &mut to[filled..filled + len];
        match inner.strides[0] {
            0 => run.fill(from[start as usize]),
            1 => run.copy_from_slice(&from[start as usize..start as usize + len]),
            stride => {
                let mut at = start;
                for x in run {
                    *x = from[at as usize];
                    at += stride;
                }
            }
        }
        filled += len;
    }
}
