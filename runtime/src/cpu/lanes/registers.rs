//! The registers that a loop body uses, and their rows.
//!
//! Registers that are moved to each other hold elements of one size, which the operations on them
//! determine, so each register has one row. A constant may stand for elements of several sizes, and
//! has a row for each.

use super::WhyNotInLanes;
use super::program::{RowId, RowInfo, RowStart};
use super::translate::Translator;
use crate::cpu::compile::Instr;
use crate::cpu::kernels::Kernel;
use crate::cpu::memory::{Base, Out, Reg, TensorOperand};
use crate::cpu::native::{ElementAccess, ElementUse, access};
use crate::disjoint_sets::DisjointSets;
use anabranch_dsl::DType;
use anabranch_dsl::ir::ListOp;
use rustc_hash::{FxHashMap, FxHashSet};

/// Classes of registers that are moved to each other, with the size of their elements.
pub(super) struct ElementSizes {
    classes: DisjointSets,
    /// The size of the elements of each register, or 0 if it has several.
    sizes: FxHashMap<usize, usize>,
}

impl ElementSizes {
    pub(super) fn new(n_registers: usize) -> ElementSizes {
        ElementSizes { classes: DisjointSets::new(n_registers), sizes: FxHashMap::default() }
    }

    fn ask(&mut self, r: Reg, size: usize) {
        let root = self.classes.root(r.index());
        let known = self.sizes.entry(root).or_insert(size);
        *known = if *known == size { size } else { 0 };
    }

    fn join(&mut self, a: Reg, b: Reg) {
        let sizes = [a, b].map(|r| self.sizes.remove(&self.classes.root(r.index())));
        self.classes.join(a.index(), b.index());
        sizes.into_iter().flatten().for_each(|size| self.ask(a, size));
    }

    /// Returns the size of the elements of a register, or 0 if it has several.
    pub(super) fn size(&mut self, r: Reg) -> usize {
        self.sizes.get(&self.classes.root(r.index())).copied().unwrap_or(8)
    }
}

/// A register that an instruction uses, with the size of the element.
#[derive(Clone, Copy)]
enum RegisterUse {
    Read(Reg, usize),
    Write(Reg, usize),
    /// A move, of elements of any size.
    Move {
        dst: Reg,
        src: Reg,
    },
}

