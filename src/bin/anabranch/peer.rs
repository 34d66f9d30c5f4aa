//! A peer, which serves until it is asked to end.

use crate::CommandError;
use crate::arguments::{CommandLine, UsageError};
use crate::keys::{UserKey, path_of_key};
use crate::signals::end_requests;
use anabranch::Diagnostic;
use anabranch::peers::{JoinToken, NodeId, NodeKey, Peer, PeerAddress, PeerOptions, Profile};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub(crate) const USAGE: &str = "\
usage: anabranch peer --listen HOST:PORT [OPTION]...

Offers the devices of this machine to sessions of other processes, until SIGTERM or Ctrl-C. Then
steps that run end first; a second signal ends the peer at once. Prints the address of the peer,
KEY@HOST:PORT, with `--token` as KEY@HOST:PORT#TOKEN. A session takes either as it is.

  --listen HOST:PORT   where the peer listens, over UDP; port 0 is a free one
  --key PATH           the key of the peer, made if there is none; by default that of this user
  --temporary-key      a new key, which is not kept
  --allow KEY          lets the node with this public key open sessions; may be repeated
  --allow-file PATH    allows the public keys in a file, one in each line; `#` begins a comment
  --token [SECONDS]    makes a join token, which admits one node whose key is not known; it expires
                       after SECONDS, by default 600
  --cpus N             the number of CPU devices; by default 1
  --threads N          the number of threads of all CPU devices; by default one for each core
  --gpu                offers all GPUs
  --gpu-memory BYTES   how much memory of each GPU all sessions together may use; by default all
  --profile PROFILE    the kind of network: loopback, lan (the default) or wan
  --failure-timeout S  how long another process may fail to respond; by default 10
  --memory BYTES       how much memory the variables of each session may use; by default 16 GiB
  --step-memory BYTES  how much memory the steps of each session may use at once; by default 16 GiB
  --load-time SECONDS  how long a program of a session may take to load; by default 300
  --step-time SECONDS  how long a step of a session may take; by default 3600
  --name NAME          the name of the peer, for messages; by default that of this machine
  --until-stdin-closes ends also when standard input ends
  --quiet              prints no settings

Who is allowed to open a session can run any graph of anabranch on the devices of this peer.
";

/// How long steps may run after the peer was asked to end.
const GRACE: Duration = Duration::from_secs(60);

/// How long they may if the process that the peer belongs to has ended.
const GRACE_OF_ORPHANS: Duration = Duration::from_secs(1);

/// How long join tokens are valid.
const TOKEN_SECONDS: u64 = 600;

/// Takes the option `--profile`.
pub(crate) fn profile_of(given: &mut CommandLine) -> Result<Profile, UsageError> {
    match given.option::<String>("--profile")?.as_deref() {
        None => Ok(Profile::default()),
        Some("loopback") => Ok(Profile::Loopback),
        Some("lan") => Ok(Profile::Lan),
        Some("wan") => Ok(Profile::Wan),
        Some(other) => Err(UsageError(format!("`--profile {other}`: use `loopback`, `lan` or `wan`"))),
    }
}

/// Takes an option that is a number of seconds.
pub(crate) fn seconds_of(given: &mut CommandLine, option: &str) -> Result<Option<Duration>, UsageError> {
    let Some(seconds) = given.option::<f64>(option)? else { return Ok(None) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
        _ => Err(UsageError(format!("`{option} {seconds}` is not a number of seconds above 0"))),
    }
}

/// The settings that the options of a peer stand for.
struct Settings {
    options: PeerOptions,
    key: NodeId,
    token: Option<JoinToken>,
    is_open: bool,
    until_stdin_closes: bool,
    quiet: bool,
}

