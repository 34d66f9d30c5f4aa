//! Additions to elements of a tensor, which are recorded until all iterations have ended.

use super::program::AddedTensor;
use super::rows::{by_size, register};
use anabranch_dsl::DType;

/// The additions of a block to one tensor, in the order of the instructions.
#[derive(Clone, Debug, Default)]
pub(super) struct AdditionLog {
    records: Vec<AdditionRecord>,
    places: Vec<u32>,
    numbers: Vec<u8>,
    active: Vec<u8>,
    /// The lanes of the records of lanes that have moved.
    lanes: Vec<u16>,
}

/// One instruction, which adds a number for each active lane.
#[derive(Clone, Copy, Debug)]
struct AdditionRecord {
    /// Number of lanes, active or not.
    n: usize,
    has_moved: bool,
}

impl AdditionLog {
    /// Records an instruction. Returns the number of bytes that it takes.
    pub(super) fn record(
        &mut self,
        places: impl ExactSizeIterator<Item = u32>,
        numbers: &[u8],
        active: &[u8],
        lanes: Option<&[u16]>,
    ) -> usize {
        let n = places.len();
        self.records.push(AdditionRecord { n, has_moved: lanes.is_some() });
        self.places.extend(places);
        self.numbers.extend_from_slice(numbers);
        self.active.extend_from_slice(active);
        self.lanes.extend_from_slice(lanes.unwrap_or(&[]));
        n * (size_of::<u32>() + size_of::<u8>()) + numbers.len() + size_of_val(lanes.unwrap_or(&[]))
    }

    /// Forgets all records, but keeps their memory.
    fn clear(&mut self) {
        let AdditionLog { records, places, numbers, active, lanes } = self;
        records.clear();
        places.clear();
        numbers.clear();
        active.clear();
        lanes.clear();
    }

    /// Calls a function for each number of an active lane, in the order of the instructions, with
    /// the lane and the place of the number in the log.
    fn each(&self, mut f: impl FnMut(usize, usize)) {
        let (mut start, mut moved) = (0, 0);
        for &AdditionRecord { n, has_moved } in &self.records {
            let active = &self.active[start..][..n];
            if has_moved {
                let lanes = &self.lanes[moved..][..n];
                let active = active.iter().zip(lanes).enumerate().filter(|(_, (active, _))| **active != 0);
                active.for_each(|(i, (_, &lane))| f(usize::from(lane), start + i));
                moved += n;
            } else {
                let active = active.iter().enumerate().filter(|(_, active)| **active != 0);
                active.for_each(|(lane, _)| f(lane, start + lane));
            }
            start += n;
        }
    }

    /// Returns the additions of the iterations one after the other, and clears the log. The first
    /// of `n` lanes has the last iteration if `is_reversed`.
    pub(super) fn in_order(&mut self, size: usize, n: usize, is_reversed: bool) -> OrderedAdditions {
        let mut ends = vec![0; n];
        self.each(|lane, _| ends[lane] += 1);
        let mut all = 0;
        let mut add_up = |end: &mut usize| all += std::mem::replace(end, all);
        match is_reversed {
            true => ends.iter_mut().rev().for_each(&mut add_up),
            false => ends.iter_mut().for_each(&mut add_up),
        }
        let mut ordered = OrderedAdditions { places: vec![0; all], numbers: vec![0; all * size] };
        by_size!(size, T => {
            const SIZE: usize = size_of::<T>();
            self.each(|lane, i| {
                let end = &mut ends[lane];
                ordered.places[*end] = self.places[i];
                ordered.numbers[*end * SIZE..][..SIZE].copy_from_slice(&self.numbers[i * SIZE..][..SIZE]);
                *end += 1;
            });
        });
        self.clear();
        ordered
    }
}

/// The additions of a block to one tensor, in the order of the iterations.
#[derive(Clone, Debug)]
pub(super) struct OrderedAdditions {
    places: Vec<u32>,
    numbers: Vec<u8>,
}

impl OrderedAdditions {
    /// Returns the number of bytes that they take.
    pub(super) fn n_bytes(&self) -> usize {
        size_of_val(&self.places[..]) + self.numbers.len()
    }

    /// Adds them to the elements of a tensor.
    pub(super) fn add_to(&self, tensor: &mut [u8], AddedTensor { dtype, add, .. }: AddedTensor) {
        match dtype {
            DType::F32 => self.add_floats::<f32>(tensor),
            DType::F64 => self.add_floats::<f64>(tensor),
            _ => {
                let size = dtype.size();
                for (i, &place) in self.places.iter().enumerate() {
                    let element = &mut tensor[place as usize * size..][..size];
                    let sum = add(register(element, size, 0), register(&self.numbers, size, i));
                    element.copy_from_slice(&sum.to_ne_bytes()[..size]);
                }
            }
        }
    }

    fn add_floats<T: bytemuck::Pod + std::ops::AddAssign>(&self, tensor: &mut [u8]) {
        let tensor: &mut [T] = bytemuck::cast_slice_mut(tensor);
        for (&place, number) in self.places.iter().zip(self.numbers.chunks_exact(size_of::<T>())) {
            tensor[place as usize] += bytemuck::pod_read_unaligned(number);
        }
    }
}
