//! The shaders of the folder `shaders/`, each with the text that is put before it.

use anabranch_dsl::DType;
use anabranch_dsl::fusion::functions_to_wgsl;
use anabranch_dsl::ops::{Prim, prim};
use anabranch_dsl::scalars::wgsl::{ENABLE_HALVES, half_to_wgsl};

pub(super) const CHECK: &str = include_str!("../../../shaders/check.wgsl");
pub(super) const CHECK_INDEX: &str = include_str!("../../../shaders/check_index.wgsl");
pub(super) const CHECK_INDICES: &str = include_str!("../../../shaders/check_indices.wgsl");
pub(super) const COPY: &str = include_str!("../../../shaders/copy.wgsl");
pub(super) const CUMSUM: &str = include_str!("../../../shaders/cumsum.wgsl");
pub(super) const FIRST_OCCURRENCES: &str = include_str!("../../../shaders/first_occurrences.wgsl");
pub(super) const GUARD: &str = include_str!("../../../shaders/guard.wgsl");
pub(super) const LIST_RESTORE: &str = include_str!("../../../shaders/list_restore.wgsl");
pub(super) const MATMUL: &str = include_str!("../../../shaders/matmul.wgsl");
pub(super) const PRODUCT_BLOCKS: &str = include_str!("../../../shaders/product_blocks.wgsl");
pub(super) const PRODUCT_REGISTERS: &str = include_str!("../../../shaders/product_registers.wgsl");
pub(super) const PRODUCT_TILED: &str = include_str!("../../../shaders/product_tiled.wgsl");
pub(super) const PRODUCT_VECTOR: &str = include_str!("../../../shaders/product_vector.wgsl");
pub(super) const SEARCH: &str = include_str!("../../../shaders/search.wgsl");

const ADD: &str = include_str!("../../../shaders/add.wgsl");
const CONV: &str = include_str!("../../../shaders/conv.wgsl");
const CONV_INPUT_GRAD: &str = include_str!("../../../shaders/conv_input_grad.wgsl");
const CONV_WEIGHT_GRAD: &str = include_str!("../../../shaders/conv_weight_grad.wgsl");
const CONV_WINDOWS: &str = include_str!("../../../shaders/conv_windows.wgsl");
const COPY_PART: &str = include_str!("../../../shaders/copy_part.wgsl");
const EXTENTS: &str = include_str!("../../../shaders/extents.wgsl");
const GATHER: &str = include_str!("../../../shaders/gather.wgsl");
const INDICES: &str = include_str!("../../../shaders/indices.wgsl");
const LIST_MARK: &str = include_str!("../../../shaders/list_mark.wgsl");
const POOL: &str = include_str!("../../../shaders/pool.wgsl");
const PRODUCT: &str = include_str!("../../../shaders/product.wgsl");
const SCATTER: &str = include_str!("../../../shaders/scatter.wgsl");
const SOFTMAX: &str = include_str!("../../../shaders/softmax.wgsl");
const SUM_TERMS: &str = include_str!("../../../shaders/sum_terms.wgsl");
const UPDATE: &str = include_str!("../../../shaders/update.wgsl");

/// Returns the type `Element` for shaders that only move elements of a type.
fn elements(dtype: DType) -> String {
    if dtype.is_half() { format!("{ENABLE_HALVES}alias Element = u16;\n") } else { "alias Element = u32;\n".to_owned() }
}

/// Returns the shader that copies a tensor with elements of a type into a part of another one.
pub(super) fn copy_part(dtype: DType) -> String {
    [&elements(dtype), COPY_PART].join("\n")
}

/// Returns the shader of the sum of two tensors with elements of a type. That of `bool`s is whether
/// one of them is true.
pub(super) fn add(dtype: DType) -> String {
    if dtype.is_half() {
        let sum = format!("number_of_{dtype}(u32(a)) + number_of_{dtype}(u32(b))");
        let added = format!("fn added(a: Element, b: Element) -> Element {{ return u16({dtype}_of_number({sum})); }}");
        return [&elements(dtype), half_to_wgsl(dtype), &added, ADD].join("\n");
    }
    let (element, sum) = if dtype == DType::Bool { (DType::U32, "a | b") } else { (dtype, "a + b") };
    format!("alias Element = {element};\nfn added(a: Element, b: Element) -> Element {{ return {sum}; }}\n\n{ADD}")
}

