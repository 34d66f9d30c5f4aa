//! GPUs, through wgpu: Vulkan, Metal and DX12.
//!
//! A [`GpuDevice`] is a [`Device`] with memory of its own. One thread per device owns its queue: it
//! records commands, submits them, and waits for values that are read back. Everything else sends
//! it jobs, which begin in the order in which they are sent. A job that waits gives way to others.
//!
//! | file | contents |
//! |---|---|
//! | `adapter.rs` | the adapters of this machine |
//! | `queue.rs` | the thread, its commands, and transfers |
//! | `memory.rs` | tensors in the memory of the device, and their reuse |
//! | `upload.rs` | the memory from which tensors are copied to the device |
//! | `swap.rs` | values saved for backward loops, in the memory of the host |
//! | `modelled.rs` | the time of a step if copies had queues of their own |
//! | `shader.rs` | compiled shaders |
//! | `handwritten.rs` | the texts of shaders that are written by hand |
//! | `lower.rs` | graphs as programs: shaders in order, with branches and loops |
//! | `list.rs` | lists, and operations on them |
//! | `product.rs` | matmuls and convolutions: the choice of a kernel, and its parameters |
//! | `explain.rs` | programs as text |
//! | `program.rs` | the operations of programs |
//! | `run.rs` | runs of programs |
//! | `shader_loop.rs` | loops that shaders run by themselves |
//! | `ahead.rs` | branches and loops recorded ahead of their predicates |
//!
//! Shaders of elementwise operations, reductions, views and random numbers are printed from fused
//! kernels (`fusion` in the language); those in the folder `shaders/` are written by hand, those of
//! products with room for a printed function of their elements. An operation that has neither runs
//! on a CPU, where placement puts it.
//!
//! # Invariants
//!
//! - G1. Commands take effect in the order in which they are recorded: the queue is in order, and
//!   uploads are commands like others. Memory of a dropped tensor can therefore be used again at
//!   once.
//! - G2. A tensor is contiguous and row-major, and padded to words of 32 bits. A `bool` is such a
//!   word, 0 or 1. Shaders compute with elements of 32 bits, to which they convert 16-bit floats;
//!   tensors of other types are only kept.
//! - G3. No dispatch has an output that is also one of its inputs.
//! - G4. Memory is written once, by the operation for which it was allocated. Only lists and
//!   tensors that nothing else has (`list.rs`, and updates of parts in `run.rs`) and, under a
//!   guard, the registers of loops (`ahead.rs`) are written again. Work that turns out to be in
//!   vain therefore changes no value.
//!
//! # Errors
//!
//! A shader that is not accepted and missing memory are errors of the graph or step that needs
//! them, with the name of the device. A lost device, and any other error of the driver, is an error
//! of all later work of the device. Other devices go on.

mod adapter;
mod ahead;
mod explain;
mod handwritten;
mod list;
mod lower;
mod memory;
#[cfg(feature = "testing")]
mod modelled;
mod product;
mod program;
mod queue;
mod run;
mod shader;
mod shader_loop;
mod swap;
mod upload;

pub use adapter::{GpuAdapter, gpu_adapters};
#[cfg(feature = "testing")]
pub use modelled::ModelledTimes;

#[cfg(feature = "peers")]
use crate::device::gpu_support::SizeLimits;
use crate::device::{
    Device, DeviceBuffer, DeviceId, DeviceInfo, DeviceSource, Event, LoadedKernel, MemorySpace, Progress, Step,
    Support, Ticket, error_on, gpu_support,
};
use crate::options::{CompileOptions, StopCheck};
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::ir::Op;
use anabranch_dsl::{Graph, HostTensor, Result, Type};
use memory::{GpuMemory, GpuValue};
use program::GpuProgram;
use queue::{CommandRecorder, GpuQueue, caught};
use std::sync::Arc;

/// A GPU, or another device with a driver that wgpu knows.
#[derive(Debug)]
pub(crate) struct GpuDevice {
    id: DeviceId,
    /// The name for errors, if they mention the device.
    name: Option<DeviceName>,
    queue: GpuQueue,
}

impl GpuDevice {
    /// Opens an adapter and starts its thread.
    ///
    /// # Errors
    /// Fails if the driver refuses the device.
    pub(crate) fn new(id: DeviceId, name: DeviceName, adapter: &GpuAdapter) -> Result<GpuDevice> {
        Ok(GpuDevice { id, name: Some(name), queue: GpuQueue::open(name, adapter)? })
    }

    /// Returns the sizes that the device supports.
    #[cfg(feature = "peers")]
    pub(crate) fn size_limits(&self) -> SizeLimits {
        self.queue.shared().limits
    }

    /// Lets errors not mention the device.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn unmentioned(self) -> GpuDevice {
        GpuDevice { name: None, ..self }
    }

    fn space(&self) -> MemorySpace {
        MemorySpace::Device(self.id)
    }

    /// Sends work of a step on some values to the thread.
    fn enqueue(
        &self,
        values: Vec<DeviceBuffer>,
        step: &Arc<Step>,
        ticket: Ticket,
        work: impl AsyncFnOnce(&CommandRecorder, Vec<DeviceBuffer>, &Step) -> Result<Vec<DeviceBuffer>> + Send + 'static,
    ) {
        let step = step.clone();
        step.wait_for_thread(ticket, values);
        self.queue.send(async move |recorder| {
            let Some(values) = step.begin(ticket) else { return };
            let begin = step.now();
            // An error of the work itself says where in the graph the device failed.
            let results = async {
                let results = work(recorder, values, &step).await?;
                recorder.check().map(|()| results)
            };
            let outcome = caught(results).await;
            step.complete(Event { ticket, outcome, begin, end: step.now() });
        });
    }
}

