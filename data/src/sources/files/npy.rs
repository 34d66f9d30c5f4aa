//! Files of NumPy's format `npy`: one array.
//!
//! The format is that of `numpy/lib/format.py`, versions 1 to 3.

use super::read_all;
use crate::DataFile;
use anabranch_dsl::{Array, Diagnostic, Element, Result, f16};
use std::io::Write;
use std::path::Path;

/// Reads an array that `numpy.save` wrote, in either order of the axes in memory. Files whose names
/// end with `.gz` are decompressed.
///
/// # Errors
/// Returns an error if the file cannot be read, is damaged, or has elements of another type, such
/// as Python objects.
pub fn read<T: NpyElement>(file: impl Into<DataFile>) -> Result<Array<T>> {
    let file = file.into();
    decode(&read_all(&file)?).map_err(|what| file.broken("the head", what))
}

/// Decodes the bytes of a file, or says what is wrong with them.
pub(super) fn decode<T: NpyElement>(bytes: &[u8]) -> Result<Array<T>, String> {
    let Head { descr, fortran_order, shape, data } = Head::parse(bytes)?;
    let (order, code) = descr.split_at_checked(1).unwrap_or(("", descr));
    let is_big = order == ">";
    if code != T::CODE || !["<", ">", "|", "="].contains(&order) {
        return Err(format!("the elements are `{descr}`, not {}", T::DTYPE.name()));
    }
    let size = T::DTYPE.size();
    let n = shape.iter().try_fold(size, |n, &extent| n.checked_mul(extent));
    if n != Some(data.len()) {
        return Err(format!("an array of the shape {shape:?} does not have the {} bytes behind the head", data.len()));
    }
    let mut elements = Vec::with_capacity(data.len() / size);
    let mut element = [0; 8];
    for bytes in data.chunks_exact(size) {
        let element = &mut element[..size];
        element.copy_from_slice(bytes);
        if is_big {
            element.reverse();
        }
        elements.push(T::of_le_bytes(element));
    }
    if fortran_order {
        elements = row_major(&elements, &shape);
    }
    Array::try_new(shape, elements).map_err(|error| error.message)
}

/// Writes an array as `numpy.save` does.
///
/// # Errors
/// Returns an error if the file cannot be written.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("anabranch-npy-{}.npy", std::process::id()));
/// use anabranch::{Array, data::npy};
///
/// let array = Array::new([2, 2], vec![1.0_f32, 2.0, 3.0, 4.0]);
/// npy::write(&path, &array)?;
/// assert_eq!(npy::read::<f32>(&path)?, array);
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub fn write<T: NpyElement>(path: impl AsRef<Path>, array: &Array<T>) -> Result<()> {
    let path = path.as_ref();
    let order = if T::DTYPE.size() == 1 { "|" } else { "<" };
    let extents = match array.shape() {
        [extent] => format!("{extent},"),
        shape => shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    };
    let mut head = format!("{{'descr': '{order}{}', 'fortran_order': False, 'shape': ({extents}), }}", T::CODE);
    // As in NumPy, a first extent of 21 digits would fit, and the elements begin at a multiple of
    // 64 bytes, after one space or more.
    let room = array.shape().first().map_or(0, |extent| 21_usize.saturating_sub(extent.to_string().len()));
    let padding = room + 64 - (11 + head.len() + room) % 64;
    head.extend(std::iter::repeat_n(' ', padding).chain(['\n']));
    let mut bytes = Vec::with_capacity(10 + head.len() + array.len() * T::DTYPE.size());
    bytes.extend(MAGIC);
    bytes.extend([1, 0]);
    let length = u16::try_from(head.len())
        .map_err(|_| DataFile::from(path).broken("the head", "the array has too many axes"))?;
    bytes.extend(length.to_le_bytes());
    bytes.extend(head.as_bytes());
    array.iter().for_each(|&x| x.push_le_bytes(&mut bytes));
    let write = || std::fs::File::create(path)?.write_all(&bytes);
    let cannot_write = |error| Diagnostic::new(format!("`{}` cannot be written: {error}", path.display()));
    write().map_err(cannot_write)
}

