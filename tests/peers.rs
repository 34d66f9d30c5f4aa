//! Sessions with peers. The peers are in the process of the test, with sockets of their own; what
//! takes other processes is in `peer_processes/`.

use anabranch::peers::{NodeKey, Peer, PeerAddress, PeerOptions, Profile};
use anabranch::prelude::*;
use anabranch::{CallOptions, CancelHandle, Diagnostic, ErrorKind, Session, SessionBuilder};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Starts peers that admit a key.
fn peers(n: usize, key: &NodeKey) -> Result<Vec<Peer>, Diagnostic> {
    (0..n).map(|_| serve(PeerOptions::new(NodeKey::generate()?), key)).collect()
}

fn serve(options: PeerOptions, key: &NodeKey) -> Result<Peer, Diagnostic> {
    let listen = "127.0.0.1:0".parse().expect("this is an address");
    Peer::serve(options.listen(listen).profile(Profile::Loopback).allow(key.id()))
}

fn session_with<'a>(key: NodeKey, peers: impl IntoIterator<Item = &'a Peer>) -> SessionBuilder {
    let builder = Session::builder().node_key(key).network(Profile::Loopback);
    peers.into_iter().map(Peer::address).fold(builder, |builder: SessionBuilder, peer: PeerAddress| builder.peer(peer))
}

#[test]
fn devices_of_peers_have_names() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let two = serve(PeerOptions::new(NodeKey::generate()?).cpus(2), &key)?;
    let one = serve(PeerOptions::new(NodeKey::generate()?), &key)?;
    let session = session_with(key, [&two, &one]).build()?;
    let names: Vec<String> = session.devices().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["/cpu:0", "/peer:0/cpu:0", "/peer:0/cpu:1", "/peer:1/cpu:0"]);
    Ok(())
}

#[test]
fn values_go_from_peer_to_peer_and_back() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(2, &key)?;
    let session = session_with(key, &peers).build()?;
    let f = session.function(|x: Tensor| {
        let y = on("/peer:0/cpu:0", || x * 2.0);
        let z = on("/peer:1/cpu:0", || y + 1.0);
        on("/cpu:0", || z * x)
    })?;
    for i in 0..20 {
        let x = i as f32;
        assert_eq!(f.call(x)?, (x * 2.0 + 1.0) * x);
    }
    // A value that is sent beside the frames.
    let large: Vec<f32> = (0..1_000_000).map(|i| i as f32).collect();
    let expected: Vec<f32> = large.iter().map(|x| (x * 2.0 + 1.0) * x).collect();
    assert_eq!(f.call(large)?.as_slice(), expected);
    Ok(())
}

#[test]
fn variables_live_at_their_peers() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(2, &key)?;
    let session = session_with(key, &peers).build()?;
    let a = on("/peer:0/cpu:0", || Var::<f32>::new("a", 1.0));
    let b = on("/peer:1/cpu:0", || Var::<f32>::new("b", 10.0));
    let step = session.function(|x: Tensor| {
        a.set(a.get() + x);
        b.set(b.get() * a.get());
        a.get() + b.get()
    })?;
    let (mut at, mut bt) = (1.0, 10.0);
    for i in 1..5 {
        let x = i as f32;
        (at, bt) = (at + x, bt * (at + x));
        assert_eq!(step.call(x)?, at + bt);
    }
    assert_eq!((session.get(&a)?.item(), session.get(&b)?.item()), (at, bt));
    session.set(&a, 2.0)?;
    assert_eq!(step.call(1.0)?, 3.0 + bt * 3.0);
    Ok(())
}

#[graph]
fn collatz(n: Tensor<i64>) -> Tensor<i64> {
    let mut n = n;
    let mut steps = scalar(0i64);
    while n > 1 {
        n = on("/peer:0/cpu:0", || n);
        if n % 2 == 0 {
            n = on("/peer:1/cpu:0", || n / 2);
        } else {
            n = on("/peer:0/cpu:0", || n * 3 + 1);
        }
        steps = on("/cpu:0", || steps + 1);
    }
    steps
}

#[test]
fn a_loop_spans_peers() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(2, &key)?;
    let session = session_with(key, &peers).build()?;
    let f = session.function(collatz)?;
    assert_eq!(f.call(27i64)?, 111);
    assert_eq!(f.call(1i64)?, 0);
    Ok(())
}

#[test]
fn a_failure_at_a_peer_names_the_line_and_the_device() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(1, &key)?;
    let session = session_with(key, &peers).build()?;
    let v = on("/peer:0/cpu:0", || Var::<i32>::new("v", 7));
    let f = session.function(|x: Tensor<i32>| {
        v.set(v.get() + 1);
        on("/peer:0/cpu:0", || v.get() / x)
    })?;
    assert_eq!(f.call(2)?, 4);
    let error = f.call(0).expect_err("a division by zero");
    let text = error.to_string();
    assert!(text.contains("v.get() / x") && text.contains("on /peer:0/cpu:0"), "{text}");
    assert_eq!(session.get(&v)?, 8, "a failed step assigns nothing");
    assert_eq!(f.call(2)?, 4);
    Ok(())
}

