//! The folder for the files of one run: the data folder, or a temporary one that is removed at the end.
//!
//! A process that is killed can't remove its folder. The next process does. A file lock marks the folders in use; the lock ends with
//! its process in every case.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

const PREFIX: &str = "mcm-dev-";
/// Digits after the prefix.
const DIGITS: usize = 8;
const LOCK: &str = "lock";

/// The folder of a run.
pub(super) struct Folder {
    pub(super) path: PathBuf,
    /// Held while the folder is in use. `None` for a data folder, which is never removed.
    lock: Option<File>,
}

impl Folder {
    /// The data folder, or a new folder in the directory of temporary files.
    pub(super) fn open(data: Option<&Path>) -> io::Result<Self> {
        match data {
            Some(path) => {
                private(true).create(path)?;
                Ok(Self { path: path.to_path_buf(), lock: None })
            }
            None => Self::temporary(&std::env::temp_dir()),
        }
    }

    fn temporary(parent: &Path) -> io::Result<Self> {
        let path = parent.join(format!("{PREFIX}{:0DIGITS$x}", rand::random::<u32>()));
        private(false).create(&path)?;
        let lock = File::create(path.join(LOCK))?;
        lock.lock()?;
        let folder = Self { path, lock: Some(lock) };
        folder.remove_abandoned(parent);
        Ok(folder)
    }

    /// Removes folders of this user whose processes have ended. A folder that can't be removed stays.
    fn remove_abandoned(&self, parent: &Path) {
        let Ok(own) = fs::metadata(&self.path) else { return };
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_ours = entry.file_name().to_str().is_some_and(is_name)
                && fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir() && found.uid() == own.uid());
            if is_ours && path != self.path && is_abandoned(&path) {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // The next process removes what remains.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn private(recursive: bool) -> fs::DirBuilder {
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o700).recursive(recursive);
    builder
}

/// Whether [`Folder::temporary`] gives such names.
fn is_name(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|rest| rest.len() == DIGITS && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether the process of a folder has ended. A folder without lock may just be created.
fn is_abandoned(folder: &Path) -> bool {
    let Ok(lock) = File::open(folder.join(LOCK)) else { return false };
    match lock.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::ours("mcm-dev-0123abcd", true)]
    #[case::foreign("mcm-dev-data", false)]
    #[case::longer("mcm-dev-0123abcd0", false)]
    #[case::other("other", false)]
    fn names(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_name(name), expected);
    }

    #[test]
    fn a_run_removes_its_folder_and_those_of_ended_processes() {
        let parent = tempfile::tempdir().unwrap();
        let in_use = Folder::temporary(parent.path()).unwrap();
        let [abandoned, incomplete, foreign] =
            ["mcm-dev-00000001", "mcm-dev-00000002", "mcm-dev-data"].map(|name| parent.path().join(name));
        for path in [&abandoned, &incomplete, &foreign] {
            fs::create_dir(path).unwrap();
        }
        for path in [&abandoned, &foreign] {
            fs::write(path.join(LOCK), "").unwrap();
            fs::write(path.join("kubeconfig"), "left").unwrap();
        }
        let own = Folder::temporary(parent.path()).unwrap();
        assert!(!abandoned.exists());
        assert!(in_use.path.exists() && own.path.exists() && incomplete.exists() && foreign.exists());
        let path = own.path.clone();
        drop(own);
        assert!(!path.exists());
    }

    #[test]
    fn a_data_folder_stays() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("new/data");
        drop(Folder::open(Some(&path)).unwrap());
        assert!(path.exists());
    }
}
