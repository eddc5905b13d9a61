//! The code of one process: which file each address belongs to, how it unwinds, what it is called.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::image::{Image, LOOP};
use crate::maps::{Mapping, Maps};
use crate::sample::{Frame, Frames, Kind};
use crate::splice::{Class, Native};
use crate::symbols::{is_stub_name, PerfMap};
use crate::unwind::{analyse, call_target, ends_in_call, Code, Prologue, Rule, Walked, PROLOGUE_MAX};
use crate::world::World;

/// Addresses that are remembered of one process.
const ADDRESSES_MAX: usize = 1 << 16;
/// The longest call instruction.
const CALL_MAX: usize = 7;

/// What a function of the interpreter is called that has no name: whose it is can be told, and no more.
const INTERPRETER: &str = "[python]";

/// Functions that processes and threads start in.
const ROOTS: [&str; 13] = [
    "_start",
    "_start_c",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "start_thread",
    "clone",
    "clone3",
    "__clone",
    "__clone3",
    "__clone_internal",
    "_dl_start_user",
    "start",
];

/// A native frame's name, as far as the stack needs it.
#[derive(Clone, Copy, Debug)]
struct Shown {
    native: Native,
    symbolised: bool,
}

struct Loaded {
    image: Arc<Image>,
    /// Address in the process less address in the file.
    bias: u64,
}

/// The mappings of a process, and what was learnt of the code in them.
#[derive(Default)]
pub struct Modules {
    pub maps: Maps,
    loaded: FxHashMap<usize, Option<Loaded>>,
    rules: FxHashMap<u64, Option<Arc<Rule>>>,
    calls: FxHashMap<u64, bool>,
    shown: FxHashMap<u64, Shown>,
    /// By the start of a function that has a symbol.
    functions: FxHashMap<u64, Shown>,
    /// By the start of a function, and how far in it as its beginning goes.
    prologues: FxHashMap<(u64, u64), Prologue>,
    perf_map: PerfMap,
    perf_map_mark: u64,
}

impl Modules {
    /// Takes the mappings as they are now. True if they changed: then what was learnt is forgotten.
    pub fn update(&mut self, text: &[u8]) -> bool {
        let maps = Maps::parse(text);
        if maps == self.maps {
            return false;
        }
        // Memory that was allocated changes the list, but not what is known of code.
        let code = |m: &&Mapping| m.executable;
        let same = maps
            .list
            .iter()
            .filter(code)
            .eq(self.maps.list.iter().filter(code));
        if !same {
            self.rules.clear();
            self.calls.clear();
            self.shown.clear();
            self.functions.clear();
            self.prologues.clear();
        }
        // Opening a large library again takes a tenth of a second: what is mapped as it was stays open.
        let kept = std::mem::take(&mut self.loaded);
        self.loaded = kept
            .into_iter()
            .filter_map(|(n, loaded)| {
                let was = self.maps.list.get(n)?;
                let now = maps.list.binary_search_by_key(&was.start, |m| m.start).ok()?;
                (maps.list.get(now)? == was).then_some((now, loaded))
            })
            .collect();
        self.maps = maps;
        !same
    }

    fn load(&mut self, world: &dyn World, mapping: usize) -> Option<&Loaded> {
        let Modules { maps, loaded, .. } = self;
        let m = maps.list.get(mapping)?;
        loaded
            .entry(mapping)
            .or_insert_with(|| {
                let image = world.image(m)?;
                let vaddr = if m.path == "[vdso]" {
                    image.elf.segments.first()?.vaddr
                } else {
                    image.elf.vaddr_of_mapped(m.offset, m.executable)?
                };
                Some(Loaded {
                    bias: m.start.wrapping_sub(vaddr),
                    image,
                })
            })
            .as_ref()
    }

    /// The file that an address belongs to, and the address in it.
    pub fn image_at(&mut self, world: &dyn World, addr: u64) -> Option<(Arc<Image>, u64)> {
        let mapping = self.maps.find(addr)?;
        let loaded = self.load(world, mapping)?;
        Some((loaded.image.clone(), addr.wrapping_sub(loaded.bias)))
    }

    /// What the function at an address is called by the linker.
    pub fn raw_name(&mut self, world: &dyn World, addr: u64) -> Option<String> {
        let (image, vaddr) = self.image_at(world, addr)?;
        Some(image.symbol(vaddr)?.raw.clone())
    }

