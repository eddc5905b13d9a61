//! `Calls` for Python: counts of one or several processes, without samples.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyOSError, PyPermissionError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use rustc_hash::FxHashMap;

use super::catalogue::GROUPS;
use super::functions::{self, Exit};
use super::groups::{self, Group};
use super::{CallRows, Resolver, Wanted};
use crate::python::PyConfig;
use crate::sample::{FrameId, Frames, RawSample};
use crate::target::Target;

/// Resolves stacks by targets of its own.
#[derive(Default)]
struct Own {
    targets: FxHashMap<u32, Option<Target>>,
    frames: Frames,
    stacks: Vec<Vec<FrameId>>,
    numbers: FxHashMap<Vec<FrameId>, u32>,
}

impl Own {
    fn intern(&mut self, frames: Vec<FrameId>) -> u32 {
        if let Some(&n) = self.numbers.get(&frames) {
            return n;
        }
        let n = self.stacks.len() as u32;
        self.stacks.push(frames.clone());
        self.numbers.insert(frames, n);
        n
    }

    fn target(&mut self, pid: u32) -> Option<&mut Target> {
        self.targets
            .entry(pid)
            .or_insert_with(|| Target::open(pid).ok())
            .as_mut()
    }
}

impl Resolver for Own {
    fn stack(&mut self, sample: &RawSample<'_>) -> u32 {
        self.target(sample.pid);
        let Own { targets, frames, .. } = self;
        let resolved = match targets.get_mut(&sample.pid).and_then(Option::as_mut) {
            Some(target) => target.resolve(sample, frames).frames,
            None => Vec::new(),
        };
        self.intern(resolved)
    }

    fn unknown(&mut self) -> u32 {
        self.intern(Vec::new())
    }

    fn python(&mut self, pid: u32) -> Option<PyConfig> {
        let target = self.target(pid)?;
        if target.python().is_none() {
            let _ = target.refresh();
        }
        target.python()
    }
}

/// Counts calls of running processes. ``wanted`` switches things on: ``{"operators": True, "budget_pct": 5.0}``.
#[pyclass(name = "Calls", module = "unidle_scope")]
pub struct PyCalls {
    inner: Mutex<Inner>,
}

/// Nothing left to call where it is closed.
struct Inner {
    calls: Option<super::Calls>,
    resolver: Own,
}

impl PyCalls {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyCalls {
    #[new]
    #[pyo3(signature = (pids, wanted=None))]
    fn new(py: Python<'_>, pids: Vec<u32>, wanted: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let wanted = wanted_of(wanted)?;
        let made = py.detach(|| {
            let mut resolver = Own::default();
            let calls = super::Calls::attach(&pids, wanted, &mut resolver)?;
            Ok::<_, std::io::Error>(Inner {
                calls: Some(calls),
                resolver,
            })
        });
        let inner = made.map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => PyPermissionError::new_err(format!("calls: {error}")),
            _ => PyOSError::new_err(format!("calls: {error}")),
        })?;
        Ok(PyCalls {
            inner: Mutex::new(inner),
        })
    }

    /// Works for that long: rings, new libraries, governor. Returns how many watched processes live.
    fn run(&self, py: Python<'_>, seconds: f64) -> PyResult<usize> {
        let end = Instant::now()
            + Duration::try_from_secs_f64(seconds).map_err(|e| PyValueError::new_err(e.to_string()))?;
        loop {
            py.check_signals()?;
            let left = end.saturating_duration_since(Instant::now());
            let alive = py.detach(|| {
                std::thread::sleep(left.min(Duration::from_millis(20)));
                let inner = &mut *self.inner();
                let Some(calls) = inner.calls.as_mut() else {
                    return 0;
                };
                calls.poll(&mut inner.resolver);
                calls.watched().len()
            });
            if alive == 0 || left.is_zero() {
                return Ok(alive);
            }
        }
    }

    fn add(&self, py: Python<'_>, pid: u32) -> PyResult<()> {
        py.detach(|| {
            let inner = &mut *self.inner();
            match inner.calls.as_mut() {
                Some(calls) => Ok(calls.add(pid, &mut inner.resolver)?),
                None => Err(PyValueError::new_err("calls: is closed")),
            }
        })
    }

    /// Rows since the last take, as the fields of ``Call``, ``Span``, ``Held``; and all frames and stacks so far.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let out = PyDict::new(py);
        let taken = py.detach(|| {
            let inner = &mut *self.inner();
            let rows = inner.calls.as_mut()?.take(&mut inner.resolver);
            Some(rows)
        });
        let Some(mut taken) = taken else {
            return Err(PyValueError::new_err("calls: is closed"));
        };
        let inner = &*self.inner();
        let spans_dropped = taken.spans_dropped;
        let counted = std::mem::take(&mut taken.calls)
            .into_iter()
            .map(|r| (r.pid, r.tid, r.name, r.kind, r.count, r.ns, r.bytes, None::<u32>));
        out.set_item("calls", rows(py, counted)?)?;
        add_spans_and_memory(py, &out, taken)?;
        let frames = inner
            .resolver
            .frames
            .iter()
            .map(|f| (f.kind.name(), &f.function, &f.file, f.line, &f.module));
        out.set_item("frames", rows(py, frames)?)?;
        out.set_item("stacks", inner.resolver.stacks.clone())?;
        out.set_item("spans_dropped", spans_dropped)?;
        out.set_item(
            "notes",
            inner.calls.as_ref().map(super::Calls::notes).unwrap_or_default(),
        )?;
        Ok(out)
    }

    /// Groups with probes on, and how many.
    #[getter]
    fn probes(&self) -> Vec<(&'static str, usize)> {
        self.inner()
            .calls
            .as_ref()
            .map(super::Calls::probes)
            .unwrap_or_default()
    }

    /// Nanoseconds of one hit here: ``nop``, ``emulated``, ``stepped``, ``returned``.
    #[getter]
    fn cost<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let out = PyDict::new(py);
        if let Some(calls) = &self.inner().calls {
            let cost = calls.cost();
            for (name, ns) in [
                ("nop", cost.nop),
                ("emulated", cost.emulated),
                ("stepped", cost.stepped),
                ("returned", cost.returned),
            ] {
                out.set_item(name, ns)?;
            }
        }
        Ok(out)
    }

    #[getter]
    fn notes(&self) -> Vec<String> {
        self.inner()
            .calls
            .as_ref()
            .map(|c| c.notes().to_vec())
            .unwrap_or_default()
    }

    /// Takes all probes off.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.inner().calls.take()));
    }
}

