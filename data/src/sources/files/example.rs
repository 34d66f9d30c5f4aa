//! `tf.train.Example`: named lists of bytes, floats or integers, as TensorFlow stores them in
//! records.
//!
//! The messages are those of TensorFlow's `example.proto` and `feature.proto`, encoded as Protocol
//! Buffers.

use crate::protobuf::{Damaged, Parsed, WireValue, parse_fields, push_field, push_varint, take_varint};
use anabranch_dsl::{Diagnostic, Result};
use std::collections::BTreeMap;

/// A list of values of one feature.
#[derive(Clone, Debug, PartialEq)]
pub enum Feature {
    /// Byte strings, such as text or encoded pictures.
    Bytes(Vec<Vec<u8>>),
    /// 32-bit floats.
    Floats(Vec<f32>),
    /// 64-bit integers.
    Ints(Vec<i64>),
}

/// Features by name.
///
/// ```
/// use anabranch::data::example::{Example, Feature};
///
/// let features = [("label", Feature::Ints(vec![7])), ("x", Feature::Floats(vec![0.5, 1.5]))];
/// let example = Example::parse(&Example::new(features).to_bytes())?;
/// assert_eq!(example.int("label")?, 7);
/// assert_eq!(example.floats("x")?, [0.5, 1.5]);
/// let error = example.int("lable").unwrap_err();
/// assert!(error.message.contains("has no feature `lable`"));
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Example {
    features: BTreeMap<String, Feature>,
}

impl Example {
    /// Creates an example.
    pub fn new(features: impl IntoIterator<Item = (impl Into<String>, Feature)>) -> Example {
        Example { features: features.into_iter().map(|(name, feature)| (name.into(), feature)).collect() }
    }

    /// Decodes an example.
    ///
    /// # Errors
    /// Returns an error if the bytes are no example.
    pub fn parse(bytes: &[u8]) -> Result<Example> {
        let mut features = BTreeMap::new();
        let damaged = |_| Diagnostic::new("a record is no `tf.train.Example`, or it is damaged");
        parse_example(bytes, &mut features).map_err(damaged)?;
        Ok(Example { features })
    }

    /// Encodes the example, with the features in the order of their names: the bytes of
    /// TensorFlow's `SerializeToString(deterministic=True)`.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut features = Vec::new();
        for (name, feature) in &self.features {
            let mut entry = Vec::new();
            push_field(&mut entry, 1, name.as_bytes());
            push_field(&mut entry, 2, &feature.to_bytes());
            push_field(&mut features, 1, &entry);
        }
        let mut example = Vec::new();
        push_field(&mut example, 1, &features);
        example
    }

    /// Returns all features.
    pub fn features(&self) -> &BTreeMap<String, Feature> {
        &self.features
    }

    /// Returns the floats of a feature.
    ///
    /// # Errors
    /// Returns an error if there is no such feature, or if it is not a list of floats.
    pub fn floats(&self, name: &str) -> Result<&[f32]> {
        match self.feature(name)? {
            Feature::Floats(floats) => Ok(floats),
            other => Err(wrong_kind(name, other, "floats")),
        }
    }

    /// Returns the integers of a feature.
    ///
    /// # Errors
    /// Returns an error if there is no such feature, or if it is not a list of integers.
    pub fn ints(&self, name: &str) -> Result<&[i64]> {
        match self.feature(name)? {
            Feature::Ints(ints) => Ok(ints),
            other => Err(wrong_kind(name, other, "integers")),
        }
    }

    /// Returns the integer of a feature that has one.
    ///
    /// # Errors
    /// Returns an error if there is no such feature, or if it is not one integer.
    pub fn int(&self, name: &str) -> Result<i64> {
        match self.ints(name)? {
            &[int] => Ok(int),
            ints => Err(Diagnostic::new(format!("the feature `{name}` has {} integers, not one", ints.len()))),
        }
    }

    /// Returns the byte strings of a feature.
    ///
    /// # Errors
    /// Returns an error if there is no such feature, or if it is not a list of byte strings.
    pub fn bytes(&self, name: &str) -> Result<&[Vec<u8>]> {
        match self.feature(name)? {
            Feature::Bytes(bytes) => Ok(bytes),
            other => Err(wrong_kind(name, other, "byte strings")),
        }
    }

    fn feature(&self, name: &str) -> Result<&Feature> {
        self.features.get(name).ok_or_else(|| {
            let names: Vec<String> = self.features.keys().map(|name| format!("`{name}`")).collect();
            let error = Diagnostic::new(format!("the example has no feature `{name}`"));
            error.help(if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) })
        })
    }
}

