"""The engines under the contract. The next one needs a line in ``RIGS``, and in ``NO_MEANING`` what does not apply to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import needs
from engine_contract.process_rigs import HostsRig, LocalRig, make_lab
from engine_contract.rigs import EngineRig
from engine_contract.sim_rig import SimRig
from unidle.drill.lab import Lab


@contextmanager
def _local(place: Path) -> Iterator[EngineRig]:
    rig = LocalRig(place)
    yield rig
    rig.close()


@contextmanager
def _sim(place: Path) -> Iterator[EngineRig]:
    rig = SimRig(place)
    yield rig
    rig.close()


@contextmanager
def _hosts(place: Path) -> Iterator[EngineRig]:
    rig = HostsRig(place, lab())
    try:
        yield rig
    finally:
        rig.close()


@cache
def lab() -> Lab:
    """The hosts of the session; :func:`close_lab` takes them down."""
    return make_lab()


def close_lab() -> None:
    if lab.cache_info().currsize:
        lab().close()
        lab.cache_clear()
    if "engine_contract.kube_rig" in sys.modules:
        from engine_contract.kube_rig import close_cluster

        close_cluster()


@contextmanager
def _kube(place: Path) -> Iterator[EngineRig]:
    from engine_contract.kube_rig import KubeRig, contract_cluster

    rig = KubeRig(place, contract_cluster())
    try:
        yield rig
    finally:
        rig.close()


RIGS: dict[str, Callable[[Path], Any]] = {"local": _local, "sim": _sim, "hosts": _hosts, "kube": _kube}
MARKS = {"hosts": [needs.shaping], "kube": [pytest.mark.kube, needs.kube, needs.own_mounts]}
_ONE_MACHINE = "its ranks are on the controller's machine: no connection can be lost"
_NO_AGENT = "no agent runs on its nodes yet"
_NO_PROCESS = "its ranks are no processes"
NO_MEANING: dict[str, dict[str, str]] = {
    "local": {"silence": _ONE_MACHINE, "cut": _ONE_MACHINE},
    "sim": {
        "silence": _ONE_MACHINE, "cut": "nodes that fail are in tests/sim", "kill": _NO_PROCESS, "hang": _NO_PROCESS, "slow disk": _NO_PROCESS,
        "bad checkpoint": "its checkpoints are no files", "warm": _NO_PROCESS,
        "two controllers": "one engine is handed from controller to controller",
        "parts": _NO_PROCESS, "refused part": "its devices can be cut in every way",
    },
    "hosts": {},
    "kube": {"idle": _NO_AGENT, "hang": _NO_AGENT, "bad checkpoint": "a box in a pod is one file, without what reads checkpoints", "parts": "it refuses parts of devices"},
}  # fmt: skip
"""By engine: the scenarios that have no meaning for it, and why."""
SCENARIOS = ("start", "finish", "fail", "kill", "stop", "silence", "adopt", "hang", "idle", "cut", "retry", "two controllers", "clock jump", "slow disk", "bad checkpoint", "warm", "parts", "refused part")  # fmt: skip


def scenario(name: str) -> pytest.MarkDecorator:
    """Run a test for each engine for which the scenario has a meaning."""
    assert name in SCENARIOS
    engines = [engine for engine in RIGS if name not in NO_MEANING[engine]]
    return pytest.mark.parametrize(
        "rig", [pytest.param(engine, marks=MARKS.get(engine, [])) for engine in engines], indirect=True
    )
