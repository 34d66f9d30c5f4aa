//! Models with state: optimizers against their formulas, state that moves between sessions, training inside of control flow.

use anabranch::HostTensor;
use anabranch::nn::{Init, Linear};
use anabranch::optim::{Adam, Optimizer, Sgd};
use anabranch::prelude::*;

type Outcome = anabranch::Result<()>;

// Optimizers against a plain computation.

fn data() -> (Vec<[f32; 2]>, Vec<[f32; 1]>) {
    let x: Vec<[f32; 2]> = (0..8).map(|i| [(i as f32 * 0.7).sin(), (i as f32 * 0.3).cos()]).collect();
    let y = x.iter().map(|[a, b]| [2.0 * a - 3.0 * b + 0.5]).collect();
    (x, y)
}

/// Gradient of the mean squared error of `w . x + b`.
fn gradient(p: &[f64; 3]) -> [f64; 3] {
    let (x, y) = data();
    let mut g = [0.0; 3];
    for (x, y) in x.iter().zip(&y) {
        let e = p[0] * f64::from(x[0]) + p[1] * f64::from(x[1]) + p[2] - f64::from(y[0]);
        for (g, d) in g.iter_mut().zip([f64::from(x[0]), f64::from(x[1]), 1.0]) {
            *g += 2.0 * e * d / 8.0;
        }
    }
    g
}

fn trained(optimizer: impl Optimizer, steps: usize) -> anabranch::Result<[f64; 3]> {
    let model = Linear { weight: Var::new("weight", [[0.1], [-0.2]]), bias: Var::new("bias", [0.3]) };
    let session = Session::new()?;
    let step = session.function(|x: Tensor, y: Tensor| {
        let e = model.apply(x) - y;
        let loss = (e * e).mean();
        optimizer.minimize(loss, &model);
        loss
    })?;
    let (x, y) = data();
    for _ in 0..steps {
        step.call((&x, &y))?;
    }
    let (w, b) = (session.get(&model.weight)?.to_vec(), session.get(&model.bias)?.to_vec());
    Ok([w[0], w[1], b[0]].map(f64::from))
}

#[track_caller]
fn near(got: [f64; 3], want: [f64; 3]) {
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() < 2e-5, "{got:?} is not {want:?}");
    }
}

const START: [f64; 3] = [0.1, -0.2, 0.3];

#[test]
fn gradient_descent_follows_its_formula() -> Outcome {
    let mut p = START;
    for _ in 0..60 {
        let g = gradient(&p);
        for i in 0..3 {
            p[i] -= 0.1 * g[i];
        }
    }
    near(trained(Sgd::new(0.1), 60)?, p);
    for nesterov in [false, true] {
        let (mut p, mut v) = (START, [0.0; 3]);
        for _ in 0..60 {
            let g = gradient(&p);
            for i in 0..3 {
                v[i] = 0.9 * v[i] + g[i];
                p[i] -= 0.05 * if nesterov { g[i] + 0.9 * v[i] } else { v[i] };
            }
        }
        let sgd = Sgd::new(0.05).momentum(0.9);
        near(trained(if nesterov { sgd.nesterov() } else { sgd }, 60)?, p);
    }
    Ok(())
}

#[test]
fn adam_follows_its_formula() -> Outcome {
    for decay in [0.0, 0.1] {
        let (mut p, mut m, mut v) = (START, [0.0; 3], [0.0; 3]);
        for t in 1..=60 {
            let g = gradient(&p);
            for i in 0..3 {
                m[i] = 0.8 * m[i] + 0.2 * g[i];
                v[i] = 0.99 * v[i] + 0.01 * g[i] * g[i];
                let (mh, vh) = (m[i] / (1.0 - 0.8f64.powi(t)), v[i] / (1.0 - 0.99f64.powi(t)));
                p[i] -= 0.05 * (mh / (vh.sqrt() + 1e-3) + decay * p[i]);
            }
        }
        let adam = Adam::new(0.05).betas(0.8, 0.99).epsilon(1e-3).weight_decay(decay);
        near(trained(adam, 60)?, p);
    }
    Ok(())
}

// State.

#[test]
fn state_goes_from_one_session_to_another() -> Outcome {
    let init = Init::new(3);
    let (net, adam) = (Linear::new(&init, 2, 1), Adam::new(0.05));
    let step_of = |s: &Session| {
        s.function(|x: Tensor, y: Tensor| {
            let e = net.apply(x) - y;
            let loss = (e * e).mean();
            adam.minimize(loss, &net);
            loss
        })
    };
    let (x, y) = data();
    let (a, b) = (Session::new()?, Session::new()?);
    // A fresh one loads before it has traced anything.
    let (fa, fb) = (step_of(&a)?, step_of(&b)?);
    for _ in 0..5 {
        fa.call((&x, &y))?;
    }
    let whole = (&net, &adam);
    let saved = a.state(&whole);
    b.load_state(&whole, &saved)?;
    for _ in 0..5 {
        assert_eq!(fa.call((&x, &y))?.item(), fb.call((&x, &y))?.item());
    }
    assert_eq!(a.state(&whole), b.state(&whole));
    Ok(())
}

