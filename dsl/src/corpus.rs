//! The cases of `tests/ops/`: the expected behavior of every operation, for the tests of every
//! engine.
//!
//! There is one file per operation, with its name. A case is a single node of the operation on
//! inputs:
//!
//! ```toml
//! [[case]]
//! name = "rows are summed"
//! T = ["f32", "i64"]                   # the case once for each type, in place of `T`
//! inputs = ["T[2, 2] 1 2 3 4"]
//! attrs = { axes = [1], keepdim = false }
//! output = "T[2] 3 7"                  # or `error = ".."`: a part of the message
//! grad = true                          # gradients agree with finite differences here
//! ```
//!
//! An engine is a function from a graph and its inputs to outputs. [`check`] runs all cases through
//! it. A file with an unknown key, a case without an outcome, and a folder without files are
//! errors, so that no case is skipped silently.

use crate::equality::same_number;
use crate::ir::literal::read_elements;
use crate::ir::{Attr, AttrKind, Attrs};
use crate::ops::{self, Exactness, GPU_ULPS, OpClass, Prim};
use crate::{AnyValue, Buffer, Bytes, DType, Graph, HostTensor, Result, TensorType, bf16, f16, trace};
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A case: a single node on given inputs, and its expected outcome.
#[derive(Clone, Debug)]
pub struct Case {
    /// The operation.
    pub op: Prim,
    /// The property that the case shows, with the element type if there are several.
    pub name: String,
    /// The operands.
    pub inputs: Vec<HostTensor>,
    /// The static arguments.
    pub attrs: Attrs,
    /// The expected outcome.
    pub outcome: Outcome,
    /// Whether gradients are checked against finite differences.
    pub grad: bool,
}

/// The expected outcome of a case.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The expected result, within the exactness of the operation.
    Output(HostTensor),
    /// An error whose message contains this text, during tracing or at run time.
    Error(String),
}

/// The seed of random tests: 0, so that every run tries the same cases. `ANABRANCH_SEED=n` sets
/// another seed, and `ANABRANCH_SEED=random` draws a seed and prints the command that repeats it.
///
/// # Panics
/// Panics if `ANABRANCH_SEED` is neither a number nor `random`.
pub fn seed() -> u64 {
    static SEED: LazyLock<u64> = LazyLock::new(|| match std::env::var("ANABRANCH_SEED") {
        Err(_) => 0,
        Ok(word) if word == "random" => RandomState::new().build_hasher().finish() >> 32,
        Ok(number) => number.parse().expect("`ANABRANCH_SEED` is a number, or `random`"),
    });
    if *SEED != 0 {
        // A failing test shows it.
        println!("ANABRANCH_SEED={} repeats these random cases", *SEED);
    }
    *SEED
}

/// The folder of the cases.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/ops")
}

/// Returns all cases, in the order of the operations.
///
/// # Panics
/// Panics if a file cannot be read. The message names the file.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for op in ops::all() {
        let path = folder().join(format!("{}.toml", op.name));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let of_op = parse(op, &text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        cases.extend(of_op);
    }
    assert!(!cases.is_empty(), "there are no cases");
    cases
}

/// Parses the cases of one file.
pub fn parse(op: Prim, text: &str) -> Result<Vec<Case>, String> {
    let file: toml::Table = text.parse().map_err(|e| format!("{e}"))?;
    if let Some(key) = file.keys().find(|k| *k != "case") {
        return Err(format!("unknown key `{key}`"));
    }
    let tables = file.get("case").and_then(|c| c.as_array()).ok_or("there are no cases")?;
    let mut cases = Vec::new();
    for table in tables {
        let table = table.as_table().ok_or("a case is a table")?;
        let name = table.get("name").and_then(|n| n.as_str()).ok_or("a case has no name")?;
        let mut of_table = read_case(op, name, table).map_err(|e| format!("`{name}`: {e}"))?;
        cases.append(&mut of_table);
    }
    Ok(cases)
}

