//! Joining elements to batches.

use anabranch_dsl::{Array, Bytes, Diagnostic, Element, ErrorKind, Result};

/// Elements that can be joined to a batch, along a new first axis.
///
/// | element | batch |
/// |---|---|
/// | a number `T` | `Array<T>` of shape `[n]` |
/// | `Array<T>` of shape `s` | `Array<T>` of shape `[n, ..s]` |
/// | `[T; k]`, `Vec<T>` of numbers | `Array<T>` of shape `[n, k]` |
/// | `String` | `Vec<String>`, which is an argument for a `Tensor<Bytes>` |
/// | `Bytes` | `Array<Bytes>` of shape `[n]` |
/// | a tuple | the tuple of its fields' batches |
///
/// Implement it for your own types to choose what a batch of them is.
pub trait Collate: Sized + Send + 'static {
    /// The type of a batch.
    type Batch: Send + 'static;

    /// Joins elements.
    ///
    /// # Errors
    /// Returns an error if the elements have different shapes.
    fn collate(elements: Vec<Self>) -> Result<Self::Batch>;
}

/// Elements that can be joined after they were filled up to common extents.
pub trait PadTo: Collate {
    /// Joins elements. `component` is the number of array components before this one, to which the
    /// elements add theirs.
    ///
    /// # Errors
    /// Returns an error if the elements have different ranks, or if one is larger than the extents
    /// of the padding.
    fn collate_padded(elements: Vec<Self>, padding: &BatchPadding, component: &mut usize) -> Result<Self::Batch>;
}

/// How arrays are filled up to common extents: with which numbers, and how far. An element that is
/// a tuple has several components, in the order of its fields; a number that is no array is a
/// component, too.
///
/// ```
/// use anabranch::data::{Dataset, BatchPadding};
///
/// // Words and labels: the classes of the filling are -1, which a loss can ignore.
/// let data = Dataset::new(vec![(vec![4, 5], vec![0, 1]), (vec![6], vec![1])]);
/// let padding = BatchPadding::zeros().value(1, -1.0);
/// let (words, labels) = data.padded_batch(2, padding).iter().next().unwrap()?;
/// assert_eq!(words.to_vec(), [4, 5, 6, 0]);
/// assert_eq!(labels.to_vec(), [0, 1, 1, -1]);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchPadding {
    values: Vec<(usize, f64)>,
    extents: Vec<(usize, Vec<usize>)>,
}

impl BatchPadding {
    /// Fills with zeros, up to the largest extents of each batch.
    pub fn zeros() -> BatchPadding {
        BatchPadding::default()
    }

    /// Fills a component with a number, rounded to the type of its elements.
    #[must_use]
    pub fn value(mut self, component: usize, value: f64) -> BatchPadding {
        self.values.push((component, value));
        self
    }

    /// Fills a component up to these extents in every batch.
    #[must_use]
    pub fn extents(mut self, component: usize, extents: impl Into<Vec<usize>>) -> BatchPadding {
        self.extents.push((component, extents.into()));
        self
    }

    pub(crate) fn collate<T: PadTo>(&self, elements: Vec<T>) -> Result<T::Batch> {
        T::collate_padded(elements, self, &mut 0)
    }

    fn value_of(&self, component: usize) -> f64 {
        self.values.iter().rev().find(|(c, _)| *c == component).map_or(0.0, |(_, value)| *value)
    }

    fn extents_of(&self, component: usize) -> Option<&[usize]> {
        self.extents.iter().rev().find(|(c, _)| *c == component).map(|(_, extents)| &extents[..])
    }
}

fn next_component(component: &mut usize) -> usize {
    *component += 1;
    *component - 1
}

macro_rules! numbers {
    ($($t:ty, |$x:ident| $from:expr;)*) => {$(
        impl Collate for $t {
            type Batch = Array<$t>;
            fn collate(elements: Vec<Self>) -> Result<Array<$t>> {
                Array::try_new([elements.len()], elements)
            }
        }

        impl PadTo for $t {
            fn collate_padded(elements: Vec<Self>, _: &BatchPadding, component: &mut usize) -> Result<Array<$t>> {
                next_component(component);
                <$t>::collate(elements)
            }
        }

        impl Filling for $t {
            fn filling($x: f64) -> $t { $from }
        }
    )*};
}

/// Numbers that fill arrays.
trait Filling: Element + Copy {
    /// Returns the nearest number of this type.
    fn filling(x: f64) -> Self;
}

numbers! {
    f32, |x| x as f32;
    f64, |x| x;
    anabranch_dsl::f16, |x| anabranch_dsl::f16::from_f64(x);
    anabranch_dsl::bf16, |x| anabranch_dsl::bf16::from_f64(x);
    i32, |x| x.round() as i32;
    i64, |x| x.round() as i64;
    u32, |x| x.round() as u32;
    u8, |x| x.round() as u8;
    bool, |x| x != 0.0;
}

impl<T: Element> Collate for Array<T> {
    type Batch = Array<T>;

    fn collate(elements: Vec<Self>) -> Result<Array<T>> {
        let Some(first) = elements.first() else { return Array::try_new([0], Vec::new()) };
        let mut shape = vec![elements.len()];
        shape.extend(first.shape());
        let mut data = Vec::with_capacity(first.len() * elements.len());
        for (i, element) in elements.iter().enumerate() {
            if element.shape() != first.shape() {
                let message = format!(
                    "element {i} of a batch has the shape {:?}, and those before it {:?}",
                    element.shape(),
                    first.shape()
                );
                return Err(Diagnostic::new(message).help("use `padded_batch` for elements of different extents"));
            }
            data.extend_from_slice(element.as_slice());
        }
        Array::try_new(shape, data)
    }
}

