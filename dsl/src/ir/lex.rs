//! The lexer of the text form.

use super::literal::is_word_char;
use crate::{Diagnostic, Loc};
use rustc_hash::FxHashSet;
use std::sync::{LazyLock, Mutex};

/// A token of the text form.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tok<'a> {
    /// `%x`: a value.
    Value(&'a str),
    /// `@x` or `@"x y"`: a variable or a graph.
    At(String),
    /// A word that does not start with a digit.
    Word(&'a str),
    /// A word that starts with a digit or with `-`.
    Number(&'a str),
    /// `"text"`.
    Str(String),
    /// `b"text"`, as written.
    Bytes(&'a str),
    /// One of `( ) { } [ ] < > , : = | ?`.
    Punct(char),
    /// `->`.
    Arrow,
    /// The end of the text.
    End,
}

impl Tok<'_> {
    /// Describes the token for a message.
    pub(super) fn describe(&self) -> String {
        match self {
            Tok::Value(x) => format!("`%{x}`"),
            Tok::At(x) => format!("`@{x}`"),
            Tok::Word(x) | Tok::Number(x) | Tok::Bytes(x) => format!("`{x}`"),
            Tok::Str(x) => format!("{x:?}"),
            Tok::Punct(c) => format!("`{c}`"),
            Tok::Arrow => "`->`".to_owned(),
            Tok::End => "the end of the text".to_owned(),
        }
    }
}

/// A token and its source location.
#[derive(Clone, Debug)]
pub(super) struct Token<'a> {
    pub(super) tok: Tok<'a>,
    pub(super) loc: Loc,
    /// Whether it is the first token of its line.
    pub(super) first: bool,
}

static INTERNED: LazyLock<Mutex<FxHashSet<&'static str>>> = LazyLock::new(Mutex::default);

/// Interns a string for the lifetime of the program, so that names of files and values can be
/// `Copy`.
pub(crate) fn intern(text: &str) -> &'static str {
    let mut all = INTERNED.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(known) = all.get(text) {
        return known;
    }
    let new: &'static str = Box::leak(text.into());
    all.insert(new);
    new
}

/// Returns whether this very string was returned by [`intern`]. An equal string of the program, for
/// example the name of a file that the compiler recorded, was not.
pub(crate) fn is_interned(text: &'static str) -> bool {
    let all = INTERNED.lock().unwrap_or_else(|e| e.into_inner());
    all.get(text).is_some_and(|known| std::ptr::eq(*known, text))
}

/// Splits a text into tokens, of which the last is [`Tok::End`]. Also returns the errors.
pub(super) fn lex<'a>(text: &'a str, file: &'static str) -> (Vec<Token<'a>>, Vec<Diagnostic>) {
    let mut lexer = Lexer { text, at: 0, loc: Loc { file, line: 1, column: 1 }, errors: Vec::new() };
    let mut tokens = Vec::new();
    let mut line = 0;
    loop {
        lexer.skip_blanks();
        let loc = lexer.loc;
        if let Some(tok) = lexer.token() {
            let end = tok == Tok::End;
            tokens.push(Token { tok, loc, first: loc.line != line });
            line = loc.line;
            if end {
                return (tokens, lexer.errors);
            }
        }
    }
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    loc: Loc,
    errors: Vec<Diagnostic>,
}

