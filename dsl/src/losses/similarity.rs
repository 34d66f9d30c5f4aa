//! Losses of embeddings, which are vectors along the last axis.

use super::{LossReduction, check_same_shape, computed, reduction_setter, refuse, wide};
use crate::{AnyValue, Float, Tensor};

/// The smallest length of a vector by which a cosine divides: the default of PyTorch's
/// `cosine_similarity`.
const SHORTEST: f64 = 1e-8;

/// The number that is added to each difference of a distance: the default of PyTorch's
/// `pairwise_distance`.
const DIFFERENCE_OFFSET: f64 = 1e-6;

/// Checks that embeddings have equal shapes and an axis.
#[track_caller]
fn check_embeddings(name: &str, a: (&str, AnyValue), b: (&str, AnyValue)) {
    check_same_shape(name, a, b);
    if a.1.rank() == 0 {
        let label = a.1.tensor_type().to_string();
        refuse(name, "a scalar is no vector", label, "pass vectors along the last axis, [.., size]");
    }
}

fn cosine(a: AnyValue, b: AnyValue) -> AnyValue {
    // The maximum is taken before the root, whose derivative at 0 is infinite.
    let length = |x: AnyValue| {
        let squares = x.square().sum_axis(-1);
        squares.maximum(squares.number(SHORTEST * SHORTEST)).sqrt()
    };
    (a * b).sum_axis(-1) / (length(a) * length(b))
}

/// Returns the Euclidean distance, whose gradient at 0 is 0.
fn distance(a: AnyValue, b: AnyValue) -> AnyValue {
    (a - b + DIFFERENCE_OFFSET).square().sum_axis(-1).sqrt_flat_at_zero()
}

/// Returns the cosine of the angle between vectors `[.., size]`, with the shape `[..]`:
/// `a · b / (max(‖a‖, 1e-8) max(‖b‖, 1e-8))`. Vectors of zeros have the cosine 0.
///
/// ```
/// use anabranch::{losses::cosine_similarity, prelude::*};
///
/// let y = eval(|| {
///     let [a, b] = [[[3.0f32, 4.0], [0.0, 0.0]], [[4.0, 3.0], [1.0, 0.0]]].map(tensor);
///     cosine_similarity(a, b)
/// })?;
/// assert!((y.as_slice()[0] - 0.96).abs() < 1e-6 && y.as_slice()[1] == 0.0);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// Aborts the trace if the shapes differ, or there is no axis.
#[track_caller]
#[must_use]
pub fn cosine_similarity<T: Float>(a: Tensor<T>, b: Tensor<T>) -> Tensor<T> {
    computed(|| {
        let (a, b) = (wide(a.untyped()), wide(b.untyped()));
        check_embeddings("cosine_similarity", ("vectors", a), ("vectors", b));
        cosine(a, b)
    })
}

/// The loss of pairs of embeddings by their [cosine](cosine_similarity), as PyTorch's
/// `cosine_embedding_loss`: `1 - cos` for a pair of the same class, `max(0, cos - margin)` for
/// others. Near zero it differs from PyTorch's, which adds 1e-12 to the squares of both lengths.
///
/// The subgradient at the kink, where the cosine equals the margin, is 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct CosineEmbedding {
    margin: f64,
    reduction: LossReduction,
}

/// The triplet margin loss of anchors `a`, positive examples `p` and negative examples `n`, as
/// PyTorch's `triplet_margin_loss`: `max(0, d(a, p) - d(a, n) + margin)` with the distance
/// `d(x, y) = ‖x - y + 1e-6‖`. The default margin is 1.
///
/// The subgradient at the kink, where the negative example is farther by exactly the margin, is 0,
/// and so is that of a distance of 0.
#[derive(Clone, Copy, Debug)]
pub struct TripletMargin {
    margin: f64,
    swap: bool,
    reduction: LossReduction,
}

reduction_setter!(CosineEmbedding, TripletMargin);

impl Default for TripletMargin {
    fn default() -> Self {
        TripletMargin { margin: 1.0, swap: false, reduction: LossReduction::default() }
    }
}

impl CosineEmbedding {
    /// Creates the loss with the margin 0.
    pub fn new() -> CosineEmbedding {
        CosineEmbedding::default()
    }

