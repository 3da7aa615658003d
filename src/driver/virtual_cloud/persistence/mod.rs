//! Where a simulation keeps its VMs over a restart of the process: nowhere, in a journal, or in the exchange format.
//!
//! A real cloud outlives its clients, so a create or delete is on disk before its call returns. Writes are gathered:
//! callers that wait for the disk at the same time share one write and one sync.
//! What is written is decided in `super::cloud`; Nodes as memory ([`StatePlace::None`]) are read by `super::kubelet`.
//! Source: spec/providers §7.7, decision 26.

mod exchange;
mod journal;
mod lock;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;

use self::{journal::Journal, lock::WriterLock};
use super::cloud::{Cloud, Entry, Exchange};

/// Where a simulation keeps its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StatePlace {
    /// Nowhere: VMs are rebuilt from the simulated Nodes of the target cluster.
    #[default]
    None,
    /// A journal with snapshots, in this file.
    File(PathBuf),
    /// A `ConfigMap` of this name.
    ConfigMap(String),
    /// The exchange format, in this file.
    Json(PathBuf),
}

/// A text names no place for the state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be none, file:PATH, configmap:NAME or json:PATH")]
pub struct InvalidStatePlace;

impl FromStr for StatePlace {
    type Err = InvalidStatePlace;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "none" => Ok(Self::None),
            Some((_, "")) => Err(InvalidStatePlace),
            Some(("file", path)) => Ok(Self::File(path.into())),
            Some(("json", path)) => Ok(Self::Json(path.into())),
            Some(("configmap", name)) => Ok(Self::ConfigMap(name.to_owned())),
            _ => Err(InvalidStatePlace),
        }
    }
}

impl fmt::Display for StatePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::ConfigMap(name) => write!(f, "configmap:{name}"),
            Self::Json(path) => write!(f, "json:{}", path.display()),
        }
    }
}

/// Why the state cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file system refused.
    #[error("cannot {action} the simulation's state {path:?}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("cannot read the simulation's state {path:?}: {problem}; move the file away to start with an empty cloud")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Another process writes it.
    #[error(
        "another process uses the simulation's state {path:?} (it holds {path:?}.lock); stop it, or use another file"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The process ends while it writes.
    #[error("the simulation's state was not written: the process is ending")]
    Interrupted,
    /// Not built.
    #[error("--simulation-state=configmap:{name} is not supported by this build; use none, file:PATH or json:PATH")]
    ConfigMapUnsupported {
        /// The `ConfigMap`.
        name: String,
    },
}

impl StateError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

#[derive(Debug)]
enum Store {
    Nothing,
    Journal(Journal),
    Exchange { path: PathBuf, _lock: WriterLock },
}

/// What a store needs to write, taken from the cloud in one moment.
enum Work {
    Journal { changes: Vec<Entry>, snapshot: Option<Vec<Entry>> },
    Exchange(Exchange),
}

/// Keeps a cloud's state.
#[derive(Debug)]
pub struct Keeper {
    store: Arc<tokio::sync::Mutex<Store>>,
    durable: Arc<AtomicU64>,
    keeps: bool,
}

impl Keeper {
    /// Opens the place and fills the cloud from it. Blocks on the disk; meant for the start.
    ///
    /// # Errors
    /// When the place is in use, unreadable or not supported.
    pub fn open(place: &StatePlace, cloud: &mut Cloud, now: Timestamp) -> Result<Self, StateError> {
        let store = match place {
            StatePlace::None => Store::Nothing,
            StatePlace::ConfigMap(name) => return Err(StateError::ConfigMapUnsupported { name: name.clone() }),
            StatePlace::File(path) => {
                let (journal, entries) = Journal::open(path)?;
                cloud.restore(entries);
                Store::Journal(journal)
            }
            StatePlace::Json(path) => {
                let lock = WriterLock::take(path)?;
                if let Some(document) = exchange::read(path)? {
                    cloud.restore_exchange(document, now);
                }
                exchange::write(path, &cloud.exchange())?;
                Store::Exchange { path: path.clone(), _lock: lock }
            }
        };
        cloud.advance(now);
        let mut keeper = Self {
            keeps: !matches!(store, Store::Nothing),
            store: Arc::new(tokio::sync::Mutex::new(store)),
            durable: Arc::new(AtomicU64::new(cloud.revision())),
        };
        if let Some(Store::Journal(journal)) = Arc::get_mut(&mut keeper.store).map(tokio::sync::Mutex::get_mut) {
            // Starting from a snapshot keeps the journal from growing over restarts.
            journal.write_snapshot(&cloud.snapshot())?;
        }
        cloud.drop_changes();
        Ok(keeper)
    }

    /// Whether VMs are remembered at all.
    pub const fn keeps(&self) -> bool {
        self.keeps
    }

    /// Waits until everything up to `revision` is on disk. Safe to drop: a write that has begun is finished.
    ///
    /// # Errors
    /// When it could not be written; the changes are written with the next commit then.
    pub async fn commit<F, R>(&self, revision: u64, with_cloud: F) -> Result<(), StateError>
    where
        F: FnOnce(&mut dyn FnMut(&mut Cloud)) -> R,
    {
        if !self.keeps || self.durable.load(Ordering::Acquire) >= revision {
            return Ok(());
        }
        let mut store = Arc::clone(&self.store).lock_owned().await;
        if self.durable.load(Ordering::Acquire) >= revision {
            return Ok(());
        }
        let (mut work, mut reached) = (None, revision);
        with_cloud(&mut |cloud| {
            reached = cloud.revision();
            work = Some(if let Store::Journal(journal) = &*store {
                let snapshot = journal.wants_snapshot().then(|| cloud.snapshot());
                Work::Journal { changes: cloud.take_changes(), snapshot }
            } else {
                cloud.drop_changes();
                Work::Exchange(cloud.exchange())
            });
        });
        let Some(work) = work else { return Ok(()) };
        let durable = Arc::clone(&self.durable);
        let write = move || {
            let written = match (&mut *store, work) {
                (Store::Journal(journal), Work::Journal { changes, snapshot }) => journal.write(changes, snapshot),
                (Store::Exchange { path, .. }, Work::Exchange(document)) => exchange::write(path, &document),
                _ => Ok(()),
            };
            if written.is_ok() {
                durable.store(reached, Ordering::Release);
            }
            written
        };
        let ended = |_| StateError::Interrupted;
        tokio::task::spawn_blocking(write).await.map_err(ended)?
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none("none", Ok(StatePlace::None))]
    #[case::a_journal("file:/a/b", Ok(StatePlace::File("/a/b".into())))]
    #[case::exchange("json:b", Ok(StatePlace::Json("b".into())))]
    #[case::a_config_map("configmap:sim", Ok(StatePlace::ConfigMap("sim".to_owned())))]
    #[case::no_path("file:", Err(InvalidStatePlace))]
    #[case::another_word("redis:a", Err(InvalidStatePlace))]
    fn a_place_is_read_from_a_flag(#[case] text: &str, #[case] place: Result<StatePlace, InvalidStatePlace>) {
        assert_eq!(text.parse(), place);
        if let Ok(place) = place {
            assert_eq!(place.to_string(), text);
        }
    }
}
