"""``unidle store``: check, repair, export, import, compact."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from unidle.cli import store_repair
from unidle.cli.common import (
    JsonOption,
    LocalStoreOption,
    ModeOption,
    data_dir,
    mode_of,
    print_json,
    say,
    store_address,
    warn,
)  # fmt: skip
from unidle.cli.help import Commands
from unidle.cli.output import whole_file
from unidle.errors import BadInput, UnidleError
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.store.protocol import Store

File = Annotated[
    str, typer.Argument(metavar="FILE", show_default=False, help="File; `-` is standard input or output.")
]

store_app = Commands(help="Check, repair, export, import and compact a store.")


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.add_typer(store_app, name="store")


@store_app.command("check")
def check(store: LocalStoreOption = None, as_json: JsonOption = False) -> None:
    """Read all of a store once, and report damage.

    Attempts that have files but are not in the log are reported on stderr; they are not damage, and the exit code is 0.
    """
    from unidle.store import tools
    from unidle.store.open import open_store

    opened = open_store(store_address(store), create=False, read_only=True)
    found = tools.check(opened)
    problems, unlogged = _folded(opened) if found.ok else (list(found.problems), [])
    opened.close()
    if as_json:
        print_json(
            {
                "ok": not problems, "events": found.events, "requests": found.requests, "problems": problems,
                "unlogged": unlogged,
            }
        )  # fmt: skip
    else:
        for line in unlogged:
            warn(line)
        for problem in problems:
            say(problem)
        if problems:
            say("`unidle store repair` saves what is whole")
        else:
            say(f"{counted(found.events, 'event')}, {counted(found.requests, 'request')}: all well")
    if problems:
        raise typer.Exit(1)


def _folded(opened: Store) -> tuple[list[str], list[str]]:
    """What is wrong with events that can be read, and attempts that have files but are not in the log."""
    from unidle.control.store_files import run_root, unlogged
    from unidle.events.types import decode
    from unidle.view.fold import apply
    from unidle.view.state import View

    view = View()
    try:
        for event in opened.read():
            apply(view, decode(event.kind, event.body, event.seq), event.seq, event.time_ns)
    except UnidleError as error:
        return [error.line()], []
    return [], list(unlogged(run_root(opened, data_dir()), view))


store_app.command("repair")(store_repair.repair)


@store_app.command("export")
def export(
    file: File = "-",
    store: LocalStoreOption = None,
    salvage: Annotated[
        bool,
        typer.Option("--salvage", help="Export what is whole in a damaged store, with a placeholder for each lost event."),
    ] = False,
    mode: ModeOption = "0600",
) -> None:  # fmt: skip
    """Write the whole log as JSON lines. An incomplete export is refused at import."""
    from unidle.store import tools
    from unidle.store.open import open_store

    address = store_address(store)
    _refuse_own_files(file, address)
    if salvage:
        with whole_file(file, "FILE", mode_of(mode)) as stream:
            store_repair.salvage(address, stream)
        return
    opened = open_store(address, create=False, read_only=True)
    with whole_file(file, "FILE", mode_of(mode)) as stream:
        tools.export(opened, stream)
    for damaged in opened.damaged_requests():
        warn(f"request {damaged.id}: its checksum is wrong; it is left out")
    opened.close()


def _refuse_own_files(file: str, address: str) -> None:
    """Errors: BadInput if the export would replace the store itself, or its write-ahead log."""
    own = address.removeprefix("sqlite:///")
    names = {Path(own + end).resolve() for end in ("", "-wal", "-shm")}
    if file != "-" and "://" not in own and Path(file).resolve() in names:
        raise BadInput("is a file of the store itself", field="FILE", value=file, remedy="name another file")


@store_app.command("import")
def import_(
    file: File = "-", store: LocalStoreOption = None, mode: ModeOption = "0600", as_json: JsonOption = False
) -> None:
    """Import an export into an empty store, completely or not at all."""
    from unidle.api.stores import make_parent
    from unidle.store import tools
    from unidle.store.open import open_store

    address = store_address(store)
    with _readable(file) as stream:
        make_parent(address)
        opened = open_store(address, create=True, mode=mode_of(mode))
        try:
            count = tools.import_(opened, stream)
        finally:
            opened.close()
    if as_json:
        print_json({"events": count})
    else:
        say(f"{counted(count, 'event')} imported")


def _readable(file: str) -> AbstractContextManager[BinaryIO]:
    if file == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise BadInput(
            f"cannot be read: {error.strerror}", field="FILE", value=file, remedy="name what `unidle store export` wrote"
        ) from error  # fmt: skip


@store_app.command("compact")
def compact(store: LocalStoreOption = None, as_json: JsonOption = False) -> None:
    """Return unused disk space of a store to the file system. A new snapshot is written and final ledger rows are sealed; no event is dropped."""
    from unidle.store import tools
    from unidle.store.open import open_store
    from unidle.view.snapshot import renewed_view
    from unidle.view.source import save_snapshot

    opened = open_store(store_address(store), create=False)
    lease = opened.acquire("unidle store compact")
    try:
        save_snapshot(opened, lease, renewed_view(opened), seal_at=1)
        before, after = tools.compact(opened, lease)
    finally:
        opened.release(lease)
        opened.close()
    if as_json:
        print_json({"before_bytes": before, "after_bytes": after})
    else:
        say(f"{before / 2**20:.1f} MiB before, {after / 2**20:.1f} MiB after")
