"""A power cut as a drill: the gang is lost, restarts from its checkpoint, and ends with the same result."""

from __future__ import annotations

from pathlib import Path

import pytest

import needs
from drill.drills import carried_out, drill_of
from unidle.drill import fail
from unidle.drill.conduct import refuse
from unidle.drill.disk import Disk
from unidle.errors import CannotRun


@needs.root
@needs.kernel_log  # the cut is in it
@pytest.mark.slow
def test_after_a_cut_a_disk_has_what_was_synced_and_no_more(tmp_path: Path) -> None:
    import os

    disk = Disk(tmp_path / "place", tmp_path / "disk.img", 32 << 20, journaled=True)
    try:
        fd = os.open(disk.place / "file", os.O_WRONLY | os.O_CREAT)
        os.write(fd, b"synced")
        os.fsync(fd)
        os.write(fd, b" and more")
        disk.cut()
        with pytest.raises(OSError, match="Input/output error"):
            os.write(fd, b"late")
        os.close(fd)
        disk.mount_again()
        assert (disk.place / "file").read_bytes() == b"synced"
    finally:
        disk.close()


@needs.root
@needs.kernel_log
@pytest.mark.slow
def test_a_job_survives_power_cuts_with_the_result_of_an_undisturbed_run(tmp_path: Path) -> None:
    faults = (fail.machine().at_step(25), fail.machine().after_recovery())
    report = carried_out(tmp_path, *faults, nodes=1, sleep_s=0.03)
    assert report.passed, report
    assert report.attempts == 3  # each cut ends one
    assert [one.correct for one in report.outcomes] == [True, True]
    # a cut that took no line of a journal that the log has looks like the end of the supervisor alone
    texts = ("power cut", "its supervisor ended without a record")
    assert all(any(text in one.because for text in texts) for one in report.outcomes), report


def test_a_power_cut_does_not_go_with_a_fault_of_the_checkpoints_disk(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match="power_cut is not possible here"):
        refuse(
            drill_of(tmp_path, fail.machine().at_step(1), fail.checkpoint().disk_full().at_step(2), nodes=1)
        )
