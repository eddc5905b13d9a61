//! Tiers without BPF: T2 by reading `/proc` and memory, T1 with perf events for threads that run.

mod agreed;
mod counts;
pub mod parse;
mod rights;
pub mod session;
pub mod thread;
pub mod watch;

pub use rights::refused;
