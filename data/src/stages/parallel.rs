//! Functions of elements on threads.
//!
//! Position: that of the same function without threads. Elements that are only read ahead have that
//! of the dataset below.
//!
//! The workers of a pass take elements from below in order, each with its number, and store the
//! results under these numbers. At most `ahead` elements are taken and not delivered. A
//! worker takes an element while it holds the lock of the feed; elements with access by index are
//! computed without it. The position of a pass is that behind the last element delivered, which
//! came with that element.

use super::map::ElementFn;
use crate::Dataset;
use crate::position::SavedWords;
use crate::stage::{Cursor, Stage};
use anabranch_dsl::{Diagnostic, Result};
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A function on threads.
pub(crate) struct ParallelMapStage<T, U> {
    upstream: Dataset<T>,
    /// `None` if the function returns its argument.
    name: Option<String>,
    threads: usize,
    ahead: usize,
    f: ElementFn<T, U>,
}

impl<T, U> ParallelMapStage<T, U> {
    pub(crate) fn new(
        upstream: Dataset<T>,
        name: Option<&str>,
        threads: usize,
        ahead: usize,
        f: impl Fn(T, u64, u64) -> Result<U> + Send + Sync + 'static,
    ) -> ParallelMapStage<T, U> {
        ParallelMapStage { upstream, name: name.map(str::to_owned), threads, ahead, f: Arc::new(f) }
    }
}

impl<T: Send + 'static, U: Send + 'static> Stage<U> for ParallelMapStage<T, U> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<U>>> {
        let has_number = self.name.is_some() || self.upstream.n_by_index().is_some();
        let (next, mut words) = if has_number { at.words_of(SavedWords::word) } else { (0, Vec::new()) };
        let feed = match self.upstream.n_by_index() {
            Some(_) => Elements::ByIndex(self.upstream.clone(), next),
            None => {
                let (cursor, below) = at.words_of(|at| self.upstream.stage.open(epoch, at));
                words.extend(below);
                Elements::InOrder(cursor?)
            }
        };
        let feed = ElementFeed { elements: feed, next, has_ended: false };
        let skipped = feed.elements.skipped();
        let pass = Arc::new(ParallelPass {
            feed: Mutex::new(feed),
            results: Mutex::new(ElementResults {
                done: BTreeMap::new(),
                delivered: next,
                end: None,
                at_end: None,
                is_closed: false,
                ahead: self.ahead as u64,
            }),
            changed: Condvar::new(),
            f: self.f.clone(),
            epoch,
        });
        let mut cursor = ParallelCursor { pass, workers: Vec::new(), words, has_number, skipped };
        for _ in 0..self.threads {
            let pass = cursor.pass.clone();
            let worker = std::thread::Builder::new().name("anabranch-data".to_owned()).spawn(move || pass.work());
            let failed = |error| Diagnostic::new(format!("a thread of a dataset cannot be started: {error}"));
            cursor.workers.push(worker.map_err(failed)?);
        }
        Ok(Box::new(cursor))
    }

    fn len(&self) -> Option<u64> {
        self.upstream.stage.len()
    }

    fn describe(&self, text: &mut String) {
        self.upstream.stage.describe(text);
        // The number of threads does not change what a position means. But the stages behind have
        // no access by index, as they have behind the same function without threads.
        if let Some(name) = &self.name {
            *text += &format!(", {name}");
        }
        if self.upstream.n_by_index().is_some() {
            *text += ", prefetch";
        }
    }

    fn describe_last(&self, text: &mut String) {
        match &self.name {
            Some(name) => {
                self.upstream.stage.describe(text);
                *text += &format!(", {name}");
            }
            None => self.upstream.stage.describe_last(text),
        }
    }
}

/// Elements that workers take.
enum Elements<T> {
    InOrder(Box<dyn Cursor<T>>),
    /// With the next index.
    ByIndex(Dataset<T>, u64),
}

impl<T> Elements<T> {
    fn skipped(&self) -> u64 {
        match self {
            Elements::InOrder(cursor) => cursor.skipped(),
            Elements::ByIndex(..) => 0,
        }
    }
}

struct ElementFeed<T> {
    elements: Elements<T>,
    /// The number of the next element.
    next: u64,
    has_ended: bool,
}

/// An element that a worker has taken.
enum Taken<T> {
    Element(Result<T>),
    /// To be computed without the lock.
    Index(Dataset<T>, u64),
}

/// A result that waits for its turn.
struct Waiting<U> {
    outcome: Result<U>,
    /// The position behind it, below this stage.
    words: Vec<u64>,
    skipped: u64,
}

struct ElementResults<U> {
    /// By number. A panic waits for its turn like a result.
    done: BTreeMap<u64, std::result::Result<Waiting<U>, Box<dyn Any + Send>>>,
    /// The number of elements that were delivered since the start of the epoch.
    delivered: u64,
    /// The number of elements, once the end was reached,
    end: Option<u64>,
    /// and the position and the skipped elements below there.
    at_end: Option<(Vec<u64>, u64)>,
    is_closed: bool,
    ahead: u64,
}

