//! The memory of bodies that are being received.

use bytemuck::Pod;
use std::collections::TryReserveError;

/// Memory of bytes that can become a vector of elements without a copy.
///
/// Invariant: the first `filled` bytes of the memory are initialized, and its length is the number
/// of whole elements among them. So nothing is cleared before it is written.
#[derive(Debug)]
pub(crate) struct BodyBuffer {
    memory: BodyMemory,
    filled: usize,
}

/// The memory, by the size of its elements.
#[derive(Debug)]
enum BodyMemory {
    Of1(Vec<u8>),
    Of2(Vec<u16>),
    Of4(Vec<u32>),
    Of8(Vec<u64>),
}

/// Runs code on the vector, whatever its elements.
macro_rules! with_memory {
    ($body:expr, $memory:ident => $result:expr) => {
        match $body {
            BodyMemory::Of1($memory) => $result,
            BodyMemory::Of2($memory) => $result,
            BodyMemory::Of4($memory) => $result,
            BodyMemory::Of8($memory) => $result,
        }
    };
}

impl BodyBuffer {
    /// Returns empty memory that can grow to `len` bytes, for elements of `element` bytes, or an
    /// error if the system has none.
    pub(crate) fn with_capacity(len: u64, element: usize) -> Result<BodyBuffer, String> {
        fn reserved<T>(len: usize) -> Result<Vec<T>, TryReserveError> {
            let mut memory = Vec::new();
            memory.try_reserve_exact(len / size_of::<T>())?;
            Ok(memory)
        }
        let fails = || format!("this node has no memory for a body of {len} bytes");
        let bytes = usize::try_from(len).map_err(|_| fails())?;
        let memory = match element {
            2 if bytes.is_multiple_of(2) => reserved(bytes).map(BodyMemory::Of2),
            4 if bytes.is_multiple_of(4) => reserved(bytes).map(BodyMemory::Of4),
            8 if bytes.is_multiple_of(8) => reserved(bytes).map(BodyMemory::Of8),
            _ => reserved(bytes).map(BodyMemory::Of1),
        };
        Ok(BodyBuffer { memory: memory.map_err(|_| fails())?, filled: 0 })
    }

    /// Writes bytes `at` bytes after the start. Memory before them that was never written becomes
    /// zeros.
    ///
    /// # Panics
    /// Panics if the memory has no room for them.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        fn write<T: Pod>(memory: &mut Vec<T>, filled: &mut usize, at: usize, bytes: &[u8]) {
            let end = at.checked_add(bytes.len()).filter(|&end| end <= memory.capacity() * size_of::<T>());
            let end = end.expect("the memory has room for the bytes");
            let start = memory.as_mut_ptr().cast::<u8>();
            // SAFETY: `end` and `filled` are at most the capacity of the vector in bytes. So all
            // that is written is within its allocation. `bytes` is not, as the vector is borrowed
            // mutably.
            unsafe {
                if at > *filled {
                    start.add(*filled).write_bytes(0, at - *filled);
                }
                start.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            *filled = end.max(*filled);
            // SAFETY: The first `filled` bytes are within the capacity and initialized: those of
            // before as the type promises, those up to `at` just now, and the rest, too. All bits
            // are valid elements, as `T` is `Pod`.
            unsafe { memory.set_len(*filled / size_of::<T>()) };
        }
        let filled = &mut self.filled;
        with_memory!(&mut self.memory, memory => write(memory, filled, at, bytes));
    }

    /// Returns the bytes that were written, without those of an element of which some are missing.
    pub(crate) fn bytes(&self) -> &[u8] {
        with_memory!(&self.memory, memory => bytemuck::cast_slice(memory))
    }

    /// Returns the bytes that were written, like [`bytes`](Self::bytes).
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        with_memory!(&mut self.memory, memory => bytemuck::cast_slice_mut(memory))
    }

    /// Returns the memory as elements. It is copied if it was taken for elements of another size.
    /// The number of bytes is a multiple of the size of an element.
    pub(crate) fn into_elements<T: Pod>(self) -> Vec<T> {
        with_memory!(self.memory, memory => bytemuck::try_cast_vec(memory).unwrap_or_else(|(_, memory)| {
            let bytes: &[u8] = bytemuck::cast_slice(&memory);
            let mut elements = vec![T::zeroed(); bytes.len() / size_of::<T>()];
            bytemuck::cast_slice_mut(&mut elements).copy_from_slice(bytes);
            elements
        }))
    }
}

impl From<Vec<u8>> for BodyBuffer {
    fn from(bytes: Vec<u8>) -> BodyBuffer {
        BodyBuffer { filled: bytes.len(), memory: BodyMemory::Of1(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_bodies_becomes_elements_without_a_copy() {
        let mut body = BodyBuffer::with_capacity(8, 4).unwrap();
        body.write(0, bytemuck::cast_slice(&[1.0f32, 2.0]));
        let before = body.bytes().as_ptr();
        let elements: Vec<f32> = body.into_elements();
        assert_eq!((elements.as_ptr().cast(), &elements[..]), (before, &[1.0, 2.0][..]));
        // Memory of bytes is copied, and a wrong size of elements does no harm.
        let bytes: Vec<u8> = bytemuck::cast_slice(&[3.0f64]).to_vec();
        assert_eq!(BodyBuffer::from(bytes).into_elements::<f64>(), [3.0]);
        let mut odd = BodyBuffer::with_capacity(7, 4).unwrap();
        odd.write(0, &[1; 7]);
        assert_eq!(odd.into_elements::<u8>(), [1; 7]);
        assert!(BodyBuffer::with_capacity(u64::MAX, 1).is_err());
    }

    #[test]
    fn pieces_of_any_length_are_written_in_any_order() {
        let expected: Vec<u8> = (1..=24).collect();
        for element in [1, 2, 4, 8] {
            let mut body = BodyBuffer::with_capacity(24, element).unwrap();
            let mut write = |range: std::ops::Range<usize>| {
                body.write(range.start, &expected[range]);
                body.bytes().len()
            };
            // A part of an element, the rest of it, a gap, and what belongs there.
            let lens = [write(0..3), write(3..9), write(16..21), write(9..15), write(15..16), write(21..24)];
            assert_eq!(lens, [3, 9, 21, 21, 21, 24].map(|len| len / element * element));
            assert_eq!(body.bytes(), expected);
        }
        let mut gap = BodyBuffer::with_capacity(8, 4).unwrap();
        gap.write(7, &[9]);
        assert_eq!(gap.into_elements::<u8>(), [0, 0, 0, 0, 0, 0, 0, 9]);
    }

    #[test]
    #[should_panic(expected = "the memory has room for the bytes")]
    fn bytes_beyond_the_memory_are_not_written() {
        BodyBuffer::with_capacity(8, 4).unwrap().write(1 << 20, &[0]);
    }
}
