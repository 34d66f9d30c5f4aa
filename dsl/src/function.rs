//! Functions over tensors as values: what they take, what they give, how they are traced.

use crate::ir::VarId;
use crate::trace::{self, Any, Traced};
use crate::{Array, Diagnostic, Element, HostTensor, IntoArray, Result, Tensor, TensorType, interp};

/// The inputs that a trace still has to make.
#[derive(Debug)]
pub struct Inputs<'a> {
    types: std::slice::Iter<'a, TensorType>,
    taken: usize,
}

/// What a graph function takes: tensors, and tuples and arrays of what it takes.
pub trait Input: Sized {
    /// Makes graph inputs for the next types of the signature.
    fn trace(inputs: &mut Inputs<'_>) -> Result<Self>;
}

/// Host values that can be given for a parameter of type `I`.
pub trait Feed<I: Input> {
    /// Appends the tensors in the order in which [`Input::trace`] takes them.
    fn feed(self, to: &mut Vec<HostTensor>);
}

impl<T: Element> Input for Tensor<T> {
    fn trace(inputs: &mut Inputs<'_>) -> Result<Self> {
        let i = inputs.taken;
        inputs.taken += 1;
        let ty = inputs
            .types
            .next()
            .ok_or_else(|| Diagnostic::new(format!("the function takes more than {i} tensors, given {i}")))?;
        if ty.dtype != T::DTYPE {
            return Err(Diagnostic::new(format!("input {i} has elements of type {}, given {ty}", T::DTYPE)));
        }
        Ok(Tensor::from_any(trace::input(ty.clone(), None)))
    }
}
impl<T: Element, X: IntoArray<T>> Feed<Tensor<T>> for X {
    fn feed(self, to: &mut Vec<HostTensor>) {
        to.push(self.into_array().into_host());
    }
}

impl<I: Input, const N: usize> Input for [I; N] {
    fn trace(inputs: &mut Inputs<'_>) -> Result<Self> {
        let items = (0..N).map(|_| I::trace(inputs)).collect::<Result<Vec<_>>>()?;
        Ok(items.try_into().unwrap_or_else(|_| unreachable!("N items were made")))
    }
}
impl<I: Input, X: Feed<I>, const N: usize> Feed<[I; N]> for [X; N] {
    fn feed(self, to: &mut Vec<HostTensor>) {
        self.into_iter().for_each(|x| x.feed(to));
    }
}

/// Makes the host value of a call's outputs, in the structure that the trace had.
pub type Rebuild<H> = Box<dyn Fn(&mut dyn Iterator<Item = HostTensor>) -> H + Send + Sync>;

/// What a call returns: arrays, and tuples, arrays and vectors of what calls return.
pub trait Results {
    /// Appends all tensors, in the order of the function's outputs. Who changes one keeps its element type.
    fn tensors_mut<'a>(&'a mut self, to: &mut Vec<&'a mut HostTensor>);
}

impl<T: Element> Results for Array<T> {
    fn tensors_mut<'a>(&'a mut self, to: &mut Vec<&'a mut HostTensor>) {
        to.push(self.host_mut());
    }
}
impl<R: Results, const N: usize> Results for [R; N] {
    fn tensors_mut<'a>(&'a mut self, to: &mut Vec<&'a mut HostTensor>) {
        self.iter_mut().for_each(|r| r.tensors_mut(to));
    }
}
impl<R: Results> Results for Vec<R> {
    fn tensors_mut<'a>(&'a mut self, to: &mut Vec<&'a mut HostTensor>) {
        self.iter_mut().for_each(|r| r.tensors_mut(to));
    }
}
impl Results for () {
    fn tensors_mut<'a>(&'a mut self, _: &mut Vec<&'a mut HostTensor>) {}
}

/// What a graph function gives: tensors, and tuples, arrays and vectors of what it gives.
pub trait Output {
    /// The same on the host: [`Array`]s for tensors.
    type Host: Results + 'static;
    /// Appends the handles of all tensors.
    fn flatten(&self, to: &mut Vec<Any>);
    /// How to make the host value from the tensors in that order.
    fn rebuild(&self) -> Rebuild<Self::Host>;
}

