//! Runs helm and kubeconform on the chart of `deploy/charts`.
//!
//! `scripts/chart-tools` builds the programs. Without them a test prints that it is skipped.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use machine_controller_manager::cli::documents::{parse_documents, to_yaml};
use serde_json::Value;

use super::scratch::subfolder;

/// The folder of the chart.
pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/charts/machine-controller-manager");
const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Groups of operators, which helm does not know by itself.
pub const OPERATORS: [&str; 2] = ["--api-versions=cert-manager.io/v1", "--api-versions=monitoring.coreos.com/v1"];

/// Helm, with a home of its own.
#[derive(Clone)]
pub struct Helm {
    tools: PathBuf,
    home: PathBuf,
    kubeconfig: Option<PathBuf>,
}

/// The result of a run: standard output, or standard error of a failed run.
pub type Outcome = Result<String, String>;

impl Helm {
    /// Helm, or `None` without the programs.
    pub fn find(test: &str) -> Option<Self> {
        static TOOLS: OnceLock<Option<PathBuf>> = OnceLock::new();
        let check = || {
            let script = format!("{ROOT}/scripts/chart-tools");
            let run = Command::new(script).arg("--check").output().ok()?;
            let folder = String::from_utf8_lossy(&run.stdout).trim().to_owned();
            (run.status.success() && !folder.is_empty()).then(|| PathBuf::from(folder))
        };
        let Some(tools) = TOOLS.get_or_init(check) else {
            // This is not eprintln!, whose output is captured in tests that pass.
            let _ = writeln!(std::io::stderr(), "SKIPPED chart::{test}: there is no helm; run scripts/chart-tools");
            return None;
        };
        Some(Self { tools: tools.clone(), home: subfolder("helm"), kubeconfig: None })
    }

    /// The same for the cluster of a kubeconfig.
    pub fn with_cluster(self, kubeconfig: &Path) -> Self {
        Self { kubeconfig: Some(kubeconfig.to_owned()), ..self }
    }

    /// The flags with which an installation takes over objects that exist already. Helm 4 applies on the server's side, where the fields of
    /// others are conflicts.
    pub fn adopting(&self) -> &'static [&'static str] {
        if self.tools.to_string_lossy().contains("helm-v4") {
            &["--take-ownership", "--force-conflicts"]
        } else {
            &["--take-ownership"]
        }
    }

    /// Runs helm.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(self.tools.join("helm"));
        command.args(arguments).env("HOME", &self.home).env_remove("KUBECONFIG");
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        outcome(&mut command)
    }

    /// Writes values into a file, and returns its path.
    pub fn values(&self, name: &str, values: &Value) -> String {
        let path = self.home.join(format!("{name}.yaml"));
        std::fs::write(&path, to_yaml([values]).expect("JSON has a YAML form")).expect("the home is writable");
        path.display().to_string()
    }

    /// What `helm template` prints for these values in this namespace, with further flags.
    pub fn template(&self, name: &str, namespace: &str, values: &Value, further: &[&str]) -> Outcome {
        let file = self.values(name, values);
        self.run(&[&["template", "mcm", CHART, "--namespace", namespace, "--values", &file], further].concat())
    }

    /// Checks manifests against the schemas of Kubernetes, strictly.
    pub fn conform(&self, name: &str, manifests: &str) -> Outcome {
        let path = self.home.join(format!("{name}.manifests.yaml"));
        std::fs::write(&path, manifests).expect("the home is writable");
        let schemas = format!("{}/schemas/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json", self.tools.display());
        let own = format!("{ROOT}/tests/fixtures/chart/schemas/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json");
        let mut command = Command::new(self.tools.join("kubeconform"));
        command.args(["-strict", "-summary", "-schema-location", &schemas, "-schema-location", &own]).arg(&path);
        outcome(&mut command)
    }
}

/// The objects of a text that helm printed.
pub fn objects(text: &str) -> Vec<Value> {
    parse_documents("helm", text).expect("YAML").into_iter().map(|document| document.value).collect()
}

fn outcome(command: &mut Command) -> Outcome {
    let run = command.output().expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if run.status.success() { Ok(text(&run.stdout)) } else { Err(text(&run.stdout) + &text(&run.stderr)) }
}