    /// The C library's functions that start threads and programs have no symbols where it was stripped. They can be
    /// told by their place: `clone3` and `start_thread` at a thread's root, `__libc_start_call_main` between
    /// `__libc_start_main` and the program.
    pub fn name_roots(&mut self, world: &dyn World, walked: &Walked, frames: &mut Frames) {
        let mut above = walked.frames.iter().rev();
        let (true, Some(root)) = (walked.rooted, above.next()) else {
            return;
        };
        let unnamed = |shown: &FxHashMap<u64, Shown>, at: u64| shown.get(&at).is_none_or(|s| !s.symbolised);
        if unnamed(&self.shown, root.lookup) && self.libc_without_name(world, root.lookup) {
            self.give_name(world, root.lookup, "clone3", frames);
            if let Some(next) = above.next().filter(|f| self.libc_without_name(world, f.lookup)) {
                self.give_name(world, next.lookup, "start_thread", frames);
            }
            return;
        }
        let (Some(main), Some(call)) = (above.next(), above.next()) else {
            return;
        };
        if unnamed(&self.shown, call.lookup) && self.libc_without_name(world, call.lookup) {
            let starts = self
                .raw_name(world, main.lookup)
                .is_some_and(|n| n.starts_with("__libc_start_main"));
            if starts {
                self.give_name(world, call.lookup, "__libc_start_call_main", frames);
            }
        }
    }

    fn libc_without_name(&mut self, world: &dyn World, addr: u64) -> bool {
        self.image_at(world, addr).is_some_and(|(image, vaddr)| {
            let libc = image.name.starts_with("libc.so.6") || image.name.starts_with("libc-2.");
            libc && !image.symbols().full && image.symbol(vaddr).is_none()
        })
    }

    fn give_name(&mut self, world: &dyn World, addr: u64, name: &str, frames: &mut Frames) {
        let Some((image, _)) = self.image_at(world, addr) else {
            return;
        };
        let frame = frames.intern(native_frame(name.to_owned(), &image.name));
        let native = Native {
            frame,
            class: Class::Plain,
        };
        self.shown.insert(
            addr,
            Shown {
                native,
                symbolised: true,
            },
        );
    }

    /// The frame to show for an address; whether it has a symbol.
    pub fn show(&mut self, world: &dyn World, addr: u64, frames: &mut Frames) -> (Native, bool) {
        if let Some(shown) = self.shown.get(&addr) {
            return (shown.native, shown.symbolised);
        }
        if self.shown.len() >= ADDRESSES_MAX {
            self.shown.clear();
        }
        let Shown { native, symbolised } = self.look_up(world, addr, frames);
        // Generated code gets its name later than its first sample.
        if symbolised || self.maps.find(addr).is_some_and(|m| self.maps.list[m].is_file()) {
            self.shown.insert(addr, Shown { native, symbolised });
        }
        (native, symbolised)
    }

    fn look_up(&mut self, world: &dyn World, addr: u64, frames: &mut Frames) -> Shown {
        let named = self
            .image_at(world, addr)
            .and_then(|(image, vaddr)| Some((image.symbol(vaddr)?, image, vaddr)));
        let Some((named, image, vaddr)) = named else {
            let (frame, class, symbolised) = self.name_without_symbol(world, addr);
            let frame = frames.intern(frame);
            return Shown {
                native: Native { frame, class },
                symbolised,
            };
        };
        let start = addr.wrapping_sub(vaddr.wrapping_sub(named.start));
        if self.functions.len() >= ADDRESSES_MAX {
            self.functions.clear();
        }
        *self.functions.entry(start).or_insert_with(|| {
            let frame = native_frame(image.shown(&named).to_string(), &image.name);
            Shown {
                native: Native {
                    frame: frames.intern(frame),
                    class: class_of(&named.raw),
                },
                symbolised: true,
            }
        })
    }

    fn name_without_symbol(&mut self, world: &dyn World, addr: u64) -> (Frame, Class, bool) {
        if let Some((image, vaddr)) = self.image_at(world, addr) {
            if image.is_loop_part(vaddr) {
                return (native_frame(LOOP.into(), &image.name), Class::Loop, true);
            }
            if image.elf.entry == image.unwind(vaddr).map_or(vaddr, |f| f.start) {
                return (native_frame("_start".into(), &image.name), Class::Plain, true);
            }
            // The start of the function, so that all places in it are one frame.
            let start = image.unwind(vaddr).map_or(vaddr, |f| f.start);
            let function = match image.is_interpreter() {
                true => INTERPRETER.to_owned(),
                false => format!("{}+{start:#x}", image.name),
            };
            return (native_frame(function, &image.name), Class::Plain, false);
        }
        if let Some((_, name)) = self.generated(world, addr) {
            let class = if name.starts_with("py::") {
                Class::Stub
            } else {
                Class::Plain
            };
            return (native_frame(name, "[generated]"), class, true);
        }
        let module = match self.maps.find(addr).map(|m| &self.maps.list[m]) {
            Some(m) if m.path.is_empty() => "[generated]".to_owned(),
            Some(m) => m.name().to_owned(),
            None => "[unmapped]".to_owned(),
        };
        (native_frame(module.clone(), &module), Class::Plain, false)
    }

