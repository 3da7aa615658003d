//! Reviews: questions that are posted like objects, answered at once and never stored.

use http::StatusCode;
use rand::Rng;
use serde_json::{Value, json};

use super::{
    access::User,
    kinds::Served,
    object::{metadata, text, time},
    server::{Answer, Call, Server},
    write::{agree_with_url, read_body},
};
use crate::protocol::{
    options::{FieldValidation, WriteOptions},
    status::ApiStatus,
};

/// How long a service account's token lasts when the caller does not say, in seconds.
const TOKEN_SECONDS: i64 = 3600;

/// Whether objects of a kind are questions.
pub(super) fn is_review(served: &Served) -> bool {
    !served.is_custom() && matches!(served.group(), "authentication.k8s.io" | "authorization.k8s.io")
}

impl Server {
    pub(super) fn review(&self, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        let mut options = WriteOptions::parse(call.query, "CreateOptions")?;
        options.field_validation = FieldValidation::Ignore;
        let mut body = read_body(call, &options, &mut Vec::new())?;
        agree_with_url(call, &mut body)?;
        metadata(&mut body).entry("creationTimestamp").or_insert(Value::Null);
        body["status"] = match call.served.plural() {
            "tokenreviews" => match self.tokens.user(text(&body, "/spec/token"), self.now()) {
                Some(user) => json!({"authenticated": true, "user": user.to_json()}),
                None => json!({"authenticated": false, "error": "[invalid bearer token]", "user": {}}),
            },
            "selfsubjectreviews" => json!({"userInfo": call.user.to_json()}),
            "selfsubjectaccessreviews" => verdict(call.user),
            "subjectaccessreviews" | "localsubjectaccessreviews" => {
                let name = text(&body, "/spec/user");
                let groups = body["spec"]["groups"].as_array().into_iter().flatten();
                let groups = groups.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>();
                if name.is_empty() && groups.is_empty() {
                    return Err(ApiStatus::bad_request("at least one of user or group must be specified"));
                }
                verdict(&User::known(name, groups))
            }
            "selfsubjectrulesreviews" => json!({
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "incomplete": false,
            }),
            _ => return Err(ApiStatus::method_not_allowed()),
        };
        Ok(Answer::of(StatusCode::CREATED, body))
    }

    /// A token for a service account.
    pub(super) fn issue_token(&self, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        let body = call.decoded()?;
        if self.store.get(&call.served.collection, &call.key()).is_none() {
            return Err(call.not_found());
        }
        let seconds = body["spec"]["expirationSeconds"].as_i64().unwrap_or(TOKEN_SECONDS).clamp(600, 86_400 * 365);
        let until = self.now() + jiff::SignedDuration::from_secs(seconds);
        let token = {
            let mut random = self.random();
            format!("mcm-dev-{:016x}{:016x}{:016x}", random.next_u64(), random.next_u64(), random.next_u64())
        };
        self.tokens.issue(&token, call.namespace().unwrap_or_default(), call.name(), until);
        let mut answer = json!({
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {"name": call.name()},
            "spec": body["spec"], "status": {"token": token, "expirationTimestamp": time(until)},
        });
        answer["spec"]["expirationSeconds"] = json!(seconds);
        Ok(Answer::of(StatusCode::CREATED, answer))
    }
}

fn verdict(user: &User) -> Value {
    if user.is_anonymous() { json!({"allowed": false}) } else { json!({"allowed": true}) }
}
