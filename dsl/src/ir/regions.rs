//! The layout of constructs: how their operands, region parameters, yields and results correspond.
//!
//! | op | operands | parameters of its regions | yields |
//! |---|---|---|---|
//! | `cond` | predicate, captures | captures | `then`, `else`: the results |
//! | `while` | initial values, captures | loop variables, captures | `cond`: the predicate; `body`: the next values, also the results |
//! | call | arguments and captures | the same; for a gradient also results and cotangents | forward: the results; gradient: cotangents of arguments |
//!
//! Passes, gradients and engines ask these accessors. Only the edits, the builder, the verifier,
//! type inference and the text form also know the layout.

use super::{CallKind, Graph, Node, NodeData, Op, Region, Value, ValueDef};
use std::num::NonZeroU32;

/// The source of the values of a region parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamSource {
    /// An input of the graph, by position. While a graph is traced, also a parameter of a region
    /// that is still open.
    Input(usize),
    /// A value outside the construct. For calls, this includes arguments.
    Capture(Value),
    /// A loop variable.
    LoopVar(LoopVar),
    /// A parameter that only the gradient region of a call has.
    Own {
        /// The call.
        node: Node,
        /// The position after the parameters that both regions have.
        index: usize,
    },
}

impl ParamSource {
    /// Returns the value outside with which the parameter starts: the capture, or the initial value
    /// of the loop variable.
    pub fn first(self) -> Option<Value> {
        match self {
            ParamSource::Capture(outer) => Some(outer),
            ParamSource::LoopVar(var) => Some(var.init),
            ParamSource::Input(_) | ParamSource::Own { .. } => None,
        }
    }
}

/// A loop variable of a `while`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopVar {
    /// The loop.
    pub node: Node,
    /// The position among the loop variables.
    pub index: usize,
    /// The value before the loop.
    pub init: Value,
    /// The parameter of the condition.
    pub cond_param: Value,
    /// The parameter of the body.
    pub body_param: Value,
    /// The value that the body yields for the next iteration.
    pub next: Value,
    /// The value after the loop.
    pub result: Value,
}

/// A capture of a `cond` or a `while`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The captured value.
    pub outer: Value,
    /// The parameter of each region.
    pub params: [Value; 2],
}

/// The number of runs of a region each time its construct runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// The gradient of a call. Differentiation copies it, so the region itself never runs.
    Never,
    /// A branch.
    AtMostOnce,
    /// The region of a call.
    Once,
    /// The condition of a loop: before each iteration, and a last time.
    EachTest,
    /// The body of a loop.
    EachIteration,
}

/// A `while` node.
#[derive(Clone, Copy, Debug)]
pub struct WhileNode<'g> {
    graph: &'g Graph,
    node: Node,
    data: &'g NodeData,
}

impl<'g> WhileNode<'g> {
    /// Returns the region that computes the predicate.
    pub fn cond(self) -> Region {
        self.data.regions[0]
    }

    /// Returns the region that computes the next values of the loop variables.
    pub fn body(self) -> Region {
        self.data.regions[1]
    }

    /// Returns the value in the condition that is true if another iteration runs.
    pub fn predicate(self) -> Value {
        self.graph.region(self.cond()).yields[0]
    }

    /// Returns the number of iterations that may run concurrently, if the session does not choose
    /// it.
    pub fn parallel_iterations(self) -> Option<NonZeroU32> {
        let Op::While { parallel_iterations } = self.data.op else { panic!("the node is a loop") };
        parallel_iterations
    }

    /// Returns the number of loop variables.
    pub fn n_vars(self) -> usize {
        self.data.results.len()
    }

    /// Returns the loop variable at a position.
    pub fn var(self, index: usize) -> LoopVar {
        let (cond, body) = (self.graph.region(self.cond()), self.graph.region(self.body()));
        LoopVar {
            node: self.node,
            index,
            init: self.data.operands[index],
            cond_param: cond.params[index],
            body_param: body.params[index],
            next: body.yields[index],
            result: self.data.results[index],
        }
    }

