//! The printer of the text form. `docs/ir.md` has the grammar.
//!
//! Regions are closed, so each region names its values independently. A value is printed with the
//! user's name, with a number appended if two values of a region share it. A value without a name
//! gets a number that counts through the graph. Printing a graph parsed from this text yields the
//! same text.

use super::literal::{Literal, Quoted, is_word_char};
use super::{CallKind, Graph, Node, Op, Region, StackOp, Value};
use crate::{DeviceConstraint, HostTensor, Type, match_buffer};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt::{self, Display, Write};

/// Maximum elements of a uniform tensor that is printed as a single element.
pub(super) const MAX_FILL: usize = 1 << 24;

impl Graph {
    /// Returns the text form, with options.
    pub fn text(&self) -> GraphText<'_> {
        GraphText { graph: self, locs: false }
    }
}

impl Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text().fmt(f)
    }
}

/// The text form of a graph: see [`Graph::text`].
#[derive(Clone, Copy, Debug)]
pub struct GraphText<'a> {
    graph: &'a Graph,
    locs: bool,
}

impl GraphText<'_> {
    /// Appends the source location of every node as a comment.
    #[must_use]
    pub fn with_locs(mut self) -> Self {
        self.locs = true;
        self
    }
}

impl Display for GraphText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = vec![String::new(); self.graph.n_values()];
        let mut printer = Printer { graph: self.graph, locs: self.locs, out: String::new(), names, next: 0 };
        printer.graph()?;
        f.write_str(&printer.out)
    }
}

/// The names used in one region.
#[derive(Clone, Default)]
struct PrintScope<'a> {
    taken: FxHashSet<String>,
    /// The next number to try as a suffix, for each name in use.
    suffix: FxHashMap<&'a str, usize>,
}

struct Printer<'a> {
    graph: &'a Graph,
    locs: bool,
    out: String,
    /// The printed name of each value. Empty until the value is defined.
    names: Vec<String>,
    /// The next number for an unnamed value.
    next: usize,
}

impl<'a> Printer<'a> {
    fn graph(&mut self) -> fmt::Result {
        let g = self.graph;
        write!(self.out, "graph @{}(", Quoted(&g.name))?;
        let mut scope = PrintScope::default();
        for (i, &p) in g.inputs().iter().enumerate() {
            self.define(&mut scope, &[p]);
            write!(self.out, "{}%{}: {}", comma(i), self.name(p), g.ty(p))?;
        }
        self.out.push_str(") -> ");
        let outputs: Vec<&Type> = g.outputs().iter().filter(|v| v.index() < g.n_values()).map(|&v| g.ty(v)).collect();
        self.types(&outputs)?;
        self.out.push_str(" {\n");
        for var in &g.vars {
            write!(self.out, "    var @{}: {}", Quoted(&var.name), var.ty)?;
            self.on(var.on)?;
            self.out.push('\n');
        }
        for queue in &g.queues {
            write!(self.out, "    queue @{}: ", Quoted(&queue.name))?;
            for (i, ty) in queue.element.iter().enumerate() {
                write!(self.out, "{}{ty}", comma(i))?;
            }
            self.out.push('\n');
        }
        self.body(g.root(), scope, 1, "return")?;
        self.out.push_str("}\n");
        Ok(())
    }

    /// Names corresponding values, for example the parameters of the two regions of a loop.
    fn define(&mut self, scope: &mut PrintScope<'a>, values: &[Value]) {
        let user = values.iter().rev().find_map(|v| self.graph.value(*v).name);
        let name = match user {
            None => {
                self.next += 1;
                (self.next - 1).to_string()
            }
            Some(user) => {
                let plain = plain(user);
                if scope.taken.insert(plain.clone()) {
                    plain
                } else {
                    let n = scope.suffix.entry(user).or_insert(2);
                    loop {
                        let numbered = format!("{plain}_{n}");
                        *n += 1;
                        if scope.taken.insert(numbered.clone()) {
                            break numbered;
                        }
                    }
                }
            }
        };
        for v in values {
            self.names[v.index()].clone_from(&name);
        }
    }

    /// Returns the name of a value. An undefined one is marked, so that broken graphs can be
    /// printed.
    fn name(&self, value: Value) -> String {
        match self.names.get(value.index()) {
            Some(name) if !name.is_empty() => name.clone(),
            _ => format!("undefined.{}", value.index()),
        }
    }

    fn list(&mut self, values: &[Value]) {
        for (i, &v) in values.iter().enumerate() {
            self.out.push_str(if i > 0 { ", %" } else { "%" });
            let name = self.name(v);
            self.out.push_str(&name);
        }
    }

