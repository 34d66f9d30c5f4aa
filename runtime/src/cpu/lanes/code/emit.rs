//! Machine code of steps whose values have places: a loop over the vectors of lanes.
//!
//! The code follows the calling convention of System V on all systems: its argument is the address
//! of the [`CodeArguments`](super::CodeArguments), it uses registers only that a caller does not
//! expect to be kept, and no stack. It returns 0 if it did all its work.
//!
//! What follows is for AVX-512. [`avx2`] has what differs without it.

mod avx2;
mod stacks;

use super::allocate::{Allocation, RegisterFile, ValuePlace, allocate};
use super::lower::{Lowered, UsedStack};
use super::scalar::LESS;
use super::stack_memory::StackMemory;
use super::steps::{CodeStep, CodeSteps, Lifetime, RegisterGroup, ValueId, VectorPart, VectorStep};
use super::{CodeArguments, CodeTensor, DECLINED, DONE, LaneCount, LaneInstructions, NO_ROOM};
use crate::cpu::lanes::block::FEW_LANES;
use crate::cpu::x86::encode::{
    self, Address, Encoder, Label, MachineOperand, MaskOp, Predicate, VectorLength, VectorOp,
};
use crate::cpu::x86::general::{Gpr, JumpCondition};
use std::mem::offset_of;

/// Repetitions of loops between two looks at whether to stop.
const ROUNDS: u32 = 1024;

/// If some lanes of a vector wait, and fewer than [`FEW_LANES`] go on for longer than so many times
/// the [`ROUNDS`], others may wait to fail.
const LONE_ROUNDS: u32 = 1024;

const ARGUMENTS: Gpr = Gpr::RDI;
const ROWS: Gpr = Gpr::RSI;
/// An index, for one step.
const INDEX: Gpr = Gpr::R10;
const SLOTS: Gpr = Gpr::R11;
/// The first lane of the vector, and that of the second one.
const LANE: Gpr = Gpr::RCX;
const SECOND_LANE: Gpr = Gpr::RDX;
const ROUNDS_LEFT: Gpr = Gpr::R8;
const LONE_ROUNDS_LEFT: Gpr = Gpr::R9;
const OTHER: Gpr = Gpr::RAX;

/// The code of steps, and what it needs.
#[derive(Debug)]
pub(super) struct EmittedCode {
    pub(super) bytes: Vec<u8>,
    /// The place of the first instruction. Constants come before it.
    pub(super) entry: usize,
    pub(super) memory: StackMemory,
}

struct Emitter<'a> {
    e: Encoder,
    steps: &'a CodeSteps,
    allocation: Allocation,
    /// The places of constants.
    constants: Vec<usize>,
    set: LaneInstructions,
    registers: &'static RegisterFile,
    lanes: LaneCount,
    memory: StackMemory,
    stacks: &'a [UsedStack],
    targets: Vec<Label>,
    decline: Label,
    no_room: Label,
    /// Steps on stacks where lanes have different depths.
    apart: Vec<stacks::ApartStep>,
    /// The rare looks at whether to stop, with the places where they start and where they lead.
    looks: Vec<[Label; 2]>,
}

fn argument(offset: usize) -> Address {
    Address::Based { base: ARGUMENTS, index: None, displacement: offset as i32 }
}

/// Emits code for two vectors at once, if they go through a loop together and have registers for
/// all values, else for one.
pub(super) fn emit(lowered: &Lowered, set: LaneInstructions) -> EmittedCode {
    let (steps, registers) = (&lowered.steps, set.registers());
    if let Some(steps) = steps.doubled()
        && let allocation = allocate(&steps, registers)
        && allocation.n_slots == 0
    {
        return emit_allocated(lowered, &steps, allocation, set);
    }
    emit_allocated(lowered, steps, allocate(steps, registers), set)
}

fn emit_allocated(lowered: &Lowered, steps: &CodeSteps, allocation: Allocation, set: LaneInstructions) -> EmittedCode {
    let mut e = Encoder::default();
    let mut constants = vec![0; steps.values.len()];
    for (info, place) in steps.values.iter().zip(&mut constants) {
        if let Lifetime::Constant { bits, .. } = info.lifetime {
            *place = e.code.len();
            e.code.extend(bits.to_le_bytes());
        }
    }
    let entry = e.code.len().next_multiple_of(16);
    e.code.resize(entry, 0);
    let targets = (0..steps.n_targets).map(|_| e.label()).collect();
    let [decline, no_room] = [(); 2].map(|()| e.label());
    let memory = StackMemory::new(allocation.n_slots, lowered.groups.len(), lowered.stacks.len());
    let mut emitter = Emitter {
        e,
        steps,
        allocation,
        constants,
        set,
        registers: set.registers(),
        lanes: lowered.lanes,
        memory,
        stacks: &lowered.stacks,
        targets,
        decline,
        no_room,
        apart: Vec::new(),
        looks: Vec::new(),
    };
    emitter.function();
    EmittedCode { bytes: emitter.e.finish(), entry, memory }
}

