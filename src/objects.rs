//! Checkpoints and files of data in object stores, by the crate `object_store`.

use crate::checkpoints::{FileStorage, StorageKind, StorageReader, StorageWriter};
use crate::data::{DataFile, DataStorage};
use anabranch_dsl::{Diagnostic, Result};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::{Path as ObjectPath, PathPart};
use object_store::{
    Error, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload,
};
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use tokio::runtime::{Builder, Runtime};
use url::Url;

/// A folder in an object store, for checkpoints and files of data. Cloning returns another handle
/// of the same folder.
///
/// | URL | store | feature of `object_store` |
/// |---|---|---|
/// | `s3://bucket/folder` | Amazon S3 and stores with its interface | `aws` |
/// | `gs://bucket/folder` | Google Cloud Storage | `gcp` |
/// | `az://container/folder` | Azure Blob Storage | `azure` |
/// | `https://host/folder` | a server of files, or WebDAV | `http` |
/// | `file:///folder` | the local file system | |
/// | `memory:///folder` | memory, which each opened folder has for itself | |
///
/// A program that uses a store in the cloud depends on the crate `object_store` of the same version
/// (0.14), with the feature for it. The tests of this crate use `memory` and `file`; the other
/// stores are as `object_store` provides them.
///
/// As the storage of [`Checkpoints`](crate::checkpoints::Checkpoints) it needs a store that can
/// create an object only if there is none, as the first three can. A checkpoint exists as soon as
/// its manifest does, which is written last. There are no locks: a program that opens the folder
/// takes it over, since the one before may have been killed, and the saves of the one before fail.
///
/// All operations wait for the store, which is asked by a thread of the folder.
///
/// ```
/// use anabranch::ObjectFolder;
/// use anabranch::checkpoints::{Checkpoints, FileStorage, RunParts, StepRecord};
/// use anabranch::data::text;
/// use anabranch::prelude::*;
/// use std::path::Path;
/// use std::sync::Arc;
///
/// let folder = ObjectFolder::open("memory:///experiment")?;
/// folder.publish(Path::new("data/a.txt"), b"one\ntwo\n").expect("there is no such file");
/// let lines = text::lines(folder.files("data", ".txt")?);
/// assert_eq!(lines.iter().count(), 2);
///
/// let (session, w) = (Session::new()?, Var::<f32>::new("w", 1.0));
/// let parts = RunParts::new().module("w", &w);
/// let mut checkpoints = Checkpoints::new("run-1").storage(Arc::new(folder)).open()?;
/// checkpoints.save(&session, &parts, StepRecord::new(10))?;
/// checkpoints.wait()?;
/// assert_eq!(checkpoints.steps(), [10]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone)]
pub struct ObjectFolder(Arc<OpenFolder>);

struct OpenFolder {
    /// The URL for messages, without secrets.
    url: String,
    store: Arc<dyn ObjectStore>,
    /// The path of the folder in the store.
    root: ObjectPath,
    /// Always there until the drop.
    runtime: Option<Runtime>,
}

impl fmt::Debug for ObjectFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectFolder({})", self.0.url)
    }
}

impl Drop for OpenFolder {
    fn drop(&mut self) {
        // Waiting for it would be a panic on a thread of another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The bytes of a part of an upload. Stores want at least 5 MiB, and at most 10,000 parts.
const PART: usize = 16 << 20;

impl ObjectFolder {
    /// Opens the folder of a URL. Keys and options of the store are read from variables of the
    /// environment that begin with `AWS_`, `GOOGLE_` or `AZURE_`, such as `AWS_ACCESS_KEY_ID`.
    ///
    /// # Errors
    /// Fails if the URL is not one of a store that this program was built for, or if an option of
    /// the store is missing or invalid.
    pub fn open(url: &str) -> Result<ObjectFolder> {
        // Other variables of the environment need not be Unicode.
        let vars =
            std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
        let is_of_store = |key: &str| ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|begin| key.starts_with(begin));
        ObjectFolder::open_with(url, vars.filter(|(key, _)| is_of_store(key)))
    }

    /// Opens a folder like [`open`](Self::open), with these options of the store instead of the
    /// variables of the environment. Options of other stores are ignored.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_with<K: AsRef<str>, V: Into<String>>(
        url: &str,
        options: impl IntoIterator<Item = (K, V)>,
    ) -> Result<ObjectFolder> {
        let cannot = |url: &str, error: &dyn fmt::Display| {
            Diagnostic::new(format!("the folder `{url}` cannot be opened: {error}"))
                .help("stores in the cloud need a feature of the crate `object_store`: `aws`, `gcp`, `azure` or `http`")
        };
        let parsed = Url::parse(url).map_err(|error| cannot(url, &error))?;
        let shown = without_secrets(&parsed);
        let failed = |error: &dyn fmt::Display| cannot(&shown, error);
        let (mut store, root) = object_store::parse_url_opts(&parsed, options).map_err(|error| failed(&error))?;
        if parsed.scheme() == "file" {
            store = Box::new(LocalFileSystem::new().with_fsync(true));
        }
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("anabranch-objects").enable_all().build();
        let runtime = Some(runtime.map_err(|error| failed(&error))?);
        Ok(ObjectFolder(Arc::new(OpenFolder { url: shown, store: store.into(), root, runtime })))
    }

