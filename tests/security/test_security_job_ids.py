"""An id of a job becomes a path. One that leads elsewhere is refused where it enters and where it is used."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import msgspec
import pytest

from unidle.engine.local.ranks import rundir
from unidle.errors import BadInput, StoreDamaged
from unidle.events import types as ev
from unidle.jobs import JobSpec
from unidle.jobs.spec import is_job_id
from unidle.store import tools
from unidle.store.open import open_store
from unidle.view.fold import apply
from unidle.view.state import View

BAD = ["../../etc/x", "/etc/x", "a/b", "..", ".holders", "", "a\nb", "a\0b", "x" * 201]
SPEC = JobSpec(("true",), "x")


@pytest.mark.parametrize("job", BAD)
@pytest.mark.parametrize("line", ["event", "request"])
def test_an_import_refuses_an_id_that_is_no_name_of_a_file(tmp_path: Path, job: str, line: str) -> None:
    body = msgspec.json.encode({"job": job, "spec": SPEC})
    if line == "event":
        row = {
            "line": "event",
            "seq": 1,
            "time_ns": 1,
            "source": "x",
            "source_seq": 1,
            "kind": "job_submitted",
            "body": msgspec.Raw(body),
        }
    else:
        row = {"line": "request", "kind": "submit", "body": body}
    lines = b"".join(
        msgspec.json.encode(one) + b"\n" for one in ({"format": "unidle-export", "version": 1}, row)
    )
    end = {
        "line": "end",
        "events": int(line == "event"),
        "requests": int(line == "request"),
        "sha256": hashlib.sha256(lines).hexdigest(),
    }
    store = open_store(str(tmp_path / "new.db"), create=True)
    with pytest.raises(BadInput, match=r"line 2: the id of a job cannot be a file's name"):
        tools.import_(store, io.BytesIO(lines + msgspec.json.encode(end) + b"\n"))
    assert store.last() == (0, 0) and not store.requests()
    store.close()


@pytest.mark.parametrize("job", BAD)
def test_the_view_refuses_an_event_with_such_an_id(job: str) -> None:
    with pytest.raises(StoreDamaged, match="cannot be a file's name"):
        apply(View(), ev.JobSubmitted(job, SPEC), 1, 1)


@pytest.mark.parametrize("job", ["../x", "a/b", "..", ".holders", "", "a\0b"])
def test_no_such_id_becomes_a_path(job: str) -> None:
    with pytest.raises(ValueError, match="not the id of a job"):
        rundir.rank_dir("/runs", job, 1, 0)


def test_the_ids_that_unidle_gives_are_ids() -> None:
    assert all(is_job_id(job) for job in ("train-a2b3c4", "a.b_c-x2y3z4", "j1"))
