//! A file that code was loaded from: its unwind data and its symbols, shared by all processes that use it.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use rustc_hash::FxHashMap;

use crate::elf::{build_id_of_notes, Elf, FileSource, Source, EM_X86_64};
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::ranges::Ranges;
use crate::symbols::{
    debug, demangle, find_by_name, is_stub_name, roots, stubs_at, Methods, Stubs, Symbol, Symbols,
};
use crate::unwind::{Arch, Cfa, FoundRule, UnwindTable};

/// The function that runs Python code.
pub const LOOP: &str = "_PyEval_EvalFrameDefault";

/// Longer code at the entry of a file is more than the few instructions that a program starts with.
const START_MAX: u64 = 64;

/// The name of a function, and where it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFunction {
    pub start: u64,
    pub size: u64,
    /// As the linker knows it.
    pub raw: String,
}

/// Symbols that were asked for: what a recording keeps of a symbol table. Start, size, name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskedSymbols {
    /// Functions by an address in them.
    pub functions: Vec<(u64, u64, String)>,
    /// Symbols by their name.
    pub asked: Vec<(u64, u64, String)>,
}

/// Unwind data and symbols of one file. Addresses are the file's own.
pub struct Image {
    /// File name without its directory.
    pub name: String,
    pub elf: Elf,
    table: UnwindTable,
    symbols: OnceLock<Symbols>,
    /// What holds the symbols that this file was stripped of.
    elsewhere: OnceLock<Option<Elf>>,
    stubs: Stubs,
    /// What Python calls the functions of a file that belongs to it.
    methods: OnceLock<Methods>,
    /// Symbols come from there, and what was asked is kept.
    plain: Option<(Arc<Image>, Mutex<AskedSymbols>)>,
    /// Symbols by name come from here.
    asked: Option<Vec<(u64, u64, String)>>,
    /// Parts of the interpreter's loop that the compiler moved elsewhere and that have no symbol.
    loop_parts: OnceLock<Vec<(u64, u64)>>,
    /// What was found before: samples fall into the same functions again and again.
    rows: Mutex<Ranges<FoundRule>>,
    named: Mutex<Ranges<Arc<NamedFunction>>>,
    /// Demangled names by the start of their function.
    shown: Mutex<FxHashMap<u64, Arc<str>>>,
}

impl Image {
    /// Nothing for what is no ELF file.
    pub fn new(name: &str, source: Arc<dyn Source>) -> Option<Image> {
        let elf = Elf::parse(source)?;
        Some(Image {
            name: name.to_owned(),
            table: UnwindTable::new(elf.clone()),
            elf,
            symbols: OnceLock::new(),
            elsewhere: OnceLock::new(),
            stubs: Stubs::default(),
            methods: OnceLock::new(),
            plain: None,
            asked: None,
            loop_parts: OnceLock::new(),
            rows: Mutex::default(),
            named: Mutex::default(),
            shown: Mutex::default(),
        })
    }

    /// The same file with its bytes from another source, and a record of the symbols that are asked for.
    pub(crate) fn telling(plain: Arc<Image>, source: Arc<dyn Source>) -> Option<Image> {
        let mut image = Self::new(&plain.name, source)?;
        image.plain = Some((plain, Mutex::default()));
        Some(image)
    }

    /// A file of which only those symbols are known.
    pub(crate) fn told_before(name: &str, source: Arc<dyn Source>, told: AskedSymbols) -> Option<Image> {
        let mut image = Self::new(name, source)?;
        let _ = image.symbols.set(Symbols::of_list(told.functions));
        image.asked = Some(told.asked);
        Some(image)
    }

    pub(crate) fn told(&self) -> AskedSymbols {
        let told =
            |(_, told): &(_, Mutex<AskedSymbols>)| told.lock().unwrap_or_else(|e| e.into_inner()).clone();
        self.plain.as_ref().map(told).unwrap_or_default()
    }

    fn tell(&self, note: impl FnOnce(&mut AskedSymbols)) {
        if let Some((_, told)) = &self.plain {
            note(&mut told.lock().unwrap_or_else(|e| e.into_inner()));
        }
    }

    pub fn unwind(&self, vaddr: u64) -> Option<FoundRule> {
        let known = self.rows.lock().unwrap_or_else(|e| e.into_inner()).find(vaddr);
        if known.is_some() {
            return known;
        }
        let found = self.table.find(vaddr)?;
        let mut rows = self.rows.lock().unwrap_or_else(|e| e.into_inner());
        rows.keep(found.holds.0, found.holds.1, found.clone());
        Some(found)
    }

    pub fn symbols(&self) -> &Symbols {
        match &self.plain {
            Some((plain, _)) => plain.symbols(),
            None => self
                .symbols
                .get_or_init(|| Symbols::read(&self.elf, self.elsewhere())),
        }
    }

    fn elsewhere(&self) -> Option<&Elf> {
        self.elsewhere.get_or_init(|| debug::unpacked(&self.elf)).as_ref()
    }

