//! Keeps the store in a file, so that no acknowledged write is lost whatever happens to the process.
//!
//! One thread commits what has come up since its last commit, each commit with an fsync; writers wait for theirs. Readers
//! are told of a write only after its commit. While the file can't be written, as on a full disk, nothing is changed; what was
//! not committed is tried again every second.
//! Source: spec/extension-apiserver §6.9.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use serde_json::Value;
use tokio::sync::watch;

use super::{
    plain,
    store::{Collection, Stored},
};

const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const FORMAT: u64 = 1;
const FILE: &str = "objects.redb";
/// Between two tries to write a file that can't be written.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A kept object.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) collection: Collection,
    pub(super) key: String,
    pub(super) value: Value,
}

/// Why the data folder can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Others could read it.
    #[error("data folder {} may be read by others; `chmod 700` it, or name another one", .0.display())]
    Open(PathBuf),
    /// Another process uses it.
    #[error("data folder {} is in use by another process; stop that one, or name another folder", .0.display())]
    Busy(PathBuf),
    /// A newer program wrote it.
    #[error("data folder {} was written by a newer version (format {found}); use that version, or name another folder", path.display())]
    Newer {
        /// The folder.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// It can't be read or written.
    #[error("cannot use data folder {}: {cause}", path.display())]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
}

/// One write to keep.
pub(super) enum Job {
    Write { revision: u64, name: String, stored: Option<Arc<Stored>> },
}

/// How far writes are safe: `Err` while the file can't be written.
type Safe = Result<u64, String>;

/// Makes writes durable, or pretends to.
pub(super) enum Durable {
    Memory,
    File { jobs: Sender<Job>, safe: watch::Receiver<Safe> },
}

impl Durable {
    pub(super) fn memory() -> Self {
        Self::Memory
    }

    pub(super) fn is_memory(&self) -> bool {
        matches!(self, Self::Memory)
    }

    pub(super) fn queue(&self, revision: u64, collection: &Collection, key: &str, stored: Option<Arc<Stored>>) {
        if let Self::File { jobs, .. } = self {
            let name = format!("{}/{}/{key}", collection.group, collection.resource);
            // When the thread has ended, everybody who waits is told.
            let _ = jobs.send(Job::Write { revision, name, stored });
        }
    }

    pub(super) async fn wait(&self, revision: u64) -> Result<(), String> {
        let Self::File { safe, .. } = self else { return Ok(()) };
        let mut safe = safe.clone();
        let reached =
            safe.wait_for(|safe| safe.as_ref().is_err() || safe.as_ref().is_ok_and(|at| *at >= revision)).await;
        match reached {
            Ok(safe) => safe.clone().map(|_| ()),
            Err(_) => Err("the storage has ended".to_owned()),
        }
    }
}

/// Opens a data folder: what is in it, the revision to go on from, and how further writes are kept.
pub(super) fn open(folder: &Path) -> Result<(u64, Vec<Record>, Durable), DataError> {
    let unusable = |cause: String| DataError::Unusable { path: folder.to_path_buf(), cause };
    if !folder.exists() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| unusable(error.to_string()))?;
    }
    let mode = fs::metadata(folder).map_err(|error| unusable(error.to_string()))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(DataError::Open(folder.to_path_buf()));
    }
    let database = Database::create(folder.join(FILE)).map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => DataError::Busy(folder.to_path_buf()),
        other => unusable(other.to_string()),
    })?;
    let (revision, records) = read(&database).map_err(|error| unusable(error.to_string()))?;
    let records = records.map_err(|why| unusable(format!("an object in it cannot be read: {why}")))?;
    let format = format_of(&database).map_err(|error| unusable(error.to_string()))?;
    if format > FORMAT {
        return Err(DataError::Newer { path: folder.to_path_buf(), found: format });
    }
    let folder = folder.to_path_buf();
    let (jobs, queue) = mpsc::channel();
    let (report, safe) = watch::channel(Ok(revision));
    thread::Builder::new()
        .name("storage".to_owned())
        .spawn(move || {
            let mut file = File { path: folder.join(FILE), database: Some(database) };
            keep(|batch| file.commit(batch), RETRY_AFTER, &queue, &report);
        })
        .map_err(|error| unusable(error.to_string()))?;
    Ok((revision, records, Durable::File { jobs, safe }))
}

fn format_of(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let format = {
        let mut meta = transaction.open_table(META)?;
        let found = meta.get("format")?.map(|value| value.value());
        if let Some(format) = found {
            format
        } else {
            meta.insert("format", FORMAT)?;
            FORMAT
        }
    };
    transaction.commit()?;
    Ok(format)
}

/// A revision above every one that was ever told, and what is kept, or which object of it is no JSON.
fn read(database: &Database) -> Result<(u64, Result<Vec<Record>, String>), redb::Error> {
    let transaction = database.begin_write()?;
    {
        // So that both exist.
        transaction.open_table(OBJECTS)?;
        transaction.open_table(META)?;
    }
    transaction.commit()?;
    let transaction = database.begin_read()?;
    let revision = transaction.open_table(META)?.get("revision")?.map_or(1, |value| value.value());
    let mut records = Vec::new();
    for entry in transaction.open_table(OBJECTS)?.iter()? {
        let (name, bytes) = entry?;
        let mut parts = name.value().splitn(3, '/');
        let (Some(group), Some(resource), Some(key)) = (parts.next(), parts.next(), parts.next()) else { continue };
        match serde_json::from_slice(bytes.value()) {
            Ok(value) => {
                records.push(Record { collection: Collection::new(group, resource), key: key.to_owned(), value });
            }
            // To go on without it would be to lose it.
            Err(error) => return Ok((revision, Err(format!("{}: {error}", name.value())))),
        }
    }
    Ok((revision, Ok(records)))
}

