use anabranch::prelude::*;

#[derive(Carry)]
struct Named<'a> {
    value: Tensor,
    #[carry(host)]
    name: &'a str,
    #[carry(host)]
    unit: &'static str,
}

fn main() {}
