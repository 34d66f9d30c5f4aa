//! The values of columns, one of which becomes a field of a row.

use ::parquet::data_type::ByteArray;
use serde::de::value::StrDeserializer;
use serde::de::{self, Deserializer, IntoDeserializer, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use std::fmt;

/// The values of a column, without nulls.
pub(super) enum ColumnData {
    Bool(Vec<bool>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    U32(Vec<u32>),
    U64(Vec<u64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bytes { bytes: Vec<ByteArray>, is_text: bool },
}

/// The content of a column in a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cell {
    /// The value of this index.
    Value(usize),
    /// A list of the values of these indices.
    List {
        begin: usize,
        end: usize,
    },
    /// A list with nulls: the elements of these indices.
    NullableList {
        begin: usize,
        end: usize,
    },
    Null,
    /// An element of a list that is null.
    NullInList,
}

/// Why a row does not fit.
#[derive(Debug)]
pub(super) struct RowError {
    pub(super) column: Option<String>,
    pub(super) what: String,
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for RowError {}

impl de::Error for RowError {
    fn custom<T: fmt::Display>(what: T) -> RowError {
        RowError { column: None, what: what.to_string() }
    }
}

/// A cell of a column, for `serde`.
#[derive(Clone, Copy)]
pub(super) struct CellDeserializer<'a> {
    pub(super) values: &'a ColumnData,
    /// The elements of all lists with nulls: each is a value, or null.
    pub(super) elements: &'a [Cell],
    pub(super) cell: Cell,
}

impl<'a> CellDeserializer<'a> {
    fn index(self) -> Result<usize, RowError> {
        match self.cell {
            Cell::Value(index) => Ok(index),
            Cell::List { .. } | Cell::NullableList { .. } => Err(de::Error::custom("it is a list")),
            Cell::Null => Err(de::Error::custom("it is null")),
            Cell::NullInList => Err(de::Error::custom("an element of the list is null")),
        }
    }

    fn bytes(self) -> Result<Option<&'a [u8]>, RowError> {
        let index = self.index()?;
        Ok(match self.values {
            ColumnData::Bytes { bytes, .. } => Some(bytes[index].data()),
            _ => None,
        })
    }

    fn text(self) -> Result<Option<&'a str>, RowError> {
        let not_text = |_| de::Error::custom("it is not UTF-8");
        self.bytes()?.map(|bytes| std::str::from_utf8(bytes).map_err(not_text)).transpose()
    }
}

impl<'de> Deserializer<'de> for CellDeserializer<'_> {
    type Error = RowError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        if matches!(self.cell, Cell::List { .. } | Cell::NullableList { .. }) {
            return self.deserialize_seq(visitor);
        }
        if let Cell::Null | Cell::NullInList = self.cell {
            // A type that takes any value may take none.
            return visitor.visit_none().map_err(|_: RowError| self.index().expect_err("it is null"));
        }
        let i = self.index()?;
        match self.values {
            ColumnData::Bool(values) => visitor.visit_bool(values[i]),
            ColumnData::I32(values) => visitor.visit_i32(values[i]),
            ColumnData::I64(values) => visitor.visit_i64(values[i]),
            ColumnData::U32(values) => visitor.visit_u32(values[i]),
            ColumnData::U64(values) => visitor.visit_u64(values[i]),
            ColumnData::F32(values) => visitor.visit_f32(values[i]),
            ColumnData::F64(values) => visitor.visit_f64(values[i]),
            ColumnData::Bytes { is_text: true, .. } => self.deserialize_str(visitor),
            ColumnData::Bytes { bytes, .. } => visitor.visit_bytes(bytes[i].data()),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        match self.text()? {
            Some(text) => visitor.visit_str(text),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        match self.bytes()? {
            Some(bytes) => visitor.visit_bytes(bytes),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        match self.cell {
            Cell::Null | Cell::NullInList => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, RowError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, RowError> {
        match self.text()? {
            Some(text) => {
                let text: StrDeserializer<'_, RowError> = text.into_deserializer();
                text.deserialize_enum(name, variants, visitor)
            }
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        match self.cell {
            Cell::List { begin, end } | Cell::NullableList { begin, end } => {
                visitor.visit_seq(ListElements { list: self, next: begin, end })
            }
            _ => match self.bytes()? {
                Some(bytes) => visitor.visit_seq(ByteElements(bytes.iter())),
                None => self.deserialize_any(visitor),
            },
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, n: usize, visitor: V) -> Result<V::Value, RowError> {
        let n_there = match self.cell {
            Cell::List { begin, end } | Cell::NullableList { begin, end } => Some(end - begin),
            _ => self.bytes()?.map(<[u8]>::len),
        };
        match n_there {
            Some(n_there) if n_there != n => {
                Err(de::Error::custom(format_args!("it has {n_there} elements, and the field of the row {n}")))
            }
            _ => self.deserialize_seq(visitor),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char unit unit_struct tuple_struct map struct identifier
    }
}

/// The elements of a list.
struct ListElements<'a> {
    list: CellDeserializer<'a>,
    next: usize,
    end: usize,
}

impl<'de> SeqAccess<'de> for ListElements<'_> {
    type Error = RowError;

    fn next_element_seed<S: de::DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, RowError> {
        if self.next == self.end {
            return Ok(None);
        }
        let cell = match self.list.cell {
            Cell::NullableList { .. } => self.list.elements[self.next],
            _ => Cell::Value(self.next),
        };
        self.next += 1;
        seed.deserialize(CellDeserializer { cell, ..self.list }).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.end - self.next)
    }
}

/// The bytes of a value, as numbers.
struct ByteElements<'a>(std::slice::Iter<'a, u8>);

impl<'de> SeqAccess<'de> for ByteElements<'_> {
    type Error = RowError;

    fn next_element_seed<S: de::DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, RowError> {
        self.0.next().map(|byte| seed.deserialize(byte.into_deserializer())).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}
