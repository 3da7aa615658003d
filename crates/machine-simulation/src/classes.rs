//! The classes of a simulation and their Secrets, both in the control cluster, and the edits of users on them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::ResourceExt;
use serde_json::json;

use crate::{
    api::{Api, Kind},
    edits::{CLASSES, class},
    history::ClassEdit,
    played::cloud::PROVIDER,
};
use machine_api::{
    names::{MACHINE_CLASS_KIND, finalizer},
    v1alpha1::{MachineClass, SecretReference},
};
use machine_driver::SecretData;

/// The Secrets to which classes refer.
const SECRETS: [&str; 2] = ["credentials", "other-credentials"];
/// User data with a placeholder for the token.
pub const USER_DATA: &str = "<<BOOTSTRAP_TOKEN>>";
/// User data that needs no token.
pub const WITHOUT_TOKEN: &str = "nothing to fill in";
/// The namespace of bootstrap tokens.
const OF_TOKENS: &str = "kube-system";

/// Whether classes may refer to this Secret.
pub fn is_of_classes(secret: &Secret) -> bool {
    secret.metadata.namespace.as_deref() != Some(OF_TOKENS)
}

/// Creates the missing classes and Secrets; returns whether any was missing.
pub fn make_missing(api: &mut Api, now: Timestamp) -> bool {
    let changes = api.changes;
    for name in SECRETS {
        if !api.secrets.contains_key(name) {
            // The name is not in use, so the creation succeeds.
            let _ = api.create(&new_secret("ns", name), now);
        }
    }
    for name in CLASSES {
        if !api.classes.contains_key(name) {
            // The name is not in use, so the creation succeeds.
            let _ = api.create(&new_class("ns", name, api.changes), now);
        }
    }
    api.changes != changes
}

/// Creates the classes to which objects refer, and their Secret.
pub fn make_named(api: &mut Api, now: Timestamp) {
    let machines = api.machines.values().map(|machine| (&machine.metadata, &machine.spec.class.name));
    let sets = api.sets.values().map(|set| (&set.metadata, &set.spec.template.spec.class.name));
    let deployments = api.deployments.values().map(|one| (&one.metadata, &one.spec.template.spec.class.name));
    let all = machines.chain(sets).chain(deployments);
    let named: BTreeSet<(String, String)> =
        all.map(|(meta, class)| (meta.namespace.clone().unwrap_or_default(), class.clone())).collect();
    for (namespace, class) in named {
        let [secret, _] = SECRETS;
        // An existing object is fine.
        let _ = api.create(&new_secret(&namespace, secret), now);
        let _ = api.create(&new_class(&namespace, &class, 0), now);
    }
}

/// Applies the edit of a user on a class or a Secret.
pub fn apply(api: &mut Api, edit: ClassEdit, now: Timestamp) {
    let secret = |number: u8| SECRETS[usize::from(number) % SECRETS.len()];
    match edit {
        ClassEdit::Spec(number) => {
            let version = api.changes;
            api.edit::<MachineClass>(&class(number), |class| class.provider_spec = spec(version));
        }
        ClassEdit::Secret(number) => {
            api.edit::<MachineClass>(&class(number), |class| move_on(&mut class.secret_ref));
        }
        ClassEdit::Credentials(number) => {
            api.edit::<MachineClass>(&class(number), |class| move_on(&mut class.credentials_secret_ref));
        }
        ClassEdit::Delete(number) => delete::<MachineClass>(api, &class(number), now),
        ClassEdit::Remove(number) => remove::<MachineClass>(api, &class(number), now),
        ClassEdit::DeleteSecret(number) => delete::<Secret>(api, secret(number), now),
        ClassEdit::RemoveSecret(number) => remove::<Secret>(api, secret(number), now),
        ClassEdit::Make => drop(make_missing(api, now)),
    }
}

fn delete<K: Kind>(api: &mut Api, name: &str, now: Timestamp) {
    // The object may not exist.
    let _ = api.delete::<K>(name, None, None, now);
}

/// Deletes an object and removes its finalizers.
fn remove<K: Kind>(api: &mut Api, name: &str, now: Timestamp) {
    delete::<K>(api, name, now);
    api.edit::<K>(name, |object| object.meta_mut().finalizers = None);
}

/// Makes the reference name the other Secret.
fn move_on(reference: &mut Option<SecretReference>) {
    let [one, other] = SECRETS;
    let next = if reference.as_ref().is_some_and(|reference| reference.name == one) { other } else { one };
    *reference = Some(SecretReference { name: next.to_owned(), namespace: String::new() });
}

/// Changes the user data of all classes: they need a token from now on, or none.
pub fn change_user_data(api: &mut Api) {
    for name in SECRETS {
        api.edit::<Secret>(name, |secret| {
            let needs = secret.data.as_ref().is_some_and(|data| *data == data_of(USER_DATA));
            secret.data = Some(data_of(if needs { WITHOUT_TOKEN } else { USER_DATA }));
        });
    }
}

/// Whether a machine uses the class.
pub fn is_class_used(api: &Api, name: &str) -> bool {
    api.machines.values().any(|one| one.spec.class.name == name && one.spec.class.kind == MACHINE_CLASS_KIND)
}

/// Whether a class refers to the Secret.
pub fn is_secret_used(api: &Api, name: &str) -> bool {
    api.classes.values().any(|class| secrets_of(class).any(|secret| secret == name))
}

/// The Secrets to which a class refers.
pub fn secrets_of(class: &MachineClass) -> impl Iterator<Item = &str> {
    [&class.secret_ref, &class.credentials_secret_ref].into_iter().flatten().map(|reference| reference.name.as_str())
}

/// Whether a class or a Secret has our finalizer.
pub fn is_kept<K: Kind>(object: &K) -> bool {
    object.finalizers().iter().any(|one| [finalizer::MACHINE, finalizer::SECRET].contains(&one.as_str()))
}

fn data_of(text: &str) -> std::collections::BTreeMap<String, ByteString> {
    [(SecretData::USER_DATA.to_owned(), ByteString(text.as_bytes().to_vec()))].into()
}

fn meta(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() }
}

fn new_secret(namespace: &str, name: &str) -> Secret {
    Secret { metadata: meta(namespace, name), data: Some(data_of(USER_DATA)), ..Secret::default() }
}

fn spec(version: u64) -> serde_json::Value {
    json!({ "version": version })
}

/// A class as admission stores it: with our finalizer.
fn new_class(namespace: &str, name: &str, version: u64) -> MachineClass {
    let [secret, _] = SECRETS;
    MachineClass {
        metadata: ObjectMeta { finalizers: Some(vec![finalizer::MACHINE.to_owned()]), ..meta(namespace, name) },
        provider: PROVIDER.to_owned(),
        provider_spec: spec(version),
        secret_ref: Some(SecretReference { name: secret.to_owned(), namespace: String::new() }),
        ..MachineClass::default()
    }
}
