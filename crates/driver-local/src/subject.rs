//! What a call is about: the machine, and the names, the namespace and the labels of its objects (spec/providers §8).

use kube_values::syntax::dns1123_subdomain;
use machine_driver::{Code, Machine, MachineClass, OpContext, Owner, Status};
use serde_json::{Map, Value};

use crate::{
    LOCAL,
    rules::{Home, LABEL_MAX, is_dns_label},
    spec::Place,
};

/// The manager of the fields of new objects.
pub const FIELD_MANAGER: &str = "machine-controller-manager-provider-local";
/// Label with the same value on the objects of all machines.
const APP: &str = "app";
const MACHINE_APP: &str = "machine";
/// Label with the provider.
const PROVIDER: &str = "machine-provider";
/// Label with the name of the machine.
pub const MACHINE: &str = "machine";
/// Label with the cluster of the machine, if its namespace does not identify the cluster. The Go driver has no such label.
const CLUSTER: &str = "machine-class-cluster";
/// The beginning of the names of pods, Services and Nodes.
const PREFIX: &str = "machine-";
/// The role of the owner of a namespace's pods.
const ROLE: &str = "machine";

/// The pods that a class is about: those in one namespace of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pods {
    /// Their namespace.
    pub namespace: String,
    /// The value of their label for the cluster. `None` if the namespace identifies the cluster.
    pub cluster: Option<String>,
}

/// The machine of a call and its pod.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    /// The name of the machine.
    pub machine: &'a str,
    /// The name of the pod, of its Service and of the Node.
    pub pod: String,
    /// The pods of the class.
    pub pods: Pods,
}

/// The owner of a class's pods, if the class itself shows it: its pods are in its own namespace of the control cluster. Elsewhere several managers can
/// name the same namespace, so that a class shows nothing.
pub fn owner(class: &MachineClass) -> Option<Owner> {
    match Home::of(class) {
        Home::Control(own) => Some(Owner::new(own, ROLE)),
        Home::Elsewhere => None,
    }
}

impl Pods {
    /// The pods of a class. `machine` is the namespace of the machine, if the call is about one.
    ///
    /// # Errors
    /// `InvalidArgument` for another namespace of the control cluster than that of the class (see [`crate::rules`]), and if the name of the cluster
    /// can't be the value of a label.
    pub fn of(class: &MachineClass, place: &Place, machine: Option<&str>, cx: &OpContext) -> Result<Self, Status> {
        let namespaces = [Some(place.namespace.as_str()), machine, class.metadata.namespace.as_deref()];
        let namespace = namespaces.into_iter().flatten().find(|namespace| !namespace.is_empty()).unwrap_or_default();
        let is_allowed = match Home::of(class) {
            Home::Control(own) => namespace == own || place.namespace.is_empty(),
            Home::Elsewhere => true,
        };
        if !is_allowed || !is_dns_label(namespace) {
            let message = format!("machines of this class can't be pods in namespace {namespace:?}");
            return Err(Status::new(Code::InvalidArgument, message));
        }
        let cluster = match (owner(class), cx.owner()) {
            (None, Some(owner)) => Some(owner.cluster.clone()),
            _ => None,
        };
        if let Some(cluster) = cluster.as_deref()
            && !kube_values::syntax::label_value(cluster).is_empty()
        {
            let message =
                format!("the name of the cluster, {cluster:?}, is no value of a label: pods can't be marked with it");
            return Err(Status::new(Code::InvalidArgument, message));
        }
        Ok(Self { namespace: namespace.to_owned(), cluster })
    }

    /// The selector of these pods.
    pub fn selector(&self) -> String {
        let cluster = self.cluster.as_ref().map(|cluster| format!(",{CLUSTER}={cluster}"));
        format!("{PROVIDER}={LOCAL}{}", cluster.unwrap_or_default())
    }
}

