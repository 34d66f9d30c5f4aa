//! Event files of TensorBoard.
//!
//! A file is a sequence of TFRecords, each with an `Event`. The messages are those of TensorFlow's
//! `event.proto`, `summary.proto` and `tensor.proto`. Each value has the metadata of its plugin, so
//! that what is written does not depend on what was written before.

use super::append::AppendFile;
use super::{graph_def, histogram, now, png};
use anabranch_checkpoint::called_at;
use anabranch_data::protobuf::{push_double, push_field, push_number};
use anabranch_data::tfrecord;
use anabranch_dsl::{Buffer, Diagnostic, Graph, HostTensor, Loc, Result};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The name of the file. TensorBoard reads files whose names contain `tfevents`.
const NAME: &str = "events.out.tfevents.anabranch";

/// The version of the format, in the first event of a file.
const VERSION: &[u8] = b"brain.Event:2";

/// An event file of TensorBoard: scalars, histograms, images, texts and the graph of a run, by
/// step. `tensorboard --logdir FOLDER` shows those of all folders below one.
///
/// A folder has one file, and is one run. Each value is in the file when its method returns, so
/// TensorBoard can read along. A file that was cut while TensorBoard read it needs a restart of
/// TensorBoard.
///
/// ```
/// use anabranch::prelude::*;
/// use anabranch::train::EventFile;
///
/// # let folder = std::env::temp_dir().join(format!("anabranch-events-{}", std::process::id()));
/// let mut events = EventFile::open(&folder)?;
/// events.scalar(1, "loss", 0.5)?;
/// let weights = Array::new([3], vec![0.1_f32, 0.2, 0.4]);
/// events.histogram(1, "weights", weights.host())?;
/// events.image(1, "digit", Array::new([8, 8], vec![0.5_f32; 64]).host())?;
/// events.text(1, "notes", "a **first** run")?;
/// let step = Session::new()?.function(|x: Tensor| x.tanh())?;
/// events.graph(&step.graph(&[weights.host().ty()])?)?;
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Debug)]
pub struct EventFile {
    file: AppendFile,
    clock: fn() -> f64,
}

/// A plugin of TensorBoard, which shows the values of a tag.
struct Plugin {
    name: &'static str,
    /// `DataClass` of `summary.proto`.
    class: u64,
}

const SCALARS: Plugin = Plugin { name: "scalars", class: 1 };
const HISTOGRAMS: Plugin = Plugin { name: "histograms", class: 2 };
const TEXT: Plugin = Plugin { name: "text", class: 2 };
const IMAGES: Plugin = Plugin { name: "images", class: 3 };

/// `DataType` of `types.proto`.
const FLOAT: u64 = 1;
const DOUBLE: u64 = 2;
const STRING: u64 = 7;

/// Fields of `Event`.
const GRAPH_DEF: u64 = 4;
const SUMMARY: u64 = 5;

/// Returns the length of the records that are whole.
fn whole_records(file: &mut File, len: u64) -> io::Result<u64> {
    // The length, its checksum and that of the data.
    const AROUND: u64 = 8 + 4 + 4;
    let mut start = 0;
    while len - start >= AROUND {
        let mut n = [0; 8];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut n)?;
        match u64::from_le_bytes(n).checked_add(start + AROUND).filter(|&end| end <= len) {
            Some(end) => start = end,
            None => break,
        }
    }
    Ok(start)
}

impl EventFile {
    /// Returns the path of the file of a folder.
    pub fn path_in(folder: impl AsRef<Path>) -> PathBuf {
        folder.as_ref().join(NAME)
    }

    /// Opens the file of a folder at its end. Creates it, and the folders, if they do not exist.
    ///
    /// # Errors
    /// Fails if the file cannot be opened for writing.
    #[track_caller]
    pub fn open(folder: impl AsRef<Path>) -> Result<EventFile> {
        let here = Loc::caller();
        let file = AppendFile::open(&EventFile::path_in(folder), whole_records);
        let file = file.map_err(|error| called_at(here, "opened here", error))?;
        Ok(EventFile { file, clock: now })
    }

