//! Checkpoints of variables on other devices: GPUs, and devices of peers.

use anabranch::checkpoints::{Checkpoints, RunParts, StepRecord};
use anabranch::peers::{NodeKey, Peer, PeerOptions, Profile};
use anabranch::prelude::*;
use anabranch::{Diagnostic, Session, gpu_adapters};
use std::path::{Path, PathBuf};

/// A folder that is removed with its contents.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> TestFolder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("checkpoints-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        TestFolder(path)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Two variables on two devices, which a step changes.
struct Pair {
    a: Var<f32>,
    b: Var<f32>,
}

impl Pair {
    fn new(devices: [&str; 2]) -> Pair {
        let a = on(devices[0], || Var::<f32>::new("a", [1.0; 1000]));
        let b = on(devices[1], || Var::<f32>::new("b", [10.0; 1000]));
        Pair { a, b }
    }

    fn step(&self) {
        self.a.set(self.a.get() + 1.0);
        self.b.set(self.b.get() * self.a.get());
    }

    fn get(&self, session: &Session) -> Result<(f32, f32), Diagnostic> {
        Ok((session.get(&self.a)?[999], session.get(&self.b)?[0]))
    }
}

/// Saves during a training on two devices, continues from it there, and on the CPU.
fn saves_and_continues(name: &str, session: &Session, devices: [&str; 2]) -> Result<(), Diagnostic> {
    let folder = TestFolder::new(name);
    let pair = Pair::new(devices);
    let step = session.function(|| pair.step())?;
    step.call(())?;
    let mut snapshot = session.snapshot([pair.a.any(), pair.b.any(), pair.a.any()])?;
    let parts = RunParts::new().module("a", &pair.a).module("b", &pair.b);
    let mut checkpoints = Checkpoints::new(&folder.0).open()?;
    checkpoints.save(session, &parts, StepRecord::new(1))?;
    for _ in 0..3 {
        step.call(())?;
    }
    let taken = [0, 1, 2].map(|i| snapshot.take(i).map(|value| value.data::<f32>()[500]));
    assert_eq!(taken, [Ok(2.0), Ok(20.0), Ok(2.0)]);
    assert_eq!(pair.get(session)?, (5.0, 1200.0));
    checkpoints.resume(session, &parts)?.expect("there is a checkpoint");
    assert_eq!(pair.get(session)?, (2.0, 20.0));
    step.call(())?;
    assert_eq!(pair.get(session)?, (3.0, 60.0));

    let (other, here) = (Session::new()?, Pair::new(["/cpu:0", "/cpu:0"]));
    let parts = RunParts::new().module("a", &here.a).module("b", &here.b);
    checkpoints.resume(&other, &parts)?.expect("there is a checkpoint");
    other.function(|| here.step())?.call(())?;
    assert_eq!(here.get(&other)?, (3.0, 60.0));
    Ok(())
}

#[test]
fn variables_of_gpus_are_saved_beside_the_steps() -> Result<(), Diagnostic> {
    let adapter = gpu_adapters().into_iter().next();
    assert!(adapter.is_some() || std::env::var_os("ANABRANCH_GPU").is_none(), "this machine has no adapter");
    let Some(adapter) = adapter else { return Ok(()) };
    let session = Session::builder().gpu(&adapter).gpu(&adapter).build()?;
    saves_and_continues("gpus", &session, ["/gpu:0", "/gpu:1"])?;
    saves_and_continues("gpu", &session, ["/cpu:0", "/gpu:0"])
}

fn session_with_peers(n: usize) -> Result<(Session, Vec<Peer>), Diagnostic> {
    let key = NodeKey::generate()?;
    let listen = "127.0.0.1:0".parse().expect("this is an address");
    let serve = || {
        let options = PeerOptions::new(NodeKey::generate()?).listen(listen);
        Peer::serve(options.profile(Profile::Loopback).allow(key.id()))
    };
    let peers: Vec<Peer> = (0..n).map(|_| serve()).collect::<Result<_, _>>()?;
    let builder = Session::builder().node_key(key.clone()).network(Profile::Loopback);
    let session = peers.iter().fold(builder, |builder, peer| builder.peer(peer.address())).build()?;
    Ok((session, peers))
}

#[test]
fn variables_of_peers_are_saved_beside_the_steps() -> Result<(), Diagnostic> {
    let (session, _peers) = session_with_peers(2)?;
    saves_and_continues("peers", &session, ["/peer:0/cpu:0", "/peer:1/cpu:0"])
}

#[test]
fn a_snapshot_reads_shared_variables_at_once() -> Result<(), Diagnostic> {
    let (session, _peers) = session_with_peers(1)?;
    let n = Var::<i64>::new("n", 5i64).on("/peer:0/cpu:0").share_as("n");
    let add = session.function(|| n.set(n.get() + 1))?;
    add.call(())?;
    let mut snapshot = session.snapshot([n.any()])?;
    add.call(())?;
    assert_eq!((snapshot.take(0)?.to_f64(), session.get(&n)?.item()), (Some(6.0), 7));
    Ok(())
}

#[test]
fn a_value_that_is_lost_with_its_peer_is_an_error_and_others_are_not() -> Result<(), Diagnostic> {
    let (session, peers) = session_with_peers(1)?;
    let pair = Pair::new(["/peer:0/cpu:0", "/cpu:0"]);
    let step = session.function(|| pair.step())?;
    step.call(())?;
    let mut snapshot = session.snapshot([pair.a.any(), pair.b.any()])?;
    drop(peers);
    let error = snapshot.take(0).unwrap_err();
    assert_eq!(error.kind, anabranch::ErrorKind::Unavailable, "{error}");
    assert!(snapshot.take(1).is_ok());
    Ok(())
}
