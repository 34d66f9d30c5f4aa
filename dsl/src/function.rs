//! Functions over tensors as values: their parameters, results and traces.

use crate::ir::{VarId, count};
use crate::ops::AnyValue;
use crate::trace::{self, Traced};
use crate::{Array, Diagnostic, Dim, Element, HostTensor, IntoArray, Loc, Result, Tensor, TensorType, interp};
use std::fmt;

/// The number of tensors of a parameter, as far as its type determines it. The lengths of `Vec`s
/// and `Option`s are known only in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamLayout {
    /// The number of tensors outside sequences.
    fixed: usize,
    /// The number of sequences, whose lengths are known only in a call.
    sequences: usize,
    /// The number of tensors of each item, if there is exactly one sequence and its items contain
    /// none.
    per_item: usize,
}

impl ParamLayout {
    /// The layout without tensors.
    pub const NONE: ParamLayout = ParamLayout { fixed: 0, sequences: 0, per_item: 0 };
    /// The layout of one tensor.
    pub const TENSOR: ParamLayout = ParamLayout { fixed: 1, ..ParamLayout::NONE };

    /// Appends another layout.
    #[must_use]
    pub const fn and(self, next: ParamLayout) -> ParamLayout {
        ParamLayout {
            fixed: self.fixed + next.fixed,
            sequences: self.sequences + next.sequences,
            per_item: self.per_item + next.per_item,
        }
    }

    /// Repeats the layout `n` times.
    #[must_use]
    pub const fn times(self, n: usize) -> ParamLayout {
        ParamLayout { fixed: self.fixed * n, sequences: self.sequences * n, per_item: self.per_item * n }
    }

    /// Returns the layout of a sequence of such items.
    #[must_use]
    pub const fn sequence(self) -> ParamLayout {
        // A sequence inside another sequence counts as several, because the number of tensors does
        // not determine their lengths.
        ParamLayout { fixed: 0, sequences: 1 + 2 * self.sequences, per_item: self.fixed }
    }
}

/// The types of the tensors that a function is called with, in the order of its parameters, and the
/// lengths of the `Vec`s among its arguments.
///
/// A slice of types is a signature, too. If there is at most one `Vec`, its length follows from the
/// number of types.
///
/// ```
/// use anabranch::{Arguments, DType, Signature, TensorType, prelude::*};
///
/// let session = Session::new()?;
/// let product = |layers: Vec<Tensor>, x: Tensor| layers.into_iter().fold(x, |x, w| x * w);
/// let f = session.function(product)?;
/// let x = TensorType::new(DType::F32, [2]);
/// assert_eq!(f.graph(&[x.clone(), x.clone(), x])?.inputs().len(), 3);
///
/// let arguments = Arguments::of::<(Vec<Tensor>, Vec<Tensor>)>((vec![1.0, 2.0], vec![3.0]));
/// let signature: Signature = arguments.signature();
/// let g = session.function(|a: Vec<Tensor>, b: Vec<Tensor>| a[0] * b.len() as f32)?;
/// assert!(g.graph(signature.types()).is_err());
/// assert!(g.graph(&signature).is_ok());
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    types: Vec<TensorType>,
    /// The lengths of sequences, in the order of their first items, or `None` if only the types are
    /// known.
    lengths: Option<Vec<usize>>,
}

impl Signature {
    /// Returns whether it is the signature of these arguments.
    pub fn is_of(&self, arguments: &Arguments) -> bool {
        let types_fit = |(ty, tensor): (&TensorType, &HostTensor)| {
            let mut dims = ty.shape.dims().iter().zip(tensor.shape());
            ty.dtype == tensor.dtype() && ty.rank() == tensor.rank() && dims.all(|(d, &n)| *d == Dim::Known(n))
        };
        self.types.len() == arguments.tensors.len()
            && self.lengths.as_ref() == Some(&arguments.lengths)
            && self.types.iter().zip(&arguments.tensors).all(types_fit)
    }

    /// Returns the types of the tensors.
    pub fn types(&self) -> &[TensorType] {
        &self.types
    }

