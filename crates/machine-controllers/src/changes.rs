//! Changes of labels and annotations, as values.

use std::collections::BTreeMap;

/// Keys to set; with `None`, keys to remove.
pub type Changes = BTreeMap<String, Option<String>>;

/// One key that is set.
pub fn set(key: &str, value: &str) -> (String, Option<String>) {
    (key.to_owned(), Some(value.to_owned()))
}

/// One key that is removed.
pub fn removed(key: &str) -> (String, Option<String>) {
    (key.to_owned(), None)
}
