//! Measurements of links beside bare QUIC with the same settings, in one run. Build it in release
//! mode: `cargo test --release -p anabranch-runtime --features peers net::measure -- --ignored
//! --nocapture`. The profile is `loopback`, or that in `ANABRANCH_PROFILE`.
//!
//! Both ends are in this process, each with a thread of its own, so processor time counts both.

use super::super::body::BodyBuffer;
use super::AdmittedBody;
use super::bare::BareQuic;
use super::profile::NetSettings;
use super::{Link, LinkLost, LinkTestKind, Net, NetEvents, NetOptions, NodeId, NodeKey, Profile};
use bytes::Bytes;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PINGS: usize = 1000;
const ROUNDS: usize = 9;

/// Answers frames, and counts what arrives.
struct Meter {
    is_server: bool,
    pongs_left: AtomicUsize,
    arrived: SyncSender<()>,
    /// The body that the client sends for each answer, instead of a frame.
    body: Mutex<Option<Bytes>>,
}

impl NetEvents for Meter {
    fn allows(&self, _: &NodeId) -> bool {
        true
    }

    fn connected(&self, _: &Link) {}

    fn frame(&self, link: &Link, head: &[u8]) -> Result<(), String> {
        if self.is_server {
            link.send(head.to_vec());
        } else if self.pongs_left.load(Ordering::Relaxed) > 1 {
            self.pongs_left.fetch_sub(1, Ordering::Relaxed);
            match &*self.body.lock().unwrap() {
                Some(body) => link.send_bulk(head.to_vec(), body.clone(), 0, None),
                None => link.send(head.to_vec()),
            }
        } else {
            let _ = self.arrived.send(());
        }
        Ok(())
    }

    fn bulk_begins(&self, _: &Link, _: &[u8], _: u64) -> Result<AdmittedBody, String> {
        Ok(AdmittedBody { element: Some(1), counter: None })
    }

    fn bulk(&self, link: &Link, head: &[u8], body: BodyBuffer) -> Result<(), String> {
        assert_eq!(body.bytes().last(), Some(&7));
        link.send(head.to_vec());
        Ok(())
    }

    fn lost(&self, _: &Link, _: LinkLost) {}
}

fn meter(profile: Profile, is_server: bool) -> (Arc<Net>, Arc<Meter>, Receiver<()>, NodeId) {
    let (arrived, arrivals) = sync_channel(1);
    let meter = Arc::new(Meter { is_server, pongs_left: AtomicUsize::new(0), arrived, body: Mutex::default() });
    let key = NodeKey::generate().unwrap();
    let listen = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let events: Arc<dyn NetEvents> = meter.clone();
    let net = Net::bind(&key, NetOptions { listen, profile, ..NetOptions::default() }, events).unwrap();
    (net, meter, arrivals, key.id())
}

/// Processor seconds of this process.
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|t| t.parse::<f64>().ok()).unwrap_or(f64::NAN);
    (ticks(11) + ticks(12)) / 100.0
}

/// Returns the lowest value and the median.
fn low_and_median(values: &mut [f64]) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 2]]
}

#[test]
#[ignore = "a measurement, to be run in release mode"]
fn links_beside_bare_quic() {
    let profile = match std::env::var("ANABRANCH_PROFILE").as_deref() {
        Ok("lan") => Profile::Lan,
        Ok("wan") => Profile::Wan,
        _ => Profile::Loopback,
    };
    println!("{}", NetSettings::new(profile, Duration::from_secs(10)));
    let (server, _, _, id) = meter(profile, true);
    let (client, events, arrivals, _) = meter(profile, false);
    let link = client.connect(server.local_addr(), Some(id), None).unwrap();
    let mut bare = BareQuic::connect(&[BareQuic::serve(Ipv4Addr::LOCALHOST.into(), profile)], profile);
    let (mut bare_rtt, mut link_rtt, mut outer_rtt) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let elapsed = bare.ping_pongs(PINGS);
        bare_rtt.push(elapsed.as_secs_f64() / PINGS as f64 * 1e6);

        events.pongs_left.store(PINGS, Ordering::Relaxed);
        let start = Instant::now();
        link.send(vec![0; 64]);
        arrivals.recv().unwrap();
        link_rtt.push(start.elapsed().as_secs_f64() / PINGS as f64 * 1e6);

        events.pongs_left.store(1, Ordering::Relaxed);
        let start = Instant::now();
        for _ in 0..PINGS {
            link.send(vec![0; 64]);
            arrivals.recv().unwrap();
        }
        outer_rtt.push(start.elapsed().as_secs_f64() / PINGS as f64 * 1e6);
    }
    let bare_us = low_and_median(&mut bare_rtt);
    for (what, values) in [("link", &mut link_rtt), ("link, from another thread", &mut outer_rtt)] {
        let link_us = low_and_median(values);
        let ratios = [0, 1].map(|i| link_us[i] / bare_us[i]);
        println!(
            "64 bytes there and back, us, lowest and median: bare {bare_us:.1?}, {what} {link_us:.1?}, ratios {ratios:.2?}"
        );
    }

    for (megabytes, count) in [(1, 32), (16, 4), (100_usize, 1)] {
        let len = megabytes * 1_000_000;
        let mut body = vec![1; len];
        body[len - 1] = 7;
        let body = Bytes::from(body);
        let (mut bare_s, mut link_s, mut bare_cpu, mut link_cpu) = (Vec::new(), Vec::new(), 0.0, 0.0);
        for _ in 0..ROUNDS {
            let processor = processor_time();
            let elapsed = bare.send(&body, count);
            bare_cpu += processor_time() - processor;
            bare_s.push(elapsed.as_secs_f64() / count as f64);

            *events.body.lock().unwrap() = Some(body.clone());
            events.pongs_left.store(count, Ordering::Relaxed);
            let processor = processor_time();
            let start = Instant::now();
            link.send_bulk(vec![0], body.clone(), 0, None);
            arrivals.recv().unwrap();
            link_s.push(start.elapsed().as_secs_f64() / count as f64);
            link_cpu += processor_time() - processor;
        }
        let rate = |seconds: f64| len as f64 * 8e-9 / seconds;
        let (bare_rates, link_rates) = (low_and_median(&mut bare_s).map(rate), low_and_median(&mut link_s).map(rate));
        let ratios = [0, 1].map(|i| bare_rates[i] / link_rates[i]);
        let per_gigabyte = 1e9 / (len * ROUNDS * count) as f64;
        println!(
            "{megabytes} MB, Gbit/s, best and median: bare {bare_rates:.2?}, link {link_rates:.2?}, ratios of times \
             {ratios:.2?}; CPU s/GB of both ends: bare {:.2}, link {:.2}",
            bare_cpu * per_gigabyte,
            link_cpu * per_gigabyte,
        );
    }
    let stats = link.stats();
    println!("{stats:?}");
    println!("{}", client.test_link(&link, LinkTestKind::Thorough).unwrap());
}
