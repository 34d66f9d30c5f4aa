//! L-BFGS.

use super::{float_vars, model_gradients};
use crate::control::{cond, fold_left, scan_reverse, while_loop};
use crate::trace::{assign_var, called_at, fail, read_var};
use crate::var::VarPath;
use crate::{AnyVar, DType, Diagnostic, Float, HostTensor, Loc, Module, Tensor, TensorType, concat, scalar, zeros};

/// Sufficient decrease and curvature of the strong Wolfe conditions.
const DECREASE: f64 = 1e-4;
const CURVATURE: f64 = 0.9;
/// The evaluations of one line search.
const SEARCH: i32 = 25;

/// L-BFGS with a line search for the strong Wolfe conditions (Nocedal and Wright, Numerical
/// Optimization, 2006, algorithms 7.4, 3.5 and 3.6), for models with few parameters whose loss is
/// computed on all data.
///
/// [`minimize`](Lbfgs::minimize) is a whole optimization: a staged loop, of which each iteration
/// evaluates the loss and its gradient once. The loss must be deterministic, so without dropout or
/// random batches. The first step has length 1 / (the sum of the absolute gradient) at most, as in
/// PyTorch; each further search starts at 1. If the gradient is so small that this step is lost in
/// the rounding of the variables, the search ends where it began: scale such a loss.
///
/// A loss that is not finite counts as infinite: the search turns back from there.
///
/// Each call starts without a history, so the variables of the model are the only state. A
/// minimization in several calls, which a checkpoint may interrupt, keeps its history in an
/// [`LbfgsHistory`].
///
/// ```
/// use anabranch::optim::Lbfgs;
/// use anabranch::prelude::*;
///
/// // Rosenbrock's function, from its usual start.
/// let (x, y) = (Var::<f64>::new("x", -1.2), Var::<f64>::new("y", 1.0));
/// let lbfgs = Lbfgs::new(100).gradient_tolerance(1e-9);
/// let session = Session::new()?;
/// let minimize = session.function(|| {
///     lbfgs.minimize(&(&x, &y), || {
///         let (x, y) = (x.get(), y.get());
///         (y - x * x).square() * 100.0 + (x - 1.0).square()
///     })
/// })?;
/// let (loss, gradient, evaluations) = minimize.call(())?;
/// assert!(loss.item() < 1e-18 && gradient.item() < 1e-9 && evaluations.item() < 60);
/// assert!((session.get(&x)?.item() - 1.0).abs() < 1e-9);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Lbfgs {
    evaluations: i32,
    history: usize,
    tolerance: f64,
}

/// The latest steps of an [`Lbfgs`] and the changes of the gradient, for a minimization in several
/// calls.
///
/// The variables are `steps` and `changes`, a row for each pair, and `scale`.
///
/// ```
/// use anabranch::optim::{Lbfgs, LbfgsHistory};
/// use anabranch::prelude::*;
///
/// let x = Var::<f64>::new("x", [3.0, -2.0, 5.0]);
/// let lbfgs = Lbfgs::new(4);
/// let history = LbfgsHistory::new(&lbfgs, &x);
/// let session = Session::new()?;
/// let minimize = session.function(|| {
///     lbfgs.minimize_from(&history, &x, || (x.get().square() * tensor([1.0, 10.0, 100.0])).sum())
/// })?;
/// let mut gradient = f64::INFINITY;
/// for _ in 0..10 {
///     gradient = minimize.call(())?.1.item();
///     // Here `session.state(&(&x, &history))` has all that a later process needs to go on.
/// }
/// assert!(gradient < 1e-7);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Debug)]
pub struct LbfgsHistory {
    steps: AnyVar,
    changes: AnyVar,
    scale: AnyVar,
}

impl LbfgsHistory {
    /// Creates an empty history for minimizing the loss of a model, of as many pairs as the
    /// optimizer keeps.
    ///
    /// # Errors
    /// Aborts the trace, or panics outside one, at the caller's line if the model has no trained
    /// variables, or trained variables of different element types or of 16 bits.
    #[track_caller]
    pub fn new<M: Module + ?Sized>(lbfgs: &Lbfgs, model: &M) -> LbfgsHistory {
        let vars = vars_of(model, None, Loc::caller());
        let dtype = vars[0].ty().dtype;
        let n_params: usize = vars.iter().map(|var| var.init().len()).sum();
        let var = |name: &str, shape: &[usize]| AnyVar::untrained(name, HostTensor::zeros(dtype, shape));
        let rows = [lbfgs.history, n_params];
        let (steps, changes) = (var("lbfgs.steps", &rows), var("lbfgs.changes", &rows));
        LbfgsHistory { steps, changes, scale: var("lbfgs.scale", &[]) }
    }
}

