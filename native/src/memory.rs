//! Memory of another process, or of a recording.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, OnceLock};

/// Something that bytes can be read from by address.
pub trait Memory: Send + Sync {
    /// Fills all of `into` from `addr` on. False: not all of it could be read, and `into` holds anything.
    fn read(&self, addr: u64, into: &mut [u8]) -> bool;

    fn u8(&self, addr: u64) -> Option<u8> {
        let mut b = [0; 1];
        self.read(addr, &mut b).then(|| b[0])
    }

    fn u32(&self, addr: u64) -> Option<u32> {
        let mut b = [0; 4];
        self.read(addr, &mut b).then(|| u32::from_le_bytes(b))
    }

    fn u64(&self, addr: u64) -> Option<u64> {
        let mut b = [0; 8];
        self.read(addr, &mut b).then(|| u64::from_le_bytes(b))
    }

    /// `len` bytes, or nothing. The caller bounds `len`.
    fn bytes(&self, addr: u64, len: usize) -> Option<Vec<u8>> {
        let mut b = vec![0; len];
        self.read(addr, &mut b).then_some(b)
    }

    /// `len` bytes from each of `addrs` into `into`, one after the other: which of them could be read.
    fn read_many(&self, addrs: &[u64], len: usize, into: &mut [u8]) -> Vec<bool> {
        addrs
            .iter()
            .zip(into.chunks_exact_mut(len))
            .map(|(&a, b)| self.read(a, b))
            .collect()
    }

    /// The bytes up to a zero, at most `limit` of them.
    fn cstr(&self, addr: u64, limit: usize) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let mut chunk = [0u8; 64];
        while out.len() < limit {
            let at = addr.checked_add(out.len() as u64)?;
            // Never across a page that may not be there.
            let n = (64 - (at % 64) as usize).min(limit - out.len());
            if !self.read(at, &mut chunk[..n]) {
                return None;
            }
            match chunk[..n].iter().position(|&b| b == 0) {
                Some(end) => {
                    out.extend_from_slice(&chunk[..end]);
                    return Some(out);
                }
                None => out.extend_from_slice(&chunk[..n]),
            }
        }
        Some(out)
    }
}

impl<M: Memory + ?Sized> Memory for &M {
    fn read(&self, addr: u64, into: &mut [u8]) -> bool {
        (**self).read(addr, into)
    }
}

/// Nothing can be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMemory;

impl Memory for NoMemory {
    fn read(&self, _addr: u64, into: &mut [u8]) -> bool {
        into.is_empty()
    }
}

/// Memory of which each page is read once: for many small reads near each other, all of one moment.
pub struct Paged<'a> {
    of: &'a dyn Memory,
    pages: Mutex<Vec<(u64, Box<[u8; PAGE]>)>>,
}

const PAGE: usize = 4096;
/// Pages that are kept; reads beyond them go through.
const PAGES_MAX: usize = 16;

impl<'a> Paged<'a> {
    pub fn new(of: &'a dyn Memory) -> Paged<'a> {
        Paged {
            of,
            pages: Mutex::default(),
        }
    }
}

impl Memory for Paged<'_> {
    fn read(&self, addr: u64, into: &mut [u8]) -> bool {
        let (start, from) = (addr & !(PAGE as u64 - 1), addr as usize % PAGE);
        if from + into.len() > PAGE {
            return self.of.read(addr, into);
        }
        let mut pages = self.pages.lock().unwrap_or_else(|e| e.into_inner());
        let known = pages.iter().position(|page| page.0 == start);
        let at = known.or_else(|| {
            let mut page = Box::new([0; PAGE]);
            let read = pages.len() < PAGES_MAX && self.of.read(start, &mut page[..]);
            read.then(|| {
                pages.push((start, page));
                pages.len() - 1
            })
        });
        match at.and_then(|at| pages.get(at)) {
            Some((_, page)) => {
                into.copy_from_slice(&page[from..from + into.len()]);
                true
            }
            None => self.of.read(addr, into),
        }
    }
}