fn read_case(op: Prim, name: &str, table: &toml::Table) -> Result<Vec<Case>, String> {
    const KEYS: [&str; 7] = ["name", "T", "inputs", "attrs", "output", "error", "grad"];
    if let Some(key) = table.keys().find(|k| !KEYS.contains(&k.as_str())) {
        return Err(format!("unknown key `{key}`"));
    }
    let strings = |key: &str| -> Result<Vec<&str>, String> {
        let items = table.get(key).and_then(|v| v.as_array());
        let items = items.map(Vec::as_slice).unwrap_or_default().iter();
        items.map(|v| v.as_str().ok_or_else(|| format!("`{key}` is a list of strings"))).collect()
    };
    let types = match strings("T")?[..] {
        [] => vec![None],
        ref names => names.iter().map(|n| dtype(n).map(Some)).collect::<Result<_, _>>()?,
    };
    let text = |key: &str| table.get(key).and_then(|v| v.as_str());
    let empty = toml::Table::new();
    let attrs = table.get("attrs").and_then(|a| a.as_table()).unwrap_or(&empty);
    let read = |t: Option<DType>| {
        let outcome = match (text("output"), text("error")) {
            (Some(output), None) => Outcome::Output(tensor(output, t)?),
            (None, Some(error)) => Outcome::Error(error.to_owned()),
            _ => return Err("a case needs either `output` or `error`".to_owned()),
        };
        Ok(Case {
            op,
            name: t.map_or_else(|| name.to_owned(), |t| format!("{name} ({t})")),
            inputs: strings("inputs")?.into_iter().map(|s| tensor(s, t)).collect::<Result<_, _>>()?,
            attrs: read_attrs(op, attrs, t)?,
            outcome,
            grad: table.get("grad").and_then(|g| g.as_bool()).unwrap_or(false),
        })
    };
    types.into_iter().map(read).collect()
}

fn dtype(name: &str) -> Result<DType, String> {
    DType::from_name(name).ok_or_else(|| format!("there is no element type `{name}`"))
}

fn read_attrs(op: Prim, table: &toml::Table, t: Option<DType>) -> Result<Attrs, String> {
    if let Some(key) = table.keys().find(|k| !op.attrs.iter().any(|(name, _)| name == k)) {
        return Err(format!("`{}` has no attribute `{key}`", op.name));
    }
    let mut attrs = Attrs::none();
    for &(name, kind) in op.attrs {
        let value = table.get(name).ok_or_else(|| format!("the attribute `{name}` is missing"))?;
        let ints = || -> Option<Vec<i64>> { value.as_array()?.iter().map(|v| v.as_integer()).collect() };
        let attr: Option<Attr> = match kind {
            AttrKind::Int | AttrKind::Natural => value.as_integer().map(Attr::Int),
            AttrKind::Ints | AttrKind::Naturals => ints().map(Attr::Ints),
            AttrKind::Float => value.as_float().map(Attr::Float),
            AttrKind::Bool => value.as_bool().map(Attr::Bool),
            AttrKind::DType => match (value.as_str(), t) {
                (Some("T"), Some(t)) => Some(Attr::DType(t)),
                (name, _) => name.and_then(DType::from_name).map(Attr::DType),
            },
            AttrKind::Shape => {
                let extents = || ints()?.into_iter().map(|n| usize::try_from(n).ok()).collect::<Option<Vec<_>>>();
                extents().map(|e| Attr::Shape(e.into()))
            }
        };
        attrs = attrs.with(
            name,
            attr.filter(|attr| kind.admits(attr))
                .ok_or_else(|| format!("the attribute `{name}` is not of kind {kind:?}"))?,
        );
    }
    Ok(attrs)
}

/// Parses strings: words, and in quotes any bytes: `one b"and one" b"\xff"`.
fn strings(text: &str) -> Result<Buffer, String> {
    let (mut rest, mut words) = (text.trim_start(), Vec::new());
    while !rest.is_empty() {
        let escaped = |i: usize| rest[..i].bytes().rev().take_while(|&c| c == b'\\').count() % 2 == 1;
        let end = match rest.strip_prefix("b\"") {
            Some(_) => rest.match_indices('"').map(|(i, _)| i + 1).skip(1).find(|end| !escaped(end - 1)),
            None => Some(rest.find(char::is_whitespace).unwrap_or(rest.len())),
        };
        let (word, after) = rest.split_at(end.ok_or_else(|| format!("`{rest}` has no end"))?);
        words.push(if word.starts_with("b\"") { word.to_owned() } else { format!("{:?}", Bytes::from(word)) });
        rest = after.trim_start();
    }
    read_elements(DType::Bytes, &words).map_err(|i| format!("`{}` is no string", words[i]))
}

