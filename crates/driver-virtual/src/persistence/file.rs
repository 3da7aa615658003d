//! `file:` stores a snapshot and the changes since, with one record per line.
//!
//! A process that is killed during a write leaves an incomplete last line. Its call did not return, so the line is removed. Other broken lines are an
//! error, because a guess could make a VM twice.

use std::{
    collections::BTreeSet,
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;

use super::{
    Sink, StateError,
    files::{WriterLock, failed, open_for_append, read, replace, unreadable, write},
};
use crate::cloud::Entry;

/// The number of records after which a snapshot replaces them.
const SNAPSHOT_EVERY: usize = 1000;

/// A journal in a file.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    file: Arc<File>,
    records: usize,
    snapshot_size: usize,
    templates: BTreeSet<u64>,
    _lock: WriterLock,
}

impl JournalFile {
    /// Opens the file and reads its records. Creates the file if it is missing.
    pub fn open(path: &Path) -> Result<(Self, Vec<Entry>), StateError> {
        let lock = WriterLock::take(path)?;
        let entries = parse(&read(path)?).map_err(|problem| unreadable(path, &problem))?;
        let file = open_for_append(path).map_err(|error| failed("open", path, &error))?;
        let (records, snapshot_size, templates) = (entries.len(), 0, BTreeSet::new());
        Ok((
            Self { path: path.to_owned(), file: Arc::new(file), records, snapshot_size, templates, _lock: lock },
            entries,
        ))
    }
}

#[async_trait]
impl Sink for JournalFile {
    fn wants_snapshot(&self) -> bool {
        // A snapshot of a large cloud is expensive, so that it is written less often.
        self.records >= self.snapshot_size.max(SNAPSHOT_EVERY)
    }

    async fn append(&mut self, changes: &[Entry]) -> Result<(), StateError> {
        let fresh = |entry: &&Entry| template_of(entry).is_none_or(|id| self.templates.insert(id));
        let fresh: Vec<&Entry> = changes.iter().filter(fresh).collect();
        self.records += fresh.len();
        let (text, file) = (lines(fresh), Arc::clone(&self.file));
        write(&self.path, move |_| (&*file).write_all(&text).and_then(|()| file.sync_data())).await
    }

    async fn replace(&mut self, snapshot: &[Entry]) -> Result<(), StateError> {
        let text = lines(snapshot);
        let opened = write(&self.path, move |path| replace(path, &text).and_then(|()| open_for_append(path))).await?;
        self.file = Arc::new(opened);
        self.records = 0;
        self.snapshot_size = snapshot.len();
        self.templates = snapshot.iter().filter_map(template_of).collect();
        Ok(())
    }
}

fn template_of(entry: &Entry) -> Option<u64> {
    if let Entry::Template { id, .. } = entry { Some(*id) } else { None }
}

fn lines<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Vec<u8> {
    let mut text = Vec::new();
    for entry in entries {
        text.extend(entry.to_json().into_bytes());
        text.push(b'\n');
    }
    text
}

fn parse(content: &[u8]) -> Result<Vec<Entry>, String> {
    let whole = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let complete = content.get(..whole).unwrap_or_default();
    let lines = complete.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    lines.map(|(at, line)| Entry::of_json(line).map_err(|problem| format!("line {}: {problem}", at + 1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(id: &str) -> Entry {
        Entry::Gone { provider_id: id.into() }
    }

    #[test]
    fn an_incomplete_last_line_is_removed() {
        let mut content = lines([gone("a"), gone("b")].iter());
        content.extend(b"{\"kind\":\"go");
        assert_eq!(parse(&content), Ok(vec![gone("a"), gone("b")]));
    }

    #[test]
    fn a_broken_line_in_the_middle_is_an_error_that_names_it() {
        let error = parse(b"{\"kind\":\"gone\",\"providerID\":\"a\"}\nrubbish\n{}\n").unwrap_err();
        assert!(error.starts_with("line 2: "), "{error}");
    }

    #[tokio::test]
    async fn written_entries_are_read_again_and_a_second_writer_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let (mut journal, entries) = JournalFile::open(&path).unwrap();
        assert_eq!(entries, Vec::new());
        journal.append(&[gone("a")]).await.unwrap();
        journal.append(&[gone("b")]).await.unwrap();
        assert!(matches!(JournalFile::open(&path), Err(StateError::InUse { .. })));
        drop(journal);
        assert_eq!(JournalFile::open(&path).unwrap().1, vec![gone("a"), gone("b")]);
    }
}
