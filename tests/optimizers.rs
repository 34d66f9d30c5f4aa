//! Optimizers, schedules and what belongs to them, compared with the numbers of PyTorch in
//! `tests/fixtures/optimizers.txt`, in the interpreter and in plans.
#![deny(warnings)]

use anabranch::optim::schedule::{self, Plateau};
use anabranch::optim::{
    Accumulator, AdaDelta, AdaGrad, AdaMax, Adam, Lbfgs, LbfgsHistory, Lion, NAdam, Optimizer, ParamGroups, RmsProp,
    Sgd, WeightAverage, clip_global_norm, clip_norm, clip_value, l2_decay, model_gradients,
};
use anabranch::prelude::*;
use anabranch::{AnyValue, AnyVar, DType, Float, HostTensor};
use std::collections::{BTreeMap, BTreeSet};

type Outcome = anabranch::Result<()>;

/// A gradient update: the part of a training step after differentiation.
type GradientUpdate = Box<dyn Fn(&mut [(AnyVar, AnyValue)])>;

const START: [f64; 6] = [1.0, -0.5, 0.0, 0.0, 0.75, 0.0];
const SCALES: [f64; 6] = [1.0, 1.0, 1e-12, 1e-6, 0.0, 1e12];
const GRADIENTS: [f64; 5] = [0.1, -0.2, 0.3, 0.0, -0.5];

/// Returns the numbers of the fixture by their words before the first number.
fn fixture(kind: &str, words: usize) -> BTreeMap<String, Vec<f64>> {
    let lines = include_str!("fixtures/optimizers.txt").lines().filter(|line| line.starts_with(kind));
    let entry = |line: &str| {
        let all: Vec<&str> = line.split(' ').skip(1).collect();
        let (name, numbers) = all.split_at(words);
        (name.join(" "), numbers.iter().map(|x| x.parse().expect("a number")).collect())
    };
    lines.map(entry).collect()
}

fn optimizer<O: Optimizer + 'static>(make: fn() -> O) -> Box<dyn Fn() -> GradientUpdate> {
    Box::new(move || {
        let optimizer = make();
        Box::new(move |gradients| optimizer.apply(optimizer.rate(), gradients))
    })
}

fn with_l2<O: Optimizer + 'static>(decay: f64, make: fn() -> O) -> Box<dyn Fn() -> GradientUpdate> {
    Box::new(move || {
        let optimizer = make();
        Box::new(move |gradients| {
            l2_decay(gradients, decay);
            optimizer.apply(optimizer.rate(), gradients);
        })
    })
}

/// An update with a rate and a momentum.
type CycleUpdate<O> = fn(&O, [Tensor; 2], &[(AnyVar, AnyValue)]);

/// Updates with the rate and the momentum of one cycle. In `f32` they are those of our schedules.
/// In `f64`, which is compared more exactly, they are PyTorch's, and rounded to `f32` as in the
/// fixture.
fn one_cycle<O: Optimizer + 'static>(make: fn() -> O, apply: CycleUpdate<O>) -> Box<dyn Fn() -> GradientUpdate> {
    Box::new(move || {
        let (optimizer, count) = (make(), Var::<i64>::untrained("count", 0));
        Box::new(move |gradients| {
            let t = count.get();
            count.set(t + 1);
            let numbers = match gradients[0].1.dtype() {
                DType::F32 => [schedule::one_cycle(t, 0.01, 20), schedule::one_cycle_momentum(t, 0.85, 0.95, 20)],
                _ => ["one_cycle_20", "one_cycle_momentum_20"].map(|name| {
                    let steps: Vec<f32> = fixture("rates", 1)[name].iter().map(|&x| x as f32).collect();
                    schedule::piecewise(t, &(1..20).collect::<Vec<_>>(), &steps)
                }),
            };
            apply(&optimizer, numbers, gradients);
        })
    })
}

fn cycle_sgd(sgd: &Sgd, [rate, momentum]: [Tensor; 2], gradients: &[(AnyVar, AnyValue)]) {
    sgd.momentum_at(momentum).apply(rate, gradients);
}

fn cycle_adam(adam: &Adam, [rate, momentum]: [Tensor; 2], gradients: &[(AnyVar, AnyValue)]) {
    adam.momentum_at(momentum).apply(rate, gradients);
}

/// The decay of groups is that of AdamW.
fn cycle_adamw(adam: &Adam, [rate, momentum]: [Tensor; 2], gradients: &[(AnyVar, AnyValue)]) {
    ParamGroups::new(adam.momentum_at(momentum)).decay(|_, _| true, 0.01).apply(rate, gradients);
}

fn optimizers() -> BTreeMap<&'static str, Box<dyn Fn() -> GradientUpdate>> {
    BTreeMap::from([
        ("sgd", optimizer(|| Sgd::new(0.01))),
        ("sgd_momentum", optimizer(|| Sgd::new(0.01).momentum(0.9))),
        ("sgd_nesterov", optimizer(|| Sgd::new(0.01).momentum(0.9).nesterov())),
        ("sgd_l2", with_l2(0.1, || Sgd::new(0.01).momentum(0.9))),
        ("sgd_one_cycle", one_cycle(|| Sgd::new(0.01).momentum(0.5), cycle_sgd)),
        ("sgd_nesterov_one_cycle", one_cycle(|| Sgd::new(0.01).momentum(0.5).nesterov(), cycle_sgd)),
        ("adam_one_cycle", one_cycle(|| Adam::new(0.001), cycle_adam)),
        ("adamw_one_cycle", one_cycle(|| Adam::new(0.001), cycle_adamw)),
        ("adam_lazy_one_cycle", one_cycle(|| Adam::new(0.001).epsilon(1e-30).lazy(), cycle_adam)),
        ("adagrad", optimizer(|| AdaGrad::new(0.01))),
        ("adadelta", optimizer(|| AdaDelta::new(1.0))),
        ("rmsprop", optimizer(|| RmsProp::new(0.01))),
        ("rmsprop_centered", optimizer(|| RmsProp::new(0.01).centered())),
        ("rmsprop_momentum", optimizer(|| RmsProp::new(0.01).momentum(0.9))),
        ("rmsprop_all", optimizer(|| RmsProp::new(0.01).alpha(0.9).epsilon(1e-6).centered().momentum(0.5))),
        ("adam", optimizer(|| Adam::new(0.001))),
        ("adam_betas", optimizer(|| Adam::new(0.001).betas(0.5, 0.75).epsilon(1e-3))),
        ("adam_amsgrad", optimizer(|| Adam::new(0.001).amsgrad())),
        ("adam_lazy", optimizer(|| Adam::new(0.001).epsilon(1e-30).lazy())),
        ("adam_l2", with_l2(0.01, || Adam::new(0.001))),
        ("adamw", optimizer(|| Adam::new(0.001).weight_decay(0.01))),
        ("adamax", optimizer(|| AdaMax::new(0.002))),
        ("nadam", optimizer(|| NAdam::new(0.002))),
        ("lion", optimizer(|| Lion::new(0.001))),
        ("lion_decay", optimizer(|| Lion::new(0.001).weight_decay(0.1))),
    ])
}

