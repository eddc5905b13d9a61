//! The profiler's hot path.

pub mod blocked;
pub mod calls;
pub mod clock;
pub mod code;
pub mod elf;
pub mod hostile;
pub mod image;
pub mod kernel;
pub mod look;
pub mod maps;
pub mod memory;
pub mod own_cost;
pub mod perf;
pub mod processes;
pub mod procfs;
pub mod profile;
#[cfg(feature = "python")]
mod py;
pub mod python;
pub mod quality;
pub mod ranges;
pub mod recording;
pub mod ring;
pub mod sample;
pub mod session;
pub mod signals;
pub mod splice;
pub mod stacks;
pub mod symbols;
pub mod table;
pub mod target;
pub mod threads;
pub mod unwind;
pub mod world;
