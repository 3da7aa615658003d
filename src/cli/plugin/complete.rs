//! `__complete WORD…`: what can follow on a command line of the plugin. kubectl asks for it through the executable `kubectl_complete-mcm`.
//!
//! The protocol is that of Cobra's `__complete`: a candidate per line, its description after a tab, and a directive in the last line. Commands,
//! flags and their values are those of the command line's own description. Names come from the cluster within [`WITHIN`], or not at all.
//! [`Line`] is pure. Source: spec/packaging §5.1, PK-079.

use std::{collections::BTreeSet, fmt::Debug, io::Write, sync::mpsc, time::Duration};

use clap::{Arg, Args, Command, CommandFactory, ValueHint};
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Namespace};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams, config::Kubeconfig, core::PartialObjectMeta};
use serde::de::DeserializeOwned;

use super::{
    as_plugin,
    session::{Session, SessionArgs},
    subject::Named,
};
use crate::cli::{Cli, Failure, namespace_name};
use machine_api::{
    names::label,
    v1alpha1::{Machine, MachineDeployment, MachineSet},
};

/// The name of the command.
pub const COMMAND: &str = "__complete";
/// How long the cluster may take to answer.
const WITHIN: Duration = Duration::from_millis(500);
/// Names of a kind that are read.
const READ: u32 = 500;

/// The words of a command line.
#[derive(Clone, Debug, Args)]
#[command(disable_help_flag = true)]
pub struct CompleteArgs {
    /// The words after `kubectl mcm`; the last is the beginning of the next word
    #[arg(value_name = "WORD", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// What the next word may be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expected {
    /// One of these words.
    Words(Vec<Candidate>),
    /// The name of an object in the cluster.
    Objects(Objects),
    /// The name of a namespace.
    Namespaces,
    /// The name of a context of the kubeconfig.
    Contexts,
    /// The path of a file.
    Files,
    /// Anything.
    Nothing,
}

/// The objects whose names can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Objects {
    /// Objects of every kind.
    Any,
    /// Machines, also by their Nodes.
    Machines,
    /// Deployments.
    Deployments,
}

/// A word that can follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Candidate {
    word: String,
    description: String,
}

impl Candidate {
    fn plain(word: impl Into<String>) -> Self {
        Self { word: word.into(), description: String::new() }
    }
}

/// What can follow after the words of a command line.
#[derive(Debug)]
struct Line {
    expected: Expected,
    /// The beginning of the last word that stays: `--for=`, or nothing.
    before: String,
    /// The rest of the last word, with which a candidate must begin.
    partial: String,
    /// The cluster of the command line.
    session: SessionArgs,
}

impl Line {
    /// Reads the words. The last is the beginning of the next word.
    fn read(command: &Command, words: &[String]) -> Self {
        let (partial, words) = words.split_last().map_or(("", [].as_slice()), |(last, words)| (last.as_str(), words));
        let mut walk = Walk::begin(command);
        for word in words {
            walk.step(word);
        }
        let (flag, value) = partial.split_once('=').unwrap_or((partial, ""));
        let (expected, before, partial) = match (walk.open, walk.flag(flag)) {
            (Some(open), _) => (expected_value(open), String::new(), partial),
            (None, Some(named)) if partial.contains('=') => (expected_value(named), format!("{flag}="), value),
            (None, _) if partial.starts_with('-') && !walk.is_past_flags => (walk.flags(), String::new(), partial),
            (None, _) => (walk.next_word(), String::new(), partial),
        };
        Self { expected, before, partial: partial.to_owned(), session: walk.session }
    }
}

/// A walk through the words of a command line.
struct Walk<'a> {
    /// The command so far.
    here: &'a Command,
    /// A flag whose value is the next word.
    open: Option<&'a Arg>,
    /// Words so far that are neither commands nor flags.
    places: usize,
    /// Whether `--` came.
    is_past_flags: bool,
    session: SessionArgs,
}

impl<'a> Walk<'a> {
    fn begin(command: &'a Command) -> Self {
        Self { here: command, open: None, places: 0, is_past_flags: false, session: SessionArgs::default() }
    }

