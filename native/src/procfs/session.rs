//! One look at running processes without BPF: the same answers as [`crate::session`], with less in them.

use std::io;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::clock::monotonic_ns;
use crate::own_cost::OwnCost;
use crate::perf::{Perf, Sampled};
use crate::procfs::agreed::agreed_frames;
use crate::procfs::counts::Counts;
use crate::procfs::rights::may_read;
use crate::procfs::thread::Thread;
use crate::procfs::watch::Watch;
use crate::profile::{Options, Profile};
use crate::quality::{counted, percent_or, ProfileQuality};
use crate::sample::RawSample;
use crate::table::{Rows, State, ThreadKey};
use crate::threads::{merge, sorted, ThreadRow, Times};

/// Looks that come later than this many periods are left out: a thousand of them at once would tell of one moment.
const LATE: u64 = 3;

pub struct ProcfsSession {
    options: Options,
    watch: Watch,
    perf: Option<Perf>,
    start_ns: u64,
    since_ns: u64,
    next_ns: u64,
    own: OwnCost,
    lost: u64,
    /// Samples whose Python frames did not fit to their native stack.
    unfit: u64,
}

impl ProcfsSession {
    /// Tier T2, or T1 with `perf`. Errors: `NotFound`, `PermissionDenied`, `Unsupported`, one line each.
    pub fn start(pids: &[u32], options: Options, perf: bool) -> io::Result<ProcfsSession> {
        let (start_ns, mut own) = (monotonic_ns(), OwnCost::start());
        let mut watch = Watch::new(options.follow, options.off_cpu, !perf);
        for &pid in pids {
            watch.add(pid, start_ns)?;
        }
        let perf = if perf {
            Some(Perf::open(&watch.pids(), options.hz)?)
        } else {
            None
        };
        own.attached();
        Ok(ProcfsSession {
            options,
            watch,
            perf,
            start_ns,
            since_ns: start_ns,
            next_ns: start_ns,
            own,
            lost: 0,
            unfit: 0,
        })
    }

    pub fn misses(&self) -> Vec<String> {
        let mut misses = Vec::new();
        match &self.perf {
            Some(perf) => {
                let unread = self.watch.pids().into_iter().find_map(|p| may_read(p).err());
                if let Some(reason) = unread {
                    misses.push(format!(
                        "Python frames, and stacks of threads that wait: {reason}"
                    ));
                }
                if !perf.kernel {
                    misses.push(
                        "time in the kernel: kernel.perf_event_paranoid allows samples of user code only (1 allows both)"
                            .to_owned(),
                    );
                }
                misses.push(
                    "the exact moment of Python frames: they are read when the agent wakes, some microseconds after the \
                     sample"
                        .to_owned(),
                );
            }
            None => misses.push(
                "native and kernel frames of threads that run: only their Python frames can be read"
                    .to_owned(),
            ),
        }
        misses.push(
            "calls: no counts of operators, copies, collectives and allocations, no bytes of sockets and files"
                .to_owned(),
        );
        misses.push("threads and processes that live for less than a tenth of a second".to_owned());
        misses
    }

    pub fn add(&mut self, pid: u32) -> io::Result<()> {
        let before = self.watch.pids();
        self.watch.add(pid, monotonic_ns())?;
        if let Some(perf) = &mut self.perf {
            let new: Vec<u32> = self
                .watch
                .pids()
                .into_iter()
                .filter(|p| !before.contains(p))
                .collect();
            perf.add(&new)?;
        }
        Ok(())
    }

    /// Looks for that long, or until every process has ended. Gives how many live.
    pub fn run(&mut self, time: Duration) -> io::Result<usize> {
        let until_ns = monotonic_ns() + time.as_nanos() as u64;
        let period_ns = 1_000_000_000 / u64::from(self.options.hz.max(1));
        loop {
            let now_ns = monotonic_ns();
            if now_ns >= self.next_ns {
                self.watch.look(now_ns);
                self.next_ns += period_ns;
                if now_ns > self.next_ns + LATE * period_ns {
                    self.next_ns = now_ns + period_ns;
                }
            }
            self.drain();
            let now_ns = monotonic_ns();
            if self.watch.live() == 0 || now_ns >= until_ns {
                break;
            }
            let wait_ns = self.next_ns.min(until_ns).saturating_sub(now_ns);
            match &self.perf {
                Some(perf) => perf.wait(wait_ns)?,
                None => sleep(wait_ns),
            }
        }
        Ok(self.watch.live())
    }

    /// Everything that waits in the rings of perf events.
    fn drain(&mut self) {
        let Some(perf) = &mut self.perf else {
            return;
        };
        let watch = &mut self.watch;
        let period_ns = 1_000_000_000 / u64::from(self.options.hz.max(1));
        let follow = self.options.follow;
        let unfit = &mut self.unfit;
        self.lost += perf.drain(|event| match event {
            Sampled::Sample(sample) => sampled(watch, &sample, period_ns, unfit),
            Sampled::Mapped(pid) => {
                if let Some(target) = watch.stacks.processes.target(pid) {
                    let _ = target.refresh();
                }
            }
            Sampled::Forked { pid, parent } => {
                if pid != parent && follow {
                    // Its threads are found at once, and not only with the next list.
                    let _ = watch.add(pid, monotonic_ns());
                }
            }
        });
    }

