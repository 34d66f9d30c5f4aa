//! The memory that steps take at a peer.

use crate::peers::{serve, session_with};
use crate::support::waits::until;
use anabranch::peers::{NodeKey, Peer, PeerOptions, PeerStatus, Profile};
use anabranch::prelude::*;
use anabranch::{Array, Bytes, CallOptions, CancelHandle, Diagnostic, Dim, ErrorKind};
use std::time::Duration;

#[test]
fn a_step_that_uses_more_memory_than_a_peer_allows_fails() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let limit = 1_000_000;
    let peer = serve(PeerOptions::new(NodeKey::generate()?).step_memory(limit), &key)?;
    let session = session_with(key, [&peer]).build()?;
    let expect_error = |outcome: Result<Array<f32>, Diagnostic>| {
        let error = outcome.expect_err("the step uses too much memory");
        assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("at most {limit} may be")) && text.contains("--step-memory"), "{text}");
    };

    // An input.
    let first = session.function(move |x: Tensor| on("/peer:0/cpu:0", || x.slice(0, 0, 1)))?;
    expect_error(first.call(vec![1.0f32; 300_000]));
    // Nothing is left of a step that has ended, or failed.
    for _ in 0..5 {
        assert_eq!(first.call(vec![1.0f32; 200_000])?.as_slice(), [1.0]);
    }
    // The results of kernels of known and of unknown shapes count.
    let outer = |x: Tensor, n: usize| on("/peer:0/cpu:0", || x.reshape([n, 1]).matmul(x.reshape([1, n])).sum());
    let known = session.function(move |x: Tensor| outer(x, 1_000))?;
    expect_error(known.call(vec![1.0f32; 1_000]));
    let fits = session.function(move |x: Tensor| outer(x, 300))?;
    for _ in 0..5 {
        assert_eq!(fits.call(vec![1.0f32; 300])?, 90_000.0);
    }
    // Values that wait for others.
    let together = session.function(|x: Tensor| {
        let doubled = |x: Tensor| on("/peer:0/cpu:0", || x * 2.0);
        let there = doubled(x);
        on("/cpu:0", || there.sum()) + on("/peer:0/cpu:0", || (there * x).sum())
    })?;
    assert_eq!(together.call(vec![1.0f32; 50_000])?, 200_000.0);
    expect_error(together.call(vec![1.0f32; 200_000]));
    assert_eq!(together.call(vec![1.0f32; 50_000])?, 200_000.0, "the session goes on");
    // A value of another process counts once.
    let arrives = session.function(|x: Tensor| {
        let doubled = on("/cpu:0", || x * 2.0);
        on("/peer:0/cpu:0", || doubled.sum())
    })?;
    for _ in 0..5 {
        assert_eq!(arrives.call(vec![1.0f32; 150_000])?, 300_000.0);
    }
    // Outputs count until they are sent.
    let outputs = |n: usize| {
        let session = &session;
        session.function(move |x: Tensor| {
            let row = |k: usize| {
                let start = on("/cpu:0", || x + k as f32);
                on("/peer:0/cpu:0", || start.broadcast_to([n]))
            };
            (row(0), row(1), row(2), row(3), row(4), row(5))
        })
    };
    let error = outputs(50_000)?.call(1.0f32).map(drop).expect_err("they have 1.2 MB");
    assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error}");
    outputs(5_000)?.call(1.0f32)?;
    Ok(())
}

/// Returns the sum of the last of a list of rows.
#[graph]
fn pushed(x: Tensor, n: Tensor<i32>) -> Tensor {
    on("/peer:0/cpu:0", || {
        let mut rows = List::<f32>::new([1_000]);
        let mut i = scalar(0);
        while i < n {
            rows.push(x * i.cast::<f32>());
            i += 1;
        }
        rows.read(n - 1).sum()
    })
}

/// Returns the gradient of a loop that saves a value in each iteration.
#[graph]
fn saved(x: Tensor, n: Tensor<i32>) -> Tensor {
    on("/peer:0/cpu:0", || {
        let mut y = x;
        let mut i = scalar(0);
        while i < n {
            y = (y * y).sin();
            i += 1;
        }
        gradients(y.sum(), x)
    })
}

