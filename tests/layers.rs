//! Layers, compared with values computed by hand, and trained as parts of models.

use anabranch::nn::{
    BatchNorm, Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Dropout, GroupNorm, Init,
    LayerNorm, Linear, Mode, MultiHeadAttention, RmsNorm, Rnn,
};
use anabranch::optim::{Adam, Optimizer, Sgd};
use anabranch::prelude::*;
use anabranch::random::Key;
use anabranch::{Array, Module};

type Outcome = anabranch::Result<()>;

#[track_caller]
fn near(given: &[f32], expected: &[f32]) {
    let all = given.len() == expected.len() && given.iter().zip(expected).all(|(g, e)| (g - e).abs() < 1e-5);
    assert!(all, "{given:?} is not {expected:?}");
}

fn array(shape: &[usize], data: impl IntoIterator<Item = f32>) -> Array<f32> {
    Array::new(shape, data.into_iter().collect::<Vec<_>>())
}

fn names<M: Module>(model: &M) -> Vec<String> {
    model.vars().into_iter().map(|(name, _)| name).collect()
}

#[test]
fn a_convolution_is_its_sums_and_a_bias() -> Outcome {
    let layer = Conv1d {
        weight: Var::new("weight", array(&[2, 1, 2], [1.0, -1.0, 0.5, 2.0])),
        bias: Some(Var::new("bias", [0.25, -1.0])),
        options: ConvOptions::new().stride(2).padding_sides([(1, 0)]),
    };
    assert_eq!(names(&layer), ["weight", "bias"]);
    let session = Session::new()?;
    let f = session.function(|x: Tensor| layer.forward(x))?;
    let y = f.call(array(&[1, 1, 4], [1.0, 2.0, 4.0, 8.0]))?;
    assert_eq!(y.shape(), [1, 2, 2]);
    // Windows (0, 1) and (2, 4).
    near(y.as_slice(), &[-0.75, -1.75, 1.0, 8.0]);
    Ok(())
}

#[test]
fn layers_of_all_axes_have_the_extents_of_their_documentation() -> Outcome {
    let init = Init::new(1);
    let (one, two) = (ConvOptions::<1>::new(), ConvOptions::<2>::new());
    let conv1 = Conv1d::new(&init, 4, 6, 3, one.groups(2));
    let conv2 = Conv2d::new(&init, 4, 6, [3, 1], two.same()).without_bias();
    let conv3 = Conv3d::new(&init, 4, 6, 3, ConvOptions::new().padding(1).stride([1, 2, 3]));
    let up1 = ConvTranspose1d::new(&init, 4, 6, 3, one.groups(2).stride(2).output_padding(1));
    let up2 = ConvTranspose2d::new(&init, 4, 6, 3, two.padding(1).stride(2));
    let up3 = ConvTranspose3d::new(&init, 4, 6, 2, ConvOptions::new());
    assert_eq!(names(&conv2), ["weight"]);
    let f = Session::new()?.function(|x: Tensor| {
        let (line, plane, space) = (x.reshape([2, 4, 60]), x.reshape([2, 4, 6, 10]), x.reshape([2, 4, 3, 4, 5]));
        let (a, b, c) = (conv1.forward(line), conv2.forward(plane), conv3.forward(space));
        (a, b, c, up1.forward(line), up2.forward(plane), up3.forward(space))
    })?;
    let (a, b, c, d, e, g) = f.call(init.normal([480], 1.0))?;
    assert_eq!(a.shape(), [2, 6, 58]);
    assert_eq!(b.shape(), [2, 6, 6, 10]);
    assert_eq!(c.shape(), [2, 6, 3, 2, 2]);
    assert_eq!(d.shape(), [2, 6, 122]);
    assert_eq!(e.shape(), [2, 6, 11, 19]);
    assert_eq!(g.shape(), [2, 6, 4, 5, 6]);
    Ok(())
}

