//! JSON lines: one object per line.

use super::append::AppendFile;
use super::now;
use anabranch_checkpoint::called_at;
use anabranch_dsl::{Diagnostic, Loc, Result};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// A file of JSON lines with the metrics of a run, for programs.
///
/// Each line is one object, and is in the file when [`write`](JsonLines::write) returns:
///
/// ```text
/// {"step":250,"epoch":5,"time":1764071234.567,"loss":0.3125,"val/accuracy":0.9722}
/// ```
///
/// `step` is the number of steps done and `epoch` the number of the epoch, from 0. `time` is in
/// seconds since 1970 (UTC); it alone differs between two runs of equal computations. JSON has no
/// numbers that are not finite: they are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`.
/// Other numbers have the digits that give the same `f64` back.
///
/// ```
/// use anabranch::train::JsonLines;
///
/// # let folder = std::env::temp_dir().join(format!("anabranch-json-{}", std::process::id()));
/// let mut log = JsonLines::open(folder.join("metrics.jsonl"))?;
/// log.write(1, 0, [("loss", 0.5)])?;
/// let before = log.len();
/// log.write(2, 0, [("loss", f64::NAN)])?;
/// let text = std::fs::read_to_string(log.path()).unwrap();
/// assert!(text.ends_with(",\"loss\":\"NaN\"}\n"));
/// log.cut(before)?; // the second line is gone
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Debug)]
pub struct JsonLines {
    file: AppendFile,
    clock: fn() -> f64,
}

/// Returns the length of the lines that end.
fn whole_lines(file: &mut File, len: u64) -> io::Result<u64> {
    const BLOCK: u64 = 1 << 16;
    let mut end = len;
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let mut block = vec![0; (end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut block)?;
        if let Some(last) = block.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

impl JsonLines {
    /// Opens a file at its end. Creates it, and the folders above it, if they do not exist.
    ///
    /// # Errors
    /// Fails if the file cannot be opened for writing.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> Result<JsonLines> {
        let here = Loc::caller();
        let file =
            AppendFile::open(path.as_ref(), whole_lines).map_err(|error| called_at(here, "opened here", error))?;
        Ok(JsonLines { file, clock: now })
    }

    /// Appends a line.
    ///
    /// # Errors
    /// Fails if the file cannot be written, or if a metric is called `step`, `epoch` or `time`.
    /// None of the line is in it then.
    #[track_caller]
    pub fn write<'n>(
        &mut self,
        step: u64,
        epoch: u64,
        metrics: impl IntoIterator<Item = (&'n str, f64)>,
    ) -> Result<()> {
        let here = Loc::caller();
        let mut line = format!("{{\"step\":{step},\"epoch\":{epoch},\"time\":{:.3}", (self.clock)());
        for (name, value) in metrics {
            if ["step", "epoch", "time"].contains(&name) {
                let error = Diagnostic::new(format!("a metric is called `{name}`, which each line of JSON has itself"));
                let error = error.help(format!("give it another name, for example `train/{name}`"));
                return Err(called_at(here, "written here", error));
            }
            line += &format!(",{}:{}", serde_json::Value::from(name), number(value));
        }
        line += "}\n";
        self.file.append(line.as_bytes()).map_err(|error| called_at(here, "written here", error))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the number of bytes in the file.
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// Returns whether the file has no lines.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts the file to a length that it had after an earlier line.
    ///
    /// # Errors
    /// Fails if the file cannot be cut.
    #[track_caller]
    pub fn cut(&mut self, len: u64) -> Result<()> {
        let here = Loc::caller();
        self.file.cut(len).map_err(|error| called_at(here, "cut here", error))
    }
}

/// Returns a number as JSON.
fn number(x: f64) -> serde_json::Value {
    match x {
        x if x.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        x => x.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_all_bits_and_escapes_names() -> Result<()> {
        let path = std::env::temp_dir().join(format!("anabranch-lines-{}", std::process::id()));
        let mut log = JsonLines { clock: || 1.5, ..JsonLines::open(&path)? };
        let metrics = [("a \"b\"", 0.1 + 0.2), ("tiny", 5e-324), ("less", f64::NEG_INFINITY), ("whole", 3.0)];
        log.write(7, 2, metrics)?;
        let text = std::fs::read_to_string(&path).expect("it was written");
        let rest = r#""a \"b\"":0.30000000000000004,"tiny":5e-324,"less":"-Infinity","whole":3.0}"#;
        assert_eq!(text, format!("{{\"step\":7,\"epoch\":2,\"time\":1.500,{rest}\n"));
        assert_eq!(log.len(), text.len() as u64);
        let read: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(read["a \"b\""].as_f64().map(f64::to_bits), Some((0.1_f64 + 0.2).to_bits()));
        std::fs::remove_file(path).expect("it is there");
        Ok(())
    }

    #[test]
    fn a_line_without_an_end_is_cut_off() -> Result<()> {
        let path = std::env::temp_dir().join(format!("anabranch-torn-{}", std::process::id()));
        let whole = format!("{{\"step\":1}}\n{{\"long\":\"{}\"}}\n", "x".repeat(200_000));
        for torn in ["", "{", &"y".repeat(150_000)] {
            std::fs::write(&path, format!("{whole}{torn}")).expect("it can be written");
            let mut log = JsonLines { clock: || 1.0, ..JsonLines::open(&path)? };
            assert_eq!(log.len(), whole.len() as u64);
            log.write(2, 0, [])?;
            let text = std::fs::read_to_string(&path).expect("it is there");
            assert_eq!(text, format!("{whole}{{\"step\":2,\"epoch\":0,\"time\":1.000}}\n"));
        }
        std::fs::write(&path, "torn").expect("it can be written");
        assert!(JsonLines::open(&path)?.is_empty());
        std::fs::remove_file(path).expect("it is there");
        Ok(())
    }

    #[test]
    fn a_metric_with_the_name_of_another_value_is_an_error() -> Result<()> {
        let path = std::env::temp_dir().join(format!("anabranch-names-{}", std::process::id()));
        let mut log = JsonLines::open(&path)?;
        for name in ["step", "epoch", "time"] {
            let error = log.write(7, 2, [("loss", 0.5), (name, 1.0)]).unwrap_err();
            assert!(error.message.contains(&format!("a metric is called `{name}`")), "{error}");
        }
        assert!(log.is_empty());
        std::fs::remove_file(path).expect("it is there");
        Ok(())
    }
}
