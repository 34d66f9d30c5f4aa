//! Pruned functions: parts of a function that compute some of its values from others.

use crate::options::CompileOptions;
use crate::session::Session;
use crate::session::call::CallOptions;
use crate::session::compiled::begin;
use crate::session::part::PartOfFunction;
use anabranch_dsl::function::Signature;
use anabranch_dsl::passes::{self, Assignments};
use anabranch_dsl::trace::Traced;
use anabranch_dsl::{Diagnostic, Graph, HostTensor, Result, TensorType};
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

/// A part of a [`Function`](crate::Function) for arguments of given types, which computes fetched
/// values from fed values.
///
/// A pruned function is created by [`Function::prune`](crate::Function::prune) and
/// [`Function::prune_step`](crate::Function::prune_step). A clone is another handle of the same
/// part. A pruned function may be called from several threads at once.
#[derive(Clone)]
pub struct PrunedFunction(Arc<PrunedInner>);

// A caught panic leaves the session valid, and no code of the program runs in it.
impl UnwindSafe for PrunedFunction {}
impl RefUnwindSafe for PrunedFunction {}

struct PrunedInner {
    key: PruneKey,
    session: Session,
    /// It is compiled once, unless extents of the feeds are known only when it is called.
    part: PartOfFunction,
}

/// The arguments that a pruned function was created with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PruneKey {
    pub(crate) signature: Signature,
    pub(crate) feeds: Vec<String>,
    pub(crate) fetches: Vec<String>,
    pub(crate) assignments: Assignments,
}

impl PrunedFunction {
    /// Prunes the trace of a function and compiles it.
    pub(crate) fn new(
        session: &Session,
        traced: &Traced,
        key: PruneKey,
        options: CompileOptions,
    ) -> Result<PrunedFunction> {
        let values = |names: &[String]| names.iter().map(|name| traced.value_named(name)).collect::<Result<Vec<_>>>();
        let (feeds, fetches) = (values(&key.feeds)?, values(&key.fetches)?);
        let name = &traced.graph.name;
        for (i, value) in feeds.iter().enumerate() {
            if let Some(first) = feeds[..i].iter().position(|v| v == value) {
                let (first, second) = (&key.feeds[first], &key.feeds[i]);
                let message = match first == second {
                    true => format!("`{name}`: `{first}` is fed twice"),
                    false => format!("`{name}`: `{first}` and `{second}` are the same value, which is fed twice"),
                };
                return Err(Diagnostic::new(message).help("feed each value only once"));
            }
        }
        if fetches.is_empty() && key.assignments == Assignments::Drop {
            return Err(Diagnostic::new(format!("`{name}`: nothing is fetched"))
                .help("fetch a value, or use `prune_step` to run only the assignments"));
        }
        if let (Some(commit), Assignments::Keep) = (&traced.commit_loop, key.assignments) {
            let message = format!("`{name}`: a part of a function whose iterations are steps cannot assign");
            return Err(Diagnostic::new(message)
                .at(commit.loc, "`commit_each_iteration` is called here")
                .help("use `prune`, which assigns nothing, or prune a function that takes one step"));
        }
        let pruned = passes::prune(&traced.graph, &feeds, &fetches, key.assignments)?;
        for (i, value) in feeds.iter().enumerate() {
            if !pruned.needed[i] && !traced.graph.inputs().contains(value) {
                let message = format!("`{name}`: no fetch depends on the feed `{}`", key.feeds[i]);
                return Err(Diagnostic::new(message)
                    .at(traced.graph.loc(*value), "created here")
                    .help("remove it; only parameters may be fed without being needed"));
            }
        }
        let vars = pruned.vars.iter().map(|&id| traced.var(id).clone()).collect();
        let queues = pruned.queues.iter().map(|&id| traced.queues[id.index()].clone()).collect();
        let session = session.clone();
        let part = PartOfFunction::new(pruned.graph, vars, queues, options);
        let pruned = PrunedFunction(Arc::new(PrunedInner { key, session, part }));
        if pruned.0.open_feed().is_none() {
            pruned.0.part.compiled_for(&pruned.0.session, &pruned.feed_types())?;
        }
        Ok(pruned)
    }

    pub(crate) fn key(&self) -> &PruneKey {
        &self.0.key
    }

    /// Returns the types of the feeds, in order. An extent is unknown if it depends on data.
    pub fn feed_types(&self) -> Vec<TensorType> {
        let graph = &self.0.part.graph;
        graph.inputs().iter().map(|&v| graph.ty(v).element().clone()).collect()
    }

