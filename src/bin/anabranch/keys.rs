//! Files with the keys of nodes.

use crate::CommandError;
use crate::arguments::{CommandLine, UsageError};
use anabranch::Diagnostic;
use anabranch::peers::NodeKey;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) const USAGE: &str = "\
usage: anabranch keys PATH

Makes the key of a node in the new file PATH, which only its owner can read, and prints its public
key. If the file exists, prints the public key of the key in it.
";

pub(crate) fn run(mut given: CommandLine) -> Result<ExitCode, CommandError> {
    let path = given.positional();
    given.end()?;
    let path = path.ok_or_else(|| UsageError("the path of the key is missing".to_owned()))?;
    crate::write_out(&format!("{}\n", load_or_create(path.as_ref())?.id()))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the key in a file, and makes it if there is no such file.
pub(crate) fn load_or_create(path: &Path) -> Result<NodeKey, Diagnostic> {
    if !path.exists() {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)
                .map_err(|error| Diagnostic::new(format!("cannot make the folder {}: {error}", folder.display())))?;
        }
        let key = NodeKey::generate()?;
        match key.save(path) {
            Ok(()) => return Ok(key),
            // Another process has just made it.
            Err(_) if path.exists() => {}
            Err(error) => return Err(error),
        }
    }
    NodeKey::load(path)
}

/// Takes the option `--key`, and returns the key, by default that of this user.
pub(crate) fn key_of(given: &mut CommandLine) -> Result<NodeKey, CommandError> {
    let path = match given.option::<PathBuf>("--key")? {
        Some(path) => path,
        None => default_path()?,
    };
    Ok(load_or_create(&path)?)
}

/// Returns the path of the key of this user: `anabranch/node.key` in the folder of settings.
fn default_path() -> Result<PathBuf, UsageError> {
    let folder = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let settings = folder("XDG_CONFIG_HOME")
        .or_else(|| folder("HOME").map(|home| home.join(".config")))
        .or_else(|| folder("APPDATA"));
    let settings = settings
        .ok_or_else(|| UsageError("neither `HOME` nor `APPDATA` says where the key is: use `--key PATH`".to_owned()))?;
    Ok(settings.join("anabranch").join("node.key"))
}
