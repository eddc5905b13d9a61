//! The profiler's hot path.

pub mod kernel;
pub mod memory;
pub mod python;
pub mod sample;
pub mod target;
