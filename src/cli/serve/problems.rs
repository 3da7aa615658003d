//! Collects the mistakes in a command line, and reads single values. A wrong value is recorded and replaced by a harmless one, so
//! that one run finds all mistakes.

use std::{net::IpAddr, num::NonZeroU16, time::Duration};

use kube_values::duration::GoDuration;

use crate::cli::namespace_name;

/// The mistakes found so far.
#[derive(Default)]
pub(super) struct Problems(Vec<String>);

impl Problems {
    pub(super) fn add(&mut self, problem: impl Into<String>) {
        self.0.push(problem.into());
    }

    pub(super) fn unless(&mut self, is_right: bool, problem: &str) {
        if !is_right {
            self.add(problem);
        }
    }

    /// The duration; a negative one is a problem.
    pub(super) fn duration(&mut self, value: GoDuration, problem: &str) -> Duration {
        if value.is_negative() {
            self.add(format!("{problem}: got {value}"));
        }
        value.to_std()
    }

    /// The number; a negative one, or one with more than 32 bits, is a problem.
    pub(super) fn count(&mut self, value: i64, problem: &str) -> u32 {
        u32::try_from(value).unwrap_or_else(|_| {
            self.add(format!("{problem}: got {value}"));
            0
        })
    }

    /// Checks the name of a namespace.
    pub(super) fn namespace(&mut self, flag: &str, name: &str) {
        if let Err(why) = namespace_name(name) {
            self.add(format!("{flag}: {why}"));
        }
    }

    /// The trimmed entries of a list flag; an empty one is a problem.
    pub(super) fn entries(&mut self, flag: &str, entries: &[String]) -> Vec<String> {
        let trimmed: Vec<String> = entries.iter().map(|entry| entry.trim().to_owned()).collect();
        if trimmed.iter().any(String::is_empty) {
            self.add(format!("{flag}: the list has an empty entry"));
        }
        trimmed
    }

    /// `Ok` without mistakes, else all mistakes.
    pub(super) fn none(self) -> Result<(), Vec<String>> {
        if self.0.is_empty() { Ok(()) } else { Err(self.0) }
    }
}

/// The port, or none for 0. A number that is no port is a problem.
pub(super) fn port_or_off(flag: &str, port: i64, problems: &mut Problems) -> Option<NonZeroU16> {
    let read = u16::try_from(port);
    if read.is_err() {
        problems.add(format!("{flag}: invalid port number provided: got {port} (0 to 65535, 0 is off)"));
    }
    read.ok().and_then(NonZeroU16::new)
}

/// The IP address. A text that is no address is a problem.
pub(super) fn address(flag: &str, text: &str, problems: &mut Problems) -> IpAddr {
    text.parse().unwrap_or_else(|_| {
        problems.add(format!("{flag}: invalid IP address provided: got {text:?}"));
        IpAddr::from([0, 0, 0, 0])
    })
}

/// Whether the text is `type/subtype` of RFC 2045 tokens, with parameters after a semicolon.
pub(super) fn is_media_type(text: &str) -> bool {
    let is_token = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
    };
    let mut parts = text.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default();
    kind.split('/').count() <= 2
        && kind.split('/').all(is_token)
        && parts.all(|parameter| parameter.split_once('=').is_some_and(|(key, _)| is_token(key)))
}
