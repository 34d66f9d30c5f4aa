//! The payloads of frames: tensors and bytes, and their descriptions in an encoded head.
//!
//! Invariants:
//!
//! - A tensor is described by its element type, its extents and its bytes, little-endian and in
//!   row-major order; strings by their lengths, then their bytes ([`Bytes::pack`]). The number of
//!   bytes is checked before anything is allocated for them.
//! - A payload of up to [`INLINE`] bytes is part of the head, unless many frames wait to be sent. A
//!   larger one is the body of the frame.

use super::frame::{WireError, WireErrorKind};
use crate::peer::body::BodyBuffer;
use anabranch_dsl::memory::{ByteGauge, HeldBytes};
use anabranch_dsl::{Buffer, Bytes, DType, Element, HostTensor, memory};
use bytemuck::Pod;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// Maximum bytes of a payload in a head.
pub(crate) const INLINE: usize = 8 << 10;

/// Maximum bytes of a payload.
pub(crate) use crate::peer::MAX_BODY;

/// Maximum bytes of the values of a session that have arrived and wait for their steps, and of
/// those that wait to be sent. What has arrived counts as the memory that it takes: of many small
/// strings up to three times as much as of what was sent.
pub(crate) const MAX_WAITING: u64 = 2 * MAX_BODY;

/// Maximum rank of a tensor: that of the tensors of a program.
pub(crate) use anabranch_dsl::ir::wire::MAX_RANK;

/// The payload of a frame that is sent after its head. Its bytes are those of the tensor itself.
#[derive(Clone, Debug)]
pub(crate) enum FrameBody {
    Tensor(HostTensor),
    Bytes(Arc<[u8]>),
}

impl AsRef<[u8]> for FrameBody {
    fn as_ref(&self) -> &[u8] {
        match self {
            FrameBody::Tensor(tensor) => native_bytes(tensor),
            FrameBody::Bytes(bytes) => bytes,
        }
    }
}

/// The description of a tensor in a head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TensorHead {
    /// Index in [`DType::ALL`].
    dtype: u8,
    shape: Vec<u64>,
    bytes: BytesHead,
}

/// The description of bytes in a head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum BytesHead {
    Inline(InlineBytes),
    /// The bytes are the body, of this length.
    Body(u64),
}

/// Bytes in a head.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InlineBytes(Vec<u8>);

impl Serialize for InlineBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for InlineBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<InlineBytes, D::Error> {
        struct BytesVisitor;

        impl Visitor<'_> for BytesVisitor {
            type Value = InlineBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {INLINE} bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<InlineBytes, E> {
                if bytes.len() > INLINE {
                    return Err(E::invalid_length(bytes.len(), &self));
                }
                Ok(InlineBytes(bytes.to_owned()))
            }
        }
        deserializer.deserialize_bytes(BytesVisitor)
    }
}

impl BytesHead {
    /// Returns the length of the body.
    pub(crate) fn body_len(&self) -> Option<u64> {
        match self {
            BytesHead::Inline(_) => None,
            BytesHead::Body(len) => Some(*len),
        }
    }

    /// Returns the bytes. `body` is the body of the frame.
    fn take(self, body: &mut Option<BodyBuffer>) -> Result<BodyBuffer, String> {
        match (self, body.take()) {
            (BytesHead::Inline(bytes), None) => Ok(bytes.0.into()),
            (BytesHead::Body(len), Some(body)) if body.bytes().len() as u64 == len => Ok(body),
            (BytesHead::Body(len), Some(body)) => Err(format!("a body of {} bytes, not {len}", body.bytes().len())),
            (BytesHead::Body(_), None) => Err("the body is missing".to_owned()),
            (BytesHead::Inline(_), Some(_)) => Err("a body that the head does not announce".to_owned()),
        }
    }
}

impl TensorHead {
    /// Returns the length of the body.
    pub(crate) fn body_len(&self) -> Option<u64> {
        self.bytes.body_len()
    }

    /// Checks that the number of bytes is that of the elements. Returns the element type, the
    /// extents and the number of bytes.
    pub(crate) fn check(&self) -> Result<(DType, Vec<usize>, u64), String> {
        let dtype = *DType::ALL.get(usize::from(self.dtype)).ok_or("an unknown element type")?;
        if self.shape.len() > MAX_RANK {
            return Err(format!("a tensor of rank {}", self.shape.len()));
        }
        // Of strings, these are the least bytes: those of the lengths.
        let size = if dtype.is_plain() { dtype.size() } else { 8 };
        let expected = match self.shape.contains(&0) {
            true => Some(0),
            false => self.shape.iter().try_fold(size as u64, |n, &extent| n.checked_mul(extent)),
        };
        let bytes = match &self.bytes {
            BytesHead::Inline(bytes) => bytes.0.len() as u64,
            BytesHead::Body(len) => *len,
        };
        if expected != Some(bytes) && !(dtype == DType::Bytes && expected.is_some_and(|least| least < bytes)) {
            return Err(format!("{bytes} bytes for a tensor {dtype}{:?}", self.shape));
        }
        let shape = self.shape.iter().map(|&extent| usize::try_from(extent)).collect::<Result<_, _>>();
        Ok((dtype, shape.map_err(|_| "an extent that is too large")?, bytes))
    }
}

