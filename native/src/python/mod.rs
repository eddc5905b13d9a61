//! CPython 3.11 to 3.14 from outside.

mod config;

pub use config::PyConfig;