    fn step(&mut self, word: &str) {
        if let Some(flag) = self.open.take() {
            return self.keep(flag, word);
        }
        if word == "--" && !self.is_past_flags {
            self.is_past_flags = true;
        } else if word.len() > 1 && word.starts_with('-') && !self.is_past_flags {
            let (name, value) = split_flag(word);
            match (self.flag(name), value) {
                (Some(flag), Some(value)) => self.keep(flag, value),
                (Some(flag), None) if takes_next_word(flag) => self.open = Some(flag),
                _ => {}
            }
        } else if let Some(command) = self.here.find_subcommand(word).filter(|_| self.places == 0) {
            self.here = command;
        } else {
            self.places += 1;
        }
    }

    /// The flag that a word names: `--namespace` or `-n`.
    fn flag(&self, word: &str) -> Option<&'a Arg> {
        let mut flags = self.here.get_arguments();
        if let Some(long) = word.strip_prefix("--") {
            return flags.find(|flag| flag.get_long() == Some(long));
        }
        let short = word.strip_prefix('-')?.chars().next()?;
        flags.find(|flag| flag.get_short() == Some(short))
    }

    /// Keeps the value of a flag that selects the cluster.
    fn keep(&mut self, flag: &Arg, value: &str) {
        let value = value.to_owned();
        match flag.get_long() {
            Some("namespace") => self.session.namespace = namespace_name(&value).ok(),
            Some("kubeconfig") => self.session.cluster.kubeconfig = Some(value.into()),
            Some("context") => self.session.cluster.context = Some(value),
            Some("as") => self.session.user.user = Some(value),
            Some("as-group") => self.session.user.groups.push(value),
            _ => {}
        }
    }

    fn flags(&self) -> Expected {
        let shown = self.here.get_arguments().filter(|flag| !flag.is_hide_set());
        let candidate = |flag: &Arg| {
            let description = flag.get_help().map(|help| first_line(&help.to_string())).unwrap_or_default();
            Some(Candidate { word: format!("--{}", flag.get_long()?), description })
        };
        Expected::Words(shown.filter_map(candidate).collect())
    }

    /// A subcommand, or the next argument.
    fn next_word(&self) -> Expected {
        if self.here.has_subcommands() && self.places == 0 {
            let shown = self.here.get_subcommands().filter(|command| !command.is_hide_set());
            let candidate = |command: &Command| {
                let description = command.get_about().map(|about| first_line(&about.to_string())).unwrap_or_default();
                Candidate { word: command.get_name().to_owned(), description }
            };
            return Expected::Words(shown.map(candidate).collect());
        }
        let places: Vec<&Arg> = self.here.get_positionals().collect();
        let repeats = |place: &&&Arg| place.get_num_args().is_some_and(|range| range.max_values() > 1);
        let next = places.get(self.places).or_else(|| places.last().filter(repeats));
        next.map_or(Expected::Nothing, |place| expected_value(place))
    }
}

/// Name and value of a flag: `--for=gone`, `-n=x`, `-nx`.
fn split_flag(word: &str) -> (&str, Option<&str>) {
    if let Some((name, value)) = word.split_once('=') {
        return (name, Some(value));
    }
    match word.char_indices().nth(2) {
        Some((end, _)) if !word.starts_with("--") => (&word[..end], Some(&word[end..])),
        _ => (word, None),
    }
}

fn takes_next_word(flag: &Arg) -> bool {
    flag.get_action().takes_values() && !flag.is_require_equals_set()
}

/// What the value of a flag or of an argument may be.
fn expected_value(arg: &Arg) -> Expected {
    let known: Vec<Candidate> = arg
        .get_possible_values()
        .into_iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| Candidate {
            word: value.get_name().to_owned(),
            description: value.get_help().map(|help| first_line(&help.to_string())).unwrap_or_default(),
        })
        .collect();
    if !known.is_empty() {
        return Expected::Words(known);
    }
    if arg.get_value_hint() == ValueHint::AnyPath {
        return Expected::Files;
    }
    let name = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string).unwrap_or_default();
    match (arg.get_long(), name.as_str()) {
        (Some("namespace"), _) => Expected::Namespaces,
        (Some("context"), _) => Expected::Contexts,
        (None, "OBJECT") => Expected::Objects(Objects::Any),
        (None, "MACHINE" | "NODE|MACHINE") => Expected::Objects(Objects::Machines),
        (None, "DEPLOYMENT") => Expected::Objects(Objects::Deployments),
        _ => Expected::Nothing,
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// What kubectl does with the candidates: Cobra's `ShellCompDirective`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directive {
    /// It adds the names of files.
    Default = 0,
    /// It adds nothing.
    NoFiles = 4,
}

