//! `for`, which so far goes over host values only.

/// What a `for` can go over.
#[diagnostic::on_unimplemented(
    message = "a `for` over `{Self}` is not staged yet",
    label = "not a host iterator",
    note = "go over a tensor with `while` and an index, or over host values such as `0..n`"
)]
pub trait HostIter {
    /// The iterator.
    type Iter: Iterator;
    /// Starts it.
    fn host_iter(self) -> Self::Iter;
}

#[diagnostic::do_not_recommend]
impl<I: IntoIterator> HostIter for I {
    type Iter = I::IntoIter;
    #[inline]
    fn host_iter(self) -> I::IntoIter {
        self.into_iter()
    }
}

/// The iterator of a `for`.
#[inline]
pub fn host_iter<I: HostIter>(iterable: I) -> I::Iter {
    iterable.host_iter()
}
