//! Reads what the checks need. Nothing is written: all requests are reads, access reviews, and one creation as a dry run.

use std::collections::BTreeSet;

use futures::StreamExt;
use http::header::CONTENT_TYPE;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
};
use machine_api::{kind::Kind, names};
use serde_json::Value;

use super::{
    checks::{List, Read},
    fleet::Fleet,
    probe::{missing_right, probe},
    rights::{Reviews, Right},
};
use crate::cli::{
    cluster_objects::{Resource, SECRETS, v1},
    plugin::views::Vm,
};
use controller_runtime::{
    error::ApiError,
    objects::{ApiServer, ListQuery, ObjectApi, call},
    server_version::minor_of,
};

/// Nodes.
const NODES: Resource = v1("", "Node", "nodes");
/// Pods.
const PODS: Resource = v1("", "Pod", "pods");
/// The VMs that the providers list.
const VMS: Resource = Resource {
    group: crate::extension::view::GROUP,
    version: crate::extension::view::VERSION,
    kind: "ProviderMachine",
    plural: "providermachines",
};
/// Service accounts.
const ACCOUNTS: Resource = v1("", "ServiceAccount", "serviceaccounts");
/// Objects per page of a list of metadata.
const PAGE: u32 = 500;
/// The most objects of a list that are read.
const LONGEST_LIST: usize = 50_000;
/// The number of access reviews that are under way at the same time.
const REVIEWS_AT_A_TIME: usize = 16;

/// Reads an object.
pub async fn object(client: &Client, resource: Resource, namespace: &str, name: &str) -> Read {
    match resource.read(client, namespace, name).await {
        Ok(Some(object)) => {
            serde_json::to_value(&object).map_or_else(|error| Read::Refused(error.to_string()), Read::There)
        }
        Ok(None) => Read::Missing,
        Err(error) => Read::Refused(refusal(&error, "get", resource, namespace)),
    }
}

/// The reason of a refused read. For a missing right it names the right.
pub fn refusal(error: &ApiError, verb: &str, resource: Resource, namespace: &str) -> String {
    match error {
        ApiError::Forbidden(_) => missing_right(verb, resource.group, resource.plural, namespace),
        error => error.to_string(),
    }
}

/// Lists the objects of a resource.
async fn list(client: &Client, resource: Resource, query: ListQuery) -> List {
    let namespace = query.namespace.clone().unwrap_or_default();
    let listed = resource.api(client).list_all(ListQuery { limit: Some(PAGE), ..query }).await;
    match listed {
        Ok(page) => List::All(page.items),
        // The resource does not exist.
        Err(ApiError::NotFound(_) | ApiError::NotServed(_)) => List::All(Vec::new()),
        Err(error) => List::Refused(refusal(&error, "list", resource, &namespace)),
    }
}

/// Lists metadata only, so that the content of Secrets is not read.
async fn metadata(client: &Client, resource: Resource, namespace: &str) -> List {
    let description = resource.description();
    let api: Api<DynamicObject> = if namespace.is_empty() {
        Api::all_with(client.clone(), &description)
    } else {
        Api::namespaced_with(client.clone(), namespace, &description)
    };
    let mut objects = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        match call(api.list_metadata(&params)).await {
            Ok(page) => {
                objects.extend(page.items.iter().filter_map(|item| serde_json::to_value(item).ok()));
                match page.metadata.continue_.filter(|token| !token.is_empty() && objects.len() < LONGEST_LIST) {
                    Some(token) => params.continue_token = Some(token),
                    None => return List::All(objects),
                }
            }
            Err(error) => return List::Refused(refusal(&error, "list", resource, namespace)),
        }
    }
}

/// The machine objects of a namespace with their Secrets, and the Nodes of the target cluster.
pub async fn fleet(client: &Client, target: Option<&Client>, namespace: &str) -> Fleet {
    let of = async |kind: Kind| {
        let mut listed = list(client, Resource::of_kind(kind), ListQuery::within(namespace)).await;
        if let List::All(objects) = &mut listed {
            // The items of a list have no kind of their own on some API servers.
            for object in objects {
                object["apiVersion"] = Value::from(names::API_VERSION_V1ALPHA1);
                object["kind"] = Value::from(kind.as_str());
            }
        }
        listed
    };
    Fleet {
        namespace: namespace.to_owned(),
        classes: of(Kind::MachineClass).await,
        machines: of(Kind::Machine).await,
        sets: of(Kind::MachineSet).await,
        deployments: of(Kind::MachineDeployment).await,
        secrets: metadata(client, SECRETS, namespace).await,
        nodes: match target {
            Some(target) => Some(metadata(target, NODES, "").await),
            None => None,
        },
        vms: None,
    }
}