impl<T: Element> Output for Tensor<T> {
    type Host = Array<T>;
    fn flatten(&self, to: &mut Vec<Any>) {
        to.push(self.untyped());
    }
    fn rebuild(&self) -> Rebuild<Array<T>> {
        Box::new(|tensors| {
            let tensor = tensors.next().expect("one tensor for each output");
            Array::from_host(tensor).expect("the output has the type that was traced")
        })
    }
}

impl<O: Output, const N: usize> Output for [O; N] {
    type Host = [O::Host; N];
    fn flatten(&self, to: &mut Vec<Any>) {
        self.iter().for_each(|o| o.flatten(to));
    }
    fn rebuild(&self) -> Rebuild<Self::Host> {
        let items: Vec<_> = self.iter().map(Output::rebuild).collect();
        Box::new(move |tensors| std::array::from_fn(|i| items[i](tensors)))
    }
}

impl<O: Output> Output for Vec<O> {
    type Host = Vec<O::Host>;
    fn flatten(&self, to: &mut Vec<Any>) {
        self.iter().for_each(|o| o.flatten(to));
    }
    fn rebuild(&self) -> Rebuild<Self::Host> {
        let items: Vec<_> = self.iter().map(Output::rebuild).collect();
        Box::new(move |tensors| items.iter().map(|item| item(tensors)).collect())
    }
}

/// A function that can fail while it is traced: its error is that of the trace.
impl<O: Output, E: std::fmt::Display> Output for std::result::Result<O, E> {
    type Host = O::Host;
    fn flatten(&self, to: &mut Vec<Any>) {
        match self {
            Ok(output) => output.flatten(to),
            Err(error) => trace::fail(Diagnostic::new(error.to_string())),
        }
    }
    fn rebuild(&self) -> Rebuild<O::Host> {
        match self {
            Ok(output) => output.rebuild(),
            Err(_) => unreachable!("`flatten` ends the trace"),
        }
    }
}

/// A function that can be traced: any `Fn` whose arguments are [`Input`]s and whose result is an [`Output`].
pub trait GraphFn<Args> {
    /// What it gives.
    type Output: Output;
    /// Calls it with inputs made for a signature.
    fn apply(&self, inputs: &mut Inputs<'_>) -> Result<Self::Output>;
}

/// What can be given to a call: a value for a function of one parameter, a tuple for more, `()` for none.
pub trait CallArgs<Args> {
    /// Appends the tensors of all arguments.
    fn feed_all(self, to: &mut Vec<HostTensor>);
}

impl<F: Fn() -> O, O: Output> GraphFn<()> for F {
    type Output = O;
    fn apply(&self, _: &mut Inputs<'_>) -> Result<O> {
        Ok(self())
    }
}
impl CallArgs<()> for () {
    fn feed_all(self, _: &mut Vec<HostTensor>) {}
}
impl<A: Input, X: Feed<A>> CallArgs<(A,)> for X {
    fn feed_all(self, to: &mut Vec<HostTensor>) {
        self.feed(to);
    }
}
impl Output for () {
    type Host = ();
    fn flatten(&self, _: &mut Vec<Any>) {}
    fn rebuild(&self) -> Rebuild<()> {
        Box::new(|_| ())
    }
}

macro_rules! call_args {
    ($($a:ident $x:ident $i:tt),+) => {
        impl<$($a: Input, $x: Feed<$a>),+> CallArgs<($($a,)+)> for ($($x,)+) {
            fn feed_all(self, to: &mut Vec<HostTensor>) {
                $(self.$i.feed(to);)+
            }
        }
    };
}
macro_rules! tuples {
    ($($($a:ident $x:ident $i:tt),+;)*) => {$(
        impl<Fun: Fn($($a),+) -> Out, Out: Output, $($a: Input),+> GraphFn<($($a,)+)> for Fun {
            type Output = Out;
            fn apply(&self, inputs: &mut Inputs<'_>) -> Result<Out> {
                Ok(self($($a::trace(inputs)?),+))
            }
        }
        impl<$($a: Input),+> Input for ($($a,)+) {
            fn trace(inputs: &mut Inputs<'_>) -> Result<Self> {
                Ok(($($a::trace(inputs)?,)+))
            }
        }
        impl<$($a: Input, $x: Feed<$a>),+> Feed<($($a,)+)> for ($($x,)+) {
            fn feed(self, to: &mut Vec<HostTensor>) {
                $(self.$i.feed(to);)+
            }
        }
        impl<$($a: Results),+> Results for ($($a,)+) {
            fn tensors_mut<'a>(&'a mut self, to: &mut Vec<&'a mut HostTensor>) {
                $(self.$i.tensors_mut(to);)+
            }
        }
        impl<$($a: Output),+> Output for ($($a,)+) {
            type Host = ($($a::Host,)+);
            fn flatten(&self, to: &mut Vec<Any>) {
                $(self.$i.flatten(to);)+
            }
            fn rebuild(&self) -> Rebuild<Self::Host> {
                let items = ($(self.$i.rebuild(),)+);
                Box::new(move |tensors| ($((items.$i)(tensors),)+))
            }
        }
    )*};
}
tuples! {
    A X 0;
    A X 0, B Y 1;
    A X 0, B Y 1, C Z 2;
    A X 0, B Y 1, C Z 2, D U 3;
    A X 0, B Y 1, C Z 2, D U 3, E V 4;
    A X 0, B Y 1, C Z 2, D U 3, E V 4, F W 5;
    A X 0, B Y 1, C Z 2, D U 3, E V 4, F W 5, G Q 6;
    A X 0, B Y 1, C Z 2, D U 3, E V 4, F W 5, G Q 6, H R 7;
}
call_args!(A X 0, B Y 1);
call_args!(A X 0, B Y 1, C Z 2);
call_args!(A X 0, B Y 1, C Z 2, D U 3);
call_args!(A X 0, B Y 1, C Z 2, D U 3, E V 4);
call_args!(A X 0, B Y 1, C Z 2, D U 3, E V 4, F W 5);
call_args!(A X 0, B Y 1, C Z 2, D U 3, E V 4, F W 5, G Q 6);
call_args!(A X 0, B Y 1, C Z 2, D U 3, E V 4, F W 5, G Q 6, H R 7);

