//! Native code of single operations and of many values, compared with the kernels of rows.

use super::*;
use crate::cpu::kernels::ScalarOp;
use crate::cpu::kernels::functions::function;
use crate::cpu::lanes::program::{
    BasicBlock, BlockEnd, ElementIndex, ElementSource, LaneOp, RowInfo, RowStart, StackPlace, UpdateValue,
};
use crate::cpu::lanes::rows::{by_size, bytes, bytes_mut, divide_by_power, register};
use crate::cpu::memory::Base;
use crate::cpu::memory::counted::CountedVec;
use crate::cpu::memory::segments::LaneStack;
use anabranch_dsl::DType;
use anabranch_dsl::interp::StopFlag;
use anabranch_dsl::ops::{self, Prim, prim};
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// The number of lanes of the tests.
const LANES: usize = 64;

const TYPES: [DType; 6] = [DType::F32, DType::F64, DType::I32, DType::I64, DType::U32, DType::Bool];

fn row(size: usize, start: RowStart, is_kept: bool) -> RowInfo {
    RowInfo { size, start, is_kept }
}

/// Returns the limits of vectors for which this processor has instructions.
fn limits() -> Vec<CodeVectors> {
    let all = [CodeVectors::Widest, CodeVectors::UpTo256];
    all.into_iter().filter(|&limit| LaneInstructions::widest(limit).is_some()).collect()
}

/// Compiles operations of one basic block, after which some rows are read.
fn compiled(rows: &[RowInfo], ops: &[LaneOp], read_at_end: &[RowId], limit: CodeVectors) -> Option<LaneCode> {
    let blocks = [BasicBlock { ops: ops.to_vec(), end: BlockEnd::Jump(1), begins_loop: false, aligned: None }];
    let body = LaneBody { rows, blocks: &blocks, has_byte_numbers: false, read_at_end };
    compile(body, limit).map(|(_, code)| code)
}

/// Returns the bits of a number of a type: at special places, and anywhere.
fn number(dtype: DType, i: usize) -> u64 {
    let spread = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(i as u32);
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -2.5,
        1.5,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        2147483647.0,
        2147483648.0,
        -2147483648.0,
        4294967295.0,
        4294967296.0,
        9.3e18,
        -9.3e18,
        88.5,
        -104.0,
        709.9,
        1e-40,
        5e-324,
        1e300,
        3.4e38,
    ];
    let float = floats.get(i % 41).copied().unwrap_or((spread as i64) as f64 * 2f64.powi((i % 90) as i32 - 100));
    let integers = [0, 1, -1, i64::MAX, i64::MIN, 31, 32, 33, 63, 64, i32::MAX as i64, i32::MIN as i64];
    let integer = integers.get(i % 29).copied().unwrap_or(spread as i64 >> (i % 60));
    match dtype {
        DType::F32 => u64::from((float as f32).to_bits()),
        DType::F64 => float.to_bits(),
        DType::Bool => spread >> 17 & 1,
        DType::I64 => integer.cast_unsigned(),
        _ => u64::from(integer as u32),
    }
}

fn set(row: &mut [VectorBytes], size: usize, element: impl Fn(usize) -> u64) {
    by_size!(size, T => {
        bytemuck::cast_slice_mut::<u8, T>(bytes_mut(row))[..LANES].iter_mut().enumerate().for_each(|(i, x)| *x = element(i) as T);
    });
}

/// Rows with numbers of the types of their values, each in another order.
fn rows_of(types: &[DType], seed: usize) -> Vec<Vec<VectorBytes>> {
    let row = |(r, &dtype): (usize, &DType)| {
        let mut row = vec![VectorBytes::zeroed(); (LANES * dtype.size()).div_ceil(64)];
        set(&mut row, dtype.size(), |i| number(dtype, i * (2 * r + 1) + seed));
        row
    };
    types.iter().enumerate().map(row).collect()
}

fn one_nan(bits: u64, dtype: DType) -> u64 {
    match dtype {
        DType::F32 if f32::from_bits(bits as u32).is_nan() => 1,
        DType::F64 if f64::from_bits(bits).is_nan() => 1,
        _ => bits,
    }
}

