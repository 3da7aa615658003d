//! All names by which objects, other programs and dashboards know this system.
//!
//! Labels, annotations, finalizers, taints, condition types, reasons and fixed texts. Stored objects, cluster-autoscaler, Gardener or users of
//! kubectl depend on each of them, so that their meaning must not change. The defaults of flags are declared with the flags (`cli/`), and the names
//! of metrics with the metrics (`server/metrics`).
//!
//! Most names are declared with `names!` or `reasons!` ([`described`]), which also list them for `docs/reference/names.md`.
//!
//! Sources: spec/machine-controller §1, spec/deployment-and-set §2.

#[macro_use]
pub mod described;

pub use described::{Group, Name, Party, Sort};

/// The API group of the four kinds.
pub const GROUP: &str = "machine.sapcloud.io";
/// The version in which objects are stored.
pub const V1ALPHA1: &str = "v1alpha1";
/// The next version, served if that is configured.
pub const V1BETA1: &str = "v1beta1";
/// The `group/version` of the stored kinds, as in owner references.
pub const API_VERSION_V1ALPHA1: &str = "machine.sapcloud.io/v1alpha1";
/// The `group/version` of the next version.
pub const API_VERSION_V1BETA1: &str = "machine.sapcloud.io/v1beta1";

/// Finalizers.
pub mod finalizer {
    names! { ALL:
        /// On `Machine`, `MachineSet`, `MachineDeployment` and `MachineClass`.
        MACHINE = "machine.sapcloud.io/machine-controller-manager", [Mcm] => [Mcm];
        /// On Secrets of a class.
        SECRET = "machine.sapcloud.io/machine-controller", [Mcm] => [Mcm];
        /// On Nodes of machines.
        NODE = "node.machine.sapcloud.io/machine-controller", [Mcm] => [Mcm];
        /// On an object that is being deleted with the propagation policy `Orphan`. The garbage collector removes the owner references from its
        /// dependents, and then removes this finalizer.
        ORPHAN = "orphan", [Kubernetes] => [Mcm, Kubernetes];
    }
}

/// Labels.
pub mod label {
    names! { ALL:
        /// On a Machine: the name of its Node.
        NODE = "node", [Mcm] => [Mcm, Autoscaler, User];
        /// On a Machine: its `MachineDeployment`, by Gardener's convention.
        NAME = "name", [Gardener, User] => [Mcm, Gardener];
        /// On sets, their selectors, templates and machines: distinguishes the sets of a deployment.
        MACHINE_TEMPLATE_HASH = "machine-template-hash", [Mcm] => [Mcm];
        /// On `MachineSet` and `MachineDeployment`: `True` stops creations.
        FREEZE = "freeze", [Mcm, User] => [Mcm];
        /// On a Machine: a Go boolean. The drain is forced from the beginning.
        FORCE_DELETION = "force-deletion", [User, Gardener] => [Mcm];
        /// On a Machine: exactly `True`. Drains for in-place updates and for preservation are forced.
        FORCE_DRAIN = "force-drain", [User, Gardener] => [Mcm];
        /// On a Node: its host name, written by the kubelet.
        HOSTNAME = "kubernetes.io/hostname", [Kubelet] => [Mcm, Kubernetes];
        /// On a Node: the name of its machine.
        MACHINE_NAME = "node.gardener.cloud/machine-name", [Mcm] => [Mcm, Gardener];
        /// On a Node: the Node belongs to an old set of an in-place rollout.
        CANDIDATE_FOR_UPDATE = "node.machine.sapcloud.io/candidate-for-update", [Mcm] => [Mcm, User, NodeAgent];
        /// On a Node: the Node is selected for an in-place update.
        SELECTED_FOR_UPDATE = "node.machine.sapcloud.io/selected-for-update", [Mcm, User] => [Mcm, NodeAgent];
        /// On a Node and its Machine: the result of an in-place update.
        UPDATE_RESULT = "node.machine.sapcloud.io/update-result", [NodeAgent, Mcm] => [Mcm];
        /// On a `MachineSet`: if present, no machines are created.
        SCALE_UP_DISABLED = "node.machine.sapcloud.io/scale-up-disabled", [Mcm] => [Mcm];
        /// On the Secret of a bootstrap token: the machine of the token. The Go original has no such label.
        TOKEN_MACHINE = "node.machine.sapcloud.io/machine", [Mcm] => [Mcm];
        /// On a `ConfigMap`: the name of the simulation whose state is stored in it.
        SIMULATION_STATE = "virtual.machine.sapcloud.io/state", [Mcm] => [Mcm];
    }
}

