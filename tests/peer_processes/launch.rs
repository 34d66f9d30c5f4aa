//! `anabranch launch`.

use crate::processes::{ANABRANCH, bounded, until};
use anabranch::Session;
use anabranch::peers::PeerAddress;
use anabranch::prelude::*;
use rustix::process::Signal;
use std::net::UdpSocket;
use std::process::Command;

/// A program that `launch` runs.
#[test]
#[ignore = "the program of another test"]
fn launched() {
    let session = Session::builder().peers_of_environment().expect("the launcher sets peers");
    let session = session.build().expect("the peers run");
    let names: Vec<String> = session.devices().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["/cpu:0", "/peer:0/cpu:0", "/peer:0/cpu:1", "/peer:1/cpu:0", "/peer:1/cpu:1"]);
    let f = session.function(|x: Tensor| {
        let y = on("/peer:0/cpu:1", || x * 2.0);
        on("/peer:1/cpu:0", || y + 1.0)
    });
    assert_eq!(f.expect("the function can be traced").call(3.0).expect("the peers run"), 7.0);
}

fn launch(n: usize) -> Command {
    let mut command = Command::new(ANABRANCH);
    command.args(["launch", "-n", &n.to_string(), "--threads", "1", "--cpus", "2", "--"]);
    command
}

/// Waits until nobody listens at the addresses that a launched program has printed.
#[track_caller]
fn until_ended(addresses: &str) {
    let addresses: Vec<PeerAddress> = addresses.split(',').map(|peer| peer.parse().expect("an address")).collect();
    assert_eq!(addresses.len(), 2);
    until("the peers end", || addresses.iter().all(|peer| UdpSocket::bind(peer.socket_addr()).is_ok()));
}

#[test]
fn launch_runs_a_program_with_peers() {
    bounded("launch", |test| {
        let mut command = launch(2);
        command.arg(std::env::current_exe().expect("the system names this program"));
        let launched = test.start(command.args(["--ignored", "--exact", "launch::launched"]));
        let status = launched.wait();
        assert_eq!(status.code(), Some(0), "{}{}", launched.output(), launched.errors());
    });
}

/// With GPUs, each peer offers those that this process can use.
#[test]
fn launched_peers_offer_gpus() {
    bounded("launched_gpus", |test| {
        let gpus = anabranch::gpu_adapters().len();
        let mut command = Command::new(ANABRANCH);
        command.args(["launch", "-n", "1", "--gpu", "--gpu-memory", "100000000", "--"]);
        command.arg(std::env::current_exe().expect("the system names this program"));
        let launched = test.start(command.args(["--ignored", "--exact", "--nocapture", "launch::names_of_devices"]));
        let (status, text) = (launched.wait(), format!("{}{}", launched.output(), launched.errors()));
        if gpus == 0 {
            assert_eq!(status.code(), Some(1), "{text}");
            assert!(
                text.contains("no GPU that anabranch can use") && text.contains("peer 0 has not started"),
                "{text}"
            );
        } else {
            assert_eq!(status.code(), Some(0), "{text}");
            assert_eq!(text.matches("/peer:0/gpu:").count(), gpus, "{text}");
        }
    });
}

/// A program that `launch` runs.
#[test]
#[ignore = "the program of another test"]
fn names_of_devices() {
    let session = Session::builder().peers_of_environment().expect("the launcher sets peers");
    let session = session.build().expect("the peers run");
    session.devices().iter().for_each(|device| println!("{device}"));
}

#[test]
fn launch_returns_the_exit_code_and_ends_the_peers() {
    bounded("exit_code", |test| {
        let launched =
            test.start(launch(2).args(["sh", "-c", "echo $ANABRANCH_PEERS; ls -l $ANABRANCH_NODE_KEY; exit 7"]));
        assert_eq!(launched.wait().code(), Some(7), "{}", launched.errors());
        assert!(launched.line_of_output(1).starts_with("-rw-------"), "{}", launched.output());
        until_ended(&launched.line_of_output(0));
        let missing = test.start(launch(1).arg("/no/such/program"));
        assert_eq!(missing.wait().code(), Some(1));
        assert!(missing.errors().contains("/no/such/program"), "{}", missing.errors());
    });
}

