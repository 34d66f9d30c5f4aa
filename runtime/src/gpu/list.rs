//! Lists in the memory of a GPU.
//!
//! A list is one block of memory with its elements, and a word for each of them that tells whether
//! it is written. The host knows its length. An update is in place if nothing else has the block;
//! under a guard (`ahead.rs`) it always makes a new one, so that work in vain changes nothing.
//!
//! Indices are checked on the device. Checks and error messages are those of the interpreter. A sum
//! takes an element that is not written for zeros, so -0 becomes 0.

use super::ahead::not_ahead;
use super::handwritten::{self, Indices, LIST_RESTORE};
use super::lower::{THREADS, groups};
use super::memory::{GpuTensor, GpuValue};
use super::queue::Shared;
use super::run::{OpenCheck, ProgramRun};
use super::shader::CompiledShader;
use anabranch_dsl::interp::list as meaning;
use anabranch_dsl::ir::{Graph, ListOp, Node, Op, Value};
use anabranch_dsl::{DType, Diagnostic, ErrorKind, HostTensor, Loc, Result, TensorType, memory};
use std::sync::Arc;

/// The bytes of a list up to which it is copied for an update under a guard.
const MAX_COPIED_BYTES: u64 = 1 << 20;

/// A list. Clones share its memory.
#[derive(Clone, Debug)]
pub(super) struct GpuList {
    /// The elements, one after the other, with zeros for those that are not written. There may be
    /// room for more.
    elements: Arc<GpuTensor>,
    /// A word for each element, which is not 0 if it is written, unless all are.
    written: Option<Arc<GpuTensor>>,
    len: usize,
}

impl GpuList {
    /// Returns the memory of the elements.
    pub(super) fn elements(&self) -> &Arc<GpuTensor> {
        &self.elements
    }

    /// Returns the words that mark elements as written, unless all are.
    pub(super) fn marks(&self) -> Option<&Arc<GpuTensor>> {
        self.written.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of the list.
    pub(super) fn n_bytes(&self) -> u64 {
        self.elements.n_bytes() + self.written.as_ref().map_or(0, |written| written.n_bytes())
    }

    fn is_unique(&self) -> bool {
        let is_unique = |tensor: &Arc<GpuTensor>| Arc::strong_count(tensor) == 1 && tensor.known().is_none();
        is_unique(&self.elements) && self.written.as_ref().is_none_or(is_unique)
    }
}

/// An operation on a list, with its shaders.
#[derive(Debug)]
pub(super) struct ListProgram {
    pub(super) node: Node,
    op: ListOp,
    /// The words of an element.
    n_words: usize,
    /// The number of indices.
    n_indices: usize,
    /// Reads, writes or adds elements.
    elements: Option<Arc<CompiledShader>>,
    /// Marks elements as written, or joins the marks of two lists.
    marks: Option<Arc<CompiledShader>>,
}

impl ListProgram {
    /// Compiles the shaders of an operation.
    ///
    /// # Errors
    /// Fails if the driver does not accept a shader.
    pub(super) fn new(graph: &Graph, node: Node, shared: &Shared) -> Result<ListProgram> {
        let data = graph.node(node);
        let Op::List(op) = &data.op else { panic!("{node} is no operation on lists") };
        let (of_list, of_index) = match op {
            ListOp::New(_) | ListOp::Unstack | ListOp::Restore => (data.results[0], None),
            ListOp::Read | ListOp::Gather | ListOp::Write | ListOp::Scatter | ListOp::Accumulate => {
                (data.operands[0], data.operands.get(1))
            }
            _ => (data.operands[0], None),
        };
        let size = |value: Value| graph.ty(value).element().shape.size().expect("the device has known shapes only");
        let dtype = graph.ty(of_list).element().dtype;
        let shader = |text: String, bindings| shared.shaders.get(&shared.device, text, bindings).map(Some);
        let rows = Indices::OneForAllRows;
        let (elements, marks) = match op {
            ListOp::Read | ListOp::Gather => (shader(handwritten::gather(rows, dtype), [2, 2])?, None),
            ListOp::Write | ListOp::Scatter => {
                (shader(handwritten::update(rows, dtype), [2, 2])?, shader(handwritten::list_mark(true), [1, 2])?)
            }
            ListOp::Accumulate => {
                (shader(handwritten::scatter(rows, dtype), [2, 2])?, shader(handwritten::list_mark(false), [1, 2])?)
            }
            ListOp::Add => (shader(handwritten::add(dtype), [2, 1])?, shader(handwritten::add(DType::Bool), [2, 1])?),
            ListOp::Restore => (shader(LIST_RESTORE.to_owned(), [2, 1])?, None),
            _ => (None, None),
        };
        let n_indices = match op {
            ListOp::Restore => size(data.operands[1]),
            _ => of_index.map_or(1, |&v| size(v)),
        };
        Ok(ListProgram { node, op: op.clone(), n_words: size(of_list), n_indices, elements, marks })
    }