/// Prints the candidates.
///
/// # Errors
/// When the stream is closed.
pub fn run(args: &CompleteArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let mut command = as_plugin(Cli::command());
    command.build();
    let line = Line::read(&command, &args.words);
    let (candidates, directive) = match line.expected.clone() {
        Expected::Words(words) => (words, Directive::NoFiles),
        Expected::Files => (Vec::new(), Directive::Default),
        Expected::Nothing => (Vec::new(), Directive::NoFiles),
        Expected::Contexts => (contexts(&line.session), Directive::NoFiles),
        Expected::Namespaces => {
            let session = line.session.clone();
            (of_cluster(move || in_time(namespaces(&session))), Directive::NoFiles)
        }
        Expected::Objects(objects) => {
            let (session, partial) = (line.session.clone(), line.partial.clone());
            (of_cluster(move || in_time(names(&session, objects, &partial))), Directive::NoFiles)
        }
    };
    for Candidate { word, description } in candidates.iter().filter(|one| one.word.starts_with(&line.partial)) {
        let description = if description.is_empty() { String::new() } else { format!("\t{description}") };
        writeln!(out, "{}{word}{description}", line.before)?;
    }
    Ok(writeln!(out, ":{}", directive as u8)?)
}

/// The answer of the cluster, if it comes in time. The question runs in a thread of its own, because a credential plugin of the kubeconfig
/// may block.
fn of_cluster(ask: impl FnOnce() -> Option<Vec<String>> + Send + 'static) -> Vec<Candidate> {
    let (send, answer) = mpsc::channel();
    std::thread::spawn(move || send.send(ask()));
    let names = answer.recv_timeout(WITHIN).ok().flatten().unwrap_or_default();
    names.into_iter().map(Candidate::plain).collect()
}

fn in_time(ask: impl Future<Output = Option<Vec<String>>>) -> Option<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async { tokio::time::timeout(WITHIN, ask).await.ok().flatten() })
}

fn contexts(session: &SessionArgs) -> Vec<Candidate> {
    let read = match &session.cluster.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let contexts = read.map(|config| config.contexts).unwrap_or_default();
    contexts.into_iter().map(|context| Candidate::plain(context.name)).collect()
}

async fn namespaces(session: &SessionArgs) -> Option<Vec<String>> {
    let client = session.cluster.connect_as(&session.user).await.ok()?;
    let all = Api::<Namespace>::all(client).list_metadata(&ListParams::default().limit(READ)).await.ok()?;
    Some(all.items.iter().map(ResourceExt::name_any).collect())
}

/// The names of objects of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    machines: Vec<String>,
    nodes: Vec<String>,
    sets: Vec<String>,
    deployments: Vec<String>,
    /// The ids of VMs. They are long, so that they are read only after `vm/`.
    vms: Vec<String>,
}

impl Known {
    /// The names of a kind.
    fn of(&self, kind: Named) -> &[String] {
        match kind {
            Named::Machine => &self.machines,
            Named::Node => &self.nodes,
            Named::Set => &self.sets,
            Named::Deployment => &self.deployments,
            Named::Vm => &self.vms,
        }
    }
}

impl Objects {
    /// The kinds by which an object can be named.
    const fn kinds(self) -> &'static [Named] {
        match self {
            Self::Any => &[Named::Deployment, Named::Set, Named::Machine, Named::Node],
            Self::Machines => &[Named::Machine, Named::Node],
            Self::Deployments => &[Named::Deployment],
        }
    }

    /// Whether the beginning of a word names a VM, and a VM can stand for an object.
    fn is_by_vm(self, partial: &str) -> bool {
        let typed = partial.split_once('/').and_then(|(kind, _)| Named::from_spelling(kind));
        typed == Some(Named::Vm) && self != Self::Deployments
    }

    /// The candidates after the beginning of a word. Pure.
    fn candidates(self, known: &Known, partial: &str) -> Vec<String> {
        let kinds = self.kinds();
        if let Some((typed, _)) = partial.split_once('/') {
            let kind = Named::from_spelling(typed).filter(|kind| kinds.contains(kind) || self.is_by_vm(partial));
            return kind.map_or(&[][..], |kind| known.of(kind)).iter().map(|name| format!("{typed}/{name}")).collect();
        }
        let with_kind =
            kinds.iter().flat_map(|kind| known.of(*kind).iter().map(move |name| format!("{}/{name}", kind.as_str())));
        let alone = || kinds.iter().flat_map(|kind| known.of(*kind)).cloned().collect::<BTreeSet<String>>();
        match self {
            // Without a beginning, names alone would list every object twice.
            Self::Any if partial.is_empty() => with_kind.collect(),
            Self::Any => with_kind.chain(alone()).collect(),
            Self::Machines | Self::Deployments => known.of(kinds[0]).to_vec(),
        }
    }
}

