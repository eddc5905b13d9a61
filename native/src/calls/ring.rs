//! The rings of the kernel object.

use std::io;
use std::os::fd::AsFd;

use super::bpf::Map;
pub use crate::ring::Ring;

impl Ring {
    pub fn open(map: &Map) -> io::Result<Ring> {
        Ring::new(map.fd.as_fd(), map.max_entries)
    }
}
