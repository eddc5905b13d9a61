//! The object of `bpf/calls.bpf.c` in the kernel: its maps, its programs, its rings.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use aya_obj::btf::{BtfFeatures, BtfKind};
use aya_obj::Object;

use super::bpf::{self, Map, Plain, ProgramCode};
use super::hits::Hits;
use crate::ring::Ring;

static OBJECT: &[u8] = include_bytes!("../../bpf/calls.bpf.o");

macro_rules! plain {
    ($(#[$doc:meta])* $name:ident { $($field:ident : $kind:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(C)]
        pub struct $name { $(pub $field: $kind),* }
        // SAFETY: numbers only, and their sizes add up to the size of the whole: no padding.
        unsafe impl Plain for $name {}
        const _: () = assert!(0 $(+ size_of::<$kind>())* == size_of::<$name>());
    };
}

plain!(CallKey {
    tgid: u32,
    tid: u32,
    function: u32,
    pad: u32
});
plain!(
    /// `struct call`: calls since they are counted, and of those the ones whose end was seen.
    CallSum { count: u64, bytes: u64, ns: u64, timed: u64 }
);
plain!(SiteKey {
    hash: u64,
    tgid: u32,
    device: u32
});
plain!(SiteSum {
    allocations: u64,
    allocated: u64,
    live: u64,
    live_bytes: u64,
    told: u64
});
plain!(SpanEvent {
    tgid: u32,
    tid: u32,
    function: u32,
    pad: u32,
    start_ns: u64,
    end_ns: u64,
    bytes: u64
});
plain!(
    /// `struct passed`: bytes that were read from or written to a connection of a server.
    Passed {
        tgid: u32, tid: u32, ns: u64, socket: u64, bytes: u32, sent: u16, family: u16,
        local_port: u16, remote_port: u16, local: [u8; 16], remote: [u8; 16], head: [u8; 24], pad: u32,
    }
);
plain!(StartKey {
    id: u64,
    sp: u64,
    function: u32,
    pad: u32
});
plain!(Start { ns: u64, bytes: u64 });
plain!(LiveKey {
    tgid: u32,
    device_class: u32,
    address: u64
});
plain!(Live {
    size: u64,
    hash: u64,
    tgid: u32,
    device: u32
});
plain!(
    /// `struct allocating`: a call that is not over.
    Allocating {
        sp: u64, back: u64, size: u64, out: u64, old: u64, old_size: u64,
        hash: u64, tgid: u32, device: u32, old_hash: u64, old_tgid: u32, old_device: u32,
        function: u32, flags: u32,
    }
);
plain!(
    /// The start of `struct stack_event`; the Python frames and the stack follow.
    StackHead {
        hash: u64, tgid: u32, device: u32,
        time_ns: u64, ip: u64, sp: u64, bp: u64, lr: u64,
        tid: u32, n_python: u32, stack_bytes: u32, pad: u32,
    }
);
// SAFETY: `repr(C)`, numbers only, 72 bytes without a hole (the size is asserted beside the type).
unsafe impl Plain for crate::python::PyConfig {}

/// Reads a value from the start of a record.
pub fn read<T: Plain>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: long enough, and every bit pattern is a T; it need not be aligned.
    Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
}

/// What may stand at an entry or an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    Enter,
    Leave,
    EnterMemory,
    LeaveMemory,
}

impl Program {
    pub const ALL: [Program; 4] = [
        Program::Enter,
        Program::Leave,
        Program::EnterMemory,
        Program::LeaveMemory,
    ];

    fn name(self) -> &'static str {
        match self {
            Program::Enter => "enter",
            Program::Leave => "leave",
            Program::EnterMemory => "enter_memory",
            Program::LeaveMemory => "leave_memory",
        }
    }
}

/// What was lost, in the order of `LOST_*` in calls.h.
pub const LOST: [&str; 7] = [
    "spans (ring buffer full)",
    "stacks of call sites put off (ring buffer full)",
    "calls not counted (table of threads and functions full)",
    "live blocks not followed (table full)",
    "calls not timed (table full)",
    "allocations without a place of their own (table of call sites full)",
    "reads and writes of served connections (ring buffer full)",
];

