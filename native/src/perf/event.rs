//! The system call, the ring's memory, and what they need of the machine.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::perf::record;

/// `struct perf_event_attr` up to version 5 (linux/perf_event.h).
#[derive(Default)]
#[repr(C)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    frequency: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const _: () = assert!(std::mem::size_of::<Attr>() == 112);

const SOFTWARE: u32 = 1;
const CPU_CLOCK: u64 = 0;
const DISABLED: u64 = 1 << 0;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const MMAP_RECORDS: u64 = 1 << 8;
const FREQUENCY: u64 = 1 << 10;
const TASK_RECORDS: u64 = 1 << 13;
const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
const USE_CLOCKID: u64 = 1 << 25;
const FD_CLOEXEC: u64 = 1 << 3;
const ENABLE: libc::c_ulong = 0x2400;
const SET_OUTPUT: libc::c_ulong = 0x2405;

/// A multiple of 8, and with the rest of a record below its 64 KiB.
const STACK_BYTES: u32 = 32 << 10;
/// Pages of a ring, from the largest that is tried. 128 are what each user may have on each CPU (perf_event_mlock_kb).
const PAGES: [usize; 4] = [128, 64, 32, 16];
/// Where the positions of reader and writer lie in the ring's first page.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

#[derive(Debug)]
pub struct Event(OwnedFd);

impl AsRawFd for Event {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Event {
    pub fn open(tid: i32, cpu: i32, hz: u32, kernel: bool) -> io::Result<Event> {
        let mut flags = DISABLED
            | INHERIT
            | EXCLUDE_HYPERVISOR
            | MMAP_RECORDS
            | FREQUENCY
            | TASK_RECORDS
            | EXCLUDE_CALLCHAIN_USER
            | USE_CLOCKID;
        if !kernel {
            flags |= EXCLUDE_KERNEL;
        }
        let attr = Attr {
            kind: SOFTWARE,
            size: std::mem::size_of::<Attr>() as u32,
            config: CPU_CLOCK,
            frequency: u64::from(hz),
            sample_type: record::SAMPLE_TYPE,
            flags,
            wakeup_events: 1,
            sample_regs_user: record::REGS_MASK,
            sample_stack_user: STACK_BYTES,
            clockid: libc::CLOCK_MONOTONIC,
            ..Attr::default()
        };
        // SAFETY: `attr` lives for the call and says its own size; the rest are plain numbers.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &attr, tid, cpu, -1, FD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours.
        Ok(Event(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    pub fn enable(&self) -> io::Result<()> {
        self.control(ENABLE, 0)
    }

    pub fn send_to(&self, ring: &PerfRing) -> io::Result<()> {
        self.control(SET_OUTPUT, ring.event.as_raw_fd())
    }

    fn control(&self, what: libc::c_ulong, argument: RawFd) -> io::Result<()> {
        // SAFETY: a request of perf events with a plain number.
        let result = unsafe { libc::ioctl(self.as_raw_fd(), what as _, argument) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// The ring of one CPU, which belongs to its first event.
pub struct PerfRing {
    pub event: Event,
    pub cpu: i32,
    base: *mut u8,
    page: usize,
    bytes: usize,
    copy: Vec<u8>,
}

// SAFETY: the mapping belongs to this value alone, and nothing of it depends on the thread.
unsafe impl Send for PerfRing {}

impl PerfRing {
    pub fn new(event: Event, cpu: i32) -> io::Result<PerfRing> {
        // SAFETY: takes a number and gives one.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let mut error = io::Error::from(io::ErrorKind::OutOfMemory);
        for pages in PAGES {
            let length = (1 + pages) * page;
            // SAFETY: a new mapping at an address that the kernel chooses.
            let base = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    length,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED,
                    event.as_raw_fd(),
                    0,
                )
            };
            if base != libc::MAP_FAILED {
                return Ok(PerfRing {
                    event,
                    cpu,
                    base: base.cast(),
                    page,
                    bytes: pages * page,
                    copy: Vec::new(),
                });
            }
            error = io::Error::last_os_error();
        }
        Err(error)
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: inside the first page, aligned to 8, and only ever used atomically, by the kernel as well.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }

    /// Every record that is there now. Gives the sum of what `told` gives.
    pub fn drain(&mut self, mut told: impl FnMut(u32, &[u8]) -> u64) -> u64 {
        let head = self.position(DATA_HEAD).load(Ordering::Acquire);
        let mut tail = self.position(DATA_TAIL).load(Ordering::Relaxed);
        let mut copy = std::mem::take(&mut self.copy);
        let mut sum = 0;
        // SAFETY: the data follow the first page; the kernel writes only beyond `head` until the tail is moved.
        let data = unsafe { std::slice::from_raw_parts(self.base.add(self.page), self.bytes) };
        loop {
            match record::next(data, tail, head, &mut copy) {
                Ok(Some((kind, body, after))) => {
                    sum += told(kind, body);
                    tail = after;
                }
                Ok(None) => break,
                Err(record::Damaged) => {
                    sum += 1;
                    tail = head;
                    break;
                }
            }
        }
        self.copy = copy;
        self.position(DATA_TAIL).store(tail, Ordering::Release);
        sum
    }
}

impl Drop for PerfRing {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, with its length.
        unsafe { libc::munmap(self.base.cast(), self.page + self.bytes) };
    }
}

pub fn paranoid() -> Option<i32> {
    let text = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?;
    text.trim().parse().ok()
}

/// Says what an error of perf events means here.
pub fn explain(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            let level = paranoid();
            let told = level.map_or("unknown".to_owned(), |n| n.to_string());
            let why = if level.is_some_and(|n| n <= 2) {
                ", which allows them: a container's seccomp profile or a security module refuses them (CAP_PERFMON, or a \
                 profile that allows perf_event_open)"
            } else {
                "; 2 or less allows them for own processes (or CAP_PERFMON)"
            };
            io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("perf events are refused: kernel.perf_event_paranoid is {told}{why}"),
            )
        }
        Some(libc::ENOSYS | libc::ENOENT | libc::EOPNOTSUPP | libc::EINVAL) => io::Error::new(
            io::ErrorKind::Unsupported,
            format!("the kernel has no perf events as they are needed here: {error}"),
        ),
        Some(libc::EMFILE | libc::ENFILE) => io::Error::new(
            io::ErrorKind::Unsupported,
            "perf events need more descriptors than this user may open (ulimit -n)",
        ),
        _ => error,
    }
}

pub fn online_cpus() -> io::Result<Vec<i32>> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            cpus.extend(first..=last.min(first.saturating_add(8192)));
        }
    }
    Ok(cpus)
}

