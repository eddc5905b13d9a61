//! Counts, times, bytes and memory of calls in running processes, by uprobes and tracepoints.
//!
//! [`Calls`] watches processes (and what they fork), looks for libraries that they load, probes what is wanted in them,
//! and takes probes off again that cost more than the budget. Every probe hangs on a file descriptor of this process:
//! when it ends, however it ends, the kernel takes all of them off.

mod bandwidth;
mod bpf;
mod catalogue;
mod cookie;
mod cost;
mod exits;
mod functions;
mod govern;
mod governing;
mod groups;
mod hits;
mod kernel;
mod listeners;
mod memory;
mod memory_growth;
mod probing;
#[cfg(feature = "python")]
pub mod python;
mod rdma;
mod ring;
mod rows;
mod runs;
mod served;
mod taking;
mod wanted;
mod weights;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::elf::Elf;
use crate::maps::{self, CodeWatch, FileId};
use catalogue::GROUPS;
use cost::Cost;
use functions::Found;
use groups::Mark;
use kernel::{CallKey, CallSum, Kernel, Passed, SpanEvent};
use memory::Memory;
pub use rows::{CallRow, HeldRow, MomentRow, Resolver, Rows, SpanRow};
use served::{Event, Served};
pub use wanted::Wanted;

/// How many functions of a file any group wants.
pub(crate) fn functions_of(elf: &Elf) -> usize {
    let groups: Vec<_> = GROUPS.iter().collect();
    functions::find_in(elf, &groups).iter().map(Vec::len).sum()
}

/// Number of the first function that is not the kernel object's own (TCP, files).
const FIRST_FUNCTION: u32 = 256;
/// What the kernel's program puts for a process that began another program.
const ANEW: u32 = 2;
/// What follows memory is worth little when it is cut: it goes when it costs too much for this many judgements in a row.
const MEMORY_STRIKES: u32 = 6;
/// And `malloc` when it was seen for long enough to tell what grows.
const MALLOC_STRIKES: u32 = 10;
const TCP: [&str; 3] = ["send", "receive", "retransmit"];
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often the kernel's list of processes is read where [`Calls::forked`] tells of new ones.
const LIST_EVERY: Duration = Duration::from_secs(1);
const GOVERN_EVERY: Duration = Duration::from_millis(250);
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
    functions: Vec<(u32, Found)>,
    links: Vec<OwnedFd>,
}

#[derive(Default)]
struct Process {
    code: CodeWatch,
    /// What is wanted was looked for in all that is mapped, as far as `code` knows.
    looked: bool,
    libraries: BTreeSet<String>,
}

/// Everything that is probed on behalf of one session.
pub struct Calls {
    kernel: Kernel,
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
    lost: [u64; kernel::LOST.len()],
    memory: Memory,
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
    /// Probes what is wanted in these processes. Errors: not permitted, no BPF, none of the processes lives.
    pub fn attach(pids: &[u32], wanted: Wanted, resolver: &mut dyn Resolver) -> io::Result<Calls> {
        let _types = crate::kernel::btf(); // held until everything is attached
        let mut kernel = Kernel::load(wanted.multi, &|map, n| entries(&wanted, map, n))?;
        let mut links = Vec::new();
        let mut notes = Vec::new();
        match bpf::enable_stats() {
            Ok(fd) => links.push(fd),
            Err(error) => notes.push(format!("calls: the kernel does not measure programs: {error}")),
        }
        let cost = if wanted.groups.is_empty() {
            Cost::UNKNOWN
        } else {
            cost::measure(&mut kernel, &mut links).unwrap_or_else(|error| {
                notes.push(format!(
                    "calls: the cost of a probe could not be measured: {error}"
                ));
                Cost::UNKNOWN
            })
        };
        let now = Instant::now();
        let mut calls = Calls {
            kernel,
            wanted,
            cost,
            active: BTreeMap::new(),
            links,
            processes: BTreeMap::new(),
            ended: Vec::new(),
            files: FxHashSet::default(),
            functions: Vec::new(),
            numbers: FxHashMap::default(),
            previous: FxHashMap::default(),
            spans: Vec::new(),
            spans_dropped: 0,
            lost: Default::default(),
            memory: Memory::default(),
            served: Served::default(),
            ports: BTreeMap::new(),
            cuts: Vec::new(),
            notes,
            looked: now,
            listed: now,
            hears_forks: false,
            list_now: false,
            governed: now,
            runs: Default::default(),
            hits: FxHashMap::default(),
        };
        calls.trace();
        let mut last = io::Error::from_raw_os_error(libc::ESRCH);
        for &pid in pids {
            if let Err(error) = calls.add(pid, resolver) {
                last = error;
            }
        }
        if calls.processes.is_empty() {
            return Err(last);
        }
        calls.say_what_is_missing();
        Ok(calls)
    }

