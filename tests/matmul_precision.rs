//! Sessions and functions whose matmuls of `f32` may round their operands.

use anabranch::nn::{Init, Linear, Lstm};
use anabranch::optim::{Adam, Optimizer};
use anabranch::prelude::*;
use anabranch::{DType, MatmulPrecision, SessionBuilder, TensorType, bf16, losses};

/// Returns the settings of a session whose matmuls are rounded on every processor.
fn rounding() -> SessionBuilder {
    Session::builder().matmul_precision(MatmulPrecision::Bf16).emulated_tiles(true)
}

fn numbers(shape: [usize; 2], seed: usize) -> Array<f32> {
    let number = |i: usize| ((i + seed) * 7919 % 1009) as f32 / 500.0 - 1.0;
    Array::new(shape, (0..shape[0] * shape[1]).map(number).collect())
}

fn rounded(x: &Array<f32>) -> Array<f32> {
    let numbers = x.as_slice().iter().map(|&x| bf16::from_f32(x).to_f32());
    Array::new(x.shape(), numbers.collect::<Vec<_>>())
}

#[track_caller]
fn assert_close(a: &Array<f32>, b: &Array<f32>, tolerance: f32) {
    assert_eq!(a.shape(), b.shape());
    let largest = b.as_slice().iter().fold(0.0f32, |most, x| most.max(x.abs()));
    for (a, b) in a.as_slice().iter().zip(b.as_slice()) {
        assert!((a - b).abs() <= tolerance * largest, "{a} is not {b}");
    }
}

fn product(x: Tensor, w: Tensor) -> Tensor {
    x.matmul(w)
}

#[test]
fn a_session_or_a_function_says_whether_operands_are_rounded() {
    let (x, w) = (numbers([20, 40], 0), numbers([40, 30], 1));
    let full = Session::new().unwrap().function(product).unwrap();
    let [expected, exact] = [full.call((&rounded(&x), &rounded(&w))), full.call((&x, &w))].map(Result::unwrap);
    let types = [TensorType::new(DType::F32, [20, 40]), TensorType::new(DType::F32, [40, 30])];
    let session = rounding().build().unwrap();
    let of_session = session.function(product).unwrap();
    assert!(of_session.explain(&types).unwrap().contains("matmul of bf16"));
    assert_close(&of_session.call((&x, &w)).unwrap(), &expected, 1e-6);
    // A function has its own setting.
    let own = session.function(product).unwrap().matmul_precision(MatmulPrecision::Full);
    assert_eq!(own.call((&x, &w)).unwrap(), exact);
    let other = rounding().matmul_precision(MatmulPrecision::Full).build().unwrap();
    let own = other.function(product).unwrap();
    assert_eq!(own.call((&x, &w)).unwrap(), exact);
    assert_close(&own.matmul_precision(MatmulPrecision::Bf16).call((&x, &w)).unwrap(), &expected, 1e-6);
    // The largest numbers round to infinity, so a checked function does not round.
    let large = Array::new([20, 40], vec![f32::MAX; 800]);
    let zeros = Array::new([40, 30], vec![0.0f32; 1200]);
    let unchecked = session.function(product).unwrap();
    assert!(unchecked.call((&large, &zeros)).unwrap().as_slice()[0].is_nan());
    let checked = session.function(product).unwrap().check_finite(true);
    assert_eq!(checked.call((&large, &zeros)).unwrap(), Array::new([20, 30], vec![0.0; 600]));
    // The interpreter defines what is computed in full precision.
    let interpreted = rounding().interpreted(true).build().unwrap().function(product).unwrap();
    assert_close(&interpreted.call((&x, &w)).unwrap(), &exact, 1e-6);
}

#[test]
fn matmuls_of_16_bit_tensors_are_rounded_once_as_always() {
    let half = |x: Tensor, w: Tensor| x.cast::<bf16>().matmul(w.cast::<bf16>()).cast::<f32>();
    let (x, w) = (numbers([20, 40], 2), numbers([40, 30], 3));
    let types = [TensorType::new(DType::F32, [20, 40]), TensorType::new(DType::F32, [40, 30])];
    let session = rounding().build().unwrap();
    let fast = session.function(half).unwrap();
    assert!(fast.explain(&types).unwrap().contains("of bf16"));
    let expected = Session::new().unwrap().function(half).unwrap().call((&x, &w)).unwrap();
    assert_close(&fast.call((&x, &w)).unwrap(), &expected, 1.0 / 256.0);
}

/// Computes the loss of a recurrent classifier.
#[graph]
fn loss(lstm: &Lstm, last: &Linear, x: Tensor, labels: Tensor<i64>) -> Tensor {
    let mut state = lstm.zero_state(16);
    for step in x {
        let (_, next) = lstm.step(step, state);
        state = next;
    }
    losses::cross_entropy(last.forward(state.0), labels)
}

/// Trains the classifier, and returns the losses of its steps.
fn losses_of(builder: SessionBuilder) -> Vec<f32> {
    let session = builder.build().unwrap();
    let init = Init::new(7);
    let (lstm, last) = (Lstm::new(&init, 20, 24), Linear::new(&init, 24, 18));
    let optimizer = Adam::new(0.01);
    let step = session.function(|x: Tensor, labels: Tensor<i64>| {
        let loss = loss(&lstm, &last, x.reshape([6, 16, 20]), labels);
        optimizer.minimize(loss, &(&lstm, &last));
        loss
    });
    let (step, labels) = (step.unwrap(), (0..16).collect::<Vec<i64>>());
    (0..12).map(|_| step.call((&numbers([96, 20], 4), &labels)).unwrap().as_slice()[0]).collect()
}

#[test]
fn training_goes_on_as_in_full_precision() {
    let full = losses_of(Session::builder());
    let fast = losses_of(rounding());
    assert_ne!(full, fast, "products are rounded");
    assert!(full[11] < 0.8 * full[0], "{full:?}");
    for (a, b) in fast.iter().zip(&full) {
        assert!((a - b).abs() < 0.02 * b, "{fast:?} is not {full:?}");
    }
}
