//! The objects that views answer, each with what it was made from at one moment, until it is known in which form they are wanted.
//!
//! A long list is mostly read in pages, and to render an object costs more than to look at what it is made from. So the snapshots
//! of a list are kept and only the objects of a page are rendered, when that page is asked for: all pages then show the same
//! moment, as those of a stored list do. Source: spec/extension-apiserver §2.6.

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

/// What an object of a view is made from. It does not change any more: an object looks the same whenever it is rendered.
pub trait Snapshot: Send + Sync + 'static {
    /// What the object says beside its metadata.
    type Body: Clone + Serialize + 'static;

    /// Its metadata, of which objects show what views of stored objects have in common with these.
    fn metadata(&self) -> Metadata<'_>;

    /// What it says.
    fn body(&self) -> Cow<'_, Self::Body>;

    /// The memory that it takes, in bytes, as far as it alone holds it. That of an object that is computed already is like its JSON.
    fn bytes(&self) -> usize {
        serde_json::to_string(&*self.body()).map_or(0, |text| text.len())
    }
}

/// An object that is computed already: its metadata, and what it says.
impl<T: Clone + Serialize + Send + Sync + 'static> Snapshot for (ObjectMeta, T) {
    type Body = T;

    fn metadata(&self) -> Metadata<'_> {
        (&self.0).into()
    }

    fn body(&self) -> Cow<'_, T> {
        Cow::Borrowed(&self.1)
    }
}

/// What a cell shows of an object that says `T`.
pub enum Cell<T> {
    /// Its name.
    Name,
    /// How long ago it came into being.
    Age,
    /// What a function finds in it.
    Of(fn(&T) -> Value),
}

/// A field by which objects that say `T` can be selected: its name, and where its value is found.
pub type Field<T> = (&'static str, fn(&T) -> &str);

/// How the objects of a view are rendered; `T` is what they say beside their metadata.
pub struct Renderer<T> {
    /// What is known of the view before anybody asks.
    pub description: Description,
    /// Columns of its tables.
    pub columns: Vec<Column<Cell<T>>>,
    /// Its own selectable fields.
    pub fields: Vec<Field<T>>,
}

impl<T: Clone + Serialize + 'static> Renderer<T> {
    /// The object of a snapshot.
    pub fn row(self: &Arc<Self>, snapshot: impl Snapshot<Body = T>) -> Arc<dyn Row> {
        Arc::new(Rendered { renderer: Arc::clone(self), snapshot })
    }
}

/// An object of a view, whatever it says.
pub trait Row: Send + Sync {
    /// Its metadata.
    fn metadata(&self) -> Metadata<'_>;

    /// Whether selectors let it through.
    fn is_selected(&self, labels: &LabelSelector, fields: &FieldSelector) -> bool;

    /// The object, or its row in a table.
    ///
    /// # Errors
    /// 500 for a type of ours that can't be written: a defect that the reader is told of.
    fn render(&self, form: Form, now: Timestamp) -> Result<Value, ApiStatus>;

    /// The memory that it takes, in bytes, as far as it alone holds it.
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
            return Err(ApiStatus::internal("what a view says is no object"));
        };
        let kind = &self.renderer.description.resource.kind;
        object.insert("apiVersion".to_owned(), Value::String(kind.api_version()));
        object.insert("kind".to_owned(), Value::String(kind.kind.clone()));
        object.insert("metadata".to_owned(), json!(shown(self.metadata())));
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
            Form::Metadata => table::partial(&shown(self.metadata())),
            Form::Table(_, include) => {
                let body = self.snapshot.body();
                let columns = self.renderer.columns.iter();
                let cells = columns.map(|column| self.cell(&column.cell, &body, now)).collect();
                let object = match include {
                    IncludeObject::None => Value::Null,
                    IncludeObject::Metadata => table::partial(&shown(self.metadata())),
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

/// As much of an object's metadata as a view of it shows.
fn shown(metadata: Metadata<'_>) -> ObjectMeta {
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

/// Those that selectors let through, in the order of stored objects: that of the bytes of "namespace/name".
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
        let mut verdicts = blocking::each(&rows, is_selected).await?.into_iter();
        rows.retain(|_| verdicts.next() == Some(true));
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
/// 500 for what can't be rendered.
pub async fn rendered(rows: &[Arc<dyn Row>], form: Form, now: Timestamp) -> Result<Vec<Value>, ApiStatus> {
    blocking::each(rows, move |row| row.render(form, now)).await?.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rstest::rstest;

    use super::*;
    use crate::extension::testing::{TestView, whole};

    /// An object that notes in which order its kind is computed.
    struct Noting(ObjectMeta, Arc<Mutex<Vec<String>>>);

    impl Snapshot for Noting {
        type Body = Value;
        fn metadata(&self) -> Metadata<'_> {
            (&self.0).into()
        }
        fn body(&self) -> Cow<'_, Value> {
            self.1.lock().unwrap().push(format!("{}/{}", self.metadata().namespace, self.metadata().name));
            Cow::Owned(json!({ "state": self.metadata().labels["state"] }))
        }
    }

    fn rows() -> (Vec<Arc<dyn Row>>, Arc<Mutex<Vec<String>>>) {
        let computed = Arc::default();
        let all = [("h", "b", "Fine"), ("h", "a", "Odd"), ("h-1", "c", "Odd"), ("h-1", "a", "Fine")];
        let rows = all.map(|(namespace, name, state)| {
            let metadata = json!({ "namespace": namespace, "name": name, "labels": { "state": state } });
            TestView::renderer().row(Noting(serde_json::from_value(metadata).unwrap(), Arc::clone(&computed)))
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
    async fn selectors_compute_only_what_they_ask_about(
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
    async fn only_what_a_page_shows_is_computed_and_once() {
        let (rows, log) = rows();
        let rows = selected(rows, &LabelSelector::default(), &FieldSelector::default()).await.unwrap();
        let form = Form::Table("v1", IncludeObject::Object);
        let page = rendered(&rows[1..3], form, Timestamp::UNIX_EPOCH).await.unwrap();
        assert_eq!((&page[0]["cells"], &page[1]["cells"]), (&json!(["c", "Odd"]), &json!(["a", "Odd"])));
        assert_eq!(log.lock().unwrap().join(" "), "h-1/c h/a");
    }

    #[test]
    fn an_object_begins_as_all_objects_do() {
        let row = TestView::row(json!({ "metadata": { "name": "a" }, "spec": [] }));
        let expected = json!({ "apiVersion": "views.machine.sapcloud.io/v1alpha1", "kind": "TestView",
                               "metadata": { "name": "a" }, "spec": [] });
        assert_eq!(whole(&row), expected);
        let defect = TestView::renderer().row((ObjectMeta::default(), json!(7)));
        assert_eq!(defect.render(Form::Objects, Timestamp::UNIX_EPOCH).unwrap_err().code, 500);
    }
}