const MAGIC: &[u8] = b"\x93NUMPY";

struct Head<'a> {
    descr: &'a str,
    fortran_order: bool,
    shape: Vec<usize>,
    data: &'a [u8],
}

impl<'a> Head<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Head<'a>, String> {
        let no_npy = "this is no file of the format `npy`";
        let rest = bytes.strip_prefix(MAGIC).ok_or(no_npy)?;
        let (&[version, _], rest) = rest.split_first_chunk::<2>().ok_or(no_npy)?;
        let cut = "the file ends in the head";
        let (length, rest) = match version {
            1 => {
                let (length, rest) = rest.split_first_chunk::<2>().ok_or(cut)?;
                (usize::from(u16::from_le_bytes(*length)), rest)
            }
            2 | 3 => {
                let (length, rest) = rest.split_first_chunk::<4>().ok_or(cut)?;
                (u32::from_le_bytes(*length) as usize, rest)
            }
            _ => return Err(format!("the format has version {version}, and 1 to 3 are known")),
        };
        let (head, data) = rest.split_at_checked(length).ok_or(cut)?;
        let head = std::str::from_utf8(head).map_err(|_| "the head is not text")?;
        let descr = text_of(head, "descr")?;
        let descr = descr.strip_prefix(['\'', '"']).and_then(|d| d.split(['\'', '"']).next());
        let descr = descr.ok_or("the elements have several fields, or are objects")?;
        let fortran_order = text_of(head, "fortran_order")?.starts_with("True");
        let shape = text_of(head, "shape")?.strip_prefix('(').and_then(|s| s.split_once(')'));
        let (shape, _) = shape.ok_or("the shape is not in parentheses")?;
        let extents = shape.split(',').map(str::trim).filter(|extent| !extent.is_empty());
        let shape = extents.map(|extent| extent.parse().map_err(|_| format!("the extent `{extent}` is no number")));
        Ok(Head { descr, fortran_order, shape: shape.collect::<Result<_, String>>()?, data })
    }
}

/// Returns the text of the head behind a key.
fn text_of<'a>(head: &'a str, key: &str) -> Result<&'a str, String> {
    let missing = || format!("the head has no `{key}`");
    let at = head.find(&format!("'{key}'")).ok_or_else(missing)?;
    let (_, value) = head[at..].split_once(':').ok_or_else(missing)?;
    Ok(value.trim_start())
}

/// Returns elements whose first axis varies fastest with the last axis varying fastest.
fn row_major<T: Copy>(elements: &[T], shape: &[usize]) -> Vec<T> {
    let strides: Vec<usize> = shape
        .iter()
        .scan(1, |stride, &extent| {
            let this = *stride;
            *stride *= extent;
            Some(this)
        })
        .collect();
    let mut index = vec![0; shape.len()];
    let mut result = Vec::with_capacity(elements.len());
    for _ in 0..elements.len() {
        result.push(elements[index.iter().zip(&strides).map(|(i, stride)| i * stride).sum::<usize>()]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    result
}

/// Elements of `npy` files: all element types but `bf16`, which NumPy does not have.
pub trait NpyElement: Element + Copy {
    /// NumPy's name of the type, without the order of bytes.
    #[doc(hidden)]
    const CODE: &'static str;
    #[doc(hidden)]
    fn of_le_bytes(bytes: &[u8]) -> Self;
    #[doc(hidden)]
    fn push_le_bytes(self, bytes: &mut Vec<u8>);
}

macro_rules! elements {
    ($($t:ty: $code:literal),*) => {$(
        impl NpyElement for $t {
            const CODE: &'static str = $code;
            fn of_le_bytes(bytes: &[u8]) -> $t {
                <$t>::from_le_bytes(bytes.try_into().expect("the bytes of one element"))
            }
            fn push_le_bytes(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }
        }
    )*};
}
elements! { f32: "f4", f64: "f8", f16: "f2", i32: "i4", i64: "i8", u32: "u4", u8: "u1" }

impl NpyElement for bool {
    const CODE: &'static str = "b1";
    fn of_le_bytes(bytes: &[u8]) -> bool {
        bytes != [0]
    }
    fn push_le_bytes(self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self));
    }
}
