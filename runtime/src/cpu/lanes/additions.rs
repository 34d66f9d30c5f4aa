//! Additions to elements of a tensor, which lanes push to stacks until all iterations have ended.

use super::block::{Declined, LoopInputs};
use super::program::AddedTensor;
use super::rows::{by_size, register};
use crate::cpu::memory::segments::LaneStack;
use anabranch_dsl::{DType, memory};
use bytemuck::Pod;
use std::ops::AddAssign;

/// The additions of a block to one tensor, in the order of the iterations.
#[derive(Clone, Debug)]
pub(super) struct OrderedAdditions {
    places: Vec<u32>,
    /// The numbers for each place, one after the other, as bytes with the alignment of all numbers.
    numbers: Vec<u64>,
}

impl OrderedAdditions {
    /// Puts what the lanes of a block have pushed into the order of the iterations.
    pub(super) fn new(
        places: &LaneStack,
        numbers: &LaneStack,
        numbers_per_place: usize,
        inputs: &LoopInputs<'_>,
    ) -> Result<OrderedAdditions, Declined> {
        let (depths, size, per_place) = (places.depths(), numbers.size(), numbers_per_place);
        // Where the additions of each lane begin.
        let mut all = 0;
        let mut starts: Vec<usize> = depths.iter().map(|&depth| depth as usize).collect();
        let mut add_up = |start: &mut usize| all += std::mem::replace(start, all);
        match inputs.shape.is_reversed {
            true => starts.iter_mut().rev().for_each(&mut add_up),
            false => starts.iter_mut().for_each(&mut add_up),
        }
        let held = memory::try_hold(all * (size_of::<u32>() + per_place * size)).map_err(|_| Declined::Loop)?;
        if let (Some(recorded), Some(more)) = (&inputs.recorded, held) {
            recorded.join(more);
        }
        let mut ordered =
            OrderedAdditions { places: vec![0; all], numbers: vec![0; (all * per_place * size).div_ceil(8)] };
        let from: &[u32] = bytemuck::cast_slice(places.bytes());
        for (tile, depths) in depths.chunks(places.tile()).enumerate() {
            let first = tile * places.tile();
            for d in 0..depths.iter().copied().max().unwrap_or(0) {
                let from = &from[places.place(first, d as usize)..][..depths.len()];
                for (lane, (&place, _)) in from.iter().zip(depths).enumerate().filter(|&(_, (_, &depth))| d < depth) {
                    ordered.places[starts[first + lane] + d as usize] = place;
                }
            }
        }
        by_size!(size, T => {
            let to: &mut [T] = bytemuck::cast_slice_mut(&mut ordered.numbers);
            match per_place {
                n if n % 8 == 0 => order::<T, 8>(numbers, (depths, &starts), n, to),
                n if n % 4 == 0 => order::<T, 4>(numbers, (depths, &starts), n, to),
                n => order::<T, 1>(numbers, (depths, &starts), n, to),
            }
        });
        Ok(ordered)
    }

    /// Returns the number of bytes that they take.
    pub(super) fn n_bytes(&self) -> usize {
        size_of_val(&self.places[..]) + size_of_val(&self.numbers[..])
    }

    /// Adds them to the elements of a tensor.
    pub(super) fn add_to(&self, tensor: &mut [u8], added: AddedTensor) {
        let AddedTensor { dtype, add, numbers_per_place: n, .. } = added;
        match dtype {
            DType::F32 => self.add_floats::<f32>(tensor, n),
            DType::F64 => self.add_floats::<f64>(tensor, n),
            _ => {
                let (size, numbers) = (dtype.size(), bytemuck::cast_slice(&self.numbers));
                for (k, &place) in self.places.iter().enumerate() {
                    for (i, element) in tensor[place as usize * size..].chunks_exact_mut(size).take(n).enumerate() {
                        let sum = add(register(element, size, 0), register(numbers, size, k * n + i));
                        element.copy_from_slice(&sum.to_ne_bytes()[..size]);
                    }
                }
            }
        }
    }

    fn add_floats<T: Pod + AddAssign>(&self, tensor: &mut [u8], n: usize) {
        let (tensor, numbers) = (bytemuck::cast_slice_mut(tensor), bytemuck::cast_slice(&self.numbers));
        match n {
            n if n % 8 == 0 => self.add_groups::<T, 8>(tensor, numbers, n / 8),
            n if n % 4 == 0 => self.add_groups::<T, 4>(tensor, numbers, n / 4),
            n => self.add_groups::<T, 1>(tensor, numbers, n),
        }
    }

    /// Adds `n` groups of `K` numbers for each place.
    fn add_groups<T: Pod + AddAssign, const K: usize>(&self, tensor: &mut [T], numbers: &[T], n: usize) {
        let mut groups = numbers.as_chunks::<K>().0.chunks_exact(n);
        for (&place, groups) in self.places.iter().zip(&mut groups) {
            let elements = tensor[place as usize..][..n * K].as_chunks_mut::<K>().0;
            for (elements, group) in elements.iter_mut().zip(groups) {
                (0..K).for_each(|i| elements[i] += group[i]);
            }
        }
    }
}

/// Puts `n` numbers for each place, a multiple of `K`, into their order. The places of a lane are
/// as many as its depth, and begin with that of a number in the result.
fn order<T: Pod, const K: usize>(numbers: &LaneStack, (depths, starts): (&[u32], &[usize]), n: usize, to: &mut [T]) {
    let (from, tile) = (bytemuck::cast_slice::<u8, T>(numbers.bytes()), numbers.tile());
    let to = to.as_chunks_mut::<K>().0;
    for (t, depths) in depths.chunks(tile).enumerate() {
        let first = t * tile;
        for (d, k) in (0..depths.iter().copied().max().unwrap_or(0)).flat_map(|d| (0..n / K).map(move |k| (d, k))) {
            let from = &from[numbers.place(first, d as usize * n + k * K)..];
            let rows: [&[T]; K] = std::array::from_fn(|i| &from[i * tile..][..depths.len()]);
            for (lane, _) in depths.iter().enumerate().filter(|&(_, &depth)| d < depth) {
                to[(starts[first + lane] + d as usize) * (n / K) + k] = rows.map(|row| row[lane]);
            }
        }
    }
}
