//! Functions that save and restore tensors.

use crate::hooked::HookedDisk;
use crate::queues::KINDS_OF_SESSIONS;
use crate::support::{TestFolder, Vars};
use anabranch::checkpoints::{SafetensorFiles, WeightFile, restore_tensor, save_tensors};
use anabranch::prelude::*;
use anabranch::{
    Bytes, CallOptions, CancelHandle, DType, Diagnostic, Dim, ErrorKind, HostTensor, Session, SessionBuilder,
    TensorType, commit_each_iteration,
};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

type Outcome = Result<(), Diagnostic>;

/// Builders of sessions of every kind, with files.
fn builders() -> [SessionBuilder; 4] {
    let builders = [
        Session::builder().interpreted(true),
        Session::builder(),
        Session::builder().cpus(2).lower_everything(true),
        Session::builder().opaque_devices(1).device("/gpu:0"),
    ];
    builders.map(|builder| builder.tensor_files(SafetensorFiles::new()))
}

fn text(folder: &TestFolder, name: &str) -> String {
    folder.path(name).display().to_string()
}

/// Returns the names of all files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[test]
fn tensors_of_every_type_are_saved_and_restored_on_every_engine() -> Outcome {
    for builder in builders() {
        let (session, folder) = (builder.build()?, TestFolder::new("tensor_files"));
        let path = text(&folder, "all.safetensors");
        let values: [(&str, HostTensor); 10] = [
            ("a.f32", HostTensor::new([2], vec![f32::from_bits(0x7fc0_1234), -0.0])),
            ("b.f64", HostTensor::new([1, 2], vec![0.1, f64::NEG_INFINITY])),
            ("c.f16", HostTensor::scalar(f16::from_f32(1.5))),
            ("d.bf16", HostTensor::new([3], vec![bf16::from_f32(-2.0); 3])),
            ("e.i32", HostTensor::new([0, 4], Vec::<i32>::new())),
            ("f.i64", HostTensor::scalar(i64::MIN)),
            ("g.u32", HostTensor::new([2], vec![u32::MAX, 0])),
            ("h.u8", HostTensor::new([2], vec![1u8, 2])),
            ("i.bool", HostTensor::new([2], vec![true, false])),
            ("j.bytes", HostTensor::new([2], vec![Bytes::from(&b"\xff"[..]), Bytes::from("")])),
        ];
        let vars = Vars::new(&values);
        let save = session.function(|path: Tensor<Bytes>| {
            let read = |(name, var): &(String, anabranch::AnyVar)| (name.clone(), anabranch::extend::read_var(var));
            let all: Vec<_> = vars.0.iter().map(read).collect();
            save_tensors(path, &all.iter().map(|(name, value)| (name.as_str(), *value)).collect::<Vec<_>>());
        })?;
        save.call(path.as_str())?;
        assert_eq!(names(&folder.path("")), ["all.safetensors"]);
        // It is a file of weights, bit by bit.
        WeightFile::new(folder.path("other.safetensors")).save(&session, &vars)?;
        let read = |name: &str| fs::read(folder.path(name)).expect("it is there");
        assert!(read("all.safetensors") == read("other.safetensors"));

        let restore = session.function(|path: Tensor<Bytes>| {
            let first = restore_tensor::<f32>(path, "a.f32", [2]);
            let second = (
                restore_tensor::<f64>(path, "b.f64", [Dim::Known(1), Dim::Unknown]),
                restore_tensor::<f16>(path, "c.f16", []),
            );
            let third = (restore_tensor::<bf16>(path, "d.bf16", [3]), restore_tensor::<i32>(path, "e.i32", [0, 4]));
            let fourth = (restore_tensor::<i64>(path, "f.i64", []), restore_tensor::<u32>(path, "g.u32", [2]));
            let fifth = (restore_tensor::<u8>(path, "h.u8", [2]), restore_tensor::<bool>(path, "i.bool", [2]));
            (first, second, third, fourth, fifth, restore_tensor::<Bytes>(path, "j.bytes", [2]))
        })?;
        let restored = restore.call_host(&[HostTensor::scalar(Bytes::from(path))])?;
        for ((name, expected), restored) in values.iter().zip(&restored) {
            assert_eq!((restored.ty(), name), (expected.ty(), name));
        }
        assert_eq!(restored.len(), values.len());
        let bits: Vec<u32> = restored[0].data::<f32>().iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits, [0x7fc0_1234, 0x8000_0000]);
        assert_eq!(&restored[1..], values[1..].iter().map(|(_, value)| value.clone()).collect::<Vec<_>>());
    }
    Ok(())
}

