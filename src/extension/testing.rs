//! Shared by the tests of this module: authorities and certificates, a view for tests, and a request to a view.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

use super::{
    authentication::identity::Identity,
    handler::Call,
    pages::Pages,
    rows::{Cell, Field, Renderer, Row},
    view::{Answer, Description, Freshness, GROUP, Listing, Question, SourceRight, VERSION, View},
};
use crate::server::tls::Authorities;
use kube_protocol::{
    answer::AnswerBody,
    negotiate::Shape,
    request::{Query, Target, Verb, classify},
    resource::{Column, GroupVersionKind, Resource, ResourceScope},
    status::ApiStatus,
    table::{Form, IncludeObject, heads},
};

/// A certificate authority.
pub(in crate::extension) struct Pki {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// The extended key usage of a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::extension) enum Usage {
    Client,
    Server,
}

impl Pki {
    pub(in crate::extension) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    pub(in crate::extension) fn pem(&self) -> String {
        self.certificate.pem()
    }

    pub(in crate::extension) fn authorities(&self) -> Authorities {
        Authorities::from_pem(self.pem().as_bytes()).unwrap()
    }

    /// A certificate that is valid from 2020 to the first day of the year `until`.
    pub(in crate::extension) fn certify(
        &self,
        name: &str,
        groups: &[&str],
        usage: Usage,
        until: i32,
    ) -> (CertificateDer<'static>, KeyPair) {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if !name.is_empty() {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match usage {
            Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
            Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
        }];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.der().clone(), key)
    }
}

/// A view over five objects in two namespaces. Some names make it misbehave. It answers a review with the review itself, unless
/// the state of the review is `Refused`.
pub(in crate::extension) struct TestView(Arc<Renderer<Value>>);

/// The resource that the view is computed from.
pub(in crate::extension) const SOURCE: &str = "machines";

impl TestView {
    pub(in crate::extension) fn served() -> Arc<dyn View> {
        Arc::new(Self(Self::renderer()))
    }

    pub(in crate::extension) fn renderer() -> Arc<Renderer<Value>> {
        let column = |name: &str, cell| Column {
            name: name.to_owned(),
            value_type: "string".to_owned(),
            format: if name == "Name" { "name".to_owned() } else { String::new() },
            description: String::new(),
            priority: 0,
            cell,
        };
        let kind =
            GroupVersionKind { group: GROUP.to_owned(), version: VERSION.to_owned(), kind: "TestView".to_owned() };
        let resource = Resource {
            kind,
            list_kind: "TestViewList".to_owned(),
            plural: "testviews".to_owned(),
            singular: "testview".to_owned(),
            short_names: vec!["tv".to_owned()],
            categories: vec!["machineviews".to_owned()],
            scope: ResourceScope::Namespaced,
            verbs: vec![Verb::Get, Verb::List, Verb::Create],
            subresources: Vec::new(),
        };
        let columns =
            vec![column("Name", Cell::Name), column("State", Cell::Of(|object: &Value| object["state"].clone()))];
        let text = || json!({"type": "string", "description": "A text."});
        let schema = json!({"type": "object", "description": "A view of nothing.", "properties": {
            "state": text(), "spec": {"type": "object", "properties": {"machineName": text()}}}});
        let description = Description { resource, schema, heads: heads(&columns), selectable: vec!["state"] };
        let fields: Vec<Field<Value>> = vec![("state", |object| object["state"].as_str().unwrap_or_default())];
        Arc::new(Renderer { description, columns, fields })
    }

    pub(in crate::extension) fn row(mut object: Value) -> Arc<dyn Row> {
        let metadata: ObjectMeta = serde_json::from_value(object["metadata"].take()).unwrap();
        object.as_object_mut().unwrap().remove("metadata");
        Self::renderer().row((metadata, object))
    }

    fn object(namespace: &str, name: &str, state: &str) -> Value {
        json!({"state": state, "metadata": {"name": name, "namespace": namespace, "labels": {"state": state}}})
    }

