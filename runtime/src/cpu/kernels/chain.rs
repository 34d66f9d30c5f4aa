//! Chains of elementwise operations of one float type: intermediate values stay in registers.
//!
//! A [`Chain`] is a list of instructions for a machine with an accumulator of a few vectors. The
//! machine executes all instructions for some elements, then for the next elements. An instruction
//! combines the accumulator with elements in memory or with one broadcast element, or stores the
//! accumulator. An operation on the previous value thus costs one read, no write, and one jump for
//! several vectors.
//!
//! The instructions of an operation are derived from its recorded form. Expensive operations gain
//! nothing here, so chains contain only forms of one or two primitives. Each is bitwise identical
//! to its loop in `functions` on every instruction set.
//!
//! A chain accesses the same elements of all memory, in the order of its operations. An operation
//! may therefore write memory that this or an earlier operation reads.

use super::elementwise::{Arg, MapOp};
use crate::cpu::vector::{InstructionSet, Lane, PortableVector, Task, Vector};
use anabranch_dsl::DType;
use anabranch_dsl::ops::Effort;
use anabranch_dsl::scalars::{BinaryOp, ExprNode, ExprNodeId, ScalarExpr, UnaryOp};
use std::mem::MaybeUninit;

/// Maximum number of instructions.
const MAX_INSTRS: usize = 40;
/// Maximum number of computations of one operation.
const MAX_OWN_INSTRS: usize = 2;
/// Maximum number of instructions of one operation: a load, computations, a store.
const INSTRS_PER_OP: usize = MAX_OWN_INSTRS + 2;
/// Number of vectors of the accumulator.
const VECTORS: usize = 8;

/// The opcode of an instruction. `One` variants use a broadcast element instead of elements in
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    Load,
    LoadOne,
    Store,
    Double,
    Square,
    Sqrt,
    Add,
    AddOne,
    Mul,
    MulOne,
    Sub,
    SubOne,
    /// Subtracts the accumulator from the operand. All `From` variants have the accumulator as
    /// second operand.
    SubFrom,
    SubFromOne,
    Div,
    DivOne,
    DivFrom,
    DivFromOne,
    Larger,
    LargerOne,
    LargerFrom,
    LargerFromOne,
    Smaller,
    SmallerOne,
    SmallerFrom,
    SmallerFromOne,
}

/// The operand of an instruction besides the accumulator.
#[derive(Clone, Copy, Debug)]
pub(super) enum With {
    Nothing,
    Value(Arg),
    /// A constant of the operation.
    Number(f64),
}

/// An instruction, with the opcodes for elements in memory and for one element.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainInstr {
    pub(super) opcodes: [Opcode; 2],
    pub(super) with: With,
}

/// The location of an operand or result of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) enum ElementPtr {
    /// Contiguous elements.
    Elements(*mut u8),
    /// A single element.
    One(*const u8),
}

/// Consecutive operations of a map; see the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Chain {
    instrs: Vec<ChainInstr>,
    dtype: DType,
    instruction_set: InstructionSet,
}

/// The opcodes of a binary operation.
///
/// `straight` and `reversed` apply if the accumulator is the first or the second operand.
#[derive(Clone, Copy)]
struct BinaryOpcodes {
    straight: [Opcode; 2],
    reversed: [Opcode; 2],
    /// The opcode for the accumulator as both operands.
    twice: Option<Opcode>,
}

/// Returns the opcodes of a primitive.
fn opcodes(op: BinaryOp) -> Option<BinaryOpcodes> {
    use Opcode::*;
    let (straight, reversed, twice) = match op {
        BinaryOp::Add => ([Add, AddOne], [Add, AddOne], Some(Double)),
        BinaryOp::Mul => ([Mul, MulOne], [Mul, MulOne], Some(Square)),
        BinaryOp::Sub => ([Sub, SubOne], [SubFrom, SubFromOne], None),
        BinaryOp::Div => ([Div, DivOne], [DivFrom, DivFromOne], None),
        BinaryOp::Larger => ([Larger, LargerOne], [LargerFrom, LargerFromOne], None),
        BinaryOp::Smaller => ([Smaller, SmallerOne], [SmallerFrom, SmallerFromOne], None),
        _ => return None,
    };
    Some(BinaryOpcodes { straight, reversed, twice })
}

/// The instructions of an operation.
#[derive(Clone)]
enum Instrs {
    /// Instructions on the accumulator alone.
    Unary(Vec<ChainInstr>),
    /// A primitive of two operands.
    Binary(BinaryOpcodes),
}

