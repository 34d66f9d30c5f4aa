//! The pages of columns. Each is checked before memory is taken for what it claims to have.

use super::page_head::{INDEX_PAGE, PageHead};
use crate::protobuf::take_varint;
use ::parquet::basic::{Compression, Encoding};
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::errors::{ParquetError, Result as ParquetResult};
use ::parquet::file::reader::{ChunkReader, Length};
use anabranch_dsl::memory;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use std::io::{Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) fn damaged(what: &str) -> ParquetError {
    ParquetError::General(what.to_owned())
}

/// The pages of a column, of which each is checked before memory is taken for its values: their
/// number stands in the page, and the decoder trusts it.
pub(super) struct CheckedPages<P> {
    pub(super) pages: P,
    /// The values of the column that were in no page so far.
    pub(super) n_values_left: u128,
    /// The fewest bytes that a value takes in a dictionary.
    pub(super) bytes_of_value: usize,
    /// The largest level of repetition, and of definition.
    pub(super) max_levels: [i16; 2],
    /// Where the pages are, if they are compressed by gzip.
    pub(super) gzip: Option<Arc<FileWindow>>,
}

impl<P: PageReader> CheckedPages<P> {
    fn check(&mut self, page: Option<Page>) -> ParquetResult<Option<Page>> {
        match &page {
            Some(Page::DictionaryPage { buf, num_values, .. })
                if *num_values as usize > buf.len() / self.bytes_of_value =>
            {
                let n = buf.len();
                return Err(damaged(&format!("its dictionary of {n} bytes cannot have {num_values} values")));
            }
            Some(Page::DataPage { num_values, .. } | Page::DataPageV2 { num_values, .. }) => {
                let left = self.n_values_left.checked_sub((*num_values).into());
                self.n_values_left = left.ok_or_else(|| damaged("its pages have more values than the column"))?;
            }
            _ => {}
        }
        page.as_ref().map_or(Ok(()), |page| self.check_lengths(page))?;
        Ok(page)
    }

    /// Checks the number of lengths of strings, which the decoder trusts as well.
    fn check_lengths(&self, page: &Page) -> ParquetResult<()> {
        let n_sequences = match page.encoding() {
            Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
            // How much a string shares with the one before comes first.
            Encoding::DELTA_BYTE_ARRAY => 2,
            _ => return Ok(()),
        };
        let n_values = page.num_values().into();
        let unreadable = || damaged("the lengths of its values are damaged");
        let mut bytes = self.values(page).ok_or_else(unreadable)?;
        for _ in 0..n_sequences {
            let n = delta_sequence(&mut bytes, n_values).ok_or_else(unreadable)?;
            if n > n_values {
                return Err(damaged(&format!("a page of {n_values} values has the lengths of {n}")));
            }
        }
        Ok(())
    }

    /// Returns the bytes of a page behind its levels.
    fn values<'p>(&self, page: &'p Page) -> Option<&'p [u8]> {
        let (buf, num_values, encodings) = match page {
            Page::DataPage { buf, num_values, rep_level_encoding, def_level_encoding, .. } => {
                (buf, num_values, [rep_level_encoding, def_level_encoding])
            }
            Page::DataPageV2 { buf, rep_levels_byte_len, def_levels_byte_len, .. } => {
                return buf.get(rep_levels_byte_len.checked_add(*def_levels_byte_len)? as usize..);
            }
            Page::DictionaryPage { buf, .. } => return Some(buf),
        };
        let mut rest = &buf[..];
        for (max, encoding) in self.max_levels.into_iter().zip(encodings).filter(|&(max, _)| max > 0) {
            let length = match encoding {
                Encoding::RLE => 4 + u64::from(u32::from_le_bytes(*rest.first_chunk()?)),
                // Bits of fixed width: the decoder knows no other encoding.
                _ => (u64::from(*num_values) * u64::from(max.ilog2() + 1)).div_ceil(8),
            };
            rest = rest.get(usize::try_from(length).ok()?..)?;
        }
        Some(rest)
    }
}

