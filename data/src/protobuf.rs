//! Messages of Protocol Buffers as bytes: the few parts of the encoding that the formats of
//! TensorFlow need.
//!
//! The encoding is that of <https://protobuf.dev/programming-guides/encoding>.

/// Appends a number of variable length.
pub fn push_varint(bytes: &mut Vec<u8>, mut x: u64) {
    while x >= 0x80 {
        bytes.push(x as u8 | 0x80);
        x >>= 7;
    }
    bytes.push(x as u8);
}

/// Appends a field of bytes: a message, a text, or packed numbers.
pub fn push_field(to: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    push_varint(to, number << 3 | 2);
    push_varint(to, bytes.len() as u64);
    to.extend(bytes);
}

/// Appends a field that is an integer, a `bool` or a value of an enumeration.
pub fn push_number(to: &mut Vec<u8>, number: u64, value: u64) {
    push_varint(to, number << 3);
    push_varint(to, value);
}

/// Appends a field that is an `f64`.
pub fn push_double(to: &mut Vec<u8>, number: u64, value: f64) {
    push_varint(to, number << 3 | 1);
    to.extend(value.to_le_bytes());
}

/// The bytes are not a message.
#[derive(Debug)]
pub struct Damaged;

/// The result of parsing.
pub type Parsed<T> = Result<T, Damaged>;

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub enum WireValue<'a> {
    /// A number of variable length.
    Varint(u64),
    /// Eight bytes.
    Fixed64([u8; 8]),
    /// A message, a text, bytes, or packed numbers.
    Bytes(&'a [u8]),
    /// Four bytes.
    Fixed32([u8; 4]),
}

/// Calls `field` for each field of a message.
///
/// # Errors
/// Fails if the bytes are not a message, and with the errors of `field`.
pub fn parse_fields(mut bytes: &[u8], mut field: impl FnMut(u64, WireValue<'_>) -> Parsed<()>) -> Parsed<()> {
    while !bytes.is_empty() {
        let key = take_varint(&mut bytes)?;
        let value = match key & 7 {
            0 => WireValue::Varint(take_varint(&mut bytes)?),
            1 => WireValue::Fixed64(take(&mut bytes, 8)?.try_into().map_err(|_| Damaged)?),
            2 => {
                let length = usize::try_from(take_varint(&mut bytes)?).map_err(|_| Damaged)?;
                WireValue::Bytes(take(&mut bytes, length)?)
            }
            5 => WireValue::Fixed32(take(&mut bytes, 4)?.try_into().map_err(|_| Damaged)?),
            _ => return Err(Damaged),
        };
        field(key >> 3, value)?;
    }
    Ok(())
}

fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Parsed<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(n).ok_or(Damaged)?;
    *bytes = rest;
    Ok(taken)
}

/// Removes a number of variable length from the begin of bytes.
///
/// # Errors
/// Fails if there is none.
pub fn take_varint(bytes: &mut &[u8]) -> Parsed<u64> {
    let mut x = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        x |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(x);
        }
    }
    Err(Damaged)
}
