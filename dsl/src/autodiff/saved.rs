//! Forward values in backward regions: read from outside, made again, or saved on a stack that the forward constructs carry.

use super::*;
use crate::ops::Effects;

impl Sweep {
    /// A value of the forward region of `level`, as its backward region sees it.
    pub(super) fn map(&self, level: usize, v: Value) -> Any {
        if level == 0 {
            return trace::with(|t| t.any(v));
        }
        let (known, depth, fwd) = {
            let levels = self.levels.borrow();
            let l = &levels[level];
            (l.map.get(&v).copied(), l.depth, l.fwd)
        };
        if let Some(known) = known {
            return known;
        }
        assert_eq!(graph(|g| g.region_of(v)), fwd, "{v} is not in the region of level {level}");
        let mapped = match self.origin(v) {
            Origin::Outside(outer) => self.map(level - 1, outer),
            Origin::Again(data) => {
                let operands: Vec<Any> = data.operands.iter().map(|&x| self.map(level, x)).collect();
                trace::at_depth(depth, || match &data.op {
                    Op::Constant(t) => trace::constant(t.clone()),
                    Op::Prim(def, attrs) => trace::emit(def, &operands, attrs.clone()),
                    op => unreachable!("{} is not made again", op.name()),
                })
            }
            Origin::Saved => {
                let stack = self.thread(level, v);
                let popped = trace::at_depth(depth, || stack_op(StackOp::Pop, &[stack]));
                let mut levels = self.levels.borrow_mut();
                let thread = levels[level].threads.iter_mut().find(|t| t.saved == v);
                thread.expect("the stack passes through here").current = popped[0];
                popped[1]
            }
        };
        self.levels.borrow_mut()[level].map.insert(v, mapped);
        mapped
    }

    /// How a backward region gets at a value of its forward region.
    pub(super) fn origin(&self, v: Value) -> Origin {
        graph(|g| match g.value(v).def {
            ValueDef::Param(region, i) => {
                let owner = g.region(region).owner.expect("a region inside has an owner");
                match g.node(owner).op {
                    Op::Cond => Origin::Outside(g.node(owner).operands[i as usize + 1]),
                    Op::Call(_) => Origin::Outside(g.node(owner).operands[i as usize]),
                    _ if i as usize >= g.n_carried(owner) => Origin::Outside(g.node(owner).operands[i as usize]),
                    _ => Origin::Saved,
                }
            }
            ValueDef::Result(node, _) if is_view(&g.node(node).op) || is_invariant(g, v, 8) => {
                Origin::Again(Box::new(g.node(node).clone()))
            }
            ValueDef::Result(..) => Origin::Saved,
        })
    }

    /// The stack of a saved value as the backward region of `level` sees it.
    fn thread(&self, level: usize, saved: Value) -> Any {
        if level == 0 {
            return trace::try_with(|t| t.save(saved));
        }
        let known = self.levels.borrow()[level].threads.iter().find(|t| t.saved == saved).map(|t| t.current);
        if let Some(known) = known {
            return known;
        }
        let outer = self.thread(level - 1, saved);
        let mut bwd = self.levels.borrow_mut()[level].bwd.take();
        let current = bwd.as_mut().map_or(outer, |bwd| bwd.add_carried(outer));
        let mut levels = self.levels.borrow_mut();
        levels[level].bwd = bwd;
        levels[level].threads.push(Thread { saved, outer, current });
        current
    }
}

pub(super) enum Origin {
    /// It is a capture of this value.
    Outside(Value),
    /// The same node gives it again.
    Again(Box<NodeData>),
    /// It has to be saved.
    Saved,
}

/// Operations that only look at their operand in another way: made again rather than saved, so that what is saved is small.
fn is_view(op: &Op) -> bool {
    matches!(op, Op::Prim(def, _) if matches!(def.name, "broadcast_to" | "reshape" | "permute"))
}

/// Whether a value of a region is computed from constants and captures alone by a few cheap operations.
fn is_invariant(graph: &crate::Graph, v: Value, fuel: usize) -> bool {
    let Some(node) = graph.producer(v) else {
        let ValueDef::Param(region, i) = graph.value(v).def else { unreachable!("no producer: a parameter") };
        return match graph.region(region).owner {
            Some(owner) => {
                matches!(graph.node(owner).op, Op::Cond | Op::Call(_)) || i as usize >= graph.n_carried(owner)
            }
            None => true,
        };
    };
    let data = graph.node(node);
    match &data.op {
        Op::Constant(_) => true,
        Op::Prim(def, _) => {
            fuel > 0
                && def.effects == Effects::Pure
                && def.name != "matmul"
                && data.operands.iter().all(|&x| is_invariant(graph, x, fuel - 1))
        }
        _ => false,
    }
}

/// The error of a backward region that needs the saved values of a loop in the backward region of another loop.
pub(super) fn stacks_are_not_saved(loc: Loc) -> Diagnostic {
    Diagnostic::new(
        "gradients: a gradient that was taken in a loop, of a loop before it, in one more loop, cannot be differentiated",
    )
    .at(loc, "this loop saves values for the gradient")
    .help("take the gradient beside the loop that it goes through")
}

