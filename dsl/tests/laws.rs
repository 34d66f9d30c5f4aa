//! Every algebraic law that an operation states holds for its reference implementation, bit by bit
//! but for the sign and payload of a NaN.

use anabranch_dsl::equality::one_nan;
use anabranch_dsl::ir::Attrs;
use anabranch_dsl::ops::{self, Arity, EvalCx, InferCx, OpDef};
use anabranch_dsl::{Bytes, DType, HostTensor, Type, bf16, f16};

/// Returns elements of a type at which arithmetic is special, and some others.
fn samples(dtype: DType) -> HostTensor {
    let floats = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.7, 1e-3, 6e4, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let whole = [0, 1, 2, 3, 7, 31, 64, 100];
    let n = floats.len();
    match dtype {
        DType::F64 => HostTensor::new([n], floats.to_vec()),
        DType::F32 => HostTensor::new([n], floats.map(|x| x as f32).to_vec()),
        DType::F16 => HostTensor::new([n], floats.map(f16::from_f64).to_vec()),
        DType::BF16 => HostTensor::new([n], floats.map(bf16::from_f64).to_vec()),
        DType::I32 => HostTensor::new([10], [&whole.map(|x| -x)[..], &[i32::MIN, i32::MAX]].concat()),
        DType::I64 => HostTensor::new([10], [&whole.map(|x| -i64::from(x))[..], &[i64::MIN, i64::MAX]].concat()),
        DType::U32 => HostTensor::new([9], [&whole.map(|x| x as u32)[..], &[u32::MAX]].concat()),
        DType::U8 => HostTensor::new([9], [&whole.map(|x| x as u8)[..], &[u8::MAX]].concat()),
        DType::Bool => HostTensor::new([2], vec![false, true]),
        DType::Bytes => HostTensor::new([4], ["", " a ", "Ab", "b\n"].map(Bytes::from).to_vec()),
    }
}

/// Applies an operation without attributes, if it takes operands of these types.
fn apply(op: &OpDef, operands: &[&HostTensor]) -> Option<HostTensor> {
    let types: Vec<Type> = operands.iter().map(|t| Type::Tensor(t.ty())).collect();
    let attrs = Attrs::none();
    let ty = (op.infer)(&InferCx { operands: &types.iter().collect::<Vec<_>>(), attrs: &attrs }).ok()?;
    let ty = ty.as_tensor().expect("the result is a tensor");
    let result = op.evaluate(&EvalCx { operands, attrs: &attrs, ty });
    Some(one_nan(&result.unwrap_or_else(|e| panic!("{}: {e:?}", op.name))))
}

/// Returns all pairs of elements, as two tensors.
fn pairs(x: &HostTensor) -> [HostTensor; 2] {
    let n = x.len();
    let index = |of: fn(usize, usize) -> usize| (0..n * n).map(move |i| of(i, n)).collect::<Vec<usize>>();
    [index(|i, n| i / n), index(|i, n| i % n)].map(|index| elements(x, &index))
}

fn elements(x: &HostTensor, index: &[usize]) -> HostTensor {
    anabranch_dsl::match_buffer!(x.buffer(), data => {
        HostTensor::new([index.len()], index.iter().map(|&i| &data[i]).cloned().collect::<Vec<_>>())
    })
}

#[test]
fn stated_laws_hold() {
    let mut checked = [0; 5];
    for op in ops::all() {
        let laws = op.laws;
        for dtype in DType::ALL {
            let x = one_nan(&samples(dtype));
            if laws.involution || (laws.idempotent && op.arity == Arity::Exactly(1)) {
                let Some(once) = apply(&op, &[&x]) else { continue };
                let twice = apply(&op, &[&once]).expect("the result has the type of the operand");
                if laws.involution {
                    checked[0] += 1;
                    assert_eq!(twice, x, "{}: f(f(x)) = x for {dtype}", op.name);
                }
                if laws.idempotent {
                    checked[1] += 1;
                    assert_eq!(twice, once, "{}: f(f(x)) = f(x) for {dtype}", op.name);
                }
            }
            if op.arity != Arity::Exactly(2) {
                continue;
            }
            let [a, b] = pairs(&x);
            if laws.commutative
                && let Some(forward) = apply(&op, &[&a, &b])
            {
                checked[2] += 1;
                assert_eq!(apply(&op, &[&b, &a]), Some(forward), "{}: f(x, y) = f(y, x) for {dtype}", op.name);
            }
            if laws.idempotent
                && let Some(result) = apply(&op, &[&x, &x])
            {
                checked[1] += 1;
                assert_eq!(result, x, "{}: f(x, x) = x for {dtype}", op.name);
            }
            for i in 0..x.len() {
                let scalar = elements(&x, &[i]).reshaped([]);
                let filled = elements(&x, &vec![i; x.len()]);
                if laws.identity.is_some_and(|is| is(&scalar))
                    && let Some(right) = apply(&op, &[&x, &filled])
                {
                    checked[3] += 1;
                    assert_eq!(right, x, "{}: f(x, {scalar}) = x for {dtype}", op.name);
                    let left = laws.commutative.then(|| apply(&op, &[&filled, &x])).flatten();
                    assert!(left.is_none_or(|left| left == x), "{}: f({scalar}, x) = x for {dtype}", op.name);
                }
                if laws.absorbing.is_some_and(|is| is(&scalar))
                    && let Some(right) = apply(&op, &[&x, &filled])
                {
                    checked[4] += 1;
                    assert_eq!(right, filled, "{}: f(x, {scalar}) = {scalar} for {dtype}", op.name);
                    let left = laws.commutative.then(|| apply(&op, &[&filled, &x])).flatten();
                    assert!(left.is_none_or(|left| left == filled), "{}: f({scalar}, x) for {dtype}", op.name);
                }
            }
        }
    }
    assert!(checked.iter().all(|&n| n >= 5), "too few laws: {checked:?}");
}
