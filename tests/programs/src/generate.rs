//! Programs from seeds.
//!
//! Every program ends, is accepted by rustc in both texts, and returns numbers that can be
//! compared:
//!
//! - `while` and `loop` count their iterations, and the count ends them. The bounds of a `range`
//!   are small remainders.
//! - Floats stay between -2 and 2: a value that may be larger is reduced before it is stored.
//!   Integers may wrap.
//! - A divisor is a literal, or is known not to be 0 by an enclosing condition.
//! - Variables that are assigned inside an operand are declared there, since operands are
//!   borrowed while they are computed.
//! - A host variable is assigned only if no tensor decides whether that happens: not in a staged
//!   arm or body below its declaration, and not after a staged jump. No staged jump leaves a host
//!   loop.

use crate::ast::*;
use crate::rng::Rng;

/// The constructs that programs may contain, so that each can be tested separately. Constructs that
/// are not listed are always allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// `break` and `continue`, also with labels, and `loop`.
    pub jumps: bool,
    /// `loop` with a value.
    pub break_value: bool,
    /// `return` before the end.
    pub early_return: bool,
    /// A jump in an arm of an `if` or `match` with a value.
    pub jump_in_value: bool,
    /// `for` over a `range`.
    pub range: bool,
    /// `match` on integers.
    pub matches: bool,
    /// Labeled blocks.
    pub labeled: bool,
    /// Guards in `match`.
    pub guards: bool,
    /// `let x;`, initialized in both arms of an `if`.
    pub let_later: bool,
}

impl Features {
    /// All of them.
    pub fn all() -> Features {
        Features {
            jumps: true,
            break_value: true,
            early_return: true,
            jump_in_value: true,
            range: true,
            matches: true,
            labeled: true,
            guards: true,
            let_later: true,
        }
    }

    /// Returns the features with the given field names, separated by commas.
    ///
    /// # Panics
    /// Panics if a name is unknown.
    pub fn named(names: &str) -> Features {
        let mut features = Features::none();
        for name in names.split(',').filter(|name| !name.is_empty()) {
            let field = match name {
                "jumps" => &mut features.jumps,
                "break_value" => &mut features.break_value,
                "early_return" => &mut features.early_return,
                "jump_in_value" => &mut features.jump_in_value,
                "range" => &mut features.range,
                "matches" => &mut features.matches,
                "let_later" => &mut features.let_later,
                "labeled" => &mut features.labeled,
                "guards" => &mut features.guards,
                other => panic!("there is no feature {other}"),
            };
            *field = true;
        }
        features
    }

    /// Returns no features: programs have `if`, `while`, `&&`, `||`, calls, and host constructs.
    pub fn none() -> Features {
        Features {
            jumps: false,
            break_value: false,
            early_return: false,
            jump_in_value: false,
            range: false,
            matches: false,
            let_later: false,
            labeled: false,
            guards: false,
        }
    }
}

/// Generates the program of a seed.
pub fn program(seed: u64, kind: CheckMode, features: &Features) -> RandomProgram {
    let mut g = Generator {
        rng: Rng::new(seed),
        features,
        kind,
        scope: Vec::new(),
        loops: Vec::new(),
        helpers: Vec::new(),
        returns: Vec::new(),
        staged: 0,
        depth: 0,
        pure_from: None,
        no_jumps: false,
        jumped: false,
        next: 0,
        budget: 0,
    };
    let mut helpers = Vec::new();
    for i in 0..g.rng.below(3) {
        let returns = if g.rng.percent(50) { Ty::Int } else { Ty::Float };
        let budget = g.rng.between(3, 10);
        let helper = g.function(&format!("helper{i}"), &[("p", Ty::Int), ("q", Ty::Float)], &[returns], budget);
        g.helpers.push(returns);
        helpers.push(helper);
    }
    let params = [("a", Ty::Int), ("b", Ty::Int), ("n", Ty::Int), ("x", Ty::Float), ("y", Ty::Float)];
    let budget = g.rng.between(8, 36);
    let main = g.function("main", &params, &[Ty::Int, Ty::Float], budget);
    RandomProgram { seed, kind, helpers, main }
}

/// A declared variable.
struct DeclaredVar {
    var: Local,
    /// The number of staged arms and bodies around it.
    staged: u32,
}

/// A loop around the current position.
struct Around {
    id: LoopId,
    host: bool,
    /// The number of staged arms and bodies around the statements of its body.
    staged: u32,
    /// The type of the value of its `break`s.
    value: Option<Ty>,
    /// Whether it is a labeled block, which has no `continue`.
    is_block: bool,
}

