//! Reviews: objects that a client creates to ask a question. The server answers at once and does not store them.

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    access::User,
    account_tokens::Holder,
    authorization::{self, Attributes, AuthorizationMode},
    kinds::Served,
    object::{metadata, new_uid, text, time, uid},
    server::{Answer, Call, Server},
    write_body::{agree_with_url, read_body},
};
use kube_protocol::{
    options::{FieldValidation, WriteOptions},
    status::ApiStatus,
};

/// The default lifetime of a service account token, in seconds.
const TOKEN_SECONDS: i64 = 3600;

/// Whether a kind is a review.
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
            "tokenreviews" => match self.user_of_token(text(&body, "/spec/token")) {
                Some(user) => json!({"authenticated": true, "user": user.to_json()}),
                None => json!({"authenticated": false, "error": "[invalid bearer token]", "user": {}}),
            },
            "selfsubjectreviews" => json!({"userInfo": call.user.to_json()}),
            "selfsubjectaccessreviews" => self.access_status(call.user, &body["spec"])?,
            "subjectaccessreviews" | "localsubjectaccessreviews" => {
                let name = text(&body, "/spec/user");
                let groups = body["spec"]["groups"].as_array().into_iter().flatten();
                let groups = groups.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>();
                if name.is_empty() && groups.is_empty() {
                    return Err(ApiStatus::bad_request("at least one of user or group must be specified"));
                }
                self.access_status(&User::reviewed(name, groups), &body["spec"])?
            }
            "selfsubjectrulesreviews" => self.rules(call.user, text(&body, "/spec/namespace")),
            _ => return Err(ApiStatus::method_not_allowed()),
        };
        Ok(Answer::of(StatusCode::CREATED, body))
    }

    /// The status of an access review for a user.
    fn access_status(&self, user: &User, spec: &Value) -> Result<Value, ApiStatus> {
        let both = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        let asked = Attributes::of_review(spec).ok_or_else(|| ApiStatus::bad_request(both))?;
        let allowed = match self.authorization {
            // Role bindings may also name unauthenticated users.
            AuthorizationMode::Rbac => self.is_allowed(user, &asked),
            AuthorizationMode::AlwaysAllow => !user.is_anonymous(),
        };
        Ok(json!({"allowed": allowed}))
    }

    /// The status of a rules review for a user in a namespace.
    fn rules(&self, user: &User, namespace: &str) -> Value {
        let rules = match self.authorization {
            AuthorizationMode::AlwaysAllow => authorization::everything(),
            AuthorizationMode::Rbac => authorization::rules_of(&self.store, user, namespace),
        };
        let (paths, resources): (Vec<Value>, Vec<Value>) =
            rules.into_iter().partition(|rule| rule["nonResourceURLs"].is_array());
        json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false})
    }

    /// Answers a token request for a service account.
    pub(super) fn issue_token(&self, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        let body = call.decoded()?;
        let account = self.store.get(&call.served.collection, &call.key()).ok_or_else(|| call.not_found())?;
        let seconds = body["spec"]["expirationSeconds"].as_i64().unwrap_or(TOKEN_SECONDS).clamp(600, 86_400 * 365);
        let until = self.now() + jiff::SignedDuration::from_secs(seconds);
        let id = new_uid(&mut *self.random());
        let holder =
            Holder { namespace: call.namespace().unwrap_or_default(), name: call.name(), uid: uid(&account.value) };
        let token = self.accounts.issue(&holder, &id, self.now(), until);
        let token =
            token.ok_or_else(|| ApiStatus::internal("the key for tokens of service accounts cannot be used"))?;
        let mut answer = json!({
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {"name": call.name()},
            "spec": body["spec"], "status": {"token": token, "expirationTimestamp": time(until)},
        });
        answer["spec"]["expirationSeconds"] = json!(seconds);
        Ok(Answer::of(StatusCode::CREATED, answer))
    }
}
