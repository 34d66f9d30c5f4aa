//! Tensors that other programs computed, from the files in `tests/fixtures/`.

use anabranch::{Array, Element, Float};
use std::collections::BTreeMap;

/// Named tensors, with their extents.
pub struct Fixture(BTreeMap<&'static str, (Vec<usize>, Vec<f64>)>);

impl Fixture {
    /// Reads lines of a name, extents in brackets, and elements.
    pub fn parse(text: &'static str) -> Fixture {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let tensors = lines.map(|line| {
            let (name, rest) = line.split_once(" [").expect("a name and a shape");
            let (extents, elements) = rest.split_once(']').expect("a shape");
            let extents: Vec<usize> = extents.split_whitespace().map(|n| n.parse().expect("an extent")).collect();
            let elements: Vec<f64> = elements.split_whitespace().map(|x| x.parse().expect("a number")).collect();
            assert_eq!(extents.iter().product::<usize>(), elements.len(), "{name}");
            (name, (extents, elements))
        });
        Fixture(tensors.collect())
    }

    fn get(&self, name: &str) -> &(Vec<usize>, Vec<f64>) {
        self.0.get(name).unwrap_or_else(|| panic!("no tensor is called `{name}`"))
    }

    /// Returns the elements of a tensor.
    pub fn elements(&self, name: &str) -> &[f64] {
        &self.get(name).1
    }

    /// Returns a tensor of floats.
    pub fn floats<T: Float>(&self, name: &str) -> Array<T> {
        self.converted(name, T::from_f64)
    }

    /// Returns a tensor of integers.
    pub fn integers(&self, name: &str) -> Array<i32> {
        self.converted(name, |x| x as i32)
    }

    /// Returns a tensor of which elements are not 0.
    pub fn flags(&self, name: &str) -> Array<bool> {
        self.converted(name, |x| x != 0.0)
    }

    fn converted<T: Element>(&self, name: &str, convert: impl Fn(f64) -> T) -> Array<T> {
        let (extents, elements) = self.get(name);
        Array::new(extents.clone(), elements.iter().map(|&x| convert(x)).collect::<Vec<_>>())
    }
}
