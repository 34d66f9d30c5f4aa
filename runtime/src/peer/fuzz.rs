//! The fuzz targets of peers: all that decodes bytes of other processes or of users, and what
//! receives their frames and messages.
//!
//! `tests/fuzz/` runs them for long, the tests of this module shortly.

use super::PeerAddress;
use super::net::hostile::{fuzz_key, fuzz_link, keys, links};
use super::program::{ProgramDevice, ProgramSpec, name_of_device};
use super::proto::hostile::{frames, fuzz_frame, fuzz_protocol, protocols};
use crate::device::{CpuDevice, Device, DeviceId};
use crate::flow::PartitionOptions;
use crate::flow::executor::hostile::{fuzz_gate, schedules};
use crate::flow::hostile::{HostileProgram, fuzz_step, step_schedules};
use crate::flow::remote::ProcessId;
use crate::options::{CompileOptions, CpuOptions};
use crate::place::place_at_random_where;
use anabranch_dsl::device::DeviceKind;
use anabranch_dsl::interp::{self, InterpOptions};
use anabranch_dsl::ir::wire;
use anabranch_dsl::{Bytes, Graph, HostTensor};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

/// Something that takes any bytes.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// The name of the target.
    pub name: &'static str,
    /// Takes bytes. Returns whether they mean something. Panics if that is wrong.
    pub run: fn(&[u8]) -> bool,
    /// Returns valid inputs, from which others are made.
    pub inputs: fn() -> Vec<Vec<u8>>,
}

impl FuzzTarget {
    /// A frame between processes.
    pub const FRAME: FuzzTarget = FuzzTarget { name: "frame", run: fuzz_frame, inputs: frames };
    /// Frames at a peer and at the owner of a session, in any order, with disturbances.
    pub const PROTOCOL: FuzzTarget = FuzzTarget { name: "protocol", run: fuzz_protocol, inputs: protocols };
    /// The bytes of a link: control frames, chunks and credits.
    pub const LINK: FuzzTarget = FuzzTarget { name: "link", run: fuzz_link, inputs: links };
    /// A key or a join token.
    pub const KEY: FuzzTarget = FuzzTarget { name: "key", run: fuzz_key, inputs: keys };
    /// The address of a peer.
    pub const ADDRESS: FuzzTarget = FuzzTarget { name: "address", run: fuzz_address, inputs: addresses };
    /// A program, which is cut and loaded.
    pub const PROGRAM: FuzzTarget = FuzzTarget { name: "program", run: fuzz_program, inputs: programs };
    /// Messages to the executors of a step.
    pub const GATE: FuzzTarget = FuzzTarget { name: "gate", run: fuzz_gate, inputs: schedules };
    /// Messages and tensors to the processes of a step.
    pub const STEP: FuzzTarget = FuzzTarget { name: "step", run: fuzz_step_of_programs, inputs: step_schedules };

    /// All targets of peers.
    pub const ALL: [FuzzTarget; 8] = [
        FuzzTarget::FRAME,
        FuzzTarget::PROTOCOL,
        FuzzTarget::LINK,
        FuzzTarget::KEY,
        FuzzTarget::ADDRESS,
        FuzzTarget::PROGRAM,
        FuzzTarget::GATE,
        FuzzTarget::STEP,
    ];
}

/// Reads arbitrary bytes as the address of a peer. Names of hosts are left out: they are looked up.
fn fuzz_address(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let at = text.split_once('@').map_or("", |(_, at)| at);
    let at = at.split_once('#').map_or(at, |(at, _)| at);
    let has_port = at.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port && at.parse::<SocketAddr>().is_err() {
        return false;
    }
    text.parse::<PeerAddress>().is_ok_and(|address| {
        let again: PeerAddress = address.to_string().parse().expect("an address that is shown can be read");
        assert_eq!(again.to_string(), address.to_string());
        true
    })
}

fn addresses() -> Vec<Vec<u8>> {
    let id = "0123456789abcdef".repeat(4);
    let hosts = ["127.0.0.1:7700", "[::1]:7700", "[fe80::1%2]:65535"];
    let address = |host: &&str| format!("{id}@{host}");
    let with_token = |host: &&str| format!("{id}@{host}#anabranch-join-6a29f1c0-{id}");
    hosts.iter().map(address).chain(hosts.iter().map(with_token)).map(String::into_bytes).collect()
}

/// Reads arbitrary bytes as a program, cuts it, and loads the part of the first peer.
fn fuzz_program(input: &[u8]) -> bool {
    let Ok(spec) = ProgramSpec::decode(input) else { return false };
    let again = ProgramSpec::decode(&spec.encode()).expect("a program that was encoded can be decoded");
    assert_eq!(again.cut().1, spec.cut().1, "the cut depends on the encoding");
    // A program may need a device or a kernel that the peer does not have.
    let _ = spec.load(ProcessId(1), local_device, || false);
    true
}

/// Returns a device of a process, each of which has two.
fn local_device(kind: DeviceKind, index: u32) -> Option<Arc<dyn Device>> {
    let exists = kind == DeviceKind::Cpu && index < 2;
    exists.then(|| Arc::new(CpuDevice::new(DeviceId::from_index(index as usize), None, 1)) as _)
}

