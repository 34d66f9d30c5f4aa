//! The memory of bodies that are being received.

use bytemuck::Pod;
use std::collections::TryReserveError;

/// Memory of bytes that can become a vector of elements without a copy.
#[derive(Debug, PartialEq)]
pub(crate) enum BodyBuffer {
    Of1(Vec<u8>),
    Of2(Vec<u16>),
    Of4(Vec<u32>),
    Of8(Vec<u64>),
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
            2 if bytes.is_multiple_of(2) => reserved(bytes).map(BodyBuffer::Of2),
            4 if bytes.is_multiple_of(4) => reserved(bytes).map(BodyBuffer::Of4),
            8 if bytes.is_multiple_of(8) => reserved(bytes).map(BodyBuffer::Of8),
            _ => reserved(bytes).map(BodyBuffer::Of1),
        };
        memory.map_err(|_| fails())
    }

    /// Appends zeros up to `len` bytes, a multiple of the size of an element. Longer memory stays
    /// as it is.
    pub(crate) fn grow_to(&mut self, len: usize) {
        fn grow<T: Pod>(memory: &mut Vec<T>, len: usize) {
            let len = len / size_of::<T>();
            if len > memory.len() {
                memory.resize(len, T::zeroed());
            }
        }
        match self {
            BodyBuffer::Of1(memory) => grow(memory, len),
            BodyBuffer::Of2(memory) => grow(memory, len),
            BodyBuffer::Of4(memory) => grow(memory, len),
            BodyBuffer::Of8(memory) => grow(memory, len),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            BodyBuffer::Of1(memory) => memory,
            BodyBuffer::Of2(memory) => bytemuck::cast_slice(memory),
            BodyBuffer::Of4(memory) => bytemuck::cast_slice(memory),
            BodyBuffer::Of8(memory) => bytemuck::cast_slice(memory),
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            BodyBuffer::Of1(memory) => memory,
            BodyBuffer::Of2(memory) => bytemuck::cast_slice_mut(memory),
            BodyBuffer::Of4(memory) => bytemuck::cast_slice_mut(memory),
            BodyBuffer::Of8(memory) => bytemuck::cast_slice_mut(memory),
        }
    }

    /// Returns the memory as elements. It is copied if it was taken for elements of another size.
    /// The number of bytes is a multiple of the size of an element.
    pub(crate) fn into_elements<T: Pod>(self) -> Vec<T> {
        let cast = match self {
            BodyBuffer::Of1(memory) => bytemuck::try_cast_vec(memory).map_err(|(_, memory)| BodyBuffer::Of1(memory)),
            BodyBuffer::Of2(memory) => bytemuck::try_cast_vec(memory).map_err(|(_, memory)| BodyBuffer::Of2(memory)),
            BodyBuffer::Of4(memory) => bytemuck::try_cast_vec(memory).map_err(|(_, memory)| BodyBuffer::Of4(memory)),
            BodyBuffer::Of8(memory) => bytemuck::try_cast_vec(memory).map_err(|(_, memory)| BodyBuffer::Of8(memory)),
        };
        cast.unwrap_or_else(|other| {
            let bytes = other.bytes();
            let mut elements = vec![T::zeroed(); bytes.len() / size_of::<T>()];
            bytemuck::cast_slice_mut(&mut elements).copy_from_slice(bytes);
            elements
        })
    }
}

impl From<Vec<u8>> for BodyBuffer {
    fn from(bytes: Vec<u8>) -> BodyBuffer {
        BodyBuffer::Of1(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_bodies_becomes_elements_without_a_copy() {
        let mut body = BodyBuffer::with_capacity(8, 4).unwrap();
        body.grow_to(4);
        body.grow_to(8);
        body.grow_to(4);
        body.bytes_mut().copy_from_slice(bytemuck::cast_slice(&[1.0f32, 2.0]));
        let before = body.bytes().as_ptr();
        let elements: Vec<f32> = body.into_elements();
        assert_eq!((elements.as_ptr().cast(), &elements[..]), (before, &[1.0, 2.0][..]));
        // Memory of bytes is copied, and a wrong size of elements does no harm.
        let bytes: Vec<u8> = bytemuck::cast_slice(&[3.0f64]).to_vec();
        assert_eq!(BodyBuffer::from(bytes).into_elements::<f64>(), [3.0]);
        let mut odd = BodyBuffer::with_capacity(7, 4).unwrap();
        odd.grow_to(7);
        assert_eq!(odd, BodyBuffer::Of1(vec![0; 7]));
        assert!(BodyBuffer::with_capacity(u64::MAX, 1).is_err());
    }
}
