//! The labels of the families, as types. A new value is a new variant, so that cardinality stays a decision.

use super::family::{LabelValue, label_set, label_values};
use machine_driver::{Code, Operation};

/// The method as the original spells it (spec/providers §2.1).
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

/// The code's number as text, as the original prints it.
impl LabelValue for Code {
    fn label(&self) -> &str {
        const NUMBERS: [&str; 18] =
            ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17"];
        NUMBERS.get(usize::from(self.number())).copied().unwrap_or("2")
    }
}

label_set! {
    /// A low-level call to a cloud.
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
        /// What the failure means.
        error_code: Code = "error_code",
    }
}

label_set! {
    /// Where a machine belongs and what it runs on. Instance type and zone are empty when the class does not tell.
    pub struct PlacedMachine<'a> {
        /// Namespace of the machine.
        namespace: &'a str = "namespace",
        /// Its deployment, by label `name`; without one nothing is recorded.
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
    /// A write on behalf of a machine.
    pub struct ApiWrite<'a> {
        /// What was written, such as `machine` or `machine/status`.
        object: &'a str = "object",
        /// Name of the rule that asked for it.
        reason: &'a str = "reason",
    }
}

label_values! {
    /// Where a pod of a drain stands.
    pub enum DrainPodState {
        /// It waits for its turn, or for the answer to its eviction.
        Pending = "pending",
        /// A budget refuses its eviction.
        Refused = "refused",
        /// It is on its way out.
        Terminating = "terminating",
        /// It is gone; its volumes are waited for.
        Detaching = "detaching",
    }
}

label_set! {
    /// Pods of drains.
    pub struct DrainPods {
        /// Where they stand.
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
    /// Which listing failed during a scrape; the words are the original's.
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
    /// A failed part of a scrape.
    pub struct ScrapeFailure {
        /// What could not be listed.
        kind: ScrapeKind = "kind",
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
        /// Where to, made by [`super::url_pattern`] so that no object name gets in.
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

label_values! {
    /// A path of the TLS listener.
    pub enum Webhook {
        /// `/mutate`.
        Mutate = "mutate",
        /// `/validate`.
        Validate = "validate",
        /// `/validate-status`.
        ValidateStatus = "validate-status",
        /// `/convert`.
        Convert = "convert",
    }
}

label_values! {
    /// Kind of a reviewed object.
    pub enum ReviewedKind {
        /// A machine.
        Machine = "Machine",
        /// A set.
        MachineSet = "MachineSet",
        /// A deployment.
        MachineDeployment = "MachineDeployment",
        /// A class.
        MachineClass = "MachineClass",
        /// Anything else; the caller may write what he likes.
        Other = "other",
    }
}

label_values! {
    /// What a reviewed request does.
    pub enum ReviewedOperation {
        /// It creates.
        Create = "CREATE",
        /// It updates, patches or applies.
        Update = "UPDATE",
        /// It deletes.
        Delete = "DELETE",
        /// It connects.
        Connect = "CONNECT",
        /// Anything else.
        Other = "other",
    }
}

label_values! {
    /// Yes or no.
    pub enum Allowed {
        /// The request passed.
        Yes = "true",
        /// It was refused.
        No = "false",
    }
}

label_set! {
    /// An answered admission review.
    pub struct Reviewed {
        /// Which webhook.
        webhook: Webhook = "webhook",
        /// Kind of the object.
        kind: ReviewedKind = "kind",
        /// What the request does.
        operation: ReviewedOperation = "operation",
        /// The verdict.
        allowed: Allowed = "allowed",
    }
}

label_set! {
    /// A webhook.
    pub struct OfWebhook {
        /// Which.
        webhook: Webhook = "webhook",
    }
}

label_values! {
    /// What a hit of an admission rule did.
    pub enum RuleLevel {
        /// It denied.
        Deny = "deny",
        /// It warned.
        Warn = "warn",
        /// It was found but let pass, because the update does not make it worse.
        Ratcheted = "ratcheted",
        /// The object asks to skip it.
        Skipped = "skipped",
    }
}

label_set! {
    /// A hit of an admission rule.
    pub struct RuleHit<'a> {
        /// Id of the rule.
        rule: &'a str = "rule",
        /// What it did.
        level: RuleLevel = "level",
        /// Kind of the object.
        kind: ReviewedKind = "kind",
        /// What the request does.
        operation: ReviewedOperation = "operation",
    }
}

label_values! {
    /// A version of the API.
    pub enum ApiVersion {
        /// The stored one.
        V1alpha1 = "v1alpha1",
        /// Its successor.
        V1beta1 = "v1beta1",
        /// Any other word.
        Other = "other",
    }
}

label_values! {
    /// How something ended.
    pub enum Outcome {
        /// Well.
        Success = "success",
        /// Not well.
        Failure = "failure",
    }
}

label_set! {
    /// An answered conversion review.
    pub struct Conversion {
        /// Version of the objects; `other` when they differ.
        from: ApiVersion = "from",
        /// Version asked for.
        to: ApiVersion = "to",
        /// How it ended.
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
        /// Which.
        listener: Listener = "listener",
    }
}

label_values! {
    /// Why a connection or request was turned away before any handler saw it.
    pub enum Rejection {
        /// As many connections as allowed are open.
        ConnectionLimit = "connection_limit",
        /// One peer has as many connections as allowed.
        PeerConnectionLimit = "peer_connection_limit",
        /// TLS handshake failed or took too long.
        Handshake = "handshake",
        /// As many requests as allowed are in flight.
        InFlightLimit = "in_flight_limit",
        /// The body is too large.
        BodyTooLarge = "body_too_large",
        /// The body did not arrive in time.
        BodyTooSlow = "body_too_slow",
    }
}

label_set! {
    /// Something turned away.
    pub struct Rejected {
        /// Where.
        listener: Listener = "listener",
        /// Why.
        reason: Rejection = "reason",
    }
}

label_set! {
    /// A panic that a handler's guard caught.
    pub struct Panicked {
        /// Whose handler.
        webhook: Webhook = "webhook",
    }
}

label_set! {
    /// A part of what the API server says about trust.
    pub struct AuthConfigPart<'a> {
        /// Its key in the `ConfigMap`.
        key: &'a str = "key",
    }
}

label_set! {
    /// A view; empty for what is no view.
    pub struct OfView<'a> {
        /// Its plural.
        view: &'a str = "view",
    }
}

label_set! {
    /// A request to the extension API server.
    pub struct ViewRequest<'a> {
        /// Plural of the view; empty for what is no view.
        view: &'a str = "view",
        /// What was wanted; empty for what is no view.
        verb: &'a str = "verb",
        /// HTTP status of the answer.
        code: &'a str = "code",
    }
}
