//! The reader's side of a BPF ring buffer.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER: u64 = 8;

/// A ring buffer that is mapped. One reader.
///
/// The kernel offers the data twice in a row, so that no record wraps; here it is mapped once, because every page of a
/// mapping counts as this process's memory: the record that wraps is put together instead.
#[derive(Debug)]
pub struct Ring {
    consumer: *mut libc::c_void,
    producer: *mut libc::c_void,
    page: usize,
    size: u64,
    wrapped: Vec<u8>,
}

// SAFETY: the mappings belong to this value alone and are read by whoever holds it.
unsafe impl Send for Ring {}
// SAFETY: reading needs &mut.
unsafe impl Sync for Ring {}

/// A record that is complete, by its place in the ring.
struct Found {
    at: u64,
    len: u64,
    discarded: bool,
}

impl Ring {
    /// Maps a ring of `size` bytes, as it was made with.
    pub fn new(fd: BorrowedFd<'_>, size: u32) -> io::Result<Ring> {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let size = size as usize;
        let mmap = |len, protection, offset| {
            // SAFETY: a new shared mapping of a descriptor that is open; the kernel checks length and offset.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    len,
                    protection,
                    libc::MAP_SHARED,
                    fd.as_raw_fd(),
                    offset,
                )
            };
            if at == libc::MAP_FAILED {
                Err(io::Error::last_os_error())
            } else {
                Ok(at)
            }
        };
        let consumer = mmap(page, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        let producer = match mmap(page + size, libc::PROT_READ, page as libc::off_t) {
            Ok(at) => at,
            Err(error) => {
                // SAFETY: mapped above with this length.
                unsafe { libc::munmap(consumer, page) };
                return Err(error);
            }
        };
        Ok(Ring {
            consumer,
            producer,
            page,
            size: size as u64,
            wrapped: Vec::new(),
        })
    }

    /// Hands every record that is complete to `each`; they are freed afterwards.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        while let Some(found) = self.next() {
            if !found.discarded {
                let mut wrapped = std::mem::take(&mut self.wrapped);
                match self.parts(&found) {
                    (whole, []) => each(whole),
                    (head, tail) => {
                        wrapped.clear();
                        wrapped.extend_from_slice(head);
                        wrapped.extend_from_slice(tail);
                        each(&wrapped);
                    }
                }
                self.wrapped = wrapped;
            }
            self.free(&found);
        }
    }

    /// Copies the next record that is complete and frees it; false where there is none.
    pub fn next_into(&mut self, into: &mut Vec<u8>) -> bool {
        while let Some(found) = self.next() {
            if !found.discarded {
                let (head, tail) = self.parts(&found);
                into.clear();
                into.extend_from_slice(head);
                into.extend_from_slice(tail);
            }
            self.free(&found);
            if !found.discarded {
                return true;
            }
        }
        false
    }

    fn next(&self) -> Option<Found> {
        // SAFETY: the positions stand at the start of their pages and are written by the kernel as whole words.
        let (read, written) = unsafe {
            (
                &*self.consumer.cast::<AtomicU64>(),
                &*self.producer.cast::<AtomicU64>(),
            )
        };
        let at = read.load(Ordering::Relaxed);
        if at >= written.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: below the written position lies a record's header, inside the mapped data: records are aligned to
        // 8 bytes, so it does not wrap. The busy bit is cleared by the kernel when the record is whole.
        let header = unsafe { &*self.data(at).cast::<AtomicU32>() }.load(Ordering::Acquire);
        let len = u64::from(header & !(BUSY | DISCARDED));
        (header & BUSY == 0).then_some(Found {
            at,
            len: len.min(self.size - HEADER),
            discarded: header & DISCARDED != 0,
        })
    }

    fn data(&self, at: u64) -> *const u8 {
        // SAFETY: the data follows the first page and is `size` long.
        unsafe {
            self.producer
                .cast::<u8>()
                .add(self.page + (at & (self.size - 1)) as usize)
        }
    }

    fn parts(&self, found: &Found) -> (&[u8], &[u8]) {
        let from = (found.at + HEADER) & (self.size - 1);
        let first = found.len.min(self.size - from);
        // SAFETY: both parts lie inside the mapped data; the record is whole, and not overwritten before it is freed.
        unsafe {
            (
                std::slice::from_raw_parts(self.data(from), first as usize),
                std::slice::from_raw_parts(self.data(0), (found.len - first) as usize),
            )
        }
    }

    fn free(&mut self, found: &Found) {
        let next = found.at + (found.len + HEADER).next_multiple_of(8);
        // SAFETY: as in `next`.
        unsafe { &*self.consumer.cast::<AtomicU64>() }.store(next, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with these lengths, and nobody refers to them any more.
        unsafe {
            libc::munmap(self.consumer, self.page);
            libc::munmap(self.producer, self.page + self.size as usize);
        }
    }
}
