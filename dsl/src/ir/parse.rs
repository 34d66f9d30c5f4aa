//! The text form of a graph: the parser. `docs/ir.md` has the grammar.
//!
//! All errors of a text are reported at once: after a statement that is wrong the parser goes on with the next line, and says
//! nothing more about the values that the statement should have defined. It never panics, whatever the text.
//!
//! Types may be left out where they follow from the operands. The graph that comes out passed the [verifier](super::verify);
//! the places of its nodes are those of the text.

use super::infer::{check_attrs, count, is_countable, kind_name, result_types};
use super::lex::{Tok, Token, intern, lex};
use super::literal::{Literal, read_elements};
use super::print::MAX_FILL;
use super::{Attr, AttrKind, Attrs, Graph, Node, Op, Region, StackOp, Value, VarDecl, VarId};
use crate::ops::{self, OpDef};
use crate::{Buffer, DType, Diagnostic, Dim, HostTensor, Loc, Shape, TensorType, Type};
use std::collections::HashMap;

/// How deep regions may be nested in a text.
const MAX_DEPTH: usize = 128;

/// The operations of the text form that are not in the table.
const BUILTINS: &[&str] = &[
    "constant", "read", "assign", "assert", "stack_new", "push", "pop", "stack_zeros_like", "stack_add", "cond", "while",
];

impl Graph {
    /// The graph that a text stands for, verified; `file` is the name of the text in messages.
    ///
    /// # Errors
    /// Everything that is wrong with the text, in its order.
    ///
    /// ```
    /// use anabranch_dsl::Graph;
    ///
    /// let text = "graph @f(%x: f32[n]) -> f32[n] {\n    %y = tanh %x : f32[n]\n    return %y\n}\n";
    /// assert_eq!(Graph::parse(text, "f.ir").unwrap().to_string(), text);
    ///
    /// let errors = Graph::parse("graph @f(%x: f32[n]) { %y = tahn %x  return %y }", "f.ir").unwrap_err();
    /// assert_eq!(errors[0].message, "there is no operation `tahn`");
    /// ```
    pub fn parse(text: &str, file: &str) -> Result<Graph, Vec<Diagnostic>> {
        let (tokens, errors) = lex(text, intern(file));
        let mut parser = Parser {
            tokens,
            at: 0,
            graph: Graph::new(""),
            scopes: vec![HashMap::new()],
            vars: HashMap::new(),
            errors,
        };
        if parser.graph().is_ok() && parser.peek() != &Tok::End {
            let found = parser.peek().describe();
            parser.error(parser.loc(), format!("expected the end of the text after the graph, found {found}"));
        }
        if !parser.errors.is_empty() {
            parser.errors.sort_by_key(|e| e.loc().map(|l| (l.line, l.column)));
            return Err(parser.errors);
        }
        super::verify(&parser.graph)?;
        Ok(parser.graph)
    }
}

/// The error is in the list; the statement is given up.
struct Failed;

type Parse<T> = Result<T, Failed>;

/// What a name stands for.
#[derive(Clone, Copy)]
enum Symbol {
    Value(Value, Loc),
    /// Its definition is wrong, which was said.
    Broken,
    /// It was used without a definition: the error at that index says so.
    Undefined(usize),
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    graph: Graph,
    /// The names of each region that is open, the root first.
    scopes: Vec<HashMap<&'a str, Symbol>>,
    vars: HashMap<String, VarId>,
    errors: Vec<Diagnostic>,
}

/// A parameter of a region as it is written.
struct Param<'a> {
    name: &'a str,
    loc: Loc,
    ty: Option<Type>,
}

impl<'a> Parser<'a> {
    // Tokens.

