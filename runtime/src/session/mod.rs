//! Sessions, which compile functions and own the values of variables.

pub(crate) mod call;
mod chosen;
mod compiled;
mod devices;
#[cfg(feature = "peers")]
mod environment;
pub(crate) mod files;
pub(crate) mod function;
mod part;
mod placed;
pub(crate) mod prune;
pub(crate) mod queues;
mod shared;
pub(crate) mod snapshot;
mod stepped;
mod unoptimized;

use self::files::TensorFiles;
use self::queues::{QueueContent, QueueStore};
use crate::device::variables::{VarAccess, VarStore};
use crate::device::{DeviceSource, HostSide, PrintTo, SimulatedDevice};
use crate::flow;
#[cfg(feature = "testing")]
use crate::options::CpuOptions;
use crate::options::{CompileOptions, MatmulPrecision};
use crate::place::Rules;
use crate::threads::ThreadLimit;
use anabranch_dsl::device::DeviceName;
use anabranch_dsl::format::Stream;
use anabranch_dsl::function::GraphFn;
use anabranch_dsl::queue::AnyQueue;
use anabranch_dsl::var::check_value;
use anabranch_dsl::{AnyVar, Array, Diagnostic, Element, HostTensor, IntoArray, Loc, Module, Result, Var};
use devices::{Devices, DevicesOfMachine};
use function::Function;
use std::collections::HashMap;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// An environment in which functions run: the CPU of this machine, as one device or several. A
/// session owns the current values of variables.
///
/// A clone is another handle of the same session. Functions may be called from several threads at
/// once. Calls are atomic and serializable. A call that assigns no variable sees all variables as
/// they were when it began, and waits for another call at most while that call writes its new
/// values. Calls that assign variables wait for each other if one assigns a variable that the other
/// uses. A variable stays on the device of the first function that uses it.
///
/// ```
/// use anabranch::prelude::*;
/// use anabranch::Session;
///
/// let session = Session::new()?;
/// let double = session.function(|x: Tensor| x * 2.0)?;
/// assert_eq!(double.call(3.0)?, 6.0);
/// assert_eq!(double.call([1.0, 2.0])?.as_slice(), [2.0, 4.0]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone)]
pub struct Session {
    pub(crate) state: Arc<VarStore>,
    pub(crate) devices: Arc<Devices>,
    pub(crate) run: CompileOptions,
    /// The host side of steps without queues and files.
    pub(crate) host: HostSide,
    pub(crate) queues: Arc<QueueStore>,
    pub(crate) files: Option<Arc<dyn TensorFiles>>,
    /// The limit of the threads that compute one call.
    pub(crate) threads: Option<usize>,
}

// A panic leaves a session unchanged, so catching one is harmless. Variables change at the very end
// of a step, when no code of the program or the caller runs. Data behind a lock is consistent at
// each point where something may panic, so locks are used after a panic. The memory of a step that
// panics is dropped. The print callback is called through a shared reference, from several threads
// at once, so other threads must expect a panic in it anyway.
impl UnwindSafe for Session {}
impl RefUnwindSafe for Session {}

/// Settings of a session.
#[derive(Clone, Default)]
#[must_use]
pub struct SessionBuilder {
    run: CompileOptions,
    print_to: Option<PrintTo>,
    files: Option<Arc<dyn TensorFiles>>,
    cpus: Option<usize>,
    threads: Option<usize>,
    measure: Option<bool>,
    simulated: Option<Vec<SimulatedDevice>>,
    /// The devices beside the CPUs.
    others: Vec<Arc<dyn DeviceSource>>,
    rules: Vec<(String, String)>,
    /// The device of everything that is not constrained otherwise.
    default: Option<String>,
    flow: flow::PartitionOptions,
    #[cfg(feature = "peers")]
    cluster: crate::peer::ClusterOptions,
}

impl fmt::Debug for SessionBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionBuilder").field("run", &self.run).field("cpus", &self.cpus).finish_non_exhaustive()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("devices", &self.devices()).finish_non_exhaustive()
    }
}

/// The maximum number of CPU devices of a session.
const MAX_CPUS: usize = 1024;

/// The maximum number of threads of a session.
const MAX_THREADS: usize = 1024;

impl SessionBuilder {
    /// Sets whether functions check every result for values that are not finite, unless they have
    /// their own setting.
    pub fn check_finite(self, check_finite: bool) -> SessionBuilder {
        SessionBuilder { run: CompileOptions { check_finite, ..self.run }, ..self }
    }

    /// Sets whether the interpreter runs functions, unless they have their own setting.
    pub fn interpreted(self, interpreted: bool) -> SessionBuilder {
        SessionBuilder { run: CompileOptions { interpreted, ..self.run }, ..self }
    }

