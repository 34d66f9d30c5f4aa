//! Tensors in host memory: constants, inputs, outputs, and the values of the interpreter.

mod into_array;

use crate::format::{FormatSpec, FormatTrait};
use crate::memory::{self, HeldBytes, OutOfMemory};
use crate::{Bytes, DType, Diagnostic, Element, Loc, Result, TensorType};
pub use into_array::IntoArray;
use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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
    Bytes(Vec<Bytes>),
}

/// Runs the same code for the elements of a buffer of any type.
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
            $crate::Buffer::Bytes($data) => $body,
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
            $crate::DType::Bytes => {
                type $t = $crate::Bytes;
                $body
            }
        }
    };
}

impl Buffer {
    /// Returns the type of the elements.
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
            Buffer::Bytes(_) => DType::Bytes,
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match_buffer!(self, d => d.len())
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size in memory, of strings with the blocks that they keep.
    fn n_bytes(&self) -> usize {
        match self {
            Buffer::Bytes(strings) => size_of_val(&strings[..]) + Bytes::kept_bytes(strings),
            plain => plain.len() * plain.dtype().size(),
        }
    }

    /// Creates a buffer of `n` zeros: `false` or empty strings for types without numbers.
    pub fn zeros(dtype: DType, n: usize) -> Buffer {
        match_dtype!(dtype, T => T::into_buffer(vec![T::default(); n]))
    }
}

/// A pool that receives the memory of a tensor when its last handle is dropped, for reuse, because
/// fresh memory is slow.
///
/// A panic while it is in use must leave it consistent, and so a tensor whose memory goes there.
pub trait Reclaim: Send + Sync + RefUnwindSafe {
    /// Receives memory. The values of its elements are unspecified from now on.
    fn reclaim(&self, memory: Buffer);
}

/// The elements of a tensor, and the pool of their memory.
struct PooledElements {
    buffer: Buffer,
    home: Option<Arc<dyn Reclaim>>,
    /// The bytes that count in the budget of the run that made the tensor.
    held: Option<HeldBytes>,
    /// Those that count while stacks and lists have the tensor.
    stored: Mutex<Weak<HeldBytes>>,
}

impl PooledElements {
    /// Stores elements in memory of a pool, which count where the pool is known.
    fn lent(buffer: Buffer, home: Arc<dyn Reclaim>) -> PooledElements {
        PooledElements { buffer, home: Some(home), held: None, stored: Mutex::default() }
    }

    /// Stores elements in memory of their own. Within a budget, strings keep no large blocks of
    /// which they are small parts, so that they count as what they keep.
    fn own(mut buffer: Buffer) -> PooledElements {
        let held = memory::hold(|| {
            if let Buffer::Bytes(strings) = &mut buffer
                && let Some(compact) = Bytes::compact_all(strings)
            {
                *strings = compact;
            }
            buffer.n_bytes()
        });
        PooledElements { buffer, home: None, held, stored: Mutex::default() }
    }
}

impl Clone for PooledElements {
    /// Copies the elements to memory of their own.
    fn clone(&self) -> PooledElements {
        PooledElements::own(self.buffer.clone())
    }
}

impl Drop for PooledElements {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.reclaim(std::mem::replace(&mut self.buffer, Buffer::U8(Vec::new())));
        }
    }
}

impl fmt::Debug for PooledElements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.buffer.fmt(f)
    }
}

/// Returns the size of a tensor in bytes.
fn n_bytes_of(dtype: DType, extents: &[usize]) -> u128 {
    TensorType::new(dtype, extents).n_bytes().expect("the extents are given")
}

/// Returns the number of elements of a tensor with these extents, or `usize::MAX` if it is larger.
fn n_elements(extents: &[usize]) -> usize {
    extents.iter().fold(1, |n, &extent| n.saturating_mul(extent))
}

/// A dense tensor in host memory whose element type is known at run time. Cloning shares the
/// elements.
///
/// Equality compares bits, so that graphs with constants can be compared: `NaN` equals itself, and
/// `0.0` and `-0.0` differ. Results are compared by [`equality`](crate::equality), where all NaNs
/// are equal.
#[derive(Clone, Debug)]
pub struct HostTensor {
    shape: Vec<usize>,
    data: Arc<PooledElements>,
}

