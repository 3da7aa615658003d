//! `rollout plan`: what the rest of a rollout, or a change of the deployment, would do. The view `rolloutplans` computes it.
//!
//! Source: spec/packaging §5.2, docs/views.md.

use std::{
    io::{Read, Write},
    path::PathBuf,
};

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{DeploymentArgs, deployment_named};
use crate::{
    cli::{
        Failure,
        documents::parse_documents,
        plugin::{
            output::{self, Answer, Source, Style, counted, table},
            session::{Session, now},
            state::line,
            views::{Planned, RolloutPlan},
        },
    },
    extension::view::{GROUP, VERSION},
};

/// The fields of a deployment's specification that a proposal may change.
const PROPOSED: [&str; 5] = ["template", "strategy", "replicas", "minReadySeconds", "paused"];
/// The fields whose own fields are strings.
const TEXTS: [&str; 3] = ["labels", "annotations", "matchLabels"];
/// The version of the fields of a proposal.
const V1ALPHA1: &str = "machine.sapcloud.io/v1alpha1";
/// The name of a review without its own name.
const WHAT_IF: &str = "what-if";

/// Flags of `rollout plan`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  kubectl mcm rollout plan web\n  kubectl mcm rollout plan web --set \
                        template.spec.class.name=large\n  kubectl mcm rollout plan web --set replicas=20 --set \
                        strategy.rollingUpdate.maxSurge=2")]
pub struct PlanArgs {
    /// The deployment
    #[command(flatten)]
    pub of: DeploymentArgs,
    /// Plan the change to the deployment in this manifest; - means standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "set")]
    pub filename: Option<PathBuf>,
    /// Plan the change of this field of the specification; several flags change several fields; \. is a dot in the name of a field
    #[arg(long, value_name = "PATH=VALUE")]
    pub set: Vec<String>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The namespace of the deployment.
    pub namespace: String,
    /// The deployment.
    pub name: String,
    /// The plan.
    pub plan: RolloutPlan,
}

/// Asks for the plan and prints it.
///
/// # Errors
/// When the views can't be used, when the change is wrong, or when admission would deny it.
pub async fn show(args: &PlanArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let session = Session::open(&args.of.session).await?;
    let deployment = deployment_named(&session, &args.of.deployment).await?;
    let name = args.of.deployment.as_str();
    let proposed = match &args.filename {
        Some(path) => Some(of_manifest(&read(path)?, name).map_err(Failure::Input)?),
        None if args.set.is_empty() => None,
        None => {
            let stored = serde_json::to_value(&deployment).map_err(Failure::run)?;
            Some(of_settings(&stored["spec"], &args.set).map_err(Failure::Input)?)
        }
    };
    let planned = match proposed {
        None => session.views.rollout_plan(&session.namespace, name).await,
        Some(proposed) => {
            let review = json!({
                "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "RolloutPlan", "metadata": { "name": WHAT_IF },
                "spec": { "machineDeploymentName": name, "proposed": proposed },
            });
            session.views.proposed_rollout(&session.namespace, &review).await
        }
    };
    match planned {
        Planned::Plan(plan) => {
            let is_denied = !plan.admission.allowed;
            let answer = Plan { namespace: session.namespace.clone(), name: name.to_owned(), plan };
            output::write(&answer, session.views.source(), &args.of.output, now(), out)?;
            if is_denied { Err(Failure::Reported) } else { Ok(()) }
        }
        Planned::Refused(why) => Err(Failure::Input(why)),
        Planned::NoViews => Err(Failure::Input(
            "a rollout can't be planned without the views: the manager computes the plan; kubectl mcm rollout status shows \
             how far the rollout is"
                .to_owned(),
        )),
    }
}

fn read(path: &PathBuf) -> Result<String, Failure> {
    let unreadable = |error: std::io::Error| Failure::Input(format!("cannot read {}: {error}", path.display()));
    if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text).map_err(unreadable)?;
        return Ok(text);
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

