//! Random functions for property tests: programs with branches, loops, variables and gradients,
//! built with the tracer.
//!
//! A tape of bytes determines a program, so that a failing program shrinks to a small one. Loops
//! are bounded, and nothing in a program fails at run time, so results can be compared.

use anabranch_dsl::AnyValue;
use anabranch_dsl::ir::Graph;
use anabranch_dsl::trace::{self, CondTrace, WhileTrace};
use anabranch_dsl::{AnyVar, DType, Dim, HostTensor, Tensor, TensorType};
use anabranch_dsl::{checkpoint, checkpoint_loop, checkpoint_loop_every, custom_gradient, gradients, on};
use std::sync::Arc;

/// A random graph, and initial values for its variables.
pub(crate) struct RandomGraph {
    pub(crate) graph: Graph,
    pub(crate) vars: Vec<HostTensor>,
}

/// The value of the extent `n` in random graphs.
pub(crate) const N: usize = 3;

/// The devices of random graphs.
pub(crate) const DEVICES: [&str; 5] = ["/cpu:0", "/cpu:1", "/cpu:2", "/cpu", "/peer:local"];

fn n() -> Dim {
    Dim::Named(Arc::from("n"))
}

/// Returns the inputs of every random graph.
pub(crate) fn inputs() -> Vec<HostTensor> {
    vec![
        HostTensor::new([N], vec![0.5f32, -0.0, 1.25]),
        HostTensor::new([2, N], vec![0.25f32, -1.5, 0.75, 2.0, -0.5, 0.125]),
        HostTensor::new([], vec![7i32]),
        HostTensor::new([N], vec![true, false, true]),
        HostTensor::new([], vec![-0.75f64]),
    ]
}

/// Returns the program that a tape determines.
pub(crate) fn program(tape: &[u8]) -> RandomGraph {
    written(tape, true)
}

/// Returns the same program without its checkpoints, which do not affect its results.
pub(crate) fn without_checkpoints(tape: &[u8]) -> RandomGraph {
    written(tape, false)
}

fn written(tape: &[u8], checkpoints: bool) -> RandomGraph {
    let traced = trace::trace("random", || {
        let types = [
            TensorType { dtype: DType::F32, shape: [n()].into() },
            TensorType { dtype: DType::F32, shape: [Dim::Known(2), n()].into() },
            TensorType::new(DType::I32, ()),
            TensorType { dtype: DType::Bool, shape: [n()].into() },
            TensorType::new(DType::F64, ()),
        ];
        let names = ["x", "m", "k", "mask", "y"];
        let inputs: Vec<AnyValue> =
            types.iter().zip(names).map(|(ty, name)| trace::input(ty.clone(), Some(name))).collect();
        let vars = vec![
            AnyVar::new("w", HostTensor::new([2], vec![1.0f32, -2.0])),
            AnyVar::new("odd name", HostTensor::scalar(3i32)),
        ];
        let mut writer = GraphWriter { tape: tape.iter(), vars, checkpoints };
        let mut scope = inputs.clone();
        let gradient = writer.choose(2) == 1;
        writer.block(&mut scope, 3, 12);
        if gradient {
            let wrt = inputs[writer.choose(2)];
            scope.push(gradient_of_latest(&scope, wrt));
        }
        // The latest values of each kind are outputs, among them those of control flow.
        scope.into_iter().rev().take(4).collect()
    });
    let traced = traced.unwrap_or_else(|e| panic!("a random program is not traced: {e}"));
    let vars = traced.vars.iter().map(|v| v.init().clone()).collect();
    RandomGraph { graph: traced.graph, vars }
}

struct GraphWriter<'a> {
    tape: std::slice::Iter<'a, u8>,
    vars: Vec<AnyVar>,
    checkpoints: bool,
}

