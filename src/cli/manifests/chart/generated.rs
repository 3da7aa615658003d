//! The templates of the chart that follow from code: definitions, rights, webhooks, policies, guard and views. The templates of
//! alerts and dashboards are in [`super::alerts`] and [`super::dashboards`].
//!
//! Each comes from the function that `mcm manifests` uses, called once per combination of the settings that change its objects. What is a
//! text in the objects (namespace, users, URL) is a placeholder here. The workload (Deployment, Service, …) is no part of this file: its
//! templates are written by hand in `deploy/charts`.

use serde_json::{Value, json};

use super::{
    alerts, dashboards,
    template::{Condition, ConditionalPart, Placeholder, choose, choose_names, to_template, variant},
};
use crate::{
    cli::{
        manifests::{guard::storage_guard, views},
        rbac::{self, Installation, RightsIn},
        webhook_scope::WebhookScope,
    },
    settings::Half,
};
use machine_api::{
    admission::{
        manifests::{FailurePolicy, MatchConditions, StatusWebhook, WebhookManifests},
        policies::policies,
    },
    crd::{CrdOptions, OldestServer, V1Beta1, definitions},
    names,
    webhooks::{Client, SERVICE_PORT},
};

/// The API server forgives stored violations, also in writes of the status ([`OldestServer`]).
const RATCHETING: Condition = Condition("semverCompare \">=1.33-0\" .Capabilities.KubeVersion.Version");
const KEEP: Condition = Condition(".Values.crds.keep");
const CERT_MANAGER: Condition = Condition("eq .Values.certificates.mode \"cert-manager\"");
const SERVED: Condition = Condition(".Values.v1beta1.serve");
const STORED: Condition = Condition("eq .Values.v1beta1.stored \"v1beta1\"");
const URL: Condition = Condition(".Values.webhooks.url");
const NAMESPACED: Condition = Condition("eq .Values.scope \"namespace\"");
const STATUS: Condition = Condition(".Values.webhooks.statusWebhook");
const CREATE_IGNORED: Condition = Condition("eq .Values.webhooks.createFailurePolicy \"Ignore\"");
const UPDATE_IGNORED: Condition = Condition("eq .Values.webhooks.updateFailurePolicy \"Ignore\"");
const CONTROL: Condition = Condition("include \"mcm.isControl\" .");
const TARGET: Condition = Condition("include \"mcm.isTarget\" .");
const OF_DEPLOYMENTS: Condition = Condition("eq (include \"mcm.half\" .) \"machine-controller-manager\"");
const OF_MACHINES: Condition = Condition("eq (include \"mcm.half\" .) \"machine-controller\"");

/// Stands for the namespace of the machine objects. The brackets make YAML quote each text with it: a namespace may look like a number.
const NAMESPACE: &str = "<namespace>";
/// Stands for the namespace of the release.
pub(super) const HOME: &str = "<home>";
/// Stands for the users of the webhooks' conditions, in the quotes of CEL.
const USERS: &str = "<users>";
/// Stands for the base URL of the webhooks.
const WEBHOOK_URL: &str = "https://<url>";

/// A name outside the namespace ends with the namespace, unless it is the default one.
pub(super) const SUFFIX: Placeholder =
    Placeholder { text: "-<namespace>", expression: "{{ include \"mcm.suffix\" . }}" };
/// Views are one per cluster, so that the scope of the webhooks does not change their names.
const SUFFIX_OF_VIEWS: Placeholder = Placeholder { text: "-<home>", expression: "{{ include \"mcm.viewsSuffix\" . }}" };

/// The labels that Helm's users expect on every object of a chart.
const CHART_LABELS: [(&str, Placeholder); 4] = [
    ("app.kubernetes.io/instance", Placeholder { text: "<release>", expression: "{{ .Release.Name }}" }),
    ("app.kubernetes.io/managed-by", Placeholder { text: "<service>", expression: "{{ .Release.Service }}" }),
    ("app.kubernetes.io/version", Placeholder { text: "<version>", expression: "{{ .Chart.AppVersion }}" }),
    ("helm.sh/chart", Placeholder { text: "<chart>", expression: "{{ include \"mcm.chart\" . }}" }),
];

/// The placeholders of a template. A longer text comes before a part of it.
pub(super) fn placeholders(suffix: Placeholder) -> Vec<Placeholder> {
    let own = [
        suffix,
        Placeholder { text: NAMESPACE, expression: "{{ include \"mcm.machineNamespace\" . }}" },
        Placeholder { text: HOME, expression: "{{ .Release.Namespace }}" },
        Placeholder { text: "'<users>'", expression: "{{ include \"mcm.controllerUsers\" . }}" },
        Placeholder { text: WEBHOOK_URL, expression: "{{ include \"mcm.webhookUrl\" . }}" },
    ];
    own.into_iter().chain(CHART_LABELS.map(|(_, placeholder)| placeholder)).collect()
}

