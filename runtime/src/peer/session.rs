//! The devices of peers, for a session.

use super::address::PeerAddress;
use super::cluster::{ClusterOptions, PeerCluster, ValuesAt};
use super::net::{LinkReport, LinkTestKind};
use super::program::{ProgramDevice, ProgramSpec, name_of_device};
use super::proto::frame::ProcessNumber;
use super::remote_device::RemoteDevice;
use super::remote_step::RemoteProgram;
use super::shared::SharedVariable;
use crate::device::gpu_support::SizeLimits;
use crate::device::{Device, DeviceBuffer, DeviceId, DeviceInfo, LinkSpeed, MemorySpace};
use crate::flow::PartitionOptions;
use crate::flow::distributed::DistributedGraph;
use crate::flow::remote::{ProcessId, Processes};
use crate::options::CompileOptions;
use crate::place::Placement;
use anabranch_dsl::device::DeviceKind;
use anabranch_dsl::{AnyVar, Diagnostic, ErrorKind, Graph, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The devices of a session's peers.
#[derive(Debug)]
pub(crate) struct RemoteDevices {
    cluster: Arc<PeerCluster>,
    /// The devices of peers, in order, and the limits of GPUs.
    infos: Vec<(ProcessId, DeviceInfo, Option<SizeLimits>)>,
    /// The link to each peer, as placement sees it.
    links: Vec<LinkSpeed>,
    /// The links between peers that were measured. The first has the lower number.
    between: BTreeMap<[ProcessId; 2], LinkSpeed>,
    /// The tests of the links to the peers when the session was created, unless they were assumed.
    reports: Vec<LinkReport>,
}

impl RemoteDevices {
    /// Connects to the peers of a session.
    pub(crate) fn connect(options: ClusterOptions) -> Result<RemoteDevices> {
        let link_tests = options.link_tests;
        let names: Vec<PeerAddress> = options.peers.clone();
        let cluster = PeerCluster::connect(options)?;
        let (mut infos, mut links, mut reports) = (Vec::new(), Vec::new(), Vec::new());
        for (process, address) in (1..=cluster.len() as u32).map(ProcessId).zip(names) {
            let address = address.without_token();
            let hello = cluster.hello(process).ok_or_else(|| {
                Diagnostic::new(format!("the peer {address} was lost")).of_kind(ErrorKind::Unavailable)
            })?;
            for device in hello.devices {
                let kind = DeviceKind::ALL.into_iter().find(|kind| kind.name() == device.kind);
                let rates = [device.flops, device.bandwidth, device.launch];
                let limits = device.limits.map(|limits| SizeLimits {
                    max_bytes: limits.max_bytes,
                    max_iterations: limits.max_iterations.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
                    has_halves: limits.has_halves,
                });
                let kind = kind.filter(|kind| (*kind == DeviceKind::Gpu) == limits.is_some());
                let (Some(kind), true) = (kind, rates.iter().all(|rate| rate.is_finite() && *rate > 0.0)) else {
                    let message = format!("the peer {address} offers a device that this version does not know");
                    return Err(Diagnostic::new(message).help("both must run the same version of anabranch"));
                };
                let name = name_of_device(process, kind, device.index);
                if infos.iter().any(|(_, info, _): &(ProcessId, DeviceInfo, Option<SizeLimits>)| info.name == name) {
                    return Err(Diagnostic::new(format!("the peer {address} offers two devices {name}")));
                }
                let [flops, bandwidth, launch] = rates;
                infos.push((process, DeviceInfo { name, flops, bandwidth, launch }, limits));
            }
            links.push(match link_tests {
                Some(kind) => {
                    let report = if_needed(kind, cluster.test_link(process, kind))?;
                    let speed = speed_of(kind, report.as_ref());
                    reports.extend(report);
                    speed
                }
                None => LinkSpeed::PEER,
            });
        }
        let mut between = BTreeMap::new();
        let ends = (1..=cluster.len() as u32).flat_map(|j| (1..j).map(move |i| [ProcessId(i), ProcessId(j)]));
        for ends in ends.filter(|_| link_tests == Some(LinkTestKind::Thorough)) {
            // Placement estimates a link that cannot be measured now.
            if let Ok(speed) = cluster.test_link_between(ends) {
                between.insert(ends, speed);
            }
        }
        Ok(RemoteDevices { cluster, infos, links, between, reports })
    }

    /// Returns the names and rates of the devices.
    pub(crate) fn infos(&self) -> impl Iterator<Item = DeviceInfo> {
        self.infos.iter().map(|(_, info, _)| *info)
    }

    /// Returns the process of the device at an index among those of peers.
    pub(crate) fn process(&self, index: usize) -> ProcessId {
        self.infos[index].0
    }

    /// Returns the link between two processes, or between a peer and the caller.
    pub(crate) fn link(&self, from: ProcessId, to: ProcessId) -> LinkSpeed {
        let of = |ProcessId(process): ProcessId| (process > 0).then(|| self.links[process as usize - 1]);
        match (of(from), of(to)) {
            (Some(a), Some(b)) => {
                let measured = self.between.get(&[from.min(to), from.max(to)]);
                let slower = LinkSpeed { bandwidth: a.bandwidth.min(b.bandwidth), latency: a.latency.max(b.latency) };
                measured.copied().unwrap_or(slower)
            }
            (Some(link), None) | (None, Some(link)) => link,
            (None, None) => LinkSpeed::LOCAL,
        }
    }

    /// Tests the link to each peer, in order.
    pub(crate) fn test_links(&self) -> Result<Vec<LinkReport>> {
        let processes = (1..=self.cluster.len() as u32).map(ProcessId);
        processes.map(|process| self.cluster.test_link(process, LinkTestKind::Thorough)).collect()
    }

    /// Returns the settings of the network, and a warning if the system grants less.
    pub(crate) fn network(&self) -> (String, Option<String>) {
        let net = self.cluster.node.net();
        (net.settings(), net.warning())
    }

    /// Returns the tests of the links to the peers when the session was created.
    pub(crate) fn reports(&self) -> &[LinkReport] {
        &self.reports
    }

    /// Opens the devices. `first` is the number of devices of the caller.
    pub(crate) fn open(&self, first: usize) -> Vec<Arc<dyn Device>> {
        let device = |(i, &(process, info, limits)): (usize, &(ProcessId, DeviceInfo, Option<SizeLimits>))| {
            let id = DeviceId::from_index(first + i);
            let values = ValuesAt { cluster: self.cluster.clone(), process, device: id };
            Arc::new(RemoteDevice::new(id, info.name, limits, Arc::new(values))) as Arc<dyn Device>
        };
        self.infos.iter().enumerate().map(device).collect()
    }

    /// Returns the home of a shared variable at a device of a peer, and its value there.
    pub(crate) fn shared(
        &self,
        device: &Arc<dyn Device>,
        process: ProcessId,
        name: &str,
        var: &AnyVar,
    ) -> (Arc<dyn Device>, DeviceBuffer) {
        let variable = Arc::new(SharedVariable::new(&self.cluster, ProcessNumber(process.0), name, var));
        let value = DeviceBuffer::new(MemorySpace::Device(device.id()), variable.remote_value());
        let of_peer = device.name().expect("devices of a session have names");
        let limits = self.infos.iter().find(|(_, info, _)| info.name == of_peer).and_then(|(_, _, limits)| *limits);
        (Arc::new(RemoteDevice::new(device.id(), of_peer, limits, Arc::new(variable))), value)
    }

    /// Compiles a placed graph that is partly at peers. `devices` are all devices of the session.
    pub(crate) fn compile(
        &self,
        graph: &Graph,
        placement: &Placement,
        devices: &[Arc<dyn Device>],
        processes: &Processes,
        flow: PartitionOptions,
        options: CompileOptions,
    ) -> Result<DistributedGraph> {
        let device = |(i, device): (usize, &Arc<dyn Device>)| ProgramDevice {
            process: processes.of(DeviceId::from_index(i)),
            name: device.name().expect("devices of a session have names"),
        };
        let spec = ProgramSpec {
            graph: graph.clone(),
            placement: placement.clone(),
            devices: devices.iter().enumerate().map(device).collect(),
            flow,
            options,
        };
        let program = RemoteProgram::new(&self.cluster, &spec)?;
        let local = |kind: DeviceKind, index: u32| {
            let of_caller = |device: &&Arc<dyn Device>| {
                processes.of(device.id()) == ProcessId::CALLER
                    && device.name().is_some_and(|name| (name.kind(), name.index()) == (kind, index))
            };
            devices.iter().find(of_caller).cloned()
        };
        let (driver, _) = spec.load(ProcessId::CALLER, local, || false)?;
        Ok(DistributedGraph::new(driver, Some(Arc::new(program))))
    }
}

/// Returns the outcome of a test of a link. A brief one may take too long: a session works without.
fn if_needed(kind: LinkTestKind, tested: Result<LinkReport>) -> Result<Option<LinkReport>> {
    match tested {
        Err(error) if kind == LinkTestKind::Brief && error.kind == ErrorKind::DeadlineExceeded => Ok(None),
        tested => tested.map(Some),
    }
}

/// Returns the speed of a link for placement, which a brief test finds only roughly. If it took too
/// long, the link is slow.
fn speed_of(kind: LinkTestKind, report: Option<&LinkReport>) -> LinkSpeed {
    let Some(report) = report else { return LinkSpeed::SLOW };
    let speed = LinkSpeed { bandwidth: report.bandwidth(), latency: report.latency().as_secs_f64() };
    if kind == LinkTestKind::Brief { speed.rounded() } else { speed }
}

#[cfg(test)]
mod tests {
    use super::{LinkTestKind, if_needed, speed_of};
    use crate::device::LinkSpeed;
    use crate::peers::{NodeKey, Peer, PeerOptions, Profile};
    use crate::{Session, SessionBuilder};
    use anabranch_dsl::{Diagnostic, ErrorKind, Result};

    #[test]
    fn a_session_begins_although_a_brief_test_of_a_link_takes_too_long() {
        let fails = |kind| Err(Diagnostic::new("the test of the link took too long").of_kind(kind));
        let is_late = if_needed(LinkTestKind::Brief, fails(ErrorKind::DeadlineExceeded));
        assert_eq!(is_late.map_err(|error| error.message), Ok(None));
        assert!(if_needed(LinkTestKind::Brief, fails(ErrorKind::Unavailable)).is_err());
        assert!(if_needed(LinkTestKind::Thorough, fails(ErrorKind::DeadlineExceeded)).is_err());
        assert_eq!(speed_of(LinkTestKind::Brief, None), LinkSpeed::SLOW);
    }

    #[test]
    fn measured_links_are_those_of_placement() -> Result<()> {
        let key = NodeKey::generate()?;
        let listen = "127.0.0.1:0".parse().expect("this is an address");
        let options = PeerOptions::new(NodeKey::generate()?).listen(listen).profile(Profile::Loopback);
        let peer = Peer::serve(options.allow(key.id()))?;
        let link_of = |builder: SessionBuilder| -> Result<(Session, [LinkSpeed; 2])> {
            let builder = builder.node_key(key.clone()).network(Profile::Loopback);
            let session = builder.peer(peer.address()).build()?;
            let ids: Vec<_> = session.devices.topology.ids().collect();
            let link = |from: usize, to: usize| session.devices.topology.link(ids[from], ids[to]);
            let links = [link(0, 1), link(1, 0)];
            Ok((session, links))
        };
        let (session, assumed) = link_of(Session::builder().measure_devices(false))?;
        assert_eq!((assumed, session.link_reports().len()), ([LinkSpeed::PEER; 2], 0));
        // By default, placement sees what a brief test has found, rounded.
        let (session, [brief, back]) = link_of(Session::builder())?;
        let [report] = session.link_reports() else { panic!("there is one link") };
        assert_eq!(report.node, peer.address().node());
        assert_eq!((brief, back), (brief.rounded(), brief));
        assert!((0.7..1.42).contains(&(brief.bandwidth / report.bandwidth())), "{brief:?} {report}");
        assert!((0.7..1.42).contains(&(brief.latency / report.latency().as_secs_f64())), "{brief:?} {report}");
        let (session, measured) = link_of(Session::builder().measure_devices(true))?;
        for link in measured {
            assert_ne!(link, LinkSpeed::PEER);
            assert!(link.bandwidth > 0.0 && link.latency > 0.0 && link.latency < 10.0, "{link:?}");
        }
        let at_start = session.link_reports();
        assert_eq!(at_start.iter().map(super::LinkReport::bandwidth).collect::<Vec<_>>(), [measured[0].bandwidth]);
        let reports = session.test_links()?;
        assert_eq!(reports.len(), 1);
        // Links between peers are measured by them.
        let options = PeerOptions::new(NodeKey::generate()?).listen(listen).profile(Profile::Loopback);
        let other = Peer::serve(options.allow(key.id()))?;
        let builder = Session::builder().node_key(key.clone()).network(Profile::Loopback).measure_devices(true);
        let session = builder.peer(peer.address()).peer(other.address()).build()?;
        let ids: Vec<_> = session.devices.topology.ids().collect();
        let [first, second, between] =
            [(0, 1), (0, 2), (1, 2)].map(|(a, b)| session.devices.topology.link(ids[a], ids[b]));
        assert!(between.bandwidth > 0.0 && between != first && between != second, "{between:?}");
        assert_eq!(session.devices.topology.link(ids[2], ids[1]), between);
        let text = reports[0].to_string();
        assert!(text.starts_with("round trip ") && text.ends_with(&reports[0].verdict()), "{text}");
        Ok(())
    }
}
