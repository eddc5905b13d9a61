//! The few `bpf(2)` commands that counting needs and that aya does not offer (links to many uprobes at once, batches).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::ring::Ring;

const MAP_CREATE: i32 = 0;
const MAP_LOOKUP: i32 = 1;
const MAP_UPDATE: i32 = 2;
const MAP_DELETE: i32 = 3;
const PROG_LOAD: i32 = 5;
const OBJ_GET_INFO: i32 = 15;
const RAW_TRACEPOINT_OPEN: i32 = 17;
const BTF_LOAD: i32 = 18;
const MAP_LOOKUP_BATCH: i32 = 24;
const LINK_CREATE: i32 = 28;
const ENABLE_STATS: i32 = 32;

pub const PROG_KPROBE: u32 = 2;
pub const PROG_TRACING: u32 = 26;
pub const ATTACH_RAW_TP: u32 = 23;
pub const ATTACH_PERF_EVENT: u32 = 41;
pub const ATTACH_UPROBE_MULTI: u32 = 48;

/// `union bpf_attr` is as long as its longest member; what a command does not know must be zero.
const ATTR: usize = 168;

#[repr(C, align(8))]
struct Attr([u8; ATTR]);

impl Attr {
    fn new() -> Self {
        Attr([0; ATTR])
    }

    fn u32(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn call(&mut self, command: i32) -> io::Result<i32> {
        // SAFETY: the attribute block outlives the call, is as long as told, and every pointer in it was made from a
        // reference that its caller still holds.
        let done = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), ATTR) };
        if done < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(done as i32)
        }
    }

    fn open(mut self, command: i32) -> io::Result<OwnedFd> {
        let fd = self.call(command)?;
        // SAFETY: the kernel just gave this descriptor to us alone.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

fn address<T: ?Sized>(of: &T) -> u64 {
    std::ptr::from_ref(of).cast::<u8>() as u64
}

/// Types that may be copied to and from a map as bytes.
///
/// # Safety
/// Only for `repr(C)` types without padding that are valid for every bit pattern.
pub unsafe trait Plain: Copy + Default {}
// SAFETY: plain numbers.
unsafe impl Plain for u32 {}
// SAFETY: plain numbers.
unsafe impl Plain for u64 {}

/// A map of the kernel's.
#[derive(Debug)]
pub struct Map {
    pub fd: OwnedFd,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
}

impl Map {
    /// It is a ring: its reader's side.
    pub fn ring(&self) -> io::Result<Ring> {
        Ring::new(self.fd.as_fd(), self.max_entries)
    }

    pub fn create(
        name: &str,
        kind: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        flags: u32,
    ) -> io::Result<Map> {
        let mut attr = Attr::new()
            .u32(0, kind)
            .u32(4, key_size)
            .u32(8, value_size)
            .u32(12, max_entries)
            .u32(16, flags);
        write_name(&mut attr.0[28..44], name);
        Ok(Map {
            fd: attr.open(MAP_CREATE)?,
            key_size,
            value_size,
            max_entries,
        })
    }

    pub fn put<K: Plain, V: Plain>(&self, key: &K, value: &V) -> io::Result<()> {
        debug_assert_eq!(size_of::<K>(), self.key_size as usize);
        debug_assert_eq!(size_of::<V>(), self.value_size as usize);
        Attr::new()
            .u32(0, self.fd.as_raw_fd() as u32)
            .u64(8, address(key))
            .u64(16, address(value))
            .call(MAP_UPDATE)
            .map(drop)
    }

    /// An entry of an array whose values are lists of 64-bit numbers.
    pub fn put_words(&self, key: u32, words: &[u64]) -> io::Result<()> {
        if size_of_val(words) != self.value_size as usize {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Attr::new()
            .u32(0, self.fd.as_raw_fd() as u32)
            .u64(8, address(&key))
            .u64(16, words.as_ptr() as u64)
            .call(MAP_UPDATE)
            .map(drop)
    }

    pub fn delete<K: Plain>(&self, key: &K) -> io::Result<()> {
        Attr::new()
            .u32(0, self.fd.as_raw_fd() as u32)
            .u64(8, address(key))
            .call(MAP_DELETE)
            .map(drop)
    }

    /// The sum of one entry of a per-CPU array of 64-bit numbers over all CPUs.
    pub fn sum(&self, key: u32, cpus: usize) -> io::Result<u64> {
        let mut values = vec![0u64; cpus];
        Attr::new()
            .u32(0, self.fd.as_raw_fd() as u32)
            .u64(8, address(&key))
            .u64(16, values.as_mut_ptr() as u64)
            .call(MAP_LOOKUP)?;
        Ok(values.iter().sum())
    }

    /// All entries of a hash, read in batches. An entry that changes meanwhile may be seen before or after.
    pub fn all<K: Plain, V: Plain>(&self) -> io::Result<Vec<(K, V)>> {
        debug_assert_eq!(size_of::<K>(), self.key_size as usize);
        debug_assert_eq!(size_of::<V>(), self.value_size as usize);
        let mut out = Vec::new();
        let mut keys = vec![K::default(); 4096];
        let mut values = vec![V::default(); 4096];
        let mut token = [0u8; 64];
        let mut first = true;
        loop {
            let mut attr = Attr::new()
                .u64(0, if first { 0 } else { address(&token) })
                .u64(8, token.as_mut_ptr() as u64)
                .u64(16, keys.as_mut_ptr() as u64)
                .u64(24, values.as_mut_ptr() as u64)
                .u32(32, keys.len() as u32)
                .u32(36, self.fd.as_raw_fd() as u32);
            let done = attr.call(MAP_LOOKUP_BATCH);
            let n = u32::from_ne_bytes([attr.0[32], attr.0[33], attr.0[34], attr.0[35]]) as usize;
            let full = matches!(&done, Err(e) if e.raw_os_error() == Some(libc::ENOSPC));
            if full && keys.len() < 1 << 20 {
                // A bucket holds more than the buffer: nothing was read of it.
                let more = keys.len() * 4;
                keys.resize(more, K::default());
                values.resize(more, V::default());
                continue;
            }
            match done {
                Ok(_) => out.extend(keys.iter().copied().zip(values.iter().copied()).take(n)),
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                    out.extend(keys.iter().copied().zip(values.iter().copied()).take(n));
                    return Ok(out);
                }
                Err(e) => return Err(e),
            }
            first = false;
        }
    }
}

fn write_name(into: &mut [u8], name: &str) {
    let n = name.len().min(into.len() - 1);
    into[..n].copy_from_slice(&name.as_bytes()[..n]);
}

/// What a program is loaded from.
pub struct ProgramCode<'a> {
    pub name: &'a str,
    pub kind: u32,
    pub attach: u32,
    /// The kernel's type that a tracing program stands at.
    pub attach_btf_id: u32,
    pub instructions: &'a [u8],
    pub license: &'a CString,
    pub btf: Option<&'a OwnedFd>,
    pub functions: &'a [u8],
    pub functions_size: u32,
}

