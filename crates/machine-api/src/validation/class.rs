//! Rules for classes (spec/api-and-admission §5.4), and the interface to the rules of drivers.

use std::{collections::BTreeSet, sync::Arc};

use kube_values::syntax;

use super::{
    Object,
    node::Node,
    provider_schema::ProviderSchema,
    rule::{CrdCel, Part, Rule, check, original, refuses, refuses_or_warns, required, warns},
};
use crate::kind::ApiVersion;
use kube_values::{
    field::{FieldPath, Findings, Located, PathRef},
    json::{Json, Members},
    quantity::{InvalidQuantity, Quantity},
};

const CAPACITY_TEXT: &str = "MachineClass NodeTemplate Capacity should mandatorily have CPU, GPU and Memory configured";
const PLACE_TEXT: &str = "MachineClass NodeTemplate Instance Type, region and zone cannot be empty";
const QUANTITY_TEXT: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// Whether this process has all drivers (`--drivers-exclusive`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coverage {
    /// A provider without a driver in this process is a mistake.
    All,
    /// Another process may have the driver.
    #[default]
    Some,
}

/// The rules of drivers for classes. Implemented by users of the driver registry.
pub trait Providers: Send + Sync {
    /// The sorted names of the providers whose classes can be checked.
    fn names(&self) -> Vec<&str>;

    /// Whether these are all providers.
    fn coverage(&self) -> Coverage;

    /// Whether a driver of this process makes machines for the provider. If not, this process has only the rules.
    fn serves(&self, _provider: &str) -> bool {
        true
    }

    /// The schema of `providerSpec` that the driver publishes (CLS-4, CLS-5, CLS-18).
    fn schema(&self, _provider: &str) -> Option<Arc<ProviderSchema>> {
        None
    }

    /// The keys that the driver requires and that are missing in Secrets with these keys (CLS-9).
    fn missing_in_secret(&self, _provider: &str, _keys: &BTreeSet<String>) -> Vec<&'static str> {
        Vec::new()
    }

    /// Runs the rules of the driver for this provider (CLS-6). `class` has the shape of v1alpha1. Paths start at `providerSpec`. Pure, without I/O.
    fn check(&self, provider: &str, class: &Json<'_>, found: &mut Findings);
}

/// Providers without any driver. Providers are not checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProviders;

impl Providers for NoProviders {
    fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    fn coverage(&self) -> Coverage {
        Coverage::Some
    }

