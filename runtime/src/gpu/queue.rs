//! The thread of a device: it records commands, submits them, and reads values back.

use super::GpuAdapter;
use super::memory::{BufferPool, GpuTensor};
use super::shader::{CompiledShader, ShaderCache};
use crate::device::no_threads;
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::{Buffer, DType, Diagnostic, ErrorKind, HostTensor, Result, TensorType};
use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

/// Work for the thread of a device.
type Job = Box<dyn FnOnce(&mut CommandRecorder) + Send>;

/// The number of commands after which they are submitted, so that the device begins to work.
const MAX_COMMANDS: usize = 256;

/// The parts of a device that any thread may use.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) device: wgpu::Device,
    pub(super) shaders: ShaderCache,
    /// The largest number of bytes that a shader can bind.
    pub(super) max_binding: u64,
    /// The largest number of bytes of a buffer.
    max_buffer: u64,
    name: DeviceName,
    pool: Arc<BufferPool>,
    /// The first error that the driver reported outside of a scope. The device then stays unusable,
    /// since commands may be lost.
    failure: Arc<Mutex<Option<Diagnostic>>>,
}

/// The queue of a device: sends jobs to its thread. When the queue is dropped, the thread does the
/// jobs that it has, and ends.
pub(super) struct GpuQueue {
    /// `None` while the queue is dropped.
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl fmt::Debug for GpuQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuQueue").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

impl GpuQueue {
    /// Opens a device of an adapter, with all its limits, and starts the thread.
    pub(super) fn open(name: DeviceName, adapter: &GpuAdapter) -> Result<GpuQueue> {
        let refused = |reason: &dyn fmt::Display| {
            Diagnostic::new(format!("{adapter} cannot be {name}: {reason}"))
                .of_kind(ErrorKind::ResourceExhausted)
                .help("`gpu_adapters` lists the others")
        };
        if let Some(missing) = adapter.missing() {
            return Err(refused(&missing));
        }
        let limits = adapter.wgpu().limits();
        let description = wgpu::DeviceDescriptor {
            required_features: wgpu::Features::IMMEDIATES,
            required_limits: limits.clone(),
            ..Default::default()
        };
        let opened = pollster::block_on(adapter.wgpu().request_device(&description));
        let (device, queue) = opened.map_err(|error| refused(&error))?;
        let failure: Arc<Mutex<Option<Diagnostic>>> = Arc::default();
        let report = failure.clone();
        device.on_uncaptured_error(Arc::new(move |error| fail(&report, of_driver(&error))));
        let report = failure.clone();
        device.set_device_lost_callback(move |reason, message| {
            if reason != wgpu::DeviceLostReason::Destroyed {
                fail(&report, lost(&message));
            }
        });
        let shared = Arc::new(Shared {
            shaders: ShaderCache::default(),
            max_binding: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size),
            max_buffer: limits.max_buffer_size,
            name,
            pool: Arc::default(),
            failure,
            device,
        });
        let (jobs, received) = mpsc::channel();
        let mut recorder = CommandRecorder {
            shared: shared.clone(),
            queue,
            staging: Arc::default(),
            encoder: None,
            pass: None,
            n_commands: 0,
        };
        let thread = std::thread::Builder::new().name(name.to_string());
        let started = thread.spawn(move || recorder.run(&received));
        let thread = started.map_err(|error| no_threads(format_args!("the thread of {name}"), error))?;
        Ok(GpuQueue { jobs: Some(jobs), thread: Some(thread), shared })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Sends a job, which runs after all earlier ones.
    pub(super) fn send(&self, job: impl FnOnce(&mut CommandRecorder) + Send + 'static) {
        let jobs = self.jobs.as_ref().expect("the queue is not dropped");
        jobs.send(Box::new(job)).expect("the thread runs as long as the queue exists");
    }

    /// Sends a job and waits for its result.
    pub(super) fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut CommandRecorder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (result, received) = mpsc::channel();
        self.send(move |recorder| {
            let outcome = job(recorder);
            let outcome = recorder.check().and(outcome);
            // Nobody waits if the caller panicked.
            let _ = result.send(outcome);
        });
        received.recv().expect("the job does not panic")
    }
}

