//! The macros of anabranch: `#[graph]` makes control flow on tensors part of the graph, and
//! `#[derive(Carry)]`, `#[derive(InOut)]` and `#[derive(Module)]` let structs of tensors be changed
//! by branches and loops, passed to functions, and trained.
//!
//! Users depend on the crate `anabranch`, which exports the macros. The README has an example.
//!
//! The macros see tokens and know neither tensors nor types. The code that they emit calls
//! `anabranch::__rt`, whose traits let the types decide. Every stage is a plain function, tested
//! without a compiler. All errors are reported at once, together with the item as the user wrote
//! it, so that editors still understand it.
#![forbid(unsafe_code)]

mod carry;
mod ctxt;
mod graph;
mod in_out;
mod module;

use proc_macro::TokenStream;

/// Makes an ordinary function stageable: control flow on tensors becomes part of the graph.
///
/// The type of a condition decides. A construct on a `bool` is ordinary Rust and runs while
/// tracing. A construct on a `Tensor<bool>` is recorded as dataflow, differentiated, and executed
/// when the graph runs:
///
/// | construct | in the graph if |
/// |---|---|
/// | `if`, `else if`, `else`, as statement and value; `while`; `assert!`, `debug_assert!` | the condition is a tensor |
/// | `assert_eq!`, `assert_ne!` and their `debug_` forms | a side is a tensor; asserts that all elements are equal, or that not all are |
/// | `a && b`, `a \|\| b`, `!a` | an operand is a tensor; `b` is evaluated only if `a` does not decide the result |
/// | `match x { 0 => .., 1..=3 \| 7 if c => .., n @ 8.. => .., _ => .. }` | `x` is a tensor of numbers; the default arm is required |
/// | `match (x, y) { (0, 1..N) => .., (k, _) => .. }` | as above; the tuple must be written in the `match` |
/// | `if let 0..=9 = x`, `while let 3 = x`, `let 1.. = x else { .. }` | `x` is a tensor of numbers |
/// | `for x in y` | `y` is a list, or a tensor, over whose leading axis the loop iterates |
/// | `for i in range(n)`, `range(a..b)`, `range(a..=b)`, with `.step_by(k)` and `.rev()` | always: `range` counts in the graph |
/// | `loop`, labeled blocks | a `break` is under a tensor condition |
/// | `break`, `continue`, `return`, with a label, with a value, at any depth | it is under a tensor condition |
/// | `println!`, `print!`, `eprintln!`, `eprint!`, `dbg!` | an argument is a tensor, or the macro is under a tensor condition |
///
/// The rest is ordinary Rust that runs while tracing, also around and inside these constructs:
/// `if let`, `let else`, `match` on host values, host iterators, closures, generic functions, `?`
/// on host results. Functions with `#[graph]` call each other like any other functions.
///
/// A variable that is assigned in a branch or loop of the graph must be a `Carry`: a tensor, a
/// list, or a tuple, array, option, result, vector or derived struct of them. A result must be an
/// `Ok`: `return Ok(x)` is allowed under a tensor condition, `return Err(e)` is not. The signature,
/// documentation and visibility of the function stay the same.
///
/// Code that cannot be staged is a compile error at its token, with advice on what to write
/// instead. The macro cannot see a modification behind a shared reference. It happens once, while
/// tracing, whatever the value of the condition will be.
///
/// # Without the attribute
///
/// In a function without `#[graph]`, the compiler's messages about comparisons of tensors, and
/// about a `for` over a tensor, a list or a `range`, name the attribute. Other constructs require a
/// type that a tensor does not have, and rustc reports only that:
///
/// | without `#[graph]` | rustc says |
/// |---|---|
/// | `if t`, `while t`, `assert!(t)` | E0308: expected `bool`, found `Tensor<bool>` |
/// | `match x { 0 => .., _ => .. }`, `if let 0 = x` | E0308: expected `Tensor<i32>`, found integer |
/// | `for i in 0..n` | E0308: expected integer, found `Tensor<i32>`; in the graph write `range(n)` |
///
/// # Arguments
///
/// A parameter may declare its shape: `#[shape(batch, 784, _)] x: Tensor`. A call with another
/// shape is an error that names the parameter. A name stands for the same extent in all parameters
/// of a call.
///
/// `#[graph(max_iterations = n)]` bounds each loop on tensors in the function: it ends after `n`
/// iterations, if its condition has not ended it before.
///
/// `#[graph(parallel_iterations = n)]` sets how many iterations of these loops, and of the loops of
/// their gradients, may run at once if they span several devices. This changes the timing and the
/// memory use, but no values.
///
/// Both arguments apply to the function itself, not to the functions that it calls.
///
/// # Loops and jumps
///
/// A loop whose condition is a tensor runs in the graph. A `loop` that ends only on a tensor
/// condition does so too.
///
/// A loop over host values is unrolled while tracing, even if a `break` in it depends on a tensor.
/// The graph then skips the iterations after the `break`. A variable that only the head of such a
/// loop modifies, as in `while let Some(x) = items.next()`, must therefore be a `Carry`, or it is
/// an error.
///
/// A loop of the graph is not executed if it prints, asserts and assigns nothing and its values are
/// unused, even if it would never end. A call may therefore return where the same loop in plain
/// Rust, or in the interpreter, would run forever.
///
/// Code after a jump runs only if the jump is not taken. A value that is returned early must
/// therefore have the same type and shape as the value at the end, and a host value cannot be
/// returned under a tensor condition. A jump under a tensor condition cannot leave a part of a
/// larger expression, such as an argument, because the rest of the expression would be evaluated.
///
/// A variable may be initialized in both arms of an `if`, in a `loop`, or before a jump. An arm
/// that panics need not initialize it. A loop does not change the shape of a variable, unless
/// `x.with_dynamic(axis)` declares an extent that changes.
///
/// # What counts as a modification
///
/// These modify a variable:
/// - an assignment;
/// - a `&mut` borrow;
/// - passing on a mutable reference;
/// - a method call on a `mut` variable or through a `&mut`, unless the method is one of the
///   standard library or of anabranch whose name is known to modify nothing (`len`, `iter`,
///   `clone`, `sum`, and others).
///
/// A struct of your own may therefore have to be a `Carry` if one of its methods is called under a
/// tensor condition. If the method modifies nothing, write `(&x).method()`. The macro does not see
/// a trait of your own that gives a type of the standard library a `&mut self` method of a known
/// name.
///
/// Under a tensor condition, it is an error to use a `Cell` or `RefCell` of tensors, or a variable
/// that holds mutable references: a vector, option, result or iterator of them, a pair that ends in
/// one, a guard of a `RefCell` or `Mutex`, or a closure that modifies a variable. Modifications
/// through other shared references, by a parameter of type `impl FnOnce()`, and through a `&mut`
/// inside a struct of your own, are not seen. If a tensor leaves its branch in this way, its use is
/// an error.
///
/// # Host conditions
///
/// A condition that is a `bool` by its form (a variable declared as `bool`, `!v.is_empty()`,
/// `s == "x"`, `matches!`, `if let`) leaves its construct unchanged.
///
/// Any other condition may be a tensor, so its arms are emitted as two blocks. Tracing runs one of
/// them for a `bool`, and both for a tensor. A variable that was moved out of therefore cannot be
/// assigned in an arm, and a temporary that an arm borrows does not outlive the arm. The values of
/// the arms have one type: Rust does not coerce two functions, or a `&String` and a `&str`, to a
/// common one. A variable that is declared by `let x: T;` is coerced to its type.
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

/// Lets functions take and return a struct of tensors.
///
/// The macro implements `Input` and `Output`, and defines the struct of arrays that is passed to a
/// call and returned by one. For `Batch` it is called `BatchArrays`, and has the same fields, with
/// arrays for tensors.
///
/// Every field must be something that functions take and return: a tensor, or a tuple, array,
/// `Vec`, `Option` or derived struct of them.
#[proc_macro_derive(InOut)]
pub fn derive_in_out(item: TokenStream) -> TokenStream {
    in_out::derive(item.into()).into()
}

/// Implements `Module` for a struct of variables and modules.
///
/// The variables are visited in the order of the fields. The path of a variable consists of field
/// names. Fields marked `#[module(skip)]` are skipped.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(item: TokenStream) -> TokenStream {
    module::derive(item.into()).into()
}