    fn elements(&self) -> &CompiledShader {
        self.elements.as_ref().expect("the operation has a shader")
    }

    /// Returns the workgroups of the shaders that may run under a guard: of elements, and of marks.
    pub(super) fn workgroups(&self) -> [[u32; 3]; 2] {
        let n = match self.op {
            ListOp::Accumulate => self.n_words * self.parts(),
            _ => self.n_words * self.n_indices,
        };
        [n, self.n_indices].map(|n| groups(n.div_ceil(THREADS).max(1)))
    }

    /// Returns the number of parts of a list that different threads add to.
    fn parts(&self) -> usize {
        if self.n_indices == 1 { 1 } else { (4096 / self.n_words).clamp(1, 16) }
    }
}

/// Returns the error of an operation with indices of a list of `len` elements, given the marks
/// before it if they are known. If they are not, there is one index.
pub(super) fn failure(op: &ListOp, indices: &[i32], written: Option<&[bool]>, len: usize, loc: Loc) -> Diagnostic {
    let mut written = written.map(<[bool]>::to_vec);
    for &index in indices {
        let i = match meaning::check_index(op, index, len, loc) {
            Ok(i) => i,
            Err(error) => return error,
        };
        match &mut written {
            Some(written) if !written[i] => written[i] = true,
            _ if matches!(op, ListOp::Write | ListOp::Scatter) => return meaning::written_twice(op, index, len, loc),
            _ => {}
        }
    }
    panic!("an index of `{}` is wrong", op.name())
}

impl<'a> ProgramRun<'a> {
    /// Makes the memory of a list its own, with room for `len` elements, and with marks if they are
    /// needed.
    pub(super) fn own_list(&self, list: GpuList, n_words: usize, len: usize, needs_marks: bool) -> Result<GpuList> {
        let is_own = self.guard.is_none() && list.is_unique();
        let room = (list.elements.n_bytes() / 4) as usize / n_words;
        if is_own && room >= len && (list.written.is_some() || !needs_marks) {
            return Ok(list);
        }
        if self.guard.is_some() && list.elements.n_bytes() > MAX_COPIED_BYTES {
            return Err(not_ahead());
        }
        // A list that grows has room for as many elements again.
        let most = self.max_list_words() as usize / n_words;
        let room = if len > list.len { len.max(most.min(2 * list.len)) } else { len };
        let elements = self.list_memory(room, n_words)?;
        self.recorder.copy_words([&list.elements, &elements], [0, 0], (list.len * n_words) as u64);
        let written = match list.written {
            Some(old) => {
                let written = self.list_memory(room, 1)?;
                self.recorder.copy_words([&old, &written], [0, 0], list.len as u64);
                Some(written)
            }
            None if needs_marks => {
                let written = self.list_memory(room, 1)?;
                self.recorder.copy(&*self.marks(list.len)?, &written);
                Some(written)
            }
            None => None,
        };
        Ok(GpuList { elements, written, len: list.len })
    }

    /// Returns the largest number of words of a list. Shaders count them in 32 bits.
    fn max_list_words(&self) -> u64 {
        (self.recorder.shared.limits.max_bytes / 4).min(i32::MAX as u64)
    }

    /// Returns memory for elements, with any values.
    fn list_memory(&self, n: usize, n_words: usize) -> Result<Arc<GpuTensor>> {
        let words = (n as u64).saturating_mul(n_words as u64);
        let (n_bytes, limit) = (words.saturating_mul(4), 4 * self.max_list_words());
        if n_bytes > limit {
            let message = format!("a list of {n} elements needs {n_bytes} bytes, more than the {limit} of a tensor");
            let error = Diagnostic::new(message).of_kind(ErrorKind::ResourceExhausted);
            return Err(error.help("use a shorter list, or place it on a CPU"));
        }
        self.recorder.tensor(n_bytes)
    }

    /// Returns the marks of a list whose elements are all written.
    fn marks(&self, len: usize) -> Result<Arc<GpuTensor>> {
        self.recorder.upload(&HostTensor::new([len], vec![true; len]))
    }

    /// Returns some first words of a tensor as a tensor, which shares its memory if these are all.
    fn first_words(&self, tensor: &Arc<GpuTensor>, n: usize) -> Result<Arc<GpuTensor>> {
        if tensor.n_bytes() == 4 * n as u64 {
            return Ok(tensor.clone());
        }
        let first = self.recorder.tensor(4 * n as u64)?;
        self.recorder.copy_words([tensor, &first], [0, 0], n as u64);
        Ok(first)
    }

