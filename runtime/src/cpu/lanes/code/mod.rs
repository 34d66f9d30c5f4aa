//! Native code of loops in lanes: what works on numbers alone, with values in vector registers.
//!
//! ```text
//! LaneProgram --region: loops and runs of operations--> --lower--> CodeSteps
//!     --allocate: registers--> --emit--> machine code --run--> changed rows of a block
//! ```
//!
//! Operations on rows go through memory: each reads rows and writes another one. A part of a
//! program in native code goes through the lanes of a block, one vector after the other, and loads
//! and stores only what other operations need. A loop whose body works on numbers is such a part:
//! a vector stays in its loop until the last of its lanes has left. So are at least two operations
//! in a row. They read elements of tensors, and of elements of lists, at any places, push to the
//! lanes' stacks and pop from them. Other operations on tensors and lists stay between the parts.
//!
//! A step of a loop mostly waits for the one before it, so two vectors go through a loop together
//! where there are registers for both.
//!
//! Vectors have the full width of AVX-512 or AVX2, as many lanes as there is room for the largest
//! numbers of the part; smaller numbers of such a part have shorter vectors. Bools are masks. Parts
//! with operations for which AVX2 has no instructions stay as they are there. Cranelift has no
//! vectors of more than 128 bits, so instructions are [encoded](crate::cpu::x86) by this crate.
//!
//! Invariants:
//!
//! - C1. Results are bitwise identical to those of the operations, which still run on other
//!   processors, and without the feature `jit`.
//! - C2. Code accesses rows only at lanes of the block, rounded up to a whole vector, for which
//!   rows have memory. It changes elements of active lanes, and those of other lanes only in rows
//!   that are used within one basic block. It reads elements of tensors only at places that it has
//!   compared with their number, and accesses stacks only at depths for which they have room.
//! - C3. The code lives as long as the program and is immutable.
//! - C4. A loop in native code looks at whether to stop at least each thousand repetitions. It
//!   declines if few lanes of a vector go on for long, as others may wait to fail.
//!
//! This folder must not know plans, nor what a program does with its blocks.

mod allocate;
mod emit;
mod liveness;
mod lower;
mod region;
mod scalar;
mod stack_memory;
mod steps;

use super::block::Declined;
use super::code_input::{CodeBlock, CodeSource, LaneBody};
use super::program::{BasicBlock, RowId};
use super::rows::VectorBytes;
use crate::cpu::native::executable;
use crate::cpu::vector::has_avx512f;
use crate::cpu::x86::encode::VectorLength;
use crate::options::CodeVectors;
use bytemuck::Zeroable;
use lower::{Lowered, ReadTensor, StackGroup, UsedStack};
use memmap2::Mmap;
use region::LoopBlocks;
use stack_memory::StackMemory;
use std::fmt;

/// The number of lanes of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneCount {
    Four,
    Eight,
    Sixteen,
}

/// The instructions that code may consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneInstructions {
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512, of which F, BW, DQ and VL.
    Avx512,
}

impl LaneCount {
    fn n(self) -> usize {
        match self {
            LaneCount::Four => 4,
            LaneCount::Eight => 8,
            LaneCount::Sixteen => 16,
        }
    }

    /// Returns the length of vectors with elements of 4 or 8 bytes.
    fn length(self, size: usize) -> VectorLength {
        match self.n() * size {
            16 => VectorLength::L128,
            32 => VectorLength::L256,
            64 => VectorLength::L512,
            _ => panic!("{self:?} elements of {size} bytes are no vector"),
        }
    }
}

impl LaneInstructions {
    /// Returns the number of lanes of a vector whose largest elements have a size.
    fn lanes(self, size: usize) -> LaneCount {
        match (self, size) {
            (LaneInstructions::Avx2, 8) => LaneCount::Four,
            (LaneInstructions::Avx2, _) | (LaneInstructions::Avx512, 8) => LaneCount::Eight,
            (LaneInstructions::Avx512, _) => LaneCount::Sixteen,
        }
    }

    /// Returns whether this processor has the instructions.
    pub(super) fn is_supported(self) -> bool {
        let has_avx2 = std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("bmi1")
            && std::is_x86_feature_detected!("popcnt");
        let has_avx512 = || {
            has_avx512f()
                && std::is_x86_feature_detected!("avx512bw")
                && std::is_x86_feature_detected!("avx512dq")
                && std::is_x86_feature_detected!("avx512vl")
        };
        has_avx2 && (self == LaneInstructions::Avx2 || has_avx512())
    }

