//! Elements that lanes push to stacks and pop from them.
//!
//! Lanes that go through a loop together mostly have the same number of elements, so a vector of
//! them is written and read at once, at an index that all stacks of a group share. Where depths
//! differ, or lanes have moved, the code goes through the lanes one by one.

use super::*;
use crate::cpu::lanes::code::steps::{LaneElement, VectorAccess};
use crate::cpu::x86::general::{IntegerOp, ShiftOp};

/// Registers for a lane, a place in the memory of a stack, the lanes of the vector and an element,
/// which otherwise hold something else.
const SAVED: [Gpr; 4] = [Gpr::RCX, Gpr::RDX, Gpr::R8, Gpr::R9];
const ONE_LANE: Gpr = SAVED[0];
const PLACE: Gpr = SAVED[1];
const LANES: Gpr = SAVED[2];
const ELEMENT: Gpr = SAVED[3];

/// A step on a stack for lanes one by one: where it starts and where it leads.
#[derive(Debug)]
pub(super) struct ApartStep {
    labels: [Label; 2],
    element: LaneElement,
    access: StackAccess,
}

#[derive(Clone, Copy, Debug)]
enum StackAccess {
    Push(ValueId),
    Pop(ValueId),
}

fn memory(displacement: i32) -> Address {
    Address::Based { base: SLOTS, index: None, displacement }
}

/// Returns the address of the element of a lane, whose index in the vector is in a register.
fn of_lane(displacement: i32, size: usize) -> Address {
    Address::Based { base: SLOTS, index: Some((INDEX, size as u8)), displacement }
}

fn lane_of_part(part: VectorPart) -> Gpr {
    if part == VectorPart::First { LANE } else { SECOND_LANE }
}