pub fn threads(pid: u32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect()
}

/// Whether so many descriptors may be open at once; the soft limit is raised as far as it goes.
pub fn descriptors(wanted: u64) -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid place for the answer, and then a valid value.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return false;
        }
        if limit.rlim_cur < wanted && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max.min(wanted.max(limit.rlim_cur));
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
    limit.rlim_cur >= wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::record::PerfRecord;

    /// A record as it lies in a ring. Of a sample's stack the first 64 bytes: a seed is to be small.
    fn whole(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut body = body.to_vec();
        let after_stack = body.len().saturating_sub(8);
        let stack = after_stack.saturating_sub(STACK_BYTES as usize);
        if kind == record::SAMPLE
            && stack >= 8
            && body[stack - 8..stack] == u64::from(STACK_BYTES).to_ne_bytes()
        {
            body.truncate(stack + 64);
            body[stack - 8..stack].copy_from_slice(&64u64.to_ne_bytes());
            body.extend(64u64.to_ne_bytes());
        }
        let mut out = kind.to_ne_bytes().to_vec();
        out.extend([0, 0]);
        out.extend((body.len() as u16 + 8).to_ne_bytes());
        out.extend(body);
        out
    }

    /// With UNIDLE_FUZZ_SEEDS=FOLDER what the kernel wrote becomes the seeds of the fuzz target `perf_record`.
    #[test]
    fn what_the_kernel_writes_is_read_and_makes_seeds() {
        // SAFETY: gives a number.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        let rings: io::Result<Vec<PerfRing>> = online_cpus().and_then(|cpus| {
            let ring = |cpu| PerfRing::new(Event::open(tid, cpu, 4000, false)?, cpu);
            cpus.into_iter().map(ring).collect()
        });
        let Ok(mut rings) = rings else {
            return; // perf events are refused here
        };
        rings
            .iter()
            .for_each(|r| r.event.enable().expect("its own event"));
        let mut found: Vec<(u32, Vec<u8>)> = Vec::new();
        let mut kinds = std::collections::BTreeSet::new();
        let mut sum = 0u64;
        while !(kinds.contains(&record::SAMPLE)
            && kinds.contains(&record::FORK)
            && kinds.contains(&record::EXIT))
        {
            std::thread::spawn(|| ())
                .join()
                .expect("a thread that does nothing");
            (0..100_000u64).for_each(|n| sum = std::hint::black_box(sum.wrapping_add(n)));
            for ring in &mut rings {
                ring.drain(|kind, body| {
                    let read = record::parse(kind, body).expect("the kernel's own record");
                    if let PerfRecord::Sample(sample) = &read {
                        assert_eq!((sample.pid, sample.regs.ip == 0), (std::process::id(), false));
                    }
                    if kinds.insert(kind) {
                        found.push((kind, whole(kind, body)));
                    }
                    0
                });
            }
        }
        let mut ring: Vec<u8> = found.iter().flat_map(|f| f.1.clone()).collect();
        ring.resize(ring.len().next_power_of_two(), 0);
        record::hostile(&ring);
        if let Some(folder) = std::env::var_os("UNIDLE_FUZZ_SEEDS").map(std::path::PathBuf::from) {
            fs::create_dir_all(&folder).expect("the folder of seeds");
            fs::write(folder.join("ring"), &ring).expect("a seed");
            for (kind, record) in &found {
                fs::write(folder.join(format!("body_{kind}")), &record[8..]).expect("a seed");
            }
        }
    }
}
