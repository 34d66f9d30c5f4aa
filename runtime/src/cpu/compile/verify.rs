//! Verification of plans.
//!
//! Kernels and native code take memory by index, and rely on the invariants P1 to P7 of the
//! [module](super). A debug build verifies every plan that it compiles, before native code is made
//! of it. Verification takes time linear in the plan, except for P2, which takes as many
//! rounds as loops are nested, each linear in the product of blocks of code and storage.
//!
//! The analysis of memory (P3) is conservative in the same way as the allocator: a buffer is live
//! from its first access in the code to its last, and to the end of each loop that reads it but
//! begins after its first access.

use super::draft::{AccessKind, StorageIds, instr_touches};
use super::{Assign, Base, BufferId, Instr, Out, Plan, TensorOp, TensorOperand, View};
use crate::cpu::kernels::Kernel;
use crate::cpu::memory::Storage;
use crate::cpu::memory::{ALIGN, BufferLocation, MAX_WRITTEN};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Maximum size of the bit sets of P2 in words. Larger plans are not checked for it.
const MAX_WORDS: usize = 1 << 24;

impl Plan {
    /// Checks the invariants P1 to P7. An error names the violated invariant.
    pub(super) fn verify(&self) -> Result<(), String> {
        self.verify_indices()?;
        self.verify_buffers()?;
        for (i, op) in self.tensor_ops.iter().enumerate() {
            self.verify_op(op).map_err(|e| format!("{e}, in operation {i}, `{}`", op.name))?;
        }
        self.verify_parallel()?;
        self.verify_end()?;
        self.verify_memory()?;
        self.verify_written()
    }

    /// Calls `f` for all operands that are read after the code.
    pub(crate) fn visit_last(&self, f: &mut dyn FnMut(&TensorOperand)) {
        self.outputs.iter().for_each(|(o, _)| f(o));
        self.assigns.iter().for_each(|a| f(&a.value));
        self.updates.iter().flat_map(|u| &u.operands).for_each(&mut *f);
        self.additions.iter().flat_map(|op| &self.tensor_ops[op.index()].operands).for_each(f);
    }

    /// Checks P1 and P6, and that all storage exists.
    fn verify_indices(&self) -> Result<(), String> {
        let n = self.code.len();
        for (pc, instr) in self.code.iter().enumerate() {
            if let Some(to) = instr.target()
                && to as usize > n
            {
                return Err(format!("P1: instruction {pc} jumps to {to} of {n}"));
            }
            let mut error = None;
            instr_touches(&self.tensor_ops, instr, &mut |storage, kind| {
                if !self.exists(storage) {
                    error.get_or_insert(format!("P1: instruction {pc} uses {storage:?}, which does not exist"));
                }
                if let (Storage::Reg(r), AccessKind::Write) = (storage, kind)
                    && r.index() < self.n_constant_registers
                {
                    error.get_or_insert(format!("P6: instruction {pc} writes {r:?}, which holds a constant"));
                }
            });
            error.map_or(Ok(()), Err)?;
        }
        let mut missing = None;
        self.visit_last(&mut |operand| missing = missing.or(operand.storage().filter(|&s| !self.exists(s))));
        missing.map_or(Ok(()), |storage| Err(format!("P1: {storage:?} is read at the end and does not exist")))
    }

    fn exists(&self, storage: Storage) -> bool {
        match storage {
            Storage::Reg(r) => r.index() < self.registers.len(),
            Storage::Buffer(b) => b.index() < self.regions.len(),
            Storage::Stack(s) => s.index() < self.stacks.len(),
            Storage::Slot(s) => s.index() < self.n_slots,
        }
    }

