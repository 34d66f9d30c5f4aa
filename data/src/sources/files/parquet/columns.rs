//! Columns of row groups, read to memory.

use super::cells::{Cell, CellDeserializer, ColumnData};
use super::pages::{CheckedPages, FileWindow, damaged};
use super::rows::RowFields;
use ::parquet::basic::{Compression, ConvertedType, LogicalType, Repetition, Type as PhysicalType};
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use ::parquet::data_type::{ByteArray, DataType};
use ::parquet::errors::Result as ParquetResult;
use ::parquet::file::metadata::RowGroupMetaData;
use ::parquet::file::serialized_reader::SerializedPageReader;
use ::parquet::schema::types::{ColumnDescPtr, SchemaDescriptor};
use anabranch_dsl::{f16, memory};
use std::collections::HashMap;
use std::sync::Arc;

/// The number of rows that are decoded at once, so that no memory is reserved for rows that a file
/// claims and does not have.
const PIECE: usize = 1 << 16;

/// A column that rows need.
pub(super) struct ColumnSource {
    pub(super) name: String,
    /// Its index among the columns of the file.
    index: usize,
    descriptor: ColumnDescPtr,
}

/// A fault of a schema, and a help.
type SchemaError = (String, String);

/// Returns the columns of a schema that rows with these fields need.
pub(super) fn wanted(schema: &SchemaDescriptor, fields: &RowFields) -> Result<Vec<ColumnSource>, SchemaError> {
    let names: Vec<String> = schema.columns().iter().map(|column| name_of(schema, column)).collect();
    let mut n_columns: HashMap<&str, usize> = HashMap::new();
    for name in &names {
        *n_columns.entry(name).or_default() += 1;
    }
    if let RowFields::Named(fields) = fields {
        fields.iter().try_for_each(|field| check_field(schema, &names, field))?;
    }
    let mut columns: Vec<ColumnSource> = Vec::new();
    for (index, (descriptor, name)) in schema.columns().iter().zip(&names).enumerate() {
        if !fields.want(name) {
            continue;
        }
        let unsupported = match what_is_unsupported(descriptor) {
            None if n_columns[name.as_str()] > 1 => Some("lists of several values or a map"),
            what => what,
        };
        if let Some(what) = unsupported {
            if let RowFields::Supported = fields {
                continue;
            }
            return Err(unsupported_column(name, what));
        }
        columns.push(ColumnSource { name: name.clone(), index, descriptor: descriptor.clone() });
    }
    if columns.is_empty() {
        let help = format!("it has {}", quoted(names.iter().map(String::as_str)));
        return Err(("the file has none of the columns of a row".to_owned(), help));
    }
    Ok(columns)
}

/// Checks that a field does not have the name of a group or a map: without a column it would be
/// `None` in each row if it is optional.
fn check_field(schema: &SchemaDescriptor, names: &[String], field: &str) -> Result<(), SchemaError> {
    let is_in_field = |name: &str| name.strip_prefix(field).is_some_and(|rest| rest.starts_with('.'));
    let Some(first) = names.iter().position(|name| is_in_field(name)) else { return Ok(()) };
    if names.iter().any(|name| name == field) {
        return Ok(());
    }
    if is_map(schema, &schema.column(first), field) {
        return Err(unsupported_column(field, "a map"));
    }
    let mut columns: Vec<&str> = names.iter().map(String::as_str).filter(|name| is_in_field(name)).collect();
    columns.dedup();
    let help = format!("name a field after a column, for example by `#[serde(rename = {:?})]`", columns[0]);
    Err((format!("`{field}` is a group; its columns are {}", quoted(columns)), help))
}

/// Returns whether a group above a column is a map.
fn is_map(schema: &SchemaDescriptor, column: &ColumnDescPtr, group: &str) -> bool {
    let (parts, mut node) = (column.path().parts(), schema.root_schema());
    for (depth, part) in parts.iter().enumerate() {
        let Some(child) = node.get_fields().iter().find(|child| child.name() == part) else { break };
        if parts[..=depth].join(".") == group {
            let info = child.get_basic_info();
            return matches!(info.converted_type(), ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE)
                || info.logical_type_ref() == Some(&LogicalType::Map);
        }
        if child.is_primitive() {
            break;
        }
        node = child;
    }
    false
}

