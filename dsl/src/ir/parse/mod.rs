//! The parser of the text form. `docs/ir.md` has the grammar.
//!
//! All errors of a text are reported at once. After an invalid statement the parser continues with
//! the next line, and reports no errors about the values that the statement would have defined. The
//! parser never panics, whatever the text.
//!
//! Types that follow from the operands may be omitted. The resulting graph has passed the
//! [verifier](fn@super::verify). The source locations of its nodes are those of the text.

mod constant;
mod control;
mod statement;

use super::infer::is_countable;
use super::lex::{Tok, Token, intern, lex};
use super::{Graph, GraphBuilder, QueueDecl, QueueId, Region, Value, VarDecl, VarId};
use crate::{DType, DeviceConstraint, Diagnostic, Dim, Loc, Shape, TensorType, Type};
use rustc_hash::FxHashMap;

impl Graph {
    /// Parses and verifies the text form of a graph. `file` names the text in messages, and need
    /// not be a file: it is never read.
    ///
    /// # Errors
    /// Returns all errors in the text, in order.
    ///
    /// ```
    /// use anabranch::Graph;
    ///
    /// let text =
    ///     "graph @f(%x: f32[n]) -> f32[n] {\n    %y = tanh %x : f32[n]\n    return %y\n}\n";
    /// assert_eq!(Graph::parse(text, "f.ir").unwrap().to_string(), text);
    ///
    /// let errors =
    ///     Graph::parse("graph @f(%x: f32[n]) { %y = tahn %x  return %y }", "f.ir").unwrap_err();
    /// assert_eq!(errors[0].message, "there is no operation `tahn`");
    /// ```
    pub fn parse(text: &str, file: &str) -> Result<Graph, Vec<Diagnostic>> {
        let file = intern(file);
        Graph::parse_in(text, file).map_err(|errors| Diagnostic::quoting(errors, file, text))
    }

