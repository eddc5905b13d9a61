"""Mutation tests: makes small changes in the code of a sample of functions, and counts those that no test notices.

    python scripts/mutants.py                 50 mutants of each room; exit code 1 where fewer than 90 % are killed
    python scripts/mutants.py ledger          of one room
    python scripts/mutants.py --count 200     of more mutants
    python scripts/mutants.py --list          prints the sample and the number of tests that run each line

The sample is the same each time: a change of the code moves only mutants of the statements that changed. Each mutant is
tried only on the tests that run its line. All work is done in a copy of the checkout in ``--work``. A second call takes
what is known there: it records only the lines of test files that changed, and tries only mutants whose tests changed.

``mutants_equivalent.txt`` lists mutants that cannot change what the code does: a name, then the reason, indented.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import coverage

from mutant_kinds import Mutant, built, code_of, mutants

ROOT: Final = Path(__file__).resolve().parent.parent
EQUIVALENT: Final = Path("scripts") / "mutants_equivalent.txt"
ROOMS: Final = {
    "place": ("src/unidle/place",),
    "guard": ("src/unidle/guard",),
    "ledger": ("src/unidle/ledger",),
    "span": tuple(f"src/unidle/span/{part}" for part in ("model", "simulate", "plan", "replan")),
}
TESTS: Final = tuple(
    f"tests/{part}"
    for part in (
        "place", "pack", "guard", "ledger", "span", "view", "control", "loop", "span_probe/test_span_fit.py",
        "span_profile/test_span_layers.py", "span_run/test_span_run_plan.py", "span_run/test_span_run_absent.py",
    )
)  # fmt: skip
MOST_SECONDS: Final = 240.0  # recorded processor time of the tests of one mutant, the shortest first
RECORDED: Final = "recorded.json"


class Recorded(NamedTuple):
    """What the tests did on the code as it is."""

    source: str  # digest of the product and of what tests share
    files: dict[str, str]  # digest of each test file
    seconds: dict[str, float]  # processor time of each usable test

    def stamps(self, tests: list[str]) -> dict[str, str]:
        return {file: self.files[file] for file in sorted({test.partition("::")[0] for test in tests})}


def copy_tree(root: Path, into: Path) -> None:
    """Make the copy equal to the checkout. Files that did not change keep their time, and so their byte code."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    names = {name for name in listed.stdout.split("\0") if name and (root / name).is_file()}
    for path in list(into.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and str(path.relative_to(into)) not in names:
            path.unlink()
    for name in sorted(names):
        new, old = into / name, root / name
        if not new.exists() or new.read_bytes() != old.read_bytes():
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(old, new)


def _digest(paths: list[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(f"{path}\0".encode() + path.read_bytes())
    return found.hexdigest()


def record(work: Path, jobs: int) -> Recorded:
    """Run the tests of files that changed since the last call, and note which lines each test runs."""
    copy = work / "copy"
    tests = sorted(
        path
        for part in TESTS
        for path in ([copy / part] if (copy / part).is_file() else (copy / part).rglob("test_*.py"))
    )
    shared = sorted(path for path in (copy / "tests").rglob("*") if _is_shared(path))
    source = _digest([*sorted((copy / "src").rglob("*.py")), *shared])
    files = {path.relative_to(copy).as_posix(): _digest([path]) for path in tests}
    store = work / RECORDED
    before = Recorded(**json.loads(store.read_text())) if store.exists() else Recorded("", {}, {})
    if before.source != source:
        before = Recorded(source, {}, {})
        (work / "lines").unlink(missing_ok=True)
    changed = [file for file, digest in files.items() if before.files.get(file) != digest]
    seconds = {
        test: time
        for test, time in before.seconds.items()
        if (file := test.partition("::")[0]) in files and file not in changed
    }
    if changed:
        print(f"recording which lines the tests of {len(changed)} files run", file=sys.stderr)
        seconds |= _record(work, changed, jobs)
    now = Recorded(source, files, seconds)
    store.write_text(json.dumps(now._asdict()), encoding="utf-8")
    return now


def _is_shared(path: Path) -> bool:
    """Helpers, scenarios and golden files: what any test may read."""
    is_test = path.name.startswith("test_") and path.suffix == ".py"
    return path.is_file() and not is_test and "__pycache__" not in path.parts


def _record(work: Path, files: list[str], jobs: int) -> dict[str, float]:
    (work / "trials.json").unlink(missing_ok=True)
    _pytest(work, [*(["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else ()), *files])
    lines = coverage.Coverage(data_file=work / "lines", config_file=False)
    lines.load()
    lines.combine([str(work)])
    lines.save()
    seconds: dict[str, float] = {}
    for path in work.glob("seconds.*.json"):
        seconds |= json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
    return seconds


def _pytest(work: Path, arguments: list[str]) -> None:
    """Its output goes to a log: tests that fail are left out."""
    environment = {
        **os.environ,
        "UNIDLE_MUTANTS": str(work),
        "PYTHONPATH": os.pathsep.join(str(work / "copy" / part) for part in ("src", "scripts")),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "mutant_tests", "-p", "no:cacheprovider"]
    command += ["-m", "not slow and not nightly", f"--basetemp={work / 't'}", *arguments]
    with (work / "pytest.log").open("w", encoding="utf-8") as log:
        subprocess.run(command, cwd=work / "copy", env=environment, stdout=log, check=False)


def sample(copy: Path, places: tuple[str, ...], count: int, seed: str) -> list[Mutant]:
    """The mutants of a room with the lowest ranks."""
    paths = sorted(path for place in places for path in (copy / place).rglob("*.py"))
    found = [
        mutant
        for path in paths
        for mutant in mutants(path.read_text(encoding="utf-8"), path.relative_to(copy).as_posix())
    ]
    chosen: list[Mutant] = []
    for mutant in sorted(found, key=lambda each: each.rank(seed)):
        if len(chosen) == count:
            break
        if _can_replace(copy, mutant):
            chosen.append(mutant)
    return sorted(chosen, key=lambda each: (each.path, each.number))


def _can_replace(copy: Path, mutant: Mutant) -> bool:
    """A function takes new code only if it reads the same variables of what is around it."""
    text = (copy / mutant.path).read_text(encoding="utf-8")
    wanted = (mutant.function, mutant.first_line)
    old = code_of(compile(text, mutant.path, "exec"), *wanted)
    new = code_of(built(text, mutant.number, mutant.path), *wanted)
    return old is not None and new is not None and old.co_freevars == new.co_freevars


class Lines:
    """Which tests run which line."""

    def __init__(self, work: Path, recorded: Recorded) -> None:
        self._coverage = coverage.Coverage(data_file=work / "lines", config_file=False)
        self._coverage.load()
        self._copy = work / "copy"
        self._seconds = recorded.seconds

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests of a mutant, the shortest first, up to the limit of their seconds."""
        by_line = self._coverage.get_data().contexts_by_lineno(str(self._copy / mutant.path))
        first, last = mutant.lines
        found = {test for line in range(first, last + 1) for test in by_line.get(line, ())}
        found = found or set(by_line.get(mutant.statement, ()))
        usable = sorted(found & self._seconds.keys(), key=lambda test: (self._seconds[test], test))
        total, kept = 0.0, []
        for test in usable:
            total += self._seconds[test]
            if total > MOST_SECONDS:
                break
            kept.append(test)
        return kept

    def share(self, places: tuple[str, ...]) -> tuple[int, int]:
        """Lines of code of a room, and how many of them run."""
        code = run = 0
        for path in sorted(path for place in places for path in (self._copy / place).rglob("*.py")):
            _, lines, _, missing, _ = self._coverage.analysis2(str(path))
            code += len(lines)
            run += len(lines) - len(missing)
        return code, run


def known_results(work: Path, recorded: Recorded) -> Iterator[dict[str, Any]]:
    """Earlier results that hold: a kill while its test is the same, a survival while all its tests are."""
    place = work / "results.jsonl"
    for line in place.read_text(encoding="utf-8").splitlines() if place.exists() else ():
        row = json.loads(line)
        if row["source"] != recorded.source or "error" in row:
            continue
        by = row["killed"].partition("::")[0]
        if not by or row["files"].get(by) == recorded.files.get(by):
            yield row


def try_all(work: Path, chosen: list[Mutant], recorded: Recorded, jobs: int) -> dict[str, dict[str, Any]]:
    """The result of each mutant, by its name."""
    lines = Lines(work, recorded)
    known = {row["name"]: row for row in known_results(work, recorded)}
    trials: list[dict[str, Any]] = []
    results: dict[str, dict[str, Any]] = {}
    for mutant in chosen:
        tests = lines.tests(mutant)
        files = recorded.stamps(tests)
        row = {"name": mutant.name, "source": recorded.source, "files": files}
        earlier = known.get(mutant.name)
        if earlier and (earlier["killed"] or earlier["files"] == files):
            results[mutant.name] = earlier
        elif not tests:
            results[mutant.name] = {**row, "killed": "", "no_test": True}
        else:
            where: dict[str, Any] = {
                "number": mutant.number,
                "function": mutant.function,
                "first_line": mutant.first_line,
            }
            where["file"] = str(work / "copy" / mutant.path)
            where["module"] = mutant.path.removeprefix("src/").removesuffix(".py").replace("/", ".")
            trials.append({"row": row, "tests": tests, **where})
    if trials:
        plan = {"jobs": jobs, "seconds": recorded.seconds, "trials": trials}
        (work / "trials.json").write_text(json.dumps(plan), encoding="utf-8")
        _pytest(work, sorted({file for trial in trials for file in trial["row"]["files"]}))
        wanted = {trial["row"]["name"] for trial in trials}
        for line in (work / "results.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["name"] in wanted and row["source"] == recorded.source:
                results[row["name"]] = row
    return results


def equivalents(text: str) -> dict[str, str]:
    """Name and reason of each listed mutant."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith(" "):
            found[name] = f"{found[name]} {line.strip()}".strip()
        elif line and not line.startswith("#"):
            name = line
            found[name] = ""
    return found


def report(
    samples: dict[str, list[Mutant]],
    results: dict[str, dict[str, Any]],
    listed: dict[str, str],
    shares: dict[str, tuple[int, int]],
    least: int,
) -> int:
    """Print survivors and the table. Returns the exit code."""
    wrong = [f"listed without a reason: {name}" for name, reason in listed.items() if not reason]
    rows = []
    for room, chosen in samples.items():
        counts: dict[str, int] = defaultdict(int)
        for mutant in chosen:
            result = results.get(mutant.name, {"error": "not tried"})
            outcome = "error" if "error" in result else "killed" if result["killed"] else "survived"
            if mutant.name in listed:
                if outcome == "killed":
                    wrong.append(f"listed as equivalent, but killed: {mutant.name}")
                outcome = "equivalent"
            elif outcome != "killed":
                note = result.get("error") or ("no test runs it" if "no_test" in result else "")
                print(f"{outcome}: {mutant.name}  (line {mutant.lines[0]}){note and f': {note}'}")
            counts[outcome] += 1
        percent = 100 * counts["killed"] / max(1, len(chosen) - counts["equivalent"])
        code, run = shares[room]
        rows.append((room, f"{100 * run / max(1, code):.1f}", counts, f"{percent:.1f}"))
        if counts["error"]:
            wrong.append(f"{room}: {counts['error']} could not be tried")
        if percent < least:
            wrong.append(f"{room}: {percent:.1f} % killed, at least {least} % wanted")
    outcomes = ("killed", "survived", "equivalent", "error")
    print(
        f"{'room':8} {'lines run %':>12}" + "".join(f"{each:>12}" for each in outcomes) + f"{'killed %':>12}"
    )
    for room, lines, counts, share in rows:
        print(f"{room:8} {lines:>12}" + "".join(f"{counts[each]:>12}" for each in outcomes) + f"{share:>12}")
    print("\n".join(wrong), end="\n" * bool(wrong))
    return 1 if wrong else 0


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Count the small changes of the code that no test notices.")
    parser.add_argument("rooms", nargs="*", choices=[*ROOMS, []], help="all, if none is named")
    parser.add_argument("--count", type=int, default=50, help="mutants of each room")
    parser.add_argument("--seed", default="unidle", help="another seed is another sample")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--least", type=int, default=90, help="percent that have to be killed in each room")
    parser.add_argument(
        "--work", type=Path, default=root / ".cache" / "mutants", help="what is known is kept here"
    )
    parser.add_argument("--list", action="store_true", help="print the sample and try nothing")
    options = parser.parse_args(arguments)
    work = options.work.resolve()
    (work / "copy").mkdir(parents=True, exist_ok=True)
    copy_tree(root, work / "copy")
    rooms = options.rooms or list(ROOMS)
    samples = {room: sample(work / "copy", ROOMS[room], options.count, options.seed) for room in rooms}
    recorded = record(work, options.jobs)
    lines = Lines(work, recorded)
    chosen = [mutant for each in samples.values() for mutant in each]
    if options.list:
        for mutant in chosen:
            print(f"{len(lines.tests(mutant)):5} tests  {mutant.name}  (line {mutant.lines[0]})")
        return 0
    results = try_all(work, chosen, recorded, options.jobs)
    listed = equivalents((root / EQUIVALENT).read_text(encoding="utf-8"))
    shares = {room: lines.share(ROOMS[room]) for room in rooms}
    return report(samples, results, listed, shares, options.least)


if __name__ == "__main__":
    sys.exit(main())