/// Annotations.
pub mod annotation {
    names! { ALL:
        /// On a Machine: the priority for deletion, lowest first. Absent means 3.
        MACHINE_PRIORITY = "machinepriority.machine.sapcloud.io", [Autoscaler, Mcm, User] => [Mcm];
        /// On deployment, set and machine: a Go duration that overrides `spec.creationTimeout`.
        EFFECTIVE_CREATION_TIMEOUT = "node.machine.sapcloud.io/effective-creation-timeout", [User, Mcm] => [Mcm];
        /// On a Machine: how long the machine took to join.
        MACHINE_JOIN_DURATION = "node.machine.sapcloud.io/machine-join-duration", [Mcm] => [User];
        /// On Machine and Node: `now`, `when-failed`, `auto-preserved` or `false`.
        PRESERVE = "node.machine.sapcloud.io/preserve", [User, Mcm] => [Mcm];
        /// The prefix of all annotations in which the controllers store the last applied values.
        LAST_APPLIED_PREFIX = "node.machine.sapcloud.io/last-applied-", [Mcm] => [Mcm];
        /// On a Machine: the preserve value of the Node that was applied last.
        LAST_APPLIED_NODE_PRESERVE_VALUE = "node.machine.sapcloud.io/last-applied-node-preserve-value", [Mcm] => [Mcm];
        /// On a Node: the node template of the machine that was applied last, as JSON.
        LAST_APPLIED_TEMPLATE = "node.machine.sapcloud.io/last-applied-anno-labels-taints", [Mcm] => [Mcm];
        /// On a Node: the virtual capacity of the class that was applied last, as JSON.
        LAST_APPLIED_VIRTUAL_CAPACITY = "node.machine.sapcloud.io/last-applied-virtual-capacity", [Mcm] => [Mcm];
        /// On a Node: if present, the node controllers ignore the Node.
        NOT_MANAGED = "node.machine.sapcloud.io/not-managed-by-mcm", [Mcm, User] => [Mcm];
        /// On a Node: why an in-place update failed.
        UPDATE_FAILED_REASON = "node.machine.sapcloud.io/update-failed-reason", [NodeAgent] => [Mcm, User];
        /// On a `MachineDeployment`: `m1~RFC3339,…`, written by cluster-autoscaler.
        TRIGGER_DELETION = "node.machine.sapcloud.io/trigger-deletion-by-mcm", [Autoscaler] => [Mcm];
        /// On a Machine: when cluster-autoscaler marked the machine for deletion.
        MARKED_FOR_DELETION_TIME = "machine.sapcloud.io/marked-for-deletion-time", [Mcm, Autoscaler] => [Mcm];
        /// On a `MachineDeployment`, copied to its sets: when cluster-autoscaler last changed the replicas.
        LAST_REPLICA_CHANGE_BY_SCALER = "machine.sapcloud.io/last-deployment-replica-change-by-scaler-time", [Autoscaler] => [Mcm];
        /// The revision of a set, or of the newest set of a deployment.
        REVISION = "deployment.kubernetes.io/revision", [Mcm] => [Mcm, User];
        /// The earlier revisions of a set, separated by commas.
        REVISION_HISTORY = "deployment.kubernetes.io/revision-history", [Mcm] => [Mcm, User];
        /// On a set: the replicas of the deployment when the set was last scaled.
        DESIRED_REPLICAS = "deployment.kubernetes.io/desired-replicas", [Mcm] => [Mcm];
        /// On a set: the replicas and the surge of the deployment when the set was last scaled.
        MAX_REPLICAS = "deployment.kubernetes.io/max-replicas", [Mcm] => [Mcm];
        /// On a set: `True` after its nodes got the prefer-no-schedule taint.
        PREFER_NO_SCHEDULE = "deployment.machine.sapcloud.io/prefer-no-schedule", [Mcm] => [Mcm];
        /// On deployment and set: if present, the freeze is requested to end.
        UNFREEZE = "safety.machine.sapcloud.io/unfreeze", [User] => [Mcm];
        /// On a class of an old kind, such as `AWSMachineClass`: there is a `MachineClass` of the same name, and nothing names the old class.
        MIGRATED = "machine.sapcloud.io/migrated", [Mcm] => [Mcm, User];
        /// When a user asked for new machines by `kubectl mcm rollout restart`; in the template, so that its machines are replaced.
        RESTARTED_AT = "machine.sapcloud.io/restartedAt", [User] => [Mcm];
        /// On a Node: cluster-autoscaler does not scale the Node down.
        SCALE_DOWN_DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled", [Mcm, User] => [Autoscaler, Mcm];
        /// On a Node: shows that this program set the annotation above.
        SCALE_DOWN_DISABLED_BY_MCM = "cluster-autoscaler.kubernetes.io/scale-down-disabled-by-mcm", [Mcm] => [Mcm];
        /// The last configuration that kubectl applied. It is never copied.
        KUBECTL_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration", [Kubectl] => [Kubectl];
        /// On a Pod: the Pod is the mirror of a static pod.
        MIRROR_POD = "kubernetes.io/config.mirror", [Kubelet] => [Mcm];
        /// Ids of admission rules that this object skips, separated by commas.
        ADMISSION_SKIP = "admission.machine.sapcloud.io/skip", [User] => [Mcm];
        /// The prefix of annotations that only admission reads.
        ADMISSION_PREFIX = "admission.machine.sapcloud.io/", [User] => [Mcm];
        /// `"false"` prevents this process from writing the CA bundle into an object.
        INJECT_CA = "admission.machine.sapcloud.io/inject-ca", [User] => [Mcm];
        /// On the Secret of the certificate: the number of writes.
        CERTIFICATE_GENERATION = "certificates.machine.sapcloud.io/generation", [Mcm] => [Mcm];
        /// On v1beta1 objects: data of v1alpha1 that v1beta1 can't represent.
        CONVERSION_V1ALPHA1 = "conversion.machine.sapcloud.io/v1alpha1", [Mcm] => [Mcm];
        /// On v1alpha1 objects: data of v1beta1 that v1alpha1 can't represent.
        CONVERSION_V1BETA1 = "conversion.machine.sapcloud.io/v1beta1", [Mcm] => [Mcm];
        /// On a v1beta1 `MachineDeployment`: the replacement of `rollbackTo`.
        ROLLBACK_TO = "deployment.machine.sapcloud.io/rollback-to", [User] => [Mcm];
        /// On a Node of the virtual cloud.
        SIMULATED_NODE = "virtual.machine.sapcloud.io/simulated", [Mcm] => [Mcm];
        /// On a simulated Node: the namespace of its machine.
        SIMULATED_NAMESPACE = "virtual.machine.sapcloud.io/namespace", [Mcm] => [Mcm];
        /// On a simulated Node: the provider id of the VM as in the Machine. `spec.providerID` has the format of a cloud controller manager.
        SIMULATED_PROVIDER_ID = "virtual.machine.sapcloud.io/provider-id", [Mcm] => [Mcm];
        /// On a simulated Node: the owner of the VM, as JSON. Read after a restart without stored state.
        SIMULATED_OWNER = "virtual.machine.sapcloud.io/owner", [Mcm] => [Mcm];
        /// On a Pod of a simulated Node: a Go duration after which it succeeds.
        SIMULATED_RUN_FOR = "virtual.machine.sapcloud.io/run-for", [User] => [Mcm];
        /// On a Pod of a simulated Node: `true` prevents the end of its termination.
        SIMULATED_REFUSE_TERMINATION = "virtual.machine.sapcloud.io/refuse-termination", [User] => [Mcm];
        /// On a `ConfigMap` with the state of a simulation: the process that writes it.
        SIMULATION_WRITER = "virtual.machine.sapcloud.io/writer", [Mcm] => [Mcm];
    }

