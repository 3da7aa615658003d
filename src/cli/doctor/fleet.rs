//! Checks the machine objects of a namespace against each other, their Secrets, Nodes and VMs. Pure functions.
//!
//! A running manager repairs some of these findings by itself. A finding therefore says what the object lacks, and its command does by
//! hand what the manager would do (spec/packaging §7.4).

use std::collections::BTreeSet;

use kube_values::syntax::nearest;
use machine_api::names::{finalizer, label};
use serde_json::{Value, json};

use super::{
    checks::{Finding, Health, List},
    commands::remove_finalizer,
};
use crate::cli::{
    documents::Document,
    migrate_classes::plan::names_old_class,
    plugin::views::Vm,
    validate::{ValidateOptions, check},
};
use machine_api::{kind::Kind, validation::Providers};

/// The number of objects that one check reports. Further objects are counted.
const REPORTED: usize = 5;

/// The observed objects of a namespace.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// The namespace.
    pub namespace: String,
    /// The classes.
    pub classes: List,
    /// The machines.
    pub machines: List,
    /// The sets.
    pub sets: List,
    /// The deployments.
    pub deployments: List,
    /// Metadata of the Secrets.
    pub secrets: List,
    /// Metadata of the Nodes; `None` if no cluster with Nodes was given.
    pub nodes: Option<List>,
    /// The VMs that the providers list; `None` if they were not asked.
    pub vms: Option<Result<Vec<Vm>, String>>,
}

/// An object that must be repaired.
struct Problem {
    subject: String,
    message: String,
    command: Option<String>,
}

impl Fleet {
    /// All findings. `providers` are the drivers that this program has.
    pub fn findings(&self, providers: &dyn Providers) -> Vec<Finding> {
        let mut all = self.classes_have_drivers(providers);
        all.extend(self.classes_have_secrets());
        all.extend(self.objects_pass_admission(providers));
        all.extend(self.secrets_have_classes());
        all.extend(self.nodes_have_machines());
        all.extend(self.machines_have_nodes());
        all.extend(self.vms_have_machines());
        all
    }

    fn classes_have_drivers(&self, providers: &dyn Providers) -> Vec<Finding> {
        let what = format!("Providers of classes in {}", self.namespace);
        let (classes, machines) = match (&self.classes, &self.machines) {
            (List::All(classes), List::All(machines)) => (classes, machines),
            (List::Refused(why), _) | (_, List::Refused(why)) => return unknown(what, why),
        };
        // A machine that runs shows that another program has the driver.
        let runs =
            |class: &str| machines.iter().any(|machine| class_of(machine) == class && phase(machine) == "Running");
        let problems = classes.iter().filter_map(|class| {
            let (name, provider) = (name(class), class["provider"].as_str().unwrap_or_default());
            if providers.serves(provider) || runs(name) {
                return None;
            }
            let (message, command) = if let Some(meant) = nearest(provider, providers.names().into_iter()) {
                    let patch = json!({"provider": meant});
                    let command =
                        format!("kubectl -n {} patch machineclass {name} --type=merge -p '{patch}'", self.namespace);
                    (format!("no driver serves its provider {provider:?}; did you mean {meant:?}?"), command)
                } else {
                    let message = format!(
                        "this program has no driver for its provider {provider:?}, and none of its machines runs: start the \
                         manager with the driver (--external-driver), or correct the class"
                    );
                    (message, format!("kubectl -n {} edit machineclass {name}", self.namespace))
                };
            Some(Problem { subject: self.subject(Kind::MachineClass.as_str(), name), message, command: Some(command) })
        });
        reported(what, problems.collect(), format!("a driver serves each of {}", classes.len()))
    }

    fn classes_have_secrets(&self) -> Vec<Finding> {
        let what = format!("Secrets of classes in {}", self.namespace);
        let (classes, secrets) = match (&self.classes, &self.secrets) {
            (List::All(classes), List::All(secrets)) => (classes, secrets),
            (List::Refused(why), _) | (_, List::Refused(why)) => return unknown(what, why),
        };
        let present: BTreeSet<&str> = secrets.iter().map(name).collect();
        let mut problems = Vec::new();
        for class in classes {
            for (field, secret) in self.references(class) {
                if !present.contains(secret) {
                    let key = if field == "secretRef" { "userData" } else { "KEY" };
                    problems.push(Problem {
                        subject: self.subject(Kind::MachineClass.as_str(), name(class)),
                        message: format!("its Secret {secret} ({field}) does not exist, so that it makes no machine"),
                        command: Some(format!(
                            "kubectl -n {} create secret generic {secret} --from-file={key}=FILE",
                            self.namespace
                        )),
                    });
                }
            }
        }
        reported(what, problems, format!("all Secrets of {} classes exist", classes.len()))
    }

