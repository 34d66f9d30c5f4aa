//! Connectionist temporal classification.

use super::{LossReduction, computed, mean, reduction_setter, refuse};
use crate::{AnyValue, Dim, Float, Integer, Tensor, concat, fold_left, iota, scalar, stack, trace};

/// The logarithm of a probability of 0. It is finite, so that sums over impossible paths have the
/// gradient 0 and not `NaN`.
const IMPOSSIBLE: f64 = -1e30;

/// Connectionist temporal classification (Graves et al. 2006): the negative log-likelihood of label
/// sequences whose positions in time are unknown.
///
/// At each time, the softmax of the logits is a distribution over classes, one of which is the
/// blank. A path has one class for each time; it spells the labels that remain when runs of one
/// class are merged and then blanks are removed. The loss is minus the logarithm of the sum of the
/// probabilities of all paths that spell the labels.
///
/// The sum is computed by the forward recursion, in log space, in one loop of the graph over time.
/// It is differentiated like any loop, so gradients are those with respect to logits.
///
/// Labels need a time for each label, and one for a blank between equal labels that follow each
/// other. If there is less time, the loss is infinite and its gradients are 0 (PyTorch: `NaN`
/// unless `zero_infinity` is set).
///
/// The mean is that of PyTorch's `ctc_loss`: the mean over the batch of the losses, each divided by
/// the number of its labels, or by 1 if there are none.
///
/// ```
/// use anabranch::{losses::Ctc, prelude::*};
///
/// // Two times, two classes: the paths "_1", "1_" and "11" spell "1".
/// let loss =
///     eval(|| Ctc::new().loss(zeros::<f32>([1, 2, 2]), tensor([[1]]), tensor([2]), tensor([1])))?;
/// assert!((loss.item() + 0.75f32.ln()).abs() < 1e-6);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Ctc {
    blank: i64,
    zero_infinity: bool,
    reduction: LossReduction,
}
reduction_setter!(Ctc);

impl Ctc {
    /// Creates the loss with class 0 as the blank.
    pub fn new() -> Ctc {
        Ctc::default()
    }

    /// Sets the class of the blank. TensorFlow uses the last class.
    #[must_use]
    pub fn blank(self, class: usize) -> Ctc {
        Ctc { blank: i64::try_from(class).unwrap_or(i64::MAX), ..self }
    }

    /// Uses 0 as the loss of labels that do not fit into their time.
    #[must_use]
    pub fn zero_infinity(self) -> Ctc {
        Ctc { zero_infinity: true, ..self }
    }

    /// Returns the loss for logits `[batch, time, classes]`, labels `[batch, length]`, and how much
    /// of the time and of the length each example uses, both `[batch]`. Without reduction, it has
    /// the shape `[batch]`.
    ///
    /// Logits and labels after the used ones may be any numbers, and have no gradients.
    ///
    /// # Errors
    /// Aborts the trace if the shapes do not match, or the extents of time or length are unknown. A
    /// label that is the blank or no class, or a length out of range, fails the step.
    #[track_caller]
    #[must_use]
    pub fn loss<T: Float, I: Integer, J: Integer>(
        self,
        logits: Tensor<T>,
        labels: Tensor<I>,
        logit_lengths: Tensor<J>,
        label_lengths: Tensor<J>,
    ) -> Tensor<T> {
        computed(|| {
            check_shapes([logits.untyped(), labels.untyped(), logit_lengths.untyped(), label_lengths.untyped()]);
            let examples = Examples {
                labels: labels.cast(),
                logit_lengths: logit_lengths.cast(),
                label_lengths: label_lengths.cast(),
                blank: self.blank,
            };
            let log_p = match T::DTYPE.is_half() {
                true => examples.log_likelihood::<f32>(logits.cast()).untyped(),
                false => examples.log_likelihood(logits).untyped(),
            };
            let of_impossible = log_p.number(if self.zero_infinity { 0.0 } else { f64::INFINITY });
            let losses = log_p.le(log_p.number(IMPOSSIBLE / 2.0)).select(of_impossible, -log_p);
            match self.reduction {
                LossReduction::Mean => {
                    let length = examples.label_lengths.maximum(1).untyped();
                    mean(losses / length.cast(losses.dtype()))
                }
                reduction => reduction.of(losses),
            }
        })
    }
}

/// Checks the shapes of logits, labels, and their lengths.
#[track_caller]
fn check_shapes(arguments: [AnyValue; 4]) {
    let shapes = arguments.map(|x| x.shape());
    let batches: Vec<&Dim> = shapes.iter().filter_map(|shape| shape.dims().first()).collect();
    let ranks_match = shapes.iter().map(|shape| shape.rank()).eq([3, 2, 1, 1]);
    if !ranks_match || batches.iter().any(|a| batches.iter().any(|b| !a.compatible(b))) {
        let [logits, labels, logit_lengths, label_lengths] = arguments.map(|x| x.tensor_type());
        let label = format!("{logits}, {labels}, {logit_lengths} and {label_lengths}");
        let help = "pass logits [batch, time, classes], labels [batch, length], and two lengths [batch]";
        refuse("ctc", "the shapes of logits, labels and lengths do not match", label, help);
    }
}

/// The labels of a batch, and the lengths of what is used of time and labels.
struct Examples {
    labels: Tensor<i64>,
    logit_lengths: Tensor<i64>,
    label_lengths: Tensor<i64>,
    blank: i64,
}

