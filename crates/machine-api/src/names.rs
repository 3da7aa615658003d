//! All names by which objects, other programs and dashboards know this system.
//!
//! Labels, annotations, finalizers, taints, condition types, reasons and fixed texts. Stored objects, cluster-autoscaler, Gardener or users of
//! kubectl depend on each of them, so that their meaning must not change. The defaults of flags are declared with the flags (`cli/`), and the names
//! of metrics with the metrics (`server/metrics`).
//!
//! Sources: spec/machine-controller §1, spec/deployment-and-set §2.

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
    /// On `Machine`, `MachineSet`, `MachineDeployment` and `MachineClass`.
    pub const MACHINE: &str = "machine.sapcloud.io/machine-controller-manager";
    /// On Secrets of a class.
    pub const SECRET: &str = "machine.sapcloud.io/machine-controller";
    /// On Nodes of machines.
    pub const NODE: &str = "node.machine.sapcloud.io/machine-controller";
    /// On an object that is being deleted with the propagation policy `Orphan`. The garbage collector removes the owner references from its
    /// dependents, and then removes this finalizer.
    pub const ORPHAN: &str = "orphan";
}

/// Labels.
pub mod label {
    /// On a Machine: the name of its Node.
    pub const NODE: &str = "node";
    /// On a Machine: its `MachineDeployment`, by Gardener's convention.
    pub const NAME: &str = "name";
    /// On sets, their selectors, templates and machines: distinguishes the sets of a deployment.
    pub const MACHINE_TEMPLATE_HASH: &str = "machine-template-hash";
    /// On `MachineSet` and `MachineDeployment`: `True` stops creations.
    pub const FREEZE: &str = "freeze";
    /// On a Machine: a Go boolean. The drain is forced from the beginning.
    pub const FORCE_DELETION: &str = "force-deletion";
    /// On a Machine: exactly `True`. Drains for in-place updates and for preservation are forced.
    pub const FORCE_DRAIN: &str = "force-drain";
    /// On a Node: its host name, written by the kubelet.
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
    /// On a Node: the name of its machine.
    pub const MACHINE_NAME: &str = "node.gardener.cloud/machine-name";
    /// On a Node: the Node belongs to an old set of an in-place rollout.
    pub const CANDIDATE_FOR_UPDATE: &str = "node.machine.sapcloud.io/candidate-for-update";
    /// On a Node: the Node is selected for an in-place update.
    pub const SELECTED_FOR_UPDATE: &str = "node.machine.sapcloud.io/selected-for-update";
    /// On a Node and its Machine: the result of an in-place update.
    pub const UPDATE_RESULT: &str = "node.machine.sapcloud.io/update-result";
    /// On a `MachineSet`: if present, no machines are created.
    pub const SCALE_UP_DISABLED: &str = "node.machine.sapcloud.io/scale-up-disabled";
    /// On the Secret of a bootstrap token: the machine of the token. The Go original has no such label.
    pub const TOKEN_MACHINE: &str = "node.machine.sapcloud.io/machine";
    /// On a `ConfigMap`: the name of the simulation whose state is stored in it.
    pub const SIMULATION_STATE: &str = "virtual.machine.sapcloud.io/state";
}

