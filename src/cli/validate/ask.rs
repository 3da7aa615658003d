//! `mcm validate --ask-provider`: checks the classes of an input with their providers. This creates nothing at the providers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use serde_json::Value;

use super::{Report, question};
use crate::cli::documents::{Document, ObjectRef};
use kube_values::field::{FieldPath, Findings};
use machine_api::{
    conversion::convert,
    kind::{ApiVersion, Kind},
    names,
    v1alpha1::{MachineClass, SecretReference},
};
use machine_driver::{Code, ListRequest, OpContext, Registry, SecretData, Status, answered};

/// Deadline of the check of one class.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Checks every class that passes the rules, and adds the findings to the report. The Secrets come from the input. A class without
/// Secret is checked with the credentials of the process.
pub async fn ask(documents: &[Document], namespace: &str, registry: &Registry, report: &mut Report) {
    let secrets = Secrets::of(documents, namespace);
    for document in documents {
        for object in document.objects() {
            let label = document.describe(object);
            let Some((class, version)) = class(object) else { continue };
            let Some(about) = report.objects.iter_mut().find(|about| about.label == label) else { continue };
            if about.findings.denies() {
                continue;
            }
            let secret = secrets.of_class(&class, namespace);
            match findings_of(registry, class, &secret).await {
                Ok(found) => about.findings.append(adapted(found, version, &secret)),
                Err(status) if status.code == Code::Unimplemented => {
                    report.passed_over.push(format!("{label}: {}", status.message));
                }
                Err(status) => {
                    let message = secret.redacted(&status.message);
                    report.unreadable.push(format!("{label}: the provider could not be asked: {message}"));
                }
            }
        }
    }
}

async fn findings_of(registry: &Registry, class: MachineClass, secret: &SecretData) -> Result<Findings, Status> {
    let driver =
        registry.driver_for(&class.provider).map_err(|status| Status::new(Code::Unimplemented, status.message))?;
    let request = ListRequest { class: Arc::new(class), secret: secret.clone() };
    answered(TIMEOUT, driver.ask_about_class(&OpContext::within(TIMEOUT), request)).await
}

/// The findings with the paths of the version in the input, and without values of the Secrets.
fn adapted(mut found: Findings, version: ApiVersion, secret: &SecretData) -> Findings {
    for finding in found.iter_mut() {
        finding.error.detail = secret.redacted(&finding.error.detail).into();
        if version == ApiVersion::V1beta1 {
            let place = finding.error.path.as_str().replacen("secretRef", "userDataSecretRef", 1);
            finding.error.path = FieldPath::new("spec").child(&place);
        }
    }
    found
}

/// An object as a class in the version of drivers, and the version in which it is written. `None` for other kinds.
fn class(object: ObjectRef<'_>) -> Option<(MachineClass, ApiVersion)> {
    let (kind, version) = question(object.value)?.ok()?;
    if kind != Kind::MachineClass {
        return None;
    }
    let stored = convert(object.value, names::API_VERSION_V1ALPHA1).ok()?;
    Some((serde_json::from_value(stored).ok()?, version))
}

/// The data of the Secrets of an input, by namespace and name.
struct Secrets(BTreeMap<(String, String), BTreeMap<String, ByteString>>);

impl Secrets {
    fn of(documents: &[Document], namespace: &str) -> Self {
        let objects = documents.iter().flat_map(Document::objects);
        let read = |object: ObjectRef<'_>| {
            let is_secret = object.value.get("kind").and_then(Value::as_str) == Some("Secret");
            let secret: Secret = is_secret.then(|| serde_json::from_value(object.value.clone()).ok())??;
            let mut data = secret.data.unwrap_or_default();
            let plain = secret.string_data.unwrap_or_default().into_iter();
            data.extend(plain.map(|(key, text)| (key, ByteString(text.into_bytes()))));
            let namespace = secret.metadata.namespace.unwrap_or_else(|| namespace.to_owned());
            Some(((namespace, secret.metadata.name?), data))
        };
        Self(objects.filter_map(read).collect())
    }

    fn of_class(&self, class: &MachineClass, namespace: &str) -> SecretData {
        let own = class.metadata.namespace.as_deref().unwrap_or(namespace);
        let data = |reference: Option<&SecretReference>| {
            let reference = reference?;
            let namespace = if reference.namespace.is_empty() { own } else { &reference.namespace };
            self.0.get(&(namespace.to_owned(), reference.name.clone())).cloned()
        };
        SecretData::merged(
            data(class.secret_ref.as_ref()).unwrap_or_default(),
            data(class.credentials_secret_ref.as_ref()).unwrap_or_default(),
        )
    }
}
