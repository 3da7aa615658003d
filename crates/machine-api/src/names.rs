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
/// `group/version` of the successor version.
pub const API_VERSION_V1BETA1: &str = "machine.sapcloud.io/v1beta1";

/// Finalizers.
pub mod finalizer {
    /// On `Machine`, `MachineSet`, `MachineDeployment` and `MachineClass`.
    pub const MACHINE: &str = "machine.sapcloud.io/machine-controller-manager";
    /// On Secrets that a class refers to.
    pub const SECRET: &str = "machine.sapcloud.io/machine-controller";
    /// On Nodes with a backing machine.
    pub const NODE: &str = "node.machine.sapcloud.io/machine-controller";
    /// On an object that is being deleted with the propagation policy `Orphan`: the garbage collector takes the references to it off
    /// its dependents, and then this finalizer.
    pub const ORPHAN: &str = "orphan";
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
    /// On a Node: its host name, written by the kubelet.
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
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
    /// On a `ConfigMap`: it holds a part of the simulation's state of this name.
    pub const SIMULATION_STATE: &str = "virtual.machine.sapcloud.io/state";
}

/// Annotations.
pub mod annotation {
    /// On a Machine: deletion rank, smaller goes first; absent means [`super::DEFAULT_MACHINE_PRIORITY`].
    pub const MACHINE_PRIORITY: &str = "machinepriority.machine.sapcloud.io";
    /// On deployment, set and machine: a Go duration that beats `spec.creationTimeout`.
    pub const EFFECTIVE_CREATION_TIMEOUT: &str = "node.machine.sapcloud.io/effective-creation-timeout";
    /// On a Machine: how long it took to join.
    pub const MACHINE_JOIN_DURATION: &str = "node.machine.sapcloud.io/machine-join-duration";
    /// On Machine and Node: one of [`super::preserve_value`].
    pub const PRESERVE: &str = "node.machine.sapcloud.io/preserve";
    /// What all annotations begin with in which the controllers remember what they last applied.
    pub const LAST_APPLIED_PREFIX: &str = "node.machine.sapcloud.io/last-applied-";
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
    /// Others are asked by these to write the CA bundle; we keep off.
    pub const FOREIGN_CA_INJECTORS: [&str; 4] = [
        "cert-manager.io/inject-ca-from",
        "cert-manager.io/inject-ca-from-secret",
        "cert-manager.io/inject-apiserver-ca",
        "service.beta.openshift.io/inject-cabundle",
    ];
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
    /// On a simulated Node: namespace of its machine.
    pub const SIMULATED_NAMESPACE: &str = "virtual.machine.sapcloud.io/namespace";
    /// On a simulated Node: its VM's provider id as the machine has it; `spec.providerID` spells it as a cloud's controller
    /// manager would.
    pub const SIMULATED_PROVIDER_ID: &str = "virtual.machine.sapcloud.io/provider-id";
    /// On a simulated Node: whose VM it is, as JSON; read after a restart without memory.
    pub const SIMULATED_OWNER: &str = "virtual.machine.sapcloud.io/owner";
    /// On a Pod of a simulated Node: a Go duration after which it succeeds.
    pub const SIMULATED_RUN_FOR: &str = "virtual.machine.sapcloud.io/run-for";
    /// On a Pod of a simulated Node: `true` keeps it terminating for ever.
    pub const SIMULATED_REFUSE_TERMINATION: &str = "virtual.machine.sapcloud.io/refuse-termination";
    /// On a `ConfigMap` with a simulation's state: which process writes it.
    pub const SIMULATION_WRITER: &str = "virtual.machine.sapcloud.io/writer";
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
    /// Reason of [`PRESERVED`]: a Failed machine of a set that keeps some. Blanks and full stop are the original's.
    pub const REASON_PRESERVED_BY_MCM: &str = "Preserved by MCM.";
    /// Reason of [`PRESERVED`]: somebody asked for it.
    pub const REASON_PRESERVED_BY_USER: &str = "Preserved by user.";
    /// Reason of [`PRESERVED`] when it is over.
    pub const REASON_PRESERVATION_STOPPED: &str = "Preservation stopped.";
    /// First part of the message of [`PRESERVED`] after a drain; program state (spec/machine-controller §5.6).
    pub const MESSAGE_PRESERVED_DRAINED: &str = "Preserved node drained successfully.";
    /// First part of the message of [`PRESERVED`] after a drain in vain.
    pub const MESSAGE_PRESERVED_NOT_DRAINED: &str = "Preserved node could not be drained.";
    /// Reason of [`TERMINATING`]: not needed any more.
    pub const REASON_SCALE_DOWN: &str = "ScaleDown";
    /// Reason of [`TERMINATING`]: the machine had failed.
    pub const REASON_UNHEALTHY: &str = "Unhealthy";
    /// Message beside [`REASON_SCALE_DOWN`].
    pub const MESSAGE_SCALE_DOWN: &str = "Machine Controller is scaling down machine";
    /// Message beside [`REASON_UNHEALTHY`].
    pub const MESSAGE_UNHEALTHY: &str = "Machine Controller is terminating failed machine";
    /// Reason of [`IN_PLACE_UPDATE`]: may be selected for an update.
    pub const REASON_CANDIDATE_FOR_UPDATE: &str = "CandidateForUpdate";
    /// Reason of [`IN_PLACE_UPDATE`]: selected; the node is drained.
    pub const REASON_SELECTED_FOR_UPDATE: &str = "SelectedForUpdate";
    /// Reason of [`IN_PLACE_UPDATE`]: drained.
    pub const REASON_DRAIN_SUCCESSFUL: &str = "DrainSuccessful";
    /// Reason of [`IN_PLACE_UPDATE`]: the node agent may update the node.
    pub const REASON_READY_FOR_UPDATE: &str = "ReadyForUpdate";
    /// Reason of [`IN_PLACE_UPDATE`]: the node agent has updated the node.
    pub const REASON_UPDATE_SUCCESSFUL: &str = "UpdateSuccessful";
    /// Reason of [`IN_PLACE_UPDATE`]: the node agent could not update the node.
    pub const REASON_UPDATE_FAILED: &str = "UpdateFailed";
}

