//! Values that can cross a staged branch or loop.

use crate::random::Key;
use crate::{AnyValue, Diagnostic, Element, Tensor, Var, trace};
use std::fmt;
use std::rc::Rc;

/// A value that a staged `if` or `while` may modify: a tensor, or something made of tensors.
///
/// Implemented for [`Tensor`], `()`, tuples, arrays, `Vec`, `Option`, `Result` and `Box`; derive it
/// for structs. The tensors in it become results of the branch and variables of the loop.
///
/// The structure (lengths, and which options are present) is known while tracing, so both branches,
/// and each iteration, must yield the same structure. Only the `Ok` of a `Result` is carried: an
/// `Err` is a host value and ends the trace.
#[diagnostic::on_unimplemented(
    message = "a staged `if` or `while` cannot modify a host value of type `{Self}`",
    label = "modified under a tensor condition",
    note = "make it a tensor with `scalar(..)`, or use a host condition",
    note = "a method call on a `mut` variable counts as a modification; write `(&x).method(..)` to call a method \
            that takes `&self`",
    note = "for a struct of tensors, add `#[derive(Carry)]`, and mark host fields that are not modified with \
            `#[carry(host)]`"
)]
pub trait Carry: Sized {
    /// Appends the tensors, and the structure that is needed to rebuild the value from them.
    #[doc(hidden)]
    fn flatten(&self, state: &mut FlatState);

    /// Takes from `state` what [`flatten`](Self::flatten) appended, with other tensors in place of
    /// the original tensors.
    #[doc(hidden)]
    fn rebuild(state: &mut Reader<'_>) -> Self;
}

/// A host value in carried state, which must not change.
///
/// Fields of a struct with `#[derive(Carry)]` that are marked `#[carry(host)]` are host values.
pub trait HostValue: Clone + PartialEq + fmt::Debug + 'static {}
impl<T: Clone + PartialEq + fmt::Debug + 'static> HostValue for T {}

/// A host value of any type.
trait AnyHost: fmt::Debug {
    fn same(&self, other: &dyn AnyHost) -> bool;
    fn as_any(&self) -> &dyn std::any::Any;
}

impl<T: HostValue> AnyHost for T {
    fn same(&self, other: &dyn AnyHost) -> bool {
        other.as_any().downcast_ref::<T>() == Some(self)
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// One element of the structure.
#[derive(Clone, Debug)]
enum Entry {
    Tensor,
    Len(usize),
    Present(bool),
    Host(Rc<dyn AnyHost>),
    /// An `Err`, which the graph cannot represent.
    Err,
    /// No value yet: the whole of a [`Slot`](super::Slot).
    Undefined,
}

impl Entry {
    fn same(&self, other: &Entry) -> bool {
        match (self, other) {
            (Entry::Tensor, Entry::Tensor) => true,
            (Entry::Len(a), Entry::Len(b)) => a == b,
            (Entry::Present(a), Entry::Present(b)) => a == b,
            (Entry::Host(a), Entry::Host(b)) => a.same(&**b),
            (Entry::Err, Entry::Err) => true,
            (Entry::Undefined, Entry::Undefined) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Tensor => f.write_str("a tensor"),
            Entry::Len(1) => f.write_str("1 item"),
            Entry::Len(n) => write!(f, "{n} items"),
            Entry::Present(true) => f.write_str("`Some`"),
            Entry::Present(false) => f.write_str("`None`"),
            Entry::Host(value) => write!(f, "the host value {value:?}"),
            Entry::Err => f.write_str("`Err`"),
            Entry::Undefined => f.write_str("no value"),
        }
    }
}

/// The path of a leaf in a value, from the outside in: `.h`, `.0`, `.cells.2.h`.
#[derive(Clone, Debug, Default)]
struct LeafPath(Option<Rc<PathSegment>>);

#[derive(Debug)]
struct PathSegment {
    before: LeafPath,
    name: Name,
}

#[derive(Clone, Copy, Debug)]
enum Name {
    Field(&'static str),
    Item(usize),
}

impl fmt::Display for LeafPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_deref() {
            None => Ok(()),
            Some(PathSegment { before, name: Name::Field(name) }) => write!(f, "{before}.{name}"),
            Some(PathSegment { before, name: Name::Item(i) }) => write!(f, "{before}.{i}"),
        }
    }
}

/// A flattened value: its tensors and its structure, each leaf with its path.
#[derive(Clone, Debug, Default)]
pub struct FlatState {
    tensors: Vec<AnyValue>,
    structure: Vec<(LeafPath, Entry)>,
    /// The path of the part that is being flattened.
    path: LeafPath,
}

/// A leaf that differs between two values of one type.
#[derive(Debug)]
pub(crate) struct Difference {
    /// The path of the leaf, such as `.cells.0`; empty for the whole value.
    pub(crate) path: String,
    /// A description of the leaf in each value.
    pub(crate) words: [String; 2],
    /// Whether the leaf is a sequence with another length.
    pub(crate) is_length: bool,
}

impl FlatState {
    /// Flattens a value.
    pub fn of(value: &impl Carry) -> FlatState {
        let mut state = FlatState::default();
        value.flatten(&mut state);
        state
    }

