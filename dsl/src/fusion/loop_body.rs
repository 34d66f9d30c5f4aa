//! Printing of what a thread of a compute shader does in an iteration of a loop.
//!
//! A thread works on numbers: values with one element, which are variables of the shader. It may
//! read elements of larger tensors and of lists from memory. A small tensor that a body puts
//! together, such as an element of a list, is a number for each of its elements.
//!
//! # Steps
//!
//! A shader that never ends would occupy a device forever, so the loops of a thread end after a
//! number of steps. A thread is *stuck* if its steps end inside of an iteration. It is also stuck
//! where the iteration fails: if an integer is divided by zero, an index is out of bounds or an
//! assertion does not hold. The iteration then runs in another way, which finds the error.

use super::shader_functions::ShaderFunctions;
use super::wgsl::{NotPrinted, index_end, is_nonzero, is_quotient};
use crate::ir::{Graph, ListOp, Node, NodeData, Op, Region, StackOp, Value};
use crate::ops::attributes::{Along, DynamicSlice, IndexRange, Slice};
use crate::ops::{OpClass, Prim, ScalarForm, function_dtype, prim};
use crate::scalars::wgsl::{PRELUDE, type_name};
use crate::{Buffer, DType, HostTensor, TensorType, Type};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The largest number of elements of a tensor that a body puts together.
const MAX_ELEMENTS: usize = 16;

/// A value in the body of a loop.
#[derive(Clone, Debug)]
pub(super) enum BodyValue {
    /// A number, as an expression without effects.
    Number(String),
    /// The numbers of a small tensor in row-major order, as such expressions.
    Numbers(Vec<String>),
    /// A number that all elements of a tensor equal.
    Repeated(String),
    /// A tensor in memory.
    Tensor(TensorInMemory),
    /// A list in memory.
    List(ListInMemory),
    /// A stack in memory.
    Stack(StackInMemory),
}

/// A tensor in memory, or a part of one.
#[derive(Clone, Debug)]
pub(super) struct TensorInMemory {
    /// The name of the binding.
    pub(super) binding: String,
    /// The index of the first element, as an expression.
    first: String,
    /// The extents, and for each axis the distance between two elements.
    axes: Vec<(usize, usize)>,
}

/// A list in memory, whose elements are contiguous.
#[derive(Clone, Debug)]
pub(super) struct ListInMemory {
    /// The name of the binding of the elements.
    pub(super) elements: String,
    /// The name of the binding that marks elements as written, if the body writes some.
    pub(super) marks: Option<String>,
    /// The name of the binding in which an iteration claims the element that it adds to, unless
    /// each adds to another one.
    pub(super) claims: Option<String>,
    /// The number of elements, as an expression.
    pub(super) len: String,
}

/// The part of a stack that belongs to a thread. Its elements are words.
#[derive(Clone, Debug)]
pub(super) struct StackInMemory {
    /// The name of the binding.
    pub(super) words: String,
    /// The index of the element at the bottom, and the distance to the next one, as expressions.
    pub(super) bottom: String,
    pub(super) distance: String,
    /// The name of the variable with the number of elements.
    pub(super) depth: String,
    /// The number of elements up to which pushed ones are stored, as an expression. Later ones are
    /// only counted.
    pub(super) capacity: Option<String>,
}

impl TensorInMemory {
    /// Returns a whole tensor.
    pub(super) fn whole(binding: String, shape: &[usize]) -> TensorInMemory {
        TensorInMemory::contiguous(binding, "0u".to_owned(), shape)
    }

    fn contiguous(binding: String, first: String, shape: &[usize]) -> TensorInMemory {
        let mut axes: Vec<(usize, usize)> = Vec::new();
        let mut distance = 1;
        for &extent in shape.iter().rev() {
            axes.push((extent, distance));
            distance *= extent;
        }
        axes.reverse();
        TensorInMemory { binding, first, axes }
    }

    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.axes.iter().rev().all(|&(extent, distance)| {
            let fits = extent == 1 || distance == expected;
            expected *= extent;
            fits
        })
    }

    /// Returns the places of the elements from the first on, in row-major order.
    fn places(&self) -> Vec<usize> {
        self.axes.iter().fold(vec![0], |places, &(extent, distance)| {
            places.iter().flat_map(|&place| (0..extent).map(move |i| place + i * distance)).collect()
        })
    }
}

