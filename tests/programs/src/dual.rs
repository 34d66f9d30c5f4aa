//! Dual numbers: a value and its derivatives with respect to the two floats of a program.
//!
//! Forward mode is exact and independent of graphs, so it is the reference for reverse mode. If a
//! function has no derivative (`abs` at 0, the maximum of equal numbers), the rules are those that
//! the operations document.

use std::cmp::Ordering;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Rem, RemAssign, Sub, SubAssign};

/// A value with its derivatives.
#[derive(Clone, Copy, Debug)]
pub struct Dual {
    /// The value.
    pub value: f64,
    /// The derivatives with respect to the inputs.
    pub by: [f64; 2],
}

impl Dual {
    /// Creates a number that depends on no input.
    pub fn constant(value: f64) -> Dual {
        Dual { value, by: [0.0; 2] }
    }

    /// Creates the input with this index.
    pub fn input(value: f64, number: usize) -> Dual {
        let mut by = [0.0; 2];
        by[number] = 1.0;
        Dual { value, by }
    }

    /// Returns a function of this number with the value `value` and the derivative `slope`.
    fn chain(self, value: f64, slope: f64) -> Dual {
        Dual { value, by: self.by.map(|d| d * slope) }
    }

    /// Returns a function of two numbers with the given value and partial derivatives.
    fn chain2(self, other: Dual, value: f64, slopes: [f64; 2]) -> Dual {
        let by = std::array::from_fn(|i| self.by[i] * slopes[0] + other.by[i] * slopes[1]);
        Dual { value, by }
    }

    /// Returns the absolute value, whose derivative at 0 is 0.
    #[must_use]
    pub fn abs(self) -> Dual {
        let sign = if self.value > 0.0 {
            1.0
        } else if self.value < 0.0 {
            -1.0
        } else {
            0.0
        };
        self.chain(self.value.abs(), sign)
    }

    /// Returns the sine.
    #[must_use]
    pub fn sin(self) -> Dual {
        self.chain(self.value.sin(), self.value.cos())
    }

    /// Returns the hyperbolic tangent.
    #[must_use]
    pub fn tanh(self) -> Dual {
        let y = self.value.tanh();
        self.chain(y, 1.0 - y * y)
    }
}

impl PartialEq for Dual {
    fn eq(&self, other: &Dual) -> bool {
        self.value == other.value
    }
}
impl PartialEq<f64> for Dual {
    fn eq(&self, other: &f64) -> bool {
        self.value == *other
    }
}
impl PartialEq<Dual> for f64 {
    fn eq(&self, other: &Dual) -> bool {
        *self == other.value
    }
}
impl PartialOrd for Dual {
    fn partial_cmp(&self, other: &Dual) -> Option<Ordering> {
        self.value.partial_cmp(&other.value)
    }
}
impl PartialOrd<f64> for Dual {
    fn partial_cmp(&self, other: &f64) -> Option<Ordering> {
        self.value.partial_cmp(other)
    }
}
impl PartialOrd<Dual> for f64 {
    fn partial_cmp(&self, other: &Dual) -> Option<Ordering> {
        self.partial_cmp(&other.value)
    }
}

impl Neg for Dual {
    type Output = Dual;
    fn neg(self) -> Dual {
        self.chain(-self.value, -1.0)
    }
}

macro_rules! operators {
    ($($op:ident $method:ident $assign:ident $assign_method:ident |$a:ident, $b:ident| $slopes:expr;)*) => {$(
        impl $op for Dual {
            type Output = Dual;
            fn $method(self, other: Dual) -> Dual {
                let ($a, $b) = (self.value, other.value);
                self.chain2(other, $a.$method($b), $slopes)
            }
        }
        impl $op<f64> for Dual {
            type Output = Dual;
            fn $method(self, other: f64) -> Dual {
                self.$method(Dual::constant(other))
            }
        }
        impl $op<Dual> for f64 {
            type Output = Dual;
            fn $method(self, other: Dual) -> Dual {
                Dual::constant(self).$method(other)
            }
        }
        impl $assign for Dual {
            fn $assign_method(&mut self, other: Dual) {
                *self = self.$method(other);
            }
        }
        impl $assign<f64> for Dual {
            fn $assign_method(&mut self, other: f64) {
                *self = self.$method(other);
            }
        }
    )*};
}
operators! {
    Add add AddAssign add_assign |_a, _b| [1.0, 1.0];
    Sub sub SubAssign sub_assign |_a, _b| [1.0, -1.0];
    Mul mul MulAssign mul_assign |a, b| [b, a];
    Div div DivAssign div_assign |a, b| [1.0 / b, -a / (b * b)];
    Rem rem RemAssign rem_assign |a, b| [1.0, -(a / b).trunc()];
}

/// Numbers with a minimum and a maximum.
pub trait MinMax: Copy {
    /// Returns the smaller number.
    #[must_use]
    fn smaller(self, other: Self) -> Self;
    /// Returns the larger number.
    #[must_use]
    fn larger(self, other: Self) -> Self;
}

impl MinMax for i32 {
    fn smaller(self, other: i32) -> i32 {
        self.min(other)
    }
    fn larger(self, other: i32) -> i32 {
        self.max(other)
    }
}

impl MinMax for f32 {
    fn smaller(self, other: f32) -> f32 {
        if self.is_nan() || self < other { self } else { other }
    }
    fn larger(self, other: f32) -> f32 {
        if self.is_nan() || self > other { self } else { other }
    }
}

impl MinMax for Dual {
    fn smaller(self, other: Dual) -> Dual {
        match self.partial_cmp(&other) {
            Some(Ordering::Equal) => self.chain2(other, other.value, [0.5, 0.5]),
            Some(Ordering::Greater) => other,
            _ => self,
        }
    }
    fn larger(self, other: Dual) -> Dual {
        match self.partial_cmp(&other) {
            Some(Ordering::Equal) => self.chain2(other, other.value, [0.5, 0.5]),
            Some(Ordering::Less) => other,
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivatives_are_those_of_finite_differences() {
        let f = |x: Dual, y: Dual| (x * y + 2.0 / (y + 3.0)).sin() - (x / y).tanh() * (x - 1.0).abs() + (x * 5.0) % y;
        let at = |x: f64, y: f64| f(Dual::constant(x), Dual::constant(y)).value;
        let (x, y, h) = (0.7, 1.3, 1e-6);
        let dual = f(Dual::input(x, 0), Dual::input(y, 1));
        assert_eq!(dual.value, at(x, y));
        assert!((dual.by[0] - (at(x + h, y) - at(x - h, y)) / (2.0 * h)).abs() < 1e-8);
        assert!((dual.by[1] - (at(x, y + h) - at(x, y - h)) / (2.0 * h)).abs() < 1e-8);
    }

    #[test]
    fn equal_numbers_share_the_derivative() {
        let (x, y) = (Dual::input(2.0, 0), Dual::input(2.0, 1));
        assert_eq!(x.larger(y).by, [0.5, 0.5]);
        assert_eq!(x.smaller(y + 1.0).by, [1.0, 0.0]);
        assert_eq!(Dual::input(0.0, 0).abs().by, [0.0, 0.0]);
    }
}
