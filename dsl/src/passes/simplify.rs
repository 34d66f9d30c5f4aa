//! Algebraic simplification.

use super::Pass;
use super::made_by;
use crate::ir::{Attrs, GraphBuilder, InsertPoint, Node, Op, Region, Value, ValueDef};
use crate::ops::attributes::{Axes, Cast, Shaped};
use crate::ops::laws::is_additive_identity;
use crate::ops::{OpClass, Prim, prim};
use crate::{Buffer, DType, Graph, HostTensor, Shape, Type};

/// Rewrites combinations of operations into fewer or cheaper operations.
///
/// Before: verified. After: verified. Every value stays bitwise identical for all operands, except
/// for the payload of a `NaN`, which no operation guarantees. No node is duplicated, and none runs
/// that did not run before. A node is rewritten in place and keeps its type, source location and
/// device constraint. An operation that may fail is removed only along with its result.
///
/// | operation | becomes | condition |
/// |---|---|---|
/// | `x - x`, `x ^ x`, comparisons of `x` with `x` | a constant | integers and `bool`; `<` and `>` for all |
/// | `f(x, x)` of an [idempotent](crate::ops::Laws::idempotent) operation, `select(p, x, x)` | `x` | all |
/// | `x & !x`, `x \| !x` | a constant | `bool` |
/// | `x + -y`, `-x + y`, `x - -y` | a difference, a sum | all |
/// | `-x * -y`, `-x / -y` | `x * y`, `x / y` | all; quotients for floats only |
/// | `x * -1`, `-0.0 - x`, `0 - x` | `-x` | all; floats; integers |
/// | `-(x - y)` | `y - x` | integers |
/// | `x / 2^k` | `x * 2^-k` | floats |
/// | `abs(-x)` | `abs(x)` | signed numbers |
/// | `f(f(x))` of an idempotent operation | `f(x)` | all |
/// | `!(x == y)`, `!(x != y)` | the opposite comparison | all |
/// | `!(x < y)` and other orderings | the opposite comparison | integers |
/// | `select(!p, x, y)` | `select(p, y, x)` | all |
/// | `select(p, true, false)`, `select(p, false, true)` | `p`, `!p` | `bool` |
/// | `select(p, select(p, x, y), z)`, `select(p, x, select(p, y, z))` | `select(p, x, z)` | all |
/// | `cast(cast(x))` | `cast(x)`, `x` | the intermediate type represents all values |
/// | `reshape(reshape(x))`, likewise `broadcast_to` and `permute` | a single one, `x` | all |
/// | a view of a broadcast scalar | the scalar, broadcast | known extents |
/// | `broadcast_like`, `reshape_like` to definite extents | `broadcast_to`, `reshape` | all |
/// | a slice of the whole `x` | `x` | known extents |
///
/// Identities with a constant, such as `x * 1`, and involutions, such as `-(-x)`, are left to
/// [`Fold`](super::Fold).
#[derive(Clone, Copy, Debug)]
pub struct Simplify;

/// The largest number of rewrites of one node in one run. Each rewrite makes the node simpler, so
/// few are needed.
const MAX_STEPS: usize = 8;

impl Pass for Simplify {
    fn name(&self) -> &'static str {
        "simplify"
    }

    fn run(&self, graph: &mut Graph) -> bool {
        GraphBuilder::edit(graph, |graph| {
            let mut algebra = Algebra { graph, changed: false };
            algebra.region(algebra.graph.root());
            algebra.changed
        })
    }
}

struct Algebra<'g> {
    graph: &'g mut GraphBuilder,
    changed: bool,
}

/// The replacement that a rule proposes for a node.
enum Simpler {
    /// An existing value.
    Value(Value),
    /// Another operation.
    Op(Prim, Attrs, Vec<Value>),
    /// A scalar, broadcast to the type of the result.
    Fill(HostTensor),
    /// The value times a scalar.
    Times(Value, HostTensor),
}
use Simpler::{Fill, Times};

fn op(name: Prim, operands: &[Value]) -> Option<Simpler> {
    Some(Simpler::Op(name, Attrs::none(), operands.to_vec()))
}

fn truth(value: bool) -> Option<Simpler> {
    Some(Fill(HostTensor::scalar(value)))
}

fn shape(shape: &Shape) -> Attrs {
    Shaped { shape: shape.clone() }.into()
}

