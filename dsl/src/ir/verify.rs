//! The verifier of graph invariants.
//!
//! Once [`verify`] has returned `Ok`, code that works on the graph may rely on these invariants and
//! panic if one is violated, since that would be a bug in this crate. Passes preserve them. Each
//! message begins with the number of the violated invariant.
//!
//! - **V1** Every operand of a node, and every value that a region yields, is a parameter of the
//!   same region or a result of an earlier node of it.
//! - **V2** The tables are consistent: the definition recorded for a value, the region recorded for
//!   a node and the owner recorded for a region match where they occur. Regions form a tree below
//!   the root.
//! - **V3** A node has the results of its operation. Each result has the type inferred from the
//!   operands, or a less precise type (with unknown extents).
//! - **V4** The number of operands (for a print, the placeholders of its template) and the names,
//!   order and types of the attributes are those of the operation.
//! - **V5** The operands of a `while` match the parameters of both regions, in number and type.
//!   `cond` yields one `bool[]`. `body` yields a value for each loop variable; the first parameters
//!   and the results have the same types.
//! - **V6** The first operand of a `cond` is a `bool[]`. The others match the parameters of both
//!   regions, in number and type. Both regions yield a value for each result. Nodes not mentioned
//!   in V5, V6 and V13 have no regions.
//! - **V7** A node occurs at most once, in one region. A value is defined once.
//! - **V8** Variables have distinct names and types of known extents. Values that are read or
//!   assigned have the type of the variable.
//! - **V9** Variables are read and assigned only in the root region, so that a failed step leaves
//!   all of them unchanged. Each is assigned at most once and not read after that. The predicate of
//!   an assertion is a `bool[]`.
//! - **V10** Values that are pushed on, popped from or added to a stack have its element type.
//!   Other operations and prints take tensors.
//! - **V11** Inputs and outputs of the graph are tensors.
//! - **V12** Operations on lists take lists where their definition requires them, `i32` indices,
//!   and elements compatible with the element type of the list. An extent in the attributes of such
//!   an operation matches its result type.
//! - **V13** The operands of a call match the parameters of its regions, in number and type, and
//!   its first region yields its results. A `custom_gradient` has a second region with additional
//!   parameters: the results, and a cotangent for each differentiable result. The second region
//!   yields a cotangent of the same type for each differentiable argument. Other calls have one
//!   region.
//! - **V14** Queues have distinct names, and elements of one tensor or more, whose extents are
//!   numbers or unknown. Elements that are added are compatible with the types of the queue.
//! - **V15** The first operand of an operation on a file, its path, is a `bytes[]`. The others are
//!   tensors, and their names are distinct. One tensor or more are saved.
//!
//! Here, a value has a type if its own type is equal to it or [fits](crate::Type::fits) it, as a
//! more precise one.

use super::infer::{broken, check_arity, count, is_countable, is_predicate, result_types};
use super::{Broken, CallKind, Graph, ListOp, Node, Op, Region, Value, ValueDef};
use crate::{Diagnostic, Dim, Loc, TensorType, Type};
use rustc_hash::FxHashSet;
use std::collections::HashSet;

/// Checks the invariants of the [module](mod@self).
///
/// # Errors
/// Returns all violations, ordered by source location.
pub fn verify(graph: &Graph) -> Result<(), Vec<Diagnostic>> {
    violations(graph, usize::MAX)
}

/// Checks the invariants of the [module](mod@self) until one is violated.
///
/// All violations of a graph may take much more memory than the graph, since each message shows
/// types.
#[cfg(feature = "wire")]
pub(super) fn verify_first(graph: &Graph) -> Result<(), Diagnostic> {
    violations(graph, 1).map_err(|mut errors| errors.swap_remove(0))
}

fn violations(graph: &Graph, max: usize) -> Result<(), Vec<Diagnostic>> {
    let mut v = Verifier { graph, errors: Vec::new(), max };
    v.tables();
    // The remaining checks follow ids, which are valid from here on.
    if v.errors.is_empty() {
        v.interface();
        v.region(graph.root(), &mut vec![false; graph.n_values()]);
        if !v.is_done() {
            v.effects();
        }
    }
    if v.errors.is_empty() {
        return Ok(());
    }
    v.errors.sort_by_key(|e| e.loc().map(|l| (l.line, l.column)));
    Err(v.errors)
}

