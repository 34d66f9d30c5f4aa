//! Gradients of values in the function being traced: the user's interface of
//! [`autodiff`](crate::autodiff).

mod checkpoint;
mod custom;
mod unreached;

use crate::autodiff::differentiate_in;
use crate::ir::{Value, ValueDef};
use crate::ops::AnyValue;
use crate::{AnyVar, Diagnostic, Float, HostTensor, Loc, Tensor, trace};
pub use checkpoint::{checkpoint, checkpoint_loop, checkpoint_loop_every};
pub use custom::custom_gradient;
use rustc_hash::FxHashSet;

/// Returns the gradients of a scalar with respect to tensors.
///
/// `wrt` is a tensor, or a tuple, array or vector of tensors. The result has the same structure and
/// the same shapes. The gradient with respect to a tensor on which `loss` does not depend is zero.
///
/// # Errors
/// Aborts the trace if
///
/// - `loss` is not a scalar;
/// - an operation on the path from the loss to `wrt` has no gradient rule;
/// - the path goes through the loop variables of a loop whose body is being traced;
/// - the path is inside a branch or loop that computes both `loss` and `wrt`;
/// - zeros are needed whose extents are known only at run time.
///
/// ```
/// use anabranch::prelude::*;
///
/// let dx = eval(|| {
///     let x = scalar(3.0f32);
///     gradients(x * x * x, x)
/// })?;
/// assert_eq!(dx, 27.0);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn gradients<T: Float, W: Wrt>(loss: Tensor<T>, wrt: W) -> W {
    let loc = Loc::caller();
    let mut tensors = Vec::new();
    wrt.tensors(&mut tensors);
    let grads = scalar_gradients(loss.untyped(), &tensors, loc);
    wrt.rebuild(&mut grads.into_iter())
}

/// Returns the gradients of a scalar with respect to variables.
///
/// Each is taken with respect to the latest value of the variable on which the loss depends.
#[track_caller]
pub fn var_gradients<T: Float>(loss: Tensor<T>, vars: &[AnyVar]) -> Vec<AnyValue> {
    let loc = Loc::caller();
    let wrt = values_it_depends_on(loss.untyped(), vars);
    scalar_gradients(loss.untyped(), &wrt, loc)
}

/// [`var_gradients`] with respect to the trained variables of a model, of which at least one must
/// get a gradient.
#[track_caller]
pub(crate) fn trained_gradients<T: Float>(loss: Tensor<T>, vars: &[AnyVar]) -> Vec<AnyValue> {
    let loc = Loc::caller();
    check_scalar(loss.untyped(), loc);
    let wrt = values_it_depends_on(loss.untyped(), vars);
    unreached::check(loss.untyped(), vars, &wrt, loc);
    scalar_gradients(loss.untyped(), &wrt, loc)
}

/// For each variable the latest of its values on which `loss` depends, or its present value if
/// there is none.
#[track_caller]
fn values_it_depends_on(loss: AnyValue, vars: &[AnyVar]) -> Vec<AnyValue> {
    let latest: Vec<AnyValue> = vars.iter().map(trace::read_var).collect();
    let versions: Vec<Vec<AnyValue>> = vars
        .iter()
        .map(|var| {
            trace::with(|t| {
                let id = t.known_var(var).expect("the variable was just read");
                t.visible_versions(id).into_iter().map(|v| t.any(v)).collect()
            })
        })
        .collect();
    // A later value may have been assigned since the loss was computed: look back for the value
    // that the loss was computed from.
    let depends = dependencies(loss);
    let used = |versions: &[AnyValue]| versions.iter().copied().find(|v| depends.contains(&v.value()));
    latest.iter().zip(&versions).map(|(&now, versions)| used(versions).unwrap_or(now)).collect()
}

/// Returns vector-Jacobian products: the gradient of the sum of `sum(dy * y)` over all pairs, for
/// every tensor of `wrt`.
///
/// `y` need not be scalar.
#[track_caller]
pub fn vjp(outputs: &[(AnyValue, AnyValue)], wrt: &[AnyValue]) -> Vec<AnyValue> {
    differentiate(outputs, wrt, Loc::caller())
}

