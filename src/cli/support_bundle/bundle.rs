//! Makes the files of a bundle from what was read: redaction, scrubbing, bounds, index. Pure functions.

use jiff::Timestamp;
use machine_api::kind::Kind;
use serde_json::{Value, json};

use super::{
    archive::File,
    gather::{Content, Gathered, Part},
    index::{Gap, Index, Listed, end_of, span_of_events, span_of_log},
    redact::{Addresses, redacted, withheld},
    scrub::{Names, Scrub, names_in},
};
use crate::settings::Build;
use base64::{Engine, prelude::BASE64_STANDARD};

/// The most bytes of one file.
const LONGEST_FILE: usize = 12 << 20;
/// The most bytes of all files. Compressed they are about a tenth.
const LONGEST_BUNDLE: usize = 150 << 20;
/// The most characters of a folder or a file in a path.
const LONGEST_SEGMENT: usize = 96;
/// The parts whose values must be in no text.
const SECRETIVE: [&str; 3] = ["objects/machineclasses.json", "objects/secrets.json", "replicas/pods.json"];
/// The gap if one of them could not be read.
const UNSEARCHED: &str = "texts such as logs and messages were not searched for all values of Secrets and classes, because these could \
                          not be read; read the texts before you pass the bundle on";
/// Shorter texts of a `providerSpec` are words that stand for something else, too.
const SHORTEST_WITHHELD: usize = 12;
/// What every bundle says about itself.
const README: &str = "\
This bundle was made by `mcm support-bundle`. Nothing was sent anywhere. Read it before you pass it on.

index.json        its files with the times that they cover, and what is missing (gaps)
doctor.json       the findings of `mcm doctor`
objects/          machine objects, Secrets (names of keys and lengths only), Leases, events, the manager's Deployment with its flags
registrations/    definitions, webhook configurations, the registration of the views
views/            computed views, if they are installed
target/           Nodes, and events about them
replicas/         pods of the manager with their logs and metrics

Each kind has a list of allowed fields; all others are left out. Secrets, user data, environment variables and applied manifests are
never included. Addresses are included with --keep-addresses only. --pseudonyms replaces names of objects.
";

/// How a bundle is made.
#[derive(Clone)]
pub struct Rules<'a> {
    /// The namespace of the machine objects.
    pub namespace: &'a str,
    /// Whether addresses stay.
    pub addresses: Addresses,
    /// Whether names stay.
    pub names: Names,
    /// The schema of the `providerSpec` of a provider.
    pub schema_of: &'a dyn Fn(&str) -> Option<Value>,
    /// The time.
    pub now: Timestamp,
}

/// The files of a bundle below a folder, and its index.
pub fn bundle(gathered: &Gathered, folder: &str, rules: &Rules<'_>) -> (Vec<File>, Index) {
    let objects: Vec<Value> = gathered.objects().cloned().collect();
    let scrub = Scrub::new(secrets_in(&objects, rules), rules.addresses, &rules.names, names_in(&named(&objects)));
    let mut maker = Maker { rules, scrub, files: Vec::new(), listed: Vec::new(), gaps: Vec::new(), size: 0 };
    let scrubbed = |gap: &Gap| Gap { what: maker.scrub.text(&gap.what), why: maker.scrub.text(&gap.why) };
    maker.gaps = gathered.gaps.iter().map(scrubbed).collect();
    if gathered.gaps.iter().any(|gap| SECRETIVE.contains(&gap.what.as_str())) {
        maker.gap("redaction", UNSEARCHED.to_owned());
    }
    for part in &gathered.parts {
        maker.add(part);
    }
    maker.files.push(File { path: "README.txt".to_owned(), content: README.as_bytes().to_vec() });
    let mut index = Index {
        created: rules.now,
        version: Build::THIS.version,
        namespace: maker.scrub.text(rules.namespace),
        pseudonyms: matches!(rules.names, Names::Pseudonyms(_)),
        addresses: rules.addresses == Addresses::Keep,
        files: maker.listed,
        gaps: maker.gaps,
    };
    index.files.sort_by(|one, other| one.path.cmp(&other.path));
    index.gaps.sort();
    maker.files.push(File { path: "index.json".to_owned(), content: pretty(&json!(index)) });
    maker.files.sort_by(|one, other| one.path.cmp(&other.path));
    for file in &mut maker.files {
        file.path = format!("{folder}/{}", file.path);
    }
    (maker.files, index)
}

struct Maker<'a> {
    rules: &'a Rules<'a>,
    scrub: Scrub,
    files: Vec<File>,
    listed: Vec<Listed>,
    gaps: Vec<Gap>,
    size: usize,
}

