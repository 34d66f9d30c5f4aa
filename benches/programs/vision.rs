//! Convolutions and small convolutional networks.

use super::{BenchInput, Benchmark, labels, normal};
use anabranch::nn::{Init, Linear};
use anabranch::optim::{Optimizer, Sgd};
use anabranch::prelude::*;
use anabranch::{ConvOptions, PoolOptions};

/// Filters, and a bias for each filter.
#[derive(Module)]
struct Conv {
    filters: Var,
    bias: Var,
}

impl Conv {
    fn new(init: &Init, channels: usize, filters: usize, k: usize) -> Conv {
        let fan_in = channels * k * k;
        Conv {
            filters: Var::new("filters", init.fan_in([filters, channels, k, k], fan_in)),
            bias: Var::new("bias", init.fan_in([filters, 1, 1], fan_in)),
        }
    }

    fn forward(&self, x: Tensor) -> Tensor {
        x.conv2d(self.filters.get(), ConvOptions::new().same()) + self.bias.get()
    }
}

fn flat(x: Tensor) -> Tensor {
    let per_image = x.dim(1) * x.dim(2) * x.dim(3);
    x.reshape([x.dim(0), per_image])
}

fn conv_3x3(x: Tensor, filters: Tensor) -> Tensor {
    x.conv2d(filters, ConvOptions::new().padding(1))
}

fn images() -> BenchInput {
    normal([8, 64, 56, 56])
}

fn filters() -> BenchInput {
    BenchInput::Normal(vec![64, 64, 3, 3], 0.05)
}

/// One convolution 3×3, 64 to 64 channels, on 56×56, batch 8.
pub fn conv_3x3_64_on_56x56_batch_8_forward() -> Benchmark {
    Benchmark::new(|x, w| conv_3x3(x, w).mean(), vec![images(), filters()])
}

/// One convolution 3×3 and both of its gradients.
pub fn conv_3x3_64_on_56x56_batch_8_forward_backward() -> Benchmark {
    let f = |x, w| {
        let loss = conv_3x3(x, w).square().mean();
        let (dx, dw) = gradients(loss, (x, w));
        (loss, dx.sum(), dw)
    };
    Benchmark::new(f, vec![images(), filters()])
}

fn block(layers: &[Conv; 2], x: Tensor) -> Tensor {
    let h = layers[0].forward(x).relu();
    layers[1].forward(h).relu().square().mean()
}

fn layers() -> [Conv; 2] {
    let init = Init::new(1);
    [Conv::new(&init, 64, 64, 3), Conv::new(&init, 64, 64, 3)]
}

/// Two convolutions 3×3 with bias and relu.
pub fn two_conv_3x3_relu_forward() -> Benchmark {
    let layers = layers();
    Benchmark::new(move |x| block(&layers, x), vec![images()])
}

/// Two convolutions 3×3 with bias and relu, and all gradients.
pub fn two_conv_3x3_relu_forward_backward() -> Benchmark {
    let layers = layers();
    let f = move |x| {
        let loss = block(&layers, x);
        let [a, b] = &layers;
        let vars = [x, a.filters.get(), a.bias.get(), b.filters.get(), b.bias.get()];
        let [dx, da, db, dc, dd] = gradients(loss, vars);
        (dx.sum(), da, db, dc, dd)
    };
    Benchmark::new(f, vec![images()])
}

fn separable_inputs() -> Vec<BenchInput> {
    vec![
        images(),
        BenchInput::Normal(vec![128, 64, 1, 1], 0.1),
        BenchInput::Normal(vec![128, 1, 3, 3], 0.3),
        BenchInput::Normal(vec![64, 128, 1, 1], 0.1),
    ]
}

fn separable(x: Tensor, wide: Tensor, each: Tensor, narrow: Tensor) -> Tensor {
    let h = x.conv2d(wide, ConvOptions::new()).relu();
    let h = h.conv2d(each, ConvOptions::new().padding(1).groups(128)).relu();
    h.conv2d(narrow, ConvOptions::new())
}

/// A block of separable convolutions: 1×1 to 128 channels, 3×3 each channel by itself, 1×1 to 64;
/// on 56×56, batch 8: forward.
pub fn separable_block_forward() -> Benchmark {
    Benchmark::new(|x, a, b, c| separable(x, a, b, c).mean(), separable_inputs())
}

/// A block of separable convolutions, and all gradients.
pub fn separable_block_forward_backward() -> Benchmark {
    let f = |x, a, b, c| {
        let (dx, da, db, dc) = gradients(separable(x, a, b, c).square().mean(), (x, a, b, c));
        (dx.sum(), da, db, dc)
    };
    Benchmark::new(f, separable_inputs())
}

#[derive(Module)]
struct Lenet {
    convs: [Conv; 2],
    dense: [Linear; 2],
}

fn lenet(model: &Lenet, x: Tensor) -> Tensor {
    let pool = PoolOptions::new(2);
    let x = model.convs[0].forward(x).relu().max_pool(pool);
    let x = model.convs[1].forward(x).relu().max_pool(pool);
    model.dense[1].forward(model.dense[0].forward(flat(x)).relu())
}

/// A step of SGD that classifies a batch of images.
fn training_step<M: Module + Send + Sync + 'static>(
    model: M,
    logits: fn(&M, Tensor) -> Tensor,
    [channels, height, width]: [usize; 3],
    batch: i32,
) -> Benchmark {
    let sgd = Sgd::new(0.01);
    let step = move |x, targets: Tensor<i32>| {
        let loss = logits(&model, x).cross_entropy(targets).mean();
        sgd.minimize(loss, &model);
        loss
    };
    Benchmark::new(step, vec![normal([batch as usize, channels, height, width]), labels(batch)])
}

/// A network like LeNet on 28×28, batch 64: forward, backward, SGD.
pub fn lenet_batch_64_sgd() -> Benchmark {
    let init = Init::new(1);
    let model = Lenet {
        convs: [Conv::new(&init, 1, 32, 5), Conv::new(&init, 32, 64, 5)],
        dense: [Linear::new(&init, 3136, 512), Linear::new(&init, 512, 10)],
    };
    training_step(model, lenet, [1, 28, 28], 64)
}

#[derive(Module)]
struct CifarQuick {
    convs: [Conv; 3],
    dense: [Linear; 2],
}

fn cifar_quick(model: &CifarQuick, x: Tensor) -> Tensor {
    let pool = PoolOptions::new(3).stride(2);
    let x = model.convs[0].forward(x).max_pool(pool).relu();
    let x = model.convs[1].forward(x).relu().avg_pool(pool);
    let x = model.convs[2].forward(x).relu().avg_pool(pool);
    model.dense[1].forward(model.dense[0].forward(flat(x)))
}

/// CIFAR-10 quick on 32×32, batch 100: forward, backward, SGD.
pub fn cifar_quick_batch_100_sgd() -> Benchmark {
    let init = Init::new(1);
    let model = CifarQuick {
        convs: [Conv::new(&init, 3, 32, 5), Conv::new(&init, 32, 32, 5), Conv::new(&init, 32, 64, 5)],
        dense: [Linear::new(&init, 576, 64), Linear::new(&init, 64, 10)],
    };
    training_step(model, cifar_quick, [3, 32, 32], 100)
}