/// The VMs that the providers list, by the views: they have the credentials.
pub async fn vms(client: &Client, namespace: &str) -> Result<Vec<Vm>, String> {
    match VMS.api(client).list_all(ListQuery::within(namespace)).await {
        Ok(page) => page
            .items
            .into_iter()
            .map(serde_json::from_value)
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string()),
        Err(ApiError::NotFound(_) | ApiError::NotServed(_)) => {
            Err("the providers are asked through the views, which are not installed: `mcm manifests apiservice`"
                .to_owned())
        }
        Err(error) => Err(refusal(&error, "list", VMS, namespace)),
    }
}

/// The pods of the manager.
pub async fn pods(client: &Client, namespace: &str) -> List {
    let selector = Some(format!("app.kubernetes.io/name={}", names::WEBHOOK_CONFIGURATION));
    list(client, PODS, ListQuery { selector, ..ListQuery::within(namespace) }).await
}

/// The minor version of an API server.
///
/// # Errors
/// When it does not answer, or the version is no number.
pub async fn minor_version(client: &Client) -> Result<u32, ApiError> {
    minor_of(&call(client.apiserver_version()).await?.minor)
}

/// Sends the probe as a dry run.
///
/// # Errors
/// The refusal, or why there was no answer.
pub async fn probe_admission(client: &Client, namespace: &str) -> Result<(), ApiError> {
    let path =
        format!("/apis/{}/namespaces/{namespace}/{}?dryRun=All", names::API_VERSION_V1ALPHA1, Kind::Machine.plural());
    let request = http::Request::post(path)
        .header(CONTENT_TYPE, "application/json")
        .body(probe(namespace).to_string().into_bytes())
        .map_err(|error| ApiError::Other(error.to_string()))?;
    call(client.request::<Value>(request)).await.map(drop)
}

/// Asks whether a user has rights. `account` is the service account that the user must be, if it is one.
pub async fn reviews(client: &Client, user: &str, rights: &BTreeSet<Right>) -> Reviews {
    let mut groups = vec!["system:authenticated".to_owned()];
    if let Some((namespace, name)) = user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':')) {
        match object(client, ACCOUNTS, namespace, name).await {
            Read::There(_) => {}
            Read::Missing => return Reviews::NoAccount,
            Read::Refused(why) => return Reviews::Refused(why),
        }
        groups.extend(["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]);
    }
    let mut answers = futures::stream::iter(rights.iter().map(|right| review(client, user, &groups, right)))
        .buffered(REVIEWS_AT_A_TIME);
    let mut missing = Vec::new();
    while let Some((right, answer)) = answers.next().await {
        match answer {
            Ok(true) => {}
            Ok(false) => missing.push(right.clone()),
            Err(ApiError::Forbidden(_)) => {
                let why = missing_right("create", "authorization.k8s.io", "subjectaccessreviews", "");
                return Reviews::Refused(why);
            }
            Err(error) => return Reviews::Refused(format!("cannot be checked: {error}")),
        }
    }
    Reviews::Answered { asked: rights.len(), missing }
}

async fn review<'a>(
    client: &Client,
    user: &str,
    groups: &[String],
    right: &'a Right,
) -> (&'a Right, Result<bool, ApiError>) {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let (resource, subresource) = right.resource.split_once('/').unwrap_or((&right.resource, ""));
    let attributes = ResourceAttributes {
        group: Some(right.group.clone()),
        resource: some(resource),
        subresource: some(subresource),
        verb: some(&right.verb),
        namespace: some(&right.namespace),
        name: some(&right.name),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: Some(user.to_owned()),
        groups: Some(groups.to_vec()),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let answer = ApiServer::<SubjectAccessReview>::of_kind(client.clone(), ()).create(&review).await;
    (right, answer.map(|review| review.status.as_ref().is_some_and(|status| status.allowed)))
}
