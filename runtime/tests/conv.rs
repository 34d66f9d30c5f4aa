//! Convolution and pooling kernels against the interpreter, in shapes that reach every code path of
//! the kernels.

use crate::support::{check, check_f32, check_threads, numbers, pooled, traced};
use anabranch_dsl::ops::{ConvOptions, PoolOptions};
use anabranch_dsl::{AnyValue, DType, HostTensor, derivatives};
use anabranch_runtime::Program;

/// Returns a convolution and its gradients, for a loss that depends differently on each element.
fn all<const D: usize>(x: AnyValue, w: AnyValue, options: ConvOptions<D>) -> Vec<AnyValue> {
    let y = x.conv(w, &options);
    let loss = y.mul(y).mul(y + 1.0).sum();
    [vec![y], derivatives::vjp(&[(loss, loss.number(1.0))], &[x, w])].concat()
}

#[track_caller]
fn conv<const D: usize>(x: &[usize], w: &[usize], options: ConvOptions<D>) {
    let inputs = [numbers(x, DType::F64), numbers(w, DType::F64)];
    check(&inputs, |x| all(x[0], x[1], options)).expect("it runs");
    let inputs = [numbers(x, DType::F32), numbers(w, DType::F32)];
    check_f32(&inputs, 1e-5, |x| all(x[0], x[1], options));
}

#[test]
fn panels_of_every_width() {
    // Extents that fill one, two, three, four and more vectors of each width, and extents that do
    // not.
    for extent in [3, 6, 10, 18, 34, 50, 66, 67, 100] {
        conv(&[1, 3, extent], &[9, 3, 3], ConvOptions::<1>::new().padding(1));
    }
}

#[test]
fn rows_of_every_number() {
    for filters in 1..=13 {
        conv(&[2, 5, 4, 6], &[filters, 5, 3, 2], ConvOptions::<2>::new());
    }
}

#[test]
fn windows_deeper_than_a_panel() {
    conv(&[1, 40, 5, 5], &[5, 40, 3, 3], ConvOptions::<2>::new().padding(1));
    conv(&[1, 2, 20, 19], &[4, 2, 18, 17], ConvOptions::<2>::new());
    conv(&[1, 300, 4], &[3, 300, 1], ConvOptions::<1>::new());
}

#[test]
fn small_images_share_panels() {
    conv(&[19, 3, 3, 3], &[4, 3, 3, 3], ConvOptions::<2>::new().padding(1));
    conv(&[100, 2, 2, 1], &[3, 2, 1, 1], ConvOptions::<2>::new());
}

#[test]
fn strides_and_dilation_in_every_combination() {
    for stride in [[1, 1], [2, 1], [1, 3], [2, 2], [3, 4]] {
        for dilation in [[1, 1], [2, 1], [1, 3]] {
            for padding in [[(0, 0), (0, 0)], [(1, 2), (3, 0)], [(2, 2), (2, 2)]] {
                let options = ConvOptions::new().stride(stride).dilation(dilation).padding_sides(padding);
                conv(&[1, 2, 7, 8], &[3, 2, 3, 2], options);
            }
        }
    }
}

#[test]
fn groups_and_single_channels() {
    for (channels, filters, groups) in [(4, 6, 2), (6, 6, 6), (3, 6, 3), (3, 9, 3), (8, 4, 4)] {
        for stride in [1, 2] {
            let options = ConvOptions::<2>::new().groups(groups).padding(1).stride(stride);
            conv(&[2, channels, 5, 40], &[filters, channels / groups, 3, 3], options);
        }
    }
}

#[test]
fn three_axes() {
    let options = ConvOptions::<3>::new().padding([1, 0, 2]).stride([1, 2, 1]).dilation([1, 1, 2]);
    conv(&[2, 3, 4, 5, 6], &[4, 3, 3, 2, 3], options);
}

#[test]
fn large_enough_for_several_threads() {
    conv(&[4, 4, 12, 12], &[16, 4, 3, 3], ConvOptions::<2>::new().padding(1));
    conv(&[12, 4, 8, 8], &[16, 4, 5, 5], ConvOptions::<2>::new().padding(2).stride(2));
    conv(&[1, 4, 32, 32], &[8, 4, 3, 3], ConvOptions::<2>::new().same());
}

