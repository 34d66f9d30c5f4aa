//! Each instruction on single floats, read by the decoder of `iced-x86`.

use super::*;
use crate::cpu::x86::decoded::{addresses, assert_address, memory_bytes, mnemonic, one};
use iced_x86::Register;

/// Returns the number of a register, of vectors or of integers.
fn number(register: Register) -> u8 {
    let groups = [Register::EAX, Register::RAX, Register::XMM0];
    let first = groups.into_iter().rev().find(|&first| first <= register).expect("it is in a group");
    (register as u32 - first as u32) as u8
}

#[test]
fn instructions_on_floats_have_their_operands() {
    let numbers = [0, 5, 7, 8, 12, 15];
    let mut n = 0;
    for op in FLOAT_OPS {
        let immediate = op.has_immediate.then_some(0xd1);
        let is_load_or_store = op.name == "vmovss" || op.name == "vmovsd";
        for (a, b, c) in
            numbers.iter().flat_map(|&a| numbers.map(|b| (a, b))).flat_map(|(a, b)| numbers.map(|c| (a, b, c)))
        {
            // Those between two registers have a third operand.
            if is_load_or_store {
                continue;
            }
            let given = one(|e| e.float(op, [a, b], MachineOperand::Register(c), immediate));
            assert_eq!(mnemonic(&given), op.name);
            let expected = match op.form {
                OperandForm::Rvm => vec![a, b, c],
                OperandForm::Mr => vec![c, a],
                _ => vec![a, c],
            };
            let registers: Vec<u8> = (0..expected.len() as u32).map(|i| number(given.op_register(i))).collect();
            assert_eq!(registers, expected, "{op:?}");
            n += 1;
        }
        for address in addresses().into_iter().step_by(5) {
            let given = one(|e| e.float(op, [9, 6], MachineOperand::Memory(address), immediate));
            assert_eq!(mnemonic(&given), op.name);
            assert_address(&given, address);
            n += 1;
        }
    }
    assert!(n > 5_000, "{n} instructions");
    // The size of a number in memory.
    let sizes = [(ADD_F32, 4), (ADD_F64, 8), (LOAD_F32, 4), (LOAD_F64, 8), (STORE_F32, 4), (STORE_F64, 8)];
    let more = [(MUL_ADD_213_F32, 4), (MUL_ADD_231_F64, 8), (I32_TO_F32, 4), (I64_TO_F64, 8), (F32_TO_F64, 4)];
    for (op, size) in sizes.into_iter().chain(more).chain([(F64_TO_F32, 8), (F32_TO_I64, 4), (F64_TO_I32, 8)]) {
        let given = one(|e| e.float(&op, [1, 2], MachineOperand::Memory(addresses()[2]), None));
        assert_eq!(memory_bytes(&given), size, "{op:?}");
    }
}
