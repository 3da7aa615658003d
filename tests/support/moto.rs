//! moto, a simulation of EC2, with one account, and the kubelets of its VMs.
//!
//! moto checks signatures, rights, images and instance types. The last check is off for tests with the retired instance type of the
//! seeds. `tests/clouds/aws.py` creates and reads the account with boto3, independently of the tested code. `scripts/test-clouds`
//! installs both.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{assets, ports::free_port, process::Process, rig::is_left_out, scratch, wait_until};

/// The image of the seeds' class; its root device is [`ROOT_DEVICE`].
pub const IMAGE: &str = "ami-0c3484dbcde4c4d0c";
/// The root device of [`IMAGE`].
pub const ROOT_DEVICE: &str = "/dev/xvda";
/// Instance profile and key pair of the seeds' class.
pub const PROFILE: &str = "shoot--i544024--hana-test-nodes";
const KEY_PAIR: &str = "shoot--i544024--hana-test-ssh-publickey";

static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// The Python installation with clouds and their clients. `None` without it; then the test prints that it is skipped, and is counted.
pub async fn python(test: &str) -> Option<PathBuf> {
    if is_left_out(test, "clouds are the same beside either") {
        return None;
    }
    let why = "there are no clouds to test with: install Python 3 with venv, and run scripts/test-clouds where pip reaches an index";
    let find = move || PYTHON.get_or_init(|| assets::printed_by("test-clouds", why)).clone();
    match tokio::task::spawn_blocking(find).await.expect("the installation ends") {
        Ok(python) => Some(python),
        Err(why) => {
            scratch::count_skipped(test, &why);
            None
        }
    }
}

/// The rights of the documentation in a form that moto supports. moto ignores resources, and denies everything in a statement with a
/// condition.
pub fn policy() -> Value {
    let mut policy: Value =
        serde_json::from_str(include_str!("../../docs/aws-policy.json")).expect("the policy is JSON");
    for statement in policy["Statement"].as_array_mut().expect("it has statements") {
        statement["Resource"] = json!("*");
        statement.as_object_mut().expect("a statement").remove("Condition");
    }
    policy
}

/// The instance types that moto accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Types {
    /// The types that EC2 offers.
    Offered,
    /// Any type, because EC2 has retired the type of the seeds' class.
    Any,
}

/// The access keys of a user of the account.
#[derive(Clone, Debug)]
pub struct Keys {
    pub id: String,
    pub secret: String,
}

impl Keys {
    fn of(answer: &Value) -> Self {
        let text = |field: &str| answer[field].as_str().expect("aws.py prints keys").to_owned();
        Self { id: text("id"), secret: text("secret") }
    }
}

/// A running moto with one account.
pub struct Moto {
    _process: Process,
    folder: PathBuf,
    python: PathBuf,
    pub url: String,
    owner: Keys,
    /// A user with the rights of [`policy`].
    pub manager: Keys,
    pub subnet: String,
    pub group: String,
}

impl Moto {
    /// Starts a cloud for one test only. It ends with the test.
    pub async fn start(test: &str, types: Types) -> Option<Self> {
        let python = python(test).await?;
        let (folder, port) = (scratch::subfolder("moto"), free_port());
        let images = folder.join("images.json");
        fs::write(&images, images_of_the_region().to_string()).expect("the scratch folder is writable");
        let mut arguments = vec![
            "INITIAL_NO_AUTH_ACTION_COUNT=3".to_owned(),
            "MOTO_ENABLE_AMI_VALIDATION=1".to_owned(),
            "MOTO_ENABLE_RECORDING=1".to_owned(),
            format!("MOTO_RECORDER_FILEPATH={}", folder.join("requests.jsonl").display()),
            format!("MOTO_AMIS_PATH={}", images.display()),
        ];
        if types == Types::Offered {
            arguments.push("MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION=1".to_owned());
        }
        let server = python.with_file_name("moto_server").display().to_string();
        arguments.extend([server, "-H".to_owned(), "127.0.0.1".to_owned(), "-p".to_owned(), port.to_string()]);
        let process = Process::start(&folder, "moto", Path::new("env"), &arguments);
        wait_until("moto to listen", Duration::from_secs(300), || async {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.map(drop).map_err(|_| process.log_tail())
        })
        .await;
        let url = format!("http://127.0.0.1:{port}");
        let nobody = Keys { id: String::new(), secret: String::new() };
        let made = run_aws(&python, &url, &nobody, &["found", &policy().to_string(), PROFILE, KEY_PAIR]).await;
        let text = |field: &str| made[field].as_str().expect("aws.py prints ids").to_owned();
        Some(Self {
            _process: process,
            folder,
            owner: Keys::of(&made["owner"]),
            manager: Keys::of(&made["manager"]),
            subnet: text("subnet"),
            group: text("group"),
            python,
            url,
        })
    }

