//! Memory per call site: stacks come once over a ring, sums stay in the kernel's tables.

use std::io;
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};

use super::maps::Mapping;
use super::memory_growth::Growth;
use super::object::{self, Allocating, CallsObject, Live, LiveKey, SiteKey, SiteSum, StackHead};
use super::{CallRows, HeldRow, MomentRow, Resolver};
use crate::clock::monotonic_ns;
use crate::sample::{Outer, PyFrameRaw, RawSample, Regs};

/// `PY_FRAMES_MAX` of python.h.
const PYTHON_MAX: usize = 128;
const PY_FRAME: usize = size_of::<PyFrameRaw>();
/// 64-bit words of the table of program text.
const TEXT_WORDS: usize = 16384;
const DEVICE_UNKNOWN: u32 = 1 + 0xffff;
const DEVICE_PAGES: u32 = 0xffff_fffe;

/// What is known of call sites.
#[derive(Default)]
pub struct CallSites {
    stacks: FxHashMap<(u64, u32), u32>,
    previous: FxHashMap<SiteKey, SiteSum>,
    text: Vec<u64>,
    growth: Growth,
}

/// By process, stack and device: the row, and the sites in it.
type Joined = FxHashMap<(u32, u32, u32), (HeldRow, Vec<SiteKey>)>;

impl CallSites {
    /// Tells the kernel where program text is, so that it knows return addresses when it sees them.
    pub fn text(&mut self, kernel: &CallsObject, mappings: &[Mapping]) -> io::Result<()> {
        self.text.resize(TEXT_WORDS, 0);
        let map = kernel.map("text")?;
        let before = self.text.iter().map(|w| w.count_ones()).sum::<u32>();
        for mapping in mappings {
            for granule in mapping.start >> 16..=(mapping.end.saturating_sub(1)) >> 16 {
                let bit = (granule.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44) as usize;
                self.text[bit >> 6] |= 1u64 << (bit & 63);
            }
        }
        if self.text.iter().map(|w| w.count_ones()).sum::<u32>() == before {
            return Ok(());
        }
        map.put_words(0, &self.text)
    }

    /// One record of the ring: a call site that was not known before.
    pub fn stack(&mut self, record: &[u8], resolver: &mut dyn Resolver) {
        let Some((head, python, stack)) = parse(record) else {
            return;
        };
        let sample = RawSample {
            pid: head.tgid,
            tid: head.tid,
            time_ns: head.time_ns,
            regs: Regs {
                ip: head.ip,
                sp: head.sp,
                bp: head.bp,
                lr: head.lr,
            },
            stack,
            outer: Outer::default(),
            python_known: true,
            python: &python,
            kernel: &[],
            live: false,
        };
        let number = resolver.stack(&sample);
        self.stacks.insert((head.hash, head.tgid), number);
    }

    /// Keeps what lives now, where a moment is due.
    pub fn moment(&mut self, kernel: &CallsObject) -> io::Result<()> {
        if self.growth.is_due() {
            let began = Instant::now();
            let sums = kernel.map("sites")?.all::<SiteKey, SiteSum>()?;
            self.growth.add(monotonic_ns(), &sums, began.elapsed());
        }
        Ok(())
    }

    /// A row for each place and device: what it allocated since the last call, and what is live now.
    pub fn rows(
        &mut self,
        kernel: &CallsObject,
        resolver: &mut dyn Resolver,
        into: &mut CallRows,
    ) -> io::Result<()> {
        let began = Instant::now();
        let sums = kernel.map("sites")?.all::<SiteKey, SiteSum>()?;
        let now_ns = monotonic_ns();
        self.growth.add(now_ns, &sums, began.elapsed());
        for (row, keys) in self.since_last(&sums, resolver) {
            // What is gone at the end has not grown.
            let series = if row.live > 0 {
                self.growth.of(&keys)
            } else {
                Vec::new()
            };
            let at = into.memory.len();
            into.moments
                .extend(series.into_iter().map(|(time_ns, (live_bytes, live))| MomentRow {
                    row: at,
                    time_ns,
                    live_bytes,
                    live,
                }));
            into.memory.push(row);
        }
        self.growth.begin(now_ns, &sums);
        Ok(())
    }

