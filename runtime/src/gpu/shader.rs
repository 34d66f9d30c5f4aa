//! Compiled shaders, and the file in which a driver keeps them between processes.

use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use rustc_hash::FxHasher;
use std::collections::HashMap;
use std::fs;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The bytes of the parameters that a dispatch passes to its shader, at most.
const IMMEDIATES: u32 = 128;

/// A compiled shader.
#[derive(Debug)]
pub(super) struct CompiledShader {
    pub(super) pipeline: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
}

/// The shaders compiled for a device, by their text.
#[derive(Debug, Default)]
pub(super) struct ShaderCache {
    compiled: Mutex<CompiledShaders>,
    file: Option<ShaderFile>,
}

#[derive(Debug, Default)]
struct CompiledShaders {
    /// A shader is dropped with the last program that runs it.
    by_text: HashMap<String, Weak<CompiledShader>>,
    /// The layouts of shaders, which they share: a change of the layout between two dispatches is
    /// work for wgpu and the driver.
    layouts: HashMap<LayoutKey, ShaderLayout>,
}

/// The properties of shaders that share a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LayoutKey {
    n_inputs: usize,
    n_outputs: usize,
    has_parameters: bool,
}

#[derive(Clone, Debug)]
struct ShaderLayout {
    group: wgpu::BindGroupLayout,
    pipeline: wgpu::PipelineLayout,
}

impl ShaderLayout {
    fn new(device: &wgpu::Device, key: LayoutKey) -> ShaderLayout {
        let entries: Vec<wgpu::BindGroupLayoutEntry> = (0..key.n_inputs + key.n_outputs)
            .map(|i| wgpu::BindGroupLayoutEntry {
                binding: i as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: i < key.n_inputs },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let group =
            device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
        let pipeline = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&group)],
            // wgpu sets all of them to zero when the layout changes.
            immediate_size: if key.has_parameters { IMMEDIATES } else { 0 },
        });
        ShaderLayout { group, pipeline }
    }
}

/// A file of shaders that a driver has compiled.
#[derive(Debug)]
struct ShaderFile {
    cache: wgpu::PipelineCache,
    path: PathBuf,
}

/// Returns the checksum with which a file begins.
fn checksum(data: &[u8]) -> [u8; 8] {
    let mut hasher = FxHasher::default();
    hasher.write(data);
    hasher.finish().to_le_bytes()
}

impl ShaderFile {
    /// Opens the file of a device in a folder. A file that is missing or damaged is an empty one.
    fn open(device: &wgpu::Device, folder: &Path, name: &str) -> ShaderFile {
        let path = folder.join(name);
        let stored = fs::read(&path).unwrap_or_default();
        let data = stored.split_first_chunk().filter(|(sum, data)| **sum == checksum(data)).map(|(_, data)| data);
        let description = wgpu::PipelineCacheDescriptor { label: None, data, fallback: true };
        // SAFETY: the data came from `get_data`: `save` alone writes files of this form, and one
        // that is damaged has another checksum. `GpuAdapter::with_shader_cache` asks for a folder
        // to which nobody else writes. wgpu and the driver check whether it is theirs.
        let cache = unsafe { device.create_pipeline_cache(&description) };
        ShaderFile { cache, path }
    }

    /// Writes the file. The next process compiles again if that fails.
    fn save(&self) {
        let Some(data) = self.cache.get_data() else { return };
        let stored = [&checksum(&data)[..], &data].concat();
        if fs::read(&self.path).is_ok_and(|old| old == stored) {
            return;
        }
        // Another process may read the file, or write it, too.
        let new = self.path.with_extension(std::process::id().to_string());
        let folder = self.path.parent().expect("the file is in a folder");
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&new, stored));
        if written.and_then(|()| fs::rename(&new, &self.path)).is_err() {
            let _ = fs::remove_file(&new);
        }
    }
}

impl ShaderCache {
    /// Returns a cache that begins with what earlier processes have compiled, in a file of this
    /// name in a folder.
    pub(super) fn in_folder(device: &wgpu::Device, folder: &Path, name: &str) -> ShaderCache {
        ShaderCache { file: Some(ShaderFile::open(device, folder, name)), ..ShaderCache::default() }
    }

    /// Writes what was compiled to the file of the cache, if it has one.
    pub(super) fn save(&self) {
        if let Some(file) = &self.file {
            file.save();
        }
    }

    /// Returns a shader with the entry point `main`, whose bindings are the inputs and then the
    /// outputs. Compiles it at the first request.
    ///
    /// # Errors
    /// Fails if the driver does not accept the shader.
    pub(super) fn get(
        &self,
        device: &wgpu::Device,
        code: String,
        [n_inputs, n_outputs]: [usize; 2],
    ) -> Result<Arc<CompiledShader>> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shader) = compiled.by_text.get(&code).and_then(Weak::upgrade) {
            return Ok(shader);
        }
        compiled.by_text.retain(|_, shader| shader.strong_count() > 0);
        let filters = [wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation];
        let scopes = filters.map(|filter| device.push_error_scope(filter));
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(code.as_str().into()),
        });
        let key = LayoutKey { n_inputs, n_outputs, has_parameters: code.contains("var<immediate>") };
        let kept = compiled.layouts.get(&key).cloned();
        let layout = kept.unwrap_or_else(|| ShaderLayout::new(device, key));
        let compilation_options =
            wgpu::PipelineCompilationOptions { zero_initialize_workgroup_memory: false, ..Default::default() };
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: Some(&layout.pipeline),
            module: &module,
            entry_point: Some("main"),
            compilation_options,
            cache: self.file.as_ref().map(|file| &file.cache),
        });
        // Scopes end in the reverse order.
        let errors = scopes.into_iter().rev().map(|scope| pollster::block_on(scope.pop())).collect::<Vec<_>>();
        if let Some(error) = errors.into_iter().flatten().next() {
            let message = format!("the driver does not accept a shader: {error}\n{code}");
            return Err(Diagnostic::new(message).of_kind(ErrorKind::Internal));
        }
        let shader = Arc::new(CompiledShader { pipeline, layout: layout.group.clone() });
        compiled.layouts.insert(key, layout);
        compiled.by_text.insert(code, Arc::downgrade(&shader));
        Ok(shader)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{adapter::adapter_for_test, handwritten, queue::GpuQueue};
    use super::*;
    use anabranch_dsl::DType;

    #[test]
    fn a_shader_that_is_not_accepted_is_an_error_and_others_are_compiled() {
        let Some(adapter) = adapter_for_test() else { return };
        let queue = GpuQueue::open("/gpu:0".parse().unwrap(), &adapter).unwrap();
        let shared = queue.shared();
        for (text, reason) in [("fn main(", "expected"), ("fn other() {}", "main")] {
            let error = shared.shaders.get(&shared.device, text.to_owned(), [0, 1]).expect_err("it is not accepted");
            assert_eq!(error.kind, ErrorKind::Internal);
            assert!(error.message.starts_with("the driver does not accept a shader: "), "{error}");
            assert!(error.message.contains(reason) && error.message.ends_with(text), "{error}");
        }
        shared.shaders.get(&shared.device, handwritten::add(DType::F32), [2, 1]).unwrap();
        queue.call(async |recorder| recorder.check()).unwrap();
    }
}