/// Compares an optimizer with the fixture. The tolerance is relative to the largest value of each
/// weight so far, since a weight may return to near zero.
fn compare<T: Float + Into<f64>>(name: &str, update: &GradientUpdate, interpreted: bool, tolerance: f64) -> Outcome {
    let expected = fixture("weights", 3);
    let w = Var::<T>::new("w", START.map(T::from_f64).to_vec());
    let session = Session::builder().interpreted(interpreted).build()?;
    let step = session.function(|g: Tensor<T>| update(&mut [(w.any().clone(), g.untyped())]))?;
    let (mut compared, mut scales) = (0, START.map(f64::abs));
    for t in 1..=20 {
        let gradient: Vec<T> = (0..6).map(|i| T::from_f64(GRADIENTS[(t + i) % 5] * SCALES[i])).collect();
        step.call(gradient)?;
        let Some(expected) = expected.get(&format!("{name} {} {t}", T::DTYPE)) else { continue };
        compared += 1;
        for (i, (&w, &e)) in session.get(&w)?.iter().zip(expected).enumerate() {
            let w: f64 = w.into();
            scales[i] = scales[i].max(e.abs());
            assert!(
                (w - e).abs() <= tolerance * scales[i],
                "{name} {} step {t} element {i}: {w:e} is not {e:e}",
                T::DTYPE
            );
        }
    }
    assert_eq!(compared, 5, "{name}");
    Ok(())
}

#[test]
fn optimizers_give_the_weights_of_their_sources() -> Outcome {
    let optimizers = optimizers();
    let expected: BTreeSet<String> =
        fixture("weights", 3).keys().map(|key| key.split(' ').next().expect("a name").to_owned()).collect();
    assert!(expected.iter().eq(optimizers.keys()), "{expected:?}");
    for (name, make) in &optimizers {
        for interpreted in [true, false] {
            compare::<f32>(name, &make(), interpreted, 1e-5)?;
            compare::<f64>(name, &make(), interpreted, 1e-12)?;
        }
    }
    Ok(())
}

#[test]
fn tables_are_updated_as_by_dense_gradients() -> Outcome {
    let start: Vec<[f64; 2]> = (0..5).map(|i| [f64::from(i) * 0.25 - 0.5, 0.125]).collect();
    for (name, make) in optimizers() {
        let (sparse, dense) = (Var::<f64>::new("w", &start), Var::<f64>::new("w", &start));
        let updates = [make(), make()];
        let session = Session::new()?;
        // Row 1 is read twice, rows 0 and 4 never, row 2 not in each step.
        let step = session.function(|ids: Tensor<i32>, scale: Tensor<f64>| {
            let rows = sparse.get().take(ids, 0);
            let mut gradients = model_gradients((rows.square() * scale).sum(), &sparse);
            updates[0](&mut gradients);
            let one_hot = ids.unsqueeze(1).equal(iota::<i32>(5)).cast::<f64>();
            let mut gradients = model_gradients((one_hot.matmul(dense.get()).square() * scale).sum(), &dense);
            updates[1](&mut gradients);
        })?;
        for t in 0..20 {
            step.call(([1, 1, if t % 3 == 0 { 2 } else { 3 }], [1.0, 1e-12, 1e12][t % 3]))?;
        }
        let (sparse, dense) = (session.get(&sparse)?, session.get(&dense)?);
        for (s, d) in sparse.iter().zip(dense.iter()) {
            assert!((s - d).abs() <= 1e-9 * d.abs(), "{name}: {sparse} is not {dense}");
        }
        assert_ne!(sparse.to_vec()[2], start[1][0], "{name}");
    }
    Ok(())
}

#[test]
fn sixteen_bit_weights_have_moments_in_f32() -> Outcome {
    fn check<T: Float>(one: T, near_one: T) -> Outcome {
        let (w, adam) = (Var::<T>::new("w", one), Adam::new(1.0 / 1024.0));
        let session = Session::new()?;
        let step = session.function(|g: Tensor<T>| adam.apply(adam.rate(), &[(w.any().clone(), g.untyped())]))?;
        for _ in 0..100 {
            step.call(one)?;
        }
        let state: BTreeMap<String, HostTensor> = session.state(&adam)?.into_iter().collect();
        let moment = |name: &str| {
            let value = &state[&format!("w.{name}")];
            assert_eq!(value.dtype(), DType::F32);
            value.to_f64().expect("a scalar")
        };
        for (name, beta) in [("adam_m", 0.9f64), ("adam_v", 0.999)] {
            let exact = 1.0 - beta.powi(100);
            assert!((moment(name) - exact).abs() < 1e-5 * exact, "{name}: {}", moment(name));
        }
        // Each of the 100 steps is rounded once, to the 16 bits of the weight.
        assert_eq!(session.get(&w)?.item(), near_one);
        Ok(())
    }
    let f16_steps = (0..100).fold(1.0f32, |w, _| f16::from_f32(w - 1.0 / 1024.0).to_f32());
    check(f16::from_f32(1.0), f16::from_f32(f16_steps))?;
    let bf16_steps = (0..100).fold(1.0f32, |w, _| bf16::from_f32(w - 1.0 / 1024.0).to_f32());
    check(bf16::from_f32(1.0), bf16::from_f32(bf16_steps))
}

