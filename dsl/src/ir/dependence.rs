//! Dependence analysis of loop iterations.
//!
//! If iterations are independent, they can run in any order or concurrently with the same results,
//! which makes a `while` a parallel map. The analysis works on the graph. So it applies to every
//! loop of this form, however it was written, and to loops made by autodiff. The loop variables of
//! such a loop are of two kinds:
//!
//! - **counters**, to which every iteration adds the same integer, so that the index of an
//!   iteration determines their values;
//! - **collections**, of which every iteration accesses an element of its own: a list that is
//!   written or accumulated at a different index in every iteration, a list or stack that each
//!   iteration pushes to or pops from once, or a stack that iterations only push to.
//!
//! Nothing else in the body reads a collection. The condition reads only counters and captures, so
//! the trip count is known before the first iteration. The body has no effects. An operation in it
//! may fail; the error is then that of the first iteration that fails. The analysis is
//! conservative: a loop classified as dependent may still have independent iterations.

use super::{Graph, ListOp, LoopVar, Node, Op, Region, StackOp, Value, ValueDef, WhileNode};
use crate::Buffer;
use crate::ops::{Effects, prim};
use rustc_hash::FxHashSet;
use std::fmt;

/// The trip count from which on it can pay to run iterations side by side.
pub const MIN_PARALLEL_TRIPS: i64 = 32;

/// The dependence between the iterations of a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Iterations {
    /// No dependence: the iterations may run in any order.
    Independent,
    /// An iteration may depend on an earlier one.
    Dependent {
        /// The name or index of the loop variable that causes the dependence, if it is one.
        variable: Option<String>,
        /// The reason for the dependence.
        why: &'static str,
    },
}

impl fmt::Display for Iterations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Iterations::Independent => f.write_str("its iterations are independent of each other"),
            Iterations::Dependent { variable: Some(name), why } => {
                write!(f, "its iterations depend on each other: `{name}` {why}")
            }
            Iterations::Dependent { variable: None, why } => write!(f, "its iterations depend on each other: {why}"),
        }
    }
}

/// Determines whether the iterations of a `while` depend on each other.
///
/// ```
/// use anabranch::Graph;
/// use anabranch::dsl::ir::dependence::iterations;
///
/// let text = "graph @f(%x: f32[3]) -> f32[3] {
///     %zero = constant 0 : i32[]
///     %n = constant 3 : i32[]
///     %rows = list_unstack %x : list<f32[]>
///     %empty = list_new %n : list<f32[]>
///     %i, %out = while (%i = %zero, %out = %empty | %n = %n, %rows = %rows)
///             : (i32[], list<f32[]>) cond {
///         %more = lt %i, %n : bool[]
///         yield %more
///     } body {
///         %row = list_read %rows, %i : f32[]
///         %y = tanh %row : f32[]
///         %new = list_write %out, %i, %y : list<f32[]>
///         %one = constant 1 : i32[]
///         %next = add %i, %one : i32[]
///         yield %next, %new
///     }
///     %y = list_stack %out : f32[3]
///     return %y
/// }";
/// let graph = Graph::parse(text, "f.ir").unwrap();
/// let stacked = graph.node(graph.producer(graph.outputs()[0]).unwrap());
/// let node = graph.producer(stacked.operands[0]).unwrap();
/// let text = iterations(&graph, node).to_string();
/// assert_eq!(text, "its iterations are independent of each other");
/// ```
///
/// # Panics
/// Panics if the node is not a `while`.
pub fn iterations(graph: &Graph, node: Node) -> Iterations {
    LoopAnalysis { graph, data: graph.while_of(node) }.iterations()
}

/// The effect of the iterations of a loop on a loop variable, if they can run in any order and
/// their effects can be combined afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopVarRole {
    /// Each iteration adds this integer.
    Counter(i64),
    /// Each iteration adds a tensor that does not depend on the sum so far.
    Sum,
    /// Each iteration writes one element of a list, at an index of its own.
    Written,
    /// Each iteration adds to one element of a list, at any index.
    Accumulated,
    /// Iterations only add to elements of a tensor, each to any number of them, at any indices.
    AddedTo,
    /// Iterations only push to a stack, each any number of elements.
    Pushed,
    /// Iterations only pop from a stack, each any number of elements.
    Popped,
}

