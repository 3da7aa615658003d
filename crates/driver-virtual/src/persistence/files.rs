//! Files of the state: only their owner may read them, only one process writes them, and they are replaced in one step.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use super::StateError;

/// An error of a file, with the action.
pub fn failed(action: &'static str, path: &Path, problem: &impl ToString) -> StateError {
    StateError::Failed { action, place: format!(" \"{}\"", path.display()), problem: problem.to_string() }
}

/// The error for content that is not a stored state.
pub fn unreadable(path: &Path, problem: &str) -> StateError {
    failed("read", path, &format!("{problem}; move the file away to start with an empty cloud"))
}

/// The content of the file. Empty if the file is missing.
pub fn read(path: &Path) -> Result<Vec<u8>, StateError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(|error| failed("read", path, &error)),
    }
}

/// Writes to a file on a blocking thread.
pub async fn write<T: Send + 'static>(
    path: &Path,
    write: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, StateError> {
    let place = path.to_owned();
    let written = tokio::task::spawn_blocking(move || write(&place)).await;
    written.map_err(|_| StateError::Interrupted)?.map_err(|error| failed("write", path, &error))
}

/// Opens a file for appending. Creates the file if it is missing.
pub fn open_for_append(path: &Path) -> io::Result<File> {
    private().append(true).open(path)
}

/// Replaces the content of a file, so that a reader always gets the old or the new content. Durable on return.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = beside(path, "new");
    let mut file = private().write(true).truncate(true).open(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The rename must also be durable.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    File::open(directory)?.sync_all()
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(0o600);
    options
}

/// `path.suffix`.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Prevents other processes from writing the same state, as long as the value lives. The operating system releases the lock when the process ends,
/// also after a kill.
#[derive(Debug)]
pub struct WriterLock {
    _file: File,
}

impl WriterLock {
    /// Acquires the lock next to the state file.
    ///
    /// # Errors
    /// [`StateError::InUse`] if another process has the lock.
    pub fn take(path: &Path) -> Result<Self, StateError> {
        let beside = beside(path, "lock");
        let file = private().truncate(false).write(true).open(&beside);
        let file = file.map_err(|error| failed("lock", &beside, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StateError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => Err(failed("lock", &beside, &error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_may_read_files_of_the_state() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        replace(&path, b"{}").unwrap();
        let _lock = WriterLock::take(&path).unwrap();
        for file in fs::read_dir(folder.path()).unwrap() {
            let file = file.unwrap();
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", file.path().display());
        }
    }
}
