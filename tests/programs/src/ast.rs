//! Programs as trees.
//!
//! Both texts are printed from one tree, so it has the structure of the language that they share.
//! Every tree of [`generate`](crate::generate), and each smaller tree of [`shrink`](crate::shrink),
//! satisfies Rust's rules of scopes, labels and types; [`check`](crate::check) lists them.

/// The purpose of a program, which determines the element type of its floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckMode {
    /// `f32`, with operations whose results IEEE 754 defines: values are compared bitwise.
    Values,
    /// `f64`, also with functions that each engine rounds differently: values and gradients are
    /// compared approximately.
    Gradients,
}

/// Type of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ty {
    /// `i32`, or a tensor of it.
    Int,
    /// A float of the program.
    Float,
    /// `bool`, or a tensor of it.
    Bool,
    /// `i32` in both texts: known while tracing.
    Host,
}

/// Type of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VarTy {
    /// One value.
    One(Ty),
    /// A tuple.
    Tuple(Vec<Ty>),
}

/// A variable. Several may have the same name, so a number identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// The number, which is different for each `let`.
    pub id: u32,
    /// The name in the text.
    pub name: String,
    /// Type.
    pub ty: VarTy,
    /// Whether it is declared `mut`.
    pub mutable: bool,
}

/// A variable, or a field of a variable that is a tuple.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignee {
    /// The variable.
    pub id: u32,
    /// The name of the variable.
    pub name: String,
    /// The field.
    pub field: Option<usize>,
    /// The type of the value.
    pub ty: Ty,
}

/// Functions of one operand. The operand has the type of the result unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `-x`
    Neg,
    /// `x.abs()`
    Abs,
    /// `!x`
    Not,
    /// `x / (1 + |x|)`, which keeps floats between -1 and 1 and has a derivative everywhere.
    Softsign,
    /// `x.sin()`
    Sin,
    /// `x.tanh()`
    Tanh,
    /// Converts an integer to a float.
    ToFloat,
    /// Converts a float to an integer, rounded towards zero.
    ToInt,
}

/// Binary operators whose operands have the same type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`
    Div,
    /// `%`
    Rem,
    /// The smaller operand.
    Min,
    /// The larger operand.
    Max,
}

/// A label, which identifies the loop of a jump.
pub type LoopId = u32;

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// A literal.
    Int(i32),
    /// A literal.
    Float(f64),
    /// A literal.
    Bool(bool),
    /// A host literal.
    Host(i32),
    /// The value of a variable.
    Get(Assignee),
    /// A host value as an integer of the program.
    FromHost(Box<Expr>),
    /// A function of one operand.
    Unary(Unary, Box<Expr>),
    /// An operator.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// A comparison, by its token.
    Compare(&'static str, Box<Expr>, Box<Expr>),
    /// `a && b` or, if false, `a || b`.
    Logic(bool, Box<Expr>, Box<Expr>),
    /// `if` with a value.
    If(Box<Expr>, Stmts, Stmts),
    /// `match` on an integer with a value.
    Match(Box<Expr>, Vec<(Pattern, Stmts)>, Stmts),
    /// A block with a value.
    Block(Stmts),
    /// A labeled block with a value of this type: its own, or that of a `break`.
    Labeled(LoopId, Ty, Stmts),
    /// A call of a helper, by its number.
    Call(usize, Ty, Vec<Expr>),
    /// `loop` with the value of the `break` that ends it. The second expression is its value when
    /// its iterations are used up.
    Loop(BoundedLoop, Box<Expr>),
}

/// The pattern of a `match` arm.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// `1 | 2`
    Any(Vec<i32>),
    /// `1..=4`
    Range(i32, i32),
    /// `pattern if guard`
    Guarded(Box<Pattern>, Box<Expr>),
}

impl Pattern {
    /// Calls `f` with the guard, if there is one.
    fn parts(&mut self, f: &mut dyn FnMut(ExprOrBlock<'_>)) {
        if let Pattern::Guarded(_, guard) = self {
            f(ExprOrBlock::Expr(guard));
        }
    }
}

/// Statements, with a value if it is the block of an expression that reaches its end.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Stmts {
    /// The statements.
    pub stmts: Vec<Stmt>,
    /// The value.
    pub value: Option<Box<Expr>>,
}

