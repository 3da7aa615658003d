//! `mcm validate` from files to report.

use rstest::rstest;
use tempfile::TempDir;

use super::*;
use machine_api::v1alpha1::MachineClass;
use machine_api::validation::NoProviders;
use machine_driver::{
    Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, ListRequest, ListedVm, MachineRequest, OpContext,
    Status, VmIdentity, VolumeIdsRequest, async_trait,
};
use std::sync::Arc;

const MACHINE: &str = "\
apiVersion: machine.sapcloud.io/v1alpha1
kind: Machine
metadata: {name: m1}
spec:
  class: {name: c1}
";

const BROKEN: &str = "\
# a comment before
---
apiVersion: machine.sapcloud.io/v1alpha1
kind: Machine
metadata: {name: m2, namespace: shoot, labels: {a: 'x y'}}
spec:
  drainTimeout: 5 minutes
  maxEvictRetries: -1
";

struct Run {
    folder: TempDir,
    options: ValidateOptions,
}

impl Run {
    fn of(files: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let options = ValidateOptions {
            files: vec![folder.path().to_owned()],
            namespace: "default".to_owned(),
            ..ValidateOptions::default()
        };
        Self { folder, options }
    }

    /// The exit code and the report, without the name of the folder.
    fn report(&self, stdin: &str) -> (u8, String) {
        let mut out = Vec::new();
        let code = run(&self.options, &NoProviders, None, &mut stdin.as_bytes(), &mut out).unwrap();
        let folder = format!("{}/", self.folder.path().display());
        (code, String::from_utf8(out).unwrap().replace(&folder, ""))
    }
}

#[test]
fn a_correct_machine_has_no_findings() {
    assert_eq!(Run::of(&[("m.yaml", MACHINE)]).report(""), (0, "1 object checked: 0 errors, 0 warnings\n".to_owned()));
}

#[test]
fn every_error_names_file_document_object_and_path() {
    let (code, report) = Run::of(&[("a.yaml", MACHINE), ("b.yaml", BROKEN)]).report("");
    let at = "b.yaml: document 0: Machine \"shoot/m2\": error: ";
    assert_eq!(code, 1);
    assert_eq!(
        report.lines().collect::<Vec<_>>(),
        [
            &*format!(
                "{at}metadata.labels: Invalid value: \"x y\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?') (META)"
            ),
            &*format!("{at}spec.class.kind: Required value: Kind is required (MCH-1)"),
            &*format!("{at}spec.class.name: Required value: Name is required (MCH-2)"),
            &*format!(
                "{at}spec.drainTimeout: Invalid value: \"5 minutes\": must be a duration such as \"30s\", \"10m\" or \"1h30m\" (MCH-7)"
            ),
            &*format!("{at}spec.maxEvictRetries: Invalid value: -1: must be greater than or equal to 0 (MCH-9)"),
            "2 objects checked: 5 errors, 0 warnings",
        ]
    );
}

#[test]
fn one_unreadable_file_does_not_hide_the_others() {
    let (code, report) = Run::of(&[("a.yaml", "a: [\n"), ("b.yaml", MACHINE), ("c.txt", "a: [\n")]).report("");
    assert_eq!(code, 1);
    assert!(report.starts_with("a.yaml: document 0: is no YAML: "), "{report}");
    assert!(report.ends_with("1 object checked: 0 errors, 0 warnings\n"), "{report}");
}

#[rstest]
#[case::a_missing_file(
    "gone.yaml",
    "gone.yaml: No such file or directory (os error 2)\nno object of group machine.sapcloud.io in the input\n"
)]
#[case::an_empty_folder(
    "",
    ": the folder holds no .yaml, .yml or .json file\nno object of group machine.sapcloud.io in the input\n"
)]
fn a_missing_input_is_an_error(#[case] name: &str, #[case] expected: &str) {
    let mut run = Run::of(&[]);
    run.options.files = vec![run.folder.path().join(name)];
    assert_eq!(run.report(""), (1, expected.to_owned()));
}

