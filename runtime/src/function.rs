//! Functions of a session: traced and compiled once for each combination of argument types, then run.

use crate::call::{Call, CallOptions};
use crate::engine::{Engine, StepCx};
use crate::program::Options;
use crate::session::Session;
use crate::state::{self, Cell, Guard};
use crate::timeline::Timeline;
use anabranch_dsl::function::{CallArgs, GraphFn, Output, Rebuild, Results, trace_fn};
use anabranch_dsl::interp::{self, StopFlag};
use anabranch_dsl::ir::Op;
use anabranch_dsl::trace::{self, Traced};
use anabranch_dsl::{Diagnostic, Dim, Graph, HostTensor, Loc, Result, TensorType};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Compiled signatures.
type Cache<F, Args> = Mutex<Vec<Arc<Compiled<HostOf<F, Args>>>>>;

/// What a function returns to the host.
type HostOf<F, Args> = <<F as GraphFn<Args>>::Output as Output>::Host;

/// A function that runs in a session; made by [`Session::function`].
///
/// The first call with arguments of given types traces and compiles it; further calls with such types run what was compiled. At
/// most 64 combinations of types are kept, those used last.
pub struct Function<F, Args>
where
    F: GraphFn<Args>,
{
    f: F,
    session: Session,
    name: String,
    options: Options,
    /// Compiled signatures, used last first.
    cache: Cache<F, Args>,
    /// Held while a signature is traced and compiled, so that no other thread does the same.
    compiling: Mutex<()>,
    args: PhantomData<fn(Args)>,
}

/// The flag of calls that end by themselves only.
static NEVER: StopFlag = StopFlag::new();

/// Signatures that are kept.
const MAX_CACHED: usize = 64;

/// A function compiled for one signature.
struct Compiled<H> {
    engine: Engine,
    signature: Vec<TensorType>,
    cells: Vec<Arc<Cell>>,
    lock_order: Vec<usize>,
    assigned: Vec<bool>,
    rebuild: Rebuild<H>,
}

