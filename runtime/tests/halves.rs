//! 16-bit floats through plans: the results of the interpreter are the bitwise reference, because
//! each operation rounds once.

use crate::support::traced;
use anabranch_dsl::equality::one_nan;
use anabranch_dsl::passes::Pipeline;
use anabranch_dsl::{AnyValue, DType, Graph, HostTensor, bf16, f16, interp, random, trace};
use anabranch_runtime::Program;

fn interpret(graph: &Graph, inputs: &[HostTensor]) -> Vec<HostTensor> {
    interp::run(graph, inputs, &mut vec![], interp::InterpOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs a function by the interpreter and by its plans. All outputs must be bitwise identical.
#[track_caller]
fn same_bits(inputs: &[HostTensor], f: impl FnOnce(&[AnyValue]) -> Vec<AnyValue>) -> Vec<HostTensor> {
    let graph = traced(inputs, f).graph;
    let expected = interpret(&graph, inputs);
    let mut optimized = graph.clone();
    Pipeline::standard().run(&mut optimized);
    let programs = [
        ("plan", Program::new(graph.clone())),
        ("plan, optimized", Program::new(optimized)),
        ("plan without fusion", Program::without_fusion(graph.clone())),
        ("plan with all off", Program::unoptimized(graph)),
    ];
    for (engine, program) in programs {
        let program = program.unwrap_or_else(|e| panic!("{e}"));
        let got = program.run(inputs, &mut vec![]).unwrap_or_else(|e| panic!("{e}"));
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got.ty(), expected.ty());
            let same = one_nan(got) == one_nan(expected);
            assert!(same, "{engine}, output {i}: {got} is not {expected}\n{}", program.explain());
        }
    }
    expected
}

fn all<T: anabranch_dsl::Element>(from_bits: fn(u16) -> T) -> HostTensor {
    HostTensor::new([1 << 16], (0..=u16::MAX).map(from_bits).collect())
}

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

fn all_of(dtype: DType) -> HostTensor {
    if dtype == DType::F16 { all(f16::from_bits) } else { all(bf16::from_bits) }
}

#[test]
fn every_value_is_cast_to_every_type() {
    for dtype in HALVES {
        let x = all_of(dtype);
        let to = || DType::PLAIN.into_iter().filter(|&to| to != dtype);
        let given = same_bits(std::slice::from_ref(&x), |x| to().map(|to| x[0].cast(to)).collect());
        assert_eq!(given.len(), 8);
        // A conversion to `f32` and back preserves the value.
        let back = same_bits(std::slice::from_ref(&x), |x| vec![x[0].cast(DType::F32).cast(dtype)]);
        assert_eq!(one_nan(&back[0]), one_nan(&x));
    }
}

/// Numbers halfway between two values, next to that, above the largest and below the smallest
/// value, from all types.
#[test]
fn casts_round_to_the_nearest_even_value() {
    let words: Vec<u32> = random::words([5, 6], 40_000).collect();
    let any = HostTensor::new([words.len()], words.iter().map(|&w| f32::from_bits(w)).collect());
    let middles: Vec<f32> = (0..=u16::MAX)
        .flat_map(|b| {
            let at = |x: u32| f32::from_bits(x);
            let (narrow, wide) = (f16::from_bits(b).to_f32().to_bits(), u32::from(b) << 16);
            [
                at(wide | 0x8000),
                at(wide | 0x7fff),
                at(wide | 0x8001),
                at(narrow | 0x1000),
                at(narrow | 0x0fff),
                at(narrow | 0x1001),
            ]
        })
        .collect();
    let middles = HostTensor::new([middles.len()], middles);
    // Multiples of a quarter of the smallest subnormal `f16`.
    let small = HostTensor::new([9000], (0..9000).map(|i| (i as f32 - 4500.0) * 2.0f32.powi(-26)).collect::<Vec<_>>());
    let wide = HostTensor::new([5], vec![1.0 + 2f64.powi(-11) + 2f64.powi(-40), 65519.999, 65520.0, 1e300, -1e-300]);
    let ints = HostTensor::new([4], vec![(1i64 << 60) + (1 << 52) + 1, -2049, i64::MAX, i64::MIN]);
    let given =
        same_bits(&[any, middles, small, wide, ints], |x| x.iter().flat_map(|x| HALVES.map(|to| x.cast(to))).collect());
    let f16s: Vec<f32> = given[6].data::<f16>().iter().map(|x| x.to_f32()).collect();
    assert_eq!(f16s, [1.0 + 2f32.powi(-10), 65504.0, f32::INFINITY, f32::INFINITY, 0.0]);
    assert_eq!(given[9].data::<bf16>()[0].to_f32(), 2f32.powi(60) + 2f32.powi(53));
}