#[test]
fn schedules_give_the_rates_of_their_sources() -> Outcome {
    type Schedule = fn(Tensor<i64>) -> Tensor;
    let schedules: BTreeMap<&str, Schedule> = BTreeMap::from([
        ("linear", (|t| schedule::linear(t, 0.125, 0.5, 6)) as Schedule),
        ("piecewise", |t| schedule::piecewise(t, &[3, 5], &[0.5, 0.05, 0.005])),
        ("staircase", |t| schedule::staircase(t, 0.5, 0.5, 3)),
        ("exponential", |t| schedule::exponential(t, 0.5, 0.9, 1)),
        ("exponential_7", |t| schedule::exponential(t, 0.5, 0.1, 7)),
        ("polynomial", |t| schedule::polynomial(t, 0.5, 0.0, 6, 2.0)),
        ("polynomial_to", |t| schedule::polynomial(t, 0.5, 0.125, 6, 1.5)),
        ("cosine", |t| schedule::cosine(t, 0.5, 0.125, 10)),
        ("restarts_1", |t| schedule::cosine_restarts(t, 0.5, 0.0, 4, 1)),
        ("restarts_2", |t| schedule::cosine_restarts(t, 0.5, 0.125, 2, 2)),
        ("restarts_3", |t| schedule::cosine_restarts(t, 0.5, 0.0, 1, 3)),
        ("one_cycle_10", |t| schedule::one_cycle(t, 1.0, 10)),
        ("one_cycle_4", |t| schedule::one_cycle(t, 1.0, 4)),
        ("one_cycle_20", |t| schedule::one_cycle(t, 0.01, 20)),
        ("one_cycle_momentum_10", |t| schedule::one_cycle_momentum(t, 0.85, 0.95, 10)),
        ("one_cycle_momentum_4", |t| schedule::one_cycle_momentum(t, 0.85, 0.95, 4)),
        ("one_cycle_momentum_20", |t| schedule::one_cycle_momentum(t, 0.85, 0.95, 20)),
    ]);
    let expected: BTreeMap<String, Vec<f64>> =
        fixture("rates", 1).into_iter().filter(|(name, _)| !name.starts_with("plateau")).collect();
    assert!(expected.keys().eq(schedules.keys()), "{:?}", expected.keys());
    for (name, schedule) in &schedules {
        for interpreted in [true, false] {
            let session = Session::builder().interpreted(interpreted).build()?;
            let rate = session.function(*schedule)?;
            for (t, e) in expected[*name].iter().enumerate() {
                let r = f64::from(rate.call(t as i64)?.item());
                assert!((r - e).abs() <= 1e-6 * e, "{name} step {t}: {r:e} is not {e:e}");
            }
            let stay = ["linear", "piecewise", "polynomial", "polynomial_to", "cosine"];
            if stay.contains(name) || name.starts_with("one_cycle") {
                let last = expected[*name].len() as i64 - 1;
                for after in [1, 2, 1 << 40] {
                    assert_eq!(rate.call(last + after)?.item(), rate.call(last)?.item(), "{name}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn schedules_of_long_runs_are_exact_to_rounding() -> Outcome {
    let session = Session::new()?;
    let steps = 3_000_000_000;
    let cosine = session.function(|t: Tensor<i64>| schedule::cosine(t, 1.0, 0.0, steps))?;
    for remaining in [1i64, 2, 1000, steps / 2, steps - 1] {
        let x = std::f64::consts::FRAC_PI_2 * remaining as f64 / steps as f64;
        let (r, e) = (f64::from(cosine.call(steps - remaining)?.item()), x.sin().powi(2));
        assert!((r - e).abs() <= 1e-6 * e, "{remaining}: {r:e} is not {e:e}");
    }
    assert_eq!(cosine.call(0)?, 1.0);
    assert_eq!(cosine.call(steps)?, 0.0);
    Ok(())
}

#[test]
fn plateaus_reduce_the_rate_when_pytorch_does() -> Outcome {
    let metrics =
        [5.0, 4.0, 4.0, 3.9999, 3.99, f32::NAN, 3.99, 3.99, 3.99, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 2.0];
    let expected = fixture("rates", 1);
    let check = |name: &str, make: fn() -> Plateau, metrics: &[f32]| -> Outcome {
        for interpreted in [true, false] {
            let plateau = make();
            let session = Session::builder().interpreted(interpreted).build()?;
            let observe = session.function(|metric: Tensor| {
                plateau.observe(metric);
                plateau.rate()
            })?;
            for (t, (&metric, e)) in metrics.iter().zip(&expected[name]).enumerate() {
                let r = f64::from(observe.call(metric)?.item());
                assert!((r - e).abs() <= 1e-6 * e, "{name} observation {t}: {r:e} is not {e:e}");
            }
        }
        Ok(())
    };
    check("plateau", || Plateau::new(0.5).patience(2).factor(0.5), &metrics)?;
    check("plateau_cooldown", || Plateau::new(0.5).patience(1).factor(0.25).cooldown(2).min_rate(0.01), &metrics)?;
    check("plateau_max", || Plateau::new(0.5).patience(3).maximize().threshold(0.5), &metrics)?;
    check("plateau_default", || Plateau::new(0.5), &[1.0; 40])
}

#[test]
fn steps_below_0_have_the_rate_of_step_0() -> Outcome {
    type Schedule = fn(Tensor<i64>) -> Tensor;
    let schedules: [(&str, Schedule); 9] = [
        ("linear", |t| schedule::linear(t, 0.1, 0.0, 50)),
        ("polynomial", |t| schedule::polynomial(t, 0.1, 0.0, 50, 2.0)),
        ("cosine", |t| schedule::cosine(t, 0.1, 0.0, 50)),
        ("restarts_1", |t| schedule::cosine_restarts(t, 0.1, 0.0, 50, 1)),
        ("restarts_2", |t| schedule::cosine_restarts(t, 0.1, 0.0, 50, 2)),
        ("staircase", |t| schedule::staircase(t, 0.1, 0.5, 50)),
        ("exponential", |t| schedule::exponential(t, 0.1, 0.5, 50)),
        ("one_cycle", |t| schedule::one_cycle(t, 0.1, 50)),
        ("one_cycle_momentum", |t| schedule::one_cycle_momentum(t, 0.85, 0.95, 50)),
    ];
    let session = Session::new()?;
    for (name, schedule) in schedules {
        let rate = session.function(schedule)?;
        for step in [-1, -30, -100] {
            assert_eq!(rate.call(step)?.item(), rate.call(0)?.item(), "{name} at {step}");
        }
    }
    Ok(())
}

#[test]
fn the_last_steps_have_rates() -> Outcome {
    let session = Session::new()?;
    for (first, factor) in [(1, 2), (50, 2), (1, 3), (7, i64::MAX), (i64::MAX, 2), (1, 1)] {
        let rate = session.function(|t: Tensor<i64>| schedule::cosine_restarts(t, 0.5, 0.1, first, factor))?;
        for step in [i64::MAX, i64::MAX - 1, i64::MAX / 2, 1 << 62, (1 << 62) - 1] {
            let rate = rate.call(step)?.item();
            assert!((0.1..=0.5).contains(&rate), "{rate} at {step}, from {first} by {factor}");
        }
    }
    Ok(())
}

#[test]
fn a_plateau_does_not_raise_a_rate_to_its_smallest() -> Outcome {
    let plateau = Plateau::new(0.001).patience(0).min_rate(0.01);
    let session = Session::new()?;
    let observe = session.function(|metric: Tensor| {
        plateau.observe(metric);
        plateau.rate()
    })?;
    for _ in 0..3 {
        assert_eq!(observe.call(1.0)?, 0.001);
    }
    Ok(())
}

#[test]
fn wrong_arguments_of_optimizers_are_errors_at_their_line() {
    let w = Var::<f32>::new("w", 1.0);
    let error = |f: &dyn Fn(), message: &str, line: &str| {
        let error = eval(|| {
            f();
            w.get() * 1.0
        });
        let error = error.unwrap_err();
        assert_eq!(error.message, message);
        assert!(error.to_string().contains(line), "{error}");
    };
    let limit = |max: f32| format!("the limit of gradients is {max}");
    error(&|| clip_value(&mut [], 0.0), &limit(0.0), "clip_value(&mut [], 0.0)");
    error(&|| clip_norm(&mut [], -1.0), &limit(-1.0), "clip_norm(&mut [], -1.0)");
    error(&|| _ = clip_global_norm(&mut [], f32::NAN), &limit(f32::NAN), "clip_global_norm(&mut [], f32::NAN)");

    let (plain, sgd) = (Sgd::new(0.1), Sgd::new(0.1).momentum(0.9));
    let none = "another momentum for SGD without momentum";
    error(&|| drop(plain.momentum_at(0.9)), none, "plain.momentum_at(0.9)");
    error(&|| drop(sgd.momentum_at(tensor([0.9]))), "the momentum is not a scalar", "sgd.momentum_at(tensor([0.9]))");

    let betas = |a: f64, b: f64| format!("the decay rates of an optimizer are {a} and {b}");
    let adam = Adam::new(0.1);
    error(&|| drop(adam.momentum_at(1.5)), &betas(1.5, 0.999), "adam.momentum_at(1.5)");
    error(&|| drop(adam.momentum_at(-0.5)), &betas(-0.5, 0.999), "adam.momentum_at(-0.5)");
    error(&|| drop(Adam::new(0.1).betas(1.0, 0.9)), &betas(1.0, 0.9), "betas(1.0, 0.9)");
    error(&|| drop(AdaMax::new(0.1).betas(0.9, -0.1)), &betas(0.9, -0.1), "betas(0.9, -0.1)");
    error(&|| drop(NAdam::new(0.1).betas(0.9, f64::NAN)), &betas(0.9, f64::NAN), "betas(0.9, f64::NAN)");

    error(&|| drop(Plateau::new(0.1).factor(1.0)), "the factor of a plateau is 1", "factor(1.0)");
    error(&|| drop(WeightAverage::exponential(1.5)), "the decay of an average is 1.5", "exponential(1.5)");
    let sgd = Sgd::new(0.1).nesterov();
    error(&|| sgd.minimize(w.get(), &w), "Nesterov momentum of 0", "sgd.minimize(w.get(), &w)");
    let adam = Adam::new(0.1).lazy().amsgrad();
    error(&|| adam.minimize(w.get(), &w), "lazy Adam with AMSGrad", "adam.minimize(w.get(), &w)");
    let adam = Adam::new(0.1).lazy().weight_decay(0.1);
    error(&|| adam.minimize(w.get(), &w), "lazy Adam with weight decay", "adam.minimize(w.get(), &w)");
    let groups = ParamGroups::new(Adam::new(0.1).lazy()).decay(|_, _| true, 0.1);
    error(&|| groups.minimize(w.get(), &w), "a lazy optimizer with weight decay in a parameter group", ".decay(");
    let lazy = Adam::new(0.1).lazy();
    let decayed = || {
        let groups = ParamGroups::new(lazy.momentum_at(0.9)).decay(|_, _| true, 0.1);
        groups.minimize(w.get(), &w);
    };
    error(&decayed, "a lazy optimizer with weight decay in a parameter group", ".decay(");
    error(&|| _ = Lbfgs::new(0), "an optimization by 0 evaluations of the loss", "Lbfgs::new(0)");
}

#[test]
fn wrong_arguments_of_schedules_are_errors_at_their_line() {
    let error = eval(|| schedule::cosine(0, 1.0, 0.0, 0)).unwrap_err();
    assert_eq!(error.message, "the argument `steps` of a schedule is 0");
    assert!(error.to_string().contains("schedule::cosine(0, 1.0, 0.0, 0)"), "{error}");
    let error = eval(|| schedule::piecewise(0, &[5, 5], &[1.0, 0.5, 0.1])).unwrap_err();
    assert_eq!(error.message, "a piecewise rate has 3 values and 2 boundaries");
}

/// Two variables with the gradients 3 and (0, 4).
fn model() -> [Var<f32>; 2] {
    [Var::new("a", [1.0]), Var::new("b", [1.0, 1.0])]
}

fn loss(model: &[Var<f32>; 2]) -> Tensor {
    model[0].get().sum() * 3.0 + model[1].get().index(1, 0) * 4.0
}

fn clipped(clip: impl Fn(&mut [(AnyVar, AnyValue)])) -> anabranch::Result<Vec<f32>> {
    let model = model();
    let gradients = eval(|| {
        let mut gradients = model_gradients(loss(&model), &model);
        clip(&mut gradients);
        gradients.into_iter().map(|(_, g)| Tensor::<f32>::from_any(g)).collect::<Vec<_>>()
    })?;
    Ok(gradients.iter().flat_map(|g| g.to_vec()).collect())
}

#[test]
fn gradients_are_clipped_by_value_norm_and_global_norm() -> Outcome {
    assert_eq!(clipped(|g| clip_value(g, 3.5))?, [3.0, 0.0, 3.5]);
    assert_eq!(clipped(|g| clip_norm(g, 2.0))?, [2.0, 0.0, 2.0]);
    assert_eq!(clipped(|g| clip_norm(g, 3.0))?, [3.0, 0.0, 3.0]);
    let norm = |g: &mut [(AnyVar, AnyValue)], max| {
        clip_global_norm(g, max);
    };
    assert_eq!(clipped(|g| norm(g, 2.5))?, [1.5, 0.0, 2.0]);
    assert_eq!(clipped(|g| norm(g, 5.0))?, [3.0, 0.0, 4.0]);
    Ok(())
}

#[test]
fn clipped_gradients_of_16_bits_are_rounded_once() -> Outcome {
    let w = Var::<bf16>::new("w", [0.0, 0.0].map(bf16::from_f32));
    let g = [3.0f32, 6.0];
    let scale = 1.0 / (g[0] * g[0] + g[1] * g[1]).sqrt();
    let expected = g.map(|g| bf16::from_f32(g * scale));
    let in_bf16 = g.map(|g| bf16::from_f32(g * bf16::from_f32(scale).to_f32()));
    assert_ne!(expected, in_bf16);
    for is_global in [false, true] {
        let clipped = eval(|| {
            let mut gradients = [(w.any().clone(), tensor(g.map(bf16::from_f32)).untyped())];
            if is_global {
                clip_global_norm(&mut gradients, 1.0);
            } else {
                clip_norm(&mut gradients, 1.0);
            }
            Tensor::<bf16>::from_any(gradients[0].1)
        })?;
        assert_eq!(clipped.to_vec(), expected);
    }
    Ok(())
}

#[test]
fn groups_have_their_own_rate_and_decay() -> Outcome {
    let (model, session) = (model(), Session::new()?);
    let groups = ParamGroups::new(Sgd::new(0.5))
        .decay(|_, _| true, 0.25)
        .decay(|path, _| path == "0", 0.0)
        .scale_rate(|_, var| var.ty().shape.size() == Some(2), 0.5);
    let step = session.function(|| groups.minimize(loss(&model), &model))?;
    step.call(())?;
    assert_eq!(session.get(&model[0])?.to_vec(), [1.0 - 0.5 * 3.0]);
    let decayed = 1.0 - 0.25 * 0.25;
    assert_eq!(session.get(&model[1])?.to_vec(), [decayed, decayed - 0.25 * 4.0]);
    Ok(())
}

#[test]
fn groups_see_the_path_in_the_model_whose_gradients_are_taken() -> Outcome {
    #[derive(Module)]
    struct Outer {
        inner: Var,
    }
    let (model, session) = (Outer { inner: Var::new("w", [4.0]) }, Session::new()?);
    let groups = ParamGroups::new(Sgd::new(0.0)).decay(|path, _| path == "inner", 0.5);
    let average = WeightAverage::exponential(0.5);
    let step = session.function(|| {
        let gradients = model_gradients(model.inner.get().sum(), &model);
        // A part of the model, in which the variable has another path.
        average.update(&model.inner);
        groups.apply(1.0, &gradients);
    })?;
    step.call(())?;
    // The decay takes half of it, and the gradient is 1.
    assert_eq!(session.get(&model.inner)?.to_vec(), [4.0 - 2.0 - 1.0]);

    // A model that is one variable has its name.
    let named = ParamGroups::new(Sgd::new(0.0)).decay(|path, _| path == "w", 0.5);
    let step = session.function(|| named.apply(1.0, &model_gradients(model.inner.get().sum(), &model.inner)))?;
    step.call(())?;
    assert_eq!(session.get(&model.inner)?.to_vec(), [1.0 - 0.5 - 1.0]);
    Ok(())
}

#[test]
fn a_group_without_variables_is_an_error_where_the_state_is_prepared() {
    let model = model();
    let groups = ParamGroups::new(Adam::new(0.1)).decay(|path, _| path == "none", 0.5);
    let line = line!() + 1;
    let prepare = || groups.prepare(&model);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(prepare)).unwrap_err();
    let text = panic.downcast_ref::<String>().expect("a panic of the library has a message");
    assert!(text.contains(&format!("tests/optimizers.rs:{line}")), "{text}");
}

#[test]
fn decay_of_a_group_makes_adam_adamw() -> Outcome {
    let update: GradientUpdate = {
        let groups = ParamGroups::new(Adam::new(0.001)).decay(|_, _| true, 0.01);
        Box::new(move |gradients| groups.apply(groups.rate(), gradients))
    };
    compare::<f64>("adamw", &update, false, 1e-12)
}

#[test]
fn a_group_without_variables_is_an_error_at_its_line() -> Outcome {
    let model = model();
    let groups = ParamGroups::new(Sgd::new(0.5)).decay(|path, _| path == "bias", 0.25);
    let error = Session::new()?.function(|| groups.minimize(loss(&model), &model))?.call(()).unwrap_err();
    assert_eq!(error.message, "a parameter group has none of the variables that are updated");
    let text = error.to_string();
    assert!(text.contains("path == \"bias\"") && text.contains("updates 0, 1"), "{text}");
    Ok(())
}

#[test]
fn averages_are_those_of_pytorchs_averaged_model() -> Outcome {
    for interpreted in [true, false] {
        let (w, session) = (Var::<f64>::new("w", [0.0, 0.0]), Session::builder().interpreted(interpreted).build()?);
        let (ema, mean) = (WeightAverage::exponential(0.75), WeightAverage::equal());
        let step = session.function(|x: Tensor<f64>| {
            w.set(x);
            ema.update(&w);
            mean.update(&w);
        })?;
        let read = session.function(|| {
            (ema.with_averages(&w, || w.get() * 1.0), mean.with_averages(&w, || w.get() * 1.0), w.get() * 1.0)
        })?;
        // Before the first update, a variable is its own average.
        ema.prepare(&w);
        mean.prepare(&w);
        assert_eq!(read.call(())?.0.to_vec(), [0.0, 0.0]);
        for x in [[4.0, 1.0], [8.0, -1.0], [0.0, 3.0]] {
            step.call(x)?;
        }
        let (ema_now, mean_now, now) = read.call(())?;
        assert_eq!(ema_now.to_vec(), [0.75 * 5.0, 0.75 * 0.5 + 0.25 * 3.0]);
        assert_eq!((mean_now.to_vec(), now.to_vec()), (vec![4.0, 1.0], vec![0.0, 3.0]));
        let swap = session.function(|| mean.swap(&w))?;
        swap.call(())?;
        assert_eq!(session.get(&w)?.to_vec(), [4.0, 1.0]);
        swap.call(())?;
        assert_eq!(session.get(&w)?.to_vec(), [0.0, 3.0]);
    }
    Ok(())
}

#[test]
fn an_average_of_an_unknown_variable_is_an_error() {
    let (w, average) = (Var::<f32>::new("w", 1.0), WeightAverage::equal());
    let error = eval(|| average.with_averages(&w, || w.get())).unwrap_err();
    assert_eq!(error.message, "the variable `w` has no average");
    average.prepare(&w);
    assert_eq!(eval(|| average.with_averages(&w, || w.get())).unwrap(), 1.0);
}

/// Trains with one batch of 7 examples, or with its parts of 4, 1 and 2 accumulated, and returns
/// the weights after each update.
fn trained(parts: &[&[f32]], interpreted: bool) -> anabranch::Result<Vec<Vec<f32>>> {
    let (w, adam) = (Var::<f32>::new("w", [0.5, -0.25]), Adam::new(0.1));
    let (sums, ema) = (Accumulator::new(parts.len()), WeightAverage::exponential(0.5));
    let session = Session::builder().interpreted(interpreted).build()?;
    let step = session.function(|x: Tensor| {
        let loss = (w.get().index(0, 0) * x + w.get().index(1, 0) - x.square()).square().mean();
        sums.add(x.dim(0) as f32, &model_gradients(loss, &w), |gradients| {
            clip_global_norm(gradients, 0.5);
            let rate = schedule::linear(adam.steps(), 0.1, 0.05, 4);
            adam.apply(rate, gradients);
            ema.update(&w);
        });
    })?;
    (0..4)
        .map(|_| {
            for &part in parts {
                step.call(part.to_vec())?;
            }
            Ok(session.get(&w)?.to_vec())
        })
        .collect()
}

#[test]
fn accumulated_micro_batches_are_one_batch() -> Outcome {
    let x = [0.5, -1.0, 2.0, 0.25, -0.5, 1.0, 1.5];
    for interpreted in [true, false] {
        let whole = trained(&[&x], interpreted)?;
        let parts = trained(&[&x[..4], &x[4..5], &x[5..]], interpreted)?;
        assert_ne!(whole[0], whole[3]);
        for (whole, parts) in whole.iter().flatten().zip(parts.iter().flatten()) {
            assert!((whole - parts).abs() < 1e-5, "{parts} is not {whole}");
        }
    }
    Ok(())
}

#[test]
fn gradients_of_a_micro_batch_without_examples_do_not_count() -> Outcome {
    for interpreted in [true, false] {
        let (w, sgd, sums) = (Var::<f32>::new("w", 1.0), Sgd::new(1.0), Accumulator::new(2));
        let session = Session::builder().interpreted(interpreted).build()?;
        let step = session.function(|examples: Tensor, g: Tensor| {
            sums.add(examples, &[(w.any().clone(), g.untyped())], |gradients| sgd.apply(1.0, gradients));
        })?;
        step.call((2.0, 0.25))?;
        step.call((0.0, f32::NAN))?;
        assert_eq!(session.get(&w)?, 0.75);
    }
    Ok(())
}

#[test]
fn an_accumulation_is_resumed_between_two_micro_batches() -> Outcome {
    let (w, adam, sums) = (Var::<f32>::new("w", [0.5, -0.25]), Adam::new(0.1), Accumulator::new(4));
    let state = (&w, (&adam, &sums));
    adam.prepare(&w);
    sums.prepare(&w);
    let start = |session: &Session| {
        session.function(|x: Tensor| {
            let gradients = model_gradients((w.get() * x).sum().square(), &w);
            sums.add(1.0, &gradients, |gradients| adam.apply(0.1, gradients));
        })
    };
    let batches = |i: usize| [0.1 * i as f32, 1.0 - 0.3 * i as f32];
    let session = Session::new()?;
    let step = start(&session)?;
    (0..7).try_for_each(|i| step.call(batches(i)).map(|_| ()))?;
    let saved = session.state(&state)?;
    let other = Session::new()?;
    other.load_state(&state, &saved)?;
    let resumed = start(&other)?;
    for i in 7..13 {
        step.call(batches(i))?;
        resumed.call(batches(i))?;
        assert_eq!(session.state(&state)?, other.state(&state)?);
    }
    assert_eq!(session.state(&adam)?[0].1.to_f64(), Some(3.0));
    Ok(())
}

#[test]
fn losses_of_any_float_type_can_be_minimized() -> Outcome {
    let (w, sgd, session) = (Var::<f64>::new("w", 3.0), Sgd::new(0.5), Session::new()?);
    let step = session.function(|| sgd.minimize(w.get() * w.get() * 0.5, &w))?;
    step.call(())?;
    assert_eq!(session.get(&w)?, 1.5);
    Ok(())
}

#[test]
fn a_state_is_prepared_as_an_update_creates_it() -> Outcome {
    fn paths(module: &impl Module) -> Vec<String> {
        module.vars().into_iter().map(|(path, _)| path).collect()
    }
    fn check<O: Optimizer + Module>(make: impl Fn() -> O, expected: &[&str]) -> Outcome {
        let model = model();
        let (prepared, used, session) = (make(), make(), Session::new()?);
        prepared.prepare(&model);
        session.function(|| used.minimize(loss(&model), &model))?.call(())?;
        assert_eq!(paths(&prepared), paths(&used));
        assert_eq!(paths(&prepared), expected);
        Ok(())
    }
    check(|| Sgd::new(0.1), &[])?;
    check(|| RmsProp::new(0.1), &["0.rmsprop_v", "1.rmsprop_v"])?;
    check(
        || RmsProp::new(0.1).momentum(0.9),
        &["0.rmsprop_v", "0.rmsprop_velocity", "1.rmsprop_v", "1.rmsprop_velocity"],
    )?;
    check(
        || ParamGroups::new(NAdam::new(0.1)).decay(|_, _| true, 0.1),
        &["steps", "product", "0.nadam_m", "0.nadam_v", "1.nadam_m", "1.nadam_v"],
    )
}

#[test]
fn a_momentum_that_stays_is_that_of_the_optimizer() -> Outcome {
    type Update<O> = fn(&O, Tensor, &Var<f32>);
    fn check<O: Optimizer + Module + 'static>(optimizer: fn() -> O, at: Update<O>) -> Outcome {
        // Starts with the state of the optimizer itself, which it finds.
        let run = |update: Update<O>| -> anabranch::Result<Vec<f32>> {
            let (table, optimizer) = (Var::<f32>::new("table", [[1.0, -2.0], [0.5, 4.0], [3.0, 0.25]]), optimizer());
            optimizer.prepare(&table);
            let n_vars = optimizer.vars().len();
            let session = Session::new()?;
            let step = session.function(|ids: Tensor<i32>| {
                update(&optimizer, table.get().take(ids, 0).square().sum(), &table);
            })?;
            for ids in [[0, 1], [1, 1], [0, 1], [1, 0]] {
                step.call(ids)?;
            }
            assert_eq!(optimizer.vars().len(), n_vars);
            Ok(session.get(&table)?.to_vec())
        };
        let (expected, weights) = (run(|optimizer, loss, table| optimizer.minimize(loss, table))?, run(at)?);
        for (x, e) in weights.iter().zip(&expected) {
            assert!((x - e).abs() <= 1e-6 * e.abs(), "{weights:?} is not {expected:?}");
        }
        Ok(())
    }
    let sgd = |sgd: &Sgd, loss: Tensor, table: &Var<f32>| sgd.momentum_at(0.875).minimize(loss, table);
    let adam = |adam: &Adam, loss: Tensor, table: &Var<f32>| adam.momentum_at(0.875).minimize(loss, table);
    check(|| Sgd::new(0.01).momentum(0.875), sgd)?;
    check(|| Sgd::new(0.01).momentum(0.875).nesterov(), sgd)?;
    check(|| Adam::new(0.01).betas(0.875, 0.99), adam)?;
    check(|| Adam::new(0.01).betas(0.875, 0.99).amsgrad().weight_decay(0.1), adam)?;
    check(|| Adam::new(0.01).betas(0.875, 0.99).lazy(), adam)
}

/// Each step of a logistic regression, with as many evaluations of the loss.
#[test]
fn lbfgs_takes_the_steps_of_pytorch() -> Outcome {
    const N: usize = 24;
    const SCALES: [f64; 6] = [1.0, 3.0, 0.3, 2.0, 0.5, 1.5];
    let x = |i: usize, j: usize| (((i * 37 + j * 11 + i * j * 5) % 23) as f64 / 11.0 - 1.0) * SCALES[j];
    let x: Vec<[f64; 6]> = (0..N).map(|i| std::array::from_fn(|j| x(i, j))).collect();
    let y: Vec<f64> = (0..N).map(|i| f64::from((i * 7 + i * i * 3) % 5 < 2)).collect();
    let steps = fixture("lbfgs", 2);
    assert_eq!(steps.len(), 20);
    for interpreted in [true, false] {
        for (step, expected) in &steps {
            let evaluations = step.split(' ').nth(1).expect("the second word").parse().expect("a number");
            let w = Var::<f64>::new("w", [0.0; 6]);
            let session = Session::builder().interpreted(interpreted).build()?;
            let minimize = session.function(|x: Tensor<f64>, y: Tensor<f64>| {
                Lbfgs::new(evaluations).gradient_tolerance(0.0).minimize(&w, || {
                    let score = (x * w.get()).sum_axis(1);
                    (score.softplus() - y * score).sum() + w.get().square().sum() * 0.01
                })
            })?;
            minimize.call((&x, &y))?;
            let w = session.get(&w)?;
            for (w, e) in w.iter().zip(expected) {
                assert!((w - e).abs() <= 1e-9, "step {step}: {w} is not {e}");
            }
        }
    }
    Ok(())
}

/// Data of a logistic regression that no plane separates.
fn points() -> (Vec<[f64; 2]>, Vec<f64>) {
    let point = |i: usize| [(i * 7 % 13) as f64 / 6.0 - 1.0, (i * 5 % 11) as f64 / 5.0 - 1.0];
    let points: Vec<[f64; 2]> = (0..40).map(point).collect();
    let labels = points.iter().enumerate().map(|(i, [x, y])| f64::from(x + 0.5 * y > 0.0 || i % 7 == 0)).collect();
    (points, labels)
}

#[test]
fn lbfgs_finds_the_minimum_of_a_logistic_regression() -> Outcome {
    let (points, labels) = points();
    for interpreted in [true, false] {
        let (w, b) = (Var::<f64>::new("w", [0.0, 0.0]), Var::<f64>::new("b", 0.0));
        let model = (&w, &b);
        let lbfgs = Lbfgs::new(60).gradient_tolerance(1e-12);
        let session = Session::builder().interpreted(interpreted).build()?;
        let loss = |x: Tensor<f64>, y: Tensor<f64>| {
            let score = (x * w.get()).sum_axis(1) + b.get();
            // log(1 + exp(score)) - y * score
            (score.maximum(0.0) + (-score.abs()).exp().log1p() - y * score).mean()
        };
        let minimize = session.function(|x: Tensor<f64>, y: Tensor<f64>| lbfgs.minimize(&model, || loss(x, y)))?;

        let (found, gradient, evaluations) = minimize.call((points.clone(), labels.clone()))?;
        assert!(gradient.item() <= 1e-12, "{gradient}");
        assert!(evaluations.item() < 40, "{evaluations}");
        // The variables have the values of the result, where the gradient is as small.
        let check = session.function(|x: Tensor<f64>, y: Tensor<f64>| {
            let loss = loss(x, y);
            let gradients = model_gradients(loss, &model);
            (loss, gradients.into_iter().map(|(_, g)| Tensor::<f64>::from_any(g).abs().max()).collect::<Vec<_>>())
        })?;
        let (loss, gradients) = check.call((points.clone(), labels.clone()))?;
        assert!((loss.item() - found.item()).abs() < 1e-15);
        assert!(gradients.iter().all(|g| g.item() < 1e-11), "{gradients:?}");
    }
    Ok(())
}

#[test]
fn lbfgs_turns_back_from_losses_that_are_not_finite() -> Outcome {
    for interpreted in [true, false] {
        // The logarithm is NaN where the first long steps lead.
        let x = Var::<f64>::new("x", [0.01, 3.0]);
        let session = Session::builder().interpreted(interpreted).build()?;
        let minimize = session.function(|| {
            Lbfgs::new(100).gradient_tolerance(1e-10).minimize(&x, || {
                let x = x.get();
                (x - x.log() * tensor([0.5, 2.0])).sum()
            })
        })?;
        let (_, gradient, _) = minimize.call(())?;
        assert!(gradient.item() <= 1e-10, "{gradient}");
        let found = session.get(&x)?.to_vec();
        assert!((found[0] - 0.5).abs() < 1e-9 && (found[1] - 2.0).abs() < 1e-9, "{found:?}");
    }
    Ok(())
}

#[test]
fn lbfgs_stops_after_its_evaluations_at_the_best_point() -> Outcome {
    let (x, session) = (Var::<f32>::new("x", [-1.2, 1.0]), Session::new()?);
    let rosenbrock = || {
        let (x, y) = (x.get().index(0, 0), x.get().index(1, 0));
        (y - x * x).square() * 100.0 + (x - 1.0).square()
    };
    let minimize = session.function(|| Lbfgs::new(7).minimize(&x, rosenbrock))?;
    let now = session.function(rosenbrock)?;
    let mut before = now.call(())?.item();
    for _ in 0..5 {
        let (loss, _, evaluations) = minimize.call(())?;
        assert_eq!(evaluations, 7);
        assert!(loss.item() < before);
        assert_eq!(now.call(())?, loss.item());
        before = loss.item();
    }
    Ok(())
}

#[test]
fn lbfgs_returns_the_best_point_of_a_search_that_is_cut_short() -> Outcome {
    for interpreted in [true, false] {
        let (x, session) = (Var::<f64>::new("x", 1.0), Session::builder().interpreted(interpreted).build()?);
        let loss = || x.get().square() * 0.0005;
        let minimize = session.function(|| Lbfgs::new(4).minimize(&x, loss))?;
        let (found, gradient, evaluations) = minimize.call(())?;
        assert_eq!(evaluations, 4);
        assert!(found.item() < 4.1e-4, "{found}");
        let now = session.function(|| (loss(), gradients(loss(), x.get())))?;
        let (loss, slope) = now.call(())?;
        assert!((loss.item() - found.item()).abs() < 1e-15, "{loss} is not {found}");
        assert!((slope.item() - gradient.item()).abs() < 1e-15, "{slope} is not {gradient}");
    }
    Ok(())
}

#[test]
fn lbfgs_does_not_depend_on_the_scale_of_the_loss() -> Outcome {
    let evaluations = |scale: f32| -> anabranch::Result<i32> {
        let (x, session) = (Var::<f32>::new("x", [1.0; 5]), Session::new()?);
        let minimize = session.function(|| {
            let loss = || (x.get().square() * tensor([1.0, 3.0, 10.0, 30.0, 100.0])).sum() * (0.5 * scale);
            Lbfgs::new(200).gradient_tolerance(f64::from(scale) * 1e-4).minimize(&x, loss)
        })?;
        let (_, gradient, evaluations) = minimize.call(())?;
        assert!(gradient.item() <= scale * 1e-4, "{gradient} after {evaluations} evaluations");
        Ok(evaluations.item())
    };
    for scale in [1e-7, 1.0, 1e7] {
        let evaluations = evaluations(scale)?;
        assert!(evaluations < 40, "{evaluations} evaluations at the scale {scale}");
    }
    Ok(())
}

#[test]
fn lbfgs_needs_trained_variables_of_the_type_of_the_loss() {
    let x = Var::<f32>::new("x", 1.0);
    let error = eval(|| Lbfgs::new(7).minimize(&x, || x.get().cast::<f64>()).0).unwrap_err();
    assert_eq!(error.message, "L-BFGS of a loss of f64 with a variable of f32");
    let nothing = Var::<f64>::untrained("x", 1.0);
    let error = eval(|| Lbfgs::new(7).minimize(&nothing, || nothing.get()).0).unwrap_err();
    assert_eq!(error.message, "L-BFGS of a model without trained variables");

    let (lbfgs, pair) = (Lbfgs::new(7), (&x, &Var::<f64>::new("y", 1.0)));
    let error = eval(|| {
        LbfgsHistory::new(&lbfgs, &pair);
    });
    assert_eq!(error.unwrap_err().message, "L-BFGS of a loss of f32 with a variable of f64");
    let history = LbfgsHistory::new(&lbfgs, &x);
    let minimize = |lbfgs: Lbfgs, x: &Var<f32>| eval(|| lbfgs.minimize_from(&history, x, || x.get().square().sum()).0);
    let wrong = "and a history of f32[10, 1]";
    let error = minimize(lbfgs, &Var::new("x", [1.0, 2.0])).unwrap_err();
    assert_eq!(error.message, format!("L-BFGS with steps of f32[10, 2] {wrong}"));
    let error = minimize(lbfgs.history(3), &x).unwrap_err();
    assert_eq!(error.message, format!("L-BFGS with steps of f32[3, 1] {wrong}"));
}

/// Six evaluations a call: a minimization goes on in another session with the same bits, and its
/// history makes it short.
#[test]
fn lbfgs_goes_on_with_its_history() -> Outcome {
    for interpreted in [true, false] {
        let x = Var::<f64>::new("x", [-1.2, 1.0]);
        let rosenbrock = || {
            let (x, y) = (x.get().index(0, 0), x.get().index(1, 0));
            (y - x * x).square() * 100.0 + (x - 1.0).square()
        };
        let lbfgs = Lbfgs::new(6).gradient_tolerance(1e-9);
        let history = LbfgsHistory::new(&lbfgs, &x);
        let paths: Vec<String> = history.vars().into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["steps", "changes", "scale"]);
        let session = || Session::builder().interpreted(interpreted).build();
        let (first, second) = (session()?, session()?);
        let minimize = |session: &Session| session.function(|| lbfgs.minimize_from(&history, &x, rosenbrock));
        let (begun, continued) = (minimize(&first)?, minimize(&second)?);
        let model = (&x, &history);
        let mut calls = 0;
        let gradient = loop {
            let (_, gradient, _) = begun.call(())?;
            calls += 1;
            if calls > 2 {
                assert_eq!(continued.call(())?.1, gradient);
                assert_eq!(first.state(&model)?, second.state(&model)?);
            } else {
                second.load_state(&model, &first.state(&model)?)?;
            }
            if gradient.item() < 1e-9 || calls == 30 {
                break gradient.item();
            }
        };
        assert!(gradient < 1e-9 && (4..15).contains(&calls), "{gradient} after {calls} calls");
    }
    Ok(())
}

/// Lazy updates of a matrix: rows that are not read stay, whatever their gradients were before.
#[test]
fn lazy_adam_leaves_rows_without_a_gradient() -> Outcome {
    for interpreted in [true, false] {
        let start = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]];
        let table = Var::<f32>::new("table", start);
        let adam = Adam::new(0.1).lazy();
        let session = Session::builder().interpreted(interpreted).build()?;
        let step = session.function(|ids: Tensor<i32>| {
            // The first column has no gradient.
            let rows = table.get().take(ids, 0);
            adam.minimize((rows * tensor([0.0, 1.0])).sum(), &table);
        })?;
        step.call([0, 1])?;
        let (weights, state) = (session.get(&table)?.to_vec(), session.state(&adam)?);
        assert!(weights[0] == 1.0 && weights[1] < 1.91 && weights[3] < 3.91 && weights[4..] == [5.0, 6.0]);
        step.call([2, 2])?;
        let (later, later_state) = (session.get(&table)?.to_vec(), session.state(&adam)?);
        assert_eq!(later[..4], weights[..4]);
        assert!(later[5] < 6.0);
        for ((path, before), (_, after)) in state.iter().zip(&later_state).skip(1) {
            assert_eq!(before.data::<f32>()[..4], after.data::<f32>()[..4], "{path}");
            assert!(after.data::<f32>()[5] != 0.0, "{path}");
        }
    }
    Ok(())
}
