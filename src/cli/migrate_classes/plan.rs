//! Decides the writes of a migration, from the objects that were read. Pure.
//!
//! The plan depends on nothing but the objects. After an interruption the objects are read again, and the plan has the rest.
//!
//! The writes have three stages: the new classes, the references to them, the release of the old classes. A stage begins when nothing of the
//! stages before it is left. Deployments come before their sets, and sets before their machines, because a controller copies the kind of the
//! class in this direction: if controllers run after an interruption, they go on with the change and don't undo it.

use std::{collections::BTreeSet, fmt};

use controller_runtime::{
    key::{ObjectKey, Target},
    objects::Patch,
};
use machine_api::{
    kind::Kind,
    names::{MACHINE_CLASS_KIND, annotation, finalizer},
};
use serde_json::{Value, json};

use super::{
    convert::{Converted, convert},
    table::{OldKind, SECRET_FIELDS},
};

/// The kinds of objects that name a class, in the order in which they are changed.
pub const USERS: [Kind; 3] = [Kind::MachineDeployment, Kind::MachineSet, Kind::Machine];

/// The objects of a namespace.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The classes of the old kinds.
    pub old: Vec<(OldKind, Value)>,
    /// The classes of kind `MachineClass`.
    pub classes: Vec<Value>,
    /// The objects that name classes, of the kinds [`USERS`].
    pub users: Vec<(Kind, Value)>,
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Create the `MachineClass` of an old class.
    Create {
        /// The kind of the old class.
        from: OldKind,
        /// The new class.
        class: Value,
    },
    /// Change the kind of the class that an object names.
    Refer {
        /// The kind of the object.
        kind: Kind,
        /// The object.
        target: Target,
        /// The class as it is named now.
        from: (OldKind, String),
        /// The places of the reference in the object, as JSON pointers.
        places: Vec<&'static str>,
    },
    /// Remove our finalizer from an old class that nothing names any more, and mark the class as migrated.
    Release {
        /// Its kind.
        kind: OldKind,
        /// The class.
        target: Target,
        /// The version of the class whose finalizers are replaced.
        version: String,
        /// The finalizers that stay.
        finalizers: Vec<String>,
    },
}

impl Step {
    /// The change of the object. `None` for a creation. It fails if the object has changed in a way that matters.
    pub fn patch(&self) -> Option<Patch> {
        match self {
            Self::Create { .. } => None,
            Self::Refer { target, from: (kind, name), places, .. } => {
                let operations = places.iter().flat_map(|place| {
                    let (at_kind, at_name) = (format!("{place}/kind"), format!("{place}/name"));
                    [
                        json!({"op": "test", "path": at_name, "value": name}),
                        json!({"op": "test", "path": at_kind, "value": kind.table().kind}),
                        json!({"op": "replace", "path": at_kind, "value": MACHINE_CLASS_KIND}),
                    ]
                });
                Some(Patch::Json(operations.collect()).bound_to(&target.uid))
            }
            Self::Release { kind, target, version, finalizers } => {
                let metadata = json!({
                    "annotations": { annotation::MIGRATED: kind.migrated_by() }, "finalizers": finalizers,
                });
                let patch = Patch::Merge(json!({ "metadata": metadata }));
                Some(patch.guarded_by(Some(version)).bound_to(&target.uid))
            }
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { from, class } => {
                let (key, provider) = (key_of(class), class["provider"].as_str().unwrap_or_default());
                write!(f, "create MachineClass {key} (provider {provider}) of {} {key}", from.table().kind)
            }
            Self::Refer { kind, target, from: (old, name), .. } => {
                write!(f, "let {kind} {} name MachineClass {name} instead of {}", target.key, old.table().kind)
            }
            Self::Release { kind, target, .. } => {
                write!(f, "remove the finalizer from {} {}", kind.table().kind, target.key)
            }
        }
    }
}

/// The writes, and what a user must know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// New classes.
    pub creations: Vec<Step>,
    /// References to them.
    pub references: Vec<Step>,
    /// Old classes that nothing will name any more.
    pub releases: Vec<Step>,
    /// What is special.
    pub notes: Vec<String>,
    /// Why nothing may be written.
    pub obstacles: Vec<String>,
    /// References to classes that don't exist; they stay.
    pub dangling: Vec<String>,
}

