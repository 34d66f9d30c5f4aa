//! The devices to which the nodes and variables that a closure creates are constrained.

use super::fail;
use crate::Loc;
use crate::device::{DeviceConstraint, DevicePattern, IntoDevice};
use std::cell::Cell;

thread_local! {
    static SCOPE: Cell<Option<DeviceConstraint>> = const { Cell::new(None) };
}

/// Returns the device constraint of the current scope of this thread.
pub(crate) fn device_scope() -> Option<DeviceConstraint> {
    SCOPE.get()
}

/// A guard that sets the device constraint of this thread until it is dropped, even by a panic.
pub(crate) struct DeviceScope(Option<DeviceConstraint>);

impl DeviceScope {
    pub(crate) fn enter(on: Option<DeviceConstraint>) -> DeviceScope {
        DeviceScope(SCOPE.replace(on))
    }
}

impl Drop for DeviceScope {
    fn drop(&mut self) {
        SCOPE.set(self.0);
    }
}

/// Runs `f` and constrains the nodes and variables that it creates to the devices that `device`
/// matches.
///
/// The constraint applies to the nodes that are recorded while `f` runs, including branches and
/// loop bodies, and to nodes that passes and gradients derive from them: the gradient of an
/// operation is computed on the device of the operation. A nested scope overrides the fields that
/// it specifies: `/gpu:1` in `/peer:a` is `/peer:a/gpu:1`. A number counts the devices of one kind,
/// so `/cpu` in `/gpu:1` is any CPU. In a session with peers, a number without a peer is of the
/// process of the session: `/cpu:0` is `/peer:local/cpu:0`, and `/cpu` any CPU of any process.
/// Variables are read and assigned on their own device, whatever
/// the scope.
///
/// A scope affects where something runs, never its value. A scope does not extend to functions that
/// a session traces meanwhile, since such a function is traced once for all its callers.
///
/// # Errors
/// Aborts the trace, at the caller's line, if `device` is not a valid device name. The session
/// checks that such a device exists.
///
/// ```
/// use anabranch::{on, prelude::*};
///
/// let w = on("/cpu:1", || Var::new("w", [1.0f32, 2.0]));
/// let y = eval(|| on("/cpu:*", || w.get() * 2.0).sum())?;
/// assert_eq!(y, 6.0);
/// let error = eval(|| on("cpu:1", || scalar(1.0f32))).unwrap_err();
/// assert_eq!(error.message, "\"cpu:1\" is not a valid device name: it does not start with `/`");
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[track_caller]
pub fn on<R>(device: impl IntoDevice, f: impl FnOnce() -> R) -> R {
    let loc = Loc::caller();
    let devices = named_at(device, loc);
    let outer = device_scope().map_or(DevicePattern::ANY, DeviceConstraint::devices);
    let _scope = DeviceScope::enter(Some(DeviceConstraint::new(devices.within(&outer), loc)));
    f()
}

/// Parses a device name given at `loc`. An invalid name aborts the trace there.
#[track_caller]
pub(crate) fn named_at(device: impl IntoDevice, loc: Loc) -> DevicePattern {
    device.into_device().unwrap_or_else(|e| fail(e.at(loc, "this device")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_ends_with_a_panic() {
        let outcome = std::panic::catch_unwind(|| {
            on("/cpu:0", || {
                assert_eq!(device_scope().unwrap().devices().to_string(), "/cpu:0");
                std::panic::resume_unwind(Box::new("thrown"))
            })
        });
        assert!(outcome.is_err());
        assert_eq!(device_scope(), None);
    }
}
