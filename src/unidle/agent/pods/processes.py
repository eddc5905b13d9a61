"""Processes of pods, as the node's /proc shows them to a pod that shares its process namespace.

A process in a pod has another number there. The start time is the same inside and outside, and
the control group names the pod: so a pod cannot give out another process for its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from unidle.engine.local.ranks import process_tree

_ENVIRONMENT_BYTES: Final = 1 << 20
_VARIABLE: Final = b"UNIDLE_BOX="


@dataclass(frozen=True, slots=True)
class BoxProcess:
    """The first process of a container with a box: number and start time on the node, and what the box was given."""

    pid: int
    ticks: int
    given: dict[str, Any]

    @property
    def lives(self) -> bool:
        return process_tree.ticks_of(self.pid) == self.ticks and process_tree.is_live(self.pid)


def box_of(uid: str) -> BoxProcess | None:
    """The box of a pod; None while it has none."""
    for pid in process_tree.all_pids():
        if number_in_pod(pid) == 1 and is_in_pod(pid, uid) and (given := _given(pid)) is not None:
            ticks = process_tree.ticks_of(pid)
            return None if ticks is None else BoxProcess(pid, ticks, given)
    return None


def on_node(uid: str, pid: int, ticks: int) -> int | None:
    """The number on the node of the process that has the number ``pid`` in its pod and started at ``ticks``; None if it is gone."""
    for one in process_tree.all_pids():
        if process_tree.ticks_of(one) == ticks and number_in_pod(one) == pid and is_in_pod(one, uid):
            return one
    return None


def number_in_pod(pid: int) -> int | None:
    """The number of a process in the innermost namespace; None for one of the node's own, and one that is gone."""
    try:
        status = process_tree.said(f"/proc/{pid}/status")
    except OSError:
        return None
    line = next((line for line in status.split(b"\n") if line.startswith(b"NSpid:")), b"")
    numbers = line.split()[1:]
    return int(numbers[-1]) if len(numbers) > 1 else None


def is_in_pod(pid: int, uid: str) -> bool:
    """Whether a process is in a control group of the pod, by either way of naming these."""
    try:
        groups = process_tree.said(f"/proc/{pid}/cgroup")
    except OSError:
        return False
    return any(f"pod{name}".encode() in groups for name in (uid, uid.replace("-", "_")))


def _given(pid: int) -> dict[str, Any] | None:
    """What the kubelet put into the environment of a box; None for another process."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read(_ENVIRONMENT_BYTES).split(b"\0")
    except OSError:
        return None
    text = next((entry[len(_VARIABLE) :] for entry in entries if entry.startswith(_VARIABLE)), None)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
