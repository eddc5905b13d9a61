"""``unidle profile`` as root shows no line of a file that the profiled process's user could not read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import rmtree

import pytest

import needs
from e2e.commands import unidle
from places import open_parent
from scope.worlds import World, at
from security.two_users import OTHER, needs_root
from unidle.cli.profile_source import add_owners, line_of_source, owners_of

pytestmark = needs_root
GROUP = 64399
SECRET = "THE_SECRET = 'of root'"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that both users can enter."""
    made = Path(tempfile.mkdtemp(prefix="unidle-sources-", dir=open_parent()))
    made.chmod(0o755)
    yield made
    rmtree(made)


@contextmanager
def process_of(user: int, cwd: Path) -> Iterator[int]:
    """A process of that user, who is also in :data:`GROUP`."""
    with subprocess.Popen(
        ["sleep", "600"], cwd=cwd, user=user, group=user, extra_groups=[GROUP] if user else None
    ) as sleeper:
        try:
            yield sleeper.pid
        finally:
            sleeper.kill()


def written(path: Path, text: str, mode: int, user: int = 0, group: int = 0) -> str:
    path.write_text(f"{text}\n")
    os.chown(path, user, group)
    path.chmod(mode)
    return str(path)


def shown(pid: int, file: str, *, kept: bool = False) -> str | None:
    profile = World().sees(pid, "on", 1000, at("work", 1, file)).profile()
    return line_of_source(profile, {} if kept else owners_of([pid]))(file, 1)


def test_a_file_is_shown_if_the_processs_user_or_group_may_read_it(place: Path) -> None:
    files = {
        "secret": written(place / "secret.py", SECRET, 0o600),
        "own": written(place / "own.py", "own", 0o600, OTHER, OTHER),
        "group": written(place / "group.py", "group", 0o640, 0, GROUP),
        "strange": written(place / "strange.py", "strange", 0o640, 0, 64398),
        "public": written(place / "public.py", "public", 0o644),
    }
    with process_of(OTHER, place) as pid:
        seen = {name: shown(pid, file) for name, file in files.items()}
        relative = {name: shown(pid, f"{name}.py") for name in files}
    assert seen == {"secret": None, "own": "own", "group": "group", "strange": None, "public": "public"}
    assert relative == seen  # names that are relative to where the process is
    assert Path(files["secret"]).read_text().strip() == SECRET  # this process's own rights are as before


def test_links_fifos_devices_and_long_files_of_the_process_show_nothing(place: Path) -> None:
    theirs = place / "theirs"
    theirs.mkdir()
    (theirs / "link.py").symlink_to(written(place / "secret.py", SECRET, 0o600))
    closed = place / "closed"
    closed.mkdir(0o700)
    written(closed / "open.py", SECRET, 0o644)
    (theirs / "below").symlink_to(closed)
    os.mkfifo(theirs / "fifo.py")
    (theirs / "device.py").symlink_to("/dev/zero")
    written(theirs / "long.py", "x\n" * (1 << 19), 0o644)  # and one byte
    written(theirs / "short.py", "x\n" * ((1 << 19) - 1), 0o644)
    for path in (theirs, *theirs.iterdir()):
        os.chown(path, OTHER, OTHER, follow_symlinks=False)
    names = ("link.py", "below/open.py", "fifo.py", "device.py", "long.py", "short.py")
    with process_of(OTHER, theirs) as pid:
        seen = {name: shown(pid, name) for name in names}
        assert {name: shown(pid, str(theirs / name)) for name in names} == seen
    assert seen == dict.fromkeys(names[:-1]) | {"short.py": "x"}


def test_a_process_of_root_does_not_open_files_for_a_process_of_another_user(place: Path) -> None:
    secret, code = written(place / "secret.py", SECRET, 0o600), written(place / "code.py", "code", 0o600)
    with ExitStack() as both:
        roots, theirs = (both.enter_context(process_of(user, place)) for user in (0, OTHER))
        seen = (
            World()
            .sees(roots, "on", 1000, at("main", 1, code))
            .sees(theirs, "on", 1000, at("work", 1, secret))
        )
        line = line_of_source(seen.profile(), owners_of([roots, theirs]))
        assert (line(code, 1), line(secret, 1)) == ("code", None)


def test_the_rights_of_an_ended_process_are_those_it_had_and_a_kept_profile_has_anyones(place: Path) -> None:
    secret, public = (
        written(place / "secret.py", SECRET, 0o600),
        written(place / "public.py", "public", 0o644),
    )
    own = written(place / "own.py", "own", 0o600, OTHER, OTHER)
    for user, expected in ((0, [SECRET, "own", "public"]), (OTHER, [None, "own", "public"])):
        with process_of(user, place) as pid:
            owners = owners_of([pid])
            assert [shown(pid, file, kept=True) for file in (secret, own, public)] == [None, None, "public"]
        world = World()
        for file in (secret, own, public):
            world.sees(pid, "on", 1000, at("work", 1, file))
        line = line_of_source(world.profile(), owners)
        assert [line(file, 1) for file in (secret, own, public)] == expected
        unknown = line_of_source(world.profile(), {})
        assert [unknown(file, 1) for file in (secret, own, public)] == [None, None, "public"]


def test_a_saved_profile_does_not_have_root_show_its_files(place: Path) -> None:
    texts = []
    for name, mode in (("secret.py", 0o600), ("public.py", 0o644)):
        file = written(place / name, SECRET, mode)
        saved = place / f"{name}.json"
        world = World().sees(os.getpid(), "on", 1000, at("work", 1, file))
        saved.write_text(json.dumps(world.profile().to_json()))
        done = unidle("profile", "--from", saved)
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert [SECRET in text for text in texts] == [False, True], texts


def test_a_number_that_is_a_process_of_root_by_now_keeps_the_rights_of_the_one_before(place: Path) -> None:
    secret = written(place / "secret.py", SECRET, 0o600)
    with process_of(0, place) as roots, process_of(OTHER, place) as theirs:
        world = (
            World()
            .sees(roots, "on", 1000, at("work", 1, secret))
            .sees(theirs, "on", 1000, at("work", 1, secret))
        )
        before = owners_of([theirs])
        for owner in (before[theirs], owners_of([roots])[roots]):
            line = line_of_source(world.profile(), {roots: before[theirs], theirs: owner})
            assert line(secret, 1) is None
        add_owners(owners := {roots: before[theirs], theirs: owners_of([roots])[roots]}, [roots, theirs])
        assert owners == {roots: before[theirs], theirs: before[theirs]}


@needs.ebpf
def test_a_program_that_names_a_file_of_root_as_its_own_is_shown_without_its_lines(place: Path) -> None:
    """It changed its user, so that its directory in ``/proc`` is root's."""
    texts = []
    for name, mode in (("secret.py", 0o600), ("public.py", 0o644)):
        file = written(place / name, SECRET, mode)
        code = f"""
import os
os.setgroups([]); os.setgid({OTHER}); os.setuid({OTHER})
print("ready", flush=True)
exec(compile("while True: sum(range(1000))", {file!r}, "exec"))
"""
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as spin:
            try:
                assert spin.stdout is not None and spin.stdout.readline() == "ready\n"
                done = unidle("profile", spin.pid, "--seconds", 1)
            finally:
                spin.kill()
        assert done.returncode == 0, done.stderr
        assert name in done.stdout
        texts.append(done.stdout)
    assert [SECRET in text for text in texts] == [False, True], texts
