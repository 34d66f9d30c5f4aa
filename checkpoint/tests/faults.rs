//! Single operations of the storage that fail or come between others.

use crate::checkpoints::{Outcome, number, save_all, value};
use crate::hooked::HookedDisk;
use anabranch::Session;
use anabranch::checkpoints::{Checkpoints, CheckpointsBuilder, FileStorage, RunParts, StepRecord};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn on(disk: &HookedDisk) -> CheckpointsBuilder {
    Checkpoints::new("c").storage(Arc::new(disk.clone()))
}

/// Writes a file in a folder, which is created.
fn write(disk: &HookedDisk, folder: &str, name: &str) -> io::Result<()> {
    disk.create_dir(Path::new(folder))?;
    disk.create(&Path::new(folder).join(name))?.write_all(b"mine")
}

fn names(disk: &HookedDisk) -> Vec<String> {
    let mut names = disk.list(Path::new("c")).expect("the folder is there");
    names.retain(|name| name != ".lock");
    names.sort();
    names
}

#[test]
fn a_folder_of_a_step_without_a_manifest_is_left_as_it_is() -> Outcome {
    let (disk, session, vars) = (HookedDisk::new(), Session::new()?, number(0.0));
    let parts = RunParts::new().module("m", &vars);
    let mut checkpoints = on(&disk).open()?;
    save_all(&mut checkpoints, &session, &vars, &[1])?;
    drop(checkpoints);
    for folder in ["c/step-00000002", "c/step-00000003", "c/.deleted-mine", "c/.partial-mine"] {
        write(&disk, folder, "precious").unwrap();
    }
    for folder in ["c/.deleted-step-00000004-1", "c/.partial-step-00000005"] {
        write(&disk, folder, "rubbish").unwrap();
    }
    let mut checkpoints = on(&disk).keep_latest(1).open()?;
    let others = [".deleted-mine", ".partial-mine"];
    assert_eq!(names(&disk), [&others[..], &["step-00000001", "step-00000002", "step-00000003"]].concat());
    assert_eq!(checkpoints.steps(), [1]);
    let resumed = checkpoints.resume(&session, &parts)?.expect("step 1 is there");
    assert_eq!((resumed.step(), resumed.notes.len()), (1, 2));
    // Also old checkpoints that are not kept are only those with a manifest.
    save_all(&mut checkpoints, &session, &vars, &[3, 4])?;
    let steps = ["damaged-step-00000003-1", "step-00000002", "step-00000004"];
    assert_eq!(names(&disk), [&others[..], &steps].concat());
    checkpoints.discard_after(0)?;
    assert_eq!(names(&disk), [&others[..], &steps[..2]].concat());
    assert_eq!(disk.disk.bytes(Path::new("c/step-00000002/precious")), b"mine");
    Ok(())
}

