//! `mcm validate`: checks manifests with the rules of admission, without a cluster.
//!
//! The defaults and rules of the webhooks run over every object of our kinds in the input. The other documents of the input replace
//! the caches ([`inventory`]), and `--old` turns a creation into an update. The command also makes the checks of an API server and of
//! kubectl: syntax of metadata, and unknown fields ([`unknown_fields`]).

pub mod ask;
mod inventory;
mod report;
mod unknown_fields;

use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use serde_json::Value;

pub use self::report::{ObjectReport, OutputFormat, Report};
use self::{
    inventory::{Identity, Inventory},
    unknown_fields::Schemas,
};
use super::documents::{Document, ObjectRef, parse_documents};
use kube_values::{
    field::{FieldPath, Findings},
    json::Json,
};
use machine_api::{
    defaulting::{DefaultingRequest, FinalizerDefault, default_patch},
    kind::{ApiVersion, Kind},
    names,
    validation::{
        Change, Policy, Providers, References, TYPE, User, ValidationRequest, controlling_owner,
        object_metadata_syntax, validate, validate_child,
    },
};
use machine_driver::Registry;

/// The value of `-f` for the standard input.
const STDIN: &str = "-";
/// Maximum size of one input in bytes. A pipe or a device may never end.
const LONGEST_INPUT: u64 = 256 << 20;
/// Extensions of the files that are read from a folder.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// The input of the command, and how to check it.
#[derive(Clone, Debug, Default)]
pub struct ValidateOptions {
    /// Files, folders, or `-`.
    pub files: Vec<PathBuf>,
    /// Stored objects. An object that is found here is checked as an update.
    pub old: Vec<PathBuf>,
    /// The user of the request; empty means no particular user.
    pub user: String,
    /// Namespace of objects without namespace.
    pub namespace: String,
    /// Profile, and the users that count as controllers.
    pub policy: Policy,
    /// Format of the report.
    pub output: OutputFormat,
}

/// Runs the command: reads the input, checks it, checks it with the providers of `asked` if there are any, and writes the report.
/// Returns the exit code: 0 when all objects would be admitted, 1 when one would not or when an input could not be read.
///
/// # Errors
/// When the report can't be written.
pub fn run(
    options: &ValidateOptions,
    providers: &dyn Providers,
    asked: Option<&Registry>,
    stdin: &mut dyn Read,
    out: &mut dyn Write,
) -> io::Result<u8> {
    let (documents, mut unreadable) = read(&options.files, stdin);
    let (old, unreadable_old) = read(&options.old, stdin);
    unreadable.extend(unreadable_old);
    let mut report = check(&documents, &old, unreadable, options, providers);
    if let Some(registry) = asked {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(ask::ask(&documents, &options.namespace, registry, &mut report));
    }
    report.write(options.output, out)?;
    Ok(u8::from(!report.is_good()))
}

/// Checks all objects of our kinds in the documents against each other and against their old states.
pub fn check(
    documents: &[Document],
    old: &[Document],
    unreadable: Vec<String>,
    options: &ValidateOptions,
    providers: &dyn Providers,
) -> Report {
    let everything = documents.iter().flat_map(Document::objects).map(|object| object.value);
    let inventory = Inventory::of(everything, &options.namespace);
    let schemas = Schemas::of_definitions();
    let stored: Vec<_> = old.iter().flat_map(Document::objects).map(|object| object.value).collect();
    let check_one = |document: &Document, object: ObjectRef<'_>| {
        let question = question(object.value)?;
        let findings = match question {
            Ok((kind, version)) => {
                let identity = Identity::of(object.value, &options.namespace);
                let old = stored.iter().find(|old| Identity::of(old, &options.namespace) == identity);
                let mut found = findings(kind, version, object.value, old.copied(), options, &inventory, providers);
                schemas.find_unknown_fields(kind, version, object.value, &mut found);
                found
            }
            Err(refusal) => refusal,
        };
        Some(ObjectReport::new(document, object, &options.namespace, findings))
    };
    let objects = documents.iter().flat_map(|document| {
        document.objects().into_iter().filter_map(|object| check_one(document, object)).collect::<Vec<_>>()
    });
    let passed_over = documents.iter().flat_map(|document| {
        let objects = document.objects().into_iter();
        objects.filter_map(|object| passed_over(document, object)).collect::<Vec<_>>()
    });
    Report { objects: objects.collect(), passed_over: passed_over.collect(), unreadable }
}

/// The note about an object that has the name of one of our kinds but another group. It may belong to Cluster API, or its group may be
/// mistyped.
fn passed_over(document: &Document, object: ObjectRef<'_>) -> Option<String> {
    let text = |field: &str| object.value.get(field).and_then(Value::as_str).unwrap_or_default();
    let (group, _) = text("apiVersion").split_once('/')?;
    let is_another = Kind::from_name(text("kind")).is_some() && group != names::GROUP;
    is_another.then(|| format!("{} is of group {group}, not {}: not checked", document.describe(object), names::GROUP))
}