/// The memory of a process that lives, by `process_vm_readv`; through `/proc/PID/mem` where that call is refused.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: u32,
    file: OnceLock<Option<File>>,
}

impl ProcessMemory {
    pub fn new(pid: u32) -> Self {
        Self {
            pid,
            file: OnceLock::new(),
        }
    }

    /// How many bytes from `addr` on could be read: fewer than asked where the mapping ends.
    pub fn read_some(&self, addr: u64, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let local = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        };
        let remote = libc::iovec {
            iov_base: addr as *mut libc::c_void,
            iov_len: into.len(),
        };
        // SAFETY: `local` describes `into`, which lives and is writable for the whole call; the kernel checks `remote`.
        let n = unsafe { libc::process_vm_readv(self.pid as libc::pid_t, &local, 1, &remote, 1, 0) };
        if n >= 0 {
            return Ok(n as usize);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EPERM | libc::ENOSYS) => match self.file() {
                Some(file) => file.read_at(into, addr),
                None => Err(error),
            },
            _ => Err(error),
        }
    }

    fn read_all_at_once(&self, addrs: &[u64], len: usize, into: &mut [u8]) -> bool {
        let wanted = addrs.len() * len;
        if into.len() < wanted {
            return false;
        }
        let local = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: wanted,
        };
        let remote: Vec<libc::iovec> = addrs
            .iter()
            .map(|&a| libc::iovec {
                iov_base: a as *mut libc::c_void,
                iov_len: len,
            })
            .collect();
        // SAFETY: `local` describes the first `wanted` bytes of `into`, which are there and writable; the kernel checks
        // each of `remote`, whose count is the vector's length.
        let n = unsafe {
            libc::process_vm_readv(
                self.pid as libc::pid_t,
                &local,
                1,
                remote.as_ptr(),
                remote.len() as u64,
                0,
            )
        };
        usize::try_from(n) == Ok(wanted)
    }

    fn file(&self) -> Option<&File> {
        self.file
            .get_or_init(|| File::open(format!("/proc/{}/mem", self.pid)).ok())
            .as_ref()
    }
}

impl Memory for ProcessMemory {
    fn read(&self, addr: u64, into: &mut [u8]) -> bool {
        let mut done = 0;
        while done < into.len() {
            let Some(at) = addr.checked_add(done as u64) else {
                return false;
            };
            match self.read_some(at, &mut into[done..]) {
                Ok(n) if n > 0 => done += n,
                _ => return false,
            }
        }
        true
    }

    fn read_many(&self, addrs: &[u64], len: usize, into: &mut [u8]) -> Vec<bool> {
        const AT_ONCE: usize = 256;
        let mut done = Vec::with_capacity(addrs.len());
        for (addrs, into) in addrs.chunks(AT_ONCE).zip(into.chunks_mut(AT_ONCE * len)) {
            if self.read_all_at_once(addrs, len, into) {
                done.resize(done.len() + addrs.len(), true);
            } else {
                done.extend(
                    addrs
                        .iter()
                        .zip(into.chunks_exact_mut(len))
                        .map(|(&a, b)| self.read(a, b)),
                );
            }
        }
        done
    }
}

/// Pieces of memory that were kept: of a recording, or written by a test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedMemory {
    /// Sorted by address, and none touches the next.
    pieces: Vec<(u64, Vec<u8>)>,
}

impl RecordedMemory {
    /// Adds a piece; what was known of the same addresses is overwritten.
    pub fn put(&mut self, addr: u64, bytes: &[u8]) {
        if bytes.is_empty() || addr.checked_add(bytes.len() as u64).is_none() {
            return;
        }
        let end = addr + bytes.len() as u64;
        let from = self.pieces.partition_point(|(a, b)| a + (b.len() as u64) < addr);
        let to = self.pieces.partition_point(|(a, _)| *a <= end);
        let mut joined_at = addr;
        let mut joined_end = end;
        if from < to {
            joined_at = joined_at.min(self.pieces[from].0);
            let (a, b) = &self.pieces[to - 1];
            joined_end = joined_end.max(a + b.len() as u64);
        }
        let mut joined = vec![0; (joined_end - joined_at) as usize];
        for (a, b) in self.pieces.drain(from..to) {
            let o = (a - joined_at) as usize;
            joined[o..o + b.len()].copy_from_slice(&b);
        }
        let o = (addr - joined_at) as usize;
        joined[o..o + bytes.len()].copy_from_slice(bytes);
        self.pieces.insert(from, (joined_at, joined));
    }