impl Instrs {
    /// Derives the instructions of an operation, if it may be part of a chain.
    fn of(op: &MapOp) -> Option<Instrs> {
        // Forms of more than two primitives are not even recorded.
        let is_short =
            op.op.scalar_effort().is_some_and(|effort| effort.0 <= MAX_OWN_INSTRS as u32 * Effort::DIVISION.0);
        if !is_short || !matches!(op.dtype, DType::F32 | DType::F64) {
            return None;
        }
        Instrs::of_form(&op.op.scalar_form(op.dtype)?)
    }

    fn of_form(form: &ScalarExpr) -> Option<Instrs> {
        let is_argument = |id: ExprNodeId, i: u8| form.node(id) == ExprNode::Argument(i);
        if let ExprNode::Binary(op, a, b) = form.node(form.result())
            && is_argument(a, 0)
            && is_argument(b, 1)
        {
            return opcodes(op).map(Instrs::Binary);
        }
        let number = |id: ExprNodeId| match (form.node(id), form.dtype(id)) {
            (ExprNode::Constant(bits), DType::F32) => Some(f64::from(f32::from_bits(bits as u32))),
            (ExprNode::Constant(bits), DType::F64) => Some(f64::from_bits(bits)),
            _ => None,
        };
        // From the result back to the argument.
        let (mut instrs, mut at) = (Vec::new(), form.result());
        while !is_argument(at, 0) {
            let own = |opcode| ChainInstr { opcodes: [opcode; 2], with: With::Nothing };
            let with = |[_, one]: [Opcode; 2], x| ChainInstr { opcodes: [one; 2], with: With::Number(x) };
            let (instr, next) = match form.node(at) {
                ExprNode::Unary(UnaryOp::Sqrt, x) => (own(Opcode::Sqrt), x),
                ExprNode::Unary(UnaryOp::Neg, x) => (with([Opcode::Mul, Opcode::MulOne], -1.0), x),
                ExprNode::Binary(op, x, y) => match (number(x), number(y)) {
                    (None, Some(y)) => (with(opcodes(op)?.straight, y), x),
                    (Some(x), None) => (with(opcodes(op)?.reversed, x), y),
                    _ => return None,
                },
                _ => return None,
            };
            instrs.push(instr);
            at = next;
        }
        instrs.reverse();
        (1..=MAX_OWN_INSTRS).contains(&instrs.len()).then_some(Instrs::Unary(instrs))
    }

    /// Returns whether the accumulator may be both operands.
    fn reads_twice(&self) -> bool {
        match self {
            Instrs::Unary(_) => true,
            Instrs::Binary(opcodes) => opcodes.twice.is_some(),
        }
    }
}

impl Chain {
    /// Returns the longest chain of operations from `first` on, and their number.
    ///
    /// `is_kept` returns whether the value of an operation is also needed outside the map's
    /// operations.
    pub(super) fn of(ops: &[MapOp], first: usize, is_kept: impl Fn(usize) -> bool) -> (Chain, usize) {
        let dtype = ops[first].dtype;
        let alike = ops[first..].iter().take(MAX_INSTRS / INSTRS_PER_OP).take_while(|op| op.dtype == dtype);
        let own: Vec<Instrs> = alike.map_while(Instrs::of).collect();
        let n = own.len();
        let end = first + n;
        // Whether operation `k` reads the value of operation `j` only from the accumulator.
        let finds = |k: usize, j: usize| {
            let uses = ops[k].args[..2].iter().filter(|a| **a == Arg::Result(j as u8)).count();
            k == j + 1 && k < end && (uses < 2 || own[k - first].reads_twice())
        };
        let reads = |k: usize, j: usize| ops[k].args.contains(&Arg::Result(j as u8));
        let mut instrs = Vec::new();
        for (k, op) in ops[first..end].iter().enumerate().map(|(i, op)| (first + i, op)) {
            let [a, b, _] = op.args;
            let is_here = |arg: Arg| k > first && arg == Arg::Result(k as u8 - 1);
            let load = ChainInstr { opcodes: [Opcode::Load, Opcode::LoadOne], with: With::Value(a) };
            match &own[k - first] {
                Instrs::Unary(own) => {
                    instrs.extend((!is_here(a)).then_some(load));
                    instrs.extend(own);
                }
                Instrs::Binary(BinaryOpcodes { straight, reversed, twice }) => match (is_here(a), is_here(b), twice) {
                    (true, true, Some(opcode)) => {
                        instrs.push(ChainInstr { opcodes: [*opcode; 2], with: With::Nothing })
                    }
                    (true, ..) => instrs.push(ChainInstr { opcodes: *straight, with: With::Value(b) }),
                    (_, true, _) => instrs.push(ChainInstr { opcodes: *reversed, with: With::Value(a) }),
                    _ => instrs.extend([load, ChainInstr { opcodes: *straight, with: With::Value(b) }]),
                },
            }
            if is_kept(k) || (k + 1..ops.len()).any(|user| reads(user, k) && !finds(user, k)) {
                instrs.push(ChainInstr { opcodes: [Opcode::Store; 2], with: With::Value(Arg::Result(k as u8)) });
            }
        }
        (Chain { instrs, dtype, instruction_set: InstructionSet::best() }, n)
    }

