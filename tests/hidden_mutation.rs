//! Modifications that the form of the code hides: they are detected or rejected, but never applied
//! regardless of the condition.

use crate::support::{check, check_each};
use anabranch::prelude::*;

type S = Tensor<f64>;

#[derive(Carry, Clone, Copy)]
struct Pair {
    now: S,
    next: S,
}

impl Pair {
    fn new(x: S) -> Pair {
        Pair { now: x, next: x * 10.0 }
    }
    /// Has the name of a method that modifies nothing in other types.
    fn round(&mut self) {
        self.now = self.next;
    }
    fn get(&mut self) -> &mut S {
        &mut self.now
    }
    #[graph]
    fn round_if(&mut self, c: Tensor<bool>) {
        if c {
            self.round();
        }
    }
}

#[test]
fn methods_of_a_users_type_may_have_any_name() {
    #[graph]
    fn literal(x: S, c: Tensor<bool>) -> S {
        let mut pair = Pair { now: x, next: x * 10.0 };
        if c {
            pair.round();
        }
        pair.now
    }
    #[graph]
    fn made(x: S, c: Tensor<bool>) -> S {
        let mut pair = Pair::new(x);
        if c {
            *pair.get() = x * 10.0;
        }
        pair.now
    }
    #[graph]
    fn by_reference(pair: &mut Pair, c: Tensor<bool>) {
        if c {
            pair.round();
        }
    }
    fn of_self(x: S, c: Tensor<bool>) -> S {
        let mut pair = Pair::new(x);
        pair.round_if(c);
        pair.now
    }
    fn passed(x: S, c: Tensor<bool>) -> S {
        let mut pair = Pair::new(x);
        by_reference(&mut pair, c);
        pair.now
    }
    let cases = [((1.0, true), [10.0]), ((1.0, false), [1.0])];
    check_each(literal, cases);
    check_each(made, cases);
    check_each(of_self, cases);
    check_each(passed, cases);
}

fn make(x: S) -> Pair {
    Pair::new(x)
}

#[derive(Carry, Clone)]
struct Holder {
    pair: Pair,
    all: Vec<Pair>,
    sum: S,
}

impl Holder {
    fn sum(&mut self) -> S {
        self.sum += 1.0;
        self.all.iter().fold(self.sum, |sum, pair| sum + pair.now)
    }
}

#[test]
fn methods_of_known_names_change_a_variable_whose_type_no_token_shows() {
    #[graph]
    fn called(x: S, c: Tensor<bool>) -> S {
        let mut pair = make(x);
        if c {
            pair.round();
        }
        pair.now
    }
    #[graph]
    fn by_value(mut pair: Pair, c: Tensor<bool>) -> S {
        let first = pair.now;
        while pair.now < 5.0 && c {
            pair.round();
        }
        pair.now + first * 0.0
    }
    fn passed(x: S, c: Tensor<bool>) -> S {
        by_value(make(x), c)
    }
    #[graph]
    fn item(x: S, c: Tensor<bool>) -> S {
        let mut pairs = vec![make(x * 2.0), make(x)];
        if c && pairs.len() == 2 {
            pairs[1].round();
        }
        pairs[1].now
    }
    #[graph]
    fn field(x: S, c: Tensor<bool>) -> S {
        let mut holder = Holder { pair: make(x), all: vec![make(x)], sum: x };
        if c {
            holder.pair.round();
        }
        holder.pair.now
    }
    #[graph]
    fn in_a_box(x: S, c: Tensor<bool>) -> S {
        let mut pair = Box::new(make(x));
        if c {
            pair.round();
        }
        pair.now
    }
    #[graph]
    fn lent_items(x: S, c: Tensor<bool>) -> S {
        let mut pairs = [make(x), make(x * 3.0)];
        for pair in pairs.iter_mut() {
            if c {
                pair.round();
            }
        }
        pairs[0].now
    }
    #[graph]
    fn any<M: Carry + Rounds>(mut m: M, c: Tensor<bool>) -> M {
        if c {
            m.round();
        }
        m
    }
    fn of_a_parameter(x: S, c: Tensor<bool>) -> S {
        any(make(x), c).now
    }
    let cases = [((1.0, true), [10.0]), ((1.0, false), [1.0])];
    check_each(called, cases);
    check_each(passed, cases);
    check_each(item, cases);
    check_each(field, cases);
    check_each(in_a_box, cases);
    check_each(lent_items, cases);
    check_each(of_a_parameter, cases);
}

