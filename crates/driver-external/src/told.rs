//! What a driver has told of itself so far, at addresses that stay: [`machine_driver::Driver::info`] gives them out by reference.

use std::sync::OnceLock;

use machine_driver::{Capabilities, DriverInfo};

use crate::info::Accepted;

/// So often a driver may tell something new; what it tells later is known after a restart only. Nothing told is ever freed.
const MOST_CHANGES: usize = 32;

/// What a driver told last, behind all that it told before.
pub struct Told {
    /// What the contract's callers see.
    pub info: DriverInfo,
    /// What it told; nothing before the first connection.
    pub accepted: Option<Accepted>,
    /// The words for keys that Secrets lack, each with its key.
    pub secret_words: Vec<(String, &'static str)>,
    next: OnceLock<Box<Self>>,
}

impl Told {
    /// Nothing yet, of the driver for this provider.
    pub fn nothing(provider: &str) -> Self {
        Self::of(String::leak(provider.to_owned()), provider, None)
    }

    fn of(name: &'static str, provider: &str, accepted: Option<Accepted>) -> Self {
        let told = accepted.as_ref();
        let info = DriverInfo {
            name,
            providers: vec![provider.to_owned()],
            schema: told.and_then(|told| told.schema.clone().ok().flatten()),
            capabilities: Capabilities {
                create_is_idempotent: told.is_some_and(|told| told.create_is_idempotent),
                lists_creation_time: told.is_some_and(|told| told.lists_creation_time),
            },
        };
        let keys = told.map(|told| told.required_secret_keys.as_slice()).unwrap_or_default();
        let words = |key: &String| (key.clone(), &*String::leak(format!("Mention {key}")));
        Self { info, secret_words: keys.iter().map(words).collect(), accepted, next: OnceLock::new() }
    }

    /// What was told last.
    pub fn last(&self) -> &Self {
        let mut last = self;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }

    /// Remembers what was told now, if it is new.
    pub fn tell(&self, accepted: &Accepted) {
        let changes = std::iter::successors(Some(self), |told| told.next.get().map(|next| &**next)).count();
        let last = self.last();
        if last.accepted.as_ref() == Some(accepted) {
            return;
        }
        if changes > MOST_CHANGES {
            tracing::warn!(
                driver = self.info.name,
                "the driver changes what it tells too often; the change counts after a restart"
            );
            return;
        }
        // Connections follow each other, so that nobody else tells anything meanwhile.
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
        let told = GetInfoResponse {
            version: version.to_owned(),
            protocol: "1.0".to_owned(),
            providers: vec!["folder".to_owned()],
            capabilities: vec![Op::Create.into(), Op::Delete.into()],
            provider_spec_json_schema: schema.as_bytes().to_vec(),
            required_secret_keys: vec!["token".to_owned()],
            ..GetInfoResponse::default()
        };
        accept("folder", None, told).unwrap()
    }

    #[test]
    fn what_was_told_last_counts_and_what_was_told_before_stays_where_it_is() {
        let told = Told::nothing("folder");
        let first = told.last();
        assert_eq!((first.info.name, first.info.schema.clone()), ("folder", None));
        told.tell(&accepted("1", "true"));
        let second = told.last();
        told.tell(&accepted("1", "true"));
        assert!(std::ptr::eq(second, told.last()), "nothing new");
        told.tell(&accepted("2", "{}"));
        assert_eq!(second.info.schema, Some(serde_json::json!(true)));
        assert_eq!(told.last().info.schema, Some(serde_json::json!({})));
        assert_eq!(told.last().secret_words, [("token".to_owned(), "Mention token")]);
    }

    #[test]
    fn a_driver_that_tells_something_new_all_the_time_does_not_fill_the_memory() {
        let told = Told::nothing("folder");
        for version in 0..1000 {
            told.tell(&accepted(&version.to_string(), ""));
        }
        assert_eq!(told.last().accepted.as_ref().unwrap().version, (MOST_CHANGES - 1).to_string());
    }
}
