//! Steps over several processes beside bare QUIC, in one run. Each figure is the median of rounds
//! that alternate between the two. `cargo bench --bench peers --features peers`
//!
//! Arguments choose among `null`, `loops` and `transfers`, and `four`, a loop over four peers,
//! which is left out unless it is named: `... -- null`. With `namespaces`, each peer is in a
//! network namespace of its own, all at one bridge; that needs `ip` and the rights to use it.
//!
//! Peers are other processes on this machine, or threads of this one with `ANABRANCH_IN_PROCESS=1`.
//! The other ends of bare QUIC are in the processes of the peers.

use anabranch::peers::{NodeKey, Peer, PeerAddress, PeerOptions, Profile};
use anabranch::prelude::*;
use anabranch::runtime::testing::BareQuic;
use anabranch::{Array, Diagnostic, IntoArray, Session};
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The variable with the key that a peer, started by this program, admits.
const ALLOWED: &str = "ANABRANCH_BENCH_ALLOWED";

/// The variable with the address at which it listens.
const LISTEN: &str = "ANABRANCH_BENCH_LISTEN";

const ROUNDS: usize = 7;

/// Peers that this program has started.
struct Peers {
    addresses: Vec<PeerAddress>,
    /// The other end of bare QUIC at each peer.
    bare: Vec<SocketAddr>,
    children: Vec<Child>,
    _here: Vec<Peer>,
    _namespaces: Option<Namespaces>,
}

impl Drop for Peers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Network namespaces at one bridge, to which this process belongs, too. Removed when dropped.
struct Namespaces {
    bridge: String,
    names: Vec<String>,
    /// The first three numbers of all addresses.
    network: String,
}

/// Runs a command of iproute2. Returns whether it succeeded.
fn ip(arguments: &str) -> bool {
    let status = Command::new("ip").args(arguments.split(' ')).stdin(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

impl Namespaces {
    fn create(n: usize) -> Option<Namespaces> {
        let id = std::process::id();
        let names = (0..n).map(|i| format!("anabranch-bench-{id}-{i}")).collect();
        // Addresses for benchmarks of networks (RFC 2544).
        let namespaces = Namespaces { bridge: format!("ab{id}"), names, network: format!("198.19.{}", id % 256) };
        let Namespaces { bridge, names, network } = &namespaces;
        let mut commands = vec![
            format!("link add {bridge} type bridge"),
            format!("addr add {network}.254/24 dev {bridge}"),
            format!("link set {bridge} up"),
        ];
        for (i, name) in names.iter().enumerate() {
            let (device, number) = (format!("{bridge}-{i}"), i + 1);
            commands.extend([
                format!("netns add {name}"),
                format!("link add {device} type veth peer name peer netns {name}"),
                format!("link set {device} master {bridge}"),
                format!("link set {device} up"),
                format!("-n {name} addr add {network}.{number}/24 dev peer"),
                format!("-n {name} link set peer up"),
            ]);
        }
        commands.iter().all(|command| ip(command)).then_some(namespaces)
    }

    /// Returns the address in a namespace.
    fn address(&self, i: usize) -> String {
        format!("{}.{}", self.network, i + 1)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // The devices also end with their namespaces, but later.
        for (i, name) in self.names.iter().enumerate() {
            ip(&format!("link del {}-{i}", self.bridge));
            ip(&format!("netns del {name}"));
        }
        ip(&format!("link del {}", self.bridge));
    }
}

/// Returns the kind of network to an address.
fn profile_of(at: IpAddr) -> Profile {
    if at.is_loopback() { Profile::Loopback } else { Profile::Lan }
}

fn options(at: IpAddr) -> Result<PeerOptions, Diagnostic> {
    Ok(PeerOptions::new(NodeKey::generate()?).listen((at, 0).into()).profile(profile_of(at)).threads(1))
}

fn start(n: usize, key: &NodeKey) -> Result<Peers, Diagnostic> {
    let _namespaces = match has_argument("namespaces") {
        true => Some(Namespaces::create(n).expect("this process may make network namespaces with `ip netns`")),
        false => None,
    };
    let (addresses, bare, children, _here) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut peers = Peers { addresses, bare, children, _here, _namespaces };
    let local = IpAddr::from(Ipv4Addr::LOCALHOST);
    for i in 0..n {
        if std::env::var_os("ANABRANCH_IN_PROCESS").is_some() {
            let peer = Peer::serve(options(local)?.allow(key.id()))?;
            peers.addresses.push(peer.address());
            peers.bare.push(BareQuic::serve(local, Profile::Loopback));
            peers._here.push(peer);
            continue;
        }
        let program = std::env::current_exe().expect("this program has a path");
        let (mut command, at) = match &peers._namespaces {
            Some(namespaces) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &namespaces.names[i]]).arg(program);
                (command, namespaces.address(i))
            }
            None => (Command::new(program), local.to_string()),
        };
        command.env(ALLOWED, key.id().to_string()).env(LISTEN, at).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the peer starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output is piped");
        BufReader::new(output).read_line(&mut line).expect("the peer prints its addresses");
        peers.children.push(child);
        let (address, bare) = line.trim().split_once(' ').expect("the peer prints two addresses");
        peers.addresses.push(address.parse()?);
        peers.bare.push(bare.parse().expect("this is an address"));
    }
    Ok(peers)
}

