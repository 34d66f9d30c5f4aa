//! A program with peers on this machine, all of which end together.
//!
//! - The peers hold the other ends of pipes of this process and end when these close, so they end
//!   also if this process is killed.
//! - The first peer removes the key of the program when it ends, if this process has not.
//! - The peers are in a process group of their own: Ctrl-C reaches the program, not them.

use crate::CommandError;
use crate::arguments::{CommandLine, UsageError};
use crate::peer::{KEY_OF_PROGRAM, RemovedAtEnd, gpus_of, seconds_of};
use crate::signals::{EndRequest, end_requests};
use anabranch::Diagnostic;
use anabranch::peers::{NodeId, NodeKey, PeerAddress};
use std::io::{BufRead, BufReader};
use std::num::NonZero;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

pub(crate) const USAGE: &str = "\
usage: anabranch launch -n N [OPTION]... -- PROGRAM [ARGUMENT]...

Starts N peers on this machine, runs PROGRAM, and ends the peers when it ends, in any way. The exit
status is that of PROGRAM. In PROGRAM, `Session::builder().peers_of_environment()` uses the peers,
by the variables ANABRANCH_PEERS, ANABRANCH_NODE_KEY and ANABRANCH_FAILURE_TIMEOUT.

  -n N                 the number of peers
  --cpus N             the number of CPU devices of each peer; by default 1
  --threads N          the number of threads of each peer; by default one for each core
  --gpu                each peer offers all GPUs
  --gpu-memory BYTES   how much memory of each GPU the program may use at each peer; by default all
  --failure-timeout S  how long another process may fail to respond; by default 10
";

/// How often the processes are looked after.
const TICK: Duration = Duration::from_millis(20);

/// How long a peer may take to start.
const START: Duration = Duration::from_secs(30);

/// How long peers may take to end before they are killed.
const GRACE: Duration = Duration::from_secs(5);

/// The peers, each with its number and whether its end was reported. They end when this is dropped.
struct Peers(Vec<(Child, bool)>);

impl Peers {
    fn start(
        n: usize,
        options: &[String],
        session: NodeId,
        key: &Path,
    ) -> Result<(Peers, Vec<PeerAddress>), Diagnostic> {
        let fail = |error: std::io::Error| Diagnostic::new(format!("cannot start a peer: {error}"));
        let this = std::env::current_exe().map_err(fail)?;
        let mut peers = Peers(Vec::new());
        for i in 0..n {
            let mut command = Command::new(&this);
            command.args(["peer", "--listen", "127.0.0.1:0", "--temporary-key", "--profile", "loopback"]);
            command.args(["--until-stdin-closes", "--quiet", "--name", &format!("peer {i}")]);
            command.args(["--allow", &session.to_string()]).args(options);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            if i == 0 {
                command.env(KEY_OF_PROGRAM, key);
            }
            #[cfg(unix)]
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            peers.0.push((command.spawn().map_err(fail)?, false));
        }
        let mut addresses = Vec::new();
        for (i, (peer, _)) in peers.0.iter_mut().enumerate() {
            let out = peer.stdout.take().expect("its output is a pipe");
            let (send, line) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let mut line = String::new();
                // A peer that fails closes it.
                let _ = BufReader::new(out).read_line(&mut line);
                let _ = send.send(line);
            });
            let line = line.recv_timeout(START);
            let address = line.as_deref().unwrap_or_default().trim().parse();
            addresses.push(address.map_err(|_| match line {
                // It has said why.
                Ok(_) => Diagnostic::new(format!("peer {i} has not started")),
                Err(_) => Diagnostic::new(format!("peer {i} has not started within {START:?}")),
            })?);
        }
        Ok((peers, addresses))
    }

    /// Reports peers that have ended since the last call.
    fn report_ended(&mut self) {
        for (i, (peer, is_reported)) in self.0.iter_mut().enumerate() {
            if let (false, Ok(Some(status))) = (*is_reported, peer.try_wait()) {
                eprintln!("anabranch launch: peer {i} has ended: {status}");
                *is_reported = true;
            }
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|(peer, _)| drop(peer.stdin.take()));
        let until = Instant::now() + GRACE;
        for (peer, _) in &mut self.0 {
            while matches!(peer.try_wait(), Ok(None)) {
                if Instant::now() >= until {
                    let _ = peer.kill();
                    let _ = peer.wait();
                    break;
                }
                std::thread::sleep(TICK);
            }
        }
    }
}