/// Describes bytes. Those that are more than `inline` become the body.
pub(crate) fn describe_bytes(bytes: Arc<[u8]>, inline: usize, body: &mut Option<FrameBody>) -> BytesHead {
    if bytes.len() <= inline {
        return BytesHead::Inline(InlineBytes(bytes.to_vec()));
    }
    let len = bytes.len() as u64;
    *body = Some(FrameBody::Bytes(bytes));
    BytesHead::Body(len)
}

/// Describes a tensor. Elements that have more than `inline` bytes become the body, without a copy.
pub(crate) fn describe_tensor(tensor: HostTensor, inline: usize, body: &mut Option<FrameBody>) -> TensorHead {
    let dtype = tensor.dtype();
    let index = DType::ALL.iter().position(|&d| d == dtype).expect("the list has all element types");
    let shape = tensor.shape().iter().map(|&extent| extent as u64).collect();
    let bytes = if let Buffer::Bytes(strings) = tensor.buffer() {
        let mut packed = Vec::with_capacity(tensor.n_bytes() as usize);
        Bytes::pack(strings, &mut packed);
        describe_bytes(packed.into(), inline, body)
    } else if cfg!(target_endian = "big") {
        let mut bytes = native_bytes(&tensor).to_vec();
        reverse_elements(&mut bytes, dtype.size());
        describe_bytes(bytes.into(), inline, body)
    } else {
        let bytes = native_bytes(&tensor);
        let len = bytes.len();
        if len <= inline {
            BytesHead::Inline(InlineBytes(bytes.to_vec()))
        } else {
            *body = Some(FrameBody::Tensor(tensor));
            BytesHead::Body(len as u64)
        }
    };
    TensorHead { dtype: index as u8, shape, bytes }
}

/// Restores bytes.
pub(crate) fn restore_bytes(head: BytesHead, body: &mut Option<BodyBuffer>) -> Result<Arc<[u8]>, String> {
    head.take(body).map(|body| Arc::from(body.into_elements::<u8>()))
}

/// Restores a tensor.
pub(crate) fn restore_tensor(head: TensorHead, body: &mut Option<BodyBuffer>) -> Result<HostTensor, String> {
    let (dtype, shape, len) = head.check()?;
    let mut bytes = head.bytes.take(body)?;
    // Saturating, as large extents may stand before one of 0.
    let n_elements = shape.iter().fold(1, |n: usize, &extent| n.saturating_mul(extent));
    let n_strings = if dtype == DType::Bytes { n_elements } else { 0 };
    let needed = u128::from(len) + n_strings as u128 * size_of::<Bytes>() as u128;
    memory::check(needed).map_err(|error| error.to_string())?;
    if cfg!(target_endian = "big") && dtype.is_plain() {
        reverse_elements(bytes.bytes_mut(), dtype.size());
    }
    let buffer = match dtype {
        DType::F32 => elements::<f32>(bytes),
        DType::F64 => elements::<f64>(bytes),
        DType::F16 => elements::<half::f16>(bytes),
        DType::BF16 => elements::<half::bf16>(bytes),
        DType::I32 => elements::<i32>(bytes),
        DType::I64 => elements::<i64>(bytes),
        DType::U32 => elements::<u32>(bytes),
        DType::U8 => elements::<u8>(bytes),
        DType::Bool if bytes.bytes().iter().all(|&byte| byte <= 1) => {
            Buffer::Bool(bytes.bytes().iter().map(|&byte| byte == 1).collect())
        }
        DType::Bool => return Err("a boolean that is neither 0 nor 1".to_owned()),
        DType::Bytes => match Bytes::unpack(n_strings, bytes.bytes()) {
            Some((strings, [])) => Buffer::Bytes(strings),
            _ => return Err("strings whose lengths are not those of their bytes".to_owned()),
        },
    };
    Ok(HostTensor::from_buffer(shape, buffer))
}

/// The bytes that a waiting frame counts in addition to its payload.
pub(crate) const FRAME_BYTES: u64 = 512;

/// Returns the error of a step for which more arrives than may wait.
pub(crate) fn too_much_waits(arrivals: &ByteGauge) -> WireError {
    let message = format!("more than {} bytes have arrived for steps that have not taken them", arrivals.limit());
    WireError::new(WireErrorKind::ResourceExhausted, message)
        .help("send smaller values to other processes, or let fewer iterations run at once")
}

/// Checks that a value may be sent, and counts its bytes until they are. Small ones do not count.
///
/// # Errors
/// Fails if the value is larger than any that is sent, or if too many bytes wait to be sent.
pub(crate) fn hold_outgoing(outgoing: &Arc<ByteGauge>, tensor: &HostTensor) -> Result<Option<HeldBytes>, WireError> {
    let bytes = tensor.n_bytes();
    check_size(bytes)?;
    if bytes <= INLINE as u64 {
        return Ok(None);
    }
    outgoing.hold(bytes).map(Some).ok_or_else(|| {
        let (held, limit) = (outgoing.held(), outgoing.limit());
        let message = format!(
            "a value of {bytes} bytes cannot be sent: {held} bytes of the session wait to be sent, and at most {limit} may"
        );
        WireError::new(WireErrorKind::ResourceExhausted, message)
            .help("send smaller values, or let fewer iterations run at once")
    })
}

