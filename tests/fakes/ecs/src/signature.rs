//! Callers: the access keys of the account, and the check of each request's signature, time and nonce.
//!
//! There are two schemes: signature 1.0 (HMAC-SHA1 over all parameters), and ACS3-HMAC-SHA256 (over the request and its headers).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, header};
use jiff::Timestamp;
use ring::{digest, hmac};

use crate::errors::Refusal;

/// The access key of the tests.
pub const ACCESS_KEY_ID: &str = "LTAI5tFakeKeyOfTheTests1";
/// The secret of [`ACCESS_KEY_ID`].
pub const ACCESS_KEY_SECRET: &str = "fakeSecretOfTheTests0000000001";
/// Another access key of the account, as after a rotation.
pub const SECOND_ACCESS_KEY_ID: &str = "LTAI5tFakeKeyOfTheTests2";
/// The secret of [`SECOND_ACCESS_KEY_ID`].
pub const SECOND_ACCESS_KEY_SECRET: &str = "fakeSecretOfTheTests0000000002";

const KEYS: [(&str, &str); 2] = [(ACCESS_KEY_ID, ACCESS_KEY_SECRET), (SECOND_ACCESS_KEY_ID, SECOND_ACCESS_KEY_SECRET)];
const ACS3: &str = "ACS3-HMAC-SHA256";
/// How far the clocks of caller and service may differ, in seconds.
const SKEW: i64 = 900;
/// The parameters of requests with signature 1.0 that belong to no action.
const COMMON: [&str; 10] = [
    "AccessKeyId",
    "Action",
    "Format",
    "SecurityToken",
    "Signature",
    "SignatureMethod",
    "SignatureNonce",
    "SignatureVersion",
    "Timestamp",
    "Version",
];

/// Parameters by their names.
pub type Parameters = BTreeMap<String, String>;

/// How a request is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    /// Signature 1.0: HMAC-SHA1 over all parameters.
    Rpc,
    /// ACS3-HMAC-SHA256.
    Acs3,
}

/// A request, as it has arrived.
pub struct Received<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub headers: &'a HeaderMap,
    /// The parameters in the URL.
    pub query: Parameters,
    /// The parameters in the body.
    pub form: Parameters,
    pub body: &'a [u8],
}

impl Received<'_> {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    fn all(&self) -> Parameters {
        self.query.iter().chain(&self.form).map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    pub fn scheme(&self) -> Scheme {
        if self.header("authorization").starts_with(ACS3) { Scheme::Acs3 } else { Scheme::Rpc }
    }

    fn common(&self, header: &str, parameter: &str) -> String {
        match self.scheme() {
            Scheme::Acs3 => self.header(header).to_owned(),
            Scheme::Rpc => self.all().remove(parameter).unwrap_or_default(),
        }
    }

    /// The name of the action.
    pub fn action(&self) -> String {
        self.common("x-acs-action", "Action")
    }

    /// The version of the API.
    pub fn version(&self) -> String {
        self.common("x-acs-version", "Version")
    }

    /// Whether the answer may be JSON. The service writes XML otherwise.
    pub fn wants_json(&self) -> bool {
        let format = self.all().remove("Format").unwrap_or_default();
        format.eq_ignore_ascii_case("json")
            || self.scheme() == Scheme::Acs3 && self.header(header::ACCEPT.as_str()).contains("application/json")
    }

    /// The parameters of the action.
    pub fn parameters(&self) -> Parameters {
        let mut own = self.all();
        let common: &[&str] = if self.scheme() == Scheme::Rpc { &COMMON } else { &["Format"] };
        own.retain(|name, _| !common.contains(&name.as_str()));
        own
    }
}

/// The signature of a request, and what it says.
struct Signed {
    scheme: Scheme,
    key: String,
    time: String,
    nonce: String,
    signature: String,
    /// The text that is signed. The message of a refusal contains it.
    text: String,
}