impl Plan {
    /// All writes in their order.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.creations.iter().chain(&self.references).chain(&self.releases)
    }

    /// The classes that will be created.
    pub fn new_classes(&self) -> impl Iterator<Item = &Value> {
        self.creations.iter().filter_map(|step| match step {
            Step::Create { class, .. } => Some(class),
            Step::Refer { .. } | Step::Release { .. } => None,
        })
    }

    /// The next stage of the writes. `None` if nothing is left.
    pub fn next_stage(&self) -> Option<Stage<'_>> {
        match (self.creations.as_slice(), self.references.as_slice(), self.releases.as_slice()) {
            ([], [], []) => None,
            ([], [], releases) => Some(Stage::AtRest(releases)),
            ([], references, _) => Some(Stage::AtRest(references)),
            (creations, ..) => Some(Stage::AnyTime(creations)),
        }
    }
}

/// Writes that need nothing of each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stage<'a> {
    /// They may happen while a manager runs.
    AnyTime(&'a [Step]),
    /// They need both Leases, so that no controller acts meanwhile.
    AtRest(&'a [Step]),
}

/// The objections of admission to a new class.
pub type Judge<'a> = &'a dyn Fn(&Value) -> Judgement;

/// What admission says about a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Why it refuses the class.
    pub denials: Vec<String>,
    /// What it warns of.
    pub warnings: Vec<String>,
}

/// Makes the plan. `judge` has the rules of admission.
pub fn plan(observed: &Observed, judge: Judge<'_>) -> Plan {
    let mut plan = Plan::default();
    let named = |key: &ObjectKey| observed.classes.iter().find(|class| key_of(class) == *key);
    let mut created: BTreeSet<ObjectKey> = BTreeSet::new();
    for (kind, old) in &observed.old {
        let key = key_of(old);
        if needs_class(observed, *kind, old, named(&key)) {
            let what = format!("{} {key}", kind.table().kind);
            let converted = convert(*kind, old);
            if !created.insert(key.clone()) {
                plan.obstacles.push(format!("{what}: another old class has the same name; rename one of them"));
            } else if let Some(present) = named(&key) {
                let differing = differences(&converted.class, present);
                if !differing.is_empty() {
                    plan.obstacles.push(format!(
                        "MachineClass {key} exists and differs from {what} in {}; correct or delete it",
                        differing.join(", ")
                    ));
                }
            } else {
                add_class(&mut plan, *kind, &what, converted, judge);
            }
        } else if let Some(present) = named(&key).filter(|present| !serves(present, *kind)) {
            // The old class is migrated, and another class has taken its name since.
            if is_named(observed, *kind, &key) {
                plan.obstacles.push(format!(
                    "MachineClass {key} has provider {}, but objects name {} {key}, which is of provider {}; correct or delete the \
                     MachineClass, or let the objects name another class",
                    provider_of(present),
                    kind.table().kind,
                    kind.table().provider
                ));
            }
        }
        plan.releases.extend(release(*kind, old));
    }
    let mut told: BTreeSet<ObjectKey> = BTreeSet::new();
    for wanted in USERS {
        for (kind, user) in observed.users.iter().filter(|(kind, _)| *kind == wanted) {
            for (old, name) in old_classes_of(*kind, user) {
                let target = target_of(user);
                let key = ObjectKey::new(target.key.namespace.clone(), name.clone());
                let has_old = observed.old.iter().any(|(kind, class)| *kind == old && key_of(class) == key);
                let new = named(&key);
                if has_old || new.is_some_and(|class| serves(class, old)) {
                    plan.notes.extend(new.and_then(|class| misspelt_provider(class, old)).filter(|_| told.insert(key)));
                    let places = places_of(*kind, user, old, &name);
                    plan.references.push(Step::Refer { kind: *kind, target, from: (old, name), places });
                } else {
                    let why = new.map_or_else(
                        || "there is neither this class nor its MachineClass".to_owned(),
                        |class| {
                            let (provider, wanted) = (provider_of(class), old.table().provider);
                            format!("this class is gone; MachineClass {name} has provider {provider}, not {wanted}")
                        },
                    );
                    plan.dangling.push(format!("{kind} {} names {} {name}, and {why}", target.key, old.table().kind));
                }
            }
        }
    }
    plan
}

/// The provider of a `MachineClass`; empty without one.
fn provider_of(class: &Value) -> &str {
    class["provider"].as_str().unwrap_or_default()
}

/// Whether a `MachineClass` is of the provider of an old kind. The Go original wrote `openstack`, so upper and lower case don't count.
fn serves(class: &Value, kind: OldKind) -> bool {
    provider_of(class).eq_ignore_ascii_case(kind.table().provider)
}

/// What a user must know about a class of the right provider in other letters, as the Go original wrote it.
fn misspelt_provider(class: &Value, kind: OldKind) -> Option<String> {
    let (provider, wanted) = (provider_of(class), kind.table().provider);
    (serves(class, kind) && provider != wanted).then(|| {
        format!("MachineClass {} has provider {provider}; change it to {wanted}, which drivers read", key_of(class))
    })
}