impl<F, Args> Function<F, Args>
where
    F: GraphFn<Args>,
{
    pub(crate) fn new(session: Session, f: F) -> Self {
        let options = session.run;
        Function {
            name: name_of::<F>(),
            f,
            session,
            options,
            cache: Mutex::default(),
            compiling: Mutex::default(),
            args: PhantomData,
        }
    }

    /// Whether every result is checked: the first operation that makes a value which is not finite, out of operands that
    /// are, fails the call with an error at its line. Slower.
    #[must_use]
    pub fn check_finite(mut self, check_finite: bool) -> Self {
        self.options.check_finite = check_finite;
        self.cache = Mutex::default();
        self
    }

    /// Whether calls run by the interpreter, which defines what a graph means: much slower, for comparisons.
    #[must_use]
    pub fn interpreted(mut self, interpreted: bool) -> Self {
        self.options.interpreted = interpreted;
        self.cache = Mutex::default();
        self
    }

    /// Whether loops over numbers become native code, as they do by default; else they are run instruction by instruction. Results are
    /// the same, bit by bit.
    #[must_use]
    pub fn native_code(mut self, native: bool) -> Self {
        self.options.native = native;
        self.cache = Mutex::default();
        self
    }

    /// Whether operations are computed together; see [`Builder::fusion`](crate::Builder::fusion).
    #[must_use]
    pub fn fusion(mut self, fuse: bool) -> Self {
        self.options.fuse = fuse;
        self.cache = Mutex::default();
        self
    }

    /// Whether products are taken out of loops; see [`Builder::hoisting`](crate::Builder::hoisting).
    #[must_use]
    pub fn hoisting(mut self, hoist: bool) -> Self {
        self.options.hoist = hoist;
        self.cache = Mutex::default();
        self
    }

    /// Calls the function: a value for one parameter, a tuple for several, `()` for none.
    ///
    /// ```
    /// use anabranch_dsl::prelude::*;
    /// use anabranch_runtime::Session;
    ///
    /// let session = Session::new()?;
    /// let f = session.function(|x: Tensor, y: Tensor| (x + y, x * y))?;
    /// let (sum, product) = f.call(([1.0, 2.0], 3.0))?;
    /// assert_eq!((sum.to_vec(), product.to_vec()), (vec![4.0, 5.0], vec![3.0, 6.0]));
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    pub fn call(&self, args: impl CallArgs<Args>) -> Result<HostOf<F, Args>> {
        let mut inputs = Vec::new();
        args.feed_all(&mut inputs);
        let compiled = self.compiled(&inputs)?;
        let outputs = self.step(&compiled, &inputs, None)?;
        Ok((compiled.rebuild)(&mut outputs.into_iter()))
    }

    /// Calls the function like [`call`](Self::call), and ends the call with an error of the kind
    /// [`ErrorKind::DeadlineExceeded`](anabranch_dsl::ErrorKind) if it takes longer than `duration`; see
    /// [`call_with`](Self::call_with).
    ///
    /// ```
    /// use anabranch_dsl::{ErrorKind, prelude::*};
    /// use anabranch_runtime::Session;
    /// use std::time::Duration;
    ///
    /// let session = Session::new()?;
    /// let double = session.function(|x: Tensor| x * 2.0)?;
    /// assert_eq!(double.call_within(Duration::from_secs(60), 3.0)?, 6.0);
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    pub fn call_within(&self, duration: Duration, args: impl CallArgs<Args>) -> Result<HostOf<F, Args>> {
        self.call_with(&CallOptions::new().within(duration), args)
    }

    /// Calls the function like [`call`](Self::call), and ends the call with an error when its options say so: between two
    /// operations, or before the next iteration of a loop, which the error names. Then no variable has changed, and the memory of
    /// the step is freed. Waiting for variables that another call holds ends, too; tracing and compiling, which the first call
    /// with arguments of some types does, is done first.
    pub fn call_with(&self, options: &CallOptions, args: impl CallArgs<Args>) -> Result<HostOf<F, Args>> {
        let call = options.begin()?;
        let mut inputs = Vec::new();
        args.feed_all(&mut inputs);
        let compiled = self.compiled(&inputs)?;
        let outputs = self.step(&compiled, &inputs, Some(&call))?;
        Ok((compiled.rebuild)(&mut outputs.into_iter()))
    }

    /// Calls the function like [`call`](Self::call), and says what its devices did when. Of a function that is on one device as a whole
    /// only the time in all is known.
    ///
    /// ```
    /// use anabranch_dsl::prelude::*;
    /// use anabranch_runtime::{Modelled, Session};
    ///
    /// let session = Session::builder().modelled([Modelled::new("/gpu:0"), Modelled::new("/gpu:1")]).build()?;
    /// let f = session.function(|x: Tensor| on("/gpu:0", || x * 2.0).sum() + on("/gpu:1", || x.exp()).sum())?;
    /// let (_, timeline) = f.profile([0.0, 1.0])?;
    /// assert!(timeline.modelled && timeline.spans.iter().any(|span| span.device == "/gpu:1"));
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    pub fn profile(&self, args: impl CallArgs<Args>) -> Result<(HostOf<F, Args>, Timeline)> {
        let mut inputs = Vec::new();
        args.feed_all(&mut inputs);
        let compiled = self.compiled(&inputs)?;
        let profile = |guards: &mut [Guard<'_>], cx: &StepCx<'_>| compiled.engine.profile(&inputs, guards, cx);
        let (outputs, timeline) = self.locked(&compiled, None, profile)?;
        Ok(((compiled.rebuild)(&mut outputs.into_iter()), timeline))
    }

    /// Calls the function like [`call`](Self::call), with its results in the place of those of an earlier call, which have their
    /// types. Results are computed in memory that was given up by an earlier call like this one, and what `results` had is given up for the
    /// next one: so from the second such call on no memory is taken for elements. If the call fails, `results` stays as it was.
    ///
    /// An error if `results` has other types than the function gives.
    ///
    /// ```
    /// use anabranch_dsl::prelude::*;
    /// use anabranch_runtime::Session;
    ///
    /// let session = Session::new()?;
    /// let f = session.function(|x: Tensor| (x * 2.0, x.sum()))?;
    /// let mut results = f.call([1.0, 2.0])?;
    /// f.call_into([3.0, 4.0], &mut results)?;
    /// assert_eq!((results.0.as_slice(), results.1.item()), ([6.0, 8.0].as_slice(), 7.0));
    /// // The results of three numbers have no place in those of two.
    /// assert!(f.call_into([1.0, 2.0, 3.0], &mut results).is_err());
    /// # Ok::<(), anabranch_dsl::Diagnostic>(())
    /// ```
    pub fn call_into(&self, args: impl CallArgs<Args>, results: &mut HostOf<F, Args>) -> Result<()> {
        let mut inputs = Vec::new();
        args.feed_all(&mut inputs);
        let compiled = self.compiled(&inputs)?;
        let mut tensors = Vec::new();
        results.tensors_mut(&mut tensors);
        compiled.check_results(&self.name, &tensors)?;
        let step =
            |guards: &mut [Guard<'_>], cx: &StepCx<'_>| compiled.engine.step_into(&inputs, guards, cx, &mut tensors);
        self.locked(&compiled, None, step)
    }

    /// Calls the function with tensors whose types are checked now, in the order of the parameters; gives all
    /// output tensors in order.
    pub fn call_host(&self, inputs: &[HostTensor]) -> Result<Vec<HostTensor>> {
        self.step(&*self.compiled(inputs)?, inputs, None)
    }

    /// Traces and compiles the function for arguments of the given types, if that was not done before.
    pub fn compile(&self, signature: &[TensorType]) -> Result<()> {
        self.compiled_for(signature).map(|_| ())
    }

    /// What the trace of the function gives for arguments of the given types, before it is optimized.
    pub fn trace_for(&self, signature: &[TensorType]) -> Result<Traced> {
        self.trace(signature).map(|(traced, _)| traced)
    }

    /// The graph that is compiled for arguments of the given types.
    pub fn graph(&self, signature: &[TensorType]) -> Result<Graph> {
        Ok(self.compiled_for(signature)?.engine.graph().clone())
    }

    /// What runs for arguments of the given types, as text: instructions and memory; for each loop whether its iterations depend on
    /// each other; and for each loop and branch what it saves for a gradient, by name, type and line, in bytes for each iteration.
    pub fn explain(&self, signature: &[TensorType]) -> Result<String> {
        Ok(self.compiled_for(signature)?.engine.explain(&self.session.devices))
    }

    fn step(
        &self,
        compiled: &Compiled<HostOf<F, Args>>,
        inputs: &[HostTensor],
        call: Option<&Call>,
    ) -> Result<Vec<HostTensor>> {
        self.locked(compiled, call, |guards, cx| compiled.engine.step(inputs, guards, cx))
    }

    /// Does something with the variables of a function locked, as far as its call does not end before.
    fn locked<T>(
        &self,
        compiled: &Compiled<HostOf<F, Args>>,
        call: Option<&Call>,
        f: impl FnOnce(&mut [Guard<'_>], &StepCx<'_>) -> Result<T>,
    ) -> Result<T> {
        let print = &self.session.print_to;
        let Compiled { cells, lock_order, assigned, .. } = compiled;
        let Some(call) = call else {
            let mut guards = state::lock(cells, lock_order, assigned);
            return f(&mut guards, &StepCx { print, stop: &NEVER });
        };
        let guards = state::lock_unless(cells, lock_order, assigned, &call.flag);
        let (Some(mut guards), None) = (guards, call.flag.get()) else {
            let kind = call.flag.get().expect("only a set flag ends the wait for variables");
            return Err(interp::stopped(kind, &self.name, [], Loc::UNKNOWN));
        };
        f(&mut guards, &StepCx { print, stop: &call.flag })
    }

    fn compiled(&self, inputs: &[HostTensor]) -> Result<Arc<Compiled<HostOf<F, Args>>>> {
        if let Some(found) = self.cached(|c| c.accepts(inputs)) {
            return Ok(found);
        }
        let signature: Vec<TensorType> = inputs.iter().map(HostTensor::ty).collect();
        self.compiled_for(&signature)
    }

    fn cached(&self, fits: impl Fn(&Compiled<HostOf<F, Args>>) -> bool) -> Option<Arc<Compiled<HostOf<F, Args>>>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let i = cache.iter().position(|c| fits(c))?;
        cache[..=i].rotate_right(1);
        Some(cache[0].clone())
    }

    fn compiled_for(&self, signature: &[TensorType]) -> Result<Arc<Compiled<HostOf<F, Args>>>> {
        if trace::is_tracing() {
            let message = format!("`{}` was called in its session while a function is being traced", self.name);
            return Err(Diagnostic::new(message)
                .help("call the Rust function itself: inside of a graph function it is an ordinary function"));
        }
        let _compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = self.cached(|c| c.signature == signature) {
            return Ok(found);
        }
        let (traced, rebuild) = self.trace(signature)?;
        let cells = self.session.state.cells(&traced.vars);
        let graph = crate::optimize::optimize(traced.graph, signature, self.options)?;
        let assigned = assigned(&graph);
        let state = &self.session.state;
        let paths: Vec<Option<String>> = {
            let paths = state.paths();
            traced.vars.iter().map(|v| paths.get(&v.id()).cloned()).collect()
        };
        let engine = Engine::new(graph, &self.session.devices, &paths, self.options, state.results.clone())?;
        let compiled = Arc::new(Compiled {
            signature: signature.to_vec(),
            lock_order: state::lock_order(&cells),
            assigned,
            cells,
            rebuild,
            engine,
        });
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.insert(0, compiled.clone());
        cache.truncate(MAX_CACHED);
        Ok(compiled)
    }

    fn trace(&self, signature: &[TensorType]) -> Result<(Traced, Rebuild<HostOf<F, Args>>)> {
        trace_fn(&self.name, &self.f, signature).map_err(|e| {
            let types: Vec<String> = signature.iter().map(ToString::to_string).collect();
            e.at(Loc::UNKNOWN, format!("while tracing `{}` for ({})", self.name, types.join(", ")))
        })
    }
}

impl<H> Compiled<H> {
    /// Checks the types of tensors in whose place results go.
    fn check_results(&self, name: &str, given: &[&mut HostTensor]) -> Result<()> {
        let graph = self.engine.graph();
        let outputs = graph.outputs();
        if outputs.len() != given.len() {
            let message = format!("`{name}` gives {} tensors, to the place of {}", outputs.len(), given.len());
            return Err(
                Diagnostic::new(message).help("give the results of an earlier call with arguments of these types")
            );
        }
        for (i, (&output, given)) in outputs.iter().zip(given).enumerate() {
            let ty = graph.ty(output).element();
            if !ty.compatible(&given.ty()) {
                let message = format!("`{name}`: result {i} is {ty}, to the place of {}", given.ty());
                return Err(
                    Diagnostic::new(message).help("give the results of an earlier call with arguments of these types")
                );
            }
        }
        Ok(())
    }

    fn accepts(&self, inputs: &[HostTensor]) -> bool {
        self.signature.len() == inputs.len()
            && self.signature.iter().zip(inputs).all(|(ty, t)| {
                ty.dtype == t.dtype()
                    && ty.rank() == t.rank()
                    && ty.shape.dims().iter().zip(t.shape()).all(|(d, &n)| *d == Dim::Known(n))
            })
    }
}

impl<F, Args> std::fmt::Debug for Function<F, Args>
where
    F: GraphFn<Args>,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Function").field("name", &self.name).field("options", &self.options).finish_non_exhaustive()
    }
}

/// For each variable of a graph whether it is assigned.
fn assigned(graph: &Graph) -> Vec<bool> {
    let mut assigned = vec![false; graph.vars.len()];
    graph.visit_nodes(graph.root(), &mut |node| {
        if let Op::Assign(var) = graph.node(node).op {
            assigned[var.index()] = true;
        }
    });
    assigned
}

/// The name of a function in messages and graphs: the last part of its path, or of the function that a closure is in.
fn name_of<F>() -> String {
    let path = std::any::type_name::<F>();
    let path = path.split('<').next().unwrap_or(path);
    path.split("::").filter(|part| !part.contains('{')).last().unwrap_or("main").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of_value<F>(_: &F) -> String {
        name_of::<F>()
    }

    #[test]
    fn functions_are_named_by_their_path() {
        fn inner() {}
        assert_eq!(name_of_value(&inner), "inner");
        assert_eq!(name_of_value(&|| ()), "functions_are_named_by_their_path");
    }
}
