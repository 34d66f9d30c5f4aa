//! The carried places, read from the expansion.

use super::*;

/// Returns the places that each construct of a body carries, in the order in which the constructs
/// end, without empty ones.
#[track_caller]
fn carried(function: &str) -> Vec<String> {
    let cx = Ctxt::new();
    let rewritten = rewrite(&cx, parse_str(function).unwrap());
    cx.finish().unwrap();
    let of_user = |c: Vec<String>| c.into_iter().filter(|name| !name.starts_with("__")).collect::<Vec<_>>();
    rewritten.carried.into_iter().map(of_user).filter(|c| !c.is_empty()).map(|c| c.join(" ")).collect()
}

/// Returns the errors of a body.
fn errors(function: &str) -> String {
    let cx = Ctxt::new();
    rewrite(&cx, parse_str(function).unwrap());
    cx.finish().unwrap_err().to_string()
}

/// Returns the body after rewriting.
fn rewritten(function: &str) -> String {
    let cx = Ctxt::new();
    let rewritten = rewrite(&cx, parse_str(function).unwrap());
    cx.finish().unwrap();
    rewritten.function.block.to_token_stream().to_string()
}

#[test]
fn assignments_to_outer_variables_are_carried() {
    assert_eq!(carried("fn f() { let mut x = 0; let mut y = 0; if c { x = 1; } else { y += 2; } g(); }"), ["x y"]);
    assert_eq!(carried("fn f(mut x: T) { while x > 0 { x = x - 1; } }"), ["x"]);
    assert!(carried("fn f(x: T) { if c { g(x); x.h(); } }").is_empty());
}

#[test]
fn variables_of_the_block_are_not_carried() {
    assert!(carried("fn f() { if c { let mut x = 0; x = 1; } }").is_empty());
    assert!(carried("fn f() { let mut x = 0; if c { let mut x = 1; x = 2; } }").is_empty());
    assert_eq!(carried("fn f() { let mut x = 0; if c { { let mut x = 1; x = 2; } x = 3; } }"), ["x"]);
    assert_eq!(carried("fn f() { let mut x = 0; if c { let x2 = x; x = { let mut x = 1; x += x2; x }; } }"), ["x"]);
}

#[test]
fn inner_and_outer_constructs_carry_what_is_theirs() {
    let f = "fn f() { let mut x = 0; while a { let mut y = 0; if b { x = 1; y = 2; } } }";
    assert_eq!(carried(f), ["x y", "x"]);
}

#[test]
fn fields_are_carried_by_their_path() {
    assert_eq!(carried("fn f(s: &mut S) { if c { s.a.0 = 1; s.b = 2; s.a.0 = 3; } }"), ["s.a.0 s.b"]);
    assert_eq!(carried("fn f(s: &mut S) { if c { s.a.x = 1; s.a = 2; } }"), ["s.a"]);
    assert_eq!(carried("fn f(&mut self) { if c { self.layers[i].w = 1; } }"), ["self.layers"]);
    assert_eq!(carried("fn f(&mut self) { if c { self.a = 1; self.step(); } }"), ["self"]);
}

#[test]
fn receivers_count_if_they_may_change() {
    assert_eq!(carried("fn f() { let mut v = vec![]; if c { v.push(1); } }"), ["v"]);
    assert_eq!(carried("fn f() { let mut v = vec![]; if c { v[0].clone(); v.len(); } }"), ["v?"]);
    assert_eq!(carried("fn f() { let mut v = vec![]; if c { v.clone(1); } }"), ["v"]);
    assert_eq!(carried("fn f() { let mut v = vec![]; if c { v.len(); v.iter().count(); } }"), ["v?"]);
    assert_eq!(carried("fn f() { let mut v = vec![]; if c { v.a.len(); v.a[0].abs(); v.b += 1; } }"), ["v.a? v.b"]);
    assert!(carried("fn f(mut x: Tensor<f32>) { if c { x.abs(); } }").is_empty());
    assert!(carried("fn f(v: V) { if c { v.push(1); } }").is_empty());
    assert_eq!(carried("fn f(v: &mut V) { if c { v.push(1); } }"), ["v"]);
    assert_eq!(carried("fn f() { let mut v = vec![]; if c { v.iter_mut().for_each(|x| *x += 1); } }"), ["v"]);
    assert_eq!(carried("fn f() { let mut g = |x| x; if c { g(1); } }"), ["g"]);
}

