//! Tests of the sources of credentials and of the cache.

use std::fs;

use cloud_client::{
    Limits, NoAnswer, Transport,
    http::{HeaderMap, StatusCode},
};
use machine_driver::async_trait;
use rstest::rstest;

use super::*;

fn secret(pairs: &[(&str, &str)]) -> SecretData {
    let mut secret = SecretData::default();
    for (key, value) in pairs {
        secret.set(*key, value.as_bytes().to_vec());
    }
    secret
}

fn keys(id: &str, key: &str) -> Source {
    Source::Static(Credentials { id: id.to_owned(), secret: Secret::new(key), token: None, expires: None })
}

#[rstest]
#[case::a_31_gardeners_spelling(&[("accessKeyID", " a\n"), ("secretAccessKey", "b\n")], Ok(keys("a", "b")))]
#[case::the_older_spelling_wins(&[("accessKeyID", "a"), ("secretAccessKey", "b"), ("providerAccessKeyId", "c"), ("providerSecretAccessKey", "d")], Ok(keys("c", "d")))]
#[case::a_blank_value_does_not_count(&[("accessKeyID", "a"), ("secretAccessKey", "b"), ("providerAccessKeyId", " ")], Ok(keys("a", "b")))]
#[case::half_a_pair(&[("accessKeyID", "a")], Err("Mention atleast providerSecretAccessKey or secretAccessKey"))]
#[case::a_32_a_token_without_a_role(&[("workloadIdentityTokenFile", "/t")], Err("Role ARN is required when workload identity is used"))]
#[case::an_empty_file_name(&[("workloadIdentityTokenFile", ""), ("roleARN", "r")], Err("Workload identity token file is required"))]
#[case::nothing(&[], Ok(Source::Instance { endpoint: "http://169.254.169.254".to_owned() }))]
fn a_secret_names_a_source(#[case] pairs: &[(&str, &str)], #[case] expected: Result<Source, &str>) {
    let source = Source::of(&secret(pairs), &AwsOptions::default());
    assert_eq!(source.map_err(|status| status.message), expected.map_err(str::to_owned));
}

/// Answers by path and records the requests.
#[derive(Clone, Default)]
struct FakeSources(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl Transport for FakeSources {
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer> {
        let headers = request.headers();
        let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        let proof = header("x-aws-ec2-metadata-token") + &header("authorization");
        let form = String::from_utf8(request.body().to_vec()).unwrap();
        self.0.lock().unwrap().push(format!("{} {} {proof}{form}", request.method(), request.uri()));
        let document = r#"{"Code":"Success","AccessKeyId":"a","SecretAccessKey":"b","Token":"c","Expiration":"2026-01-01T01:00:00Z"}"#;
        let body = match request.uri().path() {
            "/latest/api/token" => "metadata-token",
            "/latest/meta-data/iam/security-credentials/" => "nodes\n",
            "/latest/meta-data/iam/security-credentials/nodes" | "/v1/credentials" => document,
            _ => {
                "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleWithWebIdentityResult>\
                 <Credentials><SessionToken>c</SessionToken><SecretAccessKey>b</SecretAccessKey><Expiration>2026-01-01T01:00:00Z</Expiration>\
                 <AccessKeyId>a</AccessKeyId></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
            }
        };
        Ok(Answer { status: StatusCode::OK, headers: HeaderMap::new(), body: body.into() })
    }
}

#[rstest]
#[case::instance_profile(
    |_| Source::Instance { endpoint: "http://metadata".to_owned() },
    &["PUT http://metadata/latest/api/token ",
      "GET http://metadata/latest/meta-data/iam/security-credentials/ metadata-token",
      "GET http://metadata/latest/meta-data/iam/security-credentials/nodes metadata-token"]
)]
#[case::pod_identity(
    |file| Source::Container { uri: "http://agent/v1/credentials".to_owned(), token_file: Some(file) },
    &["GET http://agent/v1/credentials t-1"]
)]
#[case::web_identity(
    |file| Source::WebIdentity { file, role: "arn:r".to_owned(), trust: FileTrust::Process },
    &["POST https://sts.eu-west-1.amazonaws.com/ Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Ar&RoleSessionName=machine-controller-manager&WebIdentityToken=t-1"]
)]
#[tokio::test(start_paused = true)]
async fn a_source_gives_credentials_that_are_kept_until_shortly_before_their_end(
    #[case] source: fn(PathBuf) -> Source,
    #[case] asked: &[&str],
) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "t-1").unwrap();
    let (sources, source) = (FakeSources::default(), source(file.path().to_owned()));
    let client = Client::new(sources.clone(), Limits::default());
    let (cx, options, cache) =
        (OpContext::within(Duration::from_secs(60)), AwsOptions::default(), CredentialsCache::default());
    let fetcher =
        CredentialsClient { client: &client, cx: &cx, options: &options, sts: "https://sts.eu-west-1.amazonaws.com/" };
    let at = |time: &str| time.parse::<Timestamp>().unwrap();
    let fetched = cache.credentials(fetcher, &source, at("2026-01-01T00:00:00Z")).await.unwrap();
    assert_eq!(
        fetched,
        Credentials {
            id: "a".to_owned(),
            secret: Secret::new("b"),
            token: Some(Secret::new("c")),
            expires: Some(at("2026-01-01T01:00:00Z")),
        }
    );
    assert_eq!(*sources.0.lock().unwrap(), asked);
    cache.credentials(fetcher, &source, at("2026-01-01T00:54:00Z")).await.unwrap();
    assert_eq!(sources.0.lock().unwrap().len(), asked.len(), "they are cached");
    cache.credentials(fetcher, &source, at("2026-01-01T00:56:00Z")).await.unwrap();
    assert_eq!(sources.0.lock().unwrap().len(), 2 * asked.len(), "they are renewed in time");
}