    /// Checks that buffers are inside the arena, and P7.
    fn verify_buffers(&self) -> Result<(), String> {
        for (b, region) in self.regions.iter().enumerate() {
            match region {
                BufferLocation::Arena(range) if range.end > self.arena_bytes || !range.start.is_multiple_of(ALIGN) => {
                    return Err(format!("P3: buffer {b} is at {range:?} of {} bytes", self.arena_bytes));
                }
                BufferLocation::Arena(_) => {}
                BufferLocation::Result(i) => {
                    let view = self.results.get(*i as usize).map(|&o| &self.outputs[o].0);
                    let is_whole = |view: &View| view.offset == 0 && view.is_contiguous();
                    if !matches!(view, Some(TensorOperand::View(v)) if is_buffer(v, b) && is_whole(v)) {
                        return Err(format!("P7: buffer {b} is not an output, but in the memory of output {i}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the size of a base in bytes, or `None` for a variable.
    fn base_bytes(&self, base: Base) -> Option<usize> {
        Some(match base {
            Base::Buffer(b) => match &self.regions[b.index()] {
                BufferLocation::Arena(range) => range.len(),
                BufferLocation::Result(i) => self.result(*i as usize).0.n_bytes(),
            },
            Base::Reg(_) => size_of::<u64>(),
            Base::Input(i) => self.inputs[i as usize].n_bytes().and_then(|n| usize::try_from(n).ok())?,
            Base::Constant(i) => self.constants[i as usize].ty().n_bytes().and_then(|n| usize::try_from(n).ok())?,
            Base::Var(_) => return None,
        })
    }

    /// Checks that a view is inside its base.
    fn verify_view(&self, view: &View) -> Result<(), String> {
        if view.size() == 0 {
            return Ok(());
        }
        let (mut low, mut high) = (view.offset as i128, view.offset as i128);
        for (&n, &stride) in view.shape.iter().zip(&view.strides) {
            let reach = (n as i128 - 1) * stride as i128;
            if reach < 0 { low += reach } else { high += reach }
        }
        let end = (high + 1) * view.dtype.size() as i128;
        match self.base_bytes(view.base) {
            Some(bytes) if low < 0 || end > bytes as i128 => {
                Err(format!("P3: a view of {:?} reaches from element {low} to byte {end} of {bytes}", view.base))
            }
            _ => Ok(()),
        }
    }

    /// Checks P4 and P5 for one operation.
    fn verify_op(&self, op: &TensorOp) -> Result<(), String> {
        let operands = || op.operands.iter().enumerate();
        for (_, operand) in operands() {
            if let TensorOperand::View(v) = operand {
                self.verify_view(v)?;
            }
        }
        let outs: &[View] = match &op.out {
            Out::View(v) => std::slice::from_ref(v),
            Out::Views(views) => views,
            Out::Reg(..) | Out::Slot(_) | Out::Nothing => &[],
        };
        if outs.len() > MAX_WRITTEN {
            return Err(format!("P4: {} results of one operation", outs.len()));
        }
        for (o, out) in outs.iter().enumerate() {
            self.verify_view(out)?;
            let Base::Buffer(b) = out.base else { return Err(format!("P5: {:?} is written", out.base)) };
            if outs[..o].iter().any(|other| other.base == out.base) {
                return Err(format!("P4: {b:?} is written twice"));
            }
            for (i, operand) in operands() {
                let TensorOperand::View(v) = operand else { continue };
                if v.base == out.base && v.size() > 0 && !may_read_own_result(op, i, o, v, out) {
                    return Err(format!("P4: operand {i} is read from {b:?} while that is written"));
                }
            }
        }
        Ok(())
    }

    /// Checks P4 for operations that run in parallel.
    fn verify_parallel(&self) -> Result<(), String> {
        for (pc, instr) in self.code.iter().enumerate() {
            let Instr::RunParallel(ops) = instr else { continue };
            let mut writer: BTreeMap<BufferId, usize> = BTreeMap::new();
            for (i, op) in ops.iter().enumerate() {
                for storage in self.tensor_ops[op.index()].out.storage() {
                    let Storage::Buffer(b) = storage else {
                        return Err(format!("P4: {storage:?} is written in parallel by instruction {pc}"));
                    };
                    if writer.insert(b, i).is_some() {
                        return Err(format!("P4: {b:?} is written twice in parallel by instruction {pc}"));
                    }
                }
            }
            for (i, op) in ops.iter().enumerate() {
                for operand in &self.tensor_ops[op.index()].operands {
                    if let Some(Storage::Buffer(b)) = operand.storage()
                        && writer.get(&b).is_some_and(|&writer| writer != i)
                    {
                        return Err(format!("P4: {b:?} is read and written in parallel by instruction {pc}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks P3 to P5 for what is read and written after the code.
    fn verify_end(&self) -> Result<(), String> {
        let mut error = None;
        self.visit_last(&mut |operand| {
            if let TensorOperand::View(v) = operand {
                error = error.take().or_else(|| self.verify_view(v).err());
            }
        });
        error.map_or(Ok(()), Err)?;
        let mut written = BTreeSet::new();
        let mut write = |var: usize| match written.insert(var) {
            true => Ok(()),
            false => Err(format!("P5: variable {var} is written twice at the end")),
        };
        let mut updated: BTreeSet<usize> = BTreeSet::new();
        for update in &self.updates {
            for operand in &update.operands {
                let TensorOperand::View(v) = operand else { continue };
                let Base::Var(var) = v.base else { continue };
                let (var, is_new) = (var as usize, update.new_values.contains(&(var as usize)));
                if update.vars.contains(&var) && !(v.offset == 0 && v.is_contiguous()) {
                    return Err(format!("P4: variable {var} is updated from other places of its own"));
                }
                match (is_new, updated.contains(&var)) {
                    (false, true) => {
                        return Err(format!("P5: an update has overwritten variable {var}, which is read"));
                    }
                    (true, false) => return Err(format!("P5: variable {var} is read before its update")),
                    _ => {}
                }
            }
            update.vars.iter().try_for_each(|&var| write(var))?;
            updated.extend(&update.vars);
        }
        let in_variable = |operand: &TensorOperand| match operand {
            TensorOperand::View(View { base: Base::Var(var), .. }) => Some(*var as usize),
            _ => None,
        };
        for Assign { var, value } in &self.assigns {
            if let Some(read) = in_variable(value) {
                return Err(format!("P5: variable {var} is assigned from variable {read}"));
            }
            write(*var)?;
        }
        let mut added = BTreeSet::new();
        for op in self.additions.iter().map(|op| &self.tensor_ops[op.index()]) {
            let [table, others @ ..] = &op.operands[..] else {
                return Err("P5: an addition has no operand".to_owned());
            };
            let Some(var) = in_variable(table) else { return Err("P5: an addition is to no variable".to_owned()) };
            if let Some(read) = others.iter().find_map(in_variable) {
                return Err(format!("P5: elements of variable {read} are added to variable {var}"));
            }
            // Several additions to one variable follow each other.
            if added.insert(var) {
                write(var)?;
            }
        }
        Ok(())
    }

    /// Checks P3: the memory of live buffers is disjoint.
    fn verify_memory(&self) -> Result<(), String> {
        let mut live: Vec<Option<(usize, usize)>> = vec![None; self.regions.len()];
        let mut loops: Vec<Range<usize>> = Vec::new();
        let mut starts: BTreeMap<usize, Vec<Range<usize>>> = BTreeMap::new();
        for l in &self.loops {
            starts.entry(l.code.start as usize).or_default().push(l.code.start as usize..l.code.end as usize);
        }
        for (pc, instr) in self.code.iter().enumerate() {
            loops.retain(|l| l.contains(&pc));
            loops.extend(starts.remove(&pc).into_iter().flatten());
            instr_touches(&self.tensor_ops, instr, &mut |storage, kind| {
                let Storage::Buffer(b) = storage else { return };
                let (first, last) = live[b.index()].get_or_insert((pc, pc));
                *last = (*last).max(pc);
                if kind == AccessKind::Read {
                    for l in loops.iter().filter(|l| *first < l.start) {
                        *last = (*last).max(l.end - 1);
                    }
                }
            });
        }
        self.visit_last(&mut |operand| {
            if let Some(Storage::Buffer(b)) = operand.storage()
                && let Some((_, last)) = &mut live[b.index()]
            {
                *last = self.code.len();
            }
        });
        // Sweep over the code: the memory that is live, by its start, and the buffers by their end.
        let mut begins: Vec<(usize, usize)> =
            live.iter().enumerate().filter_map(|(b, range)| Some((range.as_ref()?.0, b))).collect();
        begins.sort_unstable();
        let mut used: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        let mut ends: BTreeSet<(usize, usize)> = BTreeSet::new();
        for (first, b) in begins {
            let BufferLocation::Arena(range) = &self.regions[b] else { continue };
            if range.is_empty() {
                continue;
            }
            while let Some(&(last, done)) = ends.first()
                && last < first
            {
                ends.pop_first();
                if let BufferLocation::Arena(range) = &self.regions[done] {
                    used.remove(&range.start);
                }
            }
            if let Some((_, &(end, other))) = used.range(..range.end).next_back()
                && end > range.start
            {
                return Err(format!("P3: buffers {other} and {b} overlap at instruction {first}"));
            }
            used.insert(range.start, (range.end, b));
            let (_, last) = live[b].expect("it begins");
            ends.insert((last, b));
        }
        Ok(())
    }

    /// Checks P2: storage is written before it is read on every path.
    fn verify_written(&self) -> Result<(), String> {
        let n = self.code.len();
        let mut is_start = vec![false; n + 1];
        is_start[0] = true;
        for (pc, instr) in self.code.iter().enumerate() {
            if let Some(to) = instr.target() {
                (is_start[to as usize], is_start[pc + 1]) = (true, true);
            }
        }
        is_start[n] = true;
        let starts: Vec<usize> = (0..=n).filter(|&pc| is_start[pc]).collect();
        let ids = StorageIds {
            registers: self.registers.len(),
            buffers: self.regions.len(),
            stacks: self.stacks.len(),
            slots: self.n_slots,
        };
        let words = ids.len().div_ceil(64);
        if starts.len().saturating_mul(words) > MAX_WORDS {
            return Ok(());
        }
        // The storage written at the start of each block; `None` if no path to the block is known.
        let mut written: Vec<Option<Vec<u64>>> = vec![None; starts.len()];
        let mut at_start = vec![0; words];
        (0..self.n_constant_registers).for_each(|r| set(&mut at_start, r));
        written[0] = Some(at_start);
        let mut pending = BTreeSet::from([0]);
        while let Some(block) = pending.pop_first() {
            let mut now = written[block].clone().expect("a path leads to a pending block");
            let end = starts.get(block + 1).copied().unwrap_or(n);
            for instr in &self.code[starts[block]..end] {
                instr_touches(&self.tensor_ops, instr, &mut |storage, kind| {
                    if kind == AccessKind::Write {
                        set(&mut now, ids.of(storage));
                    }
                });
            }
            if starts[block] == n {
                continue;
            }
            let last = &self.code[end - 1];
            let jumps = last.target().map(|to| starts.binary_search(&(to as usize)).expect("a target starts a block"));
            let falls = !matches!(last, Instr::Jump { .. });
            for next in jumps.into_iter().chain(falls.then_some(block + 1)) {
                let known = &mut written[next];
                let changed = match known {
                    None => {
                        *known = Some(now.clone());
                        true
                    }
                    Some(known) => {
                        let before: u32 = known.iter().map(|word| word.count_ones()).sum();
                        known.iter_mut().zip(&now).for_each(|(known, now)| *known &= now);
                        before != known.iter().map(|word| word.count_ones()).sum::<u32>()
                    }
                };
                if changed {
                    pending.insert(next);
                }
            }
        }
        for (block, &start) in starts.iter().enumerate() {
            let Some(mut now) = written[block].take() else { continue };
            let end = starts.get(block + 1).copied().unwrap_or(n);
            let mut error = None;
            for (pc, instr) in (start..).zip(&self.code[start..end]) {
                instr_touches(&self.tensor_ops, instr, &mut |storage, kind| match kind {
                    AccessKind::Write => set(&mut now, ids.of(storage)),
                    AccessKind::Read if !is_set(&now, ids.of(storage)) => {
                        error.get_or_insert(format!("P2: instruction {pc} reads {storage:?} before it is written"));
                    }
                    AccessKind::Read => {}
                });
            }
            if start == n {
                self.visit_last(&mut |operand| {
                    if let Some(storage) = operand.storage()
                        && !is_set(&now, ids.of(storage))
                    {
                        error.get_or_insert(format!("P2: {storage:?} is read at the end and not written"));
                    }
                });
            }
            error.map_or(Ok(()), Err)?;
        }
        Ok(())
    }
}

fn is_buffer(view: &View, b: usize) -> bool {
    matches!(view.base, Base::Buffer(own) if own.index() == b)
}

/// Returns whether an operation may read operand `i` from the memory to which it writes result `o`.
fn may_read_own_result(op: &TensorOp, i: usize, o: usize, operand: &View, out: &View) -> bool {
    match &op.kernel {
        Kernel::Map(_) => operand.same_places(out),
        Kernel::Matmul(product) => {
            product.addend(&op.operands).is_some_and(|addend| std::ptr::eq(addend, operand)) && operand.same_places(out)
        }
        Kernel::Rows(rows) => rows.may_lie_in(i, o),
        // Such kernels only write to the memory of their first operand.
        Kernel::ScatterAdd(_) | Kernel::WriteWindow(_) | Kernel::WriteElement { .. } | Kernel::AddElement { .. } => {
            i == 0 && operand.same_places(out)
        }
        _ => false,
    }
}

fn set(words: &mut [u64], i: usize) {
    words[i / 64] |= 1 << (i % 64);
}

fn is_set(words: &[u64], i: usize) -> bool {
    words[i / 64] >> (i % 64) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::super::{LowerOptions, Reg, SlotId, TensorOpId, lower};
    use super::*;
    use anabranch_dsl::Graph;

    /// Returns the plan of a graph without fusion, so that each operation runs by itself.
    fn plan(text: &str) -> Plan {
        lowered(text, LowerOptions { fuse: false, ..LowerOptions::default() })
    }

    /// Returns the plan of a graph with fused kernels.
    fn fused_plan(text: &str) -> Plan {
        lowered(text, LowerOptions::default())
    }

    fn lowered(text: &str, options: LowerOptions) -> Plan {
        let graph = Graph::parse(text, "f.ir").expect("the text is right");
        lower(&graph, options).expect("the graph has a plan")
    }

    /// Returns a plan of three operations over buffers, the last of which is a result.
    fn three_ops() -> Plan {
        plan(
            "graph @f(%x: f32[4, 4]) -> f32[4, 4] {
                %a = matmul %x, %x
                %b = matmul %a, %x
                %y = matmul %a, %b
                return %y
            }",
        )
    }

    /// Checks that the change breaks the plan, with an error that contains all of `parts`.
    fn check_broken(mut plan: Plan, change: impl FnOnce(&mut Plan), parts: &[&str]) {
        assert_eq!(plan.verify(), Ok(()), "{plan}");
        change(&mut plan);
        let error = plan.verify().expect_err("the plan is broken");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}: no {parts:?}");
    }

    fn out(plan: &mut Plan, op: usize) -> &mut View {
        match &mut plan.tensor_ops[op].out {
            Out::View(view) => view,
            other => panic!("operation {op} writes {other:?}"),
        }
    }

    fn operand(plan: &mut Plan, op: usize, i: usize) -> &mut View {
        match &mut plan.tensor_ops[op].operands[i] {
            TensorOperand::View(view) => view,
            TensorOperand::Slot(slot) => panic!("operation {op} reads {slot:?}"),
        }
    }

    #[test]
    fn a_jump_stays_in_the_code() {
        let jumps = || {
            plan(
                "graph @f(%n: i32[]) -> i32[] {
                    %m = while (%i = %n) : (i32[]) cond {
                        %zero = constant 0 : i32[]
                        %p = gt %i, %zero : bool[]
                        yield %p
                    } body {
                        %one = constant 1 : i32[]
                        %j = sub %i, %one : i32[]
                        yield %j
                    }
                    return %m
                }",
            )
        };
        let jump = |plan: &mut Plan| {
            let jump = plan.code.iter_mut().find(|instr| instr.target().is_some()).expect("a loop jumps");
            if let Instr::Jump { to } | Instr::JumpIf { to, .. } | Instr::JumpUnless { to, .. } = jump {
                *to = 99;
            } else if let Instr::JumpCompare { to, .. } = jump {
                *to = 99;
            }
        };
        check_broken(jumps(), jump, &["P1", "jumps to 99"]);
        let constant = |plan: &mut Plan| plan.code.insert(0, Instr::Move { dst: Reg(0), src: Reg(0) });
        check_broken(jumps(), constant, &["P6", "r0"]);
    }

    #[test]
    fn storage_exists() {
        let missing = |plan: &mut Plan| plan.code.push(Instr::SlotMove { dst: SlotId(0), src: SlotId(7) });
        check_broken(three_ops(), missing, &["P1", "does not exist"]);
        let output = |plan: &mut Plan| plan.outputs[0].0 = TensorOperand::Slot(SlotId(3));
        check_broken(three_ops(), output, &["P1", "read at the end"]);
    }

    #[test]
    fn storage_is_written_before_it_is_read() {
        check_broken(three_ops(), |plan| plan.code.swap(0, 1), &["P2", "instruction 0"]);
        let last = plan("graph @f(%x: f32[4]) -> (f32[4], f32[4]) { %a = exp %x  %b = neg %x  return %a, %b }");
        check_broken(last, |plan| plan.code.truncate(1), &["P2", "at the end"]);
    }

    #[test]
    fn live_memory_is_disjoint() {
        let overlap = |plan: &mut Plan| {
            let arena: Vec<usize> =
                (0..plan.regions.len()).filter(|&b| matches!(plan.regions[b], BufferLocation::Arena(_))).collect();
            plan.regions[arena[1]] = plan.regions[arena[0]].clone();
        };
        check_broken(three_ops(), overlap, &["P3", "overlap"]);
        check_broken(three_ops(), |plan| plan.arena_bytes = 64, &["P3", "of 64 bytes"]);
        check_broken(three_ops(), |plan| operand(plan, 0, 0).offset = 1, &["P3", "Input(0)"]);
        check_broken(three_ops(), |plan| operand(plan, 0, 0).strides = vec![-4, 1], &["P3", "from element -12"]);
        check_broken(three_ops(), |plan| out(plan, 0).shape = vec![5, 4], &["P3", "to byte 80 of 64"]);
    }

    /// The memory of a value that a loop reads is not reused in the loop after the last read.
    #[test]
    fn memory_stays_until_the_end_of_a_loop() {
        let text = "graph @f(%x: f32[4, 4], %n: i32[]) -> f32[4, 4] {
            %a = matmul %x, %x
            %y, %m = while (%s = %x, %i = %n | %a = %a) : (f32[4, 4], i32[]) cond {
                %zero = constant 0 : i32[]
                %p = gt %i, %zero : bool[]
                yield %p
            } body {
                %b = matmul %s, %a
                %c = matmul %b, %b
                %d = matmul %c, %c
                %one = constant 1 : i32[]
                %j = sub %i, %one : i32[]
                yield %d, %j
            }
            return %y
        }";
        let reuse = |plan: &mut Plan| {
            let matmuls: Vec<usize> =
                (0..plan.tensor_ops.len()).filter(|&i| plan.tensor_ops[i].name == "matmul").collect();
            let [a, _, c, _] = matmuls[..] else { panic!("there are four matmuls") };
            let [a, c] = [a, c].map(|op| match out(plan, op).base {
                Base::Buffer(b) => b.index(),
                other => panic!("a matmul writes {other:?}"),
            });
            plan.regions[c] = plan.regions[a].clone();
        };
        check_broken(plan(text), reuse, &["P3", "overlap"]);
    }

    #[test]
    fn a_kernel_does_not_read_its_result() {
        let own = |plan: &mut Plan| {
            let base = out(plan, 1).base;
            operand(plan, 1, 0).base = base;
        };
        check_broken(three_ops(), own, &["P4", "while that is written"]);
    }

    #[test]
    fn an_operation_writes_each_of_few_buffers_once() {
        let written = |plan: &mut Plan, n: usize| {
            let view = out(plan, 0).clone();
            plan.tensor_ops[0].out = Out::Views(vec![view; n]);
        };
        check_broken(three_ops(), |plan| written(plan, 2), &["P4", "written twice, in operation 0"]);
        let too_many = format!("P4: {} results", MAX_WRITTEN + 1);
        check_broken(three_ops(), |plan| written(plan, MAX_WRITTEN + 1), &[&too_many]);
    }

    #[test]
    fn parallel_operations_are_independent() {
        let both = |plan: &mut Plan, ops: [u32; 2]| {
            plan.code = vec![Instr::RunParallel(ops.map(TensorOpId).into())];
        };
        check_broken(three_ops(), |plan| both(plan, [0, 1]), &["P4", "read and written in parallel"]);
        check_broken(three_ops(), |plan| both(plan, [0, 0]), &["P4", "written twice in parallel"]);
        let slot = |plan: &mut Plan| {
            both(plan, [0, 2]);
            plan.n_slots = 1;
            plan.tensor_ops[0].out = Out::Slot(SlotId(0));
        };
        check_broken(three_ops(), slot, &["P4", "Slot(d0) is written in parallel"]);
    }

    #[test]
    fn inputs_are_not_written() {
        check_broken(three_ops(), |plan| out(plan, 0).base = Base::Input(0), &["P5", "Input(0)"]);
    }

    #[test]
    fn a_result_is_a_whole_output() {
        let part = |plan: &mut Plan| {
            let (TensorOperand::View(view), _) = &mut plan.outputs[0] else { panic!("the output is a view") };
            (view.shape, view.strides) = (vec![4, 2], vec![4, 1]);
        };
        check_broken(three_ops(), part, &["P7"]);
    }

    /// Returns a plan that updates one variable in place and assigns another one.
    fn two_variables() -> Plan {
        let text = "graph @f(%x: f32[4, 4]) -> () {
            var @v: f32[4, 4]
            var @w: f32[4, 4]
            %v = read @v
            %w = read @w
            %a = add %v, %x
            %b = matmul %w, %x
            assign @v, %a
            assign @w, %b
            return
        }";
        let plan = fused_plan(text);
        assert_eq!([plan.updates.len(), plan.assigns.len()], [1, 1], "{plan}");
        plan
    }

    #[test]
    fn a_variable_is_updated_at_its_own_places() {
        let turn = |plan: &mut Plan| {
            let operands = plan.updates[0].operands.iter_mut();
            let of_var = operands.filter_map(|operand| match operand {
                TensorOperand::View(view) if matches!(view.base, Base::Var(_)) => Some(view),
                _ => None,
            });
            of_var.for_each(|view| view.strides.reverse());
        };
        check_broken(two_variables(), turn, &["P4", "variable 0"]);
    }

    #[test]
    fn a_variable_is_written_once_at_the_end() {
        check_broken(two_variables(), |plan| plan.assigns[0].var = 0, &["P5", "variable 0"]);
    }

    /// Returns a plan whose second update reads the new value of the first variable.
    fn dependent_updates() -> Plan {
        let text = "graph @f(%x: f32[1, 4]) -> () {
            var @v: f32[1, 4]
            var @w: f32[3, 4]
            %v = read @v
            %w = read @w
            %a = add %v, %x
            %b = gelu %a
            %c = broadcast_to %b {shape=[3, 4]}
            %d = add %w, %c
            assign @v, %b
            assign @w, %d
            return
        }";
        let plan = fused_plan(text);
        assert_eq!(plan.updates.iter().map(|u| &u.new_values[..]).collect::<Vec<_>>(), [&[][..], &[0]], "{plan}");
        plan
    }

    #[test]
    fn updates_read_the_values_that_are_meant() {
        check_broken(dependent_updates(), |plan| plan.updates.swap(0, 1), &["P5", "variable 0 is read before"]);
        let old = |plan: &mut Plan| plan.updates[1].new_values.clear();
        check_broken(dependent_updates(), old, &["P5", "has overwritten variable 0"]);
    }

    #[test]
    fn what_is_assigned_is_in_no_variable() {
        let old = |plan: &mut Plan| {
            let TensorOperand::View(view) = &mut plan.assigns[0].value else { panic!("it is a view") };
            view.base = Base::Var(0);
        };
        check_broken(two_variables(), old, &["P5", "variable 1 is assigned from variable 0"]);
    }

    #[test]
    fn rows_are_added_once_and_from_memory() {
        let text = "graph @f(%ids: i32[2], %rows: f32[2, 4]) -> () {
            var @v: f32[4, 4]
            var @w: f32[4, 4]
            %v = read @v
            %w = read @w
            %a = scatter_add %v, %ids, %rows {axis=0}
            %b = matmul %w, %w
            assign @v, %a
            assign @w, %b
            return
        }";
        let plan = || {
            let plan = fused_plan(text);
            assert_eq!([plan.additions.len(), plan.assigns.len()], [1, 1], "{plan}");
            plan
        };
        let elsewhere = |plan: &mut Plan| {
            let op = plan.additions[0].index();
            operand(plan, op, 0).base = plan.assigns[0].value.view().base;
        };
        check_broken(plan(), elsewhere, &["P5", "to no variable"]);
        let from_variable = |plan: &mut Plan| {
            let op = plan.additions[0].index();
            operand(plan, op, 2).base = Base::Var(1);
        };
        check_broken(plan(), from_variable, &["P5", "elements of variable 1 are added"]);
        check_broken(plan(), |plan| plan.assigns[0].var = 0, &["P5", "variable 0 is written twice"]);
    }

    #[test]
    fn what_is_assigned_is_in_memory() {
        let beyond = |plan: &mut Plan| {
            let TensorOperand::View(view) = &mut plan.assigns[0].value else { panic!("it is a view") };
            view.offset = 1;
        };
        check_broken(two_variables(), beyond, &["P3"]);
    }
}
