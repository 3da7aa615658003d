//! The running services, and classes and Secrets for them. An independent client, openstacksdk, reads and changes their state.

use std::{
    env, fs,
    io::{self, Write},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use driver_openstack::{API_VERSION, KIND, OPENSTACK, OpenStackDriver, OpenStackOptions};
use machine_driver::{
    CreatedVm, DeletedVm, Driver, ListRequest, ListedVm, Machine, MachineClass, MachineRequest, OpContext, SecretData,
    Status, VmIdentity,
};
use serde_json::{Value, json};
use tokio::process::Command;

/// The environment variable with the folder of `scripts/test-openstack`.
const FOLDER: &str = "MCM_TEST_OPENSTACK";

/// The running services. If they do not run, prints that the test is skipped and returns `None`.
pub fn services(test: &str) -> Option<Services> {
    let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) else {
        // Written to standard error directly, because the output of `eprintln!` is captured for tests that pass.
        let _ =
            writeln!(io::stderr(), "SKIPPED {test}: there is no OpenStack to test with; see scripts/test-openstack");
        return None;
    };
    let read = |name: &str| -> Value {
        let text = fs::read(folder.join(name)).expect("the services have been started");
        serde_json::from_slice(&text).expect("it is JSON")
    };
    Some(Services { clouds: read("clouds.yaml")["clouds"].take(), made: read("made.json"), folder })
}

/// The services.
pub struct Services {
    folder: PathBuf,
    clouds: Value,
    pub made: Value,
}

impl Services {
    /// Runs a program of `tests/openstack` and returns the JSON that it prints.
    pub async fn run(&self, program: &str, arguments: &[&str]) -> Value {
        // The tests of a crate run in the folder of the crate.
        let program = format!("{}/../../tests/openstack/{program}", env!("CARGO_MANIFEST_DIR"));
        let python = self.folder.parent().expect("it is in the cache").join("venv/bin/python");
        let run = Command::new(python).arg("-B").arg(program).arg(&self.folder).args(arguments).output().await;
        let run = run.expect("Python runs");
        assert!(run.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&run.stderr));
        serde_json::from_slice(&run.stdout).expect("it prints JSON")
    }

    /// Runs `ask.py`.
    async fn ask(&self, cloud: &str, arguments: &[&str]) -> Value {
        self.run("ask.py", &[&[cloud], arguments].concat()).await
    }

    /// Makes a request as another client. The request must succeed.
    pub async fn call(&self, cloud: &str, method: &str, service: &str, path: &str, body: Value) -> Value {
        let body = body.to_string();
        let mut arguments = vec!["call", method, service, path];
        if body != "null" {
            arguments.push(&body);
        }
        let mut answer = self.ask(cloud, &arguments).await;
        assert!(answer["status"].as_u64().is_some_and(|status| status < 300), "{method} {path}: {answer}");
        answer["body"].take()
    }

    fn text(value: &Value) -> String {
        value.as_str().unwrap_or_default().to_owned()
    }

    /// The Secret for a login in `clouds.yaml`.
    pub fn secret(&self, cloud: &str) -> SecretData {
        let cloud = &self.clouds[cloud];
        let auth = &cloud["auth"];
        let file = |key: &str| cloud[key].as_str().map(|path| fs::read_to_string(path).expect("a certificate"));
        let mut secret = SecretData::default();
        for (key, value) in [
            ("authURL", Some(Self::text(&auth["auth_url"]))),
            ("domainID", Some("default".to_owned())),
            ("tenantName", auth["project_name"].as_str().map(str::to_owned)),
            ("username", auth["username"].as_str().map(str::to_owned)),
            ("password", auth["password"].as_str().map(str::to_owned)),
            ("applicationCredentialID", auth["application_credential_id"].as_str().map(str::to_owned)),
            ("applicationCredentialSecret", auth["application_credential_secret"].as_str().map(str::to_owned)),
            ("caCert", file("cacert")),
            ("clientCert", file("cert")),
            ("clientKey", file("key")),
            ("userData", Some("#!/bin/sh\n".to_owned())),
        ] {
            if let Some(value) = value {
                secret.set(key, value.into_bytes());
            }
        }
        secret
    }

    /// A class for the project of a login. The test is the owner of its servers.
    pub fn class(&self, cloud: &str, test: &str, patch: &Value) -> MachineClass {
        let project = if cloud == "tiny" { &self.made["tiny"] } else { &self.made["machines"] };
        let mut spec = json!({
            "imageName": "linux", "region": self.clouds[cloud]["region_name"], "availabilityZone": "nova", "flavorName": "small",
            "keyName": "machines", "securityGroups": ["machines"], "networkID": project["network"], "subnetID": project["subnet"],
            "podNetworkCIDRs": ["100.64.0.0/12"], "tags": tags(test),
        });
        json_patch::merge(&mut spec, patch);
        let provider_spec = json!({"apiVersion": API_VERSION, "kind": KIND, "spec": spec});
        MachineClass { provider: OPENSTACK.to_owned(), provider_spec, ..MachineClass::default() }
    }
}

