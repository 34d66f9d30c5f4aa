//! Rows of safetensors files. The fixture was written by Python's library.

use crate::files::{Folder, fixture};
use crate::positions::check;
use crate::{all, values};
use anabranch::data::safetensors::{SafetensorsFile, SafetensorsRow};
use anabranch::data::{DataFile, DataStorage, Dataset};
use anabranch::{Array, Element, bf16, f16};
use std::io::{self, Cursor, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

fn opened() -> SafetensorsFile {
    SafetensorsFile::open(fixture("rows.safetensors")).unwrap()
}

/// Returns the bytes of a file with this header.
fn with_header(header: &str, elements: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), elements].concat()
}

#[test]
fn tensors_of_python_are_read_whole_and_by_rows() {
    #[track_caller]
    fn check_type<T: Element>(name: &str, shape: &[usize], of: impl Fn(i64) -> T) {
        let (file, n) = (opened(), shape.iter().product::<usize>() as i64);
        let whole = Array::new(shape, (0..n).map(of).collect());
        assert_eq!(file.read::<T>(name).unwrap(), whole, "{name}");
        let rows = values(&file.rows::<Array<T>>(name).unwrap(), 0);
        assert_eq!(rows, values(&Dataset::rows(whole).unwrap(), 0), "{name}");
        assert_eq!(rows.len(), 5);
    }
    check_type("x", &[5, 2, 3], |i| i as f32 / 2.0);
    check_type("class", &[5], |i| i * 1_000_000_007);
    check_type("double", &[5, 3], |i| (i / 3 * 6 + i % 3) as f64 / 8.0);
    check_type("half", &[5, 3], |i| f16::from_f64((i / 3 * 6 + 3 + i % 3) as f64));
    check_type("int", &[5, 2, 3], |i| -i as i32);
    check_type("unsigned", &[5], |i| i as u32 + 4_000_000_000);
    check_type("pixels", &[5, 2, 3], |i| i as u8);
    check_type("flag", &[5], |i| i % 2 == 1);
    let file = opened();
    assert_eq!(file.read::<f32>("scalar").unwrap().item(), 2.5);
    assert_eq!(file.read::<f32>("none").unwrap().shape(), [0, 3]);
    assert!(file.rows::<Array<f32>>("none").unwrap().is_empty());
    assert_eq!(file.names().count(), 12);
}

#[test]
fn rows_of_several_tensors_are_tuples_and_continue_from_each_position() {
    let file = opened();
    let one = file.rows::<(Array<i64>,)>(("class",)).unwrap();
    let two = file.rows::<(Array<f32>, Array<i64>)>(("x", "class")).unwrap();
    let three = file.rows::<(Array<f16>, Array<bool>, Array<u8>)>(("half", "flag", "pixels")).unwrap();
    type Four = (Array<f64>, Array<i32>, Array<u32>, Array<f32>);
    let four = file.rows::<Four>(("double", "int", "unsigned", "x")).unwrap();
    let (x, class) = (file.read::<f32>("x").unwrap(), file.read::<i64>("class").unwrap());
    assert_eq!(values(&two, 0), values(&Dataset::rows((x, class)).unwrap(), 0));
    assert_eq!([one.len(), two.len(), three.len(), four.len()], [Some(5); 4]);
    assert_eq!(check(&one, &[0]) + check(&three, &[0, 1]) + check(&four, &[0]), 4 * 6);
    // In order, by index, and on threads, which all deliver the same.
    let mut n = 0;
    for threads in [1, 2, 8] {
        assert_eq!(all(&two.prefetch(threads, 4), 0), all(&two, 0));
        assert_eq!(all(&two.shuffle(5, 3).prefetch(threads, 4), 2), all(&two.shuffle(5, 3), 2));
        n += check(&two.shuffle(5, 3).map_parallel(threads, Ok).batch(2), &[0, 1]);
        n += check(&two.filter(|(_, class)| class.item() > 0).repeat(2).prefetch(threads, 3), &[1]);
    }
    assert_eq!(n, 3 * (2 * 4 + 9));
    assert_ne!(values(&two.shuffle(5, 3), 0), values(&two, 0));
    // A pass over other tensors is another one.
    let error = one.resume(&two.iter().position()).unwrap_err();
    assert!(error.message.contains("5 rows of `x`, `class`"), "{error}");
}

#[test]
fn files_are_joined_as_datasets_are() {
    let files = vec![fixture("rows.safetensors"); 3];
    let data = Dataset::new(files)
        .interleave(2, 2, |path| SafetensorsFile::open(path)?.rows::<(Array<f32>, Array<bool>)>(("x", "flag")))
        .shuffle(4, 1)
        .batch(4);
    assert_eq!(data.iter().map(|batch| batch.unwrap().1.len()).sum::<usize>(), 15);
    assert_eq!(check(&data, &[0, 1]), 10);
}

