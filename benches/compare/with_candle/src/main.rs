//! The cases in candle, on the CPU.
//!
//! CIFAR-10 quick is left out: candle has no gradient of overlapping pools.

#[path = "../../peer.rs"]
mod peer;

use candle_core::{D, DType, Device, IndexOp, Module, Result, Shape, Tensor, Var};
use candle_nn::rnn::{LSTMConfig, RNN, lstm};
use candle_nn::{
    AdamW, Conv2d, Conv2dConfig, LayerNorm, Linear, Optimizer, ParamsAdamW, SGD, Sequential, VarBuilder, VarMap,
    conv2d, layer_norm, linear, loss, ops, seq,
};
use peer::{Cases, LSTMS, MATRICES, PERCEPTRON, TRIPS, ids};

const CPU: &Device = &Device::Cpu;

fn normal(shape: impl Into<Shape>) -> Tensor {
    Tensor::randn(0f32, 1.0, shape, CPU).unwrap()
}

fn labels(n: u32) -> Tensor {
    Tensor::from_iter((0..n).map(|i| i % 10), CPU).unwrap()
}

/// The variables of a model.
fn variables() -> (VarMap, VarBuilder<'static>) {
    let map = VarMap::new();
    let builder = VarBuilder::from_varmap(&map, DType::F32, CPU);
    (map, builder)
}

fn sgd(map: &VarMap) -> SGD {
    SGD::new(map.all_vars(), 0.01).unwrap()
}

/// A training step of a classifier.
fn classifier(model: impl Module, mut optimizer: impl Optimizer, x: Tensor) -> impl FnMut() {
    let labels = labels(x.dims()[0] as u32);
    move || {
        let loss = loss::cross_entropy(&model.forward(&x).unwrap(), &labels).unwrap();
        optimizer.backward_step(&loss).unwrap();
    }
}

fn control_flow(cases: &Cases) {
    cases.case("scalar_while", || {
        || {
            let (mut x, mut i) = (Tensor::new(1f32, CPU).unwrap(), 0);
            while i < TRIPS {
                i += 1;
                x = x.affine(0.999, 0.001).unwrap();
            }
        }
    });
    cases.case("nested_while_with_a_branch", || {
        || {
            let mut x = Tensor::new(0f32, CPU).unwrap();
            for _ in 0..100 {
                for _ in 0..100 {
                    let large = x.to_scalar::<f32>().unwrap() > 100.0;
                    x = x.affine(1.0, if large { -100.0 } else { 1.5 }).unwrap();
                }
            }
        }
    });
    cases.case("gradient_of_1000_trips", || {
        let x = Var::new(0.5f32, CPU).unwrap();
        move || {
            let y = (0..1000).fold(x.as_tensor().clone(), |y, _| y.affine(1.01, 0.0).unwrap().tanh().unwrap());
            y.backward().unwrap();
        }
    });
    cases.case("call_of_one_op", || {
        let x = Tensor::new(1f32, CPU).unwrap();
        move || drop(x.affine(1.0, 1.0).unwrap())
    });
    cases.case("tanh_of_a_64x64_product_in_a_while", || {
        let w = Tensor::from_iter((0..64 * 64).map(|i| (i % 7) as f32 * 0.01), CPU).unwrap();
        let w = w.reshape((64, 64)).unwrap();
        move || drop((0..2000).fold(w.clone(), |x, _| x.matmul(&w).unwrap().tanh().unwrap()))
    });
}