    /// Starts a field. Leaves appended until [`leave`](Self::leave) belong to it.
    pub fn enter(&mut self, field: &'static str) {
        self.step(Name::Field(field));
    }

    /// Starts an item of a sequence. Leaves appended until [`leave`](Self::leave) belong to it.
    pub fn enter_item(&mut self, index: usize) {
        self.step(Name::Item(index));
    }

    fn step(&mut self, name: Name) {
        self.path = LeafPath(Some(Rc::new(PathSegment { before: std::mem::take(&mut self.path), name })));
    }

    /// Ends a field or item.
    pub fn leave(&mut self) {
        let step = self.path.0.take().expect("only a part that was entered is left");
        self.path = step.before.clone();
    }

    /// Appends the items of a sequence of known length.
    pub(super) fn items<'a, T: Carry + 'a>(&mut self, items: impl IntoIterator<Item = &'a T>) {
        for (i, item) in items.into_iter().enumerate() {
            self.enter_item(i);
            item.flatten(self);
            self.leave();
        }
    }

    fn push(&mut self, entry: Entry) {
        self.structure.push((self.path.clone(), entry));
    }

    /// Appends a tensor.
    pub fn tensor(&mut self, tensor: AnyValue) {
        self.push(Entry::Tensor);
        self.tensors.push(tensor);
    }

    /// Appends a length.
    pub fn len(&mut self, len: usize) {
        self.push(Entry::Len(len));
    }

    /// Appends whether an optional part is present.
    pub fn present(&mut self, present: bool) {
        self.push(Entry::Present(present));
    }

    /// Appends a host value that must not change.
    pub fn host(&mut self, value: &impl HostValue) {
        self.push(Entry::Host(Rc::new(value.clone())));
    }

    /// Appends that there is no value yet.
    pub(super) fn undefined(&mut self) {
        self.push(Entry::Undefined);
    }

    /// Returns whether there is no value yet.
    pub(super) fn is_undefined(&self) -> bool {
        matches!(self.structure[..], [(_, Entry::Undefined)])
    }

    /// Returns whether the value contains an `Err`, which cannot be rebuilt.
    pub(super) fn has_err(&self) -> bool {
        self.structure.iter().any(|(_, e)| matches!(e, Entry::Err))
    }

    /// Returns the same structure with zeros for the tensors, created in the current region.
    #[track_caller]
    pub(super) fn zeros_like(&self) -> FlatState {
        let tensors = self.tensors.iter().map(|&t| trace::placeholder(t.ty())).collect();
        FlatState { tensors, structure: self.structure.clone(), path: LeafPath::default() }
    }

    /// Returns the tensors, in order.
    pub(crate) fn tensors(&self) -> &[AnyValue] {
        &self.tensors
    }