#[test]
fn the_state_of_an_optimizer_is_loaded_before_the_first_step() -> Outcome {
    let init = Init::new(3);
    let run = |saved: Option<Vec<(String, HostTensor)>>| -> anabranch::Result<Vec<(String, HostTensor)>> {
        let (net, adam) = (Linear::new(&init, 2, 1), Adam::new(0.05));
        let session = Session::new()?;
        let whole = (&net, &adam);
        if let Some(saved) = saved {
            let error = session.load_state(&whole, &saved).unwrap_err();
            assert!(error.message.contains("no variable"), "{error}");
            adam.prepare(&net);
            session.load_state(&whole, &saved)?;
            assert_eq!(session.state(&whole), saved);
        }
        let step = session.function(|x: Tensor| {
            let loss = net.apply(x).mean();
            adam.minimize(loss, &net);
            loss
        })?;
        step.call([[1.0, 2.0]])?;
        Ok(session.state(&whole))
    };
    let once = run(None)?;
    let twice = run(Some(once.clone()))?;
    assert_eq!(once.iter().map(|(p, _)| p).collect::<Vec<_>>(), twice.iter().map(|(p, _)| p).collect::<Vec<_>>());
    assert!(once != twice);
    Ok(())
}

#[test]
fn optimizer_shared_between_functions() -> Outcome {
    let init = Init::new(3);
    let (a, b, sgd) = (Linear::new(&init, 2, 1), Linear::new(&init, 2, 1), Sgd::new(0.05).momentum(0.9));
    let s = Session::new()?;
    let f = s.function(|x: Tensor| {
        let l = a.apply(x).mean();
        sgd.minimize(l, &a);
        l
    })?;
    let g = s.function(|x: Tensor| {
        let l = (a.apply(x) + b.apply(x)).mean();
        sgd.minimize(l, &(&a, &b));
        l
    })?;
    let x = [[1.0f32, 2.0]];
    f.call(x)?;
    g.call(x)?;
    f.call(x)?;
    let w0 = init_of(&a);
    // gradient of mean(x w + b) wrt w is x for both
    let (mut w, mut vel) = (w0.clone(), vec![0.0f32; 2]);
    for _ in 0..3 {
        for i in 0..2 {
            vel[i] = 0.9 * vel[i] + x[0][i];
            w[i] -= 0.05 * vel[i];
        }
    }
    let got = s.get(&a.weight)?.to_vec();
    assert!(got.iter().zip(&w).all(|(g, w)| (g - w).abs() < 1e-5), "{got:?} {w:?}");
    Ok(())
}
fn init_of(l: &Linear) -> Vec<f32> {
    Array::<f32>::from_host(l.weight.any().init().clone()).unwrap().to_vec()
}

#[graph]
fn maybe_train(net: &Linear, adam: &Adam, x: Tensor, go: Tensor<bool>) -> Tensor {
    let l = net.apply(x).mean();
    if go {
        adam.minimize(l, net);
    }
    l
}
#[graph]
fn train_times(net: &Linear, sgd: &Sgd, x: Tensor, n: Tensor<i32>) -> Tensor {
    let mut i = scalar(0);
    let mut last = scalar(0.0);
    while i < n {
        let e = net.apply(x) - 1.0;
        let l = (e * e).mean();
        sgd.minimize(l, net);
        last = l;
        i += 1;
    }
    last
}

#[test]
fn training_inside_of_control_flow() -> Outcome {
    let init = Init::new(3);
    let (net, adam) = (Linear::new(&init, 2, 1), Adam::new(0.05));
    for interpreted in [false, true] {
        let s = Session::builder().interpreted(interpreted).build()?;
        let f = s.function(|x, go| maybe_train(&net, &adam, x, go))?;
        let before = s.state(&net);
        f.call(([[1.0, 2.0]], false))?;
        assert_eq!(before, s.state(&net));
        f.call(([[1.0, 2.0]], true))?;
        assert_ne!(before, s.state(&net));
    }
    for sgd in [Sgd::new(0.05), Sgd::new(0.05).momentum(0.5)] {
        let (a, b) = (Session::new()?, Session::new()?);
        let f = a.function(|x, n| train_times(&net, &sgd, x, n))?;
        let g = b.function(|x, n| train_times(&net, &sgd, x, n))?;
        f.call(([[1.0, 2.0]], 7))?;
        for _ in 0..7 {
            g.call(([[1.0, 2.0]], 1))?;
        }
        assert_eq!(a.state(&net), b.state(&net));
    }
    Ok(())
}

#[test]
fn a_rate_that_is_no_scalar_is_refused() -> Outcome {
    let (net, sgd, session) = (Linear::new(&Init::new(1), 2, 2), Sgd::new(0.1), Session::new()?);
    let step = session.function(|x: Tensor| sgd.minimize_at(x.reshape([2]), net.apply(x).sum(), &net))?;
    let error = step.call([[1.0, 2.0]]).unwrap_err();
    assert!(error.message.contains("learning rate"), "{error}");
    assert!(error.to_string().contains("tests/sessions.rs") && error.to_string().contains("f32[2]"), "{error}");
    Ok(())
}

#[test]
fn two_values_for_one_variable_are_refused() -> Outcome {
    let (net, session) = (Linear::new(&Init::new(1), 2, 2), Session::new()?);
    let mut values = session.state(&net);
    values.push(values[0].clone());
    let error = session.load_state(&net, &values).unwrap_err();
    assert!(error.message.contains("two values for the variable `weight`"), "{error}");
    Ok(())
}

// Memory.

#[test]
fn a_step_that_needs_more_memory_than_there_is_is_an_error() -> Outcome {
    let session = Session::new()?;
    let outer = session.function(|x: Tensor| (x.reshape([1 << 20, 1]) * x.reshape([1, 1 << 20])).tanh())?;
    let error = outer.call(vec![1.0; 1 << 20]).unwrap_err();
    assert!(error.message.contains("bytes of memory"), "{error}");
    assert!(error.to_string().contains("f32[1048576, 1048576]"), "{error}");
    // An output that nothing computes is memory, too.
    let wide = session.function(|x: Tensor| x.broadcast_to([1 << 20, 1 << 20]))?;
    assert!(wide.call(1.0).unwrap_err().message.contains("bytes of memory"));
    Ok(())
}