impl Module for LbfgsHistory {
    fn visit(&self, path: &mut VarPath, visit: &mut dyn FnMut(&str, &AnyVar)) {
        for (name, var) in [("steps", &self.steps), ("changes", &self.changes), ("scale", &self.scale)] {
            path.with(name, |p| visit(p.as_str(), var));
        }
    }
}

impl Lbfgs {
    /// Creates an optimizer that evaluates the loss at most `evaluations` times. It keeps 10 pairs
    /// of steps and changes of the gradient, and ends when no element of the gradient is larger
    /// than 1e-7.
    ///
    /// # Errors
    /// Aborts the trace, or panics outside one, at the caller's line if `evaluations` is 0.
    #[track_caller]
    pub fn new(evaluations: usize) -> Lbfgs {
        if evaluations == 0 {
            let error =
                Diagnostic::new("an optimization by 0 evaluations of the loss").at(Loc::caller(), "created here");
            fail(error.help("use at least 1"));
        }
        Lbfgs { evaluations: i32::try_from(evaluations).unwrap_or(i32::MAX), history: 10, tolerance: 1e-7 }
    }

    /// Sets the number of pairs of steps and changes of the gradient, at least 1.
    #[must_use]
    pub fn history(mut self, pairs: usize) -> Lbfgs {
        self.history = pairs.max(1);
        self
    }

    /// Sets the largest absolute element of a gradient at which the optimization ends.
    #[must_use]
    pub fn gradient_tolerance(mut self, tolerance: f64) -> Lbfgs {
        self.tolerance = tolerance;
        self
    }

    /// Minimizes `loss`, which reads the trained variables of `model`, and assigns these the best
    /// values. Returns the loss there, the largest absolute element of its gradient, and the number
    /// of evaluations.
    ///
    /// Ends early if a search finds no smaller loss, which happens when rounding hides it.
    ///
    /// # Errors
    /// Aborts the trace if the model has no trained variables, if one of them has another element
    /// type than the loss, if that has 16 bits, and with the errors of [`model_gradients`].
    #[track_caller]
    pub fn minimize<T: Float, M: Module + ?Sized>(
        &self,
        model: &M,
        loss: impl FnOnce() -> Tensor<T>,
    ) -> (Tensor<T>, Tensor<T>, Tensor<i32>) {
        self.minimize_with(None, model, loss)
    }

    /// Minimizes like [`minimize`](Lbfgs::minimize), with the history of earlier calls, to which it
    /// adds its own. The point at which a call starts is evaluated again, and a search that the end
    /// of a call has cut short begins anew: a call needs more evaluations than a search, which are
    /// 25 at most and often 1 or 2.
    ///
    /// # Errors
    /// Those of [`minimize`](Lbfgs::minimize). Also aborts the trace if the history was created for
    /// another number of parameters or of pairs.
    #[track_caller]
    pub fn minimize_from<T: Float, M: Module + ?Sized>(
        &self,
        history: &LbfgsHistory,
        model: &M,
        loss: impl FnOnce() -> Tensor<T>,
    ) -> (Tensor<T>, Tensor<T>, Tensor<i32>) {
        self.minimize_with(Some(history), model, loss)
    }

