//! Finds what is wanted in the libraries of a process, and puts probes there.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustc_hash::FxHashSet;

use super::catalogue::{GROUPS, OWN_MALLOC};
use super::functions::{self, Exit, FoundFunction};
use super::groups::{self, Group};
use super::object::{CallsObject, Program};
use super::wanted::{group_named, MALLOC};
use super::{cookie, maps, wanted, Active, Calls, Function, Resolver, Set, FIRST_FUNCTION, SINGLE_MAX};

impl Calls {
    /// Looks what a process has mapped, and probes what is new in it.
    pub(super) fn look(&mut self, pid: u32, resolver: &mut dyn Resolver) -> io::Result<()> {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.code.changed(pid)?; // as it is before the look, so that what comes meanwhile is seen at the next one
        }
        let mappings = maps::executable(pid)?;
        let libraries: BTreeSet<String> = mappings.iter().map(|m| m.name().to_owned()).collect();
        if self.wanted.memory() {
            self.memory.text(&self.kernel, &mappings)?;
            if let Some(python) = resolver.python(pid) {
                self.kernel.map("pythons")?.put(&pid, &python)?;
            }
        }
        // `malloc` last: it is called so often that everything that is still attached after it would take longer.
        let passes = [false, true]
            .into_iter()
            .flat_map(|last| mappings.iter().map(move |m| (m, last)));
        for (mapping, is_last) in passes {
            let mut groups = self.new_groups(pid, mapping, &libraries);
            groups.retain(|&n| (GROUPS[n].name == MALLOC) == is_last);
            if groups.is_empty() {
                continue;
            }
            for &n in &groups {
                self.files.insert((n, mapping.file(), self.owner(n, pid)));
            }
            self.probe_file(pid, mapping, &groups);
        }
        if let Some(n) = group_named(MALLOC).filter(|n| self.wanted.groups.contains(n)) {
            self.probe_own_allocator(pid, &mappings, n);
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            process.looked = true;
        }
        Ok(())
    }

    /// What is wanted of a file that was not looked at yet for it.
    fn new_groups(&self, pid: u32, mapping: &maps::Mapping, libraries: &BTreeSet<String>) -> Vec<usize> {
        let has = |library: &str| libraries.iter().any(|l| groups::is_library(l, library));
        let wanted = self.wanted.groups.iter().copied();
        wanted
            .filter(|&n| {
                GROUPS[n]
                    .libraries
                    .iter()
                    .any(|l| groups::is_library(mapping.name(), l))
            })
            .filter(|&n| !GROUPS[n].unless.is_some_and(has) && GROUPS[n].only_with.is_none_or(has))
            .filter(|&n| !self.files.contains(&(n, mapping.file(), self.owner(n, pid))))
            .collect()
    }

    /// Whose probes they are: those that are hit most are a process's own, others anybody's (0) who runs the code.
    fn owner(&self, n: usize, pid: u32) -> u32 {
        if self.kernel.multi && wanted::is_often(&GROUPS[n]) {
            pid
        } else {
            0
        }
    }

    /// A program that has `malloc` inside answers for its libraries, too.
    fn probe_own_allocator(&mut self, pid: u32, mappings: &[maps::Mapping], n: usize) {
        let Ok(program) = std::fs::read_link(format!("/proc/{pid}/exe")) else {
            return;
        };
        let Some(mapping) = mappings.iter().find(|m| Path::new(&m.path) == program) else {
            return;
        };
        if !self.files.insert((n, mapping.file(), self.owner(n, pid))) {
            return;
        }
        for way in mapping.ways(pid) {
            let found = functions::find(&way, &[&OWN_MALLOC]);
            let Ok(mut found) = found else {
                continue;
            };
            let found = found.pop().unwrap_or_default();
            if found.iter().any(|f| f.symbol == MALLOC) {
                if let Err(error) = self.probe_group(n, pid, &way, found) {
                    self.note(format!("malloc: no probes in {}: {error}", mapping.name()));
                }
            }
            return;
        }
    }

    fn probe_file(&mut self, pid: u32, mapping: &maps::Mapping, groups: &[usize]) {
        let wanted: Vec<&'static Group> = groups.iter().map(|&n| &GROUPS[n]).collect();
        let mut last = None;
        for way in mapping.ways(pid) {
            let found = match functions::find(&way, &wanted) {
                Ok(found) => found,
                Err(error) => {
                    last = Some(error);
                    continue;
                }
            };
            for (&n, found) in groups.iter().zip(found) {
                if let Err(error) = self.probe_group(n, pid, &way, found) {
                    self.note(format!(
                        "{}: no probes in {}: {error}",
                        GROUPS[n].name,
                        mapping.name()
                    ));
                }
            }
            return;
        }
        if let Some(error) = last {
            self.note(format!("{}: cannot be read: {error}", mapping.path));
        }
    }

    /// The function's number in the kernel's tables. Nothing: there is no room for more.
    fn number(&mut self, found: &FoundFunction) -> Option<u32> {
        let kind = found.functions.kind;
        let key = (groups::shown(&found.symbol), kind);
        if let Some(&n) = self.numbers.get(&key) {
            return Some(n);
        }
        if self.functions.len() >= self.kernel.hits.functions() {
            return None;
        }
        let n = FIRST_FUNCTION + self.functions.len() as u32;
        self.functions.push(Function {
            name: key.0.clone(),
            kind,
            mark: found.functions.mark,
        });
        self.numbers.insert(key, n);
        Some(n)
    }

    fn probe_group(&mut self, n: usize, pid: u32, path: &Path, found: Vec<FoundFunction>) -> io::Result<()> {
        if found.is_empty() || self.active.get(&n).is_some_and(|a| a.off) {
            return Ok(());
        }
        let found = self.bounded(n, found);
        let all = found.len();
        let functions: Vec<(u32, FoundFunction)> = found
            .into_iter()
            .filter_map(|f| Some((self.number(&f)?, f)))
            .collect();
        if functions.len() < all {
            self.note(format!(
                "{}: {} of {all} functions are probed: more have no room",
                GROUPS[n].name,
                functions.len()
            ));
        }
        let owner = self.owner(n, pid);
        let active = self.active.entry(n).or_insert_with(Active::new);
        let mut functions = functions;
        functions.retain(|(number, _)| !active.gone.contains(number));
        let each = if self.kernel.multi { functions.len() } else { 1 };
        while !functions.is_empty() {
            let rest = functions.split_off(each.min(functions.len()));
            let mut set = Set {
                file: File::open(path)?,
                owner,
                functions: std::mem::replace(&mut functions, rest),
                links: Vec::new(),
            };
            set.links = set.link(&mut self.kernel, n, active.epoch, |_| true)?;
            for (number, _) in &set.functions {
                self.hits
                    .entry(*number)
                    .or_insert_with(|| self.kernel.hits.of(*number));
            }
            active.sets.push(set);
        }
        Ok(())
    }

    /// Where probes are attached one by one there is a limit to how many: the operators that most programs use first.
    fn bounded(&mut self, n: usize, mut found: Vec<FoundFunction>) -> Vec<FoundFunction> {
        if self.kernel.program(Program::Enter).is_ok() && self.kernel.multi || found.len() <= SINGLE_MAX {
            return found;
        }
        let all = found.len();
        found.sort_by_key(|f| wanted::rank_of_operator(&groups::shown(&f.symbol)));
        found.truncate(SINGLE_MAX);
        self.note(format!(
            "{}: this kernel attaches probes one by one (many at once needs 6.6): {SINGLE_MAX} of {all} functions are probed",
            GROUPS[n].name
        ));
        found
    }

    pub(super) fn say_what_is_missing(&mut self) {
        let untraced: Vec<&str> = ["nccl", "cuda"]
            .into_iter()
            .filter(|name| {
                let n = GROUPS.iter().position(|g| g.name == *name);
                n.is_some_and(|n| self.wanted.groups.contains(&n) && !self.active.contains_key(&n))
            })
            .collect();
        if !untraced.is_empty() {
            self.note(format!(
                "{}: no such library is loaded (yet)",
                untraced.join(", ")
            ));
        }
    }
}

