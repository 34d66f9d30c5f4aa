//! The identity of a node: an Ed25519 key, whose public half names the node.
//!
//! - A secret key is never printed, and its file is readable by its owner alone.
//! - Two nodes are the same exactly if their public keys are.

use anabranch_dsl::{Diagnostic, ErrorKind, Result};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The DER encoding of an Ed25519 public key up to the key itself (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The longest file that is read as a key. Keys have fewer than 100 bytes.
const LONGEST_KEY_FILE: u64 = 4096;

/// The public key of a node, which is its name. Displayed as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId([u8; 32]);

impl NodeId {
    /// Returns the bytes of the public key.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the first 8 digits, for messages in which few nodes appear.
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }

    /// Reads a public key as TLS carries it. Returns `None` for anything but an Ed25519 key.
    pub(super) fn from_spki(spki: &[u8]) -> Option<NodeId> {
        let key = spki.strip_prefix(&SPKI_PREFIX)?;
        key.try_into().ok().map(NodeId)
    }

    /// Returns the public key as TLS carries it.
    pub(super) fn to_spki(self) -> Vec<u8> {
        [&SPKI_PREFIX[..], &self.0].concat()
    }
}

impl From<[u8; 32]> for NodeId {
    fn from(bytes: [u8; 32]) -> NodeId {
        NodeId(bytes)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

impl FromStr for NodeId {
    type Err = Diagnostic;

    fn from_str(text: &str) -> Result<NodeId> {
        parse_hex(text).map(NodeId).ok_or_else(|| {
            Diagnostic::new(format!("`{text}` is not the id of a node"))
                .help("an id has 64 hexadecimal digits; the node prints its own when it starts")
        })
    }
}

/// Reads exactly `2 * N` hexadecimal digits.
pub(super) fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    let digit = |byte: u8| (byte as char).to_digit(16).map(|value| value as u8);
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4) | digit(pair[1])?;
    }
    Some(bytes)
}

/// The secret key of a node.
#[derive(Clone)]
pub struct NodeKey {
    pkcs8: Vec<u8>,
    id: NodeId,
}

impl NodeKey {
    /// Generates a key.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn generate() -> Result<NodeKey> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| {
            Diagnostic::new("cannot generate a node key: the system has no random numbers")
                .of_kind(ErrorKind::ResourceExhausted)
        })?;
        NodeKey::from_pkcs8(document.as_ref().to_vec())
            .ok_or_else(|| Diagnostic::new("a generated node key cannot be read").of_kind(ErrorKind::Internal))
    }

    /// Reads the key in a file that [`save`](NodeKey::save) wrote.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, if other users can read it, or if it holds something else.
    pub fn load(path: impl AsRef<Path>) -> Result<NodeKey> {
        let path = path.as_ref();
        let fail = |error: io::Error| {
            let error = Diagnostic::new(format!("cannot read the node key in {}: {error}", path.display()));
            error.help("`NodeKey::generate` and `save` make a new key; its id is new as well")
        };
        let metadata = fs::metadata(path).map_err(fail)?;
        check_private(path, &metadata)?;
        if !metadata.is_file() || metadata.len() > LONGEST_KEY_FILE {
            return Err(not_a_key(path));
        }
        NodeKey::from_pkcs8(fs::read(path).map_err(fail)?).ok_or_else(|| not_a_key(path))
    }

    /// Writes the key to a new file that only its owner can read.
    ///
    /// # Errors
    ///
    /// If the file exists, since another key in it would be lost, or cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let written = options.open(path).and_then(|mut file| {
            file.write_all(&self.pkcs8)?;
            file.sync_all()
        });
        written.map_err(|error| {
            let diagnostic = Diagnostic::new(format!("cannot write the node key to {}: {error}", path.display()));
            match error.kind() {
                io::ErrorKind::AlreadyExists => diagnostic.help("`NodeKey::load` reads it; remove it for a new key"),
                _ => diagnostic,
            }
        })
    }

    /// Reads the key in a file, or writes a new one to it if there is no such file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or written.
    ///
    /// ```
    /// use anabranch::peers::NodeKey;
    ///
    /// let folder = std::env::temp_dir().join(format!("anabranch-key-{}", std::process::id()));
    /// let path = folder.join("session.key");
    /// let key = NodeKey::load_or_generate(&path)?;
    /// assert_eq!(NodeKey::load_or_generate(&path)?.id(), key.id());
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn load_or_generate(path: impl AsRef<Path>) -> Result<NodeKey> {
        let path = path.as_ref();
        if !path.exists() {
            if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                fs::create_dir_all(folder).map_err(|error| {
                    Diagnostic::new(format!("cannot make the folder {}: {error}", folder.display()))
                })?;
            }
            let key = NodeKey::generate()?;
            match key.save_whole(path) {
                Ok(()) => return Ok(key),
                // Another process has just made it.
                Err(_) if path.exists() => {}
                Err(error) => return Err(error),
            }
        }
        NodeKey::load(path)
    }

    /// Saves the key so that others see the whole file or none, where the file system has links.
    fn save_whole(&self, path: &Path) -> Result<()> {
        let beside = path.with_extension(format!("{}.new", self.id.short()));
        self.save(&beside)?;
        // Unlike renaming, a link does not replace the key of another process.
        let linked = fs::hard_link(&beside, path);
        let _ = fs::remove_file(&beside);
        if linked.is_ok() { Ok(()) } else { self.save(path) }
    }

    /// Returns the path of a key of this user: `anabranch/NAME.key` in the folder of settings. The
    /// key of sessions is `session`, that of the program `anabranch peer` is `node`. Returns `None`
    /// if the environment names no such folder.
    pub fn user_path(name: &str) -> Option<PathBuf> {
        NodeKey::user_path_in(name, |variable| std::env::var_os(variable))
    }

    /// Returns the path of a key of the user, by variables of the environment.
    pub(crate) fn user_path_in(name: &str, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let folder = |name: &str| variable(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let settings = folder("XDG_CONFIG_HOME")
            .or_else(|| folder("HOME").map(|home| home.join(".config")))
            .or_else(|| folder("APPDATA"))?;
        Some(settings.join("anabranch").join(format!("{name}.key")))
    }

    /// Returns the public key.
    pub fn id(&self) -> NodeId {
        self.id
    }

    pub(super) fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    pub(super) fn from_pkcs8(pkcs8: Vec<u8>) -> Option<NodeKey> {
        let pair = Ed25519KeyPair::from_pkcs8(&pkcs8).ok()?;
        let id = NodeId(pair.public_key().as_ref().try_into().ok()?);
        Some(NodeKey { pkcs8, id })
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey({})", self.id)
    }
}

fn not_a_key(path: &Path) -> Diagnostic {
    Diagnostic::new(format!("{} is not a node key", path.display()))
        .help("a node key is an Ed25519 key in PKCS#8, as `NodeKey::save` writes it")
}

#[cfg(unix)]
fn check_private(path: &Path, metadata: &fs::Metadata) -> Result<()> {
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let path = path.display();
    Err(Diagnostic::new(format!("other users can use the node key in {path}: its mode is {mode:03o}"))
        .help(format!("run `chmod 600 {path}`, or make a new key if someone may have read this one")))
}

#[cfg(not(unix))]
fn check_private(_: &Path, _: &fs::Metadata) -> Result<()> {
    Ok(())
}
