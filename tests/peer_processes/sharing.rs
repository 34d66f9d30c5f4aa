//! Several sessions at one peer.

use crate::processes::{ANABRANCH, FAILURE_TIMEOUT, PeerProcess, Process, ProcessTest, bounded, is_slow, spin, until};
use anabranch::peers::{NodeKey, Profile};
use anabranch::prelude::*;
use anabranch::{Diagnostic, ErrorKind, Session};
use rustix::process::Signal;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

#[test]
fn two_sessions_at_a_peer_do_not_see_each_other() {
    bounded("two_sessions", |test| {
        let other = NodeKey::generate().expect("the system has random numbers");
        let peer = test.peer_with("a", &["--allow", &other.id().to_string()]);
        let count = |key: NodeKey, by: f32| {
            let builder = Session::builder().network(Profile::Loopback).failure_timeout(FAILURE_TIMEOUT);
            let session = builder.node_key(key).peer(peer.address.clone()).build().expect("the peer allows both");
            let v = on("/peer:0/cpu:0", || Var::<f32>::new("v", 0.0));
            let step = session.function(move |x: Tensor| {
                v.set(v.get() + x);
                v.get()
            });
            let step = step.expect("the function can be traced");
            for i in 1..=50 {
                assert_eq!(step.call(by).expect("the peer runs"), by * i as f32);
            }
            (session, step)
        };
        let both = thread::scope(|scope| {
            let runs = [(test.key.clone(), 1.0), (other, 3.0)].map(|(key, by)| scope.spawn(move || count(key, by)));
            runs.map(|run| run.join().expect("both sessions count on their own"))
        });
        assert_eq!(test.status(&peer).sessions, 2);
        // Old values are released with the next heartbeat.
        until("each session keeps one value", || test.status(&peer).values.0 == 2);
        drop(both);
        test.until_empty(&peer);
    });
}

#[test]
fn two_sessions_of_one_key_do_not_see_each_other() {
    bounded("one_key_twice", |test| {
        let peer = test.peer("a");
        let sessions = [test.session([&peer]), test.session([&peer])];
        let v = on("/peer:0/cpu:0", || Var::<f32>::new("v", 0.0));
        let add = |session: &Session| {
            let step = session.function(|x: Tensor| {
                v.set(v.get() + x);
                v.get()
            });
            step.expect("the function can be traced")
        };
        let [first, second] = [add(&sessions[0]), add(&sessions[1])];
        for i in 1..=10 {
            assert_eq!(first.call(1.0).expect("the first session goes on"), i as f32);
            assert_eq!(second.call(2.0).expect("the second session goes on"), 2.0 * i as f32);
        }
    });
}

#[test]
fn a_session_lives_longer_than_links_that_no_session_uses() {
    bounded("a_long_session", |test| {
        let peers = [test.peer("a"), test.peer("b")];
        let session = test.session(&peers);
        let v = on("/peer:0/cpu:0", || Var::<f32>::new("v", 0.0));
        let step = session.function(|| {
            v.set(v.get() + 1.0);
            on("/peer:1/cpu:0", || v.get() * 2.0)
        });
        let step = step.expect("the function can be traced");
        let mut n = 0.0;
        let mut count = || {
            n += 1.0;
            assert_eq!(step.call(()).expect("the peers run"), n * 2.0);
        };
        count();
        // A peer closes such links after ten seconds.
        let seconds = if is_slow() { 13 } else { 0 };
        let local = session.function(|n: Tensor<i64>| on("/peer:local/cpu:0", || spin(n)));
        let local = local.expect("the function can be traced");
        assert!(local.call_timeout(Duration::from_secs(seconds), i64::MAX).is_err(), "the loop has no end");
        count();
    });
}

/// The counter that processes share.
fn counter() -> Var<i64> {
    Var::<i64>::new("n", 0i64).on("/peer:0/cpu:0").share_as("n")
}

fn session_of_environment() -> Session {
    let builder = Session::builder().peers_of_environment().expect("the test sets peers");
    builder.failure_timeout(FAILURE_TIMEOUT).build().expect("the peer runs")
}

/// A process that increments the counter 200 times.
#[test]
#[ignore = "the program of another test"]
fn incrementing() {
    let (session, n) = (session_of_environment(), counter());
    let add = session.function(|| n.set(n.get() + 1)).expect("the function can be traced");
    (0..200).for_each(|_| add.call(()).expect("the peer runs"));
}

/// A process that never ends a step with the lock of the counter.
#[test]
#[ignore = "the program of another test"]
fn holding() {
    let (session, n) = (session_of_environment(), counter());
    let add = session.function(|by: Tensor<i64>| n.set(n.get() + on("/peer:0/cpu:0", || spin(by))));
    let result = add.expect("the function can be traced").call(i64::MAX);
    panic!("the loop has ended: {result:?}");
}

