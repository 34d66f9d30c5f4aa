//! Memory over many steps.

use crate::processes::{bounded, is_slow};
use anabranch::prelude::*;
use rustix::process::{Pid, getpid};

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
    let peer = std::env::var("ANABRANCH_TEST_PEER").expect("the test names the process").parse();
    let peer = peer.ok().and_then(Pid::from_raw).expect("the test names the process");
    let n = if is_slow() { 30_000 } else { 10_000 };
    let mut sizes = Vec::new();
    for i in 1..=WARM_UP + n {
        assert_eq!(step.call([1.0; ELEMENTS]).expect("the peer runs"), (ELEMENTS as u64 * i) as f32);
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
