//! A slow device for compute shaders, which runs the parsed form of a shader.
//!
//! The threads of a workgroup run in step: each statement is executed by all threads that reach it,
//! before the next statement. A barrier that not all threads reach is an error.

use anabranch::dsl::Buffer;
use anabranch::{DType, HostTensor};
use naga::{BinaryOperator, BuiltIn, Expression, Handle, Literal, MathFunction, ScalarKind, Statement, UnaryOperator};
use naga::{Binding, Block, Function, Module, TypeInner};

#[derive(Clone, Copy, Debug, PartialEq)]
enum ShaderNumber {
    F32(f32),
    I32(i32),
    U32(u32),
    Bool(bool),
}
use ShaderNumber::{Bool, F32, I32, U32};

/// A number, or the elements of a vector or an array.
type Numbers = Vec<ShaderNumber>;

/// Runs the entry point of a shader. The tensors of its bindings are `inputs`, then outputs of the
/// given types, which are returned.
pub fn run(shader: &str, workgroups: [usize; 2], inputs: &[&HostTensor], outputs: &[(DType, usize)]) -> Vec<Buffer> {
    let mut storage: Vec<Numbers> = inputs.iter().map(|t| numbers(t.buffer())).collect();
    storage.extend(outputs.iter().map(|&(dtype, n)| numbers(&Buffer::zeros(dtype, n))));
    run_on(shader, workgroups, &mut storage);
    storage[inputs.len()..].iter().zip(outputs).map(|(all, &(dtype, _))| buffer(all, dtype)).collect()
}

/// Runs one workgroup of a shader whose only binding is a tensor, and returns the tensor after it.
pub fn run_in_place(shader: &str, tensor: &HostTensor) -> Buffer {
    let mut storage = vec![numbers(tensor.buffer())];
    run_on(shader, [1, 1], &mut storage);
    buffer(&storage[0], tensor.dtype())
}

fn run_on(shader: &str, workgroups: [usize; 2], storage: &mut [Numbers]) {
    let module = naga::front::wgsl::parse_str(shader).expect("the shader is valid");
    let entry = &module.entry_points[0];
    let n_threads = entry.workgroup_size[0] as usize;
    for y in 0..workgroups[1] {
        for x in 0..workgroups[0] {
            let argument = |thread: usize, binding: Option<&Binding>| match binding {
                Some(Binding::BuiltIn(BuiltIn::WorkGroupId)) => vec![U32(x as u32), U32(y as u32), U32(0)],
                Some(Binding::BuiltIn(BuiltIn::NumWorkGroups)) => {
                    vec![U32(workgroups[0] as u32), U32(workgroups[1] as u32), U32(1)]
                }
                Some(Binding::BuiltIn(BuiltIn::LocalInvocationIndex)) => vec![U32(thread as u32)],
                other => panic!("{other:?} is not an argument of a kernel"),
            };
            let arguments = (0..n_threads)
                .map(|t| entry.function.arguments.iter().map(|a| argument(t, a.binding.as_ref())).collect())
                .collect();
            let mut group = Workgroup { module: &module, storage, globals: Vec::new(), n_threads };
            group.globals = (0..n_threads).map(|_| group.initial()).collect();
            group.call(&entry.function, arguments, &(0..n_threads).collect::<Vec<_>>());
        }
    }
}

fn numbers(buffer: &Buffer) -> Numbers {
    match buffer {
        Buffer::F32(d) => d.iter().map(|&x| F32(x)).collect(),
        Buffer::I32(d) => d.iter().map(|&x| I32(x)).collect(),
        Buffer::U32(d) => d.iter().map(|&x| U32(x)).collect(),
        Buffer::Bool(d) => d.iter().map(|&x| U32(x.into())).collect(),
        other => panic!("WGSL has no {}", other.dtype()),
    }
}

