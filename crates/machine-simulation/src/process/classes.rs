//! The classes of a simulation: one of each name, usable, the same for ever, and the Secret that they name, whose user data users
//! change.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use crate::{
    api::{Api, UserData},
    edits::CLASSES,
    played::cloud::PROVIDER,
};
use machine_api::{
    names::finalizer,
    v1alpha1::{MachineClass, SecretReference},
};
use machine_driver::SecretData;

const SECRET: &str = "credentials";
/// What stands in user data for the token.
pub const USER_DATA: &str = "<<BOOTSTRAP_TOKEN>>";
/// User data that needs no token.
pub const WITHOUT_TOKEN: &str = "nothing to fill in";

/// The classes that objects name, and those that users may still want.
pub(super) fn all_named(api: &Api) -> Vec<Arc<MachineClass>> {
    let machines = api.machines.values().map(|machine| (&machine.metadata, &machine.spec.class.name));
    let sets = api.sets.values().map(|set| (&set.metadata, &set.spec.template.spec.class.name));
    let deployments = api.deployments.values().map(|one| (&one.metadata, &one.spec.template.spec.class.name));
    let mut named: BTreeSet<(String, String)> = machines
        .chain(sets)
        .chain(deployments)
        .map(|(meta, class)| (meta.namespace.clone().unwrap_or_default(), class.clone()))
        .collect();
    named.extend(CLASSES.map(|class| ("ns".to_owned(), class.to_owned())));
    named.into_iter().map(|(namespace, name)| Arc::new(class(namespace, name))).collect()
}

/// The Secret of a class: its user data is the machine's token, and nothing else, or needs none.
pub(super) fn secret(class: &MachineClass, says: UserData) -> Secret {
    let text = if says.needs_token() { USER_DATA } else { WITHOUT_TOKEN };
    let user_data = (SecretData::USER_DATA.to_owned(), ByteString(text.as_bytes().to_vec()));
    Secret {
        metadata: ObjectMeta {
            name: Some(SECRET.to_owned()),
            namespace: class.metadata.namespace.clone(),
            uid: Some(SECRET.to_owned()),
            resource_version: Some((says.changes + 1).to_string()),
            ..ObjectMeta::default()
        },
        data: Some([user_data].into()),
        ..Secret::default()
    }
}

fn class(namespace: String, name: String) -> MachineClass {
    MachineClass {
        metadata: ObjectMeta {
            uid: Some(name.clone()),
            generation: Some(1),
            finalizers: Some(vec![finalizer::MACHINE.to_owned()]),
            name: Some(name),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        provider: PROVIDER.to_owned(),
        secret_ref: Some(SecretReference { name: SECRET.to_owned(), namespace: String::new() }),
        ..MachineClass::default()
    }
}
