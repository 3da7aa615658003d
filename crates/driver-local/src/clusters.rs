//! The cluster with the pods of a class: the control cluster, or the cluster of a kubeconfig in the Secret of `credentialsSecretRef`.
//!
//! Users write the kubeconfig. So it may not name files or programs of the manager's host, and the connection is encrypted (decisions.md 60).

use std::sync::{Arc, Mutex, OnceLock};

use controller_runtime::{
    clients::{ClientSettings, Cluster, Purpose, Rate},
    lock,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use machine_driver::{Code, MachineClass, SecretData, Status};

use crate::{rules::Home, secret::KUBECONFIG};

/// The rate of requests to each cluster of a kubeconfig (spec/providers §2.2).
const RATE: Rate = Rate { qps: 20.0, burst: 40 };
/// The number of clusters whose clients are kept. Rotated credentials make new clients.
const KEPT: usize = 16;

/// The client of the control cluster. Clones share it, so that a driver can be made before the client.
#[derive(Clone, Default)]
pub struct ControlCluster(Arc<OnceLock<kube::Client>>);

impl ControlCluster {
    /// Sets the client. Later calls have no effect.
    pub fn set(&self, client: kube::Client) {
        // An earlier client is one of the same cluster.
        let _ = self.0.set(client);
    }
}

/// The clients of all clusters with pods.
pub struct Clusters {
    control: ControlCluster,
    /// The clients by their kubeconfigs, the oldest first.
    known: Mutex<Vec<(Vec<u8>, kube::Client)>>,
}

impl Clusters {
    /// The control cluster, and any others.
    pub fn new(control: ControlCluster) -> Self {
        Self { control, known: Mutex::default() }
    }

    /// The client for the pods of a class.
    ///
    /// # Errors
    /// `InvalidArgument` without a usable kubeconfig; `FailedPrecondition` if this process does not know the control cluster.
    pub async fn of(&self, class: &MachineClass, secret: &SecretData) -> Result<kube::Client, Status> {
        if let Home::Control(_) = Home::of(class) {
            return self.control.0.get().cloned().ok_or_else(|| {
                let message = "this process knows no control cluster: set credentialsSecretRef of the class to a Secret with a kubeconfig";
                Status::new(Code::FailedPrecondition, message)
            });
        }
        let Some(text) = secret.get(KUBECONFIG).filter(|text| !text.is_empty()) else {
            return Err(refused("no kubeconfig found in provider secret"));
        };
        let known = lock(&self.known).iter().find(|(known, _)| known == text).map(|(_, client)| client.clone());
        if let Some(client) = known {
            return Ok(client);
        }
        let client = connect(text).await?;
        let mut known = lock(&self.known);
        if known.len() >= KEPT {
            known.remove(0);
        }
        known.push((text.to_vec(), client.clone()));
        Ok(client)
    }
}

fn refused(message: &str) -> Status {
    Status::new(Code::InvalidArgument, message)
}

/// A client for the cluster of a kubeconfig. It connects at the first request.
async fn connect(text: &[u8]) -> Result<kube::Client, Status> {
    // The errors of the parser are not shown, because they may quote credentials.
    let unreadable = || refused("the kubeconfig in the provider secret is not readable");
    let text = std::str::from_utf8(text).map_err(|_| unreadable())?;
    let kubeconfig = Kubeconfig::from_yaml(text).map_err(|_| unreadable())?;
    harmless(&kubeconfig).map_err(|problem| refused(&format!("the kubeconfig in the provider secret {problem}")))?;
    let unusable = || {
        refused("the kubeconfig in the provider secret is not usable: check its current context, certificates and keys")
    };
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|_| unusable())?;
    config.default_retry = false;
    // Proxies in the environment are for the requests to clouds.
    config.proxy_url = None;
    let settings = ClientSettings { rate: RATE, observer: None };
    let cluster = Cluster::connect(&config, &settings).map_err(|_| unusable())?;
    Ok(cluster.client(Purpose::MachinePods))
}

