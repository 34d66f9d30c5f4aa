//! Printing of loops whose iterations are independent as compute shaders with a thread for each
//! iteration.
//!
//! A counted loop has a shader if its iterations can run in any order ([`LoopVarRole`]) and their
//! bodies work on numbers (`loop_body.rs`). An example is a map over rows with a `while` in its
//! body. The variables of the loop are counters, sums of numbers, lists of which each iteration
//! writes an element of its own or adds to one, and stacks of numbers. An iteration pushes any
//! number of values to a stack, and those of the loop backwards pop them again: its first iteration
//! those of the last one.
//!
//! A thread that is stuck reports a failed check, and then the memory that the shader has written
//! is of no use. It is also stuck if another iteration has added to the same element of a list.
//!
//! # Memory
//!
//! The stacks to which a loop has pushed are stored together: elements and depths are rows with a
//! word for each iteration. A stack has a row with the number of elements of each iteration, its
//! depth, and a row of elements for each place from the bottom. Where another loop pops from stacks
//! of one loop, they are a *group*.
//!
//! | operand | its word |
//! |---|---|
//! | number | the number |
//! | list | the number of its elements |
//! | stack that is pushed to | the number of its rows of elements |
//! | stack that is popped from | the place of its first row of elements |
//!
//! Bindings, in this order:
//!
//! 1. an array of words, one for each operand of the node, and then one for each stack that is
//!    popped from, with the place of its row of depths;
//! 2. the tensors and the elements of the lists that the body reads;
//! 3. for each group its elements and its depths;
//! 4. for each list that changes, its elements, the words that mark those written and, if
//!    iterations may add to one element, words in which they claim elements;
//! 5. for each sum, the terms, one for each iteration;
//! 6. the values of the counters after the last iteration, a word each;
//! 7. if there are stacks that are pushed to, their elements, their depths and, for each of them,
//!    the most elements of an iteration if there was no memory for them;
//! 8. the word for failed checks.
//!
//! The parameters are the number of iterations, the first one of the dispatch, the number of steps
//! after which a thread is stuck, and the number of the check.

use super::loop_body::{
    BodyPrinter, BodyValue, ListInMemory, StackInMemory, array_of, captured, number_of_word, size_in_words, stored,
    word_of_number,
};
use super::wgsl::{MAX_WORKGROUPS, NotPrinted};
use crate::DType;
use crate::ir::dependence::{LoopVarRole, adds_apart, roles};
use crate::ir::{Graph, Node, Value};
use crate::scalars::wgsl::type_name;

/// The threads of a workgroup.
pub const PARALLEL_LOOP_THREADS: usize = 64;

/// A loop with a thread for each iteration as a shader with the entry point `main`; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParallelLoopShader {
    /// The text.
    pub code: String,
    /// The captures that the shader reads in memory, by their index in the operands of the node.
    pub in_memory: Vec<usize>,
    /// The roles of the loop variables: counters, sums, lists that change, and stacks.
    pub roles: Vec<LoopVarRole>,
    /// For each stack that is popped from its group.
    pub groups: Vec<usize>,
    /// The lists of which iterations claim elements, by their index in the operands of the node.
    pub claimed: Vec<usize>,
    /// The numbers of bindings that are read, and of the others.
    pub n_bindings: [usize; 2],
}

impl ParallelLoopShader {
    /// Returns the shader of a `while` whose condition only counts, for a device with so many
    /// storage buffers in a shader.
    ///
    /// # Errors
    /// Returns the reason if iterations depend on each other, if WGSL lacks a type, if an operation
    /// does not work on numbers, or if the loop needs more buffers.
    ///
    /// # Panics
    /// Panics if the node is not a `while`.
    pub fn new(graph: &Graph, node: Node, max_buffers: usize) -> Result<ParallelLoopShader, NotPrinted> {
        let looped = graph.while_of(node);
        let roles = roles(graph, node).ok_or(NotPrinted::DependentIterations)?;
        let mut printer = ParallelLoopPrinter {
            graph,
            node,
            operands: &graph.node(node).operands,
            body: BodyPrinter::new(graph, "p.max_steps".to_owned()),
            bindings: Bindings::default(),
            in_memory: Vec::new(),
            lists: Vec::new(),
            claimed: Vec::new(),
            pushed: Vec::new(),
            popped: Vec::new(),
            groups: Vec::new(),
        };
        printer.bindings.add("words", "array<u32>", "read");
        let index = format!("(group.x + group.y * {MAX_WORKGROUPS}u) * {PARALLEL_LOOP_THREADS}u + thread");
        printer.body.line(format_args!("let i = p.first + {index};"));
        printer.body.line(format_args!("if i >= p.n {{ return; }}"));
        let mut arguments = Vec::new();
        for i in 0..printer.operands.len() {
            arguments.push(match roles.get(i) {
                Some(&role) => printer.variable(i, role)?,
                None => printer.capture(i)?,
            });
        }
        printer.bind_groups_and_lists();
        printer.body.region(looped.body(), &arguments)?;
        printer.sums_and_counters(&roles, looped.nexts())?;
        printer.stacks()?;
        printer.bindings.add("failure", "atomic<u32>", "read_write");
        printer.body.line(format_args!("if is_stuck {{ atomicMax(&failure, p.check); }}"));
        let ParallelLoopPrinter { body, bindings, in_memory, groups, claimed, .. } = printer;
        let n_bindings = bindings.n;
        if n_bindings[0] + n_bindings[1] > max_buffers {
            return Err(NotPrinted::Buffers(n_bindings[0] + n_bindings[1]));
        }
        let parameters = "struct Params {\n    n: u32,\n    first: u32,\n    max_steps: u32,\n    check: u32,\n}\n\n";
        let declarations = format!("{parameters}{}var<immediate> p: Params;\n", bindings.text);
        let inputs =
            "    @builtin(workgroup_id) group: vec3<u32>,\n    @builtin(local_invocation_index) thread: u32,\n";
        let entry = format!("@compute @workgroup_size({PARALLEL_LOOP_THREADS})\nfn main(\n{inputs})");
        Ok(ParallelLoopShader {
            code: body.finish(&declarations, &entry),
            in_memory,
            roles,
            groups,
            claimed,
            n_bindings,
        })
    }
}

