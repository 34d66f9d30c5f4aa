//! Files with the keys of nodes.

use crate::CommandError;
use crate::arguments::{CommandLine, UsageError};
use anabranch::peers::NodeKey;
use std::path::PathBuf;
use std::process::ExitCode;

pub(crate) const USAGE: &str = "\
usage: anabranch keys [PATH]

Makes the key of a node in the new file PATH, which only its owner can read, and prints its public
key. If the file exists, prints the public key of the key in it. By default, PATH is that of the
key of this user's sessions.
";

pub(crate) fn run(mut given: CommandLine) -> Result<ExitCode, CommandError> {
    let path = given.positional();
    given.end()?;
    let path = path.map_or_else(|| UserKey::Session.path(), |path| Ok(path.into()))?;
    crate::write_out(&format!("{}\n", NodeKey::load_or_generate(path)?.id()))?;
    Ok(ExitCode::SUCCESS)
}

/// The key of a program that was given no other: it is that of this user.
#[derive(Clone, Copy)]
pub(crate) enum UserKey {
    /// That of peers.
    Node,
    /// That of sessions, which `peers_of_environment` also takes.
    Session,
}

impl UserKey {
    fn path(self) -> Result<PathBuf, UsageError> {
        let path = NodeKey::user_path(match self {
            UserKey::Node => "node",
            UserKey::Session => "session",
        });
        path.ok_or_else(|| UsageError("neither `HOME` nor `APPDATA` says where the key is: name a path".to_owned()))
    }
}

/// Takes the option `--key`. Returns its path, by default that of a key of this user.
pub(crate) fn path_of_key(given: &mut CommandLine, default: UserKey) -> Result<PathBuf, UsageError> {
    given.option::<PathBuf>("--key")?.map_or_else(|| default.path(), Ok)
}