impl<P: PageReader> Iterator for CheckedPages<P> {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<ParquetResult<Page>> {
        self.get_next_page().transpose()
    }
}

impl<P: PageReader> PageReader for CheckedPages<P> {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        let mut page = self.pages.get_next_page()?;
        if let (Some(page), Some(window)) = (&mut page, &self.gzip) {
            window.inflate(page)?;
        }
        self.check(page)
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> ParquetResult<bool> {
        self.pages.at_record_boundary()
    }
}

/// Removes a sequence of numbers in the encoding `DELTA_BINARY_PACKED` from the begin of bytes, and
/// returns their number. If there are more than `most`, only that is read.
fn delta_sequence(bytes: &mut &[u8], most: u64) -> Option<u64> {
    let number = |bytes: &mut &[u8]| take_varint(bytes).ok();
    let (block_size, n_parts, n) = (number(bytes)?, number(bytes)?, number(bytes)?);
    let _first = number(bytes)?;
    if n > most {
        return Some(n);
    }
    let part_size = block_size.checked_div(n_parts).filter(|&size| size > 0)?;
    // The first number is not in a block.
    let mut n_left = n.saturating_sub(1);
    while n_left > 0 {
        let _smallest_delta = number(bytes)?;
        let (widths, rest) = bytes.split_at_checked(usize::try_from(n_parts).ok()?)?;
        *bytes = rest;
        for width in widths {
            // Parts behind the last number have no bytes.
            if n_left > 0 {
                let n_bytes = u64::from(*width).checked_mul(part_size)? / 8;
                *bytes = bytes.get(usize::try_from(n_bytes).ok()?..)?;
                n_left = n_left.saturating_sub(part_size);
            }
        }
    }
    Some(n)
}

/// Returns how many bytes a codec can make of one byte, at most.
fn largest_ratio(codec: Compression) -> u64 {
    match codec {
        Compression::UNCOMPRESSED => 1,
        // Three bytes copy 64.
        Compression::SNAPPY => 22,
        // A byte adds 255 to the length of a copy.
        Compression::LZ4 | Compression::LZ4_RAW => 255,
        // Two bits copy 258.
        Compression::GZIP(_) => 4 * 258,
        // Four bytes are a block of 128 KiB.
        Compression::ZSTD(_) => 1 << 15,
        // A few bytes are a block of 16 MiB, and a block may be small.
        Compression::BROTLI(_) | Compression::LZO => u64::MAX,
    }
}

/// The bytes of a column in a file.
pub(super) struct FileWindow {
    begin: u64,
    bytes: Bytes,
    codec: Compression,
    /// The offset of the header of the next page.
    next: AtomicU64,
    /// The size after decompression that the header of the last page claims.
    claim: AtomicU64,
}

impl FileWindow {
    pub(super) fn new(begin: u64, bytes: Bytes, codec: Compression) -> FileWindow {
        FileWindow { begin, bytes, codec, next: begin.into(), claim: 0.into() }
    }

    /// Checks the size that the header of a page claims, whose compressed bytes are these: the
    /// decoder takes memory for it before it decompresses one.
    fn check_claim(&self, start: u64, length: u64) -> ParquetResult<()> {
        let unreadable = || damaged("the header of a page is damaged");
        let mut at = self.next.load(Ordering::Relaxed);
        let head = loop {
            let head = PageHead::read(&self.from(at)?).ok_or_else(unreadable)?;
            match at + head.length {
                body if head.page_type == INDEX_PAGE => at = body + head.compressed,
                body if body == start && head.compressed == length => break head,
                _ => return Err(unreadable()),
            }
        };
        let claim = head.uncompressed;
        if claim > length.saturating_mul(largest_ratio(self.codec)) {
            let what = format!("a page of {length} bytes cannot have {claim} bytes when it is decompressed");
            return Err(damaged(&what));
        }
        memory::check(claim.into()).map_err(|missing| damaged(&missing.to_string()))?;
        self.next.store(start + length, Ordering::Relaxed);
        self.claim.store(claim, Ordering::Relaxed);
        Ok(())
    }