impl HostTensor {
    fn from_parts(shape: Vec<usize>, elements: PooledElements) -> HostTensor {
        HostTensor { shape, data: Arc::new(elements) }
    }

    /// Creates a tensor from its elements in row-major order.
    ///
    /// # Panics
    /// Panics if the number of elements is not the product of the extents;
    /// [`try_new`](Self::try_new) returns an error instead.
    #[track_caller]
    pub fn new<T: Element>(shape: impl Into<Vec<usize>>, data: Vec<T>) -> HostTensor {
        HostTensor::from_buffer(shape.into(), T::into_buffer(data))
    }

    /// Creates a tensor from its elements in row-major order.
    ///
    /// # Errors
    /// Fails if the number of elements is not the product of the extents.
    #[track_caller]
    pub fn try_new<T: Element>(shape: impl Into<Vec<usize>>, data: Vec<T>) -> Result<HostTensor> {
        let (shape, here) = (shape.into(), Loc::caller());
        check_count(&shape, data.len()).map_err(|message| {
            let help = "pass as many elements as the product of the extents";
            Diagnostic::new(message).at(here, "created here").help(help)
        })?;
        Ok(HostTensor::from_parts(shape, PooledElements::own(T::into_buffer(data))))
    }

    /// Creates a tensor from a buffer.
    ///
    /// # Panics
    /// Panics if the number of elements is not the product of the extents.
    #[track_caller]
    pub fn from_buffer(shape: Vec<usize>, data: Buffer) -> HostTensor {
        right(check_count(&shape, data.len()));
        HostTensor::from_parts(shape, PooledElements::own(data))
    }

    /// Creates a tensor from a buffer whose memory goes to `home` when the last handle of the
    /// tensor is dropped.
    ///
    /// # Panics
    /// Panics if the number of elements is not the product of the extents.
    #[doc(hidden)]
    #[track_caller]
    pub fn lent(shape: Vec<usize>, data: Buffer, home: Arc<dyn Reclaim>) -> HostTensor {
        right(check_count(&shape, data.len()));
        HostTensor::from_parts(shape, PooledElements::lent(data, home))
    }

    /// Creates a scalar.
    pub fn scalar<T: Element>(x: T) -> HostTensor {
        HostTensor::new(vec![], vec![x])
    }

    /// Creates a tensor of zeros (`false` for `bool`, empty strings for [`Bytes`]).
    ///
    /// # Panics
    /// Panics if there is not enough memory.
    #[track_caller]
    pub fn zeros(dtype: DType, shape: impl Into<Vec<usize>>) -> HostTensor {
        let shape = shape.into();
        match memory::check_system(n_bytes_of(dtype, &shape)) {
            Ok(()) => HostTensor::zeros_in_memory(dtype, shape),
            Err(missing) => panic!("out of memory: {dtype}{shape:?} needs {} bytes", missing.bytes),
        }
    }

    /// Creates a tensor of zeros, if there is memory for it.
    ///
    /// ```
    /// use anabranch::{DType, HostTensor};
    ///
    /// assert_eq!(HostTensor::try_zeros(DType::F32, [2, 3]).map(|t| t.len()), Ok(6));
    /// assert!(HostTensor::try_zeros(DType::F32, [1 << 40, 1 << 40]).is_err());
    /// ```
    #[doc(hidden)]
    pub fn try_zeros(dtype: DType, shape: impl Into<Vec<usize>>) -> Result<HostTensor, OutOfMemory> {
        let shape = shape.into();
        memory::check(n_bytes_of(dtype, &shape))?;
        Ok(HostTensor::zeros_in_memory(dtype, shape))
    }

    fn zeros_in_memory(dtype: DType, shape: Vec<usize>) -> HostTensor {
        let elements = Buffer::zeros(dtype, n_elements(&shape));
        HostTensor::from_parts(shape, PooledElements::own(elements))
    }

