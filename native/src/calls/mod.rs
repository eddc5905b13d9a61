//! Counts, times, bytes and memory of calls in running processes, by uprobes and tracepoints.
//!
//! [`Calls`] watches processes (and what they fork), looks for libraries that they load, probes what is wanted in them,
//! and takes probes off again that cost more than the budget. Every probe hangs on a file descriptor of this process:
//! when it ends, however it ends, the kernel takes all of them off.

mod bpf;
mod catalogue;
mod cookie;
mod cost;
mod exits;
mod functions;
mod govern;
mod groups;
mod kernel;
mod maps;
mod memory;
mod memory_growth;
#[cfg(feature = "python")]
pub mod python;
mod rdma;
mod ring;
mod rows;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use catalogue::GROUPS;
use cost::Cost;
use functions::{Exit, Found};
use govern::Load;
use groups::{Group, What, FILE_CALLS};
use kernel::{CallKey, CallSum, Kernel, Program, SpanEvent};
use memory::Memory;
pub use rows::{CallRow, HeldRow, MomentRow, Resolver, Rows, SpanRow};
pub use wanted::Wanted;

/// Number of the first function that is not the kernel object's own (TCP, files).
const FIRST_FUNCTION: u32 = 256;
/// What follows memory is worth little when it is cut: it goes when it costs too much for this many judgements in a row.
const MEMORY_STRIKES: u32 = 6;
/// What the kernel's program puts for a process that began another program.
const ANEW: u32 = 2;
const TCP: [&str; 3] = ["send", "receive", "retransmit"];
const LOOK_EVERY: Duration = Duration::from_millis(50);
const GOVERN_EVERY: Duration = Duration::from_millis(250);
/// Probes of a group that are attached one by one where they cannot be attached together: each takes 50 ms to take off.
const SINGLE_MAX: usize = 128;

/// A group that has probes somewhere.
struct Active {
    links: Vec<OwnedFd>,
    probes: usize,
    /// Judgements in a row by which it costs too much.
    strikes: u32,
    /// Weighted sums over its functions.
    entry_ns: f64,
    exit_ns: f64,
    since: Instant,
    hits: (u64, u64),
    off: bool,
}

