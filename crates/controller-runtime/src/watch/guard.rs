//! Decodes one watched object, so that an undecodable object is a value and not an error of the whole watch.
//!
//! kube's `DeserializeGuard` decodes from a copied tree of values. This one decodes from the text of the object, which costs one copy of the text. It
//! also drops the managed fields of each object at once, so that the managed fields of a whole page are never in memory together.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Resource,
    core::{DynamicResourceScope, PartialObjectMeta},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::RawValue;

/// An object that could not be decoded.
#[derive(Clone, Debug)]
pub struct Undecodable {
    /// Its metadata, without managed fields.
    pub metadata: ObjectMeta,
    /// The decoding error.
    pub error: String,
}

/// An object; if it could not be decoded, its metadata and the error.
///
/// Both are boxed because an object is kilobytes wide and each stage of the watch stream has room for one or more. Inline, an idle
/// watch takes a third of a megabyte, and each event is copied from stage to stage.
#[derive(Clone, Debug)]
pub struct Guarded<W>(pub Result<Box<W>, Box<Undecodable>>);

impl<'de, W: Resource + DeserializeOwned> Deserialize<'de> for Guarded<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let decoded = match serde_json::from_str::<Box<W>>(text.get()) {
            Ok(mut object) => {
                object.meta_mut().managed_fields = None;
                Ok(object)
            }
            Err(error) => {
                // Without metadata the object can't be identified, so the whole watch fails.
                let mut metadata = serde_json::from_str::<PartialObjectMeta<W>>(text.get())
                    .map_err(serde::de::Error::custom)?
                    .metadata;
                metadata.managed_fields = None;
                Err(Box::new(Undecodable { metadata, error: error.to_string() }))
            }
        };
        Ok(Self(decoded))
    }
}

impl<W: Resource<DynamicType = ()>> Resource for Guarded<W> {
    type DynamicType = ();
    /// The scope is known only where the watch is set up.
    type Scope = DynamicResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        W::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        W::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        W::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        W::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|undecodable| &undecodable.metadata, |object| W::meta(object))
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|undecodable| &mut undecodable.metadata, |object| W::meta_mut(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine_api::v1alpha1::Machine;

    #[test]
    fn one_undecodable_item_leaves_the_others_of_its_page() {
        let page = r#"{"apiVersion":"v1","kind":"MachineList","metadata":{"resourceVersion":"7"},"items":[
            {"metadata":{"name":"bad","uid":"1","managedFields":[{}]},"spec":{"class":"not an object"}},
            {"metadata":{"name":"good","uid":"2","managedFields":[{}]},"spec":{"class":{"name":"c"}}}]}"#;
        let list: kube::core::ObjectList<Guarded<Machine>> = serde_json::from_str(page).unwrap();
        let bad = list.items[0].0.as_ref().unwrap_err();
        assert_eq!(bad.metadata.name.as_deref(), Some("bad"));
        assert!(bad.error.contains("not an object"), "{}", bad.error);
        let good = list.items[1].0.as_ref().unwrap();
        assert_eq!(good.spec.class.name, "c");
        assert_eq!(good.metadata.managed_fields, None);
    }

    #[test]
    fn a_watch_event_with_an_undecodable_object_is_an_event() {
        let line = r#"{"type":"MODIFIED","object":{"metadata":{"name":"bad","resourceVersion":"9"},"spec":3}}"#;
        let event: kube::core::WatchEvent<Guarded<Machine>> = serde_json::from_str(line).unwrap();
        let kube::core::WatchEvent::Modified(Guarded(Err(bad))) = event else { panic!("{event:?}") };
        assert_eq!(bad.metadata.resource_version.as_deref(), Some("9"));
    }
}
