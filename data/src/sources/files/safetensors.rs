//! Files of the format safetensors: several arrays by name, without compression, so that each row
//! has a known place.
//!
//! Position: the index of the next row. A row is read when it is asked for. A pass in order reads
//! from open files; a row by its index opens the file at its place.

use crate::position::SavedWords;
use crate::stage::{Cursor, IndexedStage, Stage};
use crate::{DataFile, Dataset};
use anabranch_dsl::safetensors::{TensorEntry, TensorHeader, shown};
use anabranch_dsl::{Array, Buffer, DType, Diagnostic, Element, ErrorKind, HostTensor, Result, bf16, f16, memory};
use std::io::{self, BufReader, Read};
use std::sync::Arc;

/// An open file of safetensors, as Python's library and `checkpoints::WeightFile` write them.
///
/// Only the header is in memory. [`rows`](SafetensorsFile::rows) is for data sets of any size;
/// [`read`](SafetensorsFile::read) reads one tensor whole.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("anabranch-rows-{}", std::process::id()));
/// # let header = br#"{"x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},
/// #     "class":{"dtype":"U8","shape":[2],"data_offsets":[8,10]}}"#;
/// # let numbers = [0.5_f32, 1.5].map(f32::to_le_bytes).concat();
/// # let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &numbers, &[3, 4]].concat();
/// # std::fs::write(&path, bytes).unwrap();
/// use anabranch::Array;
/// use anabranch::data::safetensors::SafetensorsFile;
///
/// let file = SafetensorsFile::open(&path)?;
/// assert!(file.names().eq(["x", "class"]));
/// let data = file.rows::<(Array<f32>, Array<u8>)>(("x", "class"))?.shuffle(1000, 7).batch(2);
/// let (x, class) = data.iter().next().unwrap()?;
/// assert_eq!((x.shape(), class.shape()), (&[2, 1][..], &[2][..]));
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Debug)]
pub struct SafetensorsFile {
    file: DataFile,
    /// The offset of the first element.
    begin: u64,
    tensors: Arc<[TensorEntry]>,
}

