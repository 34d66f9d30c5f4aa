//! PNG: pictures of 8 bits per channel, without loss.
//!
//! The format is that of the W3C, "Portable Network Graphics (PNG) Specification", third edition.

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use std::io::Write;

/// Returns a picture as a PNG file. The pixels are in rows from the top, with the channels of each
/// pixel together: gray, gray and alpha, RGB, or RGBA.
///
/// # Panics
/// Panics if there are not `width * height * channels` bytes, or 0 or more than 4 channels.
pub(crate) fn encode(width: u32, height: u32, channels: usize, pixels: &[u8]) -> Vec<u8> {
    let colors = [0, 4, 2, 6][channels - 1];
    assert_eq!(pixels.len(), width as usize * height as usize * channels, "one byte for each channel");
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
    let mut write = |bytes: &[u8]| zlib.write_all(bytes).expect("memory can be written");
    for row in pixels.chunks_exact((width as usize * channels).max(1)) {
        // Rows are not filtered.
        write(&[0]);
        write(row);
    }
    let data = zlib.finish().expect("memory can be written");

    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    header.extend([8, colors, 0, 0, 0]);
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, chunk) in [(b"IHDR", &header), (b"IDAT", &data), (b"IEND", &Vec::new())] {
        png.extend(u32::try_from(chunk.len()).expect("a picture of less than 4 GiB").to_be_bytes());
        let mut crc = Crc::new();
        for part in [&kind[..], chunk] {
            crc.update(part);
            png.extend(part);
        }
        png.extend(crc.sum().to_be_bytes());
    }
    png
}