impl Emitter<'_> {
    fn function(&mut self) {
        let fields = [(ROWS, offset_of!(CodeArguments, rows)), (SLOTS, offset_of!(CodeArguments, slots))];
        fields.into_iter().for_each(|(register, offset)| self.e.load(register, argument(offset)));
        self.e.set(LANE, 0);
        self.e.set(ROUNDS_LEFT, ROUNDS);
        for (i, info) in self.steps.values.iter().enumerate() {
            if let (Lifetime::Constant { .. }, ValuePlace::Register(register)) =
                (info.lifetime, self.allocation.places[i])
            {
                self.constant(i, register);
            }
        }
        let [again, next, end] = [(); 3].map(|()| self.e.label());
        self.e.bind(again);
        self.e.load(INDEX, argument(offset_of!(CodeArguments, active)));
        let active = |lane: Gpr| Address::Based { base: INDEX, index: Some((lane, 1)), displacement: 0 };
        self.load_bytes(active(LANE), self.register(ValueId::CURRENT));
        if let Some(second) = self.steps.second {
            let [is_there, both] = [(); 2].map(|()| self.e.label());
            let second = self.register(second);
            self.e.copy(SECOND_LANE, LANE);
            self.e.add(SECOND_LANE, self.lanes.n() as i32);
            self.e.load(OTHER, argument(offset_of!(CodeArguments, n)));
            self.e.compare(SECOND_LANE, OTHER);
            self.e.jump_if(JumpCondition::Below, is_there);
            // Without a second vector, none of its lanes are active.
            self.e.copy(SECOND_LANE, LANE);
            self.mask_op(MaskOp::Xor, second, second, second);
            self.e.jump(both);
            self.e.bind(is_there);
            self.load_bytes(active(SECOND_LANE), second);
            self.e.bind(both);
        }
        self.find_first_elements();
        let current = self.all_current();
        self.mask_test(current);
        self.e.jump_if(JumpCondition::Zero, next);
        self.e.set(LONE_ROUNDS_LEFT, LONE_ROUNDS);
        self.steps.steps.iter().for_each(|step| self.step(step));
        self.e.bind(next);
        let n_vectors = if self.steps.second.is_some() { 2 } else { 1 };
        self.e.add(LANE, n_vectors * self.lanes.n() as i32);
        self.e.load(OTHER, argument(offset_of!(CodeArguments, n)));
        self.e.compare(LANE, OTHER);
        self.e.jump_if(JumpCondition::Below, again);
        self.e.set(OTHER, DONE);
        self.e.bind(end);
        self.e.return_to_caller();
        for [start, back] in std::mem::take(&mut self.looks) {
            self.look(start, back);
        }
        for step in std::mem::take(&mut self.apart) {
            self.apart(&step);
        }
        for (label, outcome) in [(self.decline, DECLINED), (self.no_room, NO_ROOM)] {
            self.e.bind(label);
            self.e.set(OTHER, outcome);
            self.e.jump(end);
        }
    }

    /// Ends the code if the step is to stop, another block has declined, or few lanes go on for
    /// long.
    fn look(&mut self, start: Label, back: Label) {
        self.e.bind(start);
        for offset in [offset_of!(CodeArguments, stop), offset_of!(CodeArguments, has_declined)] {
            self.e.load(OTHER, argument(offset));
            self.e.compare_byte(Address::Based { base: OTHER, index: None, displacement: 0 }, 0);
            self.e.jump_if(JumpCondition::NotZero, self.decline);
        }
        self.e.set(ROUNDS_LEFT, ROUNDS);
        let current = self.all_current();
        self.mask_to_general(current);
        self.e.count_bits(OTHER, OTHER);
        self.e.compare_with(OTHER, self.lanes.n().min(FEW_LANES) as i32);
        self.e.jump_if(JumpCondition::AtLeast, back);
        self.e.add(LONE_ROUNDS_LEFT, -1);
        self.e.jump_if(JumpCondition::NotZero, back);
        self.e.jump(self.decline);
    }

    /// Returns a register with the lanes that are current in any vector.
    fn all_current(&mut self) -> u8 {
        let first = self.register(ValueId::CURRENT);
        let Some(second) = self.steps.second else { return first };
        let (both, second) = (self.registers.scratch_masks[0], self.register(second));
        self.mask_op(MaskOp::Or, both, first, second);
        both
    }

    fn place(&self, value: ValueId) -> ValuePlace {
        self.allocation.places[value.index()]
    }

    fn register(&self, value: ValueId) -> u8 {
        match self.place(value) {
            ValuePlace::Register(register) => register,
            other => panic!("{other:?} is no register"),
        }
    }

    fn slot(slot: u16) -> Address {
        Address::Based { base: SLOTS, index: None, displacement: i32::from(slot) * 64 }
    }

    /// The length of whole registers.
    fn whole(&self) -> VectorLength {
        match self.set {
            LaneInstructions::Avx512 => VectorLength::L512,
            LaneInstructions::Avx2 => VectorLength::L256,
        }
    }

    fn plain(&mut self, op: &VectorOp, length: VectorLength, register: u8, rm: MachineOperand) {
        self.three(op, length, [register, 0], rm, None);
    }

    /// Adds an instruction that computes all elements.
    fn three(
        &mut self,
        op: &VectorOp,
        length: VectorLength,
        registers: [u8; 2],
        rm: MachineOperand,
        immediate: Option<u8>,
    ) {
        match self.set {
            LaneInstructions::Avx512 => self.e.vector(op, length, registers, rm, Predicate::NONE, immediate),
            LaneInstructions::Avx2 => {
                let op = op.of_avx2().expect("steps have instructions of this processor");
                self.e.avx2(&op, length, registers, rm, immediate);
            }
        }
    }

    /// Sets the zero flag to whether no lane is in a mask.
    fn mask_test(&mut self, mask: u8) {
        match self.set {
            LaneInstructions::Avx512 => self.e.mask_test(mask),
            LaneInstructions::Avx2 => {
                let rm = MachineOperand::Register(mask);
                self.e.avx2(&encode::AVX2_TEST, VectorLength::L256, [mask, 0], rm, None);
            }
        }
    }

    /// Sets [`OTHER`] to a bit for each lane.
    fn mask_to_general(&mut self, mask: u8) {
        match self.set {
            LaneInstructions::Avx512 => self.e.mask_to_gpr(OTHER, mask),
            LaneInstructions::Avx2 => self.avx2_signs(mask),
        }
    }

    fn mask_op(&mut self, op: MaskOp, dst: u8, a: u8, b: u8) {
        match self.set {
            LaneInstructions::Avx512 => self.e.mask(op, dst, a, b),
            LaneInstructions::Avx2 => {
                let op = match op {
                    MaskOp::And => &encode::AVX2_AND,
                    MaskOp::AndNot => &encode::AVX2_AND_NOT,
                    MaskOp::Or => &encode::AVX2_OR,
                    MaskOp::Xor => &encode::AVX2_XOR,
                    MaskOp::Equal => &encode::AVX2_EQUAL_32,
                };
                self.e.avx2(op, VectorLength::L256, [dst, a], MachineOperand::Register(b), None);
            }
        }
    }

    /// Copies a mask, or loads it.
    fn mask_load(&mut self, dst: u8, src: MachineOperand) {
        match self.set {
            LaneInstructions::Avx512 => self.e.mask_load(dst, src),
            LaneInstructions::Avx2 => self.plain(&encode::LOAD, VectorLength::L256, dst, src),
        }
    }

    fn mask_not(&mut self, dst: u8, src: u8) {
        match self.set {
            LaneInstructions::Avx512 => self.e.mask_not(dst, src),
            LaneInstructions::Avx2 => {
                let ones = self.registers.scratch_masks[1];
                self.mask_op(MaskOp::Equal, ones, ones, ones);
                self.mask_op(MaskOp::Xor, dst, src, ones);
            }
        }
    }

    fn mask_store(&mut self, to: Address, src: u8) {
        match self.set {
            LaneInstructions::Avx512 => self.e.mask_store(to, src),
            LaneInstructions::Avx2 => self.plain(&encode::STORE, VectorLength::L256, src, MachineOperand::Memory(to)),
        }
    }

    /// Loads a constant.
    fn constant(&mut self, i: usize, register: u8) {
        let info = self.steps.values[i];
        let Lifetime::Constant { bits, size } = info.lifetime else { panic!("{info:?} is no constant") };
        match (info.group, size) {
            (RegisterGroup::Masks, _) => {
                let op = if bits & 1 == 1 { MaskOp::Equal } else { MaskOp::Xor };
                self.mask_op(op, register, register, register);
            }
            (RegisterGroup::Vectors, size) => {
                let op = if size == 4 { &encode::BROADCAST_32 } else { &encode::BROADCAST_64 };
                let from = MachineOperand::Memory(Address::InCode(self.constants[i]));
                self.plain(op, self.whole(), register, from);
            }
        }
    }

    /// Returns a register with a vector, which is the given one if it has to be loaded.
    fn vector_in(&mut self, value: ValueId, scratch: u8) -> u8 {
        match self.place(value) {
            ValuePlace::Register(register) => return register,
            ValuePlace::Slot(slot) => {
                self.plain(&encode::LOAD, self.whole(), scratch, MachineOperand::Memory(Self::slot(slot)));
            }
            ValuePlace::InCode => self.constant(value.index(), scratch),
        }
        scratch
    }

    /// Returns a register with a mask, like [`vector_in`](Self::vector_in).
    fn mask_in(&mut self, value: ValueId, scratch: u8) -> u8 {
        match self.place(value) {
            ValuePlace::Register(register) => return register,
            ValuePlace::Slot(slot) => self.mask_load(scratch, MachineOperand::Memory(Self::slot(slot))),
            ValuePlace::InCode => self.constant(value.index(), scratch),
        }
        scratch
    }

    /// Returns the register in which a result is computed.
    fn result(&self, value: ValueId) -> u8 {
        match (self.place(value), self.steps.values[value.index()].group) {
            (ValuePlace::Register(register), _) => register,
            (_, RegisterGroup::Vectors) => self.registers.scratch[2],
            (_, RegisterGroup::Masks) => self.registers.scratch_masks[0],
        }
    }

    /// Stores a result that has no register.
    fn finish_result(&mut self, value: ValueId) {
        let ValuePlace::Slot(slot) = self.place(value) else { return };
        match self.steps.values[value.index()].group {
            RegisterGroup::Vectors => {
                self.plain(
                    &encode::STORE,
                    self.whole(),
                    self.registers.scratch[2],
                    MachineOperand::Memory(Self::slot(slot)),
                );
            }
            RegisterGroup::Masks => self.mask_store(Self::slot(slot), self.registers.scratch_masks[0]),
        }
    }

    /// Returns the last source of an instruction, which may be in memory.
    fn operand(&mut self, step: &VectorStep, value: ValueId, scratch: u8) -> MachineOperand {
        if self.steps.values[value.index()].group == RegisterGroup::Masks {
            return MachineOperand::Register(self.mask_in(value, self.registers.scratch_masks[1]));
        }
        let size = if step.op.w { 8 } else { 4 };
        match (self.place(value), self.steps.values[value.index()].lifetime) {
            (ValuePlace::Slot(slot), _) => MachineOperand::Memory(Self::slot(slot)),
            (ValuePlace::InCode, Lifetime::Constant { size: of, .. })
                if self.set == LaneInstructions::Avx512 && step.op.may_broadcast && of == size =>
            {
                MachineOperand::Broadcast(Address::InCode(self.constants[value.index()]))
            }
            _ => MachineOperand::Register(self.vector_in(value, scratch)),
        }
    }

    fn vector(&mut self, step: &VectorStep) {
        if self.set == LaneInstructions::Avx2 {
            self.avx2_vector(step);
            return;
        }
        let dst = self.result(step.dst);
        if let Some(before) = step.before {
            match self.place(before) {
                ValuePlace::Register(register) if register == dst => {}
                ValuePlace::Register(register) => {
                    self.plain(&encode::COPY, self.whole(), dst, MachineOperand::Register(register));
                }
                _ => _ = self.vector_in(before, dst),
            }
        }
        let predicate = step.mask.map_or(Predicate::NONE, |mask| {
            let mask = self.mask_in(mask, self.registers.scratch_masks[1]);
            Predicate { mask, zeroing: step.zeroing }
        });
        let (registers, rm) = match step.sources {
            [Some(a), Some(b)] => {
                let a = self.vector_in(a, self.registers.scratch[0]);
                ([dst, a], self.operand(step, b, self.registers.scratch[1]))
            }
            [Some(a), None] if step.op.form == encode::OperandForm::Mr => {
                ([self.vector_in(a, self.registers.scratch[0]), 0], MachineOperand::Register(dst))
            }
            [Some(a), None] => ([dst, 0], self.operand(step, a, self.registers.scratch[0])),
            [None, _] => panic!("an instruction has a source"),
        };
        self.e.vector(step.op, step.length, registers, rm, predicate, step.immediate);
        self.finish_result(step.dst);
    }

    /// Loads a mask from a byte for each lane.
    fn load_bytes(&mut self, from: Address, mask: u8) {
        if self.set == LaneInstructions::Avx2 {
            self.avx2_load_bytes(from, mask);
            return;
        }
        let op = if self.lanes == LaneCount::Sixteen { &encode::LOAD } else { &encode::LOAD_8 };
        let scratch = self.registers.scratch[0];
        self.plain(op, VectorLength::L128, scratch, MachineOperand::Memory(from));
        let rm = MachineOperand::Register(scratch);
        self.e.vector(&encode::TEST_BYTES, VectorLength::L128, [mask, scratch], rm, Predicate::NONE, None);
    }

    /// Stores a byte for each lane of a mask.
    fn store_bytes(&mut self, to: Address, mask: u8) {
        let bytes = self.registers.scratch[0];
        match self.set {
            LaneInstructions::Avx512 => {
                self.plain(&encode::MASK_TO_BYTES, VectorLength::L128, bytes, MachineOperand::Register(mask));
            }
            LaneInstructions::Avx2 => self.avx2_mask_to_bytes(bytes, mask),
        }
        // True is 1, and was -1.
        self.plain(&encode::ABS_BYTES, VectorLength::L128, bytes, MachineOperand::Register(bytes));
        let op = match self.lanes {
            LaneCount::Sixteen => &encode::STORE,
            LaneCount::Eight => &encode::STORE_8,
            LaneCount::Four => &encode::AVX2_STORE_4,
        };
        self.plain(op, VectorLength::L128, bytes, MachineOperand::Memory(to));
    }

    fn step(&mut self, step: &CodeStep) {
        match step {
            CodeStep::Vector(step) => self.vector(step),
            &CodeStep::Mask { op, dst, a, b } => {
                let a = self.mask_in(a, self.registers.scratch_masks[0]);
                let b = self.mask_in(b, self.registers.scratch_masks[1]);
                self.mask_op(op, self.result(dst), a, b);
                self.finish_result(dst);
            }
            &CodeStep::MaskNot { dst, src } => {
                let src = self.mask_in(src, self.registers.scratch_masks[0]);
                self.mask_not(self.result(dst), src);
                self.finish_result(dst);
            }
            &CodeStep::MaskCopy { dst, src } => {
                let src = self.mask_in(src, self.registers.scratch_masks[0]);
                let to = self.result(dst);
                if to != src {
                    self.mask_load(to, MachineOperand::Register(src));
                }
                self.finish_result(dst);
            }
            &CodeStep::LoadRow { row, part, size, dst } => {
                let from = self.row(row, part, size);
                let to = self.result(dst);
                match size {
                    1 => self.load_bytes(from, to),
                    _ => self.plain(&encode::LOAD, self.lanes.length(size), to, MachineOperand::Memory(from)),
                }
                self.finish_result(dst);
            }
            &CodeStep::StoreRow { row, part, size: 1, src } => {
                let to = self.row(row, part, 1);
                let src = self.mask_in(src, self.registers.scratch_masks[0]);
                self.store_bytes(to, src);
            }
            &CodeStep::StoreRow { row, part, size, src } => {
                let to = self.row(row, part, size);
                let src = self.vector_in(src, self.registers.scratch[0]);
                self.plain(&encode::STORE, self.lanes.length(size), src, MachineOperand::Memory(to));
            }
            &CodeStep::WithinTensor { tensor, places, dst } => {
                let places = self.vector_in(places, self.registers.scratch[0]);
                self.tensor(tensor);
                let n = Address::Based { base: OTHER, index: None, displacement: offset_of!(CodeTensor, n) as i32 };
                let to = self.result(dst);
                match self.set {
                    LaneInstructions::Avx512 => {
                        let (op, rm) = (&encode::COMPARE_U32, MachineOperand::Broadcast(n));
                        self.e.vector(op, self.lanes.length(4), [to, places], rm, Predicate::NONE, Some(LESS[1]));
                    }
                    LaneInstructions::Avx2 => {
                        let limit = self.registers.scratch[1];
                        self.plain(&encode::BROADCAST_32, VectorLength::L256, limit, MachineOperand::Memory(n));
                        self.avx2_compare(&encode::COMPARE_U32, to, [places, limit], LESS[1]);
                    }
                }
                self.finish_result(dst);
            }
            &CodeStep::Gather { tensor, size, places, mask, dst } => {
                let places = self.vector_in(places, self.registers.scratch[0]);
                // The instruction clears its mask.
                let cleared = self.registers.scratch_masks[1];
                let mask = match self.set {
                    LaneInstructions::Avx512 => self.mask_in(mask, cleared),
                    LaneInstructions::Avx2 => self.avx2_mask_of(mask, size),
                };
                if mask != cleared {
                    self.mask_load(cleared, MachineOperand::Register(mask));
                }
                self.tensor(tensor);
                self.e.load(OTHER, Address::Based { base: OTHER, index: None, displacement: 0 });
                let to = self.result(dst);
                // So that the elements do not wait for earlier ones.
                self.three(&encode::XOR_32, self.whole(), [to, to], MachineOperand::Register(to), None);
                let (op, length) =
                    (if size == 8 { &encode::GATHER_64 } else { &encode::GATHER_32 }, self.lanes.length(size));
                match self.set {
                    LaneInstructions::Avx512 => self.e.gather(op, length, to, (OTHER, places), cleared),
                    LaneInstructions::Avx2 => self.e.avx2_gather(op, length, to, (OTHER, places), cleared),
                }
                self.finish_result(dst);
            }
            &CodeStep::ReadForAll { tensor, size, place, dst } => {
                self.tensor(tensor);
                self.e.load(OTHER, Address::Based { base: OTHER, index: None, displacement: 0 });
                let displacement = (place * size) as i32;
                let from = MachineOperand::Memory(Address::Based { base: OTHER, index: None, displacement });
                let op = if size == 8 { &encode::BROADCAST_64 } else { &encode::BROADCAST_32 };
                let to = self.result(dst);
                self.plain(op, self.whole(), to, from);
                self.finish_result(dst);
            }
            &CodeStep::StackRow { group, part, depth, mask, n, access } => {
                self.stack_row(group, [depth, mask], n, access);
                let row = Address::Based { base: SLOTS, index: None, displacement: self.memory.row(group, part) };
                self.e.store(8, row, INDEX);
            }
            &CodeStep::Push { to, src } => self.push(to, src),
            &CodeStep::Pop { from, dst } => self.pop(from, dst),
            &CodeStep::Deepest { depth, dst } => self.deepest(depth, dst),
            CodeStep::Label { target, .. } => self.e.bind(self.targets[target.index()]),
            CodeStep::Jump(to) => self.e.jump(self.targets[to.index()]),
            &CodeStep::JumpIfNone { mask, to } => {
                let mask = self.mask_in(mask, self.registers.scratch_masks[0]);
                self.mask_test(mask);
                self.e.jump_if(JumpCondition::Zero, self.targets[to.index()]);
            }
            &CodeStep::DeclineIfAny(mask) => {
                let mask = self.mask_in(mask, self.registers.scratch_masks[0]);
                self.mask_test(mask);
                self.e.jump_if(JumpCondition::NotZero, self.decline);
            }
            CodeStep::Repeat(to) => {
                let to = self.targets[to.index()];
                let [over, look] = [(); 2].map(|()| self.e.label());
                let current = self.all_current();
                self.mask_test(current);
                self.e.jump_if(JumpCondition::Zero, over);
                self.e.add(ROUNDS_LEFT, -1);
                self.e.jump_if(JumpCondition::NotZero, to);
                self.e.jump(look);
                self.e.bind(over);
                self.looks.push([look, to]);
            }
        }
    }

    /// Sets [`OTHER`] to the address of the [`CodeTensor`].
    fn tensor(&mut self, tensor: u16) {
        self.e.load(OTHER, argument(offset_of!(CodeArguments, tensors)));
        self.e.add(OTHER, i32::from(tensor) * size_of::<CodeTensor>() as i32);
    }

    /// Returns the address of the elements of a row. Changes [`OTHER`].
    fn row(&mut self, row: u16, part: VectorPart, size: usize) -> Address {
        self.e.load(OTHER, Address::Based { base: ROWS, index: None, displacement: i32::from(row) * 8 });
        let lane = if part == VectorPart::First { LANE } else { SECOND_LANE };
        Address::Based { base: OTHER, index: Some((lane, size as u8)), displacement: 0 }
    }
}
