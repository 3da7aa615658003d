//! Reads an `AdmissionReview`.
//!
//! Texts without escapes are borrowed from the body. Parts of objects that no rule reads are skipped: `metadata.managedFields` alone is often half of
//! an object.

use std::borrow::Cow;

use super::refusal::{Refusal, printable};
use serde::{Deserialize, Deserializer, de::DeserializeSeed};

use kube_values::json::{Json, Member, Reading};

use crate::{
    kind::{ApiVersion, Kind},
    names,
    validation::{Change, Dependents},
};

/// The supported version.
pub const API_VERSION: &str = "admission.k8s.io/v1";
/// The supported kind.
pub const KIND: &str = "AdmissionReview";

/// The longest uid of a review, in bytes. The answer repeats it. API servers send 36 bytes.
pub const UID_MAX: usize = 128;
/// The longest namespace of a request, in bytes. It becomes a default. Namespaces of Kubernetes have at most 63 bytes.
const NAMESPACE_MAX: usize = 253;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    request: Option<Request<'a>>,
}

/// The request of the API server.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request<'a> {
    /// The uid of the review.
    #[serde(borrow, default)]
    pub uid: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: GroupVersionKind<'a>,
    #[serde(borrow, default)]
    sub_resource: Cow<'a, str>,
    /// The name of the object. Absent if the name will be generated.
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    /// Namespace of the object.
    #[serde(borrow, default)]
    pub namespace: Cow<'a, str>,
    #[serde(borrow, default)]
    operation: Cow<'a, str>,
    /// The user.
    #[serde(borrow, default)]
    pub user_info: UserInfo<'a>,
    #[serde(borrow, default)]
    object: Option<Object<'a>>,
    #[serde(borrow, default)]
    old_object: Option<Object<'a>>,
    #[serde(borrow, default)]
    options: Option<Options<'a>>,
}

/// The options of the request that rules read.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Options<'a> {
    #[serde(borrow, default)]
    propagation_policy: Option<Cow<'a, str>>,
    #[serde(default)]
    orphan_dependents: Option<bool>,
}

#[derive(Default, Deserialize)]
struct GroupVersionKind<'a> {
    #[serde(borrow, default)]
    group: Cow<'a, str>,
    #[serde(borrow, default)]
    version: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
}

/// The user of a request.
#[derive(Default, Deserialize)]
pub struct UserInfo<'a> {
    /// User name.
    #[serde(borrow, default)]
    pub username: Cow<'a, str>,
    /// Groups.
    #[serde(default)]
    pub groups: Vec<Cow<'a, str>>,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// The object is created.
    Create,
    /// The object is changed.
    Update,
    /// The object is deleted.
    Delete,
    /// The request connects to the object, or the operation is unknown.
    Other,
}

impl Operation {
    /// The name of the operation in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Other => "OTHER",
        }
    }
}

/// The kind and the version of an object of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The kind.
    pub kind: Kind,
    /// The version.
    pub version: ApiVersion,
}

/// The subject of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One of our objects.
    Object(Question),
    /// The status of one of our objects.
    Status(Question),
    /// Something else.
    Foreign,
}

/// Reads a body.
pub fn read(body: &[u8]) -> Result<Request<'_>, Refusal> {
    if body.is_empty() {
        return Err(Refusal::plain(format!("the body is empty: want an {KIND} of {API_VERSION}")));
    }
    let no_review = || format!("the body is no {KIND} of {API_VERSION}");
    // UTF-8 is checked once for the whole body, which is much cheaper than a check of each string.
    let text = std::str::from_utf8(body).map_err(|error| Refusal::plain(format!("{}: {error}", no_review())))?;
    let review: Review<'_> = serde_json::from_str(text).map_err(|error| Refusal::of_json(&no_review(), &error))?;
    if review.kind.is_empty() {
        return Err(Refusal::plain(format!("{}: it names no kind", no_review())));
    }
    if review.kind != KIND || review.api_version != API_VERSION {
        let (kind, version) = (printable(&review.kind), printable(&review.api_version));
        let reason = format!("cannot answer kind {kind} of apiVersion {version}: want {KIND} of {API_VERSION}");
        return Err(Refusal::plain(reason));
    }
    let request = review.request.ok_or_else(|| Refusal::plain(format!("the {KIND} has no request")))?;
    if request.uid.is_empty() {
        return Err(Refusal::plain(format!("the request of the {KIND} has no uid")));
    }
    if request.uid.len() > UID_MAX {
        return Err(Refusal::plain(format!("the uid of the {KIND} has more than {UID_MAX} bytes")));
    }
    if request.namespace.len() > NAMESPACE_MAX {
        return Err(Refusal::plain(format!("the namespace of the {KIND} has more than {NAMESPACE_MAX} bytes")));
    }
    Ok(request)
}

