//! Peers that are asked to end.

use crate::processes::{bounded, until};
use anabranch::prelude::*;
use anabranch::{ErrorKind, graph};
use rustix::process::Signal;
use std::sync::{Arc, Mutex};

/// A loop that prints at the caller and counts at the peer.
#[graph]
fn count(n: Tensor<i32>) -> Tensor<i32> {
    let mut i = scalar(0i32);
    while i < n {
        println!("{i}");
        i = on("/peer:0/cpu:0", || i + 1);
    }
    i
}

#[test]
fn a_peer_that_is_asked_to_end_ends_its_steps_first() {
    bounded("leaving", |test| {
        let peer = Arc::new(test.peer("a"));
        let (ask, status) = (peer.clone(), test.status_of(&peer));
        let printed = Arc::new(Mutex::new(0));
        let count_prints = printed.clone();
        let print = move |_, _: &str| {
            // The loop goes on when this returns.
            let mut printed = count_prints.lock().expect("no print panics");
            if *printed == 0 {
                until("the step runs at the peer", || status().steps == 1);
                ask.process.send(Signal::TERM);
                until("the peer begins to leave", || ask.process.errors().contains("ends when"));
            }
            *printed += 1;
        };
        let session =
            test.builder([&*peer]).device("/peer:local/cpu:0").print_to(print).build().expect("the peer runs");
        let f = session.function(count).expect("the function can be traced");
        assert_eq!(f.call(100).expect("the step ends first"), 100);
        assert_eq!(*printed.lock().expect("no print panics"), 100);
        assert_eq!(peer.process.wait().code(), Some(0), "{}", peer.process.errors());
        let error = f.call(1).expect_err("the peer has left");
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    });
}

#[test]
fn a_second_signal_ends_a_peer_at_once() {
    bounded("second_signal", |test| {
        let peer = test.peer("a");
        let session = test.builder([&peer]).device("/peer:0/cpu:0").build().expect("the peer runs");
        let f = session.function(crate::processes::spin).expect("the function can be traced");
        let call = std::thread::spawn(move || f.call(i64::MAX));
        until("the step runs", || test.status(&peer).steps == 1);
        peer.process.send(Signal::TERM);
        until("the peer begins to leave", || peer.process.errors().contains("ends when"));
        peer.process.send(Signal::TERM);
        assert_eq!(peer.process.wait().code(), Some(1));
        let error = call.join().expect("a call does not panic").expect_err("the peer has ended");
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    });
}

#[test]
fn an_error_after_a_peer_has_left_says_so_and_names_what_it_kept() {
    bounded("left", |test| {
        let peer = test.peer("a");
        let session = test.session([&peer]);
        let kept = on("/peer:0/cpu:0", || Var::<f32>::new("kept", 1.0));
        let f = session.function(|| kept.get() * 2.0).expect("the function can be traced");
        assert_eq!(f.call(()).expect("the peer runs"), 2.0);
        peer.process.send(Signal::TERM);
        assert_eq!(peer.process.wait().code(), Some(0));
        let error = f.call(()).expect_err("the peer has left");
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        let text = error.to_string();
        for part in ["has left: it was asked to end", "variables `kept` were lost", "once it is back"] {
            assert!(text.contains(part), "{part} is missing: {text}");
        }
    });
}

#[test]
fn an_idle_peer_ends_at_once_and_without_a_failure() {
    bounded("idle", |test| {
        let peer = test.peer("a");
        peer.process.send(Signal::INT);
        assert_eq!(peer.process.wait().code(), Some(0));
    });
}
