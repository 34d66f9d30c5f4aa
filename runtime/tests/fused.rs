//! Reductions fused with the producers of their operands.

use crate::support::{check, check_threads, traced};
use anabranch_dsl::trace::constant;
use anabranch_dsl::{AnyValue, HostTensor, derivatives};
use anabranch_runtime::Program;

fn numbers(shape: &[usize]) -> HostTensor {
    let n: usize = shape.iter().product();
    HostTensor::new(shape, (0..n).map(|i| ((i * 37) % 1009) as f64 / 500.0 - 1.0).collect::<Vec<_>>())
}

/// Shapes whose rows are shorter and longer than a block, odd shapes, empty shapes, and shapes that
/// are split over threads.
const SHAPES: &[[usize; 2]] = &[
    [1, 1],
    [3, 1],
    [1, 5],
    [7, 10],
    [5, 16],
    [33, 100],
    [4, 511],
    [3, 512],
    [4, 1023],
    [3, 1024],
    [2, 1500],
    [700, 3],
    [520, 257],
    [19_000, 7],
    [110, 1200],
    [1, 132_001],
    [132_001, 1],
    [0, 4],
    [4, 0],
];

#[test]
fn chains_are_reduced_over_rows_columns_and_all() {
    for shape in SHAPES {
        let row = numbers(&[shape[1]]);
        check(&[numbers(shape), row], |x| {
            let wide = x[1].broadcast_to(*shape);
            let y = x[0].mul(x[0]).sub(wide).add(constant(HostTensor::scalar(0.25)).broadcast_to(*shape));
            vec![
                y.sum_axis(1),
                x[0].mul(wide).sum_axis(0),
                x[0].sub(wide).abs().sum(),
                x[0].sum_keepdim(0),
                x[0].permute([1, 0]).sum_axis(0),
                x[0].permute([1, 0]).mul(x[0].permute([1, 0])).sum_axis(1),
            ]
        })
        .unwrap_or_else(|e| panic!("{shape:?}: {e}"));
        if shape[0] * shape[1] > 0 {
            check(&[numbers(shape)], |x| {
                let y = x[0].mul(x[0]);
                vec![y.max_axis(1), x[0].abs().min_axis(0), x[0].neg().max_keepdim(0), x[0].sin().max()]
            })
            .unwrap_or_else(|e| panic!("{shape:?}: {e}"));
        }
    }
}

#[test]
fn what_belongs_to_a_row_is_one_element_until_the_row_ends() {
    // Rows of which a block contains several, rows longer than a block, and rows too short to end
    // blocks.
    for shape in [[6, 5, 70], [3, 7, 300], [2, 3, 1100], [40, 9, 33], [3, 2, 64]] {
        let of_rows = [shape[0], shape[1], 1];
        check(&[numbers(&shape), numbers(&of_rows), numbers(&[shape[0], 1, 1])], |x| {
            let [row, matrix] = [x[1], x[2]].map(|x| x.broadcast_to(shape));
            let y = x[0].sub(row).mul(matrix);
            let z = row.div(x[0].mul(x[0]).add(matrix)).maximum(matrix);
            // The sine cannot be fused, so one operand is a single element for some consumers and a
            // block for others.
            vec![y.add(row), z, y.mul(y).sum(), y.sum_axis(2), z.sum_axis(0), row.sin().mul(x[0].sub(row))]
        })
        .unwrap_or_else(|e| panic!("{shape:?}: {e}"));
    }
}

#[test]
fn normalizations_and_their_gradients_are_what_they_were() {
    for shape in [[3, 5], [40, 700], [600, 300]] {
        let inputs = [numbers(&shape), numbers(&[shape[1]]), numbers(&[shape[1]]), numbers(&shape)];
        let f = |x: &[AnyValue]| {
            let y = x[0].layer_norm(x[1], x[2], 1e-5);
            let p = x[0].softmax(-1);
            let loss = y.mul(x[3]).sum().add(p.mul(x[3]).sum());
            let entropy = x[0].log_softmax(-1).mul(x[3]).sum_axis(1).mean();
            let gradients = derivatives::vjp(&[(loss, loss.number(1.0)), (entropy, entropy.number(1.0))], &x[..3]);
            [vec![y, loss, entropy], gradients].concat()
        };
        check(&inputs, f).unwrap_or_else(|e| panic!("{shape:?}: {e}"));
    }
}

#[test]
fn what_a_loss_reads_is_written_nowhere() {
    let text = |shape: &[usize]| {
        let traced = traced(&[numbers(shape), numbers(shape)], |x| {
            let difference = x[0].sub(x[1]);
            vec![difference.mul(difference).mean()]
        });
        Program::new(traced.graph).unwrap_or_else(|e| panic!("{e}")).explain()
    };
    assert!(text(&[40, 50]).contains("sub.mul.sum"), "{}", text(&[40, 50]));
    assert!(text(&[40, 50]).contains(" 0 buffers"), "{}", text(&[40, 50]));
}