trait Rounds {
    fn round(&mut self);
}

impl Rounds for Pair {
    fn round(&mut self) {
        Pair::round(self);
    }
}

#[test]
fn a_whole_that_perhaps_changes_stands_beside_its_parts() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, S, S) {
        let mut holder = Holder { pair: make(x), all: vec![make(x), make(x)], sum: x };
        let mut total = scalar(0.0);
        for i in range(n) {
            holder.pair.now += 1.0;
            if i > 1 {
                holder.all[0].round();
                total += holder.sum();
                holder.pair.round();
            }
            holder.all[1].now -= 1.0;
        }
        (holder.pair.now, total, holder.sum)
    }
    // A variable of a known type does not change as a whole, but its parts do.
    #[graph]
    fn known(x: S, n: Tensor<i32>) -> (S, S) {
        let mut pairs = (make(x), vec![x, x]);
        let first = x;
        for i in range(n) {
            if i == pairs.1.len() as i32 - 1 {
                pairs.0.now = first.maximum(pairs.1[1]) + 1.0;
            } else {
                pairs.0.round();
            }
            let more = pairs.1[1].abs();
            pairs.1[0] += more;
        }
        (pairs.0.now, pairs.1[0])
    }
    let host = |n: i32| {
        let (mut now, next, mut sum, mut total, mut all) = (1.0, 10.0, 1.0, 0.0, [1.0, 1.0]);
        for i in 0..n {
            now += 1.0;
            if i > 1 {
                all[0] = 10.0;
                sum += 1.0;
                total += sum + all[0] + all[1];
                now = next;
            }
            all[1] -= 1.0;
        }
        [now, total, sum]
    };
    check_each(f, [0, 1, 3, 5].map(|n| ((1.0, n), host(n))));
    check(known, (1.0, 1), &[10.0, 2.0]);
    check(known, (1.0, 2), &[2.0, 3.0]);
    check(known, (1.0, 3), &[10.0, 4.0]);
}

#[test]
fn methods_of_known_types_borrow_nothing() {
    #[graph]
    fn f(x: S, c: Tensor<bool>) -> S {
        let mut v = vec![x, x * 2.0];
        let mut names = std::collections::HashMap::new();
        names.insert("a", 1.0);
        let mut numbers = [1.0, 2.0].iter();
        let (first, one) = (&v[0], names.get("a").unwrap());
        let mut out = x;
        if c {
            out = *first * v.len() as f64 + v[1].abs() + names.get("a").copied().unwrap_or(0.0) + *one;
        }
        let sum: f64 = if c.rank() == 0 { numbers.by_ref().sum() } else { 0.0 };
        v.push(out);
        names.clear();
        out + sum
    }
    check(f, (1.0, true), &[9.0]);
    check(f, (1.0, false), &[4.0]);
}

impl Holder {
    #[graph]
    fn taken_apart(&mut self, c: Tensor<bool>) {
        if c {
            let Holder { pair, sum, .. } = self;
            *sum = pair.next;
        }
    }
}

