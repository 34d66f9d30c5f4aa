//! Parsers for texts: words, commands and paths of Markdown, and Rust without comments and
//! literals.
//!
//! Both parsers know only the syntax that the rules need. Their tests are at the end.

/// Returns the words of `line`: runs of letters, digits, `_` and `-`.
pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-')).filter(|word| !word.is_empty())
}

/// Returns the texts between single backticks, outside fenced blocks.
pub(crate) fn code_spans(document: &str) -> impl Iterator<Item = &str> {
    by_fence(document).filter(|(_, fenced)| !fenced).flat_map(|(line, _)| line.split('`').skip(1).step_by(2))
}

/// Returns the lines of fenced blocks, without a shell prompt.
pub(crate) fn fenced_lines(document: &str) -> impl Iterator<Item = &str> {
    by_fence(document).filter(|(_, fenced)| *fenced).map(|(line, _)| line.trim_start().trim_start_matches("$ "))
}

/// Returns the fenced blocks, each with the text after its first fence, usually a language.
pub(crate) fn fenced_blocks(document: &str) -> Vec<(&str, Vec<&str>)> {
    let mut blocks = Vec::new();
    let mut open = None;
    for line in document.lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((language.trim(), Vec::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => {}
        }
    }
    blocks
}

/// Returns the lines of `document` except fences, each with whether it is inside a fenced block.
fn by_fence(document: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut fenced = false;
    document.lines().filter_map(move |line| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        Some((line, fenced))
    })
}

/// The path in a code span, if the span is one: a document or manifest by its extension alone,
/// anything else by a `/` and by its extension, a `/` at its end, or a first folder that exists.
/// For a pattern (`tests/ops/<op>.toml`, `dsl/src/*.rs`), this is the folder before the first part
/// that varies.
pub(crate) fn path_of(span: &str, exists: impl Fn(&str) -> bool) -> Option<&str> {
    let is_path_char = |c: char| c.is_ascii_alphanumeric() || "_-./<>*{},".contains(c);
    let hidden = span.starts_with('.') && !span.starts_with(".ci/");
    if !span.chars().all(is_path_char) || hidden || span.starts_with(['/', '-']) {
        return None;
    }
    let has_extension = |extensions: &[&str]| extensions.iter().any(|end| span.ends_with(end));
    let first = span.split('/').next().unwrap_or_default();
    let is_path = if span.contains('/') {
        has_extension(&[".rs", ".ir", ".stderr", ".wgsl", ".py", ".bin", ".txt", ".md", ".toml", "/"]) || exists(first)
    } else {
        has_extension(&[".md", ".toml"])
    };
    if !is_path {
        return None;
    }
    match span.find(['<', '*', '{']) {
        Some(varies) => span[..varies].rfind('/').map(|slash| &span[..slash]),
        None => Some(span),
    }
}

/// The `cargo test` or `cargo run` command that ends `text`, up to what is passed to the program,
/// redirected or piped.
pub(crate) fn cargo_command(text: &str) -> Option<String> {
    let start = text.find("cargo test").or_else(|| text.find("cargo run"))?;
    let words = text[start..].split_whitespace();
    let of_cargo = words.take_while(|word| !["--", "|", "||", "&&", ";", "#", "2>&1"].contains(word));
    Some(of_cargo.collect::<Vec<_>>().join(" "))
}

/// Returns `text` with comments, strings and character literals blanked. Line breaks are kept.
pub(crate) fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = not_code(rest).unwrap_or(0);
        if length == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            // The `r` of a raw string is one only at the start of a word.
            if first.is_alphanumeric() || first == '_' {
                let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
                let word = word.unwrap_or(rest.len());
                code.push_str(&rest[..word]);
                rest = &rest[word..];
            }
        } else {
            code.push(' ');
            code.extend(rest[..length].chars().filter(|&c| c == '\n'));
            rest = &rest[length..];
        }
    }
    code
}

