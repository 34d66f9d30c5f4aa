use anabranch::prelude::*;

#[graph]
struct Model;

fn main() {}
