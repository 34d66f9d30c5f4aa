//! The facts that the analysis finds, as data: the emission alone knows the code that they become.
//!
//! A fact names the helper variables and labels that it needs. They are numbered in the order in
//! which the analysis meets them.

use super::place::{PlaceExpr, Places, ReceiverExpr};
use proc_macro2::{Ident, Span};
use std::cell::OnceCell;
use std::rc::Rc;
use syn::{Label, Lifetime, Type};

/// A fact about a node: empty until the analysis has seen the node, and never changed afterwards.
///
/// Facts are boxed, so that nodes are small: the stages recurse, and the stack of the compiler is
/// limited.
pub(crate) struct FactCell<T>(OnceCell<Box<T>>);

impl<T> Default for FactCell<T> {
    fn default() -> FactCell<T> {
        FactCell(OnceCell::new())
    }
}

impl<T> FactCell<T> {
    /// Sets the fact.
    pub(crate) fn set(&self, fact: T) {
        assert!(self.0.set(Box::new(fact)).is_ok(), "each node is analyzed once");
    }

    /// Returns the fact of a node that was analyzed.
    pub(crate) fn get(self) -> T {
        self.maybe().expect("the node was analyzed")
    }

    /// Returns the fact, if there is one.
    pub(crate) fn maybe(self) -> Option<T> {
        self.0.into_inner().map(|fact| *fact)
    }

    /// Returns whether there is a fact.
    pub(crate) fn is_decided(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns the fact of a node that was analyzed, and leaves it there.
    pub(crate) fn peek(&self) -> &T {
        self.0.get().expect("the node was analyzed")
    }
}

/// A construct after its end.
pub(crate) struct Closed {
    /// The helper variable of the construct.
    pub(crate) name: Ident,
    pub(crate) index: usize,
    pub(crate) at: Span,
    pub(crate) places: Places,
    /// The places that are used but not carried.
    pub(crate) used: Vec<UsedPlace>,
    /// The labels of the arms that a jump leaves.
    pub(crate) labels: [Option<Lifetime>; 2],
    pub(crate) deferred: Vec<Deferred>,
    /// The variable that receives the type of the condition, if a flag needs it.
    pub(crate) condition_type: Option<Ident>,
}

/// A used place of a variable that is not known to be mutable.
#[derive(Clone)]
pub(crate) struct UsedPlace {
    pub(crate) expr: PlaceExpr,
    /// The receiver, if the place is only used to call a method with a known name.
    pub(crate) receiver: Option<ReceiverExpr>,
    /// Whether the place is a closure that is called and modifies a captured variable.
    pub(crate) is_closure: bool,
}

impl UsedPlace {
    /// Returns the use of a place by code that may do anything with it.
    pub(crate) fn of(expr: PlaceExpr) -> UsedPlace {
        UsedPlace { expr, receiver: None, is_closure: false }
    }
}

/// A variable declared by `let x;` that is initialized in the arms of an `if` or in the body of a
/// `loop`.
///
/// Each arm and iteration has its own variable, and the slot passes its value on.
pub(crate) struct Deferred {
    pub(crate) var: Ident,
    pub(crate) is_mut: bool,
    /// The declared type, to which Rust coerces each value.
    pub(crate) ty: Option<Rc<Type>>,
    /// The arms that initialize the variable.
    pub(crate) given_in: [bool; 2],
    /// The arms whose value is not visible after the construct.
    pub(crate) own: [bool; 2],
    /// The slot, or `None` if nothing after the construct uses the variable.
    pub(crate) slot: Option<Ident>,
}

impl Deferred {
    /// Returns whether an arm has its own variable.
    ///
    /// Without a slot, the first arm that initializes the variable assigns the outer variable,
    /// whose type is inferred from this assignment.
    pub(crate) fn is_declared_in(&self, arm: usize) -> bool {
        let is_outer = arm == 0 || !self.given_in[0] || self.own[0];
        self.given_in[arm] && (self.slot.is_some() || self.own[arm] || !is_outer)
    }

