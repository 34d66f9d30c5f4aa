//! A recursive network over trees, which learns to evaluate boolean expressions from the values of
//! their roots alone.
//!
//! One staged loop iterates over the nodes of a whole forest, children before parents, and keeps
//! their states in a `List`. The state of a leaf is looked up. An inner node reads the states of
//! its children and combines them in a tree LSTM cell (Tai et al. 2015,
//! <https://arxiv.org/abs/1503.00075>). The loop is differentiated, so the cotangent of a state is
//! the sum over all its readers.
//!
//! The shapes of the trees are data: one compiled function serves all of them, also trees larger
//! than those of the training. Looks et al. (2017, <https://arxiv.org/abs/1702.02181>) make one
//! static graph serve all trees by batching their operations by depth; this example uses
//! a loop.
//!
//! `cargo run --release --example tree_rnn [-- --seed N]`

use anabranch::nn::{Embedding, Init, Linear};
use anabranch::optim::{Adam, Optimizer};
use anabranch::prelude::*;
use std::cell::Cell;

const UNITS: usize = 16;
/// The number of trees in a forest, and the capacity for their nodes: forests with fewer nodes have
/// the same type.
const TREES: usize = 48;
const ROOM: usize = TREES * 63;
const ROUNDS: usize = 800;
type Operator = (&'static str, fn(bool, bool) -> bool);
/// The operators of inner nodes. The symbols of nodes are false, true, and then these.
const OPERATORS: [Operator; 3] = [("and", |a, b| a & b), ("or", |a, b| a | b), ("xor", |a, b| a ^ b)];
const NO_CHILD: i32 = -1;

#[derive(Module)]
struct TreeLstm {
    symbols: Embedding,
    /// Maps the symbol and the states of the children to the input, candidate, output and a forget
    /// gate for each child.
    gates: Linear,
    out: Linear,
}

impl TreeLstm {
    fn new(init: &Init) -> TreeLstm {
        TreeLstm {
            symbols: Embedding::new(init, 2 + OPERATORS.len(), UNITS),
            gates: Linear::new(init, 3 * UNITS, 5 * UNITS),
            out: Linear::new(init, UNITS, 2),
        }
    }

    /// Returns the logits `[TREES, 2]` of the roots at the positions `roots`. Each of the first `n`
    /// rows of `nodes` is a node: its symbol and the positions of its children, which precede it.
    #[graph]
    fn evaluate(&self, nodes: Tensor<i32>, n: Tensor<i32>, roots: Tensor<i32>) -> Tensor {
        let (mut states, mut memories) = (List::new([UNITS]), List::new([UNITS]));
        for place in range(n) {
            let [symbol, left, right] = std::array::from_fn(|i| nodes.row(place).index(i, 0));
            let x = self.symbols.forward(symbol);
            if left == NO_CHILD {
                states.push(x.tanh());
                memories.push(x);
            } else {
                let children = [x, states.read(left), states.read(right)];
                let gates = self.gates.forward(concat(&children, 0)).reshape([5, UNITS]);
                let forget = gates.slice(0, 0, 2).sigmoid();
                let kept = forget.row(0) * memories.read(left) + forget.row(1) * memories.read(right);
                let memory = kept + gates.row(2).sigmoid() * gates.row(3).tanh();
                states.push(gates.row(4).sigmoid() * memory.tanh());
                memories.push(memory);
            }
        }
        self.out.forward(states.gather(roots))
    }
}

#[graph]
fn train_step(
    model: &TreeLstm,
    adam: &Adam,
    nodes: Tensor<i32>,
    n: Tensor<i32>,
    roots: Tensor<i32>,
    values: Tensor<i32>,
) -> Tensor {
    let loss = model.evaluate(nodes, n, roots).cross_entropy(values).mean();
    adam.minimize(loss, model);
    loss
}

/// Trees whose nodes are stored one after the other.
#[derive(Default)]
struct Forest {
    nodes: Vec<[i32; 3]>,
    roots: Vec<i32>,
    values: Vec<i32>,
}

impl Forest {
    /// Grows `TREES` random trees, whose numbers of leaves are in the range `leaves`.
    fn grow(rng: &mut Rng, leaves: std::ops::RangeInclusive<usize>) -> Forest {
        let mut forest = Forest::default();
        for _ in 0..TREES {
            let n = leaves.start() + rng.below(leaves.end() - leaves.start() + 1);
            let (root, value) = forest.tree(rng, n);
            forest.roots.push(root);
            forest.values.push(value.into());
        }
        forest
    }

    /// Grows a tree. Returns its position and value.
    fn tree(&mut self, rng: &mut Rng, leaves: usize) -> (i32, bool) {
        let (node, value) = if leaves == 1 {
            let value = rng.below(2) == 1;
            ([value.into(), NO_CHILD, NO_CHILD], value)
        } else {
            let of_left = 1 + rng.below(leaves - 1);
            let ((left, a), (right, b)) = (self.tree(rng, of_left), self.tree(rng, leaves - of_left));
            let operator = rng.below(OPERATORS.len());
            ([2 + operator as i32, left, right], OPERATORS[operator].1(a, b))
        };
        self.nodes.push(node);
        (self.nodes.len() as i32 - 1, value)
    }

    /// Returns the arguments of a call: the nodes, padded to `ROOM`, their number, and the roots.
    fn arguments(&self) -> (Array<i32>, i32, &[i32]) {
        let mut nodes = self.nodes.as_flattened().to_vec();
        nodes.resize(3 * ROOM, NO_CHILD);
        (Array::new([ROOM, 3], nodes), self.nodes.len() as i32, &self.roots)
    }

    fn show(&self, place: i32) -> String {
        let [symbol, left, right] = self.nodes[place as usize];
        match symbol {
            0 | 1 => symbol.to_string(),
            _ => format!("({} {} {})", self.show(left), OPERATORS[symbol as usize - 2].0, self.show(right)),
        }
    }
}

/// A small random number generator (xorshift64*, Vigna 2016).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }
}

