//! Memory over many steps.

use crate::processes::{bounded, is_slow};
use anabranch::peers::{NodeKey, PeerAddress, PeerStatus, Profile};
use anabranch::prelude::*;
use rustix::process::{Pid, getpid};
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

/// Returns the resident memory of a process, in bytes.
fn resident(pid: Pid) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

/// The number of steps after which a process has all the memory that it needs.
const WARM_UP: u64 = 2_000;

/// The elements of the variable: few enough that their sum is exact after each step, below 2^24.
const ELEMENTS: usize = 500;

/// The most bytes that all steps may leave behind, more than the memory of a process varies by.
const LEFT_BEHIND: u64 = 1 << 20;

/// A check at a peer that fails for positive numbers.
#[graph]
fn checked_at_the_peer(x: Tensor) -> Tensor {
    on("/peer:0/cpu:0", || assert!(x < 0.0, "a check at the peer"));
    x
}

/// A loop with a part here and a part at a peer.
#[graph]
fn back_and_forth(n: Tensor<i32>, x: Tensor) -> Tensor {
    let (mut i, mut x) = (scalar(0), x);
    while i < n {
        let y = on("/peer:0/cpu:0", || x + 1.0);
        x = on("/peer:local/cpu:0", || y + 1.0);
        i += 1;
    }
    x
}

/// A program of its own, since other tests would grow this process.
#[test]
#[ignore = "the program of another test"]
fn many_steps() {
    let session = anabranch::Session::builder().peers_of_environment().expect("the test sets peers");
    let session = session.build().expect("the peer runs");
    let v = on("/peer:0/cpu:0", || Var::<f32>::new("v", [0.0; ELEMENTS]));
    let step = session.function(|x: Tensor| {
        v.set(v.get() + x);
        v.get().sum()
    });
    let step = step.expect("the function can be traced");
    // Some steps fail, and in some a loop goes back and forth.
    let failing = session.function(|x: Tensor| {
        v.set(v.get() * 0.0);
        checked_at_the_peer(x)
    });
    let failing = failing.expect("the function can be traced");
    let looping = session.function(back_and_forth).expect("the function can be traced");
    let peer = std::env::var("ANABRANCH_TEST_PEER").expect("the test names the process").parse();
    let peer = peer.ok().and_then(Pid::from_raw).expect("the test names the process");
    let n = if is_slow() { 30_000 } else { 10_000 };
    let mut sizes = Vec::new();
    for i in 1..=WARM_UP + n {
        assert_eq!(step.call([1.0; ELEMENTS]).expect("the peer runs"), (ELEMENTS as u64 * i) as f32);
        if i.is_multiple_of(1_000) {
            let error = failing.call(1.0).expect_err("the check fails");
            assert!(error.message.contains("a check at the peer"), "{error}");
        }
        if i.is_multiple_of(100) {
            assert_eq!(looping.call((5, 1.0)).expect("the peer runs"), 11.0);
        }
        if i == WARM_UP || i == WARM_UP + n {
            sizes.push([getpid(), peer].map(|pid| resident(pid).expect("this system has /proc")));
        }
    }
    for (before, after) in sizes[0].iter().zip(sizes[1]) {
        println!("{before} bytes after {WARM_UP} steps, {after} after {n} more");
        assert!(after <= before + LEFT_BEHIND, "{before} bytes became {after}");
    }
}

#[test]
fn many_steps_do_not_grow_their_processes() {
    if resident(getpid()).is_none() {
        return println!("skipped: this system has no /proc");
    }
    bounded("many_steps", |test| {
        let peer = test.peer("a");
        test.key.save(test.path("session.key")).expect("the folder can be written");
        let mut caller = std::process::Command::new(std::env::current_exe().expect("the system names this program"));
        caller.args(["--ignored", "--exact", "--nocapture", "memory::many_steps"]);
        caller.env("ANABRANCH_PEERS", peer.address.to_string());
        caller.env("ANABRANCH_TEST_PEER", peer.process.pid.as_raw_nonzero().to_string());
        let caller = test.start(caller.env("ANABRANCH_NODE_KEY", test.path("session.key")));
        let status = crate::processes::until_some("the steps end", || caller.ended());
        assert!(status.success(), "{}{}", caller.output(), caller.errors());
        println!("{}", caller.output());
        test.until_empty(&peer);
    });
}

