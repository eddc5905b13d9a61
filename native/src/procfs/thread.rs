//! One thread of a watched process: its files, its times, and the stack it was last seen blocked with.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::procfs::parse::{self, SchedTimes, Stat, SyscallPlace};
use crate::table::StackId;

/// A small file of `/proc` that is read again and again: kept open while there are descriptors to spare.
#[derive(Debug)]
pub struct Again {
    path: String,
    open: Option<File>,
}

impl Again {
    pub fn new(path: String, keep: bool) -> Again {
        let open = keep.then(|| File::open(&path).ok()).flatten();
        Again { path, open }
    }

    /// The text, up to the length of `buffer`; errors are those of the file (the thread ended, or no right).
    pub fn read<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a str> {
        let n = match &self.open {
            Some(file) => file.read_at(buffer, 0)?,
            None => File::open(&self.path)?.read_at(buffer, 0)?,
        };
        std::str::from_utf8(&buffer[..n]).map_err(|_| io::ErrorKind::InvalidData.into())
    }
}

/// What a thread was last seen blocked with: as long as it was on no CPU since, it still is.
#[derive(Clone, Copy, Debug)]
pub struct Blocked {
    pub stack: StackId,
    pub times: SchedTimes,
    pub generation: u32,
}

#[derive(Debug)]
pub struct Thread {
    pub name: String,
    pub first_ns: u64,
    pub last_ns: u64,
    /// Since the last take.
    pub since_ns: u64,
    pub taken: SchedTimes,
    pub times: SchedTimes,
    pub blocked: Option<Blocked>,
    /// The stack it last ran with, and the table's generation: it waits for a CPU there as well.
    pub ran: Option<(StackId, u32)>,
    /// It ran or waited for a CPU at the last look.
    pub runnable: bool,
    /// The last look before its times changed.
    pub changed_ns: u64,
    /// Told of before the kernel had booked it.
    lent_ns: u64,
    pub exact: bool,
    stat: String,
    schedstat: Again,
    syscall: Again,
}

impl Thread {
    /// A thread that is there now; nothing where it ended meanwhile.
    pub fn open(pid: u32, tid: u32, now_ns: u64, keep: bool) -> Option<Thread> {
        let at = |file: &str| format!("/proc/{pid}/task/{tid}/{file}");
        let mut thread = Thread {
            name: String::new(),
            first_ns: now_ns,
            last_ns: now_ns,
            since_ns: now_ns,
            taken: SchedTimes::default(),
            times: SchedTimes::default(),
            blocked: None,
            ran: None,
            runnable: false,
            changed_ns: now_ns,
            lent_ns: 0,
            exact: true,
            stat: at("stat"),
            schedstat: Again::new(at("schedstat"), keep),
            syscall: Again::new(at("syscall"), keep),
        };
        let stat = thread.stat()?;
        thread.name = stat.name;
        match thread.read_times() {
            Some(times) => thread.times = times,
            None => thread.exact = false,
        }
        thread.taken = thread.times;
        Some(thread)
    }

    pub fn stat(&self) -> Option<Stat> {
        parse::stat(&std::fs::read_to_string(&self.stat).ok()?)
    }

    /// Nothing where the thread ended or the kernel keeps no such times.
    pub fn read_times(&self) -> Option<SchedTimes> {
        let mut buffer = [0; 128];
        parse::schedstat(self.schedstat.read(&mut buffer).ok()?)
    }

    pub fn place(&self) -> io::Result<SyscallPlace> {
        let mut buffer = [0; 256];
        let text = self.syscall.read(&mut buffer)?;
        parse::syscall(text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Reads the times anew at `now_ns`. False: the thread has ended.
    pub fn update(&mut self, now_ns: u64) -> bool {
        if self.exact {
            let Some(times) = self.read_times() else {
                return false;
            };
            if times != self.times {
                self.changed_ns = self.last_ns;
            }
            self.times = times;
        }
        self.last_ns = now_ns;
        true
    }

    /// Time in each state since the last time: on a CPU, off, waiting for one. Nothing where it is not known. The kernel
    /// books waiting for a CPU when it ends: of a thread that is runnable, what is not booked yet is taken as such.
    pub fn take(&mut self, now_ns: u64) -> [Option<u64>; 3] {
        let wall = now_ns.saturating_sub(self.since_ns);
        self.since_ns = now_ns;
        if !self.exact {
            return [None; 3];
        }
        let on = self.times.on_ns.saturating_sub(self.taken.on_ns);
        let runq = self.times.runq_ns.saturating_sub(self.taken.runq_ns);
        self.taken = self.times;
        let mut lent = std::mem::take(&mut self.lent_ns);
        let mut repaid = |ns: u64| {
            let part = ns.min(lent);
            lent -= part;
            ns - part
        };
        let runq = repaid(runq);
        // The kernel books running time at its ticks: a few milliseconds may have come before the window.
        let on = repaid(on).min(wall);
        let mut runq = runq.min(wall - on);
        if self.runnable {
            self.lent_ns = now_ns.saturating_sub(self.changed_ns).min(wall - on - runq);
            runq += self.lent_ns;
        }
        [Some(on), Some(wall - on - runq), Some(runq)]
    }
}
