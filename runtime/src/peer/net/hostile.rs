//! Bodies of fuzz targets: what a link reads, and keys and tokens.

use super::bulk::hostile::{receive, send};
use super::wire::{ChunkHeader, ControlFrame, Credit, FrameSplitter, Greeting, TransferHead};
use super::{JoinToken, NodeId, NodeKey};
use bytes::Bytes;
use std::time::Duration;

/// Reads arbitrary bytes as the bytes of a link. Returns whether they follow the rules.
///
/// # Panics
/// Panics if they have two meanings, or bring the link into a wrong state.
pub(crate) fn fuzz_link(input: &[u8]) -> bool {
    let Some((what, rest)) = input.split_first() else { return false };
    match what % 5 {
        0 => control_frame(rest),
        1 => split(rest),
        2 => headers(rest),
        3 => receive(rest),
        _ => send(rest),
    }
}

fn control_frame(bytes: &[u8]) -> bool {
    let Ok(frame) = ControlFrame::decode(bytes) else { return false };
    let encoded = frame.encode();
    let again = ControlFrame::decode(&encoded).expect("a frame that was encoded can be decoded");
    // A reason is shortened and made printable.
    if !matches!(frame, ControlFrame::Closing { .. }) {
        assert_eq!(again, frame);
    }
    let encoded = again.encode();
    assert_eq!(ControlFrame::decode(&encoded).as_ref(), Ok(&again));
    true
}

/// Frames are the same in whatever pieces they arrive.
fn split(bytes: &[u8]) -> bool {
    let Some((&first, rest)) = bytes.split_first() else { return false };
    let frames_in = |len: usize| {
        let (mut splitter, mut frames) = (FrameSplitter::default(), Vec::new());
        let outcome = rest.chunks(len).try_for_each(|piece| {
            splitter.split(Bytes::copy_from_slice(piece), |frame| {
                frames.push(frame.to_vec());
                Ok(())
            })
        });
        (frames, outcome)
    };
    let whole = frames_in(rest.len().max(1));
    let pieces = frames_in(1 + usize::from(first));
    assert_eq!(whole, pieces);
    whole.1.is_ok() && !whole.0.is_empty()
}

fn headers(bytes: &[u8]) -> bool {
    let head = TransferHead::decode(bytes);
    if let Ok(head) = head {
        assert_eq!(TransferHead::decode(&head.encode()), Ok(head));
    }
    let Ok(header) = ChunkHeader::decode(bytes) else { return head.is_ok() };
    assert_eq!(ChunkHeader::decode(&header.encode()), Ok(header));
    assert!(header.offset() + header.len() <= header.total);
    true
}

/// Returns inputs of [`fuzz_link`] that follow the rules.
pub(crate) fn links() -> Vec<Vec<u8>> {
    let greeting = Greeting { window: 1 << 22, open_bytes: 1 << 33, open_transfers: 256, proof: None };
    let frames: Vec<Vec<u8>> = [
        ControlFrame::Application(b"a frame"),
        ControlFrame::Greeting(Greeting { proof: Some([7; 32]), ..greeting.clone() }),
        ControlFrame::Greeting(greeting),
        ControlFrame::Credit(Credit { bytes: 1, transfers: 2, transfer_bytes: 3 }),
        ControlFrame::Ping(4),
        ControlFrame::Pong(5),
        ControlFrame::Closing { code: 6, reason: "a reason".to_owned() },
        ControlFrame::TestRequest { number: 8, bytes: 1 << 20 },
        ControlFrame::TestResult { number: 9, elapsed: Duration::from_millis(1) },
    ]
    .iter()
    .map(ControlFrame::encode)
    .collect();
    let header = |transfer, chunk, total, is_test| ChunkHeader { is_test, transfer, chunk, total }.encode();
    let with = |what: u8, bytes: &[u8]| [&[what], bytes].concat();
    let mut inputs: Vec<Vec<u8>> = frames.iter().map(|frame| with(0, frame)).collect();
    inputs.extend([0, 2, 40].map(|len| with(1, &with(len, &frames.concat()))));
    inputs.push(with(2, &header(3, 1, 5 << 20, false)));
    inputs.push(with(2, &TransferHead { frames_before: 3, head_len: 50 }.encode()));
    // Chunks of two bodies of which one is long, in another order than they were sent.
    let chunks = [(0, 0, 100, 4), (1, 0, 5 << 20, 4), (1, 2, 5 << 20, 4), (1, 1, 5 << 20, 4), (2, 0, 0, 0)];
    let chunks =
        chunks.map(|(transfer, chunk, total, what)| [header(transfer, chunk, total, false), vec![what]].concat());
    inputs.push(with(3, &chunks.concat()));
    // Three bodies, the chunks that fit, credit for them, and the rest.
    let sending =
        [[[0, 0, 200]; 3], [[3, 0, 0]; 3], [[2, 0, 0], [3, 0, 0], [3, 0, 0]], [[1, 1, 0], [2, 0, 0], [3, 0, 0]]];
    inputs.push(with(4, &sending.concat().concat()));
    inputs
}

/// Reads arbitrary bytes as a key or a token. Returns whether they are one.
///
/// # Panics
/// Panics if they have two meanings.
pub(crate) fn fuzz_key(input: &[u8]) -> bool {
    let Some((what, rest)) = input.split_first() else { return false };
    let text = String::from_utf8_lossy(rest);
    match what % 4 {
        0 => text.parse::<NodeId>().is_ok_and(|id| {
            assert_eq!(id.to_string(), text.to_ascii_lowercase());
            true
        }),
        1 => text.parse::<JoinToken>().is_ok_and(|token| {
            let again: JoinToken = token.to_string().parse().expect("a token that is shown can be read");
            assert!(again == token);
            true
        }),
        2 => NodeId::from_spki(rest).is_some_and(|id| {
            assert_eq!(id.to_spki(), rest);
            true
        }),
        _ => NodeKey::from_pkcs8(rest.to_vec()).is_some(),
    }
}

/// Returns inputs of [`fuzz_key`] that are keys or tokens.
pub(crate) fn keys() -> Vec<Vec<u8>> {
    let key = NodeKey::generate().expect("the system has random numbers");
    let token = JoinToken::generate(Duration::from_secs(600)).expect("the system has random numbers");
    let with = |what: u8, bytes: &[u8]| [&[what], bytes].concat();
    let (id, token) = (key.id().to_string(), token.to_string());
    vec![with(0, id.as_bytes()), with(1, token.as_bytes()), with(2, &key.id().to_spki()), with(3, key.pkcs8())]
}
