//! Creates the VM of a machine, or goes on with an earlier creation.
//!
//! All names are derived from the name of the machine, so that a request whose answer was lost can be sent again. A creation first looks for the VM:
//! it must not change a VM that exists.

use cloud_client::Failure;
use machine_driver::{Code, CreatedVm, NodeAddress, OpContext, OwnerTags, SecretData, Status, VmIdentity};
use serde_json::json;

use crate::{
    api::{self, Plan},
    arm::{Arm, Changed, Found, LONG, Overwrite, SHORT, Sent, Session},
    body::{self, NewVm},
    names::is_name,
    plan::{self, AfterFailure, Begin, Supply},
    remove::{self, Target},
    resources::{Resource, text},
    spec::{DataDisk, Image, Spec},
    state::Kept,
    subject::{Home, Subject},
};

/// The creation of a VM.
pub struct Creation<'a> {
    pub subject: &'a Subject<'a>,
    pub spec: &'a Spec,
    pub arm: &'a Arm,
    pub cx: &'a OpContext,
    pub name: &'a str,
    pub owner: &'a OwnerTags,
}

/// A creation in a place.
struct Placed<'a> {
    creation: &'a Creation<'a>,
    azure: Session<'a>,
    home: Home,
}

impl<'a> Creation<'a> {
    /// Creates the VM.
    ///
    /// # Errors
    /// The failure, with the state for the next call if something may be left.
    pub async fn run(&self) -> Result<CreatedVm, Status> {
        let of_class = self.subject.home_of_class().ok_or_else(|| {
            Status::new(
                Code::InvalidArgument,
                "providerSpec.resourceGroup: Required value: must provide a resourceGroup",
            )
        })?;
        let earlier = self.subject.home_of_machine().filter(|home| !home.is_same_place(&of_class));
        if let Some(home) = earlier {
            // The class names another place now. What an earlier creation has made is used or deleted.
            let placed = self.at(home);
            if let Some(vm) = placed.own_vm().await? {
                return placed.go_on(Some(vm)).await;
            }
            let target = Target::of(self.subject, self.name);
            remove::from(&placed.azure, &placed.home, &target).await.map_err(|status| placed.keeping(status))?;
        }
        let placed = self.at(of_class);
        let found = placed.azure.virtual_machine(&placed.home.group, self.name).await?;
        if found == Found::NoGroup {
            let group = &placed.home.group;
            let message = format!("subscription {} has no resource group {}", group.subscription, group.name);
            return Err(Status::new(Code::InvalidArgument, message));
        }
        placed.go_on(found.resource()).await
    }

    const fn at(&'a self, home: Home) -> Placed<'a> {
        let azure = self.arm.session(self.cx, &self.subject.login, home.cloud);
        Placed { creation: self, azure, home }
    }
}

impl Placed<'_> {
    /// The VM of the machine, if it is there.
    async fn own_vm(&self) -> Result<Option<Resource>, Status> {
        let Creation { name, owner, subject, .. } = self.creation;
        let found = self.azure.virtual_machine(&self.home.group, name).await;
        let vm = found.map_err(|failure| self.keeping(failure.into()))?.resource();
        let is_ours = |vm: &Resource| plan::Belonging::of(vm, Some(owner), subject.evidence()) == plan::Belonging::Ours;
        Ok(vm.filter(is_ours))
    }

    /// Goes on with what there is.
    async fn go_on(&self, vm: Option<Resource>) -> Result<CreatedVm, Status> {
        let Creation { name, owner, subject, .. } = self.creation;
        match plan::begin(vm.as_ref(), name, owner, subject.evidence()) {
            Begin::Fail(status) => Err(status),
            Begin::Adopt => self.adopt(vm.unwrap_or_default()).await,
            Begin::Wait => self.wait().await,
            Begin::Make => self.make().await,
            Begin::Replace => {
                let target = Target::of(subject, name);
                let removed = remove::from(&self.azure, &self.home, &target).await;
                removed.map_err(|status| self.keeping(status))?;
                self.make().await
            }
        }
    }

