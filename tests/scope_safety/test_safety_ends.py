"""However a look ends: nothing is left in the kernel, nothing half written is left on the disk, and a line says why."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import UNIDLE
from scope_calls.targets import compiled, started
from scope_native.programs import MIXED, running
from waiting import wait_until

pytestmark = needs.ebpf
SYSTEM = Path("/sys/kernel/tracing/uprobe_events")

STUB = "int cudaLaunchKernel(void *f) { return 0; }\nint cudaStreamSynchronize(void *s) { return 0; }\n"
USER = """
int cudaLaunchKernel(void *f);
int cudaStreamSynchronize(void *s);
int main(void) {
    step();
    for (;;) { cudaLaunchKernel(0); cudaStreamSynchronize(0); usleep(20000); }
}
"""


@contextmanager
def looking(pid: int, *more: str, **popen: Any) -> Iterator[subprocess.Popen[str]]:
    """A long look whose probes are on."""
    command = [*UNIDLE, "profile", str(pid), "--seconds", "600", *more]
    popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | popen
    with subprocess.Popen(command, **popen) as look:
        try:
            wait_until(lambda: held_by(look.pid) and look.poll() is None, 60, "its probes")
            yield look
        finally:
            look.kill()


def held_by(pid: int) -> set[tuple[str, int]]:
    """The kernel's numbers of programs and links that a process holds."""
    found = set()
    try:
        infos = [path.read_text() for path in Path(f"/proc/{pid}/fdinfo").iterdir()]
    except OSError:
        return set()  # a descriptor or the process went meanwhile
    for line in (line.split() for info in infos for line in info.splitlines()):
        if line and line[0] in ("prog_id:", "link_id:"):
            found.add((line[0][:4], int(line[1])))
    return found


def in_the_kernel() -> set[tuple[str, int]]:
    """All programs and links, of whoever holds them, as the kernel's own tool tells them."""
    found = set()
    for kind in ("prog", "link"):
        told = subprocess.run(["bpftool", "-j", kind, "list"], capture_output=True, text=True, check=True)
        found |= {(kind, row["id"]) for row in json.loads(told.stdout or "[]")}
    return found


def owners_of_perf_probes() -> set[int]:
    """Processes that hold perf events with programs."""
    told = subprocess.run(["bpftool", "-j", "perf", "list"], capture_output=True, text=True, check=False)
    return {row["pid"] for row in json.loads(told.stdout or "[]")}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_probe_is_left_in_the_kernel_however_the_command_ends(tmp_path: Path, how: signal.Signals) -> None:
    compiled(STUB, tmp_path / "libcudart.so.13", "-shared", "-fPIC", head="")
    user = compiled(USER, tmp_path / "user", f"-Wl,-rpath,{tmp_path}", tmp_path / "libcudart.so.13")
    system = SYSTEM.read_text() if SYSTEM.exists() else ""
    with started([user]) as target:
        target.line()
        target.go()
        with looking(target.pid) as look:
            # The last of them are the probes of calls.
            wait_until(lambda: any(kind == "link" for kind, _ in held_by(look.pid)), 60, "a link")
            held = held_by(look.pid)
            if shutil.which("bpftool"):
                assert held <= in_the_kernel()
            look.send_signal(how)
            look.communicate(timeout=60)
        if shutil.which("bpftool"):
            wait_until(lambda: not held & in_the_kernel(), 60, "programs and links to go")
            assert look.pid not in owners_of_perf_probes()
        assert (SYSTEM.read_text() if SYSTEM.exists() else "") == system
        assert target.process.poll() is None  # and the target goes on
    assert look.returncode == (0 if how == signal.SIGINT else -how)


def test_a_reader_that_closes_the_pipe_early_ends_it_without_a_word() -> None:
    with running(MIXED) as process:
        for more in ([], ["--json"]):
            command = [*UNIDLE, "profile", str(process.pid), "--seconds", "1", *more]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as look:
                assert look.stdout is not None and look.stderr is not None
                look.stdout.close()
                errors = look.stderr.read()
                look.wait(60)
            assert "Traceback" not in errors and "BrokenPipe" not in errors
            assert look.returncode in (0, 1, 141)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 16 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@needs.root
@pytest.mark.parametrize("there_before", [False, True])
def test_a_full_disk_costs_no_look_and_leaves_no_half_file(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there_before: bool
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    out = small_disk / "look.html"
    if there_before:
        out.write_text("an older one")
    with running(MIXED) as process:
        command = [*UNIDLE, "profile", str(process.pid), "--seconds", "1", "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "No space left on device" in line and str(out) in line
    saved = Path(line.rsplit(" as ", 1)[1])
    assert saved.is_relative_to(tmp_path / "data") and "</html>" in saved.read_text()
    assert out.exists() == there_before and (not there_before or out.read_text() == "an older one")
    assert [p.name for p in small_disk.iterdir()] == (["look.html"] if there_before else [])
    assert "spin" in done.stdout  # the screen is shown all the same


def test_a_folder_that_is_not_there_is_said_before_the_look(tmp_path: Path) -> None:
    with running(MIXED) as process:
        command = [
            *UNIDLE,
            "profile",
            str(process.pid),
            "--seconds",
            "600",
            "--out",
            str(tmp_path / "no" / "a.html"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and "No such file or directory" in done.stderr
    assert done.stdout == ""


def test_output_that_cannot_be_written_is_one_line() -> None:
    with running(MIXED) as process, open("/dev/full", "w") as full:
        command = [*UNIDLE, "profile", str(process.pid), "--seconds", "1"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["unidle: No space left on device"]
