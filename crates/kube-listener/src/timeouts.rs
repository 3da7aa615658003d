//! Timeouts of a stream: a client that reads nothing for a while is disconnected, so that answers do not fill the memory. A client whose request has
//! begun and does not arrive is disconnected too.
//!
//! Source: spec/extension-apiserver §8 (TH-07, TH-09, TH-11).

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep, sleep_until},
};

use super::activity::Activity;

/// A stream that fails when a write makes no progress for too long, when the head of a request is not complete in time, or when the client sends too
/// many bytes that are no request.
pub(super) struct TimeoutStream<I> {
    stream: I,
    activity: Activity,
    write_timeout: Duration,
    /// Set while a write waits.
    write_timer: Option<Pin<Box<Sleep>>>,
    /// Set while a head is being received.
    head_timer: Option<Pin<Box<Sleep>>>,
}

impl<I> TimeoutStream<I> {
    pub(super) fn new(stream: I, write_timeout: Duration, activity: Activity) -> Self {
        Self { stream, activity, write_timeout, write_timer: None, head_timer: None }
    }

    /// The result of a write, or the timeout.
    fn check_write<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_timer = None;
            return written;
        }
        let timeout = self.write_timeout;
        let timer = self.write_timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        if timer.deadline() <= Instant::now() || timer.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")));
        }
        Poll::Pending
    }

    /// Fails when the deadline of a head has passed.
    fn check_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(deadline) = self.activity.head_deadline() else {
            self.head_timer = None;
            return Poll::Pending;
        };
        let timer = self.head_timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        if deadline <= Instant::now() || timer.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the head of a request did not come in time",
            )));
        }
        Poll::Pending
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for TimeoutStream<I> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, into) {
            Poll::Ready(Ok(())) => Poll::Ready(self.activity.receive(into.filled().len().saturating_sub(before))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.check_head(context),
        }
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_write(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.check_write(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.check_write(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.check_write(context, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::{super::activity::Protocol, *};
    use crate::ConnectionLimits;

    #[tokio::test(start_paused = true)]
    async fn th_07_a_slow_head_times_out() {
        let (ours, mut theirs) = duplex(16);
        let activity = Activity::new(ConnectionLimits::default());
        activity.start(Protocol::Http1);
        let began = Instant::now();
        let mut ours = TimeoutStream::new(ours, Duration::from_secs(60), activity);
        let sending = async {
            while theirs.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(9)).await;
            }
        };
        let mut received = Vec::new();
        tokio::select! {
            read = ours.read_to_end(&mut received) => assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut),
            () = sending => unreachable!("our end is open"),
        }
        assert_eq!((received.len(), began.elapsed().as_secs()), (2, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn th_09_a_client_that_does_not_read_is_disconnected() {
        let (ours, _theirs) = duplex(16);
        let began = Instant::now();
        let failed = TimeoutStream::new(ours, Duration::from_secs(60), Activity::new(ConnectionLimits::default()))
            .write_all(&[0; 64])
            .await
            .unwrap_err();
        assert_eq!((failed.kind(), began.elapsed().as_secs()), (io::ErrorKind::TimedOut, 60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_is_not_disconnected() {
        let (ours, mut theirs) = duplex(16);
        let mut ours = TimeoutStream::new(ours, Duration::from_secs(60), Activity::new(ConnectionLimits::default()));
        let reading = async {
            let mut bytes = [0; 8];
            for _ in 0..8 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                theirs.read_exact(&mut bytes).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(ours.write_all(&[0; 64]), reading);
        assert!(written.is_ok());
    }
}
