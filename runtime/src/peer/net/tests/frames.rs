//! Frames, their order, and the ends of links.

use super::*;
use crate::peer::net::LinkTestKind;
use crate::peer::net::wire::MAX_FRAME;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn frames_arrive_in_order_both_ways() {
    let (client, server, there, back) = linked_pair();
    let frames: Vec<Vec<u8>> = (0..1000).map(|i| pattern([0, 1, 64, 300, 5000, MAX_FRAME][i % 6], i as u64)).collect();
    for frame in &frames {
        there.send(frame.clone());
        back.send(frame.clone());
    }
    for frame in &frames {
        assert!(server.frame() == *frame && client.frame() == *frame);
    }
    assert_eq!((there.node(), back.node()), (server.id, client.id));
    assert_eq!((there.addr(), back.addr()), (server.addr(), client.addr()));
    // A frame is counted after its event is handled.
    while there.stats().received_frames < 1000 {
        std::thread::yield_now();
    }
    let stats = there.stats();
    assert_eq!((stats.sent_frames, stats.received_frames, stats.queued_bytes), (1000, 1000, 0));
}

#[test]
fn frames_of_one_thread_stay_in_order_beside_those_of_others() {
    let (_client, server, there, _back) = linked_pair();
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let there = &there;
            scope.spawn(move || {
                for i in 0..500_u32 {
                    there.send([thread.to_le_bytes(), i.to_le_bytes()].concat());
                }
            });
        }
    });
    let mut next = [0; 4];
    for _ in 0..2000 {
        let frame = server.frame();
        let number = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().unwrap());
        assert_eq!(number(4), next[number(0) as usize]);
        next[number(0) as usize] += 1;
    }
}

#[test]
fn close_delivers_frames_and_reason_and_reports_the_end_once() {
    let (client, server, there, back) = linked_pair();
    there.send(b"last".to_vec());
    there.close(CloseCode(300), "done with it");
    there.send(b"too late".to_vec());
    there.close(CloseCode(301), "again");
    assert_eq!(server.frame(), b"last");
    assert_eq!(server.lost(), LinkLost::Closed { code: CloseCode(300), reason: "done with it".to_owned() });
    assert_eq!(client.lost(), LinkLost::Local);
    drop((there, back));
    for node in [client, server] {
        drop(node.net);
        drop(node.recorder);
        // Without the net nobody records, so the rest is all there is.
        assert_eq!(node.events.iter().count(), 0);
    }
}

#[test]
fn dropping_a_net_closes_its_links_and_ends_its_thread() {
    let (client, server, there, back) = linked_pair();
    let core = client.net.core_for_tests();
    drop(client.net);
    assert!(matches!(server.lost(), LinkLost::Closed { code: CloseCode::SHUTDOWN, .. }));
    assert!(matches!(client.events.recv(), Ok(NetEvent::Lost(LinkLost::Local))));
    // The thread owned the runtime, whose tasks owned the rest.
    drop((there, back));
    assert!(core.upgrade().is_none());
}

#[test]
fn an_error_of_the_layer_above_is_a_violation() {
    let server = Setup { on_frame: Box::new(|_, _| Err("no such frame".to_owned())), ..Setup::default() }.start();
    let client = Setup::default().start();
    let (there, _back) = link_nodes(&client, &server);
    there.send(b"?".to_vec());
    assert_eq!(server.lost(), LinkLost::Violation("no such frame".to_owned()));
    assert_eq!(client.lost(), LinkLost::Closed { code: CloseCode::VIOLATION, reason: "no such frame".to_owned() });
}

#[test]
fn a_frame_that_is_too_long_is_not_sent() {
    let (client, server, there, _back) = linked_pair();
    there.send(vec![0; MAX_FRAME + 1]);
    assert!(matches!(client.lost(), LinkLost::Violation(what) if what.contains("65537 bytes")));
    assert!(matches!(server.lost(), LinkLost::Closed { code: CloseCode::VIOLATION, .. }));
}

