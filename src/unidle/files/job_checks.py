"""What only several fields of a job file together, or the machine, can break."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from unidle.files.document import Breach, Document
from unidle.files.job_file import JobFile, is_reserved_env
from unidle.files.job_kinds import check_class, check_service
from unidle.files.job_parts import GroupsPart, HardwarePart, RanksPart, SelectPart, SharePart
from unidle.files.job_pod import check_pod
from unidle.files.values import MEMORY_LIMIT_BYTES, as_name, memory_bytes


@dataclass(frozen=True, slots=True)
class JobDraft:
    """A job file whose fields are well formed by themselves."""

    document: Document
    file: JobFile
    base_dir: str
    workdir: str


def advise(breach: Breach) -> str | None:
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


def most_ranks(file: JobFile) -> int:
    return file.ranks.max if isinstance(file.ranks, RanksPart) else file.ranks


def groups_of(part: GroupsPart) -> dict[str, str]:
    return {name: kind for name in ("tp", "dp", "pp") if (kind := getattr(part, name)) is not None}


def in_full(path: str, base: str) -> str:
    return os.path.normpath(os.path.join(os.path.abspath(base), path))  # noqa: PTH100, PTH118


def check_name_of_workdir(draft: JobDraft) -> None:
    """The log is UTF-8; a file system's names need not be."""
    try:
        draft.workdir.encode()
    except UnicodeEncodeError:
        raise draft.document.error(
            ("workdir",), "must be text in UTF-8", value=draft.workdir, remedy="rename the file or variable"
        ) from None


def rank_range(text: str) -> tuple[int, int]:
    """``2`` or ``0-2`` as the first and the last rank."""
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _check_ranks(draft: JobDraft) -> None:
    ranks = draft.file.ranks
    if isinstance(ranks, RanksPart) and ranks.min > ranks.max:
        raise draft.document.error(
            ("ranks", "min"), f"is above ranks.max = {ranks.max}", value=ranks.min, remedy="swap them"
        )


def _check_command(draft: JobDraft) -> None:
    if not draft.file.command[0]:
        raise draft.document.error(("command", 0), "the program's name is empty", remedy="name a program")


def _check_layout(draft: JobDraft) -> None:
    layout, ranks = draft.file.layout, most_ranks(draft.file)
    if layout is None or (product := layout.tp * layout.dp * layout.pp) == ranks:
        return
    raise draft.document.error(
        ("layout",),
        f"tp {layout.tp} x dp {layout.dp} x pp {layout.pp} is {product}, but ranks is {ranks}",
        remedy=f"set ranks to {product}, or change the layout",
    )


def _check_pattern(draft: JobDraft) -> None:
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


def _check_memory(draft: JobDraft) -> None:
    memory = draft.file.limits.memory
    if memory is not None and not 2**20 <= memory_bytes(memory) <= MEMORY_LIMIT_BYTES:
        raise draft.document.error(
            ("limits", "memory"), "must be from 1 MiB to 1 PiB", value=memory, remedy="for instance 512MiB"
        )


def _check_select(field: Literal["models", "uuids"]) -> Callable[[JobDraft], None]:
    def check(draft: JobDraft) -> None:
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


def _check_topology(draft: JobDraft) -> None:
    topology = draft.file.topology
    if topology is None:
        return
    for field in ("groups", "prefer_groups"):
        if groups_of(getattr(topology, field)) and draft.file.layout is None:
            raise draft.document.error(
                ("topology", field),
                "the parallel groups are not known",
                remedy="give the job's layout: {tp, dp, pp}",
            )


def _check_devices(draft: JobDraft) -> None:
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


def _check_class(draft: JobDraft) -> None:
    check_class(draft.document, draft.file)


def _check_service(draft: JobDraft) -> None:
    check_service(draft.document, draft.file)


def _check_hardware(draft: JobDraft) -> None:
    vendor = draft.file.hardware.vendor
    if draft.file.device == "cpu" and vendor != "any":
        raise draft.document.error(
            ("hardware", "vendor"), "is of GPUs, and device is cpu", value=vendor, remedy="remove one of them"
        )


def _check_share(draft: JobDraft) -> None:
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


def _check_profile(draft: JobDraft, share: SharePart) -> None:
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


def _check_workdir(draft: JobDraft) -> None:
    _check_inside(draft.document, ("workdir",), draft.file.workdir, draft.base_dir)
    if draft.file.pod is not None:
        return  # it is in the container
    if not os.path.isdir(draft.workdir):  # noqa: PTH112
        problem = "is not a directory" if os.path.lexists(draft.workdir) else "there is no such directory"
        raise draft.document.error(
            ("workdir",), problem, value=draft.workdir, remedy="create it, or name another"
        )