/// Parses a tensor from its type and elements: `f32[2, 2] 1 2 3 4`, `T[] nan`, `bytes[2] a b"\n"`.
pub fn tensor(text: &str, t: Option<DType>) -> Result<HostTensor, String> {
    fn elements<E: crate::Element + std::str::FromStr>(text: &str) -> Result<Buffer, String> {
        let element = |w: &str| w.parse().map_err(|_| format!("`{w}` is not of type {}", E::DTYPE));
        Ok(E::into_buffer(text.split_whitespace().map(element).collect::<Result<_, _>>()?))
    }
    let parts = || {
        let (name, rest) = text.split_once('[')?;
        let (extents, data) = rest.split_once(']')?;
        Some((name.trim(), extents.trim(), data))
    };
    let (name, extents, data) = parts().ok_or_else(|| format!("`{text}` is not a tensor"))?;
    let dtype = match (name, t) {
        ("T", Some(t)) => t,
        _ => dtype(name)?,
    };
    let extents = extents.split(',').map(str::trim).filter(|e| !e.is_empty());
    let shape =
        extents.map(|e| e.parse().map_err(|_| format!("`{e}` is not an extent"))).collect::<Result<Vec<usize>, _>>()?;
    let buffer = match dtype {
        DType::F32 => elements::<f32>(data),
        DType::F64 => elements::<f64>(data),
        DType::F16 => elements::<f16>(data),
        DType::BF16 => elements::<bf16>(data),
        DType::I32 => elements::<i32>(data),
        DType::I64 => elements::<i64>(data),
        DType::U32 => elements::<u32>(data),
        DType::U8 => elements::<u8>(data),
        DType::Bool => elements::<bool>(data),
        DType::Bytes => strings(data),
    }?;
    if buffer.len() != shape.iter().product::<usize>() {
        return Err(format!("{} elements in `{text}`", buffer.len()));
    }
    Ok(HostTensor::from_buffer(shape, buffer))
}

impl Case {
    /// Returns the graph of one node, with the inputs as parameters.
    pub fn graph(&self) -> Result<Graph> {
        let types: Vec<TensorType> = self.inputs.iter().map(HostTensor::ty).collect();
        Ok(trace::trace(self.op.name, || vec![self.emit(&parameters(&types))])?.graph)
    }

    /// Appends the node to the graph being traced.
    pub fn emit(&self, operands: &[AnyValue]) -> AnyValue {
        trace::emit(self.op, operands, self.attrs.clone())
    }

    /// Returns the case with all floats converted to `f64`, including attributes.
    #[must_use]
    pub fn in_f64(&self) -> Case {
        let wide = |t: &HostTensor| match t.buffer() {
            Buffer::F32(_) | Buffer::F16(_) | Buffer::BF16(_) => HostTensor::new(t.shape(), floats(t).collect()),
            _ => t.clone(),
        };
        let mut case = self.clone();
        case.inputs = self.inputs.iter().map(wide).collect();
        case.attrs = self.attrs.iter().fold(Attrs::none(), |attrs, (name, attr)| match attr {
            Attr::DType(DType::F32 | DType::F16 | DType::BF16) => attrs.with(name, Attr::DType(DType::F64)),
            _ => attrs.with(name, attr.clone()),
        });
        case
    }

    /// Returns a description of the error in an engine's result, or `None` if it is correct.
    pub fn verdict(&self, result: &Result<Vec<HostTensor>>) -> Option<String> {
        self.verdict_within(result, tolerance)
    }

    /// Returns a description of the error in a result of a GPU, or `None` if it is correct there.
    pub fn verdict_on_gpu(&self, result: &Result<Vec<HostTensor>>) -> Option<String> {
        self.verdict_within(result, |case, result, expected| {
            let is_approximate = match case.op.class {
                OpClass::Scalar(_) => result.dtype() == DType::F32,
                OpClass::Rowwise(_) => true,
                _ => false,
            };
            let magnitudes = case.inputs.iter().flat_map(floats).map(f64::abs).filter(|x| x.is_finite());
            let largest = magnitudes.fold(1.0, f64::max);
            let bound = GPU_ULPS * f64::from(f32::EPSILON) * expected.abs().max(1.0) * largest;
            tolerance(case, result, expected).max(if is_approximate { bound } else { 0.0 })
        })
    }