impl SafetensorsFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is damaged, or is compressed: rows could not be
    /// found by their places.
    pub fn open(file: impl Into<DataFile>) -> Result<SafetensorsFile> {
        let file = file.into();
        let unreadable = |error: io::Error| file.unreadable(&error);
        let len = file.len().map_err(unreadable)?;
        let mut bytes = file.open(0).map_err(unreadable)?;
        let wrong = |what: String| file.broken("the header at byte 0", what);
        let first: [u8; 8] = read_up_to(&mut bytes, 8)
            .map_err(unreadable)?
            .try_into()
            .map_err(|_| wrong(format!("the file ends within its first eight bytes: it has {len} bytes")))?;
        if first.starts_with(&GZIP) {
            let error = wrong("the file is compressed by gzip, so its rows have no known places".to_owned());
            return Err(error.help("decompress it first"));
        }
        let header_len = TensorHeader::len_of(first, len).map_err(wrong)?;
        let json = read_up_to(&mut bytes, header_len).map_err(unreadable)?;
        if json.len() as u64 != header_len {
            return Err(wrong("the file ends within its header".to_owned()));
        }
        let begin = 8 + header_len;
        let header = TensorHeader::parse(&json, len - begin).map_err(wrong)?;
        Ok(SafetensorsFile { file, begin, tensors: header.tensors.into() })
    }

    /// Returns the names of the tensors, in the order in which they are stored.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|tensor| tensor.name.as_str())
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// Returns an error if there is no tensor of this name, if it has elements of another type, or
    /// if it cannot be read.
    pub fn read<T: Element>(&self, name: &str) -> Result<Array<T>> {
        let place = self.place::<T>(name)?;
        let n_bytes = place.tensor().n_bytes();
        memory::check(n_bytes.into()).map_err(|error| {
            let error = place.broken(error).of_kind(ErrorKind::ResourceExhausted);
            error.help("take its rows as elements of a dataset, which reads one at a time")
        })?;
        let bytes = place.bytes_at(0, n_bytes)?;
        place.array(&place.tensor().shape, bytes, 0)
    }

    /// Returns the rows of a tensor along its first axis, or those of several tensors as tuples:
    /// `R` is an [`Array`], or a tuple of arrays, and `names` has as many names.
    ///
    /// A row is read when it is asked for: what is in memory does not depend on the size of the
    /// file. A shuffled pass opens the file for each row. [`Dataset::cache`] keeps rows, and
    /// [`Dataset::rows`] has those of tensors that were [read](SafetensorsFile::read).
    ///
    /// # Errors
    /// Returns an error if there is no tensor of a name, if it has elements of another type, if it
    /// is a single number, or if two tensors have different numbers of rows. A row that cannot be
    /// read is an error in its place.
    pub fn rows<R: SafetensorsRow>(&self, names: R::Names<'_>) -> Result<Dataset<R>> {
        let places: Vec<TensorPlace> = R::places(self, names)?;
        let mut n_rows = None;
        for place in &places {
            let n = place.n_rows()?;
            if let Some(first) = n_rows.filter(|first| *first != n) {
                let what = format!("it has {n} rows, and {} has {first}", shown(&places[0].tensor().name));
                return Err(place.broken(what).help("each element consists of one row of each tensor"));
            }
            n_rows = Some(n);
        }
        let n_rows = n_rows.expect("a row has at least one tensor");
        if let Some(place) = places.iter().find(|place| place.row_len() == 0 && n_rows > MAX_EMPTY_ROWS) {
            let what = format!("it has {n_rows} rows without elements");
            return Err(place.broken(what).help(format!("a tensor has at most {MAX_EMPTY_ROWS} of them")));
        }
        Ok(Dataset::of(TensorRowStage::<R> { places: places.into(), n_rows, row: std::marker::PhantomData }))
    }

    /// Returns a tensor with elements of this type.
    fn place<T: Element>(&self, name: &str) -> Result<TensorPlace> {
        let Some(index) = self.tensors.iter().position(|tensor| tensor.name == name) else {
            let message = format!("`{}` has no tensor {}", self.file, shown(name));
            let names: Vec<String> = self.names().map(shown).collect();
            let help = if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
            return Err(Diagnostic::new(message).help(help));
        };
        let place = TensorPlace { file: self.clone(), index };
        match place.tensor().dtype {
            Some(dtype) if dtype == T::DTYPE => Ok(place),
            Some(dtype) => Err(place.broken(format!("the elements are {}, not {}", dtype.name(), T::DTYPE.name()))),
            None => {
                let what = format!("the elements are {}, which no array has", place.tensor().file_type);
                Err(place.broken(what).help("store them as another type, such as F32"))
            }
        }
    }
}

/// The most rows without elements. A few bytes of a file can stand for any number of them.
const MAX_EMPTY_ROWS: u64 = 1 << 32;

/// The first bytes of files that are compressed by gzip. As the length of a header they would be
/// possible only in files of another kind.
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];

/// The bytes of a file from a place on.
#[doc(hidden)]
pub type OpenBytes = Box<dyn Read + Send>;

/// A tensor of a file.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct TensorPlace {
    file: SafetensorsFile,
    index: usize,
}

impl TensorPlace {
    fn tensor(&self) -> &TensorEntry {
        &self.file.tensors[self.index]
    }

    /// Returns the offset of the first element in the file.
    fn begin(&self) -> u64 {
        self.file.begin + self.tensor().begin
    }

    /// Returns an error of the whole tensor.
    fn broken(&self, what: impl std::fmt::Display) -> Diagnostic {
        let place = format!("the tensor {} at byte {}", shown(&self.tensor().name), self.begin());
        self.file.file.broken(place, what)
    }

    fn n_rows(&self) -> Result<u64> {
        let scalar = || self.broken("a single number has no rows").help("use a tensor with at least one axis");
        self.tensor().shape.first().map(|&n| n as u64).ok_or_else(scalar)
    }

    /// Returns the number of bytes of a row. There is one.
    fn row_len(&self) -> u64 {
        // Not from the other extents, whose product need not fit if one of them is zero.
        self.tensor().n_bytes() / (self.tensor().shape[0] as u64).max(1)
    }

