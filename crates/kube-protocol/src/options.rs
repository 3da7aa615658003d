//! Options of lists, watches, writes and deletions, read from the query.
//!
//! Source: spec/extension-apiserver §2.6, §2.7, §2.9.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    request::Query,
    selectors::{FieldSelector, LabelSelector},
    status::{ApiStatus, Cause},
};

/// The revision of the state that a read asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revision {
    /// The newest revision.
    MostRecent,
    /// Any revision that the server has in its cache.
    Any,
    /// This revision or a newer one.
    NotOlderThan(u64),
    /// Exactly this revision.
    Exact(u64),
}

/// Options of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOptions {
    /// The label selector.
    pub labels: LabelSelector,
    /// The field selector.
    pub fields: FieldSelector,
    /// The maximum number of items of a page. `None` for all items.
    pub limit: Option<usize>,
    /// The token of the previous page. `None` for the first page.
    pub continue_token: Option<String>,
    /// The revision of the state.
    pub revision: Revision,
}

/// Options of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchOptions {
    /// The label selector.
    pub labels: LabelSelector,
    /// The field selector.
    pub fields: FieldSelector,
    /// The watch sends the changes after this revision. With none it sends all existing objects first.
    pub after: Option<u64>,
    /// Whether the client asks for bookmarks.
    pub bookmarks: bool,
    /// Whether the client asks for all existing objects first, followed by a bookmark that marks their end.
    pub initial_events: bool,
    /// The time until the watch ends. `None` for the server's default.
    pub timeout: Option<Duration>,
}

fn forbidden(field: &str, detail: &str) -> ApiStatus {
    ApiStatus::invalid("meta.k8s.io", "ListOptions", "", vec![Cause::forbidden(field, detail)])
}

fn selectors(query: &Query) -> Result<(LabelSelector, FieldSelector), ApiStatus> {
    let labels = LabelSelector::parse(query.get("labelSelector").unwrap_or_default())?;
    let fields = FieldSelector::parse(query.get("fieldSelector").unwrap_or_default())?;
    Ok((labels, fields))
}

fn number<T: std::str::FromStr>(query: &Query, key: &str) -> Result<Option<T>, ApiStatus> {
    let unreadable = |text: &str| {
        ApiStatus::bad_request(format!("invalid {key}: strconv.ParseInt: parsing {text:?}: invalid syntax"))
    };
    query.get(key).map(|text| text.parse().map_err(|_| unreadable(text))).transpose()
}

/// Parses a resource version.
///
/// # Errors
/// 400 for a text that is not a number.
pub fn resource_version(text: &str) -> Result<u64, ApiStatus> {
    text.parse().map_err(|_| {
        ApiStatus::bad_request(format!("invalid resource version: strconv.ParseUint: parsing {text:?}: invalid syntax"))
    })
}