fn tags(test: &str) -> Value {
    json!({format!("kubernetes.io-cluster-{test}"): "1", "kubernetes.io-role-node": "1"})
}

/// A machine of a test, with its driver.
pub struct Subject<'s> {
    pub services: &'s Services,
    pub driver: OpenStackDriver,
    pub cloud: &'static str,
    pub test: &'static str,
    pub name: String,
    pub provider_id: String,
    /// The state that the controllers keep of the machine between calls.
    pub last_known_state: String,
    pub patch: Value,
    pub secret: SecretData,
}

impl<'s> Subject<'s> {
    /// The machine `TEST-1`.
    pub fn new(services: &'s Services, cloud: &'static str, test: &'static str, patch: Value) -> Self {
        Self {
            driver: OpenStackDriver::new(OpenStackOptions::default()),
            secret: services.secret(cloud),
            name: format!("{test}-1"),
            provider_id: String::new(),
            last_known_state: String::new(),
            services,
            cloud,
            test,
            patch,
        }
    }

    pub fn class(&self) -> MachineClass {
        self.services.class(self.cloud, self.test, &self.patch)
    }

    pub fn cx() -> OpContext {
        OpContext::within(Duration::from_secs(300))
    }

    fn request(&self) -> MachineRequest {
        let mut machine = Machine::default();
        machine.metadata.name = Some(self.name.clone());
        machine.spec.provider_id.clone_from(&self.provider_id);
        machine.status.last_known_state.clone_from(&self.last_known_state);
        MachineRequest { machine: Arc::new(machine), class: Arc::new(self.class()), secret: self.secret.clone() }
    }

    pub async fn create(&self) -> Result<CreatedVm, Status> {
        self.driver.create_machine(&Self::cx(), self.request()).await
    }

    pub async fn status(&self) -> Result<VmIdentity, Status> {
        self.driver.get_machine_status(&Self::cx(), self.request()).await
    }

    pub async fn initialize(&self) -> Result<VmIdentity, Status> {
        self.driver.initialize_machine(&Self::cx(), self.request()).await
    }

    pub async fn delete(&self) -> Result<DeletedVm, Status> {
        self.driver.delete_machine(&Self::cx(), self.request()).await
    }

    pub async fn list(&self) -> Result<Vec<ListedVm>, Status> {
        let request = ListRequest { class: Arc::new(self.class()), secret: self.secret.clone() };
        self.driver.list_machines(&Self::cx(), request).await
    }

    /// The servers, ports and volumes of the test's machines, read with openstacksdk.
    pub async fn inventory(&self) -> Inventory {
        // The logins with TLS are for the same project.
        let cloud = if self.cloud == "tiny" { "tiny" } else { "machines" };
        let all = self.services.ask(cloud, &["inventory"]).await;
        let cluster = format!("kubernetes.io-cluster-{}", self.test);
        let list = |kind: &str| all[kind].as_array().cloned().unwrap_or_default();
        let is_named = |thing: &Value| {
            let rest = thing["name"].as_str().and_then(|name| name.strip_prefix(self.test)?.strip_prefix('-'));
            rest.is_some_and(|rest| !rest.contains('-'))
        };
        let is_marked = |thing: &Value| {
            let is_tagged = thing["tags"].as_array().is_some_and(|tags| tags.contains(&json!(cluster)));
            let is_described = thing["description"].as_str().is_some_and(|text| text.contains(&format!("{cluster} ")));
            is_tagged || is_described || thing["metadata"].get(&cluster).is_some()
        };
        let is_its = |thing: &Value| is_named(thing) || is_marked(thing);
        let servers: Vec<_> = list("servers").into_iter().filter(is_its).map(|server| server["id"].clone()).collect();
        let of = |kind: &str| {
            let things = list(kind).into_iter();
            things.filter(|thing| is_its(thing) || servers.contains(&thing["device_id"])).collect()
        };
        Inventory { servers: of("servers"), ports: of("ports"), volumes: of("volumes") }
    }

    /// Asserts that there is no server, port or volume of the test's machines.
    pub async fn assert_nothing_is_left(&self) {
        let left = self.inventory().await;
        assert!(left.servers.is_empty() && left.ports.is_empty() && left.volumes.is_empty(), "{left:?}");
    }
}

/// The servers, ports and volumes of a test.
#[derive(Debug)]
pub struct Inventory {
    pub servers: Vec<Value>,
    pub ports: Vec<Value>,
    pub volumes: Vec<Value>,
}
