//! Coordinators with the mode of this test run: `STRICT_FIFO=on` disables hand-off, so that every released permit returns
//! to the backend's queue.

use tower_permit::{Backend, Coordinator, CoordinatorBuilder};

pub fn builder<B: Backend>(backend: B) -> CoordinatorBuilder<B> {
    let strict = std::env::var_os("STRICT_FIFO").is_some_and(|mode| mode == "on");
    Coordinator::builder(backend).strict_fifo(strict)
}

pub fn coordinator(backend: impl Backend) -> Coordinator {
    builder(backend).build().expect("valid settings")
}
