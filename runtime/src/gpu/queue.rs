//! The thread of a device: it records commands, submits them, and reads values back.

use super::GpuAdapter;
use super::adapter::GpuCounters;
use super::memory::{BufferPool, GpuTensor};
#[cfg(feature = "testing")]
use super::modelled::ModelledQueue;
use super::shader::{CompiledShader, ShaderCache};
use super::swap::SwappableElements;
use super::upload::UploadBuffers;
use crate::device::gpu_support::SizeLimits;
use crate::device::no_threads;
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::{Buffer, DType, Diagnostic, ErrorKind, HostTensor, Result, TensorType};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

/// Work that the thread of a device has begun.
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Work for the thread of a device.
type Job = Box<dyn FnOnce(Rc<CommandRecorder>) -> Task + Send>;

/// The bytes of the stack of the thread of a device. A run of a program polls a future in another
/// for each of the up to 128 constructs around an operation, which take 100 KB each in a program
/// that is not optimized.
const THREAD_STACK: usize = 32 << 20;

/// How long the thread of a device waits for it before it looks for other jobs: at first, and at
/// most, with twice the time after each look.
const WAIT_SLICES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(1)];

/// The number of commands after which they are submitted, so that the device begins to work.
const MAX_COMMANDS: usize = 256;

/// The number of submissions after which a loop that needs no value of the device waits for it.
const MAX_SUBMITTED: u64 = 16;

/// The number of iterations after which it waits, also if they record little.
const MAX_ITERATIONS: usize = 4096;

/// The parts of a device that any thread may use.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) device: wgpu::Device,
    pub(super) shaders: ShaderCache,
    pub(super) limits: SizeLimits,
    /// Whether the driver computes on the CPU.
    pub(super) is_software: bool,
    /// The number of bindings of a shader.
    pub(super) max_bindings: usize,
    /// Whether work is recorded ahead of its predicates.
    pub(super) runs_ahead: bool,
    /// Whether a workgroup runs loops over small tensors by itself.
    pub(super) has_workgroup_loops: bool,
    /// Whether elements of stacks move to the host.
    pub(super) can_swap: bool,
    pub(super) counters: Arc<GpuCounters>,
    /// The largest number of bytes of a buffer.
    max_buffer: u64,
    /// The largest number of bytes of all tensors, if it is limited.
    pub(super) memory_budget: Option<u64>,
    name: DeviceName,
    pub(super) pool: Arc<BufferPool>,
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
        let optional =
            wgpu::Features::MAPPABLE_PRIMARY_BUFFERS | wgpu::Features::PIPELINE_CACHE | wgpu::Features::SHADER_I16;
        let features = wgpu::Features::IMMEDIATES | (adapter.wgpu().features() & optional);
        let description = wgpu::DeviceDescriptor {
            required_features: features,
            required_limits: limits.clone(),
            ..Default::default()
        };
        let opened = pollster::block_on(adapter.wgpu().request_device(&description));
        let (device, queue) = opened.map_err(|error| refused(&error))?;
        let failure: Arc<Mutex<Option<Diagnostic>>> = Arc::default();
        let report = failure.clone();
        device.on_uncaptured_error(Arc::new(move |error| fail(&report, of_driver(&error))));
        let report = failure.clone();
        device.set_device_lost_callback(move |_, message| fail(&report, lost(&message)));
        let shared = Arc::new(Shared {
            shaders: match adapter.shader_file() {
                Some((folder, file)) if features.contains(wgpu::Features::PIPELINE_CACHE) => {
                    ShaderCache::in_folder(&device, folder, &file)
                }
                _ => ShaderCache::default(),
            },
            limits: SizeLimits {
                max_bytes: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size),
                // Mesa's driver for CPUs ends all loops of a thread after 65,535 iterations. Other
                // systems take a device for lost if one shader runs for seconds.
                max_iterations: Some(if adapter.is_software() { 1 << 15 } else { 1 << 22 }),
                has_halves: features.contains(wgpu::Features::SHADER_I16),
            },
            is_software: adapter.is_software(),
            max_bindings: limits.max_storage_buffers_per_shader_stage as usize,
            runs_ahead: adapter.runs_ahead(),
            has_workgroup_loops: adapter.has_workgroup_loops(),
            can_swap: adapter.swaps() && features.contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS),
            counters: adapter.counters().clone(),
            max_buffer: limits.max_buffer_size,
            memory_budget: adapter.memory_budget(),
            name,
            pool: Arc::default(),
            failure,
            device,
        });
        #[cfg(feature = "testing")]
        adapter.counters().devices.lock().expect("no thread panics with the devices").push(Arc::downgrade(&shared));
        let (jobs, received) = mpsc::channel();
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name(name.to_string()).stack_size(THREAD_STACK);
        let started = thread.spawn(move || {
            Rc::new(CommandRecorder::new(of_thread.clone(), queue)).run(&received);
            of_thread.shaders.save();
        });
        let thread = started.map_err(|error| no_threads(format_args!("the thread of {name}"), error))?;
        Ok(GpuQueue { jobs: Some(jobs), thread: Some(thread), shared })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Sends a job, which begins after all earlier ones have begun.
    pub(super) fn send(&self, job: impl AsyncFnOnce(&CommandRecorder) + Send + 'static) {
        let jobs = self.jobs.as_ref().expect("the queue is not dropped");
        let job: Job = Box::new(move |recorder| Box::pin(async move { job(&recorder).await }));
        jobs.send(job).expect("the thread runs as long as the queue exists");
    }

    /// Sends a job and waits for its result.
    pub(super) fn call<T: Send + 'static>(
        &self,
        job: impl AsyncFnOnce(&CommandRecorder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (result, received) = mpsc::channel();
        self.send(async move |recorder| {
            let outcome = job(recorder).await;
            let outcome = outcome.and_then(|result| recorder.check().map(|()| result));
            // Nobody waits if the caller panicked.
            let _ = result.send(outcome);
        });
        let panicked = || Diagnostic::new("the driver of the device panicked").of_kind(ErrorKind::ResourceExhausted);
        received.recv().unwrap_or_else(|_| Err(panicked()))
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
pub(super) fn bytes_of(buffer: &Buffer) -> Cow<'_, [u8]> {
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
        Buffer::Bytes(_) => panic!("strings are never on a GPU"),
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
        DType::Bytes => panic!("strings are never on a GPU"),
    }
}

