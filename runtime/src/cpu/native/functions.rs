//! Inlined math functions in native code.
//!
//! The functions of `cpu::math`, on one number. The operations and their order are the same, so
//! results are bitwise identical. A call would have to save and restore all vector registers of the
//! loop.

use crate::cpu::math::{Constants, FACTORIALS, Real};
use anabranch_dsl::ops::{Prim, prim};
use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Type, Value, types};
use cranelift_frontend::FunctionBuilder;

/// A code emitter for numbers of one type.
struct Emit<'a, 'b> {
    b: &'a mut FunctionBuilder<'b>,
    ty: Type,
    constants: Constants,
}

/// Emits a function of `x`, which has type `ty`. Returns `None` for functions not defined here.
pub(super) fn emit(b: &mut FunctionBuilder<'_>, op: Prim, ty: Type, x: Value) -> Option<Value> {
    let constants = if ty == types::F32 { f32::CONSTANTS } else { f64::CONSTANTS };
    let mut emit = Emit { b, ty, constants };
    Some(match op {
        prim::EXP => emit.exp(x),
        prim::TANH => emit.tanh(x),
        prim::SIGMOID => emit.sigmoid(x),
        prim::SILU => {
            let s = emit.sigmoid(x);
            emit.mul(x, s)
        }
        prim::RELU => {
            let zero = emit.number(0.0);
            let nan = emit.b.ins().fcmp(FloatCC::Unordered, x, x);
            let larger = emit.b.ins().fcmp(FloatCC::GreaterThan, x, zero);
            let stays = emit.b.ins().bor(nan, larger);
            emit.b.ins().select(stays, x, zero)
        }
        _ => return None,
    })
}

impl Emit<'_, '_> {
    fn number(&mut self, x: f64) -> Value {
        if self.ty == types::F32 { self.b.ins().f32const(x as f32) } else { self.b.ins().f64const(x) }
    }

    fn add(&mut self, a: Value, b: Value) -> Value {
        self.b.ins().fadd(a, b)
    }

    fn sub(&mut self, a: Value, b: Value) -> Value {
        self.b.ins().fsub(a, b)
    }

    fn mul(&mut self, a: Value, b: Value) -> Value {
        self.b.ins().fmul(a, b)
    }

    fn div(&mut self, a: Value, b: Value) -> Value {
        self.b.ins().fdiv(a, b)
    }

    /// Limits `x` to `end`.
    fn limit(&mut self, x: Value, beyond: FloatCC, end: f64) -> Value {
        let end = self.number(end);
        let is_beyond = self.b.ins().fcmp(beyond, x, end);
        self.b.ins().select(is_beyond, end, x)
    }

    fn integers(&self) -> Type {
        if self.ty == types::F32 { types::I32 } else { types::I64 }
    }

    /// Emits `Split::split`.
    fn split(&mut self, x: Value) -> (Value, Value) {
        let Constants { log2_e, ln2: [high, low], round, .. } = self.constants;
        let [log2_e, round, high, low] = [log2_e, round, high, low].map(|c| self.number(c));
        let scaled = self.mul(x, log2_e);
        let t = self.add(scaled, round);
        let n = self.sub(t, round);
        let ty = self.integers();
        let [t, round] = [t, round].map(|v| self.b.ins().bitcast(ty, MemFlagsData::new(), v));
        let int = self.b.ins().isub(t, round);
        let (high, low) = (self.mul(n, high), self.mul(n, low));
        let rest = self.sub(x, high);
        (int, self.sub(rest, low))
    }

    /// Emits `2^n`.
    fn power(&mut self, n: Value) -> Value {
        let biased = self.b.ins().iadd_imm_s(n, self.constants.bias);
        let bits = self.b.ins().ishl_imm_u(biased, i64::from(self.constants.mantissa));
        self.b.ins().bitcast(self.ty, MemFlagsData::new(), bits)
    }

    /// Emits `Split::series`.
    fn series(&mut self, r: Value) -> Value {
        let square = self.mul(r, r);
        let pair = |emit: &mut Self, k: usize| {
            let [a, b] = [FACTORIALS[k], FACTORIALS[k + 1]].map(|c| emit.number(c));
            let product = emit.mul(b, r);
            emit.add(a, product)
        };
        let terms = self.constants.exp_terms;
        let mut sum = pair(self, terms - 2);
        for k in (0..terms / 2 - 1).rev() {
            let pair = pair(self, 2 * k);
            let product = self.mul(sum, square);
            sum = self.add(product, pair);
        }
        let product = self.mul(square, sum);
        self.add(r, product)
    }

    fn exp(&mut self, x: Value) -> Value {
        let [low, high] = self.constants.exp_range;
        let x = self.limit(x, FloatCC::GreaterThan, high);
        let x = self.limit(x, FloatCC::LessThan, low);
        let (n, rest) = self.split(x);
        let half = self.b.ins().sshr_imm_u(n, 1);
        let other = self.b.ins().isub(n, half);
        let (half, other) = (self.power(half), self.power(other));
        let (one, series) = (self.number(1.0), self.series(rest));
        let sum = self.add(one, series);
        let product = self.mul(sum, half);
        self.mul(product, other)
    }

    fn tanh(&mut self, x: Value) -> Value {
        let (one, two) = (self.number(1.0), self.number(2.0));
        let size = self.b.ins().fabs(x);
        let y = self.mul(two, size);
        let y = self.limit(y, FloatCC::GreaterThan, self.constants.saturation);
        let (n, rest) = self.split(y);
        let (power, series) = (self.power(n), self.series(rest));
        let (product, difference) = (self.mul(power, series), self.sub(power, one));
        let less_one = self.add(product, difference);
        let sum = self.add(less_one, two);
        let quotient = self.div(less_one, sum);
        self.b.ins().fcopysign(quotient, x)
    }

    fn sigmoid(&mut self, x: Value) -> Value {
        let size = self.b.ins().fabs(x);
        let negative = self.b.ins().fneg(size);
        let e = self.exp(negative);
        let (zero, one) = (self.number(0.0), self.number(1.0));
        let is_positive = self.b.ins().fcmp(FloatCC::GreaterThanOrEqual, x, zero);
        let above = self.b.ins().select(is_positive, one, e);
        let below = self.add(one, e);
        self.div(above, below)
    }
}