    /// Sets the cosine up to which a pair of different classes has no loss, from -1 to 1.
    #[must_use]
    pub fn margin(self, margin: f64) -> CosineEmbedding {
        CosineEmbedding { margin, ..self }
    }

    /// Returns the loss for pairs of vectors `[.., size]`, and for each pair whether both are of
    /// the same class, `[..]`. Without reduction, it has the latter shape.
    ///
    /// # Errors
    /// Aborts the trace if the shapes do not match.
    #[track_caller]
    #[must_use]
    pub fn loss<T: Float>(self, a: Tensor<T>, b: Tensor<T>, same_class: Tensor<bool>) -> Tensor<T> {
        computed(|| {
            let (a, b, same) = (wide(a.untyped()), wide(b.untyped()), same_class.untyped());
            check_embeddings("cosine_embedding", ("vectors", a), ("vectors", b));
            let cosine = cosine(a, b);
            check_same_shape("cosine_embedding", ("pairs", cosine), ("classes", same));
            self.reduction.of(same.select(1.0 - cosine, (cosine - self.margin).relu()))
        })
    }
}

impl TripletMargin {
    /// Creates the loss with the margin 1.
    pub fn new() -> TripletMargin {
        TripletMargin::default()
    }

    /// Sets the difference of the distances from which on a triplet has no loss.
    #[must_use]
    pub fn margin(self, margin: f64) -> TripletMargin {
        TripletMargin { margin, ..self }
    }

    /// Uses the distance of positive and negative example if it is less than that of anchor and
    /// negative example (Balntas et al. 2016). Of two equal distances, each gets half of the
    /// gradient.
    #[must_use]
    pub fn swap(self) -> TripletMargin {
        TripletMargin { swap: true, ..self }
    }

    /// Returns the loss for vectors `[.., size]`. Without reduction, it has the shape `[..]`.
    ///
    /// # Errors
    /// Aborts the trace if the shapes differ.
    #[track_caller]
    #[must_use]
    pub fn loss<T: Float>(self, anchors: Tensor<T>, positives: Tensor<T>, negatives: Tensor<T>) -> Tensor<T> {
        computed(|| {
            let [a, p, n] = [anchors, positives, negatives].map(|x| wide(x.untyped()));
            check_embeddings("triplet_margin", ("anchors", a), ("positives", p));
            check_embeddings("triplet_margin", ("anchors", a), ("negatives", n));
            let mut to_negative = distance(a, n);
            if self.swap {
                to_negative = to_negative.minimum(distance(p, n));
            }
            self.reduction.of((distance(a, p) - to_negative + self.margin).relu())
        })
    }
}

/// Returns the mean [`CosineEmbedding`] loss of pairs of vectors `[.., size]`, with whether both
/// are of the same class, `[..]`.
///
/// ```
/// use anabranch::{losses::cosine_embedding, prelude::*};
///
/// let loss = eval(|| {
///     let [a, b] = [[[1.0f32, 0.0], [1.0, 0.0]], [[2.0, 0.0], [5.0, 0.0]]].map(tensor);
///     cosine_embedding(a, b, tensor([true, false]))
/// })?;
/// assert_eq!(loss, 0.5);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// See [`CosineEmbedding::loss`].
#[track_caller]
#[must_use]
pub fn cosine_embedding<T: Float>(a: Tensor<T>, b: Tensor<T>, same_class: Tensor<bool>) -> Tensor<T> {
    CosineEmbedding::new().loss(a, b, same_class)
}

/// Returns the mean [`TripletMargin`] loss of vectors `[.., size]`.
///
/// ```
/// use anabranch::{losses::triplet_margin, prelude::*};
///
/// let loss = eval(|| {
///     let [a, p, n] = [[0.0f32, 0.0], [3.0, 4.0], [0.0, 2.0]].map(tensor);
///     triplet_margin(a, p, n)
/// })?;
/// assert!((loss.item() - 4.0).abs() < 1e-5);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
///
/// # Errors
/// See [`TripletMargin::loss`].
#[track_caller]
#[must_use]
pub fn triplet_margin<T: Float>(anchors: Tensor<T>, positives: Tensor<T>, negatives: Tensor<T>) -> Tensor<T> {
    TripletMargin::new().loss(anchors, positives, negatives)
}
