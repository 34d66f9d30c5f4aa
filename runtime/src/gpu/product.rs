//! Products of matrices: the kernels, the choice of one, and what it is given.

use super::handwritten;
use crate::device::gpu_support::PRODUCT_TILE;
use anabranch_dsl::fusion::MAX_WORKGROUPS;
use anabranch_dsl::ir::Value;

/// A kernel of products. A product of few columns is that of few rows, transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProductShader {
    /// Each thread reads its operands from memory: for software drivers and small products.
    Registers,
    /// The threads of a workgroup share what they read: for large products on hardware.
    Tiled,
    /// The threads of a workgroup divide the depth: for few rows.
    FewRows,
    /// The same for few columns.
    FewColumns,
}

/// The most rows or columns that are few: those of a thread of `matmul_vector.wgsl`.
const FEW: usize = 4;

/// The smallest depth that is divided over threads.
const LONG: usize = 128;

impl ProductShader {
    /// Returns the kernel for a product of `m` rows, `n` columns and depth `k`.
    pub(super) fn choose([m, n, k]: [usize; 3], is_software: bool) -> ProductShader {
        let divided = if m <= n { ProductShader::FewRows } else { ProductShader::FewColumns };
        // Software drivers make vectors of threads along a row, so few rows keep them busy.
        let is_slow = m.min(n) <= FEW && k >= LONG && (m > n || !is_software);
        if is_slow && divided.has_workgroups([1, m, n]) {
            divided
        } else if m.min(n) > 32 && k >= 16 && !is_software {
            ProductShader::Tiled
        } else {
            ProductShader::Registers
        }
    }

    /// Returns the shader.
    pub(super) fn shader(self) -> String {
        match self {
            ProductShader::Registers => handwritten::matmul_registers(),
            ProductShader::Tiled => handwritten::matmul_tiled(),
            ProductShader::FewRows | ProductShader::FewColumns => handwritten::matmul_vector(),
        }
    }

    /// Returns the workgroups for a batch of products of `m` rows and `n` columns.
    fn workgroups(self, [batch, m, n]: [usize; 3]) -> [usize; 3] {
        match self {
            ProductShader::Registers => [n.div_ceil(PRODUCT_TILE), m.div_ceil(PRODUCT_TILE), batch],
            ProductShader::Tiled => [n.div_ceil(64), m.div_ceil(64), batch],
            ProductShader::FewRows => [n.div_ceil(8), m.div_ceil(FEW), batch],
            ProductShader::FewColumns => [m.div_ceil(8), n.div_ceil(FEW), batch],
        }
    }

    /// Returns whether every device supports that many workgroups.
    fn has_workgroups(self, sizes: [usize; 3]) -> bool {
        self.workgroups(sizes).iter().all(|&n| n <= MAX_WORKGROUPS)
    }
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
    /// Returns the inputs, workgroups and parameters of a kernel that computes the products.
    pub(super) fn dispatch(self, kernel: ProductShader) -> ([Value; 2], [u32; 3], Vec<u32>) {
        let BatchedProduct { batch, m, n, k, a, b } = self;
        let workgroups = kernel.workgroups([batch, m, n]).map(|n| n as u32);
        let [m, n, k] = [m, n, k].map(|n| n as u32);
        let (sizes, a, b) = match kernel {
            ProductShader::FewColumns => ([n, m, k, 1, n], b.transposed(), a.transposed()),
            _ => ([m, n, k, n, 1], a, b),
        };
        let parameters = [&sizes[..], &[a.offset], &a.strides, &[b.offset], &b.strides].concat();
        ([a.tensor, b.tensor], workgroups, parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::{GpuQueue, Workgroups};
    use super::*;
    use crate::gpu::gpu_adapters;
    use anabranch_dsl::TensorType;
    use anabranch_dsl::device::{DeviceKind, DeviceName};
    use anabranch_dsl::{DType, HostTensor};
    use std::sync::Arc;

    const KERNELS: [ProductShader; 4] =
        [ProductShader::Registers, ProductShader::Tiled, ProductShader::FewRows, ProductShader::FewColumns];

    #[test]
    fn the_sizes_and_the_driver_choose_the_kernel() {
        use ProductShader::{FewColumns, FewRows, Registers, Tiled};
        for (sizes, on_hardware, in_software) in [
            ([512, 512, 512], Tiled, Registers),
            ([33, 4096, 16], Tiled, Registers),
            ([32, 4096, 512], Registers, Registers),
            ([512, 512, 8], Registers, Registers),
            ([1, 1000, 512], FewRows, Registers),
            ([1000, 4, 128], FewColumns, FewColumns),
            ([1, 1, 4096], FewRows, Registers),
            ([1, 1000, 100], Registers, Registers),
            // There are too many columns for a workgroup for each eight of them.
            ([1, 8 * MAX_WORKGROUPS, 128], FewRows, Registers),
            ([1, 8 * MAX_WORKGROUPS + 1, 128], Registers, Registers),
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
        let Some(adapter) = gpu_adapters().into_iter().next() else {
            assert!(std::env::var_os("ANABRANCH_GPU").is_none(), "this machine has no adapter");
            return;
        };
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
        let shader = shared.shaders.get(&shared.device, kernel.shader(), [2, 1]).unwrap_or_else(|e| panic!("{e}"));
        let size = product.batch * product.m * product.n;
        let result = queue.call(async move |recorder| {
            let (inputs, workgroups, parameters) = product.dispatch(kernel);
            let mut tensors = Vec::new();
            for input in inputs {
                let elements = operands[input.index()].clone();
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