    /// Returns the signature with the lengths of all sequences, for a function with parameters of
    /// this layout.
    ///
    /// # Errors
    /// Fails if only the types are known and they do not determine the lengths of several
    /// sequences.
    #[doc(hidden)]
    pub fn with_lengths(self, layout: ParamLayout) -> Result<Signature> {
        let n = self.types.len();
        if self.lengths.is_some() {
            return Ok(self);
        }
        let lengths = match layout.sequences {
            0 => vec![],
            1 => {
                let items =
                    n.checked_sub(layout.fixed).filter(|rest| layout.per_item > 0 && rest % layout.per_item == 0);
                let Some(items) = items else {
                    let ParamLayout { fixed, per_item, .. } = layout;
                    let message = format!(
                        "the function takes {fixed} tensors and {per_item} for each item of a sequence, but got {n}"
                    );
                    let help = format!("list {fixed} types, and {per_item} more for each item");
                    return Err(Diagnostic::new(message).help(help));
                };
                vec![items / layout.per_item]
            }
            _ => {
                let message = "tensor types alone do not determine the lengths of `Vec` and `Option` parameters";
                return Err(
                    Diagnostic::new(message).help("use the signature of arguments: `Arguments::of(..).signature()`")
                );
            }
        };
        Ok(Signature { lengths: Some(lengths), ..self })
    }
}

impl From<&Signature> for Signature {
    fn from(signature: &Signature) -> Signature {
        signature.clone()
    }
}

/// The signature of a function without parameters.
impl From<()> for Signature {
    fn from(_: ()) -> Signature {
        Signature { types: Vec::new(), lengths: None }
    }
}

impl From<&[TensorType]> for Signature {
    fn from(types: &[TensorType]) -> Signature {
        Signature { types: types.to_vec(), lengths: None }
    }
}

impl From<&Vec<TensorType>> for Signature {
    fn from(types: &Vec<TensorType>) -> Signature {
        types.as_slice().into()
    }
}

impl<const N: usize> From<&[TensorType; N]> for Signature {
    fn from(types: &[TensorType; N]) -> Signature {
        types.as_slice().into()
    }
}

/// The tensors of the arguments of a call, and the lengths of the sequences among the arguments.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    tensors: Vec<HostTensor>,
    lengths: Vec<usize>,
}

impl Arguments {
    /// Returns the arguments of a call of a function with parameters `Args`.
    pub fn of<Args>(args: impl CallArgs<Args>) -> Arguments {
        let mut all = Arguments::default();
        args.feed_all(&mut all);
        all
    }

    /// Appends a tensor.
    #[doc(hidden)]
    pub fn push(&mut self, tensor: HostTensor) {
        self.tensors.push(tensor);
    }

    /// Appends the items of a sequence.
    #[doc(hidden)]
    pub fn sequence<I: Input, X: Feed<I>>(&mut self, items: impl ExactSizeIterator<Item = X>) {
        self.lengths.push(items.len());
        items.for_each(|item| item.feed(self));
    }

    /// Returns the tensors, in the order of the parameters.
    pub fn tensors(&self) -> &[HostTensor] {
        &self.tensors
    }

    /// Returns the lengths of the sequences, in the order of the parameters. The length of a
    /// sequence precedes those in its items.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Returns the types of the tensors and the lengths.
    pub fn signature(&self) -> Signature {
        let types = self.tensors.iter().map(HostTensor::ty).collect();
        Signature { types, lengths: Some(self.lengths.clone()) }
    }
}

/// The inputs that a trace still has to create.
#[derive(Debug)]
pub struct Inputs<'a> {
    types: std::slice::Iter<'a, TensorType>,
    lengths: std::slice::Iter<'a, usize>,
    taken: usize,
    /// The values to take instead of new inputs of the graph, if they exist.
    values: Option<std::vec::IntoIter<AnyValue>>,
    /// The path from the arguments to the value that is being made.
    path: Vec<InputSegment>,
}

/// A step of the path from the arguments of a call to a tensor.
#[derive(Clone, Copy, Debug)]
enum InputSegment {
    /// An argument, counted from 0.
    Argument(usize),
    /// An element of a tuple or sequence, counted from 0.
    Element(usize),
    /// A field of a struct.
    Field(&'static str),
}

impl std::fmt::Display for InputSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InputSegment::Argument(i) => write!(f, "argument #{}", i + 1),
            InputSegment::Element(i) => write!(f, "element {i}"),
            InputSegment::Field(name) => write!(f, "field `{name}`"),
        }
    }
}

