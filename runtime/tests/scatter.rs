//! Gathering and adding rows: divided among threads, and in place in variables.

use anabranch_dsl::passes::{Pass, Pipeline, Scatters};
use anabranch_dsl::{Graph, HostTensor, interp};
use anabranch_runtime::Program;

const ENTRIES: usize = 700;
const SIZE: usize = 24;
const IDS: usize = 3000;

fn graph() -> Graph {
    let text = "graph @step(%ids: i32[3000], %rows: f32[3000, 24], %rate: f32[]) -> f32[3000, 24] {
        var @table: f32[700, 24]
        %table = read @table
        %read = take %table, %ids {axis=0} : f32[3000, 24]
        %0 = constant 0.0 : f32[]
        %zeros = broadcast_to %0 {shape=[700, 24]} : f32[700, 24]
        %rates = broadcast_to %rate {shape=[3000, 24]} : f32[3000, 24]
        %scaled = mul %rows, %rates : f32[3000, 24]
        %gradient = scatter_add %zeros, %ids, %scaled {axis=0} : f32[700, 24]
        %next = add %table, %gradient : f32[700, 24]
        assign @table, %next
        return %read
    }";
    Graph::parse(text, "step.ir").unwrap_or_else(|e| panic!("{}", e[0]))
}

/// Returns the inputs. Every third index is that of the first row, so that many rows are added to
/// the first row and few to others.
fn inputs() -> Vec<HostTensor> {
    let id = |i: usize| if i.is_multiple_of(3) { 0 } else { (i * i * 31 + 7 * i) % ENTRIES };
    let x = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 500.0 - 1.0;
    vec![
        HostTensor::new([IDS], (0..IDS).map(|i| id(i) as i32).collect::<Vec<_>>()),
        HostTensor::new([IDS, SIZE], (0..IDS * SIZE).map(x).collect::<Vec<_>>()),
        HostTensor::scalar(-0.3f32),
    ]
}

fn table() -> HostTensor {
    HostTensor::new([ENTRIES, SIZE], (0..ENTRIES * SIZE).map(|i| (i % 17) as f32).collect::<Vec<_>>())
}

#[test]
fn rows_are_added_in_the_order_of_the_interpreter_by_any_number_of_threads() {
    let mut graph = graph();
    assert!(Scatters.run(&mut graph));
    let mut expected = vec![table()];
    let read = interp::run(&graph, &inputs(), &mut expected, interp::InterpOptions::default()).expect("it runs");
    let program = Program::new(graph).unwrap_or_else(|e| panic!("{e}"));
    assert!(program.explain().contains("variable0: f32[700, 24] += "), "{}", program.explain());
    for n in [1, 2, 3, 7] {
        let mut vars = vec![table()];
        let outputs =
            crate::support::on_threads(n, || program.run(&inputs(), &mut vars)).unwrap_or_else(|e| panic!("{e}"));
        assert!(outputs == read, "{n} threads read other rows");
        assert!(vars == expected, "{n} threads give another table");
    }
}

#[test]
fn the_step_is_the_one_on_the_whole_table() {
    let mut expected = vec![table()];
    interp::run(&graph(), &inputs(), &mut expected, interp::InterpOptions::default()).expect("it runs");
    let mut graph = graph();
    Pipeline::standard().run(&mut graph);
    let mut vars = vec![table()];
    Program::new(graph).and_then(|program| program.run(&inputs(), &mut vars)).unwrap_or_else(|e| panic!("{e}"));
    // A thousand rows are added to the first row.
    for (got, want) in vars[0].data::<f32>().iter().zip(expected[0].data::<f32>()) {
        assert!((got - want).abs() < 1e-3, "{got} is not {want}");
    }
}

#[test]
fn a_number_out_of_range_fails_before_a_variable_changes() {
    let text = "graph @step(%ids: i64[2], %rows: f32[2, 24], %more: f32[700, 24]) -> () {
        var @table: f32[700, 24]
        var @other: f32[700, 24]
        %other = read @other
        %sum = add %other, %more : f32[700, 24]
        assign @other, %sum
        %table = read @table
        %next = scatter_add %table, %ids, %rows {axis=0} : f32[700, 24]
        assign @table, %next
        return
    }";
    let program = Program::new(Graph::parse(text, "step.ir").unwrap_or_else(|e| panic!("{}", e[0]))).unwrap();
    let rows = HostTensor::new([2, SIZE], vec![1.0f32; 2 * SIZE]);
    for (id, fails) in [(-1, true), (700, true), (699, false)] {
        let mut vars = vec![table(), table()];
        let inputs = [HostTensor::new([2], vec![3i64, id]), rows.clone(), table()];
        let outcome = program.run(&inputs, &mut vars);
        assert_eq!(outcome.is_err(), fails, "{outcome:?}");
        assert_eq!(vars == [table(), table()], fails);
    }
}