    /// The Secrets of this namespace that a class names, with the fields that name them.
    fn references<'a>(&'a self, class: &'a Value) -> impl Iterator<Item = (&'static str, &'a str)> {
        ["secretRef", "credentialsSecretRef"].into_iter().filter_map(|field| {
            let reference = &class[field];
            let namespace = reference["namespace"].as_str().filter(|namespace| !namespace.is_empty());
            let is_here = namespace.is_none_or(|namespace| namespace == self.namespace);
            Some((field, reference["name"].as_str().filter(|name| is_here && !name.is_empty())?))
        })
    }

    fn objects_pass_admission(&self, providers: &dyn Providers) -> Vec<Finding> {
        let what = format!("Admission of stored objects in {}", self.namespace);
        let mut objects = Vec::new();
        for list in [&self.classes, &self.deployments, &self.sets, &self.machines] {
            match list {
                List::All(all) => objects.extend(all.iter()),
                List::Refused(why) => return unknown(what, why),
            }
        }
        let document = |object: &&Value| Document { source: String::new(), index: 0, value: (*object).clone() };
        let documents: Vec<Document> = objects.iter().map(document).collect();
        let options = ValidateOptions { namespace: self.namespace.clone(), ..ValidateOptions::default() };
        let report = check(&documents, &[], Vec::new(), &options, providers);
        let problems = objects.iter().zip(&report.objects).filter(|(_, about)| about.findings.denies());
        let problems = problems.map(|(object, about)| {
            let kind = object["kind"].as_str().unwrap_or_default();
            let why = about.findings.errors().next().map(ToString::to_string).unwrap_or_default();
            let command = if Kind::from_name(kind).is_some_and(|kind| names_old_class(kind, object)) {
                format!("mcm migrate-classes --namespace {}", self.namespace)
            } else {
                format!("kubectl -n {} edit {} {}", self.namespace, kind.to_lowercase(), name(object))
            };
            Problem {
                subject: self.subject(kind, name(object)),
                message: format!("today's rules would refuse it: {why}"),
                command: Some(command),
            }
        });
        reported(what, problems.collect(), format!("the rules of this program allow all {}", objects.len()))
    }

    fn secrets_have_classes(&self) -> Vec<Finding> {
        let what = format!("Finalizers on Secrets in {}", self.namespace);
        let (classes, secrets) = match (&self.classes, &self.secrets) {
            (List::All(classes), List::All(secrets)) => (classes, secrets),
            (List::Refused(why), _) | (_, List::Refused(why)) => return unknown(what, why),
        };
        let used: BTreeSet<&str> =
            classes.iter().flat_map(|class| self.references(class)).map(|(_, secret)| secret).collect();
        let ours = secrets.iter().filter(|secret| has_finalizer(secret, finalizer::SECRET));
        let (owned, free): (Vec<&Value>, Vec<&Value>) = ours.partition(|secret| used.contains(name(secret)));
        let problem = |secret: &&Value| {
            let target = format!("-n {} secret {}", self.namespace, name(secret));
            Problem {
                subject: self.subject("Secret", name(secret)),
                message:
                    "has our finalizer, and no class names it: it can't be deleted. A running manager removes the \
                          finalizer"
                        .to_owned(),
                command: remove_finalizer(&target, secret, finalizer::SECRET),
            }
        };
        reported(
            what,
            free.iter().map(problem).collect(),
            format!("classes name all {} with our finalizer", owned.len()),
        )
    }

    fn nodes_have_machines(&self) -> Vec<Finding> {
        let Some(nodes) = &self.nodes else { return Vec::new() };
        let what = "Finalizers on Nodes".to_owned();
        let (nodes, machines) = match (nodes, &self.machines) {
            (List::All(nodes), List::All(machines)) => (nodes, machines),
            (List::Refused(why), _) | (_, List::Refused(why)) => return unknown(what, why),
        };
        let named: BTreeSet<&str> = machines.iter().filter_map(node_of).collect();
        let ours = nodes.iter().filter(|node| has_finalizer(node, finalizer::NODE));
        let (owned, free): (Vec<&Value>, Vec<&Value>) = ours.partition(|node| named.contains(name(node)));
        let problem = |node: &&Value| Problem {
            subject: format!("Node {}", name(node)),
            message: format!(
                "has our finalizer, and no machine of namespace {} names it: it can't be deleted, unless a manager of another \
                 namespace removes the finalizer",
                self.namespace
            ),
            command: remove_finalizer(&format!("node {}", name(node)), node, finalizer::NODE),
        };
        reported(
            what,
            free.iter().map(problem).collect(),
            format!("machines name all {} with our finalizer", owned.len()),
        )
    }

    fn machines_have_nodes(&self) -> Vec<Finding> {
        let Some(nodes) = &self.nodes else { return Vec::new() };
        let what = format!("Nodes of machines in {}", self.namespace);
        let (nodes, machines) = match (nodes, &self.machines) {
            (List::All(nodes), List::All(machines)) => (nodes, machines),
            (List::Refused(why), _) | (_, List::Refused(why)) => return unknown(what, why),
        };
        let present: BTreeSet<&str> = nodes.iter().map(name).collect();
        let running = machines.iter().filter(|machine| phase(machine) == "Running" && !is_terminating(machine));
        let (mut problems, mut joined) = (Vec::new(), 0);
        for machine in running {
            let Some(node) = node_of(machine) else { continue };
            joined += 1;
            if !present.contains(node) {
                problems.push(Problem {
                    subject: self.subject(Kind::Machine.as_str(), name(machine)),
                    message: format!("is Running, and its Node {node} does not exist"),
                    command: Some(format!("mcm replace machine/{} --namespace {}", name(machine), self.namespace)),
                });
            }
        }
        reported(what, problems, format!("each of {joined} running machines has one"))
    }

    fn vms_have_machines(&self) -> Vec<Finding> {
        let Some(vms) = &self.vms else { return Vec::new() };
        let what = format!("VMs of {}", self.namespace);
        let vms = match vms {
            Ok(vms) => vms,
            Err(why) => return unknown(what, why),
        };
        let problems = vms.iter().filter_map(|vm| {
            let machine = vm.machine_ref.as_ref().map(|machine| machine.name.as_str());
            let details = format!("kubectl -n {} get providermachines {} -o yaml", self.namespace, vm.metadata.name);
            let (message, command) = match (vm.state.as_str(), machine) {
                ("Missing", Some(machine)) => (
                    format!("the provider does not list the VM of machine {machine}"),
                    format!("mcm replace machine/{machine} --namespace {}", self.namespace),
                ),
                ("Orphan", _) if vm.orphan.as_ref().is_none_or(|orphan| orphan.will_be_deleted_after.is_none()) => {
                    ("no machine has it, and it will not be deleted".to_owned(), details)
                }
                ("Duplicate", _) => ("its machine has another VM".to_owned(), details),
                ("Foreign", _) => ("no machine has it, and several classes list it".to_owned(), details),
                _ => return None,
            };
            Some(Problem { subject: format!("VM {}", vm.provider_id), message, command: Some(command) })
        });
        let goes = vms.iter().filter(|vm| {
            vm.state == "Orphan" && vm.orphan.as_ref().is_some_and(|orphan| orphan.will_be_deleted_after.is_some())
        });
        let fine = match goes.count() {
            0 => format!("each of {} belongs to a machine", vms.len()),
            goes => format!("of {}, {goes} without a machine will be deleted by the manager", vms.len()),
        };
        reported(what, problems.collect(), fine)
    }

    fn subject(&self, kind: &str, name: &str) -> String {
        format!("{kind} {}/{name}", self.namespace)
    }
}

