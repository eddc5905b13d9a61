//! Names of native and kernel functions.

pub mod debug;
mod kernel;
mod methods;
mod names;
mod perf_map;
mod plt;
pub mod roots;
mod table;

pub use kernel::KernelSymbols;
pub use methods::Methods;
pub use names::demangle;
pub use perf_map::PerfMap;
pub use plt::{is_stub_name, section_of as stubs_at, Stubs};
pub use table::{find_by_name, string_at, Symbol, Symbols};
