//! Slow and broken networks: the peer is in a namespace of its own. Skipped if this process may not
//! make one, unless `ANABRANCH_NAMESPACES` is set.

use crate::processes::{
    ANABRANCH, FAILURE_TIMEOUT, PeerProcess, ProcessTest, bounded, nothing_runs, spin, timed, until,
};
use anabranch::peers::Profile;
use anabranch::prelude::*;
use anabranch::{ErrorKind, Session};
use std::process::{Command, Stdio};
use std::thread;

/// A namespace with a link to that of this process. Removed when it is dropped.
struct Namespace {
    name: String,
    /// The end of the link in the namespace of this process.
    device: String,
    addr: String,
}

/// Runs a command of iproute2. Returns whether it succeeded.
fn run(command: &str) -> bool {
    let mut words = command.split(' ');
    let mut command = Command::new(words.next().expect("there is a word"));
    let status = command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

impl Namespace {
    /// Makes a namespace. `number` differs between tests.
    fn create(number: u8) -> Option<Namespace> {
        let id = std::process::id();
        let (name, device) = (format!("anabranch-{id}-{number}"), format!("ab{id}-{number}"));
        // Addresses for tests of networks (RFC 2544), four for each test of each process.
        let (third, fourth) = (id % 256, u32::from(number) * 4);
        let [here, addr] = [1, 2].map(|end| format!("198.18.{third}.{}", fourth + end));
        if !run(&format!("ip netns add {name}")) {
            return None;
        }
        let namespace = Namespace { name, device, addr };
        let (name, device, addr) = (&namespace.name, &namespace.device, &namespace.addr);
        let is_made = [
            format!("ip link add {device} type veth peer name peer netns {name}"),
            format!("ip addr add {here}/30 dev {device}"),
            format!("ip link set {device} up"),
            format!("ip -n {name} addr add {addr}/30 dev peer"),
            format!("ip -n {name} link set peer up"),
        ];
        is_made.iter().all(|command| run(command)).then_some(namespace)
    }

    /// Starts a peer in the namespace.
    fn peer(&self, test: &ProcessTest) -> PeerProcess {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, ANABRANCH]);
        let (at, timeout) = (format!("{}:0", self.addr), FAILURE_TIMEOUT.as_secs().to_string());
        test.peer_by(command, Profile::Wan, "a", &at, &timeout, &[test.key.id()], &[])
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        run(&format!("ip link del {}", self.device));
        run(&format!("ip netns del {}", self.name));
    }
}

/// Says that a test is skipped, and why. With `ANABRANCH_NAMESPACES` set, that is a failure.
fn skip(name: &str, why: &str) {
    assert!(std::env::var_os("ANABRANCH_NAMESPACES").is_none(), "{name}: {why}");
    println!("{name}: skipped, as {why}");
}

/// Runs a test with a peer in a namespace.
fn with_namespace(name: &str, number: u8, test: impl FnOnce(&ProcessTest, &Namespace, &PeerProcess) + Send + 'static) {
    let Some(namespace) = Namespace::create(number) else {
        return skip(name, "this process may make no network namespace with `ip netns`");
    };
    bounded(name, move |context| test(context, &namespace, &namespace.peer(context)));
}

fn session(test: &ProcessTest, peer: &PeerProcess) -> Session {
    test.builder([peer]).network(Profile::Wan).build().expect("the peer runs")
}

#[test]
fn a_link_that_goes_down_is_lost_and_found_again() {
    with_namespace("link_down", 0, |test, namespace, peer| {
        let session = session(test, peer);
        let f = session.function(|n: Tensor<i64>| on("/peer:0/cpu:0", || spin(n)));
        let f = f.expect("the function can be traced");
        assert_eq!(f.call(5).expect("the peer runs"), 5);
        let call = thread::spawn(move || (f.call(i64::MAX), f));
        until("the step runs", || test.status(peer).steps == 1);
        assert!(run(&format!("ip link set {} down", namespace.device)));
        let (joined, after) = timed(|| call.join());
        let (result, f) = joined.expect("a call does not panic");
        assert!(after <= FAILURE_TIMEOUT, "the failure was detected after {after:?}");
        let error = result.expect_err("the link is down");
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        let text = error.to_string();
        assert!(text.contains("is unreachable") && text.contains(&peer.addr().to_string()), "{text}");
        assert!(run(&format!("ip link set {} up", namespace.device)));
        until("the peer ends the step", || nothing_runs(&test.status(peer)));
        assert_eq!(f.call(5).expect("the link is up"), 5);
    });
}

/// Halves a number `n` times. Each iteration needs values both ways.
#[graph]
fn halved(x: Tensor, n: Tensor<i32>) -> Tensor {
    let mut x = x;
    let mut i = on("/peer:local/cpu:0", || scalar(0i32));
    while i < n {
        i = on("/peer:local/cpu:0", || i + 1);
        x = on("/peer:0/cpu:0", || x * 0.25);
        x = on("/peer:local/cpu:0", || x * 2.0);
    }
    x
}