impl Emitter<'_> {
    /// Finds the first elements of the vectors' lanes on each stack.
    pub(super) fn find_first_elements(&mut self) {
        let parts: &[VectorPart] = match self.steps.second {
            Some(_) => &[VectorPart::First, VectorPart::Second],
            None => &[VectorPart::First],
        };
        let stacks = self.stacks;
        for (i, stack) in (0..).zip(stacks) {
            for &part in parts {
                // The tile of the first lane, and the lane in its tile.
                let lane = lane_of_part(part);
                self.e.copy(OTHER, lane);
                self.e.shift_by(ShiftOp::RightUnsigned, true, OTHER, self.tile_bits());
                self.e.multiply(true, OTHER, MachineOperand::Memory(memory(self.memory.room_of_stack(i))));
                self.e.shift_by(ShiftOp::Left, true, OTHER, self.tile_bits());
                self.e.copy(INDEX, lane);
                self.e.integer_with(IntegerOp::And, true, INDEX, self.tile() as i32 - 1);
                self.e.integer(IntegerOp::Add, true, OTHER, MachineOperand::Register(INDEX.number()));
                self.e.load(INDEX, memory(self.memory.address(i)));
                let first = Address::Based { base: INDEX, index: Some((OTHER, stack.size as u8)), displacement: 0 };
                self.e.address(true, OTHER, first);
                self.e.store(8, memory(self.memory.first(i, part)), OTHER);
            }
        }
    }

    /// Compares the depths of lanes.
    fn compare_depths(&mut self, dst: u8, depths: [u8; 2], comparison: u8) {
        match self.set {
            LaneInstructions::Avx512 => {
                let rm = MachineOperand::Register(depths[1]);
                let length = self.lanes.length(4);
                self.e.vector(&encode::COMPARE_I32, length, [dst, depths[0]], rm, Predicate::NONE, Some(comparison));
            }
            LaneInstructions::Avx2 => self.avx2_compare(&encode::COMPARE_I32, dst, depths, comparison),
        }
    }

    /// Stores the depths of lanes, and returns their register.
    fn store_depths(&mut self, depth: ValueId) -> u8 {
        let depths = self.vector_in(depth, self.registers.scratch[0]);
        let to = MachineOperand::Memory(memory(self.memory.depths()));
        self.plain(&encode::STORE, self.lanes.length(4), depths, to);
        depths
    }

    /// Returns a register with the depth of the lane whose index is in [`INDEX`], for all lanes.
    fn depth_for_all(&mut self) -> u8 {
        let (to, from) = (self.registers.scratch[1], of_lane(self.memory.depths(), 4));
        self.plain(&encode::BROADCAST_32, self.lanes.length(4), to, MachineOperand::Memory(from));
        to
    }

    /// Sets [`INDEX`] to the first lane of the bits in [`OTHER`].
    fn first_lane(&mut self) {
        self.e.trailing_zeros(INDEX, OTHER);
    }

    /// The number of lanes of a tile.
    fn tile(&self) -> usize {
        self.set.lanes(4).n()
    }

    /// The exponent of the number of lanes of a tile.
    fn tile_bits(&self) -> u8 {
        self.tile().trailing_zeros() as u8
    }

    /// Sets [`INDEX`] to the index of elements at the depths of lanes, or to a number less than
    /// zero if there is none.
    pub(super) fn stack_row(&mut self, group: u16, [depth, mask]: [ValueId; 2], n: u32, access: VectorAccess) {
        let [found, none, differ] = [(); 3].map(|()| self.e.label());
        let [result, scratch] = self.registers.scratch_masks;
        let mask = self.mask_in(mask, scratch);
        self.mask_to_general(mask);
        self.e.test(OTHER);
        self.e.jump_if(JumpCondition::Zero, none);
        let depths = self.store_depths(depth);
        self.first_lane();
        let of_first = self.depth_for_all();
        if access == VectorAccess::Whole {
            // No other lane has more elements.
            self.compare_depths(result, [of_first, depths], 1);
            self.mask_test(result);
            self.e.jump_if(JumpCondition::NotZero, differ);
        }
        self.compare_depths(result, [depths, of_first], 4);
        self.mask_op(MaskOp::And, result, result, mask);
        self.mask_test(result);
        self.e.jump_if(JumpCondition::NotZero, differ);
        self.e.compare_byte(argument(offset_of!(CodeArguments, has_moved)), 0);
        self.e.jump_if(JumpCondition::NotZero, differ);
        self.e.copy_unsigned(4, INDEX, MachineOperand::Memory(of_lane(self.memory.depths(), 4)));
        self.e.address(true, OTHER, Address::Based { base: INDEX, index: None, displacement: n as i32 });
        self.e.integer(IntegerOp::Compare, true, OTHER, MachineOperand::Memory(memory(self.memory.room(group))));
        self.e.jump_if(JumpCondition::Above, self.no_room);
        self.e.shift_by(ShiftOp::Left, true, INDEX, self.tile_bits());
        self.e.jump(found);
        // Without lanes, any elements may be read, but not all be written.
        if access == VectorAccess::Masked {
            self.e.bind(none);
            self.e.set(INDEX, 0);
            self.e.jump(found);
        } else {
            self.e.bind(none);
        }
        self.e.bind(differ);
        self.e.set_wide(INDEX, u64::MAX);
        self.e.bind(found);
    }

    /// Returns the address of the elements of a vector. Jumps if their depths differ.
    fn elements(&mut self, element: LaneElement, access: StackAccess) -> (Address, Label) {
        let [start, back] = [(); 2].map(|()| self.e.label());
        self.e.load(INDEX, memory(self.memory.row(element.group, element.part)));
        self.e.test(INDEX);
        self.e.jump_if(JumpCondition::Sign, start);
        self.e.load(OTHER, memory(self.memory.first(element.stack, element.part)));
        self.apart.push(ApartStep { labels: [start, back], element, access });
        let displacement = (element.above as usize * self.tile() * element.size) as i32;
        (Address::Based { base: OTHER, index: Some((INDEX, element.size as u8)), displacement }, back)
    }

    pub(super) fn push(&mut self, to: LaneElement, src: ValueId) {
        let (at, back) = self.elements(to, StackAccess::Push(src));
        let [first, second, last] = self.registers.scratch;
        let [result, scratch] = self.registers.scratch_masks;
        match (self.set, to.size) {
            (_, 1) if to.access == VectorAccess::Whole => {
                let src = self.mask_in(src, result);
                self.store_bytes(at, src);
            }
            (_, size) if to.access == VectorAccess::Whole => {
                let src = self.vector_in(src, first);
                self.plain(&encode::STORE, self.lanes.length(size), src, MachineOperand::Memory(at));
            }
            (LaneInstructions::Avx512, 1) => {
                let src = self.mask_in(src, result);
                self.plain(&encode::MASK_TO_BYTES, VectorLength::L128, first, MachineOperand::Register(src));
                // True is 1, and was -1.
                self.plain(&encode::ABS_BYTES, VectorLength::L128, first, MachineOperand::Register(first));
                let mask = Predicate { mask: self.mask_in(to.mask, scratch), zeroing: false };
                let (op, at) = (&encode::STORE_BYTES, MachineOperand::Memory(at));
                self.e.vector(op, VectorLength::L128, [first, 0], at, mask, None);
            }
            (LaneInstructions::Avx512, size) => {
                let src = self.vector_in(src, first);
                let mask = Predicate { mask: self.mask_in(to.mask, scratch), zeroing: false };
                let op = if size == 8 { &encode::STORE_64 } else { &encode::STORE };
                self.e.vector(op, self.lanes.length(size), [src, 0], MachineOperand::Memory(at), mask, None);
            }
            // Other lanes may have elements there, which stay.
            (LaneInstructions::Avx2, 1) => {
                self.load_bytes(at, result);
                let src = self.mask_in(src, scratch);
                let mask = self.mask_in(to.mask, last);
                let src = MachineOperand::Register(src);
                self.e.avx2(&encode::AVX2_BLEND, VectorLength::L256, [result, result], src, Some(mask << 4));
                self.store_bytes(at, result);
            }
            (LaneInstructions::Avx2, size) => {
                let mask = self.avx2_mask_of(to.mask, size);
                let src = MachineOperand::Register(self.vector_in(src, first));
                let (length, at) = (self.lanes.length(size), MachineOperand::Memory(at));
                self.plain(&encode::LOAD, length, second, at);
                self.e.avx2(&encode::AVX2_BLEND, length, [last, second], src, Some(mask << 4));
                self.plain(&encode::STORE, length, last, at);
            }
        }
        self.e.bind(back);
    }

    pub(super) fn pop(&mut self, from: LaneElement, dst: ValueId) {
        let (at, back) = self.elements(from, StackAccess::Pop(dst));
        self.load_elements(at, from.size, dst);
        self.e.bind(back);
        self.finish_result(dst);
    }

    /// Loads elements into the register of a result.
    fn load_elements(&mut self, at: Address, size: usize, dst: ValueId) {
        let to = self.result(dst);
        match size {
            1 => self.load_bytes(at, to),
            size => self.plain(&encode::LOAD, self.lanes.length(size), to, MachineOperand::Memory(at)),
        }
    }

    /// Emits a step for the lanes of its mask one by one.
    pub(super) fn apart(&mut self, step: &ApartStep) {
        let ApartStep { labels: [start, back], element, access } = *step;
        let again = self.e.label();
        let elements = memory(self.memory.elements());
        self.e.bind(start);
        let mask = self.mask_in(element.mask, self.registers.scratch_masks[1]);
        self.mask_to_general(mask);
        self.e.test(OTHER);
        self.e.jump_if(JumpCondition::Zero, back);
        self.store_depths(element.depth);
        match access {
            StackAccess::Push(src) if element.size == 1 => {
                let src = self.mask_in(src, self.registers.scratch_masks[0]);
                self.store_bytes(elements, src);
            }
            StackAccess::Push(src) => {
                let src = self.vector_in(src, self.registers.scratch[0]);
                self.plain(&encode::STORE, self.lanes.length(element.size), src, MachineOperand::Memory(elements));
            }
            StackAccess::Pop(_) => {
                let zero = self.registers.scratch[0];
                self.three(&encode::XOR_32, self.whole(), [zero, zero], MachineOperand::Register(zero), None);
                self.plain(&encode::STORE, self.whole(), zero, MachineOperand::Memory(elements));
            }
        }
        for (i, register) in SAVED.into_iter().enumerate() {
            self.e.store(8, memory(self.memory.register(i)), register);
        }
        let lane = lane_of_part(element.part);
        self.e.load(INDEX, argument(offset_of!(CodeArguments, lane_of)));
        self.e.address(true, LANES, Address::Based { base: INDEX, index: Some((lane, 2)), displacement: 0 });
        self.e.bind(again);
        self.first_lane();
        let of_lane_number = Address::Based { base: LANES, index: Some((INDEX, 2)), displacement: 0 };
        self.e.copy_unsigned(2, ONE_LANE, MachineOperand::Memory(of_lane_number));
        self.e.copy_unsigned(4, ELEMENT, MachineOperand::Memory(of_lane(self.memory.depths(), 4)));
        self.e.add(ELEMENT, element.above as i32);
        let room = MachineOperand::Memory(memory(self.memory.room_of_stack(element.stack)));
        self.e.integer(IntegerOp::Compare, true, ELEMENT, room);
        self.e.jump_if(JumpCondition::AtLeast, self.no_room);
        // The tile of the lane, the depth, and the lane in its tile.
        self.e.copy(PLACE, ONE_LANE);
        self.e.shift_by(ShiftOp::RightUnsigned, true, PLACE, self.tile_bits());
        self.e.multiply(true, PLACE, room);
        self.e.integer(IntegerOp::Add, true, PLACE, MachineOperand::Register(ELEMENT.number()));
        self.e.shift_by(ShiftOp::Left, true, PLACE, self.tile_bits());
        self.e.integer_with(IntegerOp::And, true, ONE_LANE, self.tile() as i32 - 1);
        self.e.integer(IntegerOp::Add, true, PLACE, MachineOperand::Register(ONE_LANE.number()));
        self.e.load(ONE_LANE, memory(self.memory.address(element.stack)));
        let size = element.size;
        let in_stack = Address::Based { base: ONE_LANE, index: Some((PLACE, size as u8)), displacement: 0 };
        let in_vector = of_lane(self.memory.elements(), size);
        let (from, to) = match access {
            StackAccess::Push(_) => (in_vector, in_stack),
            StackAccess::Pop(_) => (in_stack, in_vector),
        };
        self.e.copy_unsigned(size, ELEMENT, MachineOperand::Memory(from));
        self.e.store(size, to, ELEMENT);
        // Without the lowest bit that is set.
        self.e.address(false, INDEX, Address::Based { base: OTHER, index: None, displacement: -1 });
        self.e.integer(IntegerOp::And, false, OTHER, MachineOperand::Register(INDEX.number()));
        self.e.jump_if(JumpCondition::NotZero, again);
        for (i, register) in SAVED.into_iter().enumerate() {
            self.e.load(register, memory(self.memory.register(i)));
        }
        if let StackAccess::Pop(dst) = access {
            self.load_elements(elements, size, dst);
        }
        self.e.jump(back);
    }

    /// Finds the largest depth of the current lanes: of the lanes with more than the first one, the
    /// first, and so on.
    pub(super) fn deepest(&mut self, depth: ValueId, dst: ValueId) {
        let [again, none, end] = [(); 3].map(|()| self.e.label());
        let (result, current) = (self.registers.scratch_masks[0], self.register(ValueId::CURRENT));
        self.mask_to_general(current);
        self.e.test(OTHER);
        self.e.jump_if(JumpCondition::Zero, none);
        let depths = self.store_depths(depth);
        self.e.bind(again);
        self.first_lane();
        let of_first = self.depth_for_all();
        self.compare_depths(result, [of_first, depths], 1);
        self.mask_op(MaskOp::And, result, result, current);
        self.mask_to_general(result);
        self.e.test(OTHER);
        self.e.jump_if(JumpCondition::NotZero, again);
        self.compare_depths(result, [depths, of_first], 0);
        let to = self.result(dst);
        self.mask_op(MaskOp::And, to, result, current);
        self.e.jump(end);
        self.e.bind(none);
        self.mask_op(MaskOp::Xor, to, to, to);
        self.e.bind(end);
        self.finish_result(dst);
    }
}