/// Starts a process with a session at peers.
fn start(test: &ProcessTest, peers: &[PeerProcess], program: &str) -> Process {
    let key = test.path("session.key");
    if !key.exists() {
        test.key.save(&key).expect("the folder can be written");
    }
    let addresses: Vec<String> = peers.iter().map(|peer| peer.address.to_string()).collect();
    let mut command = Command::new(std::env::current_exe().expect("the system names this program"));
    command.args(["--ignored", "--exact", "--nocapture", program]).env("ANABRANCH_PEERS", addresses.join(","));
    test.start(command.env("ANABRANCH_NODE_KEY", key))
}

#[test]
fn two_processes_increment_one_counter() {
    bounded("two_processes", |test| {
        let peer = test.peer("a");
        let both = [0, 1].map(|_| start(test, std::slice::from_ref(&peer), "sharing::incrementing"));
        for process in &both {
            let status = process.wait();
            assert_eq!(status.code(), Some(0), "{}{}", process.output(), process.errors());
        }
        let session = test.session([&peer]);
        assert_eq!(session.get(&counter()).expect("the peer runs").item(), 400);
    });
}

#[test]
fn a_lock_of_a_killed_process_is_given_up() {
    bounded("killed_holder", |test| {
        let peer = test.peer("a");
        let (session, n) = (test.session([&peer]), counter());
        session.set(&n, 5i64).expect("the peer runs");
        let holder = start(test, std::slice::from_ref(&peer), "sharing::holding");
        until("the step runs", || {
            assert!(holder.ended().is_none(), "the process has ended: {}{}", holder.output(), holder.errors());
            test.status(&peer).steps == 1
        });
        let shared = test.status(&peer).shared;
        assert_eq!((shared.len(), shared[0].name.as_str(), shared[0].commits), (1, "n", 1));
        let holder_key = test.key.id().to_string();
        assert!(shared[0].locked_by.len() == 1 && holder_key.starts_with(&shared[0].locked_by[0]), "{shared:?}");
        let mut command = Command::new(ANABRANCH);
        command.args(["status", &peer.address.to_string(), "--profile", "loopback", "--key"]);
        let shown = test.start(command.arg(test.path("session.key")));
        let by = &shared[0].locked_by[0];
        let expected = format!("shared `n` i64[]: 8 bytes, assigned 1 times, locked by {by}, 0 calls wait\n");
        until("the program shows who has locked the counter", || shown.output().contains(&expected));
        let add = session.function(|| n.set(n.get() + 1)).expect("the function can be traced");
        let waited = add.call_timeout(Duration::from_millis(100), ()).expect_err("the counter is locked");
        assert!(waited.to_string().contains("waited for the shared variables `n`"), "{waited}");
        // Its value can be read.
        assert_eq!(session.get(&n).expect("the peer runs").item(), 5);
        holder.kill();
        add.call_timeout(2 * FAILURE_TIMEOUT, ()).expect("the lock is given up in time");
        assert_eq!(session.get(&n).expect("the peer runs").item(), 6);
    });
}

#[test]
fn a_shared_variable_of_a_peer_that_was_started_again_must_be_set() {
    bounded("lost_counter", |test| {
        let mut peer = test.peer("a");
        let (session, n) = (test.session([&peer]), counter());
        let add = session.function(|| n.set(n.get() + 1)).expect("the function can be traced");
        add.call(()).expect("the peer runs");
        peer.process.kill();
        test.restart(&mut peer);
        until("the session knows of the loss", || {
            let error = add.call(()).expect_err("the value is lost").to_string();
            error.contains("the value of the shared variable `n` was lost")
        });
        session.set(&n, 7i64).expect("the peer runs");
        add.call(()).expect("the peer runs");
        assert_eq!(session.get(&n).expect("the peer runs").item(), 8);
    });
}

#[test]
fn a_call_ends_at_its_deadline_while_it_stores_the_first_value_of_a_shared_variable() {
    bounded("first_value", |test| {
        let peer = test.peer("a");
        let session = test.session([&peer]);
        let n = counter_at(0);
        let add = session.function(move || n.set(n.get() + 1)).expect("the function can be traced");
        peer.process.send(Signal::STOP);
        let error = add.call_timeout(FAILURE_TIMEOUT / 10, ()).expect_err("the peer is stopped");
        peer.process.send(Signal::CONT);
        assert_eq!(error.kind, ErrorKind::DeadlineExceeded, "{error}");
        until("the peer goes on", || add.call(()).is_ok());
        assert_eq!(session.get(&counter_at(0)).expect("the peer runs").item(), 1);
    });
}

/// The counter that processes share at a peer.
fn counter_at(peer: usize) -> Var<i64> {
    let device = format!("/peer:{peer}/cpu:0");
    Var::<i64>::new("n", 0i64).on(device.as_str()).share_as("n")
}

/// A counter of one session, in its process.
fn own_counter() -> Var<i64> {
    on("/peer:local/cpu:0", || Var::new("own", 0i64))
}

/// Returns a call that increments the counters at two peers, and one of the session.
fn increment_both(session: &Session, own: &Var<i64>) -> impl Fn() -> Result<(), Diagnostic> + use<> {
    let (a, b, own) = (counter_at(0), counter_at(1), own.clone());
    let both = session.function(move || {
        a.set(a.get() + 1);
        b.set(b.get() + 1);
        own.set(own.get() + 1);
    });
    let both = both.expect("the function can be traced");
    move || both.call(())
}