/// The size of a tensor whose elements are stored as words of 32 bits that WGSL has a type for.
pub(super) fn size_in_words(ty: &TensorType) -> Result<usize, NotPrinted> {
    type_name(ty.dtype).ok_or(NotPrinted::Type(ty.dtype))?;
    let size = ty.shape.size().ok_or(NotPrinted::SeveralElements)?;
    i32::try_from(size).map(|_| size).map_err(|_| NotPrinted::TooLarge)
}

/// The declaration of an array of elements in memory.
pub(super) fn array_of(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "array<f32>",
        DType::I32 => "array<i32>",
        _ => "array<u32>",
    }
}

/// Returns a word as a number of a type.
pub(super) fn number_of_word(word: &str, dtype: DType) -> String {
    match dtype {
        DType::F32 => format!("bitcast<f32>({word})"),
        DType::I32 => format!("bitcast<i32>({word})"),
        DType::Bool => format!("{word} != 0u"),
        _ => word.to_owned(),
    }
}

/// Returns a number of a type as a word.
pub(super) fn word_of_number(number: &str, dtype: DType) -> String {
    match dtype {
        DType::F32 | DType::I32 => format!("bitcast<u32>({number})"),
        DType::Bool => format!("u32({number})"),
        _ => number.to_owned(),
    }
}

/// Returns a number of a type as an element of an array in memory.
pub(super) fn stored(number: &str, dtype: DType) -> String {
    if dtype == DType::Bool { format!("u32({number})") } else { number.to_owned() }
}

/// The lines of a thread.
pub(super) struct BodyPrinter<'a> {
    pub(super) graph: &'a Graph,
    functions: ShaderFunctions,
    /// The values in scope.
    names: BTreeMap<Value, BodyValue>,
    body: String,
    indentation: usize,
    /// The number of steps after which loops end, as an expression.
    max_steps: String,
    /// The number of places in memory that have a name.
    n_places: usize,
}