impl<T: Filling> PadTo for Array<T> {
    fn collate_padded(elements: Vec<Self>, padding: &BatchPadding, component: &mut usize) -> Result<Array<T>> {
        let component = next_component(component);
        let rank = elements.first().map_or(0, Array::rank);
        let mut extents = padding.extents_of(component).map_or(vec![0; rank], <[usize]>::to_vec);
        let is_fixed = padding.extents_of(component).is_some();
        for (i, element) in elements.iter().enumerate() {
            let shape = element.shape();
            let is_larger = is_fixed && shape.iter().zip(&extents).any(|(a, b)| a > b);
            if shape.len() != extents.len() || is_larger {
                let message = format!("element {i} of a batch has the shape {shape:?}, and the batch has {extents:?}");
                return Err(
                    Diagnostic::new(message).help("elements are filled up, but neither cut nor given more axes")
                );
            }
            extents.iter_mut().zip(shape).for_each(|(extent, &n)| *extent = (*extent).max(n));
        }
        let shape = [vec![elements.len()], extents.clone()].concat();
        let n = shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent));
        let mut data = Vec::new();
        if n.is_none_or(|n| data.try_reserve_exact(n).is_err()) {
            let message = format!("there is not enough memory for a batch of the shape {shape:?}");
            let error = Diagnostic::new(message).of_kind(ErrorKind::ResourceExhausted);
            return Err(error.help("join fewer elements, or fill them up to smaller extents"));
        }
        data.resize(n.unwrap_or(0), T::filling(padding.value_of(component)));
        let size = extents.iter().product::<usize>();
        if size > 0 {
            for (element, to) in elements.iter().zip(data.chunks_exact_mut(size)) {
                copy_into(to, &extents, element.as_slice(), element.shape());
            }
        }
        Array::try_new(shape, data)
    }
}

/// Copies an array into the first corner of a larger one.
fn copy_into<T: Copy>(to: &mut [T], to_shape: &[usize], from: &[T], shape: &[usize]) {
    match (to_shape, shape) {
        ([_, to_rest @ ..], [n, rest @ ..]) => {
            let (to_row, row) = (to_rest.iter().product::<usize>(), rest.iter().product::<usize>());
            for i in 0..*n {
                copy_into(&mut to[i * to_row..][..to_row], to_rest, &from[i * row..][..row], rest);
            }
        }
        _ => to[0] = from[0],
    }
}

impl<T: Element> Collate for Vec<T> {
    type Batch = Array<T>;

    fn collate(elements: Vec<Self>) -> Result<Array<T>> {
        Array::collate(elements.into_iter().map(|v| Array::new([v.len()], v)).collect())
    }
}

impl<T: Filling> PadTo for Vec<T> {
    fn collate_padded(elements: Vec<Self>, padding: &BatchPadding, component: &mut usize) -> Result<Array<T>> {
        let arrays = elements.into_iter().map(|v| Array::new([v.len()], v)).collect();
        Array::collate_padded(arrays, padding, component)
    }
}

impl<T: Element, const N: usize> Collate for [T; N] {
    type Batch = Array<T>;

    fn collate(elements: Vec<Self>) -> Result<Array<T>> {
        Array::try_new([elements.len(), N], elements.into_iter().flatten().collect())
    }
}

impl Collate for Bytes {
    type Batch = Array<Bytes>;

    fn collate(elements: Vec<Self>) -> Result<Array<Bytes>> {
        Array::try_new([elements.len()], elements)
    }
}

impl PadTo for Bytes {
    fn collate_padded(elements: Vec<Self>, _: &BatchPadding, component: &mut usize) -> Result<Array<Bytes>> {
        next_component(component);
        Bytes::collate(elements)
    }
}

impl Collate for String {
    type Batch = Vec<String>;

    fn collate(elements: Vec<Self>) -> Result<Vec<String>> {
        Ok(elements)
    }
}

impl PadTo for String {
    fn collate_padded(elements: Vec<Self>, _: &BatchPadding, component: &mut usize) -> Result<Vec<String>> {
        next_component(component);
        Ok(elements)
    }
}

macro_rules! tuples {
    ($($($t:ident $v:ident),+;)*) => {$(
        impl<$($t: Collate),+> Collate for ($($t,)+) {
            type Batch = ($($t::Batch,)+);

            fn collate(elements: Vec<Self>) -> Result<Self::Batch> {
                $(let mut $v = Vec::with_capacity(elements.len());)+
                #[allow(non_snake_case, reason = "fields are named like their types")]
                for ($($t,)+) in elements {
                    $($v.push($t);)+
                }
                Ok(($($t::collate($v)?,)+))
            }
        }

        impl<$($t: PadTo),+> PadTo for ($($t,)+) {
            fn collate_padded(elements: Vec<Self>, padding: &BatchPadding, component: &mut usize) -> Result<Self::Batch> {
                $(let mut $v = Vec::with_capacity(elements.len());)+
                #[allow(non_snake_case, reason = "fields are named like their types")]
                for ($($t,)+) in elements {
                    $($v.push($t);)+
                }
                Ok(($($t::collate_padded($v, padding, component)?,)+))
            }
        }
    )*};
}

tuples! {
    A a;
    A a, B b;
    A a, B b, C c;
    A a, B b, C c, D d;
    A a, B b, C c, D d, E e;
    A a, B b, C c, D d, E e, F f;
}
