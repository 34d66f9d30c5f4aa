//! Programs as text.
//!
//! One text serves for all dialects. The text uses the types `Int`, `Float` and `Bool` and a few
//! functions, which [`words`](crate::words) defines in a module for each dialect. The staged
//! dialect also has the attribute `#[graph]`. A literal next to another operand is printed as it
//! is; alone it is converted by `int`, `float` or `truth`.

use crate::ast::*;
use std::fmt::Write;

/// The module of [`words`](crate::words) that a text uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Plain Rust.
    Plain,
    /// `#[graph]` over tensors.
    Staged,
    /// `#[graph]` over host values: the same expansion, which must be equivalent to plain Rust.
    Host,
}

impl Dialect {
    /// Returns the name of its module in the text of a program.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Plain => "plain",
            Dialect::Staged => "staged",
            Dialect::Host => "host",
        }
    }
}

/// Returns a module with the functions of a program.
pub fn module(program: &RandomProgram, dialect: Dialect) -> String {
    let (words, attribute) = match (program.kind, dialect) {
        (CheckMode::Values, Dialect::Plain) => ("plain32", ""),
        (CheckMode::Values, Dialect::Staged) => ("staged32", "#[graph]\n"),
        (CheckMode::Values, Dialect::Host) => ("plain32", "#[anabranch::graph]\n"),
        (CheckMode::Gradients, Dialect::Plain) => ("plain64", ""),
        (CheckMode::Gradients, Dialect::Staged) => ("staged64", "#[graph]\n"),
        (CheckMode::Gradients, Dialect::Host) => ("plain64", "#[anabranch::graph]\n"),
    };
    let mut text = format!("pub mod {} {{\nuse anabranch_programs::words::{words}::*;\n", dialect.name());
    for f in program.helpers.iter().chain([&program.main]) {
        text += attribute;
        text += &function(program, f);
    }
    indented(&(text + "}\n"))
}

/// Returns a function without an attribute.
fn function(program: &RandomProgram, f: &RandomFunction) -> String {
    let p = RustPrinter { program, loops: Vec::new() };
    let params: Vec<String> = f.params.iter().map(|v| format!("mut {}: {}", v.name, type_name(&v.ty))).collect();
    let returns: Vec<&str> = f.returns.iter().map(|&ty| scalar_type(ty)).collect();
    let returns = if returns.len() == 1 { returns[0].to_owned() } else { format!("({})", returns.join(", ")) };
    let mut p = p;
    let body = p.block(&f.body, Tail::Nothing);
    let result = p.results(&f.result);
    format!("pub fn {}({}) -> {returns} {{\n{body}{result}\n}}\n", f.name, params.join(", "))
}

fn scalar_type(ty: Ty) -> &'static str {
    match ty {
        Ty::Int => "Int",
        Ty::Float => "Float",
        Ty::Bool => "Bool",
        Ty::Host => "i32",
    }
}

fn type_name(ty: &VarTy) -> String {
    match ty {
        VarTy::One(ty) => scalar_type(*ty).to_owned(),
        VarTy::Tuple(tys) => format!("({})", tys.iter().map(|&ty| scalar_type(ty)).collect::<Vec<_>>().join(", ")),
    }
}

/// The use of the value of a block.
enum Tail<'a> {
    /// There is none.
    Nothing,
    /// The value becomes that of the expression.
    Value,
    /// The value is assigned.
    Assign(&'a str),
}

struct RustPrinter<'a> {
    program: &'a RandomProgram,
    /// The enclosing loops, innermost last.
    loops: Vec<LoopId>,
}