impl Inputs<'_> {
    /// Calls `f` with values that exist instead of new inputs of the graph.
    pub(crate) fn with_values<R>(
        signature: &Signature,
        values: Vec<AnyValue>,
        f: impl FnOnce(&mut Inputs<'_>) -> Result<R>,
    ) -> Result<R> {
        let lengths = signature.lengths.as_deref().unwrap_or_default();
        let values = Some(values.into_iter());
        let (types, lengths, path) = (signature.types.iter(), lengths.iter(), Vec::new());
        f(&mut Inputs { types, lengths, taken: 0, values, path })
    }

    /// Creates the items of a sequence.
    ///
    /// # Errors
    /// Fails if an item fails.
    pub fn sequence<I: Input>(&mut self) -> Result<Vec<I>> {
        let n = *self.lengths.next().expect("a signature has the lengths of all sequences");
        (0..n).map(|i| self.element(i)).collect()
    }

    /// The argument `i`, counted from 0.
    ///
    /// # Errors
    /// Returns the error of the argument.
    pub fn argument<I: Input>(&mut self, i: usize) -> Result<I> {
        self.at(InputSegment::Argument(i))
    }

    /// The element `i` of a tuple or sequence, counted from 0.
    ///
    /// # Errors
    /// Returns the error of the element.
    pub fn element<I: Input>(&mut self, i: usize) -> Result<I> {
        self.at(InputSegment::Element(i))
    }

    /// A field of a struct.
    ///
    /// # Errors
    /// Returns the error of the field.
    pub fn field<I: Input>(&mut self, name: &'static str) -> Result<I> {
        self.at(InputSegment::Field(name))
    }

    fn at<I: Input>(&mut self, segment: InputSegment) -> Result<I> {
        self.path.push(segment);
        let made = I::trace(self)?;
        self.path.pop();
        Ok(made)
    }

    /// The position of the value that is being made, for messages: ``argument #2, field `w` ``.
    fn position(&self) -> String {
        self.path.iter().map(InputSegment::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// A parameter of a graph function: a tensor, or a tuple, array, `Vec`, `Option` or derived struct
/// of parameters.
///
/// The length of a `Vec`, and whether an `Option` has a value, belong to the signature: the
/// function is traced again for others.
#[diagnostic::on_unimplemented(
    message = "a graph function cannot take `{Self}`",
    label = "not a valid parameter type of a graph function",
    note = "a parameter is a tensor, or a tuple, array, `Vec`, `Option` or struct with `#[derive(InOut)]` of \
            tensors, passed by value",
    note = "capture a host value in a closure: `move |x: Tensor| f(x, value)`"
)]
pub trait Input: Sized {
    /// The number of tensors.
    #[doc(hidden)]
    const LAYOUT: ParamLayout;
    /// Creates graph inputs for the next types of the signature.
    #[doc(hidden)]
    fn trace(inputs: &mut Inputs<'_>) -> Result<Self>;
}

/// A host value that can be passed for a parameter of type `I`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be passed for a parameter of type `{I}`",
    label = "not a valid argument for `{I}`",
    note = "for a tensor, pass an element, a slice, a `Vec`, an `Array` or nested arrays of its element type; for a \
            tuple, array, `Vec` or `Option` of tensors, the same structure of these; for a struct with \
            `#[derive(InOut)]`, its struct of arrays"
)]
pub trait Feed<I: Input> {
    /// Appends the tensors in the order in which [`Input::trace`] takes them.
    #[doc(hidden)]
    fn feed(self, to: &mut Arguments);
}

/// The help if a signature has too few or too many types.
const ONE_TYPE_EACH: &str = "a signature lists one type for each tensor of the parameters, in their order";

