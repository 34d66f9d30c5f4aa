//! Tests that the expansion grows linearly with the nesting depth, the number of statements and the
//! number of constructs. Jumps at each level make it grow slightly faster.
//!
//! Each block of the user must appear once, and each construct may add a bounded number of tokens
//! wherever it is. The tests count tokens and do not measure time, so they are independent of the
//! machine.

use proc_macro2::{TokenStream, TokenTree};

/// Returns the number of tokens, including those in groups.
fn count(tokens: TokenStream) -> usize {
    tokens.into_iter().map(|t| if let TokenTree::Group(g) = t { 2 + count(g.stream()) } else { 1 }).sum()
}

/// Returns the number of tokens of a function with this body, and of its expansion.
fn sizes(body: &str) -> (usize, usize) {
    let text =
        format!("fn f(mut x: Tensor<i32>, mut y: Tensor<i32>, n: Tensor<i32>) -> Tensor<i32> {{ {body} x + y }}");
    let function: TokenStream = text.parse().expect("the text is valid tokens");
    let expansion = super::expand(TokenStream::new(), function.clone());
    assert!(!expansion.to_string().contains("compile_error"), "{expansion}");
    (count(function), count(expansion))
}

/// The maximum number of tokens for a construct that changes two variables, with a few statements
/// in it.
const CONSTRUCT: usize = 400;

/// The maximum number of tokens for code that stays as it is.
const SIMPLE: usize = 30;

/// Checks that each increment of `n` after the first adds the same number of tokens to the
/// expansion of `body(n)`, and at most `most`.
#[track_caller]
fn grows_linearly(most: usize, body: impl Fn(usize) -> String) {
    const STEPS: usize = 12;
    let expanded: Vec<usize> = (1..=STEPS).map(|n| sizes(&body(n)).1).collect();
    let steps: Vec<usize> = expanded.windows(2).map(|w| w[1] - w[0]).collect();
    let (least, largest) = (steps[1..].iter().min().unwrap(), steps[1..].iter().max().unwrap());
    assert!(largest <= &most, "a step adds {largest} tokens: {steps:?}");
    assert!(largest - least <= most / 20, "the steps are not equal: {steps:?}");
}

/// Nests `inner` in `n` constructs that cycle through `kinds`.
fn nested(kinds: &[&str], inner: &str, n: usize) -> String {
    (0..n).rev().fold(inner.to_owned(), |body, i| kinds[i % kinds.len()].replace('_', &body))
}

#[test]
fn with_the_depth_of_if() {
    grows_linearly(CONSTRUCT, |n| nested(&["if x > 1 { _ } else { x -= 2; }"], "x += 1; y *= 2;", n));
}

#[test]
fn with_the_depth_of_if_in_else() {
    grows_linearly(CONSTRUCT, |n| nested(&["if x > 1 { x -= 2; } else { _ }"], "x += 1; y *= 2;", n));
    grows_linearly(CONSTRUCT, |n| "if x > 1 { x -= 2; y += 1; } else ".repeat(n) + "{ x += 1; }");
}

#[test]
fn with_the_depth_of_while() {
    grows_linearly(CONSTRUCT, |n| nested(&["while x < n { x += 1; _ }"], "y += x;", n));
}

#[test]
fn with_the_depth_of_all_kinds() {
    // One increment adds a construct of each kind.
    let kinds =
        ["if x > 1 { _ } else { x -= 2; }", "while x < n && y > 2 { x += 1; _ }", "y = if x == y { _ y } else { x };"];
    grows_linearly(4 * CONSTRUCT, |n| nested(&kinds, "x += 1;", kinds.len() * n));
}

#[test]
fn with_the_depth_of_and() {
    grows_linearly(CONSTRUCT, |n| format!("if {} {{ x = y; }}", nested(&["(x > 1 && _)"], "y > 2", n)));
}

#[test]
fn with_the_number_of_statements() {
    grows_linearly(SIMPLE, |n| "x += y; y = x * 2 - n;".repeat(n));
    grows_linearly(CONSTRUCT, |n| "if x > 1 { x += y; y *= 2; }".repeat(n));
    grows_linearly(CONSTRUCT, |n| "while x < n { x += y; y *= 2; }".repeat(n));
    grows_linearly(3 * CONSTRUCT, |n| {
        "while x < n { if x > 1 || y < 3 { x += y; } else { y *= 2; } x += 1; }".repeat(n)
    });
}

/// Checks that each increment of `n` adds at most `more` tokens more than the previous increment.
///
/// A jump checks whether each construct that it leaves is staged. If its jumps and those of all
/// further increments leave the constructs that an increment adds, each increment costs slightly
/// more than the one before.
#[track_caller]
fn grows_a_little_more_than_linearly(most: usize, more: usize, body: impl Fn(usize) -> String) {
    let size = |n: usize| sizes(&body(n)).1;
    let steps: Vec<usize> = (1..12).map(|n| size(n + 1) - size(n)).collect();
    let all_more: Vec<usize> = steps[1..].windows(2).map(|w| w[1].saturating_sub(w[0])).collect();
    assert!(steps[0] <= most && all_more.iter().all(|&m| m <= more), "{steps:?}");
}