    /// Returns the graph before optimization. Its inputs are the feeds, its outputs the fetches.
    pub fn graph(&self) -> &Graph {
        &self.0.part.graph
    }

    /// Computes the fetches from the feeds, both in order.
    ///
    /// # Errors
    /// Fails if the number of tensors or the type of one is wrong. The error names the feed. Also
    /// the errors of the function itself.
    ///
    /// ```
    /// use anabranch::{DType, HostTensor, TensorType, prelude::*};
    /// use anabranch::Session;
    ///
    /// let session = Session::new()?;
    /// let f = session.function(|x: Tensor| (x * 2.0).named("twice").exp().sum())?;
    /// let twice = f.prune(&[TensorType::new(DType::F32, [2])], &["input 0"], &["twice"])?;
    /// let outputs = twice.call(&[HostTensor::new([2], vec![1.0f32, 2.0])])?;
    /// assert_eq!(outputs, [HostTensor::new([2], vec![2.0f32, 4.0])]);
    ///
    /// let error = twice.call(&[HostTensor::scalar(1.0f32)]).unwrap_err();
    /// assert!(error.message.contains("the feed `input 0` is f32[2], but got f32[]"), "{error}");
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn call(&self, feeds: &[HostTensor]) -> Result<Vec<HostTensor>> {
        self.0.call(None, feeds)
    }

    /// Calls the part like [`call`](Self::call), with a time limit; see
    /// [`call_with`](Self::call_with).
    pub fn call_timeout(&self, duration: Duration, feeds: &[HostTensor]) -> Result<Vec<HostTensor>> {
        self.call_with(&CallOptions::new().timeout(duration), feeds)
    }

    /// Calls the part like [`call`](Self::call), with the deadline and the cancellation of
    /// `options`; see [`Function::call_with`](crate::Function::call_with).
    pub fn call_with(&self, options: &CallOptions, feeds: &[HostTensor]) -> Result<Vec<HostTensor>> {
        self.0.call(Some(options), feeds)
    }

    /// Returns the plan as text; see [`Function::explain`](crate::Function::explain).
    ///
    /// # Errors
    /// Fails if the plan depends on extents that are known only when it is called.
    pub fn explain(&self) -> Result<String> {
        if let Some((feed, ty)) = self.0.open_feed() {
            let name = &self.0.part.graph.name;
            let message = format!(
                "`{name}`: the pruned function depends on extents that only a call determines: `{feed}` is {ty}"
            );
            return Err(Diagnostic::new(message).help("feed and fetch values whose extents follow from the signature"));
        }
        let compiled = self.0.part.compiled_for(&self.0.session, &self.feed_types())?;
        Ok(compiled.explain(&self.0.session.devices))
    }
}

impl PrunedInner {
    fn call(&self, options: Option<&CallOptions>, feeds: &[HostTensor]) -> Result<Vec<HostTensor>> {
        let call = begin(options)?;
        if self.part.find(feeds).is_none() {
            self.check(feeds)?;
        }
        self.part.step(&self.session, feeds, call.as_ref())
    }

    fn check(&self, feeds: &[HostTensor]) -> Result<()> {
        let (name, names) = (&self.part.graph.name, &self.key.feeds);
        if feeds.len() != names.len() {
            let listed: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
            let message = format!("wrong number of feeds for `{name}`: expected {}, got {}", names.len(), feeds.len());
            return Err(Diagnostic::new(message).help(match names.is_empty() {
                true => "pass `&[]`, because nothing is fed".to_owned(),
                false => format!("feed {}", listed.join(", ")),
            }));
        }
        for ((feed, given), &v) in names.iter().zip(feeds).zip(self.part.graph.inputs()) {
            let (expected, given) = (self.part.graph.ty(v).element(), given.ty());
            if !expected.compatible(&given) {
                let message = format!("`{name}`: the feed `{feed}` is {expected}, but got {given}");
                return Err(Diagnostic::new(message).help("a feed must have the type of the value in the function"));
            }
        }
        Ok(())
    }

    /// Returns the first feed with an extent that is known only when the part is called.
    fn open_feed(&self) -> Option<(&str, &TensorType)> {
        let graph = &self.part.graph;
        let open = self.part.open_input()?;
        Some((self.key.feeds[open].as_str(), graph.ty(graph.inputs()[open]).element()))
    }
}

impl fmt::Debug for PrunedFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrunedFunction")
            .field("name", &self.0.part.graph.name)
            .field("key", &self.0.key)
            .finish_non_exhaustive()
    }
}
