"""A store in a directory that two users share: neither can have the other run, write or read what is not theirs."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from places import open_parent
from security.two_users import OTHER, SOURCES, as_other, command, needs_root
from unidle.drill import scratch
from unidle.engine.local.devices.mps import MpsControl
from unidle.engine.local.ranks import rundir
from unidle.errors import CannotRun

pytestmark = needs_root
needs_unshare = pytest.mark.skipif(not shutil.which("unshare"), reason="it needs unshare")
RUN = ("run", "--cpu-devices", "1", "--store")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory as ``/tmp`` is: all may write, and only owners may remove."""
    place = Path(tempfile.mkdtemp(prefix="unidle-shared-", dir=open_parent()))
    place.chmod(0o1777)
    yield place
    shutil.rmtree(place)


def given_away(path: Path, user: int = OTHER) -> None:
    os.chown(path, user, user, follow_symlinks=False)


def supervised(directory: Path) -> subprocess.CompletedProcess[str]:
    """The supervisor of a rank directory, in a process of its own: it closes all descriptors."""
    code = f"from unidle.engine.local.ranks.supervisor import supervise; raise SystemExit(supervise.main([{str(directory)!r}]))"
    return subprocess.run(
        [sys.executable, "-P", "-c", code], env=os.environ | {"PYTHONPATH": SOURCES},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("part", ["store.db.d", "store.db.d/runs"])
def test_a_run_directory_of_another_user_is_refused_with_its_owner(shared: Path, part: str) -> None:
    (shared / "store.db.d" / "runs").mkdir(parents=True, mode=0o755)
    given_away(shared / part)
    done = command([*RUN, "store.db", "true"], shared)
    assert done.returncode == 4, done.stderr
    assert f"{shared / part}: belongs to user {OTHER} (uid {OTHER}), not to root" in done.stderr
    assert "directory of your own" in done.stderr
    assert not list((shared / "store.db.d" / "runs").iterdir())


def test_the_other_user_is_protected_from_this_one(shared: Path) -> None:
    make = f"store_files.make_run_root(open_store({str(shared / 'store.db')!r}, create=True), Path())"
    assert as_other(make, shared) == ""  # and what it made is taken the next time
    assert as_other(make, shared) == ""
    given_away(shared / "store.db.d", 64322)
    error = as_other(make, shared)
    assert f"{shared / 'store.db.d'}: belongs to user 64322 (uid 64322), not to {OTHER}" in error


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_run_directory_that_others_may_write_is_refused_until_it_is_closed(shared: Path, mode: int) -> None:
    state = shared / "store.db.d"
    state.mkdir()
    os.chown(state, 0, OTHER)
    state.chmod(mode)
    done = command([*RUN, "store.db", "true"], shared)
    assert done.returncode == 4 and f"chmod go-w {state}" in done.stderr, done.stderr
    assert mode_of(state) == mode
    state.chmod(0o755)
    assert command([*RUN, "store.db", "true"], shared).returncode == 0


def with_users(
    place: Path, users: dict[str, tuple[int, int]], groups: dict[str, tuple[int, str]]
) -> list[str]:
    """A command that runs another one where these users (number, group) and groups (number, members) exist."""
    (place / "passwd").write_text(
        "".join(f"{name}:x:{uid}:{gid}::/:/bin/sh\n" for name, (uid, gid) in users.items())
    )
    (place / "group").write_text(
        "".join(f"{name}:x:{gid}:{members}\n" for name, (gid, members) in groups.items())
    )
    bind = "mount --bind $0/passwd /etc/passwd && mount --bind $0/group /etc/group"
    return ["unshare", "--mount", "sh", "-c", f'{bind} && exec "$@"', str(place)]


@needs_unshare
@pytest.mark.parametrize(
    ("mode", "group", "users", "groups", "mended"),
    [
        (0o775, OTHER, {}, {"ann": (OTHER, "")}, True),
        (0o2770, OTHER, {}, {"ann": (OTHER, "ann")}, True),
        (0o777, OTHER, {}, {"ann": (OTHER, "")}, False),
        (0o775, OTHER, {}, {"ann": (OTHER, "bob")}, False),
        (0o775, OTHER, {"bob": (64322, OTHER)}, {"ann": (OTHER, "")}, False),
        (0o775, OTHER, {}, {"staff": (OTHER, "")}, False),
        (0o775, OTHER, {}, {}, False),
        (0o775, 64323, {}, {"ann": (OTHER, ""), "more": (64323, "ann")}, False),
    ],
)
def test_a_run_directory_that_only_its_owners_group_may_write_is_closed_if_nobody_else_is_in_it(
    shared: Path, tmp_path: Path, mode: int, group: int,
    users: dict[str, tuple[int, int]], groups: dict[str, tuple[int, str]], mended: bool,
) -> None:  # fmt: skip
    before = with_users(tmp_path, {"ann": (OTHER, OTHER)} | users, groups)
    state = shared / "store.db.d"
    for directory in (state, state / "runs"):
        directory.mkdir()
        os.chown(directory, OTHER, group)
        directory.chmod(mode)
    make = f"store_files.make_run_root(open_store({str(shared / 'store.db')!r}, create=True), Path())"
    said = as_other(make, shared, before).splitlines()
    if mended:
        after = mode & ~0o020
        assert said == [
            f"unidle: {place}: the mode is now {after:04o}, it was {mode:04o}; no other user is in its group"
            for place in (state, state / "runs")
        ]
        assert mode_of(state) == mode_of(state / "runs") == after
        assert as_other(make, shared, before) == ""
    else:
        assert len(said) == 1 and f"`chmod go-w {state}`" in said[0]
        assert mode_of(state) == mode


@needs_unshare
def test_a_run_directory_with_an_acl_is_not_closed_but_refused(shared: Path, tmp_path: Path) -> None:
    before = with_users(tmp_path, {"ann": (OTHER, OTHER)}, {"ann": (OTHER, "")})
    state = shared / "store.db.d"
    state.mkdir()
    given_away(state)
    nobody = 2**32 - 1
    entries = [(1, 7, nobody), (2, 7, 64322), (4, 5, nobody), (16, 7, nobody), (32, 5, nobody)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(state, "system.posix_acl_access", acl)
    except OSError as error:
        pytest.skip(f"no ACL here: {error.strerror}")
    assert mode_of(state) == 0o775
    make = f"store_files.make_run_root(open_store({str(shared / 'store.db')!r}, create=True), Path())"
    assert f"`chmod go-w {state}`" in as_other(make, shared, before)
    assert mode_of(state) == 0o775


def test_a_link_in_place_of_the_run_directory_is_refused(shared: Path, tmp_path: Path) -> None:
    (shared / "store.db.d").symlink_to(tmp_path)
    given_away(shared / "store.db.d")
    done = command([*RUN, "store.db", "true"], shared)
    assert done.returncode == 4 and f"is a symbolic link of {OTHER}" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())


def test_nobody_runs_the_jobs_of_a_store_that_another_user_owns(shared: Path) -> None:
    assert command(["submit", "--store", "store.db", "--hold", "touch", "ran"], shared).returncode == 0
    given_away(shared / "store.db")
    done = command(["up", "--cpu-devices", "1", "--until-idle", "--store", "store.db"], shared)
    assert done.returncode == 4 and f"belongs to {OTHER}" in done.stderr, done.stderr
    assert not (shared / "ran").exists()


@pytest.mark.parametrize("mode", [0o644, 0o666])
@pytest.mark.parametrize("content", ["nothing", "no table"])
@pytest.mark.parametrize(
    "words",
    [["submit", "--hold", "true"], ["up", "--cpu-devices", "1", "--until-idle"]],
    ids=["submit", "up"],
)
def test_an_empty_store_that_another_user_made_is_refused_with_its_owner(
    shared: Path, words: list[str], content: str, mode: int
) -> None:
    planted = shared / "store.db"
    planted.touch()
    if content == "no table":
        made = sqlite3.connect(planted)
        made.execute("PRAGMA journal_mode = WAL").fetchall()
        made.close()
    before = planted.read_bytes()
    given_away(planted)
    planted.chmod(mode)
    done = command([words[0], "--store", "store.db", *words[1:]], shared)
    assert done.returncode == 4, done.stderr
    assert f"{planted}: is an empty file that belongs to {OTHER}" in done.stderr, done.stderr
    assert planted.read_bytes() == before and not (shared / "store.db.d").exists()


def test_the_other_user_is_protected_from_an_empty_store_of_a_third_one(shared: Path) -> None:
    (shared / "store.db").touch()
    given_away(shared / "store.db", 64322)
    (shared / "store.db").chmod(0o666)
    error = as_other(f"open_store({str(shared / 'store.db')!r}, create=True)", shared)
    assert f"{shared / 'store.db'}: is an empty file that belongs to 64322" in error


def test_an_empty_file_of_ones_own_or_of_root_becomes_a_store(shared: Path) -> None:
    (shared / "store.db").touch(mode=0o600)
    assert command(["submit", "--store", "store.db", "--hold", "true"], shared).returncode == 0
    (shared / "given.db").touch()
    (shared / "given.db").chmod(0o666)
    assert as_other(f"open_store({str(shared / 'given.db')!r}, create=True)", shared) == ""


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_log_that_another_user_planted_next_to_the_store_is_refused(shared: Path, suffix: str) -> None:
    assert command(["submit", "--store", "store.db", "--hold", "true"], shared).returncode == 0
    planted = shared / f"store.db{suffix}"
    planted.unlink(missing_ok=True)
    planted.write_bytes(b"")
    given_away(planted)
    done = command(["list", "--store", "store.db"], shared)
    assert done.returncode == 4 and f"{planted}: belongs to {OTHER}" in done.stderr, done.stderr


def test_all_that_a_run_leaves_is_its_owners_alone_under_any_umask(tmp_path: Path) -> None:
    done = command([*RUN, "store.db", "--report", "page.html", "sh", "-c", "umask"], tmp_path, umask=0)
    assert done.returncode == 0, done.stderr
    assert "0000" in done.stdout + done.stderr  # the job keeps the umask of its submitter
    held = sqlite3.connect(tmp_path / "store.db")  # keeps the log and its index
    held.execute("SELECT * FROM sqlite_master").fetchall()
    assert (
        command(["store", "export", "whole.jsonl", "--store", "store.db"], tmp_path, umask=0).returncode == 0
    )
    assert command(["report", "--store", "store.db"], tmp_path, umask=0).returncode == 0
    names = {"store.db", "store.db-wal", "store.db-shm", "page.html", "whole.jsonl"}
    assert {name: oct(mode_of(tmp_path / name)) for name in names} == dict.fromkeys(names, "0o600")
    state = tmp_path / "store.db.d"
    assert mode_of(state) == mode_of(state / "runs") == mode_of(state / "reports") == 0o700
    reports = list((state / "reports").iterdir())
    assert reports and all(mode_of(page) == 0o600 for page in reports)
    logs = list(state.glob("runs/*/*/rank0/*"))
    assert logs and [path.name for path in logs if mode_of(path) & 0o077] == []
    held.close()


def test_mode_opens_a_store_an_export_and_a_report_to_a_group(tmp_path: Path) -> None:
    done = command(
        ["up", "--until-idle", "--cpu-devices", "1", "--store", "a.db", "--mode", "0660"],
        tmp_path,
        umask=0o77,
    )
    assert done.returncode == 0, done.stderr
    for words in (["report", "--all", "-o", "page.html"], ["store", "export", "whole.jsonl"]):
        done = command([*words, "--store", "a.db", "--mode", "640"], tmp_path, umask=0o77)
        assert done.returncode == 0, done.stderr
    assert [oct(mode_of(tmp_path / name)) for name in ("a.db", "page.html", "whole.jsonl")] == [
        "0o660",
        "0o640",
        "0o640",
    ]
    for wrong in ("0440", "0777", "rw", "-1"):
        done = command(["store", "export", "--store", "a.db", f"--mode={wrong}"], tmp_path)
        assert done.returncode == 2 and "--mode" in done.stderr, done.stderr


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_mode_of_run_and_submit_is_that_of_a_store_they_make(verb: str, tmp_path: Path) -> None:
    def began(mode: str, store: str) -> subprocess.CompletedProcess[str]:
        more = ["--cpu-devices", "1"] if verb == "run" else ["--hold"]
        return command([verb, *more, "--store", store, "--mode", mode, "true"], tmp_path, umask=0o77)

    for mode in ("0660", "0640"):  # the second one is not that of a store that exists
        done = began(mode, "a.db")
        assert done.returncode == 0, done.stderr
        assert oct(mode_of(tmp_path / "a.db")) == "0o660"
    done = began("0777", "b.db")
    assert done.returncode == 2 and "--mode: is not the mode of a file (got '0777')" in done.stderr, (
        done.stderr
    )
    assert not (tmp_path / "b.db").exists()


def test_an_output_does_not_follow_a_link_that_another_user_made(shared: Path, tmp_path: Path) -> None:
    assert command(["submit", "--store", str(tmp_path / "a.db"), "--hold", "true"], tmp_path).returncode == 0
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (shared / "out.jsonl").symlink_to(mine)
    given_away(shared / "out.jsonl")
    words = ["store", "export", str(shared / "out.jsonl"), "--store", str(tmp_path / "a.db")]
    done = command(words, tmp_path)
    assert done.returncode == 2 and "link" in done.stderr, done.stderr
    assert mine.read_text() == "mine"


def test_a_supervisor_does_not_run_orders_of_another_user(tmp_path: Path) -> None:
    rundir.write_json(str(tmp_path / rundir.ORDERS), {"argv": ["touch", "ran"]})
    assert rundir.read_json(str(tmp_path / rundir.ORDERS)) == {"argv": ["touch", "ran"]}
    given_away(tmp_path / rundir.ORDERS)
    done = supervised(tmp_path)
    assert done.returncode == 1 and "another user wrote it" in done.stderr, done.stderr
    assert rundir.read_json(str(tmp_path / rundir.ORDERS)) is None


def dead_drill(place: Path) -> Path:
    place.mkdir(mode=0o700)
    (place / "drill.json").write_text('{"pid": 1, "ticks": -1, "lab": "", "groups": {}}')
    return place


@pytest.fixture
def drills(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where drills keep their files, and their copies in memory. Pytest makes its own directory before."""
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setattr(scratch, "_MEMORY", shared)
    return shared


def test_a_drill_sweeps_no_directory_of_another_user_and_follows_no_link(
    drills: Path, tmp_path: Path
) -> None:
    foreign, mine, dead = (
        dead_drill(place)
        for place in (drills / "unidle-drill-a", tmp_path / "mine", drills / "unidle-drill-c")
    )
    given_away(foreign)
    (drills / "unidle-drill-b").symlink_to(mine)
    given_away(drills / "unidle-drill-b")
    (dead / "more").mkdir()
    (dead / "more" / "link").symlink_to(mine)
    (dead / "link.img").symlink_to(mine / "drill.json")
    scratch.sweep()
    assert (foreign / "drill.json").exists() and (mine / "drill.json").exists() and not dead.exists()


@pytest.mark.parametrize("planted", ["directory", "link"])
def test_a_drill_removes_no_memory_of_another_user(drills: Path, tmp_path: Path, planted: str) -> None:
    dead = dead_drill(drills / "unidle-drill-a")
    dead_drill(drills / "unidle-drill-b")
    own = drills / "unidle-drill-b-memory"
    own.mkdir(mode=0o700)
    (own / "copy").write_text("")
    memory = drills / f"{dead.name}-memory"
    if planted == "link":
        (tmp_path / "file").write_text("")
        memory.symlink_to(tmp_path)
    else:
        memory.mkdir(mode=0o777)
        (memory / "file").write_text("")
    given_away(memory)
    scratch.sweep()
    assert (memory / "file").exists()
    assert not dead.exists() and not own.exists()


@pytest.mark.parametrize("put", ["directory", "link"])
@pytest.mark.parametrize("end", ["sweep", "close"])
def test_a_drill_removes_what_it_checked_also_where_another_directory_gets_its_name(
    drills: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: str, end: str
) -> None:
    drill = None if end == "sweep" else scratch.Scratch()
    name = drill.directory if drill else dead_drill(drills / "unidle-drill-a")
    moved, mine = drills / "moved", tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (mine / "file").write_text("")
    end_processes = scratch.end_processes

    def swap(marker: str) -> None:
        """Between the check and the removal."""
        name.rename(moved)
        mine.rename(name) if put == "directory" else name.symlink_to(mine)
        end_processes(marker)

    monkeypatch.setattr(scratch, "end_processes", swap)
    drill.close() if drill else scratch.sweep()
    assert (name / "file").exists()
    assert not list(moved.iterdir())


def test_mps_uses_no_directory_that_another_user_made(shared: Path) -> None:
    control = MpsControl("root", str(shared))
    base = Path(control.directories("GPU-1")[0]).parent
    base.mkdir(mode=0o700)
    given_away(base)
    with pytest.raises(CannotRun, match=f"belongs to user {OTHER}"):
        control.ensure("GPU-1")
    assert not list(base.iterdir())
