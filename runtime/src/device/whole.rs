//! Whole graphs on a CPU: a step is one call on the caller's thread, without tickets or events.

use super::executable::{Executable, StepCx};
use super::timeline::{Span, Timeline};
use super::variables::StepVars;
use crate::cpu::program::Program;
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::ir::Value;
use anabranch_dsl::{Graph, HostTensor, Loc, Result};
use std::time::{Duration, Instant};

/// A graph that a CPU runs as a whole.
#[derive(Debug)]
pub(super) struct WholeGraph {
    program: Program,
    device: Option<DeviceName>,
    /// Whether some kernel may be split for several threads.
    may_split: bool,
}

/// The number of elements below which a tensor is small. A kernel on small tensors only is not
/// worth several threads.
const FEW_ELEMENTS: usize = 1024;

impl WholeGraph {
    pub(super) fn new(program: Program, device: Option<DeviceName>) -> WholeGraph {
        let may_split = has_large_values(program.graph());
        WholeGraph { program, device, may_split }
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
        self.program.step(inputs, vars, cx.run_context())
    }

    fn step_into(
        &self,
        inputs: &[HostTensor],
        vars: &mut StepVars<'_>,
        cx: &StepCx<'_>,
        outputs: &mut [&mut HostTensor],
    ) -> Result<()> {
        self.program.step_into(inputs, vars, cx.run_context(), outputs)
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
