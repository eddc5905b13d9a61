//! Every group of functions that can be probed: one table.

use super::groups::{Address, Functions, Group, Mark, MemoryPlace, Size, What};

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
const TORCH_CPU: &[&str] = &["libtorch_cpu"];
const PYTHON: &[&str] = &["libpython3", "python3", "python"];
const CUDART: &[&str] = &["libcudart"];
const CUDA: &[&str] = &["libcuda"];

const MALLOC: &[Functions] = &[
    Functions::alloc("malloc|valloc|pvalloc").of(Size::Arg(0)),
    Functions::alloc("calloc").of(Size::Product(0, 1)),
    Functions::alloc("aligned_alloc|memalign").of(Size::Arg(1)),
    Functions::alloc("posix_memalign")
        .of(Size::Arg(2))
        .at(Address::Arg(0))
        .status(),
    Functions::alloc("realloc")
        .does(What::Realloc)
        .of(Size::Arg(1))
        .at(Address::Arg(0)),
    Functions::free("free"),
];

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
        functions: &[Functions::span("backward", "_Z*22THPEngine_run_backwardP7_objectS0_S0_").c()],
        ..GROUP
    },
    Group {
        name: "engine",
        libraries: TORCH_CPU,
        functions: &[Functions::timed(
            "backward",
            "_ZN5torch8autograd6Engine7executeE*",
        )],
        ..GROUP
    },
    Group {
        name: "optimizer",
        libraries: TORCH_CPU,
        functions: &[Functions::span(
            "optimizer",
            "_ZN2at4_ops*_fused_adam*4callE*|_ZN2at4_ops*_fused_sgd*4callE*|\
                 _ZN2at4_ops*_fused_adagrad*4callE*",
        )],
        ..GROUP
    },
    Group {
        name: "collectives",
        libraries: &["libtorch_cpu", "libtorch_cuda"],
        functions: &[Functions::span(
            "collective",
            "_ZN4c10d16ProcessGroupGloo9allreduceE*|\
                 _ZN4c10d16ProcessGroupGloo19allreduce_coalescedE*|\
                 _ZN4c10d16ProcessGroupGloo9allgatherE*|\
                 _ZN4c10d16ProcessGroupGloo19allgather_coalescedE*|\
                 _ZN4c10d16ProcessGroupGloo*all_gather_singleE*|\
                 _ZN4c10d16ProcessGroupGloo*_allgather_baseE*|\
                 _ZN4c10d16ProcessGroupGloo9broadcastE*|_ZN4c10d16ProcessGroupGloo6reduceE*|\
                 _ZN4c10d16ProcessGroupGloo14reduce_scatterE*|\
                 _ZN4c10d16ProcessGroupGloo*reduce_scatter_singleE*|\
                 _ZN4c10d16ProcessGroupGloo*_reduce_scatter_baseE*|\
                 _ZN4c10d16ProcessGroupGloo8alltoallE*|\
                 _ZN4c10d16ProcessGroupGloo*all_to_all_singleE*|\
                 _ZN4c10d16ProcessGroupGloo13alltoall_baseE*|_ZN4c10d16ProcessGroupGloo6gatherE*|\
                 _ZN4c10d16ProcessGroupGloo7scatterE*|_ZN4c10d16ProcessGroupGloo4sendE*|\
                 _ZN4c10d16ProcessGroupGloo4recvE*|_ZN4c10d16ProcessGroupGloo13recvAnysourceE*|\
                 _ZN4c10d16ProcessGroupGloo7barrierE*|\
                 _ZN4c10d16ProcessGroupGloo16monitoredBarrierE*|\
                 _ZN4c10d16ProcessGroupNCCL9allreduceE*|\
                 _ZN4c10d16ProcessGroupNCCL19allreduce_coalescedE*|\
                 _ZN4c10d16ProcessGroupNCCL9allgatherE*|\
                 _ZN4c10d16ProcessGroupNCCL*all_gather_singleE*|\
                 _ZN4c10d16ProcessGroupNCCL*_allgather_baseE*|\
                 _ZN4c10d16ProcessGroupNCCL9broadcastE*|_ZN4c10d16ProcessGroupNCCL6reduceE*|\
                 _ZN4c10d16ProcessGroupNCCL14reduce_scatterE*|\
                 _ZN4c10d16ProcessGroupNCCL*reduce_scatter_singleE*|\
                 _ZN4c10d16ProcessGroupNCCL*_reduce_scatter_baseE*|\
                 _ZN4c10d16ProcessGroupNCCL8alltoallE*|\
                 _ZN4c10d16ProcessGroupNCCL*all_to_all_singleE*|\
                 _ZN4c10d16ProcessGroupNCCL13alltoall_baseE*|_ZN4c10d16ProcessGroupNCCL6gatherE*|\
                 _ZN4c10d16ProcessGroupNCCL7scatterE*|_ZN4c10d16ProcessGroupNCCL4sendE*|\
                 _ZN4c10d16ProcessGroupNCCL4recvE*|_ZN4c10d16ProcessGroupNCCL7barrierE*|\
                 _ZN4c10d4Work4waitE*|_ZN4c10d16ProcessGroupGloo8RecvWork4waitE*|\
                 _ZN4c10d16ProcessGroupGloo8SendWork4waitE*|\
                 _ZN4c10d16ProcessGroupNCCL8WorkNCCL4waitE*|\
                 _ZN4c10d16ProcessGroupNCCL8WorkNCCL11synchronizeEv|_ZN4gloo9allreduceE*|\
                 _ZN4gloo9allgatherE*|_ZN4gloo10allgathervE*|_ZN4gloo7barrierE*|\
                 _ZN4gloo9broadcastE*|_ZN4gloo6reduceE*|_ZN4gloo7scatterE*|_ZN4gloo6gatherE*|\
                 _ZN4gloo7gathervE*|_ZN4gloo8alltoallE*|_ZN4gloo9alltoallvE*",
        )],
        ..GROUP
    },
    Group {
        name: "nccl",
        libraries: &["libnccl"],
        functions: &[
            Functions::span(
                "collective",
                "ncclAllReduce|ncclReduce|ncclBroadcast|ncclAllGather|ncclReduceScatter|\
                 ncclAlltoAll|ncclAllToAll|ncclGather|ncclScatter",
            )
            .of(Size::Elements(2, 3))
            .c(),
            Functions::span("collective", "ncclSend|ncclRecv|ncclBcast")
                .of(Size::Elements(1, 2))
                .c(),
            Functions::span(
                "collective",
                "ncclGroupEnd|ncclCommInitRank|ncclCommInitRankConfig|ncclCommInitAll|\
                 ncclCommSplit|ncclCommFinalize|ncclCommDestroy|ncclCommAbort",
            )
            .c(),
        ],
        ..GROUP
    },
    Group {
        name: "cuda",
        libraries: CUDART,
        functions: &[
            Functions::count(
                "launch",
                "cudaLaunchKernel|cudaLaunchKernelExC|cudaLaunchCooperativeKernel|cudaGraphLaunch",
            ),
            Functions::span("copy", "cudaMemcpy|cudaMemcpyAsync|cudaMemset|cudaMemsetAsync")
                .of(Size::Arg(2))
                .c(),
            Functions::span(
                "copy",
                "cudaMemcpyToSymbol|cudaMemcpyToSymbolAsync|cudaMemcpyFromSymbol|\
                 cudaMemcpyFromSymbolAsync",
            )
            .of(Size::Arg(2))
            .c(),
            Functions::span("copy", "cudaMemcpyPeer|cudaMemcpyPeerAsync")
                .of(Size::Arg(4))
                .c(),
            Functions::span("copy", "cudaMemcpy2D|cudaMemcpy2DAsync")
                .of(Size::Product(4, 5))
                .c(),
            Functions::span(
                "sync",
                "cudaStreamSynchronize|cudaDeviceSynchronize|cudaEventSynchronize",
            )
            .c(),
            Functions::count("device", "cudaSetDevice").does(What::SetDevice),
        ],
        ..GROUP
    },
    Group {
        name: "cuda driver",
        libraries: CUDA,
        unless: Some("libcudart"),
        functions: &[
            Functions::count(
                "launch",
                "cuLaunchKernel|cuLaunchKernelEx|cuLaunchCooperativeKernel|cuGraphLaunch",
            ),
            Functions::span(
                "copy",
                "cuMemcpy|cuMemcpyAsync|cuMemcpyHtoD_v2|cuMemcpyDtoH_v2|cuMemcpyDtoD_v2|\
                 cuMemcpyHtoDAsync_v2|cuMemcpyDtoHAsync_v2|cuMemcpyDtoDAsync_v2",
            )
            .of(Size::Arg(2))
            .c(),
            Functions::span("sync", "cuStreamSynchronize|cuEventSynchronize|cuCtxSynchronize").c(),
        ],
        ..GROUP
    },
    Group {
        name: "gc",
        libraries: PYTHON,
        local: true,
        functions: &[Functions::span(
            "gc",
            "gc_collect_main|gc_collect_main.*|_gc_collect_main|_PyGC_Collect",
        )
        .c()],
        ..GROUP
    },
    Group {
        name: "gil",
        libraries: PYTHON,
        local: true,
        functions: &[Functions::timed("gil", "take_gil|take_gil.*").c()],
        ..GROUP
    },
    Group {
        name: "operators",
        libraries: TORCH_CPU,
        functions: &[Functions::count("operator", "_ZN2at4_ops*4callE*")],
        ..GROUP
    },
    Group {
        name: "operator times",
        libraries: TORCH_CPU,
        functions: &[Functions::timed("operator", "_ZN2at4_ops*4callE*")],
        ..GROUP
    },
    Group {
        name: "forwards",
        libraries: TORCH_CPU,

        // Runs of a model as a server does them, told by few calls of each.
        functions: &[Functions::count(
            "forward",
            "_ZN2at4_ops9embedding4callE*|_ZN2at4_ops13embedding_bag4callE*",
        )
        .mark(Mark::Begin)],
        ..GROUP
    },
    Group {
        name: "forward ends",
        libraries: &["libtorch_cpu", "libtorch_python"],
        local: true,
        functions: &[
            Functions::count(
                "forward",
                "_ZN2at4_ops6argmax4callE*|_ZN2at4_ops11multinomial4callE*|\
                 _ZN2at4_ops7max_dim4callE*|_ZN2at4_ops12exponential_4callE*|\
                 _ZN5torch5utils14tensor_to_listE*|_ZN5torch5utils15tensor_to_numpyE*",
            )
            .mark(Mark::End),
            // Waits for the device: the run lasts until it returns.
            Functions::span("forward", "_ZN2at4_ops19_local_scalar_dense4callE*").mark(Mark::End),
        ],
        ..GROUP
    },
    Group {
        name: "forward layers",
        libraries: TORCH_CPU,

        // Many in each run: taken off again as soon as the ends tell enough.
        functions: &[Functions::count(
            "forward",
            "_ZN2at4_ops6linear4callE*|_ZN2at4_ops6conv1d4callE*|_ZN2at4_ops6conv2d4callE*|\
                 _ZN2at4_ops14conv2d_padding4callE*|_ZN2at4_ops5addmm4callE*|\
                 _ZN2at4_ops6matmul4callE*|_ZN2at4_ops30_transformer_encoder_layer_fwd4callE*",
        )
        .mark(Mark::Layer)],
        ..GROUP
    },
    Group {
        name: "tensor memory",
        libraries: TENSORS,
        only_with: Some("libc10"),
        functions: &[
            Functions::count("alloc", "_ZN3c109alloc_cpuEm")
                .does(What::AllocOuter)
                .of(Size::Arg(0)),
            Functions::free("_ZN3c108free_cpuEPv"),
            Functions::alloc("posix_memalign")
                .does(What::AllocInner)
                .at(Address::Arg(0))
                .status(),
        ],
        ..GROUP
    },
    Group {
        name: "caching allocator",
        libraries: &["libc10_cuda"],
        local: true,
        functions: &[
            Functions::count(
                "alloc",
                "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator6mallocEPPva*",
            )
            .does(What::Alloc)
            .of(Size::Arg(3))
            .at(Address::Arg(1))
            .on(MemoryPlace::DeviceArg2),
            Functions::free(
                "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator4freeEPv|\
                 _ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator10raw_deleteEPv",
            )
            .at(Address::Arg(1))
            .on(MemoryPlace::Device),
            // What tensors are freed by: the compiler puts the body of free into it.
            Functions::free("_ZN3c104cuda20CUDACachingAllocator6Native*16local_raw_deleteEPv")
                .on(MemoryPlace::Device),
        ],
        ..GROUP
    },
    Group {
        name: "cuda memory",
        libraries: CUDART,
        functions: &[
            Functions::alloc("cudaMalloc|cudaMallocAsync|cudaMallocFromPoolAsync|cudaMallocManaged")
                .of(Size::Arg(1))
                .at(Address::Arg(0))
                .on(MemoryPlace::Device)
                .status()
                .and_timed(),
            Functions::alloc("cudaMallocPitch")
                .of(Size::Product(2, 3))
                .at(Address::Arg(0))
                .on(MemoryPlace::Device)
                .status()
                .and_timed(),
            Functions::alloc("cudaMallocHost|cudaHostAlloc")
                .of(Size::Arg(1))
                .at(Address::Arg(0))
                .status()
                .and_timed(),
            Functions::free("cudaFree|cudaFreeAsync")
                .on(MemoryPlace::Device)
                .and_timed()
                .c(),
            Functions::free("cudaFreeHost").and_timed().c(),
        ],
        ..GROUP
    },
    Group {
        name: "cuda driver memory",
        libraries: CUDA,
        unless: Some("libcudart"),
        functions: &[
            Functions::alloc("cuMemAlloc_v2|cuMemAllocAsync|cuMemAllocFromPoolAsync|cuMemAllocManaged")
                .of(Size::Arg(1))
                .at(Address::Arg(0))
                .on(MemoryPlace::Device)
                .status()
                .and_timed(),
            Functions::alloc("cuMemAllocHost_v2|cuMemHostAlloc")
                .of(Size::Arg(1))
                .at(Address::Arg(0))
                .status()
                .and_timed(),
            Functions::free("cuMemFree_v2|cuMemFreeAsync")
                .on(MemoryPlace::Device)
                .and_timed()
                .c(),
            Functions::free("cuMemFreeHost").and_timed().c(),
        ],
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

        // What allocators take of the kernel, and programs past them: arenas of small Python objects, blocks of their own for
        // large ones, the heap. Few calls, so they are cheap to follow where `malloc` is not.
        functions: &[
            Functions::alloc("mmap|mmap64")
                .of(Size::Arg(1))
                .on(MemoryPlace::Pages),
            Functions::alloc("mremap")
                .does(What::Realloc)
                .of(Size::Arg(2))
                .at(Address::Arg(0))
                .on(MemoryPlace::Pages),
            Functions::alloc("sbrk")
                .does(What::Break)
                .of(Size::Arg(0))
                .on(MemoryPlace::Pages),
            Functions::free("munmap").on(MemoryPlace::Pages),
        ],
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
