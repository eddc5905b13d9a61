"""From a drill file to a :class:`Drill`: a job, nodes, and faults that fit them."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unidle.errors import BadInput
from unidle.files.check import convert
from unidle.files.document import Bounds, Document
from unidle.files.drill_file import DrillFile, FaultKind, FaultPart
from unidle.files.job import job_from_mapping, load_job
from unidle.files.load import base_dir_of, load_document, source_name
from unidle.files.values import memory_bytes
from unidle.jobs import JobSpec
from unidle.words import counted

PARAMETERS: Final = ("factor", "mbit_per_s", "ms", "bytes_per_s", "how", "line", "field", "value")


@dataclass(frozen=True, slots=True)
class _Form:
    """The targets and the required fields of a kind of fault."""

    targets: tuple[str, ...]
    needs: tuple[str, ...] = ()


FORMS: Final[dict[FaultKind, _Form]] = {
    "kill": _Form(("rank", "node")),
    "stop": _Form(("rank", "node")),
    "slow": _Form(("rank", "node"), ("factor",)),
    "cut": _Form(("link", "node")),
    "delay": _Form(("link", "node"), ("ms",)),
    "rate": _Form(("link", "node"), ("mbit_per_s",)),
    "disk_full": _Form(("checkpoint",)),
    "disk_slow": _Form(("checkpoint",), ("bytes_per_s",)),
    "corrupt_checkpoint": _Form(("checkpoint",), ("how",)),
    "kernel_log": _Form(("node", "device"), ("line",)),
    "nvml": _Form(("device",), ("field", "value")),
    "controller_kill": _Form(("controller",)),
    "power_cut": _Form(("machine",)),
}
_EXAMPLES: Final = {
    "rank": "rank:2", "node": "node:n1", "link": "link:n1-n2", "device": "device:n1/0",
    "checkpoint": "checkpoint", "controller": "controller",
    "machine": "machine",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Exactly one of ``at_step``, ``at_s``, ``during``, ``after`` is given.

    ``target`` is ``rank:2``, ``node:n1``, ``link:n1-n2``, ``device:n1/0``, ``checkpoint``, ``controller`` or
    ``machine``.
    ``for_s``: seconds until it is undone; None: when it was identified.
    """

    kind: FaultKind
    target: str
    at_step: int | None = None
    at_s: float | None = None
    during: str | None = None
    after: str | None = None
    for_s: float | None = None
    factor: float = 0.0
    mbit_per_s: float = 0.0
    ms: float = 0.0
    bytes_per_s: int = 0
    how: str = ""
    line: str = ""
    field: str = ""
    value: float | bool = 0.0

    @property
    def target_kind(self) -> str:
        return self.target.partition(":")[0]

    @property
    def name(self) -> str:
        """The target without its kind."""
        return self.target.partition(":")[2]

    @property
    def when(self) -> str:
        """When it happens, in words."""
        if self.at_step is not None:
            return f"step {self.at_step}"
        if self.at_s is not None:
            return f"{self.at_s:g} s"
        return "during recovery" if self.during else "after recovery"


@dataclass(frozen=True, slots=True)
class Drill:
    """A whole drill. ``devices``: how many each node has; ``result`` is relative to the job's workdir.

    Sizes in bytes, times in seconds.
    """

    job: JobSpec
    nodes: tuple[str, ...]
    devices: tuple[int, ...]
    faults: tuple[Fault, ...]
    seed: int = 0
    result: str | None = None
    tolerance: float = 1e-12
    disk_bytes: int = 256 << 20
    timeout_s: float = 600.0

    def link(self, name: str) -> tuple[str, str]:
        """The nodes of ``n1-n2``."""
        for a in self.nodes:
            if name.startswith(f"{a}-") and (b := name[len(a) + 1 :]) in self.nodes and b != a:
                return a, b
        raise BadInput(
            "is not a link between two nodes of the drill", field="target", value=f"link:{name}",
            remedy=f"its nodes are {', '.join(self.nodes)}",
        )  # fmt: skip