    /// Returns a file of data, which need not exist. The path is relative to this folder.
    pub fn file(&self, path: impl Into<PathBuf>) -> DataFile {
        DataFile::new(Arc::new(self.clone()), path)
    }

    /// Returns the files of data in a folder within this one whose names end with `ending`, sorted
    /// by name. An empty path is this folder.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be listed.
    pub fn files(&self, folder: impl AsRef<Path>, ending: &str) -> Result<Vec<DataFile>> {
        let folder = folder.as_ref();
        let failed =
            |error: &io::Error| Diagnostic::new(format!("`{}` cannot be listed: {error}", self.name_of(folder)));
        let objects = self.list_objects(folder).map_err(|error| failed(&error))?.objects;
        let names =
            objects.iter().filter_map(|object| object.location.filename()).filter(|name| name.ends_with(ending));
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        Ok(names.into_iter().map(|name| self.file(folder.join(name))).collect())
    }

    /// Returns the name of a file in messages.
    fn name_of(&self, path: &Path) -> String {
        format!("{}/{}", self.0.url.trim_end_matches('/'), path.display())
    }

    /// Runs an operation of the store on the thread of the folder, and waits for it.
    fn wait<T: Send + 'static>(&self, operation: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
        let (sender, outcome) = sync_channel(1);
        let runtime = self.0.runtime.as_ref().expect("only the drop takes it");
        runtime.spawn(async move {
            // Nobody waits for it any more if this fails.
            let _ = sender.send(operation.await);
        });
        outcome.recv().map_err(|_| io::Error::other("an operation of the object store panicked"))
    }

    /// Returns the object of a path.
    fn object(&self, path: &Path) -> io::Result<ObjectPath> {
        let mut object = self.0.root.clone();
        for part in path.components() {
            object = match part {
                Component::Normal(name) => {
                    let name = name.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
                    let invalid = |error| io::Error::new(io::ErrorKind::InvalidFilename, error);
                    object.join(PathPart::parse(name).map_err(invalid)?)
                }
                Component::CurDir => object,
                _ => {
                    let what = format!("`{}` is not a path within an object store", path.display());
                    return Err(io::Error::new(io::ErrorKind::InvalidFilename, what));
                }
            };
        }
        Ok(object)
    }

    fn list_objects(&self, folder: &Path) -> io::Result<ListResult> {
        let (store, path) = (self.0.store.clone(), self.object(folder)?);
        self.wait(async move { store.list_with_delimiter(Some(&path)).await })?.map_err(error_of)
    }

    fn length(&self, path: &Path) -> io::Result<u64> {
        let (store, path) = (self.0.store.clone(), self.object(path)?);
        Ok(self.wait(async move { store.head(&path).await })?.map_err(error_of)?.size)
    }

    /// Opens an object at an offset, which it must have.
    fn get(&self, path: &Path, offset: u64) -> io::Result<(u64, ObjectReader)> {
        let (store, path) = (self.0.store.clone(), self.object(path)?);
        let range = (offset > 0).then_some(GetRange::Offset(offset));
        let get = async move { store.get_opts(&path, GetOptions { range, ..GetOptions::default() }).await };
        let found: GetResult = self.wait(get)?.map_err(error_of)?;
        let len = found.meta.size;
        Ok((
            len,
            ObjectReader { folder: self.clone(), stream: Some(found.into_stream()), piece: io::Cursor::default() },
        ))
    }
}

/// Returns a URL without user, password and query, which may have the keys of a store.
fn without_secrets(url: &Url) -> String {
    let mut url = url.clone();
    // URLs without a host have neither user nor password.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.into()
}

/// Returns an error of a store as one of the system.
fn error_of(error: Error) -> io::Error {
    let kind = match &error {
        Error::NotFound { .. } => io::ErrorKind::NotFound,
        Error::AlreadyExists { .. } => io::ErrorKind::AlreadyExists,
        Error::NotSupported { .. } | Error::NotImplemented { .. } => io::ErrorKind::Unsupported,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// An object that is being read.
struct ObjectReader {
    folder: ObjectFolder,
    /// Nothing after the end or an error.
    stream: Option<BoxStream<'static, object_store::Result<Bytes>>>,
    /// Bytes that arrived together, and how many of them were read.
    piece: io::Cursor<Bytes>,
}

impl Read for ObjectReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.piece.read(to)?;
            if n > 0 || to.is_empty() {
                return Ok(n);
            }
            let Some(mut stream) = self.stream.take() else { return Ok(0) };
            let next = async move { (stream.next().await, stream) };
            let (next, stream) = self.folder.wait(next)?;
            if let Some(piece) = next {
                self.piece = io::Cursor::new(piece.map_err(error_of)?);
                self.stream = Some(stream);
            }
        }
    }
}

