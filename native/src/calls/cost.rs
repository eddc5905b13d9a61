//! What a uprobe costs on this machine: functions of our own are probed and called.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use super::functions::{Entry, Exit, FoundFunction};
use super::maps;
use super::object::{CallsObject, Program};

/// Nanoseconds of one hit with a program that leaves at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    pub nop: f64,
    pub emulated: f64,
    pub stepped: f64,
    /// A return probe: the trap at the entry, the return, the second program.
    pub returned: f64,
}

impl Cost {
    /// Where nothing could be measured: rather too much than too little.
    pub const UNKNOWN: Cost = Cost {
        nop: 10_000.0,
        emulated: 10_000.0,
        stepped: 20_000.0,
        returned: 20_000.0,
    };

    fn of_entry(&self, entry: Entry) -> f64 {
        match entry {
            Entry::Nop => self.nop,
            Entry::Emulated => self.emulated,
            Entry::Stepped => self.stepped,
        }
    }

    /// Mean cost of an entry and of an exit of these functions.
    pub fn of(&self, found: &[FoundFunction]) -> (f64, f64) {
        let n = found.len().max(1) as f64;
        let entries: f64 = found.iter().map(|f| self.of_entry(f.entry)).sum();
        let exits: Vec<f64> = found
            .iter()
            .filter_map(|f| match f.exit {
                Exit::Unseen => None,
                Exit::At(_) => Some(self.stepped),
                Exit::Return => Some(self.returned),
            })
            .collect();
        let mean_exit = exits.iter().sum::<f64>() / exits.len().max(1) as f64;
        (entries / n, mean_exit)
    }
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".text",
    ".p2align 5",
    ".hidden unidle_calls_emulated",
    ".globl unidle_calls_emulated",
    "unidle_calls_emulated: push rbp",
    "pop rbp",
    "ret",
    ".p2align 5",
    ".hidden unidle_calls_stepped",
    ".globl unidle_calls_stepped",
    "unidle_calls_stepped: mov eax, 1",
    "ret",
    ".p2align 5",
    ".hidden unidle_calls_nop",
    ".globl unidle_calls_nop",
    "unidle_calls_nop: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
    "ret",
    ".p2align 5",
    ".hidden unidle_calls_returned",
    ".globl unidle_calls_returned",
    "unidle_calls_returned: push rbp",
    "pop rbp",
    "ret",
    ".p2align 5",
    ".hidden unidle_calls_free",
    ".globl unidle_calls_free",
    "unidle_calls_free: push rbp",
    "pop rbp",
    "ret",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".hidden unidle_calls_emulated",
    ".globl unidle_calls_emulated",
    "unidle_calls_emulated: nop",
    "ret",
    ".hidden unidle_calls_stepped",
    ".globl unidle_calls_stepped",
    "unidle_calls_stepped: mov x0, #1",
    "ret",
    ".hidden unidle_calls_nop",
    ".globl unidle_calls_nop",
    "unidle_calls_nop: nop",
    "ret",
    ".hidden unidle_calls_returned",
    ".globl unidle_calls_returned",
    "unidle_calls_returned: nop",
    "ret",
    ".hidden unidle_calls_free",
    ".globl unidle_calls_free",
    "unidle_calls_free: nop",
    "ret",
);

extern "C" {
    fn unidle_calls_emulated();
    fn unidle_calls_stepped();
    fn unidle_calls_nop();
    fn unidle_calls_returned();
    fn unidle_calls_free();
}

type Function = unsafe extern "C" fn();

/// Probes functions of this process and calls them some hundred times (about 15 ms where a trap takes 10 us).
///
/// The probes go to `keep`: to take one off waits for every CPU, which takes longer than all the rest, and nobody calls
/// these functions again.
pub fn measure(kernel: &mut CallsObject, keep: &mut Vec<OwnedFd>) -> io::Result<Cost> {
    let mut one = |function, on_return| one(kernel, keep, function, on_return);
    Ok(Cost {
        nop: one(unidle_calls_nop, false)?,
        emulated: one(unidle_calls_emulated, false)?,
        stepped: one(unidle_calls_stepped, false)?,
        returned: one(unidle_calls_returned, true)?,
    })
}

fn one(
    kernel: &mut CallsObject,
    keep: &mut Vec<OwnedFd>,
    function: Function,
    on_return: bool,
) -> io::Result<f64> {
    let address = function as usize as u64;
    let pid = std::process::id();
    let mapping = maps::executable(pid)?
        .into_iter()
        .find(|m| (m.start..m.end).contains(&address))
        .ok_or_else(|| io::Error::other("own code is not mapped from a file"))?;
    let offset = mapping.offset + (address - mapping.start);
    // Not of `function` itself: another profiler may have its own probe there, and a hit would seem to cost nothing.
    let free = time(unidle_calls_free);
    // Group 31 is nobody's; this process is not watched, so nothing is counted.
    let cookie = [31u64 << 24];
    let program = if on_return { Program::Leave } else { Program::Enter };
    let mut last = io::Error::other("no way to own code");
    for way in mapping.ways(pid) {
        let Ok(path) = CString::new(way.as_os_str().as_bytes()) else {
            continue;
        };
        match kernel.link(program, &path, &[offset], &cookie, on_return, 0) {
            Ok(links) => {
                keep.extend(links);
                return Ok((time(function) - free).max(1.0));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Nanoseconds of a call: the best of some rounds, because others run on this machine too.
fn time(function: Function) -> f64 {
    let round = |n: u32| {
        let start = Instant::now();
        for _ in 0..n {
            // SAFETY: the functions above take nothing, change no register that their caller needs, and return.
            unsafe { function() };
        }
        start.elapsed().as_nanos() as f64 / f64::from(n)
    };
    round(20);
    (0..6).map(|_| round(40)).fold(f64::INFINITY, f64::min)
}