impl ProgramCode<'_> {
    /// Errors carry the end of the verifier's log.
    pub fn load(&self) -> io::Result<OwnedFd> {
        let _held = crate::signals::Held::new();
        match self.attr().open(PROG_LOAD) {
            Ok(fd) => Ok(fd),
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EACCES | libc::EINVAL | libc::E2BIG)
                ) =>
            {
                let mut log = vec![0u8; 1 << 20];
                let again = self
                    .attr()
                    .u32(24, 1)
                    .u32(28, log.len() as u32)
                    .u64(32, log.as_mut_ptr() as u64)
                    .open(PROG_LOAD);
                let end = log.iter().position(|&b| b == 0).unwrap_or(0);
                let text = String::from_utf8_lossy(&log[..end]);
                let last: Vec<&str> = text.lines().rev().take(12).collect();
                let last: Vec<&str> = last.into_iter().rev().collect();
                again.map_err(|_| {
                    io::Error::new(
                        error.kind(),
                        format!("{}: {error}: {}", self.name, last.join(" | ")),
                    )
                })
            }
            Err(error) => Err(error),
        }
    }

    fn attr(&self) -> Attr {
        let mut attr = Attr::new()
            .u32(0, self.kind)
            .u32(4, (self.instructions.len() / 8) as u32)
            .u64(8, self.instructions.as_ptr() as u64)
            .u64(16, self.license.as_ptr() as u64)
            .u32(68, self.attach)
            .u32(108, self.attach_btf_id);
        write_name(&mut attr.0[48..64], self.name);
        if let Some(btf) = self.btf {
            attr = attr
                .u32(72, btf.as_raw_fd() as u32)
                .u32(76, self.functions_size)
                .u64(80, self.functions.as_ptr() as u64)
                .u32(88, self.functions.len() as u32 / self.functions_size.max(1));
        }
        attr
    }
}

