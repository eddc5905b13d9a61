"""Whose a job is: that of the one who submitted it, but where the owner of the store submits for others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest

import needs
import places
from loop.drive import Loop
from store.first_version import made_by_the_first_version
from unidle.control.inbox import SubmitRequest, signed
from unidle.control.queries import describe
from unidle.engine.sim.workload import SimJob
from unidle.errors import BadInput
from unidle.events import types as ev
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.jobs import JobSpec
from unidle.login import login_name
from unidle.store import migrate, schema
from unidle.store.checksum import blob_crc
from unidle.store.memory import MemoryStore
from unidle.store.open import open_store
from unidle.store.sql import SqlStore
from unidle.store.sqlite import SqliteDatabase
from unidle.store.statements import ADD_REQUEST, ADD_SIGNED_REQUEST

JOB = JobSpec(("train",), user=login_name())
FLEET = Fleet(
    (Tier("rack", "rack"),), (Node("n0", "rack", (Device("n0/0", "n0", 0, "gpu"),)),), source="test"
)


def test_the_login_name_is_that_of_the_process_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "mallory")
    assert login_name() != "mallory"
    assert login_name(3_999_999_999) == "3999999999"  # one without a name


def test_the_owner_of_a_file_submits_for_others_and_the_log_has_both(tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "s.db"), create=True)) as store:
        assert signed(store, JOB) == (JOB, login_name())
        theirs, by = signed(store, JOB, "carol")
        assert (theirs.user, by) == ("carol", login_name())
        store.request("submit", msgspec.json.encode(SubmitRequest("a", theirs)))
        (request,) = store.requests()
        assert request.sender == login_name()


# -- a server, which knows its roles -------------------------------------------------------------------


@pytest.fixture
def shared(postgres_url: str) -> Iterator[tuple[str, str]]:
    """A store of the server's owner, and the same for the role ada, who may put requests into its inbox."""
    address = f"{postgres_url}&options=-csearch_path%3Dshared"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shared")
        connection.execute("CREATE ROLE ada LOGIN")
        with closing(open_store(address, create=True)):
            pass
        connection.execute("GRANT USAGE ON SCHEMA shared TO ada")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA shared TO ada")
        connection.execute("GRANT INSERT (time_ns, kind, body, crc) ON shared.unidle_requests TO ada")
        try:
            yield address, address.replace("//unidle@", "//ada@")
        finally:
            connection.execute("DROP SCHEMA shared CASCADE")
            connection.execute("DROP OWNED BY ada")
            connection.execute("DROP ROLE ada")


@needs.postgres
def test_a_role_submits_as_itself_and_for_nobody_else(shared: tuple[str, str]) -> None:
    owner, other = (open_store(address, create=False) for address in shared)
    with closing(owner), closing(other):
        assert signed(owner, JOB, "carol")[0].user == "carol"
        mine, by = signed(other, JOB)  # what it is called on its own machine does not count
        assert (mine.user, by) == ("ada", "ada")
        with pytest.raises(
            BadInput, match="only the owner of the store may submit for others, and this is ada"
        ):
            signed(other, JOB, "carol")
        other.request("submit", msgspec.json.encode(SubmitRequest("a", mine)))
        assert [request.sender for request in owner.requests()] == ["ada"]


@needs.postgres
def test_a_role_cannot_write_another_name_into_the_inbox(shared: tuple[str, str]) -> None:
    with closing(open_store(shared[1], create=False)) as store, pytest.raises(Exception, match="denied"):
        store.database.execute(ADD_SIGNED_REQUEST, (1, "submit", b"{}", 1, "unidle"))


# -- the controller looks once more --------------------------------------------------------------------


class SharedStore(MemoryStore):
    """One store of root's, with requests of whoever ``sender`` is then."""

    sender = "root"

    def user(self) -> str:
        return self.sender

    def owned_by(self, user: str) -> bool:
        return user == "root"


