//! Products of matrices and convolutions: the kernels, the choice of one, and what it is given.

use super::handwritten::{self, MATMUL, PRODUCT_BLOCKS, PRODUCT_REGISTERS, PRODUCT_TILED, PRODUCT_VECTOR};
use super::lower::groups;
use anabranch_dsl::ir::Value;
use anabranch_dsl::ops::attributes::Conv;
use anabranch_dsl::ops::{Prim, prim};
use std::fmt::Write;

/// A kernel of products. A product of few columns is that of few rows, transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProductShader {
    /// Each thread reads its operands from memory: for small products.
    Registers,
    /// The same with more elements for each thread: for large products on software drivers.
    Blocks,
    /// The threads of a workgroup share what they read: for large products on hardware.
    Tiled,
    /// The threads of a workgroup divide the depth: for few rows.
    FewRows,
    /// The same for few columns.
    FewColumns,
}

/// The most rows or columns that are few: those of a thread of `product_vector.wgsl`.
const FEW: usize = 4;

/// The smallest depth that is divided over threads.
const LONG: usize = 128;

/// The smallest depth that is divided over threads if the result has few elements.
const DEEP: usize = 1024;

/// The number of multiplications of a matrix from which on a software driver computes in blocks. It
/// takes two seconds longer to compile them.
const MANY_MULTIPLICATIONS: usize = 1 << 22;

impl ProductShader {
    /// Returns the kernel for a product of `m` rows, `n` columns and depth `k`.
    pub(super) fn choose([m, n, k]: [usize; 3], is_software: bool) -> ProductShader {
        // Software drivers make vectors of threads along a row, so few rows keep them busy.
        if m.min(n) <= FEW && k >= LONG && (m > n || !is_software) {
            if m <= n { ProductShader::FewRows } else { ProductShader::FewColumns }
        } else if m.min(n) > 32 && k >= 16 && !is_software {
            ProductShader::Tiled
        } else if m > 8 && n > 32 && m * n * k >= MANY_MULTIPLICATIONS && is_software {
            ProductShader::Blocks
        } else {
            ProductShader::Registers
        }
    }

    /// Returns the kernel for the product of a convolution. Few of its rows are few filters or
    /// channels, and a great depth is that of the gradient of filters.
    pub(super) fn choose_for_windows([m, n, k]: [usize; 3], is_software: bool) -> ProductShader {
        let is_slow = m.div_ceil(64) * n.div_ceil(64) < 64 && k >= DEEP;
        match ProductShader::choose([m, n, k], is_software) {
            ProductShader::FewColumns => ProductShader::FewRows,
            _ if is_slow => ProductShader::FewRows,
            chosen => chosen,
        }
    }

    /// Returns the text of the kernel, and the rows and columns of a workgroup.
    fn kernel(self) -> (&'static str, [usize; 2]) {
        match self {
            ProductShader::Registers => (PRODUCT_REGISTERS, [32, 32]),
            ProductShader::Blocks => (PRODUCT_BLOCKS, [16, 64]),
            ProductShader::Tiled => (PRODUCT_TILED, [64, 64]),
            ProductShader::FewRows | ProductShader::FewColumns => (PRODUCT_VECTOR, [FEW, 8]),
        }
    }

    /// Returns the workgroups for a batch of products of some rows and columns.
    fn workgroups(self, [batch, rows, columns]: [usize; 3]) -> [u32; 3] {
        let (_, tile) = self.kernel();
        groups(batch * rows.div_ceil(tile[0]) * columns.div_ceil(tile[1]))
    }
}

/// A shader of products, and what it is given.
#[derive(Clone, Debug)]
pub(super) struct ProductDispatch {
    pub(super) code: String,
    pub(super) workgroups: [u32; 3],
    pub(super) parameters: Vec<u32>,
}

/// A batch of matrices in a tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatrixBatch {
    pub(super) tensor: Value,
    pub(super) offset: u32,
    /// The strides of the batch, the rows and the columns.
    pub(super) strides: [u32; 3],
}

impl MatrixBatch {
    fn transposed(self) -> MatrixBatch {
        let [batch, rows, columns] = self.strides;
        MatrixBatch { strides: [batch, columns, rows], ..self }
    }
}

/// A batch of products, of `m` rows, `n` columns and depth `k`.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchedProduct {
    pub(super) batch: usize,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: MatrixBatch,
    pub(super) b: MatrixBatch,
}

