//! Files, whole and broken.

use crate::positions::check;
use crate::{all, values};
use anabranch::data::example::{Example, Feature};
use anabranch::data::{Dataset, csv, files_in, idx, images, npy, npz::NpzFile, text, tfrecord};
use anabranch::{Array, f16};
use flate2::write::GzEncoder;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A folder that is removed at the end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("anabranch-data-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Writes a file, compressed if its name says so.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        if name.ends_with(".gz") {
            let mut file = GzEncoder::new(Vec::new(), flate2::Compression::fast());
            file.write_all(bytes).unwrap();
            std::fs::write(&path, file.finish().unwrap()).unwrap();
        } else {
            std::fs::write(&path, bytes).unwrap();
        }
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

#[test]
fn lines_continue_from_each_position_over_files() {
    let folder = Folder::new("lines");
    let a = folder.write("a.txt", b"one\r\n\ntwo");
    let b = folder.write("b.txt.gz", "drei\nv\u{e9}\n".as_bytes());
    let c = folder.write("c.txt", b"good\n\xff\xfe\nlast\n");
    let missing = folder.0.join("missing.txt");
    let lines = text::lines([&a, &missing, &b, &c]);
    let found = all(&lines, 0);
    assert_eq!(found.len(), 9);
    let good: Vec<&str> = found.iter().flatten().map(String::as_str).collect();
    assert_eq!(good, ["one", "", "two", "drei", "v\u{e9}", "good", "last"]);
    let error = |i: usize| found[i].clone().unwrap_err();
    assert!(error(3).contains("missing.txt` cannot be read"), "{}", error(3));
    assert!(error(7).contains("c.txt`, line 2: it is not UTF-8"), "{}", error(7));
    assert!(check(&lines, &[0]) == 10);
    assert!(check(&lines.shuffle(3, 1).skip_errors().batch(2), &[0, 1]) > 4);
}

