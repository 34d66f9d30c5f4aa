//! Links over a simulated network, in virtual time: loss, reordering, duplicates, cuts, slow lines.

use super::*;
use crate::peer::net::endpoint::NetCore;
use crate::peer::net::link::Established;
use crate::peer::net::profile::NetSettings;
use crate::peer::net::simulation::{Network, Weather, pass, simulate, timed};
use crate::peer::net::tls::{PROTOCOL, Tls};
use crate::peer::net::wire::{ControlFrame, FrameSplitter};
use crate::peer::net::{BodyPurpose, FrameLane, admission};
use bytes::Bytes;
use quinn::{Connection, Endpoint, EndpointConfig, ServerConfig};

/// A node on a simulated network.
struct SimulatedNode {
    core: Arc<NetCore>,
    addr: SocketAddr,
    recorder: Arc<EventRecorder>,
    events: Receiver<NetEvent>,
    id: NodeId,
}

impl SimulatedNode {
    fn start(network: &Network, port: u16, profile: Profile) -> SimulatedNode {
        let (sender, events) = channel();
        let recorder = Arc::new(EventRecorder {
            allowed: Mutex::default(),
            events: Mutex::new(sender),
            on_frame: Box::new(|_, _| Ok(())),
            on_begin: Box::new(|_, _| Ok(())),
        });
        let key = NodeKey::generate().unwrap();
        let options = NetOptions { profile, ..NetOptions::default() };
        let events_of: Arc<dyn NetEvents> = recorder.clone();
        let (core, addr) = network.start(port, &key, options, events_of);
        SimulatedNode { core, addr, recorder, events, id: key.id() }
    }

    /// Returns the next event, within a virtual minute.
    async fn next(&self) -> NetEvent {
        for _ in 0..600_000 {
            if let Ok(event) = self.events.try_recv() {
                return event;
            }
            pass(Duration::from_micros(100)).await;
        }
        panic!("no event in a minute");
    }

    async fn linked(&self) -> Link {
        match self.next().await {
            NetEvent::Connected(link) => link,
            other => panic!("{other:?} instead of a link"),
        }
    }

    async fn lost(&self) -> LinkLost {
        loop {
            if let NetEvent::Lost(why) = self.next().await {
                return why;
            }
        }
    }
}

/// Two linked nodes on a network, and the link as each of them has it.
async fn pair(network: &Network, profile: Profile) -> (SimulatedNode, SimulatedNode, Link, Link) {
    let [client, server] = [1, 2].map(|port| SimulatedNode::start(network, port, profile));
    server.recorder.allowed.lock().unwrap().insert(client.id);
    let there = client.core.connect(server.addr, Some(server.id), None).await.unwrap();
    client.linked().await;
    let back = server.linked().await;
    (client, server, there, back)
}

/// The first byte of a frame that a test sends beside the control stream.
const BESIDE: u8 = 255;

/// Returns a network that loses and reorders packets.
fn bad_weather(seed: u64) -> Weather {
    // In some networks many packets arrive twice, in some all of them.
    let duplicates = [0.0, 0.2, 1.0][seed as usize % 3];
    let bad = Weather { jitter: Duration::from_millis(5), loss: 0.03, duplicates, ..Weather::FAIR };
    if seed < 6 {
        return bad;
    }
    let mut random = seed;
    let mut below = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    Weather {
        delay: Duration::from_micros(100 + below(30_000)),
        jitter: Duration::from_micros(below(20_000)),
        loss: 0.01 + below(70) as f64 / 1_000.0,
        rate: [2e6, 2e7, 1e9][below(3) as usize],
        mtu: [1_252, 1_472, 9_000][below(3) as usize],
        ..bad
    }
}

