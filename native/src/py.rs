//! The Python module `unidle_scope`: what `unidle.scope.tiers.native` uses, and nobody else.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyPermissionError, PyProcessLookupError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList, PyTuple};

use crate::session::{self, Options, Taken};

/// The form of [`Session::take`]'s answer. The Python side takes exactly this one.
const FORM: u32 = 1;

/// The programs' source goes with them, so that whoever runs them can read them.
const SOURCES: [(&str, &str); 5] = [
    ("scope.bpf.c", include_str!("../bpf/scope.bpf.c")),
    ("scope.h", include_str!("../bpf/scope.h")),
    ("python.h", include_str!("../bpf/python.h")),
    ("helpers.h", include_str!("../bpf/helpers.h")),
    ("vmlinux.h", include_str!("../bpf/vmlinux.h")),
];

/// How long the interpreter is left alone before it may handle signals.
const SLICE: Duration = Duration::from_millis(200);

/// A look at running processes that lasts until `close`.
#[pyclass(module = "unidle_scope")]
struct Session {
    /// The lock is never waited for: it only says that two threads cannot use a session at once.
    inner: Mutex<Option<session::Session>>,
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
            return Err(PyValueError::new_err(format!("hz is {hz}: 1 to 10000 is possible")));
        }
        if let Some(tier) = tier.filter(|t| t != "T0") {
            return Err(PyOSError::new_err(format!("tier {tier} is not in this module: T0 is")));
        }
        if calls.is_some_and(|c| !c.is_empty()) {
            return Err(PyValueError::new_err("calls are not in this module"));
        }
        let options = Options {
            hz,
            off_cpu,
            follow,
        };
        let inner = py
            .detach(|| session::Session::start(&pids, options))
            .map_err(raised)?;
        let mut misses = Vec::new();
        if !off_cpu {
            misses.push("where threads wait: looked at on CPUs only".to_owned());
        }
        Ok(Session {
            inner: Mutex::new(Some(inner)),
            tier: "T0".to_owned(),
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

fn open(inner: &mut Mutex<Option<session::Session>>) -> PyResult<&mut session::Session> {
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

fn columns<'py>(py: Python<'py>, taken: Taken) -> PyResult<Bound<'py, PyDict>> {
    let told = PyDict::new(py);
    told.set_item("start_ns", taken.start_ns)?;
    told.set_item("end_ns", taken.end_ns)?;
    let frames = taken
        .rows
        .frames
        .iter()
        .map(|f| (f.kind.name(), &f.function, &f.file, f.line, &f.module));
    told.set_item("frames", rows(py, frames)?)?;
    let stacks: Vec<_> = taken
        .rows
        .stacks
        .into_iter()
        .map(|stack| PyTuple::new(py, stack))
        .collect::<PyResult<_>>()?;
    told.set_item("stacks", PyList::new(py, stacks)?)?;
    let samples = taken
        .rows
        .samples
        .iter()
        .map(|(pid, tid, stack, state, count, ns)| (pid, tid, stack, state.name(), count, ns));
    told.set_item("samples", rows(py, samples)?)?;
    let threads = taken.threads.iter().map(|((pid, tid), t)| {
        let times = &t.times;
        (
            pid, tid, &t.name, times.on, times.off, times.runq, t.first_ns, t.last_ns,
        )
    });
    told.set_item("threads", rows(py, threads)?)?;
    told.set_item("processes", rows(py, taken.processes.into_iter())?)?;
    for empty in ["calls", "spans", "memory"] {
        told.set_item(empty, PyList::empty(py))?;
    }
    let q = taken.quality;
    let quality = PyDict::new(py);
    quality.set_item("samples", q.samples)?;
    quality.set_item("drops", q.drops)?;
    quality.set_item("rooted_pct", q.rooted_pct)?;
    quality.set_item("symbolised_pct", q.symbolised_pct)?;
    quality.set_item("merge_mismatch_pct", q.merge_mismatch_pct)?;
    quality.set_item("bpf_cpu_pct", q.bpf_cpu_pct)?;
    quality.set_item("agent_cpu_pct", q.agent_cpu_pct)?;
    quality.set_item("first_sample_ns", q.first_sample_ns)?;
    quality.set_item("notes", q.notes)?;
    told.set_item("quality", quality)?;
    Ok(told)
}

fn rows<'py, R>(py: Python<'py>, rows: impl Iterator<Item = R>) -> PyResult<Bound<'py, PyList>>
where
    R: IntoPyObject<'py>,
{
    PyList::new(py, rows.collect::<Vec<_>>())
}

/// Names of the BPF programs that the kernel has now, of whoever loaded them.
#[pyfunction]
fn loaded_programs() -> PyResult<Vec<String>> {
    crate::kernel::loaded_programs().map_err(raised)
}

#[pymodule]
fn unidle_scope(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Session>()?;
    m.add_function(wrap_pyfunction!(loaded_programs, m)?)?;
    m.add("FORM", FORM)?;
    m.add("SOURCES", SOURCES.into_py_dict(m.py())?)?;
    m.add("__version__", env!("CARGO_PKG_VERSION"))
}
