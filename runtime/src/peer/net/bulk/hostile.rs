//! Bodies of fuzz targets: chunks and credits of a link whose other side breaks the rules.

use super::super::AdmittedBody;
use super::super::wire::{CHUNK, Cancellation, ChunkHeader, Credit, Greeting, TransferHead};
use super::incoming::{AfterChunk, IncomingBodies, IncomingBody};
use super::outgoing::{BodyQueue, OutgoingBody};
use super::{BodyPurpose, OPEN_BYTES, OPEN_TRANSFERS};
use bytes::Bytes;
use std::collections::BTreeSet;

/// The window of the links.
const WINDOW: u64 = 4 * CHUNK;

/// Receives chunks with arbitrary headers, some of which end. Returns whether a body arrived.
///
/// # Panics
/// Panics if more is kept than the limits allow, or if a body arrives that was not sent.
pub(in super::super) fn receive(input: &[u8]) -> bool {
    let mut bodies = IncomingBodies::new(WINDOW, WINDOW);
    let mut has_arrived = false;
    for bytes in input.chunks_exact(ChunkHeader::LEN + 1) {
        // Lengths and numbers that are in use are more likely than others.
        let mut bytes = bytes.to_vec();
        let what = bytes.pop().unwrap_or_default();
        bytes[if what & 1 == 0 { 2 } else { 7 }..9].fill(0);
        bytes[if what & 2 == 0 { 10 } else { 13 }..13].fill(0);
        bytes[if what & 4 == 0 { 16 } else { 18 }..21].fill(0);
        let Ok(mut header) = ChunkHeader::decode(&bytes) else { continue };
        // Memory is not what is tested.
        header.is_test |= header.total > 1 << 16;
        if what & 0x70 == 0x70 {
            let cancelled = Cancellation { transfer: header.transfer, total: header.total, chunks: header.chunk + 1 };
            match bodies.cancel(&cancelled) {
                Ok(_) => drop(bodies.report(None)),
                Err(_) => return has_arrived,
            }
        }
        match receive_chunk(&mut bodies, &header, what & 8 == 0) {
            Ok(arrived) => has_arrived |= arrived,
            // The link ends.
            Err(_) => return has_arrived,
        }
        let (n, sum) = bodies.n_open();
        assert!(n <= OPEN_TRANSFERS as usize && sum <= OPEN_BYTES, "{n} bodies of {sum} bytes");
    }
    has_arrived
}

/// Does what the reader of a chunk does. Returns whether a body has arrived.
fn receive_chunk(bodies: &mut IncomingBodies, header: &ChunkHeader, ends: bool) -> Result<bool, String> {
    if bodies.is_cancelled(header.transfer) {
        return Ok(false);
    }
    bodies.announce(header)?;
    if header.chunk == 0 {
        bodies.begin(header.transfer, header.total)?;
        let head = Bytes::copy_from_slice(&header.transfer.to_le_bytes());
        let admitted = AdmittedBody { element: Some(1), counter: None };
        bodies.open(header, IncomingBody::new(header, head, admitted)?);
    }
    if !bodies.claim(header)? {
        return Ok(false);
    }
    let zeros = [0; 1 << 12];
    let mut at = header.offset();
    while at < header.offset() + header.len() {
        let n = (header.offset() + header.len() - at).min(zeros.len() as u64);
        bodies.write(header.transfer, at, &zeros[..n as usize]);
        at += n;
        bodies.report(None);
    }
    if !ends {
        return Ok(false);
    }
    let AfterChunk::Deliver(_) = bodies.end_chunk(header) else { return Ok(false) };
    bodies.report(Some(header.total));
    Ok(true)
}

/// Sends bodies to a side that reports arbitrary credits. Returns whether it got a whole one.
///
/// # Panics
/// Panics if more is sent than the other side has room for, or other chunks than those of bodies.
pub(in super::super) fn send(input: &[u8]) -> bool {
    let greeting = Greeting { window: WINDOW, open_bytes: OPEN_BYTES, open_transfers: 3, proof: None };
    let mut queue = BodyQueue::new(&greeting, WINDOW);
    let content = Bytes::from_static(&[0; 3 * CHUNK as usize]);
    let (mut sent, mut credit, mut ended) = (Credit::default(), Credit::default(), false);
    let mut cancelled = BTreeSet::new();
    for bytes in input.chunks_exact(3) {
        let number = u64::from(bytes[1]) + (u64::from(bytes[2]) << 8);
        match bytes[0] % 5 {
            0 => {
                let body = content.slice(..(number << 7).min(content.len() as u64) as usize);
                let purpose = BodyPurpose { session: number % 3, step: None };
                let body = OutgoingBody::new(vec![1; 9], number, body, i32::from(bytes[0]) - 128);
                let _ = queue.push(body.for_purpose(purpose));
            }
            1 => {
                let claimed = Credit {
                    bytes: credit.bytes.wrapping_add(number << 6),
                    transfers: credit.transfers.wrapping_add(u64::from(bytes[0] >> 4)),
                    transfer_bytes: credit.transfer_bytes.wrapping_add(number << 6),
                };
                if queue.add_credit(claimed).is_err() {
                    return ended;
                }
                credit = claimed;
            }
            2 => {
                // All that was sent has arrived.
                credit = sent;
                queue.add_credit(credit).expect("it was sent");
            }
            3 => {
                for end in queue.cancel(|purpose| purpose.session == number % 3) {
                    assert!(end.transfer < sent.transfers && end.bytes().is_ok());
                    assert!(cancelled.insert(end.transfer), "a transfer is cancelled once");
                }
            }
            _ => {
                let Some(chunk) = queue.next() else { continue };
                let header = ChunkHeader::decode(&chunk.pieces[0]).expect("the header of a chunk can be read");
                assert!(!cancelled.contains(&header.transfer), "a chunk of a body that was cancelled");
                if header.chunk == 0 {
                    let head = TransferHead::decode(&chunk.pieces[0][ChunkHeader::LEN..]);
                    assert_eq!(head.expect("a transfer has a head").head_len as usize, chunk.pieces[1].len());
                    assert_eq!(header.transfer, sent.transfers);
                    sent.transfers += 1;
                    sent.transfer_bytes += header.total;
                }
                assert_eq!(header.len(), chunk.pieces[2].len() as u64);
                sent.bytes += header.len();
                ended |= header.offset() + header.len() == header.total;
                assert!(sent.bytes - credit.bytes <= WINDOW && sent.transfers - credit.transfers <= 3);
            }
        }
    }
    ended
}