impl Signed {
    fn read(request: &Received<'_>) -> Result<Self, Refusal> {
        match request.scheme() {
            Scheme::Rpc => rpc(request),
            Scheme::Acs3 => acs3(request),
        }
    }

    /// The signature with this secret.
    fn expected(&self, secret: &str) -> String {
        match self.scheme {
            Scheme::Rpc => {
                let tag = mac(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &format!("{secret}&"), &self.text);
                BASE64_STANDARD.encode(tag)
            }
            Scheme::Acs3 => {
                let text = format!("{ACS3}\n{}", sha256(self.text.as_bytes()));
                hex(mac(hmac::HMAC_SHA256, secret, &text).as_ref())
            }
        }
    }
}

/// The nonces that have been used.
#[derive(Default)]
pub struct Callers {
    nonces: BTreeSet<(String, String)>,
}

impl Callers {
    /// The id of the access key that has signed a request.
    pub fn check(&mut self, request: &Received<'_>, now: i64) -> Result<String, Refusal> {
        let signed = Signed::read(request)?;
        let (_, secret) = KEYS
            .iter()
            .find(|(id, _)| *id == signed.key)
            .ok_or_else(|| Refusal::new(404, "InvalidAccessKeyId.NotFound", "Specified access key is not found."))?;
        if signed.expected(secret) != signed.signature {
            let message =
                format!("Specified signature does not match our calculation. server string to sign is:{}", signed.text);
            return Err(Refusal::new(400, "SignatureDoesNotMatch", &message));
        }
        let time = at(&signed.time)?;
        if (now - time).abs() > SKEW {
            let message = "Specified time stamp or date value is expired.";
            return Err(Refusal::new(400, "InvalidTimeStamp.Expired", message));
        }
        if !self.nonces.insert((signed.key.clone(), signed.nonce)) {
            let message = "Specified signature nonce was used already.";
            return Err(Refusal::new(400, "SignatureNonceUsed", message));
        }
        Ok(signed.key)
    }
}

/// A time in seconds, in the only form that the service reads: 2026-01-07T11:14:15Z.
fn at(text: &str) -> Result<i64, Refusal> {
    let well_formed = text.len() == "2026-01-07T11:14:15Z".len() && text.ends_with('Z');
    let time = well_formed.then(|| text.parse::<Timestamp>().ok()).flatten();
    let wrong =
        || Refusal::new(400, "InvalidTimeStamp.Format", "Specified time stamp or date value is not well formatted.");
    time.map(Timestamp::as_second).ok_or_else(wrong)
}

fn incomplete() -> Refusal {
    Refusal::new(400, "IncompleteSignature", "The request signature does not conform to Aliyun standards.")
}

/// Signature 1.0.
fn rpc(request: &Received<'_>) -> Result<Signed, Refusal> {
    let mut all = request.all();
    let take = |name: &str| all.get(name).cloned().filter(|value| !value.is_empty()).ok_or_else(incomplete);
    let (key, time, nonce) = (take("AccessKeyId")?, take("Timestamp")?, take("SignatureNonce")?);
    if take("SignatureMethod")? != "HMAC-SHA1" || take("SignatureVersion")? != "1.0" {
        return Err(incomplete());
    }
    let signature = all.remove("Signature").ok_or_else(incomplete)?;
    let text = format!("{}&%2F&{}", request.method, encoded(&canonical(&all)));
    Ok(Signed { scheme: Scheme::Rpc, key, time, nonce, signature, text })
}