/// Annotations.
pub mod annotation {
    /// On a Machine: the priority for deletion, lowest first. Absent means [`super::DEFAULT_MACHINE_PRIORITY`].
    pub const MACHINE_PRIORITY: &str = "machinepriority.machine.sapcloud.io";
    /// On deployment, set and machine: a Go duration that overrides `spec.creationTimeout`.
    pub const EFFECTIVE_CREATION_TIMEOUT: &str = "node.machine.sapcloud.io/effective-creation-timeout";
    /// On a Machine: how long the machine took to join.
    pub const MACHINE_JOIN_DURATION: &str = "node.machine.sapcloud.io/machine-join-duration";
    /// On Machine and Node: one of [`super::preserve_value`].
    pub const PRESERVE: &str = "node.machine.sapcloud.io/preserve";
    /// The prefix of all annotations in which the controllers store the last applied values.
    pub const LAST_APPLIED_PREFIX: &str = "node.machine.sapcloud.io/last-applied-";
    /// On a Machine: the preserve value of the Node that was applied last.
    pub const LAST_APPLIED_NODE_PRESERVE_VALUE: &str = "node.machine.sapcloud.io/last-applied-node-preserve-value";
    /// On a Node: the node template of the machine that was applied last, as JSON.
    pub const LAST_APPLIED_TEMPLATE: &str = "node.machine.sapcloud.io/last-applied-anno-labels-taints";
    /// On a Node: the virtual capacity of the class that was applied last, as JSON.
    pub const LAST_APPLIED_VIRTUAL_CAPACITY: &str = "node.machine.sapcloud.io/last-applied-virtual-capacity";
    /// On a Node: if present, the node controllers ignore the Node.
    pub const NOT_MANAGED: &str = "node.machine.sapcloud.io/not-managed-by-mcm";
    /// On a Node: why an in-place update failed.
    pub const UPDATE_FAILED_REASON: &str = "node.machine.sapcloud.io/update-failed-reason";
    /// On a `MachineDeployment`: `m1~RFC3339,…`, written by cluster-autoscaler.
    pub const TRIGGER_DELETION: &str = "node.machine.sapcloud.io/trigger-deletion-by-mcm";
    /// On a Machine: when cluster-autoscaler marked the machine for deletion.
    pub const MARKED_FOR_DELETION_TIME: &str = "machine.sapcloud.io/marked-for-deletion-time";
    /// On a `MachineDeployment`, copied to its sets: when cluster-autoscaler last changed the replicas.
    pub const LAST_REPLICA_CHANGE_BY_SCALER: &str = "machine.sapcloud.io/last-deployment-replica-change-by-scaler-time";
    /// The revision of a set, or of the newest set of a deployment.
    pub const REVISION: &str = "deployment.kubernetes.io/revision";
    /// The earlier revisions of a set, separated by commas.
    pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
    /// On a set: the replicas of the deployment when the set was last scaled.
    pub const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
    /// On a set: the replicas and the surge of the deployment when the set was last scaled.
    pub const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
    /// On a set: `True` after its nodes got the prefer-no-schedule taint.
    pub const PREFER_NO_SCHEDULE: &str = "deployment.machine.sapcloud.io/prefer-no-schedule";
    /// On deployment and set: if present, the freeze is requested to end.
    pub const UNFREEZE: &str = "safety.machine.sapcloud.io/unfreeze";
    /// When a user asked for new machines by `kubectl mcm rollout restart`; in the template, so that its machines are replaced.
    pub const RESTARTED_AT: &str = "machine.sapcloud.io/restartedAt";
    /// On a Node: cluster-autoscaler does not scale the Node down.
    pub const SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
    /// On a Node: shows that this program set the annotation above.
    pub const SCALE_DOWN_DISABLED_BY_MCM: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled-by-mcm";
    /// The last configuration that kubectl applied. It is never copied.
    pub const KUBECTL_LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    /// On a Pod: the Pod is the mirror of a static pod.
    pub const MIRROR_POD: &str = "kubernetes.io/config.mirror";
    /// Ids of admission rules that this object skips, separated by commas.
    pub const ADMISSION_SKIP: &str = "admission.machine.sapcloud.io/skip";
    /// The prefix of annotations that only admission reads.
    pub const ADMISSION_PREFIX: &str = "admission.machine.sapcloud.io/";
    /// `"false"` prevents this process from writing the CA bundle into an object.
    pub const INJECT_CA: &str = "admission.machine.sapcloud.io/inject-ca";
    /// Annotations that make other programs write the CA bundle. This process ignores such objects.
    pub const FOREIGN_CA_INJECTORS: [&str; 4] = [
        "cert-manager.io/inject-ca-from",
        "cert-manager.io/inject-ca-from-secret",
        "cert-manager.io/inject-apiserver-ca",
        "service.beta.openshift.io/inject-cabundle",
    ];
    /// On the Secret of the certificate: the number of writes.
    pub const CERTIFICATE_GENERATION: &str = "certificates.machine.sapcloud.io/generation";
    /// On v1beta1 objects: data of v1alpha1 that v1beta1 can't represent.
    pub const CONVERSION_V1ALPHA1: &str = "conversion.machine.sapcloud.io/v1alpha1";
    /// On v1alpha1 objects: data of v1beta1 that v1alpha1 can't represent.
    pub const CONVERSION_V1BETA1: &str = "conversion.machine.sapcloud.io/v1beta1";
    /// On a v1beta1 `MachineDeployment`: the replacement of `rollbackTo`.
    pub const ROLLBACK_TO: &str = "deployment.machine.sapcloud.io/rollback-to";
    /// On a Node of the virtual cloud.
    pub const SIMULATED_NODE: &str = "virtual.machine.sapcloud.io/simulated";
    /// On a simulated Node: the namespace of its machine.
    pub const SIMULATED_NAMESPACE: &str = "virtual.machine.sapcloud.io/namespace";
    /// On a simulated Node: the provider id of the VM as in the Machine. `spec.providerID` has the format of a cloud controller manager.
    pub const SIMULATED_PROVIDER_ID: &str = "virtual.machine.sapcloud.io/provider-id";
    /// On a simulated Node: the owner of the VM, as JSON. Read after a restart without stored state.
    pub const SIMULATED_OWNER: &str = "virtual.machine.sapcloud.io/owner";
    /// On a Pod of a simulated Node: a Go duration after which it succeeds.
    pub const SIMULATED_RUN_FOR: &str = "virtual.machine.sapcloud.io/run-for";
    /// On a Pod of a simulated Node: `true` prevents the end of its termination.
    pub const SIMULATED_REFUSE_TERMINATION: &str = "virtual.machine.sapcloud.io/refuse-termination";
    /// On a `ConfigMap` with the state of a simulation: the process that writes it.
    pub const SIMULATION_WRITER: &str = "virtual.machine.sapcloud.io/writer";
}

