//! From a TLS session to a link: both sides greet each other, and unknown nodes show a token.
//!
//! - The side that dials greets first. The other side answers only if it admits the node, so the
//!   dialing side knows that it was admitted, or is told why not.
//! - Until then the other side may use one stream and a few kilobytes, for a limited time. Once it
//!   is admitted, it opens the stream of signals.

use super::bulk::{OPEN_BYTES, OPEN_TRANSFERS};
use super::key::NodeId;
use super::link::{Established, FrameLane, lock};
use super::profile::NetSettings;
use super::tls::EXPORT_LABEL;
use super::token::{JoinToken, Proof, ProofContext, TokenBook};
use super::wire::{CHUNK, ControlFrame, Greeting, MAX_BODY, PREFIX, content_len};
use quinn::{Connection, ConnectionError, ReadError, RecvStream, SendStream, WriteError};
use rustls::pki_types::CertificateDer;
use std::sync::Mutex;

/// The longest frame that is read of a greeting.
const LONGEST_GREETING: usize = 256;

/// The reason why a connection does not become a link.
#[derive(Debug)]
pub(super) enum NotAdmitted {
    /// The connection ended.
    Lost(ConnectionError),
    /// The other side broke a rule of the greeting.
    Malformed(String),
    /// This side does not admit the other, for the given reason.
    Refused(String),
}

impl From<ConnectionError> for NotAdmitted {
    fn from(error: ConnectionError) -> NotAdmitted {
        NotAdmitted::Lost(error)
    }
}

impl From<String> for NotAdmitted {
    fn from(what: String) -> NotAdmitted {
        NotAdmitted::Malformed(what)
    }
}

/// Greets the node that this one dialed.
pub(super) async fn greet(
    connection: Connection,
    own: NodeId,
    token: Option<&JoinToken>,
    must_prove_token: bool,
    settings: &NetSettings,
) -> Result<Established, NotAdmitted> {
    let node = node_of(&connection)?;
    let session = session_of(&connection)?;
    let proof = token.map(|token| token.prove(ProofContext { prover: own, verifier: node, session: &session }));
    let send = send_greeting(&connection, own_greeting(settings, proof)).await?;
    let (receive, greeting) = receive_greeting(&connection).await?;
    let is_proven = match (token, &greeting.proof) {
        (Some(token), Some(proof)) => {
            token.verify(ProofContext { prover: node, verifier: own, session: &session }, proof)
        }
        _ => false,
    };
    if must_prove_token && !is_proven {
        return Err(NotAdmitted::Refused(format!("node {node} does not know the join token")));
    }
    let send = open_lanes(&connection, send).await?;
    Ok(Established { connection, node, send, receive, greeting })
}

/// Answers the greeting of a node that dialed this one. `is_allowed` tells whether its key is, or
/// why the node cannot have another link. Returns whether it joined by a token.
pub(super) async fn answer(
    connection: Connection,
    own: NodeId,
    tokens: &Mutex<TokenBook>,
    is_allowed: impl FnOnce(&NodeId) -> Result<bool, String>,
    settings: &NetSettings,
) -> Result<(Established, bool), NotAdmitted> {
    let node = node_of(&connection)?;
    let session = session_of(&connection)?;
    let (receive, greeting) = receive_greeting(&connection).await?;
    let is_allowed = is_allowed(&node).map_err(NotAdmitted::Refused)?;
    let theirs = ProofContext { prover: node, verifier: own, session: &session };
    let token = match &greeting.proof {
        Some(proof) if is_allowed => lock(tokens).find(theirs, proof),
        Some(proof) => Some(lock(tokens).redeem(theirs, proof).map_err(NotAdmitted::Refused)?),
        None if is_allowed => None,
        None => return Err(NotAdmitted::Refused(not_allowed(node))),
    };
    let proof = token.map(|token| token.prove(ProofContext { prover: own, verifier: node, session: &session }));
    connection.set_receive_window(settings.receive_window());
    connection.set_max_concurrent_uni_streams(settings.streams(false));
    let send = send_greeting(&connection, own_greeting(settings, proof)).await?;
    let send = open_lanes(&connection, send).await?;
    Ok((Established { connection, node, send, receive, greeting }, !is_allowed))
}