    fn types(&mut self, types: &[&Type]) -> fmt::Result {
        if let [ty] = types {
            return write!(self.out, "{ty}");
        }
        self.out.push('(');
        for (i, ty) in types.iter().enumerate() {
            write!(self.out, "{}{ty}", comma(i))?;
        }
        self.out.push(')');
        Ok(())
    }

    fn indent(&mut self, depth: usize) {
        self.out.extend(std::iter::repeat_n("    ", depth));
    }

    /// Prints the nodes of a region and its yields, one line each.
    fn body(&mut self, region: Region, mut scope: PrintScope<'a>, depth: usize, end: &str) -> fmt::Result {
        let g = self.graph;
        for &node in &g.region(region).nodes {
            self.indent(depth);
            if node.index() >= g.n_nodes() || depth > g.n_regions() {
                // Broken graphs can be printed, too.
                write!(self.out, "; {node} is missing, or contains itself")?;
            } else {
                self.node(node, &mut scope, depth)?;
            }
            self.out.push('\n');
        }
        let yields = &g.region(region).yields;
        self.indent(depth);
        self.out.push_str(end);
        if !yields.is_empty() {
            self.out.push(' ');
        }
        self.list(yields);
        self.out.push('\n');
        Ok(())
    }

    fn node(&mut self, node: Node, scope: &mut PrintScope<'a>, depth: usize) -> fmt::Result {
        let g = self.graph;
        let data = g.node(node);
        for &r in &data.results {
            self.define(scope, &[r]);
        }
        self.list(&data.results);
        if !data.results.is_empty() {
            self.out.push_str(" = ");
        }
        self.operation(node)?;
        match &data.op {
            Op::While { .. } => self.loop_params(node, depth),
            Op::Call(kind) => self.call(node, *kind, depth),
            Op::Cond => {
                self.result_types(node)?;
                self.on(data.on)?;
                for (i, &region) in data.regions.iter().enumerate() {
                    self.out.push_str(if i == 0 { " then (" } else { " else (" });
                    let captured = data.operands.get(1..).unwrap_or_default();
                    let mut inner = PrintScope::default();
                    for (i, &p) in g.region(region).params.iter().enumerate() {
                        self.define(&mut inner, &[p]);
                        self.out.push_str(comma(i));
                        self.param(p, captured.get(i).copied())?;
                    }
                    self.out.push_str(") {");
                    self.loc(node, i == 0);
                    self.out.push('\n');
                    self.close(region, inner, depth)?;
                }
                Ok(())
            }
            _ => {
                self.result_types(node)?;
                self.on(data.on)?;
                self.loc(node, true);
                Ok(())
            }
        }
    }

    fn close(&mut self, region: Region, scope: PrintScope<'a>, depth: usize) -> fmt::Result {
        self.body(region, scope, depth + 1, "yield")?;
        self.indent(depth);
        self.out.push('}');
        Ok(())
    }

    /// Prints the name of an operation with its operands and static arguments.
    fn operation(&mut self, node: Node) -> fmt::Result {
        let data = self.graph.node(node);
        self.out.push_str(data.op.name());
        let bound_later = matches!(
            data.op,
            Op::While { .. }
                | Op::Call(_)
                | Op::Assign(_)
                | Op::Assert { .. }
                | Op::Print { .. }
                | Op::Queue(..)
                | Op::File(_)
        );
        if !data.operands.is_empty() && !bound_later {
            self.out.push(' ');
            self.list(&data.operands);
        }
        match &data.op {
            Op::Prim(_, attrs) if !attrs.is_empty() => write!(self.out, " {{{attrs}}}")?,
            Op::Constant(tensor) => {
                self.out.push(' ');
                elements(&mut self.out, tensor)?;
            }
            Op::Read(var) => self.var(var.index())?,
            Op::Assign(var) => {
                self.var(var.index())?;
                self.out.push_str(", ");
                self.list(&data.operands);
            }
            Op::Assert { message } => {
                let (cond, shown) = data.operands.split_at(data.operands.len().min(1));
                self.out.push(' ');
                self.list(cond);
                write!(self.out, ", {:?}", message.to_string())?;
                if !shown.is_empty() {
                    self.out.push_str(", ");
                    self.list(shown);
                }
            }
            Op::Print { stream, template } => {
                write!(self.out, " {} {:?}", stream.name(), template.to_string())?;
                if !data.operands.is_empty() {
                    self.out.push_str(", ");
                    self.list(&data.operands);
                }
            }
            Op::Queue(queue, op) => {
                match self.graph.queues.get(queue.index()) {
                    Some(queue) => write!(self.out, " @{}", Quoted(&queue.name))?,
                    None => write!(self.out, " @undeclared.{}", queue.index())?,
                }
                if let Some(n) = op.count() {
                    write!(self.out, ", {n}")?;
                }
                if !data.operands.is_empty() {
                    self.out.push_str(", ");
                    self.list(&data.operands);
                }
            }
            Op::File(op) => {
                for name in op.tensors() {
                    write!(self.out, " {name:?},")?;
                }
                self.out.push(' ');
                self.list(&data.operands);
            }
            _ => {}
        }
        Ok(())
    }

