//! Middleware.