    /// Decompresses the last page, which has these bytes behind its levels and is read without its
    /// codec: the crate decompresses all that there is, whatever the page claims.
    fn inflate(&self, page: &mut Page) -> ParquetResult<()> {
        let claim = self.claim.load(Ordering::Relaxed);
        let (buf, n_levels) = match page {
            Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } => (buf, 0),
            Page::DataPageV2 { is_compressed: false, .. } => return Ok(()),
            Page::DataPageV2 { buf, rep_levels_byte_len, def_levels_byte_len, .. } => {
                (buf, u64::from(*rep_levels_byte_len) + u64::from(*def_levels_byte_len))
            }
        };
        let wrong = || damaged(&format!("a page does not have {claim} bytes when it is decompressed"));
        let n_values = claim.checked_sub(n_levels).ok_or_else(wrong)?;
        let (levels, compressed) = buf.split_at_checked(n_levels as usize).ok_or_else(wrong)?;
        let mut inflated = Vec::with_capacity(claim as usize + 1);
        inflated.extend(levels);
        // A page of nulls may have no bytes at all.
        if n_values > 0 {
            MultiGzDecoder::new(compressed).take(n_values + 1).read_to_end(&mut inflated)?;
        }
        if inflated.len() as u64 != claim {
            return Err(wrong());
        }
        *buf = inflated.into();
        Ok(())
    }

    fn from(&self, start: u64) -> ParquetResult<Bytes> {
        let at = start.checked_sub(self.begin).and_then(|at| usize::try_from(at).ok());
        let at = at.filter(|&at| at <= self.bytes.len());
        at.map(|at| self.bytes.slice(at..)).ok_or_else(|| damaged(&format!("byte {start} is not in the column")))
    }
}

impl Length for FileWindow {
    fn len(&self) -> u64 {
        self.begin + self.bytes.len() as u64
    }
}