impl ListOptions {
    /// Parses the options of a list.
    ///
    /// # Errors
    /// 400 or 422 for options that are invalid.
    pub fn parse(query: &Query) -> Result<Self, ApiStatus> {
        let (labels, fields) = selectors(query)?;
        if query.is_set("sendInitialEvents") {
            return Err(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
        }
        let limit =
            number::<i64>(query, "limit")?.and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit > 0);
        let continue_token = query.get("continue").map(str::to_owned);
        let version = query.get("resourceVersion");
        if continue_token.is_some() && version.is_some_and(|version| version != "0") {
            return Err(ApiStatus::bad_request("specifying resource version is not allowed when using continue"));
        }
        let matching = query.get("resourceVersionMatch");
        let revision = match (version, matching) {
            (None, None) => Revision::MostRecent,
            (None, Some(_)) => {
                return Err(forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            (Some("0"), Some("Exact")) => {
                return Err(forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
            (Some("0"), None | Some("NotOlderThan")) => Revision::Any,
            (Some(version), Some("Exact")) => Revision::Exact(resource_version(version)?),
            (Some(version), None) if limit.is_some() => Revision::Exact(resource_version(version)?),
            (Some(version), None | Some("NotOlderThan")) => Revision::NotOlderThan(resource_version(version)?),
            (Some(_), Some(other)) => {
                let supported = [json!("Exact"), json!("NotOlderThan"), json!("")];
                let cause = Cause::not_supported("resourceVersionMatch", &json!(other), &supported);
                return Err(ApiStatus::invalid("meta.k8s.io", "ListOptions", "", vec![cause]));
            }
        };
        // A list of any revision comes from the cache, without pages.
        let limit = limit.filter(|_| revision != Revision::Any);
        Ok(Self { labels, fields, limit, continue_token, revision })
    }
}

impl WatchOptions {
    /// Parses the options of a watch.
    ///
    /// # Errors
    /// 400 or 422 for options that are invalid.
    pub fn parse(query: &Query) -> Result<Self, ApiStatus> {
        let (labels, fields) = selectors(query)?;
        let matching = query.get("resourceVersionMatch");
        let initial_events = query.is_set("sendInitialEvents");
        match (initial_events, matching) {
            (true, Some("NotOlderThan")) | (false, None) => {}
            (true, _) => {
                let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                return Err(forbidden("resourceVersionMatch", why));
            }
            (false, Some(_)) => {
                let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                return Err(forbidden("resourceVersionMatch", why));
            }
        }
        if query.has("continue") && query.get("continue").is_some() {
            return Err(forbidden("continue", "continue is forbidden for watch"));
        }
        let after = match query.get("resourceVersion") {
            None | Some("0") => None,
            Some(version) => Some(resource_version(version)?),
        };
        Ok(Self {
            labels,
            fields,
            after: after.filter(|_| !initial_events),
            bookmarks: query.is_set("allowWatchBookmarks"),
            initial_events,
            timeout: number::<u64>(query, "timeoutSeconds")?.filter(|seconds| *seconds > 0).map(Duration::from_secs),
        })
    }
}

/// The treatment of unknown and duplicate fields in a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    /// The fields are dropped without a warning.
    Ignore,
    /// The fields are dropped with a warning.
    Warn,
    /// The write is refused.
    Strict,
}

/// Whether a write is a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DryRun {
    /// A dry run: nothing is stored.
    All,
    /// The object is stored.
    Off,
}

/// Options of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// Whether the write is a dry run.
    pub dry_run: DryRun,
    /// The treatment of unknown and duplicate fields.
    pub field_validation: FieldValidation,
    /// The name of the field manager. `None` if the client sends no name.
    pub field_manager: Option<String>,
    /// Whether an apply takes over fields of other managers. `None` if the client does not send the option.
    pub force: Option<bool>,
}

impl WriteOptions {
    /// Parses the options of a write. `kind` is the name of the options in messages, such as `CreateOptions`.
    ///
    /// # Errors
    /// 422 for options that are invalid.
    pub fn parse(query: &Query, kind: &'static str) -> Result<Self, ApiStatus> {
        let wrong = |cause| ApiStatus::invalid("meta.k8s.io", kind, "", vec![cause]);
        let dry_run = dry_run(query.all("dryRun")).map_err(wrong)?;
        let field_validation = match query.get("fieldValidation") {
            Some("Ignore") => FieldValidation::Ignore,
            None | Some("Warn") => FieldValidation::Warn,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let supported = [json!(""), json!("Ignore"), json!("Strict"), json!("Warn")];
                return Err(wrong(Cause::not_supported("fieldValidation", &json!(other), &supported)));
            }
        };
        let field_manager = query.get("fieldManager").map(str::to_owned);
        if let Some(manager) = &field_manager {
            if manager.len() > 128 {
                return Err(wrong(Cause::too_long("fieldManager", "may not be more than 128 bytes")));
            }
            if manager.chars().any(char::is_control) {
                return Err(wrong(Cause::invalid(
                    "fieldManager",
                    &json!(manager),
                    "should only contain printable characters",
                )));
            }
        }
        let force = query.has("force").then(|| query.is_set("force"));
        Ok(Self { dry_run, field_validation, field_manager, force })
    }
}

fn dry_run<'a>(values: impl Iterator<Item = &'a str>) -> Result<DryRun, Cause> {
    let mut found = DryRun::Off;
    for value in values {
        match value {
            "All" => found = DryRun::All,
            "" => {}
            other => return Err(Cause::not_supported("dryRun", &json!([other]), &[json!("All")])),
        }
    }
    Ok(found)
}

/// The treatment of the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// The dependents are deleted after the object.
    Background,
    /// The dependents are deleted before the object.
    Foreground,
    /// The dependents stay.
    Orphan,
}

/// Options of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Whether the deletion is a dry run.
    pub dry_run: DryRun,
    /// The grace period in seconds. `None` for the default of the kind.
    pub grace_seconds: Option<u64>,
    /// The treatment of the dependents. `None` for the default of the kind.
    pub propagation: Option<Propagation>,
    /// Precondition: the UID of the object.
    pub uid: Option<String>,
    /// Precondition: the resource version of the object.
    pub resource_version: Option<String>,
}

