//! Lowering of a graph to the draft of a plan, in one traversal in program order.
//!
//! Structural operations (broadcast, reshape, permute, slice and others) become views at no cost.
//! Fused kernels are found before, on the graph (see [`Fusion`]); lowering selects loops for them.
//! Captures of regions use the storage of the captured values.

mod additions;
mod control;
mod elementwise;
mod prim;
mod products;

use super::draft::{Draft, DraftArm, DraftLoop, Item, Move};
use super::fuse::CpuFusion;
use super::updates::updates;
use super::{
    Assign, Base, BufferId, Instr, MemoryLayout, Out, Plan, Reg, ScalarOp, SlotId, SourceOp, StackId, TensorOp,
    TensorOpId, TensorOperand, View, reg_view,
};
use crate::cpu::element::scalar_to_reg;
use crate::cpu::kernels::Kernel;
use crate::cpu::kernels::copy::Copy;
use crate::cpu::kernels::tiles::TileUnit;
use anabranch_dsl::fusion::{Fusion, NodeRole};
use anabranch_dsl::ir::{Graph, Node, Op, Region, Value};
use anabranch_dsl::ops::{ASSUMED_EXTENT, CostCx, OpClass, OpCost};
use anabranch_dsl::{DType, Diagnostic, HostTensor, Loc, Result, TensorType, Type};
use rustc_hash::{FxHashMap, FxHashSet};

/// Options of lowering.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LowerOptions {
    /// Fail at the first operation that computes a non-finite value from finite operands.
    pub(crate) check_finite: bool,
    /// Fuse operations, and update variables in place.
    pub(crate) fuse: bool,
    /// The maximum number of bytes of results that are computed while lowering.
    pub(crate) max_evaluated: u128,
    /// The unit for which operands of matmuls may be rounded.
    pub(crate) tiles: Option<TileUnit>,
}

#[cfg(test)]
impl Default for LowerOptions {
    fn default() -> LowerOptions {
        LowerOptions { check_finite: false, fuse: true, max_evaluated: u128::MAX, tiles: None }
    }
}

/// The storage of a value.
#[derive(Clone, Debug)]
enum LoweredValue {
    /// An element in a register.
    Reg(Reg),
    /// A tensor of known shape.
    View(View),
    /// A tensor of unknown shape, or of strings.
    Slot(SlotId),
    /// A stack or list.
    Stack(StackId),
}

struct Lower<'g> {
    graph: &'g Graph,
    options: LowerOptions,
    draft: Draft,
    places: Vec<Option<LoweredValue>>,
    /// The kernels of the graph.
    fusion: &'g Fusion,
    /// Matrices packed before a loop, with that loop.
    packed: Vec<(u32, products::Packed)>,
    /// Buffers in channels-last layout.
    channels_last: FxHashSet<BufferId>,
    /// Nodes that become additions to variables at the end of the step, with the index of the
    /// variable.
    additions: FxHashMap<Node, usize>,
    /// The cost of the contraction that is being lowered.
    contraction: OpCost,
    /// Registers of constants by value.
    constant_regs: FxHashMap<u64, Reg>,
    /// The bytes of results that were computed.
    evaluated: u128,
    /// The current value of each assigned variable.
    assigned: Vec<Option<Value>>,
    current_loop: Option<u32>,
    current_arm: Option<u32>,
}

