//! Whether a process still listens at an address.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// How long to wait for an answer. The machine itself answers, so one round trip is enough.
const PATIENCE: Duration = Duration::from_millis(200);

/// Asks a machine whether a process listens at an address, with one packet that QUIC drops. Returns
/// true if the machine says that none does. Silence says nothing: a firewall may drop the answer.
pub(super) async fn is_refused(addr: SocketAddr) -> bool {
    let any: IpAddr = match addr {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let ask = async {
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
        socket.connect(addr).await?;
        socket.send(&[0]).await?;
        socket.recv(&mut [0; 16]).await
    };
    matches!(timeout(PATIENCE, ask).await, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_without_a_process_is_refused_and_a_silent_one_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        runtime.expect("the system has resources").block_on(async {
            let silent = UdpSocket::bind("127.0.0.1:0").await.expect("a port is free");
            let addr = silent.local_addr().expect("the socket is bound");
            assert!(!is_refused(addr).await);
            drop(silent);
            assert!(is_refused(addr).await);
        });
    }
}
