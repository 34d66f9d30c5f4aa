//! Variables that sessions share at a peer, as this session finds them.

use crate::device::variables::{VarAccess, VarCell, VarSet};
use crate::session::Session;
use anabranch_dsl::device::DevicePattern;
use anabranch_dsl::{AnyVar, Diagnostic, Result};
use std::sync::Arc;

impl Session {
    /// Returns the cell of a variable. A shared variable is at its peer.
    pub(super) fn cell(&self, var: &AnyVar) -> Result<Arc<VarCell>> {
        let cell = self.state.cell(var);
        if let Some(name) = var.shared_name()
            && !cell.is_settled()
        {
            self.settle_shared(&cell, var, name)?;
        }
        Ok(cell)
    }

    /// Returns the cells of variables as a set. Shared variables are at their peers.
    pub(super) fn var_set<'a>(&self, vars: impl IntoIterator<Item = (&'a AnyVar, VarAccess)>) -> Result<VarSet> {
        let vars: Vec<(&AnyVar, VarAccess)> = vars.into_iter().collect();
        for (var, _) in vars.iter().filter(|(var, _)| var.shared_name().is_some()) {
            self.cell(var)?;
        }
        Ok(self.state.set(vars))
    }

    /// Makes the device of a shared variable its home.
    fn settle_shared(&self, cell: &VarCell, var: &AnyVar, name: &str) -> Result<()> {
        let pattern = var.devices().map_or(DevicePattern::ANY, |on| on.devices());
        let topology = &self.devices.topology;
        let all: Vec<_> = topology.ids().filter(|&id| pattern.matches(&topology.device(id).name)).collect();
        #[cfg(feature = "peers")]
        if let ([id], Some(remote)) = (&all[..], &self.devices.remote)
            && !self.devices.processes.is_here(*id)
        {
            let (device, process) = (&self.devices.all[id.index()], self.devices.processes.of(*id));
            let (home, value) = remote.shared(device, process, name, var);
            cell.settle_at(home, value);
            return Ok(());
        }
        #[cfg(not(feature = "peers"))]
        let _ = cell;
        let message = match &all[..] {
            [] => format!("the session has no device {pattern} for the shared variable `{name}`"),
            [id] => format!(
                "the shared variable `{name}` is on {}, which is a device of this process",
                topology.device(*id).name
            ),
            all => format!("the shared variable `{name}` may be on any of {} devices", all.len()),
        };
        Err(Diagnostic::new(message).help(
            "sessions share variables at a peer: create it with `.on(\"/peer:0/cpu:0\").share_as(..)`, with the device of \
             a peer of the session",
        ))
    }
}