#[test]
fn items_that_are_lent_mutably_may_change() {
    assert_eq!(carried("fn f(v: V) { for l in v.iter_mut() { if c { l.step(); } } }"), ["l"]);
    assert_eq!(carried("fn f(v: V) { for (i, l) in v.iter_mut().enumerate() { if c { i.h(); l.step(); } } }"), ["l"]);
    assert_eq!(carried("fn f(v: V) { for l in &mut v { if c { l.w.step(); } } }"), ["l.w"]);
    assert_eq!(carried("fn f(v: V) { for l in v.iter_mut().rev().take(2) { if c { l.step(); } } }"), ["l"]);
    assert_eq!(carried("fn f(v: V) { for l in [&mut v, &mut w] { if c { l.step(); } } }"), ["l"]);
    assert_eq!(carried("fn f(o: O) { if let Some(x) = o.as_mut() { if c { x.step(); } } }"), ["x"]);
    assert_eq!(carried("fn f(o: O) { match &mut o { S { a, b } => if c { a.step(); b.step(); } } }"), ["a b"]);
    assert_eq!(carried("fn f(v: V) { let l = v.last_mut().unwrap(); if c { l.step(); } }"), ["l"]);
    assert!(carried("fn f(v: V) { for l in v.iter_mut() { if c { g(l); } } }").is_empty());
    assert!(carried("fn f(v: V) { for l in v.iter() { if c { l.step(); } } }").is_empty());
    assert!(carried("fn f(v: V) { for (&k, l) in &mut v { if c { k.step(); } } }").is_empty());
}

#[test]
fn borrows_and_passed_references_count() {
    assert_eq!(carried("fn f() { let mut x = 0; if c { g(&mut x); } }"), ["x"]);
    assert_eq!(carried("fn f(x: &mut T) { if c { g(x); } }"), ["x"]);
    assert_eq!(carried("fn f(&mut self) { if c { g(self); } }"), ["self"]);
    assert_eq!(carried("fn f() { let mut o = None; if c { if let Some(ref mut x) = o { *x = 1; } } }"), ["o"]);
    assert_eq!(carried("fn f() { let mut o = None; if c { match &mut o { Some(x) => *x = 1, None => {} } } }"), ["o"]);
}

#[test]
fn a_borrow_that_is_the_value_is_not_carried_by_its_own_if() {
    let f = "fn f() { let (mut a, mut b) = (0, 0); let r = if c { &mut a } else { &mut b }; }";
    assert!(carried(f).is_empty());
    let f = "fn f() { let mut a = 0; while d { let r = if c { &mut a } else { g() }; } }";
    assert_eq!(carried(f), ["a"]);
}

#[test]
fn destructuring_assignments_count() {
    let f = "fn f() { let (mut a, mut b, mut s) = g(); if c { (a, [b, _]) = h(); S { x: s.x, .. } = k(); } }";
    assert_eq!(carried(f), ["a b s.x"]);
}

#[test]
fn patterns_closures_and_arms_have_scopes() {
    let f = "fn f() { let mut x = 0; if c { for x in v { x = 1; } g(|mut x| x += 1); match m { Some(mut x) => x = 1, _ => {} } } }";
    assert!(carried(f).is_empty());
    assert_eq!(carried("fn f() { let mut x = 0; if c { let g = || x = 1; } }"), ["x"]);
    assert_eq!(carried("fn f() { let mut x = 0; if c { let Some(x) = o else { x = 1; return }; } }"), ["x"]);
    assert_eq!(carried("fn f() { let mut x = 0; while c { if let Some(x) = o { x = 1; } else { x = 2; } } }"), ["x"]);
}

#[test]
fn a_right_side_of_and_carries_too() {
    assert_eq!(carried("fn f() { let mut x = 0; let y = a && { x = 1; b }; }"), ["x"]);
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
    for condition in ["on", "!on", "v.is_empty()", "o.is_some() && !on", "t.rank() > n", "s == \"x\"", "c != 'x'"] {
        let body = rewritten(&format!("fn f(on: bool) {{ if {condition} {{ a() }} while {condition} {{ b() }} }}"));
        assert!(!body.replace("__rt :: named_bool (", "").contains("__rt"), "{body}");
    }
    for condition in ["off", "x > 1", "v.len() > n", "on == x", "on && x"] {
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
fn what_dies_at_the_end_needs_no_common_value() {
    assert!(carried("fn f() -> T { let mut n = 0; if c { return 1; } n += 1; g(n) }").is_empty());
    assert!(carried("fn f() -> T { let mut n = 0; if c { n = 5; return n; } n += 1; g(n) }") == ["n"]);
    assert!(carried("fn f(s: &mut S) -> T { if c { return 1; } s.n += 1; 2 }") == ["s.n"]);
    assert_eq!(
        carried("fn f() { let mut n = 0; while a { let mut m = 0; if c { continue; } n += 1; m += 1; } }"),
        ["n", "n"]
    );
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
fn deferred_variables_are_named() {
    assert!(errors("fn f() { let x; while c { x = 1; } }").contains("`x` is initialized inside a `while`"));
    let body = rewritten("fn f() { let x; if c { x = 1; } else { x = 2; } g(x) }");
    assert_eq!(body.matches("let x ;").count(), 3, "{body}");
    assert!(carried("fn f() { let mut x; x = 1; if c { x = 2; } }") == ["x"]);
    assert!(carried("fn f() { let x; match m { A => x = 1, B => x = 2 } }").is_empty());
    assert!(carried("fn f() { if c { let x; x = 1; } }").is_empty());
}

#[test]
fn attributes_of_statements_stay() {
    let body = rewritten("fn f() { #[cfg(a)] if b { x() } #[cfg(c)] while d { y() } }");
    assert!(body.contains("# [cfg (a)] {") && body.contains("# [cfg (c)] {"), "{body}");
}
