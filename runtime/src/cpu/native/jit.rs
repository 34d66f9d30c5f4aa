//! Machine code by Cranelift.

use super::{WhyNot, region, translate};
use crate::cpu::compile::{Base, Instr, Plan};
use crate::cpu::memory::stack::StackStorage;
use anabranch_dsl::interp::StopFlag;
use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{CodegenError, Context};
use memmap2::{Mmap, MmapMut};
use std::io;
use std::sync::OnceLock;

/// The type of a native function. The function receives the registers, the stacks, the addresses of
/// tensors and the byte of the stop flag, and returns the index of the next instruction.
type NativeFn = unsafe extern "C" fn(*mut u64, *mut StackStorage, *const *mut u8, *const u8) -> u32;

/// The native code of a plan.
pub(crate) struct Native {
    functions: Vec<NativeFn>,
    /// The tensors of which each function accesses elements.
    bases: Vec<Vec<Base>>,
    /// The memory of the functions, executable and immutable.
    _code: Mmap,
    n_registers: usize,
    n_stacks: usize,
}

impl Native {
    /// Compiles the loops of a plan that can be native, and puts an [`Instr::Native`] at the entry
    /// of each.
    ///
    /// Returns `None` if there is no such loop, Cranelift does not support this machine, or there
    /// is no memory for code. Returns an error if Cranelift rejects the generated code. The plan is
    /// then unchanged.
    pub(crate) fn compile(plan: &mut Plan, is_stopped: &dyn Fn() -> bool) -> Result<Option<Native>, String> {
        let regions = region::find(plan);
        if regions.is_empty() {
            return Ok(None);
        }
        let Some(target) = target() else {
            region::refuse(plan, &regions, WhyNot::Processor);
            return Ok(None);
        };
        let align = target.symbol_alignment().max(target.function_alignment().preferred.into()) as usize;
        let mut context = Context::new();
        let mut builder_context = cranelift_frontend::FunctionBuilderContext::new();
        let (mut code, mut compiled) = (Vec::new(), Vec::with_capacity(regions.len()));
        for region in &regions {
            if is_stopped() {
                return Err("the compilation was stopped".to_owned());
            }
            context.clear();
            translate::translate(plan, region, &*target, &mut context, &mut builder_context);
            match context.compile(&*target, &mut Default::default()) {
                // A call of a library function that this processor has no instruction for.
                Ok(function) if !function.buffer.relocs().is_empty() => {
                    region::refuse(plan, std::slice::from_ref(region), WhyNot::Processor);
                }
                Ok(function) => {
                    code.resize(code.len().next_multiple_of(align.max(function.buffer.alignment as usize)), 0);
                    compiled.push((region, code.len()));
                    code.extend_from_slice(function.code_buffer());
                }
                // A loop that is too large for Cranelift stays as instructions.
                Err(e) if matches!(e.inner, CodegenError::ImplLimitExceeded | CodegenError::CodeTooLarge) => {
                    region::refuse(plan, std::slice::from_ref(region), WhyNot::Size);
                }
                Err(e) => return Err(e.inner.to_string()),
            }
        }
        if compiled.is_empty() {
            return Ok(None);
        }
        let Ok(code) = executable(&code) else {
            region::refuse(plan, &regions, WhyNot::Memory);
            return Ok(None);
        };
        let mut functions = Vec::with_capacity(compiled.len());
        let mut bases = Vec::with_capacity(compiled.len());
        for (region, start) in compiled {
            plan.code[region.enter as usize] = Instr::Native { function: functions.len() as u32, entry: region.entry };
            let function = code[start..].as_ptr();
            // SAFETY: a function begins at `start`, compiled for the signature of `Function` by
            // `translate`.
            functions.push(unsafe { std::mem::transmute::<*const u8, NativeFn>(function) });
            bases.push(region.bases.clone());
        }
        Ok(Some(Native {
            functions,
            bases,
            _code: code,
            n_registers: plan.registers.len(),
            n_stacks: plan.stacks.len(),
        }))
    }

    /// Returns the tensors of which a function accesses elements.
    pub(crate) fn bases(&self, function: u32) -> &[Base] {
        &self.bases[function as usize]
    }

    /// Runs a function. Returns the index of the next instruction.
    ///
    /// # Safety
    /// `addresses` are those of the memory of [`bases`](Self::bases) in a run of the plan. Nothing
    /// else accesses that of a buffer, or writes that of another one, until this returns.
    pub(crate) unsafe fn run(
        &self,
        function: u32,
        regs: &mut [u64],
        stacks: &mut [StackStorage],
        addresses: &[*mut u8],
        stop: &StopFlag,
    ) -> usize {
        assert_eq!(addresses.len(), self.bases[function as usize].len(), "each tensor has an address");
        assert!(regs.len() == self.n_registers && stacks.len() == self.n_stacks, "the memory is that of another plan");
        let function = self.functions[function as usize];
        // SAFETY: the function uses `regs` and `stacks` within their lengths, which are those of
        // the plan it was compiled for (N1). The code reads the byte of the flag, which other
        // threads change atomically. All are borrowed until it returns. The caller guarantees the
        // same of the memory of tensors, in which the code accesses elements of the plan's views.
        unsafe { function(regs.as_mut_ptr(), stacks.as_mut_ptr(), addresses.as_ptr(), stop.address()) as usize }
    }
}

impl std::fmt::Debug for Native {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Native").field("functions", &self.functions.len()).finish_non_exhaustive()
    }
}

/// Copies code, which needs no relocation, to memory from which it can be run.
pub(crate) fn executable(code: &[u8]) -> io::Result<Mmap> {
    let mut memory = MmapMut::map_anon(code.len())?;
    memory.copy_from_slice(code);
    let memory = memory.make_exec()?;
    #[cfg(not(target_arch = "x86_64"))]
    {
        use wasmtime_internal_jit_icache_coherence::{clear_cache, pipeline_flush_mt};
        // SAFETY: the range is that of `memory`.
        let cleared = unsafe { clear_cache(memory.as_ptr().cast(), memory.len()) };
        cleared.and_then(|()| pipeline_flush_mt()).map_err(|e| io::Error::other(e.to_string()))?;
    }
    Ok(memory)
}

/// Enables the instructions of this machine's processor that Cranelift uses.
#[cfg(target_arch = "x86_64")]
fn builder() -> Option<isa::Builder> {
    let mut builder = isa::lookup(target_lexicon::Triple::host()).ok()?;
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
        "avx512bitalg": "has_avx512bitalg",
        "avx512vbmi": "has_avx512vbmi",
    }
    Some(builder)
}

/// Enables the instructions of this machine's processor that Cranelift uses.
#[cfg(not(target_arch = "x86_64"))]
fn builder() -> Option<isa::Builder> {
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
