//! 16-bit floats on a GPU: their conversions bit by bit, and a layer in mixed precision.

use super::support::gpus::{adapter, numbers};
use anabranch::dsl::halves::Half;
use anabranch::prelude::*;
use anabranch::{Array, Float, GpuAdapter, Session, Timeline};

type Outcome = anabranch::Result<()>;

/// Returns a session that computes on a GPU, if this machine has one that stores 16-bit floats.
fn session() -> anabranch::Result<Option<Session>> {
    let Some(adapter) = adapter().filter(GpuAdapter::has_halves) else {
        assert!(std::env::var_os("ANABRANCH_GPU").is_none(), "no adapter stores 16-bit floats");
        return Ok(None);
    };
    Session::builder().gpu(&adapter).device("/gpu:0").build().map(Some)
}

/// Asserts that a call ran nothing on a CPU.
#[track_caller]
fn assert_only_on_a_gpu(timeline: &Timeline) {
    assert!(timeline.spans.iter().all(|span| span.device != "/cpu:0"), "{timeline:?}");
}

/// Returns the numbers at which the rounding to a type changes, their neighbors, and others.
fn around_halves<T: Half>(all: &[T]) -> Vec<f32> {
    let finite = all.iter().map(|x| x.widened()).filter(|x| x.is_finite());
    let next = |x: f32, bits: i32| f32::from_bits(x.to_bits().wrapping_add_signed(bits));
    // Those to which the numbers with more bits are rounded differ in the last bits of an `f32`.
    let near = |x: f32| {
        [0, 1, -1, 1 << 12, (1 << 12) + 1, (1 << 12) - 1, 1 << 15, (1 << 15) + 1, (1 << 15) - 1].map(|d| next(x, d))
    };
    finite.flat_map(near).chain([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 1e-45, 0.0, -0.0]).collect()
}

fn check_conversions<T: Half + Float>(session: &Session, all: Vec<T>, bits: fn(T) -> u16) -> Outcome {
    let widen = session.function(|x: Tensor<T>| x.cast::<f32>())?;
    let narrow = session.function(|x: Tensor| x.cast::<T>())?;
    let (wide, profile) = widen.profile(Array::new([all.len()], all.clone()))?;
    assert_only_on_a_gpu(&profile);
    for (x, &found) in all.iter().zip(wide.to_vec().iter()) {
        let expected = x.widened();
        assert!(
            found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
            "{found:e}, not {expected:e}"
        );
    }
    let numbers = around_halves(&all);
    let (narrowed, profile) = narrow.profile(Array::new([numbers.len()], numbers.clone()))?;
    assert_only_on_a_gpu(&profile);
    for (&x, &found) in numbers.iter().zip(narrowed.to_vec().iter()) {
        let expected = T::rounded(x);
        assert!(bits(found) == bits(expected) || x.is_nan() && found.widened().is_nan(), "{x:e}");
    }
    Ok(())
}

#[test]
fn all_halves_are_converted_there_as_on_a_cpu() -> Outcome {
    let Some(session) = session()? else { return Ok(()) };
    check_conversions(&session, (0..=u16::MAX).map(f16::from_bits).collect(), f16::to_bits)?;
    check_conversions(&session, (0..=u16::MAX).map(bf16::from_bits).collect(), bf16::to_bits)
}

/// A layer that computes with 16-bit floats, and its gradients by parameters in `f32`.
fn layer<T: Half + Float>(x: Tensor, w: Tensor) -> (Tensor<T>, Tensor, Tensor<T>, Tensor<T>) {
    let x = x.cast::<T>();
    let y = x.matmul(w.cast()).tanh();
    let first_rows = concat(&[y.slice(0, 0, 1), y.flip(0)], 0);
    let of_w = gradients(y.cast::<f32>().square().mean(), w);
    (y, of_w, first_rows, y.take(tensor([2, 0, 1]), 1))
}

