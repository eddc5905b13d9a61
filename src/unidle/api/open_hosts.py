"""How commands reach the hosts of a store: through the hub on this machine, or through the controller of a cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from unidle.api.stores import data_dir
from unidle.hub.file_parts import NotThere, RankFilePart, whole_file
from unidle.kube.commands import CallFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from unidle.hub.frames import Done
    from unidle.kube.commands import CommandCalls
    from unidle.store.protocol import Store

_PART_BYTES: Final = 256 << 10
_WITHIN_S: Final = 10.0


class HostsOfStore(Protocol):
    """As :class:`unidle.hub.reader.HostFiles`, whose methods these are."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def part(
        self, node: str, place: tuple[str, int, int], file: str, offset: int, most_bytes: int = ...
    ) -> RankFilePart: ...

    def whole(self, node: str, place: tuple[str, int, int], file: str) -> bytes: ...

    def ask(self, node: str, what: str, body: dict[str, Any]) -> int: ...

    def answer(self, number: int, within_s: float = ...) -> Done | None: ...

    def close(self) -> None: ...


class HostsOfCluster:
    """The hosts of a cluster's controller. Errors: those of its calls; NotThere."""

    def __init__(self, calls: CommandCalls) -> None:
        self._calls = calls
        self._asked: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def part(
        self, node: str, place: tuple[str, int, int], file: str, offset: int, most_bytes: int = _PART_BYTES
    ) -> RankFilePart:
        """Part of a file of a rank."""
        try:
            data, size, inode = self._calls.call(
                "part", node=node, place=list(place), file=file, offset=offset, bytes=most_bytes
            )
        except CallFailed as error:
            if error.kind == NotThere.__name__:
                raise NotThere(error.problem) from None
            raise
        return RankFilePart(data, size, inode)

    def whole(self, node: str, place: tuple[str, int, int], file: str) -> bytes:
        """All of a file."""
        return whole_file(lambda offset: self.part(node, place, file, offset))

    def ask(self, node: str, what: str, body: dict[str, Any]) -> int:
        """Give the agent of a host an order."""
        self._asked.append(self._calls.call("ask", node=node, order=what, body=body))
        return len(self._asked)

    def answer(self, number: int, within_s: float = _WITHIN_S) -> Done | None:
        """The answer to an order, None if it does not come in that time."""
        from unidle.hub.frames import Done

        end_s = time.monotonic() + within_s
        while True:
            left_s = max(end_s - time.monotonic(), 0.0)
            found = self._calls.call("answer", number=self._asked[number - 1], within_s=left_s)
            if found is not None:
                return Done(number, bool(found["ok"]), str(found["why"]), dict(found["data"]))
            if time.monotonic() >= end_s:
                return None

    def close(self) -> None:
        """Nothing is held: the store closes the connection."""


class LocalHosts:
    """The hub whose controller runs on this machine. ``state``: the directory of the store."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def __call__(self) -> HostsOfStore:
        from unidle.hub.reader import HostFiles

        return HostFiles(self.state)


def hosts_of(store: Store) -> Callable[[], HostsOfStore] | None:
    """What connects to the hosts of a store; None where its ranks run on this machine. Errors: those of the call."""
    from unidle.control.store_files import state_dir
    from unidle.hub.place import has_hosts
    from unidle.store.cluster import calls_of

    if (calls := calls_of(store)) is not None:
        return lambda: HostsOfCluster(calls)
    state = state_dir(store, data_dir())
    return LocalHosts(state) if has_hosts(state) else None


def hosts_of_job(store: Store, runs: Path, job: str) -> Callable[[], HostsOfStore] | None:
    """As :func:`hosts_of`; None also where ``runs`` has the job's directory, and that of its ranks is nowhere else."""
    return hosts_of(store) if not (runs / job).exists() or has_copies(store, runs, job) else None


def has_copies(store: Store, runs: Path, job: str) -> bool:
    """Whether the job's directory has what a controller keeps of its output; an archive has nothing newer."""
    from unidle.control.store_files import run_root
    from unidle.engine.local.ranks import rundir

    return (runs / job / rundir.COPIED).exists() and runs == run_root(store, data_dir())