/// Taint keys.
pub mod taint {
    /// On Nodes of old sets of a rolling update. Value `True`, effect `PreferNoSchedule`.
    pub const PREFER_NO_SCHEDULE: &str = "deployment.machine.sapcloud.io/prefer-no-schedule";
    /// Effect `NoSchedule`. A Pending machine does not become Running while its Node has this taint.
    pub const CRITICAL_COMPONENTS_NOT_READY: &str = "node.gardener.cloud/critical-components-not-ready";
    /// Effect `NoSchedule`. Prevents new pods on a preserved failed node.
    pub const PRESERVED: &str = "node.machine.sapcloud.io/preserved";
}

/// Types of Node conditions that this system writes.
pub mod node_condition {
    /// The node will be drained and deleted.
    pub const TERMINATING: &str = "Terminating";
    /// The progress of an in-place update.
    pub const IN_PLACE_UPDATE: &str = "InPlaceUpdate";
    /// The node is preserved.
    pub const PRESERVED: &str = "Preserved";
    /// Reason of [`PRESERVED`]: a Failed machine of a set that preserves some. Blanks and full stop are as in the Go original.
    pub const REASON_PRESERVED_BY_MCM: &str = "Preserved by MCM.";
    /// Reason of [`PRESERVED`]: a user requested it.
    pub const REASON_PRESERVED_BY_USER: &str = "Preserved by user.";
    /// Reason of [`PRESERVED`] after the preservation ended.
    pub const REASON_PRESERVATION_STOPPED: &str = "Preservation stopped.";
    /// The beginning of the message of [`PRESERVED`] after a successful drain. It is program state (spec/machine-controller §5.6).
    pub const MESSAGE_PRESERVED_DRAINED: &str = "Preserved node drained successfully.";
    /// The beginning of the message of [`PRESERVED`] after a failed drain.
    pub const MESSAGE_PRESERVED_NOT_DRAINED: &str = "Preserved node could not be drained.";
    /// Reason of [`TERMINATING`]: the machine is no longer needed.
    pub const REASON_SCALE_DOWN: &str = "ScaleDown";
    /// Reason of [`TERMINATING`]: the machine failed.
    pub const REASON_UNHEALTHY: &str = "Unhealthy";
    /// The message for [`REASON_SCALE_DOWN`].
    pub const MESSAGE_SCALE_DOWN: &str = "Machine Controller is scaling down machine";
    /// The message for [`REASON_UNHEALTHY`].
    pub const MESSAGE_UNHEALTHY: &str = "Machine Controller is terminating failed machine";
    /// Reason of [`IN_PLACE_UPDATE`]: the node may be selected for an update.
    pub const REASON_CANDIDATE_FOR_UPDATE: &str = "CandidateForUpdate";
    /// Reason of [`IN_PLACE_UPDATE`]: the node is selected and will be drained.
    pub const REASON_SELECTED_FOR_UPDATE: &str = "SelectedForUpdate";
    /// Reason of [`IN_PLACE_UPDATE`]: the node is drained.
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
    /// The update has failed. The reason is in [`super::annotation::UPDATE_FAILED_REASON`].
    pub const FAILED: &str = "failed";
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
    /// Event, and reason of `ReplicaFailure`: machines could not be created.
    pub const FAILED_CREATE: &str = "FailedCreate";
    /// Event, and reason of `ReplicaFailure`: machines could not be deleted.
    pub const FAILED_DELETE: &str = "FailedDelete";
    /// Reason of `ReplicaFailure`: new machines never joined, and their replacements are delayed. Not in the Go original.
    pub const NEVER_JOINED: &str = "MachinesNeverJoined";
    /// Event, and reason of the condition `Valid`: the object is invalid and not reconciled. Also for deployments.
    pub const FAILED_VALIDATION: &str = "FailedValidation";
    /// Event: the API server repeatedly refuses a write for the set. Also for deployments. Not in the Go original.
    pub const WRITE_REFUSED: &str = "WriteRefused";
}

