//! Elementwise operations: on registers, and fused on tensors in blocks.
//!
//! The meaning of one operation on one element is written once, in [`function`]; from it come a function on registers
//! and a loop over a block of elements. A [`Map`] is an index space, operands with their strides, and a list of
//! operations. It goes through the space in blocks that stay in the first-level cache: operands that do not lie one element
//! behind the other, or that lie where the result goes, are copied to scratch memory first, so that every inner loop runs
//! over plain slices.

use super::walk::{Axis, merged};
use crate::cpu::element::Cell;
use crate::cpu::kernels::Failed;
use crate::cpu::memory::Sources;
use crate::plan::{Operand, View};
use anabranch_dsl::DType;
use rayon::prelude::*;
use std::cell::RefCell;

/// An operation on registers; operands it does not take are ignored.
pub(crate) type ScalarFn = fn(u64, u64, u64) -> u64;
/// An operation on blocks of elements of equal number.
pub(crate) type BlockFn = fn(&mut [u8], [&[u8]; 3]);

/// Whether a register, or all elements of a block, are valid as second operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    pub(crate) scalar: fn(u64) -> bool,
    pub(crate) block: fn(&[u8]) -> bool,
}

/// One operation on elements of one type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) scalar: ScalarFn,
    pub(crate) block: BlockFn,
    /// The second operand must pass.
    pub(crate) check: Option<Check>,
}

macro_rules! unary {
    ($A:ty => $R:ty, |$x:ident| $e:expr) => {
        Function {
            scalar: |a, _, _| {
                let $x = <$A as Cell>::from_reg(a);
                <$R as Cell>::to_reg($e)
            },
            block: |out, [a, _, _]| {
                let out: &mut [<$R as Cell>::Mem] = bytemuck::cast_slice_mut(out);
                let a: &[<$A as Cell>::Mem] = bytemuck::cast_slice(a);
                for (out, &a) in out.iter_mut().zip(a) {
                    let $x = <$A as Cell>::load(a);
                    *out = <$R as Cell>::store($e);
                }
            },
            check: None,
        }
    };
}
macro_rules! binary {
    ($A:ty => $R:ty, |$x:ident, $y:ident| $e:expr) => {
        Function {
            scalar: |a, b, _| {
                let ($x, $y) = (<$A as Cell>::from_reg(a), <$A as Cell>::from_reg(b));
                <$R as Cell>::to_reg($e)
            },
            block: |out, [a, b, _]| {
                let out: &mut [<$R as Cell>::Mem] = bytemuck::cast_slice_mut(out);
                let a: &[<$A as Cell>::Mem] = bytemuck::cast_slice(a);
                let b: &[<$A as Cell>::Mem] = bytemuck::cast_slice(b);
                for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                    let ($x, $y) = (<$A as Cell>::load(a), <$A as Cell>::load(b));
                    *out = <$R as Cell>::store($e);
                }
            },
            check: None,
        }
    };
}

/// Chooses the Rust type `$T` of an element type among those listed.
macro_rules! dispatch {
    ($dtype:expr, $T:ident in [$($v:ident $t:ty),*] => $body:expr) => {
        match $dtype {
            $(DType::$v => { type $T = $t; Some($body) })*
            #[allow(unreachable_patterns, reason = "some lists have all types")]
            _ => None,
        }
    };
}
macro_rules! float1 { ($d:expr, |$x:ident| $e:expr) => { dispatch!($d, T in [F32 f32, F64 f64] => unary!(T => T, |$x| $e)) } }
macro_rules! float2 { ($d:expr, |$x:ident, $y:ident| $e:expr) => { dispatch!($d, T in [F32 f32, F64 f64] => binary!(T => T, |$x, $y| $e)) } }
macro_rules! int1 { ($d:expr, |$x:ident| $e:expr) => { dispatch!($d, T in [I32 i32, I64 i64, U32 u32, U8 u8] => unary!(T => T, |$x| $e)) } }
macro_rules! int2 { ($d:expr, |$x:ident, $y:ident| $e:expr) => { dispatch!($d, T in [I32 i32, I64 i64, U32 u32, U8 u8] => binary!(T => T, |$x, $y| $e)) } }
macro_rules! bool2 { ($d:expr, |$x:ident, $y:ident| $e:expr) => { dispatch!($d, T in [Bool bool] => binary!(T => T, |$x, $y| $e)) } }
macro_rules! compare { ($d:expr, |$x:ident, $y:ident| $e:expr) => {
    dispatch!($d, T in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8, Bool bool] => binary!(T => bool, |$x, $y| $e))
} }

