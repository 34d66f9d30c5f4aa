//! Counter-based random numbers: Philox 4x32-10 (Salmon, Moraes, Dror and Shaw 2011, "Parallel
//! random numbers: as easy as 1, 2, 3").
//!
//! A [`Key`] identifies a stream. An element of a stream is a function of the key and the position.
//! So the numbers do not depend on when, in what order, on which device or how often they are
//! computed. The same key yields the same numbers: make a new key for each use with
//! [`Key::fold_in`] or [`Key::split`]. [`Key::normal`] itself uses the keys of the numbers 0 and 1,
//! so do not derive others from a key that is used for it.
//!
//! Element `i` of a tensor of 32-bit numbers is word `i % 4` of the block with counter `i / 4`. The
//! upper half of the 128-bit counter is 0 for numbers and 1 for new keys, so the words of keys and
//! those of numbers are of different blocks.

use super::infer::{Class, check_definite, check_scalar};
use super::*;
use crate::{DType, Float, Integer, Operand, Shape, Tensor, bf16, f16};

family!(RANDOM_BITS, RANDOM_UNIFORM, RANDOM_FOLD_IN);

/// Computes one block of Philox 4x32 with ten rounds.
#[doc(hidden)]
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let product = |a: u32, b: u32| {
        let p = u64::from(a) * u64::from(b);
        ((p >> 32) as u32, p as u32)
    };
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let (high0, low0) = product(0xD251_1F53, counter[0]);
        let (high1, low1) = product(0xCD9E_8D57, counter[2]);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
    }
    counter
}

/// Returns the first `n` words of the stream of a key.
#[doc(hidden)]
pub fn words(key: [u32; 2], n: usize) -> impl Iterator<Item = u32> {
    let block = move |i: u64| philox([i as u32, (i >> 32) as u32, 0, 0], key);
    (0..n.div_ceil(4) as u64).flat_map(block).take(n)
}

/// Returns the key derived from a key and a number.
#[doc(hidden)]
pub fn folded(key: [u32; 2], number: u64) -> [u32; 2] {
    let block = philox([number as u32, (number >> 32) as u32, 0, 1], key);
    [block[0], block[1]]
}

/// Returns a number in `[0, 1)` of 24 random bits.
#[doc(hidden)]
pub fn unit_f32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
}

