//! The cases in burn, with its backend `flex` on the CPU.

#[path = "../../peer.rs"]
mod peer;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AvgPool2dConfig, MaxPool2dConfig};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig, Lstm, LstmConfig, PaddingConfig2d};
use burn::optim::{AdamConfig, GradientsParams, SgdConfig};
use burn::tensor::activation::{log_softmax, relu, softmax};
use burn::tensor::{Device, Distribution, IndexingUpdateOp, Int, Tensor, TensorData, module};
use peer::{Cases, LSTMS, MATRICES, PERCEPTRON, TRIPS, ids};

fn normal<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

fn control_flow(cases: &Cases, device: &Device, tape: &Device) {
    cases.case("scalar_while", || {
        || {
            let (mut x, mut i) = (Tensor::<1>::full([1], 1.0, device), 0);
            while i < TRIPS {
                i += 1;
                x = x.mul_scalar(0.999).add_scalar(0.001);
            }
            let _: f32 = x.into_scalar();
        }
    });
    cases.case("nested_while_with_a_branch", || {
        || {
            let mut x = Tensor::<1>::full([1], 0.0, device);
            for _ in 0..100 {
                for _ in 0..100 {
                    let large = x.clone().into_scalar::<f32>() > 100.0;
                    x = if large { x.sub_scalar(100.0) } else { x.add_scalar(1.5) };
                }
            }
        }
    });
    cases.case("gradient_of_1000_trips", || {
        || {
            let x = Tensor::<1>::full([1], 0.5, tape).require_grad();
            let y = (0..1000).fold(x.clone(), |y, _| y.mul_scalar(1.01).tanh());
            let slope = x.grad(&y.backward());
            let _: f32 = slope.expect("y depends on x").into_scalar();
        }
    });
    cases.case("call_of_one_op", || {
        let x = Tensor::<1>::full([1], 1.0, device);
        move || drop(x.clone().add_scalar(1.0))
    });
    cases.case("tanh_of_a_64x64_product_in_a_while", || {
        let w = normal([64, 64], device).mul_scalar(0.01);
        move || {
            let y = (0..2000).fold(w.clone(), |x, _| x.matmul(w.clone()).tanh());
            device.sync().unwrap();
            drop(y);
        }
    });
}

/// Times the steps of a model by an optimizer: `loss` is a function of the model.
macro_rules! training {
    ($model:expr, $optimizer:expr, $loss:expr, $device:expr) => {{
        let (mut held, mut optimizer) = (Some($model), $optimizer.init());
        move || {
            let model = held.take().expect("each step puts it back");
            let loss = $loss(&model);
            let slopes = GradientsParams::from_grads(loss.backward(), &model);
            held = Some(optimizer.step(0.001, model, slopes));
            let _: f32 = loss.into_scalar();
            $device.sync().unwrap();
        }
    }};
}

fn cross_entropy(logits: Tensor<2>) -> Tensor<1> {
    let n = logits.dims()[0];
    let labels = TensorData::new((0..n as i32).map(|i| i % 10).collect::<Vec<_>>(), [n, 1]);
    let labels = Tensor::<2, Int>::from_data(labels, &logits.device());
    log_softmax(logits, 1).gather(1, labels).mean().neg()
}

fn linear(m: usize, n: usize, device: &Device) -> Linear {
    LinearConfig::new(m, n).init(device)
}

#[derive(Module, Debug)]
struct Perceptron {
    layers: [Linear; 3],
}

impl Perceptron {
    fn apply(&self, x: Tensor<2>) -> Tensor<2> {
        let x = relu(self.layers[0].forward(x));
        self.layers[2].forward(relu(self.layers[1].forward(x)))
    }
}

fn training(cases: &Cases, tape: &Device) {
    for (batch, steps) in LSTMS {
        cases.case(&format!("lstm_512_batch_{batch}_steps_{steps}"), || {
            let (cell, x) = (LstmConfig::new(512, 512, true).init(tape), normal([batch, steps, 512], tape));
            let loss = move |cell: &Lstm| cell.forward(x.clone(), None).0.square().mean();
            training!(cell, SgdConfig::new(), loss, tape)
        });
    }
    cases.case(PERCEPTRON, || {
        let layers = [linear(784, 1024, tape), linear(1024, 1024, tape), linear(1024, 10, tape)];
        let x = normal([128, 784], tape);
        let loss = move |model: &Perceptron| cross_entropy(model.apply(x.clone()));
        training!(Perceptron { layers }, AdamConfig::new(), loss, tape)
    });
    cases.case("transformer_4_blocks_256_forward_and_backward", || {
        let blocks: Vec<TransformerBlock> = (0..4).map(|_| TransformerBlock::new(tape)).collect();
        let x = normal([8, 128, 256], tape);
        move || {
            let y = blocks.iter().fold(x.clone(), |x, block| block.apply(x));
            let _ = GradientsParams::from_grads(y.square().mean().backward(), &blocks);
            tape.sync().unwrap();
        }
    });
}

