//! Elements in memory.
//!
//! Position: the next index.

use crate::Dataset;
use crate::position::SavedWords;
use crate::stage::{Cursor, IndexCursor, IndexedStage, Stage};
use anabranch_dsl::{Array, Diagnostic, Element, Result};
use std::ops::Range;
use std::sync::Arc;

/// Elements that are computed from their index.
struct IndexStage<T> {
    n: u64,
    description: String,
    get: Arc<dyn Fn(u64) -> Result<T> + Send + Sync>,
}

impl<T> Clone for IndexStage<T> {
    fn clone(&self) -> Self {
        IndexStage { n: self.n, description: self.description.clone(), get: self.get.clone() }
    }
}

impl<T: Send + 'static> Stage<T> for IndexStage<T> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T>>> {
        Ok(Box::new(IndexCursor::new(self.clone(), epoch, at)))
    }

    fn len(&self) -> Option<u64> {
        Some(self.n)
    }

    fn describe(&self, text: &mut String) {
        *text += &self.description;
    }

    fn indexed(&self) -> Option<&dyn IndexedStage<T>> {
        Some(self as _)
    }
}

impl<T: Send + 'static> IndexedStage<T> for IndexStage<T> {
    fn n(&self) -> u64 {
        self.n
    }

    fn get(&self, _epoch: u64, index: u64) -> Result<T> {
        (self.get)(index)
    }
}

impl Dataset<i64> {
    /// Returns the numbers of a range.
    ///
    /// ```
    /// # use anabranch::data::Dataset;
    /// assert_eq!(Dataset::range(3..10).len(), Some(7));
    /// ```
    pub fn range(range: Range<i64>) -> Dataset<i64> {
        let n = if range.is_empty() { 0 } else { range.end.abs_diff(range.start) };
        let (start, description) = (range.start, format!("range({range:?})"));
        Dataset::of(IndexStage { n, description, get: Arc::new(move |i| Ok(start.wrapping_add_unsigned(i))) })
    }
}

impl<T: Clone + Send + Sync + 'static> Dataset<T> {
    /// Returns the elements of a vector.
    pub fn new(elements: impl Into<Vec<T>>) -> Dataset<T> {
        let elements: Vec<T> = elements.into();
        let (n, description) = (elements.len() as u64, format!("{} elements", elements.len()));
        Dataset::of(IndexStage { n, description, get: Arc::new(move |i| Ok(elements[i as usize].clone())) })
    }
}

impl<T: Send + 'static> Dataset<T> {
    /// Returns `n` elements that a function computes from their indices, such as the records of a
    /// file with an index. `name` is the name of the source in messages and stored positions.
    ///
    /// ```
    /// # use anabranch::data::Dataset;
    /// let squares = Dataset::from_fn("squares", 4, |i| Ok(i * i));
    /// assert_eq!(squares.iter().last().unwrap()?, 9);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn from_fn(name: &str, n: u64, get: impl Fn(u64) -> Result<T> + Send + Sync + 'static) -> Dataset<T> {
        Dataset::of(IndexStage { n, description: format!("{name} ({n})"), get: Arc::new(get) })
    }
}

/// Arrays whose rows are the elements of a dataset: an array, or a tuple of arrays with as many
/// rows.
pub trait RowArrays: Send + Sync + 'static {
    /// The type of a row.
    type Row: Send + 'static;

    /// Returns the number of rows.
    ///
    /// # Errors
    /// Returns an error if an array has no rows or if two arrays have different numbers of rows.
    fn n_rows(&self) -> Result<usize>;

    /// Returns a row, which must exist.
    fn row(&self, i: usize) -> Self::Row;
}

impl<T: Element> RowArrays for Array<T> {
    type Row = Array<T>;

    fn n_rows(&self) -> Result<usize> {
        let scalar = || Diagnostic::new("a single number has no rows").help("use an array with at least one axis");
        self.shape().first().copied().ok_or_else(scalar)
    }

    fn row(&self, i: usize) -> Array<T> {
        let shape = &self.shape()[1..];
        let size: usize = shape.iter().product();
        Array::new(shape, self.as_slice()[i * size..][..size].to_vec())
    }
}

macro_rules! rows_of_tuples {
    ($($first:ident $i:tt $(, $other:ident $j:tt)*;)*) => {$(
        impl<$first: RowArrays $(, $other: RowArrays)*> RowArrays for ($first, $($other,)*) {
            type Row = ($first::Row, $($other::Row,)*);

            fn n_rows(&self) -> Result<usize> {
                let n = self.$i.n_rows()?;
                $(same_rows(n, self.$j.n_rows()?)?;)*
                Ok(n)
            }

            fn row(&self, i: usize) -> Self::Row {
                (self.$i.row(i), $(self.$j.row(i),)*)
            }
        }
    )*};
}

fn same_rows(a: usize, b: usize) -> Result<()> {
    if a == b {
        return Ok(());
    }
    let message = format!("the arrays of a dataset have different numbers of rows: {a} and {b}");
    Err(Diagnostic::new(message).help("each element consists of one row of each array"))
}

rows_of_tuples! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
}

impl<T: Send + 'static> Dataset<T> {
    /// Returns the rows of an array, or those of several arrays as tuples.
    ///
    /// # Errors
    /// Returns an error if the arrays do not have the same number of rows.
    ///
    /// ```
    /// use anabranch::data::Dataset;
    /// use anabranch::Array;
    ///
    /// let (x, y) = (Array::new([2, 3], vec![0.0_f32; 6]), Array::new([2], vec![7, 8]));
    /// let data = Dataset::rows((x, y))?;
    /// let (x, y) = data.iter().last().unwrap()?;
    /// assert_eq!((x.shape(), y.item()), (&[3][..], 8));
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn rows<R: RowArrays<Row = T>>(arrays: R) -> Result<Dataset<T>> {
        let n = arrays.n_rows()?;
        let get = Arc::new(move |i| Ok(arrays.row(i as usize)));
        Ok(Dataset::of(IndexStage { n: n as u64, description: format!("{n} rows"), get }))
    }
}
