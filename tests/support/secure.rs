//! A client of the TLS port that can send any bytes.

use std::time::Duration;

use rustls::ClientConnection;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::client::TlsStream;

use super::trusting;

/// An HTTP/1.1 connection that trusts any certificate. The tests that use it do not test certificates.
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

    /// Sends a request and reads one answer with head and body. If the server closes the connection, returns the bytes so far.
    pub async fn exchange(&mut self, request: &[u8], deadline: Duration) -> String {
        // The answer is read while the request is sent, because a server that refuses a body may not read it.
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
        assert!(timeout(deadline, exchange).await.is_ok(), "no answer within {deadline:?}");
        String::from_utf8_lossy(&answer).into_owned()
    }
}

fn is_whole(answer: &[u8]) -> bool {
    let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
    answer.len() >= head + 4 + length.unwrap_or(0)
}
