//! Random numbers fused into their consumers: they are those of the reference implementation,
//! wherever blocks end.

use anabranch_dsl::{Graph, HostTensor, interp};
use anabranch_runtime::Program;

/// Compares a plan with the interpreter bitwise, and returns the text of the plan.
fn check(text: &str, inputs: &[HostTensor]) -> String {
    let graph = Graph::parse(text, "random.ir").unwrap_or_else(|e| panic!("{}", e[0]));
    let expected =
        interp::run(&graph, inputs, &mut vec![], interp::InterpOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let program = Program::new(graph).unwrap_or_else(|e| panic!("{e}"));
    let found = program.run(inputs, &mut vec![]).unwrap_or_else(|e| panic!("{e}"));
    assert!(found == expected, "{}", program.explain());
    program.explain()
}

fn key() -> HostTensor {
    HostTensor::new([2], vec![7u32, 0xdead_beef])
}

#[test]
fn what_reads_random_numbers_draws_them() {
    for (rows, columns) in [(1, 1), (3, 5), (7, 100), (41, 1000), (999, 301)] {
        let text = format!(
            "graph @f(%key: u32[2], %x: f32[{rows}, {columns}], %row: f32[{columns}]) -> f32[{rows}, {columns}] {{
                %u = random_uniform %key {{shape=[{rows}, {columns}], dtype=f32}}
                %b = broadcast_to %row {{shape=[{rows}, {columns}]}}
                %kept = lt %u, %b
                %twice = add %x, %x
                %y = select %kept, %twice, %b
                return %y
            }}"
        );
        let numbers = |n: usize| (0..n).map(|i| (i % 17) as f32 / 17.0).collect::<Vec<f32>>();
        let inputs = [
            key(),
            HostTensor::new([rows, columns], numbers(rows * columns)),
            HostTensor::new([columns], numbers(columns)),
        ];
        let plan = check(&text, &inputs);
        let plan = crate::support::instructions(&plan);
        assert!(plan.contains("random_uniform.") && !plan.contains("= random_uniform "), "{plan}");
    }
}

#[test]
fn numbers_of_every_type_are_drawn_from_any_place_on() {
    for (dtype, op) in [("f32", "neg"), ("f64", "neg"), ("f16", "cast"), ("bf16", "cast"), ("u32", "cast")] {
        for n in [1, 6, 1023, 140_001] {
            let draw = match dtype {
                "u32" => format!("random_bits %key {{shape=[{n}]}}"),
                _ => format!("random_uniform %key {{shape=[{n}], dtype={dtype}}}"),
            };
            let result = if op == "neg" { dtype } else { "f64" };
            let attrs = if op == "neg" { "" } else { "{dtype=f64}" };
            let text = format!(
                "graph @f(%key: u32[2]) -> {result}[{n}] {{
                    %u = {draw}
                    %y = {op} %u {attrs}
                    return %y
                }}"
            );
            check(&text, &[key()]);
        }
    }
}

#[test]
fn a_reduction_and_two_readers_have_the_same_numbers() {
    let text = "graph @f(%key: u32[2], %x: f32[64, 300]) -> (f32[64], f32[64, 300], f32[64, 300]) {
        %u = random_uniform %key {shape=[64, 300], dtype=f32}
        %m = max %u {axes=[1], keepdim=false}
        %v = random_uniform %key {shape=[64, 300], dtype=f32}
        %a = mul %v, %x
        %b = add %v, %x
        return %m, %a, %b
    }";
    let x = HostTensor::new([64, 300], (0..64 * 300).map(|i| i as f32).collect::<Vec<f32>>());
    check(text, &[key(), x]);
}
