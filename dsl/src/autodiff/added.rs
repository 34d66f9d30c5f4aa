//! Values that gradients add to the forward graph: saved values, trip counts, and queries.
//!
//! They are added to the graph through its builder alone, so no trace is needed.

use crate::ir::{Attrs, Graph, GraphBuilder, InsertPoint, ListOp, Node, Op, Origin, Region, StackOp, Value};
use crate::ops::attributes::{Along, DynamicSlice, IndexRange};
use crate::ops::prim;
use crate::{Diagnostic, Dim, HostTensor, Loc, Type};
use rustc_hash::FxHashMap;

/// Values that autodiff has added to the control flow of a graph, recorded so that each is added
/// once.
#[derive(Debug, Default)]
pub(crate) struct AddedValues {
    /// The result of a `while` that counts its iterations.
    trips: FxHashMap<Node, Value>,
    /// The stack of a saved value, as seen from an enclosing region.
    stacks: FxHashMap<(Value, Region), Value>,
    /// Operations applied to a value where it is defined, by operation name.
    queries: FxHashMap<(Value, &'static str), Value>,
    /// The checked indices of operations that read at indices.
    checked: FxHashMap<Node, Value>,
    /// The loop result that exports a loop-invariant value.
    last: FxHashMap<Value, Value>,
    /// Gradients in the bodies of loops that are still open.
    pub(super) of_one_iteration: Vec<super::earlier::OpenLoopGradient>,
}

impl AddedValues {
    /// Returns the result of an operation without attributes on a value, inserted right after its
    /// definition.
    ///
    /// Later, a list may have been updated in place, and a tensor may have been freed.
    pub(super) fn query(&mut self, graph: &mut GraphBuilder, of: Value, op: Op) -> Value {
        *self.queries.entry((of, op.name())).or_insert_with(|| graph.after(of).emit(op, &[of]))
    }

    /// Returns the indices at which a node reads, its second operand, checked where the node is. An
    /// error names that node.
    ///
    /// If the extent of the axis is unknown, returns the indices themselves.
    pub(super) fn checked_index(&mut self, graph: &mut GraphBuilder, node: Node) -> Value {
        *self.checked.entry(node).or_insert_with(|| {
            let data = graph.node(node);
            let (x, ids) = (data.operands[0], data.operands[1]);
            let extent = |axis: usize| graph.ty(x).element().shape.dims()[axis].known();
            let (extent, axis, size, point) = match &data.op {
                Op::Prim(def, attrs) if *def == prim::DYNAMIC_SLICE => {
                    let DynamicSlice { axis, size } = DynamicSlice::of(attrs);
                    (extent(axis), axis, size, InsertPoint::Before(node))
                }
                Op::Prim(_, attrs) => {
                    let axis = Along::of(attrs).axis;
                    (extent(axis), axis, 1, InsertPoint::Before(node))
                }
                // A list has an error of its own, if it is still read.
                Op::List(ListOp::Read) => {
                    (slices(graph, x).and_then(|(_, n)| n.known()), 0, 1, InsertPoint::After(node))
                }
                _ => panic!("`{}` does not read at indices", data.op.name()),
            };
            let Some(extent) = extent else { return ids };
            let origin = Origin { written: Some(data.name_in_errors()), ..data.origin() };
            graph.at(point, origin).prim(prim::CHECK_INDEX, &[ids], IndexRange { axis, extent, size })
        })
    }

    /// Returns the trip count of a `while`, as a value of the region that contains it. The first
    /// call adds a counter.
    pub(super) fn count_trips(&mut self, graph: &mut GraphBuilder, node: Node) -> Value {
        *self.trips.entry(node).or_insert_with(|| {
            let (origin, body) = (graph.node(node).origin(), graph.while_of(node).body());
            let zero = graph.before(node).constant(HostTensor::scalar(0i32));
            let (param, result) = graph.add_loop_var(node, zero);
            let one = graph.at(InsertPoint::End(body), origin).constant(HostTensor::scalar(1i32));
            let sum = graph.prim(prim::ADD, &[param, one], Attrs::none());
            graph.region_mut(body).yields.push(sum);
            result
        })
    }

