//! The check of the invariants of a kernel.

use super::access::varies_along;
use super::{AxisSet, FusedKernel, StageSource, StageWork};
use crate::ir::{Graph, Op};

impl FusedKernel {
    /// Checks the invariants K1 to K7 of the [module](super).
    ///
    /// # Errors
    /// Returns the invariant that does not hold, and where.
    pub fn verify(&self, graph: &Graph) -> Result<(), String> {
        let shape = |v| graph.ty(v).element().shape.known();
        for (i, input) in self.inputs.iter().enumerate() {
            let Some(extents) = shape(input.value) else { return Err(format!("K3: input {i} has no known shape")) };
            let Some(map) = &input.map else { continue };
            if map.len() != extents.len() {
                return Err(format!("K3: input {i} has {} axes, but {} coordinates", extents.len(), map.len()));
            }
            for (coord, &extent) in map.iter().zip(&extents) {
                if coord.term.is_some_and(|(axis, _)| axis >= self.axes.len()) {
                    return Err(format!("K3: input {i} uses an axis that does not exist"));
                }
                let is_within = |[low, high]: [isize; 2]| 0 <= low && high < extent as isize;
                if !self.axes.contains(&0) && !coord.range(&self.axes).is_none_or(is_within) {
                    return Err(format!("K3: input {i} is read outside of its extents"));
                }
            }
        }
        let mut is_read = vec![false; self.stages.len()];
        for (s, stage) in self.stages.iter().enumerate() {
            let data = graph.node(stage.node);
            let reduced = if let StageWork::Reduce { over, .. } = stage.work { over } else { AxisSet::default() };
            let rows = if let StageWork::Rowwise { over } = stage.work { over } else { AxisSet::default() };
            let axes = stage.along.union(reduced).union(rows);
            for source in &stage.sources {
                let varies = match *source {
                    StageSource::Input(i) if i >= self.inputs.len() => {
                        return Err(format!("K5: stage {s} reads input {i}, which does not exist"));
                    }
                    StageSource::Stage(i) if i >= s => {
                        return Err(format!("K5: stage {s} reads stage {i}, which is not an earlier one"));
                    }
                    StageSource::Input(i) => match (&self.inputs[i].map, stage.work) {
                        (Some(map), StageWork::Map | StageWork::Reduce { .. } | StageWork::Rowwise { .. }) => {
                            varies_along(map)
                        }
                        (None, StageWork::Product | StageWork::Draw) => AxisSet::default(),
                        _ => return Err(format!("K1: stage {s} does not read input {i} in the way of its work")),
                    },
                    StageSource::Stage(i)
                        if self.stages[i].along.without(reduced) != stage.along && !reduced.is_empty() =>
                    {
                        return Err(format!("K2: stage {s} does not keep the axes of its operand"));
                    }
                    StageSource::Stage(i) => {
                        is_read[i] = true;
                        self.stages[i].along
                    }
                };
                if !varies.is_subset(axes) {
                    return Err(format!("K1: stage {s} reads a value that varies along another axis"));
                }
            }
            if !axes.is_subset(AxisSet::first(self.axes.len())) {
                return Err(format!("K2: stage {s} has an axis that does not exist"));
            }
            if stage.along.without(reduced) != stage.along {
                return Err(format!("K2: stage {s} varies along an axis that it reduces"));
            }
            let Op::Prim(op, _) = &data.op else { return Err(format!("stage {s} is not a primitive operation")) };
            let can_fail = stage.work == StageWork::Map && op.can_fail(graph.ty(data.results[0]).element().dtype);
            if can_fail && self.stages.len() > 1 {
                return Err(format!("K4: stage {s} can fail and is not the only stage"));
            }
            if stage.work == StageWork::Product && s > 0 {
                return Err(format!("K7: stage {s} is a product, but not the first stage"));
            }
            let Some(extents) = shape(data.results[0]) else { return Err(format!("stage {s} has no known shape")) };
            let elements: usize = stage.along.iter().map(|axis| self.axes[axis]).product();
            if elements != extents.iter().product::<usize>() {
                return Err(format!("K2: stage {s} has {elements} elements, but its result has another number"));
            }
        }
        for (o, &stage) in self.outputs.iter().enumerate() {
            if stage >= self.stages.len() {
                return Err(format!("K6: output {o} is stage {stage}, which does not exist"));
            }
            if self.outputs[..o].contains(&stage) {
                return Err(format!("K6: output {o} is the same stage as an earlier one"));
            }
            is_read[stage] = true;
        }
        match is_read.iter().position(|read| !read) {
            Some(stage) => Err(format!("K5: nothing reads stage {stage}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Coord, FuseEverything, Fusion, KernelInput, KernelStage};
    use super::*;

    const SUM_OF_PRODUCT: &str = "graph @f(%x: f32[6, 4], %g: f32[4]) -> f32[6] {
        %b = broadcast_to %g {shape=[6, 4]}
        %y = mul %x, %b
        %s = sum %y {axes=[1], keepdim=false}
        return %s
    }";
    const EPILOGUE: &str = "graph @f(%x: f32[6, 4], %w: f32[4, 5], %y: f32[6, 5]) -> f32[6, 5] {
        %p = matmul %x, %w
        %s = add %p, %y
        return %s
    }";

    /// Asserts that the check finds an invariant that a change of the only kernel breaks.
    #[track_caller]
    fn breaks(text: &str, invariant: &str, change: impl FnOnce(&mut FusedKernel)) {
        let graph = Graph::parse(text, "f.ir").unwrap();
        let [kernel] =
            Fusion::find(&graph, &FuseEverything).kernels().to_vec().try_into().expect("there is one kernel");
        assert_eq!(kernel.verify(&graph), Ok(()));
        let mut broken = kernel;
        change(&mut broken);
        let error = broken.verify(&graph).expect_err("the kernel is broken");
        assert!(error.starts_with(invariant), "{error}");
    }

    #[test]
    fn a_stage_reads_along_its_own_axes() {
        breaks(SUM_OF_PRODUCT, "K1", |k| k.stages[1].work = StageWork::Map);
        breaks(SUM_OF_PRODUCT, "K1", |k| k.inputs[0].map = None);
        breaks(EPILOGUE, "K1", |k| k.inputs[0].map = Some(vec![Coord::axis(0), Coord::ZERO]));
    }

    #[test]
    fn a_reduction_removes_the_axes_that_it_reduces() {
        breaks(SUM_OF_PRODUCT, "K2", |k| k.stages[1].along = AxisSet::first(2));
        breaks(SUM_OF_PRODUCT, "K2", |k| k.axes[0] = 5);
        breaks(SUM_OF_PRODUCT, "K2", |k| k.stages[1].along = AxisSet::default());
    }

    #[test]
    fn coordinates_are_within_the_extents() {
        breaks(SUM_OF_PRODUCT, "K3", |k| k.inputs[1].map = Some(vec![Coord { offset: 1, term: Some((1, 1)) }]));
        breaks(SUM_OF_PRODUCT, "K3", |k| k.inputs[1].map = Some(vec![Coord { offset: 0, term: Some((1, -1)) }]));
        breaks(SUM_OF_PRODUCT, "K3", |k| k.inputs[1].map = Some(vec![Coord::axis(2)]));
        breaks(SUM_OF_PRODUCT, "K3", |k| k.inputs[1].map = Some(vec![]));
    }

    #[test]
    fn an_operation_that_can_fail_is_alone() {
        let text = "graph @f(%x: i32[6], %y: i32[6]) -> i32[6] { %z = mul %x, %y  %s = add %z, %x  return %s }";
        let graph = Graph::parse(text, "f.ir").unwrap();
        let mut kernel = Fusion::find(&graph, &FuseEverything).kernels()[0].clone();
        assert_eq!(kernel.verify(&graph), Ok(()));
        let other = Graph::parse(&text.replace("mul", "div"), "f.ir").unwrap();
        assert!(kernel.verify(&other).expect_err("a division can fail").starts_with("K4"));
        kernel.stages.truncate(1);
        kernel.outputs = vec![0];
        assert_eq!(kernel.verify(&other), Ok(()));
    }

    #[test]
    fn stages_read_earlier_ones_and_are_read() {
        breaks(SUM_OF_PRODUCT, "K5", |k| k.stages[0].sources[0] = StageSource::Stage(1));
        breaks(SUM_OF_PRODUCT, "K5", |k| k.stages[0].sources[0] = StageSource::Input(2));
        breaks(SUM_OF_PRODUCT, "K5", |k| k.outputs.clear());
        breaks(EPILOGUE, "K5", |k| k.stages[1].sources[0] = k.stages[1].sources[1]);
    }

    #[test]
    fn outputs_are_different_stages() {
        breaks(SUM_OF_PRODUCT, "K6", |k| k.outputs.push(1));
        breaks(SUM_OF_PRODUCT, "K6", |k| k.outputs.push(2));
    }

    #[test]
    fn a_product_is_the_first_stage() {
        breaks(EPILOGUE, "K7", |k| {
            let product: KernelStage = k.stages[0].clone();
            k.inputs.push(KernelInput { value: k.inputs[0].value, map: None });
            k.stages.push(product);
            k.outputs.push(2);
        });
    }
}
