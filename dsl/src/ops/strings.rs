//! Operations on strings of bytes: length, parts, case, joining and splitting.
//!
//! The semantics are those of the module `tf.strings` of TensorFlow with the unit `BYTE`: positions
//! and lengths count bytes, and case and blanks are those of ASCII. No operation requires UTF-8.
//! An error about an element says which one it is.
//!
//! Parts of a string share its memory. Strings that an operation makes share one block with the
//! others of its result.

use super::elementwise_binary::{index_of, stretch};
use super::infer::{Class, check_scalar, common, like_operand, reduced};
use super::layout::lanes;
use super::*;
use crate::ir::Attrs;
use crate::{Bytes, DType, Dim, ErrorKind, HostTensor, Operand, Shape, Tensor, memory};

family!(BYTE_LEN, SUBSTR, LOWER, UPPER, STRIP, JOIN, REDUCE_JOIN, SPLIT, SPLIT_INTO);

/// New strings in one block of memory.
#[derive(Default)]
pub(super) struct StringsBuilder {
    block: Vec<u8>,
    ends: Vec<usize>,
}

impl StringsBuilder {
    /// Adds a string, which `write` appends to the block.
    pub(super) fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.block);
        self.ends.push(self.block.len());
    }

    /// Checks that there is memory for another string of `n` bytes.
    pub(super) fn check_room(&self, n: u128) -> Result<(), OpError> {
        memory::check(self.block.len() as u128 + n).map_err(|missing| OpError {
            kind: ErrorKind::ResourceExhausted,
            ..OpError::new(format!("out of memory: the strings of the result need {} bytes", missing.bytes))
                .help("use fewer or shorter strings")
        })
    }

    /// Adds a string that consists of others with a separator between them, if there is memory for
    /// it.
    fn add_joined<'a>(
        &mut self,
        parts: impl ExactSizeIterator<Item = &'a Bytes> + Clone,
        separator: &[u8],
    ) -> Result<(), OpError> {
        let separators = parts.len().saturating_sub(1) as u128 * separator.len() as u128;
        let n = parts.clone().fold(separators, |n, part| n + part.len() as u128);
        self.check_room(n)?;
        self.add(|to| {
            for (i, part) in parts.enumerate() {
                if i > 0 {
                    to.extend_from_slice(separator);
                }
                to.extend_from_slice(part);
            }
        });
        Ok(())
    }

    /// Returns the strings in the shape of a result.
    pub(super) fn finish(self, cx: &EvalCx<'_>) -> HostTensor {
        let (block, mut start) = (Bytes::from(self.block), 0);
        let next = |end| block.slice(std::mem::replace(&mut start, end)..end);
        cx.result(self.ends.into_iter().map(next).collect())
    }
}

/// Returns the only string of an operand.
pub(super) fn only<'a>(cx: &EvalCx<'a>, operand: usize) -> &'a Bytes {
    &cx.operands[operand].data::<Bytes>()[0]
}

/// Returns the place of an element of the first operand in messages: ` at [2, 0]`.
pub(super) fn place(cx: &EvalCx<'_>, i: usize) -> String {
    match &index_of(cx.operands[0].shape(), i)[..] {
        [] => String::new(),
        at => format!(" at {at:?}"),
    }
}

/// Returns a string for a message, shortened if it is long.
pub(super) fn shown(string: &[u8]) -> String {
    const MOST: usize = 40;
    match string.get(..MOST) {
        Some(start) => format!("{:?}.. of {} bytes", Bytes::from(start), string.len()),
        None => format!("{:?}", Bytes::from(string)),
    }
}

/// Returns the range without blanks at both ends.
fn unblanked(s: &[u8]) -> std::ops::Range<usize> {
    let end = s.iter().rposition(|byte| !is_blank(byte)).map_or(0, |last| last + 1);
    s[..end].iter().position(|byte| !is_blank(byte)).unwrap_or(0)..end
}

/// Returns a string without blanks at both ends.
pub(super) fn trimmed(s: &[u8]) -> &[u8] {
    &s[unblanked(s)]
}

/// A blank of C's `isspace`, as TensorFlow and Python have it: also the vertical tab.
fn is_blank(byte: &u8) -> bool {
    byte.is_ascii_whitespace() || *byte == 0x0b
}

