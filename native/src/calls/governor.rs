//! Follows processes as they come and go, and takes probes off that cost more than the budget.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustc_hash::FxHashSet;

use super::bpf::take_off;
use super::budget::{self, Load, Removal, Unit};
use super::catalogue::GROUPS;
use super::groups::What;
use super::object::{CallsObject, Program};
use super::wanted::MALLOC;
use super::{
    wanted, Active, Calls, Resolver, Set, ANEW, FIRST_FUNCTION, LIST_EVERY, MALLOC_STRIKES, MEMORY_STRIKES,
};

impl Calls {
    pub(super) fn follow(&mut self, resolver: &mut dyn Resolver) {
        let told = std::mem::take(&mut self.list_now);
        let due = told || !self.hears_forks || self.listed.elapsed() >= LIST_EVERY;
        if self.wanted.follow && due {
            self.listed = Instant::now();
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
            process.looked = false; // looked at anew
        }
    }

    /// The probes that only this process has.
    fn let_go(&mut self, pid: u32) {
        self.files.retain(|(_, _, of)| *of != pid || pid == 0);
        let mut links = Vec::new();
        for active in self.active.values_mut() {
            let (own, rest) = std::mem::take(&mut active.sets)
                .into_iter()
                .partition(|set| set.owner == pid && pid != 0);
            active.sets = rest;
            let own: Vec<Set> = own;
            links.extend(own.into_iter().flat_map(|set| set.links));
        }
        take_off(links);
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
                self.processes.values_mut().for_each(|p| p.looked = false);
            }
        }
        Ok(())
    }

    /// Takes off what is no longer needed.
    fn retire(&mut self, group: &str) {
        let place = GROUPS.iter().position(|g| g.name == group);
        if let Some(active) = place.and_then(|n| self.active.get_mut(&n)).filter(|a| !a.off) {
            active.off = true;
            take_off(active.all());
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
        let loads = self.loads(seconds);
        let (memory, others): (Vec<Load>, Vec<Load>) =
            loads.into_iter().partition(|load| load.unit.function.is_none());
        // Every object is in `malloc`, so it is called most and worth least: it may take half of what the others may.
        let (malloc, memory) = memory
            .into_iter()
            .partition(|load| GROUPS[load.unit.group].name == MALLOC);
        let mut over = FxHashSet::default();
        let mut gone: BTreeMap<usize, (f64, Vec<Removal>)> = BTreeMap::new();
        for (loads, budget_pct, strikes) in [
            (malloc, self.wanted.memory_budget_pct / 2.0, MALLOC_STRIKES),
            (memory, self.wanted.memory_budget_pct, MEMORY_STRIKES),
            (others, self.wanted.budget_pct, 1),
        ] {
            let loads: Vec<Load> = loads;
            for removal in budget::judge(&loads, budget_pct) {
                let n = removal.unit.group;
                over.insert(n);
                if self.active.get(&n).is_some_and(|a| a.strikes + 1 >= strikes) {
                    gone.entry(n).or_insert((budget_pct, Vec::new())).1.push(removal);
                }
            }
        }
        for (n, active) in &mut self.active {
            active.strikes = if over.contains(n) { active.strikes + 1 } else { 0 };
        }
        for (n, (budget_pct, removals)) in gone {
            self.take_functions_off(n, &removals, budget_pct);
        }
    }

    /// What each function cost since the last judgement; of a group that follows memory: all of it together.
    fn loads(&mut self, seconds: f64) -> Vec<Load> {
        let runs = self.runs();
        let followed = self
            .active
            .iter()
            .any(|(&n, a)| !a.off && wanted::is_memory(&GROUPS[n]));
        let mut loads: BTreeMap<Unit, Load> = BTreeMap::new();
        for (&n, active) in self.active.iter().filter(|(_, a)| !a.off) {
            let memory = wanted::is_memory(&GROUPS[n]);
            let (enter_ns, leave_ns) = if memory {
                (runs[2], runs[3])
            } else {
                (runs[0], runs[1])
            };
            // The same function may stand in several files (of containers, say): its hits are told once.
            let mut told = FxHashSet::default();
            for (number, found) in active.sets.iter().flat_map(|s| &s.functions) {
                if !told.insert(*number) {
                    continue;
                }
                let now = self.kernel.hits.of(*number);
                let before = self.hits.insert(*number, now).unwrap_or(now);
                let entries = now.0.wrapping_sub(before.0) as f64 / seconds;
                let exits = now.1.wrapping_sub(before.1) as f64 / seconds;
                if entries + exits == 0.0 {
                    continue;
                }
                let (entry_ns, exit_ns) = self.cost.of(std::slice::from_ref(found));
                let (entry_ns, exit_ns) = (entry_ns + enter_ns, exit_ns + leave_ns);
                let unit = Unit {
                    group: n,
                    function: (!memory).then_some(*number),
                };
                let stays = followed && found.functions.what == What::SetDevice;
                let load = loads.entry(unit).or_insert_with(|| Load::none(unit, stays));
                load.add(entries, entry_ns, exits, exit_ns);
            }
        }
        loads.into_values().collect()
    }

    /// Takes the probes of functions off that cost too much. The others of the group go on, and none of their calls is
    /// missed or counted twice: their new probes stand before the old ones go.
    fn take_functions_off(&mut self, n: usize, removals: &[Removal], budget_pct: f64) {
        let Calls {
            active,
            kernel,
            functions,
            ..
        } = self;
        let Some(active) = active.get_mut(&n) else {
            return;
        };
        active
            .gone
            .extend(removals.iter().filter_map(|r| r.unit.function));
        let whole = removals.iter().any(|r| r.unit.function.is_none());
        let mut failed = None;
        let old = if whole {
            active.all()
        } else {
            active.without_gone(kernel, n).unwrap_or_else(|error| {
                failed = Some(error);
                active.all()
            })
        };
        active.off |= whole || failed.is_some();
        let name = |r: &Removal| {
            let at = r.unit.function?.checked_sub(FIRST_FUNCTION)?;
            functions.get(at as usize).map(|f| f.name.as_str())
        };
        let gone: Vec<(&str, &Removal)> = removals.iter().map(|r| (name(r).unwrap_or(""), r)).collect();
        let after = active.since.elapsed().as_secs_f64();
        let all = active.sets.is_empty();
        let text = budget::note(GROUPS[n].name, &gone, all, after, budget_pct);
        take_off(old);
        self.note(text);
        if wanted::is_memory(&GROUPS[n]) {
            self.memory.end_open_calls(&self.kernel);
            self.cuts.push((GROUPS[n].name, crate::clock::monotonic_ns()));
        }
        if let Some(error) = failed {
            self.note(format!(
                "{}: all its probes are taken off, and all its counts partial: {error}",
                GROUPS[n].name
            ));
        }
    }
}

