//! Join tokens: how a node whose key is not known yet shows that it was invited.
//!
//! - A token is a secret with an expiry. It admits one node: the first that proves to know it.
//! - A proof is an HMAC over both node ids and key material of the TLS session, so it is worth
//!   nothing on another connection, and the secret itself never crosses the network.
//! - Both sides prove it. So a node that knows only the token, and not the key of the node that
//!   it joins, cannot be made to join another one.

use super::key::{NodeId, parse_hex};
use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The maximum number of tokens that a node accepts at a time.
const MOST_TOKENS: usize = 64;

const PREFIX: &str = "anabranch-join";

/// A proof that a node knows a token.
pub(super) type Proof = [u8; 32];

/// The context of a proof: who proves it to whom, in which TLS session.
#[derive(Clone, Copy)]
pub(super) struct ProofContext<'a> {
    pub(super) prover: NodeId,
    pub(super) verifier: NodeId,
    /// Key material that only the two ends of this TLS session can export.
    pub(super) session: &'a [u8; 32],
}

impl ProofContext<'_> {
    fn message(&self) -> Vec<u8> {
        let label: &[u8] = b"anabranch join proof";
        [label, self.prover.as_bytes(), self.verifier.as_bytes(), self.session].concat()
    }
}

/// A secret that admits one node whose key is not known yet, until it expires.
///
/// Displayed as one word, to be handed to the operator of the new node.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    secret: [u8; 32],
    /// Seconds since 1970.
    expires: u64,
}

impl JoinToken {
    /// Generates a token that expires after `lifetime`.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn generate(lifetime: Duration) -> Result<JoinToken> {
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).map_err(|_| {
            Diagnostic::new("cannot generate a join token: the system has no random numbers")
                .of_kind(ErrorKind::ResourceExhausted)
        })?;
        Ok(JoinToken { secret, expires: unix_time().saturating_add(lifetime.as_secs()) })
    }

    /// Returns whether the token has expired.
    pub fn is_expired(&self) -> bool {
        self.expires <= unix_time()
    }

    pub(super) fn prove(&self, context: ProofContext<'_>) -> Proof {
        let tag = hmac::sign(&self.key(), &context.message());
        let mut proof = [0; 32];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    pub(super) fn verify(&self, context: ProofContext<'_>, proof: &Proof) -> bool {
        hmac::verify(&self.key(), &context.message(), proof).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.secret)
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}-{:x}-", self.expires)?;
        self.secret.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken(expires: {})", self.expires)
    }
}

impl FromStr for JoinToken {
    type Err = Diagnostic;

    fn from_str(text: &str) -> Result<JoinToken> {
        let parse = || {
            let (expires, secret) = text.strip_prefix(PREFIX)?.strip_prefix('-')?.split_once('-')?;
            Some(JoinToken { secret: parse_hex(secret)?, expires: u64::from_str_radix(expires, 16).ok()? })
        };
        // The text is a secret, even if it is damaged.
        parse().ok_or_else(|| {
            Diagnostic::new("this is not a join token")
                .help(format!("a token is `{PREFIX}-`, its expiry, `-` and 64 hexadecimal digits, without spaces"))
        })
    }
}

fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The tokens that a node accepts, and the nodes that used them.
#[derive(Default)]
pub(super) struct TokenBook {
    entries: Vec<(JoinToken, Option<NodeId>)>,
}

impl TokenBook {
    pub(super) fn add(&mut self, token: JoinToken) -> Result<()> {
        if self.entries.iter().any(|(known, _)| *known == token) {
            return Ok(());
        }
        if self.entries.len() == MOST_TOKENS {
            // Expired tokens are kept while there is room: errors can then say why they fail.
            self.entries.retain(|(token, _)| !token.is_expired());
        }
        if self.entries.len() == MOST_TOKENS {
            return Err(Diagnostic::new(format!("a node accepts at most {MOST_TOKENS} join tokens at a time"))
                .of_kind(ErrorKind::ResourceExhausted));
        }
        self.entries.push((token, None));
        Ok(())
    }

    /// Returns whether no token was given out, so that unknown keys need not be heard.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the token that `proof` shows knowledge of.
    pub(super) fn find(&self, context: ProofContext<'_>, proof: &Proof) -> Option<JoinToken> {
        self.entries.iter().map(|(token, _)| token).find(|token| token.verify(context, proof)).cloned()
    }

    /// Returns the token that `proof` shows knowledge of, now used by the prover.
    pub(super) fn redeem(&mut self, context: ProofContext<'_>, proof: &Proof) -> Result<JoinToken, String> {
        let Some((token, used_by)) = self.entries.iter_mut().find(|(token, _)| token.verify(context, proof)) else {
            return Err("its join token is wrong: it is not one that this node gave out".to_owned());
        };
        if token.is_expired() {
            return Err("its join token has expired: ask for a new one".to_owned());
        }
        match used_by {
            Some(node) if *node != context.prover => {
                Err(format!("its join token was used by node {node}: each node needs a token of its own"))
            }
            _ => {
                *used_by = Some(context.prover);
                Ok(token.clone())
            }
        }
    }
}
