"""Launchers of several sites that train one model together: over TLS, and when one of them is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import nightly
from rank_span.runs import tensors
from rank_wan.certificates import certificate
from span_run import runs
from span_run.live import Live

ENV = {"UNIDLE_SPAN_SECRET": "of this test"}


def file_of(place: Path, count: int = 2, steps: int = 12, ms: int = 20, **train: Any) -> Path:
    sites = runs.sites("abc"[:count])
    times = dict.fromkeys(("forward", "backward", "weight"), ms * runs.MS)
    told = {
        **runs.TRAIN,
        "steps": steps,
        "pace": True,
        "checkpoint": {"directory": "kept", "every": 3},
        **train,
    }
    return runs.written(place, runs.span(count, train=told, stage_ns=times, sites=sites))


def started(
    stack: ExitStack, place: Path, file: Path, sites: str, *words: str, log: str = "", **more: Any
) -> dict[str, Live]:
    """A launcher for each of the sites, the first of them last."""
    return {
        name: stack.enter_context(
            Live(
                str(file),
                "--site",
                name,
                "--store",
                str(place / f"{log or name}.db"),
                *words,
                env=ENV,
                **more,
            )
        )
        for name in reversed(sites)
    }


def with_tls(place: Path, file: Path, name: str, authority: str = "ours") -> Path:
    """The site's own copy of the span file, with a certificate of its own; it trusts who signed that."""
    data = json.loads(file.read_text())
    files = certificate(place, name, "IP:127.0.0.1", authority)
    data["train"]["tls"] = files | {"authority": str(place / f"{authority}.pem")}
    path = place / f"span-{name}.json"
    path.write_text(json.dumps(data))
    return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Where one process without sites has trained for so many steps."""

    @cache
    def trained(steps: int) -> Path:
        place = tmp_path_factory.mktemp("alone")
        file = file_of(place, count=1, steps=steps, ms=1)
        done = runs.unidle("span", "run", str(file), "--no-namespaces", "--store", str(place / "s.db"))
        assert done.returncode == 0, done.stdout + done.stderr
        return place

    return trained


@pytest.mark.slow
def test_sites_train_over_tls_and_one_with_another_authority_is_told_so(tmp_path: Path) -> None:
    file = file_of(tmp_path, steps=4)
    with ExitStack() as stack:
        second = started(stack, tmp_path, with_tls(tmp_path, file, "b"), "b")["b"]
        first = started(stack, tmp_path, with_tls(tmp_path, file, "a"), "a")["a"]
        assert (first.end(), second.end()) == (0, 0), first.said
    assert sorted(first.losses) == [1, 2, 3, 4]
    wrong = with_tls(tmp_path, file, "x", "theirs")
    with ExitStack() as stack:
        first = started(stack, tmp_path, with_tls(tmp_path, file, "a"), "a")["a"]
        first.until("waits for 1 site")
        words = ("span", "run", str(wrong), "--site", "b", "--wait", "5", "--store", str(tmp_path / "x.db"))
        done = subprocess.run(
            [sys.executable, "-m", "unidle", *words],
            capture_output=True,
            text=True,
            env=os.environ | ENV,
            timeout=120,
        )
        assert done.returncode == 3
        assert "tls" in done.stderr and "the first site does not answer" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("again", nightly.sweep([False, True], always=[True]))
def test_a_site_whose_launcher_and_ranks_are_killed_is_done_without_until_it_is_started_again(
    tmp_path: Path, alone: Callable[[int], Path], again: bool
) -> None:
    steps = 60 if again else 30
    file = file_of(tmp_path, count=3, steps=steps)
    with ExitStack() as stack:
        live = started(stack, tmp_path, file, "abc", give_up_s=5)
        live["a"].until("step     1")
        ranks = live["c"].ranks("c/0/2")
        assert ranks
        live["a"].until("step     7")
        live["c"].kill()
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
        assert "launcher of c is gone" in live["a"].until("is gone")
        assert "after step 6" in live["a"].until("attempt 2: continues")
        if again:
            live |= started(stack, tmp_path, file, "c", give_up_s=5)
            live["a"].until("the launcher of c is there")
            live["a"].until("c answers: taken in after step")
            live["a"].until("all 3 devices are ready")
        assert live["a"].end() == 0
        assert not again or live["c"].end() == 0
        assert live["b"].end() == 0
    trained_the_same(tmp_path, alone(steps), live["a"], steps)


@pytest.mark.slow
def test_a_site_that_comes_late_is_taken_in(tmp_path: Path, alone: Callable[[int], Path]) -> None:
    file = file_of(tmp_path, count=3, steps=60)
    with ExitStack() as stack:
        words = ("--wait", "4", "--begin-without")
        live = started(stack, tmp_path, file, "ab", *words)
        live["a"].until("all 2 devices are ready")
        live["a"].until("step     4")
        live |= started(stack, tmp_path, file, "c")
        live["a"].until("c answers: taken in after step")
        live["a"].until("all 3 devices are ready")
        assert [live[name].end() for name in "abc"] == [0, 0, 0], live["a"].said
    trained_the_same(tmp_path, alone(60), live["a"], 60)


@pytest.mark.slow
def test_each_host_of_a_site_has_a_launcher_and_the_site_is_done_without_while_one_is_gone(
    tmp_path: Path,
) -> None:
    data = json.loads(file_of(tmp_path, steps=60).read_text()) | {"pipelines": 2}
    (one,), (other,) = (site["hosts"] for site in runs.sites("xy"))
    data["sites"][1]["hosts"] = [one, other]
    file = tmp_path / "span.json"
    file.write_text(json.dumps(data))
    with ExitStack() as stack:
        first = started(stack, tmp_path, file, "b", "--host", one, give_up_s=5)["b"]
        second = started(stack, tmp_path, file, "b", "--host", other, give_up_s=5, log="c")["b"]
        leader = started(stack, tmp_path, file, "a", give_up_s=5)["a"]
        leader.until("all 4 devices are ready")
        leader.until("step     1")
        ranks = second.ranks("b/1/1")
        assert ranks and not second.ranks("b/0/1")
        leader.until("step     7")
        second.kill()
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
        assert f"launcher of b@{other} is gone" in leader.until("is gone")
        leader.until("all 2 devices are ready")
        again = started(stack, tmp_path, file, "b", "--host", other, give_up_s=5, log="d")["b"]
        leader.until("b answers: taken in after step")
        leader.until("all 4 devices are ready")
        assert [each.end() for each in (leader, first, again)] == [0, 0, 0], leader.said
    assert sorted(leader.losses) == list(range(1, 61))


def trained_the_same(place: Path, alone: Path, run: Live, steps: int) -> None:
    """As one process without sites."""
    assert sorted(run.losses) == list(range(1, steps + 1))
    theirs, ours = (tensors(at / "kept" / f"step_{steps:010}") for at in (alone, place))
    assert ours == theirs and sum(name.startswith("model.") for name in ours) == 10
