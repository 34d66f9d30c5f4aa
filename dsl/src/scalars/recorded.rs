//! Recording of scalar functions as [`ScalarExpr`].

use super::{
    Arithmetic, BinaryOp, Bitwise, Comparable, ExprNode, ExprNodeId, Mask, Real, ScalarExpr, TernaryOp, UnaryOp, is_far,
};
use crate::{DType, Element};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A list of nodes that grows. Equal nodes are recorded once.
#[derive(Debug, Default)]
pub struct Recorder {
    nodes: RefCell<Nodes>,
}

#[derive(Debug, Default)]
struct Nodes {
    list: Vec<(ExprNode, DType)>,
    known: FxHashMap<(ExprNode, DType), ExprNodeId>,
}

impl Recorder {
    // Not inlined, and neither is `record`: both would be copied into the recording of each
    // function.
    #[inline(never)]
    fn push(&self, node: ExprNode, dtype: DType) -> ExprNodeId {
        let Nodes { list, known } = &mut *self.nodes.borrow_mut();
        *known.entry((node, dtype)).or_insert_with(|| {
            list.push((node, dtype));
            ExprNodeId(u16::try_from(list.len() - 1).expect("a scalar function has few nodes"))
        })
    }

    fn argument<T: Element>(&self, i: u8) -> Recorded<'_, T> {
        Recorded::new(self, ExprNode::Argument(i))
    }

    /// Records a function that yields its result and whether its argument is far.
    #[inline(never)]
    fn record(f: &dyn Fn(&Recorder) -> (ExprNodeId, Option<ExprNodeId>)) -> ScalarExpr {
        let recorder = Recorder::default();
        let (result, far) = f(&recorder);
        ScalarExpr { nodes: recorder.nodes.into_inner().list, result, far }
    }

    /// Records a function of one argument.
    pub fn unary<T: Element, R>(f: impl for<'r> Fn(Recorded<'r, T>) -> Recorded<'r, R>) -> ScalarExpr {
        Recorder::record(&|recorder| (f(recorder.argument(0)).id, None))
    }

    /// Records a function of one float that is not [far](is_far).
    pub fn near<T: Element>(f: impl for<'r> Fn(Recorded<'r, T>) -> Recorded<'r, T>) -> ScalarExpr
    where
        for<'r> Recorded<'r, T>: Real<Mask = Recorded<'r, bool>>,
    {
        Recorder::record(&|recorder| {
            let x = recorder.argument(0);
            (f(x).id, Some(is_far(x).id))
        })
    }

    /// Records a function of two arguments.
    pub fn binary<T: Element, R>(
        f: impl for<'r> Fn(Recorded<'r, T>, Recorded<'r, T>) -> Recorded<'r, R>,
    ) -> ScalarExpr {
        Recorder::record(&|recorder| (f(recorder.argument(0), recorder.argument(1)).id, None))
    }
}

/// A value of type `T` that is being recorded.
pub struct Recorded<'r, T> {
    recorder: &'r Recorder,
    id: ExprNodeId,
    ty: PhantomData<T>,
}

impl<T> Copy for Recorded<'_, T> {}
impl<T> Clone for Recorded<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<'r, T: Element> Recorded<'r, T> {
    fn new(recorder: &'r Recorder, node: ExprNode) -> Self {
        Recorded { recorder, id: recorder.push(node, T::DTYPE), ty: PhantomData }
    }
    fn constant(self, bits: u64) -> Self {
        Recorded::new(self.recorder, ExprNode::Constant(bits))
    }
    fn unary<R: Element>(self, op: UnaryOp) -> Recorded<'r, R> {
        Recorded::new(self.recorder, ExprNode::Unary(op, self.id))
    }
    fn binary<R: Element>(self, op: BinaryOp, other: Self) -> Recorded<'r, R> {
        Recorded::new(self.recorder, ExprNode::Binary(op, self.id, other.id))
    }
}

impl<'r, T: Element> Comparable for Recorded<'r, T> {
    type Mask = Recorded<'r, bool>;
    fn equals(self, other: Self) -> Recorded<'r, bool> {
        self.binary(BinaryOp::Equal, other)
    }
}

impl Mask for Recorded<'_, bool> {
    fn and(self, other: Self) -> Self {
        self.binary(BinaryOp::And, other)
    }
    fn or(self, other: Self) -> Self {
        self.binary(BinaryOp::Or, other)
    }
    fn xor(self, other: Self) -> Self {
        self.binary(BinaryOp::Xor, other)
    }
    fn not(self) -> Self {
        self.unary(UnaryOp::Not)
    }
}

