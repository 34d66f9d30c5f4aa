//! Textual representation of a plan, one line per instruction.

use super::fuse::CpuFusion;
use super::{Base, Instr, LoopSpan, LowerOptions, Out, Plan, TensorOp, TensorOpId, TensorOperand, Update, View};
use crate::cpu::kernels::Kernel;
use crate::cpu::lanes::WhyNotInLanes;
use crate::cpu::memory::BufferLocation;
use crate::cpu::native::WhyNot;
use anabranch_dsl::fusion::{FusedKernel, Fusion};
use anabranch_dsl::{Graph, Loc};
use std::fmt;

/// Returns the text of the fused kernels of a graph that have several stages.
pub(crate) fn kernels_text(graph: &Graph, options: LowerOptions) -> String {
    let fusion = Fusion::find(graph, &CpuFusion { options });
    let fused: Vec<&FusedKernel> = fusion.kernels().iter().filter(|kernel| kernel.stages.len() > 1).collect();
    let mut text = if fused.is_empty() { String::new() } else { "  fused kernels:\n".to_owned() };
    for line in
        fused.iter().flat_map(|kernel| kernel.text(graph).to_string().lines().map(str::to_owned).collect::<Vec<_>>())
    {
        text.push_str(&format!("    {line}\n"));
    }
    text
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan of `{}`", self.name)?;
        let in_arena = self
            .regions
            .iter()
            .filter_map(|r| if let BufferLocation::Arena(range) = r { Some(range.len()) } else { None });
        let (n_buffers, buffers) = in_arena.fold((0, 0), |(n, bytes), len| (n + 1, bytes + len));
        writeln!(
            f,
            "  {} registers, {} of them constant; {} buffers of {buffers} bytes in an arena of {} bytes",
            self.registers.len(),
            self.n_constant_registers,
            n_buffers,
            self.arena_bytes,
        )?;
        writeln!(f, "  {}", self.work())?;
        if !self.stacks.is_empty() {
            let stacks: Vec<String> = self.stacks.iter().enumerate().map(|(i, t)| format!("s{i}: {t}")).collect();
            writeln!(f, "  stacks {}", stacks.join(", "))?;
        }
        if self.is_dynamic() {
            writeln!(f, "  {} slots for tensors of data-dependent shapes", self.n_slots)?;
        }
        let inputs: Vec<String> = self.inputs.iter().map(ToString::to_string).collect();
        writeln!(f, "  inputs ({})", inputs.join(", "))?;
        for (i, instr) in self.code.iter().enumerate() {
            write!(f, "{i:>5}  ")?;
            self.instr(f, instr, self.scalar_ops[i].map_or("", |op| op.op.def().name))?;
            writeln!(f)?;
        }
        for LoopSpan { code, loc, not_in_lanes, .. } in &self.loops {
            if let Some(why) = not_in_lanes {
                writeln!(
                    f,
                    "  no lanes for instructions {} to {}, the loop at {loc}: {}",
                    code.start,
                    code.end - 1,
                    self.why_not_in_lanes(*why)
                )?;
            }
        }
        for LoopSpan { code, loc, not_native, .. } in &self.loops {
            if let Some(why) = not_native {
                writeln!(
                    f,
                    "  no native code of instructions {} to {}, the loop at {loc}: {}",
                    code.start,
                    code.end - 1,
                    self.why_not(*why)
                )?;
            }
        }
        for (i, (operand, ty)) in self.outputs.iter().enumerate() {
            let place = if self.results.contains(&i) { ", computed in the caller's memory" } else { "" };
            writeln!(f, "  output {i}: {ty} = {}{place}", Shown(operand))?;
        }
        for update in &self.updates {
            let vars: Vec<String> = update.vars.iter().map(ToString::to_string).collect();
            write!(f, "  variable {}, in place = {}", vars.join(", "), UpdateName(update))?;
            shown(f, &update.operands, &update.loc)?;
            writeln!(f)?;
        }
        for assign in &self.assigns {
            writeln!(f, "  variable {} = {}", assign.var, Shown(&assign.value))?;
        }
        for &id in &self.additions {
            let [table, ids, rows] = &self.tensor_ops[id.index()].operands[..] else {
                panic!("an addition has three operands")
            };
            writeln!(f, "  {} += {} at {}", Shown(table), Shown(rows), Shown(ids))?;
        }
        Ok(())
    }
}

/// The kernels of a plan and the memory traffic of running each once, whatever the number of
/// iterations of the loop around it.
#[derive(Default)]
struct Traffic {
    kernels: usize,
    bytes_read: usize,
    bytes_written: usize,
    /// Kernels some of whose tensors have unknown shapes. The bytes of these kernels are not
    /// counted.
    of_unknown_shapes: usize,
}

