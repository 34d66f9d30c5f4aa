//! Devices of other processes, as placement and the variables of a session see them.

use super::cluster::ValueHandle;
use super::shared::SharedVariable;
use crate::device::{
    CompileOptions, Device, DeviceBuffer, DeviceId, DeviceMemory, LoadedKernel, MemorySpace, Progress, Step, StopCheck,
    Support, Ticket,
};
use anabranch_dsl::device::{DeviceKind, DeviceName};
use anabranch_dsl::ir::Op;
use anabranch_dsl::{Graph, HostTensor, Result, Type};
use std::fmt::Debug;
use std::sync::Arc;

/// The values of variables that a peer keeps for this process.
pub(super) trait RemoteValues: Debug + Send + Sync {
    /// Stores a value. Returns its handle.
    fn store(&self, value: HostTensor) -> Result<RemoteValue>;

    /// Returns a value.
    fn fetch(&self, value: &RemoteValue) -> Result<HostTensor>;
}

/// A value that a peer keeps as long as the handle exists.
#[derive(Debug)]
pub(super) struct RemoteValue {
    pub(super) ty: Type,
    pub(super) n_bytes: u64,
    pub(super) handle: RemoteHandle,
}

/// Which value of a peer a [`RemoteValue`] is.
#[derive(Debug)]
pub(super) enum RemoteHandle {
    /// A value of this session. It is released when the handle is dropped.
    Own(ValueHandle),
    /// The newest value of a shared variable.
    Shared(Arc<SharedVariable>),
}

impl DeviceMemory for RemoteValue {
    fn ty(&self) -> Type {
        self.ty.clone()
    }

    fn n_bytes(&self) -> u64 {
        self.n_bytes
    }
}

/// A device of another process. Work of its subgraphs never reaches it here.
#[derive(Debug)]
pub(super) struct RemoteDevice {
    id: DeviceId,
    name: DeviceName,
    /// Where its variables are, at the process that owns them.
    values: Option<Arc<dyn RemoteValues>>,
}

impl RemoteDevice {
    /// Returns a device that keeps variables of this process.
    pub(super) fn new(id: DeviceId, name: DeviceName, values: Arc<dyn RemoteValues>) -> RemoteDevice {
        RemoteDevice { id, name, values: Some(values) }
    }

    /// Returns a device of another process for a participant.
    pub(super) fn elsewhere(id: DeviceId, name: DeviceName) -> RemoteDevice {
        RemoteDevice { id, name, values: None }
    }

    fn values(&self) -> &dyn RemoteValues {
        &**self.values.as_ref().expect("only the owner of variables stores them")
    }

    fn is_elsewhere(&self) -> ! {
        panic!("{} is in another process", self.name)
    }
}

impl Device for RemoteDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn name(&self) -> Option<DeviceName> {
        Some(self.name)
    }

    fn is_simulated(&self) -> bool {
        false
    }

    /// A GPU of a peer gets the operations that GPUs have shaders for. What it cannot do all the
    /// same is an error of the peer when it loads the program.
    fn supports(&self, op: &Op, operands: &[&Type], results: &[&Type]) -> Support {
        if op.is_of_session() {
            return Support::No("has no queues and files, which are in the process of the session".to_owned());
        }
        if self.name.kind() == DeviceKind::Cpu {
            return Support::Yes;
        }
        #[cfg(feature = "gpu")]
        return crate::gpu::supports_by_default(op, operands, results);
        #[cfg(not(feature = "gpu"))]
        {
            let _ = (op, operands, results);
            Support::No("is a GPU, and this program was built without the feature `gpu`".to_owned())
        }
    }

    fn load(self: Arc<Self>, _: Graph, _: CompileOptions, _: StopCheck<'_>) -> Result<Box<dyn LoadedKernel>> {
        self.is_elsewhere()
    }

    fn upload(&self, _: Vec<DeviceBuffer>, _: &Arc<Step>, _: Ticket) -> Progress {
        self.is_elsewhere()
    }

    fn download(&self, _: Vec<DeviceBuffer>, _: &Arc<Step>, _: Ticket) -> Progress {
        self.is_elsewhere()
    }

    fn copy(
        &self,
        _: Vec<DeviceBuffer>,
        _: &dyn Device,
        _: &Arc<Step>,
        _: Ticket,
    ) -> std::result::Result<Progress, Vec<DeviceBuffer>> {
        self.is_elsewhere()
    }

    fn store(&self, value: HostTensor) -> Result<DeviceBuffer> {
        let value = self.values().store(value)?;
        Ok(DeviceBuffer::new(MemorySpace::Device(self.id), value))
    }

    fn fetch(&self, value: DeviceBuffer) -> Result<HostTensor> {
        let value = value.open::<RemoteValue>(MemorySpace::Device(self.id));
        let value = value.unwrap_or_else(|other| panic!("a value of type {} is at no peer", other.ty()));
        self.values().fetch(&value)
    }
}
