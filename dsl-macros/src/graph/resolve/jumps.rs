//! The jumps in the code that was resolved so far.

use crate::graph::jumps::Jumps;
use crate::graph::tree::JumpKind;
use syn::{Label, Lifetime};

/// A jump that was resolved.
struct FoundJump {
    kind: JumpKind,
    /// The number of loops and labeled blocks around the target of the jump, or `None` if the jump
    /// leaves the function.
    target: Option<usize>,
    /// The label, if there is one.
    label: Option<String>,
    has_value: bool,
    nesting: Nesting,
}

/// The number of constructs around a piece of code.
#[derive(Clone, Copy, Default)]
pub(super) struct Nesting {
    /// The number of constructs that may be staged.
    pub(super) staged: usize,
    /// The number of arms of a `match` or an `if let`.
    pub(super) host: usize,
}

/// A loop or labeled block.
struct EnclosingTarget {
    label: Option<String>,
    is_loop: bool,
}

/// The jumps of a function in the order of the code.
#[derive(Default)]
pub(super) struct FoundJumps {
    found: Vec<FoundJump>,
    /// The loops and labeled blocks around the current code.
    targets: Vec<EnclosingTarget>,
    pub(super) nesting: Nesting,
}

/// The beginning of a piece of code.
#[derive(Clone, Copy)]
pub(super) struct JumpMark {
    found: usize,
    targets: usize,
    nesting: Nesting,
}

impl JumpMark {
    /// Returns whether a jump leaves the code that begins here.
    fn is_left_by(&self, jump: &FoundJump) -> bool {
        jump.target.is_none_or(|target| target < self.targets)
    }
}

impl FoundJumps {
    /// Returns the beginning of the code that is resolved next.
    pub(super) fn start(&self) -> JumpMark {
        JumpMark { found: self.found.len(), targets: self.targets.len(), nesting: self.nesting }
    }

    /// Enters a loop or labeled block. Returns the start of its statements.
    pub(super) fn enter(&mut self, label: Option<&Label>, is_loop: bool) -> JumpMark {
        self.targets.push(EnclosingTarget { label: label.map(|l| l.name.ident.to_string()), is_loop });
        self.start()
    }

    /// Leaves the innermost loop or labeled block.
    pub(super) fn leave(&mut self) {
        self.targets.pop();
    }

    /// Adds a jump.
    pub(super) fn add(&mut self, kind: JumpKind, label: Option<&Lifetime>, has_value: bool) {
        let target = match (kind, label) {
            (JumpKind::Return, _) => None,
            (_, None) => self.targets.iter().rposition(|target| target.is_loop),
            (_, Some(l)) => self.targets.iter().rposition(|t| t.label.as_ref().is_some_and(|label| l.ident == label)),
        };
        let label = label.map(|label| label.ident.to_string());
        self.found.push(FoundJump { kind, target, label, has_value, nesting: self.nesting });
    }

    /// Forgets the jumps since a start, which leave nothing around it.
    pub(super) fn forget(&mut self, start: JumpMark) {
        self.found.truncate(start.found);
    }

    /// Returns the jumps that leave the code since a start.
    pub(super) fn leaving(&self, start: JumpMark) -> Jumps {
        self.summary(start, |jump| start.is_left_by(jump))
    }

    /// Returns the jumps that end the loop whose body began at a start.
    pub(super) fn ending_loop(&self, start: JumpMark) -> Jumps {
        let continues = |jump: &FoundJump| jump.kind == JumpKind::Continue && jump.target == Some(start.targets - 1);
        self.summary(start, |jump| start.is_left_by(jump) && !continues(jump))
    }

    /// Returns whether a `break` ends the very loop whose body began at a start.
    pub(super) fn breaks_loop(&self, start: JumpMark) -> bool {
        let breaks = |jump: &FoundJump| jump.kind == JumpKind::Break && jump.target == Some(start.targets - 1);
        self.summary(start, breaks).any
    }

    /// Returns the labels of each jump since a start, and whether the jump has a value.
    pub(super) fn labels(&self, start: JumpMark) -> Vec<(String, bool)> {
        let jumps = self.found[start.found..].iter();
        jumps.filter_map(|jump| Some((jump.label.clone()?, jump.has_value))).collect()
    }

    fn summary(&self, start: JumpMark, counts: impl Fn(&FoundJump) -> bool) -> Jumps {
        let mut jumps = Jumps::default();
        for jump in self.found[start.found..].iter().filter(|jump| counts(jump)) {
            jumps.any = true;
            jumps.under_construct |= jump.nesting.staged > start.nesting.staged;
        }
        jumps
    }

    /// Notes that code after a conditional `break` in a labeled block depends on its condition. The
    /// statements of the block began at the start.
    pub(super) fn depend_on_breaks(&mut self, start: JumpMark) {
        let depth = |nesting: Nesting| nesting.staged + nesting.host;
        let found = &mut self.found[start.found..];
        let is_conditional = |jump: &FoundJump| {
            jump.kind == JumpKind::Break && start.is_left_by(jump) && depth(jump.nesting) > depth(start.nesting)
        };
        if found.iter().any(is_conditional) {
            found.iter_mut().for_each(|jump| jump.nesting.staged += 1);
        }
    }
}
