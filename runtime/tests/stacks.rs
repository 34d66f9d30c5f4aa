//! Stacks in the form that autodiff emits, written as text: the plan against the interpreter.

use crate::support::check_traced;
use anabranch_dsl::trace::Traced;
use anabranch_dsl::{Graph, HostTensor, ir};

#[track_caller]
fn run(text: &str, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, String> {
    let graph = Graph::parse(text, "stacks.ir").unwrap_or_else(|e| panic!("{}", e[0]));
    ir::verify(&graph).unwrap_or_else(|e| panic!("{}", e[0]));
    check_traced(&Traced { graph, vars: vec![], queues: vec![], names: vec![], commit_loop: None }, inputs)
}

fn floats(x: &[f32]) -> HostTensor {
    HostTensor::new([x.len()], x.to_vec())
}

#[test]
fn zeros_are_popped_without_end() {
    let outputs = run(
        "graph @f(%x: f32[2]) -> (f32[2], f32[2], f32[2]) {
            %s0 = stack_zeros : stack<f32[2]>
            %s1 = push %s0, %x
            %s2, %a = pop %s1
            %s3, %b = pop %s2
            %s4, %c = pop %s3
            return %a, %b, %c
        }",
        &[floats(&[1.0, 2.0])],
    );
    assert_eq!(outputs, Ok(vec![floats(&[1.0, 2.0]), floats(&[0.0; 2]), floats(&[0.0; 2])]));
}

#[test]
fn sums_are_taken_from_the_top_where_there_are_zeros_below() {
    let stacks = "
        %z = stack_zeros : stack<f32[1]>
        %short = push %z, %x
        %0 = stack_new : stack<f32[1]>
        %1 = push %0, %x
        %2 = push %1, %y
        %long = push %2, %y";
    for sum in ["stack_add %short, %long", "stack_add %long, %short"] {
        let outputs = run(
            &format!(
                "graph @f(%x: f32[1], %y: f32[1]) -> (f32[1], f32[1], f32[1]) {{
                    {stacks}
                    %sum = {sum}
                    %s1, %a = pop %sum
                    %s2, %b = pop %s1
                    %s3, %c = pop %s2
                    return %a, %b, %c
                }}"
            ),
            &[floats(&[1.0]), floats(&[10.0])],
        );
        assert_eq!(outputs, Ok(vec![floats(&[11.0]), floats(&[10.0]), floats(&[1.0])]), "{sum}");
    }
}

#[test]
fn what_is_not_there_is_an_error() {
    for (ops, message) in [
        ("%s1, %y = pop %s0", "pop from an empty stack"),
        (
            "%s1 = push %s0, %x\n %s2 = stack_add %s0, %s1\n %s3, %y = pop %s2",
            "stacks of 0 and 1 elements cannot be added",
        ),
        (
            // The stack of zeros is as long as the other stack.
            "%z = stack_zeros : stack<f32[1]>\n %s1 = stack_add %s0, %z\n %s2, %y = pop %s1",
            "pop from an empty stack",
        ),
    ] {
        let text = format!(
            "graph @f(%x: f32[1]) -> f32[1] {{
                %s0 = stack_new : stack<f32[1]>
                {ops}
                return %y
            }}"
        );
        let error = run(&text, &[floats(&[1.0])]).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}