/// The inner product of `conv(x)` and `y` is that of `x` and the transposed convolution of `y`.
#[test]
fn a_transposed_convolution_is_the_transpose() -> Outcome {
    let init = Init::new(3);
    let (x, y) = (init.normal([2, 3, 7, 6], 1.0), init.normal([2, 4, 4, 3], 1.0));
    let w = init.normal([4, 3, 3, 2], 1.0);
    let f = Session::new()?.function(|x: Tensor, y: Tensor, w: Tensor| {
        let options = ConvOptions::new().stride(2).padding([1, 0]);
        let there = (x.conv2d(w, options) * y).sum();
        let back = (x * y.conv_transpose2d(w, options)).sum();
        (there, back)
    })?;
    let (there, back) = f.call((&x, &y, &w))?;
    assert!((there.item() - back.item()).abs() < 1e-3, "{there} is not {back}");
    Ok(())
}

#[test]
fn a_filter_is_learned_from_what_it_does() -> Outcome {
    let init = Init::new(5);
    let (wanted, layer) = (
        Conv2d::new(&init, 2, 3, 3, ConvOptions::new().padding(1)),
        Conv2d::new(&init, 2, 3, 3, ConvOptions::new().padding(1)),
    );
    let (session, adam) = (Session::new()?, Adam::new(0.05));
    let step = session.function(|x: Tensor| {
        let loss = (layer.forward(x) - wanted.forward(x)).square().mean();
        adam.minimize(loss, &layer);
        loss
    })?;
    for _ in 0..300 {
        step.call(init.normal([4, 2, 6, 6], 1.0))?;
    }
    let difference = |a: &Var, b: &Var| -> anabranch::Result<f32> {
        let (a, b) = (session.get(a)?, session.get(b)?);
        Ok(a.as_slice().iter().zip(b.as_slice()).fold(0.0, |m, (a, b)| f32::max(m, (a - b).abs())))
    };
    assert!(difference(&layer.weight, &wanted.weight)? < 1e-2);
    Ok(())
}

#[test]
fn batch_normalization_follows_its_formula() -> Outcome {
    let norm = BatchNorm::new(2);
    norm_names(&norm);
    let session = Session::new()?;
    let train = session.function(|x: Tensor| norm.forward(x, Mode::Training))?;
    let evaluate = session.function(|x: Tensor| norm.forward(x, Mode::Evaluation))?;
    // Channel 0 holds 1, 2, 3, 6 and channel 1 holds 0, 0, 4, 4.
    let x = array(&[2, 2, 2], [1.0, 2.0, 0.0, 0.0, 3.0, 6.0, 4.0, 4.0]);
    let root = |variance: f32| (variance + 1e-5).sqrt();
    let (a, b) = (root(3.5), root(4.0));
    let y = train.call(&x)?;
    near(y.as_slice(), &[-2.0 / a, -1.0 / a, -2.0 / b, -2.0 / b, 0.0, 3.0 / a, 2.0 / b, 2.0 / b]);
    near(session.get(&norm.running_mean)?.as_slice(), &[0.3, 0.2]);
    let variances = [0.9 + 0.1 * 14.0 / 3.0, 0.9 + 0.1 * 16.0 / 3.0];
    near(session.get(&norm.running_variance)?.as_slice(), &variances);
    train.call(&x)?;
    near(session.get(&norm.running_mean)?.as_slice(), &[0.57, 0.38]);
    let before = session.get(&norm.running_variance)?.to_vec();
    let y = evaluate.call(array(&[1, 2], [0.57, 1.38]))?;
    near(y.as_slice(), &[0.0, 1.0 / root(before[1])]);
    near(session.get(&norm.running_variance)?.as_slice(), &before);
    Ok(())
}

fn norm_names(norm: &BatchNorm) {
    assert_eq!(names(norm), ["scale", "bias", "running_mean", "running_variance"]);
}

