//! Checkpoints and files of data in object stores, with crashes and failures at every operation.

use crate::crashes::{STEPS, values};
use crate::queues::{numbers, rest};
use crate::support::{TestFolder, Vars};
use anabranch::checkpoints::{
    Checkpoints, CheckpointsBuilder, FileStorage, Goal, Restore, RunParts, StepRecord, StorageKind, StorageReader,
    StorageWriter, WeightFile,
};
use anabranch::data::{DataStorage, npz::NpzFile, text};
use anabranch::{Diagnostic, ObjectFolder, Session};
use std::any::Any;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

type Outcome = Result<(), Diagnostic>;

pub fn memory() -> ObjectFolder {
    ObjectFolder::open("memory:///runs").expect("memory is a store")
}

/// When operations fail: the first that does and the first after it that does not, from 1.
#[derive(Clone, Copy, Debug)]
struct Fault {
    at: u64,
    until: u64,
    /// Whether the first that fails has its effect all the same: its answer is lost.
    is_late: bool,
}

/// An object store whose operations fail.
#[derive(Clone, Debug)]
struct FaultyObjects {
    folder: ObjectFolder,
    fault: Fault,
    /// The names of the operations so far.
    operations: Arc<Mutex<Vec<&'static str>>>,
}

impl FaultyObjects {
    fn new(folder: &ObjectFolder, fault: Fault) -> FaultyObjects {
        FaultyObjects { folder: folder.clone(), fault, operations: Arc::default() }
    }

    fn operations(&self) -> MutexGuard<'_, Vec<&'static str>> {
        self.operations.lock().expect("no operation panics")
    }

    fn run<T>(&self, name: &'static str, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let number = {
            let mut operations = self.operations();
            operations.push(name);
            operations.len() as u64
        };
        let Fault { at, until, is_late } = self.fault;
        if !(at..until).contains(&number) {
            return operation();
        }
        if is_late && number == at {
            operation()?;
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}

struct FaultyWriter {
    store: FaultyObjects,
    writer: Box<dyn StorageWriter>,
}

impl Write for FaultyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl StorageWriter for FaultyWriter {
    fn sync(&mut self) -> io::Result<()> {
        self.store.run("sync", || self.writer.sync())
    }
}

impl FileStorage for FaultyObjects {
    fn kind(&self) -> StorageKind {
        self.folder.kind()
    }

