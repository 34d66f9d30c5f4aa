//! The places that constructs carry, and the errors of the analysis.

use super::*;
use crate::graph::resolve::resolve;
use proc_macro2::TokenStream;
use syn::parse_str;

/// Returns the tree of a function.
fn tree(function: &str) -> FunctionTree {
    resolve(&mut parse_str(function).unwrap())
}

/// Returns the places that each construct of a body carries, in the order in which the constructs
/// end, without empty ones.
#[track_caller]
fn carried(function: &str) -> Vec<String> {
    let (cx, function) = (Ctxt::new(), tree(function));
    let mut analysis = Analysis::new(&cx, &function.variables);
    analysis.function(&function);
    let carried = std::mem::take(&mut analysis.carried);
    cx.finish().unwrap();
    let of_user = |c: Vec<String>| c.into_iter().filter(|name| !name.starts_with("__")).collect::<Vec<_>>();
    carried.into_iter().map(of_user).filter(|c| !c.is_empty()).map(|c| c.join(" ")).collect()
}

/// Returns the errors of a body.
fn errors(function: &str) -> String {
    let (cx, function) = (Ctxt::new(), tree(function));
    analyze(&cx, &function);
    cx.finish().unwrap_err().to_string()
}

/// Returns the facts of the first statement.
fn first(function: &mut FunctionTree) -> Statement {
    function.body.stmts.remove(0)
}

#[test]
fn the_rest_is_guarded_only_if_a_jump_raises_a_flag() {
    let guarded = |text: &str| {
        let (cx, mut function) = (Ctxt::new(), tree(text));
        analyze(&cx, &function);
        cx.finish().unwrap();
        let stmt = first(&mut function);
        (stmt.rest.is_some(), stmt.guard.maybe().is_some())
    };
    // The loop that it leaves is of the host, and so is the function.
    assert_eq!(guarded("fn f() -> T { while true { if on.is_empty() { return 1; } } g() }"), (true, true));
    assert_eq!(guarded("fn f() -> T { while c { return 1; } g() }"), (true, true));
    assert_eq!(guarded("fn f() -> T { loop { return 1; } g() }"), (true, false));
    assert_eq!(guarded("fn f() -> T { while c { break; } g() }"), (false, false));
}