    #[track_caller]
    fn minimize_with<T: Float, M: Module + ?Sized>(
        &self,
        history: Option<&LbfgsHistory>,
        model: &M,
        loss: impl FnOnce() -> Tensor<T>,
    ) -> (Tensor<T>, Tensor<T>, Tensor<i32>) {
        let here = Loc::caller();
        let vars = vars_of(model, Some(T::DTYPE), here);
        let n_params: usize = vars.iter().map(|var| var.init().len()).sum();
        let rows = [self.history, n_params];
        if let Some(history) = history
            && (history.steps.init().shape() != rows || history.steps.ty().dtype != T::DTYPE)
        {
            let [needed, given] = [TensorType::new(T::DTYPE, rows), history.steps.ty().clone()];
            let error = Diagnostic::new(format!("L-BFGS with steps of {needed} and a history of {given}"));
            fail(error.at(here, "minimized here").help("create the history for this optimizer and this model"));
        }
        let start = called_at(here, || {
            let x = flatten(vars.iter().map(read_tensor).collect());
            let (pairs, scale) = match history {
                Some(LbfgsHistory { steps, changes, scale }) => {
                    ([read_tensor(steps), read_tensor(changes)], read_tensor(scale))
                }
                None => ([zeros([self.history, 1]) + Tensor::from_any(x.untyped().zeros_like()); 2], number(0.0)),
            };
            SearchState::new(x, pairs, scale)
        });
        let body = |state: State<T>| {
            let search = SearchState::of(state);
            let x = called_at(here, || {
                let x = search.x + search.d * search.t;
                unflatten(x, &vars);
                x
            });
            let f = loss();
            called_at(here, || {
                let gradients = model_gradients(f, model);
                let g = flatten(gradients.into_iter().map(|(_, g)| Tensor::from_any(g)).collect());
                search.next(x, f, g, T::from_f64(self.tolerance)).into_state()
            })
        };
        let go_on = |state: State<T>| {
            let search = SearchState::of(state);
            called_at(here, || !search.is_done & search.evaluations.less(self.evaluations))
        };
        let end = SearchState::of(while_loop(start.into_state(), go_on, body));
        called_at(here, || {
            let (x, f, g) = end.best();
            unflatten(x, &vars);
            if let Some(LbfgsHistory { steps, changes, scale }) = history {
                let [s, c] = end.history;
                for (var, x) in [(steps, s), (changes, c), (scale, end.scale)] {
                    assign_var(var, x.untyped());
                }
            }
            (f, g.abs().max(), end.evaluations)
        })
    }
}

/// Returns the trained variables of a model, all of the element type of the loss, if it is known.
fn vars_of<M: Module + ?Sized>(model: &M, loss: Option<DType>, here: Loc) -> Vec<AnyVar> {
    let vars = float_vars(model);
    let Some((_, first)) = vars.first() else {
        let error = Diagnostic::new("L-BFGS of a model without trained variables").at(here, "minimized here");
        fail(error.help("integers, and variables made by `untrained`, are not trained"));
    };
    let dtype = loss.unwrap_or(first.ty().dtype);
    if let Some((path, var)) = vars.iter().find(|(_, var)| var.ty().dtype != dtype || dtype.is_half()) {
        let error = Diagnostic::new(format!("L-BFGS of a loss of {dtype} with a variable of {}", var.ty().dtype));
        fail(
            error
                .at(here, format!("`{path}` is updated here"))
                .help("the loss and all trained variables must be `f32`, or all `f64`"),
        );
    }
    vars.into_iter().map(|(_, var)| var).collect()
}

#[track_caller]
fn read_tensor<T: Float>(var: &AnyVar) -> Tensor<T> {
    Tensor::from_any(read_var(var))
}

/// Joins tensors to one vector.
#[track_caller]
fn flatten<T: Float>(tensors: Vec<Tensor<T>>) -> Tensor<T> {
    let rows: Vec<Tensor<T>> = tensors.into_iter().map(|x| x.reshape([-1])).collect();
    concat(&rows, 0)
}

/// Assigns variables the parts of a vector.
#[track_caller]
fn unflatten<T: Float>(x: Tensor<T>, vars: &[AnyVar]) {
    let mut from = 0;
    for var in vars {
        let shape = var.init().shape();
        let to = from + shape.iter().product::<usize>();
        let value = x.slice(0, from, to).untyped().reshape(shape);
        assign_var(var, value);
        from = to;
    }
}

/// A point on the line of a search: the step, the loss and its derivative along the line.
type Point<T> = [Tensor<T>; 3];

/// The loop variables: vectors, history, points, numbers, counters, flags.
type State<T> = ([Tensor<T>; 4], [Tensor<T>; 2], [Point<T>; 2], [Tensor<T>; 4], [Tensor<i32>; 2], [Tensor<bool>; 2]);

/// The state between two evaluations of the loss.
#[derive(Clone, Copy)]
struct SearchState<T: Float> {
    /// The start of the search: the parameters, the loss, its gradient and its derivative along the
    /// direction `d`.
    x: Tensor<T>,
    f: Tensor<T>,
    g: Tensor<T>,
    slope: Tensor<T>,
    d: Tensor<T>,
    /// The step to evaluate.
    t: Tensor<T>,
    /// Points of the bracket. `low` has the smallest loss, and `low_g` is its gradient. While the
    /// minimum is not bracketed, `low` is the last point and `high` means nothing.
    low: Point<T>,
    low_g: Tensor<T>,
    high: Point<T>,
    is_bracketed: Tensor<bool>,
    /// The number of evaluations in this search.
    tried: Tensor<i32>,
    /// The latest steps and changes of the gradient, one a row, of which unused ones are zero.
    history: [Tensor<T>; 2],
    /// The scale of the first approximation of the inverse Hessian, 0 without a history.
    scale: Tensor<T>,
    evaluations: Tensor<i32>,
    is_done: Tensor<bool>,
}

