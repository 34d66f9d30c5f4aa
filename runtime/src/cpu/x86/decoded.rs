//! The instructions of the encoder, read by the decoder of `iced-x86`.

use super::encode::{Address, Encoder};
use super::general::Gpr;
use iced_x86::{Decoder, DecoderOptions, Instruction, MemorySize, Register};

/// The registers but the stack pointer, with their names of 64 and of 32 bits.
pub(super) const GPRS: [(Gpr, Register, Register); 15] = [
    (Gpr::RAX, Register::RAX, Register::EAX),
    (Gpr::RCX, Register::RCX, Register::ECX),
    (Gpr::RDX, Register::RDX, Register::EDX),
    (Gpr::RBX, Register::RBX, Register::EBX),
    (Gpr::RBP, Register::RBP, Register::EBP),
    (Gpr::RSI, Register::RSI, Register::ESI),
    (Gpr::RDI, Register::RDI, Register::EDI),
    (Gpr::R8, Register::R8, Register::R8D),
    (Gpr::R9, Register::R9, Register::R9D),
    (Gpr::R10, Register::R10, Register::R10D),
    (Gpr::R11, Register::R11, Register::R11D),
    (Gpr::R12, Register::R12, Register::R12D),
    (Gpr::R13, Register::R13, Register::R13D),
    (Gpr::R14, Register::R14, Register::R14D),
    (Gpr::R15, Register::R15, Register::R15D),
];

/// Returns the instructions of some code, which begins at address 0.
#[track_caller]
pub(super) fn decoded(f: impl FnOnce(&mut Encoder)) -> Vec<Instruction> {
    let mut encoder = Encoder::default();
    f(&mut encoder);
    let bytes = encoder.finish();
    let decoder = Decoder::with_ip(64, &bytes, 0, DecoderOptions::NONE);
    let instructions: Vec<Instruction> = decoder.into_iter().collect();
    assert!(!instructions.iter().any(Instruction::is_invalid), "{bytes:x?}");
    instructions
}

#[track_caller]
pub(super) fn one(f: impl FnOnce(&mut Encoder)) -> Instruction {
    let instructions = decoded(f);
    assert_eq!(instructions.len(), 1, "{instructions:?}");
    instructions[0]
}

pub(super) fn mnemonic(instruction: &Instruction) -> String {
    format!("{:?}", instruction.mnemonic()).to_lowercase()
}

/// Returns addresses of all kinds.
pub(super) fn addresses() -> Vec<Address> {
    let mut all = vec![Address::InCode(0), Address::InCode(1000)];
    for base in GPRS.into_iter().map(|(base, ..)| base).chain([Gpr::RSP]) {
        for displacement in [0, 64, -8, 0x12_3456] {
            all.push(Address::Based { base, index: None, displacement });
            let indices = GPRS.into_iter().flat_map(|(index, ..)| [1, 2, 4, 8].map(|scale| Some((index, scale))));
            all.extend(indices.map(|index| Address::Based { base, index, displacement }));
        }
    }
    all
}

#[track_caller]
pub(super) fn assert_address(instruction: &Instruction, address: Address) {
    let named = |gpr: Gpr| GPRS.iter().find(|(known, ..)| *known == gpr).map_or(Register::RSP, |&(_, wide, _)| wide);
    match address {
        Address::InCode(place) => {
            assert_eq!(instruction.memory_base(), Register::RIP);
            assert_eq!(instruction.ip_rel_memory_address(), place as u64);
        }
        Address::Based { base, index, displacement } => {
            assert_eq!(instruction.memory_base(), named(base), "{address:?}");
            let (register, scale) = index.map_or((Register::None, 1), |(index, scale)| (named(index), scale));
            assert_eq!(instruction.memory_index(), register, "{address:?}");
            assert_eq!(instruction.memory_index_scale(), u32::from(scale), "{address:?}");
            assert_eq!(instruction.memory_displacement64() as i64, i64::from(displacement), "{address:?}");
        }
    }
}

/// Returns the size of the number in memory in bytes.
#[track_caller]
pub(super) fn memory_bytes(instruction: &Instruction) -> usize {
    match instruction.memory_size() {
        MemorySize::UInt8 | MemorySize::Int8 => 1,
        MemorySize::UInt16 | MemorySize::Int16 => 2,
        MemorySize::UInt32 | MemorySize::Int32 | MemorySize::Float32 => 4,
        MemorySize::UInt64 | MemorySize::Int64 | MemorySize::Float64 => 8,
        other => panic!("{other:?} of {instruction:?}"),
    }
}
