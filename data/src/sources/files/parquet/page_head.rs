//! The headers of pages: structs in the compact protocol of Thrift, of which only the sizes are
//! needed. The decoder reads them as well, but takes memory at once for the size that one claims.
//!
//! Headers that the decoder could read otherwise are refused: it takes a number for one whatever
//! its type is.

use crate::protobuf::take_varint;

/// The type of a page that is an index, which the decoder steps over.
pub(super) const INDEX_PAGE: i32 = 1;

/// The header of a page, as far as it is needed.
#[derive(Debug, PartialEq)]
pub(super) struct PageHead {
    pub(super) page_type: i32,
    /// The number of bytes after decompression, and that in the file.
    pub(super) uncompressed: u64,
    pub(super) compressed: u64,
    /// The number of bytes of the header.
    pub(super) length: u64,
}

/// Types of fields.
mod types {
    pub(super) const END: u8 = 0;
    pub(super) const BYTE: u8 = 3;
    pub(super) const I32: u8 = 5;
    pub(super) const I64: u8 = 6;
    pub(super) const DOUBLE: u8 = 7;
    pub(super) const BINARY: u8 = 8;
    pub(super) const STRUCT: u8 = 12;
}

/// The number of leading fields that are numbers in each struct of a header: of the fields 5 to 8
/// these are the headers of data, indices, dictionaries, and data of the second version.
const N_NUMBERS: [i16; 4] = [4, 0, 2, 6];

/// The structs in a struct, at most.
const MAX_DEPTH: usize = 16;

impl PageHead {
    /// Reads the header at the begin of bytes. Returns `None` if there is none.
    pub(super) fn read(bytes: &[u8]) -> Option<PageHead> {
        let (mut rest, mut last, mut numbers) = (bytes, 0, [None; 4]);
        loop {
            match next_field(&mut rest, &mut last)? {
                (_, types::END) => break,
                (id @ 1..=4, types::I32) => numbers[id as usize - 1] = Some(take_i32(&mut rest)?),
                (id @ 5..=8, types::STRUCT) => skip_struct(&mut rest, N_NUMBERS[id as usize - 5], MAX_DEPTH)?,
                (1..=8, _) => return None,
                (_, kind) => skip(&mut rest, kind, MAX_DEPTH)?,
            }
        }
        let [page_type, uncompressed, compressed, _checksum] = numbers;
        Some(PageHead {
            page_type: page_type?,
            uncompressed: uncompressed?.try_into().ok()?,
            compressed: compressed?.try_into().ok()?,
            length: (bytes.len() - rest.len()) as u64,
        })
    }
}

/// Returns the id and the type of the next field. `last` is the id of the one before.
fn next_field(bytes: &mut &[u8], last: &mut i16) -> Option<(i16, u8)> {
    let head = take_byte(bytes)?;
    match (head >> 4, head & 15) {
        (_, types::END) => return Some((0, types::END)),
        (0, _) => *last = take_i32(bytes)? as i16,
        (difference, _) => *last = last.checked_add(difference.into())?,
    }
    Some((*last, head & 15))
}

fn skip_struct(bytes: &mut &[u8], n_numbers: i16, depth: usize) -> Option<()> {
    let (mut last, depth) = (0, depth.checked_sub(1)?);
    loop {
        match next_field(bytes, &mut last)? {
            (_, types::END) => return Some(()),
            (id, kind) if (1..=n_numbers).contains(&id) && kind != types::I32 => return None,
            (_, kind) => skip(bytes, kind, depth)?,
        }
    }
}

/// Steps over a value. Headers have no lists and maps.
fn skip(bytes: &mut &[u8], kind: u8, depth: usize) -> Option<()> {
    let n_bytes = match kind {
        // The type of a `bool` is its value.
        1 | 2 => 0,
        types::BYTE => 1,
        4..=types::I64 => return take_varint(bytes).ok().map(drop),
        types::DOUBLE => 8,
        types::BINARY => usize::try_from(take_varint(bytes).ok()?).ok()?,
        types::STRUCT => return skip_struct(bytes, 0, depth),
        _ => return None,
    };
    *bytes = bytes.get(n_bytes..)?;
    Some(())
}

fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

/// Removes a number whose sign is in its lowest bit.
fn take_i32(bytes: &mut &[u8]) -> Option<i32> {
    let bits = take_varint(bytes).ok()?;
    Some(((bits >> 1) as i64 ^ -((bits & 1) as i64)) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_can_be_read_in_two_ways_are_none() {
        let numbers = [0x15, 0, 0x15, 20, 0x15, 10];
        let head = PageHead { page_type: 0, uncompressed: 10, compressed: 5, length: 17 };
        // Behind them a struct of four numbers, with statistics.
        let data = |inner: &[u8]| [&numbers[..], &[0x2c], inner, &[0]].concat();
        let fields = [0x15, 2, 0x15, 0, 0x15, 6, 0x15, 6, 0];
        let plain = [&data(&fields)[..], b"the page"].concat();
        assert_eq!(PageHead::read(&plain), Some(head));
        let statistics = [0x15, 2, 0x15, 0, 0x15, 6, 0x15, 6, 0x1c, 0x18, 2, b'a', b'b', 0x26, 9, 0x51, 0, 0];
        assert_eq!(PageHead::read(&data(&statistics)).unwrap().length, 26);
        for cut in 0..17 {
            assert_eq!(PageHead::read(&plain[..cut]), None, "{cut} bytes");
        }
        // The later one of two equal fields counts, and a number may come with its whole id.
        let twice = [&numbers[..], &[0x05, 4, 40, 0]].concat();
        assert_eq!(PageHead::read(&twice).unwrap().uncompressed, 20);
        // Texts in the place of numbers, in the header and in its struct, a list, a negative size,
        // and a missing one.
        for odd in [
            &[0x15, 0, 0x18, 1, b'a', 0x15, 10, 0][..],
            &data(&[0x18, 1, b'a', 0]),
            &data(&[0x19, 0, 0]),
            &[0x15, 0, 0x15, 21, 0x15, 10, 0],
            &[0x15, 0, 0x15, 20, 0],
        ] {
            assert_eq!(PageHead::read(odd), None, "{odd:?}");
        }
        let deep = data(&[&[0x5c; 100][..], &[0; 101]].concat());
        assert_eq!(PageHead::read(&deep), None);
    }
}
