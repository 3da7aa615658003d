//! The answers of views: one object, a list in pages, or a review, in the shape that the caller wants.
//!
//! Source: spec/extension-apiserver §2.6, §2.9, §2.11.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    authentication::identity::Identity,
    pages::{KeptList, ListKey, Pages},
    rows::{Row, rendered, selected},
    view::{Answer as ViewAnswer, Freshness, Listing, Question, View},
};
use kube_protocol::{
    answer::Answer,
    bodies::{self, Origin},
    duplicates,
    negotiate::{self, Shape},
    options::{FieldValidation, ListOptions, Revision, WriteOptions, resource_version},
    request::{Query, ResourceRequest, Verb},
    selectors::FieldSelector,
    status::{ApiStatus, Cause},
    table::{Form, table},
    unknown_fields,
};
use kube_values::syntax;

/// A permitted request to a view.
pub struct Call<'a> {
    /// The view.
    pub view: &'a Arc<dyn View>,
    /// The request, from its path.
    pub request: &'a ResourceRequest,
    /// Its parameters.
    pub query: &'a Query,
    /// Its headers, without credentials.
    pub headers: &'a HeaderMap,
    /// Its body; empty for reads.
    pub body: &'a Bytes,
    /// The caller.
    pub who: &'a Identity,
    /// The wanted shape of the answer.
    pub shape: Shape,
    /// The wall clock.
    pub now: Timestamp,
}

/// The task of a request, with all checks that need no view.
#[derive(Debug, PartialEq)]
pub enum Task {
    /// One object.
    Get {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The greatest age of its data.
        freshness: Freshness,
    },
    /// A list.
    List {
        /// Its namespace; `None` for all.
        namespace: Option<String>,
        /// The wanted part of the list, and its form.
        options: ListOptions,
    },
    /// A review.
    Create {
        /// Its namespace.
        namespace: String,
        /// The review.
        review: Value,
        /// Warnings about the review, such as unknown fields.
        warnings: Vec<String>,
    },
}

impl Task {
    /// The question to the view.
    pub fn question(&self) -> Question<'_> {
        match self {
            Self::Get { namespace, name, .. } => Question::Get { namespace, name },
            Self::List { namespace, options } => {
                Question::List { namespace: namespace.as_deref(), name: options.fields.exact_name() }
            }
            Self::Create { namespace, review, .. } => Question::Create { namespace, review },
        }
    }
}

