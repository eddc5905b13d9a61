//! The profiler's hot path.

pub mod blocked;
pub mod kernel;
pub mod memory;
pub mod processes;
#[cfg(feature = "python")]
mod py;
pub mod python;
pub mod quality;
pub mod sample;
pub mod session;
pub mod table;
pub mod target;
pub mod threads;
