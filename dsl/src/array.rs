//! Tensors in the memory of the host: constants, inputs, outputs, and what the interpreter computes with.

use crate::format::{Kind, Spec};
use crate::memory::{self, OutOfMemory};
use crate::{DType, Element, TensorType};
use std::fmt;
use std::sync::Arc;

/// Elements of one type, in row-major order.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "one variant per element type")]
pub enum Buffer {
    F32(Vec<f32>),
    F64(Vec<f64>),
    F16(Vec<half::f16>),
    BF16(Vec<half::bf16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    U32(Vec<u32>),
    U8(Vec<u8>),
    Bool(Vec<bool>),
}

/// Runs the same code for the elements of a buffer, whatever their type.
///
/// `match_buffer!(buffer, data => expr)` binds `data` to the `Vec` of the variant.
#[macro_export]
macro_rules! match_buffer {
    ($buffer:expr, $data:ident => $body:expr) => {
        match $buffer {
            $crate::Buffer::F32($data) => $body,
            $crate::Buffer::F64($data) => $body,
            $crate::Buffer::F16($data) => $body,
            $crate::Buffer::BF16($data) => $body,
            $crate::Buffer::I32($data) => $body,
            $crate::Buffer::I64($data) => $body,
            $crate::Buffer::U32($data) => $body,
            $crate::Buffer::U8($data) => $body,
            $crate::Buffer::Bool($data) => $body,
        }
    };
}

/// Runs the same code with a type alias `$t` for the Rust type of a [`DType`].
#[macro_export]
macro_rules! match_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::DType::F64 => {
                type $t = f64;
                $body
            }
            $crate::DType::F16 => {
                type $t = $crate::f16;
                $body
            }
            $crate::DType::BF16 => {
                type $t = $crate::bf16;
                $body
            }
            $crate::DType::I32 => {
                type $t = i32;
                $body
            }
            $crate::DType::I64 => {
                type $t = i64;
                $body
            }
            $crate::DType::U32 => {
                type $t = u32;
                $body
            }
            $crate::DType::U8 => {
                type $t = u8;
                $body
            }
            $crate::DType::Bool => {
                type $t = bool;
                $body
            }
        }
    };
}

impl Buffer {
    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            Buffer::F32(_) => DType::F32,
            Buffer::F64(_) => DType::F64,
            Buffer::F16(_) => DType::F16,
            Buffer::BF16(_) => DType::BF16,
            Buffer::I32(_) => DType::I32,
            Buffer::I64(_) => DType::I64,
            Buffer::U32(_) => DType::U32,
            Buffer::U8(_) => DType::U8,
            Buffer::Bool(_) => DType::Bool,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match_buffer!(self, d => d.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `n` zeros.
    pub fn zeros(dtype: DType, n: usize) -> Buffer {
        match_dtype!(dtype, T => T::into_buffer(vec![T::default(); n]))
    }
}

/// Where the memory of a tensor goes when its last handle is dropped, to be used again: fresh memory is slow.
pub trait Reclaim: Send + Sync {
    /// Takes the memory back. Its elements have no meaning any more.
    fn reclaim(&self, memory: Buffer);
}

/// The elements of a tensor, and where their memory goes.
struct Elements {
    buffer: Buffer,
    home: Option<Arc<dyn Reclaim>>,
}

impl Clone for Elements {
    /// A copy has memory of its own.
    fn clone(&self) -> Elements {
        Elements { buffer: self.buffer.clone(), home: None }
    }
}

impl Drop for Elements {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.reclaim(std::mem::replace(&mut self.buffer, Buffer::U8(Vec::new())));
        }
    }
}

impl fmt::Debug for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.buffer.fmt(f)
    }
}

/// The number of elements of a tensor with these extents; the largest `usize` if it is larger than that.
fn n_elements(extents: &[usize]) -> usize {
    extents.iter().fold(1, |n, &extent| n.saturating_mul(extent))
}

/// A dense tensor in host memory whose element type is known at run time. Cloning shares the elements.
///
/// Equality is equality of bits, so that graphs with constants can be compared: `NaN` equals itself, `0.0` and `-0.0`
/// differ. Results are compared by [`equality`](crate::equality), where all NaNs are equal.
#[derive(Clone, Debug)]
pub struct HostTensor {
    shape: Vec<usize>,
    data: Arc<Elements>,
}

impl HostTensor {
    fn from_parts(shape: Vec<usize>, buffer: Buffer, home: Option<Arc<dyn Reclaim>>) -> HostTensor {
        HostTensor { shape, data: Arc::new(Elements { buffer, home }) }
    }

