//! The parameters of a running process's models: read from its Python, without stopping it.
//!
//! Python keeps its containers in lists for its garbage collector. Where these begin differs between versions; but
//! they are rings through places of the interpreter's state, which nothing else is. Of the objects in them those are
//! parameters whose type is `torch.nn.Parameter` or made of it. A tensor's sizes lie in its implementation as number
//! of dimensions, sizes, strides, offset, number of elements, type; they check each other, so that no offset has to be
//! known. What moves while it is read makes a walk end early: it is done again.

use rustc_hash::{FxHashMap, FxHashSet};

use super::CallRow;
use crate::memory::Memory;
use crate::python::PyConfig;

/// Of an interpreter's state: the collector's lists lie near its start.
const STATE_BYTES: usize = 256 << 10;
const OBJECTS_MAX: usize = 8_000_000;
const TRIES: usize = 3;
const BLOCK: u64 = 4096;
/// From the collector's header to the object.
const HEADER: u64 = 16;
const TYPE_NAME: u64 = 24;
const TYPE_BASE: u64 = 256;
const BASES_MAX: usize = 8;
/// Words of a tensor's implementation that are looked through.
const TENSOR_WORDS: usize = 40;
const INLINE_DIMENSIONS: u64 = 5;

/// Bytes of parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    pub host_bytes: u64,
    pub device_bytes: u64,
}

impl Parameters {
    pub fn rows(self, pid: u32) -> impl Iterator<Item = CallRow> {
        [
            ("host parameters", self.host_bytes),
            ("device parameters", self.device_bytes),
        ]
        .into_iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(move |(name, bytes)| CallRow {
            pid,
            tid: pid,
            name: name.to_owned(),
            kind: "model",
            count: 1,
            ns: None,
            bytes,
        })
    }

    fn total(self) -> u64 {
        self.host_bytes.saturating_add(self.device_bytes)
    }
}

/// Of all models that the process holds. Nothing where none is found.
pub fn parameters(memory: &dyn Memory, python: &PyConfig) -> Option<Parameters> {
    let mut best = None::<Parameters>;
    for _ in 0..TRIES {
        let mut walk = Walk::new(memory);
        let whole = walk.interpreter(python).unwrap_or(false);
        if walk.found.total() > best.unwrap_or_default().total() {
            best = Some(walk.found);
        }
        if whole {
            break;
        }
    }
    best
}

struct Walk<'a> {
    memory: &'a dyn Memory,
    blocks: FxHashMap<u64, Option<Box<[u8; BLOCK as usize]>>>,
    types: FxHashMap<u64, bool>,
    tensors: FxHashSet<u64>,
    found: Parameters,
}

impl<'a> Walk<'a> {
    fn new(memory: &'a dyn Memory) -> Self {
        Walk {
            memory,
            blocks: FxHashMap::default(),
            types: FxHashMap::default(),
            tensors: FxHashSet::default(),
            found: Parameters::default(),
        }
    }

    /// A word, by way of whole pages that are read once.
    fn word(&mut self, at: u64) -> Option<u64> {
        let (block, inside) = (at & !(BLOCK - 1), (at & (BLOCK - 1)) as usize);
        if at % 8 != 0 {
            return None;
        }
        let memory = self.memory;
        let bytes = self.blocks.entry(block).or_insert_with(|| {
            let mut bytes = Box::new([0u8; BLOCK as usize]);
            memory.read(block, &mut bytes[..]).then_some(bytes)
        });
        let piece = bytes.as_ref()?.get(inside..inside + 8)?;
        Some(u64::from_le_bytes(piece.try_into().ok()?))
    }

    /// True: every list was walked to its end.
    fn interpreter(&mut self, python: &PyConfig) -> Option<bool> {
        let state = self.word(python.runtime.wrapping_add(python.off_interp_head.into()))?;
        let heads: Vec<u64> = (0..STATE_BYTES as u64 / 8)
            .map(|n| state.wrapping_add(8 * n))
            .filter(|&at| self.is_head(at))
            .collect();
        let mut whole = !heads.is_empty();
        for head in heads {
            whole &= self.list(head).is_some();
        }
        Some(whole)
    }

    /// Whether a ring goes through this place: the next one's previous and the previous one's next are it.
    fn is_head(&mut self, at: u64) -> bool {
        let linked = |walk: &mut Self| {
            let next = walk.word(at)?;
            let previous = walk.word(at.wrapping_add(8))? & !3;
            if next == 0 || previous == 0 || next == at {
                return None;
            }
            let back = walk.word(next.wrapping_add(8))? & !3;
            let forth = walk.word(previous)? & !1;
            (back == at && forth == at).then_some(())
        };
        linked(self).is_some()
    }