    /// Returns the path of each tensor.
    pub(crate) fn paths(&self) -> impl Iterator<Item = String> {
        self.structure.iter().filter(|(_, e)| matches!(e, Entry::Tensor)).map(|(path, _)| path.to_string())
    }

    /// Returns the same structure with other tensors, which are taken from `tensors`.
    pub(crate) fn with_tensors(&self, tensors: &mut impl Iterator<Item = AnyValue>) -> FlatState {
        let tensors: Vec<AnyValue> = tensors.take(self.tensors.len()).collect();
        assert_eq!(tensors.len(), self.tensors.len(), "there is one tensor for each tensor of the structure");
        FlatState { tensors, structure: self.structure.clone(), path: LeafPath::default() }
    }

    /// Returns the first difference between the structures of two values.
    pub(crate) fn difference(&self, other: &FlatState) -> Option<Difference> {
        let pairs = self.structure.iter().zip(&other.structure);
        for ((path, a), (_, b)) in pairs {
            if !a.same(b) {
                let is_length = matches!((a, b), (Entry::Len(_), Entry::Len(_)));
                return Some(Difference { path: path.to_string(), words: [a.to_string(), b.to_string()], is_length });
            }
        }
        let count = |s: &FlatState| format!("{} parts", s.structure.len());
        let differ = self.structure.len() != other.structure.len();
        differ.then(|| Difference { path: String::new(), words: [count(self), count(other)], is_length: false })
    }

    /// Rebuilds the value.
    pub(crate) fn rebuild<T: Carry>(&self) -> T {
        self.read(T::rebuild)
    }

    /// Rebuilds the items of a slice.
    pub(super) fn rebuild_items<T: Carry>(&self, items: &mut [T]) {
        self.read(|reader| items.iter_mut().for_each(|item| *item = T::rebuild(reader)));
    }

    fn read<R>(&self, f: impl FnOnce(&mut Reader<'_>) -> R) -> R {
        let mut reader = Reader { tensors: &self.tensors, structure: &self.structure };
        let value = f(&mut reader);
        assert!(reader.structure.is_empty(), "{MISUSE}");
        value
    }
}

/// A reader of a [`FlatState`].
#[derive(Debug)]
pub struct Reader<'a> {
    tensors: &'a [AnyValue],
    structure: &'a [(LeafPath, Entry)],
}

const MISUSE: &str = "`Carry::rebuild` reads what `Carry::flatten` appended, in the same order";

impl Reader<'_> {
    fn next(&mut self) -> &Entry {
        let (first, rest) = self.structure.split_first().expect(MISUSE);
        self.structure = rest;
        &first.1
    }

    /// Returns the next tensor.
    pub fn tensor(&mut self) -> AnyValue {
        assert!(matches!(self.next(), Entry::Tensor), "{MISUSE}");
        let (&first, rest) = self.tensors.split_first().expect(MISUSE);
        self.tensors = rest;
        first
    }

    /// Returns the next length.
    #[expect(clippy::len_without_is_empty, reason = "the method consumes an appended length")]
    pub fn len(&mut self) -> usize {
        let Entry::Len(len) = self.next() else { panic!("{MISUSE}") };
        *len
    }

    /// Returns whether the next optional part is present.
    pub fn present(&mut self) -> bool {
        let Entry::Present(present) = self.next() else { panic!("{MISUSE}") };
        *present
    }

    /// Returns whether there is no value.
    pub(super) fn undefined(&mut self) -> bool {
        let undefined = matches!(self.structure.first(), Some((_, Entry::Undefined)));
        if undefined {
            self.next();
        }
        undefined
    }