/// The proposal in a manifest of the deployment.
fn of_manifest(text: &str, name: &str) -> Result<Value, String> {
    let documents = parse_documents("the manifest", text).map_err(|error| error.to_string())?;
    let mut deployments = documents.iter().filter(|one| one.value["kind"] == "MachineDeployment");
    let (Some(found), None) = (deployments.next(), deployments.next()) else {
        return Err("the manifest must have exactly one MachineDeployment".to_owned());
    };
    match found.value["metadata"]["name"].as_str() {
        Some(other) if other != name => {
            return Err(format!("the manifest has the deployment {other:?}, and the plan is for {name:?}"));
        }
        Some(_) | None => {}
    }
    if found.value["apiVersion"].as_str().is_some_and(|version| version != V1ALPHA1) {
        return Err(format!("the manifest must be of {V1ALPHA1}; mcm convert writes it in this version"));
    }
    let spec = found.value["spec"].as_object().ok_or("the MachineDeployment of the manifest has no spec")?;
    Ok(proposal(spec, |_| true))
}

/// The proposal that changes these fields of a stored specification.
fn of_settings(stored: &Value, settings: &[String]) -> Result<Value, String> {
    let mut spec = stored.clone();
    let mut changed = Vec::new();
    for setting in settings {
        let (path, value) = setting
            .split_once('=')
            .ok_or_else(|| format!("--set {setting} has no value; for example --set replicas=5"))?;
        let fields = path_fields(path.strip_prefix("spec.").unwrap_or(path));
        let Some(first) = fields.first().filter(|first| PROPOSED.contains(&first.as_str())) else {
            return Err(format!("--set {setting}: a plan can change {}", PROPOSED.join(", ")));
        };
        changed.push(first.clone());
        let mut place = &mut spec;
        for field in &fields {
            if place.is_null() {
                *place = json!({});
            }
            let Value::Object(inner) = place else {
                return Err(format!("--set {setting}: the parent of {field:?} is no object, so that it has no fields"));
            };
            place = inner.entry(field.clone()).or_insert(Value::Null);
        }
        // Numbers and booleans are written as in JSON, everything else is a string. Labels and annotations are always strings.
        let is_text = fields.iter().rev().nth(1).is_some_and(|parent| TEXTS.contains(&parent.as_str()));
        let parsed = if is_text { None } else { serde_json::from_str(value).ok() };
        *place = parsed.unwrap_or_else(|| json!(value));
    }
    let spec = spec.as_object().ok_or("the stored deployment has no spec")?;
    Ok(proposal(spec, |field| changed.iter().any(|known| known == field)))
}

/// The fields of a path. A dot in the name of a field is written as `\.`.
fn path_fields(path: &str) -> Vec<String> {
    let (mut fields, mut field) = (Vec::new(), String::new());
    let mut letters = path.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '.' => fields.push(std::mem::take(&mut field)),
            '\\' if letters.next_if_eq(&'.').is_some() => field.push('.'),
            other => field.push(other),
        }
    }
    fields.push(field);
    fields
}

fn proposal(spec: &Map<String, Value>, wants: impl Fn(&str) -> bool) -> Value {
    let fields = PROPOSED.into_iter().filter(|field| wants(field));
    Value::Object(fields.filter_map(|field| Some((field.to_owned(), spec.get(field)?.clone()))).collect())
}

impl Answer for Plan {
    const KIND: &'static str = "RolloutPlan";

    fn text(&self, _source: Source, _style: &Style) -> String {
        let Self { name, plan, .. } = self;
        if !plan.admission.allowed {
            let mut text = format!("admission would deny this change of {name}:\n");
            for error in &plan.admission.errors {
                text.push_str(&line("  ", &error.field, &error.message));
            }
            return text;
        }
        let mut text = format!(
            "{name} ({}): {} replaced, {} updated in place, {} made, {} stay\n",
            plan.strategy,
            plan.to_replace.len(),
            plan.to_update.len(),
            plan.to_create,
            plan.to_keep
        );
        text.push_str(&line("  ", "peak", &format!("{} at once", counted(plan.peak_machines, "machine"))));
        text.push_str(&line("  ", "least", &format!("{} available", plan.min_available)));
        text.push_str(&line("  ", "takes", &format!("about {}", plan.estimated_duration)));
        if let Some(stuck) = &plan.stuck {
            text.push_str(&line("  ", "stuck", &format!("{}: {}", stuck.reason, stuck.message)));
        }
        if let Some(why) = &plan.truncated_because {
            text.push_str(&line("  ", "cut", why));
        }
        text.extend(plan.admission.warnings.iter().map(|warning| line("  ", "warning", warning)));
        let order = plan.to_replace.iter().chain(&plan.to_update).map(|machine| {
            [machine.order.to_string(), machine.name.clone(), machine.phase.clone(), machine.reason.clone()].to_vec()
        });
        let order: Vec<Vec<String>> = order.collect();
        if !order.is_empty() {
            text.push('\n');
            text.push_str(&table(&["ORDER", "MACHINE", "PHASE", "REASON"], &order));
        }
        let steps: Vec<Vec<String>> = plan
            .steps
            .iter()
            .map(|step| {
                let sizes = format!("{} to {}", step.from, step.to);
                [
                    step.at.to_string(),
                    step.machine_set.clone(),
                    sizes,
                    step.total.to_string(),
                    step.available.to_string(),
                ]
                .to_vec()
            })
            .collect();
        if !steps.is_empty() {
            text.push('\n');
            text.push_str(&table(&["AFTER", "SET", "SIZE", "MACHINES", "AVAILABLE"], &steps));
        }
        text
    }

