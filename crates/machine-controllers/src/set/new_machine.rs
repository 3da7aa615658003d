//! A new machine of a set, and its name.
//!
//! Names are drawn here and not by the API server, so that a creation whose answer was lost can be repeated under the
//! same name (D-01). They look like names that the API server generates: the set's name and five characters of the
//! alphabet of Kubernetes. Finalizer and priority are the defaults of admission, so no further write is needed
//! (spec/machine-controller §16.2). Source: spec/deployment-and-set §6.3.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use super::ownership::Owner;
use crate::snapshots::SetSnapshot;
use controller_runtime::snapshot::Snapshot;
use kube_values::duration::GoDuration;
use machine_api::{
    names::{DEFAULT_MACHINE_PRIORITY, annotation, finalizer},
    v1alpha1::{Machine, MachineSpec},
};

/// Characters of generated names (k8s.io/apimachinery/pkg/util/rand).
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
/// The API server keeps generated names within the 63 characters of a label.
const LONGEST_BASE: usize = 63 - SUFFIX_LENGTH;

/// `count` names for machines of a set: first the names whose creation got no answer, then new names drawn from the
/// seed. No name is in `taken` or appears twice.
pub fn names(set: &str, count: usize, unanswered: &BTreeSet<String>, taken: &BTreeSet<&str>, seed: u64) -> Vec<String> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let base: String = prefix(set).chars().take(LONGEST_BASE).collect();
    let mut names: Vec<String> = unanswered.iter().take(count).cloned().collect();
    let mut used: BTreeSet<String> = unanswered.clone();
    while names.len() < count {
        let name = format!("{base}{}", suffix(&mut random));
        if !taken.contains(name.as_str()) && used.insert(name.clone()) {
            names.push(name);
        }
    }
    names
}

/// The text, with the random suffixes of the set's machine names removed.
pub fn without_new_names(set: &str, text: &str) -> String {
    let base: String = prefix(set).chars().take(LONGEST_BASE).collect();
    let mut parts = text.split(base.as_str());
    let mut without = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let bytes = part.as_bytes();
        let is_suffix = bytes.len() >= SUFFIX_LENGTH
            && bytes.iter().take(SUFFIX_LENGTH).all(|byte| ALPHABET.contains(byte))
            && bytes.get(SUFFIX_LENGTH).is_none_or(|next| !next.is_ascii_alphanumeric() && *next != b'-');
        without.push_str(&base);
        without.push_str(if is_suffix { part.get(SUFFIX_LENGTH..).unwrap_or_default() } else { part });
    }
    without
}

/// The prefix from which the API server would generate a name.
fn prefix(set: &str) -> String {
    format!("{set}-")
}

fn suffix(random: &mut ChaCha8Rng) -> String {
    let count = u32::try_from(ALPHABET.len()).unwrap_or(1);
    (0..SUFFIX_LENGTH)
        .map(|_| {
            let index = usize::try_from(random.next_u32() % count).unwrap_or_default();
            char::from(ALPHABET.get(index).copied().unwrap_or(b'b'))
        })
        .collect()
}

/// The creation timeout in the set's annotation, as text and as a duration.
///
/// # Errors
/// The annotation's value, if admission would refuse it on a machine: it is not a duration, or not positive.
pub fn effective_creation_timeout(set: &SetSnapshot) -> Result<Option<(&str, GoDuration)>, &str> {
    let value = set.annotation(annotation::EFFECTIVE_CREATION_TIMEOUT);
    let read = |text: &str| text.parse().ok().filter(|timeout| *timeout > GoDuration::ZERO);
    value.map(|text| read(text).map(|timeout| (text, timeout)).ok_or(text)).transpose()
}