impl<'a> Subject<'a> {
    /// The subject of a call about a machine.
    ///
    /// # Errors
    /// `InvalidArgument` for a machine without a name, `NotFound` if no pod can have the machine's name, and those of [`Pods::of`].
    pub fn of(machine: &'a Machine, class: &MachineClass, place: &Place, cx: &OpContext) -> Result<Self, Status> {
        let name = machine.metadata.name.as_deref().unwrap_or_default();
        if name.is_empty() {
            return Err(Status::new(Code::InvalidArgument, "the machine has no name"));
        }
        let pod = pod_name(name);
        if !dns1123_subdomain(&pod).is_empty() {
            let message = format!("{pod:?} can't be the name of a pod, so that the machine has none");
            return Err(Status::new(Code::NotFound, message));
        }
        Ok(Self { machine: name, pod, pods: Pods::of(class, place, machine.metadata.namespace.as_deref(), cx)? })
    }

    /// The subject of a creation. A pod of another program may have a longer name, which must not stop its deletion.
    ///
    /// # Errors
    /// `InvalidArgument` for a machine whose pod could have no Service, and those of [`Self::of`].
    pub fn to_create(
        machine: &'a Machine,
        class: &MachineClass,
        place: &Place,
        cx: &OpContext,
    ) -> Result<Self, Status> {
        let pod = pod_name(machine.metadata.name.as_deref().unwrap_or_default());
        if pod != PREFIX && !is_dns_label(&pod) {
            let message = format!(
                "{pod:?} can't be the name of a pod with a Service: the machine's name must have at most {} lower case letters, digits and hyphens",
                LABEL_MAX - PREFIX.len()
            );
            return Err(Status::new(Code::InvalidArgument, message));
        }
        Self::of(machine, class, place, cx)
    }

    /// The name of the Secret with the user data.
    pub fn secret(&self) -> String {
        format!("{}-userdata", self.pod)
    }

    /// The labels of the machine's objects.
    pub fn labels(&self) -> Map<String, Value> {
        let own = [(APP, MACHINE_APP), (PROVIDER, LOCAL), (MACHINE, self.machine)];
        let cluster = self.pods.cluster.as_deref().map(|cluster| (CLUSTER, cluster));
        own.into_iter().chain(cluster).map(|(key, value)| (key.to_owned(), Value::from(value))).collect()
    }

    /// Whether an object with these labels was made for this machine. `get` returns the value of a label. An object of the Go driver has no label for
    /// the cluster.
    pub fn owns<'l>(&self, get: impl Fn(&str) -> Option<&'l str>) -> bool {
        let is_of_cluster = match (&self.pods.cluster, get(CLUSTER)) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => true,
        };
        is_of_cluster && get(PROVIDER) == Some(LOCAL) && get(MACHINE) == Some(self.machine)
    }
}