    fn check(&self, _provider: &str, _class: &Json<'_>, _found: &mut Findings) {}
}

pub const CLS_3: Rule = refuses("CLS-3", "There is a provider specification.", &["V117"]);

/// Runs all static rules for a class.
pub fn rules(object: &Object<'_>, namespace: &str, providers: &dyn Providers, found: &mut Findings) {
    let (class, path, user_data_ref) = match object.version {
        ApiVersion::V1alpha1 => (object.root(), FieldPath::default(), "secretRef"),
        ApiVersion::V1beta1 => (object.root().get("spec"), FieldPath::new("spec"), "userDataSecretRef"),
    };
    let provider = provider_is_served(class, &path, providers, found);
    if class.get("providerSpec").is_absent() {
        found.required(CLS_3.id, path.child("providerSpec"), "");
    }
    if let Some(provider) = provider {
        provider_spec_has_its_shape(class, providers.schema(provider).as_deref(), &path, found);
        driver_agrees(object, provider, &path, providers, found);
    }
    for field in [user_data_ref, "credentialsSecretRef"] {
        secret_reference_is_complete(class.get(field), &path.child(field), namespace, found);
    }
    node_template(class.get("nodeTemplate"), &path.child("nodeTemplate"), found);
}

/// Runs the rules for a class that can stop a controller, and a few others. The rules of the driver are not among them.
pub fn rules_that_stop_controllers(object: &Object<'_>, found: &mut Findings) {
    node_template(object.root().get("nodeTemplate"), &FieldPath::new("nodeTemplate"), found);
}

/// CLS-4, CLS-5 and CLS-18. A value that is no object is reported by the check of types.
fn provider_spec_has_its_shape(
    class: Node<'_>,
    schema: Option<&ProviderSchema>,
    path: &FieldPath,
    found: &mut Findings,
) {
    let spec = class.get("providerSpec");
    let (Some(schema), Some(value)) = (schema, spec.value().filter(|value| value.is_object())) else { return };
    let (spec_path, template_path) = (path.child("providerSpec"), path.child("nodeTemplate"));
    schema.check(&value.to_value(), &spec_path, found);
    schema.compare_with_node_template(spec, class.get("nodeTemplate"), (&spec_path, &template_path), found);
}

/// The rule id of all findings of drivers.
pub const CLS_6: Rule = refuses_or_warns(
    "CLS-6",
    "The driver has no objection to the class.",
    &["V118", "V118l", "V118m", "V118n", "V133b"],
);

/// CLS-6. Drivers know only the shape of v1alpha1. For a v1beta1 class, the paths of findings are changed to the paths of the user's fields.
fn driver_agrees(
    object: &Object<'_>,
    provider: &str,
    path: &FieldPath,
    providers: &dyn Providers,
    found: &mut Findings,
) {
    if object.version == ApiVersion::V1alpha1 {
        return providers.check(provider, object.value, found);
    }
    let Some(mut class) = object.root().get("spec").members().cloned() else { return };
    if let Some(reference) = class.remove("userDataSecretRef") {
        class.insert("secretRef", reference);
    }
    class.insert("metadata", object.value.get("metadata").cloned().unwrap_or(Json::Null));
    let mut own = Findings::new();
    providers.check(provider, &Json::Object(class), &mut own);
    for finding in own.iter_mut() {
        let place = finding.error.path.as_str().replacen("secretRef", "userDataSecretRef", 1);
        finding.error.path = path.child(&place);
    }
    found.append(own);
}

pub const CLS_1: Rule = Rule {
    policy_cel: &[check("provider", "!variables.is_class || variables.provider != ''", "provider: name of the driver")],
    ..refuses("CLS-1", "The provider is set.", &["V115", "V135"])
};

pub const CLS_2: Rule = refuses_or_warns("CLS-2", "A driver serves the provider.", &["V116", "V116b", "V116c"]);

/// CLS-1 and CLS-2. Returns the provider if its classes can be checked. Names are case-sensitive, as in the registry. Another process may have the
/// driver for an unknown provider, so that it is refused only if it is certainly a mistake.
fn provider_is_served<'a>(
    class: Node<'a>,
    path: &FieldPath,
    providers: &dyn Providers,
    found: &mut Findings,
) -> Option<&'a str> {
    let path = path.child("provider");
    let provider = class.get("provider").text_or_empty()?;
    if provider.is_empty() {
        found.required(CLS_1.id, path, "name of the driver");
        return None;
    }
    let names = providers.names();
    if names.is_empty() || names.contains(&provider) {
        if !providers.serves(provider) {
            found.warn(CLS_2.id, path, provider, not_registered(provider));
        }
        return Some(provider);
    }
    match Unknown::of(provider, &names) {
        Unknown::Misspelt(meant) => {
            found.invalid(
                CLS_2.id,
                path,
                provider,
                format!("did you mean {meant:?}? Names of drivers are case-sensitive"),
            );
        }
        Unknown::Gone => found.invalid(CLS_2.id, path, provider, "this cloud exists no more"),
        Unknown::Elsewhere => match providers.coverage() {
            Coverage::All => found.not_supported(CLS_2.id, path, provider, &names),
            Coverage::Some => found.warn(CLS_2.id, path, provider, not_registered(provider)),
        },
    }
    None
}

/// Providers of clouds that have ended their service.
const GONE: [&str; 2] = ["Packet", "EquinixMetal"];

/// The kinds of providers without rules here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unknown<'a> {
    /// A misspelt name of this provider: it differs in case or in one letter.
    Misspelt(&'a str),
    /// A provider whose cloud has ended its service.
    Gone,
    /// A provider that another process may serve.
    Elsewhere,
}

