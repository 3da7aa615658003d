//! The options of the process for Alibaba Cloud, and the addresses of its services.

use cloud_client::http::Uri;
use machine_driver::{Code, ErrorCodes, Status};

use crate::query::Query;

/// The options of the driver. They come from the operator of the process, never from a class or a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlicloudOptions {
    /// The URL that replaces the endpoints of all services in all regions.
    pub endpoint: Option<String>,
    /// The set of codes for failures.
    pub codes: ErrorCodes,
}

/// A service that the driver sends requests to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// The service of instances.
    Ecs,
    /// The service of identities.
    Sts,
}

impl Api {
    /// The name of the service in host names.
    const fn name(self) -> &'static str {
        match self {
            Self::Ecs => "ecs",
            Self::Sts => "sts",
        }
    }
}

impl AlicloudOptions {
    /// The URL of a request to a service in a region. The caller has checked that the region can be a part of a host name.
    ///
    /// # Errors
    /// `FailedPrecondition` if the endpoint in the configuration is no URL.
    pub fn url(&self, api: Api, region: &str, query: &Query) -> Result<Uri, Status> {
        let parameters = query.encoded();
        let url = match &self.endpoint {
            Some(endpoint) => format!("{}/?{parameters}", endpoint.trim_end_matches('/')),
            None => format!("https://{}.{region}.aliyuncs.com/?{parameters}", api.name()),
        };
        let no_url = || {
            let message =
                "the endpoint of the configuration for Alicloud is no URL, or the request is too long for one";
            Status::new(Code::FailedPrecondition, message)
        };
        url.parse().ok().filter(|url: &Uri| url.host().is_some()).ok_or_else(no_url)
    }
}

/// The host of a URL as the HTTP client sends it: with the port, unless it is the usual one of the scheme.
pub fn host(url: &Uri) -> String {
    let usual = if url.scheme_str() == Some("http") { 80 } else { 443 };
    let host = url.host().unwrap_or_default();
    match url.port_u16().filter(|port| *port != usual) {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn one_endpoint_replaces_those_of_all_services() {
        let mut query = Query::new("DescribeInstances", "2014-05-26");
        query.set("RegionId", "cn-x");
        let url = |options: &AlicloudOptions, api| options.url(api, "cn-x", &query).map(|url| url.to_string());
        let real = AlicloudOptions::default();
        assert_eq!(url(&real, Api::Ecs).unwrap(), "https://ecs.cn-x.aliyuncs.com/?RegionId=cn-x");
        assert_eq!(url(&real, Api::Sts).unwrap(), "https://sts.cn-x.aliyuncs.com/?RegionId=cn-x");
        let other = AlicloudOptions { endpoint: Some("http://127.0.0.1:1/".to_owned()), ..real };
        for api in [Api::Ecs, Api::Sts] {
            assert_eq!(url(&other, api).unwrap(), "http://127.0.0.1:1/?RegionId=cn-x");
        }
        let no_url = AlicloudOptions { endpoint: Some("nowhere".to_owned()), ..other };
        assert_eq!(url(&no_url, Api::Ecs).unwrap_err().code, Code::FailedPrecondition);
    }

    #[rstest]
    #[case("https://ecs.cn-x.aliyuncs.com/?a=b", "ecs.cn-x.aliyuncs.com")]
    #[case("https://h:443/", "h")]
    #[case("http://h:80/", "h")]
    #[case("http://127.0.0.1:8080/", "127.0.0.1:8080")]
    fn the_signed_host_is_the_one_that_is_sent(#[case] url: &str, #[case] expected: &str) {
        assert_eq!(host(&url.parse().unwrap()), expected);
    }
}