/// The loaded object.
pub struct CallsObject {
    object: Object,
    object_btf: Option<OwnedFd>,
    maps: HashMap<String, Map>,
    programs: HashMap<Program, OwnedFd>,
    /// Attach to many places at once (6.6 and later).
    pub multi: bool,
    pub spans: Ring,
    pub traffic: Ring,
    pub stacks: Ring,
    pub hits: Hits,
    cpus: usize,
}

impl CallsObject {
    /// Makes the maps, with as many entries as `entries` says of each, and gets the code ready. Errors: not permitted, or a kernel without BPF.
    pub fn load(multi: bool, entries: &dyn Fn(&str, u32) -> u32) -> io::Result<CallsObject> {
        let mut object = Object::parse(OBJECT).map_err(other)?;
        let btf = crate::kernel::btf().ok();
        let features = BtfFeatures::new(true, true, true, true, true, true, true, true);
        let object_btf = match object.fixup_and_sanitize_btf(&features).map_err(other)? {
            Some(btf) => Some(bpf::load_btf(&btf.to_bytes())?),
            None => None,
        };
        if let Some(btf) = &btf {
            object.relocate_btf(btf).map_err(caused)?;
        }
        let maps = maps_of(&object, entries)?;
        let text = object.functions.keys().map(|(section, _)| *section).collect();
        let definitions = object.maps.clone();
        object
            .relocate_maps(
                definitions
                    .iter()
                    .filter_map(|(n, m)| Some((n.as_str(), maps.get(n)?.fd.as_raw_fd(), m))),
                &text,
            )
            .map_err(other)?;
        object.relocate_calls(&text).map_err(other)?;
        let ring = |name: &str| maps.get(name).ok_or_else(|| other(name))?.ring();
        let (spans, traffic, stacks) = (ring("spans")?, ring("traffic")?, ring("stacks")?);
        let hits = Hits::open(maps.get("hits").ok_or_else(|| other("hits"))?)?;
        Ok(CallsObject {
            object,
            object_btf,
            maps,
            programs: HashMap::new(),
            multi,
            spans,
            traffic,
            stacks,
            hits,
            cpus: possible_cpus(),
        })
    }

    pub fn map(&self, name: &str) -> io::Result<&Map> {
        self.maps.get(name).ok_or_else(|| other(format!("no map {name}")))
    }

    /// The program for uprobes, loaded at its first use.
    pub fn program(&mut self, which: Program) -> io::Result<&OwnedFd> {
        if !self.programs.contains_key(&which) {
            let attach = if self.multi { bpf::ATTACH_UPROBE_MULTI } else { 0 };
            let fd = match self.load_one(which.name(), bpf::PROG_KPROBE, attach, 0) {
                // Kernels that cannot link many at once do not know the attach type either.
                Err(_) if self.multi && self.programs.is_empty() => {
                    let fd = self.load_one(which.name(), bpf::PROG_KPROBE, 0, 0)?;
                    self.multi = false;
                    fd
                }
                fd => fd?,
            };
            self.programs.insert(which, fd);
        }
        self.programs.get(&which).ok_or_else(|| other(which.name()))
    }

    /// Puts a program at places of a file. The probes last as long as the descriptors. `pid`: of this process only (0: of
    /// all that map the file; also where probes are attached one by one).
    pub fn link(
        &mut self,
        program: Program,
        path: &CString,
        offsets: &[u64],
        cookies: &[u64],
        on_return: bool,
        pid: u32,
    ) -> io::Result<Vec<OwnedFd>> {
        self.program(program)?; // settles whether many can be linked at once
        let multi = self.multi;
        let fd = self.program(program)?;
        if multi {
            return Ok(vec![bpf::link_many(fd, path, offsets, cookies, on_return, pid)?]);
        }
        let mut links = Vec::with_capacity(2 * offsets.len());
        for (&offset, &cookie) in offsets.iter().zip(cookies) {
            links.extend(bpf::link_one(fd, path, offset, cookie, on_return)?);
        }
        Ok(links)
    }

