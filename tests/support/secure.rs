//! A caller on the TLS port that writes what it likes.

use std::time::Duration;

use rustls::ClientConnection;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::client::TlsStream;

use super::trusting;

/// An HTTP/1.1 connection that trusts anybody: what is tested through it is not the certificate.
pub struct SecureConnection(TlsStream<TcpStream>);

impl SecureConnection {
    /// Connects to a port of loopback.
    pub async fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connections are accepted");
        Self(
            timeout(Duration::from_secs(30), trusting::connect(stream))
                .await
                .expect("a handshake in time")
                .expect("a handshake"),
        )
    }

    /// The first bytes of a handshake.
    pub fn client_hello() -> Vec<u8> {
        let mut hello = Vec::new();
        let mut connection = ClientConnection::new(trusting::config(), trusting::name()).expect("a client");
        connection.write_tls(&mut hello).expect("into memory");
        hello
    }

    /// Sends without waiting for an answer.
    pub async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("it is sent");
        self.0.flush().await.expect("it is sent");
    }

    /// Sends and reads one answer, head and body; what came so far if the server closes.
    pub async fn exchange(&mut self, request: &[u8], patience: Duration) -> String {
        // A server that refuses a body need not read it.
        let mut answer = Vec::new();
        let (mut reader, mut writer) = tokio::io::split(&mut self.0);
        let writing = async {
            let _ = writer.write_all(request).await;
            let _ = writer.flush().await;
            std::future::pending::<()>().await;
        };
        let reading = async {
            loop {
                if is_whole(&answer) || reader.read_buf(&mut answer).await.unwrap_or(0) == 0 {
                    return;
                }
            }
        };
        let exchange = async {
            tokio::select! {
                () = writing => {}
                () = reading => {}
            }
        };
        assert!(timeout(patience, exchange).await.is_ok(), "no answer within {patience:?}");
        String::from_utf8_lossy(&answer).into_owned()
    }
}

fn is_whole(answer: &[u8]) -> bool {
    let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
    answer.len() >= head + 4 + length.unwrap_or(0)
}
