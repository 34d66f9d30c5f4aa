//! The part of a graph that gives some of its values out of others.

use super::dce::{Live, sweep};
use crate::ir::{Node, Op, Replacements, Value, VarId, verify};
use crate::ops::Effects;
use crate::{Diagnostic, Graph, Result};

/// What a pruned graph does with the variables that the whole one assigns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Assignments {
    /// It assigns none of them.
    Drop,
    /// It assigns all of them.
    Keep,
}

/// A part of a graph.
#[derive(Clone, Debug)]
pub struct PrunedGraph {
    /// The part: its inputs are what is fed, its outputs what is fetched, in their orders.
    pub graph: Graph,
    /// Its variables, by their ids in the whole graph.
    pub vars: Vec<VarId>,
    /// For each feed whether something that is fetched or assigned depends on it.
    pub needed: Vec<bool>,
}

/// The part of a graph that computes the values `fetches` when those of `feeds` are given; both are values of its root, and no feed is named twice.
/// What is fed is replaced wherever it is used, in gradients too.
///
/// Before: verified. After: verified, and every node of the root is there for a fetch, for an assignment if these are kept, or for a print or an
/// assertion that stays. Of these
/// - one inside of a branch, loop or call that is kept stays: it may be what ends the loop;
/// - one of the root stays exactly if all that it looks at is fed or kept anyway. What the graph computes for prints and assertions alone
///   belongs to them; one that looks at no value but constants is not kept.
///
/// So a value that is fetched is still guarded by what the program asserts of it, and nothing is computed, read or to be fed for a print or an
/// assertion alone that the program has other uses for.
///
/// # Errors
/// An input of the graph that is needed and not fed, with a place where it is used.
///
/// ```
/// use anabranch_dsl::Graph;
/// use anabranch_dsl::passes::{Assignments, prune};
///
/// let text = "graph @f(%x: f32[], %y: f32[]) -> f32[] { %h = exp %x  %z = mul %h, %y  %s = sin %z  return %s }";
/// let graph = Graph::parse(text, "f.ir").expect("the text is right");
/// let value = |i: usize| graph.node(graph.region(graph.root()).nodes[i]).results[0];
/// let (h, z, y) = (value(0), value(1), graph.inputs()[1]);
/// let part = prune(&graph, &[h, y], &[z], Assignments::Drop)?;
/// let expected = "graph @f(%h: f32[], %y: f32[]) -> f32[] { %z = mul %h, %y  return %z }";
/// assert!(part.graph.same_structure(&Graph::parse(expected, "part.ir").expect("the text is right")));
///
/// let error = prune(&graph, &[h], &[z], Assignments::Drop).unwrap_err();
/// assert_eq!(error.message, "`f`: the parameter `y` is needed for what is fetched, and not fed");
/// # Ok::<(), anabranch_dsl::Diagnostic>(())
/// ```
pub fn prune(graph: &Graph, feeds: &[Value], fetches: &[Value], assignments: Assignments) -> Result<PrunedGraph> {
    let mut g = graph.clone();
    let root = g.root();
    let inputs = graph.inputs().to_vec();
    let mut replaced = Replacements::new(&g);
    let mut params = Vec::new();
    for &value in feeds {
        assert_eq!(g.region_of(value), root, "{value} is fed inside of a construct");
        if inputs.contains(&value) {
            params.push(value);
            continue;
        }
        let param = g.add_param(root, g.ty(value).clone(), g.value(value).name);
        replaced.replace(value, param);
        params.push(param);
    }
    for node in g.region(root).nodes.clone() {
        replaced.apply(&mut g.node_mut(node).operands);
    }
    let mut outputs = fetches.to_vec();
    replaced.apply(&mut outputs);
    g.region_mut(root).yields = outputs;

    let kept = Kept::new(graph, &g, &params, assignments);
    let needed = kept.needed;
    let Live { values, nodes, .. } = kept.live;
    check_inputs(&g, &inputs, &params, &values, &nodes)?;
    g.set_params(root, params);
    sweep(&mut g, root, &values, &nodes, &mut false);
    let vars = drop_variables(&mut g);
    let g = g.compact();
    if cfg!(debug_assertions)
        && let Err(errors) = verify(&g)
    {
        let wrong: Vec<String> = errors.into_iter().map(|e| e.message).collect();
        panic!("prune: the graph is broken\n{}\n; ---- before\n{graph}; ---- after\n{g}", wrong.join("\n"));
    }
    Ok(PrunedGraph { graph: g, vars, needed })
}

/// What stays.
struct Kept<'g> {
    live: Live<'g>,
    /// Nodes with effects in regions, each with the node of the root that it is in.
    inner: Vec<(Node, Node)>,
    /// For each feed whether something depends on it but prints and assertions that look at it.
    needed: Vec<bool>,
}

