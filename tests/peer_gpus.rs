//! GPUs at peers, through whatever driver this machine has. Without an adapter, the tests pass
//! without a check.
//!
//! With `ANABRANCH_GPU`, the corpora also place each node on a GPU of a peer or on a CPU
//! (`support/real_peers.rs`).

use super::support::gpus::{adapter, assert_near, numbers};
use anabranch::peers::{NodeKey, Peer, PeerOptions, Profile};
use anabranch::prelude::*;
use anabranch::{Array, GpuAdapter, Session};
use anabranch::{DType, TensorType};

type Outcome = anabranch::Result<()>;

/// The device at which everything is.
const GPU: &str = "/peer:0/gpu:0";

/// A peer with a GPU, and a session at it.
struct GpuPeer {
    session: Session,
    adapter: GpuAdapter,
    _peer: Peer,
}

/// Starts a peer with a GPU, if this machine has an adapter.
fn gpu_peer() -> anabranch::Result<Option<GpuPeer>> {
    let Some(adapter) = adapter() else { return Ok(None) };
    let (key, listen) = (NodeKey::generate()?, "127.0.0.1:0".parse().expect("this is an address"));
    let options = PeerOptions::new(NodeKey::generate()?).listen(listen).profile(Profile::Loopback).allow(key.id());
    let peer = Peer::serve(options.gpu(&adapter))?;
    let session = Session::builder().node_key(key).network(Profile::Loopback).peer(peer.address()).build()?;
    Ok(Some(GpuPeer { session, adapter, _peer: peer }))
}

#[test]
fn variables_at_a_gpu_of_a_peer_are_trained_read_and_set() -> Outcome {
    let Some(peer) = gpu_peer()? else { return Ok(()) };
    let session = &peer.session;
    let train = |session: &Session, device: &str| {
        let w = on(device, || Var::<f32>::new("w", [[0.5, -0.25], [1.0, 0.0]]));
        let step = session.function(|x: Tensor| {
            on(device, || {
                let loss = (x.matmul(w.get()).tanh() - 1.0).square().mean();
                w.set(w.get() - gradients(loss, w.get()) * 0.5);
                loss
            })
        })?;
        let mut losses = Vec::new();
        for i in 0..5 {
            losses.push(step.call([[0.5, i as f32 * 0.25], [1.0, -0.5]])?.item());
        }
        let trained = session.get(&w)?;
        session.set(&w, [[2.0, 1.0], [0.0, -1.0]])?;
        assert_eq!(session.get(&w)?.as_slice(), [2.0, 1.0, 0.0, -1.0]);
        losses.push(step.call([[0.5, 0.25], [1.0, -0.5]])?.item());
        let losses = Array::new([losses.len()], losses);
        Ok::<_, anabranch::Diagnostic>((losses, trained))
    };
    let (there, here) = (train(session, GPU)?, train(&Session::new()?, "/cpu:0")?);
    assert_near(&there.0, &here.0);
    assert_near(&there.1, &here.1);
    Ok(())
}

#[test]
fn loops_and_branches_run_at_a_gpu_of_a_peer_and_around_it() -> Outcome {
    #[graph]
    fn inside(x: Tensor, n: Tensor<i32>) -> (Tensor, Tensor<i32>) {
        let (mut y, mut i, mut odd) = (x, scalar(0), scalar(0));
        while i < n {
            y = (y * 1.5).tanh();
            if i % 2 == 1 {
                odd += i;
            }
            i += 1;
        }
        (y, odd)
    }
    // The caller decides, and the GPU computes.
    #[graph]
    fn around(x: Tensor, n: Tensor<i32>) -> Tensor {
        let (mut y, mut i) = (x, scalar(0));
        while i < n {
            y = on(GPU, || (y * 1.5).tanh());
            i += 1;
        }
        y
    }
    let Some(peer) = gpu_peer()? else { return Ok(()) };
    let session = &peer.session;
    let x = Array::new([3, 4], numbers(12));
    let expected = Session::new()?.function(inside)?;
    let f = session.function(|x, n| on(GPU, || inside(x, n)))?;
    let text = f.explain(&[TensorType::new(DType::F32, [3, 4]), TensorType::new(DType::I32, [])])?;
    assert!(text.contains(&format!(" on {GPU}: ")) && !text.contains("has no "), "{text}");
    let g = session.function(around)?;
    for n in [0, 1, 10] {
        let (there, here) = (f.call((&x, n))?, expected.call((&x, n))?);
        assert_near(&there.0, &here.0);
        assert_eq!(there.1, here.1);
        assert_near(&g.call((&x, n))?, &here.0);
    }
    Ok(())
}

#[test]
fn the_limit_of_a_gpu_of_a_peer_is_that_of_its_adapter() -> Outcome {
    let Some(peer) = gpu_peer()? else { return Ok(()) };
    let session = &peer.session;
    let most = peer.adapter.max_tensor_bytes();
    let rows = most as usize / (4 << 10) + 1;
    let f = session.function(move |x: Tensor| on(GPU, || (x.broadcast_to([rows, 1 << 10]).cumsum(0), x.exp())))?;
    let text = f.explain(&[TensorType::new(DType::F32, [1 << 10])])?;
    assert!(text.contains(&format!("{GPU} has no tensors of {most} bytes")), "{text}");
    Ok(())
}

#[test]
fn the_error_of_a_shader_at_a_peer_is_that_of_a_cpu() -> Outcome {
    fn model(x: Tensor<i32>, i: Tensor<i32>) -> Tensor<i32> {
        100 / x.take(i, 0)
    }
    let Some(peer) = gpu_peer()? else { return Ok(()) };
    let session = &peer.session;
    let f = session.function(|x, i| on(GPU, || model(x, i)))?;
    let expected = Session::new()?.function(model)?;
    assert_eq!(f.call(([1, 2, 4], [2, 0]))?.as_slice(), [25, 100]);
    for (x, i) in [([1, 2, 4], [3, 0]), ([1, 0, 4], [2, 1])] {
        let (there, here) = (f.call((x, i)), expected.call((x, i)));
        let (there, here) = (there.expect_err("it fails"), here.expect_err("it fails"));
        assert_eq!((there.kind, &there.message, there.loc()), (here.kind, &here.message, here.loc()));
    }
    Ok(())
}
