//! A proposed deployment: reading the review, and the judgement of admission.
//!
//! Defaults and rules are the same functions as in the webhooks, called in this process. A malformed review is refused. A proposal that admission
//! would deny gets a plan that says so. Source: spec/extension-apiserver §1.5.

use serde_json::{Value, json};

use super::{
    super::common::{checked_duration, review as review_of},
    DEFAULT_STEPS, MAX_STEPS, NAMES, Sources,
    shape::{Admission, Assume, FieldMessage, ProposedClass, Spec},
};
use crate::extension::view::GROUP;
use controller_runtime::{key::ObjectKey, snapshot::Snapshot};
use kube_protocol::status::{ApiStatus, Cause};
use kube_values::{
    field::{FieldError, Findings, Severity},
    json::Json,
};
use machine_api::{
    defaulting::{DefaultingRequest, FinalizerDefault, default_patch},
    kind::{ApiVersion, Kind},
    v1alpha1::MachineDeployment,
    validation::{Change, User, ValidationRequest, validate},
};
use machine_controllers::snapshots::DeploymentSnapshot;
use machine_simulation::forecast::Assumptions;

/// A valid request for a plan.
#[derive(Clone, Debug)]
pub struct Asked {
    spec: Spec,
    /// The assumed durations and failures.
    pub assume: Assumptions,
    /// Maximum number of steps of the plan.
    pub most_steps: usize,
}

impl Asked {
    /// Reads name and request of a review. The name may be empty.
    ///
    /// # Errors
    /// 400 for an unreadable review, 422 for invalid fields.
    pub fn read(review: &Value) -> Result<(String, Self), ApiStatus> {
        let (name, spec): (String, Spec) = review_of(&NAMES, review)?;
        let asked = Self::of(spec, &name)?;
        Ok((name, asked))
    }

    /// The request of this specification.
    ///
    /// # Errors
    /// 422 for invalid fields.
    pub fn of(spec: Spec, name: &str) -> Result<Self, ApiStatus> {
        let mut causes = Vec::new();
        if spec.machine_deployment_name.is_empty() {
            causes.push(Cause::required("spec.machineDeploymentName", "name the deployment that is to be changed"));
        }
        let steps = spec.max_steps.unwrap_or(DEFAULT_STEPS);
        if !(1..=MAX_STEPS).contains(&steps) {
            causes.push(Cause::invalid("spec.maxSteps", &json!(steps), &format!("must be from 1 to {MAX_STEPS}")));
        }
        let assume = assumptions(spec.assume.as_ref(), &mut causes);
        if !causes.is_empty() {
            return Err(ApiStatus::invalid(GROUP, NAMES.kind, name, causes));
        }
        Ok(Self { spec, assume, most_steps: usize::try_from(steps).unwrap_or(1) })
    }

    /// The name of the deployment.
    pub fn deployment_name(&self) -> &str {
        &self.spec.machine_deployment_name
    }

    /// 422: the deployment does not exist.
    pub fn no_such_deployment(&self, name: &str) -> ApiStatus {
        let cause = Cause::invalid(
            "spec.machineDeploymentName",
            &json!(self.spec.machine_deployment_name),
            "there is no MachineDeployment of this name in the namespace",
        );
        ApiStatus::invalid(GROUP, NAMES.kind, name, vec![cause])
    }

    /// The specification for the answer, without the content of the class, which may contain secrets.
    pub fn echo(&self) -> Spec {
        let class = self.spec.proposed_class.as_ref();
        Spec {
            proposed_class: class.map(|class| ProposedClass { name: class.name.clone(), provider_spec: None }),
            ..self.spec.clone()
        }
    }
}

fn assumptions(assume: Option<&Assume>, causes: &mut Vec<Cause>) -> Assumptions {
    let usual = Assumptions::usual();
    let Some(assume) = assume else { return usual };
    let mut time = |field: &str, given, usual| match checked_duration(field, given) {
        Ok(given) => given.unwrap_or(usual),
        Err(cause) => {
            causes.push(cause);
            usual
        }
    };
    let create = time("spec.assume.createDuration", assume.create_duration, usual.create);
    let drain = time("spec.assume.drainDuration", assume.drain_duration, usual.drain);
    let update = time("spec.assume.updateDuration", assume.update_duration, usual.update);
    let fail_every = assume.fail_every.unwrap_or(0);
    if fail_every < 0 {
        causes.push(Cause::invalid("spec.assume.failEvery", &json!(fail_every), "must be at least 0"));
    }
    Assumptions { create, drain, update, fail_every: u32::try_from(fail_every).unwrap_or(0) }
}

/// A proposed deployment and the judgement of admission.
pub struct Proposal {
    /// The deployment as it would be stored; `None` if it can't be read.
    pub deployment: Option<MachineDeployment>,
    /// The judgement of admission.
    pub admission: Admission,
}

