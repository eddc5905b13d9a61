//! The reader's side of a BPF ring buffer.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::bpf::Map;

const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER: u64 = 8;

/// A ring buffer that is mapped. One reader.
#[derive(Debug)]
pub struct Ring {
    consumer: *mut libc::c_void,
    producer: *mut libc::c_void,
    page: usize,
    size: u64,
}

// SAFETY: the mappings belong to this value alone and are read by whoever holds it.
unsafe impl Send for Ring {}
// SAFETY: reading needs &mut.
unsafe impl Sync for Ring {}

impl Ring {
    pub fn open(map: &Map) -> io::Result<Ring> {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let size = map.max_entries as usize;
        let mmap = |len, protection, offset| {
            // SAFETY: a new shared mapping of a descriptor that is ours; the kernel checks length and offset.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    len,
                    protection,
                    libc::MAP_SHARED,
                    map.fd.as_raw_fd(),
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
        // The data lies there twice in a row, so that a record never wraps.
        let producer = match mmap(page + 2 * size, libc::PROT_READ, page as libc::off_t) {
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
        })
    }

    /// Hands every record that is complete to `each`; they are freed afterwards.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        // SAFETY: the positions stand at the start of their pages and are written by the kernel as whole words.
        let (read_at, written) = unsafe {
            (
                &*self.consumer.cast::<AtomicU64>(),
                &*self.producer.cast::<AtomicU64>(),
            )
        };
        let mut at = read_at.load(Ordering::Relaxed);
        while at < written.load(Ordering::Acquire) {
            // SAFETY: below the written position lies a record's header, inside the mapped data.
            let record = unsafe {
                self.producer
                    .cast::<u8>()
                    .add(self.page + (at & (self.size - 1)) as usize)
            };
            // SAFETY: headers are aligned to 8 bytes; the busy bit is cleared by the kernel when the record is whole.
            let header = unsafe { &*record.cast::<AtomicU32>() }.load(Ordering::Acquire);
            if header & BUSY != 0 {
                break;
            }
            let len = u64::from(header & !(BUSY | DISCARDED));
            if header & DISCARDED == 0 && len <= self.size {
                // SAFETY: the record is whole, and not overwritten before the read position moves on.
                each(unsafe { std::slice::from_raw_parts(record.add(HEADER as usize), len as usize) });
            }
            at += (len + HEADER).next_multiple_of(8);
            read_at.store(at, Ordering::Release);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped in `open` with these lengths, and nobody refers to them any more.
        unsafe {
            libc::munmap(self.consumer, self.page);
            libc::munmap(self.producer, self.page + 2 * self.size as usize);
        }
    }
}