/// Returns the error of memory that the host cannot read or write.
fn not_mapped(error: &dyn fmt::Display) -> Diagnostic {
    let error = Diagnostic::new(format!("memory of the device cannot be mapped: {error}"));
    error.of_kind(ErrorKind::ResourceExhausted).help("the device may be lost: create a new session")
}

/// Runs a future to its end, also if that is a panic.
pub(super) async fn caught<T>(future: impl Future<Output = T>) -> std::thread::Result<T> {
    let mut future = std::pin::pin!(future);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// A message that the memory of a buffer can be read, or why not.
pub(super) type Mapped = mpsc::Receiver<std::result::Result<(), wgpu::BufferAsyncError>>;

/// The reason why a tensor has no memory.
enum MemoryError {
    OverBudget(Diagnostic),
    Other(Diagnostic),
}

/// Tensors on their way to the host.
#[derive(Default)]
pub(super) struct Readback {
    copies: Vec<StagedTensor>,
    /// The submission of the copies, unless there are none.
    submission: Option<Submission>,
}

/// Commands that were submitted.
#[derive(Clone)]
struct Submission {
    number: u64,
    index: wgpu::SubmissionIndex,
}

/// A copy of a tensor in memory that the host can map.
struct StagedTensor {
    ty: TensorType,
    staging: GpuTensor,
    /// Whether the memory is mapped, unless it has no bytes.
    is_mapped: Option<Mapped>,
}

impl Drop for StagedTensor {
    /// Ends the mapping, or the request for it: the pool has no mapped buffers.
    fn drop(&mut self) {
        let Some(is_mapped) = &self.is_mapped else { return };
        let is_pending = matches!(is_mapped.try_recv(), Err(TryRecvError::Empty));
        self.staging.buffer().unmap();
        if is_pending {
            // wgpu keeps the place of the request in its queue. It would grant the next request for
            // this buffer there, before the device has made the copy.
            self.staging.drop_buffer();
        }
    }
}

/// The number of workgroups of a dispatch.
pub(super) enum Workgroups<'a> {
    Direct([u32; 3]),
    /// Three words of a tensor, from an index on.
    Indirect(&'a GpuTensor, u64),
}

/// The commands of a device, recorded by its thread.
///
/// Work on the thread is asynchronous: while it waits for a value of the device, other work goes
/// on.
pub(super) struct CommandRecorder {
    pub(super) shared: Arc<Shared>,
    queue: wgpu::Queue,
    /// Buffers of the host for values that are read back.
    staging: Arc<BufferPool>,
    /// Buffers of the host for tensors that are copied to the device.
    uploads: RefCell<UploadBuffers>,
    /// Buffers of the host for elements of stacks.
    swapped: Arc<BufferPool>,
    pub(super) swappable: RefCell<SwappableElements>,
    open: RefCell<OpenCommands>,
    groups: RefCell<BindGroups>,
    /// The last submission, with its number from 1 on.
    last: RefCell<Option<Submission>>,
    /// The number of the last submission that the device has done, as far as is known.
    n_done: Cell<u64>,
    /// The submissions for which work waits.
    awaited: RefCell<Vec<Submission>>,
    /// The number of iterations of loops since then.
    n_iterations: Cell<usize>,
}

/// The bindings of shaders that were made for buffers of the pool. They keep these buffers, so they
/// are dropped when the pool drops buffers.
#[derive(Default)]
struct BindGroups {
    /// That of the pool.
    generation: u64,
    made: FxHashMap<BindGroupKey, wgpu::BindGroup>,
}

/// The layout of a shader, and the buffers with the bytes that are bound.
#[derive(PartialEq, Eq, Hash)]
struct BindGroupKey {
    layout: wgpu::BindGroupLayout,
    buffers: SmallVec<[(wgpu::Buffer, u64); 6]>,
}

/// The number of bindings that are kept.
const MAX_GROUPS: usize = 8192;

/// The commands since the last submission.
#[derive(Default)]
struct OpenCommands {
    encoder: Option<wgpu::CommandEncoder>,
    /// The open pass of the encoder. It is dropped before the encoder is used otherwise.
    pass: Option<wgpu::ComputePass<'static>>,
    n: usize,
}

impl OpenCommands {
    fn encoder(&mut self, device: &wgpu::Device) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        self.encoder.get_or_insert_with(|| device.create_command_encoder(&Default::default()))
    }
}

