//! Jumps: their targets and their expansion.
//!
//! The expansion of a jump visits the constructs that the jump leaves, from the inside out. At the
//! first staged construct it leaves the current arm natively, and tracing continues after that arm.
//! If no construct is staged, it is the jump that the user wrote. The rest of the arm is therefore
//! skipped while tracing, whatever host code is in between.
//!
//! Code after the staged construct must not run either. A jump from the end of its target needs
//! nothing for this: nothing follows there, and the value of the jump becomes the value of the arm.
//! Any other jump raises the [`Flag`]s of the statements and loops that it leaves, and puts its
//! value into the slot of its target.
//!
//! Invariants:
//! - Each flag and slot is declared before its statement or loop, so that all constructs inside
//!   carry it.
//! - The kinds of the constructs between a flag and its jumps decide whether the flag is a `bool`
//!   or a tensor.

use super::*;
use crate::graph::jumps::give_value;
use crate::graph::marks::has_no_value;
use quote::quote_spanned;

/// A target of jumps: a function, a loop or a labeled block.
pub(super) struct Target {
    pub(super) kind: TargetKind,
    /// The user's label.
    label: Option<String>,
    /// The label in the expansion.
    native: Lifetime,
    /// Whether a jump uses the label `native`.
    pub(super) native_used: bool,
    /// Constructs from this index on are inside the target.
    first_inside: usize,
    /// Variables from this id on are declared inside the target.
    pub(super) first_binding: BindingId,
    /// The variable that receives the values of jumps to this target.
    slot: Ident,
    pub(super) slot_used: bool,
    /// Whether a `break` that raises flags ends the target.
    is_broken: bool,
    /// Whether the target is a function without a result.
    pub(super) returns_unit: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetKind {
    Function,
    Loop,
    /// A labeled block.
    Block,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum JumpKind {
    Break,
    Continue,
    Return,
}

/// The minimum number of kinds shared by two nested flags to be joined into one kind for the outer
/// flag.
const MIN_JOINED: usize = 4;

/// A block of a long sequence of jumps.
///
/// A jump in it only checks whether a construct inside the block is staged. The remaining
/// constructs are checked after the block, once for all jumps with the same destination. The cost
/// of a jump therefore does not depend on how deeply the blocks of a sequence nest.
pub(super) struct Sequence {
    /// Targets from this index on are inside the block.
    targets: usize,
    /// Constructs from this index on are inside the block.
    constructs: usize,
    at: Span,
    /// The destinations of jumps out of the block, and their labels.
    ways: Vec<(Way, Lifetime)>,
}

/// The destination of a jump.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Way {
    kind: JumpKind,
    target: usize,
    has_value: bool,
}

/// A flag that records that a statement was left or that a loop ends.
///
/// Nested statements share the variable of their flags if no target is between them: a jump that
/// leaves the inner one also leaves the outer one.
pub(super) struct Flag {
    name: Ident,
    /// Whether the variable belongs to an enclosing statement.
    is_shared: bool,
    /// Targets from this index on are inside the statement or loop.
    targets: usize,
    /// Constructs from this index on are inside the statement or loop.
    constructs: usize,
    /// The loop that the flag ends.
    loop_target: Option<usize>,
    /// The construct of the flag's own loop, whose kind follows from that of the flag.
    excluded: Option<usize>,
    raised: bool,
    /// The targets that receive a value from a jump that raises the flag.
    values_for: Vec<usize>,
    /// The indices of the constructs whose kinds decide the type of the flag.
    kinds: Vec<usize>,
}

/// A flag after all of its jumps are known.
pub(super) struct RaisedFlag {
    pub(super) name: Ident,
    /// The declarations of the construct kinds and, unless an enclosing statement has it, of the
    /// flag.
    pub(super) declaration: TokenStream,
    /// The test whether a jump in the statement raised the flag.
    is_up: Expr,
    values_for: Vec<usize>,
}

impl Walk<'_> {
    /// Adds the target for the current function. Returns the variable for its result.
    pub(super) fn function_target(&mut self, at: Span) -> Ident {
        self.add_target(TargetKind::Function, None, at)
    }