/// What the groups for this library would probe in a file: ``(group, pattern, found)``, found as
/// ``(symbol, shown name, offset in the file, entry, exit)``. Needs no right but to read the file.
#[pyfunction]
pub fn probes_of(path: std::path::PathBuf) -> PyResult<Vec<ProbesOf>> {
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let groups: Vec<&'static Group> = GROUPS
        .iter()
        .filter(|g| g.libraries.iter().any(|l| groups::is_library(&name, l)))
        .collect();
    let found = functions::find(&path, &groups)?;
    let mut out = Vec::new();
    for (group, found) in groups.iter().zip(found) {
        for pattern in group
            .functions
            .iter()
            .flat_map(|f| f.symbols.split('|'))
            .map(str::trim)
        {
            let fitting = found
                .iter()
                .filter(|f| groups::fits(pattern, f.symbol.split("_pt").next().unwrap_or("")));
            let rows = fitting.map(|f| {
                let exit = match &f.exit {
                    Exit::Unseen => "unseen".to_owned(),
                    Exit::Return => "return probe".to_owned(),
                    Exit::At(places) => format!("{} places", places.len()),
                };
                (
                    f.symbol.clone(),
                    groups::shown(&f.symbol),
                    f.offset,
                    format!("{:?}", f.entry).to_lowercase(),
                    exit,
                )
            });
            out.push((group.name, pattern, rows.collect()));
        }
    }
    Ok(out)
}

type ProbesOf = (
    &'static str,
    &'static str,
    Vec<(String, String, u64, String, String)>,
);

/// What a dictionary of switches wants; nothing at all is the default. Errors name a switch that does not exist.
pub fn wanted_of(told: Option<&Bound<'_, PyDict>>) -> PyResult<Wanted> {
    let mut wanted = Wanted::default();
    let Some(told) = told else { return Ok(wanted) };
    if told
        .get_item("only")?
        .map(|v| v.is_truthy())
        .transpose()?
        .unwrap_or(false)
    {
        wanted = Wanted::nothing();
    }
    for (name, value) in told {
        let name: String = name.extract()?;
        match name.as_str() {
            "only" => {}
            "budget_pct" => {
                wanted.budget_pct = value.extract()?;
                if !told.contains("memory_budget_pct")? {
                    wanted.memory_budget_pct = 2.0 * wanted.budget_pct; // half of it is for `malloc`
                }
            }
            "memory_budget_pct" => wanted.memory_budget_pct = value.extract()?,
            "max_spans" => wanted.max_spans = value.extract()?,
            _ if wanted.switch(&name, value.is_truthy()?) => {}
            _ => {
                let names = Wanted::names().join(", ");
                return Err(PyValueError::new_err(format!(
                    "calls: nothing is called {name:?}; there are {names}"
                )));
            }
        }
    }
    Ok(wanted)
}

/// Spans, memory, its moments and its cuts.
pub fn add_spans_and_memory<'py>(
    py: Python<'py>,
    told: &Bound<'py, PyDict>,
    taken: CallRows,
) -> PyResult<()> {
    let spans = taken
        .spans
        .into_iter()
        .map(|s| (s.pid, s.tid, s.name, s.kind, s.start_ns, s.end_ns, s.bytes));
    told.set_item("spans", rows(py, spans)?)?;
    let moments = taken.moments.into_iter().filter_map(|m| {
        let of = taken.memory.get(m.row)?;
        Some((of.pid, of.stack, &of.device, m.time_ns, m.live_bytes, m.live))
    });
    told.set_item("moments", rows(py, moments)?)?;
    told.set_item("cuts", taken.cuts)?;
    let memory = taken.memory.iter().map(|m| {
        (
            m.pid,
            m.stack,
            &m.device,
            m.allocated_bytes,
            m.allocations,
            m.live_bytes,
            m.live,
        )
    });
    told.set_item("memory", rows(py, memory)?)
}

pub fn rows<'py, R>(py: Python<'py>, rows: impl Iterator<Item = R>) -> PyResult<Bound<'py, PyList>>
where
    R: IntoPyObject<'py>,
{
    PyList::new(py, rows.collect::<Vec<_>>())
}