fn buffer(all: &[ShaderNumber], dtype: DType) -> Buffer {
    match dtype {
        DType::F32 => Buffer::F32(all.iter().map(|&x| if let F32(x) = x { x } else { panic!("{x:?}") }).collect()),
        DType::I32 => Buffer::I32(all.iter().map(|&x| if let I32(x) = x { x } else { panic!("{x:?}") }).collect()),
        DType::U32 => Buffer::U32(all.iter().map(|&x| index(x) as u32).collect()),
        DType::Bool => Buffer::Bool(all.iter().map(|&x| [false, true][index(x)]).collect()),
        other => panic!("WGSL has no {other}"),
    }
}

fn index(x: ShaderNumber) -> usize {
    match x {
        U32(x) => x as usize,
        I32(x) => usize::try_from(x).expect("an index is not negative"),
        other => panic!("{other:?} is not an index"),
    }
}

/// The place of a variable, or of one of its elements.
#[derive(Clone, Copy)]
struct ShaderPlace {
    variable: ShaderVariable,
    element: Option<usize>,
    /// The numbers of the element: more than one if it is a vector.
    n: usize,
}

#[derive(Clone, Copy)]
enum ShaderVariable {
    Global(Handle<naga::GlobalVariable>),
    Local(Handle<naga::LocalVariable>),
}

/// Where a thread goes on after a statement.
#[derive(Clone, PartialEq)]
enum Next {
    Statement,
    EndOfLoop,
    Iteration,
    Caller(Option<Numbers>),
}

/// The state of a function call, for each thread of the workgroup.
struct CallFrame<'f> {
    function: &'f Function,
    arguments: Vec<Vec<Numbers>>,
    locals: Vec<Vec<Numbers>>,
    values: Vec<Vec<Option<Numbers>>>,
    next: Vec<Next>,
}

impl CallFrame<'_> {
    /// Returns those of some threads that go on with the next statement.
    fn running(&self, threads: &[usize]) -> Vec<usize> {
        threads.iter().copied().filter(|&t| self.next[t] == Next::Statement).collect()
    }
}

struct Workgroup<'m, 's> {
    module: &'m Module,
    /// The tensors of the bindings.
    storage: &'s mut [Numbers],
    /// The other global variables of each thread. The first thread has those of the workgroup.
    globals: Vec<Vec<Numbers>>,
    n_threads: usize,
}

