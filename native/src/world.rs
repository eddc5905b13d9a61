//! What a target is read from: a process that lives, or a recording of one.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::image::{self, Image};
use crate::kernel;
use crate::maps::Mapping;
use crate::memory::{Memory, ProcessMemory};
use crate::symbols::{roots, KernelSymbols};

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

/// All users may write to `/tmp`: only a plain file of root or of one of these users counts, at most [`PERF_MAP_MAX`] bytes
/// of it, and the file that is checked is the one that is read. Nothing if its length is `known`.
fn read_perf_map(root: &Path, path: &str, users: &[u32], known: u64) -> Option<(u64, Vec<u8>)> {
    let file = roots::open_own_below(root, Path::new(path))?;
    let state = file.metadata().ok()?;
    let trusted = state.uid() == 0 || users.contains(&state.uid());
    if !trusted || state.len() == known || state.len() > PERF_MAP_MAX {
        return None;
    }
    let mut text = Vec::new();
    file.take(PERF_MAP_MAX).read_to_end(&mut text).ok()?;
    Some((state.len(), text))
}

/// The real and the effective user of a process. The owner of its directory in `/proc` may be root instead.
fn users_of(pid: u32) -> Option<Vec<u32>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("Uid:"))?;
    let users = line.split_ascii_whitespace().take(2).map(|uid| uid.parse().ok());
    users.collect()
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
        let path = format!("/tmp/perf-{inner}.map");
        read_perf_map(&roots::root_of(self.pid), &path, &users_of(self.pid)?, known)
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

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::fs::{chown, symlink};
    use std::path::PathBuf;

    use super::*;

    const OTHER: u32 = 65534;

    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Root {
            let path = std::env::temp_dir().join(format!("unidle-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("tmp")).expect("folder");
            Root(path)
        }

        fn read(&self, users: &[u32], known: u64) -> Option<(u64, Vec<u8>)> {
            read_perf_map(&self.0, "/tmp/perf-1.map", users, known)
        }

        fn map(&self) -> PathBuf {
            self.0.join("tmp/perf-1.map")
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn own() -> Vec<u32> {
        users_of(std::process::id()).expect("users")
    }

    #[test]
    fn the_perf_map_of_the_process_is_read_when_its_length_changes() {
        let root = Root::new("map-own");
        fs::write(root.map(), b"1000 10 f\n").expect("file");
        assert_eq!(root.read(&own(), 0), Some((10, b"1000 10 f\n".to_vec())));
        assert_eq!(root.read(&own(), 10), None);
    }

    #[test]
    fn the_perf_map_of_another_user_is_not_read() {
        let root = Root::new("map-other");
        fs::write(root.map(), b"1000 10 f\n").expect("file");
        if own()[1] == 0 {
            chown(root.map(), Some(OTHER), Some(OTHER)).expect("owner");
            assert_eq!(root.read(&own(), 0), None);
            assert!(root.read(&[OTHER, OTHER], 0).is_some());
        } else {
            assert_eq!(root.read(&[OTHER, OTHER], 0), None);
        }
    }

    #[test]
    fn a_link_a_pipe_and_what_is_too_large_are_no_perf_map() {
        let root = Root::new("map-odd");
        fs::write(root.0.join("tmp/there"), b"1000 10 f\n").expect("file");
        symlink("there", root.map()).expect("link");
        assert_eq!(root.read(&own(), 0), None);
        fs::remove_file(root.map()).expect("removed");
        let name = CString::new(root.map().into_os_string().into_encoded_bytes()).expect("name");
        // SAFETY: the name ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert_eq!(root.read(&own(), 0), None);
        fs::remove_file(root.map()).expect("removed");
        let file = fs::File::create(root.map()).expect("file");
        file.set_len(PERF_MAP_MAX + 1).expect("length");
        assert_eq!(root.read(&own(), 0), None);
    }
}
