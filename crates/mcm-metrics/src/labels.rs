//! The labels of the families, as types. A new label value needs a new variant, so that cardinality is a decision.

use super::family::{LabelValue, label_set, label_values};
use kube_values::field::Severity;
use machine_api::{
    admission::Operation as ReviewOperation,
    kind::{ApiVersion, Kind},
    webhooks::Webhook,
};
use machine_driver::{Code, Operation};

/// The label for all unknown values.
const OTHER: &str = "other";

/// The method in the spelling of the original (spec/providers §2.1).
impl LabelValue for Operation {
    fn label(&self) -> &str {
        match self {
            Self::CreateMachine => "create_machine",
            Self::InitializeMachine => "initialize_machine",
            Self::DeleteMachine => "delete_machine",
            // Singular in the original.
            Self::ListMachines => "list_machine",
            Self::GetMachineStatus => "get_machine_status",
            Self::GetVolumeIds => "get_volume_ids",
        }
    }
}

/// The number of the code, as in the original.
impl LabelValue for Code {
    fn label(&self) -> &str {
        const NUMBERS: [&str; 18] =
            ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17"];
        NUMBERS.get(usize::from(self.number())).copied().unwrap_or("2")
    }
}

label_set! {
    /// A low-level call to a cloud API.
    pub struct CloudCall<'a> {
        /// Name of the driver.
        provider: &'a str = "provider",
        /// The provider's service or action.
        service: &'a str = "service",
    }
}

label_set! {
    /// A successful driver call.
    pub struct DriverCall<'a> {
        /// Name of the driver.
        provider: &'a str = "provider",
        /// The method.
        operation: Operation = "operation",
    }
}

label_set! {
    /// A failed driver call.
    pub struct FailedDriverCall<'a> {
        /// Name of the driver.
        provider: &'a str = "provider",
        /// The method.
        operation: Operation = "operation",
        /// The code of the failure.
        error_code: Code = "error_code",
    }
}

label_set! {
    /// The pool and the hardware of a machine. Instance type and zone are empty when the class does not contain them.
    pub struct PlacedMachine<'a> {
        /// Namespace of the machine.
        namespace: &'a str = "namespace",
        /// Its deployment: Gardener's label `name`, or else the deployment that owns the machine's set. Empty without one.
        machine_deployment: &'a str = "machine_deployment",
        /// Machine type of the class's node template.
        instance_type: &'a str = "instance_type",
        /// Zone label of the machine's node template.
        zone: &'a str = "zone",
    }
}

label_set! {
    /// A set.
    pub struct OfSet<'a> {
        /// Its name.
        name: &'a str = "name",
        /// Its namespace.
        namespace: &'a str = "namespace",
    }
}

label_set! {
    /// The deployment a machine belongs to.
    pub struct OfDeployment<'a> {
        /// Namespace of the machine.
        namespace: &'a str = "namespace",
        /// Its deployment.
        machine_deployment: &'a str = "machine_deployment",
    }
}

label_set! {
    /// A stage of a machine's creation or deletion.
    pub struct Stage<'a> {
        /// Name of the stage.
        stage: &'a str = "stage",
    }
}

label_set! {
    /// A write for a machine.
    pub struct ApiWrite<'a> {
        /// The written object, such as machine or machine/status.
        object: &'a str = "object",
        /// Name of the rule that caused it.
        reason: &'a str = "reason",
    }
}

label_values! {
    /// The state of a pod in a drain.
    pub enum DrainPodState {
        /// It waits for its eviction to be sent or answered.
        Pending = "pending",
        /// A disruption budget refuses its eviction.
        Refused = "refused",
        /// It is terminating.
        Terminating = "terminating",
        /// It is gone; its volumes are still attached.
        Detaching = "detaching",
    }
}

label_set! {
    /// Pods of drains.
    pub struct DrainPods {
        /// Their state.
        state: DrainPodState = "state",
    }
}

label_set! {
    /// A driver in another process.
    pub struct OfDriver<'a> {
        /// The provider that it serves.
        driver: &'a str = "driver",
    }
}

