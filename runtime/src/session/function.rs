//! Functions of a session: traced and compiled once for each combination of argument types, then
//! run.

use crate::device::timeline::Timeline;
#[cfg(feature = "testing")]
use crate::options::CpuOptions;
use crate::options::{CompileOptions, MatmulPrecision};
use crate::session::Session;
use crate::session::call::{CallOptions, RunningCall};
use crate::session::compiled::{Cache, Compiled, begin};
use crate::session::prune::{PruneKey, PrunedFunction};
use crate::session::stepped::SteppedFunction;
use anabranch_dsl::function::{Arguments, CallArgs, GraphFn, Output, Rebuild, Results, Signature, name_of, trace_fn};
use anabranch_dsl::passes::Assignments;
use anabranch_dsl::trace::Traced;
use anabranch_dsl::{Diagnostic, Graph, HostTensor, Loc, Result, TensorType};
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

/// The type that a function returns to the host.
type HostOf<F, Args> = <<F as GraphFn<Args>>::Output as Output>::Host;

/// A function that runs in a session, created by [`Session::function`].
///
/// The first call with arguments of given types traces and compiles it. Further calls with these
/// types run the compiled function. A function keeps the 64 most recently used combinations of
/// types.
pub struct Function<F, Args>
where
    F: GraphFn<Args>,
{
    f: F,
    session: Session,
    name: String,
    options: CompileOptions,
    /// Compiled signatures.
    cache: Cache<Typed<HostOf<F, Args>>>,
    /// The requested pruned parts.
    pruned: Cache<PrunedFunction>,
    args: PhantomData<fn(Args)>,
}

/// A function compiled for one signature, with the Rust types of its results.
struct Typed<H> {
    signature: Signature,
    compiled: CompiledSteps,
    rebuild: Rebuild<H>,
}

/// A function as one step, or as several.
#[expect(clippy::large_enum_variant, reason = "nearly all functions are one step")]
enum CompiledSteps {
    One(Compiled),
    Several(Box<SteppedFunction>),
}

impl CompiledSteps {
    fn run(&self, session: &Session, inputs: &[HostTensor], call: Option<&RunningCall>) -> Result<Vec<HostTensor>> {
        match self {
            CompiledSteps::One(compiled) => compiled.step(session, inputs, call),
            CompiledSteps::Several(steps) => steps.run(session, inputs, call),
        }
    }

    /// Returns the only step.
    fn only(&self, name: &str, what: &str) -> Result<&Compiled> {
        match self {
            CompiledSteps::One(compiled) => Ok(compiled),
            CompiledSteps::Several(_) => {
                let message = format!("`{name}` runs as several steps, one for each iteration of its loop: {what}");
                Err(Diagnostic::new(message).help("remove `commit_each_iteration`, or ask for a function without it"))
            }
        }
    }
}

// A caught panic leaves the session valid, and the Rust function itself is called only while
// tracing.
impl<F: GraphFn<Args> + UnwindSafe, Args> UnwindSafe for Function<F, Args> {}
impl<F: GraphFn<Args> + RefUnwindSafe, Args> RefUnwindSafe for Function<F, Args> {}