/// Lowers a graph to a plan. Values of unknown shape are stored in slots.
pub(crate) fn lower(graph: &Graph, options: LowerOptions) -> Result<Plan> {
    let fusion = Fusion::find(graph, &CpuFusion { options });
    if cfg!(debug_assertions) {
        for kernel in fusion.kernels() {
            kernel.verify(graph).unwrap_or_else(|error| panic!("a kernel is broken: {error}\n{}", kernel.text(graph)));
        }
    }
    // With `check_finite`, every value is computed at its node.
    let additions =
        if options.check_finite || !options.fuse { FxHashMap::default() } else { additions::additions(graph) };
    let mut lower = Lower {
        graph,
        options,
        draft: Draft::default(),
        places: vec![None; graph.n_values()],
        fusion: &fusion,
        packed: Vec::new(),
        channels_last: FxHashSet::default(),
        additions,
        contraction: OpCost::default(),
        constant_regs: FxHashMap::default(),
        evaluated: 0,
        assigned: vec![None; graph.vars.len()],
        current_loop: None,
        current_arm: None,
    };
    let inputs = lower.inputs();
    lower.region(graph.root())?;
    let n_stack_outputs = lower.stack_outputs();
    let tensors = graph.outputs().iter().filter(|&&v| graph.ty(v).as_tensor().is_some());
    let outputs =
        tensors.map(|&v| Ok((lower.operand_in_rows(v)?, graph.ty(v).element().clone()))).collect::<Result<Vec<_>>>()?;
    let mut assigns = lower.assigns()?;
    let updates = if options.fuse { updates(&mut lower.draft, &outputs, &mut assigns) } else { Vec::new() };
    if options.fuse {
        super::finish::join(&mut lower.draft, &outputs, &assigns, &updates);
    }
    super::parallel_ops::join_ops(&mut lower.draft);
    let plan = super::finish::finish(lower.draft, graph.name.clone(), inputs, outputs, assigns, updates)?;
    let plan = Plan { n_stack_outputs, ..plan };
    if cfg!(debug_assertions)
        && let Err(error) = plan.verify()
    {
        panic!("the plan is broken: {error}\n{plan}");
    }
    Ok(plan)
}