impl Traffic {
    fn add_op(&mut self, op: &TensorOp) {
        self.kernels += 1;
        match op.traffic() {
            Some([read, written]) => {
                self.bytes_read += read;
                self.bytes_written += written;
            }
            None => self.of_unknown_shapes += 1,
        }
    }

    fn add_update(&mut self, update: &Update) {
        let [read, written] = update.traffic();
        self.kernels += 1;
        self.bytes_read += read;
        self.bytes_written += written;
    }
}

impl TensorOp {
    /// Returns the bytes that the kernel reads and writes, or `None` if a shape is unknown.
    pub(super) fn traffic(&self) -> Option<[usize; 2]> {
        let written = match &self.out {
            Out::View(view) => bytes_in_memory(view),
            Out::Views(views) => views.iter().map(bytes_in_memory).sum(),
            Out::Reg(..) | Out::Nothing => 0,
            Out::Slot(_) => return None,
        };
        Some([bytes_of_all(&self.operands)?, written])
    }
}

impl Update {
    /// Returns the bytes that the update reads and writes.
    pub(super) fn traffic(&self) -> [usize; 2] {
        [bytes_of_all(&self.operands).expect("updates have known shapes"), self.map.bytes_written()]
    }
}

/// Returns the bytes of memory that operands refer to, or `None` if a shape is unknown.
fn bytes_of_all(operands: &[TensorOperand]) -> Option<usize> {
    operands.iter().map(|o| if let TensorOperand::View(view) = o { Some(bytes_in_memory(view)) } else { None }).sum()
}

/// Returns the bytes of memory that a view refers to, those of a broadcast element once.
fn bytes_in_memory(view: &View) -> usize {
    if matches!(view.base, Base::Reg(_)) {
        return 0;
    }
    let extents = view.shape.iter().zip(&view.strides).filter(|&(_, &stride)| stride != 0);
    extents.map(|(&extent, _)| extent).product::<usize>() * view.dtype.size()
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Traffic { kernels, bytes_read, bytes_written, of_unknown_shapes } = self;
        write!(f, "{kernels} kernels read {bytes_read} bytes and write {bytes_written} bytes")?;
        match of_unknown_shapes {
            0 => Ok(()),
            n => write!(f, ", besides {n} of unknown shapes"),
        }
    }
}

impl Plan {
    /// Counts the kernels of the instructions and those that update variables.
    fn work(&self) -> Traffic {
        let mut work = Traffic::default();
        for instr in &self.code {
            let ids = match instr {
                Instr::Run(id) => std::slice::from_ref(id),
                Instr::RunParallel(ids) => ids,
                _ => &[],
            };
            ids.iter().for_each(|id| work.add_op(&self.tensor_ops[id.index()]));
        }
        self.updates.iter().for_each(|update| work.add_update(update));
        work
    }

    /// Says why a loop has no native code. If one of its instructions is the reason, names the
    /// operation.
    fn why_not(&self, why: WhyNot) -> String {
        let WhyNot::Instruction(i) = why else { return why.to_string() };
        self.why_instruction(i)
    }

    /// Says why a parallel loop does not run in lanes, like [`why_not`](Self::why_not).
    fn why_not_in_lanes(&self, why: WhyNotInLanes) -> String {
        let WhyNotInLanes::Instruction(i) = why else { return why.to_string() };
        self.why_instruction(i)
    }

    /// Says what an instruction does that a loop over numbers cannot do.
    fn why_instruction(&self, i: u32) -> String {
        let does = match &self.code[i as usize] {
            Instr::Run(op) | Instr::CheckFinite(op) => self.works_on_tensors(&[*op]),
            Instr::RunParallel(ops) => self.works_on_tensors(ops),
            Instr::List { op, .. } => format!("is `{}` of a list", self.tensor_ops[op.index()].name),
            Instr::StackPush { op, .. } => format!("stores {} for the gradient", self.tensor_of(*op)),
            Instr::StackPop { op, .. } => format!("reads {} that was stored for the gradient", self.tensor_of(*op)),
            Instr::Jump { .. } | Instr::JumpIf { .. } | Instr::JumpUnless { .. } | Instr::JumpCompare { .. } => {
                "leaves the loop for another place than its end".to_owned()
            }
            _ => "moves tensors or lists".to_owned(),
        };
        format!("instruction {i} {does}")
    }