impl DeleteOptions {
    /// Parses the options in the body and in the query. An option in the body overrides the same option in the query.
    ///
    /// # Errors
    /// 400 for a body that is not a `DeleteOptions` object, 422 for options that are invalid.
    pub fn parse(query: &Query, body: Option<&Value>) -> Result<Self, ApiStatus> {
        let wrong = |cause| ApiStatus::invalid("meta.k8s.io", "DeleteOptions", "", vec![cause]);
        let text = |key: &str| match body.map(|body| &body[key]) {
            Some(Value::String(text)) => Some(text.clone()),
            _ => query.get(key).map(str::to_owned),
        };
        if let Some(body) = body {
            if !body.is_object() {
                return Err(ApiStatus::bad_request("the body of a deletion must be a DeleteOptions object"));
            }
            if body.get("kind").and_then(Value::as_str).is_some_and(|kind| kind != "DeleteOptions") {
                return Err(ApiStatus::bad_request(format!("cannot read {} as DeleteOptions", body["kind"])));
            }
            check_types(body)?;
        }
        let listed: Vec<&str> = body
            .and_then(|body| body["dryRun"].as_array())
            .map(|list| list.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        let dry_run = dry_run(listed.into_iter().chain(query.all("dryRun"))).map_err(wrong)?;
        let grace_seconds = match body.and_then(|body| body["gracePeriodSeconds"].as_i64()) {
            Some(seconds) => Some(seconds),
            None => number::<i64>(query, "gracePeriodSeconds")?,
        };
        let orphan = body
            .and_then(|body| body["orphanDependents"].as_bool())
            .or_else(|| query.has("orphanDependents").then(|| query.is_set("orphanDependents")));
        let policy = text("propagationPolicy");
        if orphan.is_some() && policy.is_some() {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            return Err(wrong(Cause::invalid("propagationPolicy", &json!(policy), why)));
        }
        let propagation = match (policy.as_deref(), orphan) {
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (None, None) => None,
            (Some(other), _) => {
                let supported = [json!("Background"), json!("Foreground"), json!("Orphan")];
                return Err(wrong(Cause::not_supported("propagationPolicy", &json!(other), &supported)));
            }
        };
        let precondition = |key: &str| body.and_then(|body| body["preconditions"][key].as_str()).map(str::to_owned);
        Ok(Self {
            dry_run,
            grace_seconds: grace_seconds.map(|seconds| u64::try_from(seconds).unwrap_or(0)),
            propagation,
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
        })
    }
}

/// Checks the types of the fields of a `DeleteOptions` object.
fn check_types(body: &Value) -> Result<(), ApiStatus> {
    type IsOfType = fn(&Value) -> bool;
    let fields: [(&str, IsOfType, &str); 5] = [
        ("gracePeriodSeconds", Value::is_i64, "int64"),
        ("orphanDependents", Value::is_boolean, "bool"),
        ("propagationPolicy", Value::is_string, "string"),
        ("dryRun", Value::is_array, "[]string"),
        ("preconditions", Value::is_object, "Preconditions"),
    ];
    for (field, fits, name) in fields {
        let value = &body[field];
        if !value.is_null() && !fits(value) {
            return Err(ApiStatus::bad_request(format!(
                "json: cannot unmarshal {value} into field DeleteOptions.{field} of type {name}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::newest("", Ok(Revision::MostRecent))]
    #[case::any("resourceVersion=0&limit=5", Ok(Revision::Any))]
    #[case::at_least("resourceVersion=7", Ok(Revision::NotOlderThan(7)))]
    #[case::pages_are_exact("resourceVersion=7&limit=5", Ok(Revision::Exact(7)))]
    #[case::exact("resourceVersion=7&resourceVersionMatch=Exact", Ok(Revision::Exact(7)))]
    #[case::xa_117_alone("resourceVersionMatch=Exact", Err(422))]
    #[case::xa_117_zero("resourceVersion=0&resourceVersionMatch=Exact", Err(422))]
    #[case::xa_117_unknown("resourceVersion=5&resourceVersionMatch=Foo", Err(422))]
    #[case::xa_118("resourceVersion=abc", Err(400))]
    #[case::xa_114("resourceVersion=5&continue=x", Err(400))]
    #[case::xa_115("limit=abc", Err(400))]
    #[case::xa_115_negative("limit=-1", Ok(Revision::MostRecent))]
    #[case::xa_127("sendInitialEvents=true", Err(422))]
    fn the_revision_of_a_list(#[case] query: &str, #[case] expected: Result<Revision, u16>) {
        let found = ListOptions::parse(&Query::parse(Some(query))).map(|options| options.revision);
        assert_eq!(found.map_err(|status| status.code), expected);
    }

    #[rstest]
    #[case::xa_127("sendInitialEvents=true", 422)]
    #[case::xa_131("resourceVersionMatch=Exact&resourceVersion=5", 422)]
    #[case::token("continue=abc", 422)]
    fn refused_watches(#[case] query: &str, #[case] code: u16) {
        assert_eq!(WatchOptions::parse(&Query::parse(Some(query))).unwrap_err().code, code);
    }

    #[rstest]
    #[case::xa_101_policy("propagationPolicy=Sideways")]
    #[case::xa_101_both("propagationPolicy=Orphan&orphanDependents=true")]
    #[case::xa_101_dry_run("dryRun=Some")]
    fn refused_deletions(#[case] query: &str) {
        let refused = DeleteOptions::parse(&Query::parse(Some(query)), None).unwrap_err();
        assert_eq!((refused.code, refused.details.unwrap()["kind"].as_str()), (422, Some("DeleteOptions")));
    }

    #[rstest]
    #[case::seconds_as_text(json!({"gracePeriodSeconds": "x"}))]
    #[case::dry_run_as_text(json!({"dryRun": "All"}))]
    #[case::preconditions_as_list(json!({"preconditions": []}))]
    fn deletion_options_of_a_wrong_type(#[case] body: Value) {
        assert_eq!(DeleteOptions::parse(&Query::default(), Some(&body)).unwrap_err().code, 400);
    }
}
