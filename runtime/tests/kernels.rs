//! Kernels on operands of every layout, against the interpreter.

use crate::support::check;
use anabranch_dsl::ops::InferCx;
use anabranch_dsl::ops::random::Key;
use anabranch_dsl::{AnyValue, DType, HostTensor, Tensor, Type, bf16, f16, trace};

/// Returns irregular numbers around zero.
fn numbers(shape: &[usize], dtype: DType) -> HostTensor {
    let n: usize = shape.iter().product();
    let at = |i: usize| ((i * 7919 + 13) % 101) as f64 / 10.0 - 5.0;
    match dtype {
        DType::F32 => HostTensor::new(shape, (0..n).map(|i| at(i) as f32).collect::<Vec<_>>()),
        DType::F64 => HostTensor::new(shape, (0..n).map(at).collect::<Vec<_>>()),
        DType::F16 => HostTensor::new(shape, (0..n).map(|i| f16::from_f64(at(i))).collect::<Vec<_>>()),
        DType::BF16 => HostTensor::new(shape, (0..n).map(|i| bf16::from_f64(at(i))).collect::<Vec<_>>()),
        DType::I32 => HostTensor::new(shape, (0..n).map(|i| at(i) as i32).collect::<Vec<_>>()),
        DType::I64 => HostTensor::new(shape, (0..n).map(|i| at(i) as i64).collect::<Vec<_>>()),
        DType::U32 => HostTensor::new(shape, (0..n).map(|i| (i * 31 % 17) as u32).collect::<Vec<_>>()),
        DType::U8 => HostTensor::new(shape, (0..n).map(|i| (i * 31 % 17) as u8).collect::<Vec<_>>()),
        DType::Bool => HostTensor::new(shape, (0..n).map(|i| i * 31 % 7 < 3).collect::<Vec<_>>()),
        DType::Bytes => panic!("strings are no numbers"),
    }
}

const NUMERIC: [DType; 6] = [DType::F32, DType::F64, DType::I32, DType::I64, DType::U32, DType::U8];

/// Returns tensors of one shape with different memory layouts.
fn layouts(x: &[AnyValue]) -> Vec<AnyValue> {
    // x[0]: [3, 4, 5], x[1]: [5, 3, 4], x[2]: [3, 4, 10], x[3]: [4, 1]
    vec![
        x[0],
        x[1].permute([1, 2, 0]),
        x[2].slice_step(2, 1, 10, 2),
        x[3].broadcast_to([3, 4, 5]),
        x[0].flip([0, 2]),
        x[1].permute([1, 2, 0]).flip(1),
    ]
}

fn layout_inputs(dtype: DType) -> Vec<HostTensor> {
    [&[3, 4, 5][..], &[5, 3, 4], &[3, 4, 10], &[4, 1]].iter().map(|s| numbers(s, dtype)).collect()
}

#[test]
fn arithmetic_takes_every_layout() {
    for dtype in NUMERIC {
        check(&layout_inputs(dtype), |x| {
            let all = layouts(x);
            let mut results = Vec::new();
            for &a in &all {
                for &b in &all {
                    results.push(a.add(b).mul(a).sub(b.maximum(a)));
                    results.push(a.less_count(b));
                }
            }
            results
        })
        .expect("it runs");
    }
}

/// A combination of comparison, selection and casting.
trait LessCount {
    fn less_count(self, other: AnyValue) -> AnyValue;
}
impl LessCount for AnyValue {
    fn less_count(self, other: AnyValue) -> AnyValue {
        self.lt(other).select(self, other).eq(self).cast(DType::I32).sum()
    }
}

#[test]
fn functions_of_one_number_agree_for_tensors_and_scalars() {
    for dtype in [DType::F32, DType::F64] {
        let inputs = [numbers(&[700], dtype), numbers(&[], dtype)];
        check(&inputs, |x| {
            let mut results = Vec::new();
            for def in anabranch_dsl::ops::all() {
                let unary = def.arity == anabranch_dsl::ops::Arity::Exactly(1) && def.attrs.is_empty();
                let (operand, attrs) = (Type::tensor(dtype, ()), Default::default());
                if unary && (def.infer)(&InferCx { operands: &[&operand], attrs: &attrs }).is_ok() {
                    results.extend(x.iter().map(|&x| trace::emit(def, &[x], Default::default())));
                }
            }
            assert!(results.len() > 50, "{} results of functions of one number", results.len());
            results
        })
        .expect("it runs");
    }
}

