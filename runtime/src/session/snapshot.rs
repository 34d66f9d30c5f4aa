//! The values of variables and the contents of queues at one moment, for whoever reads them later,
//! such as a checkpoint.

use crate::device::DeviceBuffer;
use crate::device::variables::{VarAccess, VarCell};
use crate::session::Session;
use crate::session::queues::{self, QueueContent};
use anabranch_dsl::queue::AnyQueue;
use anabranch_dsl::{AnyVar, Diagnostic, HostTensor, Loc, Result};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// The values of variables at one moment between two steps, with shared ownership.
///
/// To take a snapshot copies nothing but variables that sessions share at a peer: values stay on
/// their devices, and one is copied to the host only when [`take`](Snapshot::take) asks for it.
/// Steps run on meanwhile. The first step that assigns a variable whose value is still held writes
/// the new value to new memory instead of updating in place, so each variable costs its memory once
/// more, and the time to get it.
#[must_use]
pub struct Snapshot {
    values: Vec<Option<(Arc<VarCell>, DeviceBuffer)>>,
    queues: Vec<QueueContent>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("len", &self.values.len()).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// Returns the value of the variable with this number, in the order in which they were given,
    /// and gives it up, so that steps update the variable in place again.
    ///
    /// # Errors
    /// Fails if the value was taken before, if there is no variable of this number, or if the value
    /// cannot be read, for example because it was lost with a peer.
    #[track_caller]
    pub fn take(&mut self, number: usize) -> Result<HostTensor> {
        let n = self.values.len();
        match self.values.get_mut(number).and_then(Option::take) {
            Some((cell, value)) => cell.fetch(value),
            None => Err(Diagnostic::new(format!("the snapshot of {n} variables has no value {number}"))
                .at(Loc::caller(), "taken here")
                .help("variables are counted from 0, and each value can be taken once")),
        }
    }

    /// Returns the contents of the queues, in the order in which they were given, and gives them
    /// up.
    #[doc(hidden)]
    pub fn take_queues(&mut self) -> Vec<QueueContent> {
        std::mem::take(&mut self.queues)
    }
}

impl Session {
    /// Takes a snapshot of variables: their values at one moment between two steps. It waits for a
    /// step at most while that step writes its new values.
    ///
    /// Variables that sessions share at a peer are read from it at once, one after the other, and
    /// copied to the host. So their values are not those of one moment if other sessions assign
    /// them meanwhile.
    ///
    /// # Errors
    /// Fails if a variable cannot be read, because it was lost with a peer, for example.
    ///
    /// ```
    /// use anabranch::prelude::*;
    ///
    /// let (session, n) = (Session::new()?, Var::<i32>::new("n", 1));
    /// let double = session.function(|| n.set(n.get() * 2))?;
    /// let mut snapshot = session.snapshot([n.any()])?;
    /// double.call(())?;
    /// assert_eq!(snapshot.take(0)?.to_f64(), Some(1.0));
    /// assert!(snapshot.take(0).is_err() && snapshot.take(1).is_err());
    /// assert_eq!(session.get(&n)?, 2);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn snapshot<'a>(&self, vars: impl IntoIterator<Item = &'a AnyVar>) -> Result<Snapshot> {
        self.snapshot_with_queues(vars, [])
    }

    /// Takes a snapshot of variables like [`snapshot`](Self::snapshot), and of the contents of
    /// queues at the same moment. An element that a running call has removed counts as in its
    /// queue, and one that it has added does not, since the call has not succeeded yet.
    #[doc(hidden)]
    pub fn snapshot_with_queues<'a>(
        &self,
        vars: impl IntoIterator<Item = &'a AnyVar>,
        queues: impl IntoIterator<Item = &'a AnyQueue>,
    ) -> Result<Snapshot> {
        let vars: Vec<&AnyVar> = vars.into_iter().collect();
        // A variable that is given twice is locked once.
        let mut seen = HashSet::new();
        let once = vars.iter().filter(|var| seen.insert(var.id()));
        let set = self.var_set(once.map(|var| (*var, VarAccess::Read)))?;
        let queues: Vec<_> = queues.into_iter().map(|queue| self.queues.get(queue)).collect();
        let (held, contents) = if queues.is_empty() {
            (set.hold(), Vec::new())
        } else {
            let gate = self.queues.gate();
            let _closed = gate.close();
            set.hold_with(|| queues::contents(&queues))
        };
        let held: HashMap<u64, _> = held.into_iter().map(|held| (held.0.id(), held)).collect();
        let values = vars.iter().map(|var| {
            let (cell, value) = held[&var.id()].clone();
            // A buffer of a shared variable stands for its newest value.
            let value = match var.shared_name() {
                Some(_) => DeviceBuffer::from_host(cell.fetch(value)?),
                None => value,
            };
            Ok(Some((cell, value)))
        });
        Ok(Snapshot { values: values.collect::<Result<_>>()?, queues: contents })
    }
}
