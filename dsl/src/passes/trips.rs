//! Trip counts of loops that the graph itself determines.

use super::made_by;
use crate::DType;
use crate::Graph;
use crate::ir::dependence::{integer, step};
use crate::ir::{LoopVar, Node, Op, Region, Value};
use crate::ops::attributes::Along;
use crate::ops::prim;

/// A counted loop.
///
/// The loop runs while a loop variable with a constant increment is on one side of a loop-invariant
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedLoop {
    /// The index of the loop variable.
    pub variable: usize,
    /// The limit that the counter is compared with.
    pub limit: Limit,
    /// The number that is added to it in each iteration.
    pub step: i64,
    /// Whether the loop counts up to the limit, not down.
    is_below: bool,
    /// Whether the body also runs at the limit.
    is_inclusive: bool,
    /// The element type of the counter.
    pub dtype: DType,
}

/// The limit of a counted loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A constant of the graph.
    Number(i64),
    /// A value computed before the loop.
    Before(Value),
}

/// Returns the counter of a `while` whose condition only compares a counter with a loop-invariant
/// value.
pub fn count(g: &Graph, node: Node) -> Option<CountedLoop> {
    let data = g.while_of(node);
    let (name, &[a, b]) = made_by(g, data.predicate())? else { return None };
    let variable = |v: Value| data.vars().find(|var| var.cond_param == v);
    let limit = |v: Value| integer(g, v).map(Limit::Number).or_else(|| g.captured_by(v).map(Limit::Before));
    // `limit > counter` is `counter < limit`.
    let (counter, limit, is_turned) = match (variable(a), variable(b)) {
        (Some(var), None) => (var, limit(b)?, false),
        (None, Some(var)) => (var, limit(a)?, true),
        _ => return None,
    };
    let (is_below, is_inclusive) = match name {
        prim::LT => (!is_turned, false),
        prim::LE => (!is_turned, true),
        prim::GT => (is_turned, false),
        prim::GE => (is_turned, true),
        _ => return None,
    };
    let ty = g.ty(counter.init).element();
    let dtype = (ty.rank() == 0 && matches!(ty.dtype, DType::I32 | DType::I64)).then_some(ty.dtype)?;
    Some(CountedLoop { variable: counter.index, limit, step: step(g, counter)?, is_below, is_inclusive, dtype })
}

impl CountedLoop {
    /// Returns the trip count for an initial value and a limit.
    ///
    /// Returns `None` if the loop does not terminate or the counter overflows.
    pub fn trips(&self, first: i64, limit: i64) -> Option<i64> {
        // The distance to the first value that ends the loop.
        let distance = if self.is_below { limit.checked_sub(first)? } else { first.checked_sub(limit)? };
        let distance = distance.checked_add(i64::from(self.is_inclusive))?;
        let towards = if self.is_below { self.step } else { self.step.checked_neg()? };
        if distance <= 0 {
            return Some(0);
        }
        if towards <= 0 {
            return None;
        }
        let trips = distance.checked_add(towards - 1)? / towards;
        // A counter that overflows does not end the loop there.
        let last = first.checked_add(trips.checked_mul(self.step)?)?;
        (self.dtype == DType::I64 || i32::try_from(last).is_ok()).then_some(trips)
    }
}

/// Returns the trip count of a `while` that counts from a constant to a constant.
pub fn trips(g: &Graph, node: Node) -> Option<i64> {
    let count = count(g, node)?;
    let Limit::Number(limit) = count.limit else { return None };
    count.trips(integer(g, g.while_of(node).inits()[count.variable])?, limit)
}

