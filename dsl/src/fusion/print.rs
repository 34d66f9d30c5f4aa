//! The text form of a kernel.

use super::{AxisSet, Coord, FusedKernel, StageSource, StageWork};
use crate::ir::{Graph, Op, Value};
use std::fmt::{self, Display, Write};

/// The text form of a kernel of a graph.
///
/// ```text
/// kernel [4096, 1024]
///   in x f32[4096, 1024] at [a0, a1]
///   in g f32[1024] at [a1]
///   s0 f32 [a0, a1] = mul x, g
///   out s1 f32 [a0] = sum of s0 over a1
/// ```
#[derive(Clone, Copy, Debug)]
pub struct KernelText<'a> {
    graph: &'a Graph,
    kernel: &'a FusedKernel,
}

impl FusedKernel {
    /// Returns the text form of the kernel.
    pub fn text<'a>(&'a self, graph: &'a Graph) -> KernelText<'a> {
        KernelText { graph, kernel: self }
    }
}

/// Returns the name of each value: that of the user, or a letter and the index.
fn names(graph: &Graph, letter: char, values: impl Iterator<Item = Value>, taken: &mut Vec<String>) -> Vec<String> {
    let name = |(i, value): (usize, Value)| {
        let is_free = |name: &String| !taken.contains(name);
        let user = graph.value(value).name.map(str::to_owned).filter(is_free);
        let numbered = || (i..).map(|i| format!("{letter}{i}")).find(is_free).expect("some number is free");
        let name = user.unwrap_or_else(numbered);
        taken.push(name.clone());
        name
    };
    values.enumerate().map(name).collect()
}

fn axes(set: AxisSet) -> String {
    set.iter().map(|axis| format!("a{axis}")).collect::<Vec<_>>().join(", ")
}

impl Display for KernelText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KernelText { graph, kernel } = self;
        writeln!(f, "kernel {:?}", kernel.axes)?;
        let mut taken = Vec::new();
        let inputs = names(graph, 'x', kernel.inputs.iter().map(|input| input.value), &mut taken);
        for (input, name) in kernel.inputs.iter().zip(&inputs) {
            let ty = graph.ty(input.value).element();
            let Some(map) = &input.map else {
                writeln!(f, "  in {name} {ty} whole")?;
                continue;
            };
            let mut at = String::new();
            for (i, coord) in map.iter().enumerate() {
                at.push_str(if i > 0 { ", " } else { "" });
                if let Some(indexed) = input.indexed.filter(|indexed| indexed.axis == i) {
                    match indexed.scale {
                        1 => at.push_str(&inputs[indexed.indices]),
                        -1 => write!(at, "-{}", inputs[indexed.indices])?,
                        scale => write!(at, "{scale} {}", inputs[indexed.indices])?,
                    }
                    if *coord == Coord::ZERO {
                        continue;
                    }
                    at.push_str(" + ");
                }
                match (coord.term, coord.offset) {
                    (None, offset) => write!(at, "{offset}")?,
                    (Some((axis, 1)), 0) => write!(at, "a{axis}")?,
                    (Some((axis, 1)), offset) => write!(at, "a{axis} + {offset}")?,
                    (Some((axis, -1)), offset) => write!(at, "{offset} - a{axis}")?,
                    (Some((axis, scale)), 0) => write!(at, "{scale} a{axis}")?,
                    (Some((axis, scale)), offset) => write!(at, "{scale} a{axis} + {offset}")?,
                }
            }
            writeln!(f, "  in {name} {ty} at [{at}]")?;
        }
        let results = kernel.stages.iter().map(|stage| graph.node(stage.node).results[0]);
        let stages = names(graph, 's', results, &mut taken);
        for (i, stage) in kernel.stages.iter().enumerate() {
            let data = graph.node(stage.node);
            let Op::Prim(op, attrs) = &data.op else { return write!(f, "  {} is not a stage", data.op.name()) };
            let source = |source: &StageSource| match *source {
                StageSource::Input(i) => inputs[i].as_str(),
                StageSource::Stage(i) => stages[i].as_str(),
            };
            let sources = stage.sources.iter().map(source).collect::<Vec<_>>().join(", ");
            let out = if kernel.outputs.contains(&i) { "out " } else { "" };
            let dtype = graph.ty(data.results[0]).element().dtype;
            write!(f, "  {out}{} {dtype} [{}] = ", stages[i], axes(stage.along))?;
            match stage.work {
                StageWork::Reduce { over, .. } => writeln!(f, "{} of {sources} over {}", op.name, axes(over))?,
                StageWork::Rowwise { over } => writeln!(f, "{} of {sources} over {}", op.name, axes(over))?,
                _ if attrs.is_empty() => writeln!(f, "{} {sources}", op.name)?,
                _ => writeln!(f, "{} {sources} {{{attrs}}}", op.name)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FuseEverything, Fusion};
    use super::*;

    #[test]
    fn names_in_a_kernel_are_distinct() {
        let text = "graph @f(%x1: f32[2], %0: f32[2]) -> f32[2] { %1 = mul %0, %x1  %s = add %1, %x1  return %s }";
        let graph = Graph::parse(text, "f.ir").unwrap();
        let fusion = Fusion::find(&graph, &FuseEverything);
        let expected = "kernel [2]\n  in x0 f32[2] at [a0]\n  in x1 f32[2] at [a0]\n  \
                        s0 f32 [a0] = mul x0, x1\n  out s f32 [a0] = add s0, x1\n";
        assert_eq!(fusion.kernels()[0].text(&graph).to_string(), expected);
        let text = "graph @f(%x1: f32[2], %0: f32[2]) -> f32[2] { %1 = mul %x1, %0  return %1 }";
        let graph = Graph::parse(text, "f.ir").unwrap();
        let fusion = Fusion::find(&graph, &FuseEverything);
        assert!(fusion.kernels()[0].text(&graph).to_string().contains("mul x1, x2"));
    }
}