impl<T: Element> Input for Tensor<T> {
    const LAYOUT: ParamLayout = ParamLayout::TENSOR;
    fn trace(inputs: &mut Inputs<'_>) -> Result<Self> {
        let i = inputs.taken;
        inputs.taken += 1;
        let Some(ty) = inputs.types.next() else {
            let (least, position) = (count(i + 1, "tensor"), inputs.position());
            let message = format!("the function takes at least {least}, but got {i}: {position} is missing");
            return Err(Diagnostic::new(message).help(ONE_TYPE_EACH));
        };
        if ty.dtype != T::DTYPE {
            let position = inputs.position();
            let message = format!("input {i} ({position}) has elements of type {}, but got {ty}", T::DTYPE);
            let expected = TensorType::new(T::DTYPE, ty.shape.clone());
            return Err(Diagnostic::new(message).help(format!("give this input the type {expected}")));
        }
        Ok(Tensor::from_any(match &mut inputs.values {
            Some(values) => values.next().expect("there is a value for each type"),
            None => trace::input(ty.clone(), None),
        }))
    }
}
impl<T: Element, X: IntoArray<T>> Feed<Tensor<T>> for X {
    fn feed(self, to: &mut Arguments) {
        to.push(self.into_array().into_host());
    }
}

impl<I: Input, const N: usize> Input for [I; N] {
    const LAYOUT: ParamLayout = I::LAYOUT.times(N);
    fn trace(inputs: &mut Inputs<'_>) -> Result<Self> {
        let items = (0..N).map(|i| inputs.element(i)).collect::<Result<Vec<_>>>()?;
        Ok(items.try_into().unwrap_or_else(|_| unreachable!("N items were made")))
    }
}
impl<I: Input, X: Feed<I>, const N: usize> Feed<[I; N]> for [X; N] {
    fn feed(self, to: &mut Arguments) {
        self.into_iter().for_each(|x| x.feed(to));
    }
}

impl<I: Input> Input for Vec<I> {
    const LAYOUT: ParamLayout = I::LAYOUT.sequence();
    fn trace(inputs: &mut Inputs<'_>) -> Result<Self> {
        inputs.sequence()
    }
}
impl<I: Input, X: Feed<I>> Feed<Vec<I>> for Vec<X> {
    fn feed(self, to: &mut Arguments) {
        to.sequence::<I, X>(self.into_iter());
    }
}
impl<'a, I: Input, X> Feed<Vec<I>> for &'a Vec<X>
where
    &'a X: Feed<I>,
{
    fn feed(self, to: &mut Arguments) {
        to.sequence::<I, &'a X>(self.iter());
    }
}
impl<'a, I: Input, X> Feed<Vec<I>> for &'a [X]
where
    &'a X: Feed<I>,
{
    fn feed(self, to: &mut Arguments) {
        to.sequence::<I, &'a X>(self.iter());
    }
}
impl<I: Input, X: Feed<I>, const N: usize> Feed<Vec<I>> for [X; N] {
    fn feed(self, to: &mut Arguments) {
        to.sequence::<I, X>(self.into_iter());
    }
}

impl<I: Input> Input for Option<I> {
    const LAYOUT: ParamLayout = I::LAYOUT.sequence();
    fn trace(inputs: &mut Inputs<'_>) -> Result<Self> {
        let mut items = inputs.sequence()?;
        match items.len() {
            0 | 1 => Ok(items.pop()),
            n => {
                let position = inputs.position();
                let message = format!("{position} is an `Option` and takes at most one value, but got {n}");
                Err(Diagnostic::new(message).help("use a `Vec` for several values"))
            }
        }
    }
}
impl<I: Input, X: Feed<I>> Feed<Option<I>> for Option<X> {
    fn feed(self, to: &mut Arguments) {
        to.sequence::<I, X>(self.into_iter());
    }
}

impl Input for () {
    const LAYOUT: ParamLayout = ParamLayout::NONE;
    fn trace(_: &mut Inputs<'_>) -> Result<Self> {
        Ok(())
    }
}

/// Creates the host value of a call's outputs, with the structure of the trace.
pub type Rebuild<H> = Box<dyn Fn(&mut dyn Iterator<Item = HostTensor>) -> H + Send + Sync>;

/// The result of a call: an array, or a tuple, array, vector, option or derived struct of results.
pub trait Results {
    /// Appends all tensors, in the order of the function's outputs. A tensor that is replaced must
    /// keep its element type.
    #[doc(hidden)]
    fn tensors_mut<'a>(&'a mut self, to: &mut Vec<&'a mut HostTensor>);
    /// Returns the path to the tensor `i` in the order of [`tensors_mut`](Self::tensors_mut), for
    /// messages: ``, element 1, field `w` ``. If there are fewer tensors, returns none and
    /// subtracts their number from `i`.
    #[doc(hidden)]
    fn path_of(&self, i: &mut usize) -> Option<String>;
}

