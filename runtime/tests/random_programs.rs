//! Random programs with nested loops and branches: the plan against the interpreter, also for their
//! gradients.

use crate::random_config::config;
use crate::support::{branch, check_traced, traced, while_loop};
use anabranch_dsl::{AnyValue, AnyVar, DType, HostTensor, Type, derivatives, trace};
use proptest::prelude::*;

/// Random choices that determine a program.
struct Choices<'a> {
    bytes: std::cell::Cell<&'a [u8]>,
}

impl Choices<'_> {
    fn below(&self, n: usize) -> usize {
        let bytes = self.bytes.get();
        let (&first, rest) = bytes.split_first().unwrap_or((&0, &[]));
        self.bytes.set(rest);
        first as usize % n
    }

    fn is_empty(&self) -> bool {
        self.bytes.get().is_empty()
    }
}

fn scalar(x: f64) -> AnyValue {
    trace::constant(HostTensor::scalar(x))
}

/// Returns one of the values of a type.
fn pick(c: &Choices<'_>, values: &[AnyValue], fits: impl Fn(&AnyValue) -> bool) -> AnyValue {
    let fitting: Vec<AnyValue> = values.iter().copied().filter(fits).collect();
    fitting[c.below(fitting.len())]
}

fn is_float(x: &AnyValue) -> bool {
    x.dtype() == DType::F64
}

/// Returns a predicate over the existing values.
///
/// The limit is no number that a sum can equal but for its rounding: the sum of two rows of a
/// softmax is 2 or one of its neighbours, depending on the order of the additions.
fn predicate(c: &Choices<'_>, values: &[AnyValue]) -> AnyValue {
    pick(c, values, is_float).sum().gt(scalar(c.below(5) as f64 - 2.0 + 0.0137))
}

/// Keeps numbers small, so that chaotic programs do not amplify rounding errors.
fn tame(x: AnyValue) -> AnyValue {
    x.mul(scalar(0.5)).sin()
}

/// Extends `values` according to the choices.
fn program(c: &Choices<'_>, values: &mut Vec<AnyValue>, vars: &[AnyVar], depth: usize) {
    for _ in 0..1 + c.below(6) {
        if c.is_empty() {
            return;
        }
        let x = pick(c, values, is_float);
        let y = pick(c, values, is_float);
        let new = match c.below(if depth < 3 { 18 } else { 14 }) {
            0 => tame(x.add(y.sum())),
            1 => tame(x.mul(y.sum())),
            2 => tame(x.sub(scalar(0.3))),
            3 => x.gt(scalar(0.1)).select(x, tame(x.mul(x))),
            4 => tame(x.exp()),
            5 if x.rank() == 2 => x.permute([1, 0]),
            6 if x.rank() > 0 => x.flip(0),
            7 if x.rank() > 0 => tame(x.sum_keepdim(0).broadcast_to(x.shape())),
            8 if x.rank() == 2 && y.ty() == x.ty() => tame(x.matmul(y.permute([1, 0])).matmul(x)),
            9 if x.rank() > 0 => {
                let n = x.dim(0);
                x.update_slice(x.slice(0, n - 1, n), 0, 0)
            }
            10 if x.rank() > 0 => AnyValue::concat(&[x.slice(0, 1, x.dim(0)), tame(x).slice(0, 0, 1)], 0),
            11 if x.rank() > 0 => x.softmax(-1),
            12 => trace::read_var(&vars[c.below(vars.len())]),
            13 => {
                let var = &vars[c.below(vars.len())];
                let old = trace::read_var(var);
                trace::assign_var(var, tame(old.add(x.sum())));
                continue;
            }
            14 | 15 => {
                let p = predicate(c, values);
                let outer = values.clone();
                let side = |values: &mut Vec<AnyValue>| {
                    program(c, values, vars, depth + 1);
                    // Both branches return a value of the type of `x`, a new value if possible.
                    let last = *values.iter().rfind(|v| v.ty() == x.ty()).expect("x has its type");
                    vec![last, pick(c, &outer, is_float).sum()]
                };
                let r = branch(p, || side(&mut values.clone()), || side(&mut values.clone()));
                values.extend(r);
                continue;
            }
            16 | 17 => {
                let trips = c.below(4) as i32;
                let limit = trace::constant(HostTensor::scalar(trips));
                let zero = trace::constant(HostTensor::scalar(0));
                let outer = values.clone();
                let r = while_loop(
                    &[zero, x, y],
                    |s| s[0].lt(limit),
                    |s| {
                        let mut inside = outer.clone();
                        inside.extend(&s[1..]);
                        program(c, &mut inside, vars, depth + 1);
                        let of = |ty: Type| *inside.iter().rfind(|v| v.ty() == ty).expect("there is one of its type");
                        let (a, b) = (of(x.ty()), of(y.ty()));
                        // Sometimes the two are swapped.
                        let (a, b) = if x.ty() == y.ty() && c.below(2) == 0 { (s[2], a) } else { (a, b) };
                        vec![s[0].add(trace::constant(HostTensor::scalar(1))), a, b]
                    },
                );
                values.extend(&r[1..]);
                continue;
            }
            _ => tame(x.neg()),
        };
        values.push(new);
    }
}

fn run(bytes: &[u8], with_gradient: bool) {
    let numbers = |shape: &[usize]| {
        let n: usize = shape.iter().product();
        HostTensor::new(shape, (0..n).map(|i| (i * 13 % 7) as f64 / 5.0 - 0.4).collect::<Vec<_>>())
    };
    let inputs = [numbers(&[]), numbers(&[3]), numbers(&[2, 3]), numbers(&[2, 3])];
    let vars = [AnyVar::new("u", numbers(&[3])), AnyVar::new("v", numbers(&[]))];
    let t = traced(&inputs, |x| {
        let choices = Choices { bytes: bytes.into() };
        let mut values = x.to_vec();
        program(&choices, &mut values, &vars, 0);
        let mut outputs: Vec<AnyValue> = values.iter().rev().take(5).copied().collect();
        if with_gradient {
            let loss = outputs.iter().filter(|v| is_float(v)).map(|v| v.sum()).reduce(AnyValue::add).expect("a number");
            outputs.extend(derivatives::vjp(&[(loss, loss.number(1.0))], x));
        }
        outputs
    });
    check_traced(&t, &inputs).expect("nothing here fails");
}

proptest! {
    #![proptest_config(config(cases()))]

    #[test]
    fn plans_do_what_the_interpreter_does(bytes in prop::collection::vec(any::<u8>(), 10..300)) {
        run(&bytes, false);
    }

    #[test]
    fn plans_of_gradients_do_what_the_interpreter_does(bytes in prop::collection::vec(any::<u8>(), 10..120)) {
        run(&bytes, true);
    }
}

fn cases() -> u32 {
    if std::env::var_os("ANABRANCH_SLOW").is_some() { 2000 } else { 150 }
}
