//! The objects of a list: told whole, or seen at one moment and told page by page.
//!
//! A list of many objects is mostly read in pages, and what makes an object dear is often its telling, not what is seen. So a
//! view may see all rows at one moment and tell only those of a page when that is asked for: all pages then show the state of
//! that moment, as the pages of a stored list do. Source: spec/extension-apiserver §2.6.

use std::{fmt, ops::Range, sync::Arc};

use async_trait::async_trait;
use controller_runtime::key::ObjectKey;
use kube_protocol::{
    jsonpath::JsonPath,
    selectors::{FieldSelector, LabelSelector},
    status::ApiStatus,
};
use serde_json::Value;

/// Objects as they were seen at one moment. What is told of one depends on nothing that may have changed since.
#[async_trait]
pub trait Seen: Send + Sync {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Namespace and name of one.
    fn key(&self, place: usize) -> ObjectKey;

    /// As much of one as selectors look at: name, namespace and labels in `metadata`, and the view's own selectable fields.
    fn outline(&self, place: usize) -> Value;

    /// The memory that all take, in bytes, as far as they alone hold it.
    fn bytes(&self) -> usize;

    /// The objects at these places, in this order, each with `apiVersion` and `kind`.
    ///
    /// # Errors
    /// 500 for what can't be rendered.
    async fn tell(&self, places: &[usize]) -> Result<Vec<Value>, ApiStatus>;
}

/// The objects of a list.
#[derive(Clone)]
pub enum Rows {
    /// They are told.
    Told(Vec<Value>),
    /// They are seen; these of them are meant, in this order.
    Seen(Arc<dyn Seen>, Vec<usize>),
}

impl Default for Rows {
    fn default() -> Self {
        Self::Told(Vec::new())
    }
}

impl From<Vec<Value>> for Rows {
    fn from(objects: Vec<Value>) -> Self {
        Self::Told(objects)
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told(objects) => f.debug_tuple("Told").field(objects).finish(),
            Self::Seen(_, places) => f.debug_tuple("Seen").field(places).finish(),
        }
    }
}

impl Rows {
    /// All that was seen.
    pub fn seen(objects: Arc<dyn Seen>) -> Self {
        let places = (0..objects.len()).collect();
        Self::Seen(objects, places)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Told(objects) => objects.len(),
            Self::Seen(_, places) => places.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it costs to keep them, in bytes: of told ones their JSON.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Told(objects) => objects.iter().map(|object| object.to_string().len()).sum(),
            Self::Seen(objects, _) => objects.bytes(),
        }
    }

    /// Those that the selectors mean, in the order of stored objects: that of the bytes of "namespace/name".
    #[must_use]
    pub fn selected(self, selection: &Selection<'_>) -> Self {
        match self {
            Self::Told(objects) => {
                let key = |object: &Value| {
                    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
                    format!("{}/{}", text("namespace"), text("name"))
                };
                let mut objects: Vec<Value> = objects.into_iter().filter(|object| selection.means(object)).collect();
                objects.sort_by_cached_key(key);
                Self::Told(objects)
            }
            Self::Seen(objects, mut places) => {
                if !selection.is_everything() {
                    places.retain(|place| selection.means(&objects.outline(*place)));
                }
                places.sort_by_cached_key(|place| {
                    let ObjectKey { namespace, name } = objects.key(*place);
                    format!("{namespace}/{name}")
                });
                Self::Seen(objects, places)
            }
        }
    }

    /// The objects of a part of the list.
    ///
    /// # Errors
    /// 500 for what can't be rendered.
    pub async fn page(&self, part: Range<usize>) -> Result<Vec<Value>, ApiStatus> {
        match self {
            Self::Told(objects) => Ok(objects[part].to_vec()),
            Self::Seen(objects, places) => objects.tell(&places[part]).await,
        }
    }

    /// All objects.
    ///
    /// # Errors
    /// 500 for what can't be rendered.
    pub async fn whole(self) -> Result<Vec<Value>, ApiStatus> {
        match self {
            Self::Told(objects) => Ok(objects),
            Self::Seen(objects, places) => objects.tell(&places).await,
        }
    }
}