    fn peek(&self) -> &Tok<'a> {
        &self.tokens[self.at].tok
    }

    fn loc(&self) -> Loc {
        self.tokens[self.at].loc
    }

    fn next(&mut self) -> Tok<'a> {
        let tok = self.tokens[self.at].tok.clone();
        // The last token is the end; it stays.
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        tok
    }

    fn error(&mut self, loc: Loc, message: impl Into<String>) -> Failed {
        self.errors.push(Diagnostic::new(message).at(loc, ""));
        Failed
    }

    fn unexpected(&mut self, expected: &str) -> Failed {
        // What is missing at the end of a line is said there, not where the next one begins.
        if self.tokens[self.at].first && self.at > 0 && !self.is('}') {
            let before = &self.tokens[self.at - 1];
            let message = format!("expected {expected} after {}", before.tok.describe());
            return self.error(before.loc, message);
        }
        let message = format!("expected {expected}, found {}", self.peek().describe());
        self.error(self.loc(), message)
    }

    fn is(&self, c: char) -> bool {
        *self.peek() == Tok::Punct(c)
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.is(c);
        if found {
            self.next();
        }
        found
    }

    fn expect(&mut self, c: char) -> Parse<()> {
        if self.eat(c) { Ok(()) } else { Err(self.unexpected(&format!("`{c}`"))) }
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = *self.peek() == Tok::Word(word);
        if found {
            self.next();
        }
        found
    }

    fn expect_word(&mut self, word: &str) -> Parse<()> {
        if self.eat_word(word) { Ok(()) } else { Err(self.unexpected(&format!("`{word}`"))) }
    }

    /// Items separated by commas up to a closing character, which is taken.
    fn list<T>(&mut self, close: char, mut item: impl FnMut(&mut Self) -> Parse<T>) -> Parse<Vec<T>> {
        let mut items = Vec::new();
        if self.eat(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat(close) {
                return Ok(items);
            }
            if !self.eat(',') {
                return Err(self.unexpected(&format!("`,` or `{close}`")));
            }
        }
    }

    /// Goes on after a statement that is wrong and began at `start`: to the first token of a line, or the end of the region.
    fn recover(&mut self, start: usize) {
        let mut depth = 0usize;
        loop {
            if depth == 0 && self.at > start && self.tokens[self.at].first {
                return;
            }
            match self.peek() {
                Tok::End => return,
                Tok::Punct('}') if depth == 0 => return,
                Tok::Punct('}') => depth -= 1,
                Tok::Punct('{') => depth += 1,
                _ => {}
            }
            self.next();
        }
    }

    // Names.

    /// The value of a name; `None` if its definition is wrong or missing, which has been said.
    fn lookup(&mut self, name: &'a str, loc: Loc) -> Option<Value> {
        match self.scopes.iter().rev().find_map(|s| s.get(name)) {
            Some(Symbol::Value(v, _)) => Some(*v),
            Some(Symbol::Broken | Symbol::Undefined(_)) => None,
            None => {
                self.error(loc, format!("`%{name}` is not defined"));
                let scope = self.scopes.last_mut().expect("the root's scope is open");
                scope.insert(name, Symbol::Undefined(self.errors.len() - 1));
                None
            }
        }
    }

    fn define(&mut self, name: &'a str, loc: Loc, symbol: Symbol) {
        let scope = self.scopes.last_mut().expect("the root's scope is open");
        match scope.insert(name, symbol) {
            Some(Symbol::Value(_, first)) => {
                let error = Diagnostic::new(format!("`%{name}` is defined twice")).at(loc, "");
                self.errors.push(error.at(first, "the first definition"));
            }
            Some(Symbol::Undefined(error)) => {
                let error = &mut self.errors[error];
                error.message = format!("`%{name}` is used before it is defined");
                error.labels.push((loc, "defined here".to_owned()));
            }
            Some(Symbol::Broken) | None => {}
        }
        if let Symbol::Value(value, _) = symbol
            && !name.bytes().all(|b| b.is_ascii_digit())
        {
            self.graph.value_mut(value).name = Some(intern(name));
        }
    }

    // Types.

    fn word(&mut self, expected: &str) -> Parse<&'a str> {
        match *self.peek() {
            Tok::Word(word) => {
                self.next();
                Ok(word)
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    fn dtype(&mut self) -> Parse<DType> {
        let loc = self.loc();
        let word = self.word("an element type")?;
        DType::from_name(word).ok_or_else(|| self.error(loc, format!("there is no element type `{word}`")))
    }

    fn dim(&mut self) -> Parse<Dim> {
        let loc = self.loc();
        match self.next() {
            Tok::Punct('?') => Ok(Dim::Unknown),
            Tok::Word(name) => Ok(Dim::Named(name.into())),
            Tok::Str(name) => Ok(Dim::Named(name.into())),
            Tok::Number(n) => match n.parse() {
                Ok(n) => Ok(Dim::Known(n)),
                Err(_) => Err(self.error(loc, format!("`{n}` is not an extent"))),
            },
            other => {
                let message = format!("expected an extent, a name or `?`, found {}", other.describe());
                Err(self.error(loc, message))
            }
        }
    }

    fn shape(&mut self) -> Parse<Shape> {
        let loc = self.loc();
        self.expect('[')?;
        let shape = Shape(self.list(']', Self::dim)?);
        if is_countable(&shape) { Ok(shape) } else { Err(self.error(loc, format!("the shape {shape} is too large"))) }
    }

    fn tensor_type(&mut self) -> Parse<TensorType> {
        let dtype = self.dtype()?;
        Ok(TensorType { dtype, shape: self.shape()? })
    }

    fn ty(&mut self) -> Parse<Type> {
        if self.eat_word("stack") {
            self.expect('<')?;
            let element = self.tensor_type()?;
            self.expect('>')?;
            return Ok(Type::Stack(element));
        }
        self.tensor_type().map(Type::Tensor)
    }

    /// One type, or several in parentheses.
    fn types(&mut self) -> Parse<Vec<Type>> {
        if self.eat('(') { self.list(')', Self::ty) } else { Ok(vec![self.ty()?]) }
    }

    fn annotation(&mut self) -> Parse<Option<Vec<Type>>> {
        if self.eat(':') { self.types().map(Some) } else { Ok(None) }
    }

    // The graph.

    fn graph(&mut self) -> Parse<()> {
        self.expect_word("graph")?;
        let Tok::At(name) = self.peek().clone() else {
            return Err(self.unexpected("the name of the graph, as `@f`"));
        };
        self.next();
        self.graph.name = name;
        self.expect('(')?;
        let params = self.list(')', Self::param)?;
        for p in params {
            match p.ty {
                Some(ty) => {
                    let value = self.graph.add_param(self.graph.root(), ty, None);
                    self.define(p.name, p.loc, Symbol::Value(value, p.loc));
                }
                None => {
                    self.error(p.loc, format!("the parameter `%{}` needs a type", p.name));
                    self.define(p.name, p.loc, Symbol::Broken);
                }
            }
        }
        let loc = self.loc();
        let declared = if *self.peek() == Tok::Arrow {
            self.next();
            Some(self.types()?)
        } else {
            None
        };
        self.expect('{')?;
        let root = self.graph.root();
        self.region_body(root, "return")?;
        let given: Vec<Type> = self.graph.outputs().iter().map(|&v| self.graph.ty(v).clone()).collect();
        if let Some(declared) = declared
            && declared != given
            && self.errors.is_empty()
        {
            let list = |types: &[Type]| types.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
            let message = format!("the graph returns ({}), its head says ({})", list(&given), list(&declared));
            self.error(loc, message);
        }
        Ok(())
    }

    fn param(&mut self) -> Parse<Param<'a>> {
        let loc = self.loc();
        let Tok::Value(name) = *self.peek() else { return Err(self.unexpected("a parameter, as `%x`")) };
        self.next();
        let ty = if self.eat(':') { Some(self.ty()?) } else { None };
        Ok(Param { name, loc, ty })
    }

    /// The statements of a region after its opening brace, what it yields, and the closing brace.
    fn region_body(&mut self, region: Region, end: &str) -> Parse<()> {
        loop {
            let start = self.at;
            match self.peek() {
                Tok::Punct('}') => {
                    let failed = self.unexpected(&format!("`{end}`"));
                    self.next();
                    return Err(failed);
                }
                Tok::End => return Err(self.unexpected(&format!("`{end}`"))),
                Tok::Word(word) if *word == end => break,
                Tok::Word("var") => {
                    if self.var_decl().is_err() {
                        self.recover(start);
                    }
                }
                _ => {
                    if self.statement(region).is_err() {
                        self.recover(start);
                    }
                }
            }
        }
        self.next();
        let yields = self.operands();
        if !self.is('}') {
            self.unexpected("`}`");
            while !self.is('}') && *self.peek() != Tok::End {
                self.recover(self.at);
            }
            self.eat('}');
            return Err(Failed);
        }
        self.next();
        self.graph.region_mut(region).yields = yields?;
        Ok(())
    }

    fn var_decl(&mut self) -> Parse<()> {
        self.next();
        let loc = self.loc();
        let Tok::At(name) = self.peek().clone() else { return Err(self.unexpected("a variable, as `@w`")) };
        self.next();
        if self.scopes.len() > 1 {
            self.error(loc, "variables are declared at the start of the graph");
        }
        self.expect(':')?;
        let ty = self.tensor_type()?;
        let id = VarId::from_index(self.graph.vars.len());
        if self.vars.contains_key(&name) {
            return Err(self.error(loc, format!("V8: the variable `{name}` is declared twice")));
        }
        self.vars.insert(name.clone(), id);
        self.graph.vars.push(VarDecl { name, ty });
        Ok(())
    }

    fn var(&mut self) -> Parse<VarId> {
        let loc = self.loc();
        let Tok::At(name) = self.peek().clone() else { return Err(self.unexpected("a variable, as `@w`")) };
        self.next();
        let id = self.vars.get(&name).copied();
        id.ok_or_else(|| self.error(loc, format!("V8: the variable `{name}` is not declared")))
    }

    fn operand(&mut self) -> Parse<Value> {
        let loc = self.loc();
        let Tok::Value(name) = *self.peek() else { return Err(self.unexpected("a value, as `%x`")) };
        self.next();
        self.lookup(name, loc).ok_or(Failed)
    }

    /// Values separated by commas, perhaps none. All are looked at, so that all that is wrong is found.
    fn operands(&mut self) -> Parse<Vec<Value>> {
        let mut values = Ok(Vec::new());
        while let Tok::Value(name) = *self.peek() {
            let loc = self.loc();
            self.next();
            match (self.lookup(name, loc), &mut values) {
                (Some(v), Ok(list)) => list.push(v),
                _ => values = Err(Failed),
            }
            if !self.eat(',') {
                break;
            }
            if !matches!(self.peek(), Tok::Value(_) | Tok::Str(_)) {
                return Err(self.unexpected("a value, as `%x`"));
            }
        }
        values
    }

    // Statements.

    fn statement(&mut self, region: Region) -> Parse<()> {
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
                self.graph.append(node);
                let results = self.graph.node(node).results.clone();
                for (&(name, loc), value) in names.iter().zip(results) {
                    self.define(name, loc, Symbol::Value(value, loc));
                }
                Ok(())
            }
            Err(Failed) => {
                for (name, loc) in names {
                    self.define(name, loc, Symbol::Broken);
                }
                Err(Failed)
            }
        }
    }

    fn operation(&mut self, region: Region, loc: Loc, n_names: usize) -> Parse<Node> {
        let op_loc = self.loc();
        let name = self.word("an operation")?;
        let node = match name {
            "cond" => self.cond(region, loc)?,
            "while" => self.while_loop(region, loc)?,
            _ => self.simple(region, name, loc, op_loc)?,
        };
        let n = self.graph.node(node).results.len();
        if n != n_names {
            let message = format!("`{name}` gives {}, {} named", count(n, "value"), count(n_names, "value"));
            return Err(self.error(op_loc, message));
        }
        Ok(node)
    }

    fn simple(&mut self, region: Region, name: &str, loc: Loc, op_loc: Loc) -> Parse<Node> {
        let (op, operands) = match name {
            "constant" => {
                let elements = self.elements()?;
                let types = self.annotation()?;
                let Some([Type::Tensor(ty)]) = types.as_deref() else {
                    return Err(self.error(op_loc, "a constant needs its type, as `: f32[2]`"));
                };
                let tensor = elements.tensor(ty).map_err(|(loc, message)| self.error(loc, message))?;
                let node = self.graph.make_node(region, Op::Constant(tensor), vec![], [ty.clone().into()], loc);
                return Ok(node);
            }
            "stack_new" => {
                let types = self.annotation()?;
                let Some([Type::Stack(element)]) = types.as_deref() else {
                    return Err(self.error(op_loc, "an empty stack needs its type, as `: stack<f32[2]>`"));
                };
                let op = Op::Stack(StackOp::New(element.clone()));
                return Ok(self.graph.make_node(region, op, vec![], [Type::Stack(element.clone())], loc));
            }
            "read" => (Op::Read(self.var()?), vec![]),
            "assign" => {
                let var = self.var()?;
                self.expect(',')?;
                (Op::Assign(var), vec![self.operand()?])
            }
            "assert" => {
                let operands = self.operands()?;
                let Tok::Str(message) = self.peek().clone() else {
                    return Err(self.unexpected("the message of the assertion"));
                };
                self.next();
                (Op::Assert { message }, operands)
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
                    let all = ops::all().map(|d| d.name).chain(BUILTINS.iter().copied());
                    if let Some(near) = nearest(name, all) {
                        error = error.help(format!("there is `{near}`"));
                    }
                    self.errors.push(error);
                    return Err(Failed);
                }
            },
        };
        let types = self.annotation()?;
        let node = self.graph.make_node(region, op, operands, [], loc);
        self.set_types(node, types, op_loc)?;
        Ok(node)
    }

    /// Gives a node its results: of the types that are written, or else of those that follow from the operands.
    fn set_types(&mut self, node: Node, types: Option<Vec<Type>>, loc: Loc) -> Parse<()> {
        let types = match types {
            Some(types) => types,
            None if matches!(self.graph.node(node).op, Op::Assign(_) | Op::Assert { .. }) => vec![],
            None => result_types(&self.graph, node).map_err(|broken| {
                let mut error = broken.error.at(self.graph.node(node).op.name(), loc);
                error.message = format!("V{}: {}", broken.invariant, error.message);
                self.errors.push(error);
                Failed
            })?,
        };
        for ty in types {
            self.graph.add_result(node, ty);
        }
        Ok(())
    }

    // Attributes.

    fn attrs(&mut self, def: &'static OpDef, op_loc: Loc) -> Parse<Attrs> {
        let mut given: Vec<(&'static str, Attr)> = Vec::new();
        if self.eat('{') {
            let list = self.list('}', |p| {
                let loc = p.loc();
                let word = p.word("the name of an attribute")?;
                let Some(&(name, kind)) = def.attrs.iter().find(|(name, _)| *name == word) else {
                    let mut error = Diagnostic::new(format!("V4: {} has no attribute `{word}`", def.name)).at(loc, "");
                    let names: Vec<&str> = def.attrs.iter().map(|(name, _)| *name).collect();
                    if !names.is_empty() {
                        error = error.help(format!("it has {}", names.join(", ")));
                    }
                    p.errors.push(error);
                    return Err(Failed);
                };
                if given.iter().any(|(n, _)| *n == name) {
                    return Err(p.error(loc, format!("the attribute `{name}` is given twice")));
                }
                p.expect('=')?;
                given.push((name, p.attr(name, kind)?));
                Ok(())
            });
            if list.is_err() {
                // The closing brace is of this list, not of the region.
                while !self.is('}') && !self.tokens[self.at].first && *self.peek() != Tok::End {
                    self.next();
                }
                self.eat('}');
                return Err(Failed);
            }
        }
        let mut attrs = Attrs::none();
        for &(name, _) in def.attrs {
            match given.iter().find(|(n, _)| *n == name) {
                Some((_, attr)) => attrs = attrs.with(name, attr.clone()),
                None => return Err(self.error(op_loc, format!("V4: {} needs the attribute `{name}`", def.name))),
            }
        }
        check_attrs(def, &attrs).map_err(|b| self.error(op_loc, format!("V4: {}: {}", def.name, b.error.message)))?;
        Ok(attrs)
    }

    fn attr(&mut self, name: &str, kind: AttrKind) -> Parse<Attr> {
        let loc = self.loc();
        let start = self.errors.len();
        let attr = match kind {
            AttrKind::Int => self.int().map(Attr::Int),
            AttrKind::Ints => self.expect('[').and_then(|()| self.list(']', Self::int)).map(Attr::Ints),
            AttrKind::Float => self.element_word().and_then(|w| Literal::read(w).ok_or(Failed)).map(Attr::Float),
            AttrKind::Bool => self.element_word().and_then(|w| Literal::read(w).ok_or(Failed)).map(Attr::Bool),
            AttrKind::DType => self.dtype().map(Attr::DType),
            AttrKind::Shape => self.shape().map(Attr::Shape),
        };
        attr.map_err(|Failed| {
            self.errors.truncate(start);
            self.error(loc, format!("V4: the attribute `{name}` is {}", kind_name(kind)))
        })
    }

    fn int(&mut self) -> Parse<i64> {
        let word = self.element_word()?;
        word.parse().map_err(|_| Failed)
    }

    fn element_word(&mut self) -> Parse<&'a str> {
        match *self.peek() {
            Tok::Word(word) | Tok::Number(word) => {
                self.next();
                Ok(word)
            }
            _ => Err(self.unexpected("a number")),
        }
    }

    // Constants.

    fn elements(&mut self) -> Parse<Elements<'a>> {
        let mut e = Elements { loc: self.loc(), words: vec![], places: vec![], extents: vec![], rank: None };
        // The number of items so far in each list that is open.
        let mut open: Vec<usize> = Vec::new();
        loop {
            let loc = self.loc();
            if let Some(count) = open.last_mut() {
                *count += 1;
            }
            if self.eat('[') {
                if e.rank.is_some_and(|rank| open.len() >= rank) {
                    return Err(self.error(loc, "a list where an element is expected"));
                }
                open.push(0);
                if e.extents.len() < open.len() {
                    e.extents.push(None);
                }
                if !self.is(']') {
                    continue;
                }
            } else {
                let word = self.element_word()?;
                if *e.rank.get_or_insert(open.len()) != open.len() {
                    return Err(self.error(loc, "an element where a list is expected"));
                }
                e.words.push(word);
                e.places.push(loc);
            }
            while let Some(&count) = open.last()
                && self.is(']')
            {
                let extent = &mut e.extents[open.len() - 1];
                if *extent.get_or_insert(count) != count {
                    return Err(self.error(self.loc(), "lists of different lengths"));
                }
                open.pop();
                self.next();
            }
            if open.is_empty() {
                return Ok(e);
            }
            self.expect(',')?;
            if self.is(']') {
                return Err(self.unexpected("an element"));
            }
        }
    }

    // Control flow.

    /// Parses a region with its parameters defined. `types` are those of what is given for the parameters.
    fn region(&mut self, params: &[Param<'a>], types: &[Type]) -> Parse<Region> {
        if self.scopes.len() > MAX_DEPTH {
            return Err(self.error(self.loc(), format!("regions are nested more than {MAX_DEPTH} deep")));
        }
        self.expect('{')?;
        let region = self.graph.add_region();
        self.scopes.push(HashMap::new());
        for (i, p) in params.iter().enumerate() {
            match p.ty.as_ref().or(types.get(i)) {
                Some(ty) => {
                    let value = self.graph.add_param(region, ty.clone(), None);
                    self.define(p.name, p.loc, Symbol::Value(value, p.loc));
                }
                None => {
                    self.error(p.loc, format!("V6: nothing is given for the parameter `%{}`", p.name));
                    self.define(p.name, p.loc, Symbol::Broken);
                }
            }
        }
        let body = self.region_body(region, "yield");
        self.scopes.pop();
        body.map(|()| region)
    }

    fn cond(&mut self, region: Region, loc: Loc) -> Parse<Node> {
        let operands = self.operands();
        let annotation = self.annotation()?;
        let given: Vec<Type> = match &operands {
            Ok(values) => values.iter().skip(1).map(|&v| self.graph.ty(v).clone()).collect(),
            Err(Failed) => vec![],
        };
        let mut regions = Vec::new();
        for word in ["then", "else"] {
            self.expect_word(word)?;
            self.expect('(')?;
            let params = self.list(')', Self::param)?;
            if operands.is_ok() {
                regions.push(self.region(&params, &given));
            } else {
                // What the branches capture is unknown: nothing in them can be said to be wrong.
                self.expect('{')?;
                self.skip_region();
            }
        }
        let regions = regions.into_iter().collect::<Parse<Vec<_>>>();
        let (operands, regions) = (operands?, regions?);
        let node = self.graph.make_node(region, Op::Cond, operands, [], loc);
        self.graph.set_regions(node, regions);
        self.set_types(node, annotation, loc)?;
        Ok(node)
    }

    fn skip_region(&mut self) {
        while !self.eat('}') && *self.peek() != Tok::End {
            if self.eat('{') {
                let mut depth = 1;
                while depth > 0 && *self.peek() != Tok::End {
                    match self.next() {
                        Tok::Punct('{') => depth += 1,
                        Tok::Punct('}') => depth -= 1,
                        _ => {}
                    }
                }
            } else {
                self.next();
            }
        }
    }

    fn while_loop(&mut self, region: Region, loc: Loc) -> Parse<Node> {
        self.expect('(')?;
        let (mut params, mut operands) = (Vec::new(), Ok(Vec::new()));
        let mut n_carried = None;
        while !self.eat(')') {
            if n_carried.is_none() && self.eat('|') {
                n_carried = Some(params.len());
                continue;
            }
            if !params.is_empty() && n_carried != Some(params.len()) {
                self.expect(',')?;
            }
            params.push(self.param()?);
            self.expect('=')?;
            let value_loc = self.loc();
            let Tok::Value(name) = *self.peek() else { return Err(self.unexpected("a value, as `%x`")) };
            self.next();
            match (self.lookup(name, value_loc), &mut operands) {
                (Some(v), Ok(list)) => list.push(v),
                _ => operands = Err(Failed),
            }
        }
        let annotation = self.annotation()?;
        let given: Vec<Type> = match &operands {
            Ok(values) => values.iter().map(|&v| self.graph.ty(v).clone()).collect(),
            Err(Failed) => vec![],
        };
        let mut regions = Vec::new();
        for word in ["cond", "body"] {
            self.expect_word(word)?;
            if operands.is_ok() {
                regions.push(self.region(&params, &given));
            } else {
                self.expect('{')?;
                self.skip_region();
            }
        }
        let regions = regions.into_iter().collect::<Parse<Vec<_>>>();
        let (operands, regions) = (operands?, regions?);
        let n_carried = n_carried.unwrap_or(params.len());
        let types = annotation.unwrap_or_else(|| {
            let params = &self.graph.region(regions[1]).params[..n_carried];
            params.iter().map(|&p| self.graph.ty(p).clone()).collect()
        });
        let node = self.graph.make_node(region, Op::While, operands, types, loc);
        self.graph.set_regions(node, regions);
        if self.graph.n_carried(node) != n_carried {
            let n = self.graph.n_carried(node);
            return Err(self.error(loc, format!("V5: while: {n_carried} loop variables, {n} results")));
        }
        Ok(node)
    }
}