#[test]
fn what_is_changed_through_a_reference_that_is_taken_apart_or_passed_on() {
    #[graph]
    fn pattern(d: &mut Pair, c: Tensor<bool>) {
        if c {
            let Pair { now, next } = d;
            std::mem::swap(now, next);
        }
    }
    #[graph]
    fn tuple(d: &mut (S, S), c: Tensor<bool>) {
        if c {
            let (a, b) = d;
            *a = *b;
        }
    }
    #[graph]
    fn optional(d: &mut Option<S>, z: S, c: Tensor<bool>) {
        if c {
            if let Some(q) = d {
                *q = z;
            }
        }
    }
    #[graph]
    fn moved(d: &mut S, z: S, c: Tensor<bool>) {
        if c {
            let q = d;
            *q = z;
        }
    }
    #[graph]
    fn matched(d: &mut S, z: S, c: Tensor<bool>) {
        if c {
            #[allow(clippy::match_single_binding, reason = "a match moves it, too")]
            match d {
                q => *q = z,
            }
        }
    }
    #[graph]
    fn of_a_block(d: &mut S, z: S, c: Tensor<bool>) {
        if c {
            let q = { d };
            *q = z;
        }
    }
    #[graph]
    fn of_a_tuple(d: &mut S, z: S, c: Tensor<bool>) {
        if c {
            let t = (d, 1);
            *t.0 = z;
        }
    }
    #[graph]
    fn items(d: &mut Vec<S>, z: S, n: Tensor<i32>) {
        for _ in range(n) {
            for q in d {
                *q = z;
            }
        }
    }
    struct Lent<'a> {
        at: &'a mut S,
    }
    #[graph]
    fn of_a_struct(at: &mut S, z: S, c: Tensor<bool>) {
        if c {
            let lent = Lent { at };
            *lent.at = z;
        }
    }
    #[graph]
    fn borrowed_here(x: S, c: Tensor<bool>) -> S {
        let mut y = x;
        let z = x * 10.0;
        {
            let d = &mut y;
            if c {
                let q = d;
                *q = z;
            }
        }
        y
    }
    fn all(x: S, c: Tensor<bool>) -> Vec<S> {
        let z = x * 10.0;
        let mut holder = Holder { pair: make(x), all: vec![], sum: x };
        holder.taken_apart(c);
        let mut pair = make(x);
        pattern(&mut pair, c);
        let mut two = (x, z);
        tuple(&mut two, c);
        let mut option = Some(x);
        optional(&mut option, z, c);
        let mut vector = vec![x];
        items(&mut vector, z, c.cast());
        let mut results = vec![holder.sum, pair.now, two.0, option.unwrap(), vector[0], borrowed_here(x, c)];
        for f in [moved, matched, of_a_block, of_a_tuple, of_a_struct] {
            let mut y = x;
            f(&mut y, z, c);
            results.push(y);
        }
        results
    }
    check(all, (1.0, true), &[10.0; 11]);
    check(all, (1.0, false), &[1.0; 11]);
}

#[derive(Carry, Clone)]
struct Gene {
    a: S,
    b: S,
}

impl Iterator for Gene {
    type Item = S;
    fn next(&mut self) -> Option<S> {
        Some(self.a)
    }
}

impl Gene {
    fn get(&mut self) -> S {
        std::mem::swap(&mut self.a, &mut self.b);
        self.a
    }
    fn hash(&mut self) {
        self.a = self.b;
    }
}

#[test]
fn methods_of_known_names_of_an_iterator_and_of_names_of_traits() {
    #[graph]
    fn f(x: S, c: Tensor<bool>) -> (S, S) {
        let mut gene = Gene { a: x, b: x * 10.0 };
        let mut other = gene.clone();
        if c {
            gene.get();
            other.hash();
        }
        (gene.a, other.a)
    }
    check(f, (1.0, true), &[10.0, 10.0]);
    check(f, (1.0, false), &[1.0, 1.0]);
}

/// An alias of a tensor type.
type Number = Tensor<f64>;

#[test]
fn methods_of_a_tensor_of_another_name_change_nothing() {
    #[graph]
    fn f(mut y: Number, c: Tensor<bool>) -> Number {
        y -= if c { y.abs() * 2.0 } else { y.sin() };
        y
    }
    check(f, (3.0, true), &[-3.0]);
    check(f, (3.0, false), &[3.0 - 3f64.sin()]);
}