/// Makes a folder that only this user can read. Its name is a public key that nobody knew. Returns
/// the path of the key in it.
fn place_of_key(id: NodeId) -> Result<RemovedAtEnd, Diagnostic> {
    let path = std::env::temp_dir().join(format!("anabranch-{}-{}", std::process::id(), id.short()));
    #[cfg_attr(not(unix), expect(unused_mut, reason = "only Unix has a mode to set"))]
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let made = builder.create(&path);
    made.map_err(|error| Diagnostic::new(format!("cannot make the folder {}: {error}", path.display())))?;
    Ok(RemovedAtEnd(path.join("session.key")))
}

pub(crate) fn run(mut given: CommandLine) -> Result<ExitCode, CommandError> {
    let n = given.option::<NonZero<usize>>("-n")?.ok_or_else(|| UsageError("`-n N` is missing".to_owned()))?;
    let mut options = Vec::new();
    for option in ["--cpus", "--threads"] {
        if let Some(n) = given.option::<NonZero<u32>>(option)? {
            options.extend([option.to_owned(), n.to_string()]);
        }
    }
    if let Some(gpus) = gpus_of(&mut given)? {
        options.push("--gpu".to_owned());
        options.extend(gpus.memory.into_iter().flat_map(|bytes| ["--gpu-memory".to_owned(), bytes.to_string()]));
    }
    let timeout = seconds_of(&mut given, "--failure-timeout")?;
    if let Some(timeout) = timeout {
        options.extend(["--failure-timeout".to_owned(), timeout.as_secs_f64().to_string()]);
    }
    let program = given.program().filter(|program| !program.is_empty());
    given.end()?;
    let program = program.ok_or_else(|| UsageError("`-- PROGRAM` is missing".to_owned()))?;

    let requests = end_requests(false)?;
    let key = NodeKey::generate()?;
    let kept = place_of_key(key.id())?;
    let path = kept.0.as_path();
    key.save(path)?;
    let (mut peers, addresses) = Peers::start(n.get(), &options, key.id(), path)?;
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).env("ANABRANCH_PEERS", addresses.join(",")).env("ANABRANCH_NODE_KEY", path);
    if let Some(timeout) = timeout {
        command.env("ANABRANCH_FAILURE_TIMEOUT", timeout.as_secs_f64().to_string());
    }
    let status = run_program(command, &mut peers, &requests)?;
    Ok(exit_code(status))
}

fn run_program(
    mut command: Command,
    peers: &mut Peers,
    requests: &Receiver<EndRequest>,
) -> Result<ExitStatus, Diagnostic> {
    let program = command.get_program().to_string_lossy().into_owned();
    let fail = |error: std::io::Error| Diagnostic::new(format!("cannot run `{program}`: {error}"));
    let mut child = command.spawn().map_err(fail)?;
    let mut is_asked = false;
    loop {
        if let Some(status) = child.try_wait().map_err(fail)? {
            return Ok(status);
        }
        peers.report_ended();
        // A terminal sends Ctrl-C to the program, too, which decides what to do.
        if let Ok(EndRequest::Terminate) = requests.recv_timeout(TICK) {
            if is_asked || !terminate(&child) {
                child.kill().map_err(fail)?;
            }
            is_asked = true;
        }
    }
}

/// Asks a process to end. Returns whether that was possible.
#[cfg(unix)]
fn terminate(child: &Child) -> bool {
    use rustix::process::{Pid, Signal, kill_process};
    kill_process(Pid::from_child(child), Signal::TERM).is_ok()
}

#[cfg(not(unix))]
fn terminate(_: &Child) -> bool {
    false
}

/// Returns the exit code of a program. That of a killed program is 128 plus the signal, as in
/// shells.
fn exit_code(status: ExitStatus) -> ExitCode {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return ExitCode::from(128 + signal as u8);
    }
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
