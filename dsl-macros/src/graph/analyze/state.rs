//! The state of the analysis: the constructs, targets and flags around the current node, and the
//! variables so far.

use crate::ctxt::Ctxt;
use crate::graph::facts::UsedPlace;
use crate::graph::names;
use crate::graph::place::{BindingId, PlaceExpr, Places};
use crate::graph::tree::JumpKind;
use crate::graph::variables::{Access, VarId, Variable};
use proc_macro2::{Ident, Span};
use std::rc::Rc;
use syn::ext::IdentExt;
use syn::{Lifetime, Type};

/// The state of the walk over a tree.
pub(super) struct Analysis<'a> {
    pub(super) cx: &'a Ctxt,
    pub(super) variables: &'a [Variable],
    /// The binding of each variable that was declared.
    pub(super) ids: Vec<BindingId>,
    pub(super) bindings: Vec<Binding>,
    pub(super) constructs: Vec<Construct>,
    /// The targets of jumps in the current function. The first target is the function itself.
    pub(super) targets: Vec<JumpTarget>,
    pub(super) flags: Vec<OpenFlag>,
    pub(super) sequences: Vec<OpenSequence>,
    /// The operands around the current node, in the current function.
    pub(super) operands: Vec<OpenOperand>,
    /// For each condition type that a flag needs: its index, and the declaring flag's index.
    pub(super) types: Vec<(usize, usize)>,
    /// Constructs from this index on are in the same function or closure as the current node.
    pub(super) function_start: usize,
    /// Bindings with a smaller id belong to enclosing functions.
    pub(super) first_of_function: BindingId,
    pub(super) next_index: usize,
    /// The modifications so far, in order.
    pub(super) changed: Vec<Changed>,
    /// The places that each construct carries, in the order in which the constructs end.
    #[cfg(test)]
    pub(super) carried: Vec<Vec<String>>,
}

impl<'a> Analysis<'a> {
    pub(super) fn new(cx: &'a Ctxt, variables: &'a [Variable]) -> Analysis<'a> {
        Analysis {
            cx,
            variables,
            ids: vec![BindingId::MAX; variables.len()],
            bindings: Vec::new(),
            constructs: Vec::new(),
            targets: Vec::new(),
            flags: Vec::new(),
            sequences: Vec::new(),
            operands: Vec::new(),
            types: Vec::new(),
            function_start: 0,
            first_of_function: 0,
            next_index: 0,
            changed: Vec::new(),
            #[cfg(test)]
            carried: Vec::new(),
        }
    }

    /// Returns the number of the next helper variable or label.
    pub(super) fn index(&mut self) -> usize {
        self.next_index += 1;
        self.next_index - 1
    }

    /// Declares variables.
    pub(super) fn declare(&mut self, variables: &[VarId]) {
        for &id in variables {
            self.ids[id] = self.bindings.len();
            let Variable { access, is_deferred, is_known, .. } = self.variables[id];
            self.bindings.push(Binding { access, deferred: is_deferred, given: None, is_known, ty: None });
        }
    }

    /// Declares a helper variable, which constructs modify. Its type is known.
    pub(super) fn declare_helper(&mut self) -> BindingId {
        self.bindings.push(Binding { access: Access::Mut, deferred: false, given: None, is_known: true, ty: None });
        self.bindings.len() - 1
    }

    /// Returns the constructs from an index on, from the inside out.
    pub(super) fn constructs_from(&self, first: usize) -> Vec<Ident> {
        self.constructs[first..].iter().rev().map(|c| c.name.clone()).collect()
    }
}

/// The context of a piece of code.
#[derive(Clone, Default)]
pub(super) struct CodeContext {
    /// The type of the code, if it is written nearby.
    pub(super) expected: Option<Rc<Type>>,
    /// The number of innermost constructs whose value the code is.
    pub(super) value_of: usize,
    /// The target that ends with the code.
    pub(super) tail: Option<usize>,
    /// Whether the code is a statement or its value, so that a jump in it leaves no enclosing
    /// expression half evaluated.
    pub(super) is_statement: bool,
    /// Whether the value is known to be `()`.
    pub(super) is_unit: bool,
}

impl CodeContext {
    pub(super) fn statement() -> CodeContext {
        CodeContext { is_statement: true, ..CodeContext::default() }
    }

    pub(super) fn tail_of(target: usize) -> CodeContext {
        CodeContext { tail: Some(target), ..CodeContext::statement() }
    }

    /// Returns the position of the arms of an `if`, which provide its value if `is_value`.
    pub(super) fn of_arms(&self, is_value: bool) -> CodeContext {
        let (expected, value_of) = if is_value { (self.expected.clone(), self.value_of + 1) } else { (None, 0) };
        CodeContext { expected, value_of, tail: self.tail, is_statement: self.is_statement, is_unit: self.is_unit }
    }
}

/// A variable or helper variable.
pub(super) struct Binding {
    pub(super) access: Access,
    /// Whether the variable is declared by `let x;` and not yet initialized outside of constructs.
    pub(super) deferred: bool,
    /// The number of constructs around the initialization, if the variable is deferred and has a
    /// value here.
    pub(super) given: Option<usize>,
    pub(super) is_known: bool,
    /// The declared type, if the variable is deferred and the type can be written again.
    pub(super) ty: Option<Rc<Type>>,
}

/// The kind of a construct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConstructKind {
    If,
    While,
    /// A `loop`: a `while` whose body runs at least once.
    Loop,
    Logical,
}

