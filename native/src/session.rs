//! One look at running processes with tier T0: samples from the ring, ticks for threads that do not run, exact times.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::blocked::{wait_name, Sockets};
use crate::kernel::{state, Kernel, Record, SampleRecord, ThreadPlace, STACK_BYTES};
use crate::memory::ProcessMemory;
use crate::processes::{thread_name, Processes};
use crate::quality::Quality;
use crate::sample::{PyFrameRaw, RawSample, Regs};
use crate::table::{Rows, StackId, State, Table, ThreadKey};
use crate::threads::{merge, Seen, ThreadRow, Times};

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub hz: u32,
    pub off_cpu: bool,
    pub follow: bool,
}

/// Resolves stacks and adds them up: what samples, blocked threads and calls share.
#[derive(Default)]
pub struct Stacks {
    pub table: Table,
    pub processes: Processes,
}

pub struct Session {
    options: Options,
    kernel: Kernel,
    stacks: Stacks,
    quality: Quality,
    /// By place in BPF's table.
    seen: Vec<Option<Seen>>,
    ended: FxHashMap<ThreadKey, ThreadRow>,
    sockets: Sockets,
    timer: OwnedFd,
    tick_ns: u64,
    since_ns: u64,
    housekeeping_ns: u64,
    buffers: Buffers,
}

#[derive(Default)]
struct Buffers {
    stack: Vec<u8>,
    python: Vec<PyFrameRaw>,
    kernel: Vec<u64>,
    record: Vec<u8>,
}

/// What came since the last take.
pub struct Taken {
    pub start_ns: u64,
    pub end_ns: u64,
    pub rows: Rows,
    pub threads: Vec<(ThreadKey, ThreadRow)>,
    /// `(pid, command, parent, python, rank, job, ended)`
    pub processes: Vec<(u32, String, u32, String, Option<i64>, String, bool)>,
    pub quality: crate::quality::Told,
}

/// The longest that the ring waits to be read when nothing else happens.
const POLL_MS: i32 = 50;
/// Processes that have ended keep their entry in BPF until their last thread is gone, or for this long.
const LINGER_NS: u64 = 2_000_000_000;
const HOUSEKEEPING_NS: u64 = 200_000_000;

impl Session {
    /// Loads, attaches and enters `pids`. Errors: `NotFound` for a pid that is not there, `PermissionDenied`,
    /// `Unsupported` (what is missing for this tier).
    pub fn start(pids: &[u32], options: Options) -> io::Result<Session> {
        let start_ns = monotonic_ns();
        let mut kernel = Kernel::load()?;
        let mut stacks = Stacks::default();
        // Processes are known before anything is seen of them, so that their samples can be resolved at once.
        let pids: Vec<u32> = pids.iter().map(|pid| process_of(*pid)).collect::<io::Result<_>>()?;
        let mut found = Vec::new();
        for &pid in &pids {
            found.push((pid, stacks.processes.open(pid, start_ns)?));
        }
        kernel.attach(options.hz)?;
        for (pid, python) in found {
            kernel.watch(pid, options.follow, python)?;
        }
        kernel.enter_threads()?;
        let now_ns = monotonic_ns();
        let mut session = Session {
            timer: timer(options.hz)?,
            options,
            quality: Quality::new(start_ns, &kernel),
            kernel,
            stacks,
            seen: Vec::new(),
            ended: FxHashMap::default(),
            sockets: Sockets::default(),
            tick_ns: now_ns,
            since_ns: now_ns,
            housekeeping_ns: now_ns,
            buffers: Buffers {
                stack: vec![0; STACK_BYTES],
                ..Buffers::default()
            },
        };
        // What blocked a moment before its process was opened may have forked since: everything after is seen by BPF.
        session.enter_children(&pids)?;
        Ok(session)
    }

