//! Code objects: names, files and lines of Python functions. Read once each, and checked at each use to be still the
//! same: an address is used again when a code object is freed.

use rustc_hash::FxHashMap;

use super::layout::Layout;
use super::lines::line_at;
use crate::memory::Memory;
use crate::sample::{Frame, FrameId, Frames, Kind, PyFrameRaw};

/// Bytes at the start of a code object that hold all the fields.
const HEAD: usize = 144;
const NAME_MAX: u64 = 1024;
const FILE_MAX: u64 = 4096;
const TABLE_MAX: u64 = 1 << 20;
/// Code objects that are kept of one process.
const CODES_MAX: usize = 1 << 16;

/// What tells one code object from another at the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    kind: u64,
    first_line: u32,
    filename: u64,
    name: u64,
    qualname: u64,
    linetable: u64,
}

#[derive(Debug)]
struct Code {
    identity: Identity,
    function: String,
    file: String,
    first_line: u32,
    lines: Vec<u8>,
    /// Of the interpreter itself, not of the program.
    hidden: bool,
    shown: FxHashMap<i64, FrameId>,
}

/// The code objects of one process that were seen.
#[derive(Debug, Default)]
pub struct Codes {
    known: FxHashMap<u64, Code>,
    heads: Vec<u8>,
}

impl Codes {
    /// The frame to show for each raw frame, leaf first; nothing for the interpreter's own.
    pub fn show(
        &mut self,
        memory: &dyn Memory,
        layout: &Layout,
        raw: &[PyFrameRaw],
        frames: &mut Frames,
        into: &mut Vec<Option<FrameId>>,
    ) {
        into.clear();
        let mut wanted: Vec<u64> = raw
            .iter()
            .filter(|f| f.owner < PyFrameRaw::OWNED_BY_INTERPRETER && f.code != 0)
            .map(|f| f.code)
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut heads = std::mem::take(&mut self.heads);
        heads.clear();
        heads.resize(wanted.len() * HEAD, 0);
        let read = memory.read_many(&wanted, HEAD, &mut heads);
        for (i, &address) in wanted.iter().enumerate() {
            let head = read
                .get(i)
                .filter(|&&ok| ok)
                .and_then(|_| heads.get(i * HEAD..(i + 1) * HEAD));
            let identity = head.and_then(|head| Identity::of(head, layout));
            self.know(memory, layout, address, identity);
        }
        self.heads = heads;
        for f in raw {
            into.push(if f.owner >= PyFrameRaw::OWNED_BY_INTERPRETER {
                None
            } else {
                self.shown(layout, f, frames)
            });
        }
    }

    /// What is at the address now is read, unless it is known. Where there is no code object any more, what was there
    /// before is what the sample saw.
    fn know(&mut self, memory: &dyn Memory, layout: &Layout, address: u64, identity: Option<Identity>) {
        let Some(identity) = identity else {
            return;
        };
        if self.known.get(&address).is_some_and(|c| c.identity == identity) {
            return;
        }
        if let Some(code) = Code::read(memory, layout, identity) {
            if self.known.len() >= CODES_MAX {
                self.known.clear();
            }
            self.known.insert(address, code);
        }
    }

    fn shown(&mut self, layout: &Layout, f: &PyFrameRaw, frames: &mut Frames) -> Option<FrameId> {
        let Some(code) = self.known.get_mut(&f.code) else {
            return Some(frames.intern(Frame {
                kind: Kind::Python,
                function: "<unknown>".into(),
                file: String::new(),
                line: 0,
                module: String::new(),
            }));
        };
        if code.hidden {
            return None;
        }
        let start = f.code.wrapping_add(layout.code_adaptive.into());
        let offset = f.instr.wrapping_sub(start) as i64;
        if let Some(&id) = code.shown.get(&offset) {
            return Some(id);
        }
        // Before the first instruction: the frame has not begun yet.
        let line = u64::try_from(offset)
            .ok()
            .and_then(|o| line_at(&code.lines, code.first_line, o));
        let id = frames.intern(Frame {
            kind: Kind::Python,
            function: code.function.clone(),
            file: code.file.clone(),
            line: line.unwrap_or(code.first_line),
            module: String::new(),
        });
        code.shown.insert(offset, id);
        Some(id)
    }
}

impl Identity {
    fn of(head: &[u8], layout: &Layout) -> Option<Identity> {
        let word = |offset: u32| {
            let b = head.get(offset as usize..(offset as usize).checked_add(8)?)?;
            Some(u64::from_le_bytes(b.try_into().ok()?))
        };
        let kind = word(8)?;
        if layout.code_type != 0 && kind != layout.code_type {
            return None;
        }
        Some(Identity {
            kind,
            first_line: word(layout.firstlineno)? as u32,
            filename: word(layout.filename)?,
            name: word(layout.name)?,
            qualname: word(layout.qualname)?,
            linetable: word(layout.linetable)?,
        })
    }
}

impl Code {
    fn read(memory: &dyn Memory, layout: &Layout, identity: Identity) -> Option<Code> {
        let name = string(memory, layout, identity.name, NAME_MAX)?;
        let function = string(memory, layout, identity.qualname, NAME_MAX).unwrap_or_else(|| name.clone());
        let file = string(memory, layout, identity.filename, FILE_MAX).unwrap_or_default();
        // The interpreter's own piece of code around `__init__` gives its name as its file.
        let hidden = file == "__init__" && name == "__init__";
        Some(Code {
            identity,
            function,
            file,
            first_line: identity.first_line,
            lines: bytes_object(memory, identity.linetable).unwrap_or_default(),
            hidden,
            shown: FxHashMap::default(),
        })
    }
}

fn bytes_object(memory: &dyn Memory, at: u64) -> Option<Vec<u8>> {
    let len = memory.u64(at.checked_add(16)?)?;
    if len > TABLE_MAX {
        return None;
    }
    memory.bytes(at.checked_add(32)?, len as usize)
}

/// A `str` object. Longer ones are cut off.
fn string(memory: &dyn Memory, layout: &Layout, at: u64, limit: u64) -> Option<String> {
    let mut head = [0u8; 36];
    if at == 0 || !memory.read(at, &mut head) {
        return None;
    }
    let len = u64::from_le_bytes(head.get(16..24)?.try_into().ok()?);
    let state = u32::from_le_bytes(head.get(32..36)?.try_into().ok()?);
    // interned: 2 bits, kind: 3 bits, compact: 1 bit, ascii: 1 bit
    let (kind, compact, ascii) = ((state >> 2) & 7, state >> 5 & 1, state >> 6 & 1);
    if compact == 0 || !matches!(kind, 1 | 2 | 4) || len > 1 << 40 {
        return None;
    }
    let data = if ascii == 1 {
        layout.ascii_data
    } else {
        layout.compact_data
    };
    let n = len.min(limit) as usize;
    let b = memory.bytes(at.checked_add(data.into())?, n * kind as usize)?;
    let text = match kind {
        1 => b.iter().map(|&c| char::from(c)).collect(),
        2 => b
            .chunks_exact(2)
            .map(|c| char::from_u32(u32::from(u16::from_le_bytes([c[0], c[1]]))).unwrap_or('\u{fffd}'))
            .collect(),
        _ => b
            .chunks_exact(4)
            .map(|c| char::from_u32(u32::from_le_bytes([c[0], c[1], c[2], c[3]])).unwrap_or('\u{fffd}'))
            .collect(),
    };
    Some(text)
}
