//! The corpus of operations through the interpreter, and every gradient against finite differences.

use anabranch_dsl::corpus::{self, Case, Outcome, cases, parameters};
use anabranch_dsl::ir::{Attr, Attrs, Graph};
use anabranch_dsl::ops::{self, Arity, Grad, InferCx, random};
use anabranch_dsl::{AnyValue, Dim, ErrorKind, HostTensor, Result, TensorType, Type, interp, trace};
use std::collections::BTreeSet;

pub(crate) fn interpret(graph: &Graph, inputs: &[HostTensor]) -> Result<Vec<HostTensor>> {
    interp::run(graph, inputs, &mut Vec::new(), interp::InterpOptions::default())
}

#[test]
fn the_interpreter_gives_the_results_of_all_cases() {
    corpus::check(interpret);
}

#[test]
fn every_file_of_the_corpus_belongs_to_an_operation() {
    let files = std::fs::read_dir(corpus::folder()).expect("the folder of the corpus");
    let files: BTreeSet<String> =
        files.map(|f| f.expect("a file").file_name().into_string().expect("a plain name")).collect();
    let expected: BTreeSet<String> = ops::all().map(|op| format!("{}.toml", op.name)).collect();
    assert_eq!(files, expected);
}

#[test]
fn operations_have_names_of_their_own() {
    let names: BTreeSet<&str> = ops::all().map(|op| op.name).collect();
    assert_eq!(names.len(), ops::all().count());
    assert!(names.iter().all(|name| !name.is_empty()));
}