#[rstest]
#[case::objects_of_other_groups(
    "apiVersion: v1\nkind: Secret\n",
    "no object of group machine.sapcloud.io in the input\n"
)]
#[case::no_api_version(
    "kind: Machine\nmetadata: {name: m}\n",
    "stdin: document 0: Machine \"m\": error: apiVersion: Required value: such as \"machine.sapcloud.io/v1alpha1\" (TYPE)\n1 object checked: 1 error, 0 warnings\n"
)]
#[case::an_unknown_version(
    "apiVersion: machine.sapcloud.io/v7\nkind: Machine\nmetadata: {name: m}\n",
    "stdin: document 0: Machine \"m\": error: apiVersion: Unsupported value: \"machine.sapcloud.io/v7\": supported values: \"machine.sapcloud.io/v1alpha1\", \"machine.sapcloud.io/v1beta1\" (TYPE)\n1 object checked: 1 error, 0 warnings\n"
)]
#[case::an_unknown_kind(
    "apiVersion: machine.sapcloud.io/v1alpha1\nkind: Mischief\nmetadata: {name: m}\n",
    "stdin: document 0: Mischief \"m\": error: kind: Unsupported value: \"Mischief\": supported values: \"Machine\", \"MachineSet\", \"MachineDeployment\", \"MachineClass\" (TYPE)\n1 object checked: 1 error, 0 warnings\n"
)]
fn objects_that_can_not_be_checked_are_reported(#[case] text: &str, #[case] expected: &str) {
    let mut run = Run::of(&[]);
    run.options.files = vec![PathBuf::from("-")];
    assert_eq!(run.report(text), (1, expected.to_owned()));
}

#[test]
fn a_kind_of_ours_in_another_group_is_named() {
    let mistyped = MACHINE.replace("machine.sapcloud.io", "machine.sapclod.io");
    let expected = "b.yaml: document 0: Machine \"m1\" is of group machine.sapclod.io, not machine.sapcloud.io: not \
                    checked\n1 object checked: 0 errors, 0 warnings\n";
    let report = Run::of(&[("a.yaml", MACHINE), ("b.yaml", &mistyped)]).report("");
    assert_eq!(report, (0, expected.to_owned()));
}

#[test]
fn an_endless_input_is_refused() {
    let error = read_text(io::repeat(b' '), 1 << 20).expect_err("it is too long");
    assert_eq!(error.to_string(), "is longer than 1 MiB; split it");
    assert_eq!(read_text(&*vec![b' '; 1 << 20], 1 << 20).map(|text| text.len()).ok(), Some(1 << 20));
}

#[test]
fn an_object_with_an_old_state_is_an_update() {
    let stored = MACHINE.replace("spec:", "spec:\n  providerID: id-1\n  nodeConditions: 'A, B'");
    let changed = stored.replace("providerID: id-1", "providerID: id-2");
    let mut run = Run::of(&[("new.yaml", &changed), ("old.yml", &stored)]);
    run.options.files = vec![run.folder.path().join("new.yaml")];
    run.options.old = vec![run.folder.path().join("old.yml")];
    let at = "new.yaml: document 0: Machine \"m1\": ";
    let warning = format!(
        "{at}warning: existing problem: spec.nodeConditions: Invalid value: \"A, B\": entry \" B\" must not contain whitespace (MCH-10)\n"
    );
    let expected = format!(
        "{warning}{at}error: spec.providerID: Invalid value: \"id-2\": field is immutable once set (MCH-19)\n1 object checked: 1 error, 1 warning\n"
    );
    assert_eq!(run.report(""), (1, expected));
    run.options.policy.controllers = machine_api::validation::ControllerUsers::named(["ctl"]);
    run.options.user = "ctl".to_owned();
    assert_eq!(run.report(""), (0, format!("{warning}1 object checked: 0 errors, 1 warning\n")));
}

#[test]
fn the_other_documents_of_the_input_are_its_cache() {
    let class = "apiVersion: machine.sapcloud.io/v1alpha1\nkind: MachineClass\nmetadata: {name: other}\nprovider: virtual\nproviderSpec: {}\n";
    let (code, report) = Run::of(&[("c.yaml", class), ("m.yaml", MACHINE)]).report("");
    assert_eq!(code, 0);
    assert_eq!(
        report,
        "m.yaml: document 0: Machine \"m1\": warning: spec.class.name: MachineClass \"c1\" not found in namespace \"default\" (MCH-6)\n2 objects checked: 0 errors, 1 warning\n"
    );
}

