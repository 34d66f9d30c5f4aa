use anabranch::prelude::*;

#[graph]
fn f(mut x: Tensor) -> Tensor {
    if x > 1.0 {
        #[cfg(any())]
        return x;
    }
    #[cfg(test)]
    let x = x * 2.0;
    #[cfg(test)]
    fn helper() {}
    x * 3.0
}

fn main() {}
