//! Files of weights: all bits survive, Python reads and writes the same, and files from anywhere
//! are errors and no harm.

use crate::support::{Random, TestFolder, Vars, is_slow};
use anabranch::checkpoints::{Restore, WeightFile};
use anabranch::prelude::*;
use anabranch::{Bytes, DType, Diagnostic, HostTensor, bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::fs;
use std::path::Path;

type Outcome = Result<(), Diagnostic>;

fn f32s(shape: &[usize], bits: &[u32]) -> HostTensor {
    HostTensor::new(shape, bits.iter().map(|&bits| f32::from_bits(bits)).collect())
}

/// The tensors of `data/python_fixture.py`.
fn of_python() -> Vec<(&'static str, HostTensor)> {
    let f64s = [0x7FF8_0000_00AB_CDEF, 0xFFF4_0000_0000_0001].map(f64::from_bits);
    vec![
        ("model.f32", f32s(&[2, 3], &[0x3F80_0000, 0x7FC1_2345, 0xFF81_2345, 0x8000_0000, 1, 0x7F80_0000])),
        ("model.f64", HostTensor::new([2], f64s.to_vec())),
        ("model.f16", HostTensor::new([3], [0x7E01, 0xFC01, 0x8000].map(f16::from_bits).to_vec())),
        ("model.bf16", HostTensor::new([3], [0x7FC1, 0xFF81, 0x0001].map(bf16::from_bits).to_vec())),
        ("model.i32", HostTensor::new([2], vec![i32::MIN, i32::MAX])),
        ("model.i64", HostTensor::new([], vec![i64::MIN])),
        ("model.u32", HostTensor::new([1, 1], vec![u32::MAX])),
        ("model.u8", HostTensor::new([3], vec![0u8, 128, 255])),
        ("model.bool", HostTensor::new([3], vec![true, false, true])),
        ("model.empty", HostTensor::new([0, 7], Vec::<f32>::new())),
        ("odd \"name\"\n\u{e9}", HostTensor::new([1], vec![0.5f32])),
    ]
}

fn python_bytes() -> Vec<u8> {
    let digits: String = include_str!("data/python.hex").split_whitespace().collect();
    let byte = |i: usize| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).expect("the fixture has digits");
    (0..digits.len() / 2).map(byte).collect()
}

#[test]
fn a_tensor_is_read_without_a_module() -> Outcome {
    let folder = TestFolder::new("one_tensor");
    let path = folder.path("python.safetensors");
    fs::write(&path, python_bytes()).expect("the folder can be written");
    let file = WeightFile::new(&path);
    for (name, expected) in of_python().into_iter().filter(|(_, tensor)| tensor.dtype() == DType::F32) {
        let bits = |tensor: &HostTensor| tensor.data::<f32>().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let read = file.tensor::<f32>(name)?;
        assert_eq!((read.shape(), bits(read.host())), (expected.shape(), bits(&expected)));
    }
    assert_eq!(file.tensor::<i32>("model.i32")?.to_vec(), [i32::MIN, i32::MAX]);
    let error = file.tensor::<f32>("model.i32").unwrap_err();
    assert!(error.message.ends_with("the tensor `model.i32` is i32[2], not f32"), "{error}");
    let error = file.tensor::<f32>("model").unwrap_err();
    assert!(error.message.ends_with("there is no tensor `model`"), "{error}");
    assert!(error.help.is_some_and(|help| help.contains("`model.f32`")));
    Ok(())
}

#[test]
fn files_have_the_bytes_that_python_writes() -> Outcome {
    let folder = TestFolder::new("python");
    let (session, path) = (Session::new()?, folder.path("w.safetensors"));
    let values = of_python();
    assert_eq!(DType::PLAIN.iter().filter(|d| values.iter().all(|(_, v)| v.dtype() != **d)).count(), 0, "all types");
    WeightFile::new(&path).save(&session, &Vars::new(&values))?;
    assert_eq!(fs::read(&path).unwrap(), python_bytes());
    // In another order of the variables, and again over the same file.
    let reversed: Vec<_> = values.into_iter().rev().collect();
    WeightFile::new(&path).save(&session, &Vars::new(&reversed))?;
    assert_eq!(fs::read(&path).unwrap(), python_bytes());
    assert_eq!(fs::read_dir(folder.path("")).unwrap().count(), 1, "nothing else is left in the folder");
    Ok(())
}