/// The operation `name` on operands of type `operand` (the last operand, for `select`) with results of type `result`.
pub(crate) fn function(name: &str, operand: DType, result: DType) -> Option<Function> {
    let d = operand;
    match name {
        "neg" => float1!(d, |x| -x).or_else(|| int1!(d, |x| x.wrapping_neg())),
        "abs" => float1!(d, |x| x.abs()).or_else(|| match d {
            DType::I32 => Some(unary!(i32 => i32, |x| x.wrapping_abs())),
            DType::I64 => Some(unary!(i64 => i64, |x| x.wrapping_abs())),
            _ => int1!(d, |x| x),
        }),
        "sign" => float1!(d, |x| if x > 0.0 {
            1.0
        } else if x < 0.0 {
            -1.0
        } else {
            x
        })
        .or_else(|| match d {
            DType::I32 => Some(unary!(i32 => i32, |x| x.signum())),
            DType::I64 => Some(unary!(i64 => i64, |x| x.signum())),
            _ => int1!(d, |x| x.min(1)),
        }),
        "exp" => float1!(d, |x| x.exp()),
        "exp_m1" => float1!(d, |x| x.exp_m1()),
        "log" => float1!(d, |x| x.ln()),
        "log_1p" => float1!(d, |x| x.ln_1p()),
        "sqrt" => float1!(d, |x| x.sqrt()),
        "rsqrt" => float1!(d, |x| 1.0 / x.sqrt()),
        "recip" => float1!(d, |x| 1.0 / x),
        "sin" => float1!(d, |x| x.sin()),
        "cos" => float1!(d, |x| x.cos()),
        "tan" => float1!(d, |x| x.tan()),
        "asin" => float1!(d, |x| x.asin()),
        "acos" => float1!(d, |x| x.acos()),
        "atan" => float1!(d, |x| x.atan()),
        "sinh" => float1!(d, |x| x.sinh()),
        "cosh" => float1!(d, |x| x.cosh()),
        "tanh" => float1!(d, |x| x.tanh()),
        "sigmoid" => float1!(d, |x| x.sigmoid()),
        "relu" => float1!(d, |x| x.larger(0.0)).or_else(|| int1!(d, |x| x.max(0))),
        "softplus" => float1!(d, |x| x.larger(0.0) + (-x.abs()).exp().ln_1p()),
        "erf" => float1!(d, |x| Real::erf(x)),
        "gelu" => float1!(d, |x| x.gelu()),
        "silu" => float1!(d, |x| x * x.sigmoid()),
        "floor" => float1!(d, |x| x.floor()),
        "ceil" => float1!(d, |x| x.ceil()),
        "round" => float1!(d, |x| x.round_ties_even()),
        "is_finite" => {
            dispatch!(d, T in [F32 f32, F64 f64] => unary!(T => bool, |x| x.is_finite()))
        }
        "is_nan" => dispatch!(d, T in [F32 f32, F64 f64] => unary!(T => bool, |x| x.is_nan())),
        "add" => float2!(d, |x, y| x + y).or_else(|| int2!(d, |x, y| x.wrapping_add(y))),
        "sub" => float2!(d, |x, y| x - y).or_else(|| int2!(d, |x, y| x.wrapping_sub(y))),
        "mul" => float2!(d, |x, y| x * y).or_else(|| int2!(d, |x, y| x.wrapping_mul(y))),
        "div" => {
            float2!(d, |x, y| x / y).or_else(|| dividing(int2!(d, |x, y| x.wrapping_div(y)), d))
        }
        "rem" => {
            float2!(d, |x, y| x % y).or_else(|| dividing(int2!(d, |x, y| x.wrapping_rem(y)), d))
        }
        "pow" => float2!(d, |x, y| x.powf(y)),
        "atan2" => float2!(d, |y, x| y.atan2(x)),
        "maximum" => float2!(d, |x, y| x.larger(y)).or_else(|| int2!(d, |x, y| x.max(y))),
        "minimum" => float2!(d, |x, y| x.smaller(y)).or_else(|| int2!(d, |x, y| x.min(y))),
        "eq" => compare!(d, |x, y| x == y),
        "ne" => compare!(d, |x, y| x != y),
        "lt" => compare!(d, |x, y| x < y),
        "le" => compare!(d, |x, y| x <= y),
        "gt" => compare!(d, |x, y| x > y),
        "ge" => compare!(d, |x, y| x >= y),
        "and" => bool2!(d, |x, y| x & y),
        "or" => bool2!(d, |x, y| x | y),
        "xor" => bool2!(d, |x, y| x ^ y),
        "not" => dispatch!(d, T in [Bool bool] => unary!(T => T, |x| !x)),
        "stop_gradient" => {
            dispatch!(d, T in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8, Bool bool] =>
            unary!(T => T, |x| x))
        }
        "select" => Some(match d.size() {
            8 => select::<f64>(),
            4 => select::<f32>(),
            _ => select::<u8>(),
        }),
        "cast" => cast(operand, result),
        _ => None,
    }
}

