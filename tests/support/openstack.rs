//! A project in the services of `OpenStack` that `scripts/test-openstack` runs, and the kubelets of its servers.
//!
//! In the region of the project's class there are fault proxies before the services. They count the requests of the program.
//! `tests/openstack` creates and reads the project with openstacksdk, independently of the tested code.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use fault_proxy::{FaultProxy, ReceivedRequest};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{process::Process, rig::is_left_out, scratch, wait_until};

/// The environment variable with the folder of `scripts/test-openstack`.
const SERVICES: &str = "MCM_TEST_OPENSTACK";
/// The keys of the tags that identify the owner of a server, port or volume.
pub const TAGS: [&str; 2] = ["kubernetes.io-cluster-whole-program", "kubernetes.io-role-node"];
/// The user data of the servers, with its placeholders.
const USER_DATA: &str = "#!/bin/sh\njoin --token <<BOOTSTRAP_TOKEN>> --name <<MACHINE_NAME>>\n";

/// A project of one test.
pub struct Project {
    folder: PathBuf,
    python: PathBuf,
    made: Value,
    pub identity: FaultProxy,
    pub compute: FaultProxy,
    pub network: FaultProxy,
    pub volume: FaultProxy,
}

impl Project {
    /// An empty project. `None` if the services do not run; then the test prints that it is skipped, and is counted.
    pub async fn new(test: &str) -> Option<Self> {
        if is_left_out(test, "clouds are the same beside either") {
            return None;
        }
        let Some(services) = env::var_os(SERVICES).map(PathBuf::from) else {
            scratch::count_skipped(test, "there is no OpenStack to test with; see scripts/test-openstack");
            return None;
        };
        let python = services.parent().expect("it is in the cache").join("venv/bin/python");
        let urls = read(&services, "made.json")["urls"].take();
        let proxy = async |service: &str| FaultProxy::before(text_of(&urls[service])).await.expect("a port");
        let (identity, compute) = (proxy("keystone").await, proxy("nova").await);
        let (network, volume) = (proxy("neutron").await, proxy("cinder").await);

        let folder = scratch::subfolder("openstack");
        let name = folder.file_name().expect("it has a name").to_string_lossy().into_owned();
        let (from, into) = (services.display().to_string(), folder.display().to_string());
        let mut arguments = vec![from, "project".to_owned(), name, into];
        for (service, proxy) in [("compute", &compute), ("network", &network), ("block-storage", &volume)] {
            arguments.push(format!("{service}={}", proxy.url()));
        }
        run(&python, "project.py", &arguments).await.unwrap_or_else(|error| panic!("project.py: {error}"));
        let made = read(&folder, "made.json");
        Some(Self { folder, python, made, identity, compute, network, volume })
    }

    fn proxies(&self) -> [&FaultProxy; 4] {
        [&self.identity, &self.compute, &self.network, &self.volume]
    }

    /// The region with the proxies before the services.
    pub fn region(&self) -> &str {
        text_of(&self.made["region"])
    }

    /// Texts that must never appear in logs or objects.
    pub fn secret_words(&self) -> [&str; 2] {
        [text_of(&self.made["application_credential_secret"]), "#!/bin/sh"]
    }