#[test]
fn compound_assignment_to_truth_values() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> [Tensor<bool>; 3] {
        let (mut any, mut all, mut odd) = (x > 10.0, x > 0.0, x > 10.0);
        for i in range(n) {
            any |= i > 2;
            all &= i < 4;
            odd ^= i >= 0;
        }
        [any, all, odd]
    }
    let cases = [(0, [0.0, 1.0, 0.0]), (3, [0.0, 1.0, 1.0]), (4, [1.0, 1.0, 0.0]), (5, [1.0, 0.0, 1.0])];
    check_each(f, cases.map(|(n, expected)| ((1.0, n), expected)));
}

#[test]
fn headers_of_loops_that_only_the_host_leaves() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let mut v = vec![x, x * 2.0, x * 3.0];
        let mut out = x;
        let mut trips = 0;
        while let Some(y) = v.pop() {
            out += y;
            trips += 1;
            if trips == 2 {
                break;
            }
        }
        let mut it = [1.0, 2.0, 3.0, 4.0].into_iter();
        for k in it.by_ref() {
            out += k;
            if k > 1.5 {
                break;
            }
        }
        (out, v.iter().fold(scalar(100.0), |a, b| a + *b) + it.next().unwrap_or(0.0))
    }
    check(f, 1.0, &[1.0 + 3.0 + 2.0 + 1.0 + 2.0, 101.0 + 3.0]);
}

/// An iterator that is made in the head of a loop is made once.
#[test]
fn an_iterator_without_a_name_is_borrowed_once() {
    #[graph]
    fn f(x: S, limit: S) -> S {
        let mut out = x;
        for k in [1.0, 2.0, 3.0].iter().by_ref() {
            out += *k;
            if out > limit {
                break;
            }
        }
        out
    }
    check(f, (0.0, 3.5), &[6.0]);
    check(f, (0.0, 2.5), &[3.0]);
    check(f, (0.0, 100.0), &[6.0]);
}

#[test]
fn a_stack_of_the_host_that_a_tensor_leaves_is_an_error() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let mut v = vec![x, x * 2.0, x * 3.0];
        let mut out = x;
        while let Some(y) = v.pop() {
            out += y;
            if out > 5.0 {
                break;
            }
        }
        (out, v.iter().fold(scalar(100.0), |a, b| a + *b))
    }
    let error = crate::support::error_of(f, 1.5);
    assert!(error.to_string().contains("`v`"), "{error}");
}

/// Modifies itself by methods with the names of those of `Clone`, `ToOwned` and `ToString`.
#[derive(Carry)]
struct Steps {
    at: S,
}

impl Steps {
    fn clone(&mut self) -> S {
        self.at += 1.0;
        self.at
    }
    #[expect(clippy::wrong_self_convention, reason = "the name of a method of a trait")]
    fn to_owned(&mut self) -> S {
        self.at *= 2.0;
        self.at
    }
    #[expect(clippy::wrong_self_convention, reason = "the name of a method of a trait")]
    fn to_string(&mut self) -> S {
        self.at -= 3.0;
        self.at
    }
    #[graph]
    fn of_self(&mut self, c: Tensor<bool>) {
        if c {
            self.clone();
            self.to_owned();
        }
    }
}

/// Implements `Clone`, but a call on a mutable reference prefers its own method `clone`.
#[derive(Carry)]
struct Both {
    at: S,
}

impl Clone for Both {
    fn clone(&self) -> Both {
        Both { at: self.at }
    }
}

impl Both {
    fn clone(&mut self) {
        self.at += 1.0;
    }
}