/// Returns the shader that adds the terms of the iterations of a loop.
pub(super) fn sum_terms(dtype: DType) -> String {
    // The number that changes no other one.
    let nothing = if dtype == DType::F32 { "-0.0f" } else { "Element(0)" };
    format!("alias Element = {dtype};\nconst NOTHING: Element = {nothing};\n\n{SUM_TERMS}")
}

/// Returns the shader that marks elements of a list, and may fail if they were marked before.
pub(super) fn list_mark(is_first: bool) -> String {
    format!("const IS_FIRST = {is_first};\n\n{LIST_MARK}")
}

/// Returns a shader in which each thread takes a row with elements of a type: [`CUMSUM`] or
/// [`SEARCH`].
pub(super) fn rows(shader: &str, dtype: DType) -> String {
    let is_nan = match dtype {
        DType::F32 => "(bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u",
        _ => "false",
    };
    format!("alias Element = {dtype};\nfn is_nan_element(x: Element) -> bool {{ return {is_nan}; }}\n\n{shader}")
}

/// Returns the shader of a product: [`PRODUCT_REGISTERS`] or another kernel, of operands that are
/// [`MATMUL`] or a [`convolution`]. `text` reads elements of tensors and finishes those of the
/// product. `is_swapped` tells whether the second operand of the operation is the first one of the
/// kernel.
pub(super) fn product(kernel: &str, operands: &str, is_swapped: bool, text: &str) -> String {
    let [a, b] = if is_swapped { [1, 0] } else { [0, 1] };
    let read = format!(
        "fn a_at(i: u32) -> f32 {{ return operand{a}(i); }}\nfn b_at(i: u32) -> f32 {{ return operand{b}(i); }}\n"
    );
    [text, &read, PRODUCT, operands, kernel].join("\n")
}

/// The text of a product of tensors of `f32`, of which nothing else is computed.
#[cfg(test)]
pub(super) const PLAIN_PRODUCT: &str = "\
@group(0) @binding(0) var<storage, read> t0: array<f32>;
@group(0) @binding(1) var<storage, read> t1: array<f32>;
@group(0) @binding(2) var<storage, read_write> t2: array<f32>;

fn operand0(i: u32) -> f32 { return t0[i]; }
fn operand1(i: u32) -> f32 { return t1[i]; }
fn finish(i: u32, s0: f32) { t2[i] = s0; }
";

/// Returns the operands of the product that an operation on windows is, with its constants.
pub(super) fn convolution(op: Prim, constants: &str) -> String {
    let operands = match op {
        prim::CONV => CONV,
        prim::CONV_INPUT_GRAD => CONV_INPUT_GRAD,
        prim::CONV_WEIGHT_GRAD => CONV_WEIGHT_GRAD,
        _ => panic!("`{op}` is no convolution"),
    };
    [EXTENTS, constants, CONV_WINDOWS, operands].join("\n")
}

/// Returns the shader of softmax and of the operations like it.
pub(super) fn softmax() -> String {
    functions_to_wgsl(&[prim::EXP, prim::LOG]) + SOFTMAX
}

/// How the indices of an operation follow from a tensor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Indices {
    /// An index for all rows.
    OneForAllRows,
    /// An index for each element.
    OneForEachElement,
    /// Consecutive indices from a start.
    FromStart,
}

/// Returns the shader that reads elements of a type at indices.
pub(super) fn gather(indices: Indices, dtype: DType) -> String {
    at_indices(indices, &elements(dtype), GATHER)
}

/// Returns the shader that adds elements of a type at indices.
pub(super) fn scatter(indices: Indices, dtype: DType) -> String {
    at_indices(indices, &format!("alias Element = {dtype};\n"), SCATTER)
}