/// Returns the definition of an operation on one tensor of strings.
pub(super) const fn row(name: &'static str, infer: Infer, eval: Eval) -> OpDef {
    OpDef {
        name,
        arity: Arity::Exactly(1),
        attrs: &[],
        infer,
        eval,
        grad: Grad::Zero("strings have no derivative"),
        exactness: Exactness::Exact,
        class: OpClass::Opaque(Effort::FUNCTION),
        halves: Halves::Direct,
        effects: Effects::Pure,
        laws: Laws::NONE,
    }
}

/// The type of the operand, strings.
pub(super) fn of_strings(cx: &InferCx<'_>) -> Result<Type, OpError> {
    like_operand(cx, Class::Bytes)
}

/// The shape of the first operand, strings, with another element type.
pub(super) fn from_strings(cx: &InferCx<'_>, dtype: DType) -> Result<Type, OpError> {
    Class::Bytes.check(cx.tensor(0)?)?;
    Ok(Type::tensor(dtype, &cx.tensor(0)?.shape))
}

/// The number of bytes of each string.
static BYTE_LEN: OpDef = OpDef {
    effects: Effects::Fallible,
    ..row(
        "byte_len",
        |cx| from_strings(cx, DType::I32),
        |cx| {
            let length = |(i, s): (usize, &Bytes)| {
                i32::try_from(s.len()).map_err(|_| {
                    let message = format!("the length of a string of {} bytes{} is no i32", s.len(), place(cx, i));
                    OpError::new(message).help("take lengths of strings of less than 2 GiB")
                })
            };
            let lengths = cx.operands[0].data::<Bytes>().iter().enumerate().map(length);
            Ok(cx.result(lengths.collect::<Result<_, _>>()?))
        },
    )
};

/// The part of each string from a position, of at most a number of bytes.
static SUBSTR: OpDef = OpDef {
    arity: Arity::Exactly(3),
    effects: Effects::Fallible,
    ..row(
        "substr",
        |cx| {
            let x = cx.tensor(0)?;
            Class::Bytes.check(x)?;
            let numbers = common(&InferCx { operands: &cx.operands[1..], attrs: cx.attrs }, Class::Int)?;
            if numbers.dtype != DType::I32 {
                let error = OpError::new(format!("positions and lengths are i32, not {}", numbers.dtype));
                return Err(error.label(numbers.to_string()).help("convert them with `.cast::<i32>()`"));
            }
            if !x.shape.compatible(&numbers.shape) {
                return Err(super::infer::shapes_differ(x, &numbers));
            }
            Ok(Type::tensor(DType::Bytes, x.shape.meet(&numbers.shape)))
        },
        |cx| {
            let (starts, lengths) = (cx.operands[1].data::<i32>(), cx.operands[2].data::<i32>());
            let part = |(i, s): (usize, &Bytes)| {
                let (n, from) = (s.len() as i64, i64::from(starts[i]));
                let start = if from < 0 { n + from } else { from };
                if !(0..=n).contains(&start) {
                    let message = format!("position {from} is out of bounds for {}{}", shown(s), place(cx, i));
                    return Err(OpError::new(message).help(format!("its positions are from {} to {n}", -n)));
                }
                let rest = n - start;
                let length = if lengths[i] < 0 { rest } else { rest.min(lengths[i].into()) };
                Ok(s.slice(start as usize..(start + length) as usize))
            };
            let parts = cx.operands[0].data::<Bytes>().iter().enumerate().map(part);
            Ok(cx.result(parts.collect::<Result<Vec<_>, _>>()?))
        },
    )
};

/// Makes each byte of each string.
fn each_byte(cx: &EvalCx<'_>, f: fn(&u8) -> u8) -> Result<HostTensor, OpError> {
    let mut made = StringsBuilder::default();
    cx.operands[0].data::<Bytes>().iter().for_each(|s| made.add(|to| to.extend(s.iter().map(f))));
    Ok(made.finish(cx))
}

/// The strings with the letters `A` to `Z` in lower case.
static LOWER: OpDef = OpDef {
    laws: Laws { idempotent: true, ..Laws::NONE },
    ..row("lower", of_strings, |cx| each_byte(cx, u8::to_ascii_lowercase))
};
/// The strings with the letters `a` to `z` in upper case.
static UPPER: OpDef = OpDef {
    laws: Laws { idempotent: true, ..Laws::NONE },
    ..row("upper", of_strings, |cx| each_byte(cx, u8::to_ascii_uppercase))
};