#[test]
fn operations_on_bits_agree_for_tensors_and_scalars() {
    for dtype in [DType::I32, DType::I64, DType::U32, DType::U8] {
        let inputs = [numbers(&[700], dtype), numbers(&[700], dtype), numbers(&[], dtype), numbers(&[], dtype)];
        check(&inputs, |x| {
            let pairs = [(x[0], x[1]), (x[2], x[3]), (x[0], x[3])];
            let of_pair = |(a, b): (AnyValue, AnyValue)| {
                [a.bit_and(b), a.bit_or(b), a.bit_xor(b), a.shift_left(b), a.shift_right(b), b.bit_not()]
            };
            pairs.into_iter().flat_map(of_pair).collect()
        })
        .expect("it runs");
    }
}

#[test]
fn casts_between_all_types() {
    for from in DType::PLAIN {
        check(&[numbers(&[50], from), numbers(&[], from)], |x| {
            x.iter().flat_map(|x| DType::PLAIN.map(|to| x.cast(to))).collect()
        })
        .expect("it runs");
    }
}

#[test]
fn reductions_over_all_sets_of_axes_and_layouts() {
    for dtype in NUMERIC {
        check(&layout_inputs(dtype), |x| {
            let mut results = Vec::new();
            for a in layouts(x) {
                for set in 0..8usize {
                    let axes: Vec<usize> = (0..3).filter(|i| set >> i & 1 == 1).collect();
                    let axes = || axes.clone();
                    results.extend([a.sum_axis(axes()), a.prod_keepdim(axes()), a.max_axis(axes())]);
                    results.extend([a.min_keepdim(axes()), a.gt(a.number(1.0)).all_axis(axes())]);
                    results.push(a.gt(a.number(1.0)).any_axis(axes()));
                }
                for axis in 0..3 {
                    results.extend([a.cumsum(axis), a.argmax(axis), a.argmin(axis)]);
                }
            }
            results
        })
        .expect("it runs");
    }
}

#[test]
fn long_reductions_and_empty_ones() {
    check(&[numbers(&[3, 1003], DType::F64), numbers(&[1003, 3], DType::F64), numbers(&[2, 0], DType::F32)], |x| {
        vec![x[0].sum_axis(1), x[1].sum_axis(0), x[0].max_axis(1), x[2].sum_axis(1), x[2].sum_axis(0), x[2].prod()]
    })
    .expect("it runs");
}

/// The kernel of strided operands computes up to 64 rows of results together, and large operands on
/// several threads.
#[test]
fn reductions_with_many_results_agree_in_all_layouts() {
    for dtype in [DType::F64, DType::I32] {
        check(&[numbers(&[3, 150, 7], dtype), numbers(&[2, 5, 1100], dtype), numbers(&[130, 4, 300], dtype)], |x| {
            let mut results = Vec::new();
            for &a in x {
                for a in [a, a.permute([1, 2, 0]), a.flip([0, 1]), a.permute([2, 1, 0]).flip(2)] {
                    results.extend([a.sum_axis(1), a.max_axis([0, 2]), a.min_axis([1, 2]), a.sum_axis(0)]);
                }
            }
            results
        })
        .expect("it runs");
    }
}

#[test]
fn softmax_along_each_axis() {
    for dtype in [DType::F32, DType::F64] {
        check(&layout_inputs(dtype), |x| {
            let mut results = Vec::new();
            for a in layouts(x) {
                for axis in 0..3 {
                    results.extend([a.softmax(axis), a.log_softmax(axis), a.logsumexp(axis)]);
                }
            }
            let huge = x[0].mul(x[0].number(1e30)).mul(x[0].number(1e30));
            results.extend([huge.softmax(-1), huge.logsumexp_keepdim(0)]);
            results
        })
        .expect("it runs");
    }
}

