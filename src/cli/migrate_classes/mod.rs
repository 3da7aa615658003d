//! `mcm migrate-classes`: makes `MachineClass` objects of the classes of the kinds that each provider once had, such as `AWSMachineClass`, and lets
//! machines, sets and deployments name them.
//!
//! [`table`] has the fields of the old kinds, [`convert`] makes a class, [`plan`] decides the writes, [`cluster`] carries them out. All state is
//! in the cluster, so that a run after an interruption does the rest. With `-f` the command converts manifests and needs no cluster.
//!
//! The migration does what the machine controllers of the Go original once did by themselves (spec/providers §1.7).

pub mod cluster;
pub mod convert;
pub mod plan;
pub mod table;

use std::{
    collections::BTreeSet,
    io::{self, Write},
    path::PathBuf,
};

use clap::Args;
use kube_values::{field::Findings, json::Json};
use machine_api::{
    kind::Kind,
    names::{self, MACHINE_CLASS_KIND},
    validation::{Coverage, ProviderSchema, Providers},
};
use serde_json::{Value, json};

use self::{
    cluster::Namespace,
    convert::convert,
    plan::{Judgement, Plan, places, plan},
    table::OldKind,
};
use super::{
    Failure,
    answer::answer,
    documents::{Document, Format, list_items, write_documents},
    kubeconfig::{ClusterArgs, run_interruptibly},
    namespace_name, offline,
    output::OutputFormat,
    validate::{self, ValidateOptions},
};
use crate::{DriverSet, manager::registered_drivers::RegisteredDrivers};

/// Flags of `mcm migrate-classes`.
#[derive(Clone, Debug, Args)]
pub struct MigrateClassesArgs {
    /// File or folder with manifests, or - for the standard input; may be repeated. The command prints the converted manifests and
    /// reads no cluster
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-", conflicts_with_all = ["namespace", "yes", "dry_run", "kubeconfig", "context"])]
    pub files: Vec<PathBuf>,
    /// Namespace of the machine objects; unset means the namespace of the kubeconfig's context
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace_name)]
    pub namespace: Option<String>,
    /// Providers that external drivers of the manager serve, comma separated; their classes are not refused because the cloud exists no
    /// more
    #[arg(long, value_delimiter = ',', value_name = "PROVIDERS")]
    pub external_providers: Vec<String>,
    /// Print the new classes and what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Format of the printed classes
    #[arg(short, long, default_value = "yaml", value_name = "FORMAT")]
    pub output: OutputFormat,
    /// The cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Converts manifests, or migrates the classes of a namespace.
///
/// # Errors
/// When a class can't be converted or would be refused, when a manager is running, without confirmation, or when a call fails. Finished
/// writes stay, and the next run does the rest.
pub fn run(args: &MigrateClassesArgs, drivers: &DriverSet, out: &mut dyn Write) -> Result<(), Failure> {
    let admission = Admission::new(drivers, &args.external_providers)?;
    if args.files.is_empty() {
        return run_interruptibly(
            migrate(args, &admission, out),
            "interrupted; nothing is lost, run the same command again to go on (the Leases are free after 15 s)",
        );
    }
    let (documents, unreadable) = validate::read(&args.files, &mut io::stdin().lock());
    if !unreadable.is_empty() {
        return Err(Failure::Input(unreadable.join("\n")));
    }
    let (converted, notes) = manifests(&documents, &admission)?;
    for note in &notes {
        eprintln!("note: {note}");
    }
    print(&converted, args.output, out)
}

async fn migrate(args: &MigrateClassesArgs, admission: &Admission, out: &mut dyn Write) -> Result<(), Failure> {
    let client = args.cluster.connect().await?;
    let name = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let namespace = Namespace::new(client, name.clone());
    let judge = |class: &Value| admission.judge(class);
    let intended = plan(&namespace.observe().await?, &judge);
    report(&intended, args.dry_run);
    if !intended.obstacles.is_empty() {
        return Err(Failure::Input(format!("{}\nnothing was done", intended.obstacles.join("\n"))));
    }
    if args.dry_run {
        let classes: Vec<Value> = intended.new_classes().cloned().collect();
        return if classes.is_empty() { Ok(()) } else { print(&classes, args.output, out) };
    }
    if intended.next_stage().is_none() {
        writeln!(out, "nothing is left to migrate in namespace {name}")?;
        return Ok(());
    }
    if !args.yes {
        confirm(&name, out).await?;
    }
    namespace.migrate(&judge, out).await?;
    writeln!(
        out,
        "done; the old classes are still there, and nothing names them: delete them when no program reads them any more"
    )?;
    Ok(())
}