    /// Takes over a VM. If its creation has failed for lack of capacity, before the process could delete it, it is deleted now.
    async fn adopt(&self, vm: Resource) -> Result<CreatedVm, Status> {
        if vm.is("Failed")
            && self.creation.subject.id.is_none()
            && let Some(failure) = self.failure_of_vm().await?
            && failure.status.code == Code::ResourceExhausted
        {
            return Err(self.after(failure).await);
        }
        Ok(self.created(&[]))
    }

    /// Waits for the end of an earlier creation.
    async fn wait(&self) -> Result<CreatedVm, Status> {
        let name = self.creation.name;
        let path = api::virtual_machine(&self.home.group, name);
        match self.azure.finish(Sent::get("virtual_machine_get", "virtualMachines.get", &path), LONG).await {
            Ok(Changed::Done(_)) => Ok(self.created(&[])),
            Ok(Changed::StillRuns) => Err(self.keeping(still_runs("VM", name))),
            Err(failure) => {
                let known = self.failure_of_vm().await?;
                Err(self.after(known.unwrap_or(failure)).await)
            }
        }
    }

    /// Why Azure could not make the VM.
    async fn failure_of_vm(&self) -> Result<Option<Failure>, Status> {
        let view = self.azure.virtual_machine_view(&self.home.group, self.creation.name).await;
        let vm = view.map_err(|failure| self.keeping(failure.into()))?.resource();
        Ok(vm.and_then(|vm| plan::failure_of_vm("virtualMachines.createOrUpdate", &vm)))
    }

    /// Makes the VM and its parts.
    async fn make(&self) -> Result<CreatedVm, Status> {
        let Creation { spec, name, subject, .. } = self.creation;
        let image = &spec.properties.storage_profile.image_reference;
        let plan = self.plan_of(image).await?;
        self.check_subnet().await?;
        let nic = self.network_interface().await.map_err(|status| self.keeping(status))?;
        self.disks_of_images().await.map_err(|status| self.keeping(status))?;
        let needs_key = spec.properties.os_profile.linux_configuration.ssh.public_keys.key_data.trim().is_empty();
        let public_key = if needs_key { Some(body::throw_away_key()?) } else { None };
        let body = body::virtual_machine(NewVm {
            spec,
            home: &self.home,
            name,
            user_data: subject.secret.get(SecretData::USER_DATA).unwrap_or_default(),
            plan: plan.as_ref(),
            public_key: public_key.as_deref(),
        });
        let path = api::virtual_machine(&self.home.group, name);
        let put = Sent {
            overwrite: Overwrite::Never,
            ..Sent::put("virtual_machine_create", "virtualMachines.createOrUpdate", &path, &body)
        };
        match self.azure.change(put, LONG).await {
            Ok(Changed::Done(_)) => Ok(self.created(&addresses(&nic))),
            Ok(Changed::StillRuns) => Err(self.keeping(still_runs("VM", name))),
            Err(failure) if plan::after_failure(&failure) == AfterFailure::Look => self.look_again(failure).await,
            Err(failure) => Err(self.after(failure).await),
        }
    }

    /// Looks at the VM that exists although there was none a moment ago. An earlier try of the request has made it, or another program.
    async fn look_again(&self, failure: Failure) -> Result<CreatedVm, Status> {
        let Creation { name, owner, subject, .. } = self.creation;
        let found = self.azure.virtual_machine(&self.home.group, name).await;
        let vm = found.map_err(|failure| self.keeping(failure.into()))?.resource();
        match plan::begin(vm.as_ref(), name, owner, subject.evidence()) {
            Begin::Fail(status) => Err(self.keeping(status)),
            Begin::Wait => self.wait().await,
            Begin::Adopt => self.adopt(vm.unwrap_or_default()).await,
            // The next attempt begins anew.
            Begin::Make | Begin::Replace => Err(self.keeping(Status { code: Code::Aborted, ..failure.status })),
        }
    }