/// Saves at even numbers, and restores what was saved, in a loop.
#[graph]
fn alternate(dir: Tensor<Bytes>, steps: Tensor<i64>, sum: Var<i64>) {
    for i in range(0..steps) {
        let path = dir.join("/even.safetensors", "");
        if i % 2 == 0 {
            save_tensors(path, &[("i", i.untyped())]);
        } else {
            sum.set(sum.get() * 10 + restore_tensor::<i64>(path, "i", []));
        }
    }
}

#[test]
fn a_call_reads_what_it_has_saved_and_the_last_time_counts() -> Outcome {
    for builder in builders() {
        let (session, folder) = (builder.build()?, TestFolder::new("tensor_files_loop"));
        let (sum, dir) = (Var::<i64>::new("sum", 0), folder.path("").display().to_string());
        let f = session.function(|dir: Tensor<Bytes>, steps: Tensor<i64>| alternate(dir, steps, sum.clone()))?;
        f.call((dir.as_str(), 8))?;
        assert_eq!(session.get(&sum)?, 246);
        assert_eq!(WeightFile::new(folder.path("even.safetensors")).tensor::<i64>("i")?, 6);
        assert_eq!(names(&folder.path("")), ["even.safetensors"]);
    }
    Ok(())
}

/// Saves, and then fails if the number is odd.
#[graph]
fn save_and_check(path: Tensor<Bytes>, x: Tensor<i64>) {
    save_tensors(path, &[("x", x.untyped())]);
    println!("saved {x}");
    assert!(x % 2 == 0, "{x} is odd");
}

#[test]
fn a_call_that_fails_or_is_cancelled_leaves_no_file() -> Outcome {
    for builder in builders() {
        let folder = TestFolder::new("tensor_files_failed");
        let (path, cancel) = (text(&folder, "x.safetensors"), Arc::new(Mutex::new(None::<CancelHandle>)));
        let (while_saved, at) = (cancel.clone(), folder.path(""));
        let session = builder
            .print_to(move |_, _| {
                // The new file has no name yet.
                let partial = names(&at).into_iter().filter(|name| name.ends_with(".partial")).count();
                assert_eq!(partial, 1);
                if let Some(handle) = &*while_saved.lock().expect("no call panics") {
                    handle.cancel();
                }
            })
            .build()?;
        let f = session.function(save_and_check)?;
        let error = f.call((path.as_str(), 1)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::AssertionFailed, "{error}");
        assert_eq!(names(&folder.path("")), [""; 0]);
        f.call((path.as_str(), 2))?;
        let error = f.call((path.as_str(), 3)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::AssertionFailed, "{error}");
        let handle = CancelHandle::new();
        *cancel.lock().expect("no call panics") = Some(handle.clone());
        let outcome = f.call_with(&CallOptions::new().cancelled_by(&handle), (path.as_str(), 4));
        // The stop may come too late.
        let expected = if outcome.is_ok() { 4 } else { 2 };
        assert_eq!(WeightFile::new(&path).tensor::<i64>("x")?, expected);
        assert_eq!(names(&folder.path("")), ["x.safetensors"]);
    }
    Ok(())
}

#[graph]
fn save_each(path: Tensor<Bytes>, steps: Tensor<i64>, last: Var<i64>) {
    for i in range(0..steps) {
        commit_each_iteration();
        assert!(i < 3, "iteration {i}");
        save_tensors(path, &[("i", i.untyped())]);
        last.set(i);
    }
}

#[test]
fn an_iteration_that_is_committed_has_its_file() -> Outcome {
    for builder in builders() {
        let (session, folder) = (builder.build()?, TestFolder::new("tensor_files_commit"));
        let (path, last) = (text(&folder, "i.safetensors"), Var::<i64>::new("last", -1));
        let f = session.function(|path: Tensor<Bytes>, steps: Tensor<i64>| save_each(path, steps, last.clone()))?;
        assert_eq!(f.call((path.as_str(), 9)).unwrap_err().kind, ErrorKind::AssertionFailed);
        assert_eq!((session.get(&last)?.item(), WeightFile::new(&path).tensor::<i64>("i")?.item()), (2, 2));
        assert_eq!(names(&folder.path("")), ["i.safetensors"]);
    }
    Ok(())
}

