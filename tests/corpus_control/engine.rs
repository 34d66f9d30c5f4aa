//! Runs a case on every engine, with its gradients, and compares the results with those of the
//! case.

use anabranch::dsl::equality::same_number;
use anabranch::dsl::function::{Arguments, CallArgs, GraphFn, Input, Inputs, Output, ParamLayout, Rebuild, trace_fn};
use anabranch::dsl::passes::{Cse, Dce, Fold, Licm, MergeLoopVars, Pipeline, Simplify, specialize};
use anabranch::dsl::{Graph, HostTensor, TensorType, interp, ir};
use anabranch::{AnyValue, DType, Diagnostic, Tensor, gradients};
use anabranch_runtime::Program;
use std::collections::HashSet;

use super::pruned::SplitGraph;
use crate::support::{self, engines::Engines, real_peers::graphs_at_real_peers};

type S = Tensor<f64>;

/// A function with control flow, and its results for some inputs.
pub struct ControlCase {
    pub name: &'static str,
    runs: Vec<Run>,
}

/// One set of inputs of a case.
struct Run {
    /// Traces the function with this number of gradients taken.
    traced: Box<dyn Fn(usize) -> Result<TracedCase, Diagnostic>>,
    inputs: Vec<HostTensor>,
    expected: Expected,
}

pub struct TracedCase {
    pub graph: Graph,
    pub vars: Vec<HostTensor>,
}

/// The expected outcome of a run.
pub struct Expected {
    /// All elements of all outputs, or a part of the message of the error.
    values: Result<Vec<f64>, String>,
    /// The gradient of the sum of all `f64` outputs, for all `f64` inputs.
    first: Option<Vec<f64>>,
    /// The gradient of the sum of the first gradient.
    second: Option<Vec<f64>>,
    /// Whether the function is smooth at its inputs, so that finite differences approximate its
    /// gradients.
    smooth: bool,
}

/// Expects these elements of all outputs.
pub fn gives(values: &[f64]) -> Expected {
    Expected { values: Ok(values.to_vec()), first: None, second: None, smooth: true }
}

/// Expects an error that contains this text, from the trace or from all engines.
pub fn fails(part: &str) -> Expected {
    Expected { values: Err(part.to_owned()), first: None, second: None, smooth: false }
}

impl Expected {
    /// Also expects this gradient of the sum of all `f64` outputs, for all `f64` inputs.
    pub fn first(self, gradient: &[f64]) -> Expected {
        Expected { first: Some(gradient.to_vec()), ..self }
    }

    /// Also expects this gradient of the sum of the first gradient, which is the sum of the rows of
    /// the second derivative.
    pub fn second(self, gradient: &[f64]) -> Expected {
        Expected { second: Some(gradient.to_vec()), ..self }
    }

    /// Skips finite differences: the trip count changes here, or a gradient was stopped.
    pub fn not_smooth(self) -> Expected {
        Expected { smooth: false, ..self }
    }
}

impl ControlCase {
    pub fn new(name: &'static str) -> ControlCase {
        ControlCase { name, runs: Vec::new() }
    }

    /// Adds a set of inputs.
    pub fn at<Args: 'static, F>(mut self, f: F, args: impl CallArgs<Args>, expected: Expected) -> ControlCase
    where
        F: GraphFn<Args> + 'static,
        for<'a> Orders<'a, F>: GraphFn<Args>,
    {
        let arguments = Arguments::of(args);
        let (inputs, signature) = (arguments.tensors().to_vec(), arguments.signature());
        let traced = move |order| {
            let traced = match order {
                0 => trace_fn("case", &f, &signature)?.0,
                _ => trace_fn("case", &Orders { f: &f, order }, &signature)?.0,
            };
            let vars = traced.vars.iter().map(|v| v.init().clone()).collect();
            Ok(TracedCase { graph: traced.graph, vars })
        };
        self.runs.push(Run { traced: Box::new(traced), inputs, expected });
        self
    }