#[test]
fn a_file_of_python_is_loaded_bit_by_bit() -> Outcome {
    let folder = TestFolder::new("from_python");
    let (session, path) = (Session::new()?, folder.path("w.safetensors"));
    fs::write(&path, python_bytes()).unwrap();
    let vars = Vars::new(&of_python()).zeros();
    let report = WeightFile::new(&path).load(&session, &vars)?;
    let values = of_python().into_iter().map(|(path, value)| (path.to_owned(), value));
    assert_eq!(vars.values(&session), values.collect::<Vec<_>>());
    assert_eq!(report.restored.len(), 11);
    assert_eq!(report.to_string(), "11 variables restored");
    Ok(())
}

#[test]
fn values_of_trained_variables_are_saved_and_loaded_on_every_engine() -> Outcome {
    let folder = TestFolder::new("engines");
    let builders = [
        Session::builder(),
        Session::builder().interpreted(true),
        Session::builder().opaque_devices(1).device("/gpu:0"),
    ];
    for (i, builder) in builders.into_iter().enumerate() {
        let (session, path) = (builder.build()?, folder.path(&format!("{i}.safetensors")));
        let (w, n, h) =
            (Var::<f32>::new("w", [1.0, 2.0]), Var::<i32>::untrained("n", 1), Var::<f16>::new("h", f16::ONE));
        let step = session.function(|| {
            w.set(w.get() * 3.0);
            n.set(n.get() + 1);
            h.set(h.get() * scalar(f16::from_f32(2.0)));
        })?;
        step.call(())?;
        let model = (w.clone(), n.clone(), h.clone());
        WeightFile::new(&path).save(&session, &model)?;
        step.call(())?;
        assert_eq!(session.get(&w)?.as_slice(), [9.0, 18.0]);
        WeightFile::new(&path).load(&session, &model)?;
        assert_eq!((session.get(&w)?.to_vec(), session.get(&n)?.item()), (vec![3.0, 6.0], 2));
        assert_eq!(session.get(&h)?.item(), f16::from_f32(2.0));
        step.call(())?;
        assert_eq!((session.get(&w)?.to_vec(), session.get(&n)?.item()), (vec![9.0, 18.0], 3));
    }
    Ok(())
}

