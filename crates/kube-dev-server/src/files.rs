//! Files that only their owner can read.

use std::{
    fs::{self, Permissions},
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// The mode of a file that only its owner can read and write.
const PRIVATE: u32 = 0o600;

/// Writes a file and makes sure that only its owner can read it. An existing file loses its other permissions.
///
/// # Errors
/// If the file can't be written.
pub fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(PRIVATE).open(path)?;
    file.set_permissions(Permissions::from_mode(PRIVATE))?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn th_41_a_file_that_others_could_read_becomes_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        fs::write(&path, "old and longer").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        write_private(&path, "new").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, PRIVATE);
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }
}