pub fn load_btf(bytes: &[u8]) -> io::Result<OwnedFd> {
    Attr::new()
        .u64(0, bytes.as_ptr() as u64)
        .u32(16, bytes.len() as u32)
        .open(BTF_LOAD)
}

/// Attaches a loaded tracing program. It is gone when the descriptor is.
pub fn open_tracing(program: &OwnedFd) -> io::Result<OwnedFd> {
    Attr::new()
        .u32(8, program.as_raw_fd() as u32)
        .open(RAW_TRACEPOINT_OPEN)
}

/// One link to many places of one file. `pid` 0: in every process.
pub fn link_many(
    program: &OwnedFd,
    path: &CString,
    offsets: &[u64],
    cookies: &[u64],
    on_return: bool,
    pid: u32,
) -> io::Result<OwnedFd> {
    debug_assert_eq!(offsets.len(), cookies.len());
    Attr::new()
        .u32(0, program.as_raw_fd() as u32)
        .u32(8, ATTACH_UPROBE_MULTI)
        .u64(16, path.as_ptr() as u64)
        .u64(24, offsets.as_ptr() as u64)
        .u64(40, cookies.as_ptr() as u64)
        .u32(48, offsets.len() as u32)
        .u32(52, u32::from(on_return))
        .u32(56, pid)
        .open(LINK_CREATE)
}

/// One uprobe, for kernels before 6.6: a perf event and its link, both to be kept.
pub fn link_one(
    program: &OwnedFd,
    path: &CString,
    offset: u64,
    cookie: u64,
    on_return: bool,
) -> io::Result<[OwnedFd; 2]> {
    let root = "/sys/bus/event_source/devices/uprobe/";
    let kind: u32 = std::fs::read_to_string(format!("{root}type"))?
        .trim()
        .parse()
        .map_err(|_| io::Error::other("the uprobe event source has no type"))?;
    let bit: u32 = std::fs::read_to_string(format!("{root}format/retprobe"))
        .ok()
        .and_then(|t| t.trim().strip_prefix("config:").and_then(|n| n.parse().ok()))
        .unwrap_or(0);
    // struct perf_event_attr: type, size, config, ..., uprobe_path (config1), probe_offset (config2).
    let mut event = [0u64; 16];
    event[0] = u64::from(kind) | (128 << 32);
    event[1] = u64::from(on_return) << bit;
    event[7] = path.as_ptr() as u64;
    event[8] = offset;
    // SAFETY: the attribute block says its own size and outlives the call, like the path.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            event.as_ptr(),
            -1,
            0,
            -1,
            8u64, /* PERF_FLAG_FD_CLOEXEC */
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave this descriptor to us alone.
    let event = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let link = Attr::new()
        .u32(0, program.as_raw_fd() as u32)
        .u32(4, event.as_raw_fd() as u32)
        .u32(8, ATTACH_PERF_EVENT)
        .u64(16, cookie)
        .open(LINK_CREATE)?;
    Ok([link, event])
}

/// While this descriptor is open the kernel measures every BPF program's run time.
pub fn enable_stats() -> io::Result<OwnedFd> {
    Attr::new().open(ENABLE_STATS)
}

/// Run time in nanoseconds, and how often it ran.
pub fn run_stats(program: &OwnedFd) -> io::Result<(u64, u64)> {
    let mut info = [0u64; 40];
    Attr::new()
        .u32(0, program.as_raw_fd() as u32)
        .u32(4, size_of_val(&info) as u32)
        .u64(8, info.as_mut_ptr() as u64)
        .call(OBJ_GET_INFO)?;
    // struct bpf_prog_info: run_time_ns and run_cnt lie at 192 and 200.
    // SAFETY: both lie inside the array; the kernel wrote behind the compiler's back.
    unsafe {
        Ok((
            std::ptr::read_volatile(info.as_ptr().add(24)),
            std::ptr::read_volatile(info.as_ptr().add(25)),
        ))
    }
}

/// Taking a probe off waits until no CPU can be in it; many at once wait together.
pub fn take_off(mut links: Vec<OwnedFd>) {
    let share = links.len().div_ceil(64).max(1);
    std::thread::scope(|scope| {
        while !links.is_empty() {
            let part = links.split_off(links.len().saturating_sub(share));
            // Where no thread can be had the links are dropped here.
            let _ = std::thread::Builder::new().spawn_scoped(scope, move || drop(part));
        }
    });
}
