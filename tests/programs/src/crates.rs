//! Compiles many programs as one crate, and runs it.
//!
//! The crate is one file, which is passed to rustc directly with the libraries that this program
//! was itself linked with. So nothing is built twice, and no lock file or second target folder is
//! needed.

use crate::ast::{CheckMode, RandomProgram};
use crate::print::{Dialect, module};
use std::any::TypeId;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The locations of the libraries that programs need.
#[derive(Debug)]
pub struct Library {
    /// The names and files of the crates that programs use.
    crates: Vec<(&'static str, PathBuf)>,
    /// The folder of all dependencies.
    folder: PathBuf,
}

/// The outcome of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All results agree.
    Agrees {
        /// The number of compared inputs.
        compared: usize,
        /// The number of derivatives that were too large to compare.
        without_gradient: usize,
        /// The number of lines of the graph.
        nodes: usize,
    },
    /// Plain Rust can run the program on no input.
    Empty,
    /// The results differ, or the program ended early: the text says how.
    Differs(String),
    /// The error of rustc.
    Refused(String),
}

impl Verdict {
    /// Returns whether the program reveals an error.
    pub fn is_error(&self) -> bool {
        matches!(self, Verdict::Differs(_) | Verdict::Refused(_))
    }
}

/// The time after which a program without output is considered endless.
const PATIENCE: Duration = Duration::from_secs(120);

/// Finds the libraries that this program was linked with. They are in its folder, which may also
/// have builds with other features or profiles. The identity of a type tells them apart, since it
/// differs between builds.
///
/// `scratch` is a folder for generated files.
///
/// # Panics
/// Panics if a library is not in the folder of this program.
pub fn library(scratch: &Path) -> Library {
    let program = std::env::current_exe().expect("the path of this program is known");
    let mut library = Library { crates: Vec::new(), folder: program.parent().expect("it is in a folder").to_owned() };
    let needed = [
        ("anabranch", "Tensor<f32>", TypeId::of::<anabranch::Tensor<f32>>()),
        ("anabranch_programs", "crates::Library", TypeId::of::<Library>()),
    ];
    for (name, type_name, id) in needed {
        let text = format!("fn main() {{ print!(\"{{:?}}\", std::any::TypeId::of::<{name}::{type_name}>()) }}");
        let is_it = |file: &PathBuf| {
            let candidate = Library { crates: vec![(name, file.clone())], folder: library.folder.clone() };
            let Ok(probe) = candidate.compile(scratch, "probe", &text, "link") else { return false };
            let output = Command::new(probe).output().expect("what was compiled can be run");
            String::from_utf8_lossy(&output.stdout) == format!("{id:?}")
        };
        let found = newest_first(&library.folder, name).into_iter().find(is_it);
        let found = found.unwrap_or_else(|| panic!("`{name}` is not in {}", library.folder.display()));
        library.crates.push((name, found));
    }
    library
}

/// Returns the builds of a library in a folder.
fn newest_first(folder: &Path, name: &str) -> Vec<PathBuf> {
    let start = format!("lib{name}-");
    let files = std::fs::read_dir(folder).expect("the folder can be read").filter_map(|entry| {
        let path = entry.ok()?.path();
        let is_one = path.file_name()?.to_str()?.starts_with(&start) && path.extension()? == "rlib";
        Some((path.metadata().ok()?.modified().ok()?, path)).filter(|_| is_one)
    });
    let mut files: Vec<_> = files.collect();
    files.sort();
    files.into_iter().rev().map(|(_, path)| path).collect()
}

/// Returns the text of a crate of programs.
pub fn text(programs: &[RandomProgram], with_host: impl Fn(&RandomProgram) -> bool) -> String {
    text_and_lines(programs, with_host).0
}

/// Returns the text, and the number of lines before each program and after the last program.
fn text_and_lines(programs: &[RandomProgram], with_host: impl Fn(&RandomProgram) -> bool) -> (String, Vec<usize>) {
    let mut text = String::from("#![allow(warnings)]\nuse anabranch_programs::compare::CompiledProgram;\n");
    let mut cases = String::new();
    let mut starts = vec![2];
    for (i, p) in programs.iter().enumerate() {
        let mut part = format!("\n// Seed {}.\nmod p{i} {{\n", p.seed);
        part += &module(p, Dialect::Plain);
        part += &module(p, Dialect::Staged);
        let host = with_host(p);
        if host {
            part += &module(p, Dialect::Host);
        }
        part += "}\n";
        let variant = if p.kind == CheckMode::Values { "Values" } else { "Gradients" };
        let host = if host { format!("Some(p{i}::host::main)") } else { "None".to_owned() };
        cases += &format!(
            "CompiledProgram::{variant} {{ seed: {}, plain: p{i}::plain::main, host: {host}, staged: p{i}::staged::main }},\n",
            p.seed
        );
        starts.push(starts[i] + part.lines().count());
        text += &part;
    }
    text += &format!("\nfn main() {{\nanabranch_programs::compare::run(&[\n{cases}]);\n}}\n");
    (text, starts)
}

/// Returns whether a program has the expansion over host values, which costs a third of the time.
fn with_host(p: &RandomProgram) -> bool {
    p.seed.is_multiple_of(4)
}

