//! Each instruction of the encoder, read by the decoder of `iced-x86`.

use super::*;
use crate::cpu::x86::decoded::{GPRS, addresses, assert_address, mnemonic, one};
use iced_x86::{OpKind, Register};

/// The registers of each group that an encoding treats in another way.
const REGISTERS: [u8; 8] = [0, 3, 7, 8, 15, 16, 24, 31];

fn vector(length: VectorLength, number: u8) -> Register {
    let first = [Register::XMM0, Register::YMM0, Register::ZMM0][length as usize];
    first + u32::from(number)
}

fn mask(number: u8) -> Register {
    Register::K0 + u32::from(number)
}

/// An instruction on vectors with numbers of registers, and the registers that it should have.
struct VectorCase {
    op: &'static VectorOp,
    length: VectorLength,
    numbers: [u8; 3],
    expected: Vec<Register>,
}

fn vector_cases() -> Vec<VectorCase> {
    use VectorLength::{L128, L256, L512};
    let mut cases = Vec::new();
    for op in VECTOR_OPS.iter().filter(|op| op.widths != Widths::Gathered && !is_of_avx2_alone(op)) {
        let lengths: &[VectorLength] = match op.widths {
            Widths::Quadword => &[L128],
            Widths::HalfSource | Widths::HalfResult => &[L256, L512],
            _ => &[L128, L256, L512],
        };
        let has_two = op.form == OperandForm::Rvm;
        for &length in lengths {
            let shorter = if length == L512 { L256 } else { L128 };
            for (a, b, c) in REGISTERS
                .iter()
                .flat_map(|&a| REGISTERS.map(|b| (a, b)))
                .flat_map(|(a, b)| REGISTERS.map(|c| (a, b, c)))
            {
                if !has_two && b != 0 {
                    continue;
                }
                let (numbers, first, second) = match op.widths {
                    Widths::MaskResult => ([a & 7, b, c], mask(a & 7), vector(length, c)),
                    Widths::MaskSource => ([a, b, c & 7], vector(length, a), mask(c & 7)),
                    Widths::HalfSource => ([a, b, c], vector(length, a), vector(shorter, c)),
                    Widths::HalfResult if op.form == OperandForm::Mr => {
                        ([a, b, c], vector(shorter, c), vector(length, a))
                    }
                    Widths::HalfResult => ([a, b, c], vector(shorter, a), vector(length, c)),
                    // One element of the source counts.
                    _ if op.name.starts_with("vpbroadcast") => ([a, b, c], vector(length, a), vector(L128, c)),
                    _ if op.form == OperandForm::Mr => ([a, b, c], vector(length, c), vector(length, a)),
                    _ => ([a, b, c], vector(length, a), vector(length, c)),
                };
                let expected = if has_two { vec![first, vector(length, b), second] } else { vec![first, second] };
                cases.push(VectorCase { op, length, numbers, expected });
            }
        }
    }
    cases
}

#[test]
fn vector_instructions_have_the_registers_that_were_asked_for() {
    let cases = vector_cases();
    assert!(cases.len() > 50_000, "{} instructions", cases.len());
    for VectorCase { op, length, numbers: [a, b, c], expected } in cases {
        let is_never_masked = matches!(op.widths, Widths::MaskSource | Widths::Quadword);
        for predicate in [(0, false), (1, false), (7, false), (3, true)] {
            let predicate = Predicate { mask: predicate.0, zeroing: predicate.1 };
            if predicate.mask != 0 && (is_never_masked || (op.widths == Widths::MaskResult && predicate.zeroing)) {
                continue;
            }
            let immediate = op.has_immediate.then_some(9);
            let given = one(|e| e.vector(op, length, [a, b], MachineOperand::Register(c), predicate, immediate));
            assert_eq!(mnemonic(&given), op.name);
            let n = expected.len() as u32;
            let registers: Vec<Register> = (0..n).map(|i| given.op_register(i)).collect();
            assert_eq!(registers, expected, "{op:?} {given:?}");
            assert_eq!(given.op_mask(), if predicate.mask == 0 { Register::None } else { mask(predicate.mask) });
            assert_eq!(given.zeroing_masking(), predicate.zeroing, "{op:?}");
            assert_eq!(given.op_count(), n + u32::from(op.has_immediate), "{op:?}");
            if op.has_immediate {
                assert_eq!(given.immediate8(), 9, "{op:?}");
            }
        }
    }
}

