//! The adapters of this machine.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device that wgpu can open: a GPU, or a driver that computes on the CPU.
///
/// ```no_run
/// for adapter in anabranch::gpu_adapters() {
///     println!("{adapter}");
/// }
/// ```
#[derive(Clone)]
pub struct GpuAdapter {
    adapter: wgpu::Adapter,
    info: wgpu::AdapterInfo,
    memory_budget: Option<u64>,
    runs_ahead: bool,
    has_workgroup_loops: bool,
    swaps: bool,
    shader_cache: Option<PathBuf>,
    /// Counters of the devices that were opened with the adapter. Clones share them.
    counters: Arc<GpuCounters>,
}

/// Counters of the devices of an adapter.
#[derive(Debug, Default)]
pub(super) struct GpuCounters {
    /// The number of times that values were read back.
    pub(super) readbacks: AtomicU64,
    /// The most bytes that tensors of a device have had.
    pub(super) peak_bytes: AtomicU64,
    /// The number of buffers that were created.
    pub(super) created_buffers: AtomicU64,
    /// The bytes of all copies of saved values to the host.
    pub(super) swapped_bytes: AtomicU64,
    /// The bytes of all copies of saved values that came back ahead of their use.
    pub(super) ahead_bytes: AtomicU64,
    /// The commands of the devices, for a model of their time.
    #[cfg(feature = "testing")]
    pub(super) trace: std::sync::Mutex<super::modelled::CommandTrace>,
    /// The devices, which tests destroy.
    #[cfg(feature = "testing")]
    pub(super) devices: std::sync::Mutex<Vec<std::sync::Weak<super::queue::Shared>>>,
}

impl GpuAdapter {
    /// Returns the name, as the driver reports it.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Returns the name and version of the driver.
    pub fn driver(&self) -> String {
        format!("{} {}", self.info.driver, self.info.driver_info).trim().to_owned()
    }

    /// Returns the interface through which the device is used: `Vulkan`, `Metal` or `Dx12`.
    pub fn backend(&self) -> String {
        format!("{:?}", self.info.backend)
    }

    /// Returns whether the driver computes on the CPU.
    pub fn is_software(&self) -> bool {
        self.info.device_type == wgpu::DeviceType::Cpu
    }

    /// Returns the largest number of bytes of a tensor.
    pub fn max_tensor_bytes(&self) -> u64 {
        let limits = self.adapter.limits();
        limits.max_storage_buffer_binding_size.min(limits.max_buffer_size)
    }

    /// Returns whether the device stores 16-bit floats. Otherwise, a CPU runs what computes with
    /// them.
    pub fn has_halves(&self) -> bool {
        self.adapter.features().contains(wgpu::Features::SHADER_I16)
    }

    /// Limits the bytes of the tensors of a device that is opened with the returned adapter.
    ///
    /// Each tensor counts with the size of its buffer, which is up to a quarter larger and at least
    /// 256 bytes. If a step uses three quarters of them, tensors that loops have saved for their
    /// gradients begin to move to the memory of the host. They come back before they are used, as
    /// far as there is room. The matmuls of all iterations of a loop become one only if its result
    /// has at most a sixteenth of the budget, which may change how sums are rounded. A step that
    /// needs more still fails, and later steps can use what it frees. Without a budget, the driver
    /// decides.
    #[must_use]
    pub fn with_memory_budget(self, bytes: u64) -> GpuAdapter {
        GpuAdapter { memory_budget: Some(bytes), ..self }
    }

    /// Keeps the shaders that the driver has compiled in a folder, so that later processes need not
    /// compile them again.
    ///
    /// The folder is created when the first device is closed, and holds a file for each model of
    /// device. It must be one to which no other user can write, since drivers trust their files.
    /// Drivers that keep nothing, such as those of Metal and DX12, ignore it.
    #[must_use]
    pub fn with_shader_cache(self, folder: impl Into<PathBuf>) -> GpuAdapter {
        GpuAdapter { shader_cache: Some(folder.into()), ..self }
    }

    /// Returns the folder and the name of the file of compiled shaders, if there is one.
    pub(super) fn shader_file(&self) -> Option<(&Path, String)> {
        self.shader_cache.as_deref().zip(wgpu::util::pipeline_cache_key(&self.info))
    }

    /// Lets the host decide all branches and loops of a device that is opened with the returned
    /// adapter: each predicate that depends on data is read back before work goes on.
    ///
    /// By default, work is recorded ahead of such predicates, which is faster. The results are the
    /// same.
    #[must_use]
    pub fn with_predicates_on_host(self) -> GpuAdapter {
        GpuAdapter { runs_ahead: false, has_workgroup_loops: false, ..self }
    }

    /// Lets the loops over small tensors of a device that is opened with the returned adapter run
    /// shader by shader.
    ///
    /// By default, one workgroup runs all iterations of a loop whose iterations are little work, in
    /// one shader. The results are the same up to the order in which matmuls add.
    #[must_use]
    pub fn without_workgroup_loops(self) -> GpuAdapter {
        GpuAdapter { has_workgroup_loops: false, ..self }
    }