/// The most bytes that a peer of this test needs, with 256 MiB that its programs keep.
const OF_ALL_PROGRAMS: u64 = 450 << 20;

#[test]
fn all_programs_together_keep_a_bounded_amount_of_memory() {
    if resident(getpid()).is_none() {
        return println!("skipped: this system has no /proc");
    }
    bounded("programs_keep", |test| {
        let peer = test.peer("a");
        let session = test.session([&peer]);
        let mut most = 0;
        for i in 0..10 {
            // Results of 60 MB, and numbers of 100 MB that depend on no input.
            let product = session.function(move |x: Tensor| {
                on("/peer:0/cpu:0", || (x.reshape([3_900, 1]).matmul(x.reshape([1, 3_900])) + i as f32).max())
            });
            let numbers = session.function(move |x: Tensor<i32>| {
                on("/peer:0/cpu:0", || (iota::<i32>(25_000_000 + i as usize) + x).max())
            });
            let product = product.expect("the function can be traced").call([1.0; 3_900]);
            assert_eq!(product.expect("the peer runs"), 1.0 + i as f32);
            let numbers = numbers.expect("the function can be traced").call(1);
            assert_eq!(numbers.expect("the peer runs"), 25_000_000 + i);
            most = most.max(resident(peer.process.pid).expect("this system has /proc"));
        }
        assert!(most <= OF_ALL_PROGRAMS, "{most} bytes");
    });
}

/// The number of connections that strangers begin.
const STRANGERS: usize = 80;

/// Returns the first packets of connections that strangers begin, to a peer that does not exist.
fn first_packets() -> Vec<Vec<u8>> {
    let nobody = UdpSocket::bind("127.0.0.1:0").expect("the system has ports");
    nobody.set_read_timeout(Some(Duration::from_secs(10))).expect("the time is not zero");
    let id = NodeKey::generate().expect("the system has random numbers").id();
    let address = PeerAddress::new(id, nobody.local_addr().expect("it is bound"));
    let mut packets: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    thread::scope(|scope| {
        for _ in 0..STRANGERS {
            let address = &address;
            scope.spawn(move || {
                let key = NodeKey::generate().expect("the system has random numbers");
                let status = PeerStatus::ask(&key, address, Profile::Loopback, Duration::from_secs(2));
                assert!(status.is_err(), "nobody answers");
            });
        }
        let mut buffer = [0; 4096];
        while packets.len() < STRANGERS {
            let n = nobody.recv(&mut buffer).expect("the strangers send");
            // A packet that begins a connection names it by the bytes after its version.
            if buffer[0] & 0xc0 == 0xc0 {
                packets.insert(buffer[5..14].to_vec(), buffer[..n].to_vec());
            }
        }
    });
    packets.into_values().collect()
}

#[test]
fn strangers_that_begin_connections_do_not_fill_the_memory_of_a_peer() {
    if resident(getpid()).is_none() {
        return println!("skipped: this system has no /proc");
    }
    bounded("strangers", |test| {
        let peer = test.peer("a");
        let memory = || resident(peer.process.pid).expect("this system has /proc");
        let packets = first_packets();
        let sockets: Vec<UdpSocket> =
            (0..200).map(|_| UdpSocket::bind("127.0.0.1:0").expect("the system has ports")).collect();
        let (before, mut most) = (memory(), 0);
        // None of them answers the peer.
        for _ in 0..20 {
            for (packet, socket) in packets.iter().zip(sockets.iter().cycle()) {
                socket.send_to(packet, peer.addr()).expect("the packet can be sent");
            }
            most = most.max(memory());
            // The peer admits a session meanwhile.
            let _ = test.status(&peer);
        }
        println!("{before} bytes, at most {most}");
        assert!(most <= before + (16 << 20), "{before} bytes became {most}");
    });
}