impl<F, Args> Function<F, Args>
where
    F: GraphFn<Args>,
{
    pub(crate) fn new(session: Session, f: F, at: Loc) -> Self {
        let options = session.run;
        Function {
            name: name_of(&f, at),
            f,
            session,
            options,
            cache: Cache::default(),
            pruned: Cache::default(),
            args: PhantomData,
        }
    }

    /// Sets whether every result is checked.
    ///
    /// The first operation that computes a value that is not finite from finite operands then fails
    /// the call with an error at its line. Checked calls are slower.
    #[must_use]
    pub fn check_finite(self, check_finite: bool) -> Self {
        let options = CompileOptions { check_finite, ..self.options };
        self.with_options(options)
    }

    /// Sets whether the interpreter runs the calls. The interpreter defines the semantics of a
    /// graph and is much slower.
    #[must_use]
    pub fn interpreted(self, interpreted: bool) -> Self {
        let options = CompileOptions { interpreted, ..self.options };
        self.with_options(options)
    }

    /// Sets whether matmuls of `f32` may round their operands: see
    /// [`SessionBuilder::matmul_precision`](crate::SessionBuilder::matmul_precision).
    #[must_use]
    pub fn matmul_precision(self, matmul_precision: MatmulPrecision) -> Self {
        let options = CompileOptions { matmul_precision, ..self.options };
        self.with_options(options)
    }

    /// Sets whether loops over numbers become native code. The default is true. Otherwise they run
    /// instruction by instruction; results are bitwise identical.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn native_code(self, native: bool) -> Self {
        let options = CompileOptions { cpu: CpuOptions { native, ..self.options.cpu }, ..self.options };
        self.with_options(options)
    }

    /// Sets whether operations are fused; see
    /// [`SessionBuilder::fusion`](crate::SessionBuilder::fusion).
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn fusion(self, fuse: bool) -> Self {
        let options = CompileOptions { fuse, ..self.options };
        self.with_options(options)
    }

    /// Sets whether matmuls are hoisted out of loops; see
    /// [`SessionBuilder::hoisting`](crate::SessionBuilder::hoisting).
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn hoisting(self, hoist: bool) -> Self {
        let options = CompileOptions { hoist, ..self.options };
        self.with_options(options)
    }

    /// Returns the function with other options. Plans compiled with the previous options are
    /// dropped.
    fn with_options(self, options: CompileOptions) -> Self {
        Function { options, cache: Cache::default(), pruned: Cache::default(), ..self }
    }

    /// Calls the function. `args` is a value for one parameter, a tuple for several, and `()` for
    /// none.
    ///
    /// ```
    /// use anabranch::prelude::*;
    /// use anabranch::Session;
    ///
    /// let session = Session::new()?;
    /// let f = session.function(|x: Tensor, y: Tensor| (x + y, x * y))?;
    /// let (sum, product) = f.call(([1.0, 2.0], 3.0))?;
    /// assert_eq!((sum.to_vec(), product.to_vec()), (vec![4.0, 5.0], vec![3.0, 6.0]));
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn call(&self, args: impl CallArgs<Args>) -> Result<HostOf<F, Args>> {
        self.call_in(None, args)
    }

    /// Calls the function like [`call`](Self::call), with a time limit.
    ///
    /// If the call takes longer than `duration`, it ends with an error of the kind
    /// [`ErrorKind::DeadlineExceeded`](anabranch_dsl::ErrorKind); see
    /// [`call_with`](Self::call_with).
    ///
    /// ```
    /// use anabranch::{ErrorKind, prelude::*};
    /// use anabranch::Session;
    /// use std::time::Duration;
    ///
    /// let session = Session::new()?;
    /// let double = session.function(|x: Tensor| x * 2.0)?;
    /// assert_eq!(double.call_timeout(Duration::from_secs(60), 3.0)?, 6.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn call_timeout(&self, duration: Duration, args: impl CallArgs<Args>) -> Result<HostOf<F, Args>> {
        self.call_with(&CallOptions::new().timeout(duration), args)
    }

    /// Calls the function like [`call`](Self::call), and ends the call with an error when its
    /// options say so.
    ///
    /// A call ends between two operations, or before the next iteration of a loop, which the error
    /// names. Then no variable has changed, and the memory of the step is freed. In a function that
    /// [commits each iteration](anabranch_dsl::commit_each_iteration), the steps that have ended
    /// stay: what comes before the loop, and iterations. Waiting for another call that assigns the
    /// same variables also ends. Tracing and compiling, which the first call with arguments of some
    /// types does, are finished first.
    pub fn call_with(&self, options: &CallOptions, args: impl CallArgs<Args>) -> Result<HostOf<F, Args>> {
        self.call_in(Some(options), args)
    }

    fn call_in(&self, options: Option<&CallOptions>, args: impl CallArgs<Args>) -> Result<HostOf<F, Args>> {
        let call = begin(options)?;
        let arguments = Arguments::of(args);
        let Typed { compiled, rebuild, .. } = &*self.compiled(&arguments)?;
        let outputs = compiled.run(&self.session, arguments.tensors(), call.as_ref())?;
        Ok(rebuild(&mut outputs.into_iter()))
    }

    /// Calls the function like [`call`](Self::call), and returns a timeline of its devices.
    ///
    /// For a function on a single CPU, the timeline has the time of each kernel and of each loop
    /// in native code; on a single GPU it has only the total time. [`Timeline::by_operation`] adds
    /// them up, and [`Timeline::to_chrome_trace`] writes them for Perfetto.
    ///
    /// ```
    /// use anabranch::prelude::*;
    /// use anabranch::Session;
    ///
    /// let f = Session::new()?.function(|x: Tensor| x.matmul(x).tanh().sum())?;
    /// let (_, timeline) = f.profile([[1.0, 2.0], [3.0, 4.0]])?;
    /// assert!(timeline.by_operation().0.iter().any(|of| of.name.contains("matmul")));
    /// println!("{}", timeline.by_operation());
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// On several devices the timeline also has the transfers.
    ///
    /// ```
    /// use anabranch::prelude::*;
    /// use anabranch::{Session, SimulatedDevice};
    ///
    /// let session = Session::builder()
    ///     .simulated([SimulatedDevice::new("/gpu:0"), SimulatedDevice::new("/gpu:1")])
    ///     .build()?;
    /// let f = session.function(|x: Tensor| {
    ///     on("/gpu:0", || x * 2.0).sum() + on("/gpu:1", || x.exp()).sum()
    /// })?;
    /// let (_, timeline) = f.profile([0.0, 1.0])?;
    /// assert!(timeline.simulated && timeline.spans.iter().any(|span| span.device == "/gpu:1"));
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn profile(&self, args: impl CallArgs<Args>) -> Result<(HostOf<F, Args>, Timeline)> {
        let arguments = Arguments::of(args);
        let Typed { compiled, rebuild, .. } = &*self.compiled(&arguments)?;
        let compiled = compiled.only(&self.name, "it has no timeline")?;
        let inputs = arguments.tensors();
        let (outputs, timeline) = compiled.profile(&self.session, inputs)?;
        Ok((rebuild(&mut outputs.into_iter()), timeline))
    }

    /// Calls the function like [`call`](Self::call), and replaces the results of an earlier call.
    ///
    /// Results are computed in memory released by earlier calls of the same types, and the memory
    /// of the replaced results is released for the next call. So from the second such call on, no
    /// memory is allocated for elements. If the call fails, `results` is unchanged.
    ///
    /// # Errors
    /// Fails if `results` has other types than the results of the function.
    ///
    /// ```
    /// use anabranch::prelude::*;
    /// use anabranch::Session;
    ///
    /// let session = Session::new()?;
    /// let f = session.function(|x: Tensor| (x * 2.0, x.sum()))?;
    /// let mut results = f.call([1.0, 2.0])?;
    /// f.call_into([3.0, 4.0], &mut results)?;
    /// assert_eq!((results.0.as_slice(), results.1.item()), ([6.0, 8.0].as_slice(), 7.0));
    /// // The results of three numbers have no place in those of two.
    /// assert!(f.call_into([1.0, 2.0, 3.0], &mut results).is_err());
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn call_into(&self, args: impl CallArgs<Args>, results: &mut HostOf<F, Args>) -> Result<()> {
        let arguments = Arguments::of(args);
        let (typed, inputs) = (self.compiled(&arguments)?, arguments.tensors());
        let compiled = typed.compiled.only(&self.name, "it cannot replace earlier results")?;
        let mut tensors = Vec::new();
        results.tensors_mut(&mut tensors);
        if let Err(wrong) = check_results(compiled.graph(), &tensors) {
            return Err(wrong.diagnostic(&self.name, results));
        }
        compiled.step_into(&self.session, inputs, &mut tensors)
    }

    /// Calls the function with tensors in the order of its parameters, whose types are checked at
    /// run time. Returns all output tensors in order.
    pub fn call_host(&self, inputs: &[HostTensor]) -> Result<Vec<HostTensor>> {
        let types: Vec<_> = inputs.iter().map(HostTensor::ty).collect();
        self.compiled_for((&types).into())?.compiled.run(&self.session, inputs, None)
    }

    /// Traces and compiles the function for arguments of the given types, unless that is done
    /// already.
    pub fn compile(&self, signature: impl Into<Signature>) -> Result<()> {
        self.compiled_for(signature.into()).map(|_| ())
    }

    /// Returns the part of the function that computes the values `fetches` from the values `feeds`,
    /// for arguments of the types in `signature`.
    ///
    /// The part is traced, optimized, placed and compiled once: the function keeps it, and the next
    /// call with the same types, feeds and fetches returns it.
    ///
    /// - The name of a value is set by [`Tensor::named`](anabranch_dsl::Tensor::named), and the
    ///   name of a parameter of a `#[graph]` function by its declaration. `input 0` and `result 0`
    ///   are the first input and output tensors. Values inside branches, loops and checkpoints
    ///   cannot be fed or fetched.
    /// - A feed replaces the value wherever the function uses it, gradients included. Operations
    ///   that only served to compute it do not run. Every parameter that is needed must be fed;
    ///   other values may be. A feed may also be fetched.
    /// - No element is added to a queue and no file is saved. No element is removed, and no file is
    ///   read, unless a fetch depends on it.
    /// - No variable is assigned. A fetch that depends on an assigned value is computed from that
    ///   value nevertheless. For steps that assign see [`prune_step`](Self::prune_step).
    /// - A print or an assertion stays if all its operands are fed or computed anyway, and so do
    ///   those inside branches and loops that stay. Other observable operations are removed, with
    ///   the operations that only they need.
    ///
    /// # Errors
    /// - A name has no value, several values, or a value inside a branch or loop. The error lists
    ///   the existing names, or the lines of the values.
    /// - A value is fed twice, or is fed although it is not a parameter and no fetch depends on it.
    /// - A needed parameter is not fed, or nothing is fetched.
    /// - The function itself fails to trace or compile.
    ///
    /// ```
    /// use anabranch::{DType, HostTensor, TensorType, prelude::*};
    /// use anabranch::Session;
    ///
    /// let session = Session::new()?;
    /// let w = Var::<f32>::new("w", 3.0);
    /// let train = session.function(|x: Tensor| {
    ///     let y = (x.named("x") * w.get()).named("y");
    ///     let loss = (y - 1.0).square().sum().named("loss");
    ///     w.set(w.get() - gradients(loss, w.get()) * 0.1);
    ///     loss
    /// })?;
    /// let number = [TensorType::new(DType::F32, [])];
    /// let loss = train.prune(&number, &["x"], &["loss"])?;
    /// assert_eq!(loss.call(&[HostTensor::scalar(1.0f32)])?, [HostTensor::scalar(4.0f32)]);
    /// assert_eq!(session.get(&w)?, 3.0); // It has not trained.
    ///
    /// let from_y = train.prune(&number, &["y"], &["loss"])?;
    /// assert_eq!(from_y.call(&[HostTensor::scalar(6.0f32)])?, [HostTensor::scalar(25.0f32)]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn prune(&self, signature: impl Into<Signature>, feeds: &[&str], fetches: &[&str]) -> Result<PrunedFunction> {
        self.pruned(signature.into(), feeds, fetches, Assignments::Drop)
    }

    /// Returns the part of the function that makes all its assignments and operations on queues and
    /// files, and computes the values `fetches`, which may be empty, from the values `feeds`.
    ///
    /// For example, it trains on precomputed features. Otherwise it is like [`prune`](Self::prune).
    ///
    /// ```
    /// use anabranch::{DType, HostTensor, TensorType, prelude::*};
    /// use anabranch::Session;
    ///
    /// let session = Session::new()?;
    /// let w = Var::<f32>::new("w", 3.0);
    /// let train = session.function(|x: Tensor| {
    ///     let features = x.exp().sum().named("features");
    ///     let loss = (features * w.get() - 1.0).square();
    ///     w.set(w.get() - gradients(loss, w.get()) * 0.125);
    ///     loss
    /// })?;
    /// let step = train.prune_step(&[TensorType::new(DType::F32, [9])], &["features"], &[])?;
    /// step.call(&[HostTensor::scalar(1.0f32)])?;
    /// assert_eq!(session.get(&w)?, 2.5);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn prune_step(
        &self,
        signature: impl Into<Signature>,
        feeds: &[&str],
        fetches: &[&str],
    ) -> Result<PrunedFunction> {
        self.pruned(signature.into(), feeds, fetches, Assignments::Keep)
    }

    fn pruned(
        &self,
        signature: Signature,
        feeds: &[&str],
        fetches: &[&str],
        assignments: Assignments,
    ) -> Result<PrunedFunction> {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let signature = signature.with_lengths(F::PARAMETERS)?;
        let key = PruneKey { signature, feeds: owned(feeds), fetches: owned(fetches), assignments };
        let made = self.pruned.get_or_insert_with(
            &self.name,
            |p| *p.key() == key,
            || {
                let (traced, _) = self.trace(&key.signature)?;
                PrunedFunction::new(&self.session, &traced, key.clone(), self.options)
            },
        )?;
        Ok((*made).clone())
    }

    /// Traces the function for arguments of the given types. Returns the trace before optimization.
    #[doc(hidden)]
    pub fn trace_for(&self, signature: impl Into<Signature>) -> Result<Traced> {
        self.trace(&signature.into().with_lengths(F::PARAMETERS)?).map(|(traced, _)| traced)
    }

    /// Returns the graph that is compiled for arguments of the given types.
    pub fn graph(&self, signature: impl Into<Signature>) -> Result<Graph> {
        let typed = self.compiled_for(signature.into())?;
        Ok(typed.compiled.only(&self.name, "it has several graphs")?.graph().clone())
    }

    /// Returns the plan for arguments of the given types as text.
    ///
    /// The text shows instructions and memory; for each loop, whether its iterations depend on each
    /// other; and for each loop and branch the values that it saves for a gradient, with name,
    /// type, line and bytes per iteration.
    pub fn explain(&self, signature: impl Into<Signature>) -> Result<String> {
        match &self.compiled_for(signature.into())?.compiled {
            CompiledSteps::One(compiled) => Ok(compiled.explain(&self.session.devices)),
            CompiledSteps::Several(steps) => steps.explain(&self.session),
        }
    }

    fn compiled(&self, arguments: &Arguments) -> Result<Arc<Typed<HostOf<F, Args>>>> {
        match self.cache.find(|c| c.signature.is_of(arguments)) {
            Some(found) => Ok(found),
            None => self.compiled_for(arguments.signature()),
        }
    }

    fn compiled_for(&self, signature: Signature) -> Result<Arc<Typed<HostOf<F, Args>>>> {
        let signature = signature.with_lengths(F::PARAMETERS)?;
        let fits = |c: &Typed<_>| c.signature == signature;
        if let Some(found) = self.cache.find(fits) {
            return Ok(found);
        }
        self.cache.get_or_insert_with(&self.name, fits, || {
            let (traced, rebuild) = self.trace(&signature)?;
            let types = signature.types();
            let Traced { vars, queues, .. } = &traced;
            let compiled = match &traced.commit_loop {
                Some(commit) => {
                    let steps = SteppedFunction::new(&self.session, &traced, commit, self.options)?;
                    CompiledSteps::Several(Box::new(steps))
                }
                None => {
                    let graph = traced.graph.clone();
                    CompiledSteps::One(Compiled::new(&self.session, graph, vars, queues, types, self.options)?)
                }
            };
            Ok(Typed { signature: signature.clone(), compiled, rebuild })
        })
    }

    fn trace(&self, signature: &Signature) -> Result<(Traced, Rebuild<HostOf<F, Args>>)> {
        trace_fn(&self.name, &self.f, signature).map_err(|e| {
            let types: Vec<String> = signature.types().iter().map(ToString::to_string).collect();
            e.at(Loc::UNKNOWN, format!("while tracing `{}` for ({})", self.name, types.join(", ")))
        })
    }
}

