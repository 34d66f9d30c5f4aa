//! Parquet files, whole and broken. `fixtures/make_parquet.py` wrote them.

use crate::files::{Folder, fixture};
use crate::positions::check;
use crate::{all, values};
use anabranch::data::{Dataset, parquet};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Red,
    Green,
    Blue,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Row {
    flag: bool,
    byte: u8,
    int: i32,
    unsigned: u32,
    long: i64,
    large: u64,
    half: f32,
    float: f32,
    double: f64,
    text: String,
    bytes: Vec<u8>,
    fixed: [u8; 3],
    kind: Kind,
    point: [f32; 3],
    words: Vec<i64>,
    time: i64,
    #[serde(rename = "outer.inner")]
    inner: Option<i64>,
}

fn expected(i: u8) -> Row {
    let n = i64::from(i);
    Row {
        flag: i.is_multiple_of(3),
        byte: i * 25,
        int: i32::from(i) - 5,
        unsigned: u32::MAX - 9 + u32::from(i),
        long: n * 1_000_000_000_000 - 1,
        large: u64::MAX - 9 + u64::from(i),
        half: f32::from(i) / 2.0,
        float: f32::from(i) / 4.0,
        double: f64::from(i) / 10.0,
        text: format!("row {i} äö"),
        bytes: vec![255, i],
        fixed: [i, i + 1, 250],
        kind: [Kind::Red, Kind::Green, Kind::Blue][i as usize % 3],
        point: [f32::from(i), f32::from(i) + 0.5, -f32::from(i)],
        words: (0..n % 4).collect(),
        time: 1_700_000_000_000 + n,
        inner: Some(2 * n),
    }
}

#[test]
fn rows_of_parquet_files_are_those_that_pyarrow_wrote() {
    let expected: Vec<Row> = (0..10).map(expected).collect();
    for codec in ["none", "snappy", "gzip", "lz4"] {
        let rows = parquet::rows::<Row>([fixture(&format!("{codec}.parquet"))]);
        assert_eq!(values(&rows, 0), expected, "{codec}");
    }
    let error = all(&parquet::rows::<Row>([fixture("zstd.parquet")]), 0).remove(0).unwrap_err();
    assert!(error.contains("zstd.parquet`, row group 0, column `flag`: ") && error.contains("zstd"), "{error}");
}

#[test]
fn a_position_of_parquet_files_is_a_row_in_a_row_group() {
    let (a, b) = (fixture("none.parquet"), fixture("nulls.parquet"));
    #[derive(Debug, PartialEq, Deserialize)]
    struct Words {
        words: Vec<i64>,
    }
    let rows = parquet::rows::<Words>([&a, &fixture("make.py"), &b, &a]);
    assert_eq!(check(&rows, &[0]), 10 + 1 + 5 + 10 + 1);
    assert!(check(&rows.skip_errors().shuffle(3, 1), &[0, 1]) > 40);
}

#[test]
fn a_row_can_be_a_tuple_or_a_map_of_columns() {
    let rows = parquet::rows::<(Option<f64>, Option<Vec<Option<i64>>>, Option<String>)>([fixture("nulls.parquet")]);
    let found = all(&rows, 0);
    assert_eq!(found[0], Ok((Some(1.0), Some(vec![Some(1)]), Some("a".to_owned()))));
    assert_eq!(found[1], Ok((None, Some(vec![]), Some("b".to_owned()))));
    assert_eq!(found[2], Ok((Some(3.0), None, None)));
    assert_eq!(found[4], Ok((Some(5.0), Some(vec![Some(3), Some(4)]), Some("e".to_owned()))));
    let error = all(&parquet::rows::<(f64, i64)>([fixture("nulls.parquet")]), 0)[0].clone().unwrap_err();
    assert!(error.ends_with("row group 0, row 0: it has 3 columns, and a tuple of 2 is asked for"), "{error}");
    #[derive(Debug, PartialEq, Deserialize)]
    struct Wrapped(BTreeMap<String, Option<serde_json::Value>>);
    let maps = values(&parquet::rows::<Wrapped>([fixture("nulls.parquet")]).skip(4), 0);
    assert_eq!(serde_json::json!({"x": 5.0, "words": [3, 4], "name": "e"}), serde_json::to_value(&maps[0].0).unwrap());
}

#[test]
fn a_null_is_an_error_that_names_row_group_row_and_column() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Row {
        x: f64,
        words: Vec<i64>,
        name: Option<String>,
    }
    let found = all(&parquet::rows::<Row>([fixture("nulls.parquet")]), 0);
    assert_eq!(found.iter().filter(|row| row.is_ok()).count(), 2);
    let error = |i: usize| found[i].as_ref().unwrap_err();
    assert!(error(1).ends_with("nulls.parquet`, row group 0, row 1, column `x`: it is null"), "{}", error(1));
    assert!(error(2).ends_with("row group 0, row 2, column `words`: it is null"), "{}", error(2));
    let in_list = "row group 1, row 0, column `words`: an element of the list is null";
    assert!(error(3).ends_with(in_list), "{}", error(3));
}

#[test]
fn lists_with_nulls_are_lists_of_options() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Row {
        words: Option<Vec<Option<i64>>>,
    }
    let found = values(&parquet::rows::<Row>([fixture("nulls.parquet")]).map(|row| row.words), 0);
    let some = |words: &[i64]| Some(words.iter().copied().map(Some).collect());
    assert_eq!(found, [some(&[1]), some(&[]), None, Some(vec![Some(2), None]), some(&[3, 4])]);
    let pairs = all(&parquet::rows::<(Option<f64>, [Option<i64>; 2], String)>([fixture("nulls.parquet")]), 0);
    assert_eq!(pairs[3], Ok((Some(4.0), [Some(2), None], "d".to_owned())));
}

