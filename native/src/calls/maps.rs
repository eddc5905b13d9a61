//! The executable files that a process has mapped.

use std::io;
use std::path::PathBuf;

/// A piece of a file that is mapped executable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Of `start` in the file.
    pub offset: u64,
    /// Device and inode: the same file in any mount namespace.
    pub file: (String, u64),
    pub path: String,
}

impl Mapping {
    /// The name of the file without its directory, and without the mark of a deleted one.
    pub fn name(&self) -> &str {
        let path = self.path.strip_suffix(" (deleted)").unwrap_or(&self.path);
        path.rsplit('/').next().unwrap_or(path)
    }

    /// Paths by which this very file can be opened from here, the best first: its mapping, its path as the process sees it.
    pub fn ways(&self, pid: u32) -> [PathBuf; 2] {
        [
            PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", self.start, self.end)),
            PathBuf::from(format!("/proc/{pid}/root{}", self.path)),
        ]
    }
}

/// The executable mappings of files. Errors: the process is gone, or may not be looked at.
pub fn executable(pid: u32) -> io::Result<Vec<Mapping>> {
    Ok(parse(&std::fs::read_to_string(format!("/proc/{pid}/maps"))?))
}

/// The size of a process's address space in pages: it changes when a library is loaded.
pub fn address_space(pid: u32) -> io::Result<u64> {
    std::fs::read_to_string(format!("/proc/{pid}/statm"))?
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .ok_or_else(|| io::Error::other("statm has no size"))
}

fn parse(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let offset = fields.next()?;
    let device = fields.next()?;
    let inode: u64 = fields.next()?.parse().ok()?;
    let path = fields.next()?.trim_start();
    if permissions.as_bytes().get(2) != Some(&b'x') || inode == 0 || !path.starts_with('/') {
        return None;
    }
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        file: (device.to_owned(), inode),
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_executable_files_count_and_names_may_have_spaces() {
        let text = "\
7f00-7f10 r-xp 00001000 fe:01 77 /opt/my libs/libc10.so (deleted)
7f10-7f20 r--p 00001000 fe:01 77 /opt/libc10.so
7f20-7f30 r-xp 00000000 00:00 0 [vdso]
7f30-7f40 rwxp 00000000 00:00 0
bad line
";
        let found = parse(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name(), "libc10.so");
        assert_eq!(found[0].file, ("fe:01".to_owned(), 77));
        assert!(found[0].ways(5)[0].ends_with("5/map_files/7f00-7f10"));
    }
}