/// Doubles a string as often as is said.
#[graph]
fn doubled(s: Tensor<Bytes>, n: Tensor<i32>) -> Tensor<Bytes> {
    on("/peer:0/cpu:0", || {
        let mut s = s;
        let mut i = scalar(0);
        while i < n {
            s = s.join(s, "");
            i += 1;
        }
        s
    })
}

/// Returns the total length of a list of strings.
#[graph]
fn texts(s: Tensor<Bytes>, n: Tensor<i32>) -> Tensor<i32> {
    on("/peer:0/cpu:0", || {
        let mut all = List::<Bytes>::new([]);
        let mut s = s;
        let mut i = scalar(0);
        while i < n {
            s = s.join("x", "");
            all.push(s);
            i += 1;
        }
        all.stack().byte_len().sum()
    })
}

/// Returns the length of a list of elements without bytes.
#[graph]
fn empty(n: Tensor<i32>) -> Tensor<i32> {
    on("/peer:0/cpu:0", || List::<f32>::with_len(n, [0]).len())
}

/// Returns the total length of eight strings, each doubled as often as is said.
#[graph]
fn eight(s: Tensor<Bytes>, n: Tensor<i32>) -> Tensor<i32> {
    on("/peer:0/cpu:0", || {
        let start = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|end| s.join(end, ""));
        let all = start.map(|s| doubled(s, n));
        all.into_iter().fold(scalar(0), |sum, s| sum + s.byte_len())
    })
}

/// Returns the gradients of loops whose iterations, for many numbers at once, save values.
fn saved_side_by_side(xs: Tensor, n: Tensor<i32>) -> Tensor {
    on("/peer:0/cpu:0", || gradients(map(xs, |x| sines(x, n)).sum(), xs))
}

/// Computes sines of sines.
#[graph]
fn sines(x: Tensor, n: Tensor<i32>) -> Tensor {
    let mut y = x;
    let mut i = scalar(0);
    while i < n {
        y = (y * y).sin();
        i += 1;
    }
    y
}

/// Returns the length of a list that has a tensor several times.
#[graph]
fn many_times(x: Tensor, n: Tensor<i32>) -> Tensor<i32> {
    on("/peer:0/cpu:0", || {
        let mut all = List::<f32>::new([Dim::Unknown]);
        let mut i = scalar(0);
        while i < n {
            all.push(x);
            i += 1;
        }
        all.len()
    })
}

#[test]
fn what_grows_in_a_kernel_counts_in_the_memory_of_its_step() -> Result<(), Diagnostic> {
    let key = NodeKey::generate()?;
    let peer = serve(PeerOptions::new(NodeKey::generate()?).step_memory(4_000_000), &key)?;
    let session = session_with(key, [&peer]).build()?;
    let exhausted = |error: Diagnostic| {
        assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error}");
        assert!(error.to_string().contains("at most 4000000 may be"), "{error}");
    };
    let x = || vec![1.0f32; 1_000];

    let pushed = session.function(pushed)?;
    for _ in 0..5 {
        exhausted(pushed.call((x(), 2_000)).expect_err("a list of 8 MB"));
        assert_eq!(pushed.call((x(), 200))?, 199_000.0, "nothing is left of a step that has ended, or failed");
    }
    let saved = session.function(saved)?;
    for _ in 0..5 {
        exhausted(saved.call((x(), 4_000)).map(drop).expect_err("16 MB are saved"));
        saved.call((x(), 200))?;
    }
    let (doubled, word) = (session.function(doubled)?, || Bytes::from("word"));
    exhausted(doubled.call((word(), 24)).map(drop).expect_err("a string of 64 MB"));
    assert_eq!(doubled.call((word(), 10))?.item().len(), 4 << 10);

    let texts = session.function(texts)?;
    for _ in 0..5 {
        exhausted(texts.call((word(), 4_000)).expect_err("a list of strings of 8 MB"));
        assert_eq!(texts.call((word(), 200))?, 20_900);
    }
    // A tensor that several elements share counts once.
    let many_times = session.function(many_times)?;
    assert_eq!(many_times.call((vec![1.0f32; 300_000], 50))?, 50);
    let empty = session.function(empty)?;
    exhausted(empty.call(1 << 30).expect_err("marks of 1 GB"));
    assert_eq!(empty.call(1_000)?, 1_000);
    let eight = session.function(eight)?;
    for _ in 0..5 {
        exhausted(eight.call((word(), 17)).expect_err("eight strings of 655 KB"));
        assert_eq!(eight.call((word(), 10))?, 40 << 10);
    }
    let side_by_side = session.function(saved_side_by_side)?;
    for _ in 0..5 {
        exhausted(side_by_side.call((x(), 2_000)).map(drop).expect_err("8 MB are saved"));
        side_by_side.call((vec![1.0f32; 100], 100))?;
    }
    // The stacks of an iteration count as long as it runs.
    let for_each = |x, n| gradients(sines(x, n), x);
    let for_each = session
        .function(move |xs: Tensor, n: Tensor<i32>| on("/peer:0/cpu:0", || map(xs, |x| for_each(x, n)).sum()))?;
    for_each.call((vec![1.0f32; 40_000], 50))?;
    Ok(())
}

