//! One body as three functions: on tensors, on host values, and as plain Rust.

/// Defines the same function for tensors of `i32`, for `i32`, and in plain Rust, and checks that
/// all three agree.
macro_rules! agree {
    ($name:ident($($arg:ident),*) over $inputs:expr; $body:block) => {
        mod $name {
            use super::*;
            mod staged {
                use super::*;
                type Int = Tensor<i32>;
                #[allow(dead_code, reason = "not every body needs a constant")]
                fn int(x: i32) -> Int { scalar(x) }
                #[allow(dead_code, reason = "not every body counts")]
                fn count(from: impl anabranch::dsl::staged::RangeEnd<i32>, to: Int) -> anabranch::Range {
                    anabranch::range((from, to))
                }
                #[graph]
                pub(super) fn f($(mut $arg: Int),*) -> Int { $(let _ = &mut $arg;)* $body }
            }
            mod host {
                type Int = i32;
                #[allow(dead_code, reason = "not every body needs a constant")]
                fn int(x: i32) -> Int { x }
                #[allow(dead_code, reason = "not every body counts")]
                fn count(from: i32, to: Int) -> std::ops::Range<i32> { from..to }
                use anabranch::prelude::graph;
                #[graph]
                pub(super) fn f($(mut $arg: Int),*) -> Int { $(let _ = &mut $arg;)* $body }
            }
            mod plain {
                type Int = i32;
                #[allow(dead_code, reason = "not every body needs a constant")]
                fn int(x: i32) -> Int { x }
                #[allow(dead_code, reason = "not every body counts")]
                fn count(from: i32, to: Int) -> std::ops::Range<i32> { from..to }
                pub(super) fn f($(mut $arg: Int),*) -> Int { $(let _ = &mut $arg;)* $body }
            }
            #[test]
            #[allow(unused_parens, reason = "a list of one argument")]
            fn staged_host_and_plain_agree() {
                let mut inputs = 0;
                let session = Session::new().expect("a session");
                let compiled = session.function(staged::f).expect("it traces");
                for ($($arg),*) in $inputs {
                    inputs += 1;
                    let expected = plain::f($($arg),*);
                    assert_eq!(host::f($($arg),*), expected, "host, {:?}", ($($arg),*));
                    let staged = eval_with(staged::f, ($($arg),*)).unwrap_or_else(|e| panic!("{e}"));
                    assert_eq!(staged.item(), expected, "staged, {:?}", ($($arg),*));
                    let staged = compiled.call(($($arg),*)).unwrap_or_else(|e| panic!("{e}"));
                    assert_eq!(staged.item(), expected, "compiled, {:?}", ($($arg),*));
                }
                assert!(inputs > 0, "there is something to run");
            }
        }
    };
}