impl<'a> Lexer<'a> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        if c == '\n' {
            self.loc.line = self.loc.line.saturating_add(1);
            self.loc.column = 1;
        } else {
            self.loc.column = self.loc.column.saturating_add(1);
        }
        Some(c)
    }

    fn skip_blanks(&mut self) {
        while let Some(c) = self.peek() {
            if c == ';' {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.next();
                }
            } else if c.is_whitespace() {
                self.next();
            } else {
                break;
            }
        }
    }

    fn word(&mut self) -> &'a str {
        let start = self.at;
        let mut before = '\0';
        let number = self.peek().is_some_and(|c| c.is_ascii_digit());
        // The sign of an exponent is part of the number: `1e-7`.
        while let Some(c) = self.peek()
            && (is_word_char(c) || (number && before == 'e' && (c == '-' || c == '+')))
        {
            before = c;
            self.next();
        }
        &self.text[start..self.at]
    }

    /// Returns the next token, or `None` if an invalid character was skipped.
    fn token(&mut self) -> Option<Tok<'a>> {
        let loc = self.loc;
        let Some(c) = self.peek() else {
            return Some(Tok::End);
        };
        match c {
            '%' | '@' => {
                self.next();
                if c == '@' && self.peek() == Some('"') {
                    return self.string().map(Tok::At);
                }
                let name = self.word();
                if name.is_empty() {
                    self.error(loc, format!("expected a name after `{c}`"));
                    return None;
                }
                Some(if c == '%' { Tok::Value(name) } else { Tok::At(name.to_owned()) })
            }
            '"' => self.string().map(Tok::Str),
            '-' => {
                let start = self.at;
                self.next();
                if self.peek() == Some('>') {
                    self.next();
                    return Some(Tok::Arrow);
                }
                if self.word().is_empty() {
                    self.error(loc, "expected a number after `-`");
                    return None;
                }
                Some(Tok::Number(&self.text[start..self.at]))
            }
            '(' | ')' | '{' | '}' | '[' | ']' | '<' | '>' | ',' | ':' | '=' | '|' | '?' => {
                self.next();
                Some(Tok::Punct(c))
            }
            c if c.is_ascii_digit() => Some(Tok::Number(self.word())),
            'b' if self.text[self.at..].starts_with("b\"") => self.byte_string().map(Tok::Bytes),
            c if is_word_char(c) => Some(Tok::Word(self.word())),
            c => {
                self.next();
                self.error(loc, format!("unexpected character {c:?}"));
                None
            }
        }
    }

    /// Reads a quoted string with the escapes that Rust's `Debug` writes.
    fn string(&mut self) -> Option<String> {
        let start = self.loc;
        self.next();
        let mut text = String::new();
        loop {
            let loc = self.loc;
            match self.peek() {
                None | Some('\n') => {
                    self.error(start, "unterminated string");
                    return None;
                }
                Some('"') => {
                    self.next();
                    return Some(text);
                }
                Some('\\') => {
                    self.next();
                    match self.escape() {
                        Some(c) => text.push(c),
                        None => self.error(loc, "unknown escape in a string"),
                    }
                }
                Some(c) => {
                    self.next();
                    text.push(c);
                }
            }
        }
    }

    /// Skips a byte string, and returns it as written. Its escapes are those of an element.
    fn byte_string(&mut self) -> Option<&'a str> {
        let (start, from) = (self.loc, self.at);
        self.next();
        self.next();
        loop {
            match self.peek() {
                None | Some('\n') => {
                    self.error(start, "unterminated string");
                    return None;
                }
                Some('"') => {
                    self.next();
                    return Some(&self.text[from..self.at]);
                }
                Some(c) => {
                    self.next();
                    if c == '\\' && self.peek().is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        let c = self.peek().filter(|&c| c != '\n')?;
        self.next();
        match c {
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            '0' => Some('\0'),
            '\\' | '"' | '\'' => Some(c),
            'u' => {
                let rest = &self.text[self.at..];
                let digits = rest.strip_prefix('{')?.split_once('}')?.0;
                let code = (digits.len() <= 6 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
                    .then(|| u32::from_str_radix(digits, 16).ok())
                    .flatten()?;
                let c = char::from_u32(code)?;
                for _ in 0..digits.len() + 2 {
                    self.next();
                }
                Some(c)
            }
            _ => None,
        }
    }

    fn error(&mut self, loc: Loc, message: impl Into<String>) {
        self.errors.push(Diagnostic::new(message).at(loc, ""));
    }
}