#[test]
fn the_metadata_of_a_file_can_be_set() -> Outcome {
    let folder = TestFolder::new("metadata");
    let (session, path) = (Session::new()?, folder.path("w.safetensors"));
    let vars = Vars::new(&[("w", HostTensor::scalar(1.0f32))]);
    let file = WeightFile::new(&path).metadata("format", "pt").metadata("author", "somebody");
    file.save(&session, &vars)?;
    let bytes = fs::read(&path).unwrap();
    let (_, read) = SafeTensors::read_metadata(&bytes).expect("the library reads it");
    let metadata = read.metadata().as_ref().expect("it has metadata");
    assert_eq!((metadata["format"].as_str(), metadata["author"].as_str()), ("pt", "somebody"));
    file.load(&session, &vars)?;
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_file_does_not_replace_what_is_no_file() -> Outcome {
    let folder = TestFolder::new("sockets");
    let session = Session::new()?;
    let path = folder.path("weights.safetensors");
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let vars = Vars::new(&[("w", HostTensor::scalar(1.0f32))]);
    let error = WeightFile::new(&path).save(&session, &vars).unwrap_err();
    assert!(error.message.contains("it is a device, a pipe or a socket, and no file"), "{error}");
    assert!(!fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left");
    Ok(())
}

/// Writes a file of the variables a, b, c and d of f32[2].
fn four(folder: &TestFolder, session: &Session) -> Result<(Vars, std::path::PathBuf), Diagnostic> {
    let value = |x: f32| HostTensor::new([2], vec![x, x + 0.5]);
    let vars = Vars::new(&[("a", value(1.0)), ("b", value(2.0)), ("c", value(3.0)), ("d", value(4.0))]);
    let path = folder.path("four.safetensors");
    WeightFile::new(&path).save(session, &vars)?;
    Ok((vars, path))
}

#[test]
fn one_error_lists_all_names_that_do_not_match() -> Outcome {
    let folder = TestFolder::new("strict");
    let session = Session::new()?;
    let (_, path) = four(&folder, &session)?;
    let value = || HostTensor::new([2], vec![0.0f32, 0.0]);
    let wrong = [
        ("a", HostTensor::scalar(1.0f32)),
        ("b", HostTensor::new([2], vec![1i32, 2])),
        ("e", value()),
        ("f", value()),
        ("d", value()),
    ];
    let vars = Vars::new(&wrong);
    let before = vars.values(&session);
    let error = WeightFile::new(&path).load(&session, &vars).unwrap_err();
    let notes: Vec<&str> = error.labels.iter().map(|(_, note)| note.as_str()).collect();
    let expected = [
        "loaded here",
        "no value for `e`, `f`",
        "no variable for `c`",
        "`a` is f32[], but the value is f32[2]",
        "`b` is i32[2], but the value is f32[2]",
    ];
    assert_eq!(notes, expected);
    assert!(error.message.ends_with("four.safetensors does not have the variables of the module"), "{error}");
    assert!(error.to_string().contains("files.rs"), "{error}");
    assert_eq!(vars.values(&session), before, "nothing changes");
    // Types must match in any case.
    let lenient = Restore::strict().keep_missing().ignore_unused();
    let error = WeightFile::new(&path).restore(lenient).load(&session, &vars).unwrap_err();
    assert_eq!(error.labels.len(), 3, "{error}");
    Ok(())
}

#[test]
fn variables_are_restored_in_part_and_under_other_names() -> Outcome {
    let folder = TestFolder::new("partial");
    let session = Session::new()?;
    let (_, path) = four(&folder, &session)?;
    let vars = Vars::new(&[
        ("new.a", HostTensor::new([2], vec![0.0f32, 0.0])),
        ("new.tied", HostTensor::new([2], vec![0.0f32, 0.0])),
        ("other", HostTensor::scalar(7i32)),
    ]);
    let rename = |path: &str| match path {
        "new.tied" => "a".to_owned(),
        path => path.trim_start_matches("new.").to_owned(),
    };
    let restore = Restore::strict().keep_missing().ignore_unused().rename(rename);
    let report = WeightFile::new(&path).restore(restore).load(&session, &vars)?;
    let pair = |path: &str, name: &str| (path.to_owned(), name.to_owned());
    assert_eq!(report.restored, [pair("new.a", "a"), pair("new.tied", "a")]);
    assert_eq!((report.missing.join(" "), report.unused.join(" ")), ("other".to_owned(), "b c d".to_owned()));
    assert_eq!(report.to_string(), "2 variables restored; without a value: `other`; left over: `b`, `c`, `d`");
    let values: Vec<HostTensor> = vars.values(&session).into_iter().map(|(_, value)| value).collect();
    let a = HostTensor::new([2], vec![1.0f32, 1.5]);
    assert_eq!(values, [a.clone(), a, HostTensor::scalar(7i32)]);
    Ok(())
}

#[test]
fn a_file_with_a_name_of_255_bytes_is_saved() -> Outcome {
    let folder = TestFolder::new("long_name");
    let (session, path) = (Session::new()?, folder.path(&"w".repeat(255)));
    let w = Var::<f32>::new("w", 1.5);
    WeightFile::new(&path).save(&session, &w)?;
    WeightFile::new(&path).save(&session, &w)?;
    assert_eq!(fs::read_dir(folder.path("")).unwrap().count(), 1);
    WeightFile::new(&path).load(&session, &w)?;
    Ok(())
}

#[test]
fn a_variable_that_appears_twice_is_stored_once_and_two_of_one_path_are_an_error() -> Outcome {
    let folder = TestFolder::new("twice");
    let (session, path) = (Session::new()?, folder.path("w.safetensors"));
    let w = Var::<f32>::new("w", [1.0]);
    WeightFile::new(&path).save(&session, &(w.clone(), w.clone()))?;
    assert_eq!(SafeTensors::deserialize(&fs::read(&path).unwrap()).unwrap().names(), ["0"]);
    let same = Vars::new(&[("x", HostTensor::scalar(1.0f32)), ("x", HostTensor::scalar(2.0f32))]);
    let error = WeightFile::new(&path).save(&session, &same).unwrap_err();
    assert_eq!(error.message, "several variables have the same path: `x`");
    let reserved = Vars::new(&[("__metadata__", HostTensor::scalar(1.0f32))]);
    let error = WeightFile::new(&path).save(&session, &reserved).unwrap_err();
    assert!(error.message.contains("which files do not allow"), "{error}");
    Ok(())
}

/// Writes a file with the library.
fn library_file(path: &Path, tensors: &[(&str, Dtype, &[usize], &[u8])]) {
    let views = tensors.iter().map(|&(name, dtype, shape, data)| {
        (name, TensorView::new(dtype, shape.to_vec(), data).expect("the bytes are those of the shape"))
    });
    fs::write(path, safetensors::serialize(views, None).expect("the tensors are valid")).unwrap();
}

#[test]
fn a_model_in_several_files_is_loaded_by_its_index() -> Outcome {
    let folder = TestFolder::new("index");
    let (session, index) = (Session::new()?, folder.path("model.safetensors.index.json"));
    let (one, two) = (1.5f32.to_le_bytes(), 2.5f32.to_le_bytes());
    library_file(
        &folder.path("model-00001-of-00002.safetensors"),
        &[("a", Dtype::F32, &[], &one), ("fp8", Dtype::F8_E4M3, &[2], &[1, 2])],
    );
    library_file(&folder.path("model-00002-of-00002.safetensors"), &[("b", Dtype::F32, &[1], &two)]);
    let write = |map: &str| {
        fs::write(&index, format!("{{\"metadata\": {{\"total_size\": 10}}, \"weight_map\": {{{map}}}}}")).unwrap();
    };
    let all = "\"a\": \"model-00001-of-00002.safetensors\", \"fp8\": \"model-00001-of-00002.safetensors\", \
               \"b\": \"model-00002-of-00002.safetensors\"";
    write(all);
    let vars = Vars::new(&[("a", HostTensor::scalar(0.0f32)), ("b", HostTensor::new([1], vec![0.0f32]))]);
    let file = WeightFile::new(&index).restore(Restore::strict().ignore_unused());
    assert_eq!(file.load(&session, &vars)?.unused, ["fp8"]);
    let values: Vec<Option<f64>> = vars.values(&session).iter().map(|(_, value)| value.to_f64()).collect();
    assert_eq!(values, [Some(1.5), Some(2.5)]);
    // A type that anabranch lacks is named.
    let error = file.load(&session, &Vars::new(&[("fp8", HostTensor::new([2], vec![0u8, 0]))])).unwrap_err();
    assert!(error.to_string().contains("`fp8` is u8[2], but the value is F8_E4M3[2]"), "{error}");
    for (map, expected) in [
        ("\"a\": \"../a.safetensors\"", "`../a.safetensors`, which is not a file in its folder"),
        ("\"a\": \"..\"", "`..`, which is not a file in its folder"),
        ("\"a\": \"model-00002-of-00002.safetensors\"", "the tensor `a` is missing, which the index lists"),
        ("\"a\": \"model-00001-of-00002.safetensors\"", "the index does not list the tensor `fp8`"),
        ("\"a\": \"none.safetensors\"", "could not open"),
        ("\"a\": 1", "the index is invalid"),
    ] {
        write(map);
        let error = file.load(&session, &vars).unwrap_err();
        assert!(error.message.contains(expected), "{map}: {error}");
    }
    Ok(())
}

/// The folder that `data/hugging_face.py` makes.
#[test]
fn a_model_of_hugging_face_in_several_files_is_loaded() -> Outcome {
    let numbers = |n: usize| (0..n).map(|i| i as f64 * 0.37 - 1.5);
    let f16s = numbers(9).map(f16::from_f64).collect::<Vec<_>>();
    let bf16s = |n| numbers(n).map(bf16::from_f64).collect::<Vec<_>>();
    let expected = [
        ("embed.weight", HostTensor::new([5, 3], numbers(15).map(|x| x as f32).collect::<Vec<_>>())),
        ("layers.0.attention.weight", HostTensor::new([3, 3], bf16s(9))),
        ("layers.0.attention.bias", HostTensor::new([3], bf16s(3))),
        ("layers.1.attention.weight", HostTensor::new([3, 3], f16s)),
        ("layers.1.positions", HostTensor::new([4], vec![0i64, 1, 2, 3])),
        ("norm.scale", HostTensor::scalar(0.25f32)),
    ];
    let index = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hugging_face/model.safetensors.index.json");
    let zeros = expected.iter().map(|(name, value)| (*name, HostTensor::zeros(value.dtype(), value.shape())));
    let (session, vars) = (Session::new()?, Vars::new(&zeros.collect::<Vec<_>>()));
    WeightFile::new(&index).load(&session, &vars)?;
    let values = vars.values(&session);
    assert_eq!(values.len(), expected.len());
    for ((name, value), (expected_name, expected)) in values.iter().zip(&expected) {
        assert_eq!((name.as_str(), value), (*expected_name, expected));
    }
    Ok(())
}

/// Returns a file with this header and so many bytes of elements.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 1);
    bytes
}

/// Loads all tensors of a file that variables of a module want, and passes over the others.
fn load(path: &Path, session: &Session, vars: &Vars) -> Result<(), Diagnostic> {
    let lenient = Restore::strict().keep_missing().ignore_unused();
    WeightFile::new(path).restore(lenient).load(session, vars).map(drop)
}

#[test]
fn hostile_headers_are_errors_that_name_file_and_tensor() -> Outcome {
    let folder = TestFolder::new("hostile");
    let (session, path) = (Session::new()?, folder.path("h.safetensors"));
    let tensor = |name: &str, dtype: &str, shape: &str, begin: u64, end: u64| {
        format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{begin},{end}]}}")
    };
    let a = tensor("a", "F32", "2", 0, 8);
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "the file ends within its first eight bytes: it has 0 bytes"),
        (vec![0; 7], "the file ends within its first eight bytes"),
        (vec![0; 8], "the header is not an object"),
        (u64::MAX.to_le_bytes().to_vec(), "its header would have 18446744073709551615 bytes"),
        (100_000_001u64.to_le_bytes().to_vec(), "its header would have 100000001 bytes"),
        (100_000_000u64.to_le_bytes().to_vec(), "the file ends within its header"),
        (with_header("[]", 0), "the header is not an object"),
        (with_header("  {}", 0), "the header is not an object"),
        (with_header("{", 0), "the header is invalid"),
        (with_header("{}x", 0), "the header is invalid"),
        (with_header("{}", 1), "there are 1 bytes of elements, but no tensor ends at byte 0"),
        (with_header("{\"__metadata__\":{\"a\":1}}", 0), "`__metadata__`"),
        (with_header("{\"a\":1}", 0), "`a`: invalid type"),
        (with_header("{\"a\":{\"dtype\":\"F32\"}}", 0), "`a`: missing field"),
        (with_header(&format!("{{{a}}}"), 7), "there are 7 bytes of elements, but the tensor `a` ends at byte 8"),
        (with_header(&format!("{{{a}}}"), 9), "there are 9 bytes of elements, but the tensor `a` ends at byte 8"),
        (with_header(&format!("{{{a},{a}}}"), 16), "`a`: the name appears twice"),
        (with_header(&format!("{{{a},{}}}", tensor("b", "U8", "4", 4, 8)), 8), "the tensor `b` overlaps"),
        (with_header(&format!("{{{a},{}}}", tensor("b", "U8", "4", 9, 13)), 13), "the tensor `b` follows a hole"),
        (with_header(&format!("{{{}}}", tensor("b", "U8", "4", 1, 5)), 5), "the tensor `b` follows a hole"),
        (with_header(&format!("{{{}}}", tensor("b", "U8", "4", 4, 0)), 4), "ends at byte 0, before its begin"),
        (with_header(&format!("{{{}}}", tensor("b", "F32", "2", 0, 7)), 7), "has 8 bytes, but the file has 7"),
        (with_header(&format!("{{{}}}", tensor("b", "Q9", "2", 0, 7)), 7), "the element type `Q9` is unknown"),
        (
            with_header(&format!("{{{}}}", tensor("b", "F64", "1152921504606846976,8", 0, 8)), 8),
            "the tensor `b`: F64 of shape [1152921504606846976, 8] is not a number of bytes",
        ),
        (
            with_header(&format!("{{{}}}", tensor("b", "U8", "18446744073709551615", 0, 8)), 8),
            "the tensor `b`: U8 of shape [18446744073709551615] is not a number of bytes",
        ),
        (
            with_header(&format!("{{{}}}", tensor("b", "U8", "1000000000000", 0, 1_000_000_000_000)), 8),
            "there are 8 bytes of elements, but the tensor `b` ends at byte 1000000000000",
        ),
        (with_header(&format!("{{{}}}", tensor("b", "U8", "99999999999999999999", 0, 8)), 8), "`b`: "),
        (with_header(&format!("{{{}}}", tensor("b", "F4", "3", 0, 2)), 2), "is not a number of bytes"),
        (with_header(&format!("{{\"a\":{}}}", "[".repeat(10_000)), 0), "the header is invalid"),
    ];
    for (bytes, expected) in cases {
        fs::write(&path, &bytes).unwrap();
        let error = load(&path, &session, &Vars(Vec::new())).unwrap_err();
        assert!(error.message.contains("h.safetensors"), "{error}");
        assert!(error.message.contains(expected), "expected {expected:?}: {error}");
    }
    // The elements of a bool are checked, since other bytes are no bools.
    fs::write(&path, with_header(&format!("{{{}}}", tensor("t", "BOOL", "3", 0, 3)), 3)).unwrap();
    let vars = Vars::new(&[("t", HostTensor::new([3], vec![false; 3]))]);
    load(&path, &session, &vars)?;
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() = 2;
    fs::write(&path, bytes).unwrap();
    let error = load(&path, &session, &vars).unwrap_err();
    assert!(error.message.ends_with("the tensor `t`: an element of bool is 2, neither 0 nor 1"), "{error}");
    // A folder and a missing file.
    let error = load(&folder.path("none"), &session, &vars).unwrap_err();
    assert!(error.message.contains("could not open"), "{error}");
    load(&folder.path(""), &session, &vars).unwrap_err();
    Ok(())
}