impl<'m> Workgroup<'m, '_> {
    fn initial(&self) -> Vec<Numbers> {
        let value = |variable: &naga::GlobalVariable| match variable.init {
            Some(init) => self.constant(init),
            // The number of the only check.
            None if variable.space == naga::AddressSpace::Immediate => vec![U32(1)],
            None => self.zero(variable.ty),
        };
        self.module.global_variables.iter().map(|(_, variable)| value(variable)).collect()
    }

    fn constant(&self, e: Handle<Expression>) -> Numbers {
        match &self.module.global_expressions[e] {
            Expression::Literal(literal) => vec![number(*literal)],
            Expression::Constant(c) => self.constant(self.module.constants[*c].init),
            Expression::Compose { components, .. } => components.iter().flat_map(|&c| self.constant(c)).collect(),
            Expression::ZeroValue(ty) => self.zero(*ty),
            other => panic!("{other:?} is not expected in a constant"),
        }
    }

    fn zero(&self, ty: Handle<naga::Type>) -> Numbers {
        let zero = |scalar: naga::Scalar| match scalar.kind {
            ScalarKind::Float => F32(0.0),
            ScalarKind::Sint => I32(0),
            ScalarKind::Uint => U32(0),
            _ => Bool(false),
        };
        match self.module.types[ty].inner {
            TypeInner::Scalar(scalar) => vec![zero(scalar)],
            TypeInner::Vector { size, scalar } => vec![zero(scalar); size as usize],
            TypeInner::Array { base, size: naga::ArraySize::Constant(n), .. } => {
                vec![self.zero(base)[0]; n.get() as usize]
            }
            _ => Vec::new(),
        }
    }

    /// Calls a function in some threads, and returns the result of each thread.
    fn call(
        &mut self,
        function: &'m Function,
        arguments: Vec<Vec<Numbers>>,
        threads: &[usize],
    ) -> Vec<Option<Numbers>> {
        let locals = function.local_variables.iter().map(|(_, local)| self.zero(local.ty)).collect();
        let mut frame = CallFrame {
            function,
            arguments,
            locals: vec![locals; self.n_threads],
            values: vec![vec![None; function.expressions.len()]; self.n_threads],
            next: vec![Next::Statement; self.n_threads],
        };
        for (handle, local) in function.local_variables.iter() {
            for &t in threads.iter().filter(|_| local.init.is_some()) {
                let init = local.init.expect("the filter leaves those with an initial value");
                frame.locals[t][handle.index()] = self.value(&frame, t, init);
            }
        }
        self.block(&mut frame, &function.body, threads);
        let result = |next: Next| if let Next::Caller(value) = next { value } else { None };
        frame.next.into_iter().map(result).collect()
    }

    fn block(&mut self, frame: &mut CallFrame<'m>, block: &'m Block, threads: &[usize]) {
        for statement in block.iter() {
            let threads = frame.running(threads);
            if !threads.is_empty() {
                self.statement(frame, statement, &threads);
            }
        }
    }

    fn statement(&mut self, frame: &mut CallFrame<'m>, statement: &'m Statement, threads: &[usize]) {
        match statement {
            Statement::Emit(range) => {
                for &t in threads {
                    for e in range.clone().filter(|&e| !is_pointer(frame.function, e)) {
                        frame.values[t][e.index()] = None;
                        frame.values[t][e.index()] = Some(self.value(frame, t, e));
                    }
                }
            }
            Statement::Block(block) => self.block(frame, block, threads),
            Statement::If { condition, accept, reject } => {
                let is_true = |&t: &usize| self.value(frame, t, *condition) == [Bool(true)];
                let (then, otherwise): (Vec<usize>, Vec<usize>) = threads.iter().partition(|t| is_true(t));
                self.block(frame, accept, &then);
                self.block(frame, reject, &otherwise);
            }
            Statement::Loop { body, continuing, break_if } => {
                let mut inside = threads.to_vec();
                while !inside.is_empty() {
                    self.block(frame, body, &inside);
                    for &t in &inside {
                        if frame.next[t] == Next::Iteration {
                            frame.next[t] = Next::Statement;
                        }
                    }
                    inside = frame.running(&inside);
                    self.block(frame, continuing, &inside);
                    if let Some(e) = *break_if {
                        inside.retain(|&t| self.value(frame, t, e) != [Bool(true)]);
                    }
                }
                for &t in threads {
                    if frame.next[t] == Next::EndOfLoop {
                        frame.next[t] = Next::Statement;
                    }
                }
            }
            Statement::Break => threads.iter().for_each(|&t| frame.next[t] = Next::EndOfLoop),
            Statement::Continue => threads.iter().for_each(|&t| frame.next[t] = Next::Iteration),
            Statement::Return { value } => {
                for &t in threads {
                    frame.next[t] = Next::Caller(value.map(|e| self.value(frame, t, e)));
                }
            }
            Statement::ControlBarrier(_) => {
                assert_eq!(threads.len(), self.n_threads, "a barrier that not all threads reach");
            }
            Statement::Store { pointer, value } => {
                for &t in threads {
                    let value = self.value(frame, t, *value);
                    let place = self.place(frame, t, *pointer);
                    let variable = match place.variable {
                        ShaderVariable::Local(v) => &mut frame.locals[t][v.index()],
                        ShaderVariable::Global(v) => self.global(t, v),
                    };
                    match place.element {
                        Some(i) => variable[i..i + place.n].copy_from_slice(&value),
                        None => *variable = value,
                    }
                }
            }
            Statement::Atomic { pointer, fun: naga::AtomicFunction::Max, value, .. } => {
                for &t in threads {
                    let value = index(self.value(frame, t, *value)[0]);
                    let ShaderVariable::Global(v) = self.place(frame, t, *pointer).variable else {
                        panic!("an atomic variable is global")
                    };
                    let variable = self.global(t, v);
                    variable[0] = U32(index(variable[0]).max(value) as u32);
                }
            }
            Statement::Call { function, arguments, result } => {
                let mut of_all = vec![Vec::new(); self.n_threads];
                for &t in threads {
                    of_all[t] = arguments.iter().map(|&e| self.value(frame, t, e)).collect();
                }
                let results = self.call(&self.module.functions[*function], of_all, threads);
                if let Some(e) = result {
                    threads.iter().for_each(|&t| frame.values[t][e.index()] = results[t].clone());
                }
            }
            other => panic!("{other:?} is not expected in a kernel"),
        }
    }

    fn global(&mut self, thread: usize, variable: Handle<naga::GlobalVariable>) -> &mut Numbers {
        let of = &self.module.global_variables[variable];
        match &of.binding {
            Some(binding) => &mut self.storage[binding.binding as usize],
            None if of.space == naga::AddressSpace::WorkGroup => &mut self.globals[0][variable.index()],
            None => &mut self.globals[thread][variable.index()],
        }
    }

    /// Returns how many numbers an element of a type has.
    fn numbers_of_element(&self, ty: Handle<naga::Type>) -> usize {
        match self.module.types[ty].inner {
            TypeInner::Array { base, .. } => match self.module.types[base].inner {
                TypeInner::Vector { size, .. } => size as usize,
                _ => 1,
            },
            _ => 1,
        }
    }

    /// Returns the place that a pointer refers to.
    fn place(&self, frame: &CallFrame<'_>, t: usize, pointer: Handle<Expression>) -> ShaderPlace {
        let element = |base: Handle<Expression>, i: usize| {
            let place = self.place(frame, t, base);
            let n = match (place.variable, place.element) {
                (ShaderVariable::Global(v), None) => self.numbers_of_element(self.module.global_variables[v].ty),
                _ => 1,
            };
            ShaderPlace { element: Some(place.element.unwrap_or(0) + i * n), n, ..place }
        };
        match frame.function.expressions[pointer] {
            Expression::GlobalVariable(v) => ShaderPlace { variable: ShaderVariable::Global(v), element: None, n: 1 },
            Expression::LocalVariable(v) => ShaderPlace { variable: ShaderVariable::Local(v), element: None, n: 1 },
            Expression::AccessIndex { base, index } => element(base, index as usize),
            Expression::Access { base, index: i } => element(base, index(self.value(frame, t, i)[0])),
            ref other => panic!("{other:?} is not a pointer"),
        }
    }

    fn value(&self, frame: &CallFrame<'_>, t: usize, e: Handle<Expression>) -> Numbers {
        if let Some(value) = &frame.values[t][e.index()] {
            return value.clone();
        }
        let value = |e: Handle<Expression>| self.value(frame, t, e);
        match frame.function.expressions[e] {
            Expression::Literal(literal) => vec![number(literal)],
            Expression::Constant(c) => self.constant(self.module.constants[c].init),
            Expression::ZeroValue(ty) => self.zero(ty),
            Expression::Compose { ref components, .. } => components.iter().flat_map(|&c| value(c)).collect(),
            Expression::Splat { size, value: x } => vec![value(x)[0]; size as usize],
            Expression::Access { base, index: i } => vec![value(base)[index(value(i)[0])]],
            Expression::AccessIndex { base, index } => vec![value(base)[index as usize]],
            Expression::FunctionArgument(i) => frame.arguments[t][i as usize].clone(),
            Expression::Load { pointer } => {
                let ShaderPlace { variable, element, n } = self.place(frame, t, pointer);
                let variable = match variable {
                    ShaderVariable::Local(v) => &frame.locals[t][v.index()],
                    ShaderVariable::Global(v) => match &self.module.global_variables[v] {
                        naga::GlobalVariable { binding: Some(binding), .. } => &self.storage[binding.binding as usize],
                        naga::GlobalVariable { space: naga::AddressSpace::WorkGroup, .. } => {
                            &self.globals[0][v.index()]
                        }
                        _ => &self.globals[t][v.index()],
                    },
                };
                element.map_or_else(|| variable.clone(), |i| variable[i..i + n].to_vec())
            }
            Expression::Unary { op, expr } => value(expr).into_iter().map(|x| unary(op, x)).collect(),
            Expression::Binary { op, left, right } => {
                value(left).into_iter().zip(value(right)).map(|(x, y)| binary(op, x, y)).collect()
            }
            Expression::Select { condition, accept, reject } => {
                value(if value(condition) == [Bool(true)] { accept } else { reject })
            }
            Expression::Math { fun, arg, arg1, arg2, .. } => {
                let arguments: Vec<ShaderNumber> =
                    [Some(arg), arg1, arg2].into_iter().flatten().map(|e| value(e)[0]).collect();
                vec![math(fun, &arguments)]
            }
            Expression::As { expr, kind, convert } => value(expr)
                .into_iter()
                .map(|x| if convert.is_some() { converted(x, kind) } else { cast(x, kind) })
                .collect(),
            ref other => panic!("{other:?} is not expected in a kernel"),
        }
    }
}

