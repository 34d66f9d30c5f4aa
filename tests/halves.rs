//! Models with 16-bit floats: control flow over them, layers applied to them, and training with
//! `f32` parameters.
#![deny(warnings)]

use crate::support::{check, error_of};
use anabranch::dsl::ops::{ConvOptions, PoolOptions};
use anabranch::nn::{BatchNorm, Conv2d, Init, LayerNorm, Linear, Lstm, Mode, MultiHeadAttention};
use anabranch::optim::{Adam, Optimizer};
use anabranch::prelude::*;
use anabranch::random::Key;

/// Computes square roots by Newton's method until a step no longer changes the `bf16` value.
#[graph]
fn root(a: Tensor<bf16>) -> (Tensor<bf16>, Tensor<i32>) {
    let mut x = a;
    let mut steps = scalar(0);
    loop {
        let next = (x + a / x) * bf16::from_f32(0.5);
        if next >= x {
            break;
        }
        x = next;
        steps += 1;
    }
    (x, steps)
}

#[test]
fn a_loop_ends_where_a_bf16_stays() {
    // From 1.5 to 1.421875, since 2 / 1.5 is 1.3359375 and the sum is between two values; from
    // there to 1.4140625.
    check(root, bf16::from_f32(2.0), &[1.414_062_5, 3.0]);
}

#[graph]
fn branches(x: Tensor<f16>, n: Tensor<i32>) -> Tensor<f16> {
    let mut y = x;
    let mut i = scalar(0);
    while i < n {
        if y > f16::from_f32(1.0) {
            y -= x;
        } else {
            y += f16::from_f32(0.25) * y;
        }
        i += 1;
    }
    -y
}

#[test]
fn branches_compare_f16() {
    let mut y = 0.75f32;
    for _ in 0..7 {
        let f16 = |x: f32| f16::from_f32(x).to_f32();
        y = if y > 1.0 { f16(y - 0.75) } else { f16(y + f16(0.25 * y)) };
    }
    check(branches, (f16::from_f32(0.75), 7), &[f64::from(-y)]);
}

/// The gradient of `x^(2^n)` through casts to a type and back, which is exact for powers of two.
#[graph]
fn slope_through_casts(x: Tensor, n: Tensor<i32>) -> Tensor {
    let mut y = x.cast::<bf16>();
    let mut i = scalar(0);
    while i < n {
        y *= y;
        i += 1;
    }
    gradients(y.cast::<f32>(), x)
}

#[test]
fn gradients_go_through_casts() {
    check(slope_through_casts, (2.0f32, 3), &[8.0 * 128.0]);
    check(slope_through_casts, (0.5f32, 0), &[1.0]);
}

#[graph]
fn list_of_rows(x: Tensor<bf16>) -> (Tensor<bf16>, Tensor<bf16>) {
    let mut sums = List::new([2]);
    for row in x {
        sums.push(row.sum() * row);
    }
    let y = sums.stack();
    (y, gradients(y.cast::<f32>().sum(), x))
}

#[test]
fn lists_hold_bf16() {
    let x = Array::new([2, 2], [1.0, 2.0, 0.5, -1.0].map(bf16::from_f32).to_vec());
    check(list_of_rows, &x, &[3.0, 6.0, -0.25, 0.5, 6.0, 6.0, -1.0, -1.0]);
}

#[graph]
fn asserts_and_prints(x: Tensor<f16>) -> Tensor<f16> {
    println!("x is {x} or {x:.4}");
    assert!(x < f16::from_f32(1.0), "{x} is too large");
    x
}

#[test]
fn messages_show_the_shortest_number() {
    check(asserts_and_prints, f16::from_f32(0.1), &[f16::from_f32(0.1).into()]);
    let error = error_of(asserts_and_prints, f16::from_f32(1.1));
    assert!(error.message.contains("1.1 is too large"), "{error}");
}

#[test]
fn operators_take_host_numbers_of_the_type() {
    let half = f16::from_f32(0.5);
    let y = eval(|| half * (tensor([1.0, 3.0].map(f16::from_f32)) + half) - half).unwrap();
    assert_eq!(y.as_slice(), [0.25, 1.25].map(f16::from_f32));
    assert_eq!(y.to_string(), "[0.25, 1.25]");
}

