//! Printing of loops over scalars as compute shaders, which run many iterations without the host.
//!
//! A loop has a shader if every value in it has one element, and if it has only elementwise
//! operations, views, constants, assertions, branches and loops. One thread runs the loop.
//!
//! # Steps
//!
//! A shader that never ends would occupy a device forever. So a run ends after [`MAX_LOOP_STEPS`]
//! steps, with the state that the loop then has, and its caller runs it again. A step is an
//! iteration, also one of an inner loop, or the end of an inner loop. A run whose steps end inside
//! of an inner loop ends with the state before that iteration of the outer loop. If the iteration
//! alone takes too many steps, the run is stuck. It is also stuck if the iteration fails: if an
//! integer is divided by zero, or an assertion does not hold. The caller then runs the iteration in
//! another way, which finds the error.
//!
//! # Memory
//!
//! The only binding is an array of words. The first one is the state of the loop, one of
//! [`LOOP_STATES`], and those after it are the operands of the node, of which the shader changes
//! the loop variables.

use super::wgsl::{NotPrinted, ShaderFunctions, is_nonzero, is_quotient};
use crate::ir::{Graph, Node, Op, Region, Value};
use crate::ops::{OpClass, ScalarForm, prim};
use crate::scalars::wgsl::{PRELUDE, type_name};
use crate::{Buffer, DType, HostTensor};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The number of steps after which a run ends. Some drivers that compute on a CPU end the loops of
/// a thread after 65,535 iterations together, whatever their conditions are.
pub const MAX_LOOP_STEPS: u32 = 1 << 15;

/// The states of a loop after a run: its condition is false, it goes on, or it is stuck.
pub const LOOP_STATES: [u32; 3] = [0, 1, 2];

/// A loop over scalars as a shader with the entry point `main`, for one workgroup; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopShader {
    /// The text.
    pub code: String,
    /// The number of words of the binding.
    pub n_words: usize,
}

impl LoopShader {
    /// Returns the shader of a `while`.
    ///
    /// # Errors
    /// Returns the reason if a value has several elements, if WGSL lacks a type, or if an operation
    /// is not elementwise.
    ///
    /// # Panics
    /// Panics if the node is not a `while`.
    pub fn new(graph: &Graph, node: Node) -> Result<LoopShader, NotPrinted> {
        let mut printer = LoopPrinter {
            graph,
            functions: ShaderFunctions::default(),
            names: BTreeMap::new(),
            body: String::new(),
            indentation: 1,
        };
        let data = graph.node(node);
        let mut stored = Vec::new();
        for (i, &operand) in data.operands.iter().enumerate() {
            let dtype = printer.dtype(operand)?;
            let word = format!("words[{}]", i + 1);
            let (loaded, from) = match dtype {
                DType::F32 => (format!("bitcast<f32>({word})"), format!("bitcast<u32>(w{i})")),
                DType::I32 => (format!("bitcast<i32>({word})"), format!("bitcast<u32>(w{i})")),
                DType::Bool => (format!("{word} != 0u"), format!("u32(w{i})")),
                _ => (word.clone(), format!("w{i}")),
            };
            let ty = type_name(dtype).ok_or(NotPrinted::Type(dtype))?;
            printer.line(format_args!("var w{i}: {ty} = {loaded};"));
            stored.push(format!("{word} = {from};"));
        }
        printer.line(format_args!("var state = {}u;", LOOP_STATES[1]));
        let operands: Vec<String> = (0..data.operands.len()).map(|i| format!("w{i}")).collect();
        printer.outer_loop(node, &operands)?;
        stored.truncate(graph.while_of(node).n_vars());
        for line in &stored {
            printer.line(format_args!("{line}"));
        }
        printer.line(format_args!("words[0] = state;"));
        let mut code = format!("{PRELUDE}\n");
        for text in printer.functions.texts.values() {
            code += &format!("{text}\n");
        }
        code += "@group(0) @binding(0) var<storage, read_write> words: array<u32>;\n";
        code += "// The number of steps, and whether the iteration fails or takes too many of them.\n";
        code += "var<private> steps: u32;\nvar<private> is_stuck: bool;\n\n";
        code += &format!("@compute @workgroup_size(1)\nfn main() {{\n{}}}\n", printer.body);
        Ok(LoopShader { code, n_words: data.operands.len() + 1 })
    }
}

struct LoopPrinter<'a> {
    graph: &'a Graph,
    functions: ShaderFunctions,
    /// The names of the values in scope.
    names: BTreeMap<Value, String>,
    body: String,
    indentation: usize,
}