impl DataStorage for ObjectFolder {
    fn len(&self, path: &Path) -> io::Result<u64> {
        self.length(path)
    }

    fn open(&self, path: &Path, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        // Stores refuse an offset at the end.
        if offset > 0 && offset >= self.length(path)? {
            return Ok(Box::new(io::empty()));
        }
        Ok(Box::new(self.get(path, offset)?.1))
    }

    fn name(&self, path: &Path) -> String {
        self.name_of(path)
    }
}

/// The error of an operation that [`StorageKind::Objects`] does not have.
fn unsupported() -> io::Error {
    io::ErrorKind::Unsupported.into()
}

impl FileStorage for ObjectFolder {
    fn kind(&self) -> StorageKind {
        StorageKind::Objects
    }

    fn publish(&self, file: &Path, bytes: &[u8]) -> io::Result<()> {
        let (store, path, payload) = (self.0.store.clone(), self.object(file)?, PutPayload::from(bytes.to_vec()));
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        self.wait(async move { store.put_opts(&path, payload, options).await })?.map_err(error_of)?;
        Ok(())
    }

    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn StorageWriter>> {
        let (folder, path) = (self.clone(), self.object(file)?);
        Ok(Box::new(ObjectWriter { folder, path, part: Vec::new(), upload: UploadState::Small }))
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        Err(unsupported())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_file(&self, _file: &Path) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        let (store, path) = (self.0.store.clone(), self.object(file)?);
        self.wait(async move { store.delete(&path).await })?.map_err(error_of)
    }

    fn remove_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let found = self.list_objects(dir)?;
        let objects = found.objects.iter().map(|object| &object.location);
        let names = objects.chain(&found.common_prefixes).filter_map(ObjectPath::filename);
        Ok(names.map(str::to_owned).collect())
    }

    fn read(&self, file: &Path) -> io::Result<StorageReader> {
        let (len, bytes) = self.get(file, 0)?;
        Ok(StorageReader { bytes: Box::new(bytes), len })
    }

    fn len(&self, file: &Path) -> io::Result<u64> {
        self.length(file)
    }

    fn cut(&self, _file: &Path, _len: u64) -> io::Result<()> {
        Err(unsupported())
    }

    fn lock(&self, _file: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        Err(unsupported())
    }
}

/// An object that is being written. It appears when it is synced.
struct ObjectWriter {
    folder: ObjectFolder,
    path: ObjectPath,
    /// The bytes that were not uploaded yet, less than a part.
    part: Vec<u8>,
    upload: UploadState,
}

enum UploadState {
    /// No part is complete yet.
    Small,
    /// All parts but the last were uploaded.
    Parts(Box<dyn MultipartUpload>),
    /// The object is there, or an operation has failed.
    Ended,
}

impl ObjectWriter {
    /// Uploads the bytes as a part.
    fn upload_part(&mut self) -> io::Result<()> {
        let mut upload = match std::mem::replace(&mut self.upload, UploadState::Ended) {
            UploadState::Small => {
                let (store, path) = (self.folder.0.store.clone(), self.path.clone());
                self.folder.wait(async move { store.put_multipart(&path).await })?.map_err(error_of)?
            }
            UploadState::Parts(upload) => upload,
            UploadState::Ended => return Err(io::Error::other("the object is written, or an upload has failed")),
        };
        let part = upload.put_part(std::mem::take(&mut self.part).into());
        let uploaded = self.folder.wait(part)?.map_err(error_of);
        // A failed upload is kept, to be given up when it is dropped.
        self.upload = UploadState::Parts(upload);
        uploaded
    }
}

impl Write for ObjectWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(PART - self.part.len());
        self.part.extend(&bytes[..n]);
        if self.part.len() == PART {
            self.upload_part()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl StorageWriter for ObjectWriter {
    fn sync(&mut self) -> io::Result<()> {
        if let UploadState::Small = self.upload {
            self.upload = UploadState::Ended;
            let (store, path) = (self.folder.0.store.clone(), self.path.clone());
            let payload = PutPayload::from(std::mem::take(&mut self.part));
            self.folder.wait(async move { store.put(&path, payload).await })?.map_err(error_of)?;
            return Ok(());
        }
        if !self.part.is_empty() {
            self.upload_part()?;
        }
        let UploadState::Parts(mut upload) = std::mem::replace(&mut self.upload, UploadState::Ended) else {
            return Err(io::Error::other("the object is written, or an upload has failed"));
        };
        self.folder.wait(async move { upload.complete().await })?.map_err(error_of)?;
        Ok(())
    }
}

impl Drop for ObjectWriter {
    /// Gives up an upload that is not complete, so that the store need not keep its parts.
    fn drop(&mut self) {
        if let UploadState::Parts(mut upload) = std::mem::replace(&mut self.upload, UploadState::Ended) {
            // What cannot be given up is removed by the rules of the store.
            let _ = self.folder.wait(async move { upload.abort().await });
        }
    }
}