struct Verifier<'a> {
    graph: &'a Graph,
    errors: Vec<Diagnostic>,
    /// The number of errors after which the verifier stops, soon.
    max: usize,
}

impl<'a> Verifier<'a> {
    fn is_done(&self) -> bool {
        self.errors.len() >= self.max
    }

    fn error(&mut self, invariant: u8, loc: Loc, message: impl std::fmt::Display) {
        self.errors.push(Diagnostic::new(format!("V{invariant}: {message}")).at(loc, ""));
    }

    fn broken(&mut self, node: Node, broken: Broken) {
        let data = self.graph.node(node);
        let mut error = broken.error.at(data.op.name(), data.loc);
        error.message = format!("V{}: {}", broken.invariant, error.message);
        self.errors.push(error);
    }

    /// Describes a value for a message.
    fn describe(&self, value: Value) -> String {
        match self.graph.value(value).name {
            Some(name) => format!("`%{name}`"),
            None => format!("a value of type {}", self.graph.ty(value)),
        }
    }

    // V2 and V7.

    fn tables(&mut self) {
        let g = self.graph;
        let (mut nodes, mut regions) = (vec![false; g.n_nodes()], vec![false; g.n_regions()]);
        let mut defined = vec![false; g.n_values()];
        if g.region(g.root()).owner.is_some() {
            self.error(2, Loc::UNKNOWN, "the root has an owner");
        }
        let mut todo = vec![g.root()];
        regions[g.root().index()] = true;
        while let Some(region) = todo.pop() {
            let loc = g.region(region).owner.map_or(Loc::UNKNOWN, |n| g.node(n).loc);
            for (i, &p) in g.region(region).params.iter().enumerate() {
                self.definition(p, ValueDef::Param(region, i as u32), loc, &mut defined);
            }
            self.ids(&g.region(region).yields, loc);
            for &node in &g.region(region).nodes {
                if self.is_done() {
                    return;
                }
                let Some(seen) = nodes.get_mut(node.index()) else {
                    self.error(2, loc, format_args!("{region} holds {node}, which does not exist"));
                    continue;
                };
                let data = g.node(node);
                if std::mem::replace(seen, true) {
                    self.error(7, data.loc, format_args!("{}: the node appears twice in the graph", data.op.name()));
                    continue;
                }
                if data.region != region {
                    self.error(2, data.loc, format_args!("{node} is in {region}, but records {}", data.region));
                }
                self.ids(&data.operands, data.loc);
                for (i, &r) in data.results.iter().enumerate() {
                    self.definition(r, ValueDef::Result(node, i as u32), data.loc, &mut defined);
                }
                for &inner in &data.regions {
                    let Some(seen) = regions.get_mut(inner.index()) else {
                        self.error(2, data.loc, format_args!("{node} owns {inner}, which does not exist"));
                        continue;
                    };
                    if std::mem::replace(seen, true) {
                        self.error(7, data.loc, format_args!("{inner} has two owners, or contains itself"));
                        continue;
                    }
                    if g.region(inner).owner != Some(node) {
                        self.error(2, data.loc, format_args!("{node} owns {inner}, which records another owner"));
                    }
                    todo.push(inner);
                }
            }
        }
    }

    fn definition(&mut self, value: Value, def: ValueDef, loc: Loc, defined: &mut [bool]) {
        let Some(seen) = defined.get_mut(value.index()) else {
            self.error(2, loc, format_args!("{value} does not exist"));
            return;
        };
        if std::mem::replace(seen, true) {
            self.error(7, loc, format_args!("{value} is defined twice"));
        } else if self.graph.value(value).def != def {
            let says = self.graph.value(value).def;
            self.error(2, loc, format_args!("{value} is {def:?}, but records {says:?}"));
        }
    }

    fn ids(&mut self, values: &[Value], loc: Loc) {
        for v in values {
            if v.index() >= self.graph.n_values() {
                self.error(2, loc, format_args!("{v} does not exist"));
            }
        }
    }