impl Call<'_> {
    /// The task of the request.
    ///
    /// # Errors
    /// 405 for a verb that the view does not support, 404 for a missing namespace, 400 and 422 for wrong options and bodies.
    pub fn task(&self) -> Result<Task, ApiStatus> {
        let verb = self.request.verb.ok_or_else(ApiStatus::method_not_allowed)?;
        if self.request.subresource.is_some() {
            return Err(ApiStatus::page_not_found());
        }
        if !self.view.resource().serves(verb) {
            return Err(ApiStatus::method_not_allowed());
        }
        let namespace = || self.request.namespace.clone().ok_or_else(ApiStatus::page_not_found);
        match verb {
            Verb::Get => {
                let name = self.request.name.clone().ok_or_else(ApiStatus::page_not_found)?;
                let freshness = freshness_of_object(self.query, self.now)?;
                Ok(Task::Get { namespace: namespace()?, name, freshness })
            }
            Verb::List => {
                let options = ListOptions::parse(self.query)?;
                self.check_fields(&options.fields)?;
                check_revision(options.revision, self.now)?;
                Ok(Task::List { namespace: self.request.namespace.clone(), options })
            }
            Verb::Create => self.review(namespace()?),
            Verb::Watch | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => {
                Err(ApiStatus::method_not_allowed())
            }
        }
    }

    fn check_fields(&self, fields: &FieldSelector) -> Result<(), ApiStatus> {
        let own = &self.view.description().selectable;
        for demand in fields.terms() {
            let field = demand.field.as_str();
            if !matches!(field, "metadata.name" | "metadata.namespace") && !own.contains(&field) {
                return Err(ApiStatus::bad_request(format!("field label not supported: {field}")));
            }
        }
        Ok(())
    }

    /// Reads a review. A dry run is not treated differently, because nothing is ever stored.
    fn review(&self, namespace: String) -> Result<Task, ApiStatus> {
        let options = WriteOptions::parse(self.query, "CreateOptions")?;
        let content_type = self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let mut review = negotiate::decode(content_type, self.body)?;
        if !review.is_object() {
            return Err(ApiStatus::bad_request("the object provided is unrecognized: it must be an object"));
        }
        let resource = self.view.resource();
        let mut odd = Vec::new();
        if options.field_validation != FieldValidation::Ignore {
            odd.extend(
                unknown_fields::find(&review, self.view.schema())
                    .iter()
                    .map(|field| format!("unknown field {field:?}")),
            );
            odd.extend(duplicates::find(self.body).iter().map(|field| format!("duplicate field {field:?}")));
        }
        if options.field_validation == FieldValidation::Strict && !odd.is_empty() {
            return Err(bodies::strict(&resource.kind, &odd));
        }
        bodies::agree_with_url(&mut review, resource, Some(&namespace), Origin::Custom)?;
        if let Some(name) = &self.request.name {
            match review["metadata"]["name"].as_str() {
                None | Some("") => review["metadata"]["name"] = json!(name),
                Some(given) if given == name => {}
                Some(_) => {
                    return Err(ApiStatus::bad_request("the name of the object does not match the name on the URL"));
                }
            }
        }
        let name = review["metadata"]["name"].as_str().unwrap_or_default();
        if let Some(why) = syntax::dns1123_subdomain(name).first().filter(|_| !name.is_empty()) {
            let cause = Cause::invalid("metadata.name", &json!(name), why);
            return Err(ApiStatus::invalid(&resource.kind.group, &resource.kind.kind, name, vec![cause]));
        }
        let version = review["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if !version.is_empty() && version != "0" {
            return Err(ApiStatus::bad_request("resourceVersion should not be set on objects to be created"));
        }
        Ok(Task::Create { namespace, review, warnings: odd })
    }

    /// Carries out a task.
    ///
    /// # Errors
    /// The refusal of the view, 400 and 410 for tokens of pages, 406 for unsupported shapes.
    pub async fn carry_out(&self, task: Task, pages: &Pages) -> Result<Answer, ApiStatus> {
        match task {
            Task::Get { namespace, name, freshness } => {
                let ViewAnswer { object, warnings } = self.view.get(&namespace, &name, freshness).await?;
                Ok(Answer::ok(self.shaped(&*object)?).with_warnings(warnings))
            }
            Task::Create { namespace, review, mut warnings } => {
                // The warnings about a review may explain its refusal.
                let answer = self.view.create(&namespace, review).await.map_err(|status| status.warned(&warnings))?;
                warnings.extend(answer.warnings);
                Ok(Answer::of(StatusCode::CREATED, self.shaped(&*answer.object)?).with_warnings(warnings))
            }
            Task::List { namespace, options } => self.list(namespace, &options, pages).await,
        }
    }

    fn shaped(&self, object: &dyn Row) -> Result<Value, ApiStatus> {
        let form = Form::of_object(self.shape, self.query)?;
        let object = object.render(form, self.now)?;
        Ok(match form {
            Form::Table(version, _) => table(version, self.heads(), vec![object], &json!({"resourceVersion": null})),
            Form::Metadata | Form::Objects => object,
        })
    }

    fn heads(&self) -> Value {
        self.view.description().heads.clone()
    }

    async fn list(&self, namespace: Option<String>, options: &ListOptions, pages: &Pages) -> Result<Answer, ApiStatus> {
        let key = ListKey {
            view: self.view.resource().plural.clone(),
            namespace: namespace.clone(),
            user: self.who.user.clone(),
            selection: ["labelSelector", "fieldSelector"].map(|key| self.query.get(key).unwrap_or_default().to_owned()),
        };
        if let Some(token) = &options.continue_token {
            let (kept, bookmark) = pages.open(token, &key)?;
            let end = options.limit.map_or(kept.rows.len(), |limit| kept.rows.len().min(bookmark.offset + limit));
            let rest = (end < kept.rows.len()).then(|| bookmark.token_at(end));
            return Ok(Answer::ok(self.page(&kept, bookmark.offset..end, rest, options).await?));
        }
        let freshness = if options.revision == Revision::Any { Freshness::Any } else { Freshness::Recent };
        let Listing { rows, warnings } = self.view.list(namespace.as_deref(), freshness).await?;
        let kept = Arc::new(KeptList {
            rows: selected(rows, &options.labels, &options.fields).await?,
            version: version_at(self.now),
            is_selected: !options.labels.is_empty() || !options.fields.is_empty(),
        });
        let (end, token) = match options.limit {
            Some(limit) if limit < kept.rows.len() => (limit, Some(pages.keep(key, &kept, limit))),
            _ => (kept.rows.len(), None),
        };
        Ok(Answer::ok(self.page(&kept, 0..end, token, options).await?).with_warnings(warnings))
    }

    /// A part of a list, with the token for the next part.
    async fn page(
        &self,
        list: &KeptList,
        part: Range<usize>,
        token: Option<String>,
        options: &ListOptions,
    ) -> Result<Value, ApiStatus> {
        let form = Form::of_list(self.shape, self.query)?;
        let mut metadata = json!({"resourceVersion": list.version.to_string()});
        match token {
            Some(token) => {
                metadata["continue"] = json!(token);
                if !list.is_selected {
                    metadata["remainingItemCount"] = json!(list.rows.len() - part.end);
                }
            }
            None if options.limit.is_some() || options.continue_token.is_some() => metadata["continue"] = json!(""),
            None => {}
        }
        let items = rendered(&list.rows[part], form, self.now).await?;
        let resource = self.view.resource();
        let whole = |items: Vec<Value>| {
            json!({
                "kind": resource.list_kind, "apiVersion": resource.kind.api_version(), "metadata": metadata, "items": items,
            })
        };
        Ok(form.list(|| self.heads(), items, &metadata, whole))
    }
}

