//! `for`, which so far goes over host values only.

use crate::{Element, Tensor};

/// What a `for` can go over.
#[diagnostic::on_unimplemented(
    message = "a `for` goes over host iterators, not over `{Self}`",
    label = "not a host iterator",
    note = "a `for` over a tensor is not staged yet: use `while` with an index"
)]
pub trait HostIter {
    /// The iterator.
    type Iter: Iterator;
    /// Starts it.
    fn host_iter(self) -> Self::Iter;
}

impl<I: IntoIterator> HostIter for I {
    type Iter = I::IntoIter;
    #[inline]
    fn host_iter(self) -> I::IntoIter {
        self.into_iter()
    }
}

/// Tensors that a `for` can go over: there are none so far.
pub trait StagedIter {
    /// The iterator.
    type Iter: Iterator;
    /// Starts it.
    fn staged_iter(self) -> Self::Iter;
}

#[diagnostic::do_not_recommend]
impl<T: Element> HostIter for Tensor<T>
where
    Tensor<T>: StagedIter,
{
    type Iter = <Tensor<T> as StagedIter>::Iter;
    fn host_iter(self) -> Self::Iter {
        self.staged_iter()
    }
}

/// The iterator of a `for`.
#[inline]
pub fn host_iter<I: HostIter<Iter = J>, J>(iterable: I) -> J {
    iterable.host_iter()
}