    pub fn symbol(&self, vaddr: u64) -> Option<Arc<NamedFunction>> {
        let known = self.named.lock().unwrap_or_else(|e| e.into_inner()).find(vaddr);
        if known.is_some() {
            return known;
        }
        let (symbol, (from, to), size) = match &self.plain {
            Some((plain, _)) => plain.find(vaddr)?,
            None => self.find(vaddr)?,
        };
        self.tell(|told| {
            let entry = (symbol.start, size, symbol.name.clone());
            if !told.functions.contains(&entry) {
                told.functions.push(entry);
            }
        });
        let named = Arc::new(NamedFunction {
            start: symbol.start,
            size,
            raw: symbol.name,
        });
        let mut known = self.named.lock().unwrap_or_else(|e| e.into_inner());
        known.keep(from, to, named.clone());
        Some(named)
    }

    /// A symbol, the addresses that it is the answer for, and its size.
    fn find(&self, vaddr: u64) -> Option<(Symbol, (u64, u64), u64)> {
        // Before a section of stubs stands a function without a size: it would swallow them.
        let stub = self.is_stub(vaddr);
        if let Some((symbol, size)) = stub.then(|| self.stubs.find(&self.elf, vaddr)).flatten() {
            let holds = (symbol.start, symbol.start.saturating_add(size));
            return Some((symbol, holds, size));
        }
        let found = self.symbols().find_sized(vaddr);
        if stub {
            let (symbol, size) = found.filter(|f| is_stub_name(&f.0.name))?;
            return Some((symbol, (vaddr, vaddr.saturating_add(1)), size));
        }
        let function = || self.unwind(vaddr);
        match found {
            Some((symbol, size)) if size > 0 => {
                let (from, to) = self
                    .symbols()
                    .span(vaddr)
                    .unwrap_or((vaddr, vaddr.saturating_add(1)));
                let end = to.min(symbol.start.saturating_add(size));
                // A smaller function may begin within this one: what lies before the address may be of that.
                let from = if symbol.start == from { from } else { vaddr };
                Some((symbol, (from, end), size))
            }
            // Without a size it ends where another function begins, which may have no symbol.
            Some((symbol, size)) if function().is_none_or(|f| f.start <= symbol.start) => {
                Some((symbol, (vaddr, vaddr.saturating_add(1)), size))
            }
            _ => self.start(vaddr).or_else(|| self.method(vaddr)),
        }
    }

    /// Where a program, or the loader that stands in for it, starts: a name that is gone from most files.
    fn start(&self, vaddr: u64) -> Option<(Symbol, (u64, u64), u64)> {
        let start = self.elf.entry;
        if start == 0 || !(start..start.saturating_add(START_MAX)).contains(&vaddr) {
            return None;
        }
        let end = match self.unwind(vaddr) {
            Some(function) if function.start != start => return None,
            Some(function) => function.end,
            None => vaddr.saturating_add(1),
        };
        let name = "_start".to_owned();
        Some((Symbol { start, name }, (start, end), end - start))
    }

    /// As Python calls it.
    fn method(&self, vaddr: u64) -> Option<(Symbol, (u64, u64), u64)> {
        if !self.is_of_python() || self.symbols().full {
            return None;
        }
        let function = self.unwind(vaddr)?;
        let begins = |at: u64| self.table.find(at).is_some_and(|f| f.start == at);
        let methods = self.methods.get_or_init(|| Methods::read(&self.elf, &begins));
        let symbol = Symbol {
            start: function.start,
            name: methods.find(function.start)?.to_owned(),
        };
        let size = function.end.saturating_sub(function.start);
        Some((symbol, (function.start, function.end), size))
    }

    /// The name for people of the function that a symbol names.
    pub fn shown(&self, named: &NamedFunction) -> Arc<str> {
        let mut shown = self.shown.lock().unwrap_or_else(|e| e.into_inner());
        shown
            .entry(named.start)
            .or_insert_with(|| demangle(&named.raw).into())
            .clone()
    }

    /// Address and size of a symbol by its exact name.
    pub fn address_of(&self, name: &str) -> Option<(u64, u64)> {
        if let Some(asked) = &self.asked {
            return asked.iter().find(|a| a.2 == name).map(|a| (a.0, a.1));
        }
        let plain = self.plain.as_ref().map_or(self, |(plain, _)| plain);
        let elsewhere = || find_by_name(plain.elsewhere()?, name);
        let found = find_by_name(&plain.elf, name).or_else(elsewhere)?;
        self.tell(|told| told.asked.push((found.0, found.1, name.to_owned())));
        Some(found)
    }

    /// Is this a part of the interpreter's loop without a symbol of its own?
    pub fn is_loop_part(&self, vaddr: u64) -> bool {
        let parts = self.loop_parts.get_or_init(|| self.find_loop_parts());
        parts.iter().any(|p| p.0 <= vaddr && vaddr < p.1)
    }

