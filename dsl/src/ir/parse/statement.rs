//! Parsing of statements: operations with their operands and attributes.

use super::{Parse, Parser, StatementFailed, Symbol};
use crate::edit_distance::edit_distance;
use crate::format::{Stream, Template};
use crate::ir::infer::{check_attrs, count, infer, kind_name};
use crate::ir::lex::Tok;
use crate::ir::literal::Literal;
use crate::ir::{
    Attr, AttrKind, Attrs, CallKind, FileOp, InsertPoint, ListOp, Node, Op, QueueOp, Region, StackOp, Value,
};
use crate::ops::{self, Prim};
use crate::{Diagnostic, Loc, Type};

/// The operations of the text form that are not primitives.
const BUILTINS: &[&str] = &[
    "constant",
    "read",
    "assign",
    "assert",
    "print",
    "stack_new",
    "stack_zeros",
    "push",
    "pop",
    "stack_zeros_like",
    "stack_add",
    "cond",
    "while",
    "checkpoint",
    "recompute",
    "custom_gradient",
];

impl<'a> Parser<'a> {
    pub(super) fn statement(&mut self, region: Region) -> Parse<()> {
        let loc = self.loc();
        let mut names = Vec::new();
        while let Tok::Value(name) = *self.peek() {
            names.push((name, self.loc()));
            self.next();
            if !self.eat(',') {
                break;
            }
        }
        let node = if names.is_empty() { Ok(()) } else { self.expect('=') };
        let node = node.and_then(|()| self.operation(region, loc, names.len()));
        match node {
            Ok(node) => {
                let results = self.graph.node(node).results.clone();
                for (&(name, loc), value) in names.iter().zip(results) {
                    self.define(name, loc, Symbol::Value(value, loc));
                }
                Ok(())
            }
            Err(StatementFailed) => {
                for (name, loc) in names {
                    self.define(name, loc, Symbol::Broken);
                }
                Err(StatementFailed)
            }
        }
    }

    fn operation(&mut self, region: Region, loc: Loc, n_names: usize) -> Parse<Node> {
        let op_loc = self.loc();
        let name = self.word("an operation")?;
        let node = match name {
            "cond" => self.cond(region, loc)?,
            "while" => self.while_loop(region, loc)?,
            "checkpoint" => self.call(region, CallKind::Checkpoint, loc)?,
            "recompute" => self.call(region, CallKind::Recompute, loc)?,
            "custom_gradient" => self.call(region, CallKind::CustomGradient { args: 0 }, loc)?,
            _ => {
                let node = self.simple(region, name, loc, op_loc)?;
                self.graph.node_mut(node).on = self.on()?;
                node
            }
        };
        let n = self.graph.node(node).results.len();
        if n != n_names {
            let message = format!("`{name}` returns {}, but {} are named", count(n, "value"), count(n_names, "value"));
            return Err(self.error(op_loc, message));
        }
        Ok(node)
    }

