//! Machine code of steps by Cranelift.
//!
//! Values become variables of Cranelift's frontend. Each exit passes all registers that the loop
//! has changed to the end of the function. If that is too much, registers stay in memory and are
//! loaded and stored at each use. An example is the gradient of a long loop body with many stacks,
//! whose compile time would otherwise be quadratic.

use super::WhyNot;
use super::code::{ALIGN, LoopCode};
use super::steps::{
    Decision, MachineType, NativeAddress, NativeBlockId, NativeEnd, NativeStep, NativeSteps, NativeValue, NumberType,
};
use crate::options::NativeLimits;
use anabranch_dsl::DType;
use anabranch_dsl::scalars::{BinaryOp, UnaryOp};
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{AbiParam, Block, BlockArg, InstBuilder, MemFlagsData, Signature, Type, Value, types};
use cranelift_codegen::isa::{CallConv, OwnedTargetIsa, TargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{CodegenError, Context};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use std::sync::OnceLock;

/// Maximum number of registers passed to the end of the function, summed over all exits.
pub(super) const MAX_VARIABLES_AT_EXITS: usize = 1 << 12;

/// Compiles a loop, or says why it has no native code. An error is a fault of the compiler.
pub(super) fn compile_loop(steps: &NativeSteps, _: NativeLimits) -> Result<Result<LoopCode, WhyNot>, String> {
    let Some(target) = target() else { return Ok(Err(WhyNot::Processor)) };
    let mut context = Context::new();
    translate(steps, &*target, &mut context);
    match context.compile(&*target, &mut Default::default()) {
        // A call of a library function that this processor has no instruction for.
        Ok(function) if !function.buffer.relocs().is_empty() => Ok(Err(WhyNot::Processor)),
        Ok(function) => {
            let align = target.symbol_alignment().max(function.buffer.alignment.into());
            assert!(ALIGN.is_multiple_of(align as usize), "functions are aligned to {align} bytes");
            Ok(Ok(LoopCode { bytes: function.code_buffer().to_vec(), entry: 0 }))
        }
        // A loop that is too large for Cranelift stays as instructions.
        Err(e) if matches!(e.inner, CodegenError::ImplLimitExceeded | CodegenError::CodeTooLarge) => {
            Ok(Err(WhyNot::Size))
        }
        Err(e) => Err(e.inner.to_string()),
    }
}

/// Enables the instructions of this machine's processor that Cranelift uses.
#[cfg(target_arch = "x86_64")]
fn builder() -> Option<cranelift_codegen::isa::Builder> {
    let mut builder = cranelift_codegen::isa::lookup(target_lexicon::Triple::host()).ok()?;
    macro_rules! enable {
        ($($feature:tt: $setting:literal,)*) => {
            $(if std::is_x86_feature_detected!($feature) {
                builder.enable($setting).expect("Cranelift has this setting");
            })*
        };
    }
    enable! {
        "cmpxchg16b": "has_cmpxchg16b",
        "sse3": "has_sse3",
        "ssse3": "has_ssse3",
        "sse4.1": "has_sse41",
        "sse4.2": "has_sse42",
        "popcnt": "has_popcnt",
        "avx": "has_avx",
        "avx2": "has_avx2",
        "fma": "has_fma",
        "bmi1": "has_bmi1",
        "bmi2": "has_bmi2",
        "lzcnt": "has_lzcnt",
        "avx512f": "has_avx512f",
        "avx512vl": "has_avx512vl",
        "avx512dq": "has_avx512dq",
    }
    Some(builder)
}

/// Enables the instructions of this machine's processor that Cranelift uses.
#[cfg(not(target_arch = "x86_64"))]
fn builder() -> Option<cranelift_codegen::isa::Builder> {
    cranelift_native::builder().ok()
}

/// Returns the processor of this machine, or `None` if Cranelift does not support it or its
/// pointers are not 64 bits wide.
fn target() -> Option<OwnedTargetIsa> {
    static TARGET: OnceLock<Option<OwnedTargetIsa>> = OnceLock::new();
    let find = || {
        let mut flags = settings::builder();
        let verifier = if cfg!(debug_assertions) { "true" } else { "false" };
        let fixed = [("opt_level", "speed"), ("is_pic", "false"), ("use_colocated_libcalls", "false")];
        for (name, value) in fixed.into_iter().chain([("enable_verifier", verifier)]) {
            flags.set(name, value).expect("Cranelift has this setting");
        }
        let isa = builder()?.finish(settings::Flags::new(flags)).ok()?;
        (isa.pointer_bits() == 64 && cfg!(target_endian = "little")).then_some(isa)
    };
    TARGET.get_or_init(find).clone()
}

/// The state of the translation of one function.
struct Translation<'a> {
    steps: &'a NativeSteps,
    b: FunctionBuilder<'a>,
    /// The variable of each value, or `None` for a constant.
    variables: Vec<Option<Variable>>,
    blocks: Vec<Block>,
    /// The block that stores the registers and returns its parameter.
    exit: Block,
}