/// Returns whether an expression is a place in memory instead of a value.
fn is_pointer(function: &Function, e: Handle<Expression>) -> bool {
    match function.expressions[e] {
        Expression::GlobalVariable(_) | Expression::LocalVariable(_) => true,
        Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => is_pointer(function, base),
        _ => false,
    }
}

fn number(literal: Literal) -> ShaderNumber {
    match literal {
        Literal::F32(x) => F32(x),
        Literal::I32(x) => I32(x),
        Literal::U32(x) => U32(x),
        Literal::Bool(x) => Bool(x),
        other => panic!("{other:?} is not expected in a kernel"),
    }
}

fn unary(op: UnaryOperator, x: ShaderNumber) -> ShaderNumber {
    match (op, x) {
        (UnaryOperator::Negate, F32(x)) => F32(-x),
        (UnaryOperator::Negate, I32(x)) => I32(x.wrapping_neg()),
        (UnaryOperator::LogicalNot, Bool(x)) => Bool(!x),
        (UnaryOperator::BitwiseNot, I32(x)) => I32(!x),
        (UnaryOperator::BitwiseNot, U32(x)) => U32(!x),
        other => panic!("{other:?} is not expected in a kernel"),
    }
}

fn binary(op: BinaryOperator, x: ShaderNumber, y: ShaderNumber) -> ShaderNumber {
    use BinaryOperator as B;
    match (op, x, y) {
        (B::Equal, ..) => return Bool(x == y),
        (B::NotEqual, ..) => return Bool(x != y),
        _ => {}
    }
    match (x, y) {
        (F32(a), F32(b)) => match op {
            B::Add => F32(a + b),
            B::Subtract => F32(a - b),
            B::Multiply => F32(a * b),
            B::Divide => F32(a / b),
            B::Modulo => F32(a % b),
            B::Less => Bool(a < b),
            B::LessEqual => Bool(a <= b),
            B::Greater => Bool(a > b),
            B::GreaterEqual => Bool(a >= b),
            other => panic!("{other:?} of floats"),
        },
        (I32(a), I32(b)) => match op {
            B::Add => I32(a.wrapping_add(b)),
            B::Subtract => I32(a.wrapping_sub(b)),
            B::Multiply => I32(a.wrapping_mul(b)),
            // As WGSL defines them for a divisor of zero and for overflow.
            B::Divide => I32(a.checked_div(b).unwrap_or(a)),
            B::Modulo => I32(a.checked_rem(b).unwrap_or(0)),
            B::And => I32(a & b),
            B::InclusiveOr => I32(a | b),
            B::ExclusiveOr => I32(a ^ b),
            B::Less => Bool(a < b),
            B::LessEqual => Bool(a <= b),
            B::Greater => Bool(a > b),
            B::GreaterEqual => Bool(a >= b),
            other => panic!("{other:?} of integers"),
        },
        (U32(a), U32(b)) => match op {
            B::Add => U32(a.wrapping_add(b)),
            B::Subtract => U32(a.wrapping_sub(b)),
            B::Multiply => U32(a.wrapping_mul(b)),
            B::Divide => U32(a.checked_div(b).unwrap_or(a)),
            B::Modulo => U32(a.checked_rem(b).unwrap_or(0)),
            B::And => U32(a & b),
            B::InclusiveOr => U32(a | b),
            B::ExclusiveOr => U32(a ^ b),
            B::ShiftLeft => U32(a << b),
            B::ShiftRight => U32(a >> b),
            B::Less => Bool(a < b),
            B::LessEqual => Bool(a <= b),
            B::Greater => Bool(a > b),
            B::GreaterEqual => Bool(a >= b),
            other => panic!("{other:?} of unsigned integers"),
        },
        (I32(a), U32(b)) => match op {
            B::ShiftLeft => I32(a << b),
            B::ShiftRight => I32(a >> b),
            other => panic!("{other:?} of integers of two types"),
        },
        (Bool(a), Bool(b)) => match op {
            B::And | B::LogicalAnd => Bool(a && b),
            B::InclusiveOr | B::LogicalOr => Bool(a || b),
            other => panic!("{other:?} of truth values"),
        },
        other => panic!("{op:?} of {other:?}"),
    }
}