#[test]
fn group_normalization_follows_its_formula() -> Outcome {
    let session = Session::new()?;
    let numbers = |n: usize| (0..n).map(|i| (i * 37 % 11) as f32 * 0.3 - 1.0).collect::<Vec<_>>();
    // Fully connected, sequences and images; one group, two, and one for each channel.
    for (shape, groups) in [(&[3, 4][..], 2), (&[2, 4, 5], 1), (&[2, 4, 3, 2], 2), (&[2, 4, 3, 2], 4)] {
        let norm = GroupNorm::new(groups, 4);
        assert_eq!(names(&norm), ["scale", "bias"]);
        let (scale, bias) = ([0.5f32, 2.0, -1.0, 1.0], [0.1f32, 0.0, 0.3, -0.2]);
        session.set(&norm.scale, scale)?;
        session.set(&norm.bias, bias)?;
        let x = array(shape, numbers(shape.iter().product()));
        let f = session.function(|x: Tensor| norm.forward(x))?;
        let width: usize = shape[2..].iter().product();
        let mut expected = Vec::new();
        for (g, group) in x.as_slice().chunks(4 / groups * width).enumerate() {
            let mean = group.iter().sum::<f32>() / group.len() as f32;
            let variance = group.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / group.len() as f32;
            for (i, x) in group.iter().enumerate() {
                let channel = g % groups * (4 / groups) + i / width;
                expected.push((x - mean) / (variance + 1e-5).sqrt() * scale[channel] + bias[channel]);
            }
        }
        let y = f.call(&x)?;
        assert_eq!(y.shape(), shape);
        near(y.as_slice(), &expected);
        // A batch of any size in one trace, and one without examples.
        let any = session.function(|x: Tensor| norm.forward(x.with_dynamic(0)))?;
        near(any.call(&x)?.as_slice(), &expected);
        let none = [&[0], &shape[1..]].concat();
        assert_eq!(f.call(array(&none, []))?.shape(), none);
    }
    let empty = GroupNorm::new(2, 4);
    let f = session.function(|x: Tensor| empty.forward(x))?;
    assert_eq!(f.call(array(&[2, 4, 0], []))?.shape(), [2, 4, 0]);
    Ok(())
}

#[test]
#[should_panic(expected = "4 channels cannot be divided into 3 groups")]
fn groups_divide_the_channels() {
    GroupNorm::new(3, 4);
}

#[test]
fn root_mean_square_normalization_follows_its_formula() -> Outcome {
    let norm = RmsNorm::new(2);
    let session = Session::new()?;
    session.set(&norm.scale, [1.0, 3.0])?;
    let f = session.function(|x: Tensor| norm.forward(x))?;
    let y = f.call(array(&[2, 2], [3.0, 4.0, 0.0, 0.0]))?;
    let root = (12.5f32 + 1e-5).sqrt();
    near(y.as_slice(), &[3.0 / root, 12.0 / root, 0.0, 0.0]);
    // 16-bit floats are computed in 32 bits: the square of 300 is none of theirs.
    let f = session.function(|x: Tensor| norm.forward(x.cast::<f16>()).cast::<f32>())?;
    let y = f.call(array(&[1, 2], [300.0, -300.0]))?;
    near(y.as_slice(), &[1.0, -3.0]);
    Ok(())
}

#[test]
fn running_statistics_are_not_trained() -> Outcome {
    // With weight decay, an optimizer changes all variables that it trains.
    let (norm, adam) = (BatchNorm::new(1), Adam::new(0.1).weight_decay(0.5));
    let session = Session::new()?;
    let step = session.function(|x: Tensor| {
        let loss = (norm.forward(x, Mode::Training) - 1.0).square().mean();
        adam.minimize(loss, &norm);
        loss
    })?;
    step.call(array(&[2, 1], [2.0, 4.0]))?;
    near(session.get(&norm.running_mean)?.as_slice(), &[0.3]);
    near(session.get(&norm.running_variance)?.as_slice(), &[0.9 + 0.2]);
    assert!(session.get(&norm.bias)?.item() > 0.05);
    Ok(())
}