fn unsupported_column(name: &str, what: &str) -> SchemaError {
    let help = "use a struct without this field, or store it as numbers, strings or lists of them";
    (format!("the column `{name}` has {what}, which is not supported"), help.to_owned())
}

/// Returns names as a list in quotes.
fn quoted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Returns the name of a column: of a list, that of the list and not that of its elements.
fn name_of(schema: &SchemaDescriptor, column: &ColumnDescPtr) -> String {
    let parts = column.path().parts();
    let mut node = schema.root_schema();
    let mut is_list = false;
    for (depth, part) in parts.iter().enumerate() {
        let Some(child) = node.get_fields().iter().find(|child| child.name() == part) else { break };
        let info = child.get_basic_info();
        if info.has_repetition() && info.repetition() == Repetition::REPEATED {
            return parts[..if is_list { depth } else { depth + 1 }].join(".");
        }
        is_list = info.converted_type() == ConvertedType::LIST || info.logical_type_ref() == Some(&LogicalType::List);
        if child.is_primitive() {
            break;
        }
        node = child;
    }
    parts.join(".")
}

/// Returns the values of a column that cannot be read.
fn what_is_unsupported(column: &ColumnDescPtr) -> Option<&'static str> {
    let is_decimal = column.converted_type() == ConvertedType::DECIMAL
        || matches!(column.logical_type_ref(), Some(LogicalType::Decimal(_)));
    if is_decimal {
        Some("decimal numbers")
    } else if column.physical_type() == PhysicalType::INT96 {
        Some("96-bit times")
    } else if column.max_rep_level() > 1 {
        Some("lists of lists or of groups")
    } else {
        None
    }
}

/// The values of a column in a row group.
pub(super) struct ColumnValues {
    pub(super) name: String,
    pub(super) values: ColumnData,
    /// The cell of each row. Without them, each row has the value of its index.
    cells: Option<RowCells>,
}

/// The cells of a column, and the elements of those that are lists with nulls.
#[derive(Default)]
struct RowCells {
    cells: Vec<Cell>,
    elements: Vec<Cell>,
}

impl ColumnValues {
    /// Returns the cell of a row.
    pub(super) fn cell(&self, row: usize) -> CellDeserializer<'_> {
        let (cell, elements) = match &self.cells {
            Some(RowCells { cells, elements }) => (cells[row], &elements[..]),
            None => (Cell::Value(row), &[][..]),
        };
        CellDeserializer { values: &self.values, elements, cell }
    }
}

impl ColumnSource {
    /// Returns the offset and the length of the column in a row group.
    pub(super) fn byte_range(&self, group: &RowGroupMetaData) -> Result<(u64, u64), String> {
        let missing = || "the metadata of the row group does not have the column".to_owned();
        let chunk = group.columns().get(self.index).ok_or_else(missing)?;
        let begin = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
        match (u64::try_from(begin), u64::try_from(chunk.compressed_size())) {
            (Ok(begin), Ok(length)) => Ok((begin, length)),
            _ => Err(format!("{} bytes at byte {begin} are no part of a file", chunk.compressed_size())),
        }
    }

