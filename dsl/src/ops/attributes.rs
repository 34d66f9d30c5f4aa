//! Attributes of the operations as structs.
//!
//! A graph stores the attributes of a node as a list of names and values ([`Attrs`]), which it
//! prints, parses, compares and specializes. Code reads and builds them by these structs, so a
//! wrong name or type is a compile error:
//!
//! ```
//! use anabranch::dsl::ir::Attrs;
//! use anabranch::dsl::ops::attributes::Slice;
//!
//! let attrs = Attrs::from(Slice { axis: 0, start: 1, end: 7, step: 2 });
//! assert_eq!(attrs.to_string(), "axis=0, start=1, end=7, step=2");
//! assert_eq!(Slice::of(&attrs).end, 7);
//! ```
//!
//! A struct may read the attributes of an operation that declares more: [`Pool`] reads those of all
//! poolings.

use crate::ir::{Attr, AttrKind, Attrs};
use crate::{DType, Shape};

/// A type of an attribute.
trait Stored: Sized {
    const KIND: AttrKind;
    /// Returns the value, or `None` if the attribute has another type.
    fn read(attr: &Attr) -> Option<Self>;
    fn attr(self) -> Attr;
}

macro_rules! field {
    ($($t:ty: $kind:ident, $read:expr, $attr:expr;)*) => {$(
        impl Stored for $t {
            const KIND: AttrKind = AttrKind::$kind;
            fn read(attr: &Attr) -> Option<Self> {
                let read: fn(&Attr) -> Option<Self> = $read;
                read(attr)
            }
            fn attr(self) -> Attr {
                let attr: fn(Self) -> Attr = $attr;
                attr(self)
            }
        }
    )*};
}
field! {
    usize: Natural, |a| if let Attr::Int(a) = a { (*a).try_into().ok() } else { None }, |a| Attr::Int(i64::try_from(a).unwrap_or(i64::MAX));
    Vec<usize>: Naturals,
        |a| if let Attr::Ints(a) = a { a.iter().map(|&a| a.try_into().ok()).collect() } else { None },
        |a| Attr::Ints(a.into_iter().map(|a| a as i64).collect());
    bool: Bool, |a| if let Attr::Bool(a) = a { Some(*a) } else { None }, Attr::Bool;
    DType: DType, |a| if let Attr::DType(a) = a { Some(*a) } else { None }, Attr::DType;
    Shape: Shape, |a| if let Attr::Shape(a) = a { Some(a.clone()) } else { None }, Attr::Shape;
}

/// # Panics
/// Panics if the operation declares no such attribute. The attributes of a verified graph are those
/// that its operations declare.
fn read<T: Stored>(attrs: &Attrs, name: &str) -> T {
    let attr = attrs.get(name).unwrap_or_else(|| panic!("no attribute `{name}` in {attrs}"));
    T::read(attr).unwrap_or_else(|| panic!("the attribute `{name}` has another type than in {attrs}"))
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $t:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $t,)*
        }

        impl $name {
            /// The declaration in [`OpDef::attrs`](super::OpDef::attrs).
            pub const DECLARED: &'static [(&'static str, AttrKind)] =
                &[$((stringify!($field), <$t as Stored>::KIND)),*];

            /// Reads the attributes.
            ///
            /// # Panics
            /// Panics if the operation does not declare these attributes.
            pub fn of(attrs: &Attrs) -> Self {
                $name { $($field: read(attrs, stringify!($field))),* }
            }
        }

        impl From<$name> for Attrs {
            fn from(attributes: $name) -> Attrs {
                Attrs::none()$(.with(stringify!($field), attributes.$field.attr()))*
            }
        }
    )*};
}

