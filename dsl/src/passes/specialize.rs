//! Specialization of a graph to input types.

use crate::ir::{Broken, GradientInput, LoopVar, Node, Op, Region, StackOp, Value, result_types};
use crate::{Diagnostic, Dim, Graph, Result, Shape, TensorType, Type};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Returns the graph specialized to inputs of the given types.
///
/// Named extents are replaced everywhere by those of the inputs. All types are inferred anew, so
/// that extents that follow from them become known.
///
/// For inputs that are stacks or lists, which only subgraphs have, only named extents in the
/// element type are replaced, whatever `inputs` contains for them.
///
/// Before: verified. After: verified, with inputs of the given types. If all their extents are
/// known, every extent that does not depend on data is known.
///
/// # Errors
/// Fails if an input does not match its parameter. The message names the parameter, the expected
/// type and the given type.
///
/// If the operands of an operation do not match with these extents. The error points to the
/// operation.
///
/// ```
/// use anabranch::{DType, Graph, TensorType, dsl::passes::specialize};
///
/// let graph =
///     Graph::parse("graph @f(%x: f32[n], %y: f32[n]) { %z = mul %x, %y  return %z }", "f.ir")
///         .unwrap();
/// let three = TensorType::new(DType::F32, [3]);
/// let special = specialize(&graph, &[three.clone(), three.clone()])?;
/// assert_eq!(special.ty(special.outputs()[0]).to_string(), "f32[3]");
///
/// let error = specialize(&graph, &[three, TensorType::new(DType::F32, [4])]).unwrap_err();
/// assert_eq!(error.message, "`f`: the parameter `y` is f32[n] where n is 3, but got f32[4]");
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub fn specialize(graph: &Graph, inputs: &[TensorType]) -> Result<Graph> {
    let params = graph.inputs().to_vec();
    if params.len() != inputs.len() {
        let (takes, given) = (params.len(), inputs.len());
        let message = format!("`{}` takes {takes} inputs, but got {given}", graph.name);
        return Err(Diagnostic::new(message).help("pass one type for each input, in their order"));
    }
    let mut s = Specializer { graph: graph.compact(), dims: FxHashMap::default(), loops: FxHashMap::default() };
    let params = s.graph.inputs().to_vec();
    for (i, given) in inputs.iter().enumerate() {
        if matches!(s.graph.ty(params[i]), Type::Tensor(_)) {
            s.bind(i, given)?;
        }
    }
    for (&p, given) in params.iter().zip(inputs) {
        s.graph.value_mut(p).ty = match s.graph.ty(p) {
            Type::Tensor(_) => given.clone().into(),
            Type::Stack(element) => Type::Stack(s.element(element)),
            Type::List(element) => Type::List(s.element(element)),
        };
    }
    s.rename(s.graph.root());
    s.region(s.graph.root())?;
    Ok(s.graph)
}

struct Specializer {
    graph: Graph,
    /// The values of the named extents.
    dims: FxHashMap<Arc<str>, Dim>,
    /// The types of the variables of the loops that were inferred at least once.
    loops: FxHashMap<Node, Vec<Type>>,
}

impl Specializer {
    fn bind(&mut self, i: usize, given: &TensorType) -> Result<()> {
        let value = self.graph.inputs()[i];
        let expected = self.graph.ty(value).element().clone();
        let mut fits = expected.compatible(given);
        if fits {
            for (dim, given) in expected.shape.dims().iter().zip(given.shape.dims()) {
                if let Dim::Named(name) = dim {
                    fits &= self.dims.entry(name.clone()).or_insert_with(|| given.clone()) == given;
                }
            }
        }
        if fits {
            return Ok(());
        }
        let name =
            self.graph.value(value).name.map_or_else(|| format!("input {i}"), |n| format!("the parameter `{n}`"));
        let known: Vec<String> = expected.shape.dims().iter().filter_map(|d| self.known(d)).collect();
        let known = if known.is_empty() { String::new() } else { format!(" where {}", known.join(" and ")) };
        let message = format!("`{}`: {name} is {expected}{known}, but got {given}", self.graph.name);
        Err(Diagnostic::new(message).help("a named dimension has the same extent throughout a call"))
    }

    /// Describes the value of a named extent, for messages.
    fn known(&self, dim: &Dim) -> Option<String> {
        let Dim::Named(name) = dim else { return None };
        self.dims.get(name).map(|d| format!("{dim} is {d}"))
    }

    fn shape(&self, shape: &Shape) -> Shape {
        let dim = |d: &Dim| match d {
            Dim::Named(name) => self.dims.get(name).unwrap_or(d).clone(),
            _ => d.clone(),
        };
        shape.dims().iter().map(dim).collect()
    }

    fn element(&self, ty: &TensorType) -> TensorType {
        TensorType { dtype: ty.dtype, shape: self.shape(&ty.shape) }
    }

    /// Replaces the named extents in attributes of operations.
    fn rename(&mut self, region: Region) {
        for node in self.graph.region(region).nodes.clone() {
            let op = match &self.graph.node(node).op {
                Op::Prim(def, attrs) => Some(Op::Prim(*def, attrs.map_shapes(|s| self.shape(s)))),
                Op::List(op) => Some(Op::List(op.map_shapes(|s| self.shape(s)))),
                Op::Stack(StackOp::New(element)) => Some(Op::Stack(StackOp::New(self.element(element)))),
                Op::Stack(StackOp::Zeros(element)) => Some(Op::Stack(StackOp::Zeros(self.element(element)))),
                _ => None,
            };
            if let Some(op) = op {
                self.graph.node_mut(node).op = op;
            }
            for inner in self.graph.node(node).regions.clone() {
                self.rename(inner);
            }
        }
    }

