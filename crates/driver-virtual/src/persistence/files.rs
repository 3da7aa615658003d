//! Files of the state: only their owner may read them, one process writes each, and they are replaced in one step.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use super::StateError;

/// An error of a file, with what was tried.
pub fn failed(action: &'static str, path: &Path, problem: &impl ToString) -> StateError {
    StateError::Failed { action, place: format!(" \"{}\"", path.display()), problem: problem.to_string() }
}

/// The file holds something else.
pub fn unreadable(path: &Path, problem: &str) -> StateError {
    failed("read", path, &format!("{problem}; move the file away to start with an empty cloud"))
}

/// What the file holds; nothing when there is none.
pub fn read(path: &Path) -> Result<Vec<u8>, StateError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(|error| failed("read", path, &error)),
    }
}

/// Writes to a file on a thread that may block.
pub async fn write<T: Send + 'static>(
    path: &Path,
    write: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, StateError> {
    let place = path.to_owned();
    let written = tokio::task::spawn_blocking(move || write(&place)).await;
    written.map_err(|_| StateError::Interrupted)?.map_err(|error| failed("write", path, &error))
}

/// Opens a file to add to it, made when it is missing.
pub fn open_for_append(path: &Path) -> io::Result<File> {
    private().append(true).open(path)
}

/// Replaces a file's content such that a reader gets the old or the new one, whatever happens; durable on return.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = beside(path, "new");
    let mut file = private().write(true).truncate(true).open(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The rename itself must survive a crash of the host too.
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

/// Keeps other processes from writing the same state as long as the value lives. The operating system lets go when the process
/// ends, however it ends.
#[derive(Debug)]
pub struct WriterLock {
    _file: File,
}

impl WriterLock {
    /// Takes the lock beside the state file.
    ///
    /// # Errors
    /// [`StateError::InUse`] when another process holds it.
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
    fn files_of_the_state_are_nobody_elses_to_read() {
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
