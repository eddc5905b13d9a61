//! What comes out: rows of `Profile.calls`, `Profile.spans` and `Profile.memory`; and what is needed of others for it.

use crate::python::PyConfig;
use crate::sample::RawSample;

/// Turns what was seen of a thread into the number of a stack, and knows the processes' Python.
pub trait Resolver {
    fn stack(&mut self, sample: &RawSample<'_>) -> u32;
    /// The stack of what has no known place.
    fn unknown(&mut self) -> u32;
    fn python(&mut self, pid: u32) -> Option<PyConfig>;
}

/// A row of `Profile.calls`: what came since the last look.
#[derive(Clone, Debug, PartialEq)]
pub struct CallRow {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    pub kind: &'static str,
    pub count: u64,
    /// Of the calls whose end was seen.
    pub ns: Option<u64>,
    pub bytes: u64,
}

/// A row of `Profile.spans`.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanRow {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    pub kind: &'static str,
    pub start_ns: u64,
    pub end_ns: u64,
    pub bytes: u64,
}

/// A row of `Profile.memory`: allocated since the last look, live now.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldRow {
    pub pid: u32,
    pub stack: u32,
    pub device: String,
    pub allocated_bytes: u64,
    pub allocations: u64,
    pub live_bytes: u64,
    pub live: u64,
}

/// A row of `Profile.moments`: what lived of a row of memory at a moment. Unchanged ones are left out.
#[derive(Clone, Debug, PartialEq)]
pub struct MomentRow {
    /// Its place in `CallRows.memory`.
    pub row: usize,
    pub time_ns: u64,
    pub live_bytes: u64,
    pub live: u64,
}

#[derive(Clone, Debug, Default)]
pub struct CallRows {
    pub calls: Vec<CallRow>,
    pub spans: Vec<SpanRow>,
    pub memory: Vec<HeldRow>,
    pub moments: Vec<MomentRow>,
    /// Groups of memory whose probes were taken off, and when.
    pub cuts: Vec<(&'static str, u64)>,
    pub spans_dropped: u64,
}
