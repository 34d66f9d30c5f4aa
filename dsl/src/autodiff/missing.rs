//! The error for an operation without a gradient rule. The error describes the path from the loss
//! to `wrt`.

use super::*;

impl<'g> Sweep<'g> {
    pub(super) fn missing(&self, def: crate::ops::Prim, why: &str, node: Node, data: &NodeData) -> ! {
        let came_from = self.came_from.borrow();
        let mut to_loss = Vec::new();
        let mut at = node;
        self.graph(|g| {
            while let Some(&next) = g.node(at).results.iter().find_map(|r| came_from.get(r)) {
                if next == at || to_loss.len() > 20 {
                    break;
                }
                at = next;
                to_loss.push(g.node(at).op.name());
            }
        });
        let mut to_wrt = Vec::new();
        self.graph(|g| {
            let mut at = data.operands.iter().copied().find(|&v| self.is_active(v));
            while let Some(v) = at {
                let done = self.wrt.contains(&v) || to_wrt.len() > 20;
                if let Some(name) = g.value(v).name
                    && (done || g.producer(v).is_none())
                {
                    to_wrt.push(format!("`{name}`"));
                }
                at = if done { None } else { self.comes_from(g, v, &mut to_wrt) };
            }
        });
        let mut path = vec!["loss".to_owned()];
        path.extend(to_loss.iter().rev().map(|s| (*s).to_owned()));
        path.push(def.name.to_owned());
        path.extend(to_wrt);
        abort(
            Diagnostic::new(format!("gradients: `{}` has no gradient: {why}", def.name))
                .at(data.loc, "the gradient is needed here")
                .help(format!("the path is {}; use `stop_gradient()` to cut it", path.join(" <- "))),
        )
    }

    /// Takes one step on the path from a value towards `wrt`. Appends the operation to `way`.
    fn comes_from(&self, graph: &crate::Graph, v: Value, way: &mut Vec<String>) -> Option<Value> {
        match graph.value(v).def {
            ValueDef::Result(node, _) => {
                way.push(graph.node(node).op.name().to_owned());
                graph.node(node).operands.iter().copied().find(|&v| self.is_active(v))
            }
            ValueDef::Param(..) => graph.source_of(v).first().filter(|&v| self.is_active(v)),
        }
    }
}