    /// Returns the optimized graphs of the runs and of their gradients, each with a title. Runs on
    /// inputs of one type share a graph.
    fn graphs(&self) -> Vec<(String, Graph)> {
        let mut graphs: Vec<(String, Graph)> = Vec::new();
        let mut seen: HashSet<(String, Vec<TensorType>)> = HashSet::new();
        for (i, run) in self.runs.iter().enumerate() {
            let orders = 1 + usize::from(run.expected.first.is_some()) + usize::from(run.expected.second.is_some());
            for order in 0..orders {
                // A case may be about an error of the trace.
                let Ok(traced) = (run.traced)(order) else { continue };
                let types: Vec<TensorType> = run.inputs.iter().map(HostTensor::ty).collect();
                if !seen.insert((traced.graph.to_string(), types.clone())) {
                    continue;
                }
                let Ok(mut graph) = specialize(&traced.graph, &types) else { continue };
                Pipeline::standard().run(&mut graph);
                let gradient = ["", ", gradient", ", second gradient"][order];
                graphs.push((format!("{}, run {i}{gradient}", self.name), graph));
            }
        }
        graphs
    }

    /// Returns the problem of the case, if there is one.
    pub fn check(&self) -> Result<(), String> {
        if self.runs.is_empty() {
            return Err("no inputs".to_owned());
        }
        let mut compiled = CaseEngines::default();
        for run in &self.runs {
            run.check(&mut compiled).map_err(|e| {
                let inputs: Vec<String> = run.inputs.iter().map(HostTensor::to_string).collect();
                format!("with {}: {e}", inputs.join(", "))
            })?;
        }
        Ok(())
    }
}

/// Checks every case of a corpus like [`check_all`], compares their plans with the golden file of
/// the corpus, and prints their kernels as shaders.
pub fn check_corpus(name: &str, cases: &[ControlCase], at_least: usize) {
    check_all(cases, at_least);
    assert!(graphs_at_real_peers() > 0, "none of the graphs ran at real peers");
    let graphs: Vec<_> = cases.iter().map(ControlCase::graphs).collect();
    let plans: Vec<_> = graphs.iter().flat_map(|of_case| plans(of_case)).collect();
    support::plans::check_plans(name, &plans, support::plans::ArenasOfPacked::LeftOut);
    crate::shaders::check_kernels(graphs.iter().flatten().map(|(_, graph)| graph));
}

/// Returns the different plans of the graphs of a case as text, each with a title.
fn plans(graphs: &[(String, Graph)]) -> Vec<(String, String)> {
    let mut plans: Vec<(String, String)> = Vec::new();
    for (title, graph) in graphs {
        let Ok(program) = Program::new(graph.clone()) else { continue };
        let plan = program.explain();
        if plans.iter().all(|(_, other)| *other != plan) {
            plans.push((title.clone(), plan));
        }
    }
    plans
}

/// Checks every case of a list and reports those that fail.
pub fn check_all(cases: &[ControlCase], at_least: usize) {
    assert!(cases.len() >= at_least, "{} cases", cases.len());
    let mut names: Vec<_> = cases.iter().map(|c| c.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), cases.len(), "two cases of one name");
    let wrong: Vec<String> = cases.iter().filter_map(|c| c.check().err().map(|e| format!("{}: {e}", c.name))).collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// The engines of the graphs of a case, and the parts of these graphs, each compiled once: runs on
/// inputs of one type share them.
#[derive(Default)]
struct CaseEngines(Vec<(Engines, Option<SplitGraph>)>);