/// Refuses each request with its body as message.
struct Repeating;

#[async_trait]
impl Transport for Repeating {
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer> {
        let sent = String::from_utf8_lossy(request.body()).replace('&', "&amp;");
        let body = format!(
            "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>{sent}</Message></Error></ErrorResponse>"
        );
        Ok(Answer { status: StatusCode::BAD_REQUEST, headers: HeaderMap::new(), body: body.into() })
    }
}

#[tokio::test(start_paused = true)]
async fn c_14_a_refusal_of_sts_does_not_contain_the_token() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "webidentity-token/1=").unwrap();
    let source =
        Source::WebIdentity { file: file.path().to_owned(), role: "arn:r".to_owned(), trust: FileTrust::Process };
    let client = Client::new(Repeating, Limits::default());
    let (cx, options, cache) =
        (OpContext::within(Duration::from_secs(60)), AwsOptions::default(), CredentialsCache::default());
    let fetcher = CredentialsClient { client: &client, cx: &cx, options: &options, sts: "https://sts/" };
    let refused = cache.credentials(fetcher, &source, Timestamp::now()).await.unwrap_err();
    assert_eq!(refused.code, Code::Unauthenticated);
    assert!(refused.message.ends_with("WebIdentityToken=<redacted>"), "{}", refused.message);
}

/// Counts requests and never answers.
#[derive(Clone, Default)]
struct Unresponsive(Arc<Mutex<usize>>);

#[async_trait]
impl Transport for Unresponsive {
    async fn send(&self, _: Request<Bytes>) -> Result<Answer, NoAnswer> {
        *self.0.lock().unwrap() += 1;
        std::future::pending().await
    }
}

/// This happens in a container if the hop limit of the metadata service is too low.
#[tokio::test(start_paused = true)]
async fn an_unresponsive_metadata_service_fails_soon_and_is_not_asked_for_each_machine() {
    let (unresponsive, source) = (Unresponsive::default(), Source::Instance { endpoint: "http://metadata".to_owned() });
    let client = Client::new(unresponsive.clone(), Limits::default());
    let (cx, options, cache) =
        (OpContext::within(Duration::from_secs(60)), AwsOptions::default(), CredentialsCache::default());
    let fetcher = CredentialsClient { client: &client, cx: &cx, options: &options, sts: "" };
    let began = Instant::now();
    for _ in 0..3 {
        let refused = cache.credentials(fetcher, &source, Timestamp::now()).await.unwrap_err();
        assert_eq!(refused.code, Code::Unauthenticated);
        assert!(refused.message.contains("http://metadata, does not answer"), "{}", refused.message);
    }
    assert_eq!((*unresponsive.0.lock().unwrap(), began.elapsed()), (1, METADATA_TIMEOUT));
    tokio::time::sleep(RETRY_AFTER).await;
    cache.credentials(fetcher, &source, Timestamp::now()).await.unwrap_err();
    assert_eq!(*unresponsive.0.lock().unwrap(), 2);
}
