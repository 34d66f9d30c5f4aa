//! Steps over several processes beside bare QUIC, in one run. Each figure is the median of rounds
//! that alternate between the two. `cargo bench --bench peers --features peers`
//!
//! Arguments choose among `null`, `loops` and `transfers`: `... -- null`.
//!
//! Peers are other processes on this machine, or threads of this one with `ANABRANCH_IN_PROCESS=1`.
//! The two ends of bare QUIC are threads of this process.

use anabranch::peers::{NodeKey, Peer, PeerAddress, PeerOptions, Profile};
use anabranch::prelude::*;
use anabranch::runtime::testing::BareQuic;
use anabranch::{Diagnostic, IntoArray, Session};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The variable with the key that a peer, started by this program, admits.
const ALLOWED: &str = "ANABRANCH_BENCH_ALLOWED";

const ROUNDS: usize = 7;

/// Peers that this program has started.
struct Peers {
    addresses: Vec<PeerAddress>,
    children: Vec<Child>,
    _here: Vec<Peer>,
}

impl Drop for Peers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn options() -> Result<PeerOptions, Diagnostic> {
    let listen = "127.0.0.1:0".parse().expect("this is an address");
    Ok(PeerOptions::new(NodeKey::generate()?).listen(listen).profile(Profile::Loopback).threads(1))
}

fn start(n: usize, key: &NodeKey) -> Result<Peers, Diagnostic> {
    let mut peers = Peers { addresses: Vec::new(), children: Vec::new(), _here: Vec::new() };
    for _ in 0..n {
        if std::env::var_os("ANABRANCH_IN_PROCESS").is_some() {
            let peer = Peer::serve(options()?.allow(key.id()))?;
            peers.addresses.push(peer.address());
            peers._here.push(peer);
            continue;
        }
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.env(ALLOWED, key.id().to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the peer starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output is piped");
        BufReader::new(output).read_line(&mut line).expect("the peer prints its address");
        peers.children.push(child);
        peers.addresses.push(line.trim().parse()?);
    }
    Ok(peers)
}

/// Serves until its input ends.
fn serve(allowed: &str) -> Result<(), Diagnostic> {
    let peer = Peer::serve(options()?.allow(allowed.parse()?))?;
    println!("{}", peer.address());
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

/// Returns whether a group of measurements was asked for.
fn is_chosen(group: &str) -> bool {
    let mut chosen = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
    chosen.peek().is_none() || chosen.any(|argument| argument == group)
}

fn run() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = start(2, &key)?;
    let builder = Session::builder().node_key(key).network(Profile::Loopback);
    let session = peers.addresses.iter().cloned().fold(builder, |builder, peer| builder.peer(peer)).build()?;
    let mut bare = BareQuic::connect(Profile::Loopback);
    if is_chosen("null") {
        null_step(&session, &mut bare)?;
    }
    if is_chosen("loops") {
        loops(&session, &mut bare)?;
    }
    if is_chosen("transfers") {
        transfers(&session, &peers, &mut bare)?;
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

/// Measures iterations of a loop over two peers.
fn loops(session: &Session, bare: &mut BareQuic) -> Result<(), Diagnostic> {
    for (name, trips) in [("each needs the other", 2.0), ("none needs the other", 0.0)] {
        const N: i32 = 2_000;
        let run = match trips > 1.0 {
            true => {
                let f = session.function(around)?;
                Box::new(move |n: i32| drop(f.call((1.0, n)).unwrap_or_else(|e| panic!("{e}")))) as Box<dyn Fn(i32)>
            }
            false => {
                let f = session.function(apart)?;
                Box::new(move |n: i32| drop(f.call((1.0, n)).unwrap_or_else(|e| panic!("{e}"))))
            }
        };
        run(N);
        let each = || time(1, || run(N)) / f64::from(N);
        let [iteration, ping] = alternate(each, || bare.ping_pongs(500).as_secs_f64() / 500.0);
        println!(
            "loop over 2 peers, {name}: {:.1} us an iteration, {:.0} iterations/s, {:.2} round trips",
            iteration * 1e6,
            1.0 / iteration,
            iteration / ping
        );
    }

    Ok(())
}

/// Measures tensors that go to a peer, from which a number comes back.
fn transfers(session: &Session, peers: &Peers, bare: &mut BareQuic) -> Result<(), Diagnostic> {
    let first = session.function(|x: Tensor| on("/peer:0/cpu:0", || x.slice(0, 0, 1)))?;
    for (megabytes, n) in [(1, 32), (16, 4), (100, 1)] {
        let len = megabytes * 250_000;
        let array = vec![1.0f32; len].into_array();
        let mut body = vec![1u8; len * 4];
        body[len * 4 - 1] = 7;
        let body = bytes::Bytes::from(body);
        let call = || drop(first.call(&array).unwrap_or_else(|e| panic!("{e}")));
        call();
        let cpu = |peers: &Peers| {
            let others: f64 = peers.children.iter().map(|child| processor_time(&child.id().to_string())).sum();
            processor_time("self") + others
        };
        let (mut step_cpu, mut bare_cpu) = (0.0, 0.0);
        let [step, ping] = alternate(
            || {
                let before = cpu(peers);
                let time = time(n, call);
                step_cpu += cpu(peers) - before;
                time
            },
            || {
                let before = cpu(peers);
                let time: Duration = bare.send(&body, n);
                bare_cpu += cpu(peers) - before;
                time.as_secs_f64() / n as f64
            },
        );
        let rate = |seconds: f64| len as f64 * 32e-9 / seconds;
        let gigabytes = (ROUNDS * n * len * 4) as f64 / 1e9;
        println!(
            "{megabytes} MB to a peer: {:.2} Gbit/s, bare {:.2}, {:.0} %; CPU s/GB of both ends {:.2}, bare {:.2}",
            rate(step),
            rate(ping),
            100.0 * ping / step,
            step_cpu / gigabytes,
            bare_cpu / gigabytes,
        );
    }
    Ok(())
}

fn main() -> Result<(), Diagnostic> {
    match std::env::var(ALLOWED) {
        Ok(allowed) => serve(&allowed),
        Err(_) => run(),
    }
}
