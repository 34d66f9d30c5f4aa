//! Devices for tests that behave like devices on the other side of a bus.
//!
//! - Their memory is a type that only this file knows, with copies of what is uploaded. So no other
//!   code reads a value that was not downloaded.
//! - Uploads, downloads, kernels and fences complete late: after everything else that the step
//!   could do, in a random order that follows from a seed.
//! - There is no way from one of them to any other device but through the host.
//! - It computes fused kernels from their descriptions, which the interpreter runs, as it runs
//!   nodes that are in no kernel. There is nothing for prints and for `f64`, as on many GPUs,
//!   but it keeps values of any type.

use super::host_memory::bytes_of_value;
use super::{Device, DeviceBuffer, DeviceId, DeviceMemory, Event, LoadedKernel, MemorySpace};
#[cfg(feature = "testing")]
use super::{DeviceInfo, DeviceSource};
use super::{Progress, Step, Support, Ticket};
use crate::options::{CompileOptions, StopCheck};
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::fusion::{FuseNothing, FuseUnless, FusedKernel, Fusion};
use anabranch_dsl::interp::{self, InterpOptions, RunContext, RuntimeValue};
use anabranch_dsl::ir::Op;
use anabranch_dsl::{DType, Diagnostic, Graph, HostTensor, Result, Type};
use std::sync::{Arc, Mutex, PoisonError};

/// A device whose memory the host cannot see.
#[derive(Debug)]
pub(crate) struct OpaqueDevice {
    id: DeviceId,
    name: Option<DeviceName>,
    seed: u64,
    /// Whether an assertion that fails is an error of the fence only.
    fails_late: bool,
}

/// A value in the memory of an opaque device.
#[derive(Debug)]
struct OpaqueMemory {
    ty: Type,
    value: RuntimeValue,
}

impl DeviceMemory for OpaqueMemory {
    fn ty(&self) -> Type {
        self.ty.clone()
    }

    fn n_bytes(&self) -> u64 {
        bytes_of_value(&self.value)
    }
}

/// Copies a tensor to memory of its own.
fn copied(tensor: &HostTensor) -> HostTensor {
    HostTensor::from_buffer(tensor.shape().to_vec(), tensor.buffer().clone())
}

impl OpaqueDevice {
    /// Creates a device. Without a name, errors do not mention it.
    pub(crate) fn new(id: DeviceId, name: Option<DeviceName>, seed: u64) -> OpaqueDevice {
        OpaqueDevice { id, name, seed, fails_late: false }
    }

    /// Makes failing assertions errors of the fence only.
    #[cfg(test)]
    pub(crate) fn failing_late(self) -> OpaqueDevice {
        OpaqueDevice { fails_late: true, ..self }
    }

    fn place(&self) -> MemorySpace {
        MemorySpace::Device(self.id)
    }

    /// Completes work late.
    fn later(&self, outcome: Result<Vec<DeviceBuffer>>, step: &Step, ticket: Ticket) -> Progress {
        let now = step.now();
        step.complete_late(Event { ticket, outcome: Ok(outcome), begin: now, end: now }, self.seed);
        Progress::Later
    }

    fn buffer(&self, value: RuntimeValue, ty: Type) -> DeviceBuffer {
        DeviceBuffer::new(self.place(), OpaqueMemory { ty, value })
    }

    fn open(&self, buffer: DeviceBuffer) -> Arc<OpaqueMemory> {
        let memory = buffer.open::<OpaqueMemory>(self.place());
        memory.unwrap_or_else(|other| panic!("{} is not in the memory of an opaque device", other.ty()))
    }
}

/// Opens opaque devices, with rates like those of CPUs.
#[cfg(feature = "testing")]
#[derive(Debug)]
pub(crate) struct OpaqueSource;

#[cfg(feature = "testing")]
impl DeviceSource for OpaqueSource {
    fn info(&self, name: DeviceName) -> DeviceInfo {
        DeviceInfo { name, ..DeviceInfo::cpu(0) }
    }

    fn open(&self, id: DeviceId, name: DeviceName) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(OpaqueDevice::new(id, Some(name), id.index() as u64)))
    }
}

