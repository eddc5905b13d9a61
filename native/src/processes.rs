//! The processes that are watched: what they are called, where their stacks are resolved, and who came from whom.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use rustc_hash::FxHashMap;

use crate::python::PyConfig;
use crate::sample::{RawSample, Resolved};
use crate::table::Table;
use crate::target::Target;

/// A row of `Profile.processes`.
#[derive(Clone, Debug, Default)]
pub struct ProcessRow {
    pub pid: u32,
    pub command: String,
    pub parent: u32,
    pub python: String,
    pub rank: Option<i64>,
    pub job: String,
    pub ended: bool,
}

/// What a row tells, and what is needed to look into the process.
#[derive(Default)]
pub struct Process {
    pub row: ProcessRow,
    pub ended_ns: u64,
    /// Places of BPF's table that its threads hold.
    pub threads: usize,
    target: Option<Target>,
    /// It was forked from its parent and has not exec'd: the parent's memory tells what its addresses mean.
    like_parent: bool,
    /// When Python is looked for again, and how long to wait after that.
    look_ns: u64,
    pause_ns: u64,
}

/// Where looks into processes are kept. Processes that ended go when they were told of.
#[derive(Default)]
pub struct Processes {
    all: BTreeMap<u32, Process>,
    notes: FxHashMap<String, u32>,
}

const FIRST_PAUSE_NS: u64 = 5_000_000;
const LAST_PAUSE_NS: u64 = 5_000_000_000;
/// How many ancestors are asked for the meaning of an address.
const GENERATIONS: usize = 8;

impl Processes {
    /// Opens a process by its pid. Errors: there is none, or it may not be looked at.
    pub fn open(&mut self, pid: u32, now_ns: u64) -> io::Result<Option<PyConfig>> {
        let target = Target::open(pid)?;
        let process = self.known(pid, None, now_ns);
        Ok(process.take_target(target, now_ns))
    }

    /// The process, entered if it is new: what `/proc` says of it now.
    pub fn known(&mut self, pid: u32, parent: Option<u32>, now_ns: u64) -> &mut Process {
        if !self.all.contains_key(&pid) {
            let mut process = Process::described(pid);
            if let Some((parent, of)) = parent.and_then(|p| Some((p, self.all.get(&p)?))) {
                process.row.parent = parent;
                process.like_parent = true;
                // Until it execs it is what its parent is, and it may be gone before anything could be read.
                for (mine, theirs) in [
                    (&mut process.row.command, &of.row.command),
                    (&mut process.row.python, &of.row.python),
                    (&mut process.row.job, &of.row.job),
                ] {
                    if mine.is_empty() {
                        theirs.clone_into(mine);
                    }
                }
                process.row.rank = process.row.rank.or(of.row.rank);
            }
            process.look_ns = now_ns;
            process.pause_ns = FIRST_PAUSE_NS;
            self.all.insert(pid, process);
        }
        self.all.entry(pid).or_default()
    }

    /// A number that a new process has now is not the old one's any more.
    pub fn forked(&mut self, pid: u32, parent: u32, now_ns: u64) {
        self.all.remove(&pid);
        let python_to_find = self.all.get(&parent).is_none_or(|p| p.row.python.is_empty());
        let process = self.known(pid, Some(parent), now_ns);
        if !python_to_find {
            // BPF has copied the parent's.
            process.look_ns = u64::MAX;
        }
    }

    /// Another program is in this process now: nothing that was known of it holds.
    pub fn execed(&mut self, pid: u32, now_ns: u64) {
        let process = self.known(pid, None, now_ns);
        let new = Process::described(pid);
        if !new.row.command.is_empty() {
            process.row.command = new.row.command;
        }
        (process.row.rank, process.row.job) = (new.row.rank, new.row.job);
        process.row.python = String::new();
        process.target = None;
        process.like_parent = false;
        process.look_ns = now_ns;
        process.pause_ns = FIRST_PAUSE_NS;
    }

    pub fn exited(&mut self, pid: u32, now_ns: u64) {
        let process = self.known(pid, None, now_ns);
        if !process.row.ended {
            process.row.ended = true;
            process.ended_ns = now_ns;
        }
    }

    pub fn get(&self, pid: u32) -> Option<&Process> {
        self.all.get(&pid)
    }

    pub fn get_mut(&mut self, pid: u32) -> Option<&mut Process> {
        self.all.get_mut(&pid)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Process)> {
        self.all.iter().map(|(pid, p)| (*pid, p))
    }

    pub fn live(&self) -> usize {
        self.all.values().filter(|p| !p.row.ended).count()
    }

    /// Processes that ended before `until_ns` and hold no place any more are forgotten, those that others came from last.
    pub fn forget_ended(&mut self, until_ns: u64) {
        let needed: Vec<u32> = self
            .all
            .values()
            .filter(|p| !p.row.ended && p.like_parent)
            .map(|p| p.row.parent)
            .collect();
        self.all.retain(|pid, p| {
            !(p.row.ended && p.threads == 0 && p.ended_ns < until_ns) || needed.contains(pid)
        });
    }