impl Maker<'_> {
    fn add(&mut self, part: &Part) {
        let now = self.rules.now;
        let (content, span) = match &part.content {
            Content::Objects(objects) => {
                let kept = objects.iter().filter_map(|object| self.redacted(object));
                let kept: Vec<Value> = kept.map(|object| self.scrub.value(&object)).collect();
                (self.list(&part.path, kept), span_of_events(objects))
            }
            Content::Computed(value) => (pretty(&self.scrub.value(value)), None),
            Content::Text(text) => {
                let (end, cut) = end_of(text, LONGEST_FILE);
                if cut > 0 {
                    self.gap(&part.path, format!("the first {cut} bytes are left out: it is too long"));
                }
                (self.scrub.text(end).into_bytes(), span_of_log(end))
            }
        };
        if self.size + content.len() > LONGEST_BUNDLE {
            return self.gap(&part.path, "left out: the bundle would be too large".to_owned());
        }
        self.size += content.len();
        let (from, until) = span.unwrap_or((now, now));
        let path = short(&self.scrub.text(&part.path));
        self.listed.push(Listed { path: path.clone(), bytes: content.len(), from, until });
        self.files.push(File { path, content });
    }

    fn redacted(&self, object: &Value) -> Option<Value> {
        let schema = schema_for(object, self.rules);
        redacted(object, schema.as_ref(), self.rules.addresses)
    }

    /// A list of objects as text, without the last ones if it is too long.
    fn list(&mut self, path: &str, mut objects: Vec<Value>) -> Vec<u8> {
        let all = objects.len();
        loop {
            let content = pretty(&json!(objects));
            if content.len() <= LONGEST_FILE || objects.is_empty() {
                if objects.len() < all {
                    let left_out = all - objects.len();
                    self.gap(path, format!("{left_out} of {all} objects are left out: they are too large"));
                }
                return content;
            }
            objects.truncate(objects.len() / 2);
        }
    }

    fn gap(&mut self, what: &str, why: String) {
        self.gaps.push(Gap { what: self.scrub.text(what), why });
    }
}

/// The path with segments that every archive and file system can store.
fn short(path: &str) -> String {
    let segments = path.split('/').map(|segment| segment.get(..LONGEST_SEGMENT).unwrap_or(segment));
    segments.collect::<Vec<_>>().join("/")
}

fn schema_for(object: &Value, rules: &Rules<'_>) -> Option<Value> {
    let is_class = object["kind"] == Kind::MachineClass.as_str();
    object["provider"].as_str().filter(|_| is_class).and_then(rules.schema_of)
}

fn pretty(value: &Value) -> Vec<u8> {
    // A JSON value always has a text.
    let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
    text.push(b'\n');
    text
}

/// The objects whose names can be those of users. Names of registrations are the same everywhere.
fn named(objects: &[Value]) -> Vec<Value> {
    let fixed = [
        "Lease",
        "CustomResourceDefinition",
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
        "APIService",
        "Deployment",
    ];
    objects.iter().filter(|object| !fixed.iter().any(|kind| object["kind"] == *kind)).cloned().collect()
}

/// All texts that no file may contain: values of Secrets, of environment variables, and of a `providerSpec`.
fn secrets_in(objects: &[Value], rules: &Rules<'_>) -> Vec<String> {
    let mut secrets = Vec::new();
    for object in objects {
        match object["kind"].as_str() {
            Some("Secret") => {
                let data = object["data"].as_object().into_iter().flat_map(|data| data.values());
                let decoded = data.filter_map(|value| BASE64_STANDARD.decode(value.as_str()?).ok());
                secrets.extend(decoded.filter_map(|bytes| String::from_utf8(bytes).ok()));
            }
            Some("Pod") => secrets.extend(environment(&object["spec"])),
            Some("Deployment") => secrets.extend(environment(&object["spec"]["template"]["spec"])),
            Some(kind) if kind == Kind::MachineClass.as_str() => {
                let texts = withheld(&object["providerSpec"], schema_for(object, rules).as_ref());
                secrets.extend(texts.into_iter().filter(|text| text.len() >= SHORTEST_WITHHELD));
            }
            _ => {}
        }
    }
    secrets
}

