//! Files that only their owner can read.

use std::{fs, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

/// Writes a file that only its owner can read.
pub(super) fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}
