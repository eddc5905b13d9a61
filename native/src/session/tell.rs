//! What a session tells: everything since the last time.

use super::{monotonic_ns, Session};
use crate::kernel::state;
use crate::processes::thread_name;
use crate::quality::Told;
use crate::table::{Rows, StackId, ThreadKey};
use crate::threads::{merge, ThreadRow, Times};

/// What came since the last take.
pub struct Taken {
    pub start_ns: u64,
    pub end_ns: u64,
    pub rows: Rows,
    pub threads: Vec<(ThreadKey, ThreadRow)>,
    pub processes: Vec<ProcessRow>,
    /// Calls, spans and memory, with the numbers of their stacks as in `rows`.
    pub calls: crate::calls::Rows,
    pub quality: Told,
}

/// A row of `Profile.processes`.
pub struct ProcessRow {
    pub pid: u32,
    pub command: String,
    pub parent: u32,
    pub python: String,
    pub rank: Option<i64>,
    pub job: String,
    pub ended: bool,
}

impl Session {
    /// Everything since the last take, with the intervals that last still closed at this moment.
    pub fn take(&mut self) -> Taken {
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
        let mut calls = match &mut self.calls {
            Some(calls) => calls.take(&mut self.stacks),
            None => crate::calls::Rows::default(),
        };
        let held: Vec<StackId> = calls.memory.iter().map(|row| row.stack).collect();
        let (rows, held) = self.stacks.table.take(&exact, &held);
        for (row, stack) in calls.memory.iter_mut().zip(held) {
            row.stack = stack;
        }
        let processes = self.stacks.processes.told(self.since_ns);
        let start_ns = std::mem::replace(&mut self.since_ns, end_ns);
        let mut notes = self.stacks.processes.notes();
        notes.extend(self.calls.iter().flat_map(|calls| calls.notes().iter().cloned()));
        let quality = self.quality.take(&self.kernel, end_ns - start_ns, crowded, notes);
        let mut threads: Vec<_> = threads.into_iter().collect();
        threads.sort_unstable_by_key(|(key, _)| *key);
        Taken {
            start_ns,
            end_ns,
            rows,
            threads,
            processes,
            calls,
            quality,
        }
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