/// Serves until its input ends.
fn serve(allowed: &str) -> Result<(), Diagnostic> {
    let at = std::env::var(LISTEN).expect("the address is told").parse().expect("it is an address");
    let peer = Peer::serve(options(at)?.allow(allowed.parse()?))?;
    println!("{} {}", peer.address(), BareQuic::serve(at, profile_of(at)));
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    Ok(())
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Returns the median time of each of two alternating measurements.
fn alternate(mut a: impl FnMut() -> f64, mut b: impl FnMut() -> f64) -> [f64; 2] {
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        of_a.push(a());
        of_b.push(b());
    }
    [median(&mut of_a), median(&mut of_b)]
}

fn time(n: usize, mut f: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..n).for_each(|_| f());
    start.elapsed().as_secs_f64() / n as f64
}

/// Processor seconds of a process.
fn processor_time(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|t| t.parse::<f64>().ok()).unwrap_or(f64::NAN);
    (ticks(11) + ticks(12)) / 100.0
}

#[graph]
fn around(x: Tensor, n: Tensor<i32>) -> Tensor {
    let mut x = x;
    let mut i = on("/peer:0/cpu:0", || scalar(0i32));
    // The condition and each of the peers need what another one computes.
    while i < n {
        i = on("/peer:0/cpu:0", || i + 1);
        x = on("/peer:1/cpu:0", || x + 1.0);
        x = on("/peer:0/cpu:0", || x * 0.5);
    }
    x
}

#[graph]
fn apart(x: Tensor, n: Tensor<i32>) -> Tensor {
    let mut x = x;
    let mut i = on("/peer:0/cpu:0", || scalar(0i32));
    while i < n {
        i = on("/peer:0/cpu:0", || i + 1);
        x = on("/peer:1/cpu:0", || x * 0.5 + 1.0);
    }
    x
}

/// A loop around four peers: two round trips, one after the other.
#[graph]
fn around_four(x: Tensor, n: Tensor<i32>) -> Tensor {
    let mut x = x;
    let mut i = on("/peer:0/cpu:0", || scalar(0i32));
    while i < n {
        i = on("/peer:0/cpu:0", || i + 1);
        x = on("/peer:1/cpu:0", || x + 1.0);
        x = on("/peer:2/cpu:0", || x * 0.5);
        x = on("/peer:3/cpu:0", || x - 0.25);
        x = on("/peer:0/cpu:0", || x * 0.5);
    }
    x
}