    /// Returns the extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.buffer().len()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.buffer().is_empty()
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.buffer().dtype()
    }

    /// Returns the size of the elements in memory, of strings with the blocks that they keep.
    #[doc(hidden)]
    pub fn memory_bytes(&self) -> u64 {
        self.buffer().n_bytes() as u64
    }

    /// Returns the size in memory of equal elements that another process has received.
    #[doc(hidden)]
    pub fn compacted_bytes(&self) -> u64 {
        match self.buffer() {
            Buffer::Bytes(strings) => strings.iter().map(|s| (size_of_val(s) + s.len()) as u64).sum(),
            _ => self.memory_bytes(),
        }
    }

    /// Returns the number of bytes of the elements, of strings with their length as they travel to
    /// other processes.
    #[doc(hidden)]
    pub fn n_bytes(&self) -> u64 {
        match self.buffer() {
            Buffer::Bytes(strings) => strings.iter().map(|s| 8 + s.len() as u64).sum(),
            plain => (plain.len() * plain.dtype().size()) as u64,
        }
    }

    /// Returns an equal tensor whose strings do not keep large blocks of memory of which they are
    /// small parts, if this one's do. What outlives a step is stored so.
    #[doc(hidden)]
    pub fn compacted(&self) -> Option<HostTensor> {
        let Buffer::Bytes(strings) = self.buffer() else { return None };
        let strings = crate::Bytes::compact_all(strings)?;
        Some(HostTensor::from_buffer(self.shape().to_vec(), Buffer::Bytes(strings)))
    }

    /// Returns the size in memory, unless it counts in the budget of the run that made it.
    #[doc(hidden)]
    pub fn uncounted_bytes(&self) -> usize {
        if self.data.held.as_ref().is_some_and(HeldBytes::is_counted) { 0 } else { self.buffer().n_bytes() }
    }

    fn stored(&self) -> MutexGuard<'_, Weak<HeldBytes>> {
        self.data.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what counts in the budget of the run because stacks or lists have the tensor.
    fn stored_in_run(&self) -> Option<Arc<HeldBytes>> {
        self.stored().upgrade().filter(|held| memory::is_of_run(held))
    }

    /// Returns the bytes that the budget of the run would count if a stack or list had the tensor.
    pub(crate) fn bytes_to_store(&self) -> usize {
        if self.stored_in_run().is_some() { 0 } else { self.uncounted_bytes() }
    }

    /// Counts the elements in the budget of the run, while stacks and lists have the tensor: once,
    /// however many there are. Returns `None` if they count in another way, or in no budget.
    pub(crate) fn hold_stored(&self) -> Option<Arc<HeldBytes>> {
        if self.uncounted_bytes() == 0 {
            return None;
        }
        self.stored_in_run().or_else(|| {
            let held = Arc::new(memory::hold(|| self.buffer().n_bytes())?);
            *self.stored() = Arc::downgrade(&held);
            Some(held)
        })
    }

    /// Counts the tensor no more in the budget of the run that made it.
    #[doc(hidden)]
    pub fn stop_counting(&self) {
        if let Some(held) = &self.data.held {
            held.release();
        }
    }

    /// Returns the element type and the shape.
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.dtype(), self.shape.clone())
    }

    /// Returns the elements.
    pub fn buffer(&self) -> &Buffer {
        &self.data.buffer
    }

    /// Returns the elements for writing. Copies them first if they are shared.
    pub fn buffer_mut(&mut self) -> &mut Buffer {
        &mut Arc::make_mut(&mut self.data).buffer
    }

    /// Returns the elements for writing, if no other handle shares them.
    #[doc(hidden)]
    pub fn own_buffer_mut(&mut self) -> Option<&mut Buffer> {
        Arc::get_mut(&mut self.data).map(|elements| &mut elements.buffer)
    }

    /// Returns the elements, if they are of type `T`.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        T::from_buffer(self.buffer())
    }

    /// Returns the elements.
    ///
    /// # Panics
    /// Panics if the elements are not of type `T`.
    #[track_caller]
    pub fn data<T: Element>(&self) -> &[T] {
        match self.as_slice() {
            Some(data) => data,
            None => panic!("a tensor of {} cannot be read as {}", self.dtype(), T::DTYPE),
        }
    }

    /// Returns the same elements with another shape of the same size, in shared memory.
    ///
    /// # Panics
    /// Panics if the sizes differ; [`try_reshaped`](Self::try_reshaped) returns an error instead.
    #[track_caller]
    pub fn reshaped(&self, shape: impl Into<Vec<usize>>) -> HostTensor {
        right(self.with_shape(shape.into()))
    }

    /// Returns the same elements with another shape of the same size, in shared memory.
    ///
    /// # Errors
    /// Fails if the sizes differ.
    #[track_caller]
    pub fn try_reshaped(&self, shape: impl Into<Vec<usize>>) -> Result<HostTensor> {
        let here = Loc::caller();
        self.with_shape(shape.into()).map_err(|message| {
            let help = "the product of the extents must stay the same";
            Diagnostic::new(message).at(here, "reshaped here").help(help)
        })
    }

    fn with_shape(&self, shape: Vec<usize>) -> Result<HostTensor, String> {
        check_count(&shape, self.len())
            .map_err(|why| format!("cannot reshape {:?} to {shape:?}: {why}", self.shape))?;
        Ok(HostTensor { shape, data: self.data.clone() })
    }

    /// Returns the single element as `f64`, for scalars of any type except [`Bytes`].
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
            Buffer::Bytes(_) => return None,
        })
    }
}

