//! Models with state: optimizers against their formulas, state that moves between sessions, and
//! training inside control flow.

use anabranch::nn::{Init, Linear};
use anabranch::optim::{Adam, Optimizer, Sgd};
use anabranch::prelude::*;
use anabranch::{Array, Element, HostTensor, IntoArray};

type Outcome = anabranch::Result<()>;

// Optimizers against a plain implementation.

fn data() -> (Vec<[f32; 2]>, Vec<[f32; 1]>) {
    let x: Vec<[f32; 2]> = (0..8).map(|i| [(i as f32 * 0.7).sin(), (i as f32 * 0.3).cos()]).collect();
    let y = x.iter().map(|[a, b]| [2.0 * a - 3.0 * b + 0.5]).collect();
    (x, y)
}

/// Returns the gradient of the mean squared error of `w . x + b`.
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
        let e = model.forward(x) - y;
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
            let e = net.forward(x) - y;
            let loss = (e * e).mean();
            adam.minimize(loss, &net);
            loss
        })
    };
    let (x, y) = data();
    let (a, b) = (Session::new()?, Session::new()?);
    // A new session loads the state before it has traced anything.
    let (fa, fb) = (step_of(&a)?, step_of(&b)?);
    for _ in 0..5 {
        fa.call((&x, &y))?;
    }
    let whole = (&net, &adam);
    let saved = a.state(&whole)?;
    b.load_state(&whole, &saved)?;
    for _ in 0..5 {
        assert_eq!(fa.call((&x, &y))?.item(), fb.call((&x, &y))?.item());
    }
    assert_eq!(a.state(&whole)?, b.state(&whole)?);
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
            assert_eq!(session.state(&whole)?, saved);
        }
        let step = session.function(|x: Tensor| {
            let loss = net.forward(x).mean();
            adam.minimize(loss, &net);
            loss
        })?;
        step.call([[1.0, 2.0]])?;
        session.state(&whole)
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
        let l = a.forward(x).mean();
        sgd.minimize(l, &a);
        l
    })?;
    let g = s.function(|x: Tensor| {
        let l = (a.forward(x) + b.forward(x)).mean();
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
    let l = net.forward(x).mean();
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
        let e = net.forward(x) - 1.0;
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
        let before = s.state(&net)?;
        f.call(([[1.0, 2.0]], false))?;
        assert_eq!(before, s.state(&net)?);
        f.call(([[1.0, 2.0]], true))?;
        assert_ne!(before, s.state(&net)?);
    }
    for sgd in [Sgd::new(0.05), Sgd::new(0.05).momentum(0.5)] {
        let (a, b) = (Session::new()?, Session::new()?);
        let f = a.function(|x, n| train_times(&net, &sgd, x, n))?;
        let g = b.function(|x, n| train_times(&net, &sgd, x, n))?;
        f.call(([[1.0, 2.0]], 7))?;
        for _ in 0..7 {
            g.call(([[1.0, 2.0]], 1))?;
        }
        assert_eq!(a.state(&net)?, b.state(&net)?);
    }
    Ok(())
}

#[test]
fn a_rate_that_is_no_scalar_is_refused() -> Outcome {
    let (net, sgd, session) = (Linear::new(&Init::new(1), 2, 2), Sgd::new(0.1), Session::new()?);
    let step = session.function(|x: Tensor| sgd.minimize_at(x.reshape([2]), net.forward(x).sum(), &net))?;
    let error = step.call([[1.0, 2.0]]).unwrap_err();
    assert!(error.message.contains("learning rate"), "{error}");
    assert!(error.to_string().contains("tests/sessions.rs") && error.to_string().contains("f32[2]"), "{error}");
    Ok(())
}

#[test]
fn two_values_for_one_variable_are_refused() -> Outcome {
    let (net, session) = (Linear::new(&Init::new(1), 2, 2), Session::new()?);
    let mut values = session.state(&net)?;
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
    assert!(error.message.contains("out of memory"), "{error}");
    assert!(error.to_string().contains("f32[1048576, 1048576]"), "{error}");
    // An output that is only a view needs memory, too.
    let wide = session.function(|x: Tensor| x.broadcast_to([1 << 20, 1 << 20]))?;
    assert!(wide.call(1.0).unwrap_err().message.contains("out of memory"));
    Ok(())
}

// Parameters and results.

/// Structs of tensors and of other structs.
#[derive(InOut, Clone)]
struct Batch {
    images: Tensor,
    labels: Tensor<i32>,
    weights: Option<Tensor>,
}

#[derive(InOut)]
struct StepResult<T: Element>(Tensor<T>, Vec<Tensor<T>>, (Tensor<i32>, [Tensor; 2]));

