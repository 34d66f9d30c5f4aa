//! The time that `#[graph]` needs to expand functions of the tests.
//!
//! `cargo run --release -p anabranch-benches --example expansion` expands each function under
//! `#[graph]` or of `agree!` in a file several times, and prints the number of functions and the
//! sum of their shortest times.
//! The macro runs outside the compiler, so the time has no exchange of tokens with it. `valgrind
//! --tool=callgrind` of the program compares two versions more exactly, because it counts
//! instructions.

#[path = "../dsl-macros/src/ctxt.rs"]
mod ctxt;
#[path = "../dsl-macros/src/graph/mod.rs"]
mod graph;

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use quote::quote;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{ItemFn, Meta, Token};

const ROUNDS: usize = 20;

const FILES: &[&str] = &[
    "corpus_control/branches.rs",
    "corpus_control/jumps.rs",
    "corpus_control/language.rs",
    "corpus_control/lists.rs",
    "corpus_control/loops.rs",
    "corpus_control/nests.rs",
    "corpus_control/state.rs",
    "corpus_control/structure.rs",
    "control_flow.rs",
    "hidden_mutation.rs",
    "host_code.rs",
    "jumps.rs",
    "long_function.rs",
];

/// Returns the function that `agree!(name(..) over ..; { .. })` defines, from the tokens between
/// the parentheses.
fn agreeing(tokens: TokenStream) -> Option<TokenStream> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let [name @ TokenTree::Ident(_), TokenTree::Group(arguments), .., TokenTree::Group(body)] = &tokens[..] else {
        return None;
    };
    let arguments = Punctuated::<Ident, Token![,]>::parse_terminated.parse2(arguments.stream()).map_or_else(
        |_| arguments.stream(),
        |names| {
            let names = names.iter();
            quote! { #(mut #names: Int),* }
        },
    );
    Some(quote! { fn #name(#arguments) -> Int #body })
}

/// Adds the functions under `#[graph]` and of `agree!` in tokens, at any depth, each with the
/// arguments of the macro.
fn find(tokens: TokenStream, found: &mut Vec<(TokenStream, TokenStream)>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (i, token) in tokens.iter().enumerate() {
        if let [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Group(call), ..] = &tokens[i..]
            && name == "agree"
            && let Some(function) = agreeing(call.stream())
        {
            assert!(syn::parse2::<ItemFn>(function.clone()).is_ok(), "{function}");
            found.push((TokenStream::new(), function));
            continue;
        }
        let arguments = match token {
            TokenTree::Group(group) => {
                find(group.stream(), found);
                match syn::parse2::<Meta>(group.stream()) {
                    Ok(Meta::List(list)) if list.path.is_ident("graph") => list.tokens,
                    Ok(Meta::Path(path)) if path.is_ident("graph") => TokenStream::new(),
                    _ => continue,
                }
            }
            // `$(#[$attribute])* fn ..` in the rules of a macro.
            TokenTree::Punct(p) if p.as_char() == '*' && i > 0 => match &tokens[i - 1] {
                TokenTree::Group(group) if group.stream().to_string().replace(' ', "").ends_with("[$attribute]") => {
                    TokenStream::new()
                }
                _ => continue,
            },
            _ => continue,
        };
        let is_body = |token: &TokenTree| matches!(token, TokenTree::Group(g) if g.delimiter() == Delimiter::Brace);
        let length = tokens[i + 1..].iter().position(is_body).map_or(0, |body| body + 1);
        let function: TokenStream = tokens[i + 1..][..length].iter().cloned().collect();
        if syn::parse2::<ItemFn>(function.clone()).is_ok() {
            found.push((arguments, function));
        }
    }
}

/// Returns the shortest time to expand a function. Other processes interrupt a single function less
/// often than a whole file.
fn shortest((arguments, function): &(TokenStream, TokenStream)) -> Duration {
    let time = || {
        let start = Instant::now();
        black_box(graph::expand(arguments.clone(), function.clone()));
        start.elapsed()
    };
    (0..ROUNDS).map(|_| time()).min().expect("there are rounds")
}

fn main() {
    println!("| file in `tests/` | functions | time |\n|---|---|---|");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests");
    for file in FILES {
        let text = std::fs::read_to_string(folder.join(file)).expect("the file exists");
        let mut functions = Vec::new();
        find(text.parse().expect("the file is Rust"), &mut functions);
        assert!(!functions.is_empty(), "{file} has a function");
        let total: Duration = functions.iter().map(shortest).sum();
        println!("| `{file}` | {} | {:.2} ms |", functions.len(), total.as_secs_f64() * 1e3);
    }
}