    /// Says what kernels do that a loop over numbers cannot do.
    fn works_on_tensors(&self, ops: &[TensorOpId]) -> String {
        let text = |op: &TensorOpId| {
            let TensorOp { name, loc, .. } = &self.tensor_ops[op.index()];
            let place = if loc.is_known() { format!(" at {loc}") } else { String::new() };
            format!("`{name}`{place} with {}", self.tensor_of(*op))
        };
        match ops {
            [only] if self.tensor_ops[only.index()].name == "move" => {
                format!("copies {}", self.tensor_of(*only))
            }
            _ => format!("computes {}", ops.iter().map(text).collect::<Vec<_>>().join(" and ")),
        }
    }

    /// Returns the type of the largest tensor of an operation, for messages.
    fn tensor_of(&self, op: TensorOpId) -> String {
        let TensorOp { operands, out, .. } = &self.tensor_ops[op.index()];
        let results = match out {
            Out::View(view) => std::slice::from_ref(view),
            Out::Views(views) => views,
            Out::Reg(..) | Out::Slot(_) | Out::Nothing => &[],
        };
        let is_unknown = |operand: &TensorOperand| matches!(operand, TensorOperand::Slot(_));
        if matches!(out, Out::Slot(_)) || operands.iter().any(is_unknown) {
            return "strings or tensors of unknown shapes".to_owned();
        }
        let all = operands.iter().map(TensorOperand::view).chain(results);
        let largest = all.max_by_key(|view| view.shape.iter().product::<usize>());
        largest.map_or_else(|| "numbers".to_owned(), |view| format!("{}{:?}", view.dtype, view.shape))
    }

    fn instr(&self, f: &mut fmt::Formatter<'_>, instr: &Instr, name: &str) -> fmt::Result {
        match instr {
            Instr::Unary { dst, a, .. } => write!(f, "{dst:?} = {name} {a:?}"),
            Instr::Binary { dst, a, b, .. } => write!(f, "{dst:?} = {name} {a:?}, {b:?}"),
            Instr::Select { dst, a, b, c } => write!(f, "{dst:?} = select {a:?}, {b:?}, {c:?}"),
            Instr::Require { a, op, .. } => {
                write!(f, "check {a:?} for {}", self.tensor_ops[op.index()].name)
            }
            Instr::RequireIndex { a, n, .. } => write!(f, "check {a:?} < {n}"),
            Instr::JumpCompare { a, b, to, when, .. } => {
                write!(f, "{} {name} {a:?}, {b:?} jump {to}", if *when { "if" } else { "unless" })
            }
            Instr::Move { dst, src } => write!(f, "{dst:?} = {src:?}"),
            Instr::Jump { to } => write!(f, "jump {to}"),
            Instr::Native { entry, .. } => write!(f, "jump {entry}, natively"),
            Instr::Lanes { program, entry, native } => {
                write!(f, "jump {entry}, in lanes{}", if native.is_some() { " or natively" } else { "" })?;
                let parts = self.lanes[*program as usize].native_parts();
                parts.map_or(Ok(()), |parts| write!(f, "  ; native code of {parts}"))
            }
            Instr::JumpIf { cond, to } => write!(f, "if {cond:?} jump {to}"),
            Instr::JumpUnless { cond, to } => write!(f, "unless {cond:?} jump {to}"),
            Instr::Run(op) => self.op_text(f, *op),
            Instr::RunParallel(ops) => ops.iter().enumerate().try_for_each(|(i, &op)| {
                f.write_str(if i > 0 { "\n       and " } else { "" })?;
                self.op_text(f, op)
            }),
            Instr::Assert { cond, .. } => write!(f, "assert {cond:?}"),
            Instr::CheckFinite(op) => {
                write!(f, "check {}", ShownOut(&self.tensor_ops[op.index()].out))
            }
            Instr::StackNew(s) => write!(f, "{s:?} = empty"),
            Instr::StackZeros(s) => write!(f, "{s:?} = zeros without end"),
            Instr::StackInput { stack, input } => write!(f, "{stack:?} = input {input}"),
            Instr::StackOutput { stack, output } => write!(f, "output {output} = {stack:?}"),
            Instr::StackMove { dst, src, take } => {
                write!(f, "{dst:?} = {}{src:?}", if *take { "take " } else { "copy " })
            }
            Instr::StackReserve { stack, pushed } => {
                write!(f, "room in {stack:?} for {} in each iteration from {:?} on", pushed.in_each, pushed.trips.first)
            }
            Instr::StackPush { stack, op } => {
                write!(f, "push {stack:?}, {}", Shown(&self.tensor_ops[op.index()].operands[0]))
            }
            Instr::StackPop { stack, op } => {
                write!(f, "{} = pop {stack:?}", ShownOut(&self.tensor_ops[op.index()].out))
            }
            Instr::StackZero(s) => write!(f, "{s:?} = zeros"),
            Instr::StackAdd { dst, src, .. } => write!(f, "{dst:?} += {src:?}"),
            Instr::List { list, other, op } => {
                self.op_text(f, *op)?;
                write!(f, " of {list:?}")?;
                other.map_or(Ok(()), |other| write!(f, " and {other:?}"))
            }
            Instr::SlotMove { dst, src } => write!(f, "{dst:?} = {src:?}"),
        }
    }