/// The gradient includes the paths through mean and variance. The gradient is compared with finite
/// differences of the sum of `c * y` for one channel.
#[test]
fn the_gradient_of_batch_normalization_agrees_with_differences() -> Outcome {
    let norm = BatchNorm::new(1);
    let c = [0.3f32, -1.0, 0.7, 2.0];
    let session = Session::new()?;
    let f = session.function(|x: Tensor| {
        let loss = (norm.forward(x, Mode::Training) * tensor(c).reshape([4, 1])).sum();
        (loss, gradients(loss, x))
    })?;
    let x = [0.5f32, 1.5, -0.7, 0.2];
    let at = |x: [f32; 4]| f.call(array(&[4, 1], x));
    let (_, gradient) = at(x)?;
    for i in 0..4 {
        let moved = |h: f32| {
            let mut x = x;
            x[i] += h;
            at(x).map(|(loss, _)| loss.item())
        };
        let slope = (moved(1e-2)? - moved(-1e-2)?) / 2e-2;
        assert!((gradient.as_slice()[i] - slope).abs() < 5e-3, "{gradient} has not {slope} at {i}");
    }
    Ok(())
}

#[test]
fn batch_normalization_says_what_it_cannot_take() -> Outcome {
    let norm = BatchNorm::new(2);
    let session = Session::new()?;
    let f = session.function(|x: Tensor| norm.forward(x, Mode::Training))?;
    let error = f.call(array(&[2], [1.0, 2.0])).expect_err("there are no channels");
    assert!(error.message.contains("no channel axis"), "{error}");
    let error = f.call(array(&[1, 2], [1.0, 2.0])).expect_err("a single element has no variance");
    assert!(error.message.contains("at least 2 elements in a channel"), "{error}");
    Ok(())
}

#[test]
fn normalizations_do_not_broadcast_their_input() -> Outcome {
    let session = Session::new()?;
    let batch = BatchNorm::new(4);
    for mode in [Mode::Training, Mode::Evaluation] {
        let f = session.function(|x: Tensor| batch.forward(x, mode))?;
        for channels in [1, 3] {
            let error = f.call(array(&[2, channels], vec![1.0; 2 * channels])).expect_err("the layer has 4 channels");
            let expected = format!("BatchNorm: the layer has 4 channels, but the input has {channels} at axis 1");
            assert_eq!(error.message, expected);
            assert!(error.loc().expect("a place").file.ends_with("layers.rs"), "{error}");
        }
    }
    let one = BatchNorm::new(1);
    let f = session.function(|x: Tensor| one.forward(x, Mode::Evaluation))?;
    let error = f.call(array(&[1, 3], [1.0, 2.0, 3.0])).expect_err("the layer has a channel");
    assert_eq!(error.message, "BatchNorm: the layer has 1 channels, but the input has 3 at axis 1");
    let layer = LayerNorm::new(3);
    let f = session.function(|x: Tensor| layer.forward(x))?;
    let error = f.call(array(&[2, 1], [1.0, 2.0])).expect_err("the layer has 3 elements");
    assert_eq!(error.message, "LayerNorm: the layer has 3 elements, but the input has 1 at axis 1");
    let layer = RmsNorm::new(3);
    let f = session.function(|x: Tensor| layer.forward(x))?;
    let error = f.call(array(&[3, 1], [1.0, 2.0, 3.0])).expect_err("the layer has 3 elements");
    assert_eq!(error.message, "RmsNorm: the layer has 3 elements, but the input has 1 at axis 1");
    let groups = GroupNorm::new(2, 4);
    let f = session.function(|x: Tensor| groups.forward(x))?;
    let error = f.call(array(&[1, 1, 2], [1.0, 2.0])).expect_err("the layer has 4 channels");
    assert_eq!(error.message, "GroupNorm: the layer has 4 channels, but the input has 1 at axis 1");
    let error = f.call(array(&[1], [1.0])).expect_err("there are no channels");
    assert!(error.message.contains("no channel axis"), "{error}");
    Ok(())
}

#[test]
fn a_plain_cell_is_the_hyperbolic_tangent_of_a_sum() -> Outcome {
    let cell = Rnn::new(&Init::new(1), 1, 1);
    let session = Session::new()?;
    session.set(&cell.weight_input, [[0.5]])?;
    session.set(&cell.weight_state, [[-2.0]])?;
    session.set(&cell.bias, [0.1])?;
    let f = session.function(|x: Tensor| {
        let h = cell.step(x, cell.zero_state(1));
        (h, cell.step(x, h))
    })?;
    let (first, second) = f.call([[1.0]])?;
    near(first.as_slice(), &[0.6f32.tanh()]);
    near(second.as_slice(), &[(0.6 - 2.0 * 0.6f32.tanh()).tanh()]);
    Ok(())
}

