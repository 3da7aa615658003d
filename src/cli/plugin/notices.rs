//! Where a command says what it can't do: on standard error, or in the live view, whose screen standard error would disturb.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use crate::cli::output::printable;

/// The receiver of notices. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Notices {
    /// The notices that were not taken yet. `None`: they go to standard error.
    kept: Option<Arc<Mutex<Vec<String>>>>,
}

impl Notices {
    /// Notices that [`Self::take`] hands out.
    pub fn kept() -> Self {
        Self { kept: Some(Arc::default()) }
    }

    /// Says something, without a line break at its end.
    pub fn say(&self, text: &str) {
        let text = printable(text);
        match &self.kept {
            Some(kept) => kept.lock().unwrap_or_else(PoisonError::into_inner).push(text),
            None => eprintln!("mcm: {text}"),
        }
    }

    /// The notices since the last time.
    pub fn take(&self) -> Vec<String> {
        let kept = self.kept.as_ref();
        kept.map(|kept| mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner))).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_notices_are_handed_out_once() {
        let notices = Notices::kept();
        notices.clone().say("no \x1b[2Jviews");
        assert_eq!(notices.take(), ["no \\u{1b}[2Jviews"]);
        assert!(notices.take().is_empty());
    }
}