impl ChunkReader for FileWindow {
    type T = Cursor<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Cursor<Bytes>> {
        Ok(Cursor::new(self.from(start)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let bytes = self.from(start)?;
        if length > bytes.len() {
            return Err(damaged(&format!("{length} bytes at byte {start} are not in the column")));
        }
        if self.codec != Compression::UNCOMPRESSED {
            self.check_claim(start, length as u64)?;
        }
        Ok(bytes.slice(..length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::push_varint;
    use crate::{DataFile, DataStorage};
    use ::parquet::basic::GzipLevel;
    use ::parquet::data_type::{ByteArray, ByteArrayType};
    use ::parquet::file::metadata::{
        ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData,
    };
    use ::parquet::file::properties::{WriterProperties, WriterVersion};
    use ::parquet::file::writer::SerializedFileWriter;
    use ::parquet::schema::parser::parse_message_type;
    use ::parquet::schema::types::SchemaDescriptor;
    use flate2::write::GzEncoder;
    use serde::de::DeserializeOwned;
    use std::io::{self, Write};
    use std::path::Path;

    /// Pages that a test has made.
    struct GivenPages(std::vec::IntoIter<Page>);

    impl Iterator for GivenPages {
        type Item = ParquetResult<Page>;

        fn next(&mut self) -> Option<ParquetResult<Page>> {
            self.0.next().map(Ok)
        }
    }

    impl PageReader for GivenPages {
        fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
            Ok(self.0.next())
        }

        fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
            Ok(None)
        }

        fn skip_next_page(&mut self) -> ParquetResult<()> {
            Ok(())
        }
    }

    /// Returns the error of pages for 10 numbers of 4 bytes, or the number of pages.
    fn checked(pages: Vec<Page>) -> Result<usize, String> {
        let pages = GivenPages(pages.into_iter());
        let pages = CheckedPages { pages, n_values_left: 10, bytes_of_value: 4, max_levels: [0, 0], gzip: None };
        let pages: ParquetResult<Vec<Page>> = pages.collect();
        pages.map(|pages| pages.len()).map_err(|error| error.to_string())
    }

    #[test]
    fn pages_that_claim_more_values_than_they_can_have_are_refused() {
        let dictionary = |num_values: u32| Page::DictionaryPage {
            buf: Bytes::from_static(&[0; 12]),
            num_values,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        let data = |num_values: u32| Page::DataPage {
            buf: Bytes::from_static(&[0; 12]),
            num_values,
            encoding: Encoding::RLE_DICTIONARY,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        assert_eq!(checked(vec![dictionary(3), data(4), data(6)]), Ok(3));
        for n in [4, i32::MAX as u32, u32::MAX] {
            let error = checked(vec![dictionary(n)]).unwrap_err();
            assert!(error.contains(&format!("its dictionary of 12 bytes cannot have {n} values")), "{error}");
            let error = checked(vec![data(8), data(n)]).unwrap_err();
            assert!(error.contains("its pages have more values than the column"), "{error}");
        }
    }

    /// The bytes of a file.
    struct FileOfPages(Vec<u8>);

    impl DataStorage for FileOfPages {
        fn len(&self, _: &Path) -> io::Result<u64> {
            Ok(self.0.len() as u64)
        }

        fn open(&self, _: &Path, offset: u64) -> io::Result<Box<dyn Read + Send>> {
            Ok(Box::new(Cursor::new(self.0[offset as usize..].to_vec())))
        }
    }

    /// Returns the rows of a file, or their errors.
    fn rows<T: DeserializeOwned + Send + 'static>(bytes: Vec<u8>) -> Vec<Result<T, String>> {
        let file = DataFile::new(Arc::new(FileOfPages(bytes)), "a.parquet");
        super::super::rows([file]).iter().map(|row| row.map_err(|error| error.message)).collect()
    }

    /// Returns a file with a column `x` of as many strings, whose pages these are.
    fn file_of(repetition: &str, compression: Compression, n_values: i64, pages: &[u8]) -> Vec<u8> {
        let schema = parse_message_type(&format!("message a {{ {repetition} binary x (UTF8); }}")).unwrap();
        let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
        let column = ColumnChunkMetaData::builder(schema.column(0))
            .set_compression(compression)
            .set_num_values(n_values)
            .set_data_page_offset(4)
            .set_total_compressed_size(pages.len() as i64);
        let group = RowGroupMetaData::builder(schema.clone())
            .set_num_rows(n_values)
            .add_column_metadata(column.build().unwrap())
            .build();
        let file = FileMetaData::new(1, n_values, None, None, schema, None);
        let mut bytes = [b"PAR1", pages].concat();
        let metadata = ParquetMetaData::new(file, vec![group.unwrap()]);
        ParquetMetaDataWriter::new(&mut bytes, &metadata).finish().unwrap();
        bytes
    }

    const PLAIN: u64 = 0;
    const RLE: u64 = 3;
    const DELTA_LENGTH_BYTE_ARRAY: u64 = 6;
    const DELTA_BYTE_ARRAY: u64 = 7;

    /// Returns a page of the first version, whose header claims this many bytes.
    fn page(n_values: u64, encoding: u64, claim: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Each number is behind its type and the difference of its index in its struct.
        let numbers = |bytes: &mut Vec<u8>, values: &[u64]| {
            for value in values {
                bytes.push(0x15);
                push_varint(bytes, value << 1);
            }
        };
        numbers(&mut bytes, &[0, claim, body.len() as u64]);
        bytes.push(0x2c);
        numbers(&mut bytes, &[n_values, encoding, RLE, RLE]);
        bytes.extend([0, 0]);
        bytes.extend(body);
        bytes
    }

    /// Returns a page of the second version with a value.
    fn page_v2(encoding: u64, claim: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x15, 6, 0x15];
        push_varint(&mut bytes, claim << 1);
        bytes.push(0x15);
        push_varint(&mut bytes, (body.len() as u64) << 1);
        // The fields are values, nulls, rows, the encoding, and the bytes of levels.
        bytes.extend([0x5c, 0x15, 2, 0x15, 0, 0x15, 2, 0x15, encoding as u8 * 2, 0x15, 0, 0x15, 0, 0, 0]);
        bytes.extend(body);
        bytes
    }

    /// Returns the error of a file with one page, behind its place.
    fn error_of(repetition: &str, compression: Compression, page: &[u8]) -> String {
        let error = rows::<(Option<String>,)>(file_of(repetition, compression, 1, page)).remove(0).unwrap_err();
        let place = "`a.parquet`, row group 0, column `x`: Parquet error: ";
        error.strip_prefix(place).unwrap_or_else(|| panic!("{error}")).to_owned()
    }

    /// One length of 5, 2^40 lengths, and one of 0.
    const ONE: &[u8] = &[0x80, 1, 4, 1, 10];
    const MANY: &[u8] = &[0x80, 1, 4, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, 0];
    const ZERO: &[u8] = &[0x80, 1, 4, 1, 0];

    #[test]
    fn a_page_with_more_lengths_than_values_is_refused() {
        let read = |repetition: &str, encoding: u64, parts: &[&[u8]]| {
            let body = parts.concat();
            let page = page(1, encoding, body.len() as u64, &body);
            rows::<(Option<String>,)>(file_of(repetition, Compression::UNCOMPRESSED, 1, &page)).remove(0)
        };
        // A run of one level of 1, with its length.
        let levels: &[u8] = &[2, 0, 0, 0, 2, 1];
        for (repetition, levels) in [("required", &[][..]), ("optional", levels)] {
            let hello = Ok((Some("hello".to_owned()),));
            assert_eq!(read(repetition, PLAIN, &[levels, &[5, 0, 0, 0], b"hello"]), hello);
            assert_eq!(read(repetition, DELTA_LENGTH_BYTE_ARRAY, &[levels, ONE, b"hello"]), hello);
            assert_eq!(read(repetition, DELTA_BYTE_ARRAY, &[levels, ZERO, ONE, b"hello"]), hello);
            for (encoding, parts) in [
                (DELTA_LENGTH_BYTE_ARRAY, &[levels, MANY][..]),
                (DELTA_BYTE_ARRAY, &[levels, MANY]),
                (DELTA_BYTE_ARRAY, &[levels, ZERO, MANY]),
            ] {
                let body = parts.concat();
                let page = page(1, encoding, body.len() as u64, &body);
                let error = error_of(repetition, Compression::UNCOMPRESSED, &page);
                assert_eq!(error, "a page of 1 values has the lengths of 1099511627776");
            }
        }
    }

    #[test]
    fn pages_that_the_crate_has_written_pass_the_checks() {
        type Row = Option<Vec<Option<String>>>;
        let string = |i: usize, k: usize| match i {
            1002 => "a".repeat(1 << 20),
            _ => format!("{}{i}.{k}", "row ".repeat(i % 40)),
        };
        let element = |i: usize, k: usize| (!(i + k).is_multiple_of(5) || i == 1002).then(|| string(i, k));
        let row = |i: usize| (!i.is_multiple_of(11)).then(|| (0..i % 4).map(|k| element(i, k)).collect());
        let expected: Vec<Result<(Row,), String>> = (0..3000).map(|i| Ok((row(i),))).collect();
        let (mut strings, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
        for row in expected.iter().map(|row| &row.as_ref().unwrap().0) {
            let elements = row.as_deref().unwrap_or_default();
            strings.extend(elements.iter().flatten().map(|x| ByteArray::from(x.as_str())));
            definitions.extend(elements.iter().map(|x| 2 + i16::from(x.is_some())));
            definitions.extend(elements.is_empty().then_some(i16::from(row.is_some())));
            repetitions.extend((0..elements.len().max(1)).map(|k| i16::from(k > 0)));
        }
        let schema = "message a { optional group x (LIST) { repeated group list {
            optional binary element (UTF8);
        } } }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let codecs = [Compression::UNCOMPRESSED, Compression::SNAPPY, GZIP(), Compression::LZ4, Compression::LZ4_RAW];
        let encodings = [Encoding::PLAIN, Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY];
        for (i, (codec, encoding)) in codecs.iter().flat_map(|codec| encodings.map(|of| (*codec, of))).enumerate() {
            let version = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0][i % 2];
            let properties = WriterProperties::builder()
                .set_writer_version(version)
                .set_compression(codec)
                .set_encoding(encoding)
                .set_dictionary_enabled(encoding == Encoding::PLAIN)
                .set_write_page_header_statistics(true)
                .set_data_page_row_count_limit(700)
                .set_write_batch_size(300)
                .build();
            let mut bytes = Vec::new();
            let mut file = SerializedFileWriter::new(&mut bytes, schema.clone(), Arc::new(properties)).unwrap();
            let mut group = file.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let writer = column.typed::<ByteArrayType>();
            writer.write_batch(&strings, Some(&definitions), Some(&repetitions)).unwrap();
            column.close().unwrap();
            group.close().unwrap();
            file.close().unwrap();
            assert!(rows::<(Row,)>(bytes) == expected, "{codec} {encoding} {version:?}");
        }
    }