/// The decisions and the scalars of a loop are not queued behind megabytes.
#[test]
fn a_loop_over_a_link_does_not_wait_for_a_transfer() {
    with_namespace("loop_beside_transfer", 2, |test, namespace, peer| {
        let session = session(test, peer);
        let ends = session.function(|x: Tensor| on("/peer:0/cpu:0", || x.sum())).expect("the function can be traced");
        let halves = session.function(halved).expect("the function can be traced");
        assert_eq!(halves.call((1.0, 3)).expect("the peer runs"), 0.125);
        let zeros = vec![0.0f32; 1_000_000];
        assert_eq!(ends.call(zeros.clone()).expect("the peer runs"), 0.0);
        if !run(&format!("tc qdisc add dev {} root tbf rate 10mbit burst 32kb latency 50ms", namespace.device)) {
            return skip("loop_beside_transfer", "this system has no `tbf`");
        }
        // 4 MB take more than three seconds.
        let transfer = thread::spawn(move || ends.call(zeros));
        until("the transfer runs", || test.status(peer).steps == 1);
        assert_eq!(halves.call((1.0, 5)).expect("the link is slow, but works"), 0.03125);
        assert!(!transfer.is_finished(), "the loop waited for the transfer");
        let sum = transfer.join().expect("a call does not panic");
        assert_eq!(sum.expect("the link is slow, but works"), 0.0);
    });
}

/// Sends 8 KB to the peer in each iteration, and adds them up there.
#[graph(parallel_iterations = 1000)]
fn many_rows(n: Tensor<i32>, x: Tensor) -> Tensor {
    let mut i = on("/peer:local/cpu:0", || scalar(0i32));
    let mut total = on("/peer:0/cpu:0", || scalar(0.0));
    while i < n {
        i = on("/peer:local/cpu:0", || i + 1);
        let row = on("/peer:local/cpu:0", || x * i.cast());
        total = on("/peer:0/cpu:0", || total + row.sum());
    }
    total
}

/// The decisions and the scalars of a loop are not queued behind many small values either.
#[test]
fn a_loop_over_a_link_does_not_wait_for_rows_of_another_loop() {
    with_namespace("loop_beside_rows", 3, |test, namespace, peer| {
        let session = session(test, peer);
        let rows = session.function(many_rows).expect("the function can be traced");
        let halves = session.function(halved).expect("the function can be traced");
        assert_eq!(halves.call((1.0, 3)).expect("the peer runs"), 0.125);
        assert_eq!(rows.call((2, vec![1.0; 2_048])).expect("the peer runs"), 6_144.0);
        if !run(&format!("tc qdisc add dev {} root tbf rate 10mbit burst 32kb latency 50ms", namespace.device)) {
            return skip("loop_beside_rows", "this system has no `tbf`");
        }
        // 1,000 rows of 8 KB take more than six seconds. All of them may wait to be sent at once.
        let sum = thread::spawn(move || rows.call((1_000, vec![1.0; 2_048])));
        until("the rows are sent", || test.status(peer).steps == 1);
        assert_eq!(halves.call((1.0, 20)).expect("the link is slow, but works"), 0.5f32.powi(20));
        assert!(!sum.is_finished(), "the loop waited for the rows");
        let sum = sum.join().expect("a call does not panic");
        assert_eq!(sum.expect("the link is slow, but works"), 1_025_024_000.0);
    });
}

#[test]
fn a_slow_link_is_not_lost() {
    with_namespace("slow_link", 1, |test, namespace, peer| {
        let session = session(test, peer);
        let v = on("/peer:0/cpu:0", || Var::<f32>::new("v", vec![0.0; 10_000]));
        let sum = session.function(|| v.get().sum()).expect("the function can be traced");
        assert_eq!(sum.call(()).expect("the peer runs"), 0.0);
        let f = session.function(|x: Tensor| on("/peer:0/cpu:0", || x * 2.0));
        let f = f.expect("the function can be traced");
        assert_eq!(f.call([1.0, 2.0]).expect("the peer runs").as_slice(), [2.0, 4.0]);
        let slow = "root tbf rate 64kbit burst 4kb latency 400ms";
        let is_slow = run(&format!("tc qdisc add dev {} {slow}", namespace.device))
            && run(&format!("tc -n {} qdisc add dev peer {slow}", namespace.name));
        if !is_slow {
            return skip("slow_link", "this system has no `tbf`");
        }
        // 20 KB there and back take at least 5 s, longer than the failure timeout.
        let x: Vec<f32> = (0..5_000).map(|i| i as f32).collect();
        let doubled: Vec<f32> = x.iter().map(|x| x * 2.0).collect();
        assert_eq!(f.call(x).expect("the link is slow, but works").as_slice(), doubled);
        // So do 40 KB there, and as many back.
        let values: Vec<f32> = (0..10_000).map(|i| i as f32).collect();
        session.set(&v, values.clone()).expect("the link is slow, but works");
        assert_eq!(session.get(&v).expect("the link is slow, but works").as_slice(), values);
        // A session can begin, and knows how slow the link is, unless the test took too long.
        let late = self::session(test, peer);
        let reports = late.link_reports();
        assert!(reports.iter().all(|report| report.received_per_second < 20e3), "{reports:?}");
        assert_eq!(late.function(|x: Tensor| on("/peer:0/cpu:0", || x + 1.0)).unwrap().call(1.0).unwrap(), 2.0);
    });
}
