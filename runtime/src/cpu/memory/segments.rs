//! The elements that the iterations of a loop in lanes pushed to a stack, as long as they are not
//! needed as one stack.

use super::counted::CountedVec;
use super::stack::NoMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The elements that the lanes of one block pushed, each lane to a stack of its own.
///
/// Lanes are in tiles. Elements of the lanes of a tile with the same depth are beside each other,
/// and those of the next depth follow. A tile is a vector of lanes: while they go through a loop,
/// they push to one region of the memory, and others pop from there backwards.
#[derive(Debug, Default)]
pub(crate) struct LaneStack {
    size: usize,
    lanes: usize,
    /// The number of lanes of a tile.
    tile: usize,
    /// The number of elements of each lane for which there is memory.
    room: usize,
    words: CountedVec<u64>,
    /// The number of elements of each lane, once all lanes have ended.
    depths: Arc<[u32]>,
}

/// The largest number of bytes that a stack reserves before its lanes push so many.
const MAX_IN_ADVANCE: usize = 1 << 20;

impl LaneStack {
    /// Creates an empty stack of elements of `size` bytes for each of `lanes` lanes in tiles, in
    /// memory that may be empty.
    pub(crate) fn new(size: usize, lanes: usize, tile: usize, memory: CountedVec<u64>) -> LaneStack {
        let mut stack = LaneStack { size, lanes, tile, room: 0, words: memory, depths: Arc::default() };
        stack.set_room();
        stack
    }

    /// Returns the memory, for another stack.
    pub(crate) fn into_memory(self) -> CountedVec<u64> {
        self.words
    }

    /// Returns the number of bytes of one element of each lane.
    fn bytes_of_one(&self) -> usize {
        self.lanes.next_multiple_of(self.tile.max(1)) * self.size
    }

    /// Uses all memory. Places of elements have 31 bits.
    fn set_room(&mut self) {
        let fits = (8 * self.words.len()).checked_div(self.bytes_of_one()).unwrap_or(0);
        self.room = fits.min(i32::MAX as usize / self.lanes.next_multiple_of(self.tile).max(1));
    }

    /// Returns the size of an element in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of lanes of a tile.
    pub(crate) fn tile(&self) -> usize {
        self.tile
    }

    /// Returns the number of elements of each lane for which there is memory.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Returns the number of elements of each lane, at most `needed`, for which memory may be
    /// reserved in advance. A lane of an earlier block may have had far more elements than others.
    pub(crate) fn in_advance(&self, needed: usize) -> usize {
        needed.min(MAX_IN_ADVANCE / self.bytes_of_one().max(1))
    }

    /// Returns the place of an element of a lane in the memory.
    pub(crate) fn place(&self, lane: usize, depth: usize) -> usize {
        (lane / self.tile * self.room + depth) * self.tile + lane % self.tile
    }

    /// Returns the memory.
    pub(crate) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words[..])
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words[..])
    }

    /// Returns the number of elements of each lane.
    pub(crate) fn depths(&self) -> &[u32] {
        &self.depths
    }

    /// Sets the number of elements of each lane, after all lanes have ended.
    pub(crate) fn end(&mut self, depths: Arc<[u32]>) {
        assert_eq!(depths.len(), self.lanes, "each lane has a number of elements");
        self.depths = depths;
    }

    /// Makes room for `needed` elements of each lane, unless the stack would take more than `limit`
    /// bytes. The first `used` elements stay. `before` is the room that stacks like this one needed
    /// before. Returns the number of new bytes.
    pub(crate) fn make_room(
        &mut self,
        needed: usize,
        used: usize,
        before: &AtomicUsize,
        limit: usize,
    ) -> Result<usize, NoMemory> {
        let of_one = self.bytes_of_one();
        let ample = needed.max(self.in_advance(before.load(Ordering::Relaxed)));
        let (old_room, present) = (self.room, self.words.len());
        if ample.saturating_mul(of_one) > limit {
            return Err(NoMemory { bytes: ample.saturating_mul(of_one) });
        }
        self.words.grow((ample * of_one).div_ceil(8))?;
        self.set_room();
        if self.room < needed {
            return Err(NoMemory { bytes: needed.saturating_mul(of_one) });
        }
        before.fetch_max(needed, Ordering::Relaxed);
        let (of_row, room) = (self.tile * self.size, self.room);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words[..]);
        for tile in (0..self.lanes.div_ceil(self.tile)).rev() {
            let from = tile * old_room * of_row;
            bytes.copy_within(from..from + used.min(old_room) * of_row, tile * room * of_row);
        }
        Ok(8 * (self.words.len() - present))
    }

    /// Appends the elements of a lane, from the first.
    fn append_to(&self, lane: usize, to: &mut Vec<u8>) {
        for depth in 0..self.depths[lane] as usize {
            to.extend_from_slice(&self.bytes()[self.place(lane, depth) * self.size..][..self.size]);
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
        let elements =
            self.blocks.iter().flat_map(|block| &block.depths[..]).map(|&depth| depth as usize).sum::<usize>();
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