    /// Returns the next host value.
    pub fn host<T: HostValue>(&mut self) -> T {
        let Entry::Host(value) = self.next() else { panic!("{MISUSE}") };
        value.as_any().downcast_ref::<T>().expect(MISUSE).clone()
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element> Carry for Tensor<T> {
    fn flatten(&self, state: &mut FlatState) {
        state.tensor(self.untyped());
    }
    #[track_caller]
    fn rebuild(state: &mut Reader<'_>) -> Self {
        Tensor::from_any(state.tensor())
    }
}

#[diagnostic::do_not_recommend]
impl<T: Carry> Carry for Vec<T> {
    fn flatten(&self, state: &mut FlatState) {
        state.len(self.len());
        state.items(self);
    }
    fn rebuild(state: &mut Reader<'_>) -> Self {
        (0..state.len()).map(|_| T::rebuild(state)).collect()
    }
}

#[diagnostic::do_not_recommend]
impl<T: Carry, const N: usize> Carry for [T; N] {
    fn flatten(&self, state: &mut FlatState) {
        state.items(self);
    }
    fn rebuild(state: &mut Reader<'_>) -> Self {
        std::array::from_fn(|_| T::rebuild(state))
    }
}

#[diagnostic::do_not_recommend]
impl<T: Carry> Carry for Option<T> {
    fn flatten(&self, state: &mut FlatState) {
        state.present(self.is_some());
        if let Some(x) = self {
            x.flatten(state);
        }
    }
    fn rebuild(state: &mut Reader<'_>) -> Self {
        state.present().then(|| T::rebuild(state))
    }
}

/// An `Ok` is carried. An `Err` is flattened only so that the construct can report where it came
/// from.
#[diagnostic::do_not_recommend]
impl<T: Carry, E> Carry for Result<T, E> {
    fn flatten(&self, state: &mut FlatState) {
        match self {
            Ok(x) => x.flatten(state),
            Err(_) => state.push(Entry::Err),
        }
    }
    fn rebuild(state: &mut Reader<'_>) -> Self {
        match state.structure.first() {
            Some((_, Entry::Err)) => trace::fail(staged_err()),
            _ => Ok(T::rebuild(state)),
        }
    }
}

/// Returns the error of an `Err` under a tensor condition.
pub(super) fn staged_err() -> Diagnostic {
    Diagnostic::new("an `Err` under a tensor condition").help(
        "a graph cannot return a host error: return it under a host condition, or fail when the graph runs, with \
         `assert!(..)` or `panic!(..)`",
    )
}

#[diagnostic::do_not_recommend]
impl<T: Carry> Carry for Box<T> {
    fn flatten(&self, state: &mut FlatState) {
        (**self).flatten(state);
    }
    fn rebuild(state: &mut Reader<'_>) -> Self {
        Box::new(T::rebuild(state))
    }
}

/// A variable handle as a host value. Its identity must not change; assigning the variable is an
/// effect of the graph.
#[derive(Clone, Debug)]
struct Identity<T: Element>(Var<T>);

impl<T: Element> PartialEq for Identity<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.any().id() == other.0.any().id()
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element> Carry for Var<T> {
    fn flatten(&self, state: &mut FlatState) {
        state.host(&Identity(self.clone()));
    }
    fn rebuild(state: &mut Reader<'_>) -> Self {
        state.host::<Identity<T>>().0
    }
}

#[diagnostic::do_not_recommend]
impl Carry for Key {
    fn flatten(&self, state: &mut FlatState) {
        Carry::flatten(&self.into_tensor(), state);
    }
    fn rebuild(state: &mut Reader<'_>) -> Self {
        Key::from_tensor(Carry::rebuild(state))
    }
}

#[diagnostic::do_not_recommend]
impl Carry for () {
    fn flatten(&self, _state: &mut FlatState) {}
    fn rebuild(_state: &mut Reader<'_>) -> Self {}
}

macro_rules! carry_tuples {
    ($($($t:ident $i:tt),+;)*) => {$(
        #[diagnostic::do_not_recommend]
        impl<$($t: Carry),+> Carry for ($($t,)+) {
            fn flatten(&self, state: &mut FlatState) {
                $(
                    state.enter_item($i);
                    self.$i.flatten(state);
                    state.leave();
                )+
            }
            fn rebuild(state: &mut Reader<'_>) -> Self {
                ($($t::rebuild(state),)+)
            }
        }
    )*};
}
carry_tuples! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11;
}