    /// Watches one more process, and its children if children are followed.
    pub fn add(&mut self, pid: u32) -> io::Result<()> {
        let pid = process_of(pid)?;
        let python = self.stacks.processes.open(pid, monotonic_ns())?;
        self.kernel.watch(pid, self.options.follow, python)?;
        self.kernel.enter_threads()?;
        self.enter_children(&[pid])
    }

    /// Children that were there before. Those that come later are entered by BPF as they are forked.
    fn enter_children(&mut self, pids: &[u32]) -> io::Result<()> {
        if !self.options.follow {
            return Ok(());
        }
        let mut todo = pids.to_vec();
        let mut entered = false;
        while let Some(parent) = todo.pop() {
            for child in children(parent) {
                if self.kernel.is_watched(child) && self.stacks.processes.get(child).is_some() {
                    continue;
                }
                // A child that ends while it is being entered was seen by nobody.
                if let Ok(python) = self.stacks.processes.open(child, monotonic_ns()) {
                    self.kernel.watch(child, true, python)?;
                    todo.push(child);
                    entered = true;
                }
            }
        }
        if entered {
            self.kernel.enter_threads()?;
        }
        Ok(())
    }

    pub fn live(&self) -> usize {
        self.stacks.processes.live()
    }

    /// Looks for that long, or until every process has ended. Gives how many live.
    pub fn run(&mut self, time: Duration) -> io::Result<usize> {
        let _cpu = self.quality.own_time();
        let until_ns = monotonic_ns() + time.as_nanos() as u64;
        loop {
            self.drain(until_ns);
            let now_ns = monotonic_ns();
            if self.live() == 0 || now_ns >= until_ns {
                return Ok(self.live());
            }
            let left_ms = (until_ns - now_ns).div_ceil(1_000_000).min(POLL_MS as u64) as i32;
            if self.wait(left_ms)? {
                self.tick();
            }
            if now_ns >= self.housekeeping_ns {
                self.housekeeping_ns = now_ns + HOUSEKEEPING_NS;
                self.keep_house(now_ns);
            }
            self.look_for_python(now_ns);
        }
    }

