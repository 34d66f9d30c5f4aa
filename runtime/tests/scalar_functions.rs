//! Elementwise operations without attributes yield the bits of the interpreter in loops over
//! blocks: the order of primitives is part of a definition. `native.rs` compares native code.

use anabranch_dsl::equality::one_nan;
use anabranch_dsl::ir::Attrs;
use anabranch_dsl::ops::{self, Arity, Grad, InferCx, Prim, UnaryFunction};
use anabranch_dsl::scalars::Real;
use anabranch_dsl::{DType, Graph, HostTensor, Tensor, Type, Var, interp, trace};
use anabranch_runtime::{Program, Session};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::functions::REGISTERED;

/// Returns floats of all magnitudes, and those at which functions have limits.
fn floats() -> Vec<f64> {
    let near = (-400..400).map(|i| f64::from(i) * 0.37);
    let all = (-150..150).flat_map(|i| [2f64.powi(i) * 1.3, -(2f64.powi(i) * 1.7)]);
    let ends = [-746.5, -745.1, -104.2, -87.9, 88.8, 89.1, 709.8, 710.1, 1e6, 1.1e6, 1e9, 1.1e9, 1e300, 5e-324];
    let special = [0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    near.chain(all).chain(ends).chain(special).collect()
}

/// Returns numbers of a type, as many as there are `floats`.
fn numbers(dtype: DType) -> HostTensor {
    let floats = floats();
    let n = floats.len();
    let spread = |i: usize| (i as i64 - n as i64 / 2).wrapping_mul(0x9E37_79B9_7F4A_7C15u64.cast_signed()) >> (i % 64);
    match dtype {
        DType::F32 => HostTensor::new([n], floats.iter().map(|&x| x as f32).collect::<Vec<_>>()),
        DType::F64 => HostTensor::new([n], floats),
        DType::I32 => HostTensor::new([n], (0..n).map(|i| spread(i) as i32).collect::<Vec<_>>()),
        DType::I64 => HostTensor::new([n], (0..n).map(spread).collect::<Vec<_>>()),
        DType::U32 => HostTensor::new([n], (0..n).map(|i| spread(i) as u32).collect::<Vec<_>>()),
        DType::U8 => HostTensor::new([n], (0..n).map(|i| spread(i) as u8).collect::<Vec<_>>()),
        DType::Bool => HostTensor::new([n], (0..n).map(|i| spread(i) & 1 == 1).collect::<Vec<_>>()),
        other => panic!("no numbers of {other}"),
    }
}

/// Returns the same numbers in another order. None of them is an integer 0, by which nothing is
/// divided.
fn partners(x: &HostTensor) -> HostTensor {
    macro_rules! permuted {
        ($($t:ty: $nonzero:expr;)*) => {
            $(if x.dtype() == <$t as anabranch_dsl::Element>::DTYPE {
                let (n, data) = (x.len(), x.data::<$t>());
                // The step visits all numbers.
                assert_ne!(n % 31, 0);
                let all = (0..n).map(|i| data[i * 31 % n]).map($nonzero);
                return HostTensor::new([n], all.collect::<Vec<$t>>());
            })*
        };
    }
    permuted! {
        f32: |x| x; f64: |x| x; bool: |x| x;
        i32: |x| if x == 0 { 3 } else { x };
        i64: |x| if x == 0 { 3 } else { x };
        u32: |x| x.max(1);
        u8: |x| x.max(1);
    }
    panic!("no numbers of {}", x.dtype())
}

const TYPES: [DType; 7] = [DType::F32, DType::F64, DType::I32, DType::I64, DType::U32, DType::U8, DType::Bool];

/// Returns the elementwise operations with a recorded form, also registered ones, with the types of
/// their operands and of their result.
fn operations() -> Vec<(Prim, DType, DType)> {
    let attrs = Attrs::none();
    let all = ops::all().chain(*REGISTERED).flat_map(|op| TYPES.map(|dtype| (op, dtype)));
    let recorded = all.filter(|(op, dtype)| op.attrs.is_empty() && op.scalar_form(*dtype).is_some());
    let typed = recorded.filter_map(|(op, dtype)| {
        let Arity::Exactly(n @ 1..=2) = op.arity else { return None };
        let ty = Type::from(HostTensor::zeros(dtype, [1]).ty());
        let result = (op.infer)(&InferCx { operands: &vec![&ty; n], attrs: &attrs }).ok()?;
        Some((op, dtype, result.element().dtype))
    });
    typed.collect()
}

#[track_caller]
fn assert_same_bits(got: &HostTensor, expected: &HostTensor, what: &str) {
    let [got, expected] = [got, expected].map(one_nan);
    if got != expected {
        let differ = anabranch_dsl::match_buffer!(got.buffer(), data => {
            let pairs = || data.iter().map(|x| format!("{x:?}")).zip(elements(&expected));
            pairs().enumerate().find(|(_, (a, b))| a != b)
        });
        panic!("{what}: {differ:?}");
    }
}

/// Returns the elements as text.
fn elements(x: &HostTensor) -> Vec<String> {
    anabranch_dsl::match_buffer!(x.buffer(), data => data.iter().map(|x| format!("{x:?}")).collect())
}

#[test]
fn loops_of_registered_functions_are_compiled() {
    let graph = "graph @f(%x: f32[64]) -> f32[64] { %y = tests.elu %x : f32[64] return %y }";
    assert_eq!(REGISTERED.len(), 2);
    let program = Program::new(Graph::parse(graph, "elu.ir").unwrap()).unwrap();
    assert!(!program.explain().contains("reference"), "{}", program.explain());
}

#[test]
fn loops_over_blocks_yield_the_bits_of_the_interpreter() {
    let operations = operations();
    assert!(operations.len() > 150, "{} operations", operations.len());
    for (op, operand, result) in operations {
        let x = numbers(operand);
        let y = partners(&x);
        let n = x.len();
        let operands = if op.arity == Arity::Exactly(1) { "%x" } else { "%x, %y" };
        let text = format!(
            "graph @f(%x: {operand}[{n}], %y: {operand}[{n}]) -> ({result}[{n}]) {{
                %r = {} {operands} : {result}[{n}]
                return %r
            }}",
            op.name
        );
        let graph = Graph::parse(&text, "scalar.ir").unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
        let inputs = [x, y];
        let expected = interp::run(&graph, &inputs, &mut vec![], interp::InterpOptions::default());
        let expected = expected.unwrap_or_else(|e| panic!("{e}\n{text}"));
        let program = Program::new(graph).unwrap_or_else(|e| panic!("{e}"));
        let got = program.run(&inputs, &mut vec![]).unwrap_or_else(|e| panic!("{e}"));
        assert_same_bits(&got[0], &expected[0], &format!("{} of {operand}", op.name));
    }
}

