//! Tiers without BPF: T2 by reading `/proc` and memory, T1 with perf events for threads that run.

pub mod parse;
pub mod session;
pub mod thread;
pub mod watch;
