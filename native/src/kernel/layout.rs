//! What the BPF programs and the agent tell each other: the same layouts as `bpf/scope.h`. Change both.

use crate::python::PyConfig;
use crate::sample::{Outer, PyFrameRaw, Regs};

pub const THREADS_MAX: usize = 16_384;
pub const STACK_BYTES: usize = 32_768;
pub const OUTER_BYTES: usize = 24 << 10;
pub const KERNEL_FRAMES: usize = 64;

pub const TARGET_FOLLOW: u32 = 1;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct TargetEntry {
    pub flags: u32,
    pub pad: u32,
    pub python: PyConfig,
}

/// What a thread does, as the scheduler's tracepoints saw it last.
pub mod state {
    pub const FREE: u32 = 0;
    pub const ON: u32 = 1;
    pub const OFF: u32 = 2;
    pub const RUNQ: u32 = 3;
    pub const ENDED: u32 = 4;
    /// On a CPU or waiting for one: the next event tells which.
    pub const RUNNABLE: u32 = 5;
}

/// One place of the table of threads. At any time `on + off + runq == since - first`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ThreadPlace {
    pub seq: u32,
    pub state: u32,
    pub pid: u32,
    pub tid: u32,
    pub since: u64,
    pub first: u64,
    pub on: u64,
    pub off: u64,
    pub runq: u64,
    pub switches: u64,
    pub regs: Regs,
    pub call: i64,
    pub args: [u64; 3],
    pub fsbase: u64,
    pub task_state: u32,
    pub samples: u32,
    pub python: u64,
    pub python_tries: u32,
    pub python_skip: u32,
    pub comm: [u8; 16],
    /// Of the stack as it was when the thread last left a CPU, innermost first.
    pub returns: [Returned; 4],
    pub n_returns: u32,
    pub unused: u32,
}

/// A return address that a return probe has replaced by its own: where it was, and what it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Returned {
    pub at: u64,
    pub to: u64,
}

impl ThreadPlace {
    /// Puts the addresses that the functions will return to in truth into a copy of the stack.
    pub fn restore_returns(&self, stack: &mut [u8]) {
        for returned in self.returns.iter().take(self.n_returns as usize) {
            let at = returned
                .at
                .checked_sub(self.regs.sp)
                .and_then(|far| usize::try_from(far).ok());
            let word = at.and_then(|at| stack.get_mut(at..at.checked_add(8)?));
            if let Some(word) = word {
                word.copy_from_slice(&returned.to.to_le_bytes());
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Counters {
    pub samples: u64,
    pub drops: u64,
    pub lost_events: u64,
    pub lost_threads: u64,
    pub lost_targets: u64,
    pub torn: u64,
    pub cut: u64,
    pub without_python: u64,
    pub high: u64,
}

const _: () = {
    assert!(std::mem::size_of::<TargetEntry>() == 80);
    assert!(std::mem::size_of::<ThreadPlace>() == 248);
    assert!(std::mem::size_of::<Counters>() == 72);
    assert!(std::mem::size_of::<PyFrameRaw>() == 24);
};

// SAFETY: plain numbers without padding or pointers; every bit pattern is a value.
unsafe impl aya::Pod for TargetEntry {}

/// One record of the ring.
#[derive(Clone, Copy, Debug)]
pub enum Record<'a> {
    Sample(SampleRecord<'a>),
    Forked { pid: u32, parent: u32 },
    Execed { pid: u32 },
    Exited { pid: u32 },
}

#[derive(Clone, Copy, Debug)]
pub struct SampleRecord<'a> {
    pub pid: u32,
    pub tid: u32,
    pub time_ns: u64,
    pub regs: Regs,
    /// Python frames could not all be read, or were more than fit.
    pub torn: bool,
    pub cut: bool,
    /// It was known where Python frames are.
    pub python_known: bool,
    python: &'a [u8],
    kernel: &'a [u8],
    pub stack: &'a [u8],
    pub outer: Outer<'a>,
}

const HEAD: usize = 24;
const PYTHON_AT: usize = HEAD + 32 + 32;
const KERNEL_AT: usize = PYTHON_AT + PyConfig::FRAMES_MAX * 24;
const STACK_AT: usize = KERNEL_AT + KERNEL_FRAMES * 8;

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?))
}

