//! Programs: what a process must know of a graph that several processes run.
//!
//! A [`ProgramSpec`] is shipped as bytes to each peer that takes part. Each process cuts the graph
//! for itself, and loads the kernels of its own devices. The digests of the cuts must be equal,
//! since messages name edges and subgraphs by their numbers.
//!
//! Bytes are not trusted: any bytes are either a program that can be cut, or an error.

use super::proto::frame::Digest;
use super::remote_device::RemoteDevice;
use crate::device::{Device, DeviceId};
use crate::flow::driver::Driver;
use crate::flow::remote::{ProcessId, Processes};
use crate::flow::{self, Partition, PartitionOptions};
use crate::options::{CompileOptions, CpuOptions, MatmulPrecision};
use crate::place::Placement;
use anabranch_dsl::device::{DeviceKind, DeviceName};
use anabranch_dsl::ir::WhileNode;
use anabranch_dsl::ir::wire::{self, WireLimits};
use anabranch_dsl::{Diagnostic, ErrorKind, Graph, Result};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::sync::Arc;

/// Maximum processes of a program.
pub(super) const MAX_PROCESSES: u32 = 256;
/// Maximum devices of a program.
const MAX_DEVICES: usize = 4_096;
/// Maximum bytes of an encoded program: more than the limits of its graph allow.
const MAX_ENCODED: usize = 320 << 20;
/// An estimate of the memory of a node of a program and of what is compiled from it.
const BYTES_PER_NODE: u64 = 2 << 10;
/// Maximum iterations of a loop that run at once. Devices keep memory for each.
const MAX_WINDOW: u32 = 1 << 16;

/// A placed graph with the options of its cut.
#[derive(Debug)]
pub(super) struct ProgramSpec {
    pub(super) graph: Graph,
    pub(super) placement: Placement,
    pub(super) devices: Vec<ProgramDevice>,
    pub(super) flow: PartitionOptions,
    pub(super) options: CompileOptions,
}

/// A device of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramDevice {
    pub(super) process: ProcessId,
    /// The name as the caller writes it: `/peer:0/cpu:0`.
    pub(super) name: DeviceName,
}

/// The encoded form.
#[derive(Serialize, Deserialize)]
struct Form {
    devices: Vec<(u32, u8, u32)>,
    nodes: Vec<u32>,
    vars: Vec<u32>,
    parallel_iterations: u32,
    /// `lower_everything`, `lower_control`, then the compile options in their order.
    flags: [bool; 9],
    graph: Vec<u8>,
}

/// Returns the name of a device for the caller, and so for all messages.
pub(super) fn name_of_device(process: ProcessId, kind: DeviceKind, index: u32) -> DeviceName {
    let name = DeviceName::local(kind, index);
    match process {
        ProcessId::CALLER => name,
        ProcessId(process) => name.of_peer(&(process - 1).to_string()).expect("a number is a valid name"),
    }
}

