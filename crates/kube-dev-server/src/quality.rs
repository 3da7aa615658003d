//! The quality-of-service class of a pod, by the requests and limits of its containers.
//!
//! Source: spec/extension-apiserver §6.2; the rule of kube-apiserver (`ComputePodQOS`).

use std::collections::BTreeMap;

use kube_values::quantity::Quantity;
use serde_json::{Value, json};

/// The resources that count.
const COUNTED: [&str; 2] = ["cpu", "memory"];

/// Amounts above zero by resource.
type Amounts = BTreeMap<&'static str, Quantity>;

/// The amounts of the resources that count.
fn amounts(list: &Value) -> Amounts {
    let amount = |name: &&'static str| {
        let amount = Quantity::from_json(&list[*name]).ok()?;
        (amount > Quantity::zero()).then_some((*name, amount))
    };
    COUNTED.iter().filter_map(amount).collect()
}

fn add(sum: &mut Amounts, more: Amounts) {
    for (name, amount) in more {
        let together = sum.get(name).map_or_else(|| amount.clone(), |known| known.plus(&amount));
        sum.insert(name, together);
    }
}

/// The containers of a pod that can have requests. Ephemeral containers have none.
fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["containers", "initContainers"].into_iter().flat_map(|list| spec[list].as_array().into_iter().flatten())
}

/// `Guaranteed`, `Burstable` or `BestEffort`. The resources of the pod override the resources of its containers.
pub(super) fn class(spec: &Value) -> &'static str {
    let parts: Vec<&Value> = match &spec["resources"] {
        Value::Null => containers(spec).map(|container| &container["resources"]).collect(),
        whole => vec![whole],
    };
    let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
    let mut all_are_limited = true;
    for part in parts {
        let own = amounts(&part["limits"]);
        all_are_limited &= own.len() == COUNTED.len();
        add(&mut limits, own);
        add(&mut requests, amounts(&part["requests"]));
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if all_are_limited && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Sets missing requests of a container to its limits.
pub(super) fn default_requests(container: &mut Value) {
    let Some(limits) = container["resources"]["limits"].as_object().cloned() else { return };
    for (name, limit) in limits {
        let requests = &mut container["resources"]["requests"];
        if !requests.is_object() {
            *requests = json!({});
        }
        if requests[&name].is_null() {
            requests[&name] = limit;
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    // Values instead of references make the table of cases easier to read.
    #[allow(clippy::needless_pass_by_value)]
    fn asks(requests: Value, limits: Value) -> Value {
        json!({"resources": {"requests": requests, "limits": limits}})
    }

    fn both() -> Value {
        json!({"cpu": "500m", "memory": "1Gi"})
    }

    #[rstest]
    #[case::nothing(json!([{}]), json!([]), "BestEffort")]
    #[case::only_zeros(json!([asks(json!({"cpu": "0"}), json!({"memory": 0}))]), json!([]), "BestEffort")]
    #[case::only_resources_that_do_not_count(
        json!([asks(json!({"ephemeral-storage": "1Gi"}), json!({"example.com/gpu": "1"}))]), json!([]), "BestEffort"
    )]
    #[case::all_of_both(json!([asks(both(), both())]), json!([]), "Guaranteed")]
    #[case::equal_amounts_in_different_units(
        json!([asks(json!({"cpu": "0.5", "memory": "1024Mi"}), both())]), json!([]), "Guaranteed"
    )]
    #[case::two_containers(json!([asks(both(), both()), asks(both(), both())]), json!([]), "Guaranteed")]
    #[case::no_requests(json!([asks(Value::Null, both())]), json!([]), "Burstable")]
    #[case::less_than_the_limit(
        json!([asks(json!({"cpu": "100m", "memory": "1Gi"}), both())]), json!([]), "Burstable"
    )]
    #[case::one_limit_missing(json!([asks(both(), json!({"cpu": "500m"}))]), json!([]), "Burstable")]
    #[case::requests_alone(json!([asks(both(), Value::Null)]), json!([]), "Burstable")]
    #[case::one_container_of_two(json!([asks(both(), both()), {}]), json!([]), "Burstable")]
    #[case::an_init_container_counts(json!([asks(both(), both())]), json!([{}]), "Burstable")]
    #[case::an_init_container_has_requests(json!([{}]), json!([asks(json!({"cpu": "1"}), Value::Null)]), "Burstable")]
    #[case::sums_that_happen_to_be_equal(
        json!([asks(json!({"cpu": "2", "memory": "1Gi"}), json!({"cpu": "1", "memory": "1Gi"})),
               asks(json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "2", "memory": "1Gi"}))]),
        json!([]), "Guaranteed"
    )]
    fn classes(#[case] containers: Value, #[case] inits: Value, #[case] expected: &str) {
        assert_eq!(class(&json!({"containers": containers, "initContainers": inits})), expected);
    }

    #[rstest]
    #[case::guaranteed(json!({"requests": both(), "limits": both()}), "Guaranteed")]
    #[case::burstable(json!({"requests": {"cpu": "1"}}), "Burstable")]
    #[case::nothing(json!({}), "BestEffort")]
    fn the_resources_of_the_pod_override_those_of_its_containers(#[case] whole: Value, #[case] expected: &str) {
        assert_eq!(
            class(&json!({"resources": whole, "containers": [asks(json!({"cpu": "7"}), Value::Null)]})),
            expected
        );
    }

    #[test]
    fn missing_requests_are_set_to_the_limits() {
        let mut container = asks(json!({"cpu": "100m"}), both());
        default_requests(&mut container);
        assert_eq!(container["resources"]["requests"], json!({"cpu": "100m", "memory": "1Gi"}));
        let mut container = json!({"resources": {"limits": both()}});
        default_requests(&mut container);
        assert_eq!(class(&json!({"containers": [container]})), "Guaranteed");
    }
}