fn training(cases: &Cases) {
    for (batch, steps) in LSTMS {
        cases.case(&format!("lstm_512_batch_{batch}_steps_{steps}"), || {
            let (map, variables) = variables();
            let layer = lstm(512, 512, LSTMConfig::default(), variables).unwrap();
            let (x, mut sgd) = (normal((batch, steps, 512)), sgd(&map));
            move || {
                let states = layer.seq(&x).unwrap();
                let y = layer.states_to_tensor(&states).unwrap();
                sgd.backward_step(&y.sqr().unwrap().mean_all().unwrap()).unwrap();
            }
        });
    }
    cases.case(PERCEPTRON, || {
        let (map, variables) = variables();
        let layer = |m, n, name| linear(m, n, variables.pp(name)).unwrap();
        let model = seq().add(layer(784, 1024, "a")).add_fn(Tensor::relu);
        let model = model.add(layer(1024, 1024, "b")).add_fn(Tensor::relu).add(layer(1024, 10, "c"));
        let adam = ParamsAdamW { weight_decay: 0.0, ..ParamsAdamW::default() };
        classifier(model, AdamW::new(map.all_vars(), adam).unwrap(), normal((128, 784)))
    });
    cases.case("transformer_4_blocks_256_forward_and_backward", || {
        let (_, variables) = variables();
        let blocks: Vec<TransformerBlock> = (0..4).map(|i| TransformerBlock::new(&variables.pp(i)).unwrap()).collect();
        let x = normal((8, 128, 256));
        move || {
            let y = blocks.iter().fold(x.clone(), |x, block| block.apply(&x).unwrap());
            y.sqr().unwrap().mean_all().unwrap().backward().unwrap();
        }
    });
}

/// A transformer block with the normalization before attention and before the MLP.
struct TransformerBlock {
    norms: [LayerNorm; 2],
    heads: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
}

impl TransformerBlock {
    fn new(variables: &VarBuilder<'_>) -> Result<TransformerBlock> {
        let norm = |name| layer_norm(256, 1e-5, variables.pp(name));
        Ok(TransformerBlock {
            norms: [norm("first")?, norm("second")?],
            heads: linear(256, 768, variables.pp("heads"))?,
            out: linear(256, 256, variables.pp("out"))?,
            up: linear(256, 1024, variables.pp("up"))?,
            down: linear(1024, 256, variables.pp("down"))?,
        })
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, steps, size) = x.dims3()?;
        let parts = self.heads.forward(&normalized(&self.norms[0], x)?)?.reshape((batch, steps, 3, 4, size / 4))?;
        let parts = parts.permute((2, 0, 3, 1, 4))?.contiguous()?;
        let (q, k, v) = (parts.i(0)?, parts.i(1)?, parts.i(2)?);
        let scores = (q.matmul(&k.transpose(2, 3)?.contiguous()?)? * ((size / 4) as f64).powf(-0.5))?;
        let y = ops::softmax(&scores, 3)?.matmul(&v)?.transpose(1, 2)?.contiguous()?.reshape(x.shape())?;
        let x = (x + self.out.forward(&y)?)?;
        let h = self.up.forward(&normalized(&self.norms[1], &x)?)?.relu()?;
        x + self.down.forward(&h)?
    }
}

/// Layer normalization composed of single operations: candle's own kernel has no gradient.
fn normalized(norm: &LayerNorm, x: &Tensor) -> Result<Tensor> {
    let centered = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
    let scaled = centered.broadcast_div(&(variance + 1e-5)?.sqrt()?)?.broadcast_mul(norm.weight())?;
    norm.bias().map_or(Ok(scaled.clone()), |bias| scaled.broadcast_add(bias))
}

/// A convolution that keeps the size of images.
fn same(channels: usize, filters: usize, k: usize, variables: VarBuilder<'_>) -> Conv2d {
    let options = Conv2dConfig { padding: k / 2, ..Conv2dConfig::default() };
    conv2d(channels, filters, k, options, variables).unwrap()
}

fn two_convs(variables: &VarBuilder<'_>) -> Sequential {
    let model = seq().add(same(64, 64, 3, variables.pp("a"))).add_fn(Tensor::relu);
    model.add(same(64, 64, 3, variables.pp("b"))).add_fn(Tensor::relu)
}

