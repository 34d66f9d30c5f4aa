//! The memory of bodies that are being received.

use bytemuck::Pod;

/// Memory of bytes that can become a vector of elements without a copy.
#[derive(Debug, PartialEq)]
pub(crate) enum BodyBuffer {
    Of1(Vec<u8>),
    Of2(Vec<u16>),
    Of4(Vec<u32>),
    Of8(Vec<u64>),
}

impl BodyBuffer {
    /// Returns zeroed memory of `len` bytes for elements of `element` bytes, or an error if the
    /// system has none.
    pub(crate) fn zeroed(len: u64, element: usize) -> Result<BodyBuffer, String> {
        let fails = || format!("this node has no memory for a body of {len} bytes");
        let len = usize::try_from(len).map_err(|_| fails())?;
        // `vec!` would abort. It has zeroed pages from the system, which `resize` would write.
        Vec::<u8>::new().try_reserve_exact(len).map_err(|_| fails())?;
        Ok(match element {
            2 if len.is_multiple_of(2) => BodyBuffer::Of2(vec![0; len / 2]),
            4 if len.is_multiple_of(4) => BodyBuffer::Of4(vec![0; len / 4]),
            8 if len.is_multiple_of(8) => BodyBuffer::Of8(vec![0; len / 8]),
            _ => BodyBuffer::Of1(vec![0; len]),
        })
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
        let mut body = BodyBuffer::zeroed(8, 4).unwrap();
        body.bytes_mut().copy_from_slice(bytemuck::cast_slice(&[1.0f32, 2.0]));
        let before = body.bytes().as_ptr();
        let elements: Vec<f32> = body.into_elements();
        assert_eq!((elements.as_ptr().cast(), &elements[..]), (before, &[1.0, 2.0][..]));
        // Memory of bytes is copied, and a wrong size of elements does no harm.
        let bytes: Vec<u8> = bytemuck::cast_slice(&[3.0f64]).to_vec();
        assert_eq!(BodyBuffer::from(bytes).into_elements::<f64>(), [3.0]);
        assert_eq!(BodyBuffer::zeroed(7, 4), Ok(BodyBuffer::Of1(vec![0; 7])));
        assert!(BodyBuffer::zeroed(u64::MAX, 1).is_err());
    }
}
