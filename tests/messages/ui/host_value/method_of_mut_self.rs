use anabranch::prelude::*;

struct Model {
    width: usize,
}

impl Model {
    fn double(&self, x: Tensor) -> Tensor {
        x * 2.0
    }

    #[graph]
    fn f(&mut self, mut x: Tensor) -> Tensor {
        self.width += 1;
        if x > 0.0 {
            x = self.double(x);
        }
        x
    }
}

fn main() {}