/// Layers of all kinds, from an image in `bf16` to a loss in `f32`.
struct Layers {
    conv: Conv2d,
    batch_norm: BatchNorm,
    attention: MultiHeadAttention,
    layer_norm: LayerNorm,
    lstm: Lstm,
    out: Linear,
}

fn layers<T: anabranch::Float>(l: &Layers, x: Tensor<T>) -> Tensor {
    let y = l.batch_norm.forward(l.conv.forward(x).tanh(), Mode::Training);
    let y = y.avg_pool(PoolOptions::<2>::new(2)).reshape([2, 4, 9]).transpose(1, 2).pad(2, 0, 4, T::from_f64(0.0));
    let y = l.layer_norm.forward(l.attention.forward(y, AttentionMask::Causal));
    let (y, _) = l.lstm.step(y.mean_axis(1), l.lstm.zero_state(2));
    l.out.forward(y).cast::<f32>().square().mean()
}

#[test]
fn layers_take_every_float_type() {
    let init = Init::new(3);
    let l = Layers {
        conv: Conv2d::new(&init, 1, 4, 3, ConvOptions::new().padding(1)),
        batch_norm: BatchNorm::new(4),
        attention: MultiHeadAttention::new(&init, 8, 2),
        layer_norm: LayerNorm::new(8),
        lstm: Lstm::new(&init, 8, 6),
        out: Linear::new(&init, 6, 2),
    };
    let x = || Key::new(1).uniform::<bf16>([2, 1, 6, 6]).cast::<f32>();
    let slope = |loss: Tensor| (loss, gradients(loss, l.conv.weight.get()));
    let (wide, wide_slope) = eval(|| slope(layers(&l, x()))).unwrap();
    let (narrow, narrow_slope) = eval(|| slope(layers(&l, x().cast::<bf16>()))).unwrap();
    let (half, half_slope) = eval(|| slope(layers(&l, x().cast::<f16>()))).unwrap();
    let exact = eval(|| layers(&l, x().cast::<f64>())).unwrap();
    assert!((wide.item() - exact.item()).abs() < 1e-5 * wide.item());
    assert!((narrow.item() - wide.item()).abs() < 0.05 * wide.item(), "{narrow} {wide}");
    assert!((half.item() - wide.item()).abs() < 0.01 * wide.item(), "{half} {wide}");
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
    let length = norm(&mut wide_slope.as_slice().iter().copied());
    let apart = |a: &Array<f32>| norm(&mut a.as_slice().iter().zip(wide_slope.as_slice()).map(|(a, b)| a - b)) / length;
    let (narrow, half) = (apart(&narrow_slope), apart(&half_slope));
    assert!(narrow < 0.2 && half < 0.05, "{narrow} and {half}");
}

/// Two classes of points: inside and outside a ring.
#[graph]
fn train_step(layers: &[Linear; 2], adam: &Adam, x: Tensor, labels: Tensor<i32>) -> (Tensor, Tensor) {
    let h = layers[0].forward(x.cast::<bf16>()).tanh();
    let scores = layers[1].forward(h);
    let loss = scores.cast::<f32>().cross_entropy(labels).mean();
    adam.minimize(loss, layers);
    (loss, (scores.argmax(1) == labels).cast::<f32>().mean())
}

#[test]
fn training_with_bf16_activations_and_f32_parameters_converges() {
    let init = Init::new(2);
    let layers = [Linear::new(&init, 2, 32), Linear::new(&init, 32, 2)];
    let adam = Adam::new(0.02);
    let session = Session::new().unwrap();
    let step = session.function(|x, labels| train_step(&layers, &adam, x, labels)).unwrap();
    let points: Vec<[f32; 2]> = (0..64)
        .map(|i| (i as f32 * 2.399_963, (i as f32 / 64.0).sqrt() * 2.0))
        .map(|(a, r)| [r * a.cos(), r * a.sin()])
        .collect();
    let labels: Vec<i32> = points.iter().map(|[x, y]| i32::from(x * x + y * y > 2.0)).collect();
    let (first, _) = step.call((&points, &labels)).unwrap();
    let mut last = (first.clone(), first.clone());
    for _ in 0..200 {
        last = step.call((&points, &labels)).unwrap();
    }
    assert!(first.item() > 0.6 && last.0.item() < 0.1, "the loss goes from {first} to {}", last.0);
    assert!(last.1.item() > 0.95, "the accuracy is {}", last.1);
}