impl<'a> Record<'a> {
    /// Nothing for what no program of ours writes.
    pub fn parse(b: &'a [u8]) -> Option<Record<'a>> {
        let (kind, pid, tid) = (u32_at(b, 0)?, u32_at(b, 4)?, u32_at(b, 8)?);
        match kind {
            1 => {
                let flags = u32_at(b, 12)?;
                let number = |at| u32_at(b, at).map(|n| n as usize);
                let n_python = number(HEAD + 32)?.min(PyConfig::FRAMES_MAX);
                let n_kernel = number(HEAD + 36)?.min(KERNEL_FRAMES);
                let n_stack = number(HEAD + 40)?.min(STACK_BYTES);
                let n_outer = number(HEAD + 56)?.min(OUTER_BYTES);
                let outer_at = STACK_AT + STACK_BYTES;
                let pieces = match n_outer {
                    0 => &[],
                    _ => b.get(outer_at..outer_at + n_outer)?,
                };
                let end = u64_at(b, HEAD + 48)?;
                Some(Record::Sample(SampleRecord {
                    pid,
                    tid,
                    time_ns: u64_at(b, 16)?,
                    regs: Regs {
                        ip: u64_at(b, HEAD)?,
                        sp: u64_at(b, HEAD + 8)?,
                        bp: u64_at(b, HEAD + 16)?,
                        lr: u64_at(b, HEAD + 24)?,
                    },
                    torn: flags & 1 != 0,
                    cut: flags & 2 != 0,
                    python_known: flags & 4 != 0,
                    python: b.get(PYTHON_AT..PYTHON_AT + n_python * 24)?,
                    kernel: b.get(KERNEL_AT..KERNEL_AT + n_kernel * 8)?,
                    stack: b.get(STACK_AT..STACK_AT + n_stack)?,
                    outer: Outer { end, pieces },
                }))
            }
            2 => Some(Record::Forked { pid, parent: tid }),
            3 => Some(Record::Execed { pid }),
            4 => Some(Record::Exited { pid }),
            _ => None,
        }
    }
}

impl SampleRecord<'_> {
    /// Leaf first.
    pub fn python_into(&self, into: &mut Vec<PyFrameRaw>) {
        into.clear();
        into.extend(self.python.chunks_exact(24).filter_map(|f| {
            Some(PyFrameRaw {
                code: u64_at(f, 0)?,
                instr: u64_at(f, 8)?,
                owner: u32_at(f, 16)?,
                flags: u32_at(f, 20)?,
            })
        }));
    }

    /// Leaf first.
    pub fn kernel_into(&self, into: &mut Vec<u64>) {
        into.clear();
        into.extend(self.kernel.chunks_exact(8).filter_map(|f| u64_at(f, 0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(n_python: u32, n_stack: u32, bytes: usize) -> Vec<u8> {
        let mut b = vec![0; STACK_AT + bytes];
        b[0] = 1;
        b[4] = 7;
        b[8] = 8;
        b[HEAD..HEAD + 8].copy_from_slice(&0x1234u64.to_le_bytes());
        b[HEAD + 32..HEAD + 36].copy_from_slice(&n_python.to_le_bytes());
        b[HEAD + 40..HEAD + 44].copy_from_slice(&n_stack.to_le_bytes());
        b[PYTHON_AT..PYTHON_AT + 8].copy_from_slice(&0xc0deu64.to_le_bytes());
        b
    }

    #[test]
    fn replaced_return_addresses_are_put_back_where_the_copy_holds_them() {
        let place = ThreadPlace {
            regs: Regs {
                sp: 0x1000,
                ..Regs::default()
            },
            returns: [(0x1008, 7), (0x0ff8, 8), (0x1014, 9), (0x1010, 10)]
                .map(|(at, to)| Returned { at, to }),
            n_returns: 3,
            ..ThreadPlace::default()
        };
        let mut stack = [0u8; 24];
        place.restore_returns(&mut stack);
        let words: Vec<u64> = stack.chunks_exact(8).filter_map(|w| u64_at(w, 0)).collect();
        assert_eq!(words, [0, 7, 0]);
    }

    #[test]
    fn a_sample_is_read_as_it_was_written() {
        let bytes = sample(1, 16, 16);
        let Some(Record::Sample(s)) = Record::parse(&bytes) else {
            panic!("no sample");
        };
        assert_eq!((s.pid, s.tid, s.regs.ip, s.stack.len()), (7, 8, 0x1234, 16));
        let mut python = Vec::new();
        s.python_into(&mut python);
        assert_eq!(python.len(), 1);
        assert_eq!(python[0].code, 0xc0de);
    }

    #[test]
    fn the_outer_end_of_a_stack_stands_at_its_own_place() {
        let mut bytes = sample(1, 16, STACK_BYTES + 8);
        bytes[HEAD + 48..HEAD + 56].copy_from_slice(&0x7000u64.to_le_bytes());
        bytes[HEAD + 56..HEAD + 60].copy_from_slice(&8u32.to_le_bytes());
        bytes[STACK_AT + STACK_BYTES] = 5;
        let Some(Record::Sample(s)) = Record::parse(&bytes) else {
            panic!("no sample");
        };
        assert_eq!(s.stack.len(), 16);
        let pieces = &[5, 0, 0, 0, 0, 0, 0, 0][..];
        assert_eq!(s.outer, Outer { end: 0x7000, pieces });
        assert!(Record::parse(&bytes[..STACK_AT + STACK_BYTES]).is_none());
    }

    #[test]
    fn a_record_that_says_more_than_it_holds_is_refused() {
        assert!(Record::parse(&sample(1, 17, 16)).is_none());
        assert!(Record::parse(&sample(1, 16, 16)[..200]).is_none());
        assert!(Record::parse(&[]).is_none());
        assert!(Record::parse(&[9; 24]).is_none());
    }

    #[test]
    fn counts_beyond_the_bounds_are_cut_to_them() {
        let bytes = sample(u32::MAX, u32::MAX, STACK_BYTES);
        let Some(Record::Sample(s)) = Record::parse(&bytes) else {
            panic!("no sample");
        };
        assert_eq!(s.stack.len(), STACK_BYTES);
    }
}
