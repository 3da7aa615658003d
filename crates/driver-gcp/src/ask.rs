//! Asks GCE whether the resources that a class names exist. Nothing is created: GCE has no request that only checks an instance.

use cloud_client::Failure;
use kube_values::field::{FieldPath, Findings, RuleId};
use machine_api::validation::CLS_6;
use machine_driver::{Code, Status};

use crate::{
    compute::Session,
    names::{is_name, is_project},
    rules::SCRATCH,
    spec::Spec,
};

/// The rule id of all findings: the provider refuses the class.
const RULE: RuleId = CLS_6.id;

/// A resource that a class names.
struct Named<'a> {
    path: FieldPath,
    value: &'a str,
    /// The project of the resource. `None` for the project of the credentials.
    project: Option<&'a str>,
    /// The path below the project.
    resource: String,
}

/// The problems that GCE has with a class.
///
/// # Errors
/// When GCE can't be asked.
pub async fn about(gce: &Session<'_>, spec: &Spec) -> Result<Findings, Status> {
    let mut found = Findings::new();
    for named in named(spec) {
        let Named { path, value, project, resource } = named;
        let project = project.unwrap_or(&gce.login.project);
        match gce.resource(project, &resource).await {
            Ok(Some(_)) => {}
            Ok(None) => found.invalid(RULE, path, value, format!("project {project} has no {resource}")),
            Err(failure) => record(failure, path, value, &mut found)?,
        }
    }
    Ok(found)
}

/// A refusal of one resource says nothing about the others. The credentials may lack the right to read it, although they may use it.
fn record(failure: Failure, path: FieldPath, value: &str, found: &mut Findings) -> Result<(), Status> {
    match failure.status.code {
        Code::PermissionDenied | Code::FailedPrecondition => {
            found.warn(RULE, path, value, format!("could not be looked up: {}", failure.status.message));
            Ok(())
        }
        Code::InvalidArgument => {
            found.invalid(RULE, path, value, failure.status.message);
            Ok(())
        }
        _ => Err(failure.status),
    }
}

/// A resource of the credentials' project.
const fn own(path: FieldPath, value: &str, resource: String) -> Named<'_> {
    Named { path, value, project: None, resource }
}

/// All resources that a class names by names that can be parts of a URL.
fn named(spec: &Spec) -> Vec<Named<'_>> {
    let root = FieldPath::new("providerSpec");
    let Spec { zone, region, machine_type, .. } = spec;
    let mut all = vec![
        own(root.child("zone"), zone, format!("zones/{zone}")),
        own(root.child("machineType"), machine_type, format!("zones/{zone}/machineTypes/{machine_type}")),
    ];
    if let Some(gpu) = &spec.gpu {
        let resource = format!("zones/{zone}/acceleratorTypes/{}", gpu.accelerator_type);
        all.push(own(root.child("gpu").child("acceleratorType"), &gpu.accelerator_type, resource));
    }
    for (index, disk) in spec.disks.iter().enumerate() {
        let path = root.child("disks").index(index);
        if !disk.kind.is_empty() && disk.kind != SCRATCH {
            let resource = format!("zones/{zone}/diskTypes/{}", disk.kind);
            all.push(own(path.child("type"), &disk.kind, resource));
        }
        if let Some((project, resource)) = image(&disk.image) {
            all.push(Named { path: path.child("image"), value: &disk.image, project: Some(project), resource });
        }
    }
    for (index, interface) in spec.network_interfaces.iter().enumerate() {
        let path = root.child("networkInterfaces").index(index);
        if !interface.network.is_empty() {
            let resource = format!("global/networks/{}", interface.network);
            all.push(own(path.child("network"), &interface.network, resource));
        }
        if !interface.subnetwork.is_empty() {
            let resource = format!("regions/{region}/subnetworks/{}", interface.subnetwork);
            all.push(own(path.child("subnetwork"), &interface.subnetwork, resource));
        }
    }
    all.retain(|named| named.resource.split('/').all(is_part));
    all
}

/// Whether a text can be a part of a resource's path.
fn is_part(part: &str) -> bool {
    let is_path_word = matches!(part, "machineTypes" | "diskTypes" | "acceleratorTypes");
    is_path_word || is_name(part)
}

/// The project and the path of an image, such as `projects/p/global/images/family/f`, also with a host before it. `None` for another form.
fn image(image: &str) -> Option<(&str, String)> {
    let (_, path) = image.split_once("projects/")?;
    let (project, resource) = path.split_once('/')?;
    let is_image = resource.starts_with("global/images/") && is_project(project);
    is_image.then(|| (project, resource.to_owned()))
}

#[cfg(test)]
#[path = "ask_tests.rs"]
mod tests;