/// Whether [`Panics`] panics.
static ARMED: AtomicBool = AtomicBool::new(false);

/// Twice a number, with a fault.
struct Panics;

impl UnaryFunction for Panics {
    const NAME: &'static str = "tests.panics";
    const GRAD: Grad = Grad::Missing("no test asks for it");

    #[inline(always)]
    fn eval<R: Real>(x: R) -> R {
        assert!(!ARMED.load(Ordering::Relaxed), "on purpose");
        x + x
    }
}

#[test]
fn a_function_that_panics_during_a_commit_leaves_the_variable_in_its_place() {
    let op = anabranch_runtime::register_unary::<Panics>().expect("the first of its name");
    let w = Var::<f32>::new("w", [1.0, 2.0, 3.0]);
    let session = Session::new().expect("the default devices exist");
    let step = session.function(|| w.set(Tensor::from_any(trace::emit(op, &[w.get().untyped()], Attrs::none()))));
    let step = step.expect("it is a graph function");
    step.call(()).expect("it runs");
    assert_eq!(session.get(&w).expect("it has a value").to_vec(), [2.0, 4.0, 6.0]);
    ARMED.store(true, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| step.call(()))).is_err());
    ARMED.store(false, Ordering::Relaxed);
    step.call(()).expect("it runs again");
    assert_eq!(session.get(&w).expect("it has a value").to_vec(), [4.0, 8.0, 12.0]);
}