    fn var(&mut self, index: usize) -> fmt::Result {
        match self.graph.vars.get(index) {
            Some(var) => write!(self.out, " @{}", Quoted(&var.name)),
            None => write!(self.out, " @undeclared.{index}"),
        }
    }

    fn result_types(&mut self, node: Node) -> fmt::Result {
        let g = self.graph;
        let types: Vec<&Type> = g.node(node).results.iter().map(|&r| g.ty(r)).collect();
        if types.is_empty() {
            return Ok(());
        }
        self.out.push_str(" : ");
        self.types(&types)
    }

    fn on(&mut self, on: Option<DeviceConstraint>) -> fmt::Result {
        on.map_or(Ok(()), |on| write!(self.out, " on \"{}\"", on.devices()))
    }

    /// Prints a parameter, with its type if that differs from the type of its argument.
    fn param(&mut self, param: Value, given: Option<Value>) -> fmt::Result {
        let g = self.graph;
        write!(self.out, "%{}", self.name(param))?;
        match given {
            Some(v) if v.index() < g.n_values() && g.ty(v) == g.ty(param) => Ok(()),
            _ => write!(self.out, ": {}", g.ty(param)),
        }
    }

    /// Prints the rest of a loop from its parameters on. Both regions have the same parameters,
    /// which are printed once.
    fn loop_params(&mut self, node: Node, depth: usize) -> fmt::Result {
        let g = self.graph;
        let data = g.node(node);
        let empty: &[Value] = &[];
        let params = |i: usize| data.regions.get(i).map_or(empty, |&r| &g.region(r).params[..]);
        let (of_cond, of_body) = (params(0), params(1));
        let inner = self.bound_params(node, of_cond, of_body, data.results.len())?;
        self.result_types(node)?;
        if let Op::While { parallel_iterations: Some(n) } = data.op {
            write!(self.out, " parallel_iterations {n}")?;
        }
        self.on(data.on)?;
        for (i, &region) in data.regions.iter().enumerate() {
            self.out.push_str(if i == 0 { " cond {" } else { " body {" });
            self.loc(node, i == 0);
            self.out.push('\n');
            self.close(region, inner.clone(), depth)?;
        }
        Ok(())
    }

    /// Prints parameters with their arguments. Captures follow a bar before number `bar`. `others`
    /// are the parameters of another region with the same names.
    fn bound_params(
        &mut self,
        node: Node,
        others: &[Value],
        params: &[Value],
        bar: usize,
    ) -> Result<PrintScope<'a>, fmt::Error> {
        let data = self.graph.node(node);
        let mut inner = PrintScope::default();
        self.out.push_str(" (");
        for (i, &p) in params.iter().enumerate() {
            self.define(&mut inner, &others.get(i).map_or(vec![p], |&q| vec![q, p]));
            let captures_begin = i == bar;
            self.out.push_str(match (i, captures_begin) {
                (0, false) => "",
                (0, true) => "| ",
                (_, false) => ", ",
                (_, true) => " | ",
            });
            let given = data.operands.get(i).copied();
            self.param(p, given)?;
            if let Some(given) = given {
                write!(self.out, " = %{}", self.name(given))?;
            }
        }
        self.out.push(')');
        Ok(inner)
    }

    /// Prints the rest of a call from its parameters on. Shared parameters are printed once; a
    /// second region has more.
    fn call(&mut self, node: Node, kind: CallKind, depth: usize) -> fmt::Result {
        let g = self.graph;
        let data = g.node(node);
        let empty: &[Value] = &[];
        let params = |i: usize| data.regions.get(i).map_or(empty, |&r| &g.region(r).params[..]);
        let (bar, words) = match kind {
            CallKind::Checkpoint | CallKind::Recompute => (usize::MAX, [" body", ""]),
            CallKind::CustomGradient { args } => (args, [" forward", " gradient"]),
        };
        let inner = self.bound_params(node, params(1), params(0), bar)?;
        self.result_types(node)?;
        self.on(data.on)?;
        for (i, (&region, word)) in data.regions.iter().zip(words).enumerate() {
            self.out.push_str(word);
            let mut scope = inner.clone();
            if i > 0 {
                self.out.push_str(" (");
                for (k, &p) in params(1).iter().skip(params(0).len()).enumerate() {
                    self.define(&mut scope, &[p]);
                    self.out.push_str(comma(k));
                    self.param(p, None)?;
                }
                self.out.push(')');
            }
            self.out.push_str(" {");
            self.loc(node, i == 0);
            self.out.push('\n');
            self.close(region, scope, depth)?;
        }
        Ok(())
    }

    fn loc(&mut self, node: Node, wanted: bool) {
        let loc = self.graph.node(node).loc;
        if self.locs && wanted && loc.is_known() {
            self.out.push_str(&format!(" ; loc {loc}"));
        }
    }
}

