//! The UDP socket: large buffers, and batches that the kernel accepts.

use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The most bytes that one call sends: a UDP payload on IPv4.
const LONGEST_BATCH: usize = 65_507;

/// The sizes of a socket's buffers, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketBuffers {
    /// The requested size of each.
    pub(crate) wanted: usize,
    /// The size of the buffer of received packets.
    pub(crate) receive: usize,
    /// The size of the buffer of packets to send.
    pub(crate) send: usize,
}

impl SocketBuffers {
    /// Returns what to change if the system granted less than half of what was requested.
    pub(crate) fn warning(&self) -> Option<String> {
        let granted = self.receive.min(self.send);
        if granted >= self.wanted / 2 {
            return None;
        }
        let (granted, wanted) = (granted >> 10, self.wanted >> 10);
        let remedy = if cfg!(target_os = "linux") {
            format!("allow more with `sysctl -w net.core.rmem_max={0} net.core.wmem_max={0}`", self.wanted)
        } else if cfg!(target_os = "macos") {
            format!("allow more with `sysctl -w kern.ipc.maxsockbuf={}`", 2 * self.wanted)
        } else {
            "raise the system's limit".to_owned()
        };
        Some(format!(
            "the system granted socket buffers of {granted} KiB instead of {wanted} KiB, so packets are lost at high \
             rates: {remedy}"
        ))
    }
}

/// Opens a UDP socket at `listen`, or at any free port for all addresses.
pub(super) fn open(listen: Option<SocketAddr>, buffer: usize) -> Result<(UdpSocket, SocketBuffers)> {
    let (socket, addr) = match listen {
        Some(addr) => (bind(addr), addr),
        None => {
            // A machine without IPv6 has only the second.
            let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
            let ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            (bind(any).or_else(|_| bind(ipv4)), any)
        }
    };
    let socket = socket.map_err(|error| {
        let diagnostic = Diagnostic::new(format!("cannot listen on UDP {addr}: {error}"));
        match error.kind() {
            io::ErrorKind::AddrInUse => diagnostic.help("another process has this port: choose another, or port 0"),
            io::ErrorKind::AddrNotAvailable => diagnostic.help("this machine has no such address"),
            _ => diagnostic,
        }
        .of_kind(ErrorKind::ResourceExhausted)
    })?;
    // A smaller buffer is a warning, not an error.
    let _ = socket.set_recv_buffer_size(buffer);
    let _ = socket.set_send_buffer_size(buffer);
    // Linux counts its own bookkeeping, and reports twice the size.
    let counted = if cfg!(target_os = "linux") { 2 } else { 1 };
    let granted = |size: io::Result<usize>| size.unwrap_or(0) / counted;
    let buffers = SocketBuffers {
        wanted: buffer,
        receive: granted(socket.recv_buffer_size()),
        send: granted(socket.send_buffer_size()),
    };
    Ok((socket.into(), buffers))
}

fn bind(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    if addr.is_ipv6() {
        // Some systems do not allow it; the socket then serves IPv6 only.
        let _ = socket.set_only_v6(false);
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    Ok(socket)
}

/// A socket whose batches stay within the length of one UDP packet, however large packets are.
#[derive(Debug)]
pub(super) struct BatchLimit {
    socket: Arc<dyn AsyncUdpSocket>,
    max_mtu: usize,
}

impl BatchLimit {
    pub(super) fn new(socket: Arc<dyn AsyncUdpSocket>, max_mtu: u16) -> BatchLimit {
        BatchLimit { socket, max_mtu: usize::from(max_mtu) }
    }
}

impl AsyncUdpSocket for BatchLimit {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit) -> io::Result<()> {
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        context: &mut Context,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_recv(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments().min(LONGEST_BATCH / self.max_mtu).max(1)
    }

    fn max_receive_segments(&self) -> usize {
        // All segments that the kernel joins fit into one packet of this length.
        self.socket.max_receive_segments().min((LONGEST_BATCH + 28).div_ceil(self.max_mtu)).max(1)
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}
