use anabranch::prelude::*;

#[graph]
fn f(mut x: Tensor, text: &str) -> Result<Tensor, std::num::ParseFloatError> {
    if x > 1.0 {
        x *= text.parse::<f32>()?;
    }
    Ok(x)
}

fn main() {}