    /// Annotations that make other programs write the CA bundle. This process ignores such objects.
    pub const FOREIGN_CA_INJECTORS: [&str; 4] = [
        "cert-manager.io/inject-ca-from",
        "cert-manager.io/inject-ca-from-secret",
        "cert-manager.io/inject-apiserver-ca",
        "service.beta.openshift.io/inject-cabundle",
    ];
}

/// Taint keys.
pub mod taint {
    names! { ALL:
        /// On Nodes of old sets of a rolling update. Value `True`, effect `PreferNoSchedule`.
        PREFER_NO_SCHEDULE = "deployment.machine.sapcloud.io/prefer-no-schedule", [Mcm] => [Kubernetes];
        /// Effect `NoSchedule`. A Pending machine does not become Running while its Node has this taint.
        CRITICAL_COMPONENTS_NOT_READY = "node.gardener.cloud/critical-components-not-ready", [Gardener, Kubelet] => [Mcm, Kubernetes];
        /// Effect `NoSchedule`. Prevents new pods on a preserved failed node.
        PRESERVED = "node.machine.sapcloud.io/preserved", [Mcm] => [Kubernetes];
    }
}

/// Types of Node conditions that this system writes.
pub mod node_condition {
    names! { TYPES:
        /// The node will be drained and deleted.
        TERMINATING = "Terminating", [Mcm] => [User];
        /// The progress of an in-place update.
        IN_PLACE_UPDATE = "InPlaceUpdate", [Mcm] => [Mcm, NodeAgent];
        /// The node is preserved.
        PRESERVED = "Preserved", [Mcm] => [Mcm];
    }