impl<'a> Unknown<'a> {
    fn of(provider: &str, judged: &[&'a str]) -> Self {
        let alike =
            |name: &&&str| differ_by_a_letter_at_most(&name.to_ascii_lowercase(), &provider.to_ascii_lowercase());
        match judged.iter().find(alike) {
            Some(meant) => Self::Misspelt(meant),
            None if GONE.iter().any(|gone| gone.eq_ignore_ascii_case(provider)) => Self::Gone,
            None => Self::Elsewhere,
        }
    }
}

/// Whether a text becomes the other text by the change, insertion or removal of at most one letter.
fn differ_by_a_letter_at_most(one: &str, other: &str) -> bool {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let (short, long) = if one.len() <= other.len() { (&one, &other) } else { (&other, &one) };
    let same = short.iter().zip(long.iter()).take_while(|(a, b)| a == b).count();
    match long.len() - short.len() {
        0 => short.iter().skip(same + 1).eq(long.iter().skip(same + 1)),
        1 => short.iter().skip(same).eq(long.iter().skip(same + 1)),
        _ => false,
    }
}

fn not_registered(provider: &str) -> String {
    format!("no driver for provider {provider:?} is registered here")
}

pub const CLS_7: Rule = Rule {
    policy_cel: &[check(
        "secrets",
        "!variables.is_class || variables.secrets.all(r, r.?name.orValue('') != '')",
        "secretRef, credentialsSecretRef: name is required",
    )],
    ..refuses("CLS-7", "A reference to a Secret has a name.", &["V129"])
};

pub const CLS_8: Rule = Rule {
    policy_cel: &[check(
        "secrets",
        "!variables.is_class || variables.secrets.all(r, r.?namespace.orValue('') != '')",
        "secretRef, credentialsSecretRef: namespace is required",
    )],
    ..refuses_or_warns("CLS-8", "A reference to a Secret has the namespace that is watched.", &["CLS-8"])
};

/// CLS-7 and CLS-8.
fn secret_reference_is_complete(reference: Node<'_>, path: &FieldPath, watched: &str, found: &mut Findings) {
    if reference.members().is_none() {
        return;
    }
    if reference.get("name").text_or_empty() == Some("") {
        found.required(CLS_7.id, path.child("name"), "");
    }
    match reference.get("namespace").text_or_empty() {
        Some("") => found.required(CLS_8.id, path.child("namespace"), ""),
        Some(namespace) if !watched.is_empty() && namespace != watched => {
            let detail = format!("secrets outside the watched namespace {watched:?} are not seen");
            found.warn(CLS_8.id, path.child("namespace"), namespace, detail);
        }
        Some(_) | None => {}
    }
}

pub const CLS_11: Rule = Rule {
    policy_cel: &[check(
        "node_template",
        "!variables.is_class || size(variables.node_template) == 0 || ['instanceType', 'region', 'zone'].all(f, variables.node_template[?f].orValue('') != '')",
        "nodeTemplate: MachineClass NodeTemplate Instance Type, region and zone cannot be empty",
    )],
    ..original("CLS-11", "The node template has an instance type, a region and a zone.", &["V122"])
};

pub const CLS_14: Rule = Rule {
    policy_cel: &[check(
        "node_template",
        "['capacity', 'virtualCapacity'].all(f, variables.node_template[?f].orValue({}).all(k, k.matches(<name>)))",
        "nodeTemplate: names of resources must be qualified names",
    )],
    ..refuses_or_warns(
        "CLS-14",
        "The name of a resource is a qualified name, in `virtualCapacity` the name of an extended resource.",
        &["V127"],
    )
};

fn node_template(template: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if template.members().is_none() {
        return;
    }
    capacity_is_complete(template.get("capacity"), &path.child("capacity"), found);
    for field in ["instanceType", "region", "zone"] {
        if template.get(field).text_or_empty() == Some("") {
            found.required(CLS_11.id, path.child(field), PLACE_TEXT);
        }
    }
    for field in ["capacity", "virtualCapacity"] {
        let (path, field_is_virtual) = (path.place(), field == "virtualCapacity");
        let path = path.child(field);
        for (resource, value) in template.get(field).members().into_iter().flat_map(Members::iter) {
            let path = path.key(resource);
            amount_is_a_quantity(value, path, found);
            for objection in syntax::qualified_name(resource) {
                found.invalid(CLS_14.id, path, resource, objection);
            }
            if field_is_virtual && !resource.contains('/') {
                found.warn(CLS_14.id, path, resource, "is not an extended resource");
            }
        }
    }
    architecture_is_known(template, path, found);
}

const fn capacity_has(field_path: &'static str, expression: &'static str) -> CrdCel {
    required(Part::ClassNodeTemplate, field_path, expression, CAPACITY_TEXT)
}

pub const CLS_10: Rule = Rule {
    crd_cel: &[
        capacity_has(
            ".capacity['cpu']",
            "'cpu' in self.capacity || (oldSelf.hasValue() && !('cpu' in oldSelf.value().capacity))",
        ),
        capacity_has(
            ".capacity['gpu']",
            "'gpu' in self.capacity || (oldSelf.hasValue() && !('gpu' in oldSelf.value().capacity))",
        ),
        capacity_has(
            ".capacity['memory']",
            "'memory' in self.capacity || (oldSelf.hasValue() && !('memory' in oldSelf.value().capacity))",
        ),
    ],
    ..original("CLS-10", "The node template says how much CPU, GPU and memory a machine has.", &["V120", "V121"])
};

/// CLS-10: cluster-autoscaler needs all three to scale from zero.
fn capacity_is_complete(capacity: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if matches!(capacity, Node::Mistyped) || capacity.value().is_some_and(|value| !value.is_object()) {
        return;
    }
    for resource in ["cpu", "gpu", "memory"] {
        if capacity.get(resource).is_absent() {
            found.required(CLS_10.id, path.key(resource), CAPACITY_TEXT);
        }
    }
}

pub const CLS_12: Rule = original("CLS-12", "The amount of a resource is a quantity.", &["V123", "V124", "V126"]);

pub const CLS_13: Rule = refuses("CLS-13", "The amount of a resource is not negative.", &["V125", "CLS-13"]);

/// CLS-12 and CLS-13.
fn amount_is_a_quantity(value: &Json<'_>, path: PathRef<'_>, found: &mut Findings) {
    let amount = match value {
        Json::Null => return,
        Json::Text(text) => text.trim().parse(),
        Json::Number(number) => number.to_string().parse(),
        Json::Bool(_) | Json::List(_) | Json::Object(_) => Err(InvalidQuantity::Format),
    };
    match amount {
        Err(_) => found.invalid(CLS_12.id, path, value, QUANTITY_TEXT),
        Ok(amount) if Quantity::is_negative(&amount) => {
            found.invalid(CLS_13.id, path, value, "must be greater than or equal to 0");
        }
        Ok(_) => {}
    }
}

pub const CLS_15: Rule = warns("CLS-15", "The architecture is known.", &["CLS-15"]);

/// CLS-15.
fn architecture_is_known(template: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let architecture = template.get("architecture").text().filter(|name| !matches!(*name, "amd64" | "arm64"));
    if let Some(name) = architecture {
        found.warn(CLS_15.id, path.child("architecture"), name, format!("unknown architecture {name:?}"));
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::another_case("aws", Unknown::Misspelt("AWS"))]
    #[case::a_letter_too_few("virtua", Unknown::Misspelt("virtual"))]
    #[case::a_letter_too_many("virrtual", Unknown::Misspelt("virtual"))]
    #[case::another_letter("Virtuel", Unknown::Misspelt("virtual"))]
    #[case::two_letters("vertuel", Unknown::Elsewhere)]
    #[case::two_letters_changed_places("vritual", Unknown::Elsewhere)]
    #[case::another_cloud("Azure", Unknown::Elsewhere)]
    #[case::a_letter_beside_the_name("ÄWS", Unknown::Misspelt("AWS"))]
    #[case::one_that_exists_no_more("Packet", Unknown::Gone)]
    #[case::its_later_name("equinixmetal", Unknown::Gone)]
    fn a_provider_that_no_driver_checks(#[case] provider: &str, #[case] expected: Unknown<'_>) {
        assert_eq!(Unknown::of(provider, &["AWS", "virtual"]), expected);
    }
}
