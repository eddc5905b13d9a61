//! The mappings of a process, as `/proc/PID/maps` lists them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// One line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    pub dev: (u32, u32),
    pub inode: u64,
    pub executable: bool,
    /// Without the mark of a deleted file; `[vdso]`, `[stack]` for what is no file; empty for anonymous memory.
    pub path: String,
    pub deleted: bool,
}

impl Mapping {
    pub fn holds(&self, addr: u64) -> bool {
        self.start <= addr && addr < self.end
    }

    pub fn is_file(&self) -> bool {
        self.inode != 0 && self.path.starts_with('/')
    }

    /// File name without its directory.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The same file in any mount namespace.
    pub fn file(&self) -> FileId {
        (self.dev, self.inode)
    }

    /// Paths by which this very file can be opened from here, the best first: its mapping, its path as the process sees it.
    pub fn ways(&self, pid: u32) -> Vec<PathBuf> {
        let mapped = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", self.start, self.end));
        // What stands at the path of a deleted file is another one.
        let by_path = (!self.deleted).then(|| PathBuf::from(format!("/proc/{pid}/root{}", self.path)));
        std::iter::once(mapped).chain(by_path).collect()
    }
}

/// Device and inode.
pub type FileId = ((u32, u32), u64);

/// The executable mappings of files. Errors: the process is gone, or may not be looked at.
pub fn executable(pid: u32) -> io::Result<Vec<Mapping>> {
    let mut list = Maps::parse(&fs::read(format!("/proc/{pid}/maps"))?).list;
    list.retain(|m| m.executable && m.is_file());
    Ok(list)
}

/// Tells whether code was mapped into a process or taken away, without a look at its mappings.
#[derive(Debug, Default)]
pub struct CodeWatch {
    statm: Option<File>,
    /// Of the whole address space.
    pages: u64,
    code_kb: u64,
}

impl CodeWatch {
    /// True the first time, and whenever the size of all executable mappings has changed since. Errors: the process is gone,
    /// or may not be looked at.
    pub fn changed(&mut self, pid: u32) -> io::Result<bool> {
        let pages = self.pages_now(pid)?;
        if pages == self.pages {
            return Ok(false);
        }
        // Programs take memory and give it back all the time; the kernel tells how much of it is code.
        let status = fs::read(format!("/proc/{pid}/status"))?;
        let code_kb = code_kb(&status).ok_or_else(gone)?;
        let first = self.pages == 0;
        self.pages = pages;
        Ok(std::mem::replace(&mut self.code_kb, code_kb) != code_kb || first)
    }

    fn pages_now(&mut self, pid: u32) -> io::Result<u64> {
        let mut text = [0u8; 64];
        let n = match &self.statm {
            Some(file) => file.read_at(&mut text, 0)?,
            None => {
                let file = File::open(format!("/proc/{pid}/statm"))?;
                let n = file.read_at(&mut text, 0)?;
                self.statm = Some(file);
                n
            }
        };
        let pages = text[..n].split(|b| *b == b' ').next().and_then(number);
        pages.filter(|&n| n > 0).ok_or_else(gone)
    }
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ESRCH)
}

/// The executable mappings of all libraries and generated code together, of `/proc/PID/status`.
fn code_kb(status: &[u8]) -> Option<u64> {
    let line = status
        .split(|b| *b == b'\n')
        .find_map(|line| line.strip_prefix(b"VmLib:"))?;
    number(
        line.split(|b| b.is_ascii_whitespace())
            .find(|word| !word.is_empty())?,
    )
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// At most this many lines are read.
const MAPPINGS_MAX: usize = 1 << 17;

/// The mappings of a process, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maps {
    pub list: Vec<Mapping>,
    /// Ranges that hold code, joined where they touch.
    code: Vec<(u64, u64)>,
}

impl Maps {
    /// Lines that make no sense are left out.
    pub fn parse(text: &[u8]) -> Maps {
        let lines = text.split(|&b| b == b'\n').take(MAPPINGS_MAX);
        let mut list: Vec<Mapping> = lines.filter_map(parse_line).collect();
        list.sort_by_key(|m| m.start);
        let mut end = 0;
        list.retain(|m| {
            let fits = m.start >= end;
            if fits {
                end = m.end;
            }
            fits
        });
        let mut code: Vec<(u64, u64)> = Vec::new();
        for m in list.iter().filter(|m| m.executable) {
            match code.last_mut() {
                Some(last) if last.1 == m.start => last.1 = m.end,
                _ => code.push((m.start, m.end)),
            }
        }
        Maps { list, code }
    }

    pub fn find(&self, addr: u64) -> Option<usize> {
        let i = self.list.partition_point(|m| m.start <= addr).checked_sub(1)?;
        self.list[i].holds(addr).then_some(i)
    }

