//! An example of a driver, as a starting point. Its cloud is a folder, and a VM is a file in it. `docs/drivers.md` says what each call must do.

#![forbid(unsafe_code)]

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
};

use machine_driver::{
    Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, FieldPath, Findings, ListRequest, ListedVm,
    MachineClass, MachineRequest, OpContext, Owner, RuleId, SameInstance, Status, VmIdentity, VolumeIdsRequest,
    async_trait, provider_spec, same_instance,
};
use serde::Deserialize;
use serde_json::json;

/// The `provider` string of the classes that this driver serves.
pub const PROVIDER: &str = "folder";
/// The beginning of provider ids. Cluster and machine follow, for example `folder:///shoot-a/worker-1`.
const SCHEME: &str = "folder:///";
/// The rule over classes beyond their schema.
const CLUSTER_IS_A_FOLDER: RuleId = RuleId::declare("FOLDER-1");

/// Serves the classes of provider `folder`.
pub struct FolderDriver {
    info: DriverInfo,
    root: PathBuf,
}

/// The `providerSpec` of a class. Other fields are ignored, and admission warns of them.
#[derive(Deserialize)]
struct Spec {
    /// The cluster that owns the VMs. The driver never touches VMs of other clusters.
    cluster: String,
    /// The content of the file.
    size: String,
}

/// A VM, which may exist or not.
struct Vm {
    cluster: String,
    machine: String,
}

impl Vm {
    /// The VM of the machine in a request: by the provider id, or by the name of a machine without one.
    ///
    /// # Errors
    /// `NotFound` if the provider id belongs to a VM of another cluster, so that this VM is not touched.
    fn of(request: &MachineRequest) -> Result<Self, Status> {
        let spec: Spec = checked(&request.class)?;
        let named = || Some((spec.cluster.as_str(), request.machine.metadata.name.as_deref()?));
        let (cluster, machine) = request
            .machine
            .spec
            .provider_id
            .strip_prefix(SCHEME)
            .and_then(|id| id.split_once('/'))
            .or_else(named)
            .unwrap_or_default();
        if !is_name(cluster) || !is_name(machine) {
            return Err(Status::new(Code::InvalidArgument, format!("no VM can be called {cluster:?}/{machine:?}")));
        }
        if cluster != spec.cluster {
            return Err(Status::new(
                Code::NotFound,
                format!("VM {cluster}/{machine} is not of cluster {}", spec.cluster),
            ));
        }
        Ok(Self { cluster: cluster.to_owned(), machine: machine.to_owned() })
    }

    fn identity(&self) -> VmIdentity {
        VmIdentity {
            provider_id: format!("{SCHEME}{}/{}", self.cluster, self.machine),
            node_name: self.machine.clone(),
            ..VmIdentity::default()
        }
    }
}

impl FolderDriver {
    /// A driver for the VMs in this folder, which has a subfolder for each cluster.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let text = json!({ "type": "string" });
        let schema = json!({ "type": "object", "properties": { "cluster": text, "size": text }, "required": ["cluster", "size"] });
        let capabilities = Capabilities { create_is_idempotent: true, lists_creation_time: false };
        let info =
            DriverInfo { name: "folder", providers: vec![PROVIDER.to_owned()], schema: Some(schema), capabilities };
        Self { info, root: root.into() }
    }

    fn file(&self, vm: &Vm) -> PathBuf {
        self.root.join(&vm.cluster).join(&vm.machine)
    }
}

/// Whether this text can be the name of a file or a folder.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains('/')
}

/// The spec of a class that this driver serves.
fn checked(class: &MachineClass) -> Result<Spec, Status> {
    if class.provider != PROVIDER {
        return Err(Status::new(Code::InvalidArgument, format!("provider {:?} is not {PROVIDER:?}", class.provider)));
    }
    let spec: Spec = provider_spec(class)?;
    if !is_name(&spec.cluster) {
        // The class may have been stored while the webhook did not answer.
        return Err(Status::new(Code::InvalidArgument, format!("no folder can be called {:?}", spec.cluster)));
    }
    Ok(spec)
}

