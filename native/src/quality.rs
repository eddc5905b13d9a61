//! How far the figures can be trusted: what was counted, lost and spent.

use crate::kernel::{Counters, Kernel};
use crate::own_cost::OwnCost;
use crate::sample::Resolved;

pub struct Quality {
    start_ns: u64,
    pub seen: SampleCounts,
    first_sample_ns: Option<u64>,
    counters: Counters,
    run_ns: Option<u64>,
    pub own: OwnCost,
}

/// What is counted between two takes.
#[derive(Default)]
pub struct SampleCounts {
    samples: u64,
    rooted: u64,
    native: u64,
    unsymbolised: u64,
    with_python: u64,
    mismatches: u64,
    early: u64,
    /// Blocked threads that moved while they were read.
    pub moved: u64,
    /// Records of the ring that no program of ours writes, or entries of BPF's tables that could not be written.
    pub unreadable: u64,
}

/// What [`Quality::take`] tells: percentages, and nothing where it is not known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileQuality {
    pub samples: u64,
    pub drops: u64,
    pub rooted_pct: f64,
    pub symbolised_pct: f64,
    pub merge_mismatch_pct: f64,
    pub bpf_cpu_pct: Option<f64>,
    /// Of this whole process, without what [`ProfileQuality::attach_cpu_s`] says.
    pub agent_cpu_pct: Option<f64>,
    /// Seconds of its processor time from the start of the session until everything was attached.
    pub attach_cpu_s: Option<f64>,
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
    pub early: bool,
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
            early: resolved.early,
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
        early: false,
        native: 0,
        unsymbolised: 0,
    };
}

impl Quality {
    pub fn new(start_ns: u64, own: OwnCost, kernel: &Kernel) -> Quality {
        Quality {
            start_ns,
            run_ns: kernel.run_ns(),
            counters: kernel.counters(),
            seen: SampleCounts::default(),
            first_sample_ns: None,
            own,
        }
    }

    /// One more sample, at `time_ns`, whose stack came out so.
    pub fn sampled(&mut self, marks: Marks, time_ns: u64) {
        self.seen.samples += 1;
        self.seen.rooted += u64::from(marks.rooted);
        self.seen.native += u64::from(marks.native);
        self.seen.unsymbolised += u64::from(marks.unsymbolised);
        self.seen.with_python += u64::from(marks.python);
        self.seen.mismatches += u64::from(marks.mismatch);
        self.seen.early += u64::from(marks.early);
        if marks.complete && self.first_sample_ns.is_none() {
            self.first_sample_ns = Some(time_ns.saturating_sub(self.start_ns));
        }
    }

    /// The quality of the window that ends now, and the start of the next one.
    pub fn take(
        &mut self,
        kernel: &Kernel,
        window_ns: u64,
        crowded: u64,
        notes: Vec<String>,
    ) -> ProfileQuality {
        let run_ns = kernel.run_ns();
        let counters = kernel.counters();
        let old = std::mem::replace(&mut self.counters, counters);
        let percent_of_window = |ns: u64| ns as f64 * 100.0 / window_ns.max(1) as f64;
        let told = ProfileQuality {
            samples: self.seen.samples,
            drops: counters.drops - old.drops,
            rooted_pct: percent(self.seen.rooted, self.seen.samples),
            symbolised_pct: 100.0 - percent_or(self.seen.unsymbolised, self.seen.native, 0.0),
            merge_mismatch_pct: percent_or(self.seen.mismatches, self.seen.with_python, 0.0),
            bpf_cpu_pct: self
                .run_ns
                .zip(run_ns)
                .map(|(before, now)| percent_of_window(now.saturating_sub(before))),
            agent_cpu_pct: Some(self.own.take_pct()),
            attach_cpu_s: Some(self.own.attach_s()),
            first_sample_ns: self.first_sample_ns,
            notes: self.notes(&old, &counters, crowded, notes),
        };
        self.seen = SampleCounts::default();
        self.run_ns = run_ns;
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
                "samples had more than 128 Python frames, of which the outer ones are cut off",
            ),
            (
                self.seen.early,
                "samples of programs that had just begun lack their Python frames",
            ),
            (
                self.seen.moved,
                "looks at blocked threads were thrown away, because the thread moved meanwhile",
            ),
            (
                self.seen.unreadable,
                "records of the kernel side could not be used",
            ),
            (
                crowded,
                "samples had one stack too many and stand under (other stacks)",
            ),
        ];
        notes.extend(counted(counts));
        notes
    }
}

/// One line for each thing that happened.
pub fn counted<const N: usize>(counts: [(u64, &'static str); N]) -> impl Iterator<Item = String> {
    counts
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{what}: {n}"))
}

fn percent(part: u64, whole: u64) -> f64 {
    percent_or(part, whole, 100.0)
}

pub fn percent_or(part: u64, whole: u64, empty: f64) -> f64 {
    if whole == 0 {
        empty
    } else {
        part as f64 * 100.0 / whole as f64
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
