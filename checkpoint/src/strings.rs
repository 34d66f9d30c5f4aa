//! Variables of strings in files, whose format has no strings.
//!
//! A variable of strings at the path `x` is two tensors: `x/data` has the bytes of all strings one
//! after the other, and `x/offsets`, in the shape of the variable, has for each string the offset
//! behind its last byte.

use anabranch_dsl::{Buffer, Bytes, DType, HostTensor, Result};
use anabranch_runtime::Snapshot;

/// Returns the names of the two tensors of a variable of strings: the bytes, and the offsets.
pub(crate) fn names_of(path: &str) -> [String; 2] {
    [format!("{path}/data"), format!("{path}/offsets")]
}

/// Returns the variable of strings that a tensor of this name would be a part of.
pub(crate) fn owner_of(name: &str) -> Option<&str> {
    name.strip_suffix("/data").or_else(|| name.strip_suffix("/offsets"))
}

/// Returns the bytes and the offsets of a tensor of strings.
pub(crate) fn parts(strings: &HostTensor) -> [HostTensor; 2] {
    let (mut data, mut offsets) = (Vec::new(), Vec::new());
    for string in strings.data::<Bytes>() {
        data.extend_from_slice(string);
        offsets.push(data.len() as i64);
    }
    [HostTensor::new([data.len()], data), HostTensor::new(strings.shape(), offsets)]
}

/// Returns the strings of bytes and offsets, or what is wrong with these.
pub(crate) fn joined(data: &HostTensor, offsets: &HostTensor) -> Result<HostTensor, String> {
    let block = Bytes::from(data.as_slice::<u8>().ok_or("its bytes are not of type u8")?);
    let mut start = 0;
    let mut next = |&end: &i64| match usize::try_from(end) {
        Ok(end) if (start..=block.len()).contains(&end) => Ok(block.slice(std::mem::replace(&mut start, end)..end)),
        _ => Err(format!("the offset {end} is not between {start} and {}", block.len())),
    };
    let offsets_of = offsets.as_slice::<i64>().ok_or("its offsets are not of type i64")?;
    let strings = offsets_of.iter().map(&mut next).collect::<Result<Vec<_>, _>>()?;
    if start != block.len() {
        return Err(format!("the offsets end at {start}, and the bytes at {}", block.len()));
    }
    Ok(HostTensor::from_buffer(offsets.shape().to_vec(), Buffer::Bytes(strings)))
}

/// A tensor that is written to a file.
pub(crate) struct StoredTensor {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
    value: ValueSource,
}

enum ValueSource {
    /// The value in a snapshot with this number. It is taken when it is written.
    InSnapshot(usize),
    /// A part of a variable of strings.
    Taken(HostTensor),
}

impl StoredTensor {
    /// Returns the tensors that stand for variables, given by path, element type and shape in the
    /// order of a snapshot. Strings are taken from it, because their sizes are part of the layout.
    pub fn all(
        vars: impl IntoIterator<Item = (String, DType, Vec<usize>)>,
        snapshot: &mut Snapshot,
    ) -> Result<Vec<StoredTensor>> {
        let mut all = Vec::new();
        for (i, (name, dtype, shape)) in vars.into_iter().enumerate() {
            if dtype.is_plain() {
                all.push(StoredTensor { name, dtype, shape, value: ValueSource::InSnapshot(i) });
                continue;
            }
            for (name, part) in names_of(&name).into_iter().zip(parts(&snapshot.take(i)?)) {
                let (dtype, shape) = (part.dtype(), part.shape().to_vec());
                all.push(StoredTensor { name, dtype, shape, value: ValueSource::Taken(part) });
            }
        }
        Ok(all)
    }

    /// Returns the name, the element type and the shape.
    pub fn ty(&self) -> (&str, DType, &[usize]) {
        (&self.name, self.dtype, &self.shape)
    }

    /// Returns the value.
    pub fn take(&self, snapshot: &mut Snapshot) -> Result<HostTensor> {
        match &self.value {
            ValueSource::InSnapshot(i) => snapshot.take(*i),
            ValueSource::Taken(part) => Ok(part.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_bytes_and_offsets_and_again_strings() {
        let strings = HostTensor::new([2, 2], ["one", "", "\u{e9}", "\0"].map(Bytes::from).to_vec());
        let [data, offsets] = parts(&strings);
        assert_eq!(data, HostTensor::new([6], b"one\xc3\xa9\0".to_vec()));
        assert_eq!(offsets, HostTensor::new([2, 2], vec![3i64, 3, 5, 6]));
        assert_eq!(joined(&data, &offsets), Ok(strings));
    }

    #[test]
    fn wrong_offsets_are_errors() {
        let of = |offsets: &[i64]| {
            let data = HostTensor::new([3], b"abc".to_vec());
            joined(&data, &HostTensor::new([offsets.len()], offsets.to_vec())).unwrap_err()
        };
        assert_eq!(of(&[2, 1]), "the offset 1 is not between 2 and 3");
        assert_eq!(of(&[4]), "the offset 4 is not between 0 and 3");
        assert_eq!(of(&[-1]), "the offset -1 is not between 0 and 3");
        assert_eq!(of(&[1, 2]), "the offsets end at 2, and the bytes at 3");
        assert_eq!(of(&[]), "the offsets end at 0, and the bytes at 3");
    }
}