    // V8, V11 and V14: variables, queues, inputs and outputs.

    fn interface(&mut self) {
        let g = self.graph;
        // Names may come from anywhere, also from someone who knows the faster hasher.
        let mut names = HashSet::new();
        for var in &g.vars {
            if self.is_done() {
                return;
            }
            if !names.insert(&var.name) {
                self.error(8, Loc::UNKNOWN, format_args!("the variable `{}` is declared twice", var.name));
            }
            if var.ty.shape.known().is_none() || !is_countable(&var.ty.shape) {
                let message = format_args!("the variable `{}` is {}: its extents must be known", var.name, var.ty);
                self.error(8, Loc::UNKNOWN, message);
            }
        }
        let mut names = HashSet::new();
        for queue in &g.queues {
            if self.is_done() {
                return;
            }
            if !names.insert(&queue.name) {
                self.error(14, Loc::UNKNOWN, format_args!("the queue `{}` is declared twice", queue.name));
            }
            if queue.element.is_empty() {
                self.error(14, Loc::UNKNOWN, format_args!("an element of the queue `{}` has no tensor", queue.name));
            }
            let is_queued = |ty: &TensorType| {
                let mut dims = ty.shape.dims().iter();
                !dims.any(|d| matches!(d, Dim::Named(_))) && is_countable(&ty.shape)
            };
            if let Some(ty) = queue.element.iter().find(|ty| !is_queued(ty)) {
                let message = format_args!("the queue `{}` has tensors of type {ty}", queue.name);
                self.error(14, Loc::UNKNOWN, message);
            }
        }
        for (what, values) in [("input", g.inputs()), ("output", g.outputs())] {
            for (i, &v) in values.iter().enumerate() {
                if !self.is_done() && g.ty(v).as_tensor().is_none() {
                    self.error(11, g.loc(v), format_args!("{what} {i} is {}, not a tensor", g.ty(v)));
                }
            }
        }
    }

    // V1, V3 to V10 and V13, node by node.

    fn region(&mut self, region: Region, defined: &mut Vec<bool>) {
        let g = self.graph;
        let data = g.region(region);
        for &p in &data.params {
            defined[p.index()] = true;
        }
        for &node in &data.nodes {
            let mut closed = true;
            for &v in &g.node(node).operands {
                if self.is_done() {
                    return;
                }
                closed &= self.is_defined(v, region, g.node(node).loc, g.node(node).op.name(), defined);
            }
            for &inner in &g.node(node).regions {
                self.region(inner, defined);
            }
            if self.is_done() {
                return;
            }
            if closed {
                self.node(node);
            }
            for &r in &g.node(node).results {
                defined[r.index()] = true;
            }
        }
        let loc = data.owner.map(|n| g.node(n).loc).unwrap_or(Loc::UNKNOWN);
        let end = if data.owner.is_some() { "yield" } else { "return" };
        for &v in &data.yields {
            if self.is_done() {
                return;
            }
            self.is_defined(v, region, loc, end, defined);
        }
    }

    fn is_defined(&mut self, value: Value, region: Region, loc: Loc, user: &str, defined: &[bool]) -> bool {
        let g = self.graph;
        let place = if g.region_of(value) != region {
            "in another region: a region can use an outer value only as an operand of its owner and a parameter"
        } else if !defined[value.index()] {
            "later"
        } else {
            return true;
        };
        let message = format!("V1: {user}: {} is defined {place}", self.describe(value));
        // A label without a location would be a note.
        let mut error = Diagnostic::new(message).at(loc, if loc.is_known() { "used here" } else { "" });
        if g.loc(value).is_known() {
            error = error.at(g.loc(value), "defined here");
        }
        self.errors.push(error);
        false
    }

    fn node(&mut self, node: Node) {
        let checked = match self.graph.node(node).op {
            Op::Cond => self.cond(node),
            Op::While { .. } => self.while_loop(node),
            Op::Call(kind) => self.call(node, kind),
            _ => self.simple(node),
        };
        match checked.and_then(|()| result_types(self.graph, node)) {
            Ok(types) => self.results(node, &types),
            Err(broken) => self.broken(node, broken),
        }
    }