/// The elements of a constant as they are written.
struct Elements<'a> {
    loc: Loc,
    words: Vec<&'a str>,
    places: Vec<Loc>,
    /// The extents of the lists, outermost first, as far as they are known.
    extents: Vec<Option<usize>>,
    /// How deep in lists the elements are.
    rank: Option<usize>,
}

impl Elements<'_> {
    /// The tensor of a type: the elements in order, or the only one everywhere.
    fn tensor(&self, ty: &TensorType) -> Result<HostTensor, (Loc, String)> {
        let Some(shape) = ty.shape.known() else {
            return Err((self.loc, format!("a constant of type {ty}: its extents must be known")));
        };
        let size: usize = ty.shape.size().expect("all extents are known");
        let read = read_elements(ty.dtype, &self.words);
        let data = read.map_err(|i| (self.places[i], format!("`{}` is not an element of type {}", self.words[i], ty.dtype)))?;
        if self.rank == Some(0) {
            if size > MAX_FILL {
                return Err((self.loc, format!("{ty} is too large for a constant")));
            }
            return Ok(HostTensor::from_buffer(shape, fill(&data, size)));
        }
        let fits = self.extents.len() <= shape.len()
            && self.rank.is_none_or(|rank| rank == shape.len())
            && self.extents.iter().zip(&shape).all(|(e, n)| *e == Some(*n))
            && size == self.words.len();
        if !fits {
            return Err((self.loc, format!("the lists do not have the shape of {ty}")));
        }
        Ok(HostTensor::from_buffer(shape, data))
    }
}

/// The one element of a buffer, `n` times.
fn fill(one: &Buffer, n: usize) -> Buffer {
    crate::match_buffer!(one, d => crate::Element::into_buffer(vec![d[0]; n]))
}

/// The name most like `word`, if one is alike.
fn nearest<'n>(word: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let limit = word.chars().count().div_ceil(3);
    names.map(|n| (distance(word, n), n)).filter(|(d, _)| *d <= limit).min().map(|(_, n)| n)
}

/// How many letters must be added, removed or replaced to make one word the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