    /// Exports a loop-invariant value through a path of constructs, innermost first. Returns the
    /// result of the outermost construct, and the number of constructs in between.
    ///
    /// The value is threaded through the path from outside, so it persists through iterations that
    /// do not reach its definition. Nothing reads the result after zero iterations.
    pub(super) fn export_invariant(
        &mut self,
        graph: &mut GraphBuilder,
        v: Value,
        mut path: Vec<(Node, Region)>,
    ) -> (Value, usize) {
        if let Some(&last) = self.last.get(&v) {
            // The path may be shorter than that of the first call: the value depends on the results
            // of a loop through which a stack has been threaded since.
            let around = |&region: &Region| graph.region(region).owner.map(|owner| graph.node(owner).region);
            let mut regions = std::iter::successors(Some(graph.region_of(v)), around);
            let n = regions.position(|region| region == graph.region_of(last));
            return (last, n.expect("the result is of a construct around the value"));
        }
        let n = path.len();
        path.reverse();
        let ty = graph.ty(v).element().clone();
        // Unknown extents are 0 at first, and may become any others: the type keeps them unknown.
        let known = |d: &Dim| if *d == Dim::Unknown { Dim::Known(0) } else { d.clone() };
        let (zero, shape) = (HostTensor::zeros(ty.dtype, []), ty.shape.dims().iter().map(known).collect());
        let origin = graph.origin(v);
        let zeros = graph.at(InsertPoint::Before(path[0].0), origin).fill(zero, &shape);
        graph.value_mut(zeros).ty = ty.into();
        let last = thread_through(graph, &path, zeros, |_, _| v);
        self.last.insert(v, last);
        (last, n)
    }