    /// Adds a number to a curve, rounded to `f32`: TensorBoard's server leaves out curves of `f64`.
    /// Numbers that are not finite are kept; TensorBoard marks them.
    ///
    /// # Errors
    /// Fails if the file cannot be written, as do the other methods.
    #[track_caller]
    pub fn scalar(&mut self, step: u64, tag: &str, value: f64) -> Result<()> {
        let tensor = tensor(FLOAT, &[], |tensor| push_field(tensor, 4, &(value as f32).to_le_bytes()));
        self.value(step, tag, &SCALARS, &tensor, Loc::caller())
    }

    /// Adds the histogram of the elements of a tensor: their counts in 30 buckets of equal width,
    /// as TensorBoard's own function makes them. Elements that are not finite are left out.
    ///
    /// # Errors
    /// Those of [`scalar`](EventFile::scalar).
    #[track_caller]
    pub fn histogram(&mut self, step: u64, tag: &str, values: &HostTensor) -> Result<()> {
        let buckets = histogram::buckets(&numbers(values));
        let bytes: Vec<u8> = buckets.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        let tensor = tensor(DOUBLE, &[buckets.len(), 3], |tensor| push_field(tensor, 4, &bytes));
        self.value(step, tag, &HISTOGRAMS, &tensor, Loc::caller())
    }

    /// Adds one or more images: `[height, width]` in gray, `[height, width, channels]`, or
    /// `[n, height, width, channels]`. One channel is gray, two are gray and alpha, three are RGB
    /// and four RGBA. Elements are `u8`, or floats from 0 to 1, which are rounded to 8 bits; less
    /// is 0, more is 1, and NaN is 0.
    ///
    /// # Errors
    /// Fails for another shape or element type, and with the errors of
    /// [`scalar`](EventFile::scalar).
    #[track_caller]
    pub fn image(&mut self, step: u64, tag: &str, image: &HostTensor) -> Result<()> {
        let here = Loc::caller();
        let wrong = |what: String| Diagnostic::new(format!("{} {what}", image.ty())).at(here, "written here");
        let (n, [height, width, channels]) = match *image.shape() {
            [height, width] => (1, [height, width, 1]),
            [height, width, channels] => (1, [height, width, channels]),
            [n, height, width, channels] => (n, [height, width, channels]),
            _ => {
                let help = "an image has the shape [height, width], [height, width, channels], or those of n images";
                return Err(wrong("is not an image".to_owned()).help(help));
            }
        };
        let pixels = pixels(image).ok_or_else(|| {
            wrong("is not an image, by its element type".to_owned()).help("elements are `u8`, or floats from 0 to 1")
        })?;
        let fits = |extent: usize| u32::try_from(extent).ok().filter(|&extent| extent > 0 && extent <= i32::MAX as u32);
        let (Some(w), Some(h), 1..=4, 1..) = (fits(width), fits(height), channels, n) else {
            return Err(wrong("is not an image".to_owned()).help("an image has pixels, and one to four channels"));
        };
        let tensor = tensor(STRING, &[2 + n], |tensor| {
            push_field(tensor, 8, w.to_string().as_bytes());
            push_field(tensor, 8, h.to_string().as_bytes());
            let images = pixels.chunks_exact(width * height * channels);
            images.for_each(|image| push_field(tensor, 8, &png::encode(w, h, channels, image)));
        });
        self.value(step, tag, &IMAGES, &tensor, here)
    }

    /// Adds a text in Markdown.
    ///
    /// # Errors
    /// Those of [`scalar`](EventFile::scalar).
    #[track_caller]
    pub fn text(&mut self, step: u64, tag: &str, markdown: &str) -> Result<()> {
        let tensor = tensor(STRING, &[], |tensor| push_field(tensor, 8, markdown.as_bytes()));
        self.value(step, tag, &TEXT, &tensor, Loc::caller())
    }

