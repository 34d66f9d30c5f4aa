//! Each instruction on general-purpose registers, read by the decoder of `iced-x86`.

use super::*;
use crate::cpu::x86::decoded::{GPRS, addresses, assert_address, decoded, memory_bytes, mnemonic, one};
use iced_x86::{MemorySize, Mnemonic, OpKind, Register};

const SIZES: [usize; 4] = [1, 2, 4, 8];

/// Returns the name of a register of a size in bytes.
fn of_size(gpr: Gpr, size: usize) -> Register {
    let (first, low) = match size {
        1 => (Register::AL, [Register::AL, Register::CL, Register::DL, Register::BL]),
        2 => (Register::AX, [Register::AX, Register::CX, Register::DX, Register::BX]),
        4 => (Register::EAX, [Register::EAX, Register::ECX, Register::EDX, Register::EBX]),
        _ => (Register::RAX, [Register::RAX, Register::RCX, Register::RDX, Register::RBX]),
    };
    let number = gpr.number();
    match (size, number) {
        // The numbers of these belong to the upper bytes of others in the list.
        (1, 4..) => Register::SPL + u32::from(number - 4),
        (_, ..4) => low[usize::from(number)],
        _ => first + u32::from(number),
    }
}

#[test]
fn integers_are_loaded_stored_and_extended() {
    for (a, ..) in GPRS {
        for size in SIZES {
            for address in addresses().into_iter().step_by(3) {
                let load = one(|e| e.copy_unsigned(size, a, MachineOperand::Memory(address)));
                assert_eq!(load.op0_register(), of_size(a, if size == 8 { 8 } else { 4 }), "{size}");
                assert_eq!(memory_bytes(&load), size);
                assert_address(&load, address);
                let store = one(|e| e.store(size, address, a));
                assert_eq!((mnemonic(&store).as_str(), store.op1_register()), ("mov", of_size(a, size)));
                assert_eq!(memory_bytes(&store), size);
                assert_address(&store, address);
            }
            for (b, ..) in GPRS {
                let copy = one(|e| e.copy_unsigned(size, a, MachineOperand::Register(b.number())));
                assert_eq!(mnemonic(&copy), if size < 4 { "movzx" } else { "mov" });
                assert_eq!(copy.op1_register(), of_size(b, size));
            }
        }
        let signed = one(|e| e.copy_signed(a, MachineOperand::Register(a.number())));
        assert_eq!((mnemonic(&signed).as_str(), signed.op0_register()), ("movsxd", of_size(a, 8)));
        let wide = one(|e| e.set_wide(a, 0x1234_5678_9abc_def0));
        assert_eq!((wide.op0_register(), wide.immediate64()), (of_size(a, 8), 0x1234_5678_9abc_def0));
        for (given, name) in [(one(|e| e.push(a)), "push"), (one(|e| e.pop(a)), "pop"), (one(|e| e.call(a)), "call")] {
            assert_eq!((mnemonic(&given).as_str(), given.op0_register()), (name, of_size(a, 8)));
        }
        let set = one(|e| e.set_if(JumpCondition::Less, a));
        assert_eq!((mnemonic(&set).as_str(), set.op0_register()), ("setl", of_size(a, 1)));
    }
}

#[test]
fn operations_have_their_registers_and_sizes() {
    let integer_ops = [
        (IntegerOp::Add, Mnemonic::Add),
        (IntegerOp::Or, Mnemonic::Or),
        (IntegerOp::And, Mnemonic::And),
        (IntegerOp::Sub, Mnemonic::Sub),
        (IntegerOp::Xor, Mnemonic::Xor),
        (IntegerOp::Compare, Mnemonic::Cmp),
    ];
    let register_ops = [
        (RegisterOp::Not, Mnemonic::Not),
        (RegisterOp::Neg, Mnemonic::Neg),
        (RegisterOp::MulUnsigned, Mnemonic::Mul),
        (RegisterOp::MulSigned, Mnemonic::Imul),
        (RegisterOp::DivUnsigned, Mnemonic::Div),
        (RegisterOp::DivSigned, Mnemonic::Idiv),
    ];
    let shifts = [
        (ShiftOp::Left, "shl", "shlx"),
        (ShiftOp::RightUnsigned, "shr", "shrx"),
        (ShiftOp::RightSigned, "sar", "sarx"),
    ];
    for (w, size) in [(false, 4), (true, 8)] {
        for (a, ..) in GPRS {
            let first = of_size(a, size);
            for (op, name) in register_ops {
                let given = one(|e| e.register(op, w, a));
                assert_eq!((given.mnemonic(), given.op0_register()), (name, first));
            }
            for (op, name) in integer_ops {
                let given = one(|e| e.integer_with(op, w, a, -7));
                assert_eq!((given.mnemonic(), given.op0_register()), (name, first));
                let immediate = if w { given.immediate32to64() } else { i64::from(given.immediate32().cast_signed()) };
                assert_eq!(immediate, -7);
            }
            for (op, name, _) in shifts {
                let given = one(|e| e.shift_by(op, w, a, 9));
                assert_eq!((mnemonic(&given).as_str(), given.op0_register(), given.immediate8()), (name, first, 9));
            }
            for (b, ..) in GPRS {
                let (second, rm) = (of_size(b, size), MachineOperand::Register(b.number()));
                for (op, name) in integer_ops {
                    let given = one(|e| e.integer(op, w, a, rm));
                    assert_eq!(given.mnemonic(), name);
                    assert_eq!([given.op0_register(), given.op1_register()], [first, second]);
                }
                let product = one(|e| e.multiply_with(w, a, rm, 77));
                assert_eq!((mnemonic(&product).as_str(), product.op_count()), ("imul", 3));
                for given in [one(|e| e.multiply(w, a, rm)), product] {
                    assert_eq!([given.op0_register(), given.op1_register()], [first, second]);
                }
                let chosen = one(|e| e.copy_if(JumpCondition::Unordered, w, a, rm));
                assert_eq!(mnemonic(&chosen), "cmovp");
                assert_eq!([chosen.op0_register(), chosen.op1_register()], [first, second]);
                for (op, _, name) in shifts {
                    let given = one(|e| e.shift(op, w, a, rm, Gpr::R9));
                    assert_eq!(mnemonic(&given), name);
                    let registers = [0, 1, 2].map(|i| given.op_register(i));
                    assert_eq!(registers, [first, second, of_size(Gpr::R9, size)]);
                }
            }
            for address in addresses().into_iter().step_by(7) {
                let given = one(|e| e.address(w, a, address));
                assert_eq!((mnemonic(&given).as_str(), given.op0_register()), ("lea", first));
                assert_address(&given, address);
                let given = one(|e| e.shift(ShiftOp::Left, w, a, MachineOperand::Memory(address), Gpr::RCX));
                assert_eq!(given.op1_kind(), OpKind::Memory);
                assert_address(&given, address);
            }
        }
        let extended = one(|e| e.extend_to_rdx(w));
        assert_eq!(mnemonic(&extended), if w { "cqo" } else { "cdq" });
    }
    let test = one(|e| e.test(Gpr::R13));
    assert_eq!(
        (test.mnemonic(), test.op0_register(), test.op1_register()),
        (Mnemonic::Test, Register::R13, Register::R13)
    );
    assert_eq!(one(Encoder::leave).mnemonic(), Mnemonic::Ret);
}

