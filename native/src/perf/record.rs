//! Records of a perf event's ring (perf_event_open(2)), read with every bound checked.

use crate::sample::Regs;

pub const MMAP: u32 = 1;
pub const LOST: u32 = 2;
pub const EXIT: u32 = 4;
pub const FORK: u32 = 7;
pub const SAMPLE: u32 = 9;
pub const MMAP2: u32 = 10;
pub const LOST_SAMPLES: u32 = 13;

/// What events ask for: IP, TID, TIME, CALLCHAIN, REGS_USER, STACK_USER, in the order of a record.
pub const SAMPLE_TYPE: u64 = 1 << 1 | 1 << 2 | 1 << 5 | 1 << 12 | 1 << 13;

/// Registers by number of `asm/perf_regs.h`, ascending, as they lie in a record.
#[cfg(target_arch = "x86_64")]
pub const REGS_MASK: u64 = 1 << 6 | 1 << 7 | 1 << 8; // bp, sp, ip
#[cfg(target_arch = "aarch64")]
pub const REGS_MASK: u64 = 1 << 29 | 1 << 30 | 1 << 31 | 1 << 32; // fp, lr, sp, pc
const N_REGS: usize = REGS_MASK.count_ones() as usize;

/// From here on entries of a call chain are marks of contexts.
const CONTEXT_MAX: u64 = -4095i64 as u64;
const CONTEXT_KERNEL: u64 = -128i64 as u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerfRecord<'a> {
    Sample(Sample<'a>),
    Fork { pid: u32, parent: u32, tid: u32 },
    Exit { pid: u32, tid: u32 },
    Mapped { pid: u32 },
    Lost(u64),
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    pub pid: u32,
    pub tid: u32,
    pub time_ns: u64,
    /// Leaf first.
    pub kernel: Vec<u64>,
    pub regs: Regs,
    pub stack: &'a [u8],
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.take(8)?.try_into().ok()?))
    }
}

/// The record of kind `kind` with this body (without its header). Nothing: it is shorter than it says.
pub fn parse(kind: u32, body: &[u8]) -> Option<PerfRecord<'_>> {
    let mut bytes = Bytes(body);
    Some(match kind {
        SAMPLE => PerfRecord::Sample(sample(&mut bytes)?),
        FORK | EXIT => {
            let (pid, parent, tid) = (bytes.u32()?, bytes.u32()?, bytes.u32()?);
            if kind == FORK {
                PerfRecord::Fork { pid, parent, tid }
            } else {
                PerfRecord::Exit { pid, tid }
            }
        }
        MMAP | MMAP2 => PerfRecord::Mapped { pid: bytes.u32()? },
        LOST => {
            bytes.u64()?; // the event's number
            PerfRecord::Lost(bytes.u64()?)
        }
        LOST_SAMPLES => PerfRecord::Lost(bytes.u64()?),
        _ => PerfRecord::Other,
    })
}

fn sample<'a>(bytes: &mut Bytes<'a>) -> Option<Sample<'a>> {
    let (pid, tid, time_ns) = (bytes.u32()?, bytes.u32()?, bytes.u64()?);
    let n = usize::try_from(bytes.u64()?).ok()?;
    let chain = bytes.take(n.checked_mul(8)?)?;
    let mut kernel = Vec::new();
    let mut inside = false;
    for entry in chain.chunks_exact(8) {
        let ip = u64::from_ne_bytes(entry.try_into().ok()?);
        if ip >= CONTEXT_MAX {
            inside = ip == CONTEXT_KERNEL;
        } else if inside {
            kernel.push(ip);
        }
    }
    // No ABI: a thread of the kernel, or one that has no user side.
    let mut regs = Regs::default();
    if bytes.u64()? != 0 {
        let mut values = [0; N_REGS];
        for value in &mut values {
            *value = bytes.u64()?;
        }
        regs = registers(values);
    }
    let size = usize::try_from(bytes.u64()?).ok()?;
    let mut stack: &[u8] = &[];
    if size > 0 {
        let whole = bytes.take(size)?;
        // How much of it the kernel could copy.
        let filled = usize::try_from(bytes.u64()?).ok()?;
        stack = whole.get(..filled)?;
    }
    Some(Sample {
        pid,
        tid,
        time_ns,
        kernel,
        regs,
        stack,
    })
}

#[cfg(target_arch = "x86_64")]
fn registers([bp, sp, ip]: [u64; N_REGS]) -> Regs {
    Regs { ip, sp, bp, lr: 0 }
}

#[cfg(target_arch = "aarch64")]
fn registers([bp, lr, sp, ip]: [u64; N_REGS]) -> Regs {
    Regs { ip, sp, bp, lr }
}

/// Kind and body of a record, and the position after it.
pub type RawRecord<'a> = (u32, &'a [u8], u64);

/// A ring whose positions or lengths cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

