//! The operations that a GPU runs, of this process or of another one.

use super::{Support, reason_against_gpus};
use anabranch_dsl::fusion::{AxisSet, index_end, stage_to_wgsl};
use anabranch_dsl::ir::{Attrs, ListOp, Op};
use anabranch_dsl::ops::attributes::{Along, AlongOrKept, Conv, IndexRange, Pool, RunningSum};
use anabranch_dsl::ops::{CostCx, OpClass, Prim, prim};
use anabranch_dsl::{DType, Dim, TensorType, Type, passes};

/// The largest stride, padding or dilation: products of indices then fit into 31 bits.
const MAX_STEP: usize = 1 << 12;

/// The most elements of which each is compared with all before it.
const MAX_COMPARED: usize = 1 << 17;

/// The sizes and elements that a GPU supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeLimits {
    /// The largest number of bytes that a shader can bind.
    pub(crate) max_bytes: u64,
    /// The number of iterations of a loop of a thread, if the driver ends it after some of them.
    pub(crate) max_iterations: Option<usize>,
    /// Whether the memory may have elements of 16 bits.
    pub(crate) has_halves: bool,
}

/// Returns whether a GPU runs an operation on operands and results of these types.
pub(crate) fn supports(op: &Op, operands: &[&Type], results: &[&Type], limits: &SizeLimits) -> Support {
    let all = || operands.iter().chain(results).copied();
    if let Some(reason) = reason_against_gpus(all()) {
        return Support::No(reason);
    }
    let max_bytes = limits.max_bytes;
    let size_reason = |ty: &Type| size_reason(ty.element(), max_bytes);
    let reason = match op {
        Op::Print { .. } => Some("cannot print".to_owned()),
        Op::Queue(..) => Some("has no queues".to_owned()),
        Op::File(_) => Some("has no files".to_owned()),
        Op::List(op) => {
            let list = all().find(|ty| ty.as_tensor().is_none()).expect("the operation has a list");
            list_reason(op, list.element())
        }
        // The device keeps numbers of any type, but of known shapes.
        Op::Read(_)
        | Op::Assign(_)
        | Op::Constant(_)
        | Op::Assert { .. }
        | Op::Cond
        | Op::While { .. }
        | Op::Call(_) => {
            let reason = all().find_map(size_reason);
            return reason.map_or(Support::Yes, Support::No);
        }
        Op::Stack(_) => None,
        // An operation on 16-bit floats that computes is that on `f32`, between conversions.
        Op::Prim(op, attrs) if op.widens() => {
            let wide = |types: &[&Type]| types.iter().map(|ty| widened(ty)).collect::<Vec<Type>>();
            let (operands, results) = (wide(operands), wide(results));
            primitive(*op, attrs, &operands.iter().collect::<Vec<_>>(), &results.iter().collect::<Vec<_>>())
        }
        Op::Prim(op, attrs) => primitive(*op, attrs, operands, results),
    };
    let reason = reason.or_else(|| all().find_map(|ty| type_reason(ty, limits).or_else(|| size_reason(ty))));
    // The scores of attention are in memory.
    let reason = reason.or_else(|| scores(op, operands).and_then(|scores| size_reason(&scores.into())));
    let reason = reason.or_else(|| {
        let longest = match op {
            Op::Prim(op, attrs) => longest_loop(*op, attrs, operands, results),
            // A sum of elements reads all indices.
            Op::List(ListOp::Accumulate) => operands[1].element().shape.size()?,
            _ => return None,
        };
        let most = limits.max_iterations?;
        (longest > most).then(|| format!("ends loops after {most} iterations"))
    });
    reason.map_or(Support::Yes, Support::No)
}

