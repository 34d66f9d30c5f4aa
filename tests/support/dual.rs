//! Numbers that carry their derivative.

use std::cmp::Ordering;
use std::ops::{Add, AddAssign, Mul, MulAssign, Sub, SubAssign};

/// A number with its derivative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dual {
    pub value: f64,
    pub slope: f64,
}

impl From<f64> for Dual {
    fn from(value: f64) -> Dual {
        Dual { value, slope: 0.0 }
    }
}

macro_rules! arithmetic {
    ($($op:ident $method:ident $assign:ident $assign_method:ident: |$a:ident, $b:ident| $slope:expr;)*) => {$(
        impl<R: Into<Dual>> $op<R> for Dual {
            type Output = Dual;
            fn $method(self, other: R) -> Dual {
                let ($a, $b): (Dual, Dual) = (self, other.into());
                Dual { value: $a.value.$method($b.value), slope: $slope }
            }
        }
        impl<R: Into<Dual>> $assign<R> for Dual {
            fn $assign_method(&mut self, other: R) {
                *self = self.$method(other);
            }
        }
    )*};
}
arithmetic! {
    Add add AddAssign add_assign: |a, b| a.slope + b.slope;
    Sub sub SubAssign sub_assign: |a, b| a.slope - b.slope;
    Mul mul MulAssign mul_assign: |a, b| a.slope * b.value + a.value * b.slope;
}

impl PartialEq<f64> for Dual {
    fn eq(&self, other: &f64) -> bool {
        self.value == *other
    }
}
impl PartialOrd<f64> for Dual {
    fn partial_cmp(&self, other: &f64) -> Option<Ordering> {
        self.value.partial_cmp(other)
    }
}