label_set! {
    /// A machine class.
    pub struct OfClass<'a> {
        /// Name of the class.
        class: &'a str = "class",
    }
}

label_values! {
    /// The kind whose list failed during a scrape, in the words of the original.
    pub enum ScrapeKind {
        /// Machines.
        Machine = "Machine-count",
        /// Sets.
        MachineSet = "Machineset-count",
        /// Deployments.
        MachineDeployment = "Machinedeployment-count",
    }
}

label_set! {
    /// A failure of a part of a scrape.
    pub struct ScrapeFailure {
        /// The kind that could not be listed.
        kind: ScrapeKind = "kind",
    }
}

label_values! {
    /// Why a machine was deleted, or a VM that had no machine.
    pub enum DeletionReason {
        /// A rollout replaces it.
        Rollout = "rollout",
        /// Its set has more machines than it wants.
        ScaleDown = "scale-down",
        /// It has failed, and is replaced.
        Unhealthy = "unhealthy",
        /// A user or another program deleted it, its set or its Node.
        User = "user",
        /// cluster-autoscaler chose it.
        Autoscaler = "autoscaler",
        /// A VM that had no machine.
        Orphan = "orphan",
    }
}

label_set! {
    /// Deleted machines.
    pub struct Deletion<'a> {
        /// Their namespace; of a VM without a machine, the namespace of its class.
        namespace: &'a str = "namespace",
        /// The reason.
        reason: DeletionReason = "reason",
    }
}

label_set! {
    /// The program that runs.
    pub struct Build<'a> {
        /// Its version.
        version: &'a str = "version",
        /// The commit of its sources; empty if the build did not know it.
        commit: &'a str = "commit",
        /// The Cargo profile of its build.
        profile: &'a str = "profile",
    }
}

label_set! {
    /// A Lease that leaders hold.
    pub struct OfLease<'a> {
        /// Its name.
        lease: &'a str = "lease",
    }
}

label_set! {
    /// A cache of objects.
    pub struct Cache<'a> {
        /// The cluster of the objects: `control` or `target`.
        cluster: &'a str = "cluster",
        /// Plural name of their kind.
        kind: &'a str = "kind",
    }
}

label_set! {
    /// A work queue.
    pub struct OfQueue<'a> {
        /// Name of the queue.
        name: &'a str = "name",
    }
}

label_set! {
    /// Latency of a Kubernetes call.
    pub struct RestLatency<'a> {
        /// HTTP method.
        verb: &'a str = "verb",
        /// The URL without object names, made by [`super::url_pattern`].
        url: &'a str = "url",
    }
}

label_set! {
    /// Outcome of a Kubernetes call.
    pub struct RestResult<'a> {
        /// Status code, or `<error>` when there was no answer.
        code: &'a str = "code",
        /// HTTP method.
        method: &'a str = "method",
        /// Host and port of the API server.
        host: &'a str = "host",
    }
}

impl LabelValue for Webhook {
    fn label(&self) -> &str {
        self.name()
    }
}

/// Kind of a reviewed object. The label never contains another kind, because a caller may send any text.
impl LabelValue for Option<Kind> {
    fn label(&self) -> &str {
        self.map_or(OTHER, Kind::as_str)
    }
}

impl LabelValue for Option<ReviewOperation> {
    fn label(&self) -> &str {
        self.filter(|operation| *operation != ReviewOperation::Other).map_or(OTHER, ReviewOperation::as_str)
    }
}

impl LabelValue for Option<ApiVersion> {
    fn label(&self) -> &str {
        self.map_or(OTHER, ApiVersion::as_str)
    }
}

/// The effect of a finding of an admission rule.
impl LabelValue for Severity {
    fn label(&self) -> &str {
        match self {
            Self::Deny => "deny",
            Self::Warn => "warn",
            Self::Existing => "ratcheted",
            Self::Skipped => "skipped",
        }
    }
}

impl LabelValue for bool {
    fn label(&self) -> &str {
        if *self { "true" } else { "false" }
    }
}