/// The strings without blanks at both ends.
static STRIP: OpDef = OpDef {
    laws: Laws { idempotent: true, ..Laws::NONE },
    ..row("strip", of_strings, |cx| {
        let strip = |s: &Bytes| s.slice(unblanked(s));
        Ok(cx.result(cx.operands[0].data::<Bytes>().iter().map(strip).collect()))
    })
};

/// The strings of all operands but the first one after the other, with the first between them.
static JOIN: OpDef = OpDef {
    arity: Arity::AtLeast(2),
    ..row(
        "join",
        |cx| {
            check_scalar(cx, 0, Class::Bytes, "separator")?;
            let parts = InferCx { operands: &cx.operands[1..], attrs: cx.attrs };
            Ok(common(&parts, Class::Bytes)?.into())
        },
        |cx| {
            let (separator, mut made) = (only(cx, 0), StringsBuilder::default());
            for i in 0..cx.operands[1].len() {
                let parts = cx.operands[1..].iter().map(|x| &x.data::<Bytes>()[i]);
                made.add_joined(parts, separator)?;
            }
            Ok(made.finish(cx))
        },
    )
};

/// The strings along an axis of the first operand, with the second between them.
static REDUCE_JOIN: OpDef = OpDef {
    arity: Arity::Exactly(2),
    attrs: Along::DECLARED,
    ..row(
        "reduce_join",
        |cx| {
            let x = cx.tensor(0)?;
            Class::Bytes.check(x)?;
            check_scalar(cx, 1, Class::Bytes, "separator")?;
            let axis = super::infer::axis_attr(cx, x)?;
            Ok(Type::tensor(DType::Bytes, reduced(&x.shape, &[axis], false)))
        },
        |cx| {
            let (x, axis) = (cx.operands[0], Along::of(cx.attrs).axis);
            let (strings, n, separator) = (x.data::<Bytes>(), x.shape()[axis], only(cx, 1));
            let (starts, stride) = lanes(x.shape(), axis);
            let mut made = StringsBuilder::default();
            for start in starts {
                let lane = (0..n).map(|i| &strings[start + i * stride]);
                made.add_joined(lane, separator)?;
            }
            Ok(made.finish(cx))
        },
    )
};

/// Returns the parts of a string between separators, or between blanks if the separator is empty.
fn split(s: &Bytes, separator: &[u8]) -> Vec<Bytes> {
    let mut parts = Vec::new();
    let mut start = 0;
    if separator.is_empty() {
        while let Some(n) = s[start..].iter().position(|byte| !is_blank(byte)) {
            start += n;
            let n = s[start..].iter().position(is_blank).unwrap_or(s.len() - start);
            parts.push(s.slice(start..start + n));
            start += n;
        }
        return parts;
    }
    let mut at = 0;
    while at + separator.len() <= s.len() {
        if s[at..].starts_with(separator) {
            parts.push(s.slice(start..at));
            at += separator.len();
            start = at;
        } else {
            at += 1;
        }
    }
    parts.push(s.slice(start..));
    parts
}

/// The parts of a string between the second operand.
static SPLIT: OpDef = OpDef {
    arity: Arity::Exactly(2),
    ..row(
        "split",
        |cx| {
            check_scalar(cx, 1, Class::Bytes, "separator")?;
            let x = cx.tensor(0)?;
            Class::Bytes.check(x)?;
            if x.rank() > 0 {
                let error =
                    OpError::new(format!("splits one string, not {x}: strings may have different numbers of parts"));
                let help =
                    "split each into the same number of parts with `.split_into(separator, n)`, or each in a loop";
                return Err(error.label(x.to_string()).help(help));
            }
            Ok(Type::tensor(DType::Bytes, [Dim::Unknown]))
        },
        |cx| {
            let parts = split(only(cx, 0), only(cx, 1));
            Ok(HostTensor::new([parts.len()], parts))
        },
    )
};

