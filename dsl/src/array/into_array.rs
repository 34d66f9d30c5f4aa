//! Values of the host as arrays.

use super::Array;
use crate::{Bytes, Element};

/// A host value that can become an [`Array`]: a scalar, slice, vector, nested array, or an array
/// itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a value for a tensor with elements of type `{T}`",
    label = "expected elements of type `{T}`",
    note = "pass an element, a slice, a `Vec`, an `Array` or nested arrays of elements of type `{T}`",
    note = "of rows in a `Vec<Vec<_>>`, make an `Array`: `Array::new([rows.len(), n], rows.concat())`",
    note = "a literal must have that type: `2` for integers, `2.0` for floats, `true` for `bool`, `\"text\"` for \
            strings"
)]
pub trait IntoArray<T: Element> {
    /// Converts the value to an array.
    fn into_array(self) -> Array<T>;
}

impl<T: Element> IntoArray<T> for T {
    fn into_array(self) -> Array<T> {
        Array::new(vec![], vec![self])
    }
}
impl<T: Element> IntoArray<T> for &T {
    fn into_array(self) -> Array<T> {
        Array::new(vec![], vec![self.clone()])
    }
}
impl<T: Element> IntoArray<T> for Array<T> {
    fn into_array(self) -> Array<T> {
        self
    }
}
impl<T: Element> IntoArray<T> for &Array<T> {
    fn into_array(self) -> Array<T> {
        self.clone()
    }
}
impl<T: Element> IntoArray<T> for &[T] {
    fn into_array(self) -> Array<T> {
        Array::new(vec![self.len()], self.to_vec())
    }
}
impl<T: Element> IntoArray<T> for Vec<T> {
    fn into_array(self) -> Array<T> {
        Array::new(vec![self.len()], self)
    }
}
impl<T: Element> IntoArray<T> for &Vec<T> {
    fn into_array(self) -> Array<T> {
        self.as_slice().into_array()
    }
}
impl<T: Element, const N: usize> IntoArray<T> for [T; N] {
    fn into_array(self) -> Array<T> {
        self.as_slice().into_array()
    }
}
impl<T: Element, const N: usize> IntoArray<T> for &[T; N] {
    fn into_array(self) -> Array<T> {
        self.as_slice().into_array()
    }
}
impl<T: Element, const N: usize, const M: usize> IntoArray<T> for [[T; N]; M] {
    fn into_array(self) -> Array<T> {
        Array::new(vec![M, N], self.as_flattened().to_vec())
    }
}
impl<T: Element, const N: usize, const M: usize> IntoArray<T> for &[[T; N]; M] {
    fn into_array(self) -> Array<T> {
        Array::new(vec![M, N], self.as_flattened().to_vec())
    }
}
impl<T: Element, const N: usize> IntoArray<T> for &[[T; N]] {
    fn into_array(self) -> Array<T> {
        Array::new(vec![self.len(), N], self.as_flattened().to_vec())
    }
}
impl<T: Element, const N: usize> IntoArray<T> for &Vec<[T; N]> {
    fn into_array(self) -> Array<T> {
        self.as_slice().into_array()
    }
}
impl<T: Element, const N: usize> IntoArray<T> for Vec<[T; N]> {
    fn into_array(self) -> Array<T> {
        self.as_slice().into_array()
    }
}
impl<T: Element, const N: usize, const M: usize, const L: usize> IntoArray<T> for [[[T; N]; M]; L] {
    fn into_array(self) -> Array<T> {
        Array::new(vec![L, M, N], self.as_flattened().as_flattened().to_vec())
    }
}

macro_rules! arrays_from {
    ($([$($generic:tt)*] $from:ty;)*) => {$(
        impl<T: Element, $($generic)*> From<$from> for Array<T> {
            fn from(value: $from) -> Array<T> {
                value.into_array()
            }
        }
    )*};
}
arrays_from! {
    [] T;
    [] Vec<T>;
    [] &[T];
    [const N: usize] [T; N];
    [const N: usize] Vec<[T; N]>;
    [const N: usize, const M: usize] [[T; N]; M];
    [const N: usize, const M: usize, const L: usize] [[[T; N]; M]; L];
}

/// Text becomes strings of its bytes.
macro_rules! strings_into_array {
    ($($string:ty)*) => {$(
        impl IntoArray<Bytes> for $string {
            fn into_array(self) -> Array<Bytes> {
                Bytes::from(self).into_array()
            }
        }
        impl IntoArray<Bytes> for &[$string] {
            fn into_array(self) -> Array<Bytes> {
                self.iter().cloned().map(Bytes::from).collect::<Vec<_>>().into_array()
            }
        }
        impl IntoArray<Bytes> for Vec<$string> {
            fn into_array(self) -> Array<Bytes> {
                self.as_slice().into_array()
            }
        }
        impl IntoArray<Bytes> for &Vec<$string> {
            fn into_array(self) -> Array<Bytes> {
                self.as_slice().into_array()
            }
        }
        impl<const N: usize> IntoArray<Bytes> for [$string; N] {
            fn into_array(self) -> Array<Bytes> {
                self.as_slice().into_array()
            }
        }
        impl<const N: usize, const M: usize> IntoArray<Bytes> for [[$string; N]; M] {
            fn into_array(self) -> Array<Bytes> {
                self.as_flattened().into_array().reshape([M, N])
            }
        }
    )*};
}
strings_into_array!(&str String);