/// A transformer block with the normalization before attention and before the MLP.
#[derive(Module, Debug)]
struct TransformerBlock {
    norms: [LayerNorm; 2],
    heads: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
}

impl TransformerBlock {
    fn new(device: &Device) -> TransformerBlock {
        TransformerBlock {
            norms: [LayerNormConfig::new(256).init(device), LayerNormConfig::new(256).init(device)],
            heads: linear(256, 768, device),
            out: linear(256, 256, device),
            up: linear(256, 1024, device),
            down: linear(1024, 256, device),
        }
    }

    fn apply(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, steps, size] = x.dims();
        let parts = self.heads.forward(self.norms[0].forward(x.clone())).reshape([batch, steps, 3, 4, size / 4]);
        let parts = parts.permute([2, 0, 3, 1, 4]);
        let part = |i| parts.clone().narrow(0, i, 1).reshape([batch, 4, steps, size / 4]);
        let (q, k, v) = (part(0), part(1), part(2));
        let weights = softmax(q.matmul(k.swap_dims(2, 3)).mul_scalar(((size / 4) as f32).powf(-0.5)), 3);
        let y = weights.matmul(v).swap_dims(1, 2).reshape([batch, steps, size]);
        let x = x + self.out.forward(y);
        let h = relu(self.up.forward(self.norms[1].forward(x.clone())));
        x + self.down.forward(h)
    }
}

/// A convolution that keeps the size of images.
fn same(channels: usize, filters: usize, k: usize, device: &Device) -> Conv2d {
    let p = k / 2;
    let config = Conv2dConfig::new([channels, filters], [k, k]);
    config.with_padding(PaddingConfig2d::Explicit(p, p, p, p)).init(device)
}

fn max_pool(x: Tensor<4>, k: usize) -> Tensor<4> {
    MaxPool2dConfig::new([k, k]).with_strides([2, 2]).init().forward(x)
}

fn average_pool(x: Tensor<4>) -> Tensor<4> {
    AvgPool2dConfig::new([3, 3]).with_strides([2, 2]).init().forward(x)
}

fn two_convs(layers: &[Conv2d; 2], x: Tensor<4>) -> Tensor<1> {
    relu(layers[1].forward(relu(layers[0].forward(x)))).square().mean()
}

#[derive(Module, Debug)]
struct Lenet {
    convs: [Conv2d; 2],
    dense: [Linear; 2],
}

impl Lenet {
    fn apply(&self, x: Tensor<4>) -> Tensor<2> {
        let x = max_pool(relu(self.convs[0].forward(x)), 2);
        let x = max_pool(relu(self.convs[1].forward(x)), 2);
        self.dense[1].forward(relu(self.dense[0].forward(x.flatten(1, 3))))
    }
}

#[derive(Module, Debug)]
struct CifarQuick {
    convs: [Conv2d; 3],
    dense: [Linear; 2],
}

impl CifarQuick {
    fn apply(&self, x: Tensor<4>) -> Tensor<2> {
        let x = relu(max_pool(self.convs[0].forward(x), 3));
        let x = average_pool(relu(self.convs[1].forward(x)));
        let x = average_pool(relu(self.convs[2].forward(x)));
        self.dense[1].forward(self.dense[0].forward(x.flatten(1, 3)))
    }
}