impl Translator<'_> {
    pub(super) fn register(operand: &TensorOperand) -> Option<(Reg, DType)> {
        match operand {
            TensorOperand::View(v) => match v.base {
                Base::Reg(r) => Some((r, v.dtype)),
                _ => None,
            },
            TensorOperand::Slot(_) => None,
        }
    }

    /// Returns the registers that an instruction of the body uses, in order, or `None` if the
    /// instruction cannot run in lanes.
    fn uses(&self, i: u32) -> Option<Vec<RegisterUse>> {
        use RegisterUse::{Move, Read, Write};
        let plan = self.plan;
        let scalar = || plan.scalar_ops[i as usize].map(|op| (op.operand.size(), op.result.size()));
        Some(match plan.code[i as usize] {
            Instr::Unary { dst, a, .. } => {
                let (operand, result) = scalar()?;
                vec![Read(a, operand), Write(dst, result)]
            }
            Instr::Binary { dst, a, b, .. } => {
                let (operand, result) = scalar()?;
                vec![Read(a, operand), Read(b, operand), Write(dst, result)]
            }
            Instr::Select { dst, a, b, c } => {
                let (operand, result) = scalar()?;
                vec![Read(a, 1), Read(b, operand), Read(c, operand), Write(dst, result)]
            }
            Instr::Move { dst, src } => vec![Move { dst, src }],
            Instr::Require { a, op, .. } => {
                vec![Read(a, plan.tensor_ops[op.index()].operands[1].view().dtype.size())]
            }
            Instr::RequireIndex { a, dtype, .. } => vec![Read(a, dtype.size())],
            Instr::Assert { cond, .. } | Instr::JumpIf { cond, .. } | Instr::JumpUnless { cond, .. } => {
                vec![Read(cond, 1)]
            }
            Instr::JumpCompare { a, b, .. } => {
                let (operand, _) = scalar()?;
                vec![Read(a, operand), Read(b, operand)]
            }
            Instr::Jump { .. } => vec![],
            Instr::Run(op) => {
                let op = &plan.tensor_ops[op.index()];
                if self.misuses_added(op) {
                    return None;
                }
                if let Some([from, _]) = self.copied(op) {
                    return Some(match from.base {
                        Base::Reg(r) => vec![Read(r, from.dtype.size())],
                        _ => vec![],
                    });
                }
                let ElementAccess { tensor, index, kind } = access(op)?;
                let index = index.map(|(_, r, dtype)| Read(r, dtype.size()));
                let size = tensor.dtype.size();
                let number = match kind {
                    ElementUse::Read(dst) => Write(dst, size),
                    ElementUse::Write(r) | ElementUse::Add(r) => Read(r, size),
                };
                index.into_iter().chain([number]).collect()
            }
            Instr::List { list, other: None, op } => {
                let op = &plan.tensor_ops[op.index()];
                let size = self.elements(list)?.0.size();
                let Kernel::List(list_op) = &op.kernel else { return None };
                let (index, _) = Self::register(op.operands.first()?)?;
                match (list_op, &op.out) {
                    (ListOp::Read, Out::Reg(r, _)) => vec![Read(index, 4), Write(*r, size)],
                    (ListOp::Read, Out::View(view)) => {
                        self.local(view)?;
                        vec![Read(index, 4)]
                    }
                    (ListOp::Write | ListOp::Accumulate, _) => match Self::register(&op.operands[1]) {
                        Some((value, _)) => vec![Read(index, 4), Read(value, size)],
                        None => vec![Read(index, 4)],
                    },
                    _ => return None,
                }
            }
            Instr::StackPush { stack, op } => {
                self.element(stack)?;
                match self.number(plan.tensor_ops[op.index()].operands.first()?)? {
                    Ok((r, size)) => vec![Read(r, size)],
                    Err(_) => vec![],
                }
            }
            Instr::StackPop { stack, op } => {
                self.element(stack)?;
                match &plan.tensor_ops[op.index()].out {
                    Out::Reg(r, dtype) => vec![Write(*r, dtype.size())],
                    Out::View(view) => {
                        self.local(view)?;
                        vec![]
                    }
                    _ => return None,
                }
            }
            Instr::StackNew(stack) => {
                self.element(stack)?;
                vec![]
            }
            _ => return None,
        })
    }

    /// Finds the sizes of registers, and which are written and kept.
    pub(super) fn registers(&mut self) -> Result<(), WhyNotInLanes> {
        let starts = self.starts()?;
        let mut written_here: FxHashSet<Reg> = FxHashSet::default();
        let mut read_first: FxHashSet<Reg> = FxHashSet::default();
        for i in self.body.clone() {
            if starts.binary_search(&i).is_ok() {
                written_here.clear();
            }
            let uses = self.uses(i).ok_or(WhyNotInLanes::Instruction(i))?;
            let is_constant = |r: Reg| self.plan.constant(r).is_some();
            for used in uses {
                let (read, write) = match used {
                    RegisterUse::Read(r, size) => {
                        if !is_constant(r) {
                            self.sizes.ask(r, size);
                        }
                        (Some(r), None)
                    }
                    RegisterUse::Write(r, size) => {
                        self.sizes.ask(r, size);
                        (None, Some(r))
                    }
                    RegisterUse::Move { dst, src } => {
                        if !is_constant(src) {
                            self.sizes.join(dst, src);
                        }
                        (Some(src), Some(dst))
                    }
                };
                if let Some(r) = read
                    && !written_here.contains(&r)
                {
                    read_first.insert(r);
                }
                if let Some(r) = write {
                    written_here.insert(r);
                    self.written.insert(r);
                }
            }
        }
        self.kept = self.written.intersection(&read_first).copied().collect();
        match self.body.clone().find(|&i| self.has_mixed_sizes(i)) {
            Some(i) => Err(WhyNotInLanes::Instruction(i)),
            None => Ok(()),
        }
    }

    fn has_mixed_sizes(&mut self, i: u32) -> bool {
        let uses = self.uses(i).expect("the instruction was checked");
        uses.into_iter().any(|used| match used {
            RegisterUse::Read(r, _) | RegisterUse::Write(r, _) | RegisterUse::Move { dst: r, .. } => {
                self.plan.constant(r).is_none() && self.sizes.size(r) == 0
            }
        })
    }

    /// Returns the first instructions of the basic blocks, in order, and the end of the body.
    pub(super) fn starts(&self) -> Result<Vec<u32>, WhyNotInLanes> {
        let mut starts = vec![self.body.start, self.body.end];
        for i in self.body.clone() {
            if let Some(to) = self.plan.code[i as usize].target() {
                if !(self.body.start..=self.body.end).contains(&to) {
                    return Err(WhyNotInLanes::Instruction(i));
                }
                starts.extend([to, i + 1]);
            }
        }
        starts.sort_unstable();
        starts.dedup();
        Ok(starts)
    }

    /// Returns the row of a register.
    pub(super) fn row(&mut self, r: Reg, size: usize) -> RowId {
        let start = match self.plan.constant(r) {
            Some(bits) => RowStart::Constant(bits),
            None if self.written.contains(&r) => RowStart::Nothing,
            None => RowStart::Register(r),
        };
        let is_kept = self.kept.contains(&r);
        let rows = &mut self.program.rows;
        *self.rows_of.entry((r, size)).or_insert_with(|| {
            rows.push(RowInfo { size, start, is_kept });
            rows.len() as RowId - 1
        })
    }
}
