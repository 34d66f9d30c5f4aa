//! The tree of a body: its parts in order of evaluation, and what is decided on by form.

use super::*;
use quote::ToTokens;

/// Returns the tree of a function.
fn tree(function: &str) -> FunctionTree {
    resolve(&mut parse_str(function).unwrap())
}

/// Returns the code of the only statement of a body.
fn only(mut body: Body) -> Code {
    match body.stmts.remove(0).kind {
        StatementKind::Expr(code, _) => code,
        _ => panic!("the statement is not an expression"),
    }
}

/// Returns the code of an expression in a loop, in a function with these parameters.
fn code(parameters: &str, expression: &str) -> Code {
    let code = only(tree(&format!("fn f({parameters}) {{ while c {{ {expression}; }} }}")).body);
    let Some(Part::Node { node: TreeNode::While(w), .. }) = code.parts.into_iter().next() else { panic!("a loop") };
    only(w.body)
}

/// Describes the parts of code in order.
fn parts(code: &Code) -> Vec<String> {
    let describe = |part: &Part| match part {
        Part::Node { node: TreeNode::Variable(passed), .. } => format!("pass {}", passed.syntax.to_token_stream()),
        Part::Node { node: TreeNode::If(branch), .. } if branch.staged.is_none() => "host if".to_owned(),
        Part::Node { node: TreeNode::If(_), .. } => "if".to_owned(),
        Part::Node { node: TreeNode::Block(_), .. } => "block".to_owned(),
        Part::Node { node: TreeNode::Call(_), .. } => "call".to_owned(),
        Part::Node { node: TreeNode::Update(_), .. } => "update".to_owned(),
        Part::Node { node: TreeNode::Compare(_), .. } => "compare".to_owned(),
        Part::Node { .. } => "node".to_owned(),
        Part::Change { place, how: Change::Exact, .. } => format!("change {}", place.expr.root),
        Part::Change { place, how: Change::Perhaps, .. } => format!("perhaps change {}", place.expr.root),
        Part::Change { place, how: Change::Unless(_), .. } => format!("change {} by its type", place.expr.root),
        Part::Declare(variables) => format!("declare {}", variables.len()),
        Part::Error(error) => format!("error: {error}"),
    };
    code.parts.iter().map(describe).collect()
}

#[test]
fn parts_are_in_the_order_of_evaluation() {
    let of = |expression: &str| parts(&code("mut x: T, mut y: T, v: V", expression));
    assert_eq!(of("x = g(y)"), ["pass y", "change x"]);
    assert_eq!(of("(x, v[y == 1]) = (y, 2)"), ["pass y", "change x", "change v", "compare"]);
    assert_eq!(of("x.len()"), ["change x by its type"]);
    assert_eq!(of("x.step(&mut y)"), ["perhaps change x", "change y"]);
    assert_eq!(of("match y { Some(z) => z, _ => 1 }"), ["pass y", "declare 1", "declare 0"]);
    assert_eq!(of("(x, y)"), ["pass x", "pass y"]);
    assert!(of("1 + 2 * g(h(3))").is_empty());
}

#[test]
fn only_variables_in_scope_have_ids() {
    assert_eq!(parts(&code("x: T", "g(x, y, m::x)")), ["pass x"]);
    let function = tree("fn f(x: T) { { let x = 1; } if c { if d { return; } } g(x) }");
    let StatementKind::Expr(code, _) = &function.body.stmts[2].kind else { panic!("it is a call") };
    let [Part::Node { node: TreeNode::Variable(passed), .. }] = &code.parts[..] else { panic!("it passes a variable") };
    assert_eq!((passed.place.variable, function.variables.len(), function.parameters), (0, 2, 1));
}

#[test]
fn outside_of_constructs_only_assignments_and_nodes_are_parts() {
    let of = |expression: &str| parts(&only(tree(&format!("fn f(mut x: T, y: T) {{ {expression}; }}")).body));
    assert!(of("g(x, y.len(), x.step())").is_empty());
    assert_eq!(of("x = g(y)"), ["change x"]);
    assert_eq!(of("g(&mut x)"), ["change x"]);
    assert_eq!(of("g(x, x == y)"), ["call"]);
}