/// Kind and version of an object. `None` for other kinds; an error if the kind or the version is wrong.
fn question(object: &Value) -> Option<Result<(Kind, ApiVersion), Findings>> {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let kind = Kind::from_name(text("kind"));
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let (ours, version) = (group == names::GROUP, ApiVersion::from_name(version));
    let mut found = Findings::new();
    match (kind, ours, version) {
        (Some(kind), true, Some(version)) => return Some(Ok((kind, version))),
        (Some(_), false, _) if text("apiVersion").is_empty() => {
            found.required(TYPE.id, FieldPath::new("apiVersion"), "such as \"machine.sapcloud.io/v1alpha1\"");
        }
        (_, false, _) => return None,
        (_, true, None) => {
            let versions = [names::API_VERSION_V1ALPHA1, names::API_VERSION_V1BETA1];
            found.not_supported(TYPE.id, FieldPath::new("apiVersion"), text("apiVersion"), &versions);
        }
        (None, true, Some(_)) => {
            found.not_supported(TYPE.id, FieldPath::new("kind"), text("kind"), &Kind::ALL.map(Kind::as_str));
        }
    }
    Some(Err(found))
}

fn findings(
    kind: Kind,
    version: ApiVersion,
    object: &Value,
    old: Option<&Value>,
    options: &ValidateOptions,
    inventory: &Inventory,
    providers: &dyn Providers,
) -> Findings {
    let namespace = Identity::of(object, &options.namespace).namespace;
    let before = old.map(Json::from);
    let given = Json::from(object);
    let patch = default_patch(&DefaultingRequest {
        kind,
        version,
        change: change(before.as_ref(), &given),
        namespace: &namespace,
        finalizers: FinalizerDefault::Add,
    });
    let mut new = object.clone();
    let applied = json_patch::patch(&mut new, &patch);
    debug_assert!(applied.is_ok(), "a default patch applies to the object it was made from");
    let new = Json::from(&new);
    let mut then = Findings::new();
    if let Some(before) = &before {
        object_metadata_syntax(before, &mut then);
    }
    let mut syntax = Findings::forgiving(then);
    object_metadata_syntax(&new, &mut syntax);
    let mut found = Findings::new();
    found.append(syntax);
    let request = ValidationRequest {
        kind,
        version,
        change: change(before.as_ref(), &new),
        namespace: &namespace,
        user: User { name: &options.user, groups: &[] },
        policy: &options.policy,
        providers,
        references: inventory,
    };
    let owner = controlling_owner(&request).and_then(|key| inventory.owner(&key));
    found.append(match &owner {
        Some(owner) => validate_child(&request, &Json::from(owner)),
        None => validate(&request),
    });
    found
}

fn change<'a>(old: Option<&'a Json<'a>>, new: &'a Json<'a>) -> Change<'a> {
    old.map_or(Change::Create { new }, |old| Change::Update { old, new })
}

/// All documents of the files, and the errors. A bad file does not stop the others.
pub(super) fn read(paths: &[PathBuf], stdin: &mut dyn Read) -> (Vec<Document>, Vec<String>) {
    let (mut documents, mut unreadable) = (Vec::new(), Vec::new());
    for path in paths {
        if path == Path::new(STDIN) {
            match read_text(&mut *stdin, LONGEST_INPUT) {
                Ok(text) => parse("stdin", &text, &mut documents, &mut unreadable),
                Err(error) => unreadable.push(format!("stdin: {error}")),
            }
            continue;
        }
        match files_below(path) {
            Ok(files) if files.is_empty() => {
                unreadable.push(format!("{}: the folder holds no .yaml, .yml or .json file", path.display()));
            }
            Ok(files) => files.iter().for_each(|file| {
                match fs::File::open(file).and_then(|file| read_text(file, LONGEST_INPUT)) {
                    Ok(text) => parse(&file.display().to_string(), &text, &mut documents, &mut unreadable),
                    Err(error) => unreadable.push(format!("{}: {error}", file.display())),
                }
            }),
            Err(error) => unreadable.push(format!("{}: {error}", path.display())),
        }
    }
    (documents, unreadable)
}

/// The text of an input with at most `longest` bytes.
fn read_text(input: impl Read, longest: u64) -> io::Result<String> {
    let mut text = String::new();
    let length = input.take(longest + 1).read_to_string(&mut text)?;
    if u64::try_from(length).is_ok_and(|length| length <= longest) {
        Ok(text)
    } else {
        Err(io::Error::other(format!("is longer than {} MiB; split it", longest >> 20)))
    }
}

fn parse(source: &str, text: &str, documents: &mut Vec<Document>, unreadable: &mut Vec<String>) {
    match parse_documents(source, text) {
        Ok(read) => documents.extend(read),
        Err(error) => unreadable.push(error.to_string()),
    }
}

/// The file itself, or the manifests directly in a folder, sorted by name.
fn files_below(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let is_manifest = file.extension().is_some_and(|have| EXTENSIONS.iter().any(|want| have == *want));
        if is_manifest && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
#[path = "../../tests/support/admission_cases.rs"]
mod case_table;
#[cfg(test)]
mod case_tests;
#[cfg(test)]
mod example_tests;
#[cfg(test)]
mod tests;
