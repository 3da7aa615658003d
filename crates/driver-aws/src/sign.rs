//! Signature version 4 of a request with a form in its body.
//!
//! EC2 and STS take one shape of request only: `POST /` without a query. A signature of that shape is four hashes, so that
//! the general crate for it, with eighteen crates below it that nothing else here needs, is not needed. Checked against signatures that botocore made.

use jiff::Timestamp;
use ring::{digest, hmac};

use crate::credentials::Credentials;

/// The content type of a form.
pub const FORM: &str = "application/x-www-form-urlencoded; charset=utf-8";
const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// The headers that sign a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// `X-Amz-Date`.
    pub date: String,
    /// `Authorization`.
    pub authorization: String,
}

/// What is signed.
#[derive(Clone, Copy, Debug)]
pub struct Form<'a> {
    /// The host with its port, as the header says it.
    pub host: &'a str,
    /// The name of the service in signatures.
    pub service: &'a str,
    /// The region.
    pub region: &'a str,
    /// The form.
    pub body: &'a str,
}

/// Signs a form at this time.
pub fn sign(form: Form<'_>, credentials: &Credentials, at: Timestamp) -> Signed {
    let date = at.strftime("%Y%m%dT%H%M%SZ").to_string();
    let day = &date[..8];
    let Form { host, service, region, body } = form;
    let (token_header, token_name) = match &credentials.token {
        Some(token) => (format!("x-amz-security-token:{}\n", token.reveal()), ";x-amz-security-token"),
        None => (String::new(), ""),
    };
    let names = format!("content-type;host;x-amz-date{token_name}");
    let canonical = format!(
        "POST\n/\n\ncontent-type:{FORM}\nhost:{host}\nx-amz-date:{date}\n{token_header}\n{names}\n{}",
        hash(body.as_bytes())
    );
    let scope = format!("{day}/{region}/{service}/aws4_request");
    let to_sign = format!("{ALGORITHM}\n{date}\n{scope}\n{}", hash(canonical.as_bytes()));
    let secret = format!("AWS4{}", credentials.secret.reveal());
    let key = [day, region, service, "aws4_request"]
        .iter()
        .fold(secret.into_bytes(), |key, part| mac(&key, part.as_bytes()).as_ref().to_vec());
    let signature = hex(mac(&key, to_sign.as_bytes()).as_ref());
    let authorization =
        format!("{ALGORITHM} Credential={}/{scope}, SignedHeaders={names}, Signature={signature}", credentials.id);
    Signed { date, authorization }
}

/// SHA-256 in hexadecimal digits.
pub fn hash(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn mac(key: &[u8], text: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use cloud_client::Secret;
    use rstest::rstest;

    use super::*;

    /// The expected values are botocore's for the same request, at the same time.
    #[rstest]
    #[case::lasting(
        None,
        "content-type;host;x-amz-date, Signature=f47fc76401dda4dd990e5084e52db57a87edf2e3f8f89e38dc28aeb2ea9c67c8"
    )]
    #[case::with_a_token(
        Some("the-session-token"),
        "content-type;host;x-amz-date;x-amz-security-token, Signature=a3c30f93138c2e136360d7c5c456cf7b8f005fff929fc08d8a096adeab97fc05"
    )]
    fn signatures_are_those_of_botocore(#[case] token: Option<&str>, #[case] ends: &str) {
        let credentials = Credentials {
            id: "AKIDEXAMPLE".to_owned(),
            secret: Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
            token: token.map(Secret::new),
            expires: None,
        };
        let form = Form {
            host: "ec2.eu-west-1.amazonaws.com",
            service: "ec2",
            region: "eu-west-1",
            body: "Action=DescribeRegions&Version=2016-11-15",
        };
        let signed = sign(form, &credentials, "2015-08-30T12:36:00Z".parse().unwrap());
        assert_eq!(signed.date, "20150830T123600Z");
        let begins = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/eu-west-1/ec2/aws4_request, SignedHeaders=";
        assert_eq!(signed.authorization, format!("{begins}{ends}"));
    }
}