    fn simple(&mut self, region: Region, name: &str, loc: Loc, op_loc: Loc) -> Parse<Node> {
        // The annotation of an operation that cannot be read without it.
        let mut types = None;
        let (op, operands) = match name {
            "constant" => {
                let elements = self.elements()?;
                types = self.annotation()?;
                let Some([Type::Tensor(ty)]) = types.as_deref() else {
                    return Err(self.error(op_loc, "a constant needs its type, as `: f32[2]`"));
                };
                let tensor = elements.tensor(ty).map_err(|(loc, message)| self.error(loc, message))?;
                (Op::Constant(tensor), vec![])
            }
            "stack_new" | "stack_zeros" => {
                types = self.annotation()?;
                let Some([Type::Stack(element)]) = types.as_deref() else {
                    return Err(self.error(op_loc, "a new stack needs its type, as `: stack<f32[2]>`"));
                };
                let make = if name == "stack_new" { StackOp::New } else { StackOp::Zeros };
                (Op::Stack(make(element.clone())), vec![])
            }
            "read" => (Op::Read(self.var()?), vec![]),
            "assign" => {
                let var = self.var()?;
                self.expect(',')?;
                (Op::Assign(var), vec![self.operand()?])
            }
            "assert" => {
                let cond = self.operands()?;
                let (message, shown) = self.template("the message of the assertion")?;
                (Op::Assert { message }, [cond, shown].concat())
            }
            "print" => self.print()?,
            "save" => {
                let mut names = vec![self.name_of_tensor()?];
                while matches!(self.peek(), Tok::Str(_)) {
                    names.push(self.name_of_tensor()?);
                }
                (Op::File(FileOp::Save(names)), self.operands()?)
            }
            "restore" => {
                let name = self.name_of_tensor()?;
                let operands = self.operands()?;
                types = self.annotation()?;
                let Some([Type::Tensor(ty)]) = types.as_deref() else {
                    return Err(self.error(op_loc, "a restored tensor needs its type, as `: f32[2]`"));
                };
                (Op::File(FileOp::Restore { name, ty: ty.clone() }), operands)
            }
            _ if QueueOp::by_name(name, None).is_some() => self.queue_op(name)?,
            _ if ListOp::parsed(name, None).is_some() => {
                let operands = self.operands()?;
                types = self.annotation()?;
                if name == "list_new" && !matches!(types.as_deref(), Some([Type::List(_)])) {
                    return Err(self.error(op_loc, "a new list needs its type, as `: list<f32[2]>`"));
                }
                let op = ListOp::parsed(name, types.as_deref()).expect("there is an operation of this name");
                (Op::List(op), operands)
            }
            _ => match (StackOp::by_name(name), ops::by_name(name)) {
                (Some(op), _) => (Op::Stack(op), self.operands()?),
                (None, Some(def)) => {
                    let operands = self.operands();
                    let attrs = self.attrs(def, op_loc)?;
                    (Op::Prim(def, attrs), operands?)
                }
                (None, None) => {
                    let mut error = Diagnostic::new(format!("there is no operation `{name}`")).at(op_loc, "");
                    let lists = ListOp::all().map(|op| op.name());
                    let others = QueueOp::NAMES.into_iter().chain(FileOp::NAMES).chain(lists);
                    let all = ops::all().map(|d| d.name).chain(BUILTINS.iter().copied()).chain(others);
                    if let Some(near) = nearest(name, all) {
                        error = error.help(format!("did you mean `{near}`?"));
                    }
                    self.errors.push(error);
                    return Err(StatementFailed);
                }
            },
        };
        let types = if types.is_some() { types } else { self.annotation()? };
        self.graph.at(InsertPoint::End(region), loc);
        self.add(op, operands, vec![], types, op_loc)
    }

    /// Parses `@q`, a number of elements for an operation that names one, and operands.
    fn queue_op(&mut self, name: &str) -> Parse<(Op, Vec<Value>)> {
        let queue = self.queue()?;
        let mut n = None;
        let mut has_more = self.eat(',');
        if QueueOp::by_name(name, None).is_some_and(QueueOp::removes_batch) {
            match *self.peek() {
                Tok::Number(given) if has_more => {
                    n = Some(given.parse().map_err(|_| self.unexpected("a number of elements"))?);
                    self.next();
                    has_more = self.eat(',');
                }
                Tok::Value(_) if has_more => {}
                _ => return Err(self.unexpected("a number of elements")),
            }
        }
        let operands = if has_more { self.operands()? } else { vec![] };
        Ok((Op::Queue(queue, QueueOp::by_name(name, n).expect("the operation has this name")), operands))
    }

    /// Parses `"w",`, the name of a tensor in a file.
    fn name_of_tensor(&mut self) -> Parse<String> {
        let Tok::Str(name) = self.peek().clone() else {
            return Err(self.unexpected("the name of a tensor in quotes"));
        };
        self.next();
        self.expect(',')?;
        Ok(name)
    }

    /// Parses `print stdout "x = {}", %x`.
    fn print(&mut self) -> Parse<(Op, Vec<Value>)> {
        let Tok::Word(word) = *self.peek() else {
            return Err(self.unexpected("`stdout` or `stderr`"));
        };
        let Some(stream) = Stream::by_name(word) else {
            return Err(self.unexpected("`stdout` or `stderr`"));
        };
        self.next();
        let (template, operands) = self.template("the text to print")?;
        Ok((Op::Print { stream, template }, operands))
    }

    /// Parses `"x = {}", %x`.
    fn template(&mut self, what: &str) -> Parse<(Template, Vec<Value>)> {
        let (Tok::Str(text), loc) = (self.peek().clone(), self.loc()) else {
            return Err(self.unexpected(what));
        };
        self.next();
        let operands = if self.eat(',') { self.operands() } else { Ok(vec![]) };
        let template = Template::parse(&text).map_err(|e| self.error(loc, e))?;
        Ok((template, operands?))
    }

    /// Adds a node whose results have the written types, or else the inferred types.
    pub(super) fn add(
        &mut self,
        op: Op,
        operands: Vec<Value>,
        regions: Vec<Region>,
        types: Option<Vec<Type>>,
        loc: Loc,
    ) -> Parse<Node> {
        let types = match types {
            Some(types) => types,
            None if matches!(op, Op::Assign(_) | Op::Assert { .. } | Op::Print { .. }) => vec![],
            None => infer(&self.graph, &op, &operands, &regions).map_err(|broken| {
                let mut error = broken.error.at(op.name(), loc);
                error.message = format!("V{}: {}", broken.invariant, error.message);
                self.errors.push(error);
                StatementFailed
            })?,
        };
        let node = self.graph.insert(op, operands, types);
        self.graph.set_regions(node, regions);
        Ok(node)
    }