/// Functions of floats that the standard library lacks, by the formulas of the reference.
pub(crate) trait Real {
    /// The larger number; `NaN` if one of them is.
    fn larger(self, other: Self) -> Self;
    /// The smaller number; `NaN` if one of them is.
    fn smaller(self, other: Self) -> Self;
    fn sigmoid(self) -> Self;
    fn erf(self) -> Self;
    fn gelu(self) -> Self;
}
macro_rules! real {
    ($t:ident $erf:path, $erfc:path) => {
        impl Real for $t {
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                if self.is_nan() || self > other {
                    self
                } else {
                    other
                }
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                if self.is_nan() || self < other {
                    self
                } else {
                    other
                }
            }
            #[inline(always)]
            fn sigmoid(self) -> Self {
                // The exponential of a negative number does not overflow.
                let e = (-self.abs()).exp();
                if self >= 0.0 {
                    1.0 / (1.0 + e)
                } else {
                    e / (1.0 + e)
                }
            }
            fn erf(self) -> Self {
                $erf(self)
            }
            fn gelu(self) -> Self {
                // The complement keeps the digits that 1 + erf loses for negative numbers.
                0.5 * self * $erfc(-self * std::f64::consts::FRAC_1_SQRT_2 as $t)
            }
        }
    };
}
real!(f32 libm::erff, libm::erfcf);
real!(f64 libm::erf, libm::erfc);

/// `a ? b : c`. Elements are moved as they are, so their size is all that matters.
fn select<T: Cell>() -> Function {
    Function {
        scalar: |a, b, c| if bool::from_reg(a) { b } else { c },
        block: |out, [a, b, c]| {
            let out: &mut [T::Mem] = bytemuck::cast_slice_mut(out);
            let b: &[T::Mem] = bytemuck::cast_slice(b);
            let c: &[T::Mem] = bytemuck::cast_slice(c);
            for (((out, &a), &b), &c) in out.iter_mut().zip(a).zip(b).zip(c) {
                *out = if a != 0 { b } else { c };
            }
        },
        check: None,
    }
}

/// An operation whose second operand must not be zero.
fn dividing(f: Option<Function>, dtype: DType) -> Option<Function> {
    let check = dispatch!(dtype, T in [I32 i32, I64 i64, U32 u32, U8 u8] => Check {
        scalar: |b| T::from_reg(b) != 0,
        block: |b| bytemuck::cast_slice::<u8, T>(b).iter().all(|&b| b != 0),
    });
    f.map(|f| Function { check, ..f })
}

fn cast(from: DType, to: DType) -> Option<Function> {
    macro_rules! to {
        ($A:ty) => {
            dispatch!(to, R in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8] => unary!($A => R, |x| x as R))
        };
    }
    let from_bool = || {
        dispatch!(to, R in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8, Bool bool] =>
        unary!(bool => R, |x| R::from(x)))
    };
    if to == DType::Bool && from != DType::Bool {
        return dispatch!(from, T in [F32 f32, F64 f64, I32 i32, I64 i64, U32 u32, U8 u8] =>
            unary!(T => bool, |x| x != T::default()));
    }
    match from {
        DType::F32 => to!(f32),
        DType::F64 => to!(f64),
        DType::I32 => to!(i32),
        DType::I64 => to!(i64),
        DType::U32 => to!(u32),
        DType::U8 => to!(u8),
        DType::Bool => from_bool(),
    }
}

