//! Pruning a graph to the computation between given values.

use super::dce::{Live, sweep};
use crate::ir::{GraphBuilder, Node, Op, QueueId, Value, VarId, verify};
use crate::ops::Effects;
use crate::{Diagnostic, Graph, Result};
use rustc_hash::{FxHashMap, FxHashSet};

/// Whether a pruned graph keeps the assignments to variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Assignments {
    /// Drops all assignments.
    Drop,
    /// Keeps all assignments.
    Keep,
}

/// A pruned graph.
#[derive(Clone, Debug)]
pub struct PrunedGraph {
    /// The graph. Its inputs are the feeds and its outputs the fetches, in the given orders.
    pub graph: Graph,
    /// The variables of the graph, as ids in the original graph.
    pub vars: Vec<VarId>,
    /// The queues of the graph, as ids in the original graph.
    pub queues: Vec<QueueId>,
    /// For each feed, whether a fetch or an assignment depends on it.
    pub needed: Vec<bool>,
}

/// Returns the part of a graph that computes `fetches` from `feeds`.
///
/// Both are values of the root region, and no feed occurs twice. A feed replaces the value wherever
/// it is used, including in gradients.
///
/// Before: verified. After: verified, and every node of the root region is needed by a fetch, by an
/// assignment if these are kept, or by a print or an assertion that is kept:
///
/// - A print or an assertion inside a branch, loop or call that is kept stays, since an assertion
///   may be what ends the loop.
/// - One in the root region stays exactly if everything it depends on is fed or kept anyway. Values
///   that the graph computes only for prints and assertions count as part of them. One that depends
///   on constants only is not kept.
///
/// So assertions still guard the fetched values. A print or an assertion never causes a value to be
/// computed, read or fed that the program also uses elsewhere.
///
/// # Errors
/// Fails if an input of the graph is needed but not fed. The error points to a use of it.
///
/// ```
/// use anabranch::Graph;
/// use anabranch::dsl::passes::{Assignments, prune};
///
/// let text = "graph @f(%x: f32[], %y: f32[]) -> f32[] {
///     %h = exp %x  %z = mul %h, %y  %s = sin %z  return %s
/// }";
/// let graph = Graph::parse(text, "f.ir").expect("the text is right");
/// let value = |i: usize| graph.node(graph.region(graph.root()).nodes[i]).results[0];
/// let (h, z, y) = (value(0), value(1), graph.inputs()[1]);
/// let part = prune(&graph, &[h, y], &[z], Assignments::Drop)?;
/// let expected = "graph @f(%h: f32[], %y: f32[]) -> f32[] { %z = mul %h, %y  return %z }";
/// assert!(
///     part.graph.same_structure(&Graph::parse(expected, "part.ir").expect("the text is right"))
/// );
///
/// let error = prune(&graph, &[h], &[z], Assignments::Drop).unwrap_err();
/// assert_eq!(error.message, "`f`: a fetch depends on the parameter `y`, which is not fed");
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub fn prune(graph: &Graph, feeds: &[Value], fetches: &[Value], assignments: Assignments) -> Result<PrunedGraph> {
    let mut g = GraphBuilder::new(graph.clone());
    let root = g.root();
    let inputs = graph.inputs().to_vec();
    let mut params = Vec::new();
    for &value in feeds {
        assert_eq!(g.region_of(value), root, "{value} is fed inside a construct");
        if inputs.contains(&value) {
            params.push(value);
            continue;
        }
        let data = g.value(value).clone();
        let param = g.add_param(root, data.ty, data.name);
        g.replace(value, param);
        params.push(param);
    }
    g.region_mut(root).yields = fetches.to_vec();
    g.update_region(root);
    let mut g = g.into_graph();

    let kept = KeptNodes::new(graph, &g, &params, assignments);
    let needed = kept.needed;
    let Live { values, nodes, .. } = kept.live;
    check_inputs(&g, &inputs, &params, &values, &nodes)?;
    g.set_params(root, params);
    sweep(&mut g, root, &values, &nodes, &mut false);
    let (vars, queues) = (drop_variables(&mut g), drop_queues(&mut g));
    let g = g.compact();
    if cfg!(debug_assertions)
        && let Err(errors) = verify(&g)
    {
        let wrong: Vec<String> = errors.into_iter().map(|e| e.message).collect();
        panic!("prune: the graph is broken\n{}\n; ---- before\n{graph}; ---- after\n{g}", wrong.join("\n"));
    }
    Ok(PrunedGraph { graph: g, vars, queues, needed })
}

