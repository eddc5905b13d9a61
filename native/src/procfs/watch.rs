//! Looks at all threads of the watched processes at a steady rate, without a right of root's and without BPF.
//!
//! `schedstat` says whether a thread was on a CPU since the last look. One that was not is still blocked where it was:
//! its stack gets the time, for the price of one small read. Else `syscall` says whether it runs. Of a running thread
//! only Python frames can be read, from memory that changes meanwhile; of a blocked one the whole stack.

use std::fs;
use std::io;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::blocked::{wait_name, Sockets};
use crate::memory::ProcessMemory;
use crate::procfs::parse::{self, Place};
use crate::procfs::thread::{Blocked, Thread};
use crate::sample::{PyFrameRaw, RawSample, Regs, Resolved};
use crate::table::{State, Table, ThreadKey};
use crate::target::Target;

/// From the stack pointer upwards.
pub const STACK_BYTES: usize = 32 << 10;
/// Threads whose files stay open.
const KEPT_OPEN: usize = 256;
/// Looks between two lists of threads and children.
const LOOKS_PER_LIST: u64 = 10;

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub samples: u64,
    /// Samples with native frames, and how many of those reach the thread's start.
    pub native: u64,
    pub rooted: u64,
    pub mismatches: u64,
    pub frames: u64,
    pub unsymbolised: u64,
    /// Thrown away because the thread moved while it was read.
    pub drops: u64,
    /// Looks at running threads whose frames changed while they were read: what two reads agree on was kept.
    pub torn: u64,
}

#[derive(Debug)]
pub struct Process {
    pub command: String,
    pub parent: u32,
    pub python: String,
    pub ended: bool,
    started: u64,
    notes: Vec<String>,
}

pub struct Watch {
    pub table: Table,
    pub counts: Counts,
    pub processes: FxHashMap<u32, Process>,
    pub threads: FxHashMap<ThreadKey, Thread>,
    /// Ended since the last take, with their times.
    pub gone: Vec<(ThreadKey, Thread)>,
    pub targets: FxHashMap<u32, Target>,
    follow: bool,
    off_cpu: bool,
    /// Somebody else samples threads that run (perf events): here only their times are kept.
    pub on_cpu: bool,
    looks: u64,
    sockets: Sockets,
    stack: Vec<u8>,
    python: [Vec<PyFrameRaw>; 2],
}

impl Watch {
    pub fn new(follow: bool, off_cpu: bool, on_cpu: bool) -> Watch {
        Watch {
            table: Table::default(),
            counts: Counts::default(),
            processes: FxHashMap::default(),
            threads: FxHashMap::default(),
            gone: Vec::new(),
            targets: FxHashMap::default(),
            follow,
            off_cpu,
            on_cpu,
            looks: 0,
            sockets: Sockets::default(),
            stack: vec![0; STACK_BYTES],
            python: Default::default(),
        }
    }

