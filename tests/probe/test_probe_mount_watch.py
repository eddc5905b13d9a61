"""Mounts that are asked whether they answer: the kernel's table, links on the way, and a real one that stalls."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import needs
from fuse import StubbornMount, stubborn
from unidle.probe.mount_table import Mount
from unidle.probe.mount_watch import ASK_EVERY_NS, MountState, MountWatch, mount_of, remote_mounts
from waiting import wait_until

S = 1_000_000_000
FAR = Mount("/data", "nfs4", "filer:/vol")
TABLE = r"""
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 21 0:40 / /data rw,relatime shared:9 - nfs4 filer:/vol/a\040b rw,vers=4.2,hard
31 30 0:41 / /data/scratch rw - ext4 /dev/nvme0n1 rw
32 21 0:42 / /home/ann\040lee rw shared:3 master:2 - fuse.sshfs ann@host: rw,user_id=1000
33 21 0:43 / /proc/cpuinfo rw - fuse.lxcfs lxcfs rw
34 21 0:44 / /over rw - ceph 10.0.0.1:/ rw
35 21 0:45 / /over rw - tmpfs tmpfs rw
broken line
"""


def test_file_systems_of_others_are_told_from_those_of_the_machine() -> None:
    mounts = remote_mounts(TABLE)
    assert [one for one in mounts.values() if one is not None] == [
        Mount("/data", "nfs4", "filer:/vol/a b"),
        Mount("/home/ann lee", "fuse.sshfs", "ann@host:"),
    ]
    assert mounts["/over"] is None, "what is mounted later hides what was there"


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/data", "/data"), ("/data/a/b", "/data"), ("/database", None), ("/data/scratch/x", None), ("/", None),
        ("/home/ann lee/ck", "/home/ann lee"), ("/over/x", None), ("/tmp/../data/./a", "/data"), ("/../..//data", "/data"),
    ],
)  # fmt: skip
def test_a_path_is_on_the_innermost_mount_above_it(path: str, place: str | None) -> None:
    found = mount_of(path, remote_mounts(TABLE))
    assert (found and found.place) == place


NAMES = st.lists(st.sampled_from(["..", ".", "", "x", "data", "scratch", "nothing here"]), max_size=8)


@given(NAMES)
def test_without_links_a_path_is_where_its_text_says(names: list[str]) -> None:
    mounts: dict[str, Mount | None] = {"/": None, "/data": FAR, "/data/scratch": None, "/x/data": FAR}
    text = os.path.normpath("/./" + "/".join(names))
    above = max((p for p in mounts if text == p or text.startswith(p.rstrip("/") + "/")), key=len)
    assert mount_of("/" + "/".join(names), mounts) == mounts[above]


def test_on_a_machine_without_disks_everything_is_on_the_file_server() -> None:
    mounts = remote_mounts("21 1 0:20 / / rw - nfs filer:/root rw\n22 21 0:21 / /tmp rw - tmpfs tmpfs rw\n")
    assert mount_of("/home/x", mounts) == Mount("/", "nfs", "filer:/root")
    assert mount_of("/tmp/x", mounts) is None


def test_links_are_followed_to_where_the_files_are(tmp_path: Path) -> None:
    far = Mount(f"{tmp_path}/far", "nfs4", "filer:/a")
    mounts: dict[str, Mount | None] = {"/": None, far.place: far}
    (tmp_path / "direct").symlink_to(far.place)
    (tmp_path / "below").mkdir()
    (tmp_path / "below/relative").symlink_to("../direct/checkpoints")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "away").symlink_to("/")
    assert mount_of(f"{tmp_path}/direct/x", mounts) == far
    assert mount_of(f"{tmp_path}/below/relative", mounts) == far
    assert mount_of(f"{tmp_path}/away{tmp_path}/direct", mounts) == far
    assert mount_of(f"{tmp_path}/round/x", mounts) is None
    assert mount_of(f"{tmp_path}/below/not/there", mounts) is None


def asked(watch: MountWatch, mount: StubbornMount, now_ns: int) -> MountState:
    path = f"{mount.place}/checkpoints"
    [(found, answer)] = watch.look({path, "/proc"}, now_ns).values()
    assert found == Mount(str(mount.place), "fuse.stubborn", "server:/data")
    return answer


def answered(watch: MountWatch, mount: StubbornMount, now_ns: int) -> MountState:
    """What is known when nobody asks any more."""
    wait_until(
        lambda: asked(watch, mount, now_ns) and not watch._asked[str(mount.place)].pid, 60, "an answer"
    )
    return asked(watch, mount, now_ns)


def askers(place: Path) -> list[int]:
    """Processes that ask about a mount, also those that cannot be killed."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(place) in words and any(b"statvfs" in word for word in words):
            found.append(int(entry.name))
    return found


