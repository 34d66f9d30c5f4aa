//! Errors of connecting, in words: what happened, and what to do.

use super::admission::NotAdmitted;
use super::profile::NetSettings;
use super::tls::PROTOCOL;
use super::wire::shortened;
use crate::peer::printable;
use anabranch_dsl::{Diagnostic, ErrorKind};
use quinn::{ConnectError, ConnectionError, TransportErrorCode};
use std::net::SocketAddr;

/// TLS alert `no_application_protocol`: the other side speaks another version.
const NO_PROTOCOL: u8 = 120;

/// The start of an error that TLS passes on.
const TLS_PREFIX: &str = "unexpected error: ";

/// An attempt to connect, for its errors.
pub(super) struct Attempt<'a> {
    pub(super) addr: SocketAddr,
    pub(super) settings: &'a NetSettings,
    /// Whether this node dials, or else is dialed.
    pub(super) is_dialing: bool,
}

impl Attempt<'_> {
    fn error(&self, what: impl std::fmt::Display) -> Diagnostic {
        let addr = self.addr;
        match self.is_dialing {
            true => Diagnostic::new(format!("cannot connect to {addr}: {what}")),
            false => Diagnostic::new(format!("a connection from {addr} failed: {what}")),
        }
    }

    /// Returns the error of an attempt that QUIC did not begin.
    pub(super) fn cannot(&self, error: ConnectError) -> Diagnostic {
        match error {
            ConnectError::EndpointStopping => self.error("the network was shut down").of_kind(ErrorKind::Cancelled),
            ConnectError::InvalidRemoteAddress(_) => self
                .error("this address cannot be reached from the address of this node")
                .help("an IPv4 socket reaches IPv4 addresses only, and port 0 is none"),
            error => self.error(error),
        }
    }

    /// Returns the error of an attempt at an address at which no process listens.
    pub(super) fn nobody(&self) -> Diagnostic {
        let error = self.error("no process listens there").of_kind(ErrorKind::Unavailable);
        error.help("is the peer running, with this address?")
    }

    /// Returns the error of an attempt that took too long.
    pub(super) fn no_answer(&self) -> Diagnostic {
        let limit = self.settings.connect_timeout();
        let error = match self.is_dialing {
            true => self
                .error(format!("UDP got no answer within {limit:?}"))
                .help("is the peer running there, and is UDP allowed on the way? firewalls drop it silently"),
            false => self.error(format!("it did not complete within {limit:?}")),
        };
        error.of_kind(ErrorKind::DeadlineExceeded)
    }
}

/// Returns why a connection did not become a link.
pub(super) fn in_words(attempt: &Attempt<'_>, error: NotAdmitted) -> Diagnostic {
    match error {
        NotAdmitted::Refused(why) => attempt.error(why),
        NotAdmitted::Malformed(what) => attempt.error(format!("the other side broke the protocol: {what}")),
        NotAdmitted::Lost(error) => lost(attempt, error),
    }
}

fn lost(attempt: &Attempt<'_>, error: ConnectionError) -> Diagnostic {
    match error {
        ConnectionError::TimedOut => attempt.no_answer(),
        ConnectionError::VersionMismatch => attempt.error("the other side speaks another version of QUIC"),
        ConnectionError::ApplicationClosed(close) => {
            let reason = printable(shortened(&String::from_utf8_lossy(&close.reason)));
            attempt.error(format!("the other side refused: {reason}"))
        }
        // This side found the fault, in the key of the other side for example.
        ConnectionError::TransportError(error) => {
            tls_error(attempt, error.code, &error.reason, "").unwrap_or_else(|| attempt.error(error))
        }
        ConnectionError::ConnectionClosed(close) => {
            let reason = printable(shortened(&String::from_utf8_lossy(&close.reason)));
            if close.error_code == TransportErrorCode::CONNECTION_REFUSED {
                let error = attempt.error("the other side has too many connections");
                return error.of_kind(ErrorKind::ResourceExhausted);
            }
            let told = "the other side refused: ";
            tls_error(attempt, close.error_code, &reason, told).unwrap_or_else(|| attempt.error(close))
        }
        ConnectionError::LocallyClosed => attempt.error("the network was shut down").of_kind(ErrorKind::Cancelled),
        error => attempt.error(error),
    }
}

/// Returns an error of the TLS handshake, if it is one whose cause is known.
fn tls_error(attempt: &Attempt<'_>, code: TransportErrorCode, reason: &str, told: &str) -> Option<Diagnostic> {
    if code == TransportErrorCode::crypto(NO_PROTOCOL) {
        let error = attempt.error(format!("the other side speaks another version of the protocol than {PROTOCOL}"));
        return Some(error.help("install the same version of anabranch on both nodes"));
    }
    let why = reason.strip_prefix(TLS_PREFIX)?;
    let error = attempt.error(format!("{told}{why}"));
    Some(error.help(match (attempt.is_dialing, told.is_empty()) {
        (true, true) => "if the node was set up anew, use its new key; otherwise another node answers at this address",
        (true, false) => "the operator of the other node must allow the key of this one, or give out a join token",
        (false, true) => "allow this key if the node should connect",
        (false, false) => "the other node expects another key at this address: tell its operator the key of this node",
    }))
}