    /// Returns the instructions.
    pub(super) fn instrs(&self) -> &[ChainInstr] {
        &self.instrs
    }

    /// Computes `n` elements.
    ///
    /// # Safety
    /// The places that `place_of` returns must be readable, and writable for results, for `n`
    /// elements of the type. Nothing else may access them at the same time.
    pub(super) unsafe fn run(&self, n: usize, place_of: impl Fn(Arg) -> ElementPtr) {
        match self.dtype {
            // SAFETY: guaranteed by the caller.
            DType::F32 => unsafe { self.run_as::<f32>(n, place_of) },
            // SAFETY: guaranteed by the caller.
            DType::F64 => unsafe { self.run_as::<f64>(n, place_of) },
            other => panic!("a chain of {other}"),
        }
    }

    /// # Safety
    /// See [`Chain::run`].
    unsafe fn run_as<T: Lane>(&self, n: usize, place_of: impl Fn(Arg) -> ElementPtr) {
        let mut bound = [const { MaybeUninit::uninit() }; MAX_INSTRS];
        for (bound, instr) in bound.iter_mut().zip(&self.instrs) {
            let [many, one] = instr.opcodes;
            let of = |x: T| BoundInstr { opcode: one, at: std::ptr::null_mut(), one: x };
            bound.write(match instr.with {
                With::Nothing => of(T::default()),
                With::Number(x) => of(T::default().number(x)),
                With::Value(arg) => match place_of(arg) {
                    ElementPtr::Elements(at) => {
                        debug_assert!(at.cast::<T>().is_aligned());
                        BoundInstr { opcode: many, at: at.cast(), one: T::default() }
                    }
                    // SAFETY: the caller guarantees that it is readable.
                    ElementPtr::One(at) => of(unsafe { *at.cast() }),
                },
            });
        }
        // SAFETY: the first `instrs.len()` elements were written.
        let instrs = unsafe { bound[..self.instrs.len()].assume_init_ref() };
        self.instruction_set.run(ChainTiles { instrs, n });
    }
}

/// An instruction with a resolved operand.
#[derive(Clone, Copy)]
struct BoundInstr<T> {
    opcode: Opcode,
    at: *mut T,
    one: T,
}

/// Instructions to run for `n` elements.
struct ChainTiles<'a, T> {
    instrs: &'a [BoundInstr<T>],
    n: usize,
}

impl<T: Lane> Task<T> for ChainTiles<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T = T>, const ROWS: usize, const COLUMNS: usize>(self) {
        let mut at = 0;
        // SAFETY: the caller guarantees that the processor supports the instructions. Places are
        // valid for `n` elements.
        unsafe {
            while at + VECTORS * V::N <= self.n {
                tile::<V, VECTORS>(self.instrs, at);
                at += VECTORS * V::N;
            }
            while at + V::N <= self.n {
                tile::<V, 1>(self.instrs, at);
                at += V::N;
            }
            last_elements(self.instrs, at..self.n);
        }
    }
}

/// Executes all instructions for elements that do not fill a vector. A function of its own, so that
/// it is compiled once for all instruction sets.
///
/// # Safety
/// The operands of the instructions must be valid for these elements.
#[inline(never)]
unsafe fn last_elements<T: Lane>(instrs: &[BoundInstr<T>], elements: std::ops::Range<usize>) {
    for at in elements {
        // SAFETY: guaranteed by the caller. Portable vectors need no special instructions.
        unsafe { tile::<PortableVector<T, 1>, 1>(instrs, at) };
    }
}

/// Executes all instructions for `W` vectors of elements from `at` on.
///
/// # Safety
/// The processor must support the instructions of `V`. The operands of the instructions must be
/// valid for these elements.
#[inline(always)]
unsafe fn tile<V: Vector, const W: usize>(instrs: &[BoundInstr<V::T>], at: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut acc = [V::splat(V::T::default()); W];
        for instr in instrs {
            execute(instr.opcode, &mut acc, instr.at.wrapping_add(at), instr.one);
        }
    }
}

