//! The machine code of a plan.

#[cfg(any(not(target_arch = "x86_64"), anabranch_cranelift))]
use super::by_cranelift::{MAX_VARIABLES_AT_EXITS, compile_loop};
use super::live_registers::{LiveRegisters, RegisterReads};
use super::lower::lower;
#[cfg(all(target_arch = "x86_64", not(anabranch_cranelift)))]
use super::steps::NativeSteps;
#[cfg(all(target_arch = "x86_64", not(anabranch_cranelift)))]
use super::x86::{self, MAX_VARIABLES_AT_EXITS};
use super::{WhyNot, region};
use crate::cpu::compile::{Instr, Plan};
use crate::cpu::memory::Base;
use crate::cpu::memory::stack::StackStorage;
use crate::options::NativeLimits;
use anabranch_dsl::interp::StopFlag;
use memmap2::{Mmap, MmapMut};
use std::io;

/// The machine code of one loop, which needs no relocation and begins at a multiple of [`ALIGN`].
pub(super) struct LoopCode {
    pub(super) bytes: Vec<u8>,
    /// The place of the function.
    pub(super) entry: usize,
}

/// The alignment of the code of a loop.
pub(super) const ALIGN: usize = 64;

/// Compiles a loop, or says why it has no native code. An error is a fault of the compiler.
#[cfg(all(target_arch = "x86_64", not(anabranch_cranelift)))]
fn compile_loop(steps: &NativeSteps, limits: NativeLimits) -> Result<Result<LoopCode, WhyNot>, String> {
    Ok(if x86::is_supported() {
        x86::emit(steps, limits.registers).ok_or(WhyNot::Size)
    } else {
        Err(WhyNot::Processor)
    })
}

/// The type of a native function. The function receives the registers, the stacks, the addresses of
/// tensors and the byte of the stop flag, and returns the index of the next instruction.
#[cfg(target_arch = "x86_64")]
type NativeFn = unsafe extern "sysv64" fn(*mut u64, *mut StackStorage, *const *mut u8, *const u8) -> u32;
#[cfg(not(target_arch = "x86_64"))]
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
    /// Returns `None` if there is no such loop, no native code for this machine, or no memory for
    /// code. Returns an error if the generated code is rejected. The plan is then unchanged.
    pub(crate) fn compile(
        plan: &mut Plan,
        limits: NativeLimits,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Native>, String> {
        let regions = region::find(plan);
        if regions.is_empty() {
            return Ok(None);
        }
        let reads = RegisterReads::new(plan);
        let (mut code, mut compiled) = (Vec::new(), Vec::with_capacity(regions.len()));
        for region in &regions {
            if is_stopped() {
                return Err("the compilation was stopped".to_owned());
            }
            let live =
                LiveRegisters::new(plan, region, &reads, limits.variables_at_exits.unwrap_or(MAX_VARIABLES_AT_EXITS));
            match compile_loop(&lower(plan, region, live.as_ref()), limits)? {
                Ok(of_loop) => {
                    code.resize(code.len().next_multiple_of(ALIGN), 0);
                    compiled.push((region, code.len() + of_loop.entry));
                    code.extend_from_slice(&of_loop.bytes);
                }
                Err(why) => region::refuse(plan, std::slice::from_ref(region), why),
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
            // SAFETY: a function begins at `start`, compiled for the signature of
            // `NativeFn`.
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