/// Writes to standard error what would be or will be done.
fn report(plan: &Plan, is_dry: bool) {
    let verb = if is_dry { "would" } else { "will" };
    for step in plan.steps() {
        eprintln!("{verb} {step}");
    }
    plan.notes.iter().for_each(|note| eprintln!("note: {note}"));
    plan.dangling.iter().for_each(|dangling| eprintln!("left: {dangling}"));
    if plan.next_stage().is_none() {
        eprintln!("nothing is left to migrate");
    }
}

fn print(values: &[Value], format: OutputFormat, out: &mut dyn Write) -> Result<(), Failure> {
    let format = match format {
        OutputFormat::Yaml => Format::Yaml,
        OutputFormat::Json => Format::Json,
    };
    Ok(out.write_all(write_documents(values, format).map_err(Failure::run)?.as_bytes())?)
}

/// Asks for the namespace's name, because a user does not type it by accident.
async fn confirm(namespace: &str, out: &mut dyn Write) -> Result<(), Failure> {
    write!(out, "type the namespace's name ({namespace}) to go on: ")?;
    out.flush()?;
    if answer().await? == namespace {
        Ok(())
    } else {
        Err(Failure::Input("not confirmed; nothing was done (--yes goes on without asking)".to_owned()))
    }
}

/// The converted objects of all documents, and notes for the user. Objects that name no old class are not changed.
///
/// # Errors
/// When a class can't be converted without loss, or would be refused; the text has each reason.
pub fn manifests(documents: &[Document], admission: &Admission) -> Result<(Vec<Value>, Vec<String>), Failure> {
    let mut work = Manifests { admission, notes: Vec::new(), obstacles: Vec::new(), created: BTreeSet::new() };
    let converted: Vec<Value> = documents.iter().map(|document| work.object(&document.value)).collect();
    if work.obstacles.is_empty() { Ok((converted, work.notes)) } else { Err(Failure::Input(work.obstacles.join("\n"))) }
}

/// The conversion of manifests.
struct Manifests<'a> {
    admission: &'a Admission,
    notes: Vec<String>,
    obstacles: Vec<String>,
    /// The new classes, by namespace and name.
    created: BTreeSet<(String, String)>,
}

impl Manifests<'_> {
    fn object(&mut self, object: &Value) -> Value {
        let mut new = object.clone();
        if let Some(items) = list_items(object) {
            new["items"] = items.iter().map(|item| self.object(&with_type(item, object))).collect();
            // The kinds of the objects in a list of an old kind are no longer the kind of the list.
            if old_kind(object, "List").is_some() {
                new["apiVersion"] = json!("v1");
                new["kind"] = json!("List");
            }
            return new;
        }
        if let Some(kind) = old_kind(object, "") {
            return self.class(kind, object);
        }
        refer(&mut new);
        new
    }

    fn class(&mut self, kind: OldKind, object: &Value) -> Value {
        let converted = convert(kind, object);
        let key = plan::key_of(&converted.class);
        let what = format!("{} {key}", kind.table().kind);
        // The API server gives a name to a class without one.
        if !key.name.is_empty() && !self.created.insert((key.namespace, key.name)) {
            self.obstacles.push(format!("{what}: another old class has the same name; rename one of them"));
        }
        for note in converted.notes {
            let list = if note.is_obstacle() { &mut self.obstacles } else { &mut self.notes };
            list.push(format!("{what}: {note}"));
        }
        let Judgement { denials, warnings } = self.admission.judge(&converted.class);
        let refused = |denial| format!("{what}: its MachineClass would be refused: {denial}");
        self.obstacles.extend(denials.into_iter().map(refused));
        self.notes.extend(warnings.into_iter().map(|warning| format!("{what}: {warning}")));
        converted.class
    }
}

