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
use image::{DynamicImage, ImageDecoder, ImageReader, Limits};
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
    let picture = open(bytes, 3)?.into_rgb8();
    let shape = [picture.height() as usize, picture.width() as usize, 3];
    Array::try_new(shape, picture.into_raw())
}

/// Returns pictures like [`decode`], as shades of gray of the shape `[height, width, 1]`. The shade
/// of a color is 0.299 of its red, 0.587 of its green and 0.114 of its blue, as in JPEG files and
/// in the mode `L` of PIL.
///
/// # Errors
/// Returns the errors of [`decode`].
pub fn decode_gray(bytes: &[u8]) -> Result<Array<u8>> {
    #[cfg(feature = "turbojpeg")]
    if let Some(decoded) = turbo::decode(bytes, turbojpeg::PixelFormat::GRAY) {
        return decoded;
    }
    let picture = open(bytes, 1)?;
    let shape = [picture.height() as usize, picture.width() as usize, 1];
    let shades = match picture.color().has_color() {
        true => picture.into_rgb8().as_raw().as_chunks().0.iter().map(shade).collect(),
        false => picture.into_luma8().into_raw(),
    };
    Array::try_new(shape, shades)
}

/// Returns the shade of gray of a color. The factors are those of JPEG files times 2^16, and their
/// sum is 2^16. The crate `image` has those of linear light.
fn shade(&[r, g, b]: &[u8; 3]) -> u8 {
    ((19_595 * u32::from(r) + 38_470 * u32::from(g) + 7_471 * u32::from(b) + 0x8000) >> 16) as u8
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

/// Decodes a picture as it is stored. Its pixels will have this number of channels.
fn open(bytes: &[u8], n_channels: usize) -> Result<DynamicImage> {
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(failed)?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(MAX_BYTES);
    reader.limits(limits.clone());
    let mut decoder = reader.into_decoder().map_err(failed)?;
    let (width, height) = decoder.dimensions();
    check_size(height as usize, width as usize, n_channels)?;
    // The decoder may use the memory that the stored picture leaves.
    limits.reserve(decoder.total_bytes()).map_err(failed)?;
    decoder.set_limits(limits).map_err(failed)?;
    let picture = DynamicImage::from_decoder(decoder).map_err(failed)?;
    // The decoder makes up what is missing.
    if bytes.starts_with(&START_OF_JPEG) && !jpeg_has_end(bytes) {
        return Err(failed("the file ends before the picture does"));
    }
    Ok(picture)
}

/// Checks the size of a decoded picture before it takes memory.
fn check_size(height: usize, width: usize, n_channels: usize) -> Result<()> {
    match height as u128 * width as u128 * n_channels as u128 {
        n if n > u128::from(MAX_BYTES) => {
            Err(failed(format!("{height} x {width} pixels have more than {MAX_BYTES} bytes")))
        }
        _ => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use image::codecs::jpeg::JpegEncoder;
    use image::codecs::png::PngEncoder;
    use image::{ExtendedColorType, ImageEncoder};

    /// Returns a picture of 16 x 16 equal pixels as PNG and as JPEG.
    fn encoded(pixel: &[u8], color: ExtendedColorType) -> [Vec<u8>; 2] {
        let (pixels, mut png, mut jpeg) = (pixel.repeat(256), Vec::new(), Vec::new());
        PngEncoder::new(&mut png).write_image(&pixels, 16, 16, color).unwrap();
        JpegEncoder::new_with_quality(&mut jpeg, 100).write_image(&pixels, 16, 16, color).unwrap();
        [png, jpeg]
    }

    #[test]
    fn shades_of_gray_weight_the_colors_as_jpeg_files_do() {
        for (pixel, shade) in
            [([255, 0, 0], 76), ([0, 255, 0], 150), ([0, 0, 255], 29), ([255; 3], 255), ([10, 200, 30], 124)]
        {
            let [png, jpeg] = encoded(&pixel, ExtendedColorType::Rgb8);
            // The colors of a JPEG file are rounded.
            for (bytes, most) in [(png, 0), (jpeg, 1)] {
                let found = decode_gray(&bytes).unwrap();
                assert_eq!(found.shape(), [16, 16, 1]);
                let first = found.as_slice()[0];
                assert!(found.iter().all(|x| x.abs_diff(shade) <= most), "{pixel:?}: {first}, not {shade}");
            }
        }
    }

    #[test]
    fn shades_of_gray_stay_as_they_are_stored() {
        let [png, jpeg] = encoded(&[77], ExtendedColorType::L8);
        for bytes in [png, jpeg] {
            assert_eq!(decode_gray(&bytes).unwrap().to_vec(), [77; 256]);
        }
        let mut png = Vec::new();
        PngEncoder::new(&mut png).write_image(&[77, 9].repeat(256), 16, 16, ExtendedColorType::La8).unwrap();
        assert_eq!(decode_gray(&png).unwrap().to_vec(), [77; 256]);
        let pixels = [0x4d4d_u16.to_ne_bytes(); 256].concat();
        let mut png = Vec::new();
        PngEncoder::new(&mut png).write_image(&pixels, 16, 16, ExtendedColorType::L16).unwrap();
        assert_eq!(decode_gray(&png).unwrap().to_vec(), [0x4d; 256]);
    }

    /// Shades of gray have a third of the bytes of colors.
    #[test]
    fn a_picture_that_is_too_large_as_colors_is_refused_before_it_is_decoded() {
        let head = |width: u32, height: u32| {
            let [png, _] = encoded(&[77], ExtendedColorType::L8);
            // The width and the height are behind the signature and the length and the name of the
            // first part, whose checksum is behind its 13 bytes.
            let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
            let part = [&png[12..16], &size, &png[24..29]].concat();
            let mut checksum = flate2::Crc::new();
            checksum.update(&part);
            [&png[..12], &part, &checksum.sum().to_be_bytes(), &png[33..]].concat()
        };
        assert_eq!(decode(&head(16, 16)).unwrap().shape(), [16, 16, 3]);
        let error = decode(&head(20_000, 30_000)).unwrap_err().message;
        assert!(error.ends_with("30000 x 20000 pixels have more than 1073741824 bytes"), "{error}");
        let error = decode_gray(&head(40_000, 30_000)).unwrap_err().message;
        assert!(error.ends_with("30000 x 40000 pixels have more than 1073741824 bytes"), "{error}");
    }
}
