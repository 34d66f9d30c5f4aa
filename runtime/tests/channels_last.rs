//! Channels-last tensors against the interpreter, which has only one memory layout: the results of
//! convolutions, the operations after them, and the conversion to row-major order. The channels of
//! such tensors are contiguous in memory.

use crate::support::{branch, check, check_f32, check_threads, numbers, pooled, traced, while_loop};
use anabranch_dsl::ops::random::Key;
use anabranch_dsl::ops::{ConvOptions, PoolOptions};
use anabranch_dsl::{AnyValue, DType, HostTensor, derivatives, trace};
use anabranch_runtime::Program;

/// Returns `y` and the gradients of a loss that depends differently on each element.
fn with_gradients(y: AnyValue, of: &[AnyValue]) -> Vec<AnyValue> {
    let loss = y.mul(y).mul(y + 1.0).sum();
    [vec![y], derivatives::vjp(&[(loss, loss.number(1.0))], of)].concat()
}

/// Returns the same elements with the second axis last in memory.
fn last(x: AnyValue) -> AnyValue {
    let rank = x.rank() as isize;
    let to: Vec<isize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    let back: Vec<isize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    // A copy with permuted axes, viewed in the original order of the axes.
    x.permute(to).add(x.number(0.0)).permute(back)
}

/// Returns the same elements in the layout of a convolution's result: each filter copies one
/// channel of its input.
fn laid_out(x: AnyValue) -> AnyValue {
    let n = x.dim(1);
    let ones: Vec<f64> = (0..n * n).map(|i| if i % (n + 1) == 0 { 1.0 } else { 0.0 }).collect();
    x.conv(trace::constant(HostTensor::new([n, n, 1, 1], ones)), &ConvOptions::<2>::new())
}

fn same() -> ConvOptions<2> {
    ConvOptions::new().padding(1)
}

#[test]
fn convolutions_choose_the_order_of_their_results() {
    let inputs = [numbers(&[2, 3, 6, 5], DType::F32), numbers(&[16, 3, 3, 3], DType::F32)];
    let graph = traced(&inputs, |x| vec![x[0].conv(x[1], &same()).relu().max_pool(&PoolOptions::new(2))]).graph;
    let plan = Program::new(graph.clone()).unwrap_or_else(|e| panic!("{e}")).explain();
    assert!(plan.contains("f32[2, 6, 5, 16] = conv.relu") && plan.contains("f32[2, 3, 2, 16] = max_pool"), "{plan}");
    let plan = Program::without_fusion(graph).unwrap_or_else(|e| panic!("{e}")).explain();
    assert!(plan.contains("f32[2, 16, 6, 5]") && !plan.contains("f32[2, 6, 5, 16]"), "{plan}");
}

#[test]
fn filters_of_every_number() {
    for filters in (8..=26).chain([40, 64]) {
        for dtype in [DType::F32, DType::F64] {
            let inputs = [numbers(&[3, 5, 4, 6], dtype), numbers(&[filters, 5, 3, 2], dtype)];
            let all = |x: &[AnyValue]| with_gradients(x[0].conv(x[1], &ConvOptions::<2>::new()), x);
            if dtype == DType::F64 {
                check(&inputs, all).map(drop).expect("it runs")
            } else {
                check_f32(&inputs, 1e-5, all)
            }
        }
    }
}

#[test]
fn channels_that_have_gradients_fill_vectors() {
    for stride in [[1, 1], [2, 1], [1, 3], [3, 4]] {
        for dilation in [[1, 1], [2, 1]] {
            for padding in [[(0, 0), (0, 0)], [(1, 2), (3, 0)]] {
                let options = ConvOptions::<2>::new().stride(stride).dilation(dilation).padding_sides(padding);
                let inputs = [numbers(&[2, 9, 7, 8], DType::F64), numbers(&[11, 9, 3, 2], DType::F64)];
                for order in [|x: AnyValue| x, last] {
                    check(&inputs, |x| with_gradients(order(x[0]).conv(x[1], &options), x)).expect("it runs");
                }
            }
        }
    }
}