#[test]
fn other_instructions_have_their_operands() {
    for (a, wide, low) in GPRS {
        for address in addresses() {
            let load = one(|e| e.load(a, address));
            assert_eq!((mnemonic(&load).as_str(), load.op0_register()), ("mov", wide));
            assert_address(&load, address);
        }
        let set = one(|e| e.set(a, 0x8765_4321));
        assert_eq!((mnemonic(&set).as_str(), set.op0_register(), set.immediate32()), ("mov", low, 0x8765_4321));
        let add = one(|e| e.add(a, -5));
        assert_eq!((add.mnemonic(), add.op0_register(), add.immediate32to64()), (Mnemonic::Add, wide, -5));
        let compare = one(|e| e.compare_with(a, 8));
        assert_eq!((mnemonic(&compare).as_str(), compare.op0_register(), compare.immediate32()), ("cmp", low, 8));
        for (b, other, low_other) in GPRS {
            let compare = one(|e| e.compare(a, b));
            assert_eq!((compare.op0_register(), compare.op1_register()), (wide, other));
            let copy = one(|e| e.copy(a, b));
            assert_eq!((copy.mnemonic(), copy.op0_register(), copy.op1_register()), (Mnemonic::Mov, wide, other));
            let count = one(|e| e.count_bits(a, b));
            assert_eq!(mnemonic(&count), "popcnt");
            assert_eq!((count.op0_register(), count.op1_register()), (low, low_other));
        }
    }
    for address in addresses() {
        let compare = one(|e| e.compare_byte(address, -1));
        assert_eq!((mnemonic(&compare).as_str(), compare.immediate8()), ("cmp", 0xff));
        assert!(matches!(compare.memory_size(), MemorySize::UInt8 | MemorySize::Int8));
        assert_address(&compare, address);
    }
    let end = decoded(Encoder::return_to_caller);
    assert_eq!(end.iter().map(mnemonic).collect::<Vec<_>>(), ["vzeroupper", "ret"]);
}

#[test]
fn jumps_lead_to_their_labels() {
    let conditions = [
        (JumpCondition::Below, "jb"),
        (JumpCondition::AtLeast, "jae"),
        (JumpCondition::Zero, "je"),
        (JumpCondition::NotZero, "jne"),
        (JumpCondition::AtMost, "jbe"),
        (JumpCondition::Above, "ja"),
        (JumpCondition::Sign, "js"),
        (JumpCondition::Unordered, "jp"),
        (JumpCondition::Less, "jl"),
        (JumpCondition::GreaterOrEqual, "jge"),
        (JumpCondition::LessOrEqual, "jle"),
        (JumpCondition::Greater, "jg"),
    ];
    for (condition, name) in conditions {
        let instructions = decoded(|e| {
            let [before, after] = [(); 2].map(|()| e.label());
            e.set(Gpr::RAX, 0);
            e.bind(before);
            e.jump_if(condition, after);
            e.jump(before);
            e.bind(after);
            e.return_to_caller();
        });
        assert_eq!(instructions.iter().map(mnemonic).collect::<Vec<_>>()[1..3], [name, "jmp"]);
        assert_eq!(instructions[1].near_branch64(), instructions[3].ip());
        assert_eq!(instructions[2].near_branch64(), instructions[1].ip());
    }
}
