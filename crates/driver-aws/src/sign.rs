//! Signs requests with a form as body by signature version 4. The crate `aws-sigv4` computes the signature.

use std::time::SystemTime;

use aws_credential_types::Credentials as Signer;
use aws_sigv4::{
    http_request::{self, SignableBody, SignableRequest, SigningSettings},
    sign::v4::SigningParams,
};
use jiff::Timestamp;
use machine_driver::{Code, Status};
use ring::digest;

use crate::credentials::Credentials;

/// The content type of a form.
pub const FORM: &str = "application/x-www-form-urlencoded; charset=utf-8";

/// A request that is signed.
#[derive(Clone, Copy, Debug)]
pub struct Form<'a> {
    /// The URL of the request.
    pub url: &'a str,
    /// The name of the service in signatures.
    pub service: &'a str,
    /// The region.
    pub region: &'a str,
    /// The body of the request.
    pub body: &'a str,
}

/// The names and values of the headers that sign a request at this time.
///
/// # Errors
/// `Unauthenticated` for credentials that no header can carry.
pub fn sign(form: Form<'_>, credentials: &Credentials, at: Timestamp) -> Result<Vec<(String, String)>, Status> {
    let Form { url, service, region, body } = form;
    let token = credentials.token.as_ref().map(|token| token.reveal().to_owned());
    let signer = Signer::new(&credentials.id, credentials.secret.reveal(), token, None, "mcm").into();
    let parameters = SigningParams::builder()
        .identity(&signer)
        .region(region)
        .name(service)
        .time(SystemTime::from(at))
        .settings(SigningSettings::default())
        .build()
        .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    // The crate gets a hash in place of the body, so that it can't log the body.
    let body = SignableBody::Precomputed(hash(body.as_bytes()));
    let request = SignableRequest::new("POST", url, [("content-type", FORM)].into_iter(), body);
    let signed = request
        .and_then(|request| http_request::sign(request, &parameters.into()))
        .map_err(|_| Status::new(Code::Unauthenticated, "the credentials hold characters that no request can carry"))?;
    let headers = signed.output().headers();
    Ok(headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// SHA-256 in hexadecimal digits.
pub fn hash(bytes: &[u8]) -> String {
    use std::fmt::Write;
    digest::digest(&digest::SHA256, bytes).as_ref().iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use cloud_client::Secret;
    use rstest::rstest;

    use super::*;

    /// The expected signatures were made with botocore for the same request and time.
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
            url: "https://ec2.eu-west-1.amazonaws.com/",
            service: "ec2",
            region: "eu-west-1",
            body: "Action=DescribeRegions&Version=2016-11-15",
        };
        let signed = sign(form, &credentials, "2015-08-30T12:36:00Z".parse().unwrap()).unwrap();
        let header = |name: &str| signed.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        assert_eq!(header("x-amz-date"), Some("20150830T123600Z"));
        assert_eq!(header("x-amz-security-token"), token);
        let begins = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/eu-west-1/ec2/aws4_request, SignedHeaders=";
        assert_eq!(header("authorization"), Some(format!("{begins}{ends}").as_str()));
    }

    #[test]
    fn a_token_that_no_header_can_carry_is_refused_and_not_in_the_message() {
        let credentials = Credentials {
            id: "AKIDEXAMPLE".to_owned(),
            secret: Secret::new("s"),
            token: Some(Secret::new("hunter2\r\nx: y")),
            expires: None,
        };
        let form = Form { url: "https://ec2.eu-west-1.amazonaws.com/", service: "ec2", region: "eu-west-1", body: "" };
        let refused = sign(form, &credentials, Timestamp::UNIX_EPOCH).unwrap_err();
        assert_eq!(refused.code, Code::Unauthenticated);
        assert!(!refused.message.contains("hunter2"), "{}", refused.message);
    }
}
