//! Arrays of the kernel that the agent reads as its own memory.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{fence, Ordering};

use super::layout::{Counters, ThreadPlace, THREADS_MAX};

/// A mapping of a BPF array map with `BPF_F_MMAPABLE`. BPF writes it while it is read here.
struct Mapped {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to nobody's thread; it is only ever read and written through volatile accesses.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapped> {
        use std::os::fd::AsRawFd;
        let bytes = bytes.next_multiple_of(4096);
        // SAFETY: a new mapping at a place that the kernel chooses.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapped { at: at.cast(), bytes })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and nothing borrows it any more.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

/// The table of threads.
pub struct Threads {
    map: Mapped,
}

impl Threads {
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Threads> {
        let map = Mapped::new(fd, THREADS_MAX * std::mem::size_of::<ThreadPlace>())?;
        Ok(Threads { map })
    }

    fn place(&self, n: usize) -> *mut ThreadPlace {
        assert!(n < THREADS_MAX);
        // SAFETY: inside the mapping, which is as long as THREADS_MAX places.
        unsafe { self.map.at.cast::<ThreadPlace>().add(n) }
    }

    /// The sequence number and the state alone: cheap, for those where nothing happened.
    pub fn glance(&self, n: usize) -> (u32, u32) {
        let p = self.place(n);
        // SAFETY: `place` points to a valid, aligned place; BPF may write at the same time, so the reads are volatile.
        unsafe {
            (
                (&raw const (*p).seq).read_volatile(),
                (&raw const (*p).state).read_volatile(),
            )
        }
    }

    /// All of a place as it stood at one moment; nothing if it is written all the time.
    pub fn read(&self, n: usize) -> Option<ThreadPlace> {
        let p = self.place(n);
        for _ in 0..64 {
            let (before, _) = self.glance(n);
            fence(Ordering::Acquire);
            // SAFETY: as in `glance`; a copy that was torn is thrown away below, and every bit pattern is a value.
            let copy = unsafe { p.read_volatile() };
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.glance(n).0 == before {
                return Some(copy);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Makes the place of an ended thread free. Only for places that BPF has ended: it writes them no more.
    pub fn free(&self, n: usize) {
        let p = self.place(n);
        // SAFETY: as in `glance`.
        unsafe { (&raw mut (*p).state).write_volatile(super::layout::state::FREE) };
    }
}

/// What BPF counts.
pub struct Counted {
    map: Mapped,
}

impl Counted {
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Counted> {
        let map = Mapped::new(fd, std::mem::size_of::<Counters>())?;
        Ok(Counted { map })
    }

    pub fn read(&self) -> Counters {
        // SAFETY: the mapping is at least as long; counters are independent of each other, so tearing does no harm.
        unsafe { self.map.at.cast::<Counters>().read_volatile() }
    }
}

/// Bytes of the text in `struct named` of names.bpf.c.
const NAME_BYTES: usize = 504;

/// An address in, its name out.
pub struct Named {
    map: Mapped,
}

impl Named {
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Named> {
        let map = Mapped::new(fd, 8 + NAME_BYTES)?;
        Ok(Named { map })
    }

    pub fn ask(&mut self, address: u64) {
        // SAFETY: inside the mapping, whose start is aligned; nothing else writes while no program runs.
        unsafe {
            self.map.at.cast::<u64>().write_volatile(address);
            self.map.at.add(8).write_volatile(0);
        }
    }

    /// What was written, up to its zero.
    pub fn text(&self) -> String {
        // SAFETY: as in `ask`; every bit pattern is a value.
        let byte = |n| unsafe { self.map.at.add(8 + n).read_volatile() };
        let bytes: Vec<u8> = (0..NAME_BYTES).map(byte).take_while(|&b| b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
