//! The options of the process for Azure: the endpoint, and the directories of token files.

use std::path::PathBuf;

use cloud_client::http::Uri;
use machine_driver::{Code, ErrorCodes, Status};

use crate::api::Cloud;

/// The options of the driver. They come from the operator of the process, never from a class or a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AzureOptions {
    /// The URL that replaces the endpoints of Azure Resource Manager and of Microsoft Entra, in all clouds.
    pub endpoint: Option<String>,
    /// The directories below which a Secret may name token files.
    pub identity_directories: Vec<PathBuf>,
    /// The set of codes for failures.
    pub codes: ErrorCodes,
}

/// The default directory for token files.
const IDENTITY_DIRECTORY: &str = "/var/run/secrets/";

impl Default for AzureOptions {
    fn default() -> Self {
        Self { endpoint: None, identity_directories: vec![IDENTITY_DIRECTORY.into()], codes: ErrorCodes::default() }
    }
}

impl AzureOptions {
    /// The endpoint of Azure Resource Manager, without a slash at its end.
    pub fn resource_manager(&self, cloud: Cloud) -> &str {
        self.or_else(cloud.resource_manager())
    }

    /// The URL of a path of Azure Resource Manager. The caller has checked all parts of the path.
    ///
    /// # Errors
    /// `FailedPrecondition` if the endpoint in the configuration is no URL.
    pub fn url(&self, cloud: Cloud, path: &str) -> Result<Uri, Status> {
        url(self.resource_manager(cloud), path)
    }

    /// The URL of a path of Microsoft Entra.
    ///
    /// # Errors
    /// As [`Self::url`].
    pub fn login_url(&self, cloud: Cloud, path: &str) -> Result<Uri, Status> {
        url(self.or_else(cloud.login()), path)
    }

    /// A URL in an answer of Azure Resource Manager, if it has the scheme and the host of the endpoint. A token must not be sent to another host.
    pub fn followed(&self, cloud: Cloud, url: &str) -> Option<Uri> {
        let endpoint: Uri = self.resource_manager(cloud).parse().ok()?;
        let url: Uri = url.trim().parse().ok()?;
        let is_same_host = url.scheme() == endpoint.scheme() && url.authority() == endpoint.authority();
        (is_same_host && url.path().starts_with(endpoint.path().trim_end_matches('/'))).then_some(url)
    }

    fn or_else(&self, of_cloud: &'static str) -> &str {
        self.endpoint.as_deref().map_or(of_cloud, |endpoint| endpoint.trim_end_matches('/'))
    }
}

fn url(endpoint: &str, path: &str) -> Result<Uri, Status> {
    format!("{endpoint}{path}")
        .parse()
        .map_err(|_| Status::new(Code::FailedPrecondition, "the endpoint of the configuration for Azure is no URL"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn one_endpoint_replaces_those_of_all_clouds() {
        let real = AzureOptions::default();
        let shown = |url: Result<Uri, Status>| url.unwrap().to_string();
        assert_eq!(shown(real.url(Cloud::China, "/x?y=z")), "https://management.chinacloudapi.cn/x?y=z");
        assert_eq!(shown(real.login_url(Cloud::Government, "/t")), "https://login.microsoftonline.us/t");
        let other = AzureOptions { endpoint: Some("http://127.0.0.1:1/".to_owned()), ..real };
        assert_eq!(shown(other.url(Cloud::China, "/x")), "http://127.0.0.1:1/x");
        assert_eq!(shown(other.login_url(Cloud::Public, "/t")), "http://127.0.0.1:1/t");
    }

    #[rstest]
    #[case::the_same_host("https://management.azure.com/subscriptions/s/op?t=1", true)]
    #[case::in_another_case("https://Management.Azure.com/op", true)]
    #[case::without_tls("http://management.azure.com/op", false)]
    #[case::another_host("https://management.azure.com.example.org/op", false)]
    #[case::another_port("https://management.azure.com:444/op", false)]
    #[case::a_user("https://management.azure.com@example.org/op", false)]
    #[case::a_path("/subscriptions/s/op", false)]
    #[case::nothing("", false)]
    fn only_urls_of_the_endpoint_are_followed(#[case] url: &str, #[case] expected: bool) {
        assert_eq!(AzureOptions::default().followed(Cloud::Public, url).is_some(), expected);
    }
}
