//! The cost of a permit within one process, compared with tokio's semaphore, tokio's mutex and `tower::limit`.
//!
//! ```text
//! cargo bench -p tower-permit-benches --bench overhead
//! ```

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_permit::{Coordinator, DistributedConcurrencyLimitLayer, Memory};

const LIMIT: u32 = 64;

fn semaphores(c: &mut Criterion) {
    let runtime = runtime();
    let mut group = c.benchmark_group("semaphore, acquire and release");
    group.bench_function("tokio", |b| {
        let semaphore = Arc::new(tokio::sync::Semaphore::new(LIMIT as usize));
        // Owned, as the permits of this crate are.
        b.to_async(&runtime)
            .iter(|| async { drop(black_box(Arc::clone(&semaphore).acquire_owned().await)) });
    });
    group.bench_function("tower-permit, memory", |b| {
        let permits = Coordinator::new(Memory::new());
        let semaphore = permits.semaphore("bench", LIMIT).expect("a valid limit");
        b.to_async(&runtime)
            .iter(|| async { drop(black_box(semaphore.acquire().await)) });
    });
    group.finish();
}

fn mutexes(c: &mut Criterion) {
    let runtime = runtime();
    let mut group = c.benchmark_group("mutex, lock and unlock");
    group.bench_function("tokio", |b| {
        let mutex = Arc::new(tokio::sync::Mutex::new(()));
        b.to_async(&runtime)
            .iter(|| async { drop(black_box(Arc::clone(&mutex).lock_owned().await)) });
    });
    group.bench_function("tower-permit, memory", |b| {
        let permits = Coordinator::new(Memory::new());
        let mutex = permits.mutex("bench").expect("a valid name");
        b.to_async(&runtime)
            .iter(|| async { drop(black_box(mutex.lock().await)) });
    });
    group.finish();
}

fn layers(c: &mut Criterion) {
    let runtime = runtime();
    let inner = service_fn(|request: u64| async move { Ok::<_, Infallible>(request) });
    let mut group = c.benchmark_group("layer, one request");
    group.bench_function("no limit", |b| request(b, &runtime, inner));
    group.bench_function("tower::limit", |b| {
        request(
            b,
            &runtime,
            ConcurrencyLimitLayer::new(LIMIT as usize).layer(inner),
        );
    });
    group.bench_function("tower-permit, memory", |b| {
        let permits = Coordinator::new(Memory::new());
        let semaphore = permits.semaphore("bench", LIMIT).expect("a valid limit");
        let layer = DistributedConcurrencyLimitLayer::new(semaphore).release_at_response();
        request(b, &runtime, layer.layer(inner));
    });
    group.finish();
}

/// Sends one request after another, each through a clone of the service, as a server does.
fn request<S>(b: &mut criterion::Bencher<'_>, runtime: &tokio::runtime::Runtime, service: S)
where
    S: Service<u64, Response = u64> + Clone,
    S::Error: std::fmt::Debug,
{
    b.to_async(runtime).iter_batched(
        || service.clone(),
        |mut service| async move {
            let service = service.ready().await.expect("ready");
            service.call(black_box(1)).await.expect("an answer")
        },
        BatchSize::SmallInput,
    );
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

criterion_group!(benches, semaphores, mutexes, layers);
criterion_main!(benches);