fn no_stack(stack: u16) -> (*mut u8, usize, usize) {
    panic!("there is no stack {stack}")
}

/// Runs the only function of some code on rows. Returns whether it did all its work.
fn run(code: &LaneCode, rows: &mut [Vec<VectorBytes>], active: &[u8]) -> bool {
    run_with(code, rows, active, &|source| panic!("{source:?} is not read"))
}

/// Runs code like [`run`] that reads elements of tensors.
fn run_with<'a>(
    code: &LaneCode,
    rows: &'a mut [Vec<VectorBytes>],
    active: &'a [u8],
    elements: &'a dyn Fn(CodeSource) -> &'a [u8],
) -> bool {
    static STOP: StopFlag = StopFlag::new();
    static HAS_DECLINED: AtomicBool = AtomicBool::new(false);
    let block = CodeBlock {
        rows,
        active,
        n: LANES - 3,
        lane_of: &[0; LANES],
        has_moved: false,
        elements,
        // The function has no size, so nothing leaks.
        stack: Box::leak(Box::new(no_stack)),
        stop: &STOP,
        has_declined: &HAS_DECLINED,
    };
    code.run(0, block, &mut CodeMemory::default()).is_ok()
}

/// Runs an operation from the rows of some types to the last one, as native code and as `expected`,
/// on many numbers. Returns whether there is native code.
#[track_caller]
fn agrees(
    op: &LaneOp,
    types: &[DType],
    expected: impl Fn(&mut [u8], [&[u8]; 3]),
    what: &str,
    limit: CodeVectors,
) -> bool {
    let dst = types.len() - 1;
    let dst_row = dst as RowId;
    for is_kept in [false, true] {
        let infos: Vec<RowInfo> =
            types.iter().enumerate().map(|(i, d)| row(d.size(), RowStart::Nothing, is_kept && i == dst)).collect();
        // The elements of a row of one basic block are needed if something reads it.
        let reads = LaneOp::UpdateList { update: 0, index: dst_row, value: UpdateValue::Row(dst_row) };
        let again = op.clone();
        let Some(code) = compiled(&infos, &[op.clone(), again, reads], &[], limit) else { return false };
        for seed in 0..40 {
            let mut rows = rows_of(types, seed);
            let mut new = rows[dst].clone();
            let args = [0, 1, 2].map(|i| bytes(&rows[i.min(dst - 1)]));
            let len = LANES * types[dst].size();
            let args = [0, 1, 2].map(|i: usize| &args[i][..LANES * types[i.min(dst - 1)].size()]);
            expected(&mut bytes_mut(&mut new)[..len], args);
            let before = rows[dst].clone();
            let active: Vec<u8> = (0..LANES).map(|i| u8::from(i < LANES - 3 && i % 3 != 1)).collect();
            assert!(run(&code, &mut rows, &active));
            for (i, &active) in active.iter().enumerate() {
                let at = |row: &[VectorBytes]| one_nan(register(bytes(row), types[dst].size(), i), types[dst]);
                if active != 0 {
                    let args: Vec<u64> = (0..dst).map(|a| register(bytes(&rows[a]), types[a].size(), i)).collect();
                    assert_eq!(at(&rows[dst]), at(&new), "{what}: lane {i} of {args:x?}");
                } else if is_kept {
                    assert_eq!(at(&rows[dst]), at(&before), "{what}: lane {i} is not active");
                }
            }
        }
    }
    true
}

#[test]
fn operations_have_the_bits_of_their_kernels() {
    limits().into_iter().for_each(check_operations);
}

