//! Follows processes as they come and go, and takes probes off that cost more than the budget.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustc_hash::FxHashSet;

use super::catalogue::GROUPS;
use super::govern::{self, Load};
use super::kernel::Program;
use super::{maps, wanted, Calls, Resolver, ANEW, MALLOC_STRIKES, MEMORY_STRIKES};
use crate::session::monotonic_ns;

pub(super) const MALLOC: &str = "malloc";

impl Calls {
    pub(super) fn hits(&self, n: usize) -> (u64, u64) {
        (
            self.kernel.sum("hits", n as u32),
            self.kernel.sum("hits", n as u32 + 32),
        )
    }

    pub(super) fn follow(&mut self, resolver: &mut dyn Resolver) {
        if self.wanted.follow {
            let watched = self.kernel.map("watched").and_then(|m| m.all::<u32, u32>());
            for (pid, value) in watched.unwrap_or_default() {
                if !self.ended.contains(&pid) {
                    self.processes.entry(pid).or_default();
                }
                if value == ANEW {
                    self.anew(pid);
                }
            }
        }
        self.follow_server();
        let pids: Vec<(u32, u64)> = self.processes.iter().map(|(&pid, p)| (pid, p.pages)).collect();
        for (pid, pages) in pids {
            let looked = match maps::address_space(pid) {
                Ok(now) if now == pages => continue,
                Ok(0) | Err(_) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
                Ok(_) => self.look(pid, resolver),
            };
            if looked.is_err() {
                self.processes.remove(&pid);
                self.let_go(pid);
                if let Ok(watched) = self.kernel.map("watched") {
                    let _ = watched.delete(&pid);
                }
                self.ended.push(pid);
            }
        }
    }

    /// Another program runs in the process: what the one before it held is gone, and so are its probes.
    fn anew(&mut self, pid: u32) {
        if let Ok(watched) = self.kernel.map("watched") {
            let _ = watched.put(&pid, &1u32);
        }
        self.let_go(pid);
        self.memory.forget(&self.kernel, &FxHashSet::from_iter([pid]));
        if let Some(process) = self.processes.get_mut(&pid) {
            process.pages = 0; // looked at anew
        }
    }

    /// The probes that only this process has.
    fn let_go(&mut self, pid: u32) {
        self.files.retain(|(_, _, of)| *of != pid || pid == 0);
        let links = self
            .active
            .values_mut()
            .filter_map(|a| a.own.remove(&pid))
            .flatten();
        take_off(links.collect());
    }

    /// Looks now and then whether a process has begun to listen; and takes off what tells nothing new of its model.
    fn follow_server(&mut self) {
        if self.wanted.serving && self.served.is_due() {
            let pids: Vec<u32> = self.processes.keys().copied().collect();
            if let Err(error) = self.look_for_server(&pids) {
                self.note(format!("connections of a server: {error}"));
            }
        }
        if self.served.trains {
            wanted::FORWARDS.into_iter().for_each(|name| self.retire(name));
        } else if !self.served.runs.needs_layers() {
            self.retire(wanted::FORWARDS[2]);
        }
    }

    /// Where one of these listens, runs of models are wanted too.
    pub(super) fn look_for_server(&mut self, pids: &[u32]) -> io::Result<()> {
        if !self.wanted.serving {
            return Ok(());
        }
        for &pid in pids {
            if self.served.look(&self.kernel, pid)? && !self.served.trains && self.wanted.add_forwards() {
                // What was looked at already is looked at again.
                self.processes.values_mut().for_each(|p| p.pages = 0);
            }
        }
        Ok(())
    }

    /// Takes off what is no longer needed.
    fn retire(&mut self, group: &str) {
        let place = GROUPS.iter().position(|g| g.name == group);
        if let Some(active) = place.and_then(|n| self.active.get_mut(&n)).filter(|a| !a.off) {
            active.off = true;
            take_off(std::mem::take(&mut active.links));
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
        let (memory, others): (Vec<Load>, Vec<Load>) = loads
            .into_iter()
            .partition(|load| group_named(load.group).is_some_and(|n| wanted::is_memory(&GROUPS[n])));
        // Every object is in `malloc`, so it is called most and worth least: it may take half of what the others may.
        let (malloc, memory): (Vec<Load>, Vec<Load>) =
            memory.into_iter().partition(|load| load.group == MALLOC);
        self.judge(&malloc, self.wanted.memory_budget_pct / 2.0, MALLOC_STRIKES);
        self.judge(&memory, self.wanted.memory_budget_pct, MEMORY_STRIKES);
        self.judge(&others, self.wanted.budget_pct, 1);
    }

    /// Takes off what costs too much for the `strikes`th time in a row.
    fn judge(&mut self, loads: &[Load], budget_pct: f64, strikes: u32) {
        let removals = govern::judge(loads, budget_pct);
        for load in loads {
            let over = removals.iter().find(|r| r.group == load.group);
            let Some(n) = group_named(load.group) else {
                continue;
            };
            let Some(active) = self.active.get_mut(&n) else {
                continue;
            };
            active.strikes = if over.is_some() { active.strikes + 1 } else { 0 };
            let Some(removal) = over.filter(|_| active.strikes >= strikes) else {
                continue;
            };
            active.off = true;
            let mut links = std::mem::take(&mut active.links);
            links.extend(std::mem::take(&mut active.own).into_values().flatten());
            let after = active.since.elapsed().as_secs_f64();
            take_off(links);
            self.note(removal.note(after, budget_pct));
            if wanted::is_memory(&GROUPS[n]) {
                self.memory.end_open_calls(&self.kernel);
                self.cuts.push((GROUPS[n].name, monotonic_ns()));
            }
        }
    }
}

pub(super) fn group_named(name: &str) -> Option<usize> {
    GROUPS.iter().position(|g| g.name == name)
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
