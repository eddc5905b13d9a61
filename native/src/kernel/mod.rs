//! The BPF side of tier T0: loading, attaching, and what comes out of it.

mod layout;
mod names;
mod object;
mod shared;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, Weak};

use aya::maps::{HashMap, Map, MapData, Stack};
use aya::programs::perf_event::{PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent};
use aya::programs::{Iter, PerfEvent};
use aya::{Btf, Ebpf, EbpfLoader, VerifierLogLevel};

pub use layout::{
    state, Counters, Record, SampleRecord, TargetEntry, ThreadPlace, STACK_BYTES, TARGET_FOLLOW, THREADS_MAX,
};
pub use names::name_of;
pub use shared::Threads;

use object::{explain, map, program, take, tracepoint, unsupported};

use crate::python::PyConfig;
use crate::ring::Ring;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/scope.bpf.o");

/// Inode of the first pid namespace (`PROC_PID_INIT_INO`): there a pid is what BPF calls it.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

pub struct Kernel {
    /// Dropping it takes every program and probe away, as does the end of this process, however it comes.
    bpf: Ebpf,
    targets: HashMap<MapData, u32, TargetEntry>,
    places: HashMap<MapData, u32, u32>,
    vacant: Stack<MapData, u32>,
    ring: Ring,
    ring_map: MapData,
    pub threads: Threads,
    counted: shared::Counted,
    /// Nothing where this kernel cannot be asked: then its list is read.
    _namer: Option<Arc<names::Namer>>,
    /// While it is open the kernel measures how long programs run.
    stats: Option<OwnedFd>,
}

impl Kernel {
    /// Loads the programs; nothing runs before [`Kernel::attach`]. Errors: `PermissionDenied`, or `Unsupported`
    /// with what is missing.
    pub fn load() -> io::Result<Kernel> {
        refuse_own_namespace()?;
        raise_limit();
        let btf = btf()?;
        let cpus = online_cpus()?.len() as u32;
        // Room for more than a second of full samples of every CPU, so that a slow look at a new library drops nothing.
        let ring_bytes = (cpus * (4 << 20)).next_power_of_two().clamp(8 << 20, 32 << 20);
        let possible_cpus = aya::util::nr_cpus().map_err(|(_, e)| e)? as u32;
        let mut bpf = EbpfLoader::new()
            .btf(Some(&btf))
            .verifier_log_level(VerifierLogLevel::DISABLE)
            .map_max_entries("ring", ring_bytes)
            .map_max_entries("walks", possible_cpus)
            .load(OBJECT)
            .map_err(|e| explain(&e))?;
        load_programs(&mut bpf, &btf)?;
        let threads = Threads::new(map(&bpf, "threads")?.fd().as_fd())?;
        let Some(Map::RingBuf(ring_map)) = bpf.take_map("ring") else {
            return Err(unsupported("the BPF object has no ring"));
        };
        let counted = shared::Counted::new(map(&bpf, "counted")?.fd().as_fd())?;
        Ok(Kernel {
            targets: take(&mut bpf, "targets")?,
            places: take(&mut bpf, "places")?,
            ring: Ring::new(ring_map.fd().as_fd(), ring_bytes)?,
            ring_map,
            vacant: take(&mut bpf, "vacant")?,
            threads,
            counted,
            _namer: names::Namer::load(&mut bpf).ok(),
            stats: aya::sys::enable_stats(aya::sys::Stats::RunTime).ok(),
            bpf,
        })
    }

    /// From here on events of watched processes are seen.
    pub fn attach(&mut self, hz: u32) -> io::Result<()> {
        for name in ["forked", "execed", "exited", "woken"] {
            tracepoint(&mut self.bpf, name)?
                .attach()
                .map_err(|e| explain(&e))?;
        }
        for name in ["switched", "switched_before_5_18"] {
            let program = tracepoint(&mut self.bpf, name)?;
            if program.fd().is_ok() {
                program.attach().map_err(|e| explain(&e))?;
                break;
            }
        }
        let clock: &mut PerfEvent = program(&mut self.bpf, "clocked")?;
        for cpu in online_cpus()? {
            clock
                .attach(
                    PerfEventConfig::Software(SoftwareEvent::CpuClock),
                    PerfEventScope::AllProcessesOneCpu { cpu },
                    SamplePolicy::Frequency(u64::from(hz)),
                    false,
                )
                .map_err(|e| explain(&e))?;
        }
        Ok(())
    }

    /// Watches a process, or tells BPF what is new about its Python.
    pub fn watch(&mut self, pid: u32, follow: bool, python: Option<PyConfig>) -> io::Result<()> {
        let entry = TargetEntry {
            flags: if follow { TARGET_FOLLOW } else { 0 },
            pad: 0,
            python: python.unwrap_or_default(),
        };
        self.targets.insert(pid, entry, 0).map_err(|e| explain(&e))
    }

    pub fn unwatch(&mut self, pid: u32) {
        // It is not there any more where the process never got a place.
        let _ = self.targets.remove(&pid);
    }

    pub fn watched(&self) -> Vec<u32> {
        self.targets.keys().filter_map(Result::ok).collect()
    }

    pub fn is_watched(&self, pid: u32) -> bool {
        self.targets.get(&pid, 0).is_ok()
    }

