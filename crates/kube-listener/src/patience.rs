//! A connection whose other side must go on reading, and must come to say what it wants: who reads nothing for a while is cut off,
//! so that answers don't pile up, and so is whose request has begun and does not arrive.
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

use super::talk::Talk;

/// A stream that fails when a write makes no progress for too long, when the head of a request does not come to its end, or when
/// too much comes that is no request.
pub(super) struct Patient<I> {
    stream: I,
    talk: Talk,
    patience: Duration,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
    /// Runs while a head is under way.
    head_timer: Option<Pin<Box<Sleep>>>,
}

impl<I> Patient<I> {
    pub(super) fn new(stream: I, patience: Duration, talk: Talk) -> Self {
        Self { stream, talk, patience, timer: None, head_timer: None }
    }

    /// What a write came to, or the end of patience.
    fn judge<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let patience = self.patience;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(patience)));
        if timer.deadline() <= Instant::now() || timer.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other side does not read")));
        }
        Poll::Pending
    }

    /// Waits for the rest of a head, or not any more.
    fn wait_for_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(ends) = self.talk.head_ends() else {
            self.head_timer = None;
            return Poll::Pending;
        };
        let timer = self.head_timer.get_or_insert_with(|| Box::pin(sleep_until(ends)));
        if timer.deadline() != ends {
            timer.as_mut().reset(ends);
        }
        if ends <= Instant::now() || timer.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the head of a request did not come in time",
            )));
        }
        Poll::Pending
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Patient<I> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, into) {
            Poll::Ready(Ok(())) => Poll::Ready(self.talk.hears(into.filled().len().saturating_sub(before))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.wait_for_head(context),
        }
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Patient<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.judge(context, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::{super::talk::Protocol, *};
    use crate::ConnectionLimits;

    #[tokio::test(start_paused = true)]
    async fn th_07_a_head_that_trickles_is_given_up_in_time() {
        let (ours, mut theirs) = duplex(16);
        let talk = Talk::new(ConnectionLimits::default());
        talk.begins(Protocol::Http1);
        let began = Instant::now();
        let mut ours = Patient::new(ours, Duration::from_secs(60), talk);
        let sending = async {
            while theirs.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(9)).await;
            }
        };
        let mut heard = Vec::new();
        tokio::select! {
            read = ours.read_to_end(&mut heard) => assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut),
            () = sending => unreachable!("our end is open"),
        }
        assert_eq!((heard.len(), began.elapsed().as_secs()), (2, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn th_09_who_does_not_read_is_cut_off() {
        let (ours, _theirs) = duplex(16);
        let began = Instant::now();
        let failed = Patient::new(ours, Duration::from_secs(60), Talk::new(ConnectionLimits::default()))
            .write_all(&[0; 64])
            .await
            .unwrap_err();
        assert_eq!((failed.kind(), began.elapsed().as_secs()), (io::ErrorKind::TimedOut, 60));
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_is_waited_for() {
        let (ours, mut theirs) = duplex(16);
        let mut ours = Patient::new(ours, Duration::from_secs(60), Talk::new(ConnectionLimits::default()));
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
