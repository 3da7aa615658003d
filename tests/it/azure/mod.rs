//! The program creates VMs of Azure: with kubectl, a real API server, `mcm serve`, the fake of Azure Resource Manager (`tests/fakes/azure`), and
//! kubelets that query the fake with Microsoft's own clients.

mod faults;

use std::{collections::BTreeSet, path::Path, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use fake_azure::{
    CLIENT_SECRET, LOCATION, Method, OTHER_VM_SIZE, OperationError, RESOURCE_GROUP, Refusal, SUBSCRIPTION, Timing,
    VM_SIZE,
};
use serde_json::{Value, json};

use crate::{
    cloud::{Account, Size, Stage, a_life},
    support::{
        azure::{Azure, TAGS},
        cluster_object::{name, text},
        process::Process,
        scratch,
    },
};

/// How long things take: long enough that every state of a VM is seen. One wait is one second.
const TIMING: Timing = Timing { operation: Duration::from_millis(1500), retry_after: Duration::from_secs(1) };

/// A cluster and a subscription without VMs.
async fn stage(test: &str) -> Option<Stage<Azure>> {
    Stage::new(test, Azure::start(test, TIMING).await?).await
}

impl Account for Azure {
    const NAMESPACE: &'static str = "azure";

    fn kubelets(&self, kubeconfig: &Path) -> Process {
        self.start_kubelets(kubeconfig)
    }

    fn secret(&self) -> Value {
        Self::secret_of_application()
    }

    fn class(&self, size: Size) -> Value {
        Self::class_of(size.class(), Self::NAMESPACE, vm_size(size))
    }

    fn requests(&self) -> Vec<String> {
        self.own_requests()
    }

    async fn inventory(&self) -> (BTreeSet<String>, Vec<usize>) {
        let id = |vm: &Value| format!("azure:///{LOCATION}/{}", text(vm, "/name"));
        let numbers = vec![self.fake.nics().len(), self.fake.disks().len()];
        (self.fake.vms().iter().map(id).collect(), numbers)
    }

    /// One network interface and three disks.
    fn resources_of_one(&self) -> Vec<usize> {
        vec![1, 3]
    }

    async fn check(&self, machines: &[Value], size: Size) {
        vms_match_their_class(self, machines, vm_size(size));
    }

    /// With the id of the VM.
    fn node_id(&self, machine: &Value) -> String {
        let vm =
            format!("resourceGroups/{RESOURCE_GROUP}/providers/Microsoft.Compute/virtualMachines/{}", name(machine));
        format!("azure:///subscriptions/{SUBSCRIPTION}/{vm}")
    }

    /// The secret of the application, the user data as text and as the service gets it, and tokens.
    fn secret_texts(&self) -> Vec<String> {
        let user_data = BASE64_STANDARD.encode("#!/bin/sh\njoin --token ");
        [CLIENT_SECRET, "#!/bin/sh", &user_data, "eyJ0eXAiOiJKV1Qi"].map(str::to_owned).to_vec()
    }
}

const fn vm_size(size: Size) -> &'static str {
    match size {
        Size::Small => VM_SIZE,
        Size::Large => OTHER_VM_SIZE,
    }
}