/// Returns the value, or panics with the message at the caller's line.
#[track_caller]
fn right<T>(outcome: Result<T, String>) -> T {
    match outcome {
        Ok(value) => value,
        Err(message) => panic!("{message}"),
    }
}

/// Checks that a shape has the given number of elements.
fn check_count(shape: &[usize], given: usize) -> Result<(), String> {
    match shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)) {
        Some(n) if n == given => Ok(()),
        // A product with a zero is zero, even if the factors before it overflow.
        None if given == 0 && shape.contains(&0) => Ok(()),
        Some(n) => Err(format!("a tensor of shape {shape:?} has {n} elements, but got {given}")),
        None => Err(format!("a tensor of shape {shape:?} has more elements than memory can hold, but got {given}")),
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
                (Buffer::Bytes(a), Buffer::Bytes(b)) => a == b,
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
            Buffer::Bytes(d) => d.hash(state),
        }
    }
}

/// Writes nested brackets, with the formatter's options for each element. A long tensor is
/// abbreviated, except by `{:#}`. See [`format`](crate::format).
impl fmt::Display for HostTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&FormatSpec::of(f, FormatTrait::Display).show(self))
    }
}

/// A dense tensor in host memory with elements of type `T`, as returned by calls.
///
/// All formatting traits of numbers write nested brackets, with the formatter's options for each
/// element. `{}` and `{:e}` abbreviate a long array, except with `#`.
///
/// ```
/// use anabranch::Array;
///
/// let a = Array::from([1.0, 0.25]);
/// assert_eq!(format!("{a} {a:.1} {a:?}"), "[1, 0.25] [1.0, 0.2] [1.0, 0.25]");
/// ```
#[derive(Clone)]
pub struct Array<T: Element> {
    tensor: HostTensor,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> Array<T> {
    /// Creates an array from its elements in row-major order.
    ///
    /// # Panics
    /// Panics if the number of elements is not the product of the extents;
    /// [`try_new`](Self::try_new) returns an error instead.
    #[track_caller]
    pub fn new(shape: impl Into<Vec<usize>>, data: Vec<T>) -> Array<T> {
        Array::over(HostTensor::new(shape, data))
    }

    /// Creates an array from its elements in row-major order.
    ///
    /// # Errors
    /// Fails if the number of elements is not the product of the extents.
    ///
    /// ```
    /// use anabranch::Array;
    ///
    /// assert_eq!(Array::try_new([2, 2], vec![1, 2, 3, 4])?[[1, 0]], 3);
    /// let error = Array::try_new([2, 2], vec![1, 2, 3]).unwrap_err();
    /// assert_eq!(error.message, "a tensor of shape [2, 2] has 4 elements, but got 3");
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn try_new(shape: impl Into<Vec<usize>>, data: Vec<T>) -> Result<Array<T>> {
        HostTensor::try_new(shape, data).map(Array::over)
    }

    /// Wraps a host tensor whose elements are of type `T`.
    fn over(tensor: HostTensor) -> Array<T> {
        Array { tensor, element: std::marker::PhantomData }
    }

    /// Wraps a host tensor, if its elements are of type `T`.
    pub fn from_host(tensor: HostTensor) -> Option<Array<T>> {
        (tensor.dtype() == T::DTYPE).then(|| Array::over(tensor))
    }

    /// Returns the extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.tensor.rank()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.tensor.len()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.tensor.is_empty()
    }

