//! Collection of errors, so that all of them are reported at once.

use proc_macro2::TokenStream;
use quote::ToTokens;
use std::cell::RefCell;
use std::fmt::Display;

/// The errors found so far.
///
/// Invariant: [`finish`](Ctxt::finish) reads the errors before they are dropped, so no error is
/// lost.
pub(crate) struct Ctxt(RefCell<Option<Vec<syn::Error>>>);

impl Ctxt {
    /// Starts without errors.
    pub(crate) fn new() -> Ctxt {
        Ctxt(RefCell::new(Some(Vec::new())))
    }

    /// Adds an error at the given tokens.
    pub(crate) fn error(&self, at: impl ToTokens, message: impl Display) {
        self.push(syn::Error::new_spanned(at, message));
    }

    /// Adds an error.
    pub(crate) fn push(&self, error: syn::Error) {
        self.0.borrow_mut().as_mut().expect("errors are added before they are read").push(error);
    }

    /// Returns whether there are errors so far.
    pub(crate) fn has_errors(&self) -> bool {
        self.0.borrow().as_ref().is_some_and(|errors| !errors.is_empty())
    }

    /// Returns `Err` with a `compile_error!` for each error, if there are any.
    pub(crate) fn finish(self) -> Result<(), TokenStream> {
        let errors = self.0.take().expect("errors are read once");
        if errors.is_empty() { Ok(()) } else { Err(errors.iter().map(syn::Error::to_compile_error).collect()) }
    }
}

impl Drop for Ctxt {
    fn drop(&mut self) {
        if !std::thread::panicking() && self.0.borrow().is_some() {
            panic!("the errors were not read");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proc_macro2::Span;

    #[test]
    fn reports_all_errors() {
        let cx = Ctxt::new();
        cx.push(syn::Error::new(Span::call_site(), "one"));
        cx.push(syn::Error::new(Span::call_site(), "two"));
        let text = cx.finish().unwrap_err().to_string();
        assert!(text.contains("one") && text.contains("two"), "{text}");
    }

    #[test]
    #[should_panic(expected = "the errors were not read")]
    fn notices_lost_errors() {
        drop(Ctxt::new());
    }
}