    /// Loads and attaches a program at a tracepoint with BTF.
    pub fn trace(&self, program: &str, tracepoint: &str) -> io::Result<OwnedFd> {
        let btf = crate::kernel::btf()?;
        let id = btf
            .id_by_type_name_kind(&format!("btf_trace_{tracepoint}"), BtfKind::Typedef)
            .map_err(other)?;
        let fd = self.load_one(program, bpf::PROG_TRACING, bpf::ATTACH_RAW_TP, id)?;
        bpf::open_tracing(&fd)
    }

    fn load_one(&self, name: &str, kind: u32, attach: u32, btf_id: u32) -> io::Result<OwnedFd> {
        let program = self.object.programs.get(name).ok_or_else(|| other(name))?;
        let function = self
            .object
            .functions
            .get(&program.function_key())
            .ok_or_else(|| other(name))?;
        // SAFETY: instructions are plain 8-byte records.
        let instructions = unsafe {
            std::slice::from_raw_parts(
                function.instructions.as_ptr().cast::<u8>(),
                size_of_val(function.instructions.as_slice()),
            )
        };
        let functions = function.func_info.func_info_bytes();
        ProgramCode {
            name,
            kind,
            attach,
            attach_btf_id: btf_id,
            instructions,
            license: &program.license,
            btf: self.object_btf.as_ref(),
            functions: &functions,
            functions_size: function.func_info_rec_size as u32,
        }
        .load()
    }

    /// Run time and runs of a uprobe program; nothing where it was never loaded.
    pub fn stats(&self, which: Program) -> (u64, u64) {
        self.programs
            .get(&which)
            .and_then(|fd| bpf::run_stats(fd).ok())
            .unwrap_or_default()
    }

    /// One number of a per-CPU array, over all CPUs.
    pub fn sum(&self, map: &str, key: u32) -> u64 {
        self.map(map).and_then(|m| m.sum(key, self.cpus)).unwrap_or(0)
    }
}

fn maps_of(object: &Object, entries: &dyn Fn(&str, u32) -> u32) -> io::Result<HashMap<String, Map>> {
    let mut maps = HashMap::new();
    for (name, map) in &object.maps {
        let made = Map::create(
            name,
            map.map_type(),
            map.key_size(),
            map.value_size(),
            entries(name, map.max_entries()),
            map.map_flags(),
        )?;
        maps.insert(name.clone(), made);
    }
    Ok(maps)
}

/// How many CPUs the kernel keeps per-CPU values for.
fn possible_cpus() -> usize {
    std::fs::read_to_string("/sys/devices/system/cpu/possible")
        .ok()
        .and_then(|text| cpus_of(text.trim()))
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

/// One more than the highest number of a list such as `0-3,8`.
fn cpus_of(list: &str) -> Option<usize> {
    list.split(',')
        .filter_map(|part| part.rsplit('-').next()?.parse::<usize>().ok())
        .max()
        .map(|n| n + 1)
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("calls: {error}"))
}

/// With what is behind it: which type or field of the kernel's is not what the program expects.
fn caused(error: impl std::error::Error) -> io::Error {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    other(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted_to_the_highest() {
        assert_eq!(cpus_of("0-3"), Some(4));
        assert_eq!(cpus_of("0"), Some(1));
        assert_eq!(cpus_of("0-1,4,6-7"), Some(8));
        assert_eq!(cpus_of("none"), None);
    }

    #[test]
    fn the_checked_in_object_has_every_program() {
        let object = Object::parse(OBJECT).expect("the object parses");
        for program in Program::ALL {
            assert!(object.programs.contains_key(program.name()));
        }
        assert_eq!(object.maps["calls"].value_size() as usize, size_of::<CallSum>());
        assert_eq!(object.maps["sites"].value_size() as usize, size_of::<SiteSum>());
        assert_eq!(
            object.maps["allocs"].value_size() as usize,
            size_of::<Allocating>()
        );
        assert_eq!(object.maps["lives"].value_size() as usize, size_of::<Live>());
        assert_eq!(object.maps["ports"].key_size() as usize, size_of::<u32>());
        assert_eq!(object.maps["starts"].key_size() as usize, size_of::<StartKey>());
        assert_eq!(
            object.maps["pythons"].value_size() as usize,
            size_of::<crate::python::PyConfig>()
        );
    }
}