impl<'a> BodyPrinter<'a> {
    pub(super) fn new(graph: &'a Graph, max_steps: String) -> BodyPrinter<'a> {
        BodyPrinter {
            graph,
            functions: ShaderFunctions::default(),
            names: BTreeMap::new(),
            body: String::new(),
            indentation: 1,
            max_steps,
            n_places: 0,
        }
    }

    /// Returns the text of the shader, with these declarations before the entry point.
    pub(super) fn finish(self, declarations: &str, entry: &str) -> String {
        let mut code = format!("{PRELUDE}\n");
        for text in self.functions.texts.values() {
            code += &format!("{text}\n");
        }
        code += declarations;
        code += "// The number of steps, and whether the iteration fails or takes too many of them.\n";
        code += "var<private> steps: u32;\nvar<private> is_stuck: bool;\n\n";
        code + &format!("{entry} {{\n{}}}\n", self.body)
    }

    pub(super) fn line(&mut self, line: fmt::Arguments<'_>) {
        writeln!(self.body, "{:1$}{line}", "", 4 * self.indentation).expect("a string takes all text");
    }

    /// Prints lines of a block that begins with a line.
    pub(super) fn block(
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

    /// Prints that the thread is stuck if a condition holds.
    fn stuck_if(&mut self, condition: fmt::Arguments<'_>) {
        self.line(format_args!("is_stuck = is_stuck || {condition};"));
    }

    /// Returns the element type of a value, if it has one element and a type of WGSL.
    pub(super) fn dtype(&self, value: Value) -> Result<DType, NotPrinted> {
        let ty = self.graph.ty(value).as_tensor().ok_or(NotPrinted::SeveralElements)?;
        if ty.shape.size() != Some(1) {
            return Err(NotPrinted::SeveralElements);
        }
        type_name(ty.dtype).map(|_| ty.dtype).ok_or(NotPrinted::Type(ty.dtype))
    }

    pub(super) fn type_of(&self, value: Value) -> Result<&'static str, NotPrinted> {
        let dtype = self.dtype(value)?;
        type_name(dtype).ok_or(NotPrinted::Type(dtype))
    }

    /// Returns a value that is a number.
    pub(super) fn number(&self, value: Value) -> Result<String, NotPrinted> {
        match &self.names[&value] {
            BodyValue::Number(number) => Ok(number.clone()),
            _ => Err(NotPrinted::SeveralElements),
        }
    }

    /// Returns the numbers of a small tensor, which are loaded if it is in memory.
    fn numbers(&self, value: Value) -> Result<Vec<String>, NotPrinted> {
        match &self.names[&value] {
            BodyValue::Number(number) => Ok(vec![number.clone()]),
            BodyValue::Numbers(numbers) => Ok(numbers.clone()),
            BodyValue::Repeated(number) => match self.graph.ty(value).element().shape.size() {
                Some(size) if size <= MAX_ELEMENTS => Ok(vec![number.clone(); size]),
                _ => Err(NotPrinted::SeveralElements),
            },
            BodyValue::Tensor(tensor) => {
                let size: usize = tensor.axes.iter().map(|&(extent, _)| extent).product();
                if size > MAX_ELEMENTS {
                    return Err(NotPrinted::SeveralElements);
                }
                let dtype = self.graph.ty(value).element().dtype;
                Ok(tensor.places().into_iter().map(|place| loaded(tensor, place, dtype)).collect())
            }
            BodyValue::List(_) | BodyValue::Stack(_) => Err(NotPrinted::SeveralElements),
        }
    }

    /// Names the tensor that is a value. A single element is loaded.
    fn name_tensor(&mut self, value: Value, tensor: TensorInMemory) {
        if tensor.axes.iter().all(|&(extent, _)| extent == 1) {
            let element = loaded(&tensor, 0, self.graph.ty(value).element().dtype);
            self.name_number(value, &element);
        } else {
            self.names.insert(value, BodyValue::Tensor(tensor));
        }
    }

    /// Prints a number, and gives it the name of a value.
    fn name_number(&mut self, value: Value, number: &str) {
        let name = format!("v{}", value.index());
        self.line(format_args!("let {name} = {number};"));
        self.names.insert(value, BodyValue::Number(name));
    }

    fn name_numbers(&mut self, value: Value, mut numbers: Vec<String>) {
        let numbers = match &mut numbers[..] {
            [one] => BodyValue::Number(std::mem::take(one)),
            _ => BodyValue::Numbers(numbers),
        };
        self.names.insert(value, numbers);
    }

    /// Prints an index that must be below a number, and returns its name. An index that is not is 0
    /// in the thread, which is stuck.
    fn index(&mut self, index: Value, below: &str) -> Result<String, NotPrinted> {
        self.dtype(index)?;
        let (name, index) = (format!("at{}", self.n_places), self.number(index)?);
        self.n_places += 1;
        self.stuck_if(format_args!("u32({index}) >= {below}"));
        self.line(format_args!("let {name} = select(0u, u32({index}), u32({index}) < {below});"));
        Ok(name)
    }

    /// Prints a loop inside of the body.
    fn inner_loop(&mut self, node: Node) -> Result<(), NotPrinted> {
        let data = self.graph.while_of(node);
        let n = data.n_vars();
        let mut operands = Vec::new();
        let mut variables = Vec::new();
        for (i, &operand) in self.graph.entry_values(node).iter().enumerate() {
            let mut value = self.names[&operand].clone();
            if i < n && matches!(value, BodyValue::Stack(_)) {
                self.names.insert(data.var(i).result, value.clone());
                variables.push(None);
            } else if i < n {
                let (variable, ty) = (format!("v{}", data.var(i).result.index()), self.type_of(operand)?);
                let init = self.number(operand)?;
                self.line(format_args!("var {variable}: {ty} = {init};"));
                value = BodyValue::Number(variable.clone());
                self.names.insert(data.var(i).result, value.clone());
                variables.push(Some(variable));
            }
            operands.push(value);
        }
        let max_steps = self.max_steps.clone();
        self.block(format_args!("loop {{"), |printer| {
            printer.stuck_if(format_args!("steps >= {max_steps}"));
            printer.line(format_args!("steps++;"));
            printer.region(data.cond(), &operands)?;
            let predicate = printer.number(data.predicate())?;
            printer.line(format_args!("if is_stuck || !({predicate}) {{ break; }}"));
            printer.region(data.body(), &operands)?;
            printer.assign(data.nexts(), &variables)
        })
    }

    /// Prints the assignment of the next values to the loop variables that are numbers.
    pub(super) fn assign(&mut self, nexts: &[Value], variables: &[Option<String>]) -> Result<(), NotPrinted> {
        let numbers = || nexts.iter().zip(variables).filter_map(|(&next, variable)| Some((next, variable.as_ref()?)));
        for (i, (next, _)) in numbers().enumerate() {
            let number = self.number(next)?;
            self.line(format_args!("let next{i} = {number};"));
        }
        for (i, (_, variable)) in numbers().enumerate() {
            self.line(format_args!("{variable} = next{i};"));
        }
        Ok(())
    }

    /// Prints the nodes of a region with some arguments.
    pub(super) fn region(&mut self, region: Region, arguments: &[BodyValue]) -> Result<(), NotPrinted> {
        let data = self.graph.region(region);
        for (&param, argument) in data.params.iter().zip(arguments) {
            self.names.insert(param, argument.clone());
        }
        data.nodes.iter().try_for_each(|&node| self.node(node))
    }

    fn node(&mut self, node: Node) -> Result<(), NotPrinted> {
        let data = self.graph.node(node);
        match &data.op {
            Op::Prim(..) => self.primitive(node),
            Op::Constant(tensor) => {
                let ty = self.graph.ty(data.results[0]).element();
                if !(1..=MAX_ELEMENTS).contains(&size_in_words(ty)?) {
                    return Err(NotPrinted::SeveralElements);
                }
                self.name_numbers(data.results[0], literals(tensor));
                Ok(())
            }
            Op::Assert { .. } => {
                let holds = self.number(data.operands[0])?;
                self.stuck_if(format_args!("!({holds})"));
                Ok(())
            }
            Op::Cond => self.cond(node),
            Op::While { .. } => self.inner_loop(node),
            Op::Call(_) => {
                let forward = self.graph.as_call(node).expect("the node is a call").forward();
                let arguments: Vec<_> = data.operands.iter().map(|v| self.names[v].clone()).collect();
                self.region(forward, &arguments)?;
                for (&result, value) in data.results.iter().zip(&self.graph.region(forward).yields) {
                    let value = self.names[value].clone();
                    self.names.insert(result, value);
                }
                Ok(())
            }
            Op::List(op) => self.list_op(data, op),
            Op::Stack(op) => self.stack_op(data, op),
            _ => Err(NotPrinted::SeveralElements),
        }
    }

    fn cond(&mut self, node: Node) -> Result<(), NotPrinted> {
        let (data, construct) = (self.graph.node(node), self.graph.cond_of(node));
        let captures: Vec<_> = self.graph.entry_values(node).iter().map(|v| self.names[v].clone()).collect();
        let is_stack = |&v: &Value| matches!(self.graph.ty(v), Type::Stack(_));
        for &result in data.results.iter().filter(|v| !is_stack(v)) {
            let (name, ty) = (format!("v{}", result.index()), self.type_of(result)?);
            self.line(format_args!("var {name}: {ty};"));
            self.names.insert(result, BodyValue::Number(name));
        }
        let predicate = self.number(construct.predicate())?;
        let [then, otherwise] = construct.branches();
        let branch = |printer: &mut Self, region: Region| {
            printer.region(region, &captures)?;
            for (&result, &end) in data.results.iter().zip(&printer.graph.region(region).yields) {
                if let stack @ BodyValue::Stack(_) = &printer.names[&end] {
                    // Both branches end with the same stack.
                    let stack = stack.clone();
                    printer.names.insert(result, stack);
                    continue;
                }
                let value = printer.number(end)?;
                printer.line(format_args!("v{} = {value};", result.index()));
            }
            Ok(())
        };
        self.line(format_args!("if {predicate} {{"));
        self.indentation += 1;
        branch(self, then)?;
        self.indentation -= 1;
        self.block(format_args!("}} else {{"), |printer| branch(printer, otherwise))
    }

    fn stack_op(&mut self, data: &NodeData, op: &StackOp) -> Result<(), NotPrinted> {
        let Some(BodyValue::Stack(stack)) = data.operands.first().map(|v| self.names[v].clone()) else {
            return Err(NotPrinted::SeveralElements);
        };
        let StackInMemory { words, bottom, distance, depth, capacity } = &stack;
        match (op, capacity) {
            (StackOp::Push, Some(capacity)) => {
                let number = word_of_number(&self.number(data.operands[1])?, self.dtype(data.operands[1])?);
                self.block(format_args!("if {depth} < {capacity} {{"), |printer| {
                    printer.line(format_args!("{words}[{bottom} + {depth} * {distance}] = {number};"));
                    Ok(())
                })?;
                self.line(format_args!("{depth}++;"));
            }
            (StackOp::Pop, None) => {
                let dtype = self.dtype(data.results[1])?;
                self.stuck_if(format_args!("{depth} == 0u"));
                self.line(format_args!("{depth} = max({depth}, 1u) - 1u;"));
                let word = format!("{words}[{bottom} + {depth} * {distance}]");
                self.name_number(data.results[1], &number_of_word(&word, dtype));
            }
            _ => return Err(NotPrinted::SeveralElements),
        }
        self.names.insert(data.results[0], BodyValue::Stack(stack));
        Ok(())
    }

    fn list_op(&mut self, data: &NodeData, op: &ListOp) -> Result<(), NotPrinted> {
        // A list that the body makes is not in memory.
        let Some(BodyValue::List(list)) = data.operands.first().map(|v| self.names[v].clone()) else {
            return Err(NotPrinted::SeveralElements);
        };
        let Type::List(element) = self.graph.ty(data.operands[0]) else { panic!("the operand is a list") };
        let shape = element.shape.known().ok_or(NotPrinted::SeveralElements)?;
        let size = size_in_words(element)?;
        match (op, &list.marks) {
            (ListOp::Read, None) => {
                let at = self.index(data.operands[1], &list.len)?;
                let tensor = TensorInMemory::contiguous(list.elements, times(at, size), &shape);
                self.name_tensor(data.results[0], tensor);
            }
            (ListOp::Len, None) => self.name_number(data.results[0], &format!("i32({})", list.len)),
            (ListOp::Write | ListOp::Accumulate, Some(marks)) => {
                let numbers = self.numbers(data.operands[2])?;
                let at = self.index(data.operands[1], &list.len)?;
                let add = if *op == ListOp::Accumulate {
                    Some(self.functions.function(prim::ADD, element.dtype, element.dtype)?)
                } else {
                    // An element is written once.
                    self.stuck_if(format_args!("{marks}[{at}] != 0u"));
                    None
                };
                if let Some(claims) = &list.claims {
                    self.stuck_if(format_args!("atomicExchange(&{claims}[{at}], 1u) != 0u"));
                }
                self.block(format_args!("if !is_stuck {{"), |printer| {
                    printer.line(format_args!("{marks}[{at}] = 1u;"));
                    for (i, number) in numbers.iter().enumerate() {
                        let element_at = format!("{}[{}]", list.elements, plus(times(at.clone(), size), i));
                        let number = match &add {
                            Some(add) => format!("{add}({element_at}, {number})"),
                            None => stored(number, element.dtype),
                        };
                        printer.line(format_args!("{element_at} = {number};"));
                    }
                    Ok(())
                })?;
                self.names.insert(data.results[0], BodyValue::List(list));
            }
            _ => return Err(NotPrinted::SeveralElements),
        }
        Ok(())
    }

    fn primitive(&mut self, node: Node) -> Result<(), NotPrinted> {
        let data = self.graph.node(node);
        let Op::Prim(op, _) = data.op else { panic!("{node} is a primitive operation") };
        let result = data.results[0];
        if let Some(part) = self.part(data, op)? {
            match part {
                BodyValue::Tensor(tensor) => self.name_tensor(result, tensor),
                BodyValue::Numbers(numbers) => self.name_numbers(result, numbers),
                BodyValue::Repeated(number) if self.graph.ty(result).element().shape.size() == Some(1) => {
                    drop(self.names.insert(result, BodyValue::Number(number)));
                }
                other => drop(self.names.insert(result, other)),
            }
            return Ok(());
        }
        let ty = self.dtype(result)?;
        if data.operands.is_empty() {
            return Err(NotPrinted::NoFunction(op, ty));
        }
        let operand = function_dtype(self.graph, data);
        let operands = data.operands.iter().map(|&v| self.number(v)).collect::<Result<Vec<String>, _>>()?;
        let value = match op.class {
            // A view of one element that has one element.
            OpClass::View(_) | OpClass::Scalar(ScalarForm::Identity) => {
                self.names.insert(result, BodyValue::Number(operands[0].clone()));
                return Ok(());
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
                        self.stuck_if(format_args!("{} == 0", operands[1]));
                    }
                }
                format!("{}({})", self.functions.function(op, operand, ty)?, operands.join(", "))
            }
            _ => return Err(NotPrinted::NoFunction(op, operand)),
        };
        let (name, ty) = (format!("v{}", result.index()), type_name(ty).ok_or(NotPrinted::Type(ty))?);
        self.line(format_args!("let {name}: {ty} = {value};"));
        self.names.insert(result, BodyValue::Number(name));
        Ok(())
    }

    /// Returns the result of an operation that only moves elements, unless it works on single
    /// numbers.
    fn part(&mut self, data: &NodeData, op: Prim) -> Result<Option<BodyValue>, NotPrinted> {
        let Op::Prim(_, attrs) = &data.op else { panic!("the node is a primitive operation") };
        let Some(&first) = data.operands.first() else { return Ok(None) };
        let ty = self.graph.ty(data.results[0]).element();
        let shape = ty.shape.known().ok_or(NotPrinted::SeveralElements)?;
        Ok(match (op, self.names[&first].clone()) {
            (prim::RESHAPE | prim::RESHAPE_LIKE | prim::WITH_DYNAMIC, BodyValue::Tensor(tensor)) => {
                if !tensor.is_contiguous() {
                    return Err(NotPrinted::SeveralElements);
                }
                Some(BodyValue::Tensor(TensorInMemory::contiguous(tensor.binding, tensor.first, &shape)))
            }
            (prim::RESHAPE | prim::RESHAPE_LIKE | prim::WITH_DYNAMIC, numbers @ BodyValue::Numbers(_)) => Some(numbers),
            (prim::RESHAPE | prim::BROADCAST_TO | prim::SLICE, BodyValue::Repeated(number)) => {
                Some(BodyValue::Repeated(number))
            }
            (prim::BROADCAST_TO, BodyValue::Number(number)) if size_in_words(ty)? != 1 => {
                Some(BodyValue::Repeated(number))
            }
            (prim::SLICE, BodyValue::Tensor(mut tensor)) => {
                let Slice { axis, start, step, .. } = Slice::of(attrs);
                let distance = tensor.axes[axis].1;
                tensor.first = plus(tensor.first, start * distance);
                tensor.axes[axis] = (shape[axis], distance * step);
                Some(BodyValue::Tensor(tensor))
            }
            (prim::DYNAMIC_SLICE, BodyValue::Tensor(mut tensor)) => {
                let DynamicSlice { axis, size } = DynamicSlice::of(attrs);
                let (extent, distance) = tensor.axes[axis];
                let at = self.index(data.operands[1], &format!("{}u", extent - size + 1))?;
                let part = times(at, distance);
                tensor.first = if tensor.first == "0u" { part } else { format!("{} + {part}", tensor.first) };
                tensor.axes[axis].0 = size;
                Some(BodyValue::Tensor(tensor))
            }
            (prim::CHECK_INDEX, BodyValue::Number(number)) => {
                let end = index_end(IndexRange::of(attrs), self.dtype(first)?)?;
                self.stuck_if(format_args!("u32({number}) >= {end}u"));
                Some(BodyValue::Number(number))
            }
            (prim::CONCAT, _) if Along::of(attrs).axis == 0 => {
                if size_in_words(ty)? > MAX_ELEMENTS {
                    return Err(NotPrinted::SeveralElements);
                }
                let parts = data.operands.iter().map(|&v| self.numbers(v)).collect::<Result<Vec<_>, _>>()?;
                Some(BodyValue::Numbers(parts.concat()))
            }
            _ => None,
        })
    }
}

