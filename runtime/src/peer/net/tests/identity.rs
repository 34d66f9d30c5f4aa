//! Keys: who may connect to whom, and what errors say.

use super::*;

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
