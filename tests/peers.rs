//! Sessions with peers. The peers are in the process of the test, with sockets of their own; what
//! takes other processes is in `peer_processes/`.

use anabranch::peers::{NodeKey, Peer, PeerAddress, PeerOptions, PeerStatus, Profile};
use anabranch::prelude::*;
use anabranch::{CallOptions, CancelHandle, DType, Diagnostic, ErrorKind, Queue, Session, SessionBuilder, TensorType};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Starts peers that admit a key.
fn peers(n: usize, key: &NodeKey) -> Result<Vec<Peer>, Diagnostic> {
    (0..n).map(|_| serve(PeerOptions::new(NodeKey::generate()?), key)).collect()
}

/// Starts a peer that admits a key.
pub(crate) fn serve(options: PeerOptions, key: &NodeKey) -> Result<Peer, Diagnostic> {
    let listen = "127.0.0.1:0".parse().expect("this is an address");
    Peer::serve(options.listen(listen).profile(Profile::Loopback).allow(key.id()))
}

/// Returns a builder of sessions with peers.
pub(crate) fn session_with<'a>(key: NodeKey, peers: impl IntoIterator<Item = &'a Peer>) -> SessionBuilder {
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
fn thousands_of_small_inputs_and_outputs_do_not_close_a_link() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(1, &key)?;
    let session = session_with(key, &peers).build()?;
    let f = session
        .function(|xs: Vec<Tensor>| on("/peer:0/cpu:0", || xs.into_iter().map(|x| -x).collect::<Vec<Tensor>>()))?;
    // Together they have 32 MB, and are parts of frames while few frames wait.
    let n = 4_000;
    let xs: Vec<Vec<f32>> = (0..n).map(|i| vec![i as f32; 2_000]).collect();
    let ys = f.call(xs)?;
    assert_eq!(ys.len(), n);
    for (i, y) in ys.iter().enumerate() {
        assert!(y.as_slice().len() == 2_000 && y.as_slice().iter().all(|y| *y == -(i as f32)), "output {i}");
    }
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
fn a_failure_at_a_peer_names_the_operation_that_was_written() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(1, &key)?;
    let session = session_with(key, &peers).build()?;
    // The extents differ at run time, in a broadcast that is a part of the difference.
    let f = session.function(|x: Tensor<f32>, y: Tensor<f32>| on("/peer:0/cpu:0", || y - x.with_dynamic(0)))?;
    let error = f.call(([2.0, 3.0, 4.0], [3.0, 4.0])).unwrap_err();
    assert!(error.message.starts_with("sub: "), "{error}");
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

/// Does not end for a number above zero.
#[graph]
fn grow(mut x: Tensor) -> Tensor {
    while x > 0.0 {
        x += 1.0;
    }
    x
}

#[test]
fn a_step_that_takes_longer_than_a_peer_allows_is_stopped() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let options = PeerOptions::new(NodeKey::generate()?).step_time(Duration::from_millis(100));
    let (limited, other) = (serve(options, &key)?, serve(PeerOptions::new(NodeKey::generate()?), &key)?);
    let session = session_with(key, [&limited, &other]).build()?;
    // The time of a part that waits for the other peer counts, too.
    for busy in ["/peer:0", "/peer:1"] {
        let f = session.function(move |x: Tensor| {
            let y = on(busy, || grow(x));
            on("/peer:0/cpu:0", || y + x)
        })?;
        assert_eq!(f.call(0.0)?, 0.0);
        let error = f.call(1.0).expect_err("the loop never ends");
        assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error}");
        let text = error.to_string();
        assert!(text.contains("took longer than 0.1 s, the limit of the peer"), "{text}");
        assert!(text.contains("--step-time"), "{text}");
        assert_eq!(f.call(0.0)?, 0.0, "the session goes on");
    }
    Ok(())
}

/// Takes half a minute for a number above zero, and no time for others.
#[graph]
fn long_for_some(mut x: Tensor) -> Tensor {
    if x > 0.0 {
        let mut i = tensor(0i64);
        while i < 20_000_000_000 {
            x = x * 0.999 + 1.0;
            i += 1;
        }
    }
    x
}

