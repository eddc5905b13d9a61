//! A process that is looked at: its mappings, its code, its Python.

use std::io;

use rustc_hash::FxHashMap;

use crate::code::{CodeOf, Modules};
use crate::memory::Paged;
use crate::python::{self, Codes, Layout, PyConfig, WantedThread};
use crate::sample::{Frame, FrameId, Frames, Kind, PyFrameRaw, RawSample, Regs, Resolved};
use crate::splice::{splice, Class, Native, Reach};
use crate::unwind::{walk_again, Arch, Registers, Stack, Trail, Walked};
use crate::world::{Live, World};

/// Mappings are not read again more often than this for addresses that are not in them.
const REFRESH_NS: u64 = 100_000_000;
/// Where reading them again explained nothing, it is done ever more rarely.
const REFRESH_MOST_NS: u64 = 5_000_000_000;

/// Threads whose last walk is kept: some ten KB each.
const WALKED_MAX: usize = 256;

/// What the next walk over a thread's stack need not do again.
#[derive(Default)]
struct LastWalk {
    trail: Trail,
    /// How its frames are shown, and whether they have symbols, leaf first.
    shown: Vec<(Native, bool)>,
    /// Walks so far, and the one that `shown` is of.
    walks: u64,
    shown_walk: u64,
}

/// A process that is looked at. `Send`; not shared between threads without a lock.
pub struct Target {
    pid: u32,
    world: Box<dyn World>,
    modules: Modules,
    layout: Option<Layout>,
    codes: Codes,
    notes: Vec<String>,
    kernel_frames: FxHashMap<u64, FrameId>,
    threads: FxHashMap<u32, u64>,
    walked: FxHashMap<u32, LastWalk>,
    refreshed_ns: u64,
    refresh_pause_ns: u64,
    shown: Vec<Option<FrameId>>,
}

impl Target {
    /// Reads the mappings of a process that lives. Errors: no such process, or it may not be looked at.
    pub fn open(pid: u32) -> io::Result<Target> {
        Self::of_world(pid, Box::new(Live::new(pid)))
    }

