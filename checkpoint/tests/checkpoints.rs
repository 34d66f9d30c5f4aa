//! Checkpoints of runs: what they hold, which are kept, and what becomes of damage and errors.

use crate::hooked::HookedDisk;
use crate::simulator::{Fault, SimulatedDisk};
use crate::support::{TestFolder, Vars};
use anabranch::checkpoints::{
    Checkpoints, Goal, Restore, RunParts, SaveCounts, SaveOutcome, StepRecord, WhenBusy, restore_latest,
};
use anabranch::nn::{Init, Linear};
use anabranch::optim::{Adam, Optimizer, Sgd};
use anabranch::prelude::*;
use anabranch::{Diagnostic, HostTensor};
use std::fs;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub type Outcome = Result<(), Diagnostic>;

pub fn number(x: f32) -> Vars {
    Vars::new(&[("x", HostTensor::scalar(x))])
}

/// Saves steps at once, each with the value of its number.
pub fn save_all(checkpoints: &mut Checkpoints, session: &Session, vars: &Vars, steps: &[u64]) -> Outcome {
    for &step in steps {
        vars.set(session, &[("x", HostTensor::scalar(step as f32))]);
        checkpoints.save(session, &RunParts::new().module("m", vars), StepRecord::new(step))?;
        checkpoints.wait()?;
    }
    Ok(())
}

pub fn value(session: &Session, vars: &Vars) -> f64 {
    vars.values(session)[0].1.to_f64().expect("a scalar")
}

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Position {
    epoch: u32,
    best: f64,
    worst: f64,
    rate: f32,
    of_file: std::collections::BTreeMap<u64, Option<String>>,
    nothing: (),
}

#[test]
fn variables_of_strings_continue() -> Outcome {
    let folder = TestFolder::new("of_strings");
    let session = Session::new()?;
    let (lines, n) = (Var::<Bytes>::new("lines", ["", ""]), Var::<i32>::untrained("n", 0));
    let vars = Vars(vec![("lines".to_owned(), lines.any().clone()), ("n".to_owned(), n.any().clone())]);
    let step = session.function(|line: Tensor<Bytes>| {
        lines.set(stack(&[lines.get().row(1), line.upper()], 0));
        n.set(n.get() + 1);
    })?;
    let mut checkpoints = Checkpoints::new(folder.path("c")).open()?;
    let parts = RunParts::new().module("m", &vars);
    for (i, line) in ["a", "longer than before"].into_iter().enumerate() {
        step.call(line)?;
        checkpoints.save(&session, &parts, StepRecord::new(i as u64 + 1))?;
        // The value is that of the save, although the next step assigns the variable meanwhile.
        step.call("later")?;
        checkpoints.wait()?;
        let resumed = checkpoints.resume(&session, &parts)?.expect("a step");
        assert_eq!(resumed.step(), i as u64 + 1);
    }
    assert_eq!(session.get(&lines)?.as_slice(), ["A", "LONGER THAN BEFORE"]);
    assert_eq!(session.get(&n)?, 2);
    Ok(())
}