    /// Is there code at this address?
    pub fn is_code(&self, addr: u64) -> bool {
        match (self.code.first(), self.code.last()) {
            (Some(first), Some(last)) if first.0 <= addr && addr < last.1 => {
                let i = self.code.partition_point(|r| r.0 <= addr);
                i > 0 && addr < self.code[i - 1].1
            }
            _ => false,
        }
    }
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let line = String::from_utf8_lossy(line);
    let mut rest = line.as_ref();
    let mut field = || {
        rest = rest.trim_start_matches(' ');
        let (head, tail) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = tail;
        head
    };
    let (range, perms, offset, dev, inode) = (field(), field(), field(), field(), field());
    let (start, end) = range.split_once('-')?;
    let (major, minor) = dev.split_once(':')?;
    let hex = |s: &str| u64::from_str_radix(s, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let path = unescape(rest.trim_start_matches(' '));
    let deleted = path.ends_with(" (deleted)");
    (start < end).then_some(Mapping {
        start,
        end,
        offset: hex(offset)?,
        dev: (u32::try_from(hex(major)?).ok()?, u32::try_from(hex(minor)?).ok()?),
        inode: inode.parse().ok()?,
        executable: perms.as_bytes().get(2) == Some(&b'x'),
        path: path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned(),
        deleted,
    })
}

/// The kernel writes a newline in a file name as `\012`.
fn unescape(path: &str) -> String {
    path.replace("\\012", "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"00400000-0041f000 r--p 00000000 fe:00 325 /usr/bin/python3.11\n\
        0041f000-006d2000 r-xp 0001f000 fe:00 325                        /usr/bin/python3.11\n\
        006d2000-006d3000 r-xp 00000000 00:00 0 \n\
        7f00-7f01 rw-p 0 00:00 0 [stack]\n\
        nonsense\n\
        9000-8000 r-xp 0 00:00 0\n\
        7f10000-7f20000 r-xp 00001000 00:2c 77 /tmp/a b.so (deleted)\n";

    #[test]
    fn lines_are_read_and_nonsense_is_left_out() {
        let maps = Maps::parse(TEXT);
        assert_eq!(maps.list.len(), 5);
        let m = &maps.list[maps.find(0x7f10001).expect("the deleted one")];
        assert_eq!(
            (m.path.as_str(), m.deleted, m.dev, m.inode),
            ("/tmp/a b.so", true, (0, 0x2c), 77)
        );
        assert_eq!(m.name(), "a b.so");
        assert!(maps.is_code(0x41f000) && maps.is_code(0x6d2fff));
        assert!(!maps.is_code(0x400000) && !maps.is_code(0x6d3000) && !maps.is_code(0));
        assert_eq!(maps.find(0x6d3000), None);
    }

    #[test]
    fn mappings_that_overlap_leave_one_of_them() {
        let maps = Maps::parse(b"1000-3000 r-xp 0 00:00 0\n2000-4000 r-xp 0 00:00 0\n");
        assert_eq!(maps.list.len(), 1);
    }

    #[test]
    fn a_deleted_file_is_only_reached_through_its_mapping() {
        let maps = Maps::parse(TEXT);
        let ways = |addr| maps.list[maps.find(addr).expect("mapped")].ways(5);
        assert_eq!(
            ways(0x7f10001),
            [PathBuf::from("/proc/5/map_files/7f10000-7f20000")]
        );
        assert_eq!(
            ways(0x400000)[1],
            PathBuf::from("/proc/5/root/usr/bin/python3.11")
        );
    }

    #[test]
    fn code_that_comes_is_seen_and_memory_that_comes_is_not() {
        let me = std::process::id();
        let mut watch = CodeWatch::default();
        assert!(watch.changed(me).expect("it lives"));
        let map = |protection, len| {
            // SAFETY: new memory that nobody else uses.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    len,
                    protection,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                )
            };
            assert_ne!(at, libc::MAP_FAILED);
            at
        };
        let data = map(libc::PROT_READ, 1 << 24);
        assert!(!watch.changed(me).expect("it lives"));
        let code = map(libc::PROT_READ | libc::PROT_EXEC, 3 << 24);
        assert!(watch.changed(me).expect("it lives"));
        // SAFETY: mapped above, and nothing refers to it.
        unsafe {
            libc::munmap(data, 1 << 24);
            libc::munmap(code, 3 << 24);
        }
    }

    #[test]
    fn a_process_that_is_gone_has_no_code() {
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .expect("sleep is there");
        let mut watch = CodeWatch::default();
        assert!(watch.changed(child.id()).expect("it lives"));
        child.kill().expect("it lives");
        child.wait().expect("it was ours");
        assert!(watch.changed(child.id()).is_err());
    }
}