    /// Enters every thread that watched processes have now, also those that sleep.
    pub fn enter_threads(&mut self) -> io::Result<()> {
        let iter: &mut Iter = program(&mut self.bpf, "there_already")?;
        let link = iter.attach().map_err(|e| explain(&e))?;
        let link = iter.take_link(link).map_err(|e| explain(&e))?;
        let mut file = link.into_file().map_err(|e| explain(&e))?;
        // The programs write nothing; reading is what makes them run.
        io::copy(&mut file, &mut io::sink())?;
        Ok(())
    }

    /// How many places of the table of threads were ever used.
    pub fn places_used(&self) -> usize {
        (self.counted.read().high as usize).min(THREADS_MAX)
    }

    /// Gives back the place of a thread that has ended.
    pub fn free(&mut self, place: usize) {
        self.threads.free(place);
        // The stack has room for all places, so this cannot fail while places are freed once.
        let _ = self.vacant.push(place as u32, 0);
    }

    /// Ends a thread's place from here: its process is watched no more.
    pub fn drop_thread(&mut self, place: usize, tid: u32) {
        if self.places.get(&tid, 0).is_ok_and(|at| at as usize == place) {
            let _ = self.places.remove(&tid);
        }
        self.free(place);
    }

    pub fn counters(&self) -> Counters {
        self.counted.read()
    }

    pub fn ring_fd(&self) -> RawFd {
        self.ring_map.fd().as_fd().as_raw_fd()
    }

    /// Copies the next record that waits in the ring; false where there is none.
    pub fn next_into(&mut self, into: &mut Vec<u8>) -> bool {
        self.ring.next_into(into)
    }

    /// Nanoseconds that all programs ran so far; nothing where the kernel does not measure it.
    pub fn run_ns(&self) -> Option<u64> {
        self.stats.as_ref()?;
        let mut total = 0;
        for (_, program) in self.bpf.programs() {
            if program.fd().is_ok() {
                total += program.info().ok()?.run_time().as_nanos() as u64;
            }
        }
        Some(total)
    }

    /// `(name, runs, nanoseconds)` of every program.
    pub fn program_costs(&self) -> Vec<(String, u64, u64)> {
        self.bpf
            .programs()
            .filter_map(|(name, program)| {
                let info = program.info().ok()?;
                Some((
                    name.to_owned(),
                    info.run_count(),
                    info.run_time().as_nanos() as u64,
                ))
            })
            .collect()
    }
}

/// The kernel's types. It takes a while to read them, and they are large: those who need them at the same time share them.
pub fn btf() -> io::Result<Arc<Btf>> {
    static SHARED: Mutex<Weak<Btf>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(btf) = shared.upgrade() {
        return Ok(btf);
    }
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(unsupported("the kernel has no BTF (/sys/kernel/btf/vmlinux)"));
    }
    let btf = Btf::from_sys_fs().map_err(|e| unsupported(&format!("the kernel's BTF: {e}")))?;
    let btf = Arc::new(btf);
    *shared = Arc::downgrade(&btf);
    Ok(btf)
}

/// Names of the BPF programs that the kernel has now, of whoever loaded them.
pub fn loaded_programs() -> io::Result<Vec<String>> {
    aya::programs::loaded_programs()
        .map(|info| match info {
            Ok(info) => Ok(String::from_utf8_lossy(info.name()).into_owned()),
            Err(e) => Err(explain(&e)),
        })
        .collect()
}

fn refuse_own_namespace() -> io::Result<()> {
    if let Ok(of) = std::fs::metadata("/proc/self/ns/pid") {
        use std::os::unix::fs::MetadataExt;
        if of.ino() != FIRST_PID_NAMESPACE {
            return Err(unsupported(
                    "this process is in a pid namespace of its own, where BPF's pids mean nothing: run it in the \
                     host's (hostPID: true, --pid=host)",
                ));
        }
    }
    Ok(())
}

fn raise_limit() {
    // Kernels before 5.11 count maps against this limit; those after do not care whether it can be raised.
    let limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: a valid pointer to a value that lives for the call.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
}

fn load_programs(bpf: &mut Ebpf, btf: &Btf) -> io::Result<()> {
    for (name, at) in [
        ("forked", "sched_process_fork"),
        ("execed", "sched_process_exec"),
        ("exited", "sched_process_exit"),
        ("woken", "sched_wakeup"),
    ] {
        tracepoint(bpf, name)?.load(at, btf).map_err(|e| explain(&e))?;
    }
    // An argument more since 5.18: where the kernel refuses it, the other program reads the task instead.
    if tracepoint(bpf, "switched")?.load("sched_switch", btf).is_err() {
        tracepoint(bpf, "switched_before_5_18")?
            .load("sched_switch", btf)
            .map_err(|e| explain(&e))?;
    }
    let iter: &mut Iter = program(bpf, "there_already")?;
    iter.load("task", btf).map_err(|e| explain(&e))?;
    let clock: &mut PerfEvent = program(bpf, "clocked")?;
    clock.load().map_err(|e| explain(&e))
}

fn online_cpus() -> io::Result<Vec<u32>> {
    aya::util::online_cpus().map_err(|(_, e)| e)
}