#[test]
fn only_calls_with_constructs_in_their_arguments_are_nodes() {
    assert_eq!(parts(&code("c: T, x: T", "g(x, if c { 1 } else { 2 })")), ["call"]);
    assert_eq!(parts(&code("c: T, mut x: T", "g(x, &mut x, 2)")), ["pass x", "change x"]);
    assert_eq!(parts(&code("mut x: T", "x += 1")), ["change x"]);
    assert_eq!(parts(&code("mut x: T", "x += { 1 }")), ["update"]);
}

#[test]
fn conditions_are_of_the_host_by_their_form() {
    for condition in ["let Some(x) = y", "on", "!v.is_empty() && on", "c == 'x'"] {
        assert_eq!(parts(&code("on: bool", &format!("if {condition} {{ }}"))), ["host if"], "{condition}");
    }
    for condition in ["off", "x > 1", "on && x", "s == \"x\""] {
        assert_eq!(parts(&code("on: bool", &format!("if {condition} {{ }}"))), ["if"], "{condition}");
    }
}

#[test]
fn a_jump_knows_which_deferred_variables_are_hidden() {
    let hidden = |body: &str| {
        let mut function = tree(&format!("fn f() {{ {body} }}"));
        let StatementKind::Expr(code, _) = function.body.stmts.pop().unwrap().kind else { panic!("it is a jump") };
        let Some(Part::Node { node: TreeNode::Jump(jump), .. }) = code.parts.into_iter().next() else {
            panic!("a jump")
        };
        jump.hidden.iter().map(|h| (h.variable, h.by)).collect::<Vec<_>>()
    };
    assert_eq!(hidden("let x; let y; let x = 1; return;"), [(0, 2)]);
    assert_eq!(hidden("let x; { let x = 1; } return;"), []);
    assert_eq!(hidden("let x = 1; let x = 2; return;"), []);
}

#[test]
fn the_rest_after_a_jump_is_described_by_its_form() {
    let rest = |body: &str| tree(&format!("fn f() {{ {body} }}")).body.stmts.remove(0).rest;
    let of = |body: &str| rest(body).map(|r| (r.jumps, r.value, r.labels));
    let exit = "if c { if d { return; } }";
    let after = |rest: &str| of(&format!("{exit} {rest}")).unwrap();
    assert_eq!(after("g()"), (false, EndValue::Some, vec![]));
    assert_eq!(after("g();"), (false, EndValue::Unknown, vec![]));
    assert_eq!(after("x = 1; break 'a 2;"), (true, EndValue::None, vec![("a".to_owned(), true)]));
    assert_eq!(after("{ continue 'a; } 2"), (true, EndValue::Some, vec![("a".to_owned(), false)]));
    assert_eq!(after("{ return; }"), (true, EndValue::Unknown, vec![]));
    assert_eq!(after("{ return; 2 }"), (true, EndValue::Some, vec![]));
    assert_eq!(after("match n { 0 => { return; 2 } _ => return }"), (true, EndValue::Some, vec![]));
    assert_eq!(of("if c { return; }"), None);
    assert_eq!(of("if c { g(); } h()"), None);
    assert_eq!(of("return; g()"), None);
}

#[test]
fn the_rest_is_left_by_jumps_under_constructs() {
    let may_leave = |text: &str| {
        tree(&format!("fn f() {{ 'b: while b {{ {text} g(); }} }}"))
            .body
            .stmts
            .pop()
            .map(|stmt| {
                let StatementKind::Expr(code, _) = stmt.kind else { panic!("a loop") };
                let Some(Part::Node { node: TreeNode::While(w), .. }) = code.parts.into_iter().next() else {
                    panic!("a loop")
                };
                (w.body.stmts[0].rest.is_some(), w.stops)
            })
            .unwrap()
    };
    assert_eq!(may_leave("while a { break; }"), (false, false));
    assert_eq!(may_leave("while a { return; }"), (true, true));
    assert_eq!(may_leave("while a { while b { break 'b; } }"), (true, true));
    assert_eq!(may_leave("'x: while a { while b { break 'x; } }"), (false, false));
    assert_eq!(may_leave("let Some(x) = y else { continue };"), (false, false));
    assert_eq!(may_leave("let Some(x) = y else { break };"), (false, true));
    assert_eq!(may_leave("if a { if c { continue 'b; } }"), (true, false));
    assert_eq!(may_leave("'x: { if a { break 'x; } return; }"), (true, true));
    assert_eq!(may_leave("h(|| return 1);"), (false, false));
    assert_eq!(may_leave("loop { break; }"), (false, false));
}
