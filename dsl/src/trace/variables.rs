//! Variables, threaded as values through the regions of a trace, and queues.

use super::*;

/// Records the path of a variable in the model whose gradients are taken, until the trace ends. A
/// model that is one variable has no path for it.
#[track_caller]
pub(crate) fn note_var_path(var: &AnyVar, path: String) {
    if !path.is_empty() {
        with(|t| t.var_paths.insert(var.id(), path));
    }
}

/// Returns the path of a variable in the model whose gradients were taken last in this trace.
#[track_caller]
pub(crate) fn var_path(var: &AnyVar) -> Option<String> {
    with(|t| t.var_paths.get(&var.id()).cloned())
}

/// Returns the name, or the first numbered one that is not taken.
fn free_name(name: &str, taken: impl Fn(&str) -> bool) -> String {
    if !taken(name) {
        return name.to_owned();
    }
    (2..).map(|i| format!("{name}_{i}")).find(|n| !taken(n)).expect("some number is free")
}

impl Tracer {
    pub(super) fn var_id(&mut self, var: &AnyVar, loc: Loc) -> VarId {
        if let Some(&id) = self.var_ids.get(&var.id()) {
            return id;
        }
        let id = VarId::from_index(self.vars.len());
        let name = free_name(var.name(), |name| self.graph.vars.iter().any(|v| v.name == name));
        self.graph.vars.push(VarDecl { name, ty: var.ty().clone(), on: var.devices() });
        self.vars.push(var.clone());
        self.var_ids.insert(var.id(), id);
        let depth = std::mem::replace(&mut self.depth, 0);
        // The read is on the device of the variable, whatever the scope.
        let scope = DeviceScope::enter(None);
        let read = self.here(loc).emit(Op::Read(id), &[]);
        drop(scope);
        self.depth = depth;
        self.var_state.push(VarState { read, current: read, is_committed: false });
        self.var_versions.push(vec![read]);
        id
    }

    /// Returns the id of a queue.
    pub(super) fn queue_id(&mut self, queue: &AnyQueue) -> QueueId {
        if let Some(i) = self.queues.iter().position(|known| known.id() == queue.id()) {
            return QueueId::from_index(i);
        }
        let taken = |name: &str| self.graph.queues.iter().any(|q| q.name == name);
        let name = free_name(queue.name(), taken);
        self.graph.queues.push(QueueDecl { name, element: queue.element().to_vec() });
        self.queues.push(queue.clone());
        QueueId::from_index(self.queues.len() - 1)
    }

    /// Returns the id of a variable, if this trace has used it.
    pub(crate) fn known_var(&self, var: &AnyVar) -> Option<VarId> {
        self.var_ids.get(&var.id()).copied()
    }

    pub(super) fn read_var(&mut self, var: &AnyVar, loc: Loc) -> Value {
        let id = self.var_id(var, loc);
        self.var_at(id, self.depth)
    }

    /// Returns the current value of a variable, as seen from the region at `depth`.
    pub(super) fn var_at(&mut self, id: VarId, depth: usize) -> Value {
        if depth == 0 {
            return self.var_state[id.index()].current;
        }
        let c = &self.open[depth - 1];
        if let Some(&v) = c.var_values[self.graph.opened(depth - 1).current].get(&id) {
            return v;
        }
        let OpenKind::While(open) = &c.kind else {
            let outer = self.var_at(id, depth - 1);
            return self.resolve_at(outer, depth, Loc::UNKNOWN).expect("values of enclosing regions are visible");
        };
        let index = match open.var_params.get(&id) {
            Some(&i) => i,
            None => {
                let outer = self.var_at(id, depth - 1);
                let i = self.graph.add_open_var(depth - 1, outer, None);
                let open = self.open[depth - 1].as_while();
                open.extra.push(i);
                open.var_params.insert(id, i);
                for region in self.graph.opened(depth - 1).regions {
                    let version = self.graph.region(region).params[i];
                    self.var_versions[id.index()].push(version);
                }
                i
            }
        };
        self.graph.region(self.graph.region_at(depth)).params[index]
    }

    pub(super) fn assign_var(&mut self, var: &AnyVar, value: AnyValue, loc: Loc) -> Result<()> {
        let v = self.resolve(value, loc)?;
        if *self.graph.ty(v) != Type::Tensor(var.ty().clone()) {
            return Err(Diagnostic::new(format!("the variable `{}` is {}", var.name(), var.ty()))
                .at(loc, format!("assigned {}", self.graph.ty(v)))
                .help("a variable keeps its element type and shape"));
        }
        let id = self.var_id(var, loc);
        // Reading first makes the variable a parameter of every enclosing loop.
        self.var_at(id, self.depth);
        self.set_var(id, self.depth, v);
        Ok(())
    }

    pub(super) fn set_var(&mut self, id: VarId, depth: usize, value: Value) {
        self.var_versions[id.index()].push(value);
        match depth.checked_sub(1) {
            None => self.var_state[id.index()].current = value,
            Some(i) => {
                let current = self.graph.opened(i).current;
                self.open[i].var_values[current].insert(id, value);
            }
        }
    }

    /// Returns the values of a variable that are visible now, latest first.
    pub(crate) fn visible_versions(&self, id: VarId) -> Vec<Value> {
        let visible: Vec<Region> = (0..=self.depth).map(|d| self.graph.region_at(d)).collect();
        let versions = self.var_versions[id.index()].iter().rev();
        versions.copied().filter(|&v| visible.contains(&self.graph.region_of(v))).collect()
    }
}