#[test]
fn products_of_matrices_of_every_layout() {
    for dtype in NUMERIC {
        let inputs =
            [numbers(&[7, 5], dtype), numbers(&[5, 6], dtype), numbers(&[6, 5], dtype), numbers(&[2, 3, 5, 4], dtype)];
        check(&inputs, |x| {
            let (a, b, c, d) = (x[0], x[1], x[2], x[3]);
            vec![
                a.matmul(b),
                a.matmul(c.permute([1, 0])),
                b.permute([1, 0]).matmul(a.permute([1, 0])),
                a.slice_step(0, 0, 7, 2).matmul(b.slice_step(1, 0, 6, 3)),
                a.flip(1).matmul(b.flip(0)),
                a.slice(0, 3, 4).matmul(b.slice(1, 2, 3)),
                a.matmul(d),
                d.matmul(b.slice(0, 0, 4)),
                d.matmul(d.permute([0, 1, 3, 2])),
                a.slice(1, 0, 0).matmul(b.slice(0, 0, 0)),
                a.sum_axis(0).matmul(b),
                a.sum_axis(0).matmul(b.sum_axis(1)),
            ]
        })
        .expect("it runs");
    }
}

#[test]
fn a_large_product_does_not_depend_on_how_it_is_split() {
    let inputs = [numbers(&[300, 130], DType::F64), numbers(&[130, 170], DType::F64)];
    check(&inputs, |x| vec![x[0].matmul(x[1]), x[0].slice(0, 0, 70).matmul(x[1])]).expect("it runs");
    let inputs = [numbers(&[300, 130], DType::F32), numbers(&[130, 170], DType::F32)];
    let program = anabranch_runtime::Program::new(
        crate::support::traced(&inputs, |x| {
            let all = x[0].matmul(x[1]);
            vec![all.slice(0, 64, 128), x[0].slice(0, 64, 128).matmul(x[1])]
        })
        .graph,
    );
    let outputs = program.and_then(|p| p.run(&inputs, &mut vec![])).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(outputs[0], outputs[1], "a row is the same bits in a large and in a small product");
}

#[test]
fn large_maps_are_split() {
    let n = 300_000;
    check(&[numbers(&[n], DType::F64), numbers(&[3, n / 3], DType::F64)], |x| {
        let b = x[1].permute([1, 0]).reshape([n]);
        vec![x[0].mul(b).add(x[0]), x[0].add(b).sum(), x[1].sum_axis(0), x[1].sum_axis(1)]
    })
    .expect("it runs");
}

#[test]
fn parts_are_read_and_written() {
    for dtype in [DType::F32, DType::I64, DType::U8] {
        let inputs = [numbers(&[4, 6], dtype), numbers(&[2, 6], dtype), HostTensor::scalar(1i32)];
        check(&inputs, |x| {
            let (a, part, i) = (x[0], x[1], x[2]);
            let own = a.add(a);
            vec![
                a.slice_step(0, 1, 4, 2),
                a.slice_at(i, 0, 2),
                a.permute([1, 0]).slice_at(i, 0, 3),
                a.update_slice(part, 0, 1),
                own.update_slice(part, 0, 2).add(own),
                own.update_slice_at(part, i, 0),
                a.update_slice_at(part.permute([1, 0]).slice(0, 0, 4), i, 1),
                AnyValue::concat(&[a, part, a.flip(0)], 0),
                AnyValue::concat(&[a, a.slice(1, 1, 3)], 1),
                a.update_slice(a.slice(0, 0, 2), 0, 1),
                own.update_slice(own.slice(0, 0, 2), 0, 2),
                a.reshape([2, 12]).permute([1, 0]).reshape([24]),
            ]
        })
        .expect("it runs");
    }
}