    reasons! { REASONS:
        /// Reason of `Preserved`: a Failed machine of a set that preserves some. Blanks and full stop are as in the Go original.
        REASON_PRESERVED_BY_MCM = "Preserved by MCM.";
        /// Reason of `Preserved`: a user requested it.
        REASON_PRESERVED_BY_USER = "Preserved by user.";
        /// Reason of `Preserved` after the preservation ended.
        REASON_PRESERVATION_STOPPED = "Preservation stopped.";
        /// Event on a Node: its machine is replaced, so that the Node will be drained and deleted. Not in the Go original.
        REASON_NODE_REPLACEMENT = "NodeReplacement";
        /// Reason of `Terminating`: the machine is no longer needed.
        REASON_SCALE_DOWN = "ScaleDown";
        /// Reason of `Terminating`: the machine failed.
        REASON_UNHEALTHY = "Unhealthy";
        /// Reason of `InPlaceUpdate`: the node may be selected for an update.
        REASON_CANDIDATE_FOR_UPDATE = "CandidateForUpdate";
        /// Reason of `InPlaceUpdate`: the node is selected and will be drained.
        REASON_SELECTED_FOR_UPDATE = "SelectedForUpdate";
        /// Reason of `InPlaceUpdate`: the node is drained.
        REASON_DRAIN_SUCCESSFUL = "DrainSuccessful";
        /// Reason of `InPlaceUpdate`: the node agent may update the node.
        REASON_READY_FOR_UPDATE = "ReadyForUpdate";
        /// Reason of `InPlaceUpdate`: the node agent has updated the node.
        REASON_UPDATE_SUCCESSFUL = "UpdateSuccessful";
        /// Reason of `InPlaceUpdate`: the node agent could not update the node.
        REASON_UPDATE_FAILED = "UpdateFailed";
    }

    /// The beginning of the message of [`PRESERVED`] after a successful drain. It is program state (spec/machine-controller §5.6).
    pub const MESSAGE_PRESERVED_DRAINED: &str = "Preserved node drained successfully.";
    /// The beginning of the message of [`PRESERVED`] after a failed drain.
    pub const MESSAGE_PRESERVED_NOT_DRAINED: &str = "Preserved node could not be drained.";
    /// The message for [`REASON_SCALE_DOWN`].
    pub const MESSAGE_SCALE_DOWN: &str = "Machine Controller is scaling down machine";
    /// The message for [`REASON_UNHEALTHY`].
    pub const MESSAGE_UNHEALTHY: &str = "Machine Controller is terminating failed machine";
}

/// Values of [`label::UPDATE_RESULT`].
pub mod update_result {
    names! { ALL:
        /// The node is updated.
        SUCCESSFUL = "successful", [NodeAgent] => [Mcm];
        /// The update has failed. The annotation `node.machine.sapcloud.io/update-failed-reason` has the reason.
        FAILED = "failed", [NodeAgent] => [Mcm];
    }
}