#[test]
fn errors_name_the_file_the_tensor_and_the_line() -> Outcome {
    let folder = TestFolder::new("tensor_files_errors");
    let path = text(&folder, "x.safetensors");
    WeightFile::new(&path).save(&Session::new()?, &Vars::new(&[("x", HostTensor::new([2], vec![1.0f32, 2.0]))]))?;
    for (i, builder) in builders().into_iter().enumerate() {
        let session = builder.build()?;
        let line = line!() + 1;
        let restore = session.function(|path: Tensor<Bytes>| restore_tensor::<f32>(path, "x", [3]))?;
        let missing = session.function(|path: Tensor<Bytes>| restore_tensor::<f32>(path, "y", [2]))?;
        let save = session.function(|path: Tensor<Bytes>| save_tensors(path, &[("x", path.untyped())]))?;
        let check = |error: Diagnostic, message: &str, help: Option<&str>| {
            assert_eq!(error.message, message);
            assert_eq!(error.help.as_deref(), help);
            assert!(error.loc().is_some_and(|loc| loc.file.ends_with("tensor_files.rs")), "{error}");
            error
        };
        let message = format!("restore: {path}: the tensor `x` is f32[2], not f32[3]");
        let error =
            check(restore.call(path.as_str()).unwrap_err(), &message, Some("restore it by its type in the file"));
        assert_eq!(error.loc().map(|loc| loc.line), Some(line));
        let message = format!("restore: {path}: there is no tensor `y`");
        check(missing.call(path.as_str()).unwrap_err(), &message, Some("there are `x`"));
        let nowhere = text(&folder, "nowhere/x.safetensors");
        let errors = [
            (missing.call(nowhere.as_str()).map(drop), "restore: could not open"),
            (save.call(nowhere.as_str()), "save: could not write"),
        ];
        for (error, what) in errors {
            let error = error.unwrap_err();
            assert!(error.message.starts_with(&format!("{what} {nowhere}: ")), "{error}");
            assert!(error.loc().is_some_and(|loc| loc.file.ends_with("tensor_files.rs")), "{error}");
        }
        check(save.call(Bytes::from(&b"\xff"[..])).unwrap_err(), "save: the path b\"\\xff\" is not UTF-8", None);
        let message = "save: : the path does not name a file";
        check(save.call("").unwrap_err(), message, None);

        let without = KINDS_OF_SESSIONS[i]();
        let save = without.function(|path: Tensor<Bytes>| save_tensors(path, &[("x", path.untyped())]))?;
        let error = save.call(path.as_str()).unwrap_err();
        assert_eq!(error.message, "save: the session has no files");
        assert!(
            error.help.as_ref().is_some_and(|help| help.contains("tensor_files(SafetensorFiles::new())")),
            "{error}"
        );
        assert!(error.loc().is_some_and(|loc| loc.file.ends_with("tensor_files.rs")), "{error}");
    }
    Ok(())
}

#[test]
fn mistakes_in_a_function_are_errors_when_it_is_traced() -> Outcome {
    let session = builders()[1].clone().build()?;
    let x = [TensorType::new(DType::Bytes, [2])];
    let f = session.function(|path: Tensor<Bytes>| save_tensors(path, &[("x", path.untyped())]))?;
    let error = f.compile(&x).unwrap_err();
    assert!(error.to_string().contains("the path is bytes[2], not bytes[]"), "{error}");
    let twice = session.function(|path: Tensor<Bytes>| {
        save_tensors(path, &[("x", path.untyped()), ("x", path.untyped())]);
    })?;
    let error = twice.call("a").unwrap_err();
    assert!(error.to_string().contains("two tensors have the name `x`"), "{error}");
    let none = session.function(|path: Tensor<Bytes>| save_tensors(path, &[]))?;
    assert!(none.call("a").unwrap_err().to_string().contains("there are no tensors to save"));
    let twice = session.function(|path: Tensor<Bytes>, x: Tensor| {
        gradients(checkpoint(|| restore_tensor::<f32>(path, "x", []) * x), x)
    })?;
    let error = twice.call(("a", 1.0)).unwrap_err();
    assert!(error.message.ends_with("twice, which an operation on a file must not be"), "{error}");
    assert!(error.loc().is_some_and(|loc| loc.file.ends_with("tensor_files.rs")), "{error}");
    // Strings are stored under other names.
    let folder = TestFolder::new("tensor_files_names");
    let clash = session.function(|path: Tensor<Bytes>| {
        save_tensors(path, &[("x", path.untyped()), ("x/data", scalar(1.0).untyped())]);
    })?;
    let error = clash.call(text(&folder, "a").as_str()).unwrap_err();
    assert!(error.message.ends_with("two tensors would have the name `x/data` in the file"), "{error}");
    Ok(())
}