/// Runs a step of a program in three processes, with arrivals that one of them made up.
fn fuzz_step_of_programs(input: &[u8]) -> bool {
    static PROGRAMS: OnceLock<Vec<HostileProgram>> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(|| {
        let inputs = [
            vec![HostTensor::new([2], vec![0.5f32, -1.0])],
            vec![HostTensor::scalar(1i64), HostTensor::scalar(5i64)],
            vec![HostTensor::new([2], vec![Bytes::from("a"), Bytes::from("xyz")]), HostTensor::new([2], vec![0i32, 2])],
        ];
        let of_each = programs();
        let program = |(inputs, bytes): (Vec<HostTensor>, &Vec<u8>)| {
            let decode = || ProgramSpec::decode(bytes).expect("the program was encoded");
            let load =
                |process| decode().load(ProcessId(process), local_device, || false).expect("the devices exist").0;
            let outputs = interp::run(&decode().graph, &inputs, &mut vec![], InterpOptions::new());
            let drivers = (0..3).map(|process| Arc::new(load(process))).collect();
            HostileProgram { drivers, inputs, outputs: outputs.expect("the program has no errors") }
        };
        let inputs = inputs.into_iter().flat_map(|inputs| vec![inputs; of_each.len() / 3]);
        inputs.zip(&of_each).map(program).collect()
    });
    fuzz_step(programs, input)
}

fn programs() -> Vec<Vec<u8>> {
    let texts = [
        "graph @add(%x: f32[2]) -> (f32[2], f32[2]) {
            %y = add %x, %x : f32[2]
            %z = tanh %y : f32[2]
            return %z, %y
        }",
        "graph @count(%x: i64[], %n: i64[]) -> (i64[]) {
            %zero = constant 0 : i64[]
            %i, %y = while (%k = %zero, %s = %x | %m = %n) : (i64[], i64[]) cond {
                %go = lt %k, %m : bool[]
                yield %go
            } body {
                %one = constant 1 : i64[]
                %next = add %k, %one : i64[]
                %p = lt %s, %m : bool[]
                %t = cond %p, %s, %m : (i64[]) then (%a, %b) {
                    %c = mul %a, %b : i64[]
                    yield %c
                } else (%a, %b) {
                    %c = sub %a, %b : i64[]
                    yield %c
                }
                yield %next, %t
            }
            print stdout \"{}\", %y
            return %y
        }",
        "graph @strings(%x: bytes[2], %n: i32[2]) -> (bytes[2], i32[2]) {
            %c = constant [b\"a\", b\"bc\"] : bytes[2]
            %same = eq %x, %c : bool[2]
            %y = select %same, %x, %c : bytes[2]
            %part = substr %y, %n, %n : bytes[2]
            %lengths = byte_len %part : i32[2]
            print stdout \"{}\", %y
            return %y, %lengths
        }",
    ];
    let devices = [(0, 0), (1, 0), (1, 1), (2, 0)].map(|(process, index)| {
        let process = ProcessId(process);
        ProgramDevice { process, name: name_of_device(process, DeviceKind::Cpu, index) }
    });
    let spec = |(text, seed): (&str, u64)| {
        let graph = Graph::parse(text, "program.ir").expect("the text is a graph");
        let graph = wire::decode(&wire::encode(&graph), &wire::WireLimits::default()).expect("it was encoded");
        let placement = place_at_random_where(&graph, devices.len(), seed, |_, _| true);
        let flow = PartitionOptions { lower_everything: seed == 1, ..PartitionOptions::default() };
        let options =
            CompileOptions { cpu: CpuOptions { native: false, ..CpuOptions::default() }, ..CompileOptions::default() };
        ProgramSpec { graph, placement, devices: devices.to_vec(), flow, options }.encode()
    };
    texts.iter().flat_map(|&text| (0..4).map(move |seed| (text, seed))).map(spec).collect()
}

#[cfg(test)]
#[path = "../../../tests/fuzz/mutations.rs"]
mod mutations;
#[cfg(test)]
#[path = "../../../tests/fuzz/survive.rs"]
mod survive;

#[cfg(test)]
mod tests {
    use super::survive::survives_mutations;
    use super::*;
    use anabranch_dsl::{ErrorKind, corpus};

    #[test]
    fn valid_programs_and_frames_have_strings() {
        let has = |input: &Vec<u8>, text: &str| input.windows(text.len()).any(|window| window == text.as_bytes());
        let programs = programs();
        assert!(programs.iter().all(|input| fuzz_program(input)));
        // The elements of the constant, without anything between them.
        assert_eq!(programs.iter().filter(|input| has(input, "abc")).count(), 4);
        // The strings of a head, and of a body.
        for text in ["one", &"y".repeat(15_000)] {
            let n = frames().iter().filter(|input| has(input, text) && fuzz_frame(input)).count();
            assert!(n >= 6, "{n} frames with {text:.10}");
        }
    }

    #[test]
    fn a_program_for_which_there_is_no_memory_is_refused_before_it_is_cut() {
        for program in programs() {
            let (spec, bytes) = ProgramSpec::decode_within(&program, u64::MAX).expect("there is room");
            assert!(bytes >= spec.graph.n_nodes() as u64, "{bytes} bytes");
            ProgramSpec::decode_within(&program, bytes).expect("there is room");
            let error = ProgramSpec::decode_within(&program, bytes - 1).expect_err("a byte is missing");
            assert_eq!(error.kind, ErrorKind::ResourceExhausted);
        }
    }

    #[test]
    fn fuzz_targets_take_their_valid_inputs_and_survive_mutations() {
        let n = if std::env::var_os("ANABRANCH_SLOW").is_some() { 100_000 } else { 2_000 };
        for FuzzTarget { name, run, inputs } in FuzzTarget::ALL {
            let valid = inputs();
            let taken = valid.iter().filter(|input| run(input)).count();
            assert!(taken * 2 > valid.len(), "{name} takes {taken} of {} valid inputs", valid.len());
            survives_mutations(name, run, &valid, n, corpus::seed());
        }
    }
}