    /// Watches one more process. Errors: it is gone, or may not be looked at.
    pub fn add(&mut self, pid: u32, resolver: &mut dyn Resolver) -> io::Result<()> {
        CodeWatch::default().changed(pid)?;
        self.kernel.map("watched")?.put(&pid, &1u32)?;
        self.processes.entry(pid).or_default();
        self.look_for_server(&[pid])?;
        self.look(pid, resolver)
    }

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

    fn trace(&mut self) {
        let mut wanted: Vec<(&str, &str)> = Vec::new();
        if self.wanted.follow {
            wanted.extend([("forked", "sched_process_fork"), ("execed", "sched_process_exec")]);
        }
        if self.wanted.tcp {
            wanted.extend([
                ("tcp_sent", "sock_send_length"),
                ("tcp_received", "sock_recv_length"),
                ("tcp_again", "tcp_retransmit_skb"),
            ]);
        }
        if self.wanted.files {
            wanted.extend([("call_begins", "sys_enter"), ("call_ends", "sys_exit")]);
        }
        for (program, tracepoint) in wanted {
            match self.kernel.trace(program, tracepoint) {
                Ok(link) => self.links.push(link),
                Err(error) => self
                    .notes
                    .push(format!("{tracepoint}: does not load here: {error}")),
            }
        }
        if self.wanted.rdma {
            self.ports = rdma::ports(Path::new("/sys/class/infiniband"));
        }
    }

    fn note(&mut self, line: String) {
        if !self.notes.contains(&line) {
            self.notes.push(line);
        }
    }

    /// Empties the rings, looks for new libraries and processes, and lets the governor judge. To be called some times a
    /// second; it does nothing that is not due.
    pub fn poll(&mut self, resolver: &mut dyn Resolver) {
        self.drain(resolver);
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            self.follow(resolver);
        }
        if self.governed.elapsed() >= GOVERN_EVERY {
            self.govern();
        }
        if self.wanted.memory() {
            if let Err(error) = self.memory.moment(&self.kernel) {
                self.note(format!("memory: {error}"));
            }
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
            let Some(event) = kernel::read::<SpanEvent>(record) else {
                return;
            };
            let Some(function) = functions.get(event.function.wrapping_sub(FIRST_FUNCTION) as usize) else {
                return;
            };
            if let Some(mark) = function.mark {
                return events.push(Event::Mark(mark, event));
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
            .drain(|record| events.extend(kernel::read::<Passed>(record).map(Event::Passed)));
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

    /// Whether one of a process's libraries has this name (as of the last look).
    pub fn has_library(&self, pid: u32, library: &str) -> bool {
        self.processes
            .get(&pid)
            .is_some_and(|p| p.libraries.iter().any(|l| groups::is_library(l, library)))
    }
}

/// How many entries a map of the kernel object gets: an empty table of four million blocks is 64 MiB to clear.
fn entries(wanted: &Wanted, map: &str, most: u32) -> u32 {
    const PAGE_MAX: u32 = 64 << 10; // a ring has at least one page, of whatever machine
    match map {
        "lives" | "sites" | "allocs" if !wanted.memory() => 1,
        "stacks" if !wanted.memory() => PAGE_MAX,
        _ => most,
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
        governing::take_off(links);
    }
}
