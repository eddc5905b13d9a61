//! Tier T1: perf events on the CPU clock with user registers and stack, for threads of this user and without root.
//!
//! Each thread has one event on every CPU, inherited by what it starts, and the events of a CPU share one ring (an event
//! that is inherited can only be read so). 512 KiB a CPU are what the kernel lets every user lock.

mod event;
pub mod record;

use std::io;
use std::os::fd::AsRawFd;

use crate::sample::{Outer, RawSample};
use record::PerfRecord;

pub use event::paranoid;
use event::{Event, PerfRing};

/// What a reader of the rings is told of.
pub enum Sampled<'a> {
    Sample(RawSample<'a>),
    /// A file was mapped.
    Mapped(u32),
    Forked {
        pid: u32,
        parent: u32,
    },
}

pub struct Perf {
    rings: Vec<PerfRing>,
    events: Vec<Event>,
    hz: u32,
    /// Samples in the kernel are allowed.
    pub kernel: bool,
}

/// Descriptors: more threads times CPUs than this need another tier.
const EVENTS_MAX: usize = 16_384;

impl Perf {
    /// Errors: `PermissionDenied` or `Unsupported`, with what would be needed.
    pub fn open(pids: &[u32], hz: u32) -> io::Result<Perf> {
        let mut perf = Perf {
            rings: Vec::new(),
            events: Vec::new(),
            hz,
            kernel: true,
        };
        match perf.add(pids) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                perf.kernel = false;
                perf.rings.clear();
                perf.events.clear();
                perf.add(pids).map_err(event::explain)?;
            }
            other => other.map_err(event::explain)?,
        }
        Ok(perf)
    }

    /// Samples the threads of more processes.
    pub fn add(&mut self, pids: &[u32]) -> io::Result<()> {
        let cpus = event::online_cpus()?;
        let tids: Vec<i32> = pids.iter().flat_map(|pid| event::threads(*pid)).collect();
        let wanted = self.events.len() + tids.len() * cpus.len();
        if wanted > EVENTS_MAX || !event::descriptors(wanted as u64 + 256) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "{} threads on {} CPUs need {wanted} descriptors, which are more than this user may open",
                    tids.len(),
                    cpus.len()
                ),
            ));
        }
        for tid in tids {
            for cpu in &cpus {
                let event = match Event::open(tid, *cpu, self.hz, self.kernel) {
                    Ok(event) => event,
                    // It ended meanwhile, or the CPU went off.
                    Err(e) if matches!(e.raw_os_error(), Some(libc::ESRCH | libc::ENODEV)) => continue,
                    Err(e) => return Err(e),
                };
                match self.rings.iter().find(|ring| ring.cpu == *cpu) {
                    Some(ring) => {
                        event.send_to(ring)?;
                        self.events.push(event);
                    }
                    None => self.rings.push(PerfRing::new(event, *cpu)?),
                }
            }
        }
        if self.rings.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "its threads have ended"));
        }
        for event in self.rings.iter().map(|r| &r.event).chain(&self.events) {
            event.enable()?;
        }
        Ok(())
    }

    /// Until a sample comes, at most that long.
    pub fn wait(&self, ns: u64) -> io::Result<()> {
        let mut fds: Vec<libc::pollfd> = self
            .rings
            .iter()
            .map(|ring| libc::pollfd {
                fd: ring.event.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        let time = libc::timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        };
        // SAFETY: a valid array with its length, a valid time, and no mask.
        let n = unsafe {
            libc::ppoll(
                fds.as_mut_ptr(),
                fds.len() as libc::nfds_t,
                &time,
                std::ptr::null(),
            )
        };
        let any = |what| fds.iter().any(|fd| fd.revents & what != 0);
        if n > 0 && any(libc::POLLHUP) && !any(libc::POLLIN) {
            // The thread whose event has the ring is gone, and poll says so at once and for ever; others may still
            // write into the ring.
            std::thread::sleep(std::time::Duration::from_nanos(ns.min(1_000_000)));
        }
        match n {
            -1 => Err(io::Error::last_os_error()).or_else(|e| {
                if e.kind() == io::ErrorKind::Interrupted {
                    Ok(())
                } else {
                    Err(e)
                }
            }),
            _ => Ok(()),
        }
    }

    /// Hands over everything that waits. Gives how many samples were lost.
    pub fn drain(&mut self, mut told: impl FnMut(Sampled<'_>)) -> u64 {
        let mut lost = 0;
        for ring in &mut self.rings {
            lost += ring.drain(|kind, body| match record::parse(kind, body) {
                Some(PerfRecord::Sample(s)) => {
                    told(Sampled::Sample(RawSample {
                        pid: s.pid,
                        tid: s.tid,
                        time_ns: s.time_ns,
                        regs: s.regs,
                        stack: s.stack,
                        outer: Outer::default(),
                        python_known: true,
                        python: &[],
                        kernel: &s.kernel,
                        live: false,
                    }));
                    0
                }
                Some(PerfRecord::Mapped { pid }) => {
                    told(Sampled::Mapped(pid));
                    0
                }
                Some(PerfRecord::Fork { pid, parent, .. }) => {
                    told(Sampled::Forked { pid, parent });
                    0
                }
                Some(PerfRecord::Lost(n)) => n,
                Some(PerfRecord::Exit { .. } | PerfRecord::Other) => 0,
                None => 1,
            });
        }
        lost
    }
}
