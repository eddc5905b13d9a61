"""What a command may call, without a cluster: the API server is one that answers in this process."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from unidle.control.inbox import CancelRequest
from unidle.errors import BadInput
from unidle.gateway.calls import READING, Calls
from unidle.gateway.identity import CallForbidden, Identities, User
from unidle.kube.commands import NO_TICKET, SIGNER, _signing_request, hash_of
from unidle.kube.protocol import ApiRequest, KubeError
from unidle.store import statements
from unidle.store.open import open_store

NAME = "unidle-0123456789abcdef"
ALICE = User("alice", groups=("system:authenticated",))


class ApiServer:
    """Objects of tickets by name, and rights by user: what two kinds of requests read."""

    def __init__(self) -> None:
        self.tickets: dict[str, Mapping[str, Any]] = {}
        self.rights: set[tuple[str, str, str]] = set()
        self.reviews = 0

    def call(self, request: ApiRequest, timeout_s: float | None = None) -> bytes:
        if request.verb == "get":
            found = self.tickets.get(request.path.rpartition("/")[2])
            if found is None:
                raise KubeError("not found", reason="NotFound", status=404)
            return msgspec.json.encode(found)
        assert request.body is not None
        self.reviews += 1
        spec = msgspec.json.decode(request.body)["spec"]
        asked = spec["resourceAttributes"]
        resource = "/".join(part for part in (asked["resource"], asked["subresource"]) if part)
        return msgspec.json.encode(
            {"status": {"allowed": (spec["user"], asked["verb"], resource) in self.rights}}
        )


def ticket(secret: str, *, user: str = "alice", age_h: float = 0.0, **more: Any) -> dict[str, Any]:
    created = datetime.now(UTC) - timedelta(hours=age_h)
    request = base64.b64encode(_signing_request(hash_of(secret))).decode()
    spec = {"signerName": SIGNER, "username": user, "groups": ["system:authenticated"], "request": request}
    return {"metadata": {"creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ")}, "spec": spec | more}


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
def identities(server: ApiServer) -> Identities:
    return Identities(server, "training")  # type: ignore[arg-type]


@pytest.fixture
def calls(tmp_path: Path, identities: Identities) -> Iterator[Calls]:
    store = tmp_path / "a.db"
    open_store(str(store), create=True).close()
    found = Calls(str(store), tmp_path / "a.db.d", identities)
    yield found
    found.close()


def test_a_ticket_names_who_created_its_object(server: ApiServer, identities: Identities) -> None:
    server.tickets[NAME] = ticket("secret")
    assert identities.user(NAME, "secret") == ALICE


@pytest.mark.parametrize(
    ("name", "secret", "told"),
    [
        (NAME, "another", ticket("secret")),
        (NAME, "secret", ticket("secret", age_h=9)),
        (NAME, "secret", ticket("secret", signerName="kubernetes.io/kube-apiserver-client")),
        (NAME, "secret", ticket("secret") | {"status": {"conditions": [{"type": "Denied"}]}}),
        (NAME, "secret", ticket("secret", username="")),
        (NAME, "secret", ticket("secret", request="bm8=")),
        ("unidle-0", "secret", ticket("secret")),
        ("../pods/x", "secret", ticket("secret")),
    ],
)
def test_a_ticket_that_is_not_good_is_refused(
    server: ApiServer, identities: Identities, name: str, secret: str, told: dict[str, Any]
) -> None:
    server.tickets[name.rpartition("/")[2]] = told
    with pytest.raises(CallForbidden) as refused:
        identities.user(name, secret)
    assert refused.value.kind == NO_TICKET


def test_reading_needs_the_right_to_list_jobs(server: ApiServer, calls: Calls) -> None:
    given = {"statement": statements.WRITER, "params": []}
    with pytest.raises(
        CallForbidden, match=r"user alice may not list jobs\.unidle\.dev in namespace training"
    ):
        calls.carry_out(ALICE, "query", given)
    server.rights.add(("alice", "list", "jobs"))
    other = User("bob")
    with pytest.raises(CallForbidden):
        calls.carry_out(other, "query", given)


def test_only_known_statements_that_read_are_carried_out(server: ApiServer, calls: Calls) -> None:
    server.rights.add(("alice", "list", "jobs"))
    assert calls.carry_out(ALICE, "query", {"statement": statements.REVISION_IS, "params": []})
    for statement in (statements.DROP_REQUEST, "SELECT * FROM unidle_requests", "PRAGMA journal_mode", None):
        with pytest.raises(BadInput):
            calls.carry_out(ALICE, "query", {"statement": statement, "params": []})
    assert not any(word in text for text in READING for word in ("INSERT", "UPDATE", "DELETE"))


def test_a_request_has_the_name_of_its_user_whatever_it_has(
    server: ApiServer, calls: Calls, tmp_path: Path
) -> None:
    server.rights.add(("alice", "delete", "jobs"))
    body = msgspec.json.encode(CancelRequest("train-1", "root"))
    number = calls.carry_out(ALICE, "request", {"kind": "cancel", "body": body})
    store = open_store(str(tmp_path / "a.db"), create=False)
    [found] = store.requests()
    store.close()
    assert (found.id, found.sender) == (number, "alice")
    assert msgspec.json.decode(found.body, type=CancelRequest).by == "alice"


def test_a_request_that_comes_again_with_its_number_is_kept_once(
    server: ApiServer, calls: Calls, tmp_path: Path
) -> None:
    """Of an answer that was cut short on its way, the command asks again."""
    server.rights.add(("alice", "delete", "jobs"))
    server.rights.add(("bob", "delete", "jobs"))
    given = {"kind": "cancel", "body": msgspec.json.encode(CancelRequest("train-1", "root"))}
    first = [calls.carry_out(ALICE, "request", given, "1") for _ in range(2)]
    assert first[0] == first[1]
    assert calls.carry_out(ALICE, "request", given, "2") != first[0]
    assert calls.carry_out(User("bob"), "request", given, "1") not in first  # a number is of its user
    for number in range(100):
        calls.carry_out(ALICE, "request", given, f"more-{number}")
    assert len(calls._done) < 50
    with pytest.raises(BadInput):
        calls.carry_out(ALICE, "request", {"kind": "shutdown", "body": b"{}"}, "3")


def test_a_job_of_another_user_is_refused(server: ApiServer, calls: Calls) -> None:
    server.rights.add(("alice", "create", "jobs"))
    body = msgspec.json.encode({"job": "x-1", "spec": {"user": "bob"}})
    with pytest.raises(BadInput, match="belongs to who submits it"):
        calls.carry_out(ALICE, "request", {"kind": "submit", "body": body})


def test_a_request_of_an_unknown_kind_is_refused(calls: Calls) -> None:
    with pytest.raises(BadInput):
        calls.carry_out(ALICE, "request", {"kind": "shutdown", "body": b"{}"})


def test_a_right_is_asked_once_for_several_calls(server: ApiServer, calls: Calls) -> None:
    server.rights.add(("alice", "list", "jobs"))
    for _ in range(5):
        calls.carry_out(ALICE, "tables", {})
    assert server.reviews == 1