    /// Returns the elements in row-major order.
    pub fn as_slice(&self) -> &[T] {
        self.tensor.data()
    }

    /// Returns the elements in row-major order, for writing. Copies them first if another array
    /// shares them.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        T::from_buffer_mut(self.tensor.buffer_mut()).expect("the elements are of type `T`")
    }

    /// Copies the elements in row-major order.
    pub fn to_vec(&self) -> Vec<T> {
        self.as_slice().to_vec()
    }

    /// Returns the only element.
    ///
    /// # Panics
    /// Panics if the array does not have exactly one element.
    #[track_caller]
    pub fn item(&self) -> T {
        match self.as_slice() {
            [item] => item.clone(),
            all => panic!(
                "`item()` needs exactly one element, but the array of shape {:?} has {}",
                self.shape(),
                all.len()
            ),
        }
    }

    /// Returns the same elements with another shape of the same size, in shared memory.
    ///
    /// # Panics
    /// Panics if the sizes differ; [`try_reshape`](Self::try_reshape) returns an error instead.
    ///
    /// ```
    /// use anabranch::{Array, IntoArray};
    ///
    /// let a = [1, 2, 3, 4, 5, 6].into_array().reshape([2, 3]);
    /// assert_eq!(a.shape(), [2, 3]);
    /// assert_eq!((a[[0, 1]], a[[1, 0]]), (2, 4));
    /// ```
    #[track_caller]
    #[must_use]
    pub fn reshape(&self, shape: impl Into<Vec<usize>>) -> Array<T> {
        Array::over(self.tensor.reshaped(shape))
    }

    /// Returns the same elements with another shape of the same size, in shared memory.
    ///
    /// # Errors
    /// Fails if the sizes differ.
    ///
    /// ```
    /// use anabranch::Array;
    ///
    /// let error = Array::new([4], vec![0; 4]).try_reshape([3]).unwrap_err();
    /// assert_eq!(
    ///     error.message,
    ///     "cannot reshape [4] to [3]: a tensor of shape [3] has 3 elements, but got 4"
    /// );
    /// ```
    #[track_caller]
    pub fn try_reshape(&self, shape: impl Into<Vec<usize>>) -> Result<Array<T>> {
        self.tensor.try_reshaped(shape).map(Array::over)
    }

    /// Returns the element at an index, or `None` if it is out of bounds.
    ///
    /// The index is a number for one axis, or an array of numbers for several.
    ///
    /// ```
    /// use anabranch::Array;
    ///
    /// let a = Array::new([2, 2], vec![1, 2, 3, 4]);
    /// assert_eq!((a.get([1, 1]), a.get([2, 0])), (Some(&4), None));
    /// ```
    ///
    /// # Panics
    /// Panics if the index has another number of axes than the array.
    #[track_caller]
    pub fn get(&self, index: impl ArrayIndex) -> Option<&T> {
        index.offset(self.shape()).ok().map(|i| &self.as_slice()[i])
    }

    /// Returns the element at an index, for writing, or `None` if it is out of bounds. See
    /// [`get`](Self::get).
    ///
    /// # Panics
    /// Panics if the index has another number of axes than the array.
    #[track_caller]
    pub fn get_mut(&mut self, index: impl ArrayIndex) -> Option<&mut T> {
        index.offset(self.shape()).ok().map(|i| &mut self.as_mut_slice()[i])
    }

    /// Iterates over the elements in row-major order.
    ///
    /// `for x in &array` does the same, and `for x in array` yields them by value.
    ///
    /// ```
    /// use anabranch::Array;
    ///
    /// let a = Array::new([2, 2], vec![1, 2, 3, 4]);
    /// assert_eq!(a.iter().sum::<i32>(), 10);
    /// assert_eq!(a.into_iter().rev().collect::<Vec<_>>(), [4, 3, 2, 1]);
    /// ```
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.as_slice().iter()
    }

    /// Iterates over the elements in row-major order, for writing. Copies them first if another
    /// array shares them.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.as_mut_slice().iter_mut()
    }

    /// Iterates over the rows: the slices along the last axis, in row-major order.
    ///
    /// ```
    /// use anabranch::Array;
    ///
    /// let a = Array::new([2, 3], vec![1, 2, 3, 4, 5, 6]);
    /// assert_eq!(a.rows().collect::<Vec<_>>(), [[1, 2, 3], [4, 5, 6]]);
    /// ```
    ///
    /// # Panics
    /// Panics if the array has no axis.
    #[track_caller]
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = &[T]> + ExactSizeIterator {
        let Some((&extent, outer)) = self.shape().split_last() else {
            panic!("`rows()` needs at least one axis, but the array is a scalar")
        };
        let n = self.len().checked_div(extent).unwrap_or_else(|| outer.iter().product());
        (0..n).map(move |i| &self.as_slice()[i * extent..(i + 1) * extent])
    }

    /// Iterates over the first axis. Each item is an array with the remaining axes and its own
    /// elements.
    ///
    /// ```
    /// use anabranch::Array;
    ///
    /// let images = Array::new([2, 1, 3], vec![1, 2, 3, 4, 5, 6]);
    /// let last = images.outer_iter().last().unwrap();
    /// assert_eq!((last.shape(), last.as_slice()), ([1, 3].as_slice(), [4, 5, 6].as_slice()));
    /// ```
    ///
    /// # Panics
    /// Panics if the array has no axis.
    #[track_caller]
    pub fn outer_iter(&self) -> impl DoubleEndedIterator<Item = Array<T>> + ExactSizeIterator {
        let Some((&n, inner)) = self.shape().split_first() else {
            panic!("`outer_iter()` needs at least one axis, but the array is a scalar")
        };
        let size = self.len().checked_div(n).unwrap_or(0);
        (0..n).map(move |i| Array::new(inner, self.as_slice()[i * size..(i + 1) * size].to_vec()))
    }

    /// Returns the array as a host tensor.
    pub fn host(&self) -> &HostTensor {
        &self.tensor
    }

    /// Returns the array as a host tensor, for code that keeps its element type.
    pub(crate) fn host_mut(&mut self) -> &mut HostTensor {
        &mut self.tensor
    }

    /// Returns the array as a host tensor.
    pub fn into_host(self) -> HostTensor {
        self.tensor
    }
}

