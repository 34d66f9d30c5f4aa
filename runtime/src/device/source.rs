//! The devices of a machine that a session may add to its CPUs.

use super::{Device, DeviceId, DeviceInfo, LinkSpeed};
use crate::options::CompileOptions;
use anabranch_dsl::Result;
use anabranch_dsl::device::DeviceName;
use std::fmt::Debug;
use std::sync::Arc;

/// A device with memory of its own, which a session opens. It is named as a GPU.
///
/// Each kind of device implements it in its own folder, and the builder of sessions has a method
/// that adds one. Nothing else of a session knows the kind.
pub(crate) trait DeviceSource: Debug + Send + Sync {
    /// Returns the rates of the device, with the name that it has in the session.
    fn info(&self, name: DeviceName) -> DeviceInfo;

    /// Returns the speed of transfers between the device and others of the machine.
    fn link(&self) -> LinkSpeed {
        LinkSpeed::GPU
    }

    /// Returns the options of a session that has the device.
    fn limited(&self, options: CompileOptions) -> CompileOptions {
        options
    }

    /// Opens the device.
    ///
    /// # Errors
    /// Fails if its driver refuses it.
    fn open(&self, id: DeviceId, name: DeviceName) -> Result<Arc<dyn Device>>;
}
