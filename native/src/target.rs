//! A process that is looked at: its mappings, its modules, its Python.

use std::io;

use crate::python::PyConfig;
use crate::sample::{Frames, PyFrameRaw, RawSample, Resolved};

/// A process that is looked at. `Send`; not shared between threads without a lock.
pub struct Target {
    pid: u32,
}

impl Target {
    /// Reads the mappings of a process that lives. Errors: no such process, or it may not be looked at.
    pub fn open(pid: u32) -> io::Result<Target> {
        Ok(Target { pid })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What BPF needs to walk this process's Python frames; nothing without Python (or not yet: see [`Target::refresh`]).
    pub fn python(&self) -> Option<PyConfig> {
        None
    }

    /// What could not be done with this process and why, one line each (a free-threaded build, a version without offsets).
    pub fn notes(&self) -> &[String] {
        &[]
    }

    /// Python frames of a blocked thread, leaf first, from live memory. `tid` as the profiler's namespace numbers it;
    /// `fsbase` where it is known (it needs no tid at all).
    pub fn python_frames(&mut self, _tid: u32, _fsbase: Option<u64>, into: &mut Vec<PyFrameRaw>) {
        into.clear();
    }

    /// The stack of a sample, root first, Python and native and kernel frames in their places.
    pub fn resolve(&mut self, _sample: &RawSample<'_>, _frames: &mut Frames) -> Resolved {
        Resolved::default()
    }

    /// Reads the mappings once more (after exec, or when Python may have come since). True if anything changed.
    pub fn refresh(&mut self) -> io::Result<bool> {
        Ok(false)
    }
}