    /// Returns a number that the host knows, or reads it back.
    async fn number(&mut self, value: Value) -> Result<i32> {
        let tensor = self.tensor(value);
        if let Some(known) = tensor.known() {
            return Ok(known.data::<i32>()[0]);
        }
        if self.guard.is_some() {
            return Err(not_ahead());
        }
        Ok(self.download(&[(&tensor, &TensorType::new(DType::I32, []))]).await?[0].data::<i32>()[0])
    }

    /// Returns a list, and takes it if this is its last use.
    fn list_operand(&mut self, value: Value, is_last_use: bool) -> GpuList {
        let list = if is_last_use { self.take(value) } else { self.value(value).clone() };
        let GpuValue::List(list) = list else { panic!("{value} is a list") };
        list
    }

    /// Runs an operation on lists. `dead` are the values that are not used afterwards.
    pub(super) async fn list_op(&mut self, program: &'a ListProgram, dead: &[Value]) -> Result<()> {
        let (recorder, n_words, op) = (self.recorder, program.n_words, &program.op);
        let graph = self.graph;
        let data = graph.node(program.node);
        let operands = &data.operands;
        // The memory of a list that is not used afterwards can be written.
        let is_last_use = dead.contains(&operands[0]) && operands.iter().filter(|&&v| v == operands[0]).count() == 1;
        let extent = |i: usize| graph.ty(operands[i]).element().shape.known().expect("the shapes are known")[0];
        let result = match op {
            ListOp::New(element) => {
                let n = self.number(operands[0]).await?;
                let len = usize::try_from(n).map_err(|_| meaning::negative_length(op, n, data.loc))?;
                memory::check(len as u128 * element.n_bytes().expect("the shapes are known"))
                    .map_err(|missing| meaning::too_many(op, len, element, missing, data.loc))?;
                let [elements, written] = [self.list_memory(len, n_words)?, self.list_memory(len, 1)?];
                recorder.clear(&elements);
                recorder.clear(&written);
                GpuValue::List(GpuList { elements, written: Some(written), len })
            }
            ListOp::Unstack => {
                let elements = self.tensor(operands[0]);
                GpuValue::List(GpuList { elements, written: None, len: extent(0) })
            }
            ListOp::Restore => {
                let (len, n_marks) = (extent(0), extent(1));
                if len != n_marks {
                    return Err(meaning::lengths_differ(op, len, n_marks, data.loc));
                }
                let (elements, written) = (self.list_memory(len, n_words)?, self.tensor(operands[1]));
                let tensors = [self.tensor(operands[0]), written.clone(), elements.clone()];
                let parameters = [len * n_words, n_words].map(|n| n as u32);
                self.dispatch(program.elements(), &tensors, program.workgroups()[0], &parameters);
                GpuValue::List(GpuList { elements, written: Some(written), len })
            }
            ListOp::Push => {
                let list = self.list_operand(operands[0], is_last_use);
                let len = list.len;
                let list = self.own_list(list, n_words, len + 1, false)?;
                let item = self.tensor(operands[1]);
                recorder.copy_words([&item, &list.elements], [0, len * n_words], n_words as u64);
                if let Some(written) = &list.written {
                    recorder.copy_words([&*self.marks(1)?, written], [0, len], 1);
                }
                GpuValue::List(GpuList { len: len + 1, ..list })
            }
            ListOp::Pop => {
                let list = self.list_operand(operands[0], is_last_use);
                let len = list.len.checked_sub(1).ok_or_else(|| meaning::empty(op, data.loc))?;
                let item = recorder.tensor(4 * n_words as u64)?;
                recorder.copy_words([&list.elements, &item], [len * n_words, 0], n_words as u64);
                self.set(data.results[1], GpuValue::Tensor(item));
                GpuValue::List(GpuList { len, ..list })
            }
            ListOp::Read | ListOp::Gather => {
                let (list, ids) = (self.list_operand(operands[0], is_last_use), self.tensor(operands[1]));
                let items = self.memory(data.results[0])?;
                self.at_indices(program, &list, [ids, list.elements.clone(), items.clone()], None, 1)?;
                GpuValue::Tensor(items)
            }
            ListOp::Write | ListOp::Scatter | ListOp::Accumulate => {
                let list = self.list_operand(operands[0], is_last_use);
                let (len, adds) = (list.len, *op == ListOp::Accumulate);
                let needs_marks = !adds || list.written.is_some();
                let list = self.own_list(list, n_words, len, needs_marks)?;
                let [ids, items] = [1, 2].map(|i| self.tensor(operands[i]));
                // An error that names one of several indices follows from the marks before.
                let before = match &list.written {
                    Some(written) if *op == ListOp::Scatter => {
                        let before = recorder.tensor(written.n_bytes())?;
                        recorder.copy(written, &before);
                        Some(before)
                    }
                    _ => None,
                };
                let parts = if adds { program.parts() } else { 1 };
                let check =
                    self.at_indices(program, &list, [ids.clone(), items, list.elements.clone()], before, parts)?;
                if let Some(written) = &list.written {
                    let (failure, number) = check;
                    let parameters = [program.n_indices as u32, len as u32, number];
                    let marks = program.marks.as_ref().expect("an update marks elements");
                    self.dispatch(marks, &[ids, written.clone(), failure], program.workgroups()[1], &parameters);
                }
                GpuValue::List(list)
            }
            ListOp::Stack(extent) => {
                let list = self.list_operand(operands[0], is_last_use);
                meaning::check_extent(op, list.len, extent, data.loc)?;
                GpuValue::Tensor(self.first_words(&list.elements, list.len * n_words)?)
            }
            ListOp::Len => GpuValue::Tensor(
                recorder.upload(&HostTensor::scalar(self.list_operand(operands[0], is_last_use).len as i32))?,
            ),
            ListOp::Written => {
                let list = self.list_operand(operands[0], is_last_use);
                GpuValue::Tensor(match &list.written {
                    Some(written) => self.first_words(written, list.len)?,
                    None => self.marks(list.len)?,
                })
            }
            ListOp::ZerosLike => {
                let len = self.list_operand(operands[0], is_last_use).len;
                let [elements, written] = [self.list_memory(len, n_words)?, self.list_memory(len, 1)?];
                recorder.clear(&elements);
                recorder.clear(&written);
                GpuValue::List(GpuList { elements, written: Some(written), len })
            }
            ListOp::Add => {
                let (a, b) = (self.list_operand(operands[0], is_last_use), self.value(operands[1]).clone());
                let GpuValue::List(b) = b else { panic!("{} is a list", operands[1]) };
                if a.len != b.len {
                    return Err(meaning::lengths_differ(op, a.len, b.len, data.loc));
                }
                // The workgroups follow from the length, so they are in no row of a guard.
                if self.guard.is_some() {
                    return Err(not_ahead());
                }
                let elements = self.sum(program.elements(), [&a.elements, &b.elements], a.len * n_words)?;
                let written = match (&a.written, &b.written) {
                    (Some(x), Some(y)) => {
                        let marks = program.marks.as_ref().expect("a sum joins marks");
                        Some(self.sum(marks, [x, y], a.len)?)
                    }
                    _ => None,
                };
                GpuValue::List(GpuList { elements, written, len: a.len })
            }
            ListOp::Concat(_) | ListOp::Split(_) | ListOp::Extents => {
                panic!("placement puts no `{}` on a GPU", op.name())
            }
        };
        self.set(data.results[0], result);
        Ok(())
    }

