//! Results: memory that is returned to the caller, recycled, or provided by the caller.

use anabranch_dsl::prelude::*;
use anabranch_dsl::{AnyValue, Array, HostTensor, trace};
use anabranch_runtime::{Program, Session};

/// The number of elements of a tensor whose memory is pooled when it is dropped.
const LARGE: usize = 1 << 16;

fn numbers(n: usize) -> Array<f32> {
    Array::new([n], (0..n).map(|i| (i % 101) as f32).collect())
}

fn address(x: &Array<f32>) -> *const f32 {
    x.as_slice().as_ptr()
}

#[test]
fn memory_of_a_dropped_result_is_that_of_a_later_one() {
    let session = Session::new().unwrap();
    let double = session.function(|x: Tensor| x * 2.0).unwrap();
    let more = session.function(|x: Tensor| x + 1.0).unwrap();
    let x = numbers(LARGE);
    let first = double.call(&x).unwrap();
    let second = double.call(&x).unwrap();
    assert_ne!(address(&first), address(&second), "both are alive");
    let at = address(&first);
    let copy = first.clone();
    drop(first);
    assert_ne!(address(&double.call(&x).unwrap()), at, "a handle is left");
    assert_eq!(copy.as_slice()[100], 200.0);
    drop((copy, second));
    // The functions of a session share the pool.
    let places = [more.call(&x).unwrap(), more.call(&x).unwrap(), more.call(&x).unwrap()];
    assert!(places.iter().any(|y| address(y) == at));
    assert!(places.iter().all(|y| y.as_slice()[100] == 101.0));
}

#[test]
fn a_result_in_the_place_of_an_earlier_one_takes_no_memory() {
    let session = Session::new().unwrap();
    let f = session.function(|x: Tensor| (x * 2.0, x.sum())).unwrap();
    let mut results = f.call(numbers(LARGE)).unwrap();
    let mut seen = Vec::new();
    for i in 0..6 {
        let x = Array::new([LARGE], vec![i as f32; LARGE]);
        f.call_into(&x, &mut results).unwrap();
        assert_eq!((results.0.as_slice()[7], results.1.item()), (2.0 * i as f32, (LARGE * i) as f32));
        if !seen.contains(&address(&results.0)) {
            seen.push(address(&results.0));
        }
    }
    assert_eq!(seen.len(), 2, "two pieces of memory take turns");
}

#[test]
fn a_shared_result_keeps_its_elements_when_another_one_comes_to_its_place() {
    let session = Session::new().unwrap();
    let f = session.function(|x: Tensor| x * 2.0).unwrap();
    let mut result = f.call([1.0, 2.0]).unwrap();
    let kept = result.clone();
    for x in [3.0, 5.0] {
        f.call_into([x, x], &mut result).unwrap();
        assert_eq!((kept.as_slice(), result.as_slice()), ([2.0, 4.0].as_slice(), [2.0 * x; 2].as_slice()));
    }
}

#[test]
fn a_result_of_another_shape_has_no_place() {
    let session = Session::new().unwrap();
    let f = session.function(|x: Tensor| x * 2.0).unwrap();
    let mut result = f.call([1.0, 2.0]).unwrap();
    let error = f.call_into([1.0, 2.0, 3.0], &mut result).unwrap_err();
    assert!(error.message.starts_with("`closure at "), "{}", error.message);
    assert!(error.message.ends_with("`: result 0 is f32[3], but `call_into` received f32[2]"), "{}", error.message);
    assert_eq!(result.as_slice(), [2.0, 4.0]);
    let several = session.function(|x: Tensor| vec![x, x + 1.0]).unwrap();
    let mut one = vec![result];
    let error = several.call_into([1.0, 2.0], &mut one).unwrap_err();
    assert!(error.message.ends_with("returns 2 tensors, but `call_into` received 1"), "{}", error.message);
}

#[test]
fn a_call_that_fails_leaves_the_place_of_its_results_as_it_was() {
    let session = Session::new().unwrap();
    let f = session
        .function(|x: Tensor<i32>, d: Tensor<i32>| {
            let y = x + 1;
            (y, y / d)
        })
        .unwrap();
    let mut results = f.call(([1, 2], [1, 1])).unwrap();
    assert!(f.call_into(([5, 6], [1, 0]), &mut results).unwrap_err().message.contains("by zero"));
    assert_eq!((results.0.as_slice(), results.1.as_slice()), ([2, 3].as_slice(), [2, 3].as_slice()));
    f.call_into(([5, 6], [2, 7]), &mut results).unwrap();
    assert_eq!((results.0.as_slice(), results.1.as_slice()), ([6, 7].as_slice(), [3, 1].as_slice()));
}

#[test]
fn results_that_are_inputs_variables_or_each_other() {
    let var = anabranch_dsl::AnyVar::new("w", HostTensor::new([3], vec![1.0f32, 2.0, 3.0]));
    let x = HostTensor::new([3], vec![10.0f32, 20.0, 30.0]);
    let types = [x.ty()];
    let traced = trace::trace("test", || {
        let x = trace::input(types[0].clone(), None);
        let w = trace::read_var(&var);
        let sum = w.add(x);
        trace::assign_var(&var, sum);
        let t: AnyValue = sum.mul(x);
        vec![x, w, sum, sum, t, t.slice(0, 1, 3), t.reshape([3, 1])]
    });
    let program = Program::new(traced.unwrap().graph).unwrap();
    let mut vars = vec![var.init().clone()];
    let mut outputs = Vec::new();
    for round in 0..3 {
        let w = vars[0].data::<f32>().to_vec();
        let sum: Vec<f32> = w.iter().zip(x.data::<f32>()).map(|(w, x)| w + x).collect();
        let t: Vec<f32> = sum.iter().zip(x.data::<f32>()).map(|(s, x)| s * x).collect();
        program.run_into(std::slice::from_ref(&x), &mut vars, &mut outputs).unwrap();
        let expected = [x.data(), &w[..], &sum[..], &sum[..], &t[..], &t[1..], &t[..]];
        for (i, (output, expected)) in outputs.iter().zip(expected).enumerate() {
            assert_eq!(output.data::<f32>(), expected, "output {i} of round {round}\n{}", program.explain());
        }
        assert_eq!((outputs.len(), vars[0].data::<f32>()), (7, &sum[..]));
    }
    assert_eq!(x.data::<f32>(), [10.0, 20.0, 30.0]);
}