    /// Errors: no such process, or no right to read its memory, in one line each.
    pub fn add(&mut self, pid: u32, now_ns: u64) -> io::Result<()> {
        if self.processes.get(&pid).is_some_and(|p| !p.ended) {
            return Ok(());
        }
        let stat = process_stat(pid)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no process {pid}")))?;
        if stat.ended() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("process {pid} has ended"),
            ));
        }
        may_read(pid)?;
        let target = Target::open(pid)?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = parse::command(&command);
        let process = Process {
            command: if command.is_empty() { stat.name } else { command },
            parent: stat.parent,
            python: target.python().map(|p| p.name()).unwrap_or_default(),
            ended: false,
            started: stat.started,
            notes: target.notes().to_vec(),
        };
        self.processes.insert(pid, process);
        self.targets.insert(pid, target);
        self.list(pid, now_ns);
        Ok(())
    }

    pub fn live(&self) -> usize {
        self.processes.values().filter(|p| !p.ended).count()
    }

    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self
            .processes
            .iter()
            .flat_map(|(pid, p)| p.notes.iter().map(move |n| format!("process {pid}: {n}")))
            .collect();
        notes.sort();
        notes
    }

    /// One look at every thread. `now_ns` is the kernel's monotonic clock.
    pub fn look(&mut self, now_ns: u64) {
        if self.looks % LOOKS_PER_LIST == 0 {
            let mut pids: Vec<u32> = self.processes.iter().filter(|(_, p)| !p.ended).map(|(pid, _)| *pid).collect();
            pids.sort_unstable();
            for pid in pids {
                self.list(pid, now_ns);
            }
        }
        self.looks += 1;
        let keys: Vec<ThreadKey> = self.threads.keys().copied().collect();
        for key in keys {
            if !self.look_at(key, now_ns) {
                if let Some(thread) = self.threads.remove(&key) {
                    self.gone.push((key, thread));
                }
            }
        }
    }

    /// False: the thread has ended.
    fn look_at(&mut self, key: ThreadKey, now_ns: u64) -> bool {
        let Some(thread) = self.threads.get_mut(&key) else {
            return false;
        };
        let before = thread.times;
        let took = now_ns.saturating_sub(thread.last_ns);
        if thread.exact {
            match thread.read_times() {
                Some(times) => thread.times = times,
                None => return false,
            }
        }
        thread.last_ns = now_ns;
        let times = thread.times;
        if thread.exact {
            if let Some(known) = thread.blocked {
                if known.times == times && known.generation == self.table.generation {
                    if self.off_cpu {
                        self.table.add(key, State::Off, known.stack, 1, took);
                        self.counts.samples += 1;
                    }
                    return true;
                }
            }
        }
        thread.blocked = None;
        let place = match thread.place() {
            Ok(place) => place,
            // ESRCH of a thread that has ended; a kernel without this file ends here as well.
            Err(e) => return e.kind() == io::ErrorKind::InvalidData,
        };
        match place {
            Place::Running => {
                if self.on_cpu {
                    let waited = times.runq_ns.saturating_sub(before.runq_ns).min(took);
                    self.running(key, took, waited, now_ns);
                }
            }
            Place::Blocked { call, arguments, sp, ip } => {
                if self.off_cpu {
                    let regs = Regs { ip, sp, ..Regs::default() };
                    self.asleep(key, took, now_ns, regs, call, arguments[0]);
                }
            }
        }
        true
    }

    fn running(&mut self, key: ThreadKey, took: u64, waited: u64, now_ns: u64) {
        let (pid, tid) = key;
        let [first, second] = &mut self.python;
        let Some(target) = self.targets.get_mut(&pid) else {
            return;
        };
        let torn = agreed_frames(target, tid, first, second);
        self.counts.torn += u64::from(torn);
        let stack = if first.is_empty() {
            self.table.named_stack("(running, native)")
        } else {
            let sample = RawSample {
                pid,
                tid,
                time_ns: now_ns,
                regs: Regs::default(),
                stack: &[],
                python: first,
                kernel: &[],
                live: true,
            };
            let resolved = target.resolve(&sample, &mut self.table.frames);
            if resolved.frames.is_empty() {
                self.table.named_stack("(running, native)")
            } else {
                self.table.stack(&resolved.frames)
            }
        };
        self.counts.samples += 1;
        self.table.add(key, State::On, stack, 1, took - waited);
        if waited > 0 {
            self.table.add(key, State::Runq, stack, 0, waited);
        }
    }

    fn asleep(&mut self, key: ThreadKey, took: u64, now_ns: u64, regs: Regs, call: i64, argument: u64) {
        let (pid, tid) = key;
        let (Some(target), Some(thread)) = (self.targets.get_mut(&pid), self.threads.get_mut(&key)) else {
            return;
        };
        let memory = ProcessMemory::new(pid);
        let n = memory.read_some(regs.sp, &mut self.stack).unwrap_or(0);
        let python = &mut self.python[0];
        target.python_frames(tid, None, python);
        let state = thread.stat().map_or(1, |s| s.task_state());
        // If it was on a CPU since its times were read, stack and frames may be of two moments.
        if thread.exact && thread.read_times() != Some(thread.times) {
            self.counts.drops += 1;
            return;
        }
        let sample = RawSample {
            pid,
            tid,
            time_ns: now_ns,
            regs,
            stack: &self.stack[..n],
            python,
            kernel: &[],
            live: true,
        };
        let resolved = target.resolve(&sample, &mut self.table.frames);
        let sockets = &mut self.sockets;
        let what = wait_name(call, state, || sockets.fd(pid, argument));
        self.counts.add(&resolved);
        let mut frames = resolved.frames;
        frames.push(self.table.frames.wait(&what));
        let stack = self.table.stack(&frames);
        self.table.add(key, State::Off, stack, 1, took);
        thread.blocked = Some(Blocked {
            stack,
            times: thread.times,
            generation: self.table.generation,
        });
    }

    /// New threads and children of a process, and whether it is still the one that was added.
    fn list(&mut self, pid: u32, now_ns: u64) {
        let stat = process_stat(pid);
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        if stat.is_none_or(|s| s.ended() || s.started != process.started) {
            process.ended = true;
            self.targets.remove(&pid);
            return;
        }
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
            return;
        };
        let tids: FxHashSet<u32> = tasks
            .flatten()
            .filter_map(|e| e.file_name().to_str()?.parse().ok())
            .collect();
        let mut born = Vec::new();
        for tid in tids {
            if self.follow {
                let told = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children"));
                born.extend(parse::children(&told.unwrap_or_default()));
            }
            let keep = self.threads.len() < KEPT_OPEN;
            if let std::collections::hash_map::Entry::Vacant(place) = self.threads.entry((pid, tid)) {
                if let Some(thread) = Thread::open(pid, tid, now_ns, keep) {
                    place.insert(thread);
                }
            }
        }
        for child in born {
            if !self.processes.contains_key(&child) {
                // A child that ended at once, or that runs as another user, is none of ours.
                let _ = self.add(child, now_ns);
            }
        }
        if self.looks % (LOOKS_PER_LIST * 10) == 0 {
            if let (Some(target), Some(process)) = (self.targets.get_mut(&pid), self.processes.get_mut(&pid)) {
                if target.refresh().unwrap_or(false) && process.python.is_empty() {
                    process.python = target.python().map(|p| p.name()).unwrap_or_default();
                }
            }
        }
    }
}