    fn list(&mut self, head: u64) -> Option<()> {
        let mut at = self.word(head)?;
        for _ in 0..OBJECTS_MAX {
            if at == head {
                return Some(());
            }
            let object = at.wrapping_add(HEADER);
            let kind = self.word(object.wrapping_add(8))?;
            if self.is_parameter(kind) {
                self.add(object);
            }
            at = self.word(at)? & !1;
        }
        None
    }

    fn is_parameter(&mut self, kind: u64) -> bool {
        if let Some(&known) = self.types.get(&kind) {
            return known;
        }
        let mut named = false;
        let mut tensor = false;
        let mut base = kind;
        for _ in 0..BASES_MAX {
            let Some(at) = self.word(base.wrapping_add(TYPE_NAME)) else {
                break;
            };
            let name = self.memory.cstr(at, 64).unwrap_or_default();
            named |= name == b"Parameter";
            tensor |= name.ends_with(b"TensorBase");
            match self.word(base.wrapping_add(TYPE_BASE)) {
                Some(next) if next != 0 => base = next,
                _ => break,
            }
        }
        self.types.insert(kind, named && tensor);
        named && tensor
    }

    /// The object begins with its count and type; then comes the tensor, in some versions behind a flag.
    fn add(&mut self, object: u64) {
        for at in [object.wrapping_add(24), object.wrapping_add(16)] {
            let Some(tensor) = self.word(at).filter(|&t| t > 0xffff) else {
                continue;
            };
            let words: Option<Vec<u64>> = (0..TENSOR_WORDS as u64)
                .map(|n| self.word(tensor.wrapping_add(8 * n)))
                .collect();
            if let Some((bytes, on_device)) = words.as_deref().and_then(size_of_tensor) {
                if self.tensors.insert(tensor) {
                    let sum = if on_device {
                        &mut self.found.device_bytes
                    } else {
                        &mut self.found.host_bytes
                    };
                    *sum = sum.saturating_add(bytes);
                }
                return;
            }
        }
    }
}

/// Bytes of a tensor from the words of its implementation, and whether it is on a device that is not the host.
fn size_of_tensor(words: &[u64]) -> Option<(u64, bool)> {
    (0..words.len().checked_sub(14)?).find_map(|at| {
        let dimensions = words[at];
        if !(1..=INLINE_DIMENSIONS).contains(&dimensions) {
            return None;
        }
        let n = dimensions as usize;
        let (sizes, strides) = (&words[at + 1..at + 1 + n], &words[at + 6..at + 6 + n]);
        let elements = sizes.iter().try_fold(1u64, |all, &size| all.checked_mul(size))?;
        if elements == 0 || elements != words[at + 12] || strides.iter().any(|&s| s > elements) {
            return None;
        }
        let tail = words[at + 13];
        let bytes = elements.checked_mul(element_bytes(tail as u16)?)?;
        let has_device = tail >> 32 & 0xff == 1;
        Some((bytes, has_device && tail >> 16 & 0xff != 0))
    })
}

/// By the number of `c10::ScalarType`.
fn element_bytes(kind: u16) -> Option<u64> {
    Some(match kind {
        2 | 5 | 15 | 27 => 2,
        3 | 6 | 8 | 14 | 28 => 4,
        4 | 7 | 9 | 29 => 8,
        10 => 16,
        0..=48 => 1,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(sizes: &[u64], kind: u64) -> Vec<u64> {
        let mut words = vec![0x7f00_0000_1000, 3, 0x7f00_0000_2000, 0, 0];
        words.push(sizes.len() as u64);
        let mut strides = vec![1; sizes.len()];
        for at in (0..sizes.len().saturating_sub(1)).rev() {
            strides[at] = strides[at + 1] * sizes[at + 1];
        }
        for list in [sizes.to_vec(), strides] {
            words.extend(&list);
            words.extend(vec![0; 5 - list.len()]);
        }
        words.extend([0, sizes.iter().product(), kind]);
        words.resize(TENSOR_WORDS, 0);
        words
    }

    #[test]
    fn sizes_are_known_by_the_number_of_their_elements() {
        assert_eq!(
            size_of_tensor(&tensor(&[384, 1536], 6)),
            Some((384 * 1536 * 4, false))
        );
        assert_eq!(size_of_tensor(&tensor(&[384], 15)), Some((384 * 2, false)));
        assert_eq!(
            size_of_tensor(&tensor(&[8, 3, 3, 3], 15 | 1 << 16 | 1 << 32)),
            Some((8 * 27 * 2, true))
        );
        let mut wrong = tensor(&[384, 1536], 6);
        wrong[17] += 1;
        assert_eq!(size_of_tensor(&wrong), None);
        assert_eq!(size_of_tensor(&[5; 10]), None);
        assert_eq!(size_of_tensor(&[u64::MAX; 40]), None);
    }

    #[test]
    fn a_process_without_what_is_looked_for_has_none() {
        let python = PyConfig {
            runtime: 0x1000,
            ..PyConfig::default()
        };
        assert_eq!(parameters(&crate::memory::NoMemory, &python), None);
    }
}