fn settings(mut given: CommandLine) -> Result<Settings, CommandError> {
    let listen = given.option::<String>("--listen")?;
    let mut allowed = given.every::<NodeId>("--allow")?;
    for path in given.every::<PathBuf>("--allow-file")? {
        allowed.extend(keys_in(&path)?);
    }
    let token = match given.option_or("--token", TOKEN_SECONDS) {
        Some(0) => return Err(UsageError("`--token 0` is not a number of seconds above 0".to_owned()).into()),
        token => token,
    };
    let (cpus, threads) = (given.option::<NonZero<u32>>("--cpus")?, given.option::<NonZero<usize>>("--threads")?);
    let gpus = gpus_of(&mut given)?;
    let profile = profile_of(&mut given)?;
    let failure_timeout = seconds_of(&mut given, "--failure-timeout")?;
    let memory = given.option::<NonZero<u64>>("--memory")?.map(NonZero::get);
    let step_memory = given.option::<NonZero<u64>>("--step-memory")?.map(NonZero::get);
    let load_time = seconds_of(&mut given, "--load-time")?;
    let step_time = seconds_of(&mut given, "--step-time")?;
    let name = given.option::<String>("--name")?;
    let (until_stdin_closes, quiet) = (given.has("--until-stdin-closes"), given.has("--quiet"));
    let key = match given.has("--temporary-key") {
        true => None,
        false => Some(path_of_key(&mut given, UserKey::Node)?),
    };
    given.end()?;
    let listen = listen.ok_or_else(|| UsageError("`--listen HOST:PORT` is missing".to_owned()))?;
    let listen = address(&listen).map_err(|error| UsageError(format!("`--listen {listen}`: {error}")))?;
    if name.as_ref().is_some_and(|name| name.trim().is_empty()) {
        return Err(UsageError("`--name` is empty".to_owned()).into());
    }
    let key = key.map_or_else(NodeKey::generate, NodeKey::load_or_generate)?;

    let id = key.id();
    let name = name.unwrap_or_else(|| host_name().unwrap_or_else(|| format!("peer {}", id.short())));
    let mut options = PeerOptions::new(key).name(&name).listen(listen).profile(profile);
    options = cpus.map(NonZero::get).into_iter().fold(options, PeerOptions::cpus);
    options = threads.map(NonZero::get).into_iter().fold(options, PeerOptions::threads);
    options = failure_timeout.into_iter().fold(options, PeerOptions::failure_timeout);
    options = memory.into_iter().fold(options, PeerOptions::memory);
    options = step_memory.into_iter().fold(options, PeerOptions::step_memory);
    options = load_time.into_iter().fold(options, PeerOptions::load_time);
    options = step_time.into_iter().fold(options, PeerOptions::step_time);
    if let Some(gpus) = gpus {
        options = with_gpus(options, gpus.memory)?;
    }
    let token = token.map(|seconds| JoinToken::generate(Duration::from_secs(seconds))).transpose()?;
    let is_open = !allowed.is_empty() || token.is_some();
    options = allowed.into_iter().fold(options, PeerOptions::allow);
    options = token.iter().cloned().fold(options, PeerOptions::token);
    options = options.on_event(say);
    Ok(Settings { options, key: id, token, is_open, until_stdin_closes, quiet })
}

