//! The elements that the iterations of a loop in lanes pushed to a stack, as long as they are not
//! needed as one stack.

use super::counted::CountedVec;
use super::stack::NoMemory;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The elements that the lanes of one block pushed, each lane to a stack of its own.
///
/// Element `d` of lane `l` is the element `d * lanes + l` of the memory, so lanes that push at the
/// same time write a row.
#[derive(Debug, Default)]
pub(crate) struct LaneStack {
    size: usize,
    lanes: usize,
    words: CountedVec<u64>,
    depths: Vec<u32>,
    /// No lane has more elements.
    ceiling: usize,
}

/// The largest number of bytes that a stack reserves before its lanes push so many.
const MAX_IN_ADVANCE: usize = 1 << 20;

/// The memory of a [`LaneStack`], with room for one more element of each lane.
pub(crate) struct LaneStackParts<'a> {
    pub(crate) bytes: &'a mut [u8],
    pub(crate) depths: &'a mut [u32],
}

/// The element at an index of memory for elements of `size` bytes.
fn element(words: &[u64], size: usize, i: usize) -> &[u8] {
    &bytemuck::cast_slice(words)[i * size..][..size]
}

impl LaneStack {
    /// Creates an empty stack of elements of `size` bytes for each of `lanes` lanes, in memory that
    /// may be empty.
    pub(crate) fn new(size: usize, lanes: usize, memory: CountedVec<u64>) -> LaneStack {
        LaneStack { size, lanes, words: memory, depths: vec![0; lanes], ceiling: 0 }
    }

    /// Returns the memory, for another stack.
    pub(crate) fn into_memory(self) -> CountedVec<u64> {
        self.words
    }

    /// Returns the number of elements of each lane.
    pub(crate) fn depths(&self) -> &[u32] {
        &self.depths
    }

    pub(crate) fn depths_mut(&mut self) -> &mut [u32] {
        &mut self.depths
    }

    /// Returns the memory.
    pub(crate) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words[..])
    }

    /// Returns the memory and the depths.
    pub(crate) fn parts_mut(&mut self) -> (&[u8], &mut [u32]) {
        (bytemuck::cast_slice(&self.words[..]), &mut self.depths)
    }

    /// Makes room for one more element of each lane, unless the stack would take more than `limit`
    /// bytes. `depth` is the number of elements of a lane for which stacks like this one needed
    /// memory before. Adds the new bytes to `reserved`.
    pub(crate) fn reserve_one(
        &mut self,
        depth: &AtomicUsize,
        limit: usize,
        reserved: &AtomicUsize,
    ) -> Result<LaneStackParts<'_>, NoMemory> {
        let row = self.lanes * self.size;
        if (self.ceiling + 1) * row > 8 * self.words.len() {
            let deepest = self.depths.iter().copied().max().unwrap_or(0) as usize;
            self.ceiling = deepest;
            // A lane of an earlier block may have had far more elements than others.
            let before = depth.load(Ordering::Relaxed).min(MAX_IN_ADVANCE / row.max(1));
            let needed = (deepest + 1).max(before);
            if needed * row > limit {
                return Err(NoMemory { bytes: needed * row });
            }
            let present = self.words.len();
            if needed * row > 8 * present {
                self.words.grow((needed * row).div_ceil(8))?;
                reserved.fetch_add(8 * (self.words.len() - present), Ordering::Relaxed);
            }
            depth.fetch_max(needed, Ordering::Relaxed);
        }
        self.ceiling += 1;
        Ok(LaneStackParts { bytes: bytemuck::cast_slice_mut(&mut self.words[..]), depths: &mut self.depths })
    }

    /// Appends the elements of a lane, from the first.
    fn append_to(&self, lane: usize, to: &mut Vec<u8>) {
        for d in 0..self.depths[lane] as usize {
            to.extend_from_slice(element(&self.words, self.size, d * self.lanes + lane));
        }
    }
}

/// The elements that all iterations of a loop pushed to a stack.
#[derive(Debug)]
pub(crate) struct LaneSegments {
    /// The iterations, in the order of the lanes of the blocks.
    pub(crate) n: usize,
    /// Whether the last iteration has the first lane.
    pub(crate) is_reversed: bool,
    pub(crate) blocks: Vec<LaneStack>,
}

impl LaneSegments {
    /// Returns the number of lanes of a block.
    pub(crate) fn lanes(&self) -> usize {
        self.blocks.first().map_or(0, |block| block.lanes)
    }

    /// Returns whether no iteration pushed an element.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.iter().all(|block| block.depths.iter().all(|&depth| depth == 0))
    }

    /// Returns the elements in the order in which the iterations would have pushed them one after
    /// the other.
    pub(crate) fn in_order(&self) -> Result<CountedVec<u8>, NoMemory> {
        let lanes = self.lanes();
        let elements = self.blocks.iter().flat_map(|block| &block.depths).map(|&depth| depth as usize).sum::<usize>();
        let bytes = elements * self.blocks.first().map_or(0, |block| block.size);
        let mut all = CountedVec::default();
        all.make_room(bytes, 1)?;
        for j in 0..self.n {
            let k = if self.is_reversed { self.n - 1 - j } else { j };
            self.blocks[k / lanes].append_to(k % lanes, &mut all);
        }
        Ok(all)
    }
}