impl<T: Element> Results for Array<T> {
    fn tensors_mut<'a>(&'a mut self, to: &mut Vec<&'a mut HostTensor>) {
        to.push(self.host_mut());
    }
    fn path_of(&self, i: &mut usize) -> Option<String> {
        let found = *i == 0;
        *i = i.saturating_sub(1);
        found.then(String::new)
    }
}
macro_rules! results_of_items {
    ($([$($g:tt)*] $t:ty),*) => {$(
        impl<$($g)*> Results for $t {
            fn tensors_mut<'a>(&'a mut self, to: &mut Vec<&'a mut HostTensor>) {
                self.iter_mut().for_each(|r| r.tensors_mut(to));
            }
            fn path_of(&self, i: &mut usize) -> Option<String> {
                let mut items = self.iter().enumerate();
                items.find_map(|(k, item)| item.path_of(i).map(|path| format!(", element {k}{path}")))
            }
        }
    )*};
}
results_of_items!([R: Results, const N: usize] [R; N], [R: Results] Vec<R>, [R: Results] Option<R>);
impl Results for () {
    fn tensors_mut<'a>(&'a mut self, _: &mut Vec<&'a mut HostTensor>) {}
    fn path_of(&self, _: &mut usize) -> Option<String> {
        None
    }
}

/// A result of a graph function: a tensor, or a tuple, array, vector, option or derived struct of
/// results, or a `Result` of one, whose error ends the trace.
#[diagnostic::on_unimplemented(
    message = "a graph function cannot return `{Self}`",
    label = "not a valid result type of a graph function",
    note = "a result is a tensor, a tuple, array, `Vec`, `Option` or struct with `#[derive(InOut)]` of tensors, or a \
            `Result` of these",
    note = "convert a number to a tensor with `scalar(x)`",
    note = "the length of a `List` is known only when the graph runs: return its elements as one tensor, \
            `list.stack()` or `list.concat()`"
)]
pub trait Output {
    /// The type of the result on the host, with [`Array`]s for tensors.
    type Host: Results + 'static;
    /// Appends the handles of all tensors.
    #[doc(hidden)]
    fn flatten(&self, to: &mut Vec<AnyValue>);
    /// Returns a function that creates the host value from the tensors in that order.
    #[doc(hidden)]
    fn rebuild(&self) -> Rebuild<Self::Host>;
}

impl<T: Element> Output for Tensor<T> {
    type Host = Array<T>;
    fn flatten(&self, to: &mut Vec<AnyValue>) {
        to.push(self.untyped());
    }
    fn rebuild(&self) -> Rebuild<Array<T>> {
        Box::new(|tensors| {
            let tensor = tensors.next().expect("there is one tensor for each output");
            Array::from_host(tensor).expect("the output has the type that was traced")
        })
    }
}

impl<O: Output, const N: usize> Output for [O; N] {
    type Host = [O::Host; N];
    fn flatten(&self, to: &mut Vec<AnyValue>) {
        self.iter().for_each(|o| o.flatten(to));
    }
    fn rebuild(&self) -> Rebuild<Self::Host> {
        let items: Vec<_> = self.iter().map(Output::rebuild).collect();
        Box::new(move |tensors| std::array::from_fn(|i| items[i](tensors)))
    }
}

impl<O: Output> Output for Vec<O> {
    type Host = Vec<O::Host>;
    fn flatten(&self, to: &mut Vec<AnyValue>) {
        self.iter().for_each(|o| o.flatten(to));
    }
    fn rebuild(&self) -> Rebuild<Self::Host> {
        let items: Vec<_> = self.iter().map(Output::rebuild).collect();
        Box::new(move |tensors| items.iter().map(|item| item(tensors)).collect())
    }
}

/// The trace determines whether there is a value.
impl<O: Output> Output for Option<O> {
    type Host = Option<O::Host>;
    fn flatten(&self, to: &mut Vec<AnyValue>) {
        self.iter().for_each(|o| o.flatten(to));
    }
    fn rebuild(&self) -> Rebuild<Self::Host> {
        let item = self.as_ref().map(Output::rebuild);
        Box::new(move |tensors| item.as_ref().map(|item| item(tensors)))
    }
}

