//! The engine of a compiled function: a plan for one device, or subgraphs for several.

use crate::cpu::memory::results::ResultPool;
use crate::cpu::program::{CompileOptions, Program};
use crate::device::PrintTo;
use crate::device::variables::StepVars;
use crate::flow;
use crate::flow::driver::Driver;
use crate::flow::timeline::{Span, Timeline};
use crate::place::{self, Placement};
use crate::session::devices::Devices;
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::interp::{RunContext, StopFlag};
use anabranch_dsl::ir::Value;
use anabranch_dsl::{Diagnostic, Graph, HostTensor, Loc, Result};
use std::sync::Arc;
use std::time::Duration;

/// A compiled graph.
#[derive(Debug)]
pub(crate) enum Engine {
    /// A graph on one device.
    SingleDevice(Box<SingleDevice>),
    /// A graph on several devices.
    MultiDevice(Box<MultiDevice>),
}

/// A graph on one device.
#[derive(Debug)]
pub(crate) struct SingleDevice {
    program: Program,
    /// The placement and the name of the device, if there was a choice.
    placed: Option<(Placement, DeviceName)>,
    /// Whether some kernel may be split for several threads.
    may_split: bool,
}

/// The number of elements below which a tensor is small. A kernel on small tensors only is not
/// worth several threads.
const FEW_ELEMENTS: usize = 1024;

/// A graph on several devices.
#[derive(Debug)]
pub(crate) struct MultiDevice {
    graph: Graph,
    placement: Placement,
    driver: Driver,
}

/// The context of a step outside its function.
pub(crate) struct StepCx<'a> {
    pub(crate) print: &'a PrintTo,
    /// The flag that ends the step, or `None` if only the step itself ends it.
    pub(crate) stop: Option<&'a Arc<StopFlag>>,
}

/// The flag of steps that only end by themselves.
static NEVER: StopFlag = StopFlag::new();

impl StepCx<'_> {
    fn run_context(&self) -> RunContext<'_> {
        RunContext { print: &**self.print, stop: self.stop.map_or(&NEVER, |stop| stop) }
    }
}

impl Engine {
    /// Places and compiles a graph whose inputs have known shapes. `paths` are the paths of its
    /// variables for placement rules, in their order. `results` is the pool for the memory of
    /// results.
    pub(crate) fn new(
        graph: Graph,
        devices: &Devices,
        paths: &[Option<String>],
        options: CompileOptions,
        results: Arc<ResultPool>,
    ) -> Result<Engine> {
        let whole = |graph, placed| {
            let program = Program::with_results(graph, options, results.clone())?;
            let may_split = has_large_values(program.graph());
            Ok(Engine::SingleDevice(Box::new(SingleDevice { program, placed, may_split })))
        };
        let nothing_asked = devices.rules.is_empty() && !asks_for_devices(&graph);
        if (options.interpreted || devices.is_one()) && nothing_asked {
            return whole(graph, None);
        }
        let placement = place::place(&graph, &devices.topology, &devices.rules, paths)?;
        // The device constraints have been checked; the interpreter needs no device.
        if options.interpreted {
            return whole(graph, None);
        }
        let used = placement.devices(&graph);
        if used.len() < 2 && !devices.flow.lower_everything && !devices.is_simulated {
            let placed = used.first().map(|&d| (placement, devices.topology.device(d).name));
            return whole(graph, placed.filter(|_| !devices.is_one()));
        }
        let partition = flow::partition(&graph, &placement, devices.flow);
        let driver = Driver::new(graph.clone(), partition, &devices.all, options)?;
        Ok(Engine::MultiDevice(Box::new(MultiDevice { graph, placement, driver })))
    }

    /// Returns the graph.
    pub(crate) fn graph(&self) -> &Graph {
        match self {
            Engine::SingleDevice(whole) => whole.program.graph(),
            Engine::MultiDevice(parts) => &parts.graph,
        }
    }

    /// Returns whether several threads may compute a step.
    pub(crate) fn may_split(&self) -> bool {
        match self {
            Engine::SingleDevice(whole) => whole.may_split,
            Engine::MultiDevice(_) => true,
        }
    }

