//! The primitives on numbers of the host.

use super::{Arithmetic, Bitwise, Comparable, Mask, Real};

macro_rules! values {
    ($($t:ident)*) => {$(
        impl Comparable for $t {
            type Mask = bool;
            #[inline(always)]
            fn equals(self, other: $t) -> bool {
                self == other
            }
        }
    )*};
}
values!(f32 f64 i32 i64 u32 u8 bool);

impl Mask for bool {
    #[inline(always)]
    fn and(self, other: bool) -> bool {
        self & other
    }
    #[inline(always)]
    fn or(self, other: bool) -> bool {
        self | other
    }
    #[inline(always)]
    fn xor(self, other: bool) -> bool {
        self ^ other
    }
    #[inline(always)]
    fn not(self) -> bool {
        !self
    }
}

/// The methods of [`Arithmetic`] that are the same for all types.
macro_rules! comparisons {
    ($t:ident) => {
        #[inline(always)]
        fn number(self, x: f64) -> $t {
            x as $t
        }
        #[inline(always)]
        fn less(self, other: $t) -> bool {
            self < other
        }
        #[inline(always)]
        fn at_most(self, other: $t) -> bool {
            self <= other
        }
        #[inline(always)]
        fn choose(when: bool, a: $t, b: $t) -> $t {
            if when { a } else { b }
        }
    };
}

macro_rules! real {
    ($t:ident $int:ident $bits:ident, mantissa $mantissa:literal) => {
        impl Arithmetic for $t {
            const SIGNED: bool = true;
            comparisons!($t);
            #[inline(always)]
            fn add(self, other: $t) -> $t {
                self + other
            }
            #[inline(always)]
            fn sub(self, other: $t) -> $t {
                self - other
            }
            #[inline(always)]
            fn mul(self, other: $t) -> $t {
                self * other
            }
            #[inline(always)]
            fn div(self, other: $t) -> $t {
                self / other
            }
            #[inline(always)]
            fn rem(self, other: $t) -> $t {
                self % other
            }
            #[inline(always)]
            fn neg(self) -> $t {
                -self
            }
            #[inline(always)]
            fn magnitude(self) -> $t {
                self.abs()
            }
            #[inline(always)]
            fn larger(self, other: $t) -> $t {
                if self.is_nan() || self > other { self } else { other }
            }
            #[inline(always)]
            fn smaller(self, other: $t) -> $t {
                if self.is_nan() || self < other { self } else { other }
            }
        }

        impl Real for $t {
            type Format = $t;
            type Int = $int;
            #[inline(always)]
            fn mul_add(self, b: $t, c: $t) -> $t {
                $t::mul_add(self, b, c)
            }
            #[inline(always)]
            fn sqrt(self) -> $t {
                $t::sqrt(self)
            }
            #[inline(always)]
            fn floor(self) -> $t {
                $t::floor(self)
            }
            #[inline(always)]
            fn ceil(self) -> $t {
                $t::ceil(self)
            }
            #[inline(always)]
            fn round_ties_even(self) -> $t {
                $t::round_ties_even(self)
            }
            #[inline(always)]
            fn nearest(self) -> ($t, $int) {
                // Adding 1.5 * 2^mantissa rounds to an integer, which is then in the low bits.
                const SHIFT: $t = 1.5 * ((1 as $bits) << $mantissa) as $t;
                let shifted = self + SHIFT;
                (shifted - SHIFT, shifted.to_bits().wrapping_sub(SHIFT.to_bits()) as $int)
            }
            #[inline(always)]
            fn copysign(self, sign: $t) -> $t {
                $t::copysign(self, sign)
            }
            #[inline(always)]
            fn bits(self) -> $int {
                self.to_bits() as $int
            }
            #[inline(always)]
            fn from_bits(bits: $int) -> $t {
                $t::from_bits(bits as $bits)
            }
            #[inline(always)]
            fn from_int(n: $int) -> $t {
                n as $t
            }
        }
    };
}
real!(f32 i32 u32, mantissa 23);
real!(f64 i64 u64, mantissa 52);

macro_rules! integer {
    ($($t:ident $signed:literal |$x:ident| $magnitude:expr;)*) => {$(
        impl Arithmetic for $t {
            const SIGNED: bool = $signed;
            comparisons!($t);
            #[inline(always)]
            fn add(self, other: $t) -> $t {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn sub(self, other: $t) -> $t {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn mul(self, other: $t) -> $t {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn div(self, other: $t) -> $t {
                self.wrapping_div(other)
            }
            #[inline(always)]
            fn rem(self, other: $t) -> $t {
                self.wrapping_rem(other)
            }
            #[inline(always)]
            fn neg(self) -> $t {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn magnitude(self) -> $t {
                let $x = self;
                $magnitude
            }
            #[inline(always)]
            fn larger(self, other: $t) -> $t {
                self.max(other)
            }
            #[inline(always)]
            fn smaller(self, other: $t) -> $t {
                self.min(other)
            }
        }

        impl Bitwise for $t {
            #[inline(always)]
            fn integer(self, x: i64) -> $t {
                x as $t
            }
            #[inline(always)]
            fn bit_and(self, other: $t) -> $t {
                self & other
            }
            #[inline(always)]
            fn bit_or(self, other: $t) -> $t {
                self | other
            }
            #[inline(always)]
            fn bit_xor(self, other: $t) -> $t {
                self ^ other
            }
            #[inline(always)]
            fn bit_not(self) -> $t {
                !self
            }
            #[inline(always)]
            fn shift_left(self, count: $t) -> $t {
                self.wrapping_shl(count as u32)
            }
            #[inline(always)]
            fn shift_right(self, count: $t) -> $t {
                self.wrapping_shr(count as u32)
            }
        }
    )*};
}
integer! {
    i32 true |x| x.wrapping_abs();
    i64 true |x| x.wrapping_abs();
    u32 false |x| x;
    u8 false |x| x;
}