/// The result of a function that can fail while it is traced. The error is that of the trace.
impl<O: Output, E: std::fmt::Display> Output for std::result::Result<O, E> {
    type Host = O::Host;
    fn flatten(&self, to: &mut Vec<AnyValue>) {
        match self {
            Ok(output) => output.flatten(to),
            Err(error) => {
                let text = error.to_string();
                // A rendered diagnostic may have help of its own.
                let has_help = text.contains("= help: ");
                let error = Diagnostic::new(text);
                let help = "the function returned this error while it was traced";
                trace::fail(if has_help { error } else { error.help(help) })
            }
        }
    }
    fn rebuild(&self) -> Rebuild<O::Host> {
        match self {
            Ok(output) => output.rebuild(),
            Err(_) => unreachable!("`flatten` ends the trace"),
        }
    }
}

/// A field of a struct with `#[derive(InOut)]`. The derive requires only this trait, so the
/// compiler reports an unsuitable field once.
#[diagnostic::on_unimplemented(
    message = "a field of a struct with `#[derive(InOut)]` cannot be a `{Self}`",
    label = "neither a tensor nor composed of tensors",
    note = "such a field is a tensor, or a tuple, array, `Vec`, `Option` or struct with `#[derive(InOut)]` of tensors",
    note = "move a host value out of the struct and capture it in a closure, as in `move |x: Batch| f(x, value)`, or \
            make it a tensor"
)]
pub trait Field: Sized + 'static {
    /// The number of tensors of the field.
    #[doc(hidden)]
    const LAYOUT: ParamLayout;
    /// The same on the host.
    type Host: Clone + fmt::Debug + Results + 'static;
    /// [`Input::trace`] for a named field.
    #[doc(hidden)]
    fn trace_field(inputs: &mut Inputs<'_>, name: &'static str) -> Result<Self>;
    /// [`Input::trace`] for field `i` of a tuple struct.
    #[doc(hidden)]
    fn trace_element(inputs: &mut Inputs<'_>, i: usize) -> Result<Self>;
    /// [`Feed::feed`].
    #[doc(hidden)]
    fn feed(host: Self::Host, to: &mut Arguments);
    /// [`Output::flatten`].
    #[doc(hidden)]
    fn flatten(&self, to: &mut Vec<AnyValue>);
    /// [`Output::rebuild`].
    #[doc(hidden)]
    fn rebuild(&self) -> Rebuild<Self::Host>;
}

#[diagnostic::do_not_recommend]
impl<T: Input + Output + 'static> Field for T
where
    <T as Output>::Host: Clone + fmt::Debug + Feed<T>,
{
    const LAYOUT: ParamLayout = <T as Input>::LAYOUT;
    type Host = <T as Output>::Host;
    fn trace_field(inputs: &mut Inputs<'_>, name: &'static str) -> Result<Self> {
        inputs.field(name)
    }
    fn trace_element(inputs: &mut Inputs<'_>, i: usize) -> Result<Self> {
        inputs.element(i)
    }
    fn feed(host: Self::Host, to: &mut Arguments) {
        Feed::<T>::feed(host, to);
    }
    fn flatten(&self, to: &mut Vec<AnyValue>) {
        Output::flatten(self, to);
    }
    fn rebuild(&self) -> Rebuild<Self::Host> {
        Output::rebuild(self)
    }
}

/// A function that can be traced: any `Fn` of at most 16 parameters, each of which is an [`Input`],
/// with a result that is an [`Output`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a graph function",
    label = "cannot be traced as a function of tensors",
    note = "a graph function is an `Fn` with at most 16 parameters of explicit types; its parameters and its result \
            are tensors, or tuples, arrays, `Vec`s, `Option`s and structs with `#[derive(InOut)]` of tensors",
    note = "to pass more, group parameters in a tuple, an array, a `Vec` or a struct"
)]
pub trait GraphFn<Args> {
    /// The result.
    type Output: Output;
    /// The number of tensors of its parameters.
    #[doc(hidden)]
    const PARAMETERS: ParamLayout;
    /// Calls the function with inputs created for a signature.
    #[doc(hidden)]
    fn apply(&self, inputs: &mut Inputs<'_>) -> Result<Self::Output>;
}

/// The arguments of a call: a value for a function of one parameter, a tuple for more, `()` for
/// none.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not match the parameters of the function, `{Args}`",
    label = "arguments of the wrong type",
    note = "call a function of one parameter with a value, of several parameters with a tuple, and of none with `()`"
)]
pub trait CallArgs<Args> {
    /// Appends the tensors of all arguments.
    #[doc(hidden)]
    fn feed_all(self, to: &mut Arguments);
}