/// Every operation with a gradient rule has a gradient case, and no other operation has one.
#[test]
fn every_gradient_rule_is_checked_by_a_case() {
    let cases = cases();
    let mut wrong = Vec::new();
    for op in ops::all() {
        let checked = cases.iter().filter(|c| c.op.name == op.name && c.grad).count();
        if matches!(op.grad, Grad::Rule(_)) != (checked > 0) {
            wrong.push(format!("{}: {checked} cases check its gradient", op.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_case_fits_the_arity_of_its_operation() {
    for case in cases() {
        let n = case.inputs.len();
        let fits = match case.op.arity {
            Arity::Exactly(m) => n == m,
            Arity::AtLeast(m) => n >= m,
        };
        assert!(fits, "{}: {}", case.op.name, case.name);
    }
}

/// Inference with unknown extents returns a type that the actual type matches.
#[test]
fn inference_knows_no_more_than_it_is_told() {
    for case in cases() {
        let Outcome::Output(output) = &case.outcome else {
            continue;
        };
        let real: Vec<TensorType> = case.inputs.iter().map(HostTensor::ty).collect();
        for known in 0..=real.len() {
            let hide = |(i, ty): (usize, &TensorType)| {
                let shape = if i == known { ty.shape.clone() } else { vec![Dim::Unknown; ty.rank()].into() };
                Type::Tensor(TensorType { dtype: ty.dtype, shape })
            };
            let types: Vec<Type> = real.iter().enumerate().map(hide).collect();
            let types: Vec<&Type> = types.iter().collect();
            let inferred = (case.op.infer)(&InferCx { operands: &types, attrs: &case.attrs });
            let inferred = inferred.unwrap_or_else(|e| panic!("{}: {}: {}", case.op.name, case.name, e.message));
            assert!(inferred.compatible(&output.ty().into()), "{}: {}: {inferred}", case.op.name, case.name);
        }
    }
}

// Gradients.

/// Returns deterministic numbers in [-1, 1).
pub(crate) fn noise(like: &HostTensor, stream: u32) -> HostTensor {
    let words: Vec<u32> = random::words([stream, 0], 2 * like.len()).collect();
    HostTensor::new(like.shape(), words.chunks_exact(2).map(|w| 2.0 * random::unit_f64(w[0], w[1]) - 1.0).collect())
}

fn is_float(t: &HostTensor) -> bool {
    t.dtype().is_float()
}

/// A case as a graph whose inputs are the float inputs of the case. The other inputs are constants.
struct CaseGraph {
    graph: Graph,
    point: Vec<HostTensor>,
}

impl CaseGraph {
    fn new(case: &Case, f: impl Fn(&[AnyValue]) -> Vec<AnyValue>) -> CaseGraph {
        let point: Vec<HostTensor> = case.inputs.iter().filter(|t| is_float(t)).cloned().collect();
        let types: Vec<TensorType> = point.iter().map(HostTensor::ty).collect();
        let traced = trace::trace("gradient", || f(&parameters(&types)));
        let graph = traced.unwrap_or_else(|e| panic!("{}: {}: {e}", case.op.name, case.name)).graph;
        CaseGraph { graph, point }
    }

    /// Returns the outputs at `point + step * direction`.
    fn at(&self, step: f64, direction: &[HostTensor]) -> Vec<HostTensor> {
        let moved = |(x, d): (&HostTensor, &HostTensor)| {
            let data = x.data::<f64>().iter().zip(d.data::<f64>()).map(|(x, d)| x + step * d).collect();
            HostTensor::new(x.shape(), data)
        };
        let inputs: Vec<HostTensor> = self.point.iter().zip(direction).map(moved).collect();
        interpret(&self.graph, &inputs).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Returns the derivative of the first output, a scalar, along a direction, by five-point
    /// differences, whose error is of fourth order in the step.
    fn slope(&self, direction: &[HostTensor]) -> f64 {
        let h = 1e-3;
        let f = |step: f64| self.at(step, direction)[0].to_f64().expect("a scalar");
        (8.0 * (f(h) - f(-h)) - (f(2.0 * h) - f(-2.0 * h))) / (12.0 * h)
    }
}

/// Returns the graph of a case, whose inputs are its float inputs, and these inputs.
pub(crate) fn value_graph(case: &Case) -> (Graph, Vec<HostTensor>) {
    let CaseGraph { graph, point } = CaseGraph::new(case, |params| vec![node(case, params)]);
    (graph, point)
}

pub(crate) fn name_of(case: &Case) -> String {
    format!("{}: {}", case.op.name, case.name)
}

/// Adds the node of a case, with its float inputs replaced by parameters.
fn node(case: &Case, params: &[AnyValue]) -> AnyValue {
    let mut params = params.iter();
    let operand = |t: &HostTensor| {
        if is_float(t) { *params.next().expect("a parameter for each float") } else { trace::constant(t.clone()) }
    };
    let operands: Vec<AnyValue> = case.inputs.iter().map(operand).collect();
    case.emit(&operands)
}

/// Returns `sum(weights * values)`.
fn weighted(values: &[AnyValue], stream: u32) -> AnyValue {
    let part = |(i, v): (usize, &AnyValue)| {
        // An unknown extent gets one weight for all of its elements.
        let shape: Vec<usize> = v.shape().dims().iter().map(|d| d.known().unwrap_or(1)).collect();
        let weights = noise(&HostTensor::zeros(v.dtype(), shape), stream + i as u32);
        v.mul(trace::constant(weights)).sum()
    };
    values.iter().enumerate().map(part).reduce(AnyValue::add).expect("at least one value")
}

pub(crate) fn dot(a: &[HostTensor], b: &[HostTensor]) -> f64 {
    let product = |(a, b): (&HostTensor, &HostTensor)| -> f64 {
        a.data::<f64>().iter().zip(b.data::<f64>()).map(|(a, b)| a * b).sum()
    };
    a.iter().zip(b).map(product).sum()
}

#[track_caller]
pub(crate) fn agree(name: &str, what: &str, by_rule: f64, by_difference: f64) {
    let scale = by_rule.abs().max(by_difference.abs()).max(1.0);
    let near = (by_rule - by_difference).abs() <= 1e-7 * scale;
    assert!(near, "{name}: {what} gradient: {by_rule} by rule, {by_difference} by differences");
}

pub(crate) fn gradient_cases() -> Vec<Case> {
    let is_half = |c: &Case| c.inputs.iter().any(|t| t.dtype().is_half());
    cases().into_iter().filter(|c| c.grad && !is_half(c)).map(|c| c.in_f64()).collect()
}

#[test]
fn gradients_agree_with_finite_differences() {
    for case in gradient_cases() {
        let loss = |params: &[AnyValue]| weighted(&[node(&case, params)], 100);
        let value = CaseGraph::new(&case, |params| vec![loss(params)]);
        let gradient = CaseGraph::new(&case, |params| {
            let loss = loss(params);
            anabranch_dsl::derivatives::vjp(&[(loss, loss.number(1.0))], params)
        });
        let direction: Vec<HostTensor> = value.point.iter().zip(0..).map(|(x, i)| noise(x, i)).collect();
        let by_rule = dot(&gradient.at(0.0, &direction), &direction);
        agree(&name_of(&case), "first", by_rule, value.slope(&direction));
    }
}

#[test]
fn second_gradients_agree_with_finite_differences() {
    for case in gradient_cases() {
        let slope = |params: &[AnyValue]| {
            let loss = weighted(&[node(&case, params)], 100);
            weighted(&anabranch_dsl::derivatives::vjp(&[(loss, loss.number(1.0))], params), 200)
        };
        let value = CaseGraph::new(&case, |params| vec![slope(params)]);
        let gradient = CaseGraph::new(&case, |params| {
            let slope = slope(params);
            anabranch_dsl::derivatives::vjp(&[(slope, slope.number(1.0))], params)
        });
        let direction: Vec<HostTensor> = value.point.iter().zip(0..).map(|(x, i)| noise(x, i)).collect();
        let by_rule = dot(&gradient.at(0.0, &direction), &direction);
        agree(&name_of(&case), "second", by_rule, value.slope(&direction));
    }
}

// The reader of the corpus.

#[track_caller]
fn refused(text: &str, part: &str) {
    let op = ops::by_name("sum").expect("there is an operation `sum`");
    let error = corpus::parse(op, text).expect_err("the text is wrong");
    assert!(error.contains(part), "{error}");
}

#[test]
fn the_reader_refuses_what_it_does_not_know() {
    let case = "[[case]]\nname = 'x'\ninputs = ['f32[1] 1']\nattrs = { axes = [0], keepdim = false }\n";
    refused("", "there are no cases");
    refused("[[cases]]\nname = 'x'", "unknown key `cases`");
    refused(&format!("{case}outputs = 'f32[] 1'"), "unknown key `outputs`");
    refused(case, "a case needs either `output` or `error`");
    let with_output = |case: &str| format!("{case}output = 'f32[] 1'");
    refused(&with_output(&case.replace("keepdim", "keep")), "`sum` has no attribute `keep`");
    refused(&with_output(&case.replace(", keepdim = false", "")), "the attribute `keepdim` is missing");
    refused(&format!("{case}output = 'f32[2] 1'"), "1 elements in `f32[2] 1`");
    refused(&format!("{case}output = 'f32[] one'"), "`one` is not of type f32");
}

#[test]
fn a_wrong_result_is_noticed() {
    let op = ops::by_name("add").expect("there is an operation `add`");
    let text = "[[case]]\nname = 'x'\ninputs = ['f32[1] 1', 'f32[1] 2']\noutput = 'f32[1] 3.5'";
    let case = &corpus::parse(op, text).expect("the text is right")[0];
    let result = case.graph().and_then(|graph| interpret(&graph, &case.inputs));
    assert_eq!(case.verdict(&result).as_deref(), Some("the result is [3], not [3.5]"));
}

/// Named dimensions in the shape attributes of operations get their extents from the call.
#[test]
fn a_named_dimension_in_an_attribute_is_that_of_the_call() {
    let named = |name: &str| TensorType { dtype: anabranch_dsl::DType::F32, shape: [Dim::Named(name.into())].into() };
    let traced = trace::trace("named", || {
        let x = trace::input(named("n"), None);
        vec![trace::constant(HostTensor::scalar(2.0f32)).mul(x), x.number(3.0).broadcast_to(x.shape())]
    });
    let graph = traced.expect("the shapes fit").graph;
    let given = interpret(&graph, &[HostTensor::new([3], vec![1.0f32, 2.0, 3.0])]).expect("the call fits");
    assert_eq!(given[0], HostTensor::new([3], vec![2.0f32, 4.0, 6.0]));
    assert_eq!(given[1], HostTensor::new([3], vec![3.0f32; 3]));
}

/// Extents that are unknown until the graph runs are those of the data, also in gradients.
#[test]
fn unknown_extents_are_those_of_the_data() {
    let unknown = |rank: usize| TensorType { dtype: anabranch_dsl::DType::F64, shape: vec![Dim::Unknown; rank].into() };
    let traced = trace::trace("unknown", || {
        let (x, w) = (trace::input(unknown(2), None), trace::input(unknown(1), None));
        let y = (x.mul(w) + 1.0).mean();
        let mut outputs = vec![y];
        outputs.extend(anabranch_dsl::derivatives::vjp(&[(y, y.number(1.0))], &[x, w]));
        outputs
    });
    let graph = traced.unwrap_or_else(|e| panic!("{e}")).graph;
    let x = HostTensor::new([2, 2], vec![1.0, 2.0, 3.0, 4.0]);
    let w = HostTensor::new([2], vec![10.0, 20.0]);
    let given = interpret(&graph, &[x, w]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(given[0], HostTensor::scalar(41.0));
    assert_eq!(given[1], HostTensor::new([2, 2], vec![2.5, 5.0, 2.5, 5.0]));
    assert_eq!(given[2], HostTensor::new([2], vec![1.0, 1.5]));
}

/// The conversion of a case to `f64` applies to its attributes as well.
#[test]
fn a_case_in_f64_has_no_narrow_floats() {
    let op = ops::by_name("cast").expect("there is an operation `cast`");
    let text = "[[case]]\nname = 'x'\ninputs = ['f32[1] 1']\nattrs = { dtype = 'f32' }\noutput = 'f32[1] 1'";
    let case = corpus::parse(op, text).expect("the text is right")[0].in_f64();
    assert!(matches!(Attrs::get(&case.attrs, "dtype"), Some(Attr::DType(anabranch_dsl::DType::F64))));
    assert_eq!(case.inputs[0].dtype(), anabranch_dsl::DType::F64);
}

#[test]
fn zeros_that_no_memory_holds_are_an_error() {
    let text = "graph @f(%n: i64[2]) -> f32[?, ?] { %y = zeros_of %n {shape=[?, ?], dtype=f32}  return %y }";
    let graph = Graph::parse(text, "f.ir").unwrap_or_else(|errors| panic!("{}", errors[0]));
    let error = interpret(&graph, &[HostTensor::new([2], vec![1i64 << 40; 2])]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::ResourceExhausted);
    assert!(error.message.contains("out of memory"), "{}", error.message);
}