/// Returns the role of each loop variable, or `None` if the effects of the iterations cannot be
/// combined or the body has other effects than assertions.
///
/// To be the iterations of the loop, the combined effects must be in the order of the iterations:
/// sums are rounded in that order, and an iteration pops what is on top after those before it. If
/// iterations fail, by an operation or an assertion, the error must be that of the first.
///
/// # Panics
/// Panics if the node is not a `while`.
pub fn roles(graph: &Graph, node: Node) -> Option<Vec<LoopVarRole>> {
    LoopAnalysis { graph, data: graph.while_of(node) }.roles()
}

/// Returns whether each iteration of a `while` adds to an element of its own of a list: the loop
/// variable `i`, whose role is [`LoopVarRole::Accumulated`].
pub(crate) fn adds_apart(graph: &Graph, node: Node, i: usize) -> bool {
    let analysis = LoopAnalysis { graph, data: graph.while_of(node) };
    let counters = analysis.data.vars().filter(|&var| analysis.step(var).is_some()).map(|var| var.body_param);
    let made = analysis.made_by(analysis.data.var(i).next);
    made.is_some_and(|(_, operands)| analysis.is_own_index(operands[1], &counters.collect()))
}

/// Returns the value of a constant integer scalar, or of a capture of one.
pub(crate) fn integer(graph: &Graph, value: Value) -> Option<i64> {
    let ValueDef::Result(node, _) = graph.value(value).def else {
        return integer(graph, graph.captured_by(value)?);
    };
    let Op::Constant(t) = &graph.node(node).op else { return None };
    match t.buffer() {
        Buffer::I32(x) if t.rank() == 0 => Some(x[0].into()),
        Buffer::I64(x) if t.rank() == 0 => Some(x[0]),
        Buffer::U32(x) if t.rank() == 0 => Some(x[0].into()),
        Buffer::U8(x) if t.rank() == 0 => Some(x[0].into()),
        _ => None,
    }
}

/// Returns the integer that every iteration adds to a loop variable, modulo the range of its type.
pub(crate) fn step(graph: &Graph, var: LoopVar) -> Option<i64> {
    let LoopVar { body_param: param, next, .. } = var;
    let ValueDef::Result(node, _) = graph.value(next).def else { return None };
    let data = graph.node(node);
    let (Op::Prim(def, _), &[a, b]) = (&data.op, &data.operands[..]) else { return None };
    match *def {
        prim::ADD if a == param => integer(graph, b),
        prim::ADD if b == param => integer(graph, a),
        prim::SUB if a == param => integer(graph, b)?.checked_neg(),
        _ => None,
    }
}

/// Returns every loop of a graph with its dependence, in program order, outer loops first.
pub fn all_loops(graph: &Graph) -> Vec<(Node, Iterations)> {
    let mut loops = Vec::new();
    graph.visit_nodes(graph.root(), &mut |node| {
        if graph.as_while(node).is_some() {
            loops.push((node, iterations(graph, node)));
        }
    });
    loops
}

/// Returns whether an operation has no effect but that it may fail.
fn can_only_fail(op: &Op) -> bool {
    matches!(op.effects(), Effects::Pure | Effects::Fallible)
}

/// Returns whether an operation adds to elements of its first operand, or only changes its shape.
fn adds(op: &Op) -> bool {
    matches!(op, Op::Prim(prim::SCATTER_ADD | prim::RESHAPE, _))
}

struct LoopAnalysis<'a> {
    graph: &'a Graph,
    data: WhileNode<'a>,
}