/// Returns why a GPU does not run an operation on lists, if it does not.
fn list_reason(op: &ListOp, element: &TensorType) -> Option<String> {
    if matches!(op, ListOp::Concat(_) | ListOp::Split(_) | ListOp::Extents) {
        return Some(format!("has no `{}`", op.name()));
    }
    if element.dtype.is_half() {
        // An element may end within a word.
        return Some(format!("has no lists of {}", element.dtype));
    }
    (element.shape.size() == Some(0)).then(|| "has no lists of elements without numbers".to_owned())
}

/// Returns why the elements of a type cannot be in the memory of a GPU.
fn type_reason(ty: &Type, limits: &SizeLimits) -> Option<String> {
    let dtype = ty.element().dtype;
    let is_word = matches!(dtype, DType::F32 | DType::I32 | DType::U32 | DType::Bool);
    let has_type = is_word || dtype.is_half() && limits.has_halves;
    (!has_type).then(|| format!("has no {dtype}"))
}

/// Returns a type with `f32` for 16-bit floats.
fn widened(ty: &Type) -> Type {
    match ty {
        Type::Tensor(tensor) if tensor.dtype.is_half() => TensorType::new(DType::F32, tensor.shape.clone()).into(),
        _ => ty.clone(),
    }
}

/// Returns the type of the scores of an attention or of its gradient.
fn scores(op: &Op, operands: &[&Type]) -> Option<TensorType> {
    let Op::Prim(prim::ATTENTION | prim::ATTENTION_GRAD, _) = op else { return None };
    let [queries, keys] = [0, 1].map(|i| operands[i].element());
    let n_keys = keys.shape.dims()[keys.rank() - 2].clone();
    let leading = &queries.shape.dims()[..queries.rank() - 1];
    Some(TensorType::new(queries.dtype, [leading, &[n_keys]].concat()))
}

/// Returns why the shape of a value is unknown or too large.
fn size_reason(element: &TensorType, max_bytes: u64) -> Option<String> {
    let Some(size) = element.shape.size() else { return Some("needs known shapes".to_owned()) };
    let is_large =
        (size as u64).saturating_mul(element.dtype.size().max(4) as u64) > max_bytes || i32::try_from(size).is_err();
    if is_large || element.shape.rank() > AxisSet::MAX_AXES {
        return Some(format!("has no tensors of {max_bytes} bytes or of more than {} axes", AxisSet::MAX_AXES));
    }
    None
}

/// Estimates the iterations of the loops that a thread runs for an operation on known shapes.
fn longest_loop(op: Prim, attrs: &Attrs, operands: &[&Type], results: &[&Type]) -> usize {
    let size = |ty: &Type| ty.element().shape.size().unwrap_or(0);
    let Some(&first) = operands.first() else { return 0 };
    let extent = |ty: &Type, axis: usize| ty.element().shape.dims().get(axis).and_then(Dim::known).unwrap_or(0);
    // Each thread of a row of a softmax.
    let of_row = |axis: usize| 3 * extent(first, axis) / 64;
    match op.class {
        // A part of a row, if it is split.
        OpClass::Reduce(_) => {
            let n = size(first) / size(results[0]).max(1);
            n / passes::parts_of_rows(op, attrs, first.element()) / 256
        }
        // Operations of users have no shader.
        _ if op.is_registered() => 0,
        OpClass::Rowwise(_) if op == prim::LOGSUMEXP => of_row(AlongOrKept::of(attrs).axis),
        OpClass::Rowwise(_) => of_row(Along::of(attrs).axis),
        OpClass::Scan(_) => extent(first, RunningSum::of(attrs).axis),
        OpClass::Search => extent(first, Along::of(attrs).axis),
        // The depths of the products that it becomes.
        _ if matches!(op, prim::ATTENTION | prim::ATTENTION_GRAD) => {
            let matrix = |ty: &&Type| ty.element().shape.dims().iter().rev().take(2).filter_map(Dim::known).max();
            2 * operands.iter().filter_map(matrix).max().unwrap_or(0)
        }
        // It looks for each element of the filters whether it meets the element of the image.
        _ if op == prim::CONV_INPUT_GRAD => {
            let filters: Vec<usize> = operands[1].element().shape.dims().iter().filter_map(Dim::known).collect();
            2 * filters[0] / Conv::of(attrs).groups * filters[2..].iter().product::<usize>()
        }
        OpClass::Contract(contraction) => {
            let operands: Vec<&TensorType> = operands.iter().map(|ty| ty.element()).collect();
            let cx = CostCx { operands: &operands, result: results[0].element(), attrs, unknown_extent: 1 };
            2 * (contraction.multiplications(&cx) / size(results[0]).max(1) as f64) as usize
        }
        // The indices of one element of the result.
        _ if op == prim::SCATTER_ADD_ALONG_AXIS => extent(operands[1], Along::of(attrs).axis),
        OpClass::Scatter(Some(_)) => size(operands[1]),
        _ if matches!(op, prim::MAX_POOL | prim::MAX_POOL_PICK | prim::AVG_POOL | prim::AVG_POOL_GRAD) => {
            Pool::of(attrs).window.iter().product()
        }
        _ if op == prim::FIRST_OCCURRENCES => size(first),
        // It searches each window around an element.
        _ if op == prim::MAX_POOL_GRAD => Pool::of(attrs).window.iter().product::<usize>().saturating_pow(2),
        _ => 0,
    }
}