/// Checks that a value is not larger than any that is sent.
fn check_size(bytes: u64) -> Result<(), WireError> {
    if bytes <= MAX_BODY {
        return Ok(());
    }
    let message = format!("a value of {bytes} bytes cannot be sent to another process: at most {MAX_BODY} bytes can");
    let error = WireError::new(WireErrorKind::ResourceExhausted, message);
    Err(error.help("divide it, or place the operations that compute and use it on devices of one process"))
}

fn elements<T: Element + Pod>(body: BodyBuffer) -> Buffer {
    T::into_buffer(body.into_elements())
}

fn native_bytes(tensor: &HostTensor) -> &[u8] {
    match tensor.buffer() {
        Buffer::F32(data) => bytemuck::cast_slice(data),
        Buffer::F64(data) => bytemuck::cast_slice(data),
        Buffer::F16(data) => bytemuck::cast_slice(data),
        Buffer::BF16(data) => bytemuck::cast_slice(data),
        Buffer::I32(data) => bytemuck::cast_slice(data),
        Buffer::I64(data) => bytemuck::cast_slice(data),
        Buffer::U32(data) => bytemuck::cast_slice(data),
        Buffer::U8(data) => data,
        Buffer::Bool(data) => bytemuck::cast_slice(data),
        Buffer::Bytes(_) => panic!("strings are packed"),
    }
}

/// Converts elements between the byte order of this machine and little-endian.
fn reverse_elements(bytes: &mut [u8], size: usize) {
    bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_restored_and_wrong_lengths_are_refused() {
        for long in [0, INLINE] {
            let strings = vec![Bytes::from("a"), Bytes::from(vec![7; long]), Bytes::from(b"\xff")];
            let tensor = HostTensor::new([3, 1], strings);
            let mut body = None;
            let head = describe_tensor(tensor.clone(), INLINE, &mut body);
            assert_eq!(body.is_some(), long > 0);
            let mut body = body.map(|body| BodyBuffer::from(body.as_ref().to_vec()));
            assert_eq!(restore_tensor(head, &mut body), Ok(tensor));
        }
        let of = |shape: &[u64], bytes: &[u8]| {
            let dtype = DType::ALL.iter().position(|&d| d == DType::Bytes).expect("a type") as u8;
            let bytes = BytesHead::Inline(InlineBytes(bytes.to_vec()));
            restore_tensor(TensorHead { dtype, shape: shape.to_vec(), bytes }, &mut None).unwrap_err()
        };
        assert_eq!(of(&[2], &[0; 8]), "8 bytes for a tensor bytes[2]");
        assert_eq!(of(&[1 << 62], &[0; 8]), "8 bytes for a tensor bytes[4611686018427387904]");
        let wrong = "strings whose lengths are not those of their bytes";
        assert_eq!(of(&[1], &[9; 12]), wrong);
        assert_eq!(of(&[2], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7]), wrong);
        assert_eq!(of(&[0], &[7]), wrong);
    }

    #[test]
    fn extents_whose_product_is_too_large_are_allowed_beside_one_of_zero() {
        for (dtype, of) in DType::ALL.iter().enumerate() {
            let (dtype, bytes) = (dtype as u8, BytesHead::Inline(InlineBytes(Vec::new())));
            let head = TensorHead { dtype, shape: vec![1 << 40, 1 << 40, 0], bytes };
            let tensor = restore_tensor(head, &mut None).expect("it has no elements");
            assert_eq!((tensor.dtype(), tensor.shape(), tensor.n_bytes()), (*of, &[1 << 40, 1 << 40, 0][..], 0));
        }
    }

    #[test]
    fn values_that_are_too_large_or_too_many_are_not_sent() {
        let outgoing = ByteGauge::new(100_000);
        let value = |n: usize| HostTensor::new(vec![n], vec![0u8; n]);
        let hold = |n: usize| hold_outgoing(&outgoing, &value(n)).map_err(|error| error.message);
        let held = hold(60_000).expect("there is room").expect("it counts");
        assert!(matches!(hold(INLINE), Ok(None)), "a small value does not count");
        let error = hold(50_000).expect_err("there is no room");
        let expected = "a value of 50000 bytes cannot be sent: 60000 bytes of the session wait to be sent, and at \
                        most 100000 may";
        assert_eq!(error, expected);
        drop(held);
        assert!(matches!(hold(50_000), Ok(Some(_))));
        assert!(check_size(MAX_BODY).is_ok());
        let error = check_size(MAX_BODY + 1).expect_err("it is too large").message;
        let expected = "a value of 4294967297 bytes cannot be sent to another process: at most 4294967296 bytes can";
        assert_eq!(error, expected);
    }
}