    /// Opens the file at an offset from the first element.
    fn open(&self, offset: u64) -> Result<OpenBytes> {
        self.file.file.open(self.begin() + offset).map_err(|error| self.file.file.unreadable(&error))
    }

    /// Reads bytes of an open file, which must have them.
    fn bytes(&self, from: &mut dyn Read, offset: u64, n: u64) -> Result<Vec<u8>> {
        let bytes = read_up_to(from, n).map_err(|error| self.file.file.unreadable(&error))?;
        match bytes.len() as u64 == n {
            true => Ok(bytes),
            false => {
                let what = format!("the file ends before {n} bytes at byte {}", self.begin() + offset);
                Err(self.broken(what).help("the file has changed since it was opened"))
            }
        }
    }

    fn bytes_at(&self, offset: u64, n: u64) -> Result<Vec<u8>> {
        self.bytes(&mut *self.open(offset)?, offset, n)
    }

    /// Returns the array of bytes that were read at an offset from the first element.
    fn array<T: Element>(&self, shape: &[usize], bytes: Vec<u8>, offset: u64) -> Result<Array<T>> {
        let buffer = match T::DTYPE {
            DType::F32 => Buffer::F32(elements(&bytes, f32::from_le_bytes)),
            DType::F64 => Buffer::F64(elements(&bytes, f64::from_le_bytes)),
            DType::F16 => Buffer::F16(elements(&bytes, f16::from_le_bytes)),
            DType::BF16 => Buffer::BF16(elements(&bytes, bf16::from_le_bytes)),
            DType::I32 => Buffer::I32(elements(&bytes, i32::from_le_bytes)),
            DType::I64 => Buffer::I64(elements(&bytes, i64::from_le_bytes)),
            DType::U32 => Buffer::U32(elements(&bytes, u32::from_le_bytes)),
            DType::U8 => Buffer::U8(bytes),
            DType::Bool => {
                if let Some(i) = bytes.iter().position(|&byte| byte > 1) {
                    let (at, byte) = (self.begin() + offset + i as u64, bytes[i]);
                    return Err(self.broken(format!("the bool at byte {at} is {byte}, neither 0 nor 1")));
                }
                Buffer::Bool(bytes.into_iter().map(|byte| byte == 1).collect())
            }
            DType::Bytes => unreachable!("no tensor of the format has strings"),
        };
        let tensor = HostTensor::from_buffer(shape.to_vec(), buffer);
        Ok(Array::from_host(tensor).expect("the tensor has elements of this type"))
    }

    /// Reads the next row of an open file.
    fn row<T: Element>(&self, from: &mut dyn Read, i: u64) -> Result<Array<T>> {
        let n = self.row_len();
        let bytes = self.bytes(from, i * n, n)?;
        self.array(&self.tensor().shape[1..], bytes, i * n)
    }
}

/// Returns elements of `N` bytes each.
fn elements<const N: usize, T>(bytes: &[u8], of: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.chunks_exact(N).map(|bytes| of(bytes.try_into().expect("the bytes of one element"))).collect()
}

/// Reads up to `n` bytes. What a file says of its length is not trusted with memory: what is there
/// is read.
fn read_up_to(from: &mut dyn Read, n: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(n.min(1 << 16)).expect("it is small"));
    from.take(n).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Elements of [`SafetensorsFile::rows`]: an [`Array`], or a tuple of up to four arrays.
pub trait SafetensorsRow: Send + Sized + 'static {
    /// The names of the tensors: one for an array, a tuple of names for a tuple.
    type Names<'a>;

    /// Returns the tensors of these names.
    #[doc(hidden)]
    fn places(file: &SafetensorsFile, names: Self::Names<'_>) -> Result<Vec<TensorPlace>>;

    /// Reads a row from open files, one for each tensor.
    #[doc(hidden)]
    fn read(places: &[TensorPlace], files: &mut [OpenBytes], i: u64) -> Result<Self>;
}

impl<T: Element> SafetensorsRow for Array<T> {
    type Names<'a> = &'a str;