#[test]
fn operands_of_any_layout() {
    let inputs = [numbers(&[2, 3, 6, 5], DType::F32), numbers(&[4, 3, 2, 3], DType::F32)];
    check(&inputs, |x| {
        let (image, filters) = (x[0].permute([0, 1, 3, 2]), x[1].flip([2, 3]));
        all(image, filters, ConvOptions::<2>::new())
    })
    .expect("it runs");
}

#[test]
fn infinite_numbers_stay_where_windows_see_them() {
    let mut data = vec![1.0f32; 40];
    data[20] = f32::INFINITY;
    let inputs = [HostTensor::new([1, 1, 40], data), numbers(&[1, 1, 3], DType::F32)];
    let y = &check(&inputs, |x| vec![x[0].conv(x[1], &ConvOptions::<1>::new().padding(1))]).expect("it runs")[0];
    let finite = y.data::<f32>().iter().filter(|y| y.is_finite()).count();
    assert_eq!(finite, 37);
}

#[test]
fn second_gradients() {
    let inputs = [numbers(&[2, 4, 5, 6], DType::F64), numbers(&[4, 2, 3, 2], DType::F64)];
    check(&inputs, |x| {
        let options = ConvOptions::<2>::new().groups(2).stride([2, 1]).padding(1);
        let first = all(x[0], x[1], options);
        let slope = first[1].mul(first[1]).sum().add(first[2].mul(first[2]).sum());
        derivatives::vjp(&[(slope, slope.number(1.0))], x)
    })
    .expect("it runs");
}

/// One thread and several threads compute bitwise identical results.
#[test]
fn threads_change_nothing() {
    let inputs = [numbers(&[9, 8, 20, 20], DType::F32), numbers(&[16, 8, 3, 3], DType::F32)];
    let graph = traced(&inputs, |x| {
        let mut results = all(x[0], x[1], ConvOptions::<2>::new().padding(1));
        let pooled = results[0].max_pool(&PoolOptions::new(3).stride(2)).sum();
        results.extend(derivatives::vjp(&[(pooled, pooled.number(1.0))], &[x[0]]));
        results
    });
    let program = Program::new(graph.graph).unwrap_or_else(|e| panic!("{e}"));
    check_threads(&program, &inputs);
}

#[test]
fn pooling_of_every_shape() {
    for (window, stride, padding) in [(1, 1, 0), (2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 3, 1), (4, 4, 2)] {
        for (shape, dtype) in [([3, 1, 7, 9], DType::F32), ([1, 1, 5, 70], DType::F64)] {
            let options = PoolOptions::new(window).stride(stride).padding(padding);
            check(&[numbers(&shape, dtype)], |x| pooled(x[0], &options)).expect("it runs");
        }
    }
    let options = PoolOptions::new([2, 3, 2]).stride(1);
    check(&[numbers(&[2, 4, 5, 6], DType::F32)], |x| pooled(x[0], &options)).expect("it runs");
    let options = PoolOptions::new([3]).stride(2).padding_sides([(2, 1)]);
    check(&[numbers(&[2, 30], DType::F32)], |x| pooled(x[0], &options)).expect("it runs");
}

/// Planes that are divided among several threads.
#[test]
fn pooling_of_many_planes() {
    let options = PoolOptions::new(2);
    check(&[numbers(&[9, 8, 16, 16], DType::F32)], |x| vec![x[0].max_pool(&options), x[0].avg_pool(&options)])
        .expect("it runs");
}

/// Equal maxima and NaNs in all positions.
#[test]
fn the_place_of_a_maximum_is_that_of_the_reference() {
    let x: Vec<f32> = (0..600)
        .map(|i| if i % 17 == 5 { f32::NAN } else { [-0.0, 0.0, 1.0, f32::NEG_INFINITY][i * 7 % 11 % 4] })
        .collect();
    let inputs =
        [HostTensor::new([2, 300], x.clone()), HostTensor::new([3, 10, 20], x), numbers(&[3, 10, 20], DType::F32)];
    check(&inputs, |x| {
        let (row, plane) = (PoolOptions::new([4]).stride(3).padding(2), PoolOptions::new(3).stride(2).padding(1));
        let (a, b) = (x[0].max_pool(&row), x[1].max_pool(&plane));
        let back = derivatives::vjp(&[(a, a.number(1.0).broadcast_to(a.shape()))], &[x[0]]);
        let planes = derivatives::vjp(&[(b, x[2].max_pool(&plane))], &[x[1]]);
        [vec![a, b], back, planes].concat()
    })
    .expect("it runs");
}