def load_drill(path: str | os.PathLike[str]) -> Drill:
    """The drill in the YAML or JSON file ``path``; ``-`` is standard input.

    Errors: :class:`unidle.errors.BadInput`, with the line.
    """
    document = load_document(path, what="drill", bounds=Bounds())
    if not isinstance(document.data, Mapping):
        raise document.error(
            (), "a drill file must be a mapping of fields",
            remedy="the shortest form is: job: job.yaml, and faults: [{at_step: 10, kind: kill, target: 'rank:0'}]",
        )  # fmt: skip
    file = convert(document, DrillFile, what="drill")
    base = base_dir_of(path)
    if isinstance(file.job, str):
        spec = load_job(Path(base) / file.job)
    else:
        spec = job_from_mapping(document.data["job"], f"{source_name(path)}: job", base)
    chance = random.Random(file.seed)
    nodes = tuple(f"n{k + 1}" for k in range(file.nodes))
    if file.devices and len(file.devices) != len(nodes):
        raise document.error(
            ("devices",),
            f"gives {len(file.devices)} of {counted(len(nodes), 'node')}",
            value=list(file.devices),
            remedy="one number for each node",
        )
    devices = file.devices or devices_for(spec, len(nodes))
    faults = tuple(_fault(document, k, part, spec, nodes, chance) for k, part in enumerate(file.faults))
    drill = Drill(
        job=spec, nodes=nodes, devices=devices, faults=faults, seed=file.seed,
        result=file.result, tolerance=file.tolerance, disk_bytes=memory_bytes(file.disk), timeout_s=file.timeout_s,
    )  # fmt: skip
    for k, fault in enumerate(faults):
        problem = why_not(drill, fault)
        if problem is not None:
            raise document.error(("faults", k, "target"), problem[0], value=fault.target, remedy=problem[1])
    return drill


def devices_for(spec: JobSpec, nodes: int) -> tuple[int, ...]:
    """Devices of each node, so that all together hold the job and each has a part of it where there are ranks enough."""
    each, more = divmod(spec.ranks, nodes)
    return tuple(max(each + (k < more), 1) * spec.devices_per_rank for k in range(nodes))


def why_not(drill: Drill, fault: Fault) -> tuple[str, str] | None:
    """Why a fault does not fit a drill, and the remedy."""
    form, spec = FORMS[fault.kind], drill.job
    if fault.target_kind not in form.targets:
        return f"{fault.kind} is not possible for this target", f"for instance {_EXAMPLES[form.targets[0]]}"
    if fault.target_kind == "rank" and int(fault.name) >= spec.ranks:
        return "there is no such rank", f"the job has ranks 0 to {spec.ranks - 1}"
    if fault.target_kind == "node" and fault.name not in drill.nodes:
        return "there is no such node", f"the drill has {', '.join(drill.nodes)}"
    if fault.target_kind == "link":
        try:
            drill.link(fault.name)
        except BadInput as error:
            return error.problem, error.remedy or ""
    if fault.target_kind == "device":
        node, _, index = fault.name.rpartition("/")
        if node not in drill.nodes or int(index) >= drill.devices[drill.nodes.index(node)]:
            last = f"{drill.nodes[-1]}/{drill.devices[-1] - 1}"
            return "there is no such device", f"the drill has n1/0 to {last}"
    if fault.target_kind == "checkpoint" and spec.checkpoint_path is None:
        return "the job has no checkpoints", "give the job a checkpoint.path"
    return None


def _fault(
    document: Document, k: int, part: FaultPart, spec: JobSpec, nodes: tuple[str, ...], chance: random.Random
) -> Fault:
    form = FORMS[part.kind]
    given = {name: getattr(part, name) for name in PARAMETERS if getattr(part, name) is not None}
    for name in form.needs:
        if name not in given:
            raise document.error(("faults", k), f"{part.kind} needs {name}", remedy=f"add {name}: ...")
    for name in given:
        if name not in form.needs:
            raise document.error(
                ("faults", k, name), f"does not go with {part.kind}", value=given[name], remedy="leave it out"
            )
    times = [name for name in ("at_step", "at_s", "during", "after") if getattr(part, name) is not None]
    if len(times) != 1:
        raise document.error(
            ("faults", k), f"needs one time, and has {' and '.join(times) or 'none'}",
            remedy="at_step: N, at_s: SECONDS, during: recovery or after: recovery",
        )  # fmt: skip
    if k == 0 and times[0] in ("during", "after"):
        raise document.error(("faults", k, times[0]), "it has no previous fault", remedy="use at_step: N")
    target = part.target
    if target is None:
        if form.targets[0] not in ("checkpoint", "controller", "machine"):
            raise document.error(
                ("faults", k), f"{part.kind} needs a target", remedy=f"for instance target: '{_EXAMPLES[form.targets[0]]}'"
            )  # fmt: skip
        target = form.targets[0]
    if target == "rank:any":
        target = f"rank:{chance.randrange(spec.ranks)}"
    elif target == "node:any":
        target = f"node:{chance.choice(nodes)}"
    if "bytes_per_s" in given:
        given["bytes_per_s"] = memory_bytes(given["bytes_per_s"])
    return Fault(part.kind, target, part.at_step, part.at_s, part.during, part.after, part.for_s, **given)
