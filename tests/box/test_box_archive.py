"""The box as one small file: the same for the same sources, for any Python from 3.8 on, for any user, as first process."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest

import needs
import places
from box.small_hub import ROOT, TRAINS, RealBox, SmallHub, died, python_orders
from unidle import wire
from unidle.box import archive
from unidle.engine.local.ranks.supervisor.progress import step_forms
from waiting import wait_until

MOST_BYTES = 300 * 1024
OLDEST = (3, 8)


@cache
def pythons() -> dict[tuple[int, int], str]:
    """Every CPython of this machine from 3.8 on, by version."""
    cached = [str(path) for path in (ROOT / ".cache" / "pythons").glob("*/bin/python3")]
    installed = [str(path) for path in Path("/usr/bin").glob("python3.*") if path.name[8:].isdigit()]
    named = [shutil.which(f"python3.{minor}") for minor in range(8, 20)]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    managed = [str(path) for path in versions.glob("*/bin/python3.*") if path.name[8:].isdigit()]
    found: dict[tuple[int, int], str] = {}
    for program in [*installed, *filter(None, named), *cached, *managed, sys.executable]:
        ask = [program, "-I", "-c", "import sys, ssl, ctypes; print(*sys.version_info[:2])"]
        done = subprocess.run(ask, capture_output=True, text=True)
        if done.returncode == 0:
            major, minor = map(int, done.stdout.split())
            found.setdefault((major, minor), program)
    return {version: found[version] for version in sorted(found) if version >= OLDEST}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("archive") / "box.pyz"
    archive.write(str(out))
    return out


def test_the_archive_is_small_and_the_same_each_time(made: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    subprocess.run(
        [sys.executable, "-m", "unidle.box.archive", str(again)],
        check=True,
        cwd=tmp_path,
        capture_output=True,
    )
    assert again.read_bytes() == made.read_bytes() and made.stat().st_size < MOST_BYTES


@pytest.mark.parametrize("version", pythons())
def test_the_archive_imports_nothing_that_it_lacks_or_that_an_older_python_has_not(
    made: Path, tmp_path: Path, version: tuple[int, int]
) -> None:
    with zipfile.ZipFile(made) as file:
        file.extractall(tmp_path)
        names = [name[:-3].replace("/", ".") for name in file.namelist() if name.startswith("unidle")]
    modules = [name.removesuffix(".__init__") for name in names if not name.endswith("entry")]
    code = f"import sys; sys.path.append({str(tmp_path)!r})\nfor name in {modules!r}: __import__(name)"
    subprocess.run([pythons()[version], "-I", "-S", "-c", code], check=True)


def test_its_sources_are_in_the_language_of_python_3_8(made: Path) -> None:
    with zipfile.ZipFile(made) as file:
        for name in file.namelist():
            ast.parse(file.read(name), name, feature_version=OLDEST)


NEWER = frozenset(
    [
        "removeprefix",
        "removesuffix",
        "is_relative_to",
        "readlink",
        "hardlink_to",
        "waitstatus_to_exitcode",
        "pidfd_open",
        "pidfd_send_signal",
        "eventfd",
        "randbytes",
        "lcm",
        "pairwise",
        "UTC",
        "batched",
        "bit_count",
        "to_thread",
        "unparse",
        "get_annotations",
    ]
)
NEWER_KEYWORDS = {
    ("zip", "strict"),
    ("dataclass", "slots"),
    ("dataclass", "kw_only"),
    ("NamedTemporaryFile", "delete_on_close"),
}


def test_its_sources_use_nothing_that_came_after_python_3_8(made: Path) -> None:
    with zipfile.ZipFile(made) as file:
        for name in file.namelist():
            text = file.read(name)
            if name.endswith("progress/step_forms.py"):
                text = text.replace(b"(?>", b"(?:")  # spelled out there for older Pythons
            assert b"(?>" not in text, name
            if name.endswith("ranks/pidfd.py"):
                continue  # which has other ways without them
            for node in ast.walk(ast.parse(text, name)):
                if isinstance(node, ast.Attribute):
                    assert node.attr not in NEWER, f"{name}:{node.lineno}: {node.attr}"
                if isinstance(node, ast.Call):
                    function = getattr(node.func, "id", getattr(node.func, "attr", ""))
                    found = {(function, keyword.arg) for keyword in node.keywords}
                    assert not found & NEWER_KEYWORDS, f"{name}:{node.lineno}: {found}"


def test_atomic_groups_that_are_spelled_out_match_the_same() -> None:
    for pattern in (
        rb"a(?>\d+(?:,\d{3})*)(?P<step>b)",
        rb"(?>[-+]?(?:\d+)|-{1,3})x",
        rb"(?>\d+)(?>\.\d+)?$",
        rb"(?>a|ab)c",
    ):
        for text in (b"a12,345b", b"12x", b"---x", b"1.25", b"12", b"abc", b"ac", b"1.", b"a1,2b"):
            ours, theirs = (re.search(p, text) for p in (step_forms.spelled_out(pattern), pattern))
            assert (ours and ours.span()) == (theirs and theirs.span()), (pattern, text)


@pytest.mark.parametrize("version", pythons())
def test_it_holds_a_rank_under_every_python_of_the_machine(
    made: Path, tmp_path: Path, version: tuple[int, int]
) -> None:
    """Of 3.8 too, where the machine has it: `make setup-tests` asks for one."""
    hub = SmallHub(tmp_path)
    box = RealBox(tmp_path, hub)
    try:
        box.run(command=[pythons()[version], str(made)])
        peer = hub.peer().welcome()
        peer.start(1, "raise ValueError('a reason')")
        assert "a reason" in hub.end_of(1)["last"]["what"]
        peer.start(2, TRAINS)
        hub.mark("step", 2)
        box.kill()
        box.run(command=[pythons()[version], str(made)])
        again = hub.peer(2).welcome()
        again.send(f=wire.RESUME, attempt=2, known={"0": len(hub.marks[2, 0])})
        again.ask(wire.STOP, attempt=2, ranks=[0], grace_ns=10**9)
        assert hub.end_of(2)["code"] == -signal.SIGTERM and not hub.doubled
        again.send(f=wire.END, fence=again.fence)
        assert box.process is not None and box.process.wait(60) == 0
        assert [path.name for path in box.directory.glob("code-*")] == [
            path.name for path in box.directory.glob("code-*-*")
        ]
    finally:
        box.close()
        hub.vanish()


@needs.root
def test_any_user_can_run_it_without_rights(made: Path, tmp_path: Path) -> None:
    python = next((p for p in pythons().values() if p.startswith("/usr/")), None)
    if python is None:
        pytest.skip("needs a Python that every user may execute (apt-get install python3)")
    hub = SmallHub(tmp_path)
    with places.open_directory() as place:
        shutil.copy(made, place / "box.pyz")
        (place / "box.pyz").chmod(0o644)
        (place / "home").mkdir()
        box = RealBox(place / "home", hub)
        for path in [place / "home", *(place / "home").rglob("*")]:
            os.chown(path, 65534, 65534)
        become = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
            "--no-new-privs",
        ]
        try:
            box.run(command=[*become, python, str(place / "box.pyz")])
            peer = hub.peer().welcome()
            orders = python_orders("import os; print(os.getuid()); raise SystemExit(3)")
            orders["argv"][0] = python
            assert peer.ask(wire.START, attempt=1, ranks=[{"rank": 0, "orders": orders}])["ok"]
            assert hub.end_of(1)["code"] == 3
            assert (box.rank() / "log").read_text() == "65534\n"
        finally:
            box.close()
            hub.vanish()


@needs.root
def test_as_first_process_of_a_container_it_collects_orphans_and_passes_a_stop_on(
    made: Path, tmp_path: Path
) -> None:
    hub = SmallHub(tmp_path)
    box = RealBox(tmp_path, hub)
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, str(made)]
    try:
        box.run("--output", command=unshare, stdout=subprocess.PIPE)
        peer = hub.peer().welcome()
        orphan = f"import os, time\nif os.fork() == 0: os.setsid(); time.sleep(600)\n{TRAINS}"
        peer.start(1, orphan)
        peer.start(2, TRAINS)
        hub.mark("step", 1), hub.mark("step", 2)
        (first,) = _children(box.pid)
        assert _of_namespace(first) == 1
        inner = json.loads((box.rank(1) / "supervisor.json").read_text())["pid"]
        (supervisor,) = [pid for pid in _children(first) if _of_namespace(pid) == inner]
        os.kill(supervisor, signal.SIGKILL)
        assert hub.end_of(1)["k"] == "lost"
        wait_until(lambda: len(_children(first)) == 1, what="orphans to be collected")  # the other supervisor
        os.kill(first, signal.SIGTERM)
        assert hub.end_of(2)["code"] == -signal.SIGTERM
        assert box.process is not None
        text, _ = box.process.communicate(timeout=60)
        assert box.process.returncode == 0 and b"[rank 0] step 1/" in text
        assert died(first)()
    finally:
        box.close()
        hub.vanish()


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _of_namespace(pid: int) -> int:
    """The number of a process in its innermost namespace."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
