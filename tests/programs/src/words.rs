//! The names that the text of programs uses, with a definition for each dialect.

/// Plain Rust with `f32`.
pub mod plain32 {
    /// An integer.
    pub type Int = i32;
    /// A float.
    pub type Float = f32;
    /// A truth value.
    pub type Bool = bool;
    pub use super::plain::*;

    /// The float.
    pub fn float(x: f32) -> f32 {
        x
    }
    /// As a float.
    pub fn to_float(x: i32) -> f32 {
        x as f32
    }
    /// As an integer, rounded towards zero.
    pub fn to_int(x: f32) -> i32 {
        x as i32
    }
    /// Between -1 and 1.
    pub fn softsign(x: f32) -> f32 {
        x / (1.0 + x.abs())
    }
}

/// Plain Rust with dual numbers, which are floats of type `f64` with their derivatives.
pub mod plain64 {
    use crate::dual::Dual;
    /// An integer.
    pub type Int = i32;
    /// A float.
    pub type Float = Dual;
    /// A truth value.
    pub type Bool = bool;
    pub use super::plain::*;

    /// The float.
    pub fn float(x: f64) -> Dual {
        Dual::constant(x)
    }
    /// As a float.
    pub fn to_float(x: i32) -> Dual {
        Dual::constant(x.into())
    }
    /// As an integer, rounded towards zero.
    pub fn to_int(x: Dual) -> i32 {
        x.value as i32
    }
    /// Between -1 and 1.
    pub fn softsign(x: Dual) -> Dual {
        x / (1.0 + x.abs())
    }
}

/// Definitions for both plain sides.
mod plain {
    use crate::dual::MinMax;
    use std::ops::Range;

    /// The integer.
    pub fn int(x: i32) -> i32 {
        x
    }
    /// The truth value.
    pub fn truth(x: bool) -> bool {
        x
    }
    /// The smaller one.
    pub fn smaller<T: MinMax>(a: T, b: T) -> T {
        a.smaller(b)
    }
    /// The larger one.
    pub fn larger<T: MinMax>(a: T, b: T) -> T {
        a.larger(b)
    }

    /// The argument of a `range`.
    pub trait RangeArgument {
        /// The integers.
        fn range(self) -> Range<i32>;
    }
    impl RangeArgument for i32 {
        fn range(self) -> Range<i32> {
            0..self
        }
    }
    impl RangeArgument for Range<i32> {
        fn range(self) -> Range<i32> {
            self
        }
    }
    // `#[graph]` passes both ends, since a `Range` of tensors looks like a host range.
    impl RangeArgument for (i32, i32) {
        fn range(self) -> Range<i32> {
            self.0..self.1
        }
    }
    /// Returns the integers over which a loop runs.
    pub fn range(bounds: impl RangeArgument) -> Range<i32> {
        bounds.range()
    }
}

macro_rules! staged {
    ($name:ident $float:ident $doc:literal) => {
        #[doc = $doc]
        pub mod $name {
            pub use anabranch::prelude::*;

            /// An integer.
            pub type Int = Tensor<i32>;
            /// A float.
            pub type Float = Tensor<$float>;
            /// A truth value.
            pub type Bool = Tensor<bool>;

            /// The integer.
            #[track_caller]
            pub fn int(x: i32) -> Int {
                anabranch::scalar(x)
            }
            /// The float.
            #[track_caller]
            pub fn float(x: $float) -> Float {
                anabranch::scalar(x)
            }
            /// The truth value.
            #[track_caller]
            pub fn truth(x: bool) -> Bool {
                anabranch::scalar(x)
            }
            /// As a float.
            #[track_caller]
            pub fn to_float(x: Int) -> Float {
                x.cast()
            }
            /// As an integer, rounded towards zero.
            #[track_caller]
            pub fn to_int(x: Float) -> Int {
                x.cast()
            }
            /// Between -1 and 1.
            #[track_caller]
            pub fn softsign(x: Float) -> Float {
                x / (x.abs() + 1.0)
            }
            /// The smaller one.
            #[track_caller]
            pub fn smaller<T: anabranch::Numeric>(a: Tensor<T>, b: Tensor<T>) -> Tensor<T> {
                a.minimum(b)
            }
            /// The larger one.
            #[track_caller]
            pub fn larger<T: anabranch::Numeric>(a: Tensor<T>, b: Tensor<T>) -> Tensor<T> {
                a.maximum(b)
            }
        }
    };
}
staged!(staged32 f32 "`#[graph]` with `f32`.");
staged!(staged64 f64 "`#[graph]` with `f64`.");
