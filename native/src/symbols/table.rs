//! Function symbols of one file: `.symtab`, its own or one kept elsewhere, and `.dynsym`. Kept compactly (12 bytes a symbol; names stay in the file).

use std::sync::Arc;

use crate::elf::{Elf, Section, Source};

const SHT_SYMTAB: u32 = 2;
const SHT_DYNSYM: u32 = 11;
const SYMBOL_SIZE: u64 = 24;
const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;

/// At most so many symbols of a file are read.
const SYMBOLS_MAX: u64 = 8 << 20;
/// Longer names are cut off.
const NAME_MAX: usize = 4096;
/// Symbols at the same address that are compared by name.
const ALIASES_MAX: usize = 16;
const PIECE: usize = 24 << 12;
/// Room that is made for symbols before any is read.
const FIRST_ROOM: u64 = 1 << 19;

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    pub start: u64,
    /// As the linker knows it, mangled.
    pub name: String,
}

#[derive(Clone, Copy)]
struct Entry {
    start: u32,
    size: u32,
    /// Place of the name in the string table, and in the two highest bits the rank among aliases.
    name: u32,
}

/// Symbols of a file.
#[derive(Default)]
pub struct Symbols {
    tables: Vec<Table>,
    /// There was a full symbol table: a gap between its symbols is no function without a name.
    pub full: bool,
    /// Instead of the above, in recordings.
    list: Vec<(u64, u64, String)>,
}

/// One symbol table, sorted by address.
struct Table {
    base: u64,
    entries: Vec<Entry>,
    names: Names,
}

struct Names {
    source: Arc<dyn Source>,
    offset: u64,
    size: u64,
}

impl Symbols {
    /// `.symtab`; where the file was stripped of it that of `elsewhere`, with `.dynsym` for what only that has.
    pub fn read(elf: &Elf, elsewhere: Option<&Elf>) -> Symbols {
        let base = elf.segments.iter().map(|s| s.vaddr).min().unwrap_or(0) & !4095;
        let read = |elf: &Elf, kind| {
            let mut sections = elf.sections.iter();
            let section = sections.find(|s| s.kind == kind && s.size >= SYMBOL_SIZE * 2)?;
            Table::read(elf, section, base).filter(|t| !t.entries.is_empty())
        };
        if let Some(own) = read(elf, SHT_SYMTAB) {
            return Symbols {
                tables: vec![own],
                full: true,
                ..Symbols::default()
            };
        }
        let other = elsewhere.and_then(|e| read(e, SHT_SYMTAB));
        Symbols {
            full: other.is_some(),
            tables: other.into_iter().chain(read(elf, SHT_DYNSYM)).collect(),
            ..Symbols::default()
        }
    }

    /// Symbols that are known otherwise: start, size, mangled name.
    pub fn of_list(mut list: Vec<(u64, u64, String)>) -> Symbols {
        list.sort();
        Symbols {
            list,
            ..Symbols::default()
        }
    }

    pub fn len(&self) -> usize {
        self.tables.iter().map(|t| t.entries.len()).sum::<usize>() + self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The function that holds an address. Of several names for one function the plainest is taken.
    pub fn find(&self, vaddr: u64) -> Option<Symbol> {
        self.find_sized(vaddr).map(|(symbol, _)| symbol)
    }

    /// As above, with the function's size (0: not known).
    pub fn find_sized(&self, vaddr: u64) -> Option<(Symbol, u64)> {
        if !self.list.is_empty() {
            let i = self.list.partition_point(|s| s.0 <= vaddr).checked_sub(1)?;
            let (start, size, name) = self.list.get(i)?.clone();
            return (size == 0 || vaddr - start < size).then_some((Symbol { start, name }, size));
        }
        // One with a size holds the address for sure; of those without, the nearest. The first table is the fuller one.
        let found = self.tables.iter().filter_map(|t| Some((t, t.find(vaddr)?)));
        let (table, entry) = found.reduce(|best, next| {
            let rank = |e: &Entry| (e.size > 0, e.start);
            if rank(&next.1) > rank(&best.1) {
                next
            } else {
                best
            }
        })?;
        let symbol = Symbol {
            start: table.base.wrapping_add(entry.start.into()),
            name: table.plainest_name(entry)?,
        };
        Some((symbol, u64::from(entry.size)))
    }

    /// The addresses around this one in which no other symbol starts: as far as it reaches, one answer holds for them.
    pub fn span(&self, vaddr: u64) -> Option<(u64, u64)> {
        let spans = self.tables.iter().map(|t| t.span(vaddr));
        spans.reduce(|a, b| (a.0.max(b.0), a.1.min(b.1)))
    }

    /// Address of a symbol by its name; looks at all of them.
    pub fn address_of(&self, wanted: &str) -> Option<u64> {
        if let Some(s) = self.list.iter().find(|s| s.2 == wanted) {
            return Some(s.0);
        }
        self.tables.iter().find_map(|t| t.address_of(wanted))
    }
}

impl Table {
    /// `base`: where the file that the symbols are of begins.
    fn read(elf: &Elf, section: &Section, base: u64) -> Option<Table> {
        let strings = elf.sections.get(section.link as usize)?;
        let count = (section.size / SYMBOL_SIZE)
            .min(SYMBOLS_MAX)
            .min(elf.source.len() / SYMBOL_SIZE);
        let mut table = Table {
            base,
            names: Names {
                source: elf.source.clone(),
                offset: strings.offset,
                size: strings.size,
            },
            entries: Vec::with_capacity(count.min(FIRST_ROOM) as usize),
        };
        let mut piece = vec![0u8; PIECE];
        let mut left = count * SYMBOL_SIZE;
        let mut at = section.offset;
        while left > 0 {
            let n = left.min(PIECE as u64) as usize;
            if !elf.source.read_bulk(at, &mut piece[..n]) {
                break;
            }
            for b in piece[..n].chunks_exact(24) {
                if let Some(entry) = entry(b, base) {
                    table.entries.push(entry);
                }
            }
            at = at.checked_add(n as u64)?;
            left -= n as u64;
        }
        sort(&mut table.entries);
        table.entries.shrink_to_fit();
        Some(table)
    }

