//! Operations that read strings: any bytes are a result or an error.

use anabranch_dsl::{Bytes, eval, tensor};

/// A target: its name, its body, which returns whether the bytes mean something, and valid inputs.
pub type Target = (&'static str, fn(&[u8]) -> bool, fn() -> Vec<Vec<u8>>);

/// The targets of this file.
pub const TARGETS: [Target; 1] = [("strings", strings, inputs)];

/// Runs the target of this name. Returns whether the bytes mean something.
#[allow(dead_code, reason = "`mutate` has the list of all targets")]
pub fn run(name: &str, bytes: &[u8]) -> bool {
    let target = TARGETS.iter().find(|(of, ..)| *of == name);
    (target.expect("the target is in the list").1)(bytes)
}

/// Runs the operation that the first byte names, on the strings behind it, which zeros separate.
fn strings(input: &[u8]) -> bool {
    let Some((&operation, rest)) = input.split_first() else { return false };
    let mut parts = rest.split(|&byte| byte == 0).map(Bytes::from);
    let mut next = || parts.next().unwrap_or_default();
    let (x, a, b) = (next(), next(), next());
    let word = || tensor([x.clone()]);
    match operation % 9 {
        0 => eval(|| word().regex_replace(&a, &b)).is_ok(),
        1 => eval(|| word().regex_full_match(&a)).is_ok(),
        2 => {
            let Ok(number) = eval(|| word().parse::<f64>()) else { return false };
            let shown = eval(|| tensor([number.as_slice()[0]]).format()).expect("a number has a form");
            let again = eval(|| tensor([shown.as_slice()[0].clone()]).parse::<f64>()).expect("the form is a number");
            let same = again.as_slice()[0].to_bits() == number.as_slice()[0].to_bits();
            assert!(same || number.as_slice()[0].is_nan(), "{number:?} is {shown:?}");
            true
        }
        3 => eval(|| word().parse::<i32>()).is_ok(),
        4 => {
            let Ok(decoded) = eval(|| word().decode_base64()) else { return false };
            let text = eval(|| tensor([decoded.as_slice()[0].clone()]).encode_base64()).expect("bytes have a form");
            let again = eval(|| tensor([text.as_slice()[0].clone()]).decode_base64()).expect("the form is base64");
            assert_eq!(again, decoded);
            true
        }
        5 => {
            let parts = eval(|| word().row(0).split(&a)).expect("each string has parts");
            if !a.is_empty() {
                let joined = eval(|| tensor(parts.to_vec()).reduce_join(0, &a)).expect("parts can be joined");
                assert_eq!(joined.as_slice()[0], x);
            }
            true
        }
        6 => {
            let n = eval(|| word().byte_len()).expect("a short string has a length").as_slice()[0];
            let at = a.first().map_or(0, |&byte| i32::from(byte)) - 10;
            let part = eval(|| word().substr(at, b.len() as i32));
            assert_eq!(part.is_ok(), (-n..=n).contains(&at));
            part.is_ok()
        }
        7 => eval(|| word().strip().upper().lower()).is_ok(),
        _ => eval(|| word().split_into(&a, 2)).is_ok(),
    }
}

fn inputs() -> Vec<Vec<u8>> {
    let texts = [
        "\0a-b, c-d\0(\\w)-(\\w)\0\\2\\1",
        "\x01img_01.png\0img_\\d+\\.png",
        "\x02 -1.5e3 ",
        "\x03 2147483647",
        "\x04AP-_Ag",
        "\x05a,b,,c\0,",
        "\x06a string\0\x0b\0len",
        "\x07 Blank\t",
        "\x08key=value\0=",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}
