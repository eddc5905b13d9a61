//! A file that code was loaded from: its unwind data and its symbols, shared by all processes that use it.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use rustc_hash::FxHashMap;

use crate::elf::{build_id_of_notes, Elf, FileSource, Source};
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::symbols::{demangle, find_by_name, Symbols};
use crate::unwind::{Found, UnwindTable};

/// The name of a function, and where it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub start: u64,
    pub size: u64,
    /// As the linker knows it.
    pub raw: String,
}

/// Unwind data and symbols of one file. Addresses are the file's own.
pub struct Image {
    /// File name without its directory.
    pub name: String,
    pub elf: Elf,
    table: UnwindTable,
    symbols: OnceLock<Symbols>,
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
            shown: Mutex::default(),
        })
    }

    /// With symbols that are known already.
    pub fn with_symbols(name: &str, source: Arc<dyn Source>, symbols: Symbols) -> Option<Image> {
        let image = Self::new(name, source)?;
        let _ = image.symbols.set(symbols);
        Some(image)
    }

    pub fn unwind(&self, vaddr: u64) -> Option<Found> {
        self.table.find(vaddr)
    }

    pub fn symbols(&self) -> &Symbols {
        self.symbols.get_or_init(|| Symbols::read(&self.elf))
    }

    pub fn symbol(&self, vaddr: u64) -> Option<Named> {
        let (symbol, size) = self.symbols().find_sized(vaddr)?;
        Some(Named {
            start: symbol.start,
            size,
            raw: symbol.name,
        })
    }

    /// The name for people of the function that a symbol names.
    pub fn shown(&self, named: &Named) -> Arc<str> {
        let mut shown = self.shown.lock().unwrap_or_else(|e| e.into_inner());
        shown
            .entry(named.start)
            .or_insert_with(|| demangle(&named.raw).into())
            .clone()
    }

    /// Address and size of a symbol by its exact name.
    pub fn address_of(&self, name: &str) -> Option<(u64, u64)> {
        find_by_name(&self.elf, name)
    }

    /// A stub of the linker that jumps on to a function of another file.
    pub fn is_stub(&self, vaddr: u64) -> bool {
        let stubs = self.elf.sections.iter().filter(|s| s.name.starts_with(".plt"));
        stubs
            .into_iter()
            .any(|s| vaddr >= s.vaddr && vaddr - s.vaddr < s.size)
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
        None => File::open(format!("/proc/{pid}/root{}", mapping.path)).ok()?,
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
