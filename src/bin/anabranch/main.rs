//! The program `anabranch`: keys of nodes, peers, and their state.
//!
//! Standard output has only what other programs read: keys, addresses and states. Messages for
//! people go to standard error. The exit status is 0, 1 after a failure, 2 after wrong arguments,
//! and that of the launched program after `launch`.

#![forbid(unsafe_code)]

mod arguments;
mod keys;
mod launch;
mod peer;
mod signals;
mod status;

use anabranch::Diagnostic;
use arguments::{CommandLine, UsageError};
use std::io::Write;
use std::process::ExitCode;

const USAGE: &str = "\
Devices of other processes for sessions of anabranch.

usage: anabranch COMMAND [OPTION]...

  keys PATH       makes the key of a node in a new file, and prints its public key
  peer            offers the devices of this machine to sessions of other processes
  status PEER...  prints the state of peers
  launch          runs a program with peers on this machine

`anabranch COMMAND --help` lists the options of a command.
";

/// The end of a command that did not succeed.
enum CommandError {
    Usage(UsageError),
    Error(Box<Diagnostic>),
}

impl From<UsageError> for CommandError {
    fn from(error: UsageError) -> CommandError {
        CommandError::Usage(error)
    }
}

impl From<Diagnostic> for CommandError {
    fn from(error: Diagnostic) -> CommandError {
        CommandError::Error(Box::new(error))
    }
}

/// A command. It takes its arguments without its name.
type Run = fn(CommandLine) -> Result<ExitCode, CommandError>;

fn main() -> ExitCode {
    let mut arguments = Vec::new();
    for argument in std::env::args_os().skip(1) {
        match argument.into_string() {
            Ok(argument) => arguments.push(argument),
            Err(other) => {
                eprintln!("anabranch: the argument {other:?} is not UTF-8");
                return ExitCode::from(2);
            }
        }
    }
    let mut given = CommandLine::new(arguments.into_iter());
    let command = given.positional().unwrap_or_default();
    let (usage, run): (&str, Run) = match command.as_str() {
        "keys" => (keys::USAGE, keys::run),
        "peer" => (peer::USAGE, peer::run),
        "status" => (status::USAGE, status::run),
        "launch" => (launch::USAGE, launch::run),
        "" if given.has("--version") => {
            return print(concat!("anabranch ", env!("CARGO_PKG_VERSION"), "\n"));
        }
        "help" => return print(USAGE),
        "" if given.has("--help") || given.has("-h") => return print(USAGE),
        other => {
            match other {
                "" => eprint!("anabranch: a command is missing\n\n{USAGE}"),
                _ => eprint!("anabranch: there is no command `{other}`\n\n{USAGE}"),
            }
            return ExitCode::from(2);
        }
    };
    if given.has("--help") || given.has("-h") {
        return print(usage);
    }
    match run(given) {
        Ok(code) => code,
        Err(CommandError::Usage(error)) => {
            eprintln!("anabranch {command}: {error}\n`anabranch {command} --help` lists the options");
            ExitCode::from(2)
        }
        Err(CommandError::Error(error)) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard output. It may be a full file or a closed pipe.
fn write_out(text: &str) -> Result<(), Diagnostic> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Diagnostic::new(format!("cannot write to standard output: {error}")))
}

fn print(usage: &str) -> ExitCode {
    match write_out(usage) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
