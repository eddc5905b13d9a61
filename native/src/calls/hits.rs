//! How often each probed function was entered and left: counted by the kernel, read in place.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::bpf::Map;

/// Number of the first function that is not the kernel object's own (TCP, files).
pub const FIRST_FUNCTION: u32 = 256;

/// The map `hits`, which is mapped: entries and exits of each function in turn.
#[derive(Debug)]
pub struct Hits {
    at: *mut libc::c_void,
    words: usize,
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for Hits {}
// SAFETY: it is only read, by whole atomic words.
unsafe impl Sync for Hits {}

impl Hits {
    pub fn open(map: &Map) -> io::Result<Hits> {
        let words = map.max_entries as usize;
        // SAFETY: a new shared mapping of a descriptor that is ours; the kernel checks its length.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                8 * words,
                libc::PROT_READ,
                libc::MAP_SHARED,
                map.fd.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Hits { at, words })
    }

    /// How many functions have room.
    pub fn functions(&self) -> usize {
        self.words / 2
    }

    /// Entries and exits of a function up to now; zero for a number that no probed function has.
    pub fn of(&self, function: u32) -> (u64, u64) {
        let Some(at) = function.checked_sub(FIRST_FUNCTION).map(|n| 2 * n as usize) else {
            return (0, 0);
        };
        let word = |n: usize| {
            if n >= self.words {
                return 0;
            }
            // SAFETY: inside the mapping and aligned; the kernel adds to it atomically.
            unsafe { &*self.at.cast::<AtomicU64>().add(n) }.load(Ordering::Relaxed)
        };
        (word(at), word(at + 1))
    }
}

impl Drop for Hits {
    fn drop(&mut self) {
        // SAFETY: mapped in `open` with this length, and nobody refers to it any more.
        unsafe { libc::munmap(self.at, 8 * self.words) };
    }
}
