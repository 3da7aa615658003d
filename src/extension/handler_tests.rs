//! Questions to a view, by table.

use http::Method;
use rstest::rstest;

use super::*;
use crate::extension::testing::{self, TestView};

const NOW: &str = "2026-01-01T00:00:00Z";

fn pages() -> Pages {
    Pages::new(|| 7)
}

async fn ask_in(
    pages: &Pages,
    shape: Shape,
    method: Method,
    path: &str,
    query: &str,
    body: &str,
) -> (u16, Value, Vec<String>) {
    testing::ask(&TestView::served(), pages, shape, (method, path, query), body, NOW).await
}

async fn ask(method: Method, path: &str, query: &str, body: &str) -> (u16, Value, Vec<String>) {
    ask_in(&pages(), Shape::Object, method, path, query, body).await
}

fn names(list: &Value) -> String {
    let name = |item: &Value| {
        format!("{}/{}", item["metadata"]["namespace"].as_str().unwrap(), item["metadata"]["name"].as_str().unwrap())
    };
    list["items"].as_array().unwrap().iter().map(name).collect::<Vec<_>>().join(" ")
}

#[rstest]
#[case::all_in_the_order_of_keys("/testviews", "", "h-1/a h-1/b h/a h/b h/c")]
#[case::one_namespace("/namespaces/h/testviews", "", "h/a h/b h/c")]
#[case::labels("/testviews", "labelSelector=state%3DOdd", "h-1/a h/c")]
#[case::own_fields("/testviews", "fieldSelector=state!%3DOdd", "h-1/b h/a h/b")]
#[case::names("/testviews", "fieldSelector=metadata.name%3Da,metadata.namespace%3Dh", "h/a")]
#[case::no_limit("/testviews", "limit=0", "h-1/a h-1/b h/a h/b h/c")]
#[case::not_older("/testviews", "resourceVersion=5", "h-1/a h-1/b h/a h/b h/c")]
#[tokio::test]
async fn lists(#[case] path: &str, #[case] query: &str, #[case] expected: &str) {
    let (code, list, warnings) = ask(Method::GET, path, query, "").await;
    assert_eq!((code, names(&list).as_str(), list["kind"].as_str()), (200, expected, Some("TestViewList")));
    assert_eq!(list["metadata"]["resourceVersion"], "1767225600000");
    assert_eq!(warnings, ["one class is missing"]);
}

#[rstest]
#[case::unknown_field("/testviews", "fieldSelector=spec.x%3D1", 400, "field label not supported: spec.x")]
#[case::bad_labels("/testviews", "labelSelector=a%20b%20c", 400, "unable to parse requirement")]
#[case::exact_version("/testviews", "resourceVersion=5&resourceVersionMatch=Exact", 410, "too old")]
#[case::future_version("/testviews", "resourceVersion=99999999999999", 504, "Too large resource version")]
#[case::foreign_token("/testviews", "continue=abc", 400, "invalid continue token")]
#[case::absent("/namespaces/h/testviews/x", "", 404, "testviews.views.machine.sapcloud.io \"x\" not found")]
#[case::without_a_namespace("/testviews/a", "", 404, "404 page not found")]
#[case::a_subresource("/namespaces/h/testviews/a/status", "", 404, "404 page not found")]
#[case::xa_145_th_34_watch("/testviews", "watch=1", 405, "does not allow this method")]
#[tokio::test]
async fn refused_reads(#[case] path: &str, #[case] query: &str, #[case] code: u16, #[case] text: &str) {
    let (found, message, _) = ask(Method::GET, path, query, "").await;
    assert!(found == code && message.as_str().unwrap().contains(text), "{found} {message}");
}

#[rstest]
#[case::xa_146_delete(Method::DELETE, "/namespaces/h/testviews/a")]
#[case::xa_146_delete_all(Method::DELETE, "/namespaces/h/testviews")]
#[case::xa_146_put(Method::PUT, "/namespaces/h/testviews/a")]
#[case::xa_146_patch(Method::PATCH, "/namespaces/h/testviews/a")]
#[case::options(Method::OPTIONS, "/namespaces/h/testviews")]
#[tokio::test]
async fn views_are_only_read(#[case] method: Method, #[case] path: &str) {
    assert_eq!(ask(method, path, "", "{}").await.0, 405);
}

#[rstest]
#[case::fresh("", "Recent")]
#[case::from_memory("resourceVersion=0", "Any")]
#[case::not_older("resourceVersion=7", "Recent")]
#[tokio::test]
async fn how_fresh_an_object_must_be(#[case] query: &str, #[case] freshness: &str) {
    let (code, object, warnings) = ask(Method::GET, "/namespaces/h/testviews/fresh", query, "").await;
    assert_eq!((code, object["state"].as_str()), (200, Some(freshness)));
    assert_eq!(warnings, ["watch \"out\""]);
}

