//! The check of the invariants of a kernel.

use super::{AxisSet, FusedKernel, StageSource, StageWork};
use crate::ir::{Graph, Op};

impl FusedKernel {
    /// Checks the invariants K1 to K8 of the [module](super).
    ///
    /// # Errors
    /// Returns the invariant that does not hold, and where.
    pub fn verify(&self, graph: &Graph) -> Result<(), String> {
        let shape = |v| graph.ty(v).element().shape.known();
        for (i, input) in self.inputs.iter().enumerate() {
            let Some(extents) = shape(input.value) else { return Err(format!("K3: input {i} has no known shape")) };
            let Some(map) = &input.map else {
                if input.indexed.is_some() {
                    return Err(format!("K8: input {i} is not read by element"));
                }
                continue;
            };
            if map.len() != extents.len() {
                return Err(format!("K3: input {i} has {} axes, but {} coordinates", extents.len(), map.len()));
            }
            for coord in map {
                if coord.term.is_some_and(|(axis, _)| axis >= self.axes.len()) {
                    return Err(format!("K3: input {i} uses an axis that does not exist"));
                }
            }
            let indexed = input.indexed;
            if let Some(indexed) = indexed {
                let indices = self.inputs.get(indexed.indices).filter(|of| of.map.is_some() && of.indexed.is_none());
                if !indices.is_some_and(|of| graph.ty(of.value).element().dtype.is_int()) {
                    return Err(format!("K8: input {i} is not read at integers"));
                }
                if indexed.axis >= extents.len() {
                    return Err(format!("K3: input {i} has no axis {}", indexed.axis));
                }
            }
            for (axis, (coord, &extent)) in map.iter().zip(&extents).enumerate() {
                let reach = indexed.filter(|indexed| indexed.axis == axis).map_or(0, |indexed| {
                    indexed.scale.saturating_mul(isize::try_from(indexed.extent).unwrap_or(isize::MAX) - 1)
                });
                let is_within = |[low, high]: [isize; 2]| {
                    0 <= low.saturating_add(reach.min(0)) && high.saturating_add(reach.max(0)) < extent as isize
                };
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
                        (Some(_), StageWork::Map | StageWork::Reduce { .. } | StageWork::Rowwise { .. }) => {
                            self.input_along(i)
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
            if can_fail && self.has_indexed() {
                return Err(format!("K4: stage {s} can fail and reads at indices"));
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
    use super::super::{Coord, FuseEverything, Fusion, IndexedCoord, KernelInput, KernelStage};
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

    const LOOKUP: &str = "graph @f(%t: f32[9, 4], %ids: i32[6], %x: f32[6, 4]) -> f32[6, 4] {
        %rows = take %t, %ids {axis=0}
        %y = mul %rows, %x
        return %y
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

    /// Changes how a kernel reads at indices.
    fn index(kernel: &mut FusedKernel) -> &mut IndexedCoord {
        kernel.inputs[0].indexed.as_mut().expect("the table is read at indices")
    }

    #[test]
    fn indices_are_integers_that_are_read_by_element() {
        breaks(LOOKUP, "K8", |k| index(k).indices = 1);
        breaks(LOOKUP, "K8", |k| index(k).indices = 0);
        breaks(LOOKUP, "K8", |k| index(k).indices = 3);
        breaks(LOOKUP, "K8", |k| k.inputs[2].map = None);
        breaks(LOOKUP, "K8", |k| k.inputs[0].map = None);
        let graph = Graph::parse(&LOOKUP.replace("f32", "i32"), "f.ir").unwrap();
        let kernel = Fusion::find(&graph, &FuseEverything).kernels()[0].clone();
        let other = Graph::parse(&LOOKUP.replace("f32", "i32").replace("mul", "div"), "f.ir").unwrap();
        assert_eq!(kernel.verify(&graph), Ok(()));
        assert!(kernel.verify(&other).expect_err("a division can fail").starts_with("K4"));
        breaks(LOOKUP, "K1", |k| k.stages[0].along = [1].into_iter().collect());
    }

    #[test]
    fn every_valid_index_is_within_the_extents() {
        breaks(LOOKUP, "K3", |k| index(k).extent = 10);
        breaks(LOOKUP, "K3", |k| index(k).scale = 2);
        breaks(LOOKUP, "K3", |k| index(k).scale = -1);
        breaks(LOOKUP, "K3", |k| index(k).axis = 1);
        breaks(LOOKUP, "K3", |k| index(k).axis = 2);
        breaks(LOOKUP, "K3", |k| k.inputs[0].map = Some(vec![Coord { offset: 1, term: None }, Coord::axis(1)]));
        breaks(LOOKUP, "K3", |k| k.inputs[2].map = Some(vec![Coord::axis(5)]));
    }

    #[test]
    fn a_product_is_the_first_stage() {
        breaks(EPILOGUE, "K7", |k| {
            let product: KernelStage = k.stages[0].clone();
            k.inputs.push(KernelInput::whole(k.inputs[0].value));
            k.stages.push(product);
            k.outputs.push(2);
        });
    }
}
