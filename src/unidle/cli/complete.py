"""What a shell offers for a word: jobs, queues, nodes, leaves of the ledger. Quick, and silent where it cannot be known.

A key press must not wait for a fold of the whole log: the log is read backwards, for less than a tenth of a second. So
the newest jobs are always there, and of a long log the oldest may be missing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    import sqlite3

_BUDGET_S: Final = 0.07
_OFFERED: Final = 30

_T = TypeVar("_T")
_Row = tuple[str, bytes]


def jobs(ctx: Any, incomplete: str) -> list[str]:
    """Ids and names of jobs: those that have not ended first, then the ones that ended last."""
    nothing: tuple[list[str], list[str]] = ([], [])
    live, ended = _guarded(lambda: _jobs(_store_of(ctx), incomplete), nothing)
    if ctx.info_name == "cancel":
        return live
    return ended if ctx.info_name == "rm" else [*live, *(name for name in ended if name not in live)]


def queues(ctx: Any, incomplete: str) -> list[str]:
    """Queues of the fleet, and those that jobs named."""

    def found() -> list[str]:
        store = _store_of(ctx)
        names = [queue["name"] for queue in _fleet(store).get("queues", ())]
        return _fitting([*names, *_of_specs(store, "queue")], incomplete)

    return _guarded(found, [])


def users(ctx: Any, incomplete: str) -> list[str]:
    """Users who submitted jobs."""
    return _guarded(lambda: _fitting(_of_specs(_store_of(ctx), "user"), incomplete), [])


def nodes(ctx: Any, incomplete: str) -> list[str]:
    """Nodes of the fleet."""
    return _guarded(lambda: _fitting([n["id"] for n in _nodes(ctx)], incomplete), [])


def devices(ctx: Any, incomplete: str) -> list[str]:
    """Devices of the fleet."""
    return _guarded(lambda: _fitting([d["id"] for n in _nodes(ctx) for d in n["devices"]], incomplete), [])


def targets(ctx: Any, incomplete: str) -> list[str]:
    """Nodes of the fleet, and after a slash their devices."""
    return devices(ctx, incomplete) if "/" in incomplete else nodes(ctx, incomplete)


def leaves(incomplete: str) -> list[str]:
    """Leaves of the ledger."""
    from unidle.ledger.taxonomy import GROUP_OF

    return _fitting(GROUP_OF, incomplete)


def groups(incomplete: str) -> list[str]:
    """Groups of leaves."""
    from unidle.ledger.taxonomy import GROUPS

    return _fitting(GROUPS, incomplete)


def states(incomplete: str) -> list[str]:
    """States of a job."""
    from typing import get_args

    from unidle.jobs.state import JobState

    return _fitting(get_args(JobState), incomplete)


# -- the command line as a shell asks for it -----------------------------------------------------------


def words_before() -> list[str]:
    """The whole words after the program's name; the last one, which may be the beginning of a word, is left out."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()
    whole = words if line.endswith((" ", "\n")) else words[:-1]
    return whole[1:]


def answer(command: Callable[[], Any]) -> None:
    """Let ``command`` print what may follow. An error would stand in the middle of what the user types: none is shown."""
    with suppress(ImportError, AttributeError):
        from typer import _completion_classes

        vars(_completion_classes)["_sanitize_help_text"] = _as_text  # its own would import all of rich
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    code: Any = 0
    try:
        command()
    except SystemExit as ended:
        code = ended.code
    except Exception:
        code = 1
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code if isinstance(code, int) else 0)


def _as_text(described: str) -> str:
    """For zsh typer doubles apostrophes, and zsh drops them all the same."""
    return described.replace("''", "'").replace("'", "\N{RIGHT SINGLE QUOTATION MARK}")


