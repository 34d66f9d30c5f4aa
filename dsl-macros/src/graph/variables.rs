//! The variables of a function, as data: what their declarations show.

/// How the value of a variable can be modified, as far as tokens show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Neither `mut` nor known to be a mutable reference.
    Plain,
    /// Declared `mut`.
    Mut,
    /// A mutable reference, so that `*name` can change.
    MutRef,
    /// A mutable reference to an item of a collection, so that `*name` can change.
    ///
    /// This is guessed from the names of methods. Passing the variable on, which may move it,
    /// therefore does not count as a modification.
    Item,
}

/// A variable.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) access: Access,
    /// Whether the variable is declared by `let name;`.
    pub(crate) is_deferred: bool,
    /// Whether the variable is declared as `bool`.
    pub(crate) is_bool: bool,
    /// Whether the variable is declared as a tensor or host number, whose methods are known.
    pub(crate) is_known: bool,
    /// Whether the variable is a tensor or host number by its declared type or its initial value.
    pub(crate) is_number: bool,
    /// The captured variable that this variable modifies, if it is a closure.
    pub(crate) changes: Option<String>,
}

/// The identifier of a variable. Ids grow in the order of declaration.
pub(crate) type VarId = usize;

/// A variable declared by `let x;` whose name refers to another variable here.
pub(crate) struct Hidden {
    pub(crate) variable: VarId,
    pub(crate) by: VarId,
}
