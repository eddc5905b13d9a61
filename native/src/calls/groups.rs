//! What can be probed: groups of functions, the libraries they are in, and what their arguments mean.

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
}

/// Where a block of memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Host = 0,
    /// The device that the thread set last.
    Device = 1,
    /// The device is the function's argument 2.
    DeviceArg2 = 2,
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

/// Functions with the same meaning.
#[derive(Clone, Copy, Debug)]
pub struct Functions {
    /// Symbols as they are in the file; `*` stands for anything, `|` parts alternatives.
    pub symbols: &'static str,
    pub kind: &'static str,
    pub what: What,
    pub size: Size,
    pub address: Address,
    pub place: Place,
    /// Its time is taken where all its exits can be seen.
    pub timed: bool,
    /// Every call is told on the time line.
    pub span: bool,
    /// Returns 0 when it went well.
    pub status: bool,
    /// No exception leaves it, so that a return probe does no harm where its exits cannot be seen.
    pub plain_c: bool,
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

const COUNT: Functions = Functions {
    symbols: "",
    kind: "",
    what: What::Count,
    size: Size::None,
    address: Address::Return,
    place: Place::Host,
    timed: false,
    span: false,
    status: false,
    plain_c: false,
};
const TIMED: Functions = Functions { timed: true, ..COUNT };
const SPAN: Functions = Functions { span: true, ..TIMED };
const C_SPAN: Functions = Functions {
    plain_c: true,
    ..SPAN
};
const C_ALLOC: Functions = Functions {
    kind: "alloc",
    what: What::Alloc,
    plain_c: true,
    ..COUNT
};
const FREE: Functions = Functions {
    kind: "free",
    what: What::Free,
    address: Address::Arg(0),
    ..COUNT
};

const OPERATORS: &[Functions] = &[Functions {
    symbols: "_ZN2at4_ops*4callE*",
    kind: "operator",
    ..COUNT
}];

const OPERATOR_TIMES: &[Functions] = &[Functions {
    symbols: "_ZN2at4_ops*4callE*",
    kind: "operator",
    ..TIMED
}];

const OPTIMIZER: &[Functions] = &[Functions {
    symbols:
        "_ZN2at4_ops*_fused_adam*4callE*|_ZN2at4_ops*_fused_sgd*4callE*|_ZN2at4_ops*_fused_adagrad*4callE*",
    kind: "optimizer",
    ..SPAN
}];

const BACKWARD: &[Functions] = &[Functions {
    symbols: "_Z*22THPEngine_run_backwardP7_objectS0_S0_",
    kind: "backward",
    plain_c: true,
    ..SPAN
}];

const ENGINE: &[Functions] = &[Functions {
    symbols: "_ZN5torch8autograd6Engine7executeE*",
    kind: "backward",
    ..TIMED
}];

const COLLECTIVES: &[Functions] = &[Functions {
    symbols: "_ZN4c10d16ProcessGroupGloo9allreduceE*|_ZN4c10d16ProcessGroupGloo19allreduce_coalescedE*|\
              _ZN4c10d16ProcessGroupGloo9allgatherE*|_ZN4c10d16ProcessGroupGloo19allgather_coalescedE*|\
              _ZN4c10d16ProcessGroupGloo*all_gather_singleE*|_ZN4c10d16ProcessGroupGloo*_allgather_baseE*|\
              _ZN4c10d16ProcessGroupGloo9broadcastE*|_ZN4c10d16ProcessGroupGloo6reduceE*|\
              _ZN4c10d16ProcessGroupGloo14reduce_scatterE*|_ZN4c10d16ProcessGroupGloo*reduce_scatter_singleE*|\
              _ZN4c10d16ProcessGroupGloo*_reduce_scatter_baseE*|_ZN4c10d16ProcessGroupGloo8alltoallE*|\
              _ZN4c10d16ProcessGroupGloo*all_to_all_singleE*|_ZN4c10d16ProcessGroupGloo13alltoall_baseE*|\
              _ZN4c10d16ProcessGroupGloo6gatherE*|_ZN4c10d16ProcessGroupGloo7scatterE*|\
              _ZN4c10d16ProcessGroupGloo4sendE*|_ZN4c10d16ProcessGroupGloo4recvE*|\
              _ZN4c10d16ProcessGroupGloo13recvAnysourceE*|_ZN4c10d16ProcessGroupGloo7barrierE*|\
              _ZN4c10d16ProcessGroupGloo16monitoredBarrierE*|\
              _ZN4c10d16ProcessGroupNCCL9allreduceE*|_ZN4c10d16ProcessGroupNCCL19allreduce_coalescedE*|\
              _ZN4c10d16ProcessGroupNCCL9allgatherE*|_ZN4c10d16ProcessGroupNCCL*all_gather_singleE*|\
              _ZN4c10d16ProcessGroupNCCL*_allgather_baseE*|_ZN4c10d16ProcessGroupNCCL9broadcastE*|\
              _ZN4c10d16ProcessGroupNCCL6reduceE*|_ZN4c10d16ProcessGroupNCCL14reduce_scatterE*|\
              _ZN4c10d16ProcessGroupNCCL*reduce_scatter_singleE*|_ZN4c10d16ProcessGroupNCCL*_reduce_scatter_baseE*|\
              _ZN4c10d16ProcessGroupNCCL8alltoallE*|_ZN4c10d16ProcessGroupNCCL*all_to_all_singleE*|\
              _ZN4c10d16ProcessGroupNCCL13alltoall_baseE*|_ZN4c10d16ProcessGroupNCCL6gatherE*|\
              _ZN4c10d16ProcessGroupNCCL7scatterE*|_ZN4c10d16ProcessGroupNCCL4sendE*|\
              _ZN4c10d16ProcessGroupNCCL4recvE*|_ZN4c10d16ProcessGroupNCCL7barrierE*|\
              _ZN4c10d4Work4waitE*|_ZN4c10d16ProcessGroupGloo8RecvWork4waitE*|_ZN4c10d16ProcessGroupGloo8SendWork4waitE*|\
              _ZN4c10d16ProcessGroupNCCL8WorkNCCL4waitE*|_ZN4c10d16ProcessGroupNCCL8WorkNCCL11synchronizeEv|\
              _ZN4gloo9allreduceE*|_ZN4gloo9allgatherE*|_ZN4gloo10allgathervE*|_ZN4gloo7barrierE*|\
              _ZN4gloo9broadcastE*|_ZN4gloo6reduceE*|_ZN4gloo7scatterE*|_ZN4gloo6gatherE*|_ZN4gloo7gathervE*|\
              _ZN4gloo8alltoallE*|_ZN4gloo9alltoallvE*",
    kind: "collective",
    ..SPAN
}];

const NCCL: &[Functions] = &[
    Functions {
        symbols: "ncclAllReduce|ncclReduce|ncclBroadcast|ncclAllGather|ncclReduceScatter|ncclAlltoAll|ncclAllToAll|\
                  ncclGather|ncclScatter",
        kind: "collective",
        size: Size::Elements(2, 3),
        ..C_SPAN
    },
    Functions {
        symbols: "ncclSend|ncclRecv|ncclBcast",
        kind: "collective",
        size: Size::Elements(1, 2),
        ..C_SPAN
    },
    Functions {
        symbols: "ncclGroupEnd|ncclCommInitRank|ncclCommInitRankConfig|ncclCommInitAll|ncclCommSplit|ncclCommFinalize|\
                  ncclCommDestroy|ncclCommAbort",
        kind: "collective",
        ..C_SPAN
    },
];

const CUDA_RUNTIME: &[Functions] = &[
    Functions {
        symbols: "cudaLaunchKernel|cudaLaunchKernelExC|cudaLaunchCooperativeKernel|cudaGraphLaunch",
        kind: "launch",
        ..COUNT
    },
    Functions {
        symbols: "cudaMemcpy|cudaMemcpyAsync|cudaMemset|cudaMemsetAsync",
        kind: "copy",
        size: Size::Arg(2),
        ..C_SPAN
    },
    Functions {
        symbols: "cudaMemcpyToSymbol|cudaMemcpyToSymbolAsync|cudaMemcpyFromSymbol|cudaMemcpyFromSymbolAsync",
        kind: "copy",
        size: Size::Arg(2),
        ..C_SPAN
    },
    Functions {
        symbols: "cudaMemcpyPeer|cudaMemcpyPeerAsync",
        kind: "copy",
        size: Size::Arg(4),
        ..C_SPAN
    },
    Functions {
        symbols: "cudaMemcpy2D|cudaMemcpy2DAsync",
        kind: "copy",
        size: Size::Product(4, 5),
        ..C_SPAN
    },
    Functions {
        symbols: "cudaStreamSynchronize|cudaDeviceSynchronize|cudaEventSynchronize",
        kind: "sync",
        ..C_SPAN
    },
    Functions {
        symbols: "cudaSetDevice",
        kind: "device",
        what: What::SetDevice,
        ..COUNT
    },
];

const CUDA_MEMORY: &[Functions] = &[
    Functions {
        symbols: "cudaMalloc|cudaMallocAsync|cudaMallocFromPoolAsync|cudaMallocManaged",
        size: Size::Arg(1),
        address: Address::Arg(0),
        place: Place::Device,
        status: true,
        timed: true,
        ..C_ALLOC
    },
    Functions {
        symbols: "cudaMallocPitch",
        size: Size::Product(2, 3),
        address: Address::Arg(0),
        place: Place::Device,
        status: true,
        timed: true,
        ..C_ALLOC
    },
    Functions {
        symbols: "cudaMallocHost|cudaHostAlloc",
        size: Size::Arg(1),
        address: Address::Arg(0),
        status: true,
        timed: true,
        ..C_ALLOC
    },
    Functions {
        symbols: "cudaFree|cudaFreeAsync",
        place: Place::Device,
        timed: true,
        plain_c: true,
        ..FREE
    },
    Functions {
        symbols: "cudaFreeHost",
        timed: true,
        plain_c: true,
        ..FREE
    },
];

const CUDA_DRIVER: &[Functions] = &[
    Functions {
        symbols: "cuLaunchKernel|cuLaunchKernelEx|cuLaunchCooperativeKernel|cuGraphLaunch",
        kind: "launch",
        ..COUNT
    },
    Functions {
        symbols:
            "cuMemcpy|cuMemcpyAsync|cuMemcpyHtoD_v2|cuMemcpyDtoH_v2|cuMemcpyDtoD_v2|cuMemcpyHtoDAsync_v2|\
                  cuMemcpyDtoHAsync_v2|cuMemcpyDtoDAsync_v2",
        kind: "copy",
        size: Size::Arg(2),
        ..C_SPAN
    },
    Functions {
        symbols: "cuStreamSynchronize|cuEventSynchronize|cuCtxSynchronize",
        kind: "sync",
        ..C_SPAN
    },
];

const CUDA_DRIVER_MEMORY: &[Functions] = &[
    Functions {
        symbols: "cuMemAlloc_v2|cuMemAllocAsync|cuMemAllocFromPoolAsync|cuMemAllocManaged",
        size: Size::Arg(1),
        address: Address::Arg(0),
        place: Place::Device,
        status: true,
        timed: true,
        ..C_ALLOC
    },
    Functions {
        symbols: "cuMemAllocHost_v2|cuMemHostAlloc",
        size: Size::Arg(1),
        address: Address::Arg(0),
        status: true,
        timed: true,
        ..C_ALLOC
    },
    Functions {
        symbols: "cuMemFree_v2|cuMemFreeAsync",
        place: Place::Device,
        timed: true,
        plain_c: true,
        ..FREE
    },
    Functions {
        symbols: "cuMemFreeHost",
        timed: true,
        plain_c: true,
        ..FREE
    },
];

const CACHING_ALLOCATOR: &[Functions] = &[
    Functions {
        symbols: "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator6mallocEPPva*",
        kind: "alloc",
        what: What::Alloc,
        size: Size::Arg(3),
        address: Address::Arg(1),
        place: Place::DeviceArg2,
        ..COUNT
    },
    Functions {
        symbols: "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator4freeEPv",
        address: Address::Arg(1),
        place: Place::Device,
        ..FREE
    },
];

const TENSOR_MEMORY: &[Functions] = &[
    Functions {
        symbols: "_ZN3c109alloc_cpuEm",
        kind: "alloc",
        what: What::AllocOuter,
        size: Size::Arg(0),
        ..COUNT
    },
    Functions {
        symbols: "_ZN3c108free_cpuEPv",
        ..FREE
    },
    Functions {
        symbols: "posix_memalign",
        what: What::AllocInner,
        address: Address::Arg(0),
        status: true,
        ..C_ALLOC
    },
];

const MALLOC: &[Functions] = &[
    Functions {
        symbols: "malloc|valloc|pvalloc",
        size: Size::Arg(0),
        ..C_ALLOC
    },
    Functions {
        symbols: "calloc",
        size: Size::Product(0, 1),
        ..C_ALLOC
    },
    Functions {
        symbols: "aligned_alloc|memalign",
        size: Size::Arg(1),
        ..C_ALLOC
    },
    Functions {
        symbols: "posix_memalign",
        size: Size::Arg(2),
        address: Address::Arg(0),
        status: true,
        ..C_ALLOC
    },
    Functions {
        symbols: "realloc",
        what: What::Realloc,
        size: Size::Arg(1),
        address: Address::Arg(0),
        ..C_ALLOC
    },
    Functions {
        symbols: "free",
        ..FREE
    },
];

const GC: &[Functions] = &[Functions {
    symbols: "gc_collect_main|gc_collect_main.*|_gc_collect_main|_PyGC_Collect",
    kind: "gc",
    ..C_SPAN
}];

const GIL: &[Functions] = &[Functions {
    symbols: "take_gil|take_gil.*",
    kind: "gil",
    plain_c: true,
    ..TIMED
}];

const TORCH_CPU: &[&str] = &["libtorch_cpu"];
const PYTHON: &[&str] = &["libpython3", "python3", "python"];
const CUDART: &[&str] = &["libcudart"];
const CUDA: &[&str] = &["libcuda"];

const GROUP: Group = Group {
    name: "",
    libraries: &[],
    unless: None,
    only_with: None,
    local: false,
    functions: &[],
};

/// Every group. A group's place is its number in the kernel: at most 31 of them.
pub const GROUPS: &[Group] = &[
    Group {
        name: "backward",
        libraries: &["libtorch_python"],
        local: true,
        functions: BACKWARD,
        ..GROUP
    },
    Group {
        name: "engine",
        libraries: TORCH_CPU,
        functions: ENGINE,
        ..GROUP
    },
    Group {
        name: "optimizer",
        libraries: TORCH_CPU,
        functions: OPTIMIZER,
        ..GROUP
    },
    Group {
        name: "collectives",
        libraries: &["libtorch_cpu", "libtorch_cuda"],
        functions: COLLECTIVES,
        ..GROUP
    },
    Group {
        name: "nccl",
        libraries: &["libnccl"],
        functions: NCCL,
        ..GROUP
    },
    Group {
        name: "cuda",
        libraries: CUDART,
        functions: CUDA_RUNTIME,
        ..GROUP
    },
    Group {
        name: "cuda driver",
        libraries: CUDA,
        unless: Some("libcudart"),
        functions: CUDA_DRIVER,
        ..GROUP
    },
    Group {
        name: "gc",
        libraries: PYTHON,
        local: true,
        functions: GC,
        ..GROUP
    },
    Group {
        name: "gil",
        libraries: PYTHON,
        local: true,
        functions: GIL,
        ..GROUP
    },
    Group {
        name: "operators",
        libraries: TORCH_CPU,
        functions: OPERATORS,
        ..GROUP
    },
    Group {
        name: "operator times",
        libraries: TORCH_CPU,
        functions: OPERATOR_TIMES,
        ..GROUP
    },
    Group {
        name: "tensor memory",
        libraries: &["libc10", "libc"],
        only_with: Some("libc10"),
        functions: TENSOR_MEMORY,
        ..GROUP
    },
    Group {
        name: "caching allocator",
        libraries: &["libc10_cuda"],
        local: true,
        functions: CACHING_ALLOCATOR,
        ..GROUP
    },
    Group {
        name: "cuda memory",
        libraries: CUDART,
        functions: CUDA_MEMORY,
        ..GROUP
    },
    Group {
        name: "cuda driver memory",
        libraries: CUDA,
        unless: Some("libcudart"),
        functions: CUDA_DRIVER_MEMORY,
        ..GROUP
    },
    Group {
        name: "malloc",
        libraries: &[
            "libc",
            "libjemalloc",
            "libtcmalloc",
            "libtcmalloc_minimal",
            "libmimalloc",
        ],
        functions: MALLOC,
        ..GROUP
    },
];

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
    while rest.as_bytes().first().is_some_and(u8::is_ascii_digit) {
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

    #[test]
    fn every_group_has_a_number_that_fits() {
        assert!(GROUPS.len() < 31);
        for group in GROUPS {
            assert!(
                !group.functions.is_empty() && !group.libraries.is_empty(),
                "{}",
                group.name
            );
        }
    }
}