fn check_layer<T: Half + Float>(there: &Session) -> Outcome {
    let here = Session::new()?;
    let (f, expected) = (there.function(layer::<T>)?, here.function(layer::<T>)?);
    let as_f32 =
        |x: &Array<T>| Array::new(x.shape().to_vec(), x.to_vec().iter().map(|x| x.widened()).collect::<Vec<f32>>());
    // An odd number of elements does not end with a word.
    for [m, k, n] in [[5, 7, 3], [33, 40, 65]] {
        let (x, w) = (Array::new([m, k], numbers(m * k)), Array::new([k, n], numbers(k * n)));
        let ((y, of_w, rows, columns), profile) = f.profile((&x, &w))?;
        let (expected_y, expected_w, expected_rows, expected_columns) = expected.call((&x, &w))?;
        assert_only_on_a_gpu(&profile);
        let halves = [(y, expected_y), (rows, expected_rows), (columns, expected_columns)];
        let all = halves.into_iter().map(|(a, b)| (as_f32(&a), as_f32(&b))).chain([(of_w, expected_w)]);
        for (found, expected) in all {
            assert_eq!(found.shape(), expected.shape());
            for (a, b) in found.iter().zip(expected.iter()) {
                // A sum in another order may be rounded to the next `bf16`, up to 2^-7 of it away.
                assert!((a - b).abs() <= b.abs() / 128.0 + 1e-3, "{a}, not {b}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_layer_in_mixed_precision_runs_there() -> Outcome {
    let Some(session) = session()? else { return Ok(()) };
    check_layer::<f16>(&session)?;
    check_layer::<bf16>(&session)
}

/// Multiplies by a factor several times.
#[graph]
fn raised(x: Tensor<f16>, n: Tensor<i32>, factor: Tensor<f16>) -> Tensor<f16> {
    let (mut y, mut i) = (x, scalar(0));
    while i < n {
        y *= factor;
        i += 1;
    }
    y
}

#[test]
fn variables_and_loops_of_halves_stay_there() -> Outcome {
    let Some(session) = session()? else { return Ok(()) };
    let w = on("/gpu:0", || Var::new("w", vec![f16::from_f32(0.5); 3]));
    let halve = session.function(|n: Tensor<i32>| w.set(raised(w.get(), n, full([], f16::from_f32(0.5)))))?;
    halve.call(3)?;
    halve.call(1)?;
    assert_eq!(session.get(&w)?.to_vec(), vec![f16::from_f32(0.03125); 3]);
    // Gradients of a loop save values of the type.
    let power = |x: Tensor<f16>, n: Tensor<i32>| gradients(raised(x, n, x).cast::<f32>().sum(), x);
    let x = Array::new([3], [0.5, 1.0, 2.0].map(f16::from_f32).to_vec());
    assert_eq!(session.function(power)?.call((&x, 3))?, Session::new()?.function(power)?.call((&x, 3))?);
    Ok(())
}

/// Multiplies in one of two orders, or takes what the caller gave.
#[graph]
fn ordered(x: Tensor<f16>, w: Tensor<f16>, n: Tensor) -> (Tensor<f16>, Tensor<f16>) {
    let sum = x.cast::<f32>().sum();
    let y = if sum > n { x.matmul(w) } else { w.matmul(x) };
    (y, if sum > n { x } else { x.matmul(x) })
}

#[test]
fn branches_recorded_ahead_have_halves() -> Outcome {
    let Some(session) = session()? else { return Ok(()) };
    let (there, here) = (session.function(ordered)?, Session::new()?.function(ordered)?);
    // Numbers whose products and sums are exact.
    let matrix = |step: usize| {
        let all = (0..200 * 200).map(|i| f16::from_f32((i * step % 5) as f32 * 0.25 - 0.5));
        Array::new([200, 200], all.collect::<Vec<_>>())
    };
    for n in [-1e6, 1e6] {
        let arguments = (&matrix(7), &matrix(3), n);
        assert_eq!(there.call(arguments)?, here.call(arguments)?);
    }
    Ok(())
}
