//! Files of data: any bytes are elements or errors, and each pass can be continued in its middle.

use anabranch_data::example::{Example, Feature};
use anabranch_data::{
    DataFile, DataStorage, Dataset, csv, idx, npy, npz::NpzFile, parquet, safetensors, text, tfrecord,
};
use anabranch_dsl::{Array, Element, f16};
use serde::Deserialize;
use std::fmt::Debug;
use std::io::{self, Cursor, Read};
use std::path::Path;
use std::sync::Arc;

/// A target: its name, its body, which returns whether the bytes mean something, and valid inputs.
pub type Target = (&'static str, fn(&[u8]) -> bool, fn() -> Vec<Vec<u8>>);

/// Returns the bytes of a file of tests.
macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!("../../../data/tests/fixtures/", $name)).to_vec()
    };
}

/// The targets of this file.
pub const TARGETS: [Target; 9] = [
    ("lines", line_file, || vec![b"one\r\n\ndrei \xc3\xa9".to_vec()]),
    ("csv", table, tables),
    ("tfrecord", record_file, record_files),
    ("example", example, examples),
    ("npy", npy_file, || vec![fixture!("C_f4.npy"), fixture!("F_i8.npy"), fixture!("scalar.npy")]),
    ("npz", npz_file, || vec![fixture!("stored.npz"), fixture!("deflated.npz")]),
    ("idx", idx_file, arrays),
    ("rows", row_file, || vec![fixture!("rows.safetensors"), small_row_file()]),
    ("parquet", parquet_file, || vec![fixture!("none.parquet"), fixture!("gzip.parquet"), fixture!("nulls.parquet")]),
];

/// Runs the target of this name. Returns whether the bytes mean something.
#[allow(dead_code, reason = "`mutate` has the list of all targets")]
pub fn run(name: &str, bytes: &[u8]) -> bool {
    let target = TARGETS.iter().find(|(of, ..)| *of == name);
    (target.expect("the target is in the list").1)(bytes)
}

/// A storage of one file.
struct OneFile(Arc<[u8]>);

impl DataStorage for OneFile {
    fn len(&self, _: &Path) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn open(&self, _: &Path, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        let mut bytes = Cursor::new(self.0.clone());
        bytes.set_position(offset);
        Ok(Box::new(bytes))
    }
}

fn file(name: &str, bytes: &[u8]) -> DataFile {
    DataFile::new(Arc::new(OneFile(bytes.into())), name)
}

/// Reads all elements, and those behind the middle again. Returns how many are values, and how many
/// are errors.
fn pass<T: PartialEq + Debug + Send + 'static>(data: &Dataset<T>) -> (usize, usize) {
    const MOST: usize = 1000;
    let shown = |elements: &mut dyn Iterator<Item = anabranch_dsl::Result<T>>| -> Vec<Result<T, String>> {
        elements.take(MOST).map(|element| element.map_err(|error| error.message)).collect()
    };
    let all = shown(&mut data.iter());
    let mut first = data.iter();
    first.by_ref().take(all.len() / 2).for_each(drop);
    let rest = data.resume(&first.position()).expect("a file that was read can be read again");
    let rest = shown(&mut rest.take(all.len() - all.len() / 2));
    assert_eq!(all[all.len() / 2..], rest);
    let n_values = all.iter().filter(|element| element.is_ok()).count();
    (n_values, all.len() - n_values)
}

fn line_file(bytes: &[u8]) -> bool {
    pass(&text::lines([file("a.txt", bytes)])).1 == 0
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "rows are compared as text, since numbers may be NaN")]
struct Row {
    name: String,
    x: f32,
    n: Option<i64>,
}

fn table(bytes: &[u8]) -> bool {
    pass(&csv::rows([file("a.csv", bytes)]).map(|row: Row| format!("{row:?}"))).1 == 0
}

fn tables() -> Vec<Vec<u8>> {
    let text = "x,ignored,name,n\n1.5,,\"two\nlines\",3\n2,,c,\n-1,,\"d\"\"q\",\n";
    vec![text.into(), text.replace('\n', "\r\n").into()]
}