@needs.root
def test_a_mount_that_answers_is_well_and_one_that_stalls_is_not_until_it_answers_again(
    tmp_path: Path,
) -> None:
    watch = MountWatch(tmp_path / "locks")
    with stubborn(tmp_path / "far") as mount:
        assert answered(watch, mount, 0) == MountState(None)
        mount.stall()
        assert asked(watch, mount, ASK_EVERY_NS - S) == MountState(None), "it is not asked all the time"
        assert asked(watch, mount, ASK_EVERY_NS) == MountState(ASK_EVERY_NS)
        assert mount.held.wait(60)
        assert asked(watch, mount, 100 * S) == MountState(ASK_EVERY_NS)
        mount.answer()
        assert answered(watch, mount, 101 * S) == MountState(None)
        assert watch.why_not() == ""
        watch.close()


@needs.root
def test_a_mount_is_asked_by_one_process_at_a_time_also_over_controllers(tmp_path: Path) -> None:
    with stubborn(tmp_path / "far") as mount:
        mount.stall()
        watch = MountWatch(tmp_path / "locks")
        asked(watch, mount, 0)
        assert mount.held.wait(60)
        for k in range(1, 5):
            asked(watch, mount, k * ASK_EVERY_NS)
        [pid] = askers(mount.place)
        watch.close()  # it is killed, and the kernel does not let go of it
        again = MountWatch(tmp_path / "locks")
        for k in range(10, 15):
            since_ns = asked(again, mount, k * ASK_EVERY_NS).since_ns
            assert since_ns is not None and since_ns <= k * ASK_EVERY_NS
        assert askers(mount.place) == [pid]
        mount.answer()
        wait_until(lambda: not Path(f"/proc/{pid}").exists() or _reaped(pid), 60, "its end")
        assert answered(again, mount, 20 * ASK_EVERY_NS) == MountState(None)
        again.close()


def _reaped(pid: int) -> bool:
    """The controllers of this test are one process: what the first one left behind is still its child."""
    return os.waitpid(pid, os.WNOHANG)[0] == pid


@needs.root
def test_a_mount_whose_server_died_answers_only_with_an_error(tmp_path: Path) -> None:
    watch = MountWatch(tmp_path / "locks")
    with stubborn(tmp_path / "far") as mount:
        assert answered(watch, mount, 0) == MountState(None)
        mount.die()
        first = answered(watch, mount, ASK_EVERY_NS)
        assert first == MountState(ASK_EVERY_NS, errno.ENOTCONN)
        assert answered(watch, mount, 2 * ASK_EVERY_NS) == first
        watch.close()


@needs.root
def test_to_find_the_mount_of_a_path_nothing_on_it_is_looked_up(tmp_path: Path) -> None:
    with stubborn(tmp_path / "far") as mount:
        mount.stall()
        mounts = remote_mounts(Path("/proc/self/mountinfo").read_text())
        found = mount_of(f"{mount.place}/a/../b", mounts)
        assert found is not None and found.place == str(mount.place)
        assert not mount.held.is_set()


def test_what_keeps_it_from_asking_is_told(tmp_path: Path) -> None:
    watch = MountWatch(tmp_path / "locks", tmp_path / "no table")
    assert watch.look({"/data"}, 0) == {}
    assert "no table" in watch.why_not()
    table, blocked = tmp_path / "table", tmp_path / "file"
    table.write_text(TABLE)
    blocked.touch()
    watch = MountWatch(blocked / "locks", table)
    [(_, answer)] = watch.look({"/data/a"}, 0).values()
    assert "mounts cannot be checked" in watch.why_not()
    assert answer == MountState(None)
    assert watch.look(set(), S) == {} and watch.why_not() == ""
