//! Keys: who may connect to whom, and what errors say.

use super::*;
use anabranch_dsl::ErrorKind;

#[test]
fn an_unknown_key_is_refused_by_name() {
    let (client, server) = (Setup::default().start(), Setup::default().start());
    let error = client.net.connect(server.addr(), Some(server.id), None).unwrap_err();
    println!("{error}{}", server.refused());
    let text = error.to_string();
    assert!(text.contains(&format!("node {} is not allowed here", client.id)), "{text}");
}

#[test]
fn a_node_with_another_key_is_refused_by_name_on_both_sides() {
    let (client, server) = (Setup::default().start(), Setup::default().start());
    server.allow(&client);
    let expected = NodeKey::generate().unwrap().id();
    let error = client.net.connect(server.addr(), Some(expected), None).unwrap_err().to_string();
    let theirs = server.refused().to_string();
    println!("{error}{theirs}");
    for text in [error, theirs] {
        assert!(text.contains(&format!("the node has the key {}, not {expected}", server.id)), "{text}");
        assert!(text.contains("= help: "), "{text}");
    }
}

#[test]
fn a_node_of_another_version_is_refused() {
    let client = Setup { protocol: "anabranch/0", ..Setup::default() }.start();
    let server = Setup::default().start();
    server.allow(&client);
    let error = client.net.connect(server.addr(), Some(server.id), None).unwrap_err().to_string();
    println!("{error}{}", server.refused());
    assert!(error.contains("speaks another version of the protocol"), "{error}");
}

#[test]
fn nothing_at_the_address_is_an_error_that_says_so() {
    let mut setup = Setup::default();
    setup.options.failure_timeout = Duration::from_millis(200);
    let client = setup.start();
    let nobody = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let error = client.net.connect(nobody.local_addr().unwrap(), Some(client.id), None).unwrap_err();
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
    let text = error.to_string();
    assert!(text.contains("UDP got no answer within 100ms"), "{text}");
    assert!(text.contains("is the peer running there, and is UDP allowed"), "{text}");
}

#[test]
fn an_address_in_use_is_an_error_that_says_so() {
    let server = Setup::default().start();
    let mut options = NetOptions { listen: Some(server.addr()), ..NetOptions::default() };
    let events: Arc<dyn NetEvents> = server.recorder.clone();
    let key = NodeKey::generate().unwrap();
    let error = Net::bind(&key, options.clone(), Arc::clone(&events)).unwrap_err().to_string();
    assert!(error.contains("another process has this port"), "{error}");
    options.listen = None;
    let net = Net::bind(&key, options, events).unwrap();
    assert_ne!(net.local_addr().port(), 0);
}

#[test]
fn a_socket_for_all_addresses_links_to_ipv4() {
    let mut setup = Setup::default();
    setup.options.listen = None;
    let (client, server) = (setup.start(), Setup::default().start());
    let (there, back) = link_nodes(&client, &server);
    assert_eq!(there.addr(), server.addr());
    assert!(back.addr().is_ipv4());
}

#[test]
fn ids_are_read_as_they_are_printed() {
    let id = NodeKey::generate().unwrap().id();
    assert_eq!(id.to_string().parse::<NodeId>().unwrap(), id);
    assert_eq!((id.to_string().len(), id.short().len()), (64, 8));
    for damaged in [&id.to_string()[1..], &id.to_string().replace(|c: char| c.is_ascii_digit(), "x"), "é"] {
        assert!(damaged.parse::<NodeId>().unwrap_err().to_string().contains("64 hexadecimal digits"));
    }
}

/// A new folder, removed at the end.
struct KeyFolder(std::path::PathBuf);

impl KeyFolder {
    fn new(name: &str) -> KeyFolder {
        let path = std::env::temp_dir().join(format!("anabranch-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        KeyFolder(path)
    }
}

impl Drop for KeyFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_saved_key_is_private_and_is_never_replaced() {
    let folder = KeyFolder::new("keys");
    let path = folder.0.join("node.key");
    let key = NodeKey::generate().unwrap();
    key.save(&path).unwrap();
    assert_eq!(NodeKey::load(&path).unwrap().id(), key.id());
    let error = NodeKey::generate().unwrap().save(&path).unwrap_err().to_string();
    assert!(error.contains("cannot write the node key"), "{error}");
    assert_eq!(NodeKey::load(&path).unwrap().id(), key.id());
    assert!(!format!("{key:?}").contains("pkcs8"));

    let missing = NodeKey::load(folder.0.join("none")).unwrap_err().to_string();
    assert!(missing.contains("cannot read the node key"), "{missing}");
    let other = folder.0.join("other");
    std::fs::copy(&path, &other).unwrap();
    std::fs::write(&other, b"no key").unwrap();
    let error = NodeKey::load(&other).unwrap_err().to_string();
    assert!(error.contains("is not a node key"), "{error}");
}

#[test]
fn processes_that_need_a_key_at_once_get_the_same() {
    for round in 0..20 {
        let folder = KeyFolder::new(&format!("at-once-{round}"));
        let path = folder.0.join("settings").join("session.key");
        let keys: Vec<NodeId> = std::thread::scope(|scope| {
            let load = || NodeKey::load_or_generate(&path).unwrap().id();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(load)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}

#[cfg(unix)]
#[test]
fn a_key_that_others_can_read_is_rejected() {
    use std::os::unix::fs::PermissionsExt;
    let folder = KeyFolder::new("modes");
    let path = folder.0.join("node.key");
    NodeKey::generate().unwrap().save(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = NodeKey::load(&path).unwrap_err().to_string();
    assert!(error.contains("its mode is 640") && error.contains("chmod 600"), "{error}");
}