/// The index of an element of an [`Array`]: a number for one axis, or an array or slice with a
/// number for each axis.
pub trait ArrayIndex: Copy + fmt::Debug {
    /// Returns the position among the elements in row-major order.
    ///
    /// # Errors
    /// Fails with the first axis along which the index is out of bounds.
    ///
    /// # Panics
    /// Panics if there are more or fewer indices than axes.
    #[doc(hidden)]
    #[track_caller]
    fn offset(self, shape: &[usize]) -> Result<usize, IndexOutOfBounds>;
}

/// An index that is not less than the extent of its axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexOutOfBounds {
    /// The index along the axis.
    pub index: usize,
    /// The axis.
    pub axis: usize,
    /// The extent of the axis.
    pub extent: usize,
}

impl fmt::Display for IndexOutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IndexOutOfBounds { index, axis, extent } = self;
        write!(f, "index {index} is out of bounds for axis {axis} of extent {extent}")
    }
}

impl ArrayIndex for &[usize] {
    #[track_caller]
    fn offset(self, shape: &[usize]) -> Result<usize, IndexOutOfBounds> {
        let (n, rank) = (self.len(), shape.len());
        if n != rank {
            panic!("the index {self:?} has length {n}, but an array of shape {shape:?} has rank {rank}");
        }
        let mut axes = self.iter().zip(shape).enumerate();
        axes.try_fold(0, |offset, (axis, (&index, &extent))| match index < extent {
            true => Ok(offset * extent + index),
            false => Err(IndexOutOfBounds { index, axis, extent }),
        })
    }
}