    /// A row for each stack and device, with its call sites, in order.
    fn since_last(
        &mut self,
        sums: &[(SiteKey, SiteSum)],
        resolver: &mut dyn Resolver,
    ) -> Vec<(HeldRow, Vec<SiteKey>)> {
        let mut joined = Joined::default();
        for &(key, now) in sums {
            let before = self.previous.insert(key, now).unwrap_or_default();
            if now.allocations == before.allocations && now.live == 0 {
                continue;
            }
            let known = self.stacks.get(&(key.hash, key.tgid)).copied();
            let stack = known.unwrap_or_else(|| resolver.unknown());
            let (row, keys) = joined.entry((key.tgid, stack, key.device)).or_insert_with(|| {
                let row = HeldRow {
                    pid: key.tgid,
                    stack,
                    device: device(key.device),
                    allocated_bytes: 0,
                    allocations: 0,
                    live_bytes: 0,
                    live: 0,
                };
                (row, Vec::new())
            });
            keys.push(key);
            row.allocated_bytes += now.allocated.saturating_sub(before.allocated);
            row.allocations += now.allocations.saturating_sub(before.allocations);
            row.live_bytes = row.live_bytes.saturating_add(now.live_bytes);
            row.live = row.live.saturating_add(now.live);
        }
        let mut rows: Vec<(HeldRow, Vec<SiteKey>)> = joined.into_values().collect();
        rows.sort_by(|(a, _), (b, _)| (a.pid, &a.device, a.stack).cmp(&(b.pid, &b.device, b.stack)));
        rows
    }

    /// Calls whose end will not be seen any more: without this, what their threads allocate next would be part of them.
    pub fn end_open_calls(&self, kernel: &CallsObject) {
        let Ok(map) = kernel.map("allocs") else {
            return;
        };
        for (key, _) in map.all::<u64, Allocating>().unwrap_or_default() {
            let _ = map.delete(&key);
        }
    }

    /// Lets go of what these processes had.
    pub fn forget(&mut self, kernel: &CallsObject, ended: &FxHashSet<u32>) {
        if let Ok(map) = kernel.map("sites") {
            for key in self.previous.keys().filter(|k| ended.contains(&k.tgid)) {
                let _ = map.delete(key);
            }
        }
        if self.previous.keys().any(|k| ended.contains(&k.tgid)) {
            if let Ok(map) = kernel.map("lives") {
                for (key, _) in map.all::<LiveKey, Live>().unwrap_or_default() {
                    if ended.contains(&key.tgid) {
                        let _ = map.delete(&key);
                    }
                }
            }
        }
        self.growth.forget(|pid| ended.contains(&pid));
        self.previous.retain(|k, _| !ended.contains(&k.tgid));
        self.stacks.retain(|k, _| !ended.contains(&k.1));
    }
}

fn device(number: u32) -> String {
    match number {
        0 => "host".to_owned(),
        DEVICE_PAGES => "pages".to_owned(),
        DEVICE_UNKNOWN => "cuda:?".to_owned(),
        n => format!("cuda:{}", n - 1),
    }
}

/// Head, Python frames (leaf first) and stack of a record; nothing where it is cut short.
fn parse(record: &[u8]) -> Option<(StackHead, Vec<PyFrameRaw>, &[u8])> {
    let head: StackHead = object::read(record)?;
    let frames = record.get(size_of::<StackHead>()..)?;
    let stack = frames.get(PYTHON_MAX * PY_FRAME..)?;
    let word = |bytes: &[u8], at: usize| -> Option<u64> {
        Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
    };
    let python = frames
        .chunks_exact(PY_FRAME)
        .take((head.n_python as usize).min(PYTHON_MAX))
        .filter_map(|f| {
            let both = word(f, 16)?;
            Some(PyFrameRaw {
                code: word(f, 0)?,
                instr: word(f, 8)?,
                owner: both as u32,
                flags: (both >> 32) as u32,
            })
        })
        .collect();
    Some((head, python, stack.get(..head.stack_bytes as usize)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_cut_short_or_lies_about_its_length_is_nothing() {
        let mut record = vec![0u8; size_of::<StackHead>() + PYTHON_MAX * PY_FRAME + 64];
        assert!(parse(&record).is_some());
        assert!(parse(&record[..100]).is_none());
        let at = std::mem::offset_of!(StackHead, stack_bytes);
        record[at..at + 4].copy_from_slice(&65u32.to_ne_bytes());
        assert!(parse(&record).is_none());
        record[at..at + 4].copy_from_slice(&64u32.to_ne_bytes());
        let at = std::mem::offset_of!(StackHead, n_python);
        record[at..at + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
        let (_, python, stack) = parse(&record).unwrap();
        assert_eq!((python.len(), stack.len()), (PYTHON_MAX, 64));
    }

    #[test]
    fn devices_have_the_names_of_the_model() {
        assert_eq!(
            [0, 1, 3, DEVICE_UNKNOWN, DEVICE_PAGES].map(device),
            ["host", "cuda:0", "cuda:2", "cuda:?", "pages"]
        );
    }
}