/// Texts in `lastOperation.description` that are program state of a deletion (spec/machine-controller §1.8).
pub mod stage_text {
    /// The machine was marked as terminating. The next step gets the status of the VM.
    pub const GET_VM_STATUS: &str = "Set machine status to termination. Now, getting VM Status";
    /// The next step is the drain.
    pub const DRAIN: &str = "Initiate node drain";
    /// The next step is the removal of volume attachments.
    pub const DELETE_VOLUME_ATTACHMENTS: &str = "Delete Volume Attachments";
    /// The next step is the deletion of the VM.
    pub const DELETE_VM: &str = "Initiate VM deletion";
    /// The next step is the deletion of the Node.
    pub const DELETE_NODE: &str = "Initiate node object deletion";
    /// The next step is the removal of the finalizer.
    pub const REMOVE_FINALIZER: &str = "Initiate machine object finalizer removal";
    /// For information: the VM was not initialised.
    pub const INITIALIZE_VM: &str = "Initialize VM Instance";
    /// For information: the drain for an in-place update is complete.
    pub const READY_FOR_UPDATE: &str = "Node drain successful. Node is ready for update";
}

/// Event and condition reasons of sets.
pub mod set_reason {
    reasons! { ALL:
        /// Event, and reason of `ReplicaFailure`: machines could not be created.
        FAILED_CREATE = "FailedCreate";
        /// Event, and reason of `ReplicaFailure`: machines could not be deleted.
        FAILED_DELETE = "FailedDelete";
        /// Reason of `ReplicaFailure`: new machines never joined, and their replacements are delayed. Not in the Go original.
        NEVER_JOINED = "MachinesNeverJoined";
        /// Event, and reason of the condition `Valid`: the object is invalid and not reconciled. Also for deployments.
        FAILED_VALIDATION = "FailedValidation";
        /// Event: the API server repeatedly refuses a write for the set. Also for deployments. Not in the Go original.
        WRITE_REFUSED = "WriteRefused";
    }
}

/// The message for a template that the selector of its object does not select. No machine is made from such a template: it would belong to no set,
/// and the next machine would be made at once.
pub const UNSELECTED_TEMPLATE: &str =
    "nothing is made from spec.template: spec.selector.matchExpressions do not select its labels";

/// Event and condition reasons of deployments, and fixed texts.
pub mod deployment_reason {
    reasons! { ALL:
        /// `Available` is true.
        MINIMUM_AVAILABLE = "MinimumReplicasAvailable";
        /// `Available` is false.
        MINIMUM_UNAVAILABLE = "MinimumReplicasUnavailable";
        /// `Progressing`: the newest set existed already.
        FOUND_NEW_SET = "FoundNewMachineSet";
        /// `Progressing`: the newest set was created.
        NEW_SET_CREATED = "NewMachineSetCreated";
        /// `Progressing`: the rollout is complete.
        NEW_SET_AVAILABLE = "NewMachineSetAvailable";
        /// `Progressing`: machines were created or became ready.
        SET_UPDATED = "MachineSetUpdated";
        /// Event and `Progressing`: the newest set could not be created.
        SET_CREATE_ERROR = "MachineSetCreateError";
        /// `Progressing`: there was no progress within `progressDeadlineSeconds`.
        DEADLINE_EXCEEDED = "ProgressDeadlineExceeded";
        /// `Progressing`: rollouts are paused.
        PAUSED = "DeploymentPaused";
        /// `Progressing`: rollouts continue after a pause.
        RESUMED = "DeploymentResumed";
        /// Event: the selector selects everything.
        SELECTING_ALL = "SelectingAll";
        /// Event: the template of an earlier revision was restored.
        ROLLED_BACK = "DeploymentRollback";
        /// Event: the revision for a rollback does not exist.
        ROLLBACK_REVISION_NOT_FOUND = "DeploymentRollbackRevisionNotFound";
        /// Event: the revision for a rollback has the current template.
        ROLLBACK_TEMPLATE_UNCHANGED = "DeploymentRollbackTemplateUnchanged";
        /// Event: a set was scaled.
        SCALING_SET = "ScalingMachineSet";
        /// `InPlaceUpdateFailed` is true: the updates of some machines must be repaired by a user. Not in the Go original.
        IN_PLACE_UPDATE_FAILED = "UpdateFailed";
        /// Event and `Progressing`: the strategy needs a target cluster, and there is none. Not in the Go original.
        STRATEGY_NOT_SUPPORTED = "StrategyNotSupported";
    }
}

