"""Run every benchmark and rewrite docs/benchmarks.md.

make bench                      all of them
make bench ARGS="store ledger"  some; the others' sections stay as they were
make bench ARGS="'overhead --runs 12'"  with options of that benchmark
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from _table import COLUMNS, Row, cells, text

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
INTRODUCTION = """\
# Benchmarks

Written by `make bench`; do not edit. Each section is one command, which prints the same table.
`ratio` above 1 is better than the peer. A row that falls short of its goal stays here and says **NO**.
"""
NIGHTLY = ("soak", "disk_faults", "hosts_faults")
"""Take long, and have no figure for the page: `python bench/soak.py`, `make disk-faults`, `python bench/hosts_faults.py`,
every night."""
BY_HAND = "test-gpu"
"""The section that `make test-gpu` writes, on a machine with a GPU."""


@dataclass(frozen=True, slots=True)
class Run:
    """One benchmark's run."""

    words: tuple[str, ...]  # its name and options
    rows: tuple[Row, ...]
    start: datetime
    end: datetime
    error: str | None


def names() -> list[str]:
    return sorted(
        p.stem
        for p in Path(__file__).parent.glob("*.py")
        if p.stem not in ("run_all", *NIGHTLY) and p.stem[0] != "_"
    )


def run(words: tuple[str, ...]) -> Run:
    """Run a benchmark by its name and options; rows that were printed before a failure are kept."""
    name, *options = words
    start = datetime.now(UTC)
    done = subprocess.run(
        [sys.executable, f"bench/{name}.py", "--json", *options], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    rows = tuple(Row(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{"))
    short = any(row.holds is False for row in rows)
    failed = done.returncode not in ((0, 1) if short else (0,))
    error = f"ended with exit code {done.returncode}" if failed else None if rows else "printed no row"
    return Run(words, rows, start, datetime.now(UTC), error)


def section(result: Run, machine: str) -> str:
    """The page's section of one benchmark."""
    took_s = (result.end - result.start).total_seconds()
    window = f"{result.start:%Y-%m-%d %H:%M:%S} to {result.end:%H:%M:%S} UTC ({took_s:.0f} s)"
    name, *options = result.words
    command = f"`{shlex.join(['.venv/bin/python', f'bench/{name}.py', *options])}`"
    lines = [f"## {name}", "", f"{command}, {window}, {machine}", "", *note_of(name)]
    if result.rows:
        lines += ["| " + " | ".join(COLUMNS) + " |", "|---|--:|---|---|--:|---|---|---|"]
        lines += ["| " + " | ".join(map(cell, cells(row))) + " |" for row in result.rows]
    if result.error:
        lines += ["", f"**Failed:** {result.error}."]
    return "\n".join(lines) + "\n"


def note_of(name: str) -> list[str]:
    """What a reader has to know of the rows: the paragraph of the benchmark's docstring that begins with ``Note: ``."""
    words = ast.get_docstring(ast.parse((ROOT / "bench" / f"{name}.py").read_text())) or ""
    notes = [part for part in words.split("\n\n") if part.startswith("Note: ")]
    return [notes[0], ""] if notes else []


def cell(words: str) -> str:
    """Words in a table of the page."""
    shown = words.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    return "**NO**" if shown == "NO" else shown


def machine() -> str:
    """What the figures were measured on; no name of the host."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{len(os.sched_getaffinity(0))} cores ({_processor()}), {memory:.0f} GiB memory, "
        f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    )


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def sections(page: str) -> dict[str, str]:
    """The sections that the page has, by benchmark."""
    parts = re.split(r"^## (\S+)\n", page, flags=re.MULTILINE)
    return {
        name: f"## {name}\n{body.rstrip()}\n" for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def main() -> None:
    known = names()
    parser = argparse.ArgumentParser(prog="bench/run_all.py", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; none means all")
    wanted = [tuple(shlex.split(words)) for words in parser.parse_args().names or known]
    if unknown := sorted({words[0] for words in wanted} - set(known)):
        parser.error(f"no benchmark {', '.join(unknown)}; known: {', '.join(known)}")
    kept = sections(PAGE.read_text()) if PAGE.exists() else {}
    failed = False
    for k, words in enumerate(wanted, 1):
        name = words[0]
        print(f"[{k}/{len(wanted)}] bench/{name}.py", file=sys.stderr, flush=True)
        result = run(words)
        print(f"{name}\n{text(result.rows)}\n", flush=True)
        kept[name] = section(result, machine())
        failed = failed or result.error is not None
        # Written after each one: an interrupted run keeps what it has.
        PAGE.write_text("\n".join([INTRODUCTION, *(kept[n] for n in (*known, BY_HAND) if n in kept)]))
    sys.exit(failed)


if __name__ == "__main__":
    main()