/// Returns a number in `[0, 1)` of 53 random bits.
#[doc(hidden)]
pub fn unit_f64(high: u32, low: u32) -> f64 {
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Returns a number in `[0, 1)`, with as many random bits as the type represents exactly, so that
/// none is rounded to 1.
#[doc(hidden)]
pub fn unit_f16(word: u32) -> f16 {
    f16::from_f32((word >> 21) as f32 * (1.0 / (1u32 << 11) as f32))
}

/// Returns a number in `[0, 1)`, like [`unit_f16`].
#[doc(hidden)]
pub fn unit_bf16(word: u32) -> bf16 {
    bf16::from_f32((word >> 24) as f32 * (1.0 / (1u32 << 8) as f32))
}

fn check_key(cx: &InferCx<'_>) -> Result<(), OpError> {
    let key = cx.tensor(0)?;
    if key.compatible(&TensorType::new(DType::U32, [2])) {
        return Ok(());
    }
    Err(OpError::new(format!("a key must be u32[2], not {key}")).help("create keys with `Key::new(seed)`"))
}

fn key_of(cx: &EvalCx<'_>) -> [u32; 2] {
    let key = cx.operands[0].data::<u32>();
    [key[0], key[1]]
}

/// The first words of the stream of a key.
static RANDOM_BITS: OpDef = OpDef {
    name: "random_bits",
    arity: Arity::Exactly(1),
    attrs: Shaped::DECLARED,
    infer: |cx| {
        check_key(cx)?;
        let shape = Shaped::of(cx.attrs).shape;
        check_definite("random numbers of", &shape)?;
        Ok(Type::tensor(DType::U32, shape))
    },
    eval: |cx| Ok(cx.result(words(key_of(cx), cx.shape().iter().product()).collect())),
    grad: Grad::Zero("a key is not differentiable"),
    exactness: Exactness::Exact,
    class: OpClass::Random(Effort::RANDOM),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// Numbers in `[0, 1)` from the stream of a key.
static RANDOM_UNIFORM: OpDef = OpDef {
    name: "random_uniform",
    arity: Arity::Exactly(1),
    attrs: Typed::DECLARED,
    infer: |cx| {
        check_key(cx)?;
        let Typed { shape, dtype } = Typed::of(cx.attrs);
        check_definite("random numbers of", &shape)?;
        let ty = TensorType::new(dtype, shape);
        Class::Float.check(&ty)?;
        Ok(ty.into())
    },
    eval: |cx| {
        let n = cx.shape().iter().product();
        Ok(match Typed::of(cx.attrs).dtype {
            DType::F32 => cx.result(words(key_of(cx), n).map(unit_f32).collect()),
            DType::F16 => cx.result(words(key_of(cx), n).map(unit_f16).collect()),
            DType::BF16 => cx.result(words(key_of(cx), n).map(unit_bf16).collect()),
            _ => {
                let words: Vec<u32> = words(key_of(cx), 2 * n).collect();
                cx.result(words.chunks_exact(2).map(|w| unit_f64(w[0], w[1])).collect())
            }
        })
    },
    grad: Grad::Zero("a key is not differentiable"),
    exactness: Exactness::Exact,
    class: OpClass::Random(Effort::RANDOM),
    halves: Halves::Direct,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// The key derived from a key and a number.
static RANDOM_FOLD_IN: OpDef = OpDef {
    name: "random_fold_in",
    arity: Arity::Exactly(2),
    attrs: &[],
    infer: |cx| {
        check_key(cx)?;
        check_scalar(cx, 1, Class::Int, "number")?;
        Ok(Type::tensor(DType::U32, [2]))
    },
    eval: |cx| {
        let number = super::cast::converted(cx.operands[1], DType::I64).data::<i64>()[0];
        Ok(cx.result(folded(key_of(cx), number as u64).to_vec()))
    },
    grad: Grad::Zero("a key is not differentiable"),
    exactness: Exactness::Exact,
    class: OpClass::Random(Effort::RANDOM),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// A key that identifies a stream of random numbers.
///
/// A key is a tensor `u32[2]`, so it can be an argument and a loop variable.
///
/// ```
/// use anabranch::{prelude::*, random::Key};
///
/// let (a, b, c) = eval(|| {
///     let key = Key::new(7);
///     (key.uniform::<f32>([3]), key.uniform::<f32>([3]), key.fold_in(1).uniform::<f32>([3]))
/// })?;
/// assert_eq!(a, b);
/// assert_ne!(a, c);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Key {
    tensor: Tensor<u32>,
}

impl Key {
    /// Creates the key of a seed.
    #[track_caller]
    pub fn new(seed: u64) -> Key {
        Key {
            tensor: Tensor::from_any(
                InTrace::current().constant(HostTensor::new([2], vec![seed as u32, (seed >> 32) as u32])),
            ),
        }
    }

    /// Creates a key from its tensor, of shape `[2]`.
    pub fn from_tensor(tensor: Tensor<u32>) -> Key {
        Key { tensor }
    }

    /// Returns the key as a tensor.
    pub fn into_tensor(self) -> Tensor<u32> {
        self.tensor
    }

    /// Derives another key for each number, which may be a tensor: the index of a step, an example
    /// or a layer.
    #[track_caller]
    #[must_use]
    pub fn fold_in<I: Integer>(self, number: impl Operand<I>) -> Key {
        let operands = [self.tensor.untyped(), number.into_tensor().untyped()];
        Key { tensor: Tensor::from_any(emit(prim::RANDOM_FOLD_IN, &operands, Attrs::none())) }
    }

    /// Derives `n` keys, those of the numbers 0 to `n - 1`.
    #[track_caller]
    #[must_use]
    pub fn split(self, n: usize) -> Vec<Key> {
        let keys = || (0..n).map(|i| self.fold_in(i as i64)).collect();
        self.tensor.untyped().context().called_at(Loc::caller(), keys)
    }

    /// Returns uniform 32-bit numbers.
    ///
    /// ```
    /// # use anabranch::{prelude::*, random::Key};
    /// assert_eq!(
    ///     eval(|| Key::new(0).bits([4]))?.as_slice(),
    ///     [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
    /// );
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn bits(self, shape: impl Into<Shape>) -> Tensor<u32> {
        let attrs = Shaped { shape: shape.into() }.into();
        Tensor::from_any(emit(prim::RANDOM_BITS, &[self.tensor.untyped()], attrs))
    }

    /// Returns uniform numbers in `[0, 1)`: multiples of 2^-24 for `f32`, 2^-53 for `f64`, 2^-11
    /// for `f16` and 2^-8 for `bf16`.
    ///
    /// ```
    /// # use anabranch::{prelude::*, random::Key};
    /// let x = eval(|| Key::new(0).uniform::<f32>([1000]).mean())?.item();
    /// assert!((0.47..0.53).contains(&x));
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn uniform<T: Float>(self, shape: impl Into<Shape>) -> Tensor<T> {
        let attrs = Typed { shape: shape.into(), dtype: T::DTYPE }.into();
        Tensor::from_any(emit(prim::RANDOM_UNIFORM, &[self.tensor.untyped()], attrs))
    }

    /// Returns normal numbers of mean 0 and variance 1: `sqrt(-2 log(1 - u)) cos(2 pi v)` of two
    /// uniform numbers (Box and Muller 1958), those of `fold_in(0)` and `fold_in(1)`.
    ///
    /// ```
    /// # use anabranch::{prelude::*, random::Key};
    /// let x = eval(|| Key::new(0).normal::<f64>([1000]).square().mean())?.item();
    /// assert!((0.9..1.1).contains(&x));
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn normal<T: Float>(self, shape: impl Into<Shape>) -> Tensor<T> {
        let shape = shape.into();
        if T::DTYPE.is_half() {
            // The tails need more random bits than these types have.
            return Tensor::from_any(self.normal::<f32>(shape).untyped().cast(T::DTYPE));
        }
        let u = self.fold_in(0).uniform::<T>(&shape).untyped();
        let v = self.fold_in(1).uniform::<T>(&shape).untyped();
        let radius = ((1.0 - u).log() * -2.0).sqrt();
        Tensor::from_any(radius * (v * std::f64::consts::TAU).cos())
    }

    /// Returns `true` with probability `p`, which broadcasts to the shape.
    ///
    /// ```
    /// # use anabranch::{prelude::*, random::Key};
    /// assert_eq!(eval(|| Key::new(0).bernoulli(1.0f32, [3]).all())?, true);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn bernoulli<T: Float>(self, p: impl Operand<T>, shape: impl Into<Shape>) -> Tensor<bool> {
        if T::DTYPE.is_half() {
            // Numbers of these types are too coarse for small probabilities.
            return self.bernoulli(p.into_tensor().cast::<f32>(), shape);
        }
        self.uniform::<T>(shape).less(p)
    }

    /// Returns, for each distribution along an axis of unnormalized log-probabilities, the index of
    /// a sample. The axis is removed.
    ///
    /// The sample is the index of the largest sum of a logit and Gumbel noise. An index whose logit
    /// is negative infinity is not drawn if another one is finite. Divide logits by a temperature
    /// before.
    ///
    /// ```
    /// # use anabranch::{prelude::*, random::Key};
    /// let logits = || tensor([0.1f32, 0.6, 0.3]).log().broadcast_to([1000, 3]);
    /// let n = eval(|| Key::new(0).categorical(logits(), -1).equal(1).cast::<i32>().sum())?.item();
    /// assert!((550..650).contains(&n));
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Errors
    /// Aborts the trace if there is no such axis or it has no elements.
    #[track_caller]
    pub fn categorical<T: Float>(self, logits: Tensor<T>, axis: isize) -> Tensor<i32> {
        if T::DTYPE.is_half() {
            // The tails need more random bits than these types have.
            return self.categorical(logits.cast::<f32>(), axis);
        }
        let u = self.uniform::<T>(logits.shape()).untyped();
        // Zero would become negative infinity. In `f32` this is the smallest normal number.
        let noise = -(-u.maximum(u.number(f64::from(f32::MIN_POSITIVE))).log()).log();
        Tensor::from_any((logits.untyped() + noise).argmax(axis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published by the authors (Random123, `kat_vectors`).
    #[test]
    fn philox_gives_the_published_answers() {
        let ones = u32::MAX;
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(philox(pi, [0xa409_3822, 0x299f_31d0]), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn units_are_below_one_and_reach_zero() {
        assert_eq!((unit_f32(0), unit_f64(0, 0)), (0.0, 0.0));
        assert_eq!((unit_f16(u32::MAX).to_f32(), unit_bf16(u32::MAX).to_f32()), (2047.0 / 2048.0, 255.0 / 256.0));
        assert_eq!(unit_f32(u32::MAX), 1.0 - f32::EPSILON / 2.0);
        assert_eq!(unit_f64(u32::MAX, u32::MAX), 1.0 - f64::EPSILON / 2.0);
    }

    #[test]
    fn a_stream_is_the_same_whatever_its_length() {
        let long: Vec<u32> = words([1, 2], 11).collect();
        assert_eq!(words([1, 2], 5).collect::<Vec<_>>(), long[..5]);
    }
}