/// Elements of one block.
const BLOCK: usize = 512;
/// Bytes of the scratch memory of one block: elements have up to 8 bytes.
const SLOT: usize = BLOCK * 8;
/// Elements from which on the work is split over threads, and elements of one part: a multiple of [`BLOCK`].
const PARALLEL: usize = 1 << 17;
const PART: usize = 1 << 15;

/// An argument of an operation inside a [`Map`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arg {
    /// An operand of the map.
    Operand(u8),
    /// The result of an earlier operation.
    Result(u8),
}

/// One operation inside a [`Map`].
#[derive(Clone, Debug)]
pub(crate) struct MapOp {
    pub(crate) function: Function,
    pub(crate) args: [Arg; 3],
    pub(crate) dtype: DType,
    pub(crate) name: &'static str,
}

/// How the elements of an operand reach a block.
#[derive(Clone, Debug)]
enum Access {
    /// They lie one behind the other.
    Contiguous { offset: usize },
    /// There is only one.
    Splat { offset: usize },
    /// They lie apart.
    Strided { offset: usize, axes: Vec<Axis<1>> },
    /// They lie where the result goes.
    InPlace,
}

/// Fused elementwise operations; the last one gives the result.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    ops: Vec<MapOp>,
    /// Number of elements.
    n: usize,
    /// Of each operand: how it is reached and the bytes of an element.
    access: Vec<(Access, usize)>,
}

/// The largest number of operands and operations of one map: their blocks fit the first-level cache.
pub(crate) const MAX_BLOCKS: usize = 12;

impl Map {
    /// A map over operands that all have the shape of the result, which is all of a buffer.
    pub(crate) fn new(ops: Vec<MapOp>, operands: &[Operand], out: &View) -> Map {
        let access = operands.iter().map(|operand| {
            let view = operand.view();
            let axes = merged(&view.shape, [&view.strides]);
            let access = if out.same_places(view) {
                Access::InPlace
            } else {
                match axes[..] {
                    [] | [Axis { strides: [0], .. }] => Access::Splat {
                        offset: view.offset,
                    },
                    [Axis { strides: [1], .. }] => Access::Contiguous {
                        offset: view.offset,
                    },
                    _ => Access::Strided {
                        offset: view.offset,
                        axes,
                    },
                }
            };
            (access, view.dtype.size())
        });
        let access = access.collect();
        Map {
            n: out.size(),
            access,
            ops,
        }
    }

