//! The Python module `unidle_scope`: what `unidle.scope.tiers.native` uses, and nobody else.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyPermissionError, PyProcessLookupError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyList, PyTuple};

use crate::calls::python::{add_spans_and_memory, rows};
use crate::look::{self, Look, Started, TIERS};
use crate::profile::{Options, Profile};
use crate::quality::ProfileQuality;
use crate::table::Rows;

/// The form of [`Session::take`]'s answer. The Python side takes exactly this one.
const FORM: u32 = 2;

/// The programs' source goes with them, so that whoever runs them can read them.
const SOURCES: [(&str, &str); 20] = [
    ("calls.bpf.c", include_str!("../bpf/calls.bpf.c")),
    ("calls.h", include_str!("../bpf/calls.h")),
    ("calls_files.h", include_str!("../bpf/calls_files.h")),
    ("calls_memory.h", include_str!("../bpf/calls_memory.h")),
    ("calls_sockets.h", include_str!("../bpf/calls_sockets.h")),
    ("calls_where.h", include_str!("../bpf/calls_where.h")),
    ("calls_kernel.h", include_str!("../bpf/calls_kernel.h")),
    ("scope.bpf.c", include_str!("../bpf/scope.bpf.c")),
    ("scope.h", include_str!("../bpf/scope.h")),
    ("scope_maps.h", include_str!("../bpf/scope_maps.h")),
    ("registers.h", include_str!("../bpf/registers.h")),
    ("threads.h", include_str!("../bpf/threads.h")),
    ("switches.h", include_str!("../bpf/switches.h")),
    ("processes.h", include_str!("../bpf/processes.h")),
    ("python_walk.h", include_str!("../bpf/python_walk.h")),
    ("samples.h", include_str!("../bpf/samples.h")),
    ("returns.h", include_str!("../bpf/returns.h")),
    ("python.h", include_str!("../bpf/python.h")),
    ("helpers.h", include_str!("../bpf/helpers.h")),
    ("vmlinux.h", include_str!("../bpf/vmlinux.h")),
];

/// What the CUDA driver loads into a training, see `inject/kernels.c`; `build.rs` makes it.
const KERNELS_LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libunidle_kernels.so"));

/// How long the interpreter is left alone before it may handle signals.
const SLICE: Duration = Duration::from_millis(200);

/// A look at running processes that lasts until `close`.
#[pyclass(module = "unidle_scope")]
struct Session {
    /// The lock is never waited for: it only says that two threads cannot use a session at once.
    inner: Mutex<Option<Box<dyn Look>>>,
    #[pyo3(get)]
    tier: String,
    #[pyo3(get)]
    misses: Vec<String>,
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (pids, *, hz = 99, off_cpu = true, follow = true, tier = None, calls = None))]
    fn new(
        py: Python<'_>,
        pids: Vec<u32>,
        hz: u32,
        off_cpu: bool,
        follow: bool,
        tier: Option<String>,
        calls: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Session> {
        if !(1..=10_000).contains(&hz) {
            return Err(PyValueError::new_err(format!(
                "hz is {hz}: 1 to 10000 is possible"
            )));
        }
        if let Some(tier) = tier.iter().find(|t| !TIERS.contains(&t.as_str())) {
            return Err(PyValueError::new_err(format!(
                "tier is {tier}: T0, T1 and T2 are possible"
            )));
        }
        let wanted = calls
            .map(|calls| crate::calls::python::wanted_of(Some(&calls)))
            .transpose()?;
        let options = Options { hz, off_cpu, follow };
        let Started { look, tier, misses } = py
            .detach(|| look::start(&pids, options, wanted, tier.as_deref()))
            .map_err(raised)?;
        Ok(Session {
            inner: Mutex::new(Some(look)),
            tier: tier.to_owned(),
            misses,
        })
    }

    /// Works for that long without the interpreter's lock; gives how many processes live. Returns early when none does.
    fn run(&mut self, py: Python<'_>, seconds: f64) -> PyResult<usize> {
        let inner = open(&mut self.inner)?;
        let whole = Duration::try_from_secs_f64(seconds)
            .map_err(|_| PyValueError::new_err(format!("seconds is {seconds}")))?;
        let started = std::time::Instant::now();
        loop {
            let left = whole.saturating_sub(started.elapsed());
            let live = py.detach(|| inner.run(left.min(SLICE))).map_err(raised)?;
            py.check_signals()?;
            if live == 0 || started.elapsed() >= whole {
                return Ok(live);
            }
        }
    }

    /// Watches one more process.
    fn add(&mut self, py: Python<'_>, pid: u32) -> PyResult<()> {
        let inner = open(&mut self.inner)?;
        py.detach(|| inner.add(pid)).map_err(raised)
    }

    /// What came since the last take: columns of `unidle.scope.model.Profile`, rows in the order of its fields.
    fn take<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = open(&mut self.inner)?;
        let taken = py.detach(|| inner.take());
        columns(py, taken)
    }

    /// `(name, runs, nanoseconds)` of every BPF program so far.
    fn program_costs(&mut self) -> PyResult<Vec<(String, u64, u64)>> {
        Ok(open(&mut self.inner)?.program_costs())
    }

    /// Takes every probe away. May be called twice.
    fn close(&mut self, py: Python<'_>) {
        let inner = self.inner.get_mut().ok().and_then(Option::take);
        py.detach(|| drop(inner));
    }
}