#[test]
fn vector_instructions_have_the_address_that_was_asked_for() {
    let no_memory = [Widths::MaskSource, Widths::Gathered];
    let has_memory = |op: &&VectorOp| !no_memory.contains(&op.widths) && !is_of_avx2_alone(op);
    for (i, op) in VECTOR_OPS.iter().filter(has_memory).enumerate() {
        let length = if op.widths == Widths::Quadword { VectorLength::L128 } else { VectorLength::L512 };
        // Each instruction has some of the addresses, so that all have all kinds.
        for address in addresses().into_iter().skip(i % 7).step_by(7) {
            for (rm, is_broadcast) in
                [(MachineOperand::Memory(address), false), (MachineOperand::Broadcast(address), true)]
            {
                if is_broadcast && !op.may_broadcast {
                    continue;
                }
                let reg = if op.widths == Widths::MaskResult { 5 } else { 21 };
                let immediate = op.has_immediate.then_some(4);
                let given = one(|e| e.vector(op, length, [reg, 19], rm, Predicate::NONE, immediate));
                assert_eq!(mnemonic(&given), op.name);
                assert_eq!(given.is_broadcast(), is_broadcast, "{op:?}");
                assert_address(&given, address);
            }
        }
    }
}

/// Returns whether AVX-512 has no such instruction, or one with another name.
fn is_of_avx2_alone(op: &VectorOp) -> bool {
    let first = VECTOR_OPS.iter().position(|op| *op == AVX2_AND).expect("it is in the list");
    VECTOR_OPS.iter().position(|known| known == op).expect("it is in the list") >= first
}

#[test]
fn instructions_of_avx2_have_the_operands_that_were_asked_for() {
    use VectorLength::{L128, L256};
    let numbers = [0, 3, 7, 8, 13, 15];
    let mut n = 0;
    for op in VECTOR_OPS.iter().filter(|op| op.in_avx2 && op.widths != Widths::Gathered) {
        let lengths: &[VectorLength] = match op.widths {
            Widths::Quadword => &[L128],
            Widths::HalfSource | Widths::HalfResult => &[L256],
            _ => &[L128, L256],
        };
        let has_two = op.form == OperandForm::Rvm;
        let immediate = op.has_immediate.then_some(if *op == AVX2_BLEND { 0xd0 } else { 9 });
        for (a, b, c) in
            numbers.iter().flat_map(|&a| numbers.map(|b| (a, b))).flat_map(|(a, b)| numbers.map(|c| (a, b, c)))
        {
            for &length in lengths.iter().filter(|_| (has_two || b == 0) && op.widths != Widths::Eighth) {
                // The store of 4 bytes takes a general-purpose register otherwise.
                if *op == AVX2_STORE_4 {
                    continue;
                }
                let given = one(|e| e.avx2(op, length, [a, b], MachineOperand::Register(c), immediate));
                assert_eq!(mnemonic(&given), op.name);
                let (first, second) = match op.widths {
                    Widths::MaskResult | Widths::Same if op.name.starts_with("vpbroadcast") => {
                        (vector(length, a), vector(L128, c))
                    }
                    Widths::HalfSource => (vector(length, a), vector(L128, c)),
                    Widths::HalfResult if op.form == OperandForm::Mr => (vector(L128, c), vector(length, a)),
                    Widths::HalfResult => (vector(L128, a), vector(length, c)),
                    Widths::ToGeneral if a > 7 => continue,
                    Widths::ToGeneral => (given.op0_register(), vector(length, c)),
                    _ if op.form == OperandForm::Mr => (vector(length, c), vector(length, a)),
                    _ => (vector(length, a), vector(length, c)),
                };
                let mut expected = if has_two { vec![first, vector(length, b), second] } else { vec![first, second] };
                if *op == AVX2_BLEND {
                    expected.push(vector(length, 13));
                }
                let registers: Vec<Register> = (0..expected.len() as u32).map(|i| given.op_register(i)).collect();
                assert_eq!(registers, expected, "{op:?} {given:?}");
                if op.has_immediate && *op != AVX2_BLEND {
                    assert_eq!(given.immediate8(), 9, "{op:?}");
                }
                n += 1;
            }
        }
        let is_shift = matches!(op.form, OperandForm::Vm(_));
        for address in addresses().into_iter().filter(|_| !is_shift && op.widths != Widths::ToGeneral).step_by(5) {
            let given =
                one(|e| e.avx2(op, lengths[lengths.len() - 1], [9, 6], MachineOperand::Memory(address), immediate));
            assert_eq!(mnemonic(&given), op.name);
            assert_address(&given, address);
            n += 1;
        }
    }
    assert!(n > 10_000, "{n} instructions");
    for (a, b, c) in [(0, 9, 15), (14, 2, 7), (8, 13, 1)] {
        for (op, length) in [(GATHER_32, L128), (GATHER_32, L256), (GATHER_64, L256)] {
            for (base, wide, _) in bases() {
                let given = one(|e| e.avx2_gather(&op, length, a, (base, b), c));
                let of_indices = if op == GATHER_64 { L128 } else { length };
                assert_eq!((mnemonic(&given).as_str(), given.op0_register()), (op.name, vector(length, a)));
                assert_eq!((given.memory_base(), given.memory_index()), (wide, vector(of_indices, b)));
                assert_eq!(
                    (given.memory_index_scale(), given.op2_register()),
                    (if op.w { 8 } else { 4 }, vector(length, c))
                );
            }
        }
    }
}

