//! Lists the devices of this machine, and runs a function on the first GPU.
//!
//! `cargo run --release --example devices --features gpu`

use anabranch::prelude::*;
use anabranch::{Session, gpu_adapters};

fn main() -> anabranch::Result<()> {
    let adapters = gpu_adapters();
    for (i, adapter) in adapters.iter().enumerate() {
        let kind = if adapter.is_software() { "software" } else { "GPU" };
        let mib = adapter.max_tensor_bytes() >> 20;
        let halves = if adapter.has_halves() { "16-bit floats" } else { "no 16-bit floats" };
        println!("{i}: {adapter}, {kind}, tensors of up to {mib} MiB, {halves}");
    }
    let Some(first) = adapters.first() else {
        println!("no adapter: install a driver for Vulkan, Metal or DX12");
        return Ok(());
    };
    let session = Session::builder().gpu(first).build()?;
    let names: Vec<String> = session.devices().iter().map(ToString::to_string).collect();
    println!("devices of the session: {}", names.join(", "));
    let softmax = session.function(|x: Tensor| on("/gpu:0", || (x * 2.0).softmax(-1)))?;
    println!("softmax of [0, 2, 4] on /gpu:0: {}", softmax.call([0.0, 1.0, 2.0])?);
    Ok(())
}