/// Event and condition reasons of the overshoot protection.
pub mod freeze_reason {
    reasons! { ALL:
        /// Condition `Frozen`: a set has too many machines.
        OVERSHOOTING = "OverShootingReplicaCount";
        /// Condition `Frozen` of a deployment that was frozen because of its set.
        STATE_SYNC = "MachineDeploymentStateSync";
        /// Event: a set was frozen.
        FROZE_SET = "FrozeMachineSet";
        /// Event: the freeze of a set ended.
        UNFROZE_SET = "UnfrozeMachineSet";
    }
}

/// Reasons of events on classes.
pub mod class_reason {
    reasons! { ALL:
        /// The driver for the provider of the class has been unhealthy or unreachable for too long.
        DRIVER_DOWN = "DriverDown";
        /// The driver is available again.
        DRIVER_UP = "DriverUp";
    }
}

/// The value of the label `freeze` that freezes.
pub const FROZEN: &str = "True";
/// The priority of a machine without the annotation.
pub const DEFAULT_MACHINE_PRIORITY: i64 = 3;
/// The kind in every reference to a class.
pub const MACHINE_CLASS_KIND: &str = "MachineClass";
/// Lease of the deployment and set controllers.
pub const LEASE_CONTROLLER_MANAGER: &str = "machine-controller-manager";
/// Lease of the machine controllers.
pub const LEASE_MACHINE_CONTROLLER: &str = "machine-controller";
/// The plural names of the views of the extension API server.
pub const VIEWS: [&str; 5] = ["drainplans", "fleetsummaries", "machineoutlooks", "providermachines", "rolloutplans"];
/// The `APIService` of the views.
pub const API_SERVICE: &str = "v1alpha1.views.machine.sapcloud.io";
/// The name of both webhook configurations, and the default name of the Service.
pub const WEBHOOK_CONFIGURATION: &str = "machine-controller-manager";
/// The Secret with the CA and the serving certificate.
pub const CERTIFICATE_SECRET: &str = "machine-controller-manager-certs";