    /// Decodes the bytes of the column in a row group, which begin at an offset in the file.
    pub(super) fn read(
        &self,
        group: &RowGroupMetaData,
        begin: u64,
        bytes: Vec<u8>,
        n_rows: usize,
    ) -> ParquetResult<ColumnValues> {
        // A few bytes of a file can stand for any number of equal values.
        let n_values = u128::try_from(group.column(self.index).num_values()).unwrap_or(0).max(n_rows as u128);
        let n_cells = if self.descriptor.max_rep_level() > 0 { 2 } else { 1 };
        let bytes_of_value = n_cells * size_of::<Cell>() + size_of::<ByteArray>() + 2 * size_of::<i16>();
        memory::check(n_values * bytes_of_value as u128).map_err(|missing| damaged(&missing.to_string()))?;
        let column = group.column(self.index);
        let window = Arc::new(FileWindow::new(begin, bytes.into(), column.compression()));
        let (column, gzip) = match column.compression() {
            Compression::GZIP(_) => {
                let plain = column.clone().into_builder().set_compression(Compression::UNCOMPRESSED);
                (plain.build()?, Some(window.clone()))
            }
            _ => (column.clone(), None),
        };
        let pages = SerializedPageReader::new(window, &column, n_rows, None)?;
        let max_levels = [self.descriptor.max_rep_level(), self.descriptor.max_def_level()];
        let bytes_of_value = self.bytes_of_value();
        let pages = CheckedPages { pages, n_values_left: n_values, bytes_of_value, max_levels, gzip };
        let reader = get_column_reader(self.descriptor.clone(), Box::new(pages));
        let is_text = self.has_type(&[ConvertedType::UTF8, ConvertedType::ENUM, ConvertedType::JSON], |ty| {
            matches!(ty, LogicalType::String | LogicalType::Enum | LogicalType::Json)
        });
        let is_unsigned = self.has_type(
            &[ConvertedType::UINT_8, ConvertedType::UINT_16, ConvertedType::UINT_32, ConvertedType::UINT_64],
            |ty| matches!(ty, LogicalType::Integer(integer) if !integer.is_signed),
        );
        let is_half = self.has_type(&[], |ty| *ty == LogicalType::Float16);
        let (values, cells) = match reader {
            ColumnReader::BoolColumnReader(reader) => self.collect(reader, n_rows, |x| x, ColumnData::Bool)?,
            ColumnReader::Int32ColumnReader(reader) if is_unsigned => {
                self.collect(reader, n_rows, i32::cast_unsigned, ColumnData::U32)?
            }
            ColumnReader::Int64ColumnReader(reader) if is_unsigned => {
                self.collect(reader, n_rows, i64::cast_unsigned, ColumnData::U64)?
            }
            ColumnReader::Int32ColumnReader(reader) => self.collect(reader, n_rows, |x| x, ColumnData::I32)?,
            ColumnReader::Int64ColumnReader(reader) => self.collect(reader, n_rows, |x| x, ColumnData::I64)?,
            ColumnReader::FloatColumnReader(reader) => self.collect(reader, n_rows, |x| x, ColumnData::F32)?,
            ColumnReader::DoubleColumnReader(reader) => self.collect(reader, n_rows, |x| x, ColumnData::F64)?,
            ColumnReader::ByteArrayColumnReader(reader) => {
                self.collect(reader, n_rows, |x| x, |bytes| ColumnData::Bytes { bytes, is_text })?
            }
            ColumnReader::FixedLenByteArrayColumnReader(reader) if is_half => {
                let half = |bytes: ::parquet::data_type::FixedLenByteArray| {
                    let bits = bytes.data().try_into().map(u16::from_le_bytes).unwrap_or_default();
                    f16::from_bits(bits).to_f32()
                };
                self.collect(reader, n_rows, half, ColumnData::F32)?
            }
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                let bytes = |bytes| ColumnData::Bytes { bytes, is_text };
                self.collect(reader, n_rows, ByteArray::from, bytes)?
            }
            ColumnReader::Int96ColumnReader(_) => return Err(damaged("96-bit times are not supported")),
        };
        Ok(ColumnValues { name: self.name.clone(), values, cells })
    }

    /// Returns the fewest bytes that a value takes in a dictionary.
    fn bytes_of_value(&self) -> usize {
        match self.descriptor.physical_type() {
            // A dictionary of flags would be longer than they are, so nobody writes one.
            PhysicalType::BOOLEAN => 1,
            // The length of a string has four bytes.
            PhysicalType::INT32 | PhysicalType::FLOAT | PhysicalType::BYTE_ARRAY => 4,
            PhysicalType::INT64 | PhysicalType::DOUBLE => 8,
            PhysicalType::INT96 => 12,
            PhysicalType::FIXED_LEN_BYTE_ARRAY => usize::try_from(self.descriptor.type_length()).unwrap_or(1).max(1),
        }
    }

    /// Returns whether the column has one of these annotations, old or new.
    fn has_type(&self, old: &[ConvertedType], new: impl Fn(&LogicalType) -> bool) -> bool {
        old.contains(&self.descriptor.converted_type()) || self.descriptor.logical_type_ref().is_some_and(new)
    }

    fn collect<D: DataType, T>(
        &self,
        mut reader: ColumnReaderImpl<D>,
        n_rows: usize,
        convert: impl Fn(D::T) -> T,
        values_of: impl FnOnce(Vec<T>) -> ColumnData,
    ) -> ParquetResult<(ColumnData, Option<RowCells>)> {
        let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
        let mut n_read = 0;
        while n_read < n_rows {
            let n = (n_rows - n_read).min(PIECE);
            match reader.read_records(n, Some(&mut definitions), Some(&mut repetitions), &mut values)?.0 {
                0 => return Err(damaged(&format!("it has {n_read} rows, and the row group {n_rows}"))),
                n => n_read += n,
            }
        }
        let cells = self.cells(&definitions, &repetitions, values.len(), n_rows)?;
        Ok((values_of(values.into_iter().map(convert).collect()), cells))
    }

    /// Returns the cells of the rows. A definition level says up to which ancestor of a value
    /// there is something, and a repetition level of 0 that a row begins.
    fn cells(
        &self,
        definitions: &[i16],
        repetitions: &[i16],
        n_values: usize,
        n_rows: usize,
    ) -> ParquetResult<Option<RowCells>> {
        let whole = self.descriptor.max_def_level();
        let is_list = self.descriptor.max_rep_level() > 0;
        if !is_list && n_values == n_rows {
            return Ok(None);
        }
        // With a list this level has one element or more; with the one below it is empty.
        let has_elements = self.descriptor.repeated_ancestor_def_level();
        let (RowCells { mut cells, mut elements }, mut next) = (RowCells::default(), 0);
        for (i, &definition) in definitions.iter().enumerate() {
            let is_value = definition == whole;
            let begin = next;
            next += usize::from(is_value);
            if !is_list {
                cells.push(if is_value { Cell::Value(begin) } else { Cell::Null });
                continue;
            }
            let is_element = definition >= has_elements;
            if repetitions.get(i) == Some(&0) {
                // A list begins without elements.
                let is_null = definition + 1 < has_elements;
                cells.push(if is_null { Cell::Null } else { Cell::List { begin, end: begin } });
                if !is_element {
                    continue;
                }
            }
            let list = cells.last_mut().ok_or_else(|| damaged("it begins within a row"))?;
            *list = match *list {
                Cell::List { begin, .. } if is_value => Cell::List { begin, end: next },
                Cell::List { begin, end } if is_element => {
                    let first = elements.len();
                    elements.extend((begin..end).map(Cell::Value));
                    elements.push(Cell::NullInList);
                    Cell::NullableList { begin: first, end: elements.len() }
                }
                Cell::NullableList { begin: first, .. } if is_element => {
                    elements.push(if is_value { Cell::Value(begin) } else { Cell::NullInList });
                    Cell::NullableList { begin: first, end: elements.len() }
                }
                _ => return Err(damaged("the levels of its lists are damaged")),
            };
        }
        match cells.len() == n_rows && next == n_values {
            true => Ok(Some(RowCells { cells, elements })),
            false => Err(damaged("its levels do not have the rows and values of the row group")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::parquet::schema::parser::parse_message_type;

    #[test]
    fn names_of_groups_and_maps_are_no_columns() {
        let schema = "message a {
            optional group outer { optional int64 inner; optional group mid { required int64 x; required int64 y; } }
            optional group words (LIST) { repeated group list { optional int64 element; } }
            optional group table (MAP) { repeated group key_value { required int64 key; optional int64 value; } }
            required int64 out;
        }";
        let schema = SchemaDescriptor::new(Arc::new(parse_message_type(schema).unwrap()));
        let error = |names| match wanted(&schema, &RowFields::Named(names)) {
            Ok(columns) => columns.into_iter().map(|column| column.name).collect::<Vec<_>>().join(", "),
            Err((what, _)) => what,
        };
        assert_eq!(error(&["out", "words", "missing", "outer.mid.x"]), "outer.mid.x, words, out");
        let columns = "`outer.inner`, `outer.mid.x`, `outer.mid.y`";
        assert_eq!(error(&["out", "outer"]), format!("`outer` is a group; its columns are {columns}"));
        assert_eq!(error(&["outer.mid"]), "`outer.mid` is a group; its columns are `outer.mid.x`, `outer.mid.y`");
        assert_eq!(error(&["out", "table"]), "the column `table` has a map, which is not supported");
    }
}
