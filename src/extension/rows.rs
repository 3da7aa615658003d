//! The objects of views: snapshots that are rendered on demand, in the form that the request asks for.
//!
//! Clients mostly read a long list in pages, and rendering an object costs more than taking its snapshot. So the server keeps the
//! snapshots of a list, and renders the objects of a page when that page is requested. All pages show the same moment, as the
//! pages of a stored list do. Source: spec/extension-apiserver §2.6.

use std::{borrow::Cow, cell::LazyCell, fmt, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube_protocol::{
    resource::Column,
    selectors::{FieldSelector, LabelSelector},
    status::ApiStatus,
    table::{self, Form, IncludeObject},
};
use machine_controllers::snapshots::Metadata;
use serde::Serialize;
use serde_json::{Value, json};

use super::{blocking, view::Description};

/// The data of one object of a view at one moment. It never changes, so that the object is the same whenever it is rendered.
pub trait Snapshot: Send + Sync + 'static {
    /// The object without its metadata.
    type Body: Clone + Serialize + 'static;

    /// The metadata. Objects show a part of it.
    fn metadata(&self) -> Metadata<'_>;

    /// The object without its metadata. This may be expensive.
    fn body(&self) -> Cow<'_, Self::Body>;

    /// Memory of the snapshot in bytes, without shared data. For a computed object it is estimated by the length of its JSON.
    fn bytes(&self) -> usize {
        serde_json::to_string(&*self.body()).map_or(0, |text| text.len())
    }
}

/// A computed object: its metadata and its body.
impl<T: Clone + Serialize + Send + Sync + 'static> Snapshot for (ObjectMeta, T) {
    type Body = T;

    fn metadata(&self) -> Metadata<'_> {
        (&self.0).into()
    }

    fn body(&self) -> Cow<'_, T> {
        Cow::Borrowed(&self.1)
    }
}

/// The content of a cell, for objects with a body of type `T`.
pub enum Cell<T> {
    /// The name of the object.
    Name,
    /// The time since the creation of the object.
    Age,
    /// The result of a function of the body.
    Of(fn(&T) -> Value),
}

/// A field for field selectors: its name, and the function that returns its value.
pub type Field<T> = (&'static str, fn(&T) -> &str);

/// Renders the objects of a view; `T` is the type of their bodies.
pub struct Renderer<T> {
    /// The part of the view that does not depend on requests.
    pub description: Description,
    /// The columns of tables.
    pub columns: Vec<Column<Cell<T>>>,
    /// The view's own fields for field selectors.
    pub fields: Vec<Field<T>>,
}

impl<T: Clone + Serialize + 'static> Renderer<T> {
    /// The object of a snapshot.
    pub fn row(self: &Arc<Self>, snapshot: impl Snapshot<Body = T>) -> Arc<dyn Row> {
        Arc::new(Rendered { renderer: Arc::clone(self), snapshot })
    }
}

/// An object of a view, for any type of body.
pub trait Row: Send + Sync {
    /// The metadata.
    fn metadata(&self) -> Metadata<'_>;

    /// Whether the object meets the selectors.
    fn is_selected(&self, labels: &LabelSelector, fields: &FieldSelector) -> bool;

    /// The object in this form: for a table, its row.
    ///
    /// # Errors
    /// 500 for a body that can't be serialized, which is a defect.
    fn render(&self, form: Form, now: Timestamp) -> Result<Value, ApiStatus>;

    /// Memory of the snapshot in bytes, without shared data.
    fn bytes(&self) -> usize;
}

impl fmt::Debug for dyn Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.render(Form::Objects, Timestamp::UNIX_EPOCH))
    }
}

struct Rendered<S: Snapshot> {
    renderer: Arc<Renderer<S::Body>>,
    snapshot: S,
}