fn math(function: MathFunction, arguments: &[ShaderNumber]) -> ShaderNumber {
    use MathFunction as M;
    match (function, arguments) {
        (M::Abs, &[F32(x)]) => F32(x.abs()),
        (M::Abs, &[I32(x)]) => I32(x.wrapping_abs()),
        (M::Abs, &[U32(x)]) => U32(x),
        (M::Min, &[I32(x), I32(y)]) => I32(x.min(y)),
        (M::Min, &[U32(x), U32(y)]) => U32(x.min(y)),
        (M::Max, &[I32(x), I32(y)]) => I32(x.max(y)),
        (M::Max, &[U32(x), U32(y)]) => U32(x.max(y)),
        (M::Clamp, &[F32(x), F32(low), F32(high)]) => F32(x.clamp(low, high)),
        (M::Floor, &[F32(x)]) => F32(x.floor()),
        (M::Ceil, &[F32(x)]) => F32(x.ceil()),
        (M::Round, &[F32(x)]) => F32(x.round_ties_even()),
        (M::Sqrt, &[F32(x)]) => F32(x.sqrt()),
        (M::Fma, &[F32(x), F32(y), F32(z)]) => F32(x.mul_add(y, z)),
        (M::Sin, &[F32(x)]) => F32(x.sin()),
        (M::Cos, &[F32(x)]) => F32(x.cos()),
        (M::Tan, &[F32(x)]) => F32(x.tan()),
        other => panic!("{other:?} is not expected in a kernel"),
    }
}