#[test]
fn numbers_in_tensors_name_places() {
    let ids = HostTensor::new([2, 3], vec![0i32, 3, 1, 1, 2, 0]);
    let ids_u8 = HostTensor::new([2], vec![2u8, 0]);
    let along = HostTensor::new([4, 2], vec![5i64, 0, 1, 1, 2, 4, 0, 3]);
    for dtype in [DType::F32, DType::F64, DType::I32] {
        let inputs = [numbers(&[4, 6], dtype), ids.clone(), ids_u8.clone(), along.clone(), numbers(&[2, 3, 6], dtype)];
        check(&inputs, |x| {
            let (a, ids, small, along, rows) = (x[0], x[1], x[2], x[3], x[4]);
            vec![
                a.take(ids, 0),
                a.take(ids, 1),
                a.permute([1, 0]).take(small, 1),
                a.take(small.sum(), 0),
                a.take_along_axis(along, 1),
                a.scatter_add(ids, rows, 0),
                a.scatter_add_along_axis(along, a.slice(1, 1, 3), 1),
                a.sub(a).scatter_add(ids, rows.add(rows), 0),
            ]
        })
        .expect("it runs");
    }
}

#[test]
fn an_index_out_of_range_is_the_same_error_everywhere() {
    let a = numbers(&[4, 6], DType::F32);
    for (id, axis) in [(4, 0), (-1, 1), (6, 1)] {
        let ids = HostTensor::new([2], vec![1i32, id]);
        let error = check(&[a.clone(), ids], |x| vec![x[0].take(x[1], axis)]).unwrap_err();
        assert!(error.contains(&format!("index {id} at [1]")), "{error}");
    }
    for start in [-1, 3, 100] {
        let start = HostTensor::scalar(start);
        check(&[a.clone(), start.clone()], |x| vec![x[0].slice_at(x[1], 0, 2)]).unwrap_err();
        check(&[a.clone(), start], |x| vec![x[0].update_slice_at(x[0].slice(0, 0, 2), x[1], 0)]).unwrap_err();
    }
    let ids = HostTensor::new([1], vec![9i64]);
    check(&[a, ids], |x| vec![x[0].add(x[0]).scatter_add(x[1], x[0].slice(0, 0, 1), 0)]).unwrap_err();
}

#[test]
fn random_numbers_are_those_of_the_interpreter() {
    let key = HostTensor::new([2], vec![7u32, 9]);
    check(&[key, HostTensor::scalar(5i64)], |x| {
        let key = Key::from_tensor(Tensor::from_any(x[0]));
        let other = key.fold_in(Tensor::<i64>::from_any(x[1]));
        let large = other.uniform::<f32>([20_001]);
        vec![
            key.bits([7]).untyped(),
            key.uniform::<f32>([5]).untyped(),
            other.uniform::<f64>([5]).untyped(),
            other.normal::<f64>([3, 3]).untyped(),
            large.untyped(),
            other.uniform::<f32>(()).untyped(),
            other.into_tensor().untyped(),
        ]
    })
    .expect("it runs");
}

#[test]
fn elementwise_chains_are_one_instruction() {
    let inputs = [numbers(&[600], DType::F32), numbers(&[600], DType::F32)];
    let graph = crate::support::traced(&inputs, |x| vec![x[0].mul(x[1]).add(x[0]).tanh().mul(x[1].exp())]).graph;
    let text = anabranch_runtime::Program::new(graph).unwrap_or_else(|e| panic!("{e}")).explain();
    let text = crate::support::instructions(&text);
    assert_eq!(text.lines().filter(|l| l.contains("tanh")).count(), 1, "{text}");
    assert_eq!(text.lines().filter(|l| l.contains(" = ") && l.contains("; ")).count(), 1, "{text}");
}

/// Copies that threads share, of elements with every kind of stride, next to small copies.
#[test]
fn large_tensors_are_copied_in_every_order() {
    for shape in [[61usize, 50, 45], [3, 4, 5]] {
        let n: usize = shape.iter().product();
        let numbers = HostTensor::new(shape, (0..n as i32).collect::<Vec<_>>());
        let small = HostTensor::new(shape, (0..n).map(|i| i as u8).collect::<Vec<_>>());
        check(&[numbers, small], |x| {
            let mut results = Vec::new();
            for x in x {
                for axes in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                    // Only a copy can reshape a permuted tensor.
                    results.push(x.permute(axes).reshape([shape.iter().product::<usize>()]));
                }
                let flipped = x.flip([0]).permute([0, 2, 1]).reshape([shape.iter().product::<usize>()]);
                results.extend([flipped, x.permute([2, 0, 1]).flip([1]).reshape([shape.iter().product::<usize>()])]);
            }
            results
        })
        .expect("it runs");
    }
}