fn check_operations(limit: CodeVectors) {
    let is_widest = LaneInstructions::widest(limit) == Some(LaneInstructions::Avx512);
    let mut n = 0;
    let mut without: Vec<(Prim, String)> = Vec::new();
    for op in ops::all() {
        let ops::Arity::Exactly(arity @ 1..=3) = op.arity else { continue };
        for (operand, result) in TYPES.iter().flat_map(|&a| TYPES.map(|r| (a, r))) {
            let is_select = op == prim::SELECT;
            let form = if is_select { None } else { op.scalar_form_to(operand, result) };
            let is_typed = form.is_some_and(|form| form.dtype(form.result()) == result);
            if !(is_typed || (is_select && operand == result)) {
                continue;
            }
            let Some(f) = function(op, operand, result) else { continue };
            let dst = arity as RowId;
            let args = [0, 1, 2].map(|i| i.min(dst - 1));
            let scalar = ScalarOp { op, operand, result };
            let lane_op = LaneOp::Function { f: f.block, checked: None, op: scalar, dst, args };
            let mut types = vec![operand; arity];
            if is_select {
                types[0] = DType::Bool;
            }
            types.push(result);
            let what = format!("{} of {operand} to {result}", op.name);
            let expected = |out: &mut [u8], args: [&[u8]; 3]| (f.block)(out, args);
            match agrees(&lane_op, &types, expected, &what, limit) {
                true => n += 1,
                false => without.push((op, what)),
            }
        }
    }
    assert!(n > if is_widest { 150 } else { 100 }, "{n} operations");
    // Those that divide integers, take remainders or are calls for some arguments.
    let allowed = [prim::DIV, prim::REM, prim::SIN, prim::COS, prim::TAN];
    let others: Vec<&String> = without.iter().filter(|(op, _)| !allowed.contains(op)).map(|(_, what)| what).collect();
    assert!(others.is_empty() || !is_widest, "{others:?}");
}

#[test]
fn quotients_of_powers_of_two_have_the_bits_of_their_kernel() {
    for (dtype, bits) in [(DType::I32, 31), (DType::I64, 63), (DType::U32, 32)] {
        for (shift, wants_remainder) in [0, 1, 2, 5, bits - 1].into_iter().flat_map(|s| [(s, false), (s, true)]) {
            let op = LaneOp::DividePower { dst: 1, a: 0, dtype, shift, wants_remainder };
            let what = format!("{dtype} by 2^{shift}, {wants_remainder}");
            for limit in limits() {
                let expected =
                    |out: &mut [u8], args: [&[u8]; 3]| divide_by_power(out, args[0], dtype, shift, wants_remainder);
                assert!(agrees(&op, &[dtype, dtype], expected, &what, limit), "{what}");
            }
        }
    }
}

/// A value that a kept row has as well, or the place of one that changes, is stored where an
/// operation that is no code reads it.
#[test]
fn values_that_rows_share_are_stored_for_both() {
    let negated = |dst: RowId, arg: RowId| {
        let op = ScalarOp { op: prim::NEG, operand: DType::F32, result: DType::F32 };
        let f = function(prim::NEG, DType::F32, DType::F32).expect("it is a function");
        LaneOp::Function { f: f.block, checked: None, op, dst, args: [arg; 3] }
    };
    let moved = |dst: RowId, src: RowId| LaneOp::Move { dst, src };
    // Row 0 is an input, row 1 is kept, row 2 is of this basic block. The result is what rows 1 and
    // 2 have afterwards, for the elements of rows 0 and 1.
    type Expected = fn(f32, f32) -> (f32, f32);
    let cases: [(&str, [LaneOp; 2], Expected); 4] = [
        ("computed, then kept", [negated(2, 0), moved(1, 2)], |x, _| (-x, -x)),
        ("kept before it changes", [moved(2, 1), negated(1, 0)], |x, k| (-x, k)),
        ("kept before another row is moved", [moved(2, 1), moved(1, 0)], |x, k| (x, k)),
        ("kept after it has changed", [negated(1, 0), moved(2, 1)], |x, _| (-x, -x)),
    ];
    let infos = [0, 1, 2].map(|i| row(4, RowStart::Nothing, i == 1));
    for limit in limits() {
        for (what, ops, expected) in &cases {
            let ops: Vec<LaneOp> = ops
                .iter()
                .cloned()
                .chain([LaneOp::UpdateList { update: 0, index: 2, value: UpdateValue::Row(2) }])
                .collect();
            let code = compiled(&infos, &ops, &[1], limit).expect("there is native code");
            let mut rows: Vec<Vec<VectorBytes>> = (0..3).map(|_| vec![VectorBytes::zeroed(); LANES * 4 / 64]).collect();
            for (r, row) in rows.iter_mut().enumerate() {
                set(row, 4, |i| u64::from(((r * 1_000 + i) as f32).to_bits()));
            }
            let active: Vec<u8> = (0..LANES).map(|i| u8::from(i < LANES - 3 && i % 3 != 1)).collect();
            assert!(run(&code, &mut rows, &active));
            let at = |r: usize, i: usize| f32::from_bits(register(bytes(&rows[r]), 4, i) as u32);
            for i in (0..LANES).filter(|&i| active[i] != 0) {
                assert_eq!((at(1, i), at(2, i)), expected(i as f32, (1_000 + i) as f32), "{what}, lane {i}");
            }
        }
    }
}

