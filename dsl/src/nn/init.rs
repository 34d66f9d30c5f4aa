//! Initial values of parameters.

use crate::ops::random::{folded, philox, unit_f32};
use crate::{Array, Shape, scalars};
use std::cell::Cell;
use std::f32::consts::TAU;

/// A source of initial values.
///
/// The same seed yields the same values for the same sequence of calls. The `i`-th tensor is that
/// of `Key::new(seed).fold_in(i)`.
#[derive(Debug)]
pub struct Init {
    seed: u64,
    drawn: Cell<u32>,
}

fn extents(shape: impl Into<Shape>) -> Vec<usize> {
    shape.into().known().expect("the shape of initial values is known")
}

/// Returns `f` of the first `n` uniform numbers in `[0, 1)` of the stream of a key.
///
/// The numbers are those of [`Key::uniform`](crate::random::Key::uniform). They are computed
/// directly, without a graph, since parameters have millions of elements and delay the first step.
fn units(key: [u32; 2], n: usize, f: impl Fn(f32) -> f32) -> Vec<f32> {
    let mut data = vec![0.0; n];
    for (i, four) in (0u64..).zip(data.chunks_mut(4)) {
        let block = philox([i as u32, (i >> 32) as u32, 0, 0], key);
        four.iter_mut().zip(block).for_each(|(x, word)| *x = f(unit_f32(word)));
    }
    data
}

impl Init {
    /// Creates a source with a seed.
    pub fn new(seed: u64) -> Init {
        Init { seed, drawn: Cell::new(0) }
    }

    /// Returns the next key of the stream.
    fn draw(&self) -> [u32; 2] {
        let n = self.drawn.replace(self.drawn.get() + 1);
        folded([self.seed as u32, (self.seed >> 32) as u32], u64::from(n))
    }

    /// Returns uniform values in `[-bound, bound)`.
    pub fn uniform(&self, shape: impl Into<Shape>, bound: f32) -> Array<f32> {
        let (shape, key) = (extents(shape), self.draw());
        let data = units(key, shape.iter().product(), |u| u * (2.0 * bound) - bound);
        Array::new(shape, data)
    }

    /// Returns normal values of mean 0.
    pub fn normal(&self, shape: impl Into<Shape>, deviation: f32) -> Array<f32> {
        let (shape, key) = (extents(shape), self.draw());
        let n = shape.iter().product();
        let mut data = units(folded(key, 0), n, |u| (scalars::log(1.0 - u) * -2.0).sqrt());
        let angles = units(folded(key, 1), n, |v| scalars::cos(v * TAU));
        data.iter_mut().zip(angles).for_each(|(x, cos)| *x = *x * cos * deviation);
        Array::new(shape, data)
    }

    /// Returns a matrix `[fan_in, fan_out]`, uniform with the bound `sqrt(6 / (fan_in + fan_out))`
    /// (Glorot and Bengio 2010).
    pub fn glorot(&self, fan_in: usize, fan_out: usize) -> Array<f32> {
        self.uniform([fan_in, fan_out], (6.0 / (fan_in + fan_out) as f32).sqrt())
    }

    /// Returns values uniform with the bound `1 / sqrt(fan_in)`, the usual choice for layers with a
    /// bias. Without inputs all are 0.
    pub fn fan_in(&self, shape: impl Into<Shape>, fan_in: usize) -> Array<f32> {
        self.uniform(shape, if fan_in > 0 { 1.0 / (fan_in as f32).sqrt() } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval;
    use crate::random::Key;

    #[test]
    fn a_layer_without_inputs_has_a_bias_of_zeros() {
        assert_eq!(Init::new(1).fan_in([3], 0).as_slice(), [0.0; 3]);
    }

    #[test]
    fn initial_values_are_those_of_keys() {
        let init = Init::new(u64::MAX - 5);
        let key = |n: i32| Key::new(u64::MAX - 5).fold_in(n);
        let uniform = eval(|| key(0).uniform::<f32>([3, 7]) * 0.5f32 - 0.25).expect("it runs");
        assert_eq!(init.uniform([3, 7], 0.25), uniform);
        let normal = eval(|| key(1).normal::<f32>([11]) * 3.0f32).expect("it runs");
        assert_eq!(init.normal([11], 3.0), normal);
    }
}