/// A template below `templates/generated/`.
pub struct GeneratedTemplate {
    /// Its name.
    pub name: &'static str,
    /// Its content.
    pub text: String,
}

/// All templates that follow from code.
pub fn templates() -> Vec<GeneratedTemplate> {
    let template = |name, condition: Condition, objects: &[ConditionalPart], placeholders: &[Placeholder]| {
        GeneratedTemplate { name, text: whole_template(condition, &to_template(objects, placeholders)) }
    };
    let (usual, of_views) = (&placeholders(SUFFIX), &placeholders(SUFFIX_OF_VIEWS));
    let installed = Condition("and .Values.crds.install (include \"mcm.isControl\" .)");
    let webhooks = Condition("and .Values.webhooks.enabled (include \"mcm.isControl\" .)");
    let with_policies = Condition("and .Values.policies.enabled (include \"mcm.isControl\" .)");
    let with_guard = Condition("and .Values.v1beta1.serve (include \"mcm.isControl\" .)");
    let with_rights = Condition("include \"mcm.hasRights\" .");
    let with_views = Condition("and .Values.views.enabled (include \"mcm.isControl\" .)");
    vec![
        GeneratedTemplate { name: "alerts.yaml", text: alerts::template() },
        GeneratedTemplate { name: "dashboards.yaml", text: dashboards::template() },
        template("crds.yaml", installed, &crds(), usual),
        template("rbac.yaml", with_rights, &rights(rbac::manifests), usual),
        template(
            "bootstrap-tokens.yaml",
            Condition("and .Values.bootstrapTokens.enabled (include \"mcm.hasRights\" .)"),
            &rights(rbac::token_manifests),
            usual,
        ),
        template(
            "simulation.yaml",
            Condition("and .Values.simulation.enabled (include \"mcm.hasRights\" .)"),
            &rights(rbac::simulation_manifests),
            usual,
        ),
        template(
            "local-machines.yaml",
            Condition("and .Values.localMachines.enabled (include \"mcm.hasRights\" .)"),
            &rights(rbac::local_machine_manifests),
            usual,
        ),
        template("webhooks.yaml", webhooks, &webhook_configurations(), usual),
        template("policies.yaml", with_policies, &admission_policies(), usual),
        template("storage-guard.yaml", with_guard, &variant(&labelled(storage_guard().to_vec())), usual),
        template("views.yaml", with_views, &views_objects(), of_views),
    ]
}

/// A template whose objects exist under a condition.
pub(super) fn whole_template(condition: Condition, objects: &str) -> String {
    let Condition(condition) = condition;
    format!(
        "{{{{- /* generated by `mcm manifests chart`: do not edit */ -}}}}\n{{{{- if {condition} }}}}\n{objects}{{{{- end }}}}\n"
    )
}

/// Both variants of a setting.
fn either(condition: Condition, objects: impl Fn(bool) -> Vec<ConditionalPart>) -> Vec<ConditionalPart> {
    choose(condition, objects(true), objects(false))
}

/// Which program writes the CA bundles.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bundles {
    Process,
    CertManager,
}

fn injected(objects: impl Fn(Bundles) -> Vec<ConditionalPart>) -> Vec<ConditionalPart> {
    choose(CERT_MANAGER, objects(Bundles::CertManager), objects(Bundles::Process))
}

fn service() -> Client {
    Client::Service { namespace: HOME.to_owned(), name: names::WEBHOOK_CONFIGURATION.to_owned() }
}

fn client(has_url: bool) -> Client {
    if has_url { Client::Url(WEBHOOK_URL.to_owned()) } else { service() }
}

fn crds() -> Vec<ConditionalPart> {
    let objects = |v1beta1: V1Beta1, bundles: Bundles, keep: bool| {
        let of = |servers: OldestServer| {
            let mut objects = labelled(definitions(&CrdOptions { v1beta1: v1beta1.clone(), servers }));
            for object in &mut objects {
                if keep {
                    annotate(object, "helm.sh/resource-policy", "keep");
                }
                inject(object, bundles);
            }
            variant(&objects)
        };
        choose(RATCHETING, of(OldestServer::Ratcheting), of(OldestServer::NotRatcheting))
    };
    let versions = |bundles: Bundles, keep: bool| {
        let served = either(URL, |has_url| {
            either(STORED, |stored| {
                let client = client(has_url);
                let v1beta1 = if stored { V1Beta1::Stored(client) } else { V1Beta1::Served(client) };
                objects(v1beta1, bundles, keep)
            })
        });
        choose(SERVED, served, objects(V1Beta1::NotServed, bundles, keep))
    };
    either(KEEP, |keep| injected(|bundles| versions(bundles, keep)))
}