/// Executes an instruction on the vectors of an accumulator. Its operand is either the elements
/// from `at` on or `one` element.
///
/// # Safety
/// The processor must support the instructions of `V`. If the operand is in memory, it must be
/// valid for `W` vectors.
#[inline(always)]
pub(super) unsafe fn execute<V: Vector, const W: usize>(opcode: Opcode, acc: &mut [V; W], at: *mut V::T, one: V::T) {
    macro_rules! many {
        (|$a:ident, $b:ident| $e:expr) => {{
            for i in 0..W {
                let $a = acc[i];
                let $b = V::load(at.add(i * V::N));
                acc[i] = $e;
            }
        }};
    }
    macro_rules! one {
        (|$a:ident, $b:ident| $e:expr) => {{
            let $b = V::splat(one);
            for i in 0..W {
                let $a = acc[i];
                acc[i] = $e;
            }
        }};
    }
    macro_rules! own {
        (|$a:ident| $e:expr) => {{
            for i in 0..W {
                let $a = acc[i];
                acc[i] = $e;
            }
        }};
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        match opcode {
            Opcode::Store => {
                for (i, acc) in acc.iter().enumerate() {
                    acc.store(at.add(i * V::N));
                }
            }
            Opcode::Load => many!(|_a, b| b),
            Opcode::LoadOne => one!(|_a, b| b),
            Opcode::Double => own!(|a| a.add(a)),
            Opcode::Square => own!(|a| a.mul(a)),
            Opcode::Sqrt => own!(|a| a.sqrt()),
            Opcode::Add => many!(|a, b| a.add(b)),
            Opcode::AddOne => one!(|a, b| a.add(b)),
            Opcode::Mul => many!(|a, b| a.mul(b)),
            Opcode::MulOne => one!(|a, b| a.mul(b)),
            Opcode::Sub => many!(|a, b| a.sub(b)),
            Opcode::SubOne => one!(|a, b| a.sub(b)),
            Opcode::SubFrom => many!(|a, b| b.sub(a)),
            Opcode::SubFromOne => one!(|a, b| b.sub(a)),
            Opcode::Div => many!(|a, b| a.div(b)),
            Opcode::DivOne => one!(|a, b| a.div(b)),
            Opcode::DivFrom => many!(|a, b| b.div(a)),
            Opcode::DivFromOne => one!(|a, b| b.div(a)),
            Opcode::Larger => many!(|a, b| a.larger(b)),
            Opcode::LargerOne => one!(|a, b| a.larger(b)),
            Opcode::LargerFrom => many!(|a, b| b.larger(a)),
            Opcode::LargerFromOne => one!(|a, b| b.larger(a)),
            Opcode::Smaller => many!(|a, b| a.smaller(b)),
            Opcode::SmallerOne => one!(|a, b| a.smaller(b)),
            Opcode::SmallerFrom => many!(|a, b| b.smaller(a)),
            Opcode::SmallerFromOne => one!(|a, b| b.smaller(a)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::elementwise::MapFn;
    use super::super::functions::function;
    use super::*;
    use anabranch_dsl::ops::{Arity, Prim, prim};

    const OPS: [Prim; 11] = [
        prim::ADD,
        prim::SUB,
        prim::MUL,
        prim::DIV,
        prim::MAXIMUM,
        prim::MINIMUM,
        prim::NEG,
        prim::RELU,
        prim::SQRT,
        prim::RECIP,
        prim::RSQRT,
    ];

    /// A generator of numbers below a bound.
    struct RandomNumbers(u64);
    impl RandomNumbers {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % n
        }
    }

    /// Returns operations whose arguments are earlier values, mostly the last value, or one of two
    /// operands.
    fn operations(random: &mut RandomNumbers, n: usize) -> Vec<MapOp> {
        let op = |k: usize| {
            let op = OPS[random.below(OPS.len())];
            let mut arg = || match random.below(4) {
                0 | 1 if k > 0 => Arg::Result(k as u8 - 1),
                2 if k > 0 => Arg::Result(random.below(k) as u8),
                _ => Arg::Operand(random.below(2) as u8),
            };
            let (a, b) = (arg(), arg());
            let is_unary = op.arity == Arity::Exactly(1);
            let b = if is_unary { a } else { b };
            let function = function(op, DType::F32, DType::F32).expect("an operation on floats");
            MapOp { work: MapFn::Function(function), args: [a, b, a], dtype: DType::F32, op }
        };
        (0..n).map(op).collect()
    }

    /// Returns the values of all operations, each computed in a separate pass.
    fn values_of(ops: &[MapOp], operands: &[Vec<f32>; 2]) -> Vec<Vec<f32>> {
        let mut values: Vec<Vec<f32>> = Vec::new();
        for op in ops {
            let mut out = vec![0f32; operands[0].len()];
            let args = op.args.map(|arg| match arg {
                Arg::Operand(i) => &operands[i as usize],
                Arg::Result(i) => &values[i as usize],
            });
            let MapFn::Function(function) = op.work else { panic!("chains have no random numbers") };
            (function.block)(bytemuck::cast_slice_mut(&mut out), args.map(|a| bytemuck::cast_slice(a)));
            values.push(out);
        }
        values
    }

    /// Returns numbers, some of which are zeros of both signs, infinite or NaN.
    fn numbers(random: &mut RandomNumbers, n: usize) -> Vec<f32> {
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40];
        let number = |_| match random.below(16) {
            0 => special[random.below(special.len())],
            _ => random.below(2000) as f32 / 100.0 - 10.0,
        };
        (0..n).map(number).collect()
    }

    #[test]
    fn chains_give_the_bits_of_their_operations_on_every_level() {
        let mut random = RandomNumbers(1);
        for round in 0..300 {
            let n_ops = 1 + random.below(12);
            let ops = operations(&mut random, n_ops);
            let n = if round < 20 { 512 } else { 1 + random.below(200) };
            // In every other round the second operand is a single element.
            let is_one = round % 2 == 0;
            let operands = [numbers(&mut random, n), numbers(&mut random, n)];
            let operands = if is_one { [operands[0].clone(), vec![operands[1][0]; n]] } else { operands };
            let expected = values_of(&ops, &operands);
            for instruction_set in InstructionSet::all() {
                // Values that are not stored keep a pattern that no operation yields.
                let mut values = vec![vec![f32::from_bits(0x7fc0_1234); n]; n_ops];
                let starts: Vec<*mut f32> = values.iter_mut().map(|v| v.as_mut_ptr()).collect();
                let place_of = |arg: Arg| match arg {
                    Arg::Operand(1) if is_one => ElementPtr::One(operands[1].as_ptr().cast()),
                    Arg::Operand(i) => ElementPtr::Elements(operands[i as usize].as_ptr().cast_mut().cast()),
                    Arg::Result(i) => ElementPtr::Elements(starts[i as usize].cast()),
                };
                let mut first = 0;
                while first < n_ops {
                    let (mut chain, done) = Chain::of(&ops, first, |op| op == n_ops - 1);
                    chain.instruction_set = instruction_set;
                    assert!(done > 0);
                    // SAFETY: each place has `n` elements, except that of the single element.
                    unsafe { chain.run(n, place_of) }
                    first += done;
                }
                let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                let last = n_ops - 1;
                for (i, (a, b)) in values[last].iter().zip(&expected[last]).enumerate() {
                    assert!(same(*a, *b), "{instruction_set:?}, element {i} of {n}: {a} is not {b}\n{ops:#?}");
                }
            }
        }
    }

    #[test]
    fn values_that_the_next_operation_reads_are_not_written() {
        let op = |op, args: [Arg; 2]| MapOp {
            work: MapFn::Function(function(op, DType::F32, DType::F32).expect("an operation on floats")),
            args: [args[0], args[1], args[0]],
            dtype: DType::F32,
            op,
        };
        let [x, y] = [Arg::Operand(0), Arg::Operand(1)];
        let ops = [
            op(prim::SUB, [x, y]),
            op(prim::MUL, [Arg::Result(0), Arg::Result(0)]),
            op(prim::SUB, [x, Arg::Result(1)]),
        ];
        let (chain, n) = Chain::of(&ops, 0, |op| op == 2);
        let opcodes: Vec<Opcode> = chain.instrs.iter().map(|i| i.opcodes[0]).collect();
        assert_eq!(
            (n, &opcodes[..]),
            (3, &[Opcode::Load, Opcode::Sub, Opcode::Square, Opcode::SubFrom, Opcode::Store][..])
        );
        // A value that is read again later is stored.
        let ops = [
            op(prim::SUB, [x, y]),
            op(prim::MUL, [Arg::Result(0), y]),
            op(prim::ADD, [Arg::Result(0), Arg::Result(1)]),
        ];
        let (chain, _) = Chain::of(&ops, 0, |op| op == 2);
        assert_eq!(chain.instrs.iter().filter(|i| i.opcodes[0] == Opcode::Store).count(), 2);
    }
}
