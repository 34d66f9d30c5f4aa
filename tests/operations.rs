//! Every operation is complete or states why not: documentation, cases, and a gradient or the
//! reason for having none. `runtime/tests/corpus.rs` tests that each has a kernel, and
//! `dsl/tests/ops.rs` checks each gradient rule against finite differences.

use anabranch::dsl::ir::Attrs;
use anabranch::dsl::ops::{
    self, Arity, Effects, Effort, Exactness, Grad, Halves, Laws, OpClass, OpDef, Prim, ScalarForm,
};
use anabranch::dsl::trace;
use anabranch::prelude::*;
use anabranch::{Graph, HostTensor, TensorType};
use std::fs;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns the sources of the operations.
fn sources() -> String {
    let files = fs::read_dir("../dsl/src/ops").expect("tests run in the folder of the package");
    files.map(|f| fs::read_to_string(f.expect("a readable folder").path()).expect("a readable file")).collect()
}

#[test]
fn every_operation_is_complete_or_says_why_not() {
    let sources = sources();
    let lines: Vec<&str> = sources.lines().collect();
    let mut missing = Vec::new();
    let mut found = 0;
    for def in ops::all() {
        found += 1;
        let name = def.name;
        let constant = name.to_uppercase();
        let definition = lines.iter().position(|l| {
            let words: Vec<&str> =
                l.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).collect();
            let at = words.iter().position(|w| *w == constant);
            at.is_some_and(|i| i > 0 && (words[i - 1] == "static" || words[i - 1] == name))
        });
        match definition {
            None => missing.push(format!("{name}: no definition `{constant}` in dsl/src/ops/")),
            Some(i) => {
                let above = lines[..i].iter().rev().map(|l| l.trim_start()).find(|l| !l.starts_with("#["));
                if !above.is_some_and(|l| l.starts_with("///")) {
                    missing.push(format!("{name}: its definition says nothing"));
                }
            }
        }
        if !fs::exists(format!("ops/{name}.toml")).unwrap_or(false) {
            missing.push(format!("{name}: no cases in tests/ops/"));
        }
        if let Grad::Zero(why) | Grad::Missing(why) = def.grad
            && why.len() < 10
        {
            missing.push(format!("{name}: `{why}` does not say why it has no gradient"));
        }
    }
    assert!(found >= 80, "{found} operations");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_method_has_an_example_that_runs() {
    let sources = sources();
    let mut missing = Vec::new();
    let mut found = 0;
    let (mut docs, mut in_tensor) = (String::new(), false);
    for line in sources.lines() {
        let line_start = line.trim_start();
        if line.starts_with("impl") || line == "}" {
            in_tensor = line.contains("Tensor<");
        }
        if let Some(doc) = line_start.strip_prefix("///") {
            docs.push_str(doc);
            docs.push('\n');
            continue;
        }
        // Rows of a macro contain their documentation. There, the name is a macro variable.
        if in_tensor
            && let Some(rest) = line_start.strip_prefix("pub fn ")
            && !rest.starts_with('$')
        {
            found += 1;
            if !docs.contains("```") {
                missing.push(rest.to_owned());
            }
        }
        if !line_start.starts_with("#[") {
            docs.clear();
        }
    }
    assert!(found >= 40, "{found} methods");
    assert!(missing.is_empty(), "no example:\n{}", missing.join("\n"));
}