    fn generated(&mut self, world: &dyn World, addr: u64) -> Option<(u64, String)> {
        if self.perf_map.find(addr).is_none() {
            if let Some((mark, text)) = world.perf_map(self.perf_map_mark) {
                self.perf_map_mark = mark;
                self.perf_map = PerfMap::parse(&text);
            }
        }
        self.perf_map
            .find(addr)
            .map(|(start, name)| (start, name.to_owned()))
    }
}

fn native_frame(function: String, module: &str) -> Frame {
    Frame {
        kind: Kind::Native,
        function,
        file: String::new(),
        line: 0,
        module: module.to_owned(),
    }
}

fn class_of(raw: &str) -> Class {
    if is_stub_name(raw) {
        return Class::Plain;
    }
    let name = raw.split(['.', '@']).next().unwrap_or(raw);
    if name == LOOP {
        Class::Loop
    } else if name.starts_with("_TAIL_CALL_") {
        Class::LoopPart
    } else {
        Class::Plain
    }
}

/// The code of a process, for the walk over one of its stacks.
pub struct CodeOf<'a> {
    pub modules: &'a mut Modules,
    pub world: &'a dyn World,
    /// Unwind data led to an address that is not in the mappings: they are out of date.
    pub unmapped: bool,
}

impl CodeOf<'_> {
    /// Bytes of code: from the file, or from memory where there is none.
    fn bytes(&mut self, addr: u64, into: &mut [u8]) -> bool {
        match self.modules.image_at(self.world, addr) {
            Some((image, vaddr)) => image.elf.read_vaddr(vaddr, into),
            None => self.world.memory().read(addr, into),
        }
    }

    fn before(&mut self, addr: u64) -> Option<[u8; CALL_MAX]> {
        let mut b = [0u8; CALL_MAX];
        self.bytes(addr.checked_sub(CALL_MAX as u64)?, &mut b)
            .then_some(b)
    }
}

impl Code for CodeOf<'_> {
    fn rule(&mut self, addr: u64) -> Option<Arc<Rule>> {
        if let Some(rule) = self.modules.rules.get(&addr) {
            return rule.clone();
        }
        let found = self.modules.image_at(self.world, addr);
        let rule = found
            .and_then(|(image, vaddr)| image.unwind(vaddr))
            .map(|f| f.rule);
        if self.modules.rules.len() >= ADDRESSES_MAX {
            self.modules.rules.clear();
        }
        self.modules.rules.insert(addr, rule.clone());
        rule
    }

    fn is_code(&self, addr: u64) -> bool {
        self.modules.maps.is_code(addr)
    }

    fn follows_call(&mut self, addr: u64) -> bool {
        if !self.is_code(addr) {
            return false;
        }
        if let Some(&known) = self.modules.calls.get(&addr) {
            return known;
        }
        let follows = self.before(addr).is_some_and(|b| ends_in_call(&b));
        if self.modules.calls.len() >= ADDRESSES_MAX {
            self.modules.calls.clear();
        }
        self.modules.calls.insert(addr, follows);
        follows
    }

    fn call_target(&mut self, addr: u64) -> Option<u64> {
        call_target(&self.before(addr)?, addr)
    }

    fn is_stub(&mut self, addr: u64) -> bool {
        self.modules
            .image_at(self.world, addr)
            .is_some_and(|(image, vaddr)| image.is_stub(vaddr))
    }

    fn function(&mut self, addr: u64) -> Option<(u64, Prologue)> {
        let Some((image, vaddr)) = self.modules.image_at(self.world, addr) else {
            // Generated code may be another tomorrow: it is looked at each time.
            let (start, _) = self.modules.generated(self.world, addr)?;
            let code = self.world.memory().bytes(start, PROLOGUE_MAX).unwrap_or_default();
            return Some((start, analyse(&code, addr.saturating_sub(start))));
        };
        let first = image.symbol(vaddr)?.start;
        let start = addr.wrapping_sub(vaddr.wrapping_sub(first));
        let until = vaddr.saturating_sub(first).min(PROLOGUE_MAX as u64);
        if let Some(&known) = self.modules.prologues.get(&(start, until)) {
            return Some((start, known));
        }
        let mut code = [0u8; PROLOGUE_MAX];
        let whole = image.elf.read_vaddr(first, &mut code);
        let prologue = analyse(if whole { &code } else { &[] }, until);
        if self.modules.prologues.len() >= ADDRESSES_MAX {
            self.modules.prologues.clear();
        }
        self.modules.prologues.insert((start, until), prologue);
        Some((start, prologue))
    }

    fn is_root(&mut self, addr: u64) -> bool {
        let found = self.modules.image_at(self.world, addr);
        let named = found.and_then(|(image, vaddr)| image.symbol(vaddr));
        let is_root = |raw: &str| !is_stub_name(raw) && ROOTS.contains(&raw.split('@').next().unwrap_or(raw));
        named.is_some_and(|n| is_root(&n.raw))
    }

    fn missed(&mut self, _addr: u64) {
        self.unmapped = true;
    }
}