fn comma(i: usize) -> &'static str {
    if i > 0 { ", " } else { "" }
}

/// Returns a user's name without characters that are special in the text form.
fn plain(user: &str) -> String {
    let mut plain: String = user.chars().map(|c| if is_word_char(c) { c } else { '_' }).collect();
    if plain.is_empty() || plain.starts_with(|c: char| c.is_ascii_digit()) {
        plain.insert(0, '_');
    }
    plain
}

/// Prints the elements of a constant: nested lists, or one element if all are equal.
fn elements(out: &mut String, tensor: &HostTensor) -> fmt::Result {
    fn nested<T: Literal>(out: &mut String, shape: &[usize], data: &[T]) -> fmt::Result {
        let Some((&n, inner)) = shape.split_first() else {
            return data[0].write(out);
        };
        let stride: usize = inner.iter().product();
        out.push('[');
        for i in 0..n {
            out.push_str(comma(i));
            nested(out, inner, &data[i * stride..(i + 1) * stride])?;
        }
        out.push(']');
        Ok(())
    }
    if (1..=MAX_FILL).contains(&tensor.len()) && is_uniform(tensor) {
        return match_buffer!(tensor.buffer(), d => d[0].write(out));
    }
    match_buffer!(tensor.buffer(), d => nested(out, tensor.shape(), d))
}

/// Returns whether all elements are bitwise identical.
fn is_uniform(tensor: &HostTensor) -> bool {
    use crate::Buffer::*;
    fn all_equal<K: PartialEq>(mut keys: impl Iterator<Item = K>) -> bool {
        let first = keys.next();
        keys.all(|k| Some(&k) == first.as_ref())
    }
    match tensor.buffer() {
        F32(d) => all_equal(d.iter().map(|x| x.to_bits())),
        F64(d) => all_equal(d.iter().map(|x| x.to_bits())),
        F16(d) => all_equal(d.iter().map(|x| x.to_bits())),
        BF16(d) => all_equal(d.iter().map(|x| x.to_bits())),
        I32(d) => all_equal(d.iter()),
        I64(d) => all_equal(d.iter()),
        U32(d) => all_equal(d.iter()),
        U8(d) => all_equal(d.iter()),
        Bool(d) => all_equal(d.iter()),
        Bytes(d) => all_equal(d.iter()),
    }
}

impl StackOp {
    /// Returns the stack operation of the given name, if it needs no type.
    pub(super) fn by_name(name: &str) -> Option<StackOp> {
        [StackOp::Push, StackOp::Pop, StackOp::ZerosLike, StackOp::Add]
            .into_iter()
            .find(|op| Op::Stack(op.clone()).name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::GraphBuilder;

    #[test]
    fn places_are_comments() {
        let text = "graph @f(%x: f32[], %p: bool[]) -> f32[] {
    %y = cond %p, %x : f32[] then (%x) {
        %z = tanh %x : f32[]
        yield %z
    } else (%x) {
        yield %x
    }
    return %y
}
";
        let graph = Graph::parse(text, "f.ir").unwrap();
        let with_locs = graph.text().with_locs().to_string();
        let expected = text
            .replace("then (%x) {", "then (%x) { ; loc f.ir:2:5")
            .replace("%z = tanh %x : f32[]", "%z = tanh %x : f32[] ; loc f.ir:3:9");
        assert_eq!(with_locs, expected);
        assert!(Graph::parse(&with_locs, "f.ir").unwrap().same_structure(&graph));
    }

    /// Returns the text of a graph whose values have the given names.
    fn text_of_names(names: &[&'static str]) -> String {
        let mut graph = GraphBuilder::new(Graph::new("f"));
        for &name in names {
            let value = graph.constant(HostTensor::scalar(0.0f32));
            graph.value_mut(value).name = Some(name);
        }
        graph.to_string()
    }

    #[test]
    fn names_are_made_plain_and_different() {
        let text = text_of_names(&["x", "x", "x_2", "x", "a b", "", "0", "state.1"]);
        let printed: Vec<&str> =
            text.lines().filter_map(|l| l.trim().strip_suffix(" = constant 0.0 : f32[]")).collect();
        assert_eq!(printed, ["%x", "%x_2", "%x_2_2", "%x_3", "%a_b", "%_", "%_0", "%state.1"]);
        assert_eq!(Graph::parse(&text, "f.ir").unwrap().to_string(), text);
    }
}
