//! Whole graphs on a CPU: a step is one call on the caller's thread, without tickets or events.

use super::executable::{Executable, StepCx};
use super::timeline::{Span, Timeline};
use super::variables::{LockedValue, PerVar, VarSet};
use super::{DeviceBuffer, MemorySpace};
use crate::cpu::compile::{PlanTimes, TimedWork, WorkText};
use crate::cpu::memory::{Variables, Vars, VarsMut};
use crate::cpu::program::Program;
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::{Graph, HostTensor, Loc, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A graph that a CPU runs as a whole.
#[derive(Debug)]
pub(super) struct WholeGraph {
    program: Program,
    space: MemorySpace,
    device: Option<DeviceName>,
}

impl WholeGraph {
    pub(super) fn new(program: Program, space: MemorySpace, device: Option<DeviceName>) -> WholeGraph {
        WholeGraph { program, space, device }
    }

    /// Runs a step in the interpreter, which reads variables wherever they are at home.
    fn interpret(&self, inputs: &[HostTensor], vars: &VarSet, cx: &StepCx<'_>) -> Result<Vec<HostTensor>> {
        let mut values = vars.to_host()?;
        let outputs = self.program.run_in(inputs, &mut values, cx.run_context())?;
        vars.store_and_commit(values)?;
        Ok(outputs)
    }
}

/// The variables of a step, opened as tensors in host memory.
struct HostVars<'a> {
    space: MemorySpace,
    vars: &'a VarSet,
    values: PerVar<Arc<HostTensor>>,
}

impl<'a> HostVars<'a> {
    fn new(space: MemorySpace, vars: &'a VarSet) -> HostVars<'a> {
        HostVars { space, vars, values: vars.snapshot(|value| opened(value.clone(), space)) }
    }
}

fn opened(value: DeviceBuffer, space: MemorySpace) -> Arc<HostTensor> {
    value.open(space).unwrap_or_else(|other| panic!("a variable is a tensor, not {}", other.ty()))
}

impl Variables for HostVars<'_> {
    fn values(&self) -> Vars<'_> {
        Vars::Snapshot(&self.values)
    }

    fn commit(&mut self, write: impl FnOnce(VarsMut<'_>)) {
        let mut commit = Commit { space: self.space, values: &mut self.values, locked: self.vars.lock_assigned() };
        for (i, cell) in &mut commit.locked {
            // The handle of the snapshot goes, so that a value that nobody else holds has one
            // owner.
            commit.values[*i] = opened(cell.take().expect("the value is in its cell"), commit.space);
        }
        write(VarsMut::Shared(commit.values));
    }
}

/// The assigned variables of a step, locked and opened.
struct Commit<'v, 'a> {
    space: MemorySpace,
    values: &'v mut PerVar<Arc<HostTensor>>,
    /// The cells of assigned variables, in the order of `values`.
    locked: PerVar<(usize, LockedValue<'a>)>,
}

impl Drop for Commit<'_, '_> {
    /// Returns the values to the cells, also if the writer panics.
    fn drop(&mut self) {
        let mut locked = self.locked.iter_mut().peekable();
        for (i, value) in self.values.drain(..).enumerate() {
            if let Some((_, cell)) = locked.next_if(|(of, _)| *of == i) {
                let value = value.compacted().map_or(value, Arc::new);
                **cell = Some(DeviceBuffer::from_memory(self.space, value));
            }
        }
    }
}

impl Executable for WholeGraph {
    fn graph(&self) -> &Graph {
        self.program.graph()
    }

    fn step(&self, inputs: &[HostTensor], vars: &VarSet, cx: &StepCx<'_>) -> Result<Vec<HostTensor>> {
        match self.program.is_interpreted() {
            true => self.interpret(inputs, vars, cx),
            false => self.program.step(inputs, &mut HostVars::new(self.space, vars), cx.run_context()),
        }
    }

    fn step_into(
        &self,
        inputs: &[HostTensor],
        vars: &VarSet,
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

    fn profile(&self, inputs: &[HostTensor], vars: &VarSet, cx: &StepCx<'_>) -> Result<(Vec<HostTensor>, Timeline)> {
        let device = self.device.map_or_else(|| "/cpu:0".to_owned(), |name| name.to_string());
        let begin = Instant::now();
        let (outputs, PlanTimes { work, left_out }) = match self.program.is_interpreted() {
            true => (self.interpret(inputs, vars, cx)?, PlanTimes::default()),
            false => {
                let vars = &mut HostVars::new(self.space, vars);
                self.program.profile(inputs, vars, cx.run_context(), begin)?
            }
        };
        let total = begin.elapsed();
        let span = |name, loc, bytes, begin, end| Span {
            device: device.clone(),
            name,
            loc,
            bytes,
            iterations: Vec::new(),
            begin,
            end,
        };
        let whole = span(self.graph().name.clone(), Loc::UNKNOWN, None, Duration::ZERO, total);
        let work = work
            .into_iter()
            .map(|TimedWork { work: WorkText { name, loc, bytes }, begin, end }| span(name, loc, bytes, begin, end));
        let spans = std::iter::once(whole).chain(work).collect();
        Ok((outputs, Timeline { spans, total, simulated: false, left_out }))
    }

    fn explain(&self) -> String {
        self.program.explain()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::variables::{VarAccess, VarStore};
    use crate::device::{CpuDevice, Device, DeviceId};
    use anabranch_dsl::{AnyVar, Buffer};

    #[test]
    fn a_panic_during_the_commit_returns_the_values() {
        let (stores, device) = (Arc::new(VarStore::default()), CpuDevice::new(DeviceId::from_index(0), None, 1));
        let (space, device) = (device.place(), Arc::new(device) as Arc<dyn Device>);
        let [v, w, only_read] = ["v", "w", "r"].map(|name| AnyVar::new(name, HostTensor::scalar(1.0f32)));
        let access = [VarAccess::Assign, VarAccess::Read, VarAccess::Assign];
        let set = stores.set([&w, &only_read, &v].into_iter().zip(access));
        assert_eq!(set.settle([&device; 3]).map_err(|e| e.message), Ok(true));
        let commit = |new: f32, panics: bool| {
            let _locks = set.lock(None);
            HostVars::new(space, &set).commit(|mut vars| {
                for i in [0, 2] {
                    let Buffer::F32(data) = vars.tensor_mut(i).buffer_mut() else { panic!("a variable of numbers") };
                    data[0] += new;
                    assert!(!panics, "on purpose");
                }
            });
        };
        let values = || [&v, &w, &only_read].map(|var| stores.cell(var).get().map(|t| t.data::<f32>()[0]));
        commit(1.0, false);
        assert_eq!(values(), [Ok(2.0), Ok(2.0), Ok(1.0)]);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| commit(5.0, true)));
        assert!(panic.is_err());
        assert_eq!(values(), [Ok(2.0), Ok(7.0), Ok(1.0)]);
        commit(1.0, false);
        assert_eq!(values(), [Ok(3.0), Ok(8.0), Ok(1.0)]);
    }
}