/// The name of the pod of a machine.
pub fn pod_name(machine: &str) -> String {
    format!("{PREFIX}{machine}")
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn class(namespace: Option<&str>, elsewhere: bool) -> MachineClass {
        let mut class = MachineClass::default();
        class.metadata.namespace = namespace.map(str::to_owned);
        class.credentials_secret_ref = elsewhere.then(Default::default);
        class
    }

    fn machine(name: &str, namespace: Option<&str>) -> Machine {
        let mut machine = Machine::default();
        machine.metadata.name = Some(name.to_owned());
        machine.metadata.namespace = namespace.map(str::to_owned);
        machine
    }

    fn cx(cluster: Option<&str>) -> OpContext {
        OpContext::within(Duration::from_secs(60)).about(cluster.map(|cluster| Owner::new(cluster, "machines")))
    }

    fn spec(namespace: &str) -> Place {
        Place { namespace: namespace.to_owned() }
    }

    #[rstest]
    #[case::of_the_class("chosen", Some("m"), Some("c"), "chosen")]
    #[case::of_the_machine("", Some("m"), Some("c"), "m")]
    #[case::of_the_class_for_an_orphan("", Some(""), Some("c"), "c")]
    #[case::of_the_class_for_a_list("", None, Some("c"), "c")]
    #[tokio::test]
    async fn pods_are_in_the_namespace(
        #[case] spec_namespace: &str,
        #[case] machine: Option<&str>,
        #[case] class_namespace: Option<&str>,
        #[case] expected: &str,
    ) {
        let pods = Pods::of(&class(class_namespace, true), &spec(spec_namespace), machine, &cx(None)).unwrap();
        assert_eq!(pods.namespace, expected);
    }

    #[rstest]
    #[case::in_the_control_cluster("", false, Some("ns"), None)]
    #[case::in_a_named_namespace_elsewhere("shared", true, None, Some("shoot"))]
    #[case::in_the_default_namespace_elsewhere("", true, None, Some("shoot"))]
    #[tokio::test]
    async fn the_namespace_or_the_name_of_the_cluster_shows_the_owner(
        #[case] namespace: &str,
        #[case] elsewhere: bool,
        #[case] by_class: Option<&str>,
        #[case] label: Option<&str>,
    ) {
        let (class, spec) = (class(Some("ns"), elsewhere), spec(namespace));
        assert_eq!(owner(&class).map(|owner| owner.cluster).as_deref(), by_class);
        let pods = Pods::of(&class, &spec, None, &cx(Some("shoot"))).unwrap();
        assert_eq!(pods.cluster.as_deref(), label);
        assert_eq!(pods.selector() == "machine-provider=local", label.is_none(), "{}", pods.selector());
    }

    #[rstest]
    #[case::no_name("", "the machine has no name")]
    #[case::a_dot("a.b", "\"machine-a.b\" can't be")]
    #[case::a_path("../x", "\"machine-../x\" can't be")]
    #[case::too_long(&"a".repeat(56), "\"machine-a")]
    #[tokio::test]
    async fn a_machine_can_have_no_pod(#[case] name: &str, #[case] begins: &str) {
        let machine = machine(name, Some("ns"));
        let refused = Subject::to_create(&machine, &class(Some("ns"), false), &spec(""), &cx(None)).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.starts_with(begins), "{}", refused.message);
    }

    #[rstest]
    #[case::no_name("", Code::InvalidArgument)]
    #[case::a_pod_of_the_go_driver("a.b", Code::OK)]
    #[case::a_long_name(&"a".repeat(56), Code::OK)]
    #[case::a_path("../x", Code::NotFound)]
    #[case::no_pod_has_so_long_a_name(&"a".repeat(250), Code::NotFound)]
    #[tokio::test]
    async fn a_machine_that_could_not_be_created_can_be_deleted(#[case] name: &str, #[case] expected: Code) {
        let machine = machine(name, Some("ns"));
        let subject = Subject::of(&machine, &class(Some("ns"), false), &spec(""), &cx(None));
        assert_eq!(subject.map_or_else(|refused| refused.code, |_| Code::OK), expected);
    }

    #[rstest]
    #[case::another_namespace("kube-system")]
    #[case::a_path("../kube-system")]
    #[tokio::test]
    async fn no_call_leaves_the_namespace_of_a_class_in_the_control_cluster(#[case] namespace: &str) {
        let refused = Pods::of(&class(Some("ns"), false), &spec(namespace), Some("ns"), &cx(None)).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert_eq!(
            Pods::of(&class(Some("ns"), true), &spec(namespace), None, &cx(None)).is_ok(),
            namespace == "kube-system"
        );
    }

    #[tokio::test]
    async fn a_cluster_whose_name_is_no_label_is_refused() {
        let refused = Pods::of(&class(Some("ns"), true), &spec(""), None, &cx(Some("a/b"))).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
    }

    #[rstest]
    #[case::its_pod(json!({"machine": "m", "machine-provider": "local", "machine-class-cluster": "shoot"}), true)]
    #[case::its_pod_by_the_go_driver(json!({"machine": "m", "machine-provider": "local"}), true)]
    #[case::of_another_cluster(json!({"machine": "m", "machine-provider": "local", "machine-class-cluster": "x"}), false)]
    #[case::of_another_machine(json!({"machine": "n", "machine-provider": "local"}), false)]
    #[case::of_nothing(json!({"machine": "m"}), false)]
    #[tokio::test]
    async fn labels_prove_ownership(#[case] labels: Value, #[case] expected: bool) {
        let machine = machine("m", Some("ns"));
        let subject = Subject::of(&machine, &class(Some("ns"), true), &spec(""), &cx(Some("shoot"))).unwrap();
        let labels: BTreeMap<String, String> = serde_json::from_value(labels).unwrap();
        assert_eq!(subject.owns(|key| labels.get(key).map(String::as_str)), expected);
        let own = subject.labels();
        assert!(subject.owns(|key| own.get(key).and_then(Value::as_str)));
        assert_eq!((subject.pod.as_str(), subject.secret().as_str()), ("machine-m", "machine-m-userdata"));
    }
}
