//! One machine, its Node, its VM and one controller process as plain values, for the property of the machine's life
//! (`lifecycle_property`): no task, no clock, no JSON API; a history costs microseconds.
//!
//! The decisions and the memory are the real ones; stores, API server and cloud are played here. The cloud makes a second VM
//! when it is asked for one that exists, and answers `Aborted` while a call of an earlier process still runs.

mod effects;
mod process;

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::Node,
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use kube::ResourceExt;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::{
    act::remember,
    creation_outcome::AskedBefore,
    decide::decide,
    lifecycle_property::Sabotage,
    memory::{Memory, Pass},
    node_ailments::Sight,
    node_ownership::{Claim, Owner, owner, provider_id},
    observation::{
        Answer, Call, ClassState, Force, Freeze, LastGood, Namesake, NodeSource, NodeView, Observation, Permit,
        Silence, Trouble, force_deletion,
    },
    observe::{ailments, conditions_differ_since, first_seen_deleting, vm_check},
    plan::{Effect, Next, Plan, VersionGuard},
    telling::{SAID_AFTER, told_reason},
    testing::{at, condition, machine, node, seen},
};
use machine_api::{
    names::{annotation, finalizer, label, machine_condition, taint},
    v1alpha1::{Machine, MachinePhase},
};
use machine_driver::{Code, CreatedVm, DeletedVm, SameInstance, Status, VmIdentity, same_instance::by_last_segment};

/// What somebody else does, or what simply happens.
#[derive(Clone, Copy, Debug)]
pub enum Happening {
    /// The controller looks at the machine.
    Look,
    /// The watch delivers what it has.
    Deliver,
    /// So many seconds pass.
    Wait(i64),
    /// The controller dies and starts anew.
    Restart,
    /// Somebody deletes the machine, or its Node.
    DeleteMachine,
    DeleteNode,
    /// The VM's kubelet registers, or reports something else than before.
    Join,
    Flap,
    /// The VM is gone, or comes back never.
    VmVanishes,
    /// The class goes, or comes.
    Class,
    /// The API servers can't be reached, or can again.
    Freeze,
    /// A label of an in-place update, or of force, comes.
    Candidate,
    Selected,
    Result,
    ForceDeletion,
}

/// The process: what it has in memory and what it believes to see.
struct Process {
    memory: Memory,
    machine: Option<Arc<Machine>>,
    node: Option<Arc<Node>>,
    node_vanished: bool,
    /// When it wants to look again, if it does.
    wake: Option<i64>,
}

/// A driver call that runs in the cloud.
#[derive(Clone, Copy, Debug)]
struct Running {
    call: Call,
    ends: i64,
    /// Whether the process that asked still waits for the answer.
    is_awaited: bool,
}

/// How the last initialisation of the VM went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Initialisation {
    Fine,
    Failed,
}

/// How the kubelet registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registration {
    /// With the label that names the machine.
    NamesMachine,
    /// Without it.
    Bare,
}

/// Whether the machine ever had the Node on its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Never,
    Once,
}

/// Whether the API server answered when the Node was looked for last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastLook {
    Answered,
    InVain,
}