impl<const N: usize> ArrayIndex for [usize; N] {
    #[track_caller]
    fn offset(self, shape: &[usize]) -> Result<usize, IndexOutOfBounds> {
        self.as_slice().offset(shape)
    }
}

impl ArrayIndex for usize {
    #[track_caller]
    fn offset(self, shape: &[usize]) -> Result<usize, IndexOutOfBounds> {
        [self].offset(shape)
    }
}

#[track_caller]
fn offset_of(index: impl ArrayIndex, shape: &[usize]) -> usize {
    match index.offset(shape) {
        Ok(offset) => offset,
        Err(error) => panic!("{error}, in an array of shape {shape:?}"),
    }
}

/// Returns the element at an index: `a[i]` for an array with one axis, `a[[i, j]]` for two axes.
///
/// ```
/// use anabranch::Array;
///
/// let mut a = Array::new([2, 2], vec![1.0, 2.0, 3.0, 4.0]);
/// a[[0, 1]] += 5.0;
/// assert_eq!(a[[0, 1]], 7.0);
/// assert_eq!(a.outer_iter().next().unwrap()[1], 7.0);
/// ```
///
/// # Panics
/// Panics if the index is out of bounds, or has another number of axes than the array.
impl<T: Element, I: ArrayIndex> std::ops::Index<I> for Array<T> {
    type Output = T;
    #[track_caller]
    fn index(&self, index: I) -> &T {
        &self.as_slice()[offset_of(index, self.shape())]
    }
}

impl<T: Element, I: ArrayIndex> std::ops::IndexMut<I> for Array<T> {
    #[track_caller]
    fn index_mut(&mut self, index: I) -> &mut T {
        let offset = offset_of(index, self.shape());
        &mut self.as_mut_slice()[offset]
    }
}

impl<T: Element> IntoIterator for Array<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;
    fn into_iter(self) -> Self::IntoIter {
        self.to_vec().into_iter()
    }
}

impl<'a, T: Element> IntoIterator for &'a Array<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T: Element> IntoIterator for &'a mut Array<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

macro_rules! show_elements {
    ($($kind:ident)*) => {$(
        impl<T: Element> fmt::$kind for Array<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&FormatSpec::of(f, FormatTrait::$kind).show(&self.tensor))
            }
        }
    )*};
}
show_elements!(Display Debug LowerExp UpperExp);

impl<T: Element> PartialEq for Array<T> {
    /// Returns whether shapes and elements are equal, by the equality of `T`.
    fn eq(&self, other: &Array<T>) -> bool {
        self.shape() == other.shape() && self.as_slice() == other.as_slice()
    }
}

