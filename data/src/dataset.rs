//! Datasets: descriptions of pipelines, as users build them.

use crate::iter::DatasetIter;
use crate::order::ElementRng;
use crate::position::{DatasetPosition, SavedWords};
use crate::stage::{IndexedStage, Stage};
use crate::stages::batch::BatchStage;
use crate::stages::bucket::{BucketStage, Buckets};
use crate::stages::cache::CacheStage;
use crate::stages::chain::ChainStage;
use crate::stages::filter::{FilterStage, SkipErrorsStage};
use crate::stages::flat_map::FlatMapStage;
use crate::stages::interleave::InterleaveStage;
use crate::stages::map::MapStage;
use crate::stages::parallel::ParallelMapStage;
use crate::stages::part::{ShardStage, SkipStage, TakeStage};
use crate::stages::repeat::RepeatStage;
use crate::stages::shuffle::ShuffleStage;
use crate::stages::zip::ZipStage;
use crate::{BatchPadding, Collate, PadTo};
use anabranch_dsl::{Diagnostic, Result};
use std::sync::Arc;

/// A sequence of elements, and how they are made: a source, and stages on top of it.
///
/// A dataset is a description. It holds no data but that of its source, and can be iterated any
/// number of times; [`epoch`](Dataset::epoch) and [`iter`](Dataset::iter) start a pass. Cloning
/// returns another handle of the same dataset.
///
/// **Order.** The elements and their order depend on the seeds and the number of the epoch alone,
/// whatever the number of threads. So an iterator can be continued from a stored
/// [`DatasetPosition`] exactly where it was.
///
/// **Access by index.** Sources in memory have it, and the stages `map`, `zip`, `chain`, `take`,
/// `skip`, `shard`, `shuffle`, `repeat`, `cache` and `batch` keep it. With it,
/// [`shuffle`](Dataset::shuffle) permutes all elements without holding any, and a position is one
/// number.
///
/// **Errors.** An element that cannot be made is an error in its place, and the iterator goes on
/// behind it. [`skip_errors`](Dataset::skip_errors) leaves such elements out and counts them.
///
/// ```
/// use anabranch::data::Dataset;
///
/// let squares = Dataset::range(0..10).map(|x| (x * x) as f32).batch(4);
/// for batch in squares.iter() {
///     println!("{}", batch?); // arrays of 4, 4 and 2 numbers
/// }
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
pub struct Dataset<T> {
    pub(crate) stage: Arc<dyn Stage<T>>,
    /// The number of elements, if there is access by index.
    n_by_index: Option<u64>,
}

impl<T> Clone for Dataset<T> {
    fn clone(&self) -> Self {
        Dataset { stage: self.stage.clone(), n_by_index: self.n_by_index }
    }
}

impl<T> std::fmt::Debug for Dataset<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dataset({})", self.pipeline())
    }
}