impl Active {
    /// Forgets all its probes and hands out their links.
    fn all(&mut self) -> Vec<OwnedFd> {
        let sets = std::mem::take(&mut self.sets);
        sets.into_iter().flat_map(|s| s.links).collect()
    }

    /// Hands out the links that are to be taken off, after what stays was linked anew where that is needed.
    fn without_gone(&mut self, kernel: &mut CallsObject, n: usize) -> io::Result<Vec<OwnedFd>> {
        let gone = std::mem::take(&mut self.gone);
        let goes = |set: &Set| set.functions.iter().filter(|f| gone.contains(&f.0)).count();
        let parted = self
            .sets
            .iter()
            .any(|s| (1..s.functions.len()).contains(&goes(s)));
        let epoch = if parted { (self.epoch + 1) & 7 } else { self.epoch };
        let mut new = Vec::new();
        for set in self.sets.iter().filter(|s| parted && goes(s) < s.functions.len()) {
            new.push(set.link(kernel, n, epoch, |number| !gone.contains(&number)));
        }
        let new: io::Result<Vec<_>> = new.into_iter().collect();
        let kept = new.and_then(|new| {
            if parted {
                kernel.map("epochs")?.put(&(n as u32), &u32::from(epoch))?;
            }
            Ok(new)
        });
        self.gone = gone;
        let mut new = kept?.into_iter();
        self.epoch = epoch;
        let mut old = Vec::new();
        for set in &mut self.sets {
            set.functions.retain(|f| !self.gone.contains(&f.0));
            if set.functions.is_empty() {
                old.append(&mut set.links);
            } else if let Some(links) = new.next() {
                old.append(&mut std::mem::replace(&mut set.links, links));
            }
        }
        self.sets.retain(|s| !s.functions.is_empty());
        Ok(old)
    }
}