    /// Everything since the last take.
    pub fn take(&mut self) -> Profile {
        self.drain();
        let end_ns = monotonic_ns();
        self.watch.look(end_ns);
        let start_ns = std::mem::replace(&mut self.since_ns, end_ns);
        let mut exact = FxHashMap::default();
        let mut threads: FxHashMap<ThreadKey, ThreadRow> = FxHashMap::default();
        let mut unknown = Vec::new();
        let gone = std::mem::take(&mut self.watch.gone);
        for (key, mut thread) in gone {
            let at = thread.last_ns;
            told(key, &mut thread, at, &mut threads, &mut unknown);
        }
        for (key, thread) in &mut self.watch.threads {
            told(*key, thread, end_ns, &mut threads, &mut unknown);
        }
        for (key, row) in &threads {
            if !unknown.contains(key) {
                exact.insert(*key, row.times.known(self.options.off_cpu));
            }
        }
        let stacks = &mut self.watch.stacks;
        let crowded = std::mem::take(&mut stacks.table.crowded);
        let (rows, _) = stacks.table.take(&exact, &[]);
        for key in unknown {
            if let Some(row) = threads.get_mut(&key) {
                row.times = summed(&rows, key);
            }
        }
        let mut notes = stacks.processes.notes();
        let processes = stacks.processes.told(start_ns);
        let counts = std::mem::take(&mut self.watch.counts);
        self.watch.counts.first_ns = counts.first_ns;
        notes.extend(self.watch.notes());
        notes.extend(self.notes(&counts, crowded));
        let quality = self.told_quality(&counts, notes);
        Profile {
            start_ns,
            end_ns,
            rows,
            threads: sorted(threads),
            processes,
            calls: crate::calls::CallRows::default(),
            quality,
        }
    }

    fn notes(&mut self, counts: &Counts, crowded: u64) -> Vec<String> {
        counted([
            (
                counts.moved,
                "looks at blocked threads were thrown away, because the thread moved meanwhile",
            ),
            (
                counts.torn,
                "looks at running threads met changing frames, of which what two reads had in common was kept",
            ),
            (
                std::mem::take(&mut self.unfit),
                "samples lost their Python frames, which did not fit to the native stack",
            ),
            (
                crowded,
                "samples had one stack too many and stand under (other stacks)",
            ),
        ])
        .collect()
    }

    fn told_quality(&mut self, counts: &Counts, notes: Vec<String>) -> ProfileQuality {
        ProfileQuality {
            samples: counts.samples,
            drops: std::mem::take(&mut self.lost),
            rooted_pct: percent_or(counts.rooted, counts.native, 100.0),
            symbolised_pct: 100.0 - percent_or(counts.unsymbolised, counts.frames, 0.0),
            merge_mismatch_pct: percent_or(counts.mismatches, counts.with_python, 0.0),
            bpf_cpu_pct: None,
            agent_cpu_pct: Some(self.own.take_pct()),
            attach_cpu_s: Some(self.own.attach_s()),
            first_sample_ns: counts.first_ns.map(|ns| ns.saturating_sub(self.start_ns)),
            notes,
        }
    }
}

/// A sample of a thread that ran a moment ago: its Python frames are read now, and joined only if they fit.
fn sampled(watch: &mut Watch, sample: &RawSample<'_>, period_ns: u64, unfit: &mut u64) {
    let key = (sample.pid, sample.tid);
    if !watch.watches(sample.pid) {
        return; // a child that is not to be followed
    }
    let [first, second] = &mut watch.python;
    let Some(target) = watch.stacks.processes.target(sample.pid) else {
        return;
    };
    watch.counts.torn += u64::from(agreed_frames(target, sample.tid, first, second));
    let table = &mut watch.stacks.table;
    let mut joined = *sample;
    joined.python = first;
    let mut resolved = target.resolve(&joined, &mut table.frames);
    if resolved.mismatch && !first.is_empty() {
        *unfit += 1;
        joined.python = &[];
        resolved = target.resolve(&joined, &mut table.frames);
    }
    watch
        .counts
        .add(&resolved, !joined.python.is_empty(), sample.time_ns);
    let stack = if resolved.frames.is_empty() {
        table.named_stack("(not resolved)")
    } else {
        table.stack(&resolved.frames)
    };
    table.add(key, State::On, stack, 1, period_ns);
    let generation = table.generation;
    if let Some(thread) = watch.threads.get_mut(&key) {
        thread.ran = Some((stack, generation));
    }
}

fn told(
    key: ThreadKey,
    thread: &mut Thread,
    at_ns: u64,
    rows: &mut FxHashMap<ThreadKey, ThreadRow>,
    unknown: &mut Vec<ThreadKey>,
) {
    let first_ns = thread.since_ns;
    let times = thread.take(at_ns);
    if times[0].is_none() {
        unknown.push(key);
    }
    let [on, off, runq] = times.map(Option::unwrap_or_default);
    let row = ThreadRow {
        name: thread.name.clone(),
        times: Times { on, off, runq },
        first_ns,
        last_ns: at_ns.max(first_ns),
    };
    merge(rows, key, row);
}

/// Where the kernel keeps no times of threads: those of the samples.
fn summed(rows: &Rows, key: ThreadKey) -> Times {
    let of = |state: State| {
        rows.samples
            .iter()
            .filter(|s| (s.0, s.1) == key && s.3 == state)
            .map(|s| s.5)
            .sum()
    };
    Times {
        on: of(State::On),
        off: of(State::Off),
        runq: of(State::Runq),
    }
}

fn sleep(ns: u64) {
    std::thread::sleep(Duration::from_nanos(ns));
}