    fn names(&self) -> Vec<String> {
        self.plan.to_replace.iter().chain(&self.plan.to_update).map(|one| format!("machine/{}", one.name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::plugin::{output::testing::plain, testing::now};

    fn settings(all: &[&str]) -> Result<Value, String> {
        let stored = json!({
            "replicas": 3, "template": { "spec": { "class": { "kind": "MachineClass", "name": "small" } } },
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1 } },
        });
        of_settings(&stored, &all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn settings_change_fields_of_the_stored_specification() {
        assert_eq!(settings(&["replicas=5"]), Ok(json!({ "replicas": 5 })));
        let template = json!({ "template": { "spec": { "class": { "kind": "MachineClass", "name": "large" } } } });
        assert_eq!(settings(&["spec.template.spec.class.name=large"]), Ok(template));
        let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "50%", "maxUnavailable": 0 } });
        let both = ["strategy.rollingUpdate.maxSurge=50%", "strategy.rollingUpdate.maxUnavailable=0"];
        assert_eq!(settings(&both), Ok(json!({ "strategy": strategy })));
        assert!(settings(&["replicas"]).unwrap_err().contains("has no value"));
        assert!(settings(&["selector=x"]).unwrap_err().contains("a plan can change template, strategy"));
        assert!(settings(&["replicas.x=1"]).unwrap_err().contains("it has no fields"));
        let annotated = settings(&[r"template.metadata.annotations.example\.com/round=2"]).unwrap();
        assert_eq!(annotated["template"]["metadata"], json!({ "annotations": { "example.com/round": "2" } }));
    }

    #[test]
    fn a_manifest_has_one_deployment() {
        let one = "kind: MachineDeployment\nspec: {replicas: 4, selector: {}, paused: true}\n";
        assert_eq!(of_manifest(one, "web"), Ok(json!({ "replicas": 4, "paused": true })));
        assert!(of_manifest(&format!("{one}---\n{one}"), "web").unwrap_err().contains("exactly one"));
        assert!(of_manifest("kind: Secret\n", "web").unwrap_err().contains("exactly one"));
        let later = format!("apiVersion: machine.sapcloud.io/v1beta1\n{one}");
        assert!(of_manifest(&later, "web").unwrap_err().contains("mcm convert"));
        let named = format!("metadata: {{name: web}}\n{one}");
        assert!(of_manifest(&named, "web").is_ok());
        assert!(of_manifest(&named, "other").unwrap_err().contains("has the deployment \"web\""));
    }

    #[test]
    fn a_plan_has_order_peak_and_least() {
        let plan: RolloutPlan = serde_json::from_value(json!({
            "admission": { "allowed": true }, "strategy": "RollingUpdate", "toKeep": 0, "toCreate": 1,
            "toReplace": [{ "name": "web-1-a", "phase": "Running", "order": 1, "reason": "OldTemplate" }],
            "steps": [{ "machineSet": "web-2", "from": 0, "to": 1, "total": 2, "available": 1, "at": "0s" }],
            "peakMachines": 2, "minAvailable": 1, "estimatedDuration": "8m0s",
        }))
        .unwrap();
        let answer = Plan { namespace: "ns".to_owned(), name: "web".to_owned(), plan };
        assert_eq!(
            answer.text(Source::Views, &plain(now())),
            "\
web (RollingUpdate): 1 replaced, 0 updated in place, 1 made, 0 stay
  peak        2 machines at once
  least       1 available
  takes       about 8m0s

ORDER   MACHINE   PHASE     REASON
1       web-1-a   Running   OldTemplate

AFTER   SET     SIZE     MACHINES   AVAILABLE
0s      web-2   0 to 1   2          1
"
        );
    }
}