/// Returns the registers whose numbers need no displacement as bases.
fn bases() -> impl Iterator<Item = (Gpr, Register, Register)> {
    GPRS.into_iter().filter(|(gpr, ..)| gpr.number() & 7 != 5)
}

#[test]
fn elements_are_gathered_from_the_places_that_were_asked_for() {
    use VectorLength::{L256, L512};
    let mut n = 0;
    let ops = [(GATHER_32, L256, L256, 4), (GATHER_32, L512, L512, 4), (GATHER_64, L512, L256, 8)];
    for (op, length, of_indices, scale) in ops {
        for (dst, indices) in REGISTERS.iter().flat_map(|&a| REGISTERS.map(|b| (a, b))).filter(|(a, b)| a != b) {
            for ((base, wide, _), number) in bases().zip([1, 2, 3, 4, 5, 6, 7].into_iter().cycle()) {
                let given = one(|e| e.gather(&op, length, dst, (base, indices), number));
                assert_eq!(mnemonic(&given), op.name);
                assert_eq!((given.op0_register(), given.op_mask()), (vector(length, dst), mask(number)));
                assert_eq!((given.memory_base(), given.memory_index()), (wide, vector(of_indices, indices)));
                assert_eq!((given.memory_index_scale(), given.memory_displacement64()), (scale, 0));
                n += 1;
            }
        }
    }
    assert!(n > 1000, "{n} instructions");
}

#[test]
fn mask_instructions_have_their_operands() {
    let masks = [0, 1, 6, 7];
    let ops = [
        (MaskOp::And, "kandw"),
        (MaskOp::AndNot, "kandnw"),
        (MaskOp::Or, "korw"),
        (MaskOp::Xor, "kxorw"),
        (MaskOp::Equal, "kxnorw"),
    ];
    for (a, b, c) in masks.iter().flat_map(|&a| masks.map(|b| (a, b))).flat_map(|(a, b)| masks.map(|c| (a, b, c))) {
        for (op, name) in ops {
            let given = one(|e| e.mask(op, a, b, c));
            assert_eq!(mnemonic(&given), name);
            assert_eq!([0, 1, 2].map(|i| given.op_register(i)), [a, b, c].map(mask), "{op:?}");
        }
        let pairs = [
            (one(|e| e.mask_not(a, b)), "knotw", mask(b)),
            (one(|e| e.mask_load(a, MachineOperand::Register(b))), "kmovw", mask(b)),
            (one(|e| e.mask_test(a)), "kortestw", mask(a)),
        ];
        for (given, name, second) in pairs {
            assert_eq!((mnemonic(&given).as_str(), given.op0_register()), (name, mask(a)));
            assert_eq!(given.op1_register(), second);
        }
        for (gpr, _, low) in GPRS {
            let given = one(|e| e.mask_to_gpr(gpr, a));
            assert_eq!((mnemonic(&given).as_str(), given.op0_register()), ("kmovw", low));
            assert_eq!(given.op1_register(), mask(a));
        }
    }
    for address in addresses() {
        let (load, store) =
            (one(|e| e.mask_load(3, MachineOperand::Memory(address))), one(|e| e.mask_store(address, 6)));
        assert_eq!([&load, &store].map(mnemonic), ["kmovw", "kmovw"]);
        assert_eq!((load.op0_register(), load.op1_kind()), (mask(3), OpKind::Memory));
        assert_eq!((store.op1_register(), store.op0_kind()), (mask(6), OpKind::Memory));
        assert_address(&load, address);
        assert_address(&store, address);
    }
}