#[test]
fn a_difference_with_a_mean_is_computed_again_and_not_kept() {
    let traced = traced(&[numbers(&[40, 50])], |x| {
        let difference = x[0].sub(x[0].mean_keepdim(-1).broadcast_to([40, 50]));
        let deviation = difference.mul(difference).mean_keepdim(-1).sqrt().broadcast_to([40, 50]);
        vec![difference.div(deviation)]
    });
    let text = Program::new(traced.graph).unwrap_or_else(|e| panic!("{e}")).explain();
    assert!(text.contains("sub.mul.sum") && text.contains("sub.div"), "{text}");
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for shape in SHAPES {
        let inputs = [numbers(shape), numbers(&[shape[1]])];
        let traced = traced(&inputs, |x| {
            let y = x[0].mul(x[0]).sub(x[1].broadcast_to(*shape));
            vec![y.sum_axis(1), x[0].sin().sum_axis(0), y.abs().sum()]
        });
        let program = Program::new(traced.graph).unwrap_or_else(|e| panic!("{e}"));
        check_threads(&program, &inputs);
    }
}

/// A layer norm and a softmax with all their gradients: reductions of rows and across rows, and the
/// consumers of their results.
fn normalizations(x: &[AnyValue]) -> Vec<AnyValue> {
    let y = x[0].layer_norm(x[1], x[2], 1e-5);
    let p = y.softmax(-1);
    let loss = p.mul(x[3]).sum();
    [
        vec![y, p, x[0].sub(x[0].max_keepdim(-1).broadcast_like(x[0])).log_softmax(-1).logsumexp(-1)],
        derivatives::vjp(&[(loss, loss.number(1.0))], &x[..3]),
    ]
    .concat()
}

#[test]
fn rows_are_what_they_were_and_threads_change_no_bit() {
    for shape in [[1, 2], [1, 700], [3, 5], [9, 1500], [520, 257], [19_000, 7]] {
        let inputs = [numbers(&shape), numbers(&[shape[1]]), numbers(&[shape[1]]), numbers(&shape)];
        check(&inputs, normalizations).unwrap_or_else(|e| panic!("{shape:?}: {e}"));
        let program = Program::new(traced(&inputs, normalizations).graph).unwrap_or_else(|e| panic!("{e}"));
        assert!(program.explain().contains("= rows "), "{}", program.explain());
        check_threads(&program, &inputs);
    }
}

#[test]
fn a_layer_norm_reads_its_operand_once_and_keeps_nothing() {
    let inputs = [numbers(&[40, 50]), numbers(&[50]), numbers(&[50])];
    let program = Program::new(traced(&inputs, |x| vec![x[0].layer_norm(x[1], x[2], 1e-5)]).graph);
    let text = program.unwrap_or_else(|e| panic!("{e}")).explain();
    assert!(text.contains("rows sum; div; sub.mul.sum; div.add.rsqrt; sub.mul.mul.add"), "{text}");
    assert!(text.contains(" 0 buffers") && text.matches("input0").count() == 1, "{text}");
}

#[test]
fn what_stands_between_rows_and_touches_them_parts_them() {
    // The matmul reads the result of the first reduction, and the last chain that of the matmul.
    let inputs = [numbers(&[6, 6]), numbers(&[6, 6])];
    check(&inputs, |x| {
        let centered = x[0].sub(x[0].mean_keepdim(-1).broadcast_like(x[0]));
        let product = centered.matmul(x[1]);
        let scaled = centered.mul(product.sum_keepdim(-1).broadcast_like(centered));
        // Rows of the transposed tensor are columns of the tensor that was computed.
        let across = scaled.permute([1, 0]).sub(scaled.max_keepdim(-1).broadcast_like(scaled));
        vec![scaled, across, across.sum_axis(0), centered.sum_axis(0).add(scaled.sum_axis(0))]
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_loop_variable_is_normalized_in_its_place() {
    let inputs = [numbers(&[20, 30]), HostTensor::scalar(5)];
    let f = |x: &[AnyValue]| {
        let body = |s: &[AnyValue]| {
            let centered = s[0].sub(s[0].mean_keepdim(-1).broadcast_like(s[0]));
            let length = centered.mul(centered).sum_keepdim(-1).sqrt().broadcast_like(s[0]);
            vec![centered.div(length), s[1].add(constant(HostTensor::scalar(1)))]
        };
        crate::support::while_loop(&[x[0], constant(HostTensor::scalar(0))], |s| s[1].lt(x[1]), body)
    };
    check(&inputs, f).unwrap_or_else(|e| panic!("{e}"));
    let text = Program::new(traced(&inputs, f).graph).unwrap_or_else(|e| panic!("{e}")).explain();
    assert!(text.contains("= rows ") && text.matches("= move").count() == 1, "one copy, of the input:\n{text}");
}