#[test]
fn a_peer_killed_between_prepare_and_commit_leaves_an_outcome_that_is_reported() {
    bounded("killed_participant", |test| {
        let mut peers = [test.peer("a"), test.peer("b")];
        let (kill, is_armed) = (peers[1].process.killer(), Arc::new(AtomicBool::new(false)));
        let armed = is_armed.clone();
        let hook = move || {
            if armed.swap(false, Ordering::Relaxed) {
                kill();
            }
        };
        let session = test.builder(&peers).before_decisions(hook).build().expect("the peers run");
        let own = own_counter();
        let both = increment_both(&session, &own);
        both().expect("the peers run");
        is_armed.store(true, Ordering::Relaxed);
        let error = both().expect_err("one of the peers has ended").to_string();
        assert!(!is_armed.load(Ordering::Relaxed), "the commit was prepared");
        // The decision was made, and the other peer has heard it.
        assert!(error.contains("it is unknown whether the step has changed its shared variables"), "{error}");
        assert!(error.contains("the shared variables at `/peer:0`") && error.contains("have changed"), "{error}");
        assert!(error.contains("variables that are not shared have not changed"), "{error}");
        assert_eq!(session.get(&own).expect("it is here").item(), 1);
        assert_eq!(session.get(&counter_at(0)).expect("the peer runs").item(), 2);
        test.restart(&mut peers[1]);
        until("the session can set the variable", || session.set(&counter_at(1), 7i64).is_ok());
        both().expect("the peers run");
        let now = [0, 1].map(|peer| session.get(&counter_at(peer)).expect("the peer runs").item());
        assert_eq!(now, [3, 8]);
    });
}

/// A process that prepares a commit at two peers and never decides it.
#[test]
#[ignore = "the program of another test"]
fn undecided() {
    let builder = Session::builder().peers_of_environment().expect("the test sets peers");
    let builder = builder.failure_timeout(FAILURE_TIMEOUT).before_decisions(|| {
        println!("prepared");
        loop {
            thread::park();
        }
    });
    increment_both(&builder.build().expect("the peers run"), &own_counter())().expect("it does not return");
}

#[test]
fn a_caller_killed_between_prepare_and_commit_leaves_its_variables_in_doubt() {
    bounded("killed_caller", |test| {
        let peers = [test.peer("a"), test.peer("b")];
        let session = test.session(&peers);
        let both = increment_both(&session, &own_counter());
        both().expect("the peers run");
        let caller = start(test, &peers, "sharing::undecided");
        until("the commit is prepared", || {
            assert!(caller.ended().is_none(), "the process has ended: {}{}", caller.output(), caller.errors());
            caller.output().contains("prepared")
        });
        caller.kill();
        for (i, peer) in peers.iter().enumerate() {
            until("the peer knows of the loss", || test.status(peer).shared[0].is_in_doubt);
            let error = session.get(&counter_at(i)).expect_err("the value is in doubt").to_string();
            assert!(error.contains("the value of the shared variable `n` is in doubt"), "{error}");
        }
        let error = both().expect_err("the values are in doubt").to_string();
        assert!(error.contains("in doubt") && error.contains("set the variable"), "{error}");
        for i in 0..2 {
            session.set(&counter_at(i), 10i64).expect("the peers run");
        }
        both().expect("the peers run");
        let now = [0, 1].map(|peer| session.get(&counter_at(peer)).expect("the peer runs").item());
        assert_eq!(now, [11, 11]);
    });
}

#[test]
fn a_peer_killed_during_commits_leaves_an_outcome_that_is_known_or_reported_as_unknown() {
    bounded("killed_committer", |test| {
        let mut peers = [test.peer("a"), test.peer("b")];
        let session = test.session(&peers);
        let (a, b) = (counter_at(0), counter_at(1));
        let both = increment_both(&session, &own_counter());
        for round in 0..4 {
            let before = session.get(&a).expect("the peer runs").item();
            let done = AtomicI64::new(0);
            let error = thread::scope(|scope| {
                scope.spawn(|| {
                    until("some steps are done", || done.load(Ordering::Relaxed) > round);
                    peers[1].process.kill();
                });
                loop {
                    match both() {
                        Ok(()) => done.fetch_add(1, Ordering::Relaxed),
                        Err(error) => break error.to_string(),
                    };
                }
            });
            // Its peer runs, so its value is known.
            let half = session.get(&a).expect("the peer runs").item() - before - done.load(Ordering::Relaxed);
            let is_told = error.contains("it is unknown whether") || error.contains("have changed");
            assert!(half == 0 || (half == 1 && is_told), "{half} more steps than are known: {error}");
            test.restart(&mut peers[1]);
            until("the session can set the variable", || session.set(&b, 0i64).is_ok());
            both().expect("the peers run");
            assert_eq!(session.get(&b).expect("the peer runs").item(), 1);
        }
    });
}
