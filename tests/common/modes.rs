//! Coordinators with the settings that all tests of a run share: `SHORT_CUTS=off` sends every permit back to the queue.

use tower_permit::{Backend, Coordinator, CoordinatorBuilder};

pub fn builder<B: Backend>(backend: B) -> CoordinatorBuilder<B> {
    let off = std::env::var_os("SHORT_CUTS").is_some_and(|choice| choice == "off");
    Coordinator::builder(backend).strict_fifo(off)
}

pub fn coordinator(backend: impl Backend) -> Coordinator {
    builder(backend).build().expect("fine settings")
}