/// Returns whether a `while` writes each element of a loop variable before anything reads it, so
/// that its initial value does not matter.
///
/// That is so if iteration `i` of `n` only writes part `i` of `n` equal parts along an axis.
pub fn overwrites(g: &Graph, var: LoopVar) -> bool {
    let data = g.while_of(var.node);
    let uses = |region: Region, v: Value| {
        let region = g.region(region);
        let operands = region.nodes.iter().flat_map(|&node| &g.node(node).operands);
        operands.chain(&region.yields).filter(|&&used| used == v).count()
    };
    let is_written_in_parts = || {
        let writer = g.node(g.producer(var.next)?);
        let (Op::Prim(prim::DYNAMIC_UPDATE_SLICE, attrs), &[whole, part, start]) = (&writer.op, &writer.operands[..])
        else {
            return None;
        };
        let axis = Along::of(attrs).axis;
        let extent = |v: Value| i64::try_from(g.ty(v).element().shape.known()?[axis]).ok();
        let (depth, counter) = (extent(part)?, |v: Value| data.vars().find(|var| var.body_param == v));
        let counter = match made_by(g, start) {
            Some((prim::MUL, &[a, b])) if integer(g, b) == Some(depth) => counter(a),
            Some((prim::MUL, &[a, b])) if integer(g, a) == Some(depth) => counter(b),
            _ => counter(start).filter(|_| depth == 1),
        }?;
        let counts_from_zero = integer(g, counter.init) == Some(0) && step(g, counter) == Some(1);
        let is_whole = trips(g, var.node)?.checked_mul(depth) == Some(extent(whole)?);
        Some(whole == var.body_param && counts_from_zero && is_whole)
    };
    is_written_in_parts() == Some(true)
        && [var.body_param, var.next].map(|v| uses(data.body(), v)) == [1, 1]
        && uses(data.cond(), var.cond_param) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trips_of(start: &str, test: &str, step: &str) -> Option<i64> {
        let text = format!(
            "graph @f() -> i32[] {{
                %0 = constant {start} : i32[]
                %i = while (%i = %0) : (i32[]) cond {{
                    {test}
                    yield %p
                }} body {{
                    {step}
                    yield %j
                }}
                return %i
            }}"
        );
        let g = Graph::parse(&text, "trips.ir").unwrap_or_else(|e| panic!("{}", e[0]));
        let node = *g.region(g.root()).nodes.iter().find(|&&n| g.as_while(n).is_some()).unwrap();
        trips(&g, node)
    }

    #[test]
    fn loops_that_count_say_how_often_they_run() {
        let up = "%n = constant 10 : i32[]
            %p = lt %i, %n";
        let by = |k: i32, op: &str| {
            format!(
                "%s = constant {k} : i32[]
                %j = {op} %i, %s"
            )
        };
        assert_eq!(trips_of("0", up, &by(1, "add")), Some(10));
        assert_eq!(trips_of("1", up, &by(4, "add")), Some(3));
        assert_eq!(trips_of("10", up, &by(1, "add")), Some(0));
        assert_eq!(trips_of("0", up, &by(1, "sub")), None);
        assert_eq!(trips_of("0", up, &by(0, "add")), None);
        assert_eq!(trips_of("0", up, &by(2, "mul")), None);
        let down = "%n = constant -3 : i32[]
            %p = le %n, %i";
        assert_eq!(trips_of("5", down, &by(2, "sub")), Some(5));
        let all = "%n = constant 2147483647 : i32[]
            %p = le %i, %n";
        assert_eq!(trips_of("2147483640", all, &by(1, "add")), None);
    }

    /// Returns whether a loop with this trip count, end of the condition, and body that computes
    /// `%new`, overwrites its second variable.
    fn is_overwritten(trips: u32, test: &str, body: &str) -> bool {
        let text = format!(
            "graph @f(%rows: f32[2, 3]) -> f32[8, 3] {{
                %0 = constant 0 : i32[]
                %zero = constant 0.0 : f32[]
                %zeros = broadcast_to %zero {{shape=[8, 3]}} : f32[8, 3]
                %i, %all = while (%i = %0, %all = %zeros | %rows = %rows) : (i32[], f32[8, 3]) cond {{
                    %n = constant {trips} : i32[]
                    %p = lt %i, %n : bool[]
                    {test}
                }} body {{
                    %1 = constant 1 : i32[]
                    %j = add %i, %1 : i32[]
                    %2 = constant 2 : i32[]
                    {body}
                    yield %j, %new
                }}
                return %all
            }}"
        );
        let g = Graph::parse(&text, "rows.ir").unwrap_or_else(|e| panic!("{}", e[0]));
        let node = *g.region(g.root()).nodes.iter().find(|&&n| g.as_while(n).is_some()).unwrap();
        overwrites(&g, g.while_of(node).var(1))
    }

    #[test]
    fn a_loop_that_writes_each_row_overwrites_its_variable() {
        let start = |start: &str| {
            format!("%start = {start} : i32[]\n%new = dynamic_update_slice %all, %rows, %start {{axis=0}} : f32[8, 3]")
        };
        for (trips, test, body, expected) in [
            (4, "yield %p", start("mul %i, %2"), true),
            (4, "yield %p", start("mul %2, %i"), true),
            // Not all rows are written.
            (3, "yield %p", start("mul %i, %2"), false),
            (4, "yield %p", start("mul %i, %1"), false),
            (8, "yield %p", start("add %i, %2"), false),
            // The others would be read.
            (
                4,
                "yield %p",
                start("mul %i, %2").replace("%new =", "%some =") + "\n%new = tanh %some : f32[8, 3]",
                false,
            ),
            (4, "yield %p", start("mul %i, %2") + "\n%read = tanh %all : f32[8, 3]", false),
            (4, "yield %p", start("mul %i, %2") + "\n%read = tanh %new : f32[8, 3]", false),
            (4, "%read = tanh %all : f32[8, 3]\nyield %p", start("mul %i, %2"), false),
        ] {
            assert_eq!(is_overwritten(trips, test, &body), expected, "{trips} {test} {body}");
        }
    }
}