/// A new machine of the set under this name.
pub fn new_machine(set: &SetSnapshot, name: String) -> Machine {
    let template = set.template();
    let mut annotations = template.metadata.annotations.clone().unwrap_or_default();
    let mut spec = MachineSpec { provider_id: template.spec.provider_id.clone(), ..template.spec.clone() };
    if let Ok(Some((text, timeout))) = effective_creation_timeout(set) {
        annotations.insert(annotation::EFFECTIVE_CREATION_TIMEOUT.to_owned(), text.to_owned());
        spec.configuration.creation_timeout = Some(timeout);
    }
    let priority = annotations.entry(annotation::MACHINE_PRIORITY.to_owned()).or_default();
    if priority.is_empty() {
        *priority = DEFAULT_MACHINE_PRIORITY.to_string();
    }
    let mut finalizers = template.metadata.finalizers.clone().unwrap_or_default();
    if !finalizers.iter().any(|present| present == finalizer::MACHINE) {
        finalizers.push(finalizer::MACHINE.to_owned());
    }
    let owner = Owner { kind: "MachineSet", meta: set.metadata(), selector: None };
    Machine {
        metadata: ObjectMeta {
            generate_name: Some(prefix(set.name())),
            name: Some(name),
            namespace: Some(set.namespace().to_owned()),
            labels: template.metadata.labels.clone(),
            annotations: Some(annotations),
            finalizers: Some(finalizers),
            owner_references: Some(vec![owner.reference()]),
            ..ObjectMeta::default()
        },
        spec,
        ..Machine::default()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::set::testing::*;

    #[test]
    fn names_look_like_generated_ones_and_follow_the_seed() {
        let draw = |seed| names("pool-x", 3, &BTreeSet::new(), &BTreeSet::new(), seed);
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        for name in draw(7) {
            let suffix = name.strip_prefix("pool-x-").unwrap();
            assert_eq!(suffix.len(), 5);
            assert!(suffix.bytes().all(|byte| ALPHABET.contains(&byte)));
        }
    }

    #[test]
    fn an_unanswered_creation_is_asked_again_under_its_name() {
        let unanswered = BTreeSet::from(["set-zzzzz".to_owned()]);
        let drawn = names("set", 2, &unanswered, &BTreeSet::new(), 1);
        assert_eq!(drawn[0], "set-zzzzz");
        assert_ne!(drawn[1], "set-zzzzz");
    }

    #[test]
    fn a_long_base_is_cut_as_the_api_server_cuts_it() {
        let drawn = names(&"x".repeat(80), 1, &BTreeSet::new(), &BTreeSet::new(), 1);
        assert_eq!(drawn[0].len(), 63);
    }

    #[test]
    fn a_new_machine_needs_no_further_write() {
        let set = set(1).snapshot();
        let machine = new_machine(&set, "set-abcde".to_owned());
        assert_eq!(machine.metadata.generate_name.as_deref(), Some("set-"));
        assert_eq!(machine.metadata.finalizers, Some(vec![finalizer::MACHINE.to_owned()]));
        assert_eq!(machine.metadata.annotations.unwrap()[annotation::MACHINE_PRIORITY], "3");
        assert_eq!(machine.metadata.owner_references.unwrap()[0].uid, "uid-set");
        assert_eq!(machine.metadata.labels, set.template().metadata.labels);
    }

    #[rstest]
    #[case::s_util_14_absent(None, Ok(None))]
    #[case::s_util_14_valid(Some("30m"), Ok(Some(("30m", GoDuration::from_mins(30)))))]
    #[case::s_util_14_invalid(Some("abc"), Err("abc"))]
    #[case::nothing_is_no_timeout(Some("0s"), Err("0s"))]
    fn the_effective_creation_timeout_is_read(
        #[case] value: Option<&str>,
        #[case] expected: Result<Option<(&str, GoDuration)>, &str>,
    ) {
        let set = match value {
            Some(value) => set(1).annotation(annotation::EFFECTIVE_CREATION_TIMEOUT, value),
            None => set(1),
        };
        assert_eq!(effective_creation_timeout(&set.snapshot()), expected);
    }

    #[rstest]
    #[case::s_ms_35_the_annotation_wins("30m", 30, Some("30m"))]
    #[case::s_ms_36_an_unreadable_annotation_leaves_the_template_and_is_not_copied("abc", 20, None)]
    #[case::nor_is_one_that_admission_would_refuse("0s", 20, None)]
    fn the_creation_timeout_of_a_new_machine(
        #[case] annotation: &str,
        #[case] minutes: i64,
        #[case] copied: Option<&str>,
    ) {
        let set = set(1)
            .annotation(annotation::EFFECTIVE_CREATION_TIMEOUT, annotation)
            .with(|set| set.spec.template.spec.configuration.creation_timeout = Some(GoDuration::from_mins(20)))
            .snapshot();
        let machine = new_machine(&set, "m".to_owned());
        assert_eq!(machine.spec.configuration.creation_timeout, Some(GoDuration::from_mins(minutes)));
        let annotations = machine.metadata.annotations.unwrap();
        assert_eq!(annotations.get(annotation::EFFECTIVE_CREATION_TIMEOUT).map(String::as_str), copied);
    }
}