    /// The Secret `cloud`, with an application credential of the project.
    pub fn secret_of_project(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud"}, "stringData": {
            "authURL": format!("{}/v3", self.identity.url()), "domainName": "Default", "tenantName": self.region(),
            "applicationCredentialID": self.made["application_credential"],
            "applicationCredentialSecret": self.made["application_credential_secret"],
            "userData": USER_DATA,
        }})
    }

    /// A class whose servers have a port and a volume that the driver creates.
    pub fn class_of(&self, name: &str, namespace: &str, flavor: &str) -> Value {
        let machines = &self.made["machines"];
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": name},
            "provider": "OpenStack",
            "providerSpec": {
                "apiVersion": "openstack.machine.gardener.cloud/v1alpha1", "kind": "MachineProviderConfig",
                "spec": {
                    "region": self.region(), "availabilityZone": "nova", "flavorName": flavor, "imageName": "linux",
                    "keyName": "machines", "networkID": machines["network"], "subnetIDs": [machines["subnet"]],
                    "securityGroups": ["machines"], "podNetworkCIDRs": ["100.64.0.0/12"],
                    "rootDiskSize": 2, "rootDiskType": "standard", "tags": {TAGS[0]: "1", TAGS[1]: "1"},
                },
            },
            "secretRef": {"name": "cloud", "namespace": namespace},
        })
    }

    /// Subnet and security group of the class.
    pub fn subnet_and_group(&self) -> (&str, &str) {
        let of = |what: &str| text_of(&self.made["machines"][what]);
        (of("subnet"), of("security_group"))
    }

    /// `servers`, `ports` and `volumes` of the project. If they change while they are read, they are read again.
    pub async fn servers_ports_and_volumes(&self) -> Value {
        let arguments = [&*self.folder.display().to_string(), "machines", "inventory"].map(str::to_owned);
        wait_until("an inventory of the project", Duration::from_secs(180), || run(&self.python, "ask.py", &arguments))
            .await
    }

    /// The answer to a GET request of an administrator.
    pub async fn get(&self, service: &str, path: &str) -> Value {
        let arguments = [&*self.folder.display().to_string(), "admin", "call", "GET", service, path].map(str::to_owned);
        let mut answer =
            run(&self.python, "ask.py", &arguments).await.unwrap_or_else(|error| panic!("GET {path}: {error}"));
        assert_eq!(answer["status"], json!(200), "GET {path}: {answer}");
        answer["body"].take()
    }

    /// The ids of all servers that have ever existed, by name.
    pub async fn servers_ever(&self) -> Value {
        let arguments = [self.folder.display().to_string(), "ever".to_owned()];
        run(&self.python, "project.py", &arguments).await.unwrap_or_else(|error| panic!("project.py: {error}"))
    }

    /// The kinds of the program's requests to the services.
    pub fn own_requests(&self) -> Vec<String> {
        self.proxies().iter().flat_map(|proxy| proxy.requests()).map(|request| kind(&request)).collect()
    }

    /// Ends all faults.
    pub fn clear(&self) {
        for proxy in self.proxies() {
            proxy.clear();
        }
    }

    /// Starts the kubelets, so that every running server has a Node in the cluster.
    pub fn start_kubelets(&self, kubeconfig: &Path) -> Process {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/kubelets").to_owned();
        let endpoint = format!("{}:machines", self.folder.display());
        let arguments = ["-B".to_owned(), program, "openstack".to_owned(), endpoint, kubeconfig.display().to_string()];
        Process::start(&self.folder, "kubelets", &self.python, &arguments)
    }
}

/// Method and path, with stars for ids. Further pages of a list are a kind of their own.
fn kind(seen: &ReceivedRequest) -> String {
    let segment = |segment: &str| if segment.len() >= 32 { "*".to_owned() } else { segment.to_owned() };
    let path: Vec<_> = seen.path.split('/').map(segment).collect();
    let page = if seen.parameter("marker").is_empty() { "" } else { "?marker" };
    format!("{} {}{page}", seen.method, path.join("/"))
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn read(folder: &Path, file: &str) -> Value {
    let text = fs::read(folder.join(file)).expect("the services have been started");
    serde_json::from_slice(&text).expect("it is JSON")
}

/// Runs a program of `tests/openstack`. Returns its output, or its error output if it fails.
async fn run(python: &Path, program: &str, arguments: &[String]) -> Result<Value, String> {
    let program = format!("{}/tests/openstack/{program}", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(python);
    let run = command.arg("-B").arg(program).args(arguments).kill_on_drop(true).output().await.expect("Python runs");
    if !run.status.success() {
        return Err(String::from_utf8_lossy(&run.stderr).into_owned());
    }
    Ok(serde_json::from_slice(&run.stdout).expect("it prints JSON"))
}