impl Counts {
    pub fn add(&mut self, resolved: &Resolved) {
        self.samples += 1;
        self.mismatches += u64::from(resolved.mismatch);
        self.frames += u64::from(resolved.native);
        self.unsymbolised += u64::from(resolved.unsymbolised);
        if resolved.native > 0 {
            self.native += 1;
            self.rooted += u64::from(resolved.rooted);
        }
    }
}

/// Python frames of a thread that runs, in `first`: two reads that agree, else what they have in common from the root.
/// True: they never agreed.
pub fn agreed_frames(
    target: &mut Target,
    tid: u32,
    first: &mut Vec<PyFrameRaw>,
    second: &mut Vec<PyFrameRaw>,
) -> bool {
    target.python_frames(tid, None, first);
    for _ in 0..3 {
        target.python_frames(tid, None, second);
        if same_code(first, second) == first.len().max(second.len()) {
            std::mem::swap(first, second);
            return false;
        }
        std::mem::swap(first, second);
    }
    let common = same_code(first, second);
    first.drain(..first.len() - common);
    true
}

/// How many frames are the same, counted from the root; both lists are leaf first.
fn same_code(one: &[PyFrameRaw], other: &[PyFrameRaw]) -> usize {
    one.iter()
        .rev()
        .zip(other.iter().rev())
        .take_while(|(a, b)| a.code == b.code)
        .count()
}

pub fn process_stat(pid: u32) -> Option<parse::Stat> {
    parse::stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Whether this user may read a process's memory: asked of the kernel, by a read of nothing that matters.
pub fn may_read(pid: u32) -> io::Result<()> {
    match fs::read_to_string(format!("/proc/{pid}/syscall")) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel has no /proc/PID/syscall (CONFIG_HAVE_ARCH_TRACEHOOK)",
        )),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal(pid)))
        }
        Err(e) => Err(e),
    }
}

fn refusal(pid: u32) -> String {
    use std::os::unix::fs::MetadataExt;
    let owner = fs::metadata(format!("/proc/{pid}")).map_or(u32::MAX, |m| m.uid());
    // SAFETY: takes nothing and always succeeds.
    let own = unsafe { libc::geteuid() };
    if owner != own {
        return format!(
            "process {pid} belongs to user {owner}, and this is user {own}: run as that user or as root (CAP_SYS_PTRACE)"
        );
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => format!(
            "process {pid} may not be read (it changed its user, or is in another user namespace): run as root"
        ),
        scope => format!(
            "process {pid} may not be read: kernel.yama.ptrace_scope is {scope}; set it to 0, or run as root"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(codes: &[u64]) -> Vec<PyFrameRaw> {
        codes
            .iter()
            .map(|&code| PyFrameRaw { code, ..PyFrameRaw::default() })
            .collect()
    }

    #[test]
    fn two_reads_have_their_root_in_common() {
        assert_eq!(same_code(&frames(&[9, 2, 1]), &frames(&[8, 2, 1])), 2);
        assert_eq!(same_code(&frames(&[3, 2, 1]), &frames(&[2, 1])), 2);
        assert_eq!(same_code(&frames(&[]), &frames(&[1])), 0);
    }

    #[test]
    fn a_process_that_is_not_there_is_said_in_one_line() {
        let mut watch = Watch::new(true, true, true);
        let error = watch.add(u32::MAX - 7, 0).expect_err("there is none");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(!error.to_string().contains('\n'));
    }

    #[test]
    fn times_of_a_thread_share_its_wall_time() {
        let mut thread = Thread::open(std::process::id(), unsafe { libc::gettid() } as u32, 1_000, false)
            .expect("this thread");
        thread.times.on_ns = thread.taken.on_ns + 600;
        thread.times.runq_ns = thread.taken.runq_ns + 900;
        assert_eq!(thread.take(2_000), [Some(600), Some(0), Some(400)]);
        assert_eq!(thread.take(2_500), [Some(0), Some(500), Some(0)]);
    }
}
