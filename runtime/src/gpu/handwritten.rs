//! The shaders of the folder `shaders/`, each with the text that is put before it.

use anabranch_dsl::DType;
use anabranch_dsl::fusion::functions_to_wgsl;
use anabranch_dsl::ops::prim;

pub(super) const CHECK: &str = include_str!("../../../shaders/check.wgsl");
pub(super) const CHECK_INDEX: &str = include_str!("../../../shaders/check_index.wgsl");
pub(super) const COPY: &str = include_str!("../../../shaders/copy.wgsl");
pub(super) const COPY_PART: &str = include_str!("../../../shaders/copy_part.wgsl");
pub(super) const CUMSUM: &str = include_str!("../../../shaders/cumsum.wgsl");
pub(super) const FIRST_OCCURRENCES: &str = include_str!("../../../shaders/first_occurrences.wgsl");
pub(super) const GUARD: &str = include_str!("../../../shaders/guard.wgsl");
pub(super) const LIST_RESTORE: &str = include_str!("../../../shaders/list_restore.wgsl");
pub(super) const SEARCH: &str = include_str!("../../../shaders/search.wgsl");

const ADD: &str = include_str!("../../../shaders/add.wgsl");
const CONV: &str = include_str!("../../../shaders/conv.wgsl");
const EXTENTS: &str = include_str!("../../../shaders/extents.wgsl");
const GATHER: &str = include_str!("../../../shaders/gather.wgsl");
const INDICES: &str = include_str!("../../../shaders/indices.wgsl");
const LIST_MARK: &str = include_str!("../../../shaders/list_mark.wgsl");
const MATMUL: &str = include_str!("../../../shaders/matmul.wgsl");
const MATMUL_REGISTERS: &str = include_str!("../../../shaders/matmul_registers.wgsl");
const MATMUL_TILED: &str = include_str!("../../../shaders/matmul_tiled.wgsl");
const MATMUL_VECTOR: &str = include_str!("../../../shaders/matmul_vector.wgsl");
const POOL: &str = include_str!("../../../shaders/pool.wgsl");
const SCATTER: &str = include_str!("../../../shaders/scatter.wgsl");
const SOFTMAX: &str = include_str!("../../../shaders/softmax.wgsl");
const SUM_TERMS: &str = include_str!("../../../shaders/sum_terms.wgsl");
const UPDATE: &str = include_str!("../../../shaders/update.wgsl");

/// Returns the shader of the sum of two tensors with elements of a type. That of `bool`s is whether
/// one of them is true.
pub(super) fn add(dtype: DType) -> String {
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

/// Returns the kernel of products without shared memory.
pub(super) fn matmul_registers() -> String {
    format!("{MATMUL}\n{MATMUL_REGISTERS}")
}

/// Returns the kernel of products through shared memory.
pub(super) fn matmul_tiled() -> String {
    format!("{MATMUL}\n{MATMUL_TILED}")
}

/// Returns the kernel of products with few rows.
pub(super) fn matmul_vector() -> String {
    format!("{MATMUL}\n{MATMUL_VECTOR}")
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

/// Returns the shader that reads elements at indices.
pub(super) fn gather(indices: Indices) -> String {
    at_indices(indices, GATHER)
}

/// Returns the shader that adds elements of a type at indices.
pub(super) fn scatter(indices: Indices, dtype: DType) -> String {
    at_indices(indices, &format!("alias Element = {dtype};\n\n{SCATTER}"))
}

/// Returns the shader that writes elements at indices.
pub(super) fn update(indices: Indices) -> String {
    at_indices(indices, UPDATE)
}

fn at_indices(indices: Indices, shader: &str) -> String {
    format!("const INDICES = {}u;\n\n{INDICES}\n{shader}", indices as u32)
}

/// Returns the shader of a convolution. `result` is a number in `conv.wgsl`.
pub(super) fn convolution(result: u32) -> String {
    windows(result, CONV)
}

/// Returns the shader of a pooling. `result` is a number in `pool.wgsl`.
pub(super) fn pooling(result: u32) -> String {
    windows(result, POOL)
}

fn windows(result: u32, shader: &str) -> String {
    format!("{EXTENTS}\nconst RESULT = {result}u;\n\n{shader}")
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
            COPY.to_owned(),
            COPY_PART.to_owned(),
            GUARD.to_owned(),
            LIST_RESTORE.to_owned(),
            list_mark(false),
            list_mark(true),
            add(DType::Bool),
            FIRST_OCCURRENCES.to_owned(),
            softmax(),
            matmul_registers(),
            matmul_tiled(),
            matmul_vector(),
        ];
        for dtype in [DType::F32, DType::I32, DType::U32] {
            all.extend([add(dtype), sum_terms(dtype)]);
            all.extend([CUMSUM, SEARCH].map(|shader| rows(shader, dtype)));
        }
        for indices in [Indices::OneForAllRows, Indices::OneForEachElement, Indices::FromStart] {
            all.extend([gather(indices), update(indices), scatter(indices, DType::F32), scatter(indices, DType::I32)]);
        }
        all.extend((0..3).map(convolution));
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
            let capabilities = naga::valid::Capabilities::IMMEDIATES;
            let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities);
            validator.validate(&module).unwrap_or_else(|e| panic!("{}\n{shader}", e.emit_to_string(shader)));
        }
    }
}
