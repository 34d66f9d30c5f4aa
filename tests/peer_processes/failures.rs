//! Peers and callers that are killed or stopped.

use crate::processes::{FAILURE_TIMEOUT, PeerProcess, ProcessTest, bounded, is_slow, nothing_runs, spin, until};
use anabranch::prelude::*;
use anabranch::{Diagnostic, ErrorKind, Session};
use rustix::process::Signal;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Asserts that an error says that a peer was lost: its name, the start of its key, its address.
#[track_caller]
fn assert_names(error: &Diagnostic, name: &str, peer: &PeerProcess) {
    let text = error.to_string();
    assert_eq!(error.kind, ErrorKind::Unavailable, "{text}");
    for part in [name, &peer.address.node().short(), &peer.addr().to_string()] {
        assert!(text.contains(part), "{part} is not named: {text}");
    }
}

/// Asserts that the error of an interrupted step names `/peer:0`, says what is wrong with it, and
/// shows the line of the endless loop and what waited for it.
#[track_caller]
fn assert_explains(error: &Diagnostic, peer: &PeerProcess, predicate: &str) {
    assert_names(error, "/peer:0", peer);
    let text = error.to_string();
    for part in [predicate, "processes.rs", "the call of `", "waited for the end of its part"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
}

/// Runs a step that waits for an endless loop at `/peer:0`, and afterwards `/peer:1`. Acts while it
/// runs. Returns the error of the step, and how long after the action it came.
fn interrupted(
    test: &ProcessTest,
    session: &Session,
    peers: &[PeerProcess; 2],
    act: impl FnOnce(),
) -> (Diagnostic, Duration) {
    let f = session
        .function(|n: Tensor<i64>| {
            let y = on("/peer:0/cpu:0", || spin(n));
            on("/peer:1/cpu:0", || y + 1)
        })
        .expect("the function can be traced");
    let call = thread::spawn(move || (f.call(i64::MAX), Instant::now()));
    until("the step runs at both peers", || peers.iter().all(|peer| test.status(peer).steps == 1));
    act();
    let acted = Instant::now();
    let (result, at) = call.join().expect("a call does not panic");
    (result.expect_err("the loop does not end"), at - acted)
}

#[test]
fn a_killed_peer_ends_the_step_that_waits_for_it_and_can_come_back() {
    bounded("a_killed_peer", |test| {
        let mut peers = [test.peer("a"), test.peer("b")];
        let session = test.session(&peers);
        let v = on("/peer:0/cpu:0", || Var::<f32>::new("v", 1.0));
        let w = on("/peer:1/cpu:0", || Var::<f32>::new("w", 2.0));
        let count = session.function(|x: Tensor| {
            v.set(v.get() + x);
            on("/peer:0/cpu:0", || v.get() * 2.0)
        });
        let count = count.expect("the function can be traced");
        let rest = session.function(|x: Tensor| {
            w.set(w.get() + x);
            on("/peer:1/cpu:0", || w.get() * 2.0)
        });
        let rest = rest.expect("the function can be traced");
        assert_eq!((count.call(1.0).unwrap().item(), rest.call(1.0).unwrap().item()), (4.0, 6.0));

        let (error, after) = interrupted(test, &session, &peers, || peers[0].process.kill());
        assert_explains(&error, &peers[0], "does not listen any more");
        assert!(after <= FAILURE_TIMEOUT, "the failure was detected after {after:?}");
        println!("detected after {after:?}: {error}");

        // The rest of the session goes on, and its peer has nothing of the step any more.
        assert_eq!(rest.call(1.0).expect("the other peer runs").item(), 8.0);
        until("the other peer frees the step", || {
            let status = test.status(&peers[1]);
            (status.steps, status.step_bytes, status.buffered_bytes, status.values.0) == (0, 0, 0, 1)
        });
        assert_names(&count.call(1.0).expect_err("the peer is gone"), "/peer:0", &peers[0]);

        test.restart(&mut peers[0]);
        let error = count.call(1.0).expect_err("the variable was lost");
        assert!(error.to_string().contains("`v`"), "{error}");
        assert!(error.help.as_ref().is_some_and(|help| help.contains("set")), "{error}");
        session.set(&v, 10.0).expect("the peer is back");
        assert_eq!(count.call(1.0).expect("the peer is back").item(), 22.0);
        assert_eq!(rest.call(1.0).expect("the other peer runs").item(), 10.0);

        drop((count, rest, session));
        peers.iter().for_each(|peer| test.until_empty(peer));
    });
}

#[test]
fn each_session_that_waits_for_a_killed_peer_gets_one_error() {
    bounded("two_sessions", |test| {
        let peer = test.peer("a");
        let calls: Vec<_> = (0..2)
            .map(|_| {
                let session = test.session([&peer]);
                let f = session.function(|n: Tensor<i64>| on("/peer:0/cpu:0", || spin(n)));
                let f = f.expect("the function can be traced");
                thread::spawn(move || (f.call(i64::MAX), Instant::now(), session))
            })
            .collect();
        until("both steps run", || test.status(&peer).steps == 2);
        peer.process.kill();
        let killed = Instant::now();
        for call in calls {
            let (result, at, session) = call.join().expect("a call does not panic");
            assert_explains(&result.expect_err("the loop does not end"), &peer, "does not listen any more");
            assert!(at - killed <= FAILURE_TIMEOUT, "the failure was detected after {:?}", at - killed);
            let here = session.function(|x: Tensor| x * 2.0).expect("the function can be traced");
            assert_eq!(here.call(1.0).expect("the rest of the session goes on"), 2.0);
        }
    });
}

#[test]
fn a_peer_killed_between_two_steps_leaves_the_other_variables_as_they_were() {
    bounded("killed_between", |test| {
        let mut peers = [test.peer("a"), test.peer("b")];
        let session = test.session(&peers);
        let a = on("/peer:0/cpu:0", || Var::<f32>::new("a", 1.0));
        let b = on("/peer:1/cpu:0", || Var::<f32>::new("b", 2.0));
        let c = on("/peer:local/cpu:0", || Var::<f32>::new("c", 3.0));
        let step = session.function(|x: Tensor| {
            a.set(a.get() + x);
            b.set(b.get() + x);
            c.set(c.get() + x);
            a.get() + b.get() + c.get()
        });
        let step = step.expect("the function can be traced");
        assert_eq!(step.call(1.0).unwrap(), 9.0);
        peers[0].process.kill();
        assert_names(&step.call(1.0).expect_err("the peer is gone"), "/peer:0", &peers[0]);
        let error = step.call(1.0).expect_err("the peer is still gone");
        assert_names(&error, "/peer:0", &peers[0]);
        let text = error.to_string();
        assert!(text.contains("is dead") && text.contains("variables `a` were lost"), "{text}");
        assert_eq!((session.get(&b).unwrap().item(), session.get(&c).unwrap().item()), (3.0, 4.0));
        test.restart(&mut peers[0]);
        let error = session.get(&a).expect_err("the variable was lost");
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        let error = session.state(&(&a, &b)).expect_err("one of the variables was lost");
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        let error = step.call(1.0).expect_err("the variable was lost").to_string();
        assert!(error.contains("`a`") && !error.contains("`b`"), "{error}");
        session.set(&a, 0.0).expect("the peer is back");
        assert_eq!(step.call(1.0).expect("the peer is back"), 10.0);
    });
}

#[test]
fn a_killed_peer_that_computes_nothing_is_named_with_a_line() {
    bounded("killed_keeper", |test| {
        let peers = [test.peer("a"), test.peer("b")];
        let session = test.builder(&peers).device("/peer:0/cpu:0").build().expect("the peers admit the session");
        let kept = on("/peer:1/cpu:0", || Var::<i64>::new("kept", 1i64));
        let f = session.function(move |n: Tensor<i64>| {
            let y = spin(n);
            kept.set(kept.get() + y);
        });
        let f = f.expect("the function can be traced");
        let call = thread::spawn(move || f.call(i64::MAX));
        until("the step runs at both peers", || peers.iter().all(|peer| test.status(peer).steps == 1));
        peers[1].process.kill();
        let error = call.join().expect("a call does not panic").expect_err("the loop does not end");
        assert_names(&error, "/peer:1", &peers[1]);
        let text = error.to_string();
        assert!(text.contains("the operation of `/peer:1") && text.contains("failures.rs"), "{text}");
    });
}

#[test]
fn a_peer_that_stops_for_a_moment_is_not_lost() {
    bounded("short_stop", |test| {
        let peer = test.peer("a");
        let session = test.session([&peer]);
        let v = on("/peer:0/cpu:0", || Var::<f32>::new("v", 1.0));
        let step = session.function(move |x: Tensor| {
            v.set(v.get() + x);
            on("/peer:0/cpu:0", || v.get() * 2.0)
        });
        let step = step.expect("the function can be traced");
        assert_eq!(step.call(1.0).unwrap(), 4.0);
        peer.process.send(Signal::STOP);
        let call = thread::spawn(move || (step.call(1.0), step));
        // Half of the silence after which the link is lost.
        thread::sleep(FAILURE_TIMEOUT / 5);
        peer.process.send(Signal::CONT);
        let (result, step) = call.join().expect("a call does not panic");
        assert_eq!(result.expect("the peer answers late"), 6.0);
        assert_eq!(step.call(1.0).unwrap(), 8.0);
    });
}

#[test]
fn a_peer_that_stops_for_long_is_lost_and_found_again() {
    bounded("long_stop", |test| {
        let peers = [test.peer("a"), test.peer("b")];
        let session = test.session(&peers);
        let (error, after) = interrupted(test, &session, &peers, || peers[0].process.send(Signal::STOP));
        assert_explains(&error, &peers[0], "is unreachable");
        assert!(after <= FAILURE_TIMEOUT, "the failure was detected after {after:?}");
        let f = session.function(|x: Tensor| on("/peer:0/cpu:0", || x * 2.0));
        let f = f.expect("the function can be traced");
        assert_names(&f.call(1.0).expect_err("the peer is stopped"), "/peer:0", &peers[0]);
        peers[0].process.send(Signal::CONT);
        until("the peer ends the step of the lost session", || test.status(&peers[0]).steps == 0);
        assert_eq!(f.call(1.0).expect("the peer is back"), 2.0);
        assert_eq!(test.status(&peers[0]).sessions, 1);
    });
}

#[test]
fn a_loop_at_a_peer_ends_by_the_deadline_of_the_call() {
    bounded("deadline", |test| {
        let peer = test.peer("a");
        let session = test.builder([&peer]).device("/peer:0/cpu:0").build().expect("the peer runs");
        let f = session.function(spin).expect("the function can be traced");
        assert_eq!(f.call(1000).unwrap(), 1000);
        let begun = Instant::now();
        let error = f.call_timeout(Duration::from_millis(200), i64::MAX).expect_err("the loop does not end");
        assert_eq!(error.kind, ErrorKind::DeadlineExceeded, "{error}");
        let (text, addr) = (error.to_string(), peer.addr().to_string());
        assert!(text.contains("`/peer:0`") && text.contains(&addr) && text.contains("is slow"), "{text}");
        assert!(begun.elapsed() < Duration::from_secs(2), "the call took {:?}", begun.elapsed());
        until("the peer ends the step", || nothing_runs(&test.status(&peer)));
        assert_eq!(f.call(1000).unwrap(), 1000);
    });
}

/// A caller in a process of its own, whose step does not end.
#[test]
#[ignore = "the program of another test"]
fn endless_caller() {
    let session = Session::builder().peers_of_environment().expect("the test sets peers");
    let session = session.failure_timeout(FAILURE_TIMEOUT).build().expect("the peers run");
    let f = session.function(|n: Tensor<i64>| on("/peer:0/cpu:0", || spin(n)));
    let v = on("/peer:1/cpu:0", || Var::<f32>::new("v", 1.0));
    session.set(&v, 2.0).expect("the peer runs");
    let result = f.expect("the function can be traced").call(i64::MAX);
    panic!("the loop has ended: {result:?}");
}

#[test]
fn peers_of_a_killed_caller_drop_its_sessions() {
    bounded("killed_caller", |test| {
        let peers = [test.peer("a"), test.peer("b")];
        test.key.save(test.path("session.key")).expect("the folder can be written");
        let mut caller = Command::new(std::env::current_exe().expect("the system names this program"));
        caller.args(["--ignored", "--exact", "failures::endless_caller"]);
        caller.env("ANABRANCH_PEERS", format!("{},{}", peers[0].address, peers[1].address));
        let caller = test.start(caller.env("ANABRANCH_NODE_KEY", test.path("session.key")));
        until("the step runs", || {
            assert!(caller.ended().is_none(), "the caller has ended: {}{}", caller.output(), caller.errors());
            test.status(&peers[0]).steps == 1
        });
        assert_eq!(test.status(&peers[1]).sessions, 1);
        caller.kill();
        let killed = Instant::now();
        peers.iter().for_each(|peer| test.until_empty(peer));
        let after = killed.elapsed();
        assert!(after < 2 * FAILURE_TIMEOUT, "the peers noticed after {after:?}");
    });
}

#[test]
fn a_killed_peer_is_detected_in_under_six_seconds_by_default() {
    if !is_slow() {
        return println!("skipped: a long run, with ANABRANCH_SLOW=1");
    }
    bounded("default_timeout", |test| {
        let default = "10";
        let peer = |name| test.peer_at(name, "127.0.0.1:0", default, &[test.key.id()], &[]);
        let peers = [peer("a"), peer("b")];
        let session = test.builder(&peers).failure_timeout(Duration::from_secs(10)).build().expect("the peers run");
        let (error, after) = interrupted(test, &session, &peers, || peers[0].process.kill());
        assert_names(&error, "/peer:0", &peers[0]);
        assert!(after < Duration::from_secs(6), "the failure was detected after {after:?}");
    });
}