/// The parts of each string between the second operand, along a new last axis.
static SPLIT_INTO: OpDef = OpDef {
    arity: Arity::Exactly(2),
    attrs: Count::DECLARED,
    effects: Effects::Fallible,
    ..row(
        "split_into",
        |cx| {
            check_scalar(cx, 1, Class::Bytes, "separator")?;
            let x = cx.tensor(0)?;
            Class::Bytes.check(x)?;
            let n = Dim::Known(Count::of(cx.attrs).n);
            Ok(Type::tensor(DType::Bytes, Shape::from([x.shape.dims(), &[n]].concat())))
        },
        |cx| {
            let (n, separator) = (Count::of(cx.attrs).n, only(cx, 1));
            let mut all = Vec::new();
            for (i, s) in cx.operands[0].data::<Bytes>().iter().enumerate() {
                let parts = split(s, separator);
                if parts.len() != n {
                    let message = format!("{}{} has {} parts, not {n}", shown(s), place(cx, i), parts.len());
                    return Err(OpError::new(message).help("each string must have as many parts as the result"));
                }
                all.extend(parts);
            }
            Ok(cx.result(all))
        },
    )
};

/// Joins strings of several tensors elementwise, broadcast to their common shape, with a separator
/// between them.
///
/// ```
/// # use anabranch::prelude::*;
/// let path = eval(|| {
///     let (dir, names) = (scalar("data".into()), tensor(["a.txt", "b.txt"]));
///     join_strings(&[dir, names], "/")
/// })?;
/// assert_eq!(path.as_slice(), ["data/a.txt", "data/b.txt"]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn join_strings(parts: &[Tensor<Bytes>], separator: impl Operand<Bytes>) -> Tensor<Bytes> {
    let parts: Vec<AnyValue> = parts.iter().map(|part| part.untyped()).collect();
    let mut shape = Shape::from(());
    for part in &parts {
        let ty = part.tensor_type();
        let Some(common) = shape.broadcast(&ty.shape) else {
            refuse::<InTrace>("join", super::infer::shapes_differ(&TensorType { shape, ..ty.clone() }, &ty))
        };
        shape = common;
    }
    let like = parts.iter().copied().find(|part| part.shape() == shape);
    let Some(like) = like.or(parts.first().copied()) else {
        refuse::<InTrace>("join", OpError::new("expected at least one tensor").help("pass the tensors to be joined"))
    };
    let parts = parts.iter().map(|&part| stretch("join", part, &part.shape(), &shape, like));
    let operands: Vec<AnyValue> = std::iter::once(separator.into_tensor().untyped()).chain(parts).collect();
    Tensor::from_any(emit(prim::JOIN, &operands, Attrs::none()))
}

