//! Tensors that stay whole in scalarized loops, since the loops read and write elements of them at
//! indices that are data.
//!
//! A *table* is such a tensor of any size: a capture from which rows are read, or a loop variable
//! to whose rows a gradient adds. An access to a row becomes one access for each element, in the
//! table as a tensor of one axis. A *window* is a row that is itself read at an index: its elements
//! are read from the table, at the sum of both positions.

use super::scalarize::{ScalarizedCopy, n_elements, reshape, small};
use crate::ir::{Attrs, GraphBuilder, InsertPoint, Node, NodeData, Op, Origin, Region, Value};
use crate::ops::attributes::{Along, Cast, DynamicSlice, IndexRange, Shaped, Slice};
use crate::ops::{Prim, prim};
use crate::{DType, Graph, HostTensor, Shape, TensorType};
use rustc_hash::{FxHashMap, FxHashSet};

/// A row of a table, by the position of its first element.
#[derive(Clone, Copy)]
pub(super) struct Window {
    /// The table with one axis.
    flat: Value,
    first: Value,
}

/// The extents around an axis along which elements are at an index.
struct Extents {
    outer: usize,
    extent: usize,
    inner: usize,
}

impl Extents {
    fn of(g: &Graph, table: Value, axis: usize) -> Option<Extents> {
        let shape = g.ty(table).element().shape.known()?;
        let product = |extents: &[usize]| extents.iter().product();
        Some(Extents { outer: product(&shape[..axis]), extent: shape[axis], inner: product(&shape[axis + 1..]) })
    }
}

/// Values that are one tensor at different points of a loop.
#[derive(Default)]
struct SameTensor {
    parent: FxHashMap<Value, Value>,
}

impl SameTensor {
    fn of(&mut self, v: Value) -> Value {
        let mut root = v;
        while let Some(&parent) = self.parent.get(&root) {
            root = parent;
        }
        if root != v {
            self.parent.insert(v, root);
        }
        root
    }

    fn join(&mut self, a: Value, b: Value) {
        let (a, b) = (self.of(a), self.of(b));
        if a != b {
            self.parent.insert(a, b);
        }
    }
}

/// Returns the values that are tables inside of a loop, and its results that are.
pub(super) fn tables(g: &Graph, node: Node) -> FxHashSet<Value> {
    let (mut same, mut needed) = (SameTensor::default(), Vec::new());
    let mut all = Vec::new();
    construct(g, node, true, &mut same, &mut needed, &mut all);
    let needed: FxHashSet<Value> = needed.into_iter().map(|v| same.of(v)).collect();
    all.retain(|&v| g.ty(v).as_tensor().is_some() && needed.contains(&same.of(v)));
    all.into_iter().collect()
}

fn construct(
    g: &Graph,
    node: Node,
    is_outermost: bool,
    same: &mut SameTensor,
    needed: &mut Vec<Value>,
    all: &mut Vec<Value>,
) {
    let data = g.node(node);
    if let Some(construct) = g.as_while(node) {
        for var in construct.vars() {
            [var.cond_param, var.next, var.result].into_iter().for_each(|v| same.join(v, var.body_param));
        }
        for capture in g.captures(node) {
            same.join(capture.params[0], capture.params[1]);
        }
    } else {
        for &region in g.result_regions(node) {
            data.results.iter().zip(&g.region(region).yields).for_each(|(&r, &y)| same.join(r, y));
        }
    }
    all.extend(&data.results);
    for &region in &data.regions {
        if !is_outermost {
            g.entry(region).for_each(|(param, outer)| same.join(param, outer));
        }
        all.extend(&g.region(region).params);
        for &inner in &g.region(region).nodes {
            let data = g.node(inner);
            all.extend(&data.results);
            match &data.op {
                Op::Prim(prim::DYNAMIC_SLICE, _) if !is_window(g, data.operands[0]) => needed.push(data.operands[0]),
                Op::Prim(prim::SLICE, _) if is_large(g, data.operands[0]) && !is_window(g, data.operands[0]) => {
                    needed.push(data.operands[0]);
                }
                Op::Prim(prim::SCATTER_ADD | prim::DYNAMIC_UPDATE_SLICE, _) => {
                    same.join(data.operands[0], data.results[0]);
                    needed.push(data.operands[0]);
                }
                op if op.is_construct() => construct(g, inner, false, same, needed, all),
                _ => {}
            }
        }
    }
}

/// Returns whether a tensor has too many elements to be split.
fn is_large(g: &Graph, v: Value) -> bool {
    small(g.ty(v)).is_none()
}

/// Returns whether a value is a row that was read at an index and that is contiguous in its table.
fn is_window(g: &Graph, v: Value) -> bool {
    let Some(data) = g.producer(v).map(|node| g.node(node)) else { return false };
    match &data.op {
        Op::Prim(prim::RESHAPE, _) => is_window(g, data.operands[0]),
        Op::Prim(prim::DYNAMIC_SLICE, attrs) => {
            Extents::of(g, data.operands[0], DynamicSlice::of(attrs).axis).is_some_and(|extents| extents.outer == 1)
        }
        _ => false,
    }
}

