//! The user interface of custom gradients.

use crate::ops::AnyValue;
use crate::staged::{Carry, FlatState};
use crate::trace::{self, CallTrace};
use crate::{Diagnostic, Loc, Type};

/// Returns the function `forward` with a custom gradient, computed by `gradient`.
///
/// `gradient` takes the argument, the result and the gradient of the result. The rule returns the
/// gradient of the argument, with the same structure and shapes. Several arguments or results are
/// tuples. A tensor that is not a float has no gradient: `gradient` gets zero for such a result,
/// and its return value for such an argument is ignored.
///
/// The function can be called wherever an operation can. Its gradient consists of ordinary
/// operations and can be differentiated again. Only values that `gradient` reads are saved.
/// `forward` may capture tensors as long as no gradient with respect to them is taken; that is an
/// error at the line of `custom_gradient`.
///
/// # Errors
/// Aborts the trace when the function is called, at the line of `custom_gradient`, if the gradient
/// has another structure, element type or shape than the argument, or if one of the closures
/// assigns a variable.
///
/// ```
/// use anabranch::{custom_gradient, prelude::*};
///
/// // Rounds; the gradient passes straight through (Bengio, Léonard and Courville 2013).
/// let dx = eval(|| {
///     let round = custom_gradient(|x: Tensor<f32>| x.round(), |_x, _y, dy| dy);
///     let x = tensor([0.4f32, 1.7]);
///     let y = round(x);
///     (y, gradients((y * y).sum(), x))
/// })?;
/// assert_eq!((dx.0.as_slice(), dx.1.as_slice()), (&[0.0f32, 2.0][..], &[0.0f32, 4.0][..]));
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn custom_gradient<X: Carry, Y: Carry>(
    forward: impl Fn(X) -> Y,
    gradient: impl Fn(X, Y, Y) -> X,
) -> impl Fn(X) -> Y {
    let loc = Loc::caller();
    move |x| {
        let x = FlatState::of(&x);
        let (mut call, params) = trace::called_at(loc, || CallTrace::begin(x.tensors()));
        let y = FlatState::of(&forward(x.with_tensors(&mut params.into_iter()).rebuild()));
        let params = call.begin_gradient(y.tensors());
        let zeros = |(dy, y): (Option<AnyValue>, &AnyValue)| dy.unwrap_or_else(|| y.zeros_like());
        let dy: Vec<AnyValue> = params.gradients.into_iter().zip(&params.results).map(zeros).collect();
        let inside = |state: &FlatState, tensors: Vec<AnyValue>| state.with_tensors(&mut tensors.into_iter());
        let given = inside(&x, params.args);
        let dx = gradient(given.rebuild(), inside(&y, params.results).rebuild(), inside(&y, dy).rebuild());
        let gradients = checked(&given, &FlatState::of(&dx), loc);
        let results = call.end_gradient(&gradients);
        y.with_tensors(&mut results.into_iter()).rebuild()
    }
}

/// Returns the gradients of the differentiable arguments, if their types match the arguments.
fn checked(x: &FlatState, dx: &FlatState, loc: Loc) -> Vec<AnyValue> {
    if let Some(crate::staged::Difference { path, words: [takes, gives], .. }) = x.difference(dx) {
        trace::fail(
            Diagnostic::new(format!("custom_gradient: the argument{path} has {takes}, but its gradient has {gives}"))
                .at(loc, "this gradient")
                .help("return a gradient with the structure of the argument"),
        )
    }
    let x_count = x.tensors().len();
    let pairs = x.tensors().iter().zip(dx.tensors());
    let pairs = pairs.enumerate().filter(|(_, (x, _))| x.ty().is_differentiable());
    pairs
        .map(|(i, (x, &dx))| {
            let (takes, gives): (Type, Type) = (x.ty(), dx.ty());
            if takes.compatible(&gives) {
                return dx;
            }
            let which = if x_count == 1 { "the argument".to_owned() } else { format!("tensor {i} of the argument") };
            let mut error =
                Diagnostic::new(format!("custom_gradient: the gradient of {which} is {gives}, not {takes}"))
                    .at(loc, "this gradient");
            let made = trace::with(|t| t.graph.loc(dx.value()));
            if made.is_known() {
                error = error.at(made, format!("{gives} is created here"));
            }
            trace::fail(error.help(
                "return a gradient of the shape of the argument; sum it over the axes along which the argument was \
                 broadcast",
            ))
        })
        .collect()
}
