//! Native code against the instructions that it replaces, which must be bitwise identical, and
//! against the interpreter.

use anabranch_dsl::equality::one_nan;
use anabranch_dsl::ir::Attrs;
use anabranch_dsl::ops::{self, Arity, InferCx};
use anabranch_dsl::{Buffer, DType, Graph, HostTensor, Type, bf16, f16, interp, ir};
use anabranch_runtime::Program;

use crate::support::functions::REGISTERED;

const TYPES: [DType; 9] = DType::PLAIN;

/// Returns numbers at the ends of a type's range and in between.
fn numbers(dtype: DType) -> Vec<HostTensor> {
    match dtype {
        DType::F32 => {
            let all = [0.0, -0.0, 1.0, -2.5, 3.5, 1e-40, 3e38, 2.2e9, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
            all.map(HostTensor::scalar).to_vec()
        }
        DType::F64 => {
            let all = [0.0, -0.0, 1.0, -2.5, 3.5, 1e-310, 1e300, 1e10, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
            all.map(HostTensor::scalar).to_vec()
        }
        DType::F16 => {
            let all = [0.0, -0.0, 1.0, -2.5, 3.5, 1e-6, 6e4, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
            all.map(|x| HostTensor::scalar(f16::from_f32(x))).to_vec()
        }
        DType::BF16 => {
            let all = [0.0, -0.0, 1.0, -2.5, 3.5, 1e-40, 3e38, 2.2e9, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
            all.map(|x| HostTensor::scalar(bf16::from_f32(x))).to_vec()
        }
        DType::I32 => [0, 1, -1, 7, -13, i32::MIN, i32::MAX].map(HostTensor::scalar).to_vec(),
        DType::I64 => [0, 1, -1, 7, -13, i64::MIN, i64::MAX, 1 << 40].map(HostTensor::scalar).to_vec(),
        DType::U32 => [0, 1, 7, u32::MAX, 1 << 31].map(HostTensor::scalar).to_vec(),
        DType::U8 => [0u8, 1, 7, 255].map(HostTensor::scalar).to_vec(),
        DType::Bool => [false, true].map(HostTensor::scalar).to_vec(),
        DType::Bytes => panic!("strings are in no loop of native code"),
    }
}

/// Returns the bits of a number. All NaNs have the same bits.
fn bits(t: &HostTensor) -> u64 {
    match one_nan(t).buffer() {
        Buffer::F32(d) => u64::from(d[0].to_bits()),
        Buffer::F64(d) => d[0].to_bits(),
        Buffer::F16(d) => u64::from(d[0].to_bits()),
        Buffer::BF16(d) => u64::from(d[0].to_bits()),
        Buffer::I32(d) => u64::from(d[0].cast_unsigned()),
        Buffer::I64(d) => d[0].cast_unsigned(),
        Buffer::U32(d) => u64::from(d[0]),
        Buffer::U8(d) => u64::from(d[0]),
        Buffer::Bool(d) => u64::from(d[0]),
        Buffer::Bytes(_) => panic!("strings are no numbers"),
    }
}

/// A graph with a plan without native code and several with: as it is, with few registers of the
/// processor, and with registers of the plan in memory.
struct PlanPair {
    graph: Graph,
    native: [Program; 4],
    portable: Program,
}

impl PlanPair {
    /// Returns `None` if nothing becomes native.
    #[track_caller]
    fn new(text: &str) -> Option<PlanPair> {
        let graph = Graph::parse(text, "native.ir").unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
        ir::verify(&graph).unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
        let native = [
            Program::new(graph.clone()),
            Program::with_few_registers(graph.clone(), 0),
            Program::with_few_registers(graph.clone(), 2),
            Program::with_numbers_in_memory(graph.clone()),
        ];
        let native = native.map(|program| program.unwrap_or_else(|e| panic!("{e}")));
        let portable = Program::without_native_code(graph.clone()).unwrap_or_else(|e| panic!("{e}"));
        assert!(!portable.explain().contains("natively"), "{}", portable.explain());
        let is_native = native.each_ref().map(|program| program.explain().contains("natively"));
        assert!(is_native.iter().all(|&is| is == is_native[0]), "{text}");
        is_native[0].then_some(PlanPair { graph, native, portable })
    }

    /// Returns the outputs, which must be bitwise identical.
    #[track_caller]
    fn run(&self, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, String> {
        let run = |p: &Program| p.run(inputs, &mut vec![]).map_err(|e| e.to_string());
        let expected = run(&self.portable);
        let [got, others @ ..] = self.native.each_ref().map(run);
        for got in [&got].into_iter().chain(&others) {
            match (got, &expected) {
                (Ok(got), Ok(expected)) => {
                    for (g, e) in got.iter().zip(expected) {
                        assert_eq!(bits(g), bits(e), "{g} is not {e} of {inputs:?}\n{}", self.native[0].explain());
                    }
                }
                (got, expected) => assert_eq!(got, expected),
            }
        }
        let interpreted = interp::run(&self.graph, inputs, &mut vec![], interp::InterpOptions::default());
        assert_eq!(interpreted.is_ok(), got.is_ok(), "the interpreter says {interpreted:?}");
        got
    }
}

#[track_caller]
fn run(text: &str, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, String> {
    PlanPair::new(text).expect("there is native code").run(inputs)
}

/// Returns a loop of one iteration in which `v` becomes the result of an operation on `x` and `y`.
fn one_trip(op: &str, operand: DType, result: DType, attrs: &str, n: usize) -> String {
    let operands = ["%a", "%b", "%c"][..n].join(", ");
    format!(
        "graph @f(%x: {operand}[], %y: {operand}[], %p: bool[], %init: {result}[]) -> ({result}[], i32[]) {{
            %0 = constant 0 : i32[]
            %v, %i = while (%v = %init, %i = %0 | %x = %x, %y = %y, %p = %p) cond {{
                %1 = constant 1 : i32[]
                %more = lt %i, %1
                yield %more
            }} body {{
                %1 = constant 1 : i32[]
                %j = add %i, %1
                %r = {op} {operands} {attrs} : {result}[]
                yield %r, %j
            }}
            return %v, %i
        }}"
    )
    .replace("%a", if op == "select" { "%p" } else { "%x" })
    .replace("%b", if op == "select" { "%x" } else { "%y" })
    .replace("%c", "%y")
}

#[test]
fn every_operation_on_every_number_is_that_of_the_plan() {
    let mut n = 0;
    for op in ops::all() {
        let Arity::Exactly(arity @ 1..=3) = op.arity else { continue };
        let result_of = |d: DType| {
            let operands = if op.name == "select" { [DType::Bool, d, d] } else { [d; 3] };
            let types = operands.map(|d| Type::from(HostTensor::zeros(d, []).ty()));
            let types: Vec<&Type> = types[..arity].iter().collect();
            let result = (op.infer)(&InferCx { operands: &types, attrs: &Attrs::default() }).ok()?;
            (result.element().rank() == 0).then(|| result.element().dtype)
        };
        let casts = TYPES.map(|to| (to, format!("{{dtype={to}}}")));
        for operand in TYPES {
            let mut forms: Vec<(DType, String)> = Vec::new();
            if op.name == "cast" {
                forms.extend(casts.iter().filter(|(to, _)| *to != operand).cloned());
            } else if op.attrs.is_empty() {
                forms.extend(result_of(operand).map(|result| (result, String::new())));
            }
            for (result, attrs) in forms {
                let text = one_trip(op.name, operand, result, &attrs, arity);
                // Some operations do not apply to numbers.
                let Some(both) = PlanPair::new(&text) else { continue };
                n += 1;
                for x in numbers(operand) {
                    for y in if arity == 1 { numbers(operand)[..1].to_vec() } else { numbers(operand) } {
                        for p in [false, true] {
                            let init = HostTensor::zeros(result, []);
                            // Some operations fail for some numbers, in both plans.
                            let _ = both.run(&[x.clone(), y.clone(), HostTensor::scalar(p), init]);
                        }
                    }
                }
            }
        }
    }
    assert!(n > 150, "{n} operations");
}

#[test]
fn functions_of_many_numbers_are_those_of_the_interpreter() {
    let functions = ops::all()
        .chain(*REGISTERED)
        .filter(|op| op.arity == Arity::Exactly(1) && op.scalar_form(DType::F32).is_some());
    let mut n = 0;
    for name in functions.map(|op| op.name).filter(|name| !matches!(*name, "is_nan" | "is_finite")) {
        for dtype in [DType::F32, DType::F64] {
            n += 1;
            let both = PlanPair::new(&one_trip(name, dtype, dtype, "", 1)).expect("there is native code");
            let number =
                |x: f64| if dtype == DType::F32 { HostTensor::scalar(x as f32) } else { HostTensor::scalar(x) };
            let near = (-100..100).map(|i| f64::from(i) * 0.37);
            let far = (-40..40).flat_map(|i| [2f64.powi(i) * 1.3, -(2f64.powi(i) * 1.7)]);
            let ends = [-746.5, -745.1, -104.2, -87.9, 88.8, 89.1, 709.8, 710.1, 1e6, 1.1e6, 1e300].into_iter();
            for x in near.chain(far).chain(ends) {
                let inputs = [number(x), number(0.0), HostTensor::scalar(true), number(0.0)];
                let got = both.run(&inputs).expect("it runs");
                let expected = interp::run(&both.graph, &inputs, &mut vec![], interp::InterpOptions::default());
                let expected = expected.expect("it runs");
                assert_eq!(bits(&got[0]), bits(&expected[0]), "{name}({x}) is {}, not {}", got[0], expected[0]);
            }
        }
    }
    assert!(n > 50, "{n} functions");
}

#[test]
fn what_fails_in_the_middle_is_the_same_error_at_the_same_trip() {
    let text = "graph @f(%n: i32[], %limit: i32[]) -> (i32[], i32[]) {
        %0 = constant 0 : i32[]
        %v, %i = while (%v = %n, %i = %0 | %limit = %limit) cond {
            %8 = constant 8 : i32[]
            %more = lt %i, %8
            yield %more
        } body {
            %1 = constant 1 : i32[]
            %left = sub %limit, %i
            %r = div %v, %left
            %ok = ge %r, %1
            assert %ok, \"there is something left\"
            %j = add %i, %1
            yield %r, %j
        }
        return %v, %i
    }";
    let int = HostTensor::scalar::<i32>;
    assert_eq!(run(text, &[int(1_000_000_000), int(9)]), Ok(vec![int(2755), int(8)]));
    assert!(run(text, &[int(100_000), int(3)]).unwrap_err().contains("by zero"));
    assert!(run(text, &[int(10), int(9)]).unwrap_err().contains("there is something left"));
}

#[test]
fn constants_of_one_bit_pattern_and_moved_numbers_keep_their_types() {
    // Zero has the same bit pattern in all types. The numbers are swapped, and some are never used
    // in arithmetic.
    let text = "graph @f(%x: f64[], %y: f32[], %n: i32[]) -> (f64[], f64[], f32[], i32[], i32[]) {
        %0 = constant 0 : i32[]
        %z = constant 0.0 : f64[]
        %zf = constant 0.0 : f32[]
        %a, %b, %c, %d, %i = while (%a = %x, %b = %z, %c = %y, %d = %n, %i = %0 | %n = %n, %zf = %zf) cond {
            %more = lt %i, %n
            yield %more
        } body {
            %1 = constant 1 : i32[]
            %j = add %i, %1
            %e = sub %d, %j
            %z = constant 0.0 : f64[]
            %last = eq %j, %n
            %s = select %last, %z, %b
            %t = select %last, %zf, %c
            yield %s, %a, %t, %e, %j
        }
        return %a, %b, %c, %d, %i
    }";
    for n in 0..5 {
        let outputs = run(text, &[HostTensor::scalar(1.5), HostTensor::scalar(2.5f32), HostTensor::scalar(n)]);
        assert!(outputs.is_ok());
    }
}

#[test]
fn numbers_are_pushed_and_popped_in_nested_loops() {
    let text = "graph @f(%x: f32[], %n: i32[]) -> (f32[], i32[]) {
        %0 = constant 0 : i32[]
        %s0 = stack_zeros : stack<f32[]>
        %y, %s, %i = while (%y = %x, %s = %s0, %i = %0 | %n = %n) cond {
            %more = lt %i, %n
            yield %more
        } body {
            %0 = constant 0 : i32[]
            %1 = constant 1 : i32[]
            %s1, %y1, %k = while (%s = %s, %y = %y, %k = %0 | %i = %i) cond {
                %more = lt %k, %i
                yield %more
            } body {
                %1 = constant 1 : i32[]
                %half = constant 0.5 : f32[]
                %y1 = mul %y, %half
                %s1 = push %s, %y1
                %k1 = add %k, %1
                yield %s1, %y1, %k1
            }
            %s2, %top = pop %s1
            %sum = add %y1, %top
            %j = add %i, %1
            yield %sum, %s2, %j
        }
        return %y, %i
    }";
    for n in [0, 1, 2, 7] {
        run(text, &[HostTensor::scalar(3.0f32), HostTensor::scalar(n)]).expect("it runs");
    }
    let fails = text.replace("stack_zeros", "stack_new");
    assert!(run(&fails, &[HostTensor::scalar(3.0f32), HostTensor::scalar(1)]).unwrap_err().contains("empty stack"));
}

#[test]
fn quotients_by_constants_are_those_of_the_plan() {
    let mut n = 0;
    for (dtype, divisors) in [
        (DType::I32, [2, -2, 3, -3, 7, 10, 641, 1 << 20, -(1 << 20), 1_000_003, i64::from(i32::MAX), -1, 1]),
        (DType::I64, [2, -2, 3, -3, 7, 10, 641, 1 << 40, -(1 << 40), 1_000_003, i64::MAX, -1, i64::MIN]),
        (DType::U32, [2, 3, 5, 7, 10, 641, 1 << 20, 1 << 31, 1_000_003, i64::from(u32::MAX), 1, 9, 11]),
        (DType::U8, [2, 3, 5, 7, 10, 100, 128, 255, 1, 9, 11, 13, 17]),
    ] {
        for (divisor, op) in divisors.iter().flat_map(|d| ["div", "rem"].map(|op| (d, op))) {
            let operation = format!("%r = {op} %x, %d");
            let constant = format!("%d = constant {divisor} : {dtype}[]");
            let text =
                one_trip("div", dtype, dtype, "", 2).replace(&format!("%r = div %x, %y  : {dtype}[]"), &operation);
            let text = text.replace("%j = add %i, %1", &format!("%j = add %i, %1\n                {constant}"));
            assert!(text.contains(&operation), "{text}");
            let both = PlanPair::new(&text).expect("there is native code");
            let near = |x: i64| (-2..3).map(move |i| x.wrapping_add(i));
            let products = (-20..20).chain([i64::MAX / divisor, i64::MIN.wrapping_div(*divisor)]);
            let all = products.map(|q| q.wrapping_mul(*divisor)).chain([0, i64::from(i32::MAX), i64::from(i32::MIN)]);
            for x in all.flat_map(near) {
                let number = |x: i64| match dtype {
                    DType::I32 => HostTensor::scalar(x as i32),
                    DType::I64 => HostTensor::scalar(x),
                    DType::U32 => HostTensor::scalar(x as u32),
                    _ => HostTensor::scalar(x as u8),
                };
                both.run(&[number(x), number(0), HostTensor::scalar(true), number(0)]).expect("it runs");
                n += 1;
            }
        }
    }
    assert!(n > 10_000, "{n} quotients");
}

#[test]
fn more_numbers_than_registers_are_kept_across_calls() {
    const N: usize = 24;
    let each = |f: &dyn Fn(usize) -> String| (0..N).map(f).collect::<Vec<_>>().join(", ");
    let lines = |f: &dyn Fn(usize) -> String| (0..N).map(f).collect::<Vec<_>>().join("\n            ");
    let text = format!(
        "graph @f(%x: f64[], %y: i64[], %n: i32[]) -> ({results}, f64[]) {{
            %0 = constant 0 : i32[]
            %s0 = stack_zeros : stack<f64[]>
            {lists}, %s, %i = while ({starts}, %s = %s0, %i = %0 | %n = %n) cond {{
                %more = lt %i, %n
                yield %more
            }} body {{
                %1 = constant 1 : i32[]
                %ten = constant 10.5 : f64[]
                {sums}
                {products}
                {remainders}
                %s1 = push %s, %r0
                %j = add %i, %1
                yield {nexts}, %s1, %j
            }}
            %s2, %top = pop %s
            return {lists}, %top
        }}",
        results = each(&|_| "f64[], i64[]".to_owned()),
        lists = each(&|i| format!("%a{i}, %b{i}")),
        starts = each(&|i| format!("%a{i} = %x, %b{i} = %y")),
        sums = lines(&|i| format!("%c{i} = add %a{i}, %a{}", (i + 1) % N)),
        products = lines(&|i| format!(
            "%d{i} = mul %b{i}, %b{}\n            %e{i} = add %d{i}, %b{}",
            (i + 1) % N,
            (i + 5) % N
        )),
        // The remainder of floats is a call.
        remainders = lines(&|i| format!("%r{i} = rem %c{i}, %ten")),
        nexts = each(&|i| format!("%r{i}, %e{i}")),
    );
    let both = PlanPair::new(&text).expect("there is native code");
    for n in [0, 1, 2, 50] {
        both.run(&[HostTensor::scalar(3.7), HostTensor::scalar(3i64), HostTensor::scalar(n)]).expect("it runs");
    }
}