impl Examples {
    /// Returns the logarithms of the likelihoods `[batch]`, for logits `[batch, time, classes]`.
    fn log_likelihood<T: Float>(&self, logits: Tensor<T>) -> Tensor<T> {
        let time = logits.dim(1) as i64;
        let states = self.states(time);
        let n_states = states.dim(1);
        let impossible = T::from_f64(IMPOSSIBLE);
        let column = scalar(impossible).broadcast_like(self.label_lengths).unsqueeze(-1);
        // The values of the state before each state, and of the one before that.
        let shifted = |x: Tensor<T>, by: usize| {
            let mut parts = vec![column; by.min(n_states)];
            parts.push(x.slice(-1, 0, n_states.saturating_sub(by)));
            concat(&parts, -1)
        };
        let skips_blank = {
            let blank = scalar(self.blank).broadcast_like(self.label_lengths).unsqueeze(-1);
            let mut before = vec![blank; n_states.min(2)];
            before.push(states.slice(-1, 0, n_states.saturating_sub(2)));
            states.not_equal(self.blank) & states.not_equal(concat(&before, -1))
        };

        // Numbers that are not used may be NaN, whose product with a cotangent of 0 is NaN.
        let is_used = iota::<i64>(time as usize).unsqueeze(0).less(self.logit_lengths.unsqueeze(-1));
        let log_p = is_used.unsqueeze(-1).select(logits, T::from_f64(0.0)).log_softmax(-1);

        // Before the first time, a path is in the first blank. All else follows from the steps.
        let start = iota::<i64>(n_states).equal(0).select(T::from_f64(0.0), impossible).broadcast_like(states);
        let rows = (log_p.transpose(0, 1), is_used.transpose(0, 1));
        let end = fold_left(start, rows, |now: Tensor<T>, (log_p, is_used): (Tensor<T>, Tensor<bool>)| {
            let two_before = skips_blank.select(shifted(now, 2), impossible);
            // A class of probability 0 is as impossible as a path that does not exist.
            let emitted = log_p.take_along_axis(states, -1).maximum(impossible);
            let next = log_sum_exp([now, shifted(now, 1), two_before]) + emitted;
            is_used.unsqueeze(-1).select(next, now)
        });

        // A path ends in the last label or in the blank after it.
        let after = self.label_lengths * 2;
        let at = |state: Tensor<i64>| end.take_along_axis(state.unsqueeze(-1), -1).squeeze(-1);
        let in_label = self.label_lengths.greater(0).select(at((after - 1).maximum(0)), impossible);
        log_sum_exp([at(after), in_label])
    }

    /// Returns the classes that paths visit, `[batch, 2 * length + 1]`: the labels, with blanks
    /// between and around them. Labels that are not used are blanks.
    fn states(&self, time: i64) -> Tensor<i64> {
        let length = self.labels.dim(1);
        let check = |holds: Tensor<bool>, message: &str| trace::assert(holds.untyped(), format!("ctc: {message}"));
        let within = |n: Tensor<i64>, most: i64| n.greater_equal(0) & n.less_equal(most);
        check(within(self.logit_lengths, time), &format!("the time of an example is not within 0 and {time}"));
        check(
            within(self.label_lengths, length as i64),
            &format!("the number of labels of an example is not within 0 and {length}"),
        );
        let is_used = iota::<i64>(length).unsqueeze(0).less(self.label_lengths.unsqueeze(-1));
        check(!(is_used & self.labels.equal(self.blank)), &format!("a label is the blank, class {}", self.blank));

        let blank = scalar(self.blank).broadcast_like(self.label_lengths).unsqueeze(-1);
        if length == 0 {
            return blank;
        }
        let labels = is_used.select(self.labels, self.blank);
        let pairs = stack(&[scalar(self.blank).broadcast_like(labels), labels], -1);
        concat(&[pairs.reshape([-1, 2 * length as isize]), blank], -1)
    }
}

/// Returns the logarithm of the sum of the exponentials of tensors, elementwise.
fn log_sum_exp<T: Float, const N: usize>(terms: [Tensor<T>; N]) -> Tensor<T> {
    // The result does not depend on the shift, so nothing is lost with its gradient.
    let shift = terms.into_iter().reduce(|a, b| a.maximum(b)).expect("there are terms").stop_gradient();
    let sum = terms.into_iter().map(|x| (x - shift).exp()).reduce(|a, b| a + b).expect("there are terms");
    shift + sum.log()
}

/// Returns the mean [`Ctc`] loss, with class 0 as the blank. See [`Ctc::loss`] for the arguments.
///
/// ```
/// use anabranch::{losses::ctc, prelude::*};
///
/// let loss = eval(|| ctc(zeros::<f32>([1, 3, 3]), tensor([[1, 2]]), tensor([3]), tensor([2])))?;
/// assert!((loss.item() - 0.5 * 1.686_399).abs() < 1e-5);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// See [`Ctc::loss`].
#[track_caller]
#[must_use]
pub fn ctc<T: Float, I: Integer, J: Integer>(
    logits: Tensor<T>,
    labels: Tensor<I>,
    logit_lengths: Tensor<J>,
    label_lengths: Tensor<J>,
) -> Tensor<T> {
    Ctc::new().loss(logits, labels, logit_lengths, label_lengths)
}
