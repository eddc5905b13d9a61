//! Functions of a library by pattern: where they are in the file, how they begin, where they end.

use std::fs::File;
use std::io;
use std::path::Path;

use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::read::ReadCache;
use object::{Endianness, Object, ObjectSymbol, ObjectSymbolTable, SymbolKind};
use rustc_hash::{FxHashMap, FxHashSet};

use super::exits::exits;
use super::groups::{fits, Functions, Group};

/// Bytes of code that are decoded for one function; a longer one is not timed.
const CODE_MAX: u64 = 1 << 20;

/// How a uprobe at an instruction is carried out, from cheap to dear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A five-byte nop: newer kernels put a call there.
    Nop,
    /// The kernel carries the instruction out itself (a push).
    Emulated,
    /// The instruction is stepped over, which is a second trap.
    Stepped,
}

/// How the end of a call is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Not wanted, or not to be had safely.
    Unseen,
    /// Probes at these offsets in the file.
    At(Vec<u64>),
    /// A return probe.
    Return,
}

/// A function that a group wants.
#[derive(Clone, Debug)]
pub struct Found {
    pub symbol: String,
    pub functions: &'static Functions,
    /// Of its first instruction in the file.
    pub offset: u64,
    pub entry: Entry,
    pub exit: Exit,
}

/// All functions of a file that these groups want, in the order of the groups. Errors: no ELF file of 64 bits.
///
/// The file may be anything: it is read in pieces and nothing in it is trusted.
pub fn find(path: &Path, groups: &[&'static Group]) -> io::Result<Vec<Vec<Found>>> {
    let cache = ReadCache::new(File::open(path)?);
    let elf = ElfFile64::<Endianness, _>::parse(&cache).map_err(io::Error::other)?;
    let segments = segments(&elf)?;
    let offset_of = |address: u64| {
        segments
            .iter()
            .find(|(start, end, _)| (*start..*end).contains(&address))
            .map(|(start, _, offset)| offset + (address - start))
    };
    let cold = if groups.iter().any(|g| g.functions.iter().any(ends_wanted)) {
        cold_parts(&elf)
    } else {
        FxHashMap::default()
    };
    Ok(groups
        .iter()
        .map(|group| {
            let mut seen = FxHashSet::default();
            let mut found = Vec::new();
            for (symbol, address, size, functions) in wanted(&elf, group) {
                let Some(offset) = offset_of(address) else { continue };
                if !seen.insert(offset) {
                    continue; // an alias
                }
                let code = code_at(&cache, offset, size);
                found.push(Found {
                    entry: entry(code.unwrap_or(&[])),
                    exit: exit(functions, code.unwrap_or(&[]), address, offset, &symbol, &cold),
                    symbol,
                    functions,
                    offset,
                });
            }
            found
        })
        .collect())
}

type Elf<'a> = ElfFile64<'a, Endianness, &'a ReadCache<File>>;

fn segments(elf: &Elf<'_>) -> io::Result<Vec<(u64, u64, u64)>> {
    let endian = elf.endian();
    let headers = elf
        .elf_header()
        .program_headers(endian, elf.data())
        .map_err(io::Error::other)?;
    Ok(headers
        .iter()
        .filter(|p| p.p_type(endian) == object::elf::PT_LOAD && p.p_flags(endian) & object::elf::PF_X != 0)
        .filter_map(|p| {
            let start = p.p_vaddr(endian);
            Some((start, start.checked_add(p.p_filesz(endian))?, p.p_offset(endian)))
        })
        .collect())
}

fn wanted(elf: &Elf<'_>, group: &Group) -> Vec<(String, u64, u64, &'static Functions)> {
    let mut out = Vec::new();
    let tables = [elf.dynamic_symbol_table(), group.local.then(|| elf.symbol_table()).flatten()];
    for table in tables.into_iter().flatten() {
        for symbol in table.symbols() {
            if symbol.kind() != SymbolKind::Text || !symbol.is_definition() || symbol.address() == 0 {
                continue;
            }
            let Ok(name) = symbol.name() else { continue };
            if name.ends_with(".cold") || name.contains(".cold.") {
                continue;
            }
            // Versions and variants for streams per thread are the same function to whoever looks at it.
            let plain = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name);
            let Some(functions) = group.functions.iter().find(|f| fits(f.symbols, plain)) else { continue };
            out.push((name.to_owned(), symbol.address(), symbol.size(), functions));
        }
    }
    out
}

fn ends_wanted(functions: &Functions) -> bool {
    use super::groups::What;
    functions.timed || matches!(functions.what, What::Alloc | What::Realloc)
}

/// The parts of functions that the compiler moved away, by the name of the function.
fn cold_parts(elf: &Elf<'_>) -> FxHashMap<String, (u64, u64)> {
    let mut out = FxHashMap::default();
    for symbol in elf.symbol_table().into_iter().flat_map(|t| t.symbols()) {
        if let Ok(name) = symbol.name() {
            if let Some(of) = name.strip_suffix(".cold") {
                out.insert(of.to_owned(), (symbol.address(), symbol.address().saturating_add(symbol.size())));
            }
        }
    }
    out
}

fn code_at(cache: &ReadCache<File>, offset: u64, size: u64) -> Option<&[u8]> {
    use object::ReadRef;
    if size > CODE_MAX {
        return None;
    }
    // Without a size the first bytes still say how it begins.
    cache.read_bytes_at(offset, if size == 0 { 16 } else { size }).ok()
}

fn entry(code: &[u8]) -> Entry {
    match code {
        [0x0f, 0x1f, 0x44, 0x00, 0x00, ..] => Entry::Nop,
        [0x50..=0x57, ..] | [0x41, 0x50..=0x57, ..] | [0xe9 | 0xeb | 0x90, ..] => Entry::Emulated,
        _ => Entry::Stepped,
    }
}

fn exit(
    functions: &Functions,
    code: &[u8],
    address: u64,
    offset: u64,
    symbol: &str,
    cold: &FxHashMap<String, (u64, u64)>,
) -> Exit {
    if !ends_wanted(functions) {
        return Exit::Unseen;
    }
    let own = cold.get(symbol).copied().unwrap_or_default();
    match exits(code, address, |to| (own.0..own.1).contains(&to)) {
        Some(at) => Exit::At(at.into_iter().map(|n| offset + n).collect()),
        None if functions.plain_c => Exit::Return,
        None => Exit::Unseen,
    }
}