    fn verdict_within(
        &self,
        result: &Result<Vec<HostTensor>>,
        tolerance: impl Fn(&Case, &HostTensor, f64) -> f64,
    ) -> Option<String> {
        match (&self.outcome, result) {
            (Outcome::Output(expected), Ok(given)) => match &given[..] {
                [given] => difference(self, expected, given, tolerance),
                _ => Some(format!("{} results", given.len())),
            },
            (Outcome::Output(_), Err(e)) => Some(format!("fails with: {}", e.message)),
            (Outcome::Error(part), Err(e)) if e.message.contains(part) => None,
            (Outcome::Error(part), Err(e)) => Some(format!("the error is `{}`, without `{part}`", e.message)),
            (Outcome::Error(part), Ok(_)) => Some(format!("succeeds, but should fail with `{part}`")),
        }
    }
}

/// Returns a graph input for each type.
pub fn parameters(types: &[TensorType]) -> Vec<AnyValue> {
    types.iter().map(|t| trace::input(t.clone(), None)).collect()
}

/// Runs all cases through an engine.
///
/// # Panics
/// Panics if any case fails. The message lists all failures.
#[track_caller]
pub fn check(engine: impl Fn(&Graph, &[HostTensor]) -> Result<Vec<HostTensor>>) {
    let mut wrong = String::new();
    for case in cases() {
        let result = case.graph().and_then(|graph| engine(&graph, &case.inputs));
        if let Some(why) = case.verdict(&result) {
            let _ = writeln!(wrong, "{}: {}: {why}", case.op.name, case.name);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

fn difference(
    case: &Case,
    expected: &HostTensor,
    given: &HostTensor,
    tolerance: impl Fn(&Case, &HostTensor, f64) -> f64,
) -> Option<String> {
    if expected.ty() != given.ty() {
        return Some(format!("the result is {}, not {}", given.ty(), expected.ty()));
    }
    let pairs = floats(expected).zip(floats(given));
    let far = |&(e, g): &(f64, f64)| !(same_number(e, g) || (e - g).abs() <= tolerance(case, expected, e));
    let what = format!("the result is {given}, not {expected}");
    let same = match expected.buffer() {
        buffer if buffer.dtype().is_float() => !pairs.into_iter().any(|pair| far(&pair)),
        _ => expected == given,
    };
    (!same).then_some(what)
}

fn floats(t: &HostTensor) -> Box<dyn Iterator<Item = f64> + '_> {
    match t.buffer() {
        Buffer::F32(d) => Box::new(d.iter().map(|&x| f64::from(x))),
        Buffer::F64(d) => Box::new(d.iter().copied()),
        Buffer::F16(d) => Box::new(d.iter().map(|&x| x.into())),
        Buffer::BF16(d) => Box::new(d.iter().map(|&x| x.into())),
        _ => Box::new(std::iter::empty()),
    }
}

/// Returns the tolerated difference of a result from `expected`.
fn tolerance(case: &Case, result: &HostTensor, expected: f64) -> f64 {
    let (epsilon, tiny) = match result.dtype() {
        DType::F32 => (f64::from(f32::EPSILON), f64::from(f32::MIN_POSITIVE)),
        DType::F16 => (f16::EPSILON.into(), f16::MIN_POSITIVE.into()),
        DType::BF16 => (bf16::EPSILON.into(), bf16::MIN_POSITIVE.into()),
        _ => (f64::EPSILON, f64::MIN_POSITIVE),
    };
    match case.op.exactness {
        Exactness::Exact => 0.0,
        Exactness::Ulps(n) => f64::from(n) * epsilon * expected.abs().max(tiny),
        Exactness::Sum(factor) => {
            let n = case.inputs.iter().map(HostTensor::len).max().unwrap_or(1);
            let largest = |t: &HostTensor| floats(t).fold(1.0f64, |m, x| m.max(x.abs()));
            let magnitude: f64 = case.inputs.iter().map(largest).product();
            factor * n as f64 * epsilon * n as f64 * magnitude
        }
    }
}