/// Many values at once, of vectors and masks, do not fit in registers.
#[test]
fn values_without_registers_keep_their_bits() {
    const N: usize = 60;
    let cases = [(DType::F32, 4), (DType::F64, 8)];
    for ((dtype, size), limit) in cases.into_iter().flat_map(|case| limits().into_iter().map(move |l| (case, l))) {
        // Row 0 is the input, rows 1 to N are its sums with constants, then masks, and the result.
        let nothing = |size| row(size, RowStart::Nothing, false);
        let mut rows = vec![nothing(size)];
        rows.extend((0..N).map(|_| nothing(size)));
        rows.extend((0..N).map(|_| nothing(1)));
        let constant = |i: usize| match dtype {
            DType::F32 => u64::from((i as f32 * 0.37 - 3.0).to_bits()),
            _ => (i as f64 * 0.37 - 3.0).to_bits(),
        };
        rows.extend((0..N).map(|i| row(size, RowStart::Constant(constant(i)), false)));
        let result = rows.len() as RowId;
        rows.push(row(size, RowStart::Nothing, true));
        let of = |op: Prim, result: DType, dst: usize, args: [usize; 3]| {
            let operand = dtype;
            let f = function(op, operand, result).expect("it is a function");
            let args = args.map(|arg| arg as RowId);
            let op = ScalarOp { op, operand, result };
            LaneOp::Function { f: f.block, checked: None, op, dst: dst as RowId, args }
        };
        let mut ops: Vec<LaneOp> = Vec::new();
        for i in 0..N {
            ops.push(of(prim::MUL, dtype, 1 + i, [0, 1 + 2 * N + i, 0]));
            ops.push(of(prim::LT, DType::Bool, 1 + N + i, [1 + i, 1 + 2 * N + (i * 7) % N, 0]));
        }
        let last = usize::from(result);
        for i in (0..N).rev() {
            ops.push(of(prim::ADD, dtype, last, [last, 1 + i, last]));
            ops.push(of(prim::SELECT, dtype, last, [1 + N + i, last, 1 + (i * 11) % N]));
        }
        let code = compiled(&rows, &ops, &[result], limit).expect("there is native code");
        assert!(code.n_slots > 20, "{} slots", code.n_slots);
        let memory = |info: &RowInfo| {
            let mut row = vec![VectorBytes::zeroed(); (LANES * info.size).div_ceil(64)];
            if let RowStart::Constant(bits) = info.start {
                set(&mut row, info.size, |_| bits);
            }
            row
        };
        let mut given: Vec<Vec<VectorBytes>> = rows.iter().map(memory).collect();
        set(&mut given[0], size, |i| constant(i * 3));
        let mut expected = given.clone();
        for op in &ops {
            let LaneOp::Function { f, dst, args, .. } = *op else { panic!("it is a function") };
            let mut new = expected[usize::from(dst)].clone();
            let args = args.map(|arg| {
                let arg = usize::from(arg);
                &bytes(&expected[arg])[..LANES * rows[arg].size]
            });
            f(&mut bytes_mut(&mut new)[..LANES * rows[usize::from(dst)].size], args);
            expected[usize::from(dst)] = new;
        }
        assert!(run(&code, &mut given, &[1; LANES]));
        let n = (LANES - 3) * size;
        assert_eq!(bytes(&given[last])[..n], bytes(&expected[last])[..n], "{dtype}");
    }
}

