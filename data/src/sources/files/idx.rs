//! IDX files, the format of MNIST: one array of numbers in big-endian order.
//!
//! The format is described by LeCun, Cortes and Burges on the page of the MNIST database.

use super::read_all;
use crate::DataFile;
use anabranch_dsl::{Array, Diagnostic, Element, Result};
use std::io::Write;

/// Reads an array of `u8`, `i32`, `f32` or `f64` from an IDX file. Files whose names end with `.gz`
/// are decompressed.
///
/// # Errors
/// Returns an error if the file cannot be read, is damaged, or has elements of another type.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("anabranch-idx-{}", std::process::id()));
/// # std::fs::write(&path, [0, 0, 8, 1, 0, 0, 0, 2, 7, 9]).unwrap();
/// let labels = anabranch::data::idx::read::<u8>(&path)?;
/// assert_eq!(labels.to_vec(), [7, 9]);
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub fn read<T: IdxElement>(file: impl Into<DataFile>) -> Result<Array<T>> {
    let file = file.into();
    let bytes = read_all(&file)?;
    let wrong = |what: String| -> Diagnostic { file.broken("the head", what) };
    let Some((&[0, 0, ty, rank], mut rest)) = bytes.split_first_chunk::<4>() else {
        return Err(wrong("an IDX file begins with two zeros, the element type and the number of axes".to_owned()));
    };
    if ty != T::CODE {
        let name = TYPES.iter().find(|(code, _)| *code == ty).map_or("unknown", |(_, name)| name);
        return Err(wrong(format!("the elements are {name} (type {ty:#04x}), not {}", T::DTYPE.name())));
    }
    let mut shape = Vec::new();
    for axis in 0..rank {
        let Some((extent, behind)) = rest.split_first_chunk::<4>() else {
            return Err(wrong(format!("the file ends before the extent of axis {axis}")));
        };
        shape.push(u32::from_be_bytes(*extent) as usize);
        rest = behind;
    }
    let size = T::DTYPE.size();
    let n = shape.iter().try_fold(size, |n, &extent| n.checked_mul(extent));
    if n != Some(rest.len()) {
        let message = format!("an array of the shape {shape:?} does not have the {} bytes behind the head", rest.len());
        return Err(wrong(message));
    }
    Array::try_new(shape, rest.chunks_exact(size).map(T::of_bytes).collect())
}

/// Writes an array as an IDX file.
///
/// # Errors
/// Returns the error of the writer, and an error of the kind `InvalidInput` if the array has more
/// than 255 axes or an extent that does not fit in 32 bits.
///
/// ```
/// use anabranch::Array;
/// use anabranch::data::idx;
///
/// let mut bytes = Vec::new();
/// idx::write(&mut bytes, &Array::new([1, 2], vec![7_u8, 9])).unwrap();
/// assert_eq!(bytes, [0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 2, 7, 9]);
/// ```
pub fn write<T: IdxElement>(to: &mut impl Write, array: &Array<T>) -> std::io::Result<()> {
    let invalid = |_| std::io::Error::new(std::io::ErrorKind::InvalidInput, "the shape does not fit in an IDX file");
    let mut bytes = vec![0, 0, T::CODE, u8::try_from(array.rank()).map_err(invalid)?];
    for &extent in array.shape() {
        bytes.extend(u32::try_from(extent).map_err(invalid)?.to_be_bytes());
    }
    array.iter().for_each(|x| x.push_bytes(&mut bytes));
    to.write_all(&bytes)
}

/// Elements of IDX files.
pub trait IdxElement: Element + Copy {
    /// The type in the head of a file.
    #[doc(hidden)]
    const CODE: u8;
    #[doc(hidden)]
    fn of_bytes(bytes: &[u8]) -> Self;
    #[doc(hidden)]
    fn push_bytes(self, to: &mut Vec<u8>);
}

const TYPES: [(u8, &str); 6] = [(0x08, "u8"), (0x09, "i8"), (0x0b, "i16"), (0x0c, "i32"), (0x0d, "f32"), (0x0e, "f64")];

macro_rules! elements {
    ($($t:ty: $code:literal),*) => {$(
        impl IdxElement for $t {
            const CODE: u8 = $code;
            fn of_bytes(bytes: &[u8]) -> $t {
                <$t>::from_be_bytes(bytes.try_into().expect("the bytes of one element"))
            }
            fn push_bytes(self, to: &mut Vec<u8>) {
                to.extend(self.to_be_bytes());
            }
        }
    )*};
}
elements! { u8: 0x08, i32: 0x0c, f32: 0x0d, f64: 0x0e }