#[derive(InOut)]
struct Outer<B> {
    inner: B,
    more: Vec<B>,
}

#[graph]
fn half_of(batch: Batch) -> Batch {
    let mut images = batch.images;
    if images.sum() > 1.0 {
        images *= 0.5;
    }
    Batch { images, ..batch }
}

#[test]
fn derived_structs_are_parameters_and_results() -> Outcome {
    let session = Session::new()?;
    let f = session.function(half_of)?;
    let batch =
        BatchArrays { images: [1.0, 3.0].into_array(), labels: [7].into_array(), weights: Some([0.5].into_array()) };
    let half = f.call(batch.clone())?;
    assert_eq!((half.images.to_vec(), half.labels[0]), (vec![0.5, 1.5], 7));
    assert_eq!(half.weights.as_ref().map(|w| w[0]), Some(0.5));
    // Results can be arguments again. The presence of an optional field belongs to the signature.
    assert_eq!(f.call(half)?.images.to_vec(), [0.25, 0.75]);
    let none = f.call(BatchArrays { weights: None, ..batch.clone() })?;
    assert!(none.weights.is_none());

    let mut results = f.call(batch.clone())?;
    f.call_into(BatchArrays { images: [4.0, 2.0].into_array(), ..batch.clone() }, &mut results)?;
    assert_eq!(results.images.to_vec(), [2.0, 1.0]);

    let step = session.function(|s: StepResult<f64>, k: Tensor<i32>| {
        let StepResult(x, all, (n, pair)) = s;
        let sum = all.iter().fold(x, |a, &b| a + b);
        StepResult(sum, all, (n * k, [pair[1], pair[0]]))
    })?;
    let arrays = || {
        StepResultArrays(
            1.0.into_array(),
            vec![2.0.into_array(), 3.0.into_array()],
            (4.into_array(), [5.0, 6.0].map(IntoArray::into_array)),
        )
    };
    let StepResultArrays(sum, all, (n, pair)) = step.call((arrays(), 2))?;
    assert_eq!((sum.item(), all.len(), n.item(), pair.map(|p| p.item())), (6.0, 2, 8, [6.0, 5.0]));

    let outer = session.function(|o: Outer<Batch>| {
        let all = o.more.iter().fold(o.inner.images, |sum, b| sum + b.images);
        Outer { inner: all, more: o.more.into_iter().map(|b| b.images).collect() }
    })?;
    let given = OuterArrays { inner: batch.clone(), more: vec![batch.clone(), BatchArrays { weights: None, ..batch }] };
    let got = outer.call(given)?;
    assert_eq!((got.inner.to_vec(), got.more.len()), (vec![3.0, 9.0], 2));
    Ok(())
}

#[test]
fn the_length_of_a_sequence_belongs_to_the_signature() -> Outcome {
    for builder in
        [Session::builder(), Session::builder().interpreted(true), Session::builder().cpus(2).lower_everything(true)]
    {
        let session = builder.build()?;
        let f = session.function(|a: Vec<Tensor>, b: Vec<Tensor>, last: Option<Tensor>| {
            let mut all: Vec<Tensor> = a.iter().map(|&x| x + 1.0).collect();
            all.extend(b.iter().map(|&x| x * 10.0));
            (all, last, scalar(a.len() as i64))
        })?;
        let none = None::<f32>;
        let call = |(all, last, n): (Vec<Array<f32>>, Option<Array<f32>>, Array<i64>)| {
            (all.iter().map(Array::item).collect::<Vec<f32>>(), last.map(|l| l.item()), n.item())
        };
        assert_eq!(call(f.call((vec![1.0, 2.0], vec![3.0], none))?), (vec![2.0, 3.0, 30.0], None, 2));
        // The same tensors, distributed differently.
        assert_eq!(call(f.call(([1.0], [2.0, 3.0], none))?), (vec![2.0, 20.0, 30.0], None, 1));
        assert_eq!(call(f.call((&[1.0, 2.0][..], Vec::<f32>::new(), Some(3.0)))?), (vec![2.0, 3.0], Some(3.0), 2));
        let signature = {
            type Parameters = (Vec<Tensor>, Vec<Tensor>, Option<Tensor>);
            let of = |a| anabranch::dsl::function::Arguments::of::<Parameters>(a);
            of((vec![1.0f32, 2.0], vec![3.0f32], none)).signature()
        };
        f.compile(&signature)?;
        assert!(!f.explain(&signature)?.is_empty());
        let part = f.prune(&signature, &["input 0", "input 1", "input 2"], &["result 2"])?;
        let three = [1.0f32, 2.0, 3.0].map(HostTensor::scalar);
        assert_eq!(part.call(&three)?, [HostTensor::scalar(30.0f32)]);
        let error = f.explain(signature.types()).unwrap_err();
        assert!(error.message.contains("the lengths of `Vec`"), "{error}");

        // If there is only one sequence, the number of tensors determines its length.
        let g = session
            .function(|x: Tensor, layers: Vec<(Tensor, Tensor)>| layers.iter().fold(x, |x, &(w, b)| x * w + b))?;
        assert_eq!(g.call((1.0, vec![(2.0, 3.0), (4.0, 5.0)]))?, 25.0);
        let numbers: Vec<HostTensor> = [1.0f32, 2.0, 3.0, 4.0, 5.0].map(HostTensor::scalar).to_vec();
        assert_eq!(g.call_host(&numbers)?, [HostTensor::scalar(25.0f32)]);
        let types: Vec<_> = numbers.iter().map(HostTensor::ty).collect();
        assert!(!g.explain(&types)?.is_empty());
        let error = g.explain(&types[..4]).unwrap_err();
        assert_eq!(error.message, "the function takes 1 tensors and 2 for each item of a sequence, but got 4");
        assert_eq!(g.call((1.0, Vec::<(f32, f32)>::new()))?, 1.0);
    }
    Ok(())
}