    /// V3: compares the results with the types inferred from the operands.
    fn results(&mut self, node: Node, types: &[Type]) {
        let g = self.graph;
        let data = g.node(node);
        // Parameters determine the types of loop variables, and yields those of a branch.
        let invariant = match data.op {
            Op::Cond => 6,
            Op::While { .. } => 5,
            Op::Call(_) => 13,
            Op::Read(_) => 8,
            Op::Stack(_) => 10,
            Op::List(_) => 12,
            _ => 3,
        };
        if types.len() != data.results.len() {
            let message =
                format!("computes {}, but has {}", count(types.len(), "value"), count(data.results.len(), "result"));
            self.broken(node, broken(invariant, message));
            return;
        }
        for (i, (&r, ty)) in data.results.iter().zip(types).enumerate() {
            if self.is_done() {
                return;
            }
            let has = g.ty(r);
            let exact = matches!(
                data.op,
                Op::Constant(_)
                    | Op::Read(_)
                    | Op::While { .. }
                    | Op::List(ListOp::New(_) | ListOp::Stack(_) | ListOp::Concat(_) | ListOp::Split(_))
            );
            if !(if exact { ty == has } else { ty.fits(has) }) {
                let which = if types.len() > 1 { format!("result {}", i + 1) } else { "the result".to_owned() };
                self.broken(node, broken(invariant, format!("{which} is {ty}, but is declared as {has}")));
            }
        }
    }

