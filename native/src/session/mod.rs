//! One look at running processes with tier T0: samples from the ring, ticks for threads that do not run, exact times.

mod take;
mod watched;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use crate::calls::{Calls, Wanted};
use crate::clock::{monotonic_ns, timer};
use crate::kernel::{btf, Kernel, Record, SampleRecord, STACK_BYTES};
use crate::own_cost::OwnCost;
use crate::profile::Options;
use crate::quality::{Marks, Quality};
use crate::sample::{PyFrameRaw, RawSample};
use crate::signals::Held;
use crate::stacks::Stacks;
use crate::table::{StackId, State};
use watched::Watched;

pub struct Session {
    watched: Watched,
    calls: Option<Calls>,
    /// What this session cannot see, one line each.
    pub misses: Vec<String>,
    timer: OwnedFd,
    since_ns: u64,
    housekeeping_ns: u64,
    buffers: Buffers,
}

#[derive(Default)]
struct Buffers {
    python: Vec<PyFrameRaw>,
    kernel: Vec<u64>,
    record: Vec<u8>,
}

/// The longest that the ring waits to be read when nothing else happens.
const POLL_MS: i32 = 50;
/// Processes that have ended keep their entry in BPF until their last thread is gone, or for this long.
const LINGER_NS: u64 = 2_000_000_000;
const HOUSEKEEPING_NS: u64 = 200_000_000;

impl Session {
    /// Loads, attaches and enters `pids`. Errors: `NotFound` for a pid that is not there, `PermissionDenied`,
    /// `Unsupported` (what is missing for this tier).
    pub fn start(pids: &[u32], options: Options, wanted: Option<Wanted>) -> io::Result<Session> {
        let (start_ns, own) = (monotonic_ns(), OwnCost::start());
        // Held until calls are attached, too.
        let _types = btf();
        let pids: Vec<u32> = pids
            .iter()
            .map(|pid| process_of(*pid))
            .collect::<io::Result<_>>()?;
        let (kernel, stacks) = attached(&pids, options, start_ns)?;
        let now_ns = monotonic_ns();
        let quality = Quality::new(start_ns, own, &kernel);
        let mut session = Session {
            timer: timer(options.hz)?,
            watched: Watched::new(options, kernel, stacks, quality, now_ns),
            calls: None,
            misses: Vec::new(),
            since_ns: now_ns,
            housekeeping_ns: now_ns,
            buffers: Buffers::default(),
        };
        // What blocked a moment before its process was opened may have forked since: everything after is seen by BPF.
        session.enter_children(&pids)?;
        if let Some(wanted) = wanted {
            session.attach_calls(wanted);
        }
        session.watched.quality.own.attached();
        Ok(session)
    }

    fn attach_calls(&mut self, wanted: Wanted) {
        let stacks = &mut self.watched.stacks;
        stacks.table.pinned = wanted.memory();
        let pids: Vec<u32> = stacks.processes.iter().map(|(pid, _)| pid).collect();
        match Calls::attach(&pids, wanted, stacks) {
            Ok(mut calls) => {
                calls.hear_forks();
                self.calls = Some(calls);
            }
            Err(error) => self
                .misses
                .push(format!("calls (steps, collectives, copies): {error}")),
        }
    }

    /// Watches one more process, and its children if children are followed.
    pub fn add(&mut self, pid: u32) -> io::Result<()> {
        let pid = process_of(pid)?;
        let python = self.watched.stacks.processes.open(pid, monotonic_ns())?;
        self.watched
            .kernel
            .watch(pid, self.watched.options.follow, python)?;
        self.watched.kernel.enter_threads()?;
        let entered = self.enter_children(&[pid])?;
        if let Some(calls) = &mut self.calls {
            calls.add(pid, &mut self.watched.stacks)?;
            for child in entered {
                let _ = calls.add(child, &mut self.watched.stacks); // it may be gone by now
            }
        }
        Ok(())
    }

    /// Children that were there before: those that were not watched yet. The ones that come later are entered by BPF as
    /// they are forked.
    fn enter_children(&mut self, pids: &[u32]) -> io::Result<Vec<u32>> {
        let mut entered = Vec::new();
        if !self.watched.options.follow {
            return Ok(entered);
        }
        let mut todo = pids.to_vec();
        while let Some(parent) = todo.pop() {
            for child in children(parent) {
                if self.watched.kernel.is_watched(child) && self.watched.stacks.processes.get(child).is_some()
                {
                    continue;
                }
                // A child that ends while it is being entered was seen by nobody.
                if let Ok(python) = self.watched.stacks.processes.open(child, monotonic_ns()) {
                    self.watched.kernel.watch(child, true, python)?;
                    todo.push(child);
                    entered.push(child);
                }
            }
        }
        if !entered.is_empty() {
            self.watched.kernel.enter_threads()?;
        }
        Ok(entered)
    }