#[test]
fn a_checkpoint_that_is_deleted_disappears_whole_and_durably_before_its_files() -> Outcome {
    let (disk, session, vars) = (HookedDisk::new(), Session::new()?, number(0.0));
    let mut checkpoints = on(&disk).keep_latest(1).open()?;
    save_all(&mut checkpoints, &session, &vars, &[1])?;
    let (inner, seen) = (disk.disk.clone(), Arc::new(AtomicU64::new(0)));
    let removed = seen.clone();
    disk.hook(move |operation, path| {
        if operation == "remove" {
            assert!(path.starts_with("c/.deleted-step-00000001-1"), "{}", path.display());
            let crashed = inner.crash(crate::simulator::Crash::Drop, &mut crate::support::Random::new(1));
            assert!(crashed.list(Path::new("c"))?.iter().all(|name| name != "step-00000001"));
            removed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    });
    save_all(&mut checkpoints, &session, &vars, &[2])?;
    assert_eq!((seen.load(Ordering::Relaxed), names(&disk)), (2, vec!["step-00000002".to_owned()]));
    Ok(())
}

#[test]
fn saving_goes_on_when_an_old_checkpoint_cannot_be_deleted() -> Outcome {
    for (operation, end, left) in [
        ("rename", "step-00000001", "step-00000001"),
        ("remove", "manifest.json", ".deleted-step-00000001-1"),
        ("remove_dir", "-1", ".deleted-step-00000001-1"),
    ] {
        let (disk, session, vars) = (HookedDisk::new(), Session::new()?, number(0.0));
        let parts = RunParts::new().module("m", &vars);
        let mut checkpoints = on(&disk).keep_latest(1).open()?;
        save_all(&mut checkpoints, &session, &vars, &[1])?;
        disk.refuse(operation, end, ErrorKind::PermissionDenied);
        for step in 2..=4 {
            checkpoints.save(&session, &parts, StepRecord::new(step))?;
            while checkpoints.is_saving() {
                std::thread::yield_now();
            }
        }
        assert_eq!((checkpoints.counts().saved, checkpoints.counts().failed), (4, 0), "{operation}");
        assert!(names(&disk).contains(&left.to_owned()), "{operation}: {:?}", names(&disk));
        let error = checkpoints.wait().unwrap_err().to_string();
        assert!(error.contains("step 4 is saved, but an old checkpoint could not be deleted"), "{error}");
        checkpoints.wait()?;
        drop(checkpoints);
        // The next writer skips what it cannot remove.
        let mut checkpoints = on(&disk).keep_latest(1).open()?;
        assert_eq!(checkpoints.steps().last(), Some(&4), "{operation}");
        assert!(checkpoints.steps().iter().all(|step| names(&disk).contains(&format!("step-{step:08}"))));
        disk.repair();
        checkpoints.save(&session, &parts, StepRecord::new(5))?;
        checkpoints.wait()?;
        assert_eq!((names(&disk), checkpoints.steps()), (vec!["step-00000005".to_owned()], vec![5]), "{operation}");
    }
    Ok(())
}

#[test]
fn an_error_of_the_storage_is_no_damage_and_cuts_no_log() -> Outcome {
    let (disk, session, vars) = (HookedDisk::new(), Session::new()?, number(0.0));
    let parts = RunParts::new().module("m", &vars).log("log", "log");
    let mut checkpoints = on(&disk).open()?;
    disk.create(Path::new("log")).unwrap();
    for step in [1, 2] {
        disk.disk.append(Path::new("log"), b"line\n").unwrap();
        checkpoints.save(&session, &parts, StepRecord::new(step))?;
        checkpoints.wait()?;
    }
    for file in ["step-00000002/manifest.json", "step-00000002/state.safetensors"] {
        for kind in [ErrorKind::PermissionDenied, ErrorKind::Other, ErrorKind::TimedOut] {
            disk.refuse("read", file, kind);
            let error = checkpoints.resume(&session, &parts).expect_err(file);
            assert!(error.message.contains(file), "{error}");
            assert_eq!(disk.disk.bytes(Path::new("log")).len(), 10);
        }
        for kind in [ErrorKind::NotFound, ErrorKind::UnexpectedEof] {
            let log = disk.disk.bytes(Path::new("log"));
            disk.refuse("read", file, kind);
            let resumed = checkpoints.resume(&session, &RunParts::new().module("m", &vars))?;
            assert_eq!(resumed.map(|resumed| resumed.step()), Some(1));
            assert_eq!(disk.disk.bytes(Path::new("log")), log);
        }
    }
    // Also when a step is not known to be damaged.
    drop(checkpoints);
    disk.refuse("read", "step-00000002/manifest.json", ErrorKind::PermissionDenied);
    assert!(on(&disk).open().unwrap_err().message.contains("could not read"));
    Ok(())
}

#[test]
fn a_reader_looks_again_when_the_step_that_it_reads_was_deleted() -> Outcome {
    // An older step that is still there is not the latest one.
    for deleted in [&["step-00000001", "step-00000002"][..], &["step-00000002"]] {
        reads_the_step_that_was_saved_meanwhile(deleted)?;
    }
    Ok(())
}

fn reads_the_step_that_was_saved_meanwhile(deleted: &'static [&'static str]) -> Outcome {
    let (disk, session, vars) = (HookedDisk::new(), Session::new()?, number(0.0));
    let parts = RunParts::new().module("m", &vars);
    let mut checkpoints = on(&disk).open()?;
    save_all(&mut checkpoints, &session, &vars, &[1, 2])?;
    let (inner, done) = (disk.disk.clone(), AtomicBool::new(false));
    let path = |name: &str| PathBuf::from("c").join(name);
    disk.hook(move |operation, at| {
        if operation == "read" && at.starts_with("c/step-00000002") && !done.swap(true, Ordering::Relaxed) {
            // Another process saves step 3 and deletes others.
            inner.create_dir(&path("step-00000003"))?;
            for file in ["manifest.json", "state.safetensors"] {
                let from = inner.bytes(&path("kept").join(file));
                inner.create(&path("step-00000003").join(file))?.write_all(&from)?;
            }
            for step in deleted {
                inner.rename(&path(step), &path(&format!(".deleted-{step}-1")))?;
            }
        }
        Ok(())
    });
    // The files of step 3, from a run that was the same.
    let other = HookedDisk::new();
    save_all(&mut on(&other).open()?, &session, &vars, &[3])?;
    disk.disk.create_dir(Path::new("c/kept")).unwrap();
    for file in ["manifest.json", "state.safetensors"] {
        let bytes = other.disk.bytes(&Path::new("c/step-00000003").join(file));
        disk.disk.create(&Path::new("c/kept").join(file)).unwrap().write_all(&bytes).unwrap();
    }
    vars.set(&session, &[("x", anabranch::HostTensor::scalar(0.0_f32))]);
    let resumed = checkpoints.resume(&session, &parts)?.expect("step 3 is there");
    assert_eq!((resumed.step(), value(&session, &vars), resumed.notes.len()), (3, 3.0, 0));
    Ok(())
}

