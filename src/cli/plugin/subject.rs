//! Finds the object that a user means: `machine/x`, `node/x`, `deployment/x`, `set/x`, `vm/PROVIDER-ID` or a bare name.
//!
//! Pure. A name with several meanings is never guessed: the error lists the meanings. Source: spec/packaging §5.2, PK-072.

use std::fmt;

use super::{fleet::Fleet, views::Vm};
use crate::cli::object_name;
use controller_runtime::snapshot::Snapshot;
use machine_api::names::label;
use machine_controllers::snapshots::{DeploymentSnapshot, MachineSnapshot, SetSnapshot};

/// A kind of object that a user can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// A machine.
    Machine,
    /// The Node of a machine.
    Node,
    /// A set.
    Set,
    /// A deployment.
    Deployment,
    /// A VM, by its id at the provider.
    Vm,
}

impl Named {
    const ALL: [Self; 5] = [Self::Machine, Self::Node, Self::Set, Self::Deployment, Self::Vm];

    /// The spellings, the first of which is printed.
    const fn spellings(self) -> &'static [&'static str] {
        match self {
            Self::Machine => &["machine", "machines", "mc"],
            Self::Node => &["node", "nodes", "no"],
            Self::Set => &["set", "machineset", "machinesets", "mcs"],
            Self::Deployment => &["deployment", "machinedeployment", "machinedeployments", "deploy", "mcd"],
            Self::Vm => &["vm", "vms", "providermachine", "providermachines", "pvm"],
        }
    }

    /// The kind with this spelling. The group may follow, as in the output of `kubectl get -o name`.
    pub fn from_spelling(text: &str) -> Option<Self> {
        let plain = text.split('.').next().unwrap_or(text).to_ascii_lowercase();
        Self::ALL.into_iter().find(|kind| kind.spellings().contains(&plain.as_str()))
    }

    /// Its printed name.
    pub const fn as_str(self) -> &'static str {
        self.spellings()[0]
    }
}

/// What a user has typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The kind, if it was named.
    pub kind: Option<Named>,
    /// The name.
    pub name: String,
}

impl std::str::FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = match text.split_once('/').map(|(kind, name)| (Named::from_spelling(kind), kind, name)) {
            Some((Some(kind), _, name)) => Self { kind: Some(kind), name: name.to_owned() },
            // An id of a provider begins with a scheme: `aws:///eu-west-1/i-0abc`.
            Some((None, scheme, _)) if scheme.ends_with(':') => Self { kind: Some(Named::Vm), name: text.to_owned() },
            Some((None, kind, _)) => {
                return Err(format!(
                    "{kind:?} is none of machine, node, set, deployment and vm; for example machine/NAME or node/NAME"
                ));
            }
            None => Self { kind: None, name: text.to_owned() },
        };
        if wanted.name.is_empty() {
            return Err("the name is missing; for example machine/NAME".to_owned());
        }
        if wanted.kind != Some(Named::Vm) {
            object_name(&wanted.name)?;
        }
        Ok(wanted)
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => write!(out, "{} {:?}", kind.as_str(), self.name),
            None => write!(out, "{:?}", self.name),
        }
    }
}

/// The object that was found.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A machine, named itself or by its Node or its VM.
    Machine {
        /// The machine.
        machine: MachineSnapshot,
        /// By which kind the user named it.
        by: Named,
    },
    /// A set.
    Set(SetSnapshot),
    /// A deployment.
    Deployment(DeploymentSnapshot),
    /// A VM without a machine of this namespace.
    Vm(Box<Vm>),
}

impl Subject {
    /// The object by its kind and name, without another meaning.
    pub fn wanted(&self) -> Wanted {
        let (kind, name) = match self {
            Self::Machine { machine, by: Named::Node } => (Named::Node, machine.label(label::NODE).unwrap_or_default()),
            Self::Machine { machine, by: Named::Vm } => (Named::Vm, machine.provider_id()),
            Self::Machine { machine, .. } => (Named::Machine, machine.name()),
            Self::Set(set) => (Named::Set, set.name()),
            Self::Deployment(deployment) => (Named::Deployment, deployment.name()),
            Self::Vm(vm) => (Named::Vm, vm.provider_id.as_str()),
        };
        Wanted { kind: Some(kind), name: name.to_owned() }
    }

    /// The name for messages: kind and name.
    fn title(&self) -> String {
        let Wanted { kind, name } = self.wanted();
        format!("{}/{name}", kind.map(Named::as_str).unwrap_or_default())
    }

