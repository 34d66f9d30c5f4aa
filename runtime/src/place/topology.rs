//! The devices that a graph may be placed on, and what placement knows of them: names, rates, links.

use anabranch_dsl::device::{DeviceKind, DeviceName, DevicePattern};
use std::fmt;

/// Index into the devices of a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DeviceId(u32);

impl DeviceId {
    /// The device at that index of the session's list.
    pub(crate) fn from_index(index: usize) -> DeviceId {
        DeviceId(u32::try_from(index).expect("more than 2^32 devices"))
    }

    /// Index into the session's list of devices.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device{}", self.0)
    }
}

/// What placement knows of a device. Rates are measured when the session is made, or given, or those of [`DeviceInfo::cpu`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeviceInfo {
    pub(crate) name: DeviceName,
    /// Operations on numbers per second, in large matrix products.
    pub(crate) flops: f64,
    /// Bytes that are read and written per second, in large elementwise operations.
    pub(crate) bandwidth: f64,
    /// Seconds that an operation takes whatever its size.
    pub(crate) launch: f64,
}

impl DeviceInfo {
    /// A CPU device of this process that was not measured.
    ///
    /// The CPU devices of one process share its machine, so they are equal whatever the machine is, and only the proportions of the
    /// figures decide: between products and elementwise operations, and between work and links. They are those of one core of
    /// present x86-64 machines with AVX2: 100 GFLOP/s of `f32`, 15 GB/s, and 0.2 µs for an instruction of a plan.
    pub(crate) fn cpu(index: u32) -> DeviceInfo {
        DeviceInfo { name: DeviceName::local(DeviceKind::Cpu, index), flops: 100e9, bandwidth: 15e9, launch: 0.2e-6 }
    }
}

/// How fast bytes come from one device to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Link {
    /// Bytes per second.
    pub(crate) bandwidth: f64,
    /// Seconds that a message takes whatever its size, the waking of the receiver included.
    pub(crate) latency: f64,
}

impl Link {
    /// Between CPU devices of one process: what is sent is handed over, and read from shared memory or a cache of another core. The
    /// latency is that of a channel with a thread that sleeps at its end.
    pub(crate) const LOCAL: Link = Link { bandwidth: 10e9, latency: 10e-6 };
}

/// The devices of a session and the links between them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Topology {
    /// Never empty; no two have the same name.
    pub(crate) devices: Vec<DeviceInfo>,
    /// Row by row: from the first device to each, and so on; the diagonal is not read.
    links: Vec<Link>,
    /// Between each device and the host.
    host_links: Vec<Link>,
    /// How many times as fast an operation is that threads share, if one device has the whole graph: it then has the cores of the others, too.
    pub(crate) alone: f64,
}

impl Topology {
    /// Devices with a link for each pair, which `link` gives.
    ///
    /// # Panics
    /// If there is no device, or two have one name.
    pub(crate) fn new(devices: Vec<DeviceInfo>, link: impl Fn(DeviceId, DeviceId) -> Link) -> Topology {
        assert!(!devices.is_empty(), "a session has a device");
        for (i, d) in devices.iter().enumerate() {
            assert!(devices[..i].iter().all(|e| e.name != d.name), "two devices have the name {}", d.name);
        }
        let ids = || (0..devices.len()).map(DeviceId::from_index);
        let links = ids().flat_map(|from| ids().map(move |to| (from, to))).map(|(from, to)| link(from, to)).collect();
        let host_links = vec![Link::LOCAL; devices.len()];
        Topology { devices, links, host_links, alone: 1.0 }
    }

    /// `n` equal CPU devices of this process.
    pub(crate) fn cpus(n: usize) -> Topology {
        Topology::new((0..n as u32).map(DeviceInfo::cpu).collect(), |_, _| Link::LOCAL)
    }

    /// The same devices with a link for each to the host and back, which `link` gives.
    #[must_use]
    pub(crate) fn with_host_links(mut self, link: impl Fn(DeviceId) -> Link) -> Topology {
        self.host_links = self.ids().map(link).collect();
        self
    }

    /// All devices, in order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..self.devices.len()).map(DeviceId::from_index)
    }

    /// What is known of a device.
    pub(crate) fn device(&self, id: DeviceId) -> &DeviceInfo {
        &self.devices[id.index()]
    }

    /// The link from one device to another one.
    pub(crate) fn link(&self, from: DeviceId, to: DeviceId) -> Link {
        self.links[from.index() * self.devices.len() + to.index()]
    }

    /// The link between a device and the host.
    pub(crate) fn host_link(&self, of: DeviceId) -> Link {
        self.host_links[of.index()]
    }

    /// The devices that a pattern stands for.
    pub(crate) fn matching(&self, pattern: &DevicePattern) -> Vec<DeviceId> {
        self.ids().filter(|&id| pattern.matches(&self.device(id).name)).collect()
    }

    /// The names of all devices, for messages.
    pub(crate) fn names(&self) -> String {
        self.devices.iter().map(|d| d.name.to_string()).collect::<Vec<_>>().join(", ")
    }
}