    fn op_text(&self, f: &mut fmt::Formatter<'_>, id: TensorOpId) -> fmt::Result {
        let op = &self.tensor_ops[id.index()];
        match op.kernel {
            Kernel::CheckIndices { .. } => write!(f, "check ")?,
            Kernel::AddAtEnd(_) => write!(f, "check the places of")?,
            _ => write!(f, "{} =", ShownOut(&op.out))?,
        }
        write!(f, " {}", KernelName(op))?;
        shown(f, &op.operands, &op.loc)
    }
}

/// The operations of a kernel.
pub(super) struct KernelName<'a>(pub(super) &'a TensorOp);
impl fmt::Display for KernelName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TensorOp { kernel, name, .. } = self.0;
        match kernel {
            Kernel::Map(map) => names(f, map.names()),
            Kernel::MapReduce(reduce) => names(f, reduce.names().chain([*name])),
            Kernel::Rows(rows) => write!(f, "rows {}", rows.names().collect::<Vec<_>>().join("; ")),
            Kernel::Matmul(product) => {
                names(f, [*name].into_iter().chain(product.names()))?;
                if product.rounds() { write!(f, " of bf16") } else { Ok(()) }
            }
            Kernel::Conv(conv) => names(f, [*name].into_iter().chain(conv.names())),
            Kernel::ChannelsLast(conv) => names(f, [*name].into_iter().chain(conv.names())),
            Kernel::Pack(_) => write!(f, "pack"),
            Kernel::Reference => write!(f, "reference {name}"),
            _ => write!(f, "{name}"),
        }
    }
}

/// The operations that compute the new values of variables.
pub(super) struct UpdateName<'a>(pub(super) &'a Update);
impl fmt::Display for UpdateName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        names(f, self.0.map.names())
    }
}

/// Writes the names of fused operations.
fn names(f: &mut fmt::Formatter<'_>, names: impl Iterator<Item = &'static str>) -> fmt::Result {
    names.enumerate().try_for_each(|(i, name)| write!(f, "{}{name}", if i > 0 { "." } else { "" }))
}

/// Writes operands and the location of an operation.
fn shown(f: &mut fmt::Formatter<'_>, operands: &[TensorOperand], loc: &Loc) -> fmt::Result {
    for (i, operand) in operands.iter().enumerate() {
        write!(f, "{} {}", if i > 0 { "," } else { "" }, Shown(operand))?;
    }
    if loc.is_known() { write!(f, "  ; {loc}") } else { Ok(()) }
}

struct ShownView<'a>(&'a View);
impl fmt::Display for ShownView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        match v.base {
            Base::Buffer(b) => write!(f, "{b:?}")?,
            Base::Reg(r) => write!(f, "{r:?}")?,
            Base::Input(i) => write!(f, "input{i}")?,
            Base::Constant(i) => write!(f, "constant{i}")?,
            Base::Var(i) => write!(f, "variable{i}")?,
        }
        write!(f, ": {}{:?}", v.dtype, v.shape)?;
        if v.offset > 0 || !v.is_contiguous() { write!(f, " at {} by {:?}", v.offset, v.strides) } else { Ok(()) }
    }
}

struct Shown<'a>(&'a TensorOperand);
impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            TensorOperand::View(v) => ShownView(v).fmt(f),
            TensorOperand::Slot(s) => write!(f, "{s:?}"),
        }
    }
}

struct ShownOut<'a>(&'a Out);
impl fmt::Display for ShownOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Out::View(v) => ShownView(v).fmt(f),
            Out::Views(views) => views.iter().enumerate().try_for_each(|(i, v)| {
                f.write_str(if i > 0 { ", " } else { "" })?;
                ShownView(v).fmt(f)
            }),
            Out::Reg(r, dtype) => write!(f, "{r:?}: {dtype}"),
            Out::Slot(s) => write!(f, "{s:?}"),
            Out::Nothing => write!(f, "nothing"),
        }
    }
}
