//! Compiled shaders.

use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use std::collections::HashMap;
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
    /// A shader is dropped with the last program that runs it.
    compiled: Mutex<HashMap<String, Weak<CompiledShader>>>,
}

impl ShaderCache {
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
        if let Some(shader) = compiled.get(&code).and_then(Weak::upgrade) {
            return Ok(shader);
        }
        compiled.retain(|_, shader| shader.strong_count() > 0);
        let filters = [wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation];
        let scopes = filters.map(|filter| device.push_error_scope(filter));
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(code.as_str().into()),
        });
        let entries: Vec<wgpu::BindGroupLayoutEntry> = (0..n_inputs + n_outputs)
            .map(|i| wgpu::BindGroupLayoutEntry {
                binding: i as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: i < n_inputs },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let layout =
            device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: IMMEDIATES,
        });
        let compilation_options =
            wgpu::PipelineCompilationOptions { zero_initialize_workgroup_memory: false, ..Default::default() };
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options,
            cache: None,
        });
        // Scopes end in the reverse order.
        let errors = scopes.into_iter().rev().map(|scope| pollster::block_on(scope.pop())).collect::<Vec<_>>();
        if let Some(error) = errors.into_iter().flatten().next() {
            let message = format!("the driver does not accept a shader: {error}\n{code}");
            return Err(Diagnostic::new(message).of_kind(ErrorKind::Internal));
        }
        let shader = Arc::new(CompiledShader { pipeline, layout });
        compiled.insert(code, Arc::downgrade(&shader));
        Ok(shader)
    }
}
