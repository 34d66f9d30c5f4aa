//! Peers in processes of their own, on which graphs run with each node on a randomly chosen device.
//!
//! The processes are this test program again: the test [`serves_a_peer`] of it serves until its
//! standard input ends, which is at the latest when this process ends. They are started once.

use super::engines::Outcome;
use anabranch::dsl::equality::one_nan_each;
use anabranch::dsl::{Graph, HostTensor, interp};
use anabranch::peers::{NodeKey, Peer, PeerAddress, PeerOptions, Profile};
use anabranch::{Diagnostic, Loc, Session, gpu_adapters};
use anabranch_runtime::{RandomPlacement, RandomlyPlacedProgram};
use std::io::{BufRead, BufReader, Lines, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The variable with the keys that a peer allows, separated by commas.
const ALLOWED: &str = "ANABRANCH_TEST_PEER_ALLOWS";

/// What a peer prints before its address.
const ADDRESS: &str = "peer at ";

/// Long enough that a busy machine does not lose a peer.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(120);

/// The variable that asks a peer to offer a GPU.
const WITH_GPU: &str = "ANABRANCH_TEST_PEER_GPU";

/// Sessions with this process and one peer, and with this process and two. With `ANABRANCH_GPU`
/// also one with this process, a peer with a GPU, and a peer without.
struct RealPeers {
    sessions: Vec<Session>,
    _processes: Vec<PeerProcess>,
}

/// A peer. Its standard output stays open, since a test program that cannot print ends: it prints
/// that a test has been running for a minute.
struct PeerProcess {
    _process: Child,
    _out: Lines<BufReader<ChildStdout>>,
}

static PEERS: LazyLock<RealPeers> = LazyLock::new(|| {
    let keys = [(); 3].map(|()| NodeKey::generate().expect("the system has random numbers"));
    let allowed: Vec<String> = keys.iter().map(|key| key.id().to_string()).collect();
    let with_gpu = std::env::var_os("ANABRANCH_GPU").is_some();
    let (processes, addresses): (Vec<PeerProcess>, Vec<PeerAddress>) =
        (0..2 + usize::from(with_gpu)).map(|i| start(&allowed.join(","), i == 2)).unzip();
    let mut peers = vec![vec![0], vec![0, 1]];
    if with_gpu {
        // The last device runs what others do not: it is a CPU.
        peers.push(vec![2, 1]);
    }
    let sessions = peers.into_iter().zip(keys).map(|(peers, key)| {
        let builder = Session::builder().node_key(key).network(Profile::Loopback).failure_timeout(FAILURE_TIMEOUT);
        let builder = peers.into_iter().fold(builder, |builder, peer: usize| builder.peer(addresses[peer].clone()));
        builder.build().unwrap_or_else(|error| panic!("the peers admit the session: {error}"))
    });
    RealPeers { sessions: sessions.collect(), _processes: processes }
});

/// Starts a peer. Returns its process and its address.
fn start(allowed: &str, with_gpu: bool) -> (PeerProcess, PeerAddress) {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    let name = concat!(module_path!(), "::serves_a_peer");
    // Names of tests do not begin with that of the program.
    let (_, name) = name.split_once("::").expect("a test is in a module");
    command.args(["--exact", name, "--ignored", "--nocapture"]).env(ALLOWED, allowed);
    if with_gpu {
        command.env(WITH_GPU, "1");
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().expect("this program can be started");
    let out = process.stdout.take().expect("it was asked for");
    let mut lines = BufReader::new(out).lines();
    // The line begins with what the test program prints.
    let address = lines.find_map(|line| {
        let line = line.expect("the peer prints text");
        Some(line.split_once(ADDRESS)?.1.to_owned())
    });
    let address = address.expect("the peer prints its address").parse().expect("it is an address");
    (PeerProcess { _process: process, _out: lines }, address)
}

#[test]
#[ignore = "not a test: the peers of other tests are processes that run it"]
fn serves_a_peer() -> Result<(), Diagnostic> {
    let Ok(allowed) = std::env::var(ALLOWED) else { return Ok(()) };
    let listen = "127.0.0.1:0".parse().expect("this is an address");
    let options = PeerOptions::new(NodeKey::generate()?).listen(listen).profile(Profile::Loopback).threads(1);
    let options = options.failure_timeout(FAILURE_TIMEOUT);
    let options = allowed.split(',').try_fold(options, |options, key| Ok::<_, Diagnostic>(options.allow(key.parse()?)));
    let mut options = options?;
    if std::env::var_os(WITH_GPU).is_some() {
        options = options.gpu(gpu_adapters().first().expect("this machine has an adapter"));
    }
    let peer = Peer::serve(options)?;
    println!("{ADDRESS}{}", peer.address());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    Ok(())
}

/// A graph whose nodes are at random on this process and on one or two peers, or in both ways with
/// `ANABRANCH_SLOW`, and with `ANABRANCH_GPU` also on a GPU of a peer. The kernels of CPUs are
/// interpreted or compiled, as the seed says.
pub struct AtRealPeers {
    programs: Vec<(RandomPlacement, Result<RandomlyPlacedProgram, Diagnostic>)>,
}

/// The number of graphs that have run at peers.
static GRAPHS: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of graphs that have run at peers so far.
pub fn graphs_at_real_peers() -> usize {
    GRAPHS.load(Ordering::Relaxed)
}

impl AtRealPeers {
    /// Places a graph if it is among those that run at peers: one of `every`, or all with
    /// `ANABRANCH_SLOW`. The seed decides, and how it is placed.
    pub fn new(graph: &Graph, seed: u64, every: u64) -> AtRealPeers {
        let all = std::env::var_os("ANABRANCH_SLOW").is_some();
        let mut programs = Vec::new();
        for (i, session) in (0..).zip(&PEERS.sessions) {
            let has_gpu = i == 2;
            if !(all || (seed / 2).is_multiple_of(every) && (has_gpu || seed % 2 == i)) {
                continue;
            }
            let how = RandomPlacement {
                seed,
                parallel_iterations: [1, 2, 32][(seed >> 24) as usize % 3],
                lower_everything: (seed >> 32).is_multiple_of(2),
                // Kernels of GPUs are compiled.
                interpreted: !has_gpu && (seed >> 4).is_multiple_of(2),
                ..RandomPlacement::default()
            };
            programs.push((how, session.place_at_random(graph, how)));
        }
        GRAPHS.fetch_add(usize::from(!programs.is_empty()), Ordering::Relaxed);
        AtRealPeers { programs }
    }

    /// Runs the graph, and compares values and variables with those of the interpreter, except for
    /// those of [`COMPILED`] kernels.
    pub fn run(&self, graph: &Graph, inputs: &[HostTensor], vars: &[HostTensor]) -> Vec<(&'static str, Outcome)> {
        if self.programs.is_empty() {
            return Vec::new();
        }
        let mut expected_vars = vars.to_vec();
        let expected = interp::run(graph, inputs, &mut expected_vars, interp::InterpOptions::default());
        let outcomes = self.programs.iter().map(|(how, program)| {
            let mut after = vars.to_vec();
            let outcome = program.as_ref().map_err(Clone::clone).and_then(|p| p.run(inputs, &mut after));
            if let (true, Ok(got), Ok(expected)) = (how.interpreted, &outcome, &expected) {
                assert_eq!(one_nan_each(got), one_nan_each(expected), "real peers, {how:?}\n{graph}");
                let after = one_nan_each(&after);
                assert_eq!(after, one_nan_each(&expected_vars), "real peers, {how:?}: variables\n{graph}");
            }
            let name = match how.interpreted {
                true => "real peers",
                false => COMPILED,
            };
            (name, outcome.map_err(without_device))
        });
        outcomes.collect()
    }
}

/// The name of the engine with compiled kernels, also on GPUs. Its values are near those of the
/// interpreter.
pub const COMPILED: &str = "real peers, compiled";

/// Removes the note that names the device of an error. The devices of other engines have no names.
fn without_device(mut error: Diagnostic) -> Diagnostic {
    error.labels.retain(|(loc, note)| *loc != Loc::UNKNOWN || !note.starts_with("on /"));
    error
}