#[test]
fn inherent_methods_with_the_names_of_clone_to_owned_and_to_string_change_state() {
    #[graph]
    fn called(x: S) -> S {
        let mut s = Steps { at: x };
        if x > 0.0 {
            s.clone();
        }
        s.at
    }
    check(called, -5.0, &[-5.0]);
    check(called, 5.0, &[6.0]);

    #[graph]
    fn by_reference(s: &mut Steps, c: Tensor<bool>) {
        if c {
            s.clone();
            s.to_string();
        }
    }
    #[graph]
    fn in_a_loop(x: S, n: Tensor<i32>) -> (S, S) {
        let mut s = Box::new(Steps { at: x });
        let mut last = x;
        for _ in range(n) {
            last = s.to_owned();
        }
        (s.at, last)
    }
    #[graph]
    fn items(x: S, c: Tensor<bool>) -> (S, S, S) {
        let mut all = vec![Steps { at: x }, Steps { at: x }];
        let mut grid = [[Pairs { first: Steps { at: x } }]];
        let mut by_name = std::collections::BTreeMap::from([("a", vec![x])]);
        let i = 0;
        if c {
            for k in 0..2 {
                all[k].clone();
            }
            grid[i][0].first.to_string();
            let copy = by_name["a"].clone();
            all[0].at += copy[0];
        }
        by_name.clear();
        (all[0].at, all[1].at, grid[0][0].first.at)
    }
    #[graph]
    fn both(b: &mut Both, c: Tensor<bool>) {
        if c {
            b.clone();
        }
    }
    fn all(x: S, c: Tensor<bool>) -> Vec<S> {
        let mut s = Steps { at: x };
        by_reference(&mut s, c);
        let mut of_self = Steps { at: x };
        of_self.of_self(c);
        let mut b = Both { at: x };
        both(&mut b, c);
        vec![s.at, of_self.at, b.at]
    }
    check(all, (5.0, true), &[3.0, 12.0, 6.0]);
    check(all, (5.0, false), &[5.0, 5.0, 5.0]);
    check(in_a_loop, (5.0, 2), &[20.0, 20.0]);
    check(in_a_loop, (5.0, 0), &[5.0, 5.0]);
    check(items, (5.0, true), &[11.0, 6.0, 2.0]);
    check(items, (5.0, false), &[5.0, 5.0, 5.0]);
}

#[derive(Carry)]
struct Pairs {
    first: Steps,
}

/// A host value that implements the traits and whose clones modify nothing.
#[derive(Clone, Debug)]
struct Label {
    text: String,
    parts: Vec<(String, u32)>,
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

#[test]
fn clones_by_the_traits_borrow_nothing_and_carry_nothing() {
    #[graph]
    fn lent(label: &mut Label, x: S, c: Tensor<bool>) -> S {
        let mut y = x;
        if c {
            let (copy, text) = (label.clone(), label.to_string());
            let part = label.parts[0].0.to_owned() + &label.to_owned().text;
            y += (copy.text.len() + text.len() + part.len()) as f64;
        }
        y
    }
    #[graph]
    fn generic<M: Clone + std::fmt::Display>(mut m: M, x: S, c: Tensor<bool>) -> (S, M) {
        let mut y = x;
        let seen = &m;
        if c {
            y += m.clone().to_string().len() as f64;
            y += (m.to_string() + &seen.to_string()).len() as f64;
        }
        m = m.clone();
        (y, m)
    }
    #[graph]
    fn of_carried(x: S, c: Tensor<bool>) -> S {
        let mut gene = Gene { a: x, b: x * 10.0 };
        let mut genes = vec![gene.clone(), gene.clone()];
        let (one, first) = (&gene, &genes[0]);
        let mut y = x;
        if c {
            y += gene.clone().b + genes[1].clone().a + one.a + first.a;
            y += genes.to_owned()[0].a;
        }
        gene.a = y;
        genes.clear();
        gene.a
    }
    #[graph]
    fn in_a_guard(x: S, c: Tensor<bool>) -> S {
        let cell = std::cell::RefCell::new(Label { text: "ab".into(), parts: vec![] });
        let mut guard = cell.borrow_mut();
        let mut y = x;
        if c {
            y += guard.clone().text.len() as f64 + guard.to_string().len() as f64;
        }
        guard.text.clear();
        y
    }
    fn all(x: S, c: Tensor<bool>) -> Vec<S> {
        let mut label = Label { text: "abc".into(), parts: vec![("de".into(), 1)] };
        let by_reference = lent(&mut label, x, c);
        vec![by_reference, generic(label, x, c).0, of_carried(x, c), in_a_guard(x, c)]
    }
    check(all, (1.0, true), &[12.0, 10.0, 15.0, 5.0]);
    check(all, (1.0, false), &[1.0; 4]);
}
