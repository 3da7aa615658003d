//! The journal: a snapshot and the changes since, one JSON object per line.
//!
//! A process that is killed in the middle of a write leaves half a line at the end; it was never answered to anyone and
//! is cut off. Broken lines elsewhere are an error: guessing could make a VM twice.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::{
    StateError,
    exchange::{private, replace},
    lock::WriterLock,
};
use crate::cloud::Entry;

/// After so many records a snapshot takes their place.
const SNAPSHOT_EVERY: usize = 1000;

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    records: usize,
    snapshot_size: usize,
    templates: BTreeSet<u64>,
    /// Records that could not be written yet.
    pending: Vec<Entry>,
    _lock: WriterLock,
}

impl Journal {
    /// Opens the journal, made when it is missing, and reads what it holds.
    pub fn open(path: &Path) -> Result<(Self, Vec<Entry>), StateError> {
        let lock = WriterLock::take(path)?;
        let content = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(StateError::io("read", path))?,
        };
        let entries = parse(&content).map_err(|problem| StateError::Unreadable { path: path.to_owned(), problem })?;
        let file = open_for_append(path)?;
        let (templates, pending) = (BTreeSet::new(), Vec::new());
        let journal = Self {
            path: path.to_owned(),
            file,
            records: entries.len(),
            snapshot_size: 0,
            templates,
            pending,
            _lock: lock,
        };
        Ok((journal, entries))
    }

    /// Whether the next write should be a snapshot.
    pub const fn wants_snapshot(&self) -> bool {
        // A snapshot of a big cloud must pay for itself.
        let enough = if self.snapshot_size > SNAPSHOT_EVERY { self.snapshot_size } else { SNAPSHOT_EVERY };
        self.records >= enough
    }

    /// Adds changes, or replaces everything by a snapshot that holds them; durable on return.
    pub fn write(&mut self, changes: Vec<Entry>, snapshot: Option<Vec<Entry>>) -> Result<(), StateError> {
        if let Some(entries) = snapshot {
            return self.write_snapshot(&entries).inspect_err(|_| self.pending.extend(changes));
        }
        self.pending.extend(changes);
        self.append()
    }

    fn append(&mut self) -> Result<(), StateError> {
        let known = &mut self.templates;
        let fresh = |entry: &&Entry| match entry {
            Entry::Template { id, .. } => known.insert(*id),
            _ => true,
        };
        let entries: Vec<&Entry> = self.pending.iter().filter(fresh).collect();
        let text = lines(entries.iter().copied());
        let written = self.file.write_all(&text).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // Part of it may be in the file: what comes next starts from a clean snapshot.
            self.records = usize::MAX;
            return Err(StateError::io("write", &self.path)(error));
        }
        self.records = self.records.saturating_add(entries.len());
        self.pending.clear();
        Ok(())
    }

    /// Replaces the whole journal.
    pub fn write_snapshot(&mut self, entries: &[Entry]) -> Result<(), StateError> {
        replace(&self.path, &lines(entries.iter())).map_err(StateError::io("write", &self.path))?;
        self.file = open_for_append(&self.path)?;
        self.records = 0;
        self.snapshot_size = entries.len();
        self.pending.clear();
        self.templates = entries
            .iter()
            .filter_map(|entry| if let Entry::Template { id, .. } = entry { Some(*id) } else { None })
            .collect();
        Ok(())
    }
}

fn open_for_append(path: &Path) -> Result<File, StateError> {
    private().append(true).open(path).map_err(StateError::io("open", path))
}

fn lines<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<u8> {
    let mut text = Vec::new();
    for entry in entries {
        if let Ok(line) = serde_json::to_vec(entry) {
            text.extend(line);
            text.push(b'\n');
        }
    }
    text
}

fn parse(content: &[u8]) -> Result<Vec<Entry>, String> {
    let whole = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let complete = content.get(..whole).unwrap_or_default();
    let mut entries = Vec::new();
    for (at, line) in complete.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        let entry: Entry = serde_json::from_slice(line).map_err(|error| format!("line {}: {error}", at + 1))?;
        match entry {
            Entry::Simulation { version, .. } if version != 1 => {
                return Err(format!("version {version} is unknown, this program reads version 1"));
            }
            entry => entries.push(entry),
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(id: &str) -> Entry {
        Entry::Gone { provider_id: id.to_owned() }
    }

    #[test]
    fn half_a_line_at_the_end_was_never_answered_and_is_cut_off() {
        let mut content = lines([gone("a"), gone("b")].iter());
        content.extend(b"{\"kind\":\"go");
        assert_eq!(parse(&content), Ok(vec![gone("a"), gone("b")]));
    }

    #[test]
    fn a_broken_line_in_the_middle_is_an_error_that_names_it() {
        let error = parse(b"{\"kind\":\"gone\",\"providerID\":\"a\"}\nrubbish\n{}\n").unwrap_err();
        assert!(error.starts_with("line 2: "), "{error}");
    }

    #[test]
    fn what_was_written_is_read_again_and_a_second_writer_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let (mut journal, entries) = Journal::open(&path).unwrap();
        assert_eq!(entries, Vec::new());
        journal.write(vec![gone("a")], None).unwrap();
        journal.write(vec![gone("b")], None).unwrap();
        assert!(matches!(Journal::open(&path), Err(StateError::InUse { .. })));
        drop(journal);
        assert_eq!(Journal::open(&path).unwrap().1, vec![gone("a"), gone("b")]);
    }
}