#[test]
fn a_kernel_that_was_short_before_does_not_occupy_the_thread_of_the_net() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peer = serve(PeerOptions::new(NodeKey::generate()?).step_time(Duration::from_millis(500)), &key)?;
    let session = session_with(key, [&peer]).failure_timeout(Duration::from_secs(2)).build()?;
    let f = session.function(|x: Tensor| on("/peer:0/cpu:0", || long_for_some(x)))?;
    // The peer learns how long they take.
    for _ in 0..20 {
        assert_eq!(f.call(-1.0)?, -1.0);
    }
    // If this occupied the thread of the net, the peer would be unavailable.
    let error = f.call(1.0).expect_err("it takes half a minute");
    assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error}");
    assert_eq!(f.call(-1.0)?, -1.0);
    Ok(())
}

/// Counts at a peer.
#[graph]
fn counted(n: Tensor<i32>) -> Tensor<i32> {
    let (mut sum, mut i) = (scalar(0), scalar(0));
    while i < n {
        sum += on("/cpu:0", || i * i);
        i += 1;
    }
    sum
}

#[test]
fn a_peer_refuses_more_parallel_iterations_than_it_keeps_memory_for() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(1, &key)?;
    let called = |n| {
        let session = session_with(key.clone(), &peers).parallel_iterations(n).build()?;
        session.function(|n| on("/peer:0/cpu:0", || counted(n)))?.call(5)
    };
    assert_eq!(called(65_536)?, 30);
    let error = called(65_537).expect_err("it is too many");
    assert!(error.to_string().contains("more than 65536 parallel iterations"), "{error}");
    Ok(())
}

#[test]
fn the_state_of_variables_at_peers_is_saved_and_loaded() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(1, &key)?;
    let session = session_with(key, &peers).build()?;
    let w = Var::new("w", vec![1.0f32, 2.0]).on("/peer:0/cpu:0");
    let double = session.function(|| {
        w.set(w.get() * 2.0);
        w.get()
    })?;
    assert_eq!(double.call(())?.as_slice(), [2.0, 4.0]);
    let saved = session.state(&w)?;
    assert_eq!(double.call(())?.as_slice(), [4.0, 8.0]);
    session.load_state(&w, &saved)?;
    assert_eq!(session.get(&w)?.as_slice(), [2.0, 4.0]);
    assert_eq!(double.call(())?.as_slice(), [4.0, 8.0]);
    Ok(())
}