#[test]
fn bfloat16_and_foreign_element_types_are_told_apart() {
    let folder = Folder::new("safetensors_types");
    let header = r#"{"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},
        "f":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[4,6]}}"#;
    let path = folder.write("a.safetensors", &with_header(header, &[0x80, 0x3f, 0x20, 0xc0, 1, 2]));
    let file = SafetensorsFile::open(&path).unwrap();
    assert_eq!(file.read::<bf16>("b").unwrap().to_vec(), [1.0, -2.5].map(bf16::from_f32));
    let place = format!("`{}`, the tensor `f` at byte {}: ", path.display(), 8 + header.len() + 4);
    for error in [file.read::<u8>("f").unwrap_err(), file.rows::<Array<u8>>("f").unwrap_err()] {
        assert_eq!(error.message, format!("{place}the elements are F8_E4M3, which no array has"));
        assert_eq!(error.help.as_deref(), Some("store them as another type, such as F32"));
    }
}

#[test]
fn errors_name_the_file_the_offset_and_what_there_is() {
    fn error<R: SafetensorsRow>(names: R::Names<'_>) -> anabranch::Diagnostic {
        opened().rows::<R>(names).unwrap_err()
    }
    let path = fixture("rows.safetensors");
    let unknown = error::<(Array<f32>, Array<i64>)>(("x", "label"));
    assert_eq!(unknown.message, format!("`{}` has no tensor `label`", path.display()));
    let help = unknown.help.unwrap();
    assert!(help.starts_with("it has `") && help.contains("`class`") && help.contains("`x`"), "{help}");
    let other = error::<Array<i32>>("x").message;
    let begin = std::fs::read(&path).unwrap();
    // The only tensor that begins with the numbers 0 and 0.5.
    let begin = begin.windows(8).position(|bytes| bytes == [0, 0, 0, 0, 0, 0, 0, 0x3f]).unwrap();
    let place = format!("`{}`, the tensor `x` at byte {begin}: ", path.display());
    assert_eq!(other, format!("{place}the elements are f32, not i32"));
    let short = error::<Array<i32>>("short").message;
    assert!(short.ends_with("the elements are I16, which no array has"), "{short}");
    let scalar = error::<Array<f32>>("scalar").message;
    assert!(scalar.ends_with(": a single number has no rows"), "{scalar}");
    let unequal = error::<(Array<i64>, Array<f32>)>(("class", "four"));
    assert!(unequal.message.contains("the tensor `four` at byte "), "{unequal}");
    assert!(unequal.message.ends_with(": it has 4 rows, and `class` has 5"), "{unequal}");
}

