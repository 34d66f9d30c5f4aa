//! QUIC without links: what a measurement of links and steps is compared with.

use super::profile::NetSettings;
use super::socket::{self, BatchLimit};
use super::tls::{PROTOCOL, Tls};
use super::{NodeKey, Profile};
use bytes::Bytes;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, Runtime, SendStream, ServerConfig};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

/// Runs bare QUIC at an address of this machine on a thread of its own, and returns its endpoint
/// there.
fn bare_endpoint(at: IpAddr, profile: Profile) -> (tokio::runtime::Handle, Endpoint, ClientConfig) {
    let settings = NetSettings::new(profile, Duration::from_secs(10));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    let handle = runtime.handle().clone();
    let endpoint = {
        let _entered = runtime.enter();
        let tls = Tls::new(&NodeKey::generate().unwrap(), PROTOCOL).unwrap();
        let mut server = ServerConfig::with_crypto(Arc::new(tls.server(Arc::new(|_| Ok(()))).unwrap()));
        server.transport_config(Arc::new(settings.transport(false)));
        let mut config = EndpointConfig::default();
        config.max_udp_payload_size(settings.max_mtu).unwrap();
        let listen = Some(SocketAddr::from((at, 0)));
        let (socket, _) = socket::open(listen, settings.socket_buffer).unwrap();
        let quic = Arc::new(quinn::TokioRuntime);
        let socket = Arc::new(BatchLimit::new(quic.wrap_udp_socket(socket).unwrap(), settings.max_mtu));
        let mut client = ClientConfig::new(Arc::new(tls.client(Arc::new(|_| Ok(()))).unwrap()));
        client.transport_config(Arc::new(settings.transport(false)));
        (Endpoint::new_with_abstract_socket(config, Some(server), socket, quic).unwrap(), client)
    };
    thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    (handle, endpoint.0, endpoint.1)
}

/// An end of bare QUIC with the settings of links, on a thread of its own. It sends what it is
/// told, and the other ends, [`BareQuic::serve`], answer: in this process or in others.
#[doc(hidden)]
pub struct BareQuic {
    handle: tokio::runtime::Handle,
    /// The connection for bodies, to the first of the other ends.
    connection: Connection,
    /// The streams of pings and of their answers, to each of the other ends.
    pings: Vec<(SendStream, RecvStream)>,
    /// The stream of answers to bodies.
    body_answers: Option<RecvStream>,
}

#[allow(clippy::unwrap_used, reason = "a measurement that fails panics")]
impl BareQuic {
    /// Begins to answer connections at an address of this machine. Returns where.
    ///
    /// # Panics
    /// Panics if nothing can listen there.
    pub fn serve(at: IpAddr, profile: Profile) -> SocketAddr {
        let (handle, endpoint, _) = bare_endpoint(at, profile);
        let addr = endpoint.local_addr().unwrap();
        handle.spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                tokio::spawn(async move { answer(incoming.await.unwrap()).await });
            }
        });
        addr
    }

    /// Connects to other ends.
    ///
    /// # Panics
    /// Panics if one cannot be reached.
    pub fn connect(ends: &[SocketAddr], profile: Profile) -> BareQuic {
        let here = if ends[0].ip().is_loopback() { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
        let (handle, client, config) = bare_endpoint(here.into(), profile);
        let (connections, pings) = handle.block_on(async {
            let (mut connections, mut streams) = (Vec::new(), Vec::new());
            for &end in ends {
                let connection = client.connect_with(config.clone(), end, "anabranch").unwrap().await.unwrap();
                let mut pings = connection.open_uni().await.unwrap();
                pings.write_all(&[0; 64]).await.unwrap();
                let mut answers = connection.accept_uni().await.unwrap();
                answers.read_exact(&mut [0; 65]).await.unwrap();
                connections.push(connection);
                streams.push((pings, answers));
            }
            (connections, streams)
        });
        let connection = connections.into_iter().next().unwrap();
        BareQuic { handle, connection, pings, body_answers: None }
    }

    /// Sends 64 bytes to all other ends at once, which send them back, `n` times. Returns the time
    /// of all.
    pub fn ping_pongs(&mut self, n: usize) -> Duration {
        let mut pings = std::mem::take(&mut self.pings);
        let (elapsed, pings) = self.run(async move {
            let start = Instant::now();
            let mut frame = [0; 64];
            for _ in 0..n {
                for (ping, _) in &mut pings {
                    ping.write_all(&frame).await.unwrap();
                }
                for (_, answer) in &mut pings {
                    answer.read_exact(&mut frame).await.unwrap();
                }
            }
            (start.elapsed(), pings)
        });
        self.pings = pings;
        elapsed
    }

    /// Sends a body whose last byte is 7, `n` times, each after the answer to the one before.
    /// Returns the time of all.
    pub fn send(&mut self, body: &Bytes, n: usize) -> Duration {
        let (connection, body, answers) = (self.connection.clone(), body.clone(), self.body_answers.take());
        let (elapsed, answers) = self.run(async move {
            let start = Instant::now();
            let mut answers = answers;
            for _ in 0..n {
                let mut stream = connection.open_uni().await.unwrap();
                let len = Bytes::copy_from_slice(&(body.len() as u64).to_le_bytes());
                stream.write_all_chunks(&mut [len, body.clone()]).await.unwrap();
                stream.finish().unwrap();
                if answers.is_none() {
                    answers = Some(connection.accept_uni().await.unwrap());
                }
                answers.as_mut().unwrap().read_exact(&mut [0]).await.unwrap();
            }
            (start.elapsed(), answers)
        });
        self.body_answers = answers;
        elapsed
    }

    /// Runs `f` on the thread of the client.
    fn run<F: Future<Output: Send + 'static> + Send + 'static>(&self, f: F) -> F::Output {
        let (done, result) = sync_channel(1);
        self.handle.spawn(async move { done.send(f.await).unwrap() });
        result.recv().unwrap()
    }
}

/// Answers what arrives on a connection, until it ends.
#[allow(clippy::unwrap_used, reason = "a measurement that fails panics")]
async fn answer(connection: Connection) {
    let mut answers = connection.open_uni().await.unwrap();
    answers.write_all(&[0]).await.unwrap();
    let mut pings = connection.accept_uni().await.unwrap();
    let bodies = connection.clone();
    let mut body_answers = connection.open_uni().await.unwrap();
    tokio::spawn(async move {
        while let Ok(mut stream) = bodies.accept_uni().await {
            let mut len = [0; 8];
            stream.read_exact(&mut len).await.unwrap();
            let mut body = vec![0; u64::from_le_bytes(len) as usize];
            let (mut at, mut pieces): (_, [Bytes; 32]) = (0, Default::default());
            while let Some(count) = stream.read_chunks(&mut pieces).await.unwrap() {
                for piece in &pieces[..count] {
                    body[at..at + piece.len()].copy_from_slice(piece);
                    at += piece.len();
                }
            }
            assert_eq!(body.last(), Some(&7));
            body_answers.write_all(&[1]).await.unwrap();
        }
    });
    let mut frame = [0; 64];
    while pings.read_exact(&mut frame).await.is_ok() {
        answers.write_all(&frame).await.unwrap();
    }
}
