//! The manifest of a checkpoint: what it holds, with a checksum of each file and of itself. It is
//! written last, so a checkpoint without one was not finished, or is damaged.
//!
//! The file is one object of JSON with the checksum of the rest, as text, before it:
//! `{"checksum":"0123456789abcdef","checkpoint":{..}}`. Checksums are XXH3 of 64 bits. They find
//! damage, but not somebody who makes a false file on purpose.

use crate::error::{ReadError, damaged, failed, shown};
use crate::queues::QueueRecord;
use crate::storage::{FileStorage, read_all};
use anabranch_dsl::Result;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeMap;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// The name of the file.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The begin of the name of the file with the elements of queues.
pub(crate) const QUEUES: &str = "queues";

/// The version of the format of checkpoints that this library reads and writes.
const FORMAT: u32 = 1;

/// The maximum length of a manifest in bytes.
const LONGEST_MANIFEST: u64 = 1 << 28;

const BEGIN: &str = "{\"checksum\":\"";
const MIDDLE: &str = "\",\"checkpoint\":";
const END: &str = "}\n";

/// The contents of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub format: u32,
    pub step: u64,
    /// The files in the folder, besides the manifest.
    pub files: BTreeMap<String, FileRecord>,
    /// The variables by their paths.
    pub variables: BTreeMap<String, VariableRecord>,
    /// The name of the file with the values of the program, if there are any.
    pub values: Option<String>,
    /// The queues by their names, whose elements are in a file of their own. Before this version
    /// there were none.
    #[serde(default)]
    pub queues: BTreeMap<String, QueueRecord>,
    pub metrics: BTreeMap<String, Metric>,
    /// The lengths of log files in bytes, by their names.
    pub logs: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub length: u64,
    pub checksum: Checksum,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VariableRecord {
    /// The element type, as files of safetensors name it.
    pub dtype: String,
    pub shape: Vec<usize>,
    pub file: String,
}

/// A checksum, as 16 digits in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checksum(pub u64);

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{:016x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Checksum, D::Error> {
        let text = String::deserialize(from)?;
        parse_checksum(&text).ok_or_else(|| de::Error::custom("a checksum has 16 hexadecimal digits"))
    }
}

fn parse_checksum(text: &str) -> Option<Checksum> {
    let digits = text.len() == 16 && text.bytes().all(|c| c.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| digits).map(Checksum)
}