/// A construct around the current node.
pub(super) struct Construct {
    /// The helper variable of the construct.
    pub(super) name: Ident,
    pub(super) index: usize,
    /// The index of the construct whose condition type this construct has: itself or an enclosing
    /// construct.
    pub(super) type_by: usize,
    pub(super) kind: ConstructKind,
    /// Variables with a smaller id are declared before the construct.
    pub(super) first_inside: BindingId,
    /// The places that change in the first arm or the loop body, and in the second arm.
    pub(super) carried: [Places; 2],
    /// Places used inside as receivers and arguments, if their variables may be immutable.
    pub(super) used: Vec<(BindingId, UsedPlace)>,
    /// The index of the arm that contains the current node.
    pub(super) arm: usize,
    /// The arms that a jump leaves.
    pub(super) left: [bool; 2],
    /// The arms that certainly jump.
    pub(super) jumps: [bool; 2],
    pub(super) has_value: bool,
    /// The target that ends with the construct, if nothing follows it there.
    pub(super) tail: Option<usize>,
    /// Whether the construct is a part of a larger expression.
    pub(super) nested: bool,
    /// Variables declared by `let x;` that are initialized inside.
    pub(super) deferred: Vec<GivenInside>,
}

/// A variable declared by `let x;` that is initialized in a construct.
pub(super) struct GivenInside {
    pub(super) var: Ident,
    pub(super) id: BindingId,
    /// The arms that initialize the variable.
    pub(super) arms: [bool; 2],
}

impl Construct {
    /// Returns the label of the current arm.
    pub(super) fn label(&self) -> Lifetime {
        names::label(["arm", "other"][self.arm], self.index, self.name.span())
    }

    /// Adds a place that is used inside.
    pub(super) fn add_used(&mut self, id: BindingId, used: &UsedPlace) {
        let path = |u: &UsedPlace| u.expr.prefixes().last().map(ToString::to_string);
        let covers =
            |u: &UsedPlace| (u.receiver.is_none() || u.receiver == used.receiver) && (u.is_closure || !used.is_closure);
        if !self.used.iter().any(|(_, u)| covers(u) && path(u) == path(used)) {
            self.used.push((id, used.clone()));
        }
    }

    /// Returns the slot of a variable that is initialized in the construct.
    pub(super) fn slot_of(&self, var: &Ident) -> Ident {
        names::helper(&format!("{}_", var.unraw()), self.index, var.span())
    }
}

/// A target of jumps: a function, a loop or a labeled block.
pub(super) struct JumpTarget {
    pub(super) kind: TargetKind,
    /// The user's label.
    pub(super) label: Option<String>,
    /// The label in the expansion.
    pub(super) native: Lifetime,
    /// Whether a jump uses the label `native`.
    pub(super) native_used: bool,
    /// Constructs from this index on are inside the target.
    pub(super) first_inside: usize,
    /// Variables from this id on are declared inside the target.
    pub(super) first_binding: BindingId,
    /// The variable that receives the values of jumps to this target.
    pub(super) slot: Ident,
    pub(super) slot_binding: BindingId,
    pub(super) slot_used: bool,
    /// Whether a `break` that raises flags ends the target.
    pub(super) is_broken: bool,
    /// Whether the target is a function without a result.
    pub(super) returns_unit: bool,
}

impl JumpTarget {
    /// Returns the slot, if a jump uses it.
    pub(super) fn used_slot(&self) -> Option<Ident> {
        self.slot_used.then(|| self.slot.clone())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetKind {
    Function,
    Loop,
    /// A labeled block.
    Block,
}

/// A block of a long sequence of jumps.
///
/// A jump in it only checks whether a construct inside the block is staged. The remaining
/// constructs are checked after the block, once for all jumps with the same destination. The cost
/// of a jump therefore does not depend on how deeply the blocks of a sequence nest.
pub(super) struct OpenSequence {
    /// Targets from this index on are inside the block.
    pub(super) targets: usize,
    /// Constructs from this index on are inside the block.
    pub(super) constructs: usize,
    pub(super) at: Span,
    /// The destinations of jumps out of the block, and their labels.
    pub(super) ways: Vec<(Way, Lifetime)>,
}

/// A part of a larger expression, which goes on after it.
pub(super) struct OpenOperand {
    /// Targets from this index on are inside the operand.
    pub(super) targets: usize,
    /// Constructs from this index on are inside the operand.
    pub(super) constructs: usize,
}

/// The destination of a jump.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) kind: JumpKind,
    pub(super) target: usize,
    pub(super) has_value: bool,
}

/// The flag of a statement or loop around the current node.
///
/// Nested statements share the variable of their flags if no target is between them, because a jump
/// that leaves the inner statement also leaves the outer statement.
pub(super) struct OpenFlag {
    pub(super) name: Ident,
    pub(super) binding: BindingId,
    /// Whether the variable belongs to an enclosing statement.
    pub(super) is_shared: bool,
    /// Targets from this index on are inside the statement or loop.
    pub(super) targets: usize,
    /// Constructs from this index on are inside the statement or loop.
    pub(super) constructs: usize,
    /// The loop that the flag ends.
    pub(super) loop_target: Option<usize>,
    /// The construct of the flag's own loop, whose condition type follows from that of the flag.
    pub(super) excluded: Option<usize>,
    pub(super) raised: bool,
    /// The targets that receive a value from a jump that raises the flag.
    pub(super) values_for: Vec<usize>,
    /// The condition types that decide the type of the flag.
    pub(super) types: Vec<usize>,
}

/// A modification of a place.
pub(super) struct Changed {
    pub(super) binding: BindingId,
    pub(super) written: PlaceExpr,
    /// The number of constructs around the modification.
    pub(super) constructs: usize,
    /// Whether the modification is certain: an assignment, or a `&mut`.
    pub(super) is_exact: bool,
}