#[test]
fn each_channel_by_itself() {
    for channels in [2, 8, 9, 16, 21, 40] {
        for options in [same(), ConvOptions::new().stride(2), ConvOptions::new().stride([1, 3]).dilation(2)] {
            let options = options.groups(channels);
            let inputs = [numbers(&[3, channels, 6, 7], DType::F64), numbers(&[channels, 1, 3, 2], DType::F64)];
            for order in [|x: AnyValue| x, last] {
                check(&inputs, |x| with_gradients(order(x[0]).conv(x[1], &options), x)).expect("it runs");
            }
        }
    }
    // Groups of several channels are in row-major order.
    let inputs = [numbers(&[2, 16, 6, 7], DType::F64), numbers(&[16, 8, 3, 3], DType::F64)];
    check(&inputs, |x| with_gradients(last(x[0]).conv(x[1], &same().groups(2)), x)).expect("it runs");
}

#[test]
fn one_and_three_axes() {
    let inputs = [numbers(&[2, 8, 300], DType::F64), numbers(&[9, 8, 5], DType::F64)];
    let options = ConvOptions::<1>::new().padding(2).dilation(3);
    check(&inputs, |x| with_gradients(x[0].conv(x[1], &options), x)).expect("it runs");
    let inputs = [numbers(&[2, 8, 4, 5, 6], DType::F64), numbers(&[10, 8, 3, 2, 3], DType::F64)];
    let options = ConvOptions::<3>::new().padding([1, 0, 2]).stride([1, 2, 1]).dilation([1, 1, 2]);
    check(&inputs, |x| with_gradients(x[0].conv(x[1], &options), x)).expect("it runs");
}

/// Planes of one element, images without elements, and windows that contain only padding.
#[test]
fn small_planes() {
    for (x, w, padding) in
        [([3, 8, 1, 1], [8, 8, 1, 1], 0), ([2, 8, 3, 3], [8, 8, 3, 3], 0), ([1, 8, 1, 2], [9, 8, 3, 3], 2)]
    {
        let inputs = [numbers(&x, DType::F64), numbers(&w, DType::F64)];
        let options = ConvOptions::<2>::new().padding(padding);
        check(&inputs, |x| with_gradients(x[0].conv(x[1], &options).relu(), x)).expect("it runs");
    }
    let inputs = [numbers(&[0, 8, 4, 4], DType::F32), numbers(&[8, 8, 3, 3], DType::F32)];
    check(&inputs, |x| with_gradients(x[0].conv(x[1], &same()), x)).expect("it runs");
    let inputs = [numbers(&[2, 0, 4, 4], DType::F32), numbers(&[8, 0, 3, 3], DType::F32)];
    check(&inputs, |x| with_gradients(x[0].conv(x[1], &same()), x)).expect("it runs");
}

#[test]
fn pooling_of_every_number_of_channels() {
    for channels in [1, 3, 7, 8, 9, 16, 25, 40] {
        for (window, stride, padding) in [(1, 1, 0), (2, 2, 0), (3, 2, 1), (2, 3, 1), (4, 4, 2)] {
            let options = PoolOptions::new(window).stride(stride).padding(padding);
            check(&[numbers(&[2, channels, 5, 7], DType::F64)], |x| pooled(last(x[0]), &options)).expect("it runs");
        }
    }
    let options = PoolOptions::new([2, 3, 2]).stride(1);
    check(&[numbers(&[2, 9, 4, 5, 6], DType::F64)], |x| pooled(last(x[0]), &options)).expect("it runs");
    let options = PoolOptions::new([3]).stride(2).padding_sides([(2, 1)]);
    check(&[numbers(&[2, 9, 30], DType::F64)], |x| pooled(last(x[0]), &options)).expect("it runs");
    // Windows over the last axes of a tensor that is not an image have no channels.
    check(&[numbers(&[2, 9, 30], DType::F64)], |x| pooled(last(x[0]), &PoolOptions::new(2))).expect("it runs");
    check(&[numbers(&[2, 9, 8, 8], DType::F64)], |x| pooled(last(x[0]), &PoolOptions::new([2]))).expect("it runs");
}