#[test]
fn the_files_of_a_folder_are_sorted() {
    let folder = Folder::new("sorted");
    for name in ["b.csv", "a.csv", "c.txt"] {
        folder.write(name, b"");
    }
    assert_eq!(files_in(&folder.0, ".csv").unwrap(), [folder.0.join("a.csv"), folder.0.join("b.csv")]);
    let error = files_in(folder.0.join("none"), "").unwrap_err();
    assert!(error.message.contains("none` cannot be read"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_examined_is_not_left_out() {
    let folder = Folder::new("dangling");
    let (a, link) = (folder.write("a.csv", b""), folder.0.join("b.csv"));
    std::os::unix::fs::symlink("a.csv", &link).unwrap();
    std::os::unix::fs::symlink("none", folder.0.join("b.txt")).unwrap();
    std::fs::create_dir(folder.0.join("folder.csv")).unwrap();
    assert_eq!(files_in(&folder.0, ".csv").unwrap(), [a, link]);
    let error = files_in(&folder.0, ".txt").unwrap_err().message;
    assert!(error.contains("dangling") && error.contains("b.txt` cannot be read: "), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_pipe_is_read_like_a_file() {
    use std::os::fd::AsRawFd;
    for gz in ["", ".gz"] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let folder = Folder::new("pipe");
        let bytes = std::fs::read(folder.write(&format!("a.txt{gz}"), b"one\ntwo\n")).unwrap();
        writer.write_all(&bytes).unwrap();
        drop(writer);
        let path = folder.0.join(format!("pipe{gz}"));
        std::os::unix::fs::symlink(format!("/proc/self/fd/{}", reader.as_raw_fd()), &path).unwrap();
        assert_eq!(values(&text::lines([path]), 0), ["one", "two"]);
    }
}

#[derive(Debug, PartialEq, serde::Deserialize)]
struct Row {
    name: String,
    x: f32,
    n: Option<i64>,
}

#[test]
fn rows_of_csv_files_are_structs_and_errors_name_line_and_column() {
    let folder = Folder::new("csv");
    let text = "x,ignored,name,n\n1.5,,\"two\nlines\",3\nno,,b,\n2,,c\n-1,,\"d\"\"q\",\n";
    for name in ["a.csv", "a.csv.gz"] {
        let path = folder.write(name, text.as_bytes());
        let rows = csv::rows::<Row>([&path, &path]);
        let found = all(&rows, 0);
        assert_eq!(found.len(), 8);
        assert_eq!(found[0], Ok(Row { name: "two\nlines".to_owned(), x: 1.5, n: Some(3) }));
        assert_eq!(found[3], Ok(Row { name: "d\"q".to_owned(), x: -1.0, n: None }));
        let error = |i: usize| found[i].as_ref().unwrap_err();
        assert!(error(1).ends_with("`, line 4, column `x`: invalid float literal"), "{}", error(1));
        assert!(error(2).ends_with("`, line 5: the number of fields is 3, not 4"), "{}", error(2));
        assert_eq!(check(&rows, &[0]), 9);
    }
    for (end, name) in [("\r\n", "crlf.csv"), ("\r", "cr.csv")] {
        let path = folder.write(name, ["name,x,n", "a,1,", "b,no,", "c,2,", ""].join(end).as_bytes());
        let rows = csv::rows::<Row>([path]);
        assert_eq!(check(&rows, &[0]), 4);
        let error = all(&rows, 0)[1].as_ref().unwrap_err().clone();
        assert!(error.contains("line 3, column `x`"), "{error}");
    }
    let path = folder.write("plain.tsv", b"1\t2\n3\t4\n");
    let options = csv::CsvOptions::default().delimiter(b'\t').without_header();
    assert_eq!(values(&csv::rows_with::<(i64, f32)>([path], options), 0), [(1, 2.0), (3, 4.0)]);
}

#[test]
fn errors_of_csv_files_name_the_line_of_their_row() {
    let folder = Folder::new("csv_places");
    for end in ["\n", "\r\n", "\r"] {
        let lines = ["", "a,b", "", "1,2", "", "", "x,5", "", "3,4", "\"6\n7\",8", "9", ""];
        let path = folder.write("blank.csv", lines.join(end).as_bytes());
        let rows = csv::rows::<(String, i64)>([&path]);
        let errors: Vec<String> =
            all(&csv::rows::<(i64, i64)>([&path]), 0).into_iter().filter_map(Result::err).collect();
        let places = errors.iter().map(|error| &error[error.find(", line").unwrap() + 2..]);
        let expected = [
            "line 7, column `a`: invalid digit found in string",
            "line 10, column `a`: invalid digit found in string",
            "line 12: the number of fields is 1, not 2",
        ];
        assert_eq!(places.collect::<Vec<_>>(), expected, "{end:?}");
        assert_eq!(check(&rows, &[0]), 6);
    }
    let path = folder.write("mark.csv", "\u{feff}\n\na\n\nx\n".as_bytes());
    let error = all(&csv::rows::<(i64,)>([path]), 0).remove(0).unwrap_err();
    assert!(error.contains("line 5, column `a`"), "{error}");
}

#[test]
fn a_quote_without_an_end_is_an_error_and_ends_the_file() {
    let folder = Folder::new("csv_quotes");
    let broken = folder.write("broken.csv", b"a,b\n1,2\n\n3,\"4\n5,6\n7,8\n");
    let good = folder.write("good.csv", b"a,b\n9,\"10\"");
    let rows = csv::rows::<(i64, String)>([&broken, &good]);
    let found = all(&rows, 0);
    assert_eq!((found.len(), &found[0], &found[2]), (3, &Ok((1, "2".to_owned())), &Ok((9, "10".to_owned()))));
    let error = found[1].as_ref().unwrap_err();
    assert!(error.ends_with("line 4: a field that begins with a quote does not end"), "{error}");
    assert_eq!(check(&rows, &[0]), 4);
    let header = folder.write("header.csv", b"a,\"b\n1,2\n");
    let error = all(&csv::rows::<(i64, i64)>([header]), 0).remove(0).unwrap_err();
    assert!(error.contains("line 1: a field"), "{error}");
}

#[test]
fn a_first_row_that_does_not_fit_leaves_the_others() {
    let folder = Folder::new("csv_first");
    let options = csv::CsvOptions::default().without_header();
    let path = folder.write("short.csv", b"1,2\n3,4,5\n6,7,8\n9,10,11,12\n13,14\n15,16,17\n");
    let rows = csv::rows_with::<(i64, i64, i64)>([path], options);
    let found = all(&rows, 0);
    let errors: Vec<usize> = (0..found.len()).filter(|&i| found[i].is_err()).collect();
    assert_eq!((found.len(), errors), (6, vec![0, 3, 4]));
    let error = found[3].as_ref().unwrap_err();
    assert!(error.ends_with("line 4: the number of fields is 4, not 3"), "{error}");
    assert_eq!(check(&rows, &[0]), 7);
}

fn tfrecords(records: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    records.iter().for_each(|record| tfrecord::write(&mut bytes, record).unwrap());
    bytes
}

#[test]
fn tfrecords_have_the_bytes_of_the_format() {
    // The length 9, its checksum, the bytes, and the published checksum of these, masked.
    let bytes = tfrecords(&[b"123456789"]);
    assert_eq!(bytes.len(), 12 + 9 + 4);
    assert_eq!((&bytes[..8], &bytes[12..21]), (&9_u64.to_le_bytes()[..], &b"123456789"[..]));
    assert_eq!(bytes[21..], 0xc78a_b0e5_u32.to_le_bytes());
}

#[test]
fn each_damaged_byte_and_each_cut_of_a_tfrecord_file_is_an_error() {
    let folder = Folder::new("tfrecord");
    let records: [&[u8]; 3] = [b"first", b"", b"third one"];
    let bytes = tfrecords(&records);
    let next = folder.write("next", &tfrecords(&[b"next"]));
    let read = |bytes: &[u8]| all(&tfrecord::records([folder.write("a", bytes), next.clone()]), 0);
    let is_good = |found: &[Result<Vec<u8>, String>]| found.last() == Some(&Ok(b"next".to_vec()));
    assert_eq!(read(&bytes).iter().flatten().count(), 4);
    let ends = [0, 12 + 5 + 4, 2 * 12 + 5 + 8];
    for i in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[i] ^= 0x10;
        let found = read(&damaged);
        let errors: Vec<&String> = found.iter().filter_map(|x| x.as_ref().err()).collect();
        assert_eq!(errors.len(), 1, "byte {i}: {found:?}");
        let record = ends.iter().rposition(|&end| end <= i).unwrap();
        let place = format!("a`, record {record} at byte {}: ", ends[record]);
        assert!(errors[0].contains(&place), "byte {i}: {}", errors[0]);
        assert!(is_good(&found));
        // Bytes without their checksum leave the next record intact.
        assert_eq!(found.len() == 4, record == 2 || i >= ends[record] + 12, "byte {i}");
        let cut = read(&bytes[..i]);
        assert_eq!(cut.iter().filter(|x| x.is_err()).count(), usize::from(!ends.contains(&i)), "cut at {i}");
        assert!(is_good(&cut));
    }
    for name in ["cut", "cut.gz"] {
        let cut = folder.write(name, &bytes[..30]);
        assert_eq!(check(&tfrecord::records([&cut, &next]), &[0]), 4);
    }
    for name in ["b", "b.gz"] {
        let path = folder.write(name, &bytes);
        assert_eq!(check(&tfrecord::records([&path, &next, &path]).map_parallel(2, Ok), &[0]), 8);
    }
}

#[test]
fn a_huge_length_takes_no_memory() {
    let folder = Folder::new("huge");
    let length = (1_u64 << 60).to_le_bytes();
    let mut checked = Vec::new();
    tfrecord::write(&mut checked, &length).unwrap();
    // The checksum of the eight bytes is behind them, since they are the record.
    let bytes = [&length[..], &checked[20..24], b"little"].concat();
    let error = all(&tfrecord::records([folder.write("a", &bytes)]), 0)[0].clone().unwrap_err();
    assert!(error.contains("the file ends in the record, which has 1152921504606846976 bytes"), "{error}");
}

#[test]
fn examples_are_those_of_the_messages() {
    // `{features {feature {key: "n" value {int64_list {value: [3, -1]}}}}}`, once with packed
    // numbers and once without, and a field that the messages do not have.
    let ones = [0xff; 9];
    let packed = [&[0x0a, 0x0b, 0x03][..], &ones, &[0x01]].concat();
    let single = [&[0x08, 0x03, 0x08][..], &ones, &[0x01, 0x15, 1, 2, 3, 4]].concat();
    for list in [packed, single] {
        let message = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
        let entry = [message(1, b"n"), message(2, &message(3, &list))].concat();
        let example = Example::parse(&message(1, &message(1, &entry))).unwrap();
        assert_eq!(example.ints("n").unwrap(), [3, -1]);
    }
    let all = Example::new([
        ("bytes", Feature::Bytes(vec![b"a".to_vec(), Vec::new()])),
        ("floats", Feature::Floats(vec![0.5, f32::MAX])),
        ("ints", Feature::Ints(vec![i64::MIN, 0, i64::MAX])),
        ("none", Feature::Floats(Vec::new())),
    ]);
    let bytes = all.to_bytes();
    assert_eq!(Example::parse(&bytes).unwrap(), all);
    let error = all.floats("ints").unwrap_err();
    assert_eq!(error.message, "the feature `ints` is a list of integers, not of floats");
    // Any bytes are an example or an error.
    let mut n_errors = 0;
    for i in 0..bytes.len() {
        n_errors += usize::from(Example::parse(&bytes[..i]).is_err());
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[i] ^= 1 << bit;
            n_errors += usize::from(Example::parse(&damaged).is_err());
        }
    }
    assert!(n_errors > 100, "{n_errors}");
}

/// `make_tfrecord.py` has written the files.
#[test]
fn records_of_tensorflow_are_read_and_written() {
    let example = |i: u8| {
        Example::new([
            ("text", Feature::Bytes(vec![format!("número {i}").into_bytes(), vec![0, 0xff], Vec::new()])),
            ("floats", Feature::Floats(vec![f32::from(i) / 2.0, f32::INFINITY])),
            ("ints", Feature::Ints(vec![i64::from(i), -i64::from(i), i64::MIN + i64::from(i)])),
            ("none", Feature::Floats(Vec::new())),
        ])
    };
    for name in ["tensorflow.tfrecord", "tensorflow.tfrecord.gz"] {
        let records = values(&tfrecord::records([fixture(name)]), 0);
        assert_eq!(records.len(), 6);
        for (i, record) in (0..5).zip(&records) {
            assert_eq!(Example::parse(record).unwrap(), example(i), "{name}");
        }
        assert_eq!(records[5], b"");
    }
    let mut written = Vec::new();
    for i in 0..5 {
        tfrecord::write(&mut written, &example(i).to_bytes()).unwrap();
    }
    tfrecord::write(&mut written, b"").unwrap();
    assert_eq!(written, std::fs::read(fixture("tensorflow.tfrecord")).unwrap());
}

#[test]
fn arrays_of_numpy_are_read() {
    let expected: Vec<i64> = (0..24).map(|i| i % 7).collect();
    for order in ["C", "F"] {
        let path = |code: &str| fixture(&format!("{order}_{code}.npy"));
        let floats = npy::read::<f32>(path("f4")).unwrap();
        assert_eq!(floats.shape(), [2, 3, 4]);
        assert!(floats.iter().zip(&expected).all(|(a, b)| *a == *b as f32));
        assert_eq!(npy::read::<i64>(path("i8")).unwrap().to_vec(), expected);
        assert!(npy::read::<u8>(path("u1")).unwrap().iter().zip(&expected).all(|(a, b)| i64::from(*a) == *b));
        assert!(npy::read::<bool>(path("b1")).unwrap().iter().zip(&expected).all(|(a, b)| *a == (*b != 0)));
        assert!(npy::read::<f16>(path("f2")).unwrap().iter().zip(&expected).all(|(a, b)| a.to_f64() == *b as f64));
    }
    assert_eq!(npy::read::<f64>(fixture("scalar.npy")).unwrap().item(), 2.5);
    let error = |path: &str| npy::read::<f32>(fixture(path)).unwrap_err().message;
    assert!(error("C_i8.npy").ends_with("the elements are `>i8`, not f32"), "{}", error("C_i8.npy"));
    assert!(error("objects.npy").ends_with("the elements are `|O`, not f32"), "{}", error("objects.npy"));
    assert!(error("fields.npy").contains("several fields"), "{}", error("fields.npy"));
}

#[test]
fn an_array_that_was_written_has_the_bytes_of_numpy() {
    fn written<T: npy::NpyElement>(folder: &Folder, array: &Array<T>) -> Vec<u8> {
        let path = folder.0.join("a.npy");
        npy::write(&path, array).unwrap();
        std::fs::read(&path).unwrap()
    }
    fn check_bytes<T: npy::NpyElement>(folder: &Folder, name: &str) {
        let array = npy::read::<T>(fixture(name)).unwrap();
        assert_eq!(written(folder, &array), std::fs::read(fixture(name)).unwrap(), "{name}");
    }
    let folder = Folder::new("npy");
    check_bytes::<f32>(&folder, "C_f4.npy");
    check_bytes::<f16>(&folder, "C_f2.npy");
    check_bytes::<u8>(&folder, "C_u1.npy");
    check_bytes::<bool>(&folder, "C_b1.npy");
    check_bytes::<f64>(&folder, "scalar.npy");
    check_bytes::<i32>(&folder, "many_axes.npy");
    // An archive has whole files, here those of arrays with one axis and with two.
    let (archive, stored) =
        (std::fs::read(fixture("stored.npz")).unwrap(), NpzFile::open(fixture("stored.npz")).unwrap());
    let classes = written(&folder, &stored.read::<i64>("classes").unwrap());
    let x = written(&folder, &stored.read::<f32>("x").unwrap());
    for file in [classes, x] {
        assert!(archive.windows(file.len()).any(|bytes| bytes == file), "{}", String::from_utf8_lossy(&file));
    }
    let bytes = std::fs::read(fixture("C_f4.npy")).unwrap();
    let no_type =
        b"\x93NUMPY\x03\x00\x3e\x00\x00\x00{'descr': '\xc3\xa94', 'fortran_order': False, 'shape': (1,), }    \n1234";
    assert!(npy::read::<f32>(folder.write("no_type.npy", no_type)).is_err());
    for i in 0..bytes.len() {
        assert!(npy::read::<f32>(folder.write("cut.npy", &bytes[..i])).is_err(), "{i} bytes");
    }
}

#[test]
fn archives_of_numpy_are_read_and_damaged_ones_are_errors() {
    let folder = Folder::new("npz");
    for name in ["stored.npz", "deflated.npz"] {
        let file = NpzFile::open(fixture(name)).unwrap();
        assert!(file.names().eq(["x", "classes"]));
        let x = file.read::<f32>("x").unwrap();
        assert_eq!((x.shape(), x.to_vec()), (&[2, 3][..], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
        assert_eq!(file.read::<i64>("classes").unwrap().to_vec(), [3, 7]);
        let error = file.read::<f64>("x").unwrap_err();
        assert!(error.message.ends_with("the array `x`: the elements are `<f4`, not f64"), "{error}");
        let error = file.read::<f32>("y").unwrap_err();
        assert!(error.message.ends_with("has no array `y`"), "{error}");
        assert_eq!(error.help.as_deref(), Some("it has `x`, `classes`"));

        // Any bytes are these arrays or an error.
        let bytes = std::fs::read(fixture(name)).unwrap();
        let read = |bytes: &[u8]| {
            let file = NpzFile::open(folder.write("damaged.npz", bytes))?;
            Ok::<_, anabranch::Diagnostic>((file.read::<f32>("x")?, file.read::<i64>("classes")?))
        };
        let whole = read(&bytes).unwrap();
        for i in 0..bytes.len() {
            assert!(read(&bytes[..i]).is_err(), "{i} bytes");
            let mut damaged = bytes.clone();
            damaged[i] ^= 1 << (i % 8);
            assert!(read(&damaged).map_or(true, |read| read == whole), "byte {i}");
        }
    }
}

#[test]
fn idx_files_are_read_and_damaged_ones_are_errors() {
    let folder = Folder::new("idx");
    let bytes =
        [&[0, 0, 0x0d, 2, 0, 0, 0, 1, 0, 0, 0, 2][..], &1.5_f32.to_be_bytes(), &(-2.0_f32).to_be_bytes()].concat();
    for name in ["a.idx", "a.idx.gz"] {
        let array = idx::read::<f32>(folder.write(name, &bytes)).unwrap();
        assert_eq!((array.shape(), array.as_slice()), (&[1, 2][..], &[1.5, -2.0][..]));
    }
    let error = idx::read::<u8>(folder.write("a", &bytes)).unwrap_err().message;
    assert!(error.ends_with("the elements are f32 (type 0x0d), not u8"), "{error}");
    for i in 0..bytes.len() {
        assert!(idx::read::<f32>(folder.write("cut", &bytes[..i])).is_err(), "{i} bytes");
    }
    let huge = [0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
    let error = idx::read::<u8>(folder.write("huge", &huge)).unwrap_err().message;
    assert!(error.contains("does not have the 1 bytes behind the head"), "{error}");
}

#[test]
fn pictures_are_arrays_of_red_green_and_blue() {
    let data = images::files([fixture("picture.png"), fixture("gray.jpg"), fixture("make.py")]).prefetch(2, 2);
    let found = all(&data, 0);
    let picture = found[0].as_ref().unwrap();
    assert_eq!(picture.shape(), [2, 3, 3]);
    assert_eq!((&picture.as_slice()[..3], &picture.as_slice()[15..]), (&[255, 0, 0][..], &[10, 200, 30][..]));
    let gray = found[1].as_ref().unwrap();
    assert_eq!(gray.shape(), [16, 8, 3]);
    assert!(gray.iter().all(|x| x.abs_diff(100) <= 2));
    let error = found[2].as_ref().unwrap_err();
    assert!(error.contains("make.py`, the picture: a picture cannot be decoded"), "{error}");
    let bytes = std::fs::read(fixture("picture.png")).unwrap();
    assert_eq!(images::decode_gray(&bytes).unwrap().shape(), [2, 3, 1]);
    assert!((0..bytes.len() - 12).all(|i| images::decode(&bytes[..i]).is_err()));
}

#[test]
fn jpeg_files_have_the_pixels_of_libjpeg_turbo_up_to_rounding() {
    for name in ["color", "progressive"] {
        let bytes = std::fs::read(fixture(&format!("{name}.jpg"))).unwrap();
        let expected = std::fs::read(fixture(&format!("{name}.pixels"))).unwrap();
        let picture = images::decode(&bytes).unwrap();
        assert_eq!(picture.shape(), [16, 24, 3]);
        let most = picture.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max();
        let allowed = if cfg!(feature = "turbojpeg") { 0 } else { 4 };
        assert!(most.unwrap() <= allowed, "{name}: {most:?}");
        assert_eq!(images::decode_gray(&bytes).unwrap().shape(), [16, 24, 1]);
        assert!((0..bytes.len() - 1).all(|i| images::decode(&bytes[..i]).is_err()), "{name}");
    }
    // Bytes between two segments: a warning of libjpeg-turbo, whose bindings make it an error.
    let bytes = std::fs::read(fixture("color.jpg")).unwrap();
    let scan = bytes.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap();
    let odd = [&bytes[..scan], &[0; 3], &bytes[scan..]].concat();
    assert_eq!(images::decode(&odd).is_ok(), !cfg!(feature = "turbojpeg"));
    // Cyan, magenta, yellow and black.
    let bytes = std::fs::read(fixture("print.jpg")).unwrap();
    assert_eq!(images::decode(&bytes).unwrap().shape(), [16, 24, 3]);
}

#[test]
fn a_graph_function_maps_elements_on_threads() {
    use anabranch::prelude::*;
    let f = |x: Tensor<f64>| (x * x).sum();
    let f = Session::new().unwrap().function(f).unwrap();
    let data = Dataset::range(0..100).map(|i| [i as f64, 1.0]).map_parallel(4, move |x| f.call(x)).batch(100);
    let sums = &values(&data, 0)[0];
    assert!(sums.iter().zip(0..).all(|(sum, i)| *sum == f64::from(i * i + 1)));
}
