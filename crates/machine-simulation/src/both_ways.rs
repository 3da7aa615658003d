//! Checks that patches of typed objects equal JSON patches at an API server: during random histories each patch is
//! applied in both ways, and each effect of the controllers must occur (TR-002).

use std::{cell::RefCell, collections::BTreeSet, fmt::Debug};

use controller_runtime::objects::{Part, Patch};
use serde_json::Value;

use super::{api::Kind, history::History, *};

/// The records of the comparison.
#[derive(Default)]
struct Seen {
    patches: usize,
    verbs: BTreeSet<String>,
}

thread_local! {
    /// `None` means that nothing is compared.
    static SEEN: RefCell<Option<Seen>> = const { RefCell::new(None) };
}

/// Records the effects of a plan.
pub(super) fn ordered<'a, E: Debug + 'a>(room: &str, effects: impl IntoIterator<Item = &'a E>) {
    SEEN.with_borrow_mut(|seen| {
        let Some(seen) = seen else { return };
        for effect in effects {
            let text = format!("{effect:?}");
            let name = text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
            seen.verbs.insert(format!("{room}: {name}"));
        }
    });
}

/// Compares a patch that the played API server has applied.
pub(super) fn patched<K: Kind + Debug>(before: &K, part: Part, patch: &Patch, after: &K) {
    SEEN.with_borrow_mut(|seen| {
        let Some(seen) = seen else { return };
        let mut expected: K = serde_json::from_value(patched_json(before, part, patch)).unwrap();
        expected.meta_mut().resource_version.clone_from(&before.meta().resource_version);
        if *after != expected {
            let [after, expected] = [after, &expected].map(|object| serde_json::to_string_pretty(object).unwrap());
            let differing = after.lines().zip(expected.lines()).find(|(after, expected)| after != expected);
            panic!("{} after {patch:?}: {differing:?}\n{after}", K::NAME);
        }
        seen.patches += 1;
    });
}

/// The object after the patch, at an API server with a status subresource.
fn patched_json<K: Kind>(before: &K, part: Part, patch: &Patch) -> Value {
    let before = serde_json::to_value(before).unwrap();
    let mut after = before.clone();
    match patch {
        Patch::Merge(merge) => json_patch::merge(&mut after, merge),
        Patch::Json(operations) => {
            let operations: json_patch::Patch = serde_json::from_value(Value::Array(operations.clone())).unwrap();
            json_patch::patch(&mut after, &operations).unwrap();
        }
    }
    let (mut stored, status) = match part {
        Part::Main => (after, before.get("status").cloned()),
        Part::Status => (before, after.get("status").cloned()),
    };
    match status {
        Some(status) => stored["status"] = status,
        None => drop(stored.as_object_mut().and_then(|object| object.remove("status"))),
    }
    stored
}

/// The effects that patch and that random histories contain. Missing effects: statuses of sets and deployments come
/// from decisions of their own, no set here lacks its finalizer, no class has a capacity, and few of the first seeds
/// let a set preserve a machine.
const VERBS: &[&str] = &[
    "deployment: AddFinalizer",
    "deployment: AdoptSet",
    "deployment: ChangeNode",
    "deployment: CountCollision",
    "deployment: HandOver",
    "deployment: MarkMachine",
    "deployment: MarkTainted",
    "deployment: ReleaseSet",
    "deployment: RemoveFinalizer",
    "deployment: RollBack",
    "deployment: ScaleSet",
    "deployment: SetGrowth",
    "deployment: SyncSet",
    "deployment: WriteRevision",
    "deployment: WriteTriggerList",
    "machine: AddMachineFinalizer",
    "machine: AddNodeCondition",
    "machine: Cordon",
    "machine: Dress",
    "machine: ForgetPreservation",
    "machine: Link",
    "machine: RememberNodesWish",
    "machine: RemoveMachineFinalizer",
    "machine: RemoveNodeFinalizer",
    "machine: SetNodeCondition",
    "machine: WriteStatus",
    "set: Adopt",
    "set: Release",
    "set: RemoveFinalizer",
    "set: SyncTemplate",
];

#[test]
fn tr_002_a_verb_does_to_a_typed_object_what_its_patch_does_to_json() {
    SEEN.set(Some(Seen::default()));
    for seed in 0..60 {
        run(&History::of_seed(seed), TraceMode::Off);
        run(&History::life_of_seed(seed), TraceMode::Off);
    }
    let seen = SEEN.take().unwrap();
    assert!(seen.patches >= 5_000, "{} patches", seen.patches);
    let missing: Vec<_> = VERBS.iter().filter(|verb| !seen.verbs.contains(**verb)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