/// ACS3-HMAC-SHA256.
fn acs3(request: &Received<'_>) -> Result<Signed, Refusal> {
    let fields = request.header("authorization").strip_prefix(ACS3).unwrap_or_default();
    let field = |name: &str| {
        let found = fields.split(',').find_map(|field| field.trim().strip_prefix(name)?.strip_prefix('='));
        found.ok_or_else(incomplete)
    };
    let (key, names, signature) = (field("Credential")?, field("SignedHeaders")?, field("Signature")?);
    let listed: Vec<_> = names.split(';').collect();
    let required =
        ["host", "x-acs-action", "x-acs-content-sha256", "x-acs-date", "x-acs-signature-nonce", "x-acs-version"];
    let own = request.headers.keys().map(header::HeaderName::as_str).filter(|name| name.starts_with("x-acs-"));
    if !listed.is_sorted() || required.into_iter().chain(own).any(|name| !listed.contains(&name)) {
        return Err(incomplete());
    }
    let payload = request.header("x-acs-content-sha256");
    if payload != sha256(request.body) {
        return Err(Refusal::new(
            400,
            "InvalidContentSha256",
            "The specified x-acs-content-sha256 is not of the body.",
        ));
    }
    let mut headers = String::new();
    for name in &listed {
        let _ = writeln!(headers, "{name}:{}", request.header(name).trim());
    }
    let query = canonical(&request.query);
    let text = format!("{}\n{}\n{query}\n{headers}\n{names}\n{payload}", request.method, request.path);
    Ok(Signed {
        scheme: Scheme::Acs3,
        key: key.to_owned(),
        time: request.header("x-acs-date").to_owned(),
        nonce: request.header("x-acs-signature-nonce").to_owned(),
        signature: signature.to_owned(),
        text,
    })
}

/// Parameters in their canonical form.
fn canonical(parameters: &Parameters) -> String {
    let pairs = parameters.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// A text with percent signs, as RFC 3986 says.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn mac(algorithm: hmac::Algorithm, secret: &str, text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(algorithm, secret.as_bytes()), text.as_bytes())
}

fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// Signs for tests, as a caller would.
#[cfg(test)]
pub fn sign(request: &Received<'_>, secret: &str) -> String {
    Signed::read(request).map(|signed| signed.expected(secret)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn parameters(of: &[(&str, &str)]) -> Parameters {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn request<'a>(method: &'a str, headers: &'a HeaderMap, query: &[(&str, &str)]) -> Received<'a> {
        Received { method, path: "/", headers, query: parameters(query), form: Parameters::new(), body: b"" }
    }

    /// The example in the documentation of signature 1.0.
    #[test]
    fn signature_1_0_is_as_documented() {
        let headers = HeaderMap::new();
        let query = [
            ("Timestamp", "2016-02-23T12:46:24Z"),
            ("Format", "XML"),
            ("AccessKeyId", "testid"),
            ("Action", "DescribeRegions"),
            ("SignatureMethod", "HMAC-SHA1"),
            ("SignatureNonce", "3ee8c1b8-83d3-44af-a94f-4e0ad82fd6cf"),
            ("Version", "2014-05-26"),
            ("SignatureVersion", "1.0"),
            ("Signature", "x"),
        ];
        assert_eq!(sign(&request("GET", &headers, &query), "testsecret"), "OLeaidS1JvxuMvnyHOwuJ+uX5qY=");
    }

    /// The example in the documentation of ACS3-HMAC-SHA256.
    #[test]
    fn acs3_is_as_documented() {
        let names = "host;x-acs-action;x-acs-content-sha256;x-acs-date;x-acs-signature-nonce;x-acs-version";
        let authorization = format!("{ACS3} Credential=YourAccessKeyId,SignedHeaders={names},Signature=x");
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "ecs.cn-shanghai.aliyuncs.com"),
            ("x-acs-action", "RunInstances"),
            ("x-acs-content-sha256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("x-acs-date", "2023-10-26T10:22:32Z"),
            ("x-acs-signature-nonce", "3156853299f313e23d1673dc12e1703d"),
            ("x-acs-version", "2014-05-26"),
            ("authorization", authorization.as_str()),
        ] {
            headers.insert(header::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        let query = [("ImageId", "win2019_1809_x64_dtc_zh-cn_40G_alibase_20230811.vhd"), ("RegionId", "cn-shanghai")];
        let signature = sign(&request("POST", &headers, &query), "YourAccessKeySecret");
        assert_eq!(signature, "06563a9e1b43f5dfe96b81484da74bceab24a1d853912eee15083a6f0f3283c0");
    }
}