    /// Waits for an event, a tick or the time. True: a tick is due.
    fn wait(&mut self, timeout_ms: i32) -> io::Result<bool> {
        let mut fds = [self.timer.as_raw_fd(), self.kernel.ring_fd()].map(|fd| libc::pollfd {
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
            let copied = self.kernel.next_into(&mut buffers.record);
            if !copied {
                return;
            }
            let record = std::mem::take(&mut self.buffers.record);
            match Record::parse(&record) {
                Some(Record::Sample(sample)) => self.sampled(&sample),
                Some(Record::Forked { pid, parent }) => self.forked(pid, parent),
                Some(Record::Execed { pid }) => {
                    self.stacks.processes.execed(pid, monotonic_ns());
                }
                Some(Record::Exited { pid }) => {
                    self.stacks.processes.exited(pid, monotonic_ns());
                }
                None => self.quality.unreadable += 1,
            }
            self.buffers.record = record;
            n += 1;
            if n.is_multiple_of(64) && monotonic_ns() > until_ns.saturating_add(1_000_000_000) {
                return;
            }
        }
    }

    fn forked(&mut self, pid: u32, parent: u32) {
        let now_ns = monotonic_ns();
        self.stacks.processes.forked(pid, parent, now_ns);
    }

    fn sampled(&mut self, record: &SampleRecord<'_>) {
        record.python_into(&mut self.buffers.python);
        record.kernel_into(&mut self.buffers.kernel);
        let sample = RawSample {
            pid: record.pid,
            tid: record.tid,
            time_ns: record.time_ns,
            regs: record.regs,
            stack: record.stack,
            python: &self.buffers.python,
            kernel: &self.buffers.kernel,
            live: false,
        };
        self.stacks
            .processes
            .known(record.pid, None, record.time_ns);
        let resolved = self
            .stacks
            .processes
            .resolve(&sample, &mut self.stacks.table);
        self.quality
            .sampled(&resolved, record.time_ns, !sample.python.is_empty());
        let stack = self.stack_of(&resolved.frames, "(not resolved)");
        let period_ns = 1_000_000_000 / u64::from(self.options.hz.max(1));
        self.stacks
            .table
            .add((record.pid, record.tid), State::On, stack, 1, period_ns);
    }

    fn stack_of(&mut self, frames: &[u32], otherwise: &str) -> StackId {
        if frames.is_empty() {
            return self.stacks.table.named_stack(otherwise);
        }
        self.stacks.table.stack(frames)
    }

    // ---- ticks ----------------------------------------------------------------------------------------------------

    /// Looks at every thread: those that do not run, and stand where they stood, only have their time added.
    fn tick(&mut self) {
        let now_ns = monotonic_ns();
        self.tick_ns = now_ns;
        let used = self.kernel.places_used();
        if self.seen.len() < used {
            self.seen.resize_with(used, || None);
        }
        for n in 0..used {
            let (seq, doing) = self.kernel.threads.glance(n);
            match doing {
                state::FREE => {}
                state::ENDED => self.thread_ended(n),
                _ => self.look_at(n, seq, doing, now_ns),
            }
        }
    }

    fn look_at(&mut self, n: usize, seq: u32, doing: u32, now_ns: u64) {
        if self.seen[n].is_none() && !self.enter(n, now_ns) {
            return;
        }
        let generation = self.stacks.table.generation;
        let Some(seen) = &mut self.seen[n] else {
            return;
        };
        let passed_ns = now_ns.saturating_sub(seen.tick_ns);
        seen.tick_ns = seen.tick_ns.max(now_ns);
        let what = match doing {
            state::OFF => State::Off,
            state::RUNQ => State::Runq,
            _ => return,
        };
        if !self.options.off_cpu || passed_ns == 0 {
            return;
        }
        let key = seen.key;
        let stack = match seen.stands {
            Some((at, of, stack)) if at == seq && of == generation => Some(stack),
            _ => {
                let found = self.stack_of_blocked(n);
                if let (Some(seen), Some((seq, stack))) = (&mut self.seen[n], found) {
                    seen.stands = Some((seq, generation, stack));
                }
                found.map(|(_, stack)| stack)
            }
        };
        if let Some(stack) = stack {
            self.stacks.table.add(key, what, stack, 1, passed_ns);
        }
    }

    fn enter(&mut self, n: usize, now_ns: u64) -> bool {
        let Some(place) = self.kernel.threads.read(n) else {
            return false;
        };
        self.seen[n] = Some(Seen::new(&place));
        self.stacks.processes.known(place.pid, None, now_ns).threads += 1;
        true
    }

    fn thread_ended(&mut self, n: usize) {
        let Some(place) = self.kernel.threads.read(n) else {
            return;
        };
        if self.seen[n].is_none() {
            self.seen[n] = Some(Seen::new(&place));
            self.stacks
                .processes
                .known(place.pid, None, place.since)
                .threads += 1;
        }
        if let Some(mut seen) = self.seen[n].take() {
            let row = seen.tell_end(&place);
            merge(&mut self.ended, seen.key, row);
            if let Some(process) = self.stacks.processes.get_mut(seen.key.0) {
                process.threads = process.threads.saturating_sub(1);
            }
        }
        self.kernel.free(n);
    }

    /// The stack of a thread that does not run, and the `seq` it belongs to. Nothing where the thread moved meanwhile
    /// (counted), unless it came back to the very same place.
    fn stack_of_blocked(&mut self, n: usize) -> Option<(u32, StackId)> {
        for _ in 0..2 {
            let before = self.kernel.threads.read(n)?;
            if !matches!(before.state, state::OFF | state::RUNQ) {
                break;
            }
            let read = self.read_blocked(&before);
            let (seq, doing) = self.kernel.threads.glance(n);
            if seq != before.seq {
                let now = self.kernel.threads.read(n)?;
                let same = now.regs == before.regs && now.call == before.call;
                if !same || !matches!(doing, state::OFF | state::RUNQ) {
                    continue;
                }
            }
            return Some((seq, self.resolve_blocked(&before, read)));
        }
        self.quality.moved += 1;
        None
    }

    /// Copies the stack and the Python frames; gives how much of the stack there was.
    fn read_blocked(&mut self, place: &ThreadPlace) -> usize {
        self.buffers.python.clear();
        if place.regs.sp == 0 {
            return 0;
        }
        let memory = ProcessMemory::new(place.pid);
        let n = memory
            .read_some(place.regs.sp, &mut self.buffers.stack)
            .unwrap_or(0);
        let fsbase = (place.fsbase != 0).then_some(place.fsbase);
        if let Some(target) = self.stacks.processes.target(place.pid) {
            target.python_frames(place.tid, fsbase, &mut self.buffers.python);
        }
        n
    }

    fn resolve_blocked(&mut self, place: &ThreadPlace, n_stack: usize) -> StackId {
        let regs: Regs = place.regs;
        let sample = RawSample {
            pid: place.pid,
            tid: place.tid,
            time_ns: self.tick_ns,
            regs,
            stack: &self.buffers.stack[..n_stack],
            python: &self.buffers.python,
            kernel: &[],
            live: true,
        };
        let mut frames = Vec::new();
        // A thread that never ran has no user side yet.
        if regs.ip != 0 {
            let resolved = self
                .stacks
                .processes
                .resolve(&sample, &mut self.stacks.table);
            self.quality
                .sampled(&resolved, sample.time_ns, !sample.python.is_empty());
            frames = resolved.frames;
        }
        let wait = if place.state == state::RUNQ {
            "run queue".to_owned()
        } else {
            let sockets = &mut self.sockets;
            wait_name(place.call, place.task_state, || {
                sockets.fd(place.pid, place.args[0])
            })
        };
        frames.push(self.stacks.table.frames.wait(&wait));
        self.stacks.table.stack(&frames)
    }

    // ---- what changes slowly --------------------------------------------------------------------------------------

    fn look_for_python(&mut self, now_ns: u64) {
        for (pid, config) in self.stacks.processes.look_for_python(now_ns) {
            if self.kernel.is_watched(pid)
                && self
                    .kernel
                    .watch(pid, self.options.follow, Some(config))
                    .is_err()
            {
                self.quality.unreadable += 1;
            }
        }
    }

    /// Ends are told by BPF; here those are found that it could not tell of, and entries of the dead are removed.
    fn keep_house(&mut self, now_ns: u64) {
        let mut gone = Vec::new();
        let mut unheard = Vec::new();
        for (pid, process) in self.stacks.processes.iter() {
            if process.ended {
                if process.threads == 0 || now_ns > process.ended_ns + LINGER_NS {
                    gone.push(pid);
                }
            } else if !alive(pid) {
                unheard.push(pid);
            }
        }
        for pid in unheard {
            self.stacks.processes.exited(pid, now_ns);
        }
        for pid in gone {
            self.kernel.unwatch(pid);
            self.drop_threads(pid);
        }
    }

    /// Places of a process that has ended and whose threads were never seen to end.
    fn drop_threads(&mut self, pid: u32) {
        for n in 0..self.seen.len() {
            let Some(mut seen) = self.seen[n].take_if(|s| s.key.0 == pid) else {
                continue;
            };
            if let Some(place) = self.kernel.threads.read(n) {
                merge(&mut self.ended, seen.key, seen.tell_end(&place));
            }
            self.kernel.drop_thread(n, seen.key.1);
            if let Some(process) = self.stacks.processes.get_mut(pid) {
                process.threads = process.threads.saturating_sub(1);
            }
        }
    }

    // ---- telling --------------------------------------------------------------------------------------------------

    /// Everything since the last take, with the intervals that last still closed at this moment.
    pub fn take(&mut self) -> Taken {
        let cpu = self.quality.own_time();
        self.drain(monotonic_ns());
        self.tick();
        let end_ns = monotonic_ns();
        let mut threads = std::mem::take(&mut self.ended);
        for n in 0..self.seen.len() {
            let Some(place) = self.seen[n].as_ref().and(self.kernel.threads.read(n)) else {
                continue;
            };
            if let Some(seen) = &mut self.seen[n] {
                if place.state == state::ENDED {
                    continue; // told at the next tick
                }
                let mut row = seen.tell(&place, end_ns);
                row.name = thread_name(place.pid, place.tid);
                merge(&mut threads, seen.key, row);
            }
        }
        let exact = threads
            .iter()
            .map(|(key, row)| (*key, exact(&row.times, self.options.off_cpu)))
            .collect();
        let crowded = std::mem::take(&mut self.stacks.table.crowded);
        let (rows, _) = self.stacks.table.take(&exact, &[]);
        let processes = self.told_processes();
        let start_ns = std::mem::replace(&mut self.since_ns, end_ns);
        let notes = self.stacks.processes.notes();
        drop(cpu);
        let quality = self
            .quality
            .take(&self.kernel, end_ns - start_ns, crowded, notes);
        let mut threads: Vec<_> = threads.into_iter().collect();
        threads.sort_unstable_by_key(|(key, _)| *key);
        Taken {
            start_ns,
            end_ns,
            rows,
            threads,
            processes,
            quality,
        }
    }

    fn told_processes(
        &mut self,
    ) -> Vec<(u32, String, u32, String, Option<i64>, String, bool)> {
        let rows = self
            .stacks
            .processes
            .iter()
            .map(|(pid, p)| {
                (
                    pid,
                    p.command.clone(),
                    p.parent,
                    p.python.clone(),
                    p.rank,
                    p.job.clone(),
                    p.ended,
                )
            })
            .collect();
        self.stacks.processes.forget_ended(self.since_ns);
        rows
    }

    /// `(name, runs, nanoseconds)` of every BPF program so far.
    pub fn program_costs(&self) -> Vec<(String, u64, u64)> {
        self.kernel.program_costs()
    }
}

fn exact(times: &Times, off_cpu: bool) -> [Option<u64>; 3] {
    let off = |ns| off_cpu.then_some(ns);
    [Some(times.on), off(times.off), off(times.runq)]
}

/// The process that a number stands for: it may be that of one of its threads. Errors: `NotFound`.
fn process_of(pid: u32) -> io::Result<u32> {
    let not_found = |what: &str| io::Error::new(io::ErrorKind::NotFound, format!("process {pid} {what}"));
    if !alive(pid) {
        return Err(not_found("is not there"));
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .map_err(|_| not_found("is not there"))?;
    // Threads of the kernel have no memory of their own.
    if !status.contains("\nVmSize:") {
        return Err(not_found("is one of the kernel's own threads"));
    }
    status
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
        .ok_or_else(|| not_found("is not there"))
}

/// Zombies do not live.
fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rfind(')').and_then(|at| stat[at..].chars().nth(2));
        !matches!(state, Some('Z' | 'X') | None)
    })
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

/// The clock that BPF has.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

pub fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid place for the answer; these clocks always exist.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Expires `hz` times a second, on a grid that does not shift when the agent is late.
fn timer(hz: u32) -> io::Result<OwnedFd> {
    let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
    // SAFETY: plain arguments.
    let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let period_ns = 1_000_000_000 / i64::from(hz.max(1));
    let period = libc::timespec {
        tv_sec: period_ns / 1_000_000_000,
        tv_nsec: period_ns % 1_000_000_000,
    };
    let spec = libc::itimerspec {
        it_interval: period,
        it_value: period,
    };
    // SAFETY: valid pointers, and none for the old value.
    let set = unsafe { libc::timerfd_settime(fd.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}
