//! The profiler's hot path.

pub mod memory;
pub mod python;
pub mod sample;
pub mod target;
