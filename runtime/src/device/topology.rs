//! The devices available to placement: names, rates and links.

use anabranch_dsl::device::{DeviceKind, DeviceName, DevicePattern, LOCAL};
use std::fmt;

/// Index of a device in a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DeviceId(u32);

impl DeviceId {
    /// Returns the device at an index of the session's list.
    pub(crate) fn from_index(index: usize) -> DeviceId {
        DeviceId(u32::try_from(index).expect("more than 2^32 devices"))
    }

    /// Returns the index in the session's list of devices.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device{}", self.0)
    }
}

/// A device as seen by placement.
///
/// Rates are measured when the session is created, given by the user, or the defaults of
/// [`DeviceInfo::cpu`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeviceInfo {
    pub(crate) name: DeviceName,
    /// Floating-point operations per second in large matmuls.
    pub(crate) flops: f64,
    /// Bytes read and written per second in large elementwise operations.
    pub(crate) bandwidth: f64,
    /// Fixed overhead of an operation in seconds.
    pub(crate) launch: f64,
}

impl DeviceInfo {
    /// Returns a CPU device of this process with default rates.
    ///
    /// CPU devices of one process share the machine and are therefore equal. Only the ratios of the
    /// rates matter: between matmuls and elementwise operations, and between work and links. The
    /// values are those of one core of current x86-64 machines with AVX2: 100 GFLOP/s of `f32`, 15
    /// GB/s, and 0.2 µs per plan instruction.
    pub(crate) fn cpu(index: u32) -> DeviceInfo {
        DeviceInfo { name: DeviceName::local(DeviceKind::Cpu, index), flops: 100e9, bandwidth: 15e9, launch: 0.2e-6 }
    }
}

/// The speed of transfers from one device to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LinkSpeed {
    /// Bytes per second.
    pub(crate) bandwidth: f64,
    /// Fixed time of a message in seconds, including the wake-up of the receiver.
    pub(crate) latency: f64,
}

impl LinkSpeed {
    /// The link between CPU devices of one process.
    ///
    /// Values are passed by reference and read from shared memory or the cache of another core. The
    /// latency is that of a channel to a sleeping thread.
    pub(crate) const LOCAL: LinkSpeed = LinkSpeed { bandwidth: 10e9, latency: 10e-6 };

    /// The assumed link between two processes: a local network of 10 Gbit/s, of which encryption on
    /// one core leaves about half.
    #[cfg(feature = "peers")]
    pub(crate) const PEER: LinkSpeed = LinkSpeed { bandwidth: 0.6e9, latency: 100e-6 };

    /// The assumed link between two processes if a test of it took too long.
    #[cfg(feature = "peers")]
    pub(crate) const SLOW: LinkSpeed = LinkSpeed { bandwidth: 10e3, latency: 0.1 };

    /// The assumed link between a GPU and another device: a bus, and a thread that waits.
    pub(crate) const GPU: LinkSpeed = LinkSpeed { bandwidth: 8e9, latency: 30e-6 };

    /// Returns the speed with both numbers rounded to powers of two, so that two measurements of a
    /// link mostly place a graph alike.
    #[cfg(feature = "peers")]
    pub(crate) fn rounded(self) -> LinkSpeed {
        let round = |x: f64| x.log2().round().exp2();
        LinkSpeed { bandwidth: round(self.bandwidth), latency: round(self.latency) }
    }
}

/// The devices of a session and the links between them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Topology {
    /// The devices, at least one, with distinct names.
    pub(crate) devices: Vec<DeviceInfo>,
    /// Links in row-major order: from the first device to each other device, and so on. The
    /// diagonal is unused.
    links: Vec<LinkSpeed>,
    /// The link between each device and the host, unless the device uses the memory of the host.
    host_links: Vec<Option<LinkSpeed>>,
    /// Speedup of parallel operations if one device runs the whole graph and thus has all cores.
    pub(crate) alone: f64,
}