/// Computes attention with one head in plain loops.
fn attention(q: &[Vec<f32>], k: &[Vec<f32>], v: &[Vec<f32>], causal: bool) -> Vec<Vec<f32>> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let row = |(i, q): (usize, &Vec<f32>)| {
        let seen = if causal { i + 1 } else { k.len() };
        let e: Vec<f32> = k[..seen].iter().map(|k| (dot(q, k) / (q.len() as f32).sqrt()).exp()).collect();
        let total: f32 = e.iter().sum();
        (0..v[0].len()).map(|j| e.iter().zip(v).map(|(e, v)| e * v[j]).sum::<f32>() / total).collect()
    };
    q.iter().enumerate().map(row).collect()
}

#[test]
fn several_heads_attend_side_by_side() -> Outcome {
    let init = Init::new(7);
    let layer = MultiHeadAttention::new(&init, 4, 2);
    let (x, memory) = (init.normal([1, 3, 4], 1.0), init.normal([1, 5, 4], 1.0));
    let rows = |x: &Array<f32>| x.as_slice().chunks(4).map(<[f32]>::to_vec).collect::<Vec<_>>();
    let linear = |layer: &Linear, x: &[Vec<f32>]| -> Vec<Vec<f32>> {
        let (w, b) = (layer.weight.any().init().data::<f32>(), layer.bias.any().init().data::<f32>());
        x.iter().map(|x| (0..4).map(|j| b[j] + (0..4).map(|i| x[i] * w[4 * i + j]).sum::<f32>()).collect()).collect()
    };
    let expected = |x: &Array<f32>, memory: &Array<f32>, causal: bool| -> Vec<f32> {
        let q = linear(&layer.query, &rows(x));
        let (k, v) = (linear(&layer.key, &rows(memory)), linear(&layer.value, &rows(memory)));
        let half = |x: &[Vec<f32>], h: usize| x.iter().map(|x| x[2 * h..2 * h + 2].to_vec()).collect::<Vec<_>>();
        let heads = [0, 1].map(|h| attention(&half(&q, h), &half(&k, h), &half(&v, h), causal));
        let joined: Vec<Vec<f32>> = (0..q.len()).map(|i| [heads[0][i].clone(), heads[1][i].clone()].concat()).collect();
        linear(&layer.output, &joined).concat()
    };
    let session = Session::new()?;
    let itself = |mask| session.function(|x: Tensor| layer.forward(x, mask))?.call(&x);
    near(itself(AttentionMask::None)?.as_slice(), &expected(&x, &x, false));
    near(itself(AttentionMask::Causal)?.as_slice(), &expected(&x, &x, true));
    let other = session.function(|x: Tensor, memory: Tensor| layer.forward_with(x, memory))?;
    near(other.call((&x, &memory))?.as_slice(), &expected(&x, &memory, false));
    assert_eq!(names(&layer)[..2], ["query.weight", "query.bias"]);
    Ok(())
}

#[test]
fn attention_of_other_lengths_is_not_causal() -> Outcome {
    let f =
        Session::new()?.function(|q: Tensor, k: Tensor| q.scaled_dot_product_attention(k, k, AttentionMask::Causal))?;
    let error = f.call((array(&[1, 2], [1.0, 2.0]), array(&[2, 2], [1.0; 4]))).expect_err("the lengths differ");
    assert_eq!(error.message, "scaled_dot_product_attention: 1 queries, but 2 keys");
    Ok(())
}

