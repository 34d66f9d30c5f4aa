//! Devices of modelled time: they compute the right values, by the CPU's kernels, and say when they would have been done.

use crate::place::topology::{DeviceId, DeviceInfo, Link, Topology};
use anabranch_dsl::device::{DeviceName, LOCAL};
use anabranch_dsl::{Diagnostic, Result};
use std::time::Duration;

/// A device that is modelled: what it computes is right, and takes a time that follows from these figures, on a clock that is not the machine's.
/// It is for asking how a program would run on devices that one does not have, and for tests of what overlaps. Each device runs
/// one kernel after the other, in the order in which they are given to it; copies run beside them, one after the other on each link.
///
/// ```
/// use anabranch_runtime::{Modelled, Session};
/// use std::time::Duration;
///
/// let gpu = |i| Modelled::new(&format!("/gpu:{i}")).flops(10e12).bandwidth(1e12).launch(Duration::from_micros(5));
/// let session = Session::builder().modelled([gpu(0), gpu(1)]).build()?;
/// assert_eq!(session.devices().len(), 2);
/// # Ok::<(), anabranch_dsl::Diagnostic>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Modelled {
    name: String,
    flops: f64,
    bandwidth: f64,
    launch: Duration,
    link_bandwidth: f64,
    link_latency: Duration,
}

impl Modelled {
    /// A device of this name: 10 TFLOP/s, 500 GB/s, 5 µs for each kernel, and 10 GB/s and 10 µs on the links from it.
    pub fn new(name: &str) -> Modelled {
        Modelled {
            name: name.to_owned(),
            flops: 10e12,
            bandwidth: 500e9,
            launch: Duration::from_micros(5),
            link_bandwidth: 10e9,
            link_latency: Duration::from_micros(10),
        }
    }

    /// Operations on numbers in a second, in matrix products.
    pub fn flops(self, flops: f64) -> Modelled {
        Modelled { flops, ..self }
    }

    /// Bytes that it reads and writes in a second.
    pub fn bandwidth(self, bandwidth: f64) -> Modelled {
        Modelled { bandwidth, ..self }
    }

    /// What each kernel takes besides.
    pub fn launch(self, launch: Duration) -> Modelled {
        Modelled { launch, ..self }
    }

    /// What it sends takes `latency`, and a second for each `bandwidth` bytes.
    pub fn link(self, bandwidth: f64, latency: Duration) -> Modelled {
        Modelled { link_bandwidth: bandwidth, link_latency: latency, ..self }
    }

    fn info(&self) -> Result<DeviceInfo> {
        let name: DeviceName = self.name.parse()?;
        if name.peer() != LOCAL {
            let message = format!("the modelled device {name} is one of another peer");
            return Err(Diagnostic::new(message).help("leave the peer out"));
        }
        for (what, rate) in
            [("flops", self.flops), ("bandwidth", self.bandwidth), ("link bandwidth", self.link_bandwidth)]
        {
            if !(rate.is_finite() && rate > 0.0) {
                return Err(Diagnostic::new(format!(
                    "the modelled device {name}: {what} is {rate}, not a positive rate"
                )));
            }
        }
        Ok(DeviceInfo { name, flops: self.flops, bandwidth: self.bandwidth, launch: self.launch.as_secs_f64() })
    }

    /// What placement knows of such devices.
    pub(crate) fn topology(devices: &[Modelled]) -> Result<Topology> {
        let infos = devices.iter().map(Modelled::info).collect::<Result<Vec<_>>>()?;
        for (i, info) in infos.iter().enumerate() {
            if infos[..i].iter().any(|other| other.name == info.name) {
                return Err(Diagnostic::new(format!("two modelled devices are called {}", info.name)));
            }
        }
        let link = |from: DeviceId, _| {
            let from = &devices[from.index()];
            Link { bandwidth: from.link_bandwidth, latency: from.link_latency.as_secs_f64() }
        };
        Ok(Topology::new(infos, link))
    }
}
