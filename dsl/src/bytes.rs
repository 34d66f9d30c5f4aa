//! Strings of bytes: the elements of a `Tensor<Bytes>`.
//!
//! A string is an arbitrary sequence of bytes, as file names, records and text are. Text is UTF-8
//! by convention only: no operation checks it unless its documentation says so.

use std::borrow::Borrow;
use std::fmt::{self, Write};
use std::ops::{Bound, Deref, RangeBounds};
use std::sync::Arc;

/// A string of bytes: immutable, and cheap to clone and to slice, since it shares its memory.
///
/// Many strings can share one block of memory: the records of a file are slices of what was read
/// from it. A short slice keeps the whole block in memory; [`compact`](Self::compact) copies it to
/// memory of its own.
///
/// Strings are ordered by their bytes, as in Rust and as UTF-8 orders its characters.
///
/// ```
/// use anabranch::Bytes;
///
/// let line = Bytes::from("name,age");
/// let name = line.slice(..4);
/// assert_eq!(name, "name");
/// assert_eq!(name.len(), 4);
/// assert_eq!(format!("{name} {name:?}"), r#"name b"name""#);
/// assert!(Bytes::from("a") < Bytes::from("b"));
/// ```
#[derive(Clone, Default)]
pub struct Bytes {
    /// The memory with the bytes. The empty string has none.
    block: Option<Arc<Vec<u8>>>,
    start: usize,
    len: usize,
}

