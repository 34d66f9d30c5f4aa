//! A part of a traced function: a graph that is compiled for each combination of input types.

use crate::options::CompileOptions;
use crate::session::Session;
use crate::session::call::RunningCall;
use crate::session::compiled::{Cache, Compiled};
use anabranch_dsl::queue::AnyQueue;
use anabranch_dsl::{AnyVar, Graph, HostTensor, Result, TensorType, passes};
use std::sync::Arc;

/// See the [module](self).
pub(crate) struct PartOfFunction {
    pub(crate) graph: Graph,
    options: CompileOptions,
    /// The variables and queues of the graph, in its order.
    vars: Vec<AnyVar>,
    queues: Vec<AnyQueue>,
    cache: Cache<Compiled>,
}

impl PartOfFunction {
    pub(crate) fn new(graph: Graph, vars: Vec<AnyVar>, queues: Vec<AnyQueue>, options: CompileOptions) -> Self {
        PartOfFunction { graph, options, vars, queues, cache: Cache::default() }
    }

    /// Returns the types of its inputs.
    pub(crate) fn input_types(&self) -> Vec<TensorType> {
        self.graph.inputs().iter().map(|&v| self.graph.ty(v).element().clone()).collect()
    }

    /// Returns the number of the first input with an extent that only a call determines.
    pub(crate) fn open_input(&self) -> Option<usize> {
        self.graph.inputs().iter().position(|&v| self.graph.ty(v).element().shape.known().is_none())
    }

    /// Returns the part compiled for inputs of these types, if that was done before.
    pub(crate) fn find(&self, inputs: &[HostTensor]) -> Option<Arc<Compiled>> {
        self.cache.find(|compiled| compiled.accepts(inputs))
    }

    /// Returns the part compiled for inputs of these types.
    pub(crate) fn compiled_for(&self, session: &Session, types: &[TensorType]) -> Result<Arc<Compiled>> {
        self.cache.get_or_insert_with(
            &self.graph.name,
            |compiled| compiled.signature == types,
            || {
                // Interpreted graphs are not specialized elsewhere.
                let graph = match self.open_input() {
                    Some(_) => passes::specialize(&self.graph, types)?,
                    None => self.graph.clone(),
                };
                Compiled::new(session, graph, &self.vars, &self.queues, types, self.options)
            },
        )
    }

    /// Runs the part as a step.
    pub(crate) fn step(
        &self,
        session: &Session,
        inputs: &[HostTensor],
        call: Option<&RunningCall>,
    ) -> Result<Vec<HostTensor>> {
        let compiled = match self.find(inputs) {
            Some(compiled) => compiled,
            None => self.compiled_for(session, &inputs.iter().map(HostTensor::ty).collect::<Vec<_>>())?,
        };
        compiled.step(session, inputs, call)
    }
}
