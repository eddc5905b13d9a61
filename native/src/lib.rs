//! The profiler's hot path.

pub mod code;
pub mod elf;
pub mod hostile;
pub mod image;
pub mod maps;
pub mod memory;
pub mod python;
pub mod recording;
pub mod sample;
pub mod splice;
pub mod symbols;
pub mod target;
pub mod unwind;
pub mod world;
