//! The lock that keeps two processes from writing one state.

use std::{
    fs::{File, TryLockError},
    path::{Path, PathBuf},
};

use super::{StateError, exchange::private};

/// Held as long as the value lives; the operating system lets go when the process ends, however it ends.
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
        let file = private().truncate(false).write(true).open(&beside).map_err(StateError::io("lock", &beside))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StateError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => Err(StateError::io("lock", &beside)(source)),
        }
    }
}

/// `path.suffix`.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}