struct ParallelLoopPrinter<'a> {
    graph: &'a Graph,
    node: Node,
    operands: &'a [Value],
    body: BodyPrinter<'a>,
    bindings: Bindings,
    in_memory: Vec<usize>,
    /// The lists that the body writes or adds to, as operands.
    lists: Vec<usize>,
    /// Those of them whose elements iterations claim.
    claimed: Vec<usize>,
    /// The stacks that the body pushes to and pops from, as operands.
    pushed: Vec<usize>,
    popped: Vec<usize>,
    /// For each stack that is popped from its group.
    groups: Vec<usize>,
}

impl ParallelLoopPrinter<'_> {
    /// Returns a capture, as the body uses it.
    fn capture(&mut self, i: usize) -> Result<BodyValue, NotPrinted> {
        let (operand, binding, word) = (self.operands[i], format!("m{i}"), format!("words[{i}]"));
        if let Some(value) = captured(self.graph, operand, &binding, &word)? {
            self.bindings.add(&binding, array_of(self.graph.ty(operand).element().dtype), "read");
            self.in_memory.push(i);
            return Ok(value);
        }
        let number = number_of_word(&word, self.body.dtype(operand)?);
        self.body.line(format_args!("let w{i} = {number};"));
        Ok(BodyValue::Number(format!("w{i}")))
    }

    /// Returns the value of a loop variable at the begin of an iteration, as the body uses it.
    fn variable(&mut self, i: usize, role: LoopVarRole) -> Result<BodyValue, NotPrinted> {
        let (operand, word) = (self.operands[i], format!("words[{i}]"));
        Ok(match role {
            LoopVarRole::Counter(step) => {
                // All integers of 32 bits are added as words.
                let word = format!("({word} + {}u * i)", step as u32);
                let number = number_of_word(&word, integer(&self.body, operand)?);
                self.body.line(format_args!("let w{i} = {number};"));
                BodyValue::Number(format!("w{i}"))
            }
            // Each iteration adds its term to the number that changes no other one.
            LoopVarRole::Sum => BodyValue::Number(match self.body.dtype(operand)? {
                DType::F32 => "(-0.0f)".to_owned(),
                dtype => format!("{}(0)", type_name(dtype).ok_or(NotPrinted::Type(dtype))?),
            }),
            LoopVarRole::Written | LoopVarRole::Accumulated => {
                if size_in_words(self.graph.ty(operand).element())? == 0 {
                    return Err(NotPrinted::NoElements);
                }
                self.lists.push(i);
                let [elements, marks, claims] = ["elements", "marks", "claims"].map(|name| format!("{name}{i}"));
                let is_claimed = role == LoopVarRole::Accumulated && !adds_apart(self.graph, self.node, i);
                if is_claimed {
                    self.claimed.push(i);
                }
                let claims = is_claimed.then_some(claims);
                BodyValue::List(ListInMemory { elements, marks: Some(marks), claims, len: word })
            }
            LoopVarRole::Pushed => {
                let rows: Vec<String> = self.pushed.iter().map(|j| format!("words[{j}]")).collect();
                let bottom = if rows.is_empty() { "i".to_owned() } else { format!("({}) * p.n + i", rows.join(" + ")) };
                self.pushed.push(i);
                self.stack(i, "pushed".to_owned(), &bottom, "0u", Some(word))?
            }
            LoopVarRole::Popped => {
                let source = self.graph.producer(operand);
                let is_of_source = |&j: &usize| source.is_some() && self.graph.producer(self.operands[j]) == source;
                let known = self.popped.iter().position(is_of_source).map(|k| self.groups[k]);
                let group = known.unwrap_or_else(|| self.groups.iter().max().map_or(0, |&last| last + 1));
                let row = format!("words[{}]", self.operands.len() + self.groups.len());
                self.groups.push(group);
                self.popped.push(i);
                // The first iteration here is the last one there.
                let bottom = format!("{word} + (p.n - 1u - i)");
                let depth = format!("depths{group}[{row} + (p.n - 1u - i)]");
                self.stack(i, format!("popped{group}"), &bottom, &depth, None)?
            }
            LoopVarRole::AddedTo => return Err(NotPrinted::DependentIterations),
        })
    }

    /// Returns the part of a stack that belongs to an iteration.
    fn stack(
        &mut self,
        i: usize,
        words: String,
        bottom: &str,
        depth: &str,
        capacity: Option<String>,
    ) -> Result<BodyValue, NotPrinted> {
        if size_in_words(self.graph.ty(self.operands[i]).element())? != 1 {
            return Err(NotPrinted::SeveralElements);
        }
        self.body.line(format_args!("let bottom{i} = {bottom};"));
        self.body.line(format_args!("var depth{i} = {depth};"));
        let (bottom, distance, depth) = (format!("bottom{i}"), "p.n".to_owned(), format!("depth{i}"));
        Ok(BodyValue::Stack(StackInMemory { words, bottom, distance, depth, capacity }))
    }

    fn bind_groups_and_lists(&mut self) {
        for group in 0..self.groups.iter().max().map_or(0, |&last| last + 1) {
            self.bindings.add(&format!("popped{group}"), "array<u32>", "read");
            self.bindings.add(&format!("depths{group}"), "array<u32>", "read");
        }
        for &i in &self.lists {
            let elements = array_of(self.graph.ty(self.operands[i]).element().dtype);
            self.bindings.add(&format!("elements{i}"), elements, "read_write");
            self.bindings.add(&format!("marks{i}"), "array<u32>", "read_write");
            if self.claimed.contains(&i) {
                self.bindings.add(&format!("claims{i}"), "array<atomic<u32>>", "read_write");
            }
        }
    }

    /// Prints what becomes of the terms of sums, and of counters after the last iteration.
    fn sums_and_counters(&mut self, roles: &[LoopVarRole], nexts: &[Value]) -> Result<(), NotPrinted> {
        let mut counters = Vec::new();
        for ((i, role), &next) in roles.iter().enumerate().zip(nexts) {
            match role {
                LoopVarRole::Counter(_) => {
                    counters.push(word_of_number(&self.body.number(next)?, integer(&self.body, next)?));
                }
                LoopVarRole::Sum => {
                    let (dtype, term) = (self.body.dtype(next)?, self.body.number(next)?);
                    self.bindings.add(&format!("terms{i}"), array_of(dtype), "read_write");
                    self.body.line(format_args!("terms{i}[i] = {};", stored(&term, dtype)));
                }
                _ => {}
            }
        }
        self.bindings.add("counters", "array<u32>", "read_write");
        self.body.block(format_args!("if i == p.n - 1u {{"), |body| {
            for (j, counter) in counters.iter().enumerate() {
                body.line(format_args!("counters[{j}] = {counter};"));
            }
            Ok(())
        })
    }

    /// Prints what becomes of stacks.
    fn stacks(&mut self) -> Result<(), NotPrinted> {
        for i in &self.popped {
            // Each iteration pops all that it should.
            self.body.line(format_args!("is_stuck = is_stuck || depth{i} != 0u;"));
        }
        if self.pushed.is_empty() {
            return Ok(());
        }
        self.bindings.add("pushed", "array<u32>", "read_write");
        self.bindings.add("depths", "array<u32>", "read_write");
        self.bindings.add("needed", "array<atomic<u32>>", "read_write");
        self.body.line(format_args!("let has_failed = is_stuck;"));
        for (row, i) in self.pushed.iter().enumerate() {
            self.body.line(format_args!("depths[{row}u * p.n + i] = depth{i};"));
            self.body.block(format_args!("if depth{i} > words[{i}] {{"), |body| {
                body.line(format_args!("if !has_failed {{ atomicMax(&needed[{row}], depth{i}); }}"));
                body.line(format_args!("is_stuck = true;"));
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Returns the type of a counter of 32 bits.
fn integer(printer: &BodyPrinter<'_>, value: Value) -> Result<DType, NotPrinted> {
    match printer.dtype(value)? {
        dtype @ (DType::I32 | DType::U32) => Ok(dtype),
        dtype => Err(NotPrinted::Type(dtype)),
    }
}

/// The declarations of bindings.
#[derive(Default)]
struct Bindings {
    text: String,
    /// The number of those that are read, and of the others.
    n: [usize; 2],
}

impl Bindings {
    fn add(&mut self, name: &str, ty: &str, access: &str) {
        let binding = self.n[0] + self.n[1];
        self.text += &format!("@group(0) @binding({binding}) var<storage, {access}> {name}: {ty};\n");
        self.n[usize::from(access != "read")] += 1;
    }
}