    /// Looks for Python where it was not there yet: in processes that exec'd or began a moment ago, and ever more rarely
    /// in all others. Gives those whose Python was found.
    pub fn look_for_python(&mut self, now_ns: u64) -> Vec<(u32, PyConfig)> {
        let mut found = Vec::new();
        for (pid, process) in &mut self.all {
            if !process.may_have_python(now_ns) {
                continue;
            }
            process.look_ns = now_ns + process.pause_ns;
            process.pause_ns = (process.pause_ns * 2).min(LAST_PAUSE_NS);
            let config = match &mut process.target {
                Some(target) => {
                    // A sample may have opened it, or had it read its mappings again, and found Python then.
                    let _ = target.refresh();
                    target.python()
                }
                None => match Target::open(*pid) {
                    Ok(target) => process.take_target(target, now_ns),
                    Err(_) => None,
                },
            };
            if let Some(config) = config {
                process.row.python = config.name();
                found.push((*pid, config));
            }
        }
        found
    }

    /// Looks into a process; if it is gone already, into the one it was forked from.
    pub fn target(&mut self, pid: u32) -> Option<&mut Target> {
        let mut at = pid;
        for _ in 0..GENERATIONS {
            let process = self.all.get_mut(&at)?;
            if process.target.is_none() && !process.row.ended {
                process.target = Target::open(at).ok();
            }
            if process.target.is_some() || !process.like_parent {
                break;
            }
            at = process.row.parent;
        }
        self.all.get_mut(&at)?.target.as_mut()
    }

    pub fn resolve(&mut self, sample: &RawSample<'_>, table: &mut Table) -> Resolved {
        match self.target(sample.pid) {
            Some(target) => target.resolve(sample, &mut table.frames),
            None => Resolved::default(),
        }
    }

    /// All of them as rows; those that ended before `since_ns` are told for the last time.
    pub fn told(&mut self, since_ns: u64) -> Vec<ProcessRow> {
        let rows = self.iter().map(|(_, p)| p.row.clone()).collect();
        self.forget_ended(since_ns);
        rows
    }

    /// What could not be done with which process, one line each.
    pub fn notes(&mut self) -> Vec<String> {
        // Of what came and went too soon to be read nobody wants to know.
        for (pid, process) in self.all.iter().filter(|(_, p)| !p.row.ended) {
            for note in process.target.iter().flat_map(Target::notes) {
                self.notes.entry(note.clone()).or_insert(*pid);
            }
        }
        let mut lines: Vec<String> = self
            .notes
            .drain()
            .map(|(note, pid)| format!("process {pid}: {note}"))
            .collect();
        lines.sort();
        lines
    }
}

impl Process {
    /// No Python was found in it yet, and it is time to look again.
    pub fn may_have_python(&self, now_ns: u64) -> bool {
        !self.row.ended && self.row.python.is_empty() && self.look_ns <= now_ns
    }

    fn take_target(&mut self, target: Target, now_ns: u64) -> Option<PyConfig> {
        let config = target.python();
        if let Some(config) = &config {
            self.row.python = config.name();
            self.look_ns = u64::MAX;
        } else {
            self.look_ns = now_ns + self.pause_ns;
        }
        self.target = Some(target);
        config
    }

    /// What `/proc` says; all empty where the process is gone.
    fn described(pid: u32) -> Process {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let variable = |name: &str| {
            environment.split(|b| *b == 0).find_map(|entry| {
                let (key, value) = std::str::from_utf8(entry).ok()?.split_once('=')?;
                (key == name).then(|| value.to_owned())
            })
        };
        let row = ProcessRow {
            pid,
            command: command(pid),
            parent: parent(pid).unwrap_or(0),
            rank: ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"]
                .into_iter()
                .find_map(|name| variable(name)?.parse().ok()),
            job: variable("UNIDLE_JOB").unwrap_or_default(),
            ..ProcessRow::default()
        };
        Process {
            row,
            ..Process::default()
        }
    }
}

/// Arguments with a space between; what a process without any is called.
fn command(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = line
        .split(|b| *b == 0)
        .filter(|word| !word.is_empty())
        .map(String::from_utf8_lossy)
        .collect();
    if words.is_empty() {
        return thread_name(pid, pid);
    }
    words.join(" ")
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold spaces and parentheses itself.
    let rest = &stat[stat.rfind(')')? + 1..];
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

pub fn thread_name(pid: u32, tid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    name.trim_end_matches('\n').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_described_by_what_it_was_started_with() {
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .env("RANK", "3")
            .env("UNIDLE_JOB", "night-run")
            .spawn()
            .expect("sleep is there");
        // Until its exec is over the child is still called what its parent is, or has no arguments yet.
        while command(child.id()) != "sleep 100" {
            std::thread::yield_now();
        }
        let told = Process::described(child.id());
        child.kill().expect("it lives");
        child.wait().expect("it was ours");
        assert_eq!(told.row.command, "sleep 100");
        assert_eq!(told.row.parent, std::process::id());
        assert_eq!((told.row.rank, told.row.job.as_str()), (Some(3), "night-run"));
    }

    #[test]
    fn a_child_that_is_gone_at_once_is_called_what_its_parent_was() {
        let mut processes = Processes::default();
        let me = std::process::id();
        processes.known(me, None, 0);
        // No process has this number: the largest is 2^22.
        processes.forked(1 << 30, me, 5);
        let child = processes.get(1 << 30).expect("entered");
        assert_eq!(child.row.parent, me);
        assert_eq!(child.row.command, processes.get(me).expect("entered").row.command);
        processes.exited(1 << 30, 9);
        assert_eq!(processes.live(), 1);
        processes.forget_ended(10);
        assert!(processes.get(1 << 30).is_none());
    }
}