def keep_order() -> None:
    """Let the scripts that are printed or installed keep the order in which words are offered."""
    with suppress(ImportError, KeyError):
        from typer import _completion_shared

        scripts: dict[str, str] = vars(_completion_shared)["_completion_scripts"]
        scripts["bash"] = scripts["bash"].replace("complete -o default", "complete -o nosort -o default")
        scripts["fish"] = scripts["fish"].replace("--no-files", "--no-files --keep-order")


# -- the log, backwards --------------------------------------------------------------------------------


def _guarded(found: Callable[[], _T], otherwise: _T) -> _T:
    try:
        return found()
    except Exception:
        return otherwise


def _store_of(ctx: Any) -> str:
    from unidle.cli.common import store_address

    given = ctx.params.get("store") or os.environ.get("UNIDLE_STORE")
    return store_address(given).removeprefix("sqlite://")


def _fitting(names: Any, incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name and name.startswith(incomplete)]


def _opened(store: str) -> closing[sqlite3.Connection]:
    import sqlite3

    path = Path(store).resolve().as_uri()
    return closing(sqlite3.connect(f"{path}?mode=ro", uri=True, timeout=0.05))


def _log(store: str, *kinds: str) -> Iterator[_Row]:
    """Events of these kinds, the newest first, as far back as there is time for."""
    import sqlite3

    until = time.process_time() + _BUDGET_S
    with _opened(store) as log, suppress(sqlite3.OperationalError):  # interrupted: the time is up
        log.set_progress_handler(lambda: time.process_time() > until, 1000)
        wanted = json.dumps(kinds)
        yield from log.execute(
            "SELECT kind, body FROM unidle_events WHERE kind IN (SELECT value FROM json_each(?)) ORDER BY seq DESC",
            (wanted,),
        )


def _inbox(store: str) -> list[bytes]:
    with _opened(store) as log:
        found = log.execute("SELECT body FROM unidle_requests WHERE kind = 'submit' ORDER BY id LIMIT 200")
        return [body for (body,) in found]


def _jobs(store: str, incomplete: str) -> tuple[list[str], list[str]]:
    """Live and ended jobs whose id or name begins so, the newest first."""
    live: dict[str, None] = {}
    ended: dict[str, None] = {}
    over: set[str] = set()
    gone: set[str] = set()

    def add(to: dict[str, None], body: dict[str, Any]) -> None:
        for name in (body["job"], body["spec"].get("name", "")):
            if name.startswith(incomplete):
                to[name] = None

    for submit in reversed(_inbox(store)):
        with suppress(ValueError, KeyError, TypeError):  # the next controller puts it away
            add(live, json.loads(submit))
    for kind, text in _log(store, "job_submitted", "job_ended", "jobs_removed"):
        body = json.loads(text)
        if kind == "job_ended":
            over.add(body["job"])
        elif kind == "jobs_removed":
            gone.update(body["jobs"])
        elif body["job"] not in over:
            add(live, body)
        elif body["job"] not in gone and len(ended) < _OFFERED:
            add(ended, body)
    return list(live), list(ended)


def _fleet(store: str) -> dict[str, Any]:
    """The fleet that was seen last, with the nodes that came or left since."""
    changes: list[dict[str, Any]] = []
    for kind, body in _log(store, "fleet_seen", "fleet_changed"):
        if kind == "fleet_changed":
            changes.append(json.loads(body))
            continue
        fleet: dict[str, Any] = json.loads(body)["fleet"]
        nodes = {node["id"]: node for node in fleet["nodes"]}
        for change in reversed(changes):
            nodes |= {node["id"]: node for node in change.get("put", ())}
            nodes = {name: node for name, node in nodes.items() if name not in change.get("gone", ())}
        return {**fleet, "nodes": list(nodes.values())}
    return {}


def _nodes(ctx: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _fleet(_store_of(ctx)).get("nodes", [])
    return found


def _of_specs(store: str, field: str) -> Iterator[str]:
    for _, body in _log(store, "job_submitted"):
        yield json.loads(body)["spec"].get(field, "")