    /// Returns the stack to which the executions of an inner region push `v`, as a value of the
    /// innermost region around it that is still open.
    ///
    /// The first call adds the stack to every construct in between.
    pub(super) fn save(&mut self, graph: &mut GraphBuilder, v: Value) -> Result<Value, Diagnostic> {
        // The constructs in between, innermost first, each with its region that leads to `v`.
        let mut path: Vec<(Node, Region)> = Vec::new();
        let mut region = graph.region_of(v);
        while let Some(owner) = graph.region(region).owner {
            path.push((owner, region));
            region = graph.node(owner).region;
        }
        let base = region;
        // An owner is set when its construct closes, so the search ends at an open region.
        if let Some(&stack) = self.stacks.get(&(v, base)) {
            return Ok(stack);
        }
        path.reverse();
        let element = match graph.ty(v).clone() {
            Type::Tensor(element) => element,
            Type::List(_) => unreachable!("lists are saved as tensors"),
            Type::Stack(_) => return Err(stacks_are_not_saved(graph.loc(v))),
        };
        let origin = graph.origin(v);
        let new = Op::Stack(StackOp::New(element));
        let new = graph.at(InsertPoint::Before(path[0].0), origin).emit(new, &[]);
        let (_, innermost) = path[path.len() - 1];
        let stack = thread_through(graph, &path, new, |graph, stack| {
            graph.at(InsertPoint::End(innermost), origin).emit(Op::Stack(StackOp::Push), &[stack, v])
        });
        self.stacks.insert((v, base), stack);
        Ok(stack)
    }
}

/// Threads a value through constructs, outermost first, each with its region that leads inwards.
///
/// `innermost` computes the yield of the last region from its parameter. Returns the result of the
/// first construct.
fn thread_through(
    graph: &mut GraphBuilder,
    path: &[(Node, Region)],
    init: Value,
    innermost: impl FnOnce(&mut GraphBuilder, Value) -> Value,
) -> Value {
    let mut value = init;
    let mut results = Vec::new();
    for &(node, region) in path {
        let (param, result) = if graph.as_while(node).is_some() {
            graph.add_loop_var(node, value)
        } else if graph.as_cond(node).is_some() {
            graph.add_cond_result(node, value, region)
        } else {
            panic!("{} is swept as a copy: nothing in it is saved", graph.node(node).op.name())
        };
        results.push(result);
        value = param;
    }
    let inner = innermost(graph, value);
    let yields = results[1..].iter().copied().chain([inner]);
    for (&(_, region), value) in path.iter().zip(yields) {
        graph.region_mut(region).yields.push(value);
    }
    results[0]
}

/// Returns the error for zeros of a stack that another loop saved, if their extents are known only
/// at run time.
pub(super) fn stacks_are_not_saved(loc: Loc) -> Diagnostic {
    Diagnostic::new(
        "gradients: to differentiate a gradient taken in a loop, the values saved by an inner loop need known \
         extents",
    )
    .at(loc, "this saved value has unknown extents")
    .help("give it known extents, or take the gradient outside the loop")
}

/// Returns the value that a parameter captures, where it is made, or the value itself.
pub(super) fn captured(g: &Graph, v: Value) -> Value {
    std::iter::successors(Some(v), |&v| g.captured_by(v)).last().expect("the first is there")
}

/// Returns the list of the slices of a tensor that a list is, seen from where it is made, and their
/// number.
pub(super) fn slices(g: &Graph, list: Value) -> Option<(Value, Dim)> {
    let list = captured(g, list);
    let data = g.node(g.producer(list)?);
    let is_unstacked = data.op == Op::List(ListOp::Unstack);
    is_unstacked.then(|| (list, g.ty(data.operands[0]).element().shape.dims()[0].clone()))
}

/// Returns the error for a list that a checkpoint in a loop reads, and that cannot be saved as one
/// tensor.
pub(super) fn list_is_not_saved(graph: &Graph, list: Value) -> Diagnostic {
    let name = graph.value(list).name.map_or_else(|| "a list".to_owned(), |name| format!("the list `{name}`"));
    let region = graph.region(graph.region_of(list));
    let loc = region.owner.map_or(graph.loc(list), |owner| graph.node(owner).loc);
    Diagnostic::new(format!(
        "gradients: a checkpoint saves the elements of {name}, which is modified in a loop, but their extents are \
         unknown"
    ))
    .at(loc, "in this loop")
    .help("use list elements with known extents, or remove `checkpoint_loop` and `checkpoint`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::builder::builds;

    const LOOP: &str = "graph @f(%x: f32[], %n: f32[], %p: bool[]) -> f32[] {
        %y = while (%s = %x | %n = %n, %p = %p) cond {
            %more = lt %s, %n
            yield %more
        } body {
            %t = cond %p, %s then (%s) {
                %a = exp %s
                yield %a
            } else (%s) {
                yield %s
            }
            yield %t
        }
        return %y
    }";

    /// Edits the loop twice in the same way, and asserts that this adds the same value and makes it
    /// the other graph.
    #[track_caller]
    fn adds_once(add: impl Fn(&mut AddedValues, &mut GraphBuilder) -> Value, after: &str) {
        let mut values = AddedValues::default();
        let twice = |b: &mut GraphBuilder| {
            let first = add(&mut values, b);
            assert_eq!(add(&mut values, b), first);
        };
        builds(LOOP, twice, after);
    }

    /// Returns the value that one branch in the body computes.
    fn exp(graph: &Graph) -> Value {
        let mut found = None;
        graph.visit_nodes(graph.root(), &mut |node| {
            if graph.node(node).op.is(prim::EXP) {
                found = Some(graph.node(node).results[0]);
            }
        });
        found.expect("there is an `exp`")
    }

    #[test]
    fn a_value_in_a_branch_of_a_loop_is_pushed_once() {
        adds_once(
            |values, b| values.save(b, exp(b)).unwrap(),
            "graph @f(%x: f32[], %n: f32[], %p: bool[]) -> f32[] {
                %none = stack_new : stack<f32[]>
                %y, %saved = while (%s = %x, %saved = %none | %n = %n, %p = %p) cond {
                    %more = lt %s, %n
                    yield %more
                } body {
                    %t, %next = cond %p, %s, %saved then (%s, %saved) {
                        %a = exp %s
                        %next = push %saved, %a
                        yield %a, %next
                    } else (%s, %saved) {
                        yield %s, %saved
                    }
                    yield %t, %next
                }
                return %y
            }",
        );
    }

