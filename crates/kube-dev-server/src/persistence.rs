//! Stores the objects in a file, so that no acknowledged write is lost when the process crashes.
//!
//! A thread commits all writes since its last commit together, with an fsync. Writers wait for their commit, and readers see a write only after its
//! commit. While the file can't be written, for example on a full disk, all writes are refused. Uncommitted writes are retried every second.
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
/// The time between two attempts to write the file.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// An object in the file.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) collection: Collection,
    pub(super) key: String,
    pub(super) value: Value,
}

/// Why the data folder can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Other users can read it.
    #[error("data folder {} may be read by others; `chmod 700` it, or name another one", .0.display())]
    Open(PathBuf),
    /// Another process uses it.
    #[error("data folder {} is in use by another process; stop that one, or name another folder", .0.display())]
    Busy(PathBuf),
    /// A newer version of the program wrote it.
    #[error("data folder {} was written by a newer version (format {found}); use that version, or name another folder", path.display())]
    Newer {
        /// The folder.
        path: PathBuf,
        /// The format number in the folder.
        found: u64,
    },
    /// The folder can't be read or written.
    #[error("cannot use data folder {}: {cause}", path.display())]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// The cause of the error.
        cause: String,
    },
}

/// A write for the storage thread.
pub(super) enum Job {
    Write { revision: u64, name: String, stored: Option<Arc<Stored>> },
}

/// The newest committed revision; `Err` while the file can't be written.
type Committed = Result<u64, String>;

/// Makes writes durable. A store in memory counts every write as durable.
pub(super) enum Durable {
    Memory,
    File { jobs: Sender<Job>, committed: watch::Receiver<Committed> },
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
            // The result is ignored: when the thread has ended, `wait` returns an error.
            let _ = jobs.send(Job::Write { revision, name, stored });
        }
    }

    pub(super) async fn wait(&self, revision: u64) -> Result<(), String> {
        let Self::File { committed, .. } = self else { return Ok(()) };
        let mut committed = committed.clone();
        let reached = committed.wait_for(|committed| committed.as_ref().map_or(true, |at| *at >= revision)).await;
        match reached {
            Ok(committed) => committed.clone().map(|_| ()),
            Err(_) => Err("the storage has ended".to_owned()),
        }
    }
}

/// Opens a data folder. Returns its newest revision, its objects, and the handle that makes further writes durable.
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
    let (report, committed) = watch::channel(Ok(revision));
    thread::Builder::new()
        .name("storage".to_owned())
        .spawn(move || {
            let mut file = File { path: folder.join(FILE), database: Some(database) };
            run(|batch| file.commit(batch), RETRY_AFTER, &queue, &report);
        })
        .map_err(|error| unusable(error.to_string()))?;
    Ok((revision, records, Durable::File { jobs, committed }))
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

/// Reads the newest revision and the objects. The inner error names an object that is not JSON.
fn read(database: &Database) -> Result<(u64, Result<Vec<Record>, String>), redb::Error> {
    let transaction = database.begin_write()?;
    {
        // Opening a table creates it.
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
            // Without this error the object would be lost.
            Err(error) => return Ok((revision, Err(format!("{}: {error}", name.value())))),
        }
    }
    Ok((revision, Ok(records)))
}

/// Commits the writes of the queue until the store is dropped. Writes that can't be committed are retried first.
fn run(
    mut commit: impl FnMut(&[Job]) -> Result<u64, String>,
    retry_after: Duration,
    queue: &Receiver<Job>,
    report: &watch::Sender<Committed>,
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
            Err(why) if !failing => {
                tracing::error!(error = why, "the data folder can't be written; nothing can be changed");
            }
            _ => {}
        }
        if !failed {
            pending.clear();
        }
        let _ = report.send_replace(result);
    }
}

/// The database file.
struct File {
    path: PathBuf,
    /// None after an error. After an error the database refuses all writes and must be opened again.
    database: Option<Database>,
}

impl File {
    fn commit(&mut self, batch: &[Job]) -> Result<u64, String> {
        let text = |error: redb::Error| format!("storage: {error}");
        let database = match self.database.take() {
            Some(database) => database,
            None => Database::create(&self.path).map_err(|error| text(error.into()))?,
        };
        let revision = commit(&database, batch).map_err(text)?;
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
    async fn acknowledged_writes_are_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("data");
        let things = Collection::new("example.com", "things");
        let last = {
            let (revision, records, durable) = open(&folder).unwrap();
            assert!(records.is_empty());
            let store = Store::new(revision, records, durable);
            let one = store.write(&things, "h/a", Expect::Absent, Some(json!({"metadata": {}}))).unwrap();
            store.write(&things, "h/b", Expect::Absent, Some(json!({"metadata": {}}))).unwrap();
            let gone = store.write(&things, "h/a", Expect::Revision(one.revision), None).unwrap();
            store.durable(gone.revision).await.unwrap();
            assert!(matches!(open(&folder), Err(DataError::Busy(_))));
            gone.revision
        };
        // The thread ends with the store and closes the file.
        let (revision, records, _) = loop {
            match open(&folder) {
                Err(DataError::Busy(_)) => tokio::task::yield_now().await,
                other => break other.unwrap(),
            }
        };
        assert_eq!(revision, last);
        assert_eq!(records.iter().map(|record| record.key.as_str()).collect::<Vec<_>>(), ["h/b"]);
    }

    fn job(revision: u64) -> Job {
        Job::Write { revision, name: "example.com/things/h/a".to_owned(), stored: None }
    }

    /// The disk is full until `has_space` is set.
    #[tokio::test]
    async fn writes_go_on_when_the_disk_has_space_again() {
        let (jobs, queue) = mpsc::channel();
        let (report, mut committed) = watch::channel(Ok(1));
        let has_space = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let disk_has_space = Arc::clone(&has_space);
        let thread = thread::spawn(move || {
            let mut committed = Vec::new();
            let commit = |batch: &[Job]| {
                if !disk_has_space.load(std::sync::atomic::Ordering::SeqCst) {
                    return Err("storage: no space left".to_owned());
                }
                committed.extend(batch.iter().map(|Job::Write { revision, .. }| *revision));
                Ok(*committed.last().unwrap())
            };
            run(commit, Duration::from_millis(1), &queue, &report);
            committed
        });
        let durable = Durable::File { jobs: jobs.clone(), committed: committed.clone() };
        jobs.send(job(2)).unwrap();
        assert!(durable.wait(2).await.unwrap_err().contains("no space left"));
        jobs.send(job(3)).unwrap();
        has_space.store(true, std::sync::atomic::Ordering::SeqCst);
        committed.wait_for(|committed| *committed == Ok(3)).await.unwrap();
        assert_eq!(durable.wait(3).await, Ok(()));
        drop((jobs, durable));
        assert_eq!(thread.join().unwrap(), [2, 3], "every write is committed once");
    }

    #[test]
    fn a_folder_with_an_unreadable_object_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let database = Database::create(folder.path().join(FILE)).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(OBJECTS).unwrap().insert("example.com/things/h/a", b"{".as_slice()).unwrap();
        transaction.commit().unwrap();
        drop(database);
        let refused = open(folder.path()).err().expect("the folder is refused").to_string();
        assert!(refused.contains("an object in it cannot be read: example.com/things/h/a: EOF"), "{refused}");
    }

    #[test]
    fn th_41_a_folder_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(open(folder.path()), Err(DataError::Open(_))));
    }
}