/// Values of [`label::UPDATE_RESULT`].
pub mod update_result {
    /// The node is updated.
    pub const SUCCESSFUL: &str = "successful";
    /// The update has failed; why is in [`super::annotation::UPDATE_FAILED_REASON`].
    pub const FAILED: &str = "failed";
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

/// Event and condition reasons of sets.
pub mod set_reason {
    /// Event and `ReplicaFailure`: machines could not be created.
    pub const FAILED_CREATE: &str = "FailedCreate";
    /// Event and `ReplicaFailure`: machines could not be deleted.
    pub const FAILED_DELETE: &str = "FailedDelete";
    /// `ReplicaFailure`: new machines never joined, and their replacements wait. Not in the original.
    pub const NEVER_JOINED: &str = "MachinesNeverJoined";
    /// Event and condition `Valid`: the object cannot be acted on. Also of deployments.
    pub const FAILED_VALIDATION: &str = "FailedValidation";
    /// Event: the API server refuses a write about the set, again and again. Also of deployments. Not in the original.
    pub const WRITE_REFUSED: &str = "WriteRefused";
}

/// Why nothing is made from a template that its own selector does not select: what is made would belong to nobody, and the
/// next would be made at once.
pub const UNSELECTED_TEMPLATE: &str =
    "nothing is made from spec.template: spec.selector.matchExpressions do not select its labels";

/// Event and condition reasons of deployments, with the texts that never vary.
pub mod deployment_reason {
    /// `Available` is true.
    pub const MINIMUM_AVAILABLE: &str = "MinimumReplicasAvailable";
    /// `Available` is false.
    pub const MINIMUM_UNAVAILABLE: &str = "MinimumReplicasUnavailable";
    /// `Progressing`: the newest set was there already.
    pub const FOUND_NEW_SET: &str = "FoundNewMachineSet";
    /// `Progressing`: the newest set was made.
    pub const NEW_SET_CREATED: &str = "NewMachineSetCreated";
    /// `Progressing`: the rollout is complete.
    pub const NEW_SET_AVAILABLE: &str = "NewMachineSetAvailable";
    /// `Progressing`: machines came or became ready.
    pub const SET_UPDATED: &str = "MachineSetUpdated";
    /// Event and `Progressing`: the newest set could not be made.
    pub const SET_CREATE_ERROR: &str = "MachineSetCreateError";
    /// `Progressing`: nothing moved within `progressDeadlineSeconds`.
    pub const DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
    /// `Progressing`: rollouts are paused.
    pub const PAUSED: &str = "DeploymentPaused";
    /// `Progressing`: rollouts go on after a pause.
    pub const RESUMED: &str = "DeploymentResumed";
    /// Event: the selector selects everything.
    pub const SELECTING_ALL: &str = "SelectingAll";
    /// Event: the template of an earlier revision was brought back.
    pub const ROLLED_BACK: &str = "DeploymentRollback";
    /// Event: there is no such revision to go back to.
    pub const ROLLBACK_REVISION_NOT_FOUND: &str = "DeploymentRollbackRevisionNotFound";
    /// Event: the revision to go back to has the present template.
    pub const ROLLBACK_TEMPLATE_UNCHANGED: &str = "DeploymentRollbackTemplateUnchanged";
    /// Event: a set was scaled.
    pub const SCALING_SET: &str = "ScalingMachineSet";
    /// `InPlaceUpdateFailed` is true: machines wait for somebody to repair their update. Not in the original.
    pub const IN_PLACE_UPDATE_FAILED: &str = "UpdateFailed";
    /// Event and `Progressing`: the strategy can't be carried out, for there is no target cluster. Not in the original.
    pub const STRATEGY_NOT_SUPPORTED: &str = "StrategyNotSupported";
}

/// Event and condition reasons of the overshoot guard.
pub mod freeze_reason {
    /// Condition `Frozen`: a set holds too many machines.
    pub const OVERSHOOTING: &str = "OverShootingReplicaCount";
    /// Condition `Frozen` of a deployment that had to follow its set.
    pub const STATE_SYNC: &str = "MachineDeploymentStateSync";
    /// Event: a set was frozen.
    pub const FROZE_SET: &str = "FrozeMachineSet";
    /// Event: a set was thawed.
    pub const UNFROZE_SET: &str = "UnfrozeMachineSet";
}

/// Reasons of events on classes.
pub mod class_reason {
    /// The driver of the class's provider is ill or away for too long.
    pub const DRIVER_DOWN: &str = "DriverDown";
    /// It serves again.
    pub const DRIVER_UP: &str = "DriverUp";
}

/// Value of the label `freeze` that counts.
pub const FROZEN: &str = "True";
/// Priority of a machine without the annotation.
pub const DEFAULT_MACHINE_PRIORITY: i64 = 3;
/// The class kind that every class reference names.
pub const MACHINE_CLASS_KIND: &str = "MachineClass";
/// Lease of the deployment and set controllers.
pub const LEASE_CONTROLLER_MANAGER: &str = "machine-controller-manager";
/// Lease of the machine controllers.
pub const LEASE_MACHINE_CONTROLLER: &str = "machine-controller";
/// Plurals of the views that the extension API server knows.
pub const VIEWS: [&str; 5] = ["drainplans", "fleetsummaries", "machineoutlooks", "providermachines", "rolloutplans"];
/// The `APIService` of the views.
pub const API_SERVICE: &str = "v1alpha1.views.machine.sapcloud.io";
/// Both webhook configurations, and the default Service name.
pub const WEBHOOK_CONFIGURATION: &str = "machine-controller-manager";
/// The Secret that holds CA and serving certificate.
pub const CERTIFICATE_SECRET: &str = "machine-controller-manager-certs";

/// Reasons of events and `Progressing` conditions of the machine controller (spec/machine-controller §13.2).
pub mod machine_reason {
    /// The driver refused to create the VM, or to tell about it.
    pub const CREATE_FAILED: &str = "CreateFailed";
    /// The driver could not initialise the VM.
    pub const INITIALIZE_FAILED: &str = "InitializeFailed";
    /// The class is missing or can't be used.
    pub const CLASS_NOT_USABLE: &str = "ClassNotUsable";
    /// The node template of the class is incomplete.
    pub const NODE_TEMPLATE_INVALID: &str = "NodeTemplateInvalid";
    /// A Secret that the class names is missing.
    pub const SECRET_NOT_USABLE: &str = "SecretNotUsable";
    /// The Secrets of the class hold no user data.
    pub const USER_DATA_MISSING: &str = "UserDataMissing";
    /// The new VM would use the Node of an older one.
    pub const STALE_NODE: &str = "StaleNode";
    /// The Node of a running machine vanished.
    pub const NODE_MISSING: &str = "NodeMissing";
    /// The Node of a running machine is unhealthy.
    pub const NODE_UNHEALTHY: &str = "NodeUnhealthy";
    /// The machine did not join in time.
    pub const CREATION_TIMEOUT: &str = "CreationTimeout";
    /// The machine was unhealthy for too long.
    pub const HEALTH_TIMEOUT: &str = "HealthTimeout";
    /// The machine was unhealthy for too long, but another one is being replaced.
    pub const HEALTH_TIMEOUT_REPLACEMENT_DEFERRED: &str = "HealthTimeoutReplacementDeferred";
    /// Evictions are refused.
    pub const DRAIN_BLOCKED: &str = "DrainBlocked";
    /// Pods are deleted by force.
    pub const DRAIN_FORCED: &str = "DrainForced";
    /// A volume does not detach.
    pub const VOLUME_STILL_ATTACHED: &str = "VolumeStillAttached";
    /// The driver could not delete the VM.
    pub const VM_DELETION_FAILED: &str = "VMDeletionFailed";
    /// A Node of the machine's name belongs to something else and was left alone.
    pub const FOREIGN_NODE_KEPT: &str = "ForeignNodeKept";
    /// The Node of a deleted machine, or the machine's own finalizer, can't be taken away (ours alone).
    pub const NODE_NOT_DELETED: &str = "NodeNotDeleted";
    /// The machine was let go by force without knowing whether its Node is gone (ours alone).
    pub const NODE_NOT_LOOKED_FOR: &str = "NodeNotLookedFor";
    /// The memory of the last template on a Node can't be read.
    pub const LAST_APPLIED_UNREADABLE: &str = "LastAppliedUnreadable";
    /// A class that is being deleted is still used.
    pub const STILL_REFERENCED: &str = "StillReferenced";
    /// The machine has recovered.
    pub const REJOINED: &str = "Rejoined";
    /// A VM that existed already was taken over.
    pub const ADOPTED: &str = "Adopted";
    /// The machine is preserved from now on.
    pub const PRESERVED: &str = "Preserved";
    /// The machine is not preserved any longer.
    pub const PRESERVATION_STOPPED: &str = "PreservationStopped";
    /// An annotation `preserve` holds none of the known values.
    pub const PRESERVE_VALUE_UNKNOWN: &str = "PreserveValueUnknown";
    /// The Node is drained, after something had held the drain up.
    pub const DRAIN_SUCCEEDED: &str = "DrainSucceeded";
    /// The VM is deleted, after attempts that failed.
    pub const VM_DELETED: &str = "VMDeleted";
    /// The VM was made, after attempts that failed.
    pub const CREATED: &str = "Created";
    /// The VM was initialised, after attempts that failed.
    pub const INITIALIZED: &str = "Initialized";
    /// The machine joined, although it had been given up.
    pub const JOINED: &str = "Joined";
    /// Finalizer, labels, taints or conditions of the Node can't be written.
    pub const NODE_NOT_UPDATED: &str = "NodeNotUpdated";
    /// The provider does not know the VM of an unhealthy machine any more.
    pub const VM_GONE: &str = "VMGone";
    /// An in-place update failed or took too long.
    pub const IN_PLACE_UPDATE_FAILED: &str = "InPlaceUpdateFailed";
    /// An in-place update went well.
    pub const IN_PLACE_UPDATE_SUCCESSFUL: &str = "InPlaceUpdateSuccessful";
    /// On a class: VMs without a machine are deleted.
    pub const ORPHAN_VMS_FOUND: &str = "OrphanVMsFound";
    /// The machine went without its VM and Node, since another machine names the same VM (ours alone).
    pub const VM_LEFT_TO_ANOTHER: &str = "VMLeftToAnotherMachine";
    /// Several machines have the same Node on their label (ours alone).
    pub const NODE_CONTESTED: &str = "NodeContested";
    /// The API server refuses a write about the machine (ours alone).
    pub const WRITE_REFUSED: &str = "WriteRefused";
    /// The health timeout could not be reset after an outage of an API server (ours alone).
    pub const THAW_FAILED: &str = "ThawFailed";
}

/// Types and reasons of `status.machineConditions` (decisions.md 30).
pub mod machine_condition {
    /// Whether the machine is on its way somewhere, and whom it waits for.
    pub const PROGRESSING: &str = "Progressing";
    /// Whether it can be told that the Node is the machine's; there only while it can't (status `Unknown`).
    pub const NODE_IDENTIFIED: &str = "NodeIdentified";
    /// The driver can't compare the provider ids of machine and Node.
    pub const REASON_IDS_NOT_COMPARABLE: &str = "ProviderIDsNotComparable";
    /// Another machine has a better claim by name.
    pub const REASON_NODE_CONTESTED: &str = super::machine_reason::NODE_CONTESTED;
    /// Waits for the Node of the VM that was made.
    pub const REASON_WAITING_FOR_NODE: &str = "WaitingForNode";
    /// Waits for the Node of a VM that existed already.
    pub const REASON_WAITING_FOR_NODE_OF_ADOPTED_VM: &str = "WaitingForNodeOfAdoptedVM";
    /// Waits for the driver to say whether there is a VM.
    pub const REASON_WAITING_FOR_PROVIDER: &str = "WaitingForProvider";
    /// Waits for the driver to make the VM.
    pub const REASON_WAITING_FOR_VM: &str = "WaitingForVM";
    /// Waits for the driver to initialise the VM.
    pub const REASON_WAITING_FOR_INITIALIZATION: &str = "WaitingForInitialization";
    /// The Node has registered; waits for it to become Ready.
    pub const REASON_WAITING_FOR_NODE_READY: &str = "WaitingForNodeReady";
    /// The Node is Ready; waits for pods that every node needs.
    pub const REASON_WAITING_FOR_CRITICAL_COMPONENTS: &str = "WaitingForCriticalComponents";
    /// The Node is being drained for an in-place update.
    pub const REASON_DRAINING_FOR_UPDATE: &str = "DrainingForUpdate";
    /// Waits for the node agent to update the node.
    pub const REASON_WAITING_FOR_UPDATE: &str = "WaitingForInPlaceUpdate";
    /// Nothing is decided about the machine, because an API server is silent.
    pub const REASON_FROZEN: &str = "Frozen";
    /// Nothing to wait for.
    pub const REASON_SETTLED: &str = "Settled";
    /// The Node is being drained.
    pub const REASON_DRAINING: &str = "Draining";
    /// The VM is being deleted.
    pub const REASON_DELETING_VM: &str = "DeletingVM";
    /// The Node is being deleted.
    pub const REASON_DELETING_NODE: &str = "DeletingNode";
    /// VM and Node are gone, and our finalizer can't be taken off.
    pub const REASON_LETTING_GO: &str = "LettingGo";
    /// A disruption budget refuses evictions.
    pub const REASON_DRAIN_BLOCKED: &str = "DrainBlocked";
    /// An attempt to drain the Node failed; another one follows.
    pub const REASON_DRAIN_FAILED: &str = "DrainFailed";
    /// A volume has to be detached from the Node.
    pub const REASON_WAITING_FOR_DETACHMENT: &str = "WaitingForVolumeDetachment";
    /// A volume has to be attached to another Node.
    pub const REASON_WAITING_FOR_REATTACHMENT: &str = "WaitingForVolumeReattachment";
    /// A drain can't begin before the pods of the target cluster are known.
    pub const REASON_WAITING_FOR_POD_LIST: &str = "WaitingForPodList";
    /// A deletion waits for a driver call that was under way before.
    pub const REASON_AWAITING_DRIVER: &str = "AwaitingDriver";
    /// The machine is kept for somebody to look at.
    pub const REASON_PRESERVED: &str = "Preserved";
}

/// First part of the description while a deletion is under way, when the machine had failed before
/// (spec/machine-controller §14, M-06).
pub const WAS_FAILED_TEXT: &str = "Machine was Failed. ";
/// Field manager of CA bundles and of the certificate Secret.
pub const CERTIFICATE_FIELD_MANAGER: &str = "mcm-certs";
/// Event reason on the certificate Secret: the serving certificate is about to end, or has ended.
pub const REASON_CERTIFICATE_NOT_RENEWED: &str = "CertificateNotRenewed";

/// Values of the annotation `preserve`.
pub mod preserve_value {
    /// Preserve at once, whatever the phase.
    pub const NOW: &str = "now";
    /// Preserve when the machine has failed.
    pub const WHEN_FAILED: &str = "when-failed";
    /// Written by the set controller on a Failed machine.
    pub const AUTO_PRESERVED: &str = "auto-preserved";
    /// Do not preserve.
    pub const FALSE: &str = "false";
}
