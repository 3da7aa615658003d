//! Rule META-12: an object of v1beta1 carries in an annotation what only v1alpha1 can say, and anybody may write it there.
//!
//! The API server stores what conversion makes of both, so that is what must be right. Without this rule a request in
//! v1beta1 could store what the same rules refuse in v1alpha1.

use serde_json::Value;

use super::{Object, Profile, ValidationRequest, node::Node, ratchet, rules, static_rules};
use crate::api::{
    conversion,
    field::{FieldPath, Findings},
    json::Json,
    kind::ApiVersion,
    names::{self, annotation},
};

const RULE: &str = "META-12";

/// What the annotation would restore is as right as the rest. An annotation that was there before is not judged again.
pub fn restores_nothing_wrong(
    request: &ValidationRequest<'_>,
    new: &Json<'_>,
    old: Option<&Json<'_>>,
    found: &mut Findings,
) {
    let key = annotation::CONVERSION_V1ALPHA1;
    let residue = |object: Node<'_>| object.at(&["metadata", "annotations"]).get(key).text().map(str::to_owned);
    let carried = residue(Node::of(new));
    if request.version != ApiVersion::V1beta1 || carried.is_none() || carried == residue(Node::of_option(old)) {
        return;
    }
    let new = new.to_value();
    let mut plain = new.clone();
    if let Some(annotations) = plain.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(key);
    }
    let mut restored = stored_form_findings(request, &new);
    ratchet::forgive_what_was_there(&mut restored, &stored_form_findings(request, &plain));
    for error in restored.errors() {
        let path = FieldPath::new("metadata.annotations").key(key);
        found.forbidden(RULE, path, format!("would store {error}"));
        found.depends_on(Value::from(carried.clone()));
    }
}

/// What the rules say of the object that would be stored; nothing if it cannot be converted at all, which the API server
/// then says itself.
fn stored_form_findings(request: &ValidationRequest<'_>, object: &Value) -> Findings {
    let mut found = Findings::new();
    if let Ok(converted) = conversion::convert(object, names::API_VERSION_V1ALPHA1) {
        let stored = Object { kind: request.kind, version: ApiVersion::V1alpha1, value: &Json::from(&converted) };
        static_rules(&stored, request, &mut found);
        rules::apply_profile(Profile::Compat, &mut found);
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::{
        kind::Kind,
        validation::{Change, NoProviders, NoReferences, Policy, User, validate},
    };

    /// A machine as v1beta1 shows one that is stored with these fields beside its class.
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

    /// What only v1alpha1 can say and it allows.
    fn backup() -> Value {
        beta(&json!({"nodeTemplate": {"spec": {"podCIDR": "10.0.0.0/24"}}}))
    }

    /// What v1alpha1 could say but refuses, and what no reader of the original can decode.
    fn poison() -> Value {
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
        assert_eq!(denials(Change::Create { new: &Json::from(&poison()) }), [TEXT]);
        assert_eq!(denials(Change::Update { old: &Json::from(&backup()), new: &Json::from(&poison()) }), [TEXT]);
    }

    #[test]
    fn meta_12_what_is_stored_already_is_forgiven() {
        let mut changed = poison();
        changed["metadata"]["labels"] = json!({"x": "z"});
        assert_eq!(
            denials(Change::Update { old: &Json::from(&poison()), new: &Json::from(&changed) }),
            Vec::<String>::new()
        );
    }
}
