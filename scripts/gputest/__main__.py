"""The command: rows one after the other, each in a process with its own time, then the table.

Exit codes: 0 all that could run held; 1 something failed; 2 bad input; 3 no GPU here.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from _table import Row as Figure
from _table import number
from gputest.common import (
    MODULES,
    ROWS,
    TOKEN,
    Failed,
    Hung,
    Missing,
    Place,
    Result,
    Row,
    answer,
    lacking,
    let_go,
    marked,
    no_cuda,
)

if TYPE_CHECKING:
    from gputest.left import Left

TOTAL_S: Final = 465.0
"""Of the whole command, so that it ends before eight minutes."""
_END_S: Final = 15.0  # kept for the look at what is left
_LET_GO_S: Final = 6.0  # a daemon that was asked to end takes a moment


def main() -> int:
    given = arguments()
    if given.row:
        return one_row(given.row, Place(Path(given.place), given.device))
    began = time.monotonic()
    try:
        why = answer("from gputest.common import no_gpu; print(no_gpu())", min(30, given.limit_s)).strip()
    except (Hung, Failed) as error:
        print(f"test-gpu: {error}: nothing was run", file=sys.stderr)
        return 1
    if why and not given.rehearse:
        print(f"test-gpu: no GPU: {why}; nothing was run", file=sys.stderr)
        return 3
    if given.record:
        from gputest.record import record

        print(f"test-gpu: {record(Path(given.record))}", file=sys.stderr)
        return 0
    rows = chosen(given.only)
    why_no = {
        "gpu": lambda: why,
        "cuda": (lambda: absent("torch")) if given.rehearse else (lambda: absent("torch") or no_cuda()),
    }
    device = "cpu" if given.rehearse else "cuda"
    token = secrets.token_hex(8)
    os.environ[TOKEN] = token
    results: list[tuple[str, Result]] = []
    with tempfile.TemporaryDirectory(prefix="unidle-test-gpu-") as name:
        left = before() if not why and not absent("pynvml") else None
        for row in rows:
            try:
                told = run_row(row, Path(name), device, lacking(row.needs, why_no), given.limit_s, began)
            finally:  # also after Ctrl-C
                still = ended(token, row)
            for result in (*told, *still):
                show(row.name, result, given.as_json)
                results.append((row.name, result))
        if left is not None:
            for result in after(left):
                show("left behind", result, given.as_json)
                results.append(("left behind", result))
    text = summary(results, time.monotonic() - began, given.rehearse)
    if given.page:
        write_page(Path(given.page), results, text, given.rehearse)
    return int(any(result.state == "failed" for _, result in results))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make test-gpu", description=__doc__)
    parser.add_argument(
        "--json", dest="as_json", action="store_true", help="one object a line, figures as in bench/"
    )
    parser.add_argument(
        "--only", default="", metavar="ROW[,..]", help=f"of: {', '.join(row.name for row in ROWS)}"
    )
    parser.add_argument(
        "--record", metavar="FILE", help="only write what NVML answers here, in the form that tests play"
    )
    parser.add_argument(
        "--page", metavar="FILE", help="also write the table into this page, as its section test-gpu"
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="the same rows on the CPU: tries the command, proves no GPU"
    )
    parser.add_argument(
        "--limit-s",
        type=float,
        default=TOTAL_S,
        metavar="SECONDS",
        help="the most for one row; default: its own",
    )
    for hidden in ("--row", "--place", "--device"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(only: str) -> list[Row]:
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = {row.name: row for row in ROWS}
    if unknown := [name for name in names if name not in known]:
        print(f"test-gpu: --only: no row {', '.join(unknown)}; known: {', '.join(known)}", file=sys.stderr)
        raise SystemExit(2)
    return [row for row in ROWS if not names or row.name in names]


def before() -> Left | str:
    """What is on the GPUs now, or why that cannot be determined."""
    from gputest.left import Left

    try:
        return Left()
    except (Hung, Failed) as error:
        return str(error)


def after(left: Left | str) -> list[Result]:
    """What was left behind."""
    try:
        return list(left.results()) if not isinstance(left, str) else [Result("GPUs before", "failed", left)]
    except (Hung, Failed) as error:
        return [Result("GPUs", "failed", str(error))]


def absent(module: str) -> str:
    return lacking((module,), {})


def run_row(row: Row, parent: Path, device: str, missing: str, most_s: float, began: float) -> list[Result]:
    """A row's results, whatever becomes of its process."""
    if missing:
        return [Result(row.name, "missing", missing)]
    place = Place(Path(tempfile.mkdtemp(prefix="row-", dir=parent)), device)
    left_s = TOTAL_S - _END_S - (time.monotonic() - began)
    limit_s = min(row.limit_s * place.patience, most_s, left_s)
    if limit_s <= 0:
        return [Result(row.name, "failed", f"no time was left of {TOTAL_S:g} s")]
    there = place.directory
    command = [sys.executable, "-m", "gputest", "--row", row.name, "--place", str(there), "--device", device]
    with (there / "out").open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, cwd=there
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
            let_go(process)
    told = [Result(**one) for one in map(json.loads, read(there / "results").splitlines())]
    if code is None:
        told.append(Result(row.name, "failed", f"not done within {limit_s:.0f} s"))
    elif code:
        said = read(there / "out").strip().splitlines()
        told.append(
            Result(row.name, "failed", f"ended with {code}: {said[-1][:300] if said else 'no message'}")
        )
    return told or [Result(row.name, "failed", "it gave no result")]


