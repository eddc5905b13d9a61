"""Records of ended jobs in a snapshot."""

from __future__ import annotations

import msgspec
import pytest

from unidle.jobs import JobSpec, Reason
from unidle.view.job_table import JobTable
from unidle.view.jobs import JobView
from unidle.view.packed import packed, unpacked


def ended(name: str) -> JobView:
    job = JobView(name, JobSpec(("python", "train.py"), name="train", user="ada"), 0, 1)
    job.state, job.ended_ns, job.because = "succeeded", 2, Reason("done", "exited 0")
    return job


def test_an_ended_job_is_kept_in_few_bytes_and_comes_back_whole() -> None:
    table = JobTable()
    job = ended("train-abc234")
    table.add(job)
    table.put_away(job)
    kept = table.plain()["jobs"][job.id]
    assert isinstance(kept, bytes) and 5 * len(kept) < len(msgspec.msgpack.encode(job))
    assert table[job.id] == job and not table.open


def test_a_record_that_an_earlier_version_kept_is_read() -> None:
    job = ended("train-abc234")
    assert JobTable({job.id: msgspec.msgpack.encode(job)})[job.id] == job


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_any_record_comes_back(size: int) -> None:
    record = b"\x93" + bytes(k * k % 251 for k in range(size))
    assert unpacked(packed(record)) == record