    /// Sets whether matmuls of `f32` may round their operands to `bf16`, unless functions have
    /// their own setting. The default is [`MatmulPrecision::Full`].
    ///
    /// CPUs with AMX (Intel's since Sapphire Rapids) on Linux multiply `bf16` several times faster
    /// than `f32`. Other devices compute in full precision, and so do matmuls of other types,
    /// matmuls with an extent below 16, convolutions, attention, and functions with
    /// [`check_finite`](Function::check_finite). A right operand that a loop does not change is
    /// rounded for any number of rows. Gradients of matmuls are matmuls like others.
    /// [`Function::explain`] shows which ones are rounded.
    ///
    /// The first such function asks Linux for the permission to use the unit for the whole process.
    /// Linux refuses it if a thread has an alternate signal stack that is too small for the state
    /// of the unit. Then nothing is rounded.
    ///
    /// ```
    /// use anabranch::prelude::*;
    /// use anabranch::{MatmulPrecision, Session};
    ///
    /// let session = Session::builder().matmul_precision(MatmulPrecision::Bf16).build()?;
    /// let product = session.function(|x: Tensor, w: Tensor| x.matmul(w))?;
    /// let ones = Array::new([64, 64], vec![1.0f32; 64 * 64]);
    /// assert_eq!(product.call((&ones, &ones))?, Array::new([64, 64], vec![64.0; 64 * 64]));
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn matmul_precision(self, matmul_precision: MatmulPrecision) -> SessionBuilder {
        SessionBuilder { run: CompileOptions { matmul_precision, ..self.run }, ..self }
    }

    /// Sets whether plain loops stand in for a unit that multiplies tiles, on every processor.
    #[cfg(feature = "testing")]
    pub fn emulated_tiles(self, emulates_tiles: bool) -> SessionBuilder {
        SessionBuilder {
            run: CompileOptions { cpu: CpuOptions { emulates_tiles, ..self.run.cpu }, ..self.run },
            ..self
        }
    }

    /// Sets whether the interpreter runs functions that the compiler fails at.
    ///
    /// By default such a call ends with an error that says what failed, because a program that is
    /// suddenly a hundred times slower is hard to notice. Mistakes in the function itself are
    /// errors in any case.
    pub fn interpreter_fallback(self, fallback: bool) -> SessionBuilder {
        SessionBuilder { run: CompileOptions { fallback, ..self.run }, ..self }
    }

    /// Sets whether loops over numbers become native code. The default is true. Otherwise they run
    /// instruction by instruction; results are bitwise identical.
    #[cfg(feature = "testing")]
    pub fn native_code(self, native: bool) -> SessionBuilder {
        SessionBuilder { run: self.run.with_native(native), ..self }
    }

    /// Sets how many iterations of a parallel loop run side by side. With 0, they run one by one;
    /// results are bitwise identical.
    #[cfg(feature = "testing")]
    pub fn lanes(self, lanes: usize) -> SessionBuilder {
        SessionBuilder { run: CompileOptions { cpu: CpuOptions { lanes, ..self.run.cpu }, ..self.run }, ..self }
    }

    /// Sets whether operations are fused into one pass over memory, and variables updated in place.
    /// The default is true. Without fusion, operations run one after the other, and sums may be
    /// rounded in another order.
    #[cfg(feature = "testing")]
    pub fn fusion(self, fuse: bool) -> SessionBuilder {
        SessionBuilder { run: CompileOptions { fuse, ..self.run }, ..self }
    }

    /// Sets whether matmuls in loops over sequences are merged and hoisted. The default is true.
    /// Otherwise they stay as written, and sums may be rounded in another order.
    #[cfg(feature = "testing")]
    pub fn hoisting(self, hoist: bool) -> SessionBuilder {
        SessionBuilder { run: CompileOptions { hoist, ..self.run }, ..self }
    }

    /// Sets the receiver of printed text, in place of standard output and standard error.
    ///
    /// `to` receives the text of each `println!` or `dbg!` on tensors when it happens, from calls
    /// on several threads at once. Text that a step has printed stays printed if the step fails
    /// later.
    ///
    /// ```
    /// use anabranch::prelude::*;
    /// use std::sync::{Arc, Mutex};
    ///
    /// let printed = Arc::new(Mutex::new(String::new()));
    /// let to = printed.clone();
    /// let session = Session::builder()
    ///     .print_to(move |_stream, text| to.lock().unwrap().push_str(text))
    ///     .build()?;
    /// #[graph]
    /// fn show(x: Tensor) {
    ///     println!("{x:.1}");
    /// }
    ///
    /// let f = session.function(show)?;
    /// f.call([0.5, 2.0])?;
    /// assert_eq!(*printed.lock().unwrap(), "[0.5, 2.0]\n");
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn print_to(self, to: impl Fn(Stream, &str) + Send + Sync + 'static) -> SessionBuilder {
        SessionBuilder { print_to: Some(Arc::new(to)), ..self }
    }