    /// Adds the graph of a function, which [`Function::graph`](anabranch_runtime::Function::graph)
    /// returns. TensorBoard shows one graph per run: the last. Regions of branches and loops are
    /// name scopes, and so are modules around their variables. Each node has its source line.
    ///
    /// # Errors
    /// Those of [`scalar`](EventFile::scalar).
    #[track_caller]
    pub fn graph(&mut self, graph: &Graph) -> Result<()> {
        self.event(0, GRAPH_DEF, &graph_def::encode(graph), Loc::caller())
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the number of bytes in the file.
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// Returns whether nothing was written to the file.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts the file to a length that it had before.
    ///
    /// # Errors
    /// Fails if the file cannot be cut.
    #[track_caller]
    pub fn cut(&mut self, len: u64) -> Result<()> {
        let here = Loc::caller();
        self.file.cut(len).map_err(|error| called_at(here, "cut here", error))
    }

    /// Appends a value of a tag.
    fn value(&mut self, step: u64, tag: &str, plugin: &Plugin, tensor: &[u8], here: Loc) -> Result<()> {
        let (mut data, mut metadata) = (Vec::new(), Vec::new());
        push_field(&mut data, 1, plugin.name.as_bytes());
        push_field(&mut metadata, 1, &data);
        push_number(&mut metadata, 4, plugin.class);
        let (mut value, mut summary) = (Vec::new(), Vec::new());
        push_field(&mut value, 1, tag.as_bytes());
        push_field(&mut value, 8, tensor);
        push_field(&mut value, 9, &metadata);
        push_field(&mut summary, 1, &value);
        self.event(step, SUMMARY, &summary, here)
    }

    /// Appends an event, after that of the version if it is the first one.
    fn event(&mut self, step: u64, field: u64, content: &[u8], here: Loc) -> Result<()> {
        if i64::try_from(step).is_err() {
            let error = Diagnostic::new(format!("the step {step} does not fit in `i64`, as event files need"));
            return Err(called_at(here, "written here", error));
        }
        let time = (self.clock)();
        let mut entry = Vec::new();
        let mut record = |step: u64, field: u64, content: &[u8]| {
            let mut event = Vec::new();
            push_double(&mut event, 1, time);
            push_number(&mut event, 2, step);
            push_field(&mut event, field, content);
            tfrecord::write(&mut entry, &event).expect("memory can be written");
        };
        if self.file.len() == 0 {
            record(0, 3, VERSION);
        }
        record(step, field, content);
        self.file.append(&entry).map_err(|error| called_at(here, "written here", error))
    }
}

/// Returns a `TensorProto` of a `DataType`. `content` appends the field with the elements.
fn tensor(dtype: u64, shape: &[usize], content: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let (mut tensor, mut dims) = (Vec::new(), Vec::new());
    for &extent in shape {
        let mut dim = Vec::new();
        push_number(&mut dim, 1, extent as u64);
        push_field(&mut dims, 2, &dim);
    }
    push_number(&mut tensor, 1, dtype);
    push_field(&mut tensor, 2, &dims);
    content(&mut tensor);
    tensor
}

/// Returns the elements of images as 8 bits each, unless they are integers of another type.
fn pixels(image: &HostTensor) -> Option<Vec<u8>> {
    match image.buffer() {
        Buffer::U8(data) => Some(data.to_vec()),
        // NaN becomes 0.
        _ if image.dtype().is_float() => {
            Some(numbers(image).into_iter().map(|x| (x.clamp(0.0, 1.0) * 255.0).round() as u8).collect())
        }
        _ => None,
    }
}

/// Returns the elements of a tensor as `f64`.
fn numbers(tensor: &HostTensor) -> Vec<f64> {
    match tensor.buffer() {
        Buffer::F32(data) => data.iter().map(|&x| x.into()).collect(),
        Buffer::F64(data) => data.to_vec(),
        Buffer::F16(data) => data.iter().map(|&x| x.into()).collect(),
        Buffer::BF16(data) => data.iter().map(|&x| x.into()).collect(),
        Buffer::I32(data) => data.iter().map(|&x| x.into()).collect(),
        Buffer::I64(data) => data.iter().map(|&x| x as f64).collect(),
        Buffer::U32(data) => data.iter().map(|&x| x.into()).collect(),
        Buffer::U8(data) => data.iter().map(|&x| x.into()).collect(),
        Buffer::Bool(data) => data.iter().map(|&x| x.into()).collect(),
        // Strings have no histogram.
        Buffer::Bytes(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_data::protobuf::{WireValue, parse_fields};
    use anabranch_dsl::Array;

    /// A file that TensorBoard's readers have read: see `read_events.py` beside it.
    const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/events");

    /// Writes one of each kind of value, at a fixed time.
    fn write_all_kinds(folder: &Path) -> Result<EventFile> {
        let mut events = EventFile { clock: || 1_700_000_000.25, ..EventFile::open(folder)? };
        for (step, loss) in [(1, 0.5), (2, 0.25), (300, f64::NAN)] {
            events.scalar(step, "loss", loss)?;
        }
        events.scalar(2, "val/accuracy", 0.1 + 0.2)?;
        let weights: Vec<f32> = (0..100).map(|i| (i * i) as f32 / 100.0).collect();
        events.histogram(2, "weights", Array::new([10, 10], weights).host())?;
        events.histogram(2, "equal", Array::new([4], vec![7_i32; 4]).host())?;
        let gray: Vec<f32> = (0..12).map(|i| i as f32 / 11.0).collect();
        events.image(2, "gray", Array::new([3, 4], gray).host())?;
        let colors: Vec<u8> = (0..24).map(|i| i * 10).collect();
        events.image(2, "colors", Array::new([2, 2, 2, 3], colors).host())?;
        events.text(2, "notes", "a **first** run")?;
        events.graph(&graph_with_a_loop()?)?;
        Ok(events)
    }

    /// Returns the graph of a function with a loop, a branch and a variable.
    fn graph_with_a_loop() -> Result<Graph> {
        let text = "graph @f(%x: f32[2, 3], %n: i32[]) -> f32[2, 3] {
    var @layer.weight: f32[2, 3]
    %w = read @layer.weight : f32[2, 3]
    %zero = constant 0 : i32[]
    %one = constant 1 : i32[]
    %rest, %y = while (%i = %n, %y = %x | %0 = %zero, %1 = %one, %w = %w) : (i32[], f32[2, 3]) cond {
        %more = gt %i, %0
        yield %more
    } body {
        %next = sub %i, %1
        %sum = add %y, %w
        yield %next, %sum
    }
    assign @layer.weight, %y
    return %y
}
";
        Graph::parse(text, "f.ir").map_err(|errors| errors.into_iter().next().expect("an error"))
    }

    fn temporary(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("anabranch-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn the_bytes_are_those_that_tensorboard_has_read() -> Result<()> {
        let folder = temporary("event-fixture");
        let events = write_all_kinds(&folder)?;
        let bytes = std::fs::read(events.path()).expect("it was written");
        assert_eq!(bytes.len() as u64, events.len());
        let fixture = EventFile::path_in(FIXTURE);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&fixture, &bytes).expect("the repository can be written");
        }
        let expected = std::fs::read(&fixture).expect("the fixture is there");
        assert!(bytes == expected, "the file has changed: read it with TensorBoard, as `read_events.py` says");
        std::fs::remove_dir_all(folder).expect("it is there");
        Ok(())
    }

    /// The steps and the tags of the values in a file, as our own reader of records finds them.
    fn tags(path: &Path) -> Result<Vec<(u64, String)>> {
        let mut found = Vec::new();
        for record in tfrecord::records([path]).iter() {
            let (mut step, mut name) = (0, String::new());
            parse_fields(&record?, |number, value| {
                match (number, value) {
                    (2, WireValue::Varint(x)) => step = x,
                    (3, WireValue::Bytes(version)) => name = String::from_utf8_lossy(version).into_owned(),
                    (4, WireValue::Bytes(_)) => name = "graph".to_owned(),
                    (5, WireValue::Bytes(summary)) => parse_fields(summary, |_, value| {
                        let WireValue::Bytes(value) = value else { return Ok(()) };
                        parse_fields(value, |number, value| {
                            if let (1, WireValue::Bytes(tag)) = (number, value) {
                                name = String::from_utf8_lossy(tag).into_owned();
                            }
                            Ok(())
                        })
                    })?,
                    _ => {}
                }
                Ok(())
            })
            .expect("an event is a message");
            found.push((step, name));
        }
        Ok(found)
    }

    #[test]
    fn a_file_that_was_cut_and_continued_is_that_of_one_run() -> Result<()> {
        let folder = temporary("event-cut");
        let mut events = EventFile::open(&folder)?;
        events.scalar(1, "loss", 1.0)?;
        let len = events.len();
        events.scalar(2, "loss", 2.0)?;
        drop(events);
        let mut again = EventFile::open(&folder)?;
        again.cut(len)?;
        again.scalar(2, "other", 3.0)?;
        let all = tags(again.path())?;
        assert_eq!(all, [(0, "brain.Event:2"), (1, "loss"), (2, "other")].map(|(step, tag)| (step, tag.to_owned())));
        again.cut(0)?;
        again.text(1, "first", "the version comes again")?;
        assert_eq!(tags(again.path())?.len(), 2);
        std::fs::remove_dir_all(folder).expect("it is there");
        Ok(())
    }

    #[test]
    fn a_record_without_an_end_is_cut_off() -> Result<()> {
        let folder = temporary("event-torn");
        let path = EventFile::path_in(&folder);
        let mut events = EventFile { clock: || 1.0, ..EventFile::open(&folder)? };
        events.scalar(1, "x", 1.0)?;
        let one = events.len();
        events.scalar(2, "x", 2.0)?;
        let two = std::fs::read(&path).expect("it is there");
        for len in one as usize..two.len() {
            std::fs::write(&path, &two[..len]).expect("it can be written");
            let mut again = EventFile { clock: || 1.0, ..EventFile::open(&folder)? };
            assert_eq!(again.len(), one);
            again.scalar(2, "x", 2.0)?;
            assert!(std::fs::read(&path).expect("it is there") == two, "{len} bytes");
        }
        std::fs::remove_dir_all(folder).expect("it is there");
        Ok(())
    }

    #[test]
    fn a_step_fits_in_i64() -> Result<()> {
        let folder = temporary("event-steps");
        let mut events = EventFile::open(&folder)?;
        events.scalar(i64::MAX as u64, "x", 1.0)?;
        let n = events.len();
        let error = events.scalar(i64::MAX as u64 + 1, "x", 1.0).unwrap_err();
        assert!(error.message.contains("the step 9223372036854775808"), "{error}");
        assert_eq!(events.len(), n);
        std::fs::remove_dir_all(folder).expect("it is there");
        Ok(())
    }

    #[test]
    fn what_is_no_image_is_an_error() -> Result<()> {
        let folder = temporary("event-errors");
        let mut events = EventFile::open(&folder)?;
        let mut fails = |image: HostTensor| events.image(1, "x", &image).unwrap_err();
        assert_eq!(fails(HostTensor::new([4], vec![0_u8; 4])).message, "u8[4] is not an image");
        assert_eq!(fails(HostTensor::new([1, 2, 5], vec![0_u8; 10])).message, "u8[1, 2, 5] is not an image");
        assert_eq!(fails(HostTensor::new([0, 2], vec![0_u8; 0])).message, "u8[0, 2] is not an image");
        let error = fails(HostTensor::new([1, 2], vec![0_i32; 2]));
        assert!(error.message.contains("by its element type") && error.loc().is_some(), "{error}");
        assert!(events.is_empty());
        std::fs::remove_dir_all(folder).expect("it is there");
        Ok(())
    }
}