impl LoopAnalysis<'_> {
    fn iterations(&self) -> Iterations {
        let counters: FxHashSet<Value> =
            self.data.vars().filter(|&var| self.step(var).is_some()).map(|var| var.body_param).collect();
        let dependent = |variable, why| Iterations::Dependent { variable, why };
        for var in self.data.vars().filter(|var| !counters.contains(&var.body_param)) {
            if let Err(why) = self.is_collection(var, &counters) {
                return dependent(Some(self.name(var)), why);
            }
            if self.uses(self.data.cond(), var.cond_param) > 0 {
                return dependent(Some(self.name(var)), "is read by the condition");
            }
        }
        let regions = [self.data.cond(), self.data.body()];
        match regions.into_iter().any(|region| self.has(region, |op| !can_only_fail(op))) {
            true => dependent(None, "they have effects, whose order is kept"),
            false => Iterations::Independent,
        }
    }

    fn roles(&self) -> Option<Vec<LoopVarRole>> {
        let vars: Vec<LoopVar> = self.data.vars().collect();
        let counters: FxHashSet<Value> =
            vars.iter().filter(|&&var| self.step(var).is_some()).map(|var| var.body_param).collect();
        let role = |&var: &LoopVar| {
            let role = self.role(var, &counters)?;
            let is_counter = matches!(role, LoopVarRole::Counter(_));
            (is_counter || self.uses(self.data.cond(), var.cond_param) == 0).then_some(role)
        };
        let roles = vars.iter().map(role).collect::<Option<Vec<_>>>()?;
        // The condition runs once more than the body.
        let fails_late = self.has(self.data.cond(), |op| op.effects() != Effects::Pure);
        let has_effects = self.has(self.data.body(), |op| !can_only_fail(op) && !matches!(op, Op::Assert { .. }));
        (!fails_late && !has_effects).then_some(roles)
    }

    fn role(&self, var: LoopVar, counters: &FxHashSet<Value>) -> Option<LoopVarRole> {
        let LoopVar { body_param: param, next, .. } = var;
        let body = self.data.body();
        if counters.contains(&param) {
            return self.step(var).map(LoopVarRole::Counter);
        }
        let (op, operands) = self.made_by(next)?;
        let is_alone = self.uses(body, param) == 1 && self.uses(body, next) == 1;
        match op {
            Op::Prim(prim::ADD, _) if is_alone => operands.contains(&param).then_some(LoopVarRole::Sum),
            Op::List(ListOp::Accumulate) if is_alone && operands[0] == param => Some(LoopVarRole::Accumulated),
            Op::List(ListOp::Write) if is_alone && operands[0] == param => {
                self.is_own_index(operands[1], counters).then_some(LoopVarRole::Written)
            }
            _ if self.is_only(|op| *op == Op::Stack(StackOp::Push), param, next, body) => Some(LoopVarRole::Pushed),
            _ if self.is_only(|op| *op == Op::Stack(StackOp::Pop), param, next, body) => Some(LoopVarRole::Popped),
            _ if self.is_only(adds, param, next, body) => Some(LoopVarRole::AddedTo),
            _ => None,
        }
    }

    /// Returns whether a region has such an operation.
    fn has(&self, region: Region, is_such: impl Fn(&Op) -> bool) -> bool {
        let mut found = false;
        self.graph.visit_nodes(region, &mut |node| found |= is_such(&self.graph.node(node).op));
        found
    }

    /// Returns whether `next` is the stack or tensor `param` of a region after operations `is_such`
    /// alone, which loops and branches in the region may run any number of times. Nothing else may
    /// use it on the way.
    fn is_only(&self, is_such: fn(&Op) -> bool, param: Value, next: Value, region: Region) -> bool {
        self.parameter_before(is_such, next, region) == Some(param)
    }

    /// Returns the parameter of a region that becomes `next` by operations `is_such` alone.
    fn parameter_before(&self, is_such: fn(&Op) -> bool, next: Value, region: Region) -> Option<Value> {
        let mut value = next;
        loop {
            if self.uses(region, value) != 1 {
                return None;
            }
            let ValueDef::Result(node, i) = self.graph.value(value).def else { return Some(value) };
            let i = i as usize;
            let data = self.graph.node(node);
            value = match &data.op {
                op if i == 0 && is_such(op) => data.operands[0],
                Op::While { .. } => {
                    let inner = self.graph.while_of(node);
                    let var = inner.var(i);
                    let is_read = self.uses(inner.cond(), var.cond_param) > 0;
                    if is_read || !self.is_only(is_such, var.body_param, var.next, inner.body()) {
                        return None;
                    }
                    var.init
                }
                Op::Cond => {
                    let from = self.graph.cond_of(node).branches().map(|arm| {
                        let end = self.graph.region(arm).yields[i];
                        self.graph.captured_by(self.parameter_before(is_such, end, arm)?)
                    });
                    match from {
                        [Some(a), Some(b)] if a == b => a,
                        _ => return None,
                    }
                }
                _ => return None,
            };
        }
    }

    /// Returns the user's name of a loop variable, or its index.
    fn name(&self, var: LoopVar) -> String {
        let value = var.body_param;
        self.graph.value(value).name.map_or_else(|| value.to_string(), str::to_owned)
    }

    /// Returns the number of uses of a value by the nodes and yields of a region.
    fn uses(&self, region: Region, value: Value) -> usize {
        let data = self.graph.region(region);
        let operands = data.nodes.iter().flat_map(|&n| &self.graph.node(n).operands);
        operands.chain(&data.yields).filter(|&&v| v == value).count()
    }

    /// Returns the operation of the body that computes a value, and its operands.
    fn made_by(&self, value: Value) -> Option<(&Op, &[Value])> {
        let ValueDef::Result(node, _) = self.graph.value(value).def else { return None };
        let data = self.graph.node(node);
        Some((&data.op, &data.operands))
    }

    /// Returns whether a value of the body is loop-invariant: computed from captures and constants.
    fn is_invariant(&self, value: Value) -> bool {
        let (mut seen, mut left) = (FxHashSet::default(), vec![value]);
        while let Some(value) = left.pop() {
            if !seen.insert(value) {
                continue;
            }
            match (self.graph.value(value).def, self.made_by(value)) {
                (ValueDef::Param(..), _) if self.graph.captured_by(value).is_some() => {}
                (ValueDef::Result(..), Some((Op::Constant(_), _))) => {}
                (ValueDef::Result(..), Some((Op::Prim(..), operands))) => left.extend(operands),
                _ => return false,
            }
        }
        true
    }

    /// Returns the nonzero integer that every iteration adds to a loop variable.
    fn step(&self, var: LoopVar) -> Option<i64> {
        step(self.graph, var).filter(|&step| step != 0)
    }

    /// Returns whether a value of the body differs in every iteration: a counter, plus or minus
    /// loop-invariant values.
    fn is_own_index(&self, value: Value, counters: &FxHashSet<Value>) -> bool {
        let mut value = value;
        while let ValueDef::Result(..) = self.graph.value(value).def {
            let Some((Op::Prim(prim::ADD | prim::SUB, _), &[a, b])) = self.made_by(value) else { return false };
            value = match (self.is_invariant(b), self.is_invariant(a)) {
                (true, _) => a,
                (false, true) => b,
                (false, false) => return false,
            };
        }
        counters.contains(&value)
    }

    /// Checks that each iteration accesses an element of its own of a loop variable. Otherwise
    /// returns the reason.
    fn is_collection(&self, var: LoopVar, counters: &FxHashSet<Value>) -> Result<(), &'static str> {
        const CARRIED: &str = "is carried from one to the next";
        let LoopVar { body_param: param, next, .. } = var;
        let Some((op, operands)) = self.made_by(next) else { return Err(CARRIED) };
        let index = match op {
            Op::List(ListOp::Write | ListOp::Accumulate) => Some(operands[1]),
            Op::List(ListOp::Push | ListOp::Pop) | Op::Stack(StackOp::Push | StackOp::Pop) => None,
            _ => return Err(CARRIED),
        };
        // The list must be used by this operation only, and the updated list by the yield only.
        if operands[0] != param || self.uses(self.data.body(), param) > 1 || self.uses(self.data.body(), next) > 1 {
            return Err("is read and modified");
        }
        match index {
            Some(index) if !self.is_own_index(index, counters) => Err("is written at an index that may repeat"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result for a loop over `%i`, `%v` (a list) and `%s` (a scalar), with the given
    /// body and condition.
    fn of(body: &str, yields: &str, cond: &str) -> String {
        let text = format!(
            "graph @f(%n: i32[], %x: f32[]) {{
                %zero = constant 0 : i32[]
                %empty = list_new %n : list<f32[]>
                %i, %v, %s = while (%i = %zero, %v = %empty, %s = %zero | %n = %n, %x = %x) : (i32[], list<f32[]>, i32[])
                cond {{ {cond} yield %c }}
                body {{ %one = constant 1 : i32[] %j = add %i, %one : i32[] {body} yield {yields} }}
                return %i
            }}"
        );
        let graph = Graph::parse(&text, "f.ir").unwrap_or_else(|e| panic!("{e:?}"));
        let loops = all_loops(&graph);
        assert_eq!(loops.len(), 1, "the loop is found");
        loops[0].1.to_string().replace("its iterations ", "")
    }

    const BELOW_N: &str = "%c = lt %i, %n : bool[]";
    const STEP: &str = "%t = sub %s, %one : i32[]";

    #[test]
    fn elements_written_at_a_counter_are_independent() {
        for write in [
            "%w = list_write %v, %i, %x",
            "%w = list_write %v, %j, %x",
            "%k = sub %n, %j : i32[] %w = list_write %v, %k, %x",
            "%w = list_accumulate %v, %s, %x",
            "%w = list_push %v, %x",
            "%w, %p = list_pop %v",
        ] {
            assert_eq!(
                of(&format!("{write} {STEP}"), "%j, %w, %t", BELOW_N),
                "are independent of each other",
                "{write}"
            );
        }
    }

    #[test]
    fn what_an_iteration_leaves_for_the_next_is_a_dependence() {
        let write = "%w = list_write %v, %i, %x";
        for (body, yields, cond, says) in [
            (format!("{write} %t = mul %s, %j"), "%j, %w, %t", BELOW_N, "`s` is carried from one to the next"),
            (format!("{write} %t = add %s, %n"), "%j, %w, %t", BELOW_N, "`s` is carried from one to the next"),
            (format!("%r = list_read %v, %i {write} {STEP}"), "%j, %w, %t", BELOW_N, "`v` is read and modified"),
            (format!("{write} %t = list_len %w"), "%j, %w, %t", BELOW_N, "`v` is read and modified"),
            (
                format!("%w = list_write %v, %n, %x {STEP}"),
                "%j, %w, %t",
                BELOW_N,
                "`v` is written at an index that may repeat",
            ),
            (
                format!("%k = rem %i, %n : i32[] %w = list_write %v, %k, %x {STEP}"),
                "%j, %w, %t",
                BELOW_N,
                "`v` is written at an index that may repeat",
            ),
            (
                format!("{write} {STEP}"),
                "%j, %w, %t",
                "%len = list_len %v %c = lt %i, %len : bool[]",
                "`v` is read by the condition",
            ),
            (
                format!("%c = lt %i, %n : bool[] assert %c, \"in order\" {write} {STEP}"),
                "%j, %w, %t",
                BELOW_N,
                "they have effects, whose order is kept",
            ),
        ] {
            assert_eq!(of(&body, yields, cond), format!("depend on each other: {says}"), "{body}");
        }
    }

    #[test]
    fn a_step_of_zero_is_no_counter() {
        let body = "%z = constant 0 : i32[] %t = add %s, %z %w = list_write %v, %s, %x";
        assert_eq!(of(body, "%j, %w, %t", BELOW_N), "depend on each other: `v` is written at an index that may repeat");
    }

    /// Returns the roles of the variables `%i`, `%v` (a stack) and `%s` (a number) of a loop with
    /// this body.
    fn roles_of(body: &str, yields: &str, cond: &str) -> Option<Vec<LoopVarRole>> {
        let text = format!(
            "graph @f(%n: i32[], %x: f32[]) {{
                %zero = constant 0 : i32[]
                %sum = constant 0.0 : f32[]
                %empty = stack_new : stack<f32[]>
                %i, %v, %s = while (%i = %zero, %v = %empty, %s = %sum | %n = %n, %x = %x)
                        : (i32[], stack<f32[]>, f32[])
                cond {{ {cond} yield %c }}
                body {{ %one = constant 1 : i32[] %j = add %i, %one : i32[] {body} yield {yields} }}
                return %s
            }}"
        );
        let graph = Graph::parse(&text, "f.ir").unwrap_or_else(|e| panic!("{e:?}"));
        let loops = all_loops(&graph);
        roles(&graph, loops[0].0)
    }

    #[test]
    fn effects_of_iterations_that_can_be_combined_have_roles() {
        use LoopVarRole::{Counter, Popped, Pushed, Sum};
        const ADD: &str = "%t = add %s, %x : f32[]";
        let push = "%w = push %v, %x : stack<f32[]>";
        let pop = "%w, %p = pop %v : (stack<f32[]>, f32[])";
        // Any number of times, in a loop or in one arm of a branch.
        let inner = "%k, %w = while (%k = %i, %u = %v | %n = %n, %x = %x) : (i32[], stack<f32[]>)
            cond { %more = lt %k, %n : bool[] yield %more }
            body {
                %l = add %k, %k : i32[]
                %r = lt %l, %n : bool[]
                %z = cond %r, %u, %x : stack<f32[]> then (%u, %x) {
                    %o = push %u, %x : stack<f32[]>
                    yield %o
                } else (%u, %x) { yield %u }
                yield %l, %z
            }";
        for (stack, role) in [(push, Pushed), (pop, Popped), (inner, Pushed)] {
            let found = roles_of(&format!("{stack} {ADD}"), "%j, %w, %t", BELOW_N);
            assert_eq!(found, Some(vec![Counter(1), role, Sum]), "{stack}");
        }
        // Additions to elements of a tensor.
        let added = "graph @f(%n: i32[], %x: f32[2]) -> f32[8, 2] {
            %zero = constant 0 : i32[]
            %none = constant 0.0 : f32[]
            %start = broadcast_to %none {shape=[8, 2]} : f32[8, 2]
            %i, %sum = while (%i = %zero, %sum = %start | %n = %n, %x = %x) : (i32[], f32[8, 2])
            cond { %c = lt %i, %n : bool[] yield %c }
            body {
                %one = constant 1 : i32[]
                %j = add %i, %one : i32[]
                %at = reshape %i {shape=[1]} : i32[1]
                %row = reshape %x {shape=[1, 2]} : f32[1, 2]
                %new = scatter_add %sum, %at, %row {axis=0} : f32[8, 2]
                yield %j, %new
            }
            return %sum
        }";
        let graph = Graph::parse(added, "f.ir").unwrap_or_else(|e| panic!("{e:?}"));
        assert_eq!(roles(&graph, all_loops(&graph)[0].0), Some(vec![Counter(1), LoopVarRole::AddedTo]));
        let both = format!("{push} %w2, %p = pop %w : (stack<f32[]>, f32[]) {ADD}");
        let none = [
            // Pushes and pops.
            roles_of(&both, "%j, %w2, %t", BELOW_N),
            // A number that depends on the sum so far.
            roles_of(&format!("{push} %y = mul %s, %x : f32[] %t = add %s, %y : f32[]"), "%j, %w, %t", BELOW_N),
            roles_of(&format!("{push} %t = mul %s, %x : f32[]"), "%j, %w, %t", BELOW_N),
            // The condition reads the sum, or may fail after the last iteration.
            roles_of(&format!("{push} {ADD}"), "%j, %w, %t", "%c = lt %s, %x : bool[]"),
            roles_of(&format!("{push} {ADD}"), "%j, %w, %t", "%q = div %n, %i : i32[] %c = lt %i, %q : bool[]"),
        ];
        assert_eq!(none, [const { None }; 5]);
        let print = format!("{push} {ADD} print stdout \"{{}}\", %x");
        assert_eq!(roles_of(&print, "%j, %w, %t", BELOW_N), None);
    }

    #[test]
    fn stacks_in_nested_branches_take_time_in_proportion() {
        let types = "(stack<f32[]>, stack<f32[]>, stack<f32[]>)";
        let mut nest = "%p = push %a, %x : stack<f32[]> yield %p, %b, %c".to_owned();
        for _ in 0..30 {
            nest = format!(
                "%p, %q, %r = cond %m, %a, %b, %c, %x, %m : {types} then (%a, %b, %c, %x, %m) {{ {nest} }}
                 else (%a, %b, %c, %x, %m) {{ yield %a, %b, %c }} yield %p, %q, %r"
            );
        }
        let body = nest.rsplit_once(" yield ").expect("it is the last").0;
        let text = format!(
            "graph @f(%n: i32[], %x: f32[], %m: bool[]) -> i32[] {{
                %zero = constant 0 : i32[]
                %s = stack_new : stack<f32[]>
                %t = stack_new : stack<f32[]>
                %u = stack_new : stack<f32[]>
                %i, %a, %b, %c = while (%i = %zero, %a = %s, %b = %t, %c = %u | %n = %n, %x = %x, %m = %m)
                    : (i32[], stack<f32[]>, stack<f32[]>, stack<f32[]>)
                cond {{ %l = lt %i, %n : bool[] yield %l }}
                body {{
                    %one = constant 1 : i32[]
                    %j = add %i, %one : i32[]
                    {body}
                    yield %j, %p, %q, %r
                }}
                return %i
            }}"
        );
        let graph = Graph::parse(&text, "f.ir").unwrap_or_else(|e| panic!("{e:?}"));
        let pushed = LoopVarRole::Pushed;
        assert_eq!(roles(&graph, all_loops(&graph)[0].0), Some(vec![LoopVarRole::Counter(1), pushed, pushed, pushed]));
    }

    #[test]
    fn an_index_with_a_sum_of_many_sums_is_found_in_time_in_proportion() {
        let sums: String = (0..60).map(|i| format!("%t{} = add %t{i}, %t{i} ", i + 1)).collect();
        let found = |index: &str| {
            let text = format!(
                "graph @f(%n: i32[], %z: i32[], %d: i32[]) -> i32[?] {{
                    %zero = constant 0 : i32[]
                    %none = list_new %n : list<i32[]>
                    %i, %out = while (%i = %zero, %out = %none | %n = %n, %z = %z, %d = %d) cond {{
                        %more = lt %i, %n
                        yield %more
                    }} body {{
                        %one = constant 1 : i32[]
                        %j = add %i, %one
                        %t0 = div %z, %d
                        {sums}
                        {index}
                        %new = list_write %out, %index, %i
                        yield %j, %new
                    }}
                    %all = list_stack %out
                    return %all
                }}"
            );
            let graph = Graph::parse(&text, "f.ir").unwrap_or_else(|e| panic!("{}", e[0]));
            all_loops(&graph).remove(0).1
        };
        for index in ["%index = add %t60, %i", "%index = add %i, %t60", "%a = sub %t60, %i %index = sub %a, %t59"] {
            assert_eq!(found(index), Iterations::Independent, "{index}");
        }
        for index in ["%index = add %t60, %t60", "%index = add %i, %i", "%a = add %t60, %i %index = add %a, %i"] {
            let why = "is written at an index that may repeat";
            assert_eq!(found(index), Iterations::Dependent { variable: Some("out".to_owned()), why }, "{index}");
        }
    }
}
