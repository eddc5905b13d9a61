//! What a tier hands over for one look at one thread, and what comes out of it: plain data without any reading.

/// The registers that unwinding starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Regs {
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    /// The link register of aarch64; 0 elsewhere.
    pub lr: u64,
}

/// One interpreter frame of CPython as it lies in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PyFrameRaw {
    /// Address of the code object, without the tag bits of 3.14.
    pub code: u64,
    /// `prev_instr` (3.11, 3.12) or `instr_ptr` (3.13 and later).
    pub instr: u64,
    /// `frame.owner`: 0 thread, 1 generator, 2 frame object, 3 and 4 the interpreter's own entry frames (3.12 and later).
    pub owner: u32,
    /// Bit 0: `is_entry` (3.11 only).
    pub flags: u32,
}

impl PyFrameRaw {
    pub const IS_ENTRY: u32 = 1;
    /// The first owner that stands for the interpreter itself and not for a function (3.12 and later).
    pub const OWNED_BY_INTERPRETER: u32 = 3;

    /// The interpreter's loop was entered with this frame, or it is the entry frame that marks that.
    pub fn ends_run(&self) -> bool {
        self.flags & Self::IS_ENTRY != 0 || self.owner >= Self::OWNED_BY_INTERPRETER
    }
}

/// Memory of the outer end of a stack of which `stack` is not all: pieces of `PIECE` bytes, the outermost first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outer<'a> {
    /// Where the stack ends; a multiple of `PIECE`.
    pub end: u64,
    pub pieces: &'a [u8],
}

impl Outer<'_> {
    /// `PIECE_BYTES` of scope.h.
    pub const PIECE: u64 = 1024;

    /// The word at an address, if it is in there.
    pub fn read(&self, addr: u64) -> Option<u64> {
        let below = self.end.checked_sub(1)?.checked_sub(addr)?;
        let at = usize::try_from((below & !(Self::PIECE - 1)) | (addr & (Self::PIECE - 1))).ok()?;
        let inside = at as u64 % Self::PIECE <= Self::PIECE - 8;
        let word = self.pieces.get(at..at.checked_add(8)?).filter(|_| inside)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    }
}

/// One look at one thread, before anything is resolved.
#[derive(Clone, Copy, Debug)]
pub struct RawSample<'a> {
    /// As the profiler's own pid namespace numbers it.
    pub pid: u32,
    pub tid: u32,
    /// Kernel's monotonic clock.
    pub time_ns: u64,
    /// All zero where the thread has no user side (then `stack` and `python` are empty).
    pub regs: Regs,
    /// Memory from `regs.sp` upwards.
    pub stack: &'a [u8],
    pub outer: Outer<'a>,
    /// Leaf first.
    pub python: &'a [PyFrameRaw],
    /// `python` is what there was: it was known where to look.
    pub python_known: bool,
    /// Return addresses in the kernel, leaf first.
    pub kernel: &'a [u64],
    /// The thread does not run (it is blocked), so that its memory may still be read while the sample is resolved.
    pub live: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Python,
    Native,
    Kernel,
    Wait,
}

impl Kind {
    /// The name in the data model of the Python side.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Python => "python",
            Kind::Native => "native",
            Kind::Kernel => "kernel",
            Kind::Wait => "wait",
        }
    }
}

/// One line of a stack as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    pub kind: Kind,
    pub function: String,
    /// Source file; empty for native frames.
    pub file: String,
    /// 0 where it is not known.
    pub line: u32,
    /// File name of the shared object or program, without its directory.
    pub module: String,
}

/// The number of a frame in [`Frames`].
pub type FrameId = u32;

/// All frames that were ever shown, each once. Shared by all targets of a session.
#[derive(Debug, Default)]
pub struct Frames {
    list: Vec<std::sync::Arc<Frame>>,
    numbers: rustc_hash::FxHashMap<std::sync::Arc<Frame>, FrameId>,
}

impl Frames {
    /// The number of this frame; equal frames have one number.
    pub fn intern(&mut self, frame: Frame) -> FrameId {
        if let Some(&id) = self.numbers.get(&frame) {
            return id;
        }
        let id = self.list.len() as FrameId;
        let frame = std::sync::Arc::new(frame);
        self.list.push(frame.clone());
        self.numbers.insert(frame, id);
        id
    }

    pub fn get(&self, id: FrameId) -> Option<&Frame> {
        self.list.get(id as usize).map(|f| &**f)
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Frame> {
        self.list.iter().map(|f| &**f)
    }

    /// A leaf that says what a blocked thread waits in.
    pub fn wait(&mut self, what: &str) -> FrameId {
        self.intern(Frame {
            kind: Kind::Wait,
            function: what.to_owned(),
            file: String::new(),
            line: 0,
            module: String::new(),
        })
    }
}

/// A sample with its stack resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Root first.
    pub frames: Vec<FrameId>,
    /// The native stack reaches the function that started the thread.
    pub rooted: bool,
    /// The Python frames reach the outermost one of the thread: true also where the native stack was copied in part
    /// (a deep import), so that the stack starts at the program and only the interpreter's own start is missing.
    pub python_rooted: bool,
    /// Native and Python stacks did not fit together (the Python frames then stand in one block).
    pub mismatch: bool,
    /// Python ran, and it was not known yet where its frames are.
    pub early: bool,
    /// How many native frames have no symbol.
    pub unsymbolised: u32,
    /// How many native frames there are at all.
    pub native: u32,
    /// Rooted, no mismatch, nothing cut off.
    pub complete: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outer_end_of_a_stack_is_read_by_address_whatever_piece_it_is_in() {
        let word = |n: u64| std::iter::repeat_n(n.to_le_bytes(), 128).flatten();
        let pieces: Vec<u8> = word(1).chain(word(2)).collect();
        let outer = Outer {
            end: 0x9000,
            pieces: &pieces,
        };
        let at = |addr: u64| outer.read(addr);
        assert_eq!((at(0x8ff8), at(0x8c00)), (Some(1), Some(1)));
        assert_eq!((at(0x8bf8), at(0x8800)), (Some(2), Some(2)));
        assert_eq!(
            (at(0x87f8), at(0x9000), at(0x8ffc), at(0x8bfc)),
            (None, None, None, None)
        );
        assert_eq!(Outer::default().read(0), None);
        assert_eq!(
            Outer {
                end: u64::MAX,
                pieces: &pieces
            }
            .read(3),
            None
        );
    }
}