#[test]
fn the_status_of_a_peer_has_the_statistics_of_all_of_its_links() -> Result<(), Diagnostic> {
    let (key, asker) = (NodeKey::generate()?, NodeKey::generate()?);
    let peer = serve(PeerOptions::new(NodeKey::generate()?).allow(asker.id()), &key)?;
    let session = session_with(key.clone(), [&peer]).build()?;
    let f = session.function(|x: Tensor| on("/peer:0/cpu:0", || x * 2.0))?;
    f.call(vec![1.0; 1 << 18])?;
    let status = PeerStatus::ask(&asker, &peer.address(), Profile::Loopback, Duration::from_secs(10))?;
    let link = status.queues.iter().find(|link| link.node == key.id().short()).expect("the session is linked");
    // The output of the call, 1 MiB.
    assert!(link.sent.0 > 1 << 20 && link.sent.1 > 0, "{link:?}");
    assert!(!link.round_trip.is_zero() && link.packets.0 > 10 && link.packets.1 < link.packets.0, "{link:?}");
    let text = status.to_string();
    let line = text.lines().find(|line| line.contains(&key.id().short())).expect("the link is shown");
    for part in ["round trip", "bytes sent", "Mbit/s", "packets lost", "wait"] {
        assert!(line.contains(part), "{line}");
    }
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

#[test]
fn a_node_that_a_session_introduced_does_not_see_what_others_do() -> Result<(), Diagnostic> {
    let (key, key_of_second) = (NodeKey::generate()?, NodeKey::generate()?);
    let first = serve(PeerOptions::new(NodeKey::generate()?), &key)?;
    let second = serve(PeerOptions::new(key_of_second.clone()), &key)?;
    let session = session_with(key.clone(), [&first, &second]).build()?;
    count(&session, &shared_counter("n"))(1)?;
    let ask = |key: &NodeKey| PeerStatus::ask(key, &first.address(), Profile::Loopback, Duration::from_secs(5));
    let seen = ask(&key)?;
    assert_eq!((seen.sessions, seen.shared_variables, seen.shared.len()), (1, 1, 1));
    assert!(seen.links > 1 && seen.links == seen.queues.len() as u64, "{seen}");
    let error = ask(&key_of_second).expect_err("a session has introduced it").to_string();
    assert!(error.contains("does not tell this node its state") && error.contains("allow the key there"), "{error}");
    Ok(())
}

#[test]
fn calls_at_a_peer_do_not_wait_for_another_that_is_dialed() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let mut both = peers(2, &key)?;
    let session = session_with(key, &both).failure_timeout(Duration::from_secs(4)).build()?;
    let counter = shared_counter("n");
    let count = count(&session, &counter);
    assert_eq!(count(1)?, 6);
    let f = Arc::new(session.function(|x: Tensor| on("/peer:1/cpu:0", || x * 2.0))?);
    assert_eq!(f.call(1.0)?, 2.0);
    let addr = both[1].address().socket_addr();
    both.remove(1).leave("it is done", Duration::from_secs(5));
    // Connecting to this socket takes two seconds.
    let _silent = std::net::UdpSocket::bind(addr).expect("the peer has ended");
    let dialing = f.clone();
    let dialing = std::thread::spawn(move || dialing.call(1.0));
    // If the calls waited, the first would last until the other thread has given up.
    for i in 0..10 {
        assert_eq!(count(1)?, 7 + i);
    }
    assert!(!dialing.is_finished(), "the other call still dials");
    // Calls that wait for an attempt, all of them.
    let others: Vec<_> = (0..8).map(|_| f.clone()).collect();
    let others: Vec<_> = others.into_iter().map(|f| std::thread::spawn(move || f.call(1.0))).collect();
    for call in others.into_iter().chain([dialing]) {
        let error = call.join().expect("a call does not panic").expect_err("nobody answers");
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    }
    Ok(())
}

#[test]
fn a_failure_timeout_has_limits_and_is_shown() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(1, &key)?;
    let with = |timeout: Duration| session_with(key.clone(), &peers).failure_timeout(timeout).build();
    for wrong in [Duration::ZERO, Duration::from_secs(601)] {
        let text = with(wrong).expect_err("it is out of range").to_string();
        assert!(text.contains("a failure timeout of") && text.contains("between 100ms and 600s"), "{text}");
    }
    let (settings, _) = with(Duration::from_secs(20))?.network().expect("there is a peer");
    assert!(settings.contains("a failure timeout of 20s makes: keep-alive every 1.8s"), "{settings}");
    assert_eq!(Session::new()?.network(), None);
    Ok(())
}

#[test]
fn more_calls_at_once_than_a_peer_runs_wait_for_each_other() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(2, &key)?;
    let session = session_with(key, &peers).build()?;
    let f = session.function(|x: Tensor| {
        let y = on("/peer:0/cpu:0", || x * 2.0);
        on("/peer:1/cpu:0", || y + 1.0)
    })?;
    f.call(0.0)?;
    std::thread::scope(|scope| {
        // A peer runs 32 steps of a session at once.
        let f = &f;
        let call = |i: usize| {
            scope.spawn(move || (0..10).try_for_each(|_| f.call(i as f32).map(|y| assert_eq!(y, 2.0 * i as f32 + 1.0))))
        };
        let calls: Vec<_> = (0..100).map(call).collect();
        calls.into_iter().try_for_each(|call| call.join().expect("no call panics"))
    })
}

