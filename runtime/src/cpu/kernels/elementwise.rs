//! Fused elementwise operations on tensors, in blocks.
//!
//! A [`Map`] consists of an index space, strided operands, and a list of operations. The kernel
//! traverses the space in blocks that stay in the L1 cache. Operands that are not contiguous, or
//! that share memory with a result, are first copied to scratch memory, so every inner loop runs
//! over slices. Results of operations share scratch memory if their live ranges are disjoint.
//! Consecutive cheap operations of one type form one pass over a block, a [`Chain`], which reads
//! single elements and operands in the place of a result directly. Every other operation is a
//! separate pass, whose operands must fill a block.
//!
//! A map may have several results, each of one operation. A reduction consumes the values block by
//! block instead.

use super::chain::{Chain, ElementPtr};
use super::functions::ElementFunction;
use super::random::{self, RandomKernel};
use super::walk::{Axis, merged};
use crate::cpu::kernels::KernelFailed;
use crate::cpu::memory::Sources;
use crate::cpu::memory::{TensorOperand, View};
use crate::threads;
use anabranch_dsl::DType;
use anabranch_dsl::ops::Prim;
use std::cell::{Cell, RefCell};

/// Number of elements per block.
pub(super) const BLOCK: usize = 1024;
/// Minimum number of elements of a row at whose end a block ends.
const MIN_ROW: usize = 64;
/// Minimum number of elements for several threads. `PART` is the number per task, a multiple of
/// [`BLOCK`].
const PARALLEL: usize = 1 << 17;
const PART: usize = 1 << 15;

/// Maximum numbers of operands, operations and results of a map.
pub(crate) const MAX_OPERANDS: usize = 16;
pub(crate) const MAX_OPS: usize = 24;
pub(crate) const MAX_RESULTS: usize = 4;

/// Size of a thread's scratch memory in bytes: a block for each operand and operation, and a block
/// that a reduction reads.
const SCRATCH: usize = (MAX_OPERANDS + MAX_OPS + 1) * BLOCK * 8;

/// An argument of an operation in a [`Map`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arg {
    /// An operand of the map.
    Operand(u8),
    /// The result of an earlier operation.
    Result(u8),
}

/// The function of an operation in a [`Map`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum MapFn {
    Function(ElementFunction),
    /// Random numbers indexed by element. The argument is the key, as one element of 8 bytes.
    Random(RandomKernel),
}

impl MapFn {
    /// Returns whether it cannot fail.
    fn is_total(self) -> bool {
        !matches!(self, MapFn::Function(ElementFunction { check: Some(_), .. }))
    }
}

/// An operation in a [`Map`].
#[derive(Clone, Debug)]
pub(crate) struct MapOp {
    pub(crate) work: MapFn,
    pub(crate) args: [Arg; 3],
    pub(crate) dtype: DType,
    pub(crate) op: Prim,
}

/// The access to the elements of an operand.
#[derive(Clone, Debug)]
enum OperandAccess {
    /// Contiguous elements.
    Contiguous { offset: usize },
    /// A single element.
    Splat { offset: usize },
    /// Strided elements.
    Strided { offset: usize, axes: Vec<Axis<1>> },
    /// The elements that a result overwrites. `direct` permits reading them while the result is
    /// written.
    InPlace { result: usize, direct: bool },
}

/// An operand of a map.
#[derive(Clone, Debug)]
struct Reach {
    access: OperandAccess,
    /// Size of an element in bytes.
    size: usize,
    /// Whether only the rows being computed are present: see [`Traversal::base`].
    local: bool,
    /// Whether an operation outside chains reads it, so that it must fill a block.
    fills: bool,
}

impl Reach {
    /// Returns whether the elements are contiguous and in order.
    fn is_plain(&self) -> bool {
        matches!(self.access, OperandAccess::Contiguous { .. })
    }
}

/// The bytes of the operands during a traversal.
pub(super) struct Traversal<'a> {
    bytes: [&'a [u8]; MAX_OPERANDS],
    /// The element at which local operands begin.
    base: usize,
    /// A bit for each operand whose scratch block holds one row repeatedly, from its first element
    /// on.
    repeated: Cell<u32>,
}