#[test]
fn a_file_cut_at_any_length_is_an_error() -> Outcome {
    let folder = TestFolder::new("cut");
    let (session, path) = (Session::new()?, folder.path("c.safetensors"));
    let vars = Vars::new(&of_python());
    let bytes = python_bytes();
    for len in 0..bytes.len() {
        fs::write(&path, &bytes[..len]).unwrap();
        let error = load(&path, &session, &vars).unwrap_err();
        assert!(error.message.contains("c.safetensors"), "{len}: {error}");
    }
    fs::write(&path, &bytes).unwrap();
    load(&path, &session, &vars)
}

#[test]
fn files_with_changed_bytes_are_read_like_the_library_reads_them_or_are_errors() -> Outcome {
    let folder = TestFolder::new("mutated");
    let (session, path) = (Session::new()?, folder.path("m.safetensors"));
    let vars = Vars::new(&of_python());
    let valid = python_bytes();
    let mut random = Random::new(7);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..if is_slow() { 200_000 } else { 3_000 } {
        let mut bytes = valid.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(5) {
                // Digits and marks of the header are the most interesting bytes.
                0 => bytes[at] = b"0123456789{}[]\",:"[random.below(17) as usize],
                1 => bytes[at] ^= 1 << random.below(8),
                2 => bytes.truncate(at.max(8)),
                3 => {
                    let from = random.below(bytes.len() as u64) as usize;
                    let piece = bytes[from..bytes.len().min(from + 20)].to_vec();
                    bytes.splice(at..at, piece);
                }
                _ => bytes[random.below(8) as usize] = random.below(256) as u8,
            }
        }
        fs::write(&path, &bytes).unwrap();
        let theirs = SafeTensors::deserialize(&bytes);
        match load(&path, &session, &Vars(Vec::new())) {
            Ok(()) => {
                accepted += 1;
                assert!(theirs.is_ok(), "the library refuses it: {theirs:?}\n{bytes:?}");
                // The same with the elements, which may have other types now.
                let _ = load(&path, &session, &vars);
            }
            Err(error) => {
                refused += 1;
                assert!(error.message.contains("m.safetensors"), "{error}");
                // The library takes the last of two tensors of one name.
                let stricter = error.message.contains("twice");
                assert!(theirs.is_err() || stricter, "the library accepts it: {error}\n{bytes:?}");
            }
        }
    }
    assert!(accepted > 100 && refused > 100, "{accepted} accepted, {refused} refused");
    Ok(())
}