    /// Returns whether the type of the outer variable is inferred from the arm's own copy, because
    /// no arm assigns the outer variable.
    pub(crate) fn is_type_of_outer(&self, arm: usize) -> bool {
        self.slot.is_none() && self.given_in == self.own && self.own[arm] && (arm == 0 || !self.own[0])
    }
}

/// A value that leaves a construct through the slot of a deferred variable.
pub(crate) struct FirstValue {
    pub(crate) slot: Ident,
    pub(crate) var: Ident,
}

/// The slot for the result of a function that a jump leaves with a value.
pub(crate) type FunctionFacts = Option<Ident>;

/// An `if` whose condition may be a tensor.
pub(crate) struct IfFacts {
    pub(crate) closed: Box<Closed>,
    /// The arms that end with a value.
    pub(crate) has_value: [bool; 2],
    pub(crate) end: IfEnd,
}

/// The end of an `if`.
pub(crate) enum IfEnd {
    /// The `if` has no value.
    Statement,
    /// The `if` has a value, whose type may be written nearby.
    Value {
        expected: Option<Rc<Type>>,
        /// The exit if all arms that ran were left.
        leave: Option<Exit>,
    },
    /// Both arms certainly jump, and the exit follows. The `if` has the type of the values at the
    /// ends of its arms, which are never computed, or else any type.
    Never(Exit),
}

/// The guard around the statements after a statement that a jump leaves: an `if` on its flag.
pub(crate) struct GuardFacts {
    pub(crate) flag: JumpFlag,
    pub(crate) closed: Box<Closed>,
    /// The slot that has the value of the jump, if it is the value of the guard.
    pub(crate) slot: Option<Ident>,
    pub(crate) rest_has_value: bool,
    pub(crate) end: IfEnd,
}

/// A flag that jumps raise.
pub(crate) struct JumpFlag {
    pub(crate) name: Ident,
    /// Whether the variable belongs to an enclosing statement.
    pub(crate) is_shared: bool,
    /// The condition types that are declared with the flag.
    pub(crate) declared: Vec<usize>,
    /// The condition types that decide the type of the flag.
    pub(crate) types: Vec<usize>,
    /// The joined condition types and their members.
    pub(crate) joined: Vec<(usize, Vec<usize>)>,
}

/// A labeled block.
pub(crate) struct BlockFacts {
    pub(crate) label: Option<Label>,
    /// The slot for the values of jumps to the end of the block.
    pub(crate) slot: Option<Ident>,
}

/// A block of a long sequence of jumps, if a jump leaves it.
pub(crate) struct SequenceFacts {
    pub(crate) next: Lifetime,
    /// The exits after the block, and the labels by which jumps reach them.
    pub(crate) ways: Vec<(Exit, Lifetime)>,
}

/// A loop.
pub(crate) enum LoopFacts {
    Host(HostLoopFacts),
    Staged(StagedLoopFacts),
    /// A `loop` that its flag ends.
    OnFlag(FlagLoopFacts),
}

/// A loop that stays a loop of the host.
pub(crate) struct HostLoopFacts {
    pub(crate) label: Option<Label>,
    pub(crate) flag: Option<JumpFlag>,
    /// The guard around the body, and the flag that stops the loop.
    pub(crate) guard: Option<(Box<Closed>, Ident)>,
}

/// A `while` or `for` that may be staged.
pub(crate) struct StagedLoopFacts {
    pub(crate) closed: Box<Closed>,
    pub(crate) label: Option<Label>,
    pub(crate) flag: Option<JumpFlag>,
    pub(crate) stop: Option<StopFacts>,
    /// Whether a jump leaves the condition.
    pub(crate) leaves_condition: bool,
    /// The number of the helper variables of a `for`.
    pub(crate) looping: Option<usize>,
}

/// A loop that a flag may stop.
pub(crate) struct StopFacts {
    /// The flag.
    pub(crate) name: Ident,
    /// The construct of the condition.
    pub(crate) head: Box<Closed>,
    /// The guard around the body.
    pub(crate) guard: Box<Closed>,
}

/// A `loop` that its flag ends.
pub(crate) struct FlagLoopFacts {
    pub(crate) closed: Box<Closed>,
    pub(crate) label: Option<Label>,
    pub(crate) flag: Option<JumpFlag>,
    /// The flag.
    pub(crate) stop: Ident,
    /// The slot for the values of its `break`s, and the type of the value.
    pub(crate) slot: Option<(Ident, Option<Rc<Type>>)>,
    /// The value of a loop that is left only by jumps to enclosing targets.
    pub(crate) never_ends: Option<NeverValue>,
}

/// The value of code that is left only by jumps to enclosing targets.
pub(crate) enum NeverValue {
    /// The value of the slot.
    Slot(Ident),
    Exit(Exit),
}

/// The right side of `&&` or `||`.
pub(crate) type LogicalFacts = Box<Closed>;

/// Operands that are evaluated before the place that they are used with is borrowed.
pub(crate) struct OperandFacts {
    /// The positions of the operands, and the numbers of their variables.
    pub(crate) bound: Vec<(usize, usize)>,
    /// Whether the left side of a comparison is copied first.
    pub(crate) copies_left: bool,
    /// The number of the variable for a left side or receiver that is copied first if its type is
    /// `Copy`.
    pub(crate) early: Option<usize>,
    pub(crate) is_statement: bool,
}

/// A jump.
pub(crate) enum JumpFacts {
    /// The jump has no target.
    Wrong,
    /// The jump is emitted as written, with this label if there is one.
    Native(Option<Lifetime>),
    /// The jump ends its target, and its value is the value of the arm.
    AtEnd { checks: Vec<Ident>, given: Ident, exit: Exit },
    /// The jump raises flags.
    Raising {
        checks: Vec<Ident>,
        raised: Vec<Ident>,
        /// The slot for the value.
        slot: Option<Ident>,
        exit: Exit,
    },
}

/// A macro that panics.
pub(crate) struct PanicFacts {
    /// The constructs that must allow it.
    pub(crate) checks: Vec<Ident>,
    pub(crate) arms: Vec<FailedArm>,
}

/// An arm that a panic ends.
pub(crate) struct FailedArm {
    pub(crate) construct: Ident,
    pub(crate) label: Lifetime,
    pub(crate) has_value: bool,
}

/// The way out of constructs: to the end of the arm of the innermost staged construct, or by a jump
/// of Rust if no construct is staged.
pub(crate) struct Exit {
    pub(crate) at: Span,
    /// From the inside out.
    pub(crate) arms: Vec<LeftArm>,
    /// The first values that the jump of Rust passes on.
    pub(crate) passed_on: Vec<FirstValue>,
    pub(crate) end: ExitEnd,
}

/// An arm that a jump leaves.
pub(crate) struct LeftArm {
    pub(crate) construct: Ident,
    pub(crate) label: Lifetime,
    /// The value of the arm, if its construct has one.
    pub(crate) value: Option<ArmExit>,
    pub(crate) passed_on: Vec<FirstValue>,
}

/// The value of an arm that a jump leaves.
#[derive(Clone)]
pub(crate) enum ArmExit {
    /// The value of the jump.
    Given(Ident),
    /// The value in the slot, if there is one.
    Slot(Ident),
    Nothing,
}

/// The jump of Rust at the end of an exit.
pub(crate) enum ExitEnd {
    Return(Option<ExitValue>),
    Break(Lifetime, Option<ExitValue>),
    Continue(Lifetime),
    /// To the end of a sequence, where another exit follows.
    Sequence(Lifetime),
    /// The end is never reached.
    Never,
}

/// The value of a jump.
pub(crate) enum ExitValue {
    Given(Ident),
    /// The value in the slot.
    Slot(Ident),
}
