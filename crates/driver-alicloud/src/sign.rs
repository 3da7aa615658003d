//! Signs requests with `ACS3-HMAC-SHA256`, as Alibaba Cloud's own client does. Pure.

use std::fmt::Write;

use jiff::Timestamp;
use machine_driver::{Code, Status};
use ring::{
    digest, hmac,
    rand::{SecureRandom, SystemRandom},
};

use crate::{credentials::Credentials, query::Query};

/// The name of the algorithm.
const ALGORITHM: &str = "ACS3-HMAC-SHA256";

/// What makes one request different from the same request at another time.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The time of the request, such as `2023-10-26T10:22:32Z`.
    pub date: String,
    /// A text that no other request has.
    pub nonce: String,
}

impl Moment {
    /// The present, with a random nonce.
    ///
    /// # Errors
    /// `Internal` if the system has no random numbers.
    pub fn now() -> Result<Self, Status> {
        let mut random = [0; 16];
        SystemRandom::new()
            .fill(&mut random)
            .map_err(|_| Status::new(Code::Internal, "the system has no random numbers"))?;
        let date = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Ok(Self { date, nonce: hex(&random) })
    }
}

/// The headers of a `POST /` without a body to this host (with its port, if it is not the usual one), with their signature. The host itself is signed,
/// too. The HTTP client sends it.
pub fn headers(query: &Query, host: &str, credentials: &Credentials, moment: &Moment) -> Vec<(&'static str, String)> {
    // In the order of their names. Without `accept` some services of Alibaba Cloud answer with XML.
    let mut headers = vec![("accept", "application/json".to_owned())];
    headers.extend(least_headers(query, host, credentials, moment));
    let authorization = authorization(query, &headers, credentials);
    headers.retain(|(name, _)| *name != "host");
    headers.push(("authorization", authorization));
    headers
}

/// The headers that every signature contains, in the order of their names.
fn least_headers(query: &Query, host: &str, credentials: &Credentials, moment: &Moment) -> Vec<(&'static str, String)> {
    let mut headers = vec![
        ("host", host.to_owned()),
        ("x-acs-action", query.action().to_owned()),
        ("x-acs-content-sha256", hash(b"")),
        ("x-acs-date", moment.date.clone()),
    ];
    if let Some(token) = &credentials.token {
        headers.push(("x-acs-security-token", token.reveal().to_owned()));
    }
    headers.push(("x-acs-signature-nonce", moment.nonce.clone()));
    headers.push(("x-acs-version", query.version().to_owned()));
    headers
}

/// The signature of a `POST /` without a body, with these headers.
fn authorization(query: &Query, headers: &[(&'static str, String)], credentials: &Credentials) -> String {
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines = headers.iter().fold(String::new(), |lines, (name, value)| lines + name + ":" + value + "\n");
    let request = format!("POST\n/\n{}\n{lines}\n{names}\n{}", query.encoded(), hash(b""));
    let to_sign = format!("{ALGORITHM}\n{}", hash(request.as_bytes()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, credentials.secret.reveal().as_bytes());
    let signature = hex(hmac::sign(&key, to_sign.as_bytes()).as_ref());
    format!("{ALGORITHM} Credential={},SignedHeaders={names},Signature={signature}", credentials.id)
}

fn hash(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a text never fails.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use cloud_client::{CredentialsKey, Secret};

    use super::*;

    /// The example in Alibaba Cloud's description of the signature.
    #[test]
    fn y19_a_request_has_the_published_signature() {
        let mut query = Query::new("RunInstances", "2014-05-26");
        query.set("ImageId", "win2019_1809_x64_dtc_zh-cn_40G_alibase_20230811.vhd");
        query.set("RegionId", "cn-shanghai");
        let credentials = Credentials {
            id: "YourAccessKeyId".to_owned(),
            secret: Secret::new("YourAccessKeySecret"),
            token: None,
            key: CredentialsKey::of(&[]),
        };
        let moment =
            Moment { date: "2023-10-26T10:22:32Z".to_owned(), nonce: "3156853299f313e23d1673dc12e1703d".to_owned() };
        let host = "ecs.cn-shanghai.aliyuncs.com";
        let signed = authorization(&query, &least_headers(&query, host, &credentials, &moment), &credentials);
        assert_eq!(
            signed,
            "ACS3-HMAC-SHA256 Credential=YourAccessKeyId,\
             SignedHeaders=host;x-acs-action;x-acs-content-sha256;x-acs-date;x-acs-signature-nonce;x-acs-version,\
             Signature=06563a9e1b43f5dfe96b81484da74bceab24a1d853912eee15083a6f0f3283c0"
        );
        let with_token = Credentials { token: Some(Secret::new("t")), ..credentials };
        let sent = headers(&query, host, &with_token, &moment);
        assert!(sent.iter().all(|(name, _)| *name != "host"), "the HTTP client sends the host");
        let (_, signed) = sent.last().unwrap();
        let names = "SignedHeaders=accept;host;x-acs-action;x-acs-content-sha256;x-acs-date;x-acs-security-token;x-acs-signature-nonce;x-acs-version,";
        assert!(signed.contains(names), "{signed}");
    }

    #[test]
    fn each_moment_is_another() {
        let (one, other) = (Moment::now().unwrap(), Moment::now().unwrap());
        assert_ne!(one.nonce, other.nonce);
        assert_eq!((one.nonce.len(), one.date.len()), (32, 20));
        assert!(one.date.ends_with('Z') && one.date.contains('T'));
    }
}