    /// Compilers split the loop into parts (up to nearly all of it) whose symbols are gone from a stripped file. A part
    /// is where the named one jumps to, if no function begins there: unwind data finds a frame already made.
    fn find_loop_parts(&self) -> Vec<(u64, u64)> {
        const LOOP_MAX: u64 = 1 << 20;
        let mut parts: Vec<(u64, u64)> = Vec::new();
        let Some((start, size)) = self.address_of(LOOP).filter(|l| l.1 <= LOOP_MAX && l.0 < 1 << 48) else {
            return parts;
        };
        let mut code = vec![0u8; size as usize];
        if self.elf.machine != EM_X86_64 || !self.elf.read_vaddr(start, &mut code) {
            return parts;
        }
        let ahead = |i: usize| {
            Some(i64::from(i32::from_le_bytes(
                code.get(i..i + 4)?.try_into().ok()?,
            )))
        };
        let mut targets: Vec<u64> = Vec::new();
        for i in 0..code.len().saturating_sub(6) {
            // jmp rel32; jcc rel32
            let operand = match (code[i], code[i + 1]) {
                (0xe9, _) => i + 1,
                (0x0f, 0x80..=0x8f) => i + 2,
                _ => continue,
            };
            let to = ahead(operand).map(|far| (start + operand as u64 + 4).wrapping_add_signed(far));
            targets.extend(to.filter(|t| !(start..start + size).contains(t)));
        }
        targets.sort_unstable();
        targets.dedup();
        for target in targets {
            if parts.iter().any(|p| p.0 <= target && target < p.1) {
                continue;
            }
            let Some(found) = self.unwind(target) else {
                continue;
            };
            let begins = self.unwind(found.start).map(|f| f.rule.cfa.clone());
            let a_function = begins == Some(Cfa::Register(Arch::X86_64.sp, 8));
            if !a_function && self.symbols().find(found.start).is_none() {
                parts.push((found.start, found.end));
            }
        }
        parts
    }

    /// A stub of the linker that jumps on to a function of another file.
    pub fn is_stub(&self, vaddr: u64) -> bool {
        stubs_at(&self.elf, vaddr).is_some()
    }

    /// Is it the interpreter, or a module for it?
    fn is_of_python(&self) -> bool {
        let parts = [".cpython-", ".abi3.", "libpython"];
        self.is_interpreter() || parts.iter().any(|part| self.name.contains(part))
    }

    /// Does this file hold the interpreter?
    pub fn is_interpreter(&self) -> bool {
        self.elf.section(".PyRuntime").is_some()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    dev: u64,
    inode: u64,
    size: u64,
    changed_ns: i128,
}

static IMAGES: OnceLock<Mutex<FxHashMap<Key, Weak<Image>>>> = OnceLock::new();

/// The file behind a mapping of a process that lives: through `/proc/PID/map_files`, which leads to the very file that
/// is mapped even if it was deleted or replaced, and into other mount namespaces; where that is not allowed through
/// the path, if what is there now is still the same file.
pub fn open(pid: u32, mapping: &Mapping, memory: &dyn Memory) -> Option<Arc<Image>> {
    let exact = File::open(format!(
        "/proc/{pid}/map_files/{:x}-{:x}",
        mapping.start, mapping.end
    ))
    .ok();
    let by_path = exact.is_none();
    let file = match exact {
        Some(file) => file,
        None if mapping.deleted => return None,
        None => roots::open_below(&roots::root_of(pid), Path::new(&mapping.path))?,
    };
    let meta = file.metadata().ok()?;
    if !meta.is_file() || (by_path && meta.ino() != mapping.inode) {
        return None;
    }
    let key = Key {
        dev: meta.dev(),
        inode: meta.ino(),
        size: meta.size(),
        changed_ns: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
    };
    let images = IMAGES.get_or_init(Mutex::default);
    let known = |images: &FxHashMap<Key, Weak<Image>>| images.get(&key).and_then(Weak::upgrade);
    if let Some(image) = known(&images.lock().unwrap_or_else(|e| e.into_inner())) {
        return Some(image);
    }
    let image = Arc::new(Image::new(mapping.name(), Arc::new(FileSource::new(file).ok()?))?);
    // Now, while the process is there; what is in the file itself can wait.
    let roots = [roots::root_of(pid), PathBuf::from("/")];
    if let Some(found) = debug::find(&image.elf, &mapping.path, &roots) {
        let _ = image.elsewhere.set(Some(found));
    }
    if by_path && !same_build(&image, mapping, memory) {
        return None;
    }
    let mut images = images.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(first) = known(&images) {
        return Some(first);
    }
    images.retain(|_, image| image.strong_count() > 0);
    images.insert(key, Arc::downgrade(&image));
    Some(image)
}

/// Does memory hold the build id that the file has? True where either says nothing.
fn same_build(image: &Image, mapping: &Mapping, memory: &dyn Memory) -> bool {
    let note = image.elf.sections.iter().find(|s| s.name == ".note.gnu.build-id");
    let (Some(note), Some(there)) = (note, image.elf.build_id()) else {
        return true;
    };
    let Some(vaddr) = image.elf.vaddr_of_mapped(mapping.offset, mapping.executable) else {
        return true;
    };
    let at = mapping.start.wrapping_sub(vaddr).wrapping_add(note.vaddr);
    match memory.bytes(at, note.size.min(4096) as usize) {
        Some(b) => build_id_of_notes(&b).is_none_or(|id| id == there),
        None => true,
    }
}