fn has_elements(ty: &Type) -> bool {
    ty.element().shape.size().is_some_and(|n| n > 0)
}

/// Returns why a GPU has no shader for a primitive operation.
fn primitive(op: Prim, attrs: &Attrs, operands: &[&Type], results: &[&Type]) -> Option<String> {
    let result = results[0].element();
    let operand = operands.first().map_or(result, |ty| ty.element());
    let has_shader = match op.class {
        // A shader's remainder is not exact.
        OpClass::Scalar(_) if op == prim::REM && operand.dtype.is_float() => false,
        OpClass::Scalar(_) => {
            let last = operands.last().map_or(result, |ty| ty.element());
            stage_to_wgsl(op, last.dtype, result.dtype).is_ok()
        }
        OpClass::Reduce(_) => op.reduces_by().is_some() && stage_to_wgsl(op, operand.dtype, result.dtype).is_ok(),
        // Other operations are listed: a user's operation may be of any class.
        _ => match op {
            prim::RESHAPE | prim::RESHAPE_LIKE | prim::WITH_DYNAMIC => true,
            prim::BROADCAST_TO | prim::BROADCAST_LIKE | prim::PERMUTE | prim::FLIP | prim::SLICE => true,
            prim::CONCAT_PART | prim::RANDOM_BITS => true,
            prim::RANDOM_UNIFORM => result.dtype == DType::F32,
            prim::RANDOM_FOLD_IN => matches!(operands[1].element().dtype, DType::I32 | DType::U32),
            prim::SOFTMAX | prim::LOG_SOFTMAX | prim::LOGSUMEXP => true,
            prim::CUMSUM | prim::ARGMAX | prim::ARGMIN => operand.dtype != DType::Bool,
            prim::MATMUL => result.dtype == DType::F32,
            prim::ATTENTION | prim::ATTENTION_GRAD => operands.iter().all(|ty| has_elements(ty)),
            prim::CONV | prim::CONV_INPUT_GRAD | prim::CONV_WEIGHT_GRAD => {
                let Conv { strides, padding, dilation, .. } = Conv::of(attrs);
                let is_small = strides.iter().chain(&padding).chain(&dilation).all(|&n| n <= MAX_STEP);
                result.dtype == DType::F32 && is_small
            }
            prim::MAX_POOL | prim::MAX_POOL_PICK | prim::MAX_POOL_GRAD | prim::AVG_POOL | prim::AVG_POOL_GRAD => {
                let Pool { window, strides, padding } = Pool::of(attrs);
                let is_small = strides.iter().chain(&padding).all(|&n| n <= MAX_STEP);
                // Windows of no element but padding, and sizes that f32 does not represent.
                let is_exact = window.iter().try_fold(1usize, |n, &k| n.checked_mul(k)).is_some_and(|n| n <= 1 << 24);
                result.dtype == DType::F32 && is_small && has_elements(operands[0]) && is_exact
            }
            prim::CONCAT | prim::UPDATE_SLICE | prim::IOTA => true,
            prim::FIRST_OCCURRENCES => operand.shape.size().is_some_and(|n| n <= MAX_COMPARED),
            prim::CHECK_INDEX => has_elements(operands[0]) && index_end(IndexRange::of(attrs), operand.dtype).is_ok(),
            // Without elements, an index can still be out of bounds.
            prim::TAKE
            | prim::TAKE_ALONG_AXIS
            | prim::DYNAMIC_SLICE
            | prim::SCATTER_ADD
            | prim::SCATTER_ADD_ALONG_AXIS
            | prim::DYNAMIC_UPDATE_SLICE => operands.iter().chain(results).all(|ty| has_elements(ty)),
            _ => false,
        },
    };
    (!has_shader).then(|| match op {
        prim::CAST => format!("has no shader for `{op}` from {} to {}", operand.dtype, result.dtype),
        _ => format!("has no shader for `{op}` on {}", operand.dtype),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_dsl::Graph;

    /// Returns whether a GPU whose loops end after 32,768 iterations runs the last node of a graph.
    fn is_supported(parameters: &str, node: &str) -> bool {
        let text = format!("graph @f({parameters}) {{\n%y = {node}\nreturn\n}}\n");
        let graph = Graph::parse(&text, "f.ir").unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
        let node = *graph.region(graph.root()).nodes.last().expect("there is a node");
        let data = graph.node(node);
        let [operands, results] =
            [&data.operands, &data.results].map(|values| values.iter().map(|&v| graph.ty(v)).collect::<Vec<&Type>>());
        let limits = SizeLimits { max_bytes: 1 << 30, max_iterations: Some(1 << 15), has_halves: true };
        matches!(supports(&data.op, &operands, &results, &limits), Support::Yes)
    }

    #[test]
    fn only_the_axis_of_an_operation_must_be_short() {
        for (parameters, short, long) in [
            ("%x: f32[40000, 10]", "argmax %x {axis=1}", "argmax %x {axis=0}"),
            ("%x: f32[40000, 10]", "cumsum %x {axis=1, reverse=false}", "cumsum %x {axis=0, reverse=false}"),
        ] {
            assert!(is_supported(parameters, short), "{short}");
            assert!(!is_supported(parameters, long), "{long}");
        }
        assert!(is_supported("%x: f32[2000000, 10]", "softmax %x {axis=1}"));
        assert!(!is_supported("%x: f32[2000000, 10]", "softmax %x {axis=0}"));
        let scatter = "scatter_add_along_axis %x, %i, %u {axis=1}";
        assert!(is_supported("%x: f32[40000, 10], %i: i32[40000, 1], %u: f32[40000, 1]", scatter));
        assert!(!is_supported("%x: f32[1, 10], %i: i32[1, 40000], %u: f32[1, 40000]", scatter));
    }

    #[test]
    fn long_rows_are_short_in_parts() {
        assert!(is_supported("%x: f32[16777216]", "sum %x {axes=[0], keepdim=false}"));
        // A prime number has no parts.
        assert!(!is_supported("%x: f32[16777213]", "sum %x {axes=[0], keepdim=false}"));
    }

    #[test]
    fn bounds_of_indices_fit_into_words() {
        let check = |id: &str, extent: u64| {
            is_supported(&format!("%i: {id}[3]"), &format!("check_index %i {{axis=0, extent={extent}, size=1}}"))
        };
        assert!(check("i32", 1 << 33) && check("u32", u32::MAX.into()));
        assert!(!check("u32", 1 << 32));
    }
}