impl Bytes {
    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], |block| &block[self.start..self.start + self.len])
    }

    /// Returns the bytes as text, if they are UTF-8.
    ///
    /// # Errors
    /// Fails with the position of the first byte that is not part of UTF-8.
    pub fn to_str(&self) -> Result<&str, std::str::Utf8Error> {
        std::str::from_utf8(self.as_slice())
    }

    /// Returns a part of the string, in shared memory.
    ///
    /// # Panics
    /// Panics if the range is not within the string.
    #[must_use]
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Bytes {
        let start = match range.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&n) => n + 1,
            Bound::Excluded(&n) => n,
            Bound::Unbounded => self.len,
        };
        assert!(start <= end && end <= self.len, "{start}..{end} is not within a string of {} bytes", self.len);
        let block = self.block.clone().filter(|_| start < end);
        Bytes { block, start: self.start + start, len: end - start }
    }

    /// Appends strings in the form that travels to other processes: the length of each as a
    /// little-endian `u64`, then the bytes of all.
    #[doc(hidden)]
    pub fn pack(strings: &[Bytes], to: &mut Vec<u8>) {
        to.extend(strings.iter().flat_map(|s| (s.len as u64).to_le_bytes()));
        strings.iter().for_each(|s| to.extend_from_slice(s));
    }

    /// Returns the first `n` strings that were [packed](Self::pack), in one block of memory, and
    /// the bytes behind them, or `None` if there are fewer.
    #[doc(hidden)]
    pub fn unpack(n: usize, from: &[u8]) -> Option<(Vec<Bytes>, &[u8])> {
        let (lengths, rest) = from.split_at_checked(n.checked_mul(8)?)?;
        let lengths = lengths.as_chunks().0.iter().map(|&len| usize::try_from(u64::from_le_bytes(len)));
        let lengths: Vec<usize> = lengths.collect::<Result<_, _>>().ok()?;
        let all = lengths.iter().try_fold(0usize, |sum, &len| sum.checked_add(len))?;
        let (block, rest) = rest.split_at_checked(all)?;
        let block = Bytes::from(block);
        let mut start = 0;
        let next = |len: usize| {
            start += len;
            block.slice(start - len..start)
        };
        Some((lengths.into_iter().map(next).collect(), rest))
    }

    /// Returns equal strings in one block of memory, if these keep much more in memory than their
    /// own bytes: more than twice as many, and 1 KiB.
    #[doc(hidden)]
    pub fn compact_all(strings: &[Bytes]) -> Option<Vec<Bytes>> {
        const SLACK: usize = 1 << 10;
        let used: usize = strings.iter().map(|s| s.len).sum();
        (Bytes::kept_bytes(strings) > 2 * used + SLACK).then(|| {
            let mut all = Vec::with_capacity(used);
            strings.iter().for_each(|s| all.extend_from_slice(s));
            let (block, mut start) = (Bytes::from(all), 0);
            let next = |s: &Bytes| {
                start += s.len;
                block.slice(start - s.len..start)
            };
            strings.iter().map(next).collect()
        })
    }

    /// Returns the size of the blocks of memory that strings keep.
    pub(crate) fn kept_bytes(strings: &[Bytes]) -> usize {
        let mut blocks: Vec<(usize, usize)> = Vec::new();
        for block in strings.iter().filter_map(|s| s.block.as_ref()) {
            let entry = (Arc::as_ptr(block) as usize, block.capacity());
            // Strings that were made together have one block, whatever their number is.
            if blocks.last() != Some(&entry) {
                blocks.push(entry);
            }
        }
        blocks.sort_unstable();
        blocks.dedup();
        blocks.iter().map(|(_, n)| n).sum()
    }

    /// Returns an equal string that keeps no other bytes in memory than its own.
    #[must_use]
    pub fn compact(&self) -> Bytes {
        match &self.block {
            Some(block) if block.len() > self.len => Bytes::from(self.as_slice()),
            _ => self.clone(),
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Borrow<[u8]> for Bytes {
    fn borrow(&self) -> &[u8] {
        self.as_slice()
    }
}

impl From<Vec<u8>> for Bytes {
    /// Takes the memory of the vector.
    fn from(bytes: Vec<u8>) -> Bytes {
        let len = bytes.len();
        Bytes { block: (len > 0).then(|| Arc::new(bytes)), start: 0, len }
    }
}
impl From<String> for Bytes {
    fn from(text: String) -> Bytes {
        Bytes::from(text.into_bytes())
    }
}
impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Bytes {
        Bytes::from(bytes.to_vec())
    }
}
impl<const N: usize> From<[u8; N]> for Bytes {
    fn from(bytes: [u8; N]) -> Bytes {
        Bytes::from(bytes.to_vec())
    }
}
impl<const N: usize> From<&[u8; N]> for Bytes {
    fn from(bytes: &[u8; N]) -> Bytes {
        Bytes::from(bytes.as_slice())
    }
}
impl From<&str> for Bytes {
    fn from(text: &str) -> Bytes {
        Bytes::from(text.as_bytes())
    }
}
impl From<&String> for Bytes {
    fn from(text: &String) -> Bytes {
        Bytes::from(text.as_bytes())
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        self.as_slice() == other.as_slice()
    }
}
impl Eq for Bytes {}
impl PartialEq<str> for Bytes {
    fn eq(&self, other: &str) -> bool {
        self.as_slice() == other.as_bytes()
    }
}
impl PartialEq<&str> for Bytes {
    fn eq(&self, other: &&str) -> bool {
        self == *other
    }
}
impl PartialEq<[u8]> for Bytes {
    fn eq(&self, other: &[u8]) -> bool {
        self.as_slice() == other
    }
}
impl<const N: usize> PartialEq<&[u8; N]> for Bytes {
    fn eq(&self, other: &&[u8; N]) -> bool {
        self.as_slice() == *other
    }
}

impl PartialOrd for Bytes {
    fn partial_cmp(&self, other: &Bytes) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Bytes {
    fn cmp(&self, other: &Bytes) -> std::cmp::Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl std::hash::Hash for Bytes {
    /// Hashes as `[u8]` does.
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

/// Writes the text. A byte that is not part of UTF-8 is written as `\xff`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.utf8_chunks() {
            f.write_str(part.valid())?;
            part.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

/// Writes a byte string of Rust: `b"a\n\xff"`.
impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("b\"")?;
        self.iter().try_for_each(|byte| match byte {
            // Only a character would need it.
            b'\'' => f.write_char('\''),
            byte => write!(f, "{}", byte.escape_ascii()),
        })?;
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_memory_and_compact_strings_do_not() {
        let whole = Bytes::from("one two three");
        let part = whole.slice(4..7);
        assert_eq!(part, "two");
        assert_eq!(part.as_ptr(), whole[4..].as_ptr());
        assert_ne!(part.compact().as_ptr(), part.as_ptr());
        assert_eq!(whole.compact().as_ptr(), whole.as_ptr());
        assert_eq!(part.slice(1..=1), "w");
        assert_eq!(part.slice(3..), "");
    }

    #[test]
    fn strings_that_keep_much_memory_are_copied_to_one_block() {
        let whole = Bytes::from("one two three ".repeat(1000));
        let parts = [whole.slice(4..7), Bytes::default(), whole.slice(8..13)];
        let compact = Bytes::compact_all(&parts).expect("they keep 14,000 bytes");
        assert_eq!(compact, parts);
        assert_eq!(compact[2].as_ptr(), compact[0].as_ptr().wrapping_add(3), "one block");
        assert_eq!(compact[0].block.as_ref().map(|block| block.capacity()), Some(8));
        assert_eq!(Bytes::compact_all(&compact), None);
        // Two halves of a block keep nothing else.
        assert_eq!(Bytes::compact_all(&[whole.slice(..7000), whole.slice(7000..)]), None);
    }

    #[test]
    #[should_panic(expected = "2..4 is not within a string of 3 bytes")]
    fn a_range_beyond_the_end_is_refused() {
        let _ = Bytes::from("abc").slice(2..4);
    }

    #[test]
    fn packed_strings_are_unpacked_and_cut_ones_are_not() {
        let strings = ["one", "", "three"].map(Bytes::from);
        let mut packed = Vec::new();
        Bytes::pack(&strings, &mut packed);
        packed.push(7);
        let (again, rest) = Bytes::unpack(3, &packed).unwrap();
        assert_eq!((&again[..], rest), (&strings[..], &[7][..]));
        assert_eq!(again[2].as_ptr(), again[0][..].as_ptr().wrapping_add(3), "one block");
        for len in 0..packed.len() - 1 {
            assert_eq!(Bytes::unpack(3, &packed[..len]), None, "{len} bytes");
        }
        packed[7] = 0xff;
        assert_eq!(Bytes::unpack(3, &packed), None, "a length beyond any memory");
        assert_eq!(Bytes::unpack(usize::MAX, &packed), None);
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_escaped() {
        let x = Bytes::from(b"a\xff\xc3\xa9'\"\n");
        assert_eq!(format!("{x}"), "a\\xff\u{e9}'\"\n");
        assert_eq!(format!("{x:?}"), r#"b"a\xff\xc3\xa9'\"\n""#);
    }
}
