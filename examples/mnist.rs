//! Trains on handwritten digits in IDX files, the format of MNIST, with a trainer: checkpoints,
//! validation, the best model, and logs for TensorBoard.
//!
//! `cargo run --release --example mnist --features train [-- [FILES] [--run FOLDER] [--small]]`
//!
//! `FILES` is a folder with the four files of MNIST, also as `.gz`. Without it, the 1,797 images in
//! `examples/data/digits.bin` are written as such files first. `--run` keeps the run: Ctrl-C ends
//! it after a step, and the same command continues it. Look at it with `tensorboard --logdir
//! FOLDER`.

use anabranch::checkpoints::Goal;
use anabranch::data::{Dataset, ElementRng, idx};
use anabranch::metrics::Accuracy;
use anabranch::nn::{Conv2d, Init, Linear};
use anabranch::optim::{Adam, Optimizer, schedule};
use anabranch::prelude::*;
use anabranch::train::{EarlyStopping, Evaluation, Every, FitEnd, StepMetrics, Trainer};
use std::fs::File;
use std::path::{Path, PathBuf};

const BATCH: usize = 64;

/// The names of the files: images and classes for training, and those for the test.
const FILES: [&str; 4] =
    ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"];

/// An image `[height, width]` and its class.
type Sample = (Array<f32>, i32);

/// A convolutional network, for images of any size.
#[derive(Module)]
struct Network {
    convolutions: [Conv2d; 2],
    hidden: Linear,
    class: Linear,
}

impl Network {
    fn new([height, width]: [usize; 2]) -> Network {
        let init = Init::new(1);
        let same = ConvOptions::new().padding(1);
        Network {
            convolutions: [Conv2d::new(&init, 1, 16, 3, same), Conv2d::new(&init, 16, 32, 3, same)],
            // Two poolings have halved each side twice.
            hidden: Linear::new(&init, 32 * (height / 4) * (width / 4), 64),
            class: Linear::new(&init, 64, 10),
        }
    }

    /// Returns the logits `[batch, 10]` of images `[batch, height, width]`.
    #[graph]
    fn forward(&self, images: Tensor) -> Tensor {
        let mut x = images.unsqueeze(1);
        for convolution in &self.convolutions {
            x = convolution.forward(x).relu().max_pool(PoolOptions::new([2, 2]));
        }
        let features = x.reshape([x.dim(0) as isize, -1]);
        self.class.forward(self.hidden.forward(features).relu())
    }
}

/// All that a step assigns.
#[derive(Module)]
struct Training {
    model: Network,
    adam: Adam,
}

impl Training {
    /// Runs a step, at a rate that falls along a cosine. Returns the loss.
    #[graph]
    fn step(&self, n_steps: i64, images: Tensor, classes: Tensor<i32>) -> Tensor {
        let loss = self.model.forward(images).cross_entropy(classes).mean();
        self.adam.minimize_at(schedule::cosine(self.adam.steps(), 3e-3, 1e-5, n_steps), loss, &self.model);
        loss
    }
}

/// Writes the embedded images as IDX files, a fifth of them for the test.
fn write_digits(folder: &Path) -> anabranch::Result<()> {
    let records = include_bytes!("data/digits.bin").chunks_exact(65).map(<[u8]>::to_vec);
    // Neighbors are of one writer.
    let records: Vec<Vec<u8>> =
        Dataset::new(records.collect::<Vec<_>>()).shuffle(BATCH, 1).iter().collect::<Result<_, _>>()?;
    let (test, train) = records.split_at(records.len() / 5);
    for (i, records) in [(0, train), (2, test)] {
        // From 16 shades to 256.
        let images = records.iter().flat_map(|record| record[..64].iter().map(|&pixel| pixel.saturating_mul(16)));
        let images = Array::new([records.len(), 8, 8], images.collect());
        let classes = Array::new([records.len()], records.iter().map(|record| record[64]).collect());
        for (name, array) in [(FILES[i], images), (FILES[i + 1], classes)] {
            let written = File::create(folder.join(name)).and_then(|mut file| idx::write(&mut file, &array));
            written.unwrap_or_else(|error| panic!("{name} cannot be written: {error}"));
        }
    }
    Ok(())
}

/// Reads two files, of images and of their classes. Returns the size of the images, too.
fn read(folder: &Path, [images, classes]: [&str; 2]) -> anabranch::Result<(Dataset<Sample>, [usize; 2])> {
    let path = |name: &str| {
        let compressed = folder.join(format!("{name}.gz"));
        if compressed.exists() { compressed } else { folder.join(name) }
    };
    let (images, classes) = (idx::read::<u8>(path(images))?, idx::read::<u8>(path(classes))?);
    let &[_, height, width] = images.shape() else { panic!("the images are not [n, height, width]") };
    let sample = |(image, class): (Array<u8>, Array<u8>)| {
        let pixels = image.iter().map(|&pixel| f32::from(pixel) / 255.0).collect();
        (Array::new(image.shape(), pixels), i32::from(class.item()))
    };
    Ok((Dataset::rows((images, classes))?.map(sample), [height, width]))
}