/// Reasons of events and `Progressing` conditions of the machine controller (spec/machine-controller §13.2).
pub mod machine_reason {
    reasons! { ALL:
        /// The driver could not create the VM, or not return its status.
        CREATE_FAILED = "CreateFailed";
        /// The driver could not initialise the VM.
        INITIALIZE_FAILED = "InitializeFailed";
        /// The class is missing or can't be used.
        CLASS_NOT_USABLE = "ClassNotUsable";
        /// The node template of the class is incomplete.
        NODE_TEMPLATE_INVALID = "NodeTemplateInvalid";
        /// A Secret of the class is missing.
        SECRET_NOT_USABLE = "SecretNotUsable";
        /// The Secrets of the class have no user data.
        USER_DATA_MISSING = "UserDataMissing";
        /// The new VM would use the Node of an older one.
        STALE_NODE = "StaleNode";
        /// The Node of a running machine no longer exists.
        NODE_MISSING = "NodeMissing";
        /// The Node of a running machine is unhealthy.
        NODE_UNHEALTHY = "NodeUnhealthy";
        /// The machine did not join in time.
        CREATION_TIMEOUT = "CreationTimeout";
        /// The machine was unhealthy for too long.
        HEALTH_TIMEOUT = "HealthTimeout";
        /// The machine was unhealthy for too long, but another machine is being replaced.
        HEALTH_TIMEOUT_REPLACEMENT_DEFERRED = "HealthTimeoutReplacementDeferred";
        /// Evictions are refused.
        DRAIN_BLOCKED = "DrainBlocked";
        /// Pods are deleted without eviction.
        DRAIN_FORCED = "DrainForced";
        /// A volume does not detach.
        VOLUME_STILL_ATTACHED = "VolumeStillAttached";
        /// The driver could not delete the VM.
        VM_DELETION_FAILED = "VMDeletionFailed";
        /// A Node with the name of the machine belongs to something else and was kept.
        FOREIGN_NODE_KEPT = "ForeignNodeKept";
        /// The Node of a deleted machine, or the finalizer of the machine, can't be removed. Not in the Go original.
        NODE_NOT_DELETED = "NodeNotDeleted";
        /// The machine was removed by force, and whether its Node exists is unknown. Not in the Go original.
        NODE_NOT_LOOKED_FOR = "NodeNotLookedFor";
        /// The last applied template on a Node can't be read.
        LAST_APPLIED_UNREADABLE = "LastAppliedUnreadable";
        /// A class that is being deleted is still used.
        STILL_REFERENCED = "StillReferenced";
        /// The machine is healthy again.
        REJOINED = "Rejoined";
        /// An existing VM was adopted.
        ADOPTED = "Adopted";
        /// The preservation of the machine begins.
        PRESERVED = "Preserved";
        /// The preservation of the machine ended.
        PRESERVATION_STOPPED = "PreservationStopped";
        /// An annotation `preserve` has an unknown value.
        PRESERVE_VALUE_UNKNOWN = "PreserveValueUnknown";
        /// The Node is drained, after a problem delayed the drain.
        DRAIN_SUCCEEDED = "DrainSucceeded";
        /// The VM is deleted, after failed attempts.
        VM_DELETED = "VMDeleted";
        /// The VM is created, after failed attempts.
        CREATED = "Created";
        /// The VM is initialised, after failed attempts.
        INITIALIZED = "Initialized";
        /// The machine joined, although it had already failed.
        JOINED = "Joined";
        /// Finalizers, labels, taints or conditions of the Node can't be written.
        NODE_NOT_UPDATED = "NodeNotUpdated";
        /// The provider no longer has the VM of an unhealthy machine.
        VM_GONE = "VMGone";
        /// An in-place update failed or took too long.
        IN_PLACE_UPDATE_FAILED = "InPlaceUpdateFailed";
        /// An in-place update succeeded.
        IN_PLACE_UPDATE_SUCCESSFUL = "InPlaceUpdateSuccessful";
        /// On a class: VMs without a machine are deleted.
        ORPHAN_VMS_FOUND = "OrphanVMsFound";
        /// The machine was removed without its VM and Node, because another machine has the same VM. Not in the Go original.
        VM_LEFT_TO_ANOTHER = "VMLeftToAnotherMachine";
        /// Several machines have the same Node in their label. Not in the Go original.
        NODE_CONTESTED = "NodeContested";
        /// The API server refuses a write for the machine. Not in the Go original.
        WRITE_REFUSED = "WriteRefused";
        /// The health timeout could not be reset after an outage of an API server. Not in the Go original.
        THAW_FAILED = "ThawFailed";
    }
}

/// Types and reasons of `status.machineConditions` (decisions.md 30).
pub mod machine_condition {
    names! { TYPES:
        /// Whether the machine is changing, and what it waits for.
        PROGRESSING = "Progressing", [Mcm] => [Mcm, User];
        /// Whether the Node is known to belong to the machine. The condition exists only while this is unknown (status `Unknown`).
        NODE_IDENTIFIED = "NodeIdentified", [Mcm] => [User];
    }

