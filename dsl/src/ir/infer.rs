//! Inference of result types, used by the verifier, the parser and passes.

use super::{Attr, AttrKind, Attrs, CallKind, Graph, Node, Op, Region, StackOp, Value};
use crate::ops::{Arity, InferCx, OpError, Prim};
use crate::{DType, Shape, TensorType, Type, memory};

/// Maximum elements of a tensor of known extents, so that sizes and their sums cannot overflow.
pub(crate) const MAX_ELEMENTS: usize = 1 << 40;

/// Maximum operands whose types an error shows. There may be thousands of them.
const MAX_SHOWN: usize = 16;

/// An error of a node, and the invariant of [`verify`](fn@super::verify) that it violates.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) invariant: u8,
    pub(crate) error: OpError,
}

/// Creates an error that violates an invariant.
pub(crate) fn broken(invariant: u8, message: impl Into<String>) -> Broken {
    Broken { invariant, error: OpError::new(message) }
}

/// Formats a count with a noun: `1 value`, `2 values`.
pub(crate) fn count(n: usize, of: &str) -> String {
    format!("{n} {of}{}", if n == 1 { "" } else { "s" })
}

/// Returns whether the product of the known extents of a shape is within the limit.
pub(crate) fn is_countable(shape: &Shape) -> bool {
    let known = shape.dims().iter().filter_map(crate::Dim::known).filter(|&n| n > 0);
    known.map(|n| n as u128).try_fold(1u128, |p, n| p.checked_mul(n)).is_some_and(|n| n <= MAX_ELEMENTS as u128)
}

/// Checks attributes against those that the operation declares.
pub(crate) fn check_attrs(def: Prim, attrs: &Attrs) -> Result<(), Broken> {
    let (names, expected) = (|| attrs.iter().map(|(name, _)| name), || def.attrs.iter().map(|(name, _)| *name));
    if !names().eq(expected()) {
        let list = |names: Vec<&str>| {
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        let (names, expected) = (list(names().collect()), list(expected().collect()));
        return Err(broken(4, format!("the attributes are {names}, expected {expected}")));
    }
    for ((name, attr), (_, kind)) in attrs.iter().zip(def.attrs) {
        if !kind.admits(attr) {
            return Err(broken(4, format!("the attribute `{name}` is {attr}, expected {}", kind_name(*kind))));
        }
        check_size(name, attr)?;
    }
    Ok(())
}

fn check_size(name: &str, attr: &Attr) -> Result<(), Broken> {
    let fits = |i: &i64| i.unsigned_abs() <= MAX_ELEMENTS as u64;
    let ok = match attr {
        Attr::Int(i) => fits(i),
        Attr::Ints(list) => list.iter().all(fits),
        Attr::Shape(shape) => is_countable(shape),
        Attr::Float(_) | Attr::Bool(_) | Attr::DType(_) => true,
    };
    if ok { Ok(()) } else { Err(broken(4, format!("the attribute `{name}` is too large"))) }
}

/// Describes the type of an attribute for messages.
pub(crate) fn kind_name(kind: AttrKind) -> &'static str {
    match kind {
        AttrKind::Int => "an integer",
        AttrKind::Ints => "a list of integers",
        AttrKind::Natural => "an integer that is not negative",
        AttrKind::Naturals => "a list of integers that are not negative",
        AttrKind::Float => "a float",
        AttrKind::Bool => "true or false",
        AttrKind::DType => "an element type",
        AttrKind::Shape => "a shape",
    }
}

fn arity(op: &Op) -> Arity {
    match op {
        Op::Prim(def, _) => def.arity,
        Op::Constant(_) | Op::Read(_) | Op::Stack(StackOp::New(_) | StackOp::Zeros(_)) => Arity::Exactly(0),
        Op::Assign(_) | Op::Stack(StackOp::Pop | StackOp::ZerosLike) => Arity::Exactly(1),
        Op::Stack(StackOp::Push | StackOp::Add) => Arity::Exactly(2),
        Op::List(op) => Arity::Exactly(op.arity()),
        Op::Queue(_, op) => op.arity(),
        Op::File(op) => op.arity(),
        Op::Print { template, .. } => Arity::Exactly(template.n_values()),
        Op::Assert { message } => Arity::Exactly(1 + message.n_values()),
        Op::Cond => Arity::AtLeast(1),
        Op::Call(CallKind::CustomGradient { args }) => Arity::AtLeast(*args),
        Op::While { .. } | Op::Call(_) => Arity::AtLeast(0),
    }
}

