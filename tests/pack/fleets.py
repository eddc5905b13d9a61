"""Small fleets and streams of requests for the tests of packing."""

from __future__ import annotations

from hypothesis import strategies as st

from unidle.jobs.packing import NodeSize, PodDemand

MODELS = ("A10", "T4", "V100")


def node(
    name: str = "n0", cpu: int = 96_000, memory: int = 1_000, gpus: int = 8, model: str = "T4"
) -> NodeSize:
    return NodeSize(name, cpu, memory, gpus, model if gpus else "")


def part(milli: int, cpu: int = 0, **more: object) -> PodDemand:
    return PodDemand(cpu_milli=cpu, gpus=1, gpu_milli=milli, **more)  # type: ignore[arg-type]


def whole(gpus: int, cpu: int = 0, **more: object) -> PodDemand:
    return PodDemand(cpu_milli=cpu, gpus=gpus, gpu_milli=1000, **more)  # type: ignore[arg-type]


demands = st.one_of(
    st.builds(lambda cpu, memory: PodDemand(cpu, memory), st.integers(0, 40_000), st.integers(0, 900)),
    st.builds(
        PodDemand,
        st.sampled_from([0, 1_000, 4_000, 12_000, 30_000]),
        st.sampled_from([0, 10, 100, 700]),
        st.just(1),
        st.sampled_from([1, 100, 333, 500, 501, 999, 1000]),
        st.sets(st.sampled_from(MODELS), max_size=2).map(frozenset),
    ),
    st.builds(
        lambda cpu, gpus, milli: PodDemand(cpu, 50, gpus, milli),
        st.sampled_from([0, 8_000]),
        st.sampled_from([2, 3, 4, 8]),
        st.sampled_from([250, 600, 1000]),
    ),
)
nodes = st.lists(
    st.builds(
        lambda cpu, gpus, model: node("", cpu, 1_000, gpus, model),
        cpu=st.sampled_from([8_000, 32_000, 96_000]),
        gpus=st.sampled_from([0, 1, 2, 4, 8, 10]),
        model=st.sampled_from(MODELS),
    ),
    min_size=1,
    max_size=8,
).map(lambda rows: [row._replace(name=f"n{k}") for k, row in enumerate(rows)])