impl Device for OpaqueDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn name(&self) -> Option<DeviceName> {
        self.name
    }

    fn is_simulated(&self) -> bool {
        false
    }

    fn supports(&self, op: &Op, operands: &[&Type], results: &[&Type]) -> Support {
        if let Op::Print { .. } = op {
            return Support::No("cannot print".to_owned());
        }
        if op.is_of_session() {
            return Support::No("has no queues and files".to_owned());
        }
        let keeps = matches!(op, Op::Constant(_) | Op::Read(_) | Op::Assign(_)) || op.is_construct();
        if !keeps && operands.iter().chain(results).any(|ty| ty.element().dtype == DType::F64) {
            return Support::No("has no f64".to_owned());
        }
        Support::Yes
    }

    fn load(
        self: Arc<Self>,
        graph: Graph,
        options: CompileOptions,
        may_go_on: StopCheck<'_>,
    ) -> Result<Box<dyn LoadedKernel>> {
        may_go_on()?;
        let interp = InterpOptions::new().check_finite(options.check_finite);
        // Some kernels are split, as on devices that lack a shader for them.
        let target = FuseUnless(|kernel: &FusedKernel| kernel.stages.len().is_multiple_of(3));
        let fusion = match options.fuse {
            true => Fusion::find(&graph, &target),
            false => Fusion::find(&graph, &FuseNothing),
        };
        Ok(Box::new(OpaqueKernel { graph, fusion, options: interp, device: self }))
    }

    fn upload(&self, values: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Progress {
        let stored = values.into_iter().map(|value| self.store(value.into_host())).collect();
        self.later(stored, step, ticket)
    }

    fn download(&self, values: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Progress {
        let fetched = values.into_iter().map(|value| self.fetch(value).map(DeviceBuffer::from_host)).collect();
        self.later(fetched, step, ticket)
    }

    fn copy(
        &self,
        values: Vec<DeviceBuffer>,
        _: &dyn Device,
        _: &Arc<Step>,
        _: Ticket,
    ) -> std::result::Result<Progress, Vec<DeviceBuffer>> {
        Err(values)
    }

    fn fence(&self, step: &Arc<Step>, ticket: Ticket) -> Result<Progress> {
        let failure = step.late_failure(self.id);
        Ok(self.later(failure.map_or(Ok(Vec::new()), Err), step, ticket))
    }

    fn store(&self, value: HostTensor) -> Result<DeviceBuffer> {
        Ok(self.buffer(RuntimeValue::Tensor(copied(&value)), Type::Tensor(value.ty())))
    }

    fn fetch(&self, value: DeviceBuffer) -> Result<HostTensor> {
        match &self.open(value).value {
            RuntimeValue::Tensor(tensor) => Ok(copied(tensor)),
            other => panic!("only tensors leave a device, not {other:?}"),
        }
    }
}

/// A graph that an opaque device interprets.
#[derive(Debug)]
struct OpaqueKernel {
    graph: Graph,
    fusion: Fusion,
    options: InterpOptions,
    device: Arc<OpaqueDevice>,
}

impl LoadedKernel for OpaqueKernel {
    fn enqueue(&self, inputs: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Result<Progress> {
        let inputs: Vec<RuntimeValue> = inputs.into_iter().map(|input| self.device.open(input).value.clone()).collect();
        let context = RunContext { fusion: Some(&self.fusion), ..step.run_context() };
        let outputs = interp::run_data(&self.graph, &inputs, &mut Vec::new(), self.options, context);
        let outcome = outputs.map(|outputs| {
            let types = self.graph.outputs().iter().map(|&v| self.graph.ty(v));
            let buffer = |(value, ty): (RuntimeValue, &Type)| match value {
                RuntimeValue::Tensor(tensor) => {
                    let ty = Type::Tensor(tensor.ty());
                    self.device.buffer(RuntimeValue::Tensor(tensor), ty)
                }
                container => self.device.buffer(container, ty.clone()),
            };
            outputs.into_iter().zip(types).map(buffer).collect()
        });
        match outcome {
            Err(error) if self.device.fails_late && self.graph.outputs().is_empty() => {
                step.fail_late(self.device.id, error);
                Ok(Progress::Complete(Vec::new()))
            }
            outcome => Ok(self.device.later(outcome, step, ticket)),
        }
    }
}

/// The events of opaque devices in a step, and their failures that no event has reported.
#[derive(Debug, Default)]
pub(super) struct LateEvents(Mutex<Late>);

#[derive(Debug, Default)]
struct Late {
    events: Vec<Event>,
    failures: Vec<(DeviceId, Diagnostic)>,
    random: u64,
}

impl LateEvents {
    fn late(&self) -> std::sync::MutexGuard<'_, Late> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a random event.
    pub(super) fn take(&self) -> Option<Event> {
        let mut late = self.late();
        let n = late.events.len() as u64;
        if n == 0 {
            return None;
        }
        // Knuth's linear congruential generator.
        late.random = late.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let i = ((late.random >> 33) % n) as usize;
        Some(late.events.swap_remove(i))
    }
}

impl Step {
    fn complete_late(&self, event: Event, seed: u64) {
        let mut late = self.late_events.late();
        late.random ^= seed;
        late.events.push(event);
    }

    fn fail_late(&self, device: DeviceId, error: Diagnostic) {
        self.late_events.late().failures.push((device, error));
    }

    /// Returns the first failure of a device that no event has reported.
    fn late_failure(&self, device: DeviceId) -> Option<Diagnostic> {
        let mut late = self.late_events.late();
        let i = late.failures.iter().position(|(of, _)| *of == device)?;
        Some(late.failures.remove(i).1)
    }
}