    /// Runs the shader of an operation that reads or writes elements at indices. Returns the word
    /// of failures and the number of its check.
    fn at_indices(
        &mut self,
        program: &'a ListProgram,
        list: &GpuList,
        tensors: [Arc<GpuTensor>; 3],
        before: Option<Arc<GpuTensor>>,
        parts: usize,
    ) -> Result<(Arc<GpuTensor>, u32)> {
        let checked = [Some(tensors[0].clone()), before].into_iter().flatten().collect();
        let (failure, number) = self.open_check(OpenCheck::of_list(program.node, checked, list.len))?;
        let n_parts = if program.op == ListOp::Accumulate { parts } else { program.n_indices };
        let size = program.n_words * n_parts;
        let sizes = [size, program.n_indices, program.n_words, list.len, parts];
        let parameters = [&sizes.map(|n| n as u32)[..], &[number]].concat();
        let tensors = [&tensors[..], std::slice::from_ref(&failure)].concat();
        self.dispatch(program.elements(), &tensors, program.workgroups()[0], &parameters);
        Ok((failure, number))
    }

    /// Returns the sum of some first words of two tensors.
    fn sum(&self, shader: &CompiledShader, terms: [&Arc<GpuTensor>; 2], n: usize) -> Result<Arc<GpuTensor>> {
        let sum = self.recorder.tensor(4 * n as u64)?;
        if n > 0 {
            let [a, b] = terms.map(Arc::clone);
            self.dispatch(shader, &[a, b, sum.clone()], groups(n.div_ceil(THREADS)), &[n as u32]);
        }
        Ok(sum)
    }
}