/// Returns the negation of a comparison, and whether it also holds for `NaN` operands.
fn opposite(comparison: Prim) -> Option<(Prim, bool)> {
    Some(match comparison {
        prim::EQ => (prim::NE, true),
        prim::NE => (prim::EQ, true),
        prim::LT => (prim::GE, false),
        prim::GE => (prim::LT, false),
        prim::GT => (prim::LE, false),
        prim::LE => (prim::GT, false),
        _ => return None,
    })
}

/// Returns whether a type represents all values of another type.
fn holds(to: DType, from: DType) -> bool {
    use DType::{BF16, Bool, F16, F32, F64, I32, I64, U8, U32};
    match (from, to) {
        (Bool, _) | (U8, I32 | I64 | U32 | F32 | F64) | (I32 | U32, I64 | F64) => true,
        (F16 | BF16, F32 | F64) | (F32, F64) => true,
        _ => from == to,
    }
}

/// Returns whether a conversion through an intermediate type equals the direct conversion.
fn is_detour(from: DType, by: DType, to: DType) -> bool {
    // A conversion from float saturates at the bounds of an integer type, where one from an integer
    // wraps.
    let same = from.is_float() || !by.is_float() || (by, to) == (DType::F64, DType::F32);
    holds(by, from) && (holds(to, from) || same)
}

/// Returns the factor that replaces a divisor: its inverse, if it is a power of two and both are
/// normal numbers.
fn exact_inverse(d: &HostTensor) -> Option<HostTensor> {
    match d.buffer() {
        Buffer::F32(d) => {
            let inverse = 1.0 / d[0];
            (d[0].is_normal() && inverse.is_normal() && d[0].to_bits() << 9 == 0).then(|| HostTensor::scalar(inverse))
        }
        Buffer::F64(d) => {
            let inverse = 1.0 / d[0];
            (d[0].is_normal() && inverse.is_normal() && d[0].to_bits() << 12 == 0).then(|| HostTensor::scalar(inverse))
        }
        _ => None,
    }
}