def test_a_request_for_somebody_else_is_refused_by_the_controller() -> None:
    store = SharedStore()
    for job, user, sender in (
        ("own", "ada", "ada"), ("forged", "carol", "ada"), ("for-carol", "carol", "root"), ("older", "carol", ""),
    ):  # fmt: skip
        store.sender = sender
        store.request("submit", msgspec.json.encode(SubmitRequest(job, JobSpec(("x",), user=user))))
    loop = Loop(FLEET, {job: SimJob(1) for job in ("own", "for-carol", "older")}, 1, store=store)
    for request in store.requests():
        loop.controller._take_request(request)
    loop.settle()
    said = [event for _, event in loop.events]
    assert [(e.job, e.spec.user, e.submitted_by) for e in said if isinstance(e, ev.JobSubmitted)] == [
        ("own", "ada", "ada"), ("for-carol", "carol", "root"), ("older", "carol", ""),
    ]  # fmt: skip
    (refused,) = [e for e in said if isinstance(e, ev.RequestRefused)]
    assert refused.because.text.startswith("ada may not submit for carol")
    asked = [describe.explain(loop.view, loop.view.jobs[job]) for job in ("own", "for-carol")]
    first = [story["decisions"][0]["text"] for story in asked]
    assert first == ["by ada to queue default", "by root for carol to queue default"]
    assert describe.job_line(loop.view.jobs["for-carol"])["submitted_by"] == "root"


# -- another user on the machine -----------------------------------------------------------------------


@needs.root
def test_another_user_of_the_machine_cannot_submit_for_others(tmp_path: Path) -> None:
    """The real command, as a user who may write the store's file and does not own it."""
    place = Path(places.open_parent()) / f"unidle-shared-{os.getpid()}"
    place.mkdir(mode=0o777)
    try:
        place.chmod(0o777)
        store = place / "s.db"
        with closing(open_store(str(store), create=True)):
            pass
        store.chmod(0o666)
        # without its own rights, but able to read the checkout wherever that is
        become = [
            "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
            "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
        ]  # fmt: skip

        def submit(*words: str) -> subprocess.CompletedProcess[str]:
            command = [*become, sys.executable, "-B", "-m", "unidle", "submit", "--store", str(store), *words]
            env = {**os.environ, "HOME": str(place), "LOGNAME": "carol", "USER": "carol"}
            return subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=place)

        theirs = submit("--user", "carol", "--", "true")
        assert theirs.returncode == 2
        assert "only the owner of the store may submit for others" in theirs.stderr
        assert submit("--", "true").returncode == 0
        with closing(open_store(str(store), create=False)) as opened:
            (request,) = opened.requests()
        name = login_name(65534)
        spec = msgspec.json.decode(request.body, type=SubmitRequest).spec
        assert (request.sender, spec.user) == (name, name)
    finally:
        shutil.rmtree(place)


def test_what_an_older_version_kept_is_read_as_it_is_and_then_upgraded(tmp_path: Path) -> None:
    """Requests without a sender; also by who may only read the store, which upgrades nothing."""
    path = tmp_path / "old.db"
    with closing(SqliteDatabase(path, create=True)) as database:
        made_by_the_first_version(database)
        migrate.run(database, [step for step in migrate.REVISIONS if step.id <= "0003"])
        database.insert(ADD_REQUEST, (1, "submit", b"{}", blob_crc(b"{}", 1, "submit")))
    with closing(open_store(str(path), create=False, read_only=True)) as store:
        assert [(r.body, r.sender) for r in store.requests()] == [(b"{}", "")]
        assert store.database.query("SELECT version_num FROM unidle_schema") == [("0003",)]
    with closing(open_store(str(path), create=False)) as store:
        assert isinstance(store, SqlStore)
        assert [(r.body, r.sender) for r in store.requests()] == [(b"{}", "")]
        store.request("submit", b"{}")
        assert [r.sender for r in store.requests()] == ["", login_name()]
        assert store.database.query("SELECT version_num FROM unidle_schema") == [(schema.REVISION,)]