/// A difference between the results of a graph and the tensors that they replace.
enum ResultMismatch {
    /// The number of results, and of the tensors that they replace.
    Number(usize, usize),
    /// The type of a result, and a different type of the tensor that it replaces.
    Type { i: usize, ty: TensorType, given: TensorType },
}

impl ResultMismatch {
    fn diagnostic(self, name: &str, results: &impl Results) -> Diagnostic {
        let message = match self {
            ResultMismatch::Number(n, given) => {
                format!("`{name}` returns {n} tensors, but `call_into` received {given}")
            }
            ResultMismatch::Type { i, ty, given } => {
                let path = results.path_of(&mut i.clone()).unwrap_or_default();
                format!("`{name}`: result {i}{path} is {ty}, but `call_into` received {given}")
            }
        };
        Diagnostic::new(message).help("pass the results of an earlier call with arguments of these types")
    }
}

/// Checks the types of the tensors that the results of a graph replace.
fn check_results(graph: &Graph, given: &[&mut HostTensor]) -> std::result::Result<(), ResultMismatch> {
    let outputs = graph.outputs();
    if outputs.len() != given.len() {
        return Err(ResultMismatch::Number(outputs.len(), given.len()));
    }
    for (i, (&output, given)) in outputs.iter().zip(given).enumerate() {
        let ty = graph.ty(output).element();
        if !ty.compatible(&given.ty()) {
            return Err(ResultMismatch::Type { i, ty: ty.clone(), given: given.ty() });
        }
    }
    Ok(())
}

impl<F, Args> std::fmt::Debug for Function<F, Args>
where
    F: GraphFn<Args>,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Function").field("name", &self.name).field("options", &self.options).finish_non_exhaustive()
    }
}
