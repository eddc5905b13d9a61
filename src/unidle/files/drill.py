"""From a drill file to a :class:`Drill`: a job, nodes, and faults that fit them."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from unidle.errors import BadInput
from unidle.files.check import convert
from unidle.files.document import Bounds, Document
from unidle.files.job import job_from_mapping, load_job
from unidle.files.job_file import JobFile
from unidle.files.load import base_dir_of, load_document, source_name
from unidle.files.values import END, MEMORY_SAYS, MemoryText, memory_bytes
from unidle.jobs import JobSpec
from unidle.words import counted

FaultKind = Literal[
    "kill", "stop", "slow", "cut", "delay", "rate", "disk_full", "disk_slow", "corrupt_checkpoint",
    "kernel_log", "nvml", "controller_kill", "power_cut",
]  # fmt: skip
TARGET_SAYS: Final = "rank:2, node:n1, link:n1-n2, device:n1/0, checkpoint, controller or machine"
_DAY_S: Final = 86_400

Seconds = Annotated[float, Meta(ge=0, le=_DAY_S)]


class FaultPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One fault: its kind, target and start."""

    kind: Annotated[FaultKind, Meta(description="Kind of fault.")]
    target: Annotated[
        Annotated[
            str,
            Meta(
                pattern=r"^(rank:([0-9]+|any)|node:.+|link:.+-.+|device:.+/[0-9]+|checkpoint|controller|machine)"
                + END,
                max_length=600,
            ),
        ]
        | None,
        Meta(
            description="Target of the fault. rank:any and node:any are chosen at random, by the seed.",
            examples=["rank:2"],
            extra={"says": TARGET_SAYS},
        ),
    ] = None
    at_step: Annotated[
        Annotated[int, Meta(ge=0, le=10**12)] | None,
        Meta(description="Start when the job first completes this step, in any attempt.", examples=[40]),
    ] = None
    at_s: Annotated[
        Seconds | None,
        Meta(description="Start this many seconds after all ranks of the first attempt have started."),
    ] = None
    during: Annotated[
        Literal["recovery"] | None,
        Meta(
            description="Start while the gang recovers from the previous fault: its ranks run, and no step is complete."
        ),
    ] = None
    after: Annotated[
        Literal["recovery"] | None,
        Meta(description="Start when the gang completes its first step after the previous fault."),
    ] = None
    for_s: Annotated[
        Seconds | None,
        Meta(
            description="Seconds until the fault is undone. Default: when unidle has identified it, or after 20 s."
        ),
    ] = None
    factor: Annotated[
        Annotated[float, Meta(gt=1, le=1000)] | None,
        Meta(description="For slow: the factor by which computation is slowed down.", examples=[1.25]),
    ] = None
    mbit_per_s: Annotated[
        Annotated[float, Meta(gt=0, le=1_000_000)] | None,
        Meta(description="For rate: limit in each direction, in Mbit/s.", examples=[2]),
    ] = None
    ms: Annotated[
        Annotated[float, Meta(gt=0, le=10_000)] | None,
        Meta(description="For delay: added latency in each direction, in milliseconds.", examples=[50]),
    ] = None
    bytes_per_s: Annotated[
        Annotated[int, Meta(ge=1024, le=2**50)] | MemoryText | None,
        Meta(
            description="For disk_slow: limit of the write rate, in bytes per second.",
            examples=["1MB"],
            extra={"says": MEMORY_SAYS},
        ),
    ] = None
    how: Annotated[
        Literal["truncate", "flip", "remove"] | None,
        Meta(description="For corrupt_checkpoint: damage to the largest file of the checkpoint."),
    ] = None
    line: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            description="For kernel_log: the line that appears in the log.",
            examples=["NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."],
        ),
    ] = None
    field: Annotated[
        Annotated[str, Meta(pattern="^[a-z][a-z0-9_]*" + END, max_length=64)] | None,
        Meta(description="For nvml: name of the reading.", examples=["dram_errors"]),
    ] = None
    value: Annotated[
        bool | Annotated[float, Meta(ge=-1e18, le=1e18)] | None,
        Meta(description="For nvml: value of the reading.", extra={"says": "a number, true or false"}),
    ] = None


class DrillFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A job, and the faults that are injected into it."""

    job: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4095)] | JobFile,
        Meta(
            description="The job: the path of a job file, relative to the drill file, or the fields of a job file.",
            examples=["job.yaml"],
        ),
    ]
    nodes: Annotated[int, Meta(ge=1, le=200, description="Number of nodes. They are named n1, n2, ...")] = 2
    devices: Annotated[
        Annotated[tuple[Annotated[int, Meta(ge=1, le=4096)], ...], Meta(max_length=200)],
        Meta(
            description="Number of devices of each node. Default: the devices that the job needs, spread evenly.",
            examples=[[2, 1, 1]],
        ),
    ] = ()
    seed: Annotated[
        int, Meta(ge=0, le=2**63 - 1, description="Seed of random choices, such as rank:any.")
    ] = 0
    faults: Annotated[
        tuple[FaultPart, ...], Meta(min_length=1, max_length=1000, description="Faults to inject.")
    ]
    result: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4095, pattern=r"^[^/~]")] | None,
        Meta(
            description="File that the job writes its final state to, relative to its workdir: .pt, .npz, .json or any "
            "other type. Default: the newest checkpoint.",
            examples=["result.pt"],
        ),
    ] = None
    tolerance: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Maximum difference between float64 numbers of the final state and those of a run without faults. "
            "Other data must be equal bit by bit.",
        ),
    ] = 1e-12
    disk: Annotated[
        Annotated[int, Meta(ge=2**24, le=2**40)] | MemoryText,
        Meta(
            description="Size of the separate disk for checkpoints. Used by disk faults.",
            extra={"says": MEMORY_SAYS},
        ),
    ] = "256MiB"
    timeout_s: Annotated[float, Meta(gt=0, le=_DAY_S, description="Time limit of the job, in seconds.")] = (
        600.0
    )


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