    /// Returns the widest vectors of this processor, up to a limit.
    pub(super) fn widest(limit: CodeVectors) -> Option<LaneInstructions> {
        let sets: &[LaneInstructions] = match limit {
            CodeVectors::None => &[],
            CodeVectors::UpTo256 => &[LaneInstructions::Avx2],
            CodeVectors::Widest => &[LaneInstructions::Avx512, LaneInstructions::Avx2],
        };
        sets.iter().copied().find(|set| set.is_supported())
    }
}

/// The memory on which a function works.
#[repr(C)]
struct CodeArguments {
    /// The addresses of the elements of the function's rows.
    rows: *const *mut u8,
    /// A byte for each lane, which is 1 if it is active, else 0.
    active: *const u8,
    /// All active lanes are before this one.
    n: usize,
    /// Memory for values that have no register, and [for stacks](StackMemory).
    slots: *mut u8,
    tensors: *const CodeTensor,
    /// The lane that each place has.
    lane_of: *const u16,
    /// 1 if that is not always the same lane, else 0.
    has_moved: u8,
    /// The bytes that are not 0 if the code should end.
    stop: *const u8,
    has_declined: *const u8,
}

/// The memory of a tensor of which code reads elements.
#[repr(C)]
struct CodeTensor {
    elements: *const u8,
    /// The number of elements.
    n: u32,
}

/// The type of a function. It returns one of the numbers below.
type LaneFn = unsafe extern "sysv64" fn(*const CodeArguments) -> u32;

/// The function has done all its work.
const DONE: u32 = 0;
/// The loop cannot run in lanes.
const DECLINED: u32 = 1;
/// A stack has no room for all elements.
const NO_ROOM: u32 = 2;

struct LaneFunction {
    call: LaneFn,
    rows: Vec<RowId>,
    tensors: Vec<ReadTensor>,
    stacks: Vec<UsedStack>,
    groups: Vec<StackGroup>,
    memory: StackMemory,
}

/// The native code of a program.
pub(super) struct LaneCode {
    functions: Vec<LaneFunction>,
    set: LaneInstructions,
    n_loops: usize,
    /// The number of places of 64 bytes that functions need.
    n_slots: usize,
    /// The memory of the functions, executable and immutable.
    _code: Mmap,
}

/// Memory for runs of code.
#[derive(Default)]
pub(super) struct CodeMemory {
    slots: Vec<VectorBytes>,
    rows: Vec<*mut u8>,
    tensors: Vec<CodeTensor>,
}

/// The most basic blocks, times the number of rows, of a program that is compiled: the rows that
/// are live at each are found.
const MAX_SIZE: usize = 1 << 22;

/// Compiles parts of a program to native code with vectors up to a limit, if this processor has
/// such and the system provides memory for code. Returns the basic blocks that run it.
pub(super) fn compile(body: LaneBody<'_>, limit: CodeVectors) -> Option<(Vec<BasicBlock>, LaneCode)> {
    let set = LaneInstructions::widest(limit)?;
    if body.blocks.len() * body.rows.len() > MAX_SIZE {
        return None;
    }
    let (blocks, parts) = region::extract(body, set);
    if parts.code.is_empty() {
        return None;
    }
    let mut bytes: Vec<u8> = Vec::new();
    let mut entries = Vec::with_capacity(parts.code.len());
    let mut n_slots = 0;
    for lowered in &parts.code {
        let code = emit::emit(lowered, set);
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        entries.push((bytes.len() + code.entry, code.memory));
        bytes.extend(code.bytes);
        n_slots = n_slots.max(code.memory.end());
    }
    let code = executable(&bytes).ok()?;
    let function = |(lowered, (entry, memory)): (Lowered, (usize, StackMemory))| {
        let call = code[entry..].as_ptr();
        // SAFETY: a function for the calling convention and with the argument of `LaneFn` begins
        // there, as `emit` has made it.
        let call = unsafe { std::mem::transmute::<*const u8, LaneFn>(call) };
        let Lowered { rows, tensors, stacks, groups, .. } = lowered;
        LaneFunction { call, rows, tensors, stacks, groups, memory }
    };
    let functions = parts.code.into_iter().zip(entries).map(function).collect();
    Some((blocks, LaneCode { functions, set, n_loops: parts.n_loops, n_slots, _code: code }))
}

impl LaneCode {
    /// Returns the number of lanes of a tile of stacks: those of the longest vectors.
    pub(super) fn tile(&self) -> usize {
        self.set.lanes(4).n()
    }