impl LoopPrinter<'_> {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        writeln!(self.body, "{:1$}{line}", "", 4 * self.indentation).expect("a string takes all text");
    }

    /// Prints lines of a block that begins with a line.
    fn block(
        &mut self,
        first: fmt::Arguments<'_>,
        lines: impl FnOnce(&mut Self) -> Result<(), NotPrinted>,
    ) -> Result<(), NotPrinted> {
        self.line(first);
        self.indentation += 1;
        lines(self)?;
        self.indentation -= 1;
        self.line(format_args!("}}"));
        Ok(())
    }

    /// Returns the element type of a value, if it has one element and a type of WGSL.
    fn dtype(&self, value: Value) -> Result<DType, NotPrinted> {
        let ty = self.graph.ty(value).as_tensor().ok_or(NotPrinted::SeveralElements)?;
        if ty.shape.size() != Some(1) {
            return Err(NotPrinted::SeveralElements);
        }
        type_name(ty.dtype).map(|_| ty.dtype).ok_or(NotPrinted::Type(ty.dtype))
    }

    fn type_of(&self, value: Value) -> Result<&'static str, NotPrinted> {
        let dtype = self.dtype(value)?;
        type_name(dtype).ok_or(NotPrinted::Type(dtype))
    }

    fn name(&self, value: Value) -> String {
        self.names[&value].clone()
    }

    /// Prints the loop of the shader, whose variables and captures have names.
    fn outer_loop(&mut self, node: Node, operands: &[String]) -> Result<(), NotPrinted> {
        let data = self.graph.while_of(node);
        let [ends, _, stuck] = LOOP_STATES;
        // The iteration of an inner loop that has ended a long run begins again in another run.
        let leave = format!("if steps < {MAX_LOOP_STEPS}u || is_first {{ state = {stuck}u; }}");
        self.block(format_args!("loop {{"), |printer| {
            printer.line(format_args!("let is_first = steps == 0u;"));
            printer.region(data.cond(), operands)?;
            let predicate = printer.name(data.predicate());
            printer.line(format_args!("if is_stuck {{ {leave} break; }}"));
            printer.line(format_args!("if !({predicate}) {{ state = {ends}u; break; }}"));
            printer.line(format_args!("if steps >= {MAX_LOOP_STEPS}u {{ break; }}"));
            printer.line(format_args!("steps++;"));
            printer.region(data.body(), operands)?;
            printer.line(format_args!("if is_stuck {{ {leave} break; }}"));
            printer.assign(data.nexts(), &operands[..data.n_vars()])
        })
    }

    /// Prints a loop inside the loop of the shader.
    fn inner_loop(&mut self, node: Node) -> Result<(), NotPrinted> {
        let data = self.graph.while_of(node);
        let n = data.n_vars();
        let mut operands = Vec::new();
        for (i, &operand) in self.graph.entry_values(node).iter().enumerate() {
            operands.push(self.name(operand));
            if i < n {
                let (variable, ty) = (format!("v{}", data.var(i).result.index()), self.type_of(operand)?);
                self.line(format_args!("var {variable}: {ty} = {};", operands[i]));
                operands[i] = variable;
            }
        }
        self.block(format_args!("loop {{"), |printer| {
            printer.line(format_args!("is_stuck = is_stuck || steps >= {MAX_LOOP_STEPS}u;"));
            printer.line(format_args!("steps++;"));
            printer.region(data.cond(), &operands)?;
            let predicate = printer.name(data.predicate());
            printer.line(format_args!("if is_stuck || !({predicate}) {{ break; }}"));
            printer.region(data.body(), &operands)?;
            printer.assign(data.nexts(), &operands[..n])
        })?;
        for (var, name) in data.vars().zip(operands) {
            self.names.insert(var.result, name);
        }
        Ok(())
    }

    /// Prints the assignment of the next values to loop variables.
    fn assign(&mut self, nexts: &[Value], variables: &[String]) -> Result<(), NotPrinted> {
        for (i, &next) in nexts.iter().enumerate() {
            let name = self.name(next);
            self.line(format_args!("let next{i} = {name};"));
        }
        for (i, variable) in variables.iter().enumerate() {
            self.line(format_args!("{variable} = next{i};"));
        }
        Ok(())
    }

    /// Prints the nodes of a region whose parameters have names.
    fn region(&mut self, region: Region, parameters: &[String]) -> Result<(), NotPrinted> {
        let data = self.graph.region(region);
        for (&param, name) in data.params.iter().zip(parameters) {
            self.dtype(param)?;
            self.names.insert(param, name.clone());
        }
        data.nodes.iter().try_for_each(|&node| self.node(node))
    }

    fn node(&mut self, node: Node) -> Result<(), NotPrinted> {
        let data = self.graph.node(node);
        match &data.op {
            Op::Prim(..) => self.primitive(node),
            Op::Constant(tensor) => {
                self.dtype(data.results[0])?;
                self.names.insert(data.results[0], literal(tensor));
                Ok(())
            }
            Op::Assert { .. } => {
                let holds = self.name(data.operands[0]);
                self.line(format_args!("is_stuck = is_stuck || !({holds});"));
                Ok(())
            }
            Op::Cond => {
                let construct = self.graph.cond_of(node);
                let captures: Vec<String> = self.graph.entry_values(node).iter().map(|&v| self.name(v)).collect();
                for &result in &data.results {
                    let (name, ty) = (format!("v{}", result.index()), self.type_of(result)?);
                    self.line(format_args!("var {name}: {ty};"));
                    self.names.insert(result, name);
                }
                let predicate = self.name(construct.predicate());
                let [then, otherwise] = construct.branches();
                let branch = |printer: &mut Self, region: Region| {
                    printer.region(region, &captures)?;
                    for (i, &result) in data.results.iter().enumerate() {
                        let value = printer.name(printer.graph.region(region).yields[i]);
                        printer.line(format_args!("v{} = {value};", result.index()));
                    }
                    Ok(())
                };
                self.block(format_args!("if {predicate} {{"), |printer| branch(printer, then))?;
                self.block(format_args!("if !({predicate}) {{"), |printer| branch(printer, otherwise))
            }
            Op::While { .. } => self.inner_loop(node),
            _ => Err(NotPrinted::SeveralElements),
        }
    }

    fn primitive(&mut self, node: Node) -> Result<(), NotPrinted> {
        let data = self.graph.node(node);
        let Op::Prim(op, _) = data.op else { panic!("{node} is a primitive operation") };
        let (result, ty) = (data.results[0], self.type_of(data.results[0])?);
        let Some(&first) = data.operands.first() else { return Err(NotPrinted::NoFunction(op, self.dtype(result)?)) };
        let operand = self.dtype(first)?;
        let operands: Vec<String> = data.operands.iter().map(|&v| self.name(v)).collect();
        let value = match op.class {
            // A view of one element that has one element.
            OpClass::View(_) | OpClass::Scalar(ScalarForm::Identity) => {
                self.names.insert(result, operands[0].clone());
                return Ok(());
            }
            OpClass::Scalar(_) if op == prim::CAST => {
                self.functions.cast(&operands[0], operand, self.dtype(result)?)?
            }
            // A remainder of floats is not exact in WGSL.
            OpClass::Scalar(_) if op == prim::REM && operand.is_float() => {
                return Err(NotPrinted::NoFunction(op, operand));
            }
            OpClass::Scalar(_) => {
                if op.can_fail(operand) {
                    if !is_quotient(op) {
                        return Err(NotPrinted::CanFail(op));
                    }
                    if !is_nonzero(self.graph, data.operands[1]) {
                        self.line(format_args!("is_stuck = is_stuck || {} == 0;", operands[1]));
                    }
                }
                let dtype = if op == prim::SELECT { self.dtype(result)? } else { operand };
                format!("{}({})", self.functions.function(op, dtype)?, operands.join(", "))
            }
            _ => return Err(NotPrinted::NoFunction(op, operand)),
        };
        let name = format!("v{}", result.index());
        self.line(format_args!("let {name}: {ty} = {value};"));
        self.names.insert(result, name);
        Ok(())
    }
}

/// Returns the only element of a tensor, which has a type of WGSL.
fn literal(tensor: &HostTensor) -> String {
    match tensor.buffer() {
        Buffer::F32(x) if x[0].is_finite() => format!("({:?}f)", x[0]),
        Buffer::F32(x) => {
            let sign = if x[0].is_sign_negative() { "-" } else { "" };
            format!("({sign}bitcast<f32>({}_bits))", if x[0].is_nan() { "nan" } else { "infinity" })
        }
        // The smallest integer has no literal.
        Buffer::I32(x) => format!("bitcast<i32>({}u)", x[0] as u32),
        Buffer::U32(x) => format!("{}u", x[0]),
        Buffer::Bool(x) => x[0].to_string(),
        other => panic!("WGSL has no {}", other.dtype()),
    }
}