/// The elements that lanes read from a table of 7 rows of 5 numbers, in a loop of one trip.
#[test]
fn elements_at_places_are_read_and_checked() {
    let table: Vec<u64> = (0..70).map(|i| i * 0x0001_0003_0007_0009).collect();
    let cases = [DType::I32, DType::I64, DType::U32].into_iter().flat_map(|d| [(d, 4), (d, 8)]);
    for ((index_type, size), limit) in cases.flat_map(|case| limits().into_iter().map(move |l| (case, l))) {
        let bytes_of_table = &bytemuck::cast_slice(&table)[..35 * size];
        let kept = |size| row(size, RowStart::Nothing, true);
        // Rows of the index, of the result, of an element for all lanes, and of a condition.
        let rows = [kept(index_type.size()), kept(size), kept(size), kept(1)];
        let from = ElementSource::Outside(Base::Input(0));
        let index = ElementIndex { row: 0, dtype: index_type, n: 7, stride: 5 };
        let read = [
            LaneOp::ReadElement { from, offset: 3, index: Some(index), dst: 1 },
            LaneOp::ReadElement { from, offset: 34, index: None, dst: 2 },
        ];
        let end = BlockEnd::Branch { cond: 3, when: true, to: 0, otherwise: 1 };
        let blocks = [BasicBlock { ops: read.to_vec(), end, begins_loop: true, aligned: None }];
        let body = LaneBody { rows: &rows, blocks: &blocks, has_byte_numbers: false, read_at_end: &[1, 2] };
        let (_, code) = compile(body, limit).expect("there is native code");
        assert_eq!(code.n_loops, 1);
        let memory = |info: &RowInfo| vec![VectorBytes::zeroed(); (LANES * info.size).div_ceil(64)];
        let mut memory: Vec<Vec<VectorBytes>> = rows.iter().map(memory).collect();
        let active: Vec<u8> = (0..LANES).map(|i| u8::from(i < LANES - 3 && i % 5 != 2)).collect();
        // Lanes that are not active have indices that are out of range.
        let at = |i: usize| if active[i] != 0 { (i * 3 % 7) as u64 } else { u64::MAX - i as u64 };
        set(&mut memory[0], index_type.size(), at);
        assert!(run_with(&code, &mut memory, &active, &|_| bytes_of_table));
        for i in (0..LANES).filter(|&i| active[i] != 0) {
            let place = 3 + 5 * at(i) as usize;
            assert_eq!(register(bytes(&memory[1]), size, i), register(bytes_of_table, size, place), "lane {i}");
            assert_eq!(register(bytes(&memory[2]), size, i), register(bytes_of_table, size, 34), "lane {i}");
        }
        // A table that is too short, and indices of active lanes that are out of range.
        assert!(!run_with(&code, &mut memory, &active, &|_| &bytes_of_table[..34 * size]));
        for wrong in [7, u64::MAX, 1 << 31] {
            set(&mut memory[0], index_type.size(), |i| if i == 20 { wrong } else { at(i) });
            assert!(!run_with(&code, &mut memory, &active, &|_| bytes_of_table), "{wrong}");
        }
    }
}

/// Loops end when the step is to stop, another block has declined or few lanes go on for long.
#[test]
fn loops_that_go_on_decline() {
    limits().into_iter().for_each(check_ends_of_loops);
}

fn check_ends_of_loops(limit: CodeVectors) {
    let rows = [row(1, RowStart::Nothing, true)];
    let end = BlockEnd::Branch { cond: 0, when: true, to: 0, otherwise: 1 };
    let blocks = [BasicBlock { ops: vec![], end, begins_loop: true, aligned: None }];
    let body = LaneBody { rows: &rows, blocks: &blocks, has_byte_numbers: false, read_at_end: &[] };
    let (_, code) = compile(body, limit).expect("there is native code");
    let go_on = |n: usize, stop: &StopFlag, has_declined: &AtomicBool| {
        let mut memory = vec![vec![VectorBytes::zeroed(); 1]];
        set(&mut memory[0], 1, |i| u64::from((LANES / 2..LANES / 2 + n).contains(&i)));
        let elements = |source| panic!("{source:?} is not read");
        let block = CodeBlock {
            rows: &mut memory,
            active: &[1; LANES],
            n: LANES,
            lane_of: &[0; LANES],
            has_moved: false,
            elements: &elements,
            stack: &mut { no_stack },
            stop,
            has_declined,
        };
        code.run(0, block, &mut CodeMemory::default()).is_ok()
    };
    let (stop, has_declined) = (StopFlag::new(), AtomicBool::new(false));
    assert!(go_on(0, &stop, &has_declined), "no lane goes on");
    assert!(!go_on(1, &stop, &has_declined), "a few lanes go on for long");
    assert!(!go_on(16, &stop, &AtomicBool::new(true)), "another block has declined");
    stop.stop(anabranch_dsl::ErrorKind::Cancelled);
    assert!(!go_on(16, &stop, &has_declined), "the step is to stop");
}

