//! What is asked of a look, and what it gives.

use crate::calls::CallRows;
use crate::processes::ProcessRow;
use crate::quality::ProfileQuality;
use crate::table::{Rows, ThreadKey};
use crate::threads::ThreadRow;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub hz: u32,
    pub off_cpu: bool,
    pub follow: bool,
}

/// What came since the last take.
pub struct Profile {
    pub start_ns: u64,
    pub end_ns: u64,
    pub rows: Rows,
    pub threads: Vec<(ThreadKey, ThreadRow)>,
    pub processes: Vec<ProcessRow>,
    /// Calls, spans and memory, with the numbers of their stacks as in `rows`.
    pub calls: CallRows,
    pub quality: ProfileQuality,
}