def _check_checkpoint(draft: JobDraft) -> None:
    if draft.file.checkpoint is not None:
        _check_inside(draft.document, ("checkpoint", "path"), draft.file.checkpoint.path, draft.workdir)


def _check_inside(document: Document, field: tuple[str, ...], path: str, base: str) -> None:
    """A relative path may not lead out of ``base``: that is mostly a slip."""
    relative = os.path.normpath(path)
    if relative == ".." or relative.startswith("../"):
        remedy = f"if this is intended, write {in_full(path, base)}"
        raise document.error(field, "the path leads outside", value=path, remedy=remedy)


_OF_RANKS: Final = ("fail", "hang")


def _check_roles(draft: JobDraft) -> None:
    """A rank that does not exist, or has two roles."""
    document, part, ranks = draft.document, draft.file.roles, most_ranks(draft.file)
    owner: dict[int, str] = {}
    for name, text in part.items():
        for first, last in (rank_range(item) for item in text.split(",")):
            if last < first or last >= ranks:
                problem = "runs backwards" if last < first else f"the gang has ranks 0 to {ranks - 1}"
                raise document.error(("roles", name), problem, value=text, remedy="name ranks of the gang")
            for rank in range(first, last + 1):
                if rank in owner:
                    problem = f"rank {rank} has the role {owner[rank]} already"
                    raise document.error(
                        ("roles", name), problem, value=text, remedy="give each rank one role"
                    )
                owner[rank] = name


def _check_policies(draft: JobDraft) -> None:
    """A policy that can never act, or that nothing bounds."""
    document, file = draft.document, draft.file
    restart, known = file.restart, {*file.roles, "default"}
    for k, policy in enumerate(restart.policies):
        path = ("restart", "policies", k)
        if policy.role is not None and policy.role not in known:
            raise document.error(
                (*path, "role"), "is no role of this job", value=policy.role,
                remedy=f"declare it under roles, or use one of {', '.join(sorted(known))}",
            )  # fmt: skip
        if policy.role is not None and policy.event not in _OF_RANKS:
            raise document.error(
                (*path, "role"),
                f"{policy.event} is of the whole gang",
                value=policy.role,
                remedy="remove role",
            )
        if (policy.event, policy.action) == ("evict", "ignore"):
            raise document.error(
                (*path, "action"),
                "its devices are gone",
                value=policy.action,
                remedy="use requeue, the default",
            )
        again = policy.action in ("restart", "requeue")
        if again and policy.max is None and not restart.max and policy.event != "evict":
            raise document.error(
                (*path, "max"),
                "the number of restarts is missing: restart.max is 0",
                remedy="give max here, or restart.max",
            )
        field = {"pending": "queue_timeout_s", "timeout": "timeout_s"}.get(policy.event)
        if field is not None and getattr(file, field) is None:
            raise document.error(
                (*path, "event"), f"never happens without {field}", value=policy.event, remedy=f"give {field}"
            )


def _check_pod(draft: JobDraft) -> None:
    if draft.file.pod is not None:
        check_pod(draft.document, draft.file.pod)


def _check_flops(draft: JobDraft) -> None:
    part, document = draft.file.flops, draft.document
    if part is None or isinstance(part, str):
        return
    model = {name: getattr(part, name) for name in ("parameters", "tokens")}
    attention = {name: getattr(part, name) for name in ("layers", "width", "sequence")}
    given = [name for name, value in (model | attention).items() if value is not None]
    if part.per_step is not None and given:
        raise document.error(
            ("flops", given[0]), "cannot be given with per_step", value=getattr(part, given[0]), remedy="leave one of them out"
        )  # fmt: skip
    for names in (model, attention):
        missing = [name for name, value in names.items() if value is None]
        if part.per_step is None and missing and (names is model or len(missing) < len(names)):
            raise document.error(
                ("flops", missing[0]), "is missing", remedy=f"give {' and '.join(names)}, or per_step alone"
            )


CHECKS: Final[dict[str, Callable[[JobDraft], None]]] = {
    "command": _check_command,
    "workdir": _check_workdir,
    "layout": _check_layout,
    "class": _check_class,
    "kind": _check_service,
    "service": _check_service,
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
    "flops": _check_flops,
    "hardware": _check_hardware,
    "pod": _check_pod,
}
