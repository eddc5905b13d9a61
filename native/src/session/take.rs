//! What a session tells: everything since the last time.

use super::Session;
use crate::clock::monotonic_ns;
use crate::kernel::state;
use crate::processes::thread_name;
use crate::profile::Profile;
use crate::table::StackId;
use crate::threads::{merge, Times};

impl Session {
    /// Everything since the last take, with the intervals that last still closed at this moment.
    pub fn take(&mut self) -> Profile {
        self.drain(monotonic_ns());
        self.watched.tick();
        let end_ns = monotonic_ns();
        let mut threads = std::mem::take(&mut self.watched.ended);
        for n in 0..self.watched.seen.len() {
            let Some(place) = self.watched.seen[n]
                .as_ref()
                .and(self.watched.kernel.threads.read(n))
            else {
                continue;
            };
            if let Some(seen) = &mut self.watched.seen[n] {
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
            .map(|(key, row)| (*key, exact(&row.times, self.watched.options.off_cpu)))
            .collect();
        let crowded = std::mem::take(&mut self.watched.stacks.table.crowded);
        let mut calls = match &mut self.calls {
            Some(calls) => calls.take(&mut self.watched.stacks),
            None => crate::calls::CallRows::default(),
        };
        let held: Vec<StackId> = calls.memory.iter().map(|row| row.stack).collect();
        let (rows, held) = self.watched.stacks.table.take(&exact, &held);
        for (row, stack) in calls.memory.iter_mut().zip(held) {
            row.stack = stack;
        }
        let processes = self.watched.stacks.processes.told(self.since_ns);
        let start_ns = std::mem::replace(&mut self.since_ns, end_ns);
        let mut notes = self.watched.stacks.processes.notes();
        notes.extend(self.calls.iter().flat_map(|calls| calls.notes().iter().cloned()));
        let quality = self
            .watched
            .quality
            .take(&self.watched.kernel, end_ns - start_ns, crowded, notes);
        let mut threads: Vec<_> = threads.into_iter().collect();
        threads.sort_unstable_by_key(|(key, _)| *key);
        Profile {
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
        self.watched.kernel.program_costs()
    }
}

fn exact(times: &Times, off_cpu: bool) -> [Option<u64>; 3] {
    let off = |ns| off_cpu.then_some(ns);
    [Some(times.on), off(times.off), off(times.runq)]
}