impl trace::Tracer {
    fn add_op(&mut self, name: &str) -> &'static OpDef {
        crate::ops::by_name(name).unwrap_or_else(|| panic!("there is no operation `{name}`"))
    }

    /// The number of trips of a `while`, as a value of the region it is in. The first call gives the loop a counter.
    pub(super) fn count_trips(&mut self, node: Node) -> Value {
        if let Some(&v) = self.autodiff.trips.get(&node) {
            return v;
        }
        let ty = Type::tensor(DType::I32, ());
        let (region, loc) = (self.graph.node(node).region, self.graph.node(node).loc);
        let constant = |g: &mut crate::Graph, region, x: i32| {
            g.make_node(region, Op::Constant(HostTensor::scalar(x)), vec![], [Type::tensor(DType::I32, ())], loc)
        };
        let zero = constant(&mut self.graph, region, 0);
        self.graph.insert_before(zero, node);
        let zero = self.graph.node(zero).results[0];
        let (param, result) = self.graph.add_loop_variable(node, zero);
        let body = self.graph.node(node).regions[1];
        let one = constant(&mut self.graph, body, 1);
        self.graph.append(one);
        let one = self.graph.node(one).results[0];
        let add = Op::Prim(self.add_op("add"), Attrs::none());
        let sum = self.graph.make_node(body, add, vec![param, one], [ty], loc);
        self.graph.append(sum);
        let sum = self.graph.node(sum).results[0];
        self.graph.region_mut(body).yields.push(sum);
        self.autodiff.trips.insert(node, result);
        result
    }

    /// The stack on which the executions of a region inside push `v`, as a handle in the open region around. The first call gives
    /// every construct between the two a stack.
    fn save(&mut self, v: Value) -> Result<Any, Diagnostic> {
        // The constructs between, innermost first, each with the region that leads to `v`.
        let mut path: Vec<(Node, Region)> = Vec::new();
        let mut region = self.graph.region_of(v);
        while let Some(owner) = self.graph.region(region).owner {
            path.push((owner, region));
            region = self.graph.node(owner).region;
        }
        let base = region;
        // An owner is set when its construct closes, so the climb ends at an open region.
        if let Some(&stack) = self.autodiff.stacks.get(&(v, base)) {
            return Ok(self.any(stack));
        }
        path.reverse();
        let Type::Tensor(element) = self.graph.ty(v).clone() else {
            return Err(stacks_are_not_saved(self.graph.loc(v)));
        };
        let loc = self.graph.loc(v);
        let ty = Type::Stack(element.clone());
        let new = self.graph.make_node(base, Op::Stack(StackOp::New(element)), vec![], [ty.clone()], loc);
        self.graph.insert_before(new, path[0].0);
        let mut stack = self.graph.node(new).results[0];
        let mut results = Vec::new();
        for &(node, region) in &path {
            let (param, result) = match self.graph.node(node).op {
                Op::While => self.graph.add_loop_variable(node, stack),
                Op::Cond => self.graph.add_cond_result(node, stack, region),
                ref op => panic!("{} is swept as a copy: nothing in it is saved", op.name()),
            };
            results.push(result);
            stack = param;
        }
        let (_, innermost) = path[path.len() - 1];
        let push = self.graph.make_node(innermost, Op::Stack(StackOp::Push), vec![stack, v], [ty], loc);
        self.graph.append(push);
        let pushed = self.graph.node(push).results[0];
        let inner = results[1..].iter().copied().chain([pushed]);
        for (&(_, region), value) in path.iter().zip(inner) {
            self.graph.region_mut(region).yields.push(value);
        }
        self.autodiff.stacks.insert((v, base), results[0]);
        Ok(self.any(results[0]))
    }
}

impl crate::Graph {
    /// Gives a `while` one more loop variable: its parameter in the body, and the result. The body has yet to yield it.
    fn add_loop_variable(&mut self, node: Node, init: Value) -> (Value, Value) {
        let n = self.n_carried(node);
        self.node_mut(node).operands.insert(n, init);
        let ty = self.ty(init).clone();
        let mut param = init;
        for region in self.node(node).regions.clone() {
            param = self.insert_param(region, n, ty.clone());
        }
        (param, self.add_result(node, ty))
    }

    /// Gives a `cond` one more result, which is the new capture `init` but for what the branch `region` makes of it: its parameter
    /// there, and the result. The branch has yet to yield it.
    fn add_cond_result(&mut self, node: Node, init: Value, region: Region) -> (Value, Value) {
        self.node_mut(node).operands.push(init);
        let ty = self.ty(init).clone();
        let mut inner = init;
        for arm in self.node(node).regions.clone() {
            let param = self.add_param(arm, ty.clone(), None);
            if arm == region {
                inner = param;
            } else {
                self.region_mut(arm).yields.push(param);
            }
        }
        (inner, self.add_result(node, ty))
    }
}