    /// Returns how often the devices that were opened with this adapter or its clones have read
    /// values back: outputs, failed checks, and predicates that the host decides. Work waits for
    /// each of them.
    ///
    /// ```
    /// use anabranch::prelude::*;
    /// use anabranch::{Session, gpu_adapters};
    ///
    /// let Some(adapter) = gpu_adapters().into_iter().next() else { return Ok(()) };
    /// let session = Session::builder().gpu(&adapter).device("/gpu:0").build()?;
    /// let f = session.function(|x: Tensor| x.exp())?;
    /// f.call(1.0)?;
    /// assert_eq!(adapter.readbacks(), 1);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn readbacks(&self) -> u64 {
        self.counters.readbacks.load(Ordering::Relaxed)
    }

    /// Returns the most bytes that the tensors of one of these devices have had at a time.
    pub fn peak_bytes(&self) -> u64 {
        self.counters.peak_bytes.load(Ordering::Relaxed)
    }

    /// Returns how many buffers these devices have created: for tensors, and for copies from and to
    /// the host. A step that is like the one before creates none.
    pub fn created_buffers(&self) -> u64 {
        self.counters.created_buffers.load(Ordering::Relaxed)
    }

    /// Returns the bytes that have moved to the memory of the host because of a
    /// [budget](GpuAdapter::with_memory_budget), or since a device had no memory left.
    pub fn swapped_bytes(&self) -> u64 {
        self.counters.swapped_bytes.load(Ordering::Relaxed)
    }

    /// Destroys the devices that were opened with the adapter, as if the driver had ended them.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn lose_devices(&self) {
        let mut devices = self.counters.devices.lock().expect("no thread panics with the devices");
        devices.drain(..).filter_map(|shared| shared.upgrade()).for_each(|shared| shared.device.destroy());
    }

    /// Returns the bytes of the saved values that came back to the device before they were used.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn ahead_bytes(&self) -> u64 {
        self.counters.ahead_bytes.load(Ordering::Relaxed)
    }

    /// Keeps saved values in the memory of the device, whatever its budget is.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn without_swapping(self) -> GpuAdapter {
        GpuAdapter { swaps: false, ..self }
    }

    /// Records the commands of the devices that were opened with the adapter while `f` runs.
    /// Returns the times that these commands take on a modelled device.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn modelled(&self, device: &crate::SimulatedDevice, f: impl FnOnce()) -> super::ModelledTimes {
        let trace = || self.counters.trace.lock().expect("no thread panics with the trace");
        trace().start();
        f();
        trace().stop(device)
    }

    pub(super) fn swaps(&self) -> bool {
        self.swaps
    }

    pub(super) fn counters(&self) -> &Arc<GpuCounters> {
        &self.counters
    }

    pub(super) fn runs_ahead(&self) -> bool {
        let flags = self.adapter.get_downlevel_capabilities().flags;
        self.runs_ahead && flags.contains(wgpu::DownlevelFlags::INDIRECT_EXECUTION)
    }

    pub(super) fn has_workgroup_loops(&self) -> bool {
        self.has_workgroup_loops
    }

    pub(crate) fn memory_budget(&self) -> Option<u64> {
        self.memory_budget
    }

    /// Returns why the device cannot be used, if it cannot.
    pub(super) fn missing(&self) -> Option<&'static str> {
        let limits = self.adapter.limits();
        if !self.adapter.features().contains(wgpu::Features::IMMEDIATES) || limits.max_immediate_size < 128 {
            Some("it has no immediates of 128 bytes")
        } else if limits.max_compute_invocations_per_workgroup < 256 {
            Some("its workgroups have less than 256 threads")
        } else if limits.max_storage_buffers_per_shader_stage < 8 {
            Some("its shaders have less than 8 buffers")
        } else {
            None
        }
    }

    pub(super) fn wgpu(&self) -> &wgpu::Adapter {
        &self.adapter
    }
}

impl fmt::Display for GpuAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name(), self.backend(), self.driver())
    }
}

impl fmt::Debug for GpuAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the first adapter, if this machine has one, as it must with `ANABRANCH_GPU`.
#[cfg(test)]
pub(super) fn adapter_for_test() -> Option<GpuAdapter> {
    let adapter = gpu_adapters().into_iter().next();
    assert!(adapter.is_some() || std::env::var_os("ANABRANCH_GPU").is_none(), "this machine has no adapter");
    adapter
}

/// Returns the adapters of this machine, GPUs before drivers that compute on the CPU.
pub fn gpu_adapters() -> Vec<GpuAdapter> {
    let mut description = wgpu::InstanceDescriptor::new_without_display_handle();
    // Validation of shaders is not optional. That of indirect dispatches would double their number;
    // their workgroups are copies of counts that were checked (`ahead.rs`).
    description.flags = wgpu::InstanceFlags::empty();
    let instance = wgpu::Instance::new(description);
    let found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    let mut adapters: Vec<GpuAdapter> = found
        .into_iter()
        .map(|adapter| GpuAdapter {
            info: adapter.get_info(),
            adapter,
            memory_budget: None,
            runs_ahead: true,
            has_workgroup_loops: true,
            swaps: true,
            shader_cache: None,
            counters: Arc::default(),
        })
        .collect();
    adapters.sort_by_key(|adapter| match adapter.info.device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    adapters
}
