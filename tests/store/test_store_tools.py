"""Check, export, import, compact."""

from __future__ import annotations

import hashlib
import io
import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unidle.errors import BadInput, StoreError
from unidle.store.memory import MemoryStore
from unidle.store.protocol import NewEvent, Segment, Snapshot
from unidle.store.tools import check, compact, export, import_

BODIES = [
    b"{}",
    b'{"a": 1.50, "b":"\xc3\xbc"}',
    b'{\n"a":1\n}',
    b"",
    b"\xff\x00",
    b'{"a":1',
    b'{"a":1e5,"a":2}',
]


@pytest.fixture
def filled(store):
    """A store with events of all sorts of bodies and two requests."""
    lease = store.acquire("test")
    store.append(lease, [NewEvent(n * 10, f"rank {n}", n, "k\u00fc", body) for n, body in enumerate(BODIES)])
    store.request("submit", b'{"job": 1}')
    store.request("cancel", b"\xff")
    store.release(lease)
    return store


def exported(store) -> bytes:
    out = io.BytesIO()
    export(store, out)
    return out.getvalue()


def content(store):
    return list(store.read()), [(r.kind, r.body) for r in store.requests()], store.last()


def test_a_healthy_store_passes_the_check(place, event):
    store = place.open()
    lease = store.acquire("test")
    store.append(lease, [event(n) for n in range(1, 2100)])
    store.save_snapshot(lease, Snapshot(5, 1, b"s"), [Segment(0, 5, 1, 0, 1, 1, b"PAR1")])
    store.request("submit", b"{}")
    report = check(store)
    assert report.ok
    assert (report.events, report.last_time_ns, report.requests) == (2099, 20990, 1)
    assert report.problems == ()


def test_the_check_reads_beside_a_writer(durable, event):
    writer = durable.open()
    writer.append(writer.acquire("test"), [event(1)])
    assert check(durable.open(create=False, read_only=True)).events == 1


def test_an_export_is_lines_of_json_with_a_count_and_a_digest(filled):
    data = exported(filled)
    lines = data.splitlines(keepends=True)
    assert json.loads(lines[0]) == {"format": "unidle-export", "version": 1}
    end = json.loads(lines[-1])
    assert (end["events"], end["requests"]) == (len(BODIES), 2)
    assert end["sha256"] == hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    assert json.loads(lines[4])["body"] == {"a": 1.5, "b": "\u00fc"}


def test_an_import_gives_the_same_log(filled):
    target = MemoryStore()
    assert import_(target, io.BytesIO(exported(filled))) == len(BODIES)
    assert content(target) == content(filled)
    assert target.holder() is None
    assert exported(target) == exported(filled)


def test_every_kind_of_store_imports_the_same(place):
    source = MemoryStore()
    lease = source.acquire("test")
    source.append(lease, [NewEvent(n, "s", n, "k", b'{"n":%d}' % n) for n in range(3000)])
    source.request("submit", b"{}")
    target = place.open()
    assert import_(target, io.BytesIO(exported(source))) == 3000
    assert content(target) == content(source)
    assert check(target).ok


def test_an_empty_log_can_be_moved_too(store):
    target = MemoryStore()
    assert import_(target, io.BytesIO(exported(store))) == 0
    assert target.last() == (0, 0)


def test_an_import_needs_an_empty_store(filled):
    before = content(filled)
    with pytest.raises(StoreError, match="not empty; import into a new one"):
        import_(filled, io.BytesIO(exported(filled)))
    assert content(filled) == before


def edited(data: bytes, number: int, **changes: object) -> bytes:
    """The export with fields of one line changed and a digest that fits."""
    lines = data.splitlines()[:-1]
    lines[number - 1] = json.dumps({**json.loads(lines[number - 1]), **changes}).encode()
    body = b"".join(line + b"\n" for line in lines)
    end = json.loads(data.splitlines()[-1]) | {"sha256": hashlib.sha256(body).hexdigest()}
    return body + json.dumps(end).encode() + b"\n"


