//! Files of checkpoints: any bytes are values or errors.

use anabranch_checkpoint::{Checkpoints, FileStorage, RunParts, StepRecord, StorageReader, StorageWriter, WeightFile};
use anabranch_dsl::{Bytes, HostTensor, Var};
use anabranch_runtime::Session;
use std::any::Any;
use std::collections::BTreeMap;
use std::io::{self, Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use xxhash_rust::xxh3::xxh3_64;

/// A target: its name, its body, which returns whether the bytes mean something, and valid inputs.
pub type Target = (&'static str, fn(&[u8]) -> bool, fn() -> Vec<Vec<u8>>);

/// The targets of this file.
pub const TARGETS: [Target; 3] = [
    ("safetensors", weights, || vec![saved()[WEIGHTS].clone()]),
    ("shard_index", index, || {
        vec![br#"{"metadata": {"total_size": 20}, "weight_map": {"0": "w.safetensors"}}"#.to_vec()]
    }),
    ("manifest", manifest, || vec![body_of(&saved()[&manifest_path().display().to_string()])]),
];

/// Runs the target of this name. Returns whether the bytes mean something.
#[allow(dead_code, reason = "`mutate` has the list of all targets")]
pub fn run(name: &str, bytes: &[u8]) -> bool {
    let target = TARGETS.iter().find(|(of, ..)| *of == name);
    (target.expect("the target is in the list").1)(bytes)
}

/// Files in memory. There are no folders besides the paths of files.
#[derive(Clone, Debug, Default)]
struct MemoryFiles(Arc<Mutex<BTreeMap<PathBuf, Vec<u8>>>>);

impl MemoryFiles {
    fn files(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Vec<u8>>> {
        self.0.lock().expect("no operation panics")
    }
}

struct MemoryWriter(MemoryFiles, PathBuf);

impl Write for MemoryWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.files().entry(self.1.clone()).or_default().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl StorageWriter for MemoryWriter {
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl FileStorage for MemoryFiles {
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn StorageWriter>> {
        Ok(Box::new(MemoryWriter(self.clone(), file.to_owned())))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.files();
        let moved: Vec<PathBuf> = files.keys().filter(|path| path.starts_with(from)).cloned().collect();
        for path in moved {
            let bytes = files.remove(&path).expect("the file is there");
            let rest = path.strip_prefix(from).expect("the path begins so");
            files.insert(if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) }, bytes);
        }
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_file(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        self.files().remove(file).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn remove_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let files = self.files();
        let names = files.keys().filter_map(|path| path.strip_prefix(dir).ok()?.components().next());
        let mut names: Vec<String> = names.map(|name| name.as_os_str().to_string_lossy().into_owned()).collect();
        names.dedup();
        Ok(names)
    }

    fn read(&self, file: &Path) -> io::Result<StorageReader> {
        let bytes = self.files().get(file).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(StorageReader { len: bytes.len() as u64, bytes: Box::new(Cursor::new(bytes)) })
    }

    fn len(&self, file: &Path) -> io::Result<u64> {
        self.read(file).map(|reader| reader.len)
    }

    fn cut(&self, _: &Path, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        Ok(Some(Box::new(())))
    }
}

const WEIGHTS: &str = "w.safetensors";

fn manifest_path() -> PathBuf {
    PathBuf::from("run/step-00000003/manifest.json")
}

/// A session, and a model of numbers and strings.
struct Model {
    session: Session,
    numbers: [Var<f32>; 1],
    words: [Var<Bytes>; 1],
}

fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| Model {
        session: Session::new().expect("a session of CPUs"),
        numbers: [Var::new("x", [1.0, 2.0, 3.0])],
        words: [Var::new("s", ["one", "", "three"])],
    })
}

/// Returns the files of a checkpoint of step 3, and one of weights.
fn saved() -> BTreeMap<String, Vec<u8>> {
    files_of_checkpoint().files().iter().map(|(path, bytes)| (path.display().to_string(), bytes.clone())).collect()
}

fn files_of_checkpoint() -> MemoryFiles {
    let (storage, Model { session, numbers, words }) = (MemoryFiles::default(), model());
    WeightFile::new(WEIGHTS).storage(Arc::new(storage.clone())).save(session, numbers).expect("memory does not fail");
    let parts = RunParts::new().module("numbers", numbers).module("words", words);
    let mut checkpoints = Checkpoints::new("run").storage(Arc::new(storage.clone())).open().expect("a new folder");
    let record = StepRecord::new(3).value("twice", &6).metric("loss", f64::INFINITY);
    checkpoints.save(session, &parts, record).expect("the first save");
    checkpoints.wait().expect("memory does not fail");
    storage
}

fn weights(bytes: &[u8]) -> bool {
    let (storage, Model { session, numbers, .. }) = (MemoryFiles::default(), model());
    storage.files().insert(WEIGHTS.into(), bytes.to_vec());
    let file = WeightFile::new(WEIGHTS).storage(Arc::new(storage.clone()));
    if file.load(session, numbers).is_err() {
        return false;
    }
    let loaded = session.state(numbers).expect("a variable can be read");
    assert!(loaded.iter().all(|(_, value): &(String, HostTensor)| value.shape() == [3]));
    true
}

fn index(bytes: &[u8]) -> bool {
    let storage = files_of_checkpoint_once();
    let path = Path::new("w.safetensors.index.json");
    storage.files().insert(path.to_owned(), bytes.to_vec());
    let Model { session, numbers, .. } = model();
    WeightFile::new(path).storage(Arc::new(storage)).load(session, numbers).is_ok()
}

/// Returns a copy of the files, which are written once.
fn files_of_checkpoint_once() -> MemoryFiles {
    static FILES: OnceLock<MemoryFiles> = OnceLock::new();
    let files = FILES.get_or_init(files_of_checkpoint).files().clone();
    MemoryFiles(Arc::new(Mutex::new(files)))
}

const MIDDLE: &str = "\",\"checkpoint\":";

/// Returns the part of a manifest that has a checksum.
fn body_of(manifest: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(manifest).expect("a manifest is text");
    let (_, body) = text.split_once(MIDDLE).expect("a manifest has a checksum");
    body.strip_suffix("}\n").expect("a manifest ends so").into()
}

/// Reads a manifest with this body and its checksum.
fn manifest(body: &[u8]) -> bool {
    let begin = format!("{{\"checksum\":\"{:016x}{MIDDLE}", xxh3_64(body));
    let storage = files_of_checkpoint_once();
    storage.files().insert(manifest_path(), [begin.as_bytes(), body, b"}\n"].concat());
    let Model { session, numbers, words } = model();
    let parts = RunParts::new().module("numbers", numbers).module("words", words);
    let Ok(mut checkpoints) = Checkpoints::new("run").storage(Arc::new(storage)).open() else { return false };
    let Ok(Some(resumed)) = checkpoints.resume(session, &parts) else { return false };
    assert_eq!(resumed.step(), 3);
    true
}
