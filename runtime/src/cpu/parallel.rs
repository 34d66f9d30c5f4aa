//! Work for several threads, in functions that are compiled once.
//!
//! The functions of this module receive the work as a pointer. Rayon's own functions are compiled
//! again for each closure, with all that splits and steals.
//!
//! The split depends on the number of threads. The number of threads must not change a result.

use rayon::prelude::*;

/// Calls `f(0)` to `f(n - 1)` in any order, on all threads of the pool.
pub(crate) fn indices(n: usize, f: &(dyn Fn(usize) + Sync)) {
    (0..n).into_par_iter().for_each(f);
}

/// Calls `f((i, chunk))` for the chunks of `size` elements in any order, on all threads of the
/// pool. The last chunk may be shorter.
pub(crate) fn chunks<T: Send>(data: &mut [T], size: usize, f: impl Fn((usize, &mut [T])) + Sync) {
    struct SlicePtr<T>(*mut T);
    // SAFETY: it stands for a `&mut [T]` whose disjoint chunks go to threads, and `&mut [T]` is
    // `Send`.
    unsafe impl<T: Send> Sync for SlicePtr<T> {}
    impl<T> SlicePtr<T> {
        fn at(&self, i: usize) -> *mut T {
            self.0.wrapping_add(i)
        }
    }

    let (start, len) = (SlicePtr(data.as_mut_ptr()), data.len());
    indices(len.div_ceil(size), &|i| {
        let first = i * size;
        // SAFETY: `i` is below the number of chunks, so the chunk is in `data`, which is borrowed
        // until all calls have returned. Each `i` comes once, so nothing else has its chunk.
        let chunk = unsafe { std::slice::from_raw_parts_mut(start.at(first), size.min(len - first)) };
        f((i, chunk));
    });
}

/// Calls both, at once if there are threads, and returns their results.
pub(crate) fn join<A: Send, B: Send>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
    fn both(a: &mut (dyn FnMut() + Send), b: &mut (dyn FnMut() + Send)) {
        rayon::join(a, b);
    }

    let (mut a, mut b) = (Some(a), Some(b));
    let (mut of_a, mut of_b) = (None, None);
    both(&mut || of_a = a.take().map(|a| a()), &mut || of_b = b.take().map(|b| b()));
    (of_a.expect("each closure is called once"), of_b.expect("each closure is called once"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_comes_once_and_the_last_is_shorter() {
        for (len, size) in [(0, 3), (1, 3), (6, 3), (1000, 7)] {
            let mut data = vec![0; len];
            chunks(&mut data, size, |(i, chunk)| {
                assert_eq!(chunk.len(), size.min(len - i * size));
                chunk.iter_mut().for_each(|x| *x += i + 1);
            });
            assert_eq!(data, (0..len).map(|at| at / size + 1).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_panic_of_one_part_is_that_of_all() {
        let outcome = std::panic::catch_unwind(|| chunks(&mut [0; 100], 1, |(i, _)| assert_ne!(i, 50)));
        assert!(outcome.is_err());
        let outcome = std::panic::catch_unwind(|| join(|| 1, || -> i32 { panic!("on purpose") }));
        assert!(outcome.is_err());
    }

    #[test]
    fn both_results_of_a_join_come_back() {
        assert_eq!(join(|| 1, || "b".to_owned()), (1, "b".to_owned()));
    }
}