/// The nodes and values that are kept.
struct KeptNodes<'g> {
    live: Live<'g>,
    /// The nodes with effects in inner regions, by the node of the root that contains them.
    inner: FxHashMap<Node, Vec<Node>>,
    /// The number of nodes, the first that were marked, with whose inner nodes this is done.
    settled: usize,
    /// Whether a node depends on each feed, prints and assertions of the root excepted.
    needed: Vec<bool>,
}

impl<'g> KeptNodes<'g> {
    /// Determines the nodes and values to keep. `whole` is the graph before feeding; `params` are
    /// the fed parameters.
    fn new(whole: &Graph, g: &'g Graph, params: &[Value], assignments: Assignments) -> KeptNodes<'g> {
        let mut inner: FxHashMap<Node, Vec<Node>> = FxHashMap::default();
        for &node in &g.region(g.root()).nodes {
            for &region in &g.node(node).regions {
                g.visit_nodes(region, &mut |n| {
                    // A part without assignments adds nothing to queues, and saves nothing.
                    let is_dropped = assignments == Assignments::Drop && g.node(n).op.is_of_session();
                    if has_effect(g, n) && !is_dropped {
                        inner.entry(node).or_default().push(n);
                    }
                });
            }
        }
        let mut kept = KeptNodes { live: Live::new(g), inner, settled: 0, needed: Vec::new() };
        let root = &g.region(g.root()).nodes;
        kept.live.values_needed(g.outputs());
        for &node in root {
            if assignments == Assignments::Keep {
                kept.keep_operations(node);
            }
        }
        kept.settle();
        kept.needed = params.iter().map(|p| kept.live.values[p.index()]).collect();

        // The values that the whole graph computes for its results and variables, not only for
        // prints and assertions.
        let mut of_results = Live::new(whole);
        of_results.values_needed(whole.outputs());
        for &node in &whole.region(whole.root()).nodes {
            if matches!(whole.node(node).op, Op::Assign(_)) {
                of_results.effect(node);
            }
        }
        of_results.settle();
        let params = params.iter().copied().collect();
        for &node in root {
            if has_effect(g, node) && !matches!(g.node(node).op, Op::Assign(_) | Op::Queue(..) | Op::File(_)) {
                kept.keep_if_there(node, &of_results, &params);
            }
        }
        kept
    }

    /// Keeps an assignment, and all operations on queues and files in a node.
    fn keep_operations(&mut self, node: Node) {
        let g = self.live.graph;
        if matches!(g.node(node).op, Op::Assign(_) | Op::Queue(..) | Op::File(_)) {
            self.live.effect(node);
        }
        let Some(inner) = self.inner.get(&node) else { return };
        for &n in inner.iter().filter(|&&n| g.node(n).op.is_of_session()) {
            self.live.effect(node);
            self.live.effect(n);
        }
    }

    /// Marks all dependencies, including those of nodes with effects in kept regions.
    fn settle(&mut self) {
        loop {
            self.live.settle();
            let Some(node) = self.live.marked.nodes.get(self.settled) else { return };
            self.settled += 1;
            for &inner in self.inner.get(node).into_iter().flatten() {
                if !self.live.nodes[inner.index()] {
                    self.live.effect(inner);
                }
            }
        }
    }

    /// Keeps a print or an assertion of the root if everything it depends on is fed or kept anyway.
    fn keep_if_there(&mut self, node: Node, of_results: &Live<'_>, params: &FxHashSet<Value>) {
        let g = self.live.graph;
        let (n_values, n_nodes) = (self.live.marked.values.len(), self.live.marked.nodes.len());
        self.live.effect(node);
        self.settle();
        let is_live = |live: &[bool], i: usize| live.get(i).is_some_and(|&live| live);
        let is_constant = |v: Value| g.producer(v).is_some_and(|n| matches!(g.node(n).op, Op::Constant(_)));
        let of_root = |n: &Node| g.node(*n).region == g.root();
        let new: FxHashSet<Node> = self.live.marked.nodes[n_nodes..].iter().copied().filter(of_root).collect();
        let new_values: FxHashSet<Value> = self.live.marked.values[n_values..].iter().copied().collect();

        let was_kept = |n: Node| self.live.nodes[n.index()] && !new.contains(&n);
        let is_there = |v: Value| params.contains(&v) || !new_values.contains(&v);
        let looks_at = |v: Value| !is_constant(v) && (is_there(v) || g.producer(v).is_some_and(was_kept));
        let operands = new.iter().flat_map(|&n| &g.node(n).operands);
        let looks_at_values = operands.filter(|v| self.live.values[v.index()]).any(|&v| looks_at(v));

        let for_checks_alone = |v: Value| {
            let is_read = |n: Node| matches!(g.node(n).op, Op::Read(_));
            g.producer(v).is_some_and(|n| !is_read(n)) && !is_live(&of_results.values, v.index())
        };
        let mut new_of_root = new_values.iter().copied().filter(|&v| g.region_of(v) == g.root());
        let there = new_of_root.all(|v| is_constant(v) || params.contains(&v) || for_checks_alone(v));
        let is_extra = |n: Node| is_live(&of_results.nodes, n.index()) && !matches!(g.node(n).op, Op::Constant(_));
        let runs_more = new.iter().any(|&n| is_extra(n));
        if !there || !looks_at_values || runs_more {
            self.live.unmark(n_values, n_nodes);
            self.settled = n_nodes;
        }
    }
}

/// Returns whether a node does more than compute its results.
fn has_effect(g: &Graph, node: Node) -> bool {
    g.node(node).op.effects() >= Effects::WritesState
}

/// Returns an error if an input is needed but not fed.
fn check_inputs(g: &Graph, inputs: &[Value], params: &[Value], values: &[bool], nodes: &[bool]) -> Result<()> {
    let missing = |(_, v): &(usize, &Value)| values[v.index()] && !params.contains(v);
    let Some((i, v)) = inputs.iter().enumerate().find(missing) else { return Ok(()) };
    let name = g.value(*v).name.map_or_else(|| format!("`input {i}`"), |name| format!("the parameter `{name}`"));
    let message = format!("`{}`: a fetch depends on {name}, which is not fed", g.name);
    let uses = |n: &&Node| nodes[n.index()] && g.node(**n).operands.contains(v);
    let user = g.region(g.root()).nodes.iter().find(uses).map(|&n| g.node(n));
    let error = match user {
        Some(node) => Diagnostic::new(message).at(node.loc, format!("used here by `{}`", node.op.name())),
        None => Diagnostic::new(message),
    };
    Err(error.help("feed it, or a value between it and the fetch"))
}

/// Drops the variables that are neither read nor assigned. Returns the original ids of the
/// remaining variables.
pub(super) fn drop_variables(g: &mut Graph) -> Vec<VarId> {
    let mut used = vec![false; g.vars.len()];
    let nodes = g.region(g.root()).nodes.clone();
    for &node in &nodes {
        if let Op::Read(var) | Op::Assign(var) = g.node(node).op {
            used[var.index()] = true;
        }
    }
    let kept: Vec<VarId> = (0..used.len()).filter(|&i| used[i]).map(VarId::from_index).collect();
    for node in nodes {
        if let Op::Read(var) | Op::Assign(var) = &mut g.node_mut(node).op {
            *var = VarId::from_index(kept.iter().position(|k| k == var).expect("the variable is used"));
        }
    }
    g.vars = kept.iter().map(|v| g.vars[v.index()].clone()).collect();
    kept
}

/// Drops the queues that are not used. Returns the original ids of the remaining queues.
pub(super) fn drop_queues(g: &mut Graph) -> Vec<QueueId> {
    let mut nodes = Vec::new();
    g.visit_nodes(g.root(), &mut |node| {
        if let Op::Queue(queue, _) = g.node(node).op {
            nodes.push((node, queue));
        }
    });
    let is_used = |id: &QueueId| nodes.iter().any(|(_, queue)| queue == id);
    let kept: Vec<QueueId> = (0..g.queues.len()).map(QueueId::from_index).filter(is_used).collect();
    for (node, queue) in nodes {
        let index = kept.iter().position(|&id| id == queue).expect("the queue is used");
        if let Op::Queue(id, _) = &mut g.node_mut(node).op {
            *id = QueueId::from_index(index);
        }
    }
    g.queues = kept.iter().map(|id| g.queues[id.index()].clone()).collect();
    kept
}
