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
//!   written or accumulated at a different index in every iteration, or a list or stack that each
//!   iteration pushes to or pops from once.
//!
//! Nothing else in the body reads a collection. The condition reads only counters and captures, so
//! the trip count is known before the first iteration. The body has no effects. An operation in it
//! may fail; the error is then that of the first iteration that fails. The analysis is
//! conservative: a loop classified as dependent may still have independent iterations.

use super::{Graph, ListOp, LoopVar, Node, Op, Region, StackOp, Value, ValueDef, WhileNode};
use crate::ops::{Effects, prim};
use rustc_hash::FxHashSet;
use std::fmt;

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

struct LoopAnalysis<'a> {
    graph: &'a Graph,
    data: WhileNode<'a>,
}

impl LoopAnalysis<'_> {
    fn iterations(&self) -> Iterations {
        let counters: FxHashSet<Value> =
            self.data.vars().filter(|&var| self.is_counter(var)).map(|var| var.body_param).collect();
        let dependent = |variable, why| Iterations::Dependent { variable, why };
        for var in self.data.vars().filter(|var| !counters.contains(&var.body_param)) {
            if let Err(why) = self.is_collection(var, &counters) {
                return dependent(Some(self.name(var)), why);
            }
            if self.uses(self.data.cond(), var.cond_param) > 0 {
                return dependent(Some(self.name(var)), "is read by the condition");
            }
        }
        let mut effects = false;
        for region in [self.data.cond(), self.data.body()] {
            self.graph.visit_nodes(region, &mut |node| {
                let of_node = self.graph.node(node).op.effects();
                effects |= !matches!(of_node, Effects::Pure | Effects::Fallible);
            });
        }
        if effects { dependent(None, "they have effects, whose order is kept") } else { Iterations::Independent }
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
        match self.graph.value(value).def {
            ValueDef::Param(..) => self.graph.captured_by(value).is_some(),
            ValueDef::Result(..) => match self.made_by(value) {
                Some((Op::Constant(_), _)) => true,
                Some((Op::Prim(..), operands)) => operands.iter().all(|&v| self.is_invariant(v)),
                _ => false,
            },
        }
    }

    /// Returns whether a value of the body is a nonzero constant, possibly captured.
    fn is_step(&self, value: Value) -> bool {
        let value = self.graph.captured_by(value).unwrap_or(value);
        let zero = |t: &crate::HostTensor| *t == crate::HostTensor::zeros(t.dtype(), t.shape());
        matches!(self.made_by(value), Some((Op::Constant(t), _)) if t.rank() == 0 && !zero(t))
    }

    /// Returns whether every iteration adds the same nonzero integer to a loop variable.
    fn is_counter(&self, var: LoopVar) -> bool {
        let param = var.body_param;
        let ty = self.graph.ty(param);
        if ty.as_tensor().is_none_or(|t| t.rank() > 0 || t.dtype.is_float()) {
            return false;
        }
        match self.made_by(var.next) {
            Some((Op::Prim(def, _), &[a, b])) => match *def {
                prim::ADD => (a == param && self.is_step(b)) || (b == param && self.is_step(a)),
                prim::SUB => a == param && self.is_step(b),
                _ => false,
            },
            _ => false,
        }
    }

    /// Returns whether a value of the body differs in every iteration: a counter, plus or minus
    /// loop-invariant values.
    fn is_own_index(&self, value: Value, counters: &FxHashSet<Value>) -> bool {
        match self.graph.value(value).def {
            ValueDef::Param(..) => counters.contains(&value),
            ValueDef::Result(..) => match self.made_by(value) {
                Some((Op::Prim(def, _), &[a, b])) if matches!(*def, prim::ADD | prim::SUB) => {
                    (self.is_own_index(a, counters) && self.is_invariant(b))
                        || (self.is_invariant(a) && self.is_own_index(b, counters))
                }
                _ => false,
            },
        }
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
}