impl BatchedProduct {
    /// Returns the shader of a kernel that computes the products of tensors with a text.
    pub(super) fn dispatch(self, kernel: ProductShader, text: &str) -> ProductDispatch {
        let BatchedProduct { batch, m, n, k, a, b } = self;
        let is_swapped = kernel == ProductShader::FewColumns;
        let ([m, n], strides, [a, b]) = match is_swapped {
            true => ([n, m], [1, n], [b.transposed(), a.transposed()]),
            false => ([m, n], [n, 1], [a, b]),
        };
        let sizes = [batch, m, n, k, strides[0], strides[1]].map(|n| n as u32);
        ProductDispatch {
            code: handwritten::product(kernel.kernel().0, MATMUL, is_swapped, text),
            workgroups: kernel.workgroups([batch, m, n]),
            parameters: [&sizes[..], &[a.offset], &a.strides, &[b.offset], &b.strides].concat(),
        }
    }
}

/// A convolution or one of its gradients, as a product for each group.
#[derive(Clone, Debug)]
pub(super) struct ConvProduct {
    pub(super) op: Prim,
    pub(super) how: Conv,
    /// The extents of images, filters and positions, of which the operation computes one.
    pub(super) x: Vec<usize>,
    pub(super) w: Vec<usize>,
    pub(super) y: Vec<usize>,
}

impl ConvProduct {
    /// Returns the rows, columns and depth of the product.
    pub(super) fn sizes(&self) -> [usize; 3] {
        let ConvProduct { op, how, x, w, y } = self;
        let size = |extents: &[usize]| extents[2..].iter().product::<usize>();
        let (filters, channels) = (w[0] / how.groups, w[1]);
        match *op {
            prim::CONV => [filters, x[0] * size(y), channels * size(w)],
            prim::CONV_INPUT_GRAD => [channels, x[0] * size(x), filters * size(w)],
            _ => [filters, channels * size(w), x[0] * size(y)],
        }
    }

    /// Returns the constants of the shaders.
    fn constants(&self) -> String {
        let ConvProduct { how, x, w, y, .. } = self;
        let filters = w[0] / how.groups;
        let mut all = String::new();
        for (name, n) in [
            ("IMAGES", x[0]),
            ("CHANNELS", x[1]),
            ("FILTERS", w[0]),
            ("CHANNELS_OF_FILTER", w[1]),
            ("FILTERS_OF_GROUP", filters),
            ("GROUPS", how.groups),
            ("TERMS", self.sizes()[2]),
        ] {
            writeln!(all, "const {name} = {n}u;").expect("a string takes all text");
        }
        // Padding has two numbers for each axis: before and after.
        let before: Vec<usize> = how.padding.iter().copied().step_by(2).collect();
        for (name, numbers, missing) in [
            ("X", &x[2..], 1),
            ("W", &w[2..], 1),
            ("Y", &y[2..], 1),
            ("STRIDES", &how.strides, 1),
            ("PADDING", &before, 0),
            ("DILATION", &how.dilation, 1),
        ] {
            let [i, j, k] = along_three_axes(numbers, missing);
            writeln!(all, "const {name} = vec3<u32>({i}u, {j}u, {k}u);").expect("a string takes all text");
        }
        all
    }

    /// Returns the shader of a kernel that computes the operation on tensors with a text.
    pub(super) fn dispatch(&self, kernel: ProductShader, text: &str) -> ProductDispatch {
        let [m, n, _] = self.sizes();
        let operands = handwritten::convolution(self.op, &self.constants());
        ProductDispatch {
            // The second operand is read in the order of its memory.
            code: handwritten::product(kernel.kernel().0, &operands, true, text),
            workgroups: kernel.workgroups([self.how.groups, m, n]),
            parameters: Vec::new(),
        }
    }
}

/// Returns numbers of the last axes for three axes, of which the first may be `missing`.
pub(super) fn along_three_axes(numbers: &[usize], missing: usize) -> [usize; 3] {
    let mut all = [missing; 3];
    all[3 - numbers.len()..].copy_from_slice(numbers);
    all
}

#[cfg(test)]
mod tests {
    use super::super::handwritten::PLAIN_PRODUCT;
    use super::super::queue::{GpuQueue, Workgroups};
    use super::*;
    use crate::gpu::adapter::adapter_for_test;
    use anabranch_dsl::TensorType;
    use anabranch_dsl::device::{DeviceKind, DeviceName};
    use anabranch_dsl::{DType, HostTensor};
    use std::sync::Arc;

    const KERNELS: [ProductShader; 5] = [
        ProductShader::Registers,
        ProductShader::Blocks,
        ProductShader::Tiled,
        ProductShader::FewRows,
        ProductShader::FewColumns,
    ];