def read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def one_row(name: str, place: Place) -> int:
    """In the row's own process: each result is written as it comes."""
    row = next(row for row in ROWS if row.name == name)
    with (place.directory / "results").open("w") as file:

        def tell(result: Result) -> None:
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()

        try:
            for result in row.run(place):
                tell(result)
        except Missing as error:
            tell(Result(name, "missing", str(error)))
        except Failed as error:
            tell(Result(name, "failed", str(error)))
        except subprocess.TimeoutExpired as error:
            tell(
                Result(name, "failed", f"{Path(error.cmd[0]).name} was not done within {error.timeout:.0f} s")
            )
    return 0


def ended(token: str, row: Row) -> list[Result]:
    """Nothing of a row may live on; what does is named, and ended."""
    until = time.monotonic() + _LET_GO_S
    while (pids := marked(token)) and time.monotonic() < until:
        time.sleep(0.05)
    if not pids:
        return []
    names = [read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")[:80] for pid in pids]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return [
        Result(row.name, "failed", f"left {len(pids)} running, which were killed: {'; '.join(names[:3])}")
    ]


# -- what is shown -------------------------------------------------------------------------------------


def show(name: str, result: Result, as_json: bool) -> None:
    if as_json:
        print(json.dumps(as_figure(name, result)), flush=True)
        return
    value = "" if result.value is None else f"{figure(result.value)} {result.unit}"
    goal = f" (goal {result.goal})" if result.goal else ""
    print(f"{result.state:8}{name:17} {result.what:36} {value:>26}  {result.says}{goal}".rstrip(), flush=True)


def figure(value: float) -> str:
    return number(value)


def as_figure(name: str, result: Result) -> dict[str, object]:
    """As a row of bench/, with the state and the row's name."""
    holds = {"ran": True, "failed": False, "missing": None}[result.state]
    if result.value is None:
        return {"row": name, "what": result.what, "state": result.state, "says": result.says, "holds": holds}
    shown = Figure(
        result.what,
        result.unit,
        result.value,
        goal=result.goal,
        holds=holds,
        how=f"measured here, {result.says}",
    )
    return {"row": name, "state": result.state} | asdict(shown)


def write_page(page: Path, results: Sequence[tuple[str, Result]], text: str, rehearsal: bool) -> None:
    """Put the table into the page as its section ``test-gpu``; others stay."""
    from run_all import BY_HAND, cell, machine, sections

    gpu = next((result.says for _, result in results if result.what == "GPUs found"), "no GPU was asked")
    head = f"{'A rehearsal on the CPU. ' if rehearsal else ''}{gpu.partition(';')[0]}"
    lines = [
        f"## {BY_HAND}",
        "",
        f"`make test-gpu`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {head}, {machine()}: {text}.",
        "",
    ]
    lines += ["| row | what | state | value | unit | |", "|---|---|---|--:|---|---|"]
    for name, one in results:
        state = "**failed**" if one.state == "failed" else one.state
        words = (name, one.what, state, number(one.value), one.unit, one.says)
        lines.append(f"| {' | '.join(map(cell, words))} |")
    section = "\n".join(lines) + "\n"
    old = page.read_text() if page.exists() else ""
    before = sections(old).get(BY_HAND)
    start = old[: old.index(f"## {BY_HAND}\n")] if before else f"{old.rstrip()}\n\n".lstrip()
    rest = old[len(start) :].partition("\n## ")[2] if before else ""
    page.write_text(start + section + (f"\n## {rest}" if rest else ""))


def summary(results: Sequence[tuple[str, Result]], seconds: float, rehearsal: bool) -> str:
    counts = Counter(result.state for _, result in results)
    reasons = dict.fromkeys(result.says for _, result in results if result.state == "missing")
    missing = f": {'; '.join(reasons)}" if reasons else ""
    text = f"{counts['ran']} ran, {counts['failed']} failed, {counts['missing']} missing{missing} ({seconds:.0f} s)"
    print(f"test-gpu: {text}", file=sys.stderr)
    if gone := [name for name in MODULES if absent(name)]:
        print(
            f"test-gpu: Python has no {', '.join(gone)}: give their wheels, WHEELS=DIR make test-gpu",
            file=sys.stderr,
        )
    if rehearsal:
        print("test-gpu: a rehearsal on the CPU: no row says anything of a GPU", file=sys.stderr)
    return text


if __name__ == "__main__":
    if shutil.which("nvidia-smi") is None:
        os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":/usr/local/nvidia/bin"
    sys.exit(main())
