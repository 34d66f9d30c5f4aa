//! Fits a logistic regression to images of digits with L-BFGS, in one call: the whole optimization,
//! line searches included, is a staged loop. It ends at a gradient below 1e-9.
//!
//! The 1,797 images of 8 by 8 pixels are those of the example `digits`.
//!
//! `cargo run --release --example lbfgs`

use anabranch::optim::Lbfgs;
use anabranch::prelude::*;

/// The factor of the penalty on the weights, without which there is no minimum: the classes can be
/// separated.
const DECAY: f64 = 1e-3;

#[derive(Module)]
struct Classifier {
    weight: Var<f64>,
    bias: Var<f64>,
}

impl Classifier {
    fn scores(&self, images: Tensor<f64>) -> Tensor<f64> {
        images.matmul(self.weight.get()) + self.bias.get()
    }

    fn loss(&self, images: Tensor<f64>, labels: Tensor<i32>) -> Tensor<f64> {
        self.scores(images).cross_entropy(labels).mean() + self.weight.get().square().sum() * (DECAY / 2.0)
    }
}

/// Returns images `[n, 64]` with pixels from 0 to 1, and their labels.
fn data() -> (Array<f64>, Array<i32>) {
    let records: Vec<&[u8]> = include_bytes!("data/digits.bin").chunks_exact(65).collect();
    let pixels = records.iter().flat_map(|r| r[..64].iter().map(|&p| f64::from(p) / 16.0)).collect();
    let labels = records.iter().map(|r| i32::from(r[64])).collect();
    (Array::new([records.len(), 64], pixels), Array::new([records.len()], labels))
}

fn main() -> anabranch::Result<()> {
    let model = Classifier {
        weight: Var::new("weight", Array::new([64, 10], vec![0.0; 640])),
        bias: Var::new("bias", Array::new([10], vec![0.0; 10])),
    };
    let lbfgs = Lbfgs::new(1000).history(20).gradient_tolerance(1e-9);
    let (images, labels) = data();
    let session = Session::from_args()?;
    let fit = session.function(|x, y| lbfgs.minimize(&model, || model.loss(x, y)))?;
    let right = session.function(|x, y: Tensor<i32>| model.scores(x).argmax(-1).equal(y).cast::<f64>().mean())?;

    let started = std::time::Instant::now();
    let (loss, gradient, evaluations) = fit.call((&images, &labels))?;
    let (loss, gradient) = (loss.item(), gradient.item());
    let seconds = started.elapsed().as_secs_f64();
    let accuracy = right.call((&images, &labels))?.item();
    println!("{evaluations} evaluations in {seconds:.2} s: loss {loss:.9}, largest gradient {gradient:.1e}");
    println!("{:.1} % of the images are recognized", 100.0 * accuracy);
    assert!(gradient <= 1e-9 && accuracy > 0.97, "the minimum was not found");
    Ok(())
}
