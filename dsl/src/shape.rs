//! Shapes of known, named or unknown extents.

use crate::ir::Quoted;
use std::fmt;
use std::sync::Arc;

/// The extent of an axis.
///
/// Two named extents of one graph with the same name are equal. An unknown extent equals nothing
/// before run time, not even itself: [`Dim::compatible`] tells whether two extents *may* be equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dim {
    /// An extent known when the graph is built.
    Known(usize),
    /// An extent determined by a parameter of the graph, printed as its name.
    Named(Arc<str>),
    /// An extent known only at run time, printed as `?`.
    Unknown,
}

impl Dim {
    /// Returns the extent, if it is known.
    pub fn known(&self) -> Option<usize> {
        match self {
            Dim::Known(n) => Some(*n),
            _ => None,
        }
    }

    /// Returns whether the two may be equal at run time.
    pub fn compatible(&self, other: &Dim) -> bool {
        match (self, other) {
            (Dim::Known(a), Dim::Known(b)) => a == b,
            _ => true,
        }
    }

    /// Returns whether `general` covers this extent: the two are equal, or `general` is unknown.
    pub fn fits(&self, general: &Dim) -> bool {
        self == general || *general == Dim::Unknown
    }

    /// Returns the most precise extent that both fit.
    pub fn join(&self, other: &Dim) -> Dim {
        if self == other { self.clone() } else { Dim::Unknown }
    }

    /// Returns the more precise of two extents known to be equal.
    pub fn meet(&self, other: &Dim) -> Dim {
        match (self, other) {
            (Dim::Known(n), _) | (_, Dim::Known(n)) => Dim::Known(*n),
            (Dim::Named(n), _) | (_, Dim::Named(n)) => Dim::Named(n.clone()),
            _ => Dim::Unknown,
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Known(n) => write!(f, "{n}"),
            Dim::Named(n) => write!(f, "{}", Quoted(n)),
            Dim::Unknown => f.write_str("?"),
        }
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        Dim::Known(n)
    }
}

/// The extents of a tensor, outermost first. A scalar has rank 0.
///
/// Clones share the extents: each pass over a graph copies the types of its values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Shape(Arc<[Dim]>);

impl Shape {
    /// Returns the shape of a scalar.
    pub fn scalar() -> Shape {
        Shape::default()
    }

    /// Returns the rank: the number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Returns the extents.
    pub fn dims(&self) -> &[Dim] {
        &self.0
    }

    /// Returns the shape with another extent along an axis.
    #[must_use]
    pub fn with_extent(&self, axis: usize, extent: Dim) -> Shape {
        let mut shape = self.clone();
        Arc::make_mut(&mut shape.0)[axis] = extent;
        shape
    }

    /// Returns whether every extent is known or named, so that the shape can be an attribute of a
    /// node.
    pub fn is_definite(&self) -> bool {
        !self.0.contains(&Dim::Unknown)
    }

    /// Returns all extents, if all are known.
    pub fn known(&self) -> Option<Vec<usize>> {
        self.0.iter().map(Dim::known).collect()
    }

    /// Returns the number of elements if all extents are known, saturating at `usize::MAX`.
    pub fn size(&self) -> Option<usize> {
        self.0.iter().try_fold(1usize, |n, d| Some(n.saturating_mul(d.known()?)))
    }

    /// Returns whether the two may be equal at run time.
    pub fn compatible(&self, other: &Shape) -> bool {
        self.rank() == other.rank() && self.0.iter().zip(other.dims()).all(|(a, b)| a.compatible(b))
    }

    /// Returns whether each extent [fits](Dim::fits) that of `general`.
    pub fn fits(&self, general: &Shape) -> bool {
        self.rank() == general.rank() && self.0.iter().zip(general.dims()).all(|(a, b)| a.fits(b))
    }

    /// Returns the most precise shape that both fit, if they have the same rank.
    pub fn join(&self, other: &Shape) -> Option<Shape> {
        (self.rank() == other.rank()).then(|| self.0.iter().zip(other.dims()).map(|(a, b)| a.join(b)).collect())
    }

    /// Returns the more precise of two shapes known to be equal.
    pub fn meet(&self, other: &Shape) -> Shape {
        self.0.iter().zip(other.dims()).map(|(a, b)| a.meet(b)).collect()
    }

    /// Returns the common shape to which both are broadcast by NumPy's rule, or `None` if they do
    /// not fit. Shapes are aligned at their last axis, and an extent of 1 is repeated. If two
    /// extents differ and neither is known, either may be 1, so the common extent is unknown.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let at = |s: &Shape, i: usize| {
            let missing = rank - s.rank();
            if i < missing { Dim::Known(1) } else { s.0[i - missing].clone() }
        };
        (0..rank)
            .map(|i| match (at(self, i), at(other, i)) {
                (Dim::Known(1), d) | (d, Dim::Known(1)) => Some(d),
                (Dim::Known(n), Dim::Known(m)) => (n == m).then_some(Dim::Known(n)),
                (Dim::Known(n), _) | (_, Dim::Known(n)) => Some(Dim::Known(n)),
                (a, b) => Some(a.join(&b)),
            })
            .collect()
    }

    /// Returns whether `self` broadcasts to exactly `to`.
    pub fn broadcasts_to(&self, to: &Shape) -> bool {
        self.rank() <= to.rank()
            && self.0.iter().rev().zip(to.0.iter().rev()).all(|(a, b)| *a == Dim::Known(1) || a.compatible(b))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

impl<D: Into<Dim>> FromIterator<D> for Shape {
    fn from_iter<I: IntoIterator<Item = D>>(dims: I) -> Shape {
        Shape(dims.into_iter().map(Into::into).collect())
    }
}
impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        dims.into_iter().collect()
    }
}
macro_rules! from_dims {
    ($($n:literal)*) => {$(
        impl From<[Dim; $n]> for Shape {
            fn from(dims: [Dim; $n]) -> Shape {
                dims.into_iter().collect()
            }
        }
    )*};
}
// Only some lengths are implemented, so that `[]` has only one possible type.
from_dims!(1 2 3 4 5 6 7 8);
impl From<Vec<Dim>> for Shape {
    fn from(dims: Vec<Dim>) -> Shape {
        Shape(dims.into())
    }
}
impl From<&[Dim]> for Shape {
    fn from(dims: &[Dim]) -> Shape {
        Shape(dims.into())
    }
}
impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        dims.iter().copied().collect()
    }
}
impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Shape {
        dims.into_iter().collect()
    }
}
impl From<&Vec<usize>> for Shape {
    fn from(dims: &Vec<usize>) -> Shape {
        dims.iter().copied().collect()
    }
}
impl From<usize> for Shape {
    fn from(dim: usize) -> Shape {
        [dim].into()
    }
}
impl From<()> for Shape {
    fn from((): ()) -> Shape {
        Shape::scalar()
    }
}
impl From<&Shape> for Shape {
    fn from(s: &Shape) -> Shape {
        s.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_extents_are_shapes() {
        let shape: Shape = [Dim::Unknown, 3.into()].into();
        assert_eq!(shape.to_string(), "[?, 3]");
        assert_eq!(Shape::from([2, 3]).to_string(), "[2, 3]");
        assert_eq!(Shape::from([]), Shape::scalar());
    }
}
