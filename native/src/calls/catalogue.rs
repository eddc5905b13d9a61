//! Every group of functions that can be probed.

use super::groups::{Address, Functions, Group, Mark, Place, Size, What};

const COUNT: Functions = Functions {
    symbols: "",
    kind: "",
    what: What::Count,
    size: Size::None,
    address: Address::Return,
    place: Place::Host,
    timed: false,
    span: false,
    mark: None,
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
        symbols: "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator4freeEPv|\
                  _ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator10raw_deleteEPv",
        address: Address::Arg(1),
        place: Place::Device,
        ..FREE
    },
    // What tensors are freed by: the compiler puts the body of free into it.
    Functions {
        symbols: "_ZN3c104cuda20CUDACachingAllocator6Native*16local_raw_deleteEPv",
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

/// What allocators take of the kernel, and programs past them: arenas of small Python objects, blocks of their own for
/// large ones, the heap. Few calls, so they are cheap to follow where `malloc` is not.
const PAGES: &[Functions] = &[
    Functions {
        symbols: "mmap|mmap64",
        size: Size::Arg(1),
        place: Place::Pages,
        ..C_ALLOC
    },
    Functions {
        symbols: "mremap",
        what: What::Realloc,
        size: Size::Arg(2),
        address: Address::Arg(0),
        place: Place::Pages,
        ..C_ALLOC
    },
    Functions {
        symbols: "sbrk",
        what: What::Break,
        size: Size::Arg(0),
        place: Place::Pages,
        ..C_ALLOC
    },
    Functions {
        symbols: "munmap",
        place: Place::Pages,
        ..FREE
    },
];

const C_LIBRARY: &[&str] = &["libc", "ld-musl-x86_64", "ld-musl-aarch64"];
/// A preloaded one answers in place of the C library's.
const ALLOCATORS: &[&str] = &[
    "libc",
    "ld-musl-x86_64",
    "ld-musl-aarch64",
    "libjemalloc",
    "libtcmalloc",
    "libtcmalloc_minimal",
    "libmimalloc",
];
const TENSORS: &[&str] = &[
    "libc10",
    "libc",
    "ld-musl-x86_64",
    "ld-musl-aarch64",
    "libjemalloc",
    "libtcmalloc",
    "libtcmalloc_minimal",
    "libmimalloc",
];
/// Runs of a model as a server does them, told by few calls of each.
const FORWARDS: &[Functions] = &[Functions {
    symbols: "_ZN2at4_ops9embedding4callE*|_ZN2at4_ops13embedding_bag4callE*",
    kind: "forward",
    mark: Some(Mark::Begin),
    ..COUNT
}];

const FORWARD_ENDS: &[Functions] = &[
    Functions {
        symbols: "_ZN2at4_ops6argmax4callE*|_ZN2at4_ops11multinomial4callE*|_ZN2at4_ops7max_dim4callE*|\
                  _ZN2at4_ops12exponential_4callE*|_ZN5torch5utils14tensor_to_listE*|\
                  _ZN5torch5utils15tensor_to_numpyE*",
        kind: "forward",
        mark: Some(Mark::End),
        ..COUNT
    },
    // Waits for the device: the run lasts until it returns.
    Functions {
        symbols: "_ZN2at4_ops19_local_scalar_dense4callE*",
        kind: "forward",
        mark: Some(Mark::End),
        ..SPAN
    },
];

/// Many in each run: taken off again as soon as the ends tell enough.
const FORWARD_LAYERS: &[Functions] = &[Functions {
    symbols: "_ZN2at4_ops6linear4callE*|_ZN2at4_ops6conv1d4callE*|_ZN2at4_ops6conv2d4callE*|\
              _ZN2at4_ops14conv2d_padding4callE*|_ZN2at4_ops5addmm4callE*|_ZN2at4_ops6matmul4callE*|\
              _ZN2at4_ops30_transformer_encoder_layer_fwd4callE*",
    kind: "forward",
    mark: Some(Mark::Layer),
    ..COUNT
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
        name: "forwards",
        libraries: TORCH_CPU,
        functions: FORWARDS,
        ..GROUP
    },
    Group {
        name: "forward ends",
        libraries: &["libtorch_cpu", "libtorch_python"],
        local: true,
        functions: FORWARD_ENDS,
        ..GROUP
    },
    Group {
        name: "forward layers",
        libraries: TORCH_CPU,
        functions: FORWARD_LAYERS,
        ..GROUP
    },
    Group {
        name: "tensor memory",
        libraries: TENSORS,
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
        libraries: ALLOCATORS,
        functions: MALLOC,
        ..GROUP
    },
    Group {
        name: "pages",
        libraries: C_LIBRARY,
        functions: PAGES,
        ..GROUP
    },
];

/// The same in the program itself, which may have its allocator inside.
pub static OWN_MALLOC: Group = Group {
    name: "malloc",
    local: true,
    functions: MALLOC,
    ..GROUP
};

#[cfg(test)]
mod tests {
    use super::*;

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