    fn find(&self, vaddr: u64) -> Option<Entry> {
        let far = u32::try_from(vaddr.checked_sub(self.base)?).ok()?;
        let end = self.entries.partition_point(|e| e.start <= far);
        // A symbol of a smaller part may start within a larger one: look at a few before.
        let mut start = None;
        for e in self.entries[..end].iter().rev().take(ALIASES_MAX) {
            if start.is_some_and(|s: Entry| s.start != e.start) {
                break;
            }
            let holds = far - e.start < e.size;
            if holds && start.is_none_or(|s: Entry| s.size == 0) || start.is_none() && e.size == 0 {
                start = Some(*e);
            }
        }
        start
    }

    fn span(&self, vaddr: u64) -> (u64, u64) {
        let start_of = |e: &Entry| self.base.wrapping_add(e.start.into());
        let next = self.entries.partition_point(|e| start_of(e) <= vaddr);
        let from = next
            .checked_sub(1)
            .and_then(|i| self.entries.get(i))
            .map_or(0, start_of);
        (from, self.entries.get(next).map_or(u64::MAX, start_of))
    }

    fn plainest_name(&self, of: Entry) -> Option<String> {
        let from = self.entries.partition_point(|e| e.start < of.start);
        let aliases = self.entries.get(from..)?.iter();
        let aliases = aliases.take_while(|e| e.start == of.start).take(ALIASES_MAX);
        let named = aliases.filter_map(|e| Some((e.name >> 30, self.name(e.name & NAME_BITS)?)));
        let (_, name) = named.min_by_key(|(rank, name)| {
            (
                name.starts_with('_') && !name.starts_with("_Z"),
                *rank,
                name.len(),
            )
        })?;
        Some(name)
    }

    fn address_of(&self, wanted: &str) -> Option<u64> {
        let named = |e: &&Entry| self.name(e.name & NAME_BITS).is_some_and(|n| n == wanted);
        let found = self.entries.iter().find(named)?;
        Some(self.base.wrapping_add(found.start.into()))
    }