impl Drop for GpuQueue {
    /// Waits for the thread, so that the driver is idle when a process ends.
    fn drop(&mut self) {
        self.jobs = None;
        // The last owner may be a job.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

/// Records a failure, unless an earlier one is recorded.
fn fail(failure: &Mutex<Option<Diagnostic>>, error: Diagnostic) {
    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
}

/// Returns the error of a device that the driver has ended.
fn lost(reason: &dyn fmt::Display) -> Diagnostic {
    let error = Diagnostic::new(format!("the device is lost: {reason}")).of_kind(ErrorKind::ResourceExhausted);
    error.help("create a new session, which opens the device again")
}

/// Returns an error of the driver.
fn of_driver(error: &wgpu::Error) -> Diagnostic {
    match error {
        wgpu::Error::OutOfMemory { .. } => Diagnostic::new("the device has no memory left")
            .of_kind(ErrorKind::ResourceExhausted)
            .help("use smaller batches, or place a part of the graph on a CPU"),
        other => Diagnostic::new(format!("the driver reports an error: {other}")).of_kind(ErrorKind::Internal),
    }
}

/// Returns the elements in the form that the device has, padded to words.
fn bytes_of(buffer: &Buffer) -> Cow<'_, [u8]> {
    let padded = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        Cow::Owned(bytes)
    };
    match buffer {
        Buffer::F32(data) => bytemuck::cast_slice(data).into(),
        Buffer::F64(data) => bytemuck::cast_slice(data).into(),
        Buffer::I32(data) => bytemuck::cast_slice(data).into(),
        Buffer::I64(data) => bytemuck::cast_slice(data).into(),
        Buffer::U32(data) => bytemuck::cast_slice(data).into(),
        Buffer::F16(data) => padded(bytemuck::cast_slice(data)),
        Buffer::BF16(data) => padded(bytemuck::cast_slice(data)),
        Buffer::U8(data) => padded(data),
        Buffer::Bool(data) => data.iter().flat_map(|&b| u32::from(b).to_ne_bytes()).collect(),
    }
}

/// Returns `n` elements from the form that the device has.
fn of_bytes(dtype: DType, n: usize, bytes: &[u8]) -> Buffer {
    fn elements<T: bytemuck::Pod>(bytes: &[u8], n: usize) -> Vec<T> {
        bytemuck::pod_collect_to_vec(&bytes[..n * size_of::<T>()])
    }
    match dtype {
        DType::F32 => Buffer::F32(elements(bytes, n)),
        DType::F64 => Buffer::F64(elements(bytes, n)),
        DType::F16 => Buffer::F16(elements(bytes, n)),
        DType::BF16 => Buffer::BF16(elements(bytes, n)),
        DType::I32 => Buffer::I32(elements(bytes, n)),
        DType::I64 => Buffer::I64(elements(bytes, n)),
        DType::U32 => Buffer::U32(elements(bytes, n)),
        DType::U8 => Buffer::U8(elements(bytes, n)),
        DType::Bool => Buffer::Bool(elements::<u32>(bytes, n).into_iter().map(|word| word != 0).collect()),
    }
}

/// Returns the error of memory that the host cannot read or write.
fn not_mapped(error: &dyn fmt::Display) -> Diagnostic {
    let error = Diagnostic::new(format!("memory of the device cannot be mapped: {error}"));
    error.of_kind(ErrorKind::ResourceExhausted).help("the device may be lost: create a new session")
}

/// The commands of a device, recorded by its thread.
pub(super) struct CommandRecorder {
    pub(super) shared: Arc<Shared>,
    queue: wgpu::Queue,
    /// Buffers of the host for values that are read back.
    staging: Arc<BufferPool>,
    encoder: Option<wgpu::CommandEncoder>,
    /// The open pass of the encoder. It is dropped before the encoder is used otherwise.
    pass: Option<wgpu::ComputePass<'static>>,
    /// The number of commands since the last submission.
    n_commands: usize,
}

