//! The data files of the examples match their description in `examples/data/README.md`.
//!
//! A checkout that converts line endings, or a manual edit, would otherwise show up only as a model
//! that learns slightly worse.

const DIGITS: &[u8] = include_bytes!("../examples/data/digits.bin");
const CHARTERS: &[u8] = include_bytes!("../examples/data/charters.txt");
const README: &str = include_str!("../examples/data/README.md");

#[test]
fn digits_are_records_of_an_image_and_its_label() {
    let records = DIGITS.chunks_exact(65);
    assert!(records.remainder().is_empty());
    assert_eq!(records.len(), 1797);

    let mut images_of = [0; 10];
    for (number, record) in records.enumerate() {
        let (pixels, label) = (&record[..64], record[64]);
        assert!(pixels.iter().all(|&pixel| pixel <= 16), "record {number}: {pixels:?}");
        images_of[usize::from(label)] += 1;
    }
    // The counts that the source states for its test set.
    assert_eq!(images_of, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
}

#[test]
fn charters_are_printable_ascii_with_unix_line_ends() {
    let strange = CHARTERS.iter().position(|&byte| !matches!(byte, b'\n' | b' '..=b'~'));
    assert_eq!(strange, None);
    assert!(CHARTERS.starts_with(b"The Declaration of Independence"));
    assert!(CHARTERS.ends_with(b"shall have intervened.\n"));

    let mut seen = [false; 128];
    CHARTERS.iter().for_each(|&byte| seen[usize::from(byte)] = true);
    assert_eq!(seen.iter().filter(|&&seen| seen).count(), 74);
}

#[test]
fn readme_states_the_sizes() {
    for (file, size) in [("digits.bin", DIGITS.len()), ("charters.txt", CHARTERS.len())] {
        let row = format!("| `{file}` | {},{:03} |", size / 1000, size % 1000);
        assert!(README.contains(&row), "examples/data/README.md has no row that starts with: {row}");
    }
}
