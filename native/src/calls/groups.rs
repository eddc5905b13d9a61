//! What can be probed: groups of functions, the libraries they are in, and what their arguments mean. The groups
//! themselves are in `catalogue.rs`.

/// What happens at a call besides counting. The numbers are those of calls.bpf.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Count = 0,
    Alloc = 1,
    Free = 2,
    Realloc = 3,
    SetDevice = 4,
    /// Allocates by calling an inner function, whose end is cheaper to see than its own (and no exception leaves it).
    AllocOuter = 5,
    /// Counts for nothing where it is not called by an outer one.
    AllocInner = 6,
    /// Moves the end of the heap.
    Break = 7,
}

/// Where a block of memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPlace {
    Host = 0,
    /// The device that the thread set last.
    Device = 1,
    /// The device is the function's argument 2.
    DeviceArg2 = 2,
    /// Of the host, as the kernel hands it out: what allocators take from it.
    Pages = 3,
}

/// How the size of a call comes from its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    None,
    Arg(u8),
    Product(u8, u8),
    /// A count and NCCL's data type.
    Elements(u8, u8),
}

/// Where the address of a block comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    Return,
    /// The argument is the address; of what allocates: where the address is written to.
    Arg(u8),
}

/// What a call says of a run of the model in its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Tokens are looked up: a run begins, unless one has only just begun (positions are looked up too).
    Begin,
    /// It goes on.
    Layer,
    /// What it made is chosen from, or read by the program.
    End,
}

/// Functions with the same meaning.
#[derive(Clone, Copy, Debug)]
pub struct Functions {
    /// Symbols as they are in the file; `*` stands for anything, `|` parts alternatives.
    pub symbols: &'static str,
    pub kind: &'static str,
    pub what: What,
    pub size: Size,
    pub address: Address,
    pub place: MemoryPlace,
    /// Its time is taken where all its exits can be seen.
    pub timed: bool,
    /// Every call is told on the time line.
    pub span: bool,
    /// Every entry is told, and what it says of a run of the model.
    pub mark: Option<Mark>,
    /// Returns 0 when it went well.
    pub status: bool,
    /// No exception leaves it, so that a return probe does no harm where its exits cannot be seen.
    pub plain_c: bool,
}

/// Rows of the catalogue: what is not said is not so.
impl Functions {
    /// Only counted.
    pub const fn count(kind: &'static str, symbols: &'static str) -> Functions {
        Functions {
            symbols,
            kind,
            what: What::Count,
            size: Size::None,
            address: Address::Return,
            place: MemoryPlace::Host,
            timed: false,
            span: false,
            mark: None,
            status: false,
            plain_c: false,
        }
    }

    pub const fn timed(kind: &'static str, symbols: &'static str) -> Functions {
        Functions::count(kind, symbols).and_timed()
    }

    pub const fn span(kind: &'static str, symbols: &'static str) -> Functions {
        Functions {
            span: true,
            ..Functions::timed(kind, symbols)
        }
    }

    /// Allocates; of C.
    pub const fn alloc(symbols: &'static str) -> Functions {
        Functions::count("alloc", symbols).does(What::Alloc).c()
    }

    /// Frees what its first argument is.
    pub const fn free(symbols: &'static str) -> Functions {
        Functions::count("free", symbols)
            .does(What::Free)
            .at(Address::Arg(0))
    }

    pub const fn does(self, what: What) -> Functions {
        Functions { what, ..self }
    }

    pub const fn of(self, size: Size) -> Functions {
        Functions { size, ..self }
    }

    pub const fn at(self, address: Address) -> Functions {
        Functions { address, ..self }
    }

    pub const fn on(self, place: MemoryPlace) -> Functions {
        Functions { place, ..self }
    }

    pub const fn status(self) -> Functions {
        Functions { status: true, ..self }
    }

    pub const fn and_timed(self) -> Functions {
        Functions { timed: true, ..self }
    }

    pub const fn mark(self, mark: Mark) -> Functions {
        Functions {
            mark: Some(mark),
            ..self
        }
    }

    pub const fn c(self) -> Functions {
        Functions {
            plain_c: true,
            ..self
        }
    }
}

/// One thing that can be switched on, and taken off by the governor.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub name: &'static str,
    /// Files by the start of their names: `libc10.so` is also `libc10.so.2`, and `libcudart-d0da41ae.so` is `libcudart`.
    pub libraries: &'static [&'static str],
    /// Not where the process has this library too: its calls would be seen twice.
    pub unless: Option<&'static str>,
    /// Only where the process has this library.
    pub only_with: Option<&'static str>,
    /// Also looks into the table of local symbols.
    pub local: bool,
    pub functions: &'static [Functions],
}

/// System calls on files, in the order of `file_call` in calls.bpf.c.
pub const FILE_CALLS: [&str; 10] = [
    "read",
    "write",
    "pread64",
    "pwrite64",
    "readv",
    "writev",
    "fsync",
    "fdatasync",
    "preadv",
    "pwritev",
];