fn vision(cases: &Cases) {
    cases.case("conv_3x3_64_on_56x56_batch_8_forward", || {
        let (x, w) = (normal((8, 64, 56, 56)), normal((64, 64, 3, 3)));
        move || drop(x.conv2d(&w, 1, 1, 1, 1).unwrap().mean_all().unwrap())
    });
    cases.case("conv_3x3_64_on_56x56_batch_8_forward_backward", || {
        let [x, w] = [normal((8, 64, 56, 56)), normal((64, 64, 3, 3))].map(|x| Var::from_tensor(&x).unwrap());
        move || {
            let y = x.conv2d(&w, 1, 1, 1, 1).unwrap().sqr().unwrap();
            y.mean_all().unwrap().backward().unwrap();
        }
    });
    cases.case("two_conv_3x3_relu_forward", || {
        let (_, variables) = variables();
        let (model, x) = (two_convs(&variables), normal((8, 64, 56, 56)));
        move || drop(model.forward(&x).unwrap().sqr().unwrap().mean_all().unwrap())
    });
    cases.case("two_conv_3x3_relu_forward_backward", || {
        let (_, variables) = variables();
        let (model, x) = (two_convs(&variables), Var::from_tensor(&normal((8, 64, 56, 56))).unwrap());
        move || {
            let y = model.forward(&x).unwrap().sqr().unwrap();
            y.mean_all().unwrap().backward().unwrap();
        }
    });
    cases.case("lenet_batch_64_sgd", || {
        let (map, variables) = variables();
        let pool = |x: &Tensor| x.relu()?.max_pool2d(2);
        let model = seq().add(same(1, 32, 5, variables.pp("a"))).add_fn(pool);
        let model = model.add(same(32, 64, 5, variables.pp("b"))).add_fn(pool).add_fn(|x| x.flatten_from(1));
        let model = model.add(linear(3136, 512, variables.pp("c")).unwrap()).add_fn(Tensor::relu);
        let model = model.add(linear(512, 10, variables.pp("d")).unwrap());
        classifier(model, sgd(&map), normal((64, 1, 28, 28)))
    });
}

fn kernels(cases: &Cases) {
    for n in MATRICES {
        cases.case(&format!("product_{n}x{n}x{n}"), || {
            let (a, b) = (normal((n, n)), normal((n, n)));
            move || drop(a.matmul(&b).unwrap())
        });
    }
    cases.case("softmax_4096_1024", || {
        let x = normal((4096, 1024));
        move || drop(ops::softmax_last_dim(&x).unwrap())
    });
    cases.case("layer_norm_4096_1024", || {
        let (x, scale, bias) = (normal((4096, 1024)), normal(1024), normal(1024));
        move || drop(ops::layer_norm(&x, &scale, &bias, 1e-5).unwrap())
    });
    cases.case("sum_10_000_000", || {
        let x = normal(10_000_000);
        move || drop(x.sum_all().unwrap())
    });
    cases.case("tanh_chain_10_000_000", || {
        let [a, b, c, d] = [(); 4].map(|()| normal(10_000_000));
        let chain = move || (((&a * &b)? + &c)?.tanh()? * &d)? - &a;
        move || drop(chain().unwrap())
    });
    let at = || Tensor::new(ids(8192, 100_000), CPU).unwrap();
    cases.case("gather_8192_of_100000_x_64", || {
        let (table, at) = (normal((100_000, 64)), at());
        move || drop(table.index_select(&at, 0).unwrap())
    });
    // The gradient of the rows is written by hand: candle's gradients are whole tables.
    cases.case("sgd_of_8192_of_100000_x_64", || {
        let (mut table, at, by) = (normal((100_000, 64)), at(), normal((8192, 64)));
        move || {
            let _loss = (table.index_select(&at, 0).unwrap() * &by).unwrap().sum_all().unwrap();
            table = table.index_add(&at, &by.affine(-0.01, 0.0).unwrap(), 0).unwrap();
        }
    });
}

fn main() {
    let cases = Cases::of("candle 0.11.1");
    control_flow(&cases);
    training(&cases);
    vision(&cases);
    kernels(&cases);
}