attributes! {
    /// An axis.
    Along {
        /// The axis, counted from the front.
        axis: usize,
    }
    /// An axis that is reduced.
    AlongOrKept {
        /// The axis, counted from the front.
        axis: usize,
        /// Whether the axis stays, with extent 1.
        keepdim: bool,
    }
    /// A sum up to each index of an axis.
    RunningSum {
        /// The axis, counted from the front.
        axis: usize,
        /// Whether the sums begin at the end of the axis.
        reverse: bool,
    }
    /// The order of the elements along an axis.
    Order {
        /// The axis, counted from the front.
        axis: usize,
        /// Whether the largest element comes first.
        descending: bool,
    }
    /// Some or all axes: their new order, or a set of them.
    Axes {
        /// The axes, counted from the front.
        axes: Vec<usize>,
    }
    /// Axes that are reduced.
    Reduced {
        /// The axes, counted from the front, ascending.
        axes: Vec<usize>,
        /// Whether the reduced axes are kept, with extent 1.
        keepdim: bool,
    }
    /// One of the tensors that were concatenated.
    Part {
        /// The axis, counted from the front.
        axis: usize,
        /// The position of the part among the tensors.
        part: usize,
    }
    /// Indices `start..end` of an axis, in steps.
    Slice {
        /// The axis, counted from the front.
        axis: usize,
        /// The first index.
        start: usize,
        /// The end of the range.
        end: usize,
        /// The distance between two indices, at least 1.
        step: usize,
    }
    /// The indices of an axis at which a part is written.
    SliceTarget {
        /// The axis, counted from the front.
        axis: usize,
        /// The first index.
        start: usize,
        /// The distance between two indices, at least 1.
        step: usize,
    }
    /// A number of indices along an axis, from a first index that is data.
    DynamicSlice {
        /// The axis, counted from the front.
        axis: usize,
        /// The number of indices.
        size: usize,
    }
    /// The range that indices of slices must be in.
    IndexRange {
        /// The axis of the tensor, counted from the front.
        axis: usize,
        /// The extent of the axis.
        extent: usize,
        /// The number of indices from each index on.
        size: usize,
    }
    /// The shape of the result.
    Shaped {
        /// The shape.
        shape: Shape,
    }
    /// A number of parts or buckets.
    Count {
        /// The number.
        n: usize,
    }
    /// Whether base64 is padded.
    Padded {
        /// Whether it is.
        pad: bool,
    }
    /// Whether all matches are replaced.
    Replaced {
        /// Whether all are, or the first.
        all: bool,
    }
    /// The shape and element type of the result.
    Typed {
        /// The shape.
        shape: Shape,
        /// The element type.
        dtype: DType,
    }
    /// Indices along an axis.
    Iota {
        /// The shape of the result.
        shape: Shape,
        /// The axis, counted from the front.
        axis: usize,
        /// The element type of the result.
        dtype: DType,
    }
    /// The element type of the result.
    Cast {
        /// The element type.
        dtype: DType,
    }
    /// The mask of attention.
    Attention {
        /// Whether query `i` only sees the keys `0..=i`.
        causal: bool,
    }
    /// Windows of a pooling.
    Pool {
        /// The extents of a window.
        window: Vec<usize>,
        /// The distances between two windows.
        strides: Vec<usize>,
        /// The elements added at both ends of each axis.
        padding: Vec<usize>,
    }
    /// Windows of a mean.
    MeanPool {
        /// The extents of a window.
        window: Vec<usize>,
        /// The distances between two windows.
        strides: Vec<usize>,
        /// The elements added at both ends of each axis.
        padding: Vec<usize>,
        /// Whether elements of the padding count.
        count_padding: bool,
    }
    /// Windows of a mean, and the extents to which its gradient is spread.
    MeanPoolGrad {
        /// The extents of a window.
        window: Vec<usize>,
        /// The distances between two windows.
        strides: Vec<usize>,
        /// The elements added at both ends of each axis.
        padding: Vec<usize>,
        /// Whether elements of the padding count.
        count_padding: bool,
        /// The extents of the operand of the mean.
        extents: Shape,
    }
    /// Windows of a convolution.
    Conv {
        /// The distances between two windows.
        strides: Vec<usize>,
        /// The elements added at both ends of each axis.
        padding: Vec<usize>,
        /// The distances between two elements of a window.
        dilation: Vec<usize>,
        /// The number of groups of channels.
        groups: usize,
    }
    /// Windows of a convolution, and the extents of its input.
    ConvInputGrad {
        /// The distances between two windows.
        strides: Vec<usize>,
        /// The elements added at both ends of each axis.
        padding: Vec<usize>,
        /// The distances between two elements of a window.
        dilation: Vec<usize>,
        /// The number of groups of channels.
        groups: usize,
        /// The extents of the input.
        extents: Shape,
    }
    /// Windows of a convolution, and the extents of its filters.
    ConvWeightGrad {
        /// The distances between two windows.
        strides: Vec<usize>,
        /// The elements added at both ends of each axis.
        padding: Vec<usize>,
        /// The distances between two elements of a window.
        dilation: Vec<usize>,
        /// The number of groups of channels.
        groups: usize,
        /// The extents of a filter.
        kernel: Shape,
    }
}

impl MeanPool {
    /// Returns the attributes of the gradient for an operand of these extents.
    pub(super) fn grad(self, extents: Shape) -> MeanPoolGrad {
        let MeanPool { window, strides, padding, count_padding } = self;
        MeanPoolGrad { window, strides, padding, count_padding, extents }
    }
}

impl Conv {
    /// Returns the attributes of the gradient for an input of these extents.
    pub(super) fn input_grad(self, extents: Shape) -> ConvInputGrad {
        let Conv { strides, padding, dilation, groups } = self;
        ConvInputGrad { strides, padding, dilation, groups, extents }
    }

    /// Returns the attributes of the gradient for filters of these extents.
    pub(super) fn weight_grad(self, kernel: Shape) -> ConvWeightGrad {
        let Conv { strides, padding, dilation, groups } = self;
        ConvWeightGrad { strides, padding, dilation, groups, kernel }
    }
}