impl Library {
    /// Compiles and runs programs as a crate called `name` in `folder`. Returns a verdict for each.
    pub fn verdicts(&self, folder: &Path, name: &str, programs: &[RandomProgram]) -> Vec<Verdict> {
        if programs.is_empty() {
            return Vec::new();
        }
        let (text, starts) = text_and_lines(programs, with_host);
        let (file, message) = match self.compile(folder, name, &text, "link") {
            Ok(file) => return verdicts_of(&file, programs.len()),
            Err(found) => found,
        };
        // The other programs have no error.
        let refused: Vec<String> = starts.windows(2).map(|w| about(&message, &file, w[0] + 1..w[1] + 1)).collect();
        if refused.iter().all(String::is_empty) {
            return vec![Verdict::Refused(message); programs.len()];
        }
        let others: Vec<RandomProgram> =
            programs.iter().zip(&refused).filter(|(_, r)| r.is_empty()).map(|(p, _)| p.clone()).collect();
        let mut verdicts = self.verdicts(folder, name, &others).into_iter();
        let or_next =
            |r: String| if r.is_empty() { verdicts.next().expect("one for each") } else { Verdict::Refused(r) };
        refused.into_iter().map(or_next).collect()
    }

    /// Returns rustc's error for a program, or `None` if there is none or it is in the plain Rust.
    pub fn refusal(&self, folder: &Path, name: &str, program: &RandomProgram) -> Option<String> {
        let (text, starts) = text_and_lines(std::slice::from_ref(program), with_host);
        let (file, message) = self.compile(folder, name, &text, "metadata").err()?;
        let plain = starts[0] + 1..starts[0] + 5 + module(program, Dialect::Plain).lines().count();
        about(&message, &file, plain).is_empty().then_some(message)
    }

    /// Returns the compiled program, or its source file and rustc's message. `emit` is `link`, or
    /// `metadata` for a check only.
    fn compile(&self, folder: &Path, name: &str, text: &str, emit: &str) -> Result<PathBuf, (PathBuf, String)> {
        std::fs::create_dir_all(folder).expect("the folder for generated crates can be made");
        let (source, file) = (folder.join(format!("{name}.rs")), folder.join(name));
        std::fs::write(&source, text).expect("the generated crate can be written");
        let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc.args(["--edition", "2024", "--crate-type", "bin", "--crate-name", name, "--cap-lints", "allow"]);
        // Integers wrap, as they do in graphs.
        rustc.args([
            "-C",
            "opt-level=0",
            "-C",
            "debuginfo=0",
            "-C",
            "overflow-checks=off",
            "-C",
            "debug-assertions=off",
        ]);
        for (name, file) in &self.crates {
            rustc.arg("--extern").arg(format!("{name}={}", file.display()));
        }
        rustc.arg("-L").arg(format!("dependency={}", self.folder.display()));
        rustc.arg(format!("--emit={emit}")).arg("-o").arg(&file).arg(&source);
        let output = rustc.output().expect("rustc runs");
        if output.status.success() {
            Ok(file)
        } else {
            Err((source, String::from_utf8_lossy(&output.stderr).into_owned()))
        }
    }
}

/// Returns the errors of a message that point into these lines of a file.
fn about(message: &str, file: &Path, lines: std::ops::Range<usize>) -> String {
    let place = format!("--> {}:", file.display());
    let points_there = |error: &&str| {
        let places = error.lines().filter_map(|l| l.trim_start().strip_prefix(&place));
        let mut numbers = places.filter_map(|p| p.split(':').next()?.parse::<usize>().ok());
        numbers.any(|n| lines.contains(&n))
    };
    message.split("\n\n").filter(points_there).collect::<Vec<_>>().join("\n\n")
}

/// Runs a crate with this number of programs. A program that ends the process or never ends gets
/// that as its verdict, and the rest run without it.
fn verdicts_of(file: &Path, programs: usize) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    while verdicts.len() < programs {
        let first = verdicts.len().to_string();
        let mut child = Command::new(file)
            .arg(first)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("what was compiled can be run");
        let (send, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().expect("it was asked for"));
        let reader = std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let silent = loop {
            match lines.recv_timeout(PATIENCE) {
                Ok(line) => verdicts.push(verdict(&line)),
                Err(mpsc::RecvTimeoutError::Timeout) => break true,
                Err(mpsc::RecvTimeoutError::Disconnected) => break false,
            }
        };
        if silent {
            child.kill().expect("the child runs");
        }
        let output = child.wait_with_output().expect("the child is ours");
        reader.join().expect("reading does not panic");
        if verdicts.len() < programs {
            let how = if silent { "it does not end".to_owned() } else { output.status.to_string() };
            verdicts.push(Verdict::Differs(format!("{how}\n{}", String::from_utf8_lossy(&output.stderr))));
        }
    }
    verdicts
}

/// Reads a line of [`compare::run`](crate::compare::run).
fn verdict(line: &str) -> Verdict {
    let mut words = line.splitn(3, ' ');
    let (word, text) = (words.next().unwrap_or(""), words.nth(1).unwrap_or(""));
    let text = text.replace("\\n", "\n").replace("\\\\", "\\");
    match word {
        "ok" => {
            let mut numbers = text.split(' ').map(|n| n.parse().expect("three numbers follow"));
            let mut next = || numbers.next().expect("three numbers follow");
            Verdict::Agrees { compared: next(), without_gradient: next(), nodes: next() }
        }
        "empty" => Verdict::Empty,
        _ => Verdict::Differs(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_verdicts() {
        assert_eq!(verdict("ok 3 6 1 40"), Verdict::Agrees { compared: 6, without_gradient: 1, nodes: 40 });
        assert_eq!(verdict("empty 3 "), Verdict::Empty);
        assert_eq!(verdict(r"differs 3 a\nb c"), Verdict::Differs("a\nb c".to_owned()));
    }
}
