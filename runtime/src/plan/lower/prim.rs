//! Operations of the table: which become views, which get a kernel, which run by their reference meaning.

use super::{Kernel, Lower, Place};
use crate::plan::{Instr, Meaning, Operand, Out, View};
use anabranch_dsl::ir::{Attrs, Node, NodeData};
use anabranch_dsl::ops::OpDef;
use anabranch_dsl::{Result, Type};

impl Lower<'_> {
    /// Lowers an operation of the table.
    pub(super) fn prim(&mut self, node: Node, def: &'static OpDef, attrs: &Attrs) -> Result<Place> {
        let graph = self.graph;
        let data = graph.node(node);
        let is_known = |ty: &Type| ty.element().shape.known().is_some();
        let mut known = data.operands.iter().chain(&data.results).all(|&v| is_known(graph.ty(v)));
        // A value of a known type may have come through a slot.
        for &v in &data.operands {
            known &= !matches!(self.places[v.index()], Some(Place::Slot(_)));
        }
        if !known {
            return self.reference(data, def, attrs);
        }
        if let Some(place) = self.structural(data, def, attrs)? {
            return Ok(place);
        }
        if let Some(place) = self.elementwise(node, def, attrs)? {
            return Ok(place);
        }
        self.reference(data, def, attrs)
    }

    /// Operations that only say where elements are.
    fn structural(&mut self, data: &NodeData, def: &'static OpDef, attrs: &Attrs) -> Result<Option<Place>> {
        let shape = self.graph.ty(data.results[0]).element().shape.known().expect("the shape is known");
        let view = match def.name {
            "broadcast_to" => self.view_of(data, 0)?.broadcast_to(&shape),
            "permute" => self.view_of(data, 0)?.permute(&attrs.indices("axes")),
            "reshape" => {
                let view = self.view_of(data, 0)?;
                match view.reshape(&shape) {
                    Some(view) => view,
                    None => {
                        let copy = self.copied(&view, def.name, data.loc);
                        copy.reshape(&shape).expect("a contiguous tensor has all shapes")
                    }
                }
            }
            _ => return Ok(None),
        };
        Ok(Some(self.tensor_place(view, def.name, data.loc)))
    }

    fn view_of(&mut self, data: &NodeData, i: usize) -> Result<View> {
        match self.operand(data.operands[i])? {
            Operand::View(v) => Ok(v),
            Operand::Slot(s) => panic!("{s:?} where shapes are known"),
        }
    }

    /// Runs an operation by its reference meaning.
    fn reference(&mut self, data: &NodeData, def: &'static OpDef, attrs: &Attrs) -> Result<Place> {
        self.run_kernel(Kernel::Reference, data, def, attrs)
    }

    /// Runs a kernel on all operands, with the result in a new place.
    fn run_kernel(&mut self, kernel: Kernel, data: &NodeData, def: &'static OpDef, attrs: &Attrs) -> Result<Place> {
        let operands = data.operands.iter().map(|&v| self.operand(v)).collect::<Result<Vec<_>>>()?;
        self.run_kernel_on(kernel, operands, data, def, attrs)
    }

    /// Runs a kernel on operands, with the result in a new place.
    fn run_kernel_on(
        &mut self,
        kernel: Kernel,
        operands: Vec<Operand>,
        data: &NodeData,
        def: &'static OpDef,
        attrs: &Attrs,
    ) -> Result<Place> {
        let ty = self.graph.ty(data.results[0]);
        let place = self.new_place(ty);
        let out = match &place {
            Place::Reg(r) => Out::Reg(*r, ty.element().dtype),
            Place::View(v) => Out::View(v.clone()),
            Place::Slot(s) => Out::Slot(*s),
            Place::Stack(_) | Place::Expr(_) => panic!("{} gives a tensor", def.name),
        };
        let meaning = Meaning { def, attrs: attrs.clone() };
        let step = self.add_step(kernel, operands, out, Some(meaning), def.name, data.loc);
        self.emit(Instr::Run(step));
        if self.options.check_finite {
            self.emit(Instr::CheckFinite(step));
        }
        Ok(place)
    }
}
