//! The classes of a simulation: one of each name, usable, the same for ever.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{api::Api, edits::CLASSES, played::cloud::PROVIDER};
use machine_api::{names::finalizer, v1alpha1::MachineClass};

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
        ..MachineClass::default()
    }
}