fn wrong_kind(name: &str, feature: &Feature, wanted: &str) -> Diagnostic {
    let kind = match feature {
        Feature::Bytes(_) => "byte strings",
        Feature::Floats(_) => "floats",
        Feature::Ints(_) => "integers",
    };
    Diagnostic::new(format!("the feature `{name}` is a list of {kind}, not of {wanted}"))
}

impl Feature {
    fn to_bytes(&self) -> Vec<u8> {
        let (mut list, mut feature) = (Vec::new(), Vec::new());
        // Like TensorFlow, without the field if there are no numbers.
        let push_packed = |list: &mut Vec<u8>, packed: Vec<u8>| {
            if !packed.is_empty() {
                push_field(list, 1, &packed);
            }
        };
        let number = match self {
            Feature::Bytes(values) => {
                values.iter().for_each(|value| push_field(&mut list, 1, value));
                1
            }
            Feature::Floats(values) => {
                push_packed(&mut list, values.iter().flat_map(|x| x.to_le_bytes()).collect());
                2
            }
            Feature::Ints(values) => {
                let mut packed = Vec::new();
                values.iter().for_each(|&x| push_varint(&mut packed, x.cast_unsigned()));
                push_packed(&mut list, packed);
                3
            }
        };
        push_field(&mut feature, number, &list);
        feature
    }
}

fn parse_example(bytes: &[u8], features: &mut BTreeMap<String, Feature>) -> Parsed<()> {
    parse_fields(bytes, |number, value| match (number, value) {
        (1, WireValue::Bytes(bytes)) => parse_fields(bytes, |number, value| match (number, value) {
            (1, WireValue::Bytes(entry)) => {
                let (mut name, mut feature) = (String::new(), None);
                parse_fields(entry, |number, value| {
                    match (number, value) {
                        (1, WireValue::Bytes(bytes)) => {
                            name = String::from_utf8(bytes.to_vec()).map_err(|_| Damaged)?;
                        }
                        (2, WireValue::Bytes(bytes)) => feature = parse_feature(bytes)?,
                        _ => {}
                    }
                    Ok(())
                })?;
                // A feature without a list has no values, of any kind.
                if let Some(feature) = feature {
                    features.insert(name, feature);
                }
                Ok(())
            }
            _ => Ok(()),
        }),
        _ => Ok(()),
    })
}

fn parse_feature(bytes: &[u8]) -> Parsed<Option<Feature>> {
    let mut feature = None;
    parse_fields(bytes, |number, value| {
        let WireValue::Bytes(list) = value else { return Ok(()) };
        feature = match number {
            1 => Some(Feature::Bytes(parse_byte_strings(list)?)),
            2 => Some(Feature::Floats(parse_floats(list)?)),
            3 => Some(Feature::Ints(parse_ints(list)?)),
            _ => return Ok(()),
        };
        Ok(())
    })?;
    Ok(feature)
}

fn parse_byte_strings(list: &[u8]) -> Parsed<Vec<Vec<u8>>> {
    let mut values = Vec::new();
    parse_fields(list, |number, value| {
        if let (1, WireValue::Bytes(bytes)) = (number, value) {
            values.push(bytes.to_vec());
        }
        Ok(())
    })?;
    Ok(values)
}

/// Numbers are packed in one field, or each has its own.
fn parse_floats(list: &[u8]) -> Parsed<Vec<f32>> {
    let mut values = Vec::new();
    parse_fields(list, |number, value| {
        match (number, value) {
            (1, WireValue::Fixed32(bytes)) => values.push(f32::from_le_bytes(bytes)),
            (1, WireValue::Bytes(packed)) => {
                let (floats, rest) = packed.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(Damaged);
                }
                values.extend(floats.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(values)
}

fn parse_ints(list: &[u8]) -> Parsed<Vec<i64>> {
    let mut values = Vec::new();
    parse_fields(list, |number, value| {
        match (number, value) {
            (1, WireValue::Varint(x)) => values.push(x.cast_signed()),
            (1, WireValue::Bytes(mut packed)) => {
                while !packed.is_empty() {
                    values.push(take_varint(&mut packed)?.cast_signed());
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(values)
}