fn vision(cases: &Cases, device: &Device, tape: &Device) {
    let conv = |x: Tensor<4>, w: Tensor<4>| {
        module::conv2d(x, w, None, burn::tensor::ops::ConvOptions::new([1, 1], [1, 1], [1, 1], 1))
    };
    cases.case("conv_3x3_64_on_56x56_batch_8_forward", || {
        let (x, w) = (normal([8, 64, 56, 56], device), normal([64, 64, 3, 3], device));
        move || {
            let _: f32 = conv(x.clone(), w.clone()).mean().into_scalar();
        }
    });
    cases.case("conv_3x3_64_on_56x56_batch_8_forward_backward", || {
        let (x, w) = (normal([8, 64, 56, 56], tape).require_grad(), normal([64, 64, 3, 3], tape).require_grad());
        move || {
            let slopes = conv(x.clone(), w.clone()).square().mean().backward();
            let _ = (x.grad(&slopes), w.grad(&slopes));
            tape.sync().unwrap();
        }
    });
    cases.case("two_conv_3x3_relu_forward", || {
        let (layers, x) = ([(); 2].map(|()| same(64, 64, 3, device)), normal([8, 64, 56, 56], device));
        move || {
            let _: f32 = two_convs(&layers, x.clone()).into_scalar();
        }
    });
    cases.case("two_conv_3x3_relu_forward_backward", || {
        let layers = [(); 2].map(|()| same(64, 64, 3, tape));
        let x = normal([8, 64, 56, 56], tape).require_grad();
        move || {
            let slopes = two_convs(&layers, x.clone()).backward();
            let _ = x.grad(&slopes);
            let _ = GradientsParams::from_grads(slopes, &layers);
            tape.sync().unwrap();
        }
    });
    cases.case("lenet_batch_64_sgd", || {
        let convs = [same(1, 32, 5, tape), same(32, 64, 5, tape)];
        let model = Lenet { convs, dense: [linear(3136, 512, tape), linear(512, 10, tape)] };
        let x = normal([64, 1, 28, 28], tape);
        let loss = move |model: &Lenet| cross_entropy(model.apply(x.clone()));
        training!(model, SgdConfig::new(), loss, tape)
    });
    cases.case("cifar_quick_batch_100_sgd", || {
        let convs = [same(3, 32, 5, tape), same(32, 32, 5, tape), same(32, 64, 5, tape)];
        let model = CifarQuick { convs, dense: [linear(576, 64, tape), linear(64, 10, tape)] };
        let x = normal([100, 3, 32, 32], tape);
        let loss = move |model: &CifarQuick| cross_entropy(model.apply(x.clone()));
        training!(model, SgdConfig::new(), loss, tape)
    });
}

fn kernels(cases: &Cases, device: &Device) {
    for n in MATRICES {
        cases.case(&format!("product_{n}x{n}x{n}"), || {
            let (a, b) = (normal([n, n], device), normal([n, n], device));
            move || {
                let _y = a.clone().matmul(b.clone());
                device.sync().unwrap();
            }
        });
    }
    cases.case("softmax_4096_1024", || {
        let x = normal([4096, 1024], device);
        move || {
            let _y = softmax(x.clone(), 1);
            device.sync().unwrap();
        }
    });
    cases.case("layer_norm_4096_1024", || {
        let (norm, x) = (LayerNormConfig::new(1024).init(device), normal([4096, 1024], device));
        move || {
            let _y = norm.forward(x.clone());
            device.sync().unwrap();
        }
    });
    cases.case("sum_10_000_000", || {
        let x = normal([10_000_000], device);
        move || {
            let _: f32 = x.clone().sum().into_scalar();
        }
    });
    cases.case("tanh_chain_10_000_000", || {
        let [a, b, c, d] = [(); 4].map(|()| normal([10_000_000], device));
        move || {
            let _y = (a.clone() * b.clone() + c.clone()).tanh() * d.clone() - a.clone();
            device.sync().unwrap();
        }
    });
    let at = || {
        let ids: Vec<i32> = ids(8192, 100_000).into_iter().map(|id| id as i32).collect();
        Tensor::<1, Int>::from_data(TensorData::new(ids, [8192]), device)
    };
    cases.case("gather_8192_of_100000_x_64", || {
        let (table, at) = (normal([100_000, 64], device), at());
        move || {
            let _y = table.clone().select(0, at.clone());
            device.sync().unwrap();
        }
    });
    // The gradient of the rows is written by hand: burn's gradients are whole tables.
    cases.case("sgd_of_8192_of_100000_x_64", || {
        let (mut held, at, by) = (Some(normal([100_000, 64], device)), at(), normal([8192, 64], device));
        move || {
            let table = held.take().expect("each step puts it back");
            let _loss = (table.clone().select(0, at.clone()) * by.clone()).sum();
            let slope = by.clone().mul_scalar(-0.01);
            held = Some(table.select_assign(0, at.clone(), slope, IndexingUpdateOp::Add));
            device.sync().unwrap();
        }
    });
}

fn main() {
    let cases = Cases::of("burn 0.22.0");
    let device = Device::flex();
    let tape = device.clone().autodiff();
    control_flow(&cases, &device, &tape);
    training(&cases, &tape);
    vision(&cases, &device, &tape);
    kernels(&cases, &device);
}
