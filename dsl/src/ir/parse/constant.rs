//! Parsing of the elements of constants.

use super::{Parse, Parser};
use crate::ir::literal::read_elements;
use crate::ir::print::MAX_FILL;
use crate::{Buffer, HostTensor, Loc, TensorType};

impl<'a> Parser<'a> {
    pub(super) fn elements(&mut self) -> Parse<ConstantElements<'a>> {
        let mut e = ConstantElements { loc: self.loc(), words: vec![], places: vec![], extents: vec![], rank: None };
        // The number of items so far in each open list.
        let mut open: Vec<usize> = Vec::new();
        loop {
            let loc = self.loc();
            if let Some(count) = open.last_mut() {
                *count += 1;
            }
            if self.eat('[') {
                if e.rank.is_some_and(|rank| open.len() >= rank) {
                    return Err(self.error(loc, "a list where an element is expected"));
                }
                open.push(0);
                if e.extents.len() < open.len() {
                    e.extents.push(None);
                }
                if !self.is(']') {
                    continue;
                }
            } else {
                let word = self.element_word()?;
                if *e.rank.get_or_insert(open.len()) != open.len() {
                    return Err(self.error(loc, "an element where a list is expected"));
                }
                e.words.push(word);
                e.places.push(loc);
            }
            while let Some(&count) = open.last()
                && self.is(']')
            {
                let extent = &mut e.extents[open.len() - 1];
                if *extent.get_or_insert(count) != count {
                    return Err(self.error(self.loc(), "lists of different lengths"));
                }
                open.pop();
                self.next();
            }
            if open.is_empty() {
                return Ok(e);
            }
            self.expect(',')?;
            if self.is(']') {
                return Err(self.unexpected("an element"));
            }
        }
    }
}

/// The elements of a constant, as written.
pub(super) struct ConstantElements<'a> {
    loc: Loc,
    words: Vec<&'a str>,
    places: Vec<Loc>,
    /// The extents of the lists, outermost first, where known.
    extents: Vec<Option<usize>>,
    /// The nesting depth of the elements.
    rank: Option<usize>,
}

impl ConstantElements<'_> {
    /// Builds the tensor of a type, from its elements in order or from one element for all.
    pub(super) fn tensor(&self, ty: &TensorType) -> Result<HostTensor, (Loc, String)> {
        let Some(shape) = ty.shape.known() else {
            return Err((self.loc, format!("a constant of type {ty}: its extents must be known")));
        };
        let size: usize = ty.shape.size().expect("all extents are known");
        let read = read_elements(ty.dtype, &self.words);
        let data =
            read.map_err(|i| (self.places[i], format!("`{}` is not an element of type {}", self.words[i], ty.dtype)))?;
        if self.rank == Some(0) {
            if size > MAX_FILL {
                return Err((self.loc, format!("{ty} is too large for a constant")));
            }
            return Ok(HostTensor::from_buffer(shape, fill(&data, size)));
        }
        let fits = self.extents.len() <= shape.len()
            && self.rank.is_none_or(|rank| rank == shape.len())
            && self.extents.iter().zip(&shape).all(|(e, n)| *e == Some(*n))
            && size == self.words.len();
        if !fits {
            return Err((self.loc, format!("the shape of the lists is not that of {ty}")));
        }
        Ok(HostTensor::from_buffer(shape, data))
    }
}

/// Returns a buffer of `n` copies of one element.
fn fill(one: &Buffer, n: usize) -> Buffer {
    crate::match_buffer!(one, d => crate::Element::into_buffer(std::iter::repeat_n(&d[0], n).cloned().collect()))
}