    // Attributes.

    fn attrs(&mut self, def: Prim, op_loc: Loc) -> Parse<Attrs> {
        let mut given: Vec<(&'static str, Attr)> = Vec::new();
        if self.eat('{') {
            let list = self.list('}', |p| {
                let loc = p.loc();
                let word = p.word("the name of an attribute")?;
                let Some(&(name, kind)) = def.attrs.iter().find(|(name, _)| *name == word) else {
                    let mut error = Diagnostic::new(format!("V4: {} has no attribute `{word}`", def.name)).at(loc, "");
                    let names: Vec<&str> = def.attrs.iter().map(|(name, _)| *name).collect();
                    if !names.is_empty() {
                        error = error.help(format!("its attributes: {}", names.join(", ")));
                    }
                    p.errors.push(error);
                    return Err(StatementFailed);
                };
                if given.iter().any(|(n, _)| *n == name) {
                    return Err(p.error(loc, format!("the attribute `{name}` is given twice")));
                }
                p.expect('=')?;
                given.push((name, p.attr(name, kind)?));
                Ok(())
            });
            if list.is_err() {
                // A closing brace ends this list, not the region.
                while !self.is('}') && !self.tokens[self.at].first && *self.peek() != Tok::End {
                    self.next();
                }
                self.eat('}');
                return Err(StatementFailed);
            }
        }
        let mut attrs = Attrs::none();
        for &(name, _) in def.attrs {
            match given.iter().find(|(n, _)| *n == name) {
                Some((_, attr)) => attrs = attrs.with(name, attr.clone()),
                None => {
                    return Err(self.error(op_loc, format!("V4: {} needs the attribute `{name}`", def.name)));
                }
            }
        }
        check_attrs(def, &attrs).map_err(|b| self.error(op_loc, format!("V4: {}: {}", def.name, b.error.message)))?;
        Ok(attrs)
    }

    fn attr(&mut self, name: &str, kind: AttrKind) -> Parse<Attr> {
        let loc = self.loc();
        let start = self.errors.len();
        let attr = match kind {
            AttrKind::Int | AttrKind::Natural => self.int().map(Attr::Int),
            AttrKind::Ints | AttrKind::Naturals => {
                self.expect('[').and_then(|()| self.list(']', Self::int)).map(Attr::Ints)
            }
            AttrKind::Float => {
                self.element_word().and_then(|w| Literal::read(w).ok_or(StatementFailed)).map(Attr::Float)
            }
            AttrKind::Bool => self.element_word().and_then(|w| Literal::read(w).ok_or(StatementFailed)).map(Attr::Bool),
            AttrKind::DType => self.dtype().map(Attr::DType),
            AttrKind::Shape => self.shape().map(Attr::Shape),
        };
        attr.map_err(|StatementFailed| {
            self.errors.truncate(start);
            self.error(loc, format!("V4: the attribute `{name}` is {}", kind_name(kind)))
        })
    }

    fn int(&mut self) -> Parse<i64> {
        let word = self.element_word()?;
        word.parse().map_err(|_| StatementFailed)
    }

    pub(super) fn element_word(&mut self) -> Parse<&'a str> {
        match *self.peek() {
            Tok::Word(word) | Tok::Number(word) | Tok::Bytes(word) => {
                self.next();
                Ok(word)
            }
            _ => Err(self.unexpected("a number")),
        }
    }
}

/// Returns the name most similar to `word`, if one is similar enough.
fn nearest<'n>(word: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let limit = word.chars().count().div_ceil(3);
    names.map(|n| (edit_distance(word, n), n)).filter(|(d, _)| *d <= limit).min().map(|(_, n)| n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_operation_of_the_table_has_a_name_of_the_language() {
        let lists = ListOp::all().map(|op| op.name());
        for name in BUILTINS.iter().chain(&["graph", "var", "queue", "yield", "return", "on"]).chain(&lists) {
            assert!(ops::by_name(name).is_none(), "{name}");
        }
    }

    #[test]
    fn a_word_that_is_nearly_right_is_suggested() {
        let names = || ["tanh", "add", "matmul", "while"].into_iter();
        assert_eq!(nearest("tahn", names()), Some("tanh"));
        assert_eq!(nearest("mat_mul", names()), Some("matmul"));
        assert_eq!(nearest("wihle", names()), Some("while"));
        assert_eq!(nearest("softmax", names()), None);
    }
}