struct Generator<'a> {
    rng: Rng,
    features: &'a Features,
    kind: CheckMode,
    scope: Vec<DeclaredVar>,
    loops: Vec<Around>,
    /// The results of the helpers that may be called.
    helpers: Vec<Ty>,
    /// The results of the current function.
    returns: Vec<Ty>,
    /// The number of staged arms and bodies around the current position.
    staged: u32,
    /// The number of constructs around the current position.
    depth: u32,
    /// In an operand, the index of the first variable that is declared in it.
    pure_from: Option<usize>,
    /// Whether the code must reach its end.
    no_jumps: bool,
    /// Whether this function has a staged jump so far.
    jumped: bool,
    /// The next number of a variable or loop.
    next: u32,
    /// The number of statements that may still be generated.
    budget: i32,
}

/// The bound of stored floats.
const LARGEST: f64 = 2.0;

const NAMES: [&str; 12] = ["c", "d", "e", "i", "j", "k", "r", "s", "t", "u", "v", "w"];
const ORDER: [&str; 6] = ["<", "<=", ">", ">=", "==", "!="];

impl Generator<'_> {
    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn function(&mut self, name: &str, params: &[(&str, Ty)], returns: &[Ty], budget: i32) -> RandomFunction {
        self.scope.clear();
        self.jumped = false;
        self.budget = budget;
        self.returns = returns.to_vec();
        let mut declared = Vec::new();
        for &(name, ty) in params {
            let var = Local { id: self.number(), name: name.to_owned(), ty: VarTy::One(ty), mutable: true };
            self.scope.push(DeclaredVar { var: var.clone(), staged: 0 });
            declared.push(var);
        }
        let mut body = Stmts::default();
        while self.budget > 0 && !body.stmts.last().is_some_and(Stmt::is_jump) {
            self.stmts(&mut body, 3);
        }
        if body.stmts.last().is_some_and(Stmt::is_jump) {
            body.stmts.pop();
        }
        let result = returns.iter().map(|&ty| self.summary(ty)).collect();
        self.scope.clear();
        RandomFunction { name: name.to_owned(), params: declared, returns: returns.to_vec(), body, result }
    }

    /// Generates a value that depends on as many of the variables as possible.
    fn summary(&mut self, ty: Ty) -> Expr {
        let mut sum: Option<Expr> = None;
        for place in self.places(ty, false) {
            let (weight, next) = match ty {
                Ty::Int => (Expr::Int(self.rng.between(1, 9)), Expr::Get(place)),
                _ => (self.float_literal(), Expr::Get(place)),
            };
            let term = binary(Binary::Mul, next, weight);
            sum = Some(match sum {
                None => term,
                Some(sum) => binary(Binary::Add, sum, term),
            });
        }
        let sum = sum.unwrap_or_else(|| self.literal(ty));
        if ty == Ty::Float { Expr::Unary(Unary::Softsign, Box::new(sum)) } else { sum }
    }

    // Variables.

    /// Returns the places of a type that can be read or assigned.
    fn places(&self, ty: Ty, assign: bool) -> Vec<Assignee> {
        let mut places = Vec::new();
        for (i, b) in self.scope.iter().enumerate() {
            if self.scope[i + 1..].iter().any(|later| later.var.name == b.var.name) {
                continue;
            }
            let inside = self.pure_from.is_none_or(|from| i >= from);
            let by_host = ty != Ty::Host || (b.staged == self.staged && !self.jumped);
            if assign && !(b.var.mutable && inside && by_host) {
                continue;
            }
            let place = |field, ty| Assignee { id: b.var.id, name: b.var.name.clone(), field, ty };
            match &b.var.ty {
                VarTy::One(t) if *t == ty => places.push(place(None, ty)),
                VarTy::One(_) => {}
                VarTy::Tuple(tys) => {
                    places.extend((0..tys.len()).filter(|&i| tys[i] == ty).map(|i| place(Some(i), ty)));
                }
            }
        }
        places
    }

    fn place(&mut self, ty: Ty, assign: bool) -> Option<Assignee> {
        let places = self.places(ty, assign);
        // Prefer later variables, which the block is more likely to use.
        let n = places.len();
        (n > 0).then(|| places[self.rng.below(n).max(self.rng.below(n))].clone())
    }

    fn var(&mut self, ty: VarTy) -> Local {
        let mutable = self.rng.percent(75);
        Local { id: self.number(), name: (*self.rng.pick(&NAMES)).to_owned(), ty, mutable }
    }

    fn declare(&mut self, var: &Local) {
        self.scope.push(DeclaredVar { var: var.clone(), staged: self.staged });
    }

    // Expressions.

    fn float_literal(&mut self) -> Expr {
        Expr::Float(f64::from(self.rng.between(-8, 8)) * 0.25)
    }

    fn literal(&mut self, ty: Ty) -> Expr {
        match ty {
            Ty::Int => {
                Expr::Int(if self.rng.percent(85) { self.rng.between(-9, 9) } else { self.rng.between(-99, 99) })
            }
            Ty::Float => self.float_literal(),
            Ty::Bool => Expr::Bool(self.rng.percent(50)),
            Ty::Host => Expr::Host(self.rng.between(0, 5)),
        }
    }

    fn leaf(&mut self, ty: Ty) -> Expr {
        if ty == Ty::Int && self.rng.percent(10) && !self.places(Ty::Host, false).is_empty() {
            return Expr::FromHost(Box::new(self.leaf(Ty::Host)));
        }
        match self.place(ty, false) {
            Some(place) if self.rng.percent(75) => Expr::Get(place),
            _ => self.literal(ty),
        }
    }

    /// Generates an expression whose value may be stored in a variable.
    fn expr(&mut self, ty: Ty, size: u32) -> Expr {
        match ty {
            Ty::Int => self.int(size),
            Ty::Float => {
                let (x, bound) = self.float(size);
                self.tame(x, bound)
            }
            Ty::Bool => self.truth(size),
            Ty::Host => self.host(size),
        }
    }

    /// Generates an operand. The operand assigns nothing that is declared outside it, even if that
    /// is in an enclosing operand.
    fn operand<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let before = (self.pure_from, self.no_jumps);
        self.pure_from = Some(self.scope.len());
        self.no_jumps = true;
        let x = f(self);
        (self.pure_from, self.no_jumps) = before;
        x
    }

    fn int(&mut self, size: u32) -> Expr {
        if self.rng.percent(30) {
            let x = self.operand(|g| g.int_of_any_size(size));
            return binary(Binary::Rem, x, Expr::Int(self.rng.between(5, 30)));
        }
        self.int_of_any_size(size)
    }

    fn int_of_any_size(&mut self, size: u32) -> Expr {
        if size == 0 || self.rng.percent(20) {
            return self.leaf(Ty::Int);
        }
        match self.rng.below(16) {
            0..=8 => {
                let op =
                    *self.rng.pick(&[Binary::Add, Binary::Sub, Binary::Mul, Binary::Add, Binary::Min, Binary::Max]);
                let a = self.operand(|g| g.int(size - 1));
                let b = self.operand(|g| g.int(size - 1));
                binary(op, a, b)
            }
            9 | 10 => {
                let op = *self.rng.pick(&[Binary::Div, Binary::Rem]);
                let a = self.operand(|g| g.int(size - 1));
                let b = Expr::Int(self.rng.between(2, 13));
                binary(op, a, b)
            }
            11 => {
                let op = *self.rng.pick(&[Unary::Neg, Unary::Abs]);
                Expr::Unary(op, Box::new(self.operand(|g| g.int(size - 1))))
            }
            12 => {
                let (x, _) = self.operand(|g| g.float(size - 1));
                Expr::Unary(Unary::ToInt, Box::new(binary(Binary::Mul, x, Expr::Float(8.0))))
            }
            13 => self.guarded_division(),
            _ => self.compound(Ty::Int, size),
        }
    }

    /// `if d != 0 { x / d } else { .. }`
    fn guarded_division(&mut self) -> Expr {
        let Some(divisor) = self.place(Ty::Int, false) else { return self.leaf(Ty::Int) };
        let divisor = Expr::Get(divisor);
        let x = binary(Binary::Rem, self.leaf(Ty::Int), Expr::Int(100));
        let then = Stmts { value: Some(Box::new(binary(Binary::Div, x, divisor.clone()))), ..Stmts::default() };
        let otherwise = Stmts { value: Some(Box::new(self.leaf(Ty::Int))), ..Stmts::default() };
        Expr::If(Box::new(Expr::Compare("!=", Box::new(divisor), Box::new(Expr::Int(0)))), then, otherwise)
    }

    /// Generates a float. Also returns its bound.
    fn float(&mut self, size: u32) -> (Expr, f64) {
        if size == 0 || self.rng.percent(20) {
            return (self.leaf(Ty::Float), LARGEST);
        }
        let (a, p) = self.operand(|g| g.float(size - 1));
        match self.rng.below(16) {
            0..=3 => {
                let (b, q) = self.operand(|g| g.float(size - 1));
                (binary(*self.rng.pick(&[Binary::Add, Binary::Sub]), a, b), p + q)
            }
            4..=6 => {
                let (b, q) = self.operand(|g| g.float(size - 1));
                (binary(Binary::Mul, a, b), p * q)
            }
            7 => {
                let (b, q) = self.operand(|g| g.float(size - 1));
                (binary(*self.rng.pick(&[Binary::Min, Binary::Max]), a, b), p.max(q))
            }
            8 => {
                // The divisor is at least 1.
                let (b, _) = self.operand(|g| g.float(size - 1));
                let b = binary(Binary::Add, Expr::Unary(Unary::Abs, Box::new(b)), Expr::Float(1.0));
                (binary(Binary::Div, a, b), p)
            }
            9 => {
                let divisor = f64::from(self.rng.between(3, 7)) * 0.25;
                (binary(Binary::Rem, a, Expr::Float(divisor)), divisor)
            }
            10 => (Expr::Unary(*self.rng.pick(&[Unary::Neg, Unary::Abs]), Box::new(a)), p),
            11 => {
                let x = self.operand(|g| g.int(size - 1));
                let x = binary(Binary::Rem, x, Expr::Int(5));
                (binary(Binary::Mul, Expr::Unary(Unary::ToFloat, Box::new(x)), Expr::Float(0.25)), 1.0)
            }
            12 | 13 => {
                let op = match self.kind {
                    CheckMode::Values => Unary::Softsign,
                    CheckMode::Gradients => *self.rng.pick(&[Unary::Softsign, Unary::Sin, Unary::Tanh]),
                };
                (Expr::Unary(op, Box::new(a)), 1.0)
            }
            _ => (self.compound(Ty::Float, size), LARGEST),
        }
    }

    /// Reduces a float to the bound of stored floats.
    fn tame(&mut self, x: Expr, bound: f64) -> Expr {
        if bound <= LARGEST {
            return x;
        }
        match self.rng.below(4) {
            0 if bound <= 4.0 => binary(Binary::Mul, x, Expr::Float(0.5)),
            1 => binary(Binary::Rem, x, Expr::Float(1.5)),
            2 => {
                let x = binary(Binary::Min, x, Expr::Float(1.75));
                binary(Binary::Max, x, Expr::Float(-1.25))
            }
            _ => Expr::Unary(Unary::Softsign, Box::new(x)),
        }
    }

    fn truth(&mut self, size: u32) -> Expr {
        if size == 0 {
            return match self.place(Ty::Bool, false) {
                Some(place) if self.rng.percent(50) => Expr::Get(place),
                _ if self.rng.percent(3) => Expr::Bool(self.rng.percent(50)),
                _ => self.comparison(0),
            };
        }
        match self.rng.below(12) {
            0..=6 => self.comparison(size - 1),
            7 | 8 => {
                let and = self.rng.percent(50);
                let left = self.operand(|g| g.truth(size - 1));
                let right = self.right_side(size - 1);
                Expr::Logic(and, Box::new(left), Box::new(right))
            }
            9 => Expr::Unary(Unary::Not, Box::new(self.operand(|g| g.truth(size - 1)))),
            10 => {
                // The operator is lazy; otherwise the division would fail.
                let Some(divisor) = self.place(Ty::Int, false) else { return self.comparison(0) };
                let divisor = Expr::Get(divisor);
                let x = binary(Binary::Rem, self.leaf(Ty::Int), Expr::Int(100));
                let quotient = binary(Binary::Div, x, divisor.clone());
                let limit = Expr::Int(self.rng.between(-3, 9));
                let and = self.rng.percent(50);
                let guard = Expr::Compare(if and { "!=" } else { "==" }, Box::new(divisor), Box::new(Expr::Int(0)));
                let right = Expr::Compare(">", Box::new(quotient), Box::new(limit));
                Expr::Logic(and, Box::new(guard), Box::new(right))
            }
            _ => self.truth(0),
        }
    }

    /// Generates the right side of `&&` or `||`, sometimes a block with an assignment.
    fn right_side(&mut self, size: u32) -> Expr {
        if self.pure_from.is_some() || self.depth > 3 || !self.rng.percent(30) {
            return self.operand(|g| g.truth(size));
        }
        let no_jumps = std::mem::replace(&mut self.no_jumps, true);
        let block = self.arm(2, Some(Ty::Bool));
        self.no_jumps = no_jumps;
        Expr::Block(block)
    }

    fn comparison(&mut self, size: u32) -> Expr {
        let (op, a, b) = if self.rng.percent(65) {
            let op = *self.rng.pick(&ORDER);
            (op, self.operand(|g| g.int(size)), self.operand(|g| g.int(size)))
        } else {
            let op = *self.rng.pick(&ORDER[..4]);
            (op, self.operand(|g| g.float(size).0), self.operand(|g| g.float(size).0))
        };
        Expr::Compare(op, Box::new(a), Box::new(b))
    }

    fn host(&mut self, size: u32) -> Expr {
        let leaf = self.leaf(Ty::Host);
        if size == 0 || self.rng.percent(40) {
            return leaf;
        }
        let (other, most) = (self.host(size - 1), self.rng.between(2, 7));
        let op = *self.rng.pick(&[Binary::Add, Binary::Mul]);
        binary(Binary::Rem, binary(op, leaf, other), Expr::Host(most))
    }

    fn host_condition(&mut self) -> Expr {
        let left = self.leaf(Ty::Host);
        let right = Expr::Host(self.rng.between(0, 4));
        let order: &&str = self.rng.pick(&ORDER);
        Expr::Compare(order, Box::new(left), Box::new(right))
    }

    /// Generates an expression with blocks, or a call.
    fn compound(&mut self, ty: Ty, size: u32) -> Expr {
        if self.depth > 3 || self.budget <= 0 {
            return self.leaf(ty);
        }
        let fitting: Vec<usize> = (0..self.helpers.len()).filter(|&i| self.helpers[i] == ty).collect();
        match self.rng.below(10) {
            0..=2 => {
                let c = self.truth(size.min(2));
                let mut a = self.arm(2, Some(ty));
                let b = self.arm(2, Some(ty));
                if a.value.is_none() && b.value.is_none() {
                    a.stmts.pop();
                    a.value = Some(Box::new(self.literal(ty)));
                }
                Expr::If(Box::new(c), a, b)
            }
            3 | 4 if self.features.matches => {
                let x = self.operand(|g| g.scrutinee());
                let arms: Vec<_> = self.patterns().into_iter().map(|p| (p, self.arm(1, Some(ty)))).collect();
                let mut default = self.arm(1, Some(ty));
                if default.value.is_none() {
                    default.stmts.pop();
                    default.value = Some(Box::new(self.literal(ty)));
                }
                Expr::Match(Box::new(x), arms, default)
            }
            5 => {
                let mut block = self.block(2, Some(ty));
                if block.value.is_none() {
                    block.stmts.pop();
                    block.value = Some(Box::new(self.literal(ty)));
                }
                Expr::Block(block)
            }
            6 if self.features.break_value && self.pure_from.is_none() && !self.no_jumps => {
                let last = self.operand(|g| g.expr(ty, 1));
                Expr::Loop(self.repeated(Some(ty)), Box::new(last))
            }
            7 if self.features.labeled && self.pure_from.is_none() && !self.no_jumps => {
                let (id, mut block) = self.labeled(Some(ty));
                if block.value.is_none() && !block.breaks(id) {
                    // Nothing else would determine its type.
                    block.stmts.pop();
                    block.value = Some(Box::new(self.literal(ty)));
                }
                Expr::Labeled(id, ty, block)
            }
            _ if !fitting.is_empty() => {
                let helper = *self.rng.pick(&fitting);
                let int = self.operand(|g| g.int(1));
                let float = self.operand(|g| g.expr(Ty::Float, 1));
                Expr::Call(helper, ty, vec![int, float])
            }
            _ => self.leaf(ty),
        }
    }

    fn scrutinee(&mut self) -> Expr {
        let x = self.int(1);
        if x.is_plain() || self.rng.percent(60) { binary(Binary::Rem, self.leaf_var(), Expr::Int(6)) } else { x }
    }

    /// Generates an integer variable.
    fn leaf_var(&mut self) -> Expr {
        self.place(Ty::Int, false).map_or(Expr::Int(3), Expr::Get)
    }

    fn patterns(&mut self) -> Vec<Pattern> {
        let mut patterns = Vec::new();
        let mut low = self.rng.between(-3, 1);
        for _ in 0..self.rng.between(1, 4) {
            match self.rng.below(3) {
                0 => {
                    let high = low + self.rng.between(1, 3);
                    patterns.push(Pattern::Range(low, high));
                    low = high;
                }
                1 => {
                    patterns.push(Pattern::Any(vec![low, low + 2]));
                    low += 2;
                }
                _ => patterns.push(Pattern::Any(vec![low])),
            }
            low += 1;
        }
        for pattern in &mut patterns {
            if self.features.guards && self.rng.percent(25) {
                let guard = self.operand(|g| g.truth(1));
                *pattern = Pattern::Guarded(Box::new(pattern.clone()), Box::new(guard));
            }
        }
        patterns
    }

    // Statements.

    /// Generates a block in a scope of its own, in the current region.
    fn block(&mut self, stmts: usize, value: Option<Ty>) -> Stmts {
        let scope = self.scope.len();
        self.depth += 1;
        let mut block = Stmts::default();
        let count = self.rng.below(stmts + 1);
        let allowed = value.is_none() || self.features.jump_in_value;
        let no_jumps = self.no_jumps;
        self.no_jumps |= !allowed;
        self.stmts(&mut block, count);
        self.no_jumps = no_jumps;
        if let Some(ty) = value
            && !block.stmts.last().is_some_and(Stmt::is_jump)
        {
            block.value = Some(Box::new(self.expr(ty, 2)));
        }
        self.depth -= 1;
        self.scope.truncate(scope);
        block
    }

    /// Generates a block under a tensor condition.
    fn arm(&mut self, stmts: usize, value: Option<Ty>) -> Stmts {
        self.staged += 1;
        let block = self.block(stmts, value);
        self.staged -= 1;
        block
    }

    fn stmts(&mut self, block: &mut Stmts, count: usize) {
        for _ in 0..count {
            if self.budget <= 0 || block.stmts.last().is_some_and(Stmt::is_jump) {
                return;
            }
            self.budget -= 1;
            self.stmt(block);
        }
    }

    fn stmt(&mut self, block: &mut Stmts) {
        let nested = if self.depth < 4 && self.budget > 0 { 15 } else { 0 };
        let stmt = match self.rng.below(12 + nested) {
            0..=3 => self.declaration(),
            4..=8 => return self.assignment(block),
            9 => self.assign_pair(),
            10 | 11 => match self.jump() {
                Some(stmt) => stmt,
                None => return self.assignment(block),
            },
            12..=15 => self.if_stmt(),
            16..=18 => self.while_stmt(),
            19 | 20 if self.features.jumps && !self.no_jumps => Stmt::Loop(self.repeated(None)),
            21 | 22 if self.features.range => self.range(),
            23 if self.features.matches => {
                let x = self.operand(|g| g.scrutinee());
                let arms = self.patterns().into_iter().map(|p| (p, self.arm(2, None))).collect();
                Stmt::Match(x, arms, self.arm(2, None))
            }
            24 => self.host_stmt(),
            25 => Stmt::Block(self.block(3, None)),
            26 if self.features.labeled && !self.no_jumps => {
                let (id, block) = self.labeled(None);
                Stmt::Labeled(id, block)
            }
            _ => self.if_stmt(),
        };
        block.stmts.push(stmt);
    }

    fn declaration(&mut self) -> Stmt {
        let types = [Ty::Int, Ty::Float, Ty::Int, Ty::Float, Ty::Bool, Ty::Host];
        match self.rng.below(10) {
            0 | 1 => {
                let count = self.rng.between(2, 3);
                let tys: Vec<Ty> = (0..count).map(|_| *self.rng.pick(&types[..5])).collect();
                let xs = tys.iter().map(|&ty| self.operand(|g| g.expr(ty, 2))).collect();
                let vars: Vec<Local> = if self.rng.percent(50) {
                    vec![self.var(VarTy::Tuple(tys))]
                } else {
                    let mut vars: Vec<Local> = tys.into_iter().map(|ty| self.var(VarTy::One(ty))).collect();
                    // A pattern binds each name only once.
                    let free: Vec<&str> =
                        NAMES.into_iter().filter(|n| vars.iter().all(|v| v.name != *n)).take(vars.len()).collect();
                    for i in 1..vars.len() {
                        if vars[..i].iter().any(|v| v.name == vars[i].name) {
                            vars[i].name = free[i].to_owned();
                        }
                    }
                    vars
                };
                vars.iter().for_each(|v| self.declare(v));
                Stmt::LetTuple(vars, xs)
            }
            2 if self.features.let_later && self.depth < 4 => {
                let ty = *self.rng.pick(&types[..5]);
                let c = self.truth(1);
                let no_jumps = std::mem::replace(&mut self.no_jumps, true);
                let (a, b) = (self.arm(2, Some(ty)), self.arm(2, Some(ty)));
                self.no_jumps = no_jumps;
                let mut var = self.var(VarTy::One(ty));
                // The arms may use another variable of this name, which the declaration would
                // shadow.
                var.name = format!("later{}", var.id);
                self.declare(&var);
                Stmt::LetLater(var, c, a, b)
            }
            _ => {
                let ty = *self.rng.pick(&types);
                let x = self.expr(ty, 3);
                let var = self.var(VarTy::One(ty));
                self.declare(&var);
                Stmt::Let(var, x)
            }
        }
    }

    fn assignment(&mut self, block: &mut Stmts) {
        let ty = *self.rng.pick(&[Ty::Int, Ty::Int, Ty::Int, Ty::Float, Ty::Float, Ty::Float, Ty::Bool, Ty::Host]);
        let Some(place) = self.place(ty, true) else {
            block.stmts.push(self.declaration());
            return;
        };
        if matches!(ty, Ty::Bool | Ty::Host) || self.rng.percent(45) {
            let x = self.expr(ty, 3);
            block.stmts.push(Stmt::Assign(place, None, x));
            return;
        }
        let op = *self.rng.pick(&[Binary::Add, Binary::Add, Binary::Sub, Binary::Mul]);
        let x = self.operand(|g| g.expr(ty, 2));
        block.stmts.push(Stmt::Assign(place.clone(), Some(op), x));
        if ty == Ty::Float {
            let kept = self.tame(Expr::Get(place.clone()), LARGEST * LARGEST);
            block.stmts.push(Stmt::Assign(place, None, kept));
        } else if self.rng.percent(50) {
            let n = Expr::Int(self.rng.between(5, 99));
            block.stmts.push(Stmt::Assign(place, Some(Binary::Rem), n));
        }
    }

    fn assign_pair(&mut self) -> Stmt {
        let ty = *self.rng.pick(&[Ty::Int, Ty::Float]);
        let (Some(a), Some(b)) = (self.place(ty, true), self.place(ty, true)) else { return self.declaration() };
        if a == b {
            return self.declaration();
        }
        let swapped = self.rng.percent(40);
        let x = if swapped { Expr::Get(b.clone()) } else { self.operand(|g| g.expr(ty, 2)) };
        let y = if swapped { Expr::Get(a.clone()) } else { self.operand(|g| g.expr(ty, 2)) };
        Stmt::AssignTuple(vec![a, b], vec![x, y])
    }

    fn if_stmt(&mut self) -> Stmt {
        let mut arms = Vec::new();
        // Statements after an `else` are inside it.
        let count = [1, 1, 1, 2, 3][self.rng.below(5)];
        for i in 0..count {
            self.staged += i;
            let c = if i == 0 { self.truth(2) } else { self.operand(|g| g.truth(2)) };
            arms.push((c, self.arm(3, None)));
            self.staged -= i;
        }
        self.staged += count - 1;
        let otherwise = self.rng.percent(50).then(|| self.arm(3, None));
        self.staged -= count - 1;
        Stmt::If(arms, otherwise)
    }

    /// Returns the maximum number of iterations of a loop at the current depth.
    fn trips(&mut self) -> i32 {
        let around = self.loops.len().min(2);
        self.rng.between(1, [12, 6, 3][around])
    }

    fn body(&mut self, host: bool, value: Option<Ty>, stmts: usize) -> (LoopId, Stmts) {
        let id = self.number();
        self.staged += u32::from(!host);
        self.loops.push(Around { id, host, staged: self.staged, value, is_block: false });
        let body = self.block(stmts, None);
        self.loops.pop();
        self.staged -= u32::from(!host);
        (id, body)
    }

    fn labeled(&mut self, value: Option<Ty>) -> (LoopId, Stmts) {
        let id = self.number();
        self.loops.push(Around { id, host: false, staged: self.staged, value, is_block: true });
        let block = self.block(4, value);
        self.loops.pop();
        (id, block)
    }

    fn while_stmt(&mut self) -> Stmt {
        let c = if self.rng.percent(50) {
            // A loop that counts up to one of the inputs.
            let limit = self.leaf_var();
            let Some(counter) = self.place(Ty::Int, true) else { return self.if_stmt() };
            let step = Stmt::Assign(counter.clone(), Some(Binary::Add), Expr::Int(self.rng.between(1, 2)));
            let c = Expr::Compare("<", Box::new(Expr::Get(counter)), Box::new(limit));
            let trips = self.trips();
            let (id, mut body) = self.body(false, None, 4);
            // At the end of the body its own variables may shadow the counter.
            let open = |s: &Stmt| matches!(s, Stmt::Let(..) | Stmt::LetTuple(..) | Stmt::LetLater(..)) || s.is_jump();
            if body.stmts.iter().any(open) || self.rng.percent(30) {
                body.stmts.insert(0, step);
            } else {
                body.stmts.push(step);
            }
            return Stmt::While(c, BoundedLoop { id, trips, body }, self.rng.percent(30));
        } else {
            self.operand(|g| g.truth(2))
        };
        let trips = self.trips();
        let (id, body) = self.body(false, None, 4);
        Stmt::While(c, BoundedLoop { id, trips, body }, self.rng.percent(30))
    }

    fn repeated(&mut self, value: Option<Ty>) -> BoundedLoop {
        let trips = self.trips();
        // Most loops are left by a condition at their start.
        let leave = self.rng.percent(70).then(|| {
            let c = self.operand(|g| g.truth(1));
            (c, value.map(|ty| self.operand(|g| g.expr(ty, 1))))
        });
        // At least the iteration count leaves it.
        self.jumped = true;
        let (id, mut body) = self.body(false, value, 4);
        if let Some((c, x)) = leave {
            let leave = Stmt::If(vec![(c, Stmts { stmts: vec![Stmt::Break(id, x)], value: None })], None);
            body.stmts.insert(0, leave);
        }
        BoundedLoop { id, trips, body }
    }

    fn range(&mut self) -> Stmt {
        let most = [9, 5, 3][self.loops.len().min(2)];
        let high = binary(Binary::Rem, self.operand(|g| g.int(1)), Expr::Int(most));
        let low = self.rng.percent(40).then(|| Expr::Int(self.rng.between(-1, 2)));
        let var = Local { mutable: self.rng.percent(20), ..self.var(VarTy::One(Ty::Int)) };
        let scope = self.scope.len();
        self.scope.push(DeclaredVar { var: var.clone(), staged: self.staged + 1 });
        let (id, body) = self.body(false, None, 4);
        self.scope.truncate(scope);
        Stmt::Range(id, var, low, high, body)
    }

    fn host_stmt(&mut self) -> Stmt {
        if self.rng.percent(50) && self.loops.len() < 2 {
            let var = Local { mutable: false, ..self.var(VarTy::One(Ty::Host)) };
            let scope = self.scope.len();
            self.declare(&var);
            let trips = self.rng.between(0, 4);
            let (id, body) = self.body(true, None, 3);
            self.scope.truncate(scope);
            Stmt::HostFor(id, var, trips, body)
        } else {
            let c = self.host_condition();
            let a = self.block(3, None);
            let b = self.rng.percent(50).then(|| self.block(3, None));
            Stmt::HostIf(c, a, b)
        }
    }

    /// Generates a jump that is valid here, if there is one.
    fn jump(&mut self) -> Option<Stmt> {
        if self.no_jumps || self.pure_from.is_some() || self.depth == 0 {
            return None;
        }
        let mut targets = Vec::new();
        let mut left_host = false;
        for l in self.loops.iter().rev() {
            if l.host {
                left_host = true;
                // All constructs in between are host constructs.
                if l.staged == self.staged && !self.jumped {
                    targets.push((l.id, l.value, true, false));
                } else {
                    break;
                }
            } else if left_host || !self.features.jumps {
                break;
            } else {
                targets.push((l.id, l.value, false, l.is_block));
            }
        }
        let may_return = self.features.early_return && !self.loops.iter().any(|l| l.host);
        let returns = may_return && (targets.is_empty() || self.rng.percent(25));
        if returns {
            self.jumped = true;
            let tys = self.returns.clone();
            return Some(Stmt::Return(tys.into_iter().map(|ty| self.operand(|g| g.expr(ty, 2))).collect()));
        }
        if targets.is_empty() {
            return None;
        }
        // Prefer the innermost.
        let n = targets.len();
        let (id, value, host, is_block) = targets[self.rng.below(n).min(self.rng.below(n))];
        self.jumped |= !host;
        Some(if is_block || self.rng.percent(60) {
            Stmt::Break(id, value.map(|ty| self.operand(|g| g.expr(ty, 2))))
        } else {
            Stmt::Continue(id)
        })
    }
}

fn binary(op: Binary, a: Expr, b: Expr) -> Expr {
    Expr::Binary(op, Box::new(a), Box::new(b))
}