/// Traces a function for inputs of the given types.
pub fn trace_fn<Args, F: GraphFn<Args>>(
    name: &str,
    f: &F,
    signature: &[TensorType],
) -> Result<(Traced, Rebuild<<F::Output as Output>::Host>)> {
    let mut rebuild = None;
    let traced = trace::trace(name, || {
        let mut inputs = Inputs { types: signature.iter(), taken: 0 };
        let output = f.apply(&mut inputs).unwrap_or_else(|e| trace::fail(e));
        if inputs.types.len() > 0 {
            let (takes, given) = (inputs.taken, signature.len());
            trace::fail(Diagnostic::new(format!("the function takes {takes} tensors, given {given}")));
        }
        let mut outputs = Vec::new();
        output.flatten(&mut outputs);
        rebuild = Some(output.rebuild());
        outputs
    })?;
    Ok((traced, rebuild.expect("the trace ran")))
}

/// Traces `f` and runs it once with the interpreter; variables have their initial values.
///
/// ```
/// use anabranch_dsl::prelude::*;
///
/// assert_eq!(eval(|| scalar(2.0f32) * 3.0)?, 6.0);
/// # Ok::<(), anabranch_dsl::Diagnostic>(())
/// ```
pub fn eval<O: Output>(f: impl Fn() -> O) -> Result<O::Host> {
    eval_with(f, ())
}

/// Traces `f` for the given arguments and runs it once with the interpreter; variables have their initial values.
pub fn eval_with<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>) -> Result<<F::Output as Output>::Host> {
    let mut inputs = Vec::new();
    args.feed_all(&mut inputs);
    let signature: Vec<TensorType> = inputs.iter().map(HostTensor::ty).collect();
    let (traced, rebuild) = trace_fn("main", &f, &signature)?;
    let mut vars: Vec<HostTensor> = traced.vars.iter().map(|v| v.init().clone()).collect();
    let outputs = interp::run(&traced.graph, &inputs, &mut vars, interp::Options::default())?;
    Ok(rebuild(&mut outputs.into_iter()))
}

impl Traced {
    /// The variable that a graph means.
    pub fn var(&self, id: VarId) -> &crate::AnyVar {
        &self.vars[id.index()]
    }
}