impl<F: Fn() -> O, O: Output> GraphFn<()> for F {
    type Output = O;
    const PARAMETERS: ParamLayout = ParamLayout::NONE;
    fn apply(&self, _: &mut Inputs<'_>) -> Result<O> {
        Ok(self())
    }
}
impl CallArgs<()> for () {
    fn feed_all(self, _: &mut Arguments) {}
}
impl<A: Input, X: Feed<A>> CallArgs<(A,)> for X {
    fn feed_all(self, to: &mut Arguments) {
        self.feed(to);
    }
}
impl Output for () {
    type Host = ();
    fn flatten(&self, _: &mut Vec<AnyValue>) {}
    fn rebuild(&self) -> Rebuild<()> {
        Box::new(|_| ())
    }
}

macro_rules! call_args {
    ($($a:ident $x:ident $i:tt),+) => {
        impl<$($a: Input, $x: Feed<$a>),+> CallArgs<($($a,)+)> for ($($x,)+) {
            fn feed_all(self, to: &mut Arguments) {
                $(self.$i.feed(to);)+
            }
        }
    };
}
/// Implements the traits for tuples with the given items.
macro_rules! tuple {
    ($($a:ident $x:ident $i:tt),+) => {
        impl<Fun: Fn($($a),+) -> Out, Out: Output, $($a: Input),+> GraphFn<($($a,)+)> for Fun {
            type Output = Out;
            const PARAMETERS: ParamLayout = <($($a,)+) as Input>::LAYOUT;
            fn apply(&self, inputs: &mut Inputs<'_>) -> Result<Out> {
                Ok(self($(inputs.argument::<$a>($i)?),+))
            }
        }
        impl<$($a: Input),+> Input for ($($a,)+) {
            const LAYOUT: ParamLayout = ParamLayout::NONE$(.and($a::LAYOUT))+;
            fn trace(inputs: &mut Inputs<'_>) -> Result<Self> {
                Ok(($(inputs.element::<$a>($i)?,)+))
            }
        }
        impl<$($a: Input, $x: Feed<$a>),+> Feed<($($a,)+)> for ($($x,)+) {
            fn feed(self, to: &mut Arguments) {
                $(self.$i.feed(to);)+
            }
        }
        impl<$($a: Results),+> Results for ($($a,)+) {
            fn tensors_mut<'a>(&'a mut self, to: &mut Vec<&'a mut HostTensor>) {
                $(self.$i.tensors_mut(to);)+
            }
            fn path_of(&self, i: &mut usize) -> Option<String> {
                $(if let Some(path) = self.$i.path_of(i) {
                    return Some(format!(concat!(", element ", $i, "{}"), path));
                })+
                None
            }
        }
        impl<$($a: Output),+> Output for ($($a,)+) {
            type Host = ($($a::Host,)+);
            fn flatten(&self, to: &mut Vec<AnyValue>) {
                $(self.$i.flatten(to);)+
            }
            fn rebuild(&self) -> Rebuild<Self::Host> {
                let items = ($(self.$i.rebuild(),)+);
                Box::new(move |tensors| ($((items.$i)(tensors),)+))
            }
        }
    };
}
/// Implements the traits for tuples of all lengths from that of the first list on.
macro_rules! tuples {
    ([$($have:tt)+]) => { tuple!($($have)+); call_args!($($have)+); };
    ([$($have:tt)+] $a:ident $x:ident $i:tt $(, $($more:tt)+)?) => {
        tuple!($($have)+);
        call_args!($($have)+);
        tuples!([$($have)+, $a $x $i] $($($more)+)?);
    };
}
tuple!(A Xa 0);
tuples!([A Xa 0, B Xb 1] C Xc 2, D Xd 3, E Xe 4, G Xg 5, H Xh 6, I Xi 7, J Xj 8, K Xk 9, L Xl 10, M Xm 11, N Xn 12, O Xo 13, P Xp 14, Q Xq 15);