/// Whether an old class must have its `MachineClass`. After its migration, users may change or delete the new class.
fn needs_class(observed: &Observed, kind: OldKind, old: &Value, new: Option<&Value>) -> bool {
    let is_migrated = old["metadata"]["annotations"].get(annotation::MIGRATED).is_some();
    let is_deleting = !old["metadata"]["deletionTimestamp"].is_null();
    if is_named(observed, kind, &key_of(old)) { !is_migrated || new.is_none() } else { !is_migrated && !is_deleting }
}

fn add_class(plan: &mut Plan, from: OldKind, what: &str, converted: Converted, judge: Judge<'_>) {
    let Converted { class, notes } = converted;
    for note in notes {
        let list = if note.is_obstacle() { &mut plan.obstacles } else { &mut plan.notes };
        list.push(format!("{what}: {note}"));
    }
    let Judgement { denials, warnings } = judge(&class);
    plan.obstacles
        .extend(denials.into_iter().map(|denial| format!("{what}: its MachineClass would be refused: {denial}")));
    plan.notes.extend(warnings.into_iter().map(|warning| format!("{what}: {warning}")));
    plan.creations.push(Step::Create { from, class });
}

/// The release of an old class. `None` if it has no finalizer of ours and is marked already.
fn release(kind: OldKind, old: &Value) -> Option<Step> {
    let metadata = &old["metadata"];
    let names = metadata["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let (ours, others): (Vec<&str>, Vec<&str>) = names.partition(|name| *name == finalizer::MACHINE);
    let is_marked = metadata["annotations"].get(annotation::MIGRATED).is_some();
    (!ours.is_empty() || !is_marked).then(|| Step::Release {
        kind,
        target: target_of(old),
        version: metadata["resourceVersion"].as_str().unwrap_or_default().to_owned(),
        finalizers: others.into_iter().map(str::to_owned).collect(),
    })
}

fn is_named(observed: &Observed, kind: OldKind, class: &ObjectKey) -> bool {
    observed.users.iter().any(|(user_kind, user)| {
        key_of(user).namespace == class.namespace
            && old_classes_of(*user_kind, user).iter().any(|(old, name)| *old == kind && *name == class.name)
    })
}

/// The places where an object of this kind names a class. The second one of a set is only in objects of early releases.
pub fn places(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Machine => &["/spec/class"],
        Kind::MachineSet => &["/spec/template/spec/class", "/spec/machineClass"],
        Kind::MachineDeployment => &["/spec/template/spec/class"],
        Kind::MachineClass => &[],
    }
}

/// The old class that an object names at this place.
fn old_class_at(user: &Value, place: &str) -> Option<(OldKind, String)> {
    let class = user.pointer(place)?;
    Some((OldKind::from_name(class["kind"].as_str()?)?, class["name"].as_str()?.to_owned()))
}

/// Whether an object names a class of an old kind.
pub fn names_old_class(kind: Kind, object: &Value) -> bool {
    !old_classes_of(kind, object).is_empty()
}

/// The old classes that an object names, each once.
fn old_classes_of(kind: Kind, user: &Value) -> BTreeSet<(OldKind, String)> {
    places(kind).iter().filter_map(|place| old_class_at(user, place)).collect()
}

fn places_of(kind: Kind, user: &Value, old: OldKind, name: &str) -> Vec<&'static str> {
    let is_it = |place: &&&str| old_class_at(user, place).is_some_and(|(kind, class)| kind == old && class == name);
    places(kind).iter().filter(is_it).copied().collect()
}

/// The fields in which a stored class differs from the new class. Defaults in references to Secrets don't count.
fn differences(new: &Value, stored: &Value) -> Vec<&'static str> {
    let mut differing: Vec<&str> =
        ["provider", "providerSpec"].into_iter().filter(|field| new.get(*field) != stored.get(*field)).collect();
    let has_less = |field: &&str| {
        let (new, stored) = (&new[*field], &stored[*field]);
        let members = new.as_object().into_iter().flatten();
        new.is_null() != stored.is_null() || members.into_iter().any(|(name, value)| stored[name.as_str()] != *value)
    };
    differing.extend(SECRET_FIELDS.into_iter().filter(has_less));
    differing
}

/// Namespace and name of an object.
pub fn key_of(object: &Value) -> ObjectKey {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    ObjectKey::new(text("namespace"), text("name"))
}

fn target_of(object: &Value) -> Target {
    Target { key: key_of(object), uid: object["metadata"]["uid"].as_str().unwrap_or_default().to_owned() }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
