//! Bodies: all lengths, both directions, order and limits.

use super::*;
use crate::peer::net::wire::CHUNK;
use crate::peer::net::{BodyPurpose, LinkTestKind};
use bytes::Bytes;

#[test]
fn bodies_of_all_lengths_arrive() {
    let (_client, server, there, _back) = linked_pair();
    let chunk = CHUNK as usize;
    for (i, len) in [0, 1, 5000, chunk - 1, chunk, chunk + 1, 20_000_000].into_iter().enumerate() {
        let body = pattern(len, i as u64);
        there.send_bulk(vec![i as u8; i * 1000], body.clone().into(), 0, None);
        assert!(
            matches!(server.next(), NetEvent::Begins(head, total) if head.len() == i * 1000 && total == len as u64)
        );
        let (head, received) = server.body();
        assert!(head == vec![i as u8; i * 1000] && received == body, "{len} bytes");
    }
}

#[test]
fn bodies_and_frames_go_both_ways_at_once() {
    let (client, server, there, back) = linked_pair();
    let body = Bytes::from(pattern(7_000_000, 1));
    for i in 0..10_u8 {
        for link in [&there, &back] {
            link.send_bulk(vec![i], body.clone(), i32::from(i % 3), None);
            link.send(vec![i]);
        }
    }
    for node in [&client, &server] {
        let (mut frames, mut bodies) = (Vec::new(), Vec::new());
        while bodies.len() < 10 || frames.len() < 10 {
            match node.next() {
                NetEvent::Frame(head) => frames.extend(head),
                NetEvent::Bulk(head, received) => {
                    assert!(received == body);
                    bodies.extend(head);
                }
                NetEvent::Begins(..) => {}
                other => panic!("{other:?}"),
            }
        }
        bodies.sort();
        assert_eq!((frames, bodies), ((0..10).collect(), (0..10).collect()));
    }
}

#[test]
fn bodies_pass_between_all_kinds_of_networks() {
    let start = |profile| {
        let mut setup = Setup::default();
        setup.options.profile = profile;
        setup.start()
    };
    let profiles = [Profile::Loopback, Profile::Lan, Profile::Wan];
    for (near, far) in profiles.into_iter().flat_map(|near| profiles.map(|far| (near, far))) {
        let (client, server) = (start(near), start(far));
        let (there, _back) = link_nodes(&client, &server);
        // Those below are reported only with others.
        let lens = [vec![12_000_000], vec![200_000; 60]].concat();
        let body = Bytes::from(pattern(lens[0], 1));
        lens.iter().for_each(|&len| there.send_bulk(Vec::new(), body.slice(..len), 0, None));
        let mut arrived: Vec<usize> = lens.iter().map(|_| server.body().1.len()).collect();
        arrived.sort();
        arrived.reverse();
        assert_eq!(arrived, lens, "from {near} to {far}");
    }
}

#[test]
fn many_small_bodies_arrive() {
    let (_client, server, there, _back) = linked_pair();
    for i in 0..3000_u32 {
        there.send_bulk(i.to_le_bytes().to_vec(), pattern(9000, u64::from(i)).into(), 0, None);
    }
    let mut arrived = vec![false; 3000];
    for _ in 0..3000 {
        let (head, body) = server.body();
        let i = u32::from_le_bytes(head.try_into().unwrap());
        assert!(body == pattern(9000, u64::from(i)));
        assert!(!std::mem::replace(&mut arrived[i as usize], true));
    }
}

#[test]
fn no_body_overtakes_the_frames_before_it() {
    let (_client, server, there, _back) = linked_pair();
    for i in 0..200_u8 {
        there.send(vec![i; 3000]);
        there.send_bulk(vec![i], Bytes::from_static(&[1; 100]), 5, None);
    }
    let (mut frames, mut bodies) = (0, 0);
    while bodies < 200 {
        match server.next() {
            NetEvent::Frame(_) => frames += 1,
            NetEvent::Begins(head, _) => assert!(u32::from(head[0]) < frames),
            NetEvent::Bulk(..) => bodies += 1,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_body_that_the_layer_above_rejects_is_a_violation() {
    let server = Setup { on_begin: Box::new(|_, _| Err("too large for me".to_owned())), ..Setup::default() }.start();
    let client = Setup::default().start();
    let (there, _back) = link_nodes(&client, &server);
    there.send_bulk(Vec::new(), vec![0; 1 << 20].into(), 0, None);
    assert_eq!(server.lost(), LinkLost::Violation("too large for me".to_owned()));
    assert!(matches!(client.lost(), LinkLost::Closed { code: CloseCode::VIOLATION, .. }));
}

#[test]
fn cancelling_while_bodies_are_sent_does_not_stop_later_ones() {
    let (_client, server, there, _back) = linked_pair();
    let body = Bytes::from(vec![1; 3_000_000]);
    let of = |session| Some(BodyPurpose { session, step: None });
    std::thread::scope(|scope| {
        for session in 0..2 {
            let (there, body) = (&there, &body);
            scope.spawn(move || {
                for i in 0..10_000 {
                    let len = if i % 50 == 0 { 3_000_000 } else { 100 };
                    there.send_bulk(vec![0], body.slice(..len), i % 2, of(session));
                    there.cancel_bodies(|purpose| purpose.session == session);
                }
            });
        }
    });
    there.send_bulk(vec![1], Bytes::from_static(&[7; 100]), -1, of(2));
    while server.body().0 != [1] {}
    assert_eq!(there.stats().queued_bodies, 0);
}

#[test]
fn both_sides_of_a_link_can_test_it_at_once() {
    let (client, server, there, back) = linked_pair();
    std::thread::scope(|scope| {
        let ends = [(&client.net, &there), (&server.net, &back), (&client.net, &there), (&server.net, &back)];
        let tests = ends.map(|(net, link)| scope.spawn(move || net.test_link(link, LinkTestKind::Thorough)));
        for test in tests {
            let report = test.join().expect("a test does not panic").expect("the link is up");
            assert!(report.sent_per_second > 0.0 && report.received_per_second > 0.0, "{report}");
        }
    });
}

#[test]
fn closing_drops_bodies_that_wait() {
    let (client, server, there, back) = linked_pair();
    let body = Bytes::from(vec![1; 50_000_000]);
    for _ in 0..5 {
        there.send_bulk(Vec::new(), body.clone(), 0, None);
    }
    there.close(CloseCode(300), "enough");
    assert_eq!(client.lost(), LinkLost::Local);
    assert_eq!(server.lost(), LinkLost::Closed { code: CloseCode(300), reason: "enough".to_owned() });
    drop((client, server, there, back));
    assert!(body.is_unique());
}