/// Equal maxima and NaNs in all positions.
#[test]
fn the_place_of_a_maximum_is_that_of_the_reference() {
    let x: Vec<f32> = (0..2 * 17 * 60)
        .map(|i| if i % 13 == 5 { f32::NAN } else { [-0.0, 0.0, 1.0, f32::NEG_INFINITY][i * 7 % 11 % 4] })
        .collect();
    let shape = [2, 17, 6, 10];
    check(&[HostTensor::new(shape, x), numbers(&shape, DType::F32)], |x| {
        let options = PoolOptions::new(3).stride(2).padding(1);
        let (x, other) = (last(x[0]), last(x[1]));
        let y = x.max_pool(&options);
        let to_x = derivatives::vjp(&[(y, other.max_pool(&options))], &[x])[0];
        let picked = derivatives::vjp(&[(to_x.mul(other).sum(), x.number(1.0).sum())], &[other])[0];
        vec![y, to_x, picked]
    })
    .expect("it runs");
}

/// Sums over every set of axes, and other operations that read a tensor in this layout.
#[test]
fn what_follows_reads_any_order() {
    let inputs =
        [numbers(&[3, 8, 4, 5], DType::F64), numbers(&[3, 8, 4, 5], DType::F64), numbers(&[8, 1, 1], DType::F64)];
    for axes in 0..16usize {
        let axes: Vec<isize> = (0..4).filter(|a| axes >> a & 1 == 1).collect();
        check(&inputs, |x| {
            let (a, b) = (laid_out(x[0]), x[1]);
            let sums = |x: AnyValue| {
                let some = x.mul(x).sum_axis(&axes[..]);
                vec![x.sum_axis(&axes[..]), x.max_keepdim(&axes[..]), some, some.sum(), some.exp()]
            };
            [sums(a), sums(a.mul(b).add(x[2])), sums(a.mul(laid_out(b))), sums(last(b))].concat()
        })
        .expect("it runs");
    }
    check(&inputs, |x| {
        let (a, b) = (laid_out(x[0]), laid_out(x[1]));
        vec![
            a,
            a.sum_like(x[2]),
            a.sum_like(x[2].sum()),
            last(x[1]).sum_like(x[2].sum()),
            AnyValue::concat(&[a, b], 1),
            AnyValue::concat(&[a, x[1]], 2),
            a.softmax(1),
            a.softmax(-1),
            a.cumsum(2),
            a.argmax(1),
            a.matmul(b.permute([0, 1, 3, 2])),
            a.reshape([3, 160]),
            a.reshape([3, 2, 4, 4, 5]).mul(a.number(2.0)),
            a.slice(1, 2, 7).exp(),
            a.slice(2, 1, 3).mul(b.slice(2, 0, 2)),
            a.pad(3, 1, 2, a.number(0.5)),
            a.flip([1, 2]).neg(),
            a.lt(b).select(a, x[1]),
            a.cast(DType::F32),
            a.cast(DType::F16).cast(DType::F64),
        ]
    })
    .expect("it runs");
}