impl RustPrinter<'_> {
    fn block(&mut self, b: &Stmts, tail: Tail<'_>) -> String {
        let mut text = String::new();
        for stmt in &b.stmts {
            text += &self.stmt(stmt);
            text.push('\n');
        }
        match (&b.value, tail) {
            (Some(x), Tail::Value) => text += &format!("{}\n", self.expr(x)),
            (Some(x), Tail::Assign(name)) => text += &format!("{name} = {};\n", self.expr(x)),
            _ => {}
        }
        text
    }

    fn results(&mut self, xs: &[Expr]) -> String {
        let texts: Vec<String> = xs.iter().map(|x| self.expr(x)).collect();
        if texts.len() == 1 { texts[0].clone() } else { format!("({})", texts.join(", ")) }
    }

    /// Prints an expression as a value.
    fn expr(&mut self, x: &Expr) -> String {
        match x {
            Expr::Int(_) | Expr::FromHost(_) => format!("int({})", self.plain(x)),
            Expr::Float(_) => format!("float({})", self.plain(x)),
            Expr::Bool(_) => format!("truth({})", self.plain(x)),
            Expr::Host(_) => self.plain(x),
            Expr::Get(place) => place_text(place),
            Expr::Unary(op, x) => {
                let x = if matches!(op, Unary::Neg | Unary::Not | Unary::Abs | Unary::Sin | Unary::Tanh) {
                    self.operand(x)
                } else {
                    self.expr(x)
                };
                match op {
                    Unary::Neg => format!("-{x}"),
                    Unary::Not => format!("!{x}"),
                    Unary::Abs => format!("{x}.abs()"),
                    Unary::Sin => format!("{x}.sin()"),
                    Unary::Tanh => format!("{x}.tanh()"),
                    Unary::Softsign => format!("softsign({x})"),
                    Unary::ToFloat => format!("to_float({x})"),
                    Unary::ToInt => format!("to_int({x})"),
                }
            }
            Expr::Binary(Binary::Min, a, b) => format!("smaller({}, {})", self.expr(a), self.expr(b)),
            Expr::Binary(Binary::Max, a, b) => format!("larger({}, {})", self.expr(a), self.expr(b)),
            Expr::Binary(op, a, b) => self.pair(operator(*op), a, b),
            Expr::Compare(op, a, b) => self.pair(op, a, b),
            Expr::Logic(and, a, b) => {
                format!("{} {} {}", self.operand(a), if *and { "&&" } else { "||" }, self.operand(b))
            }
            Expr::If(c, a, b) => {
                let (c, a, b) = (self.condition(c), self.block(a, Tail::Value), self.block(b, Tail::Value));
                format!("if {c} {{\n{a}}} else {{\n{b}}}")
            }
            Expr::Match(x, arms, default) => {
                let x = self.expr(x);
                format!("match {x} {{\n{}}}", self.arms(arms, default, || Tail::Value))
            }
            Expr::Block(b) => format!("{{\n{}}}", self.block(b, Tail::Value)),
            Expr::Labeled(id, _, b) => self.labeled(*id, b, Tail::Value),
            Expr::Call(helper, _, args) => format!("{}({})", self.program.helpers[*helper].name, self.list(args)),
            Expr::Loop(l, last) => {
                let last = self.expr(last);
                format!("{{\n{}\n}}", self.loop_text(l, &format!("break {last};")))
            }
        }
    }

    fn list(&mut self, xs: &[Expr]) -> String {
        xs.iter().map(|x| self.expr(x)).collect::<Vec<_>>().join(", ")
    }

    /// Prints a literal or host value as it is.
    fn plain(&mut self, x: &Expr) -> String {
        match x {
            Expr::Int(i) | Expr::Host(i) => i.to_string(),
            Expr::Bool(b) => b.to_string(),
            Expr::Float(x) => {
                let ty = if self.program.kind == CheckMode::Values { "f32" } else { "f64" };
                format!("{x:?}{ty}")
            }
            Expr::FromHost(x) => self.operand(x),
            _ => unreachable!("`is_plain` has the list"),
        }
    }

    /// Prints an operand, in parentheses if it needs them.
    fn operand(&mut self, x: &Expr) -> String {
        let text = self.expr(x);
        let atom = matches!(
            x,
            Expr::Int(_) | Expr::Float(_) | Expr::Bool(_) | Expr::FromHost(_) | Expr::Get(_) | Expr::Call(..)
        ) || matches!(x, Expr::Host(i) if *i >= 0)
            || matches!(x, Expr::Unary(op, _) if !matches!(op, Unary::Neg | Unary::Not))
            || matches!(x, Expr::Binary(Binary::Min | Binary::Max, ..));
        if atom { text } else { format!("({text})") }
    }

    /// Prints an operator between operands, one of which may be a plain literal.
    fn pair(&mut self, op: &str, a: &Expr, b: &Expr) -> String {
        let host = a.ty() == Ty::Host;
        let (left, right) = if b.is_plain() && !host {
            (self.operand(a), self.plain(b))
        } else if a.is_plain() && !host {
            (self.plain(a), self.operand(b))
        } else {
            (self.operand(a), self.operand(b))
        };
        format!("{left} {op} {right}")
    }

    /// Prints an expression before a block, in parentheses if it begins or ends with a block.
    fn condition(&mut self, x: &Expr) -> String {
        match x {
            Expr::If(..) | Expr::Match(..) | Expr::Block(_) | Expr::Labeled(..) | Expr::Loop(..) => self.operand(x),
            _ => self.expr(x),
        }
    }

    fn arms<'a>(&mut self, arms: &[(Pattern, Stmts)], default: &Stmts, tail: impl Fn() -> Tail<'a>) -> String {
        let mut text = String::new();
        for (pattern, block) in arms {
            let pattern = self.pattern(pattern);
            let _ = writeln!(text, "{pattern} => {{\n{}}}", self.block(block, tail()));
        }
        text + &format!("_ => {{\n{}}}\n", self.block(default, tail()))
    }

    fn pattern(&mut self, pattern: &Pattern) -> String {
        match pattern {
            Pattern::Any(xs) => xs.iter().map(i32::to_string).collect::<Vec<_>>().join(" | "),
            Pattern::Range(low, high) => format!("{low}..={high}"),
            Pattern::Guarded(pattern, guard) => format!("{} if {}", self.pattern(pattern), self.condition(guard)),
        }
    }

    /// Prints a labeled block. Every jump out of it needs a label.
    fn labeled(&mut self, id: LoopId, b: &Stmts, tail: Tail<'_>) -> String {
        self.loops.push(LoopId::MAX);
        let body = self.block(b, tail);
        self.loops.pop();
        let label = format!("'l{id}");
        let label = if body.contains(&format!("break {label}")) { label + ": " } else { String::new() };
        format!("{label}{{\n{body}}}")
    }

    fn looped(&mut self, id: LoopId, body: &Stmts) -> (String, String) {
        self.loops.push(id);
        let body = self.block(body, Tail::Nothing);
        self.loops.pop();
        let label = format!("'l{id}");
        let used = body.contains(&format!("break {label}")) || body.contains(&format!("continue {label}"));
        (if used { label + ": " } else { String::new() }, body)
    }

    fn loop_text(&mut self, l: &BoundedLoop, last: &str) -> String {
        let (label, body) = self.looped(l.id, &l.body);
        let (id, trips) = (l.id, l.trips);
        format!(
            "let mut trips{id} = int({trips});\n{label}loop {{\nif trips{id} <= 0 {{\n{last}\n}}\ntrips{id} -= 1;\n{body}}}"
        )
    }

    fn stmt(&mut self, s: &Stmt) -> String {
        let mutable = |v: &Local| if v.mutable { format!("mut {}", v.name) } else { v.name.clone() };
        match s {
            Stmt::Let(v, x) => format!("let {} = {};", mutable(v), self.expr(x)),
            Stmt::LetLater(v, c, a, b) => {
                let c = self.condition(c);
                let (a, b) = (self.block(a, Tail::Assign(&v.name)), self.block(b, Tail::Assign(&v.name)));
                format!("let {};\nif {c} {{\n{a}}} else {{\n{b}}}", mutable(v))
            }
            Stmt::LetTuple(vars, xs) => {
                let names: Vec<String> = vars.iter().map(mutable).collect();
                let names = if names.len() == 1 { names[0].clone() } else { format!("({})", names.join(", ")) };
                format!("let {names} = ({});", self.list(xs))
            }
            Stmt::Assign(place, None, x) => format!("{} = {};", place_text(place), self.expr(x)),
            Stmt::Assign(place, Some(op), x) => {
                let x = if x.is_plain() && place.ty != Ty::Host { self.plain(x) } else { self.expr(x) };
                format!("{} {}= {x};", place_text(place), operator(*op))
            }
            Stmt::AssignTuple(places, xs) => {
                let places: Vec<String> = places.iter().map(place_text).collect();
                format!("({}) = ({});", places.join(", "), self.list(xs))
            }
            Stmt::If(arms, otherwise) => {
                let mut text = String::new();
                for (i, (c, b)) in arms.iter().enumerate() {
                    let c = self.condition(c);
                    let _ = write!(text, "{}if {c} {{\n{}}}", ["", " else "][usize::from(i > 0)], self.unit(b));
                }
                if let Some(b) = otherwise {
                    let _ = write!(text, " else {{\n{}}}", self.unit(b));
                }
                text
            }
            Stmt::Match(x, arms, default) => {
                let x = self.expr(x);
                format!("match {x} {{\n{}}}", self.arms(arms, default, || Tail::Nothing))
            }
            Stmt::While(c, l, count_first) => {
                let c = self.operand(c);
                let (label, body) = self.looped(l.id, &l.body);
                let (id, trips) = (l.id, l.trips);
                let left = format!("trips{id} > 0");
                let c = if *count_first { format!("{left} && {c}") } else { format!("{c} && {left}") };
                format!("let mut trips{id} = int({trips});\n{label}while {c} {{\ntrips{id} -= 1;\n{body}}}")
            }
            Stmt::Loop(l) => self.loop_text(l, "break;"),
            Stmt::Range(id, v, low, high, body) => {
                let low = low.as_ref().map_or(String::new(), |x| self.operand(x) + "..");
                let high = if low.is_empty() { self.expr(high) } else { self.operand(high) };
                let (label, body) = self.looped(*id, body);
                format!("{label}for {} in range({low}{high}) {{\n{body}}}", mutable(v))
            }
            Stmt::HostFor(id, v, n, body) => {
                let (label, body) = self.looped(*id, body);
                format!("{label}for {} in 0..{n}i32 {{\n{body}}}", mutable(v))
            }
            Stmt::HostIf(c, a, b) => {
                let c = self.expr(c);
                let otherwise = b.as_ref().map_or(String::new(), |b| format!(" else {{\n{}}}", self.unit(b)));
                format!("if {c} {{\n{}}}{otherwise}", self.unit(a))
            }
            Stmt::Break(id, value) => {
                let value = value.as_ref().map_or(String::new(), |x| format!(" {}", self.expr(x)));
                format!("break{}{value};", self.label(*id))
            }
            Stmt::Continue(id) => format!("continue{};", self.label(*id)),
            Stmt::Return(xs) => format!("return {};", self.results(xs)),
            Stmt::Block(b) => format!("{{\n{}}}", self.unit(b)),
            Stmt::Labeled(id, b) => self.labeled(*id, b, Tail::Nothing),
        }
    }

    fn unit(&mut self, b: &Stmts) -> String {
        self.block(b, Tail::Nothing)
    }

    fn label(&self, id: LoopId) -> String {
        if self.loops.last() == Some(&id) { String::new() } else { format!(" 'l{id}") }
    }
}

fn operator(op: Binary) -> &'static str {
    match op {
        Binary::Add => "+",
        Binary::Sub => "-",
        Binary::Mul => "*",
        Binary::Div => "/",
        Binary::Rem => "%",
        Binary::Min | Binary::Max => unreachable!("printed as a call"),
    }
}

fn place_text(place: &Assignee) -> String {
    match place.field {
        None => place.name.clone(),
        Some(i) => format!("{}.{i}", place.name),
    }
}

/// Indents lines by their braces.
fn indented(text: &str) -> String {
    let mut out = String::new();
    let mut depth = 0usize;
    for line in text.lines() {
        let closing = line.chars().take_while(|&c| c == '}').count();
        depth -= closing;
        let _ = writeln!(out, "{}{line}", "    ".repeat(depth));
        let (open, close) = (line.matches('{').count(), line.matches('}').count());
        depth = (depth + closing + open) - close;
    }
    out
}