    fn simple(&self, node: Node) -> Result<(), Broken> {
        let g = self.graph;
        let data = g.node(node);
        if !data.regions.is_empty() {
            return Err(broken(6, "the operation cannot have regions"));
        }
        check_arity(&data.op, data.operands.len())?;
        let operand = data.operands.first().map(|&v| g.ty(v));
        match (&data.op, operand) {
            (Op::Assign(var), Some(ty)) => match g.vars.get(var.index()) {
                None => Err(broken(8, "the variable is not declared")),
                Some(var) if *ty != Type::Tensor(var.ty.clone()) => {
                    Err(broken(8, format!("the variable `{}` is {}, but the value is {ty}", var.name, var.ty)))
                }
                Some(_) => Ok(()),
            },
            (Op::Assert { .. }, Some(ty)) if !is_predicate(ty) => {
                Err(broken(9, format!("the assertion is {ty}, not bool[]")))
            }
            (Op::Print { .. } | Op::Assert { .. }, _) => {
                match data.operands.iter().position(|&v| g.ty(v).as_tensor().is_none()) {
                    Some(i) => Err(broken(10, format!("operand {} is a stack", i + 1))),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Checks that values match the parameters of a region.
    fn params(&self, invariant: u8, region: Region, given: &[Value], name: &str) -> Result<(), Broken> {
        let g = self.graph;
        let params = &g.region(region).params;
        if params.len() != given.len() {
            let message = format!("`{name}` has {}, but got {}", count(params.len(), "parameter"), given.len());
            return Err(broken(invariant, message));
        }
        for (i, (&p, &v)) in params.iter().zip(given).enumerate() {
            let (takes, given) = (g.ty(p), g.ty(v));
            if !given.fits(takes) {
                let message = format!("parameter {} of `{name}` is {takes}, but got {given}", i + 1);
                return Err(broken(invariant, message));
            }
        }
        Ok(())
    }

    fn cond(&self, node: Node) -> Result<(), Broken> {
        let g = self.graph;
        let data = g.node(node);
        check_arity(&data.op, data.operands.len())?;
        let [then, otherwise] = data.regions[..] else {
            return Err(broken(6, "must have two regions"));
        };
        let predicate = g.ty(data.operands[0]);
        if !is_predicate(predicate) {
            return Err(broken(6, format!("the predicate is {predicate}, not bool[]")));
        }
        self.params(6, then, &data.operands[1..], "then")?;
        self.params(6, otherwise, &data.operands[1..], "else")
    }

    fn while_loop(&self, node: Node) -> Result<(), Broken> {
        let g = self.graph;
        let data = g.node(node);
        let [cond, body] = data.regions[..] else {
            return Err(broken(5, "must have two regions"));
        };
        self.params(5, cond, &data.operands, "cond")?;
        self.params(5, body, &data.operands, "body")?;
        match g.region(cond).yields[..] {
            [p] if is_predicate(g.ty(p)) => {}
            [p] => return Err(broken(5, format!("`cond` yields {}, not bool[]", g.ty(p)))),
            ref yields => {
                return Err(broken(5, format!("`cond` yields {}, not one bool[]", count(yields.len(), "value"))));
            }
        }
        let (yields, n) = (&g.region(body).yields, g.node(node).results.len());
        if yields.len() != n || n > data.operands.len() {
            let message = format!("`body` yields {} for {}", count(yields.len(), "value"), count(n, "result"));
            return Err(broken(5, message));
        }
        for (i, (&next, &p)) in yields.iter().zip(&g.region(body).params).enumerate() {
            let (next, takes) = (g.ty(next), g.ty(p));
            if !next.fits(takes) {
                let message = format!("loop variable {} is {takes}, but `body` yields {next}", i + 1);
                return Err(broken(5, message));
            }
            let of_cond = g.ty(g.region(cond).params[i]);
            if of_cond != takes {
                return Err(broken(
                    5,
                    format!("loop variable {} is {takes} in `body`, but {of_cond} in `cond`", i + 1),
                ));
            }
        }
        Ok(())
    }

    fn call(&self, node: Node, kind: CallKind) -> Result<(), Broken> {
        let g = self.graph;
        let data = g.node(node);
        check_arity(&data.op, data.operands.len())?;
        let (body, args) = match (kind, &data.regions[..]) {
            (CallKind::CustomGradient { args }, &[forward, gradient]) => {
                self.params(13, forward, &data.operands, "forward")?;
                let more = data.results.iter().filter(|&&r| g.ty(r).is_differentiable());
                let given: Vec<Value> = data.operands.iter().chain(&data.results).chain(more).copied().collect();
                self.params(13, gradient, &given, "gradient")?;
                (gradient, args)
            }
            (CallKind::CustomGradient { .. }, _) => return Err(broken(13, "must have two regions")),
            (_, &[body]) => return self.params(13, body, &data.operands, "body"),
            _ => return Err(broken(13, "must have one region")),
        };
        let takes: Vec<&Type> =
            data.operands[..args].iter().map(|&v| g.ty(v)).filter(|ty| ty.is_differentiable()).collect();
        let yields = &g.region(body).yields;
        if takes.len() != yields.len() {
            let message = format!("`gradient` yields {}, expected {}", count(yields.len(), "value"), takes.len());
            return Err(broken(13, message));
        }
        for (i, (&y, takes)) in yields.iter().zip(takes).enumerate() {
            let gives = g.ty(y);
            if !gives.compatible(takes) {
                return Err(broken(13, format!("gradient {} is {gives}, but the argument is {takes}", i + 1)));
            }
        }
        Ok(())
    }

    // V9, over the whole graph.

    fn effects(&mut self) {
        let g = self.graph;
        let mut assigned = FxHashSet::default();
        let mut errors = Vec::new();
        let room = self.max - self.errors.len();
        g.visit_nodes(g.root(), &mut |node| {
            if errors.len() >= room {
                return;
            }
            let data = g.node(node);
            let (Op::Read(var) | Op::Assign(var)) = data.op else {
                return;
            };
            let name = || format!("{} @{}", data.op.name(), g.vars.get(var.index()).map_or("?", |v| &v.name));
            if data.region != g.root() {
                errors.push((data.loc, format!("{}: in a branch or loop", name())));
            }
            if assigned.contains(&var) {
                errors.push((data.loc, format!("{}: after it was assigned", name())));
            }
            if matches!(data.op, Op::Assign(_)) {
                assigned.insert(var);
            }
        });
        for (loc, message) in errors {
            self.error(9, loc, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ValueData;

    const LOOP: &str = "
graph @f(%x: f32[2], %p: bool[]) -> f32[2] {
    %a = tanh %x
    %b = tanh %a
    %c = while (%y = %b | %p = %p) cond {
        yield %p
    } body {
        %z = tanh %y
        yield %z
    }
    return %c
}";

    /// Verifies the graph of [`LOOP`] after `change`. Returns the messages.
    fn broken_by(change: impl FnOnce(&mut Graph)) -> Vec<String> {
        let mut graph = Graph::parse(LOOP, "loop.ir").unwrap();
        change(&mut graph);
        // Printing a broken graph must not panic.
        assert!(graph.to_string().starts_with("graph @f("));
        verify(&graph).err().unwrap_or_default().into_iter().map(|e| e.message).collect()
    }

    /// Returns the node that defines the value with the given name.
    fn node(graph: &Graph, name: &str) -> Node {
        let named = |v: &&ValueData| v.name == Some(name) && matches!(v.def, ValueDef::Result(..));
        match graph.values.iter().find(named).map(|v| v.def) {
            Some(ValueDef::Result(node, _)) => node,
            _ => panic!("no node defines %{name}"),
        }
    }

    #[test]
    fn what_is_not_changed_is_verified() {
        assert_eq!(broken_by(|_| {}), [""; 0]);
    }

    #[test]
    fn v01_use_before_definition() {
        let errors = broken_by(|g| g.region_mut(g.root()).nodes.swap(0, 1));
        assert_eq!(errors, ["V1: tanh: `%a` is defined later"]);
    }

    #[test]
    fn v02_tables_that_disagree() {
        let errors = broken_by(|g| {
            let (a, body) = (node(g, "a"), node(g, "z"));
            g.node_mut(a).region = g.node(body).region;
        });
        assert_eq!(errors, ["V2: node0 is in region0, but records region2"]);

        let errors = broken_by(|g| {
            let (a, c) = (node(g, "a"), node(g, "c"));
            let body = g.node(c).regions[1];
            g.region_mut(body).owner = Some(a);
        });
        assert_eq!(errors, ["V2: node3 owns region2, which records another owner"]);

        let errors = broken_by(|g| {
            let b = node(g, "b");
            let result = g.node(b).results[0];
            g.value_mut(result).def = ValueDef::Result(b, 1);
        });
        assert_eq!(errors, ["V2: %3 is Result(node1, 0), but records Result(node1, 1)"]);

        let errors = broken_by(|g| {
            let a = node(g, "a");
            g.node_mut(a).operands[0] = Value::from_index(99);
            g.region_mut(g.root()).nodes.push(Node::from_index(99));
            g.region_mut(g.root()).yields.push(Value::from_index(98));
        });
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(errors.iter().all(|e| e.starts_with("V2") && e.ends_with("does not exist")), "{errors:?}");
    }

    #[test]
    fn v05_the_regions_of_a_loop_differ() {
        let errors = broken_by(|g| {
            let c = node(g, "c");
            let cond = g.node(c).regions[0];
            let first = g.region(cond).params[0];
            g.value_mut(first).ty =
                Type::tensor(crate::DType::F32, [crate::Dim::Unknown].into_iter().collect::<crate::Shape>());
        });
        assert_eq!(errors, ["V5: while: loop variable 1 is f32[2] in `body`, but f32[?] in `cond`"]);
    }

    #[test]
    fn v06_a_plain_node_with_a_region() {
        let errors = broken_by(|g| {
            let (a, region) = (node(g, "a"), g.add_region());
            g.set_regions(a, vec![region]);
        });
        assert_eq!(errors, ["V6: tanh: the operation cannot have regions"]);
    }

    #[test]
    fn v07_twice_in_the_graph() {
        let errors = broken_by(|g| {
            let a = node(g, "a");
            g.region_mut(g.root()).nodes.push(a);
        });
        assert_eq!(errors, ["V7: tanh: the node appears twice in the graph"]);

        let errors = broken_by(|g| {
            let c = node(g, "c");
            g.node_mut(c).regions[0] = g.node(c).regions[1];
        });
        assert_eq!(errors, ["V7: region2 has two owners, or contains itself"]);

        let errors = broken_by(|g| {
            let (a, b) = (node(g, "a"), node(g, "b"));
            g.node_mut(b).results = g.node(a).results.clone();
        });
        assert_eq!(errors, ["V7: %2 is defined twice"]);
    }
}