async fn names(session: &SessionArgs, objects: Objects, partial: &str) -> Option<Vec<String>> {
    let session = Session::open(session).await.ok()?;
    let (client, namespace) = (&session.client, session.namespace.as_str());
    if objects.is_by_vm(partial) {
        let api: Api<Machine> = Api::namespaced(client.clone(), namespace);
        let machines = api.list(&ListParams::default().limit(READ)).await.ok()?;
        let ids = machines.items.into_iter().map(|machine| machine.spec.provider_id);
        let known = Known { vms: ids.filter(|id| !id.is_empty()).collect(), ..Known::default() };
        return Some(objects.candidates(&known, partial));
    }
    let wants = |kind: Named| objects.kinds().contains(&kind);
    let (machines, sets, deployments) = tokio::join!(
        metadata::<Machine>(client, namespace, wants(Named::Machine)),
        metadata::<MachineSet>(client, namespace, wants(Named::Set)),
        metadata::<MachineDeployment>(client, namespace, wants(Named::Deployment)),
    );
    let nodes = machines.iter().filter_map(|machine| machine.labels().get(label::NODE)).filter(|name| !name.is_empty());
    let known = Known {
        nodes: nodes.cloned().collect(),
        machines: machines.iter().map(ResourceExt::name_any).collect(),
        sets: sets.iter().map(ResourceExt::name_any).collect(),
        deployments: deployments.iter().map(ResourceExt::name_any).collect(),
        vms: Vec::new(),
    };
    Some(objects.candidates(&known, partial))
}

