//! A connection whose other side must go on reading, and must have something to say: who reads nothing for a while is cut off, so
//! that answers don't pile up, and so is who sends and sends without ever asking for anything.
//!
//! Source: spec/extension-apiserver §8 (TH-09, TH-11).

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// Bytes that may come while no request is being answered. A connection that rests sends some frames in a minute, the rest of a
/// body that was refused is smaller, and the head of a request much smaller.
const IDLE_TALK: u64 = 1 << 20;

/// What is known of the requests of a connection. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Talk(Arc<Heard>);

#[derive(Debug, Default)]
struct Heard {
    /// Requests that are being answered.
    requests: AtomicUsize,
    /// Bytes that came while there was none.
    idle: AtomicU64,
}

impl Talk {
    /// A request is being answered until this is dropped.
    pub(super) fn request(&self) -> Asked {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        self.0.idle.store(0, Ordering::Relaxed);
        Asked(self.clone())
    }

    /// So many bytes have come.
    fn hears(&self, bytes: usize) -> io::Result<()> {
        if self.0.requests.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if self.0.idle.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > IDLE_TALK {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the other side sends and asks for nothing"));
        }
        Ok(())
    }
}

/// A request that is being answered.
pub(super) struct Asked(Talk);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream that fails when a write makes no progress for too long, or when too much comes that is no request.
pub(super) struct Patient<I> {
    stream: I,
    talk: Talk,
    patience: Duration,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<I> Patient<I> {
    pub(super) fn new(stream: I, patience: Duration, talk: Talk) -> Self {
        Self { stream, talk, patience, timer: None }
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
}

impl<I: AsyncRead + Unpin> AsyncRead for Patient<I> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if matches!(read, Poll::Ready(Ok(()))) {
            self.talk.hears(into.filled().len().saturating_sub(before))?;
        }
        read
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

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn th_09_who_does_not_read_is_cut_off() {
        let (ours, _theirs) = duplex(16);
        let began = Instant::now();
        let failed =
            Patient::new(ours, Duration::from_secs(60), Talk::default()).write_all(&[0; 64]).await.unwrap_err();
        assert_eq!((failed.kind(), began.elapsed().as_secs()), (io::ErrorKind::TimedOut, 60));
    }

    #[test]
    fn th_11_who_asks_for_nothing_may_say_so_much() {
        let talk = Talk::default();
        let most = usize::try_from(IDLE_TALK).unwrap();
        assert!(talk.hears(most).is_ok());
        let asked = talk.request();
        assert!(talk.hears(100 * most).is_ok(), "a body");
        drop(asked);
        assert!(talk.hears(most).is_ok() && talk.hears(1).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_is_waited_for() {
        let (ours, mut theirs) = duplex(16);
        let mut ours = Patient::new(ours, Duration::from_secs(60), Talk::default());
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
