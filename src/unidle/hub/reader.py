"""What commands of the store's owner have the controller's hub do: read files of ranks on their hosts, forget a host."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, Self

from unidle import private, wire
from unidle.errors import BadInput, CannotRun
from unidle.hub import frames
from unidle.hub.client import HubClient, Lost, Welcomed
from unidle.hub.file_parts import NotThere, RankFilePart, part_of, whole_file
from unidle.hub.place import FOLDER, READER
from unidle.hub.site_certificate import first_certificate

_MOST_BYTES: Final = 64 << 10
_PART_BYTES: Final = 256 << 10
_WITHIN_S: Final = 10.0


class RankFiles(Protocol):
    """Where files of ranks are read; ``place`` is job, attempt and rank. Errors: :class:`NotThere`."""

    def part(
        self, node: str, place: tuple[str, int, int], file: str, offset: int, most_bytes: int = ...
    ) -> RankFilePart: ...

    def whole(self, node: str, place: tuple[str, int, int], file: str) -> bytes: ...


class HostFiles:
    """One connection to the hub of a store. ``state``: the store's directory on this machine (the controller's).

    Errors: CannotRun where no controller answers.
    """

    def __init__(self, state: Path) -> None:
        address, self._hello, authority, exactly = _reader_of(state)
        self._ids = 0
        self._client = HubClient(address, authority, lambda: self._hello, exactly=exactly)
        self._poller = select.poll()
        self._poller.register(self._client.wake_fd, select.POLLIN)
        self._answers: dict[int, frames.Done] = {}
        self._open = False
        try:
            self._wait(lambda: self._open)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def part(
        self, node: str, place: tuple[str, int, int], file: str, offset: int, most_bytes: int = _PART_BYTES
    ) -> RankFilePart:
        """Part of a file of a rank (``place``: job, attempt, rank). Errors: NotThere; CannotRun without a controller."""
        self._ids += 1
        number = self._ids
        self._client.send(frames.Fetch(number, node, *place, file, offset, min(most_bytes, _PART_BYTES)))
        self._wait(lambda: number in self._answers)
        done = self._answers.pop(number)
        if not done.ok:
            raise NotThere(done.why)
        return part_of(done.data)

    def ask(self, node: str, what: str, body: dict[str, Any]) -> int:
        """Give the agent of a host an order; :meth:`answer` has what comes of it, by this number."""
        self._ids += 1
        self._client.send(frames.Ask(self._ids, node, what, body))
        return self._ids

    def answer(self, number: int, within_s: float = _WITHIN_S) -> frames.Done | None:
        """The answer to an order, None if it does not come in that time. Errors: CannotRun without a controller."""
        end_s = time.monotonic() + within_s
        while number not in self._answers and (left_s := end_s - time.monotonic()) > 0:
            self._poller.poll(left_s * 1000)
            self._take()
        return self._answers.pop(number, None)

    def whole(self, node: str, place: tuple[str, int, int], file: str) -> bytes:
        """All of a file. Errors: as of :meth:`part`."""
        return whole_file(lambda offset: self.part(node, place, file, offset))

    def forget(self, node: str) -> None:
        """Have a host that does not answer leave the fleet, and free its name. Errors: BadInput with the reason; CannotRun."""
        self._ids += 1
        number = self._ids
        self._client.send(frames.Forget(number, node))
        self._wait(lambda: number in self._answers)
        done = self._answers.pop(number)
        if not done.ok:
            raise BadInput(f"cannot be forgotten: {done.why}", field="NODE", value=node)

    def close(self) -> None:
        self._client.close("done")

    def _wait(self, holds: Callable[[], bool]) -> None:
        end_s = time.monotonic() + _WITHIN_S
        while not holds():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise CannotRun(
                    "the controller of the hosts does not answer",
                    remedy="see whether `unidle up --listen` runs",
                )
            self._poller.poll(left_s * 1000)
            self._take()

    def _take(self) -> None:
        for event in self._client.poll():
            if isinstance(event, Welcomed):
                self._open = True
            elif isinstance(event, Lost):
                raise CannotRun(
                    f"the controller of the hosts cannot be reached: {event.why}",
                    remedy="start `unidle up --listen` on this store, or look on the host, below its --state directory",
                )  # fmt: skip
            elif isinstance(event, frames.Done):
                self._answers[event.id] = event


def _reader_of(state: Path) -> tuple[tuple[str, int], frames.Hello, str, str]:
    try:
        folder = private.open_folder(str(state / FOLDER))
        try:
            content = json.loads(private.read(READER, folder, _MOST_BYTES))
        finally:
            os.close(folder)
        host, port = content["addresses"][0]
        hello = frames.Hello(wire.VERSION, "reader", "reader", content["token"])
        return (_reachable(host), int(port)), hello, str(content["authority"]), _certificates(content)
    except private.NotPrivate as error:
        raise CannotRun(error.problem, field=error.path, remedy=error.remedy) from error
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CannotRun(
            f"how to reach the hosts cannot be read: {error}", field=str(state / FOLDER / READER),
            remedy="run the command on the controller's machine, as the owner of the store",
        ) from error  # fmt: skip


def _certificates(content: dict[str, Any]) -> str:
    """The site's certificate that the hub shows, and the one that it shows soon, as it was replaced; empty for an own authority."""
    shown = str(content.get("certificate", ""))
    if not shown:
        return ""
    with suppress(OSError, ValueError), open(str(content["certificate_file"]), "rb") as file:
        newest = first_certificate(file.read(_MOST_BYTES).decode("ascii", "replace"))
        return shown if newest == shown else shown + newest
    return shown


def _reachable(host: str) -> str:
    """An address to dial, for one to listen on."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
