"""From the job file's ``restart`` and ``roles`` to what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unidle.files.document import Document
from unidle.files.job_file import JobFile
from unidle.files.job_retry import RestartPart
from unidle.jobs import Restart, RestartPolicy, Role

_OF_RANKS: Final = ("fail", "hang")


def restart_of(part: RestartPart, *, insists: bool = False) -> Restart:
    """The restart policy of a job file; ``insists``: ``on`` is given in it, and is not the default."""
    policies = tuple(
        RestartPolicy(p.event, p.action, p.max, p.backoff_s, p.role or "") for p in part.policies
    )
    return Restart(part.max, part.backoff_s, part.on, part.warm, policies, insists)


def roles_of(part: Mapping[str, str]) -> tuple[Role, ...]:
    """Roles with their ranges of ranks."""
    return tuple(Role(name, tuple(_range(item) for item in text.split(","))) for name, text in part.items())


def check_roles(document: Document, part: Mapping[str, str], ranks: int) -> None:
    """Errors: :class:`unidle.files.document.BadFile` where a rank does not exist or has two roles."""
    owner: dict[int, str] = {}
    for name, text in part.items():
        for first, last in (_range(item) for item in text.split(",")):
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


def check_policies(document: Document, file: JobFile) -> None:
    """Errors: :class:`unidle.files.document.BadFile` where a policy can never act, or nothing bounds it."""
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


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)
