//! Parsing of branches, loops and calls.

use super::{Param, Parse, Parser, StatementFailed, Symbol};
use crate::ir::lex::Tok;
use crate::ir::{CallKind, InsertPoint, Node, Op, Origin, Region, Value};
use crate::{Loc, Type};
use rustc_hash::FxHashMap;
use std::num::NonZeroU32;

/// Maximum nesting depth of regions in a text.
const MAX_DEPTH: usize = 128;

/// Region parameters with their arguments.
struct ParamBindings<'a> {
    params: Vec<Param<'a>>,
    operands: Parse<Vec<Value>>,
    /// The number of parameters before the bar, if there is one.
    bar: Option<usize>,
}

impl<'a> Parser<'a> {
    /// Parses a region with its parameters defined. `types` are the types of their arguments.
    fn region(&mut self, params: &[Param<'a>], types: &[Type]) -> Parse<Region> {
        if self.scopes.len() > MAX_DEPTH {
            return Err(self.error(self.loc(), format!("regions are nested more than {MAX_DEPTH} deep")));
        }
        self.expect('{')?;
        let region = self.graph.add_region();
        self.scopes.push(FxHashMap::default());
        for (i, p) in params.iter().enumerate() {
            match p.ty.as_ref().or(types.get(i)) {
                Some(ty) => {
                    let value = self.graph.add_param(region, ty.clone(), None);
                    self.define(p.name, p.loc, Symbol::Value(value, p.loc));
                }
                None => {
                    self.error(p.loc, format!("V6: the parameter `%{}` has no argument", p.name));
                    self.define(p.name, p.loc, Symbol::Broken);
                }
            }
        }
        let body = self.region_body(region, "yield");
        self.scopes.pop();
        body.map(|()| region)
    }

    /// Parses a region of a node. If the operands are invalid, the region is skipped, since the
    /// types of its arguments are unknown.
    fn region_of(
        &mut self,
        operands: &Parse<Vec<Value>>,
        params: &[Param<'a>],
        given: &[Type],
    ) -> Parse<Option<Parse<Region>>> {
        if operands.is_ok() {
            return Ok(Some(self.region(params, given)));
        }
        self.expect('{')?;
        self.skip_region();
        Ok(None)
    }

    pub(super) fn cond(&mut self, region: Region, loc: Loc) -> Parse<Node> {
        let operands = self.operands();
        let annotation = self.annotation()?;
        let on = self.on()?;
        let given: Vec<Type> = match &operands {
            Ok(values) => values.iter().skip(1).map(|&v| self.graph.ty(v).clone()).collect(),
            Err(StatementFailed) => vec![],
        };
        let mut regions = Vec::new();
        for word in ["then", "else"] {
            self.expect_word(word)?;
            self.expect('(')?;
            let params = self.list(')', Self::param)?;
            regions.extend(self.region_of(&operands, &params, &given)?);
        }
        let regions = regions.into_iter().collect::<Parse<Vec<_>>>();
        let (operands, regions) = (operands?, regions?);
        self.graph.at(InsertPoint::End(region), Origin { loc, on, ..Origin::UNKNOWN });
        self.add(Op::Cond, operands, regions, annotation, loc)
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

    /// Parses parameters with their arguments: `(%x = %a | %w = %w)`.
    fn bound_params(&mut self) -> Parse<ParamBindings<'a>> {
        self.expect('(')?;
        let (mut params, mut operands) = (Vec::new(), Ok(Vec::new()));
        let mut bar = None;
        while !self.eat(')') {
            if bar.is_none() && self.eat('|') {
                bar = Some(params.len());
                continue;
            }
            if !params.is_empty() && bar != Some(params.len()) {
                self.expect(',')?;
            }
            params.push(self.param()?);
            self.expect('=')?;
            let value_loc = self.loc();
            let Tok::Value(name) = *self.peek() else {
                return Err(self.unexpected("a value, as `%x`"));
            };
            self.next();
            match (self.lookup(name, value_loc), &mut operands) {
                (Some(v), Ok(list)) => list.push(v),
                _ => operands = Err(StatementFailed),
            }
        }
        Ok(ParamBindings { params, operands, bar })
    }

    pub(super) fn call(&mut self, region: Region, kind: CallKind, loc: Loc) -> Parse<Node> {
        let ParamBindings { mut params, operands, bar } = self.bound_params()?;
        let annotation = self.annotation()?;
        let on = self.on()?;
        let given: Vec<Type> = match &operands {
            Ok(values) => values.iter().map(|&v| self.graph.ty(v).clone()).collect(),
            Err(StatementFailed) => vec![],
        };
        let custom = matches!(kind, CallKind::CustomGradient { .. });
        let kind = if custom { CallKind::CustomGradient { args: bar.unwrap_or(params.len()) } } else { kind };
        if !custom && bar.is_some() {
            return Err(self.error(loc, format!("`{}` cannot have captures after a bar", kind.name())));
        }
        let words: &[&str] = if custom { &["forward", "gradient"] } else { &["body"] };
        let mut regions = Vec::new();
        for (i, word) in words.iter().enumerate() {
            self.expect_word(word)?;
            if i > 0 {
                self.expect('(')?;
                params.extend(self.list(')', Self::param)?);
            }
            regions.extend(self.region_of(&operands, &params, &given)?);
        }
        let regions = regions.into_iter().collect::<Parse<Vec<_>>>();
        let (operands, regions) = (operands?, regions?);
        self.graph.at(InsertPoint::End(region), Origin { loc, on, ..Origin::UNKNOWN });
        self.add(Op::Call(kind), operands, regions, annotation, loc)
    }

    fn parallel_iterations(&mut self) -> Parse<Option<NonZeroU32>> {
        if !self.eat_word("parallel_iterations") {
            return Ok(None);
        }
        let n = if let Tok::Number(n) = *self.peek() { n.parse().ok() } else { None };
        let n = n.ok_or_else(|| self.unexpected("a number of iterations, at least 1"))?;
        self.next();
        Ok(Some(n))
    }

    pub(super) fn while_loop(&mut self, region: Region, loc: Loc) -> Parse<Node> {
        let ParamBindings { params, operands, bar: n_vars } = self.bound_params()?;
        let annotation = self.annotation()?;
        let parallel_iterations = self.parallel_iterations()?;
        let on = self.on()?;
        let given: Vec<Type> = match &operands {
            Ok(values) => values.iter().map(|&v| self.graph.ty(v).clone()).collect(),
            Err(StatementFailed) => vec![],
        };
        let mut regions = Vec::new();
        for word in ["cond", "body"] {
            self.expect_word(word)?;
            regions.extend(self.region_of(&operands, &params, &given)?);
        }
        let regions = regions.into_iter().collect::<Parse<Vec<_>>>();
        let (operands, regions) = (operands?, regions?);
        let n_vars = n_vars.unwrap_or(params.len());
        let types = annotation.unwrap_or_else(|| {
            let params = &self.graph.region(regions[1]).params[..n_vars];
            params.iter().map(|&p| self.graph.ty(p).clone()).collect()
        });
        self.graph.at(InsertPoint::End(region), Origin { loc, on, ..Origin::UNKNOWN });
        let node = self.add(Op::While { parallel_iterations }, operands, regions, Some(types), loc)?;
        if self.graph.node(node).results.len() != n_vars {
            let n = self.graph.node(node).results.len();
            return Err(self.error(loc, format!("V5: while: {n_vars} loop variables, but {n} results")));
        }
        Ok(node)
    }
}
