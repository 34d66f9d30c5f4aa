//! Programs that tests kill: the test program again, with one of its ignored tests.
//!
//! Such a program prints a line before and after each operation of its storage. A test kills it
//! after some line, so kills come between any two operations and within them.

use anabranch::checkpoints::{FileStorage, LocalFiles, StorageReader, StorageWriter};
use std::any::Any;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// The environment variable with the folder of the program.
pub const FOLDER: &str = "ANABRANCH_KILL_TEST_FOLDER";

/// The begin of the lines that the test counts.
pub const MARK: &str = "at: ";

/// The local file system, which prints a line before and after each operation.
#[derive(Debug)]
pub struct PrintingFiles;

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

/// A process that is killed when it is dropped.
pub struct Victim {
    pub process: Child,
    lines: io::Lines<BufReader<ChildStdout>>,
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Victim {
    /// Starts an ignored test of this program, by its path: `kills::trains_until_it_is_killed`.
    pub fn start(name: &str, folder: &Path) -> Victim {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.args(["--exact", name, "--ignored", "--nocapture"]).env(FOLDER, folder).env("ANABRANCH_QUIET", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().expect("this program can be started");
        let lines = BufReader::new(process.stdout.take().expect("it was asked for")).lines();
        Victim { process, lines }
    }

    /// Reads lines until there are `n`, or the program ends. Returns them.
    pub fn read(&mut self, n: usize) -> Vec<String> {
        let lines = self.lines.by_ref().map(|line| line.expect("the program prints text"));
        lines.filter(|line| line.contains(MARK)).take(n).collect()
    }
}
