//! Rule META-12: an object of v1beta1 carries in an annotation what only v1alpha1 can say, and anybody may write it there.
//!
//! The API server stores what conversion makes of both, so that is what must be right. Without this rule a request in
//! v1beta1 could store what the same rules refuse in v1alpha1.

use serde_json::Value;

use super::{Object, Profile, ValidationRequest, node::Node, ratchet, rules, static_rules};
use crate::api::{
    conversion,
    field::{FieldPath, Findings},
    kind::ApiVersion,
    names::{self, annotation},
};

const RULE: &str = "META-12";

/// What the annotation would restore is as right as the rest. An annotation that was there before is not judged again.
pub fn restores_nothing_wrong(request: &ValidationRequest<'_>, new: &Value, old: Option<&Value>, found: &mut Findings) {
    let key = annotation::CONVERSION_V1ALPHA1;
    let residue = |object: Node<'_>| object.at(&["metadata", "annotations"]).get(key).text().map(str::to_owned);
    let carried = residue(Node::of(new));
    if request.version != ApiVersion::V1beta1 || carried.is_none() || carried == residue(Node::of_option(old)) {
        return;
    }
    let mut plain = new.clone();
    if let Some(annotations) = plain.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(key);
    }
    let mut restored = stored_form_findings(request, new);
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
        let stored = Object { kind: request.kind, version: ApiVersion::V1alpha1, value: &converted };
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

    /// A deployment as v1beta1 shows one that is stored with these fields.
    fn beta(strategy: &Value) -> Value {
        let stored = json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment",
            "metadata": {"name": "d1", "namespace": "default"},
            "spec": {
                "replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "strategy": strategy, "rollbackTo": {"revision": 2},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"class": {"kind": "MachineClass", "name": "c1"}}},
            },
        });
        conversion::convert(&stored, names::API_VERSION_V1BETA1).unwrap()
    }

    fn rolling() -> Value {
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
    }

    /// The same with a revision that v1alpha1 refuses in its residue.
    fn forged(object: &Value) -> Value {
        let mut forged = object.clone();
        let residue = &mut forged["metadata"]["annotations"][annotation::CONVERSION_V1ALPHA1];
        *residue = json!(residue.as_str().unwrap().replace("\"revision\":2", "\"revision\":-2"));
        assert_ne!(forged, *object, "the residue holds the revision");
        forged
    }

    fn denials(change: Change<'_>) -> Vec<String> {
        let found = validate(&ValidationRequest {
            kind: Kind::MachineDeployment,
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
        assert_eq!(denials(Change::Create { new: &beta(&rolling()) }), Vec::<String>::new());
    }

    #[test]
    fn meta_12_a_forged_residue_is_refused() {
        let good = beta(&rolling());
        let forged = forged(&good);
        let text = "metadata.annotations[conversion.machine.sapcloud.io/v1alpha1]: Forbidden: would store spec.rollbackTo.revision: Invalid value: -2: must be greater than or equal to 0";
        assert_eq!(denials(Change::Create { new: &forged }), [text]);
        assert_eq!(denials(Change::Update { old: &good, new: &forged }), [text]);
    }

    #[test]
    fn meta_12_what_is_stored_already_is_forgiven() {
        let mut changed = forged(&beta(&rolling()));
        let stored = changed.clone();
        changed["spec"]["replicas"] = json!(5);
        assert_eq!(denials(Change::Update { old: &stored, new: &changed }), Vec::<String>::new());
    }
}
