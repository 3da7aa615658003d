//! Every name that objects, other programs and dashboards know this system by.
//!
//! Labels, annotations, finalizers, taints, condition types, reasons and fixed texts; each is a contract with stored
//! objects, cluster-autoscaler, Gardener or kubectl users and must not change meaning. Defaults of flags live with the
//! flags (`cli/`), metric names with the metrics (`server/metrics`).
//!
//! Sources: spec/machine-controller §1, spec/deployment-and-set §2.

/// API group of the four kinds.
pub const GROUP: &str = "machine.sapcloud.io";
/// The version objects are stored in.
pub const V1ALPHA1: &str = "v1alpha1";
/// The successor version, served on request.
pub const V1BETA1: &str = "v1beta1";
/// `group/version` of the stored kinds, as owner references carry it.
pub const API_VERSION_V1ALPHA1: &str = "machine.sapcloud.io/v1alpha1";

/// Finalizers.
pub mod finalizer {
    /// On `Machine`, `MachineSet`, `MachineDeployment` and `MachineClass`.
    pub const MACHINE: &str = "machine.sapcloud.io/machine-controller-manager";
    /// On Secrets that a class refers to.
    pub const SECRET: &str = "machine.sapcloud.io/machine-controller";
    /// On Nodes with a backing machine.
    pub const NODE: &str = "node.machine.sapcloud.io/machine-controller";
}

/// Labels.
pub mod label {
    /// On a Machine: the name of its Node.
    pub const NODE: &str = "node";
    /// On a Machine: its `MachineDeployment`, by Gardener's convention.
    pub const NAME: &str = "name";
    /// On sets, their selectors, templates and machines: tells sibling sets apart.
    pub const MACHINE_TEMPLATE_HASH: &str = "machine-template-hash";
    /// On `MachineSet` and `MachineDeployment`: `True` stops creations.
    pub const FREEZE: &str = "freeze";
    /// On a Machine: a Go boolean; drain by force from the start.
    pub const FORCE_DELETION: &str = "force-deletion";
    /// On a Machine: exactly `True`; in-place and preservation drains by force.
    pub const FORCE_DRAIN: &str = "force-drain";
    /// On a Node: the machine behind it.
    pub const MACHINE_NAME: &str = "node.gardener.cloud/machine-name";
    /// On a Node: it belongs to an old set of an in-place rollout.
    pub const CANDIDATE_FOR_UPDATE: &str = "node.machine.sapcloud.io/candidate-for-update";
    /// On a Node: picked for an in-place update.
    pub const SELECTED_FOR_UPDATE: &str = "node.machine.sapcloud.io/selected-for-update";
    /// On a Node and its Machine: outcome of an in-place update.
    pub const UPDATE_RESULT: &str = "node.machine.sapcloud.io/update-result";
    /// On a `MachineSet`: presence forbids the creation of machines.
    pub const SCALE_UP_DISABLED: &str = "node.machine.sapcloud.io/scale-up-disabled";
    /// On a bootstrap token Secret: the machine it was made for (ours alone; the original has no such label).
    pub const TOKEN_MACHINE: &str = "node.machine.sapcloud.io/machine";
}

