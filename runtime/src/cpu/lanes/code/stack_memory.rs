//! The memory of code for stacks.

use super::steps::VectorPart;

/// The places of what code needs for stacks, in bytes, after the places of its values: the depths
/// and the elements of a vector, registers, and numbers of 8 bytes for each group of stacks and for
/// each stack.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StackMemory {
    n_values: u16,
    n_groups: u16,
    n_stacks: u16,
}

/// The bytes of a place.
const PLACE: i32 = 64;

impl StackMemory {
    /// Returns the memory of code with so many places of values, groups and stacks.
    pub(super) fn new(n_values: u16, n_groups: usize, n_stacks: usize) -> StackMemory {
        StackMemory { n_values, n_groups: n_groups as u16, n_stacks: n_stacks as u16 }
    }

    /// Returns the number of places of all values and stacks.
    pub(super) fn end(self) -> usize {
        if self.n_groups == 0 {
            return usize::from(self.n_values);
        }
        (self.address(self.n_stacks) as usize).div_ceil(PLACE as usize)
    }

    /// The depths of the lanes of a vector.
    pub(super) fn depths(self) -> i32 {
        i32::from(self.n_values) * PLACE
    }

    /// The elements of the lanes of a vector.
    pub(super) fn elements(self) -> i32 {
        self.depths() + PLACE
    }

    /// One of eight registers.
    pub(super) fn register(self, i: usize) -> i32 {
        self.elements() + PLACE + 8 * i as i32
    }

    fn number(self, i: u16) -> i32 {
        self.register(8) + 8 * i32::from(i)
    }

    /// The index of the element at the depth of the lanes of a vector, from their first elements
    /// on. It is less than zero if their depths differ.
    pub(super) fn row(self, group: u16, part: VectorPart) -> i32 {
        self.number(2 * group + part as u16)
    }

    /// The number of elements of each lane for which all stacks of a group have memory.
    pub(super) fn room(self, group: u16) -> i32 {
        self.number(2 * self.n_groups + group)
    }

    /// One of four numbers of a stack.
    fn of_stack(self, stack: u16, i: u16) -> i32 {
        self.number(3 * self.n_groups + 4 * stack + i)
    }

    /// The address of a stack.
    pub(super) fn address(self, stack: u16) -> i32 {
        self.of_stack(stack, 0)
    }

    /// The number of elements of each lane for which a stack has memory.
    pub(super) fn room_of_stack(self, stack: u16) -> i32 {
        self.of_stack(stack, 1)
    }

    /// The address of the first elements of the lanes of a vector.
    pub(super) fn first(self, stack: u16, part: VectorPart) -> i32 {
        self.of_stack(stack, 2 + part as u16)
    }
}
