//! Where the files of one run are kept: the data folder, or one that ends with the process.
//!
//! A process that is killed can't take its folder away; the next one does. Which folders are in use is told by a lock that
//! ends with its process, however that ends.

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
    /// Held as long as the folder is in use; none for a data folder, which stays.
    lock: Option<File>,
}

impl Folder {
    /// The data folder, or a new one among the temporary files.
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
        folder.clear_away_the_dead(parent);
        Ok(folder)
    }

    /// Removes folders of this user that processes have left which are no more. What can't be removed stays.
    fn clear_away_the_dead(&self, parent: &Path) {
        let Ok(own) = fs::metadata(&self.path) else { return };
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_ours = entry.file_name().to_str().is_some_and(is_name)
                && fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir() && found.uid() == own.uid());
            if is_ours && path != self.path && is_dead(&path) {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // What is left behind the next one takes away.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn private(recursive: bool) -> fs::DirBuilder {
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o700).recursive(recursive);
    builder
}

/// Whether it is a name that [`Folder::temporary`] gives.
fn is_name(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|rest| rest.len() == DIGITS && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether the process that made a folder is no more. One without a lock may be in the making.
fn is_dead(folder: &Path) -> bool {
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
    #[case::somebody_elses("mcm-dev-data", false)]
    #[case::longer("mcm-dev-0123abcd0", false)]
    #[case::other("other", false)]
    fn names(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_name(name), expected);
    }

    #[test]
    fn a_folder_ends_with_its_run_and_what_the_dead_have_left_is_cleared_away() {
        let parent = tempfile::tempdir().unwrap();
        let living = Folder::temporary(parent.path()).unwrap();
        let [dead, half_made, foreign] =
            ["mcm-dev-00000001", "mcm-dev-00000002", "mcm-dev-data"].map(|name| parent.path().join(name));
        for path in [&dead, &half_made, &foreign] {
            fs::create_dir(path).unwrap();
        }
        for path in [&dead, &foreign] {
            fs::write(path.join(LOCK), "").unwrap();
            fs::write(path.join("kubeconfig"), "left").unwrap();
        }
        let own = Folder::temporary(parent.path()).unwrap();
        assert!(!dead.exists());
        assert!(living.path.exists() && own.path.exists() && half_made.exists() && foreign.exists());
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