impl Tensor<Bytes> {
    /// Returns the number of bytes of each string.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor(["a", "", "é"]).byte_len())?.as_slice(), [1, 0, 2]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn byte_len(self) -> Tensor<i32> {
        Tensor::from_any(emit(prim::BYTE_LEN, &[self.untyped()], Attrs::none()))
    }

    /// Returns the part of each string from a position, of at most `len` bytes. All three are
    /// broadcast to their common shape.
    ///
    /// A negative position counts from the end, and a negative length is up to the end. A position
    /// beyond the string is an error of the step, which says at which element.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let part = eval(|| tensor(["thirteen", "four"]).substr(-4, 3))?;
    /// assert_eq!(part.as_slice(), ["tee", "fou"]);
    /// let error = eval(|| tensor(["thirteen", "four"]).substr(5, 3)).unwrap_err();
    /// assert_eq!(error.message, "substr: position 5 is out of bounds for b\"four\" at [1]");
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn substr(self, position: impl Operand<i32>, len: impl Operand<i32>) -> Tensor<Bytes> {
        let operands = [self.untyped(), position.into_tensor().untyped(), len.into_tensor().untyped()];
        let types = operands.map(|operand| operand.tensor_type());
        let (mut shape, mut like) = (types[0].shape.clone(), operands[0]);
        for (operand, ty) in operands.iter().zip(&types).skip(1) {
            let Some(common) = shape.broadcast(&ty.shape) else {
                refuse::<InTrace>("substr", super::infer::shapes_differ(&types[0], ty))
            };
            if common != shape {
                like = *operand;
            }
            shape = common;
        }
        let operands = operands.map(|operand| stretch("substr", operand, &operand.shape(), &shape, like));
        Tensor::from_any(emit(prim::SUBSTR, &operands, Attrs::none()))
    }

    /// Makes the letters `A` to `Z` lower case. Other bytes stay as they are.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor(["Gate É"]).lower())?.as_slice(), ["gate É"]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn lower(self) -> Tensor<Bytes> {
        Tensor::from_any(emit(prim::LOWER, &[self.untyped()], Attrs::none()))
    }

    /// Makes the letters `a` to `z` upper case. Other bytes stay as they are.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor(["Gate é"]).upper())?.as_slice(), ["GATE é"]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn upper(self) -> Tensor<Bytes> {
        Tensor::from_any(emit(prim::UPPER, &[self.untyped()], Attrs::none()))
    }

    /// Removes blanks at both ends of each string.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor([" a b\r\n", "\t"]).strip())?.as_slice(), ["a b", ""]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn strip(self) -> Tensor<Bytes> {
        Tensor::from_any(emit(prim::STRIP, &[self.untyped()], Attrs::none()))
    }

    /// Joins each string with the one of another tensor, both broadcast to their common shape, with
    /// a separator between them. See also [`join_strings`].
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor(["a", "b"]).join("x", "-"))?.as_slice(), ["a-x", "b-x"]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn join(self, other: impl Operand<Bytes>, separator: impl Operand<Bytes>) -> Tensor<Bytes> {
        join_strings(&[self, other.into_tensor()], separator)
    }

    /// Joins the strings along an axis, with a separator between them. An axis without strings
    /// gives the empty string.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let rows = eval(|| tensor([["a", "b"], ["c", "d"]]).reduce_join(1, ","))?;
    /// assert_eq!(rows.as_slice(), ["a,b", "c,d"]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn reduce_join(self, axis: isize, separator: impl Operand<Bytes>) -> Tensor<Bytes> {
        let axis = self.untyped().axis("reduce_join", axis);
        let operands = [self.untyped(), separator.into_tensor().untyped()];
        Tensor::from_any(emit(prim::REDUCE_JOIN, &operands, Along { axis }.into()))
    }

    /// Splits one string at each separator. The number of parts is known only when the graph runs.
    ///
    /// As in Python, an empty separator splits at any number of blanks and yields no empty parts;
    /// any other yields an empty part between two separators and at the ends.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| scalar("1,2,,3".into()).split(","))?.as_slice(), ["1", "2", "", "3"]);
    /// let words = eval(|| scalar(" pigs on  wings ".into()).split(""))?;
    /// assert_eq!(words.as_slice(), ["pigs", "on", "wings"]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn split(self, separator: impl Operand<Bytes>) -> Tensor<Bytes> {
        let operands = [self.untyped(), separator.into_tensor().untyped()];
        Tensor::from_any(emit(prim::SPLIT, &operands, Attrs::none()))
    }

    /// Splits each string into `n` parts, along a new last axis, as [`split`](Self::split) does. A
    /// string with more or fewer parts is an error of the step, which says which element it is.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor(["1,2", "3,4"]).split_into(",", 2).parse::<i32>())?;
    /// assert_eq!((y.shape(), y.to_vec()), (&[2, 2][..], vec![1, 2, 3, 4]));
    /// let error = eval(|| tensor(["1,2", "3"]).split_into(",", 2)).unwrap_err();
    /// assert_eq!(error.message, "split_into: b\"3\" at [1] has 1 parts, not 2");
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn split_into(self, separator: impl Operand<Bytes>, n: usize) -> Tensor<Bytes> {
        let operands = [self.untyped(), separator.into_tensor().untyped()];
        Tensor::from_any(emit(prim::SPLIT_INTO, &operands, Count { n }.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_strings_without_memory_are_an_error() {
        let part = Bytes::from(vec![b'x'; 1 << 20]);
        let mut made = StringsBuilder::default();
        assert!(made.add_joined(std::iter::repeat_n(&part, 2), b"-").is_ok());
        let error = made.add_joined(std::iter::repeat_n(&part, 1 << 24), b"").unwrap_err();
        assert_eq!(error.kind, ErrorKind::ResourceExhausted);
        assert_eq!(made.block.len(), (2 << 20) + 1);
    }
}
