//! Shared by the tests: semaphores, counting wakers, and controlled inner services.

use crate::modes;
use bytes::Bytes;
use futures_util::task::noop_waker;
use http_body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
pub use test_support::witness::Witness;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tower::Service;
use tower_permit::{BoxError, Error, ErrorKind, Memory, Semaphore};

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A semaphore of a new coordinator.
pub fn semaphore(limit: u32) -> Semaphore {
    modes::coordinator(Memory::new())
        .semaphore("test", limit)
        .expect("a semaphore")
}

/// In paused time: lets every task run until all of them wait for something.
pub async fn settle() {
    tokio::time::sleep(millis(1)).await;
}

/// In paused time: whether a permit can be acquired without a wait for another holder.
pub async fn is_free(semaphore: &Semaphore) -> bool {
    tokio::time::timeout(millis(5), semaphore.acquire())
        .await
        .is_ok_and(|permit| permit.is_ok())
}

pub async fn ready<S: Service<Req>, Req>(service: &mut S) -> Result<(), S::Error> {
    poll_fn(|cx| service.poll_ready(cx)).await
}

pub fn poll_ready<S: Service<Req>, Req>(service: &mut S) -> Poll<Result<(), S::Error>> {
    service.poll_ready(&mut Context::from_waker(&noop_waker()))
}

/// Starts a wait in `poll_ready`, and returns whether it stays pending.
pub async fn stays_pending<S: Service<Req>, Req>(service: &mut S) -> bool {
    for _ in 0..3 {
        if poll_ready(service).is_ready() {
            return false;
        }
        settle().await;
    }
    true
}

/// The kind of a `tower_permit::Error`.
pub fn kind(error: &BoxError) -> ErrorKind {
    error
        .downcast_ref::<Error>()
        .unwrap_or_else(|| panic!("not a tower_permit::Error: {error:?}"))
        .kind()
}

/// A waker that counts its calls.
#[derive(Debug, Default)]
pub struct Wakes(AtomicUsize);

impl Wakes {
    pub fn new() -> (Arc<Self>, Waker) {
        let wakes = Arc::new(Self::default());
        (wakes.clone(), wakes.into())
    }

    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// An inner service that enforces the tower contract: it panics if it is called without being ready. Tests control its
/// readiness and the error of `poll_ready`.
#[derive(Debug)]
pub struct Strict<F> {
    answer: F,
    pub control: Arc<Control>,
    ready: bool,
}

#[derive(Debug, Default)]
pub struct Control {
    busy: AtomicBool,
    fail: AtomicBool,
    calls: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

impl<F> Strict<F> {
    pub fn new(answer: F) -> Self {
        Self {
            answer,
            control: Arc::default(),
            ready: false,
        }
    }
}

impl<F: Clone> Clone for Strict<F> {
    fn clone(&self) -> Self {
        Self {
            answer: self.answer.clone(),
            control: self.control.clone(),
            ready: false,
        }
    }
}

impl Control {
    pub fn busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().expect("lock").take() {
            waker.wake();
        }
    }

    pub fn fail(&self) {
        self.fail.store(true, Ordering::SeqCst);
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl<F, Fut, Req, Res> Service<Req> for Strict<F>
where
    F: FnMut(Req) -> Fut,
    Fut: Future<Output = Result<Res, Boom>>,
{
    type Response = Res;
    type Error = Boom;
    type Future = Fut;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Boom>> {
        if self.control.fail.load(Ordering::SeqCst) {
            return Poll::Ready(Err(Boom("not ready, ever")));
        }
        if self.control.busy.load(Ordering::SeqCst) {
            self.ready = false;
            *self.control.waker.lock().expect("lock") = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        assert!(self.ready, "called without being ready");
        self.ready = false;
        self.control.calls.fetch_add(1, Ordering::SeqCst);
        (self.answer)(request)
    }
}

/// The error of the inner service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boom(pub &'static str);

impl std::fmt::Display for Boom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Boom {}

/// An inner service that responds with its request.
pub fn echo()
-> Strict<impl Fn(&'static str) -> std::future::Ready<Result<&'static str, Boom>> + Clone> {
    Strict::new(|request| std::future::ready(Ok(request)))
}

/// Starts an axum server on a free port, and returns its address.
pub async fn serve(app: axum::Router) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// A service that responds to one request, with this body.
pub fn one_body<B: Body + Send + 'static>(
    body: B,
) -> impl Service<
    http::Request<()>,
    Response = http::Response<B>,
    Error = Infallible,
    Future = std::future::Ready<Result<http::Response<B>, Infallible>>,
> + Clone
+ Send
+ 'static {
    let body = Arc::new(Mutex::new(Some(body)));
    bodies(move || {
        let body = body.lock().expect("no panic").take();
        body.expect("one request")
    })
}

/// A service that responds with a new body to each request.
pub fn bodies<B: Body + Send + 'static>(
    mut next: impl FnMut() -> B + Clone + Send + 'static,
) -> impl Service<
    http::Request<()>,
    Response = http::Response<B>,
    Error = Infallible,
    Future = std::future::Ready<Result<http::Response<B>, Infallible>>,
> + Clone
+ Send
+ 'static {
    tower::service_fn(move |_| std::future::ready(Ok(http::Response::new(next()))))
}

/// A body of the frames that the test sends.
#[derive(Debug)]
pub struct Fed {
    frames: mpsc::UnboundedReceiver<Result<Frame<Bytes>, Boom>>,
    /// The lower and the upper bound of its length.
    pub hint: (u64, Option<u64>),
    /// Reports the end together with the last frame.
    ends: Arc<AtomicBool>,
}

#[derive(Clone, Debug)]
pub struct Feed {
    frames: mpsc::UnboundedSender<Result<Frame<Bytes>, Boom>>,
    ends: Arc<AtomicBool>,
}

pub fn fed() -> (Feed, Fed) {
    let (sender, frames) = mpsc::unbounded_channel();
    let ends = Arc::new(AtomicBool::new(false));
    (
        Feed {
            frames: sender,
            ends: ends.clone(),
        },
        Fed {
            frames,
            hint: (0, None),
            ends,
        },
    )
}

impl Feed {
    pub fn data(&self, data: &'static str) {
        self.send(Ok(Frame::data(Bytes::from(data))));
    }

    pub fn send(&self, frame: Result<Frame<Bytes>, Boom>) {
        self.frames.send(frame).expect("the body is there");
    }

    /// `is_end_stream` is true from now on.
    pub fn end_stream(&self) {
        self.ends.store(true, Ordering::SeqCst);
    }
}

impl Body for Fed {
    type Data = Bytes;
    type Error = Boom;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Boom>>> {
        self.frames.poll_recv(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.ends.load(Ordering::SeqCst) && self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.hint.0);
        if let Some(upper) = self.hint.1 {
            hint.set_upper(upper);
        }
        hint
    }
}