    /// Sets where functions save and restore tensors, such as `SafetensorFiles` of
    /// `anabranch::checkpoints`, which has an example. By default there are no files, and a
    /// function that uses one is an error.
    pub fn tensor_files(self, files: impl TensorFiles + 'static) -> SessionBuilder {
        SessionBuilder { files: Some(Arc::new(files)), ..self }
    }

    /// Sets the number of CPU devices, named `/cpu:0`, `/cpu:1`, and so on. The devices share the
    /// cores of this machine. The default is 1.
    ///
    /// A function runs on several of them if the program asks for it ([`on`](anabranch_dsl::on),
    /// [`Var::on`], [`place`](Self::place)), or if the cost model predicts a gain.
    ///
    /// ```
    /// use anabranch::prelude::*;
    /// use anabranch::Session;
    ///
    /// let session = Session::builder().cpus(2).build()?;
    /// let f = session.function(|x: Tensor| on("/cpu:1", || x * 2.0) + 1.0)?;
    /// assert_eq!(f.call(3.0)?, 7.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn cpus(self, n: usize) -> SessionBuilder {
        SessionBuilder { cpus: Some(n), ..self }
    }

    /// Limits the threads that compute one call to `n`. Values are bitwise independent of the
    /// limit.
    ///
    /// A call runs on its caller's thread. Threads of the process help it with kernels that are
    /// worth several threads, unless there is already a thread at work for each core. All sessions
    /// share these helpers, one less than there are cores, unless the environment variable
    /// `RAYON_NUM_THREADS` gives another number of threads. By default a call is computed by as
    /// many threads as there are cores, or, inside a rayon pool, as the pool has.
    ///
    /// A helper that has had work looks for more for a millisecond before it sleeps, since it takes
    /// long to wake. The environment variable `ANABRANCH_SPIN` sets another number of microseconds.
    ///
    /// With a limit of 1 a call is computed by its caller alone. Several CPU devices have threads
    /// of their own and share the `n` threads equally, with at least one each. Placement ignores
    /// the limit.
    ///
    /// ```
    /// use anabranch::prelude::*;
    /// use anabranch::Session;
    ///
    /// let session = Session::builder().threads(1).build()?;
    /// let f = session.function(|x: Tensor| x.matmul(x).sum())?;
    /// assert_eq!(f.call([[1.0, 2.0], [3.0, 4.0]])?, 54.0);
    /// assert!(Session::builder().threads(0).build().is_err());
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn threads(self, n: usize) -> SessionBuilder {
        SessionBuilder { threads: Some(n), ..self }
    }

    /// Sets whether the speed of several CPU devices is measured, which takes some tens of
    /// milliseconds when the session is created. It has no effect on CPUs of a session with GPUs.
    /// The links to peers and between them are measured, too, which takes a fraction of a second
    /// for each.
    ///
    /// By default, placement assumes cores of a typical machine, and only the links to peers are
    /// tested, which takes some tens of milliseconds for each within a local network and a few
    /// seconds over a slow one. A link whose test takes longer counts as very slow. With `false`,
    /// links are not tested, and a local network of 10 Gbit/s is assumed. `Session::link_reports`
    /// says what was found.
    ///
    /// A measured session may place a function differently than another session on the same
    /// machine, and so round sums in another order. This is unlikely by default, as placement
    /// rounds the rates of the brief test. [`Function::explain`] shows the rates.
    ///
    /// ```
    /// use anabranch::Session;
    ///
    /// let session = Session::builder().cpus(2).measure_devices(true).build()?;
    /// assert_eq!(session.devices().len(), 2);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn measure_devices(self, measure: bool) -> SessionBuilder {
        SessionBuilder { measure: Some(measure), ..self }
    }

    /// Uses simulated devices instead of those of this machine. Values are right, and
    /// [`Function::profile`] returns how long the computation would have taken.
    pub fn simulated(self, devices: impl IntoIterator<Item = SimulatedDevice>) -> SessionBuilder {
        SessionBuilder { simulated: Some(devices.into_iter().collect()), ..self }
    }

    /// Adds a GPU. The first is `/gpu:0`, the next `/gpu:1`, and so on; an adapter may be added
    /// several times. The session still has its CPU devices, which run what has no shader.
    ///
    /// ```
    /// use anabranch::prelude::*;
    /// use anabranch::{Session, gpu_adapters};
    ///
    /// // This machine may have none.
    /// let Some(adapter) = gpu_adapters().into_iter().next() else { return Ok(()) };
    /// let session = Session::builder().gpu(&adapter).build()?;
    /// let f = session.function(|x: Tensor| on("/gpu:0", || (x * 2.0).sum()))?;
    /// assert_eq!(f.call([1.0, 2.0])?, 6.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[cfg(feature = "gpu")]
    pub fn gpu(self, adapter: &crate::gpu::GpuAdapter) -> SessionBuilder {
        self.with_devices(1, adapter.clone())
    }

    /// Adds `n` devices for comparisons of engines: `/gpu:0`, `/gpu:1`, and so on. The host cannot
    /// read their memory. They complete work late and in a random order, and have no kernels for
    /// prints and for `f64`. They are slow.
    #[cfg(feature = "testing")]
    pub fn opaque_devices(self, n: usize) -> SessionBuilder {
        self.with_devices(n, crate::device::OpaqueSource)
    }

    /// Adds `n` devices of this machine to the CPUs.
    #[cfg(any(feature = "gpu", feature = "testing"))]
    fn with_devices(mut self, n: usize, source: impl DeviceSource + 'static) -> SessionBuilder {
        self.run = source.limited(self.run);
        self.others.extend(std::iter::repeat_n(Arc::new(source) as Arc<dyn DeviceSource>, n));
        self
    }

    /// Adds a peer: another process, which [serves](crate::peers::Peer) its devices. Those of the
    /// first peer are `/peer:0/cpu:0` and so on, those of the next `/peer:1/cpu:0`.
    ///
    /// Functions, variables and rules name devices of peers like any others. Peers exchange values
    /// directly. Values of variables stay at their peer until they are asked for. If a peer is
    /// lost, so are the values that it kept; calls that need the peer fail with an error of the
    /// kind [`Unavailable`](anabranch_dsl::ErrorKind::Unavailable) until it is back.
    ///
    /// A peer runs the programs of its sessions. Only peers whose keys you know can be used, and
    /// a peer admits only keys that its operator has allowed.
    #[cfg(feature = "peers")]
    pub fn peer(mut self, address: crate::peers::PeerAddress) -> SessionBuilder {
        self.cluster.peers.push(address);
        self
    }

    /// Sets the key with which the session proves to its peers who it is. Without one it has a new
    /// key, which only a [join token](crate::peers::PeerAddress::with_token) admits.
    #[cfg(feature = "peers")]
    pub fn node_key(mut self, key: crate::peers::NodeKey) -> SessionBuilder {
        self.cluster.key = Some(key);
        self
    }

    /// Sets the kind of network between the session and its peers.
    #[cfg(feature = "peers")]
    pub fn network(mut self, profile: crate::peers::Profile) -> SessionBuilder {
        self.cluster.profile = profile;
        self
    }

    /// Sets how long a peer may fail to respond until calls that wait for it fail, from 0.1 to 600
    /// seconds. The default is 10 s. All time limits between processes follow from it;
    /// [`Session::network`] shows them.
    #[cfg(feature = "peers")]
    pub fn failure_timeout(mut self, timeout: std::time::Duration) -> SessionBuilder {
        self.cluster.failure_timeout = timeout;
        self
    }

    /// Sets a function that is called in each commit of shared variables at several peers: all have
    /// prepared it, and none has heard the decision.
    #[cfg(all(feature = "peers", feature = "testing"))]
    pub fn before_decisions(mut self, f: impl Fn() + Send + Sync + 'static) -> SessionBuilder {
        self.cluster.before_decisions = crate::peer::DecisionHook(Some(Arc::new(f)));
        self
    }

    /// Runs everything on a device, except what [`on`](anabranch_dsl::on),
    /// [`Var::on`](anabranch_dsl::Var::on) and [`place`](Self::place) put elsewhere. A CPU runs
    /// what the device does not run.
    ///
    /// ```
    /// use anabranch::prelude::*;
    /// use anabranch::{DType, Session, TensorType};
    ///
    /// let session = Session::builder().cpus(2).device("/cpu:1").build()?;
    /// let f = session.function(|x: Tensor| x * 2.0)?;
    /// assert_eq!(f.call(1.0)?, 2.0);
    /// let number = [TensorType::new(DType::F32, [])];
    /// assert!(f.explain(&number)?.contains("/cpu:1"));
    /// let error = Session::builder().device("/gpu:0").build().unwrap_err();
    /// assert_eq!(error.message, "the session has no device /gpu:0");
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn device(self, device: &str) -> SessionBuilder {
        SessionBuilder { default: Some(device.to_owned()), ..self }
    }

    /// Places the variables whose names match a pattern on a device, along with the operations that
    /// read and assign them.
    ///
    /// In the pattern, `*` matches anything and `{i}` a number, which the device may use. If
    /// several rules match a name, the last rule applies.
    ///
    /// ```
    /// use anabranch::Session;
    /// use anabranch::prelude::*;
    ///
    /// let session = Session::builder()
    ///     .cpus(3)
    ///     .place("*", "/cpu:0")
    ///     .place("layer{i}.weight", "/cpu:{i}")
    ///     .build()?;
    /// let (w0, w2) =
    ///     (Var::<f32>::new("layer0.weight", 2.0), Var::<f32>::new("layer2.weight", 3.0));
    /// let f = session.function(|x: Tensor| x * w0.get() * w2.get())?;
    /// assert_eq!(f.call(1.0)?, 6.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn place(mut self, names: &str, device: &str) -> SessionBuilder {
        self.rules.push((names.to_owned(), device.to_owned()));
        self
    }

    /// Sets how many iterations of a loop over several devices may run at once. The default is 32,
    /// the minimum 1.
    ///
    /// With more, devices can run further ahead of each other, and the memory of more iterations is
    /// kept. `#[graph(parallel_iterations = n)]` overrides it for the loops of a function and their
    /// gradients.
    pub fn parallel_iterations(self, n: u32) -> SessionBuilder {
        SessionBuilder { flow: flow::PartitionOptions { parallel_iterations: n, ..self.flow }, ..self }
    }

    /// Sets whether all control flow is lowered and every operation runs by itself, even on one
    /// device. This is slow, and meant for comparisons.
    #[cfg(feature = "testing")]
    pub fn lower_everything(self, lower_everything: bool) -> SessionBuilder {
        SessionBuilder { flow: flow::PartitionOptions { lower_everything, ..self.flow }, ..self }
    }

    /// Creates the session.
    ///
    /// # Errors
    /// Fails if there are no devices or more than 1,024 CPU devices, no threads or more than 1,024,
    /// both CPU devices and simulated ones, a placement rule that is invalid or names a missing
    /// device, or if `parallel_iterations` is 0.
    pub fn build(self) -> Result<Session> {
        unoptimized::warn_once();
        if self.cpus == Some(0) {
            return Err(Diagnostic::new("a session needs at least one CPU device").help("set `cpus` to at least 1"));
        }
        if let Some(n) = self.cpus.filter(|&n| n > MAX_CPUS) {
            let message = format!("a session can have at most {MAX_CPUS} CPU devices, not {n}");
            return Err(Diagnostic::new(message).help("all CPU devices share the cores of one machine"));
        }
        if let Some(n) = self.threads.filter(|n| !(1..=MAX_THREADS).contains(n)) {
            let message = format!("a session cannot have {n} threads");
            return Err(Diagnostic::new(message).help(format!("set `threads` to at least 1 and at most {MAX_THREADS}")));
        }
        if self.simulated.as_ref().is_some_and(Vec::is_empty) {
            let error = Diagnostic::new("a session needs at least one simulated device, but the list is empty");
            return Err(error.help("add a device, or use `cpus` for devices of this machine"));
        }
        if self.cpus.is_some() && self.simulated.is_some() {
            let message = "a session cannot have both CPU devices and simulated devices, because their clocks differ";
            return Err(Diagnostic::new(message).help("remove the call of `cpus`"));
        }
        if !self.others.is_empty() && self.simulated.is_some() {
            let message = "a session cannot have both GPUs and simulated devices, because their clocks differ";
            return Err(Diagnostic::new(message).help("remove the call of `simulated`"));
        }
        if self.flow.parallel_iterations == 0 {
            return Err(Diagnostic::new("`parallel_iterations` is 0").help("use at least 1"));
        }
        let mut rules = Rules::new();
        for (names, device) in &self.rules {
            rules = rules.with(names, device)?;
        }
        let default = self.default.as_ref().map(|device| device.parse()).transpose()?;
        let rules = rules.with_default(default);
        #[cfg(feature = "peers")]
        let remote = self.remote_devices()?;
        let of_machine = DevicesOfMachine {
            n: self.cpus.unwrap_or(1),
            limit: self.threads,
            simulated: self.simulated.as_deref().unwrap_or_default(),
            others: &self.others,
            measure: self.measure == Some(true),
        };
        let devices = Devices::new(
            of_machine,
            rules,
            self.flow,
            #[cfg(feature = "peers")]
            remote,
        )?;
        let print_to = self.print_to.unwrap_or_else(|| Arc::new(|stream: Stream, text: &str| stream.write(text)));
        Ok(Session {
            state: Arc::default(),
            devices: Arc::new(devices),
            run: self.run,
            threads: self.threads,
            host: HostSide::printing(print_to),
            queues: Arc::default(),
            files: self.files,
        })
    }
}