#[test]
fn errors_are_reported_in_the_order_of_the_code() {
    let text = errors("fn f() { break 'a; unsafe { g() }; continue 'b; }");
    let places = ["`'a`", "`unsafe`", "`'b`"].map(|part| text.find(part).unwrap_or_else(|| panic!("{part} in {text}")));
    assert!(places.is_sorted(), "{text}");
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
fn deferred_variables_are_named() {
    assert!(errors("fn f() { let x; while c { x = 1; } }").contains("`x` is initialized inside a `while`"));
    assert!(carried("fn f() { let mut x; x = 1; if c { x = 2; } }") == ["x"]);
    assert!(carried("fn f() { let x; match m { A => x = 1, B => x = 2 } }").is_empty());
    assert!(carried("fn f() { if c { let x; x = 1; } }").is_empty());
}

/// Returns the places whose types are checked in each construct of a body, in the order in which
/// the constructs end, without empty ones.
fn checked(function: &str) -> Vec<String> {
    let text = crate::graph::expand(TokenStream::new(), function.parse().unwrap()).to_string();
    let checks = text.split(". uses ((& :: anabranch :: __rt :: Used (& ").skip(1);
    checks.map(|check| check.split_once(')').unwrap().0.trim().replace(' ', "")).collect()
}

#[test]
fn references_are_carried_at_the_end_of_a_body() {
    assert_eq!(carried("fn f() { let r = g(); if c { return; } r.h = 1; }"), ["r.h"]);
    assert_eq!(carried("fn f() { let (a, b) = g(); if c { a.h = 1; } else { b.h = 2; } }"), ["a.h b.h"]);
    assert_eq!(carried("fn f() { loop { let r = g(); if c { continue; } r.h = 1; if d { break; } } }"), ["r.h"]);
    assert_eq!(carried("fn f() { let r = g(); for x in v { if c { return; } } r.h = 1; }"), ["r.h"]);
}

#[test]
fn types_of_what_dies_at_the_end_are_checked() {
    assert_eq!(checked("fn f() { let mut r = g(); if c { return; } r.step(1); }"), ["r"]);
    assert_eq!(checked("fn f() { let mut r = g(); if c { return; } r.a.h = 1; }"), ["r", "r.a", "r.a.h"]);
    assert_eq!(checked("fn f() { loop { let mut r = g(); if c { continue; } r.step(1); } }"), ["r"]);
    assert!(checked("fn f(mut n: Tensor<i32>) -> T { if c { return 1; } n += 1; h() }").is_empty());
    assert!(checked("fn f() { let x; if c { return 1; } x = 1; h() }").is_empty());
}

/// Returns the number of constructs in which a jump of a body may not be staged.
fn checks_of_jumps(function: &str) -> usize {
    let text = crate::graph::expand(TokenStream::new(), function.parse().unwrap()).to_string();
    text.matches("allows_nested_jump").count()
}

#[test]
fn jumps_out_of_operands_are_checked() {
    let in_loop = |body: &str| checks_of_jumps(&format!("fn f() {{ 'a: while c {{ {body} }} }}"));
    assert_eq!(in_loop("y = { if d { if e { break; } y += 1; } y } + 1;"), 2);
    assert_eq!(in_loop("v.push({ while d { if e { break 'a; } } x });"), 3);
    assert_eq!(in_loop("if { if d { break; } e } { g(); }"), 1);
    assert_eq!(in_loop("let v = vec![{ if d { break; } y }];"), 1);
    assert_eq!(in_loop("println!(\"{}\", { if d { return; } y });"), 1);
    assert_eq!(in_loop("if d { if e { g('b: { if h { break 'a; } 1 }); } }"), 1);
    // These jumps stay inside the operand, or leave a function of their own.
    assert_eq!(in_loop("g(loop { if d { break 1; } if e { h(); continue; } k(); });"), 0);
    assert_eq!(in_loop("g('b: { if d { if e { break 'b 1; } h(); } 2 });"), 0);
    assert_eq!(in_loop("g(|| { if d { if e { return 1; } h(); } 2 });"), 0);
    // These are values of statements.
    assert_eq!(in_loop("let y = { if d { if e { break; } h(); } 2 };"), 0);
    assert_eq!(in_loop("y += { if d { if e { break; } h(); } 2 };"), 0);
    assert_eq!(in_loop("match k { A => { if d { break; } h() } B => {} }"), 0);
}

#[test]
fn calls_of_closures_that_modify_captures_are_checked() {
    let checks = |function: &str| {
        let text = crate::graph::expand(TokenStream::new(), function.parse().unwrap()).to_string();
        text.matches("uses (:: anabranch :: __rt :: MutReferences)").count()
    };
    assert_eq!(checks("fn f() { let mut y = x; let set = || { drop(s); y = z; }; if c { set(); } y }"), 1);
    assert_eq!(checks("fn f() { let mut y = x; let set = || { drop(s); y = z; }; set(); if c { g(); } y }"), 0);
    assert_eq!(checks("fn f() { let get = || { drop(s); z }; if c { get(); } }"), 0);
}

#[test]
fn a_raw_identifier_may_be_initialized_in_arms() {
    assert!(carried("fn f() -> T { let r#type; if c { r#type = x; } else { r#type = y; } r#type }").is_empty());
}

#[test]
fn an_arm_that_panics_need_not_initialize() {
    let analyzed = |arm: &str| {
        let (cx, function) =
            (Ctxt::new(), tree(&format!("fn f() -> T {{ let y; if c {{ y = x; }} else {{ {arm} }} y }}")));
        analyze(&cx, &function);
        cx.finish()
    };
    for arm in ["panic!(\"{n}\");", "unreachable!()", "g(); panic!()"] {
        analyzed(arm).unwrap();
    }
    for arm in ["g();", "if d { panic!(); }", "println!();", "g(|| panic!())"] {
        assert!(analyzed(arm).is_err(), "{arm}");
    }
}
