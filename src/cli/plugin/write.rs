//! The writes of commands: shown first, confirmed, bound to UID and version of the object that was shown.
//!
//! Other modules decide what is changed; here it is shown and sent. Source: spec/packaging §5.3.

use std::io::{IsTerminal, Write};

use clap::{Args, ValueEnum};
use http::Method;
use kube::{Client, Resource as _, api::DynamicObject};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    fleet::unread,
    output::{self, Answer, OutputArgs, Source, Style},
    session::{Session, now},
};
use crate::cli::{Failure, answer::answer, cluster_objects::Resource, output::printable};
use controller_runtime::{
    error::ApiError,
    key::Target,
    objects::{Patch, call},
};
use machine_api::kind::Kind;

/// The field manager of every write.
pub const FIELD_MANAGER: &str = "kubectl-mcm";

/// Where a write is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// The API server checks the write with all webhooks, and stores nothing
    Server,
}

/// Flags of commands that write.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct WriteArgs {
    /// Do not ask for confirmation
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// Try the write without storing it
    #[arg(long, value_name = "WHERE")]
    pub dry_run: Option<DryRun>,
}

/// What is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A patch, which is bound to the version of the object.
    Patch(Patch),
    /// A deletion.
    Delete,
}

/// A write to one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The kind of the object.
    pub kind: Kind,
    /// The object.
    pub target: Target,
    /// What happens, as the end of a sentence that begins with "will".
    pub text: String,
    /// What is sent.
    pub what: What,
}

/// The decision of a command that writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Nothing has to change. The text says why.
    Nothing(String),
    /// A change.
    Change(Change),
}

/// A write that was carried out.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Written {
    /// The kind of the object.
    pub object_kind: &'static str,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// What was done.
    pub change: String,
    /// Whether nothing was stored.
    pub dry_run: bool,
}

/// The answer of a command that writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Changes {
    /// The writes.
    pub changes: Vec<Written>,
    /// Why there are none, or why some objects are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unchanged: Option<String>,
}

impl Answer for Changes {
    const KIND: &'static str = "Changes";

    fn text(&self, _source: Source, _style: &Style) -> String {
        let nothing = self.unchanged.iter().map(|why| format!("{why}\n"));
        let done = self.changes.iter().map(|one| {
            let dry_run = if one.dry_run { " (server dry run)" } else { "" };
            format!("{}/{}: {}{dry_run}\n", one.object_kind.to_lowercase(), one.name, one.change)
        });
        nothing.chain(done).collect()
    }

    fn names(&self) -> Vec<String> {
        self.changes.iter().map(|one| format!("{}/{}", one.object_kind.to_lowercase(), one.name)).collect()
    }
}

/// Shows the decision, asks, carries it out and prints the result.
///
/// # Errors
/// Without confirmation, or when a write fails.
pub async fn carry_out(
    session: &Session,
    decision: Decision,
    args: WriteArgs,
    output: &OutputArgs,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let answer = match decision {
        Decision::Nothing(why) => Changes { unchanged: Some(why), ..Changes::default() },
        Decision::Change(change) => all(session, &[change], args).await?,
    };
    output::write(&answer, Source::Stored, output, now(), out)
}

/// Shows the changes, asks, and carries them out.
///
/// # Errors
/// Without confirmation, or when a write fails. Earlier writes are not undone.
pub async fn all(session: &Session, changes: &[Change], args: WriteArgs) -> Result<Changes, Failure> {
    for change in changes {
        eprintln!("will {}", printable(&change.text));
    }
    if args.dry_run.is_none() && !args.yes {
        confirm().await?;
    }
    let mut answer = Changes::default();
    for change in changes {
        if let Err(failure) = send(&session.client, change, args.dry_run).await {
            if !answer.changes.is_empty() {
                eprintln!("mcm: done before the failure: {}", answer.names().join(", "));
            }
            return Err(failure);
        }
        answer.changes.push(Written {
            object_kind: change.kind.as_str(),
            namespace: change.target.key.namespace.clone(),
            name: change.target.key.name.clone(),
            change: change.text.clone(),
            dry_run: args.dry_run.is_some(),
        });
    }
    Ok(answer)
}

async fn confirm() -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Input(
            "nothing was done: standard input is no terminal, so it can't be confirmed; --yes goes on without asking"
                .to_owned(),
        ));
    }
    eprint!("go on? [y/N] ");
    if ["y", "yes"].contains(&answer().await?.to_ascii_lowercase().as_str()) {
        Ok(())
    } else {
        Err(Failure::Input("not confirmed; nothing was done (--yes goes on without asking)".to_owned()))
    }
}