impl Lower<'_> {
    fn inputs(&mut self) -> Vec<TensorType> {
        let graph = self.graph;
        let types = graph.inputs().iter().map(|&v| graph.ty(v).element().clone()).collect();
        for (i, &v) in graph.inputs().iter().enumerate() {
            let ty = graph.ty(v).element();
            if !matches!(graph.ty(v), Type::Tensor(_)) {
                let stack = self.new_stack(graph.ty(v).clone());
                self.emit(Instr::StackInput { stack, input: i as u32 });
                self.places[v.index()] = Some(LoweredValue::Stack(stack));
                continue;
            }
            let base = Base::Input(i as u32);
            let place = match ty.shape.known() {
                Some(shape) => self.tensor_place(View::whole(base, ty.dtype, shape), "input", Loc::UNKNOWN),
                None => panic!("the plan of `{}` was requested before its inputs were known: {ty}", graph.name),
            };
            self.places[v.index()] = Some(place);
        }
        types
    }

    /// Emits the outputs that are stacks and lists. Returns their number.
    fn stack_outputs(&mut self) -> usize {
        let graph = self.graph;
        let mut outputs: Vec<StackId> = Vec::new();
        for &v in graph.outputs().iter().filter(|&&v| !matches!(graph.ty(v), Type::Tensor(_))) {
            let Some(LoweredValue::Stack(stack)) = self.places[v.index()] else { panic!("{v} is not a stack") };
            outputs.push(stack);
        }
        // Returning a list moves it, so a second output of the same list is a copy.
        for i in 1..outputs.len() {
            if outputs[..i].contains(&outputs[i]) {
                let copy = self.new_stack(self.draft.stacks[outputs[i].index()].clone());
                self.emit(Instr::StackMove { dst: copy, src: outputs[i], take: false });
                outputs[i] = copy;
            }
        }
        for (n, &stack) in outputs.iter().enumerate() {
            self.emit(Instr::StackOutput { stack, output: n as u32 });
        }
        outputs.len()
    }

    /// Returns the assignments. A value stored in a variable is copied, since that variable may be
    /// assigned, too.
    fn assigns(&mut self) -> Result<Vec<Assign>> {
        let mut assigns = Vec::new();
        for (var, value) in self.assigned.clone().into_iter().enumerate() {
            let Some(value) = value else { continue };
            let value = match self.operand_in_rows(value)? {
                TensorOperand::View(v) if matches!(v.base, Base::Var(_)) => {
                    TensorOperand::View(self.copied(&v, "assign", Loc::UNKNOWN))
                }
                other => other,
            };
            assigns.push(Assign { var, value });
        }
        Ok(assigns)
    }

    fn region(&mut self, region: Region) -> Result<()> {
        let graph = self.graph;
        graph.region(region).nodes.iter().try_for_each(|&node| match self.fusion.role(node) {
            NodeRole::Alone => self.node(node),
            NodeRole::Inside => Ok(()),
            NodeRole::Check => panic!("no kernel of a CPU reads through indices"),
            NodeRole::Kernel(id) => self.fused(id),
        })
    }

    /// Notes the cost of a contraction, for the kernel that is emitted for it.
    fn begin_contraction(&mut self, node: Node) {
        let data = self.graph.node(node);
        let Op::Prim(def, attrs) = &data.op else { panic!("{} is not a contraction", data.op.name()) };
        let operands: Vec<_> = data.operands.iter().map(|&v| self.graph.ty(v).element()).collect();
        let result = self.graph.ty(data.results[0]).element();
        let cx = CostCx { operands: &operands, result, attrs, unknown_extent: ASSUMED_EXTENT };
        self.contraction = def.cost(&cx);
    }

    fn node(&mut self, node: Node) -> Result<()> {
        let graph = self.graph;
        let data = graph.node(node);
        match &data.op {
            Op::Prim(def, attrs) if self.additions.contains_key(&node) => {
                self.addition(self.additions[&node], node, *def, attrs)?;
            }
            // Lowered with its operand.
            Op::Assign(_) if self.additions.contains_key(&node) => {}
            Op::Prim(def, attrs) => {
                if let OpClass::Contract(_) = def.class {
                    self.begin_contraction(node);
                }
                let place = self.prim(node, *def, attrs)?;
                self.places[data.results[0].index()] = Some(place);
            }
            Op::Constant(tensor) => {
                let place = self.constant(tensor);
                self.places[data.results[0].index()] = Some(place);
            }
            Op::Read(var) => {
                let place = match self.assigned[var.index()] {
                    Some(v) => self.place(v)?,
                    None => {
                        let ty = &graph.vars[var.index()].ty;
                        let shape = ty.shape.known().expect("the shape of a variable is known");
                        let view = View::whole(Base::Var(var.index() as u32), ty.dtype, shape);
                        self.tensor_place(view, "read", data.loc)
                    }
                };
                self.places[data.results[0].index()] = Some(place);
            }
            Op::Assign(var) => {
                if data.region != graph.root() {
                    let name = &graph.vars[var.index()].name;
                    let message =
                        format!("the variable `{name}` is assigned inside a branch or loop body of the graph");
                    return Err(Diagnostic::new(message)
                        .at(data.loc, "return its value from the construct, and assign it in the root region"));
                }
                self.place(data.operands[0])?;
                self.assigned[var.index()] = Some(data.operands[0]);
            }
            Op::Assert { message } => {
                let cond = self.reg(data.operands[0])?;
                let shown = data.operands[1..].iter().map(|&v| self.operand(v)).collect::<Result<Vec<_>>>()?;
                let op = self.add_op(Kernel::Assert(message.clone()), shown, Out::Nothing, None, "assert", data.loc);
                self.emit(Instr::Assert { cond, op });
            }
            Op::Print { stream, template } => {
                let operands = data.operands.iter().map(|&v| self.operand(v)).collect::<Result<Vec<_>>>()?;
                let kernel = Kernel::Print(*stream, template.clone());
                let op = self.add_op(kernel, operands, Out::Nothing, None, "print", data.loc);
                self.emit(Instr::Run(op));
            }
            Op::Queue(queue, op) => self.queue_op(node, *queue, *op)?,
            Op::File(op) => self.file_op(node, op)?,
            Op::Stack(op) => self.stack_op(node, op)?,
            Op::List(op) => self.list_op(node, op)?,
            Op::Cond => self.cond(node)?,
            Op::While { .. } => self.while_loop(node)?,
            Op::Call(_) => self.call(node)?,
        }
        Ok(())
    }

    // Places.

    /// Returns the storage of a value.
    fn place(&mut self, value: Value) -> Result<LoweredValue> {
        let place = self.places[value.index()].clone();
        Ok(place.unwrap_or_else(|| panic!("{value} of `{}` is used before it is defined", self.graph.name)))
    }

    /// Returns a value as an operand of a tensor operation.
    fn operand(&mut self, value: Value) -> Result<TensorOperand> {
        Ok(match self.place(value)? {
            LoweredValue::Reg(r) => TensorOperand::View(reg_view(r, self.graph.ty(value).element().dtype)),
            LoweredValue::View(v) => TensorOperand::View(v),
            LoweredValue::Slot(s) => TensorOperand::Slot(s),
            LoweredValue::Stack(_) => panic!("{value} of `{}` is not a tensor", self.graph.name),
        })
    }

    /// Returns a value of known shape as a view. One in a slot is copied to a buffer.
    fn known_view(&mut self, value: Value) -> Result<View> {
        let slot = match self.operand(value)? {
            TensorOperand::View(view) => return Ok(view),
            slot @ TensorOperand::Slot(_) => slot,
        };
        let ty = self.graph.ty(value).element();
        let view = self.new_buffer(ty.dtype, ty.shape.known().expect("the shape is known"));
        let loc = self.graph.loc(value);
        let op = self.add_op(Kernel::FromSlot, vec![slot], Out::View(view.clone()), None, "copy", loc);
        self.emit(Instr::Run(op));
        Ok(view)
    }

    /// Returns the register of a value of rank 0.
    fn reg(&mut self, value: Value) -> Result<Reg> {
        match self.place(value)? {
            LoweredValue::Reg(r) => Ok(r),
            other => panic!("{value} of `{}` is not in a register but {other:?}", self.graph.name),
        }
    }

    /// Returns the storage of a view. A single element is loaded into a register, and strings are
    /// shared by a slot.
    fn tensor_place(&mut self, view: View, name: &'static str, loc: Loc) -> LoweredValue {
        if !view.dtype.is_plain() {
            let slot = self.new_slot();
            let op = self.add_op(Kernel::ToSlot, vec![TensorOperand::View(view)], Out::Slot(slot), None, name, loc);
            self.emit(Instr::Run(op));
            return LoweredValue::Slot(slot);
        }
        if !view.shape.is_empty() {
            return LoweredValue::View(view);
        }
        if let Base::Reg(r) = view.base {
            return LoweredValue::Reg(r);
        }
        let (dst, dtype) = (self.new_reg(), view.dtype);
        let op = self.add_op(Kernel::Load, vec![TensorOperand::View(view)], Out::Reg(dst, dtype), None, name, loc);
        self.emit(Instr::Run(op));
        LoweredValue::Reg(dst)
    }

    fn constant(&mut self, tensor: &HostTensor) -> LoweredValue {
        if tensor.rank() == 0 && tensor.dtype().is_plain() {
            return LoweredValue::Reg(self.constant_reg(scalar_to_reg(tensor)));
        }
        let i = self.draft.constants.len() as u32;
        self.draft.constants.push(tensor.clone());
        let view = View::whole(Base::Constant(i), tensor.dtype(), tensor.shape().to_vec());
        self.tensor_place(view, "constant", Loc::UNKNOWN)
    }

    fn constant_reg(&mut self, bits: u64) -> Reg {
        if let Some(&r) = self.constant_regs.get(&bits) {
            return r;
        }
        let r = self.new_reg();
        self.draft.constant_regs.push((r, bits));
        self.constant_regs.insert(bits, r);
        r
    }

    /// Allocates storage for a value of a type.
    fn new_place(&mut self, ty: &Type) -> LoweredValue {
        match ty {
            Type::Stack(_) | Type::List(_) => LoweredValue::Stack(self.new_stack(ty.clone())),
            Type::Tensor(t) if !t.dtype.is_plain() => LoweredValue::Slot(self.new_slot()),
            Type::Tensor(t) if t.rank() == 0 => LoweredValue::Reg(self.new_reg()),
            Type::Tensor(t) => match t.shape.known() {
                Some(shape) => LoweredValue::View(self.new_buffer(t.dtype, shape)),
                None => LoweredValue::Slot(self.new_slot()),
            },
        }
    }

    fn new_reg(&mut self) -> Reg {
        self.draft.n_regs += 1;
        Reg(self.draft.n_regs - 1)
    }

    fn new_slot(&mut self) -> SlotId {
        self.draft.n_slots += 1;
        SlotId(self.draft.n_slots - 1)
    }

    fn new_stack(&mut self, ty: Type) -> StackId {
        self.draft.stacks.push(ty);
        StackId(self.draft.stacks.len() as u32 - 1)
    }

    fn new_buffer(&mut self, dtype: DType, shape: Vec<usize>) -> View {
        let b = BufferId(self.draft.buffers.len() as u32);
        let view = View::whole(Base::Buffer(b), dtype, shape);
        self.draft.buffers.push(view.n_bytes());
        view
    }

    /// Allocates a buffer with a memory layout.
    fn new_buffer_in(&mut self, order: MemoryLayout, dtype: DType, shape: &[usize]) -> View {
        let shape = order.axes(shape.len()).into_iter().map(|a| shape[a]).collect();
        let buffer = self.new_buffer(dtype, shape);
        if let (MemoryLayout::ChannelsLast, Base::Buffer(b)) = (order, buffer.base) {
            self.channels_last.insert(b);
        }
        buffer.restored(order)
    }

    // Code.

    fn emit(&mut self, instr: Instr) {
        self.emit_item(Item::Instr(instr));
    }

    /// Emits a register operation.
    fn emit_scalar_op(&mut self, instr: Instr, op: ScalarOp) {
        self.emit(instr);
        *self.draft.scalar_ops.last_mut().expect("an item was added") = Some(op);
    }

    fn emit_item(&mut self, item: Item) {
        self.draft.items.push(item);
        self.draft.scalar_ops.push(None);
        self.draft.item_loops.push(self.current_loop);
        self.draft.item_arms.push(self.current_arm);
    }

    fn emit_moves(&mut self, moves: Vec<Move>) {
        if !moves.is_empty() {
            self.emit_item(Item::Moves(moves));
        }
    }

    /// Returns the index of the next item.
    fn here(&self) -> u32 {
        self.draft.items.len() as u32
    }

    fn new_label(&mut self) -> u32 {
        self.draft.labels.push(u32::MAX);
        self.draft.labels.len() as u32 - 1
    }

    fn set_label(&mut self, label: u32) {
        self.draft.labels[label as usize] = self.here();
    }

    fn open_loop(&mut self, loc: Loc, before: u32, n_buffers: u32) -> u32 {
        let id = self.draft.loops.len() as u32;
        let (start, parent) = (self.here(), self.current_loop);
        self.draft.loops.push(DraftLoop {
            start,
            end: 0,
            parent,
            before,
            n_buffers,
            back_edge: 0,
            loc,
            parallel: None,
        });
        self.current_loop = Some(id);
        id
    }

    /// Adds the two branches of a conditional. Returns the index of the first.
    fn open_arms(&mut self) -> u32 {
        let id = self.draft.arms.len() as u32;
        let (start, parent) = (self.here(), self.current_arm);
        self.draft.arms.extend([0, 1].map(|side| DraftArm { start, end: start, parent, side }));
        id
    }

    fn add_op(
        &mut self,
        kernel: Kernel,
        operands: Vec<TensorOperand>,
        out: Out,
        meaning: Option<SourceOp>,
        name: &'static str,
        loc: Loc,
    ) -> TensorOpId {
        let meaning = meaning.map(Box::new);
        let cost = if kernel.is_contraction() { self.contraction } else { OpCost::default() };
        self.draft.tensor_ops.push(TensorOp { kernel, operands, out, meaning, cost, name, loc });
        TensorOpId(self.draft.tensor_ops.len() as u32 - 1)
    }

    /// Copies a view to a new buffer.
    fn copied(&mut self, view: &View, name: &'static str, loc: Loc) -> View {
        let out = self.new_buffer(view.dtype, view.shape.clone());
        self.copy_to(view, out.clone(), name, loc);
        out
    }

    /// Copies a view to a part of a buffer.
    fn copy_to(&mut self, from: &View, to: View, name: &'static str, loc: Loc) {
        let kernel = Kernel::Copy(Copy::new(from, &to));
        let op = self.add_op(kernel, vec![TensorOperand::View(from.clone())], Out::View(to), None, name, loc);
        self.emit(Instr::Run(op));
    }

    /// Returns a value as an operand of an operation that requires row-major layout. Only
    /// channels-last buffers are copied: the operation handles views permuted by the graph.
    fn operand_in_rows(&mut self, value: Value) -> Result<TensorOperand> {
        Ok(match self.operand(value)? {
            TensorOperand::View(v) if matches!(v.base, Base::Buffer(b) if self.channels_last.contains(&b)) => {
                TensorOperand::View(self.contiguous(v, "reorder", Loc::UNKNOWN))
            }
            other => other,
        })
    }

    /// Returns the view permuted into a memory layout, copied if it is not contiguous.
    fn arranged(&mut self, view: &View, order: MemoryLayout, name: &'static str, loc: Loc) -> View {
        self.contiguous(view.arranged(order), name, loc)
    }

    /// Returns the view if it is contiguous, otherwise a copy.
    fn contiguous(&mut self, view: View, name: &'static str, loc: Loc) -> View {
        if view.is_contiguous() { view } else { self.copied(&view, name, loc) }
    }
}