/// The methods of [`Arithmetic`] for one type, whose constants have the given bits.
macro_rules! number {
    ($t:ident, |$x:ident| $bits:expr) => {
        impl<'r> Arithmetic for Recorded<'r, $t> {
            const SIGNED: bool = <$t as Arithmetic>::SIGNED;
            fn number(self, x: f64) -> Self {
                let $x = x as $t;
                self.constant($bits)
            }
            fn add(self, other: Self) -> Self {
                self.binary(BinaryOp::Add, other)
            }
            fn sub(self, other: Self) -> Self {
                self.binary(BinaryOp::Sub, other)
            }
            fn mul(self, other: Self) -> Self {
                self.binary(BinaryOp::Mul, other)
            }
            fn div(self, other: Self) -> Self {
                self.binary(BinaryOp::Div, other)
            }
            fn rem(self, other: Self) -> Self {
                self.binary(BinaryOp::Rem, other)
            }
            fn neg(self) -> Self {
                self.unary(UnaryOp::Neg)
            }
            fn magnitude(self) -> Self {
                if Self::SIGNED { self.unary(UnaryOp::Abs) } else { self }
            }
            fn larger(self, other: Self) -> Self {
                self.binary(BinaryOp::Larger, other)
            }
            fn smaller(self, other: Self) -> Self {
                self.binary(BinaryOp::Smaller, other)
            }
            fn less(self, other: Self) -> Recorded<'r, bool> {
                self.binary(BinaryOp::Less, other)
            }
            fn at_most(self, other: Self) -> Recorded<'r, bool> {
                self.binary(BinaryOp::AtMost, other)
            }
            fn choose(when: Recorded<'r, bool>, a: Self, b: Self) -> Self {
                Recorded::new(a.recorder, ExprNode::Ternary(TernaryOp::Select, when.id, a.id, b.id))
            }
        }
    };
}
number!(f32, |x| u64::from(x.to_bits()));
number!(f64, |x| x.to_bits());
number!(i32, |x| u64::from(x.cast_unsigned()));
number!(i64, |x| x.cast_unsigned());
number!(u32, |x| u64::from(x));
number!(u8, |x| u64::from(x));

macro_rules! real {
    ($t:ident $int:ident) => {
        impl Add for Recorded<'_, $t> {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Arithmetic::add(self, other)
            }
        }
        impl Sub for Recorded<'_, $t> {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Arithmetic::sub(self, other)
            }
        }
        impl Mul for Recorded<'_, $t> {
            type Output = Self;
            fn mul(self, other: Self) -> Self {
                Arithmetic::mul(self, other)
            }
        }
        impl Div for Recorded<'_, $t> {
            type Output = Self;
            fn div(self, other: Self) -> Self {
                Arithmetic::div(self, other)
            }
        }
        impl Neg for Recorded<'_, $t> {
            type Output = Self;
            fn neg(self) -> Self {
                Arithmetic::neg(self)
            }
        }
        impl<'r> Real for Recorded<'r, $t> {
            type Format = $t;
            type Int = Recorded<'r, $int>;
            fn mul_add(self, b: Self, c: Self) -> Self {
                Recorded::new(self.recorder, ExprNode::Ternary(TernaryOp::MulAdd, self.id, b.id, c.id))
            }
            fn sqrt(self) -> Self {
                self.unary(UnaryOp::Sqrt)
            }
            fn floor(self) -> Self {
                self.unary(UnaryOp::Floor)
            }
            fn ceil(self) -> Self {
                self.unary(UnaryOp::Ceil)
            }
            fn round_ties_even(self) -> Self {
                self.unary(UnaryOp::Round)
            }
            fn nearest(self) -> (Self, Recorded<'r, $int>) {
                (self.unary(UnaryOp::Nearest), self.unary(UnaryOp::NearestInt))
            }
            fn copysign(self, sign: Self) -> Self {
                self.binary(BinaryOp::CopySign, sign)
            }
            fn bits(self) -> Recorded<'r, $int> {
                self.unary(UnaryOp::Bits)
            }
            fn from_bits(bits: Recorded<'r, $int>) -> Self {
                bits.unary(UnaryOp::FromBits)
            }
            fn from_int(n: Recorded<'r, $int>) -> Self {
                n.unary(UnaryOp::FromInt)
            }
        }
    };
}
real!(f32 i32);
real!(f64 i64);

macro_rules! integer {
    ($($t:ident |$x:ident| $bits:expr;)*) => {$(
        impl Bitwise for Recorded<'_, $t> {
            fn integer(self, x: i64) -> Self {
                let $x = x as $t;
                self.constant($bits)
            }
            fn bit_and(self, other: Self) -> Self {
                self.binary(BinaryOp::And, other)
            }
            fn bit_or(self, other: Self) -> Self {
                self.binary(BinaryOp::Or, other)
            }
            fn bit_xor(self, other: Self) -> Self {
                self.binary(BinaryOp::Xor, other)
            }
            fn bit_not(self) -> Self {
                self.unary(UnaryOp::Not)
            }
            fn shift_left(self, count: Self) -> Self {
                self.binary(BinaryOp::ShiftLeft, count)
            }
            fn shift_right(self, count: Self) -> Self {
                self.binary(BinaryOp::ShiftRight, count)
            }
        }
    )*};
}
integer! {
    i32 |x| u64::from(x.cast_unsigned());
    i64 |x| x.cast_unsigned();
    u32 |x| u64::from(x);
    u8 |x| u64::from(x);
}