/// Returns the number of scalar operations that an operation on tables or windows becomes, or
/// `None` if the operation is another one or cannot be scalarized.
pub(super) fn table_operations(g: &Graph, data: &NodeData, tables: &FxHashSet<Value>) -> Option<usize> {
    let Op::Prim(def, attrs) = &data.op else { return None };
    let number = |v: Value| small(g.ty(v)).is_some_and(|shape| shape.iter().product::<usize>() == 1);
    let (result, operands) = (data.results[0], &data.operands);
    // Whether it writes a part of its own to a table of known extents.
    let is_written = || {
        Extents::of(g, operands[0], Along::of(attrs).axis).is_some()
            && operands[1..].iter().all(|v| !tables.contains(v))
    };
    match *def {
        prim::CHECK_INDEX => (g.ty(result).element().rank() == 0 && operands.len() == 1).then_some(1),
        prim::DYNAMIC_SLICE => {
            // A row that is a table has no elements of its own.
            Extents::of(g, operands[0], DynamicSlice::of(attrs).axis).filter(|_| !tables.contains(&result))?;
            let n = if is_window(g, result) { n_elements(g.ty(result)) } else { small(g.ty(result))?.iter().product() };
            Some(3 + 3 * n)
        }
        prim::SLICE => {
            let is_read = tables.contains(&operands[0]) || (is_large(g, operands[0]) && is_window(g, operands[0]));
            Extents::of(g, operands[0], Slice::of(attrs).axis).filter(|_| is_read && !tables.contains(&result))?;
            Some(2 * small(g.ty(result))?.iter().product::<usize>())
        }
        // Its elements are those of the row that it is read from.
        prim::RESHAPE => (is_window(g, result) && !tables.contains(&result)).then_some(0),
        prim::SCATTER_ADD => {
            let fits = number(operands[1]) && !g.ty(result).element().dtype.is_half() && is_written();
            fits.then(|| small(g.ty(operands[2]))).flatten().map(|shape| 3 + 3 * shape.iter().product::<usize>())
        }
        prim::DYNAMIC_UPDATE_SLICE => {
            let part = is_written().then(|| small(g.ty(operands[1]))).flatten();
            part.map(|shape| 3 + 3 * shape.iter().product::<usize>())
        }
        _ => None,
    }
}

/// The nodes that accesses to a table become, at the end of a region.
struct TableAccess<'a> {
    out: &'a mut GraphBuilder,
    to: Region,
    origin: Origin,
    name: &'static str,
    /// The type of positions in the table.
    position: DType,
}

impl TableAccess<'_> {
    fn prim(&mut self, op: Prim, operands: &[Value], attrs: impl Into<Attrs>) -> Value {
        self.out.at(InsertPoint::End(self.to), self.origin).prim(op, operands, attrs)
    }

    fn reshape(&mut self, v: Value, shape: &Shape) -> Value {
        reshape(self.out.at(InsertPoint::End(self.to), self.origin), v, shape)
    }

    fn flat(&mut self, table: Value) -> Value {
        let size = self.out.ty(table).element().shape.size().expect("tables have known shapes");
        self.reshape(table, &[size].into())
    }

    /// Returns the position of the first element at an index, a number. The check has the errors of
    /// the operation on `operands`, in which the index has the type of operand `i`.
    fn first(
        &mut self,
        index: Value,
        (operands, i): (&[&TensorType], usize),
        range: IndexRange,
        inner: usize,
    ) -> Value {
        let mut checked = vec![self.reshape(index, &operands[i].shape)];
        for ty in operands {
            let zero = HostTensor::zeros(ty.dtype, []);
            let zero = self.out.at(InsertPoint::End(self.to), self.origin).constant(zero);
            let shape = ty.shape.clone();
            checked.push(if ty.rank() == 0 { zero } else { self.prim(prim::BROADCAST_TO, &[zero], Shaped { shape }) });
        }
        let origin = Origin { written: Some(self.name), ..self.origin };
        let checked = self.out.at(InsertPoint::End(self.to), origin).prim(prim::CHECK_INDEX, &checked, range);
        let index = self.reshape(checked, &[0; 0].into());
        let dtype = self.position;
        let index = if self.out.ty(index).element().dtype == dtype {
            index
        } else {
            self.prim(prim::CAST, &[index], Cast { dtype })
        };
        if inner == 1 {
            return index;
        }
        let inner = self.number(inner);
        self.prim(prim::MUL, &[index, inner], Attrs::none())
    }

    fn number(&mut self, x: usize) -> Value {
        let number = match self.position {
            DType::I32 => HostTensor::scalar(x as i32),
            _ => HostTensor::scalar(x as i64),
        };
        self.out.at(InsertPoint::End(self.to), self.origin).constant(number)
    }

    /// Returns a position a number of elements further.
    fn after(&mut self, first: Value, n: usize) -> Value {
        if n == 0 {
            return first;
        }
        let n = self.number(n);
        self.prim(prim::ADD, &[first, n], Attrs::none())
    }

    /// Returns the element at a position that is no data.
    fn element(&mut self, flat: Value, at: usize) -> Value {
        let element = self.prim(prim::SLICE, &[flat], Slice { axis: 0, start: at, end: at + 1, step: 1 });
        self.reshape(element, &[0; 0].into())
    }

    fn read(&mut self, flat: Value, at: Value) -> Value {
        let element = self.prim(prim::DYNAMIC_SLICE, &[flat, at], DynamicSlice { axis: 0, size: 1 });
        self.reshape(element, &[0; 0].into())
    }
}