impl GraphWriter<'_> {
    /// Returns a number below `n` from the tape, which is padded with zeros.
    fn choose(&mut self, n: usize) -> usize {
        usize::from(self.tape.next().copied().unwrap_or(0)) % n
    }

    /// Returns a value of the scope, with a preference for later values.
    fn pick(&mut self, scope: &[AnyValue]) -> AnyValue {
        let back = self.choose(scope.len()).min(self.choose(scope.len()));
        scope[scope.len() - 1 - back]
    }

    fn pick_where(&mut self, scope: &[AnyValue], fits: impl Fn(&TensorType) -> bool) -> AnyValue {
        let fitting: Vec<AnyValue> = scope.iter().copied().filter(|a| fits(&a.tensor_type())).collect();
        self.pick(&fitting)
    }

    fn block(&mut self, scope: &mut Vec<AnyValue>, depth: usize, most: usize) {
        for _ in 0..2 + self.choose(most) {
            self.statement(scope, depth);
        }
    }

    fn statement(&mut self, scope: &mut Vec<AnyValue>, depth: usize) {
        let a = self.pick(scope);
        let ty = a.tensor_type();
        let new = match self.choose(19) {
            0 => trace::constant(self.constant()),
            1 if ty.dtype.is_float() => a.tanh(),
            2 if ty.dtype.is_numeric() => a.neg(),
            3 if ty.dtype.is_numeric() => a.add(self.pick_where(scope, |t| *t == ty)),
            4 if ty.dtype.is_numeric() => a.mul(self.pick_where(scope, |t| *t == ty)),
            5 if ty.dtype.is_numeric() => a.sub(self.pick_where(scope, |t| *t == ty)),
            6 if ty.dtype.is_numeric() => a.lt(self.pick_where(scope, |t| *t == ty)),
            7 if ty.dtype == DType::Bool => a.not(),
            8 => a.cast(DType::ALL[self.choose(7)]),
            9 if ty.dtype.is_numeric() && ty.rank() > 0 => {
                if self.choose(2) == 0 {
                    a.sum_keepdim(-1)
                } else {
                    a.sum_axis(-1)
                }
            }
            // Identity elements, which constant folding simplifies.
            10 if ty.dtype.is_numeric() => a.mul(a.number([1.0, 0.0, -1.0][self.choose(3)])),
            11 if ty.dtype.is_numeric() => a.add(a.number([0.0, -0.0, 1.0][self.choose(3)])),
            12 if depth > 0 => return self.branch(scope, depth),
            13 if depth > 0 => return self.repeat(scope, depth),
            14 => self.variable(scope),
            15 => {
                trace::assert(self.predicate(scope, true), "assertions \"hold\"; always".to_owned());
                return;
            }
            16 if depth > 0 => return self.checkpoint(scope, depth),
            17 if ty.dtype == DType::F32 => self.with_own_gradient(scope, a),
            18 if depth > 0 => {
                let device = DEVICES[self.choose(DEVICES.len())];
                return on(device, || self.block(scope, depth - 1, 4));
            }
            _ if ty.dtype.is_float() => a.mul(a.tanh()).named("a b"),
            _ => a.cast(DType::F32).mul(a.cast(DType::F32)),
        };
        scope.push(if self.choose(4) == 0 { new.named("v") } else { new });
    }

    fn constant(&mut self) -> HostTensor {
        match self.choose(8) {
            0 => HostTensor::scalar(1.5f32),
            1 => HostTensor::scalar(f64::NAN),
            2 => HostTensor::new([2], vec![f32::NEG_INFINITY, -0.0]),
            3 => HostTensor::new([2, 2], vec![i64::MIN, 0, 1, i64::MAX]),
            4 => HostTensor::new([0, 3], Vec::<u8>::new()),
            5 => HostTensor::new([4], vec![true; 4]),
            6 => HostTensor::scalar(u32::MAX),
            _ => HostTensor::scalar(2i32),
        }
    }

    /// Returns a `bool[]`: a constant, or a value that depends on the inputs.
    fn predicate(&mut self, scope: &[AnyValue], holds: bool) -> AnyValue {
        if holds {
            let a = self.pick(scope).cast(DType::I32).sum();
            return a.eq(a);
        }
        match self.choose(4) {
            0 => trace::constant(HostTensor::scalar(true)),
            1 => trace::constant(HostTensor::scalar(false)),
            _ => self.pick(scope).cast(DType::F32).sum().gt(trace::constant(HostTensor::scalar(0.5f32))),
        }
    }

    fn variable(&mut self, scope: &[AnyValue]) -> AnyValue {
        let which = self.choose(2);
        let var = self.vars[which].clone();
        if self.choose(2) == 0 {
            let ty = var.ty().clone();
            let fitting: Vec<AnyValue> = scope.iter().copied().filter(|a| a.tensor_type() == ty).collect();
            if !fitting.is_empty() {
                let value = self.pick(&fitting);
                trace::assign_var(&var, value);
            }
        }
        trace::read_var(&var)
    }

    /// Returns the results of a branch or body, each of the type of a value in `of`: a value of the
    /// scope, or the product of its `tanh` and the value in `of`.
    fn next(&mut self, of: &[AnyValue], scope: &[AnyValue]) -> Vec<AnyValue> {
        let mut next = Vec::new();
        for &a in of {
            let ty = a.tensor_type();
            let b = self.pick_where(scope, |t| *t == ty);
            next.push(if ty.dtype.is_float() && self.choose(2) == 0 { a.mul(b.tanh()) } else { b });
        }
        next
    }

    fn branch(&mut self, scope: &mut Vec<AnyValue>, depth: usize) {
        let pred = self.predicate(scope, false);
        let of: Vec<AnyValue> = (0..self.choose(3)).map(|_| self.pick(scope)).collect();
        let mut cond = CondTrace::begin(pred);
        let mut sides = Vec::new();
        for side in 0..2 {
            cond.select(side);
            let mut inner = scope.clone();
            self.block(&mut inner, depth - 1, 4);
            sides.push(self.next(&of, &inner));
        }
        scope.extend(cond.end(&sides[0], &sides[1], &[]));
    }

    fn checkpoint(&mut self, scope: &mut Vec<AnyValue>, depth: usize) {
        let float = |a: AnyValue| Tensor::<f32>::from_any(a.cast(DType::F32));
        let kept = self.checkpoints;
        let mut body = || {
            let mut inner = scope.clone();
            self.block(&mut inner, depth - 1, 4);
            vec![float(self.pick(&inner)), float(self.pick(&inner))]
        };
        let results = if kept { checkpoint(body) } else { body() };
        scope.extend(results.into_iter().map(Tensor::untyped));
    }

    fn with_own_gradient(&mut self, scope: &[AnyValue], a: AnyValue) -> AnyValue {
        let scale = self.pick_where(scope, |t| t.dtype == DType::F32).sum().tanh();
        let f = custom_gradient(
            |x: Tensor<f32>| x.tanh() * x + Tensor::from_any(scale).stop_gradient(),
            |x, y, dy| dy * y.tanh() + x * Tensor::from_any(scale),
        );
        f(Tensor::from_any(a)).untyped()
    }

    fn repeat(&mut self, scope: &mut Vec<AnyValue>, depth: usize) {
        let counter = |n: i32| trace::constant(HostTensor::scalar(n));
        let mut init = vec![counter(0)];
        init.extend((0..1 + self.choose(2)).map(|_| self.pick(scope)));
        // A float, so that gradients flow through the loop.
        init.push(self.pick_where(scope, |t| t.dtype == DType::F32 && t.shape.dims().contains(&n())));
        let limit = self.choose(3) as i32;
        let (mut loop_, params) = WhileTrace::begin(&init, &[]);
        let pred = params[0].lt(counter(limit));
        let params = loop_.begin_body(pred);
        match self.choose(6) {
            0 if self.checkpoints => checkpoint_loop(),
            1 if self.checkpoints => checkpoint_loop_every(2),
            _ => {}
        }
        let mut inner = scope.clone();
        inner.extend(&params[1..]);
        self.block(&mut inner, depth - 1, 4);
        let mut next = vec![params[0].add(counter(1))];
        next.extend(self.next(&params[1..], &inner));
        scope.extend(loop_.end(&next, &[]));
    }
}

/// Returns the gradient of the latest value, through all its control flow. Loops then have stacks.
fn gradient_of_latest(scope: &[AnyValue], wrt: AnyValue) -> AnyValue {
    let latest = scope.iter().rev().copied().filter(|a| a.dtype() == DType::F32).take(8);
    let loss = latest.map(AnyValue::sum).reduce(AnyValue::add).expect("inputs are floats");
    gradients(Tensor::<f32>::from_any(loss), Tensor::<f32>::from_any(wrt)).untyped()
}