/// Returns the name of a function for messages, graphs and timelines: the last part of its path.
///
/// A closure or function pointer has no name, so the result is the location where it was passed to
/// be traced.
///
/// ```
/// use anabranch::{Loc, dsl::function::name_of};
///
/// fn twice() {}
/// assert_eq!(name_of(&twice, Loc::UNKNOWN), "twice");
/// let here = Loc { file: "src/main.rs", line: 12, column: 5 };
/// assert_eq!(name_of(&|| (), here), "closure at src/main.rs:12:5");
/// ```
#[doc(hidden)]
pub fn name_of<F: ?Sized>(_: &F, at: Loc) -> String {
    let path = std::any::type_name::<F>().trim_start_matches(['&', ' ']).trim_start_matches("mut ");
    if path.ends_with("{{closure}}") {
        return format!("closure at {at}");
    }
    // A name precedes its generic arguments, and follows a trait and its type.
    let mut depth = 0;
    let mut name = String::new();
    for c in path.chars() {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            ':' if depth == 0 => name.clear(),
            c if depth == 0 => name.push(c),
            _ => {}
        }
    }
    let is_function = name.chars().all(|c| c == '_' || c.is_alphanumeric())
        && name.starts_with(|c: char| c == '_' || c.is_lowercase())
        && !path.starts_with("fn(");
    if is_function { name } else { format!("function at {at}") }
}

/// Traces a function for inputs of the given types.
///
/// # Errors
/// Fails if the types do not match its parameters, or if the trace fails.
pub fn trace_fn<Args, F: GraphFn<Args>>(
    name: &str,
    f: &F,
    signature: impl Into<Signature>,
) -> Result<(Traced, Rebuild<<F::Output as Output>::Host>)> {
    let signature = signature.into().with_lengths(F::PARAMETERS)?;
    let mut rebuild = None;
    let traced = trace::trace(name, || {
        let lengths = signature.lengths.as_deref().unwrap_or_default();
        let (types, lengths, path) = (signature.types.iter(), lengths.iter(), Vec::new());
        let mut inputs = Inputs { types, lengths, taken: 0, values: None, path };
        let output = f.apply(&mut inputs).unwrap_or_else(|e| trace::fail(e));
        if inputs.types.len() > 0 {
            let (takes, given) = (inputs.taken, signature.types.len());
            let takes = count(takes, "tensor");
            trace::fail(Diagnostic::new(format!("the function takes {takes}, but got {given}")).help(ONE_TYPE_EACH));
        }
        let mut outputs = Vec::new();
        output.flatten(&mut outputs);
        rebuild = Some(output.rebuild());
        outputs
    })?;
    Ok((traced, rebuild.expect("the trace ran")))
}

/// Traces `f` and runs it once with the interpreter. Variables have their initial values.
///
/// ```
/// use anabranch::prelude::*;
///
/// assert_eq!(eval(|| scalar(2.0f32) * 3.0)?, 6.0);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn eval<O: Output>(f: impl Fn() -> O) -> Result<O::Host> {
    eval_with(f, ())
}

/// Traces `f` for the given arguments and runs it once with the interpreter. Variables have their
/// initial values.
#[track_caller]
pub fn eval_with<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>) -> Result<<F::Output as Output>::Host> {
    let name = name_of(&f, Loc::caller());
    let arguments = Arguments::of(args);
    let (traced, rebuild) = trace_fn(&name, &f, arguments.signature())?;
    let mut vars: Vec<HostTensor> = traced.vars.iter().map(|v| v.init().clone()).collect();
    let outputs = interp::run(&traced.graph, &arguments.tensors, &mut vars, interp::InterpOptions::default())?;
    Ok(rebuild(&mut outputs.into_iter()))
}

impl Traced {
    /// Returns the variable that an id of the graph refers to.
    pub fn var(&self, id: VarId) -> &crate::AnyVar {
        &self.vars[id.index()]
    }
}
