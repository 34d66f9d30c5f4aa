//! Attention: means of values, weighted by the match of keys with queries.
//!
//! `attention` is a single operation, so that a device need not have the full score matrix. Its
//! gradient is a second operation, which recomputes the scores (Dao et al. 2022, "FlashAttention").
//! The gradient of the second operation is composed of other operations, with all scores, and so is
//! attention over unknown extents.
//!
//! With queries `Q`, keys `K`, values `V` and the cotangent `G` of the result:
//!
//! ```text
//! S = Q Kᵀ / sqrt(size), of keys that a query does not see -inf
//! P = softmax(S)          the result is P V
//! D = G Vᵀ
//! R = P (D - sum(P D))    the gradient of S
//! the gradients of Q, K, V: R K / sqrt(size), Rᵀ Q / sqrt(size), Pᵀ G
//! ```

use super::infer::Class;
use super::number::{RealNumber, match_float};
use super::shape::positions;
use super::*;
use crate::{DType, Dim, Float, Shape, Tensor, scalars};

family!(ATTENTION, ATTENTION_GRAD);

/// For each query `[.., n, size]`, the mean of the values `[.., m, width]` weighted by the keys
/// `[.., m, size]`.
///
/// A masked value contributes nothing. Devices may add zero times the value instead, which makes a
/// difference if it is infinite or `NaN`.
static ATTENTION: OpDef = OpDef {
    name: "attention",
    arity: Arity::Exactly(3),
    attrs: Attention::DECLARED,
    infer: |cx| {
        let [batch, n, _, _, width] = checked(cx)?;
        Ok(Type::tensor(cx.tensor(0)?.dtype, [batch.dims(), &[n.dims()[0].clone(), width.dims()[0].clone()]].concat()))
    },
    eval: |cx| Ok(match_float!(cx.operands[0].buffer(), q => cx.result(attention(&Sizes::of(cx), q, cx)))),
    grad: Grad::Rule(|n| {
        let packed = emit(prim::ATTENTION_GRAD, &[n.x(0), n.x(1), n.x(2), n.dy()], n.attrs().clone());
        let parts = parts_of(packed, [n.ty(0), n.ty(1), n.ty(2)]);
        parts.into_iter().enumerate().map(|(i, part)| n.needs(i).then_some(part)).collect()
    }),
    exactness: Exactness::Sum(1.0),
    class: OpClass::Contract(Contraction::Composite(|cx| 2.0 * scores(cx))),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// The cotangents of queries, keys and values, computed from these and the cotangent of the result.
///
/// The elements of all three are concatenated along one axis after the leading ones.
static ATTENTION_GRAD: OpDef = OpDef {
    name: "attention_grad",
    arity: Arity::Exactly(4),
    attrs: Attention::DECLARED,
    infer: |cx| {
        let [batch, n, m, size, width] = checked(cx)?;
        let g = cx.tensor(3)?;
        let of_result = Shape::from([batch.dims(), n.dims(), width.dims()].concat());
        if g.dtype != cx.tensor(0)?.dtype || !g.shape.compatible(&of_result) {
            let error = OpError::new(format!("the gradient must have the shape of the result, {of_result}"));
            return Err(error.label(g.to_string()).help("the last operand is the cotangent of the result"));
        }
        let known = |s: &Shape| s.dims()[0].known();
        let elements = || Some(known(&n)? * known(&size)? + known(&m)? * (known(&size)? + known(&width)?));
        let elements = elements().map_or(Dim::Unknown, Dim::Known);
        Ok(Type::tensor(g.dtype, [batch.dims(), &[elements]].concat()))
    },
    eval: |cx| Ok(match_float!(cx.operands[0].buffer(), q => cx.result(gradients(&Sizes::of(cx), q, cx)))),
    grad: Grad::Rule(|n| {
        let causal = Attention::of(n.attrs()).causal;
        let [q, k, v, g] = std::array::from_fn(|i| n.x(i));
        let [to_q, to_k, to_v] = parts_of(n.dy(), [n.ty(0), n.ty(1), n.ty(2)]);
        let scale = scale(q);
        let p = weights(q, k, causal);
        let d = g.matmul(v.transpose(-2, -1));
        let centered = d - (p * d).sum_keepdim(-1);
        let r = p * centered;
        // The cotangents of R, P and D, then that of S.
        let of_r = (to_q.matmul(k.transpose(-2, -1)) + q.matmul(to_k.transpose(-2, -1))) * scale;
        let row = (of_r * p).sum_keepdim(-1);
        let of_p = g.matmul(to_v.transpose(-2, -1)) + of_r * centered - d * row;
        let of_d = p * (of_r - row);
        let of_s = p * (of_p - (p * of_p).sum_keepdim(-1));
        vec![
            n.needs(0).then(|| (of_s.matmul(k) + r.matmul(to_k)) * scale),
            n.needs(1).then(|| (of_s.transpose(-2, -1).matmul(q) + r.transpose(-2, -1).matmul(to_q)) * scale),
            n.needs(2).then(|| of_d.transpose(-2, -1).matmul(g)),
            n.needs(3).then(|| p.matmul(to_v) + of_d.matmul(v)),
        ]
    }),
    exactness: Exactness::Sum(1.0),
    class: OpClass::Contract(Contraction::Composite(|cx| 5.0 * scores(cx))),
    halves: Halves::Widened,
    effects: Effects::Pure,
    laws: Laws::NONE,
};

/// Returns the number of multiplications of all queries with all keys.
fn scores(cx: &CostCx<'_>) -> f64 {
    let keys = cx.operands[1].shape.dims().iter().rev().nth(1).map_or(1.0, |dim| cx.extent(dim));
    cx.elements(cx.operands[0]) * keys
}

/// The shapes of the operands, for the help of errors.
const SHAPES: &str = "the shapes are [.., n, size] for queries, [.., m, size] for keys and [.., m, width] for values";

/// Returns the leading axes and the extents `n`, `m`, `size` and `width`, if the operands match.
fn checked(cx: &InferCx<'_>) -> Result<[Shape; 5], OpError> {
    let (q, k, v) = (cx.tensor(0)?, cx.tensor(1)?, cx.tensor(2)?);
    Class::Float.check(q)?;
    let label = || format!("{q} with keys {k} and values {v}");
    if q.rank() < 2 || k.rank() != q.rank() || v.rank() != q.rank() {
        let error = OpError::new(format!("the ranks are {}, {} and {}", q.rank(), k.rank(), v.rank()));
        return Err(error.label(label()).help("queries, keys and values have the same rank, at least 2"));
    }
    if k.dtype != q.dtype || v.dtype != q.dtype {
        let error = OpError::new(format!("element types differ, {}, {} and {}", q.dtype, k.dtype, v.dtype));
        return Err(error.label(label()).help("convert them with `.cast()`"));
    }
    let last = q.rank() - 2;
    let part = |ty: &TensorType, range: std::ops::Range<usize>| Shape::from(&ty.shape.dims()[range]);
    let matched = |what: &str, a: Shape, b: Shape| match a.compatible(&b) {
        true => Ok(a.meet(&b)),
        false => Err(OpError::new(format!("{what} differ, {a} and {b}")).label(label()).help(SHAPES)),
    };
    let batch = matched("leading axes", part(q, 0..last), part(k, 0..last))?;
    let batch = matched("leading axes", batch, part(v, 0..last))?;
    let size = matched("sizes of queries and keys", part(q, last + 1..last + 2), part(k, last + 1..last + 2))?;
    if size.dims()[0].known() == Some(0) {
        return Err(OpError::new("queries and keys have no elements").label(label()).help(SHAPES));
    }
    let m = matched("numbers of keys and values", part(k, last..last + 1), part(v, last..last + 1))?;
    let n = part(q, last..last + 1);
    if Attention::of(cx.attrs).causal && !n.compatible(&m) {
        let error = OpError::new(format!("{n} queries, but {m} keys")).label(label());
        return Err(error.help("the causal mask needs equal numbers of queries and keys"));
    }
    Ok([batch, n, m, size, part(v, last + 1..last + 2)])
}

/// The extents of the operands.
struct Sizes {
    batch: usize,
    n: usize,
    m: usize,
    size: usize,
    width: usize,
    causal: bool,
}

impl Sizes {
    fn of(cx: &EvalCx<'_>) -> Sizes {
        let (q, v) = (cx.operands[0].shape(), cx.operands[2].shape());
        let last = q.len() - 2;
        let batch = q[..last].iter().product();
        let causal = Attention::of(cx.attrs).causal;
        Sizes { batch, n: q[last], m: v[last], size: q[last + 1], width: v[last + 1], causal }
    }

    /// Returns the number of keys that are visible to a query.
    fn seen(&self, query: usize) -> usize {
        if self.causal { query + 1 } else { self.m }
    }
}

/// Returns `x` divided by the root of a size.
fn over_root<T: RealNumber>(x: T, n: usize) -> T {
    x / x.number(n as f64).sqrt()
}

fn dot<T: RealNumber>(a: &[T], b: &[T]) -> T {
    a.iter().zip(b).fold(T::ZERO, |sum, (&a, &b)| sum + a * b)
}

fn add_scaled<T: RealNumber>(to: &mut [T], x: &[T], by: T) {
    to.iter_mut().zip(x).for_each(|(to, &x)| *to = *to + x * by);
}

/// Returns the weights of the visible keys.
fn weights_of<T: RealNumber>(q: &[T], keys: &[T]) -> Vec<T> {
    let mut p: Vec<T> = keys.chunks_exact(q.len().max(1)).map(|k| over_root(dot(q, k), q.len())).collect();
    let max = p.iter().copied().fold(T::LOWEST, T::larger);
    // As in softmax.
    let shift = if max.is_finite() { max } else { T::ZERO };
    p.iter_mut().for_each(|s| *s = scalars::exp(*s - shift));
    let sum = p.iter().copied().fold(T::ZERO, scalars::Arithmetic::add);
    p.iter_mut().for_each(|p| *p = *p / sum);
    p
}

fn attention<T: RealNumber>(s: &Sizes, q: &[T], cx: &EvalCx<'_>) -> Vec<T> {
    let (k, v) = (cx.operands[1].data::<T>(), cx.operands[2].data::<T>());
    let mut y = vec![T::ZERO; s.batch * s.n * s.width];
    for row in 0..s.batch * s.n {
        let (at, seen) = (row / s.n * s.m, s.seen(row % s.n));
        let p = weights_of(&q[row * s.size..][..s.size], &k[at * s.size..][..seen * s.size]);
        for (j, p) in p.into_iter().enumerate() {
            add_scaled(&mut y[row * s.width..][..s.width], &v[(at + j) * s.width..][..s.width], p);
        }
    }
    y
}

fn gradients<T: RealNumber>(s: &Sizes, q: &[T], cx: &EvalCx<'_>) -> Vec<T> {
    let [k, v, g] = [1, 2, 3].map(|i| cx.operands[i].data::<T>());
    let (of_q, of_k, of_v) = (s.n * s.size, s.m * s.size, s.m * s.width);
    let mut all = vec![T::ZERO; s.batch * (of_q + of_k + of_v)];
    for b in 0..s.batch {
        let own = &mut all[b * (of_q + of_k + of_v)..][..of_q + of_k + of_v];
        let (to_q, rest) = own.split_at_mut(of_q);
        let (to_k, to_v) = rest.split_at_mut(of_k);
        let (k, v) = (&k[b * of_k..][..of_k], &v[b * of_v..][..of_v]);
        for i in 0..s.n {
            let (q, g) = (&q[(b * s.n + i) * s.size..][..s.size], &g[(b * s.n + i) * s.width..][..s.width]);
            let p = weights_of(q, &k[..s.seen(i) * s.size]);
            let d: Vec<T> = (0..p.len()).map(|j| dot(g, &v[j * s.width..][..s.width])).collect();
            let mean = dot(&p, &d);
            for j in 0..p.len() {
                let r = over_root(p[j] * (d[j] - mean), s.size);
                add_scaled(&mut to_q[i * s.size..][..s.size], &k[j * s.size..][..s.size], r);
                add_scaled(&mut to_k[j * s.size..][..s.size], q, r);
                add_scaled(&mut to_v[j * s.width..][..s.width], g, p[j]);
            }
        }
    }
    all
}

/// Splits the packed result of `attention_grad`, or its cotangent, into its three parts.
fn parts_of<C: ValueCx>(packed: AnyValue<C>, types: [&TensorType; 3]) -> [AnyValue<C>; 3] {
    let mut start = 0;
    types.map(|ty| {
        let matrix = ty.shape.dims()[ty.rank() - 2..].iter().map(|d| d.known().expect("attention is of known extents"));
        let n = matrix.product::<usize>();
        let part = packed.slice(-1, start, start + n).reshape(ty.shape.clone());
        start += n;
        part
    })
}

/// Returns the factor of the scores.
fn scale<C: ValueCx>(queries: AnyValue<C>) -> f64 {
    1.0 / (queries.dim(-1) as f64).sqrt()
}

/// Computes the weights of all keys with other operations.
fn weights<C: ValueCx>(queries: AnyValue<C>, keys: AnyValue<C>, causal: bool) -> AnyValue<C> {
    let scores = queries.matmul(keys.transpose(-2, -1)) / (queries.dim(-1) as f64).sqrt();
    let scores = match causal {
        false => scores,
        true => {
            let n = queries.dim(-2);
            let [row, column] = [(0, [n, 1]), (1, [1, n])]
                .map(|(axis, shape)| positions(queries.context(), Shape::from(shape), axis, DType::I32));
            column.gt(row).select(scores.number(f64::NEG_INFINITY), scores)
        }
    };
    scores.softmax(-1)
}

/// Returns attention, or with a fourth operand its gradient, computed with other operations. All
/// scores are in memory then.
pub(crate) fn expanded<C: ValueCx>(operands: &[AnyValue<C>], attrs: &Attrs) -> AnyValue<C> {
    let [q, k, v] = [0, 1, 2].map(|i| operands[i]);
    let p = weights(q, k, Attention::of(attrs).causal);
    let Some(&g) = operands.get(3) else { return p.matmul(v) };
    let d = g.matmul(v.transpose(-2, -1));
    let r = p * (d - (p * d).sum_keepdim(-1)) * scale(q);
    let [p, of_scores] = [p, r].map(|x| x.transpose(-2, -1));
    let parts = [r.matmul(k), of_scores.matmul(q), p.matmul(g)].map(|part| {
        let shape = part.shape();
        let (leading, matrix) = shape.dims().split_at(shape.rank() - 2);
        let size = Shape::from(matrix).size().map_or(Dim::Unknown, Dim::Known);
        part.reshape(Shape::from([leading, &[size]].concat()))
    });
    AnyValue::concat(&parts, -1)
}

/// Broadcasts queries, keys and values to equal leading axes, if `attention` supports their types.
fn matched<C: ValueCx>(operands: [AnyValue<C>; 3]) -> Option<[AnyValue<C>; 3]> {
    let types = operands.map(AnyValue::tensor_type);
    let leading = |ty: &TensorType| Shape::from(&ty.shape.dims()[..ty.rank() - 2]);
    let is_known = |ty: &TensorType| ty.shape.dims()[ty.rank() - 2..].iter().all(|d| d.known().is_some_and(|n| n > 0));
    let common = leading(&types[0]).broadcast(&leading(&types[1]))?.broadcast(&leading(&types[2]))?;
    if !types.iter().all(is_known) || !types[0].dtype.is_float() {
        return None;
    }
    if types.iter().all(|ty| leading(ty) == common) {
        return Some(operands);
    }
    let stretched = |(x, ty): (AnyValue<C>, &TensorType)| {
        let matrix = &ty.shape.dims()[ty.rank() - 2..];
        x.broadcast_to([common.dims(), matrix].concat())
    };
    let all: Vec<AnyValue<C>> = operands
        .into_iter()
        .zip(&types)
        .map(|pair| if common.is_definite() { Some(stretched(pair)) } else { None })
        .collect::<Option<_>>()?;
    all.try_into().ok()
}

/// The keys that each query of attention sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionMask {
    /// All keys.
    None,
    /// The keys `0..=i` for query `i`. There must be as many keys as queries.
    Causal,
}

