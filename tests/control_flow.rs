//! Control flow in `#[graph]`, on tensors and on host values, compared with plain Rust.
//!
//! Most functions are written once and made for both by a macro: the host version is the expected
//! value of the staged version.
#![deny(warnings)]

use crate::support::{check, check_each};
use anabranch::Diagnostic;
use anabranch::prelude::*;

agree!(collatz(n) over [1, 2, 3, 7, 27]; {
    let mut steps = int(0);
    while n != 1 {
        n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    steps
});

agree!(chain(x) over [-5, 0, 3, 30]; {
    let mut kind = int(0);
    if x < 0 {
        kind = int(-1);
        x = 0 - x;
    } else if x == 0 {
        kind = int(7);
    } else if x > 10 {
        kind += 100;
        if x % 2 == 0 {
            kind += 1;
        }
    }
    kind * 1000 + x
});

agree!(chain_without_else_at_the_end_of_a_block(x, n) over [(-5, 2), (0, 0), (3, 3), (30, 1)]; {
    while n > 0 {
        n -= 1;
        if x < 0 {
            x += 7;
        } else if x > 10 {
            x -= 3;
        }
    }
    x
});

agree!(value_chain(x) over [-5, 0, 3, 30]; {
    let y = 1 + if x < 0 { int(1) } else if x == 0 { int(2) } else { let z = x * 2; z + 1 };
    (if y > 3 { y } else { x }) + y
});

agree!(nested_loops(n, m) over [(0, 3), (3, 0), (4, 5), (1, 1)]; {
    let (mut i, mut total) = (int(0), int(0));
    while i < n {
        let mut j = int(0);
        while j < m {
            if (i + j) % 2 == 0 {
                total += i * j;
            } else {
                total -= 1;
            }
            j += 1;
        }
        i += 1;
    }
    total
});

agree!(loop_in_untaken_branch(x, n) over [(0, 3), (1, 3), (1, 0)]; {
    if x == 1 {
        let mut i = int(0);
        while i < n {
            x += i * 2;
            i += 1;
        }
    }
    x
});

agree!(tuples_and_destructuring(n) over [0, 1, 2, 9]; {
    let mut pair = (int(0), int(1));
    let (mut a, mut b) = (int(0), int(1));
    let mut i = int(0);
    while i < n {
        (a, b) = (b, a + b);
        pair.0 += a;
        pair.1 = pair.0 - pair.1;
        i += 1;
    }
    a * 10000 + pair.0 * 10 + pair.1
});

agree!(and_or_not(x, y) over [(0, 0), (0, 5), (3, 0), (3, 5), (-1, 2)]; {
    let mut r = int(0);
    if x > 0 && y > 0 {
        r += 1;
    }
    if x > 0 || y > 3 {
        r += 10;
    }
    let positive = x > 0;
    if !positive && (y == 0 || y > 2) {
        r += 100;
    }
    r
});

agree!(right_side_is_lazy(x, y) over [(0, 0), (0, 5), (3, 0), (3, 5)]; {
    let mut evaluated = int(0);
    let both = x > 0 && { evaluated += 1; y > 0 };
    let either = x > 0 || { evaluated += 10; y > 0 };
    if both { evaluated += 100; }
    if either { evaluated += 1000; }
    evaluated
});

agree!(division_guarded_by_and(x, y) over [(6, 3), (6, 0), (7, 2)]; {
    let mut r = int(0);
    if y != 0 && x / y > 2 {
        r = int(1);
    }
    r
});

agree!(shadowing(x) over [0, 1, 5]; {
    let mut y = int(3);
    if x > 0 {
        let mut y = x;
        y += 1;
        x = y;
    } else {
        y = int(4);
    }
    {
        let x = y;
        y = x + 1;
    }
    x * 10 + y
});

agree!(literal_on_the_left(x) over [-1, 0, 1]; {
    if 0 < x { int(1) } else if 0 == x { int(2) } else { int(3) }
});

agree!(loop_with_a_condition_block(n) over [0, 1, 6]; {
    let mut i = int(0);
    while { let j = i * i; j < n } {
        i += 1;
    }
    i
});

agree!(comparison_as_value(x, y) over [(1, 2), (2, 2), (3, 2)]; {
    let less = x < y;
    let same = x == y;
    let mut r = int(0);
    if less { r = int(1); }
    if same { r = int(2); }
    if x >= y { r += 10; }
    if x <= y { r += 20; }
    if x != y { r += 40; }
    r
});

agree!(host_loop_around_staged_if(x) over [0, 4, 9]; {
    let mut r = int(0);
    for i in 0..4 {
        if i == 2 {
            continue;
        }
        if x > i {
            r += x * i + 1;
        }
    }
    r
});

#[derive(Carry, Clone)]
struct Cell {
    h: Tensor,
    c: Tensor,
}

#[derive(Carry)]
struct CellStack<T: anabranch::Element> {
    cells: Vec<Cell>,
    last: Option<Tensor<T>>,
    #[carry(host)]
    width: usize,
}

impl Cell {
    fn step(&mut self, x: Tensor) {
        self.c = self.c * 0.5f32 + x;
        self.h += self.c;
    }

    #[graph]
    fn run(&mut self, x: Tensor, n: Tensor<i32>) -> Tensor {
        let mut i = scalar(0);
        while i < n {
            self.step(x);
            if self.h > 3.0 {
                self.h -= 3.0f32;
            }
            i += 1;
        }
        self.h
    }
}

fn cell(h: f32, c: f32) -> Cell {
    Cell { h: scalar(h), c: scalar(c) }
}

#[test]
fn a_method_with_mut_self_carries_what_it_changes() {
    let (mut h, mut c) = (1.0f32, 0.0f32);
    for _ in 0..5 {
        c = c * 0.5 + 1.5;
        h += c;
        if h > 3.0 {
            h -= 3.0;
        }
    }
    let got = eval_with(|x: Tensor, n: Tensor<i32>| cell(1.0, 0.0).run(x, n), (1.5f32, 5)).unwrap();
    assert_eq!(got, h);
}

#[test]
fn a_method_with_mut_self_may_have_the_name_of_an_operation() {
    #[derive(Carry, Clone, Copy)]
    struct Pair {
        now: Tensor,
        next: Tensor,
    }
    impl Pair {
        fn select(&mut self) {
            self.now = self.next;
        }
    }
    #[graph]
    fn f(x: Tensor, c: Tensor<bool>) -> Tensor {
        let mut pair = Pair { now: x, next: x * 10.0 };
        if c {
            pair.select();
        }
        pair.now
    }
    assert_eq!(eval_with(f, (1.0, true)).unwrap(), 10.0);
    assert_eq!(eval_with(f, (1.0, false)).unwrap(), 1.0);
}

#[test]
fn derived_state_with_vectors_options_and_host_fields_is_carried() {
    #[graph]
    fn f(n: Tensor<i32>) -> (Tensor, Tensor<i32>) {
        let mut s = CellStack { cells: vec![cell(0.0, 1.0), cell(1.0, 2.0)], last: Some(scalar(0)), width: 2 };
        let mut i = scalar(0);
        while i < n {
            for k in 0..s.width {
                let c = s.cells[k].c;
                s.cells[k].h += c;
            }
            s.last = Some(i);
            i += 1;
        }
        (s.cells[0].h * 100.0f32 + s.cells[1].h, s.last.unwrap())
    }
    let (h, last) = eval_with(f, 3).unwrap();
    assert_eq!(h, 307.0);
    assert_eq!(last, 2);
    let (h, last) = eval_with(f, 0).unwrap();
    assert_eq!(h, 1.0);
    assert_eq!(last, 0);
}

#[test]
fn an_option_may_be_filled_by_both_branches() {
    #[graph]
    fn f(x: Tensor<i32>) -> Tensor<i32> {
        let mut cache: Option<Tensor<i32>> = None;
        if x > 0 {
            cache = Some(x + 1);
        } else {
            cache = Some(x - 1);
        }
        cache.unwrap()
    }
    assert_eq!(eval_with(f, 5).unwrap(), 6);
    assert_eq!(eval_with(f, -5).unwrap(), -6);
}

#[test]
fn parameters_by_mutable_reference_are_carried() {
    fn bump(x: &mut Tensor<i32>) {
        *x += 1;
    }
    #[graph]
    fn f(x: &mut Tensor<i32>, list: &mut Vec<Tensor<i32>>, c: Tensor<bool>) {
        if c {
            *x += 5;
            bump(x);
            list[0] = *x;
        }
        let r = &mut list[1];
        if c {
            *r *= 2;
        }
    }
    let run = |c: bool| {
        eval_with(
            |c: Tensor<bool>| {
                let (mut x, mut list) = (scalar(1), vec![scalar(2), scalar(3)]);
                f(&mut x, &mut list, c);
                (x, list)
            },
            c,
        )
        .unwrap()
    };
    let (x, list) = run(true);
    assert_eq!((x.item(), list[0].item(), list[1].item()), (7, 7, 6));
    let (x, list) = run(false);
    assert_eq!((x.item(), list[0].item(), list[1].item()), (1, 2, 3));
}

#[test]
fn graph_functions_call_each_other() {
    #[graph]
    fn clip(x: Tensor) -> Tensor {
        if x > 1.0 {
            scalar(1.0)
        } else if x < -1.0 {
            scalar(-1.0)
        } else {
            x
        }
    }
    #[graph]
    fn f(mut x: Tensor) -> Tensor {
        while 0.25 < clip(x) {
            x = clip(x * 0.5f32);
        }
        x
    }
    assert_eq!(eval_with(f, 100.0f32).unwrap(), 0.25);
    assert_eq!(eval_with(f, -100.0f32).unwrap(), -100.0);
}

#[test]
fn generic_functions_are_staged_by_their_type() {
    #[graph]
    fn larger<T: anabranch::Element>(a: Tensor<T>, b: Tensor<T>) -> Tensor<T> {
        if a > b { a } else { b }
    }
    assert_eq!(eval_with(larger::<i32>, (3, 4)).unwrap(), 4);
    assert_eq!(eval_with(larger::<f32>, (3.0f32, 1.0f32)).unwrap(), 3.0);
}

#[test]
fn assertions_on_tensors_are_checked_when_the_graph_runs() {
    #[graph]
    fn f(x: Tensor<i32>, limit: i32) -> Tensor<i32> {
        assert!(limit > 0, "the limit is {limit}");
        assert!(x < limit, "x must be below {limit}");
        debug_assert!(x > -100);
        x + 1
    }
    assert_eq!(eval_with(|x| f(x, 10), 9).unwrap(), 10);
    let error = eval_with(|x| f(x, 10), 10).unwrap_err();
    assert!(error.to_string().contains("x must be below 10"), "{error}");
    let error = eval_with(|x| f(x, 10), -200).unwrap_err();
    assert!(error.to_string().contains("x > - 100") || error.to_string().contains("x > -100"), "{error}");
}

#[test]
#[should_panic(expected = "the limit is 0")]
fn assertions_on_host_values_are_checked_at_once() {
    #[graph]
    fn f(limit: i32) {
        assert!(limit > 0, "the limit is {limit}");
    }
    f(0);
}

#[test]
fn an_assertion_in_a_branch_not_taken_does_not_fail() {
    #[graph]
    fn f(x: Tensor<i32>) -> Tensor<i32> {
        if x > 0 {
            assert!(x == 1);
        }
        x
    }
    assert_eq!(eval_with(f, 0).unwrap(), 0);
    assert!(eval_with(f, 2).is_err());
}

/// Returns the error of tracing a function.
#[track_caller]
fn error<O: anabranch::dsl::function::Output>(f: impl Fn() -> O) -> Diagnostic {
    match eval(f) {
        Ok(_) => panic!("no error"),
        Err(e) => e,
    }
}

mod errors_name_variable_and_line {
    use super::*;

    #[test]
    fn changed_length() {
        #[graph]
        fn f() -> Tensor {
            let mut list = vec![scalar(1.0f32)];
            if scalar(1) > 0 {
                list.push(scalar(2.0));
            }
            list[0]
        }
        let e = error(f);
        assert_eq!(e.message, "`list` has 2 items after the first branch, but 1 item after the second");
        assert!(e.loc().unwrap().file.ends_with("control_flow.rs"));
        assert_eq!(source_line(&e), "list.push(scalar(2.0));");
    }

    #[test]
    fn changed_option() {
        #[graph]
        fn f() -> Tensor {
            let mut kept = None;
            let mut i = scalar(0);
            while i < 3 {
                kept = Some(i);
                i += 1;
            }
            kept.map_or(scalar(0.0), |_| scalar(1.0))
        }
        let e = error(f);
        assert_eq!(e.message, "`kept` has `None` before the loop, but `Some` after one iteration");
        assert_eq!(source_line(&e), "kept = Some(i);");
    }

    #[test]
    fn changed_host_field() {
        #[graph]
        fn f() -> Tensor<i32> {
            let mut s = CellStack { cells: vec![], last: Some(scalar(1)), width: 2 };
            if scalar(1) > 0 {
                s = CellStack { cells: vec![], last: Some(scalar(1)), width: 3 };
            }
            s.last.unwrap()
        }
        let e = error(f);
        assert_eq!(
            e.message,
            "`s.width` has the host value 3 after the first branch, but the host value 2 after the second"
        );
    }

    #[test]
    fn changed_shape() {
        #[graph]
        fn f() -> Tensor {
            let mut state = scalar(0.0f32);
            let mut i = scalar(0);
            while i < 3 {
                state += tensor([1.0, 2.0]);
                i += 1;
            }
            state
        }
        let e = error(f);
        assert!(e.message.starts_with("`state` has type f32[] before the loop, but f32[2]"), "{e}");
    }

    #[test]
    fn condition_with_dimensions() {
        #[graph]
        fn f() -> Tensor<i32> {
            if tensor([1, 2]) > 1 { scalar(1) } else { scalar(2) }
        }
        let e = error(f);
        assert!(e.message.contains("the condition of `if` is bool[2]"), "{e}");
        assert_eq!(source_line(&e), "if tensor([1, 2]) > 1 { scalar(1) } else { scalar(2) }");
    }

    #[test]
    fn recursion() {
        #[graph]
        fn forever(x: Tensor<i32>) -> Tensor<i32> {
            if x > 0 { forever(x - 1) } else { x }
        }
        let e = error(|| forever(scalar(3)));
        assert!(e.message.contains("`forever` recurses endlessly"), "{e}");
    }

    #[test]
    fn tensor_that_leaves_its_branch_unseen() {
        #[graph]
        fn f() -> Tensor<i32> {
            let hidden = std::sync::Mutex::new(scalar(0));
            if scalar(1) > 0 {
                *hidden.lock().unwrap() = scalar(1) + 1;
            }
            hidden.into_inner().unwrap()
        }
        let e = error(f);
        assert!(e.message.contains("is used outside it"), "{e}");
    }

    fn source_line(e: &Diagnostic) -> String {
        let line = e.loc().expect("a place").line as usize;
        let file = include_str!("control_flow.rs");
        file.lines().nth(line - 1).unwrap().trim().to_owned()
    }
}

#[test]
fn a_staged_condition_beside_a_host_condition() {
    #[graph]
    fn f(x: Tensor<i32>, on: bool) -> Tensor<i32> {
        let mut r = scalar(0);
        if on && x > 0 {
            r += 1;
        }
        if x > 0 && on {
            r += 10;
        }
        if on || x > 0 {
            r += 100;
        }
        if x > 0 || on {
            r += 1000;
        }
        r
    }
    let plain = |x: i32, on: bool| {
        i32::from(on && x > 0)
            + 10 * i32::from(x > 0 && on)
            + 100 * i32::from(on || x > 0)
            + 1000 * i32::from(x > 0 || on)
    };
    for on in [false, true] {
        for x in [0, 1] {
            assert_eq!(eval_with(|x| f(x, on), x).unwrap(), plain(x, on), "{x} {on}");
        }
    }
}

#[test]
fn an_elementwise_left_side_is_combined_elementwise() {
    #[graph]
    fn f(x: Tensor<i32>) -> (Tensor<bool>, Tensor<bool>) {
        (x > 0 && x < 3, x < 1 || x == 3)
    }
    let (and, or) = eval_with(f, [0, 1, 2, 3]).unwrap();
    assert_eq!(and.to_vec(), [false, true, true, false]);
    assert_eq!(or.to_vec(), [true, false, false, true]);
}

#[test]
fn the_graph_of_an_unchanged_variable_has_no_result_for_it() {
    #[graph]
    fn f(x: Tensor<i32>) -> Tensor<i32> {
        let mut list = vec![x, x + 1];
        let mut y = x;
        if x > 0 {
            let _first = list.first_mut();
            y += 1;
        }
        list[1] + y
    }
    let ty = anabranch::TensorType::new(anabranch::DType::I32, ());
    let (traced, _) = anabranch::dsl::function::trace_fn("f", &f, &[ty]).unwrap();
    let g = &traced.graph;
    let cond = g.region(g.root()).nodes.iter().find(|&&n| !g.node(n).regions.is_empty()).unwrap();
    assert_eq!(g.node(*cond).results.len(), 1);
}

#[derive(Module)]
struct Dense<X> {
    weight: Var,
    inner: Vec<X>,
    #[module(skip)]
    _width: usize,
}
#[derive(Module)]
struct Pair(Var, Option<Var<i32>>);

#[test]
fn modules_visit_their_variables_in_order() {
    let v = |n: &str| Var::new(n, 1.0f32);
    let net =
        Dense { weight: v("w"), inner: vec![Pair(v("a"), None), Pair(v("b"), Some(Var::new("c", 1)))], _width: 3 };
    let paths: Vec<_> = net.vars().into_iter().map(|(p, v)| format!("{p}={}", v.name())).collect();
    assert_eq!(paths, ["weight=w", "inner.0.0=a", "inner.1.0=b", "inner.1.1=c"]);
}

#[test]
fn nodes_have_the_users_lines() {
    #[graph]
    fn f(x: Tensor<i32>) -> Tensor<i32> {
        let mut y = x;
        if x > 0 {
            y += 1;
        }
        y
    }
    let line = line!() - 5;
    let ty = anabranch::TensorType::new(anabranch::DType::I32, ());
    let (traced, _) = anabranch::dsl::function::trace_fn("f", &f, &[ty]).unwrap();
    let g = &traced.graph;
    let mut seen = 0;
    for &node in &g.region(g.root()).nodes {
        let loc = g.node(node).loc;
        assert_eq!(loc.line, line, "{node:?}");
        seen += 1;
    }
    assert!(seen >= 2, "a comparison and a cond");
}

#[derive(Carry)]
struct Counter {
    seen: Var<i32>,
    total: Tensor<i32>,
}

impl Counter {
    fn add(&mut self, x: Tensor<i32>) {
        self.seen.set(self.seen.get() + 1);
        self.total += x;
    }

    #[graph]
    fn run(&mut self, n: Tensor<i32>) -> (Tensor<i32>, Tensor<i32>) {
        let mut i = scalar(0);
        while i < n {
            if i != 2 {
                self.add(i);
            }
            i += 1;
        }
        (self.total, self.seen.get())
    }
}

#[test]
fn variables_are_assigned_in_branches_and_loops() {
    let seen = Var::new("seen", 10);
    let run = |n: Tensor<i32>| Counter { seen: seen.clone(), total: scalar(0) }.run(n);
    let (total, seen) = eval_with(run, 5).unwrap();
    assert_eq!((total.item(), seen.item()), (8, 14));
}

#[test]
fn slices_and_arrays_are_carried() {
    #[graph]
    fn swap_first(items: &mut [Tensor<i32>], c: Tensor<bool>) {
        if c {
            (items[0], items[1]) = (items[1], items[0]);
        }
    }
    #[graph]
    fn f(c: Tensor<bool>) -> [Tensor<i32>; 3] {
        let mut items = [scalar(1), scalar(2), scalar(3)];
        swap_first(&mut items, c);
        let mut i = scalar(0);
        while i < 2 {
            items[2] += items[0];
            i += 1;
        }
        items
    }
    assert_eq!(eval_with(f, true).unwrap().map(|a| a.item()), [2, 1, 7]);
    assert_eq!(eval_with(f, false).unwrap().map(|a| a.item()), [1, 2, 5]);
}

#[test]
fn an_untyped_literal_takes_the_default_type() {
    #[graph]
    fn f() -> Tensor<i32> {
        let mut steps = scalar(0);
        let mut r = scalar(1);
        while steps != 3 {
            steps += 1;
            r *= 2;
        }
        r
    }
    assert_eq!(eval(f).unwrap(), 8);
}

#[test]
fn a_comparison_is_one_of_tensors_before_the_element_type_is_known() {
    #[graph]
    fn f() -> Tensor {
        let mut x = zeros([]);
        let mut n = scalar(0);
        while (x < 3.0) & (n < 10) {
            x += 1.0;
            n += 1;
        }
        x
    }
    assert_eq!(eval(f).unwrap(), 3.0);
}

#[test]
fn a_scalar_compared_with_an_unknown_type_makes_it_a_scalar() {
    #[graph]
    fn f(n: i32, text: &str) -> Result<bool, std::num::ParseIntError> {
        Ok(n == text.parse()? || n < Default::default())
    }
    assert_eq!(f(3, "3"), Ok(true));
    assert_eq!(f(3, "4"), Ok(false));
    assert!(f(3, "x").is_err());
}

#[test]
fn layers_lent_by_an_iterator_are_carried() {
    #[graph]
    fn f(c: Tensor<bool>) -> Vec<Tensor> {
        let mut cells = [cell(0.0, 2.0), cell(1.0, 4.0)];
        for (i, cell) in cells.iter_mut().enumerate() {
            if c && i > 0 {
                cell.step(scalar(1.0));
            }
        }
        cells.iter().map(|cell| cell.h).collect()
    }
    let h = |c: bool| eval_with(f, c).unwrap().iter().map(|h| h.item()).collect::<Vec<_>>();
    assert_eq!(h(true), [0.0, 4.0]);
    assert_eq!(h(false), [0.0, 1.0]);
}

#[test]
fn a_function_can_be_generic_over_what_it_carries() {
    #[graph]
    fn twice<S: Carry>(mut state: S, again: Tensor<bool>, step: impl Fn(&mut S)) -> S {
        step(&mut state);
        if again {
            step(&mut state);
        }
        state
    }
    let run = |again: bool| eval_with(|c: Tensor<bool>| twice((scalar(1), scalar(2)), c, |s| s.0 += s.1), again);
    assert_eq!(run(true).unwrap().0, 5);
    assert_eq!(run(false).unwrap().0, 3);
}

#[derive(Carry, Clone)]
struct Endpoints {
    a: Tensor<i32>,
    b: Tensor<i32>,
}

impl Endpoints {
    fn exchange(&mut self) {
        std::mem::swap(&mut self.a, &mut self.b);
    }
    fn itself(&mut self) -> &mut Endpoints {
        self
    }
}

#[test]
fn what_a_mutable_reference_leads_to_is_carried_through_patterns() {
    #[graph]
    fn taken_apart(ends: &mut Endpoints, c: Tensor<bool>) {
        let Endpoints { a, b } = ends;
        if c {
            (*a, *b) = (*b, *a);
        }
    }
    #[graph]
    fn matched(ends: &mut Option<Endpoints>, c: Tensor<bool>) {
        match ends {
            Some(ends) => {
                if c {
                    ends.exchange();
                }
            }
            None => unreachable!("there is one"),
        }
    }
    #[graph]
    fn tested(ends: &mut Option<Endpoints>, c: Tensor<bool>) {
        if let Some(ends) = ends {
            if c {
                ends.exchange();
            }
        }
    }
    #[graph]
    fn renamed(ends: &mut Endpoints, c: Tensor<bool>) {
        let same = ends;
        if c {
            same.exchange();
        }
    }
    #[graph]
    fn declared(ends: &mut Endpoints, c: Tensor<bool>) {
        let same: &mut _ = ends.itself();
        if c {
            same.exchange();
        }
    }
    type Change = fn(&mut Option<Endpoints>, Tensor<bool>);
    let changes: [Change; 5] = [
        |e, c| taken_apart(e.as_mut().unwrap(), c),
        matched,
        tested,
        |e, c| renamed(e.as_mut().unwrap(), c),
        |e, c| declared(e.as_mut().unwrap(), c),
    ];
    for (i, change) in changes.into_iter().enumerate() {
        for c in [false, true] {
            let run = |c: Tensor<bool>| {
                let mut ends = Some(Endpoints { a: scalar(1), b: scalar(2) });
                change(&mut ends, c);
                ends.unwrap().a
            };
            assert_eq!(eval_with(run, c).unwrap(), 1 + i32::from(c), "{i}, {c}");
        }
    }
}

#[test]
fn attributes_of_a_match_and_of_its_arms() {
    #[graph]
    fn f(x: Tensor<f64>, n: Tensor<i32>) -> Tensor<f64> {
        let mut y = x;
        #[allow(clippy::single_match, reason = "to be seen")]
        match n {
            #[expect(unused_variables, reason = "to be seen")]
            0 => {
                let z = 1;
                y += 1.0;
            }
            _ => {}
        }
        match n {
            #[rustfmt::skip]
            0  =>  y*2.0,
            #[allow(clippy::neg_multiply, reason = "to be seen")]
            1..=3 => y * -1.0,
            _ => y,
        }
    }
    check(f, (3.0, 0), &[8.0]);
    check(f, (3.0, 2), &[-3.0]);
    check(f, (3.0, 4), &[3.0]);
}

struct Opcodes;

impl Opcodes {
    const D: i32 = 3;
    const E: i32 = 7;
}

#[test]
fn associated_constants_with_names_of_one_letter_are_patterns() {
    macro_rules! function {
        ($(#[$attribute:meta])* $name:ident, $int:ty) => {
            $(#[$attribute])*
            fn $name(x: $int, y: $int) -> $int {
                let a = match x {
                    Opcodes::D => x * 2,
                    i32::MAX => x,
                    _ => x - 1,
                };
                let b = match (x, y % 10) {
                    (Opcodes::D, 1) => y,
                    (_, Opcodes::E) => y * 3,
                    _ => x + y,
                };
                let z = x + y;
                let c = if let Opcodes::D | Opcodes::E = z { z } else { -z };
                let d = if matches!(x, Opcodes::D | Opcodes::E) { x } else { x + 2 };
                let e = if matches!(y, n if n > 2) && !matches!(x, n @ 1..=9 if n % 2 == 0) { y } else { -x };
                a * 1000 + b * 100 + c * 10 + d + e
            }
        };
    }
    function!(
        #[graph]
        staged,
        Tensor<i32>
    );
    function!(plain, i32);
    let inputs = [-1, 0, 2, 3, 4, 7, 12].into_iter().flat_map(|x| [-4, 0, 1, 3, 7, 17].map(|y| (x, y)));
    check_each(staged, inputs.map(|(x, y)| ((x, y), [f64::from(plain(x, y))])));
}

#[test]
fn variants_with_names_of_one_letter_stay_variants() {
    enum Side {
        N,
        S,
    }
    #[graph]
    fn f(side: &Side, n: Option<i32>) -> i32 {
        match side {
            Side::N => 1,
            _ if matches!(n, Some(k) if k > 2) => 2,
            _ if matches!(side, Side::S if n.is_none()) => 3,
            _ => 4,
        }
    }
    assert_eq!([f(&Side::N, None), f(&Side::S, Some(3)), f(&Side::S, None), f(&Side::S, Some(1))], [1, 2, 3, 4]);
}

#[test]
fn variants_stay_variants_under_names_of_numbers_and_in_parentheses() {
    #[derive(Clone, Copy)]
    enum Side {
        N,
        S,
    }
    #[graph]
    fn f(t: Tensor<i32>, sides: &[Side]) -> Tensor<i32> {
        let mut sum = t;
        for t in sides {
            sum += match t {
                Side::N => 10,
                Side::S => 20,
            };
        }
        for side in sides {
            sum *= match side {
                (Side::N) | (Side::S) if matches!(side, (Side::S)) => 3,
                (Side::N) => 2,
                _ => 1,
            };
        }
        sum
    }
    check(|x: Tensor<i32>| f(x, &[Side::N, Side::S]), 1, &[f64::from((1 + 10 + 20) * 2 * 3)]);
}
