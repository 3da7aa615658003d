//! The accepted answers of a driver to `GetInfo`, newest last. They are never moved or freed, because
//! [`machine_driver::Driver::info`] returns references to them.

use std::sync::OnceLock;

use machine_driver::{Capabilities, DriverInfo};

use crate::info::Accepted;

/// The maximum number of changed answers that are kept, because their memory is never freed. Later changes take effect after a
/// restart only.
const MAX_CHANGES: usize = 32;

/// One answer of the driver, with a link to the next one.
pub struct InfoHistory {
    /// The answer as [`DriverInfo`].
    pub info: DriverInfo,
    /// The answer. `None` before the first connection.
    pub accepted: Option<Accepted>,
    /// The keys that the Secrets of a class must have, each with the message for a Secret that lacks it.
    pub required_keys: Vec<(String, &'static str)>,
    next: OnceLock<Box<Self>>,
}

impl InfoHistory {
    /// The history before the first connection to the driver of this provider.
    pub fn new(provider: &str) -> Self {
        Self::of(String::leak(provider.to_owned()), provider, None)
    }

    fn of(name: &'static str, provider: &str, answer: Option<Accepted>) -> Self {
        let accepted = answer.as_ref();
        let info = DriverInfo {
            name,
            providers: vec![provider.to_owned()],
            schema: accepted.and_then(|accepted| accepted.schema.clone().ok().flatten()),
            capabilities: Capabilities {
                create_is_idempotent: accepted.is_some_and(|accepted| accepted.create_is_idempotent),
                lists_creation_time: accepted.is_some_and(|accepted| accepted.lists_creation_time),
            },
        };
        let keys = accepted.map(|accepted| accepted.required_secret_keys.as_slice()).unwrap_or_default();
        let with_message = |key: &String| (key.clone(), &*String::leak(format!("Mention {key}")));
        Self { info, required_keys: keys.iter().map(with_message).collect(), accepted: answer, next: OnceLock::new() }
    }

    /// The newest answer.
    pub fn last(&self) -> &Self {
        let mut last = self;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }

    /// Adds an answer, if it differs from the newest one.
    pub fn record(&self, accepted: &Accepted) {
        let changes = std::iter::successors(Some(self), |answer| answer.next.get().map(|next| &**next)).count();
        let last = self.last();
        if last.accepted.as_ref() == Some(accepted) {
            return;
        }
        if changes > MAX_CHANGES {
            tracing::warn!(
                provider = self.info.name,
                "the driver changes its answer to GetInfo too often; the change takes effect after a restart"
            );
            return;
        }
        // `set` can't fail: there is one connection at a time, so no other answer is recorded meanwhile.
        let _ = last.next.set(Box::new(Self::of(self.info.name, &self.info.providers[0], Some(accepted.clone()))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        info::accept,
        wire::driver::{GetInfoResponse, Op},
    };

    fn accepted(version: &str, schema: &str) -> Accepted {
        let answer = GetInfoResponse {
            version: version.to_owned(),
            protocol: "1.0".to_owned(),
            providers: vec!["folder".to_owned()],
            capabilities: vec![Op::Create.into(), Op::Delete.into()],
            provider_spec_json_schema: schema.as_bytes().to_vec(),
            required_secret_keys: vec!["token".to_owned()],
            ..GetInfoResponse::default()
        };
        accept("folder", None, answer).unwrap()
    }

    #[test]
    fn the_newest_answer_counts_and_earlier_answers_stay_in_place() {
        let history = InfoHistory::new("folder");
        let first = history.last();
        assert_eq!((first.info.name, first.info.schema.clone()), ("folder", None));
        history.record(&accepted("1", "true"));
        let second = history.last();
        history.record(&accepted("1", "true"));
        assert!(std::ptr::eq(second, history.last()), "nothing new");
        history.record(&accepted("2", "{}"));
        assert_eq!(second.info.schema, Some(serde_json::json!(true)));
        assert_eq!(history.last().info.schema, Some(serde_json::json!({})));
        assert_eq!(history.last().required_keys, [("token".to_owned(), "Mention token")]);
    }

    #[test]
    fn a_driver_whose_answer_always_changes_does_not_fill_the_memory() {
        let history = InfoHistory::new("folder");
        for version in 0..1000 {
            history.record(&accepted(&version.to_string(), ""));
        }
        assert_eq!(history.last().accepted.as_ref().unwrap().version, (MAX_CHANGES - 1).to_string());
    }
}