impl<T: Send + 'static> Dataset<T> {
    pub(crate) fn of(stage: impl Stage<T> + 'static) -> Dataset<T> {
        let n_by_index = stage.indexed().map(IndexedStage::n);
        Dataset { stage: Arc::new(stage), n_by_index }
    }

    /// Starts a pass over the elements of epoch 0.
    pub fn iter(&self) -> DatasetIter<T> {
        self.epoch(0)
    }

    /// Starts a pass over the elements of an epoch. Stages that shuffle or draw random numbers do
    /// so in another way in each epoch.
    ///
    /// ```
    /// # use anabranch::data::Dataset;
    /// let numbers = Dataset::range(0..100).shuffle(100, 7);
    /// let first = |epoch| numbers.epoch(epoch).next().unwrap().unwrap();
    /// assert_eq!(first(1), first(1));
    /// assert_ne!(first(1), first(2));
    /// ```
    pub fn epoch(&self, epoch: u64) -> DatasetIter<T> {
        let cursor = self.stage.open(epoch, &mut SavedWords::start());
        DatasetIter::new(self.pipeline(), epoch, cursor)
    }

    /// Returns the position before the first element of an epoch, without a pass over it.
    pub fn start(&self, epoch: u64) -> DatasetPosition {
        DatasetPosition { pipeline: self.pipeline(), epoch, words: Vec::new() }
    }

    /// Continues the pass whose position was stored.
    ///
    /// # Errors
    /// Returns an error if the position is of another pipeline, or if a file cannot be read at it.
    pub fn resume(&self, position: &DatasetPosition) -> Result<DatasetIter<T>> {
        let pipeline = self.pipeline();
        if position.pipeline != pipeline {
            let message = format!("the position is of the dataset\n  {}\nand this is\n  {pipeline}", position.pipeline);
            return Err(
                Diagnostic::new(message).help("continue with the stages and seeds that the position was taken with")
            );
        }
        // A pass that could not be opened has no words.
        let at_start = position.words.is_empty();
        let mut words = if at_start { SavedWords::start() } else { SavedWords::new(&position.words) };
        let cursor = self.stage.open(position.epoch, &mut words)?;
        if !words.is_complete() {
            let message = "the position of a dataset is damaged: it does not have the numbers that its stages need";
            return Err(Diagnostic::new(message).help("use a position as `DatasetIter::position` returned it"));
        }
        Ok(DatasetIter::new(pipeline, position.epoch, Ok(cursor)))
    }

    /// Returns the number of elements of each epoch, if it is known without reading them.
    pub fn len(&self) -> Option<u64> {
        self.stage.len()
    }

    /// Returns whether each epoch is known to have no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Applies a function to each element.
    ///
    /// The function must be one: its result may depend on the element alone. For random numbers use
    /// [`map_random`](Dataset::map_random).
    pub fn map<U: Send + 'static>(&self, f: impl Fn(T) -> U + Send + Sync + 'static) -> Dataset<U> {
        self.try_map(move |x| Ok(f(x)))
    }

    /// Applies a function that can fail, such as the call of a graph function.
    ///
    /// ```
    /// use anabranch::data::Dataset;
    /// use anabranch::prelude::*;
    ///
    /// #[graph]
    /// fn scaled(x: Tensor) -> Tensor {
    ///     if x > 0.5 { x * 2.0 } else { x }
    /// }
    ///
    /// let scaled = Session::new()?.function(scaled)?;
    /// let data = Dataset::range(0..2).map(|x| x as f32).try_map(move |x| scaled.call(x));
    /// let all: Vec<f32> = data.iter().map(|x| x.unwrap().item()).collect();
    /// assert_eq!(all, [0.0, 2.0]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    pub fn try_map<U: Send + 'static>(&self, f: impl Fn(T) -> Result<U> + Send + Sync + 'static) -> Dataset<U> {
        Dataset::of(MapStage::new(self.clone(), "map", move |x, _, _| f(x)))
    }

    /// Applies a function of the element and of random numbers for it.
    pub fn map_random<U: Send + 'static>(
        &self,
        seed: u64,
        f: impl Fn(T, &mut ElementRng) -> U + Send + Sync + 'static,
    ) -> Dataset<U> {
        let f = move |x, epoch, element| Ok(f(x, &mut ElementRng::new(seed, epoch, element)));
        Dataset::of(MapStage::new(self.clone(), &format!("map_random({seed})"), f))
    }

    /// Computes the elements of this dataset ahead, on a number of threads, at most `ahead` more
    /// than were taken. The order stays, and so do positions: a run can continue with another
    /// `prefetch` at the end, or with none.
    ///
    /// Elements with access by index are computed in parallel, with all stages below. Otherwise one
    /// thread at a time takes the next element from below: use
    /// [`map_parallel`](Dataset::map_parallel) for stages that should run in parallel.
    ///
    /// The threads end when the iterator is dropped, after the elements that they are working on.
    ///
    /// # Panics
    /// Panics if `threads` or `ahead` is 0.
    #[track_caller]
    pub fn prefetch(&self, threads: usize, ahead: usize) -> Dataset<T> {
        assert!(threads > 0 && ahead > 0, "elements are computed by at least one thread, and at least one ahead");
        Dataset::of(ParallelMapStage::new(self.clone(), None, threads, ahead, |x, _, _| Ok(x)))
    }

    /// Applies a function like [`try_map`](Dataset::try_map), on a number of threads. The order
    /// stays, and at most twice as many elements as threads are computed ahead.
    ///
    /// # Panics
    /// Panics if `threads` is 0.
    #[track_caller]
    pub fn map_parallel<U: Send + 'static>(
        &self,
        threads: usize,
        f: impl Fn(T) -> Result<U> + Send + Sync + 'static,
    ) -> Dataset<U> {
        assert!(threads > 0, "elements are computed by at least one thread");
        Dataset::of(ParallelMapStage::new(self.clone(), Some("map"), threads, 2 * threads, move |x, _, _| f(x)))
    }

    /// Applies a function of random numbers like [`map_random`](Dataset::map_random), on a number
    /// of threads.
    ///
    /// # Panics
    /// Panics if `threads` is 0.
    #[track_caller]
    pub fn map_random_parallel<U: Send + 'static>(
        &self,
        threads: usize,
        seed: u64,
        f: impl Fn(T, &mut ElementRng) -> Result<U> + Send + Sync + 'static,
    ) -> Dataset<U> {
        assert!(threads > 0, "elements are computed by at least one thread");
        let f = move |x, epoch, element| f(x, &mut ElementRng::new(seed, epoch, element));
        Dataset::of(ParallelMapStage::new(self.clone(), Some(&format!("map_random({seed})")), threads, 2 * threads, f))
    }

    /// Leaves out elements for which `keep` returns false.
    pub fn filter(&self, keep: impl Fn(&T) -> bool + Send + Sync + 'static) -> Dataset<T> {
        Dataset::of(FilterStage { upstream: self.clone(), keep: Arc::new(keep) })
    }

    /// Leaves out elements that are errors, and counts them: see [`DatasetIter::skipped`].
    pub fn skip_errors(&self) -> Dataset<T> {
        Dataset::of(SkipErrorsStage { upstream: self.clone() })
    }

    /// Replaces each element by the elements of a dataset that is made from it, such as a file by
    /// its records.
    pub fn flat_map<U: Send + 'static>(
        &self,
        f: impl Fn(T) -> Result<Dataset<U>> + Send + Sync + 'static,
    ) -> Dataset<U> {
        Dataset::of(FlatMapStage { upstream: self.clone(), f: Arc::new(f) })
    }

    /// Replaces elements by datasets like [`flat_map`](Dataset::flat_map), with `cycle` of them
    /// open at once. It takes `block` elements from each in turn. The next dataset takes the place
    /// of one that has ended.
    ///
    /// # Panics
    /// Panics if `cycle` or `block` is 0.
    #[track_caller]
    pub fn interleave<U: Send + 'static>(
        &self,
        cycle: usize,
        block: usize,
        f: impl Fn(T) -> Result<Dataset<U>> + Send + Sync + 'static,
    ) -> Dataset<U> {
        assert!(cycle > 0 && block > 0, "at least one dataset is open, and gives at least one element");
        Dataset::of(InterleaveStage { upstream: self.clone(), cycle, block, f: Arc::new(f) })
    }

    /// Pairs the elements with those of another dataset. It ends with the shorter one. A pair is an
    /// error if one of its elements is.
    pub fn zip<U: Send + 'static>(&self, other: &Dataset<U>) -> Dataset<(T, U)> {
        Dataset::of(ZipStage { a: self.clone(), b: other.clone() })
    }

    /// Continues with the elements of another dataset.
    pub fn chain(&self, other: &Dataset<T>) -> Dataset<T> {
        Dataset::of(ChainStage::new(self, other))
    }

    /// Shuffles the elements, in another way in each epoch.
    ///
    /// With access by index the result is a random permutation of all elements, and nothing is
    /// held in memory. Otherwise `window` elements at a time are read and permuted: an element
    /// never leaves its window, so shuffle the files, too.
    ///
    /// # Panics
    /// Panics if `window` is 0.
    #[track_caller]
    pub fn shuffle(&self, window: usize, seed: u64) -> Dataset<T> {
        assert!(window > 0, "at least one element is in the window");
        Dataset::of(ShuffleStage { upstream: self.clone(), window, seed })
    }

    /// Takes the first `n` elements.
    pub fn take(&self, n: u64) -> Dataset<T> {
        Dataset::of(TakeStage { upstream: self.clone(), n })
    }

    /// Leaves out the first `n` elements.
    pub fn skip(&self, n: u64) -> Dataset<T> {
        Dataset::of(SkipStage { upstream: self.clone(), n })
    }

    /// Takes the part `i` of `n`: the elements whose index divided by `n` has the remainder `i`.
    /// The parts are disjoint and together are the dataset; their sizes differ by at most 1.
    ///
    /// Take a part before elements are shuffled, so that each process reads its own. After it an
    /// element has its number in the part: give each part a seed of its own, if elements of
    /// different parts shall have different random numbers.
    ///
    /// # Panics
    /// Panics if `i` is not less than `n`.
    #[track_caller]
    pub fn shard(&self, i: u64, n: u64) -> Dataset<T> {
        assert!(i < n, "the part {i} of {n} does not exist: parts are counted from 0");
        Dataset::of(ShardStage { upstream: self.clone(), i, n })
    }

    /// Repeats the elements `n` times. Each time is an epoch of the stages below, so what they
    /// shuffle is shuffled anew.
    pub fn repeat(&self, n: u64) -> Dataset<T> {
        Dataset::of(RepeatStage { upstream: self.clone(), n: Some(n) })
    }

    /// Repeats the elements without end, like [`repeat`](Dataset::repeat).
    pub fn repeat_endlessly(&self) -> Dataset<T> {
        Dataset::of(RepeatStage { upstream: self.clone(), n: None })
    }

    /// Keeps elements in memory, so that the stages below compute each once. They are those of
    /// epoch 0 in all epochs: shuffle and draw random numbers above the cache.
    ///
    /// With access by index an element is kept when it is first taken, and an error is tried again.
    /// Otherwise all are kept after the first pass that was complete, errors in their places too.
    pub fn cache(&self) -> Dataset<T>
    where
        T: Clone + Sync,
    {
        Dataset::of(CacheStage::new(self.clone()))
    }

    /// Joins each `n` elements to a batch, along a new first axis. The last batch may be smaller.
    ///
    /// A batch is an error if one of its elements is: use [`skip_errors`](Dataset::skip_errors)
    /// before, if broken elements should be left out.
    ///
    /// ```
    /// use anabranch::data::Dataset;
    ///
    /// let data = Dataset::range(0..5).map(|x| ([x as f32, 1.0], x)).batch(3);
    /// let (points, labels) = data.iter().next().unwrap()?;
    /// assert_eq!(points.shape(), [3, 2]);
    /// assert_eq!(labels.to_vec(), [0, 1, 2]);
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Panics
    /// Panics if `n` is 0.
    #[track_caller]
    pub fn batch(&self, n: usize) -> Dataset<T::Batch>
    where
        T: Collate,
    {
        self.batch_with(n, false, T::collate)
    }

    /// Joins elements like [`batch`](Dataset::batch), and leaves out the last batch if it is
    /// smaller, so that all have the same shape.
    ///
    /// # Panics
    /// Panics if `n` is 0.
    #[track_caller]
    pub fn batch_exact(&self, n: usize) -> Dataset<T::Batch>
    where
        T: Collate,
    {
        self.batch_with(n, true, T::collate)
    }

    /// Joins elements of different extents like [`batch`](Dataset::batch): each array is filled up
    /// to the largest extents of the batch, or to those of `padding`.
    ///
    /// ```
    /// use anabranch::data::{Dataset, BatchPadding};
    ///
    /// let words = Dataset::new(vec![vec![1, 2], vec![3]]).padded_batch(2, BatchPadding::zeros());
    /// let batch = words.iter().next().unwrap()?;
    /// assert_eq!((batch.shape(), batch.to_vec()), (&[2, 2][..], vec![1, 2, 3, 0]));
    /// # Ok::<(), anabranch::Diagnostic>(())
    /// ```
    ///
    /// # Panics
    /// Panics if `n` is 0.
    #[track_caller]
    pub fn padded_batch(&self, n: usize, padding: BatchPadding) -> Dataset<T::Batch>
    where
        T: PadTo,
    {
        self.batch_with(n, false, move |elements| padding.collate(elements))
    }

    #[track_caller]
    fn batch_with<B: Send + 'static>(
        &self,
        n: usize,
        exact: bool,
        collate: impl Fn(Vec<T>) -> Result<B> + Send + Sync + 'static,
    ) -> Dataset<B> {
        assert!(n > 0, "at least one element is in a batch");
        Dataset::of(BatchStage { upstream: self.clone(), n, exact, collate: Arc::new(collate) })
    }

    /// Joins elements of similar length to padded batches.
    ///
    /// An element is in the first bucket whose boundary is greater than its length, or in the last
    /// one. A bucket with as many elements as its batch size becomes a batch. At the end the rest
    /// of each bucket becomes a batch, in the order of the buckets.
    ///
    /// `sizes` has one more number than `boundaries`.
    ///
    /// A pass that continues from a stored position reads again what waits in the buckets: for each
    /// of these elements the dataset below is opened at its position, which behind a shuffled
    /// window reads the window.
    ///
    /// # Panics
    /// Panics if the boundaries do not increase, if a size is 0, or if there is not one more size
    /// than boundaries.
    #[track_caller]
    pub fn bucket_by_length(
        &self,
        boundaries: impl Into<Vec<usize>>,
        sizes: impl Into<Vec<usize>>,
        length: impl Fn(&T) -> usize + Send + Sync + 'static,
        padding: BatchPadding,
    ) -> Dataset<T::Batch>
    where
        T: PadTo,
    {
        let buckets = Buckets::new(boundaries.into(), sizes.into());
        Dataset::of(BucketStage { upstream: self.clone(), buckets, length: Arc::new(length), padding })
    }
}

impl<T> Dataset<T> {
    pub(crate) fn pipeline(&self) -> String {
        let mut text = String::new();
        self.stage.describe_last(&mut text);
        text
    }

    /// Returns the number of elements, if there is access by index.
    pub(crate) fn n_by_index(&self) -> Option<u64> {
        self.n_by_index
    }

    /// Returns an element of an epoch by its index. Only stages with access by index call it.
    pub(crate) fn at(&self, epoch: u64, index: u64) -> Result<T> {
        self.stage.indexed().expect("the stage has access by index").get(epoch, index)
    }
}
