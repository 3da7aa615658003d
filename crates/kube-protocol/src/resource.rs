//! The description of a served resource: one version of one plural name.

use super::request::Verb;

/// Whether the objects of a resource are in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceScope {
    /// Each object is in a namespace.
    Namespaced,
    /// The objects are in no namespace.
    Cluster,
}

impl ResourceScope {
    /// The name in discovery.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespaced => "Namespaced",
            Self::Cluster => "Cluster",
        }
    }
}

/// Group, version and kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupVersionKind {
    /// API group; empty for the core group.
    pub group: String,
    /// Version, such as `v1`.
    pub version: String,
    /// Kind, such as `Pod`.
    pub kind: String,
}

impl GroupVersionKind {
    /// `group/version`, or `version` in the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// A subresource, such as `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subresource {
    /// Name of the subresource.
    pub name: String,
    /// Kind of its request and response bodies.
    pub kind: GroupVersionKind,
    /// Verbs that are served.
    pub verbs: Vec<Verb>,
}

/// A column of a table. `C` describes the content of the cells.
#[derive(Clone, Debug)]
pub struct Column<C> {
    /// Head of the column.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub value_type: String,
    /// `name` for the first column.
    pub format: String,
    /// Description for people.
    pub description: String,
    /// Columns above 0 are shown by `-o wide` only.
    pub priority: i64,
    /// The content of the cells.
    pub cell: C,
}

/// A served resource.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Group, version and kind of its objects.
    pub kind: GroupVersionKind,
    /// Kind of its lists.
    pub list_kind: String,
    /// The plural name, which is used in paths.
    pub plural: String,
    /// The singular name, which `kubectl` accepts.
    pub singular: String,
    /// Short names.
    pub short_names: Vec<String>,
    /// Categories, such as `all`.
    pub categories: Vec<String>,
    /// Whether the objects are in namespaces.
    pub scope: ResourceScope,
    /// Verbs that are served.
    pub verbs: Vec<Verb>,
    /// Its subresources.
    pub subresources: Vec<Subresource>,
}

impl Resource {
    /// Whether a verb is served.
    pub fn serves(&self, verb: Verb) -> bool {
        self.verbs.contains(&verb)
    }

    /// A subresource by name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }
}