    fn all() -> Vec<Value> {
        [("h", "b", "Fine"), ("h", "a", "Fine"), ("h", "c", "Odd"), ("h-1", "a", "Odd"), ("h-1", "b", "Fine")]
            .map(|(namespace, name, state)| Self::object(namespace, name, state))
            .into()
    }
}

#[async_trait]
impl View for TestView {
    fn description(&self) -> &Description {
        &self.0.description
    }

    fn source_rights(&self, question: Question<'_>) -> Vec<SourceRight> {
        let (verb, namespace, name) = match question {
            Question::Get { namespace, name } => (Verb::Get, Some(namespace), Some(name)),
            Question::List { namespace, name } => (Verb::List, namespace, name),
            Question::Create { namespace, review } => {
                (Verb::Get, Some(namespace), review["spec"]["machineName"].as_str())
            }
        };
        let owned = |text: Option<&str>| text.map(str::to_owned);
        vec![SourceRight { verb, resource: SOURCE, namespace: owned(namespace), name: owned(name) }]
    }

    async fn get(&self, namespace: &str, name: &str, freshness: Freshness) -> Result<Answer, ApiStatus> {
        match name {
            "panic" => panic!("as asked"),
            "never" => std::future::pending().await,
            "fresh" => {
                let object = Self::object(namespace, name, &format!("{freshness:?}"));
                Ok(Answer { object: Self::row(object), warnings: vec!["watch \"out\"".to_owned()] })
            }
            _ => Self::all()
                .into_iter()
                .find(|object| object["metadata"]["namespace"] == namespace && object["metadata"]["name"] == name)
                .map(|object| Answer { object: Self::row(object), warnings: Vec::new() })
                .ok_or_else(|| ApiStatus::not_found(GROUP, "testviews", name)),
        }
    }

    async fn list(&self, namespace: Option<&str>, _: Freshness) -> Result<Listing, ApiStatus> {
        let wanted = |object: &Value| namespace.is_none_or(|namespace| object["metadata"]["namespace"] == namespace);
        let rows = Self::all().into_iter().filter(wanted).map(|object| Self::row(object)).collect();
        Ok(Listing { rows, warnings: vec!["one class is missing".to_owned()] })
    }

    async fn create(&self, _: &str, review: Value) -> Result<Answer, ApiStatus> {
        if review["state"] == "Refused" {
            return Err(ApiStatus::bad_request("as asked"));
        }
        Ok(Answer { object: Self::row(review), warnings: Vec::new() })
    }
}

/// Sends a request to a view, and returns code, body and warnings.
pub(in crate::extension) async fn ask(
    view: &Arc<dyn View>,
    pages: &Pages,
    shape: Shape,
    (method, path, query): (Method, &str, &str),
    body: &str,
    now: &str,
) -> (u16, Value, Vec<String>) {
    let query = Query::parse(Some(query));
    let Target::Resource(request) = classify(&method, &format!("/apis/{GROUP}/{VERSION}{path}"), &query).unwrap()
    else {
        panic!("{path} is no resource")
    };
    let who = Identity { user: "alice".to_owned(), ..Identity::default() };
    let (headers, body) = (HeaderMap::new(), Bytes::copy_from_slice(body.as_bytes()));
    let now = now.parse().unwrap();
    let call = Call { view, request: &request, query: &query, headers: &headers, body: &body, who: &who, shape, now };
    let answered = match call.task() {
        Ok(task) => call.carry_out(task, pages).await,
        Err(refused) => Err(refused),
    };
    match answered.map(|answer| (answer.status, answer.body, answer.warnings)) {
        Ok((status, AnswerBody::Value(value), warnings)) => (status.as_u16(), value, warnings),
        Ok(_) => panic!("views answer objects"),
        Err(refused) => (refused.code, json!(refused.message), refused.warnings),
    }
}

/// The object in its whole form.
pub(in crate::extension) fn whole(object: &Arc<dyn Row>) -> Value {
    object.render(Form::Objects, Timestamp::UNIX_EPOCH).unwrap()
}

/// The cells of the object's row.
pub(in crate::extension) fn cells(object: &Arc<dyn Row>) -> Value {
    object.render(Form::Table("v1", IncludeObject::None), Timestamp::UNIX_EPOCH).unwrap()["cells"].take()
}