impl<C: ValueCx> AnyValue<C> {
    /// See [`Tensor::scaled_dot_product_attention`].
    #[track_caller]
    pub fn scaled_dot_product_attention(
        self,
        keys: AnyValue<C>,
        values: AnyValue<C>,
        mask: AttentionMask,
    ) -> AnyValue<C> {
        let causal = mask == AttentionMask::Causal;
        let op = "scaled_dot_product_attention";
        let (q, k, v) = (self.tensor_type(), keys.tensor_type(), values.tensor_type());
        let label = format!("{q} with keys {k}");
        if q.rank() < 2 || k.rank() < 2 || v.rank() < 2 {
            let error = OpError::new("queries, keys and values must be matrices, or batches of matrices");
            refuse::<C>(op, error.label(format!("{label} and values {v}")).help(SHAPES));
        }
        if causal && self.dim(-2) != keys.dim(-2) {
            let error = OpError::new(format!("{} queries, but {} keys", self.dim(-2), keys.dim(-2)));
            refuse::<C>(op, error.label(label).help("the causal mask needs equal numbers of queries and keys"));
        }
        let fits = |a: &TensorType, i: usize, b: &TensorType, j: usize| {
            a.shape.dims()[a.rank() - i].compatible(&b.shape.dims()[b.rank() - j]) && a.dtype == b.dtype
        };
        // The matmuls report operands that do not match.
        if fits(&q, 1, &k, 1)
            && fits(&k, 2, &v, 2)
            && let Some(operands) = self.context().called_at(Loc::caller(), || matched([self, keys, values]))
        {
            return emit(prim::ATTENTION, &operands, Attention { causal }.into());
        }
        weights(self, keys, causal).matmul(values)
    }
}