#[test]
fn damaged_headers_are_errors_with_their_place() {
    let folder = Folder::new("safetensors_headers");
    let open = |bytes: &[u8]| SafetensorsFile::open(folder.write("a", bytes)).map(drop).unwrap_err();
    let bytes = std::fs::read(fixture("rows.safetensors")).unwrap();
    for i in 0..bytes.len() {
        let error = open(&bytes[..i]);
        assert!(error.message.contains("a`, the header at byte 0: "), "{i} bytes: {error}");
    }
    let tensor = |dtype: &str, offsets: &str| {
        with_header(&format!(r#"{{"x":{{"dtype":"{dtype}","shape":[2],"data_offsets":[{offsets}]}}}}"#), &[0; 8])
    };
    assert!(SafetensorsFile::open(folder.write("good", &tensor("F32", "0,8"))).is_ok());
    for (bytes, what) in [
        (b"PK\x03\x04\xff\xff\xff\xff rest".to_vec(), "this is no file of the format safetensors"),
        (with_header("[1]", &[]), "the header is not an object of JSON"),
        (tensor("F32", "0,4"), "the tensor `x`: F32 of shape [2] has 8 bytes, but the file has 4"),
        (tensor("F33", "0,8"), "the tensor `x`: the element type `F33` is unknown"),
        (tensor("F32", "8,16"), "the tensor `x` follows a hole: it begins at byte 8 and not at 0"),
        (tensor("U8", "0,2"), "there are 8 bytes of elements, but the tensor `x` ends at byte 2"),
    ] {
        let error = open(&bytes);
        assert!(error.message.ends_with(what), "{error}");
    }
    let empty = r#"{"x":{"dtype":"F32","shape":[4611686018427387904,0],"data_offsets":[0,0]}}"#;
    let file = SafetensorsFile::open(folder.write("empty", &with_header(empty, &[]))).unwrap();
    let error = file.rows::<Array<f32>>("x").map(drop).unwrap_err();
    assert!(error.message.ends_with("it has 4611686018427387904 rows without elements"), "{error}");
    let path = folder.write("a.safetensors.gz", &tensor("F32", "0,8"));
    let error = SafetensorsFile::open(&path).unwrap_err();
    assert!(error.message.contains("compressed by gzip"), "{error}");
    assert_eq!(error.help.as_deref(), Some("decompress it first"));
    let error = SafetensorsFile::open(folder.0.join("none")).unwrap_err();
    assert!(error.message.contains("none` cannot be read"), "{error}");
}

/// A file in memory that may change, and counts what is read of it.
#[derive(Clone)]
struct CountedFile {
    bytes: Arc<Mutex<Vec<u8>>>,
    n_read: Arc<AtomicU64>,
}

struct CountedBytes(Cursor<Vec<u8>>, Arc<AtomicU64>);

impl Read for CountedBytes {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.0.read(to)?;
        self.1.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

impl DataStorage for CountedFile {
    fn len(&self, _: &Path) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn open(&self, _: &Path, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        let mut bytes = Cursor::new(self.bytes.lock().unwrap().clone());
        bytes.set_position(offset);
        Ok(Box::new(CountedBytes(bytes, self.n_read.clone())))
    }
}

/// Returns a file of `n` rows of 1,000 bytes.
fn counted(n: usize) -> (CountedFile, DataFile) {
    let header = format!(r#"{{"x":{{"dtype":"U8","shape":[{n},1000],"data_offsets":[0,{}]}}}}"#, n * 1000);
    let elements: Vec<u8> = (0..n * 1000).map(|i| (i / 1000) as u8).collect();
    let bytes = Arc::new(Mutex::new(with_header(&header, &elements)));
    let storage = CountedFile { bytes, n_read: Arc::default() };
    (storage.clone(), DataFile::new(Arc::new(storage), "counted"))
}

#[test]
fn only_the_rows_that_are_asked_for_are_read() {
    let (storage, file) = counted(200);
    let rows = SafetensorsFile::open(file).unwrap().rows::<Array<u8>>("x").unwrap();
    let header = storage.n_read.swap(0, Ordering::Relaxed);
    assert!(header < 100, "{header} bytes of the header");
    let shuffled: Vec<Array<u8>> = rows.shuffle(200, 1).iter().take(3).map(Result::unwrap).collect();
    assert!(shuffled.iter().all(|row| row.len() == 1000 && row.iter().all(|x| x == &row.as_slice()[0])));
    assert_eq!(storage.n_read.swap(0, Ordering::Relaxed), 3000);
    // In order, in pieces, each once.
    assert_eq!(values(&rows, 0).len(), 200);
    assert_eq!(storage.n_read.load(Ordering::Relaxed), 200_000);
}

#[test]
fn a_row_that_cannot_be_read_is_an_error_in_its_place() {
    let (storage, file) = counted(5);
    let rows = SafetensorsFile::open(file).unwrap().rows::<Array<u8>>("x").unwrap();
    let begin = {
        let mut bytes = storage.bytes.lock().unwrap();
        let n = bytes.len();
        bytes.truncate(n - 1500);
        n - 5000
    };
    for data in [rows.clone(), rows.prefetch(2, 2)] {
        let found = all(&data, 0);
        assert_eq!(found.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, true, false, false]);
        let what = format!("the file ends before 1000 bytes at byte {}", begin + 3000);
        assert_eq!(found[3].as_ref().unwrap_err(), &format!("`counted`, the tensor `x` at byte {begin}: {what}"));
        assert_eq!(check(&data, &[0]), 6);
    }
    let mut pass = rows.skip_errors().iter();
    assert_eq!((pass.by_ref().count(), pass.skipped()), (3, 2));

    let folder = Folder::new("safetensors_bool");
    let header = r#"{"ok":{"dtype":"BOOL","shape":[3,2],"data_offsets":[0,6]}}"#;
    let path = folder.write("a", &with_header(header, &[0, 1, 1, 2, 1, 1]));
    let found = all(&SafetensorsFile::open(path).unwrap().rows::<Array<bool>>("ok").unwrap(), 0);
    let what = format!("the bool at byte {} is 2, neither 0 nor 1", 8 + header.len() + 3);
    assert!(found[1].as_ref().unwrap_err().ends_with(&what), "{found:?}");
    assert!(found[0].is_ok() && found[2].is_ok());
}