#[test]
fn a_part_of_a_function_saves_only_if_it_is_a_step() -> Outcome {
    let (session, folder) = (builders()[1].clone().build()?, TestFolder::new("tensor_files_prune"));
    let path = HostTensor::scalar(Bytes::from(text(&folder, "x.safetensors")));
    let f = session.function(|path: Tensor<Bytes>, x: Tensor<i64>| {
        save_tensors(path.named("path"), &[("x", x.named("x").untyped())]);
        (x * 2).named("y")
    })?;
    let types = [TensorType::new(DType::Bytes, []), TensorType::new(DType::I64, [])];
    let x = HostTensor::scalar(4i64);
    let part = f.prune(&types, &["x"], &["y"])?;
    assert_eq!(part.call(std::slice::from_ref(&x))?, [HostTensor::scalar(8i64)]);
    assert_eq!(names(&folder.path("")), [""; 0]);
    f.prune_step(&types, &["path", "x"], &[])?.call(&[path, x])?;
    assert_eq!(names(&folder.path("")), ["x.safetensors"]);
    Ok(())
}

#[test]
fn a_file_that_cannot_be_published_is_an_error_of_the_call() -> Outcome {
    let disk = HookedDisk::new();
    let session = Session::builder().tensor_files(SafetensorFiles::new().storage(Arc::new(disk.clone()))).build()?;
    let n = Var::<i64>::new("n", 0);
    let f = session.function(|path: Tensor<Bytes>| {
        n.set(n.get() + 1);
        save_tensors(path, &[("n", n.get().untyped())]);
    })?;
    f.call("n")?;
    disk.refuse("rename", "partial", io::ErrorKind::PermissionDenied);
    let error = f.call("n").unwrap_err();
    assert!(error.to_string().contains("the call has succeeded but for this file"), "{error}");
    disk.repair();
    // The step is committed, the file is that of the one before, and nothing else is left.
    let storage = Arc::new(disk.clone());
    assert_eq!(session.get(&n)?, 2);
    assert_eq!(WeightFile::new("n").storage(storage).tensor::<i64>("n")?, 1);
    Ok(())
}

#[test]
fn objects_are_saved_when_the_call_succeeds() -> Outcome {
    let objects = Arc::new(crate::objects::memory());
    let session = Session::builder().tensor_files(SafetensorFiles::new().storage(objects.clone())).build()?;
    let (f, sum) = (session.function(save_and_check)?, Var::<i64>::new("sum", 0));
    assert_eq!(f.call(("runs/x", 1)).unwrap_err().kind, ErrorKind::AssertionFailed);
    assert!(WeightFile::new("runs/x").storage(objects.clone()).tensor::<i64>("x").is_err());
    f.call(("runs/x", 2))?;
    assert_eq!(WeightFile::new("runs/x").storage(objects.clone()).tensor::<i64>("x")?, 2);
    // A call reads what it has saved before it appears, also strings.
    let words = session.function(|path: Tensor<Bytes>| {
        save_tensors(path, &[("word", path.lower().untyped()), ("x", scalar(3i64).untyped())]);
        (restore_tensor::<Bytes>(path, "word", []), restore_tensor::<i64>(path, "x", []))
    })?;
    let (word, x) = words.call("RUNS/x")?;
    assert_eq!((&*word.item(), x.item()), (&b"runs/x"[..], 3));
    let again = session.function(|dir: Tensor<Bytes>| alternate(dir, scalar(4), sum.clone()))?;
    again.call("runs")?;
    assert_eq!(session.get(&sum)?, 2);
    Ok(())
}

/// A process that was killed, whose number this process has again, has left files.
#[test]
fn files_that_were_left_are_neither_taken_nor_removed() -> Outcome {
    let folder = TestFolder::new("tensor_files_left");
    let session = Session::builder().tensor_files(SafetensorFiles::new()).build()?;
    let save = session.function(|path: Tensor<Bytes>| save_tensors(path, &[("x", scalar(5).untyped())]))?;
    fs::create_dir_all(folder.path("")).expect("a folder");
    let left = |i: usize| folder.path(&format!(".anabranch-{}-{i}.partial", std::process::id()));
    (0..2000).for_each(|i| fs::write(left(i), "left").expect("a file"));
    save.call(text(&folder, "x").as_str())?;
    assert_eq!(WeightFile::new(folder.path("x")).tensor::<i32>("x")?, 5);
    assert!((0..2000).all(|i| fs::read(left(i)).is_ok_and(|bytes| bytes == b"left")));

    let error = save.call(format!("{}/", text(&folder, "y")).as_str()).unwrap_err();
    assert!(error.message.ends_with("the path does not name a file"), "{error}");
    Ok(())
}