    /// Runs a step. The variables change only if the step succeeds.
    pub(crate) fn step(
        &self,
        inputs: &[HostTensor],
        vars: &mut StepVars<'_>,
        cx: &StepCx<'_>,
    ) -> Result<Vec<HostTensor>> {
        match self {
            Engine::SingleDevice(whole) => {
                whole.program.step(inputs, vars, cx.run_context()).map_err(|e| whole.error(e))
            }
            Engine::MultiDevice(parts) => parts.step(inputs, vars, cx, None),
        }
    }

    /// Runs a step like [`step`](Self::step), and replaces other tensors by its outputs.
    pub(crate) fn step_into(
        &self,
        inputs: &[HostTensor],
        vars: &mut StepVars<'_>,
        cx: &StepCx<'_>,
        outputs: &mut [&mut HostTensor],
    ) -> Result<()> {
        match self {
            Engine::SingleDevice(whole) => {
                whole.program.step_into(inputs, vars, cx.run_context(), outputs).map_err(|e| whole.error(e))
            }
            Engine::MultiDevice(parts) => {
                let new = parts.step(inputs, vars, cx, None)?;
                outputs.iter_mut().zip(new).for_each(|(to, new)| **to = new);
                Ok(())
            }
        }
    }

    /// Runs a step like [`step`](Self::step) and records a timeline.
    pub(crate) fn profile(
        &self,
        inputs: &[HostTensor],
        vars: &mut StepVars<'_>,
        cx: &StepCx<'_>,
    ) -> Result<(Vec<HostTensor>, Timeline)> {
        let mut timeline = Timeline::default();
        let outputs = match self {
            Engine::SingleDevice(whole) => {
                let begin = std::time::Instant::now();
                let outputs = self.step(inputs, vars, cx)?;
                timeline.total = begin.elapsed();
                timeline.spans.push(Span {
                    device: whole.placed.as_ref().map_or_else(|| "/cpu:0".to_owned(), |(_, name)| name.to_string()),
                    name: whole.program.graph().name.clone(),
                    loc: Loc::UNKNOWN,
                    iterations: Vec::new(),
                    begin: Duration::ZERO,
                    end: timeline.total,
                });
                outputs
            }
            Engine::MultiDevice(parts) => parts.step(inputs, vars, cx, Some(&mut timeline))?,
        };
        Ok((outputs, timeline))
    }

    /// Returns a description of the engine as text.
    pub(crate) fn explain(&self, devices: &Devices) -> String {
        match self {
            Engine::SingleDevice(whole) => {
                let graph = whole.program.graph();
                let placed =
                    whole.placed.as_ref().map(|(p, _)| p.explain(graph, &devices.topology, std::iter::empty()));
                placed.unwrap_or_default() + &whole.program.explain()
            }
            Engine::MultiDevice(parts) => {
                let crossings = parts.driver.partition().crossings();
                let placed = parts.placement.explain(&parts.graph, &devices.topology, crossings);
                let names = devices.topology.devices.iter().map(|d| d.name.to_string()).collect::<Vec<_>>();
                format!("{placed}{}", parts.driver.partition().explain(&parts.graph, &names))
            }
        }
    }
}

/// Returns whether a graph has device constraints.
fn asks_for_devices(graph: &Graph) -> bool {
    let mut asks = graph.vars.iter().any(|v| v.on.is_some());
    graph.visit_nodes(graph.root(), &mut |node| asks |= graph.node(node).on.is_some());
    asks
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

impl SingleDevice {
    /// Adds the device to an error.
    fn error(&self, error: Diagnostic) -> Diagnostic {
        match &self.placed {
            Some((_, name)) => error.at(Loc::UNKNOWN, format!("on {name}")),
            None => error,
        }
    }
}

impl MultiDevice {
    fn step(
        &self,
        inputs: &[HostTensor],
        vars: &mut StepVars<'_>,
        cx: &StepCx<'_>,
        timeline: Option<&mut Timeline>,
    ) -> Result<Vec<HostTensor>> {
        let stop = cx.stop.cloned().unwrap_or_default();
        let given = self.driver.step(inputs, vars.snapshot(), cx.print.clone(), stop, timeline)?;
        vars.write(|values| {
            for (var, tensor) in given.assigned {
                values[var.index()] = Arc::new(tensor);
            }
        });
        Ok(given.outputs)
    }
}
