"""`unidle span probe` between two namespaces, and between two processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from labs import fleet_text
from unidle.drill.lab import Lab
from unidle.files.fleet import load_fleet

UNIDLE = [sys.executable, "-m", "unidle", "span", "probe"]
QUICK = ["--seconds", "0.6", "--pings", "20", "--flows", "4", "--json"]


def _probe(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*UNIDLE, *words], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


@needs.shaping
def test_between_two_namespaces_a_link_is_measured_and_stored(tmp_path: Path) -> None:
    lab = Lab(["a", "b"])
    try:
        lab.limit("a", "b", 100_000_000)
        file = tmp_path / "fleet.yaml"
        file.write_text(fleet_text(lab, 1))
        between = ["--from", lab.space("a"), "--to", lab.space("b")]
        done = _probe(*between, *QUICK, "--write", str(file), "--pair", "a", "b")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        # never more than the link is set to carry; how much less is the machine's affair
        assert 0 < found["capacity_bps"]["value"] < 110e6
        assert found["capacity_bps"]["low"] <= found["capacity_bps"]["value"] <= found["capacity_bps"]["high"]
        assert found["latency_ns"]["value"] > 0
        assert set(found["rates_bps"]) >= {"1", "2"}
        (link,) = load_fleet(file).links
        assert (link.a, link.b) == ("a", "b")
        assert link.bandwidth_bps == round(found["capacity_bps"]["value"])
    finally:
        lab.close()


@contextlib.contextmanager
def _served() -> Iterator[tuple[str, str]]:
    """The address and secret of one that serves."""
    command = [*UNIDLE, "serve", "--port", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            first, second = server.stdout.readline(), server.stdout.readline()
            port, secret = re.search(r":(\d+);", first), re.search(r"SECRET=(\S+)", second)
            assert port
            assert secret
            yield f"127.0.0.1:{port[1]}", secret[1]
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


@pytest.mark.slow
def test_two_processes_measure_the_way_between_them_and_a_stranger_does_not() -> None:
    with _served() as (address, secret):
        done = _probe(address, *QUICK, UNIDLE_SPAN_SECRET=secret)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["capacity_bps"]["value"] > 0
        table = _probe(address, *QUICK[:-1], UNIDLE_SPAN_SECRET=secret)  # it serves the next one, too
        assert re.search(r"flows +Mbit/s +model", table.stdout)
        stranger = _probe(address, *QUICK, UNIDLE_SPAN_SECRET="guessed")
        assert stranger.returncode == 3
        assert "does not know the secret" in stranger.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "must be `serve`, or HOST:PORT"),
        (["host"], "must be `serve`, or HOST:PORT"),
        (["host:1"], "--secret: is needed"),
        (["--from", "x"], "give both"),
        (["host:1", "--write", "f.yaml"], "belong together"),
        (["--from", "no-such-a", "--to", "no-such-b"], "no-such-b"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str) -> None:
    done = _probe(*words)
    assert done.returncode in (2, 3)
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