/// The destination of an operation.
#[derive(Clone, Copy, Debug)]
enum MapDest {
    /// A block of scratch memory.
    Scratch(u8),
    /// A result that no operation reads.
    Result(u8),
}

/// Operations computed in one pass over a block.
#[derive(Clone, Debug)]
enum BlockPass {
    /// A single operation.
    Single(u8),
    /// Consecutive operations.
    Chain(Chain),
}

/// Fused elementwise operations. Without operations, the value is that of the only operand.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    ops: Vec<MapOp>,
    passes: Vec<BlockPass>,
    /// Number of elements.
    n: usize,
    /// The access to each operand. The scratch block of an operand has the same index.
    access: Vec<Reach>,
    to: Vec<MapDest>,
    /// Operations copied to a result because other operations read them, too.
    copied: Vec<(u8, u8)>,
    /// The operations that yield the results, in order. They are distinct.
    results: Vec<u8>,
    /// Size of a scratch block in bytes.
    slot: usize,
    /// See [`Map::row`].
    row: Option<usize>,
}

/// The destinations of the results of a map: the bytes of some elements of each, in order.
pub(super) type Outs<'a> = [&'a mut [u8]; MAX_RESULTS];

impl Map {
    /// Creates a map whose operands have the shape of the result, a whole buffer with the value of
    /// the last operation.
    pub(crate) fn new(ops: Vec<MapOp>, operands: &[TensorOperand], out: &View) -> Map {
        let last = ops.len() - 1;
        Map::with_results(ops, operands, &[(last, out)])
    }

    /// Creates a map whose results are the values of several operations.
    pub(crate) fn with_results(ops: Vec<MapOp>, operands: &[TensorOperand], results: &[(usize, &View)]) -> Map {
        let n = results[0].1.size();
        let in_place = |view: &View| results.iter().position(|(_, out)| out.same_places(view));
        let indices = results.iter().map(|&(op, _)| op as u8).collect();
        Map::prepare(ops, operands, n, in_place, |_| false, indices)
    }

    /// Creates a map whose values are consumed block by block.
    pub(crate) fn without_result(ops: Vec<MapOp>, operands: &[TensorOperand], n: usize) -> Map {
        Map::prepare(ops, operands, n, |_| None, |_| false, Vec::new())
    }

    /// Creates a map over rows. Local operands contain only the rows being computed.
    ///
    /// If `in_place` is given, the last operation yields the result, and `in_place` determines
    /// which operands it overwrites.
    pub(super) fn over_rows(
        ops: Vec<MapOp>,
        operands: &[TensorOperand],
        n: usize,
        local: &[bool],
        in_place: Option<&[bool]>,
    ) -> Map {
        let results = if in_place.is_some() { vec![ops.len() as u8 - 1] } else { Vec::new() };
        let mut map = Map::prepare(ops, operands, n, |_| None, |i| local[i], results);
        for (reach, _) in map.access.iter_mut().zip(in_place.unwrap_or(&[])).filter(|(_, in_place)| **in_place) {
            reach.access = OperandAccess::InPlace { result: 0, direct: false };
        }
        map.find_passes();
        map
    }

    /// Returns the number of bytes that it writes to its results.
    pub(crate) fn bytes_written(&self) -> usize {
        self.results.iter().map(|&op| self.n * self.ops[op as usize].dtype.size()).sum()
    }