impl<S: Snapshot> Rendered<S> {
    fn whole(&self, body: &S::Body) -> Result<Value, ApiStatus> {
        let Value::Object(mut object) = serde_json::to_value(body).map_err(ApiStatus::internal)? else {
            return Err(ApiStatus::internal("the body of a view is no object"));
        };
        let kind = &self.renderer.description.resource.kind;
        object.insert("apiVersion".to_owned(), Value::String(kind.api_version()));
        object.insert("kind".to_owned(), Value::String(kind.kind.clone()));
        object.insert("metadata".to_owned(), json!(shown_metadata(self.metadata())));
        Ok(Value::Object(object))
    }

    fn cell(&self, cell: &Cell<S::Body>, body: &S::Body, now: Timestamp) -> Value {
        match cell {
            Cell::Name => self.metadata().name.into(),
            Cell::Age => self.metadata().created.map(|created| table::age(created, now)).into(),
            Cell::Of(value) => value(body),
        }
    }
}

impl<S: Snapshot> Row for Rendered<S> {
    fn metadata(&self) -> Metadata<'_> {
        self.snapshot.metadata()
    }

    fn is_selected(&self, labels: &LabelSelector, fields: &FieldSelector) -> bool {
        let metadata = self.metadata();
        let body = LazyCell::new(|| self.snapshot.body());
        let own = |name: &str| self.renderer.fields.iter().find(|(own, _)| *own == name);
        let text_of = |name: &str| match name {
            "metadata.name" => metadata.name.to_owned(),
            "metadata.namespace" => metadata.namespace.to_owned(),
            name => own(name).map(|(_, value)| value(&body).to_owned()).unwrap_or_default(),
        };
        labels.matches_where(|key| metadata.labels.get(key).map(String::as_str)) && fields.matches_where(text_of)
    }

    fn render(&self, form: Form, now: Timestamp) -> Result<Value, ApiStatus> {
        Ok(match form {
            Form::Objects => self.whole(&self.snapshot.body())?,
            Form::Metadata => table::partial(&shown_metadata(self.metadata())),
            Form::Table(_, include) => {
                let body = self.snapshot.body();
                let columns = self.renderer.columns.iter();
                let cells = columns.map(|column| self.cell(&column.cell, &body, now)).collect();
                let object = match include {
                    IncludeObject::None => Value::Null,
                    IncludeObject::Metadata => table::partial(&shown_metadata(self.metadata())),
                    IncludeObject::Object => self.whole(&body)?,
                };
                table::row(cells, object)
            }
        })
    }

    fn bytes(&self) -> usize {
        self.snapshot.bytes()
    }
}

/// The part of an object's metadata that views show.
fn shown_metadata(metadata: Metadata<'_>) -> ObjectMeta {
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    ObjectMeta {
        name: given(metadata.name),
        namespace: given(metadata.namespace),
        uid: given(metadata.uid),
        creation_timestamp: metadata.created.map(Time),
        labels: Some(metadata.labels.clone()).filter(|labels| !labels.is_empty()),
        ..ObjectMeta::default()
    }
}

/// The objects that meet the selectors, in the order of stored objects: by the bytes of "namespace/name".
///
/// # Errors
/// 500 when the process ends meanwhile.
pub async fn selected(
    mut rows: Vec<Arc<dyn Row>>,
    labels: &LabelSelector,
    fields: &FieldSelector,
) -> Result<Vec<Arc<dyn Row>>, ApiStatus> {
    if !labels.is_empty() || !fields.is_empty() {
        let (labels, fields) = (labels.clone(), fields.clone());
        let is_selected = move |row: &Arc<dyn Row>| row.is_selected(&labels, &fields);
        let mut results = blocking::each(&rows, is_selected).await?.into_iter();
        rows.retain(|_| results.next() == Some(true));
    }
    rows.sort_by_cached_key(|row| {
        let Metadata { namespace, name, .. } = row.metadata();
        format!("{namespace}/{name}")
    });
    Ok(rows)
}