/// The metadata of the objects of a kind. None if they are not wanted, or can't be listed.
async fn metadata<K>(client: &Client, namespace: &str, is_wanted: bool) -> Vec<PartialObjectMeta<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    if !is_wanted {
        return Vec::new();
    }
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let listed = api.list_metadata(&ListParams::default().limit(READ)).await;
    listed.map(|list| list.items).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::Subcommand;
    use rstest::rstest;

    use super::*;

    fn line(words: &[&str]) -> Line {
        let mut command = as_plugin(Cli::command());
        command.build();
        Line::read(&command, &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    fn words(expected: &Expected) -> Vec<&str> {
        match expected {
            Expected::Words(words) => words.iter().map(|one| one.word.as_str()).collect(),
            other => panic!("no words: {other:?}"),
        }
    }

    #[test]
    fn pk_079_commands_flags_and_values_are_those_of_the_command_line() {
        let first = line(&[""]);
        for command in ["why", "tree", "rollout", "drain", "replace", "preserve", "top", "wait", "completion"] {
            assert!(words(&first.expected).contains(&command), "{command} in {first:?}");
        }
        assert!(!words(&first.expected).contains(&COMMAND));
        assert_eq!(words(&line(&["rollout", ""]).expected)[..2], ["status", "history"]);
        let flags = line(&["why", "web", "-"]);
        for flag in ["--namespace", "--context", "--output", "--color"] {
            assert!(words(&flags.expected).contains(&flag), "{flags:?}");
        }
        for value in [line(&["wait", "x", "--for", ""]), line(&["wait", "x", "--for="])] {
            assert_eq!(words(&value.expected), ["running", "gone", "complete"]);
        }
        let joined = line(&["wait", "x", "--for=go"]);
        assert_eq!((joined.before.as_str(), joined.partial.as_str()), ("--for=", "go"));
    }

    #[rstest]
    #[case::why(&["why", ""], Expected::Objects(Objects::Any))]
    #[case::a_flag_before(&["why", "-n", "x", "--color=never", "we"], Expected::Objects(Objects::Any))]
    #[case::a_flag_joined(&["why", "-nx", ""], Expected::Objects(Objects::Any))]
    #[case::only_one_object(&["why", "web", ""], Expected::Nothing)]
    #[case::a_deployment(&["rollout", "restart", ""], Expected::Objects(Objects::Deployments))]
    #[case::a_switch_takes_no_value(&["rollout", "restart", "--yes", ""], Expected::Objects(Objects::Deployments))]
    #[case::watch_takes_its_value_after_an_equals_sign(&["rollout", "status", "--watch", ""], Expected::Objects(Objects::Deployments))]
    #[case::several_machines(&["replace", "a", "b", ""], Expected::Objects(Objects::Machines))]
    #[case::after_two_dashes(&["replace", "--", "-"], Expected::Objects(Objects::Machines))]
    #[case::a_drain(&["drain", "plan", ""], Expected::Objects(Objects::Machines))]
    #[case::a_namespace(&["why", "-n", ""], Expected::Namespaces)]
    #[case::a_namespace_after_an_equals_sign(&["why", "--namespace="], Expected::Namespaces)]
    #[case::a_context(&["tree", "--context", ""], Expected::Contexts)]
    #[case::a_kubeconfig(&["tree", "--kubeconfig", ""], Expected::Files)]
    #[case::a_manifest(&["rollout", "plan", "web", "-f", ""], Expected::Files)]
    #[case::a_duration(&["wait", "x", "--timeout", ""], Expected::Nothing)]
    fn pk_079_the_next_word_is_known(#[case] words: &[&str], #[case] expected: Expected) {
        assert_eq!(line(words).expected, expected);
    }

    #[test]
    fn pk_079_every_argument_of_the_plugin_is_completed() {
        let mut command = super::super::PluginCommand::augment_subcommands(Command::new("plugin"));
        command.build();
        let mut all: Vec<&Command> = command.get_subcommands().collect();
        while let Some(one) = all.pop() {
            all.extend(one.get_subcommands());
            for place in one.get_positionals().filter(|_| !one.is_hide_set() && one.get_name() != "help") {
                let expected = expected_value(place);
                assert!(matches!(expected, Expected::Objects(_) | Expected::Words(_)), "{}: {place:?}", one.get_name());
            }
        }
    }

    #[test]
    fn pk_079_the_cluster_is_that_of_the_flags() {
        let session = line(&["why", "--context", "c", "-n=ns", "--as=alice", "--kubeconfig=/k", ""]).session;
        assert_eq!((session.namespace.as_deref(), session.user.user.as_deref()), (Some("ns"), Some("alice")));
        assert_eq!(session.cluster.context.as_deref(), Some("c"));
        assert_eq!(session.cluster.kubeconfig.as_deref(), Some(std::path::Path::new("/k")));
    }

    #[test]
    fn pk_079_names_have_the_form_that_was_begun() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let known = Known {
            machines: names(&["web-1-a"]),
            nodes: names(&["web-1-a"]),
            sets: names(&["web-1"]),
            deployments: names(&["web"]),
            vms: names(&["virtual:///a"]),
        };
        let all = ["deployment/web", "set/web-1", "machine/web-1-a", "node/web-1-a"];
        assert_eq!(Objects::Any.candidates(&known, ""), all);
        assert_eq!(Objects::Any.candidates(&known, "we")[4..], ["web", "web-1", "web-1-a"]);
        assert_eq!(Objects::Any.candidates(&known, "mc/"), ["mc/web-1-a"]);
        assert_eq!(Objects::Machines.candidates(&known, ""), ["web-1-a"]);
        assert_eq!(Objects::Machines.candidates(&known, "no/w"), ["no/web-1-a"]);
        assert!(Objects::Machines.candidates(&known, "deployment/").is_empty(), "no machines");
        for objects in [Objects::Any, Objects::Machines] {
            assert_eq!(objects.candidates(&known, "vm/virtual:"), ["vm/virtual:///a"]);
        }
        assert!(Objects::Deployments.candidates(&known, "vm/").is_empty(), "no deployments");
        assert_eq!(Objects::Deployments.candidates(&known, "deploy/"), ["deploy/web"]);
    }
}