/// Returns the shader that writes elements of a type at indices.
pub(super) fn update(indices: Indices, dtype: DType) -> String {
    at_indices(indices, &elements(dtype), UPDATE)
}

fn at_indices(indices: Indices, elements: &str, shader: &str) -> String {
    format!("{elements}const INDICES = {}u;\n\n{INDICES}\n{shader}", indices as u32)
}

/// Returns the shader of a pooling. `result` is a number in `pool.wgsl`.
pub(super) fn pooling(result: u32) -> String {
    format!("{EXTENTS}\nconst RESULT = {result}u;\n\n{POOL}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use wgpu::naga;

    /// Returns all shaders, with everything that is put before them.
    fn all() -> Vec<String> {
        let mut all = vec![
            CHECK.to_owned(),
            CHECK_INDEX.to_owned(),
            CHECK_INDICES.to_owned(),
            COPY.to_owned(),
            GUARD.to_owned(),
            LIST_RESTORE.to_owned(),
            list_mark(false),
            list_mark(true),
            add(DType::Bool),
            FIRST_OCCURRENCES.to_owned(),
            softmax(),
        ];
        let constants = "
const IMAGES = 1u; const CHANNELS = 6u; const FILTERS = 4u; const CHANNELS_OF_FILTER = 3u; const FILTERS_OF_GROUP = 2u;
const GROUPS = 2u; const TERMS = 0u; const X = vec3<u32>(1u, 5u, 5u); const W = vec3<u32>(1u, 0u, 3u);
const Y = vec3<u32>(1u, 3u, 3u); const STRIDES = vec3<u32>(1u, 1u, 1u); const PADDING = vec3<u32>();
const DILATION = vec3<u32>(1u, 1u, 1u);
";
        let windows = [prim::CONV, prim::CONV_INPUT_GRAD, prim::CONV_WEIGHT_GRAD].map(|op| convolution(op, constants));
        for kernel in [PRODUCT_BLOCKS, PRODUCT_REGISTERS, PRODUCT_TILED, PRODUCT_VECTOR] {
            all.push(product(kernel, MATMUL, false, PLAIN_PRODUCT));
            all.extend(windows.iter().map(|operands| product(kernel, operands, true, PLAIN_PRODUCT)));
        }
        for dtype in [DType::F32, DType::I32, DType::U32] {
            all.extend([add(dtype), sum_terms(dtype)]);
            all.extend([CUMSUM, SEARCH].map(|shader| rows(shader, dtype)));
        }
        all.extend([DType::F16, DType::BF16].map(add));
        all.extend([DType::F32, DType::F16].map(copy_part));
        for indices in [Indices::OneForAllRows, Indices::OneForEachElement, Indices::FromStart] {
            for dtype in [DType::F32, DType::F16] {
                all.extend([gather(indices, dtype), update(indices, dtype)]);
            }
            all.extend([DType::F32, DType::I32].map(|dtype| scatter(indices, dtype)));
        }
        all.extend((0..5).map(pooling));
        all
    }

    #[test]
    fn all_files_of_the_folder_are_valid_shaders() {
        let all = all();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../shaders");
        let paths = fs::read_dir(folder).expect("the folder is in the repository").map(|entry| entry.map(|e| e.path()));
        for path in paths.map(|path| path.expect("the folder can be read")) {
            let text = fs::read_to_string(&path).expect("the file is text");
            assert!(all.iter().any(|shader| shader.contains(&text)), "{} is not checked", path.display());
        }
        for shader in &all {
            let module = naga::front::wgsl::parse_str(shader)
                .unwrap_or_else(|e| panic!("{}\n{shader}", e.emit_to_string(shader)));
            let capabilities = naga::valid::Capabilities::IMMEDIATES | naga::valid::Capabilities::SHADER_INT16;
            let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities);
            validator.validate(&module).unwrap_or_else(|e| panic!("{}\n{shader}", e.emit_to_string(shader)));
        }
    }
}
