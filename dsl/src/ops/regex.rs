//! Regular expressions on strings, by the crate `regex`.
//!
//! The syntax is that of the crate, which is nearly that of RE2 and so of
//! `tf.strings.regex_replace`. It works on bytes: `.` is any byte but `\n`, and `\w`, `\d`, `\s`
//! and `(?i)` are those of ASCII. A pattern that starts with `(?u)` works on characters of UTF-8,
//! with the classes of Unicode.

use super::infer::{Class, check_scalar};
use super::strings::{StringsBuilder, from_strings, of_strings, only, row, shown};
use super::*;
use crate::ir::Attrs;
use crate::{Bytes, DType, Operand, Tensor};
use ::regex::bytes::{Regex, RegexBuilder};
use std::sync::{Mutex, PoisonError};

family!(REGEX_REPLACE, REGEX_FULL_MATCH);

/// The number of compiled patterns that are kept: a graph with more compiles some in each step.
const MAX_KEPT: usize = 32;

/// Returns a compiled pattern.
fn compiled(pattern: &Bytes) -> Result<Regex, OpError> {
    static KEPT: Mutex<Vec<(Bytes, Regex)>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(i) = kept.iter().position(|(of, _)| of == pattern) {
        // The most recently used pattern is the last.
        let found = kept.remove(i);
        kept.push(found);
    } else {
        let invalid = |why: String| {
            let error = OpError::new(format!("{} is no regular expression: {why}", shown(pattern)));
            error.help("the syntax is that of the crate `regex`; `regex::escape` quotes text")
        };
        let text = pattern.to_str().map_err(|error| invalid(error.to_string()))?;
        let compiled = RegexBuilder::new(text).unicode(false).build();
        let compiled = compiled.map_err(|error| invalid(last_line(&error.to_string())))?;
        if kept.len() == MAX_KEPT {
            kept.remove(0);
        }
        kept.push((pattern.compact(), compiled));
    }
    Ok(kept[kept.len() - 1].1.clone())
}