/// Shifts an image by at most one pixel along each axis.
fn shifted((image, class): Sample, rng: &mut ElementRng) -> Sample {
    let (height, width) = (image.shape()[0], image.shape()[1]);
    let [down, right] = [rng.below(3), rng.below(3)];
    let pixel = |i: usize| {
        let (row, column) = ((i / width + down).checked_sub(1)?, (i % width + right).checked_sub(1)?);
        image.get([row, column]).copied()
    };
    let pixels = (0..height * width).map(|i| pixel(i).unwrap_or(0.0)).collect();
    (Array::new([height, width], pixels), class)
}

fn main() -> anabranch::Result<()> {
    let mut args = std::env::args().skip(1);
    let (mut files, mut run, mut small) = (None, None, false);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--small" => small = true,
            "--run" => run = args.next().map(PathBuf::from),
            // `Session::from_args` reads it.
            "--device" => drop(args.next()),
            _ => files = Some(PathBuf::from(arg)),
        }
    }
    let temporary = std::env::temp_dir().join(format!("anabranch-mnist-{}", std::process::id()));
    let files = match files {
        Some(files) => files,
        None => {
            std::fs::create_dir_all(&temporary).unwrap_or_else(|error| panic!("{}: {error}", temporary.display()));
            write_digits(&temporary)?;
            temporary.clone()
        }
    };
    let epochs = if small { 3 } else { 12 };

    let (train, size) = read(&files, [FILES[0], FILES[1]])?;
    let (test, _) = read(&files, [FILES[2], FILES[3]])?;
    let train = train.shuffle(1 << 16, 2).map_random(3, shifted).batch(BATCH).prefetch(1, 4);
    let test = test.batch(BATCH);
    let n_steps = i64::try_from(epochs * train.len().expect("the images are counted")).expect("few steps");

    let training = Training { model: Network::new(size), adam: Adam::new(3e-3) };
    training.adam.prepare(&training.model);
    let (session, accuracy) = (Session::from_args()?, Accuracy::new());
    let step = session.function(|images: Tensor, classes: Tensor<i32>| training.step(n_steps, images, classes))?;
    let update = session.function(|images: Tensor, classes: Tensor<i32>| {
        let logits = training.model.forward(images);
        accuracy.update(logits, classes);
        logits.cross_entropy(classes).mean()
    })?;
    let result = session.function(|| accuracy.result())?;
    let evaluation = Evaluation::new(&test, |(images, classes): (Array<f32>, Array<i32>)| {
        let n = classes.len() as f64;
        Ok(StepMetrics::new().with("loss", update.call((images, classes))?).weight(n))
    });
    let evaluation = evaluation.state(&accuracy).result(|| Ok(StepMetrics::new().with("accuracy", result.call(())?)));

    let outcome = Trainer::new(&session)
        .module("training", &training)
        .folder(run.as_ref().unwrap_or(&temporary.join("run")))
        .settings(&("rate", 3e-3, "epochs", epochs))
        .epochs(epochs)
        .validate(Every::Epochs(1), evaluation)
        .monitor("val/accuracy", Goal::Max)
        .stop_early(EarlyStopping::new().patience(5))
        .restore_best()
        .stop_on_signals()
        .fit(&train, |at, (images, classes)| {
            let number = at.step();
            if let Some(events) = at.events() {
                if number == 0 {
                    events.image(0, "images", images.reshape([images.shape(), &[1]].concat()).host())?;
                    events.graph(&step.graph(&[images.host().ty(), classes.host().ty()])?)?;
                }
                if number % 100 == 0 {
                    for (path, weights) in session.state(&training.model)? {
                        events.histogram(number, &path, &weights)?;
                    }
                }
            }
            step.call((images, classes))
        })?;

    println!("{:?} after {} steps", outcome.end, outcome.step);
    if let Some(best) = outcome.best {
        println!("held-out accuracy {:.1} %, at step {}", 100.0 * best.value, best.step);
    }
    let _ = std::fs::remove_dir_all(temporary);
    match (outcome.end, run) {
        (FitEnd::Signal(signal), _) => std::process::exit(signal.exit_code()),
        (_, Some(run)) => println!("the run is in {}", run.display()),
        (_, None) => println!("give `-- --run FOLDER` to keep the run"),
    }
    Ok(())
}
