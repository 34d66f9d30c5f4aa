//! Who may use a peer, and what else arrives at it.

use crate::processes::{FAILURE_TIMEOUT, PeerProcess, ProcessTest, bounded, until};
use anabranch::peers::{JoinToken, NodeKey, PeerAddress, Profile};
use anabranch::prelude::*;
use anabranch::runtime::testing::visit;
use anabranch::{Diagnostic, Session, SessionBuilder};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

fn with_key(key: NodeKey, address: PeerAddress) -> SessionBuilder {
    let builder = Session::builder().network(Profile::Loopback).failure_timeout(FAILURE_TIMEOUT);
    builder.node_key(key).peer(address)
}

fn new_key() -> NodeKey {
    NodeKey::generate().expect("the system has random numbers")
}

#[track_caller]
fn assert_says(error: &Diagnostic, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing: {text}");
    }
}

#[test]
fn a_peer_with_another_key_than_its_address_is_an_error() {
    bounded("wrong_key", |test| {
        let peer = test.peer("a");
        let other = PeerAddress::new(new_key().id(), peer.addr());
        let error = with_key(test.key.clone(), other).build().expect_err("the peer has another key");
        assert_says(&error, &[&peer.addr().to_string(), &peer.address.node().to_string()]);
        test.session([&peer]);
    });
}

#[test]
fn a_key_that_is_not_allowed_is_refused_by_both_sides() {
    bounded("not_allowed", |test| {
        let peer = test.peer("a");
        let key = new_key();
        let error = with_key(key.clone(), peer.address.clone()).build().expect_err("the key is not allowed");
        assert_says(&error, &["allow", &peer.addr().to_string()]);
        until("the peer says who was refused", || peer.process.errors().contains("refused"));
        let errors = peer.process.errors();
        assert!(errors.contains(&key.id().to_string()), "the operator needs the key: {errors}");
    });
}

/// Returns the token that a peer has printed with its address.
fn token_of(peer: &PeerProcess) -> JoinToken {
    let line = peer.process.line_of_output(0);
    line.split_once('#').expect("the address has a token").1.parse().expect("it is a token")
}

fn open(test: &ProcessTest) -> (PeerProcess, JoinToken) {
    let peer = test.peer_with("a", &["--token"]);
    let token = token_of(&peer);
    (peer, token)
}

#[test]
fn a_token_admits_one_key() {
    bounded("token", |test| {
        let (peer, _) = open(test);
        // As the peer has printed it.
        let address: PeerAddress = peer.process.line_of_output(0).parse().expect("it is an address");
        let first = new_key();
        let session = with_key(first.clone(), address.clone()).build().expect("the token is new");
        let f = session.function(|x: Tensor| on("/peer:0/cpu:0", || x * 2.0)).expect("the function can be traced");
        assert_eq!(f.call(2.0).expect("the peer runs"), 4.0);
        assert!(peer.process.errors().contains("has joined"), "{}", peer.process.errors());
        let error = with_key(new_key(), address).build().expect_err("another node has used the token");
        let text = error.to_string();
        assert!(text.contains(&peer.addr().to_string()) && !text.contains('#'), "no message has a token: {text}");
        drop((f, session));
        with_key(first, peer.address.without_token()).build().expect("the key is known now");
    });
}

#[test]
fn an_expired_token_admits_nobody() {
    bounded("expired_token", |test| {
        let peer = test.peer_with("a", &["--token", "1"]);
        let token = token_of(&peer);
        until("the token expires", || token.is_expired());
        let error = with_key(new_key(), peer.address.clone().with_token(token)).build();
        assert_says(&error.expect_err("the token has expired"), &["token has expired", &peer.addr().to_string()]);
    });
}