/// Fails in one of several ways after values were computed, saved and pushed at two peers: an
/// assertion, an index out of range, or a loop that ends only when it is stopped.
#[graph]
fn fails(x: Tensor, how: Tensor<i32>) -> Tensor {
    let first = on("/peer:1/cpu:0", || x * 2.0);
    let here = on("/cpu:0", || first.sum());
    on("/peer:0/cpu:0", || {
        let mut rows = List::<f32>::new([1_000]);
        let mut i = scalar(0);
        while i < 100 || how.equal(3) {
            if i < 100 {
                rows.push(first * here);
            }
            i += 1;
        }
        let all = rows.stack();
        assert!(how.not_equal(1), "it fails");
        all.row(how * 50).sum()
    })
}

#[test]
fn nothing_of_a_step_that_failed_counts() -> Result<(), Diagnostic> {
    let (key, asker) = (NodeKey::generate()?, NodeKey::generate()?);
    let options = || Ok::<_, Diagnostic>(PeerOptions::new(NodeKey::generate()?).allow(asker.id()));
    let peers = [serve(options()?.step_memory(4_000_000), &key)?, serve(options()?, &key)?];
    let session = session_with(key, &peers).build()?;
    let usage = |peer: &Peer| {
        let status = PeerStatus::ask(&asker, &peer.address(), Profile::Loopback, Duration::from_secs(10));
        let status = status.unwrap_or_else(|error| panic!("the peer tells its state: {error}"));
        (status.steps, status.step_bytes)
    };
    let until_nothing_counts = |after: &str| {
        until(after, || peers.iter().all(|peer| usage(peer) == (0, 0)));
    };
    let fails = session.function(fails)?;
    let x = || vec![1.0f32; 1_000];
    assert_eq!(fails.call((x(), 0))?, 4e6);
    until_nothing_counts("a step that succeeds");
    let expect = |outcome: Result<Array<f32>, Diagnostic>, kind: ErrorKind| {
        let error = outcome.expect_err("the step fails");
        assert_eq!(error.kind, kind, "{error}");
        until_nothing_counts(&error.to_string());
    };
    for _ in 0..3 {
        expect(fails.call((x(), 1)), ErrorKind::AssertionFailed);
        expect(fails.call((x(), 2)), ErrorKind::Invalid);
        let deadline = CallOptions::new().timeout(Duration::from_millis(50));
        expect(fails.call_with(&deadline, (x(), 3)), ErrorKind::DeadlineExceeded);
        let cancel = CancelHandle::new();
        // Without a timeout, the test would wait forever if the other thread panics.
        let stop = CallOptions::new().cancelled_by(&cancel).timeout(Duration::from_secs(60));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                until("the loop runs", || usage(&peers[0]).1 >= 400_000);
                cancel.cancel();
            });
            expect(fails.call_with(&stop, (x(), 3)), ErrorKind::Cancelled);
        });
    }
    let pushed = session.function(pushed)?;
    let error = pushed.call((x(), 2_000)).expect_err("a list of 8 MB");
    assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error}");
    until_nothing_counts("a step that uses too much memory");
    Ok(())
}
