//! Follows processes as they come and go, and takes probes off that cost more than the budget.

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::catalogue::GROUPS;
use super::govern::{self, Load};
use super::kernel::Program;
use super::{wanted, Calls, Resolver, LIST_EVERY};

impl Calls {
    pub(super) fn hits(&self, n: usize) -> (u64, u64) {
        (
            self.kernel.sum("hits", n as u32),
            self.kernel.sum("hits", n as u32 + 32),
        )
    }

    pub(super) fn follow(&mut self, resolver: &mut dyn Resolver) {
        let due = !self.hears_forks || self.listed.elapsed() >= LIST_EVERY;
        if self.wanted.follow && due {
            self.listed = Instant::now();
            let watched = self.kernel.map("watched").and_then(|m| m.all::<u32, u32>());
            for (pid, _) in watched.unwrap_or_default() {
                if !self.ended.contains(&pid) {
                    self.processes.entry(pid).or_default();
                }
            }
        }
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        for pid in pids {
            let Some(process) = self.processes.get_mut(&pid) else {
                continue;
            };
            let looked = match process.code.changed(pid) {
                Ok(false) if process.looked => continue,
                Ok(_) => self.look(pid, resolver),
                Err(error) => Err(error),
            };
            if looked.is_err() {
                self.processes.remove(&pid);
                if let Ok(watched) = self.kernel.map("watched") {
                    let _ = watched.delete(&pid);
                }
                self.ended.push(pid);
            }
        }
    }

    /// Mean run time of the programs since the last judgement: of entries and exits, without and with memory.
    fn runs(&mut self) -> [f64; 4] {
        let mut means = [0.0; 4];
        for (at, program) in Program::ALL.into_iter().enumerate() {
            let now = self.kernel.stats(program);
            let (ns, n) = (
                now.0.saturating_sub(self.runs[at].0),
                now.1.saturating_sub(self.runs[at].1),
            );
            means[at] = if n == 0 { 0.0 } else { ns as f64 / n as f64 };
            self.runs[at] = now;
        }
        means
    }

    pub(super) fn govern(&mut self) {
        let seconds = self.governed.elapsed().as_secs_f64();
        self.governed = Instant::now();
        let runs = self.runs();
        let mut loads = Vec::new();
        let on: Vec<usize> = self
            .active
            .iter()
            .filter(|(_, a)| !a.off)
            .map(|(&n, _)| n)
            .collect();
        for n in on {
            let now = self.hits(n);
            let memory = wanted::is_memory(&GROUPS[n]);
            let Some(active) = self.active.get_mut(&n) else {
                continue;
            };
            loads.push(Load {
                group: GROUPS[n].name,
                entries: now.0.saturating_sub(active.hits.0) as f64 / seconds,
                exits: now.1.saturating_sub(active.hits.1) as f64 / seconds,
                entry_ns: active.entry_ns + runs[if memory { 2 } else { 0 }],
                exit_ns: active.exit_ns + runs[if memory { 3 } else { 1 }],
            });
            active.hits = now;
        }
        for removal in govern::judge(&loads, self.wanted.budget_pct) {
            let Some(n) = GROUPS.iter().position(|g| g.name == removal.group) else {
                continue;
            };
            let Some(active) = self.active.get_mut(&n) else {
                continue;
            };
            active.off = true;
            let links = std::mem::take(&mut active.links);
            take_off(links);
            let after = active.since.elapsed().as_secs_f64();
            self.note(removal.note(after, self.wanted.budget_pct));
        }
    }
}

/// Taking a probe off waits until no CPU can be in it; many at once wait together.
pub(super) fn take_off(mut links: Vec<OwnedFd>) {
    let share = links.len().div_ceil(64).max(1);
    std::thread::scope(|scope| {
        while !links.is_empty() {
            let part = links.split_off(links.len().saturating_sub(share));
            // Where no thread can be had the links are dropped here.
            let _ = std::thread::Builder::new().spawn_scoped(scope, move || drop(part));
        }
    });
}