impl Algebra<'_> {
    fn region(&mut self, region: Region) {
        for node in self.graph.take_nodes(region) {
            self.graph.update_operands(node);
            for inner in self.graph.node(node).regions.clone() {
                self.region(inner);
            }
            if self.node(node) {
                self.graph.append(node);
            }
        }
        self.graph.update_yields(region);
    }

    /// Applies rules to a node. Returns whether the node is kept.
    fn node(&mut self, node: Node) -> bool {
        for _ in 0..MAX_STEPS {
            let Some(simpler) = self.rule(node) else { return true };
            let result = self.graph.node(node).results[0];
            let did = match simpler {
                Simpler::Value(v) if self.graph.ty(v) == self.graph.ty(result) => {
                    self.changed = true;
                    self.graph.replace_named(result, v);
                    return false;
                }
                Simpler::Value(_) => false,
                Simpler::Op(name, attrs, operands) => self.rewrite(node, name, attrs, operands),
                Fill(scalar) => self.fill(node, scalar),
                Times(v, scalar) => self.times(node, v, scalar),
            };
            if !did {
                return true;
            }
            self.changed = true;
        }
        true
    }

    /// Changes the operation of a node in place, unless that would change the type of its result.
    fn rewrite(&mut self, node: Node, name: Prim, attrs: Attrs, operands: Vec<Value>) -> bool {
        let data = self.graph.node_mut(node);
        let old_op = std::mem::replace(&mut data.op, Op::Prim(name, attrs));
        let old_operands = std::mem::replace(&mut data.operands, operands);
        let result = data.results[0];
        let fits =
            crate::ir::result_types(self.graph, node).is_ok_and(|types| types[..] == [self.graph.ty(result).clone()]);
        if !fits {
            let data = self.graph.node_mut(node);
            data.op = old_op;
            data.operands = old_operands;
        }
        fits
    }

    /// Turns a node into a broadcast scalar.
    fn fill(&mut self, node: Node, scalar: HostTensor) -> bool {
        let data = self.graph.node(node);
        let Type::Tensor(ty) = self.graph.ty(data.results[0]).clone() else { return false };
        if ty.dtype != scalar.dtype() || !ty.shape.is_definite() {
            return false;
        }
        if ty.shape.rank() == 0 {
            let data = self.graph.node_mut(node);
            data.op = Op::Constant(scalar);
            data.operands.clear();
            return true;
        }
        let scalar = self.before(node).constant(scalar);
        self.rewrite(node, prim::BROADCAST_TO, shape(&ty.shape), vec![scalar])
    }

    /// Continues before a node, which was taken from its region, with its origin.
    fn before(&mut self, node: Node) -> &mut GraphBuilder {
        let data = self.graph.node(node);
        let (region, origin) = (data.region, data.origin());
        self.graph.at(InsertPoint::End(region), origin)
    }

    /// Turns a node into the product of a value and a scalar.
    fn times(&mut self, node: Node, v: Value, scalar: HostTensor) -> bool {
        let factor = self.before(node).fill_like(scalar, v);
        self.rewrite(node, prim::MUL, Attrs::none(), vec![v, factor])
    }

    fn dtype(&self, v: Value) -> DType {
        self.graph.ty(v).element().dtype
    }

    fn is_float(&self, v: Value) -> bool {
        self.dtype(v).is_float()
    }

    /// Returns whether all extents are known, so that no check is left for run time.
    fn is_known(&self, v: Value) -> bool {
        self.graph.ty(v).as_tensor().is_some_and(|ty| ty.shape.known().is_some())
    }

    fn rank(&self, v: Value) -> usize {
        self.graph.ty(v).element().shape.rank()
    }

    /// Returns the scalar that every element of a value equals, if its definition shows it.
    fn number(&self, v: Value) -> Option<HostTensor> {
        let mut v = v;
        // This pass merges chains of views, so chains are short.
        for _ in 0..2 * MAX_STEPS {
            v = match self.graph.value(v).def {
                ValueDef::Param(..) => self.graph.captured_by(v)?,
                ValueDef::Result(node, _) => match &self.graph.node(node).op {
                    Op::Constant(t) => {
                        return (t.len() <= super::fold::SMALL).then(|| super::fold::uniform(t)).flatten();
                    }
                    Op::Prim(def, _) if matches!(def.class, OpClass::View(_)) => self.graph.node(node).operands[0],
                    _ => return None,
                },
            };
        }
        None
    }

    fn is_number(&self, v: Value, number: f64) -> bool {
        self.number(v).is_some_and(|t| t.to_f64() == Some(number))
    }

    fn is_truth(&self, v: Value, truth: bool) -> bool {
        self.number(v).is_some_and(|t| t.as_slice::<bool>() == Some(&[truth]))
    }

    /// Returns the first operand of the given operation, if that operation produces the value.
    fn made_of(&self, name: Prim, v: Value) -> Option<Value> {
        made_by(self.graph, v).filter(|(by, _)| *by == name).map(|(_, operands)| operands[0])
    }

    /// Returns the replacement of a node, if a rule matches.
    fn rule(&self, node: Node) -> Option<Simpler> {
        let data = self.graph.node(node);
        let Op::Prim(def, attrs) = &data.op else { return None };
        let is_known = data.operands.iter().chain(&data.results).all(|&v| self.is_known(v));
        match data.operands[..] {
            [x] => self.unary(*def, x).or_else(|| self.view(node, *def, attrs).filter(|_| is_known)),
            [x, y] if x == y => self.of_equals(*def, x),
            [x, y] => {
                let of_signs = || self.of_signs(*def, x, y);
                let of_numbers = || self.of_numbers(*def, x, y).filter(|_| is_known);
                of_signs().or_else(of_numbers).or_else(|| self.view(node, *def, attrs).filter(|_| is_known))
            }
            [p, x, y] if def == prim::SELECT => self.select(p, x, y, is_known),
            _ => None,
        }
    }

    fn unary(&self, name: Prim, x: Value) -> Option<Simpler> {
        let (by, inner) = made_by(self.graph, x)?;
        match (name, by) {
            (prim::NEG, prim::SUB) if !self.is_float(x) => op(prim::SUB, &[inner[1], inner[0]]),
            (prim::ABS, prim::NEG) if !matches!(self.dtype(x), DType::U8 | DType::U32) => op(prim::ABS, &inner[..1]),
            (name, by) if name == by && name.laws.idempotent => Some(Simpler::Value(x)),
            (prim::NOT, by) => {
                let (opposite, holds_for_nan) = opposite(by)?;
                if holds_for_nan || !self.is_float(inner[0]) { op(opposite, inner) } else { None }
            }
            _ => None,
        }
    }

    fn of_equals(&self, name: Prim, x: Value) -> Option<Simpler> {
        let is_float = self.is_float(x);
        match name {
            prim::SUB | prim::XOR if !is_float => Some(Fill(HostTensor::zeros(self.dtype(x), []))),
            prim::EQ | prim::LE | prim::GE if !is_float => truth(true),
            prim::NE if !is_float => truth(false),
            prim::LT | prim::GT => truth(false),
            name if name.laws.idempotent => Some(Simpler::Value(x)),
            prim::MUL | prim::DIV if name == prim::MUL || is_float => {
                let x = self.made_of(prim::NEG, x)?;
                op(if name == prim::MUL { prim::MUL } else { prim::DIV }, &[x, x])
            }
            _ => None,
        }
    }

    fn of_signs(&self, name: Prim, x: Value, y: Value) -> Option<Simpler> {
        let negated = |v: Value| self.made_of(prim::NEG, v);
        match (name, negated(x), negated(y)) {
            (prim::ADD, _, Some(y)) => op(prim::SUB, &[x, y]),
            (prim::ADD, Some(x), None) => op(prim::SUB, &[y, x]),
            (prim::SUB, _, Some(y)) => op(prim::ADD, &[x, y]),
            (prim::MUL, Some(x), Some(y)) => op(prim::MUL, &[x, y]),
            (prim::DIV, Some(x), Some(y)) if self.is_float(x) => op(prim::DIV, &[x, y]),
            (prim::AND | prim::OR, ..)
                if self.made_of(prim::NOT, x) == Some(y) || self.made_of(prim::NOT, y) == Some(x) =>
            {
                truth(name == prim::OR)
            }
            _ => None,
        }
    }

    fn of_numbers(&self, name: Prim, x: Value, y: Value) -> Option<Simpler> {
        match name {
            prim::SUB if self.number(x).is_some_and(|t| is_additive_identity(&t)) => op(prim::NEG, &[y]),
            prim::MUL if self.is_number(y, -1.0) => op(prim::NEG, &[x]),
            prim::MUL if self.is_number(x, -1.0) => op(prim::NEG, &[y]),
            prim::DIV => Some(Times(x, exact_inverse(&self.number(y)?)?)),
            _ => None,
        }
    }

    fn select(&self, p: Value, x: Value, y: Value, is_known: bool) -> Option<Simpler> {
        if let Some(p) = self.made_of(prim::NOT, p) {
            return op(prim::SELECT, &[p, y, x]);
        }
        if !is_known {
            return None;
        }
        let chosen = |v: Value| made_by(self.graph, v).filter(|(by, inner)| *by == prim::SELECT && inner[0] == p);
        if x == y {
            Some(Simpler::Value(x))
        } else if self.is_truth(x, true) && self.is_truth(y, false) {
            Some(Simpler::Value(p))
        } else if self.is_truth(x, false) && self.is_truth(y, true) {
            op(prim::NOT, &[p])
        } else if let Some((_, inner)) = chosen(x) {
            op(prim::SELECT, &[p, inner[1], y])
        } else if let Some((_, inner)) = chosen(y) {
            op(prim::SELECT, &[p, x, inner[2]])
        } else {
            None
        }
    }

    /// Simplifies chains of views and of conversions.
    fn view(&self, node: Node, name: Prim, attrs: &Attrs) -> Option<Simpler> {
        let data = self.graph.node(node);
        let (x, result) = (data.operands[0], data.results[0]);
        let to = &self.graph.ty(result).element().shape;
        let is_view = matches!(name, prim::RESHAPE | prim::PERMUTE | prim::FLIP | prim::SLICE | prim::BROADCAST_TO);
        match name {
            prim::BROADCAST_LIKE => return Some(Simpler::Op(prim::BROADCAST_TO, shape(to), vec![x])),
            prim::RESHAPE_LIKE => return Some(Simpler::Op(prim::RESHAPE, shape(to), vec![x])),
            prim::SLICE if self.graph.ty(x) == self.graph.ty(result) => return Some(Simpler::Value(x)),
            _ => {}
        }
        let inner_node = self.graph.node(self.graph.producer(x)?);
        let Op::Prim(inner, inner_attrs) = &inner_node.op else { return None };
        let &[y] = &inner_node.operands[..] else { return None };
        if !self.is_known(y) {
            return None;
        }
        match (name, *inner) {
            (prim::CAST, prim::CAST) if is_detour(self.dtype(y), self.dtype(x), self.dtype(result)) => {
                let to = self.dtype(result);
                let direct = || Simpler::Op(prim::CAST, Cast { dtype: to }.into(), vec![y]);
                Some(if self.dtype(y) == to { Simpler::Value(y) } else { direct() })
            }
            (prim::RESHAPE, prim::RESHAPE) if self.graph.ty(y) == self.graph.ty(result) => Some(Simpler::Value(y)),
            (prim::RESHAPE, prim::RESHAPE) => Some(Simpler::Op(prim::RESHAPE, shape(to), vec![y])),
            (prim::BROADCAST_TO, prim::BROADCAST_TO) => Some(Simpler::Op(prim::BROADCAST_TO, shape(to), vec![y])),
            (prim::BROADCAST_TO, prim::RESHAPE) if self.rank(y) == 0 => {
                Some(Simpler::Op(prim::BROADCAST_TO, shape(to), vec![y]))
            }
            (prim::PERMUTE, prim::PERMUTE) => {
                let inner = Axes::of(inner_attrs).axes;
                let axes: Vec<usize> = Axes::of(attrs).axes.into_iter().map(|i| inner[i]).collect();
                let is_identity = axes.iter().enumerate().all(|(i, &a)| i == a);
                let permuted = || Simpler::Op(prim::PERMUTE, Axes { axes }.into(), vec![y]);
                Some(if is_identity { Simpler::Value(y) } else { permuted() })
            }
            (prim::FLIP, prim::FLIP) if attrs == inner_attrs => Some(Simpler::Value(y)),
            (_, prim::BROADCAST_TO) if is_view && self.rank(y) == 0 && to.rank() == 0 => Some(Simpler::Value(y)),
            (_, prim::BROADCAST_TO) if is_view && self.rank(y) == 0 => {
                Some(Simpler::Op(prim::BROADCAST_TO, shape(to), vec![y]))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conversions through a type that count as detours change nothing, for values at all bounds.
    #[test]
    fn conversion_by_way_of_a_type_is_left_out_where_it_makes_no_difference() {
        let cast = |t: &HostTensor, to: DType| {
            let def = crate::ops::by_name("cast").expect("there is an operation `cast`");
            let attrs = Cast { dtype: to }.into();
            let ty = crate::TensorType { dtype: to, shape: t.ty().shape };
            (def.eval)(&crate::ops::EvalCx { operands: &[t], attrs: &attrs, ty: &ty }).expect("it is a conversion")
        };
        let numbers = [
            0.0,
            -0.0,
            0.3,
            -0.7,
            1.0,
            -1.0,
            127.0,
            128.0,
            255.0,
            256.0,
            -129.0,
            16777217.0,
            2147483647.0,
            -2147483648.0,
            4294967295.0,
            4294967296.0,
            9.3e18,
            -9.3e18,
            1e-310,
            1e300,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ];
        let numbers = HostTensor::new([numbers.len()], numbers.to_vec());
        let mut detours = 0;
        for from in DType::PLAIN {
            let x = cast(&numbers, from);
            for by in DType::PLAIN {
                for to in DType::PLAIN {
                    if is_detour(from, by, to) {
                        detours += 1;
                        let (direct, twice) = (cast(&x, to), cast(&cast(&x, by), to));
                        assert_eq!(format!("{direct:?}"), format!("{twice:?}"), "{from:?} by {by:?} to {to:?}");
                    }
                }
            }
        }
        assert!(detours > 80, "{detours}");
        assert!(!is_detour(DType::I32, DType::F64, DType::U8), "saturates where it wraps");
    }

    #[test]
    fn only_powers_of_two_have_an_exact_inverse() {
        let inverse = |x: f32| exact_inverse(&HostTensor::scalar(x)).map(|t| t.data::<f32>()[0]);
        assert_eq!(inverse(8.0), Some(0.125));
        assert_eq!(inverse(-0.5), Some(-2.0));
        for x in [0.0, 3.0, f32::INFINITY, f32::NAN, 1e-40, 2f32.powi(127)] {
            assert_eq!(inverse(x), None, "{x}");
        }
    }
}