/// Returns the explanation for a node that is not on the list.
pub(super) fn not_allowed(node: NodeId) -> String {
    format!("node {node} is not allowed here: allow its key, or give it a join token")
}

/// Returns the node whose key the TLS session proved.
pub(super) fn node_of(connection: &Connection) -> Result<NodeId, String> {
    let entity = connection.peer_identity().and_then(|identity| identity.downcast::<Vec<CertificateDer>>().ok());
    let node = entity.as_deref().and_then(|entity| NodeId::from_spki(entity.first()?));
    node.ok_or_else(|| "it did not show an Ed25519 key".to_owned())
}

fn session_of(connection: &Connection) -> Result<[u8; 32], String> {
    let mut session = [0; 32];
    match connection.export_keying_material(&mut session, EXPORT_LABEL, b"") {
        Ok(()) => Ok(session),
        Err(_) => Err("the TLS session exports no key material".to_owned()),
    }
}

fn own_greeting(settings: &NetSettings, proof: Option<Proof>) -> Greeting {
    Greeting { window: settings.bulk_window, open_bytes: OPEN_BYTES, open_transfers: OPEN_TRANSFERS, proof }
}

async fn send_greeting(connection: &Connection, greeting: Greeting) -> Result<SendStream, NotAdmitted> {
    let mut stream = connection.open_uni().await?;
    let written = async {
        stream.set_priority(FrameLane::Control.priority()).map_err(WriteError::from)?;
        stream.write_all(&ControlFrame::Greeting(greeting).encode()).await
    };
    match written.await {
        Ok(()) => Ok(stream),
        Err(WriteError::ConnectionLost(error)) => Err(error.into()),
        Err(error) => Err(NotAdmitted::Malformed(format!("it closed the control stream: {error}"))),
    }
}

/// Opens the streams of frames beside the control stream, and returns all of them.
async fn open_lanes(connection: &Connection, control: SendStream) -> Result<[SendStream; 3], NotAdmitted> {
    let open = async |lane: FrameLane| {
        let stream = connection.open_uni().await?;
        match stream.set_priority(lane.priority()) {
            Ok(()) => Ok(stream),
            Err(error) => Err(NotAdmitted::Malformed(format!("it closed the {lane}: {error}"))),
        }
    };
    let [signals, values] = FrameLane::BESIDE;
    Ok([control, open(signals).await?, open(values).await?])
}

/// Reads the first frame of the first stream, and nothing after it.
async fn receive_greeting(connection: &Connection) -> Result<(RecvStream, Greeting), NotAdmitted> {
    let mut stream = connection.accept_uni().await?;
    let mut frame = Vec::new();
    loop {
        let len = match frame.first_chunk() {
            Some(&prefix) => PREFIX + content_len(prefix)?,
            None => PREFIX,
        };
        if len > LONGEST_GREETING {
            return Err("its greeting is too long".to_owned().into());
        }
        if frame.len() == len && len > PREFIX {
            break;
        }
        match stream.read_chunk(len - frame.len(), true).await {
            Ok(Some(chunk)) => frame.extend_from_slice(&chunk.bytes),
            Ok(None) => return Err("its greeting ended early".to_owned().into()),
            Err(ReadError::ConnectionLost(error)) => return Err(error.into()),
            Err(error) => return Err(format!("its greeting failed: {error}").into()),
        }
    }
    match ControlFrame::decode(&frame)? {
        ControlFrame::Greeting(greeting)
            if greeting.window >= 2 * CHUNK
                && greeting.open_bytes >= 2 * MAX_BODY
                && greeting.open_transfers >= OPEN_TRANSFERS =>
        {
            Ok((stream, greeting))
        }
        ControlFrame::Greeting(_) => Err("its greeting allows too little".to_owned().into()),
        _ => Err("its first frame is no greeting".to_owned().into()),
    }
}
