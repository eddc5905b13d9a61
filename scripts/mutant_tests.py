"""The plugin of pytest that scripts/mutants.py runs tests with: it records which test runs which line, or tries mutants.

``UNIDLE_MUTANTS`` names a folder. With a file ``trials.json`` in it, its mutants are tried, each in a process of its own
that is forked after all tests have been collected. Without it, the lines that each test runs are recorded there.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import coverage
import hypothesis
import pytest

from mutant_kinds import built, code_of

PRODUCT: Final = "src/unidle"
FOLDER: Final = Path(os.environ["UNIDLE_MUTANTS"])
TRIALS: Final = FOLDER / "trials.json"
MOST_BYTES: Final = 6 << 30  # a loop without an end may fill a list
LEAST_LIMIT_S: Final = 2.0  # processor time of one test; under load it does not grow
LIMIT_FACTOR: Final = 10
_OF_PROCESSES: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
_OF_SESSION: Final = "nothing_is_left_behind"  # compares the whole machine, on which others work


class Recorder:
    """Notes for each test the lines it runs and its processor time. Tests that start processes are left out."""

    def __init__(self) -> None:
        self._lines = coverage.Coverage(
            data_file=FOLDER / "lines", data_suffix=True, source=[PRODUCT], config_file=False
        )
        self._lines.start()
        self._test = ""
        self._seconds: dict[str, float] = {}
        self._left_out: set[str] = set()
        sys.addaudithook(self._see)

    def _see(self, event: str, _: Any) -> None:
        if event in _OF_PROCESSES:
            self._left_out.add(self._test)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._test = item.nodeid
        self._lines.switch_context(item.nodeid)
        begin = time.process_time()
        result = yield
        self._seconds[item.nodeid] = time.process_time() - begin
        self._lines.switch_context("")
        self._test = ""
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown" and not report.passed:
            self._left_out.add(report.nodeid)

    def pytest_unconfigure(self) -> None:
        self._lines.stop()
        self._lines.save()
        usable = {test: seconds for test, seconds in self._seconds.items() if test not in self._left_out}
        (FOLDER / f"seconds.{os.getpid()}.json").write_text(json.dumps(usable), encoding="utf-8")


class Trials:
    """Tries each mutant: its tests run, the shortest first, until one fails."""

    def __init__(self) -> None:
        plan = json.loads(TRIALS.read_text(encoding="utf-8"))
        self._seconds: dict[str, float] = plan["seconds"]
        self._trials: list[dict[str, Any]] = plan["trials"]
        self._jobs: int = plan["jobs"]
        self._failed = ""

    def pytest_collection(self) -> None:
        """The same examples for each mutant. Hypothesis need not look for the smallest one that fails."""
        hypothesis.settings.register_profile(
            "mutants",
            hypothesis.settings.get_profile("unidle"),
            derandomize=True,
            database=None,
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        )
        hypothesis.settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        for item in session.items:
            names: list[str] = getattr(item, "fixturenames", [])
            if _OF_SESSION in names:
                names.remove(_OF_SESSION)
        gc.freeze()
        running: dict[int, int] = {}
        for at in range(len(self._trials)):
            while len(running) >= self._jobs:
                self._end_one(running)
            (FOLDER / f"result.{at}.json").unlink(missing_ok=True)  # of a run that was ended
            with warnings.catch_warnings(action="ignore"):
                pid = os.fork()
            if not pid:
                self._child(at, items)
            running[pid] = at
        while running:
            self._end_one(running)
        return True

    def _child(self, at: int, items: dict[str, pytest.Item]) -> None:
        """Never returns."""
        result: dict[str, Any] = {"killed": "", "by_limit": False}
        try:
            trial = self._trials[at]
            selected = [items[test] for test in trial["tests"] if test in items]
            self._enter(at, items)
            importlib.import_module(trial["module"])  # some are imported only when they are needed
            _change(Path(trial["file"]), trial)
            for item, following in zip(selected, [*selected[1:], None], strict=True):
                _write(at, {"killed": item.nodeid, "by_limit": True})  # read if the kernel ends this process
                limit = time.process_time() + max(LEAST_LIMIT_S, LIMIT_FACTOR * self._seconds[item.nodeid])
                resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, resource.RLIM_INFINITY))
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self._failed:
                    result["killed"] = self._failed
                    break
        except BaseException as error:  # the parent has to hear of all
            result = {"error": repr(error)}
        _write(at, result)
        os._exit(0)

    def _enter(self, at: int, items: dict[str, pytest.Item]) -> None:
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        config = next(iter(items.values())).config
        shutil.rmtree(FOLDER / f"t{at}", ignore_errors=True)
        factory = config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001
        factory._basetemp = FOLDER / f"t{at}"  # noqa: SLF001
        factory._basetemp.mkdir()  # noqa: SLF001

    def _end_one(self, running: dict[int, int]) -> None:
        pid, _ = os.wait()
        at = running.pop(pid)
        place = FOLDER / f"result.{at}.json"
        result = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {"error": "no result"}
        place.unlink(missing_ok=True)
        shutil.rmtree(FOLDER / f"t{at}", ignore_errors=True)
        row = {**self._trials[at]["row"], **result}
        with (FOLDER / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        how = result.get("error") or (result["killed"] and f"killed by {result['killed']}") or "survived"
        print(f"{at + 1}/{len(self._trials)} {row['name']}: {how}", file=sys.stderr, flush=True)


def _write(at: int, result: dict[str, Any]) -> None:
    place = FOLDER / f"result.{at}.new"
    place.write_text(json.dumps(result), encoding="utf-8")
    place.replace(FOLDER / f"result.{at}.json")


def _change(file: Path, trial: dict[str, Any]) -> None:
    """Put the changed code into each function object that has the code of the mutated function."""
    module = built(file.read_text(encoding="utf-8"), trial["number"], str(file))
    new = code_of(module, trial["function"], trial["first_line"])
    changed = 0
    gc.unfreeze()
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper):  # noqa: SLF001
            each.cache_clear()  # what was computed while tests were collected
        elif isinstance(each, types.FunctionType):
            code = each.__code__
            if (code.co_qualname, code.co_firstlineno) == (trial["function"], trial["first_line"]):
                with contextlib.suppress(OSError):
                    if new is not None and Path(code.co_filename).samefile(file):
                        each.__code__ = new
                        changed += 1
    if not changed:
        raise LookupError("no function object has this code")


PLUGIN: Final = Trials() if TRIALS.exists() else Recorder()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(PLUGIN, "mutants")
