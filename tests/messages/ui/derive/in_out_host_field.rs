use anabranch::prelude::*;

struct Config {
    rate: f32,
}

#[derive(InOut)]
struct Batch {
    x: Tensor,
    size: usize,
    config: Config,
}

#[derive(InOut)]
struct Pair(Tensor, Vec<String>);

#[derive(InOut)]
struct Named<'a> {
    x: Tensor,
    name: &'a str,
}

fn main() {}