    /// Carries out what follows from the failure of a VM's creation.
    async fn after(&self, failure: Failure) -> Status {
        let Creation { name, subject, .. } = self.creation;
        let mut target = Target::of(subject, name);
        target.disks.extend(self.data_disks());
        let next = plan::after_failure(&failure);
        let status = Status::from(failure);
        let cleaned = match next {
            AfterFailure::DeleteAll => remove::from(&self.azure, &self.home, &target).await.map(|_| ()),
            AfterFailure::DeleteDisks => remove::disks(&self.azure, &self.home, &target).await,
            AfterFailure::Look | AfterFailure::Keep => Ok(()),
        };
        let code = match (next, status.code) {
            (AfterFailure::DeleteDisks, _) => Code::Aborted,
            // What is missing is a resource that the class names, not the VM.
            (_, Code::NotFound) => Code::InvalidArgument,
            (_, code) => code,
        };
        let message = match cleaned {
            Ok(()) => status.message,
            Err(left) => format!("{}; and not everything could be deleted: {}", status.message, left.message),
        };
        self.keeping(Status { code, message, ..status })
    }

    /// The purchase plan of an image of the marketplace, after its terms have been accepted.
    async fn plan_of(&self, image: &Image) -> Result<Option<Plan>, Status> {
        if image.skip_marketplace_agreement || image.marketplace().is_none() {
            return Ok(None);
        }
        let Some(found) = self.marketplace_image(image).await? else { return Ok(None) };
        let plan = &found.0["properties"]["plan"];
        if !plan.is_object() {
            return Ok(None);
        }
        let field = |name: &str| text(&plan[name]).to_owned();
        let plan = Plan { name: field("name"), product: field("product"), publisher: field("publisher") };
        if [&plan.name, &plan.product, &plan.publisher].into_iter().any(|part| !is_name(part)) {
            return Err(Status::new(Code::Internal, format!("the plan of image {} has no usable names", image.urn)));
        }
        self.accept_terms(&plan).await?;
        Ok(Some(plan))
    }

