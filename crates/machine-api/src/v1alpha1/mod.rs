//! The stored kinds: group `machine.sapcloud.io`, version `v1alpha1`.
//!
//! Every field is as in the Go original (spec/api-and-admission §1). If Go has no pointer, absent and zero are the same value and the field is plain.
//! If Go has a pointer, `Option` keeps the difference. The structs have every documented field, but objects are never written back whole: controllers
//! send patches, so that unknown fields are kept.

mod common;
mod machine;
mod machine_class;
mod machine_deployment;
mod machine_set;

pub use common::*;
pub use machine::*;
pub use machine_class::*;
pub use machine_deployment::*;
pub use machine_set::*;

/// With the feature `kube`, implements `kube::Resource` and `k8s_openapi`-style metadata access for a kind of our group.
macro_rules! resource {
    ($kind:ident, $plural:literal) => {
        $crate::v1alpha1::resource!($kind, $plural, $crate::names::V1ALPHA1);
    };
    ($kind:ident, $plural:literal, $version:expr) => {
        #[cfg(feature = "kube")]
        impl kube_core::Resource for $kind {
            type DynamicType = ();
            type Scope = kube_core::NamespaceResourceScope;

            fn kind(_: &()) -> std::borrow::Cow<'_, str> {
                stringify!($kind).into()
            }
            fn group(_: &()) -> std::borrow::Cow<'_, str> {
                $crate::names::GROUP.into()
            }
            fn version(_: &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }
            fn plural(_: &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use resource;