/// The objects in this form.
///
/// # Errors
/// 500 for a body that can't be serialized.
pub async fn rendered(rows: &[Arc<dyn Row>], form: Form, now: Timestamp) -> Result<Vec<Value>, ApiStatus> {
    blocking::each(rows, move |row| row.render(form, now)).await?.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rstest::rstest;

    use super::*;
    use crate::extension::testing::{TestView, whole};

    /// A snapshot that records the order in which bodies are computed.
    struct Recording(ObjectMeta, Log);

    /// The keys of objects in the order in which their bodies are computed.
    type Log = Arc<Mutex<Vec<String>>>;

    impl Snapshot for Recording {
        type Body = Value;
        fn metadata(&self) -> Metadata<'_> {
            (&self.0).into()
        }
        fn body(&self) -> Cow<'_, Value> {
            self.1.lock().unwrap().push(format!("{}/{}", self.metadata().namespace, self.metadata().name));
            Cow::Owned(json!({ "state": self.metadata().labels["state"] }))
        }
    }

    fn rows() -> (Vec<Arc<dyn Row>>, Log) {
        let computed = Arc::default();
        let all = [("h", "b", "Fine"), ("h", "a", "Odd"), ("h-1", "c", "Odd"), ("h-1", "a", "Fine")];
        let rows = all.map(|(namespace, name, state)| {
            let metadata = json!({ "namespace": namespace, "name": name, "labels": { "state": state } });
            TestView::renderer().row(Recording(serde_json::from_value(metadata).unwrap(), Arc::clone(&computed)))
        });
        (rows.into(), computed)
    }

    fn keys(rows: &[Arc<dyn Row>]) -> String {
        let key = |row: &Arc<dyn Row>| format!("{}/{}", row.metadata().namespace, row.metadata().name);
        rows.iter().map(key).collect::<Vec<_>>().join(" ")
    }

    #[rstest]
    #[case::all_in_the_order_of_keys("", "", "h-1/a h-1/c h/a h/b", "")]
    #[case::by_label("state=Odd", "", "h-1/c h/a", "")]
    #[case::by_an_own_field("", "state!=Odd", "h-1/a h/b", "h/b h/a h-1/c h-1/a")]
    #[case::by_two_fields("", "state=Odd,metadata.name=a", "h/a", "h/b h/a h-1/c h-1/a")]
    #[case::by_name("", "metadata.name=a,metadata.namespace=h", "h/a", "")]
    #[case::none("state=Lost", "state=Odd", "", "")]
    #[tokio::test]
    async fn selectors_compute_only_the_bodies_that_they_need(
        #[case] labels: &str,
        #[case] fields: &str,
        #[case] expected: &str,
        #[case] computed: &str,
    ) {
        let (labels, fields) = (LabelSelector::parse(labels).unwrap(), FieldSelector::parse(fields).unwrap());
        let (rows, log) = rows();
        assert_eq!(keys(&selected(rows, &labels, &fields).await.unwrap()), expected);
        assert_eq!(log.lock().unwrap().join(" "), computed);
    }

    #[tokio::test]
    async fn only_the_objects_of_a_page_are_computed_and_once() {
        let (rows, log) = rows();
        let rows = selected(rows, &LabelSelector::default(), &FieldSelector::default()).await.unwrap();
        let form = Form::Table("v1", IncludeObject::Object);
        let page = rendered(&rows[1..3], form, Timestamp::UNIX_EPOCH).await.unwrap();
        assert_eq!((&page[0]["cells"], &page[1]["cells"]), (&json!(["c", "Odd"]), &json!(["a", "Odd"])));
        assert_eq!(log.lock().unwrap().join(" "), "h-1/c h/a");
    }

    #[test]
    fn an_object_has_api_version_kind_and_metadata() {
        let row = TestView::row(json!({ "metadata": { "name": "a" }, "spec": [] }));
        let expected = json!({ "apiVersion": "views.machine.sapcloud.io/v1alpha1", "kind": "TestView",
                               "metadata": { "name": "a" }, "spec": [] });
        assert_eq!(whole(&row), expected);
        let defect = TestView::renderer().row((ObjectMeta::default(), json!(7)));
        assert_eq!(defect.render(Form::Objects, Timestamp::UNIX_EPOCH).unwrap_err().code, 500);
    }
}
