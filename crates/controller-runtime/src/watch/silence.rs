//! How long a watch may be silent before its connection counts as dead (decisions.md 47).
//!
//! API servers send bookmarks about once a minute. One that sends none is not asked anew for ever: after three re-openings
//! without an event or bookmark it has longer.

use std::time::Duration;

/// The limit of a watch whose API server sends no bookmarks.
const WITHOUT_BOOKMARKS: Duration = Duration::from_secs(5 * 60);
/// Re-openings without anything heard after which an API server counts as one that sends no bookmarks.
const FRUITLESS: u32 = 3;

/// What is to be done about a watch that was silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallen {
    /// It is opened anew.
    Again,
    /// The same, and from now on it has longer, which is told.
    Patiently,
}

/// The silence of one watch.
#[derive(Debug)]
pub(super) struct Silence {
    usual: Duration,
    fruitless: u32,
    patience: Patience,
    told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    Usual,
    Long,
}

impl Silence {
    /// About this limit: by chance up to a tenth more or less, so that watches are not all opened at once.
    pub(super) fn about(limit: Duration, random: u64) -> Self {
        let chance = u32::try_from(random % 201).unwrap_or_default();
        Self { usual: limit / 1000 * (900 + chance), fruitless: 0, patience: Patience::Usual, told: false }
    }

    /// How long it may be silent now.
    pub(super) fn limit(&self) -> Duration {
        match self.patience {
            Patience::Usual => self.usual,
            Patience::Long => self.usual.max(WITHOUT_BOOKMARKS),
        }
    }

    /// An event was heard.
    pub(super) fn event(&mut self) {
        self.fruitless = 0;
    }

    /// A bookmark was heard: the API server does send them.
    pub(super) fn bookmark(&mut self) {
        self.fruitless = 0;
        self.patience = Patience::Usual;
    }

    /// It was silent for too long.
    pub(super) fn falls(&mut self) -> Fallen {
        self.fruitless = self.fruitless.saturating_add(1);
        // The first fall ends what was opened for another reason.
        if self.fruitless <= FRUITLESS {
            return Fallen::Again;
        }
        self.patience = Patience::Long;
        if std::mem::replace(&mut self.told, true) { Fallen::Again } else { Fallen::Patiently }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(90);

    #[test]
    fn the_limit_is_spread_by_a_tenth() {
        let limit = |random| Silence::about(LIMIT, random).limit().as_secs();
        assert_eq!((limit(0), limit(100), limit(200), limit(201)), (81, 90, 99, 81));
    }

    #[test]
    fn three_fruitless_re_openings_make_it_patient_which_is_told_once() {
        let mut silence = Silence::about(LIMIT, 100);
        assert_eq!([silence.falls(), silence.falls(), silence.falls()], [Fallen::Again; 3]);
        assert_eq!((silence.falls(), silence.limit()), (Fallen::Patiently, WITHOUT_BOOKMARKS));
        assert_eq!((silence.falls(), silence.limit()), (Fallen::Again, WITHOUT_BOOKMARKS));
        silence.bookmark();
        assert_eq!(silence.limit(), LIMIT);
        for _ in 0..5 {
            assert_eq!(silence.falls(), Fallen::Again);
        }
    }

    #[test]
    fn an_event_between_them_begins_the_count_anew() {
        let mut silence = Silence::about(LIMIT, 100);
        for _ in 0..9 {
            silence.falls();
            silence.falls();
            silence.event();
        }
        assert_eq!(silence.limit(), LIMIT);
    }
}