/// `ANABRANCH_SLOW=1` runs 60 networks.
#[test]
fn frames_of_all_lanes_and_bodies_arrive_over_bad_networks() {
    let n = if std::env::var_os("ANABRANCH_SLOW").is_some() { 60 } else { 6 };
    for seed in 0..n {
        let bad = bad_weather(seed);
        simulate(async {
            let network = Network::new(seed, bad);
            let (client, server, there, back) = pair(&network, Profile::Wan).await;
            for i in 0..40_u8 {
                for link in [&there, &back] {
                    link.send(vec![i; usize::from(i) * 100]);
                    link.send_beside(&[BESIDE, i], FrameLane::Signals);
                    let value = [&[BESIDE, i, 0][..], &vec![i; usize::from(i) * 200]].concat();
                    link.send_beside(&value, FrameLane::Values);
                    let body = pattern(usize::from(i) * 9000, u64::from(i));
                    link.send_bulk(vec![i], body.into(), i32::from(i % 4), None);
                }
            }
            for node in [&client, &server] {
                let (mut frames, mut signals, mut values, mut bodies) = (0, 0, 0, [false; 40]);
                while frames < 40 || signals < 40 || values < 40 || bodies.contains(&false) {
                    match node.next().await {
                        NetEvent::Frame(signal) if signal[..] == [BESIDE, signals] => signals += 1,
                        NetEvent::Frame(value) if value.starts_with(&[BESIDE, values, 0]) => {
                            assert_eq!(value[3..], vec![values; usize::from(values) * 200]);
                            values += 1;
                        }
                        NetEvent::Frame(frame) => {
                            assert_eq!(frame, vec![frames; usize::from(frames) * 100]);
                            frames += 1;
                        }
                        // Frames 0 to i were sent before body i.
                        NetEvent::Begins(head, _) => assert!(head[0] < frames),
                        NetEvent::Bulk(head, body) => {
                            assert!(body == pattern(usize::from(head[0]) * 9000, u64::from(head[0])));
                            assert!(!std::mem::replace(&mut bodies[usize::from(head[0])], true));
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            assert!(there.stats().lost_packets > 0, "{bad:?}");
            assert_eq!(network.duplicated() > 100, bad.duplicates > 0.0, "{bad:?}");
            // A packet that arrives twice is received once.
            pass(Duration::from_secs(1)).await;
            for node in [&client, &server] {
                if let Ok(event) = node.events.try_recv() {
                    panic!("{event:?} arrives twice");
                }
            }
        });
    }
}

#[test]
fn a_dead_node_is_found_within_six_seconds() {
    // Both directions cut, or only one of them.
    for cut in [[true, true], [true, false], [false, true]] {
        simulate(async {
            let network = Network::new(1, Weather::FAIR);
            let (client, server, there, _back) = pair(&network, Profile::Lan).await;
            let ends = [client.addr, server.addr];
            pass(Duration::from_secs(100)).await;
            assert!(client.events.try_recv().is_err() && server.events.try_recv().is_err(), "an idle link stays");
            network.cut_off(&ends.into_iter().zip(cut).filter(|(_, cut)| *cut).map(|(end, _)| end).collect::<Vec<_>>());
            // Who hears nothing finds out. The other still hears it until then.
            let (deaf, other) = if cut[0] { (&client, &server) } else { (&server, &client) };
            let (lost, after) = timed(deaf.lost()).await;
            assert_eq!(lost, LinkLost::TimedOut);
            assert!(after > Duration::from_secs(4) && after < Duration::from_secs(6), "{after:?}");
            let (lost, later) = timed(other.lost()).await;
            assert_eq!(lost, LinkLost::TimedOut);
            assert!(after + later < Duration::from_secs(if cut[0] && cut[1] { 6 } else { 10 }), "{after:?} {later:?}");
            // Nothing happens, and nothing is kept.
            there.send(vec![1; 1000]);
            there.send_bulk(Vec::new(), Bytes::from(vec![1; 1000]), 0, None);
            there.close(CloseCode(300), "");
            assert_eq!(there.stats().queued_bytes, 0);
        });
    }
}

#[test]
fn a_short_outage_does_not_end_a_link() {
    simulate(async {
        let network = Network::new(1, Weather::FAIR);
        let (client, server, there, _back) = pair(&network, Profile::Lan).await;
        network.cut_off(&[client.addr, server.addr]);
        there.send(vec![1]);
        there.send_bulk(vec![2], pattern(5_000_000, 3).into(), 0, None);
        // Each probe waits twice as long as the one before, so the next may come after 3 s.
        pass(Duration::from_millis(1500)).await;
        assert!(server.events.try_recv().is_err());
        network.cut_off(&[]);
        assert!(matches!(server.next().await, NetEvent::Frame(frame) if frame == [1]));
        assert!(matches!(server.next().await, NetEvent::Begins(..)));
        assert!(matches!(server.next().await, NetEvent::Bulk(_, body) if body == pattern(5_000_000, 3)));
    });
}

#[test]
fn connecting_without_an_answer_ends_in_time() {
    simulate(async {
        let network = Network::new(1, Weather::FAIR);
        let [client, server] = [1, 2].map(|port| SimulatedNode::start(&network, port, Profile::Lan));
        // Also if only the answers are lost.
        for cut in [server.addr, client.addr] {
            network.cut_off(&[cut]);
            let (result, after) = timed(client.core.connect(server.addr, Some(server.id), None)).await;
            assert!(result.unwrap_err().to_string().contains("UDP got no answer within 5s"));
            assert!(after < Duration::from_secs(6), "{after:?}");
        }
    });
}

/// A line of 100 Mbit/s and 5 ms, whose queue is as long as the line.
const SLOW: Weather = Weather { delay: Duration::from_millis(5), rate: 12.5e6, queue: 125e3, ..Weather::FAIR };

#[test]
fn frames_do_not_wait_behind_bodies() {
    simulate(async {
        let (_client, server, there, _back) = pair(&Network::new(1, SLOW), Profile::Lan).await;
        there.send_bulk(Vec::new(), vec![1; 50_000_000].into(), 0, None);
        assert!(matches!(server.next().await, NetEvent::Begins(..)));
        let mut worst = Duration::ZERO;
        for i in 0..50_u8 {
            pass(Duration::from_millis(20)).await;
            there.send(vec![i]);
            let (event, after) = timed(server.next()).await;
            assert!(matches!(event, NetEvent::Frame(frame) if frame == [i]), "the body needs four seconds");
            worst = worst.max(after);
        }
        // A trip and the queue take 15 ms, a chunk of the body 160 ms.
        assert!(worst < Duration::from_millis(50), "{worst:?}");
    });
}

/// Links a node with one that reads only what the test reads. Returns the connection and the
/// streams of that one, too.
async fn link_with_lazy_reader(network: &Network, client: &SimulatedNode) -> (Link, Endpoint, Connection, Established) {
    let (key, settings) = (NodeKey::generate().unwrap(), NetSettings::new(Profile::Lan, Duration::from_secs(10)));
    let tls = Tls::new(&key, PROTOCOL).unwrap();
    let mut server = ServerConfig::with_crypto(Arc::new(tls.server(Arc::new(|_| Ok(()))).unwrap()));
    server.transport_config(Arc::new(settings.transport(true)));
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(settings.max_mtu).unwrap();
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = Endpoint::new_with_abstract_socket(config, Some(server), network.open(9), runtime).unwrap();
    let addr = endpoint.local_addr().unwrap();
    let (id, listening) = (key.id(), endpoint.clone());
    let answered = tokio::spawn(async move {
        let connection = listening.accept().await.unwrap().await.unwrap();
        let answer = admission::answer(connection.clone(), id, &Mutex::default(), |_| Ok(true), &settings).await;
        (connection, answer.unwrap().0)
    });
    let link = client.core.connect(addr, Some(id), None).await.unwrap();
    let (connection, established) = answered.await.unwrap();
    (link, endpoint, connection, established)
}

#[test]
fn signals_pass_while_all_else_waits_for_the_reader() {
    simulate(async {
        let network = Network::new(1, Weather::FAIR);
        let client = SimulatedNode::start(&network, 1, Profile::Lan);
        let (link, _endpoint, connection, established) = link_with_lazy_reader(&network, &client).await;
        (0..160).for_each(|_| link.send(vec![1; 50_000]));
        (0..160).for_each(|_| link.send_beside(&[1; 50_000], FrameLane::Values));
        link.send_bulk(Vec::new(), vec![1; 100_000_000].into(), 0, None);
        pass(Duration::from_secs(2)).await;
        let stuck = link.stats();
        assert!(stuck.queued_bytes > 1_000_000 && stuck.sent_bytes > 30_000_000, "{stuck:?}");
        pass(Duration::from_secs(2)).await;
        assert_eq!(link.stats().queued_bytes, stuck.queued_bytes, "nothing is read");

        // The stream of signals is the next after the control stream.
        let mut signals = connection.accept_uni().await.unwrap();
        let mut splitter = FrameSplitter::default();
        for i in 0..100_u8 {
            pass(Duration::from_millis(50)).await;
            link.send_beside(&[i], FrameLane::Signals);
            let (chunk, after) = timed(signals.read_chunk(usize::MAX, true)).await;
            let mut received = Vec::new();
            let collect = |frame: &[u8]| {
                received.push(ControlFrame::decode(frame)? == ControlFrame::Application(&[i]));
                Ok(())
            };
            splitter.split(chunk.unwrap().unwrap().bytes, collect).unwrap();
            assert_eq!(received, [true]);
            assert!(after < Duration::from_millis(5), "a trip takes 1 ms, not {after:?}");
        }
        assert_eq!(link.stats().queued_bytes, stuck.queued_bytes, "nothing else was read");
        drop(established);
    });
}

#[test]
fn frames_of_the_control_stream_overtake_values() {
    simulate(async {
        let (_client, server, there, _back) = pair(&Network::new(1, SLOW), Profile::Lan).await;
        (0..160).for_each(|_| there.send_beside(&[1; 50_000], FrameLane::Values));
        assert!(there.stats().queued_bytes > 1_000_000);
        there.send(vec![2]);
        let mut values = 0;
        loop {
            match server.next().await {
                NetEvent::Frame(frame) if frame == [2] => break,
                NetEvent::Frame(_) => values += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(values < 80, "{values} of 160 values came before");
    });
}

#[test]
fn bodies_of_higher_priority_overtake_others() {
    simulate(async {
        let (_client, server, there, _back) = pair(&Network::new(1, SLOW), Profile::Lan).await;
        for (name, priority, len) in [(0, 0, 20_000_000), (1, -5, 3_000_000), (2, 7, 3_000_000), (3, 7, 3_000_000)] {
            there.send_bulk(vec![name], vec![name; len].into(), priority, None);
            if name == 0 {
                assert!(matches!(server.next().await, NetEvent::Begins(..)));
            }
        }
        let mut order = Vec::new();
        while order.len() < 4 {
            if let NetEvent::Bulk(head, _) = server.next().await {
                order.extend(head);
            }
        }
        assert_eq!(order, [2, 3, 0, 1]);
    });
}

/// A line of 1 Mbit/s.
const VERY_SLOW: Weather = Weather { delay: Duration::from_millis(20), rate: 125e3, queue: 50e3, ..Weather::FAIR };

#[test]
fn bodies_that_are_cancelled_give_way_to_others_and_to_their_memory() {
    simulate(async {
        let (_client, server, there, _back) = pair(&Network::new(1, VERY_SLOW), Profile::Lan).await;
        let of = |step| Some(BodyPurpose { session: 1, step: Some(step) });
        let body = Bytes::from(vec![1; 12_000_000]);
        // QUIC takes all of the first two, which need three minutes. The third waits.
        for head in 0..5_u8 {
            there.send_bulk(vec![head], body.clone(), 0, of(u64::from(head / 4)));
        }
        assert!(matches!(server.next().await, NetEvent::Begins(head, 12_000_000) if head == [0]));
        pass(Duration::from_secs(5)).await;
        there.cancel_bodies(|purpose| purpose.session == 1);
        assert_eq!(there.stats().queued_bodies, 0);
        assert!(matches!(server.next().await, NetEvent::Cancelled(head, 12_000_000) if head == [0]));
        pass(Duration::from_secs(2)).await;
        assert!(body.is_unique(), "nothing holds a body that was cancelled");
        // All room is free again: more bodies than may be open at a time, and one of many bytes.
        for i in 0..300 {
            there.send_bulk(vec![0], pattern(100, i).into(), 0, of(2));
        }
        there.send_bulk(vec![1], vec![1; 200_000].into(), 0, of(2));
        let all = async {
            let mut arrived = 0;
            while arrived < 301 {
                match server.next().await {
                    NetEvent::Bulk(..) => arrived += 1,
                    NetEvent::Begins(..) => {}
                    other => panic!("{other:?}"),
                }
            }
        };
        let ((), after) = timed(all).await;
        assert!(after < Duration::from_secs(5), "{after:?}");
        // Those that have arrived cannot be cancelled.
        there.cancel_bodies(|_| true);
        there.send(vec![7]);
        assert!(matches!(server.next().await, NetEvent::Frame(frame) if frame == [7]));
    });
}

#[test]
fn cancelling_over_a_bad_network_breaks_no_rule() {
    for seed in 0..10 {
        simulate(async {
            let jitter = Duration::from_millis(5);
            let weather = Weather { rate: 2e6, queue: 100e3, jitter, loss: 0.03, duplicates: 0.1, ..Weather::FAIR };
            let (_client, server, there, _back) = pair(&Network::new(seed, weather), Profile::Lan).await;
            for round in 0..20_u64 {
                let purpose = Some(BodyPurpose { session: round % 2, step: None });
                let len = [100, 70_000, 5_000_000][(round + seed) as usize % 3];
                there.send_bulk(vec![round as u8], pattern(len, round).into(), (round % 3) as i32, purpose);
                pass(Duration::from_millis(50 * (round % 7))).await;
                if round % 5 == seed % 5 {
                    there.cancel_bodies(|purpose| purpose.session == 0);
                }
            }
            there.send_bulk(vec![99], pattern(50_000, 99).into(), -9, None);
            let mut arrived = Vec::new();
            while !arrived.contains(&99) {
                match server.next().await {
                    NetEvent::Bulk(head, body) => {
                        assert!(body == pattern(body.len(), head[0].into()), "it arrives as it was");
                        arrived.push(head[0]);
                    }
                    NetEvent::Begins(..) | NetEvent::Cancelled(..) => {}
                    other => panic!("{other:?}"),
                }
            }
            let kept = (0..20).filter(|round| round % 2 == 1).filter(|round| arrived.contains(round)).count();
            assert!(kept >= 9, "those of the other session arrive: {arrived:?}");
        });
    }
}

#[test]
fn packets_grow_to_what_the_network_takes() {
    for (mtu, profile, least) in [(8972, Profile::Lan, 8900), (1472, Profile::Lan, 1400), (1472, Profile::Wan, 1452)] {
        simulate(async {
            let weather = Weather { mtu, ..Weather::FAIR };
            let (_client, server, there, _back) = pair(&Network::new(1, weather), profile).await;
            there.send_bulk(Vec::new(), vec![1; 10_000_000].into(), 0, None);
            while !matches!(server.next().await, NetEvent::Bulk(..)) {}
            pass(Duration::from_secs(2)).await;
            let found = usize::from(there.stats().mtu);
            assert!((least..=mtu).contains(&found), "{found}");
        });
    }
}

#[test]
fn a_body_that_never_ends_ends_the_link() {
    simulate(async {
        let network = Network::new(1, Weather::FAIR);
        let (_client, server, there, _back) = pair(&network, Profile::Lan).await;
        // The first chunk of two, from a stream that the link knows nothing of.
        let header = super::super::wire::ChunkHeader { is_test: false, transfer: 0, chunk: 0, total: 3_000_000 };
        let head = super::super::wire::TransferHead { frames_before: 0, head_len: 0 };
        let mut stream = there.0.connection.open_uni().await.unwrap();
        stream.write_all(&[header.encode(), head.encode()].concat()).await.unwrap();
        assert!(matches!(server.next().await, NetEvent::Begins(..)));
        let (lost, after) = timed(server.lost()).await;
        assert_eq!(lost, LinkLost::Violation("a body began and did not end".to_owned()));
        assert!(after < Duration::from_secs(25), "{after:?}");
    });
}

#[test]
fn time_limits_follow_from_the_failure_timeout() {
    for profile in [Profile::Loopback, Profile::Lan, Profile::Wan] {
        for seconds in [1, 10, 60] {
            let settings = NetSettings::new(profile, Duration::from_secs(seconds));
            assert!(2 * settings.keep_alive() < settings.idle_timeout());
            assert!(settings.idle_timeout() + settings.keep_alive() < settings.failure_timeout.mul_f64(0.6));
            assert!(settings.connect_timeout() < settings.failure_timeout);
            assert!(settings.to_string().starts_with(&format!("profile {profile}: ")));
        }
    }
}
