//! Finds what is wanted in the libraries of a process, and puts probes there.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use super::catalogue::{GROUPS, OWN_MALLOC};
use super::functions::{self, Exit, Found};
use super::governing::{group_named, MALLOC};
use super::groups::{self, Group, What};
use super::kernel::Program;
use super::{cookie, maps, wanted, Active, Calls, Function, Process, Resolver, FIRST_FUNCTION, SINGLE_MAX};

impl Calls {
    /// Looks what a process has mapped, and probes what is new in it.
    pub(super) fn look(&mut self, pid: u32, resolver: &mut dyn Resolver) -> io::Result<()> {
        let pages = maps::address_space(pid)?;
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
            let has = |library: &str| libraries.iter().any(|l| groups::is_library(l, library));
            let groups: Vec<usize> = self
                .wanted
                .groups
                .iter()
                .copied()
                .filter(|&n| {
                    GROUPS[n]
                        .libraries
                        .iter()
                        .any(|l| groups::is_library(mapping.name(), l))
                })
                .filter(|&n| !GROUPS[n].unless.is_some_and(has) && GROUPS[n].only_with.is_none_or(has))
                .filter(|&n| {
                    !self
                        .files
                        .contains(&(n, mapping.file.clone(), self.owner(n, pid)))
                })
                .filter(|&n| (GROUPS[n].name == MALLOC) == is_last)
                .collect();
            if groups.is_empty() {
                continue;
            }
            for &n in &groups {
                self.files.insert((n, mapping.file.clone(), self.owner(n, pid)));
            }
            self.probe_file(pid, mapping, &groups);
        }
        if let Some(n) = group_named(MALLOC).filter(|n| self.wanted.groups.contains(n)) {
            self.probe_own_allocator(pid, &mappings, n);
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            *process = Process { pages, libraries };
        }
        Ok(())
    }

    /// Whose probes they are: those that follow memory are a process's own, others anybody's (0) who runs the code.
    fn owner(&self, n: usize, pid: u32) -> u32 {
        if self.kernel.multi && wanted::is_memory(&GROUPS[n]) {
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
        if !self.files.insert((n, mapping.file.clone(), self.owner(n, pid))) {
            return;
        }
        for way in mapping.ways(pid) {
            let found = functions::find(&way, &[&OWN_MALLOC]);
            let (Ok(mut found), Ok(path)) = (found, CString::new(way.as_os_str().as_bytes())) else {
                continue;
            };
            let found = found.pop().unwrap_or_default();
            if found.iter().any(|f| f.symbol == MALLOC) {
                if let Err(error) = self.probe_group(n, pid, &path, found) {
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
            let Ok(path) = CString::new(way.as_os_str().as_bytes()) else {
                continue;
            };
            for (&n, found) in groups.iter().zip(found) {
                if let Err(error) = self.probe_group(n, pid, &path, found) {
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

    fn number(&mut self, found: &Found) -> u32 {
        let kind = found.functions.kind;
        let key = (groups::shown(&found.symbol), kind);
        if let Some(&n) = self.numbers.get(&key) {
            return n;
        }
        let n = FIRST_FUNCTION + self.functions.len() as u32;
        self.functions.push(Function {
            name: key.0.clone(),
            kind,
            mark: found.functions.mark,
        });
        self.numbers.insert(key, n);
        n
    }

    fn probe_group(&mut self, n: usize, pid: u32, path: &CString, found: Vec<Found>) -> io::Result<()> {
        if found.is_empty() || self.active.get(&n).is_some_and(|a| a.off) {
            return Ok(());
        }
        let found = self.bounded(n, found);
        let memory = found
            .iter()
            .any(|f| !matches!(f.functions.what, What::Count | What::SetDevice));
        let (enter, leave) = if memory {
            (Program::EnterMemory, Program::LeaveMemory)
        } else {
            (Program::Enter, Program::Leave)
        };
        let mut sites: [(Vec<u64>, Vec<u64>); 3] = Default::default(); // exits, return probes, entries
        for f in &found {
            let number = self.number(f);
            let by_return = f.exit == Exit::Return;
            let c = cookie::cookie(number, n as u8, f.functions, f.exit != Exit::Unseen, by_return);
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
        let owner = self.owner(n, pid);
        let mut links = Vec::new();
        for ((offsets, cookies), (program, on_return)) in
            sites.iter().zip([(leave, false), (leave, true), (enter, false)])
        {
            if offsets.is_empty() {
                continue;
            }
            links.extend(
                self.kernel
                    .link(program, path, offsets, cookies, on_return, owner)?,
            );
        }
        let (entry_ns, exit_ns) = self.cost.of(&found);
        let hits = self.hits(n);
        let active = self.active.entry(n).or_insert_with(|| Active {
            links: Vec::new(),
            own: BTreeMap::new(),
            probes: 0,
            strikes: 0,
            entry_ns: 0.0,
            exit_ns: 0.0,
            since: Instant::now(),
            hits,
            off: false,
        });
        match owner {
            0 => active.links.extend(links),
            pid => active.own.entry(pid).or_default().extend(links),
        }
        active.probes += sites.iter().map(|s| s.0.len()).sum::<usize>();
        active.entry_ns = active.entry_ns.max(entry_ns);
        active.exit_ns = active.exit_ns.max(exit_ns);
        Ok(())
    }

    /// Where probes are attached one by one there is a limit to how many: the operators that most programs use first.
    fn bounded(&mut self, n: usize, mut found: Vec<Found>) -> Vec<Found> {
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
