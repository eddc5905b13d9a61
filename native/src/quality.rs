//! How far the figures can be trusted: what was counted, lost and spent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::kernel::{Counters, Kernel};
use crate::sample::Resolved;
use crate::session::clock_ns;

#[derive(Default)]
pub struct Quality {
    start_ns: u64,
    samples: u64,
    rooted: u64,
    native: u64,
    unsymbolised: u64,
    with_python: u64,
    mismatches: u64,
    /// Blocked threads that moved while they were read.
    pub moved: u64,
    /// Records of the ring that no program of ours writes, or entries of BPF's tables that could not be written.
    pub unreadable: u64,
    first_sample_ns: Option<u64>,
    counters: Counters,
    run_ns: Option<u64>,
    own_ns: Arc<AtomicU64>,
}

/// What [`Quality::take`] tells: percentages, and nothing where it is not known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    pub samples: u64,
    pub drops: u64,
    pub rooted_pct: f64,
    pub symbolised_pct: f64,
    pub merge_mismatch_pct: f64,
    pub bpf_cpu_pct: Option<f64>,
    pub agent_cpu_pct: Option<f64>,
    pub first_sample_ns: Option<u64>,
    pub notes: Vec<String>,
}

/// How well a stack could be resolved. Goes with it where it is used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    pub rooted: bool,
    pub complete: bool,
    pub mismatch: bool,
    pub python: bool,
    pub native: u32,
    pub unsymbolised: u32,
}

impl Marks {
    pub fn of(resolved: &Resolved, python: bool) -> Marks {
        Marks {
            rooted: resolved.rooted || resolved.python_rooted, // or only the copy of the stack was too short
            complete: resolved.complete,
            mismatch: resolved.mismatch,
            python,
            native: resolved.native,
            unsymbolised: resolved.unsymbolised,
        }
    }

    /// Of a thread without a user side (it never ran, or is about to end): there is nothing to miss.
    pub const NOTHING: Marks = Marks {
        rooted: true,
        complete: false,
        mismatch: false,
        python: false,
        native: 0,
        unsymbolised: 0,
    };
}

impl Quality {
    pub fn new(start_ns: u64, kernel: &Kernel) -> Quality {
        Quality {
            start_ns,
            run_ns: kernel.run_ns(),
            counters: kernel.counters(),
            ..Quality::default()
        }
    }

    /// One more sample, at `time_ns`, whose stack came out so.
    pub fn sampled(&mut self, marks: Marks, time_ns: u64) {
        self.samples += 1;
        self.rooted += u64::from(marks.rooted);
        self.native += u64::from(marks.native);
        self.unsymbolised += u64::from(marks.unsymbolised);
        self.with_python += u64::from(marks.python);
        self.mismatches += u64::from(marks.mismatch);
        if marks.complete && self.first_sample_ns.is_none() {
            self.first_sample_ns = Some(time_ns.saturating_sub(self.start_ns));
        }
    }

    /// CPU time of this thread, until the answer is dropped, is the agent's own.
    pub fn own_time(&self) -> OwnTime {
        OwnTime {
            from_ns: clock_ns(libc::CLOCK_THREAD_CPUTIME_ID),
            into: self.own_ns.clone(),
        }
    }

    /// The quality of the window that ends now, and the start of the next one.
    pub fn take(&mut self, kernel: &Kernel, window_ns: u64, crowded: u64, notes: Vec<String>) -> Told {
        let run_ns = kernel.run_ns();
        let counters = kernel.counters();
        let old = std::mem::replace(&mut self.counters, counters);
        let own_ns = self.own_ns.swap(0, Ordering::Relaxed);
        let percent_of_window = |ns: u64| ns as f64 * 100.0 / window_ns.max(1) as f64;
        let told = Told {
            samples: self.samples,
            drops: counters.drops - old.drops,
            rooted_pct: percent(self.rooted, self.samples),
            symbolised_pct: 100.0 - percent_or(self.unsymbolised, self.native, 0.0),
            merge_mismatch_pct: percent_or(self.mismatches, self.with_python, 0.0),
            bpf_cpu_pct: self
                .run_ns
                .zip(run_ns)
                .map(|(before, now)| percent_of_window(now.saturating_sub(before))),
            agent_cpu_pct: Some(percent_of_window(own_ns)),
            first_sample_ns: self.first_sample_ns,
            notes: self.notes(&old, &counters, crowded, notes),
        };
        *self = Quality {
            start_ns: self.start_ns,
            first_sample_ns: self.first_sample_ns,
            counters,
            run_ns,
            own_ns: self.own_ns.clone(),
            ..Quality::default()
        };
        told
    }

    fn notes(&self, old: &Counters, new: &Counters, crowded: u64, mut notes: Vec<String>) -> Vec<String> {
        let counts = [
            (
                new.lost_events - old.lost_events,
                "forks, execs or ends were not heard of",
            ),
            (
                new.lost_threads - old.lost_threads,
                "threads found no place: more than 16384 at once",
            ),
            (
                new.lost_targets - old.lost_targets,
                "children found no place: more than 8192 at once",
            ),
            (
                new.torn - old.torn,
                "samples fell while the interpreter moved its frames",
            ),
            (
                new.cut - old.cut,
                "samples had more than 128 Python frames: the outer ones are cut off",
            ),
            (
                self.moved,
                "looks at blocked threads were thrown away, because the thread moved meanwhile",
            ),
            (self.unreadable, "records of the kernel side could not be used"),
            (
                crowded,
                "samples had one stack too many and stand under (other stacks)",
            ),
        ];
        notes.extend(
            counts
                .into_iter()
                .filter(|(n, _)| *n > 0)
                .map(|(n, what)| format!("{n} {what}")),
        );
        notes
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    percent_or(part, whole, 100.0)
}

fn percent_or(part: u64, whole: u64, empty: f64) -> f64 {
    if whole == 0 {
        empty
    } else {
        part as f64 * 100.0 / whole as f64
    }
}

pub struct OwnTime {
    from_ns: u64,
    into: Arc<AtomicU64>,
}

impl Drop for OwnTime {
    fn drop(&mut self) {
        let spent = clock_ns(libc::CLOCK_THREAD_CPUTIME_ID).saturating_sub(self.from_ns);
        self.into.fetch_add(spent, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_nothing_are_whole() {
        assert_eq!(percent(0, 0), 100.0);
        assert_eq!(percent(1, 4), 25.0);
    }
}