/// Checks the number of operands.
pub(crate) fn check_arity(op: &Op, given: usize) -> Result<(), Broken> {
    let operands = |n| count(n, "operand");
    match arity(op) {
        Arity::Exactly(n) if n != given => Err(broken(4, format!("takes {}, but got {given}", operands(n)))),
        Arity::AtLeast(n) if n > given => Err(broken(4, format!("takes {} or more, but got {given}", operands(n)))),
        _ => Ok(()),
    }
}

/// Infers the types of a node's results from its operands and regions, as precisely as possible.
pub(crate) fn result_types(graph: &Graph, node: Node) -> Result<Vec<Type>, Broken> {
    let data = graph.node(node);
    if let Op::Prim(def, attrs) = &data.op {
        check_attrs(*def, attrs)?;
    }
    infer(graph, &data.op, &data.operands, &data.regions)
}

/// Infers the result types of a node that may not exist yet, whose attributes are valid.
pub(crate) fn infer(graph: &Graph, op: &Op, operands: &[Value], regions: &[Region]) -> Result<Vec<Type>, Broken> {
    check_arity(op, operands.len())?;
    let operands: Vec<&Type> = operands.iter().map(|&v| graph.ty(v)).collect();
    match op {
        Op::Prim(def, attrs) => {
            if let Some(i) = operands.iter().position(|t| t.as_tensor().is_none()) {
                let invariant = if matches!(operands[i], Type::Stack(_)) { 10 } else { 12 };
                return Err(broken(invariant, format!("operand {} is {}", i + 1, operands[i].kind())));
            }
            let ty = (def.infer)(&InferCx { operands: &operands, attrs }).map_err(|error| {
                let mut types: Vec<String> = operands.iter().take(MAX_SHOWN).map(|t| t.to_string()).collect();
                if operands.len() > MAX_SHOWN {
                    types.push("...".to_owned());
                }
                let error = if error.label.is_empty() { error.label(types.join(", ")) } else { error };
                Broken { invariant: 3, error }
            })?;
            check_countable(&ty)?;
            Ok(vec![ty])
        }
        Op::Constant(tensor) => Ok(vec![tensor.ty().into()]),
        Op::Read(var) => match graph.vars.get(var.index()) {
            Some(var) => Ok(vec![var.ty.clone().into()]),
            None => Err(broken(8, "the variable is not declared")),
        },
        Op::Assign(_) | Op::Assert { .. } | Op::Print { .. } => Ok(vec![]),
        Op::Stack(op) => stack_types(op, &operands),
        Op::List(op) => {
            let types = op.result_types(&operands)?;
            types.iter().try_for_each(check_countable)?;
            Ok(types)
        }
        Op::Queue(queue, op) => {
            let queue = graph.queues.get(queue.index()).ok_or_else(|| broken(14, "the queue is not declared"))?;
            let types = op.result_types(queue, &operands)?;
            types.iter().try_for_each(check_countable)?;
            Ok(types)
        }
        Op::File(op) => {
            let types = op.result_types(&operands)?;
            types.iter().try_for_each(check_countable)?;
            Ok(types)
        }
        Op::Cond => cond_types(graph, regions),
        Op::While { .. } => {
            let body = regions.get(1).map(|&r| graph.region(r));
            let body = body.ok_or_else(|| broken(5, "a loop must have two regions"))?;
            let carried = body.params.get(..body.yields.len());
            let carried = carried.ok_or_else(|| broken(5, "the body yields more values than it has parameters"))?;
            Ok(carried.iter().map(|&p| graph.ty(p).clone()).collect())
        }
        Op::Call(_) => {
            let body = regions.first().ok_or_else(|| broken(13, "a call must have a region"))?;
            Ok(graph.region(*body).yields.iter().map(|&y| graph.ty(y).clone()).collect())
        }
    }
}

