//! The profiler's hot path.

pub mod memory;
pub mod python;
pub mod sample;
pub mod target;
pub mod calls;

#[cfg(feature = "python")]
#[pyo3::pymodule]
mod unidle_scope {
    #[pymodule_export]
    use crate::calls::python::Calls;
}
