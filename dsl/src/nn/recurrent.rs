//! Recurrent cells, which process one step of a sequence, for use in a `while`.

use super::{Init, module};
use crate::{Float, Loc, Tensor, Var, trace, zeros};

/// Splits the last axis into parts of equal extent.
#[track_caller]
fn parts<T: Float, const N: usize>(x: Tensor<T>, units: usize) -> [Tensor<T>; N] {
    trace::called_at(Loc::caller(), || std::array::from_fn(|i| x.slice(-1, i * units, (i + 1) * units)))
}

/// A plain recurrent cell: `tanh(x · weight_input + h · weight_state + bias)` (Elman 1990).
#[derive(Debug)]
pub struct Rnn {
    /// The input weights, `[inputs, units]`.
    pub weight_input: Var,
    /// The state weights, `[units, units]`.
    pub weight_state: Var,
    /// The bias, `[units]`.
    pub bias: Var,
    units: usize,
}
module!(Rnn: weight_input, weight_state, bias);

impl Rnn {
    /// Creates a cell with weights and bias uniform within `1 / sqrt(units)`.
    pub fn new(init: &Init, inputs: usize, units: usize) -> Rnn {
        Rnn {
            weight_input: Var::new("weight_input", init.fan_in([inputs, units], units)),
            weight_state: Var::new("weight_state", init.fan_in([units, units], units)),
            bias: Var::new("bias", init.fan_in([units], units)),
            units,
        }
    }

    /// Returns the initial state of a batch: zeros `[batch, units]`.
    #[track_caller]
    pub fn zero_state<T: Float>(&self, batch: usize) -> Tensor<T> {
        zeros([batch, self.units])
    }

    /// Computes one step. `x` is `[batch, inputs]`, `h` is `[batch, units]`. Returns the next `h`.
    #[track_caller]
    pub fn step<T: Float>(&self, x: Tensor<T>, h: Tensor<T>) -> Tensor<T> {
        (x.matmul(self.weight_input.get().cast()) + h.matmul(self.weight_state.get().cast()) + self.bias.get().cast())
            .tanh()
    }
}

/// A long short-term memory cell (Hochreiter and Schmidhuber 1997), with a forget gate and without
/// peepholes.
#[derive(Debug)]
pub struct Lstm {
    /// The input weights, `[inputs, 4 * units]`: input, forget, candidate and output gate,
    /// concatenated.
    pub weight_input: Var,
    /// The state weights, `[units, 4 * units]`.
    pub weight_state: Var,
    /// The bias, `[4 * units]`, initially 1 for the forget gate (Jozefowicz et al. 2015), else 0.
    pub bias: Var,
    units: usize,
}
module!(Lstm: weight_input, weight_state, bias);

/// The state of an [`Lstm`]: output and memory, both `[batch, units]`.
pub type LstmState<T = f32> = (Tensor<T>, Tensor<T>);

impl Lstm {
    /// Creates a cell with weights uniform within `1 / sqrt(units)`.
    pub fn new(init: &Init, inputs: usize, units: usize) -> Lstm {
        let mut bias = vec![0.0; 4 * units];
        bias[units..2 * units].fill(1.0);
        Lstm {
            weight_input: Var::new("weight_input", init.fan_in([inputs, 4 * units], units)),
            weight_state: Var::new("weight_state", init.fan_in([units, 4 * units], units)),
            bias: Var::new("bias", bias),
            units,
        }
    }

    /// Returns the initial state of a batch: zeros.
    #[track_caller]
    pub fn zero_state<T: Float>(&self, batch: usize) -> LstmState<T> {
        (zeros([batch, self.units]), zeros([batch, self.units]))
    }

    /// Computes one step.
    ///
    /// `x` is `[batch, inputs]`. Returns the output `[batch, units]` and the next state.
    #[track_caller]
    pub fn step<T: Float>(&self, x: Tensor<T>, (h, c): LstmState<T>) -> (Tensor<T>, LstmState<T>) {
        let gates = x.matmul(self.weight_input.get().cast())
            + h.matmul(self.weight_state.get().cast())
            + self.bias.get().cast();
        let [input, forget, candidate, output] = parts(gates, self.units);
        let c = forget.sigmoid() * c + input.sigmoid() * candidate.tanh();
        let h = output.sigmoid() * c.tanh();
        (h, (h, c))
    }
}

/// A gated recurrent unit (Cho et al. 2014), with the reset gate applied after the matmul, as in
/// cuDNN.
#[derive(Debug)]
pub struct Gru {
    /// The input weights, `[inputs, 3 * units]`: reset gate, update gate and candidate,
    /// concatenated.
    pub weight_input: Var,
    /// The state weights, `[units, 3 * units]`.
    pub weight_state: Var,
    /// The bias of the input part, `[3 * units]`.
    pub bias_input: Var,
    /// The bias of the state part, `[3 * units]`.
    pub bias_state: Var,
    units: usize,
}
module!(Gru: weight_input, weight_state, bias_input, bias_state);

impl Gru {
    /// Creates a cell with weights and biases uniform within `1 / sqrt(units)`.
    pub fn new(init: &Init, inputs: usize, units: usize) -> Gru {
        Gru {
            weight_input: Var::new("weight_input", init.fan_in([inputs, 3 * units], units)),
            weight_state: Var::new("weight_state", init.fan_in([units, 3 * units], units)),
            bias_input: Var::new("bias_input", init.fan_in([3 * units], units)),
            bias_state: Var::new("bias_state", init.fan_in([3 * units], units)),
            units,
        }
    }

    /// Returns the initial state of a batch: zeros `[batch, units]`.
    #[track_caller]
    pub fn zero_state<T: Float>(&self, batch: usize) -> Tensor<T> {
        zeros([batch, self.units])
    }

    /// Computes one step. `x` is `[batch, inputs]`, `h` is `[batch, units]`. Returns the next `h`.
    #[track_caller]
    pub fn step<T: Float>(&self, x: Tensor<T>, h: Tensor<T>) -> Tensor<T> {
        let from_input = x.matmul(self.weight_input.get().cast()) + self.bias_input.get().cast();
        let from_state = h.matmul(self.weight_state.get().cast()) + self.bias_state.get().cast();
        let [reset_x, update_x, candidate_x] = parts(from_input, self.units);
        let [reset_h, update_h, candidate_h] = parts(from_state, self.units);
        let reset = (reset_x + reset_h).sigmoid();
        let update = (update_x + update_h).sigmoid();
        let candidate = (candidate_x + reset * candidate_h).tanh();
        candidate + update * (h - candidate)
    }
}