#[cfg(feature = "peers")]
impl SessionBuilder {
    /// Connects to the peers, if there are any.
    fn remote_devices(&self) -> Result<Option<crate::peer::RemoteDevices>> {
        if self.cluster.peers.is_empty() {
            return Ok(None);
        }
        if self.simulated.is_some() {
            let message = "a session cannot have both peers and simulated devices, because their clocks differ";
            return Err(Diagnostic::new(message).help("remove the call of `simulated`"));
        }
        let link_tests = match self.measure {
            None => Some(crate::peer::LinkTestKind::Brief),
            Some(true) => Some(crate::peer::LinkTestKind::Thorough),
            Some(false) => None,
        };
        let options = crate::peer::ClusterOptions { link_tests, ..self.cluster.clone() };
        crate::peer::RemoteDevices::connect(options).map(Some)
    }
}

impl Session {
    /// Creates a session with the default settings.
    pub fn new() -> Result<Session> {
        Session::builder().build()
    }

    /// Returns the default settings of a session.
    pub fn builder() -> SessionBuilder {
        SessionBuilder::default()
    }

    /// Creates the session of a program that lets its user choose the device: with the option
    /// `--device` or the environment variable `ANABRANCH_DEVICE`, whose value is `cpu`, `gpu`, or
    /// `gpu:1` for the second adapter. Without them, this is [`new`](Self::new).
    ///
    /// What a GPU does not run runs on a CPU.
    ///
    /// # Errors
    /// Fails if the value is none of these, if the machine has no such adapter, or if the library
    /// was built without the feature `gpu`.
    ///
    /// ```
    /// use anabranch::{Session, prelude::*};
    ///
    /// let session = Session::from_args()?;
    /// assert_eq!(session.function(|x: Tensor| x + 1.0)?.call(1.0)?, 2.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn from_args() -> Result<Session> {
        match chosen::device_of_program()? {
            None => Session::new(),
            Some(device) => chosen::builder(&device)?.build(),
        }
    }

    /// Runs `f` within the limit of the threads that compute a call.
    pub(crate) fn limited<R>(&self, f: impl FnOnce() -> R) -> R {
        match self.threads {
            Some(n) => Arc::new(ThreadLimit::new(n)).within(f),
            None => f(),
        }
    }

    /// Creates a function that runs in this session.
    ///
    /// The function is traced and compiled on the first call with arguments of given types, once
    /// for each combination of types. Messages show the name of a function, and for a closure the
    /// line of this call.
    #[track_caller]
    pub fn function<Args, F: GraphFn<Args>>(&self, f: F) -> Result<Function<F, Args>> {
        Ok(Function::new(self.clone(), f, Loc::caller()))
    }

    /// Returns the names of its devices.
    ///
    /// ```
    /// # use anabranch::Session;
    /// let session = Session::builder().cpus(2).build()?;
    /// assert_eq!(
    ///     session.devices().iter().map(ToString::to_string).collect::<Vec<_>>(),
    ///     ["/cpu:0", "/cpu:1"]
    /// );
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn devices(&self) -> Vec<DeviceName> {
        self.devices.topology.devices.iter().map(|d| d.name).collect()
    }

    /// Tests how fast the links to the peers are, in the order of the peers, each with a verdict.
    /// Takes a fraction of a second for each on a fast network. Without peers there are none.
    ///
    /// Placement uses what was found when the session was created, as
    /// [`measure_devices`](SessionBuilder::measure_devices) says.
    ///
    /// # Errors
    /// Fails if a link is lost, or takes too long.
    #[cfg(feature = "peers")]
    pub fn test_links(&self) -> Result<Vec<crate::peers::LinkReport>> {
        self.devices.remote.as_ref().map_or(Ok(Vec::new()), crate::peer::RemoteDevices::test_links)
    }

    /// Returns the settings of the network to the peers with all time limits, and a warning if the
    /// system grants less than they ask for. Without peers there are none.
    #[cfg(feature = "peers")]
    pub fn network(&self) -> Option<(String, Option<String>)> {
        self.devices.remote.as_ref().map(crate::peer::RemoteDevices::network)
    }

    /// Returns how fast the links to the peers were when the session was created, in the order of
    /// the peers, each with a verdict. A link is left out if its test took too long, which is an
    /// error with [`measure_devices(true)`](SessionBuilder::measure_devices). With
    /// `measure_devices(false)` there are none.
    #[cfg(feature = "peers")]
    pub fn link_reports(&self) -> &[crate::peers::LinkReport] {
        self.devices.remote.as_ref().map_or(&[], crate::peer::RemoteDevices::reports)
    }

    /// Compiles a graph for the devices of this session, also those of its peers, with each node on
    /// a random one. What `how` says of devices and processes has no effect.
    ///
    /// # Errors
    /// Fails if the session has no peers, or if one of them does not load its part.
    #[cfg(all(feature = "peers", feature = "testing"))]
    pub fn place_at_random(
        &self,
        graph: &anabranch_dsl::Graph,
        how: crate::RandomPlacement,
    ) -> Result<crate::RandomlyPlacedProgram> {
        let Devices { all, processes, remote, .. } = &*self.devices;
        let remote = remote.as_ref().ok_or_else(|| Diagnostic::new("the session has no peers"))?;
        // CPUs run everything.
        let supports = |device: crate::device::DeviceId, node| {
            let device = &all[device.index()];
            let is_gpu = device.name().is_some_and(|name| name.kind() == anabranch_dsl::device::DeviceKind::Gpu);
            !is_gpu || device.supports_node(graph, node) == crate::device::Support::Yes
        };
        let placement = crate::place::place_at_random_where(graph, all.len(), how.seed, supports);
        let (flow, options) = (how.partition_options(), how.compile_options());
        let program = remote.compile(graph, &placement, all, processes, flow, options)?;
        Ok(crate::RandomlyPlacedProgram::at_peers(program, graph, &placement, all))
    }

    /// Names the variables of a module by their paths below `name`, for placement
    /// [rules](SessionBuilder::place). For a model called `model` an example is
    /// `model.layers.0.weight`.
    ///
    /// Call it before the first call of a function that uses the variables. Variables without a
    /// path have their own names.
    ///
    /// ```
    /// use anabranch::{nn::{Init, Linear}, prelude::*};
    /// use anabranch::Session;
    ///
    /// let session = Session::builder().cpus(2).place("model.{i}.*", "/cpu:{i}").build()?;
    /// let init = Init::new(0);
    /// let model = vec![Linear::new(&init, 2, 3), Linear::new(&init, 3, 1)];
    /// session.name_variables("model", &model);
    /// let f = session.function(|x: Tensor| model[1].forward(model[0].forward(x).tanh()))?;
    /// f.call([[0.5, 1.0]])?;
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn name_variables(&self, name: &str, module: &(impl Module + ?Sized)) {
        let mut vars = module.vars();
        vars.iter_mut().for_each(|(path, _)| path.insert_str(0, &format!("{name}.")));
        self.state.name(&vars);
    }

    /// Returns the current value of a variable.
    ///
    /// ```
    /// use anabranch::prelude::*;
    /// use anabranch::Session;
    ///
    /// let session = Session::new()?;
    /// let n = Var::<i32>::new("n", 1);
    /// let double = session.function(|| n.set(n.get() * 2))?;
    /// double.call(())?;
    /// double.call(())?;
    /// assert_eq!(session.get(&n)?, 4);
    /// session.set(&n, 7)?;
    /// assert_eq!(session.get(&n)?, 7);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn get<T: Element>(&self, var: &Var<T>) -> Result<Array<T>> {
        let tensor = self.cell(var.any())?.get()?;
        Ok(Array::from_host(tensor).expect("a variable keeps its element type"))
    }

    /// Sets a variable to a value of its type.
    pub fn set<T: Element>(&self, var: &Var<T>, value: impl IntoArray<T>) -> Result<()> {
        self.set_any(var.any(), value.into_array().into_host())
    }

    fn set_any(&self, var: &AnyVar, value: HostTensor) -> Result<()> {
        check_value(var.name(), var, &value)?;
        self.assign([(var, value)], Vec::new())
    }

    /// Assigns variables and the contents of queues in a step of its own.
    fn assign<'a>(
        &self,
        new: impl IntoIterator<Item = (&'a AnyVar, HostTensor)>,
        contents: Vec<(AnyQueue, QueueContent)>,
    ) -> Result<()> {
        let (vars, new): (Vec<&AnyVar>, Vec<HostTensor>) = new.into_iter().unzip();
        let set = self.var_set(vars.into_iter().map(|var| (var, VarAccess::Assign)))?;
        if contents.is_empty() {
            return set.assign(new);
        }
        let contents = contents.into_iter().map(|(queue, content)| (self.queues.get(&queue), content)).collect();
        set.assign_with(new, &self.queues.gate(), || queues::restore(contents))
    }

    /// Returns the current values of all variables of a module with their paths, as they are
    /// between two steps.
    ///
    /// # Errors
    /// Fails if a variable cannot be read, because it was lost with a peer, for example.
    pub fn state(&self, module: &impl Module) -> Result<Vec<(String, HostTensor)>> {
        let (paths, vars): (Vec<_>, Vec<_>) = module.vars().into_iter().unzip();
        let set = self.var_set(vars.iter().map(|var| (var, VarAccess::Read)))?;
        Ok(paths.into_iter().zip(set.to_host()?).collect())
    }

    /// Sets all variables of a module to values that are found by their paths. If there is an
    /// error, nothing changes. No step sees only some of the values. Variables that sessions share
    /// at a peer are set one after the other.
    ///
    /// The state of an optimizer consists of the variables that it has seen: call
    /// [`prepare`](anabranch_dsl::optim::Optimizer::prepare) for the model before loading its
    /// state.
    ///
    /// # Errors
    /// Fails for a variable without a value, a value without a variable, two values with one path,
    /// or a value of another type. The error names the paths.
    ///
    /// ```
    /// use anabranch::Session;
    /// use anabranch::{
    ///     nn::{Init, Linear},
    ///     optim::{Adam, Optimizer},
    ///     prelude::*,
    /// };
    ///
    /// let (session, init) = (Session::new()?, Init::new(0));
    /// let (model, adam) = (Linear::new(&init, 2, 1), Adam::new(0.1));
    /// adam.prepare(&model);
    /// let saved = session.state(&adam)?;
    ///
    /// let adam = Adam::new(0.1);
    /// let error = session.load_state(&adam, &saved).unwrap_err();
    /// assert!(
    ///     error.message.starts_with("the module has no variables `weight.adam_m`"),
    ///     "{error}"
    /// );
    /// adam.prepare(&model);
    /// session.load_state(&adam, &saved)?;
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn load_state(&self, module: &impl Module, values: &[(String, HostTensor)]) -> Result<()> {
        self.load_state_and_queues(module, values, Vec::new())
    }

    /// Sets variables like [`load_state`](Self::load_state), and the contents of queues at the same
    /// moment. Their elements must be of the types of the queues.
    #[doc(hidden)]
    pub fn load_state_and_queues(
        &self,
        module: &impl Module,
        values: &[(String, HostTensor)],
        contents: Vec<(AnyQueue, QueueContent)>,
    ) -> Result<()> {
        let vars = module.vars();
        let value_of = by_path(values).map_err(|path| {
            let error = Diagnostic::new(format!("there are two values for the variable `{path}`"));
            error.help("pass each path once")
        })?;
        let var_of = by_path(&vars).map_err(|path| {
            Diagnostic::new(format!("two variables of the module have the path `{path}`"))
                .help("values are identified by their paths: give the parts of the module different names")
        })?;
        let missing = listed(vars.iter().map(|(path, _)| path).filter(|path| !value_of.contains_key(path.as_str())));
        let unknown = listed(values.iter().map(|(path, _)| path).filter(|path| !var_of.contains_key(path.as_str())));
        let missing = missing.map(|paths| format!("there is no value for the {paths}"));
        let unknown = unknown.map(|paths| format!("the module has no {paths}"));
        match (missing, unknown) {
            (None, None) => {}
            (Some(missing), None) => {
                return Err(Diagnostic::new(missing).help(
                    "add a value for each of these paths, for example its current value, which \
                     `session.state(&module)` returns",
                ));
            }
            (missing, Some(unknown)) => {
                let error = match missing {
                    None => Diagnostic::new(unknown),
                    Some(missing) => Diagnostic::new(missing).at(Loc::UNKNOWN, unknown),
                };
                return Err(error.help(
                    "a state matches the module from which it was saved. If the model has changed since then, rename \
                     or remove values whose paths it does not have, and add missing ones from \
                     `session.state(&module)`. An optimizer has variables for a model only after `prepare(&model)`",
                ));
            }
        }
        let found: Vec<&HostTensor> = vars.iter().map(|(path, _)| value_of[path.as_str()]).collect();
        for ((path, var), value) in vars.iter().zip(&found) {
            check_value(path, var, value)?;
        }
        self.assign(vars.iter().map(|(_, var)| var).zip(found.into_iter().cloned()), contents)
    }
}

/// Returns a map of the values by path. The error is the first duplicate path.
fn by_path<T>(all: &[(String, T)]) -> Result<HashMap<&str, &T>, &str> {
    let mut of_path = HashMap::new();
    for (path, value) in all {
        if of_path.insert(path.as_str(), value).is_some() {
            return Err(path);
        }
    }
    Ok(of_path)
}

/// Returns the paths of variables as text, only the first paths if there are many, or `None` if
/// there are none.
fn listed<'a>(paths: impl Iterator<Item = &'a String>) -> Option<String> {
    const SHOWN: usize = 4;
    let paths: Vec<String> = paths.map(|path| format!("`{path}`")).collect();
    match &paths[..] {
        [] => None,
        [one] => Some(format!("variable {one}")),
        [all @ .., last] if all.len() < SHOWN => Some(format!("variables {} and {last}", all.join(", "))),
        all => Some(format!("variables {} and {} more", all[..SHOWN].join(", "), all.len() - SHOWN)),
    }
}