fn translate(steps: &NativeSteps, target: &dyn TargetIsa, context: &mut Context) {
    // On x86-64 that of the host's functions.
    let convention = if cfg!(target_arch = "x86_64") { CallConv::SystemV } else { target.default_call_conv() };
    context.func.signature = Signature::new(convention);
    context.func.signature.params.extend([AbiParam::new(types::I64); 4]);
    context.func.signature.returns.push(AbiParam::new(types::I32));
    let mut builder_context = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(&mut context.func, &mut builder_context);
    let first = b.create_block();
    b.append_block_params_for_function_params(first);
    b.switch_to_block(first);
    let mut variables = Vec::with_capacity(steps.values.len());
    for info in &steps.values {
        variables.push(info.constant.is_none().then(|| b.declare_var(machine_type(info.ty))));
    }
    let blocks = steps.blocks.iter().map(|_| b.create_block()).collect();
    let exit = b.create_block();
    b.append_block_param(exit, types::I32);
    let mut t = Translation { steps, b, variables, blocks, exit };
    for value in NativeValue::PARAMETERS {
        let parameter = t.b.block_params(first)[value.index()];
        t.set(value, parameter);
    }
    let start = t.block(steps.order[0]);
    t.b.ins().jump(start, &[]);
    for &id in &steps.order {
        let block = &steps.blocks[id.index()];
        let at = t.block(id);
        if block.is_cold {
            t.b.set_cold_block(at);
        }
        t.b.switch_to_block(at);
        block.steps.iter().for_each(|step| t.step(step));
        t.end(block.end.as_ref().expect("a block has an end"));
    }
    t.b.switch_to_block(exit);
    let next = t.b.block_params(exit)[0];
    for &(variable, offset) in &steps.variables {
        let value = t.get(variable);
        let (bits, registers) = (t.cast(value, types::I64), t.get(NativeValue::REGISTERS));
        t.b.ins().store(MemFlagsData::trusted(), bits, registers, offset);
    }
    t.b.ins().return_(&[next]);
    t.b.seal_all_blocks();
    t.b.finalize(target.frontend_config());
}

fn machine_type(ty: MachineType) -> Type {
    match ty {
        MachineType::I8 => types::I8,
        MachineType::I16 => types::I16,
        MachineType::I32 => types::I32,
        MachineType::I64 => types::I64,
        MachineType::F32 => types::F32,
        MachineType::F64 => types::F64,
    }
}

