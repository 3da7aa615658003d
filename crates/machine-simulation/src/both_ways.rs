//! What a verb does to a typed object here, a patch does to JSON at an API server: while drawn histories happen, each patch is
//! applied both ways, and each verb of the controllers has to occur (TR-002).

use std::{cell::RefCell, collections::BTreeSet, fmt::Debug};

use controller_runtime::objects::{Part, Patch};
use serde_json::Value;

use super::{api::Kind, history::History, *};

/// What was seen while patches were compared.
#[derive(Default)]
struct Seen {
    patches: usize,
    verbs: BTreeSet<String>,
}

thread_local! {
    /// Nothing is compared where there is nothing.
    static SEEN: RefCell<Option<Seen>> = const { RefCell::new(None) };
}

/// A plan orders these verbs.
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

/// The played API server has patched an object.
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

/// The object as an API server with a status subresource has it afterwards.
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

/// The verbs that patch and that drawn histories order. The verbs that are missing here: statuses of sets and deployments are written by
/// decisions of their own, no set lacks its finalizer here, no class tells a capacity, and few of the first seeds let a set keep a machine.
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
        run(&History::of_seed(seed), Telling::Silent);
        run(&History::life_of_seed(seed), Telling::Silent);
    }
    let seen = SEEN.take().unwrap();
    assert!(seen.patches >= 5_000, "{} patches", seen.patches);
    let missing: Vec<_> = VERBS.iter().filter(|verb| !seen.verbs.contains(**verb)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
