//! A cache of answers: bounded in number, with one request at a time for each key.
//!
//! Errors are not cached. A request goes on after its caller has gone, so that the next caller finds the answer.
//! Source: spec/extension-apiserver §3.3, §3.5.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use tokio::time::{Instant, timeout};

use super::digest::Digest;
use controller_runtime::lock;

/// Deadline of one request.
const DEADLINE: Duration = Duration::from_secs(30);

/// The reason why there is no answer.
pub type Failure = Arc<str>;

type Pending<V> = Shared<BoxFuture<'static, Result<V, Failure>>>;

enum State<V> {
    Known { value: V, until: Instant },
    Pending(Pending<V>),
}

struct Entry<V> {
    state: State<V>,
    used: u64,
}

struct Entries<V> {
    by_key: HashMap<Digest, Entry<V>>,
    /// Keys by the time of their last use.
    order: BTreeMap<u64, Digest>,
    clock: u64,
}

impl<V> Entries<V> {
    fn put(&mut self, key: Digest, state: State<V>, capacity: usize) {
        self.clock += 1;
        if let Some(old) = self.by_key.insert(key, Entry { state, used: self.clock }) {
            self.order.remove(&old.used);
        }
        self.order.insert(self.clock, key);
        while self.by_key.len() > capacity {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            self.by_key.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &Digest) {
        if let Some(old) = self.by_key.remove(key) {
            self.order.remove(&old.used);
        }
    }
}

/// Cached answers by key.
pub struct Cache<V> {
    entries: Mutex<Entries<V>>,
    capacity: usize,
}

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Keeps at most `capacity` answers: the answers that were used last.
    pub fn new(capacity: usize) -> Arc<Self> {
        let entries = Entries { by_key: HashMap::new(), order: BTreeMap::new(), clock: 0 };
        Arc::new(Self { entries: Mutex::new(entries), capacity })
    }

    /// The cached answer for the key, or the answer of the request under way, or the answer of a new request by `ask`. A new answer
    /// is kept for the time that `keep` returns.
    ///
    /// # Errors
    /// When the request fails or takes too long.
    pub async fn get<F>(
        self: &Arc<Self>,
        key: Digest,
        keep: impl Fn(&V) -> Duration + Send + Sync + 'static,
        ask: impl FnOnce() -> F,
    ) -> Result<V, Failure>
    where
        F: Future<Output = Result<V, String>> + Send + 'static,
    {
        let pending = {
            let mut entries = self.lock();
            match entries.by_key.get(&key).map(|entry| &entry.state) {
                Some(State::Known { value, until }) if Instant::now() < *until => {
                    let (value, until) = (value.clone(), *until);
                    entries.put(key, State::Known { value: value.clone(), until }, self.capacity);
                    return Ok(value);
                }
                Some(State::Pending(pending)) => pending.clone(),
                _ => {
                    let pending = self.begin(key, keep, ask());
                    entries.put(key, State::Pending(pending.clone()), self.capacity);
                    pending
                }
            }
        };
        pending.await
    }

    /// Number of cached answers and requests under way.
    pub fn len(&self) -> usize {
        self.lock().by_key.len()
    }

    /// Whether there is no cached answer and no request under way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn begin<F>(
        self: &Arc<Self>,
        key: Digest,
        keep: impl Fn(&V) -> Duration + Send + Sync + 'static,
        request: F,
    ) -> Pending<V>
    where
        F: Future<Output = Result<V, String>> + Send + 'static,
    {
        let cache = Arc::clone(self);
        let task = tokio::spawn(async move {
            let answer = match timeout(DEADLINE, request).await {
                Ok(answer) => answer.map_err(Failure::from),
                Err(_) => Err(Failure::from("no answer in time")),
            };
            let mut entries = cache.lock();
            match &answer {
                Ok(value) => {
                    let until = Instant::now() + keep(value);
                    entries.put(key, State::Known { value: value.clone(), until }, cache.capacity);
                }
                Err(_) => entries.remove(&key),
            }
            drop(entries);
            answer
        });
        let cache = Arc::clone(self);
        async move {
            if let Ok(answer) = task.await {
                return answer;
            }
            cache.lock().remove(&key);
            Err(Failure::from("the question was given up"))
        }
        .boxed()
        .shared()
    }

    fn lock(&self) -> MutexGuard<'_, Entries<V>> {
        lock(&self.entries)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn key(n: u16) -> Digest {
        let mut key = [0; 32];
        key[..2].copy_from_slice(&n.to_be_bytes());
        key
    }

    struct Asked(AtomicUsize);

    impl Asked {
        fn new() -> Arc<Self> {
            Arc::new(Self(AtomicUsize::new(0)))
        }

        fn count(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }

        async fn get(self: &Arc<Self>, cache: &Arc<Cache<u32>>, n: u16, takes: u64) -> Result<u32, Failure> {
            let asked = Arc::clone(self);
            let question = || async move {
                asked.0.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(takes)).await;
                if n == 13 { Err("no luck".to_owned()) } else { Ok(u32::from(n)) }
            };
            cache.get(key(n), |_| Duration::from_secs(10), question).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_cached_for_its_time_and_not_longer() {
        let (cache, asked) = (Cache::new(8), Asked::new());
        assert_eq!(asked.get(&cache, 1, 0).await, Ok(1));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!((asked.get(&cache, 1, 0).await, asked.count()), (Ok(1), 1));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!((asked.get(&cache, 1, 0).await, asked.count()), (Ok(1), 2), "reading does not lengthen its life");
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_one_request() {
        let (cache, asked) = (Cache::new(8), Asked::new());
        let answers = futures::future::join_all((0..50).map(|_| asked.get(&cache, 2, 100))).await;
        assert!(answers.iter().all(|answer| *answer == Ok(2)) && asked.count() == 1);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_returned_and_not_cached() {
        let (cache, asked) = (Cache::new(8), Asked::new());
        assert_eq!(asked.get(&cache, 13, 0).await, Err(Failure::from("no luck")));
        assert!(asked.get(&cache, 13, 0).await.is_err() && asked.count() == 2 && cache.is_empty());
        assert_eq!(asked.get(&cache, 3, 60_000).await, Err(Failure::from("no answer in time")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_outlives_its_caller() {
        let (cache, asked) = (Cache::new(8), Asked::new());
        let gone = timeout(Duration::from_millis(10), asked.get(&cache, 4, 100)).await;
        assert!(gone.is_err());
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!((asked.get(&cache, 4, 100).await, asked.count()), (Ok(4), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn th_22_the_answers_that_were_unused_the_longest_are_evicted() {
        let (cache, asked) = (Cache::new(3), Asked::new());
        for n in [20, 21, 22, 20, 23] {
            assert_eq!(asked.get(&cache, n, 0).await, Ok(u32::from(n)));
        }
        assert_eq!((cache.len(), asked.count()), (3, 4));
        assert!(asked.get(&cache, 20, 0).await.is_ok() && asked.count() == 4, "used recently");
        assert!(asked.get(&cache, 21, 0).await.is_ok() && asked.count() == 5, "evicted");
    }
}