async fn send(client: &Client, change: &Change, dry_run: Option<DryRun>) -> Result<(), Failure> {
    let request = request(change, dry_run).map_err(Failure::run)?;
    let verb = if change.what == What::Delete { "delete" } else { "patch" };
    let what = format!("{verb} {} {}", change.kind.plural(), change.target.key);
    match call(client.request::<Value>(request)).await {
        Ok(_) => Ok(()),
        Err(ApiError::Conflict(text)) => Err(Failure::Input(format!(
            "cannot {what}: it has changed since it was shown ({text}); run the command again to see what it is now"
        ))),
        Err(error) => Err(unread(&what, &error)),
    }
}

fn request(change: &Change, dry_run: Option<DryRun>) -> http::Result<http::Request<Vec<u8>>> {
    let key = &change.target.key;
    let path = DynamicObject::url_path(&Resource::of_kind(change.kind).description(), Some(&key.namespace));
    let (method, content_type, body) = match &change.what {
        What::Patch(Patch::Merge(patch)) => (Method::PATCH, "application/merge-patch+json", patch.to_string()),
        What::Patch(Patch::Json(operations)) => {
            (Method::PATCH, "application/json-patch+json", json!(operations).to_string())
        }
        What::Delete => {
            let mut options =
                json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": change.target.uid } });
            if dry_run.is_some() {
                options["dryRun"] = json!(["All"]);
            }
            (Method::DELETE, "application/json", options.to_string())
        }
    };
    // The API server takes the options of a deletion from its body.
    let query = match (&change.what, dry_run) {
        (What::Delete, _) => String::new(),
        (What::Patch(_), None) => format!("?fieldManager={FIELD_MANAGER}"),
        (What::Patch(_), Some(DryRun::Server)) => format!("?fieldManager={FIELD_MANAGER}&dryRun=All"),
    };
    http::Request::builder()
        .method(method)
        .uri(format!("{path}/{}{query}", key.name))
        .header(http::header::CONTENT_TYPE, content_type)
        .body(body.into_bytes())
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use rstest::rstest;

    use super::*;
    use controller_runtime::key::ObjectKey;

    fn target() -> Target {
        Target { key: ObjectKey::new("ns", "m"), uid: "u-1".to_owned() }
    }

    fn sent(what: What, dry_run: Option<DryRun>) -> (String, String, String) {
        let change = Change { kind: Kind::Machine, target: target(), text: String::new(), what };
        let request = request(&change, dry_run).unwrap();
        let body = String::from_utf8(request.body().clone()).unwrap();
        (request.method().to_string(), request.uri().to_string(), body)
    }

    #[test]
    fn pk_075_a_deletion_names_the_uid_that_was_shown() {
        let (method, uri, body) = sent(What::Delete, None);
        let path = "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines/m";
        assert_eq!((method.as_str(), uri.as_str()), ("DELETE", path));
        assert!(body.contains(r#""preconditions":{"uid":"u-1"}"#) && !body.contains("dryRun"), "{body}");
        assert!(sent(What::Delete, Some(DryRun::Server)).2.contains(r#""dryRun":["All"]"#));
    }

    #[rstest]
    #[case::a_namesake_was_made(409, "Conflict", "cannot delete machines ns/m: it has changed since it was shown (")]
    #[case::it_is_gone(404, "NotFound", "cannot delete machines ns/m: not")]
    #[case::no_right(403, "Forbidden", "cannot delete machines ns/m: forbidden: said; a Role")]
    #[tokio::test]
    async fn pk_075_a_refused_deletion_says_what_it_was(#[case] code: u16, #[case] reason: &str, #[case] says: &str) {
        let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
            "message": "said" });
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let body = Body::from(status.to_string().into_bytes());
            let answer = http::Response::builder().status(code).body(body).expect("a response");
            async move { Ok::<_, tower::BoxError>(answer) }
        });
        let change = Change { kind: Kind::Machine, target: target(), text: String::new(), what: What::Delete };
        let failure = send(&Client::new(service, "ns"), &change, None).await.unwrap_err().to_string();
        assert!(failure.starts_with(says), "{failure}");
    }

    #[test]
    fn a_patch_has_the_field_manager_and_the_dry_run() {
        let patch = What::Patch(Patch::Merge(json!({ "spec": { "paused": true } })));
        let (method, uri, body) = sent(patch, Some(DryRun::Server));
        let uri_expected =
            "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines/m?fieldManager=kubectl-mcm&dryRun=All";
        assert_eq!((method.as_str(), uri.as_str()), ("PATCH", uri_expected));
        assert_eq!(body, r#"{"spec":{"paused":true}}"#);
    }
}