#[test]
fn a_side_that_does_not_read_loses_the_link() {
    let (stop, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let on_frame = move |_: &Link, _: &[u8]| {
        // Returns when the test is over. No layer above should do that.
        let _ = wait.lock().unwrap().recv();
        Ok(())
    };
    let server = Setup { on_frame: Box::new(on_frame), ..Setup::default() }.start();
    let client = Setup::default().start();
    let (there, _back) = link_nodes(&client, &server);
    for _ in 0..2000 {
        there.send(vec![0; MAX_FRAME]);
    }
    assert!(matches!(client.lost(), LinkLost::Violation(what) if what.contains("does not read")));
    assert_eq!(there.stats().queued_bytes, 0);
    drop(stop);
}

#[test]
fn a_sender_that_waits_for_room_keeps_the_link() {
    let (stop, wait) = channel::<()>();
    let (wait, received) = (Mutex::new(wait), AtomicUsize::new(0));
    let (all, all_received) = channel();
    let n = 1000;
    let on_frame = move |_: &Link, _: &[u8]| {
        // Returns when the sender waits.
        let _ = wait.lock().unwrap().recv();
        if received.fetch_add(1, Ordering::Relaxed) + 1 == n {
            all.send(()).unwrap();
        }
        Ok(())
    };
    let server = Setup { on_frame: Box::new(on_frame), ..Setup::default() }.start();
    let client = Setup::default().start();
    let (there, _back) = link_nodes(&client, &server);
    let stop = Mutex::new(Some(stop));
    for _ in 0..n {
        // Called only if there is no room.
        there.wait_for_room(|| {
            drop(stop.lock().unwrap().take());
            false
        });
        there.send(vec![0; MAX_FRAME]);
    }
    assert!(stop.lock().unwrap().is_none(), "the sender has waited");
    all_received.recv_timeout(PATIENCE).unwrap();
    // Who is stopped does not wait.
    let (stop, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let on_frame = move |_: &Link, _: &[u8]| {
        let _ = wait.lock().unwrap().recv();
        Ok(())
    };
    let server = Setup { on_frame: Box::new(on_frame), ..Setup::default() }.start();
    let (there, _back) = link_nodes(&client, &server);
    let waits = std::cell::Cell::new(0);
    for _ in 0..n {
        there.wait_for_room(|| {
            waits.set(waits.get() + 1);
            true
        });
        if waits.get() > 0 {
            break;
        }
        there.send(vec![0; MAX_FRAME]);
    }
    assert_eq!(waits.get(), 1);
    drop(stop);
}

#[test]
fn a_link_test_measures_both_directions() {
    let (client, server, there, back) = linked_pair();
    let report = client.net.test_link(&there, LinkTestKind::Thorough).unwrap();
    assert!(report.latency() > Duration::ZERO && report.bandwidth() > 0.0);
    assert!(report.sent_per_second > 0.0 && report.received_per_second > 0.0);
    assert!(report.to_string().contains(&report.verdict()));
    // Both sides may test at the same time.
    std::thread::scope(|scope| {
        let other = scope.spawn(|| server.net.test_link(&back, LinkTestKind::Thorough));
        client.net.test_link(&there, LinkTestKind::Thorough).unwrap();
        other.join().unwrap().unwrap();
    });
    // The layer above sees nothing of it.
    assert!(client.events.try_recv().is_err());
    there.close(CloseCode(300), "");
    assert!(client.net.test_link(&there, LinkTestKind::Thorough).is_err());
}

#[test]
fn a_timer_calls_on_the_thread_of_the_net() {
    let node = Setup::default().start();
    let (sender, receiver) = channel();
    let call = move || sender.send(std::thread::current().name().map(str::to_owned)).unwrap();
    node.net.after(Duration::from_millis(1), Box::new(call));
    assert_eq!(receiver.recv_timeout(PATIENCE).unwrap().as_deref(), Some("anabranch-net"));
}