#[test]
fn a_run_continues_in_another_session_with_everything_that_it_had() -> Outcome {
    let folder = TestFolder::new("continues");
    let build = || -> Result<_, Diagnostic> {
        let (session, init) = (Session::new()?, Init::new(1));
        let (model, adam) = ([Linear::new(&init, 3, 4), Linear::new(&init, 4, 1)], Adam::new(0.05));
        adam.prepare(&model);
        Ok((session, model, adam))
    };
    let steps = |session: &Session, model: &[Linear; 2], adam: &Adam, n: usize| -> Result<Vec<f32>, Diagnostic> {
        let train = session.function(|x: Tensor| {
            let loss = model[1].forward(model[0].forward(x).tanh()).square().mean();
            adam.minimize(loss, model);
            loss
        })?;
        (0..n).map(|i| Ok(train.call([[i as f32 * 0.1, 1.0, -1.0]])?.item())).collect()
    };
    let (session, model, adam) = build()?;
    let parts = RunParts::new().module("model", &model).module("adam", &adam);
    let mut checkpoints = Checkpoints::new(folder.path("run/checkpoints")).open()?;
    assert!(checkpoints.resume(&session, &parts)?.is_none());
    steps(&session, &model, &adam, 5)?;
    let position = Position {
        epoch: 3,
        best: f64::INFINITY,
        worst: -f64::from_bits(0x7FF8_0000_0000_0123),
        rate: 0.1,
        of_file: [(7, None), (9, Some("a".to_owned()))].into(),
        nothing: (),
    };
    let record = StepRecord::new(5).value("position", &position).value("text", "ä").metric("loss", f64::NAN);
    assert_eq!(checkpoints.save(&session, &parts, record)?, SaveOutcome::Started);
    let expected = steps(&session, &model, &adam, 5)?;
    checkpoints.wait()?;
    assert_eq!(checkpoints.counts(), SaveCounts { saved: 1, ..SaveCounts::default() });
    drop(checkpoints);

    let (session, model, adam) = build()?;
    let parts = RunParts::new().module("model", &model).module("adam", &adam);
    let mut checkpoints = Checkpoints::new(folder.path("run/checkpoints")).open()?;
    let resumed = checkpoints.resume(&session, &parts)?.expect("there is a checkpoint");
    assert_eq!((resumed.step(), resumed.report.restored.len(), resumed.notes.len()), (5, 13, 0));
    assert_eq!(resumed.report.restored[4].0, "adam.steps");
    let read: Position = resumed.value("position")?;
    assert_eq!(read.worst.to_bits(), position.worst.to_bits());
    assert_eq!(
        (read.best, read.of_file, resumed.value::<String>("text")?),
        (f64::INFINITY, position.of_file, "ä".into())
    );
    assert!(resumed.metric("loss").is_some_and(f64::is_nan) && resumed.metric("none").is_none());
    assert_eq!(steps(&session, &model, &adam, 5)?, expected, "the same bits as without a stop");
    // Values that are not there, or of another type.
    let error = resumed.value::<f32>("none").unwrap_err();
    assert_eq!(error.message, "the checkpoint of step 5 has no value `none`");
    assert_eq!(error.help.as_deref(), Some("it has `position`, `text`"));
    assert!(resumed.value::<f32>("text").unwrap_err().message.contains("of another type"));
    Ok(())
}

#[test]
fn variables_that_do_not_match_are_all_listed_unless_the_caller_allows_them() -> Outcome {
    let folder = TestFolder::new("mismatch");
    let (session, init) = (Session::new()?, Init::new(1));
    let (model, adam) = (Linear::new(&init, 2, 1), Adam::new(0.1));
    adam.prepare(&model);
    let mut checkpoints = Checkpoints::new(folder.path("c")).open()?;
    let parts = RunParts::new().module("model", &model).module("adam", &adam);
    checkpoints.save(&session, &parts, StepRecord::new(1))?;
    let fresh = Adam::new(0.1);
    let parts = RunParts::new().module("net", &model).module("adam", &fresh);
    let error = checkpoints.resume(&session, &parts).unwrap_err();
    let notes: Vec<&str> = error.labels.iter().map(|(_, note)| note.as_str()).collect();
    let unused = "no variable for `adam.bias.adam_m`, `adam.bias.adam_v`, `adam.weight.adam_m`, `adam.weight.adam_v`, \
                  `model.bias`, `model.weight`";
    assert_eq!(notes, ["resumed here", "no value for `net.weight`, `net.bias`", unused]);
    assert!(error.help.as_ref().is_some_and(|help| help.contains("`prepare(&model)`")), "{error}");
    let rename = Restore::strict().ignore_unused().rename(|path| path.replace("net.", "model."));
    let resumed = checkpoints.resume_with(&session, &parts, &rename)?.expect("there is a checkpoint");
    assert_eq!((resumed.report.restored.len(), resumed.report.unused.len()), (3, 4));
    Ok(())
}