pub(crate) fn run(given: CommandLine) -> Result<ExitCode, CommandError> {
    let Settings { options, key, token, is_open, until_stdin_closes, quiet } = settings(given)?;
    // Before anything is printed, so that who reads it can end this process.
    let requests = end_requests(until_stdin_closes)?;
    let peer = Peer::serve(options)?;
    let _key_of_program = std::env::var_os(KEY_OF_PROGRAM).map(|path| RemovedAtEnd(path.into()));
    let (network, warning) = peer.network();
    if !quiet {
        let devices: Vec<String> = peer.devices().iter().map(ToString::to_string).collect();
        say(&format!("offers {}; {network}; {}", devices.join(", "), peer.time_limits()));
    }
    warning.iter().for_each(|warning| say(&format!("warning: {warning}")));
    if !is_open {
        say("warning: nobody may connect; allow a key with `--allow`, or make a join token with `--token`");
    }
    let address = PeerAddress::new(key, reachable(peer.address().socket_addr()));
    let line = format!("{}\n", token.into_iter().fold(address, PeerAddress::with_token));
    let mut out = std::io::stdout().lock();
    let printed = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    drop(out);
    printed.map_err(|error| Diagnostic::new(format!("cannot print the address of the peer: {error}")))?;

    let Ok(request) = requests.recv() else {
        return Err(Diagnostic::new("signals of the system are lost").into());
    };
    let is_orphan = request == crate::signals::EndRequest::StdinClosed;
    if !quiet {
        say("ends when the steps that run here have ended");
    }
    let (left, end) = std::sync::mpsc::channel();
    let leave = move || {
        peer.leave("it was asked to end", if is_orphan { GRACE_OF_ORPHANS } else { GRACE });
        let _ = left.send(());
    };
    let leaving = std::thread::spawn(leave);
    loop {
        if end.recv_timeout(Duration::from_millis(20)) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            // The thread has ended or panicked.
            return Ok(if leaving.join().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        if requests.try_recv().is_ok() {
            say("ends now, before its steps have ended");
            return Ok(ExitCode::FAILURE);
        }
    }
}

/// The variable with the path of a key which the first peer of `anabranch launch` removes, with its
/// folder, when it ends. The peers end also if the process that made it is killed.
pub(crate) const KEY_OF_PROGRAM: &str = "ANABRANCH_KEY_OF_PROGRAM";

/// A file that is alone in its folder, and is removed with it when this is dropped.
pub(crate) struct RemovedAtEnd(pub(crate) PathBuf);

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = self.0.parent().map(std::fs::remove_dir);
    }
}

/// Prints a line for people. Who does not listen misses it.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "anabranch peer: {line}");
}

/// Reads public keys, one in each line.
fn keys_in(path: &Path) -> Result<Vec<NodeId>, Diagnostic> {
    let fail = |error: String| Diagnostic::new(format!("cannot read the keys in {}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let key = line.split('#').next().unwrap_or_default().trim();
        if !key.is_empty() {
            let key = key.parse::<NodeId>();
            keys.push(key.map_err(|error| fail(format!("line {number}: {}", error.message)))?);
        }
    }
    Ok(keys)
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|error| error.to_string())?;
    found.next().ok_or_else(|| "the host has no address".to_owned())
}

/// Returns an address at which other machines may reach this one, if the peer listens on all.
fn reachable(listen: SocketAddr) -> SocketAddr {
    if !listen.ip().is_unspecified() {
        return listen;
    }
    // Nothing is sent: the system says which of its addresses it would send from.
    let route = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
        socket.local_addr().ok()
    };
    let ip = route().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |addr| addr.ip());
    SocketAddr::new(ip, listen.port())
}

/// Returns the name of this machine, where the system keeps it in a file.
fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The GPUs that a peer is to offer: all of them.
pub(crate) struct OfferedGpus {
    /// The bytes of each that all sessions together may use.
    pub(crate) memory: Option<u64>,
}

/// Returns the GPUs that the options ask for.
pub(crate) fn gpus_of(given: &mut CommandLine) -> Result<Option<OfferedGpus>, UsageError> {
    match (given.has("--gpu"), given.option::<u64>("--gpu-memory")?) {
        (false, Some(_)) => Err(UsageError("`--gpu-memory` needs `--gpu`".to_owned())),
        (false, None) => Ok(None),
        (true, _) if cfg!(not(feature = "gpu")) => {
            Err(UsageError("`--gpu`: this program was built without the feature `gpu`".to_owned()))
        }
        (true, memory) => Ok(Some(OfferedGpus { memory })),
    }
}

#[cfg(feature = "gpu")]
fn with_gpus(options: PeerOptions, memory: Option<u64>) -> Result<PeerOptions, CommandError> {
    let adapters = anabranch::gpu_adapters();
    if adapters.is_empty() {
        return Err(Diagnostic::new("this machine has no GPU that anabranch can use").into());
    }
    Ok(adapters.into_iter().fold(options, |options, adapter| {
        options.gpu(&match memory {
            Some(bytes) => adapter.with_memory_budget(bytes),
            None => adapter,
        })
    }))
}

#[cfg(not(feature = "gpu"))]
fn with_gpus(_: PeerOptions, _: Option<u64>) -> Result<PeerOptions, CommandError> {
    panic!("without the feature `gpu`, the options ask for no GPU")
}