#[test]
fn functions_have_up_to_sixteen_parameters_and_results() -> Outcome {
    type T = Tensor;
    let session = Session::new()?;
    let f = session.function(
        |a: T, b: T, c: T, d: T, e: T, f: T, g: T, h: T, i: T, j: T, k: T, l: T, m: T, n: T, o: T, p: Tensor<i32>| {
            let sum = a + b + c + d + e + f + g + h + i + j + k + l + m + n + o;
            (p, o, n, m, l, k, j, i, h, g, f, e, d, c, b, sum)
        },
    )?;
    let x = |i: i32| i as f32;
    let args = (x(1), x(2), x(3), x(4), x(5), x(6), x(7), x(8), x(9), x(10), x(11), x(12), x(13), x(14), x(15), 16);
    let mut results = f.call(args)?;
    assert_eq!((results.0.item(), results.1.item(), results.14.item(), results.15.item()), (16, 15.0, 2.0, 120.0));
    f.call_into(args, &mut results)?;
    type Pair = (T, Option<T>);
    let nested = session.function(|((a, b), [c, d]): ((T, T), [Pair; 2])| ((a, [b, c.0]), d.1))?;
    let ((a, [b, c]), d) = nested.call(((1.0, 2.0), [(3.0, Some(4.0)), (5.0, Some(6.0))]))?;
    assert_eq!([a.item(), b.item(), c.item(), d.unwrap().item()], [1.0, 2.0, 3.0, 6.0]);
    Ok(())
}

/// Names of functions in messages.
mod names {
    use super::*;

    pub(super) fn add(x: Tensor, y: Tensor) -> Tensor {
        x + y
    }
    pub(super) fn generic<T: anabranch::Numeric>(x: Tensor<T>, y: Tensor<T>) -> Tensor<T> {
        x + y
    }
    pub(super) struct Net<T>(pub T);
    impl<T> Net<T> {
        pub(super) fn method(x: Tensor, y: Tensor) -> Tensor {
            x + y
        }
    }
    pub(super) trait Apply {
        fn apply_both(x: Tensor, y: Tensor) -> Tensor;
    }
    impl<T> Apply for Net<Vec<T>> {
        fn apply_both(x: Tensor, y: Tensor) -> Tensor {
            x + y
        }
    }
    pub(super) fn make() -> impl Fn(Tensor, Tensor) -> Tensor {
        move |x, y| x + y
    }
}