/// A loop in which one of four peers needs what the three others compute from its value: one round
/// trip.
#[graph]
fn star(x: Tensor, n: Tensor<i32>) -> Tensor {
    let mut x = x;
    let mut i = on("/peer:0/cpu:0", || scalar(0i32));
    while i < n {
        i = on("/peer:0/cpu:0", || i + 1);
        let a = on("/peer:1/cpu:0", || x + 1.0);
        let b = on("/peer:2/cpu:0", || x * 0.5);
        let c = on("/peer:3/cpu:0", || x - 0.25);
        x = on("/peer:0/cpu:0", || (a + b + c) * 0.25);
    }
    x
}

/// A loop in which each of four peers has a value of its own.
#[graph]
fn apart_four(x: Tensor, n: Tensor<i32>) -> Tensor {
    let (mut a, mut b, mut c) = (x, x, x);
    let mut i = on("/peer:0/cpu:0", || scalar(0i32));
    while i < n {
        i = on("/peer:0/cpu:0", || i + 1);
        a = on("/peer:1/cpu:0", || a * 0.5 + 1.0);
        b = on("/peer:2/cpu:0", || b * 0.5 + 2.0);
        c = on("/peer:3/cpu:0", || c * 0.5 + 3.0);
    }
    a + b + c
}

fn has_argument(name: &str) -> bool {
    std::env::args().skip(1).any(|argument| argument == name)
}

/// Returns whether a group of measurements was asked for.
fn is_chosen(group: &str) -> bool {
    let groups = ["null", "loops", "transfers", "four"];
    has_argument(group) || (group != "four" && !groups.iter().any(|group| has_argument(group)))
}

/// Starts peers. Returns them, a session at them, and an end of bare QUIC to the first.
fn connect(n: usize) -> Result<(Peers, Session, BareQuic), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = start(n, &key)?;
    let profile = profile_of(peers.bare[0].ip());
    let builder = Session::builder().node_key(key).network(profile);
    let session = peers.addresses.iter().cloned().fold(builder, |builder, peer| builder.peer(peer)).build()?;
    let bare = BareQuic::connect(&peers.bare[..1], profile);
    Ok((peers, session, bare))
}

fn run() -> Result<(), Diagnostic> {
    if ["null", "loops", "transfers"].into_iter().any(is_chosen) {
        let (peers, session, mut bare) = connect(2)?;
        if is_chosen("null") {
            null_step(&session, &mut bare)?;
        }
        if is_chosen("loops") {
            let f = session.function(around)?;
            measure_loop("loop over 2 peers, each needs the other", |n| f.call((1.0, n)), &mut bare);
            let f = session.function(apart)?;
            measure_loop("loop over 2 peers, none needs the other", |n| f.call((1.0, n)), &mut bare);
        }
        if is_chosen("transfers") {
            transfers(&session, &peers, &mut bare)?;
        }
    }
    if is_chosen("four") {
        let (peers, session, mut bare) = connect(4)?;
        let f = session.function(around_four)?;
        measure_loop("loop over 4 peers, each needs the next", |n| f.call((1.0, n)), &mut bare);
        let f = session.function(star)?;
        measure_loop("loop over 4 peers, one needs the others", |n| f.call((1.0, n)), &mut bare);
        // As many processes take turns as in the loop.
        let mut others = BareQuic::connect(&peers.bare[1..], profile_of(peers.bare[0].ip()));
        measure_loop("the same, of exchanges with three other ends at once", |n| f.call((1.0, n)), &mut others);
        let f = session.function(apart_four)?;
        measure_loop("loop over 4 peers, none needs another", |n| f.call((1.0, n)), &mut bare);
    }
    Ok(())
}

fn null_step(session: &Session, bare: &mut BareQuic) -> Result<(), Diagnostic> {
    let null = session.function(|x: Tensor| on("/peer:0/cpu:0", || x + 1.0))?;
    let call = || assert_eq!(null.call(1.0).unwrap_or_else(|e| panic!("{e}")), 2.0);
    call();
    let [step, ping] = alternate(|| time(500, call), || bare.ping_pongs(500).as_secs_f64() / 500.0);
    println!("null step at a peer {:.1} us, bare ping-pong {:.1} us, ratio {:.2}", step * 1e6, ping * 1e6, step / ping);
    Ok(())
}

