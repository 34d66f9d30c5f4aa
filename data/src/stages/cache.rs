//! Elements that are kept in memory.
//!
//! Position: the next index.

use crate::Dataset;
use crate::position::SavedWords;
use crate::stage::{Cursor, IndexCursor, IndexedStage, Stage};
use anabranch_dsl::Result;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// The epoch of the elements that are kept.
const EPOCH: u64 = 0;

pub(crate) struct CacheStage<T> {
    upstream: Dataset<T>,
    kept: Arc<Kept<T>>,
}

enum Kept<T> {
    /// Each element when it is first taken. Errors are not kept.
    Each(LazyPlaces<T>),
    /// All elements, when a pass has read them.
    All(OnceLock<Arc<KeptStream<T>>>),
}

/// Places for elements that are known by their index. Memory is taken for those near an element
/// that was put in its place.
enum LazyPlaces<T> {
    Few(PlaceTable<T>),
    Many(PlaceMap<T>),
}

/// Neighboring places.
type Chunk<T> = [OnceLock<T>];

/// Places with a table of all chunks.
struct PlaceTable<T> {
    n: u64,
    /// Number of places of a chunk.
    chunk: u64,
    chunks: Vec<OnceLock<Box<Chunk<T>>>>,
}

/// So many places that not even a table of their chunks is made in advance.
struct PlaceMap<T> {
    n: u64,
    chunks: RwLock<HashMap<u64, Arc<Chunk<T>>>>,
}

/// Maximum number of places with a table, of some thousand chunks.
const MAX_IN_TABLE: u64 = 1 << 24;

/// Number of places of a chunk in a map.
const MAPPED_CHUNK: u64 = 256;

fn chunk_of<T, C: FromIterator<OnceLock<T>>>(n_places: u64) -> C {
    (0..n_places).map(|_| OnceLock::new()).collect()
}

impl<T> LazyPlaces<T> {
    fn new(n: u64) -> LazyPlaces<T> {
        if n > MAX_IN_TABLE {
            return LazyPlaces::Many(PlaceMap { n, chunks: RwLock::default() });
        }
        let chunk = n.isqrt().max(1024);
        let chunks = (0..n.div_ceil(chunk)).map(|_| OnceLock::new()).collect();
        LazyPlaces::Few(PlaceTable { n, chunk, chunks })
    }

    fn n(&self) -> u64 {
        match self {
            LazyPlaces::Few(table) => table.n,
            LazyPlaces::Many(map) => map.n,
        }
    }

    /// Calls `f` with a place.
    fn with<R>(&self, index: u64, f: impl FnOnce(&OnceLock<T>) -> R) -> R {
        match self {
            LazyPlaces::Few(table) => f(table.get(index)),
            LazyPlaces::Many(map) => f(&map.chunk(index / MAPPED_CHUNK)[(index % MAPPED_CHUNK) as usize]),
        }
    }
}

impl<T> PlaceTable<T> {
    fn get(&self, index: u64) -> &OnceLock<T> {
        let (chunk, place) = (index / self.chunk, index % self.chunk);
        let n = self.chunk.min(self.n - chunk * self.chunk);
        &self.chunks[chunk as usize].get_or_init(|| chunk_of(n))[place as usize]
    }
}

impl<T> PlaceMap<T> {
    fn chunk(&self, number: u64) -> Arc<Chunk<T>> {
        let found = self.chunks.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        found.unwrap_or_else(|| {
            let n = MAPPED_CHUNK.min(self.n - number * MAPPED_CHUNK);
            let mut chunks = self.chunks.write().unwrap_or_else(PoisonError::into_inner);
            chunks.entry(number).or_insert_with(|| chunk_of(n)).clone()
        })
    }
}

/// The elements of a stream.
struct KeptStream<T> {
    /// Each with the number of elements that were skipped up to it.
    elements: Vec<(Result<T>, u64)>,
    /// The number of elements that were skipped in all.
    skipped: u64,
}

impl<T> Clone for CacheStage<T> {
    fn clone(&self) -> Self {
        CacheStage { upstream: self.upstream.clone(), kept: self.kept.clone() }
    }
}

impl<T> CacheStage<T> {
    pub(crate) fn new(upstream: Dataset<T>) -> CacheStage<T> {
        let n = upstream.n_by_index();
        let kept = n.map_or_else(|| Kept::All(OnceLock::new()), |n| Kept::Each(LazyPlaces::new(n)));
        CacheStage { upstream, kept: Arc::new(kept) }
    }
}