/// Checks that a kubeconfig starts no program, reads no file and sends no credentials in clear text.
fn harmless(kubeconfig: &Kubeconfig) -> Result<(), String> {
    for user in kubeconfig.auth_infos.iter().filter_map(|named| named.auth_info.as_ref()) {
        let forbidden = [
            ("exec", user.exec.is_some()),
            ("auth-provider", user.auth_provider.is_some()),
            ("tokenFile", user.token_file.is_some()),
            ("client-certificate", user.client_certificate.is_some()),
            ("client-key", user.client_key.is_some()),
        ];
        if let Some((field, _)) = forbidden.into_iter().find(|(_, is_there)| *is_there) {
            return Err(format!(
                "has a user with {field}: only token, client-certificate-data and client-key-data are allowed"
            ));
        }
    }
    for cluster in kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref()) {
        if cluster.certificate_authority.is_some() {
            return Err("has a cluster with certificate-authority: use certificate-authority-data".to_owned());
        }
        if cluster.proxy_url.is_some() {
            return Err("has a cluster with proxy-url, which is not supported".to_owned());
        }
        if !cluster.server.as_deref().is_some_and(|server| server.starts_with("https://")) {
            return Err("has a cluster whose server does not begin with https://".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{{cluster}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    const SERVER: &str = "server: 'https://127.0.0.1:1'";

    #[rstest]
    #[case::exec(
        SERVER,
        "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh}",
        "has a user with exec"
    )]
    #[case::a_provider(SERVER, "auth-provider: {name: gcp, config: {}}", "has a user with auth-provider")]
    #[case::a_token_file(
        SERVER,
        "tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token",
        "has a user with tokenFile"
    )]
    #[case::a_certificate_file(SERVER, "client-certificate: /etc/passwd", "has a user with client-certificate")]
    #[case::a_key_file(SERVER, "client-key: /etc/passwd", "has a user with client-key")]
    #[case::an_authority_file(
        "server: 'https://127.0.0.1:1', certificate-authority: /etc/passwd",
        "token: t",
        "has a cluster with certificate-authority"
    )]
    #[case::a_proxy(
        "server: 'https://127.0.0.1:1', proxy-url: 'http://127.0.0.1:2'",
        "token: t",
        "has a cluster with proxy-url"
    )]
    #[case::clear_text(
        "server: 'http://127.0.0.1:1'",
        "token: t",
        "has a cluster whose server does not begin with https://"
    )]
    #[case::no_server("", "token: t", "has a cluster whose server does not begin with https://")]
    fn a_kubeconfig_is_refused(#[case] cluster: &str, #[case] user: &str, #[case] begins: &str) {
        let problem = harmless(&Kubeconfig::from_yaml(&kubeconfig(cluster, user)).unwrap()).unwrap_err();
        assert!(problem.starts_with(begins), "{problem}");
    }

    fn class(elsewhere: bool) -> MachineClass {
        MachineClass { credentials_secret_ref: elsewhere.then(Default::default), ..MachineClass::default() }
    }

    fn secret(kubeconfig: &str) -> SecretData {
        let mut secret = SecretData::default();
        secret.set(KUBECONFIG, kubeconfig.as_bytes().to_vec());
        secret
    }

    #[rstest]
    #[case::no_key(SecretData::default(), "no kubeconfig found in provider secret")]
    #[case::an_empty_key(secret(""), "no kubeconfig found in provider secret")]
    #[case::no_yaml(
        secret("users: [{name: u, user: {token: top-secret\n"),
        "the kubeconfig in the provider secret is not readable"
    )]
    #[case::no_context(
        secret("current-context: x\n"),
        "the kubeconfig in the provider secret is not usable: check its current context, certificates and keys"
    )]
    #[tokio::test]
    async fn a_secret_has_no_usable_kubeconfig(#[case] secret: SecretData, #[case] message: &str) {
        let refused = Clusters::new(ControlCluster::default()).of(&class(true), &secret).await.err().unwrap();
        assert_eq!((refused.code, refused.message.as_str()), (Code::InvalidArgument, message));
    }

    #[tokio::test]
    async fn a_client_is_kept_until_its_kubeconfig_changes() {
        let clusters = Clusters::new(ControlCluster::default());
        for number in 0..2 {
            for _ in 0..2 {
                let text = kubeconfig(SERVER, &format!("token: t-{number}"));
                clusters.of(&class(true), &secret(&text)).await.unwrap();
            }
        }
        assert_eq!(lock(&clusters.known).len(), 2);
        for number in 2..40 {
            let text = kubeconfig(SERVER, &format!("token: t-{number}"));
            clusters.of(&class(true), &secret(&text)).await.unwrap();
        }
        assert_eq!(lock(&clusters.known).len(), KEPT);
    }

    #[tokio::test]
    async fn without_credentials_the_control_cluster_is_used_and_never_the_kubeconfig_of_another_secret() {
        let clusters = Clusters::new(ControlCluster::default());
        let secret = secret(&kubeconfig(SERVER, "token: t"));
        let refused = clusters.of(&class(false), &secret).await.err().unwrap();
        assert_eq!(refused.code, Code::FailedPrecondition);
        assert!(lock(&clusters.known).is_empty());
    }
}