    /// Returns the loop variables.
    pub fn vars(self) -> impl ExactSizeIterator<Item = LoopVar> + use<'g> {
        (0..self.n_vars()).map(move |i| self.var(i))
    }

    /// Returns the initial values of the loop variables.
    pub fn inits(self) -> &'g [Value] {
        &self.data.operands[..self.n_vars()]
    }

    /// Returns the values that the body yields for the next iteration.
    pub fn nexts(self) -> &'g [Value] {
        &self.graph.region(self.body()).yields
    }
}

/// A `cond` node.
#[derive(Clone, Copy, Debug)]
pub struct CondNode<'g> {
    graph: &'g Graph,
    data: &'g NodeData,
}

impl CondNode<'_> {
    /// Returns the value that selects the branch.
    pub fn predicate(self) -> Value {
        self.data.operands[0]
    }

    /// Returns the regions that run if the predicate is true and if it is false.
    pub fn branches(self) -> [Region; 2] {
        [self.data.regions[0], self.data.regions[1]]
    }

    /// Returns the region that runs for a value of the predicate.
    pub fn branch(self, predicate: bool) -> Region {
        self.data.regions[usize::from(!predicate)]
    }

    /// Returns the values that the branches yield for a result.
    pub fn yields(self, result: usize) -> [Value; 2] {
        self.branches().map(|branch| self.graph.region(branch).yields[result])
    }
}

/// A call node.
#[derive(Clone, Copy, Debug)]
pub struct CallNode<'g> {
    graph: &'g Graph,
    data: &'g NodeData,
    kind: CallKind,
}

/// The value that a parameter of a gradient region stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientInput {
    /// An operand of the call.
    Entry(Value),
    /// The result of the call at a position.
    Forward(usize),
    /// The cotangent of the result at a position.
    Cotangent(usize),
}

impl<'g> CallNode<'g> {
    /// Returns the region that computes the results.
    pub fn forward(self) -> Region {
        self.data.regions[0]
    }

    /// Returns the region that computes the cotangents of the arguments, if the call has one.
    pub fn gradient(self) -> Option<Region> {
        self.data.regions.get(1).copied()
    }

    /// Returns the operands that are arguments of a function with a custom gradient.
    ///
    /// Other calls have only captures.
    pub fn args(self) -> &'g [Value] {
        &self.data.operands[..self.n_args()]
    }

    fn n_args(self) -> usize {
        match self.kind {
            CallKind::CustomGradient { args } => args,
            CallKind::Checkpoint | CallKind::Recompute => 0,
        }
    }

    /// Returns the captures: each parameter of the forward region with the value outside.
    pub fn captures(self) -> impl Iterator<Item = (Value, Value)> + use<'g> {
        self.graph.entry(self.forward()).skip(self.n_args())
    }

    /// Returns the parameters of the gradient region, each with the value that it stands for. A
    /// call without a gradient region has none.
    pub fn gradient_inputs(self) -> impl Iterator<Item = (Value, GradientInput)> + use<'g> {
        let (graph, data) = (self.graph, self.data);
        let params = self.gradient().map_or(&[][..], |gradient| &graph.region(gradient).params);
        let has_cotangent = move |i: &usize| graph.ty(data.results[*i]).is_differentiable();
        let operands = data.operands.iter().map(|&v| GradientInput::Entry(v));
        let results = (0..data.results.len()).map(GradientInput::Forward);
        let cotangents = (0..data.results.len()).filter(has_cotangent).map(GradientInput::Cotangent);
        params.iter().copied().zip(operands.chain(results).chain(cotangents))
    }
}