/// A `while` or `loop` with a maximum number of iterations, which the printed text counts.
#[derive(Clone, Debug, PartialEq)]
pub struct BoundedLoop {
    /// The label of the loop.
    pub id: LoopId,
    /// The maximum number of iterations.
    pub trips: i32,
    /// The body.
    pub body: Stmts,
}

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Stmt {
    /// `let x = e;`
    Let(Local, Expr),
    /// `let x;`, and an `if` that initializes it in both arms.
    LetLater(Local, Expr, Stmts, Stmts),
    /// `let (x, y) = (e, f);` or, with a variable that is a tuple, `let t = (e, f);`
    LetTuple(Vec<Local>, Vec<Expr>),
    /// `x = e;`, or `x += e;` with an operator.
    Assign(Assignee, Option<Binary>, Expr),
    /// `(x, y) = (e, f);`
    AssignTuple(Vec<Assignee>, Vec<Expr>),
    /// `if`, `else if` and `else`.
    If(Vec<(Expr, Stmts)>, Option<Stmts>),
    /// `match` on an integer.
    Match(Expr, Vec<(Pattern, Stmts)>, Stmts),
    /// `while`. The flag says whether its condition starts with the count of iterations.
    While(Expr, BoundedLoop, bool),
    /// `loop`
    Loop(BoundedLoop),
    /// `for x in range(low..high)`, or `range(high)` without a lower end.
    Range(LoopId, Local, Option<Expr>, Expr, Stmts),
    /// A host loop `for x in 0..n`.
    HostFor(LoopId, Local, i32, Stmts),
    /// A host `if`.
    HostIf(Expr, Stmts, Option<Stmts>),
    /// `break`, with a value if the loop needs one.
    Break(LoopId, Option<Expr>),
    /// `continue`
    Continue(LoopId),
    /// `return`
    Return(Vec<Expr>),
    /// An inner block.
    Block(Stmts),
    /// A labeled block.
    Labeled(LoopId, Stmts),
}

/// A function.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomFunction {
    /// The name of the function.
    pub name: String,
    /// Parameters; all are mutable.
    pub params: Vec<Local>,
    /// The types of its results: one, or two for a pair.
    pub returns: Vec<Ty>,
    /// The statements, which end without a value.
    pub body: Stmts,
    /// The values that it returns at its end.
    pub result: Vec<Expr>,
}

/// A program: helpers, each of which calls only earlier helpers, and the main function.
///
/// The main function takes two integers, a number of iterations, and two floats, and returns an
/// integer and a float.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomProgram {
    /// The seed of the program.
    pub seed: u64,
    /// The purpose of the program.
    pub kind: CheckMode,
    /// Functions that it calls.
    pub helpers: Vec<RandomFunction>,
    /// The function that is run.
    pub main: RandomFunction,
}

impl Expr {
    /// The type of the value.
    pub fn ty(&self) -> Ty {
        match self {
            Expr::Int(_) | Expr::FromHost(_) => Ty::Int,
            Expr::Float(_) => Ty::Float,
            Expr::Host(_) => Ty::Host,
            Expr::Bool(_) | Expr::Compare(..) | Expr::Logic(..) => Ty::Bool,
            Expr::Get(place) => place.ty,
            Expr::Unary(Unary::ToFloat, _) => Ty::Float,
            Expr::Unary(Unary::ToInt, _) => Ty::Int,
            Expr::Unary(_, x) | Expr::Binary(_, x, _) => x.ty(),
            Expr::If(_, a, b) => value_of_one(a, b),
            Expr::Match(_, arms, default) => {
                let first = arms.iter().map(|(_, b)| b).find(|b| b.value.is_some()).unwrap_or(default);
                value_of_one(first, default)
            }
            Expr::Block(b) => value_of_one(b, b),
            Expr::Call(_, ty, _) | Expr::Labeled(_, ty, _) => *ty,
            Expr::Loop(_, last) => last.ty(),
        }
    }

    /// Returns whether it is a literal or a host value, which needs no conversion next to a tensor.
    pub fn is_plain(&self) -> bool {
        matches!(self, Expr::Int(_) | Expr::Float(_) | Expr::Bool(_) | Expr::Host(_) | Expr::FromHost(_))
    }