/// The old kind of an object, whose `kind` ends with this suffix after the name of the old kind.
fn old_kind(object: &Value, suffix: &str) -> Option<OldKind> {
    let (group, _) = object["apiVersion"].as_str()?.split_once('/')?;
    let kind = object["kind"].as_str()?.strip_suffix(suffix)?;
    OldKind::from_name(kind).filter(|_| group == names::GROUP)
}

/// An item of a list with its kind and version. The API server leaves both out in lists of one kind.
fn with_type(item: &Value, list: &Value) -> Value {
    let mut typed = item.clone();
    let Some(version) = list["apiVersion"].as_str().filter(|version| is_ours(version)) else { return typed };
    let kind = list["kind"].as_str().and_then(|kind| kind.strip_suffix("List"));
    let (Some(kind), Some(fields)) = (kind, typed.as_object_mut()) else { return typed };
    fields.entry("apiVersion").or_insert_with(|| json!(version));
    fields.entry("kind").or_insert_with(|| json!(kind));
    typed
}

/// Whether the `apiVersion` is of our group, in any version.
fn is_ours(version: &str) -> bool {
    version.split_once('/').is_some_and(|(group, _)| group == names::GROUP)
}

/// Lets a machine, set or deployment of any version name the new kind. The field is `class` in v1alpha1 and `classRef` in v1beta1.
fn refer(object: &mut Value) {
    let is_ours = object["apiVersion"].as_str().is_some_and(is_ours);
    let Some(kind) = object["kind"].as_str().and_then(Kind::from_name).filter(|_| is_ours) else { return };
    for place in places(kind).iter().flat_map(|place| [(*place).to_owned(), format!("{place}Ref")]) {
        let named = object.pointer_mut(&place).and_then(|class| class.get_mut("kind"));
        if let Some(named) = named.filter(|named| named.as_str().and_then(OldKind::from_name).is_some()) {
            *named = json!(MACHINE_CLASS_KIND);
        }
    }
}

/// The rules of admission for new classes.
pub struct Admission {
    drivers: RegisteredDrivers,
    external: Vec<String>,
}

impl Admission {
    /// The rules of these drivers. `external` are providers that external drivers of the manager serve.
    ///
    /// # Errors
    /// When the virtual cloud can't be made.
    pub fn new(drivers: &DriverSet, external: &[String]) -> Result<Self, Failure> {
        let drivers = RegisteredDrivers::new(offline::known_drivers(drivers)?, Coverage::Some);
        Ok(Self { drivers, external: external.to_vec() })
    }

    /// What admission says about a new class, as `mcm validate` does.
    pub fn judge(&self, class: &Value) -> Judgement {
        let document = Document { source: "class".to_owned(), index: 0, value: class.clone() };
        let options = ValidateOptions { namespace: "default".to_owned(), ..ValidateOptions::default() };
        let report = validate::check(&[document], &[], Vec::new(), &options, self);
        let mut judgement = Judgement::default();
        for finding in report.objects.iter().flat_map(|object| object.findings.iter()) {
            let list = if finding.denies() { &mut judgement.denials } else { &mut judgement.warnings };
            list.push(finding.warning());
        }
        judgement
    }
}

impl Providers for Admission {
    fn names(&self) -> Vec<&str> {
        self.drivers.names().into_iter().chain(self.external.iter().map(String::as_str)).collect()
    }

    fn coverage(&self) -> Coverage {
        Coverage::Some
    }

    fn serves(&self, provider: &str) -> bool {
        self.external.iter().any(|served| served == provider) || self.drivers.serves(provider)
    }

    fn schema(&self, provider: &str) -> Option<std::sync::Arc<ProviderSchema>> {
        self.drivers.schema(provider)
    }

    fn check(&self, provider: &str, class: &Json<'_>, found: &mut Findings) {
        self.drivers.check(provider, class, found);
    }
}

#[cfg(test)]
mod tests;