#[test]
fn prints_of_peers_appear_in_order_before_the_call_ends() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(1, &key)?;
    let printed = Arc::new(Mutex::new(String::new()));
    let to = printed.clone();
    let session = session_with(key, &peers)
        .print_to(move |_, text| to.lock().expect("no print panics").push_str(text))
        .device("/peer:0/cpu:0")
        .build()?;
    #[graph]
    fn count(n: Tensor<i32>) {
        let mut i = scalar(0i32);
        while i < n {
            println!("{i}");
            i += 1;
        }
    }
    let f = session.function(count)?;
    f.call(3)?;
    assert_eq!(*printed.lock().expect("no print panics"), "0\n1\n2\n");
    Ok(())
}

#[test]
fn a_key_that_is_not_allowed_is_refused() -> Result<(), Diagnostic> {
    let peers = peers(1, &NodeKey::generate()?)?;
    let error = session_with(NodeKey::generate()?, &peers).build().expect_err("the key is not allowed");
    assert!(error.to_string().contains("allow"), "{error}");
    Ok(())
}

#[test]
fn a_peer_that_left_is_unavailable_and_the_rest_goes_on() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let mut peers = peers(2, &key)?;
    let session = session_with(key, &peers).failure_timeout(Duration::from_secs(1)).build()?;
    let at = |peer: &'static str| move |x: Tensor| on(peer, || x * 2.0) + 1.0;
    let (first, second) = (session.function(at("/peer:0/cpu:0"))?, session.function(at("/peer:1/cpu:0"))?);
    assert_eq!((first.call(1.0)?.item(), second.call(1.0)?.item()), (3.0, 3.0));
    peers.remove(0).leave("it is done", Duration::from_secs(5));
    let error = first.call(1.0).expect_err("the peer is gone");
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("/peer:0"), "{error}");
    assert_eq!(second.call(2.0)?, 5.0);
    Ok(())
}

#[test]
fn a_value_that_is_too_large_to_be_sent_is_an_error() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(1, &key)?;
    let session = session_with(key, &peers).build()?;
    let first = |x: Tensor<u8>| on("/peer:0/cpu:0", || x.slice(0, 0, 1));
    let f = session.function(first)?;
    // The system gives zeroed memory only where something reads it, and nothing does.
    let n = (4 << 30) + 1;
    let error = f.call(vec![0u8; n]).expect_err("the value is too large");
    assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error}");
    let expected = format!("a value of {n} bytes cannot be sent to another process: at most {} bytes can", n - 1);
    assert_eq!(error.message, expected);
    assert_eq!(f.call(vec![7u8, 8])?.as_slice(), [7]);
    Ok(())
}

#[test]
fn a_program_that_takes_longer_to_load_than_a_peer_allows_is_an_error() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let slow = serve(PeerOptions::new(NodeKey::generate()?).load_time(Duration::ZERO), &key)?;
    let other = serve(PeerOptions::new(NodeKey::generate()?), &key)?;
    let session = session_with(key, [&slow, &other]).build()?;
    let at = |peer: &'static str| move |x: Tensor| on(peer, || x * 2.0);
    let f = session.function(at("/peer:0/cpu:0"))?;
    // Each call tries again.
    for _ in 0..2 {
        let error = f.call(1.0).expect_err("the peer gives programs no time");
        assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error}");
        let text = error.to_string();
        assert!(text.contains("did not load within 0.0 s") && text.contains("`/peer:0`"), "{text}");
    }
    assert_eq!(session.function(at("/peer:1/cpu:0"))?.call(1.0)?, 2.0);
    Ok(())
}

#[test]
fn a_call_ends_at_its_deadline_while_a_peer_does_not_answer() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let mut peers = peers(1, &key)?;
    let session = session_with(key, &peers).build()?;
    let f = session.function(|x: Tensor| on("/peer:0/cpu:0", || x * 2.0))?;
    assert_eq!(f.call(1.0)?, 2.0);
    let addr = peers[0].address().socket_addr();
    peers.remove(0).leave("it is done", Duration::from_secs(5));
    // Connecting to this socket would take five seconds.
    let _silent = std::net::UdpSocket::bind(addr).expect("the peer has ended");
    let error = f.call_timeout(Duration::from_millis(100), 1.0).expect_err("nobody answers");
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded, "{error}");
    let text = error.to_string();
    assert!(text.contains("`/peer:0`") && text.contains("was being connected"), "{text}");
    let cancel = CancelHandle::new();
    let call = std::thread::spawn({
        let options = CallOptions::new().cancelled_by(&cancel);
        move || f.call_with(&options, 1.0)
    });
    cancel.cancel();
    let error = call.join().expect("a call does not panic").expect_err("nobody answers");
    assert_eq!(error.kind, ErrorKind::Cancelled, "{error}");
    Ok(())
}

#[test]
fn a_node_that_a_session_introduced_opens_no_sessions_of_its_own() -> Result<(), Diagnostic> {
    let (key, key_of_second) = (NodeKey::generate()?, NodeKey::generate()?);
    let first = serve(PeerOptions::new(NodeKey::generate()?), &key)?;
    let second = serve(PeerOptions::new(key_of_second.clone()), &key)?;
    let _session = session_with(key, [&first, &second]).build()?;
    let error = session_with(key_of_second, [&first]).build().expect_err("only the first key is allowed");
    assert!(error.to_string().contains("may not open sessions"), "{error}");
    Ok(())
}