    #[test]
    fn a_loop_gets_one_counter() {
        adds_once(
            |values, b| {
                values.count_trips(
                    b,
                    b.region(b.root()).nodes.iter().copied().find(|&n| b.as_while(n).is_some()).unwrap(),
                )
            },
            "graph @f(%x: f32[], %n: f32[], %p: bool[]) -> f32[] {
                %zero = constant 0 : i32[]
                %y, %trips = while (%s = %x, %i = %zero | %n = %n, %p = %p) cond {
                    %more = lt %s, %n
                    yield %more
                } body {
                    %t = cond %p, %s then (%s) {
                        %a = exp %s
                        yield %a
                    } else (%s) {
                        yield %s
                    }
                    %one = constant 1 : i32[]
                    %j = add %i, %one
                    yield %t, %j
                }
                return %y
            }",
        );
    }

    #[test]
    fn a_query_follows_the_definition() {
        adds_once(
            |values, b| values.query(b, exp(b), Op::Prim(prim::EXTENTS, Attrs::none())),
            &LOOP.replace("%a = exp %s", "%a = exp %s  %e = extents %a"),
        );
    }

    #[test]
    fn a_second_gradient_reads_what_the_first_exported_through_a_loop_that_saves() {
        // The first gradient saves `%u` in the first inner loop. So `%q`, which it exports from
        // both loops around it, is no longer computed from invariant values alone.
        let text = "graph @f(%x: f64[200], %n: i32[], %acc: f64[]) -> f64[] {
            %zero = constant 0 : i32[]
            %y, %i = while (%s = %acc, %i = %zero | %x = %x, %n = %n) cond {
                %more = lt %i, %n
                yield %more
            } body {
                %zero = constant 0 : i32[]
                %three = constant 3 : i32[]
                %one = constant 1 : i32[]
                %u, %j = while (%u = %x, %j = %zero | %one = %one, %three = %three) cond {
                    %more = lt %j, %three
                    yield %more
                } body {
                    %v = sin %u
                    %k = add %j, %one
                    yield %v, %k
                }
                %t, %k = while (%t = %s, %k = %zero | %u = %u, %one = %one, %three = %three) cond {
                    %more = lt %k, %three
                    yield %more
                } body {
                    %p = mul %u, %u
                    %q = sum %p {axes=[0], keepdim=false}
                    %r = mul %t, %q
                    %l = add %k, %one
                    yield %r, %l
                }
                %next = add %i, %one
                yield %t, %next
            }
            return %y
        }";
        let mut graph = Graph::parse(text, "f.ir").unwrap_or_else(|errors| panic!("{}", errors[0]));
        let (root, y, x) = (graph.root(), graph.outputs()[0], graph.inputs()[0]);
        let gradients = GraphBuilder::edit(&mut graph, |b| {
            let dy = b.at(InsertPoint::End(root), Origin::UNKNOWN).constant(HostTensor::scalar(1f64));
            let mut added = AddedValues::default();
            [(); 2].map(|()| {
                super::super::differentiate_in(b, &mut added, &[(y, dy)], &[x], Origin::UNKNOWN)
                    .unwrap_or_else(|error| panic!("{error}"))[0]
            })
        });
        graph.region_mut(root).yields = vec![y, gradients[0], gradients[1]];
        crate::ir::verify(&graph).unwrap_or_else(|errors| panic!("{}\n{graph}", errors[0]));
        let at = |first: f64| {
            let x = (0..200).map(|i| if i == 0 { first } else { f64::from(i) * 1e-4 }).collect();
            let inputs = [HostTensor::new([200], x), HostTensor::scalar(2i32), HostTensor::scalar(0.7f64)];
            crate::interp::run(&graph, &inputs, &mut Vec::new(), crate::interp::InterpOptions::default())
                .unwrap_or_else(|error| panic!("{error}"))
        };
        let results = at(0.8);
        assert_eq!(results[1], results[2]);
        let y = |x: f64| at(x)[0].data::<f64>()[0];
        let slope = (y(0.8 + 1e-5) - y(0.8 - 1e-5)) / 2e-5;
        let found = results[1].data::<f64>()[0];
        assert!((found - slope).abs() < 1e-7 * slope.abs(), "{found} instead of {slope}");
    }
}
