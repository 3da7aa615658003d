//! Caches the errors that the admission rules find in an object.
//!
//! Objects that were stored before admission was installed can break its rules. Therefore each pass over a deployment
//! or a set asks for the errors first, and once more for the status. The rules read the object as JSON, which costs
//! more than the rest of the pass. This file holds the cache; the rules are in `api/validation`.

use std::sync::Arc;

use controller_runtime::snapshot::Whole;
use machine_api::{kind::Kind, validation::reconcile_findings_of};
use serde::Serialize;

use crate::snapshots::{DeploymentSnapshot, Described, SetSnapshot};

/// Bytes of all error texts together. The texts become part of an event and of a condition.
const ERROR_TEXTS_MAX: usize = 1000;

/// A kind that is checked in each pass.
pub trait Checkable: Described + Whole<Object: Serialize> {
    /// The kind for which the rules are evaluated.
    const KIND: Kind;
    /// Whether both objects have the same `spec`.
    fn has_spec_of(&self, other: &Self) -> bool;
}

impl Checkable for SetSnapshot {
    const KIND: Kind = Kind::MachineSet;

    fn has_spec_of(&self, other: &Self) -> bool {
        self.has_spec_of(other)
    }
}

impl Checkable for DeploymentSnapshot {
    const KIND: Kind = Kind::MachineDeployment;

    fn has_spec_of(&self, other: &Self) -> bool {
        self.has_spec_of(other)
    }
}

/// An object and the errors that forbid acting on it.
#[derive(Clone, Debug)]
pub struct Checked<S> {
    object: S,
    errors: Arc<[String]>,
}

impl<S: Checkable> Checked<S> {
    /// Checks an object. The errors of `known` are reused while nothing has changed that the rules look at.
    pub fn of(object: &S, known: Option<&Self>) -> Self {
        let errors = match known {
            Some(known) if is_same_for_rules(&known.object, object) => Arc::clone(&known.errors),
            // An object that is being deleted must be released even if it breaks the rules.
            _ if object.metadata().is_deleting() => Arc::default(),
            _ => reconcile_findings_of(S::KIND, &**object.whole_object()).error_texts(ERROR_TEXTS_MAX, str::len).into(),
        };
        Self { object: object.clone(), errors }
    }

    /// The errors that forbid acting on the object; empty when there are none. Evaluates the rules again unless `known`
    /// is about this exact object.
    pub fn errors(object: &S, known: Option<&Self>) -> Arc<[String]> {
        match known {
            Some(known) if Arc::ptr_eq(known.object.whole_object(), object.whole_object()) => Arc::clone(&known.errors),
            _ => Self::of(object, None).errors,
        }
    }
}

/// Whether the rules would find the same errors. The rules read neither the status nor the resource version.
fn is_same_for_rules<S: Checkable>(one: &S, other: &S) -> bool {
    let (mine, theirs) = (one.metadata(), other.metadata());
    (mine.name, mine.namespace, mine.uid) == (theirs.name, theirs.namespace, theirs.uid)
        && (mine.labels, mine.annotations) == (theirs.labels, theirs.annotations)
        && (mine.finalizers, mine.owner_references) == (theirs.finalizers, theirs.owner_references)
        && mine.deleting_since == theirs.deleting_since
        && one.has_spec_of(other)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    use super::*;
    use crate::set::testing::*;
    use machine_api::v1alpha1::MachineSet;

    #[rstest]
    #[case::nothing_new(|_: &mut MachineSet| (), "")]
    #[case::a_status(|set: &mut MachineSet| set.status.replicas = 7, "")]
    #[case::a_version(|set: &mut MachineSet| set.metadata.resource_version = Some("9".to_owned()), "")]
    #[case::a_specification(|set: &mut MachineSet| set.spec.replicas = -1, "spec.replicas")]
    #[case::a_deletion(|set: &mut MachineSet| { set.spec.replicas = -1; set.metadata.deletion_timestamp = Some(Time(now())); }, "")]
    #[case::a_namesake(|set: &mut MachineSet| { set.metadata.uid = Some("other".to_owned()); set.spec.replicas = -1; }, "spec.replicas")]
    fn a_result_is_kept_while_nothing_changes(#[case] change: fn(&mut MachineSet), #[case] expected: &str) {
        let before: SetSnapshot = set(1).snapshot();
        let known = Checked::of(&before, None);
        let mut after = before.clone();
        change(after.to_mut());
        let found = Checked::of(&after, Some(&known));
        for errors in [Checked::errors(&after, Some(&found)), Checked::errors(&after, Some(&known))] {
            let fits = if expected.is_empty() {
                errors.is_empty()
            } else {
                errors.len() == 1 && errors[0].starts_with(expected)
            };
            assert!(fits, "{errors:?}");
        }
    }
}
