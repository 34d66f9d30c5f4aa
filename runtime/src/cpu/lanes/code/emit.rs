//! Machine code of steps whose values have places: a loop over the vectors of lanes.
//!
//! The code follows the calling convention of System V on all systems: its argument is the address
//! of the [`CodeArguments`](super::CodeArguments), it uses registers only that a caller does not
//! expect to be kept, and no stack. It returns 0 if it did all its work.

use super::allocate::{Allocation, ValuePlace, allocate};
use super::encode::{
    self, Address, Encoder, Gpr, JumpCondition, Label, MachineOperand, MaskOp, Predicate, VectorLength, VectorOp,
};
use super::scalar::LESS;
use super::steps::{CodeStep, CodeSteps, Lifetime, RegisterGroup, ValueId, VectorStep};
use super::{CodeArguments, CodeTensor, LaneCount};
use std::mem::offset_of;

/// The registers that hold vectors from memory for one step: sources and the result.
const SCRATCH: [u8; 3] = [29, 30, 31];

/// The registers that hold masks from memory for one step: operands and the result. The first one
/// is never a predicate, as its number stands for none there.
const SCRATCH_MASKS: [u8; 2] = [0, 7];

/// Repetitions of loops between two looks at whether to stop.
const ROUNDS: u32 = 1024;

/// If fewer than half of the lanes of a vector go on for longer than so many times the
/// [`ROUNDS`], others may wait to fail.
const LONE_ROUNDS: u32 = 1024;

const ARGUMENTS: Gpr = Gpr::RDI;
const ROWS: Gpr = Gpr::RSI;
const ACTIVE: Gpr = Gpr::R10;
const N_LANES: Gpr = Gpr::RDX;
const SLOTS: Gpr = Gpr::R11;
/// The first lane of the vector.
const LANE: Gpr = Gpr::RCX;
const ROUNDS_LEFT: Gpr = Gpr::R8;
const LONE_ROUNDS_LEFT: Gpr = Gpr::R9;
const OTHER: Gpr = Gpr::RAX;

/// The code of steps, and what it needs.
#[derive(Debug)]
pub(super) struct EmittedCode {
    pub(super) bytes: Vec<u8>,
    /// The place of the first instruction. Constants come before it.
    pub(super) entry: usize,
    /// The number of places of 64 bytes.
    pub(super) n_slots: u16,
}

struct Emitter<'a> {
    e: Encoder,
    steps: &'a CodeSteps,
    allocation: Allocation,
    /// The places of constants.
    constants: Vec<usize>,
    lanes: LaneCount,
    targets: Vec<Label>,
    decline: Label,
    /// The rare looks at whether to stop, with the places where they start and where they lead.
    looks: Vec<[Label; 2]>,
}

fn argument(offset: usize) -> Address {
    Address::Based { base: ARGUMENTS, index: None, displacement: offset as i32 }
}

pub(super) fn emit(steps: &CodeSteps, lanes: LaneCount) -> EmittedCode {
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
    let decline = e.label();
    let allocation = allocate(steps);
    let n_slots = allocation.n_slots;
    let mut emitter = Emitter { e, steps, allocation, constants, lanes, targets, decline, looks: Vec::new() };
    emitter.function();
    EmittedCode { bytes: emitter.e.finish(), entry, n_slots }
}