/// Measures iterations of a loop over peers, of which `call` runs some.
fn measure_loop(name: &str, call: impl Fn(i32) -> Result<Array<f32>, Diagnostic>, bare: &mut BareQuic) {
    const N: i32 = 2_000;
    let run = || drop(call(N).unwrap_or_else(|e| panic!("{e}")));
    run();
    let each = || time(1, run) / f64::from(N);
    let [iteration, ping] = alternate(each, || bare.ping_pongs(500).as_secs_f64() / 500.0);
    println!(
        "{name}: {:.1} us an iteration, {:.0} iterations/s, {:.2} round trips of {:.1} us",
        iteration * 1e6,
        1.0 / iteration,
        iteration / ping,
        ping * 1e6,
    );
}

/// Measures tensors that go to a peer, from a peer to another, and from a peer to the caller. Where
/// it is not the result, a number comes back.
fn transfers(session: &Session, peers: &Peers, bare: &mut BareQuic) -> Result<(), Diagnostic> {
    let to_peer = session.function(|x: Tensor| on("/peer:0/cpu:0", || x.slice(0, 0, 1)))?;
    for (megabytes, n) in [(1, 32), (16, 4), (100, 1)] {
        let array = vec![1.0f32; megabytes * 250_000].into_array();
        let kept = on("/peer:0/cpu:0", || Var::<f32>::new("kept", array.clone()));
        let between = session.function(|| on("/peer:1/cpu:0", || kept.get().slice(0, 0, 1)))?;
        let from_peer = session.function(|| kept.get())?;
        let calls: [(&str, &dyn Fn() -> Result<Array<f32>, Diagnostic>); 3] = [
            ("to a peer", &|| to_peer.call(&array)),
            ("from a peer to another", &|| between.call(())),
            ("from a peer", &|| from_peer.call(())),
        ];
        for (name, call) in calls {
            let call = || drop(call().unwrap_or_else(|e| panic!("{e}")));
            transfer(&format!("{megabytes} MB {name}"), (megabytes, n), call, peers, bare);
        }
    }
    Ok(())
}

/// Measures `n` transfers of so many megabytes beside a stream of bare QUIC to a peer.
fn transfer(name: &str, (megabytes, n): (usize, usize), call: impl Fn(), peers: &Peers, bare: &mut BareQuic) {
    let len = megabytes * 1_000_000;
    let mut body = vec![1u8; len];
    body[len - 1] = 7;
    let body = bytes::Bytes::from(body);
    call();
    // The processor time of this process, and that of the peers.
    let cpu = || {
        let others = peers.children.iter().map(|child| processor_time(&child.id().to_string())).sum();
        [processor_time("self"), others]
    };
    let (mut of_step, mut of_bare) = ([0.0; 2], [0.0; 2]);
    let add = |sum: &mut [f64; 2], before: [f64; 2]| {
        let after = cpu();
        (0..2).for_each(|i| sum[i] += after[i] - before[i]);
    };
    let [step, ping] = alternate(
        || {
            let before = cpu();
            let time = time(n, &call);
            add(&mut of_step, before);
            time
        },
        || {
            let before = cpu();
            let time: Duration = bare.send(&body, n);
            add(&mut of_bare, before);
            time.as_secs_f64() / n as f64
        },
    );
    let rate = |seconds: f64| len as f64 * 8e-9 / seconds;
    let gigabytes = (ROUNDS * n * len) as f64 / 1e9;
    println!(
        "{name}: {:.2} Gbit/s, bare {:.2}, {:.0} %; CPU s/GB of the caller and the peers {:.2} and {:.2}, bare {:.2} \
         and {:.2}",
        rate(step),
        rate(ping),
        100.0 * ping / step,
        of_step[0] / gigabytes,
        of_step[1] / gigabytes,
        of_bare[0] / gigabytes,
        of_bare[1] / gigabytes,
    );
}

fn main() -> Result<(), Diagnostic> {
    match std::env::var(ALLOWED) {
        Ok(allowed) => serve(&allowed),
        Err(_) => run(),
    }
}