#[test]
fn the_latest_and_the_best_are_kept() -> Outcome {
    let disk = SimulatedDisk::new();
    let (session, vars) = (Session::new()?, number(0.0));
    let losses = [(1, 0.5), (2, 0.1), (3, f64::NAN), (4, 0.1), (5, 0.9), (6, 0.8)];
    let run = |goal, name: &str, latest: Option<usize>| -> Result<Vec<u64>, Diagnostic> {
        let builder = Checkpoints::new(name).storage(Arc::new(disk.clone()));
        let builder = latest.into_iter().fold(builder, |builder, n| builder.keep_latest(n));
        let mut checkpoints = builder.keep_best(2, "loss", goal).open()?;
        for (step, loss) in losses {
            let record = StepRecord::new(step).metric("loss", loss);
            checkpoints.save(&session, &RunParts::new().module("m", &vars), record)?;
        }
        checkpoints.wait()?;
        drop(checkpoints);
        // The metrics are also those that a later process finds.
        let mut checkpoints =
            Checkpoints::new(name).storage(Arc::new(disk.clone())).keep_best(2, "loss", goal).open()?;
        checkpoints.save(&session, &RunParts::new().module("m", &vars), StepRecord::new(7))?;
        checkpoints.wait()?;
        Ok(checkpoints.steps())
    };
    assert_eq!(run(Goal::Min, "min", None)?, [2, 4, 7]);
    assert_eq!(run(Goal::Max, "max", None)?, [5, 6, 7]);
    assert_eq!(run(Goal::Min, "min and latest", Some(3))?, [2, 4, 7]);
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_link_to_a_checkpoint_of_another_run_is_removed_without_its_files() -> Outcome {
    let folder = TestFolder::new("links");
    let (session, vars) = (Session::new()?, number(0.0));
    let mut other = Checkpoints::new(folder.path("other")).open()?;
    save_all(&mut other, &session, &vars, &[5])?;
    fs::create_dir(folder.path("c")).unwrap();
    std::os::unix::fs::symlink(folder.path("other/step-00000005"), folder.path("c/step-00000005")).unwrap();
    let mut checkpoints = Checkpoints::new(folder.path("c")).keep_latest(1).open()?;
    save_all(&mut checkpoints, &session, &vars, &[7])?;
    assert_eq!((checkpoints.steps(), folder.path("c/step-00000005").exists()), (vec![7], false));
    let parts = RunParts::new().module("m", &vars);
    let resumed = restore_latest(folder.path("other"), &session, &parts, &Restore::strict())?;
    assert_eq!(resumed.map(|resumed| resumed.step()), Some(5));
    Ok(())
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_named() -> Outcome {
    let folder = TestFolder::new("damaged");
    let (session, vars) = (Session::new()?, number(0.0));
    let parts = RunParts::new().module("m", &vars);
    let mut checkpoints = Checkpoints::new(folder.path("c")).keep_latest(2).open()?;
    save_all(&mut checkpoints, &session, &vars, &[1, 2, 3])?;
    let latest = folder.path("c/step-00000003");
    let originals =
        ["state.safetensors", "manifest.json"].map(|name| (latest.join(name), fs::read(latest.join(name)).unwrap()));
    // Each byte of each file changed, each length, and a file of zeros.
    for (path, bytes) in &originals {
        let mut damages: Vec<Vec<u8>> = (0..bytes.len()).map(|len| bytes[..len].to_vec()).collect();
        damages.extend((0..bytes.len()).map(|i| {
            let mut changed = bytes.clone();
            changed[i] ^= 0x41;
            changed
        }));
        damages.push(vec![0; bytes.len()]);
        damages.push([&bytes[..], b"\n"].concat());
        for damage in damages {
            fs::write(path, &damage).unwrap();
            let resumed =
                restore_latest(folder.path("c"), &session, &parts, &Restore::strict())?.expect("step 2 is there");
            assert_eq!((resumed.step(), value(&session, &vars)), (2, 2.0));
            let name = path.display().to_string();
            assert!(resumed.notes[0].contains(&name), "{resumed}");
            assert!(resumed.to_string().contains("note: step 3 is passed over: "), "{resumed}");
        }
        fs::write(path, bytes).unwrap();
    }
    // A folder in the place of a file, and a file in the place of the folder.
    let (manifest, bytes) = &originals[1];
    fs::remove_file(manifest).unwrap();
    fs::create_dir(manifest).unwrap();
    assert_eq!(checkpoints.resume(&session, &parts)?.expect("step 2 is there").step(), 2);
    fs::remove_dir(manifest).unwrap();
    fs::write(manifest, bytes).unwrap();
    let aside = folder.path("c/aside");
    fs::rename(&latest, &aside).unwrap();
    fs::write(&latest, "no folder").unwrap();
    assert_eq!(checkpoints.resume(&session, &parts)?.expect("step 2 is there").step(), 2);
    fs::remove_file(&latest).unwrap();
    fs::rename(&aside, &latest).unwrap();

    fs::remove_file(&originals[0].0).unwrap();
    let resumed = checkpoints.resume(&session, &parts)?.expect("step 2 is there");
    assert_eq!((resumed.step(), value(&session, &vars)), (2, 2.0));
    assert!(resumed.notes[0].contains("could not open"), "{resumed}");
    // The step is saved again, in place of the damaged one, which does not count as the latest and
    // is set aside.
    assert_eq!(checkpoints.steps(), [2]);
    save_all(&mut checkpoints, &session, &vars, &[3])?;
    assert!(folder.path("c/damaged-step-00000003-1/manifest.json").is_file());
    assert_eq!(checkpoints.steps(), [2, 3]);
    assert_eq!(
        checkpoints.resume(&session, &parts)?.map(|resumed| (resumed.step(), resumed.notes.len())),
        Some((3, 0))
    );
    // If all are damaged, nothing begins anew by itself.
    for step in ["step-00000002", "step-00000003"] {
        fs::write(folder.path("c").join(step).join("manifest.json"), "{}").unwrap();
    }
    let error = checkpoints.resume(&session, &parts).unwrap_err();
    assert!(error.message.contains("no checkpoint in") && error.labels.len() == 3, "{error}");
    Ok(())
}

#[test]
fn checkpoints_of_another_format_are_left_alone() -> Outcome {
    let folder = TestFolder::new("format");
    let (session, vars) = (Session::new()?, number(0.0));
    let mut checkpoints = Checkpoints::new(folder.path("c")).open()?;
    save_all(&mut checkpoints, &session, &vars, &[1, 2])?;
    // As a later version would write it, with a checksum of `{"format":2}` by another library.
    let newer = "{\"checksum\":\"95fbaad0237542d8\",\"checkpoint\":{\"format\":2}}\n";
    fs::write(folder.path("c/step-00000002/manifest.json"), newer).unwrap();
    let parts = RunParts::new().module("m", &vars);
    let error = checkpoints.resume(&session, &parts).unwrap_err();
    assert!(error.message.ends_with("the format is 2, but this version of anabranch reads 1"), "{error}");
    drop(checkpoints);
    let error = Checkpoints::new(folder.path("c")).open().unwrap_err();
    assert!(error.message.contains("the format is 2"), "{error}");
    Ok(())
}

#[test]
fn one_writer_has_the_folder_and_others_read() -> Outcome {
    let folder = TestFolder::new("lock");
    let (session, vars) = (Session::new()?, number(0.0));
    let mut checkpoints = Checkpoints::new(folder.path("c")).open()?;
    save_all(&mut checkpoints, &session, &vars, &[1])?;
    let error = Checkpoints::new(folder.path("c")).open().unwrap_err();
    assert!(error.message.starts_with("another writer has the checkpoints in"), "{error}");
    assert!(error.to_string().contains("checkpoints.rs"), "{error}");
    let parts = RunParts::new().module("m", &vars);
    let read = restore_latest(folder.path("c"), &session, &parts, &Restore::strict())?;
    assert_eq!(read.map(|read| read.step()), Some(1));
    drop(checkpoints);
    Checkpoints::new(folder.path("c")).open()?;
    let none = restore_latest(folder.path("nothing"), &session, &parts, &Restore::strict())?;
    assert!(none.is_none());
    Ok(())
}

#[test]
fn log_files_are_cut_to_their_lengths() -> Outcome {
    let folder = TestFolder::new("logs");
    let (session, vars) = (Session::new()?, number(0.0));
    let logs = ["kept", "short", "gone", "new"].map(|name| folder.path(name));
    fs::write(&logs[0], "1\n2\n").unwrap();
    fs::write(&logs[1], "1\n2\n").unwrap();
    fs::write(&logs[2], "1\n2\n").unwrap();
    let saved = RunParts::new().module("m", &vars).log("kept", &logs[0]).log("short", &logs[1]);
    let saved = saved.log("gone", &logs[2]).log("empty", folder.path("empty"));
    fs::write(folder.path("empty"), "").unwrap();
    let mut checkpoints = Checkpoints::new(folder.path("c")).open()?;
    checkpoints.save(&session, &saved, StepRecord::new(1))?;
    checkpoints.wait()?;
    fs::write(&logs[0], "1\n2\n3\n").unwrap();
    fs::write(&logs[1], "1\n").unwrap();
    fs::remove_file(&logs[2]).unwrap();
    fs::write(&logs[3], "new\n").unwrap();
    let parts = RunParts::new().module("m", &vars).log("kept", &logs[0]).log("short", &logs[1]);
    let parts = parts.log("gone", &logs[2]).log("new", &logs[3]);
    let before = restore_latest(folder.path("c"), &session, &parts, &Restore::strict())?.expect("it is there");
    assert_eq!(fs::read_to_string(&logs[0]).unwrap(), "1\n2\n3\n", "a reader leaves files as they are");
    let resumed = checkpoints.resume(&session, &parts)?.expect("it is there");
    assert_eq!(before.notes, resumed.notes);
    let notes: Vec<String> =
        resumed.notes.iter().map(|note| note.replace(&folder.path("").display().to_string(), "")).collect();
    let expected = [
        "the log file gone is missing",
        "the checkpoint has no length of the log file new, which stays as it is",
        "the log file short has 2 bytes, but had 4 at the checkpoint",
        "the checkpoint has lengths of other log files, which stay as they are: `empty`",
    ];
    assert_eq!(notes, expected);
    let read = |i: usize| fs::read_to_string(&logs[i]).unwrap();
    assert_eq!((read(0), read(1), read(3)), ("1\n2\n".to_owned(), "1\n".to_owned(), "new\n".to_owned()));
    Ok(())
}

#[test]
fn a_run_goes_back_after_it_has_discarded_what_came_later() -> Outcome {
    let folder = TestFolder::new("back");
    let (session, vars) = (Session::new()?, number(0.0));
    let parts = RunParts::new().module("m", &vars);
    let mut checkpoints = Checkpoints::new(folder.path("c")).open()?;
    save_all(&mut checkpoints, &session, &vars, &[10, 20, 30])?;
    let resumed = checkpoints.resume_step(&session, &parts, 10, &Restore::strict())?;
    assert_eq!((resumed.step(), value(&session, &vars)), (10, 10.0));
    let error = checkpoints.resume_step(&session, &parts, 11, &Restore::strict()).unwrap_err();
    assert!(error.message.ends_with("has no checkpoint of step 11"), "{error}");
    for step in [20, 30] {
        let error = checkpoints.save(&session, &parts, StepRecord::new(step)).unwrap_err();
        assert_eq!(error.message, format!("step {step} cannot be saved, since there is a checkpoint of step 30"));
        assert!(error.help.is_some_and(|help| help.contains("`discard_after`")));
    }
    checkpoints.discard_after(10)?;
    assert_eq!(checkpoints.steps(), [10]);
    save_all(&mut checkpoints, &session, &vars, &[20])?;
    assert_eq!(checkpoints.resume(&session, &parts)?.map(|resumed| resumed.step()), Some(20));
    Ok(())
}

/// A disk whose files are created only while the gate is open.
#[derive(Clone, Debug)]
struct GatedDisk {
    disk: HookedDisk,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl GatedDisk {
    fn closed() -> GatedDisk {
        let gated = GatedDisk { disk: HookedDisk::new(), gate: Arc::default() };
        let gate = gated.gate.clone();
        gated.disk.hook(move |operation, _| {
            if operation == "create" {
                drop(gate.1.wait_while(gate.0.lock().unwrap(), |open| !*open).unwrap());
            }
            Ok(())
        });
        gated
    }

    fn open(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }
}

#[test]
fn steps_run_while_a_snapshot_is_written_and_change_nothing_of_it() -> Outcome {
    let builders = [
        Session::builder(),
        Session::builder().interpreted(true),
        Session::builder().opaque_devices(1).device("/gpu:0"),
    ];
    for builder in builders {
        let (session, disk) = (builder.build()?, GatedDisk::closed());
        let (a, b) = (Var::<f32>::new("a", [1.0; 100]), Var::<f32>::new("b", [1.0; 100]));
        let step = session.function(|| {
            a.set(a.get() + 1.0);
            b.set(b.get() * 2.0);
        })?;
        step.call(())?;
        let parts = RunParts::new().module("a", &a).module("b", &b);
        let open = || Checkpoints::new("c").storage(Arc::new(disk.disk.clone())).when_busy(WhenBusy::Skip).open();
        let mut checkpoints = open()?;
        assert_eq!(checkpoints.save(&session, &parts, StepRecord::new(1))?, SaveOutcome::Started);
        for _ in 0..3 {
            step.call(())?;
            assert_eq!(checkpoints.save(&session, &parts, StepRecord::new(2))?, SaveOutcome::Skipped);
        }
        assert_eq!((session.get(&a)?[0], session.get(&b)?[0]), (5.0, 16.0));
        assert_eq!(checkpoints.counts(), SaveCounts { skipped: 3, ..SaveCounts::default() });
        disk.open();
        checkpoints.wait()?;
        assert_eq!(checkpoints.counts(), SaveCounts { saved: 1, skipped: 3, ..SaveCounts::default() });
        checkpoints.resume(&session, &parts)?.expect("it is there");
        assert_eq!((session.get(&a)?[0], session.get(&b)?[99]), (2.0, 2.0));
    }
    Ok(())
}

#[test]
fn rows_added_to_a_table_leave_a_snapshot_as_it_is() -> Outcome {
    let builders = [
        Session::builder(),
        Session::builder().interpreted(true),
        Session::builder().opaque_devices(1).device("/gpu:0"),
    ];
    for builder in builders {
        let (session, sgd) = (builder.build()?, Sgd::new(0.5));
        let table = Var::<f32>::new("table", vec![[1.0; 4]; 1000]);
        let step = session.function(|rows: Tensor<i32>| sgd.minimize(table.get().take(rows, 0).sum(), &table))?;
        let mut snapshot = session.snapshot([table.any()])?;
        step.call([3, 7, 3])?;
        let mut second = session.snapshot([table.any()])?;
        step.call([7, 7, 7])?;
        assert_eq!(snapshot.take(0)?.data::<f32>(), [1.0; 4000]);
        let row = |values: &[f32], row: usize| values[4 * row];
        let after_one = second.take(0)?;
        assert_eq!([3, 7, 8].map(|i| row(after_one.data(), i)), [0.0, 0.5, 1.0]);
        assert_eq!([3, 7, 8].map(|i| row(session.get(&table).unwrap().as_slice(), i)), [0.0, -1.0, 1.0]);
    }
    Ok(())
}

#[test]
fn a_save_waits_for_the_one_before_it() -> Outcome {
    let disk = GatedDisk::closed();
    let (session, vars) = (Session::new()?, number(0.0));
    let parts = RunParts::new().module("m", &vars);
    let mut checkpoints = Checkpoints::new("c").storage(Arc::new(disk.disk.clone())).open()?;
    checkpoints.save(&session, &parts, StepRecord::new(1))?;
    let opener = std::thread::spawn(move || disk.open());
    checkpoints.save(&session, &parts, StepRecord::new(2))?;
    opener.join().expect("the thread opens the gate");
    checkpoints.wait()?;
    assert_eq!((checkpoints.steps(), checkpoints.counts().saved), (vec![1, 2], 2));
    Ok(())
}

#[test]
fn errors_of_the_writer_are_those_of_the_next_save_or_wait() -> Outcome {
    let disk = SimulatedDisk::new();
    let (session, vars) = (Session::new()?, number(0.0));
    let parts = RunParts::new().module("m", &vars);
    let mut checkpoints = Checkpoints::new("c").storage(Arc::new(disk.clone())).open()?;
    save_all(&mut checkpoints, &session, &vars, &[1])?;
    let fail = || disk.fail(Fault { at: disk.operations() + 5, until: u64::MAX, error: io::ErrorKind::StorageFull });
    let repair = || disk.fail(Fault { at: 0, until: 0, error: io::ErrorKind::StorageFull });
    fail();
    checkpoints.save(&session, &parts, StepRecord::new(2))?;
    let error = checkpoints.wait().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("could not write") && text.contains("note: step 2 is not saved"), "{text}");
    assert_eq!(error.kind, anabranch::ErrorKind::ResourceExhausted);
    checkpoints.wait()?;
    fail();
    repair();
    fail();
    checkpoints.save(&session, &parts, StepRecord::new(2))?;
    let error = checkpoints.save(&session, &parts, StepRecord::new(3)).unwrap_err();
    assert!(error.to_string().contains("note: step 2 is not saved"), "{error}");
    repair();
    save_all(&mut checkpoints, &session, &vars, &[3])?;
    assert_eq!((checkpoints.steps(), checkpoints.counts().failed), (vec![1, 3], 2));
    Ok(())
}

#[test]
fn a_drop_waits_for_a_save_but_not_for_ever() -> Outcome {
    let (session, vars) = (Session::new()?, number(0.0));
    let parts = RunParts::new().module("m", &vars);
    let disk = GatedDisk::closed();
    let checkpoints = |timeout| Checkpoints::new("c").storage(Arc::new(disk.disk.clone())).drop_timeout(timeout).open();
    let mut hanging = checkpoints(Duration::ZERO)?;
    hanging.save(&session, &parts, StepRecord::new(1))?;
    drop(hanging);
    // The thread still has the folder, so nobody else writes there.
    assert!(checkpoints(Duration::ZERO).unwrap_err().message.starts_with("another writer has"));
    disk.open();
    let mut next = loop {
        match checkpoints(Duration::from_secs(60)) {
            Ok(next) => break next,
            Err(_) => std::thread::yield_now(),
        }
    };
    assert!(next.steps().is_empty(), "the save was abandoned");
    next.save(&session, &parts, StepRecord::new(2))?;
    drop(next);
    assert_eq!(checkpoints(Duration::ZERO)?.steps(), [2]);
    Ok(())
}

#[test]
fn a_value_that_cannot_be_encoded_is_an_error() -> Outcome {
    /// A value that has no encoding.
    struct Wrong;
    impl serde::Serialize for Wrong {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("never"))
        }
    }
    let (session, vars) = (Session::new()?, number(0.0));
    let mut checkpoints = Checkpoints::new("c").storage(Arc::new(SimulatedDisk::new())).open()?;
    let record = StepRecord::new(1).value("wrong", &Wrong);
    let error = checkpoints.save(&session, &RunParts::new().module("m", &vars), record).unwrap_err();
    assert!(error.message.starts_with("the value `wrong` cannot be encoded"), "{error}");
    let record = StepRecord::new(1).value("__metadata__", &1);
    let error = checkpoints.save(&session, &RunParts::new().module("m", &vars), record).unwrap_err();
    assert_eq!(error.message, "a value is called `__metadata__`, which files do not allow");
    Ok(())
}