    pub fn live(&self) -> usize {
        self.watched.stacks.processes.live()
    }

    /// Looks for that long, or until every process has ended. Gives how many live.
    pub fn run(&mut self, time: Duration) -> io::Result<usize> {
        let until_ns = monotonic_ns() + time.as_nanos() as u64;
        loop {
            self.drain(until_ns);
            let now_ns = monotonic_ns();
            if self.live() == 0 || now_ns >= until_ns {
                return Ok(self.live());
            }
            let left_ms = (until_ns - now_ns).div_ceil(1_000_000).min(POLL_MS as u64) as i32;
            if self.wait(left_ms)? {
                self.watched.tick();
            }
            if now_ns >= self.housekeeping_ns {
                self.housekeeping_ns = now_ns + HOUSEKEEPING_NS;
                self.keep_house(now_ns);
            }
            self.look_for_python(now_ns);
            if let Some(calls) = &mut self.calls {
                calls.poll(&mut self.watched.stacks);
            }
        }
    }

    /// Waits for an event, a tick or the time. True: a tick is due.
    fn wait(&mut self, timeout_ms: i32) -> io::Result<bool> {
        let mut fds = [self.timer.as_raw_fd(), self.watched.kernel.ring_fd()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        // Samples do not wake: while ticks come, the ring is read at each of them.
        // SAFETY: two valid entries that live for the call.
        let n = unsafe { libc::poll(fds.as_mut_ptr(), 2, timeout_ms) };
        if n < 0 {
            let error = io::Error::last_os_error();
            // A signal: the caller looks whether it is to end.
            return if error.kind() == io::ErrorKind::Interrupted {
                Ok(false)
            } else {
                Err(error)
            };
        }
        if fds[0].revents == 0 {
            return Ok(false);
        }
        let mut expired = [0u8; 8];
        // SAFETY: a buffer of the eight bytes that a timerfd gives.
        let n = unsafe { libc::read(self.timer.as_raw_fd(), expired.as_mut_ptr().cast(), 8) };
        Ok(n == 8)
    }

    // ---- the ring -------------------------------------------------------------------------------------------------

    /// Everything that waits in the ring. What comes after `until_ns` stays, so that a flood cannot hold the caller.
    fn drain(&mut self, until_ns: u64) {
        let mut n = 0u32;
        loop {
            let buffers = &mut self.buffers;
            let copied = self.watched.kernel.next_into(&mut buffers.record);
            if !copied {
                return;
            }
            let record = std::mem::take(&mut self.buffers.record);
            match Record::parse(&record) {
                Some(Record::Sample(sample)) => self.sampled(&sample),
                Some(Record::Forked { pid, parent }) => self.forked(pid, parent),
                Some(Record::Execed { pid }) => {
                    self.watched.stacks.processes.execed(pid, monotonic_ns());
                    if let Some(calls) = &mut self.calls {
                        calls.execed();
                    }
                }
                Some(Record::Exited { pid }) => {
                    self.watched.stacks.processes.exited(pid, monotonic_ns());
                }
                None => self.watched.quality.seen.unreadable += 1,
            }
            self.buffers.record = record;
            n += 1;
            if n % 64 == 0 && monotonic_ns() > until_ns.saturating_add(1_000_000_000) {
                return;
            }
        }
    }

    fn forked(&mut self, pid: u32, parent: u32) {
        let now_ns = monotonic_ns();
        self.watched.stacks.processes.forked(pid, parent, now_ns);
        if let Some(calls) = &mut self.calls {
            calls.forked(pid);
        }
    }

    fn sampled(&mut self, record: &SampleRecord<'_>) {
        // Before symbols are read, which takes a while: until BPF knows where Python's frames are, samples have none.
        let process = self
            .watched
            .stacks
            .processes
            .known(record.pid, None, record.time_ns);
        let now_ns = monotonic_ns();
        if process.may_have_python(now_ns) {
            self.look_for_python(now_ns);
        }
        record.python_into(&mut self.buffers.python);
        record.kernel_into(&mut self.buffers.kernel);
        let sample = RawSample {
            pid: record.pid,
            tid: record.tid,
            time_ns: record.time_ns,
            regs: record.regs,
            stack: record.stack,
            outer: record.outer,
            python: &self.buffers.python,
            python_known: record.python_known,
            kernel: &self.buffers.kernel,
            // Outer callers beyond the copy have not moved since; if they have, the stack does not reach its root.
            live: record.stack.len() == STACK_BYTES || !record.outer.pieces.is_empty(),
        };
        let resolved = self
            .watched
            .stacks
            .processes
            .resolve(&sample, &mut self.watched.stacks.table);
        let marks = if record.regs.sp == 0 {
            Marks::NOTHING
        } else {
            Marks::of(&resolved, !sample.python.is_empty())
        };
        self.watched.quality.sampled(marks, record.time_ns);
        let stack = self.stack_of(&resolved.frames, "(not resolved)");
        let period_ns = self.watched.period_ns();
        self.watched
            .stacks
            .table
            .add((record.pid, record.tid), State::On, stack, 1, period_ns);
    }

    fn stack_of(&mut self, frames: &[u32], otherwise: &str) -> StackId {
        if frames.is_empty() {
            return self.watched.stacks.table.named_stack(otherwise);
        }
        self.watched.stacks.table.stack(frames)
    }

    fn look_for_python(&mut self, now_ns: u64) {
        for (pid, config) in self.watched.stacks.processes.look_for_python(now_ns) {
            if self.watched.kernel.is_watched(pid)
                && self
                    .watched
                    .kernel
                    .watch(pid, self.watched.options.follow, Some(config))
                    .is_err()
            {
                self.watched.quality.seen.unreadable += 1;
            }
        }
    }

    /// Ends are told by BPF; here those are found that it could not tell of, and entries of the dead are removed.
    fn keep_house(&mut self, now_ns: u64) {
        let mut gone = Vec::new();
        let mut unheard = Vec::new();
        for (pid, process) in self.watched.stacks.processes.iter() {
            if process.row.ended {
                if process.threads == 0 || now_ns > process.ended_ns + LINGER_NS {
                    gone.push(pid);
                }
            } else if !alive(pid) {
                unheard.push(pid);
            }
        }
        for pid in unheard {
            self.watched.stacks.processes.exited(pid, now_ns);
        }
        for pid in gone {
            self.watched.kernel.unwatch(pid);
            self.watched.drop_threads(pid);
        }
    }
}

/// The programs, attached, and the processes that they watch, opened.
fn attached(pids: &[u32], options: Options, start_ns: u64) -> io::Result<(Kernel, Stacks)> {
    let held = Held::new();
    let mut kernel = Kernel::load()?;
    let mut stacks = Stacks::default();
    // Processes are known before anything is seen of them, so that their samples can be resolved at once.
    let mut found = Vec::new();
    for &pid in pids {
        found.push((pid, stacks.processes.open(pid, start_ns)?));
    }
    kernel.attach(options.hz)?;
    drop(held);
    for (pid, python) in found {
        kernel.watch(pid, options.follow, python)?;
    }
    kernel.enter_threads()?;
    Ok((kernel, stacks))
}

/// The process that a number stands for: it may be that of one of its threads. Errors: `NotFound`.
fn process_of(pid: u32) -> io::Result<u32> {
    let not_found = |what: &str| io::Error::new(io::ErrorKind::NotFound, format!("process {pid} {what}"));
    if !alive(pid) {
        return Err(not_found("is not there"));
    }
    let status =
        std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|_| not_found("is not there"))?;
    // Threads of the kernel have no memory of their own.
    if !status.contains("\nVmSize:") {
        return Err(not_found("is one of the kernel's own threads"));
    }
    status
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
        .ok_or_else(|| not_found("is not there"))
}

/// Zombies do not live. Of the first thread alone: the times of all of them would be added up for `/proc/PID/stat`.
/// Whether a thread of it lives. The first one may have ended before the others, or gives its number to one that execs.
fn alive(pid: u32) -> bool {
    let lives = |path: String| {
        std::fs::read_to_string(path).is_ok_and(|stat| {
            let state = stat.rfind(')').and_then(|at| stat[at..].chars().nth(2));
            !matches!(state, Some('Z' | 'X') | None)
        })
    };
    if lives(format!("/proc/{pid}/task/{pid}/stat")) {
        return true;
    }
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    tasks
        .flatten()
        .any(|task| lives(format!("{}/stat", task.path().display())))
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
        .flat_map(|line| {
            line.split_ascii_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect::<Vec<u32>>()
        })
        .collect()
}