impl<'g> Kept<'g> {
    /// `whole` is the graph before anything was fed; the parameters in `params` are fed.
    fn new(whole: &Graph, g: &'g Graph, params: &[Value], assignments: Assignments) -> Kept<'g> {
        let mut inner = Vec::new();
        for &node in &g.region(g.root()).nodes {
            for &region in &g.node(node).regions {
                g.visit_nodes(region, &mut |n| {
                    if has_effect(g, n) {
                        inner.push((node, n));
                    }
                });
            }
        }
        let mut kept = Kept { live: Live::new(g), inner, needed: Vec::new() };
        let root = &g.region(g.root()).nodes;
        kept.live.values_needed(g.outputs());
        for &node in root {
            if assignments == Assignments::Keep && matches!(g.node(node).op, Op::Assign(_)) {
                kept.live.effect(node);
            }
        }
        kept.settle();
        kept.needed = params.iter().map(|p| kept.live.values[p.index()]).collect();

        // What the whole graph computes for its results and variables, and not for prints and assertions alone.
        let mut of_results = Live::new(whole);
        of_results.values_needed(whole.outputs());
        for &node in &whole.region(whole.root()).nodes {
            if matches!(whole.node(node).op, Op::Assign(_)) {
                of_results.effect(node);
            }
        }
        of_results.settle();
        for &node in root {
            if has_effect(g, node) && !matches!(g.node(node).op, Op::Assign(_)) {
                kept.keep_if_there(node, &of_results, params);
            }
        }
        kept
    }

    /// Marks what is needed, and what nodes with effects in kept regions need.
    fn settle(&mut self) {
        loop {
            self.live.settle();
            let mut changed = false;
            for &(owner, node) in &self.inner {
                if self.live.nodes[owner.index()] && !self.live.nodes[node.index()] {
                    self.live.effect(node);
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// Keeps a print or an assertion of the root if all that it looks at is fed or kept anyway.
    fn keep_if_there(&mut self, node: Node, of_results: &Live<'_>, params: &[Value]) {
        let g = self.live.graph;
        let before = self.live.clone();
        self.live.effect(node);
        self.settle();
        let g_root = g.region(g.root());
        let is_live = |live: &[bool], i: usize| live.get(i).is_some_and(|&live| live);
        let is_constant = |v: Value| g.producer(v).is_some_and(|n| matches!(g.node(n).op, Op::Constant(_)));
        let is_new = |v: Value| self.live.values[v.index()] && !before.values[v.index()];
        let new: Vec<Node> =
            g_root.nodes.iter().copied().filter(|n| self.live.nodes[n.index()] && !before.nodes[n.index()]).collect();

        let is_there = |v: Value| params.contains(&v) || before.values[v.index()];
        let looks_at = |v: Value| {
            let in_kept_node = || g.producer(v).is_some_and(|n| before.nodes[n.index()]);
            !is_constant(v) && (is_there(v) || in_kept_node())
        };
        let operands = new.iter().flat_map(|&n| &g.node(n).operands);
        let looks_at_values = operands.filter(|v| self.live.values[v.index()]).any(|&v| looks_at(v));

        let for_checks_alone = |v: Value| {
            let is_read = |n: Node| matches!(g.node(n).op, Op::Read(_));
            g.producer(v).is_some_and(|n| !is_read(n)) && !is_live(&of_results.values, v.index())
        };
        let results = g_root.nodes.iter().flat_map(|&n| &g.node(n).results);
        let mut new_values = g_root.params.iter().chain(results).copied().filter(|&v| is_new(v));
        let there = new_values.all(|v| is_constant(v) || params.contains(&v) || for_checks_alone(v));
        let is_extra = |n: Node| is_live(&of_results.nodes, n.index()) && !matches!(g.node(n).op, Op::Constant(_));
        let runs_more = new.iter().any(|&n| is_extra(n));
        if !there || !looks_at_values || runs_more {
            self.live = before;
        }
    }
}

/// Whether a node does more than to compute its results.
fn has_effect(g: &Graph, node: Node) -> bool {
    g.node(node).op.effects() >= Effects::WritesState
}

/// Every input that is needed is fed.
fn check_inputs(g: &Graph, inputs: &[Value], params: &[Value], values: &[bool], nodes: &[bool]) -> Result<()> {
    let missing = |(_, v): &(usize, &Value)| values[v.index()] && !params.contains(v);
    let Some((i, v)) = inputs.iter().enumerate().find(missing) else { return Ok(()) };
    let name = g.value(*v).name.map_or_else(|| format!("`input {i}`"), |name| format!("the parameter `{name}`"));
    let message = format!("`{}`: {name} is needed for what is fetched, and not fed", g.name);
    let uses = |n: &&Node| nodes[n.index()] && g.node(**n).operands.contains(v);
    let user = g.region(g.root()).nodes.iter().find(uses).map(|&n| g.node(n));
    let error = match user {
        Some(node) => Diagnostic::new(message).at(node.loc, format!("used here by `{}`", node.op.name())),
        None => Diagnostic::new(message),
    };
    Err(error.help("feed it, or a value between it and what is fetched"))
}

/// Drops the variables that are neither read nor assigned; gives the others by their former ids.
fn drop_variables(g: &mut Graph) -> Vec<VarId> {
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
            *var = VarId::from_index(kept.iter().position(|k| k == var).expect("it is used"));
        }
    }
    g.vars = kept.iter().map(|v| g.vars[v.index()].clone()).collect();
    kept
}
