//! Names of CPython's native functions where the linker's are gone: the interpreter finds its functions by tables that
//! say for each what Python calls it (`PyMethodDef`, `PyTypeObject`, `PyType_Spec`). They are read from the file: its
//! data, with what the loader would put there. Layouts are those of `methodobject.h`, `cpython/object.h` and
//! `typeslots.h`, which have been the same from 3.11 to 3.14.

use rustc_hash::FxHashMap;

use crate::elf::{Elf, EM_X86_64};

/// Bytes of data, and of relocations, that are looked at.
const DATA_MAX: u64 = 16 << 20;
const RELOCATIONS_MAX: u64 = 32 << 20;
const NAME_MAX: usize = 96;
/// Entries of one table, and names that one function may have.
const TABLE_MAX: u64 = 1024;
const NAMES_MAX: usize = 2;

const SHT_PROGBITS: u32 = 1;
const DEF: u64 = 32;
const GETSET: u64 = 40;

/// Functions of a type by their place in `PyTypeObject`.
const OF_TYPE: [(u64, &str); 16] = [
    (48, "(dealloc)"),
    (88, "__repr__"),
    (120, "__hash__"),
    (128, "__call__"),
    (136, "__str__"),
    (144, "__getattribute__"),
    (152, "__setattr__"),
    (184, "(traverse)"),
    (192, "(clear)"),
    (200, "(compare)"),
    (216, "__iter__"),
    (224, "__next__"),
    (272, "__get__"),
    (280, "__set__"),
    (296, "__init__"),
    (312, "__new__"),
];

/// The groups of functions that a type points to: place of the pointer, and names in their order.
const GROUPS: [(u64, &[&str]); 4] = [
    (80, &["__await__", "__aiter__", "__anext__", "(send)"]),
    (
        96,
        &[
            "__add__",
            "__sub__",
            "__mul__",
            "__mod__",
            "__divmod__",
            "__pow__",
            "__neg__",
            "__pos__",
            "__abs__",
            "__bool__",
            "__invert__",
            "__lshift__",
            "__rshift__",
            "__and__",
            "__xor__",
            "__or__",
            "__int__",
            "",
            "__float__",
            "__iadd__",
            "__isub__",
            "__imul__",
            "__imod__",
            "__ipow__",
            "__ilshift__",
            "__irshift__",
            "__iand__",
            "__ixor__",
            "__ior__",
            "__floordiv__",
            "__truediv__",
            "__ifloordiv__",
            "__itruediv__",
            "__index__",
            "__matmul__",
            "__imatmul__",
        ],
    ),
    (
        104,
        &[
            "__len__",
            "__add__",
            "__mul__",
            "__getitem__",
            "",
            "__setitem__",
            "",
            "__contains__",
            "__iadd__",
            "__imul__",
        ],
    ),
    (112, &["__len__", "__getitem__", "__setitem__"]),
];
const METHODS_AT: u64 = 232;
const GETSET_AT: u64 = 248;

/// Slots of `PyType_Spec` by their number.
const SLOTS: [(u64, &str); 36] = [
    (3, "__setitem__"),
    (4, "__len__"),
    (5, "__getitem__"),
    (6, "__abs__"),
    (7, "__add__"),
    (8, "__and__"),
    (9, "__bool__"),
    (11, "__float__"),
    (13, "__index__"),
    (26, "__int__"),
    (29, "__mul__"),
    (30, "__neg__"),
    (31, "__or__"),
    (36, "__sub__"),
    (37, "__truediv__"),
    (38, "__xor__"),
    (39, "__setitem__"),
    (41, "__contains__"),
    (44, "__getitem__"),
    (45, "__len__"),
    (50, "__call__"),
    (51, "(clear)"),
    (52, "(dealloc)"),
    (54, "__get__"),
    (58, "__getattribute__"),
    (59, "__hash__"),
    (60, "__init__"),
    (62, "__iter__"),
    (63, "__next__"),
    (65, "__new__"),
    (66, "__repr__"),
    (67, "(compare)"),
    (69, "__setattr__"),
    (70, "__str__"),
    (71, "(traverse)"),
    (81, "(send)"),
];
const SLOT_METHODS: u64 = 64;
const SLOT_GETSET: u64 = 73;

/// What Python calls a function, by the function's address.
#[derive(Debug, Default)]
pub struct Methods(FxHashMap<u64, String>);

impl Methods {
    /// `begins`: does a function begin at this address?
    pub fn read(elf: &Elf, begins: &dyn Fn(u64) -> bool) -> Methods {
        let mut search = Search {
            elf,
            begins,
            data: Data::read(elf),
            found: FxHashMap::default(),
        };
        search.all();
        let named = search.found.into_iter().filter_map(|(function, mut names)| {
            // The same function in many places is a part that they share, and none of them in particular.
            names.sort_by_key(|n| (n.starts_with('('), n.len()));
            (names.len() <= NAMES_MAX).then(|| (function, names.join(" | ")))
        });
        Methods(named.collect())
    }

