//! Looks at all threads of the watched processes at a steady rate, without a right of root's and without BPF.
//!
//! `schedstat` says whether a thread was on a CPU since the last look. One that was not is still blocked where it was:
//! its stack gets the time, for the price of one small read. Else `syscall` says whether it runs. Of a running thread
//! only Python frames can be read, from memory that changes meanwhile; of a blocked one the whole stack.

use std::collections::hash_map::Entry;
use std::fs;
use std::io;

use rustc_hash::FxHashMap;

use crate::blocked::{wait_name, Sockets};
use crate::memory::ProcessMemory;
use crate::procfs::agreed::agreed_frames;
use crate::procfs::counts::Counts;
use crate::procfs::parse::{self, SyscallPlace};
use crate::procfs::rights::{closed_file, may_read, process_stat};
use crate::procfs::thread::{Blocked, Thread};
use crate::sample::{Outer, PyFrameRaw, RawSample, Regs};
use crate::stacks::Stacks;
use crate::table::{State, ThreadKey};

/// From the stack pointer upwards.
pub const STACK_BYTES: usize = 32 << 10;
/// Threads whose files stay open.
const KEPT_OPEN: usize = 256;
/// Looks between two lists of threads and children, and between two looks for changed mappings.
const LOOKS_PER_LIST: u64 = 10;
const LOOKS_PER_REFRESH: u64 = 100;

pub struct Watch {
    pub stacks: Stacks,
    pub counts: Counts,
    pub threads: FxHashMap<ThreadKey, Thread>,
    /// Threads that ended since the last take, with their times.
    pub gone: Vec<(ThreadKey, Thread)>,
    /// When each process started, which tells it from a later one of the same number.
    started: FxHashMap<u32, u64>,
    /// A file of each process that may not be read, if there is one.
    closed: FxHashMap<u32, String>,
    follow: bool,
    off_cpu: bool,
    /// False: somebody else samples threads that run (perf events), and here only their times are kept.
    on_cpu: bool,
    looks: u64,
    sockets: Sockets,
    stack: Vec<u8>,
    pub python: [Vec<PyFrameRaw>; 2],
}

impl Watch {
    pub fn new(follow: bool, off_cpu: bool, on_cpu: bool) -> Watch {
        Watch {
            stacks: Stacks::default(),
            counts: Counts::default(),
            threads: FxHashMap::default(),
            gone: Vec::new(),
            started: FxHashMap::default(),
            closed: FxHashMap::default(),
            follow,
            off_cpu,
            on_cpu,
            looks: 0,
            sockets: Sockets::default(),
            stack: vec![0; STACK_BYTES],
            python: Default::default(),
        }
    }