#[test]
fn more_calls_at_once_than_a_peer_locks_for_wait_for_each_other() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(1, &key)?;
    let session = session_with(key, &peers).build()?;
    let n = shared_counter("n");
    let count = count(&session, &n);
    std::thread::scope(|scope| {
        // A peer lets a session hold or ask for 32 locks at once.
        let calls: Vec<_> = (0..100).map(|_| scope.spawn(|| (0..5).try_for_each(|_| count(1).map(drop)))).collect();
        calls.into_iter().try_for_each(|call| call.join().expect("no call panics"))
    })?;
    assert_eq!(session.get(&n)?.item(), 505);
    Ok(())
}

#[test]
fn limits_of_time_may_be_as_long_as_one_likes() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let options = PeerOptions::new(NodeKey::generate()?).load_time(Duration::MAX).step_time(Duration::MAX);
    let peer = serve(options, &key)?;
    let session = session_with(key, [&peer]).build()?;
    assert_eq!(session.function(|x: Tensor| on("/peer:0/cpu:0", || x + 1.0))?.call(1.0)?, 2.0);
    Ok(())
}

/// Returns a shared counter, at the first peer of a session.
fn shared_counter(name: &str) -> Var<i64> {
    Var::<i64>::new("n", 5i64).on("/peer:0/cpu:0").share_as(name)
}

/// Adds to a counter. Returns its new value.
fn count(session: &Session, n: &Var<i64>) -> impl Fn(i64) -> Result<i64, Diagnostic> + use<> {
    let n = n.clone();
    let add = session.function(move |by: Tensor<i64>| {
        n.set(n.get() + by);
        n.get()
    });
    move |by| Ok(add.as_ref().map_err(Clone::clone)?.call(by)?.item())
}

#[test]
fn sessions_share_a_named_variable() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(1, &key)?;
    let sessions = [session_with(key.clone(), &peers).build()?, session_with(key.clone(), &peers).build()?];
    // Each session has a variable of its own, as two processes would.
    let vars = [shared_counter("n"), shared_counter("n")];
    let add: Vec<_> = sessions.iter().zip(&vars).map(|(session, n)| count(session, n)).collect();
    assert_eq!((add[0](1)?, add[1](10)?, add[0](1)?), (6, 16, 17));
    assert_eq!(sessions[1].get(&vars[1])?.item(), 17);
    sessions[1].set(&vars[1], 100i64)?;
    assert_eq!((add[0](1)?, sessions[0].get(&vars[0])?.item()), (101, 101));
    // It outlives its sessions.
    drop((add, sessions));
    let (session, n) = (session_with(key, &peers).build()?, shared_counter("n"));
    assert_eq!(session.get(&n)?.item(), 101);
    Ok(())
}

#[test]
fn increments_of_sessions_at_once_are_not_lost() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(2, &key)?;
    // A step that locks at two peers, in the opposite order of devices in each session.
    let run = |order: [usize; 2]| {
        let session = session_with(key.clone(), order.map(|i| &peers[i])).build()?;
        let at = |peer: usize| {
            let device = format!("/peer:{}/cpu:0", order.iter().position(|&i| i == peer).expect("it is a peer"));
            Var::<i64>::new("n", 0i64).on(device.as_str()).share_as(format!("n{peer}"))
        };
        let (a, b) = (at(0), at(1));
        let both = session.function(|| {
            a.set(a.get() + 1);
            b.set(b.get() + 2);
        })?;
        (0..25).try_for_each(|_| both.call(()).map(|_| ()))?;
        Ok::<_, Diagnostic>((session, a.clone(), b.clone()))
    };
    let done = std::thread::scope(|scope| {
        let runs = [[0, 1], [1, 0]].map(|order| scope.spawn(move || run(order)));
        runs.map(|run| run.join().expect("no run panics"))
    });
    for run in done {
        let (session, a, b) = run?;
        assert_eq!((session.get(&a)?.item(), session.get(&b)?.item()), (50, 100));
    }
    Ok(())
}

