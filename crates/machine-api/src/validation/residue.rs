//! Rule META-12: an object of v1beta1 has an annotation with data that only v1alpha1 can represent, and any user may write it.
//!
//! The API server stores the result of converting both, so that this result must be valid. Without this rule, a request in v1beta1 could store an
//! object that the same rules refuse in v1alpha1.

use super::{
    Object, Profile, ValidationRequest,
    node::Node,
    rule::{Rule, refuses},
    rules, static_rules,
};
use crate::{
    conversion,
    kind::ApiVersion,
    names::{self, annotation},
};
use kube_values::{
    field::{FieldPath, Findings, FirstFew},
    json::Json,
};

pub const META_12: Rule = refuses(
    "META-12",
    "What an object of v1beta1 keeps for v1alpha1 is as right as the rest of it.",
    &["meta_12_a_forged_residue_is_refused"],
);

/// Checks the data that the annotation would restore. An annotation that was stored before is not checked again.
pub fn restores_nothing_wrong(
    request: &ValidationRequest<'_>,
    new: &Json<'_>,
    old: Option<&Json<'_>>,
    found: &mut Findings,
) {
    let key = annotation::CONVERSION_V1ALPHA1;
    let place = ["metadata", "annotations"];
    let (now, before) = (Node::of(new).at(&place), Node::of_option(old).at(&place));
    for key in [annotation::CONVERSION_V1ALPHA1, annotation::CONVERSION_V1BETA1] {
        let text = now.get(key).text().filter(|text| text.len() > conversion::MAX_RESIDUE_BYTES);
        if text.is_some_and(|text| before.get(key).text() != Some(text)) {
            // Conversion ignores an annotation that is too long.
            let path = FieldPath::new("metadata.annotations").key(key);
            found.too_long(META_12.id, path, conversion::MAX_RESIDUE_BYTES);
        }
    }
    let readable = now.get(key).text().filter(|text| text.len() <= conversion::MAX_RESIDUE_BYTES);
    let Some(carried) = readable.filter(|text| before.get(key).text() != Some(text)) else { return };
    if request.version != ApiVersion::V1beta1 {
        return;
    }
    let mut plain = new.clone();
    let metadata = plain.as_object_mut().and_then(|object| object.get_mut("metadata")?.as_object_mut());
    if let Some(annotations) = metadata.and_then(|metadata| metadata.get_mut("annotations")?.as_object_mut()) {
        annotations.remove(key);
    }
    let mut before = Findings::new();
    find_in_stored_form(request, plain, &mut before);
    let mut restored = Findings::forgiving(before);
    find_in_stored_form(request, new.clone(), &mut restored);
    if restored.denies() {
        let mut errors = FirstFew::default();
        restored.errors().for_each(|error| errors.add(|| error.to_string()));
        let path = FieldPath::new("metadata.annotations").key(key);
        found.given(&carried).forbidden(META_12.id, path, format_args!("would store {}", errors.joined("; ")));
    }
}

/// Adds the findings for the object that would be stored. Adds nothing if the object can't be converted, because the API server reports that itself.
fn find_in_stored_form(request: &ValidationRequest<'_>, object: Json<'_>, found: &mut Findings) {
    if let Ok(converted) = conversion::convert_json(object, names::API_VERSION_V1ALPHA1) {
        let stored = Object { kind: request.kind, version: ApiVersion::V1alpha1, value: &converted.object };
        static_rules(&stored, request, found);
        rules::apply_profile(Profile::Compat, ApiVersion::V1alpha1, found);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        kind::Kind,
        validation::{Change, NoProviders, NoReferences, Policy, User, validate},
    };

    /// A machine in v1beta1 that is stored with these fields in addition to its class.
    fn beta(fields: &Value) -> Value {
        let mut stored = json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "m1", "namespace": "default"}, "spec": {"class": {"kind": "MachineClass", "name": "c1"}},
        });
        json_patch::merge(&mut stored["spec"], fields);
        let shown = conversion::convert(&stored, names::API_VERSION_V1BETA1).unwrap();
        assert!(shown["metadata"]["annotations"][annotation::CONVERSION_V1ALPHA1].is_string(), "{shown}");
        shown
    }

    /// Data that only v1alpha1 can represent and that it allows.
    fn backup() -> Value {
        beta(&json!({"nodeTemplate": {"spec": {"podCIDR": "10.0.0.0/24"}}}))
    }

    /// Data that only v1alpha1 can represent but refuses, and that the Go original can't decode.
    fn malformed() -> Value {
        beta(&json!({"drainTimeout": "5 minutes"}))
    }

    const TEXT: &str = "metadata.annotations[conversion.machine.sapcloud.io/v1alpha1]: Forbidden: would store spec.drainTimeout: Invalid value: \"5 minutes\": must be a duration such as \"30s\", \"10m\" or \"1h30m\"";

    fn denials(change: Change<'_>) -> Vec<String> {
        let found = validate(&ValidationRequest {
            kind: Kind::Machine,
            version: ApiVersion::V1beta1,
            change,
            namespace: "default",
            user: User { name: "alice", groups: &[] },
            policy: &Policy::default(),
            providers: &NoProviders,
            references: &NoReferences,
        });
        found.errors().map(ToString::to_string).collect()
    }

    #[test]
    fn meta_12_a_residue_of_a_backup_passes() {
        assert_eq!(denials(Change::Create { new: &Json::from(&backup()) }), Vec::<String>::new());
    }

    #[test]
    fn meta_12_a_forged_residue_is_refused() {
        assert_eq!(denials(Change::Create { new: &Json::from(&malformed()) }), [TEXT]);
        assert_eq!(denials(Change::Update { old: &Json::from(&backup()), new: &Json::from(&malformed()) }), [TEXT]);
    }

    #[test]
    fn meta_12_an_unread_residue_is_not_stored_again() {
        for key in [annotation::CONVERSION_V1ALPHA1, annotation::CONVERSION_V1BETA1] {
            let with = |length: usize| {
                let mut machine = beta(&json!({"nodeTemplate": {"spec": {"podCIDR": "10.0.0.0/24"}}}));
                machine["metadata"]["annotations"][key] = json!("x".repeat(length));
                machine
            };
            let (long, longest) = (with(conversion::MAX_RESIDUE_BYTES + 1), with(conversion::MAX_RESIDUE_BYTES));
            let text = format!("metadata.annotations[{key}]: Too long: may not be more than 32768 bytes");
            assert_eq!(denials(Change::Create { new: &Json::from(&long) }), [text.as_str()]);
            assert_eq!(
                denials(Change::Update { old: &Json::from(&longest), new: &Json::from(&long) }),
                [text.as_str()]
            );
            let mut labelled = long.clone();
            labelled["metadata"]["labels"] = json!({"x": "z"});
            let update = (Json::from(&long), Json::from(&labelled));
            assert_eq!(denials(Change::Update { old: &update.0, new: &update.1 }), Vec::<String>::new());
        }
    }

    #[test]
    fn meta_12_a_stored_annotation_is_forgiven() {
        let mut changed = malformed();
        changed["metadata"]["labels"] = json!({"x": "z"});
        assert_eq!(
            denials(Change::Update { old: &Json::from(&malformed()), new: &Json::from(&changed) }),
            Vec::<String>::new()
        );
    }
}
