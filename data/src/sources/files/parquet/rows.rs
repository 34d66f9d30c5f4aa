//! Rows, as types of users.

use super::cells::RowError;
use super::columns::ColumnValues;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use std::fmt;

/// The columns that a type of rows needs.
#[derive(Debug)]
pub(super) enum RowFields {
    /// A struct: those with the names of its fields.
    Named(&'static [&'static str]),
    /// A map, or a struct with flattened fields: those that are supported.
    Supported,
    /// Another type: all of them.
    All,
}

impl RowFields {
    pub(super) fn of<T: DeserializeOwned>() -> RowFields {
        match T::deserialize(FieldFinder) {
            Err(FieldsFound(Some(fields))) => fields,
            _ => RowFields::All,
        }
    }

    pub(super) fn is_struct(&self) -> bool {
        matches!(self, RowFields::Named(_))
    }

    pub(super) fn want(&self, column: &str) -> bool {
        match self {
            RowFields::Named(names) => names.contains(&column),
            RowFields::Supported | RowFields::All => true,
        }
    }
}

/// A deserializer whose error has the fields of the struct that it should return.
struct FieldFinder;

#[derive(Debug)]
struct FieldsFound(Option<RowFields>);

impl fmt::Display for FieldsFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no value")
    }
}

impl std::error::Error for FieldsFound {}

impl de::Error for FieldsFound {
    fn custom<T: fmt::Display>(_: T) -> FieldsFound {
        FieldsFound(None)
    }
}

impl<'de> Deserializer<'de> for FieldFinder {
    type Error = FieldsFound;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, FieldsFound> {
        Err(FieldsFound(None))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, v: V) -> Result<V::Value, FieldsFound> {
        v.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, FieldsFound> {
        Err(FieldsFound(Some(RowFields::Named(fields))))
    }

    fn deserialize_map<V: Visitor<'de>>(self, _: V) -> Result<V::Value, FieldsFound> {
        Err(FieldsFound(Some(RowFields::Supported)))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq
        tuple tuple_struct enum identifier ignored_any
    }
}

/// Returns a row of columns.
pub(super) fn deserialize_row<T: DeserializeOwned>(
    columns: &[ColumnValues],
    row: usize,
    is_struct: bool,
) -> Result<T, RowError> {
    T::deserialize(RowDeserializer { columns, row, is_struct })
}

struct RowDeserializer<'a> {
    /// The columns that were not read yet.
    columns: &'a [ColumnValues],
    row: usize,
    is_struct: bool,
}

impl<'a> RowDeserializer<'a> {
    fn next(&mut self) -> Option<&'a ColumnValues> {
        let (first, rest) = self.columns.split_first()?;
        self.columns = rest;
        Some(first)
    }

    fn value<'de, S: DeserializeSeed<'de>>(&self, column: &ColumnValues, seed: S) -> Result<S::Value, RowError> {
        let cell = column.cell(self.row);
        let at_column = |error| RowError { column: Some(column.name.clone()), ..error };
        seed.deserialize(cell).map_err(at_column)
    }
}

impl<'de> Deserializer<'de> for RowDeserializer<'_> {
    type Error = RowError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        if self.is_struct {
            visitor.visit_map(MapOfColumns { row: self, value: None })
        } else {
            visitor.visit_seq(self)
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        visitor.visit_map(MapOfColumns { row: self, value: None })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, RowError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, n: usize, visitor: V) -> Result<V::Value, RowError> {
        if self.columns.len() != n {
            let n_columns = self.columns.len();
            return Err(de::Error::custom(format_args!("it has {n_columns} columns, and a tuple of {n} is asked for")));
        }
        visitor.visit_seq(self)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        n: usize,
        visitor: V,
    ) -> Result<V::Value, RowError> {
        self.deserialize_tuple(n, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq
        struct enum identifier ignored_any
    }
}

impl<'de> SeqAccess<'de> for RowDeserializer<'_> {
    type Error = RowError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, RowError> {
        self.next().map(|column| self.value(column, seed)).transpose()
    }
}

/// The columns of a row with their names.
struct MapOfColumns<'a> {
    row: RowDeserializer<'a>,
    /// The column whose name was read.
    value: Option<&'a ColumnValues>,
}

impl<'de> MapAccess<'de> for MapOfColumns<'_> {
    type Error = RowError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, RowError> {
        self.value = self.row.next();
        self.value.map(|column| seed.deserialize(column.name.as_str().into_deserializer())).transpose()
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, RowError> {
        let column = self.value.take().expect("a value is read after its name");
        self.row.value(column, seed)
    }
}