fn main() -> anabranch::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let seed = args.iter().position(|a| a == "--seed").and_then(|i| args.get(i + 1)?.parse().ok()).unwrap_or(1);

    let (model, adam) = (TreeLstm::new(&Init::new(seed)), Adam::new(0.01));
    let session = Session::from_args()?;
    let traces = Cell::new(0);
    let step = session.function(|nodes, n, roots, values| train_step(&model, &adam, nodes, n, roots, values))?;
    let evaluate = session.function(|nodes, n, roots| {
        traces.set(traces.get() + 1);
        model.evaluate(nodes, n, roots).argmax(-1)
    })?;

    let mut rng = Rng(2 * seed + 1);
    let started = std::time::Instant::now();
    for round in 0..=ROUNDS {
        let forest = Forest::grow(&mut rng, 3..=8);
        let (nodes, n, roots) = forest.arguments();
        let loss = step.call((nodes, n, roots, &forest.values))?;
        if round % 100 == 0 {
            println!(
                "{round:>5} of {ROUNDS}: loss {:.4}, {} nodes, {:.1} s",
                loss.item(),
                n,
                started.elapsed().as_secs_f32()
            );
        }
    }
    println!("{:>10} {:>8} {:>8} {:>10}  one of them", "leaves", "trees", "false", "accuracy");
    for leaves in [1..=2, 3..=4, 5..=8, 9..=16, 17..=32] {
        let (mut right, mut wrong, mut zeros) = (0, 0, 0);
        let mut example = String::new();
        for _ in 0..10 {
            // Training uses trees of 3 to 8 leaves. Smaller trees are right only if the gradient
            // has reached the states below the root, larger trees only if the learned function can
            // be repeated.
            let forest = Forest::grow(&mut rng, leaves.clone());
            let (nodes, n, roots) = forest.arguments();
            let found = evaluate.call((nodes, n, roots))?;
            for (&root, (found, value)) in forest.roots.iter().zip(found.as_slice().iter().zip(&forest.values)) {
                if found == value {
                    right += 1
                } else {
                    wrong += 1
                }
                zeros += 1 - value;
                example = forest.show(root);
                if example.len() > 70 {
                    example.replace_range(66.., " ..");
                }
                example += if found == value { ", right" } else { ", wrong" };
            }
        }
        let accuracy = f64::from(right) / f64::from(right + wrong);
        println!(
            "{:>10} {:>8} {zeros:>8} {:>8.1} %  {example}",
            format!("{leaves:?}"),
            right + wrong,
            100.0 * accuracy
        );
        assert!(accuracy > if *leaves.end() > 8 { 0.9 } else { 0.95 }, "the network has not learned it");
    }
    assert_eq!(traces.get(), 1, "forests of all sizes are evaluated by one compiled function");
    Ok(())
}