    /// A tensor from its elements in row-major order.
    ///
    /// # Panics
    /// If the number of elements is not the product of the extents.
    pub fn new<T: Element>(shape: impl Into<Vec<usize>>, data: Vec<T>) -> HostTensor {
        HostTensor::from_buffer(shape.into(), T::into_buffer(data))
    }

    /// A tensor from a buffer.
    ///
    /// # Panics
    /// If the number of elements is not the product of the extents.
    pub fn from_buffer(shape: Vec<usize>, data: Buffer) -> HostTensor {
        assert_eq!(data.len(), n_elements(&shape), "elements of a tensor of shape {shape:?}");
        HostTensor::from_parts(shape, data, None)
    }

    /// A tensor from a buffer whose memory goes to `home` when the last handle of the tensor is dropped.
    ///
    /// # Panics
    /// If the number of elements is not the product of the extents.
    pub fn lent(shape: Vec<usize>, data: Buffer, home: Arc<dyn Reclaim>) -> HostTensor {
        assert_eq!(data.len(), n_elements(&shape), "elements of a tensor of shape {shape:?}");
        HostTensor::from_parts(shape, data, Some(home))
    }

    /// A tensor without dimensions.
    pub fn scalar<T: Element>(x: T) -> HostTensor {
        HostTensor::new(vec![], vec![x])
    }

    /// A tensor of zeros (`false` for `bool`).
    ///
    /// # Panics
    /// If there is no memory for it.
    #[track_caller]
    pub fn zeros(dtype: DType, shape: impl Into<Vec<usize>>) -> HostTensor {
        let shape = shape.into();
        HostTensor::try_zeros(dtype, shape.clone()).unwrap_or_else(|missing| panic!("{dtype}{shape:?} needs {missing}"))
    }

    /// A tensor of zeros, if there is memory for it.
    ///
    /// ```
    /// use anabranch_dsl::{DType, HostTensor};
    ///
    /// assert_eq!(HostTensor::try_zeros(DType::F32, [2, 3]).map(|t| t.len()), Ok(6));
    /// assert!(HostTensor::try_zeros(DType::F32, [1 << 40, 1 << 40]).is_err());
    /// ```
    pub fn try_zeros(dtype: DType, shape: impl Into<Vec<usize>>) -> Result<HostTensor, OutOfMemory> {
        let ty = TensorType::new(dtype, shape.into());
        memory::check(ty.n_bytes().expect("the extents are given"))?;
        let shape = ty.shape.known().expect("the extents are given");
        let elements = Buffer::zeros(dtype, n_elements(&shape));
        Ok(HostTensor::from_parts(shape, elements, None))
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.buffer().len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.buffer().is_empty()
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.buffer().dtype()
    }

    /// Element type and shape.
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.dtype(), self.shape.clone())
    }

    /// The elements.
    pub fn buffer(&self) -> &Buffer {
        &self.data.buffer
    }

    /// The elements for writing; copies them first if they are shared.
    pub fn buffer_mut(&mut self) -> &mut Buffer {
        &mut Arc::make_mut(&mut self.data).buffer
    }

    /// The elements for writing, if no other handle shares them.
    pub fn own_buffer_mut(&mut self) -> Option<&mut Buffer> {
        Arc::get_mut(&mut self.data).map(|elements| &mut elements.buffer)
    }

    /// The elements, if they are of type `T`.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        T::from_buffer(self.buffer())
    }

    /// The elements.
    ///
    /// # Panics
    /// If they are not of type `T`.
    pub fn data<T: Element>(&self) -> &[T] {
        self.as_slice().unwrap_or_else(|| panic!("a tensor of {} was read as {}", self.dtype(), T::DTYPE))
    }

    /// The same elements under another shape of the same size.
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn reshaped(&self, shape: impl Into<Vec<usize>>) -> HostTensor {
        let shape = shape.into();
        assert_eq!(self.len(), n_elements(&shape), "reshape of {:?} to {shape:?}", self.shape);
        HostTensor { shape, data: self.data.clone() }
    }

    /// The single element as `f64`, for scalars of any type.
    pub fn to_f64(&self) -> Option<f64> {
        if self.len() != 1 {
            return None;
        }
        Some(match self.buffer() {
            Buffer::F32(d) => d[0].into(),
            Buffer::F64(d) => d[0],
            Buffer::F16(d) => d[0].into(),
            Buffer::BF16(d) => d[0].into(),
            Buffer::I32(d) => d[0].into(),
            Buffer::I64(d) => d[0] as f64,
            Buffer::U32(d) => d[0].into(),
            Buffer::U8(d) => d[0].into(),
            Buffer::Bool(d) => d[0].into(),
        })
    }
}