/// Annotations.
pub mod annotation {
    /// On a Machine: deletion rank, smaller goes first; absent means [`super::DEFAULT_MACHINE_PRIORITY`].
    pub const MACHINE_PRIORITY: &str = "machinepriority.machine.sapcloud.io";
    /// On deployment, set and machine: a Go duration that beats `spec.creationTimeout`.
    pub const EFFECTIVE_CREATION_TIMEOUT: &str = "node.machine.sapcloud.io/effective-creation-timeout";
    /// On a Machine: how long it took to join.
    pub const MACHINE_JOIN_DURATION: &str = "node.machine.sapcloud.io/machine-join-duration";
    /// On Machine and Node: `now`, `when-failed`, `auto-preserved` or `false`.
    pub const PRESERVE: &str = "node.machine.sapcloud.io/preserve";
    /// On a Machine: the node's preserve value last obeyed.
    pub const LAST_APPLIED_NODE_PRESERVE_VALUE: &str = "node.machine.sapcloud.io/last-applied-node-preserve-value";
    /// On a Node: the machine's node template as last applied, as JSON.
    pub const LAST_APPLIED_TEMPLATE: &str = "node.machine.sapcloud.io/last-applied-anno-labels-taints";
    /// On a Node: the class's virtual capacity as last applied, as JSON.
    pub const LAST_APPLIED_VIRTUAL_CAPACITY: &str = "node.machine.sapcloud.io/last-applied-virtual-capacity";
    /// On a Node: presence tells the node handlers to ignore it.
    pub const NOT_MANAGED: &str = "node.machine.sapcloud.io/not-managed-by-mcm";
    /// On a Node: why an in-place update failed.
    pub const UPDATE_FAILED_REASON: &str = "node.machine.sapcloud.io/update-failed-reason";
    /// On a `MachineDeployment`: `m1~RFC3339,…`, written by cluster-autoscaler.
    pub const TRIGGER_DELETION: &str = "node.machine.sapcloud.io/trigger-deletion-by-mcm";
    /// On a Machine: when it was marked for deletion by the scaler.
    pub const MARKED_FOR_DELETION_TIME: &str = "machine.sapcloud.io/marked-for-deletion-time";
    /// On a `MachineDeployment`, copied to its sets: the scaler's last change of replicas.
    pub const LAST_REPLICA_CHANGE_BY_SCALER: &str = "machine.sapcloud.io/last-deployment-replica-change-by-scaler-time";
    /// Revision of a set, and of the deployment's newest set.
    pub const REVISION: &str = "deployment.kubernetes.io/revision";
    /// Earlier revisions of a set, comma separated.
    pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
    /// On a set: the deployment's replicas when it was last scaled.
    pub const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
    /// On a set: the deployment's replicas and surge when it was last scaled.
    pub const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
    /// On a set: `True` once its nodes carry the prefer-no-schedule taint.
    pub const PREFER_NO_SCHEDULE: &str = "deployment.machine.sapcloud.io/prefer-no-schedule";
    /// On deployment and set: presence asks for an end of the freeze.
    pub const UNFREEZE: &str = "safety.machine.sapcloud.io/unfreeze";
    /// On a Node: keeps cluster-autoscaler from scaling it down.
    pub const SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
    /// On a Node: proves that the previous annotation is ours.
    pub const SCALE_DOWN_DISABLED_BY_MCM: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled-by-mcm";
    /// kubectl's memory of the last apply; never copied.
    pub const KUBECTL_LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    /// On a Pod: it is a static pod's mirror.
    pub const MIRROR_POD: &str = "kubernetes.io/config.mirror";
    /// Comma separated ids of admission rules that this object skips.
    pub const ADMISSION_SKIP: &str = "admission.machine.sapcloud.io/skip";
    /// Prefix of annotations that only admission reads.
    pub const ADMISSION_PREFIX: &str = "admission.machine.sapcloud.io/";
    /// `"false"` keeps the process from writing the CA bundle into an object.
    pub const INJECT_CA: &str = "admission.machine.sapcloud.io/inject-ca";
    /// cert-manager writes the CA bundle; we keep off.
    pub const CERT_MANAGER_INJECT_CA_FROM: &str = "cert-manager.io/inject-ca-from";
    /// On the certificate Secret: how often it was written.
    pub const CERTIFICATE_GENERATION: &str = "certificates.machine.sapcloud.io/generation";
    /// On v1beta1 objects: what v1alpha1 had and v1beta1 cannot say.
    pub const CONVERSION_V1ALPHA1: &str = "conversion.machine.sapcloud.io/v1alpha1";
    /// On v1alpha1 objects: what v1beta1 had and v1alpha1 cannot say.
    pub const CONVERSION_V1BETA1: &str = "conversion.machine.sapcloud.io/v1beta1";
    /// On a v1beta1 `MachineDeployment`: the successor of `rollbackTo`.
    pub const ROLLBACK_TO: &str = "deployment.machine.sapcloud.io/rollback-to";
    /// On a Node made by the virtual cloud.
    pub const SIMULATED_NODE: &str = "virtual.machine.sapcloud.io/simulated";
}

