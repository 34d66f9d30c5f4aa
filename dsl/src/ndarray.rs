//! Conversions for arrays of the `ndarray` crate as arguments and results, with the feature
//! `ndarray`.

use crate::{Array, Element, IntoArray};
use ndarray::{ArrayBase, ArrayD, Data, Dimension, IxDyn};

impl<T: Element, S: Data<Elem = T>, D: Dimension> IntoArray<T> for ArrayBase<S, D> {
    fn into_array(self) -> Array<T> {
        (&self).into_array()
    }
}

impl<T: Element, S: Data<Elem = T>, D: Dimension> IntoArray<T> for &ArrayBase<S, D> {
    /// Copies the elements in row-major order, whatever the memory layout.
    fn into_array(self) -> Array<T> {
        let data = match self.as_slice() {
            Some(data) => data.to_vec(),
            None => self.iter().cloned().collect(),
        };
        Array::new(self.shape(), data)
    }
}

impl<T: Element> From<Array<T>> for ArrayD<T> {
    /// Copies the elements to an array whose shape is dynamic.
    ///
    /// ```
    /// use anabranch::prelude::*;
    /// use ndarray::{Array2, ArrayD, array};
    ///
    /// let x = array![[1.0f32, 2.0], [3.0, 4.0]];
    /// let y: ArrayD<f32> = eval_with(|x: Tensor| x + 1.0, &x.t())?.into();
    /// assert_eq!(y, array![[2.0, 4.0], [3.0, 5.0]].into_dyn());
    /// let z: Array2<f32> = y.into_dimensionality().expect("two dimensions");
    /// assert_eq!(z[[1, 0]], 3.0);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    fn from(array: Array<T>) -> ArrayD<T> {
        let shape = IxDyn(array.shape());
        ArrayD::from_shape_vec(shape, array.to_vec()).expect("the elements are those of the shape")
    }
}