impl<T: Float> SearchState<T> {
    fn new(x: Tensor<T>, history: [Tensor<T>; 2], scale: Tensor<T>) -> SearchState<T> {
        let (zero, none) = (number(0.0), Tensor::from_any(x.untyped().zeros_like()));
        SearchState {
            x,
            f: zero,
            g: none,
            slope: zero,
            d: none,
            t: zero,
            low: [zero; 3],
            low_g: none,
            high: [zero; 3],
            is_bracketed: scalar(false),
            tried: scalar(0),
            history,
            scale,
            evaluations: scalar(0),
            is_done: scalar(false),
        }
    }

    fn of(state: State<T>) -> SearchState<T> {
        let ([x, g, d, low_g], history, [low, high], [f, slope, t, scale], [tried, evaluations], flags) = state;
        let [is_bracketed, is_done] = flags;
        SearchState {
            x,
            f,
            g,
            slope,
            d,
            t,
            low,
            low_g,
            high,
            is_bracketed,
            tried,
            history,
            scale,
            evaluations,
            is_done,
        }
    }

    fn into_state(self) -> State<T> {
        (
            [self.x, self.g, self.d, self.low_g],
            self.history,
            [self.low, self.high],
            [self.f, self.slope, self.t, self.scale],
            [self.tried, self.evaluations],
            [self.is_bracketed, self.is_done],
        )
    }

    /// Returns the point with the smallest loss so far, the loss and its gradient. If the
    /// evaluations ran out in a search, this may be a point of its bracket.
    fn best(self) -> (Tensor<T>, Tensor<T>, Tensor<T>) {
        let [t, low_f, _] = self.low;
        let is_low = low_f.less(self.f);
        let x = is_low.select(self.x + self.d * t, self.x);
        (x, is_low.select(low_f, self.f), is_low.select(self.low_g, self.g))
    }

    /// Returns the state after the evaluation of the loss `f` and its gradient `g` at `x`.
    fn next(self, x: Tensor<T>, f: Tensor<T>, g: Tensor<T>, tolerance: T) -> SearchState<T> {
        let is_first = self.evaluations.equal(0);
        let slope = (g * self.d).sum();
        let is_finite = f.is_finite() & slope.is_finite();
        let f = is_finite.select(f, number(f64::INFINITY));
        let slope = is_finite.select(slope, number(0.0));
        let (point, [low_t, low_f, _]) = ([self.t, f, slope], self.low);

        // A difference below the rounding of the loss is none.
        let rounding = self.f.abs() * number(2.0 * epsilon::<T>());
        let bound = self.f + self.t * self.slope * number(DECREASE) + rounding;
        let is_worse = f.greater(bound) | (f.greater_equal(low_f) & (self.is_bracketed | self.tried.greater(0)));
        let is_flat = slope.abs().less_equal(-self.slope * number(CURVATURE));
        let is_found = is_first | (!is_worse & is_flat);

        // Of the new bracket, the point with the smaller loss is `low`, and the minimum is on the
        // side of it to which its slope falls.
        let towards_high = self.is_bracketed.select(self.high[0] - low_t, number(1.0));
        let turns = !is_worse & (slope * towards_high).greater_equal(number(0.0));
        let is_bracketed = self.is_bracketed | is_worse | turns;
        let low = choose(is_worse, self.low, point);
        let high = choose(is_worse, point, choose(turns, self.low, self.high));
        let low_g = is_worse.select(self.low_g, g);
        let t = is_bracketed.select(inside(low, high), beyond(self.low, point));

        let tried = self.tried + 1;
        let is_lost = !is_found & tried.greater_equal(SEARCH);
        let [step, end_f, _] = choose(is_found, point, low);
        let end_g = is_found.select(g, low_g);
        let evaluations = self.evaluations + 1;
        let within = SearchState { t, low, low_g, high, is_bracketed, tried, evaluations, ..self };
        let after = || {
            let step_x = is_found.select(x, self.x + self.d * step);
            let (history, scale) = self.remember(self.d * step, end_g - self.g);
            let d = -inverse_hessian_times(end_g, history, scale);
            let slope = (d * end_g).sum();
            let length = number::<T>(1.0) / end_g.abs().sum();
            let (zero, one) = (number(0.0), number(1.0));
            let start = [zero, end_f, slope];
            let is_end = end_g.abs().max().less_equal(tolerance) | (is_lost & step.equal(zero)) | !slope.less(zero);
            SearchState {
                x: step_x,
                f: end_f,
                g: end_g,
                slope,
                d,
                t: (is_first & scale.equal(zero)).select(length.minimum(one), one),
                low: start,
                low_g: end_g,
                high: start,
                is_bracketed: scalar(false),
                tried: scalar(0),
                history,
                scale,
                evaluations,
                is_done: is_end | !end_f.is_finite(),
            }
        };
        SearchState::of(cond(is_found | is_lost, || after().into_state(), || within.into_state()))
    }

