//! The objects of a machine as they are written (spec/providers §8): the pod, the Secret with the user data, and the headless Service.
//!
//! Secret and Service are owned by the pod, so that the cluster's garbage collector deletes them with it. The machine can't own them, because it may be
//! in another cluster.

use k8s_openapi::{ByteString, api::core::v1::Pod};
use serde_json::{Map, Value, json};

use crate::{spec::Spec, subject::Subject, template::PodTemplate};

/// The key of the user data in the Secret.
const USER_DATA: &str = "userdata";
/// Annotations of Calico.
const POOLS_V4: &str = "cni.projectcalico.org/ipv4pools";
const POOLS_V6: &str = "cni.projectcalico.org/ipv6pools";

/// The pod of a machine.
pub fn pod(subject: &Subject<'_>, spec: &Spec, template: &PodTemplate) -> Value {
    let mut annotations = template.annotations();
    for (annotation, pool) in [(POOLS_V4, &spec.ip_pool_name_v4), (POOLS_V6, &spec.ip_pool_name_v6)] {
        if !pool.is_empty() {
            annotations.insert(annotation.to_owned(), Value::from(json!([pool]).to_string()));
        }
    }
    let mut labels = template.labels();
    labels.extend(subject.labels());
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": subject.pod, "namespace": subject.pods.namespace, "labels": labels, "annotations": annotations,
        },
        "spec": template.spec(&spec.image, &subject.secret()),
    })
}

/// The Secret with the user data of a machine.
pub fn secret(subject: &Subject<'_>, pod: &Pod, user_data: &[u8]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": owned(&subject.secret(), subject, pod, None),
        "data": {USER_DATA: ByteString(user_data.to_vec())},
    })
}

/// The Service of a machine. It shows the pod before its Node has joined, so that people can log in.
pub fn service(subject: &Subject<'_>, pod: &Pod) -> Value {
    let labels = subject.labels();
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned(&subject.pod, subject, pod, Some(&labels)),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "selector": labels,
            "publishNotReadyAddresses": true,
            "ports": [{"name": "ssh", "port": 22, "protocol": "TCP", "appProtocol": "ssh"}],
        },
    })
}

fn owned(name: &str, subject: &Subject<'_>, pod: &Pod, labels: Option<&Map<String, Value>>) -> Value {
    let mut metadata = json!({
        "name": name,
        "namespace": subject.pods.namespace,
        "ownerReferences": [{
            "apiVersion": "v1", "kind": "Pod", "name": subject.pod, "uid": pod.metadata.uid, "controller": true,
        }],
    });
    if let Some(labels) = labels {
        metadata["labels"] = json!(labels);
    }
    metadata
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use machine_driver::{Machine, MachineClass, OpContext};

    use super::*;
    use crate::spec::Place;

    #[tokio::test]
    async fn objects_are_those_of_provider_local() {
        let mut class = MachineClass::default();
        class.metadata.namespace = Some("ns".to_owned());
        let mut machine = Machine::default();
        machine.metadata.name = Some("m".to_owned());
        let spec =
            Spec { image: "node:1".to_owned(), ip_pool_name_v4: "four".to_owned(), ip_pool_name_v6: "six".to_owned() };
        let subject =
            Subject::of(&machine, &class, &Place::default(), &OpContext::within(Duration::from_secs(1))).unwrap();
        let labels = json!({"app": "machine", "machine-provider": "local", "machine": "m"});

        let template = "{metadata: {labels: {team: a, app: x}, annotations: {b: c}}, spec: {containers: [{name: side}, {name: node}], volumes: [{name: userdata, secret: {}}]}}";
        let pod = pod(&subject, &spec, &PodTemplate::read(template).unwrap());
        assert_eq!(pod["metadata"]["name"], "machine-m");
        assert_eq!(pod["metadata"]["namespace"], "ns");
        let with_own = json!({"app": "machine", "machine-provider": "local", "machine": "m", "team": "a"});
        assert_eq!(pod["metadata"]["labels"], with_own, "labels of the driver are stronger than those of the template");
        let annotations = json!({
            "b": "c", "cni.projectcalico.org/ipv4pools": "[\"four\"]", "cni.projectcalico.org/ipv6pools": "[\"six\"]",
        });
        assert_eq!(pod["metadata"]["annotations"], annotations);
        assert_eq!(pod["spec"]["containers"], json!([{"name": "side"}, {"name": "node", "image": "node:1"}]));
        assert_eq!(pod["spec"]["volumes"][0]["secret"]["secretName"], "machine-m-userdata");

        let mut made = Pod::default();
        made.metadata.uid = Some("u-1".to_owned());
        let owners =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "machine-m", "uid": "u-1", "controller": true}]);
        let secret = secret(&subject, &made, b"#!/bin/sh");
        assert_eq!(
            secret["metadata"],
            json!({"name": "machine-m-userdata", "namespace": "ns", "ownerReferences": owners})
        );
        assert_eq!(secret["data"], json!({"userdata": "IyEvYmluL3No"}));
        let service = service(&subject, &made);
        assert_eq!(
            service["metadata"],
            json!({"name": "machine-m", "namespace": "ns", "ownerReferences": owners, "labels": labels})
        );
        let expected = json!({
            "type": "ClusterIP", "clusterIP": "None", "selector": labels, "publishNotReadyAddresses": true,
            "ports": [{"name": "ssh", "port": 22, "protocol": "TCP", "appProtocol": "ssh"}],
        });
        assert_eq!(service["spec"], expected);
    }
}