/// Commits what comes in until nobody writes any more. What can't be committed stays first in line.
fn keep(
    mut commit: impl FnMut(&[Job]) -> Result<u64, String>,
    retry_after: Duration,
    queue: &Receiver<Job>,
    report: &watch::Sender<Safe>,
) {
    let mut pending = Vec::new();
    loop {
        let next = if pending.is_empty() {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            queue.recv_timeout(retry_after)
        };
        match next {
            Ok(job) => pending.push(job),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        pending.extend(queue.try_iter());
        let result = commit(&pending);
        let (failed, failing) = (result.is_err(), report.borrow().is_err());
        match &result {
            Ok(_) if failing => tracing::info!("the data folder can be written again"),
            Err(why) if !failing => tracing::error!(why, "the data folder can't be written; nothing can be changed"),
            _ => {}
        }
        if !failed {
            pending.clear();
        }
        let _ = report.send_replace(result);
    }
}

/// The database in its file.
struct File {
    path: PathBuf,
    /// None after an error: then it must be opened anew, for it refuses everything.
    database: Option<Database>,
}

impl File {
    fn commit(&mut self, batch: &[Job]) -> Result<u64, String> {
        let told = |error: redb::Error| format!("storage: {error}");
        let database = match self.database.take() {
            Some(database) => database,
            None => Database::create(&self.path).map_err(|error| told(error.into()))?,
        };
        let revision = commit(&database, batch).map_err(told)?;
        self.database = Some(database);
        Ok(revision)
    }
}

fn commit(database: &Database, batch: &[Job]) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let mut newest = 0;
    {
        let mut objects = transaction.open_table(OBJECTS)?;
        for Job::Write { revision, name, stored } in batch {
            newest = newest.max(*revision);
            match stored {
                Some(stored) => {
                    let bytes = plain::stored_text(stored);
                    objects.insert(name.as_str(), bytes.as_slice())?;
                }
                None => {
                    objects.remove(name.as_str())?;
                }
            }
        }
        transaction.open_table(META)?.insert("revision", newest)?;
    }
    transaction.commit()?;
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::{Expect, Store};

    #[tokio::test]
    async fn what_was_acknowledged_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("data");
        let things = Collection::new("example.com", "things");
        let last = {
            let (revision, kept, durable) = open(&folder).unwrap();
            assert!(kept.is_empty());
            let store = Store::new(revision, kept, durable);
            let one = store.write(&things, "h/a", Expect::Absent, Some(json!({"metadata": {}}))).unwrap();
            store.write(&things, "h/b", Expect::Absent, Some(json!({"metadata": {}}))).unwrap();
            let gone = store.write(&things, "h/a", Expect::Revision(one.revision), None).unwrap();
            store.durable(gone.revision).await.unwrap();
            assert!(matches!(open(&folder), Err(DataError::Busy(_))));
            gone.revision
        };
        // The thread ends with the store, and gives the file back.
        let (revision, kept, _) = loop {
            match open(&folder) {
                Err(DataError::Busy(_)) => tokio::task::yield_now().await,
                other => break other.unwrap(),
            }
        };
        assert_eq!(revision, last);
        assert_eq!(kept.iter().map(|record| record.key.as_str()).collect::<Vec<_>>(), ["h/b"]);
    }

    fn job(revision: u64) -> Job {
        Job::Write { revision, name: "example.com/things/h/a".to_owned(), stored: None }
    }

    /// A disk without room for the first three commits.
    #[tokio::test]
    async fn writes_go_on_when_there_is_room_again() {
        let (jobs, queue) = mpsc::channel();
        let (report, mut safe) = watch::channel(Ok(1));
        let room = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let there_is_room = Arc::clone(&room);
        let thread = thread::spawn(move || {
            let mut committed = Vec::new();
            let commit = |batch: &[Job]| {
                if !there_is_room.load(std::sync::atomic::Ordering::SeqCst) {
                    return Err("storage: no space left".to_owned());
                }
                committed.extend(batch.iter().map(|Job::Write { revision, .. }| *revision));
                Ok(*committed.last().unwrap())
            };
            keep(commit, Duration::from_millis(1), &queue, &report);
            committed
        });
        let durable = Durable::File { jobs: jobs.clone(), safe: safe.clone() };
        jobs.send(job(2)).unwrap();
        assert!(durable.wait(2).await.unwrap_err().contains("no space left"));
        jobs.send(job(3)).unwrap();
        room.store(true, std::sync::atomic::Ordering::SeqCst);
        safe.wait_for(|safe| *safe == Ok(3)).await.unwrap();
        assert_eq!(durable.wait(3).await, Ok(()));
        drop((jobs, durable));
        assert_eq!(thread.join().unwrap(), [2, 3], "nothing is left out, and nothing twice");
    }

    #[test]
    fn an_object_that_cannot_be_read_is_not_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let database = Database::create(folder.path().join(FILE)).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(OBJECTS).unwrap().insert("example.com/things/h/a", b"{".as_slice()).unwrap();
        transaction.commit().unwrap();
        drop(database);
        let refused = open(folder.path()).err().expect("nothing is lost silently").to_string();
        assert!(refused.contains("an object in it cannot be read: example.com/things/h/a: EOF"), "{refused}");
    }

    #[test]
    fn th_41_a_folder_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(open(folder.path()), Err(DataError::Open(_))));
    }
}