/// The part of the memory budget of a GPU that one hoisted matmul may have.
const HOISTED_PART: u64 = 16;

impl DeviceSource for GpuAdapter {
    /// The rates are round numbers of a current GPU with the kernels of this crate, and of a
    /// software driver on two cores. They are assumed, not measured.
    fn info(&self, name: DeviceName) -> DeviceInfo {
        match self.is_software() {
            true => DeviceInfo { name, flops: 5e9, bandwidth: 2e9, launch: 20e-6 },
            false => DeviceInfo { name, flops: 2e12, bandwidth: 300e9, launch: 5e-6 },
        }
    }

    /// A matrix over all iterations of a loop is one tensor, which cannot move to the host in
    /// parts.
    fn limited(&self, options: CompileOptions) -> CompileOptions {
        let part = self.memory_budget().map_or(u64::MAX, |budget| budget / HOISTED_PART);
        let max_bytes = usize::try_from(part.min(self.max_tensor_bytes())).unwrap_or(usize::MAX);
        CompileOptions { max_hoisted_bytes: options.max_hoisted_bytes.min(max_bytes), ..options }
    }

    fn open(&self, id: DeviceId, name: DeviceName) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(GpuDevice::new(id, name, self)?))
    }
}

/// Opens a value of a device.
fn open(space: MemorySpace, buffer: DeviceBuffer) -> Arc<GpuMemory> {
    let memory = buffer.open::<GpuMemory>(space);
    memory.unwrap_or_else(|other| panic!("{} is not in the memory of a GPU", other.ty()))
}

/// Copies a tensor to the device.
fn store(space: MemorySpace, recorder: &CommandRecorder, tensor: &HostTensor) -> Result<DeviceBuffer> {
    let value = GpuValue::Tensor(recorder.upload(tensor)?);
    Ok(DeviceBuffer::new(space, GpuMemory { ty: Type::Tensor(tensor.ty()), value }))
}

/// Copies tensors of the device to the host.
async fn fetch(space: MemorySpace, recorder: &CommandRecorder, buffers: Vec<DeviceBuffer>) -> Result<Vec<HostTensor>> {
    let memory: Vec<Arc<GpuMemory>> = buffers.into_iter().map(|buffer| open(space, buffer)).collect();
    let tensor = |memory: &'_ Arc<GpuMemory>| {
        let GpuValue::Tensor(tensor) = &memory.value else { panic!("only tensors leave a device, not {}", memory.ty) };
        tensor.clone()
    };
    let tensors: Vec<_> = memory.iter().map(tensor).collect();
    let types = memory.iter().map(|memory| memory.ty.element());
    let typed: Vec<_> = tensors.iter().map(|tensor| &**tensor).zip(types).collect();
    recorder.download(&typed).await
}

impl Device for GpuDevice {
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
        gpu_support::supports(op, operands, results, &self.queue.shared().limits)
    }

    fn load(
        self: Arc<Self>,
        graph: Graph,
        options: CompileOptions,
        may_go_on: StopCheck<'_>,
    ) -> Result<Box<dyn LoadedKernel>> {
        may_go_on()?;
        let program = GpuProgram::new(graph, options, &self.queue).map_err(|e| error_on(&*self, e))?;
        Ok(Box::new(GpuKernel { program: Arc::new(program), device: self }))
    }

    fn upload(&self, values: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Progress {
        let space = self.space();
        self.enqueue(values, step, ticket, async move |recorder, values, _| {
            values.into_iter().map(|value| store(space, recorder, &value.into_host())).collect()
        });
        Progress::Later
    }

    fn download(&self, values: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Progress {
        let space = self.space();
        self.enqueue(values, step, ticket, async move |recorder, values, _| {
            let fetched = fetch(space, recorder, values).await?;
            Ok(fetched.into_iter().map(DeviceBuffer::from_host).collect())
        });
        Progress::Later
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
        self.enqueue(Vec::new(), step, ticket, async |recorder, _, _| {
            recorder.finish().await?;
            Ok(Vec::new())
        });
        Ok(Progress::Later)
    }

    fn store(&self, value: HostTensor) -> Result<DeviceBuffer> {
        let space = self.space();
        self.queue.call(async move |recorder| store(space, recorder, &value)).map_err(|e| error_on(self, e))
    }

    fn fetch(&self, value: DeviceBuffer) -> Result<HostTensor> {
        let space = self.space();
        let fetched = self.queue.call(async move |recorder| fetch(space, recorder, vec![value]).await);
        fetched.map(|mut tensors| tensors.remove(0)).map_err(|e| error_on(self, e))
    }
}

/// A graph loaded on a GPU.
#[derive(Debug)]
struct GpuKernel {
    program: Arc<GpuProgram>,
    device: Arc<GpuDevice>,
}

impl LoadedKernel for GpuKernel {
    fn explain(&self) -> Option<String> {
        Some(self.program.explain())
    }

    fn enqueue(&self, inputs: Vec<DeviceBuffer>, step: &Arc<Step>, ticket: Ticket) -> Result<Progress> {
        let (program, space) = (self.program.clone(), self.device.space());
        self.device.enqueue(inputs, step, ticket, async move |recorder, inputs, step| {
            let inputs = inputs.into_iter().map(|input| open(space, input).value.clone());
            let outputs = program.run(recorder, inputs, &step.run_context()).await?;
            let types = program.output_types().cloned();
            Ok(outputs
                .into_iter()
                .zip(types)
                .map(|(value, ty)| DeviceBuffer::new(space, GpuMemory { ty, value }))
                .collect())
        });
        Ok(Progress::Later)
    }
}