/// A number, as text in files if it is not finite, since JSON has no such numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Metric(pub f64);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(f64),
    Text(String),
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0.is_finite() {
            true => NumberOrText::Number(self.0).serialize(to),
            false => NumberOrText::Text(self.0.to_string()).serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Metric {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Metric, D::Error> {
        match NumberOrText::deserialize(from)? {
            NumberOrText::Number(x) => Ok(Metric(x)),
            NumberOrText::Text(text) => text.parse().map(Metric).map_err(de::Error::custom),
        }
    }
}

/// Why a text is not a manifest.
#[derive(Debug, PartialEq)]
enum Unusable {
    Damaged(String),
    /// It is whole, but of this format.
    Foreign(u32),
}

impl Manifest {
    pub fn new(step: u64) -> Manifest {
        let (files, variables, queues, metrics, logs) = Default::default();
        Manifest { format: FORMAT, step, files, variables, values: None, queues, metrics, logs }
    }

    /// Returns the name of the file with the elements of queues, if there are queues.
    pub fn file_of_queues(&self) -> Option<&String> {
        let file = self.files.keys().find(|name| name.starts_with(QUEUES));
        file.filter(|_| !self.queues.is_empty())
    }

    /// Returns the text of the file.
    pub fn to_text(&self) -> String {
        let body = serde_json::to_string(self).expect("a manifest is valid JSON");
        let checksum = xxh3_64(body.as_bytes());
        format!("{BEGIN}{checksum:016x}{MIDDLE}{body}{END}")
    }

    /// Reads the manifest of a step from its folder and verifies it. The inner error says that it
    /// is damaged.
    ///
    /// # Errors
    /// Fails if the manifest has another format, of which nothing can be said, or if the storage
    /// fails.
    pub fn read(storage: &dyn FileStorage, folder: &Path, step: u64) -> Result<Result<Manifest>> {
        let path = folder.join(MANIFEST);
        let bytes = match read_all(storage, &path, LONGEST_MANIFEST) {
            Ok(bytes) => bytes,
            Err(error) => return ReadError::split(Err(ReadError::of(&error, failed("read", &path, &error)))),
        };
        match str::from_utf8(&bytes).map_err(|error| Unusable::Damaged(error.to_string())).and_then(Manifest::parse) {
            Ok(manifest) if manifest.step == step => Ok(Ok(manifest)),
            Ok(manifest) => Ok(Err(damaged(&path, format!("this is the manifest of step {}", manifest.step)))),
            Err(Unusable::Damaged(why)) => Ok(Err(damaged(&path, why))),
            Err(Unusable::Foreign(format)) => {
                let why = format!("the format is {format}, but this version of anabranch reads {FORMAT}");
                Err(damaged(&path, why).help("use the version that wrote it, or another folder"))
            }
        }
    }

    fn parse(text: &str) -> Result<Manifest, Unusable> {
        /// The part that all versions have.
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let rest = text.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END));
        let parts = rest.and_then(|rest| rest.split_once(MIDDLE));
        let damaged = |why: &str| Unusable::Damaged(why.to_owned());
        let (checksum, body) = parts.ok_or_else(|| damaged("this is no manifest of a checkpoint, or it is cut"))?;
        let checksum = parse_checksum(checksum).ok_or_else(|| damaged("the checksum is damaged"))?;
        if Checksum(xxh3_64(body.as_bytes())) != checksum {
            return Err(damaged("the manifest is damaged: its checksum is another"));
        }
        let invalid = |error: serde_json::Error| Unusable::Damaged(format!("the manifest is invalid: {error}"));
        let Version { format } = serde_json::from_str(body).map_err(invalid)?;
        if format != FORMAT {
            return Err(Unusable::Foreign(format));
        }
        let manifest: Manifest = serde_json::from_str(body).map_err(invalid)?;
        let used = manifest.variables.values().map(|var| var.file.as_str()).chain(manifest.values.as_deref());
        let lacks_queues = !manifest.queues.is_empty() && manifest.file_of_queues().is_none();
        let mut used = used.chain(lacks_queues.then_some("queues.safetensors"));
        if let Some(unknown) = used.find(|file| !manifest.files.contains_key(*file)) {
            return Err(damaged(&format!("the manifest lists no file {}", shown(unknown))));
        }
        if let Some(outside) = manifest.files.keys().find(|file| Path::new(file).file_name() != Some(file.as_ref())) {
            return Err(damaged(&format!("{} is not a file in the folder of the manifest", shown(outside))));
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Manifest {
        let mut manifest = Manifest::new(1200);
        let record = FileRecord { length: 24, checksum: Checksum(0x0123_4567_89ab_cdef) };
        manifest.files.insert("state.safetensors".to_owned(), record);
        let var = VariableRecord { dtype: "F32".to_owned(), shape: vec![2, 3], file: "state.safetensors".to_owned() };
        manifest.variables.insert("model.w \"quoted\" \u{1}".to_owned(), var);
        for (name, x) in [("a", f64::INFINITY), ("b", f64::NEG_INFINITY), ("c", 0.1 + 0.2), ("d", 1e-308)] {
            manifest.metrics.insert(name.to_owned(), Metric(x));
        }
        manifest.logs.insert("train".to_owned(), u64::MAX);
        manifest
    }

    #[test]
    fn a_manifest_survives_its_text() {
        let manifest = example();
        assert_eq!(Manifest::parse(&manifest.to_text()), Ok(manifest));
        let mut nan = example();
        nan.metrics.insert("e".to_owned(), Metric(f64::NAN));
        assert!(Manifest::parse(&nan.to_text()).unwrap().metrics["e"].0.is_nan());
    }

    #[test]
    fn each_changed_bit_and_each_cut_of_a_manifest_is_found() {
        let text = example().to_text();
        for i in 0..text.len() {
            for bit in 0..8 {
                let mut bytes = text.clone().into_bytes();
                bytes[i] ^= 1 << bit;
                let Ok(text) = str::from_utf8(&bytes) else { continue };
                let parsed = Manifest::parse(text);
                // The digits of the checksum may be capital letters.
                let same = parsed.as_ref().is_ok_and(|parsed| *parsed == example());
                assert!(
                    parsed.is_err() || (same && bytes[i].is_ascii_uppercase()),
                    "bit {bit} of byte {i}: {parsed:?}"
                );
            }
            assert!(Manifest::parse(&text[..i]).is_err(), "cut at byte {i}");
        }
    }

    #[test]
    fn files_outside_of_the_folder_and_other_formats_are_refused() {
        for name in ["../x", "/etc/passwd", "a/b", "..", ""] {
            let mut manifest = example();
            let record = manifest.files["state.safetensors"].clone();
            manifest.files.insert(name.to_owned(), record);
            let error = Manifest::parse(&manifest.to_text()).unwrap_err();
            assert!(format!("{error:?}").contains("is not a file in the folder"), "{error:?}");
        }
        let newer = Manifest { format: 2, ..example() };
        assert_eq!(Manifest::parse(&newer.to_text()), Err(Unusable::Foreign(2)));
    }
}
