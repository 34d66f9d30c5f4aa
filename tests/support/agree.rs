//! One body as three functions: on tensors, on host values, and as plain Rust.

/// Checks that a function of tensors returns on every engine what the same function in plain Rust,
/// and the same `#[graph]` function of host values, return.
///
/// `agree!(name(x, n) over inputs; { .. })` writes a body once, for `i32`, and has a test for it.
/// `agree!(name(x: Num, n: Int) over numbers, integers; { .. })` is for `f64` and a case of the
/// corpus, with the derivative for `x`. `agree!(module::name as plain, host over inputs)` compares
/// the function in the module `staged` of `module` with those in its modules `plain` and `host`.
/// Such modules are defined by `agree!(modules [staged plain host] of defines [tokens])`: the macro
/// `defines` gets `(#[graph])` or `()`, and then the tokens.
macro_rules! agree {
    (modules [$($version:ident)+] of $defines:ident $tokens:tt) => {
        $(agree! { @module $version $defines $tokens })+
    };
    (@module staged $defines:ident [$($tokens:tt)*]) => {
        pub mod staged {
            use $crate::support::agree::on_tensors::*;
            $defines! { (#[anabranch::graph]) $($tokens)* }
        }
    };
    (@module host $defines:ident [$($tokens:tt)*]) => {
        pub mod host {
            use $crate::support::agree::on_host::*;
            $defines! { (#[anabranch::graph]) $($tokens)* }
        }
    };
    (@module plain $defines:ident [$($tokens:tt)*]) => {
        pub mod plain {
            use $crate::support::agree::on_host::*;
            $defines! { () $($tokens)* }
        }
    };
    ($name:ident($($arg:ident),*) over $inputs:expr; $body:block) => {
        mod $name {
            agree! { @versions ($($arg: Int),*) -> Int $body }
            #[test]
            #[allow(unused_parens, reason = "a list of one argument")]
            fn staged_host_and_plain_agree() {
                $crate::support::check_against_rust(
                    staged::f,
                    &[("plain", &|($($arg),*)| plain::f($($arg),*)), ("host", &|($($arg),*)| host::f($($arg),*))],
                    $inputs,
                );
            }
        }
    };
    ($name:ident($x:ident: Num, $n:ident: Int) over $numbers:expr, $integers:expr; $body:block) => {
        mod $name {
            use $crate::corpus_control::engine::{ControlCase, gives};
            use $crate::support::dual::Dual;
            agree! { @versions ($x: Num, $n: Int) -> Num $body }
            pub(super) fn case() -> ControlCase {
                let mut case = ControlCase::new(stringify!($name));
                for x in $numbers {
                    for n in $integers {
                        let x = Dual { value: x, slope: 1.0 };
                        let expected = plain::f(x, n);
                        assert_eq!(host::f(x, n), expected, "host, {x:?}, {n}");
                        let Dual { value, slope } = expected;
                        case = case.at(staged::f, (x.value, n), gives(&[value]).first(&[slope]));
                    }
                }
                case
            }
        }
    };
    ($module:ident::$name:ident as $($version:ident),+ over $inputs:expr) => {
        $crate::support::check_against_rust(
            $module::staged::$name,
            &[$((stringify!($version), &$module::$version::$name)),+],
            $inputs,
        )
    };
    (@versions ($($arg:ident: $ty:ident),*) -> $result:ident $body:block) => {
        mod staged {
            #[allow(unused_imports, reason = "not every body needs all of them")]
            use $crate::support::agree::on_tensors::{Int, Num, count, int, num, up_to};
            #[anabranch::graph]
            pub(super) fn f($(mut $arg: $ty),*) -> $result { $(let _ = &mut $arg;)* $body }
        }
        mod host {
            #[allow(unused_imports, reason = "not every body needs all of them")]
            use $crate::support::agree::on_host::{Int, Num, count, int, num, up_to};
            #[anabranch::graph]
            pub(super) fn f($(mut $arg: $ty),*) -> $result { $(let _ = &mut $arg;)* $body }
        }
        mod plain {
            #[allow(unused_imports, reason = "not every body needs all of them")]
            use $crate::support::agree::on_host::{Int, Num, count, int, num, up_to};
            pub(super) fn f($(mut $arg: $ty),*) -> $result { $(let _ = &mut $arg;)* $body }
        }
    };
}

/// The names in bodies on tensors.
pub mod on_tensors {
    use anabranch::control::RangeEnd;
    use anabranch::{Range, Tensor, range, scalar};

    pub type Int = Tensor<i32>;
    pub type Num = Tensor<f64>;

    pub fn int(x: i32) -> Int {
        scalar(x)
    }

    pub fn num(x: f64) -> Num {
        scalar(x)
    }

    pub fn count(from: impl RangeEnd<i32>, to: Int) -> Range {
        range((from, to))
    }

    pub fn up_to(n: Int) -> Range {
        range(n)
    }
}

/// The names in bodies on host values and in plain Rust.
pub mod on_host {
    use crate::support::dual::Dual;

    pub type Int = i32;
    pub type Num = Dual;

    pub fn int(x: i32) -> Int {
        x
    }

    pub fn num(x: f64) -> Num {
        x.into()
    }

    pub fn count(from: i32, to: Int) -> std::ops::Range<i32> {
        from..to
    }

    pub fn up_to(n: Int) -> std::ops::Range<i32> {
        0..n
    }
}