impl<T: Clone + Send + Sync + 'static> Stage<T> for CacheStage<T> {
    fn open(&self, epoch: u64, at: &mut SavedWords<'_>) -> Result<Box<dyn Cursor<T>>> {
        if self.indexed().is_some() {
            return Ok(Box::new(IndexCursor::new(self.clone(), epoch, at)));
        }
        let next = at.word();
        if let Kept::All(elements) = &*self.kept
            && let Some(kept) = elements.get()
        {
            return Ok(Box::new(KeptCursor { kept: kept.clone(), next, has_ended: false }));
        }
        let mut upstream = self.upstream.stage.open(EPOCH, &mut SavedWords::start())?;
        // A stream cannot be entered at an element, so it is read up to there.
        let mut read = Vec::new();
        while (read.len() as u64) < next {
            let Some(element) = upstream.next() else { break };
            read.push((element, upstream.skipped()));
        }
        Ok(Box::new(FillingCursor {
            upstream,
            n_read: read.len() as u64,
            read,
            kept: self.kept.clone(),
            has_ended: false,
        }))
    }

    fn len(&self) -> Option<u64> {
        match &*self.kept {
            Kept::Each(elements) => Some(elements.n()),
            Kept::All(elements) => elements.get().map(|kept| kept.elements.len() as u64).or(self.upstream.stage.len()),
        }
    }

    fn describe(&self, text: &mut String) {
        self.upstream.stage.describe(text);
        *text += ", cache";
    }

    fn indexed(&self) -> Option<&dyn IndexedStage<T>> {
        match &*self.kept {
            Kept::Each(_) => Some(self as _),
            Kept::All(_) => None,
        }
    }
}

impl<T: Clone + Send + Sync + 'static> IndexedStage<T> for CacheStage<T> {
    fn n(&self) -> u64 {
        match &*self.kept {
            Kept::Each(elements) => elements.n(),
            Kept::All(_) => 0,
        }
    }

    fn get(&self, _epoch: u64, index: u64) -> Result<T> {
        let Kept::Each(elements) = &*self.kept else { unreachable!("only such a cache has access by index") };
        elements.with(index, |place| match place.get() {
            Some(element) => Ok(element.clone()),
            None => {
                let element = self.upstream.at(EPOCH, index)?;
                // Another thread may have been faster, with the same element.
                Ok(place.get_or_init(|| element).clone())
            }
        })
    }
}

/// The first pass over a stream, which keeps its elements.
struct FillingCursor<T> {
    upstream: Box<dyn Cursor<T>>,
    /// The elements up to here, until they are kept.
    read: Vec<(Result<T>, u64)>,
    n_read: u64,
    kept: Arc<Kept<T>>,
    has_ended: bool,
}

impl<T: Clone + Send + Sync> Cursor<T> for FillingCursor<T> {
    fn next(&mut self) -> Option<Result<T>> {
        if self.has_ended {
            return None;
        }
        if let Some(element) = self.upstream.next() {
            self.read.push((element.clone(), self.upstream.skipped()));
            self.n_read += 1;
            return Some(element);
        }
        self.has_ended = true;
        if let Kept::All(elements) = &*self.kept {
            let skipped = self.upstream.skipped();
            elements.get_or_init(|| Arc::new(KeptStream { elements: std::mem::take(&mut self.read), skipped }));
        }
        None
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.push(self.n_read);
    }

    fn skipped(&self) -> u64 {
        self.upstream.skipped()
    }
}

/// A pass over the elements of a stream that were kept.
struct KeptCursor<T> {
    kept: Arc<KeptStream<T>>,
    next: u64,
    has_ended: bool,
}

impl<T: Clone + Send + Sync> Cursor<T> for KeptCursor<T> {
    fn next(&mut self) -> Option<Result<T>> {
        let element = self.kept.elements.get(usize::try_from(self.next).ok()?);
        self.has_ended = element.is_none();
        self.next += u64::from(!self.has_ended);
        element.map(|(element, _)| element.clone())
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.push(self.next);
    }

    fn skipped(&self) -> u64 {
        let before = |next: u64| self.kept.elements.get(usize::try_from(next).ok()?).map(|(_, skipped)| *skipped);
        match self.next {
            _ if self.has_ended => self.kept.skipped,
            0 => 0,
            next => before(next - 1).unwrap_or(self.kept.skipped),
        }
    }
}