#[test]
fn a_step_whose_last_sync_fails_is_not_there_and_is_saved_again() -> Outcome {
    for renames_back in [true, false] {
        let (disk, session, vars) = (HookedDisk::new(), Session::new()?, number(0.0));
        let parts = RunParts::new().module("m", &vars);
        let mut checkpoints = on(&disk).open()?;
        save_all(&mut checkpoints, &session, &vars, &[1])?;
        disk.hook(move |operation, path| {
            let refused = operation == "sync_dir" && path == Path::new("c")
                || operation == "rename" && path.ends_with("step-00000002") && !renames_back;
            if refused { Err(ErrorKind::Other.into()) } else { Ok(()) }
        });
        checkpoints.save(&session, &parts, StepRecord::new(2))?;
        assert!(checkpoints.wait().is_err());
        assert_eq!(names(&disk).contains(&"step-00000002".to_owned()), !renames_back);
        assert_eq!(checkpoints.steps(), if renames_back { vec![1] } else { vec![1, 2] });
        disk.repair();
        let next = if renames_back { 2 } else { 3 };
        save_all(&mut checkpoints, &session, &vars, &[next])?;
        assert_eq!(checkpoints.steps(), (1..=next).collect::<Vec<_>>());
        assert_eq!(names(&disk).len() as u64, next);
    }
    Ok(())
}

#[test]
fn a_log_that_is_not_in_the_storage_is_an_error_of_the_save() -> Outcome {
    let (disk, session, vars) = (HookedDisk::new(), Session::new()?, number(0.0));
    let parts = RunParts::new().module("m", &vars).log("losses", "losses.txt");
    let mut checkpoints = on(&disk).open()?;
    let error = checkpoints.save(&session, &parts, StepRecord::new(1)).unwrap_err();
    assert!(error.message.starts_with("the log file losses.txt is not there"), "{error}");
    assert!(error.help.as_ref().is_some_and(|help| help.contains("storage")), "{error}");
    disk.create(Path::new("losses.txt")).unwrap();
    checkpoints.save(&session, &parts, StepRecord::new(1))?;
    checkpoints.wait()
}

#[test]
fn the_folder_above_is_synced_only_when_a_folder_was_created_in_it() -> Outcome {
    let disk = HookedDisk::new();
    disk.refuse("sync_dir", ".", ErrorKind::PermissionDenied);
    assert!(on(&disk).open().is_err());
    disk.repair();
    on(&disk).open()?;
    disk.refuse("sync_dir", ".", ErrorKind::PermissionDenied);
    on(&disk).open()?;
    Ok(())
}