fn converted(x: ShaderNumber, to: ScalarKind) -> ShaderNumber {
    match (x, to) {
        (F32(x), ScalarKind::Float) => F32(x),
        (F32(x), ScalarKind::Sint) => I32(x as i32),
        (F32(x), ScalarKind::Uint) => U32(x as u32),
        (F32(x), ScalarKind::Bool) => Bool(x != 0.0),
        (I32(x), ScalarKind::Float) => F32(x as f32),
        (I32(x), ScalarKind::Sint) => I32(x),
        (I32(x), ScalarKind::Uint) => U32(x as u32),
        (I32(x), ScalarKind::Bool) => Bool(x != 0),
        (U32(x), ScalarKind::Float) => F32(x as f32),
        (U32(x), ScalarKind::Sint) => I32(x as i32),
        (U32(x), ScalarKind::Uint) => U32(x),
        (U32(x), ScalarKind::Bool) => Bool(x != 0),
        (Bool(x), ScalarKind::Float) => F32(x.into()),
        (Bool(x), ScalarKind::Sint) => I32(x.into()),
        (Bool(x), ScalarKind::Uint) => U32(x.into()),
        (Bool(x), ScalarKind::Bool) => Bool(x),
        other => panic!("{other:?} is not expected in a kernel"),
    }
}

/// Returns the bits of a number as another type.
fn cast(x: ShaderNumber, to: ScalarKind) -> ShaderNumber {
    let bits = match x {
        F32(x) => x.to_bits(),
        I32(x) => x as u32,
        U32(x) => x,
        Bool(_) => panic!("a truth value has no bits"),
    };
    match to {
        ScalarKind::Float => F32(f32::from_bits(bits)),
        ScalarKind::Sint => I32(bits as i32),
        ScalarKind::Uint => U32(bits),
        other => panic!("{other:?} is not expected in a kernel"),
    }
}