    /// Names of the operations in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.ops.iter().map(|op| op.name)
    }

    /// The same map after its operands or its result were put elsewhere.
    pub(crate) fn placed(&self, operands: &[Operand], out: &View) -> Map {
        Map::new(self.ops.clone(), operands, out)
    }

    pub(crate) fn run(
        &self,
        operands: &[Operand],
        out: &mut [u8],
        sources: &Sources<'_>,
    ) -> Result<(), Failed> {
        let size = self.ops.last().expect("a map has operations").dtype.size();
        if self.n == 0 {
            return Ok(());
        }
        if self.n < PARALLEL {
            return self.run_part(operands, 0, out, sources);
        }
        let parts = out.par_chunks_mut(PART * size).enumerate();
        parts
            .map(|(i, out)| self.run_part(operands, i * PART, out, sources))
            .collect()
    }

    /// Computes the elements from `first` on that fill `out`.
    fn run_part(
        &self,
        operands: &[Operand],
        first: usize,
        out: &mut [u8],
        sources: &Sources<'_>,
    ) -> Result<(), Failed> {
        thread_local! {
            static SCRATCH: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
        }
        SCRATCH.with_borrow_mut(|scratch| {
            if scratch.is_empty() {
                scratch.resize(MAX_BLOCKS * SLOT / 8, 0);
            }
            self.run_blocks(
                operands,
                first,
                out,
                sources,
                bytemuck::cast_slice_mut(scratch),
            )
        })
    }

    fn run_blocks(
        &self,
        operands: &[Operand],
        first: usize,
        out: &mut [u8],
        sources: &Sources<'_>,
        scratch: &mut [u8],
    ) -> Result<(), Failed> {
        let n_operands = self.access.len();
        let out_size = self.ops[self.ops.len() - 1].dtype.size();
        let n = out.len() / out_size;
        let mut bytes: [&[u8]; MAX_BLOCKS] = [&[]; MAX_BLOCKS];
        for (i, (access, size)) in self.access.iter().enumerate() {
            match access {
                Access::Contiguous { offset } => {
                    bytes[i] = &sources.bytes(operands[i].view().base)[offset * size..]
                }
                Access::Splat { offset } => {
                    let element = &sources.bytes(operands[i].view().base)[offset * size..][..*size];
                    fill(&mut scratch[i * SLOT..][..n.min(BLOCK) * size], element);
                }
                Access::Strided { .. } => bytes[i] = sources.bytes(operands[i].view().base),
                Access::InPlace => {}
            }
        }
        let mut start = 0;
        while start < n {
            let len = BLOCK.min(n - start);
            for (i, (access, size)) in self.access.iter().enumerate() {
                let block = &mut scratch[i * SLOT..][..len * size];
                match access {
                    Access::Strided { offset, axes } => {
                        gather(block, bytes[i], *size, *offset, axes, first + start)
                    }
                    Access::InPlace => block.copy_from_slice(&out[start * size..][..len * size]),
                    Access::Contiguous { .. } | Access::Splat { .. } => {}
                }
            }
            for (k, op) in self.ops.iter().enumerate() {
                let (blocks, rest) = scratch.split_at_mut((n_operands + k) * SLOT);
                let arg = |arg: Arg| match arg {
                    Arg::Operand(i) => {
                        let (access, size) = &self.access[i as usize];
                        match access {
                            Access::Contiguous { .. } => {
                                &bytes[i as usize][(first + start) * size..][..len * size]
                            }
                            _ => &blocks[i as usize * SLOT..][..len * size],
                        }
                    }
                    Arg::Result(i) => {
                        &blocks[(n_operands + i as usize) * SLOT..]
                            [..len * self.ops[i as usize].dtype.size()]
                    }
                };
                let args = op.args.map(arg);
                if op
                    .function
                    .check
                    .is_some_and(|check| !(check.block)(args[1]))
                {
                    return Err(Failed);
                }
                let size = op.dtype.size();
                let to = if k + 1 == self.ops.len() {
                    &mut out[start * size..]
                } else {
                    rest
                };
                (op.function.block)(&mut to[..len * size], args);
            }
            start += len;
        }
        Ok(())
    }
}

/// Repeats one element.
fn fill(to: &mut [u8], element: &[u8]) {
    match element.len() {
        8 => bytemuck::cast_slice_mut::<u8, u64>(to).fill(bytemuck::pod_read_unaligned(element)),
        4 => bytemuck::cast_slice_mut::<u8, u32>(to).fill(bytemuck::pod_read_unaligned(element)),
        _ => to.fill(element[0]),
    }
}

/// Copies elements `first`, `first + 1`, .. of a strided space.
fn gather(to: &mut [u8], from: &[u8], size: usize, offset: usize, axes: &[Axis<1>], first: usize) {
    match size {
        8 => gather_as::<u64>(
            bytemuck::cast_slice_mut(to),
            bytemuck::cast_slice(from),
            offset,
            axes,
            first,
        ),
        4 => gather_as::<u32>(
            bytemuck::cast_slice_mut(to),
            bytemuck::cast_slice(from),
            offset,
            axes,
            first,
        ),
        _ => gather_as::<u8>(to, from, offset, axes, first),
    }
}

fn gather_as<M: Copy>(to: &mut [M], from: &[M], offset: usize, axes: &[Axis<1>], first: usize) {
    let (inner, outer) = axes.split_last().expect("a strided space has axes");
    let mut filled = 0;
    while filled < to.len() {
        // One run along the innermost axis.
        let at = first + filled;
        let (mut rest, column) = (at / inner.n, at % inner.n);
        let mut start = offset as isize + column as isize * inner.strides[0];
        for axis in outer.iter().rev() {
            start += (rest % axis.n) as isize * axis.strides[0];
            rest /= axis.n;
        }
        let len = (inner.n - column).min(to.len() - filled);
        let run = &mut to[filled..filled + len];
        match inner.strides[0] {
            0 => run.fill(from[start as usize]),
            1 => run.copy_from_slice(&from[start as usize..start as usize + len]),
            stride => {
                let mut at = start;
                for x in run {
                    *x = from[at as usize];
                    at += stride;
                }
            }
        }
        filled += len;
    }
}