/// Returns the digest of some bytes: their SHA-256.
pub(super) fn digest(bytes: &[u8]) -> Digest {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    Digest(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
}

fn invalid(what: &str) -> Diagnostic {
    Diagnostic::new(format!("a program of another process {what}"))
        .help("both processes must run the same version of anabranch")
}

impl ProgramSpec {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (nodes, vars) = self.placement.devices_of_all();
        let numbers = |ids: &[DeviceId]| ids.iter().map(|id| id.index() as u32).collect();
        // Each process chooses its lanes and limits of code, which change no result. The graph has
        // been optimized with all matmuls hoisted that fit.
        let CompileOptions {
            check_finite,
            interpreted,
            fuse,
            matmul_precision,
            hoist,
            max_hoisted_bytes: _,
            fallback,
            is_of_guest: _,
            cpu:
                CpuOptions {
                    native,
                    native_limits: _,
                    lanes: _,
                    lane_code: _,
                    #[cfg(any(test, feature = "testing"))]
                        emulates_tiles: _,
                },
        } = self.options;
        let PartitionOptions { lower_everything, lower_control, parallel_iterations } = self.flow;
        let rounds = matmul_precision == MatmulPrecision::Bf16;
        let device = |d: &ProgramDevice| (d.process.0, (d.name.kind() == DeviceKind::Gpu) as u8, d.name.index());
        let form = Form {
            devices: self.devices.iter().map(device).collect(),
            nodes: numbers(nodes),
            vars: numbers(vars),
            parallel_iterations,
            flags: [lower_everything, lower_control, check_finite, interpreted, native, fuse, hoist, fallback, rounds],
            graph: wire::encode(&self.graph),
        };
        postcard::to_allocvec(&form).expect("vectors of numbers can be encoded")
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<ProgramSpec> {
        if bytes.len() > MAX_ENCODED {
            return Err(invalid(&format!("has {} bytes, more than {MAX_ENCODED}", bytes.len())));
        }
        let form: Form = postcard::from_bytes(bytes).map_err(|_| invalid("cannot be read"))?;
        let graph = wire::decode(&form.graph, &WireLimits::default())?;
        if form.devices.len() > MAX_DEVICES {
            return Err(invalid("has too many devices"));
        }
        let devices = form.devices.into_iter().map(|(process, kind, index)| {
            let kind = *DeviceKind::ALL.get(kind as usize).ok_or_else(|| invalid("has an unknown kind of device"))?;
            if process >= MAX_PROCESSES {
                return Err(invalid("has too many processes"));
            }
            let process = ProcessId(process);
            Ok(ProgramDevice { process, name: name_of_device(process, kind, index) })
        });
        let devices: Vec<ProgramDevice> = devices.collect::<Result<_>>()?;
        let mut windows = vec![form.parallel_iterations];
        graph.visit_nodes(graph.root(), &mut |node| {
            let window = graph.as_while(node).and_then(WhileNode::parallel_iterations);
            windows.extend(window.map(NonZeroU32::get));
        });
        if !windows.iter().all(|n| (1..=MAX_WINDOW).contains(n)) {
            return Err(invalid(&format!("allows 0 or more than {MAX_WINDOW} parallel iterations")));
        }
        let ids = |numbers: Vec<u32>| numbers.into_iter().map(|i| DeviceId::from_index(i as usize)).collect();
        let placement = Placement::computed_elsewhere(&graph, devices.len(), ids(form.nodes), ids(form.vars))?;
        let [lower_everything, lower_control, check_finite, interpreted, native, fuse, hoist, fallback, rounds] =
            form.flags;
        Ok(ProgramSpec {
            graph,
            placement,
            devices,
            flow: PartitionOptions { lower_everything, lower_control, parallel_iterations: form.parallel_iterations },
            options: CompileOptions {
                check_finite,
                interpreted,
                fuse,
                matmul_precision: if rounds { MatmulPrecision::Bf16 } else { MatmulPrecision::Full },
                hoist,
                fallback,
                is_of_guest: true,
                ..CompileOptions::default().with_native(native)
            },
        })
    }

    /// Decodes a program that may take `room` bytes when it is loaded, in addition to its encoding.
    /// Returns it with the bytes that it takes.
    pub(super) fn decode_within(bytes: &[u8], room: u64) -> Result<(ProgramSpec, u64)> {
        let spec = ProgramSpec::decode(bytes)?;
        let bytes = spec.graph.n_nodes() as u64 * BYTES_PER_NODE;
        if bytes > room {
            let message =
                format!("the program takes {bytes} bytes, and the peer has {room} left for those of the session");
            return Err(Diagnostic::new(message)
                .of_kind(ErrorKind::ResourceExhausted)
                .help("divide the function, or drop functions that are not called any more"));
        }
        Ok((spec, bytes))
    }

    /// Cuts the program. Returns the partition and its digest.
    pub(super) fn cut(&self) -> (Partition, Digest) {
        let partition = flow::partition(&self.graph, &self.placement, self.flow);
        let digest = digest(partition.description().as_bytes());
        (partition, digest)
    }

    /// Cuts the program and loads the kernels of a process. `local` returns a device of this
    /// process by its name without the peer. Ends soon after `is_stopped` holds: kernels ask it
    /// between the stages of their compilation. Returns the driver and the digest of the cut.
    pub(super) fn load(
        self,
        own: ProcessId,
        local: impl Fn(DeviceKind, u32) -> Option<Arc<dyn Device>>,
        is_stopped: impl Fn() -> bool,
    ) -> Result<(Driver, Digest)> {
        let devices = self.devices.iter().enumerate().map(|(i, device)| {
            let name = device.name;
            match device.process == own {
                true => local(name.kind(), name.index()).ok_or_else(|| {
                    Diagnostic::new(format!("this peer has no device /{}:{}", name.kind(), name.index()))
                }),
                false => Ok(Arc::new(RemoteDevice::elsewhere(DeviceId::from_index(i), name)) as Arc<dyn Device>),
            }
        });
        let devices: Vec<Arc<dyn Device>> = devices.collect::<Result<_>>()?;
        let processes = Processes::new(own, self.devices.iter().map(|device| device.process).collect());
        let (partition, cut) = self.cut();
        let may_go_on = || match is_stopped() {
            true => Err(Diagnostic::new("the program is not needed any more").of_kind(ErrorKind::Cancelled)),
            false => Ok(()),
        };
        let driver = Driver::new_while(self.graph, partition, &devices, processes, self.options, &may_go_on)?;
        Ok((driver, cut))
    }

    /// Returns the device of each variable.
    pub(super) fn devices_of_vars(&self) -> Vec<DeviceId> {
        self.placement.devices_of_all().1.to_vec()
    }
}

/// Returns the error of a panic while a program is loaded or run. The panic has been printed.
pub(super) fn panicked(what: &str) -> Diagnostic {
    Diagnostic::new(format!("anabranch failed while it {what} a program"))
        .of_kind(ErrorKind::Internal)
        .help("please report this, with the output of the peer")
}
