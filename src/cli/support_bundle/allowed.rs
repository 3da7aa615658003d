//! The fields of each kind that a bundle contains. A field that is not listed here is left out.
//!
//! A list of allowed fields is safe for fields that do not exist yet; a list of forbidden patterns is not (spec/packaging §7.5). Texts that
//! people or clouds write, such as messages of conditions, are allowed. [`super::scrub`] removes known secret values from them.

use machine_api::{kind::Kind, names::annotation};

/// How much of a value is kept.
#[derive(Clone, Copy, Debug)]
pub enum Keep {
    /// All of it.
    All,
    /// These members of an object.
    Only(&'static [(&'static str, Keep)]),
    /// The same part of each element of a list.
    Each(&'static Keep),
    /// All keys of a map, and the values of [`ANNOTATIONS`].
    Annotations,
    /// All keys of a map, and the length of each value in bytes, from Base64.
    Lengths,
    /// The length of a text.
    Length,
    /// A value that contains addresses: only with `--keep-addresses`.
    Address,
    /// The keys, and the values that the driver's schema calls harmless.
    ByDriverSchema,
    /// The names of a list of named values.
    Names,
    /// This part of each container. Only containers of the manager keep their arguments.
    Containers(&'static Keep),
    /// A list of command-line arguments, with the scheme and the host of each address only.
    Arguments,
}

/// Annotations whose values are kept. Others can contain whole manifests, or anything else.
pub const ANNOTATIONS: [&str; 18] = [
    annotation::MACHINE_PRIORITY,
    annotation::EFFECTIVE_CREATION_TIMEOUT,
    annotation::MACHINE_JOIN_DURATION,
    annotation::PRESERVE,
    annotation::NOT_MANAGED,
    annotation::TRIGGER_DELETION,
    annotation::MARKED_FOR_DELETION_TIME,
    annotation::LAST_REPLICA_CHANGE_BY_SCALER,
    annotation::REVISION,
    annotation::REVISION_HISTORY,
    annotation::DESIRED_REPLICAS,
    annotation::MAX_REPLICAS,
    annotation::PREFER_NO_SCHEDULE,
    annotation::UNFREEZE,
    annotation::RESTARTED_AT,
    annotation::SCALE_DOWN_DISABLED,
    annotation::ADMISSION_SKIP,
    annotation::INJECT_CA,
];

/// Names of containers and of images that run the manager. Arguments of other containers may contain their passwords.
pub const MANAGERS: [&str; 2] = ["mcm", "machine-controller-manager"];

const META: Keep = Keep::Only(&[
    ("name", Keep::All),
    ("generateName", Keep::All),
    ("namespace", Keep::All),
    ("uid", Keep::All),
    ("resourceVersion", Keep::All),
    ("generation", Keep::All),
    ("creationTimestamp", Keep::All),
    ("deletionTimestamp", Keep::All),
    ("deletionGracePeriodSeconds", Keep::All),
    ("finalizers", Keep::All),
    ("ownerReferences", Keep::All),
    ("labels", Keep::All),
    ("annotations", Keep::Annotations),
    (
        "managedFields",
        Keep::Each(&Keep::Only(&[
            ("manager", Keep::All),
            ("operation", Keep::All),
            ("subresource", Keep::All),
            ("apiVersion", Keep::All),
            ("time", Keep::All),
        ])),
    ),
]);

const TEMPLATE_META: Keep = Keep::Only(&[("labels", Keep::All), ("annotations", Keep::Annotations)]);

const NODE_TEMPLATE: Keep = Keep::Only(&[
    ("metadata", TEMPLATE_META),
    ("spec", Keep::Only(&[("taints", Keep::All), ("unschedulable", Keep::All), ("providerID", Keep::All)])),
]);

const MACHINE_SPEC: Keep = Keep::Only(&[
    ("class", Keep::All),
    ("providerID", Keep::All),
    ("nodeTemplate", NODE_TEMPLATE),
    ("creationTimeout", Keep::All),
    ("drainTimeout", Keep::All),
    ("healthTimeout", Keep::All),
    ("inPlaceUpdateTimeout", Keep::All),
    ("machinePreserveTimeout", Keep::All),
    ("disableHealthTimeout", Keep::All),
    ("maxEvictRetries", Keep::All),
    ("nodeConditions", Keep::All),
]);

const TEMPLATE: Keep = Keep::Only(&[("metadata", TEMPLATE_META), ("spec", MACHINE_SPEC)]);

const MACHINE: Keep = object(&[
    ("spec", MACHINE_SPEC),
    (
        "status",
        Keep::Only(&[
            ("addresses", Keep::Address),
            ("conditions", Keep::All),
            ("currentStatus", Keep::All),
            ("lastOperation", Keep::All),
            ("lastKnownState", Keep::Length),
            ("machineConditions", Keep::All),
        ]),
    ),
]);

const SET: Keep = object(&[
    (
        "spec",
        Keep::Only(&[
            ("replicas", Keep::All),
            ("selector", Keep::All),
            ("machineClass", Keep::All),
            ("template", TEMPLATE),
            ("minReadySeconds", Keep::All),
            ("autoPreserveFailedMachineMax", Keep::All),
        ]),
    ),
    ("status", Keep::All),
]);

const DEPLOYMENT: Keep = object(&[
    (
        "spec",
        Keep::Only(&[
            ("replicas", Keep::All),
            ("selector", Keep::All),
            ("template", TEMPLATE),
            ("strategy", Keep::All),
            ("minReadySeconds", Keep::All),
            ("paused", Keep::All),
            ("progressDeadlineSeconds", Keep::All),
            ("revisionHistoryLimit", Keep::All),
            ("rollbackTo", Keep::All),
            ("autoPreserveFailedMachineMax", Keep::All),
        ]),
    ),
    ("status", Keep::All),
]);

const CLASS: Keep = object(&[
    ("provider", Keep::All),
    ("providerSpec", Keep::ByDriverSchema),
    ("secretRef", Keep::All),
    ("credentialsSecretRef", Keep::All),
    (
        "nodeTemplate",
        Keep::Only(&[
            ("architecture", Keep::All),
            ("capacity", Keep::All),
            ("virtualCapacity", Keep::All),
            ("instanceType", Keep::All),
            ("region", Keep::All),
            ("zone", Keep::All),
        ]),
    ),
    ("status", Keep::All),
]);

const LEASE: Keep = object(&[("spec", Keep::All)]);

const CLIENT_CONFIG: Keep = Keep::Only(&[("service", Keep::All), ("url", Keep::Address), ("caBundle", Keep::Length)]);

const DEFINITION: Keep = object(&[
    (
        "spec",
        Keep::Only(&[
            ("group", Keep::All),
            ("names", Keep::All),
            ("scope", Keep::All),
            (
                "versions",
                Keep::Each(&Keep::Only(&[("name", Keep::All), ("served", Keep::All), ("storage", Keep::All)])),
            ),
            (
                "conversion",
                Keep::Only(&[
                    ("strategy", Keep::All),
                    (
                        "webhook",
                        Keep::Only(&[("clientConfig", CLIENT_CONFIG), ("conversionReviewVersions", Keep::All)]),
                    ),
                ]),
            ),
        ]),
    ),
    ("status", Keep::All),
]);

const WEBHOOKS: Keep = object(&[(
    "webhooks",
    Keep::Each(&Keep::Only(&[
        ("name", Keep::All),
        ("clientConfig", CLIENT_CONFIG),
        ("rules", Keep::All),
        ("failurePolicy", Keep::All),
        ("matchPolicy", Keep::All),
        ("matchConditions", Keep::All),
        ("namespaceSelector", Keep::All),
        ("objectSelector", Keep::All),
        ("reinvocationPolicy", Keep::All),
        ("sideEffects", Keep::All),
        ("timeoutSeconds", Keep::All),
    ])),
)]);

const API_SERVICE: Keep = object(&[
    (
        "spec",
        Keep::Only(&[
            ("group", Keep::All),
            ("version", Keep::All),
            ("service", Keep::All),
            ("caBundle", Keep::Length),
            ("insecureSkipTLSVerify", Keep::All),
        ]),
    ),
    ("status", Keep::All),
]);

const EVENT: Keep = object(&[
    ("involvedObject", Keep::All),
    ("reason", Keep::All),
    ("message", Keep::All),
    ("type", Keep::All),
    ("count", Keep::All),
    ("firstTimestamp", Keep::All),
    ("lastTimestamp", Keep::All),
    ("eventTime", Keep::All),
    ("source", Keep::Only(&[("component", Keep::All)])),
    ("reportingComponent", Keep::All),
]);

const NODE: Keep = object(&[
    ("spec", Keep::Only(&[("providerID", Keep::All), ("taints", Keep::All), ("unschedulable", Keep::All)])),
    (
        "status",
        Keep::Only(&[
            ("addresses", Keep::Address),
            ("conditions", Keep::All),
            ("capacity", Keep::All),
            ("allocatable", Keep::All),
            (
                "nodeInfo",
                Keep::Only(&[
                    ("kubeletVersion", Keep::All),
                    ("osImage", Keep::All),
                    ("kernelVersion", Keep::All),
                    ("containerRuntimeVersion", Keep::All),
                    ("architecture", Keep::All),
                ]),
            ),
        ]),
    ),
]);

const SECRET: Keep = object(&[("type", Keep::All), ("data", Keep::Lengths)]);

const POD_SPEC: Keep = Keep::Only(&[
    ("nodeName", Keep::All),
    ("serviceAccountName", Keep::All),
    (
        "containers",
        Keep::Containers(&Keep::Only(&[
            ("name", Keep::All),
            ("image", Keep::All),
            ("args", Keep::Arguments),
            ("resources", Keep::All),
            ("ports", Keep::All),
            ("env", Keep::Names),
        ])),
    ),
]);

const POD: Keep = object(&[
    ("spec", POD_SPEC),
    (
        "status",
        Keep::Only(&[
            ("phase", Keep::All),
            ("reason", Keep::All),
            ("message", Keep::All),
            ("startTime", Keep::All),
            ("conditions", Keep::All),
            (
                "containerStatuses",
                Keep::Each(&Keep::Only(&[
                    ("name", Keep::All),
                    ("image", Keep::All),
                    ("imageID", Keep::All),
                    ("ready", Keep::All),
                    ("restartCount", Keep::All),
                    ("state", Keep::All),
                    ("lastState", Keep::All),
                ])),
            ),
        ]),
    ),
]);

const WORKLOAD: Keep = object(&[
    (
        "spec",
        Keep::Only(&[
            ("replicas", Keep::All),
            ("strategy", Keep::All),
            ("template", Keep::Only(&[("metadata", TEMPLATE_META), ("spec", POD_SPEC)])),
        ]),
    ),
    ("status", Keep::All),
]);

/// The outlooks of machines and the summary of a fleet: computed by this program, from fields that are allowed.
const VIEW: Keep = Keep::All;

/// An object with these members beside its kind and its metadata.
const fn object(members: &'static [(&'static str, Keep)]) -> Keep {
    Keep::Only(members)
}

/// What a bundle keeps of an object of a kind; `None` for a kind that no bundle contains.
pub fn of_kind(kind: &str) -> Option<Keep> {
    if let Some(kind) = Kind::from_name(kind) {
        return Some(match kind {
            Kind::Machine => MACHINE,
            Kind::MachineSet => SET,
            Kind::MachineDeployment => DEPLOYMENT,
            Kind::MachineClass => CLASS,
        });
    }
    Some(match kind {
        "Lease" => LEASE,
        "CustomResourceDefinition" => DEFINITION,
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => WEBHOOKS,
        "APIService" => API_SERVICE,
        "Event" => EVENT,
        "Node" => NODE,
        "Secret" => SECRET,
        "Pod" => POD,
        "Deployment" => WORKLOAD,
        "MachineOutlook" | "FleetSummary" | "ProviderMachine" => VIEW,
        _ => return None,
    })
}

/// What is kept of the metadata of every object.
pub const fn of_metadata() -> Keep {
    META
}