    fn parse_in(text: &str, file: &'static str) -> Result<Graph, Vec<Diagnostic>> {
        let (tokens, errors) = lex(text, file);
        let mut parser = Parser {
            tokens,
            at: 0,
            graph: GraphBuilder::new(Graph::new("")),
            scopes: vec![FxHashMap::default()],
            vars: FxHashMap::default(),
            queues: FxHashMap::default(),
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
        Ok(parser.graph.into_graph())
    }
}

/// A marker for a statement whose error has been recorded.
struct StatementFailed;

type Parse<T> = Result<T, StatementFailed>;

/// The definition of a name.
#[derive(Clone, Copy)]
enum Symbol {
    Value(Value, Loc),
    /// An invalid definition, whose error has been reported.
    Broken,
    /// A use without a definition, reported by the error at this index.
    Undefined(usize),
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    graph: GraphBuilder,
    /// The names of each open region, the root first.
    scopes: Vec<FxHashMap<&'a str, Symbol>>,
    vars: FxHashMap<String, VarId>,
    queues: FxHashMap<String, QueueId>,
    errors: Vec<Diagnostic>,
}

/// A region parameter, as written.
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
        // The last token is the end, which is never consumed.
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        tok
    }

    fn error(&mut self, loc: Loc, message: impl Into<String>) -> StatementFailed {
        self.errors.push(Diagnostic::new(message).at(loc, ""));
        StatementFailed
    }

    fn unexpected(&mut self, expected: &str) -> StatementFailed {
        // A token missing at the end of a line is reported there, not at the start of the next
        // line.
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

    /// Parses items separated by commas, and consumes the closing character.
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

    /// Skips the rest of an invalid statement that began at `start`, to the first token of a line
    /// or the end of the region.
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

    /// Returns the value of a name, or `None` if its definition is invalid or missing, which has
    /// been reported.
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
                let error = Diagnostic::new(format!("`%{name}` is defined twice")).at(loc, "the second definition");
                self.errors.push(error.at(first, "the first definition"));
            }
            Some(Symbol::Undefined(error)) => {
                let error = &mut self.errors[error];
                error.message = format!("`%{name}` is used before it is defined");
                error.labels[0].1 = "used here".to_owned();
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
        let shape = Shape::from(self.list(']', Self::dim)?);
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
        if self.eat_word("list") {
            self.expect('<')?;
            let element = self.tensor_type()?;
            self.expect('>')?;
            return Ok(Type::List(element));
        }
        self.tensor_type().map(Type::Tensor)
    }

    /// Parses one type, or several in parentheses.
    fn types(&mut self) -> Parse<Vec<Type>> {
        if self.eat('(') { self.list(')', Self::ty) } else { Ok(vec![self.ty()?]) }
    }

    fn annotation(&mut self) -> Parse<Option<Vec<Type>>> {
        if self.eat(':') { self.types().map(Some) } else { Ok(None) }
    }

    /// Parses `on "/cpu:1"`, if present.
    fn on(&mut self) -> Parse<Option<DeviceConstraint>> {
        let loc = self.loc();
        if !self.eat_word("on") {
            return Ok(None);
        }
        let Tok::Str(name) = self.peek().clone() else {
            return Err(self.unexpected("the name of a device in quotes, as `\"/cpu:0\"`"));
        };
        let at_name = self.loc();
        self.next();
        match name.parse() {
            Ok(devices) => Ok(Some(DeviceConstraint::new(devices, loc))),
            Err(error) => {
                self.errors.push(Diagnostic { labels: vec![(at_name, String::new())], ..error });
                Err(StatementFailed)
            }
        }
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
                    let root = self.graph.root();
                    let value = self.graph.add_param(root, ty, None);
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
            let message =
                format!("the graph returns ({}), but its header declares ({})", list(&given), list(&declared));
            self.error(loc, message);
        }
        Ok(())
    }

    fn param(&mut self) -> Parse<Param<'a>> {
        let loc = self.loc();
        let Tok::Value(name) = *self.peek() else {
            return Err(self.unexpected("a parameter, as `%x`"));
        };
        self.next();
        let ty = if self.eat(':') { Some(self.ty()?) } else { None };
        Ok(Param { name, loc, ty })
    }

    /// Parses the statements and yields of a region after its opening brace, and the closing brace.
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
                Tok::Word("queue") => {
                    if self.queue_decl().is_err() {
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
            return Err(StatementFailed);
        }
        self.next();
        self.graph.region_mut(region).yields = yields?;
        Ok(())
    }

    fn var_decl(&mut self) -> Parse<()> {
        self.next();
        let loc = self.loc();
        let Tok::At(name) = self.peek().clone() else {
            return Err(self.unexpected("a variable, as `@w`"));
        };
        self.next();
        if self.scopes.len() > 1 {
            self.error(loc, "variables are declared at the start of the graph");
        }
        self.expect(':')?;
        let ty = self.tensor_type()?;
        let on = self.on()?;
        let id = VarId::from_index(self.graph.vars.len());
        if self.vars.contains_key(&name) {
            return Err(self.error(loc, format!("V8: the variable `{name}` is declared twice")));
        }
        self.vars.insert(name.clone(), id);
        self.graph.vars.push(VarDecl { name, ty, on });
        Ok(())
    }

    fn var(&mut self) -> Parse<VarId> {
        let loc = self.loc();
        let Tok::At(name) = self.peek().clone() else {
            return Err(self.unexpected("a variable, as `@w`"));
        };
        self.next();
        let id = self.vars.get(&name).copied();
        id.ok_or_else(|| self.error(loc, format!("V8: the variable `{name}` is not declared")))
    }

    fn queue_decl(&mut self) -> Parse<()> {
        self.next();
        let loc = self.loc();
        let Tok::At(name) = self.peek().clone() else {
            return Err(self.unexpected("a queue, as `@q`"));
        };
        self.next();
        if self.scopes.len() > 1 {
            self.error(loc, "queues are declared at the start of the graph");
        }
        self.expect(':')?;
        let mut element = vec![self.tensor_type()?];
        while self.eat(',') {
            element.push(self.tensor_type()?);
        }
        if self.queues.contains_key(&name) {
            return Err(self.error(loc, format!("V14: the queue `{name}` is declared twice")));
        }
        self.queues.insert(name.clone(), QueueId::from_index(self.graph.queues.len()));
        self.graph.queues.push(QueueDecl { name, element });
        Ok(())
    }

    fn queue(&mut self) -> Parse<QueueId> {
        let loc = self.loc();
        let Tok::At(name) = self.peek().clone() else {
            return Err(self.unexpected("a queue, as `@q`"));
        };
        self.next();
        let id = self.queues.get(&name).copied();
        id.ok_or_else(|| self.error(loc, format!("V14: the queue `{name}` is not declared")))
    }

    fn operand(&mut self) -> Parse<Value> {
        let loc = self.loc();
        let Tok::Value(name) = *self.peek() else {
            return Err(self.unexpected("a value, as `%x`"));
        };
        self.next();
        self.lookup(name, loc).ok_or(StatementFailed)
    }

    /// Parses values separated by commas, possibly none. All are looked up, so that all errors are
    /// reported.
    fn operands(&mut self) -> Parse<Vec<Value>> {
        let mut values = Ok(Vec::new());
        while let Tok::Value(name) = *self.peek() {
            let loc = self.loc();
            self.next();
            match (self.lookup(name, loc), &mut values) {
                (Some(v), Ok(list)) => list.push(v),
                _ => values = Err(StatementFailed),
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
}
