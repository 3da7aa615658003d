//! A readable trace of a history: one line per event. The lines are made only on request.

use jiff::Timestamp;

/// Collects lines, or drops them without formatting.
#[derive(Debug, Default)]
pub struct Trace {
    lines: Option<Vec<String>>,
}

impl Trace {
    /// A trace that keeps its lines.
    pub fn kept() -> Self {
        Self { lines: Some(Vec::new()) }
    }

    /// Adds a line.
    pub fn say(&mut self, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(line());
        }
    }

    /// Adds a line with its time, in seconds since the beginning.
    pub fn at(&mut self, begin: Timestamp, now: Timestamp, line: impl FnOnce() -> String) {
        let seconds = now.duration_since(begin).as_secs_f64();
        self.say(|| format!("{seconds:>9.3}s {}", line()));
    }

    /// The lines so far.
    pub fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}
