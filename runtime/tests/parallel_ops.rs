//! Independent heavy operations run in parallel, and compute the same results as alone.

use anabranch_dsl::{Graph, HostTensor, interp};
use anabranch_runtime::Program;

fn parse(text: &str) -> Graph {
    Graph::parse(text, "together.ir").unwrap_or_else(|e| panic!("{}", e[0]))
}

fn matrix(rows: usize, columns: usize, seed: usize) -> HostTensor {
    let at = |i: usize| ((i + seed) * 7919 % 101) as f32 / 50.0 - 1.0;
    HostTensor::new([rows, columns], (0..rows * columns).map(at).collect::<Vec<_>>())
}

/// Returns the outputs, and the number of operations that run in parallel with another operation.
/// Compares the outputs with those of the interpreter.
fn run(text: &str, inputs: &[HostTensor]) -> (Vec<HostTensor>, usize) {
    let graph = parse(text);
    let expected =
        interp::run(&graph, inputs, &mut vec![], interp::InterpOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let program = Program::new(graph).unwrap_or_else(|e| panic!("{e}"));
    let outputs = program.run(inputs, &mut vec![]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(
        outputs,
        program.run(inputs, &mut vec![]).unwrap_or_else(|e| panic!("{e}")),
        "again, in the same memory"
    );
    for (found, expected) in outputs.iter().zip(&expected) {
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3;
        assert!(found.data::<f32>().iter().zip(expected.data::<f32>()).all(near), "{}", program.explain());
    }
    let beside = program.explain().lines().filter(|line| line.trim_start().starts_with("and ")).count();
    (outputs, beside)
}

#[test]
fn products_of_one_operand_run_together_with_what_they_need_before_them() {
    let text = "graph @f(%x: f32[128, 128], %a: f32[128, 128], %b: f32[128, 128], %c: f32[128]) -> (f32[128, 128], f32[128, 128], f32[128, 128]) {
        %q = matmul %x, %a
        %r = broadcast_to %c {shape=[128, 128]}
        %s = add %q, %r
        %t = tanh %b
        %k = matmul %x, %t
        %u = exp %s
        %at = permute %a {axes=[1, 0]}
        %v = matmul %at, %x
        return %u, %k, %v
    }";
    let inputs = [matrix(128, 128, 0), matrix(128, 128, 1), matrix(128, 128, 2), matrix(1, 128, 3).reshaped([128])];
    let (outputs, beside) = run(text, &inputs);
    assert_eq!(beside, 2);
    // The results are bitwise identical to those of each operation alone.
    let text = "graph @f(%x: f32[128, 128], %b: f32[128, 128]) -> f32[128, 128] {
        %t = tanh %b
        %k = matmul %x, %t
        return %k
    }";
    let (alone, beside) = run(text, &[inputs[0].clone(), inputs[2].clone()]);
    assert_eq!((&alone[0], beside), (&outputs[1], 0));
}

#[test]
fn what_depends_on_another_or_is_light_runs_by_itself() {
    let chain = "graph @f(%x: f32[128, 128], %a: f32[128, 128]) -> f32[128, 128] {
        %y = matmul %x, %a
        %z = matmul %y, %a
        return %z
    }";
    assert_eq!(run(chain, &[matrix(128, 128, 0), matrix(128, 128, 1)]).1, 0);
    let light = "graph @f(%x: f32[32, 32], %a: f32[32, 32]) -> (f32[32, 32], f32[32, 32]) {
        %y = matmul %x, %a
        %z = matmul %a, %x
        return %y, %z
    }";
    assert_eq!(run(light, &[matrix(32, 32, 0), matrix(32, 32, 1)]).1, 0);
}

#[test]
fn operands_that_die_are_not_overwritten_by_what_runs_beside_their_last_use() {
    // The other matmul still reads `%h`, which an in-place computation of `%s` would overwrite.
    let text = "graph @f(%x: f32[128, 128], %a: f32[128, 128]) -> (f32[128, 128], f32[128, 128]) {
        %h = tanh %x
        %p = matmul %x, %a
        %s = add %p, %h
        %q = matmul %a, %h
        %r = matmul %h, %h
        %t = add %q, %r
        return %s, %t
    }";
    assert!(run(text, &[matrix(128, 128, 0), matrix(128, 128, 1)]).1 > 0);
}

#[test]
fn in_a_loop_steps_run_together_in_each_iteration() {
    let text = "graph @f(%x: f32[128, 128], %a: f32[128, 128], %n: i32[]) -> (f32[128, 128], f32[128, 128]) {
        %0 = constant 0 : i32[]
        %i, %y, %z = while (%i = %0, %y = %x, %z = %a | %n = %n) cond {
            %p = lt %i, %n
            yield %p
        } body {
            %1 = constant 1 : i32[]
            %j = add %i, %1
            %p = matmul %y, %z
            %q = matmul %z, %y
            %r = tanh %p
            %s = tanh %q
            yield %j, %r, %s
        }
        return %y, %z
    }";
    let inputs = [matrix(128, 128, 0), matrix(128, 128, 1), HostTensor::scalar(2)];
    assert_eq!(run(text, &inputs).1, 1);
}
