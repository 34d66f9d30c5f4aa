//! The device that the user of a program chooses.

use super::{Session, SessionBuilder};
use anabranch_dsl::{Diagnostic, Result};

/// Returns the value of the option `--device` or of the environment variable, if one is given.
///
/// # Errors
/// Fails if the option has no value.
pub(super) fn device_of_program() -> Result<Option<String>> {
    let mut args = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
    while let Some(arg) = args.next() {
        if arg == "--device" {
            let value = args.next().filter(|value| !value.starts_with("--"));
            return value.map(Some).ok_or_else(|| unknown("`--device` has no value".to_owned()));
        }
        if let Some(value) = arg.strip_prefix("--device=") {
            return Ok(Some(value.to_owned()));
        }
    }
    Ok(std::env::var("ANABRANCH_DEVICE").ok().filter(|value| !value.is_empty()))
}

fn unknown(message: String) -> Diagnostic {
    Diagnostic::new(message).help("write `cpu`, `gpu`, or `gpu:1` for the second adapter")
}

/// Returns a builder whose sessions run everything on a device: `cpu`, `gpu` or `gpu:1`.
///
/// # Errors
/// Fails if the device is unknown or if there is no such adapter.
pub(super) fn builder(device: &str) -> Result<SessionBuilder> {
    let (kind, number) = device.split_once(':').unwrap_or((device, "0"));
    match (kind, number.parse::<usize>()) {
        ("cpu", Ok(0)) => Ok(Session::builder()),
        ("gpu", Ok(number)) => on_adapter(number),
        _ => Err(unknown(format!("{device:?} is not a device of this machine"))),
    }
}

#[cfg(feature = "gpu")]
fn on_adapter(number: usize) -> Result<SessionBuilder> {
    let adapters = crate::gpu::gpu_adapters();
    let Some(adapter) = adapters.get(number) else {
        let error = Diagnostic::new(format!("this machine has {} adapters, but not `gpu:{number}`", adapters.len()));
        return Err(error.help("`cargo run --example devices --features gpu` lists them"));
    };
    Ok(Session::builder().gpu(adapter).device("/gpu:0"))
}

#[cfg(not(feature = "gpu"))]
fn on_adapter(_: usize) -> Result<SessionBuilder> {
    let error = Diagnostic::new("this program was built without the feature `gpu`");
    Err(error.help("add `--features gpu` to the command, or to the dependency on `anabranch`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_kind_and_a_number() {
        for wrong in ["", "tpu", "cpu:1", "gpu:x", "gpu:-1", "/gpu:0"] {
            let error = builder(wrong).expect_err("there is no such device");
            assert_eq!(error.message, format!("{wrong:?} is not a device of this machine"));
        }
        assert!(builder("cpu").is_ok());
        let error = builder("gpu:1000").expect_err("no machine has so many");
        let expected = if cfg!(feature = "gpu") { "but not `gpu:1000`" } else { "without the feature `gpu`" };
        assert!(error.message.contains(expected), "{error}");
    }
}