    /// The image of the marketplace that a class names by an urn.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    async fn marketplace_image(&self, image: &Image) -> Result<Option<Resource>, Status> {
        let Some(named) = image.marketplace() else { return Ok(None) };
        let path = api::marketplace_image(&self.home.group.subscription, &region(&self.home.location), named);
        match self.azure.look(Sent::get("virtual_machine_image_get", "virtualMachineImages.get", &path)).await? {
            Found::Resource(found) => Ok(Some(found)),
            Found::Nothing | Found::NoGroup => {
                Err(Status::new(Code::NotFound, format!("image {} was not found in {}", image.urn, self.home.location)))
            }
        }
    }

    async fn accept_terms(&self, plan: &Plan) -> Result<(), Status> {
        let path = api::agreement(&self.home.group.subscription, plan);
        let get = Sent::get("marketplace_agreement_get", "marketplaceAgreements.get", &path);
        let mut agreement = match self.azure.look(get).await {
            Ok(Found::Resource(Resource(agreement))) => agreement,
            Err(failure) if failure.status.code != Code::FailedPrecondition => return Err(failure.into()),
            // The service has other codes than Compute for what it does not know.
            Ok(Found::Nothing | Found::NoGroup) | Err(_) => {
                let message = format!("the agreement for plan {} of {} was not found", plan.name, plan.publisher);
                return Err(Status::new(Code::NotFound, message));
            }
        };
        if agreement["properties"]["accepted"] == json!(true) {
            return Ok(());
        }
        if !agreement["properties"].is_object() {
            agreement = json!({"properties": {}});
        }
        agreement["properties"]["accepted"] = json!(true);
        let put = Sent::put("marketplace_agreement_create", "marketplaceAgreements.create", &path, &agreement);
        self.azure.send(put).await?;
        Ok(())
    }

    async fn check_subnet(&self) -> Result<(), Status> {
        let (group, network, subnet) = body::subnet(self.creation.spec, &self.home);
        let path = api::subnet(&group, network, subnet);
        match self.azure.look(Sent::get("subnet_get", "subnets.get", &path)).await? {
            Found::Resource(_) => Ok(()),
            Found::Nothing | Found::NoGroup => {
                let message = format!("network {network} of resource group {} has no subnet {subnet}", group.name);
                Err(Status::new(Code::InvalidArgument, message))
            }
        }
    }

    async fn network_interface(&self) -> Result<Resource, Status> {
        let name = plan::network_interface(self.creation.name);
        let found = self.azure.network_interface(&self.home.group, &name).await?.resource();
        match self.supply(found.as_ref(), "network interface", &name) {
            Supply::Fail(status) => Err(status),
            Supply::Use => Ok(found.unwrap_or_default()),
            Supply::Make => {
                let body = body::network_interface(self.creation.spec, &self.home, &name);
                let path = api::network_interface(&self.home.group, &name);
                let put = Sent::put("nic_create", "networkInterfaces.createOrUpdate", &path, &body);
                match self.azure.change(put, LONG).await.map_err(of_class)? {
                    Changed::Done(nic) => Ok(nic),
                    Changed::StillRuns => Err(still_runs("network interface", &name)),
                }
            }
        }
    }

    /// Makes the data disks with the content of images, one after the other. Azure makes the others with the VM.
    async fn disks_of_images(&self) -> Result<(), Status> {
        for disk in &self.creation.spec.properties.storage_profile.data_disks {
            if let Some(image) = &disk.image_ref {
                self.disk_of_image(disk, image).await?;
            }
        }
        Ok(())
    }

    async fn disk_of_image(&self, disk: &DataDisk, image: &Image) -> Result<(), Status> {
        let name = plan::data_disk(self.creation.name, &disk.key());
        let found = self.azure.disk(&self.home.group, &name).await?.resource();
        match self.supply(found.as_ref(), "disk", &name) {
            Supply::Fail(status) => return Err(status),
            Supply::Use => return Ok(()),
            Supply::Make => {}
        }
        let of_urn = self.marketplace_image(image).await?;
        let id_of_urn = of_urn.as_ref().map(|found| text(&found.0["id"]));
        let body = body::disk(self.creation.spec, &self.home, disk, image, id_of_urn);
        let path = api::disk(&self.home.group, &name);
        let put = Sent::put("disk_create", "disks.createOrUpdate", &path, &body);
        match self.azure.change(put, SHORT).await.map_err(of_class)? {
            Changed::Done(_) => Ok(()),
            Changed::StillRuns => Err(still_runs("disk", &name)),
        }
    }

    fn supply(&self, found: Option<&Resource>, kind: &str, name: &str) -> Supply {
        let Creation { name: machine, owner, subject, .. } = self.creation;
        plan::supply(found, (kind, name, machine), owner, subject.evidence())
    }

    /// The names of the data disks of the class.
    fn data_disks(&self) -> Vec<String> {
        let disks = &self.creation.spec.properties.storage_profile.data_disks;
        disks.iter().map(|disk| plan::data_disk(self.creation.name, &disk.key())).collect()
    }

    fn created(&self, addresses: &[String]) -> CreatedVm {
        let Creation { name, subject, .. } = self.creation;
        let vm = identity(subject.provider_id(&self.home, name), name, addresses);
        CreatedVm { vm, last_known_state: Some(self.kept().state()) }
    }

    fn kept(&self) -> Kept {
        Kept::new(&self.home, self.creation.owner, self.data_disks())
    }

    /// The failure with the state for the next call.
    fn keeping(&self, status: Status) -> Status {
        Status { last_known_state: Some(self.kept().state()), ..status }
    }
}

/// The identity of a VM. Azure's Nodes have the names of their VMs.
pub fn identity(provider_id: String, name: &str, addresses: &[String]) -> VmIdentity {
    let address = |type_: &str, address: &str| NodeAddress { type_: type_.to_owned(), address: address.to_owned() };
    let internal = addresses.iter().map(|one| address("InternalIP", one));
    let addresses = internal.chain([address("Hostname", name)]).collect();
    VmIdentity { provider_id, node_name: name.to_owned(), addresses }
}

fn addresses(nic: &Resource) -> Vec<String> {
    nic.addresses().map(str::to_owned).collect()
}

fn still_runs(kind: &str, name: &str) -> Status {
    let message = format!("the creation of {kind} {name} has not ended yet; the next attempt waits for it");
    Status::new(Code::DeadlineExceeded, message)
}

/// The failure of a request for a part of a VM. What is missing is a resource that the class names, not the VM.
fn of_class(failure: Failure) -> Status {
    let code = if failure.status.code == Code::NotFound { Code::InvalidArgument } else { failure.status.code };
    Status { code, ..failure.status }
}

/// The name of a region in paths.
fn region(location: &str) -> String {
    location.replace(' ', "").to_ascii_lowercase()
}
