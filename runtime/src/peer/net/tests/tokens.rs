//! Join tokens: who is admitted by one, and who is not.

use super::*;
use crate::peer::net::JoinToken;

const HOUR: Duration = Duration::from_secs(3600);

fn server_with(tokens: &[&JoinToken]) -> TestNode {
    let mut setup = Setup::default();
    setup.options.tokens = tokens.iter().map(|&token| token.clone()).collect();
    setup.start()
}

#[test]
fn a_token_admits_an_unknown_node_which_is_known_from_then_on() {
    let token = JoinToken::generate(HOUR).unwrap();
    let (client, server) = (Setup::default().start(), server_with(&[&token]));
    // The text of the token is all that the new node knows of the other.
    let token: JoinToken = token.to_string().parse().unwrap();
    let link = client.net.connect(server.addr(), None, Some(token.clone())).unwrap();
    assert_eq!(link.node(), server.id);
    assert!(matches!(server.next(), NetEvent::Joined(node) if node == client.id));
    server.linked().send(b"welcome".to_vec());
    client.linked();
    assert_eq!(client.frame(), b"welcome");
    // Known now, with the token or without.
    client.net.connect(server.addr(), Some(server.id), None).unwrap();
    client.net.connect(server.addr(), None, Some(token)).unwrap();
    server.linked();
    server.linked();
}

#[test]
fn a_token_admits_one_node_only() {
    let token = JoinToken::generate(HOUR).unwrap();
    let (first, second) = (Setup::default().start(), Setup::default().start());
    let server = server_with(&[&token]);
    first.net.connect(server.addr(), None, Some(token.clone())).unwrap();
    let error = second.net.connect(server.addr(), None, Some(token)).unwrap_err().to_string();
    assert!(error.contains(&format!("its join token was used by node {}", first.id)), "{error}");
    assert!(matches!(server.next(), NetEvent::Joined(_)));
    server.linked();
    assert!(server.refused().to_string().contains("each node needs a token of its own"));
}

#[test]
fn wrong_expired_and_missing_tokens_are_refused_with_the_reason() {
    let expired = JoinToken::generate(Duration::ZERO).unwrap();
    let server = server_with(&[&JoinToken::generate(HOUR).unwrap(), &expired]);
    let client = Setup::default().start();
    let wrong = JoinToken::generate(HOUR).unwrap();
    let cases = [
        (Some(wrong), "its join token is wrong"),
        (Some(expired), "its join token has expired"),
        (None, "is not allowed here: allow its key, or give it a join token"),
    ];
    for (token, reason) in cases {
        let error = client.net.connect(server.addr(), Some(server.id), token).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(server.refused().to_string().contains(reason));
    }
    // The refused node was never announced.
    assert!(server.events.try_recv().is_err());
}

#[test]
fn a_node_that_does_not_know_the_token_cannot_be_joined() {
    let (client, impostor) = (Setup::default().start(), Setup::default().start());
    impostor.allow(&client);
    let token = JoinToken::generate(HOUR).unwrap();
    let error = client.net.connect(impostor.addr(), None, Some(token)).unwrap_err().to_string();
    assert!(error.contains(&format!("node {} does not know the join token", impostor.id)), "{error}");
    let error = client.net.connect(impostor.addr(), None, None).unwrap_err().to_string();
    assert!(error.contains(&format!("the node has the key {}, which is not allowed here", impostor.id)), "{error}");
}

#[test]
fn damaged_tokens_are_not_shown() {
    let text = JoinToken::generate(HOUR).unwrap().to_string();
    for damaged in [&text[1..], &text[..text.len() - 1], &text.replace('-', " "), ""] {
        let error = damaged.parse::<JoinToken>().unwrap_err().to_string();
        assert!(error.contains("this is not a join token"), "{error}");
        assert!(!error.contains(&text[text.len() - 20..text.len() - 1]), "{error}");
    }
    assert_eq!(text.parse::<JoinToken>().unwrap().to_string(), text);
}