    /// The UID of the object, or the id of the VM. Two meanings with the same identity are one.
    pub fn identity(&self) -> &str {
        match self {
            Self::Machine { machine, .. } => machine.uid(),
            Self::Set(set) => set.uid(),
            Self::Deployment(deployment) => deployment.uid(),
            Self::Vm(vm) => &vm.provider_id,
        }
    }
}

/// Why no object was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFound {
    /// No object has the name.
    #[error(
        "{wanted} in namespace {namespace}; kubectl mcm tree shows what is there, and -n selects another namespace"
    )]
    Nothing {
        /// What does not exist.
        wanted: String,
        /// Where.
        namespace: String,
    },
    /// Several objects have the name.
    #[error("{name:?} has several meanings: {}; name one of them", meanings.join(", "))]
    Ambiguous {
        /// The name.
        name: String,
        /// The meanings.
        meanings: Vec<String>,
    },
}

/// The object that was asked for.
///
/// # Errors
/// [`NotFound`] when no object has the name, or several have it.
pub fn find(wanted: &Wanted, namespace: &str, fleet: &Fleet, vms: &[Vm]) -> Result<Subject, NotFound> {
    let is_asked = |kind: Named| wanted.kind.is_none_or(|asked| asked == kind);
    let name = wanted.name.as_str();
    let mut found: Vec<Subject> = Vec::new();
    let mut machines = |by: Named, fits: &dyn Fn(&MachineSnapshot) -> bool| {
        if is_asked(by) {
            let fitting = fleet.machines.iter().filter(|machine| fits(machine));
            found.extend(fitting.map(|machine| Subject::Machine { machine: machine.clone(), by }));
        }
    };
    machines(Named::Machine, &|machine| machine.name() == name);
    machines(Named::Node, &|machine| machine.label(label::NODE) == Some(name));
    machines(Named::Vm, &|machine| machine.provider_id() == name);
    if is_asked(Named::Set) {
        found.extend(fleet.sets.iter().filter(|set| set.name() == name).cloned().map(Subject::Set));
    }
    if is_asked(Named::Deployment) {
        let fitting = fleet.deployments.iter().filter(|deployment| deployment.name() == name);
        found.extend(fitting.cloned().map(Subject::Deployment));
    }
    if is_asked(Named::Vm) {
        let is_free = |vm: &&Vm| {
            let of = vm.machine_ref.as_ref().map(|machine| machine.uid.as_str());
            !fleet.machines.iter().any(|machine| machine.provider_id() == vm.provider_id && of == Some(machine.uid()))
        };
        let fitting = vms.iter().filter(|vm| vm.provider_id == name || vm.metadata.name == name).filter(is_free);
        found.extend(fitting.map(|vm| Subject::Vm(Box::new(vm.clone()))));
    }
    let first = found.first().map(|one| one.identity().to_owned());
    if found.iter().any(|one| Some(one.identity()) != first.as_deref()) {
        let mut meanings: Vec<String> = found.iter().map(Subject::title).collect();
        if let [one, other] = meanings.as_slice()
            && one == other
        {
            // Two machines that claim one Node or one VM are named themselves.
            meanings = found
                .iter()
                .map(|one| match one {
                    Subject::Machine { machine, .. } => format!("machine/{}", machine.name()),
                    other => other.title(),
                })
                .collect();
        }
        return Err(NotFound::Ambiguous { name: name.to_owned(), meanings });
    }
    found
        .into_iter()
        .next()
        .ok_or_else(|| NotFound::Nothing { wanted: missing(wanted), namespace: namespace.to_owned() })
}

