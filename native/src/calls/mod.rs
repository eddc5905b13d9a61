//! Counts, times, bytes and memory of calls in running processes, by uprobes and tracepoints.
//!
//! [`Calls`] watches processes (and what they fork), looks for libraries that they load, probes what is wanted in them,
//! and takes probes off again that cost more than the budget. Every probe hangs on a file descriptor of this process:
//! when it ends, however it ends, the kernel takes all of them off.

mod attach;
mod bandwidth;
mod bpf;
mod budget;
mod catalogue;
mod cookie;
mod cost;
mod exits;
mod functions;
mod governor;
mod groups;
mod hits;
mod listeners;
mod memory;
mod memory_growth;
mod object;
mod probing;
#[cfg(feature = "python")]
pub mod python;
mod rdma;
mod rows;
mod runs;
mod served;
mod take;
mod wanted;
mod weights;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::elf::Elf;
use crate::maps::{self, CodeWatch, FileId};
use catalogue::GROUPS;
use cost::Cost;
use functions::FoundFunction;
use groups::Mark;
use hits::FIRST_FUNCTION;
use memory::CallSites;
use object::{CallKey, CallSum, CallsObject, Passed, SpanEvent};
pub use rows::{CallRow, CallRows, HeldRow, MomentRow, Resolver, SpanRow};
use served::{Served, ServerEvent};
pub use wanted::Wanted;

/// How many functions of a file any group wants.
pub(crate) fn functions_of(elf: &Elf) -> usize {
    let groups: Vec<_> = GROUPS.iter().collect();
    functions::find_in(elf, &groups).iter().map(Vec::len).sum()
}

/// What the kernel's program puts for a process that began another program.
const ANEW: u32 = 2;
/// What follows memory is worth little when it is cut: it goes when it costs too much for this many judgements in a row.
const MEMORY_STRIKES: u32 = 6;
/// And `malloc` when it was seen for long enough to tell what grows.
const MALLOC_STRIKES: u32 = 10;
const TCP: [&str; 3] = ["send", "receive", "retransmit"];
/// How often the kernel's list of processes is read where [`Calls::forked`] tells of new ones.
const LIST_EVERY: Duration = Duration::from_secs(1);
/// Probes of a group that are attached one by one where they cannot be attached together: each takes 50 ms to take off.
const SINGLE_MAX: usize = 128;

/// A probed function as it is shown.
struct Function {
    name: String,
    kind: &'static str,
    mark: Option<Mark>,
}

/// A group that has probes somewhere.
struct Active {
    /// One for each file; where probes are attached one by one, one for each function.
    sets: Vec<Set>,
    /// Which time its probes were put on (modulo 8): only those of the last time count.
    epoch: u8,
    /// Judgements in a row by which it costs too much.
    strikes: u32,
    since: Instant,
    /// Functions that cost too much.
    gone: FxHashSet<u32>,
    /// All of it is taken off, and stays so.
    off: bool,
}

/// Functions of a file, and their probes.
struct Set {
    /// Kept open: the way by which it was found may end with a process.
    file: File,
    /// Of one process only (0: of all): other programs must not pay for what follows every allocation and operator.
    owner: u32,
    functions: Vec<(u32, FoundFunction)>,
    links: Vec<OwnedFd>,
}

#[derive(Default)]
struct Process {
    code: CodeWatch,
    /// What is wanted was looked for in all that is mapped, as far as `code` knows.
    looked: bool,
}

/// Everything that is probed on behalf of one session.
pub struct Calls {
    kernel: CallsObject,
    wanted: Wanted,
    cost: Cost,
    active: BTreeMap<usize, Active>,
    links: Vec<OwnedFd>,
    processes: BTreeMap<u32, Process>,
    ended: Vec<u32>,
    /// Groups and the files in which they were looked for, in which process (0: in any).
    files: FxHashSet<(usize, FileId, u32)>,
    functions: Vec<Function>,
    numbers: FxHashMap<(String, &'static str), u32>,
    previous: FxHashMap<CallKey, CallSum>,
    spans: Vec<SpanRow>,
    spans_dropped: u64,
    lost: [u64; object::LOST.len()],
    memory: CallSites,
    served: Served,
    ports: BTreeMap<String, rdma::Port>,
    /// Memory that is not followed any more, and since when.
    cuts: Vec<(&'static str, u64)>,
    notes: Vec<String>,
    looked: Instant,
    listed: Instant,
    hears_forks: bool,
    list_now: bool,
    governed: Instant,
    runs: [(u64, u64); 4],
    /// Entries and exits of each function at the last judgement.
    hits: FxHashMap<u32, (u64, u64)>,
}

impl Calls {
    /// From here on every child of a watched process is told of by [`Calls::forked`]: they need not be looked for.
    pub fn hear_forks(&mut self) {
        self.hears_forks = true;
    }

    /// A watched process runs another program now: the kernel's list says which.
    pub fn execed(&mut self) {
        self.list_now = true;
    }

    pub fn forked(&mut self, pid: u32) {
        if self.wanted.follow {
            self.ended.retain(|&ended| ended != pid);
            self.processes.entry(pid).or_default();
        }
    }

    /// What was left out and why, one line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Nanoseconds of a hit on this machine: at a nop, emulated, stepped, with a return probe.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Groups with probes on: name and number of probes.
    pub fn probes(&self) -> Vec<(&'static str, usize)> {
        let on = self.active.iter().filter(|(_, a)| !a.off);
        on.map(|(&n, a)| (GROUPS[n].name, a.probes())).collect()
    }

    fn note(&mut self, line: String) {
        if !self.notes.contains(&line) {
            self.notes.push(line);
        }
    }

    fn drain(&mut self, resolver: &mut dyn Resolver) {
        let Calls {
            kernel,
            functions,
            memory,
            served,
            ..
        } = self;
        let mut told = Vec::new();
        let mut events = Vec::new();
        kernel.spans.drain(|record| {
            let Some(event) = object::read::<SpanEvent>(record) else {
                return;
            };
            let Some(function) = functions.get(event.function.wrapping_sub(FIRST_FUNCTION) as usize) else {
                return;
            };
            if let Some(mark) = function.mark {
                return events.push(ServerEvent::Mark(mark, event));
            }
            served.trains |= function.kind == "backward";
            told.push(SpanRow {
                pid: event.tgid,
                tid: event.tid,
                name: function.name.clone(),
                kind: function.kind,
                start_ns: event.start_ns,
                end_ns: event.end_ns,
                bytes: event.bytes,
            });
        });
        kernel
            .traffic
            .drain(|record| events.extend(object::read::<Passed>(record).map(ServerEvent::Passed)));
        told.extend(served.seen(events));
        kernel.stacks.drain(|record| memory.stack(record, resolver));
        let room = self.wanted.max_spans.saturating_sub(self.spans.len());
        self.spans_dropped += told.len().saturating_sub(room) as u64;
        self.spans.extend(told.into_iter().take(room));
    }

    /// The processes that are watched and live.
    pub fn watched(&self) -> Vec<u32> {
        self.processes.keys().copied().collect()
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        let mut links = std::mem::take(&mut self.links);
        links.extend(
            std::mem::take(&mut self.active)
                .into_values()
                .flat_map(|a| a.sets)
                .flat_map(|s| s.links),
        );
        bpf::take_off(links);
    }
}