/// The stacks of a test, with some elements. The last one has room for 5 elements of each lane, and
/// the others for more.
fn stacks_of(sizes: &[usize], tile: usize) -> Vec<LaneStack> {
    let stack = |(i, &size): (usize, &usize)| {
        let mut stack = LaneStack::new(size, LANES, tile, CountedVec::default());
        stack.make_room(4 + sizes.len() - i, 0, &AtomicUsize::new(0), usize::MAX).expect("there is memory");
        stack.bytes_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 2) as u8);
        stack
    };
    sizes.iter().enumerate().map(stack).collect()
}

/// The state of lanes before steps on stacks.
struct StackLanes {
    depths: Vec<u32>,
    active: Vec<u8>,
    lane_of: Vec<u16>,
}

impl StackLanes {
    /// Lanes of one or of several depths, some of which are active and which may have moved.
    fn new(seed: usize, have_one_depth: bool, all_are_active: bool, have_moved: bool) -> StackLanes {
        let any = |i: usize| number(DType::U32, 31 * i + seed) as usize;
        StackLanes {
            depths: (0..LANES).map(|i| if have_one_depth { 2 } else { any(i) as u32 % 4 }).collect(),
            active: (0..LANES).map(|i| u8::from(i < LANES - 3 && (all_are_active || any(i + 7) % 3 > 0))).collect(),
            lane_of: (0..LANES).map(|i| if have_moved { (i * 29 % LANES) as u16 } else { i as u16 }).collect(),
        }
    }

    /// Runs code with these depths in the first row.
    fn run(&self, code: &LaneCode, rows: &mut [Vec<VectorBytes>], stacks: &mut [LaneStack]) -> Result<(), Declined> {
        set(&mut rows[0], 4, |i| u64::from(self.depths[i]));
        let elements = |source| panic!("{source:?} is not read");
        let block = CodeBlock {
            rows,
            active: &self.active,
            n: LANES - 3,
            lane_of: &self.lane_of,
            has_moved: self.lane_of[1] != 1,
            elements: &elements,
            stack: &mut |stack| {
                let stack = &mut stacks[usize::from(stack)];
                (stack.bytes_mut().as_mut_ptr(), stack.room(), stack.tile())
            },
            stop: &StopFlag::new(),
            has_declined: &AtomicBool::new(false),
        };
        code.run(0, block, &mut CodeMemory::default())
    }

    /// Calls a function with the place of each active lane, the lane, and its depth.
    fn each_active(&self, mut f: impl FnMut(usize, usize, usize)) {
        let active = (0..LANES).filter(|&i| self.active[i] != 0);
        active.for_each(|i| f(i, usize::from(self.lane_of[i]), self.depths[i] as usize));
    }
}

#[test]
fn lanes_push_and_pop_elements_at_their_depths() {
    for limit in limits() {
        for types in [&[DType::F32, DType::Bool][..], &[DType::F32, DType::F64, DType::Bool, DType::I64]] {
            check_stacks(types, limit);
        }
    }
}

