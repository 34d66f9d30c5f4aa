//! Programs of a device: what each region records, and what is recorded ahead of its predicate.

use super::ahead::{self, WorkgroupCounts};
use super::list::ListProgram;
use super::lower;
use super::memory::{GpuTensor, GpuValue};
use super::queue::{CommandRecorder, GpuQueue};
use super::run::{ProgramRun, RunAttempt};
use super::shader::CompiledShader;
use super::shader_loop::{Assumption, LoopOnDevice, ParallelLoopProgram, Refuted};
use crate::options::CompileOptions;
use anabranch_dsl::interp::RunContext;
use anabranch_dsl::ir::{Graph, Node, StackOp, Value};
use anabranch_dsl::passes::CountedLoop;
use anabranch_dsl::{Result, Type};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A compiled graph.
#[derive(Debug)]
pub(super) struct GpuProgram {
    graph: Graph,
    root: RegionProgram,
    /// The workgroups of what may run under a guard.
    counts: WorkgroupCounts,
    /// The assumptions of runs about loops.
    assumptions: Vec<Assumption>,
}

/// A compiled region.
#[derive(Debug)]
pub(super) struct RegionProgram {
    pub(super) params: Vec<Value>,
    pub(super) ops: Vec<GpuOp>,
    /// The node that each operation belongs to.
    pub(super) origins: Vec<Node>,
    /// After each operation, the values that are not used any more.
    pub(super) dead: Vec<Vec<Value>>,
    pub(super) yields: Vec<Value>,
}

/// An operation of a program.
#[derive(Debug)]
pub(super) enum GpuOp {
    Dispatch(Dispatch),
    Transfer(Transfer),
    /// An operation on stacks that is not their sum.
    Stack(StackOp, Node),
    AddStacks(Node, StackSum),
    List(ListProgram),
    Cond(CondProgram),
    While(Box<LoopProgram>),
    Call(Node, RegionProgram),
}

/// A conditional.
#[derive(Debug)]
pub(super) struct CondProgram {
    pub(super) node: Node,
    pub(super) branches: [RegionProgram; 2],
    /// Whether both branches are recorded if the host does not know the predicate.
    pub(super) ahead: bool,
}

/// A loop.
#[derive(Debug)]
pub(super) struct LoopProgram {
    pub(super) node: Node,
    pub(super) cond: RegionProgram,
    pub(super) body: RegionProgram,
    /// The counter of the loop, if its condition only compares one.
    pub(super) counted: Option<CountedLoop>,
    /// The operation of the body that only advances this counter, if no other reads the counter.
    pub(super) advances: Option<usize>,
    /// The shader that runs many iterations, if it is a loop over scalars or small tensors.
    pub(super) on_device: Option<LoopOnDevice>,
    /// The shader that runs all iterations side by side, if they are independent.
    pub(super) parallel: Option<ParallelLoopProgram>,
    /// Whether iterations are recorded ahead of their predicates.
    pub(super) ahead: bool,
    /// The number of predicates of the last run that the host knows, one more than the trip count,
    /// or 0.
    pub(super) expected: AtomicU32,
}

