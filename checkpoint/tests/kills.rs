//! A training program that is killed and resumed has the very weights and the log of one that was
//! not.
//!
//! The program is this test program again: [`trains_until_it_is_killed`]. It prints a line before
//! and after each operation of its storage, and after each step. The test kills it after a random
//! line, so kills come between any two operations and within them.

use crate::support::{Random, TestFolder, is_slow};
use anabranch::checkpoints::{
    Checkpoints, FileStorage, Goal, LocalFiles, Restore, RunParts, StepRecord, StorageReader, StorageWriter,
    WeightFile, WhenBusy, restore_latest,
};
use anabranch::nn::{Init, Linear};
use anabranch::optim::{Adam, Optimizer};
use anabranch::prelude::*;
use anabranch::random::Key;
use anabranch::{Diagnostic, Session};
use std::any::Any;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

/// The environment variable with the folder of the program.
const FOLDER: &str = "ANABRANCH_KILL_TEST_FOLDER";

/// The begin of the lines that the test counts.
const MARK: &str = "at: ";

const STEPS: i32 = 60;

/// The local file system, which prints a line before and after each operation.
#[derive(Debug)]
struct PrintingFiles;

fn printing<T>(what: &str, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    println!("{MARK}before {what}");
    let outcome = run();
    println!("{MARK}after {what}");
    outcome
}

struct PrintingWriter(Box<dyn StorageWriter>);

impl Write for PrintingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        printing("write", || self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl StorageWriter for PrintingWriter {
    fn sync(&mut self) -> io::Result<()> {
        printing("sync", || self.0.sync())
    }
}

impl FileStorage for PrintingFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        printing("create_dir", || LocalFiles.create_dir(dir))
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn StorageWriter>> {
        printing("create", || Ok(Box::new(PrintingWriter(LocalFiles.create(file)?)) as Box<dyn StorageWriter>))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        printing("rename", || LocalFiles.rename(from, to))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        printing("sync_dir", || LocalFiles.sync_dir(dir))
    }

    fn sync_file(&self, file: &Path) -> io::Result<()> {
        printing("sync_file", || LocalFiles.sync_file(file))
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        printing("remove", || LocalFiles.remove(file))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        printing("remove_dir", || LocalFiles.remove_dir(dir))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        LocalFiles.list(dir)
    }

    fn read(&self, file: &Path) -> io::Result<StorageReader> {
        printing("read", || LocalFiles.read(file))
    }

    fn len(&self, file: &Path) -> io::Result<u64> {
        LocalFiles.len(file)
    }

    fn cut(&self, file: &Path, len: u64) -> io::Result<()> {
        printing("cut", || LocalFiles.cut(file, len))
    }

    fn lock(&self, file: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        LocalFiles.lock(file)
    }
}

/// A model with its optimizer.
struct Training {
    session: Session,
    model: [Linear; 2],
    adam: Adam,
    /// How many steps are done. Random numbers of a step come from it.
    done: Var<i32>,
}

impl Training {
    fn new() -> Result<Training, Diagnostic> {
        let (session, init) = (Session::new()?, Init::new(5));
        let (model, adam) = ([Linear::new(&init, 8, 16), Linear::new(&init, 16, 1)], Adam::new(0.02));
        adam.prepare(&model);
        Ok(Training { session, model, adam, done: Var::untrained("done", 0) })
    }

    fn parts(&self, folder: &Path) -> RunParts<'_> {
        let parts = RunParts::new().module("model", &self.model).module("adam", &self.adam);
        parts.module("done", &self.done).log("losses", folder.join("losses.txt"))
    }

    /// A step on new data, with dropout. Returns the loss.
    fn step(&self) -> Tensor {
        let done = self.done.get();
        let key = Key::new(9).fold_in(done);
        let [of_data, of_dropout] = [0, 1].map(|i| key.fold_in(i));
        let x = of_data.normal::<f32>([32, 8]);
        let target = x.sin().sum_keepdim(1);
        let hidden = self.model[0].forward(x).tanh().dropout(0.3, of_dropout);
        let loss = (self.model[1].forward(hidden) - target).square().mean();
        self.adam.minimize(loss, &self.model);
        self.done.set(done + 1);
        loss
    }
}

