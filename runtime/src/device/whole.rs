//! Whole graphs on a CPU: a step is one call on the caller's thread, without tickets or events.

use super::executable::{Executable, StepCx};
use super::timeline::{Span, Timeline};
use super::variables::{PLACEHOLDER, StepVars};
use super::{DeviceBuffer, MemorySpace};
use crate::cpu::memory::{Variables, Vars, VarsMut};
use crate::cpu::program::Program;
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::ir::Value;
use anabranch_dsl::{Graph, HostTensor, Loc, Result};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A graph that a CPU runs as a whole.
#[derive(Debug)]
pub(super) struct WholeGraph {
    program: Program,
    space: MemorySpace,
    device: Option<DeviceName>,
    /// Whether some kernel may be split for several threads.
    may_split: bool,
}

/// The number of elements below which a tensor is small. A kernel on small tensors only is not
/// worth several threads.
const FEW_ELEMENTS: usize = 1024;

impl WholeGraph {
    pub(super) fn new(program: Program, space: MemorySpace, device: Option<DeviceName>) -> WholeGraph {
        let may_split = has_large_values(program.graph());
        WholeGraph { program, space, device, may_split }
    }

    /// Runs a step in the interpreter, which reads variables wherever they are at home.
    fn interpret(&self, inputs: &[HostTensor], vars: &mut StepVars<'_>, cx: &StepCx<'_>) -> Result<Vec<HostTensor>> {
        let mut values = vars.to_host()?;
        let outputs = self.program.run_in(inputs, &mut values, cx.run_context())?;
        vars.store_and_write(values)?;
        Ok(outputs)
    }
}

/// The variables of a step, opened as tensors in host memory.
struct HostVars<'s, 'a> {
    space: MemorySpace,
    vars: &'s mut StepVars<'a>,
    values: SmallVec<[Arc<HostTensor>; 4]>,
}

impl<'s, 'a> HostVars<'s, 'a> {
    fn new(space: MemorySpace, vars: &'s mut StepVars<'a>) -> HostVars<'s, 'a> {
        let values = vars.snapshot().iter().map(|value| opened(value.clone(), space)).collect();
        HostVars { space, vars, values }
    }
}

fn opened(value: DeviceBuffer, space: MemorySpace) -> Arc<HostTensor> {
    value.open(space).unwrap_or_else(|other| panic!("a variable is a tensor, not {}", other.ty()))
}

impl Variables for HostVars<'_, '_> {
    fn values(&self) -> Vars<'_> {
        Vars::Snapshot(&self.values)
    }

    fn commit(&mut self, write: impl FnOnce(VarsMut<'_>)) {
        let HostVars { space, vars, values } = self;
        vars.write(|buffers| {
            for (value, buffer) in values.iter_mut().zip(&mut *buffers) {
                *value = opened(std::mem::replace(buffer, PLACEHOLDER.clone()), *space);
            }
            let opened = OpenedVars { space: *space, buffers, values };
            write(VarsMut::Shared(opened.values));
        });
    }
}

/// Variables that are written as tensors.
struct OpenedVars<'v> {
    space: MemorySpace,
    buffers: &'v mut [DeviceBuffer],
    values: &'v mut SmallVec<[Arc<HostTensor>; 4]>,
}

impl Drop for OpenedVars<'_> {
    /// Returns the tensors to the buffers, also if the writer panics.
    fn drop(&mut self) {
        for (buffer, value) in self.buffers.iter_mut().zip(self.values.drain(..)) {
            *buffer = DeviceBuffer::from_memory(self.space, value);
        }
    }
}

impl Executable for WholeGraph {
    fn graph(&self) -> &Graph {
        self.program.graph()
    }

    fn may_split(&self) -> bool {
        self.may_split
    }

    fn step(&self, inputs: &[HostTensor], vars: &mut StepVars<'_>, cx: &StepCx<'_>) -> Result<Vec<HostTensor>> {
        match self.program.is_interpreted() {
            true => self.interpret(inputs, vars, cx),
            false => self.program.step(inputs, &mut HostVars::new(self.space, vars), cx.run_context()),
        }
    }

    fn step_into(
        &self,
        inputs: &[HostTensor],
        vars: &mut StepVars<'_>,
        cx: &StepCx<'_>,
        outputs: &mut [&mut HostTensor],
    ) -> Result<()> {
        if self.program.is_interpreted() {
            let new = self.interpret(inputs, vars, cx)?;
            outputs.iter_mut().zip(new).for_each(|(to, new)| **to = new);
            return Ok(());
        }
        self.program.step_into(inputs, &mut HostVars::new(self.space, vars), cx.run_context(), outputs)
    }

    fn profile(
        &self,
        inputs: &[HostTensor],
        vars: &mut StepVars<'_>,
        cx: &StepCx<'_>,
    ) -> Result<(Vec<HostTensor>, Timeline)> {
        let begin = Instant::now();
        let outputs = self.step(inputs, vars, cx)?;
        let total = begin.elapsed();
        let span = Span {
            device: self.device.map_or_else(|| "/cpu:0".to_owned(), |name| name.to_string()),
            name: self.graph().name.clone(),
            loc: Loc::UNKNOWN,
            iterations: Vec::new(),
            begin: Duration::ZERO,
            end: total,
        };
        Ok((outputs, Timeline { spans: vec![span], total, simulated: false }))
    }

    fn explain(&self) -> String {
        self.program.explain()
    }
}

/// Returns whether some tensor of a graph is large or has an unknown number of elements.
fn has_large_values(graph: &Graph) -> bool {
    let is_large = |v: &Value| {
        let shape = &graph.ty(*v).element().shape;
        shape.size().is_none_or(|n| n > FEW_ELEMENTS)
    };
    let mut found = graph.inputs().iter().any(is_large);
    graph.visit_nodes(graph.root(), &mut |node| found |= graph.node(node).results.iter().any(is_large));
    found
}