impl Emitter<'_> {
    fn function(&mut self) {
        let fields = [
            (ROWS, offset_of!(CodeArguments, rows)),
            (ACTIVE, offset_of!(CodeArguments, active)),
            (N_LANES, offset_of!(CodeArguments, n)),
            (SLOTS, offset_of!(CodeArguments, slots)),
        ];
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
        let active = Address::Based { base: ACTIVE, index: Some((LANE, 1)), displacement: 0 };
        self.load_bytes(active, self.register(ValueId::CURRENT));
        self.e.mask_test(self.register(ValueId::CURRENT));
        self.e.jump_if(JumpCondition::Zero, next);
        self.e.set(LONE_ROUNDS_LEFT, LONE_ROUNDS);
        self.steps.steps.iter().for_each(|step| self.step(step));
        self.e.bind(next);
        self.e.add(LANE, self.lanes.n() as i32);
        self.e.compare(LANE, N_LANES);
        self.e.jump_if(JumpCondition::Below, again);
        self.e.set(OTHER, 0);
        self.e.bind(end);
        self.e.return_to_caller();
        for [start, back] in std::mem::take(&mut self.looks) {
            self.look(start, back);
        }
        self.e.bind(self.decline);
        self.e.set(OTHER, 1);
        self.e.jump(end);
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
        self.e.mask_to_gpr(OTHER, self.register(ValueId::CURRENT));
        self.e.count_bits(OTHER, OTHER);
        self.e.compare_with(OTHER, self.lanes.n() as i32 / 2);
        self.e.jump_if(JumpCondition::AtLeast, back);
        self.e.add(LONE_ROUNDS_LEFT, -1);
        self.e.jump_if(JumpCondition::NotZero, back);
        self.e.jump(self.decline);
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

    fn plain(&mut self, op: &VectorOp, length: VectorLength, register: u8, rm: MachineOperand) {
        self.e.vector(op, length, [register, 0], rm, Predicate::NONE, None);
    }

    /// Loads a constant.
    fn constant(&mut self, i: usize, register: u8) {
        let info = self.steps.values[i];
        let Lifetime::Constant { bits, size } = info.lifetime else { panic!("{info:?} is no constant") };
        match (info.group, size) {
            (RegisterGroup::Masks, _) => {
                let op = if bits & 1 == 1 { MaskOp::Equal } else { MaskOp::Xor };
                self.e.mask(op, register, register, register);
            }
            (RegisterGroup::Vectors, size) => {
                let op = if size == 4 { &encode::BROADCAST_32 } else { &encode::BROADCAST_64 };
                let from = MachineOperand::Memory(Address::InCode(self.constants[i]));
                self.plain(op, VectorLength::L512, register, from);
            }
        }
    }

    /// Returns a register with a vector, which is the given one if it has to be loaded.
    fn vector_in(&mut self, value: ValueId, scratch: u8) -> u8 {
        match self.place(value) {
            ValuePlace::Register(register) => return register,
            ValuePlace::Slot(slot) => {
                self.plain(&encode::LOAD, VectorLength::L512, scratch, MachineOperand::Memory(Self::slot(slot)));
            }
            ValuePlace::InCode => self.constant(value.index(), scratch),
        }
        scratch
    }

    /// Returns a register with a mask, like [`vector_in`](Self::vector_in).
    fn mask_in(&mut self, value: ValueId, scratch: u8) -> u8 {
        match self.place(value) {
            ValuePlace::Register(register) => return register,
            ValuePlace::Slot(slot) => self.e.mask_load(scratch, MachineOperand::Memory(Self::slot(slot))),
            ValuePlace::InCode => self.constant(value.index(), scratch),
        }
        scratch
    }

    /// Returns the register in which a result is computed.
    fn result(&self, value: ValueId) -> u8 {
        match (self.place(value), self.steps.values[value.index()].group) {
            (ValuePlace::Register(register), _) => register,
            (_, RegisterGroup::Vectors) => SCRATCH[2],
            (_, RegisterGroup::Masks) => SCRATCH_MASKS[0],
        }
    }

    /// Stores a result that has no register.
    fn finish_result(&mut self, value: ValueId) {
        let ValuePlace::Slot(slot) = self.place(value) else { return };
        match self.steps.values[value.index()].group {
            RegisterGroup::Vectors => {
                self.plain(&encode::STORE, VectorLength::L512, SCRATCH[2], MachineOperand::Memory(Self::slot(slot)));
            }
            RegisterGroup::Masks => self.e.mask_store(Self::slot(slot), SCRATCH_MASKS[0]),
        }
    }

    /// Returns the last source of an instruction, which may be in memory.
    fn operand(&mut self, step: &VectorStep, value: ValueId, scratch: u8) -> MachineOperand {
        if self.steps.values[value.index()].group == RegisterGroup::Masks {
            return MachineOperand::Register(self.mask_in(value, SCRATCH_MASKS[1]));
        }
        let size = if step.op.w { 8 } else { 4 };
        match (self.place(value), self.steps.values[value.index()].lifetime) {
            (ValuePlace::Slot(slot), _) => MachineOperand::Memory(Self::slot(slot)),
            (ValuePlace::InCode, Lifetime::Constant { size: of, .. }) if step.op.may_broadcast && of == size => {
                MachineOperand::Broadcast(Address::InCode(self.constants[value.index()]))
            }
            _ => MachineOperand::Register(self.vector_in(value, scratch)),
        }
    }

    fn vector(&mut self, step: &VectorStep) {
        let dst = self.result(step.dst);
        if let Some(before) = step.before {
            match self.place(before) {
                ValuePlace::Register(register) if register == dst => {}
                ValuePlace::Register(register) => {
                    self.plain(&encode::COPY, VectorLength::L512, dst, MachineOperand::Register(register));
                }
                _ => _ = self.vector_in(before, dst),
            }
        }
        let predicate = step.mask.map_or(Predicate::NONE, |mask| {
            let mask = self.mask_in(mask, SCRATCH_MASKS[1]);
            Predicate { mask, zeroing: step.zeroing }
        });
        let (registers, rm) = match step.sources {
            [Some(a), Some(b)] => {
                let a = self.vector_in(a, SCRATCH[0]);
                ([dst, a], self.operand(step, b, SCRATCH[1]))
            }
            [Some(a), None] if step.op.form == encode::OperandForm::Mr => {
                ([self.vector_in(a, SCRATCH[0]), 0], MachineOperand::Register(dst))
            }
            [Some(a), None] => ([dst, 0], self.operand(step, a, SCRATCH[0])),
            [None, _] => panic!("an instruction has a source"),
        };
        self.e.vector(step.op, step.length, registers, rm, predicate, step.immediate);
        self.finish_result(step.dst);
    }

    /// Loads a mask from a byte for each lane.
    fn load_bytes(&mut self, from: Address, mask: u8) {
        let (op, scratch) = match self.lanes {
            LaneCount::Sixteen => (&encode::LOAD, SCRATCH[0]),
            LaneCount::Eight => (&encode::LOAD_8, SCRATCH[0]),
        };
        self.plain(op, VectorLength::L128, scratch, MachineOperand::Memory(from));
        let rm = MachineOperand::Register(scratch);
        self.e.vector(&encode::TEST_BYTES, VectorLength::L128, [mask, scratch], rm, Predicate::NONE, None);
    }

    fn step(&mut self, step: &CodeStep) {
        match step {
            CodeStep::Vector(step) => self.vector(step),
            &CodeStep::Mask { op, dst, a, b } => {
                let a = self.mask_in(a, SCRATCH_MASKS[0]);
                let b = self.mask_in(b, SCRATCH_MASKS[1]);
                self.e.mask(op, self.result(dst), a, b);
                self.finish_result(dst);
            }
            &CodeStep::MaskNot { dst, src } => {
                let src = self.mask_in(src, SCRATCH_MASKS[0]);
                self.e.mask_not(self.result(dst), src);
                self.finish_result(dst);
            }
            &CodeStep::MaskCopy { dst, src } => {
                let src = self.mask_in(src, SCRATCH_MASKS[0]);
                let to = self.result(dst);
                if to != src {
                    self.e.mask_load(to, MachineOperand::Register(src));
                }
                self.finish_result(dst);
            }
            &CodeStep::LoadRow { row, size, dst } => {
                let from = self.row(row, size);
                let to = self.result(dst);
                match size {
                    1 => self.load_bytes(from, to),
                    _ => self.plain(&encode::LOAD, self.lanes.length(size), to, MachineOperand::Memory(from)),
                }
                self.finish_result(dst);
            }
            &CodeStep::StoreRow { row, size: 1, src } => {
                let to = self.row(row, 1);
                let src = self.mask_in(src, SCRATCH_MASKS[0]);
                let bytes = SCRATCH[0];
                self.plain(&encode::MASK_TO_BYTES, VectorLength::L128, bytes, MachineOperand::Register(src));
                // True is 1, and was -1.
                self.plain(&encode::ABS_BYTES, VectorLength::L128, bytes, MachineOperand::Register(bytes));
                let op = match self.lanes {
                    LaneCount::Sixteen => &encode::STORE,
                    LaneCount::Eight => &encode::STORE_8,
                };
                self.plain(op, VectorLength::L128, bytes, MachineOperand::Memory(to));
            }
            &CodeStep::StoreRow { row, size, src } => {
                let to = self.row(row, size);
                let src = self.vector_in(src, SCRATCH[0]);
                self.plain(&encode::STORE, self.lanes.length(size), src, MachineOperand::Memory(to));
            }
            &CodeStep::WithinTensor { tensor, places, dst } => {
                let places = self.vector_in(places, SCRATCH[0]);
                self.tensor(tensor);
                let n = Address::Based { base: OTHER, index: None, displacement: offset_of!(CodeTensor, n) as i32 };
                let to = self.result(dst);
                let (op, rm) = (&encode::COMPARE_U32, MachineOperand::Broadcast(n));
                self.e.vector(op, self.lanes.length(4), [to, places], rm, Predicate::NONE, Some(LESS[1]));
                self.finish_result(dst);
            }
            &CodeStep::Gather { tensor, size, places, mask, dst } => {
                let places = self.vector_in(places, SCRATCH[0]);
                let mask = self.mask_in(mask, SCRATCH_MASKS[1]);
                // The instruction clears its mask.
                if mask != SCRATCH_MASKS[1] {
                    self.e.mask_load(SCRATCH_MASKS[1], MachineOperand::Register(mask));
                }
                self.tensor(tensor);
                self.e.load(OTHER, Address::Based { base: OTHER, index: None, displacement: 0 });
                let to = self.result(dst);
                // So that the elements do not wait for earlier ones.
                let rm = MachineOperand::Register(to);
                self.e.vector(&encode::XOR_32, VectorLength::L512, [to, to], rm, Predicate::NONE, None);
                let op = if size == 8 { &encode::GATHER_64 } else { &encode::GATHER_32 };
                self.e.gather(op, self.lanes.length(size), to, (OTHER, places), SCRATCH_MASKS[1]);
                self.finish_result(dst);
            }
            &CodeStep::ReadForAll { tensor, size, place, dst } => {
                self.tensor(tensor);
                self.e.load(OTHER, Address::Based { base: OTHER, index: None, displacement: 0 });
                let displacement = (place * size) as i32;
                let from = MachineOperand::Memory(Address::Based { base: OTHER, index: None, displacement });
                let op = if size == 8 { &encode::BROADCAST_64 } else { &encode::BROADCAST_32 };
                let to = self.result(dst);
                self.plain(op, VectorLength::L512, to, from);
                self.finish_result(dst);
            }
            CodeStep::Label { target, .. } => self.e.bind(self.targets[target.index()]),
            CodeStep::Jump(to) => self.e.jump(self.targets[to.index()]),
            &CodeStep::JumpIfNone { mask, to } => {
                let mask = self.mask_in(mask, SCRATCH_MASKS[0]);
                self.e.mask_test(mask);
                self.e.jump_if(JumpCondition::Zero, self.targets[to.index()]);
            }
            &CodeStep::DeclineIfAny(mask) => {
                let mask = self.mask_in(mask, SCRATCH_MASKS[0]);
                self.e.mask_test(mask);
                self.e.jump_if(JumpCondition::NotZero, self.decline);
            }
            CodeStep::Repeat(to) => {
                let to = self.targets[to.index()];
                let [over, look] = [(); 2].map(|()| self.e.label());
                self.e.mask_test(self.register(ValueId::CURRENT));
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
    fn row(&mut self, row: u16, size: usize) -> Address {
        self.e.load(OTHER, Address::Based { base: ROWS, index: None, displacement: i32::from(row) * 8 });
        Address::Based { base: OTHER, index: Some((LANE, size as u8)), displacement: 0 }
    }
}