#[test]
fn a_call_that_reads_shared_variables_of_two_peers_sees_no_half_of_a_commit() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(2, &key)?;
    let at = |peer: usize| Var::<i64>::new("n", 0i64).on(format!("/peer:{peer}/cpu:0").as_str()).share_as("n");
    let (writing, reading) = (session_with(key.clone(), &peers).build()?, session_with(key, &peers).build()?);
    let (a, b) = (at(0), at(1));
    let write = writing.function(|| {
        a.set(a.get() + 1);
        b.set(b.get() + 1);
    })?;
    let (c, d) = (at(0), at(1));
    let read = reading.function(|| c.get() - d.get())?;
    write.call(())?;
    let has_ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut n_reads = 0;
            while !has_ended.load(std::sync::atomic::Ordering::Relaxed) || n_reads == 0 {
                assert_eq!(read.call(())?.item(), 0, "after {n_reads} reads");
                n_reads += 1;
            }
            Ok::<_, Diagnostic>(())
        });
        let written = (0..300).try_for_each(|_| write.call(()).map(drop));
        has_ended.store(true, std::sync::atomic::Ordering::Relaxed);
        reads.join().expect("no read panics")?;
        written
    })
}

#[test]
fn a_step_that_fails_changes_no_shared_variable_and_gives_up_its_lock() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(1, &key)?;
    let session = session_with(key.clone(), &peers).build()?;
    let n = shared_counter("n");
    let divide = session.function(|by: Tensor<i64>| n.set(n.get() / by))?;
    assert!(divide.call(0i64).is_err());
    assert_eq!(session.get(&n)?.item(), 5);
    let (other, m) = (session_with(key, &peers).build()?, shared_counter("n"));
    assert_eq!(count(&other, &m)(1)?, 6);
    divide.call(2i64)?;
    assert_eq!(other.get(&m)?.item(), 3);
    Ok(())
}

#[test]
fn a_shared_variable_has_one_type_and_is_at_a_peer() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(1, &key)?;
    let session = session_with(key, &peers).build()?;
    let n = shared_counter("n");
    assert_eq!(session.get(&n)?.item(), 5);
    let other = Var::<f32>::new("n", 0.0).on("/peer:0/cpu:0").share_as("n");
    let error = session.get(&other).expect_err("the types differ");
    assert_eq!(error.message, "the shared variable `n` is i64[], and this session's is f32[]");
    let local = Var::<f32>::new("m", 0.0).on("/peer:local/cpu:0").share_as("m");
    let error = session.get(&local).expect_err("it is at no peer");
    assert_eq!(error.message, "the shared variable `m` is on /cpu:0, which is a device of this process");
    let anywhere = Var::<f32>::new("m", 0.0).share_as("m");
    let error = session.function(|| anywhere.get())?.call(()).expect_err("its peer is not named");
    assert_eq!(error.message, "the shared variable `m` may be on any of 2 devices");
    let error = Session::new()?.get(&n).expect_err("the session has no peers");
    assert!(error.message.starts_with("the session has no device /peer:0/cpu:0"), "{error}");
    let interpreted = session.function(|| n.get())?.interpreted(true);
    let error = interpreted.call(()).expect_err("the interpreter does not lock variables");
    assert!(error.message.contains("is interpreted, but uses the shared variable `n`"), "{error}");
    Ok(())
}

#[test]
fn a_call_that_waits_for_a_shared_variable_can_be_ended() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(1, &key)?;
    let n = shared_counter("n");
    let waiting = session_with(key.clone(), &peers).build()?;
    let m = shared_counter("n");
    let own = m.clone();
    let add = waiting.function(move || own.set(own.get() + 1))?;
    add.call(())?;
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let noted = kinds.clone();
    // During the print of a step, the step has its lock.
    let holding = session_with(key, &peers)
        .print_to(move |_, _| {
            let options = anabranch::CallOptions::new().timeout(std::time::Duration::from_millis(50));
            let outcome = add.call_with(&options, ()).map_err(|error| error.kind);
            noted.lock().expect("no print panics").push(outcome.expect_err("the variable is locked"));
        })
        .build()?;
    #[graph]
    fn print_and_add(n: &Var<i64>) {
        let before = n.get();
        println!("{before}");
        n.set(before + 1);
    }
    let step = holding.function(|| print_and_add(&n))?;
    step.call(())?;
    assert_eq!(*kinds.lock().expect("no print panics"), [ErrorKind::DeadlineExceeded]);
    // The wait that was ended is over at the peer, too.
    step.call(())?;
    assert_eq!((waiting.get(&m)?.item(), kinds.lock().expect("no print panics").len()), (8, 2));
    Ok(())
}