/// Returns a capture that a shader reads in memory, a tensor with several elements or a list, by
/// the name of its binding. `len` is the word with the length of the list.
///
/// # Errors
/// Returns the reason if WGSL lacks the type.
pub(super) fn captured(graph: &Graph, value: Value, binding: &str, len: &str) -> Result<Option<BodyValue>, NotPrinted> {
    let ty = graph.ty(value);
    Ok(match ty {
        Type::Tensor(element) => {
            let shape = element.shape.known().ok_or(NotPrinted::SeveralElements)?;
            match size_in_words(element)? {
                1 => None,
                0 => return Err(NotPrinted::NoElements),
                _ => Some(BodyValue::Tensor(TensorInMemory::whole(binding.to_owned(), &shape))),
            }
        }
        Type::List(element) => {
            if size_in_words(element)? == 0 {
                return Err(NotPrinted::NoElements);
            }
            let (elements, len) = (binding.to_owned(), len.to_owned());
            Some(BodyValue::List(ListInMemory { elements, marks: None, claims: None, len }))
        }
        Type::Stack(_) => return Err(NotPrinted::SeveralElements),
    })
}

/// Returns an index a number of elements further.
fn plus(index: String, n: usize) -> String {
    match n {
        0 => index,
        _ if index == "0u" => format!("{n}u"),
        _ => format!("{index} + {n}u"),
    }
}