    /// Infers the types of a region whose parameters already have types.
    fn region(&mut self, region: Region) -> Result<()> {
        for node in self.graph.region(region).nodes.clone() {
            self.node(node)?;
        }
        Ok(())
    }

    fn node(&mut self, node: Node) -> Result<()> {
        match self.graph.node(node).op {
            Op::Cond => {
                for region in self.graph.cond_of(node).branches() {
                    self.enter(region);
                    self.region(region)?;
                }
            }
            Op::While { .. } => self.loop_types(node)?,
            Op::Call(_) => self.call_types(node)?,
            _ => {}
        }
        let types = result_types(&self.graph, node).map_err(|broken| self.error(node, broken))?;
        for (r, ty) in self.graph.node(node).results.clone().into_iter().zip(types) {
            self.graph.value_mut(r).ty = ty;
        }
        Ok(())
    }

    /// Infers the types of a call. The gradient region, if present, also takes the results and the
    /// cotangents of the differentiable results.
    fn call_types(&mut self, node: Node) -> Result<()> {
        let call = self.graph.call_of(node);
        let (forward, gradient) = (call.forward(), call.gradient());
        self.enter(forward);
        self.region(forward)?;
        let Some(gradient) = gradient else { return Ok(()) };
        let yields = &self.graph.region(forward).yields;
        let of = |input| match input {
            GradientInput::Entry(outer) => outer,
            GradientInput::Forward(i) | GradientInput::Cotangent(i) => yields[i],
        };
        let types = self.graph.call_of(node).gradient_inputs().map(|(param, input)| (param, of(input))).collect();
        self.give(types);
        self.region(gradient)
    }

    /// Sets the types of the parameters of an inner region to those of the values that they start
    /// with.
    fn enter(&mut self, region: Region) {
        let entry = self.graph.entry(region).collect();
        self.give(entry);
    }

    /// Sets the type of each first value to that of the second.
    fn give(&mut self, pairs: Vec<(Value, Value)>) {
        for (param, value) in pairs {
            self.graph.value_mut(param).ty = self.graph.ty(value).clone();
        }
    }

    /// Infers the types of loop variables.
    ///
    /// The parameters start with the types of the initial values. Where the body yields a different
    /// type, the variable gets the join of both, and the body is inferred again. The repetition
    /// terminates, since an extent that became unknown stays unknown.
    ///
    /// A loop in a body that is inferred again starts with values whose types have only become less
    /// precise, so its variables begin with their last types. To begin anew would double the time
    /// with each level of nested loops.
    fn loop_types(&mut self, node: Node) -> Result<()> {
        let data = self.graph.while_of(node);
        let (cond, body) = (data.cond(), data.body());
        let vars: Vec<LoopVar> = data.vars().collect();
        self.enter(body);
        for (var, last) in vars.iter().zip(self.loops.remove(&node).unwrap_or_default()) {
            if let Some(joined) = last.join(self.graph.ty(var.body_param)) {
                self.graph.value_mut(var.body_param).ty = joined;
            }
        }
        loop {
            self.region(body)?;
            let mut stable = true;
            for &LoopVar { body_param: p, next, .. } in &vars {
                let (before, after) = (self.graph.ty(p), self.graph.ty(next));
                let Some(joined) = before.join(after) else {
                    let message = format!("a loop variable is {before} before an iteration and {after} after it");
                    let error = Diagnostic::new(message).at(self.graph.node(node).loc, "in this loop");
                    return Err(error.help("a loop variable keeps its element type and its rank"));
                };
                if joined != *before {
                    stable = false;
                    self.graph.value_mut(p).ty = joined;
                }
            }
            if stable {
                break;
            }
        }
        self.loops.insert(node, vars.iter().map(|var| self.graph.ty(var.body_param).clone()).collect());
        self.enter(cond);
        self.give(vars.iter().map(|var| (var.cond_param, var.body_param)).collect());
        self.region(cond)
    }

    fn error(&self, node: Node, broken: Broken) -> Diagnostic {
        let data = self.graph.node(node);
        let mut error = broken.error.at(data.name_in_errors(), data.loc);
        let mut known: Vec<String> =
            self.dims.iter().map(|(n, d)| format!("{} is {d}", Dim::Named(n.clone()))).collect();
        known.sort();
        if !known.is_empty() && !error.labels.is_empty() {
            error.labels[0].1.push_str(&format!(" (where {})", known.join(", ")));
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn nested_loops_that_lose_an_extent_take_time_in_proportion() {
        let mut nest = "%y = with_dynamic %s {axes=[0]} yield %y".to_owned();
        for _ in 0..30 {
            nest = format!(
                "%y = while (%s: f32[?] = %x | %x: f32[?] = %x, %p = %p) : (f32[?]) cond {{ yield %p }} body {{ {nest} }}
                 yield %y"
            );
        }
        let nest = nest.strip_suffix("yield %y").expect("the last yield is that of the graph");
        let text = format!("graph @f(%x: f32[n], %p: bool[]) -> f32[?] {{ {nest} return %y }}");
        let graph = Graph::parse(&text, "f.ir").unwrap_or_else(|e| panic!("{}", e[0]));
        let inputs = [TensorType::new(DType::F32, [4]), TensorType::new(DType::Bool, [0; 0])];
        let special = specialize(&graph, &inputs).unwrap_or_else(|error| panic!("{error}"));
        crate::ir::verify(&special).unwrap_or_else(|errors| panic!("{}\n{special}", errors[0]));
        assert_eq!(special.ty(special.outputs()[0]).to_string(), "f32[?]");
    }
}