impl<T: Element> PartialEq<T> for Array<T> {
    /// Returns whether the array is a scalar of that value.
    fn eq(&self, other: &T) -> bool {
        self.shape().is_empty() && self.as_slice()[0] == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{Location, catch_unwind};

    /// Returns the line at which a closure panics.
    fn line_of_panic(f: impl FnOnce() + std::panic::UnwindSafe) -> u32 {
        use std::sync::{Arc, Mutex};
        static HOOK: Mutex<()> = Mutex::new(());
        let _one = HOOK.lock().unwrap();
        let seen = Arc::new(Mutex::new(0));
        let (here, to) = (std::thread::current().id(), seen.clone());
        let before = Arc::new(std::panic::take_hook());
        let others = before.clone();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().id() != here {
                return others(info);
            }
            let location = info.location().filter(|l| l.file().ends_with("dsl/src/array.rs"));
            *to.lock().unwrap() = location.map_or(0, Location::line);
        }));
        assert!(catch_unwind(f).is_err(), "it panics");
        std::panic::set_hook(Box::new(move |info| before(info)));
        *seen.lock().unwrap()
    }

    #[test]
    fn wrong_counts_and_indices_panic_at_the_callers_line() {
        let a = || Array::new([2, 3], vec![0; 6]);
        let first = line!() + 1;
        let lines = [
            line_of_panic(|| drop(Array::new([2], vec![0.5]))),
            line_of_panic(|| drop(HostTensor::new([2], vec![0.5]))),
            line_of_panic(move || drop(a().reshape([5]))),
            line_of_panic(move || assert_eq!(a()[[2, 0]], 0)),
            line_of_panic(move || assert_eq!(a()[1], 0)),
            line_of_panic(move || a()[[0, 3]] = 1),
            line_of_panic(move || assert_eq!(a().item(), 0)),
            line_of_panic(move || assert_eq!(a().get(0), None)),
            line_of_panic(move || drop(Array::new([], vec![1]).rows())),
            line_of_panic(move || drop(Array::new([], vec![1]).outer_iter())),
            line_of_panic(move || drop(HostTensor::scalar(1).reshaped([2]))),
        ];
        let n = lines.len() as u32;
        assert_eq!(lines.to_vec(), (first + 1..first + 1 + n).collect::<Vec<_>>());
    }

    #[test]
    fn values_of_the_host_convert_to_arrays_and_show_their_elements() {
        let a: Array<f64> = vec![0.5, 2.0].into();
        assert_eq!(format!("{a} {a:?} {a:e} {a:.1E}"), "[0.5, 2] [0.5, 2.0] [5e-1, 2e0] [5.0E-1, 2.0E0]");
        assert_eq!(Array::from(3), 3);
        assert_eq!(Array::from(&[1, 2][..]), Array::from([1, 2]));
        assert_eq!(Array::from(vec![[1, 2], [3, 4]]), Array::from([[1, 2], [3, 4]]));
        assert_eq!(Array::from([[[1u8]]]).shape(), [1, 1, 1]);
    }

    #[test]
    fn panics_of_indices_name_index_axis_and_extent() {
        let message = |f: fn() -> i32| *catch_unwind(f).unwrap_err().downcast::<String>().unwrap();
        assert_eq!(
            message(|| Array::new([2, 3], vec![0; 6])[[1, 3]]),
            "index 3 is out of bounds for axis 1 of extent 3, in an array of shape [2, 3]"
        );
        assert_eq!(
            message(|| Array::new([2, 3], vec![0; 6])[1]),
            "the index [1] has length 1, but an array of shape [2, 3] has rank 2"
        );
        let item = message(|| Array::new([2, 3], vec![0; 6]).item());
        assert_eq!(item, "`item()` needs exactly one element, but the array of shape [2, 3] has 6");
    }

    #[test]
    fn shapes_whose_size_overflows_are_errors() {
        let huge = [usize::MAX, 2, 1];
        assert!(Array::try_new(huge, Vec::<f32>::new()).unwrap_err().message.contains("more elements than memory"));
        assert!(Array::<f32>::try_new([usize::MAX, 2, 0], vec![]).is_ok());
        assert!(Array::new([0], Vec::<u8>::new()).try_reshape([usize::MAX, usize::MAX]).is_err());
    }

    #[test]
    fn rows_and_outer_items_of_empty_arrays_are_as_many_as_the_shape_says() {
        let of = |shape: &[usize]| {
            let a = Array::<f32>::new(shape, vec![]);
            (a.rows().len(), a.outer_iter().len())
        };
        assert_eq!(of(&[0]), (1, 0));
        assert_eq!(of(&[3, 0]), (3, 3));
        assert_eq!(of(&[0, 3]), (0, 0));
        assert_eq!(of(&[2, 0, 3]), (0, 2));
        let a = Array::<f32>::new([3, 0], vec![]);
        assert!(a.outer_iter().all(|row| row.shape() == [0]));
    }

    #[test]
    fn writing_to_an_array_leaves_others_as_they_are() {
        let a = Array::new([2, 2], vec![1, 2, 3, 4]);
        let mut b = a.reshape([4]);
        b[2] = 7;
        b.iter_mut().for_each(|x| *x += 1);
        assert_eq!((a.to_vec(), b.to_vec()), (vec![1, 2, 3, 4], vec![2, 3, 8, 5]));
    }
}