/// The message for a template that the selector of its object does not select. No machine is made from such a template: it would belong to no set,
/// and the next machine would be made at once.
pub const UNSELECTED_TEMPLATE: &str =
    "nothing is made from spec.template: spec.selector.matchExpressions do not select its labels";

/// Event and condition reasons of deployments, and fixed texts.
pub mod deployment_reason {
    /// `Available` is true.
    pub const MINIMUM_AVAILABLE: &str = "MinimumReplicasAvailable";
    /// `Available` is false.
    pub const MINIMUM_UNAVAILABLE: &str = "MinimumReplicasUnavailable";
    /// `Progressing`: the newest set existed already.
    pub const FOUND_NEW_SET: &str = "FoundNewMachineSet";
    /// `Progressing`: the newest set was created.
    pub const NEW_SET_CREATED: &str = "NewMachineSetCreated";
    /// `Progressing`: the rollout is complete.
    pub const NEW_SET_AVAILABLE: &str = "NewMachineSetAvailable";
    /// `Progressing`: machines were created or became ready.
    pub const SET_UPDATED: &str = "MachineSetUpdated";
    /// Event and `Progressing`: the newest set could not be created.
    pub const SET_CREATE_ERROR: &str = "MachineSetCreateError";
    /// `Progressing`: there was no progress within `progressDeadlineSeconds`.
    pub const DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
    /// `Progressing`: rollouts are paused.
    pub const PAUSED: &str = "DeploymentPaused";
    /// `Progressing`: rollouts continue after a pause.
    pub const RESUMED: &str = "DeploymentResumed";
    /// Event: the selector selects everything.
    pub const SELECTING_ALL: &str = "SelectingAll";
    /// Event: the template of an earlier revision was restored.
    pub const ROLLED_BACK: &str = "DeploymentRollback";
    /// Event: the revision for a rollback does not exist.
    pub const ROLLBACK_REVISION_NOT_FOUND: &str = "DeploymentRollbackRevisionNotFound";
    /// Event: the revision for a rollback has the current template.
    pub const ROLLBACK_TEMPLATE_UNCHANGED: &str = "DeploymentRollbackTemplateUnchanged";
    /// Event: a set was scaled.
    pub const SCALING_SET: &str = "ScalingMachineSet";
    /// `InPlaceUpdateFailed` is true: the updates of some machines must be repaired by a user. Not in the Go original.
    pub const IN_PLACE_UPDATE_FAILED: &str = "UpdateFailed";
    /// Event and `Progressing`: the strategy needs a target cluster, and there is none. Not in the Go original.
    pub const STRATEGY_NOT_SUPPORTED: &str = "StrategyNotSupported";
}

