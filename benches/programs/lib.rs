//! The programs that the benchmarks measure. A test keeps their plans as golden files, so that a
//! lost fusion shows without a measurement.

use anabranch::GraphFn;
use anabranch::nn::Init;
use anabranch::{DType, Graph, HostTensor, Session, TensorType};
use anabranch_runtime::Program;
use std::hint::black_box;
use std::rc::Rc;

pub mod control_flow;
pub mod examples;
pub mod memory;
pub mod tables;
pub mod training;
pub mod vision;

/// A compiled program with its inputs.
pub struct Benchmark {
    call: Box<dyn FnMut()>,
    explain: Box<dyn Fn() -> String>,
    graph: Box<dyn Fn() -> Graph>,
}

/// An input, which is made for the first call.
pub enum BenchInput {
    /// Normally distributed `f32` with mean 0 and this standard deviation.
    Normal(Vec<usize>, f32),
    /// These integers.
    Integers(Vec<i32>),
    /// This value.
    Value(HostTensor),
}

impl BenchInput {
    fn ty(&self) -> TensorType {
        match self {
            BenchInput::Normal(shape, _) => TensorType::new(DType::F32, shape.clone()),
            BenchInput::Integers(values) => TensorType::new(DType::I32, [values.len()]),
            BenchInput::Value(value) => value.ty(),
        }
    }

    fn make(&self, init: &Init) -> HostTensor {
        match self {
            BenchInput::Normal(shape, deviation) => init.normal(shape.clone(), *deviation).host().clone(),
            BenchInput::Integers(values) => HostTensor::new([values.len()], values.clone()),
            BenchInput::Value(value) => value.clone(),
        }
    }
}

/// Returns an input of normally distributed numbers with standard deviation 1.
fn normal<const N: usize>(shape: [usize; N]) -> BenchInput {
    BenchInput::Normal(shape.to_vec(), 1.0)
}

/// Returns the labels of a batch, ten classes in turn.
fn labels(batch: i32) -> BenchInput {
    BenchInput::Integers((0..batch).map(|i| i % 10).collect())
}

fn make(inputs: &[BenchInput]) -> Vec<HostTensor> {
    let init = Init::new(1);
    inputs.iter().map(|input| input.make(&init)).collect()
}

impl Benchmark {
    /// Creates a program that calls a function of a session, on the device that
    /// [`Session::from_args`] chooses.
    fn new<Args: 'static, F: GraphFn<Args> + 'static>(f: F, inputs: Vec<BenchInput>) -> Benchmark {
        let session = Session::from_args().unwrap_or_else(|e| panic!("{e}"));
        let function = Rc::new(session.function(f).expect("the function has a name"));
        let types: Vec<TensorType> = inputs.iter().map(BenchInput::ty).collect();
        let [explained, of_graph] = [function.clone(), function.clone()];
        let types_of_graph = types.clone();
        let mut made = None;
        let call = move || {
            let inputs = made.get_or_insert_with(|| make(&inputs));
            black_box(function.call_host(black_box(inputs)).unwrap_or_else(|e| panic!("{e}")));
        };
        let explain = move || explained.explain(&types).unwrap_or_else(|e| panic!("{e}"));
        let graph = move || of_graph.graph(&types_of_graph).unwrap_or_else(|e| panic!("{e}"));
        Benchmark { call: Box::new(call), explain: Box::new(explain), graph: Box::new(graph) }
    }

    /// Creates a program that writes its results to memory that is kept from call to call.
    fn into_kept_memory<Args: 'static, F: GraphFn<Args> + 'static>(f: F, inputs: Vec<BenchInput>) -> Benchmark {
        let session = Session::new().expect("a session on the CPU");
        let types: Vec<TensorType> = inputs.iter().map(BenchInput::ty).collect();
        let graph = session.function(f).and_then(|f| f.graph(&types));
        let program = Rc::new(graph.and_then(Program::new).unwrap_or_else(|e| panic!("{e}")));
        let [explained, of_graph] = [program.clone(), program.clone()];
        let (mut made, mut outputs) = (None, Vec::new());
        let call = move || {
            let inputs = made.get_or_insert_with(|| make(&inputs));
            program.run_into(inputs, &mut Vec::new(), &mut outputs).unwrap_or_else(|e| panic!("{e}"));
        };
        let (explain, graph) = (move || explained.explain(), move || of_graph.graph().clone());
        Benchmark { call: Box::new(call), explain: Box::new(explain), graph: Box::new(graph) }
    }

    /// Makes the inputs and runs the program once, so that a measurement has neither in it.
    #[must_use]
    pub fn ready(mut self) -> Benchmark {
        self.call();
        self
    }

    /// Runs the program once.
    pub fn call(&mut self) {
        (self.call)();
    }

    /// Returns the plan as text.
    pub fn explain(&self) -> String {
        (self.explain)()
    }

    /// Returns the graph that is compiled.
    pub fn graph(&self) -> Graph {
        (self.graph)()
    }
}

/// A name and what makes the program.
pub type Named = (&'static str, fn() -> Benchmark);

macro_rules! named {
    ($($module:ident: $($name:ident),*;)*) => {
        /// All programs, by the module of each.
        pub const ALL: &[(&str, &[Named])] =
            &[$((stringify!($module), &[$((stringify!($name), $module::$name)),*])),*];
    };
}
named! {
    control_flow: scalar_while, nested_while_with_a_branch, gradient_of_1000_trips,
        tanh_of_a_64x64_product_in_a_while, lorenz_1000_steps, lorenz_gradient_of_1000_steps, reading_40000_rows,
        gradient_of_reading_5000_rows, gradient_of_reading_40000_rows, gradient_of_reading_40000_rows_of_32;
    examples: mandelbrot_1024, collatz_1_000_000, newton_1_000_000, newton_1_000_000_gradient, sequences_1000,
        sequences_1000_gradient, hidden_markov_1000, hidden_markov_1000_gradient, van_der_pol_1000, van_der_pol_1000_gradient;
    memory: tanh_chain_10_000_000, sum_10_000_000, mean_squared_error_10_000_000, softmax_4096_1024,
        softmax_gradient_4096_1024, layer_norm_4096_1024, layer_norm_gradient_4096_1024;
    tables: gather_8192_of_100000_x_64, sgd_of_8192_of_100000_x_64,
        descent_by_a_table_of_rates_of_8192_of_100000_x_64, transformer_4_blocks_256_forward_and_backward,
        causal_attention_8_heads_2048_positions;
    training: digits_step, lstm_512_of_separate_gates_batch_32_steps_50, lstm_512_batch_32_steps_50,
        mlp_784_1024_1024_10_batch_128;
    vision: conv_3x3_64_on_56x56_batch_8_forward, conv_3x3_64_on_56x56_batch_8_forward_backward,
        two_conv_3x3_relu_forward, two_conv_3x3_relu_forward_backward, separable_block_forward,
        separable_block_forward_backward, lenet_batch_64_sgd, cifar_quick_batch_100_sgd;
}