    #[test]
    fn the_sizes_and_the_driver_choose_the_kernel() {
        use ProductShader::{Blocks, FewColumns, FewRows, Registers, Tiled};
        for (sizes, on_hardware, in_software) in [
            ([512, 512, 512], Tiled, Blocks),
            ([128, 128, 128], Tiled, Registers),
            ([33, 4096, 16], Tiled, Registers),
            ([32, 4096, 512], Registers, Blocks),
            ([4096, 32, 512], Registers, Registers),
            ([512, 512, 8], Registers, Registers),
            ([1, 1000, 512], FewRows, Registers),
            ([1000, 4, 128], FewColumns, FewColumns),
            ([1, 1, 4096], FewRows, Registers),
            ([1, 1000, 100], Registers, Registers),
        ] {
            let chosen = [false, true].map(|is_software| ProductShader::choose(sizes, is_software));
            assert_eq!(chosen, [on_hardware, in_software], "{sizes:?}");
        }
    }

    /// Returns numbers between -1 and 1.
    fn elements(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i * 37 % 101) as f32 / 51.0 - 1.0).collect()
    }

    #[test]
    fn all_kernels_compute_products_of_any_sizes_and_layouts() {
        let Some(adapter) = adapter_for_test() else { return };
        let queue = GpuQueue::open(DeviceName::local(DeviceKind::Gpu, 0), &adapter).unwrap_or_else(|e| panic!("{e}"));
        // Batches, rows, columns and depths, at the edges of tiles and less.
        let sizes = [
            [1, 1, 1, 1],
            [2, 3, 5, 7],
            [1, 64, 64, 16],
            [2, 65, 67, 33],
            [1, 130, 31, 300],
            [3, 1, 77, 500],
            [2, 70, 4, 129],
            [1, 9, 9, 0],
        ];
        for [batch, m, n, k] in sizes {
            for (a_is_transposed, b_is_transposed, gap) in
                [(false, false, 0), (true, false, 3), (false, true, 0), (true, true, 5)]
            {
                let matrices = |i: usize, rows: usize, columns: usize, is_transposed: bool| {
                    let [rows, columns] = [rows, columns].map(|n| n as u32);
                    let [by_row, by_column] = if is_transposed { [1, rows] } else { [columns, 1] };
                    let strides = [rows * columns + gap, by_row, by_column];
                    MatrixBatch { tensor: Value::from_index(i), offset: gap, strides }
                };
                let a = matrices(0, m, k, a_is_transposed);
                let b = matrices(1, k, n, b_is_transposed);
                let product = BatchedProduct { batch, m, n, k, a, b };
                let tensors = [a, b].map(|of| elements(gap as usize + batch * of.strides[0] as usize));
                let expected = naive(product, [&tensors[0], &tensors[1]]);
                for kernel in KERNELS {
                    let found = run(&queue, product, kernel, tensors.clone());
                    assert_eq!(found.len(), expected.len());
                    for (&x, &y) in found.iter().zip(&expected) {
                        assert!((x - y).abs() <= 1e-5 * k as f32, "{kernel:?}: {x}, not {y}, in {product:?}");
                    }
                }
            }
        }
    }

    /// Computes products element by element.
    fn naive(product: BatchedProduct, [a, b]: [&[f32]; 2]) -> Vec<f32> {
        let BatchedProduct { batch, m, n, k, a: of_a, b: of_b } = product;
        let element = |of: MatrixBatch, batch: usize, row: usize, column: usize| {
            let strides = of.strides.map(|n| n as usize);
            of.offset as usize + batch * strides[0] + row * strides[1] + column * strides[2]
        };
        let mut all = Vec::new();
        for (i, row) in (0..batch).flat_map(|i| (0..m).map(move |row| (i, row))) {
            for column in 0..n {
                let term =
                    |j: usize| f64::from(a[element(of_a, i, row, j)]) * f64::from(b[element(of_b, i, j, column)]);
                all.push((0..k).map(term).sum::<f64>() as f32);
            }
        }
        all
    }

    /// Runs a kernel on operands.
    fn run(queue: &GpuQueue, product: BatchedProduct, kernel: ProductShader, operands: [Vec<f32>; 2]) -> Vec<f32> {
        let shared = queue.shared();
        let size = product.batch * product.m * product.n;
        let ProductDispatch { code, workgroups, parameters } = product.dispatch(kernel, PLAIN_PRODUCT);
        let shader = shared.shaders.get(&shared.device, code, [2, 1]).unwrap_or_else(|e| panic!("{e}"));
        let result = queue.call(async move |recorder| {
            let mut tensors = Vec::new();
            for elements in operands {
                tensors.push(recorder.upload(&HostTensor::new([elements.len()], elements))?);
            }
            let result = recorder.tensor(4 * size as u64)?;
            tensors.push(Arc::clone(&result));
            recorder.dispatch(&shader, &tensors, Workgroups::Direct(workgroups), &parameters);
            recorder.download(&[(&result, &TensorType::new(DType::F32, [size]))]).await
        });
        result.unwrap_or_else(|e| panic!("{e}"))[0].data::<f32>().to_vec()
    }
}