#[test]
fn a_launched_program_has_the_failure_timeout_of_its_peers() {
    bounded("launched_timeout", |test| {
        let mut command = Command::new(ANABRANCH);
        command.args(["launch", "-n", "1", "--failure-timeout", "2.5", "--", "sh", "-c"]);
        let launched = test.start(command.arg("echo $ANABRANCH_FAILURE_TIMEOUT"));
        assert_eq!(launched.wait().code(), Some(0), "{}", launched.errors());
        assert_eq!(launched.line_of_output(0), "2.5");
    });
}

#[test]
fn the_keys_of_a_user_are_made_once() {
    bounded("user_keys", |test| {
        let keys = |arguments: &[&str]| {
            let mut command = Command::new(ANABRANCH);
            let process = test.start(command.arg("keys").args(arguments).env("XDG_CONFIG_HOME", test.path("settings")));
            assert_eq!(process.wait().code(), Some(0), "{}", process.errors());
            process.line_of_output(0)
        };
        let first = keys(&[]);
        assert_eq!(keys(&[]), first);
        let path = test.path("settings").join("anabranch").join("session.key");
        assert_eq!(keys(&[path.to_str().expect("the path is text")]), first);
    });
}

#[test]
fn peers_of_a_killed_launcher_end_and_its_key_is_removed() {
    bounded("killed_launcher", |test| {
        // Ends when its standard input, which is that of the launcher, closes.
        let print = "echo $ANABRANCH_PEERS; echo $ANABRANCH_NODE_KEY; read line";
        let launched = test.start(launch(2).args(["sh", "-c", print]));
        let (addresses, key) = (launched.line_of_output(0), launched.line_of_output(1));
        assert!(std::path::Path::new(&key).exists(), "{key}");
        launched.kill();
        until_ended(&addresses);
        let folder = std::path::Path::new(&key).parent().expect("the key is in a folder");
        until("the key is removed", || !folder.exists());
    });
}

#[test]
fn a_launcher_passes_sigterm_on() {
    bounded("terminated_launcher", |test| {
        let launched = test.start(launch(2).args(["sh", "-c", "echo $ANABRANCH_PEERS; read line"]));
        let addresses = launched.line_of_output(0);
        launched.send(Signal::TERM);
        assert_eq!(launched.wait().code(), Some(128 + 15), "{}", launched.errors());
        until_ended(&addresses);
    });
}

#[test]
fn wrong_arguments_and_full_files_are_errors() {
    use std::os::unix::ffi::OsStrExt;
    let output = Command::new(ANABRANCH).arg(std::ffi::OsStr::from_bytes(b"k\xff")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not UTF-8"), "{output:?}");
    let output = Command::new(ANABRANCH).args(["peer", "--token", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("`--token 0` is not a number of seconds above 0"), "{error}");
    // Nothing is made for a command that is wrong.
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-settings");
    for (command, expected) in [
        ("launch -n 1 --gpu-memory 1 -- true", "`--gpu-memory` needs `--gpu`"),
        ("peer --listen 127.0.0.1:0 --gpu-memory 1", "`--gpu-memory` needs `--gpu`"),
        ("launch -n 0 -- true", "`-n 0`: "),
        ("peer --listen 127.0.0.1:0 --memory 0", "`--memory 0`: "),
        ("peer --listen 127.0.0.1:0 --threads 0", "`--threads 0`: "),
        ("peer --listen 127.0.0.1:0 --allow zz", "`--allow zz`: `zz` is not the id of a node"),
        ("peer --listen 127.0.0.1:0 --bogus", "there is no option `--bogus`"),
        ("peer", "`--listen HOST:PORT` is missing"),
        ("status", "the address of a peer is missing"),
    ] {
        let output = Command::new(ANABRANCH).args(command.split(' ')).env("XDG_CONFIG_HOME", &folder).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{command}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(expected), "{error}");
    }
    assert!(!folder.exists());

    if let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") {
        let output = Command::new(ANABRANCH).arg("--help").stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to standard output"), "{output:?}");
    }
}