/// Event and condition reasons of the overshoot protection.
pub mod freeze_reason {
    /// Condition `Frozen`: a set has too many machines.
    pub const OVERSHOOTING: &str = "OverShootingReplicaCount";
    /// Condition `Frozen` of a deployment that was frozen because of its set.
    pub const STATE_SYNC: &str = "MachineDeploymentStateSync";
    /// Event: a set was frozen.
    pub const FROZE_SET: &str = "FrozeMachineSet";
    /// Event: the freeze of a set ended.
    pub const UNFROZE_SET: &str = "UnfrozeMachineSet";
}

/// Reasons of events on classes.
pub mod class_reason {
    /// The driver for the provider of the class has been unhealthy or unreachable for too long.
    pub const DRIVER_DOWN: &str = "DriverDown";
    /// The driver is available again.
    pub const DRIVER_UP: &str = "DriverUp";
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
    /// The driver could not create the VM, or not return its status.
    pub const CREATE_FAILED: &str = "CreateFailed";
    /// The driver could not initialise the VM.
    pub const INITIALIZE_FAILED: &str = "InitializeFailed";
    /// The class is missing or can't be used.
    pub const CLASS_NOT_USABLE: &str = "ClassNotUsable";
    /// The node template of the class is incomplete.
    pub const NODE_TEMPLATE_INVALID: &str = "NodeTemplateInvalid";
    /// A Secret of the class is missing.
    pub const SECRET_NOT_USABLE: &str = "SecretNotUsable";
    /// The Secrets of the class have no user data.
    pub const USER_DATA_MISSING: &str = "UserDataMissing";
    /// The new VM would use the Node of an older one.
    pub const STALE_NODE: &str = "StaleNode";
    /// The Node of a running machine no longer exists.
    pub const NODE_MISSING: &str = "NodeMissing";
    /// The Node of a running machine is unhealthy.
    pub const NODE_UNHEALTHY: &str = "NodeUnhealthy";
    /// The machine did not join in time.
    pub const CREATION_TIMEOUT: &str = "CreationTimeout";
    /// The machine was unhealthy for too long.
    pub const HEALTH_TIMEOUT: &str = "HealthTimeout";
    /// The machine was unhealthy for too long, but another machine is being replaced.
    pub const HEALTH_TIMEOUT_REPLACEMENT_DEFERRED: &str = "HealthTimeoutReplacementDeferred";
    /// Evictions are refused.
    pub const DRAIN_BLOCKED: &str = "DrainBlocked";
    /// Pods are deleted without eviction.
    pub const DRAIN_FORCED: &str = "DrainForced";
    /// A volume does not detach.
    pub const VOLUME_STILL_ATTACHED: &str = "VolumeStillAttached";
    /// The driver could not delete the VM.
    pub const VM_DELETION_FAILED: &str = "VMDeletionFailed";
    /// A Node with the name of the machine belongs to something else and was kept.
    pub const FOREIGN_NODE_KEPT: &str = "ForeignNodeKept";
    /// The Node of a deleted machine, or the finalizer of the machine, can't be removed. Not in the Go original.
    pub const NODE_NOT_DELETED: &str = "NodeNotDeleted";
    /// The machine was removed by force, and whether its Node exists is unknown. Not in the Go original.
    pub const NODE_NOT_LOOKED_FOR: &str = "NodeNotLookedFor";
    /// The last applied template on a Node can't be read.
    pub const LAST_APPLIED_UNREADABLE: &str = "LastAppliedUnreadable";
    /// A class that is being deleted is still used.
    pub const STILL_REFERENCED: &str = "StillReferenced";
    /// The machine is healthy again.
    pub const REJOINED: &str = "Rejoined";
    /// An existing VM was adopted.
    pub const ADOPTED: &str = "Adopted";
    /// The preservation of the machine begins.
    pub const PRESERVED: &str = "Preserved";
    /// The preservation of the machine ended.
    pub const PRESERVATION_STOPPED: &str = "PreservationStopped";
    /// An annotation `preserve` has an unknown value.
    pub const PRESERVE_VALUE_UNKNOWN: &str = "PreserveValueUnknown";
    /// The Node is drained, after a problem delayed the drain.
    pub const DRAIN_SUCCEEDED: &str = "DrainSucceeded";
    /// The VM is deleted, after failed attempts.
    pub const VM_DELETED: &str = "VMDeleted";
    /// The VM is created, after failed attempts.
    pub const CREATED: &str = "Created";
    /// The VM is initialised, after failed attempts.
    pub const INITIALIZED: &str = "Initialized";
    /// The machine joined, although it had already failed.
    pub const JOINED: &str = "Joined";
    /// Finalizers, labels, taints or conditions of the Node can't be written.
    pub const NODE_NOT_UPDATED: &str = "NodeNotUpdated";
    /// The provider no longer has the VM of an unhealthy machine.
    pub const VM_GONE: &str = "VMGone";
    /// An in-place update failed or took too long.
    pub const IN_PLACE_UPDATE_FAILED: &str = "InPlaceUpdateFailed";
    /// An in-place update succeeded.
    pub const IN_PLACE_UPDATE_SUCCESSFUL: &str = "InPlaceUpdateSuccessful";
    /// On a class: VMs without a machine are deleted.
    pub const ORPHAN_VMS_FOUND: &str = "OrphanVMsFound";
    /// The machine was removed without its VM and Node, because another machine has the same VM. Not in the Go original.
    pub const VM_LEFT_TO_ANOTHER: &str = "VMLeftToAnotherMachine";
    /// Several machines have the same Node in their label. Not in the Go original.
    pub const NODE_CONTESTED: &str = "NodeContested";
    /// The API server refuses a write for the machine. Not in the Go original.
    pub const WRITE_REFUSED: &str = "WriteRefused";
    /// The health timeout could not be reset after an outage of an API server. Not in the Go original.
    pub const THAW_FAILED: &str = "ThawFailed";
}

