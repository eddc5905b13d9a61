//! Where the bytes of a file come from. Files are read, never mapped: a mapped file that its owner cuts short would
//! kill the profiler with SIGBUS.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use rustc_hash::FxHashMap;

/// Bytes by their offset in a file.
pub trait Source: Send + Sync {
    fn len(&self) -> u64;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills all of `into`. Good for many small reads near each other.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool;

    /// As `read_at`, for large pieces that are read once.
    fn read_bulk(&self, offset: u64, into: &mut [u8]) -> bool {
        self.read_at(offset, into)
    }
}

const BLOCK: u64 = 4 << 10;
/// At most this many blocks of one file are kept (8 MiB): unwinding and naming one model's code in libtorch takes 1,100.
const BLOCKS_MAX: usize = 2048;

/// A file that is open, with the blocks that small reads touched.
pub struct FileSource {
    file: File,
    len: u64,
    blocks: Mutex<FxHashMap<u64, Box<[u8]>>>,
}

impl FileSource {
    pub fn new(file: File) -> std::io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self {
            file,
            len,
            blocks: Mutex::default(),
        })
    }
}

impl Source for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        if offset
            .checked_add(into.len() as u64)
            .is_none_or(|end| end > self.len)
        {
            return false;
        }
        if into.len() as u64 >= BLOCK {
            return self.read_bulk(offset, into);
        }
        let mut blocks = self.blocks.lock().unwrap_or_else(|e| e.into_inner());
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let number = at / BLOCK;
            if !blocks.contains_key(&number) {
                if blocks.len() >= BLOCKS_MAX {
                    blocks.clear();
                }
                let len = BLOCK.min(self.len - number * BLOCK) as usize;
                let mut block = vec![0; len].into_boxed_slice();
                if self.file.read_exact_at(&mut block, number * BLOCK).is_err() {
                    return false;
                }
                blocks.insert(number, block);
            }
            let Some(rest) = blocks.get(&number).and_then(|b| b.get((at % BLOCK) as usize..)) else {
                return false;
            };
            let n = rest.len().min(into.len() - done);
            if n == 0 {
                return false;
            }
            into[done..done + n].copy_from_slice(&rest[..n]);
            done += n;
        }
        true
    }

    fn read_bulk(&self, offset: u64, into: &mut [u8]) -> bool {
        self.file.read_exact_at(into, offset).is_ok()
    }
}

/// A file that lies in memory: the vdso, a test.
impl Source for Vec<u8> {
    fn len(&self) -> u64 {
        Vec::len(self) as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        let piece = usize::try_from(offset)
            .ok()
            .and_then(|o| self.get(o..))
            .and_then(|rest| rest.get(..into.len()));
        match piece {
            Some(piece) => {
                into.copy_from_slice(piece);
                true
            }
            None => false,
        }
    }
}
