"""Spares and probation together, with nodes that fall and are repaired: who may be where, at every start of a log."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from control.remedy_worlds import RemedyWorld
from loopcheck import Checker, Known
from unidle.events import types as ev
from unidle.fleet import device_of
from unidle.view.fold import apply
from unidle.view.spares import on_trial
from unidle.view.state import View

some = settings(max_examples=int(os.environ.get("UNIDLE_KEPT_EXAMPLES", "40")), deadline=None)
END_S = 1200
GUARD: dict[str, Any] = {
    "preflight": "off", "probation": "150s", "probation_every": "40s", "probation_work": "low", "drain": "20s", "drain_hard": "5s",
    "remedy": {
        "reset_gpu": {"command": ["reset_gpu", "{device}"], "timeout": "60s"},
        "reboot": {"command": ["reboot", "{node}"], "timeout": "60s"},
        "replace": {"command": ["replace", "{node}"], "timeout": "60s"},
    },
    "prove": {"command": ["prove"], "timeout": "60s"}, "quick": {"command": ["quick"], "timeout": "60s"},
    "out": {"nodes": 2, "tier_percent": 100}, "lemon": {"times": 9, "within": "1d"},
}  # fmt: skip
HANDS = {"reboot": [{"after_s": 20}], "reset_gpu": [{"after_s": 5}], "quick": [{}, {"code": 1}, {}]}
TIMES = st.integers(0, 500)
JOBS = st.fixed_dictionaries(
    {
        "preemption": st.sampled_from(["low", "low", "medium", "high"]),
        "ranks": st.sampled_from([1, 2, 2, 3, 4]),
        "min_runtime_s": st.sampled_from([0, 0, 30]),
        "restart": st.just({"max": 2, "backoff_s": 1}),
        "submit_s": TIMES,
        "does": st.fixed_dictionaries({"work_s": st.sampled_from([20, 100, 400]), "step_s": st.just(5)}),
    }
)
FAULTS = st.tuples(
    TIMES, st.sampled_from([("n1", "reboot_node"), ("n3", "reboot_node"), ("n2/1", "reset_gpu")])
)


class KeptChecker(Checker):
    """Knows that what is on probation is no spare, and who may be there."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self._view = view

    def _is_clean(self, node: str, besides: Known | None = None) -> bool:
        trial = any(target.partition("/")[0] == node for target in on_trial(self._view))
        return not trial and super()._is_clean(node, besides)

    def _placed(self, event: ev.AttemptPlaced) -> None:
        if self.jobs[event.job].spec.preemption != "low":
            used = {name for p in event.places for name in (p.node, *map(device_of, p.slices))}
            self._need(not on_trial(self._view) & used, "only low jobs are on probation", event.job)
        super()._placed(event)


def lived(spares: Any, jobs: list[dict[str, Any]], faults: list[tuple[int, tuple[str, str]]]) -> RemedyWorld:
    nodes = [{"id": "n[1-4]", "devices": {"count": 2, "kind": "gpu"}}]
    named = {f"j{k}": {"device": "gpu", **job} for k, job in enumerate(jobs)}
    submits = [(job.pop("submit_s"), 0, (name,)) for name, job in named.items()]
    world = RemedyWorld({"nodes": nodes, "guard": {**GUARD, "spares": spares}}, named, HANDS)
    for at_s, _, what in sorted([*submits, *((at_s, 1, what) for at_s, what in faults)]):
        world.until(at_s)
        if len(what) == 1:
            world.submit(what[0])
        else:
            world.fault(*what)
    world.until(END_S)
    return world


@some
@given(
    st.sampled_from([0, 1, 2, ["n2"], ["n3", "n4"]]), st.lists(JOBS, min_size=1, max_size=8), st.lists(FAULTS, max_size=3)
)  # fmt: skip
def test_only_low_jobs_are_on_probation_and_spares_stay(
    spares: Any, jobs: list[dict[str, Any]], faults: list[tuple[int, tuple[str, str]]]
) -> None:
    world = lived(spares, jobs, faults)
    view = View()
    checker = KeptChecker(view)
    for stored in world.store.read():
        event = ev.decode(stored.kind, stored.body, stored.seq)
        checker.see(event, stored.time_ns)
        apply(view, event, stored.seq, stored.time_ns)
    left = {target for target, here in view.care.targets.items() if here.state in ("out", "quarantine")}
    for job in view.jobs.open.values():
        nodes = {place.node for place in job.live.places} if job.live is not None else set()
        assert not nodes & left, f"{job.id} works on what is out"
    world.device_s("n1/0")  # all of the ledger has to add up
