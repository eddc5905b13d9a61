"""Records what must stay equal when modules move: reference pages, helps, schemas, refusals and modelled results.

    python scripts/same.py record FOLDER    write all of it into FOLDER
    python scripts/same.py compare FOLDER   record again and print the differences; exit code 1 where there is one

Modelled results have no clock and no chance in them, so each byte counts.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

_SPAN: Final = "examples/span/"
SCHEMAS: Final = ("job", "fleet", "clusters", "drill", "span", "fill", "filler")
RUNS: Final[dict[str, Sequence[str]]] = {
    **{f"schema-{kind}": ("schema", kind) for kind in SCHEMAS},
    "refusal-schema": ("schema", "nothing"),
    "refusal-command": ("nothing",),
    "refusal-span": ("span", "nothing"),
    "refusal-span-option": ("span", "simulate", "--nothing"),
    "refusal-span-file": ("span", "simulate", "nothing.yaml"),
    "refusal-span-plan": ("span", "plan", "nothing.yaml"),
    "refusal-span-run": ("span", "run", "nothing.yaml"),
    "refusal-span-profile": ("span", "profile", "nothing.yaml"),
    "refusal-span-probe": ("span", "probe", "nowhere"),
    "refusal-job-as-span": ("span", "simulate", "examples/hello/job.yaml"),
}


def modelled() -> Iterator[tuple[str, Sequence[str]]]:
    """Each span file of the examples: simulated and planned, as text and as JSON."""
    for path in sorted((ROOT / _SPAN).glob("*.yaml")):
        file = f"{_SPAN}{path.name}"
        for form, options in (("text", ()), ("json", ("--json",))):
            yield f"simulate-{path.stem}-{form}", ("span", "simulate", file, "--ledger", *options)
            yield f"plan-{path.stem}-{form}", ("span", "plan", file, *options)


def helps(command: Any, path: list[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """The help of each command, hidden ones too."""
    yield "-".join(["help", *path[1:]]), (*path[1:], "--help")
    for name, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, [*path, name])


def record(folder: Path) -> None:
    """Write one file for each thing."""
    import typer.main

    from docs import PAGES
    from unidle.cli.commands import app

    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name.replace("/", "-")).write_text(page(), encoding="utf-8")
    runs = {**RUNS, **dict(modelled()), **dict(helps(typer.main.get_command(app()), ["unidle"]))}
    with ThreadPoolExecutor(max_workers=2) as pool:
        for name, text in zip(runs, pool.map(_printed, runs.values()), strict=True):
            (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def _printed(words: Sequence[str]) -> str:
    """What a command prints on both streams, and its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "unidle", *words], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return f"{done.stdout}--- standard error\n{done.stderr}--- exit code {done.returncode}\n"


def differences(before: Path, after: Path) -> Iterator[str]:
    """Lines of a unified difference of the files of two folders."""
    for name in sorted({path.name for folder in (before, after) for path in folder.iterdir()}):
        old, new = (_lines(folder / name) for folder in (before, after))
        yield from difflib.unified_diff(old, new, f"before/{name}", f"after/{name}", lineterm="", n=1)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.what == "record":
        record(given.folder)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        record(Path(scratch))
        found = list(differences(given.folder, Path(scratch)))
    print("\n".join(found) or "no difference")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
