"""From a job file, or a command line, to a :class:`unidle.jobs.JobSpec`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from unidle.files.check import convert, with_same_fields
from unidle.files.document import Bounds, Document
from unidle.files.job_checks import (
    CHECKS,
    JobDraft,
    advise,
    check_name_of_workdir,
    groups_of,
    in_full,
    most_ranks,
    rank_range,
)
from unidle.files.job_file import JobFile
from unidle.files.job_parts import (
    FlopsPart,
    LimitsPart,
    RanksPart,
    RestartPart,
    SelectPart,
    SharePart,
    TopologyPart,
)
from unidle.files.job_pod import pod_wish
from unidle.files.load import base_dir_of, load_document
from unidle.files.values import as_name, memory_bytes
from unidle.jobs import (
    DeviceWish,
    Elastic,
    Hardware,
    JobSpec,
    Layout,
    Limits,
    Requests,
    Restart,
    RestartPolicy,
    Role,
    Select,
    Service,
    Share,
    StepFlops,
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


def job_of_document(document: Document, base_dir: str) -> JobSpec:
    """The job that a document describes. Errors: :class:`unidle.errors.BadInput`, the first in its order."""
    if not isinstance(document.data, Mapping):
        raise document.error(
            (),
            "a job file must be a mapping of fields",
            remedy="the shortest form is: command: [python, train.py]",
        )
    file = convert(document, JobFile, what="job", advise=advise)
    draft = JobDraft(document, file, base_dir, in_full(file.workdir, base_dir))
    check_name_of_workdir(draft)
    # In the order of the document, so that the first error is the first that the user sees.
    for field in document.data:
        if field in CHECKS:
            CHECKS[field](draft)
    return _spec(draft, insists=_gives_restart_on(document.data))


def _spec(draft: JobDraft, *, insists: bool) -> JobSpec:
    """What the checked file describes. ``insists``: it has ``restart.on``."""
    file, saves = draft.file, draft.file.checkpoint
    ranks = most_ranks(file)
    return with_same_fields(
        JobSpec,
        file,
        name=file.name or name_of_command(file.command),
        workdir=draft.workdir,
        env=dict(file.env),
        ranks=ranks,
        preemption="low" if file.job_class == "filler" else file.preemption,
        device=_device(file),
        user=file.user or login_name(),
        layout=with_same_fields(Layout, file.layout) if file.layout else None,
        checkpoint_path=in_full(saves.path, draft.workdir) if saves else None,
        checkpoint_memory=saves is not None and saves.memory,
        quarantine_bad=saves is not None and saves.quarantine_bad,
        progress_pattern=file.progress.pattern if file.progress else None,
        restart=_restart(file.restart, insists=insists or file.kind == "service"),
        service=_service(file),
        roles=_roles(file.roles),
        elastic=Elastic(file.ranks.min, file.ranks.max) if isinstance(file.ranks, RanksPart) else None,
        limits=with_same_fields(Limits, file.limits, memory_bytes=_memory(file.limits)),
        requests=_requests(file),
        where=Where(_select(file.models), _select(file.uuids), _labels(file), file.tolerate),
        topology=_topology(file.topology) if file.topology else None,
        flops=_flops(file.flops),
        share=_share(file.share) if file.share else None,
        hardware=with_same_fields(Hardware, file.hardware),
        pod=pod_wish(file.pod) if file.pod else None,
        rendezvous=file.rendezvous or ("torchrun" if ranks > 1 or file.layout else "none"),
    )


def _memory(part: LimitsPart) -> int | None:
    return None if part.memory is None else memory_bytes(part.memory)


def _select(part: SelectPart) -> Select:
    return with_same_fields(Select, part)


def _labels(file: JobFile) -> dict[str, str]:
    """Labels that a node must have."""
    return dict(file.node_labels) | (file.pod.node_selector if file.pod else {})


def _gives_restart_on(data: Mapping[str, object]) -> bool:
    restart = data.get("restart")
    return isinstance(restart, Mapping) and "on" in restart


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
    groups = {"groups": groups_of(part.groups), "prefer_groups": groups_of(part.prefer_groups)}
    return with_same_fields(Topology, part, **groups)


def _share(part: SharePart) -> Share:
    memory = memory_bytes(part.memory) if part.memory is not None else 0
    return Share(round((part.fraction or 0.0) * 1_000_000), memory, part.profile or "", part.mode)


def _flops(part: FlopsPart | str | None) -> StepFlops | None:
    """The operations of a step; those of a decoder as in Chowdhery et al., PaLM, appendix B: 6 N + 12 L H Q T for each token."""
    if part is None or isinstance(part, str):
        return StepFlops() if part else None
    if part.per_step is not None:
        return StepFlops(part.per_step)
    attention = 12.0 * (part.layers or 0) * (part.width or 0) * (part.sequence or 0)
    return StepFlops((6.0 * (part.parameters or 0) + attention) * (part.tokens or 0))


def _restart(part: RestartPart, *, insists: bool = False) -> Restart:
    """The restart policy of a job file; ``insists``: ``on`` is given in it, and is not the default."""
    policies = tuple(with_same_fields(RestartPolicy, p, role=p.role or "") for p in part.policies)
    return with_same_fields(Restart, part, policies=policies, insists=insists)


def _service(file: JobFile) -> Service | None:
    if file.kind != "service":
        return None
    return Service(file.service.replicas, file.service.port, file.service.ready or "")


def _roles(part: Mapping[str, str]) -> tuple[Role, ...]:
    """Roles with their ranges of ranks."""
    return tuple(
        Role(name, tuple(rank_range(item) for item in text.split(","))) for name, text in part.items()
    )
