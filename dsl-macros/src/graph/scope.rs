//! Lexical scopes: which variable a name refers to.

use super::known::{Property, has_known_methods, is_bool, is_mut_ref, is_number_type, method_is};
use super::variables::{Access, Hidden, VarId, Variable};
use syn::visit::{self, Visit};
use syn::{Expr, FnArg, Pat, PatIdent, PatType, ReceiverKind, Type};

/// The names in scope.
#[derive(Debug, Default)]
pub(crate) struct Env {
    variables: Vec<Variable>,
    names: Vec<(String, VarId)>,
}

/// A scope to be closed: the number of names before it.
#[derive(Debug)]
#[must_use]
pub(crate) struct Scope(usize);

impl Env {
    /// Opens a scope.
    pub(crate) fn enter(&mut self) -> Scope {
        Scope(self.names.len())
    }

    /// Closes a scope and forgets its names.
    pub(crate) fn leave(&mut self, scope: Scope) {
        self.names.truncate(scope.0);
    }

    /// Runs `f`, and forgets the variables that it declares.
    pub(crate) fn tentatively(&mut self, f: impl FnOnce(&mut Env)) {
        let (scope, variables) = (self.enter(), self.variables.len());
        f(self);
        self.leave(scope);
        self.variables.truncate(variables);
    }

    /// Returns the id of the next variable.
    pub(crate) fn next_id(&self) -> VarId {
        self.variables.len()
    }

    /// Returns the variable that a name refers to, if it is local to the function.
    pub(crate) fn resolve(&self, name: &str) -> Option<VarId> {
        self.names.iter().rev().find(|(n, _)| n == name).map(|&(_, id)| id)
    }

    /// Returns the variables declared by `let x;` whose names refer to other variables here.
    pub(crate) fn hidden(&self) -> Vec<Hidden> {
        let deferred = self.names.iter().filter(|(_, id)| self.variables[*id].is_deferred);
        let hidden = deferred.filter_map(|(name, variable)| {
            let by = self.resolve(name).filter(|by| by != variable)?;
            Some(Hidden { variable: *variable, by })
        });
        hidden.collect()
    }

    /// Returns all variables that were declared.
    pub(crate) fn into_variables(self) -> Vec<Variable> {
        self.variables
    }

    /// Declares one variable.
    pub(crate) fn declare(&mut self, name: String, access: Access, is_deferred: bool) {
        self.names.push((name, self.variables.len()));
        self.variables.push(Variable {
            access,
            is_deferred,
            is_bool: false,
            is_known: false,
            is_number: false,
            changes: None,
        });
    }

    /// Declares the variables of a pattern.
    pub(crate) fn declare_pat(&mut self, pat: &Pat) {
        let mut found = Names(Vec::new());
        found.visit_pat(pat);
        for (name, access) in found.0 {
            self.declare(name, access, false);
        }
    }

    /// Declares the variables of a pattern that is matched with the value of an expression.
    pub(crate) fn declare_matched(&mut self, pat: &Pat, source: &Expr) {
        let mut found = Names(Vec::new());
        found.visit_pat(pat);
        let lent = match self.lends(source) {
            // A pattern matched with a mutable reference binds mutable references.
            LentBorrow::Itself => !contains_reference(pat),
            LentBorrow::Item => matches!(pat, Pat::TupleStruct(_)) && found.0.len() == 1,
            LentBorrow::No => false,
        };
        for (name, access) in found.0 {
            let access = if lent && access == Access::Plain { Access::Item } else { access };
            self.declare(name, access, false);
        }
    }

