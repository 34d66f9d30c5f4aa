//! The state of peers.

use crate::CommandError;
use crate::arguments::{CommandLine, UsageError};
use crate::keys::{UserKey, path_of_key};
use crate::peer::{profile_of, seconds_of};
use anabranch::peers::{JoinToken, NodeKey, PeerAddress, PeerStatus};
use std::process::ExitCode;
use std::time::Duration;

pub(crate) const USAGE: &str = "\
usage: anabranch status PEER... [OPTION]...

Prints the state of each PEER, which is KEY@HOST:PORT, and how fast the link to it is, with a
verdict. The exit status is 1 if a peer did not answer.

  --key PATH          the key with which this program proves who it is; by default that of this
                      user's sessions
  --token TOKEN       a join token, for peers that do not allow the key
  --profile PROFILE   the kind of network: loopback, lan (the default) or wan
  --timeout SECONDS   how long a peer may take to answer; by default 10
  --no-link-test      does not test the link, which sends up to some 50 MB in a fraction of a second
";

pub(crate) fn run(mut given: CommandLine) -> Result<ExitCode, CommandError> {
    let profile = profile_of(&mut given)?;
    let timeout = seconds_of(&mut given, "--timeout")?.unwrap_or(Duration::from_secs(10));
    let token = given.option::<JoinToken>("--token")?;
    let ask = if given.has("--no-link-test") { PeerStatus::ask } else { PeerStatus::ask_and_test_link };
    let key = path_of_key(&mut given, UserKey::Session)?;
    let mut peers = Vec::new();
    while let Some(peer) = given.positional() {
        let peer: PeerAddress = peer.parse()?;
        peers.push(match &token {
            Some(token) => peer.with_token(token.clone()),
            None => peer,
        });
    }
    given.end()?;
    if peers.is_empty() {
        return Err(UsageError("the address of a peer is missing: KEY@HOST:PORT".to_owned()).into());
    }
    let key = NodeKey::load_or_generate(key)?;
    let mut code = ExitCode::SUCCESS;
    for peer in peers {
        match ask(&key, &peer, profile, timeout) {
            Ok(status) => crate::write_out(&format!("{}\n{status}\n", peer.without_token()))?,
            Err(error) => {
                eprintln!("{error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
