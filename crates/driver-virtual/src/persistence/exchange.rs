//! The exchange format in a file: read at start, rewritten whole and atomically (decision 26).

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use super::{StateError, lock::beside};
use crate::cloud::Exchange;

/// Reads the file; `None` when there is none or it is empty.
pub fn read(path: &Path) -> Result<Option<Exchange>, StateError> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(StateError::io("read", path))?,
    };
    if text.trim().is_empty() {
        return Ok(None);
    }
    let unreadable = |problem: String| StateError::Unreadable { path: path.to_owned(), problem };
    let document: Exchange = serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
    if document.version != 1 {
        return Err(unreadable(format!("version {} is unknown, this program reads version 1", document.version)));
    }
    if let Some(vm) = document.vms.iter().find(|vm| vm.name.is_empty() || vm.provider_id.is_empty()) {
        return Err(unreadable(format!("a VM needs name and providerID, found {vm:?}")));
    }
    Ok(Some(document))
}

/// Writes the file so that a reader sees the old or the new one, never a part, whatever happens.
pub fn write(path: &Path, document: &Exchange) -> Result<(), StateError> {
    let mut text = serde_json::to_vec_pretty(document)
        .map_err(|error| StateError::Unreadable { path: path.to_owned(), problem: error.to_string() })?;
    text.push(b'\n');
    replace(path, &text).map_err(StateError::io("write", path))
}

/// How files of the state are opened: made if need be, and nobody else's to read.
pub(super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(0o600);
    options
}

/// Replaces a file's content atomically and durably.
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