/// Compares what code pushes, in all lanes or in those of an arm, and pops again with elements that
/// are written and read one by one.
fn check_stacks(types: &[DType], limit: CodeVectors) {
    let sizes: Vec<usize> = types.iter().map(|dtype| dtype.size()).collect();
    // The depths, the elements, a condition, and other elements.
    let all_sizes = [4].iter().chain(&sizes).chain(&[1]).chain(&sizes);
    let infos: Vec<RowInfo> = all_sizes.map(|&size| row(size, RowStart::Nothing, true)).collect();
    let all_types = [DType::I32].iter().chain(types).chain(&[DType::Bool]).chain(types);
    let all_types: Vec<DType> = all_types.copied().collect();
    let (n, cond) = (types.len() as u16, types.len() as u16 + 1);
    // The second element above the depths is used.
    let at = StackPlace { depth: 0, above: 1, n: 2 };
    let pushes = |first: RowId| (0..n).map(move |stack| LaneOp::Push { stack, at, src: first + stack });
    let arms = [pushes(1).collect(), pushes(cond + 1).collect()];
    let pops = (0..n).map(|stack| LaneOp::Pop { stack, at, dst: stack + 1 });
    let read: Vec<RowId> = (1..=n).collect();
    let compile = |ops: Vec<LaneOp>| compiled(&infos, &ops, &read, limit).expect("there is native code");
    let [push, push_in_arms, pop] =
        [pushes(1).collect(), vec![LaneOp::Branches { cond, arms: arms.clone() }, arms[0][0].clone()], pops.collect()]
            .map(compile);
    let new_stacks = || stacks_of(&sizes, push.tile());
    for seed in 0..64 {
        let [have_one_depth, all_are_active, have_moved] = [1, 2, 4].map(|bit| seed & bit != 0);
        let lanes = StackLanes::new(seed, have_one_depth, all_are_active, have_moved);
        let mut rows = rows_of(&all_types, seed);
        for has_arms in [false, true] {
            let mut stacks = new_stacks();
            let before: Vec<Vec<u8>> = stacks.iter().map(|stack| stack.bytes().to_vec()).collect();
            let code = if has_arms { &push_in_arms } else { &push };
            assert_eq!(lanes.run(code, &mut rows, &mut stacks), Ok(()));
            // The element that an active lane has pushed, by the row of its place.
            let source = |k: usize, i: usize| {
                let is_other = has_arms && k > 0 && bytes(&rows[usize::from(cond)])[i] == 0;
                register(bytes(&rows[if is_other { usize::from(cond) + 1 + k } else { k + 1 }]), sizes[k], i)
            };
            let element = |bytes: &[u8], stack: &LaneStack, lane: usize, depth: usize| {
                register(bytes, stack.size(), stack.place(lane, depth))
            };
            for (k, stack) in stacks.iter().enumerate() {
                lanes.each_active(|i, lane, depth| {
                    let given = element(stack.bytes(), stack, lane, depth + 1);
                    assert_eq!(given, source(k, i), "{types:?}, stack {k}, place {i}, seed {seed}, {has_arms}");
                });
                for (&lane, &depth) in lanes.lane_of.iter().zip(&lanes.depths) {
                    for depth in 0..depth as usize {
                        let [given, expected] =
                            [stack.bytes(), &before[k]].map(|bytes| element(bytes, stack, usize::from(lane), depth));
                        assert_eq!(given, expected, "{types:?}, stack {k}, lane {lane}, seed {seed}, {has_arms}");
                    }
                }
            }
            let mut popped = rows_of(&all_types, seed + 1000);
            let before = popped.clone();
            assert_eq!(lanes.run(&pop, &mut popped, &mut stacks), Ok(()));
            for (k, &size) in sizes.iter().enumerate() {
                for i in 0..LANES {
                    let is_active = lanes.active[i] != 0;
                    let expected = if is_active { source(k, i) } else { register(bytes(&before[k + 1]), size, i) };
                    let given = register(bytes(&popped[k + 1]), size, i);
                    assert_eq!(given, expected, "{types:?}, stack {k}, place {i}, seed {seed}, {has_arms}");
                }
            }
        }
        // A lane that is active has too many elements, or fewer than none. Others may.
        let mut stacks = new_stacks();
        for depth in [4, u32::MAX] {
            for place in [0, 20, LANES - 5] {
                let mut lanes = StackLanes::new(seed, have_one_depth, all_are_active, have_moved);
                lanes.depths[place] = depth;
                let outcome = if lanes.active[place] != 0 { Err(Declined::Code) } else { Ok(()) };
                for code in [&push, &pop] {
                    assert_eq!(lanes.run(code, &mut rows, &mut stacks), outcome, "depth {depth}, seed {seed}");
                }
            }
        }
    }
}
