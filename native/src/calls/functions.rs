//! Functions of a library by pattern: where they are in the file, how they begin, where they end.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::exits::{exits, Exits};
use super::groups::{fits, Functions, Group, What};
use crate::elf::{Elf, FileSource, Source};

/// Bytes of code that are decoded for one function; a longer one is not timed.
const CODE_MAX: u64 = 1 << 20;
/// Bytes of a symbol or string table; a file with a larger one is none that we know.
const TABLE_MAX: u64 = 256 << 20;
const SYMBOL: usize = 24;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;

/// How a uprobe at an instruction is carried out, from cheap to dear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A five-byte nop: newer kernels put a call there.
    Nop,
    /// The kernel carries the instruction out itself (a push, a jump).
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
pub struct FoundFunction {
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
pub fn find(path: &Path, groups: &[&'static Group]) -> io::Result<Vec<Vec<FoundFunction>>> {
    let source: Arc<dyn Source> = Arc::new(FileSource::new(File::open(path)?)?);
    let elf = Elf::parse(source).ok_or_else(|| io::Error::other("no ELF file of 64 bits"))?;
    Ok(find_in(&elf, groups))
}

/// As above, in a file whose headers are read.
pub fn find_in(elf: &Elf, groups: &[&'static Group]) -> Vec<Vec<FoundFunction>> {
    let patterns: Vec<Patterns> = groups.iter().map(|g| Patterns::of(g)).collect();
    let mut found: Vec<Vec<Candidate>> = groups.iter().map(|_| Vec::new()).collect();
    for (table, local) in [(".dynsym", false), (".symtab", true)] {
        if local && !groups.iter().any(|g| g.local) {
            continue;
        }
        let Some(table) = Table::read(elf, table) else {
            continue;
        };
        for ((group, patterns), found) in groups.iter().zip(&patterns).zip(&mut found) {
            if !local || group.local {
                candidates(elf, &table, patterns, found);
            }
        }
    }
    let away: FxHashSet<u64> = found
        .iter()
        .flatten()
        .flat_map(|c| c.outside().iter().copied())
        .collect();
    let cold = cold_parts(elf, away);
    let finish = |c: Candidate| {
        let exit = c.exit(&cold);
        FoundFunction {
            symbol: c.symbol,
            functions: c.functions,
            offset: c.offset,
            entry: c.entry,
            exit,
        }
    };
    found
        .into_iter()
        .map(|list| list.into_iter().map(finish).collect())
        .collect()
}

/// The patterns of a group, taken apart once.
struct Patterns {
    each: Vec<(&'static str, &'static Functions)>,
    /// What each begins with, before its first `*`.
    begins: Vec<&'static [u8]>,
    /// What all of them begin with.
    common: &'static [u8],
}

impl Patterns {
    fn of(group: &Group) -> Patterns {
        let each = |f: &'static Functions| f.symbols.split('|').map(move |p| (p.trim(), f));
        let each: Vec<_> = group.functions.iter().flat_map(each).collect();
        let begin = |pattern: &'static str| pattern.split('*').next().unwrap_or("").as_bytes();
        let begins: Vec<&[u8]> = each.iter().map(|(pattern, _)| begin(pattern)).collect();
        let common = begins.iter().copied().reduce(|common, begin| {
            let same = common.iter().zip(begin).take_while(|(a, b)| a == b).count();
            &common[..same]
        });
        Patterns {
            common: common.unwrap_or_default(),
            begins,
            each,
        }
    }

    /// Whether a name may fit, by its beginning: `name` may be longer. Nearly all of half a million do not.
    fn may_fit(&self, name: &[u8]) -> bool {
        name.starts_with(self.common) && self.begins.iter().any(|begin| name.starts_with(begin))
    }

    fn functions(&self, symbol: &str) -> Option<&'static Functions> {
        self.each
            .iter()
            .find(|(pattern, _)| fits(pattern, symbol))
            .map(|(_, f)| *f)
    }
}

struct Candidate {
    symbol: String,
    functions: &'static Functions,
    offset: u64,
    entry: Entry,
    /// Decoded only where it is wanted.
    exits: Option<Exits>,
}

impl Candidate {
    fn outside(&self) -> &[u64] {
        self.exits.as_ref().map_or(&[], |e| &e.outside)
    }

    /// A return probe is the cheaper one (a `ret` has to be stepped over). But while a call lasts it hides the callers
    /// from whoever unwinds the stack: not for calls that take long, and never where an exception may come by.
    fn exit(&self, cold: &FxHashMap<u64, String>) -> Exit {
        let functions = self.functions;
        if !ends_wanted(functions) {
            return Exit::Unseen;
        }
        if functions.plain_c && !functions.span {
            return Exit::Return;
        }
        let own = |to: &u64| {
            cold.get(to)
                .is_some_and(|name| name.strip_suffix(".cold") == Some(&self.symbol))
        };
        match &self.exits {
            Some(e) if !e.returns.is_empty() && e.outside.iter().all(own) => {
                Exit::At(e.returns.iter().map(|n| self.offset + n).collect())
            }
            _ if functions.plain_c => Exit::Return,
            _ => Exit::Unseen,
        }
    }
}

fn ends_wanted(functions: &Functions) -> bool {
    functions.timed
        || matches!(
            functions.what,
            What::Alloc | What::Realloc | What::AllocInner | What::Break
        )
}

/// A symbol table with its names, in memory while it is searched.
struct Table {
    symbols: Vec<u8>,
    names: Vec<u8>,
}

impl Table {
    fn read(elf: &Elf, name: &str) -> Option<Table> {
        let section = elf.section(name)?;
        let names = elf.sections.get(section.link as usize)?;
        let bulk = |offset, size: u64| {
            if size > TABLE_MAX.min(elf.source.len()) {
                return None;
            }
            let mut bytes = vec![0; size as usize];
            elf.source.read_bulk(offset, &mut bytes).then_some(bytes)
        };
        Some(Table {
            symbols: bulk(section.offset, section.size)?,
            names: bulk(names.offset, names.size)?,
        })
    }

    /// Functions that are defined and whose names may fit: name, address, size.
    fn functions<'a>(&'a self, patterns: &'a Patterns) -> impl Iterator<Item = (&'a str, u64, u64)> {
        self.symbols.chunks_exact(SYMBOL).filter_map(|raw| {
            let symbol = Symbol::of(raw)?;
            let name = self.names.get(symbol.name as usize..)?;
            if !patterns.may_fit(name) {
                return None;
            }
            let name = std::ffi::CStr::from_bytes_until_nul(name).ok()?.to_str().ok()?;
            Some((name, symbol.address, symbol.size))
        })
    }
}

struct Symbol {
    name: u32,
    address: u64,
    size: u64,
}

impl Symbol {
    /// Nothing for what is no function or not defined here.
    fn of(raw: &[u8]) -> Option<Symbol> {
        let u64_at = |at: usize| Some(u64::from_le_bytes(raw.get(at..at + 8)?.try_into().ok()?));
        let kind = raw.get(4)? & 15;
        let section = u16::from_le_bytes([*raw.get(6)?, *raw.get(7)?]);
        let address = u64_at(8)?;
        // The address of an indirect function is that of its resolver, which runs once.
        if kind == STT_GNU_IFUNC || kind != STT_FUNC || section == 0 || address == 0 {
            return None;
        }
        Some(Symbol {
            name: u32::from_le_bytes(raw.get(..4)?.try_into().ok()?),
            address,
            size: u64_at(16)?,
        })
    }
}

fn candidates(elf: &Elf, table: &Table, patterns: &Patterns, into: &mut Vec<Candidate>) {
    let mut seen: FxHashSet<u64> = into.iter().map(|c| c.offset).collect();
    for (name, address, size) in table.functions(patterns) {
        if name.ends_with(".cold") || name.contains(".cold.") {
            continue;
        }
        // Variants for streams per thread are the same function to whoever looks at it.
        let plain = name
            .strip_suffix("_ptsz")
            .or_else(|| name.strip_suffix("_ptds"))
            .unwrap_or(name);
        let Some(functions) = patterns.functions(plain) else {
            continue;
        };
        let inside = elf
            .segments
            .iter()
            .any(|s| s.executable && address >= s.vaddr && address - s.vaddr < s.file_size);
        let Some(offset) = elf.offset_of_vaddr(address).filter(|_| inside) else {
            continue;
        };
        if !seen.insert(offset) {
            continue; // an alias
        }
        let decoded = ends_wanted(functions) && size <= CODE_MAX;
        // Without a size the first bytes still say how it begins.
        let mut code = vec![0; if decoded && size > 0 { size as usize } else { 5 }];
        if !elf.source.read_at(offset, &mut code) {
            continue;
        }
        into.push(Candidate {
            symbol: name.to_owned(),
            functions,
            offset,
            entry: entry(&code),
            exits: (decoded && size > 0).then(|| exits(&code, address)).flatten(),
        });
    }
}

/// The names of the symbols that these addresses lie in.
///
/// Reads no name but theirs: a table of half a million symbols has a hundred megabytes of names.
fn cold_parts(elf: &Elf, addresses: FxHashSet<u64>) -> FxHashMap<u64, String> {
    let mut out = FxHashMap::default();
    let mut addresses: Vec<u64> = addresses.into_iter().collect();
    addresses.sort_unstable();
    let Some(section) = elf.section(".symtab").filter(|_| !addresses.is_empty()) else {
        return out;
    };
    let Some(names) = elf.sections.get(section.link as usize) else {
        return out;
    };
    let mut piece = vec![0u8; SYMBOL * (64 << 10)];
    let mut at = 0;
    while at < section.size.min(TABLE_MAX) {
        let n = (section.size - at).min(piece.len() as u64) as usize;
        if !elf
            .source
            .read_bulk(section.offset.saturating_add(at), &mut piece[..n])
        {
            break;
        }
        at += n as u64;
        for symbol in piece[..n].chunks_exact(SYMBOL).filter_map(Symbol::of) {
            let end = symbol.address.saturating_add(symbol.size);
            let from = addresses.partition_point(|&a| a < symbol.address);
            let inside = addresses[from..].iter().take_while(|&&a| a < end);
            for &address in inside {
                let mut name = [0u8; 4096];
                let o = names.offset.saturating_add(u64::from(symbol.name));
                let n = elf.source.len().saturating_sub(o).min(4096) as usize;
                let text = elf.source.read_at(o, &mut name[..n]).then_some(&name[..n]);
                let text = text.and_then(|t| std::ffi::CStr::from_bytes_until_nul(t).ok()?.to_str().ok());
                if let Some(text) = text.filter(|t| t.ends_with(".cold")) {
                    out.insert(address, text.to_owned());
                }
            }
        }
    }
    out
}

fn entry(code: &[u8]) -> Entry {
    match code {
        [0x0f, 0x1f, 0x44, 0x00, 0x00, ..] => Entry::Nop,
        [0x50..=0x57, ..] | [0x41, 0x50..=0x57, ..] | [0xe9 | 0xeb | 0x90, ..] => Entry::Emulated,
        _ => Entry::Stepped,
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::GROUPS;
    use super::*;

    #[test]
    fn malloc_is_found_in_the_c_library_of_this_process() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let Some(libc) = maps
            .lines()
            .filter_map(|l| l.split_whitespace().nth(5))
            .find(|p| p.contains("/libc.so"))
        else {
            return; // a static build has none
        };
        let group = GROUPS.iter().find(|g| g.name == "malloc").unwrap();
        let found = find(Path::new(libc), &[group]).unwrap().remove(0);
        for name in ["malloc", "calloc", "realloc", "posix_memalign"] {
            let f = found.iter().find(|f| f.symbol == name).unwrap();
            assert_eq!(f.exit, Exit::Return, "{name}");
        }
        assert_eq!(
            found.iter().find(|f| f.symbol == "free").unwrap().exit,
            Exit::Unseen
        );
    }

    #[test]
    fn no_name_that_fits_a_group_is_passed_over_by_its_beginning() {
        let names = [
            "_ZN2at4_ops5addmm4callE",
            "malloc",
            "cudaMalloc",
            "ncclAllReduce",
            "xmalloc",
            "_Z",
            "",
        ];
        for group in GROUPS {
            let patterns = Patterns::of(group);
            for name in names {
                let followed = [name.as_bytes(), b"\0another"].concat();
                assert!(
                    patterns.functions(name).is_none() || patterns.may_fit(&followed),
                    "{name}"
                );
            }
        }
        let malloc = GROUPS.iter().find(|g| g.name == "malloc").unwrap();
        assert!(!Patterns::of(malloc).may_fit(b"xmalloc\0"));
    }

    #[test]
    fn what_is_no_library_is_an_error_and_what_is_cut_short_is_empty() {
        let path = std::env::temp_dir().join(format!("calls-functions-{}", std::process::id()));
        std::fs::write(&path, b"\x7fELF and no more").unwrap();
        assert!(find(&path, &[&GROUPS[0]]).is_err());
        let own = std::fs::read("/proc/self/exe").unwrap();
        std::fs::write(&path, &own[..own.len() / 2]).unwrap();
        let cut = find(&path, &[&GROUPS[0]]);
        std::fs::remove_file(&path).unwrap();
        assert!(cut.is_ok_and(|groups| groups[0].is_empty()));
    }
}