fn times(index: String, n: usize) -> String {
    if n == 1 { index } else { format!("{index} * {n}u") }
}

/// Returns an element of a tensor in memory.
fn loaded(tensor: &TensorInMemory, place: usize, dtype: DType) -> String {
    let element = format!("{}[{}]", tensor.binding, plus(tensor.first.clone(), place));
    if dtype == DType::Bool { format!("({element} != 0u)") } else { element }
}

/// Returns the elements of a tensor, which has a type of WGSL.
fn literals(tensor: &HostTensor) -> Vec<String> {
    match tensor.buffer() {
        Buffer::F32(x) => x.iter().map(|&x| float(x)).collect(),
        // The smallest integer has no literal.
        Buffer::I32(x) => x.iter().map(|&x| format!("bitcast<i32>({}u)", x as u32)).collect(),
        Buffer::U32(x) => x.iter().map(|x| format!("{x}u")).collect(),
        Buffer::Bool(x) => x.iter().map(ToString::to_string).collect(),
        other => panic!("WGSL has no {}", other.dtype()),
    }
}

fn float(x: f32) -> String {
    match x {
        x if x.is_finite() => format!("({x:?}f)"),
        x => {
            let sign = if x.is_sign_negative() { "-" } else { "" };
            format!("({sign}bitcast<f32>({}_bits))", if x.is_nan() { "nan" } else { "infinity" })
        }
    }
}
