//! Joint iteration over several strided operands.

/// An axis with its extent and the stride of each operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axis<const N: usize> {
    pub(crate) n: usize,
    pub(crate) strides: [isize; N],
}

/// Returns the axes of a space shared by `N` operands, outermost first, merged where all operands
/// permit it.
///
/// Axes of extent 1 are dropped. A space without elements keeps one axis of extent 0.
pub(crate) fn merged<const N: usize>(shape: &[usize], strides: [&[isize]; N]) -> Vec<Axis<N>> {
    if shape.contains(&0) {
        return vec![Axis { n: 0, strides: [0; N] }];
    }
    let mut axes: Vec<Axis<N>> = Vec::new();
    for (i, &n) in shape.iter().enumerate() {
        if n == 1 {
            continue;
        }
        let strides: [isize; N] = std::array::from_fn(|k| strides[k][i]);
        match axes.last_mut() {
            Some(last) if (0..N).all(|k| last.strides[k] == strides[k] * n as isize) => {
                *last = Axis { n: last.n * n, strides };
            }
            _ => axes.push(Axis { n, strides }),
        }
    }
    axes
}

/// Calls `f` with the offset of each operand for every combination of indices, in row-major order.
/// Does not allocate.
#[inline]
pub(crate) fn for_each<const N: usize>(axes: &[Axis<N>], start: [isize; N], f: &mut impl FnMut([isize; N])) {
    match axes {
        [] => f(start),
        [axis] => {
            let mut at = start;
            for _ in 0..axis.n {
                f(at);
                at.iter_mut().zip(axis.strides).for_each(|(at, s)| *at += s);
            }
        }
        [axis, inner @ ..] => {
            let mut at = start;
            for _ in 0..axis.n {
                for_each(inner, at, f);
                at.iter_mut().zip(axis.strides).for_each(|(at, s)| *at += s);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_merge_where_all_operands_agree() {
        let a = merged(&[2, 1, 3, 4], [&[12, 99, 4, 1], &[0, 0, 4, 1]]);
        assert_eq!(a, [Axis { n: 2, strides: [12, 0] }, Axis { n: 12, strides: [1, 1] }]);
        assert_eq!(merged(&[2, 0], [&[1, 1]]), [Axis { n: 0, strides: [0] }]);
        assert!(merged(&[1, 1], [&[1, 1]]).is_empty());
    }

    #[test]
    fn every_element_is_visited_in_order() {
        let mut seen = Vec::new();
        for_each(&merged(&[2, 3], [&[1, 2], &[3, 1]]), [10, 0], &mut |at| seen.push(at));
        assert_eq!(seen, [[10, 0], [12, 1], [14, 2], [11, 3], [13, 4], [15, 5]]);
    }
}