/// A user-defined operation: `x / (1 + |x|)`.
const SOFTSIGN: OpDef = OpDef {
    name: "my_crate.softsign",
    arity: Arity::Exactly(1),
    attrs: &[],
    infer: |cx| Ok(cx.operands[0].clone()),
    eval: |cx| {
        let x = cx.operands[0];
        let y = x.data::<f32>().iter().map(|x| x / (1.0 + x.abs())).collect::<Vec<f32>>();
        Ok(HostTensor::new(x.shape(), y))
    },
    grad: Grad::Rule(|n| vec![Some(n.dy() / (n.x(0).abs() + 1.0).square())]),
    exactness: Exactness::Exact,
    class: OpClass::Scalar(ScalarForm::Estimated(Effort::DIVISION)),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

static REGISTERED: LazyLock<Prim> = LazyLock::new(|| ops::register(SOFTSIGN).expect("the first of its name"));

fn softsign(x: Tensor) -> Tensor {
    Tensor::from_any(trace::emit(*REGISTERED, &[x.untyped()], Attrs::none()))
}

#[test]
fn a_registered_operation_runs_and_has_its_gradient() {
    #[graph]
    fn f(x: Tensor) -> (Tensor, Tensor) {
        let mut y = x;
        while y.sum() > 1.3 {
            y = softsign(y) * 1.5;
        }
        (y, gradients(y.sum(), x))
    }
    let x = [0.5, 1.0];
    let interpreted = anabranch::eval_with(f, x).unwrap();
    let session = Session::new().unwrap();
    let function = session.function(f).unwrap();
    let (y, dx) = function.call(x).unwrap();
    assert_eq!((y.as_slice(), dx.as_slice()), (interpreted.0.as_slice(), interpreted.1.as_slice()));
    // One iteration: 1.5 x / (1 + |x|), with the derivative 1.5 / (1 + |x|)^2.
    assert_eq!(y.as_slice(), [0.5, 0.75]);
    assert!((dx.as_slice()[0] - 1.5 / 2.25).abs() < 1e-6 && (dx.as_slice()[1] - 0.375).abs() < 1e-6);
}

#[test]
fn a_registered_reduction_runs_by_its_own_function_on_every_device() {
    /// The difference of the last and the first element, called a sum.
    static SPAN: LazyLock<Prim> = LazyLock::new(|| {
        let span = OpDef {
            name: "my_crate.span",
            infer: |cx| Ok(TensorType::new(cx.operands[0].element().dtype, []).into()),
            eval: |cx| {
                let x = cx.operands[0].data::<f32>();
                Ok(HostTensor::scalar(x[x.len() - 1] - x[0]))
            },
            class: OpClass::Reduce(ops::Combiner::Sum),
            ..SOFTSIGN
        };
        ops::register(span).expect("the first of its name")
    });
    let f = |x: Tensor| Tensor::<f32>::from_any(trace::emit(*SPAN, &[(x * 2.0).untyped()], Attrs::none())) + 1.0;
    let x = [1.0, 7.0, 4.0];
    assert_eq!(anabranch::eval_with(f, x).unwrap().as_slice(), [7.0]);
    let mut sessions = vec![Session::new().unwrap()];
    if let Some(adapter) = crate::support::gpus::adapter() {
        sessions.push(Session::builder().gpu(&adapter).build().unwrap());
    }
    for session in sessions {
        assert_eq!(session.function(f).unwrap().call(x).unwrap().as_slice(), [7.0]);
    }
}

#[test]
fn a_registered_operation_of_much_effort_is_not_run_again_for_a_gradient() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    static SLOW: LazyLock<Prim> = LazyLock::new(|| {
        let slow = OpDef {
            name: "my_crate.slow",
            eval: |cx| {
                RUNS.fetch_add(1, Ordering::Relaxed);
                Ok(cx.operands[0].clone())
            },
            grad: Grad::Rule(|n| vec![Some(n.dy())]),
            class: OpClass::Scalar(ScalarForm::Estimated(Effort(1_000_000))),
            ..SOFTSIGN
        };
        ops::register(slow).expect("the first of its name")
    });
    #[graph]
    fn f(x: Tensor) -> Tensor {
        let mut y = x;
        if x.sum() > 0.0 {
            let slow: Tensor = Tensor::from_any(trace::emit(*SLOW, &[x.untyped()], Attrs::none()));
            y = slow * slow;
        }
        gradients(y.sum(), x)
    }
    assert_eq!(anabranch::eval_with(f, [0.5, 1.0]).unwrap().as_slice(), [1.0, 2.0]);
    assert_eq!(RUNS.load(Ordering::Relaxed), 1);
}

#[test]
fn a_graph_with_a_registered_operation_is_read_back_from_its_text() {
    let signature = [TensorType::new(anabranch::DType::F32, [2])];
    let graph = anabranch::dsl::function::trace_fn("f", &|x: Tensor| softsign(x), &signature).unwrap().0.graph;
    let text = graph.to_string();
    assert!(text.contains("my_crate.softsign %"), "{text}");
    assert_eq!(Graph::parse(&text, "f.ir").unwrap().to_string(), text);
}

#[test]
fn a_name_is_registered_once_and_has_its_crate() {
    let op = *REGISTERED;
    assert_eq!(ops::by_name("my_crate.softsign"), Some(op));
    let again = ops::register(SOFTSIGN).unwrap_err().to_string();
    assert!(again.contains("`my_crate.softsign` is already registered"), "{again}");
    let bare = ops::register(OpDef { name: "softsign", ..SOFTSIGN }).unwrap_err().to_string();
    assert!(bare.contains("does not start with a crate name") && bare.contains("`my_crate.softsign`"), "{bare}");
}