    /// Declares the variables of a `for` over the value of an expression.
    pub(crate) fn declare_items(&mut self, pat: &Pat, source: &Expr) {
        let lends_items = |mut e: &Expr| loop {
            match e {
                Expr::MethodCall(m) if method_is(&m.method, Property::SomeItems) => e = &m.receiver,
                Expr::MethodCall(m) => break method_is(&m.method, Property::LendsItems),
                Expr::Array(a) => break a.elems.iter().all(|e| matches!(lends(e), LentBorrow::Itself)),
                e => break matches!(lends(e), LentBorrow::Itself),
            }
        };
        let item = match (pat, source) {
            (Pat::Ident(item), source) if lends_items(source) => Some(item),
            (Pat::Tuple(t), Expr::MethodCall(m))
                if method_is(&m.method, Property::Numbered) && lends_items(&m.receiver) =>
            {
                match t.elems.last() {
                    Some(Pat::Ident(item)) => Some(item),
                    _ => None,
                }
            }
            _ => None,
        };
        let mut found = Names(Vec::new());
        found.visit_pat(pat);
        for (name, access) in found.0 {
            let is_item = item.is_some_and(|item| item.ident == name) && access == Access::Plain;
            self.declare(name, if is_item { Access::Item } else { access }, false);
        }
    }

    /// Declares the variables of a `let`.
    pub(crate) fn declare_let(&mut self, pat: &Pat, init: Option<&Expr>) {
        let (inner, ty) = match pat {
            Pat::Type(p) => (&*p.pat, Some(&*p.ty)),
            p => (p, None),
        };
        if let Pat::Ident(PatIdent { by_ref: None, ident, mutability, subpat: None, .. }) = inner {
            let borrowed = matches!(init.map(|e| self.lends(e)), Some(LentBorrow::Itself));
            let access = if borrowed || ty.is_some_and(is_mut_ref) {
                Access::MutRef
            } else if mutability.is_some() {
                Access::Mut
            } else if init.is_some_and(unwraps_lent) {
                Access::Item
            } else {
                Access::Plain
            };
            self.declare(ident.to_string(), access, init.is_none());
            self.note_type(ty);
            if let (Some(last), Some(init)) = (self.variables.last_mut(), init) {
                last.changes = changed_by_closure(init);
            }
        } else {
            match init {
                Some(init) => self.declare_matched(pat, init),
                None => self.declare_pat(pat),
            }
        }
    }

    /// Returns what an expression lends mutably. The name of a mutable reference lends its target.
    fn lends(&self, expr: &Expr) -> LentBorrow {
        let name = match expr {
            Expr::Path(p) => p.path.get_ident().map(ToString::to_string),
            _ => None,
        };
        let id = name.and_then(|name| self.resolve(&name));
        match id.map(|id| self.variables[id].access) {
            Some(Access::MutRef) => LentBorrow::Itself,
            _ => lends(expr),
        }
    }

    /// Records the declared type of the last variable.
    fn note_type(&mut self, ty: Option<&Type>) {
        if let Some(last) = self.variables.last_mut() {
            last.is_bool = ty.is_some_and(is_bool);
            last.is_known = ty.is_some_and(has_known_methods);
            last.is_number = ty.is_some_and(is_number_type);
        }
    }

    /// Declares the variables of a parameter of a closure.
    pub(crate) fn declare_closure_parameter(&mut self, pat: &Pat) {
        self.declare_pat(pat);
        if let Pat::Type(PatType { pat, ty, .. }) = pat
            && let Pat::Ident(_) = **pat
            && is_number_type(ty)
        {
            self.note_number();
        }
    }

    /// Records that the last variable is a tensor or host number.
    pub(crate) fn note_number(&mut self) {
        if let Some(last) = self.variables.last_mut() {
            last.is_number = true;
        }
    }

    /// Returns whether a name refers to a variable that is known to be a tensor or host number.
    pub(crate) fn is_number(&self, name: &str) -> bool {
        self.resolve(name).is_some_and(|id| self.variables[id].is_number)
    }

    /// Returns whether a name refers to a variable that is declared as `bool`.
    pub(crate) fn is_bool(&self, name: &str) -> bool {
        self.resolve(name).is_some_and(|id| self.variables[id].is_bool)
    }