/// Checks that the number of elements of a result is representable.
fn check_countable(ty: &Type) -> Result<(), Broken> {
    if is_countable(&ty.element().shape) {
        return Ok(());
    }
    let extents = ty.element().shape.dims().iter().filter_map(crate::Dim::known);
    let bytes = extents.fold(ty.element().dtype.size() as u128, |bytes, n| bytes.saturating_mul(n as u128));
    let subject = if matches!(ty, Type::Tensor(_)) { "the result has" } else { "an element has" };
    let message = format!("{subject} at least {bytes} bytes, more than any memory can hold");
    Err(Broken { invariant: 3, error: OpError::new(message).label(ty.to_string()).help(memory::SMALLER) })
}

fn stack_types(op: &StackOp, operands: &[&Type]) -> Result<Vec<Type>, Broken> {
    let stack = |i: usize| match operands[i] {
        Type::Stack(element) => Ok(element),
        other => Err(broken(10, format!("operand {} is {other}, not a stack", i + 1))),
    };
    match op {
        StackOp::New(element) => Ok(vec![Type::Stack(element.clone())]),
        StackOp::Zeros(element) if !element.shape.is_definite() => {
            Err(broken(10, format!("a stack of zeros of {element}: the extents must be known")))
        }
        StackOp::Zeros(element) if !element.dtype.is_plain() => {
            Err(broken(10, format!("a stack of zeros of {element}: strings have no zero")))
        }
        StackOp::Zeros(element) => Ok(vec![Type::Stack(element.clone())]),
        StackOp::Push => {
            let element = stack(0)?;
            match operands[1] {
                Type::Tensor(t) if t.fits(element) => Ok(vec![operands[0].clone()]),
                other => Err(broken(10, format!("{other} cannot be pushed to a stack of {element}"))),
            }
        }
        StackOp::Pop => {
            let element = stack(0)?;
            Ok(vec![operands[0].clone(), Type::Tensor(element.clone())])
        }
        StackOp::ZerosLike => stack(0).map(|_| vec![operands[0].clone()]),
        StackOp::Add => {
            let (a, b) = (stack(0)?, stack(1)?);
            if !a.dtype.is_numeric() {
                return Err(broken(10, format!("{} cannot be added", a.dtype)));
            }
            match a.join(b) {
                Some(element) if a.compatible(b) => Ok(vec![Type::Stack(element)]),
                _ => Err(broken(10, format!("a stack of {a} plus a stack of {b}"))),
            }
        }
    }
}

fn cond_types(graph: &Graph, regions: &[Region]) -> Result<Vec<Type>, Broken> {
    let &[then, otherwise] = regions else {
        return Err(broken(6, "a cond must have two regions"));
    };
    let (a, b) = (&graph.region(then).yields, &graph.region(otherwise).yields);
    if a.len() != b.len() {
        return Err(broken(6, format!("one branch yields {}, but the other {}", count(a.len(), "value"), b.len())));
    }
    let join = |(i, (&x, &y)): (usize, (&Value, &Value))| {
        let (x, y) = (graph.ty(x), graph.ty(y));
        let differ = || broken(6, format!("value {} is {x} in one branch, but {y} in the other", i + 1));
        either(x, y).ok_or_else(differ)
    };
    a.iter().zip(b).enumerate().map(join).collect()
}

/// Returns the type of a value that has one of two types, if there is one.
///
/// Either branch may run, so an extent is known only if both types have the same. Those of stack
/// elements may not differ.
pub(crate) fn either(x: &Type, y: &Type) -> Option<Type> {
    let stacks_differ = matches!(x, Type::Stack(_)) && !x.compatible(y);
    x.join(y).filter(|_| !stacks_differ)
}

/// Returns whether a type is `bool[]`.
pub(crate) fn is_predicate(ty: &Type) -> bool {
    matches!(ty, Type::Tensor(TensorType { dtype: DType::Bool, shape }) if shape.rank() == 0)
}
