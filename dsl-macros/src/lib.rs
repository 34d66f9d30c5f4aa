//! The macros of anabranch: `#[graph]`, `#[derive(Carry)]`, `#[derive(Module)]`.
//!
//! They see tokens and know neither tensors nor types: what they emit are calls into `anabranch::__rt`, whose traits let the
//! types decide. Every stage is a plain function from tokens to tokens, tested without a compiler. Whatever is wrong is
//! reported at once, together with the item as the user wrote it, so that an editor keeps understanding it.
#![forbid(unsafe_code)]

mod carry;
mod ctxt;
mod graph;
mod module;

use proc_macro::TokenStream;

/// Makes an ordinary function stageable: control flow on tensors becomes part of the graph.
///
/// In the function's body, `if`, `while`, `&&`, `||` and `assert!` on a `Tensor<bool>` are recorded as dataflow, and comparisons
/// of tensors give tensors; on a `bool` they are ordinary Rust, executed while tracing. The signature, documentation and
/// visibility stay. What is assigned in a branch or a loop on a tensor must be a `Carry`: tensors, and tuples, arrays,
/// options, vectors and derived structs of them.
///
/// What cannot be seen: a change through a `Cell` or `RefCell`. It happens once, while tracing, whatever the condition turns out to be.
///
/// A parameter may declare its shape: `#[shape(batch, 784, _)] x: Tensor`. A call with another shape is an error that names the
/// parameter; a name stands for one extent wherever the parameters of a call use it.
///
/// `println!`, `print!`, `eprintln!`, `eprint!` and `dbg!` with a tensor among their arguments print its value whenever the graph comes
/// to them; under a condition that is a tensor they do so without one, too. Else they print while tracing, as ordinary Rust.
///
/// `#[graph(max_iterations = n)]` bounds each loop on tensors that stands in the function: it ends after `n` iterations, if its condition has
/// not ended it before. Functions that it calls have bounds of their own.
///
/// What cannot be staged yet (`break`, `continue`, `return`, `?`, panics and other macros under a condition that is a tensor, and
/// `for` over a tensor) is a compile error at its token.
///
/// # What counts as a change
///
/// Assignments, `&mut` borrows, and calls of methods on a `mut` variable or behind a `&mut`, unless the name of the method is
/// known to change nothing (`len`, `iter`, `clone`, `sum`, ..). So a struct on which a method is called under a tensor condition
/// may have to be a `Carry`. Changes through a `Cell` or another shared reference are not seen; a tensor that leaves its
/// branch in this way is an error when it is used.
///
/// # Host conditions
///
/// A condition that is a `bool` by its form (a variable declared as `bool`, `!v.is_empty()`, `s == "x"`, `v.len() > 3`,
/// `matches!`, `if let`) leaves its construct as it is. Other conditions may turn out to be tensors, so their blocks are
/// emitted one after the other, which differs from plain Rust in three ways: the two arms cannot both move the same value out of
/// a variable, a variable cannot be given a new value in an arm after it was moved out of, and a temporary that an arm
/// borrows does not outlive it.
#[proc_macro_attribute]
pub fn graph(arguments: TokenStream, item: TokenStream) -> TokenStream {
    graph::expand(arguments.into(), item.into()).into()
}

/// Implements `Carry` for a struct, so that branches and loops on tensors can change it.
///
/// Every field must be a `Carry`, or a host value marked `#[carry(host)]`, which may not change.
#[proc_macro_derive(Carry, attributes(carry))]
pub fn derive_carry(item: TokenStream) -> TokenStream {
    carry::derive(item.into()).into()
}

/// Implements `Module` for a struct of variables and modules.
///
/// Its variables are visited in the order of the fields; the path of a variable is made of field names. Fields marked
/// `#[module(skip)]` are left out.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(item: TokenStream) -> TokenStream {
    module::derive(item.into()).into()
}