BROKEN = {
    "nothing": (lambda d: b"", "line 1: the export ends without its last line"),
    "another file": (lambda d: b"name: job\n", "line 1: cannot be read"),
    "another format": (lambda d: edited(d, 1, format="x"), "line 1: is not an export"),
    "a newer format": (lambda d: edited(d, 1, version=2), "line 1: this unidle reads version 1"),
    "no last line": (lambda d: d[: d[:-1].rindex(b"\n") + 1], "line 11: the export ends without"),
    "torn": (lambda d: d[:-1], "line 11: the export is truncated here"),
    "a line lost": (lambda d: d.replace(d.splitlines(True)[5], b""), "line 6: event 3 was expected"),
    "a line twice": (
        lambda d: d.replace(d.splitlines(True)[5], d.splitlines(True)[5] * 2),
        "line 7: event 4 was",
    ),
    "a request lost": (lambda d: d.replace(d.splitlines(True)[2], b""), "line 10: the counts or the SHA-256"),
    "a changed byte": (lambda d: d.replace(b'"b":', b'"c":'), "line 11: the counts or the SHA-256"),
    "more": (lambda d: d + b"{}\n", "line 11: there is data"),
    "not JSON": (lambda d: d.replace(b'"source":"rank 1"', b'"source":rank 1'), "line 5: cannot be read"),
    "wrong type": (lambda d: edited(d, 5, time_ns="x"), "line 5: cannot be read: Expected `int`"),
    "unknown field": (
        lambda d: edited(d, 5, x=1),
        "line 5: cannot be read: Object contains unknown field `x`",
    ),
    "two bodies": (lambda d: edited(d, 5, raw="eA=="), "line 5: exactly one of body and raw"),
    "older": (lambda d: edited(d, 6, time_ns=5), "line 6: the event is older"),
    "binary": (lambda d: bytes(range(256)) * 10 + b"\n" + d, "line 1: cannot be read"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_export_is_told_by_line_and_nothing_of_it_is_kept(place, name):
    source = MemoryStore()
    lease = source.acquire("test")
    source.append(lease, [NewEvent(n * 10, f"rank {n}", n, "k", body) for n, body in enumerate(BODIES)])
    source.request("submit", b'{"job": 1}')
    source.request("cancel", b"\xff")
    change, message = BROKEN[name]
    target = place.open()
    with pytest.raises(BadInput) as error:
        import_(target, io.BytesIO(change(exported(source))))
    assert str(error.value).startswith(message)
    assert "nothing was imported" in str(error.value)
    assert content(target) == ([], [], (0, 0))
    assert import_(target, io.BytesIO(exported(source))) == len(BODIES)


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_changed_byte_of_an_export_goes_unnoticed(data):
    source = MemoryStore()
    source.append(source.acquire("t"), [NewEvent(n, "s", n, "k", body) for n, body in enumerate(BODIES)])
    whole = bytearray(exported(source))
    at = data.draw(st.integers(0, len(whole) - 1))
    old = whole[at]
    whole[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != old))
    target = MemoryStore()
    try:
        import_(target, io.BytesIO(bytes(whole)))
    except BadInput:
        assert content(target) == ([], [], (0, 0))
    else:
        assert content(target) == content(source)  # a blank beside the last line, nothing that counts


def test_compacting_drops_what_is_superseded_and_no_event(durable, event):
    store = durable.open()
    lease = store.acquire("test")
    dice = random.Random(1)
    store.append(lease, [event(n) for n in range(1, 3000)])
    for fold_version in (1, 2):
        for n in range(6):
            body = dice.randbytes(300_000)
            segments = [Segment(0, n, fold_version, 0, 1, 1, body)]
            store.save_snapshot(lease, Snapshot(n, fold_version, body), segments)
    events = list(store.read())
    before, after = compact(store, lease)
    assert before > after > 2_000_000
    assert store.load_snapshot(1) is None
    assert store.load_snapshot(2).seq == 5
    assert store.segments(1) == []
    assert len(store.segments(2)) == 6
    assert list(store.read()) == events
    assert check(store).ok
    assert store.append(lease, [event(3000)]) == 3000
