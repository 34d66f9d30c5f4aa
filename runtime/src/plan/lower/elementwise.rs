//! Elementwise operations: scalar instructions, and fused maps.

use super::{Instr, Lower, Place, Users};
use crate::cpu::kernels::Kernel;
use crate::cpu::kernels::elementwise::{Arg, MAX_OPERANDS, MAX_OPS, Map, MapOp};
use crate::cpu::kernels::functions::{Function, Scalar, function};
use crate::plan::{Meaning, Operand, Out, ScalarOp, View, reg_view};
use anabranch_dsl::ir::{Attrs, Node, NodeData, Op};
use anabranch_dsl::ops::OpDef;
use anabranch_dsl::{DType, Loc, Result};

/// An elementwise expression over views of one shape. The last operation gives its result.
#[derive(Clone, Debug)]
pub(super) struct Expr {
    shape: Vec<usize>,
    operands: Vec<View>,
    ops: Vec<MapOp>,
    /// The last operation, for messages.
    def: &'static OpDef,
    attrs: Attrs,
    loc: Loc,
}

impl Expr {
    fn dtype(&self) -> DType {
        self.ops[self.ops.len() - 1].dtype
    }

    fn add_operand(&mut self, view: View) -> Arg {
        let i = self.operands.iter().position(|v| *v == view).unwrap_or_else(|| {
            self.operands.push(view);
            self.operands.len() - 1
        });
        Arg::Operand(i as u8)
    }

    /// Adds all of another expression; gives the argument that is its result.
    fn add_expr(&mut self, other: Expr) -> Arg {
        let operands: Vec<Arg> = other.operands.into_iter().map(|v| self.add_operand(v)).collect();
        let first = self.ops.len();
        for mut op in other.ops {
            op.args = op.args.map(|a| match a {
                Arg::Operand(i) => operands[i as usize],
                Arg::Result(i) => Arg::Result(first as u8 + i),
            });
            self.ops.push(op);
        }
        Arg::Result(self.ops.len() as u8 - 1)
    }

    /// Whether another expression can be added, and so many operands and one operation besides.
    fn has_room(&self, other: &Expr, operands: usize) -> bool {
        self.operands.len() + other.operands.len() + operands <= MAX_OPERANDS
            && self.ops.len() + other.ops.len() < MAX_OPS
    }
}

/// The elementwise function of a node, if it is one.
fn function_of(graph: &anabranch_dsl::Graph, node: &NodeData) -> Option<Function> {
    let Op::Prim(def, _) = &node.op else {
        return None;
    };
    let dtype = graph.ty(node.operands[0]).element().dtype;
    // The elements that `select` chooses from are its second and third operand.
    let dtype = if def.name == "select" { graph.ty(node.operands[1]).element().dtype } else { dtype };
    function(def.name, dtype, graph.ty(node.results[0]).element().dtype)
}

impl Lower<'_> {
    /// Lowers a node if it is elementwise.
    pub(super) fn elementwise(&mut self, node: Node, def: &'static OpDef, attrs: &Attrs) -> Result<Option<Place>> {
        let graph = self.graph;
        let data = graph.node(node);
        let Some(function) = function_of(graph, data) else {
            return Ok(None);
        };
        let ty = graph.ty(data.results[0]).element();
        let shape = ty.shape.known().expect("called for known shapes");
        if shape.is_empty() {
            return self.scalar(data, function, def, attrs).map(Some);
        }

        let mut expr = Expr { shape, operands: vec![], ops: vec![], def, attrs: attrs.clone(), loc: data.loc };
        let mut args = Vec::new();
        for (i, &v) in data.operands.iter().enumerate() {
            if let Some(j) = data.operands[..i].iter().position(|&w| w == v) {
                args.push(args[j]);
                continue;
            }
            let left = data.operands.len() - i - 1;
            let fuses = matches!(&self.places[v.index()], Some(Place::Expr(e))
                if expr.has_room(e, left) && function.check.is_none());
            args.push(match self.places[v.index()].take() {
                Some(Place::Expr(e)) if fuses => expr.add_expr(*e),
                place => {
                    self.places[v.index()] = place;
                    match self.operand(v)? {
                        Operand::View(view) => expr.add_operand(view),
                        Operand::Slot(_) => panic!("{}: an operand of unknown shape", def.name),
                    }
                }
            });
        }
        let args: [Arg; 3] = std::array::from_fn(|i| args.get(i).copied().unwrap_or(args[0]));
        expr.ops.push(MapOp { function, args, dtype: ty.dtype, name: def.name });

        // A second user would compute it again; a failure must name this node.
        if let Users::Only(user) = self.only_user[data.results[0].index()]
            && function.check.is_none()
            && self.options.fuse
            && !self.options.check_finite
            && let user = graph.node(user)
            && function_of(graph, user).is_some()
            && user.operands.iter().chain(&user.results).all(|&v| graph.ty(v).element().shape.known().is_some())
            && graph.ty(user.results[0]).element().shape == ty.shape
        {
            return Ok(Some(Place::Expr(Box::new(expr))));
        }
        Ok(Some(Place::View(self.materialize(expr))))
    }

    /// Computes an expression into a new buffer.
    pub(super) fn materialize(&mut self, expr: Expr) -> View {
        let out = self.new_buffer(expr.dtype(), expr.shape);
        let operands: Vec<Operand> = expr.operands.into_iter().map(Operand::View).collect();
        let kernel = Kernel::Map(Map::new(expr.ops, &operands, &out));
        let meaning = Meaning { def: expr.def, attrs: expr.attrs };
        let name = expr.def.name;
        let step = self.add_step(kernel, operands, Out::View(out.clone()), Some(meaning), name, expr.loc);
        self.emit(Instr::Run(step));
        if self.options.check_finite {
            self.emit(Instr::CheckFinite(step));
        }
        out
    }

    fn scalar(&mut self, data: &NodeData, function: Function, def: &'static OpDef, attrs: &Attrs) -> Result<Place> {
        let regs = data.operands.iter().map(|&v| self.reg(v)).collect::<Result<Vec<_>>>()?;
        let reg = |i: usize| regs.get(i).copied().unwrap_or(regs[0]);
        let (dst, a, b, c) = (self.new_reg(), reg(0), reg(1), reg(2));
        let needs_step = function.check.is_some() || self.options.check_finite;
        let step = needs_step.then(|| {
            let operand = |(&r, &v)| Operand::View(reg_view(r, self.graph.ty(v).element().dtype));
            let operands = regs.iter().zip(&data.operands).map(operand).collect();
            let meaning = Meaning { def, attrs: attrs.clone() };
            let out = Out::Reg(dst, self.graph.ty(data.results[0]).element().dtype);
            self.add_step(Kernel::Data, operands, out, Some(meaning), def.name, data.loc)
        });
        if let (Some(check), Some(step)) = (function.check, step) {
            self.emit(Instr::Require { valid: check.scalar, a: b, step });
        }
        let instr = match function.scalar {
            Scalar::Unary(f) => Instr::Unary { f, dst, a },
            Scalar::Binary(f) => Instr::Binary { f, dst, a, b },
            Scalar::Select => Instr::Select { dst, a, b, c },
        };
        let operand = data.operands[usize::from(def.name == "select")];
        let [operand, result] = [operand, data.results[0]].map(|v| self.graph.ty(v).element().dtype);
        self.emit_op(instr, ScalarOp { name: def.name, operand, result });
        if let (true, Some(step)) = (self.options.check_finite, step) {
            self.emit(Instr::CheckFinite(step));
        }
        Ok(Place::Reg(dst))
    }
}