    /// Returns the stacks of the program that functions use.
    pub(super) fn stacks(&self) -> impl Iterator<Item = u16> {
        self.functions.iter().flat_map(|function| &function.stacks).map(|stack| stack.of_program)
    }

    /// Runs a function, if it can do all its work.
    pub(super) fn run(&self, function: u16, block: CodeBlock<'_>, memory: &mut CodeMemory) -> Result<(), Declined> {
        let CodeBlock { rows, active, n, lane_of, has_moved, elements, stack, stop, has_declined } = block;
        let CodeMemory { slots, rows: pointers, tensors } = memory;
        let f = &self.functions[usize::from(function)];
        let n_places = n.next_multiple_of(16);
        assert!(n_places <= active.len() && n_places <= lane_of.len(), "the block has memory for whole vectors");
        slots.resize(slots.len().max(self.n_slots), VectorBytes::zeroed());
        pointers.clear();
        pointers.extend(f.rows.iter().map(|&row| rows[usize::from(row)].as_mut_ptr().cast::<u8>()));
        tensors.clear();
        for tensor in &f.tensors {
            let bytes = elements(tensor.source);
            let n = bytes.len() / tensor.size;
            // Places have 31 bits.
            let (Ok(n), true) = (i32::try_from(n), n >= tensor.n) else { return Err(Declined::Loop) };
            tensors.push(CodeTensor { elements: bytes.as_ptr(), n: n.cast_unsigned() });
        }
        f.set_stacks(bytemuck::cast_slice_mut(slots), self.tile(), stack)?;
        let arguments = CodeArguments {
            rows: pointers.as_ptr(),
            active: active.as_ptr(),
            n,
            slots: slots.as_mut_ptr().cast(),
            tensors: tensors.as_ptr(),
            lane_of: lane_of.as_ptr(),
            has_moved: u8::from(has_moved),
            stop: stop.address(),
            has_declined: has_declined.as_ptr().cast::<u8>(),
        };
        // SAFETY: the code accesses rows, `active` and `lane_of` only up to `n`, rounded up to 16
        // lanes, for which the latter two have elements, as checked, and so have rows, which the
        // block makes with them (C2). There are as many slots as any function uses. It reads
        // elements of tensors at places below their number, and below those of `ReadTensor::n`
        // without a check, as checked here. It accesses elements of stacks only for lanes of the
        // block, at depths below the room of the stack, which is at least that of its group;
        // lanes of a mask without any are taken for lanes without elements, and there is
        // room for those, as `set_stacks` has checked. Other threads change the two bytes
        // atomically. All are borrowed until the function returns.
        match unsafe { (f.call)(&raw const arguments) } {
            DONE => Ok(()),
            NO_ROOM => Err(Declined::Code),
            _ => Err(Declined::Loop),
        }
    }
}

impl LaneFunction {
    /// Writes where stacks are, and the room of their groups, for the code.
    fn set_stacks(
        &self,
        slots: &mut [u64],
        tile: usize,
        stack: &mut dyn FnMut(u16) -> (*mut u8, usize, usize),
    ) -> Result<(), Declined> {
        for group in 0..self.groups.len() {
            slots[self.memory.room(group as u16) as usize / 8] = u64::MAX;
        }
        for (i, used) in self.stacks.iter().enumerate() {
            let (address, n, of_stack) = stack(used.of_program);
            // An earlier loop may have no code.
            if of_stack != tile {
                return Err(Declined::Code);
            }
            slots[self.memory.address(i as u16) as usize / 8] = address as u64;
            slots[self.memory.room_of_stack(i as u16) as usize / 8] = n as u64;
            let room = &mut slots[self.memory.room(used.group) as usize / 8];
            *room = (*room).min(n as u64);
        }
        let has_room = |(i, group): (usize, &StackGroup)| {
            slots[self.memory.room(i as u16) as usize / 8] >= u64::from(group.min_room).max(1)
        };
        if self.groups.iter().enumerate().all(has_room) { Ok(()) } else { Err(Declined::Code) }
    }
}

impl fmt::Debug for LaneCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneCode").field("functions", &self.functions.len()).finish_non_exhaustive()
    }
}

impl fmt::Display for LaneCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_runs = self.functions.len() - self.n_loops;
        let number = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
        write!(f, "{} and {} of operations, ", number(self.n_loops, "loop"), number(n_runs, "run"))?;
        f.write_str(if self.set == LaneInstructions::Avx2 { "AVX2" } else { "AVX-512" })
    }
}

#[cfg(test)]
mod tests;