    /// Runs a command of `tests/clouds/aws.py` as the owner of the account, and returns its output.
    pub async fn aws(&self, arguments: &[&str]) -> Value {
        run_aws(&self.python, &self.url, &self.owner, arguments).await
    }

    /// The resources of the account: `instances`, `interfaces`, `volumes`.
    pub async fn inventory(&self) -> Value {
        self.aws(&["inventory"]).await
    }

    /// Creates a further user with this policy.
    pub async fn user(&self, name: &str, policy: &Value) -> Keys {
        Keys::of(&self.aws(&["user", name, &policy.to_string()]).await)
    }

    /// The actions of the requests with these keys, in their order.
    pub fn actions_of(&self, keys: &Keys) -> Vec<String> {
        let forms = self.forms_of(keys);
        let action = |form: &String| form.split('&').find_map(|pair| pair.strip_prefix("Action=").map(str::to_owned));
        forms.iter().map(|form| action(form).unwrap_or_default()).collect()
    }

    /// The bodies of the requests with these keys.
    pub fn forms_of(&self, keys: &Keys) -> Vec<String> {
        let log = fs::read_to_string(self.folder.join("requests.jsonl")).unwrap_or_default();
        let requests = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        requests.filter(|request| request["headers"].to_string().contains(&keys.id)).map(|it| form_of(&it)).collect()
    }

    /// Starts the kubelets, so that every running instance has a Node in the cluster.
    pub fn kubelets(&self, kubeconfig: &Path) -> Process {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/kubelets");
        let mut arguments: Vec<String> =
            environment(&self.owner).into_iter().map(|(k, v)| format!("{k}={v}")).collect();
        let python = self.python.display().to_string();
        arguments.extend([python, "-B".to_owned(), program.to_owned(), "aws".to_owned(), self.url.clone()]);
        arguments.push(kubeconfig.display().to_string());
        Process::start(&self.folder, "kubelets", Path::new("env"), &arguments)
    }
}

/// The body of a recorded request.
fn form_of(request: &Value) -> String {
    let body = BASE64_STANDARD.decode(request["body"].as_str().unwrap_or_default()).unwrap_or_default();
    String::from_utf8_lossy(&body).into_owned()
}

async fn run_aws(python: &Path, url: &str, keys: &Keys, arguments: &[&str]) -> Value {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clouds/aws.py");
    let mut command = Command::new(python);
    command.arg("-B").arg(program).arg(url).args(arguments).envs(environment(keys)).kill_on_drop(true);
    let run = command.output().await.expect("Python runs");
    assert!(run.status.success(), "aws.py {arguments:?}: {}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).expect("aws.py prints JSON")
}

fn environment(keys: &Keys) -> [(&'static str, String); 5] {
    [
        ("AWS_ACCESS_KEY_ID", keys.id.clone()),
        ("AWS_SECRET_ACCESS_KEY", keys.secret.clone()),
        ("AWS_DEFAULT_REGION", "eu-west-1".to_owned()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ("AWS_CONFIG_FILE", "/dev/null".to_owned()),
    ]
}

fn images_of_the_region() -> Value {
    json!([{
        "ami_id": IMAGE, "name": "gardenlinux", "description": "an image for nodes", "owner_id": "013907871322", "public": true,
        "virtualization_type": "hvm", "architecture": "x86_64", "state": "available", "platform": null, "image_type": "machine",
        "hypervisor": "xen", "root_device_name": ROOT_DEVICE, "root_device_type": "ebs", "sriov": "simple",
    }])
}
