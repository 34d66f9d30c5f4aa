//! Machine code by Cranelift.

use super::{WhyNot, region, translate};
use crate::cpu::stack::Stack;
use crate::plan::{Instr, Plan};
use anabranch_dsl::interp::StopFlag;
use cranelift_codegen::CodegenError;
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Linkage, Module, ModuleError, default_libcall_names};
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

/// The type of a native function. It receives the registers, the stacks and the byte of the stop
/// flag, and returns the index of the next instruction.
type Function = unsafe extern "C" fn(*mut u64, *mut Stack, *const u8) -> u32;

/// The native code of a plan.
pub(crate) struct Native {
    module: ManuallyDrop<JITModule>,
    functions: Vec<Function>,
    n_registers: usize,
    n_stacks: usize,
}

// SAFETY: after `compile` only `drop` uses the module, with exclusive access. The code in it is
// read and run, never changed (N3).
unsafe impl Send for Native {}
// SAFETY: as above.
unsafe impl Sync for Native {}

impl Native {
    /// Compiles the loops of a plan that can be native, and puts an [`Instr::Native`] at the entry
    /// of each.
    ///
    /// Returns `None` if there is no such loop, Cranelift does not support this machine, or there
    /// is no memory for code. Returns an error if Cranelift rejects the generated code. The plan is
    /// then unchanged.
    pub(crate) fn compile(plan: &mut Plan) -> Result<Option<Native>, String> {
        let regions = region::find(plan);
        if regions.is_empty() {
            return Ok(None);
        }
        let Some(target) = target() else {
            region::refuse(plan, &regions, WhyNot::Processor);
            return Ok(None);
        };
        let module = JITModule::new(JITBuilder::with_isa(target, default_libcall_names()));
        let (n_registers, n_stacks) = (plan.registers.len(), plan.stacks.len());
        let mut native = Native { module: ManuallyDrop::new(module), functions: Vec::new(), n_registers, n_stacks };
        let module = &mut *native.module;
        let mut context = module.make_context();
        let mut builder_context = cranelift_frontend::FunctionBuilderContext::new();
        let mut compiled = Vec::with_capacity(regions.len());
        for (i, region) in regions.iter().enumerate() {
            translate::translate(plan, region, module, &mut context, &mut builder_context);
            let id = module
                .declare_function(&format!("loop{i}"), Linkage::Local, &context.func.signature)
                .expect("the names of functions are different");
            match module.define_function(id, &mut context) {
                Ok(()) => compiled.push((region, id)),
                // A loop that is too large for Cranelift stays as instructions.
                Err(ModuleError::Compilation(CodegenError::ImplLimitExceeded | CodegenError::CodeTooLarge)) => {
                    region::refuse(plan, std::slice::from_ref(region), WhyNot::Size);
                }
                Err(e) => return Err(e.to_string()),
            }
            module.clear_context(&mut context);
        }
        // This fails if the system provides no memory for code.
        if module.finalize_definitions().is_err() {
            region::refuse(plan, &regions, WhyNot::Memory);
            return Ok(None);
        }
        for (i, (region, id)) in compiled.into_iter().enumerate() {
            plan.code[region.enter as usize] = Instr::Native { function: i as u32, entry: region.entry };
            let code = native.module.get_finalized_function(id);
            // SAFETY: the code was compiled for the signature of `Function` by `translate`.
            native.functions.push(unsafe { std::mem::transmute::<*const u8, Function>(code) });
        }
        Ok(Some(native))
    }

    /// Runs a function. Returns the index of the next instruction.
    pub(crate) fn run(&self, function: u32, regs: &mut [u64], stacks: &mut [Stack], stop: &StopFlag) -> usize {
        assert!(regs.len() == self.n_registers && stacks.len() == self.n_stacks, "the memory is that of another plan");
        let function = self.functions[function as usize];
        // SAFETY: the function uses `regs` and `stacks` within their lengths, which are those of
        // the plan it was compiled for (N1). It reads the byte of the flag, which other threads
        // change atomically. All are borrowed until it returns.
        unsafe { function(regs.as_mut_ptr(), stacks.as_mut_ptr(), stop.address()) as usize }
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // SAFETY: `module` is taken once, here. None of its functions runs, since they are called
        // through `&self`.
        unsafe { ManuallyDrop::take(&mut self.module).free_memory() };
    }
}

impl std::fmt::Debug for Native {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Native").field("functions", &self.functions.len()).finish_non_exhaustive()
    }
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
        let isa = cranelift_native::builder().ok()?.finish(settings::Flags::new(flags)).ok()?;
        (isa.pointer_bits() == 64 && cfg!(target_endian = "little")).then_some(isa)
    };
    TARGET.get_or_init(find).clone()
}