impl CaseEngines {
    /// Returns the engines of a graph, with the interpreter after each pass alone, and its parts.
    fn of(&mut self, traced: &TracedCase, inputs: &[HostTensor]) -> &mut (Engines, Option<SplitGraph>) {
        let types: Vec<TensorType> = inputs.iter().map(HostTensor::ty).collect();
        let i = self.0.iter().position(|(engines, _)| engines.are_of(&traced.graph, &types)).unwrap_or_else(|| {
            let engines = Engines::new(&traced.graph, &types)
                .after("interpreter after folding", Box::new(Fold))
                .after("interpreter after merging equal nodes", Box::new(Cse))
                .after("interpreter after dropping unused nodes", Box::new(Dce))
                .after("interpreter after simplification", Box::new(Simplify))
                .after("interpreter after merging equal state", Box::new(MergeLoopVars))
                .after("interpreter after moving invariants", Box::new(Licm));
            self.0.push((engines, None));
            self.0.len() - 1
        });
        &mut self.0[i]
    }
}

impl Run {
    fn check(&self, compiled: &mut CaseEngines) -> Result<(), String> {
        let values = match &self.expected.values {
            Ok(values) => values,
            Err(part) => return self.check_error(part, compiled),
        };
        self.check_order(0, values, compiled)?;
        for (order, expected) in [(1, &self.expected.first), (2, &self.expected.second)] {
            if let Some(expected) = expected {
                self.check_order(order, expected, compiled).map_err(|e| format!("gradient {order}: {e}"))?;
                if self.expected.smooth {
                    self.check_differences(order, expected)?;
                }
            }
        }
        Ok(())
    }