fn unknown(subject: String, why: &str) -> Vec<Finding> {
    vec![Finding::new(subject, Health::Unknown, why.to_owned())]
}

/// The findings about the first objects and the number of the others, or one finding that says `fine`.
fn reported(what: String, problems: Vec<Problem>, fine: String) -> Vec<Finding> {
    if problems.is_empty() {
        return vec![Finding::new(what, Health::Fine, fine)];
    }
    let further = problems.len().saturating_sub(REPORTED);
    let mut findings: Vec<Finding> = problems
        .into_iter()
        .take(REPORTED)
        .map(|problem| Finding {
            command: problem.command,
            ..Finding::new(problem.subject, Health::Bad, problem.message)
        })
        .collect();
    if further > 0 {
        findings.push(Finding::new(what, Health::Bad, format!("{further} more have the same problem")));
    }
    findings
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn class_of(machine: &Value) -> &str {
    machine["spec"]["class"]["name"].as_str().unwrap_or_default()
}

fn phase(machine: &Value) -> &str {
    machine["status"]["currentStatus"]["phase"].as_str().unwrap_or_default()
}

fn node_of(machine: &Value) -> Option<&str> {
    machine["metadata"]["labels"][label::NODE].as_str().filter(|node| !node.is_empty())
}

fn is_terminating(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().any(|present| present == finalizer)
}

#[cfg(test)]
#[path = "fleet_tests.rs"]
mod tests;