impl ScalarizedCopy<'_> {
    /// Returns the elements of the result of an operation on tables or windows, or the table.
    ///
    /// Returns `None` for other operations.
    pub(super) fn table_apart(&mut self, to: Region, node: Node, operands: &[Vec<Value>]) -> Option<Vec<Value>> {
        let data = self.from.node(node);
        let Op::Prim(def, attrs) = &data.op else { return None };
        let (x, result) = (*data.operands.first()?, data.results[0]);
        let (g, name) = (self.from, data.name_in_errors());
        let window = self.windows.get(&x).copied();
        let extents = |axis: usize| Extents::of(g, x, axis).expect("the shape was checked before");
        let types: Vec<&TensorType> = data.operands.iter().map(|&v| g.ty(v).element()).collect();
        let size = match window {
            Some(window) => self.out.ty(window.flat).element().shape.size(),
            None => g.ty(x).element().shape.size(),
        };
        let position = if size.is_some_and(|n| i32::try_from(n).is_ok()) { DType::I32 } else { DType::I64 };
        let mut access = TableAccess { out: &mut self.out, to, origin: data.origin(), name, position };
        match *def {
            prim::CHECK_INDEX => Some(vec![access.prim(prim::CHECK_INDEX, &[operands[0][0]], attrs.clone())]),
            prim::RESHAPE => {
                let window = window?;
                self.windows.insert(result, window);
                // A large row has no elements of its own.
                small(g.ty(result)).is_none().then(Vec::new)
            }
            prim::DYNAMIC_SLICE => {
                let DynamicSlice { axis, size } = DynamicSlice::of(attrs);
                let Extents { outer, extent, inner } = extents(axis);
                let mut first = access.first(operands[1][0], (&types, 1), IndexRange { axis, extent, size }, inner);
                let flat = match window {
                    Some(window) => {
                        first = access.prim(prim::ADD, &[window.first, first], Attrs::none());
                        window.flat
                    }
                    None => access.flat(operands[0][0]),
                };
                let mut parts = Vec::new();
                if small(g.ty(result)).is_some() {
                    for i in (0..outer).flat_map(|o| (0..size * inner).map(move |i| o * extent * inner + i)) {
                        let at = access.after(first, i);
                        parts.push(access.read(flat, at));
                    }
                }
                if outer == 1 {
                    self.windows.insert(result, Window { flat, first });
                }
                Some(parts)
            }
            prim::SLICE if self.tables.contains(&x) || (window.is_some() && is_large(g, x)) => {
                let Slice { axis, start, end, step } = Slice::of(attrs);
                let Extents { outer, extent, inner } = extents(axis);
                let places = (0..outer)
                    .flat_map(|o| (start..end).step_by(step).map(move |i| o * extent + i))
                    .flat_map(|row| (0..inner).map(move |i| row * inner + i));
                let flat = window.map_or_else(|| access.flat(operands[0][0]), |window| window.flat);
                let mut read = |place: usize| match window {
                    Some(window) => {
                        let at = access.after(window.first, place);
                        access.read(flat, at)
                    }
                    None => access.element(flat, place),
                };
                Some(places.map(&mut read).collect())
            }
            prim::SCATTER_ADD | prim::DYNAMIC_UPDATE_SLICE => {
                let axis = Along::of(attrs).axis;
                let Extents { outer, extent, inner } = extents(axis);
                let (index, part) = if *def == prim::SCATTER_ADD { (1, 2) } else { (2, 1) };
                let size = operands[part].len() / (outer * inner);
                debug_assert_eq!(operands[part].len(), n_elements(g.ty(data.operands[part])), "the part is apart");
                let range = IndexRange { axis, extent, size };
                let first = access.first(operands[index][0], (&types, index), range, inner);
                let mut flat = access.flat(operands[0][0]);
                let places = (0..outer).flat_map(|o| (0..size * inner).map(move |i| o * extent * inner + i));
                for (i, &element) in places.zip(&operands[part]) {
                    let at = access.after(first, i);
                    let element = access.reshape(element, &[1].into());
                    flat = if *def == prim::SCATTER_ADD {
                        let at = access.reshape(at, &[1].into());
                        access.prim(prim::SCATTER_ADD, &[flat, at, element], Along { axis: 0 })
                    } else {
                        access.prim(prim::DYNAMIC_UPDATE_SLICE, &[flat, element, at], Along { axis: 0 })
                    };
                }
                Some(vec![access.reshape(flat, &types[0].shape)])
            }
            _ => None,
        }
    }
}
