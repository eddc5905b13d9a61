//! Programs and maps of the loaded object by their names, and what goes wrong as one line.

use std::io;

use aya::maps::{Map, MapData};
use aya::programs::{BtfTracePoint, ProgramError};
use aya::Ebpf;

pub fn program<'a, P>(bpf: &'a mut Ebpf, name: &str) -> io::Result<&'a mut P>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    bpf.program_mut(name)
        .ok_or_else(|| unsupported(&format!("the BPF object has no program {name}")))?
        .try_into()
        .map_err(|e: ProgramError| explain(&e))
}

pub fn tracepoint<'a>(bpf: &'a mut Ebpf, name: &str) -> io::Result<&'a mut BtfTracePoint> {
    program(bpf, name)
}

pub fn map<'a>(bpf: &'a Ebpf, name: &str) -> io::Result<&'a MapData> {
    match bpf.map(name) {
        Some(Map::Array(data)) => Ok(data),
        _ => Err(unsupported(&format!("the BPF object has no array {name}"))),
    }
}

pub fn take<M>(bpf: &mut Ebpf, name: &str) -> io::Result<M>
where
    M: TryFrom<Map, Error = aya::maps::MapError>,
{
    bpf.take_map(name)
        .ok_or_else(|| unsupported(&format!("the BPF object has no map {name}")))?
        .try_into()
        .map_err(|e: aya::maps::MapError| explain(&e))
}

pub fn unsupported(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what.to_owned())
}

/// One line for whatever went wrong, with the kind that the Python side tells apart.
pub fn explain(error: &(dyn std::error::Error + 'static)) -> io::Error {
    let mut line = error.to_string();
    let mut kind = io::ErrorKind::Unsupported;
    let mut next = Some(error);
    while let Some(e) = next {
        if let Some(e) = e.downcast_ref::<io::Error>() {
            if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
                kind = io::ErrorKind::PermissionDenied;
            }
        }
        let said = e.to_string();
        if !line.contains(&said) {
            line = format!("{line}: {said}");
        }
        next = e.source();
    }
    let line = line.lines().next().unwrap_or_default().to_owned();
    io::Error::new(kind, line)
}
