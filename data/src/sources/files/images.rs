//! Pictures: PNG and JPEG, by the crate `image`, which is Rust alone.
//!
//! With the feature `turbojpeg` most JPEG files are decoded by libjpeg-turbo, a library in C that
//! is built from its source. Pixels of the two decoders may differ by rounding, and it refuses
//! some damaged files that the other one repairs.

#[cfg(feature = "turbojpeg")]
mod turbo;

use super::read_all;
use crate::{DataFile, Dataset};
use anabranch_dsl::{Array, Diagnostic, Result};
use image::{DynamicImage, ImageReader, Limits};
use std::fmt::Display;
use std::io::Cursor;

/// The maximum memory of a decoded picture, in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// Returns pictures as arrays of the shape `[height, width, 3]`: red, green and blue from 0 to 255.
///
/// # Errors
/// Returns an error if the bytes are no PNG or JPEG, are damaged, or if the picture has more than
/// 1 GiB.
///
/// ```
/// use anabranch::data::images;
///
/// let error = images::decode(b"GIF89a").unwrap_err();
/// assert!(error.message.contains("cannot be decoded"));
/// ```
pub fn decode(bytes: &[u8]) -> Result<Array<u8>> {
    #[cfg(feature = "turbojpeg")]
    if let Some(decoded) = turbo::decode(bytes, turbojpeg::PixelFormat::RGB) {
        return decoded;
    }
    let picture = open(bytes)?.into_rgb8();
    let shape = [picture.height() as usize, picture.width() as usize, 3];
    Array::try_new(shape, picture.into_raw())
}

/// Returns pictures like [`decode`], as shades of gray of the shape `[height, width, 1]`.
///
/// # Errors
/// Returns the errors of [`decode`].
pub fn decode_gray(bytes: &[u8]) -> Result<Array<u8>> {
    #[cfg(feature = "turbojpeg")]
    if let Some(decoded) = turbo::decode(bytes, turbojpeg::PixelFormat::GRAY) {
        return decoded;
    }
    let picture = open(bytes)?.into_luma8();
    let shape = [picture.height() as usize, picture.width() as usize, 1];
    Array::try_new(shape, picture.into_raw())
}

/// Returns the pictures of files like [`decode`], with access by index. Decode them on several
/// threads with [`Dataset::prefetch`].
pub fn files(files: impl IntoIterator<Item = impl Into<DataFile>>) -> Dataset<Array<u8>> {
    let files: Vec<DataFile> = files.into_iter().map(Into::into).collect();
    Dataset::from_fn("pictures", files.len() as u64, move |i| {
        let file = &files[i as usize];
        decode(&read_all(file)?).map_err(|error| file.broken("the picture", error.message))
    })
}

fn open(bytes: &[u8]) -> Result<DynamicImage> {
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(failed)?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(MAX_BYTES);
    reader.limits(limits);
    let picture = reader.decode().map_err(failed)?;
    // The decoder makes up what is missing.
    if bytes.starts_with(&START_OF_JPEG) && !jpeg_has_end(bytes) {
        return Err(failed("the file ends before the picture does"));
    }
    Ok(picture)
}

/// The marker at the begin of JPEG files.
const START_OF_JPEG: [u8; 2] = [0xFF, 0xD8];

/// Returns whether a JPEG file has the marker of its end behind its first scan, or behind segments
/// that are not as they should be. Compressed data never has these bytes; a preview in a segment
/// before may have.
fn jpeg_has_end(bytes: &[u8]) -> bool {
    let mut rest = &bytes[START_OF_JPEG.len()..];
    // Each segment has a marker and a length, which counts itself.
    while let [0xFF, marker, high, low, ..] = *rest
        && marker != 0xDA
    {
        // Markers may have more bytes of 0xFF before them.
        let skipped = if marker == 0xFF { 1 } else { 2 + usize::from(u16::from_be_bytes([high, low])) };
        rest = rest.get(skipped..).unwrap_or_default();
    }
    rest.windows(2).rev().any(|pair| pair == [0xFF, 0xD9])
}

fn failed(error: impl Display) -> Diagnostic {
    Diagnostic::new(format!("a picture cannot be decoded: {error}"))
}