    fn name(&self, at: u32) -> Option<String> {
        let names = &self.names;
        string_at(&*names.source, names.offset, names.size, u64::from(at))
    }
}

/// Sorts by start, digit by digit: large libraries have hundreds of thousands, for which comparing takes several times as
/// long, and that is most of what it takes to read them.
fn sort(entries: &mut Vec<Entry>) {
    const BITS: u32 = 16;
    let mask = (1usize << BITS) - 1;
    if entries.is_sorted_by_key(|e| e.start) {
        return;
    }
    let highest = entries.iter().map(|e| e.start).max().unwrap_or(0);
    let mut other = entries.clone();
    let mut shift = 0;
    while shift < u32::BITS && highest >> shift > 0 {
        let digit = |e: &Entry| (e.start >> shift) as usize & mask;
        let mut ends = vec![0u32; mask + 1];
        for e in entries.iter() {
            ends[digit(e)] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            sum += std::mem::replace(end, sum);
        }
        for e in entries.iter() {
            let place = &mut ends[digit(e)];
            other[*place as usize] = *e;
            *place += 1;
        }
        std::mem::swap(entries, &mut other);
        shift += BITS;
    }
}

const NAME_BITS: u32 = (1 << 30) - 1;

/// A zero-terminated string of a string table.
pub fn string_at(source: &dyn Source, table: u64, size: u64, at: u64) -> Option<String> {
    let mut out = Vec::new();
    let mut b = [0u8; 128];
    while out.len() < NAME_MAX {
        let from = at.checked_add(out.len() as u64)?;
        let n = size.checked_sub(from)?.min(128) as usize;
        if n == 0 || !source.read_at(table.checked_add(from)?, &mut b[..n]) {
            break;
        }
        match b[..n].iter().position(|&c| c == 0) {
            Some(end) => {
                out.extend_from_slice(&b[..end]);
                break;
            }
            None => out.extend_from_slice(&b[..n]),
        }
    }
    (!out.is_empty()).then(|| String::from_utf8_lossy(&out).into_owned())
}

fn entry(b: &[u8], base: u64) -> Option<Entry> {
    let name = u32::from_le_bytes(b.get(..4)?.try_into().ok()?);
    let (kind, bind) = (b[4] & 15, b[4] >> 4);
    let section = u16::from_le_bytes(b.get(6..8)?.try_into().ok()?);
    let value = u64::from_le_bytes(b.get(8..16)?.try_into().ok()?);
    let size = u64::from_le_bytes(b.get(16..24)?.try_into().ok()?);
    // Labels of hand-written code have no type; those without a size would swallow what follows them.
    let code = matches!(kind, STT_FUNC | STT_GNU_IFUNC) || (kind == STT_NOTYPE && size > 0);
    if !code || section == 0 || section >= 0xff00 || value == 0 || name == 0 || name > NAME_BITS {
        return None;
    }
    let rank = match bind {
        1 => 0u32, // global
        2 => 1,    // weak
        _ => 2,
    };
    Some(Entry {
        start: u32::try_from(value.checked_sub(base)?).ok()?,
        size: u32::try_from(size).unwrap_or(u32::MAX),
        name: name | rank << 30,
    })
}

/// Finds a data or function symbol by its exact name in `.dynsym`, else in `.symtab`: (address, size).
pub fn find_by_name(elf: &Elf, wanted: &str) -> Option<(u64, u64)> {
    [SHT_DYNSYM, SHT_SYMTAB].into_iter().find_map(|kind| {
        let section = elf.sections.iter().find(|s| s.kind == kind)?;
        let strings = elf.sections.get(section.link as usize)?;
        let count = (section.size / SYMBOL_SIZE)
            .min(SYMBOLS_MAX)
            .min(elf.source.len() / SYMBOL_SIZE);
        let mut b = [0u8; 24];
        let mut text = vec![0u8; wanted.len() + 1];
        (0..count).find_map(|i| {
            if !elf
                .source
                .read_at(section.offset.checked_add(i * SYMBOL_SIZE)?, &mut b)
            {
                return None;
            }
            let name = u64::from(u32::from_le_bytes(b[..4].try_into().ok()?));
            let defined = u16::from_le_bytes(b[6..8].try_into().ok()?) != 0;
            let fits = name.checked_add(text.len() as u64)? <= strings.size;
            if !defined || !fits || !elf.source.read_at(strings.offset.checked_add(name)?, &mut text) {
                return None;
            }
            let equal = text.last() == Some(&0) && text[..wanted.len()] == *wanted.as_bytes();
            let value = u64::from_le_bytes(b[8..16].try_into().ok()?);
            let size = u64::from_le_bytes(b[16..24].try_into().ok()?);
            (equal && value != 0).then_some((value, size))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_sorted_by_where_they_start_and_aliases_stay_in_their_order() {
        let mut next = 1u32;
        for count in [0usize, 1, 2, 3, 100, 5_000] {
            for bits in [1, 9, 11, 12, 22, 23, 32] {
                let mut entries: Vec<Entry> = (0..count as u32)
                    .map(|name| {
                        next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        Entry {
                            start: next >> (32 - bits),
                            size: name,
                            name,
                        }
                    })
                    .collect();
                let mut wanted = entries.clone();
                wanted.sort_by_key(|e| e.start);
                sort(&mut entries);
                assert!(entries
                    .iter()
                    .zip(&wanted)
                    .all(|(a, b)| (a.start, a.name) == (b.start, b.name)));
            }
        }
    }
}
