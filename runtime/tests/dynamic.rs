//! Shapes that depend on the data: the plan against the interpreter.

use crate::support::check_traced;
use anabranch_dsl::trace::Traced;
use anabranch_dsl::{Graph, HostTensor, ir};
use anabranch_runtime::Program;

#[track_caller]
fn check(text: &str, inputs: &[HostTensor]) -> Vec<HostTensor> {
    let graph = Graph::parse(text, "dynamic.ir").unwrap_or_else(|e| panic!("{}", e[0]));
    ir::verify(&graph).unwrap_or_else(|e| panic!("{}", e[0]));
    let program = Program::new(graph.clone()).unwrap_or_else(|e| panic!("{e}"));
    assert!(program.explain().contains("slots"), "this test is about slots\n{}", program.explain());
    check_traced(&Traced { graph, vars: vec![], queues: vec![], names: vec![], commit_loop: None }, inputs)
        .unwrap_or_else(|e| panic!("{e}"))
}

fn floats(x: &[f32]) -> HostTensor {
    HostTensor::new([x.len()], x.to_vec())
}

#[test]
fn a_loop_variable_may_grow() {
    for n in [0, 1, 4] {
        let outputs = check(
            "graph @f(%x: f32[2], %n: i32[]) -> (f32[?], f32[], f32[2]) {
                %0 = constant 0 : i32[]
                %start = neg %x : f32[?]
                %all, %i = while (%all = %start, %i = %0 | %x = %x, %n = %n) : (f32[?], i32[]) cond {
                    %p = lt %i, %n
                    yield %p
                } body {
                    %more = concat %all, %x {axis=0} : f32[?]
                    %1 = constant 1 : i32[]
                    %j = add %i, %1
                    yield %more, %j
                }
                %sum = sum %all {axes=[0], keepdim=false} : f32[]
                %twice = add %x, %x
                %last = broadcast_like %sum, %twice : f32[2]
                return %all, %sum, %last
            }",
            &[floats(&[1.0, 2.0]), HostTensor::scalar(n)],
        );
        assert_eq!(outputs[0].shape(), [2 + 2 * n as usize]);
    }
}

#[test]
fn branches_may_give_different_shapes() {
    for p in [true, false] {
        let outputs = check(
            "graph @f(%x: f32[3], %p: bool[]) -> (f32[?]) {
                %r = cond %p, %x : f32[?] then (%x) {
                    %n = neg %x : f32[?]
                    yield %n
                } else (%x) {
                    %y = concat %x, %x {axis=0} : f32[?]
                    yield %y
                }
                %e = exp %r : f32[?]
                return %e
            }",
            &[floats(&[0.0, 1.0, 2.0]), HostTensor::scalar(p)],
        );
        assert_eq!(outputs[0].len(), if p { 3 } else { 6 });
    }
}

#[test]
fn loop_variables_of_unknown_shapes_may_be_exchanged() {
    check(
        "graph @f(%x: f32[3], %y: f32[1]) -> (f32[?], f32[?]) {
            %0 = constant 0 : i32[]
            %a = neg %x : f32[?]
            %b = neg %y : f32[?]
            %r, %s, %i = while (%a = %a, %b = %b, %i = %0) : (f32[?], f32[?], i32[]) cond {
                %3 = constant 3 : i32[]
                %p = lt %i, %3
                yield %p
            } body {
                %1 = constant 1 : i32[]
                %j = add %i, %1
                yield %b, %a, %j
            }
            return %r, %s
        }",
        &[floats(&[1.0, 2.0, 3.0]), floats(&[4.0])],
    );
}

#[test]
fn stacks_hold_tensors_of_unknown_shapes() {
    check(
        "graph @f(%x: f32[2]) -> (f32[?], f32[?], f32[?]) {
            %s0 = stack_new : stack<f32[?]>
            %a = neg %x : f32[?]
            %s1 = push %s0, %a
            %b = concat %x, %x {axis=0} : f32[?]
            %s2 = push %s1, %b
            %z = stack_zeros_like %s2
            %d = stack_add %s2, %s2
            %d1, %t = pop %d
            %d2, %u = pop %d1
            %z1, %v = pop %z
            return %t, %u, %v
        }",
        &[floats(&[1.0, 2.0])],
    );
}

#[test]
fn a_list_is_restored_as_it_was() {
    let text = |shape: &str| {
        format!(
            "graph @f(%x: f32[3, 2], %ids: i32[3], %n: i32[]) -> (bool[?], bool[?], f32[?, {shape}]) {{
                %l = list_new %n : list<f32[{shape}]>
                %w = list_scatter %l, %ids, %x
                %marks = list_written %w
                %all = list_stack %w
                %r = list_restore %all, %marks
                %again = list_written %r
                %end = list_stack %r
                return %marks, %again, %end
            }}"
        )
    };
    let x = HostTensor::new([3, 2], vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    for n in [3, 5] {
        let ids = HostTensor::new([3], if n == 3 { vec![2, 0, 1] } else { vec![4, 0, 2] });
        check(&text("2"), &[x.clone(), ids.clone(), HostTensor::scalar(n)]);
        // An element that is never written has no shape in this case.
        if n == 3 {
            check(&text("?"), &[x.clone(), ids, HostTensor::scalar(n)]);
        }
    }
    let wrong = "graph @f(%x: f32[3, 2], %marks: bool[2]) -> (i32[]) {
        %r = list_restore %x, %marks
        %n = list_len %r
        return %n
    }";
    let traced = Traced {
        graph: Graph::parse(wrong, "wrong.ir").unwrap(),
        vars: vec![],
        queues: vec![],
        names: vec![],
        commit_loop: None,
    };
    let error = check_traced(&traced, &[x, HostTensor::new([2], vec![true, false])]).unwrap_err();
    assert!(error.to_string().contains("list_restore: the lengths differ, 3 and 2"), "{error}");
}

#[test]
fn lists_hold_tensors_of_unknown_shapes() {
    for p in [true, false] {
        check(
            "graph @f(%x: f32[4], %parts: i32[2], %p: bool[], %i: i32[]) -> (f32[?], f32[?], i32[?]) {
                %l = list_split %x, %parts : list<f32[?]>
                %two = list_split %x, %parts : list<f32[2]>
                %m = cond %p, %l, %two : list<f32[?]> then (%l, %two) {
                    %0 = constant 0 : i32[]
                    %b = list_read %l, %0
                    %more = list_push %l, %b
                    yield %more
                } else (%l, %two) {
                    yield %two
                }
                %d = list_zeros_like %m
                %row = list_read %m, %i
                %e = list_accumulate %d, %i, %row
                %f = list_accumulate %e, %i, %row
                %g = list_add %f, %m
                %all = list_concat %g
                %n = list_extents %m
                return %row, %all, %n
            }",
            &[
                floats(&[1.0, 2.0, 3.0, 4.0]),
                HostTensor::new([2], vec![2, 2]),
                HostTensor::scalar(p),
                HostTensor::scalar(1),
            ],
        );
    }
}
