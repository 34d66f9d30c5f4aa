//! How often a loop runs, where the graph itself says so.

use super::{captured, made_by};
use crate::Graph;
use crate::ir::{Node, Op, Value, ValueDef};
use crate::{Buffer, DType};

/// The integer that a scalar is, if it is a constant, or a capture of one.
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

/// What a loop variable grows by in each iteration, if it is a counter.
pub(super) fn step(g: &Graph, node: Node, i: usize) -> Option<i64> {
    let body = g.region(g.node(node).regions[1]);
    let (param, next) = (body.params[i], body.yields[i]);
    match made_by(g, next)? {
        ("add", &[a, b]) if a == param => integer(g, b),
        ("add", &[a, b]) if b == param => integer(g, a),
        ("sub", &[a, b]) if a == param => integer(g, b)?.checked_neg(),
        _ => None,
    }
}

/// How often the body of a `while` runs, if the condition compares a counter with a constant, from a constant on.
pub fn trips(g: &Graph, node: Node) -> Option<i64> {
    let data = g.node(node);
    let cond = g.region(data.regions[0]);
    let (name, &[a, b]) = made_by(g, cond.yields[0])? else { return None };
    let carried = |v: Value| cond.params[..g.n_carried(node)].iter().position(|&p| p == v);
    // `limit > counter` is `counter < limit`.
    let (name, i, limit) = match (carried(a), carried(b)) {
        (Some(i), None) => (name, i, integer(g, b)?),
        (None, Some(i)) => {
            let turned = match name {
                "lt" => "gt",
                "le" => "ge",
                "gt" => "lt",
                "ge" => "le",
                _ => return None,
            };
            (turned, i, integer(g, a)?)
        }
        _ => return None,
    };
    let (first, step) = (integer(g, data.operands[i])?, step(g, node, i)?);
    // How far it is to the first value that ends the loop.
    let distance = match name {
        "lt" => limit.checked_sub(first)?,
        "le" => limit.checked_sub(first)?.checked_add(1)?,
        "gt" => first.checked_sub(limit)?,
        "ge" => first.checked_sub(limit)?.checked_add(1)?,
        _ => return None,
    };
    let towards = if matches!(name, "lt" | "le") { step } else { step.checked_neg()? };
    if distance <= 0 {
        return Some(0);
    }
    if towards <= 0 {
        return None;
    }
    let trips = distance.checked_add(towards - 1)? / towards;
    // A counter that wraps does not end there.
    let last = first.checked_add(trips.checked_mul(step)?)?;
    let dtype = g.ty(data.operands[i]).element().dtype;
    (dtype == DType::I64 || i32::try_from(last).is_ok()).then_some(trips)
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