impl CommandRecorder {
    fn new(shared: Arc<Shared>, queue: wgpu::Queue) -> CommandRecorder {
        CommandRecorder {
            shared,
            queue,
            staging: Arc::default(),
            uploads: RefCell::default(),
            swapped: Arc::default(),
            swappable: RefCell::default(),
            open: RefCell::default(),
            groups: RefCell::default(),
            last: RefCell::default(),
            n_done: Cell::new(0),
            awaited: RefCell::default(),
            n_iterations: Cell::new(0),
        }
    }

    /// Runs jobs until the queue is dropped.
    fn run(self: Rc<Self>, jobs: &mpsc::Receiver<Job>) {
        let mut tasks: Vec<Task> = Vec::new();
        loop {
            if tasks.is_empty() {
                self.submit();
                let Ok(job) = jobs.recv() else { return };
                tasks.push(job(self.clone()));
            }
            tasks.extend(jobs.try_iter().map(|job| job(self.clone())));
            // Tasks are few, and asking them whether they can go on is cheap. Those that cannot say
            // what they wait for.
            self.awaited.borrow_mut().clear();
            let mut cx = Context::from_waker(Waker::noop());
            tasks.retain_mut(|task| {
                // A panic of a step is resumed where its event is handled, and a caller notices
                // that its job has no result. The thread goes on.
                let poll = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut cx)));
                matches!(poll, Ok(Poll::Pending))
            });
            if !tasks.is_empty() {
                tasks.extend(self.wait(jobs).map(|job| job(self.clone())));
            }
        }
    }

    /// Submits what is recorded, and blocks until the device has done the first submission that is
    /// awaited, or all of them if none is, or until there is another job, which it returns.
    fn wait(&self, jobs: &mpsc::Receiver<Job>) -> Option<Job> {
        self.submit();
        let awaited = self.awaited.borrow().iter().min_by_key(|submission| submission.number).cloned();
        let submission = awaited.or_else(|| self.last.borrow().clone())?;
        let mut slice = WAIT_SLICES[0];
        while !self.is_done(&submission, Some(slice)) {
            if let Ok(job) = jobs.try_recv() {
                return Some(job);
            }
            slice = (2 * slice).min(WAIT_SLICES[1]);
        }
        None
    }

    /// Submits what is recorded, and blocks until the device has done all of it.
    fn wait_for_all(&self) {
        self.submit();
        let last = self.last.borrow().clone();
        last.map(|last| self.is_done(&last, None));
    }

    /// Blocks until the device has done a submission, or for a time. Returns whether it has done
    /// it, or never will.
    fn is_done(&self, submission: &Submission, timeout: Option<Duration>) -> bool {
        let poll = wgpu::PollType::Wait { submission_index: Some(submission.index.clone()), timeout };
        // wgpu panics if the device is lost.
        match catch_unwind(AssertUnwindSafe(|| self.shared.device.poll(poll))) {
            Ok(Err(wgpu::PollError::Timeout)) => return false,
            Ok(Ok(_)) => {}
            _ => fail(&self.shared.failure, lost(&"it does not answer")),
        }
        self.n_done.set(submission.number);
        self.n_iterations.set(0);
        true
    }

    /// Waits until the callback of a submission has sent a message, while other work goes on.
    async fn received<T>(&self, message: &mpsc::Receiver<T>, submission: &Submission) -> Result<T> {
        poll_fn(|_| match message.try_recv() {
            Ok(message) => Poll::Ready(Ok(message)),
            Err(TryRecvError::Empty) => match self.check() {
                Err(error) => Poll::Ready(Err(error)),
                Ok(()) => {
                    self.awaited.borrow_mut().push(submission.clone());
                    Poll::Pending
                }
            },
            Err(TryRecvError::Disconnected) => Poll::Ready(Err(lost(&"it does not answer"))),
        })
        .await
    }

    /// Fails if the driver has reported an error.
    pub(super) fn check(&self) -> Result<()> {
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        failure.map_or(Ok(()), Err)
    }

    /// Records a command outside of compute passes.
    fn record(&self, command: impl FnOnce(&mut wgpu::CommandEncoder)) {
        command(self.open.borrow_mut().encoder(&self.shared.device));
        self.count();
    }

    /// Submits what is recorded.
    pub(super) fn submit(&self) {
        let open = std::mem::take(&mut *self.open.borrow_mut());
        drop(open.pass);
        if let Some(encoder) = open.encoder {
            let index = self.queue.submit([encoder.finish()]);
            let number = self.n_submitted() + 1;
            *self.last.borrow_mut() = Some(Submission { number, index });
            self.uploads.borrow_mut().submitted();
        }
    }

    fn n_submitted(&self) -> u64 {
        self.last.borrow().as_ref().map_or(0, |last| last.number)
    }

    /// Called for each iteration of a loop: waits for the device if the loop is far ahead of it, so
    /// that other work goes on.
    pub(super) async fn keep_pace(&self) -> Result<()> {
        self.n_iterations.set(self.n_iterations.get() + 1);
        let is_ahead =
            self.n_submitted() - self.n_done.get() > MAX_SUBMITTED || self.n_iterations.get() > MAX_ITERATIONS;
        if is_ahead { self.finish().await } else { Ok(()) }
    }

    /// Waits until the device has done everything that is recorded.
    pub(super) async fn finish(&self) -> Result<()> {
        self.submit();
        let Some(last) = self.last.borrow().clone() else { return self.check() };
        let (done, is_done) = mpsc::channel();
        self.queue.on_submitted_work_done(move || {
            let _ = done.send(());
        });
        self.received(&is_done, &last).await?;
        self.check()
    }

    /// Returns a tensor with any elements.
    pub(super) fn tensor(&self, n_bytes: u64) -> Result<Arc<GpuTensor>> {
        self.memory(n_bytes).map(Arc::new)
    }

    fn memory(&self, n_bytes: u64) -> Result<GpuTensor> {
        let shared = &self.shared;
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::INDIRECT
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        loop {
            let tensor = shared.pool.tensor(n_bytes, shared.max_buffer, |size| match self.room_for(size) {
                Ok(()) => self.buffer(size, usage, false).map_err(MemoryError::Other),
                Err(error) => Err(MemoryError::OverBudget(error)),
            });
            match tensor {
                Ok(tensor) => {
                    shared.counters.peak_bytes.fetch_max(shared.pool.n_in_use(), Ordering::Relaxed);
                    return Ok(tensor);
                }
                Err(MemoryError::OverBudget(_)) if self.make_room()? => {}
                Err(MemoryError::OverBudget(error) | MemoryError::Other(error)) => return Err(error),
            }
        }
    }

    /// Returns memory of the host that the device reads and writes.
    pub(super) fn host_memory(&self, n_bytes: u64) -> Result<GpuTensor> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        self.swapped.tensor(n_bytes, self.shared.max_buffer, |size| self.buffer(size, usage, false))
    }

    /// Fails if one more buffer exceeds the budget of the device, also without those that are free.
    fn room_for(&self, size: u64) -> Result<()> {
        let Some(budget) = self.shared.memory_budget else { return Ok(()) };
        let pool = &self.shared.pool;
        if pool.n_allocated() + size > budget {
            self.drop_free_buffers();
        }
        let n_allocated = pool.n_allocated();
        if n_allocated + size <= budget {
            return Ok(());
        }
        let message =
            format!("a buffer of {size} bytes exceeds the budget of {budget} bytes, of which {n_allocated} are in use");
        let error = Diagnostic::new(message).of_kind(ErrorKind::ResourceExhausted);
        Err(error.help("use smaller batches or a larger budget, or place a part of the graph on a CPU"))
    }

    /// Drops the buffers that no tensor has, and their bindings.
    fn drop_free_buffers(&self) {
        self.shared.pool.clear();
        self.groups.borrow_mut().made.clear();
    }

    /// Creates a buffer. If there is no memory, frees what is not used and tries again, then swaps
    /// all elements of stacks.
    fn buffer(&self, size: u64, usage: wgpu::BufferUsages, mapped_at_creation: bool) -> Result<wgpu::Buffer> {
        for attempt in 0..3 {
            let device = &self.shared.device;
            let scopes = [wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation];
            let scopes = scopes.map(|filter| device.push_error_scope(filter));
            let description = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation };
            let buffer = device.create_buffer(&description);
            let [memory, validation] = scopes;
            // Scopes end in the reverse order.
            let errors = [pollster::block_on(validation.pop()), pollster::block_on(memory.pop())];
            let Some(error) = errors.into_iter().flatten().next() else {
                self.shared.counters.created_buffers.fetch_add(1, Ordering::Relaxed);
                return Ok(buffer);
            };
            if attempt == 2 || !matches!(error, wgpu::Error::OutOfMemory { .. }) {
                return Err(of_driver(&error));
            }
            if attempt == 1 {
                let is_of_host = usage.contains(wgpu::BufferUsages::MAP_READ);
                while !is_of_host && self.make_room()? {}
            }
            self.drop_free_buffers();
            self.staging.clear();
            self.wait_for_all();
            self.uploads.borrow_mut().clear();
            self.check()?;
        }
        unreachable!("the last attempt returns")
    }

    /// Copies a tensor to the device.
    pub(super) fn upload(&self, tensor: &HostTensor) -> Result<Arc<GpuTensor>> {
        let bytes = bytes_of(tensor.buffer());
        let mut to = self.memory(bytes.len() as u64)?;
        to.remember(tensor);
        if !bytes.is_empty() {
            let (n_bytes, size) = (bytes.len() as u64, UploadBuffers::size(bytes.len() as u64));
            let kept = self.uploads.borrow_mut().take(size);
            let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
            let from = kept.map_or_else(|| self.buffer(size, usage, true), Ok)?;
            match from.get_mapped_range_mut(..n_bytes) {
                Ok(mut mapped) => mapped.copy_from_slice(&bytes),
                Err(error) => return Err(not_mapped(&error)),
            }
            from.unmap();
            self.record(|encoder| encoder.copy_buffer_to_buffer(&from, 0, to.buffer(), 0, n_bytes));
            self.uploads.borrow_mut().copied(from);
        }
        Ok(Arc::new(to))
    }

    /// Copies tensors to the host, after everything that is recorded.
    pub(super) async fn download(&self, tensors: &[(&GpuTensor, &TensorType)]) -> Result<Vec<HostTensor>> {
        self.end_download(self.begin_download(tensors)?).await
    }

    /// Records copies of tensors to the host, after everything that is recorded, and submits them.
    pub(super) fn begin_download(&self, tensors: &[(&GpuTensor, &TensorType)]) -> Result<Readback> {
        let mut copies = Vec::new();
        for &(tensor, ty) in tensors {
            let n_bytes = tensor.n_bytes();
            let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
            let staging =
                self.staging.tensor(n_bytes, self.shared.max_buffer, |size| self.buffer(size, usage, false))?;
            if n_bytes > 0 {
                self.record(|encoder| encoder.copy_buffer_to_buffer(tensor.buffer(), 0, staging.buffer(), 0, n_bytes));
            }
            copies.push((staging, ty.clone()));
        }
        if copies.is_empty() {
            return Ok(Readback::default());
        }
        self.shared.counters.readbacks.fetch_add(1, Ordering::Relaxed);
        self.submit();
        let with_map = |(staging, ty)| {
            let is_mapped = self.map(&staging);
            StagedTensor { ty, staging, is_mapped }
        };
        let submission = self.last.borrow().clone();
        Ok(Readback { copies: copies.into_iter().map(with_map).collect(), submission })
    }

    /// Returns whether the device has made the copies of tensors, or never will.
    pub(super) fn has_arrived(&self, readback: &Readback) -> bool {
        readback.submission.as_ref().is_none_or(|submission| self.is_done(submission, Some(Duration::ZERO)))
    }

    /// Waits for copies of tensors.
    pub(super) async fn end_download(&self, readback: Readback) -> Result<Vec<HostTensor>> {
        let mut downloaded = Vec::new();
        for copy in readback.copies {
            let shape = copy.ty.shape.known().expect("a tensor of a device has a known shape");
            let Some(is_mapped) = &copy.is_mapped else {
                downloaded.push(HostTensor::zeros(copy.ty.dtype, shape));
                continue;
            };
            let submission = readback.submission.as_ref().expect("the copies were submitted");
            self.received(is_mapped, submission).await?.map_err(|error| not_mapped(&error))?;
            let (buffer, n_bytes) = (copy.staging.buffer(), copy.staging.n_bytes());
            let view = buffer.get_mapped_range(0..n_bytes).map_err(|error| not_mapped(&error))?;
            let data = of_bytes(copy.ty.dtype, shape.iter().product(), &view);
            drop(view);
            downloaded.push(HostTensor::from_buffer(shape, data));
        }
        Ok(downloaded)
    }

    /// Starts mapping a buffer for reading, unless it has no bytes.
    fn map(&self, staging: &GpuTensor) -> Option<Mapped> {
        (staging.n_bytes() > 0).then(|| {
            let (mapped, is_mapped) = mpsc::channel();
            staging.buffer().map_async(wgpu::MapMode::Read, 0..staging.n_bytes(), move |outcome| {
                let _ = mapped.send(outcome);
            });
            is_mapped
        })
    }

    /// Records a command for the model of separate queues.
    #[cfg(feature = "testing")]
    fn trace<'t>(&self, queue: ModelledQueue, n_bytes: u64, tensors: impl IntoIterator<Item = &'t GpuTensor>) {
        let mut trace = self.shared.counters.trace.lock().expect("no thread panics with the trace");
        trace.push(queue, n_bytes, tensors.into_iter().map(GpuTensor::buffer));
    }

    /// Sets all elements to zero.
    pub(super) fn clear(&self, tensor: &GpuTensor) {
        if tensor.n_bytes() > 0 {
            self.record(|encoder| encoder.clear_buffer(tensor.buffer(), 0, Some(tensor.n_bytes())));
        }
    }

    /// Copies the elements of a tensor to another one of the same size.
    pub(super) fn copy(&self, from: &GpuTensor, to: &GpuTensor) {
        self.copy_words([from, to], [0, 0], from.n_bytes() / 4);
    }

    /// Copies the elements of a tensor to memory of the host.
    pub(super) fn copy_to_host(&self, from: &GpuTensor, to: &GpuTensor) {
        #[cfg(feature = "testing")]
        self.trace(ModelledQueue::ToHost, from.n_bytes(), [from, to]);
        self.record_copy([from, to], [0, 0], from.n_bytes() / 4);
    }

    /// Copies the elements of a tensor from memory of the host.
    pub(super) fn copy_to_device(&self, from: &GpuTensor, to: &GpuTensor) {
        #[cfg(feature = "testing")]
        self.trace(ModelledQueue::ToDevice, from.n_bytes(), [from, to]);
        self.record_copy([from, to], [0, 0], from.n_bytes() / 4);
    }

    /// Copies some words of a tensor to another one, each from an index on.
    pub(super) fn copy_words(&self, [from, to]: [&GpuTensor; 2], starts: [usize; 2], n: u64) {
        #[cfg(feature = "testing")]
        self.trace(ModelledQueue::Compute, 8 * n, [from, to]);
        self.record_copy([from, to], starts, n);
    }

    fn record_copy(&self, [from, to]: [&GpuTensor; 2], starts: [usize; 2], n: u64) {
        if n > 0 {
            let [start, target] = starts.map(|i| 4 * i as u64);
            self.record(|encoder| encoder.copy_buffer_to_buffer(from.buffer(), start, to.buffer(), target, 4 * n));
        }
    }

    /// Runs a shader on tensors, which are bound in order, with some parameters.
    pub(super) fn dispatch(
        &self,
        shader: &CompiledShader,
        tensors: &[Arc<GpuTensor>],
        workgroups: Workgroups<'_>,
        parameters: &[u32],
    ) {
        #[cfg(feature = "testing")]
        {
            let n_bytes = tensors.iter().map(|tensor| tensor.n_bytes()).sum();
            self.trace(ModelledQueue::Compute, n_bytes, tensors.iter().map(|tensor| &**tensor));
        }
        let device = &self.shared.device;
        let group = self.group(shader, tensors);
        let mut open = self.open.borrow_mut();
        if open.pass.is_none() {
            open.pass = Some(open.encoder(device).begin_compute_pass(&Default::default()).forget_lifetime());
        }
        let pass = open.pass.as_mut().expect("the pass is open");
        pass.set_pipeline(&shader.pipeline);
        pass.set_bind_group(0, &group, &[]);
        if !parameters.is_empty() {
            pass.set_immediates(0, bytemuck::cast_slice(parameters));
        }
        match workgroups {
            Workgroups::Direct([x, y, z]) => pass.dispatch_workgroups(x, y, z),
            Workgroups::Indirect(tensor, word) => pass.dispatch_workgroups_indirect(tensor.buffer(), 4 * word),
        }
        drop(open);
        self.count();
    }

    /// Returns the bindings of a shader to tensors, made before or new.
    fn group(&self, shader: &CompiledShader, tensors: &[Arc<GpuTensor>]) -> wgpu::BindGroup {
        let generation = self.shared.pool.generation();
        let mut groups = self.groups.borrow_mut();
        if groups.generation != generation || groups.made.len() >= MAX_GROUPS {
            *groups = BindGroups { generation, made: FxHashMap::default() };
        }
        let key = BindGroupKey {
            layout: shader.layout.clone(),
            buffers: tensors.iter().map(|tensor| (tensor.buffer().clone(), tensor.bound_bytes())).collect(),
        };
        let made = groups.made.entry(key);
        made.or_insert_with(|| self.new_group(shader, tensors)).clone()
    }

    fn new_group(&self, shader: &CompiledShader, tensors: &[Arc<GpuTensor>]) -> wgpu::BindGroup {
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
        self.shared.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &shader.layout,
            entries: &entries,
        })
    }

    fn count(&self) {
        let n = {
            let mut open = self.open.borrow_mut();
            open.n += 1;
            open.n
        };
        if n >= MAX_COMMANDS {
            self.submit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::adapter::adapter_for_test;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_job_begins_while_the_thread_waits_for_the_device() {
        let Some(adapter) = adapter_for_test() else { return };
        let queue = GpuQueue::open("/gpu:0".parse().unwrap(), &adapter).unwrap();
        // The device may have done a few commands before the second job comes.
        let begins = |n_commands: usize| {
            let (waits, is_waiting) = mpsc::channel();
            let ended = Arc::new(AtomicBool::new(false));
            let has_ended = ended.clone();
            queue.send(async move |recorder| {
                let tensor = recorder.tensor(1 << 22).unwrap();
                (0..n_commands).for_each(|_| recorder.clear(&tensor));
                waits.send(()).unwrap();
                recorder.finish().await.unwrap();
                ended.store(true, Ordering::SeqCst);
            });
            is_waiting.recv().unwrap();
            queue.call(async move |_| Ok(!has_ended.load(Ordering::SeqCst))).unwrap()
        };
        assert!([1, 10, 100, 1000, 10_000].into_iter().any(begins));
    }

    #[test]
    fn a_download_that_nobody_waits_for_leaves_later_ones_alone() {
        let Some(adapter) = adapter_for_test() else { return };
        let queue = GpuQueue::open("/gpu:0".parse().unwrap(), &adapter).unwrap();
        let ended = AtomicBool::new(false);
        let download_all = || {
            queue.call(async |recorder| {
                let [from, to] = [recorder.tensor(1 << 20)?, recorder.tensor(1 << 20)?];
                let word = TensorType::new(DType::U32, []);
                // The device still works when the first download is dropped and the second begins.
                let download = |value: u32, n_copies: usize| {
                    let value = recorder.upload(&HostTensor::scalar(value))?;
                    (0..n_copies).for_each(|_| recorder.copy(&from, &to));
                    recorder.begin_download(&[(&value, &word)])
                };
                for value in 0..3000 {
                    drop(download(2 * value, 4)?);
                    let known = recorder.end_download(download(2 * value + 1, 16)?).await?;
                    assert_eq!(known[0].data::<u32>(), [2 * value + 1]);
                }
                Ok(())
            })
        };
        let downloaded = std::thread::scope(|scope| {
            // Each other job lets the thread look whether copies have arrived.
            scope.spawn(|| {
                while !ended.load(Ordering::SeqCst) {
                    queue.call(async |_| Ok(())).unwrap();
                }
            });
            let downloaded = download_all();
            ended.store(true, Ordering::SeqCst);
            downloaded
        });
        downloaded.unwrap();
    }
}
