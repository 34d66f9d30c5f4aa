//! The code that all stages make of a function.

use super::expand;
use proc_macro2::TokenStream;

/// Returns the expansion of a function.
#[track_caller]
fn rewritten(function: &str) -> String {
    let text = expand(TokenStream::new(), function.parse().unwrap()).to_string();
    assert!(!text.contains("compile_error"), "{text}");
    let start = text.find("__rt :: enter").unwrap();
    text[start..].split_once(';').unwrap().1.to_owned()
}

#[test]
fn items_and_constants_stay_as_they_are() {
    let body = rewritten("fn f() { fn g(a: u8) -> bool { if a > 1 { true } else { false } } const { 1 < 2 } }");
    assert!(body.contains("if a > 1") && body.contains("1 < 2"), "{body}");
}

#[test]
fn let_chains_and_literal_conditions_stay_native() {
    let body = rewritten(
        "fn f() { if let Some(x) = o && x.is_ok() { a() } if matches!(o, None) { b() } while let Some(y) = p { c() } }",
    );
    assert!(!body.replace("__rt :: named_bool (", "").contains("__rt"), "{body}");
    let body = rewritten("fn f() { if let Some(x) = o && x.ok() { a() } }");
    assert!(body.contains("&& :: anabranch :: __rt :: host_bool (x . ok ())"), "{body}");
}

#[test]
fn conditions_that_are_bool_by_their_form_stay_native() {
    for condition in ["on", "!on", "v.is_empty()", "o.is_some() && !on", "t.rank() > n", "c != 'x'"] {
        let body = rewritten(&format!("fn f(on: bool) {{ if {condition} {{ a() }} while {condition} {{ b() }} }}"));
        assert!(!body.replace("__rt :: named_bool (", "").contains("__rt"), "{body}");
    }
    for condition in ["off", "x > 1", "v.len() > n", "on == x", "on && x", "s == \"x\""] {
        let body = rewritten(&format!("fn f(on: bool, off: Tensor<bool>) {{ if {condition} {{ a() }} }}"));
        assert!(body.contains("__rt :: If"), "{body}");
    }
    let body = rewritten("fn f(on: bool) { let on = g(); if on { a() } }");
    assert!(body.contains("__rt :: If"), "{body}");
}

#[test]
fn every_block_is_emitted_once() {
    let body =
        rewritten("fn f() { if a { if b { m1() } else { m2() } } else if c { while d { m3() } } else { m4() } }");
    for call in ["m1 ()", "m2 ()", "m3 ()", "m4 ()"] {
        assert_eq!(body.matches(call).count(), 1, "{call} in {body}");
    }
}

#[test]
fn jumps_leave_the_arms_of_the_constructs_around_them() {
    let left = |f: &str| rewritten(f).matches("Some (__stays) = __").count();
    // The guard of the loop, and both `if`s.
    assert_eq!(left("fn f() { for x in v.iter() { if a { if b { break; } } } }"), 3);
    assert_eq!(left("fn f() { while a { if b { continue; } } }"), 2);
    assert_eq!(left("fn f() { if a { loop { break; } } }"), 0);
    assert_eq!(left("fn f() { if a { let g = || { if b { return 1; } 2 }; g()?; } }"), 1);
    assert_eq!(left("fn f() { if a { 'b: { if c { break 'b; } } } }"), 1);
    assert_eq!(left("fn f() { if a { panic!(); } panic!(); }"), 1);
}

#[test]
fn what_cannot_be_staged_is_checked_by_the_constructs_around_it() {
    let checks = |f: &str| rewritten(f).matches(". allows_").count();
    assert_eq!(checks("fn f() { if a { vec![1]; concat!(1); my_macro!(); } my_macro!(); }"), 1);
    assert_eq!(checks("fn f() -> T { while a { g(if b { return 1 } else { 2 }); } }"), 1);
    assert_eq!(checks("fn f() -> T { while a { let x = if b { return 1 } else { 2 }; } }"), 0);
}