    /// A target that is read from elsewhere.
    pub fn of_world(pid: u32, world: Box<dyn World>) -> io::Result<Target> {
        let mut target = Target {
            pid,
            world,
            modules: Modules::default(),
            layout: None,
            codes: Codes::default(),
            notes: Vec::new(),
            kernel_frames: FxHashMap::default(),
            threads: FxHashMap::default(),
            walked: FxHashMap::default(),
            refreshed_ns: 0,
            refresh_pause_ns: REFRESH_NS,
            shown: Vec::new(),
        };
        target.refresh()?;
        Ok(target)
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What BPF needs to walk this process's Python frames; nothing without Python (or not yet: see [`Target::refresh`]).
    pub fn python(&self) -> Option<PyConfig> {
        self.layout.map(|l| l.config)
    }

    /// What could not be done with this process and why, one line each (a free-threaded build, a version without offsets).
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Python frames of a blocked thread, leaf first, from live memory. `tid` as the profiler's namespace numbers it;
    /// `fsbase` where it is known (it needs no tid at all).
    pub fn python_frames(&mut self, tid: u32, fsbase: Option<u64>, into: &mut Vec<PyFrameRaw>) {
        into.clear();
        let Some(config) = self.python() else {
            return;
        };
        // Frames lie next to each other.
        let memory = &Paged::new(self.world.memory());
        let mut wanted = WantedThread {
            thread_id: fsbase.filter(|&f| f != 0),
            native_id: None,
        };
        if wanted.thread_id.is_none() {
            wanted.native_id = self.world.inner_tid(tid);
        }
        let known = self.threads.get(&tid).copied();
        let state = known
            .filter(|&s| python::is_thread(memory, &config, s, wanted))
            .or_else(|| python::find_thread(memory, &config, wanted));
        match state {
            Some(state) => {
                self.threads.insert(tid, state);
                python::frames(memory, &config, state, into);
            }
            None => {
                self.threads.remove(&tid);
            }
        }
    }

    /// The stack of a sample, root first, Python and native and kernel frames in their places.
    pub fn resolve(&mut self, sample: &RawSample<'_>, frames: &mut Frames) -> Resolved {
        let mut out = Resolved::default();
        for &addr in sample.kernel {
            out.frames.push(self.kernel_frame(addr, frames));
        }
        if sample.regs.ip == 0 && sample.regs.sp == 0 {
            // A thread of the kernel, or one whose user side was not seen.
            out.frames.reverse();
            out.rooted = !sample.kernel.is_empty();
            out.complete = out.rooted;
            return out;
        }
        let walked = self.walk(sample);
        let native = self.show_walked(sample.tid, &walked, frames);
        out.unsymbolised = native.iter().filter(|n| !n.1).count() as u32;
        let native: Vec<Native> = native.into_iter().map(|n| n.0).collect();
        let mut shown = std::mem::take(&mut self.shown);
        shown.clear();
        if let Some(layout) = &self.layout {
            self.codes
                .show(self.world.memory(), layout, sample.python, frames, &mut shown);
        }
        let reach = Reach {
            rooted: walked.rooted,
            python: self.layout.is_some() && sample.python_known,
            python_cut: sample.python.len() >= PyConfig::FRAMES_MAX,
        };
        let raw = if self.layout.is_some() { sample.python } else { &[] };
        let spliced = splice(&native, raw, &shown, reach);
        self.shown = shown;
        out.frames.extend(spliced.frames);
        out.frames.reverse();
        out.native = native.len() as u32;
        out.rooted = walked.rooted;
        out.python_rooted = raw.last().is_some_and(PyFrameRaw::ends_run) && !reach.python_cut;
        out.mismatch = spliced.mismatch;
        out.early =
            self.layout.is_some() && !sample.python_known && native.iter().any(|n| n.class == Class::Loop);
        out.complete = walked.rooted && !spliced.mismatch && !spliced.cut && !out.early;
        out
    }

    /// How the frames of a walk are shown, and whether they have symbols. Those that the walk before had are known.
    fn show_walked(&mut self, tid: u32, walked: &Walked, frames: &mut Frames) -> Vec<(Native, bool)> {
        let last = self.walked.entry(tid).or_default();
        let new = walked.frames.len() - walked.same.min(walked.frames.len());
        let from = last.shown.len().checked_sub(walked.same);
        let is_of_the_walk_before = walked.same > 0 && last.shown_walk + 1 == last.walks;
        let known = from
            .filter(|_| is_of_the_walk_before)
            .and_then(|from| last.shown.get(from..));
        if known.is_none() {
            self.modules.name_roots(&*self.world, walked, frames);
        }
        let look_up = match known {
            Some(_) => &walked.frames[..new],
            None => &walked.frames[..],
        };
        let mut shown: Vec<(Native, bool)> = look_up
            .iter()
            .map(|f| self.modules.show(&*self.world, f.lookup, frames))
            .collect();
        shown.extend_from_slice(known.unwrap_or_default());
        last.shown.clone_from(&shown);
        last.shown_walk = last.walks;
        shown
    }

    /// Python frames alone, root first, of a thread that runs: its native stack cannot be read.
    pub fn show_python(&mut self, python: &[PyFrameRaw], frames: &mut Frames) -> Vec<FrameId> {
        let Some(layout) = &self.layout else {
            return Vec::new();
        };
        let mut shown = Vec::new();
        self.codes
            .show(self.world.memory(), layout, python, frames, &mut shown);
        shown.into_iter().rev().flatten().collect()
    }

    /// Return addresses of a sample, leaf first. Mappings are read again if they turn out to be old.
    pub fn walk(&mut self, sample: &RawSample<'_>) -> Walked {
        let (walked, unmapped) = self.walk_once(sample);
        let old = unmapped && sample.time_ns.saturating_sub(self.refreshed_ns) >= self.refresh_pause_ns;
        if !old {
            return walked;
        }
        self.refreshed_ns = sample.time_ns;
        match self.refresh() {
            Ok(true) => {
                self.refresh_pause_ns = REFRESH_NS;
                self.walk_once(sample).0
            }
            // The address was none: the next such one is believed for longer.
            _ => {
                self.refresh_pause_ns = (self.refresh_pause_ns * 2).min(REFRESH_MOST_NS);
                walked
            }
        }
    }

    /// What the linker calls the function at an address.
    pub fn name_of(&mut self, addr: u64) -> String {
        self.modules.raw_name(&*self.world, addr).unwrap_or_default()
    }

    fn walk_once(&mut self, sample: &RawSample<'_>) -> (Walked, bool) {
        if self.walked.len() >= WALKED_MAX && !self.walked.contains_key(&sample.tid) {
            self.walked.clear();
        }
        let last = self.walked.entry(sample.tid).or_default();
        let world = &*self.world;
        let above = sample.live.then(|| world.memory());
        let mut stack = Stack::new(sample.regs.sp, sample.stack, sample.outer, above);
        let mut code = CodeOf {
            modules: &mut self.modules,
            world,
            unmapped: false,
        };
        let regs = Registers::new(Arch::host(), &sample.regs);
        last.walks += 1;
        let walked = walk_again(&mut code, regs, &mut stack, &mut last.trail);
        (walked, code.unmapped)
    }

    fn kernel_frame(&mut self, addr: u64, frames: &mut Frames) -> FrameId {
        if let Some(&id) = self.kernel_frames.get(&addr) {
            return id;
        }
        let found = self.world.kernel_function(addr);
        let (function, module) = found.unwrap_or_else(|| ("[kernel]".to_owned(), "kernel".to_owned()));
        let id = frames.intern(Frame {
            kind: Kind::Kernel,
            function,
            file: String::new(),
            line: 0,
            module,
        });
        self.kernel_frames.insert(addr, id);
        id
    }

    /// Reads the mappings once more (after exec, or when Python may have come since). True if the code in it changed.
    pub fn refresh(&mut self) -> io::Result<bool> {
        let text = self.world.maps()?;
        let changed = self.modules.update(&text);
        if changed {
            self.walked.clear();
        }
        if changed || self.layout.is_none() {
            self.find_python();
        }
        Ok(changed)
    }

    fn find_python(&mut self) {
        self.notes.clear();
        let found = python_of(&mut self.modules, &*self.world);
        self.layout = match found {
            Some(Ok(layout)) => Some(layout),
            Some(Err(why)) => {
                self.notes.push(why);
                None
            }
            None => None,
        };
    }
}

/// The interpreter of a process. Nothing: there is none, or it has not started; an error: there is one that cannot be
/// read, and why.
fn python_of(modules: &mut Modules, world: &dyn World) -> Option<Result<Layout, String>> {
    let files = modules.maps.list.iter().filter(|m| m.executable && m.is_file());
    // The first file is the program, which may have Python linked into it whatever it is called.
    let first = modules
        .maps
        .list
        .iter()
        .find(|m| m.is_file())
        .map(|m| m.path.clone());
    let named = |path: &str| {
        path.rsplit('/')
            .next()
            .is_some_and(|n| n.starts_with("python") || n.contains("libpython"))
    };
    let mut candidates: Vec<u64> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for m in files {
        if !seen.contains(&m.path.as_str()) && (named(&m.path) || Some(&m.path) == first.as_ref()) {
            seen.push(&m.path);
            candidates.push(m.start);
        }
    }
    candidates.into_iter().find_map(|start| {
        let (image, vaddr) = modules.image_at(world, start)?;
        let bias = start.wrapping_sub(vaddr);
        let address = |name: &str| Some(image.address_of(name)?.0.wrapping_add(bias));
        let section = || Some(image.elf.section(".PyRuntime")?.vaddr.wrapping_add(bias));
        let runtime = address("_PyRuntime").or_else(section)?;
        let version = address("Py_Version")
            .and_then(|a| world.memory().u64(a))
            .map(|v| v as u32);
        let code_type = address("PyCode_Type").unwrap_or(0);
        match Layout::find(world.memory(), runtime, version, code_type) {
            Ok(layout) if !python::is_running(world.memory(), &layout.config) => None,
            found => Some(found),
        }
    })
}

/// Registers of a thread that is blocked, as `/proc/PID/task/TID/syscall` gives them: no frame pointer.
pub fn registers_of_blocked(pid: u32, tid: u32) -> Option<Regs> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    let mut fields = text.split_ascii_whitespace().rev();
    let mut hex = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok();
    let (ip, sp) = (hex()?, hex()?);
    Some(Regs {
        ip,
        sp,
        ..Regs::default()
    })
}