#[test]
fn with_the_number_of_jumps_of_a_loop_a_little_more_than_linearly() {
    for stmts in [
        "if x > 1 { x += 1; break; } y += x;",
        "if x > 1 { x += 1; continue; } y += x;",
        "if x > 1 { y += 1; if y > x { break; } } y += x;",
        "if x > 1 { return y; } y += x;",
    ] {
        grows_a_little_more_than_linearly(4 * CONSTRUCT, CONSTRUCT / 4, |n| {
            format!("while x < n {{ {} }}", stmts.repeat(n))
        });
    }
}

/// Checks that twice as many early exits of a function or a loop, as in a sequence of guards, need
/// at most 2.3 times as many tokens.
#[test]
fn with_the_number_of_early_exits() {
    for (before, exit, after) in [
        ("", "if x == # { return x * 2; }", ""),
        ("", "if x == # { return x * 2; } assert_eq!(x, y);", ""),
        ("", "if x == # { return x * 2; } println!(\"{y}\");", ""),
        ("while x < n { x += 1;", "if x == # { y += #; continue; }", "y += 1; }"),
    ] {
        let size = |n: usize| {
            let exits: String = (0..n).map(|k| exit.replace('#', &k.to_string())).collect();
            sizes(&format!("{before} {exits} {after}")).1
        };
        let doubled = [75, 150, 300].map(size);
        let is_linear = doubled.windows(2).all(|pair| 10 * pair[1] <= 23 * pair[0]);
        assert!(is_linear, "`{exit}`: {doubled:?} tokens for 75, 150 and 300 exits");
    }
}

#[test]
fn with_the_depth_of_returns_a_little_more_than_linearly() {
    for level in [
        "if x > 1 { if y > x { return y; } x += 1; _ }",
        "if x > 1 { _ if y > x { return y; } x += 1; } y += 1;",
        "y = if x > 1 { _ y } else { return y };",
        "y = 'a: { if x > 1 { break 'a y; } _ y };",
    ] {
        grows_a_little_more_than_linearly(6 * CONSTRUCT, CONSTRUCT / 2, |n| nested(&[level], "y += x;", n));
    }
    for jump in ["if y > 2 { return y; }", "return y;"] {
        grows_a_little_more_than_linearly(3 * CONSTRUCT, SIMPLE, |n| nested(&["if x > 1 { _ } y += 1;"], jump, n));
    }
}

#[test]
fn with_the_depth_of_jumps() {
    grows_linearly(5 * CONSTRUCT, |n| nested(&["while x < n { if x > y { break; } x += 1; _ }"], "y += x;", n));
    grows_linearly(5 * CONSTRUCT, |n| nested(&["loop { if x > y { break; } x += 1; _ }"], "y += x;", n));
    grows_linearly(5 * CONSTRUCT, |n| {
        nested(&["for i in range(n) { if i > y { continue; } x += 1; _ }"], "y += x;", n)
    });
}

/// Checks that no level repeats the work of the levels inside it, or this would not end.
#[test]
fn in_time_with_the_depth_of_labeled_blocks() {
    sizes(&nested(&["y = 'a: { if x > 1 { break 'a y; } _ y };"], "y += 1;", 30));
}

#[test]
fn with_the_number_of_arms_of_a_match() {
    grows_linearly(2 * CONSTRUCT, |n| {
        let arms: String = (0..n).map(|i| format!("{i} => {{ x += 1; y -= x; }}")).collect();
        format!("match x {{ {arms} _ => {{}} }}")
    });
}

#[test]
fn with_the_number_of_host_statements() {
    grows_linearly(SIMPLE, |n| nested(&["for i in 0..3 { _ }"], "x += y;", n));
    grows_linearly(SIMPLE, |n| nested(&["{ _ }"], "x += y;", n));
}

/// Returns about 300 lines with 40 control-flow statements, eight variables and four levels of
/// nesting, like a large model.
fn large_function() -> String {
    let mut lines = vec!["let (mut a, mut b, mut c, mut d, mut e, mut g) = (x, y, n, x, y, n);".to_owned()];
    for i in 0..10 {
        lines.push(format!("while x < n && y > {i} {{"));
        lines.extend((0..8).map(|k| format!("    x += {k}; a = b * x - {i};")));
        lines.push(format!("    if a > {i} || b < 3 {{"));
        lines.extend((0..4).map(|k| format!("        b += a; c = c + d * {k};")));
        lines.push(format!("        while d < {i} {{"));
        lines.extend((0..3).map(|k| format!("            d += 1; e = e - {k};")));
        lines.push("        }".to_owned());
        lines.push(format!("    }} else if c == {i} {{"));
        lines.push(format!("        e = if e > {i} {{ e - 1 }} else {{ g }};"));
        lines.extend((0..3).map(|k| format!("        g += {k};")));
        lines.push("    }".to_owned());
        lines.extend((0..4).map(|k| format!("    y = y - x * {k};")));
        lines.push("}".to_owned());
    }
    lines.push("x += a + b + c + d + e + g;".to_owned());
    lines.join("\n")
}

#[test]
fn a_large_function_is_expanded_to_less_than_ten_times_its_size() {
    let text = large_function();
    let constructs = text.matches("if ").count() + text.matches("while ").count();
    assert!(text.lines().count() >= 300 && constructs >= 40, "{} lines, {constructs}", text.lines().count());
    let (before, after) = sizes(&text);
    assert!(after < 10 * before, "{before} tokens became {after}");
}
