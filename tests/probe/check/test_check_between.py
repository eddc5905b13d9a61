"""Pairs of real nodes (network namespaces) over real links, one of which is slow or cut."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import needs

MBIT = 80


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def shape(netns: str | None, device: str, mbit: int) -> None:
    inside = ["ip", "netns", "exec", netns] if netns else []
    words = f"tc qdisc replace dev {device} root tbf rate {mbit}mbit burst 64kb latency 25ms".split()
    subprocess.run([*inside, *words], check=True, capture_output=True)


@contextmanager
def nodes(tag: str, count: int) -> Iterator[list[str]]:
    """Namespaces on one bridge, each by its own link; their addresses are 10.231.9.1 and so on."""
    made: list[tuple[str, ...]] = []
    try:
        ip("link", "add", f"{tag}b", "type", "bridge")
        made.append(("link", "del", f"{tag}b"))
        ip("link", "set", f"{tag}b", "up")
        for k in range(1, count + 1):
            name = f"{tag}n{k}"
            ip("netns", "add", name)
            made.append(("netns", "del", name))
            ip("link", "add", f"{tag}o{k}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"{tag}o{k}", "master", f"{tag}b", "up")
            ip("-n", name, "addr", "add", f"10.231.9.{k}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", name, "link", "set", device, "up")
            # what TCP remembers of an address from one measurement would slow down the next
            remember = ["sysctl", "-qw", "net.ipv4.tcp_no_metrics_save=1"]
            subprocess.run(["ip", "netns", "exec", name, *remember], check=True, capture_output=True)
            shape(name, "eth0", MBIT)
            shape(None, f"{tag}o{k}", MBIT)
        yield [f"{tag}n{k}" for k in range(1, count + 1)]
    finally:
        for words in reversed(made):
            subprocess.run(["ip", *words], check=False, capture_output=True)


def measured(
    inside: Sequence[str | None], leader: str, port: int, *more: str
) -> tuple[int, dict[str, Any], list[str]]:
    """One rank in each place: the leader's exit code and result, and what each wrote to standard error."""
    env = {**os.environ, "WORLD_SIZE": str(len(inside)), "MASTER_ADDR": leader, "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [*(["ip", "netns", "exec", place] if place else []), sys.executable, "-m", "unidle.probe.check.between",
             "--node", f"n{k}", *more],
            env={**env, "RANK": str(k - 1)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for k, place in enumerate(inside, 1)
    ]  # fmt: skip
    try:
        ended = [process.communicate(timeout=150) for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    out = ended[0][0]
    return started[0].returncode, json.loads(out) if out else {}, [error for _, error in ended]


def found(
    places: Sequence[str], options: Sequence[str], port: int, expected: tuple[int, list[Any], list[Any]]
) -> dict[str, Any]:
    """The result, measured again where something held one link up: a second of traffic on a machine that others use."""
    for more in range(3):
        code, result, errors = measured(places, "10.231.9.1", port + more, *options)
        if (code, result["bad_nodes"], result["bad_links"]) == expected:
            return result
    pytest.fail(f"{(code, result, errors)}, not {expected}")


@pytest.mark.slow
@needs.root
@needs.shaping
@needs.own_mounts
def test_a_slow_node_and_then_a_slow_link_and_then_a_cut_one_are_named():
    with nodes(f"ub{os.getpid() % 10_000}", 4) as places:
        tag = places[0][:-2]
        options = ("--seconds", "1", "--streams", "2", "--wait", "2")
        found(places, options, 29901, (0, [], []))
        shape(None, f"{tag}o3", 20)  # what n3 receives
        result = found(places, options, 29904, (1, ["n3"], []))
        bad = next(check for check in result["checks"] if check["name"] == "node n3")
        assert bad["ok"] is False and bad["value"] < 0.03 and "n4" in bad["because"]
        shape(None, f"{tag}o3", MBIT)
        # n3 and n4 do not hear each other, and both hear all others
        ip("-n", places[2], "route", "add", "blackhole", "10.231.9.4/32")
        found(places, options, 29907, (1, [], [["n3", "n4"]]))


def test_two_nodes_alone_cannot_be_told_apart_but_can_be_held_against_a_number():
    options = ("--seconds", "0.2", "--streams", "1")
    code, result, _ = measured([None, None], "127.0.0.1", 29911, *options)
    assert (code, result["ok"]) == (3, None)
    assert all("nothing to compare it with" in check["because"] for check in result["checks"])
    code, result, _ = measured([None, None], "127.0.0.1", 29912, *options, "--gbps", "0.001")
    assert (code, result["ok"]) == (0, True)
    code, result, _ = measured([None, None], "127.0.0.1", 29913, *options, "--gbps", "100000")
    assert (code, result["unsure"]) == (1, ["n1", "n2"])
    assert result["checks"][-1]["name"] == "pair n1 n2" and result["checks"][-1]["ok"] is False


@pytest.mark.slow
def test_an_all_reduce_between_two_processes_can_be_what_is_measured():
    options = ("--collective", "gloo", "--bytes", "1048576", "--gbps", "0.0001", "--wait", "120")
    code, result, errors = measured([None, None], "127.0.0.1", 29921, *options)
    assert (code, result["ok"]) == (0, True), (result, errors)


@pytest.mark.parametrize(
    ("words", "says"),
    [(("--seconds", "0"), "--seconds: must be from 0.05"), (("--gbps", "-1"), "--gbps: must be more")],
)
def test_bad_options_are_one_clear_error(words: tuple[str, ...], says: str):
    code, _, errors = measured([None], "127.0.0.1", 29931, *words)
    assert code == 2 and says in errors[0] and errors[0].count("\n") == 1


def test_nodes_listen_on_the_ports_of_a_range_alone() -> None:
    """Three are just enough for two nodes on one machine: with one of them in use, no other is taken instead."""
    first = free_range(3)
    options = ("--seconds", "0.1", "--streams", "1", "--gbps", "0.001", "--ports", f"{first}-{first + 2}")
    code, result, errors = measured([None, None], "127.0.0.1", first, *options)
    assert (code, result["ok"]) == (0, True), errors
    with socket.create_server(("", first + 2)):
        code, _, errors = measured([None, None], "127.0.0.1", first, *options, "--join", "3")
    assert any(f"all ports from {first} to {first + 2} are in use" in error for error in errors), errors


def free_range(count: int) -> int:
    """The first of so many ports in a row that are free now."""
    for first in range(21_000 + os.getpid() % 1000 * 10, 32_000):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.create_server(("", port)))
            return first
    pytest.fail("no ports are free")
