"""From a job file, or a command line, to a :class:`unidle.jobs.JobSpec`."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from unidle.files.check import convert
from unidle.files.document import Bounds, Breach, Document
from unidle.files.job_file import JobFile, RanksPart, is_reserved_env
from unidle.files.job_place import GroupsPart, HardwarePart, SelectPart, SharePart, TopologyPart
from unidle.files.job_restart import check_policies, check_roles, restart_of, roles_of
from unidle.files.load import base_dir_of, load_document
from unidle.files.values import MEMORY_LIMIT_BYTES, as_name, memory_bytes
from unidle.jobs import (
    DeviceWish,
    Elastic,
    Hardware,
    JobSpec,
    Layout,
    Limits,
    Requests,
    Select,
    Share,
    Topology,
    Where,
)
from unidle.login import login_name

BOUNDS: Final = Bounds()


def load_job(path: str | os.PathLike[str]) -> JobSpec:
    """The job in the YAML or JSON file ``path``; ``-`` is standard input.

    Errors: :class:`unidle.errors.BadInput`, the first in the file's order.
    """
    return job_of_document(load_document(path, what="job", bounds=BOUNDS), base_dir_of(path))


def job_from_mapping(data: Mapping[str, object], source: str, base_dir: str | os.PathLike[str]) -> JobSpec:
    """The job that ``data`` (the job file's fields) describes.

    ``source`` names where it came from in errors; relative paths start from ``base_dir``.
    """
    return job_of_document(Document(dict(data), source), os.fspath(base_dir))


def job_from_command(
    command: Sequence[str], *, base_dir: str | os.PathLike[str] = ".", **options: object
) -> JobSpec:
    """The job that runs ``command``; ``options`` are other fields of the job file, None being not given."""
    given = {name: value for name, value in options.items() if value is not None}
    return job_from_mapping({"command": list(command), **given}, "command line", base_dir)


def name_of_command(command: Sequence[str]) -> str:
    """A name for a job without one: its first Python file, else its program."""
    scripts = [part.removesuffix(".py") for part in command if part.endswith(".py")]
    return as_name((scripts or command)[0].rsplit("/", 1)[-1], "job")


@dataclass(frozen=True, slots=True)
class _Draft:
    """A job file whose fields are well formed by themselves."""

    document: Document
    file: JobFile
    base_dir: str
    workdir: str


def job_of_document(document: Document, base_dir: str) -> JobSpec:
    """The job that a document describes. Errors: :class:`unidle.errors.BadInput`, the first in its order."""
    if not isinstance(document.data, Mapping):
        raise document.error(
            (),
            "a job file must be a mapping of fields",
            remedy="the shortest form is: command: [python, train.py]",
        )
    file = convert(document, JobFile, what="job", advise=_advise)
    draft = _Draft(document, file, base_dir, _in_full(file.workdir, base_dir))
    _check_name_of_workdir(draft)
    # In the order of the document, so that the first error is the first that the user sees.
    for field in document.data:
        if field in _CHECKS:
            _CHECKS[field](draft)
    checkpoint = _in_full(file.checkpoint.path, draft.workdir) if file.checkpoint else None
    return JobSpec(
        command=file.command,
        name=file.name or name_of_command(file.command),
        workdir=draft.workdir,
        env=dict(file.env),
        ranks=_most_ranks(file),
        devices_per_rank=file.devices_per_rank,
        device=_device(file),
        queue=file.queue,
        priority=file.priority,
        user=file.user or login_name(),
        layout=Layout(file.layout.tp, file.layout.dp, file.layout.pp) if file.layout else None,
        checkpoint_path=checkpoint,
        checkpoint_memory=file.checkpoint is not None and file.checkpoint.memory,
        quarantine_bad=file.checkpoint is not None and file.checkpoint.quarantine_bad,
        progress_pattern=file.progress.pattern if file.progress else None,
        restart=restart_of(file.restart, insists=_gives_restart_on(document.data)),
        roles=roles_of(file.roles),
        elastic=Elastic(file.ranks.min, file.ranks.max) if isinstance(file.ranks, RanksPart) else None,
        limits=Limits(
            memory_bytes(file.limits.memory) if file.limits.memory is not None else None,
            file.limits.cpus,
            file.limits.pids,
        ),
        timeout_s=file.timeout_s,
        queue_timeout_s=file.queue_timeout_s,
        grace_s=file.grace_s,
        price_per_device_hour=file.price_per_device_hour,
        preemption=file.preemption,
        min_runtime_s=file.min_runtime_s,
        estimate_s=file.estimate_s,
        requests=_requests(file),
        where=Where(
            Select(file.models.include, file.models.exclude),
            Select(file.uuids.include, file.uuids.exclude),
            dict(file.node_labels),
            file.tolerate,
        ),
        topology=_topology(file.topology) if file.topology else None,
        share=_share(file.share) if file.share else None,
        hardware=Hardware(file.hardware.prefer, file.hardware.vendor, file.hardware.mix),
        steps=file.steps,
        idle_ok=file.idle_ok,
        keep=file.keep,
        kernels=file.kernels,
        rendezvous=file.rendezvous or ("torchrun" if _most_ranks(file) > 1 or file.layout else "none"),
    )


def _gives_restart_on(data: Mapping[str, object]) -> bool:
    restart = data.get("restart")
    return isinstance(restart, Mapping) and "on" in restart


def _most_ranks(file: JobFile) -> int:
    return file.ranks.max if isinstance(file.ranks, RanksPart) else file.ranks


def _check_ranks(draft: _Draft) -> None:
    ranks = draft.file.ranks
    if isinstance(ranks, RanksPart) and ranks.min > ranks.max:
        raise draft.document.error(
            ("ranks", "min"), f"is above ranks.max = {ranks.max}", value=ranks.min, remedy="swap them"
        )


def _check_roles(draft: _Draft) -> None:
    check_roles(draft.document, draft.file.roles, _most_ranks(draft.file))


def _check_policies(draft: _Draft) -> None:
    check_policies(draft.document, draft.file)


def _device(file: JobFile) -> DeviceWish:
    """A vendor, a MIG profile or a mode is a wish about GPUs: no CPU device grants it."""
    if file.devices_per_rank == 0:
        return "cpu"
    share = file.share
    of_gpus = file.hardware.vendor != "any" or (
        share is not None and (share.profile is not None or share.mode != "any")
    )
    return "gpu" if of_gpus and file.device == "any" else file.device


def _requests(file: JobFile) -> Requests:
    """A rank without devices takes one core by default: else a node would hold any number of them."""
    least = 1.0 if file.devices_per_rank == 0 else 0.0
    return Requests(file.requests.cpus or least, memory_bytes(file.requests.memory))


def _topology(part: TopologyPart) -> Topology:
    return Topology(
        part.require,
        part.prefer,
        _groups(part.groups),
        _groups(part.prefer_groups),
        part.fabric,
        part.prefer_fabric,
    )


def _groups(part: GroupsPart) -> dict[str, str]:
    return {name: kind for name in ("tp", "dp", "pp") if (kind := getattr(part, name)) is not None}


def _share(part: SharePart) -> Share:
    memory = memory_bytes(part.memory) if part.memory is not None else 0
    return Share(round((part.fraction or 0.0) * 1_000_000), memory, part.profile or "", part.mode)


def _advise(breach: Breach) -> str | None:
    """Remedies for the usual slips."""
    value = breach.value
    if breach.path == ("command",) and isinstance(value, str) and value.strip():
        import json
        import shlex  # both only for this advice

        try:
            words = shlex.split(value)
        except ValueError:
            words = value.split()
        return f"write it as a list: {json.dumps(words, ensure_ascii=False)}"
    if breach.path == ("ranks",):
        return "give a number, or as few and as many as it may have: {min: 2, max: 4}"
    if breach.path in (("name",), ("queue",)) and isinstance(value, str):
        return f"for instance {as_name(value, 'default' if breach.path == ('queue',) else 'job')}"
    if len(breach.path) == 2 and breach.path[0] == "env" and is_reserved_env(str(breach.path[1])):
        return "remove it: unidle sets it for each rank"
    return None


def _check_command(draft: _Draft) -> None:
    if not draft.file.command[0]:
        raise draft.document.error(("command", 0), "the program's name is empty", remedy="name a program")


def _check_layout(draft: _Draft) -> None:
    layout, ranks = draft.file.layout, _most_ranks(draft.file)
    if layout is None or (product := layout.tp * layout.dp * layout.pp) == ranks:
        return
    raise draft.document.error(
        ("layout",),
        f"tp {layout.tp} x dp {layout.dp} x pp {layout.pp} is {product}, but ranks is {ranks}",
        remedy=f"set ranks to {product}, or change the layout",
    )


def _check_pattern(draft: _Draft) -> None:
    if draft.file.progress is None:
        return
    pattern = draft.file.progress.pattern
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise draft.document.error(
            ("progress", "pattern"),
            f"not a regular expression: {error}",
            value=pattern,
            remedy="see docs.python.org/3/library/re.html, and put it in single quotes",
        ) from None
    if compiled.search("") is not None:
        raise draft.document.error(
            ("progress", "pattern"),
            "matches an empty line, so that every line would be a step",
            value=pattern,
            remedy="write what stands before the number, such as 'step (\\d+)'",
        )


def _check_memory(draft: _Draft) -> None:
    memory = draft.file.limits.memory
    if memory is not None and not 2**20 <= memory_bytes(memory) <= MEMORY_LIMIT_BYTES:
        raise draft.document.error(
            ("limits", "memory"), "must be from 1 MiB to 1 PiB", value=memory, remedy="for instance 512MiB"
        )


def _check_select(field: Literal["models", "uuids"]) -> Callable[[_Draft], None]:
    def check(draft: _Draft) -> None:
        part: SelectPart = getattr(draft.file, field)
        both = sorted(set(part.include) & set(part.exclude))
        if both:
            raise draft.document.error(
                (field, "exclude"),
                "is both included and excluded",
                value=both[0],
                remedy="remove it from one",
            )

    return check


def _check_topology(draft: _Draft) -> None:
    topology = draft.file.topology
    if topology is None:
        return
    for field in ("groups", "prefer_groups"):
        if _groups(getattr(topology, field)) and draft.file.layout is None:
            raise draft.document.error(
                ("topology", field),
                "the parallel groups are not known",
                remedy="give the job's layout: {tp, dp, pp}",
            )


def _check_devices(draft: _Draft) -> None:
    """Without devices, wishes about them contradict the job."""
    file = draft.file
    if file.devices_per_rank:
        return
    wishes = {
        "device": file.device == "gpu", "models": file.models != SelectPart(), "uuids": file.uuids != SelectPart(),
        "hardware": file.hardware != HardwarePart(),
    }  # fmt: skip
    wish = next((name for name, there in wishes.items() if there), None)
    if wish is not None:
        raise draft.document.error(
            ("devices_per_rank",), f"is 0, and {wish} requires devices", value=0,
            remedy=f"remove {wish}, or ask for a device",
        )  # fmt: skip


def _check_hardware(draft: _Draft) -> None:
    vendor = draft.file.hardware.vendor
    if draft.file.device == "cpu" and vendor != "any":
        raise draft.document.error(
            ("hardware", "vendor"), "is of GPUs, and device is cpu", value=vendor, remedy="remove one of them"
        )


def _check_share(draft: _Draft) -> None:
    share = draft.file.share
    if share is None:
        return
    if draft.file.device == "cpu" and (share.profile is not None or share.mode != "any"):
        field = "mode" if share.profile is None else "profile"
        raise draft.document.error(
            ("share", field), "is of GPUs, and device is cpu", value=getattr(share, field),
            remedy="remove one of them",
        )  # fmt: skip
    if share.profile is not None:
        _check_profile(draft, share)
    elif share.fraction is None and share.memory is None:
        raise draft.document.error(
            ("share",), "has no amount", remedy="give fraction or memory, for instance fraction: 0.25"
        )
    if draft.file.devices_per_rank != 1:
        raise draft.document.error(
            ("share",), "a share is of one device, and devices_per_rank is not 1", value=draft.file.devices_per_rank,
            remedy="remove one of them",
        )  # fmt: skip


def _check_profile(draft: _Draft, share: SharePart) -> None:
    from unidle.share.mig_models import mig_models  # a table that few jobs need

    for field in ("fraction", "memory"):
        if getattr(share, field) is not None:
            raise draft.document.error(
                ("share", field), "the profile already sets the amount", value=getattr(share, field),
                remedy="remove it, or profile",
            )  # fmt: skip
    if share.mode not in ("any", "mig"):
        raise draft.document.error(
            ("share", "mode"), "a profile is of MIG", value=share.mode, remedy="remove it, or profile"
        )
    known = sorted({profile.name for model in mig_models() for profile in model.profiles})
    if share.profile not in known:
        raise draft.document.error(
            ("share", "profile"), "no GPU model has this MIG profile", value=share.profile,
            remedy="use one of " + ", ".join(known),
        )  # fmt: skip


def _check_name_of_workdir(draft: _Draft) -> None:
    """The log is UTF-8; a file system's names need not be."""
    try:
        draft.workdir.encode()
    except UnicodeEncodeError:
        raise draft.document.error(
            ("workdir",), "must be text in UTF-8", value=draft.workdir, remedy="rename the file or variable"
        ) from None


def _check_workdir(draft: _Draft) -> None:
    _check_inside(draft.document, ("workdir",), draft.file.workdir, draft.base_dir)
    if not os.path.isdir(draft.workdir):  # noqa: PTH112
        problem = "is not a directory" if os.path.lexists(draft.workdir) else "there is no such directory"
        raise draft.document.error(
            ("workdir",), problem, value=draft.workdir, remedy="create it, or name another"
        )


def _check_checkpoint(draft: _Draft) -> None:
    if draft.file.checkpoint is not None:
        _check_inside(draft.document, ("checkpoint", "path"), draft.file.checkpoint.path, draft.workdir)


def _check_inside(document: Document, field: tuple[str, ...], path: str, base: str) -> None:
    """A relative path may not lead out of ``base``: that is mostly a slip."""
    relative = os.path.normpath(path)
    if relative == ".." or relative.startswith("../"):
        remedy = f"if this is intended, write {_in_full(path, base)}"
        raise document.error(field, "the path leads outside", value=path, remedy=remedy)


def _in_full(path: str, base: str) -> str:
    return os.path.normpath(os.path.join(os.path.abspath(base), path))  # noqa: PTH100, PTH118


_CHECKS: Final[dict[str, Callable[[_Draft], None]]] = {
    "command": _check_command,
    "workdir": _check_workdir,
    "layout": _check_layout,
    "devices_per_rank": _check_devices,
    "ranks": _check_ranks,
    "roles": _check_roles,
    "restart": _check_policies,
    "checkpoint": _check_checkpoint,
    "progress": _check_pattern,
    "limits": _check_memory,
    "models": _check_select("models"),
    "uuids": _check_select("uuids"),
    "topology": _check_topology,
    "share": _check_share,
    "hardware": _check_hardware,
}
