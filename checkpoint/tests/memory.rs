//! The memory of saves. A program of its own, since it reads the peak of its process, where the
//! system tells it.

use anabranch::checkpoints::{Checkpoints, RunParts, SaveOutcome, StepRecord, WhenBusy};
use anabranch::{Array, Session, Var};
use std::path::Path;

const MIB: u64 = 1 << 20;
const N_VARS: u64 = 2;

/// So large that allocators return the memory to the system: what they keep is not measured.
const VAR_MIB: u64 = 40;

/// Returns the largest memory that this process has had, in bytes.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// One test, so that no other one runs meanwhile.
#[test]
fn saves_take_the_memory_of_one_snapshot_however_many_there_are() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("memory-{}", std::process::id()));
    let session = Session::new().unwrap();
    let n = (VAR_MIB * MIB / 4) as usize;
    let vars: Vec<Var> = (0..N_VARS).map(|i| Var::new(format!("v{i}"), Array::new([n], vec![0f32; n]))).collect();
    let step = session.function(|| vars.iter().for_each(|var| var.set(var.get() + 1.0))).unwrap();
    let parts = RunParts::new().module("vars", &vars);
    (0..3).for_each(|_| step.call(()).unwrap());
    let before = peak();
    for when_busy in [WhenBusy::Wait, WhenBusy::Skip] {
        let _ = std::fs::remove_dir_all(&folder);
        let checkpoints = Checkpoints::new(&folder).keep_latest(1).when_busy(when_busy);
        let mut checkpoints = checkpoints.write_share(0.01).open().unwrap();
        let mut n_busy = 0;
        for number in 1..=10 {
            n_busy += u64::from(checkpoints.is_saving());
            let outcome = checkpoints.save(&session, &parts, StepRecord::new(number)).unwrap();
            assert!(outcome == SaveOutcome::Started || when_busy == WhenBusy::Skip);
            step.call(()).unwrap();
        }
        assert!(n_busy > 0, "no save came while another one was being written");
        checkpoints.wait().unwrap();
    }
    std::fs::remove_dir_all(&folder).unwrap();
    if let (Some(before), Some(after)) = (before, peak()) {
        let state = VAR_MIB * MIB * N_VARS;
        let more = after - before;
        assert!(more <= state * 11 / 10 + 16 * MIB, "{} MiB more for a state of {}", more / MIB, state / MIB);
    }
}
