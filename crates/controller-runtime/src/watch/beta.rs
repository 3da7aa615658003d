//! Machine objects that are read in the stored version, v1beta1, and kept in v1alpha1, the version of the controllers.
//!
//! The conversion is the same as the webhook's, but runs here. A cache that depends on the webhook of this process can't fill while
//! that webhook can't be reached (spec/api-and-admission §8.6).

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use machine_api::{conversion, names};
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error};
use serde_json::Value;

/// An object that the API server sends in v1beta1.
#[derive(Clone, Debug)]
pub struct Beta<K>(pub K);

impl<'de, K: Resource<DynamicType = ()> + DeserializeOwned> Deserialize<'de> for Beta<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        if let Value::Object(fields) = &mut object {
            // In a list, the API server may omit the type of an item.
            fields.entry("apiVersion").or_insert_with(|| Value::from(names::API_VERSION_V1BETA1));
            fields.entry("kind").or_insert_with(|| Value::from(K::kind(&())));
        }
        let object = conversion::convert(&object, names::API_VERSION_V1ALPHA1).map_err(D::Error::custom)?;
        serde_json::from_value(object).map(Self).map_err(D::Error::custom)
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Beta<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Cow::Borrowed(names::V1BETA1)
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::watch::Guarded;
    use machine_api::v1alpha1::{Machine, MachineDeployment};

    #[test]
    fn an_item_of_a_list_is_read_in_v1beta1_and_kept_in_v1alpha1() {
        let item = json!({
            "metadata": {"name": "m", "uid": "1", "resourceVersion": "7"},
            "spec": {"classRef": {"kind": "MachineClass", "name": "c"}, "lifecycle": {"unhealthyNodeConditions": ["A", "B"]}},
            "status": {"phase": "Running"},
        });
        let machine: Beta<Machine> = serde_json::from_value(item).unwrap();
        assert_eq!(machine.meta().resource_version.as_deref(), Some("7"));
        assert_eq!(
            (machine.0.spec.class.name.as_str(), machine.0.spec.configuration.node_conditions.as_deref()),
            ("c", Some("A,B"))
        );
        assert_eq!(
            Beta::<Machine>::url_path(&(), Some("n")),
            "/apis/machine.sapcloud.io/v1beta1/namespaces/n/machines"
        );
    }

    #[test]
    fn data_of_v1alpha1_in_the_stored_object_is_restored() {
        let alpha = json!({
            "apiVersion": names::API_VERSION_V1ALPHA1, "kind": "MachineDeployment", "metadata": {"name": "d"},
            "spec": {"replicas": 3, "rollbackTo": {"revision": 2}, "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"class": {"name": "c"}, "drainTimeout": "soon"}}},
        });
        let stored = conversion::convert(&alpha, names::API_VERSION_V1BETA1).unwrap();
        let read: Guarded<Beta<MachineDeployment>> = serde_json::from_str(&stored.to_string()).unwrap();
        // The object again has the duration that can't be decoded. It fails like the object in v1alpha1.
        let direct: Guarded<MachineDeployment> = serde_json::from_str(&alpha.to_string()).unwrap();
        match (read.0, direct.0) {
            (Ok(read), Ok(direct)) => assert_eq!(read.0, *direct),
            (Err(read), Err(direct)) => assert_eq!(read.metadata.name, direct.metadata.name),
            (read, direct) => panic!("{read:?} but {direct:?}"),
        }
    }

    #[test]
    fn one_that_cannot_be_decoded_is_still_named() {
        let text = r#"{"metadata":{"name":"bad","uid":"1"},"spec":3}"#;
        let bad: Guarded<Beta<Machine>> = serde_json::from_str(text).unwrap();
        assert_eq!(bad.0.unwrap_err().metadata.name.as_deref(), Some("bad"));
    }
}