fn numbers(dtype: DType, shape: &[usize], stream: u32) -> HostTensor {
    let n = shape.iter().product();
    let of = |w: u32| f64::from(random::unit_f32(w)) * 4.0 - 2.0;
    let x = HostTensor::new(shape, random::words([stream, 1], n).map(of).collect::<Vec<_>>());
    let graph = traced(std::slice::from_ref(&x), |x| vec![x[0].cast(dtype)]).graph;
    interpret(&graph, &[x]).remove(0)
}

/// A fused chain rounds after each operation.
#[test]
fn fused_chains_round_after_each_operation() {
    for dtype in HALVES {
        let inputs = [numbers(dtype, &[60, 70], 1), numbers(dtype, &[70], 2), numbers(dtype, &[60, 1], 3)];
        same_bits(&inputs, |x| {
            let y = x[0].mul(x[1]).add(x[2]).sub(x[0]).div(x[1].mul(x[1]) + 1.0);
            let z = y.gt(x[2]).select(y.abs().sqrt(), x[0].neg()).maximum(x[1]).floor() * 0.1 + y;
            vec![y, z, z.max_axis(1), y.min_keepdim(0), z.lt(y), z.permute([1, 0]).add(x[2].reshape([60]))]
        });
    }
}

/// A sum of numbers whose partial sums are indistinguishable as 16-bit floats.
#[test]
fn sums_and_products_add_up_in_f32() {
    for dtype in HALVES {
        let n = 3000;
        let ones = HostTensor::new([n], vec![1.0f32; n]);
        let given = same_bits(&[ones], |x| {
            let (row, column) = (x[0].cast(dtype).reshape([1, n]), x[0].cast(dtype).reshape([n, 1]));
            vec![row.sum(), row.matmul(column), row.mul(row).mean(), row.cumsum(1).slice(1, n - 1, n)]
        });
        let nearest = if dtype == DType::F16 { 3000.0 } else { 3008.0 };
        let values: Vec<Option<f64>> = given.iter().map(HostTensor::to_f64).collect();
        assert_eq!(values, [Some(nearest), Some(nearest), Some(1.0), Some(nearest)]);
    }
}

/// Operations that only move elements preserve their bits, including those of a signaling `NaN`.
#[test]
fn moves_keep_bits() {
    for dtype in HALVES {
        let x = all_of(dtype);
        let given = same_bits(&[x.clone(), HostTensor::scalar(true)], |x| {
            let y = x[0].reshape([256, 256]).permute([1, 0]).flip(0).flip(0).permute([1, 0]);
            let y = AnyValue::concat(&[y.slice(0, 0, 100), y.slice(0, 100, 256)], 0).reshape([1 << 16]);
            vec![x[1].select(y, x[0].flip(0))]
        });
        let raw = |t: &HostTensor| match dtype {
            DType::F16 => t.data::<f16>().iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            _ => t.data::<bf16>().iter().map(|x| x.to_bits()).collect(),
        };
        assert_eq!(raw(&given[0]), raw(&x));
    }
}

/// A loop with 16-bit loop variables, including scalars, in native code.
#[test]
fn loops_carry_16_bit_floats() {
    for dtype in HALVES {
        let inputs = [numbers(dtype, &[3, 4], 7), numbers(dtype, &[], 8), HostTensor::scalar(9)];
        same_bits(&inputs, |x| {
            let one = trace::constant(HostTensor::scalar(1));
            let r = crate::support::while_loop(
                &[x[0], x[1], trace::constant(HostTensor::scalar(0))],
                |s| s[2].lt(x[2]),
                |s| vec![s[0].mul(s[1]).add(x[0]), s[1] * 0.75 + 0.3, s[2].add(one)],
            );
            let scalar = crate::support::while_loop(
                &[x[1], trace::constant(HostTensor::scalar(0))],
                |s| s[1].lt(x[2]).and(s[0].gt(s[0].number(-100.0))),
                |s| vec![s[0].gt(x[1]).select(s[0] * 1.5, s[0] + 0.1), s[1].add(one)],
            );
            let loss = r[0].cast(DType::F32).sum();
            let slopes = anabranch_dsl::derivatives::vjp(&[(loss, loss.number(1.0))], &[x[0], x[1]]);
            [vec![r[0], r[1], scalar[0]], slopes].concat()
        });
    }
}

/// If each result is checked, errors name the operation that computed a value that is not finite.
#[test]
fn an_overflow_is_said_of_the_operation() {
    let session = anabranch_runtime::Session::new().expect("a session");
    let square = session.function(|x: anabranch_dsl::Tensor<f16>| x * x).expect("it can be traced").check_finite(true);
    let error = square.call(f16::from_f32(300.0)).expect_err("90,000 is no f16");
    assert!(error.message.contains("mul"), "{error}");
    assert_eq!(square.call(f16::from_f32(3.0)).expect("9 is one").item(), f16::from_f32(9.0));
}