#[test]
fn a_flattened_struct_takes_nulls_and_leaves_columns_that_it_does_not_have() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Inner {
        x: Option<f64>,
    }
    #[derive(Debug, PartialEq, Deserialize)]
    struct Outer {
        name: Option<String>,
        #[serde(flatten)]
        inner: Inner,
    }
    let rows = values(&parquet::rows::<Outer>([fixture("nulls.parquet")]), 0);
    let x: Vec<_> = rows.iter().map(|row| row.inner.x).collect();
    assert_eq!((x, &rows[2].name), (vec![Some(1.0), None, Some(3.0), Some(4.0), Some(5.0)], &None));
    #[derive(Debug, PartialEq, Deserialize)]
    struct Supported {
        #[serde(flatten)]
        inner: BTreeMap<String, i64>,
    }
    let rows = values(&parquet::rows::<Supported>([fixture("unsupported.parquet")]), 0);
    let inner = |fine: i64| BTreeMap::from([("fine".to_owned(), fine)]);
    assert_eq!(rows, [7, 8].map(|fine| Supported { inner: inner(fine) }));
    let error = all(&parquet::rows::<(i64,)>([fixture("unsupported.parquet")]), 0).remove(0).unwrap_err();
    assert!(error.ends_with("the column `decimal` has decimal numbers, which is not supported"), "{error}");
    #[derive(Debug, PartialEq, Deserialize)]
    struct Ignored {
        x: serde::de::IgnoredAny,
        words: serde::de::IgnoredAny,
    }
    assert_eq!(values(&parquet::rows::<Ignored>([fixture("nulls.parquet")]), 0).len(), 5);
}

#[test]
fn columns_that_do_not_fit_are_errors() {
    fn first<T: serde::de::DeserializeOwned + Send + 'static>(name: &str) -> anabranch::Diagnostic {
        match parquet::rows::<T>([fixture(name)]).iter().next() {
            Some(Err(error)) => error,
            _ => panic!("the first row is an error"),
        }
    }
    #[derive(Deserialize)]
    struct Fine {
        fine: i64,
    }
    let fine: Dataset<Fine> = parquet::rows([fixture("unsupported.parquet")]);
    assert_eq!(values(&fine.map(|row| row.fine), 0), [7, 8]);
    macro_rules! check_error {
        ($file:literal, $field:ident: $t:ty, $what:literal) => {{
            #[derive(Deserialize)]
            struct Row {
                #[expect(dead_code, reason = "it cannot be read")]
                $field: $t,
            }
            let error = first::<Row>(concat!($file, ".parquet"));
            let path = fixture(concat!($file, ".parquet"));
            assert_eq!(error.message, format!("`{}`, {}", path.display(), $what));
            error
        }};
    }
    check_error!(
        "unsupported", decimal: f64, "the schema: the column `decimal` has decimal numbers, which is not supported"
    );
    check_error!(
        "unsupported", nested: Vec<Vec<i64>>,
        "the schema: the column `nested` has lists of lists or of groups, which is not supported"
    );
    check_error!(
        "unsupported", points: Vec<i64>,
        "the schema: the column `points` has lists of several values or a map, which is not supported"
    );
    let error = check_error!("none", missing: f64, "the schema: the file has none of the columns of a row");
    assert!(error.help.is_some_and(|help| help.contains("`point`, `words`")));
    check_error!("none", bytes: String, "row group 0, row 0, column `bytes`: it is not UTF-8");
    check_error!(
        "none", point: [f32; 4], "row group 0, row 0, column `point`: it has 3 elements, and the field of the row 4"
    );
    check_error!(
        "none", words: i64, "row group 0, row 0, column `words`: invalid type: sequence, expected i64"
    );
    check_error!(
        "none", long: u8,
        "row group 0, row 0, column `long`: invalid value: integer `-1`, expected u8"
    );
}

#[test]
fn an_optional_field_with_the_name_of_a_group_is_an_error() {
    #[derive(Deserialize)]
    struct Row {
        #[expect(dead_code, reason = "it cannot be read")]
        long: i64,
        #[expect(dead_code, reason = "it cannot be read")]
        outer: Option<i64>,
    }
    let first = parquet::rows::<Row>([fixture("none.parquet")]).iter().next();
    let error = first.unwrap().map(|_| "a row").unwrap_err();
    assert!(
        error.message.ends_with("none.parquet`, the schema: `outer` is a group; its columns are `outer.inner`"),
        "{error}"
    );
    let help = "name a field after a column, for example by `#[serde(rename = \"outer.inner\")]`";
    assert_eq!(error.help.as_deref(), Some(help));
}

#[test]
fn each_cut_and_each_damaged_byte_of_a_parquet_file_is_an_error_or_rows() {
    let folder = Folder::new("parquet");
    let bytes = std::fs::read(fixture("snappy.parquet")).unwrap();
    let read = |bytes: &[u8]| all(&parquet::rows::<Row>([folder.write("damaged.parquet", bytes)]), 0);
    let expected: Vec<Result<Row, String>> = (0..10).map(|i| Ok(expected(i))).collect();
    // The decoder writes its panics to the output of the test.
    let mut n_errors = 0;
    for i in (0..bytes.len()).step_by(if std::env::var_os("ANABRANCH_SLOW").is_some() { 1 } else { 7 }) {
        let cut = read(&bytes[..i]);
        assert!(cut.len() == 1 && cut[0].is_err(), "cut at {i}");
        let mut damaged = bytes.clone();
        damaged[i] ^= 1 << (i % 8);
        let found = read(&damaged);
        n_errors += usize::from(found != expected);
    }
    assert!(n_errors > 100, "{n_errors}");
}