    fn prepare(
        ops: Vec<MapOp>,
        operands: &[TensorOperand],
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
                (Some(result), _) => OperandAccess::InPlace { result, direct: false },
                (None, [] | [Axis { strides: [0], .. }]) => OperandAccess::Splat { offset: view.offset },
                (None, [Axis { strides: [1], .. }]) => OperandAccess::Contiguous { offset: view.offset },
                (None, _) => OperandAccess::Strided { offset: view.offset, axes },
            };
            Reach { access, size: view.dtype.size(), local: local(i), fills: true }
        });
        let access: Vec<_> = access.collect();
        let sizes = access.iter().map(|a| a.size).chain(ops.iter().map(|op| op.dtype.size()));
        let slot = BLOCK * sizes.max().unwrap_or(8);
        let (to, copied) = places(&ops, access.len(), &results);
        let mut map = Map { ops, passes: Vec::new(), n, access, to, copied, results, slot, row: None };
        map.find_passes();
        map
    }

    /// Determines where blocks end, the passes, and how they read operands.
    fn find_passes(&mut self) {
        let last = self.ops.len().wrapping_sub(1);
        let is_kept = |op: usize| self.results.contains(&(op as u8)) || (self.results.is_empty() && op == last);
        self.passes.clear();
        self.row = None;
        // Whether each operation is part of a chain.
        let mut is_chained = Vec::with_capacity(self.ops.len());
        while is_chained.len() < self.ops.len() {
            let first = is_chained.len();
            let (chain, n) = Chain::of(&self.ops, first, is_kept);
            let args = || self.ops[first].args.into_iter();
            let has_spread = args().any(|arg| matches!(arg, Arg::Operand(i) if !self.access[i as usize].is_plain()));
            if n > 1 || (n == 1 && has_spread) {
                self.passes.push(BlockPass::Chain(chain));
                is_chained.extend(std::iter::repeat_n(true, n));
            } else {
                self.passes.push(BlockPass::Single(first as u8));
                is_chained.push(false);
            }
        }
        for (i, reach) in self.access.iter_mut().enumerate() {
            let users = || (0..self.ops.len()).filter(|&op| self.ops[op].args.contains(&Arg::Operand(i as u8)));
            reach.fills = self.ops.is_empty() || users().any(|op| !is_chained[op]);
            if let (OperandAccess::Strided { axes, .. }, false) = (&reach.access, reach.fills)
                && let Some(Axis { n, strides: [0] }) = axes.last()
                && *n >= MIN_ROW
            {
                self.row = Some(self.row.map_or(*n, |row| row.min(*n)));
            }
            if let OperandAccess::InPlace { result, direct } = &mut reach.access {
                // The writer of the result must be elementwise, too, and run after all readers of
                // the overwritten operand.
                let writer = self.results[*result] as usize;
                let is_copied = matches!(self.to[writer], MapDest::Scratch(_));
                *direct = !reach.fills && (is_copied || (is_chained[writer] && users().all(|op| op <= writer)));
            }
        }
    }

    /// Returns the names of the operations in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.ops.iter().map(|op| op.op.def().name)
    }

    /// Returns the operations for each element, in order.
    pub(crate) fn ops(&self) -> &[MapOp] {
        &self.ops
    }

    /// Returns the number of operands.
    pub(super) fn n_operands(&self) -> usize {
        self.access.len()
    }

    /// Returns the row length, if it pays off to end blocks at the ends of rows.
    ///
    /// Within a row, every operand of a chain that does not vary from element to element is a
    /// single element.
    pub(super) fn row(&self) -> Option<usize> {
        self.row
    }

    /// Returns the maximum number of elements of the block that begins at element `first`.
    pub(super) fn block_at(&self, first: usize) -> usize {
        self.row.map_or(BLOCK, |row| BLOCK.min(row - first % row))
    }

    /// Returns the number of elements.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// Returns whether the map cannot fail.
    pub(crate) fn is_total(&self) -> bool {
        self.ops.iter().all(|op| op.work.is_total())
    }

    /// Returns the same map after storage was allocated to operands and result.
    pub(crate) fn placed(&self, operands: &[TensorOperand], out: &View) -> Map {
        Map::new(self.ops.clone(), operands, out)
    }

    /// Computes all elements of the results into `outs`.
    pub(crate) fn run<'a>(
        &self,
        operands: &[TensorOperand],
        outs: impl IntoIterator<Item = &'a mut [u8]>,
        sources: &Sources<'_>,
    ) -> Result<(), KernelFailed> {
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
        operands: &[TensorOperand],
        first: usize,
        n: usize,
        out: &mut [u8],
        sources: &Sources<'_>,
    ) -> Result<(), KernelFailed> {
        let mut outs: Outs<'_> = Default::default();
        outs[0] = out;
        with_scratch(|scratch| self.run_blocks(operands, first, n, &mut outs, sources, scratch))
    }

    /// Computes `n` elements from `first` on, in parallel tasks of `part` elements.
    fn run_parts(
        &self,
        operands: &[TensorOperand],
        first: usize,
        n: usize,
        part: usize,
        mut outs: Outs<'_>,
        sources: &Sources<'_>,
    ) -> Result<(), KernelFailed> {
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
        let (left, right) = threads::join(
            || self.run_parts(operands, first, cut, part, outs, sources),
            || self.run_parts(operands, first + cut, n - cut, part, right, sources),
        );
        left.and(right)
    }

    fn run_blocks(
        &self,
        operands: &[TensorOperand],
        first: usize,
        n: usize,
        outs: &mut Outs<'_>,
        sources: &Sources<'_>,
        scratch: &mut [u8],
    ) -> Result<(), KernelFailed> {
        let walk = self.begin(n, 0, |i| sources.bytes(operands[i].view().base), scratch);
        self.walk_blocks(&walk, first, n, outs, scratch)
    }

    /// Computes `n` elements from `first` on.
    pub(super) fn walk_blocks(
        &self,
        walk: &Traversal<'_>,
        first: usize,
        n: usize,
        outs: &mut Outs<'_>,
        scratch: &mut [u8],
    ) -> Result<(), KernelFailed> {
        let mut start = 0;
        while start < n {
            let len = self.block_at(first + start).min(n - start);
            self.block(walk, first + start, len, Some((&mut *outs, start)), scratch)?;
            start += len;
        }
        Ok(())
    }

    /// Prepares a traversal of at most `n` elements: looks up the bytes of operands and broadcasts
    /// single elements to blocks. Local operands begin at element `base`.
    pub(super) fn begin<'a>(
        &self,
        n: usize,
        base: usize,
        bytes_of: impl Fn(usize) -> &'a [u8],
        scratch: &mut [u8],
    ) -> Traversal<'a> {
        let mut bytes: [&[u8]; MAX_OPERANDS] = [&[]; MAX_OPERANDS];
        for (i, Reach { access, size, fills, .. }) in self.access.iter().enumerate() {
            match access {
                OperandAccess::Contiguous { offset } => bytes[i] = &bytes_of(i)[offset * size..],
                OperandAccess::Splat { offset } => {
                    bytes[i] = &bytes_of(i)[offset * size..][..*size];
                    if *fills {
                        fill(&mut scratch[i * self.slot..][..n.min(BLOCK) * size], bytes[i]);
                    }
                }
                OperandAccess::Strided { .. } => bytes[i] = bytes_of(i),
                OperandAccess::InPlace { .. } => {}
            }
        }
        Traversal { bytes, base, repeated: Cell::new(0) }
    }

    /// Computes up to [`BLOCK`] elements from `first` on. `outs` contains the results and the first
    /// element to write.
    fn block(
        &self,
        walk: &Traversal<'_>,
        first: usize,
        len: usize,
        mut outs: Option<(&mut Outs<'_>, usize)>,
        scratch: &mut [u8],
    ) -> Result<(), KernelFailed> {
        // Operands usable in place for this block, and operands that are single elements.
        let mut direct: [&[u8]; MAX_OPERANDS] = [&[]; MAX_OPERANDS];
        let mut ones: [&[u8]; MAX_OPERANDS] = [&[]; MAX_OPERANDS];
        for (i, Reach { access, size, local, fills }) in self.access.iter().enumerate() {
            let block = &mut scratch[i * self.slot..][..len * size];
            let (bytes, first) = (walk.bytes[i], if *local { first - walk.base } else { first });
            match access {
                OperandAccess::Contiguous { .. } => direct[i] = &bytes[first * size..][..len * size],
                OperandAccess::Strided { offset, axes } => match one_run(*offset, axes, first, len) {
                    Some((at, 1)) => direct[i] = &bytes[at * size..][..len * size],
                    Some((at, _)) if !fills => ones[i] = &bytes[at * size..][..*size],
                    _ => {
                        // A broadcast row, such as a bias, is gathered once if blocks begin at its
                        // start.
                        let is_row =
                            matches!(axes[..], [Axis { strides: [0], .. }, Axis { n, strides: [1] }] if first % n == 0);
                        let repeated = walk.repeated.get();
                        if !is_row || repeated & 1 << i == 0 {
                            gather(block, bytes, *size, *offset, axes, first);
                            let holds = u32::from(is_row && len == BLOCK) << i;
                            walk.repeated.set(repeated & !(1 << i) | holds);
                        }
                    }
                },
                OperandAccess::InPlace { result, direct: false } => {
                    let (outs, start) = outs.as_ref().expect("a map in place has results");
                    block.copy_from_slice(&outs[*result][start * size..][..len * size]);
                }
                OperandAccess::InPlace { direct: true, .. } => {}
                OperandAccess::Splat { .. } => ones[i] = bytes,
            }
        }
        for pass in &self.passes {
            let k = match pass {
                BlockPass::Single(k) => *k as usize,
                BlockPass::Chain(chain) => {
                    self.run_chain(chain, len, [&direct, &ones], &mut outs, scratch);
                    continue;
                }
            };
            let (op, to) = (&self.ops[k], &self.to[k]);
            // Operations that write to a result may read all of the scratch memory.
            let to_slot = if let MapDest::Scratch(slot) = to { *slot as usize } else { scratch.len() / self.slot };
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
                    MapDest::Scratch(place) => slot(place as usize, self.ops[i as usize].dtype.size()),
                    MapDest::Result(_) => panic!("a result cannot be read"),
                },
            });
            let size = op.dtype.size();
            let out = match (to, &mut outs) {
                (MapDest::Result(k), Some((outs, start))) => &mut outs[*k as usize][*start * size..][..len * size],
                _ => &mut block[..len * size],
            };
            match op.work {
                MapFn::Function(ElementFunction { check: Some(check), .. }) if !(check.block)(args[1]) => {
                    return Err(KernelFailed);
                }
                MapFn::Function(function) => (function.block)(out, args),
                MapFn::Random(random) => random::draw(random, bytemuck::pod_read_unaligned(&args[0][..8]), first, out),
            }
        }
        for &(op, k) in &self.copied {
            if let (MapDest::Scratch(place), Some((outs, start))) = (self.to[op as usize], &mut outs) {
                let size = self.ops[op as usize].dtype.size();
                let from = &scratch[place as usize * self.slot..][..len * size];
                outs[k as usize][*start * size..][..len * size].copy_from_slice(from);
            }
        }
        Ok(())
    }

    /// Computes a chain for `len` elements. `direct` and `ones` are the operands outside scratch
    /// memory.
    fn run_chain(
        &self,
        chain: &Chain,
        len: usize,
        [direct, ones]: [&[&[u8]; MAX_OPERANDS]; 2],
        outs: &mut Option<(&mut Outs<'_>, usize)>,
        scratch: &mut [u8],
    ) {
        let mut results: [*mut u8; MAX_RESULTS] = [std::ptr::null_mut(); MAX_RESULTS];
        if let Some((outs, start)) = outs {
            for (k, &op) in self.results.iter().enumerate() {
                let size = self.ops[op as usize].dtype.size();
                results[k] = outs[k][*start * size..][..len * size].as_mut_ptr();
            }
        }
        assert!(scratch.len() >= SCRATCH, "there is a block for each place");
        let scratch = scratch.as_mut_ptr();
        // SAFETY: indices are below the number of operands and operations, each of which has a
        // block.
        let slot = |place: usize| ElementPtr::Elements(unsafe { scratch.add(place * self.slot) });
        let place_of = |arg: Arg| match arg {
            Arg::Operand(i) => match (&self.access[i as usize].access, direct[i as usize], ones[i as usize]) {
                (OperandAccess::InPlace { result, direct: true }, ..) => ElementPtr::Elements(results[*result]),
                (_, [], []) => slot(i as usize),
                (_, [], one) => ElementPtr::One(one.as_ptr()),
                (_, elements, _) => ElementPtr::Elements(elements.as_ptr().cast_mut()),
            },
            Arg::Result(i) => match self.to[i as usize] {
                MapDest::Scratch(place) => slot(place as usize),
                MapDest::Result(k) => ElementPtr::Elements(results[k as usize]),
            },
        };
        // SAFETY: operands have `len` elements in memory or in their blocks, or one. Results and
        // scratch blocks are writable. Overwritten operands are read before results are written:
        // see `find_passes`.
        unsafe { chain.run(len, place_of) }
    }

    /// Returns the values of `n` elements from `first` on, if there is no operation and they are
    /// contiguous.
    pub(super) fn all_values<'a>(&self, walk: &Traversal<'a>, first: usize, n: usize) -> Option<&'a [u8]> {
        match self.access[..] {
            [Reach { access: OperandAccess::Contiguous { .. }, size, local, .. }] if self.ops.is_empty() => {
                let first = if local { first - walk.base } else { first };
                Some(&walk.bytes[0][first * size..][..n * size])
            }
            _ => None,
        }
    }

    /// Returns the values of at most [`BLOCK`] elements from `first` on, for a map without results.
    pub(super) fn values<'a>(
        &self,
        walk: &Traversal<'a>,
        first: usize,
        len: usize,
        scratch: &'a mut [u8],
    ) -> Result<&'a [u8], KernelFailed> {
        self.block(walk, first, len, None, scratch)?;
        if let Some(MapDest::Scratch(place)) = self.to.last() {
            let size = self.ops[self.ops.len() - 1].dtype.size();
            return Ok(&scratch[*place as usize * self.slot..][..len * size]);
        }
        let Reach { access, size, local, .. } = &self.access[0];
        let first = if *local { first - walk.base } else { first };
        let direct = match access {
            OperandAccess::Contiguous { .. } => Some(first),
            OperandAccess::Strided { offset, axes } => {
                one_run(*offset, axes, first, len).filter(|&(_, stride)| stride == 1).map(|(at, _)| at)
            }
            OperandAccess::Splat { .. } | OperandAccess::InPlace { .. } => None,
        };
        Ok(match direct {
            Some(at) => &walk.bytes[0][at * size..][..len * size],
            None => &scratch[..len * size],
        })
    }
}

