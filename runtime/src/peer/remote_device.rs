//! Devices of other processes, as placement and the variables of a session see them.

use super::cluster::ValueHandle;
use super::shared::SharedVariable;
use crate::device::gpu_support::{self, SizeLimits};
use crate::device::{
    Device, DeviceBuffer, DeviceId, DeviceMemory, LoadedKernel, MemorySpace, Progress, Step, Support, Ticket,
};
use crate::options::{CompileOptions, StopCheck};
use anabranch_dsl::device::DeviceName;
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
    /// The sizes that it supports, if it is a GPU.
    limits: Option<SizeLimits>,
    /// Where its variables are, at the process that owns them.
    values: Option<Arc<dyn RemoteValues>>,
}

impl RemoteDevice {
    /// Returns a device that keeps variables of this process.
    pub(super) fn new(
        id: DeviceId,
        name: DeviceName,
        limits: Option<SizeLimits>,
        values: Arc<dyn RemoteValues>,
    ) -> RemoteDevice {
        RemoteDevice { id, name, limits, values: Some(values) }
    }

    /// Returns a device of another process for a participant.
    pub(super) fn elsewhere(id: DeviceId, name: DeviceName) -> RemoteDevice {
        RemoteDevice { id, name, limits: None, values: None }
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

    fn supports(&self, op: &Op, operands: &[&Type], results: &[&Type]) -> Support {
        if op.is_of_session() {
            return Support::No("has no queues and files, which are in the process of the session".to_owned());
        }
        self.limits.map_or(Support::Yes, |limits| gpu_support::supports(op, operands, results, &limits))
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

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_dsl::device::DeviceKind;
    use anabranch_dsl::ir::Attrs;
    use anabranch_dsl::ops::prim;
    use anabranch_dsl::{DType, TensorType};

    /// Also in a program without the feature `gpu`.
    #[test]
    fn a_gpu_of_a_peer_gets_what_its_limits_allow() {
        let supports = |kind: DeviceKind, max_bytes: u64, dtype: DType| {
            let name = DeviceName::local(kind, 0).of_peer("0").expect("a number is a valid name");
            let limits = SizeLimits { max_bytes, max_iterations: None, has_halves: false };
            let limits = (kind == DeviceKind::Gpu).then_some(limits);
            let device = RemoteDevice { limits, ..RemoteDevice::elsewhere(DeviceId::from_index(1), name) };
            // 256 MiB.
            let ty = Type::Tensor(TensorType::new(dtype, [1 << 16, 1 << 10]));
            device.supports(&Op::Prim(prim::ADD, Attrs::none()), &[&ty, &ty], &[&ty])
        };
        assert_eq!(supports(DeviceKind::Gpu, 256 << 20, DType::F32), Support::Yes);
        let no = |reason: &str| Support::No(reason.to_owned());
        let too_large = "has no tensors of 134217728 bytes or of more than 32 axes";
        assert_eq!(supports(DeviceKind::Gpu, 128 << 20, DType::F32), no(too_large));
        assert_eq!(supports(DeviceKind::Gpu, 1 << 40, DType::F64), no("has no shader for `add` on f64"));
        assert_eq!(supports(DeviceKind::Cpu, 0, DType::F64), Support::Yes);
    }
}
