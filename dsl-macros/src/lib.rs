//! The macros of anabranch: `#[graph]`, `#[derive(Carry)]`, `#[derive(InOut)]`,
//! `#[derive(Module)]`.
//!
//! They see tokens and know neither tensors nor types: what they emit are calls into `anabranch::__rt`, whose traits let the
//! types decide. Every stage is a plain function from tokens to tokens, tested without a compiler. Whatever is wrong is
//! reported at once, together with the item as the user wrote it, so that an editor keeps understanding it.
#![forbid(unsafe_code)]

mod carry;
mod ctxt;
mod graph;
mod in_out;
mod module;

use proc_macro::TokenStream;

/// Makes an ordinary function stageable: control flow on tensors becomes part of the graph.
///
/// The type of a condition decides. On a `bool` a construct is Rust as always, executed while tracing; on a `Tensor<bool>` it is
/// recorded as dataflow, differentiated, and executed when the graph runs:
///
/// | construct | in the graph if |
/// |---|---|
/// | `if`, `else if`, `else`, as statement and value; `while`; `assert!`, `debug_assert!` | the condition is a tensor |
/// | `assert_eq!`, `assert_ne!` and their `debug_` forms | a side is a tensor: that all elements are equal, or not all |
/// | `a && b`, `a \|\| b`, `!a` | an operand is a tensor; `b` is evaluated only if `a` asks for it |
/// | `match x { 0 => .., 1..=3 \| 7 if c => .., n @ 8.. => .., _ => .. }` | `x` is a tensor of numbers; the default arm is required |
/// | `match (x, y) { (0, 1..N) => .., (k, _) => .. }` | as above; the tuple stands in the `match` |
/// | `if let 0..=9 = x`, `while let 3 = x`, `let 1.. = x else { .. }` | `x` is a tensor of numbers |
/// | `for x in y` | `y` is a tensor, whose leading axis it goes over, or a list |
/// | `for i in range(n)`, `range(a..b)`, `range(a..=b)`, with `.step_by(k)` and `.rev()` | always: `range` counts in the graph |
/// | `loop`, labelled blocks | a `break` is under a condition that is a tensor |
/// | `break`, `continue`, `return`, with a label, with a value, at any depth | under a condition that is a tensor |
/// | `println!`, `print!`, `eprintln!`, `eprint!`, `dbg!` | an argument is a tensor, or it is under a condition that is one |
///
/// The rest is ordinary Rust while tracing, also around and inside of these: `if let`, `let else`, `match` on host values, host iterators,
/// closures, generic functions, `?` on host results. Functions with `#[graph]` call each other like any functions.
///
/// What is assigned in a branch or a loop of the graph must be a `Carry`: tensors, lists, and tuples, arrays, options, results, vectors and
/// derived structs of them; of a result only an `Ok`, so `return Ok(x)` may stand under a tensor, and `return Err(e)` may not. The signature, documentation and visibility
/// of the function stay.
///
/// What cannot be staged is a compile error at its token that says what to write instead. What cannot be seen is a change behind a shared
/// reference: it happens once, while tracing, whatever the condition turns out to be.
///
/// # Without the attribute
///
/// In a function without `#[graph]` the compiler's messages about comparisons of tensors, and about a `for` over a tensor, a list or a
/// `range`, name the attribute. Other constructs want a type that a tensor is not, and then rustc says only that:
///
/// | without `#[graph]` | rustc says |
/// |---|---|
/// | `if t`, `while t`, `assert!(t)` | E0308: expected `bool`, found `Tensor<bool>` |
/// | `match x { 0 => .., _ => .. }`, `if let 0 = x` | E0308: expected `Tensor<i32>`, found integer |
/// | `for i in 0..n` | E0308: expected integer, found `Tensor<i32>`; in the graph write `range(n)` |
///
/// # Arguments
///
/// A parameter may declare its shape: `#[shape(batch, 784, _)] x: Tensor`. A call with another shape is an error that names the
/// parameter; a name stands for one extent wherever the parameters of a call use it.
///
/// `#[graph(max_iterations = n)]` bounds each loop on tensors that stands in the function: it ends after `n` iterations, if its condition has
/// not ended it before. `#[graph(parallel_iterations = n)]` says how many iterations of these loops, and of the loops of their gradients, may run at
/// once where they are on several devices: that changes when things run and how much memory they need, and no value. Functions that it
/// calls have bounds and numbers of their own.
///
/// # Loops and jumps
///
/// A loop whose condition is a tensor runs in the graph; one over host values is unrolled while tracing, also where a `break` in it
/// depends on a tensor: the iterations after it are then skipped when the graph runs, so what only the head of the loop changes, as in
/// `while let Some(x) = items.next()`, has to be a `Carry` or is an error. A `loop` that only a tensor ends runs in the graph.
/// A loop of the graph that prints, asserts and assigns nothing, and whose values nothing uses, is not executed, even if it would
/// never end: so a call may return where the same loop of plain Rust, or the interpreter, would wait forever.
/// Code behind a jump runs only if the jump was not taken, so a value that is given back early needs the same type and shape
/// as the value at the end, and a host value cannot be given back under a condition that is a tensor.
///
/// A variable may get its first value in both arms of an `if`, in a `loop`, or before a jump. Its shape in a loop stays what it was before;
/// `x.with_dynamic(axis)` declares an extent that changes.
///
/// # What counts as a change
///
/// Assignments, `&mut` borrows, what a mutable reference is given to, and calls of methods on a `mut` variable or behind a `&mut`; but not a method
/// of the standard library or of anabranch whose name is known to change nothing (`len`, `iter`, `clone`, `sum`, ..). So a struct of your own on
/// which a method is called under a tensor condition may have to be a `Carry`; where the method changes nothing, `(&x).method()` says so. A trait of
/// your own that gives a type of the standard library a method of such a name, with `&mut self`, is not seen.
///
/// Using a variable there that is a `Cell` or `RefCell` of tensors, or that holds mutable references (a vector, an option, a result or an iterator of
/// them, a pair that ends in one, a closure that changes a variable), is an error; changes through other shared references, and through a `&mut` inside of a struct of
/// your own, are not seen, but a tensor that leaves its branch in this way is an error when it is used.
///
/// # Host conditions
///
/// A condition that is a `bool` by its form (a variable declared as `bool`, `!v.is_empty()`, `s == "x"`, `matches!`, `if let`) leaves its
/// construct as it is. Other conditions may turn out to be tensors, so their arms are emitted as two blocks, of which tracing runs one
/// for a `bool` and both for a tensor; a variable cannot be given a new value in an arm after it was moved out of, and a
/// temporary that an arm borrows does not outlive it.
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

/// Lets functions take and return a struct of tensors: implements `Input` and `Output`, and makes
/// the struct of arrays that is given in a call, and returned by one. That of `Batch` is called
/// `BatchArrays`, and has the same fields, with arrays for tensors.
///
/// Every field must be something that functions take and return: a tensor, or a tuple, array,
/// `Vec`, `Option` or derived struct of them.
#[proc_macro_derive(InOut)]
pub fn derive_in_out(item: TokenStream) -> TokenStream {
    in_out::derive(item.into()).into()
}

/// Implements `Module` for a struct of variables and modules.
///
/// Its variables are visited in the order of the fields; the path of a variable is made of field names. Fields marked
/// `#[module(skip)]` are left out.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(item: TokenStream) -> TokenStream {
    module::derive(item.into()).into()
}
