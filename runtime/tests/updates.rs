//! New values of variables, computed in place or not.

use crate::support::{check_traced, traced};
use anabranch_dsl::trace::{self, assign_var, constant, read_var};
use anabranch_dsl::{AnyValue, AnyVar, HostTensor};
use anabranch_runtime::Program;

fn numbers(shape: &[usize], first: f32) -> HostTensor {
    let n: usize = shape.iter().product();
    HostTensor::new(shape, (0..n).map(|i| first + (i % 101) as f32 / 50.0).collect::<Vec<_>>())
}

fn var(name: &str, shape: &[usize]) -> AnyVar {
    AnyVar::new(name, numbers(shape, 0.5))
}

/// Checks a step against the interpreter. Returns the number of variables updated in place, the
/// number of passes for them, and the number of other variables.
#[track_caller]
fn check(inputs: &[HostTensor], f: impl FnOnce(&[AnyValue]) -> Vec<AnyValue>) -> (usize, usize, usize) {
    let traced = traced(inputs, f);
    check_traced(&traced, inputs).unwrap_or_else(|e| panic!("{e}"));
    let text = Program::new(traced.graph).unwrap_or_else(|e| panic!("{e}")).explain();
    let of = |line: &&str| line.split(" = ").next().unwrap_or_default().matches(|c: char| c.is_ascii_digit()).count();
    let (in_place, other): (Vec<&str>, Vec<&str>) =
        text.lines().filter(|l| l.starts_with("  variable ")).partition(|l| l.contains("in place"));
    (in_place.iter().map(of).sum(), in_place.len(), other.len())
}

#[test]
fn what_an_optimizer_does_is_done_in_place() {
    for n in [3, 700, 300_000] {
        let [w, m, v] = ["w", "m", "v"].map(|name| var(name, &[n]));
        let got = check(&[numbers(&[n], -1.0)], |g| {
            let moment = read_var(&m).mul(constant(HostTensor::scalar(0.9f32)).broadcast_to([n])).add(g[0]);
            let square = read_var(&v).add(g[0].mul(g[0]));
            assign_var(&m, moment);
            assign_var(&v, square);
            assign_var(&w, read_var(&w).sub(moment.div(square.sqrt())));
            vec![g[0].slice(0, 0, 3).sum()]
        });
        assert_eq!(got, (3, 1, 0), "{n}");
    }
}

#[test]
fn a_new_value_that_is_returned_is_copied() {
    let w = var("w", &[5]);
    let got = check(&[numbers(&[5], 1.0)], |g| {
        let new = read_var(&w).sub(g[0]);
        assign_var(&w, new);
        vec![new]
    });
    assert_eq!(got, (0, 0, 1));
}

#[test]
fn the_old_value_can_be_returned_and_read_before() {
    let w = var("w", &[5]);
    let got = check(&[numbers(&[5], 1.0)], |g| {
        let old = read_var(&w);
        assign_var(&w, old.sub(g[0]));
        vec![old, old.mul(g[0]).sum()]
    });
    assert_eq!(got, (1, 1, 0));
}

#[test]
fn an_old_value_that_a_later_update_reads_stays_until_then() {
    let [a, b] = ["a", "b"].map(|name| var(name, &[4]));
    // `a` must not be overwritten before `b` has read its old value. `b` may be updated in place.
    let got = check(&[numbers(&[4], 1.0)], |x| {
        let (old_a, old_b) = (read_var(&a), read_var(&b));
        assign_var(&a, old_a.add(old_b));
        assign_var(&b, old_b.mul(old_a).add(x[0]));
        vec![]
    });
    assert_eq!(got, (1, 1, 1));
}

#[test]
fn a_variable_read_at_other_places_is_not_changed_in_place() {
    let w = var("w", &[3, 3]);
    let got = check(&[numbers(&[3, 3], 1.0)], |x| {
        let old = read_var(&w);
        assign_var(&w, old.permute([1, 0]).add(x[0]));
        vec![]
    });
    assert_eq!(got, (0, 0, 1));
    // Two updates are not fused if one reads the new value of the other transposed.
    let [a, b] = ["a", "b"].map(|name| var(name, &[30, 30]));
    let got = check(&[numbers(&[30, 30], 1.0)], |x| {
        let new = read_var(&a).add(x[0]);
        assign_var(&a, new);
        assign_var(&b, read_var(&b).add(new.permute([1, 0])).mul(x[0]));
        vec![]
    });
    assert_eq!(got, (2, 2, 0));
    // Two updates are not fused if the first reads the old value of the second transposed.
    let got = check(&[numbers(&[30, 30], 1.0)], |x| {
        assign_var(&a, read_var(&a).add(read_var(&b).permute([1, 0])));
        assign_var(&b, read_var(&b).add(x[0]));
        vec![]
    });
    assert_eq!(got, (2, 2, 0));
}

#[test]
fn one_value_of_two_variables_is_copied() {
    let [a, b] = ["a", "b"].map(|name| var(name, &[4]));
    let got = check(&[numbers(&[4], 1.0)], |x| {
        let new = read_var(&a).add(x[0]);
        assign_var(&a, new);
        assign_var(&b, new);
        vec![]
    });
    assert_eq!(got, (0, 0, 2));
}

#[test]
fn a_step_that_fails_after_all_new_values_were_known_changes_nothing() {
    let w = var("w", &[6]);
    for x in [1.0f32, -1.0] {
        let inputs = [HostTensor::scalar(x), numbers(&[6], 1.0)];
        let traced = traced(&inputs, |x| {
            assign_var(&w, read_var(&w).sub(x[1]));
            let positive = constant(HostTensor::scalar(0.0f32)).lt(x[0]);
            trace::assert(positive, "the number is positive".to_owned());
            vec![]
        });
        // This also compares variables, with their old values if the step fails.
        assert_eq!(check_traced(&traced, &inputs).is_ok(), x > 0.0);
    }
}