    /// Adds a target. Returns the variable for the values of jumps to it.
    pub(super) fn add_target(&mut self, kind: TargetKind, label: Option<&Label>, at: Span) -> Ident {
        let index = self.index();
        let (name, native) = match kind {
            TargetKind::Function => ("result", names::label("function", index, at)),
            TargetKind::Loop => ("broken", names::label("loop", index, at)),
            TargetKind::Block => ("broken", names::label("block", index, at)),
        };
        let slot = names::helper(name, index, at);
        // The slot is declared before the target, so that the constructs inside carry it.
        self.env.declare(slot.to_string(), Access::Mut, false);
        self.targets.push(Target {
            kind,
            label: label.map(|l| l.name.ident.to_string()),
            native: label.map_or(native, |l| l.name.clone()),
            native_used: false,
            first_inside: match kind {
                TargetKind::Function => self.function_start,
                _ => self.constructs.len(),
            },
            first_binding: match kind {
                TargetKind::Function => self.env.function_start(),
                _ => self.env.next_id(),
            },
            slot: slot.clone(),
            slot_used: false,
            is_broken: false,
            returns_unit: false,
        });
        slot
    }

    /// Removes the innermost target. Returns it, and the label to put on it.
    pub(super) fn remove_target(&mut self, label: Option<Label>) -> (Target, Option<Label>) {
        let target = self.targets.pop().expect("a target was added");
        let generated = || target.native_used.then(|| names::label_of(&target.native));
        let label = label.or_else(generated);
        (target, label)
    }

    /// Rewrites a body that `return` leaves. Returns the variable for its result if a jump needs
    /// it.
    pub(super) fn in_function(&mut self, at: Span, f: impl FnOnce(&mut Self)) -> Option<Ident> {
        let start = std::mem::replace(&mut self.function_start, self.constructs.len());
        let outer_start = self.env.start_function();
        let (targets, flags) = (std::mem::take(&mut self.targets), std::mem::take(&mut self.flags));
        let (kinds, sequences) = (std::mem::take(&mut self.kinds), std::mem::take(&mut self.sequences));
        let slot = self.function_target(at);
        f(self);
        let used = self.targets[0].slot_used;
        (self.targets, self.flags, self.kinds, self.sequences) = (targets, flags, kinds, sequences);
        self.function_start = start;
        self.env.end_function(outer_start);
        used.then_some(slot)
    }

    /// Opens the flag of a statement or, if `loop_target` is given, of the loop whose target is
    /// added next.
    pub(super) fn lower_flag(&mut self, at: Span, loop_target: Option<usize>) {
        let index = self.index();
        let is_statement =
            |f: &&Flag| loop_target.is_none() && f.loop_target.is_none() && f.targets == self.targets.len();
        let around = self.flags.last().filter(is_statement).map(|f| f.name.clone());
        let is_shared = around.is_some();
        let name = around.unwrap_or_else(|| {
            let name = names::helper(if loop_target.is_some() { "stop" } else { "left" }, index, at);
            self.env.declare(name.to_string(), Access::Mut, false);
            name
        });
        self.flags.push(Flag {
            name,
            is_shared,
            targets: self.targets.len(),
            constructs: self.constructs.len(),
            loop_target,
            excluded: None,
            raised: false,
            values_for: Vec::new(),
            kinds: Vec::new(),
        });
    }

    /// Returns the name of the innermost flag.
    pub(super) fn flag_name(&self) -> Ident {
        self.flags.last().expect("a flag was lowered").name.clone()
    }

    /// Excludes the innermost construct from the kinds that decide the type of the innermost flag.
    pub(super) fn exclude_from_flag(&mut self) {
        let index = self.constructs.last().map(|c| c.index);
        self.flags.last_mut().expect("a flag was lowered").excluded = index;
    }