impl<U> ElementResults<U> {
    /// Notes that there are at most `n` elements.
    fn ends_at(&mut self, n: u64) {
        self.end = Some(self.end.map_or(n, |end| end.min(n)));
    }
}

struct ParallelPass<T, U> {
    feed: Mutex<ElementFeed<T>>,
    results: Mutex<ElementResults<U>>,
    /// Signals a result, room for more, or the end.
    changed: Condvar,
    f: ElementFn<T, U>,
    epoch: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T, U> ParallelPass<T, U> {
    /// Computes elements until the end, or until the pass is closed.
    fn work(&self) {
        loop {
            let mut feed = lock(&self.feed);
            let number = feed.next;
            // At its end the feed stays as it is, however many workers ask.
            if feed.has_ended || !self.wait_for_room(number) {
                return;
            }
            feed.next += 1;
            let computed = catch_unwind(AssertUnwindSafe(|| {
                let taken = feed.take();
                feed.has_ended = taken.is_none();
                let (mut words, skipped) = (Vec::new(), feed.elements.skipped());
                feed.elements.save(&mut words);
                drop(feed);
                let element = match taken {
                    Some(Taken::Element(element)) => element,
                    Some(Taken::Index(dataset, index)) => dataset.at(self.epoch, index),
                    None => return Err((words, skipped)),
                };
                let outcome = element.and_then(|x| (self.f)(x, self.epoch, number));
                Ok(Waiting { outcome, words, skipped })
            }));
            let mut results = lock(&self.results);
            match computed {
                Ok(Ok(result)) => drop(results.done.insert(number, Ok(result))),
                Ok(Err(at_end)) => {
                    results.ends_at(number);
                    results.at_end.get_or_insert(at_end);
                }
                Err(panic) => {
                    results.done.insert(number, Err(panic));
                    results.ends_at(number + 1);
                }
            }
            drop(results);
            self.changed.notify_all();
        }
    }

    /// Waits until an element may be taken. Returns whether one may.
    fn wait_for_room(&self, number: u64) -> bool {
        let is_full = |r: &mut ElementResults<U>| !r.is_closed && r.end.is_none() && number - r.delivered >= r.ahead;
        let results = self.changed.wait_while(lock(&self.results), is_full).unwrap_or_else(PoisonError::into_inner);
        !results.is_closed && results.end.is_none()
    }
}

impl<T> ElementFeed<T> {
    fn take(&mut self) -> Option<Taken<T>> {
        match &mut self.elements {
            Elements::InOrder(cursor) => cursor.next().map(Taken::Element),
            Elements::ByIndex(dataset, next) => {
                let index = *next;
                (index < dataset.n_by_index().unwrap_or(0)).then(|| {
                    *next += 1;
                    Taken::Index(dataset.clone(), index)
                })
            }
        }
    }
}

impl<T> Elements<T> {
    fn save(&self, words: &mut Vec<u64>) {
        match self {
            Elements::InOrder(cursor) => cursor.save(words),
            // The number of the next element is its index.
            Elements::ByIndex(..) => {}
        }
    }
}

struct ParallelCursor<T, U> {
    pass: Arc<ParallelPass<T, U>>,
    workers: Vec<JoinHandle<()>>,
    /// The position behind the last element that was delivered.
    words: Vec<u64>,
    /// Whether the position has the number of the next element.
    has_number: bool,
    skipped: u64,
}

impl<T, U> Cursor<U> for ParallelCursor<T, U>
where
    T: Send,
    U: Send,
{
    fn next(&mut self) -> Option<Result<U>> {
        let mut results = lock(&self.pass.results);
        let number = results.delivered;
        let is_missing =
            |r: &mut ElementResults<U>| !r.done.contains_key(&number) && r.end.is_none_or(|end| number < end);
        results = self.pass.changed.wait_while(results, is_missing).unwrap_or_else(PoisonError::into_inner);
        if results.end.is_some_and(|end| number >= end) {
            // What was skipped behind the last element is known now.
            let at_end = results.at_end.take();
            drop(results);
            if let Some((words, skipped)) = at_end {
                self.moved_to(number, words, skipped);
            }
            return None;
        }
        let result = results.done.remove(&number)?;
        results.delivered += 1;
        drop(results);
        self.pass.changed.notify_all();
        let Waiting { outcome, words, skipped } = result.unwrap_or_else(|panic| resume_unwind(panic));
        self.moved_to(number + 1, words, skipped);
        Some(outcome)
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.extend(&self.words);
    }

    fn skipped(&self) -> u64 {
        self.skipped
    }
}

impl<T, U> ParallelCursor<T, U> {
    /// Notes the position behind an element: the number of the next one, and the words below.
    fn moved_to(&mut self, number: u64, below: Vec<u64>, skipped: u64) {
        self.words = if self.has_number { [vec![number], below].concat() } else { below };
        self.skipped = skipped;
    }
}

impl<T, U> Drop for ParallelCursor<T, U> {
    fn drop(&mut self) {
        lock(&self.pass.results).is_closed = true;
        self.pass.changed.notify_all();
        for worker in self.workers.drain(..) {
            // A worker sends its panics to the consumer.
            let _ = worker.join();
        }
    }
}
