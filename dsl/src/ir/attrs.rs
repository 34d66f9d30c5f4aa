//! Attributes: the static arguments of an operation.

use super::literal::FloatLiteral;
use crate::{DType, Shape};
use std::fmt;

/// The type of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrKind {
    /// An integer.
    Int,
    /// A list of integers.
    Ints,
    /// An integer that is not negative: an axis, an extent or a number of elements.
    Natural,
    /// A list of integers that are not negative.
    Naturals,
    /// A floating-point number.
    Float,
    /// A boolean.
    Bool,
    /// An element type.
    DType,
    /// A shape.
    Shape,
}

/// A static argument of an operation. Floats are compared bitwise.
#[derive(Clone, Debug)]
pub enum Attr {
    /// An integer, for example an axis, already counted from the front.
    Int(i64),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A floating-point number.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// An element type.
    DType(DType),
    /// A shape.
    Shape(Shape),
}

impl AttrKind {
    /// Returns whether an attribute is of this type.
    pub fn admits(self, attr: &Attr) -> bool {
        match (self, attr) {
            (AttrKind::Int, Attr::Int(_)) | (AttrKind::Ints, Attr::Ints(_)) => true,
            (AttrKind::Natural, Attr::Int(i)) => *i >= 0,
            (AttrKind::Naturals, Attr::Ints(list)) => list.iter().all(|&i| i >= 0),
            (AttrKind::Float, Attr::Float(_)) | (AttrKind::Bool, Attr::Bool(_)) => true,
            (AttrKind::DType, Attr::DType(_)) | (AttrKind::Shape, Attr::Shape(_)) => true,
            _ => false,
        }
    }
}

impl PartialEq for Attr {
    fn eq(&self, other: &Attr) -> bool {
        match (self, other) {
            (Attr::Int(a), Attr::Int(b)) => a == b,
            (Attr::Ints(a), Attr::Ints(b)) => a == b,
            (Attr::Float(a), Attr::Float(b)) => a.to_bits() == b.to_bits(),
            (Attr::Bool(a), Attr::Bool(b)) => a == b,
            (Attr::DType(a), Attr::DType(b)) => a == b,
            (Attr::Shape(a), Attr::Shape(b)) => a == b,
            _ => false,
        }
    }
}
impl Eq for Attr {}

impl std::hash::Hash for Attr {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        match self {
            Attr::Int(a) => a.hash(state),
            Attr::Ints(a) => a.hash(state),
            Attr::Float(a) => a.to_bits().hash(state),
            Attr::Bool(a) => a.hash(state),
            Attr::DType(a) => a.hash(state),
            Attr::Shape(a) => a.hash(state),
        }
    }
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Int(a) => write!(f, "{a}"),
            Attr::Ints(a) => write!(f, "{a:?}"),
            Attr::Float(a) => write!(f, "{}", FloatLiteral(*a)),
            Attr::Bool(a) => write!(f, "{a}"),
            Attr::DType(a) => write!(f, "{a}"),
            Attr::Shape(a) => write!(f, "{a}"),
        }
    }
}

/// The attributes of one node, in the order in which its operation declares them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attrs(Vec<(&'static str, Attr)>);

impl Attrs {
    /// Returns an empty list of attributes.
    pub fn none() -> Attrs {
        Attrs::default()
    }

    /// Appends an attribute.
    #[must_use]
    pub fn with(mut self, name: &'static str, attr: Attr) -> Attrs {
        self.0.push((name, attr));
        self
    }

    /// Returns an iterator over the attributes and their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Attr)> {
        self.0.iter().map(|(n, a)| (*n, a))
    }

    /// Returns whether there are no attributes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the attributes with `f` applied to every shape.
    #[must_use]
    pub fn map_shapes(&self, f: impl Fn(&Shape) -> Shape) -> Attrs {
        let map = |a: &Attr| {
            if let Attr::Shape(s) = a { Attr::Shape(f(s)) } else { a.clone() }
        };
        Attrs(self.0.iter().map(|(n, a)| (*n, map(a))).collect())
    }

    /// Returns the attribute with the given name. The attributes of built-in operations have
    /// [structs](crate::ops::attributes).
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, a)| a)
    }
}

impl fmt::Display for Attrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, attr)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={attr}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
