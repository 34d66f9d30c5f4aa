//! Initial values of parameters.

use crate::ops::random::Key;
use crate::{Array, Shape, eval};
use std::cell::Cell;

/// A source of initial values: the same seed gives the same values, in the order in which they are asked for.
#[derive(Debug)]
pub struct Init {
    seed: u64,
    drawn: Cell<i32>,
}

impl Init {
    /// A source with a seed.
    pub fn new(seed: u64) -> Init {
        Init { seed, drawn: Cell::new(0) }
    }

    /// The next key of the stream.
    fn draw(&self, f: impl Fn(Key) -> crate::Tensor) -> Array<f32> {
        let n = self.drawn.replace(self.drawn.get() + 1);
        eval(|| f(Key::new(self.seed).fold_in(n))).expect("drawing random numbers does not fail outside of a trace")
    }

    /// Uniform in `[-bound, bound)`.
    pub fn uniform(&self, shape: impl Into<Shape>, bound: f32) -> Array<f32> {
        let shape = shape.into();
        self.draw(|key| key.uniform::<f32>(shape.clone()) * (2.0 * bound) - bound)
    }

    /// Normal with mean 0.
    pub fn normal(&self, shape: impl Into<Shape>, deviation: f32) -> Array<f32> {
        let shape = shape.into();
        self.draw(|key| key.normal::<f32>(shape.clone()) * deviation)
    }

    /// Uniform with the bound `sqrt(6 / (fan_in + fan_out))` for a matrix `[fan_in, fan_out]` (Glorot and Bengio 2010).
    pub fn glorot(&self, fan_in: usize, fan_out: usize) -> Array<f32> {
        self.uniform([fan_in, fan_out], (6.0 / (fan_in + fan_out) as f32).sqrt())
    }

    /// Uniform with the bound `1 / sqrt(fan_in)`, the usual choice for layers with bias.
    pub fn fan_in(&self, shape: impl Into<Shape>, fan_in: usize) -> Array<f32> {
        self.uniform(shape, 1.0 / (fan_in as f32).sqrt())
    }
}