fn record_file(bytes: &[u8]) -> bool {
    pass(&tfrecord::records([file("a", bytes)])).0 > 0
}

fn record_files() -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    for record in [&b"first"[..], b"", b"third one"] {
        tfrecord::write(&mut bytes, record).expect("a vector takes all");
    }
    vec![bytes]
}

fn example(bytes: &[u8]) -> bool {
    let Ok(example) = Example::parse(bytes) else { return false };
    // Numbers may be NaN.
    let again = Example::parse(&example.to_bytes()).expect("an example that was encoded can be decoded");
    assert_eq!(again.to_bytes(), example.to_bytes());
    true
}

fn examples() -> Vec<Vec<u8>> {
    let features = [
        ("bytes", Feature::Bytes(vec![b"a".to_vec(), Vec::new()])),
        ("floats", Feature::Floats(vec![0.5, f32::MAX])),
        ("ints", Feature::Ints(vec![i64::MIN, 0, i64::MAX])),
    ];
    vec![Example::new(features).to_bytes()]
}

fn npy_file(bytes: &[u8]) -> bool {
    let file = file("a.npy", bytes);
    npy::read::<f32>(&file).is_ok() | npy::read::<i64>(&file).is_ok() | npy::read::<f64>(&file).is_ok()
}

fn npz_file(bytes: &[u8]) -> bool {
    let Ok(file) = NpzFile::open(file("a.npz", bytes)) else { return false };
    let names: Vec<String> = file.names().map(str::to_owned).collect();
    names.iter().filter(|name| file.read::<f32>(name).is_ok()).count() > 0
}

fn idx_file(bytes: &[u8]) -> bool {
    let file = file("a.idx", bytes);
    let Ok(array) = idx::read::<f32>(&file) else { return idx::read::<u8>(&file).is_ok() };
    let mut again = Vec::new();
    idx::write(&mut again, &array).expect("an array that was read can be written");
    assert_eq!(again, bytes);
    true
}

fn arrays() -> Vec<Vec<u8>> {
    let (mut floats, mut bytes) = (Vec::new(), Vec::new());
    idx::write(&mut floats, &Array::new([2, 3], vec![0.5_f32; 6])).expect("a vector takes all");
    idx::write(&mut bytes, &Array::new([4], vec![7_u8; 4])).expect("a vector takes all");
    vec![floats, bytes]
}

fn row_file(bytes: &[u8]) -> bool {
    fn rows<T: Element>(file: &safetensors::SafetensorsFile) -> bool {
        let names: Vec<&str> = file.names().collect();
        let found = names.iter().filter_map(|name| file.rows::<Array<T>>(name).ok()).map(|data| {
            // The same by their indices, in another order. Numbers may be NaN, which text does not
            // tell from itself.
            pass(&data.map(|row| format!("{row:?}"))).0 + pass(&data.shuffle(1, 3).map(|row| format!("{row:?}"))).0
        });
        found.sum::<usize>() > 0
    }
    let Ok(file) = safetensors::SafetensorsFile::open(file("a.safetensors", bytes)) else { return false };
    rows::<f32>(&file) | rows::<bool>(&file) | rows::<u8>(&file) | rows::<i64>(&file) | rows::<f16>(&file)
}

/// Returns a file of two tensors, whose header is short, so that more mutations are in it.
fn small_row_file() -> Vec<u8> {
    let header = br#"{"a":{"dtype":"BOOL","shape":[2,3],"data_offsets":[0,6]},
"b":{"dtype":"F32","shape":[2,1],"data_offsets":[6,14]}}"#;
    [&(header.len() as u64).to_le_bytes()[..], header, &[1; 14]].concat()
}

/// A row of each kind of column of the fixtures.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Columns {
    flag: Option<bool>,
    large: Option<u64>,
    half: Option<f32>,
    x: Option<f64>,
    text: Option<String>,
    name: Option<String>,
    fixed: Option<[u8; 3]>,
    point: Option<[f32; 3]>,
    words: Option<Vec<Option<i64>>>,
}

fn parquet_file(bytes: &[u8]) -> bool {
    pass(&parquet::rows([file("a.parquet", bytes)]).map(|row: Columns| format!("{row:?}"))).0 > 0
}
