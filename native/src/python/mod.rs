//! CPython 3.11 to 3.14 from outside.

mod code;
mod config;
mod layout;
mod lines;
mod threads;

pub use code::Codes;
pub use config::PyConfig;
pub use layout::Layout;
pub use lines::line_at;
pub use threads::{find_thread, frames, is_running, is_thread, WantedThread};