impl PartialEq for HostTensor {
    fn eq(&self, other: &HostTensor) -> bool {
        self.shape == other.shape
            && match (self.buffer(), other.buffer()) {
                (Buffer::F32(a), Buffer::F32(b)) => a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits())),
                (Buffer::F64(a), Buffer::F64(b)) => a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits())),
                (Buffer::F16(a), Buffer::F16(b)) => a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits())),
                (Buffer::BF16(a), Buffer::BF16(b)) => a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits())),
                (Buffer::I32(a), Buffer::I32(b)) => a == b,
                (Buffer::I64(a), Buffer::I64(b)) => a == b,
                (Buffer::U32(a), Buffer::U32(b)) => a == b,
                (Buffer::U8(a), Buffer::U8(b)) => a == b,
                (Buffer::Bool(a), Buffer::Bool(b)) => a == b,
                _ => false,
            }
    }
}
impl Eq for HostTensor {}

impl std::hash::Hash for HostTensor {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.shape.hash(state);
        self.dtype().hash(state);
        match self.buffer() {
            Buffer::F32(d) => d.iter().for_each(|x| x.to_bits().hash(state)),
            Buffer::F64(d) => d.iter().for_each(|x| x.to_bits().hash(state)),
            Buffer::F16(d) => d.iter().for_each(|x| x.to_bits().hash(state)),
            Buffer::BF16(d) => d.iter().for_each(|x| x.to_bits().hash(state)),
            Buffer::I32(d) => d.hash(state),
            Buffer::I64(d) => d.hash(state),
            Buffer::U32(d) => d.hash(state),
            Buffer::U8(d) => d.hash(state),
            Buffer::Bool(d) => d.hash(state),
        }
    }
}

/// Nested brackets, with the formatter's options for each element; a long tensor is abbreviated, but not by `{:#}`. See
/// [`format`](crate::format).
impl fmt::Display for HostTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Spec::of(f, Kind::Display).show(self))
    }
}

/// A dense tensor in host memory with elements of type `T`: what a call returns.
#[derive(Clone, Debug)]
pub struct Array<T: Element> {
    tensor: HostTensor,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> Array<T> {
    /// An array from its elements in row-major order.
    ///
    /// # Panics
    /// If the number of elements is not the product of the extents.
    pub fn new(shape: impl Into<Vec<usize>>, data: Vec<T>) -> Array<T> {
        Array { tensor: HostTensor::new(shape, data), element: std::marker::PhantomData }
    }

    /// An array over a host tensor, if its elements are of type `T`.
    pub fn from_host(tensor: HostTensor) -> Option<Array<T>> {
        (tensor.dtype() == T::DTYPE).then_some(Array { tensor, element: std::marker::PhantomData })
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    /// The elements in row-major order.
    pub fn as_slice(&self) -> &[T] {
        self.tensor.data()
    }

    /// A copy of the elements in row-major order.
    pub fn to_vec(&self) -> Vec<T> {
        self.as_slice().to_vec()
    }

    /// The only element.
    ///
    /// # Panics
    /// If there is not exactly one.
    pub fn item(&self) -> T {
        let d = self.as_slice();
        assert_eq!(d.len(), 1, "item() of an array of shape {:?}", self.shape());
        d[0]
    }

    /// The array as a host tensor.
    pub fn host(&self) -> &HostTensor {
        &self.tensor
    }

    /// The array as a host tensor, for code that keeps its element type.
    pub(crate) fn host_mut(&mut self) -> &mut HostTensor {
        &mut self.tensor
    }

    /// The array as a host tensor.
    pub fn into_host(self) -> HostTensor {
        self.tensor
    }
}

impl<T: Element> fmt::Display for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.tensor, f)
    }
}

impl<T: Element> PartialEq for Array<T> {
    /// Shapes and elements are equal, by the equality of `T`.
    fn eq(&self, other: &Array<T>) -> bool {
        self.shape() == other.shape() && self.as_slice() == other.as_slice()
    }
}

impl<T: Element> PartialEq<T> for Array<T> {
    /// The array is a scalar with that value.
    fn eq(&self, other: &T) -> bool {
        self.shape().is_empty() && self.as_slice()[0] == *other
    }
}

/// Host values that can become an [`Array`]: scalars, slices, vectors, nested arrays, arrays themselves.
pub trait IntoArray<T: Element> {
    /// The array.
    fn into_array(self) -> Array<T>;
}

impl<T: Element> IntoArray<T> for T {
    fn into_array(self) -> Array<T> {
        Array::new(vec![], vec![self])
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
