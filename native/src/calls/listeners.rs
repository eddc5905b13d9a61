//! Where a process listens for connections, as `/proc` tells it.

use std::io;

use rustc_hash::FxHashSet;

/// The start of a unix socket's path that the kernel's program tells: a longer one is cut.
pub const PATH_MAX: usize = 32;

/// Places at which somebody can connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listeners {
    pub ports: FxHashSet<u16>,
    /// The starts of paths, without the zero of an abstract one.
    pub paths: FxHashSet<String>,
}

impl Listeners {
    /// Errors: the process is gone, or may not be looked at.
    pub fn of(pid: u32) -> io::Result<Listeners> {
        let sockets = sockets(pid)?;
        let mut found = Listeners::default();
        if sockets.is_empty() {
            return Ok(found);
        }
        let table =
            |name: &str| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
        for name in ["tcp", "tcp6"] {
            let text = table(name);
            let ports = text.lines().filter_map(|line| tcp(line, &sockets));
            found.ports.extend(ports);
        }
        let text = table("unix");
        let paths = text.lines().filter_map(|line| unix(line, &sockets));
        found.paths.extend(paths);
        Ok(found)
    }
}

/// Numbers of the sockets that a process has open.
fn sockets(pid: u32) -> io::Result<FxHashSet<u64>> {
    let list = std::fs::read_dir(format!("/proc/{pid}/fd"))?;
    let links = list.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    Ok(links
        .filter_map(|link| {
            let text = link.to_str()?;
            text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        })
        .collect())
}

/// The port of a line of `net/tcp`, where it is a listener of these sockets.
fn tcp(line: &str, sockets: &FxHashSet<u64>) -> Option<u16> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let inode: u64 = fields.get(9)?.parse().ok()?;
    if *fields.get(3)? != "0A" || !sockets.contains(&inode) {
        return None;
    }
    u16::from_str_radix(fields[1].rsplit(':').next()?, 16).ok()
}

/// The path of a line of `net/unix`, where it is a listener of these sockets that takes streams.
fn unix(line: &str, sockets: &FxHashSet<u64>) -> Option<String> {
    let mut fields = line.split_ascii_whitespace();
    let flags = fields.nth(3)?;
    let kind = fields.next()?;
    let inode: u64 = fields.nth(1)?.parse().ok()?;
    let path = fields.next()?;
    let accepts = u32::from_str_radix(flags, 16).ok()? & 0x10000 != 0;
    (accepts && kind == "0001" && sockets.contains(&inode)).then(|| shown(path.as_bytes()))
}

/// A path as it is told: its start, up to a zero; an abstract one begins with `@`.
pub fn shown(path: &[u8]) -> String {
    let mut path = path.to_vec();
    if path.first() == Some(&0) {
        path[0] = b'@';
    }
    let end = path.iter().position(|&b| b == 0).unwrap_or(path.len());
    String::from_utf8_lossy(&path[..end.min(PATH_MAX)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listeners_of_the_process_count() {
        let sockets = FxHashSet::from_iter([77, 99]);
        let line = |state, inode| {
            format!("  0: 0100007F:1F90 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  0 0 {inode} 1 0")
        };
        assert_eq!(tcp(&line("0A", 77), &sockets), Some(8080));
        assert_eq!(tcp(&line("01", 77), &sockets), None);
        assert_eq!(tcp(&line("0A", 78), &sockets), None);
        assert_eq!(tcp("  sl  local_address", &sockets), None);
        let unix_line =
            |flags, inode| format!("0000: 00000002 00000000 {flags} 0001 01 {inode} /run/model.sock");
        assert_eq!(
            unix(&unix_line("00010000", 99), &sockets).as_deref(),
            Some("/run/model.sock")
        );
        assert_eq!(unix(&unix_line("00000000", 99), &sockets), None);
        assert_eq!(unix("", &sockets), None);
    }

    #[test]
    fn a_listener_of_this_process_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(Listeners::of(std::process::id()).unwrap().ports.contains(&port));
        drop(listener);
        assert!(!Listeners::of(std::process::id()).unwrap().ports.contains(&port));
    }
}