    reasons! { REASONS:
        /// The driver can't compare the provider ids of machine and Node.
        REASON_IDS_NOT_COMPARABLE = "ProviderIDsNotComparable";
        /// The name of another machine fits the Node better.
        REASON_NODE_CONTESTED = super::machine_reason::NODE_CONTESTED;
        /// Waits for the Node of the new VM.
        REASON_WAITING_FOR_NODE = "WaitingForNode";
        /// Waits for the Node of a VM that existed before.
        REASON_WAITING_FOR_NODE_OF_ADOPTED_VM = "WaitingForNodeOfAdoptedVM";
        /// Waits for the driver to return whether there is a VM.
        REASON_WAITING_FOR_PROVIDER = "WaitingForProvider";
        /// Waits for the driver to create the VM.
        REASON_WAITING_FOR_VM = "WaitingForVM";
        /// Waits for the driver to initialise the VM.
        REASON_WAITING_FOR_INITIALIZATION = "WaitingForInitialization";
        /// The Node is registered. Waits until it is Ready.
        REASON_WAITING_FOR_NODE_READY = "WaitingForNodeReady";
        /// The Node is Ready. Waits for pods that every node needs.
        REASON_WAITING_FOR_CRITICAL_COMPONENTS = "WaitingForCriticalComponents";
        /// The Node is being drained for an in-place update.
        REASON_DRAINING_FOR_UPDATE = "DrainingForUpdate";
        /// Waits for the node agent to update the node.
        REASON_WAITING_FOR_UPDATE = "WaitingForInPlaceUpdate";
        /// No decisions are made for the machine, because an API server does not answer.
        REASON_FROZEN = "Frozen";
        /// The machine waits for nothing.
        REASON_SETTLED = "Settled";
        /// The Node is being drained.
        REASON_DRAINING = "Draining";
        /// The VM is being deleted.
        REASON_DELETING_VM = "DeletingVM";
        /// The Node is being deleted.
        REASON_DELETING_NODE = "DeletingNode";
        /// VM and Node are deleted, and our finalizer can't be removed.
        REASON_LETTING_GO = "LettingGo";
        /// A pod disruption budget refuses evictions.
        REASON_DRAIN_BLOCKED = "DrainBlocked";
        /// An attempt to drain the Node failed. The drain will be retried.
        REASON_DRAIN_FAILED = "DrainFailed";
        /// Waits until a volume is detached from the Node.
        REASON_WAITING_FOR_DETACHMENT = "WaitingForVolumeDetachment";
        /// Waits until a volume is attached to another Node.
        REASON_WAITING_FOR_REATTACHMENT = "WaitingForVolumeReattachment";
        /// The drain waits for the list of the pods of the target cluster.
        REASON_WAITING_FOR_POD_LIST = "WaitingForPodList";
        /// The deletion waits for a driver call that lasts, or for a call of the creation.
        REASON_AWAITING_DRIVER = "AwaitingDriver";
        /// The machine is preserved for a user.
        REASON_PRESERVED = "Preserved";
    }
}

/// The beginning of the description during a deletion, if the machine had failed before (spec/machine-controller §14, M-06).
pub const WAS_FAILED_TEXT: &str = "Machine was Failed. ";
/// The field manager of CA bundles and of the Secret of the certificate.
pub const CERTIFICATE_FIELD_MANAGER: &str = "mcm-certs";
reasons! { CERTIFICATE_REASONS:
    /// Event on the Secret of the certificate: the serving certificate expires soon, or has expired.
    REASON_CERTIFICATE_NOT_RENEWED = "CertificateNotRenewed";
}

/// Values of the annotation `preserve`.
pub mod preserve_value {
    names! { ALL:
        /// Preserve at once, in any phase.
        NOW = "now", [User] => [Mcm];
        /// Preserve after the machine has failed.
        WHEN_FAILED = "when-failed", [User] => [Mcm];
        /// Written by the set controller on a Failed machine.
        AUTO_PRESERVED = "auto-preserved", [Mcm] => [Mcm];
        /// Do not preserve.
        FALSE = "false", [User] => [Mcm];
    }
}

/// All names that people and other programs use, in the order of the reference.
pub const GROUPS: &[Group] = &[
    keys("Finalizers", finalizer::ALL),
    keys("Labels", label::ALL),
    keys("Values of the label for the result of an in-place update", update_result::ALL),
    keys("Annotations", annotation::ALL),
    keys("Values of the annotation that preserves a machine", preserve_value::ALL),
    keys("Taints", taint::ALL),
    keys("Conditions of Nodes", node_condition::TYPES),
    keys("Conditions of machines", machine_condition::TYPES),
    reasons("Reasons of the conditions of machines", machine_condition::REASONS),
    reasons("Reasons of events on machines, and of their condition Progressing", machine_reason::ALL),
    reasons("Reasons of conditions of Nodes", node_condition::REASONS),
    reasons("Reasons of sets", set_reason::ALL),
    reasons("Reasons of deployments", deployment_reason::ALL),
    reasons("Reasons of frozen sets and deployments", freeze_reason::ALL),
    reasons("Reasons of events on classes", class_reason::ALL),
    reasons("Reasons of events on the Secret of the certificate", CERTIFICATE_REASONS),
];

const fn keys(title: &'static str, names: &'static [Name]) -> Group {
    Group { title, sort: Sort::Keys, names }
}

const fn reasons(title: &'static str, names: &'static [Name]) -> Group {
    Group { title, sort: Sort::Reasons, names }
}
