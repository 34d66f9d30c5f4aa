//! Additions to elements of a tensor, which lanes push to stacks until all iterations have ended.

use super::block::{Declined, LoopInputs};
use super::program::AddedTensor;
use super::rows::{by_size, register};
use crate::cpu::memory::segments::LaneStack;
use anabranch_dsl::{DType, memory};

/// The additions of a block to one tensor, in the order of the iterations.
#[derive(Clone, Debug)]
pub(super) struct OrderedAdditions {
    places: Vec<u32>,
    numbers: Vec<u8>,
}

impl OrderedAdditions {
    /// Puts what the lanes of a block have pushed into the order of the iterations.
    pub(super) fn new(
        places: &LaneStack,
        numbers: &LaneStack,
        inputs: &LoopInputs<'_>,
    ) -> Result<OrderedAdditions, Declined> {
        let (depths, size) = (places.depths(), numbers.size());
        // Where the additions of each lane begin.
        let mut all = 0;
        let mut starts: Vec<usize> = depths.iter().map(|&depth| depth as usize).collect();
        let mut add_up = |start: &mut usize| all += std::mem::replace(start, all);
        match inputs.shape.is_reversed {
            true => starts.iter_mut().rev().for_each(&mut add_up),
            false => starts.iter_mut().for_each(&mut add_up),
        }
        let held = memory::try_hold(all * (size_of::<u32>() + size)).map_err(|_| Declined::Loop)?;
        if let (Some(recorded), Some(more)) = (&inputs.recorded, held) {
            recorded.join(more);
        }
        let mut ordered = OrderedAdditions { places: vec![0; all], numbers: vec![0; all * size] };
        by_size!(size, T => {
            const SIZE: usize = size_of::<T>();
            let (from, numbers_from): (&[u32], &[T]) =
                (bytemuck::cast_slice(places.bytes()), bytemuck::cast_slice(numbers.bytes()));
            for (tile, depths) in depths.chunks(places.tile()).enumerate() {
                let first = tile * places.tile();
                for d in 0..depths.iter().copied().max().unwrap_or(0) {
                    let at = [places.place(first, d as usize), numbers.place(first, d as usize)];
                    for (lane, _) in depths.iter().enumerate().filter(|&(_, &depth)| d < depth) {
                        let to = starts[first + lane] + d as usize;
                        ordered.places[to] = from[at[0] + lane];
                        let number = bytemuck::bytes_of(&numbers_from[at[1] + lane]);
                        ordered.numbers[to * SIZE..][..SIZE].copy_from_slice(number);
                    }
                }
            }
        });
        Ok(ordered)
    }

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