fn open(inner: &mut Mutex<Option<Box<dyn Look>>>) -> PyResult<&mut Box<dyn Look>> {
    inner
        .get_mut()
        .ok()
        .and_then(Option::as_mut)
        .ok_or_else(|| PyValueError::new_err("the session is closed"))
}

fn raised(error: io::Error) -> PyErr {
    let line = error.to_string();
    match error.kind() {
        io::ErrorKind::NotFound => PyProcessLookupError::new_err(line),
        io::ErrorKind::PermissionDenied => PyPermissionError::new_err(line),
        _ => PyOSError::new_err(line),
    }
}

fn columns<'py>(py: Python<'py>, taken: Profile) -> PyResult<Bound<'py, PyDict>> {
    let told = PyDict::new(py);
    told.set_item("start_ns", taken.start_ns)?;
    told.set_item("end_ns", taken.end_ns)?;
    add_samples(py, &told, taken.rows)?;
    let threads = taken.threads.iter().map(|((pid, tid), t)| {
        let times = &t.times;
        (
            pid, tid, &t.name, times.on, times.off, times.runq, t.first_ns, t.last_ns,
        )
    });
    told.set_item("threads", rows(py, threads)?)?;
    let processes = taken
        .processes
        .into_iter()
        .map(|p| (p.pid, p.command, p.parent, p.python, p.rank, p.job, p.ended));
    told.set_item("processes", rows(py, processes)?)?;
    let quality = quality(py, taken.quality)?;
    quality.set_item("spans_dropped", taken.calls.spans_dropped)?;
    told.set_item("quality", quality)?;
    let mut calls = taken.calls;
    let counted = std::mem::take(&mut calls.calls)
        .into_iter()
        .map(|c| (c.pid, c.tid, c.name, c.kind, c.count, c.ns, c.bytes));
    told.set_item("calls", rows(py, counted)?)?;
    add_spans_and_memory(py, &told, calls)?;
    Ok(told)
}

fn add_samples<'py>(py: Python<'py>, told: &Bound<'py, PyDict>, taken: Rows) -> PyResult<()> {
    let frames = taken
        .frames
        .iter()
        .map(|f| (f.kind.name(), &f.function, &f.file, f.line, &f.module));
    told.set_item("frames", rows(py, frames)?)?;
    let stacks: Vec<_> = taken
        .stacks
        .into_iter()
        .map(|stack| PyTuple::new(py, stack))
        .collect::<PyResult<_>>()?;
    told.set_item("stacks", PyList::new(py, stacks)?)?;
    let samples = taken
        .samples
        .iter()
        .map(|(pid, tid, stack, state, count, ns)| (pid, tid, stack, state.name(), count, ns));
    told.set_item("samples", rows(py, samples)?)
}

fn quality<'py>(py: Python<'py>, q: ProfileQuality) -> PyResult<Bound<'py, PyDict>> {
    let quality = PyDict::new(py);
    quality.set_item("samples", q.samples)?;
    quality.set_item("drops", q.drops)?;
    quality.set_item("rooted_pct", q.rooted_pct)?;
    quality.set_item("symbolised_pct", q.symbolised_pct)?;
    quality.set_item("merge_mismatch_pct", q.merge_mismatch_pct)?;
    quality.set_item("bpf_cpu_pct", q.bpf_cpu_pct)?;
    quality.set_item("agent_cpu_pct", q.agent_cpu_pct)?;
    quality.set_item("attach_cpu_s", q.attach_cpu_s)?;
    quality.set_item("first_sample_ns", q.first_sample_ns)?;
    quality.set_item("notes", q.notes)?;
    Ok(quality)
}

/// Names of the BPF programs that the kernel has now, of whoever loaded them.
#[pyfunction]
fn loaded_programs() -> PyResult<Vec<String>> {
    crate::kernel::loaded_programs().map_err(raised)
}

/// Names of functions as their source has them; what is not mangled stays.
#[pyfunction]
fn demangled(names: Vec<String>) -> Vec<String> {
    names.iter().map(|name| crate::symbols::demangle(name)).collect()
}

#[pymodule]
fn unidle_scope(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Session>()?;
    m.add_class::<crate::calls::python::PyCalls>()?;
    m.add_function(wrap_pyfunction!(crate::calls::python::probes_of, m)?)?;
    m.add_function(wrap_pyfunction!(loaded_programs, m)?)?;
    m.add_function(wrap_pyfunction!(demangled, m)?)?;
    m.add("FORM", FORM)?;
    m.add("SOURCES", SOURCES.into_py_dict(m.py())?)?;
    m.add("KERNELS_LIBRARY", PyBytes::new(m.py(), KERNELS_LIBRARY))?;
    m.add("__version__", env!("CARGO_PKG_VERSION"))
}