/// A machine and all around it.
pub struct World {
    random: ChaCha8Rng,
    pub now: i64,
    machine: Option<Arc<Machine>>,
    version: u64,
    node: Option<Arc<Node>>,
    vms: u32,
    call: Option<Running>,
    class: ClassState,
    freeze: Freeze,
    pods: u32,
    node_was_deleted: bool,
    delete_was_answered: bool,
    registration: Registration,
    link: Link,
    last_look: LastLook,
    initialisation: Initialisation,
    process: Process,
    base: Observation,
    /// Percent of writes and calls that go wrong.
    faults: u32,
    sabotage: Sabotage,
    /// What is wrong, once something is.
    pub violation: Option<String>,
    /// The rule that passes end with since a time, while they do nothing and nobody changes the machine.
    still: Option<(&'static str, i64)>,
    /// Passes so far.
    pub passes: u64,
    /// Writes that reached an API server.
    pub writes: u64,
    /// Whether what happens is printed.
    pub trace: bool,
}

enum Acted {
    Done,
    Void,
    Trouble(Trouble),
    Failed,
    Crashed,
}

/// The VM as the driver names it; its Node names it as the cloud's controller manager does.
const VM: &str = "cloud:///n";

impl World {
    /// A machine that was just made, in a world of its own.
    pub fn new(seed: u64, sabotage: Sabotage) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut first = machine();
        if random.random_bool(0.5) {
            first.metadata.finalizers = None;
        }
        if random.random_bool(0.5) {
            let owner = OwnerReference { controller: Some(true), uid: "set".to_owned(), ..Default::default() };
            first.metadata.owner_references = Some(vec![owner]);
        }
        if random.random_bool(0.2) {
            let expiry = Time(at(1_000_000));
            first.status.current_status.preserve_expiry_time = Some(expiry);
            first.annotations_mut().insert(annotation::PRESERVE.to_owned(), "now".to_owned());
        }
        let old_node = random.random_bool(0.05).then(|| {
            let mut old = node(vec![condition("Ready", "True")]);
            old.metadata.finalizers = None;
            old.metadata.labels = None;
            old.spec.get_or_insert_default().provider_id = Some("cloud:///old".to_owned());
            Arc::new(old)
        });
        let machine = Some(Arc::new(first));
        let base = seen(super::testing::machine(), 0);
        let mut world = Self {
            now: 0,
            version: 1,
            node: old_node,
            vms: 0,
            call: None,
            class: ClassState::Usable,
            freeze: Freeze::Flowing,
            pods: random.random_range(0..3),
            node_was_deleted: false,
            delete_was_answered: false,
            registration: if seed.is_multiple_of(3) { Registration::NamesMachine } else { Registration::Bare },
            link: Link::Never,
            last_look: LastLook::Answered,
            initialisation: Initialisation::Fine,
            process: Process {
                memory: Memory::new("uid-1".to_owned(), at(0), AskedBefore::Nothing),
                machine: None,
                node: None,
                node_vanished: false,
                wake: Some(0),
            },
            base,
            faults: random.random_range(0..30),
            sabotage,
            violation: None,
            still: None,
            passes: 0,
            writes: 0,
            trace: false,
            machine,
            random,
        };
        world.deliver();
        world
    }

    /// The machine as the API server has it.
    pub fn machine(&self) -> Option<&Machine> {
        self.machine.as_deref()
    }

    /// VMs of the machine's name.
    pub fn vms(&self) -> u32 {
        self.vms
    }