    fn check_error(&self, part: &str, compiled: &mut CaseEngines) -> Result<(), String> {
        let outcomes = match (self.traced)(0) {
            Ok(traced) => compiled.of(&traced, &self.inputs).0.run(&self.inputs, &traced.vars),
            Err(e) => vec![("trace", Err(e))],
        };
        for (engine, outcome) in outcomes {
            match outcome {
                Ok(outputs) => return Err(format!("{engine}: no error, but {outputs:?}")),
                Err(e) if !e.to_string().contains(part) => return Err(format!("{engine}: no `{part}` in {e}")),
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn check_order(&self, order: usize, expected: &[f64], compiled: &mut CaseEngines) -> Result<(), String> {
        let traced = (self.traced)(order).map_err(|e| e.to_string())?;
        ir::verify(&traced.graph).map_err(|e| format!("{e:?}\n{}", traced.graph))?;
        let (engines, parts) = compiled.of(&traced, &self.inputs);
        for (engine, outcome) in engines.run(&self.inputs, &traced.vars) {
            let outputs = outcome.map_err(|e| format!("{engine}: {e}"))?;
            let got: Vec<f64> = outputs.iter().flat_map(support::numbers).collect();
            let near = |(g, e): (&f64, &f64)| same_number(*g, *e) || (g - e).abs() <= 1e-9 * e.abs().max(1.0);
            if got.len() != expected.len() || !got.iter().zip(expected).all(near) {
                return Err(format!("{engine}: {got:?} is not {expected:?}\n{}", traced.graph));
            }
            if engine == "interpreter" {
                let parts = match parts {
                    Some(parts) => parts,
                    None => parts.insert(SplitGraph::new(&traced.graph)?),
                };
                parts.check(&traced, &self.inputs, &outputs)?;
            }
        }
        Ok(())
    }

    /// Compares a gradient with finite differences.
    fn check_differences(&self, order: usize, expected: &[f64]) -> Result<(), String> {
        let traced = (self.traced)(order - 1).map_err(|e| e.to_string())?;
        let sum = |inputs: &[HostTensor]| {
            let mut vars = traced.vars.clone();
            let outputs = interp::run(&traced.graph, inputs, &mut vars, interp::InterpOptions::default());
            let floats = outputs.map_err(|e| e.to_string())?.into_iter().filter(|t| t.dtype() == DType::F64);
            Ok::<f64, String>(floats.flat_map(|t| support::numbers(&t)).sum())
        };
        let mut expected = expected.iter();
        for (i, input) in self.inputs.iter().enumerate().filter(|(_, t)| t.dtype() == DType::F64) {
            for k in 0..input.data::<f64>().len() {
                let expected = expected.next().ok_or("the gradient has fewer elements than the inputs")?;
                let at = |step: f64| {
                    let mut inputs = self.inputs.clone();
                    let mut data = input.data::<f64>().to_vec();
                    data[k] += step;
                    inputs[i] = HostTensor::new(input.shape(), data);
                    sum(&inputs)
                };
                let h = 1e-4;
                let slope = (8.0 * (at(h)? - at(-h)?) - (at(2.0 * h)? - at(-2.0 * h)?)) / (12.0 * h);
                if (slope - expected).abs() > 1e-6 * expected.abs().max(1.0) {
                    return Err(format!(
                        "gradient {order}: element {k} of input {i} is {expected}, but {slope} by differences"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The gradient of a function, of the given order; see [`Expected::first`] and
/// [`Expected::second`].
pub struct Orders<'a, F> {
    f: &'a F,
    order: usize,
}

/// Tensors whose element types may differ.
pub struct Tensors(Vec<AnyValue>);

impl Output for Tensors {
    type Host = ();
    fn flatten(&self, to: &mut Vec<AnyValue>) {
        to.extend(&self.0);
    }
    fn rebuild(&self) -> Rebuild<()> {
        Box::new(|_| ())
    }
}

/// Returns the `f64` tensors in a value.
fn floats(value: &impl Output) -> Vec<S> {
    let mut all = Vec::new();
    value.flatten(&mut all);
    all.into_iter().filter(|t| t.dtype() == DType::F64).map(S::from_any).collect()
}

/// Returns the sum of all elements of all tensors.
fn total(tensors: &[S]) -> S {
    tensors.iter().map(|t| t.sum()).reduce(|a, b| a + b).expect("there is something to sum")
}

macro_rules! orders {
    ($($($a:ident),*;)*) => {$(
        impl<Fun: Fn($($a),*) -> Out, Out: Output, $($a: Input + Output),*> GraphFn<($($a,)*)> for Orders<'_, Fun>
        where
            $($a: Clone),*
        {
            type Output = Tensors;
            const PARAMETERS: ParamLayout = <($($a,)*) as Input>::LAYOUT;
            #[allow(non_snake_case, unused_mut, unused_variables, reason = "one pattern for all numbers of arguments")]
            fn apply(&self, inputs: &mut Inputs<'_>) -> anabranch::Result<Tensors> {
                $(let $a = $a::trace(inputs)?;)*
                let mut wrt: Vec<S> = Vec::new();
                $(wrt.extend(floats(&$a));)*
                let mut of = floats(&(self.f)($($a),*));
                for _ in 0..self.order {
                    of = gradients(total(&of), wrt.clone());
                }
                Ok(Tensors(of.into_iter().map(Tensor::untyped).collect()))
            }
        }
    )*};
}
orders! {
    ;
    A;
    A, B;
    A, B, C;
    A, B, C, D;
}

/// Checks that a wrong case is found: by its values, by its gradients, and by finite differences.
#[test]
fn a_wrong_case_is_found() {
    let square = |x: S| x * x;
    let stopped = |x: S| x * x.stop_gradient();
    let wrong = |expected: Expected| ControlCase::new("square").at(square, 3.0, expected).check().unwrap_err();
    assert!(ControlCase::new("square").at(square, 3.0, gives(&[9.0]).first(&[6.0]).second(&[2.0])).check().is_ok());
    assert!(wrong(gives(&[9.1])).contains("interpreter: [9.0] is not [9.1]"));
    assert!(wrong(gives(&[9.0]).first(&[5.0])).contains("gradient 1: interpreter"));
    assert!(wrong(gives(&[9.0]).second(&[1.0])).contains("gradient 2: interpreter"));
    assert!(wrong(fails("overflow")).contains("no error"));
    let differs = ControlCase::new("stopped").at(stopped, 3.0, gives(&[9.0]).first(&[3.0])).check().unwrap_err();
    assert!(differs.contains("by differences"), "{differs}");
    assert!(ControlCase::new("none").check().is_err());
}