impl Translation<'_> {
    fn block(&self, id: NativeBlockId) -> Block {
        self.blocks[id.index()]
    }

    fn get(&mut self, value: NativeValue) -> Value {
        if let Some(bits) = self.steps.constant_of(value) {
            return self.constant(bits, machine_type(self.steps.ty(value)));
        }
        let variable = self.variables[value.index()].expect("it is no constant");
        self.b.use_var(variable)
    }

    fn set(&mut self, dst: NativeValue, value: Value) {
        let variable = self.variables[dst.index()].expect("a constant is not set");
        self.b.def_var(variable, value);
    }

    /// Returns a constant, given by the bits of a register.
    fn constant(&mut self, bits: u64, ty: Type) -> Value {
        match ty {
            types::F64 => self.b.ins().f64const(f64::from_bits(bits)),
            types::F32 => self.b.ins().f32const(f32::from_bits(bits as u32)),
            _ => self.b.ins().iconst(ty, bits.cast_signed() & (u64::MAX >> (64 - ty.bits())).cast_signed()),
        }
    }

    /// Returns the low bits of a value as another type, or extended with zeros.
    fn cast(&mut self, value: Value, to: Type) -> Value {
        let from = self.b.func.dfg.value_type(value);
        if from == to {
            return value;
        }
        if from.is_float() {
            let bits = if from == types::F32 { types::I32 } else { types::I64 };
            let value = self.b.ins().bitcast(bits, MemFlagsData::new(), value);
            return self.cast(value, to);
        }
        if to.is_float() {
            let bits = if to == types::F32 { types::I32 } else { types::I64 };
            let value = self.cast(value, bits);
            return self.b.ins().bitcast(to, MemFlagsData::new(), value);
        }
        if from.bits() > to.bits() { self.b.ins().ireduce(to, value) } else { self.b.ins().uextend(to, value) }
    }

    /// Returns an address and its displacement.
    fn address(&mut self, NativeAddress { base, index, displacement }: NativeAddress) -> (Value, i32) {
        let mut at = self.get(base);
        if let Some((index, scale)) = index {
            let index = self.get(index);
            let index = self.cast(index, types::I64);
            let distance = self.b.ins().imul_imm_s(index, i64::from(scale));
            at = self.b.ins().iadd(at, distance);
        }
        (at, displacement)
    }

    /// Returns a value that is true if the decision is.
    fn decide(&mut self, decision: Decision) -> Value {
        match decision {
            Decision::NotZero(x) => self.get(x),
            Decision::Compare { op, of, operands } => self.binary(op, of, operands),
            Decision::ByteIsZero(at) => {
                let (at, displacement) = self.address(at);
                let byte = self.b.ins().load(types::I8, MemFlagsData::new(), at, displacement);
                self.b.ins().icmp_imm_s(IntCC::Equal, byte, 0)
            }
        }
    }

    fn end(&mut self, end: &NativeEnd) {
        match end {
            NativeEnd::Jump(to) => {
                let to = self.block(*to);
                self.b.ins().jump(to, &[]);
            }
            NativeEnd::Branch { decision, to: [yes, no] } => {
                let decision = self.decide(*decision);
                let (yes, no) = (self.block(*yes), self.block(*no));
                self.b.ins().brif(decision, yes, &[], no, &[]);
            }
            NativeEnd::Leave { next, .. } => {
                let next = self.b.ins().iconst(types::I32, i64::from(*next));
                self.b.ins().jump(self.exit, &[BlockArg::Value(next)]);
            }
        }
    }

    fn step(&mut self, step: &NativeStep) {
        match *step {
            NativeStep::Cast { dst, x } => {
                let x = self.get(x);
                let value = self.cast(x, machine_type(self.steps.ty(dst)));
                self.set(dst, value);
            }
            NativeStep::Unary { op, result, dst, x } => {
                let x = self.get(x);
                let value = self.unary(op, x, result);
                self.set(dst, value);
            }
            NativeStep::Convert { from, to, dst, x } => {
                let x = self.get(x);
                let value = self.convert(x, from, to);
                self.set(dst, value);
            }
            NativeStep::Binary { op, of, dst, operands } => {
                let value = self.binary(op, of, operands);
                self.set(dst, value);
            }
            NativeStep::MulAdd { dst, operands } => {
                let [x, y, z] = operands.map(|value| self.get(value));
                let value = self.b.ins().fma(x, y, z);
                self.set(dst, value);
            }
            NativeStep::Choose { dst, decision, values } => {
                let decision = self.decide(decision);
                let [x, y] = values.map(|value| self.get(value));
                let value = self.b.ins().select(decision, x, y);
                self.set(dst, value);
            }
            NativeStep::Load { dst, from } => {
                let (at, displacement) = self.address(from);
                let ty = machine_type(self.steps.ty(dst));
                let value = self.b.ins().load(ty, MemFlagsData::trusted(), at, displacement);
                self.set(dst, value);
            }
            NativeStep::Store { value, to } => {
                let value = self.get(value);
                let (at, displacement) = self.address(to);
                self.b.ins().store(MemFlagsData::trusted(), value, at, displacement);
            }
            NativeStep::Call { function, ref arguments, result } => {
                let arguments: Vec<Value> = arguments.iter().map(|&value| self.get(value)).collect();
                let mut signature = self.b.func.signature.clone();
                signature.params = vec![AbiParam::new(types::I64); arguments.len()];
                signature.returns = result.map(|_| AbiParam::new(types::I64)).into_iter().collect();
                let signature = self.b.import_signature(signature);
                let callee = self.b.ins().iconst(types::I64, function as i64);
                let call = self.b.ins().call_indirect(signature, callee, &arguments);
                if let Some(result) = result {
                    let value = self.b.inst_results(call)[0];
                    self.set(result, value);
                }
            }
        }
    }

    /// Emits a primitive of a value, with a result of type `result`.
    fn unary(&mut self, op: UnaryOp, x: Value, result: DType) -> Value {
        let b = &mut self.b;
        let (from, to) = (b.func.dfg.value_type(x), machine_type(MachineType::of(result)));
        match op {
            UnaryOp::Neg if result.is_float() => b.ins().fneg(x),
            UnaryOp::Neg => b.ins().ineg(x),
            UnaryOp::Abs if result.is_float() => b.ins().fabs(x),
            UnaryOp::Abs => b.ins().iabs(x),
            UnaryOp::Sqrt => b.ins().sqrt(x),
            UnaryOp::Floor => b.ins().floor(x),
            UnaryOp::Ceil => b.ins().ceil(x),
            UnaryOp::Round => b.ins().nearest(x),
            UnaryOp::Nearest | UnaryOp::NearestInt => {
                // As on the host: adding 1.5 * 2^mantissa rounds to an integer, which is then in
                // the low bits.
                let shift = if from == types::F32 { u64::from(0x4b40_0000u32) } else { 0x4338_0000_0000_0000 };
                let shift_float = self.constant(shift, from);
                let shifted = self.b.ins().fadd(x, shift_float);
                if op == UnaryOp::Nearest {
                    return self.b.ins().fsub(shifted, shift_float);
                }
                let bits = self.b.ins().bitcast(to, MemFlagsData::new(), shifted);
                let shift = self.constant(shift, to);
                self.b.ins().isub(bits, shift)
            }
            UnaryOp::Bits | UnaryOp::FromBits => b.ins().bitcast(to, MemFlagsData::new(), x),
            UnaryOp::FromInt => b.ins().fcvt_from_sint(to, x),
            UnaryOp::Convert => panic!("a conversion depends on the type of its operand"),
            UnaryOp::Not if result == DType::Bool => b.ins().bxor_imm_u(x, 1),
            UnaryOp::Not => b.ins().bnot(x),
        }
    }

    /// Emits the conversion of a value.
    fn convert(&mut self, x: Value, from: DType, to: DType) -> Value {
        let (a, r) = (machine_type(MachineType::of(from)), machine_type(MachineType::of(to)));
        let unsigned = |d: DType| matches!(d, DType::U32 | DType::U8 | DType::Bool);
        let b = &mut self.b;
        match (from.is_float(), to.is_float()) {
            (true, true) if a == r => x,
            (true, true) if r == types::F64 => b.ins().fpromote(r, x),
            (true, true) => b.ins().fdemote(r, x),
            (false, false) if a == r => x,
            (false, false) if a.bits() > r.bits() => b.ins().ireduce(r, x),
            (false, false) if unsigned(from) => b.ins().uextend(r, x),
            (false, false) => b.ins().sextend(r, x),
            (false, true) => {
                // All narrower integers fit in 64 signed bits.
                let wide = match (a, unsigned(from)) {
                    (types::I64, _) => x,
                    (_, true) => b.ins().uextend(types::I64, x),
                    (_, false) => b.ins().sextend(types::I64, x),
                };
                b.ins().fcvt_from_sint(r, wide)
            }
            (true, false) if to == DType::U32 => b.ins().fcvt_to_uint_sat(r, x),
            (true, false) => b.ins().fcvt_to_sint_sat(r, x),
        }
    }

    /// Emits a primitive of two values.
    fn binary(&mut self, op: BinaryOp, of: NumberType, operands: [NativeValue; 2]) -> Value {
        let [x, y] = operands.map(|value| self.get(value));
        let NumberType { ty, is_signed: signed } = of;
        let b = &mut self.b;
        let compare = |b: &mut FunctionBuilder<'_>, float: FloatCC, ints: [IntCC; 2]| match ty.is_float() {
            true => b.ins().fcmp(float, x, y),
            false => b.ins().icmp(ints[usize::from(signed)], x, y),
        };
        match (op, ty.is_float()) {
            (BinaryOp::Add, true) => b.ins().fadd(x, y),
            (BinaryOp::Sub, true) => b.ins().fsub(x, y),
            (BinaryOp::Mul, true) => b.ins().fmul(x, y),
            (BinaryOp::Div, true) => b.ins().fdiv(x, y),
            (BinaryOp::Rem, true) => panic!("a remainder of floats is a call"),
            (BinaryOp::CopySign, _) => b.ins().fcopysign(x, y),
            (BinaryOp::Larger | BinaryOp::Smaller, true) => {
                let beyond = if op == BinaryOp::Larger { FloatCC::GreaterThan } else { FloatCC::LessThan };
                let (nan, beyond) = (b.ins().fcmp(FloatCC::Unordered, x, x), b.ins().fcmp(beyond, x, y));
                let first = b.ins().bor(nan, beyond);
                b.ins().select(first, x, y)
            }
            (BinaryOp::Add, false) => b.ins().iadd(x, y),
            (BinaryOp::Sub, false) => b.ins().isub(x, y),
            (BinaryOp::Mul, false) => b.ins().imul(x, y),
            (BinaryOp::Larger, false) if signed => b.ins().smax(x, y),
            (BinaryOp::Larger, false) => b.ins().umax(x, y),
            (BinaryOp::Smaller, false) if signed => b.ins().smin(x, y),
            (BinaryOp::Smaller, false) => b.ins().umin(x, y),
            // The divisor was checked to be nonzero.
            (BinaryOp::Div, false) if !signed => b.ins().udiv(x, y),
            (BinaryOp::Rem, false) if !signed => b.ins().urem(x, y),
            (BinaryOp::Div | BinaryOp::Rem, false) => {
                // Dividing the smallest number by -1 would trap, so handle -1 separately.
                let minus_one = b.ins().icmp_imm_s(IntCC::Equal, y, -1);
                let one = b.ins().iconst(machine_type(ty), 1);
                let divisor = b.ins().select(minus_one, one, y);
                if op == BinaryOp::Div {
                    let quotient = b.ins().sdiv(x, divisor);
                    let negated = b.ins().ineg(x);
                    b.ins().select(minus_one, negated, quotient)
                } else {
                    // The remainder of a division by 1 is 0, as for -1.
                    b.ins().srem(x, divisor)
                }
            }
            (BinaryOp::Equal, _) => compare(b, FloatCC::Equal, [IntCC::Equal; 2]),
            (BinaryOp::Less, _) => compare(b, FloatCC::LessThan, [IntCC::UnsignedLessThan, IntCC::SignedLessThan]),
            (BinaryOp::AtMost, _) => {
                compare(b, FloatCC::LessThanOrEqual, [IntCC::UnsignedLessThanOrEqual, IntCC::SignedLessThanOrEqual])
            }
            (BinaryOp::And, _) => b.ins().band(x, y),
            (BinaryOp::Or, _) => b.ins().bor(x, y),
            (BinaryOp::Xor, _) => b.ins().bxor(x, y),
            // The machine takes the count modulo the number of bits as well.
            (BinaryOp::ShiftLeft, _) => b.ins().ishl(x, y),
            (BinaryOp::ShiftRight, _) if signed => b.ins().sshr(x, y),
            (BinaryOp::ShiftRight, _) => b.ins().ushr(x, y),
        }
    }
}