    /// What is wrong with the machine's Node once the machine is gone: it should be gone, too, if anybody could know that
    /// it is the machine's.
    pub fn node_left(&self) -> Option<&'static str> {
        let node = self.node.as_deref().filter(|node| is_of_the_vm(node))?;
        let is_named = node.labels().get(label::MACHINE_NAME).map(String::as_str) == Some("m-abcde");
        if super::node_steps::has_node_finalizer(node) {
            Some("our finalizer stays on the Node of a machine that is gone")
        } else if (self.link == Link::Once || is_named) && self.last_look == LastLook::Answered {
            Some("the Node of a machine that is gone is left behind")
        } else {
            None
        }
    }

    fn wrong(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    /// Lets something happen that fits the moment.
    pub fn next(&mut self) {
        let happening = match self.random.random_range(0..100) {
            0..40 => Happening::Look,
            40..50 => Happening::Deliver,
            50..62 => Happening::Wait([1, 6, 61, 190, 650, 1300][self.random.random_range(0..6)]),
            62..67 => Happening::Restart,
            67..70 => Happening::DeleteMachine,
            70..71 => Happening::DeleteNode,
            71..83 => Happening::Join,
            83..87 => Happening::Flap,
            87..88 => Happening::VmVanishes,
            88..90 => Happening::Class,
            90..92 => Happening::Freeze,
            92..94 => Happening::Candidate,
            94..96 => Happening::Selected,
            96..98 => Happening::Result,
            _ => Happening::ForceDeletion,
        };
        self.happen(happening);
    }

    /// Lets this happen.
    pub fn happen(&mut self, happening: Happening) {
        if self.trace {
            println!("{:>7} s: {happening:?}", self.now);
        }
        match happening {
            Happening::Look => self.look(),
            Happening::Deliver => self.deliver(),
            Happening::Wait(seconds) => self.wait(seconds),
            Happening::Restart => self.restart(),
            Happening::DeleteMachine => self.delete_machine(),
            Happening::DeleteNode => self.delete_node(),
            Happening::Join => self.join(),
            Happening::Flap => self.flap(),
            Happening::VmVanishes => self.vms = 0,
            Happening::Class => {
                self.class = if self.class == ClassState::Usable { ClassState::Absent } else { ClassState::Usable };
            }
            Happening::Freeze => {
                self.freeze = if self.freeze == Freeze::Frozen { Freeze::Flowing } else { Freeze::Frozen };
            }
            Happening::Candidate => self.label_node(label::CANDIDATE_FOR_UPDATE, "true"),
            Happening::Selected => self.label_node(label::SELECTED_FOR_UPDATE, "true"),
            Happening::Result => {
                let result = if self.chance(70) { "successful" } else { "failed" };
                self.label_node(label::UPDATE_RESULT, result);
            }
            Happening::ForceDeletion => {
                self.change_machine(|machine| {
                    drop(machine.labels_mut().insert(label::FORCE_DELETION.to_owned(), "true".to_owned()));
                });
            }
        }
    }

    /// From here on nothing goes wrong any more, and what was broken is whole.
    pub fn heal(&mut self) {
        self.faults = 0;
        self.class = ClassState::Usable;
        self.freeze = Freeze::Flowing;
        self.deliver();
    }

    /// Goes on until nothing more happens by itself: answers arrive, deadlines pass, kubelets join, watches deliver.
    pub fn settle(&mut self) {
        for _ in 0..200 {
            if self.violation.is_some() || self.machine.is_none() {
                return;
            }
            self.join();
            self.ready();
            self.deliver();
            self.look();
            let call = self.call.filter(|running| running.is_awaited).map(|running| running.ends);
            if let Some(next) = [call, self.process.wake].into_iter().flatten().min() {
                self.wait((next - self.now).max(0));
            } else if self.call.is_some() {
                self.wait(1300);
            } else {
                return;
            }
        }
        let left = self.machine.as_ref().map(|machine| machine.status.last_operation.description.clone());
        self.wrong(format!("the machine never comes to rest: {left:?}"));
    }

    fn wait(&mut self, seconds: i64) {
        self.now += seconds;
        if let Some(running) = self.call.filter(|running| running.ends <= self.now) {
            self.call = None;
            let answer = self.perform(running.call);
            if running.is_awaited {
                self.process.memory.learn(answer, at(self.now));
                self.process.wake = Some(self.now);
            }
        }
    }

    /// What a call comes to, and what of it is heard.
    fn perform(&mut self, call: Call) -> Answer {
        let broken = self.chance(self.faults);
        let happens = !broken || self.chance(50);
        let lost = || Status::new(if happens { Code::DeadlineExceeded } else { Code::Unavailable }, "no");
        let identity = VmIdentity { provider_id: VM.to_owned(), node_name: "n".to_owned(), addresses: Vec::new() };
        if call == Call::Initialize {
            self.initialisation = if broken { Initialisation::Failed } else { Initialisation::Fine };
        }
        match call {
            Call::Create => {
                if happens {
                    self.vms += 1;
                    if self.vms > 1 {
                        self.wrong("a second VM was made");
                    }
                }
                Answer::Created(if broken {
                    Err(lost())
                } else {
                    Ok(CreatedVm { vm: identity, last_known_state: None })
                })
            }
            Call::Status if broken => Answer::Status(Err(lost())),
            Call::Status if self.vms == 0 => Answer::Status(Err(Status::new(Code::NotFound, "no VM"))),
            Call::Status => Answer::Status(Ok(identity)),
            Call::Initialize if broken => Answer::Initialized(Err(lost())),
            Call::Initialize => Answer::Initialized(Ok(VmIdentity::default())),
            Call::Delete | Call::DeleteStale => {
                let was_there = self.vms > 0;
                if happens {
                    self.vms = 0;
                }
                let answer = match (broken, was_there) {
                    (true, _) => Err(lost()),
                    (false, false) => Err(Status::new(Code::NotFound, "no VM")),
                    (false, true) => Ok(DeletedVm::default()),
                };
                if call == Call::Delete {
                    self.delete_was_answered |= !broken;
                    Answer::Deleted(answer)
                } else {
                    Answer::DeletedStale(answer)
                }
            }
        }
    }

    fn deliver(&mut self) {
        let had_node = self.process.node.is_some();
        self.process.machine.clone_from(&self.machine);
        self.process.node.clone_from(&self.node);
        self.process.node_vanished = (self.process.node_vanished || had_node) && self.node.is_none();
        self.process.wake.get_or_insert(self.now);
    }

    fn restart(&mut self) {
        if let Some(running) = &mut self.call {
            running.is_awaited = false;
        }
        self.still = None;
        self.process = Process {
            memory: Memory::new("uid-1".to_owned(), at(self.now), AskedBefore::Perhaps),
            machine: None,
            node: None,
            node_vanished: false,
            wake: Some(self.now),
        };
        self.deliver();
    }

    fn change_machine(&mut self, change: impl FnOnce(&mut Machine)) {
        let Some(machine) = &mut self.machine else { return };
        let machine = Arc::make_mut(machine);
        change(machine);
        if machine.labels().contains_key(label::NODE) {
            self.link = Link::Once;
        }
        self.still = None;
        self.version += 1;
        machine.metadata.resource_version = Some(self.version.to_string());
        if machine.metadata.deletion_timestamp.is_some() && machine.finalizers().is_empty() {
            self.machine = None;
            if self.vms > 0 || self.call.is_some_and(|running| running.call == Call::Create) {
                self.wrong("the machine is gone and its VM is not");
            }
        }
    }

    pub fn delete_machine(&mut self) {
        let now = at(self.now);
        self.change_machine(|machine| {
            machine.metadata.deletion_timestamp.get_or_insert(Time(now));
            machine.metadata.generation = machine.metadata.generation.map(|generation| generation + 1);
        });
    }

    fn delete_node(&mut self) {
        let Some(node) = &mut self.node else { return };
        self.node_was_deleted = true;
        let node = Arc::make_mut(node);
        node.metadata.deletion_timestamp.get_or_insert(Time(at(self.now)));
        if node.finalizers().is_empty() {
            self.node = None;
        }
    }

    fn join(&mut self) {
        if self.vms > 0 && self.node.is_none() {
            let mut joined = node(vec![condition("Ready", "True")]);
            joined.metadata.finalizers = None;
            joined.metadata.uid = Some(format!("node-{}-{}", self.now, self.passes));
            // Where user data hands the name on, the kubelet registers with it.
            if self.registration == Registration::Bare {
                joined.metadata.labels = None;
            }
            self.node = Some(Arc::new(joined));
        }
    }

    fn set_ready(&mut self, status: &str) {
        let now = at(self.now);
        let Some(node) = &mut self.node else { return };
        let conditions = Arc::make_mut(node).status.get_or_insert_default().conditions.get_or_insert_default();
        if let Some(ready) =
            conditions.iter_mut().find(|condition| condition.type_ == "Ready" && condition.status != status)
        {
            ready.status = status.to_owned();
            ready.last_transition_time = Some(Time(now));
        }
    }

    fn flap(&mut self) {
        let status = if self.chance(50) { "True" } else { "Unknown" };
        self.set_ready(status);
    }

    /// The kubelet reports as long as its VM lives.
    fn ready(&mut self) {
        let is_ours = self.node.as_ref().is_some_and(|node| is_of_the_vm(node));
        self.set_ready(if self.vms > 0 || !is_ours { "True" } else { "Unknown" });
    }

    fn label_node(&mut self, key: &str, value: &str) {
        if let Some(node) = &mut self.node {
            Arc::make_mut(node).labels_mut().insert(key.to_owned(), value.to_owned());
        }
    }
}

/// Whether the view shows the very Node that is there, and not one of its name that was there before.
fn is_the_same(one: Option<&Node>, other: Option<&Node>) -> bool {
    one.and_then(|node| node.metadata.uid.as_ref()) == other.and_then(|node| node.metadata.uid.as_ref())
}

fn same_instance(id: &str, node: &Node) -> SameInstance {
    by_last_segment(id, provider_id(node))
}

fn is_of_the_vm(node: &Node) -> bool {
    same_instance(VM, node) == SameInstance::Same
}