impl CommandRecorder {
    /// Runs jobs until the queue is dropped.
    fn run(&mut self, jobs: &mpsc::Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            let mut next = Some(job);
            while let Some(job) = next {
                // A panic of a step is resumed where its event is handled, and a caller notices
                // that its job has no result. The thread goes on.
                let _ = catch_unwind(AssertUnwindSafe(|| job(self)));
                next = jobs.try_recv().ok();
            }
            self.submit();
        }
    }

    /// Fails if the driver has reported an error.
    pub(super) fn check(&self) -> Result<()> {
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        failure.map_or(Ok(()), Err)
    }

    fn encoder(&mut self) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        let device = &self.shared.device;
        self.encoder.get_or_insert_with(|| device.create_command_encoder(&Default::default()))
    }

    /// Submits what is recorded.
    pub(super) fn submit(&mut self) {
        self.pass = None;
        if let Some(encoder) = self.encoder.take() {
            self.queue.submit([encoder.finish()]);
        }
        self.n_commands = 0;
    }

    /// Waits until the device has done everything.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.submit();
        let device = &self.shared.device;
        // wgpu panics if the device is lost.
        let done = catch_unwind(AssertUnwindSafe(|| device.poll(wgpu::PollType::wait_indefinitely())));
        if !matches!(done, Ok(Ok(_))) {
            fail(&self.shared.failure, lost(&"it does not answer"));
        }
        self.check()
    }

    /// Returns a tensor with any elements.
    pub(super) fn tensor(&mut self, n_bytes: u64) -> Result<Arc<GpuTensor>> {
        let shared = self.shared.clone();
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        shared.pool.tensor(n_bytes, shared.max_buffer, |size| self.buffer(size, usage, false)).map(Arc::new)
    }

    /// Creates a buffer. If there is no memory, frees what is not used and tries again.
    fn buffer(&mut self, size: u64, usage: wgpu::BufferUsages, mapped_at_creation: bool) -> Result<wgpu::Buffer> {
        for attempt in 0..2 {
            let device = &self.shared.device;
            let scopes = [wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation];
            let scopes = scopes.map(|filter| device.push_error_scope(filter));
            let description = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation };
            let buffer = device.create_buffer(&description);
            let [memory, validation] = scopes;
            // Scopes end in the reverse order.
            let errors = [pollster::block_on(validation.pop()), pollster::block_on(memory.pop())];
            let Some(error) = errors.into_iter().flatten().next() else { return Ok(buffer) };
            if attempt == 1 || !matches!(error, wgpu::Error::OutOfMemory { .. }) {
                return Err(of_driver(&error));
            }
            self.shared.pool.clear();
            self.staging.clear();
            self.finish()?;
        }
        unreachable!("the second attempt returns")
    }

    /// Copies a tensor to the device.
    pub(super) fn upload(&mut self, tensor: &HostTensor) -> Result<Arc<GpuTensor>> {
        let bytes = bytes_of(tensor.buffer());
        let to = self.tensor(bytes.len() as u64)?;
        if !bytes.is_empty() {
            let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
            let from = self.buffer(bytes.len() as u64, usage, true)?;
            match from.get_mapped_range_mut(..) {
                Ok(mut mapped) => mapped.copy_from_slice(&bytes),
                Err(error) => return Err(not_mapped(&error)),
            }
            from.unmap();
            self.encoder().copy_buffer_to_buffer(&from, 0, to.buffer(), 0, bytes.len() as u64);
            self.count();
        }
        Ok(to)
    }

    /// Copies a tensor to the host, after everything that is recorded.
    pub(super) fn download(&mut self, tensor: &GpuTensor, ty: &TensorType) -> Result<HostTensor> {
        let shape = ty.shape.known().expect("a tensor of a device has a known shape");
        let n_bytes = tensor.n_bytes();
        if n_bytes == 0 {
            return Ok(HostTensor::zeros(ty.dtype, shape));
        }
        let pool = self.staging.clone();
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = pool.tensor(n_bytes, self.shared.max_buffer, |size| self.buffer(size, usage, false))?;
        self.encoder().copy_buffer_to_buffer(tensor.buffer(), 0, staging.buffer(), 0, n_bytes);
        self.submit();
        let (mapped, is_mapped) = mpsc::channel();
        staging.buffer().map_async(wgpu::MapMode::Read, 0..n_bytes, move |outcome| {
            let _ = mapped.send(outcome);
        });
        self.finish()?;
        is_mapped.recv().map_err(|error| not_mapped(&error))?.map_err(|error| not_mapped(&error))?;
        let data = {
            let view = staging.buffer().get_mapped_range(0..n_bytes).map_err(|error| not_mapped(&error))?;
            of_bytes(ty.dtype, shape.iter().product(), &view)
        };
        staging.buffer().unmap();
        Ok(HostTensor::from_buffer(shape, data))
    }

    /// Copies a `bool` to the host, after everything that is recorded.
    pub(super) fn download_bool(&mut self, tensor: &GpuTensor) -> Result<bool> {
        let predicate = self.download(tensor, &TensorType::new(DType::Bool, []))?;
        Ok(predicate.data::<bool>()[0])
    }

    /// Sets all elements to zero.
    pub(super) fn clear(&mut self, tensor: &GpuTensor) {
        if tensor.n_bytes() > 0 {
            self.encoder().clear_buffer(tensor.buffer(), 0, Some(tensor.n_bytes()));
            self.count();
        }
    }

    /// Copies the elements of a tensor to another one of the same size.
    pub(super) fn copy(&mut self, from: &GpuTensor, to: &GpuTensor) {
        if from.n_bytes() > 0 {
            self.encoder().copy_buffer_to_buffer(from.buffer(), 0, to.buffer(), 0, from.n_bytes());
            self.count();
        }
    }

    /// Runs a shader on tensors, which are bound in order, with some parameters.
    pub(super) fn dispatch(
        &mut self,
        shader: &CompiledShader,
        tensors: &[Arc<GpuTensor>],
        workgroups: [u32; 3],
        parameters: &[u32],
    ) {
        let shared = self.shared.clone();
        let entries: Vec<wgpu::BindGroupEntry<'_>> = tensors
            .iter()
            .enumerate()
            .map(|(i, tensor)| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: tensor.buffer(),
                    offset: 0,
                    size: std::num::NonZeroU64::new(tensor.bound_bytes()),
                }),
            })
            .collect();
        let group = shared.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &shader.layout,
            entries: &entries,
        });
        if self.pass.is_none() {
            self.pass = Some(self.encoder().begin_compute_pass(&Default::default()).forget_lifetime());
        }
        let pass = self.pass.as_mut().expect("the pass is open");
        pass.set_pipeline(&shader.pipeline);
        pass.set_bind_group(0, &group, &[]);
        if !parameters.is_empty() {
            pass.set_immediates(0, bytemuck::cast_slice(parameters));
        }
        let [x, y, z] = workgroups;
        pass.dispatch_workgroups(x, y, z);
        self.count();
    }

    fn count(&mut self) {
        self.n_commands += 1;
        if self.n_commands >= MAX_COMMANDS {
            self.submit();
        }
    }
}
