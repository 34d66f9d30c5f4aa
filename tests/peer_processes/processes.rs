//! Processes of a test, which end with it.

use anabranch::peers::{NodeId, NodeKey, PeerAddress, PeerStatus, Profile};
use anabranch::{Session, SessionBuilder, Tensor, graph, scalar};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The program.
pub const ANABRANCH: &str = env!("CARGO_BIN_EXE_anabranch");

/// The failure timeout of peers and sessions, unless a test sets another. Half of it is the silence
/// after which a link is lost.
pub const FAILURE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long one test may take.
const TEST_LIMIT: Duration = Duration::from_secs(120);

/// How often a condition is checked.
const POLL: Duration = Duration::from_millis(10);

/// Returns whether long runs are asked for.
pub fn is_slow() -> bool {
    std::env::var_os("ANABRANCH_SLOW").is_some_and(|value| value == "1")
}

/// Returns what a function returns, and how long it took.
pub fn timed<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    (f(), begun.elapsed())
}

/// Waits until a condition holds.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    until_some(what, || holds().then_some(()));
}

/// Waits until there is a value.
#[track_caller]
pub fn until_some<T>(what: &str, mut value: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "waited too long: {what}");
        thread::sleep(POLL);
    }
}

/// A test, with its keys, its folder and its processes.
pub struct ProcessTest {
    folder: PathBuf,
    /// The key of the session.
    pub key: NodeKey,
    /// The key with which the test asks for the state of peers.
    monitor: NodeKey,
    children: Arc<Mutex<Vec<Arc<Mutex<Child>>>>>,
}

/// Runs a test in a thread of its own. Kills its processes when it has ended, or has panicked, or
/// after its time.
#[track_caller]
pub fn bounded(name: &str, test: impl FnOnce(&ProcessTest) + Send + 'static) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("the folder of builds can be written");
    let key = NodeKey::generate().expect("the system has random numbers");
    let monitor = NodeKey::generate().expect("the system has random numbers");
    let children: Arc<Mutex<Vec<Arc<Mutex<Child>>>>> = Arc::default();
    let context = ProcessTest { folder: folder.clone(), key, monitor, children: children.clone() };
    let (ended, end) = channel::<()>();
    let running = thread::spawn(move || {
        let _ended = ended;
        test(&context);
    });
    let timed_out = end.recv_timeout(TEST_LIMIT) == Err(RecvTimeoutError::Timeout);
    for child in children.lock().expect("no thread panics with this lock").iter() {
        let mut child = child.lock().expect("no thread panics with this lock");
        let _ = child.kill();
        let _ = child.wait();
    }
    let _ = fs::remove_dir_all(&folder);
    assert!(!timed_out, "{name} takes longer than {TEST_LIMIT:?}");
    if let Err(panic) = running.join() {
        resume_unwind(panic);
    }
}

impl ProcessTest {
    /// Returns a path in the folder of the test.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Starts a process that is killed at the end of the test. Its standard output and standard
    /// error are read to the end, so that it never waits for the test.
    pub fn start(&self, command: &mut Command) -> Process {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program can be started");
        let pid = Pid::from_child(&child);
        let (out, err) = (Text::read(child.stdout.take()), Text::read(child.stderr.take()));
        let stdin = child.stdin.take();
        let child = Arc::new(Mutex::new(child));
        self.children.lock().expect("no thread panics with this lock").push(child.clone());
        Process { child, pid, _stdin: stdin, out, err }
    }

    /// Starts a peer that allows the session of the test. Its key is in the file `name`.
    pub fn peer(&self, name: &str) -> PeerProcess {
        self.peer_with(name, &[])
    }

    pub fn peer_with(&self, name: &str, options: &[&str]) -> PeerProcess {
        let timeout = FAILURE_TIMEOUT.as_secs().to_string();
        self.peer_at(name, "127.0.0.1:0", &timeout, &[self.key.id()], options)
    }

    /// Starts a peer that allows these keys.
    pub fn peer_at(&self, name: &str, at: &str, timeout: &str, allow: &[NodeId], options: &[&str]) -> PeerProcess {
        let command = Command::new(ANABRANCH);
        self.peer_by(command, Profile::Loopback, name, at, timeout, allow, options)
    }

    /// Starts a peer by a command that runs the program.
    #[expect(clippy::too_many_arguments, reason = "these are the options of the program")]
    pub fn peer_by(
        &self,
        mut command: Command,
        profile: Profile,
        name: &str,
        at: &str,
        timeout: &str,
        allow: &[NodeId],
        options: &[&str],
    ) -> PeerProcess {
        let key = self.path(name);
        let kind = match profile {
            Profile::Loopback => "loopback",
            Profile::Lan => "lan",
            Profile::Wan => "wan",
        };
        command.args(["peer", "--profile", kind, "--threads", "1", "--until-stdin-closes"]);
        command.args(["--listen", at, "--failure-timeout", timeout, "--name", name]).arg("--key").arg(key);
        for allowed in allow.iter().chain([&self.monitor.id()]) {
            command.args(["--allow", &allowed.to_string()]);
        }
        let process = self.start(command.args(options));
        let line = process.line_of_output(0);
        let address = line.parse().expect("the peer prints its address");
        PeerProcess { process, address, profile, name: name.to_owned() }
    }