impl Graph {
    /// Returns a node as a loop, if it is one.
    pub fn as_while(&self, node: Node) -> Option<WhileNode<'_>> {
        let data = self.node(node);
        matches!(data.op, Op::While { .. }).then_some(WhileNode { graph: self, node, data })
    }

    /// Returns a node as a branch, if it is one.
    pub fn as_cond(&self, node: Node) -> Option<CondNode<'_>> {
        let data = self.node(node);
        matches!(data.op, Op::Cond).then_some(CondNode { graph: self, data })
    }

    /// Returns a node as a call, if it is one.
    pub fn as_call(&self, node: Node) -> Option<CallNode<'_>> {
        let data = self.node(node);
        let Op::Call(kind) = data.op else { return None };
        Some(CallNode { graph: self, data, kind })
    }

    /// Returns a node that is a loop.
    ///
    /// # Panics
    /// Panics if the node is another operation.
    pub fn while_of(&self, node: Node) -> WhileNode<'_> {
        self.as_while(node).unwrap_or_else(|| panic!("{} is not a loop", self.node(node).op.name()))
    }

    /// Returns a node that is a branch.
    ///
    /// # Panics
    /// Panics if the node is another operation.
    pub fn cond_of(&self, node: Node) -> CondNode<'_> {
        self.as_cond(node).unwrap_or_else(|| panic!("{} is not a branch", self.node(node).op.name()))
    }

    /// Returns a node that is a call.
    ///
    /// # Panics
    /// Panics if the node is another operation.
    pub fn call_of(&self, node: Node) -> CallNode<'_> {
        self.as_call(node).unwrap_or_else(|| panic!("{} is not a call", self.node(node).op.name()))
    }

    /// Returns the predicate of a branch or loop: an operand of the branch, or a value in the
    /// condition of the loop.
    pub fn predicate(&self, node: Node) -> Option<Value> {
        match self.node(node).op {
            Op::Cond => Some(self.cond_of(node).predicate()),
            Op::While { .. } => Some(self.while_of(node).predicate()),
            _ => None,
        }
    }

    /// Returns the source of the values of a region parameter.
    ///
    /// # Panics
    /// Panics if the value is a result of a node.
    pub fn source_of(&self, param: Value) -> ParamSource {
        let ValueDef::Param(region, i) = self.value(param).def else { panic!("{param} is not a region parameter") };
        let i = i as usize;
        let Some(node) = self.region(region).owner else { return ParamSource::Input(i) };
        let entry = self.entry_values(node);
        match self.as_while(node) {
            Some(data) if i < data.n_vars() => ParamSource::LoopVar(data.var(i)),
            _ if i < entry.len() => ParamSource::Capture(entry[i]),
            _ => ParamSource::Own { node, index: i - entry.len() },
        }
    }

    /// Returns the value that a region parameter captures, or `None` for all other values.
    pub fn captured_by(&self, value: Value) -> Option<Value> {
        match self.value(value).def {
            ValueDef::Result(..) => None,
            ValueDef::Param(..) => match self.source_of(value) {
                ParamSource::Capture(outer) => Some(outer),
                ParamSource::Input(_) | ParamSource::LoopVar(_) | ParamSource::Own { .. } => None,
            },
        }
    }

    /// Returns the operands of a construct that its regions have as parameters: initial values of
    /// loop variables, then captures.
    ///
    /// # Panics
    /// Panics if the node is not a construct.
    pub fn entry_values(&self, node: Node) -> &[Value] {
        let data = self.node(node);
        match data.op {
            Op::Cond => &data.operands[1..],
            Op::While { .. } | Op::Call(_) => &data.operands,
            ref op => panic!("{} has no regions", op.name()),
        }
    }

    /// Returns the values that a construct captures. For a call, these are all its operands.
    ///
    /// # Panics
    /// Panics if the node is not a construct.
    pub fn captured(&self, node: Node) -> &[Value] {
        &self.entry_values(node)[self.n_loop_vars(node)..]
    }

    /// Returns the parameters of an inner region, each with the value outside with which it starts.
    /// Excludes the parameters that only a gradient region has.
    pub fn entry(&self, region: Region) -> impl Iterator<Item = (Value, Value)> + use<'_> {
        let params = &self.region(region).params;
        params.iter().copied().zip(self.entry_values(self.owner(region)).iter().copied())
    }

    /// Returns the parameters of an inner region that are captures, each with the value outside.
    pub fn captures_in(&self, region: Region) -> impl Iterator<Item = (Value, Value)> + use<'_> {
        self.entry(region).skip(self.n_loop_vars(self.owner(region)))
    }

    /// Returns the captures of a branch or loop.
    ///
    /// # Panics
    /// Panics if the node is neither.
    pub fn captures(&self, node: Node) -> impl Iterator<Item = Capture> + use<'_> {
        let [first, second] = self.node(node).regions[..] else {
            panic!("{} does not have two regions", self.node(node).op.name())
        };
        let pairs = self.captures_in(first).zip(self.captures_in(second));
        pairs.map(|((a, outer), (b, _))| Capture { outer, params: [a, b] })
    }

    /// Returns the regions whose yields are the results of a construct: both branches, the body of
    /// a loop, or the forward region of a call.
    pub fn result_regions(&self, node: Node) -> &[Region] {
        let data = self.node(node);
        match data.op {
            Op::While { .. } => &data.regions[1..],
            Op::Call(_) => &data.regions[..1],
            _ => &data.regions,
        }
    }

    /// Returns the regions of a node, each with how often it runs.
    pub fn region_uses(&self, node: Node) -> impl Iterator<Item = (Region, Runs)> + use<'_> {
        let data = self.node(node);
        let runs = match data.op {
            Op::While { .. } => [Runs::EachTest, Runs::EachIteration],
            Op::Call(_) => [Runs::Once, Runs::Never],
            _ => [Runs::AtMostOnce, Runs::AtMostOnce],
        };
        data.regions.iter().copied().zip(runs)
    }

    /// Returns the regions of a node that may run.
    pub fn running_regions(&self, node: Node) -> impl Iterator<Item = Region> + use<'_> {
        self.region_uses(node).filter(|&(_, runs)| runs != Runs::Never).map(|(region, _)| region)
    }

    fn n_loop_vars(&self, node: Node) -> usize {
        self.as_while(node).map_or(0, WhileNode::n_vars)
    }

    fn owner(&self, region: Region) -> Node {
        self.region(region).owner.unwrap_or_else(|| panic!("{region} has no owner"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "graph @f(%x: f32[], %n: i32[], %p: bool[]) -> (f32[], f32[], f32[], f32[]) {
        %zero = constant 0 : i32[]
        %i, %s = while (%i = %zero, %s = %x | %n = %n, %x = %x) cond {
            %more = lt %i, %n
            yield %more
        } body {
            %one = constant 1 : i32[]
            %j = add %i, %one
            %t = mul %s, %x
            yield %j, %t
        }
        %c = cond %p, %x, %s then (%x, %s) {
            yield %x
        } else (%x, %s) {
            %y = tanh %s
            yield %y
        }
        %h = checkpoint (%c = %c) body {
            %e = exp %c
            yield %e
        }
        %g, %k = custom_gradient (%x = %x | %i = %i, %s = %s) forward {
            %z = mul %x, %s
            yield %z, %i
        } gradient (%z: f32[], %k: i32[], %dz: f32[]) {
            %d = mul %dz, %z
            yield %d
        }
        return %s, %c, %h, %g
    }";

    fn graph() -> Graph {
        Graph::parse(TEXT, "regions.ir").unwrap_or_else(|e| panic!("{}", e[0]))
    }

    fn find(graph: &Graph, name: &str) -> Node {
        let mut nodes = graph.region(graph.root()).nodes.iter();
        *nodes.find(|&&node| graph.node(node).op.name() == name).expect("the graph has one")
    }

    fn name(graph: &Graph, value: Value) -> &'static str {
        graph.value(value).name.expect("the value has a name")
    }

    fn names(graph: &Graph, values: &[Value]) -> Vec<&'static str> {
        values.iter().map(|&v| name(graph, v)).collect()
    }

    #[test]
    fn loop_variables_come_before_captures() {
        let graph = graph();
        let data = graph.while_of(find(&graph, "while"));
        assert_eq!(name(&graph, data.predicate()), "more");
        assert_eq!(graph.region_of(data.predicate()), data.cond());
        let vars: Vec<LoopVar> = data.vars().collect();
        assert_eq!(vars.iter().map(|v| name(&graph, v.init)).collect::<Vec<_>>(), ["zero", "x"]);
        assert_eq!(vars.iter().map(|v| name(&graph, v.next)).collect::<Vec<_>>(), ["j", "t"]);
        assert_eq!((vars[1].index, vars.len()), (1, data.n_vars()));
        for var in vars {
            assert_eq!(graph.region_of(var.cond_param), data.cond());
            assert_eq!(graph.region_of(var.body_param), data.body());
            assert_eq!(name(&graph, var.result), name(&graph, var.body_param));
            assert_eq!(graph.source_of(var.cond_param), ParamSource::LoopVar(var));
            assert_eq!(graph.source_of(var.body_param).first(), Some(var.init));
            assert_eq!(graph.captured_by(var.body_param), None);
        }
        assert_eq!(names(&graph, data.inits()), ["zero", "x"]);
        assert_eq!(names(&graph, data.nexts()), ["j", "t"]);
    }

    #[test]
    fn captures_have_one_parameter_in_each_region() {
        let graph = graph();
        for (op, captured) in [("while", ["n", "x"]), ("cond", ["x", "s"])] {
            let node = find(&graph, op);
            assert_eq!(names(&graph, graph.captured(node)), captured, "{op}");
            let captures: Vec<Capture> = graph.captures(node).collect();
            assert_eq!(captures.len(), 2, "{op}");
            for (i, &region) in graph.node(node).regions.iter().enumerate() {
                let of_region: Vec<_> = captures.iter().map(|c| (c.params[i], c.outer)).collect();
                assert_eq!(graph.captures_in(region).collect::<Vec<_>>(), of_region, "{op}");
                for (param, outer) in of_region {
                    assert_eq!(graph.region_of(param), region, "{op}");
                    assert_eq!(graph.source_of(param), ParamSource::Capture(outer), "{op}");
                    assert_eq!(graph.captured_by(param), Some(outer), "{op}");
                }
            }
        }
        assert_eq!(graph.source_of(graph.inputs()[1]), ParamSource::Input(1));
        assert_eq!(graph.captured_by(graph.outputs()[0]), None);
    }

    #[test]
    fn a_branch_yields_one_value_for_each_result() {
        let graph = graph();
        let node = find(&graph, "cond");
        let cond = graph.cond_of(node);
        assert_eq!(graph.predicate(node), Some(graph.inputs()[2]));
        assert_eq!(names(&graph, &cond.yields(0)), ["x", "y"]);
        assert_eq!([cond.branch(true), cond.branch(false)], cond.branches());
        assert_eq!(graph.result_regions(node), cond.branches());
    }

    #[test]
    fn a_gradient_region_has_parameters_of_its_own() {
        let graph = graph();
        let node = find(&graph, "custom_gradient");
        let call = graph.call_of(node);
        assert_eq!(names(&graph, call.args()), ["x"]);
        let captures: Vec<Value> = call.captures().map(|(_, outer)| outer).collect();
        assert_eq!(names(&graph, &captures), ["i", "s"]);
        let inputs: Vec<(Value, GradientInput)> = call.gradient_inputs().collect();
        let own = [GradientInput::Forward(0), GradientInput::Forward(1), GradientInput::Cotangent(0)];
        let of: Vec<GradientInput> = inputs.iter().map(|&(_, of)| of).collect();
        assert_eq!(of[3..], own, "the second result is an integer");
        for (i, &(param, of)) in inputs.iter().enumerate() {
            let expected = match of {
                GradientInput::Entry(outer) => ParamSource::Capture(outer),
                _ => ParamSource::Own { node, index: i - 3 },
            };
            assert_eq!(graph.source_of(param), expected);
        }
        let checkpoint = graph.call_of(find(&graph, "checkpoint"));
        assert_eq!(
            (checkpoint.gradient(), checkpoint.args(), checkpoint.gradient_inputs().count()),
            (None, &[][..], 0)
        );
        assert_eq!(checkpoint.captures().count(), 1);
    }

    #[test]
    fn the_gradient_of_a_call_never_runs() {
        let graph = graph();
        let runs = |op: &str| graph.region_uses(find(&graph, op)).map(|(_, runs)| runs).collect::<Vec<_>>();
        assert_eq!(runs("while"), [Runs::EachTest, Runs::EachIteration]);
        assert_eq!(runs("cond"), [Runs::AtMostOnce; 2]);
        assert_eq!(runs("checkpoint"), [Runs::Once]);
        assert_eq!(runs("custom_gradient"), [Runs::Once, Runs::Never]);
        assert_eq!(runs("constant"), []);
        let call = find(&graph, "custom_gradient");
        assert_eq!(graph.running_regions(call).collect::<Vec<_>>(), [graph.call_of(call).forward()]);
    }
}
