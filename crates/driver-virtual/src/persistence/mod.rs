//! Where a simulation keeps its VMs over a restart of the process: nowhere, in a journal (a file or `ConfigMaps`), or in
//! the exchange format.
//!
//! A real cloud outlives its clients, so a create or delete is on disk before its call returns. Writes are gathered:
//! callers that wait for the disk at the same time share one write and one sync.
//! What is written is decided in `super::cloud`; Nodes as memory ([`StatePlace::None`]) are read by `super::kubelet`.
//! Source: spec/providers §7.7, decision 26.

mod config_maps;
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

pub use self::config_maps::ConfigMapAccess;
use self::{config_maps::ConfigMaps, journal::Journal, lock::WriterLock};
use super::cloud::{Cloud, Entry, Exchange};

/// Where a simulation keeps its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StatePlace {
    /// Nowhere: VMs are rebuilt from the simulated Nodes of the target cluster.
    #[default]
    None,
    /// A journal with snapshots, in this file.
    File(PathBuf),
    /// `ConfigMaps` of the control namespace; the first has this name.
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
    /// The API server refused, or did not answer in time (`source` is none then).
    #[error(
        "cannot {action} the simulation's state, ConfigMap {namespace}/{name}: {}",
        source.as_ref().map_or_else(|| "the API server did not answer".to_owned(), |source| advice(source))
    )]
    ConfigMap {
        /// What was tried.
        action: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What the API server said.
        source: Option<Box<kube::Error>>,
    },
    /// The `ConfigMap` holds something else.
    #[error(
        "cannot read the simulation's state, ConfigMap {namespace}/{name}: {problem}; delete it to start with an empty \
         cloud, or choose another name"
    )]
    UnreadableConfigMap {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// Another process has taken the `ConfigMap` over.
    #[error(
        "another process writes the simulation's state, ConfigMap {namespace}/{name}, from now on; stop one of them"
    )]
    Taken {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The `ConfigMap` belongs to somebody else.
    #[error(
        "ConfigMap {namespace}/{name} exists and is no simulation's state; choose another name in \
         --simulation-state=configmap:NAME"
    )]
    NotOurs {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// There are more VMs than can be kept.
    #[error(
        "the simulation's state does not fit into {most} ConfigMaps {namespace}/{name}; use --simulation-state=file:PATH"
    )]
    Full {
        /// Their namespace.
        namespace: String,
        /// Name of the first.
        name: String,
        /// How many are used at most.
        most: usize,
    },
    /// There is no cluster to keep it in.
    #[error("--simulation-state=configmap:{name} needs a control cluster; use none, file:PATH or json:PATH")]
    NoCluster {
        /// The `ConfigMap`.
        name: String,
    },
}

/// What the API server said, and what to do about it where that is known.
fn advice(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            format!("{error}; grant what `mcm manifests rbac --simulation` prints")
        }
        error => error.to_string(),
    }
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
    ConfigMaps(ConfigMaps),
}

/// What a store needs to write, taken from the cloud in one moment.
enum Work {
    Changes { changes: Vec<Entry>, snapshot: Option<Vec<Entry>> },
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
    /// Opens the place and fills the cloud from it. Blocks on the disk; meant for the start. `access` is where
    /// `ConfigMaps` may be kept, `writer` a number that no other process has.
    ///
    /// # Errors
    /// When the place is in use, unreadable or not to be reached.
    pub async fn open(
        place: &StatePlace,
        cloud: &mut Cloud,
        now: Timestamp,
        access: Option<&ConfigMapAccess>,
        writer: u64,
    ) -> Result<Self, StateError> {
        let store = match place {
            StatePlace::None => Store::Nothing,
            StatePlace::ConfigMap(name) => {
                let access = access.ok_or_else(|| StateError::NoCluster { name: name.clone() })?;
                let (maps, entries) = ConfigMaps::open(access, name, writer).await?;
                cloud.restore(entries);
                Store::ConfigMaps(maps)
            }
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
        // Starting from a snapshot keeps what is stored from growing over restarts.
        match Arc::get_mut(&mut keeper.store).map(tokio::sync::Mutex::get_mut) {
            Some(Store::Journal(journal)) => journal.write_snapshot(&cloud.snapshot())?,
            Some(Store::ConfigMaps(maps)) => maps.write_snapshot(&cloud.snapshot()).await?,
            _ => {}
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
            let whole = match &*store {
                Store::Journal(journal) => Some(journal.wants_snapshot()),
                Store::ConfigMaps(maps) => Some(maps.wants_snapshot()),
                Store::Exchange { .. } | Store::Nothing => None,
            };
            work = Some(if let Some(whole) = whole {
                let snapshot = whole.then(|| cloud.snapshot());
                Work::Changes { changes: cloud.take_changes(), snapshot }
            } else {
                cloud.drop_changes();
                Work::Exchange(cloud.exchange())
            });
        });
        let Some(work) = work else { return Ok(()) };
        let durable = Arc::clone(&self.durable);
        // A task of its own: what has begun is finished even if the caller is dropped.
        let write = async move {
            let (written, _held) = if let Store::ConfigMaps(maps) = &mut *store {
                let written = match work {
                    Work::Changes { changes, snapshot } => maps.write(changes, snapshot).await,
                    Work::Exchange(_) => Ok(()),
                };
                (written, store)
            } else {
                let on_disk = move || (write_file(&mut store, work), store);
                tokio::task::spawn_blocking(on_disk).await.map_err(|_| StateError::Interrupted)?
            };
            if written.is_ok() {
                durable.store(reached, Ordering::Release);
            }
            written
        };
        let ended = |_| StateError::Interrupted;
        tokio::spawn(write).await.map_err(ended)?
    }
}

/// Writes to the disk; blocks.
fn write_file(store: &mut Store, work: Work) -> Result<(), StateError> {
    match (store, work) {
        (Store::Journal(journal), Work::Changes { changes, snapshot }) => journal.write(changes, snapshot),
        (Store::Exchange { path, .. }, Work::Exchange(document)) => exchange::write(path, &document),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn files_of_the_state_are_nobody_elses_to_read() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        exchange::replace(&path, b"{}").unwrap();
        let _lock = lock::WriterLock::take(&path).unwrap();
        for file in std::fs::read_dir(folder.path()).unwrap() {
            let file = file.unwrap();
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", file.path().display());
        }
    }

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