    fn publish(&self, file: &Path, bytes: &[u8]) -> io::Result<()> {
        self.run("publish", || self.folder.publish(file, bytes))
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.folder.create_dir(dir)
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn StorageWriter>> {
        Ok(Box::new(FaultyWriter { store: self.clone(), writer: self.folder.create(file)? }))
    }

    fn rename(&self, from: &Path, _: &Path) -> io::Result<()> {
        panic!("an object store cannot rename {}", from.display())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.folder.sync_dir(dir)
    }

    fn sync_file(&self, file: &Path) -> io::Result<()> {
        panic!("an object store has no log {}", file.display())
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        self.run("remove", || self.folder.remove(file))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.folder.remove_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.run("list", || self.folder.list(dir))
    }

    fn read(&self, file: &Path) -> io::Result<StorageReader> {
        self.run("read", || self.folder.read(file))
    }

    fn len(&self, file: &Path) -> io::Result<u64> {
        self.run("len", || FileStorage::len(&self.folder, file))
    }

    fn cut(&self, file: &Path, _: u64) -> io::Result<()> {
        panic!("an object store cannot cut {}", file.display())
    }

    fn lock(&self, file: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        panic!("an object store cannot lock {}", file.display())
    }
}

/// Two shards, and not all old checkpoints.
fn settings(storage: &(impl FileStorage + Clone + 'static)) -> CheckpointsBuilder {
    let settings = Checkpoints::new("run").storage(Arc::new(storage.clone())).shard_size(1000);
    settings.keep_latest(2).keep_best(1, "loss", Goal::Min)
}

/// Saves the steps behind one, and returns at the first error. Returns the last that was saved.
fn save_steps(checkpoints: &mut Checkpoints, session: &Session, vars: &Vars, after: u64) -> (u64, Outcome) {
    let parts = RunParts::new().module("model", vars);
    for step in after + 1..=STEPS {
        vars.set(session, &values(step));
        let record = StepRecord::new(step).value("twice", &(2 * step));
        let loss = if step == 2 { 0.0 } else { 10.0 - step as f64 };
        let record = record.metric("loss", loss).metric("not a number", f64::NAN);
        if let Err(error) = checkpoints.save(session, &parts, record).and_then(|_| checkpoints.wait()) {
            return (step - 1, Err(error));
        }
    }
    (STEPS, Ok(()))
}

/// Opens the folder after a crash, resumes and ends the run. Returns the step that was found.
fn recover(folder: &ObjectFolder) -> Result<u64, Diagnostic> {
    let (session, vars) = (Session::new()?, Vars::new(&values(0)));
    let parts = RunParts::new().module("model", &vars);
    let mut checkpoints = settings(folder).open()?;
    let found = checkpoints.resume(&session, &parts)?;
    for step in checkpoints.steps() {
        let resumed = checkpoints.resume_step(&session, &parts, step, &Restore::strict())?;
        assert_eq!(resumed.value::<u64>("twice")?, 2 * step);
        assert_eq!(vars.values(&session), values(step).map(|(path, value)| (path.to_owned(), value)));
    }
    let step = found.as_ref().map_or(0, |found| found.step());
    assert!(found.is_none_or(|found| found.notes.is_empty()), "no checkpoint is damaged");
    save_steps(&mut checkpoints, &session, &vars, step).1?;
    if step < STEPS {
        assert_eq!(checkpoints.steps(), [2, 4, 5]);
    }
    // Nothing is left of the crash: two shards, the values and the manifest stay of each step.
    drop(settings(folder).open()?);
    for step in 1..=STEPS {
        let names = folder.list(Path::new(&format!("run/step-{step:08}"))).expect("memory does not fail");
        assert_eq!(names.len(), if checkpoints.steps().contains(&step) { 4 } else { 0 }, "step {step}: {names:?}");
    }
    Ok(step)
}

/// Runs in a new folder, with a fault. Returns the folder, the last step that was saved, and the
/// outcome.
fn run_with(fault: Fault) -> (FaultyObjects, u64, Outcome) {
    let store = FaultyObjects::new(&memory(), fault);
    let (session, vars) = (Session::new().expect("a session of CPUs"), Vars::new(&values(0)));
    let (saved, outcome) = match settings(&store).open() {
        Ok(mut checkpoints) => save_steps(&mut checkpoints, &session, &vars, 0),
        Err(error) => (0, Err(error)),
    };
    (store, saved, outcome)
}

#[test]
fn a_crash_after_any_operation_on_objects_loses_no_completed_checkpoint() {
    let (mut at, mut later) = (1, 0);
    loop {
        let mut all = true;
        for is_late in [false, true] {
            let (store, saved, outcome) = run_with(Fault { at, until: u64::MAX, is_late });
            let found = recover(&store.folder).unwrap_or_else(|error| panic!("operation {at}: {error}"));
            assert!(found == saved || found == saved + 1, "operation {at}: found {found}, saved {saved}");
            later += u64::from(found > saved);
            all &= outcome.is_ok();
        }
        if all {
            break;
        }
        at += 1;
    }
    assert!(at > 60 && later > 3, "{at} operations, {later} later");
}

#[test]
fn a_failure_of_any_operation_on_objects_is_an_error_and_the_last_checkpoint_stays() {
    let total = run_with(Fault { at: 0, until: 0, is_late: false }).0.operations().len() as u64;
    let (mut n_errors, mut n_published) = (0, 0);
    for at in 1..=total {
        for is_late in [false, true] {
            let (store, saved, outcome) = run_with(Fault { at, until: at + 1, is_late });
            let operation = store.operations()[at as usize - 1];
            n_errors += u64::from(outcome.is_err());
            if operation == "publish" && is_late {
                assert_eq!(outcome, Ok(()), "the manifest is there");
                n_published += 1;
            }
            let found = recover(&store.folder).unwrap_or_else(|error| panic!("{operation}, {at}: {error}"));
            assert!(found == saved || found == saved + 1, "{operation}, {at}: found {found}, saved {saved}");
        }
    }
    assert!(n_errors > total && n_published == STEPS, "{n_errors} errors, {total}, {n_published}");
}

#[test]
fn a_writer_takes_the_folder_over_and_the_saves_of_the_one_before_fail() -> Outcome {
    let folder = memory();
    let (session, vars) = (Session::new()?, Vars::new(&values(1)));
    let parts = RunParts::new().module("model", &vars);
    let mut old = settings(&folder).open()?;
    old.save(&session, &parts, StepRecord::new(1))?;
    old.wait()?;
    let mut new = settings(&folder).open()?;
    assert_eq!(new.resume(&session, &parts)?.map(|resumed| resumed.step()), Some(1));
    old.save(&session, &parts, StepRecord::new(2))?;
    let error = old.wait().unwrap_err();
    assert!(error.message.starts_with("another writer has taken over the checkpoints in run"), "{error}");
    assert!(folder.list(Path::new("run/step-00000002")).unwrap().is_empty());
    new.save(&session, &parts, StepRecord::new(2))?;
    new.wait()?;
    assert_eq!(old.discard_after(0).unwrap_err().message, error.message);
    // A reader takes nothing over.
    let read = settings(&folder).restore_latest(&session, &parts, &Restore::strict())?;
    assert_eq!(read.map(|resumed| resumed.step()), Some(2));
    new.save(&session, &parts, StepRecord::new(3))?;
    new.wait()?;
    assert_eq!(new.steps(), [2, 3]);
    Ok(())
}

#[test]
fn a_damaged_manifest_is_passed_over_and_kept_when_its_step_is_saved_again() -> Outcome {
    let folder = memory();
    let (session, vars) = (Session::new()?, Vars::new(&values(0)));
    let parts = RunParts::new().module("model", &vars);
    let mut checkpoints = settings(&folder).open()?;
    checkpoints.save(&session, &parts, StepRecord::new(1))?;
    checkpoints.wait()?;
    let step = PathBuf::from("run/step-00000002");
    folder.publish(&step.join("manifest.json"), b"{}").unwrap();
    assert_eq!(folder.publish(&step.join("manifest.json"), b"").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    let resumed = checkpoints.resume(&session, &parts)?.expect("step 1 is there");
    assert_eq!((resumed.step(), resumed.notes.len()), (1, 1));
    checkpoints.save(&session, &parts, StepRecord::new(2))?;
    checkpoints.wait()?;
    assert_eq!(checkpoints.resume(&session, &parts)?.map(|resumed| resumed.step()), Some(2));
    let mut kept = String::new();
    folder.read(&step.join("damaged-1-manifest.json")).unwrap().bytes.read_to_string(&mut kept).unwrap();
    assert_eq!(kept, "{}");
    // Only the damaged checkpoint is left when the step is deleted.
    checkpoints.discard_after(1)?;
    checkpoints.wait()?;
    assert_eq!(folder.list(&step).unwrap(), ["damaged-1-manifest.json"]);
    Ok(())
}

#[test]
fn a_store_of_local_files_has_checkpoints_logs_and_weights() -> Outcome {
    let local = TestFolder::new("objects");
    let folder = ObjectFolder::open(&format!("file://{}", local.path("store").display()))?;
    let (session, vars) = (Session::new()?, Vars::new(&values(3)));
    let log = local.path("log.txt");
    std::fs::write(&log, "one\n").unwrap();
    let parts = RunParts::new().module("model", &vars).log("log", &log);
    let mut checkpoints = settings(&folder).open()?;
    checkpoints.save(&session, &parts, StepRecord::new(3))?;
    checkpoints.wait()?;
    std::fs::write(&log, "one\ntwo\n").unwrap();
    assert!(local.path("store/run/step-00000003/manifest.json").is_file());
    let zeros = vars.zeros();
    let parts = RunParts::new().module("model", &zeros).log("log", &log);
    assert_eq!(checkpoints.resume(&session, &parts)?.map(|resumed| resumed.step()), Some(3));
    assert_eq!(zeros.values(&session), vars.values(&session));
    assert_eq!(std::fs::read(&log).unwrap(), b"one\n");

    let weights = WeightFile::new("models/w.safetensors").storage(Arc::new(folder.clone()));
    for step in [1, 2] {
        vars.set(&session, &values(step));
        weights.save(&session, &vars)?;
        weights.load(&session, &zeros)?;
        assert_eq!(zeros.values(&session), vars.values(&session));
    }
    assert_eq!(folder.list(Path::new("models")).unwrap(), ["w.safetensors"]);
    Ok(())
}

#[test]
fn the_content_of_a_queue_is_restored_from_objects() -> Outcome {
    let (folder, queue) = (memory(), numbers(4));
    let (session, vars) = (Session::new()?, Vars::new(&values(0)));
    let parts = RunParts::new().module("model", &vars).queue("numbers", &queue);
    let host = session.queue(&queue)?;
    for step in [1, 2] {
        host.push(step as i64)?;
        let mut checkpoints = settings(&folder).open()?;
        checkpoints.save(&session, &parts, StepRecord::new(step))?;
        checkpoints.wait()?;
    }
    let other = Session::new()?;
    settings(&folder).restore_latest(&other, &parts, &Restore::strict())?.expect("step 2 is there");
    assert_eq!(rest(&other.queue(&queue)?), [1, 2]);
    Ok(())
}

#[test]
fn an_object_of_several_parts_appears_when_it_is_synced() {
    let folder = memory();
    let bytes: Vec<u8> = (0..40_000_000_u32).map(|i| (i * 7 + i / 1000) as u8).collect();
    let path = Path::new("large");
    let mut file = folder.create(path).unwrap();
    file.write_all(&bytes).unwrap();
    drop(file);
    assert_eq!(folder.read(path).unwrap_err().kind(), io::ErrorKind::NotFound);
    let mut file = folder.create(path).unwrap();
    file.write_all(&bytes).unwrap();
    assert_eq!(folder.read(path).unwrap_err().kind(), io::ErrorKind::NotFound);
    file.sync().unwrap();
    let mut read = Vec::new();
    let StorageReader { bytes: mut from, len } = folder.read(path).unwrap();
    from.read_to_end(&mut read).unwrap();
    assert!(read == bytes && len == bytes.len() as u64);
    assert!(file.write_all(&bytes).and_then(|()| file.sync()).is_err(), "an object is written once");
}

#[test]
fn files_of_data_are_read_from_objects_at_each_position() -> Outcome {
    let folder = memory();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/fixtures/deflated.npz");
    let publish = |name: &str, bytes: &[u8]| folder.publish(Path::new(name), bytes).unwrap();
    publish("texts/b.txt", "drei\nv\u{e9}".as_bytes());
    publish("texts/a.txt", b"one\ntwo\n");
    publish("texts/c.csv", b"");
    publish("x.npz", &std::fs::read(archive).unwrap());
    let lines = text::lines(folder.files("texts", ".txt")?);
    let whole: Vec<String> = lines.iter().collect::<Result<_, _>>()?;
    assert_eq!(whole, ["one", "two", "drei", "v\u{e9}"]);
    let mut pass = lines.iter();
    for from in 0..=whole.len() {
        let rest: Vec<String> = lines.resume(&pass.position())?.collect::<Result<_, _>>()?;
        assert_eq!(rest, whole[from..]);
        pass.next();
    }
    let array = NpzFile::open(folder.file("x.npz"))?.read::<f32>("x")?;
    assert_eq!((array.shape(), array.as_slice()[5]), (&[2, 3][..], 5.0));
    let mut none = Vec::new();
    DataStorage::open(&folder, Path::new("texts/a.txt"), 8).unwrap().read_to_end(&mut none).unwrap();
    assert!(none.is_empty());
    let error = text::lines([folder.file("none.txt")]).iter().next().unwrap().unwrap_err();
    assert!(error.message.starts_with("`memory:///runs/none.txt` cannot be read"), "{error}");
    Ok(())
}

#[test]
fn a_url_of_an_unknown_store_is_an_error() {
    for url in ["ftp://host/folder", "s3://bucket/folder", "no url"] {
        let error = ObjectFolder::open(url).unwrap_err();
        assert!(error.message.starts_with(&format!("the folder `{url}` cannot be opened")), "{error}");
    }
}

/// Names of files are those of objects, whatever their letters.
#[test]
fn objects_have_the_names_of_files() -> Outcome {
    let folder = memory();
    let names = ["a#1%41~[x]{y}^*?|<>\"\\`.txt", "ts=2020-01-01 00%3A00.txt", "ü.txt"];
    for name in names {
        folder.publish(&Path::new("data").join(name), name.as_bytes()).expect("a new object");
    }
    let files = folder.files("data", ".txt")?;
    let found: Vec<String> = files.iter().map(|file| file.path().display().to_string()).collect();
    assert_eq!(found, names.map(|name| format!("data/{name}")));
    assert_eq!(text::lines(files).iter().collect::<Result<Vec<_>, _>>()?, names);
    let error = folder.publish(Path::new("a\u{7}"), b"").expect_err("a control character");
    assert_eq!(error.kind(), io::ErrorKind::InvalidFilename);
    Ok(())
}

#[test]
fn errors_show_no_secrets_of_urls() {
    for url in ["https://me:secret@localhost/x?sig=secret", "s3://bucket/x?sig=secret"] {
        let shown = match ObjectFolder::open(url) {
            Ok(folder) => format!("{folder:?}"),
            Err(error) => error.to_string(),
        };
        assert!(!shown.contains("secret"), "{shown}");
    }
}
