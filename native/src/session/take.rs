//! What a session tells: everything since the last time.

use super::Session;
use crate::clock::monotonic_ns;
use crate::profile::Profile;
use crate::table::StackId;
use crate::threads::sorted;

impl Session {
    /// Everything since the last take, with the intervals that last still closed at this moment.
    pub fn take(&mut self) -> Profile {
        self.drain(monotonic_ns());
        let watched = &mut self.watched;
        watched.tick();
        let end_ns = monotonic_ns();
        let threads = watched.take_threads(end_ns);
        let exact = threads
            .iter()
            .map(|(key, row)| (*key, row.times.known(watched.options.off_cpu)))
            .collect();
        let crowded = std::mem::take(&mut watched.stacks.table.crowded);
        let mut calls = match &mut self.calls {
            Some(calls) => calls.take(&mut watched.stacks),
            None => crate::calls::CallRows::default(),
        };
        let held: Vec<StackId> = calls.memory.iter().map(|row| row.stack).collect();
        let (rows, held) = watched.stacks.table.take(&exact, &held);
        for (row, stack) in calls.memory.iter_mut().zip(held) {
            row.stack = stack;
        }
        let processes = watched.stacks.processes.told(self.since_ns);
        let start_ns = std::mem::replace(&mut self.since_ns, end_ns);
        let mut notes = watched.stacks.processes.notes();
        notes.extend(self.calls.iter().flat_map(|calls| calls.notes().iter().cloned()));
        let quality = watched
            .quality
            .take(&watched.kernel, end_ns - start_ns, crowded, notes);
        Profile {
            start_ns,
            end_ns,
            rows,
            threads: sorted(threads),
            processes,
            calls,
            quality,
        }
    }

    /// `(name, runs, nanoseconds)` of every BPF program so far.
    pub fn program_costs(&self) -> Vec<(String, u64, u64)> {
        self.watched.kernel.program_costs()
    }
}