#[test]
fn flags_stand_before_what_is_left_only_where_something_follows() {
    let flags = |f: &str| rewritten(f).matches(":: flag (").count();
    assert_eq!(flags("fn f() -> T { if a { return 1; } if b { return 2; } 3 }"), 0);
    assert_eq!(flags("fn f() { while a { if b { continue; } g(); } }"), 0);
    assert_eq!(flags("fn f() { while a { if b { break; } g(); } }"), 1);
    assert_eq!(flags("fn f() { while a { if b { if c { continue; } g(); } h(); } }"), 1);
    assert_eq!(flags("fn f() -> T { while a { if b { return 1; } } 2 }"), 2);
    assert_eq!(flags("fn f() { loop { break; } for x in v.iter() { break; } }"), 0);
}

#[test]
fn attributes_of_statements_stay() {
    let body = rewritten("fn f() { #[inline] if b { x() } #[cold] while d { y() } }");
    assert!(body.contains("# [inline] {") && body.contains("# [cold] {"), "{body}");
}

#[test]
fn each_arm_has_its_own_deferred_variable() {
    let body = rewritten("fn f() { let x; if c { x = 1; } else { x = 2; } g(x) }");
    assert_eq!(body.matches("let x ;").count(), 3, "{body}");
}

fn expanded(text: &str) -> String {
    expand(TokenStream::new(), text.parse().unwrap()).to_string()
}

#[test]
fn an_ordinary_function_keeps_everything_but_its_body() {
    let out = expanded("/// Doc.\n#[inline] pub(crate) fn f<T: Copy>(x: T) -> T where T: Sized { x }");
    let sig = "# [inline] pub (crate) fn f < T : Copy > (x : T) -> T where T : Sized {";
    assert!(out.contains(sig), "{out}");
    assert!(out.contains("Doc."), "{out}");
    assert!(out.contains(":: anabranch :: __rt :: enter (\"f\""), "{out}");
}

#[test]
fn all_errors_are_reported_and_the_function_stays() {
    let out = expanded("async unsafe fn f() { unsafe { g() } }");
    assert_eq!(out.matches("compile_error").count(), 3, "{out}");
    assert!(out.ends_with("async unsafe fn f () { unsafe { g () } }"), "{out}");
}

/// Uses a stack of the same size as the compiler's.
#[test]
fn constructs_nested_too_deep_are_an_error_and_long_chains_are_not() {
    let check = || {
        let nested = |n: usize| format!("fn f(x: T) -> T {{ {} x {} }}", "if x > 1 { ".repeat(n), "}".repeat(n));
        assert!(!expanded(&nested(128)).contains("compile_error"));
        for n in [129, 300] {
            assert!(expanded(&nested(n)).contains("nested more than 128 levels deep"));
        }
        let chain = format!("fn f(x: T) -> T {{ {} {{ x }} }}", "if f(x) { x + 1 } else ".repeat(1000));
        assert!(!expanded(&chain).contains("compile_error"));
    };
    std::thread::Builder::new().stack_size(8 << 20).spawn(check).unwrap().join().unwrap();
}

#[test]
fn what_is_not_a_function_is_an_error() {
    let out = expanded("struct S;");
    assert!(out.contains("`#[graph]` is for functions and methods with a body"), "{out}");
    assert!(out.ends_with("struct S ;"), "{out}");
}

#[test]
fn tests_of_literals_in_assertions_are_comparisons() {
    let comparisons = |body: &str| rewritten(&format!("fn f() {{ {body} }}")).matches("__rt :: compare").count();
    assert_eq!(comparisons("assert!((0.0..=1.0).contains(&p));"), 2);
    assert_eq!(comparisons("assert!(matches!(n, 0..=3) && !matches!(k, 2), \"{n}\");"), 3);
    assert_eq!(comparisons("assert!(matches!(mode, Mode::RGB) || (a..b).contains(&c));"), 0);
    assert_eq!(comparisons("println!(\"{}\", match n { 0 => a, _ => b });"), 0);
}