/// Rights of one half or of both, in one cluster or in both.
fn rights(manifests: impl Fn(&Installation<'_>) -> Vec<Value>) -> Vec<ConditionalPart> {
    let objects = |scope: WebhookScope, half: Option<Half>, cluster: RightsIn| {
        variant(&labelled(manifests(&Installation {
            namespace: NAMESPACE,
            service_namespace: HOME,
            scope,
            half,
            cluster,
        })))
    };
    let clusters = |scope: WebhookScope, half: Option<Half>| {
        let both = choose(TARGET, objects(scope, half, RightsIn::Both), objects(scope, half, RightsIn::Control));
        choose(CONTROL, both, objects(scope, half, RightsIn::Target))
    };
    let halves = |scope: WebhookScope| {
        let machines = choose(OF_MACHINES, clusters(scope, Some(Half::MachineController)), clusters(scope, None));
        choose(OF_DEPLOYMENTS, clusters(scope, Some(Half::ControllerManager)), machines)
    };
    choose(NAMESPACED, halves(WebhookScope::Namespace), halves(WebhookScope::Cluster))
}

fn webhook_manifests(scope: WebhookScope, client: Client) -> WebhookManifests {
    WebhookManifests {
        client,
        scope: scope.of(NAMESPACE),
        controller_users: vec![USERS.to_owned()],
        create_failure_policy: FailurePolicy::Fail,
        update_failure_policy: FailurePolicy::Fail,
        status_webhook: StatusWebhook::LeaveOut,
        match_conditions: MatchConditions::Supported,
    }
}

const fn unanswered(ignored: bool) -> FailurePolicy {
    if ignored { FailurePolicy::Ignore } else { FailurePolicy::Fail }
}

fn webhook_configurations() -> Vec<ConditionalPart> {
    let configurations = |manifests: &WebhookManifests, bundles: Bundles| {
        let mut objects = labelled(manifests.all().to_vec());
        for object in &mut objects {
            inject(object, bundles);
        }
        variant(&objects)
    };
    let outcomes = |scope: WebhookScope, has_url: bool, status_webhook: StatusWebhook, bundles: Bundles| {
        either(CREATE_IGNORED, |create| {
            either(UPDATE_IGNORED, |update| {
                let manifests = WebhookManifests {
                    create_failure_policy: unanswered(create),
                    update_failure_policy: unanswered(update),
                    status_webhook,
                    ..webhook_manifests(scope, client(has_url))
                };
                configurations(&manifests, bundles)
            })
        })
    };
    let in_scope = |scope: WebhookScope| {
        either(URL, |has_url| {
            let installed = injected(|bundles| outcomes(scope, has_url, StatusWebhook::Install, bundles));
            let left_out = injected(|bundles| outcomes(scope, has_url, StatusWebhook::LeaveOut, bundles));
            choose(STATUS, installed, left_out)
        })
    };
    choose_names(NAMESPACED, in_scope(WebhookScope::Namespace), in_scope(WebhookScope::Cluster))
}

fn admission_policies() -> Vec<ConditionalPart> {
    let in_scope = |scope: WebhookScope| variant(&labelled(policies(&webhook_manifests(scope, service()))));
    choose_names(NAMESPACED, in_scope(WebhookScope::Namespace), in_scope(WebhookScope::Cluster))
}

fn views_objects() -> Vec<ConditionalPart> {
    let manifests = views::ViewsManifests {
        namespace: HOME.to_owned(),
        service: names::WEBHOOK_CONFIGURATION.to_owned(),
        port: SERVICE_PORT,
    };
    injected(|bundles| {
        let mut objects = rbac::views_manifests(HOME);
        objects.extend(views::views_for_readers(&manifests));
        objects.iter_mut().filter(|object| object["kind"] == "APIService").for_each(|object| inject(object, bundles));
        variant(&labelled(objects))
    })
}

/// Adds the labels of the chart.
pub(super) fn labelled(mut objects: Vec<Value>) -> Vec<Value> {
    for object in &mut objects {
        for (label, placeholder) in CHART_LABELS {
            object["metadata"]["labels"][label] = json!(placeholder.text);
        }
    }
    objects
}

fn inject(object: &mut Value, bundles: Bundles) {
    if bundles == Bundles::CertManager {
        annotate(object, "cert-manager.io/inject-ca-from", &format!("{HOME}/{}", names::WEBHOOK_CONFIGURATION));
    }
}

fn annotate(object: &mut Value, key: &str, value: &str) {
    object["metadata"]["annotations"][key] = json!(value);
}