    /// Nothing unless the pieces are sorted and apart, as [`RecordedMemory::pieces`] gives them.
    pub fn of_pieces(pieces: Vec<(u64, Vec<u8>)>) -> Option<RecordedMemory> {
        let mut free = Some(0u64);
        for (at, b) in &pieces {
            if free.is_none_or(|f| *at < f) {
                return None;
            }
            free = at.checked_add(b.len() as u64);
        }
        Some(RecordedMemory { pieces })
    }

    pub fn pieces(&self) -> &[(u64, Vec<u8>)] {
        &self.pieces
    }
}

impl Memory for RecordedMemory {
    fn read(&self, addr: u64, into: &mut [u8]) -> bool {
        let i = self.pieces.partition_point(|(a, _)| *a <= addr);
        let Some((at, bytes)) = i.checked_sub(1).and_then(|i| self.pieces.get(i)) else {
            return into.is_empty();
        };
        let offset = (addr - at) as usize;
        match bytes.get(offset..).and_then(|b| b.get(..into.len())) {
            Some(b) => {
                into.copy_from_slice(b);
                true
            }
            None => into.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_touch_are_one_and_the_later_write_wins() {
        let mut m = RecordedMemory::default();
        m.put(100, &[1, 2, 3, 4]);
        m.put(110, &[9, 9]);
        m.put(103, &[7, 7, 7, 7, 7, 7, 7]);
        assert_eq!(m.pieces().len(), 1);
        assert_eq!(m.bytes(100, 12), Some(vec![1, 2, 3, 7, 7, 7, 7, 7, 7, 7, 9, 9]));
        assert_eq!(m.bytes(100, 13), None);
        assert_eq!(m.bytes(99, 1), None);
        assert_eq!(m.u32(u64::MAX - 1), None);
    }

    #[test]
    fn a_page_is_read_once_and_what_is_not_whole_piece_by_piece() {
        struct Counting(RecordedMemory, std::sync::atomic::AtomicU32);
        impl Memory for Counting {
            fn read(&self, addr: u64, into: &mut [u8]) -> bool {
                self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                self.0.read(addr, into)
            }
        }
        let mut recorded = RecordedMemory::default();
        let bytes: Vec<u8> = (0..2 * PAGE + 100).map(|i| (i % 251) as u8).collect();
        recorded.put(PAGE as u64, &bytes);
        let counting = Counting(recorded.clone(), Default::default());
        let paged = Paged::new(&counting);
        for addr in (PAGE..3 * PAGE).step_by(64) {
            assert_eq!(paged.u64(addr as u64), recorded.u64(addr as u64));
        }
        assert_eq!(counting.1.load(std::sync::atomic::Ordering::Relaxed), 2);
        let across = 2 * PAGE as u64 - 4;
        assert_eq!(paged.u64(across), recorded.u64(across));
        let last = 3 * PAGE as u64 + 92;
        assert_eq!(paged.u64(last), recorded.u64(last));
        assert_eq!(paged.u64(last + 1), None);
        assert_eq!(paged.u64(u64::MAX - 3), None);
    }

    #[test]
    fn own_memory_is_read_and_a_hole_is_not() {
        let text = b"held in the heap of this test\0";
        let m = ProcessMemory::new(std::process::id());
        assert_eq!(m.cstr(text.as_ptr() as u64, 200).as_deref(), Some(&text[..29]));
        assert_eq!(m.cstr(text.as_ptr() as u64, 4).as_deref(), Some(&b"held"[..]));
        assert_eq!(m.u64(8), None);
        assert_eq!(m.u64(u64::MAX - 3), None);
    }
}
