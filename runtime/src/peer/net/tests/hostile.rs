//! Nodes that break the rules: admitted ones, and strangers.

use super::*;
use crate::peer::net::FrameLane;
use crate::peer::net::tls::{PROTOCOL, Tls};
use crate::peer::net::wire::{
    CHUNK, Cancellation, ChunkHeader, ControlFrame, Credit, Greeting, MAX_BODY, MAX_FRAME, TransferHead,
};
use bytes::Bytes;
use quinn::{ClientConfig, Connection, Endpoint, SendStream};
use tokio::runtime::Runtime;

/// A node that speaks TLS and nothing else, unless told to.
struct Hostile {
    runtime: Runtime,
    connection: Connection,
    _endpoint: Endpoint,
}

impl Hostile {
    fn connect(server: &TestNode, key: &NodeKey) -> Hostile {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
        let tls = Tls::new(key, PROTOCOL).unwrap();
        let config = ClientConfig::new(Arc::new(tls.client(Arc::new(|_| Ok(()))).unwrap()));
        let (endpoint, connection) = runtime.block_on(async {
            let endpoint = Endpoint::client(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
            let connection = endpoint.connect_with(config, server.addr(), "anabranch").unwrap().await.unwrap();
            (endpoint, connection)
        });
        Hostile { runtime, connection, _endpoint: endpoint }
    }

    /// Writes to a new stream, which stays open.
    fn send(&self, pieces: &[Vec<u8>]) -> SendStream {
        self.runtime.block_on(async {
            let mut stream = self.connection.open_uni().await.unwrap();
            for piece in pieces {
                // The other side may have closed the connection before the last piece.
                let _ = stream.write_all(piece).await;
            }
            stream
        })
    }

    /// Drives the connection until the other side closes it.
    fn closed(&self) {
        self.runtime.block_on(self.connection.closed());
    }
}

fn greeting() -> Vec<u8> {
    let greeting = Greeting { window: 64 << 20, open_bytes: 2 * MAX_BODY, open_transfers: 256, proof: None };
    ControlFrame::Greeting(greeting).encode()
}

#[test]
fn one_network_does_not_take_all_places_of_those_who_connect() {
    let mut setup = Setup::default();
    setup.options.max_handshakes = 8;
    setup.options.tokens = vec![crate::peer::net::JoinToken::generate(Duration::from_secs(60)).unwrap()];
    let server = setup.start();
    // Greetings that never come.
    let key = NodeKey::generate().unwrap();
    let _hostile = [(); 2].map(|()| Hostile::connect(&server, &key));
    let from = |address: [u8; 4]| {
        let mut setup = Setup::default();
        setup.options.listen = Some(SocketAddr::from((address, 0)));
        // A connection takes at most half of it.
        setup.options.failure_timeout = Duration::from_secs(4);
        let client = setup.start();
        server.allow(&client);
        client.net.connect(server.addr(), Some(server.id), None).map(drop)
    };
    let error = from([127, 0, 0, 1]).expect_err("its network has no place left").to_string();
    assert!(error.contains("got no answer"), "{error}");
    from([127, 0, 0, 2]).expect("another network has places");
}

/// Connects an allowed node that breaks a rule, and returns how its link ended. The streams that
/// `offence` returns stay open.
fn offend(offence: impl FnOnce(&Hostile, &mut SendStream) -> Vec<SendStream>) -> String {
    let mut setup = Setup::default();
    setup.options.profile = Profile::Lan;
    let server = setup.start();
    let key = NodeKey::generate().unwrap();
    server.recorder.allowed.lock().unwrap().insert(key.id());
    let hostile = Hostile::connect(&server, &key);
    let mut control = hostile.send(&[greeting()]);
    // The streams of chunks are allowed once the node is admitted.
    hostile.runtime.block_on(hostile.connection.accept_uni()).unwrap();
    let lanes = FrameLane::BESIDE.map(|_| hostile.send(&[ControlFrame::Ping(1).encode()]));
    server.linked();
    let streams = offence(&hostile, &mut control);
    hostile.closed();
    drop((lanes, streams));
    match server.lost() {
        LinkLost::Violation(what) => what,
        other => panic!("{other:?}"),
    }
}

fn first_chunk(header: ChunkHeader, bytes: usize) -> [Vec<u8>; 3] {
    [header.encode(), TransferHead { frames_before: 0, head_len: 0 }.encode(), vec![0; bytes]]
}

fn header(transfer: u64, chunk: u32, total: u64) -> ChunkHeader {
    ChunkHeader { is_test: false, transfer, chunk, total }
}

#[track_caller]
fn check(what: String, expected: &str) {
    assert!(what.contains(expected), "{what}");
}

#[test]
fn frames_against_the_rules_end_the_link() {
    type Offence = (&'static str, Vec<u8>);
    let cancel =
        |total: u64, chunks: u32| ControlFrame::Cancelled(Cancellation { transfer: 0, total, chunks }).encode();
    let offences: [Offence; 8] = [
        ("was cancelled after 0 chunks", cancel(10, 0)),
        ("was cancelled after 2 chunks", cancel(10, 2)),
        ("longer than the maximum", (MAX_FRAME as u32 + 1).to_le_bytes().to_vec()),
        ("unknown kind 99", (99_u32 << 24).to_le_bytes().to_vec()),
        ("ends too early", (1 | 3_u32 << 24).to_le_bytes().into_iter().chain([0]).collect()),
        ("a second greeting", greeting()),
        ("bodies that were not sent", ControlFrame::Credit(Credit { bytes: 1, ..Credit::default() }).encode()),
        ("it asked for a test", ControlFrame::TestRequest { number: 0, bytes: u64::MAX }.encode()),
    ];
    for (expected, bytes) in offences {
        let what = offend(|hostile, control| {
            hostile.runtime.block_on(control.write_all(&bytes)).unwrap();
            Vec::new()
        });
        check(what, expected);
    }
    let what = offend(|_, control| {
        control.finish().unwrap();
        Vec::new()
    });
    check(what, "the control stream ended without a reason");
    let what = offend(|_, control| {
        control.reset(0_u32.into()).unwrap();
        Vec::new()
    });
    check(what, "the control stream failed");
}

#[test]
fn chunks_that_are_no_part_of_their_transfer_end_the_link() {
    // Twice the same beginning, while the transfer goes on and after it ended.
    let what = offend(|hostile, _| {
        [0, 0].map(|transfer| hostile.send(&first_chunk(header(transfer, 0, 3 * CHUNK), 0))).into()
    });
    check(what, "transfer 0 began twice");
    let what = offend(|hostile, _| {
        let mut all = hostile.send(&first_chunk(header(0, 0, 10), 10));
        all.finish().unwrap();
        vec![all, hostile.send(&first_chunk(header(0, 0, 10), 10))]
    });
    check(what, "transfer 0 began twice");
    // The same chunk twice, and one of another length than the first says.
    let what = offend(|hostile, _| {
        let first = hostile.send(&first_chunk(header(0, 0, 2 * CHUNK), 0));
        let [second, again] = [1, 1].map(|chunk| hostile.send(&[header(0, chunk, 2 * CHUNK).encode()]));
        vec![first, second, again]
    });
    check(what, "chunk 1 of transfer 0 arrived twice");
    let what = offend(|hostile, _| {
        let first = hostile.send(&first_chunk(header(0, 0, 2 * CHUNK), 0));
        vec![first, hostile.send(&[header(0, 1, 3 * CHUNK).encode()])]
    });
    check(what, "arrived twice or differs");
    // A chunk of a transfer that has ended.
    let what = offend(|hostile, _| {
        let mut all = hostile.send(&first_chunk(header(0, 0, 10), 10));
        all.finish().unwrap();
        vec![all, hostile.send(&[header(0, 1, 2 * CHUNK).encode()])]
    });
    check(what, "a chunk of transfer 0");
    // Out of range, and too long for any body.
    let what = offend(|hostile, _| vec![hostile.send(&[header(0, 2, 2 * CHUNK).encode()])]);
    check(what, "chunk 2 of a body of 4194304 bytes");
    let what = offend(|hostile, _| vec![hostile.send(&[header(0, 0, MAX_BODY + 1).encode()])]);
    check(what, "longer than the maximum");
}

#[test]
fn chunks_of_another_length_than_their_header_says_end_the_link() {
    let what = offend(|hostile, _| {
        let mut stream = hostile.send(&first_chunk(header(0, 0, 10), 9));
        stream.finish().unwrap();
        vec![stream]
    });
    check(what, "a chunk ended early");
    let what = offend(|hostile, _| vec![hostile.send(&first_chunk(header(0, 0, 10), 11))]);
    check(what, "longer than its header says");
    let what = offend(|hostile, _| {
        let head = TransferHead { frames_before: 0, head_len: MAX_FRAME as u32 + 1 };
        vec![hostile.send(&[header(0, 0, 10).encode(), head.encode()])]
    });
    check(what, "the head of a body has 65537 bytes");
}

#[test]
fn more_at_a_time_than_allowed_ends_the_link() {
    // Headers alone, without the bytes that they announce.
    let what = offend(|hostile, _| (0..17).map(|i| hostile.send(&first_chunk(header(i, 0, CHUNK), 0))).collect());
    check(what, "more than 33554432 bytes of bodies on their way");
    let what = offend(|hostile, _| (0..257).map(|i| hostile.send(&first_chunk(header(i, 0, 1), 0))).collect());
    check(what, "more bodies at a time than were allowed");
}

#[test]
fn a_stranger_without_a_token_is_heard_no_longer_than_the_limit() {
    let mut setup = Setup::default();
    setup.options.tokens = vec![crate::peer::net::JoinToken::generate(Duration::from_secs(60)).unwrap()];
    setup.options.failure_timeout = Duration::from_millis(500);
    setup.options.max_handshakes = 1;
    let server = setup.start();
    let key = NodeKey::generate().unwrap();
    // A greeting that never comes takes the only place until the limit.
    let hostile = Hostile::connect(&server, &key);
    let client = Setup::default().start();
    let error = client.net.connect(server.addr(), Some(server.id), None).unwrap_err().to_string();
    assert!(error.contains("too many connections"), "{error}");
    assert!(server.refused().to_string().contains("did not complete within 250ms"));
    hostile.closed();
    // A greeting without a proof, and what is no greeting.
    let hostile = Hostile::connect(&server, &key);
    hostile.send(&[greeting()]);
    hostile.closed();
    assert!(server.refused().to_string().contains("is not allowed here"));
    for (bytes, expected) in [
        (vec![255; 8], "longer than the maximum"),
        (vec![0, 1, 0, 1], "its greeting is too long"),
        (ControlFrame::Ping(1).encode(), "its first frame is no greeting"),
    ] {
        let hostile = Hostile::connect(&server, &key);
        hostile.send(&[bytes]);
        hostile.closed();
        let error = server.refused().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(server.events.try_recv().is_err());
}

#[test]
fn random_bytes_never_panic() {
    let mut lengths = 0..400_usize;
    for seed in 0..20_000 {
        let len = lengths.next().unwrap_or(seed as usize % 64);
        let bytes = pattern(len, seed * 0x9e37_79b9 + 1);
        let _ = ControlFrame::decode(&bytes);
        let _ = ChunkHeader::decode(&bytes);
        let _ = TransferHead::decode(&bytes);
        let mut frames = crate::peer::net::wire::FrameSplitter::default();
        let _ = frames.split(Bytes::from(bytes), |frame| ControlFrame::decode(frame).map(drop));
    }
}