/// The version of objects that are computed now: milliseconds since 1970. Views have no other history than the clock.
fn version_at(now: Timestamp) -> u64 {
    u64::try_from(now.as_millisecond()).unwrap_or(0)
}

/// Refuses a version in the future at once. A server of stored objects waits some seconds for the version. Here only the clock
/// of another replica can be ahead, and `Retry-After` is enough for that.
fn too_new(asked: u64, now: Timestamp) -> Result<(), ApiStatus> {
    let current = version_at(now);
    if asked <= current {
        return Ok(());
    }
    let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
    let status = ApiStatus::new(504, "Timeout", message);
    Err(status.with_cause("ResourceVersionTooLarge", "Too large resource version").retry_after(1))
}

fn check_revision(revision: Revision, now: Timestamp) -> Result<(), ApiStatus> {
    match revision {
        Revision::MostRecent | Revision::Any => Ok(()),
        Revision::NotOlderThan(version) => too_new(version, now),
        Revision::Exact(_) => Err(ApiStatus::expired("The resourceVersion for the provided list is too old.")),
    }
}

fn freshness_of_object(query: &Query, now: Timestamp) -> Result<Freshness, ApiStatus> {
    match query.get("resourceVersion") {
        None => Ok(Freshness::Recent),
        Some("0") => Ok(Freshness::Any),
        Some(text) => too_new(resource_version(text)?, now).map(|()| Freshness::Recent),
    }
}

#[cfg(test)]
#[path = "handler_tests.rs"]
mod tests;
