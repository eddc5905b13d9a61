from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scope.worlds import MS, World, at
from unidle.scope.model import Call, Span
from unidle.scope.process_roles import roles_of
from unidle.scope.steps import StepReport, quantile, steps_of

BACKWARD = (at("train", 6), "THPEngine_run_backward [libtorch_python.so]")


def report(spans: list[Span], calls: tuple[Call, ...] = (), pids: tuple[int, ...] = (1,)) -> StepReport:
    from dataclasses import replace

    w = World()
    for n, pid in enumerate(pids):
        w.process(pid, rank=n if len(pids) > 1 else None).sees(pid, "on", 100, *BACKWARD)
    w.spans = spans
    profile = replace(w.profile(), calls=calls)
    return steps_of(profile, roles_of(profile))


def calls(kind: str, starts_ms: list[int], lasts_ms: int = 2, pid: int = 1, tid: int | None = None, name: str = "f", n_bytes: int = 0) -> list[Span]:  # fmt: skip
    return [Span(pid, tid or pid, name, kind, s * MS, (s + lasts_ms) * MS, n_bytes) for s in starts_ms]


def test_steps_last_from_one_call_of_the_optimizer_to_the_next() -> None:
    found = report(calls("optimizer", [0, 100, 200, 350]) + calls("backward", [0, 10, 20, 30, 40]))
    assert (found.count, found.quantile_ms(0.5)) == (4, 100.0)
    assert found.quantile_ms(0.99) == 149.0
    assert next(iter(found.ranks.values())).of == "optimizer"


def test_a_call_inside_another_is_no_step_of_its_own() -> None:
    found = report(
        calls("backward", [0, 100, 200], lasts_ms=50) + calls("backward", [10, 110, 210], lasts_ms=5)
    )
    assert (found.count, found.quantile_ms(0.5)) == (3, 100.0)


def test_collectives_count_by_the_pattern_that_they_repeat() -> None:
    spans = []
    for step in range(4):
        spans += calls("collective", [100 * step], name="allreduce", n_bytes=10)
        spans += calls("collective", [100 * step + 10], name="allreduce", n_bytes=20)
        spans += calls("collective", [100 * step + 20], name="barrier")
    found = report(spans)
    assert (found.count, found.quantile_ms(0.5)) == (4, 100.0)


def test_collectives_without_a_pattern_are_no_steps() -> None:
    spans = [one for n in range(12) for one in calls("collective", [n * 10], n_bytes=n * n)]
    assert report(spans).count is None


def test_calls_without_times_are_counted_only() -> None:
    found = report([], (Call(1, 1, "Engine::execute", "backward", 7),))
    assert (found.count, found.quantile_ms(0.5)) == (7, None)


def test_nothing_seen_says_why() -> None:
    found = report([])
    assert found.count is None
    assert "backward" in found.why_not


def test_a_gang_has_made_as_many_steps_as_its_slowest_rank() -> None:
    spans = calls("optimizer", [0, 10, 20, 30], pid=1) + calls("optimizer", [0, 20, 40], pid=2)
    found = report(spans, pids=(1, 2))
    assert found.count == 3
    assert found.quantile_ms(1.0) == 20.0


@given(st.lists(st.integers(0, 10**9), min_size=1), st.floats(0, 1))
def test_a_quantile_lies_between_the_least_and_the_most(values: list[int], share: float) -> None:
    assert min(values) <= quantile(values, share) <= max(values) + 1e-6