#[tokio::test]
async fn pages_lead_through_one_state_to_the_end() {
    let pages = pages();
    let page = async |query: String| {
        let (code, list, _) = ask_in(&pages, Shape::Object, Method::GET, "/testviews", &query, "").await;
        assert_eq!(code, 200);
        let metadata = &list["metadata"];
        let token = metadata["continue"].as_str().unwrap().to_owned();
        (names(&list), token, metadata["remainingItemCount"].as_u64())
    };
    let (first, token, rest) = page("limit=2".to_owned()).await;
    assert_eq!((first.as_str(), rest), ("h-1/a h-1/b", Some(3)));
    let (second, token, rest) = page(format!("limit=2&continue={token}")).await;
    assert_eq!((second.as_str(), rest), ("h/a h/b", Some(1)));
    let (third, token, rest) = page(format!("limit=2&continue={token}")).await;
    assert_eq!((third.as_str(), token.as_str(), rest), ("h/c", "", None));
}

#[tokio::test]
async fn remaining_items_are_not_counted_with_a_selector() {
    let (_, list, _) = ask(Method::GET, "/testviews", "limit=1&labelSelector=state%3DFine", "").await;
    assert!(list["metadata"].get("remainingItemCount").is_none() && list["metadata"]["continue"] != "");
}

#[tokio::test]
async fn tables_have_the_columns_of_the_view() {
    let table = Shape::Table("v1");
    let (_, list, _) = ask_in(&pages(), table, Method::GET, "/namespaces/h/testviews", "limit=2", "").await;
    assert_eq!((&list["kind"], &list["rows"][1]["cells"]), (&json!("Table"), &json!(["b", "Fine"])));
    assert_eq!(list["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert_ne!(list["metadata"]["continue"], "");
    let (_, one, _) = ask_in(&pages(), table, Method::GET, "/namespaces/h/testviews/c", "", "").await;
    assert_eq!(one["rows"][0]["cells"], json!(["c", "Odd"]));
}

#[rstest]
#[case::plain("", r#"{"spec": {"machineName": "m"}}"#, 201, &[])]
#[case::dry_run("dryRun=All", r#"{"kind": "TestView"}"#, 201, &[])]
#[case::odd_fields_are_warned_of("", r#"{"spec": {"x": 1}, "state": "a", "state": "b"}"#, 201,
    &["unknown field \"spec.x\"", "duplicate field \"state\""])]
#[case::or_ignored("fieldValidation=Ignore", r#"{"spec": {"x": 1}}"#, 201, &[])]
#[case::or_refused("fieldValidation=Strict", r#"{"spec": {"x": 1}}"#, 400, &["strict decoding error"])]
#[case::yaml_is_no_json("", "a: b: c", 400, &["cannot read JSON"])]
#[case::no_object("", "[]", 400, &["must be an object"])]
#[case::another_kind("", r#"{"kind": "Pod"}"#, 422, &["must be TestView"])]
#[case::another_namespace("", r#"{"metadata": {"namespace": "x"}}"#, 400, &["does not match the namespace"])]
#[case::a_version("", r#"{"metadata": {"resourceVersion": "5"}}"#, 400, &["resourceVersion should not be set"])]
#[case::a_name_that_is_none("", r#"{"metadata": {"name": "../x y"}}"#, 422, &["metadata.name: Invalid value"])]
#[case::th_06_a_name_with_a_nul("", r#"{"metadata": {"name": "a\u0000b"}}"#, 422, &["metadata.name: Invalid value"])]
#[case::unknown_dry_run("dryRun=Some", "{}", 422, &["dryRun: Unsupported value"])]
#[case::th_01_depth("", "{\"a\":".repeat(100_000).leak(), 400, &["exceeded max depth"])]
#[case::th_06_beyond_numbers("", r#"{"state": 1e400}"#, 400, &["number out of range"])]
#[case::th_35_an_admission_review("", r#"{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}"#, 400,
    &["does not match the expected API version"])]
#[tokio::test]
async fn reviews(#[case] query: &str, #[case] body: &str, #[case] code: u16, #[case] texts: &[&str]) {
    let (found, answer, warnings) = ask(Method::POST, "/namespaces/h/testviews", query, body).await;
    assert_eq!(found, code, "{answer}");
    if code == 201 {
        assert_eq!((answer["kind"].as_str(), answer["metadata"]["namespace"].as_str()), (Some("TestView"), Some("h")));
        assert_eq!(warnings, texts);
    } else {
        assert!(answer.as_str().unwrap().contains(texts[0]), "{answer}");
    }
}

#[tokio::test]
async fn a_refused_review_is_warned_of_all_the_same() {
    let body = r#"{"state": "Refused", "misspelt": 1}"#;
    let (code, _, warnings) = ask(Method::POST, "/namespaces/h/testviews", "", body).await;
    assert_eq!((code, warnings), (400, vec!["unknown field \"misspelt\"".to_owned()]));
}

#[tokio::test]
async fn a_review_may_be_posted_to_a_name() {
    let (code, answer, _) = ask(Method::POST, "/namespaces/h/testviews/x", "", "{}").await;
    assert_eq!((code, answer["metadata"]["name"].as_str()), (201, Some("x")));
    let body = r#"{"metadata": {"name": "y"}}"#;
    assert_eq!(ask(Method::POST, "/namespaces/h/testviews/x", "", body).await.0, 400);
}