/// Taint keys.
pub mod taint {
    /// Nodes of old sets of a rolling update; value `True`, effect `PreferNoSchedule`.
    pub const PREFER_NO_SCHEDULE: &str = "deployment.machine.sapcloud.io/prefer-no-schedule";
    /// Effect `NoSchedule`: a Pending machine does not become Running while its node has it.
    pub const CRITICAL_COMPONENTS_NOT_READY: &str = "node.gardener.cloud/critical-components-not-ready";
    /// Effect `NoSchedule`: keeps new pods off a preserved failed node.
    pub const PRESERVED: &str = "node.machine.sapcloud.io/preserved";
}

/// Condition types of Nodes that this system writes.
pub mod node_condition {
    /// The node is about to be drained and deleted.
    pub const TERMINATING: &str = "Terminating";
    /// Progress of an in-place update.
    pub const IN_PLACE_UPDATE: &str = "InPlaceUpdate";
    /// The node is preserved.
    pub const PRESERVED: &str = "Preserved";
    /// Reason of [`TERMINATING`]: not needed any more.
    pub const REASON_SCALE_DOWN: &str = "ScaleDown";
    /// Reason of [`TERMINATING`]: the machine had failed.
    pub const REASON_UNHEALTHY: &str = "Unhealthy";
    /// Message beside [`REASON_SCALE_DOWN`].
    pub const MESSAGE_SCALE_DOWN: &str = "Machine Controller is scaling down machine";
    /// Message beside [`REASON_UNHEALTHY`].
    pub const MESSAGE_UNHEALTHY: &str = "Machine Controller is terminating failed machine";
}

/// Texts inside `lastOperation.description` that are program state of the deletion flow (spec/machine-controller §1.8).
pub mod stage_text {
    /// The machine was marked as terminating; next is the VM's status.
    pub const GET_VM_STATUS: &str = "Set machine status to termination. Now, getting VM Status";
    /// Next is the drain.
    pub const DRAIN: &str = "Initiate node drain";
    /// Next is the removal of volume attachments.
    pub const DELETE_VOLUME_ATTACHMENTS: &str = "Delete Volume Attachments";
    /// Next is the deletion of the VM.
    pub const DELETE_VM: &str = "Initiate VM deletion";
    /// Next is the deletion of the Node.
    pub const DELETE_NODE: &str = "Initiate node object deletion";
    /// Next is the removal of the finalizer.
    pub const REMOVE_FINALIZER: &str = "Initiate machine object finalizer removal";
    /// Informational: the VM was not initialised.
    pub const INITIALIZE_VM: &str = "Initialize VM Instance";
    /// Informational: an in-place drain is over.
    pub const READY_FOR_UPDATE: &str = "Node drain successful. Node is ready for update";
}

/// Priority of a machine without the annotation.
pub const DEFAULT_MACHINE_PRIORITY: i64 = 3;
/// The class kind that every class reference names.
pub const MACHINE_CLASS_KIND: &str = "MachineClass";
/// Lease of the deployment and set controllers.
pub const LEASE_CONTROLLER_MANAGER: &str = "machine-controller-manager";
/// Lease of the machine controllers.
pub const LEASE_MACHINE_CONTROLLER: &str = "machine-controller";
/// Both webhook configurations, and the default Service name.
pub const WEBHOOK_CONFIGURATION: &str = "machine-controller-manager";
/// The Secret that holds CA and serving certificate.
pub const CERTIFICATE_SECRET: &str = "machine-controller-manager-certs";
/// Field manager of CA bundles and of the certificate Secret.
pub const CERTIFICATE_FIELD_MANAGER: &str = "mcm-certs";
/// Event reason on the certificate Secret: the serving certificate is about to end, or has ended.
pub const REASON_CERTIFICATE_NOT_RENEWED: &str = "CertificateNotRenewed";