#[test]
fn a_program_reads_json() {
    let mut run = Run::of(&[]);
    run.options.files = vec![PathBuf::from("-")];
    run.options.output = OutputFormat::Json;
    let list = serde_json::json!({"kind": "List", "items": [{"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "m1"}, "spec": {"class": {"name": "c1"}, "maxEvictRetries": -1}}]});
    let (code, report) = run.report(&list.to_string());
    assert_eq!(code, 1);
    assert_eq!(
        serde_json::from_str::<Value>(&report).unwrap(),
        serde_json::json!({"valid": false, "errors": 1, "warnings": 0, "passedOver": [], "unreadable": [], "objects": [{
            "source": "stdin", "document": 0, "item": 0, "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
            "namespace": "default", "name": "m1", "valid": false, "findings": [{
                "severity": "error", "rule": "MCH-9", "field": "spec.maxEvictRetries", "reason": "FieldValueInvalid",
                "message": "spec.maxEvictRetries: Invalid value: -1: must be greater than or equal to 0"}]}]})
    );
    run.options.output = OutputFormat::Yaml;
    assert!(run.report(&list.to_string()).1.contains("rule: MCH-9"));
}

const SET: &str = "\
apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineSet
metadata: {name: s1, uid: u1}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {class: {kind: MachineClass, name: c1}, nodeConditions: 'A, B'}
";

/// The set itself is refused in every case.
#[rstest]
#[case::what_its_set_says("u1", "A, B", "existing problem: spec.nodeConditions: ")]
#[case::something_else("u1", "A, C", "error: spec.nodeConditions: ")]
#[case::another_set("u2", "A, B", "error: spec.nodeConditions: ")]
fn a_machine_is_not_refused_for_mistakes_of_its_set_in_the_input(
    #[case] uid: &str,
    #[case] says: &str,
    #[case] expected: &str,
) {
    let machine = format!(
        "apiVersion: machine.sapcloud.io/v1alpha1
kind: Machine
metadata:
  name: m1
  ownerReferences: [{{apiVersion: machine.sapcloud.io/v1alpha1, kind: MachineSet, name: s1, uid: {uid}, controller: true}}]
spec: {{class: {{kind: MachineClass, name: c1}}, nodeConditions: '{says}'}}
"
    );
    let (code, report) = Run::of(&[("m.yaml", &machine), ("s.yaml", SET)]).report("");
    assert_eq!(code, 1);
    let line = report.lines().find(|line| line.contains("Machine \"m1\"")).unwrap_or_default();
    assert!(line.contains(expected), "{report}");
}

/// A driver that has one finding for every class, or fails with a wrong password.
struct Asked(DriverInfo);

#[async_trait]
impl Driver for Asked {
    fn info(&self) -> &DriverInfo {
        &self.0
    }
    fn validate(&self, _: &MachineClass, _: &mut Findings) {}
    async fn ask_about_class(&self, _: &OpContext, request: ListRequest) -> Result<Findings, Status> {
        let text = |key: &str| String::from_utf8(request.secret.get(key).unwrap_or_default().to_vec()).unwrap();
        if text("password") != "from-the-second-secret" {
            return Err(Status::new(Code::Unauthenticated, format!("who is {}?", text("password"))));
        }
        let mut found = Findings::new();
        found.invalid(
            machine_api::validation::CLS_6.id,
            FieldPath::new("providerSpec").child("image"),
            "x",
            text("password"),
        );
        Ok(found)
    }
    async fn create_machine(&self, _: &OpContext, _: MachineRequest) -> Result<CreatedVm, Status> {
        unreachable!("nothing is created")
    }
    async fn delete_machine(&self, _: &OpContext, _: MachineRequest) -> Result<DeletedVm, Status> {
        unreachable!("nothing is created")
    }
    async fn get_machine_status(&self, _: &OpContext, _: MachineRequest) -> Result<VmIdentity, Status> {
        unreachable!("nothing is created")
    }
    async fn list_machines(&self, _: &OpContext, _: ListRequest) -> Result<Vec<ListedVm>, Status> {
        unreachable!("nothing is created")
    }
    async fn get_volume_ids(&self, _: &OpContext, _: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        unreachable!("nothing is created")
    }
}

const CLASS: &str = "\
apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineClass
metadata: {name: c1}
provider: asked
providerSpec: {image: x}
secretRef: {name: s1, namespace: default}
credentialsSecretRef: {name: s2, namespace: default}
";

#[rstest]
#[case::with_both_secrets(
    "s2",
    "in.yaml: document 0: MachineClass \"c1\": error: providerSpec.image: Invalid value: \"x\": <redacted> (CLS-6)"
)]
#[case::without_the_second_secret(
    "s3",
    "in.yaml: document 0: MachineClass \"c1\": the provider could not be asked: who is <redacted>?"
)]
fn classes_are_checked_with_the_secrets_of_the_input(#[case] second: &str, #[case] expected: &str) {
    let secrets = format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: s1}}\nstringData: {{password: from-the-first-secret}}\n\
         ---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {second}}}\ndata: {{password: ZnJvbS10aGUtc2Vjb25kLXNlY3JldA==}}\n"
    );
    let of = Run::of(&[("in.yaml", &format!("{CLASS}{secrets}"))]);
    let capabilities = Capabilities::default();
    let info = DriverInfo { name: "asked", providers: vec!["asked".to_owned()], schema: None, capabilities };
    let mut registry = Registry::new();
    registry.register(&(Arc::new(Asked(info)) as Arc<dyn Driver>));
    let mut out = Vec::new();
    let code = run(&of.options, &NoProviders, Some(&registry), &mut "".as_bytes(), &mut out).unwrap();
    let report = String::from_utf8(out).unwrap().replace(&format!("{}/", of.folder.path().display()), "");
    assert!(code == 1 && report.contains(expected), "{report}");
}