    /// Returns the history and scale after a step, with the change of the gradient. A pair without
    /// positive curvature is left out: one whose step and change of the gradient form an angle with
    /// a cosine of at most the rounding of a number. The scale of the loss does not matter.
    fn remember(&self, step: Tensor<T>, change: Tensor<T>) -> ([Tensor<T>; 2], Tensor<T>) {
        let (curvature, square) = ((step * change).sum(), (change * change).sum());
        let lengths = (step * step).sum().sqrt() * square.sqrt();
        let is_kept = curvature.greater(lengths * number(epsilon::<T>()));
        let [steps, changes] = self.history;
        let pushed = |rows: Tensor<T>, row: Tensor<T>| {
            let all = concat(&[rows, row.unsqueeze(0)], 0);
            is_kept.select(all.slice(0, 1, all.dim(0)), rows)
        };
        ([pushed(steps, step), pushed(changes, change)], is_kept.select(curvature / square, self.scale))
    }
}

/// Returns the distance from 1 to the next number of `f64`, or of `f32`.
fn epsilon<T: Float>() -> f64 {
    if T::DTYPE == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() }
}

fn number<T: Float>(x: f64) -> Tensor<T> {
    scalar(T::from_f64(x))
}

fn choose<T: Float, const N: usize>(condition: Tensor<bool>, a: [Tensor<T>; N], b: [Tensor<T>; N]) -> [Tensor<T>; N] {
    std::array::from_fn(|i| condition.select(a[i], b[i]))
}

/// Returns the product of the approximate inverse Hessian and a vector (algorithm 7.4).
fn inverse_hessian_times<T: Float>(g: Tensor<T>, history: [Tensor<T>; 2], scale: Tensor<T>) -> Tensor<T> {
    let zero = number::<T>(0.0);
    // A row without a pair adds nothing.
    let ratio = |x: Tensor<T>, curvature: Tensor<T>| {
        let is_pair = curvature.greater(zero);
        is_pair.select(x / is_pair.select(curvature, number(1.0)), zero)
    };
    let backwards = |q: Tensor<T>, [s, y]: [Tensor<T>; 2]| {
        let a = ratio((s * q).sum(), (s * y).sum());
        (q - y * a, a)
    };
    let (q, parts) = scan_reverse(g, history, backwards);
    let scale = scale.equal(zero).select(number(1.0), scale);
    let [steps, changes] = history;
    fold_left(q * scale, (steps, changes, parts), |r, (s, y, a)| r + s * (a - ratio((y * r).sum(), (s * y).sum())))
}

/// Returns the minimum of the cubic through two points (equation 3.59), NaN if there is none.
fn cubic_minimum<T: Float>([t, f, slope]: Point<T>, [u, h, other]: Point<T>) -> Tensor<T> {
    let three = number::<T>(3.0);
    let d = slope + other - three * (f - h) / (t - u);
    let root = (d * d - slope * other).sqrt() * (u - t).sign();
    u - (u - t) * (other + root - d) / (other - slope + root + root)
}

/// Returns a step between two points, a tenth of their distance away from either.
fn inside<T: Float>(low: Point<T>, high: Point<T>) -> Tensor<T> {
    let (left, right) = (low[0].minimum(high[0]), low[0].maximum(high[0]));
    let (margin, half) = ((right - left) * number(0.1), (left + right) * number(0.5));
    let t = cubic_minimum(low, high);
    t.is_finite().select(t, half).maximum(left + margin).minimum(right - margin)
}

/// Returns a step beyond the second of two points, at most ten times as far.
fn beyond<T: Float>(before: Point<T>, last: Point<T>) -> Tensor<T> {
    let t = cubic_minimum(before, last);
    let (least, most) = (last[0] + (last[0] - before[0]) * number(0.01), last[0] * number(10.0));
    t.is_finite().select(t, most).maximum(least).minimum(most)
}