impl Request<'_> {
    /// The operation.
    pub fn operation(&self) -> Operation {
        match &*self.operation {
            "CREATE" => Operation::Create,
            "UPDATE" => Operation::Update,
            "DELETE" => Operation::Delete,
            _ => Operation::Other,
        }
    }

    /// The subject of the request (spec/api-and-admission §4.1 items 2 to 4).
    pub fn target(&self) -> Target {
        let kind = Kind::from_name(&self.kind.kind).filter(|_| self.kind.group == names::GROUP);
        let (Some(kind), Some(version)) = (kind, ApiVersion::from_name(&self.kind.version)) else {
            return Target::Foreign;
        };
        match (&*self.sub_resource, self.operation()) {
            (_, Operation::Other) => Target::Foreign,
            ("", _) => Target::Object(Question { kind, version }),
            ("status", _) => Target::Status(Question { kind, version }),
            _ => Target::Foreign,
        }
    }

    /// The change of the object.
    ///
    /// # Errors
    ///
    /// The part of the request that is missing.
    pub fn change(&self) -> Result<Change<'_>, Refusal> {
        let object = self.object.as_ref().map(|object| &object.0);
        let old = self.old_object.as_ref().map(|object| &object.0);
        let missing =
            |part: &str| Refusal::plain(format!("the request is {} and has no {part}", self.operation().as_str()));
        match self.operation() {
            Operation::Create => Ok(Change::Create { new: object.ok_or_else(|| missing("object"))? }),
            Operation::Update => Ok(Change::Update {
                old: old.ok_or_else(|| missing("oldObject"))?,
                new: object.ok_or_else(|| missing("object"))?,
            }),
            Operation::Delete | Operation::Other => Ok(Change::Delete { old, dependents: self.dependents() }),
        }
    }

    /// Whether the dependents of a deleted object are deleted too. The older option is used only if the newer one is absent.
    fn dependents(&self) -> Dependents {
        let Some(options) = &self.options else { return Dependents::Collected };
        let orphaned = match &options.propagation_policy {
            Some(policy) => policy == "Orphan",
            None => options.orphan_dependents == Some(true),
        };
        if orphaned { Dependents::Orphaned } else { Dependents::Collected }
    }

    /// The name of the object in messages: its name, or else the prefix of its generated name.
    pub fn object_name(&self) -> &str {
        let of_object = |field: &str| {
            let object = self.object.as_ref().or(self.old_object.as_ref())?;
            object.0.get("metadata")?.get(field)?.as_str().filter(|name| !name.is_empty())
        };
        if self.name.is_empty() {
            of_object("name").or_else(|| of_object("generateName")).unwrap_or_default()
        } else {
            &self.name
        }
    }
}

/// Metadata that no rule reads.
const UNREAD_METADATA: [&str; 5] = ["managedFields", "uid", "resourceVersion", "creationTimestamp", "selfLink"];

/// An object without [`UNREAD_METADATA`].
struct Object<'a>(Json<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Reading(member_of_object).deserialize(deserializer).map(Self)
    }
}

fn member_of_object(key: &str) -> Member {
    if key == "metadata" { Member::ReadBy(member_of_metadata) } else { Member::Read }
}

fn member_of_metadata(key: &str) -> Member {
    if UNREAD_METADATA.contains(&key) { Member::Skip } else { Member::Read }
}
