//! Begins to count calls of processes, and goes on: rings, new libraries and processes, the governor.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use super::cost::{self, Cost};
use super::memory::CallSites;
use super::object::CallsObject;
use super::served::Served;
use super::{bpf, rdma, Calls, Resolver, Wanted};
use crate::maps::CodeWatch;

const LOOK_EVERY: Duration = Duration::from_millis(50);
const GOVERN_EVERY: Duration = Duration::from_millis(250);

impl Calls {
    /// Probes what is wanted in these processes. Errors: not permitted, no BPF, none of the processes lives.
    pub fn attach(pids: &[u32], wanted: Wanted, resolver: &mut dyn Resolver) -> io::Result<Calls> {
        let _types = crate::kernel::btf(); // held until everything is attached
        let mut kernel = CallsObject::load(wanted.multi, &|map, n| entries(&wanted, map, n))?;
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
        let mut calls = Calls::new(kernel, wanted, cost, links, notes);
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

    fn new(
        kernel: CallsObject,
        wanted: Wanted,
        cost: Cost,
        links: Vec<OwnedFd>,
        notes: Vec<String>,
    ) -> Calls {
        let now = Instant::now();
        Calls {
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
            memory: CallSites::default(),
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
        }
    }

    /// Watches one more process. Errors: it is gone, or may not be looked at.
    pub fn add(&mut self, pid: u32, resolver: &mut dyn Resolver) -> io::Result<()> {
        CodeWatch::default().changed(pid)?;
        self.kernel.map("watched")?.put(&pid, &1u32)?;
        self.processes.entry(pid).or_default();
        self.look_for_server(&[pid])?;
        self.look(pid, resolver)
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