#[test]
fn dropout_keeps_the_mean_and_is_the_same_for_a_key() -> Outcome {
    let f = Session::new()?.function(|x: Tensor| {
        let drop = |mode: Mode, seed: u64| Dropout::new(0.25).forward(x, mode, Key::new(seed));
        let (a, b, c) = (drop(Mode::Training, 1), drop(Mode::Training, 1), drop(Mode::Training, 2));
        (a, b, c, drop(Mode::Evaluation, 1), gradients(a.sum(), x))
    })?;
    let x = vec![3.0f32; 4000];
    let (a, b, c, evaluated, gradient) = f.call(&x)?;
    assert!(a == b && a != c);
    assert_eq!(evaluated.as_slice(), x);
    let kept = a.as_slice().iter().filter(|&&y| y != 0.0).count();
    assert!((2900..3100).contains(&kept), "{kept}");
    let same = |(&y, &g): (&f32, &f32)| (y - 3.0 * g).abs() < 1e-5 && (y == 0.0 || (y - 4.0).abs() < 1e-5);
    assert!(a.as_slice().iter().zip(gradient.as_slice()).all(same));
    let error = Session::new()?.function(|x: Tensor| x.dropout(1.0, Key::new(1)))?.call(&x).expect_err("nothing stays");
    assert_eq!(error.message, "dropout: the rate 1 must be at least 0 and less than 1");
    Ok(())
}

#[derive(Module)]
struct Net {
    conv: Conv2d,
    norm: BatchNorm,
    out: Linear,
}

/// A small network with all kinds of layers learns which half of an image is brighter.
#[test]
fn a_convolutional_network_learns() -> Outcome {
    let init = Init::new(11);
    let net = Net {
        conv: Conv2d::new(&init, 1, 4, 3, ConvOptions::new().same()).without_bias(),
        norm: BatchNorm::new(4),
        out: Linear::new(&init, 4 * 9, 2),
    };
    let logits = |x: Tensor, mode: Mode| {
        let h = net.norm.forward(net.conv.forward(x), mode).relu();
        let h = h
            .max_pool(PoolOptions::<2>::new(2))
            .avg_pool(PoolOptions::<2>::new(2).stride(1).padding_sides([(0, 0), (0, 0)]));
        net.out.forward(h.reshape([x.dim(0), 36]))
    };
    let (session, sgd) = (Session::new()?, Sgd::new(0.1));
    let step = session.function(|x: Tensor, labels: Tensor<i32>| {
        let loss = logits(x, Mode::Training).cross_entropy(labels).mean();
        sgd.minimize(loss, &net);
        loss
    })?;
    let classify = session.function(|x: Tensor| logits(x, Mode::Evaluation).argmax(-1))?;
    let batch = |i: usize| {
        let noise = init.normal([16, 1, 8, 8], 0.5);
        let labels: Vec<i32> = (0..16).map(|n| ((n * 7 + i) % 2) as i32).collect();
        let bright = |(p, x): (usize, &f32)| x + if (p % 8 >= 4) == (labels[p / 64] == 1) { 1.0 } else { 0.0 };
        let x: Vec<f32> = noise.as_slice().iter().enumerate().map(bright).collect();
        (array(&[16, 1, 8, 8], x), labels)
    };
    for i in 0..40 {
        let (x, labels) = batch(i);
        step.call((&x, &labels))?;
    }
    let (x, labels) = batch(100);
    let found: Vec<i64> = classify.call(&x)?.as_slice().iter().map(|&c| i64::from(c)).collect();
    let right = found.iter().zip(&labels).filter(|(f, l)| **f == i64::from(**l)).count();
    assert!(right >= 15, "{found:?} is not {labels:?}");
    Ok(())
}

#[test]
fn options_are_in_the_prelude_and_infer_their_axes() -> anabranch::Result<()> {
    let image = |x: Tensor<f64>| x.reshape([1, 1, 2, 4]);
    let x = [1.0, 2.0, 5.0, 6.0, 3.0, 4.0, 7.0, 0.0];
    let largest = eval_with(|x| image(x).max_pool(PoolOptions::new(2)), x)?;
    assert_eq!(largest.as_slice(), [4.0, 7.0]);
    let means = eval_with(|x| image(x).avg_pool(PoolOptions::new([2]).stride(2)), x)?;
    assert_eq!(means.as_slice(), [1.5, 5.5, 3.5, 3.5]);
    let filter = || full([1, 1, 1, 2], 1.0);
    let sums = eval_with(|x| image(x).conv2d(filter(), ConvOptions::new().stride(2)), x)?;
    assert_eq!(sums.as_slice(), [3.0, 11.0]);
    Ok(())
}