/// Types and reasons of `status.machineConditions` (decisions.md 30).
pub mod machine_condition {
    /// Whether the machine is changing, and what it waits for.
    pub const PROGRESSING: &str = "Progressing";
    /// Whether the Node is known to belong to the machine. The condition exists only while this is unknown (status `Unknown`).
    pub const NODE_IDENTIFIED: &str = "NodeIdentified";
    /// The driver can't compare the provider ids of machine and Node.
    pub const REASON_IDS_NOT_COMPARABLE: &str = "ProviderIDsNotComparable";
    /// The name of another machine fits the Node better.
    pub const REASON_NODE_CONTESTED: &str = super::machine_reason::NODE_CONTESTED;
    /// Waits for the Node of the new VM.
    pub const REASON_WAITING_FOR_NODE: &str = "WaitingForNode";
    /// Waits for the Node of a VM that existed before.
    pub const REASON_WAITING_FOR_NODE_OF_ADOPTED_VM: &str = "WaitingForNodeOfAdoptedVM";
    /// Waits for the driver to return whether there is a VM.
    pub const REASON_WAITING_FOR_PROVIDER: &str = "WaitingForProvider";
    /// Waits for the driver to create the VM.
    pub const REASON_WAITING_FOR_VM: &str = "WaitingForVM";
    /// Waits for the driver to initialise the VM.
    pub const REASON_WAITING_FOR_INITIALIZATION: &str = "WaitingForInitialization";
    /// The Node is registered. Waits until it is Ready.
    pub const REASON_WAITING_FOR_NODE_READY: &str = "WaitingForNodeReady";
    /// The Node is Ready. Waits for pods that every node needs.
    pub const REASON_WAITING_FOR_CRITICAL_COMPONENTS: &str = "WaitingForCriticalComponents";
    /// The Node is being drained for an in-place update.
    pub const REASON_DRAINING_FOR_UPDATE: &str = "DrainingForUpdate";
    /// Waits for the node agent to update the node.
    pub const REASON_WAITING_FOR_UPDATE: &str = "WaitingForInPlaceUpdate";
    /// No decisions are made for the machine, because an API server does not answer.
    pub const REASON_FROZEN: &str = "Frozen";
    /// The machine waits for nothing.
    pub const REASON_SETTLED: &str = "Settled";
    /// The Node is being drained.
    pub const REASON_DRAINING: &str = "Draining";
    /// The VM is being deleted.
    pub const REASON_DELETING_VM: &str = "DeletingVM";
    /// The Node is being deleted.
    pub const REASON_DELETING_NODE: &str = "DeletingNode";
    /// VM and Node are deleted, and our finalizer can't be removed.
    pub const REASON_LETTING_GO: &str = "LettingGo";
    /// A pod disruption budget refuses evictions.
    pub const REASON_DRAIN_BLOCKED: &str = "DrainBlocked";
    /// An attempt to drain the Node failed. The drain will be retried.
    pub const REASON_DRAIN_FAILED: &str = "DrainFailed";
    /// Waits until a volume is detached from the Node.
    pub const REASON_WAITING_FOR_DETACHMENT: &str = "WaitingForVolumeDetachment";
    /// Waits until a volume is attached to another Node.
    pub const REASON_WAITING_FOR_REATTACHMENT: &str = "WaitingForVolumeReattachment";
    /// The drain waits for the list of the pods of the target cluster.
    pub const REASON_WAITING_FOR_POD_LIST: &str = "WaitingForPodList";
    /// The deletion waits for an earlier driver call.
    pub const REASON_AWAITING_DRIVER: &str = "AwaitingDriver";
    /// The machine is preserved for a user.
    pub const REASON_PRESERVED: &str = "Preserved";
}

/// The beginning of the description during a deletion, if the machine had failed before (spec/machine-controller §14, M-06).
pub const WAS_FAILED_TEXT: &str = "Machine was Failed. ";
/// The field manager of CA bundles and of the Secret of the certificate.
pub const CERTIFICATE_FIELD_MANAGER: &str = "mcm-certs";
/// Event on the Secret of the certificate: the serving certificate expires soon, or has expired.
pub const REASON_CERTIFICATE_NOT_RENEWED: &str = "CertificateNotRenewed";

/// Values of the annotation `preserve`.
pub mod preserve_value {
    /// Preserve at once, in any phase.
    pub const NOW: &str = "now";
    /// Preserve after the machine has failed.
    pub const WHEN_FAILED: &str = "when-failed";
    /// Written by the set controller on a Failed machine.
    pub const AUTO_PRESERVED: &str = "auto-preserved";
    /// Do not preserve.
    pub const FALSE: &str = "false";
}