/// Finds the next record in a ring: `head` and `tail` as the kernel counts them (bytes, never wrapped). Gives its kind
/// and the position after it; the body is copied where it wraps. Nothing: none is whole. `Err`: the ring is damaged.
pub fn next<'a>(
    ring: &'a [u8],
    tail: u64,
    head: u64,
    copy: &'a mut Vec<u8>,
) -> Result<Option<RawRecord<'a>>, Damaged> {
    const HEADER: u64 = 8;
    let size = ring.len() as u64;
    let there = head.wrapping_sub(tail);
    if there == 0 {
        return Ok(None);
    }
    if size == 0 || !size.is_power_of_two() || there > size || there < HEADER {
        return Err(Damaged);
    }
    let mut header = [0; HEADER as usize];
    for (i, byte) in header.iter_mut().enumerate() {
        *byte = ring[((tail + i as u64) & (size - 1)) as usize];
    }
    let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
    let length = u64::from(u16::from_ne_bytes([header[6], header[7]]));
    if length < HEADER || length > there {
        return Err(Damaged);
    }
    let from = ((tail + HEADER) & (size - 1)) as usize;
    let n = (length - HEADER) as usize;
    let body = match ring.get(from..from + n) {
        Some(body) => body,
        None => {
            copy.clear();
            copy.extend_from_slice(&ring[from..]);
            copy.extend_from_slice(&ring[..n - (ring.len() - from)]);
            copy
        }
    };
    Ok(Some((kind, body, tail.wrapping_add(length))))
}

/// Bytes that may be anything, as a ring and as the body of a record of every kind (for fuzzing: nothing may panic).
pub fn hostile(data: &[u8]) {
    for kind in 0..16 {
        let _ = parse(kind, data);
    }
    let size = data.len().checked_ilog2().map_or(0, |n| 1 << n);
    let (mut tail, head, mut copy) = (0, size as u64, Vec::new());
    while let Ok(Some((kind, body, after))) = next(&data[..size], tail, head, &mut copy) {
        let _ = parse(kind, body);
        tail = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[u64]) -> Vec<u8> {
        list.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    fn sample_body() -> Vec<u8> {
        let mut body = words(&[u64::from(7u32) | u64::from(8u32) << 32, 123, 4]);
        body.extend(words(&[CONTEXT_KERNEL, 0xffff_8000, -512i64 as u64, 0x40_0000]));
        body.extend(words(&[2]));
        body.extend(words(&(1..=N_REGS as u64).collect::<Vec<_>>()));
        body.extend(words(&[16]));
        body.extend([9; 16]);
        body.extend(words(&[5]));
        body
    }

    #[test]
    fn a_sample_has_its_kernel_chain_registers_and_the_filled_part_of_its_stack() {
        let body = sample_body();
        let Some(PerfRecord::Sample(s)) = parse(SAMPLE, &body) else {
            panic!("a sample");
        };
        assert_eq!((s.pid, s.tid, s.time_ns), (7, 8, 123));
        assert_eq!(s.kernel, [0xffff_8000]);
        assert_eq!(s.stack, [9; 5]);
        assert_eq!(s.regs.bp, 1);
        assert_eq!(s.regs.ip, N_REGS as u64);
    }

    #[test]
    fn every_cut_of_a_record_is_refused() {
        let body = sample_body();
        for end in 0..body.len() {
            assert_eq!(parse(SAMPLE, &body[..end]), None, "{end}");
        }
        assert_eq!(parse(FORK, &[0; 11]), None);
        assert_eq!(parse(LOST, &[0; 15]), None);
        assert_eq!(parse(99, &[]), Some(PerfRecord::Other));
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let mut body = sample_body();
        body[16..24].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert_eq!(parse(SAMPLE, &body), None);
        let mut body = sample_body();
        let n = body.len();
        body[n - 8..].copy_from_slice(&17u64.to_ne_bytes());
        assert_eq!(parse(SAMPLE, &body), None);
    }

    #[test]
    fn no_bytes_make_the_parser_panic() {
        // A linear congruential generator: the same bytes every time.
        let mut seed = 1u64;
        let mut byte = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        };
        let mut copy = Vec::new();
        for round in 0..20_000usize {
            let body: Vec<u8> = (0..round % 300)
                .map(|_| byte() & if round % 2 == 0 { 0x0f } else { 0xff })
                .collect();
            for kind in 0..16 {
                let _ = parse(kind, &body);
            }
            let ring: Vec<u8> = (0..64).map(|_| byte() & 0x1f).collect();
            let _ = next(&ring, u64::from(byte()), u64::from(byte()), &mut copy);
        }
    }

    #[test]
    fn a_record_that_wraps_is_put_together() {
        let mut record = words(&[0]);
        record[..4].copy_from_slice(&FORK.to_ne_bytes());
        record[6..8].copy_from_slice(&24u16.to_ne_bytes());
        record.extend([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        let mut ring = vec![0; 64];
        let tail = 64 * 5 + 52;
        for (i, b) in record.iter().enumerate() {
            ring[(52 + i) % 64] = *b;
        }
        let mut copy = Vec::new();
        let (kind, body, after) = next(&ring, tail, tail + 24, &mut copy)
            .expect("not damaged")
            .expect("one record");
        assert_eq!(after, tail + 24);
        assert_eq!(
            parse(kind, body),
            Some(PerfRecord::Fork {
                pid: 1,
                parent: 2,
                tid: 3
            })
        );
        assert_eq!(next(&ring, tail, tail, &mut Vec::new()), Ok(None));
        assert!(next(&ring, tail, tail + 16, &mut Vec::new()).is_err());
        assert!(next(&ring, 0, 65, &mut Vec::new()).is_err());
    }
}