    /// Closes the innermost flag. Returns `None` if no jump raised it.
    pub(super) fn take_flag(&mut self) -> Option<RaisedFlag> {
        let flag = self.flags.pop().expect("a flag was lowered");
        let (at, place) = (flag.name.span(), self.flags.len());
        let joined = self.join_kinds(&flag);
        let mut declared = Vec::new();
        self.kinds.retain(|&(construct, by)| {
            if by == place {
                declared.push(construct);
            }
            by != place
        });
        let whole = joined.iter().find(|(_, of)| of.len() == flag.kinds.len());
        let kinds = whole.map_or(&flag.kinds[..], |(joined, _)| std::slice::from_ref(joined));
        let declaration = emit::flag((!flag.is_shared).then_some(&flag.name), &declared, kinds, at);
        let joins = joined.iter().map(|(joined, of)| emit::join_kinds(*joined, of, at));
        let declaration = quote!(#declaration #(#joins)*);
        let is_up = emit::is_up(&flag.name, kinds);
        flag.raised.then(|| RaisedFlag { name: flag.name, declaration, is_up, values_for: flag.values_for })
    }

    /// Joins the kinds that a flag shares with an enclosing flag into one kind for the latter.
    ///
    /// The list of a flag thus grows only with the constructs directly inside it. Returns the new
    /// kinds and their members.
    fn join_kinds(&mut self, flag: &Flag) -> Vec<(usize, Vec<usize>)> {
        let mut joined: Vec<(usize, Vec<usize>)> = Vec::new();
        for i in 0..self.flags.len() {
            let shared = |kind: &&usize| self.flags[i].kinds.contains(kind);
            let common: Vec<usize> = flag.kinds.iter().filter(shared).copied().collect();
            if common.len() < MIN_JOINED {
                continue;
            }
            let known = joined.iter().find(|(_, of)| *of == common).map(|(kind, _)| *kind);
            let kind = known.unwrap_or_else(|| {
                let kind = self.index();
                self.kinds.push((kind, i));
                kind
            });
            // The joined kind replaces the first of its members: the earlier the compiler finds a
            // tensor, the earlier it knows the type of the flag.
            let around = &mut self.flags[i].kinds;
            let first = around.iter().position(|kind| common.contains(kind)).expect("the type is common to both");
            around[first] = kind;
            around.retain(|kind| !common.contains(kind));
            if known.is_none() {
                joined.push((kind, common));
            }
        }
        // A kind that no other flag needs is declared with this flag.
        for (construct, by) in self.kinds.iter_mut().filter(|(construct, _)| flag.kinds.contains(construct)) {
            *by = self.flags.iter().position(|f| f.kinds.contains(construct)).unwrap_or(self.flags.len());
        }
        joined
    }

    /// Puts the statements after one that may have been left under its flag. Returns the statement,
    /// and whether it has a value.
    pub(super) fn guarded(&mut self, flag: &RaisedFlag, rest: Vec<Stmt>, position: Position) -> (Stmt, bool) {
        let at = flag.name.span();
        // At the end of a function or labeled block the value of the jump is the result. A loop
        // reads its value from the slot.
        let is_value_of = |t: &usize| flag.values_for.contains(t) && self.targets[*t].kind != TargetKind::Loop;
        let slot = position.tail.filter(is_value_of).map(|t| self.targets[t].slot.clone());
        let gives_value = |t: usize| {
            let target = &self.targets[t];
            let label = target.label.as_ref().filter(|_| target.kind == TargetKind::Block);
            label.is_some_and(|label| give_value(&rest, label))
        };
        let has_value = slot.is_some()
            || position.tail.is_some_and(gives_value)
            || match rest.last().filter(|_| !position.is_unit) {
                Some(Stmt::Expr(e, None)) => !is_unit(e) && !expr_jumps(e),
                Some(Stmt::Macro(StmtMacro { mac, semi_token: None, .. })) => !known::is_unit_macro(mac),
                _ => false,
            };
        let (index, construct) = self.open(ConstructKind::If, at, &position);
        self.innermost().has_value = has_value;
        self.other_arm();
        let rest_has_value = has_value && !ends_in_jump(&rest);
        let mut block = Block { brace_token: token::Brace(at), stmts: rest };
        self.block(&mut block, position.of_arms(has_value));
        let Closed { carried, labels: [_, label], deferred, kind } = self.close(at);
        let left = Block {
            brace_token: token::Brace(at),
            stmts: match &slot {
                // The slot is empty if tracing did not reach the jump.
                Some(slot) => vec![Stmt::Expr(parse_quote!(#slot.taken()), None)],
                None => Vec::new(),
            },
        };
        let leave = (has_value && label.is_some()).then(|| self.leave(at));
        let left_value = if slot.is_some() { ArmValue::Maybe } else { ArmValue::None };
        let arms = [
            // A variable that is initialized after the jump has no value here.
            Some(Arm { block: left, label: None, value: left_value, ends: false }),
            Some(Arm { block, label, value: ArmValue::some_if(rest_has_value), ends: true }),
        ];
        let parts = IfParts { construct, index, at, condition: flag.is_up.clone(), arms, deferred, kind };
        let expansion = match has_value {
            true => emit::if_value(parts, carried, position.expected, leave),
            false => emit::if_statement(parts, carried),
        };
        (Stmt::Expr(expansion, None), has_value)
    }

    /// Rewrites a labeled block, `'a: { .. }`.
    pub(super) fn labelled_block(&mut self, mut b: ExprBlock, position: Position) -> Expr {
        let at = b.block.brace_token.span.open();
        let slot = self.add_target(TargetKind::Block, b.label.as_ref(), at);
        let end = Position::tail_of(self.targets.len() - 1);
        let inner = Position { expected: position.expected, value_of: position.value_of, ..end };
        self.block(&mut b.block, inner);
        let (target, label) = self.remove_target(b.label.take());
        b.label = label;
        if !target.slot_used {
            return Expr::Block(b);
        }
        let declaration = emit::slot(&slot, None);
        Expr::Verbatim(quote!({ #declaration #b }))
    }

    /// Returns the target of a `break` or `continue`.
    fn target_of(&self, label: Option<&Lifetime>) -> Option<usize> {
        let fits = |t: &Target| match label {
            Some(label) => t.label.as_ref().is_some_and(|l| label.ident == l),
            None => t.kind == TargetKind::Loop,
        };
        self.targets.iter().rposition(fits)
    }

    /// Returns the expansion of a jump.
    pub(super) fn jump_expr(&mut self, mut e: Expr) -> Expr {
        let (kind, at, label, value) = match &mut e {
            Expr::Break(b) => (JumpKind::Break, b.break_token.span, b.label.clone(), b.expr.as_mut()),
            Expr::Continue(c) => (JumpKind::Continue, c.continue_token.span, c.label.clone(), None),
            Expr::Return(r) => (JumpKind::Return, r.return_token.span, None, r.expr.as_mut()),
            _ => unreachable!("only jumps are passed here"),
        };
        let target = match kind {
            JumpKind::Return => Some(0),
            _ => self.target_of(label.as_ref()),
        };
        if let Some(value) = value {
            self.visit_expr_mut(value);
        }
        let Some(target) = target else {
            let message = match label {
                Some(label) => format!("use of the undeclared label `{label}`"),
                None => "`break` or `continue` outside a loop".to_owned(),
            };
            self.cx.push(syn::Error::new(at, message));
            return Expr::Verbatim(emit::never(at));
        };
        let first = self.targets[target].first_inside;
        if self.constructs[first..].is_empty() {
            self.label_break(&mut e, target);
            return e;
        }
        let value = match e {
            Expr::Break(b) => b.expr,
            Expr::Return(r) => r.expr,
            _ => None,
        };
        self.staged_jump(kind, at, target, value.map(|v| *v))
    }

    /// Adds the label of its loop to a `break` or `continue` inside generated labeled blocks.
    fn label_break(&mut self, e: &mut Expr, target: usize) {
        if self.targets[target + 1..].iter().all(|t| t.kind != TargetKind::Block) {
            return;
        }
        let (label, at) = match e {
            Expr::Break(b) => (&mut b.label, b.break_token.span),
            Expr::Continue(c) => (&mut c.label, c.continue_token.span),
            _ => return,
        };
        if label.is_none() {
            *label = Some(self.native(target, at));
        }
    }

    fn staged_jump(&mut self, kind: JumpKind, at: Span, target: usize, value: Option<Expr>) -> Expr {
        let first = self.targets[target].first_inside;
        let nested = self.constructs[first..].iter().filter(|c| c.nested).map(|c| &c.name);
        let checks = emit::checks("allows_nested_jump", at, nested.collect::<Vec<_>>().into_iter());
        let is_loop = self.targets[target].kind == TargetKind::Loop;
        let at_end = self.constructs[first..].iter().all(|c| c.tail == Some(target));
        if at_end && !is_loop {
            // The value of the jump is the value of the arm.
            let given = names::helper("given", self.index(), at);
            let value = value.map_or_else(|| quote!(()), |v| v.to_token_stream());
            let leave = self.leave_arms(target, first, at, Some(&given), true);
            let exit = match kind {
                JumpKind::Return => quote_spanned!(at=> return #given),
                _ => {
                    let native = self.native(target, at);
                    quote_spanned!(at=> break #native #given)
                }
            };
            return Expr::Verbatim(quote!({ #checks let #given = #value; #leave #exit; }));
        }
        self.targets[target].is_broken |= kind == JumpKind::Break;
        for flag in self.raise(kind, target, value.is_some()) {
            let written = Written::variable(&flag, at);
            self.change(written, Change::Exact, 0);
        }
        let raised = self.flags.iter().filter(|f| !f.is_shared && self.is_raised(f, kind, target));
        let raise: TokenStream = raised.map(|f| emit::raise(&f.name, at)).collect();
        let slot = self.targets[target].slot.clone();
        let given = value.map(|value| {
            self.targets[target].slot_used = true;
            self.change(Written::variable(&slot, at), Change::Exact, 0);
            quote_spanned!(at=> #slot.set(#value);)
        });
        let passed_on = (is_loop && kind == JumpKind::Break).then(|| self.passed_on(first));
        // First values cannot be passed on after a sequence, because their variables are out of
        // scope there.
        let may_share = self.constructs[first..].iter().all(|c| c.deferred.is_empty());
        let way = Way { kind, target, has_value: given.is_some() };
        let leave = self.leave_sequences(way, at, self.sequences.len() * usize::from(may_share), passed_on);
        Expr::Verbatim(quote!({ #checks #given #raise #leave }))
    }

    /// Returns the exit of a jump whose flags are raised.
    ///
    /// If the jump leaves some of the first `n` sequences, it goes to the end of the innermost
    /// staged arm in the innermost of them, or else to the end of that sequence, where another exit
    /// follows.
    fn leave_sequences(&mut self, way: Way, at: Span, n: usize, passed_on: Option<TokenStream>) -> TokenStream {
        let Way { kind, target, has_value } = way;
        let first = self.targets[target].first_inside;
        let sequence = self.sequences[..n].iter().rposition(|s| s.targets > target && s.constructs > first);
        if let Some(i) = sequence {
            let leave = self.leave_arms(target, self.sequences[i].constructs, at, None, true);
            let ways = &mut self.sequences[i].ways;
            let known = ways.iter().find(|(known, _)| *known == way).map(|(_, label)| label.clone());
            let label = known.unwrap_or_else(|| {
                let label = names::label("way", self.next_index, self.sequences[i].at);
                self.next_index += 1;
                self.sequences[i].ways.push((way, label.clone()));
                label
            });
            return quote_spanned!(at=> #leave #passed_on break #label;);
        }
        let leave = self.leave_arms(target, first, at, None, true);
        let is_loop = self.targets[target].kind == TargetKind::Loop;
        let slot = &self.targets[target].slot;
        let taken = has_value.then(|| quote_spanned!(at=> #slot.take()));
        let exit = match kind {
            JumpKind::Return => quote_spanned!(at=> return #taken),
            JumpKind::Continue => {
                let native = self.native(target, at);
                quote_spanned!(at=> continue #native)
            }
            JumpKind::Break => {
                let native = self.native(target, at);
                // A loop reads its value from the slot.
                let taken = taken.filter(|_| !is_loop);
                quote_spanned!(at=> break #native #taken)
            }
        };
        quote!(#leave #passed_on #exit;)
    }

    /// Rewrites a block of a long sequence. The exit to each destination is emitted once, after the
    /// block.
    pub(super) fn sequence(&mut self, mut b: ExprBlock, position: Position) -> Expr {
        let at = b.block.brace_token.span.open();
        let (targets, constructs) = (self.targets.len(), self.constructs.len());
        self.sequences.push(Sequence { targets, constructs, at, ways: Vec::new() });
        let is_unit = b.attrs.drain(..).any(|mark| has_no_value(&mark));
        self.block(&mut b.block, Position { is_unit, ..position });
        let sequence = self.sequences.pop().expect("the sequence was begun");
        if sequence.ways.is_empty() {
            return Expr::Block(b);
        }
        let next = names::label("next", self.index(), at);
        let ways = sequence.ways.into_iter().fold(quote!(break #next #b;), |before, (way, label)| {
            let on = self.leave_sequences(way, at, self.sequences.len(), None);
            quote!(#label: { #before } #on)
        });
        Expr::Verbatim(quote! {
            #next: {
                #[allow(unreachable_code, reason = "an arm of the user may leave")]
                { #ways }
            }
        })
    }

    fn native(&mut self, target: usize, at: Span) -> Lifetime {
        let target = &mut self.targets[target];
        target.native_used = true;
        let mut native = target.native.clone();
        native.set_span(native.span().located_at(at));
        native
    }

    fn is_raised(&self, flag: &Flag, kind: JumpKind, target: usize) -> bool {
        let leaves = match flag.loop_target {
            Some(own) => target < own || target == own && kind == JumpKind::Break,
            None => target < flag.targets,
        };
        leaves && self.constructs.len() > flag.constructs
    }

    /// Records a jump in the flags that it raises. Returns their names.
    fn raise(&mut self, kind: JumpKind, target: usize, has_value: bool) -> Vec<Ident> {
        let raised: Vec<usize> =
            (0..self.flags.len()).filter(|&i| self.is_raised(&self.flags[i], kind, target)).collect();
        for &i in &raised {
            let flag = &mut self.flags[i];
            flag.raised = true;
            if has_value && !flag.values_for.contains(&target) {
                flag.values_for.push(target);
            }
            for construct in self.constructs[flag.constructs..].iter().map(|c| c.kind_by) {
                if flag.excluded == Some(construct) {
                    continue;
                }
                if !flag.kinds.contains(&construct) {
                    flag.kinds.push(construct);
                }
                match self.kinds.iter_mut().find(|(c, _)| *c == construct) {
                    Some((_, by)) => *by = (*by).min(i),
                    None => self.kinds.push((construct, i)),
                }
            }
        }
        raised.into_iter().filter(|&i| !self.flags[i].is_shared).map(|i| self.flags[i].name.clone()).collect()
    }

    /// Leaves the arm of the innermost staged construct among those from index `first` on. `given`
    /// is the value of the jump.
    fn leave_arms(
        &mut self,
        target: usize,
        first: usize,
        at: Span,
        given: Option<&Ident>,
        passes_on: bool,
    ) -> TokenStream {
        let mut leave = TokenStream::new();
        let of_target = &self.targets[target];
        let has_slot = of_target.slot_used && of_target.kind != TargetKind::Loop;
        let slot = of_target.slot.clone();
        for i in (first..self.constructs.len()).rev() {
            let passed_on = if passes_on { self.passed_on(i) } else { TokenStream::new() };
            let c = &mut self.constructs[i];
            if c.kind != ConstructKind::Logical {
                c.left[c.arm] = true;
                // At the end of the target the value of the jump is the value of the arm.
                let value = c.has_value.then(|| match given {
                    Some(given) => emit::some_of(given),
                    None if has_slot && c.tail == Some(target) => quote_spanned!(at=> #slot.taken()),
                    None => emit::none(),
                });
                leave.extend(emit::leave(&c.name, &c.label(), at, value, passed_on));
            }
        }
        leave
    }

    /// Passes on the values of the variables that were initialized in a construct that is left.
    fn passed_on(&self, construct: usize) -> TokenStream {
        let c = &self.constructs[construct];
        let is_given = |var: &&Ident| {
            let id = self.env.resolve(&var.to_string());
            if id.is_some_and(|id| id >= c.first_inside) {
                let message = format!("`{var}` is shadowed where this jump needs its value: rename one of the two variables");
                self.cx.error(*var, message);
            }
            let id = id.filter(|&id| id < c.first_inside && self.lives_after(c, id));
            let id = id.filter(|&id| !self.stays_in_arm(c, c.arm, id));
            id.and_then(|id| self.env.given(id)).is_some_and(|given| given > construct)
        };
        c.deferred
            .iter()
            .filter(|(_, given_in)| given_in[c.arm])
            .map(|(var, _)| var)
            .filter(is_given)
            .map(|var| emit::pass_on(&c.slot_of(var), var))
            .collect()
    }

    /// Returns an expression for use after code that certainly jumps. It continues after the
    /// innermost staged arm.
    pub(super) fn leave(&mut self, at: Span) -> Expr {
        let mut target = self.targets.len() - 1;
        // The end of a labeled block cannot be reached if no jump leads to it.
        while self.targets[target].kind == TargetKind::Block && !self.targets[target].is_broken {
            target -= 1;
        }
        let first = self.targets[target].first_inside.max(self.function_start);
        // The jumps before have already passed on the first values.
        let leave = self.leave_arms(target, first, at, None, false);
        let slot = self.targets[target].slot.clone();
        let exit = match self.targets[target].kind {
            TargetKind::Block => {
                let native = self.native(target, at);
                let value = self.targets[target].slot_used.then(|| quote_spanned!(at=> #slot.take()));
                quote_spanned!(at=> break #native #value)
            }
            TargetKind::Loop => {
                let native = self.native(target, at);
                quote_spanned!(at=> continue #native)
            }
            TargetKind::Function if self.targets[target].slot_used => quote_spanned!(at=> return #slot.take()),
            TargetKind::Function if self.targets[target].returns_unit => quote_spanned!(at=> return),
            _ => emit::never(at),
        };
        Expr::Verbatim(quote!({ #leave #exit; }))
    }

    /// Rewrites `panic!` and similar macros. Under a tensor condition they become an assertion that
    /// fails.
    pub(super) fn panic(&mut self, mac: &Macro, name: &Ident) -> Option<Expr> {
        if self.constructs[self.function_start..].is_empty() {
            return None;
        }
        let at = name.span();
        let nested = self.constructs[self.function_start..].iter().filter(|c| c.kind == ConstructKind::Logical);
        let checks = emit::checks("allows_nested_jump", at, nested.map(|c| &c.name).collect::<Vec<_>>().into_iter());
        let mut leave = TokenStream::new();
        let message = emit::panic_message(&name.to_string(), at, &mac.tokens);
        for c in self.constructs[self.function_start..].iter_mut().rev().filter(|c| c.kind != ConstructKind::Logical) {
            c.left[c.arm] = true;
            leave.extend(emit::fail(&c.name, &c.label(), at, c.has_value, &message));
        }
        Some(Expr::Verbatim(quote!({ #checks #leave #mac })))
    }

    /// Returns the value of code that is left only by jumps to enclosing targets.
    pub(super) fn never_value(&mut self, at: Span, position: &Position) -> Expr {
        match position.tail {
            Some(t) if self.targets[t].slot_used && self.targets[t].kind != TargetKind::Loop => {
                let slot = &self.targets[t].slot;
                Expr::Verbatim(quote_spanned!(at=> #slot.take()))
            }
            _ => self.leave(at),
        }
    }
}

/// Returns whether an expression is `()` by its form.
fn is_unit(e: &Expr) -> bool {
    match e {
        Expr::While(_) | Expr::ForLoop(_) | Expr::Assign(_) => true,
        Expr::If(e) => e.else_branch.is_none(),
        Expr::Binary(b) => is_assignment(&b.op),
        Expr::Macro(m) => known::is_unit_macro(&m.mac),
        _ => false,
    }
}