impl Topology {
    /// Creates a topology of devices with `link` between each pair.
    ///
    /// # Panics
    /// Panics if there is no device, or if two have the same name.
    pub(crate) fn new(devices: Vec<DeviceInfo>, link: impl Fn(DeviceId, DeviceId) -> LinkSpeed) -> Topology {
        assert!(!devices.is_empty(), "a session has a device");
        for (i, d) in devices.iter().enumerate() {
            assert!(devices[..i].iter().all(|e| e.name != d.name), "two devices have the name {}", d.name);
        }
        let ids = || (0..devices.len()).map(DeviceId::from_index);
        let links = ids().flat_map(|from| ids().map(move |to| (from, to))).map(|(from, to)| link(from, to)).collect();
        let host_links = vec![None; devices.len()];
        Topology { devices, links, host_links, alone: 1.0 }
    }

    /// Returns CPU devices of this process, then GPUs of the same rates, for tests.
    #[cfg(test)]
    pub(crate) fn with_gpus(cpus: usize, gpus: usize) -> Topology {
        let gpu = |i| DeviceInfo { name: DeviceName::local(DeviceKind::Gpu, i), ..DeviceInfo::cpu(i) };
        let devices = (0..cpus as u32).map(DeviceInfo::cpu).chain((0..gpus as u32).map(gpu));
        Topology::new(devices.collect(), |_, _| LinkSpeed::LOCAL)
    }

    /// Returns `n` equal CPU devices of this process.
    #[cfg(test)]
    pub(crate) fn cpus(n: usize) -> Topology {
        Topology::with_gpus(n, 0)
    }

    /// Returns two CPU devices of this process and of each of two peers, for tests.
    #[cfg(test)]
    pub(crate) fn with_peers() -> Topology {
        let device = |peer: Option<&str>, i| {
            let info = DeviceInfo::cpu(i);
            DeviceInfo { name: peer.map_or(info.name, |peer| info.name.of_peer(peer).expect("a name")), ..info }
        };
        let peers = [None, Some("0"), Some("1")];
        let devices = peers.into_iter().flat_map(|peer| (0..2).map(move |i| device(peer, i)));
        Topology::new(devices.collect(), |_, _| LinkSpeed { bandwidth: 0.6e9, latency: 100e-6 })
    }

    /// Returns the topology with `link` between each device and the host, or none for devices that
    /// use the memory of the host.
    #[must_use]
    pub(crate) fn with_host_links(mut self, link: impl Fn(DeviceId) -> Option<LinkSpeed>) -> Topology {
        self.host_links = self.ids().map(link).collect();
        self
    }

    /// Returns all devices, in order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..self.devices.len()).map(DeviceId::from_index)
    }

    /// Returns the name and rates of a device.
    pub(crate) fn device(&self, id: DeviceId) -> &DeviceInfo {
        &self.devices[id.index()]
    }

    /// Returns the link from one device to another.
    pub(crate) fn link(&self, from: DeviceId, to: DeviceId) -> LinkSpeed {
        self.links[from.index() * self.devices.len() + to.index()]
    }

    /// Returns the link between a device and the host, unless the device uses the memory of the
    /// host.
    pub(crate) fn host_link(&self, of: DeviceId) -> Option<LinkSpeed> {
        self.host_links[of.index()]
    }

    /// Returns a pattern as it is meant here: with several processes, it is
    /// [absolute](DevicePattern::absolute).
    pub(crate) fn absolute(&self, pattern: DevicePattern) -> DevicePattern {
        let is_local = |device: &DeviceInfo| device.name.peer() == LOCAL;
        let has_several = self.devices.iter().any(is_local) && !self.devices.iter().all(is_local);
        if has_several { pattern.absolute() } else { pattern }
    }

    /// Returns the devices that match a pattern.
    pub(crate) fn matching(&self, pattern: &DevicePattern) -> Vec<DeviceId> {
        self.ids().filter(|&id| pattern.matches(&self.device(id).name)).collect()
    }

    /// Returns the names of all devices, for messages.
    pub(crate) fn names(&self) -> String {
        self.devices.iter().map(|d| d.name.to_string()).collect::<Vec<_>>().join(", ")
    }
}
