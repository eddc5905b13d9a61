"""Folded stacks: read back, conserved, and never broken by a name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_export import profiles
from unidle.errors import BadInput
from unidle.scope.export import folded, names
from unidle.scope.model import Frame, Profile, Sample


def test_each_stack_is_one_line_with_rank_and_thread_first() -> None:
    read = folded.read(folded.write(profiles.small()))
    stack = (
        "rank 0 (pid 100)", "python (tid 100)", "<module> (train.py:88)", "train_step (train.py:41)",
        "forward (net.py:12)", "at::_ops::addmm::call(at::Tensor const&, at::Tensor const&) (libtorch_cpu.so)",
        "mkl_blas_avx512_sgemm_kernel (libmkl_core.so)", "[on CPU]",
    )  # fmt: skip
    assert read[stack] == 5_000_000
    assert len(read) == len(profiles.small().samples)


def test_weights_are_microseconds_samples_or_bytes() -> None:
    profile = profiles.small()
    assert sum(folded.read(folded.write(profile, weight="samples")).values()) == 2030
    us = sum(folded.read(folded.write(profile)).values())
    assert us == round(sum(s.ns for s in profile.samples) / 1000)
    assert sum(folded.read(folded.write(profile, weight="live_bytes")).values()) == 6_000_000
    assert sum(folded.read(folded.write(profile, weight="allocated_bytes")).values()) == 18_000_000


def test_the_state_stands_where_it_is_asked_for() -> None:
    profile = profiles.small()
    leaf = folded.read(folded.write(profile, threads=False))
    root = folded.read(folded.write(profile, threads=False, states="root"))
    none = folded.read(folded.write(profile, threads=False, states="none"))
    assert {stack[-1] for stack in leaf} == {"[on CPU]", "[off CPU]", "[waiting for a CPU]"}
    assert {stack[0] for stack in root} == {"[on CPU]", "[off CPU]", "[waiting for a CPU]"}
    assert ("[no frames]",) in none
    assert sum(leaf.values()) == sum(root.values()) == sum(none.values())


def test_without_lines_a_function_is_one_frame() -> None:
    with_lines = folded.read(folded.write(profiles.small(), threads=False))
    without = folded.read(folded.write(profiles.small(), threads=False, lines=False))
    assert {frame for stack in without for frame in stack if "train_step" in frame} == {
        "train_step (train.py)"
    }
    assert {frame for stack in with_lines for frame in stack if "train_step" in frame} == {
        "train_step (train.py:41)",
        "train_step (train.py:43)",
    }


def test_readers_that_want_a_number_at_the_end_skip_the_comments() -> None:
    lines = folded.write(profiles.hostile()).decode().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert len(comments) == 1 + len(names.quality(profiles.hostile()))
    assert not any(re.fullmatch(r"(.*)\s+?(\d+(?:\.\d*)?)", line) for line in comments)
    assert all(re.fullmatch(r"(.*) (\d+)", line) for line in lines if not line.startswith("#"))


@given(st.lists(st.text(), min_size=1, max_size=5), st.integers(1, 10**12))
def test_any_names_come_back_as_they_are_shown(functions: list[str], ns: int) -> None:
    frames = tuple(Frame("native", name) for name in functions)
    profile = Profile("T0", 0, 1, frames, (tuple(range(len(frames))),), (Sample(1, 1, 0, "on", ns, ns),))
    read = folded.read(folded.write(profile, weight="samples", threads=False, states="none"))
    assert read == {tuple(names.label(frame) for frame in frames): ns}


@given(st.lists(st.integers(1, 5000), max_size=60))
def test_rounding_keeps_the_sum(amounts: list[int]) -> None:
    frames = tuple(Frame("native", f"f{k}") for k in range(len(amounts)))
    samples = tuple(Sample(1, 1, k, "on", 1, ns) for k, ns in enumerate(amounts))
    profile = Profile("T0", 0, 1, frames, tuple((k,) for k in range(len(amounts))), samples)
    assert abs(sum(folded.read(folded.write(profile)).values()) * 1000 - sum(amounts)) <= 500


@pytest.mark.parametrize("text", ["main;step", "main;step x", " 12x"])
def test_a_line_without_a_number_is_refused_by_its_number(text: str) -> None:
    with pytest.raises(BadInput, match="line 2"):
        folded.read(f"a;b 1\n{text}\n".encode())


def test_an_unknown_weight_is_refused() -> None:
    with pytest.raises(BadInput, match="weight"):
        folded.write(profiles.small(), weight="hours")  # type: ignore[arg-type]