/// Operations of one kernel of rows, between which one of them needs a copy in another layout.
#[test]
fn rows_of_results_that_are_copied_first() {
    let inputs = [numbers(&[3, 8, 4, 5], DType::F64), numbers(&[3, 8, 4, 5], DType::F64)];
    check(&inputs, |x| {
        let (a, b) = (laid_out(x[0]), x[1]);
        let rows = |y: AnyValue| vec![y.softmax(-1), y.log_softmax(-1), y.logsumexp(-1)];
        let flat = |y: AnyValue| vec![y.reshape([3, 160]), y.sum_axis([0, 2, 3])];
        let weighted = a.add(b).softmax(-1).mul(a).sum_axis(-1);
        let each = [rows(a.mul(b)), flat(a.mul(b)), rows(laid_out(b).add(a).mul(b)), flat(b.mul(a.sub(b)))].concat();
        [each, vec![weighted, a]].concat()
    })
    .expect("it runs");
    // One of them alone, without and with other users of the convolution.
    for with_other in [false, true] {
        for k in 0..5 {
            check(&inputs, |x| {
                let a = laid_out(x[0]);
                let y = a.mul(x[1]);
                let result = match k {
                    0 => vec![y.softmax(-1)],
                    1 => vec![y.log_softmax(-1)],
                    2 => vec![y.logsumexp(-1)],
                    3 => vec![y.reshape([3, 160]), y.sum_axis([0, 2, 3])],
                    _ => vec![y.softmax(-1).mul(a).sum_axis(-1)],
                };
                if with_other { [result, vec![a]].concat() } else { result }
            })
            .expect("it runs");
        }
    }
}

/// Blocks of a network: biases, normalization over images, a residual sum, and a concatenation of
/// branches.
#[test]
fn blocks_of_networks() {
    let shapes: [&[usize]; 6] =
        [&[4, 3, 12, 10], &[8, 3, 3, 3], &[8, 1, 1], &[8, 8, 3, 3], &[8, 16, 1, 1], &[8 * 30, 5]];
    let inputs = shapes.map(|shape| numbers(shape, DType::F64));
    check(&inputs, |x| {
        let normal = |h: AnyValue| {
            let mean = h.mean_keepdim([0, 2, 3]);
            h.sub(mean).div(h.var_keepdim([0, 2, 3]).add(h.number(1e-3)).sqrt())
        };
        let first = normal(x[0].conv(x[1], &same()).add(x[2])).relu();
        let second = normal(first.conv(x[3], &same())).add(first).relu();
        let joined = AnyValue::concat(&[first, second], 1).conv(x[4], &ConvOptions::<2>::new()).tanh();
        let small = joined.max_pool(&PoolOptions::new(2)).reshape([4, 8 * 30]);
        with_gradients(small.matmul(x[5]), x)
    })
    .expect("it runs");
}

/// Random numbers are counted in row-major order, whatever the layout of the other operands.
#[test]
fn masks_are_the_same_in_any_order() {
    let inputs = [numbers(&[2, 3, 6, 5], DType::F64), numbers(&[8, 3, 3, 3], DType::F64)];
    check(&inputs, |x| {
        let key = Key::new(7);
        with_gradients(x[0].conv(x[1], &same()).dropout(0.4, key).relu(), x)
    })
    .expect("it runs");
}

/// Loops and branches carry such tensors, and gradients keep them in stacks.
#[test]
fn loops_and_branches_carry_any_order() {
    let inputs = [numbers(&[2, 8, 5, 4], DType::F64), numbers(&[8, 8, 3, 3], DType::F64)];
    check(&inputs, |x| {
        let constant = |i: i32| trace::constant(HostTensor::scalar(i));
        let step = |h: AnyValue| h.conv(x[1], &same()).tanh();
        let r = while_loop(&[constant(0), x[0]], |s| s[0].lt(constant(3)), |s| vec![s[0].add(constant(1)), step(s[1])]);
        let y = branch(
            r[0].lt(constant(9)),
            || vec![step(r[1]).max_pool(&PoolOptions::new(2))],
            || vec![r[1].slice(2, 0, 2).slice(3, 0, 2)],
        );
        with_gradients(y[0], x)
    })
    .expect("it runs");
}