label_set! {
    /// An answered admission review.
    pub struct Reviewed {
        /// The webhook.
        webhook: Webhook = "webhook",
        /// Kind of the object.
        kind: Option<Kind> = "kind",
        /// Operation of the request.
        operation: Option<ReviewOperation> = "operation",
        /// The decision.
        allowed: bool = "allowed",
    }
}

label_set! {
    /// A webhook.
    pub struct OfWebhook {
        /// Its name.
        webhook: Webhook = "webhook",
    }
}

label_set! {
    /// A finding of an admission rule.
    pub struct RuleHit<'a> {
        /// Id of the rule.
        rule: &'a str = "rule",
        /// The effect.
        level: Severity = "level",
        /// Kind of the object.
        kind: Option<Kind> = "kind",
        /// Operation of the request.
        operation: Option<ReviewOperation> = "operation",
    }
}

label_values! {
    /// A result.
    pub enum Outcome {
        /// Success.
        Success = "success",
        /// Failure.
        Failure = "failure",
    }
}

label_set! {
    /// An answered conversion review.
    pub struct Conversion {
        /// Version of the objects; `other` when they differ.
        from: Option<ApiVersion> = "from",
        /// The requested version.
        to: Option<ApiVersion> = "to",
        /// The result.
        result: Outcome = "result",
    }
}

label_set! {
    /// A certificate.
    pub struct Certificate<'a> {
        /// `serving`, `ca` or `sni`.
        name: &'a str = "name",
    }
}

label_values! {
    /// A listener.
    pub enum Listener {
        /// TLS: webhooks, conversion, views.
        Secure = "secure",
        /// Plain HTTP: health and metrics.
        Plain = "plain",
    }
}

label_set! {
    /// A listener.
    pub struct OfListener {
        /// Its name.
        listener: Listener = "listener",
    }
}

label_values! {
    /// Why a connection or request was refused before a handler.
    pub enum Rejection {
        /// The limit of open connections is reached.
        ConnectionLimit = "connection_limit",
        /// The limit of connections of one peer is reached.
        PeerConnectionLimit = "peer_connection_limit",
        /// The TLS handshake failed or took too long.
        Handshake = "handshake",
        /// The limit of requests in flight is reached.
        InFlightLimit = "in_flight_limit",
        /// The body is too large.
        BodyTooLarge = "body_too_large",
        /// The body did not arrive in time.
        BodyTooSlow = "body_too_slow",
    }
}

label_set! {
    /// A refused connection or request.
    pub struct Rejected {
        /// The listener.
        listener: Listener = "listener",
        /// The reason.
        reason: Rejection = "reason",
    }
}

label_set! {
    /// A panic in a request handler.
    pub struct Panicked {
        /// The webhook of the handler.
        webhook: Webhook = "webhook",
    }
}

label_set! {
    /// A part of the API server's authentication configuration.
    pub struct AuthConfigPart<'a> {
        /// Its key in the `ConfigMap`.
        key: &'a str = "key",
    }
}

label_set! {
    /// A view; empty for other requests.
    pub struct OfView<'a> {
        /// Its plural.
        view: &'a str = "view",
    }
}

label_set! {
    /// A request to the extension API server.
    pub struct ViewRequest<'a> {
        /// Plural of the view; empty for other requests.
        view: &'a str = "view",
        /// Verb of the request; empty for other requests.
        verb: &'a str = "verb",
        /// HTTP status of the answer.
        code: &'a str = "code",
    }
}

label_values! {
    /// Why spans were not delivered.
    pub enum SpanLoss {
        /// The queue was full.
        QueueFull = "queue_full",
        /// The collector refused them.
        Refused = "refused",
        /// The collector did not take them in time.
        Unreachable = "unreachable",
        /// The process ended.
        Ended = "ended",
    }
}

label_set! {
    /// Spans that were not delivered.
    pub struct LostSpans {
        /// Why.
        reason: SpanLoss = "reason",
    }
}
