//! Some cases of `benches/gpu.rs` in burn, with its backend wgpu: the same sizes, the same work and
//! the same names.
//!
//! Run both in turn, in the root of the repository. Names, or parts of names, select cases.
//!
//! ```sh
//! cargo run --release --locked --manifest-path benches/compare/with_burn_on_gpus/Cargo.toml \
//!     --target-dir target/peers/build
//! cargo bench -p anabranch-benches --features gpu --bench gpu -- \
//!     elementwise softmax layer_norm product_ training_of
//! ```
//!
//! Each repetition waits for the device. Those before the first that is timed include autotuning,
//! whose results are not kept from process to process.

use burn::module::Module;
use burn::nn::{LayerNormConfig, Linear, LinearConfig, Lstm, LstmConfig};
use burn::optim::{AdamConfig, GradientsParams, SgdConfig};
use burn::tensor::activation::{log_softmax, relu, softmax};
use burn::tensor::{Device, DeviceKind, Distribution, Int, Tensor, TensorData};
use std::time::{Duration, Instant};

/// Repetitions that are not timed.
const WARM_UPS: usize = 3;

/// Times some repetitions of a case, if it is requested, and prints the median and the extremes.
fn case<F: FnMut()>(name: &str, n_samples: usize, prepare: impl FnOnce() -> F) {
    let mut parts = std::env::args().skip(1).peekable();
    if parts.peek().is_some() && !parts.any(|part| name.contains(&part)) {
        return;
    }
    let mut run = prepare();
    let mut time = || {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    let warm_up: Duration = (0..WARM_UPS).map(|_| time()).sum();
    let mut times: Vec<Duration> = (0..n_samples).map(|_| time()).collect();
    times.sort();
    let (fastest, median, slowest) = (times[0], times[n_samples / 2], times[n_samples - 1]);
    println!("{name}: median {median:.3?}, fastest {fastest:.3?}, slowest {slowest:.3?}, warm-up {warm_up:.1?}");
}

/// Times a function of four million elements, which replaces its argument.
fn of_elements(name: &str, device: &Device, f: impl Fn(Tensor<2>) -> Tensor<2>) {
    case(name, 10, || {
        let mut held = Some(Tensor::ones([2048, 2048], device));
        move || {
            held = held.take().map(&f);
            device.sync().expect("it runs");
        }
    });
}

/// Times the steps of a model by an optimizer: `loss` is a function of the model.
macro_rules! training {
    ($model:expr, $optimizer:expr, $rate:expr, $loss:expr, $device:expr) => {{
        let (mut held, mut optimizer, device) = (Some($model), $optimizer.init(), $device.clone());
        move || {
            let model = held.take().expect("each step puts it back");
            let loss = $loss(&model);
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            held = Some(optimizer.step($rate, model, gradients));
            let _: f32 = loss.into_scalar();
            device.sync().expect("it runs");
        }
    }};
}

#[derive(Module, Debug)]
struct Perceptron {
    layers: [Linear; 3],
}

impl Perceptron {
    fn new(device: &Device) -> Perceptron {
        Perceptron { layers: [[784, 256], [256, 256], [256, 10]].map(|[m, n]| LinearConfig::new(m, n).init(device)) }
    }

    fn apply(&self, x: Tensor<2>) -> Tensor<2> {
        let x = relu(self.layers[0].forward(x));
        self.layers[2].forward(relu(self.layers[1].forward(x)))
    }
}

fn normal<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

fn main() {
    let device = Device::wgpu(DeviceKind::DefaultDevice);
    let tape = device.clone().autodiff();
    println!("burn 0.22.1 on {device:?}");
    of_elements("elementwise", &device, |x| x * 0.5 + 0.5);
    of_elements("softmax", &device, |x| softmax(x, 1));
    let norm = LayerNormConfig::new(2048).init(&device);
    of_elements("layer_norm", &device, |x| norm.forward(x));
    for n in [256, 512, 1024] {
        case(&format!("product_{n}x{n}x{n}"), 5, || {
            let a = Tensor::<2>::ones([n, n], &device);
            // The caller gets one row, for which the device has to be done.
            move || {
                let row = a.clone().matmul(a.clone()).slice([0..1]).into_data();
                assert_eq!(row.as_slice::<f32>().expect("it is f32")[n - 1], n as f32);
            }
        });
    }
    case("training_of_an_mlp", 10, || {
        let x = normal([128, 784], &tape);
        let labels = TensorData::new((0..128).map(|i| i % 10).collect::<Vec<i32>>(), [128, 1]);
        let labels = Tensor::<2, Int>::from_data(labels, &tape);
        let loss =
            move |model: &Perceptron| log_softmax(model.apply(x.clone()), 1).gather(1, labels.clone()).mean().neg();
        training!(Perceptron::new(&tape), AdamConfig::new(), 0.001, loss, tape)
    });
    case("training_of_an_lstm", 10, || {
        let (cell, x) = (LstmConfig::new(64, 64, true).init(&tape), normal([64, 20, 64], &tape));
        let loss = move |cell: &Lstm| cell.forward(x.clone(), None).0.square().mean();
        training!(cell, SgdConfig::new(), 0.01, loss, tape)
    });
}