#[test]
fn a_closure_is_named_by_its_line() -> Outcome {
    fn name<F: anabranch::dsl::function::GraphFn<(Tensor, Tensor)>>(f: &Function<F, (Tensor, Tensor)>) -> String {
        let types = [vec![2], vec![3]].map(|shape| HostTensor::zeros(anabranch::DType::F32, shape).ty());
        let error = f.compile(&types).expect_err("the shapes differ").to_string();
        let line = error.lines().find_map(|l| l.split_once("while tracing `")).expect("it says what is traced").1;
        line.split('`').next().unwrap().to_owned()
    }
    let session = Session::new()?;
    let at = |line: u32, name: String| {
        let (place, column) = name.rsplit_once(':').expect("a column");
        assert_eq!(place, format!("closure at {}:{line}", file!()));
        assert!(column.parse::<u32>().is_ok());
    };
    at(line!(), name(&session.function(|x: Tensor, y: Tensor| x + y)?));
    let inside = || name(&session.function(|x: Tensor, y: Tensor| x + y).unwrap());
    at(line!() - 1, inside());
    at(line!(), name(&session.function(names::make())?));
    assert_eq!(name(&session.function(names::add)?), "add");
    assert_eq!(name(&session.function(&names::add)?), "add");
    assert_eq!(name(&session.function(names::generic::<f32>)?), "generic");
    assert_eq!(name(&session.function(names::Net::<f32>::method)?), "method");
    assert_eq!(name(&session.function(<names::Net<Vec<f32>> as names::Apply>::apply_both)?), "apply_both");
    let pointer: fn(Tensor, Tensor) -> Tensor = names::add;
    assert!(name(&session.function(pointer)?).starts_with("function at "));
    let boxed: Box<dyn Fn(Tensor, Tensor) -> Tensor> = Box::new(names::add);
    assert!(name(&session.function(boxed)?).starts_with("function at "));
    // An explained graph can be parsed again.
    let f = session.function(|x: Tensor| x * 2.0)?;
    let ty = [HostTensor::scalar(1.0f32).ty()];
    let graph = f.graph(&ty)?;
    assert!(graph.name.starts_with("closure at "), "{}", graph.name);
    assert_eq!(anabranch::Graph::parse(&graph.to_string(), "f.ir").unwrap().name, graph.name);
    assert!(f.explain(&ty)?.contains("closure at "));
    assert!(f.profile(1.0)?.1.spans[0].name.starts_with("closure at "));
    let error = anabranch::eval_with(|x: Tensor| x + tensor([1.0, 2.0]), [1.0, 2.0, 3.0]).unwrap_err();
    assert!(!error.to_string().contains("`main`"), "{error}");
    Ok(())
}

#[graph]
fn repeated(x: Tensor, n: Tensor<i32>) -> Tensor {
    let mut h = x;
    let mut i = scalar(0i32);
    while i < n {
        h = h.matmul(x).tanh();
        i += 1;
    }
    h.sum()
}

#[test]
fn profiles_have_the_time_of_each_kernel_and_its_line() -> Outcome {
    let (session, w) = (Session::new()?, Var::new("w", vec![[0.1f32; 8]; 8]));
    let f = session.function(|x: Tensor, n: Tensor<i32>| {
        let y = repeated(x, n);
        w.set(w.get() * 0.5 + x);
        y
    })?;
    let x = vec![[0.25f32; 8]; 8];
    f.call((&x, 5))?;
    let (_, timeline) = f.profile((&x, 5))?;
    let [whole, work @ ..] = &timeline.spans[..] else { panic!("no spans") };
    assert!(whole.end == timeline.total && !timeline.simulated && timeline.left_out == 0);
    assert!(work.iter().all(|span| span.begin <= span.end && span.end <= timeline.total));
    let products: Vec<_> = work.iter().filter(|span| span.name.contains("matmul")).collect();
    assert_eq!(products.len(), 5, "{timeline}");
    for product in products {
        // Two matrices are read, one of them perhaps packed, and one is written.
        assert!(product.bytes >= Some(3 * 8 * 8 * 4), "{product:?}");
        assert!(product.loc.to_string().contains("sessions.rs:"), "{}", product.loc);
    }
    assert!(work.iter().any(|span| span.name.ends_with("in place")), "{timeline}");
    let times = timeline.by_operation();
    assert_eq!(times.0.iter().map(|of| of.total).sum::<std::time::Duration>(), timeline.total);
    assert_eq!(times.0.iter().map(|of| of.count).sum::<u64>(), timeline.spans.len() as u64);
    assert!(times.0.is_sorted_by(|a, b| a.total >= b.total));
    let product = times.0.iter().find(|of| of.name.contains("matmul")).expect("it ran");
    assert_eq!((product.count, times.to_string().lines().count()), (5, times.0.len()));
    assert!(times.to_string().contains(" GB/s"));
    Ok(())
}

#[graph]
fn sum_below(n: Tensor<i64>) -> Tensor<i64> {
    let mut sum = scalar(0i64);
    let mut i = scalar(0i64);
    while i < n {
        sum += i;
        i += 1;
    }
    sum
}

#[test]
fn profiles_of_long_loops_keep_a_bounded_number_of_spans() -> Outcome {
    let f = Session::new()?.function(repeated)?;
    let (_, timeline) = f.profile((vec![[0.0f32; 8]; 8], 120_000))?;
    assert_eq!(timeline.spans.len(), 100_001);
    assert!(timeline.left_out >= 20_000);
    // Loops over numbers are native: one span, not one for each iteration.
    let f = Session::new()?.function(sum_below)?;
    let (sum, timeline) = f.profile(100_000i64)?;
    assert_eq!(sum.item(), 4_999_950_000);
    assert_eq!(timeline.spans[1..].iter().map(|span| &*span.name).collect::<Vec<_>>(), ["input", "native loop"]);
    Ok(())
}