impl LoopProgram {
    /// Notes the trip count of a run.
    pub(super) fn expect_trips(&self, n: usize) {
        self.expected.store((n + 1).try_into().unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}

/// A run of a shader. An output that is in memory already is written in part.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) shader: Arc<CompiledShader>,
    pub(super) inputs: Vec<Value>,
    pub(super) outputs: Vec<Value>,
    pub(super) workgroups: [u32; 3],
    pub(super) parameters: Vec<u32>,
    /// The number of operations that it computes.
    pub(super) n_operations: usize,
    /// The node of which the results are checked for values that are not finite, if they are.
    pub(super) checked: Option<Node>,
    /// The error that the shader may report.
    pub(super) check: Option<ShaderCheck>,
    /// The matmul or convolution that it computes, if it does.
    #[cfg(feature = "testing")]
    pub(super) product: Option<Node>,
}

/// The error that a shader may report: that of a node. The last binding of the shader is the word
/// of the run for failures, and its last parameter the number of the check.
#[derive(Clone, Debug)]
pub(super) struct ShaderCheck {
    pub(super) node: Node,
    /// The operands from which the error follows, and the index of the first of them.
    pub(super) operands: SmallVec<[Value; 2]>,
    pub(super) first: usize,
}

/// The sum of two stacks, with a run of a shader for each element.
#[derive(Debug)]
pub(super) struct StackSum {
    pub(super) shader: Arc<CompiledShader>,
    pub(super) workgroups: [u32; 3],
    /// The number of elements of a tensor.
    pub(super) size: u32,
}

/// A value that needs no shader.
#[derive(Debug)]
pub(super) enum Transfer {
    /// A value that shares the memory of another one.
    Share { from: Value, to: Value },
    /// A copy, which takes the memory if nothing else uses the tensor afterwards.
    Copy { from: Value, to: Value },
    /// Zeros.
    Zeros { to: Value },
    /// Memory for a tensor of which dispatches write all parts.
    Uninitialized { to: Value },
    /// A constant, which the program keeps in memory.
    Constant { tensor: Arc<GpuTensor>, to: Value },
}

impl GpuOp {
    /// Returns the values that an operation reads or computes.
    pub(super) fn values(&self, graph: &Graph) -> Vec<Value> {
        let of_node = |node| {
            let data = graph.node(node);
            [&data.operands[..], &data.results].concat()
        };
        match self {
            // Outputs that are written in part are in memory before.
            GpuOp::Dispatch(dispatch) => {
                let checked = dispatch.check.iter().flat_map(|check| &check.operands);
                dispatch.inputs.iter().chain(&dispatch.outputs).chain(checked).copied().collect()
            }
            GpuOp::Transfer(Transfer::Share { from, to } | Transfer::Copy { from, to }) => vec![*from, *to],
            GpuOp::Transfer(
                Transfer::Zeros { to } | Transfer::Uninitialized { to } | Transfer::Constant { to, .. },
            ) => {
                vec![*to]
            }
            GpuOp::Stack(_, node)
            | GpuOp::AddStacks(node, _)
            | GpuOp::Cond(CondProgram { node, .. })
            | GpuOp::Call(node, _) => of_node(*node),
            GpuOp::List(list) => of_node(list.node),
            GpuOp::While(looped) => of_node(looped.node),
        }
    }
}

impl RegionProgram {
    pub(super) fn new(params: Vec<Value>, ops: Vec<GpuOp>, origins: Vec<Node>, yields: Vec<Value>) -> RegionProgram {
        RegionProgram { params, ops, origins, dead: Vec::new(), yields }
    }

    /// Returns the operation that only computes the next value of a loop variable of a body, if no
    /// other operation reads the variable.
    pub(super) fn advances(&self, graph: &Graph, variable: usize) -> Option<usize> {
        let (before, after) = (self.params[variable], self.yields[variable]);
        let computes = |op: &GpuOp| match op {
            GpuOp::Dispatch(dispatch) => {
                dispatch.outputs == [after] && dispatch.check.is_none() && dispatch.checked.is_none()
            }
            _ => false,
        };
        let advances = self.ops.iter().position(computes)?;
        let reads = |op: &GpuOp| op.values(graph).iter().any(|&v| v == before || v == after);
        let is_read = self.ops.iter().enumerate().any(|(i, op)| i != advances && reads(op))
            || self.yields.iter().enumerate().any(|(i, &v)| v == before || v == after && i != variable);
        (!is_read).then_some(advances)
    }

    /// Adds the assumptions of runs about loops.
    fn collect_assumptions(&self, to: &mut Vec<Assumption>) {
        for op in &self.ops {
            match op {
                GpuOp::Cond(cond) => cond.branches.iter().for_each(|region| region.collect_assumptions(to)),
                GpuOp::While(looped) => {
                    to.extend(looped.on_device.iter().map(|on_device| on_device.assumption.clone()));
                    to.extend(looped.parallel.iter().map(|parallel| parallel.assumption.clone()));
                    [&looped.cond, &looped.body].into_iter().for_each(|region| region.collect_assumptions(to));
                }
                GpuOp::Call(_, region) => region.collect_assumptions(to),
                GpuOp::Dispatch(_) | GpuOp::Transfer(_) | GpuOp::Stack(..) | GpuOp::AddStacks(..) | GpuOp::List(_) => {}
            }
        }
    }