/// Returns the length of the comment or literal at the start of `text`, if there is one.
fn not_code(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(block_comment(text));
    }
    let prefix = ["", "b", "c"].into_iter().find(|prefix| {
        let rest = text.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(['"', '\'', 'r']))
    })?;
    let literal = &text[prefix.len()..];
    if let Some(raw) = literal.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        raw[hashes..].strip_prefix('"')?;
        let close = format!("\"{}", "#".repeat(hashes));
        let start = prefix.len() + 1 + hashes + 1;
        let length = text[start..].find(&close).map(|at| start + at + close.len());
        return Some(length.unwrap_or(text.len()));
    }
    let quote = literal.chars().next()?;
    // Without a closing quote after one character or escape, the quote starts a lifetime.
    if quote == '\'' && !literal[1..].starts_with('\\') && literal.chars().nth(2) != Some('\'') {
        return None;
    }
    let mut escaped = false;
    for (at, c) in literal.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(prefix.len() + at + 1),
            _ => {}
        }
    }
    Some(text.len())
}

/// Returns the length of the block comment at the start of `text`. Comments nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

#[test]
fn code_keeps_no_comment_and_no_literal() {
    let cases = [
        ("a // unsafe\nb", "a  \nb"),
        ("a /* x /* y */ unsafe */ b", "a   b"),
        ("a /* 1\n2 */ b", "a  \n b"),
        (r#"f("a \" unsafe", b)"#, "f( , b)"),
        (r###"f(r##"unsafe "# x"##)"###, "f( )"),
        (r#"f(b"unsafe", br"unsafe\", c"x")"#, "f( ,  ,  )"),
        ("['\"', '\\'', b'x', 'é']", "[ ,  ,  ,  ]"),
        ("fn f<'a>(x: &'a str) -> r#type", "fn f<'a>(x: &'a str) -> r#type"),
        ("var\"x\" break brr", "var  break brr"),
        ("unsafe { x }", "unsafe { x }"),
        ("\"never closed", " "),
    ];
    for (text, code) in cases {
        assert_eq!(code_of(text), code, "{text}");
    }
}

#[test]
fn a_span_is_a_path_when_it_looks_like_one() {
    let exists = |path: &str| ["dsl", ".ci"].contains(&path);
    let cases = [
        ("dsl/src/lib.rs", Some("dsl/src/lib.rs")),
        ("README.md", Some("README.md")),
        ("gone/", Some("gone/")),
        ("dsl/src/graph", Some("dsl/src/graph")),
        (".ci/run", Some(".ci/run")),
        ("gone/ops/<op>.rs", Some("gone/ops")),
        ("dsl/src/*.rs", Some("dsl/src")),
        ("<op>.md", None),
        ("lib.rs", None),
        ("f32/f64", None),
        ("x / y", None),
        ("ops::softmax", None),
        ("#[graph]", None),
        (".rs", None),
        ("/dev/null", None),
    ];
    for (span, path) in cases {
        assert_eq!(path_of(span, exists), path, "{span}");
    }
}

#[test]
fn a_command_ends_where_the_arguments_of_the_program_start() {
    let cases = [
        ("stage x cargo run --release --example a -- --small", Some("cargo run --release --example a")),
        ("    SLOW=1 cargo test --workspace 2>&1 | tee log", Some("cargo test --workspace")),
        ("cargo test --workspace   # all of them", Some("cargo test --workspace")),
        ("cargo fmt --all --check", None),
    ];
    for (line, command) in cases {
        assert_eq!(cargo_command(line).as_deref(), command, "{line}");
    }
}

#[test]
fn spans_are_read_outside_fences_and_lines_inside() {
    let document = "a `b` and `c d`\n```sh\n$ cargo test `x`\n```\n`e`";
    assert_eq!(code_spans(document).collect::<Vec<_>>(), ["b", "c d", "e"]);
    assert_eq!(fenced_lines(document).collect::<Vec<_>>(), ["cargo test `x`"]);
    assert_eq!(fenced_blocks(document), [("sh", vec!["$ cargo test `x`"])]);
}