    /// Calls `f` with every expression and block directly in this block.
    pub fn parts(&mut self, f: &mut dyn FnMut(ExprOrBlock<'_>)) {
        match self {
            Expr::Int(_) | Expr::Float(_) | Expr::Bool(_) | Expr::Host(_) | Expr::Get(_) => {}
            Expr::FromHost(x) | Expr::Unary(_, x) => f(ExprOrBlock::Expr(x)),
            Expr::Binary(_, x, y) | Expr::Compare(_, x, y) | Expr::Logic(_, x, y) => {
                f(ExprOrBlock::Expr(x));
                f(ExprOrBlock::Expr(y));
            }
            Expr::If(c, a, b) => {
                f(ExprOrBlock::Expr(c));
                f(ExprOrBlock::Block(a));
                f(ExprOrBlock::Block(b));
            }
            Expr::Match(x, arms, default) => {
                f(ExprOrBlock::Expr(x));
                for (pattern, b) in arms {
                    pattern.parts(f);
                    f(ExprOrBlock::Block(b));
                }
                f(ExprOrBlock::Block(default));
            }
            Expr::Block(b) | Expr::Labeled(_, _, b) => f(ExprOrBlock::Block(b)),
            Expr::Call(_, _, args) => args.iter_mut().for_each(|x| f(ExprOrBlock::Expr(x))),
            Expr::Loop(l, last) => {
                f(ExprOrBlock::Expr(last));
                f(ExprOrBlock::Block(&mut l.body));
            }
        }
    }
}

fn value_of_one(a: &Stmts, b: &Stmts) -> Ty {
    let value = a.value.as_ref().or(b.value.as_ref());
    value.expect("one of the blocks of an expression comes to its end").ty()
}

/// An expression or a block in a tree.
#[derive(Debug)]
pub enum ExprOrBlock<'a> {
    /// An expression.
    Expr(&'a mut Expr),
    /// A block.
    Block(&'a mut Stmts),
}

impl Stmt {
    /// Calls `f` with every expression and block directly in this statement.
    pub fn parts(&mut self, f: &mut dyn FnMut(ExprOrBlock<'_>)) {
        match self {
            Stmt::Let(_, x) | Stmt::Assign(_, _, x) => f(ExprOrBlock::Expr(x)),
            Stmt::LetLater(_, c, a, b) => {
                f(ExprOrBlock::Expr(c));
                f(ExprOrBlock::Block(a));
                f(ExprOrBlock::Block(b));
            }
            Stmt::LetTuple(_, xs) | Stmt::AssignTuple(_, xs) | Stmt::Return(xs) => {
                xs.iter_mut().for_each(|x| f(ExprOrBlock::Expr(x)));
            }
            Stmt::If(arms, otherwise) => {
                for (c, b) in arms {
                    f(ExprOrBlock::Expr(c));
                    f(ExprOrBlock::Block(b));
                }
                otherwise.iter_mut().for_each(|b| f(ExprOrBlock::Block(b)));
            }
            Stmt::Match(x, arms, default) => {
                f(ExprOrBlock::Expr(x));
                for (pattern, b) in arms {
                    pattern.parts(f);
                    f(ExprOrBlock::Block(b));
                }
                f(ExprOrBlock::Block(default));
            }
            Stmt::While(c, l, _) => {
                f(ExprOrBlock::Expr(c));
                f(ExprOrBlock::Block(&mut l.body));
            }
            Stmt::Loop(l) => f(ExprOrBlock::Block(&mut l.body)),
            Stmt::Range(_, _, low, high, body) => {
                low.iter_mut().for_each(|x| f(ExprOrBlock::Expr(x)));
                f(ExprOrBlock::Expr(high));
                f(ExprOrBlock::Block(body));
            }
            Stmt::HostFor(_, _, _, body) | Stmt::Block(body) | Stmt::Labeled(_, body) => f(ExprOrBlock::Block(body)),
            Stmt::HostIf(c, a, b) => {
                f(ExprOrBlock::Expr(c));
                f(ExprOrBlock::Block(a));
                b.iter_mut().for_each(|b| f(ExprOrBlock::Block(b)));
            }
            Stmt::Break(_, value) => value.iter_mut().for_each(|x| f(ExprOrBlock::Expr(x))),
            Stmt::Continue(_) => {}
        }
    }

    /// Returns whether the rest of its block is never reached.
    pub fn is_jump(&self) -> bool {
        match self {
            Stmt::Break(..) | Stmt::Continue(_) | Stmt::Return(_) => true,
            Stmt::Block(b) => b.stmts.last().is_some_and(Stmt::is_jump),
            _ => false,
        }
    }
}

impl Stmts {
    /// Returns whether a `break` in this block leaves the loop or block `id`.
    pub fn breaks(&mut self, id: LoopId) -> bool {
        let is_break = |s: &Stmt| matches!(s, Stmt::Break(to, _) if *to == id);
        let mut found = self.stmts.iter().any(is_break);
        self.walk(&mut |p| {
            if let ExprOrBlock::Block(b) = p {
                found |= b.stmts.iter().any(is_break);
            }
        });
        found
    }

    /// Calls `f` with every expression and block in this block, however deep, the outermost first.
    pub fn walk(&mut self, f: &mut dyn FnMut(&mut ExprOrBlock<'_>)) {
        fn part(mut p: ExprOrBlock<'_>, f: &mut dyn FnMut(&mut ExprOrBlock<'_>)) {
            f(&mut p);
            match p {
                ExprOrBlock::Expr(x) => x.parts(&mut |p| part(p, f)),
                ExprOrBlock::Block(b) => inside(b, f),
            }
        }
        fn inside(b: &mut Stmts, f: &mut dyn FnMut(&mut ExprOrBlock<'_>)) {
            for stmt in &mut b.stmts {
                stmt.parts(&mut |p| part(p, f));
            }
            b.value.iter_mut().for_each(|x| part(ExprOrBlock::Expr(x), f));
        }
        inside(self, f);
    }
}

impl RandomProgram {
    /// Returns the helpers and the main function.
    pub fn functions(&mut self) -> impl Iterator<Item = &mut RandomFunction> {
        self.helpers.iter_mut().chain([&mut self.main])
    }

    /// Calls `f` with every block and expression, the outermost first.
    pub fn walk(&mut self, f: &mut dyn FnMut(&mut ExprOrBlock<'_>)) {
        for function in self.functions() {
            f(&mut ExprOrBlock::Block(&mut function.body));
            function.body.walk(f);
            let mut result = Stmts::default();
            for x in &mut function.result {
                result.value = Some(Box::new(std::mem::replace(x, Expr::Int(0))));
                result.walk(f);
                *x = *result.value.take().expect("it was put there");
            }
        }
    }
}