/// A convolution and a matmul in a loop may pack the same matrix in different ways.
#[test]
fn what_is_packed_before_a_loop_is_packed_for_its_kernel() {
    for product_first in [true, false] {
        for (x, w, m) in [([2, 64, 70], [8, 64, 64], [8, 3, 64]), ([1, 512, 64], [17, 512, 64], [17, 1, 512])] {
            let inputs = [x, w, m].map(|shape| numbers(&shape, DType::F64));
            check(&inputs, |x| {
                let constant = |i: i32| trace::constant(HostTensor::scalar(i));
                let product = |m: AnyValue| m.matmul(x[1]).slice(2, 0, 3).tanh();
                let filtered = |h: AnyValue| h.conv(x[1], &ConvOptions::<1>::new()).mean_keepdim([0, 1, 2]).tanh();
                let body = |s: &[AnyValue]| {
                    let before = product_first.then(|| product(x[2]));
                    let c = filtered(s[1]);
                    vec![s[0].add(constant(1)), s[1].add(c), before.unwrap_or_else(|| product(x[2])).add(s[2])]
                };
                let start =
                    x[2].sum().mul(x[2].number(0.0)).broadcast_to([inputs[2].shape()[0], inputs[2].shape()[1], 3]);
                let r = while_loop(&[constant(0), x[0], start], |s| s[0].lt(constant(2)), body);
                vec![r[1], r[2]]
            })
            .expect("it runs");
        }
    }
}

/// Windows whose stride exceeds the extent of any image: products of extents overflow a machine
/// word.
#[test]
fn windows_that_reach_far() {
    for far in [1usize << 21, 1 << 22, 1 << 31, 1 << 40] {
        for dilation in [far, 2 * far] {
            let inputs = [numbers(&[1, 1, 1, 1, 1], DType::F64), numbers(&[8, 1, 2, 2, 2], DType::F64)];
            let options = ConvOptions::<3>::new().padding(far).dilation(dilation).stride(far);
            check(&inputs, |x| with_gradients(x[0].conv(x[1], &options), x)).expect("it runs");
        }
    }
}

/// A tensor without elements may have any offset.
#[test]
fn flipped_tensors_without_elements() {
    let inputs = [numbers(&[0, 8, 5], DType::F64), numbers(&[8, 8, 3], DType::F64)];
    check(&inputs, |x| {
        let y = x[0].flip([2]);
        vec![
            y.conv(x[1], &ConvOptions::<1>::new()),
            y.max_pool(&PoolOptions::new([2])),
            y.softmax(1),
            y.cumsum(1),
            y.exp(),
        ]
    })
    .expect("it runs");
}

/// Permutations in the graph are independent of the layouts in the plan: optimizers still update
/// variables in place.
#[test]
fn permuted_tensors_are_in_row_major_order() {
    let w = anabranch_dsl::AnyVar::new("w", numbers(&[3, 4, 50], DType::F64));
    let inputs = [numbers(&[3, 50, 4], DType::F64)];
    let f = |x: &[AnyValue]| {
        let r = trace::read_var(&w);
        let loss = r.permute([0, 2, 1]).cumsum(1).mul(x[0]).sum();
        let g = derivatives::vjp(&[(loss, loss.number(1.0))], &[r])[0];
        trace::assign_var(&w, r.sub(g * 0.1));
        vec![loss]
    };
    let graph = traced(&inputs, f).graph;
    let plan = Program::new(graph).unwrap_or_else(|e| panic!("{e}")).explain();
    assert!(plan.contains("in place") && !plan.contains("reorder"), "{plan}");
}

/// One thread and several threads compute bitwise identical results, both where images are divided
/// and where images share a chunk.
#[test]
fn threads_change_nothing() {
    for (x, w) in [([1, 8, 60, 50], [16, 8, 3, 3]), ([33, 8, 5, 4], [24, 8, 3, 3]), ([2, 8, 1, 4000], [9, 8, 1, 7])] {
        let inputs = [numbers(&x, DType::F32), numbers(&w, DType::F32)];
        let graph = traced(&inputs, |x| {
            let y = x[0].conv(x[1], &ConvOptions::<2>::new());
            let pooled = y.max_pool(&PoolOptions::new(1).stride(2));
            [with_gradients(y, x), with_gradients(pooled, x)].concat()
        });
        check_threads(&Program::new(graph.graph).unwrap_or_else(|e| panic!("{e}")), &inputs);
    }
}