impl<T: Float> Tensor<T> {
    /// Returns scaled dot-product attention `[.., n, width]`, with this tensor `[.., n, size]` as
    /// queries (Vaswani et al. 2017).
    ///
    /// The result for each query is the mean of the values `[.., m, width]`, weighted by the
    /// softmax of `query · key / sqrt(size)` over the keys `[.., m, size]`. Leading axes are
    /// broadcast.
    ///
    /// If the extents are known, on a CPU neither this operation nor its gradient needs memory for
    /// the scores of all queries and keys (Dao et al. 2022). The gradient of the gradient does, and
    /// so do GPUs.
    ///
    /// Masked keys have weight 0, so a masked value that is not finite may make the results of
    /// queries that do not see it `NaN`.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let (q, values) = (|| zeros::<f32>([2, 4]), || tensor([[1.0f32], [3.0]]));
    /// let y = |mask| eval(move || q().scaled_dot_product_attention(q(), values(), mask));
    /// assert_eq!(y(AttentionMask::None)?.as_slice(), [2.0, 2.0]);
    /// assert_eq!(y(AttentionMask::Causal)?.as_slice(), [1.0, 2.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn scaled_dot_product_attention(self, keys: Tensor<T>, values: Tensor<T>, mask: AttentionMask) -> Tensor<T> {
        Tensor::from_any(self.untyped().scaled_dot_product_attention(keys.untyped(), values.untyped(), mask))
    }
}