/// Values with respect to which gradients can be taken.
#[diagnostic::on_unimplemented(
    message = "gradients cannot be taken with respect to `{Self}`",
    label = "expected a tensor of floats, or a tuple, array or `Vec` of them",
    note = "for a variable write `w.get()`; for all variables of a model call `optim::model_gradients` or \
            `Optimizer::minimize`"
)]
pub trait Wrt {
    /// Appends all tensors.
    fn tensors(&self, to: &mut Vec<AnyValue>);
    /// Returns the same structure with other tensors.
    fn rebuild(&self, from: &mut dyn Iterator<Item = AnyValue>) -> Self;
}

impl<T: Float> Wrt for Tensor<T> {
    fn tensors(&self, to: &mut Vec<AnyValue>) {
        to.push(self.untyped());
    }
    fn rebuild(&self, from: &mut dyn Iterator<Item = AnyValue>) -> Self {
        Tensor::from_any(from.next().expect("there is one gradient for each tensor"))
    }
}
impl<W: Wrt, const N: usize> Wrt for [W; N] {
    fn tensors(&self, to: &mut Vec<AnyValue>) {
        self.iter().for_each(|w| w.tensors(to));
    }
    fn rebuild(&self, from: &mut dyn Iterator<Item = AnyValue>) -> Self {
        std::array::from_fn(|i| self[i].rebuild(from))
    }
}
impl<W: Wrt> Wrt for Vec<W> {
    fn tensors(&self, to: &mut Vec<AnyValue>) {
        self.iter().for_each(|w| w.tensors(to));
    }
    fn rebuild(&self, from: &mut dyn Iterator<Item = AnyValue>) -> Self {
        self.iter().map(|w| w.rebuild(from)).collect()
    }
}
macro_rules! wrt_tuples {
    ($($($w:ident $i:tt),+;)*) => {$(
        impl<$($w: Wrt),+> Wrt for ($($w,)+) {
            fn tensors(&self, to: &mut Vec<AnyValue>) {
                $(self.$i.tensors(to);)+
            }
            fn rebuild(&self, from: &mut dyn Iterator<Item = AnyValue>) -> Self {
                ($(self.$i.rebuild(from),)+)
            }
        }
    )*};
}
wrt_tuples! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
}

fn check_scalar(loss: AnyValue, loc: Loc) {
    let ty = loss.tensor_type();
    if ty.rank() != 0 || !ty.dtype.is_float() {
        trace::fail(
            Diagnostic::new(format!("gradients: the loss is {ty}, not a scalar float"))
                .at(loc, "differentiated here")
                .help("reduce it first, with `.sum()` or `.mean()`"),
        );
    }
}

fn scalar_gradients(loss: AnyValue, wrt: &[AnyValue], loc: Loc) -> Vec<AnyValue> {
    check_scalar(loss, loc);
    let one = trace::at_loc(loc, || trace::constant(HostTensor::scalar(1.0f64)).cast(loss.dtype()));
    differentiate(&[(loss, one)], wrt, loc)
}

/// Returns all values of the open regions on which `of` depends.
fn dependencies(of: AnyValue) -> FxHashSet<Value> {
    trace::with(|t| {
        let mut seen = FxHashSet::default();
        let mut todo = vec![of.value()];
        while let Some(v) = todo.pop() {
            if !seen.insert(v) {
                continue;
            }
            match t.graph.value(v).def {
                ValueDef::Result(node, _) => todo.extend(&t.graph.node(node).operands),
                ValueDef::Param(..) => todo.extend(t.graph.outside(v)),
            }
        }
        seen
    })
}

fn differentiate(outputs: &[(AnyValue, AnyValue)], wrt: &[AnyValue], loc: Loc) -> Vec<AnyValue> {
    trace::try_with(|t| {
        let wrt = wrt.iter().map(|&w| t.resolve_for_gradient(w, loc)).collect::<crate::Result<Vec<Value>>>()?;
        let mut cotangents = Vec::with_capacity(outputs.len());
        for &(y, dy) in outputs {
            cotangents.push((t.resolve_for_gradient(y, loc)?, t.resolve_for_gradient(dy, loc)?));
        }
        let at = t.origin_at(loc);
        let gradients = differentiate_in(&mut t.graph, &mut t.added, &cotangents, &wrt, at)?;
        Ok(gradients.into_iter().map(|v| t.any(v)).collect())
    })
}