/// Whether a file of this name is the library: its name goes on with a version or a hash, or ends.
pub fn is_library(file: &str, library: &str) -> bool {
    let Some(rest) = file.strip_prefix(library) else {
        return false;
    };
    match library {
        "python" | "python3" | "libpython3" => {
            rest.is_empty()
                || rest.starts_with('.')
                || rest.bytes().next().is_some_and(|b| b.is_ascii_digit())
        }
        _ => rest.starts_with(".so") || (rest.starts_with('-') && rest.contains(".so")),
    }
}

/// Whether a symbol fits a pattern, in which `*` stands for anything.
pub fn fits(pattern: &str, symbol: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = symbol.strip_prefix(first) else {
        return false;
    };
    let mut last: Option<&str> = None;
    for part in parts {
        if let Some(middle) = last {
            match rest.find(middle) {
                Some(at) => rest = &rest[at + middle.len()..],
                None => return false,
            }
        }
        last = Some(part);
    }
    match last {
        None => rest.is_empty(),
        Some(end) => rest.ends_with(end),
    }
}

/// The name to show: `aten::addmm`, `c10d::ProcessGroupGloo::allreduce`, `cudaMalloc`.
///
/// CUDA's variants for streams per thread and the compiler's clones go by the name of the function.
pub fn shown(symbol: &str) -> String {
    let symbol = symbol.split('.').next().unwrap_or(symbol);
    let symbol = symbol
        .strip_suffix("_ptsz")
        .or_else(|| symbol.strip_suffix("_ptds"))
        .unwrap_or(symbol);
    let Some(parts) = nested(symbol) else {
        return symbol.to_owned();
    };
    match parts.as_slice() {
        ["at", "_ops", operator, "call"] => format!("aten::{operator}"),
        ["c10", "cuda", "CUDACachingAllocator", .., function] => format!("CUDACachingAllocator::{function}"),
        ["torch", "autograd", rest @ ..] => rest.join("::"),
        parts => parts.join("::"),
    }
}

/// The names of a mangled `_ZN...E` or `_Z` function, without its arguments.
fn nested(symbol: &str) -> Option<Vec<&str>> {
    let rest = symbol.strip_prefix("_Z")?;
    let rest = rest.strip_prefix('L').unwrap_or(rest); // local to its file
    let (mut rest, many) = match rest.strip_prefix('N') {
        Some(rest) => (rest.strip_prefix('K').unwrap_or(rest), true),
        None => (rest, false),
    };
    let mut parts = Vec::new();
    loop {
        rest = rest.strip_prefix('L').unwrap_or(rest);
        if !rest.as_bytes().first().is_some_and(u8::is_ascii_digit) {
            break;
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let len: usize = rest[..digits].parse().ok()?;
        let end = digits.checked_add(len)?;
        parts.push(rest.get(digits..end)?);
        rest = &rest[end..];
        if !many {
            break;
        }
    }
    (!parts.is_empty()).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_the_fields_own() {
        assert_eq!(
            shown("_ZN2at4_ops5addmm4callERKNS_6TensorES4_S4_RKN3c106ScalarES8_"),
            "aten::addmm"
        );
        assert_eq!(
            shown("_ZN2at4_ops10add_Tensor4callERKNS_6TensorES4_RKN3c106ScalarE"),
            "aten::add_Tensor"
        );
        assert_eq!(
            shown("_ZN4c10d16ProcessGroupGloo9allreduceERSt6vector"),
            "c10d::ProcessGroupGloo::allreduce"
        );
        assert_eq!(
            shown("_ZL22THPEngine_run_backwardP7_objectS0_S0_"),
            "THPEngine_run_backward"
        );
        assert_eq!(shown("cudaMemcpyAsync_ptsz"), "cudaMemcpyAsync");
        assert_eq!(shown("gc_collect_main.constprop.0"), "gc_collect_main");
        assert_eq!(shown("_ZN999999999999999999999x"), "_ZN999999999999999999999x");
        assert_eq!(shown("_ZN9short"), "_ZN9short");
    }

    #[test]
    fn a_library_is_known_by_version_and_by_hash_but_not_by_a_longer_name() {
        assert!(is_library("libcudart.so.13", "libcudart"));
        assert!(is_library("libcudart-d0da41ae.so.11.0", "libcudart"));
        assert!(!is_library("libcudart_static.a", "libcudart"));
        assert!(is_library("libc.so.6", "libc") && is_library("libc-2.31.so", "libc"));
        assert!(!is_library("libc10.so", "libc"));
        assert!(!is_library("libcudart.so.13", "libcuda"));
        assert!(is_library("python3.11", "python3") && is_library("libpython3.11.so.1.0", "libpython3"));
        assert!(!is_library("python-config.py", "python3"));
    }

    #[test]
    fn patterns_take_a_star_for_anything() {
        assert!(fits("_ZN2at4_ops*4callE*", "_ZN2at4_ops5addmm4callERKNS"));
        assert!(!fits(
            "_ZN2at4_ops*4callE*",
            "_ZN2at4_ops5addmm10redispatchEN3c10"
        ));
        assert!(!fits("malloc", "malloc_usable_size"));
        assert!(fits("take_gil.*", "take_gil.isra.0"));
        assert!(!fits("a*a", "a"));
    }
}