    /// Errors: no such process, or no right to look into it, in one line each.
    pub fn add(&mut self, pid: u32, now_ns: u64) -> io::Result<()> {
        if self.started.contains_key(&pid) {
            return Ok(());
        }
        let stat = process_stat(pid)
            .filter(|s| !s.ended())
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("process {pid} is not there")))?;
        // Perf events need no right to read memory: they show what they can without it.
        if self.on_cpu {
            may_read(pid)?;
        }
        self.stacks.processes.open(pid, now_ns)?;
        self.started.insert(pid, stat.started);
        if let Some(file) = closed_file(pid) {
            self.closed.insert(pid, file);
        }
        self.list(pid, now_ns);
        Ok(())
    }

    pub fn live(&self) -> usize {
        self.started.len()
    }

    /// Processes whose programs this user may not read: without them there are no symbols, and no Python is found.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self
            .closed
            .iter()
            .map(|(pid, file)| {
                format!(
                    "process {pid}: this user may not read {file}: no symbols of it, and perhaps no Python frames"
                )
            })
            .collect();
        notes.sort();
        notes
    }

    pub fn watches(&self, pid: u32) -> bool {
        self.started.contains_key(&pid)
    }

    pub fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.started.keys().copied().collect();
        pids.sort_unstable();
        pids
    }

    /// One look at every thread. `now_ns` is the kernel's monotonic clock.
    pub fn look(&mut self, now_ns: u64) {
        if self.looks % LOOKS_PER_LIST == 0 {
            for pid in self.pids() {
                self.list(pid, now_ns);
            }
            self.stacks.processes.look_for_python(now_ns);
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
        if !thread.update(now_ns) {
            return false;
        }
        let times = thread.times;
        let known = thread.blocked.filter(|known| {
            thread.exact && known.times == times && known.generation == self.stacks.table.generation
        });
        if let Some(known) = known {
            if self.off_cpu {
                self.stacks.table.add(key, State::Off, known.stack, 1, took);
            }
            return true;
        }
        thread.blocked = None;
        // What the kernel booked since the last look. Where it books nothing, all of the time is the state's that is seen.
        let ran_ns = times.on_ns.saturating_sub(before.on_ns).min(took);
        let waited = times.runq_ns.saturating_sub(before.runq_ns).min(took - ran_ns);
        let rest = took - ran_ns - waited;
        let ran_ns = if thread.exact { ran_ns } else { took };
        let place = thread.place();
        thread.runnable = matches!(place, Ok(SyscallPlace::Running));
        match place {
            Ok(SyscallPlace::Running) if self.on_cpu => self.running(key, ran_ns, waited, now_ns),
            Ok(SyscallPlace::Running) => {
                let stack = thread
                    .ran
                    .filter(|(_, generation)| *generation == self.stacks.table.generation);
                if let Some((stack, _)) = stack.filter(|_| waited > 0) {
                    self.stacks.table.add(key, State::Runq, stack, 0, waited);
                }
            }
            Ok(SyscallPlace::Blocked {
                call,
                arguments,
                sp,
                ip,
            }) if self.off_cpu => {
                let regs = Regs {
                    ip,
                    sp,
                    ..Regs::default()
                };
                self.asleep(key, rest, now_ns, regs, (call, arguments));
            }
            Ok(_) => {}
            // No right to read it (perf events need less), or a text that is not understood: its times are kept.
            Err(e) => return e.raw_os_error() != Some(libc::ESRCH),
        }
        true
    }

    /// `ran_ns`: what it ran since the last look. Nothing: it waits for a CPU, and its stack is looked at for that.
    fn running(&mut self, key: ThreadKey, ran_ns: u64, waited: u64, now_ns: u64) {
        if ran_ns == 0 && waited == 0 {
            return;
        }
        let (pid, tid) = key;
        let [first, second] = &mut self.python;
        let Some(target) = self.stacks.processes.target(pid) else {
            return;
        };
        self.counts.torn += u64::from(agreed_frames(target, tid, first, second));
        let table = &mut self.stacks.table;
        let frames = target.show_python(first, &mut table.frames);
        let stack = if frames.is_empty() {
            table.named_stack("(running without Python frames)")
        } else {
            self.counts.first_ns.get_or_insert(now_ns);
            table.stack(&frames)
        };
        self.counts.samples += 1;
        if ran_ns > 0 {
            table.add(key, State::On, stack, 1, ran_ns);
        }
        if waited > 0 {
            table.add(key, State::Runq, stack, 0, waited);
        }
    }

    fn asleep(&mut self, key: ThreadKey, took: u64, now_ns: u64, regs: Regs, call: (i64, [u64; 3])) {
        let (pid, tid) = key;
        let Some(thread) = self.threads.get_mut(&key) else {
            return;
        };
        let n = ProcessMemory::new(pid)
            .read_some(regs.sp, &mut self.stack)
            .unwrap_or(0);
        let python = &mut self.python[0];
        python.clear();
        let Some(target) = self.stacks.processes.target(pid) else {
            return;
        };
        target.python_frames(tid, None, python);
        let state = thread.stat().map_or(1, |s| s.task_state());
        // If it was on a CPU since its times were read, stack and frames may be of two moments.
        if thread.exact && thread.read_times() != Some(thread.times) {
            self.counts.moved += 1;
            return;
        }
        let sample = RawSample {
            pid,
            tid,
            time_ns: now_ns,
            regs,
            stack: &self.stack[..n],
            outer: Outer::default(),
            python_known: true,
            python,
            kernel: &[],
            live: true,
        };
        let table = &mut self.stacks.table;
        let resolved = target.resolve(&sample, &mut table.frames);
        self.counts.add(&resolved, !python.is_empty(), now_ns);
        let sockets = &mut self.sockets;
        let what = wait_name(call.0, call.1, state, || sockets.fd(pid, call.1[0]));
        let mut frames = resolved.frames;
        frames.push(table.frames.wait(&what));
        let stack = table.stack(&frames);
        table.add(key, State::Off, stack, 1, took);
        thread.blocked = Some(Blocked {
            stack,
            times: thread.times,
            generation: table.generation,
        });
    }

    /// New threads and children of a process, and whether it is still the one that was added.
    fn list(&mut self, pid: u32, now_ns: u64) {
        let Some(&started) = self.started.get(&pid) else {
            return;
        };
        if process_stat(pid).is_none_or(|s| s.ended() || s.started != started) {
            self.ended(pid, now_ns);
            return;
        }
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
            return;
        };
        let mut born = Vec::new();
        for tid in tasks
            .flatten()
            .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
        {
            if self.follow {
                let told = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children"));
                born.extend(parse::children(&told.unwrap_or_default()));
            }
            let keep = self.threads.len() < KEPT_OPEN;
            if let Entry::Vacant(place) = self.threads.entry((pid, tid)) {
                if let Some(thread) = Thread::open(pid, tid, now_ns, keep) {
                    place.insert(thread);
                }
            }
        }
        for child in born {
            if !self.started.contains_key(&child) {
                // A child that ended at once, or that runs as another user, is none of ours.
                let _ = self.add(child, now_ns);
            }
        }
        if self.looks % LOOKS_PER_REFRESH == 0 {
            if let Some(target) = self.stacks.processes.target(pid) {
                let _ = target.refresh();
            }
        }
    }

    fn ended(&mut self, pid: u32, now_ns: u64) {
        self.started.remove(&pid);
        self.stacks.processes.exited(pid, now_ns);
        let keys: Vec<ThreadKey> = self.threads.keys().filter(|key| key.0 == pid).copied().collect();
        for key in keys {
            if let Some(thread) = self.threads.remove(&key) {
                self.gone.push((key, thread));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // It waits for a CPU since 2,600, which is booked only when it gets one: told once, not twice.
        thread.runnable = true;
        thread.changed_ns = 2_600;
        assert_eq!(thread.take(3_000), [Some(0), Some(100), Some(400)]);
        thread.runnable = false;
        thread.times.runq_ns += 450;
        assert_eq!(thread.take(3_500), [Some(0), Some(450), Some(50)]);
    }
}
