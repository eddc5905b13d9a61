//! What this user may see of a process, and why not.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use crate::procfs::parse;

pub fn process_stat(pid: u32) -> Option<parse::Stat> {
    parse::stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// A file that a process runs code of, and that this user may not read.
pub fn closed_file(pid: u32) -> Option<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    maps.lines()
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let rights = fields.nth(1)?;
            let path = fields.nth(3)?;
            (rights.contains('x') && path.starts_with('/')).then_some(path)
        })
        .find(|path| {
            let seen = fs::File::open(format!("/proc/{pid}/root{path}"));
            seen.is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
                && fs::File::open(path).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
        })
        .map(str::to_owned)
}

/// Why this user may not look into a process of another one; nothing where it may, or where it is not there.
pub fn refused(pid: u32) -> Option<String> {
    let owner = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    // SAFETY: takes nothing and always succeeds.
    let own = unsafe { libc::geteuid() };
    if owner == own {
        return None;
    }
    // The kernel's own answer: opening this file asks for the right to trace the process.
    match may_trace(pid) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Some(format!(
            "process {pid} belongs to user {owner}, and this is user {own}: run as that user or as root (CAP_SYS_PTRACE)"
        )),
        _ => None,
    }
}

/// Whether this user may read a process's memory. Errors: `PermissionDenied` with what forbids it, `Unsupported`.
pub fn may_read(pid: u32) -> io::Result<()> {
    match may_trace(pid) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
            let reason = match scope.trim() {
                "" | "0" => {
                    "it changed its user or forbids dumps, or is in another user namespace; run as root"
                        .to_owned()
                }
                scope => format!("kernel.yama.ptrace_scope is {scope}; set it to 0, or run as root"),
            };
            Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("process {pid} may not be read: {reason}"),
            ))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound && process_stat(pid).is_some() => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel has no /proc/PID/syscall",
        )),
        _ => Ok(()),
    }
}

fn may_trace(pid: u32) -> io::Result<()> {
    let mut file = fs::File::open(format!("/proc/{pid}/syscall"))?;
    file.read(&mut [0; 256]).map(|_| ())
}