    /// Finds the last use of each value.
    fn find_dead(&mut self, graph: &Graph) {
        let mut last: FxHashMap<Value, usize> = FxHashMap::default();
        for (i, op) in self.ops.iter_mut().enumerate() {
            last.extend(op.values(graph).into_iter().map(|v| (v, i)));
            match op {
                GpuOp::Cond(cond) => cond.branches.iter_mut().for_each(|region| region.find_dead(graph)),
                GpuOp::While(looped) => {
                    [&mut looped.cond, &mut looped.body].into_iter().for_each(|region| region.find_dead(graph));
                }
                GpuOp::Call(_, region) => region.find_dead(graph),
                GpuOp::Dispatch(_) | GpuOp::Transfer(_) | GpuOp::Stack(..) | GpuOp::AddStacks(..) | GpuOp::List(_) => {}
            }
        }
        self.dead = vec![Vec::new(); self.ops.len()];
        for (value, i) in last {
            if !self.yields.contains(&value) {
                self.dead[i].push(value);
            }
        }
    }
}

impl GpuProgram {
    /// Compiles a graph whose operations the device supports.
    ///
    /// # Errors
    /// Fails if the driver does not accept a shader.
    pub(super) fn new(graph: Graph, options: CompileOptions, queue: &GpuQueue) -> Result<GpuProgram> {
        lower::lower(graph, options, queue)
    }

    /// Finishes a lowered graph.
    ///
    /// # Errors
    /// Fails if the device has no memory for the table of workgroups.
    pub(super) fn from_parts(graph: Graph, mut root: RegionProgram, queue: &GpuQueue) -> Result<GpuProgram> {
        root.find_dead(&graph);
        let counts = match queue.shared().runs_ahead {
            true => ahead::plan(&graph, &mut root, queue)?,
            false => WorkgroupCounts::default(),
        };
        let mut assumptions = Vec::new();
        root.collect_assumptions(&mut assumptions);
        Ok(GpuProgram { graph, root, counts, assumptions })
    }

    pub(super) fn parts(&self) -> (&Graph, &RegionProgram) {
        (&self.graph, &self.root)
    }

    /// Returns the types of the outputs.
    pub(super) fn output_types(&self) -> impl Iterator<Item = &Type> {
        self.graph.outputs().iter().map(|&v| self.graph.ty(v))
    }

    /// Runs the program.
    ///
    /// # Errors
    /// Fails if an operation fails, if the device has no memory left or is lost, or if the step is
    /// stopped.
    pub(super) async fn run(
        &self,
        recorder: &CommandRecorder,
        inputs: impl Iterator<Item = GpuValue>,
        cx: &RunContext<'_>,
    ) -> Result<Vec<GpuValue>> {
        let mut inputs: Vec<GpuValue> = inputs.collect();
        let mut wrong: Vec<Assumption> = self.assumptions.iter().filter(|a| !a.begin_run()).cloned().collect();
        let n_known = wrong.len();
        loop {
            // Lists and tensors that something else has, too, are not written in place.
            let may_repeat = wrong.len() < self.assumptions.len();
            let again = if may_repeat { inputs.clone() } else { Vec::new() };
            let attempt = ProgramRun::new(&self.graph, recorder, cx, &self.counts, &wrong);
            match attempt.run(&self.root, inputs).await? {
                RunAttempt::Completed(results) => {
                    wrong[n_known..].iter().for_each(Assumption::suspend);
                    return Ok(results);
                }
                RunAttempt::Refuted(Refuted::Stuck(assumption)) => wrong.push(assumption),
                RunAttempt::Refuted(Refuted::NeedsMemory) => {}
            }
            inputs = again;
        }
    }
}
