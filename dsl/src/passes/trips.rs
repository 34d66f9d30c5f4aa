//! Trip counts of loops that the graph itself determines.

use super::{captured, made_by};
use crate::Graph;
use crate::ir::{Node, Op, Value, ValueDef};
use crate::ops::prim;
use crate::{Buffer, DType};

/// Returns the value of a constant integer scalar, or of a capture of one.
pub(super) fn integer(g: &Graph, v: Value) -> Option<i64> {
    match g.value(v).def {
        ValueDef::Result(node, _) => match &g.node(node).op {
            Op::Constant(t) if t.rank() == 0 => match t.buffer() {
                Buffer::I32(x) => Some(i64::from(x[0])),
                Buffer::I64(x) => Some(x[0]),
                _ => None,
            },
            _ => None,
        },
        ValueDef::Param(region, i) => integer(g, captured(g, region, i as usize)?),
    }
}

/// Returns the increment of a loop variable per iteration, if it is a counter.
pub(super) fn step(g: &Graph, node: Node, i: usize) -> Option<i64> {
    let body = g.region(g.node(node).regions[1]);
    let (param, next) = (body.params[i], body.yields[i]);
    match made_by(g, next)? {
        (prim::ADD, &[a, b]) if a == param => integer(g, b),
        (prim::ADD, &[a, b]) if b == param => integer(g, a),
        (prim::SUB, &[a, b]) if a == param => integer(g, b)?.checked_neg(),
        _ => None,
    }
}

/// A counted loop.
///
/// It runs while a loop variable with a constant increment is on one side of a loop-invariant
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The index of the loop variable.
    pub variable: usize,
    /// The limit that the counter is compared with.
    pub limit: Limit,
    step: i64,
    /// Whether the loop counts up to the limit, not down.
    is_below: bool,
    /// Whether the body also runs at the limit.
    is_inclusive: bool,
    dtype: DType,
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
pub fn count(g: &Graph, node: Node) -> Option<Count> {
    let data = g.node(node);
    let cond = g.region(data.regions[0]);
    let (name, &[a, b]) = made_by(g, cond.yields[0])? else { return None };
    let n = g.n_carried(node);
    let carried = |v: Value| cond.params[..n].iter().position(|&p| p == v);
    let limit = |v: Value| {
        let before = || cond.params[n..].iter().position(|&p| p == v).map(|i| Limit::Before(data.operands[n + i]));
        integer(g, v).map(Limit::Number).or_else(before)
    };
    // `limit > counter` is `counter < limit`.
    let (variable, limit, is_turned) = match (carried(a), carried(b)) {
        (Some(i), None) => (i, limit(b)?, false),
        (None, Some(i)) => (i, limit(a)?, true),
        _ => return None,
    };
    let (is_below, is_inclusive) = match name {
        prim::LT => (!is_turned, false),
        prim::LE => (!is_turned, true),
        prim::GT => (is_turned, false),
        prim::GE => (is_turned, true),
        _ => return None,
    };
    let ty = g.ty(data.operands[variable]).element();
    let dtype = (ty.rank() == 0 && matches!(ty.dtype, DType::I32 | DType::I64)).then_some(ty.dtype)?;
    Some(Count { variable, limit, step: step(g, node, variable)?, is_below, is_inclusive, dtype })
}

impl Count {
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
    count.trips(integer(g, g.node(node).operands[count.variable])?, limit)
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
        let node = *g.region(g.root()).nodes.iter().find(|&&n| matches!(g.node(n).op, Op::While { .. })).unwrap();
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
}