/// Which objects of a list are meant.
pub struct Selection<'a> {
    /// By their labels.
    pub labels: &'a LabelSelector,
    /// By their fields.
    pub fields: &'a FieldSelector,
    /// Where the values of the view's own fields stand.
    pub own: &'a [(&'static str, JsonPath)],
}

impl Selection<'_> {
    /// Whether nothing is left out.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether an object, or its outline, is meant.
    fn means(&self, object: &Value) -> bool {
        let find = |field: &str| match field {
            "metadata.name" => Some(&object["metadata"]["name"]),
            "metadata.namespace" => Some(&object["metadata"]["namespace"]),
            _ => self.own.iter().find(|(name, _)| *name == field)?.1.find(object).first().copied(),
        };
        self.labels.matches(object) && self.fields.matches_where(find)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// Objects that remember which of them were told.
    #[derive(Default)]
    struct Remembering {
        objects: Vec<Value>,
        told: Mutex<Vec<usize>>,
    }

    #[async_trait]
    impl Seen for Remembering {
        fn len(&self) -> usize {
            self.objects.len()
        }
        fn key(&self, place: usize) -> ObjectKey {
            let text = |field: &str| self.objects[place]["metadata"][field].as_str().unwrap_or_default().to_owned();
            ObjectKey::new(text("namespace"), text("name"))
        }
        fn outline(&self, place: usize) -> Value {
            self.objects[place].clone()
        }
        fn bytes(&self) -> usize {
            1
        }
        async fn tell(&self, places: &[usize]) -> Result<Vec<Value>, ApiStatus> {
            self.told.lock().unwrap().extend(places);
            Ok(places.iter().map(|place| self.objects[*place].clone()).collect())
        }
    }

    fn objects() -> Vec<Value> {
        [("h", "b", "Fine"), ("h", "a", "Odd"), ("h-1", "c", "Odd"), ("h-1", "a", "Fine")]
            .map(|(namespace, name, state)| {
                json!({ "metadata": { "namespace": namespace, "name": name, "labels": { "state": state } },
                        "state": state })
            })
            .into()
    }

    fn names(objects: &[Value]) -> String {
        let name = |object: &Value| {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            format!("{}/{}", text("namespace"), text("name"))
        };
        objects.iter().map(name).collect::<Vec<_>>().join(" ")
    }

    #[rstest]
    #[case::all_in_the_order_of_keys("", "", "h-1/a h-1/c h/a h/b")]
    #[case::by_label("state=Odd", "", "h-1/c h/a")]
    #[case::by_an_own_field("", "state!=Odd", "h-1/a h/b")]
    #[case::by_name("", "metadata.name=a,metadata.namespace=h", "h/a")]
    #[case::none("state=Lost", "", "")]
    #[tokio::test]
    async fn told_or_seen_the_same_are_meant(#[case] labels: &str, #[case] fields: &str, #[case] expected: &str) {
        let (labels, fields) = (LabelSelector::parse(labels).unwrap(), FieldSelector::parse(fields).unwrap());
        let own = [("state", JsonPath::parse(".state").unwrap())];
        let selection = Selection { labels: &labels, fields: &fields, own: &own };
        let seen = Remembering { objects: objects(), ..Remembering::default() };
        for rows in [Rows::from(objects()), Rows::seen(Arc::new(seen))] {
            assert_eq!(names(&rows.selected(&selection).whole().await.unwrap()), expected);
        }
    }

    #[tokio::test]
    async fn only_what_a_page_shows_is_told() {
        let seen = Arc::new(Remembering { objects: objects(), ..Remembering::default() });
        let everything = Selection { labels: &LabelSelector::default(), fields: &FieldSelector::default(), own: &[] };
        let rows = Rows::seen(Arc::<Remembering>::clone(&seen)).selected(&everything);
        assert_eq!((rows.len(), rows.bytes()), (4, 1));
        assert_eq!(names(&rows.page(1..3).await.unwrap()), "h-1/c h/a");
        assert_eq!(*seen.told.lock().unwrap(), [2, 1]);
    }
}