/// What does not exist, as the beginning of a sentence. Nodes and VMs are known by their machines.
fn missing(wanted: &Wanted) -> String {
    let name = &wanted.name;
    match wanted.kind {
        Some(Named::Node) => format!("no machine has Node {name:?}"),
        Some(Named::Vm) => format!("no machine has VM {name:?}"),
        Some(Named::Machine | Named::Set | Named::Deployment) | None => format!("no {wanted}"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::testing::{fleet, machine};
    use super::*;

    fn meaning(text: &str) -> Result<String, String> {
        let mut fleet = fleet();
        // A machine with the name of the deployment, and a machine whose Node has another name.
        fleet.machines.push(machine("twin", &json!({ "metadata": { "uid": "u-twin-machine" } })));
        fleet.sets.push(super::super::testing::set("twin", "web", 1, 0));
        let vms: Vec<Vm> = serde_json::from_value(json!([
            { "metadata": { "name": "lost.1a" }, "providerID": "virtual:///lost", "state": "Orphan" },
        ]))
        .unwrap();
        let wanted: Wanted = text.parse()?;
        find(&wanted, "ns", &fleet, &vms).map(|found| found.title()).map_err(|error| error.to_string())
    }

    #[rstest]
    #[case::bare("web-1-a", "machine/web-1-a")]
    #[case::kind("machine/web-1-a", "machine/web-1-a")]
    #[case::plural("machines/web-1-a", "machine/web-1-a")]
    #[case::short("mc/web-1-a", "machine/web-1-a")]
    #[case::as_kubectl_prints_it("machine.machine.sapcloud.io/web-1-a", "machine/web-1-a")]
    #[case::capitals("Machine/web-1-a", "machine/web-1-a")]
    #[case::node("node/node-a", "node/node-a")]
    #[case::bare_node("node-a", "node/node-a")]
    #[case::deployment("deployment/web", "deployment/web")]
    #[case::long_deployment("machinedeployment.machine.sapcloud.io/web", "deployment/web")]
    #[case::short_deployment("mcd/web", "deployment/web")]
    #[case::set("set/web-1", "set/web-1")]
    #[case::short_set("mcs/web-1", "set/web-1")]
    #[case::vm("vm/virtual:///a", "vm/virtual:///a")]
    #[case::bare_vm("virtual:///a", "vm/virtual:///a")]
    #[case::vm_without_machine("vm/virtual:///lost", "vm/virtual:///lost")]
    #[case::name_of_the_view("pvm/lost.1a", "vm/virtual:///lost")]
    fn pk_072_each_spelling_is_found(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(meaning(text).as_deref(), Ok(expected));
    }

    #[test]
    fn pk_072_an_ambiguous_name_lists_its_meanings() {
        let error = meaning("twin").unwrap_err();
        assert_eq!(error, "\"twin\" has several meanings: machine/twin, set/twin; name one of them");
        assert_eq!(meaning("machine/twin").as_deref(), Ok("machine/twin"));
    }

    #[rstest]
    #[case::no_such_object(
        "nobody",
        "no \"nobody\" in namespace ns; kubectl mcm tree shows what is there, and -n selects another namespace"
    )]
    #[case::of_another_kind(
        "node/web",
        "no machine has Node \"web\" in namespace ns; kubectl mcm tree shows what is there, and -n selects another namespace"
    )]
    #[case::no_such_vm(
        "vm/virtual:///gone",
        "no machine has VM \"virtual:///gone\" in namespace ns; kubectl mcm tree shows what is there, and -n selects another namespace"
    )]
    #[case::no_such_kind(
        "pod/x",
        "\"pod\" is none of machine, node, set, deployment and vm; for example machine/NAME or node/NAME"
    )]
    #[case::no_name("machine/", "the name is missing; for example machine/NAME")]
    #[case::nothing("", "the name is missing; for example machine/NAME")]
    fn pk_072_a_wrong_name_is_refused(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(meaning(text).unwrap_err(), expected);
    }

    #[rstest]
    #[case::capitals("Web")]
    #[case::a_slash("node/a/b")]
    #[case::a_selector("machine/a,metadata.namespace=b")]
    #[case::a_space("machine/ a")]
    #[case::an_escape_sequence("\u{1b}[2J")]
    fn pk_072_a_name_that_no_object_can_have_is_wrong_usage(#[case] text: &str) {
        let error = text.parse::<Wanted>().unwrap_err();
        assert!(error.contains("is no name of an object") && !error.contains('\u{1b}'), "{error}");
    }

    #[rstest]
    #[case::machine(Named::Machine, "web-1-a")]
    #[case::node(Named::Node, "node-a")]
    #[case::set(Named::Set, "web-1")]
    #[case::deployment(Named::Deployment, "web")]
    #[case::vm(Named::Vm, "virtual:///a")]
    fn pk_072_all_spellings_of_a_kind_mean_the_same(#[case] kind: Named, #[case] name: &str) {
        for spelling in kind.spellings() {
            for text in [format!("{spelling}/{name}"), format!("{spelling}.machine.sapcloud.io/{name}")] {
                let wanted: Wanted = text.parse().unwrap();
                let found = find(&wanted, "ns", &fleet(), &[]).unwrap_or_else(|error| panic!("{text}: {error}"));
                assert_eq!(found.title(), format!("{}/{name}", kind.as_str()), "{text}");
            }
        }
    }
}
