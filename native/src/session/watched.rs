//! The processes and threads that are watched, and looks at threads that do not run: where they wait, at a cost that does
//! not depend on how often they switch.

use rustc_hash::FxHashMap;

use crate::blocked::{wait_name, Sockets};
use crate::clock::monotonic_ns;
use crate::kernel::{state, Kernel, ThreadPlace, STACK_BYTES};
use crate::memory::ProcessMemory;
use crate::processes::thread_name;
use crate::profile::Options;
use crate::quality::{Marks, Quality};
use crate::sample::{Outer, PyFrameRaw, RawSample};
use crate::stacks::Stacks;
use crate::table::{State, ThreadKey};
use crate::threads::{merge, Seen, Stand, ThreadRow};

pub struct Watched {
    pub options: Options,
    pub kernel: Kernel,
    pub stacks: Stacks,
    pub quality: Quality,
    /// By place in BPF's table.
    pub seen: Vec<Option<Seen>>,
    pub ended: FxHashMap<ThreadKey, ThreadRow>,
    sockets: Sockets,
    tick_ns: u64,
    stack: Vec<u8>,
    python: Vec<PyFrameRaw>,
}

impl Watched {
    pub fn new(options: Options, kernel: Kernel, stacks: Stacks, quality: Quality, now_ns: u64) -> Watched {
        Watched {
            options,
            kernel,
            stacks,
            quality,
            seen: Vec::new(),
            ended: FxHashMap::default(),
            sockets: Sockets::default(),
            tick_ns: now_ns,
            stack: vec![0; STACK_BYTES],
            python: Vec::new(),
        }
    }

    /// Nanoseconds from sample to sample.
    pub fn period_ns(&self) -> u64 {
        1_000_000_000 / u64::from(self.options.hz.max(1))
    }

    /// Looks at every thread: those that do not run, and stand where they stood, only have their time added.
    pub fn tick(&mut self) {
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
        let stood = seen.stands.filter(|s| s.0 == seq && s.1.generation == generation);
        if let Some((_, stand)) = stood {
            self.quality.sampled(stand.marks, now_ns);
            self.stacks.table.add(key, what, stand.stack, 1, passed_ns);
            return;
        }
        let Some((place, stand)) = self.stack_of_blocked(n) else {
            return;
        };
        if let Some(seen) = &mut self.seen[n] {
            seen.stands = Some((place.seq, stand));
        }
        // Where the last look was long ago (the agent was late), this stack stands for what it is known to have lasted.
        let lasted_ns = now_ns.saturating_sub(place.since).max(self.period_ns());
        self.quality.sampled(stand.marks, now_ns);
        self.stacks
            .table
            .add(key, what, stand.stack, 1, passed_ns.min(lasted_ns));
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
            self.stacks.processes.known(place.pid, None, place.since).threads += 1;
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

    /// The stack of a thread that does not run, and its place as it was then. Nothing where the thread moved meanwhile
    /// (counted), unless it came back to the very same place.
    fn stack_of_blocked(&mut self, n: usize) -> Option<(ThreadPlace, Stand)> {
        for _ in 0..2 {
            let mut before = self.kernel.threads.read(n)?;
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
                before = now;
            }
            let print = fingerprint(&before, &self.stack[..read], &self.python);
            let generation = self.stacks.table.generation;
            let again = self.seen[n].as_ref().and_then(|s| s.looked);
            let stand = match again.filter(|a| a.0 == print && a.1.generation == generation) {
                Some((_, stand)) => stand,
                None => self.resolve_blocked(&before, read),
            };
            // Not every kernel tells of every switch: a thread that was believed to wait for a CPU ran while it was read.
            if before.state == state::RUNQ && stand.marks.mismatch {
                break;
            }
            if let Some(seen) = &mut self.seen[n] {
                seen.looked = Some((print, stand));
            }
            return Some((before, stand));
        }
        self.quality.seen.moved += 1;
        None
    }

    /// Copies the stack and the Python frames; gives how much of the stack there was.
    fn read_blocked(&mut self, place: &ThreadPlace) -> usize {
        self.python.clear();
        if place.regs.sp == 0 {
            return 0;
        }
        let memory = ProcessMemory::new(place.pid);
        let n = memory.read_some(place.regs.sp, &mut self.stack).unwrap_or(0);
        place.restore_returns(&mut self.stack[..n]);
        let fsbase = (place.fsbase != 0).then_some(place.fsbase);
        if let Some(target) = self.stacks.processes.target(place.pid) {
            target.python_frames(place.tid, fsbase, &mut self.python);
        }
        n
    }

    fn resolve_blocked(&mut self, place: &ThreadPlace, n_stack: usize) -> Stand {
        let regs = place.regs;
        let sample = RawSample {
            pid: place.pid,
            tid: place.tid,
            time_ns: self.tick_ns,
            regs,
            stack: &self.stack[..n_stack],
            outer: Outer::default(),
            python_known: true,
            python: &self.python,
            kernel: &[],
            live: true,
        };
        let mut frames = Vec::new();
        let mut marks = Marks::NOTHING;
        // A thread that never ran has no user side yet.
        if regs.ip != 0 {
            let resolved = self.stacks.processes.resolve(&sample, &mut self.stacks.table);
            marks = Marks::of(&resolved, !sample.python.is_empty());
            frames = resolved.frames;
        }
        let wait = if place.state == state::RUNQ {
            "run queue".to_owned()
        } else {
            let sockets = &mut self.sockets;
            wait_name(place.call, place.args, place.task_state, || {
                sockets.fd(place.pid, place.args[0])
            })
        };
        frames.push(self.stacks.table.frames.wait(&wait));
        Stand {
            stack: self.stacks.table.stack(&frames),
            generation: self.stacks.table.generation,
            marks,
        }
    }

    /// Places of a process that has ended and whose threads were never seen to end.
    pub fn drop_threads(&mut self, pid: u32) {
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

    /// The threads' times since the last take, of those that ended meanwhile, too.
    pub fn take_threads(&mut self, end_ns: u64) -> FxHashMap<ThreadKey, ThreadRow> {
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
        threads
    }
}

/// Threads that wait in a loop stand in the same place again and again: all that their stack is made from is the same.
fn fingerprint(place: &ThreadPlace, stack: &[u8], python: &[PyFrameRaw]) -> u64 {
    use std::hash::Hasher;
    let mut hasher = rustc_hash::FxHasher::default();
    for word in [
        place.regs.ip,
        place.regs.sp,
        place.regs.bp,
        place.call as u64,
        place.args[0],
    ] {
        hasher.write_u64(word);
    }
    hasher.write_u32(place.task_state ^ place.state << 24);
    hasher.write(stack);
    for frame in python {
        hasher.write_u64(frame.code);
        hasher.write_u64(frame.instr);
    }
    hasher.finish()
}
