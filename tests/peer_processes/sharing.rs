//! Several sessions at one peer.

use crate::processes::{FAILURE_TIMEOUT, bounded, is_slow, spin, until};
use anabranch::Session;
use anabranch::peers::{NodeKey, Profile};
use anabranch::prelude::*;
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