/// Calls `f` with the scratch memory of this thread.
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

/// Returns the destination of each operation, and the values that are copied to results.
fn places(ops: &[MapOp], n_operands: usize, results: &[u8]) -> (Vec<MapDest>, Vec<(u8, u8)>) {
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
            // The block stays allocated until it is copied.
            last_use[op as usize] = Some(ops.len());
            copied.push((op, k as u8));
        }
    }
    let mut free: Vec<u8> = Vec::new();
    let mut next = n_operands as u8;
    let mut to: Vec<MapDest> = Vec::with_capacity(ops.len());
    for k in 0..ops.len() {
        let result = results.iter().position(|&op| op as usize == k);
        to.push(match (result, last_use[k]) {
            (Some(result), None) => MapDest::Result(result as u8),
            _ => MapDest::Scratch(free.pop().unwrap_or_else(|| {
                next += 1;
                next - 1
            })),
        });
        // Blocks whose last use is here become free for later operations.
        for (i, last) in last_use.iter().enumerate().take(k) {
            if let (MapDest::Scratch(place), true) = (to[i], *last == Some(k)) {
                free.push(place);
            }
        }
    }
    (to, copied)
}

/// Fills a slice with one element.
fn fill(to: &mut [u8], element: &[u8]) {
    match element.len() {
        8 => bytemuck::cast_slice_mut::<u8, u64>(to).fill(bytemuck::pod_read_unaligned(element)),
        4 => bytemuck::cast_slice_mut::<u8, u32>(to).fill(bytemuck::pod_read_unaligned(element)),
        2 => bytemuck::cast_slice_mut::<u8, u16>(to).fill(bytemuck::pod_read_unaligned(element)),
        _ => to.fill(element[0]),
    }
}

/// Returns the first index and stride of `len` elements of a strided space from `first` on, if they
/// are contiguous (stride 1) or a single element (stride 0).
fn one_run(offset: usize, axes: &[Axis<1>], first: usize, len: usize) -> Option<(usize, isize)> {
    let (inner, outer) = axes.split_last()?;
    let ([stride @ (0 | 1)], (row, column)) = (inner.strides, (first / inner.n, first % inner.n)) else { return None };
    if column + len > inner.n {
        return None;
    }
    Some(((offset as isize + start_of(row, outer)) as usize + column * stride as usize, stride))
}

/// Returns the offset of the `i`-th index of some axes from the first index.
fn start_of(mut i: usize, axes: &[Axis<1>]) -> isize {
    let mut start = 0;
    for axis in axes.iter().rev() {
        start += (i % axis.n) as isize * axis.strides[0];
        i /= axis.n;
    }
    start
}

/// Copies elements of a strided space, from element `first` on.
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
        // A run along the innermost axis.
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
