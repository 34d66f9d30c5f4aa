//! The canonical form of bodies.

use proc_macro2::TokenStream;

/// Returns the expansion of a function with a body.
fn expansion(body: &str) -> String {
    let function = format!("fn f(x: Tensor<i32>) {body}");
    crate::graph::expand(TokenStream::new(), function.parse().unwrap()).to_string()
}

/// Checks that a body is expanded like its canonical form.
#[track_caller]
fn check(before: &str, after: &str) {
    assert_eq!(expansion(before), expansion(after));
}

/// Checks that the statements of a body are emitted as they are.
#[track_caller]
fn check_stays(stmts: &str) {
    let text = stmts.parse::<TokenStream>().unwrap().to_string();
    let expansion = expansion(&format!("{{ {stmts} }}"));
    assert!(expansion.contains(&text), "{expansion}");
}

#[test]
fn what_follows_a_jump_moves_into_the_other_arm() {
    check("{ if c { return 1; } f(); 2 }", "{ if c { return 1; } else { f(); 2 } }");
    check("{ if c { f() } else { break } g(); }", "{ if !(c) { break } else { f(); g(); } }");
    check("{ let x = if c { 1 } else { continue }; f(x) }", "{ if !(c) { continue } else { let x = { 1 }; f(x) } }");
    check(
        "{ if a { return 1; } else if b { return 2; } f() }",
        "{ if a { return 1; } else { if b { return 2; } else { f() } } }",
    );
}

#[test]
fn what_does_not_certainly_jump_stays() {
    let differs = |before: &str, after: &str| assert_ne!(expansion(before), expansion(after));
    differs("{ if c { if d { break; } } f(); }", "{ if c { if d { break; } } else { f(); } }");
    differs("{ while c { if d { break; } } f() }", "{ while c { if d { break; } else { f() } } }");
    check_stays("if let Some(x) = y { return x; } f()");
}

#[test]
fn names_of_an_arm_do_not_hide_those_of_the_rest() {
    check(
        "{ if c { return 1; } else { let x = 2; f(x); } x }",
        "{ if c { return 1; } else { { let x = 2; f(x); } x } }",
    );
}

#[test]
fn a_value_with_a_jump_is_assigned_after_it() {
    check(
        "{ x += if a { if b { break; } 1 } else { 2 }; f(); }",
        "{ let __assigned1 = if a { if b { break; } else { 1 } } else { 2 }; x += __assigned1; f(); }",
    );
}

#[test]
fn a_match_on_numbers_is_a_chain() {
    check(
        "{ match n { 0 | 1 => a, 2..=5 => b, k if k > 9 => c, k => d(k) } }",
        "{ let __matched1 = n; if (__matched1 == 0) | (__matched1 == 1) { a } \
         else if (__matched1 >= 2) & (__matched1 <= 5) { b } \
         else if { #[allow(unused_variables)] let k = __matched1; k > 9 } { #[allow(unused_variables)] let k = __matched1; c } else { let k = __matched1; d(k) } }",
    );
    check("{ match b { true => 1, false => 2 } }", "{ let __matched1 = b; if __matched1 { 1 } else { 2 } }");
    check_stays("match x { Some(1) => a, _ => b }");
    check(
        "{ match (n, f(m)) { (0, 1..MAX) => a, (k, _) => b(k) } }",
        "{ let __matched1 = (n, f(m)); if (__matched1.0 == 0) & ((__matched1.1 >= 1) & (__matched1.1 < MAX)) { a } \
         else { let k = __matched1.0; b(k) } }",
    );
    check(
        "{ match n { A | Self::B => a, consts::C => b, i32::MAX => c, _ => d } }",
        "{ let __matched1 = n; if (__matched1 == A) | (__matched1 == Self::B) { a } \
         else if __matched1 == consts::C { b } else if __matched1 == i32::MAX { c } else { d } }",
    );
    check_stays("match n { A => a, B => b }");
}

#[test]
fn a_match_on_numbers_and_other_values_accepts_only_host_values() {
    let matched = |body: &str, host: &str| {
        let (text, host) = (expansion(body), host.parse::<TokenStream>().unwrap().to_string());
        assert!(text.contains(&host), "{text}");
    };
    matched(
        "{ match (n, s) { (0, Kind::A) => a, (1, _) => b, _ => c } }",
        "match (::anabranch::__rt::host_number(n), s) { (0, Kind::A) => a, (1, _) => b, _ => c }",
    );
    let host = "match ::anabranch::__rt::host_number(n) { 0 => a, Max => b, _ => c }";
    matched("{ match n { 0 => a, Max => b, _ => c } }", host);
}

#[test]
fn a_let_of_numbers_is_a_condition() {
    check(
        "{ if let k @ 0..=9 = n { a(k) } else if let 12 = n { b } else { c } }",
        "{ let __matched1 = n; if (__matched1 >= 0) & (__matched1 <= 9) { let k = __matched1; a(k) } \
         else { let __matched2 = n; if __matched2 == 12 { b } else { c } } }",
    );
    check("{ while let 3 = n { f(); } }", "{ while { let __matched1 = n; __matched1 == 3 } { f(); } }");
    check(
        "{ 'a: while let k @ 3.. = n { f(k); } }",
        "{ 'a: loop { let __matched1 = n; if (__matched1 >= 3) { let k = __matched1; f(k); } else { break } } }",
    );
    check(
        "{ let k @ 1.. = n else { return 0 }; f(k) }",
        "{ let __matched1 = n; if !((__matched1 >= 1)) { return 0 } else { let k = __matched1; f(k) } }",
    );
    for same in ["if let Some(0) = n { a }", "while let Some(x) = v.pop() { f(x); }", "let S(x) = y else { return }; x"]
    {
        check_stays(same);
    }
}