    /// The name of the function that begins there.
    pub fn find(&self, start: u64) -> Option<&str> {
        self.0.get(&start).map(String::as_str)
    }
}

/// The sections that may be written to before the program starts: address and words.
struct Data(Vec<(u64, Vec<u8>)>);

impl Data {
    fn read(elf: &Elf) -> Data {
        let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut left = DATA_MAX.min(elf.source.len());
        for s in &elf.sections {
            let wanted = s.kind == SHT_PROGBITS && (s.name.starts_with(".data") || s.name == ".rodata");
            if !wanted || s.vaddr == 0 || s.size > left {
                continue;
            }
            let mut b = vec![0u8; s.size as usize];
            if elf.source.read_bulk(s.offset, &mut b) {
                left -= s.size;
                pieces.push((s.vaddr, b));
            }
        }
        pieces.sort_by_key(|p| p.0);
        let mut data = Data(pieces);
        data.relocate(elf);
        data
    }

    /// Addresses within the file itself, as the loader writes them (those that stand there already are left).
    fn relocate(&mut self, elf: &Elf) {
        let relative = if elf.machine == EM_X86_64 { 8 } else { 1027 };
        let Some(table) = elf.section(".rela.dyn").filter(|s| s.size <= RELOCATIONS_MAX) else {
            return;
        };
        if table.size > elf.source.len() {
            return;
        }
        let mut b = vec![0u8; table.size as usize];
        if !elf.source.read_bulk(table.offset, &mut b) {
            return;
        }
        for r in b.chunks_exact(24) {
            let word = |at: usize| {
                r.get(at..at + 8)
                    .and_then(|w| Some(u64::from_le_bytes(w.try_into().ok()?)))
            };
            let (Some(at), Some(info), Some(value)) = (word(0), word(8), word(16)) else {
                continue;
            };
            if info == relative {
                if let Some(place) = self.place(at) {
                    place.copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }

    fn place(&mut self, at: u64) -> Option<&mut [u8]> {
        let i = self.0.partition_point(|p| p.0 <= at).checked_sub(1)?;
        let (start, b) = self.0.get_mut(i)?;
        let from = usize::try_from(at - *start).ok()?;
        b.get_mut(from..from.checked_add(8)?)
    }

    fn word(&self, at: u64) -> Option<u64> {
        let i = self.0.partition_point(|p| p.0 <= at).checked_sub(1)?;
        let (start, b) = self.0.get(i)?;
        let from = usize::try_from(at - start).ok()?;
        Some(u64::from_le_bytes(
            b.get(from..from.checked_add(8)?)?.try_into().ok()?,
        ))
    }
}

struct Search<'a> {
    elf: &'a Elf,
    begins: &'a dyn Fn(u64) -> bool,
    data: Data,
    found: FxHashMap<u64, Vec<String>>,
}

impl Search<'_> {
    fn all(&mut self) {
        let ranges: Vec<(u64, u64)> = self
            .data
            .0
            .iter()
            .map(|(at, b)| (at.next_multiple_of(8), at + b.len() as u64))
            .collect();
        let mut owned: Vec<u64> = Vec::new();
        // Types first: they say whose their tables are.
        for &(from, to) in &ranges {
            for at in (from..to).step_by(8) {
                if let Some(name) = self.type_at(at) {
                    self.of_type(at, &name, &mut owned);
                } else if let Some((name, slots)) = self.spec_at(at) {
                    self.of_slots(slots, &name, &mut owned);
                }
            }
        }
        owned.sort_unstable();
        for &(from, to) in &ranges {
            let mut at = from;
            while at < to {
                // A table of functions that belong to no type: those of a module.
                let end = match owned.binary_search(&at) {
                    Ok(_) => at,
                    Err(_) => self.table(at, DEF, None),
                };
                at = end.max(at + 8);
            }
        }
    }

    fn call(&mut self, function: u64, name: String) {
        let names = self.found.entry(function).or_default();
        if names.len() <= NAMES_MAX && !names.contains(&name) {
            names.push(name);
        }
    }

    fn function(&self, at: u64) -> bool {
        let code = |s: &crate::elf::Segment| s.executable && at >= s.vaddr && at - s.vaddr < s.file_size;
        self.elf.segments.iter().any(code) && (self.begins)(at)
    }

    /// A name as Python has them.
    fn name(&self, at: u64) -> Option<String> {
        let offset = self.elf.offset_of_vaddr(at)?;
        let n = self.elf.source.len().saturating_sub(offset).min(NAME_MAX as u64) as usize;
        let mut b = [0u8; NAME_MAX];
        if !self.elf.source.read_at(offset, b.get_mut(..n)?) {
            return None;
        }
        let end = b.iter().position(|&c| c == 0)?;
        let text = std::str::from_utf8(b.get(..end)?).ok()?;
        let first = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let rest = text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
        (first && rest).then(|| text.to_owned())
    }

    /// Functions of a table of `PyMethodDef` (or `PyGetSetDef`) that starts here; where it ends.
    fn table(&mut self, start: u64, size: u64, owner: Option<&str>) -> u64 {
        let mut at = start;
        for _ in 0..TABLE_MAX {
            let words: Option<Vec<u64>> = (0..size / 8)
                .map(|i| self.data.word(at.checked_add(i * 8)?))
                .collect();
            let Some(words) = words else {
                break;
            };
            let (name, function) = (words[0], words[1]);
            // The flags of a method: how it is called, and the half of the word that nothing fills.
            let plain = size != DEF || (words[2] != 0 && words[2] < 0x400);
            if name == 0 || function == 0 || !plain || !self.function(function) {
                break;
            }
            let Some(name) = self.name(name) else {
                break;
            };
            let whole = owner.map_or_else(|| name.clone(), |o| format!("{o}.{name}"));
            self.call(function, whole);
            if size == GETSET && self.function(words[2]) {
                let whole = owner.map_or_else(|| name.clone(), |o| format!("{o}.{name} ="));
                self.call(words[2], whole);
            }
            at += size;
        }
        at
    }

    fn tables_of(&mut self, methods: Option<u64>, getset: Option<u64>, owner: &str, owned: &mut Vec<u64>) {
        for (table, size) in [(methods, DEF), (getset, GETSET)] {
            if let Some(table) = table.filter(|&t| t != 0) {
                let end = self.table(table, size, Some(owner));
                owned.extend((table..end).step_by(8));
            }
        }
    }

    /// The name of the `PyTypeObject` at this address.
    fn type_at(&self, at: u64) -> Option<String> {
        let word = |offset: u64| self.data.word(at.checked_add(offset)?);
        let none_or = |w: u64| w == 0 || self.function(w);
        let (items, basic, item, flags) = (word(16)?, word(32)?, word(40)?, word(168)?);
        let sane = items == 0 && (16..1 << 16).contains(&basic) && item < 1 << 12 && flags < 1 << 33;
        let name = word(24).filter(|&n| sane && n != 0)?;
        let functions = [48, 88, 128, 216, 224, 296, 304, 312, 320];
        let called = functions
            .iter()
            .filter(|&&o| word(o).is_some_and(|w| w != 0))
            .count();
        let fits = called > 0 && functions.iter().all(|&o| word(o).is_some_and(none_or));
        fits.then(|| self.name(name)).flatten()
    }

    fn of_type(&mut self, at: u64, name: &str, owned: &mut Vec<u64>) {
        let short = name.rsplit('.').next().unwrap_or(name);
        for (offset, what) in OF_TYPE {
            self.slot(self.data.word(at + offset), short, what);
        }
        for (offset, names) in GROUPS {
            let Some(group) = self.data.word(at + offset).filter(|&g| g != 0) else {
                continue;
            };
            for (i, what) in names.iter().enumerate().filter(|(_, n)| !n.is_empty()) {
                self.slot(self.data.word(group.wrapping_add(i as u64 * 8)), short, what);
            }
        }
        let (methods, getset) = (self.data.word(at + METHODS_AT), self.data.word(at + GETSET_AT));
        self.tables_of(methods, getset, short, owned);
    }

    fn slot(&mut self, function: Option<u64>, owner: &str, what: &str) {
        if let Some(function) = function.filter(|&f| f != 0 && self.function(f)) {
            self.call(function, format!("{owner}.{what}"));
        }
    }

    /// Name and slots of the `PyType_Spec` at this address.
    fn spec_at(&self, at: u64) -> Option<(String, u64)> {
        let word = |offset: u64| self.data.word(at.checked_add(offset)?);
        let slots = word(24)?;
        let first = self.data.word(slots).filter(|n| (1..=90).contains(n))?;
        let (sizes, flags) = (word(8)?, word(16)?);
        let sane = sizes & 0xffff_ffff < 1 << 16 && sizes >> 32 < 1 << 12 && flags < 1 << 32 && first > 0;
        let name = word(0).filter(|&n| sane && n != 0)?;
        Some((self.name(name)?, slots))
    }

    fn of_slots(&mut self, slots: u64, name: &str, owned: &mut Vec<u64>) {
        let short = name.rsplit('.').next().unwrap_or(name).to_owned();
        for i in 0..90u64 {
            let at = slots.saturating_add(i * 16);
            let (Some(number), Some(what)) = (self.data.word(at), self.data.word(at.saturating_add(8)))
            else {
                return;
            };
            match number {
                1..=90 => {}
                _ => return,
            }
            match number {
                SLOT_METHODS => self.tables_of(Some(what), None, &short, owned),
                SLOT_GETSET => self.tables_of(None, Some(what), &short, owned),
                _ => {
                    if let Some((_, called)) = SLOTS.iter().find(|s| s.0 == number) {
                        self.slot(Some(what), &short, called);
                    }
                }
            }
        }
    }
}
