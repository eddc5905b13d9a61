//! Names of native and kernel functions.

mod kernel;
mod names;
mod perf_map;
mod table;

pub use kernel::KernelSymbols;
pub use names::demangle;
pub use perf_map::PerfMap;
pub use table::{find_by_name, string_at, Symbol, Symbols};