#[derive(Default)]
struct Process {
    pages: u64,
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
    /// Groups and the files in which they were looked for.
    files: FxHashSet<(usize, (String, u64))>,
    functions: Vec<(String, &'static str)>,
    numbers: FxHashMap<(String, &'static str), u32>,
    previous: FxHashMap<CallKey, CallSum>,
    spans: Vec<SpanRow>,
    spans_dropped: u64,
    lost: [u64; kernel::LOST.len()],
    memory: Memory,
    ports: BTreeMap<String, rdma::Port>,
    /// Memory that is not followed any more, and since when.
    cuts: Vec<(&'static str, u64)>,
    notes: Vec<String>,
    looked: Instant,
    governed: Instant,
    runs: [(u64, u64); 4],
}

impl Calls {
    /// Probes what is wanted in these processes. Errors: not permitted, no BPF, none of the processes lives.
    pub fn attach(pids: &[u32], wanted: Wanted, resolver: &mut dyn Resolver) -> io::Result<Calls> {
        let mut kernel = Kernel::load(wanted.multi)?;
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
            ports: BTreeMap::new(),
            cuts: Vec::new(),
            notes,
            looked: now,
            governed: now,
            runs: Default::default(),
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
        maps::address_space(pid)?;
        self.kernel.map("watched")?.put(&pid, &1u32)?;
        self.processes.entry(pid).or_default();
        self.look(pid, resolver)
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
        on.map(|(&n, a)| (GROUPS[n].name, a.probes)).collect()
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

    /// Looks what a process has mapped, and probes what is new in it.
    fn look(&mut self, pid: u32, resolver: &mut dyn Resolver) -> io::Result<()> {
        let pages = maps::address_space(pid)?;
        let mappings = maps::executable(pid)?;
        let libraries: BTreeSet<String> = mappings.iter().map(|m| m.name().to_owned()).collect();
        if self.wanted.memory() {
            self.memory.text(&self.kernel, &mappings)?;
            if let Some(python) = resolver.python(pid) {
                self.kernel.map("pythons")?.put(&pid, &python)?;
            }
        }
        // `malloc` last: it is called so often that everything that is still attached after it would take longer.
        for (mapping, is_last) in mappings
            .iter()
            .map(|m| (m, false))
            .chain(mappings.iter().map(|m| (m, true)))
        {
            let has = |library: &str| libraries.iter().any(|l| groups::is_library(l, library));
            let groups: Vec<usize> = self
                .wanted
                .groups
                .iter()
                .copied()
                .filter(|&n| {
                    GROUPS[n]
                        .libraries
                        .iter()
                        .any(|l| groups::is_library(mapping.name(), l))
                })
                .filter(|&n| !GROUPS[n].unless.is_some_and(has) && GROUPS[n].only_with.is_none_or(has))
                .filter(|&n| !self.files.contains(&(n, mapping.file.clone())))
                .filter(|&n| (GROUPS[n].name == "malloc") == is_last)
                .collect();
            if groups.is_empty() {
                continue;
            }
            self.files
                .extend(groups.iter().map(|&n| (n, mapping.file.clone())));
            self.probe_file(pid, mapping, &groups);
        }
        if let Some(n) = groups_named("malloc").filter(|n| self.wanted.groups.contains(n)) {
            self.probe_own_allocator(pid, &mappings, n);
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            *process = Process { pages, libraries };
        }
        Ok(())
    }

    /// A program that has `malloc` inside answers for its libraries, too.
    fn probe_own_allocator(&mut self, pid: u32, mappings: &[maps::Mapping], n: usize) {
        let Ok(program) = std::fs::read_link(format!("/proc/{pid}/exe")) else {
            return;
        };
        let Some(mapping) = mappings.iter().find(|m| Path::new(&m.path) == program) else {
            return;
        };
        if !self.files.insert((n, mapping.file.clone())) {
            return;
        }
        for way in mapping.ways(pid) {
            let found = functions::find(&way, &[&catalogue::OWN_MALLOC]);
            let (Ok(mut found), Ok(path)) = (found, CString::new(way.as_os_str().as_bytes())) else {
                continue;
            };
            let found = found.pop().unwrap_or_default();
            if found.iter().any(|f| f.symbol == "malloc") {
                if let Err(error) = self.probe_group(n, &path, found) {
                    self.note(format!("malloc: no probes in {}: {error}", mapping.name()));
                }
            }
            return;
        }
    }

    fn probe_file(&mut self, pid: u32, mapping: &maps::Mapping, groups: &[usize]) {
        let wanted: Vec<&'static Group> = groups.iter().map(|&n| &GROUPS[n]).collect();
        let mut last = None;
        for way in mapping.ways(pid) {
            let found = match functions::find(&way, &wanted) {
                Ok(found) => found,
                Err(error) => {
                    last = Some(error);
                    continue;
                }
            };
            let Ok(path) = CString::new(way.as_os_str().as_bytes()) else {
                continue;
            };
            for (&n, found) in groups.iter().zip(found) {
                if let Err(error) = self.probe_group(n, &path, found) {
                    self.note(format!(
                        "{}: no probes in {}: {error}",
                        GROUPS[n].name,
                        mapping.name()
                    ));
                }
            }
            return;
        }
        if let Some(error) = last {
            self.note(format!("{}: cannot be read: {error}", mapping.path));
        }
    }

    fn note(&mut self, line: String) {
        if !self.notes.contains(&line) {
            self.notes.push(line);
        }
    }

    fn number(&mut self, found: &Found) -> u32 {
        let kind = found.functions.kind;
        let key = (groups::shown(&found.symbol), kind);
        if let Some(&n) = self.numbers.get(&key) {
            return n;
        }
        let n = FIRST_FUNCTION + self.functions.len() as u32;
        self.functions.push(key.clone());
        self.numbers.insert(key, n);
        n
    }

    fn probe_group(&mut self, n: usize, path: &CString, found: Vec<Found>) -> io::Result<()> {
        if found.is_empty() || self.active.get(&n).is_some_and(|a| a.off) {
            return Ok(());
        }
        let found = self.bounded(n, found);
        let memory = found
            .iter()
            .any(|f| !matches!(f.functions.what, What::Count | What::SetDevice));
        let (enter, leave) = if memory {
            (Program::EnterMemory, Program::LeaveMemory)
        } else {
            (Program::Enter, Program::Leave)
        };
        let mut sites: [(Vec<u64>, Vec<u64>); 3] = Default::default(); // exits, return probes, entries
        for f in &found {
            let number = self.number(f);
            let by_return = f.exit == Exit::Return;
            let c = cookie::cookie(number, n as u8, f.functions, f.exit != Exit::Unseen, by_return);
            match &f.exit {
                Exit::At(exits) => {
                    sites[0].0.extend(exits);
                    sites[0].1.extend(exits.iter().map(|_| c));
                }
                Exit::Return => {
                    sites[1].0.push(f.offset);
                    sites[1].1.push(c);
                }
                Exit::Unseen => {}
            }
            sites[2].0.push(f.offset);
            sites[2].1.push(c);
        }
        // Exits first: a call that began before is seen to end, and is nobody's; the other way round it would stay open.
        let mut links = Vec::new();
        for ((offsets, cookies), (program, on_return)) in
            sites.iter().zip([(leave, false), (leave, true), (enter, false)])
        {
            if offsets.is_empty() {
                continue;
            }
            links.extend(self.kernel.link(program, path, offsets, cookies, on_return)?);
        }
        let (entry_ns, exit_ns) = self.cost.of(&found);
        let hits = self.hits(n);
        let active = self.active.entry(n).or_insert_with(|| Active {
            links: Vec::new(),
            probes: 0,
            strikes: 0,
            entry_ns: 0.0,
            exit_ns: 0.0,
            since: Instant::now(),
            hits,
            off: false,
        });
        active.links.extend(links);
        active.probes += sites.iter().map(|s| s.0.len()).sum::<usize>();
        active.entry_ns = active.entry_ns.max(entry_ns);
        active.exit_ns = active.exit_ns.max(exit_ns);
        Ok(())
    }

    /// Where probes are attached one by one there is a limit to how many: the operators that most programs use first.
    fn bounded(&mut self, n: usize, mut found: Vec<Found>) -> Vec<Found> {
        if self.kernel.program(Program::Enter).is_ok() && self.kernel.multi || found.len() <= SINGLE_MAX {
            return found;
        }
        let all = found.len();
        found.sort_by_key(|f| wanted::rank_of_operator(&groups::shown(&f.symbol)));
        found.truncate(SINGLE_MAX);
        self.note(format!(
            "{}: this kernel attaches probes one by one (many at once needs 6.6): {SINGLE_MAX} of {all} functions are probed",
            GROUPS[n].name
        ));
        found
    }

    fn say_what_is_missing(&mut self) {
        let untraced: Vec<&str> = ["nccl", "cuda"]
            .into_iter()
            .filter(|name| {
                let n = GROUPS.iter().position(|g| g.name == *name);
                n.is_some_and(|n| self.wanted.groups.contains(&n) && !self.active.contains_key(&n))
            })
            .collect();
        if !untraced.is_empty() {
            self.note(format!(
                "{}: no such library is loaded (yet)",
                untraced.join(", ")
            ));
        }
    }

    fn hits(&self, n: usize) -> (u64, u64) {
        (
            self.kernel.sum("hits", n as u32),
            self.kernel.sum("hits", n as u32 + 32),
        )
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
            spans,
            spans_dropped,
            functions,
            wanted,
            memory,
            ..
        } = self;
        kernel.spans.drain(|record| {
            let Some(event) = kernel::read::<SpanEvent>(record) else {
                return;
            };
            let Some((name, kind)) = functions.get(event.function.wrapping_sub(FIRST_FUNCTION) as usize)
            else {
                return;
            };
            if spans.len() >= wanted.max_spans {
                *spans_dropped += 1;
                return;
            }
            spans.push(SpanRow {
                pid: event.tgid,
                tid: event.tid,
                name: name.clone(),
                kind,
                start_ns: event.start_ns,
                end_ns: event.end_ns,
                bytes: event.bytes,
            });
        });
        kernel.stacks.drain(|record| memory.stack(record, resolver));
    }

    fn follow(&mut self, resolver: &mut dyn Resolver) {
        if self.wanted.follow {
            let watched = self.kernel.map("watched").and_then(|m| m.all::<u32, u32>());
            for (pid, value) in watched.unwrap_or_default() {
                if !self.ended.contains(&pid) {
                    self.processes.entry(pid).or_default();
                }
                if value == ANEW {
                    self.anew(pid);
                }
            }
        }
        let pids: Vec<(u32, u64)> = self.processes.iter().map(|(&pid, p)| (pid, p.pages)).collect();
        for (pid, pages) in pids {
            let looked = match maps::address_space(pid) {
                Ok(now) if now == pages => continue,
                Ok(0) | Err(_) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
                Ok(_) => self.look(pid, resolver),
            };
            if looked.is_err() {
                self.processes.remove(&pid);
                if let Ok(watched) = self.kernel.map("watched") {
                    let _ = watched.delete(&pid);
                }
                self.ended.push(pid);
            }
        }
    }

    /// Another program runs in the process: what the one before it held is gone.
    fn anew(&mut self, pid: u32) {
        if let Ok(watched) = self.kernel.map("watched") {
            let _ = watched.put(&pid, &1u32);
        }
        self.memory.forget(&self.kernel, &FxHashSet::from_iter([pid]));
        if let Some(process) = self.processes.get_mut(&pid) {
            process.pages = 0; // looked at anew
        }
    }

    /// Mean run time of the programs since the last judgement: of entries and exits, without and with memory.
    fn runs(&mut self) -> [f64; 4] {
        let mut means = [0.0; 4];
        for (at, program) in Program::ALL.into_iter().enumerate() {
            let now = self.kernel.stats(program);
            let (ns, n) = (
                now.0.saturating_sub(self.runs[at].0),
                now.1.saturating_sub(self.runs[at].1),
            );
            means[at] = if n == 0 { 0.0 } else { ns as f64 / n as f64 };
            self.runs[at] = now;
        }
        means
    }

    fn govern(&mut self) {
        let seconds = self.governed.elapsed().as_secs_f64();
        self.governed = Instant::now();
        let runs = self.runs();
        let mut loads = Vec::new();
        let on: Vec<usize> = self
            .active
            .iter()
            .filter(|(_, a)| !a.off)
            .map(|(&n, _)| n)
            .collect();
        for n in on {
            let now = self.hits(n);
            let memory = wanted::is_memory(&GROUPS[n]);
            let Some(active) = self.active.get_mut(&n) else {
                continue;
            };
            loads.push(Load {
                group: GROUPS[n].name,
                entries: now.0.saturating_sub(active.hits.0) as f64 / seconds,
                exits: now.1.saturating_sub(active.hits.1) as f64 / seconds,
                entry_ns: active.entry_ns + runs[if memory { 2 } else { 0 }],
                exit_ns: active.exit_ns + runs[if memory { 3 } else { 1 }],
            });
            active.hits = now;
        }
        let (memory, others): (Vec<Load>, Vec<Load>) = loads
            .into_iter()
            .partition(|load| groups_named(load.group).is_some_and(|n| wanted::is_memory(&GROUPS[n])));
        // Every object is in `malloc`, so it is called most and worth least: it may take half of what the others may.
        let (malloc, memory) = memory.into_iter().partition(|load| load.group == "malloc");
        for (loads, budget_pct, strikes) in [
            (malloc, self.wanted.memory_budget_pct / 2.0, 1),
            (memory, self.wanted.memory_budget_pct, MEMORY_STRIKES),
            (others, self.wanted.budget_pct, 1),
        ] {
            let loads: Vec<Load> = loads;
            let removals = govern::judge(&loads, budget_pct);
            for load in &loads {
                let over = removals.iter().any(|r| r.group == load.group);
                if let Some(active) = groups_named(load.group).and_then(|n| self.active.get_mut(&n)) {
                    active.strikes = if over { active.strikes + 1 } else { 0 };
                }
            }
            for removal in removals {
                let active = groups_named(removal.group).and_then(|n| self.active.get(&n));
                if active.is_some_and(|a| a.strikes >= strikes) {
                    self.remove(&removal, budget_pct);
                }
            }
        }
    }

    fn remove(&mut self, removal: &govern::Removal, budget_pct: f64) {
        let Some(n) = groups_named(removal.group) else {
            return;
        };
        let Some(active) = self.active.get_mut(&n) else {
            return;
        };
        active.off = true;
        let links = std::mem::take(&mut active.links);
        take_off(links);
        let after = active.since.elapsed().as_secs_f64();
        self.note(removal.note(after, budget_pct));
        if wanted::is_memory(&GROUPS[n]) {
            self.memory.end_open_calls(&self.kernel);
            self.cuts.push((GROUPS[n].name, crate::session::monotonic_ns()));
        }
    }

    /// What came since the last take.
    pub fn take(&mut self, resolver: &mut dyn Resolver) -> Rows {
        self.drain(resolver);
        let mut rows = Rows {
            spans: std::mem::take(&mut self.spans),
            spans_dropped: std::mem::take(&mut self.spans_dropped),
            ..Rows::default()
        };
        self.count(&mut rows.calls);
        if self.wanted.memory() {
            if let Err(error) = self.memory.rows(&self.kernel, resolver, &mut rows) {
                self.note(format!("memory: {error}"));
            }
        }
        rows.cuts.clone_from(&self.cuts);
        self.count_ports(&mut rows.calls);
        self.losses(&mut rows);
        self.forget_ended();
        rows
    }

    fn name(&self, function: u32) -> Option<(String, &'static str)> {
        Some(match function {
            1..=3 => (TCP[function as usize - 1].to_owned(), "tcp"),
            16..FIRST_FUNCTION => (FILE_CALLS.get(function as usize - 16)?.to_string(), "file"),
            _ => self
                .functions
                .get((function - FIRST_FUNCTION.min(function)) as usize)?
                .clone(),
        })
    }

    fn count(&mut self, into: &mut Vec<CallRow>) {
        let sums = match self.kernel.map("calls").and_then(|m| m.all::<CallKey, CallSum>()) {
            Ok(sums) => sums,
            Err(error) => return self.note(format!("calls: the table cannot be read: {error}")),
        };
        for (key, now) in sums {
            let before = self.previous.insert(key, now).unwrap_or_default();
            let count = now.count.saturating_sub(before.count);
            let timed = now.timed.saturating_sub(before.timed);
            if count == 0 && timed == 0 {
                continue;
            }
            let Some((name, kind)) = self.name(key.function) else {
                continue;
            };
            into.push(CallRow {
                pid: key.tgid,
                tid: key.tid,
                name,
                kind,
                count,
                ns: (timed > 0).then(|| now.ns.saturating_sub(before.ns)),
                bytes: now.bytes.saturating_sub(before.bytes),
            });
        }
        into.sort_by(|a, b| (a.pid, a.tid, a.kind, &a.name).cmp(&(b.pid, b.tid, b.kind, &b.name)));
    }

    /// RDMA counters are the machine's and no process's: their rows have the pid 0.
    fn count_ports(&mut self, into: &mut Vec<CallRow>) {
        if !self.wanted.rdma {
            return;
        }
        let now = rdma::ports(Path::new("/sys/class/infiniband"));
        for (port, after) in &now {
            let before = self.ports.get(port).copied().unwrap_or_default();
            for (way, a, b) in [
                ("sent", after.sent, before.sent),
                ("received", after.received, before.received),
            ] {
                into.push(CallRow {
                    pid: 0,
                    tid: 0,
                    name: format!("{port} {way}"),
                    kind: "rdma",
                    count: a.0.saturating_sub(b.0),
                    ns: None,
                    bytes: a.1.saturating_sub(b.1),
                });
            }
        }
        self.ports = now;
    }

    fn losses(&mut self, rows: &mut Rows) {
        for (at, what) in kernel::LOST.into_iter().enumerate() {
            let now = self.kernel.sum("lost", at as u32);
            let more = now.saturating_sub(self.lost[at]);
            self.lost[at] = now;
            match (at, more) {
                (_, 0) => {}
                (0, n) => rows.spans_dropped += n,
                (1, _) => {} // told again at the next allocation of that place
                (_, n) => self.note(format!("{n} {what}")),
            }
        }
    }

    /// What ended processes leave in the kernel's tables is of no more use; their numbers may come again.
    fn forget_ended(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        let ended: FxHashSet<u32> = std::mem::take(&mut self.ended).into_iter().collect();
        if let Ok(map) = self.kernel.map("calls") {
            for key in self.previous.keys().filter(|k| ended.contains(&k.tgid)) {
                let _ = map.delete(key);
            }
        }
        self.previous.retain(|k, _| !ended.contains(&k.tgid));
        self.memory.forget(&self.kernel, &ended);
        if let Ok(map) = self.kernel.map("pythons") {
            for pid in &ended {
                let _ = map.delete(pid);
            }
        }
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

fn groups_named(name: &str) -> Option<usize> {
    GROUPS.iter().position(|g| g.name == name)
}

/// Taking a probe off waits until no CPU can be in it; many at once wait together.
fn take_off(mut links: Vec<OwnedFd>) {
    let share = links.len().div_ceil(64).max(1);
    std::thread::scope(|scope| {
        while !links.is_empty() {
            let part = links.split_off(links.len().saturating_sub(share));
            // Where no thread can be had the links are dropped here.
            let _ = std::thread::Builder::new().spawn_scoped(scope, move || drop(part));
        }
    });
}

impl Drop for Calls {
    fn drop(&mut self) {
        let mut links = std::mem::take(&mut self.links);
        links.extend(
            std::mem::take(&mut self.active)
                .into_values()
                .flat_map(|a| a.links),
        );
        take_off(links);
    }
}
