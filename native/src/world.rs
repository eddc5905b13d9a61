//! What a target is read from: a process that lives, or a recording of one.

use std::fs;
use std::io;
use std::sync::{Arc, OnceLock};

use crate::image::{self, Image};
use crate::kernel;
use crate::maps::Mapping;
use crate::memory::{Memory, ProcessMemory};
use crate::symbols::KernelSymbols;

/// The vdso is smaller than this.
const VDSO_MAX: u64 = 64 << 10;
const PERF_MAP_MAX: u64 = 64 << 20;

/// Everything outside that a target is made of.
pub trait World: Send {
    fn memory(&self) -> &dyn Memory;
    /// The text of `/proc/PID/maps`.
    fn maps(&self) -> io::Result<Vec<u8>>;
    /// The file behind a mapping, or the vdso.
    fn image(&self, mapping: &Mapping) -> Option<Arc<Image>>;
    /// The text of the perf map, with a mark that changes when it does; empty without one.
    fn perf_map(&self, known: u64) -> Option<(u64, Vec<u8>)>;
    /// The number of a thread in its own pid namespace.
    fn inner_tid(&self, tid: u32) -> Option<u32>;
    /// Function and module (`kernel` for the kernel's own code) at an address of the kernel.
    fn kernel_function(&self, addr: u64) -> Option<(String, String)>;
}

/// A process that lives.
pub struct Live {
    pid: u32,
    memory: ProcessMemory,
}

static KERNEL: OnceLock<KernelSymbols> = OnceLock::new();

impl Live {
    pub fn new(pid: u32) -> Live {
        Live {
            pid,
            memory: ProcessMemory::new(pid),
        }
    }
}

impl World for Live {
    fn memory(&self) -> &dyn Memory {
        &self.memory
    }

    fn maps(&self) -> io::Result<Vec<u8>> {
        fs::read(format!("/proc/{}/maps", self.pid))
    }

    fn image(&self, mapping: &Mapping) -> Option<Arc<Image>> {
        if mapping.path == "[vdso]" && mapping.end - mapping.start <= VDSO_MAX {
            let b = self
                .memory
                .bytes(mapping.start, (mapping.end - mapping.start) as usize)?;
            return Image::new("[vdso]", Arc::new(b)).map(Arc::new);
        }
        mapping
            .is_file()
            .then(|| image::open(self.pid, mapping, &self.memory))
            .flatten()
    }

    fn perf_map(&self, known: u64) -> Option<(u64, Vec<u8>)> {
        let inner = self.inner_tid(self.pid)?;
        let path = format!("/proc/{}/root/tmp/perf-{inner}.map", self.pid);
        let len = fs::metadata(&path).ok().filter(|m| m.is_file())?.len();
        if len == known || len > PERF_MAP_MAX {
            return None;
        }
        Some((len, fs::read(path).ok()?))
    }

    fn inner_tid(&self, tid: u32) -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{}/task/{tid}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
        line.split_ascii_whitespace().next_back()?.parse().ok()
    }

    fn kernel_function(&self, addr: u64) -> Option<(String, String)> {
        if let Ok(answer) = kernel::name_of(addr) {
            return answer;
        }
        // Reads and sorts all of the kernel's names.
        let (function, module) = KERNEL.get_or_init(KernelSymbols::of_this_machine).find(addr)?;
        Some((function.to_owned(), module.to_owned()))
    }
}