    fn places(file: &SafetensorsFile, name: &str) -> Result<Vec<TensorPlace>> {
        Ok(vec![file.place::<T>(name)?])
    }

    fn read(places: &[TensorPlace], files: &mut [OpenBytes], i: u64) -> Result<Array<T>> {
        places[0].row(&mut files[0], i)
    }
}

macro_rules! rows_of_tuples {
    ($(($($t:ident $name:ident $i:tt $str:ty),*);)*) => {$(
        impl<$($t: Element),*> SafetensorsRow for ($(Array<$t>,)*) {
            type Names<'a> = ($(&'a $str,)*);

            fn places(file: &SafetensorsFile, ($($name,)*): Self::Names<'_>) -> Result<Vec<TensorPlace>> {
                Ok(vec![$(file.place::<$t>($name)?),*])
            }

            fn read(places: &[TensorPlace], files: &mut [OpenBytes], i: u64) -> Result<Self> {
                Ok(($(places[$i].row(&mut files[$i], i)?,)*))
            }
        }
    )*};
}
rows_of_tuples! {
    (A a 0 str);
    (A a 0 str, B b 1 str);
    (A a 0 str, B b 1 str, C c 2 str);
    (A a 0 str, B b 1 str, C c 2 str, D d 3 str);
}

struct TensorRowStage<R> {
    places: Arc<[TensorPlace]>,
    n_rows: u64,
    row: std::marker::PhantomData<fn() -> R>,
}

impl<R: SafetensorsRow> Stage<R> for TensorRowStage<R> {
    fn open(&self, _epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<R>>> {
        let (places, n_rows, row) = (self.places.clone(), self.n_rows, self.row);
        let stage = TensorRowStage { places, n_rows, row };
        Ok(Box::new(TensorRowCursor { stage, next: at.word(), files: None }))
    }

    fn len(&self) -> Option<u64> {
        Some(self.n_rows)
    }

    fn describe(&self, text: &mut String) {
        let names: Vec<String> = self.places.iter().map(|place| shown(&place.tensor().name)).collect();
        *text += &format!("{} rows of {}", self.n_rows, names.join(", "));
    }

    fn indexed(&self) -> Option<&dyn IndexedStage<R>> {
        Some(self as _)
    }
}

impl<R: SafetensorsRow> TensorRowStage<R> {
    /// Opens the file at a row of each tensor.
    fn files(&self, i: u64) -> Result<Vec<OpenBytes>> {
        self.places.iter().map(|place| place.open(i * place.row_len())).collect()
    }
}

impl<R: SafetensorsRow> IndexedStage<R> for TensorRowStage<R> {
    fn n(&self) -> u64 {
        self.n_rows
    }

    fn get(&self, _epoch: u64, index: u64) -> Result<R> {
        R::read(&self.places, &mut self.files(index)?, index)
    }
}

/// A pass in order, which keeps its files open.
struct TensorRowCursor<R> {
    stage: TensorRowStage<R>,
    next: u64,
    /// The file at the next row of each tensor.
    files: Option<Vec<OpenBytes>>,
}

fn buffered(bytes: OpenBytes) -> OpenBytes {
    Box::new(BufReader::with_capacity(1 << 16, bytes))
}

impl<R: SafetensorsRow> TensorRowCursor<R> {
    fn read(&mut self, i: u64) -> Result<R> {
        // After an error the places in the files are unknown, so they are opened again.
        let mut files = match self.files.take() {
            Some(files) => files,
            None => self.stage.files(i)?.into_iter().map(buffered).collect(),
        };
        let row = R::read(&self.stage.places, &mut files, i)?;
        self.files = Some(files);
        Ok(row)
    }
}

impl<R: SafetensorsRow> Cursor<R> for TensorRowCursor<R> {
    fn next(&mut self) -> Option<Result<R>> {
        let i = self.next;
        (i < self.stage.n_rows).then(|| {
            self.next += 1;
            self.read(i)
        })
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.push(self.next);
    }

    fn skipped(&self) -> u64 {
        0
    }
}