#[test]
fn another_version_of_the_protocol_is_an_error() {
    bounded("version", |test| {
        let peer = test.peer("a");
        let visit =
            |protocol, frame: &[u8]| visit(&test.key, peer.address.node(), peer.addr(), protocol, frame.to_vec());
        let error = visit(Some("anabranch/0"), &[]).expect_err("the peer speaks another protocol");
        assert_says(&error, &["another version of the protocol", "install the same version", &peer.addr().to_string()]);
        // A first frame of version 0, and an empty one.
        let reason = visit(None, &[0, 1, 2]).expect("the peer closes the connection");
        assert!(reason.contains("protocol version 0, not "), "{reason}");
        let reason = visit(None, &[]).expect("the peer closes the connection");
        assert!(reason.contains("an empty head"), "{reason}");
        test.session([&peer]);
    });
}

#[test]
fn first_frames_of_random_bytes_end_their_connections_only() {
    bounded("random_frames", |test| {
        let peer = test.peer("a");
        let session = test.session([&peer]);
        let f = session.function(|x: Tensor| on("/peer:0/cpu:0", || x * 2.0)).expect("the function can be traced");
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        // The peer says which version it speaks.
        let reason = visit(&test.key, peer.address.node(), peer.addr(), None, vec![0]);
        let reason = reason.expect("the peer closes the connection");
        let version = reason.split("protocol version 0, not ").nth(1).map(|rest| rest.split(|c: char| !c.is_numeric()));
        let version = version.and_then(|mut rest| rest.next()?.parse::<u8>().ok()).expect("the reason has a version");
        for i in 0..100 {
            // The version of the protocol, and anything. Half of the bodies are small numbers,
            // which name frames that exist.
            let most = [4, 255][i % 2];
            let len = 1 + usize::from(random()) * (1 + i % 3);
            let frame: Vec<u8> = [version].into_iter().chain((0..len).map(|_| random().min(most))).collect();
            let reason = visit(&test.key, peer.address.node(), peer.addr(), None, frame.clone());
            let reason = reason.unwrap_or_else(|error| panic!("{frame:?}: {error}"));
            assert!(!reason.is_empty() && !reason.contains("version"), "{frame:?}: {reason}");
            assert_eq!(f.call(i as f32).expect("the session goes on"), 2.0 * i as f32);
        }
    });
}

#[test]
fn two_peers_with_one_key_are_an_error() {
    bounded("one_key", |test| {
        let (first, second) = (test.peer("a"), test.peer("a"));
        assert_eq!(first.address.node(), second.address.node());
        let error = test.builder([&first, &second]).build().expect_err("both have one key");
        assert_says(&error, &["/peer:0", "/peer:1", "key", "--temporary-key"]);
    });
}

#[test]
fn one_peer_twice_is_an_error() {
    bounded("one_address", |test| {
        let peer = test.peer("a");
        let error = test.builder([&peer, &peer]).build().expect_err("both are one peer");
        assert_says(&error, &["/peer:0", "/peer:1", "key"]);
    });
}

#[test]
fn garbage_does_not_disturb_a_session() {
    bounded("garbage", |test| {
        let peer = test.peer("a");
        let session = test.session([&peer]);
        let f = session.function(|x: Tensor| on("/peer:0/cpu:0", || x * 2.0)).expect("the function can be traced");
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let socket = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
                let mut state = 1u64;
                let mut packet = [0; 1200];
                // Short and long headers of QUIC, and others.
                for round in 0..20_000 {
                    for byte in &mut packet {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        *byte = (state >> 56) as u8;
                    }
                    packet[0] = [0x40, 0xc0, 0x00, packet[0]][round % 4];
                    packet[1..5].copy_from_slice(&(round as u32 / 4 % 2).to_be_bytes());
                    let len = 1 + round % packet.len();
                    let _ = socket.send_to(&packet[..len], peer.addr());
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            for i in 0..200 {
                assert_eq!(f.call(i as f32).expect("the session goes on"), 2.0 * i as f32);
            }
            done.store(true, Ordering::Relaxed);
        });
        let others = thread::spawn({
            let (key, address) = (test.key.clone(), peer.address.clone());
            move || with_key(key, address).build().map(|_| ())
        });
        others.join().expect("a session does not panic").expect("the peer admits sessions");
    });
}
