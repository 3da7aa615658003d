//! The storage of the VMs of a simulation: none, or a journal in one of three sinks.
//!
//! A real cloud outlives its clients, so the result of a create or delete is stored before the call returns. Writes are batched: callers that wait at
//! the same time share one write and one sync. `super::cloud` decides what is written. For [`StatePlace::None`], `super::kubelet` reads the Nodes.
//! Source: spec/providers §7.7, decision 26.

mod config_maps;
mod file;
mod files;
mod json;
mod shards;
#[cfg(test)]
mod stored_tests;
#[cfg(test)]
mod testing;

use std::{
    fmt,
    path::PathBuf,
    str::FromStr,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use jiff::Timestamp;

pub use self::config_maps::ConfigMapAccess;
use self::{config_maps::ConfigMaps, file::JournalFile, json::FleetFile};
use super::cloud::{Cloud, Entry};

/// The place where a simulation stores its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StatePlace {
    /// Nowhere. VMs are restored from the simulated Nodes of the target cluster.
    #[default]
    None,
    /// A journal with snapshots, in this file.
    File(PathBuf),
    /// `ConfigMaps` of the control namespace. This is the name of the first one.
    ConfigMap(String),
    /// The exchange format, in this file.
    Json(PathBuf),
}

/// The error for a text that names no place for the state.
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

/// Why the state can't be read or stored.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file system or the API server refused, or the content is no state.
    #[error("cannot {action} the simulation's state{place}: {problem}")]
    Failed {
        /// The action.
        action: &'static str,
        /// The file or the `ConfigMap`, with the separator before it.
        place: String,
        /// The problem, and its remedy.
        problem: String,
    },
    /// Another process writes the state.
    #[error(
        "another process uses the simulation's state {path:?} (it holds {path:?}.lock); stop it, or use another file"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The process ends during the write.
    #[error("the simulation's state was not written: the process is ending")]
    Interrupted,
    /// Another process has acquired the `ConfigMap`.
    #[error("another process writes the simulation's state, ConfigMap {object}, from now on; stop one of them")]
    Taken {
        /// The namespace and the name.
        object: String,
    },
    /// The `ConfigMap` belongs to something else.
    #[error(
        "ConfigMap {object} exists and is no simulation's state; choose another name in --simulation-state=configmap:NAME"
    )]
    NotOurs {
        /// The namespace and the name.
        object: String,
    },
    /// There are more VMs than can be stored.
    #[error("the simulation's state does not fit into {most} ConfigMaps {object}; use --simulation-state=file:PATH")]
    Full {
        /// The namespace and the name of the first `ConfigMap`.
        object: String,
        /// The maximum number of `ConfigMaps`.
        most: usize,
    },
    /// There is no cluster for the `ConfigMap`.
    #[error("--simulation-state=configmap:{name} needs a control cluster; use none, file:PATH or json:PATH")]
    NoCluster {
        /// The `ConfigMap`.
        name: String,
    },
}

/// A sink of a journal. Data is durable when a call returns. After a failure the stored data is unknown, so the next write is a snapshot.
#[async_trait]
trait Sink: fmt::Debug + Send {
    /// Whether the next write should be a snapshot, although the last write succeeded.
    fn wants_snapshot(&self) -> bool;

    /// Appends changes.
    async fn append(&mut self, changes: &[Entry]) -> Result<(), StateError>;

    /// Replaces everything by a snapshot.
    async fn replace(&mut self, snapshot: &[Entry]) -> Result<(), StateError>;
}

#[derive(Debug)]
struct Journal {
    sink: Box<dyn Sink>,
    /// Whether the last write succeeded.
    is_known: bool,
}

impl Journal {
    fn wants_snapshot(&self) -> bool {
        !self.is_known || self.sink.wants_snapshot()
    }

    async fn write(&mut self, entries: &[Entry], is_snapshot: bool) -> Result<(), StateError> {
        self.is_known = false;
        let written = if is_snapshot { self.sink.replace(entries) } else { self.sink.append(entries) };
        written.await?;
        self.is_known = true;
        Ok(())
    }
}

/// Stores the state of a cloud.
#[derive(Debug)]
pub struct Keeper {
    /// `None` if VMs are not stored.
    journal: Option<Arc<tokio::sync::Mutex<Journal>>>,
    durable: Arc<AtomicU64>,
}

impl Keeper {
    /// Opens the place and restores the cloud from it. Blocks on the disk, so it is only for the start. `access` is for `ConfigMaps`. `writer` is a
    /// number that no other process has.
    ///
    /// # Errors
    /// If the place is in use, unreadable or unreachable.
    pub async fn open(
        place: &StatePlace,
        cloud: &mut Cloud,
        now: Timestamp,
        access: Option<&ConfigMapAccess>,
        writer: u64,
    ) -> Result<Self, StateError> {
        let sink: Option<Box<dyn Sink>> = match place {
            StatePlace::None => None,
            StatePlace::ConfigMap(name) => {
                let access = access.ok_or_else(|| StateError::NoCluster { name: name.clone() })?;
                let (sink, entries) = ConfigMaps::open(access, name, writer).await?;
                cloud.restore(entries);
                Some(Box::new(sink))
            }
            StatePlace::File(path) => {
                let (sink, entries) = JournalFile::open(path)?;
                cloud.restore(entries);
                Some(Box::new(sink))
            }
            StatePlace::Json(path) => {
                let (sink, fleet) = FleetFile::open(path, now)?;
                for vm in fleet {
                    cloud.adopt(vm);
                }
                Some(Box::new(sink))
            }
        };
        cloud.advance(now);
        let durable = Arc::new(AtomicU64::new(cloud.revision()));
        let Some(sink) = sink else { return Ok(Self { journal: None, durable }) };
        // A snapshot at the start prevents that the stored data grows with each restart.
        let mut journal = Journal { sink, is_known: false };
        journal.write(&cloud.snapshot(), true).await?;
        cloud.forget_changes();
        Ok(Self { journal: Some(Arc::new(tokio::sync::Mutex::new(journal))), durable })
    }

    /// Whether VMs are stored.
    pub const fn keeps(&self) -> bool {
        self.journal.is_some()
    }

    /// Waits until all changes are stored. Safe to drop: a write that has begun is finished.
    ///
    /// # Errors
    /// If the write failed. The next commit writes the changes then.
    pub async fn commit<'a>(&self, cloud: impl Fn() -> MutexGuard<'a, Cloud>) -> Result<(), StateError> {
        let Some(journal) = &self.journal else {
            cloud().forget_changes();
            return Ok(());
        };
        let revision = cloud().revision();
        let is_durable = || self.durable.load(Ordering::Acquire) >= revision;
        if is_durable() {
            return Ok(());
        }
        let mut journal = Arc::clone(journal).lock_owned().await;
        if is_durable() {
            return Ok(());
        }
        let is_snapshot = journal.wants_snapshot();
        let (reached, entries) = {
            let mut cloud = cloud();
            // A snapshot includes the changes.
            let changes = cloud.take_changes();
            (cloud.revision(), if is_snapshot { cloud.snapshot() } else { changes })
        };
        let durable = Arc::clone(&self.durable);
        // The write is a separate task, so that it is finished also if the caller is dropped.
        let write = tokio::spawn(async move {
            journal.write(&entries, is_snapshot).await?;
            durable.store(reached, Ordering::Release);
            Ok(())
        });
        write.await.map_err(|_| StateError::Interrupted)?
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