impl Proposal {
    /// Makes the proposed deployment and judges it.
    pub fn of(sources: &Sources, stored: &DeploymentSnapshot, asked: &Asked) -> Self {
        let namespace = stored.namespace();
        let old = as_object(Kind::MachineDeployment, serde_json::to_value(stored).unwrap_or_default());
        let mut new = old.clone();
        if let Some(proposed) = &asked.spec.proposed {
            let fields = [
                ("template", proposed.template.clone()),
                ("strategy", proposed.strategy.clone()),
                ("replicas", proposed.replicas.map(Value::from)),
                ("minReadySeconds", proposed.min_ready_seconds.map(Value::from)),
                ("paused", proposed.paused.map(Value::from)),
            ];
            for (field, value) in fields {
                if let Some(value) = value {
                    new["spec"][field] = value;
                }
            }
        }
        default(Kind::MachineDeployment, &old, &mut new, namespace);
        let mut admission = Admission { allowed: true, ..Admission::default() };
        // The stored deployment is not judged, even if admission would deny it today.
        if asked.spec.proposed.is_some() {
            judge(sources, Kind::MachineDeployment, &old, &new, namespace, &mut admission);
        }
        if let Some(class) = &asked.spec.proposed_class {
            judge_class(sources, class, namespace, &mut admission);
        }
        let deployment = match serde_json::from_value(new) {
            Ok(deployment) => Some(deployment),
            Err(error) => {
                admission.allowed = false;
                admission.errors.push(FieldMessage { field: "spec".to_owned(), message: error.to_string() });
                None
            }
        };
        Self { deployment, admission }
    }
}

fn as_object(kind: Kind, mut value: Value) -> Value {
    value["apiVersion"] = json!("machine.sapcloud.io/v1alpha1");
    value["kind"] = json!(kind.as_str());
    value
}

/// Sets the defaults of the webhook.
fn default(kind: Kind, old: &Value, new: &mut Value, namespace: &str) {
    let patch = default_patch(&DefaultingRequest {
        kind,
        version: ApiVersion::V1alpha1,
        change: Change::Update { old: &Json::from(old), new: &Json::from(&*new) },
        namespace,
        finalizers: FinalizerDefault::Add,
    });
    // A default patch applies to the object it was made from.
    let _ = json_patch::patch(new, &patch);
}

fn judge(sources: &Sources, kind: Kind, old: &Value, new: &Value, namespace: &str, admission: &mut Admission) {
    let found: Findings = validate(&ValidationRequest {
        kind,
        version: ApiVersion::V1alpha1,
        change: Change::Update { old: &Json::from(old), new: &Json::from(new) },
        namespace,
        user: User::default(),
        policy: &sources.admission.policy,
        providers: &*sources.admission.providers,
        references: &*sources.admission.references,
    });
    for finding in found.iter() {
        match finding.severity {
            Severity::Deny => {
                admission.allowed = false;
                admission.errors.push(field_message(kind, &finding.error));
            }
            Severity::Existing if kind == Kind::MachineClass => {
                let FieldMessage { field, message } = field_message(kind, &finding.error);
                admission.warnings.push(format!("existing problem: {field}: {message}"));
            }
            Severity::Warn | Severity::Existing | Severity::Skipped => admission.warnings.push(finding.warning()),
        }
    }
}

/// The message about a field. It contains no value of a class, proposed or stored: the value may be a secret, and the caller may lack
/// the right to read classes.
fn field_message(kind: Kind, error: &FieldError) -> FieldMessage {
    let path = error.path.to_string();
    match kind {
        Kind::MachineClass => {
            FieldMessage { field: format!("proposedClass.{path}"), message: error.detail.to_string() }
        }
        Kind::Machine | Kind::MachineSet | Kind::MachineDeployment => {
            FieldMessage { field: path, message: error.message() }
        }
    }
}

/// Checks a proposed class. The first warning says that the content of a class never replaces machines.
fn judge_class(sources: &Sources, proposed: &ProposedClass, namespace: &str, admission: &mut Admission) {
    let name = &proposed.name;
    admission.warnings.push(format!(
        "a change of MachineClass {name} replaces no machine: only machines that are made afterwards follow it; name another \
         class in the template to replace the present ones"
    ));
    let Some(provider_spec) = &proposed.provider_spec else { return };
    let Some(stored) = sources.views.classes.get(&ObjectKey::new(namespace, name.clone())) else {
        admission
            .warnings
            .push(format!("MachineClass {name} does not exist, and what is proposed for it is not judged"));
        return;
    };
    let old = as_object(Kind::MachineClass, serde_json::to_value(&*stored).unwrap_or_default());
    let mut new = old.clone();
    new["providerSpec"] = provider_spec.clone();
    judge(sources, Kind::MachineClass, &old, &new, namespace, admission);
}