    const GZIP: fn() -> Compression = || Compression::GZIP(GzipLevel::default());

    #[test]
    fn a_page_that_claims_more_bytes_than_its_codec_can_make_is_refused() {
        let claim = i32::MAX as u64;
        for codec in [Compression::SNAPPY, Compression::LZ4, Compression::LZ4_RAW, GZIP()] {
            for version in [1, 2] {
                let page = match version {
                    1 => page(1, PLAIN, claim, &[1, 2, 3, 4]),
                    _ => page_v2(PLAIN, claim, &[1, 2, 3, 4]),
                };
                let error = error_of("required", codec, &page);
                assert_eq!(error, "a page of 4 bytes cannot have 2147483647 bytes when it is decompressed", "{codec}");
            }
        }
        let body = [&[5, 0, 0, 0][..], b"hello"].concat();
        let read = |pages: &[u8]| rows::<(String,)>(file_of("required", Compression::UNCOMPRESSED, 1, pages)).remove(0);
        assert_eq!(read(&page(1, PLAIN, claim, &body)), Ok(("hello".to_owned(),)), "it is not compressed");
        // Pages that are indices are stepped over.
        let index = [0x15, 2, 0x15, 200, 1, 0x15, 6, 0, 9, 9, 9];
        let pages = [&index[..], &index, &page(1, PLAIN, claim, &[1, 2, 3, 4])].concat();
        let error = error_of("required", Compression::SNAPPY, &pages);
        assert!(error.starts_with("a page of 4 bytes cannot have 2147483647 bytes"), "{error}");
        // The decoder takes a long integer for a short one.
        let mut odd = page(1, PLAIN, 9, &body);
        odd[7] = 0x16;
        assert_eq!(read(&odd), Ok(("hello".to_owned(),)));
        assert_eq!(error_of("required", Compression::SNAPPY, &odd), "the header of a page is damaged");
    }

    #[test]
    fn a_gzip_page_is_decompressed_up_to_the_size_that_it_claims() {
        let gzip = |bytes: &[u8]| {
            let mut to = GzEncoder::new(Vec::new(), flate2::Compression::best());
            to.write_all(bytes).unwrap();
            to.finish().unwrap()
        };
        let body = [&[5, 0, 0, 0][..], b"hello"].concat();
        // Several members are one stream.
        for bytes in [gzip(&body), [gzip(&body[..3]), gzip(&body[3..])].concat()] {
            for page in [page(1, PLAIN, 9, &bytes), page_v2(PLAIN, 9, &bytes)] {
                assert_eq!(rows::<(String,)>(file_of("required", GZIP(), 1, &page)), [Ok(("hello".to_owned(),))]);
            }
        }
        let zeros = gzip(&vec![0; 1 << 20]);
        for (claim, bytes) in [(1000, &zeros), (10, &gzip(&body))] {
            let error = error_of("required", GZIP(), &page(1, PLAIN, claim, bytes));
            assert_eq!(error, format!("a page does not have {claim} bytes when it is decompressed"));
        }
    }
}