impl Active {
    fn new() -> Active {
        Active {
            sets: Vec::new(),
            epoch: 0,
            strikes: 0,
            since: Instant::now(),
            gone: FxHashSet::default(),
            off: false,
        }
    }

    pub(super) fn probes(&self) -> usize {
        let sites = |f: &FoundFunction| {
            1 + match &f.exit {
                Exit::At(exits) => exits.len(),
                Exit::Return => 1,
                Exit::Unseen => 0,
            }
        };
        let functions = self.sets.iter().flat_map(|s| &s.functions);
        functions.map(|(_, f)| sites(f)).sum()
    }
}

impl Set {
    /// Puts probes at those of its functions that `keep` says, for group `n` at its time `epoch`.
    pub(super) fn link(
        &self,
        kernel: &mut CallsObject,
        n: usize,
        epoch: u8,
        keep: impl Fn(u32) -> bool,
    ) -> io::Result<Vec<OwnedFd>> {
        let path = CString::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        let (enter, leave) = if wanted::is_memory(&GROUPS[n]) {
            (Program::EnterMemory, Program::LeaveMemory)
        } else {
            (Program::Enter, Program::Leave)
        };
        let mut sites: [(Vec<u64>, Vec<u64>); 3] = Default::default(); // exits, return probes, entries
        for (number, f) in self.functions.iter().filter(|(number, _)| keep(*number)) {
            let by_return = f.exit == Exit::Return;
            let c = cookie::cookie(*number, n as u8, f.functions, f.exit != Exit::Unseen, by_return);
            let c = cookie::of_epoch(c, epoch);
            match &f.exit {
                Exit::At(exits) => {
                    sites[0].0.extend(exits);
                    sites[0].1.extend(exits.iter().map(|_| c));
                }
                Exit::Return => {
                    sites[1].0.push(f.offset);
                    sites[1].1.push(c);
                }
                Exit::Unseen => {}
            }
            sites[2].0.push(f.offset);
            sites[2].1.push(c);
        }
        // Exits first: a call that began before is seen to end, and is nobody's; the other way round it would stay open.
        let mut links = Vec::new();
        for ((offsets, cookies), (program, on_return)) in
            sites.iter().zip([(leave, false), (leave, true), (enter, false)])
        {
            if !offsets.is_empty() {
                links.extend(kernel.link(program, &path, offsets, cookies, on_return, self.owner)?);
            }
        }
        Ok(links)
    }
}