    /// Starts a peer again that has ended, with its key and at its address.
    pub fn restart(&self, peer: &mut PeerProcess) {
        let (at, timeout) = (peer.addr().to_string(), FAILURE_TIMEOUT.as_secs().to_string());
        let before = peer.address.to_string();
        *peer = self.peer_at(&peer.name.clone(), &at, &timeout, &[self.key.id()], &[]);
        assert_eq!(peer.address.to_string(), before);
    }

    /// Returns the settings of a session with the key of the test.
    pub fn builder<'a>(&self, peers: impl IntoIterator<Item = &'a PeerProcess>) -> SessionBuilder {
        let builder = Session::builder()
            .node_key(self.key.clone())
            .network(Profile::Loopback)
            .failure_timeout(FAILURE_TIMEOUT)
            .print_to(|_, _| ());
        peers.into_iter().fold(builder, |builder, peer| builder.peer(peer.address.clone()))
    }

    pub fn session<'a>(&self, peers: impl IntoIterator<Item = &'a PeerProcess>) -> Session {
        self.builder(peers).build().unwrap_or_else(|error| panic!("the peers admit the session: {error}"))
    }

    /// Asks a peer for its state.
    #[track_caller]
    pub fn status(&self, peer: &PeerProcess) -> PeerStatus {
        self.status_of(peer)()
    }

    /// Returns a function that asks a peer for its state.
    pub fn status_of(&self, peer: &PeerProcess) -> impl Fn() -> PeerStatus + Send + Sync + use<> {
        let (key, address, profile) = (self.monitor.clone(), peer.address.clone(), peer.profile);
        move || {
            let status = PeerStatus::ask(&key, &address, profile, Duration::from_secs(10));
            status.unwrap_or_else(|error| panic!("{address} tells its state: {error}"))
        }
    }

    /// Waits until a peer has nothing of any session.
    #[track_caller]
    pub fn until_empty(&self, peer: &PeerProcess) {
        until("a peer frees everything", || {
            let status = self.status(peer);
            let counts = (status.sessions, status.programs, status.values, status.steps, status.buffered_bytes);
            // Also what still runs for sessions that are closed.
            counts == (0, 0, (0, 0), 0, 0) && status.work == 0
        });
    }
}

/// Returns whether no step of an open session runs at a peer, and none has memory.
pub fn nothing_runs(status: &PeerStatus) -> bool {
    (status.steps, status.step_bytes) == (0, 0)
}

/// What a process has written so far.
#[derive(Clone)]
struct Text {
    lines: Arc<Mutex<String>>,
    is_whole: Arc<AtomicBool>,
}

impl Text {
    fn read(from: Option<impl Read + Send + 'static>) -> Text {
        let text = Text { lines: Arc::default(), is_whole: Arc::default() };
        let (to, from) = (text.clone(), from.expect("the output is a pipe"));
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                *to.lines.lock().expect("no thread panics with this lock") += &format!("{line}\n");
            }
            to.is_whole.store(true, Ordering::Release);
        });
        text
    }

    fn get(&self) -> String {
        self.lines.lock().expect("no thread panics with this lock").clone()
    }

    /// Returns whether nothing more can come.
    fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Acquire)
    }
}

/// A process of a test.
pub struct Process {
    child: Arc<Mutex<Child>>,
    pub pid: Pid,
    /// Closed when this is dropped.
    _stdin: Option<ChildStdin>,
    out: Text,
    err: Text,
}

impl Process {
    /// Returns a line of standard output.
    #[track_caller]
    pub fn line_of_output(&self, number: usize) -> String {
        until_some("a process prints a line", || {
            let is_whole = self.out.is_whole();
            let line = self.out.get().lines().nth(number).map(str::to_owned);
            assert!(line.is_some() || !is_whole, "the process has ended: {}", self.err.get());
            line
        })
    }

    pub fn errors(&self) -> String {
        self.err.get()
    }

    pub fn output(&self) -> String {
        self.out.get()
    }

    pub fn send(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("the process runs");
    }

    pub fn ended(&self) -> Option<ExitStatus> {
        self.child.lock().expect("no thread panics with this lock").try_wait().expect("a child can be waited for")
    }

    /// Waits for the end of the process.
    #[track_caller]
    pub fn wait(&self) -> ExitStatus {
        until_some("a process ends", || self.ended())
    }

    /// Returns a function that kills the process.
    pub fn killer(&self) -> impl Fn() + Send + Sync + use<> {
        let child = self.child.clone();
        move || {
            let mut child = child.lock().expect("no thread panics with this lock");
            child.kill().expect("the process can be killed");
            child.wait().expect("the process can be awaited");
        }
    }

    #[track_caller]
    pub fn kill(&self) {
        self.send(Signal::KILL);
        self.wait();
    }
}

/// A peer of a test.
pub struct PeerProcess {
    pub process: Process,
    pub address: PeerAddress,
    profile: Profile,
    name: String,
}

impl PeerProcess {
    pub fn addr(&self) -> SocketAddr {
        self.address.socket_addr()
    }
}

/// A loop of `n` iterations, one native function that runs for centuries if `n` is [`i64::MAX`].
#[graph]
pub fn spin(n: Tensor<i64>) -> Tensor<i64> {
    let mut i = scalar(0i64);
    while i < n {
        i += 1;
    }
    i
}
