//! Programs as text: their shaders and loops in order, and the memory that they need.

use super::memory::bytes_of_type;
use super::program::{CondProgram, GpuOp, GpuProgram, LoopProgram, RegionProgram, Transfer};
use super::shader_loop::LoopOnDevice;
use anabranch_dsl::Type;
use anabranch_dsl::ir::{Graph, Node, Value};
use rustc_hash::FxHashMap;
use std::fmt::Write;
use std::rc::Rc;

impl GpuProgram {
    /// Returns the program as text, a line for each shader, transfer and construct.
    pub(super) fn explain(&self) -> String {
        let (graph, root) = self.parts();
        let mut text = String::new();
        explain_region(graph, root, None, 0, &mut text);
        let peak = LiveMemory::default().of_region(graph, root);
        let _ = writeln!(text, "about {peak} bytes at a time, without stacks, lists and iterations recorded ahead");
        text
    }
}

/// Adds the operations of a region, of which one may be left out.
fn explain_region(graph: &Graph, region: &RegionProgram, left_out: Option<usize>, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    let types = |values: &[Value]| {
        let types: Vec<String> = values.iter().map(|&v| format!("{v} {}", graph.ty(v))).collect();
        types.join(", ")
    };
    for (i, (op, &origin)) in region.ops.iter().zip(&region.origins).enumerate() {
        let (name, loc) = (graph.node(origin).name_in_errors(), graph.node(origin).loc);
        let _ = match op {
            GpuOp::Dispatch(dispatch) => {
                let [x, y, z] = dispatch.workgroups;
                let fused = match dispatch.n_operations {
                    1 => String::new(),
                    n => format!(" with {} more operations", n - 1),
                };
                let when = if left_out == Some(i) { " (left out if the first value is known)" } else { "" };
                let outputs = types(&dispatch.outputs);
                writeln!(text, "{indent}shader {name}{fused}{when}, {x}x{y}x{z} workgroups: {outputs}")
            }
            GpuOp::Transfer(transfer) => match transfer {
                // They need no command.
                Transfer::Share { .. } | Transfer::Uninitialized { .. } | Transfer::Constant { .. } => Ok(()),
                Transfer::Copy { from, to } => writeln!(text, "{indent}copy {from}: {}", types(&[*to])),
                Transfer::Zeros { to } => writeln!(text, "{indent}zeros: {}", types(&[*to])),
            },
            GpuOp::Stack(..) | GpuOp::AddStacks(..) | GpuOp::List(_) => {
                writeln!(text, "{indent}{name}: {}", types(&graph.node(origin).results))
            }
            GpuOp::Cond(CondProgram { branches, ahead, .. }) => {
                let how = if *ahead {
                    "both arms recorded ahead"
                } else {
                    "the host decides, unless what is around is recorded ahead"
                };
                let _ = writeln!(text, "{indent}if at {loc}: {how}");
                let [then, otherwise] = branches;
                explain_region(graph, then, None, depth + 1, text);
                let _ = writeln!(text, "{indent}else");
                explain_region(graph, otherwise, None, depth + 1, text);
                Ok(())
            }
            GpuOp::While(looped) => {
                let _ = writeln!(text, "{indent}while at {loc}: {}", how_it_runs(looped));
                explain_region(graph, &looped.cond, None, depth + 1, text);
                let _ = writeln!(text, "{indent}do");
                explain_region(graph, &looped.body, looped.advances, depth + 1, text);
                Ok(())
            }
            GpuOp::Call(_, callee) => {
                let _ = writeln!(text, "{indent}call at {loc}");
                explain_region(graph, callee, None, depth + 1, text);
                Ok(())
            }
        };
    }
}

fn how_it_runs(looped: &LoopProgram) -> &'static str {
    match looped {
        LoopProgram { parallel: Some(_), .. } => "one shader runs it, with a thread for each iteration",
        LoopProgram { on_device: Some(LoopOnDevice { is_of_workgroup: true, .. }), .. } => "one workgroup runs it",
        LoopProgram { on_device: Some(_), .. } => "one shader runs it",
        LoopProgram { counted: Some(_), .. } => "it counts, so its iterations are recorded ahead",
        LoopProgram { ahead: true, .. } => "its iterations are recorded ahead of their predicates",
        _ => "the host reads each predicate back",
    }
}

/// The memory of a run, in the order of the program.
#[derive(Default)]
struct LiveMemory {
    /// The bytes of each live value. Values that share memory share the entry.
    live: FxHashMap<Value, Rc<u64>>,
}

impl LiveMemory {
    fn in_use(&self) -> u64 {
        let mut counted: FxHashMap<*const u64, u64> = FxHashMap::default();
        counted.extend(self.live.values().map(|bytes| (Rc::as_ptr(bytes), **bytes)));
        counted.values().sum()
    }

    fn allocate(&mut self, graph: &Graph, value: Value) {
        let bytes = match graph.ty(value) {
            Type::Tensor(ty) => bytes_of_type(ty).unwrap_or(0),
            // Their lengths are known only when they are used.
            Type::Stack(_) | Type::List(_) => 0,
        };
        self.live.entry(value).or_insert_with(|| Rc::new(bytes));
    }

    /// Returns the most bytes that a region needs at a time. Its parameters count, too: a loop has
    /// its initial values and the state of an iteration.
    fn of_region(mut self, graph: &Graph, region: &RegionProgram) -> u64 {
        region.params.iter().for_each(|&param| self.allocate(graph, param));
        let mut peak = self.in_use();
        for (i, op) in region.ops.iter().enumerate() {
            let inner = match op {
                GpuOp::Cond(cond) => cond.branches.iter().map(|r| LiveMemory::default().of_region(graph, r)).max(),
                GpuOp::While(looped) => {
                    let regions = [&looped.cond, &looped.body];
                    regions.into_iter().map(|r| LiveMemory::default().of_region(graph, r)).max()
                }
                GpuOp::Call(_, callee) => Some(LiveMemory::default().of_region(graph, callee)),
                _ => None,
            };
            peak = peak.max(self.in_use() + inner.unwrap_or(0));
            match op {
                GpuOp::Transfer(Transfer::Share { from, to }) => {
                    if let Some(shared) = self.live.get(from).cloned() {
                        self.live.insert(*to, shared);
                    }
                }
                GpuOp::Dispatch(dispatch) => dispatch.outputs.iter().for_each(|&v| self.allocate(graph, v)),
                GpuOp::Transfer(
                    Transfer::Copy { to, .. }
                    | Transfer::Zeros { to }
                    | Transfer::Uninitialized { to }
                    | Transfer::Constant { to, .. },
                ) => self.allocate(graph, *to),
                other => results_of(other, graph).iter().for_each(|&v| self.allocate(graph, v)),
            }
            peak = peak.max(self.in_use());
            region.dead[i].iter().for_each(|value| {
                self.live.remove(value);
            });
        }
        peak
    }
}

/// Returns the results of a construct or of an operation on stacks or lists.
fn results_of<'a>(op: &GpuOp, graph: &'a Graph) -> &'a [Value] {
    let node: Node = match op {
        GpuOp::Stack(_, node) | GpuOp::AddStacks(node, _) | GpuOp::Call(node, _) => *node,
        GpuOp::List(list) => list.node,
        GpuOp::Cond(cond) => cond.node,
        GpuOp::While(looped) => looped.node,
        GpuOp::Dispatch(_) | GpuOp::Transfer(_) => panic!("a shader is no construct"),
    };
    &graph.node(node).results
}