/// Returns a tensor of strings.
fn strings(shape: &[usize], elements: &[&[u8]]) -> HostTensor {
    HostTensor::new(shape, elements.iter().map(|&bytes| Bytes::from(bytes)).collect())
}

#[test]
fn strings_are_stored_as_bytes_and_offsets() -> Outcome {
    let folder = TestFolder::new("strings");
    let (session, path) = (Session::new()?, folder.path("w.safetensors"));
    let values = [
        ("names", strings(&[2, 2], &[b"one", b"", b"\xff\0", "\u{e9}".as_bytes()])),
        ("last", strings(&[], &[b"line"])),
        ("none", strings(&[0], &[])),
        ("n", HostTensor::scalar(7i32)),
    ];
    let vars = Vars::new(&values);
    WeightFile::new(&path).save(&session, &vars)?;
    let bytes = fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).expect("a file that others read");
    let data = file.tensor("names/data").expect("the bytes of all strings");
    assert_eq!((data.dtype(), data.shape(), data.data()), (Dtype::U8, &[7][..], &b"one\xff\0\xc3\xa9"[..]));
    let offsets = file.tensor("names/offsets").expect("the offset behind each string");
    assert_eq!((offsets.dtype(), offsets.shape()), (Dtype::I64, &[2, 2][..]));
    assert_eq!(offsets.data(), [3i64, 3, 5, 7].map(i64::to_le_bytes).concat());

    let copy = vars.zeros();
    let report = WeightFile::new(&path).load(&session, &copy)?;
    assert_eq!(report.restored.len(), 4);
    let expected = values.iter().map(|(path, value)| (path.to_string(), value.clone())).collect::<Vec<_>>();
    assert_eq!(copy.values(&session), expected);

    let other = Vars::new(&[("names", strings(&[1], &[b""])), ("n", HostTensor::scalar(0i32))]);
    let error = WeightFile::new(&path).restore(Restore::strict().ignore_unused()).load(&session, &other).unwrap_err();
    assert!(error.to_string().contains("`names` is bytes[1], but the value is bytes[2, 2]"), "{error}");
    let numbers = Vars::new(&[("names", HostTensor::scalar(0i32))]);
    let error = WeightFile::new(&path).load(&session, &numbers).unwrap_err().to_string();
    assert!(error.contains("no value for `names`") && error.contains("names/data"), "{error}");
    let twice = Vars::new(&[("a", strings(&[], &[b""])), ("a/data", HostTensor::scalar(0i32))]);
    let error = WeightFile::new(&path).save(&session, &twice).unwrap_err();
    assert_eq!(error.message, "several variables have the same path: `a/data`");
    Ok(())
}

#[test]
fn damaged_offsets_change_no_variable() -> Outcome {
    let folder = TestFolder::new("offsets");
    let (session, path) = (Session::new()?, folder.path("w.safetensors"));
    let parts =
        [("x/data", HostTensor::new([2], vec![b'a', b'b'])), ("x/offsets", HostTensor::new([2], vec![2i64, 1]))];
    WeightFile::new(&path).save(&session, &Vars::new(&parts))?;
    let vars = Vars::new(&[("x", strings(&[2], &[b"1", b"2"]))]);
    let error = WeightFile::new(&path).load(&session, &vars).unwrap_err();
    assert_eq!(error.message, "the variable of strings `x` is damaged: the offset 1 is not between 2 and 2");
    assert_eq!(vars.values(&session)[0].1, strings(&[2], &[b"1", b"2"]));
    Ok(())
}
