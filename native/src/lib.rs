//! The profiler's hot path.

pub mod calls;
pub mod code;
pub mod elf;
pub mod image;
pub mod maps;
pub mod memory;
pub mod python;
pub mod sample;
pub mod splice;
pub mod symbols;
pub mod target;
pub mod unwind;
pub mod world;

#[cfg(feature = "python")]
#[pyo3::pymodule]
mod unidle_scope {
    #[pymodule_export]
    use crate::calls::python::Calls;
}
