//! JPEG files, by libjpeg-turbo.

use super::{START_OF_JPEG, check_size, failed};
use anabranch_dsl::{Array, Result};
use turbojpeg::{Colorspace, Decompressor, Image, PixelFormat};

/// The maximum number of scans of a picture. Progressive ones have about ten; a small file with
/// many would take very long.
const MAX_SCANS: u32 = 500;

/// Returns a picture in a format of one byte for each channel. Returns `None` if the bytes are no
/// JPEG, or if libjpeg-turbo does not convert its colors: those of print, cyan to black.
pub(super) fn decode(bytes: &[u8], format: PixelFormat) -> Option<Result<Array<u8>>> {
    if !bytes.starts_with(&START_OF_JPEG) {
        return None;
    }
    let decoded = decode_jpeg(bytes, format).map_err(failed);
    decoded.transpose().map(|decoded| decoded.flatten())
}

fn decode_jpeg(bytes: &[u8], format: PixelFormat) -> turbojpeg::Result<Option<Result<Array<u8>>>> {
    let mut decoder = Decompressor::new()?;
    decoder.set_scan_limit(MAX_SCANS)?;
    let header = decoder.read_header(bytes)?;
    if matches!(header.colorspace, Colorspace::CMYK | Colorspace::YCCK) {
        return Ok(None);
    }
    let (height, width, channels) = (header.height, header.width, format.size());
    if let Err(error) = check_size(height, width, channels) {
        return Ok(Some(Err(error)));
    }
    let mut pixels = vec![0; height * width * channels];
    let output = Image { pixels: &mut pixels[..], width, height, pitch: width * channels, format };
    decoder.decompress(bytes, output)?;
    Ok(Some(Array::try_new([height, width, channels], pixels)))
}
