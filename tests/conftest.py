"""Fixtures for every room, and two rules of the whole session: nothing is skipped, nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import groups
import leftovers
import needs
import nightly
import places
import waiting

CHECKOUT = Path(__file__).resolve().parent.parent

gc.disable()  # until all tests are collected: what is imported and collected stays

# Commands fold lines and cells to this width, and tests look for whole sentences.
os.environ["COLUMNS"] = "200"

# Some tests shut file systems down. The kernel logs it for the machine, and controllers of others would act on it.
os.environ["UNIDLE_KERNEL_LOG"] = "off"

# A slow machine is no finding: what has to be fast is measured in bench/.
# In CI a change is judged, not what dice found: there, examples are the same each time.
settings.register_profile(
    "unidle",
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("unidle")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> groups.ByGroup | None:
    return groups.ByGroup(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _is_worker(config):
        groups.longest_first(items)
    nightly.share_examples(items)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Fails the session when a process, control group, namespace, mount or file outlives it.

    A worker among several answers for its own processes and mounts; for the machine, see :func:`pytest_sessionfinish`.
    """
    before = leftovers.look(CHECKOUT)
    yield
    if "warm_commands" in sys.modules:
        sys.modules["warm_commands"].WARM.close()
    scratch = tmp_path_factory.getbasetemp()
    find = leftovers.find_own if _is_worker(request.config) else leftovers.find
    if left := _still_left(lambda: find(before, scratch)):
        leftovers.clear(before, scratch)
        pytest.fail("the tests left behind:\n  " + "\n  ".join(left), pytrace=False)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")  # set by xdist


def _still_left(find: Callable[[], list[str]]) -> list[str]:
    with contextlib.suppress(AssertionError):
        waiting.wait_until(lambda: not find(), timeout_s=5)
    return find()


_MACHINE = pytest.StashKey[leftovers.Before]()


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("numprocesses", None) and not _is_worker(session.config):
        session.config.stash[_MACHINE] = leftovers.look(CHECKOUT)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Once all workers have ended: what they left on the machine fails the session."""
    before = session.config.stash.get(_MACHINE, None)
    if before is None:
        return
    if left := _still_left(lambda: leftovers.find_of_machine(before)):
        print("\nthe tests left behind:\n  " + "\n  ".join(left))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    """See :func:`waiting.wait_until`."""
    return waiting.wait_until


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB. The test needs root."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], check=True)
    yield place
    waiting.wait_until(lambda: subprocess.run(["umount", "-q", place]).returncode == 0, 60, "the unmounting")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a real PostgreSQL server of this session (user ``unidle``, a superuser)."""
    programs = needs.postgres_bin()
    if programs is None:
        pytest.skip("needs the PostgreSQL 15+ server (apt-get install postgresql)")
    # Not below pytest's own directory: that one is closed to the user that the server runs as.
    place = Path(tempfile.mkdtemp(prefix="unidle-postgres-", dir=places.open_parent()))
    server = None
    try:
        become = places.server_user(place)
        data = place / "data"
        identity = ["-U", "unidle", "-A", "trust", "-E", "UTF8", "--locale=C"]
        _run([*become, programs / "initdb", "-D", data, "-N", *identity])
        settings = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=50"]
        command = [*become, "--pdeathsig", "INT", programs / "postgres", "-D", data, "-k", place, *settings]
        with (place / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, cwd=place)
        ready = [programs / "pg_isready", "-q", "-h", place]
        waiting.wait_until(
            lambda: server.poll() is not None or subprocess.run(ready).returncode == 0,
            60,
            "PostgreSQL's start",
        )
        assert server.poll() is None, (place / "log").read_text()
        yield f"postgresql://unidle@/postgres?host={place}"
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)  # fast shutdown: sessions are ended
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(place, ignore_errors=True)


def _run(command: list[Any]) -> None:
    done = subprocess.run(command, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    _forbid_skip(report)
    return report


def _forbid_skip(report: Any) -> None:
    """Turn a skip into a failure where nothing but a GPU, or the programs of a Kubernetes cluster, may be missing."""
    if not report.skipped or hasattr(report, "wasxfail") or not needs.has_everything():
        return
    reason = (
        report.longrepr[2].removeprefix("Skipped: ")
        if isinstance(report.longrepr, tuple)
        else str(report.longrepr)
    )
    if not reason.startswith(("GPU", "kube:")):
        report.outcome = "failed"
        report.longrepr = f"skipped on a machine that has everything: {reason}"
