//! Printing of loops over scalars as compute shaders, which run many iterations without the host.
//!
//! A loop has a shader if its variables have one element each, and if its body works on numbers
//! (`loop_body.rs`). It may read elements of tensors and lists that it captures. One thread runs
//! the loop.
//!
//! A run ends after [`MAX_LOOP_STEPS`] steps, with the state that the loop then has, and its caller
//! runs it again. A step is an iteration, also one of an inner loop, or the end of an inner loop. A
//! run whose steps end inside of an inner loop ends with the state before that iteration of the
//! outer loop. If the iteration alone takes too many steps, the run is stuck.
//!
//! # Memory
//!
//! The bindings are the tensors and the elements of lists that the loop reads, and then an array of
//! words. The first one is the state of the loop, one of [`LOOP_STATES`], and those after it are
//! the operands of the node, of which the shader changes the loop variables. The word of a list is
//! its length, and that of a tensor with several elements is not used.

use super::loop_body::{BodyPrinter, BodyValue, array_of, captured, number_of_word, word_of_number};
use super::wgsl::{MAX_BUFFERS, NotPrinted};
use crate::HostTensor;
use crate::ir::{Graph, Node};
use crate::scalars::wgsl::type_name;
use std::ops::Range;

/// The number of steps after which a run ends. Some drivers that compute on a CPU end the loops of
/// a thread after 65,535 iterations together, whatever their conditions are.
pub const MAX_LOOP_STEPS: u32 = 1 << 15;

/// The states of a loop after a run: its condition is false, it goes on, or it is stuck.
pub const LOOP_STATES: [u32; 3] = [1, 0, 2];

/// A loop as a shader with the entry point `main`, for one workgroup.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopShader {
    /// The text.
    pub code: String,
    /// The tensors and lists that the shader reads in memory, by their index in the operands of the
    /// node.
    pub in_memory: Vec<usize>,
    /// For each operand of the node its words in the last binding, if it has some there.
    pub operands: Vec<Option<Range<usize>>>,
    /// Constants, with their first words.
    pub constants: Vec<(usize, HostTensor)>,
    /// The number of words that have initial values: the first ones.
    pub n_initial: usize,
    /// The number of words of the last binding.
    pub n_words: usize,
}

impl LoopShader {
    /// Returns the shader of a `while`.
    ///
    /// # Errors
    /// Returns the reason if a variable has several elements, if WGSL lacks a type, if an operation
    /// does not work on numbers, or if the loop needs more buffers than every device supports.
    ///
    /// # Panics
    /// Panics if the node is not a `while`.
    pub fn new(graph: &Graph, node: Node) -> Result<LoopShader, NotPrinted> {
        let mut printer = BodyPrinter::new(graph, format!("{MAX_LOOP_STEPS}u"));
        let data = graph.node(node);
        let n_vars = graph.while_of(node).n_vars();
        let (mut operands, mut in_memory) = (Vec::new(), Vec::new());
        let (mut declarations, mut ends) = (String::new(), Vec::new());
        for (i, &operand) in data.operands.iter().enumerate() {
            let word = format!("words[{}]", i + 1);
            if i >= n_vars
                && let Some(value) = captured(graph, operand, &format!("m{i}"), &word)?
            {
                let (binding, elements) = (in_memory.len(), array_of(graph.ty(operand).element().dtype));
                declarations += &format!("@group(0) @binding({binding}) var<storage, read> m{i}: {elements};\n");
                in_memory.push(i);
                operands.push(value);
                continue;
            }
            let dtype = printer.dtype(operand)?;
            let ty = type_name(dtype).ok_or(NotPrinted::Type(dtype))?;
            printer.line(format_args!("var w{i}: {ty} = {};", number_of_word(&word, dtype)));
            if i < n_vars {
                ends.push(format!("{word} = {};", word_of_number(&format!("w{i}"), dtype)));
            }
            operands.push(BodyValue::Number(format!("w{i}")));
        }
        printer.line(format_args!("var state = {}u;", LOOP_STATES[1]));
        outer_loop(&mut printer, node, &operands)?;
        for line in ends {
            printer.line(format_args!("{line}"));
        }
        printer.line(format_args!("words[0] = state;"));
        let binding = in_memory.len();
        if binding >= MAX_BUFFERS {
            return Err(NotPrinted::Buffers(binding + 1));
        }
        declarations += &format!("@group(0) @binding({binding}) var<storage, read_write> words: array<u32>;\n");
        let code = printer.finish(&declarations, "@compute @workgroup_size(1)\nfn main()");
        let n_words = data.operands.len() + 1;
        let operands = (1..n_words).map(|word| Some(word..word + 1)).collect();
        Ok(LoopShader { code, in_memory, operands, constants: Vec::new(), n_initial: n_words, n_words })
    }
}

/// Prints the loop of the shader.
fn outer_loop(printer: &mut BodyPrinter<'_>, node: Node, operands: &[BodyValue]) -> Result<(), NotPrinted> {
    let data = printer.graph.while_of(node);
    let [ends, _, stuck] = LOOP_STATES;
    let variables: Vec<Option<String>> = (0..data.n_vars()).map(|i| Some(format!("w{i}"))).collect();
    // The iteration of an inner loop that has ended a long run begins again in another run.
    let leave = format!("if steps < {MAX_LOOP_STEPS}u || is_first {{ state = {stuck}u; }}");
    printer.block(format_args!("loop {{"), |printer| {
        printer.line(format_args!("let is_first = steps == 0u;"));
        printer.region(data.cond(), operands)?;
        let predicate = printer.number(data.predicate())?;
        printer.line(format_args!("if is_stuck {{ {leave} break; }}"));
        printer.line(format_args!("if !({predicate}) {{ state = {ends}u; break; }}"));
        printer.line(format_args!("if steps >= {MAX_LOOP_STEPS}u {{ break; }}"));
        printer.line(format_args!("steps++;"));
        printer.region(data.body(), operands)?;
        printer.line(format_args!("if is_stuck {{ {leave} break; }}"));
        printer.assign(data.nexts(), &variables)
    })
}