/// The fake is as Microsoft's own clients expect.
#[tokio::test(flavor = "multi_thread")]
async fn microsofts_own_clients_use_the_fake_with_each_kind_of_credentials() {
    let test = "azure::microsofts_own_clients_use_the_fake_with_each_kind_of_credentials";
    let Some(azure) = Azure::start(test, Timing::default()).await else { return };
    scratch::count_ran(test);
    azure.fake.refuse(Method::ListVms, Refusal::throttled(0), 1);
    azure.check_model().await;
    // The clients create two VMs. The third one fails after it was accepted.
    let run = azure.oracle();
    let arrange = async {
        while azure.fake.count(Method::UpdateVm) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        azure.fake.fail(Method::CreateVm, &OperationError::zonal_allocation_failed(), 1);
        std::future::pending::<()>().await;
    };
    let seen = tokio::select! { seen = run => seen, () = arrange => unreachable!("it waits for ever") };
    let whole = json!(["Succeeded", "Succeeded", "Succeeded"]);
    assert_eq!(seen["created"], json!({"federated": whole, "secret": whole}));
    assert_eq!((&seen["groups"], &seen["power"]), (&json!([true, false]), &json!("PowerState/running")));
    assert_eq!(seen["listed"], json!([["m-federated", "m-secret"], ["m-federated-nic", "m-secret-nic"]]));
    assert_eq!((&seen["graph"], &seen["disks"]), (&json!(["m-federated-nic", "m-secret-nic"]), &json!(6)));
    assert!(text(&seen, "/address").starts_with("10.250."), "{seen}");
    assert_eq!((&seen["changed"], &seen["accepted"]), (&json!("Detach"), &json!(true)));
    let refused = json!([
        [409, "ResourceAvailabilityZonesCannotBeModified"],
        [400, "NicInUse"],
        [409, "OperationNotAllowed"],
        [404, "ResourceNotFound"],
        [400, "BadRequest"],
    ]);
    assert_eq!(seen["refused"], refused);
    assert_eq!(seen["failed"], json!([200, "ZonalAllocationFailed"]));
    let kept = json!(["m-federated-9-data-disk", "m-secret-9-data-disk", "m-secret-os-disk"]);
    assert_eq!((&seen["kept"], &seen["left"]), (&kept, &json!([])));
    assert_eq!(seen["anonymous"], json!([0, "AADSTS7000215"]));
    let by: BTreeSet<_> = azure.fake.requests().into_iter().map(|call| call.by).collect();
    assert!(by.contains("federated") && by.contains("secret"), "{by:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_become_vms_roll_shrink_and_go_again() {
    let Some(stage) = stage("azure::machines_become_vms_roll_shrink_and_go_again").await else { return };
    a_life(&stage, vec![format!("--provider-endpoint=Azure={}", stage.account.fake.url())]).await;
    each_was_created_once(&stage, 6);
}

/// Each name has had one VM.
fn each_was_created_once(stage: &Stage<Azure>, count: usize) {
    let ever = stage.account.fake.created();
    assert_eq!((ever.len(), ever.iter().collect::<BTreeSet<_>>().len()), (count, count), "{ever:?}");
}

/// Checks the VMs, as the fake has them, against the class.
fn vms_match_their_class(azure: &Azure, machines: &[Value], vm_size: &str) {
    let (vms, nics, disks) = (azure.fake.vms(), azure.fake.nics(), azure.fake.disks());
    for machine in machines {
        let one = |all: &[Value], wanted: &str| {
            let found = all.iter().find(|one| text(one, "/name") == wanted);
            found.cloned().unwrap_or_else(|| panic!("{wanted} is not in {all:?}"))
        };
        let own = name(machine);
        let vm = one(&vms, own);
        assert_eq!(text(&vm, "/properties/provisioningState"), "Succeeded");
        assert_eq!((text(&vm, "/properties/hardwareProfile/vmSize"), &vm["zones"]), (vm_size, &json!(["1"])));
        let nic = one(&nics, &format!("{own}-nic"));
        assert_eq!(nic["properties"]["enableIPForwarding"], true);
        let expected = [
            (format!("{own}-os-disk"), "Premium_LRS", 50),
            (format!("{own}-data-1-data-disk"), "StandardSSD_LRS", 20),
            (format!("{own}-image-2-data-disk"), "Premium_LRS", 30),
        ];
        for (disk_name, kind, size) in expected {
            let disk = one(&disks, &disk_name);
            assert_eq!((text(&disk, "/sku/name"), &disk["properties"]["diskSizeGB"]), (kind, &json!(size)), "{disk}");
            assert_eq!((text(&disk, "/properties/diskState"), &disk["zones"]), ("Attached", &json!(["1"])), "{disk}");
            assert_tags(&disk);
        }
        assert_tags(&vm);
        assert_tags(&nic);
        let storage = &vm["properties"]["storageProfile"];
        let options = [
            &storage["osDisk"]["deleteOption"],
            &storage["dataDisks"][0]["deleteOption"],
            &storage["dataDisks"][1]["deleteOption"],
            &vm["properties"]["networkProfile"]["networkInterfaces"][0]["properties"]["deleteOption"],
        ];
        assert_eq!(options, [&json!("Delete"); 4], "{vm}");
        let custom_data = BASE64_STANDARD.decode(azure.fake.custom_data(own).expect("a VM")).expect("base64");
        let script = String::from_utf8(custom_data).expect("text");
        let filled = script.starts_with("#!/bin/sh\njoin --token ") && script.ends_with(&format!(" --name {own}\n"));
        assert!(filled && !script.contains("<<"), "{script}");
    }
}

fn assert_tags(resource: &Value) {
    assert_eq!(resource["tags"], json!({TAGS[0]: "1", TAGS[1]: "1", "pool": "whole"}), "{resource}");
}