fn environment(spec: &Value) -> Vec<String> {
    let containers = spec["containers"].as_array().into_iter().flatten();
    let variables = containers.flat_map(|container| container["env"].as_array().into_iter().flatten());
    variables.filter_map(|variable| variable["value"].as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "canary-77ab-value";

    fn rules(names: Names) -> Rules<'static> {
        Rules { namespace: "ns", addresses: Addresses::Remove, names, schema_of: &|_| None, now: Timestamp::UNIX_EPOCH }
    }

    fn part(path: &str, content: Content) -> Part {
        Part { path: path.to_owned(), content }
    }

    fn canaries() -> Gathered {
        let secret = json!({"kind": "Secret", "metadata": {"name": "s", "namespace": "ns"},
            "data": {"userData": BASE64_STANDARD.encode(format!("#cloud-config\npassword: {CANARY}\n"))}});
        let class = json!({"kind": "MachineClass", "provider": "p", "metadata": {"name": "c", "namespace": "ns"},
            "providerSpec": {"token": format!("spec-{CANARY}")}});
        let pod = json!({"kind": "Pod", "metadata": {"name": "pod-1", "namespace": "ns"},
            "spec": {"containers": [{"name": "x", "env": [{"name": "TOKEN", "value": format!("env-{CANARY}")}]}]}});
        let machine = json!({"kind": "Machine", "metadata": {"name": "m-1", "namespace": "ns"},
            "status": {"lastOperation": {"description": format!("the cloud refused spec-{CANARY} at 10.1.2.3")}}});
        let log = format!("2026-01-01T00:00:00Z error=\"env-{CANARY}\" m-1\n2026-01-01T00:00:01Z password: {CANARY}\n");
        Gathered {
            parts: vec![
                part("objects/all.json", Content::Objects(vec![secret, class, pod, machine])),
                part("replicas/pod-1/log.txt", Content::Text(log)),
                part("doctor.json", Content::Computed(json!({"findings": [format!("spec-{CANARY}")]}))),
            ],
            gaps: vec![Gap { what: "views/x.json".to_owned(), why: format!("refused: env-{CANARY}") }],
        }
    }

    fn text_of(files: &[File]) -> String {
        let texts = files.iter().map(|file| format!("{}\n{}", file.path, String::from_utf8_lossy(&file.content)));
        texts.collect::<Vec<_>>().concat()
    }

    #[test]
    fn pk_102_no_secret_is_in_any_file_of_a_bundle() {
        let gathered = canaries();
        let before = format!("{gathered:?}");
        assert!(before.matches(CANARY).count() >= 5, "{before}");
        let (files, index) = bundle(&gathered, "b", &rules(Names::Keep));
        let text = text_of(&files);
        assert!(!text.contains(CANARY) && !text.contains("10.1.2.3"), "{text}");
        assert!(text.contains("m-1") && text.contains("the cloud refused [secret] at [address]"), "{text}");
        assert_eq!(index.gaps, [Gap { what: "views/x.json".to_owned(), why: "refused: [secret]".to_owned() }]);
        let log = index.files.iter().find(|file| file.path == "replicas/pod-1/log.txt").unwrap();
        assert_eq!((log.until - log.from).get_seconds(), 1);
    }

    #[test]
    fn pk_107_with_pseudonyms_no_name_is_in_any_file_and_equal_names_stay_equal() {
        let (files, index) = bundle(&canaries(), "b", &rules(Names::pseudonyms(b"k")));
        let text = text_of(&files);
        for name in ["m-1", "pod-1", "\"ns\""] {
            assert!(!text.contains(name), "{name} in {text}");
        }
        assert!(index.pseudonyms);
        let pod = &index.files.iter().find(|file| file.path.ends_with("/log.txt")).unwrap().path;
        let word = pod.split('/').nth(1).unwrap();
        assert!(text.matches(word).count() >= 3, "{word} names the folder and the pod: {text}");
    }

    #[test]
    fn pk_107_a_long_list_and_a_long_log_are_cut_and_the_index_says_so() {
        let message = "m".repeat(LONGEST_FILE / 4);
        let events: Vec<Value> = (0..6).map(|_| json!({"kind": "Event", "metadata": {}, "message": message})).collect();
        let gathered = Gathered {
            parts: vec![
                part("events.json", Content::Objects(events)),
                part("log.txt", Content::Text("x\n".repeat(LONGEST_FILE))),
            ],
            gaps: Vec::new(),
        };
        let (files, index) = bundle(&gathered, "b", &rules(Names::Keep));
        assert!(files.iter().all(|file| file.content.len() <= LONGEST_FILE));
        let whys: Vec<&str> = index.gaps.iter().map(|gap| gap.why.as_str()).collect();
        assert!(whys[0].contains("3 of 6 objects are left out") && whys[1].contains("bytes are left out"), "{whys:?}");
    }
}