/// The answer of the cloud, with an error code. The code determines how the controllers go on with the machine.
fn answered<T>(answer: io::Result<T>) -> Result<T, Status> {
    answer.map_err(|error| {
        let code = match error.kind() {
            io::ErrorKind::NotFound => Code::NotFound,
            io::ErrorKind::PermissionDenied => Code::PermissionDenied,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::ResourceExhausted,
            _ => Code::Unavailable,
        };
        Status::new(code, error.to_string())
    })
}

#[async_trait]
impl Driver for FolderDriver {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn owner(&self, class: &MachineClass) -> Option<Owner> {
        let Spec { cluster, .. } = provider_spec(class).ok()?;
        Some(Owner::new(cluster, "worker"))
    }

    fn validate(&self, class: &MachineClass, found: &mut Findings) {
        // The schema checks the types. Rules that it can't express are here.
        if let Ok(Spec { cluster, .. }) = provider_spec(class)
            && !is_name(&cluster)
        {
            found.invalid(
                CLUSTER_IS_A_FOLDER,
                FieldPath::new("providerSpec").child("cluster"),
                cluster,
                "must be the name of a folder",
            );
        }
    }

    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        let vm = Vm::of(&request)?;
        let Spec { size, .. } = checked(&request.class)?;
        let make = async {
            // The file system answers immediately. A driver for a real cloud awaits the answer here.
            answered(fs::create_dir_all(self.root.join(&vm.cluster)))?;
            match fs::File::create_new(self.file(&vm)).and_then(|mut file| file.write_all(size.as_bytes())) {
                // There is one VM per machine. A VM does not change when its class is edited.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                made => answered(made),
            }
        };
        cx.request("vm_create", make).await?;
        Ok(CreatedVm { vm: vm.identity(), last_known_state: None })
    }

    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        let vm = Vm::of(&request)?;
        cx.request("vm_delete", async { answered(fs::remove_file(self.file(&vm))) }).await?;
        Ok(DeletedVm::default())
    }

    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let vm = Vm::of(&request)?;
        cx.request("vm_get", async { answered(fs::metadata(self.file(&vm))) }).await?;
        Ok(vm.identity())
    }

    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        let Spec { cluster, .. } = checked(&request.class)?;
        let list = async {
            match answered(fs::read_dir(self.root.join(&cluster)).and_then(Iterator::collect::<io::Result<Vec<_>>>)) {
                Err(status) if status.code == Code::NotFound => Ok(Vec::new()),
                listed => listed,
            }
        };
        let vm = |entry: fs::DirEntry| {
            let machine_name = entry.file_name().to_string_lossy().into_owned();
            ListedVm { provider_id: format!("{SCHEME}{cluster}/{machine_name}"), machine_name, created: None }
        };
        Ok(cx.request("vm_list", list).await?.into_iter().map(vm).collect())
    }

    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        same_instance::by_last_segment(machine, node)
    }

    async fn get_volume_ids(&self, _: &OpContext, _: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use machine_driver::{Machine, SecretData, contract};

    use super::*;

    fn class(cluster: &str, size: &str) -> MachineClass {
        let provider_spec = json!({ "cluster": cluster, "size": size });
        let mut class = MachineClass { provider: PROVIDER.to_owned(), provider_spec, ..MachineClass::default() };
        class.metadata.namespace = Some("shoot-a".to_owned());
        class
    }

    #[tokio::test(start_paused = true)]
    async fn the_contract_holds() {
        let root = tempfile::tempdir().unwrap();
        contract::holds_for(&FolderDriver::new(root.path()), class("shoot-a", "small"), SecretData::default()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_does_not_change_when_its_class_is_edited() {
        let root = tempfile::tempdir().unwrap();
        let driver = FolderDriver::new(root.path());
        for size in ["small", "large"] {
            let mut machine = Machine::default();
            machine.metadata.name = Some("worker-1".to_owned());
            let (machine, class) = (Arc::new(machine), Arc::new(class("shoot-a", size)));
            let request = MachineRequest { machine, class, secret: SecretData::default() };
            driver.create_machine(&OpContext::within(Duration::from_secs(1)), request).await.unwrap();
        }
        assert_eq!(fs::read_to_string(root.path().join("shoot-a/worker-1")).unwrap(), "small");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_outside_the_folder_is_refused() {
        let driver = FolderDriver::new("/");
        let request = ListRequest { class: Arc::new(class("..", "small")), secret: SecretData::default() };
        let refused = driver.list_machines(&OpContext::within(Duration::from_secs(1)), request).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
    }
}