fn train(folder: &Path) -> Result<(), Diagnostic> {
    let training = Training::new()?;
    let Training { session, .. } = &training;
    let parts = training.parts(folder);
    let checkpoints = Checkpoints::new(folder.join("checkpoints")).storage(Arc::new(PrintingFiles));
    let checkpoints = checkpoints.keep_latest(2).keep_best(1, "loss", Goal::Min).when_busy(WhenBusy::Skip);
    let mut checkpoints = checkpoints.shard_size(700).open()?;
    let log = OpenOptions::new().append(true).create(true).open(folder.join("losses.txt"));
    let mut log = log.expect("the log can be opened");
    let mut best = f32::INFINITY;
    let first = match checkpoints.resume(session, &parts)? {
        Some(resumed) => {
            assert_eq!(resumed.notes, [""; 0]);
            best = resumed.value("best")?;
            resumed.step() as i32
        }
        None => {
            checkpoints.save(session, &parts, StepRecord::new(0).value("best", &best))?;
            checkpoints.wait()?;
            0
        }
    };
    let step = session.function(|| training.step())?;
    for done in first + 1..=STEPS {
        let loss = step.call(())?.item();
        best = best.min(loss);
        writeln!(log, "{done} {:08x} {:08x}", loss.to_bits(), best.to_bits()).expect("the log can be written");
        println!("{MARK}step {done}");
        let record = StepRecord::new(done as u64).value("best", &best).metric("loss", loss.into());
        checkpoints.save(session, &parts, record)?;
    }
    checkpoints.wait()?;
    WeightFile::new(folder.join("final.safetensors")).save(session, &(&training.model, &training.adam))?;
    println!("{MARK}end");
    Ok(())
}

#[test]
#[ignore = "not a test: the program that another test kills"]
fn trains_until_it_is_killed() -> Result<(), Diagnostic> {
    let Some(folder) = std::env::var_os(FOLDER) else { return Ok(()) };
    train(&PathBuf::from(folder))
}

/// A process that is killed when it is dropped.
struct Victim {
    process: Child,
    lines: io::Lines<BufReader<ChildStdout>>,
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Victim {
    fn start(folder: &Path) -> Victim {
        let program = std::env::current_exe().expect("this program has a path");
        let name = concat!(module_path!(), "::trains_until_it_is_killed");
        // Names of tests do not begin with that of the program.
        let (_, name) = name.split_once("::").expect("a test is in a module");
        let mut command = Command::new(program);
        command.args(["--exact", name, "--ignored", "--nocapture"]).env(FOLDER, folder).env("ANABRANCH_QUIET", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().expect("this program can be started");
        let lines = BufReader::new(process.stdout.take().expect("it was asked for")).lines();
        Victim { process, lines }
    }

    /// Reads lines until there are `n`, or the program ends. Returns them.
    fn read(&mut self, n: usize) -> Vec<String> {
        let lines = self.lines.by_ref().map(|line| line.expect("the program prints text"));
        lines.filter(|line| line.contains(MARK)).take(n).collect()
    }
}

/// Returns the bytes of the final weights and of the log.
fn results(folder: &Path) -> (Vec<u8>, Vec<u8>) {
    let read = |name: &str| fs::read(folder.join(name)).expect("the program has ended");
    (read("final.safetensors"), read("losses.txt"))
}

#[test]
fn a_run_that_is_killed_and_resumed_has_the_bits_of_one_that_is_not() -> Result<(), Diagnostic> {
    let whole = TestFolder::new("not_killed");
    let lines = Victim::start(&whole.path("")).read(usize::MAX);
    assert!(lines.last().is_some_and(|last| last.ends_with("end")), "{lines:?}");
    let expected = results(&whole.path(""));

    let mut random = Random::new(6);
    let mut kills = 0;
    let n = if is_slow() { 200 } else { 8 };
    let training = Training::new()?;
    while kills < n {
        let killed = TestFolder::new("killed");
        let folder = killed.path("");
        // The last process is not killed.
        for _ in 0..20.min(n - kills) {
            let mut victim = Victim::start(&folder);
            let at = 1 + random.below(lines.len() as u64 / 4) as usize;
            let ended = victim.read(at).iter().any(|line| line.ends_with("end"));
            drop(victim);
            kills += 1;
            // There is a checkpoint that opens, unless the first one was not complete.
            let read = restore_latest(
                folder.join("checkpoints"),
                &training.session,
                &training.parts(&folder),
                &Restore::strict(),
            )?;
            if let Some(read) = read {
                assert!(read.notes.iter().all(|note| !note.contains("passed over")), "{read}");
            }
            if ended {
                break;
            }
        }
        let rest = Victim::start(&folder).read(usize::MAX);
        assert!(rest.last().is_some_and(|last| last.ends_with("end")), "{rest:?}");
        assert!(results(&folder) == expected, "after {kills} kills");
    }
    Ok(())
}