#[test]
fn a_peer_loads_a_program_once_for_all_sessions_of_an_owner() -> Result<(), Diagnostic> {
    let (key, other) = (NodeKey::generate()?, NodeKey::generate()?);
    let listen = "127.0.0.1:0".parse().expect("this is an address");
    let options = PeerOptions::new(NodeKey::generate()?).listen(listen).profile(Profile::Loopback);
    let peer = Peer::serve(options.allow(key.id()).allow(other.id()))?;
    let status = || PeerStatus::ask(&key, &peer.address(), Profile::Loopback, std::time::Duration::from_secs(10));
    let call = |key: &NodeKey| {
        let session = session_with(key.clone(), [&peer]).build()?;
        let v = on("/peer:0/cpu:0", || Var::<f32>::new("v", 1.0));
        let own = v.clone();
        let f = session.function(move |x: Tensor| {
            own.set(own.get() + x);
            on("/peer:0/cpu:0", || own.get() * 3.0)
        })?;
        assert_eq!(f.call(1.0)?, 6.0);
        assert_eq!(session.get(&v)?.item(), 2.0);
        Ok::<_, Diagnostic>((session, f))
    };
    let first = call(&key)?;
    let second = call(&key)?;
    let now = status()?;
    assert_eq!((now.programs, now.loaded_programs), (2, (1, 0)), "both sessions use one program");
    let third = call(&other)?;
    let now = status()?;
    assert_eq!((now.programs, now.loaded_programs), (3, (2, 0)), "another owner has its own");
    drop((first, second, third));
    assert!(status()?.loaded_programs.0 == 2, "programs stay for later sessions");
    call(&key)?;
    assert_eq!(status()?.loaded_programs.0, 2);
    Ok(())
}

#[test]
fn queues_are_in_the_process_of_the_session() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peers = peers(2, &key)?;
    let session = session_with(key, &peers).build()?;
    let types = [TensorType::new(DType::F32, [])];
    let (from, to) = (Queue::<Tensor>::fifo("from", 4, &types)?, Queue::<Tensor>::fifo("to", 4, &types)?);
    let total = on("/peer:0/cpu:0", || Var::<f32>::new("total", 0.0));
    let step = session.function(|| {
        let x = on("/peer:1/cpu:0", || from.dequeue() * 2.0);
        total.set(total.get() + x);
        to.enqueue(x + total.get());
    })?;
    let (from_host, to_host) = (session.queue(&from)?, session.queue(&to)?);
    let received = std::thread::scope(|scope| {
        scope.spawn(|| (0..20).try_for_each(|i| from_host.push(i as f32)));
        scope.spawn(|| (0..20).try_for_each(|_| step.call(())));
        (0..20).map(|_| Ok(to_host.pop()?.expect("the queue is open").item())).collect::<Result<Vec<_>, Diagnostic>>()
    })?;
    let expected: Vec<f32> = (0..20).map(|i| (2 * i + i * (i + 1)) as f32).collect();
    assert_eq!((received, session.get(&total)?.item()), (expected, 380.0));

    let shared = shared_counter("queues");
    let f = session.function(|x: Tensor| {
        from.enqueue(x);
        shared.set(shared.get() + 1);
    })?;
    let error = f.call(1.0).unwrap_err();
    assert!(error.message.contains("uses the queue `from` and assigns the shared variable"), "{error}");
    Ok(())
}