/// Returns the reason of an error, which the crate writes below a picture of the pattern.
fn last_line(error: &str) -> String {
    let line = error.lines().last().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// A piece of a rewrite.
enum RewritePiece {
    Byte(u8),
    /// The text of a group, 0 for the whole match.
    Group(usize),
}

/// Returns the pieces of a rewrite in the syntax of RE2: `\1` is a group and `\\` a backslash.
fn rewrite_of(rewrite: &Bytes, groups: usize) -> Result<Vec<RewritePiece>, OpError> {
    let mut rest = rewrite.iter();
    let mut pieces = Vec::new();
    while let Some(&byte) = rest.next() {
        pieces.push(match (byte, rest.as_slice()) {
            (b'\\', [digit @ b'0'..=b'9', ..]) if usize::from(digit - b'0') < groups => {
                rest.next();
                RewritePiece::Group(usize::from(digit - b'0'))
            }
            (b'\\', [b'\\', ..]) => {
                rest.next();
                RewritePiece::Byte(b'\\')
            }
            (b'\\', [digit @ b'0'..=b'9', ..]) => {
                let message = format!("the rewrite {} uses group {}", shown(rewrite), digit - b'0');
                return Err(OpError::new(message).help(format!("the groups of the pattern are 0 to {}", groups - 1)));
            }
            (b'\\', _) => {
                let message = format!("the rewrite {} has a `\\` before something else than a digit", shown(rewrite));
                return Err(OpError::new(message).help("`\\1` is a group, `\\0` the match, and `\\\\` a backslash"));
            }
            _ => RewritePiece::Byte(byte),
        });
    }
    Ok(pieces)
}

/// Calls `put` for each part of a string whose first `limit` matches are rewritten.
fn rewrite(s: &[u8], pattern: &Regex, limit: usize, pieces: &[RewritePiece], mut put: impl FnMut(&[u8])) {
    let mut end = 0;
    for found in pattern.captures_iter(s).take(limit) {
        let whole = found.get_match();
        put(&s[end..whole.start()]);
        for piece in pieces {
            match piece {
                RewritePiece::Byte(byte) => put(&[*byte]),
                RewritePiece::Group(i) => put(found.get(*i).map_or(&[], |group| group.as_bytes())),
            }
        }
        end = whole.end();
    }
    put(&s[end..]);
}

/// Returns a length that no rewritten string exceeds: each position matches, and each group is the
/// whole string.
fn longest(s: &[u8], pieces: &[RewritePiece]) -> u128 {
    let n = s.len() as u128;
    let groups = pieces.iter().filter(|piece| matches!(piece, RewritePiece::Group(_))).count() as u128;
    n + (n + 1) * (pieces.len() as u128 + groups * n)
}

/// The first operand with the matches of the second replaced by the third.
static REGEX_REPLACE: OpDef = OpDef {
    arity: Arity::Exactly(3),
    attrs: Replaced::DECLARED,
    effects: Effects::Fallible,
    ..row(
        "regex_replace",
        |cx| {
            check_scalar(cx, 1, Class::Bytes, "pattern")?;
            check_scalar(cx, 2, Class::Bytes, "rewrite")?;
            of_strings(cx)
        },
        |cx| {
            let pattern = compiled(only(cx, 1))?;
            let pieces = rewrite_of(only(cx, 2), pattern.captures_len())?;
            let limit = if Replaced::of(cx.attrs).all { usize::MAX } else { 1 };
            let mut made = StringsBuilder::default();
            for s in cx.operands[0].data::<Bytes>() {
                if made.check_room(longest(s, &pieces)).is_err() {
                    let mut n = 0;
                    rewrite(s, &pattern, limit, &pieces, |part| n += part.len() as u128);
                    made.check_room(n)?;
                }
                made.add(|to| rewrite(s, &pattern, limit, &pieces, |part| to.extend_from_slice(part)));
            }
            Ok(made.finish(cx))
        },
    )
};

/// Whether the second operand matches each whole string.
static REGEX_FULL_MATCH: OpDef = OpDef {
    arity: Arity::Exactly(2),
    effects: Effects::Fallible,
    ..row(
        "regex_full_match",
        |cx| {
            check_scalar(cx, 1, Class::Bytes, "pattern")?;
            from_strings(cx, DType::Bool)
        },
        |cx| {
            let pattern = only(cx, 1);
            compiled(pattern)?;
            let anchored = |end: &[u8]| compiled(&Bytes::from([b"\\A(?:", &pattern[..], end].concat()));
            // A comment at the end of a pattern, after `(?x)`, goes up to the end of the line.
            let whole = anchored(b")\\z").or_else(|_| anchored(b"\n)\\z"))?;
            Ok(cx.result(cx.operands[0].data::<Bytes>().iter().map(|s| whole.is_match(s)).collect()))
        },
    )
};

impl Tensor<Bytes> {
    /// Replaces each match of a regular expression by a rewrite, in which `\1` is the text of the
    /// first group, `\0` that of the match, and `\\` a backslash.
    ///
    /// The syntax is that of the crate [`regex`](https://docs.rs/regex/latest/regex/#syntax), on
    /// bytes; a pattern that starts with `(?u)` works on characters, with the classes of Unicode.
    /// An invalid pattern or rewrite is an error of the step.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor(["a-b", "c"]).regex_replace(r"(\w)-(\w)", r"\2\1"))?;
    /// assert_eq!(y.as_slice(), ["ba", "c"]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn regex_replace(self, pattern: impl Operand<Bytes>, rewrite: impl Operand<Bytes>) -> Tensor<Bytes> {
        self.replaced(pattern.into_tensor(), rewrite.into_tensor(), true)
    }

    /// Replaces the first match in each string, like [`regex_replace`](Self::regex_replace).
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// assert_eq!(eval(|| tensor(["abab"]).regex_replace_first("a", ""))?.as_slice(), ["bab"]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn regex_replace_first(self, pattern: impl Operand<Bytes>, rewrite: impl Operand<Bytes>) -> Tensor<Bytes> {
        self.replaced(pattern.into_tensor(), rewrite.into_tensor(), false)
    }

    #[track_caller]
    fn replaced(self, pattern: Tensor<Bytes>, rewrite: Tensor<Bytes>, all: bool) -> Tensor<Bytes> {
        let operands = [self.untyped(), pattern.untyped(), rewrite.untyped()];
        Tensor::from_any(emit(prim::REGEX_REPLACE, &operands, Replaced { all }.into()))
    }

    /// Returns whether a regular expression matches each string from its beginning to its end.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let y = eval(|| tensor(["img_01.png", "img.txt"]).regex_full_match(r"img_\d+\.png"))?;
    /// assert_eq!(y.as_slice(), [true, false]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn regex_full_match(self, pattern: impl Operand<Bytes>) -> Tensor<bool> {
        let operands = [self.untyped(), pattern.into_tensor().untyped()];
        Tensor::from_any(emit(prim::REGEX_FULL_MATCH, &operands, Attrs::none()))
    }
}
