"""What a box sends as a mark is one for the controller, and its own processes are found on every Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unidle import wire
from unidle.box.mark_feed import Glances
from unidle.engine.local.ranks import pidfd
from unidle.engine.local.ranks.mark_forms import RawMarks
from unidle.events.marks import Mark

PLAIN = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6)
ANY = PLAIN | st.lists(PLAIN, max_size=2) | st.dictionaries(st.text(max_size=3), PLAIN, max_size=2)
FIELDS = ("n", "e", "w", "o", "code", "pid", "ticks", "text", "info", "last", "v", "unknown")
LAST = st.fixed_dictionaries(
    {},
    optional={
        "what": st.text(max_size=3) | PLAIN, "where": st.text(max_size=3) | PLAIN, "symptom": st.booleans() | PLAIN,
        "lines": st.lists(st.text(max_size=3), max_size=2) | st.lists(PLAIN, max_size=2) | PLAIN,
        "kind": st.just("unknown") | st.none(), "sort": st.just("line") | st.none(),  # the controller checks new ones
    },
) | ANY  # fmt: skip
MARKS = st.builds(
    lambda k, t, rest, last: {"k": k, "t": t, **rest, **({} if last is None else {"last": last})},
    st.sampled_from(["step", "exit", "lost", "spawn"]) | PLAIN,
    st.integers(0, 2**62) | PLAIN,
    st.dictionaries(st.sampled_from(FIELDS), ANY, max_size=2),
    st.none() | LAST,
)


@settings(max_examples=500)
@given(MARKS)
def test_what_a_box_takes_for_a_mark_is_one_for_the_controller(content: dict[str, object]) -> None:
    line = json.dumps(content).encode()
    try:
        mark = RawMarks().decode(line)
    except ValueError:
        return
    msgspec.json.decode(wire.compact(mark), type=Mark)


@given(st.builds(Mark, k=st.sampled_from(["step", "exit", "spawn"]), t=st.integers(0, 2**62), v=st.none() | st.floats(-1e9, 1e9),
                 text=st.none() | st.text(), info=st.none() | st.dictionaries(st.text(), st.booleans() | st.integers(0, 9))))  # fmt: skip
def test_every_mark_of_a_supervisor_is_one_for_a_box(mark: Mark) -> None:
    line = msgspec.json.encode(mark)
    assert msgspec.convert(RawMarks().decode(line), Mark) == mark
    if mark.k != "step":
        assert Glances().facts(Glances().decode(line)) == (mark.k, mark.t, None, None)


@pytest.mark.parametrize("own", [True, False])
def test_processes_are_followed_also_without_calls_of_python(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not own:
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.delattr(signal, "pidfd_send_signal")
    with subprocess.Popen(["sleep", "600"]) as process:
        fd = pidfd.open_pid(process.pid)
        assert not os.get_inheritable(fd)
        pidfd.send(fd, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            pidfd.send(fd, signal.SIGTERM)
        os.close(fd)
    with pytest.raises(ProcessLookupError):
        pidfd.open_pid(process.pid)