    /// Declares a parameter of a function.
    pub(crate) fn declare_parameter(&mut self, parameter: &FnArg) {
        match parameter {
            FnArg::Receiver(r) => {
                let by_mut_ref = match &r.kind {
                    ReceiverKind::Reference(_, _, mutability) => mutability.is_some(),
                    ReceiverKind::Typed(_, ty) => is_mut_ref(ty),
                    _ => false,
                };
                let access = match (by_mut_ref, r.mutability) {
                    (true, _) => Access::MutRef,
                    (false, Some(_)) => Access::Mut,
                    (false, None) => Access::Plain,
                };
                self.declare("self".to_owned(), access, false);
            }
            FnArg::Typed(p) => {
                self.declare_pat(&Pat::Type(p.clone()));
                if let Pat::Ident(_) = *p.pat {
                    self.note_type(Some(&p.ty));
                }
            }
        }
    }
}

/// Returns a captured variable that a closure assigns, borrows mutably, or modifies by a method
/// whose name says so, if there is one.
pub(crate) fn changed_by_closure(e: &Expr) -> Option<String> {
    struct FindModifiedCapture {
        own: Vec<String>,
        found: Option<String>,
    }
    impl FindModifiedCapture {
        fn changed(&mut self, place: &Expr) {
            let root = match place {
                Expr::Path(p) => p.path.get_ident().map(ToString::to_string),
                Expr::Field(e) => return self.changed(&e.base),
                Expr::Index(e) => return self.changed(&e.expr),
                Expr::Paren(e) => return self.changed(&e.expr),
                Expr::Tuple(e) => return e.elems.iter().for_each(|e| self.changed(e)),
                Expr::Unary(e) => return self.changed(&e.expr),
                _ => None,
            };
            if let Some(root) = root.filter(|root| !self.own.contains(root)) {
                self.found.get_or_insert(root);
            }
        }
    }
    impl<'a> Visit<'a> for FindModifiedCapture {
        fn visit_pat_ident(&mut self, p: &'a PatIdent) {
            self.own.push(p.ident.to_string());
        }
        fn visit_expr(&mut self, e: &'a Expr) {
            match e {
                Expr::Assign(a) => self.changed(&a.left),
                Expr::Binary(b) if super::forms::is_assignment(&b.op) => self.changed(&b.left),
                Expr::Reference(r) if r.mutability.is_some() => self.changed(&r.expr),
                Expr::MethodCall(m) if method_is(&m.method, Property::Modifies) => self.changed(&m.receiver),
                _ => {}
            }
            visit::visit_expr(self, e);
        }
        fn visit_item(&mut self, _: &'a syn::Item) {}
    }
    let closure = match e {
        Expr::Closure(c) => c,
        Expr::Paren(e) => return changed_by_closure(&e.expr),
        _ => return None,
    };
    let mut find = FindModifiedCapture { own: Vec::new(), found: None };
    find.visit_expr_closure(closure);
    find.found
}

/// The mutable borrow that an expression returns, as far as its form shows.
enum LentBorrow {
    /// `&mut place`
    Itself,
    /// `Some` of a reference to an item, for example `v.last_mut()`.
    Item,
    No,
}

fn lends(expr: &Expr) -> LentBorrow {
    match expr {
        Expr::Reference(r) if r.mutability.is_some() => LentBorrow::Itself,
        Expr::Paren(e) => lends(&e.expr),
        Expr::Group(e) => lends(&e.expr),
        Expr::MethodCall(m) => {
            if method_is(&m.method, Property::LendsItem) {
                LentBorrow::Item
            } else {
                LentBorrow::No
            }
        }
        _ => LentBorrow::No,
    }
}

/// Returns whether an expression is `v.last_mut().unwrap()` or the like, with `expect` or `?`.
fn unwraps_lent(expr: &Expr) -> bool {
    let inner = match expr {
        Expr::MethodCall(m) if method_is(&m.method, Property::Unwraps) => &m.receiver,
        Expr::Try(t) => &t.expr,
        _ => return false,
    };
    matches!(lends(inner), LentBorrow::Item)
}

fn contains_reference(pat: &Pat) -> bool {
    struct FindReference(bool);
    impl<'a> Visit<'a> for FindReference {
        fn visit_pat_reference(&mut self, _: &'a syn::PatReference) {
            self.0 = true;
        }
        fn visit_expr(&mut self, _: &'a Expr) {}
    }
    let mut find = FindReference(false);
    find.visit_pat(pat);
    find.0
}

/// The names that a pattern binds.
struct Names(Vec<(String, Access)>);

impl<'a> Visit<'a> for Names {
    fn visit_pat(&mut self, pat: &'a Pat) {
        if let Pat::Type(p) = pat
            && let Pat::Ident(i) = &*p.pat
            && is_mut_ref(&p.ty)
        {
            self.0.push((i.ident.to_string(), Access::MutRef));
            return;
        }
        // All cases of `A(x) | B(x)` bind the same names.
        if let Pat::Or(or) = pat {
            if let Some(first) = or.cases.first() {
                self.visit_pat(first);
            }
            return;
        }
        visit::visit_pat(self, pat);
    }
    fn visit_pat_ident(&mut self, p: &'a PatIdent) {
        let access = match (p.by_ref, p.mutability) {
            (Some(_), Some(_)) => Access::MutRef,
            (None, Some(_)) => Access::Mut,
            _ => Access::Plain,
        };
        self.0.push((p.ident.to_string(), access));
        if let Some((_, subpat)) = &p.subpat {
            self.visit_pat(subpat);
        }
    }
    // The guard of a match arm, constants and types bind nothing.
    fn visit_expr(&mut self, _: &'a Expr) {}
    fn visit_type(&mut self, _: &'a Type) {}
}

/// Returns whether a pattern borrows mutably from the matched value.
pub(crate) fn has_ref_mut(pat: &Pat) -> bool {
    let mut by_ref = RefMut(false);
    by_ref.visit_pat(pat);
    by_ref.0
}

struct RefMut(bool);

impl<'a> Visit<'a> for RefMut {
    fn visit_pat_ident(&mut self, p: &'a PatIdent) {
        self.0 |= p.by_ref.is_some() && p.mutability.is_some();
        visit::visit_pat_ident(self, p);
    }
    fn visit_expr(&mut self, _: &'a Expr) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse::Parser;
    use syn::parse_quote;

    fn names(pat: &str) -> Vec<(String, Access)> {
        let pat = Pat::parse_multi_with_leading_vert.parse_str(pat).unwrap();
        let mut found = Names(Vec::new());
        found.visit_pat(&pat);
        found.0
    }

    #[test]
    fn patterns_bind_names() {
        let plain = |n: &str| (n.to_owned(), Access::Plain);
        assert_eq!(names("(a, mut b)"), [plain("a"), ("b".to_owned(), Access::Mut)]);
        assert_eq!(names("S { x, y: [p, .., q], .. }"), [plain("x"), plain("p"), plain("q")]);
        assert_eq!(names("Some(x) | Other(x)"), [plain("x")]);
        assert_eq!(names("n @ 1..=3"), [plain("n")]);
        assert_eq!(names("Some(ref mut r)"), [("r".to_owned(), Access::MutRef)]);
    }

    #[test]
    fn inner_declarations_shadow_until_their_scope_ends() {
        let mut env = Env::default();
        env.declare("x".into(), Access::Mut, false);
        let outer = env.resolve("x");
        let scope = env.enter();
        env.declare("x".into(), Access::Plain, false);
        assert_ne!(env.resolve("x"), outer);
        env.leave(scope);
        assert_eq!(env.resolve("x"), outer);
    }

    #[test]
    fn mutable_references_are_seen_in_types_and_initial_values() {
        let mut env = Env::default();
        let arg: FnArg = parse_quote!(p: &mut Vec<u8>);
        env.declare_parameter(&arg);
        let syn::Stmt::Local(local) = parse_quote!(let r = &mut v;) else { unreachable!() };
        env.declare_let(&local.pat, local.init.as_ref().map(|i| &*i.expr));
        for name in ["p", "r"] {
            let id = env.resolve(name).unwrap();
            assert_eq!(env.variables[id].access, Access::MutRef, "{name}");
        }
    }
}
