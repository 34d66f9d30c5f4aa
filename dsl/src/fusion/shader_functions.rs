//! Functions that shaders call: elementwise operations, conversions, random numbers, and the
//! combination of a value of each thread.

use super::wgsl::{NotPrinted, THREADS};
use crate::DType;
use crate::ops::{OpClass, Prim, ScalarForm};
use crate::scalars::wgsl::{half_to_wgsl, type_name};
use std::collections::BTreeMap;

/// The functions of random numbers: the word of a stream at an index.
pub(super) const RANDOM: &str = "\
fn high_product(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let middle = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let rest = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (middle >> 16u) + (rest >> 16u);
}

fn philox(first: vec4<u32>, key: vec2<u32>) -> vec4<u32> {
    var counter = first;
    var round_key = key;
    for (var round = 0u; round < 10u; round++) {
        let high = vec2<u32>(high_product(0xd2511f53u, counter.x), high_product(0xcd9e8d57u, counter.z));
        let low = vec2<u32>(0xd2511f53u * counter.x, 0xcd9e8d57u * counter.z);
        counter = vec4<u32>(high.y ^ counter.y ^ round_key.x, low.y, high.x ^ counter.w ^ round_key.y, low.x);
        round_key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return counter;
}

fn random_word(key: vec2<u32>, index: u32) -> u32 {
    let block = philox(vec4<u32>(index / 4u, 0u, 0u, 0u), key);
    return block[index % 4u];
}
";

/// The word at an index of the key derived from a key and a number of 64 bits.
pub(super) const FOLDED: &str = "\
fn folded_word(key: vec2<u32>, number: vec2<u32>, index: u32) -> u32 {
    let block = philox(vec4<u32>(number, 0u, 1u), key);
    return block[index];
}
";

/// The functions that a shader calls.
#[derive(Default)]
pub(super) struct ShaderFunctions {
    /// The functions by name.
    pub(super) texts: BTreeMap<String, String>,
    /// The operations of the user.
    custom: Vec<Prim>,
}

impl ShaderFunctions {
    /// Adds the conversions of a 16-bit float.
    pub(super) fn add_half(&mut self, dtype: DType) {
        self.texts.entry(format!("number_of_{dtype}")).or_insert_with(|| half_to_wgsl(dtype).to_owned());
    }

    /// Returns the name of the function of an elementwise operation whose last operand has a type.
    pub(super) fn function(&mut self, op: Prim, dtype: DType, result: DType) -> Result<String, NotPrinted> {
        for dtype in [dtype, result] {
            type_name(dtype).ok_or(NotPrinted::Type(dtype))?;
        }
        // The names of a user's operations may have any characters.
        let name = match op.is_registered() {
            true => {
                let known = self.custom.iter().position(|custom| *custom == op);
                let index = known.unwrap_or_else(|| {
                    self.custom.push(op);
                    self.custom.len() - 1
                });
                format!("custom{index}_{dtype}")
            }
            false if matches!(op.class, OpClass::Scalar(ScalarForm::Conversion)) => format!("{result}_of_{dtype}"),
            false => format!("{}_{dtype}", op.name),
        };
        if !self.texts.contains_key(&name) {
            let form = op.scalar_form_to(dtype, result).ok_or(NotPrinted::NoFunction(op, dtype))?;
            let text = form.to_wgsl(&name, op.name).ok_or(NotPrinted::Type(dtype))?;
            self.texts.insert(name.clone(), text);
        }
        Ok(name)
    }

    /// Returns the name of the function that combines a value of each thread of a workgroup.
    pub(super) fn tree(&mut self, combine: &str, ty: &str, threads: usize) -> String {
        let name = format!("tree_{combine}");
        self.add_tree(&format!("{name}(thread: u32, x: {ty})"), [combine, ty], threads, ["thread", "0"], threads)
    }

    /// Returns the name of the function that combines a value of each thread of a row, whose
    /// workgroup computes several rows at once.
    pub(super) fn tree_in_workgroup(&mut self, combine: &str, ty: &str, lanes: usize) -> String {
        let head = format!("tree{lanes}_{combine}(thread: u32, lane: u32, x: {ty})");
        self.add_tree(&head, [combine, ty], THREADS[1], ["lane", "thread - lane"], lanes)
    }

    fn add_tree(
        &mut self,
        head: &str,
        [combine, ty]: [&str; 2],
        threads: usize,
        [lane, first]: [&str; 2],
        lanes: usize,
    ) -> String {
        let partial = format!("partial_{ty}");
        self.texts.insert(partial.clone(), format!("var<workgroup> {partial}: array<{ty}, {threads}>;\n"));
        let text = format!(
            "\
fn {head} -> {ty} {{
    {partial}[thread] = x;
    for (var half = {}u; half > 0u; half >>= 1u) {{
        workgroupBarrier();
        if {lane} < half {{ {partial}[thread] = {combine}({partial}[thread], {partial}[thread + half]); }}
    }}
    workgroupBarrier();
    let result = {partial}[{first}];
    workgroupBarrier();
    return result;
}}
",
            lanes / 2
        );
        let name = head.split('(').next().expect("a function has a name").to_owned();
        self.texts.insert(name.clone(), text);
        name
    }
}
