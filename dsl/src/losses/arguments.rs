//! Checks of arguments and means, for losses and metrics.

use crate::{AnyValue, DType, Diagnostic, Dim, Loc, Shape, scalar, trace};

/// Ends the trace with an error at the user's call of a loss or a metric.
#[track_caller]
pub(crate) fn refuse(name: &str, message: &str, label: String, help: &str) -> ! {
    let error = Diagnostic::new(format!("{name}: {message}")).at(trace::place(Loc::caller()), label);
    trace::fail(error.help(help))
}

/// Checks that two arguments, given with their names, have equal shapes.
#[track_caller]
pub(crate) fn check_same_shape(name: &str, (a_name, a): (&str, AnyValue), (b_name, b): (&str, AnyValue)) {
    let (ta, tb) = (a.tensor_type(), b.tensor_type());
    if !ta.shape.compatible(&tb.shape) {
        let message = format!("{a_name} of shape {}, but {b_name} of shape {}", ta.shape, tb.shape);
        let help = "shapes must be equal, since nothing is broadcast here; use `reshape` or `broadcast_to`";
        refuse(name, &message, format!("{ta} with {tb}"), help);
    }
}

/// Checks that there is a label for each row of scores, and returns their number of classes.
#[track_caller]
pub(crate) fn check_labels(name: &str, scores: AnyValue, labels: AnyValue) -> Dim {
    let (ts, tl) = (scores.tensor_type(), labels.tensor_type());
    match ts.shape.dims().split_last() {
        Some((classes, examples)) if Shape::from(examples).compatible(&tl.shape) => classes.clone(),
        _ => {
            let help = "labels must have one axis less than the scores: [..] and [.., classes]";
            refuse(name, "one label is needed for each row of scores", format!("{ts} with {tl}"), help)
        }
    }
}

/// Returns which labels equal `ignored`.
pub(crate) fn ignored_labels(labels: AnyValue, ignored: i64) -> AnyValue {
    labels.cast(DType::I64).eq(scalar(ignored).untyped())
}

/// Returns `x` with zeros where `mask` is true. Nothing flows to these elements from a gradient.
pub(crate) fn without(mask: AnyValue, x: AnyValue) -> AnyValue {
    mask.select(x.number(0.0), x)
}

/// Returns the number of elements as a scalar of a type.
pub(crate) fn count(x: AnyValue, dtype: DType) -> AnyValue {
    match x.shape().size() {
        Some(n) => scalar(n as i64).untyped().cast(dtype),
        None => scalar(1i64).untyped().cast(dtype).broadcast_like(x).sum(),
    }
}

/// Returns a quotient of floats, or 0 with gradients of 0 if the denominator is 0.
pub(crate) fn zero_or_ratio(numerator: AnyValue, denominator: AnyValue) -> AnyValue {
    let nothing = denominator.eq(denominator.number(0.0));
    without(nothing, numerator) / nothing.select(denominator.number(1.0), denominator)
}

/// Returns the mean of all elements, or 0 if there are none.
pub(crate) fn mean(x: AnyValue) -> AnyValue {
    match x.shape().size() {
        Some(0) => x.sum(),
        Some(_) => x.mean(),
        None => zero_or_ratio(x.sum(), count(x, x.dtype())),
    }
}
