//! The choice of a tier by trying: the highest that starts, and why those above it did not.

use std::io;
use std::time::Duration;

use crate::calls::Wanted;
use crate::procfs::refused;
use crate::procfs::session::ProcfsSession;
use crate::profile::{Options, Profile};
use crate::session::Session;

/// A look that goes on, of whatever tier.
pub trait Look: Send {
    /// Looks for that long, or until every process has ended. Gives how many live.
    fn run(&mut self, time: Duration) -> io::Result<usize>;
    fn add(&mut self, pid: u32) -> io::Result<()>;
    fn take(&mut self) -> Profile;
    /// `(name, runs, nanoseconds)` of every BPF program so far.
    fn program_costs(&self) -> Vec<(String, u64, u64)> {
        Vec::new()
    }
}

impl Look for Session {
    fn run(&mut self, time: Duration) -> io::Result<usize> {
        Session::run(self, time)
    }

    fn add(&mut self, pid: u32) -> io::Result<()> {
        Session::add(self, pid)
    }

    fn take(&mut self) -> Profile {
        Session::take(self)
    }

    fn program_costs(&self) -> Vec<(String, u64, u64)> {
        Session::program_costs(self)
    }
}

impl Look for ProcfsSession {
    fn run(&mut self, time: Duration) -> io::Result<usize> {
        ProcfsSession::run(self, time)
    }

    fn add(&mut self, pid: u32) -> io::Result<()> {
        if let Some(reason) = refused(pid) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        ProcfsSession::add(self, pid)
    }

    fn take(&mut self) -> Profile {
        ProcfsSession::take(self)
    }
}

pub const TIERS: [&str; 3] = ["T0", "T1", "T2"];

/// A look that has begun.
pub struct Started {
    pub look: Box<dyn Look>,
    pub tier: &'static str,
    /// What it cannot see, one line each; and why no higher tier was had.
    pub misses: Vec<String>,
}

/// Begins with the highest tier that works, or with `tier` and no other. Errors: `NotFound` (no such process),
/// `PermissionDenied` (one of another user, or no tier is allowed), `Unsupported`.
pub fn start(
    pids: &[u32],
    options: Options,
    calls: Option<Wanted>,
    tier: Option<&str>,
) -> io::Result<Started> {
    for &pid in pids {
        if let Some(reason) = refused(pid) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
    }
    let mut why = Vec::new();
    let mut last = None;
    for one in TIERS {
        if tier.is_some_and(|t| t != one) {
            continue;
        }
        match start_one(pids, options, calls.clone(), one) {
            Ok((look, mut misses)) => {
                if !options.off_cpu {
                    misses.push("where threads wait: looked at on CPUs only".to_owned());
                }
                misses.extend(why);
                return Ok(Started {
                    look,
                    tier: one,
                    misses,
                });
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(e),
            Err(e) => {
                why.push(format!("tier {one} did not start: {e}{}", needed(one, &e)));
                last = Some(e.kind());
            }
        }
    }
    let kind = last.unwrap_or(io::ErrorKind::InvalidInput);
    if why.is_empty() {
        why.push(format!("there is no tier {}", tier.unwrap_or_default()));
    }
    Err(io::Error::new(kind, why.join("; ")))
}

/// What the tier would need, where that is a right.
fn needed(tier: &str, error: &io::Error) -> &'static str {
    if tier == "T0" && error.kind() == io::ErrorKind::PermissionDenied {
        " (needs root, or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, and a container that does not refuse bpf)"
    } else {
        ""
    }
}

fn start_one(
    pids: &[u32],
    options: Options,
    calls: Option<Wanted>,
    tier: &str,
) -> io::Result<(Box<dyn Look>, Vec<String>)> {
    if tier == "T0" {
        let session = Session::start(pids, options, calls)?;
        let misses = session.misses.clone();
        return Ok((Box::new(session), misses));
    }
    let session = ProcfsSession::start(pids, options, tier == "T1")?;
    let misses = session.misses();
    Ok((Box::new(session), misses))
}
